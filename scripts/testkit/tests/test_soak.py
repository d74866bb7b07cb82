"""What a soak test tells of how far it is."""

from __future__ import annotations

import unittest

from testkit import soak


class Told(unittest.TestCase):
    """Only what is meant to be shown is."""

    def test_lines_of_progress(self) -> None:
        """Whole lines that begin with the word, without it."""
        log = "running 1 test\nprogress: 10 of 60 s\nno progress: at all\nprogress: 20 of 60 s\nok\n"
        self.assertEqual(soak.told(log), ["10 of 60 s", "20 of 60 s"])


if __name__ == "__main__":
    unittest.main()
