"""The house rules that no other tool checks; a step of `make lint`.

- a source file has at most 900 lines (500 is the aim, and is reported);
- nothing committed names a directory of somebody's machine or the host of a package registry;
- nothing is left for later in the code, by macro or by comment.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from testkit.paths import ROOT

HARD_LINES, AIM_LINES = 900, 500
SOURCES = {".rs", ".py", ".go", ".c", ".h", ".ts", ".sh"}
# Written in pieces, so that this file does not break its own rules.
_PRIVATE = re.compile(
    r"(?<![\w.])/(?:root|work|farm|home/\w+)/"
    r"|static\.rust"
    + r"-lang|index\.crates\.|files\.python"
    + r"hosted|proxy\.gol"
    + r"ang|registry\.npm"
    + r"js|repo1\.maven"
)
_LATER = re.compile(r"\btodo" + r"!\(|\bunimplement" + r"ed!\(|\b(?:TO" + r"DO|FIX" + r"ME)\b")
_GENERATED = {"Cargo.lock", "go.sum"}


def faults(name: str, text: str) -> list[str]:
    """What breaks a rule in one file."""
    found: list[str] = []
    if Path(name).name in _GENERATED:
        return found
    lines = text.splitlines()
    source = Path(name).suffix in SOURCES
    if source and len(lines) > HARD_LINES:
        found.append(f"{name}: {len(lines)} lines, more than {HARD_LINES}: divide it")
    for number, line in enumerate(lines, 1):
        if _PRIVATE.search(line):
            found.append(f"{name}:{number}: names a private directory or a registry host: {line.strip()[:100]}")
        if source and _LATER.search(line):
            found.append(f"{name}:{number}: left for later: {line.strip()[:100]}")
    return found


def main() -> int:
    """Checks every file that git knows or would add."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    bad = 0
    for name in names:
        try:
            text = (ROOT / name).read_text()
        except (UnicodeDecodeError, OSError):
            continue
        for fault in faults(name, text):
            print(fault)
            bad += 1
        if Path(name).suffix in SOURCES and AIM_LINES < len(text.splitlines()) <= HARD_LINES:
            print(f"note: {name} has {len(text.splitlines())} lines, more than {AIM_LINES}")
    print(f"{len(names)} files, {bad} faults")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
