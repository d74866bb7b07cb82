"""What test programs print comes to the right counts."""

import tempfile
import unittest
from pathlib import Path

from testkit import parse
from testkit.results import Result

PASSED = """
running 3 tests
test a::one ... ok
test a::two ... ignored, needs a network card
test a::soak_long ... ignored, soak

test result: ok. 1 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.00s
"""

FAILED = """
running 3 tests
test one ... ok
test two ... FAILED
test a::three - should panic ... FAILED

failures:

---- two stdout ----
thread 'two' panicked at src/lib.rs:1:1:
    not_a_test_name
failures:
    neither

---- a::three stdout ----
note: test did not panic as expected

failures:
    a::three
    two

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
"""


class Libtest(unittest.TestCase):
    def count(self, log: str, **how: bool) -> Result:
        result = Result(unit="x")
        self.assertTrue(parse.libtest(log, result, **how))
        return result

    def test_passes_and_ignored(self) -> None:
        result = self.count(PASSED)
        self.assertEqual((result.passed, result.failed, result.skipped), (1, 0, 1))
        self.assertEqual(result.skips, [("a::two", "needs a network card")])

    def test_ignored_are_no_skips_where_they_run_elsewhere(self) -> None:
        self.assertEqual(self.count(PASSED, ignored_are_skips=False).skipped, 0)

    def test_failures_keep_their_names_and_libtests_count(self) -> None:
        result = self.count(FAILED)
        self.assertEqual((result.passed, result.failed), (1, 2))
        self.assertIn("two", result.failures)

    def test_several_binaries_add_up(self) -> None:
        result = self.count(PASSED + FAILED)
        self.assertEqual((result.passed, result.failed, result.skipped), (2, 2, 1))

    def test_a_skip_at_run_time_is_no_pass(self) -> None:
        log = PASSED.replace("test a::one ... ok", "test a::one ... SKIPPED a::one: no huge pages\nok")
        result = self.count(log)
        self.assertEqual(
            (result.passed, result.skips), (0, [("a::two", "needs a network card"), ("a::one", "no huge pages")])
        )

    def test_a_failed_test_that_said_skipped_is_a_failure(self) -> None:
        result = self.count(FAILED.replace("    not_a_test_name", "SKIPPED two: no huge pages"))
        self.assertEqual((result.passed, result.failed, result.skipped), (1, 2, 0))

    def test_a_skip_that_is_only_printed_is_no_pass(self) -> None:
        shown = (
            "\nsuccesses:\n\n---- a::one stdout ----\nSKIPPED: no card\nmore\n\n---- a::four stdout ----\nnot SKIPPED: x\n\n"
            "\nsuccesses:\n    a::one\n    a::four\n\ntest result: ok. 1 passed"
        )
        result = self.count(PASSED.replace("test result: ok. 1 passed", shown.replace("ok. 1 passed", "ok. 2 passed")))
        self.assertEqual((result.passed, result.failed), (1, 0))
        self.assertEqual(result.skips, [("a::two", "needs a network card"), ("a::one", "no card")])

    def test_no_verdict_is_no_count(self) -> None:
        result = Result(unit="x")
        self.assertFalse(parse.libtest("running 1 test\ntest a ... ok\n", result))
        self.assertEqual(parse.tests_finished("test a ... ok\ntest b ... FAILED\ntest c ... "), (1, ["b"]))


class Python(unittest.TestCase):
    def test_pytest(self) -> None:
        result = Result(unit="x")
        self.assertTrue(parse.pytest("....\n=== 2 failed, 3 passed, 1 skipped, 2 warnings in 1.25s ===\n", result))
        self.assertEqual((result.passed, result.failed, result.skipped), (3, 2, 1))

    def test_quiet_pytest(self) -> None:
        result = Result(unit="x")
        self.assertTrue(parse.pytest("3 passed, 1 error in 0.01s\n", result))
        self.assertEqual((result.passed, result.failed), (3, 1))

    def test_unittest_names_its_skips_where_it_says_them(self) -> None:
        log = """test_a (tests.test_x.T.test_a)
Said at length. ... skipped "it's so"
test_b (tests.test_x.T.test_b) ... skipped 'plain'
test_c (tests.test_x.T.test_c) ... ok

----------------------------------------------------------------------
Ran 3 tests in 0.000s

OK (skipped=2)
"""
        result = Result(unit="x")
        self.assertTrue(parse.unittest(log, result))
        self.assertEqual(result.skips, [("tests.test_x.T.test_a", "it's so"), ("tests.test_x.T.test_b", "plain")])
        self.assertEqual((result.passed, result.failed), (1, 0))

    def test_unittest(self) -> None:
        result = Result(unit="x")
        self.assertTrue(parse.unittest("Ran 6 tests in 0.1s\n\nFAILED (failures=1, errors=2, skipped=1)\n", result))
        self.assertEqual((result.passed, result.failed, result.skipped), (2, 3, 1))

    def test_junit(self) -> None:
        text = (
            "<testsuites><testsuite><testcase classname='a' name='b'/>"
            "<testcase classname='a' name='c'><failure message='no'/></testcase>"
            "<testcase classname='a' name='d'><skipped message='no card'/></testcase></testsuite></testsuites>"
        )
        result = Result(unit="x")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "r.xml"
            path.write_text(text)
            self.assertTrue(parse.junit(path, result))
            path.write_text(text[:40])
            self.assertFalse(parse.junit(path, Result(unit="x")))
        self.assertEqual((result.passed, result.failures, result.skips), (1, ["a::c"], [("a::d", "no card")]))


class Closing(unittest.TestCase):
    def test_a_scripts_own_last_line_counts(self) -> None:
        result = Result(unit="x")
        log = "128 passed, 0 failed\nSKIPPED the::card: none here\n5 passed, 1 failed, 2 skipped\n"
        self.assertTrue(parse.any_of(log, result))
        self.assertEqual((result.passed, result.failed), (5, 1))
        self.assertEqual(result.skips, [("the::card", "none here"), ("x", "no reason given")])

    def test_only_as_the_last_line(self) -> None:
        self.assertFalse(parse.closing("1 passed, 0 failed, 0 skipped\nSegmentation fault\n", Result(unit="x")))
