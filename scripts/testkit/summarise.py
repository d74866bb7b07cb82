"""Adds up the results of one or several verbs and ends with the line `N passed, N failed, N skipped`.

The exit code is 1 if anything failed, if nothing ran, if a verb ended badly without a failed test to show for it, and,
in CI, if something was skipped that `scripts/may-skip.list` does not allow.
"""

from __future__ import annotations

import argparse
import sys

from testkit.paths import RESULTS, ROOT, in_ci
from testkit.results import AllowedSkips, Result, closing_line, forbidden_skips, read_folder


def report(verbs: list[str], codes: dict[str, int] | None = None) -> int:
    """Prints the summary of `verbs`; `codes` are the exit codes that they ended with."""
    allowed = AllowedSkips((ROOT / "scripts/may-skip.list").read_text())
    results: list[Result] = []
    forbidden: list[str] = []
    for verb in verbs:
        own = read_folder(RESULTS / verb)
        refused = forbidden_skips(own, allowed) if in_ci() else []
        forbidden += refused
        code = (codes or {}).get(verb, 0)
        if code and not refused and not any(result.failed for result in own):
            bad = Result(unit=f"make {verb}")
            bad.fail(f"ended with code {code} without a failed test")
            own.append(bad)
        if not any(result.passed or result.failed for result in own):
            empty = Result(unit=f"make {verb}")
            empty.fail("ran no test at all")
            own.append(empty)
        results += own
    print()
    for result in results:
        for failure in result.failures:
            print(f"failed   {result.unit}: {failure}")
    for result in results:
        for name, why in result.skips:
            print(f"skipped  {name}: {why}")
    for what in forbidden:
        print(f"failed   CI may not skip {what}")
    print(closing_line(results), flush=True)
    return 1 if forbidden or any(result.failed for result in results) else 0


def main() -> int:
    """Summarises the verbs that the arguments name: `test`, or `test=1` with the exit code that it ended with."""
    parser = argparse.ArgumentParser(prog="scripts/summarise", description=__doc__)
    parser.add_argument(
        "verb", nargs="+", help="a folder of out/results: `test`, `verify`; `test=1` with its exit code"
    )
    codes = {}
    for argument in parser.parse_args().verb:
        verb, _, code = argument.partition("=")
        codes[verb] = int(code or 0)
    return report(list(codes), codes)


if __name__ == "__main__":
    sys.exit(main())
