"""Broken links and empty promises are found."""

import tempfile
import unittest
from pathlib import Path

from testkit import docs, house


class Docs(unittest.TestCase):
    def test_links(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            here = Path(folder) / "a.md"
            (Path(folder) / "b.md").write_text("# One `two`, three\n\n## Same\n## Same\n")
            text = "[x](b.md) [x](b.md#one-two-three) [x](b.md#same-1) [x](#top) [x](https://example.org)\n# Top\n"
            here.write_text(text)
            self.assertEqual(docs.broken_links(here, text), [])
            bad = "[x](c.md) [x](b.md#none) [x](#none) `[x](not-a-link)`\n```\n[x](neither)\n```\n"
            self.assertEqual(len(docs.broken_links(here, bad)), 3)

    def test_claims_name_tests_that_exist(self) -> None:
        text = "It holds (test: a_test) and (test: `suite::b_test`), not (test: no_test)."
        (what,) = docs.unproved(text, {"a_test", "b_test"})
        self.assertIn("no_test", what)

    def test_verbs_exist(self) -> None:
        makefile = "test: ## x\n\nhelp:\n"
        self.assertEqual(docs.unknown_verbs("`make test` and `make test QUICK=1`", makefile), [])
        self.assertEqual(len(docs.unknown_verbs("`make dance`", makefile)), 1)


class House(unittest.TestCase):
    def test_rules(self) -> None:
        self.assertEqual(house.faults("a.rs", "fn main() {}\n"), [])
        self.assertEqual(len(house.faults("a.rs", "\n" * 901)), 1)
        self.assertEqual(house.faults("a.md", "\n" * 901), [])
        self.assertEqual(len(house.faults("a.toml", "path = '/ro" + "ot/x'")), 1)
        self.assertEqual(len(house.faults("a.rs", "to" + "do!()")), 1)
