"""Broken links and empty promises are found."""

import tempfile
import unittest
from pathlib import Path

from testkit import demo, docs, house


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
        self.assertEqual(
            len(docs.unproved("It is (tests: a_test,\nother) or (a reason; test: another).", {"a_test"})), 2
        )

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


class Blocks(unittest.TestCase):
    def test_a_block_names_its_test_or_says_why_it_has_none(self) -> None:
        blocks = [
            "<!-- test: one -->\n```\na",
            "<!-- not run: a drawing -->\n```\nb",
            "```sh\nc",
            "<!-- test: two -->\n```\nd",
        ]
        text = "".join(f"{block}\n```\n\n" for block in blocks)
        bad = docs.untested_blocks(text, {"one"})
        self.assertEqual(len(bad), 2)
        self.assertIn("['sh', 'c']", bad[0])
        self.assertIn("two", bad[1])
        self.assertEqual(docs.block(text, "one"), "a\n")
        with self.assertRaises(ValueError):
            docs.block(text, "three")

    def test_verbs_in_blocks_are_looked_up_too(self) -> None:
        self.assertEqual(len(docs.unknown_verbs("```\nmake tea  # now\nmake test\n```\n", "test:\n")), 1)


class Demo(unittest.TestCase):
    def test_figures_may_differ_and_words_may_not(self) -> None:
        printed = "  1s   998  all run\n  sink 0123abcd open   dropped 7\nx  10%  50%\n"
        same = "  2s 1001  all run\n  sink ffffffff open  dropped 0\nx   10%  50%\n"
        self.assertEqual(demo.the_front_door_shows_what_the_demo_prints(same, printed), [])
        other = "  2s 1001  all gone\nx   10%  90%\n"
        self.assertEqual(len(demo.the_front_door_shows_what_the_demo_prints(other, printed)), 2)
