"""The lists that drive the verbs are read strictly, and the shipped ones are good."""

import unittest

from testkit import suites, verify
from testkit.cargo import binaries
from testkit.paths import ROOT


class Lists(unittest.TestCase):
    def test_shipped_lists_are_good(self) -> None:
        names = [suite.name for suite in suites.parse_list((ROOT / "scripts/suites.list").read_text())]
        self.assertIn("cargo", names)
        self.assertTrue(verify.parse_list((ROOT / "scripts/verify.list").read_text()))

    def test_suites(self) -> None:
        (suite,) = suites.parse_list("# x\n\nname test,fast 60 - some command -v\n")
        self.assertEqual((suite.name, suite.limit_s, suite.command), ("name", 60.0, ["some", "command", "-v"]))
        for bad in ("a test 60 -", "a nightly 60 - x", "a test soon - x", "a test 0 - x", "a test 1 - x\na test 1 - y"):
            with self.assertRaises(ValueError, msg=bad):
                suites.parse_list(bad)

    def test_verify(self) -> None:
        one, two = verify.parse_list("loom insane-shm limit=900 A=b --lib -- --skip x # why\nfuzz control\n")
        self.assertEqual((one.kind, one.name, one.limit_s, one.env), ("loom", "insane-shm", 900.0, (("A", "b"),)))
        self.assertEqual((one.build, one.run), (("--lib",), ("--skip", "x")))
        self.assertEqual((two.kind, two.name, two.limit_s), ("fuzz", "control", verify.DEFAULT_LIMIT_S))
        for bad in ("loom", "kani insane-shm"):
            with self.assertRaises(ValueError, msg=bad):
                verify.parse_list(bad)

    def test_what_must_be_verified_must_be_listed(self) -> None:
        lines = verify.parse_list("miri insane-wire")
        full = "\n".join(f"fn f{n}() {{}}" for n in range(verify.PLACEHOLDER_LINES + 1))
        self.assertEqual(verify.missing(lines, {"insane-shm": "//! placeholder"}, []), [])
        self.assertEqual(len(verify.missing(lines, {"insane-shm": full}, [])), 2)
        self.assertEqual(len(verify.missing(lines, {"x": "#[cfg(loom)]\nmod m;"}, ["control"])), 2)
        listed = verify.parse_list("loom x\nfuzz control")
        self.assertEqual(verify.missing(listed, {"x": "#[cfg(loom)]\nmod m;"}, ["control"]), [])

    def test_fuzz_targets_of_crates_have_their_folder_in_the_name(self) -> None:
        self.assertEqual(verify.fuzz_folder("control"), ("fuzz", "control"))
        self.assertEqual(verify.fuzz_folder("crates/x/fuzz/headers"), ("crates/x/fuzz", "headers"))

    def test_other_build_messages_are_passed_over(self) -> None:
        self.assertEqual(binaries([{"reason": "build-finished", "success": True}]), [])
