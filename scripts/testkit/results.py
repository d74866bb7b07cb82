"""What a run came to: a result per unit (a test binary, a suite, a fuzz target), kept as JSON, added up at the end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Result:
    """The counts of one unit, with a name and a reason for all that did not pass."""

    unit: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    skips: list[tuple[str, str]] = field(default_factory=list)
    log: str = ""

    def fail(self, what: str) -> None:
        """Counts one more failure."""
        self.failed += 1
        self.failures.append(what)

    def skip(self, name: str, reason: str) -> None:
        """Counts one more test that did not run."""
        self.skipped += 1
        self.skips.append((name, reason))

    def add(self, other: Result) -> None:
        """Takes the counts of another in."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += [f"{other.unit}: {what}" for what in other.failures]
        self.skips += other.skips

    def line(self) -> str:
        """One line for people."""
        verdict = "FAIL" if self.failed else "ok  " if self.passed else "skip" if self.skipped else "none"
        counts = ", ".join(
            f"{n} {word}"
            for n, word in ((self.passed, "passed"), (self.failed, "failed"), (self.skipped, "skipped"))
            if n
        )
        return f"{verdict} {self.unit:<44} {counts or 'nothing to run':<32} {self.seconds:6.1f} s"

    def write(self, folder: Path) -> None:
        """Writes it to `folder`, under a file name made of the unit's."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{slug(self.unit)}.json").write_text(json.dumps(asdict(self), indent=1) + "\n")


def slug(name: str) -> str:
    """A file name made of any name."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.") or "unnamed"


class BadResult(ValueError):
    """A result file that does not say what it must."""


def read(path: Path, unit: str | None = None) -> Result:
    """Reads a result file; `unit` replaces the name in it.

    Anything may write one: `passed`, `failed` and `skipped` are numbers, `failures` a list of texts and `skips` a list
    of (name, reason); all may be left out. Raises BadResult.
    """
    try:
        data = json.loads(path.read_text())
        result = Result(unit=unit or str(data["unit"]), log=str(data.get("log", "")))
        result.seconds = float(data.get("seconds", 0.0))
        for name in ("passed", "failed", "skipped"):
            value = data.get(name, 0)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise BadResult(f"{path}: `{name}` is {value!r}, not a count")
            setattr(result, name, value)
        result.failures = [str(text) for text in data.get("failures", [])]
        result.skips = [(str(name), str(reason)) for name, reason in data.get("skips", [])]
    except BadResult:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadResult(f"{path}: {error}") from error
    # A skip that is only counted could not be held against the list of allowed ones.
    for _ in range(result.skipped - len(result.skips)):
        result.skips.append((result.unit, "no reason given"))
    result.skipped = len(result.skips)
    return result


def read_folder(folder: Path) -> list[Result]:
    """All results under `folder`, in order of their files; a broken file is a failure of its own."""
    found = []
    for path in sorted(folder.rglob("*.json")):
        try:
            found.append(read(path))
        except BadResult as error:
            broken = Result(unit=path.stem)
            broken.fail(str(error))
            found.append(broken)
    return found


class AllowedSkips:
    """The list of tests that CI may skip: a regular expression of the name, then why, per line."""

    def __init__(self, text: str) -> None:
        self._rules: list[re.Pattern[str]] = []
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split(None, 1)
            if not words or words[0].startswith("#"):
                continue
            if len(words) < 2:
                raise ValueError(f"line {number} gives no reason: {line!r}")
            self._rules.append(re.compile(words[0]))

    def allows(self, name: str) -> bool:
        """Whether a test of this name may be skipped."""
        return any(rule.fullmatch(name) for rule in self._rules)


def forbidden_skips(results: Iterable[Result], allowed: AllowedSkips) -> list[str]:
    """What was skipped and may not be, with the reasons given."""
    return [f"{name}: {why}" for result in results for name, why in result.skips if not allowed.allows(name)]


def closing_line(results: Iterable[Result]) -> str:
    """The last line of a CI run."""
    total = Result(unit="total")
    for result in results:
        total.add(result)
    return f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped"
