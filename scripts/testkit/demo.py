"""Runs the demo, and compares what it prints with what the front door shows of it."""

from __future__ import annotations

import re
import subprocess
import sys

from testkit import docs
from testkit.paths import ROOT


def shape(line: str) -> str:
    """A line without its figures and identities; what the figures are shares of is kept."""
    if "%" in line:
        return " ".join(line.split())
    line = re.sub(r"\b[0-9a-f]{8}(?= (?:open|ended))", "ID", line)
    return " ".join(re.sub(r"\d+(?:\.\d+)?", "N", line).split())


def the_front_door_shows_what_the_demo_prints(shown: str, printed: str) -> list[str]:
    """The lines shown that the demo does not print: other words, other columns."""
    known = {shape(line) for line in printed.splitlines()}
    return [line for line in shown.splitlines() if line.strip() and shape(line) not in known]


def main() -> int:
    """Runs it with the arguments given. Fails if it fails, or does not print what is shown."""
    command = [str(ROOT / "demo/run"), *sys.argv[1:]]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout)
    if done.returncode:
        return done.returncode
    shown = docs.block((ROOT / "README.md").read_text(), the_front_door_shows_what_the_demo_prints.__name__)
    missing = the_front_door_shows_what_the_demo_prints(shown, done.stdout)
    for line in missing:
        print(f"README.md shows what the demo does not print: {line!r}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
