"""Results survive their files, and sums are sums."""

import json
import tempfile
import unittest
from pathlib import Path

from testkit.results import AllowedSkips, BadResult, Result, closing_line, forbidden_skips, read, read_folder


class Results(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_a_result_survives_its_file(self) -> None:
        result = Result(unit="a b/c", passed=3, seconds=1.5)
        result.fail("d")
        result.skip("e", "f")
        result.write(self.folder)
        self.assertEqual(read_folder(self.folder), [result])

    def test_counts_must_be_counts(self) -> None:
        for bad in ('{"passed": -1}', '{"passed": true}', '{"failed": "1"}', "[]", "{", '{"skips": [1]}'):
            path = self.folder / "own.json"
            path.write_text(bad)
            with self.assertRaises(BadResult, msg=bad):
                read(path, unit="x")

    def test_a_broken_file_is_a_failure(self) -> None:
        (self.folder / "x.json").write_text("{")
        self.assertEqual([result.failed for result in read_folder(self.folder)], [1])

    def test_skips_that_are_only_counted_get_a_name(self) -> None:
        (self.folder / "x.json").write_text(json.dumps({"passed": 1, "skipped": 2, "skips": [["a", "b"]]}))
        result = read(self.folder / "x.json", unit="u")
        self.assertEqual((result.skipped, result.skips), (2, [("a", "b"), ("u", "no reason given")]))

    def test_the_closing_line(self) -> None:
        parts = [Result(unit="a", passed=2), Result(unit="b", passed=1, failed=1, failures=["x"])]
        self.assertEqual(closing_line(parts), "3 passed, 1 failed, 0 skipped")
        self.assertEqual(closing_line([]), "0 passed, 0 failed, 0 skipped")

    def test_only_listed_skips_are_allowed(self) -> None:
        allowed = AllowedSkips("# nothing\n\nhuge::.* a CI machine has no huge pages\n")
        result = Result(unit="a")
        result.skip("huge::two_mb", "none reserved")
        result.skip("not_huge::x", "why")
        self.assertEqual(forbidden_skips([result], allowed), ["not_huge::x: why"])
        with self.assertRaises(ValueError):
            AllowedSkips("huge::.*\n")
