"""Counts what test programs print: libtest, pytest, unittest, JUnit XML, and the project's own skips."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from testkit.results import Result

_LIBTEST = re.compile(r"^test result: (?:ok|FAILED)\. (\d+) passed; (\d+) failed; (\d+) ignored;", re.M)
# A test that prints by itself pushes its verdict to a later place on the line.
_LIBTEST_ONE = re.compile(
    r"^test (\S+)(?: - should panic)?(?: \(line \d+\))? \.\.\. (?:.*?)(ok|FAILED|ignored)(?:, (.*))?$", re.M
)
_LIBTEST_FAILED = re.compile(r"^    (\S+)$", re.M)
_PYTEST = re.compile(r"^=* ?((?:\d+ \w+(?:, )?)+) in [\d.]+s", re.M)
_UNITTEST_RAN = re.compile(r"^Ran (\d+) tests? in ", re.M)
_UNITTEST_END = re.compile(r"^(?:OK|FAILED)(?: \((.*)\))?$", re.M)
# With -v: the test's name in full, and why it was skipped.
_UNITTEST_START = re.compile(r"^\w+ \(([\w.]+)\)")
_UNITTEST_SKIPPED = re.compile(r"\bskipped (['\"])(.*)\1$")
_CLOSING = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped\s*\Z", re.M)
_SKIPPED = re.compile(r"\bSKIPPED (\S+): (.+)$", re.M)
# What --show-output tells of a test, passed or failed, up to the next or the end of the list.
_OUTPUT = re.compile(
    r"^---- (\S+)(?: \(line \d+\))? stdout ----\n(.*?)(?=^---- |^successes:|^failures:|\Z)", re.M | re.S
)
_SKIPPED_HERE = re.compile(r"^SKIPPED: (.+)$", re.M)
_SOAK = re.compile(r"(?:^|::)soak_")


def libtest(log: str, result: Result, *, ignored_are_skips: bool = True) -> bool:
    """Adds what a Rust test binary printed (or several in a row) to `result`; False if it printed no verdict.

    Ignored tests named `soak_…` belong to `make soak` and are not counted; other ignored ones are skips. A test that
    finds at run time that it, or a part of it, cannot run prints `SKIPPED: <reason>`, which `--show-output` lets through,
    or says `SKIPPED <name>: <reason>` past the capture of its output. It is a skip then and no pass.
    """
    verdicts = _LIBTEST.findall(log)
    if not verdicts:
        return False
    failed = [name for name, verdict, _ in _LIBTEST_ONE.findall(log) if verdict == "FAILED"]
    # A verdict may have been pushed off its line; the list before each total has the names again.
    for block in log.split("\ntest result: ")[:-1]:
        if "\nfailures:\n" in block:
            failed += _LIBTEST_FAILED.findall(block.rpartition("\nfailures:\n")[2])
    failed = list(dict.fromkeys(failed))
    passed = sum(int(v[0]) for v in verdicts)
    count = sum(int(v[1]) for v in verdicts)
    result.failed += count
    # The names may be incomplete where a test broke the output; the counts are libtest's own.
    result.failures += failed[:count] + ["a test whose name was not found in the log"] * (count - len(failed))
    if ignored_are_skips:
        for name, verdict, reason in _LIBTEST_ONE.findall(log):
            if verdict == "ignored" and not _SOAK.search(name):
                result.skip(name, reason or "ignored, no reason given")
    skips = {name: why for name, why in _SKIPPED.findall(log) if name not in failed}
    for name, output in _OUTPUT.findall(log):
        reasons = _SKIPPED_HERE.findall(output)
        if reasons and name not in failed:
            skips[name] = "; ".join(dict.fromkeys(reasons))
    for name, why in skips.items():
        result.skip(name, why.strip())
    result.passed += max(0, passed - len(skips))
    return True


def tests_finished(log: str) -> tuple[int, list[str]]:
    """How many tests passed and which failed in a run that was cut short."""
    verdicts = _LIBTEST_ONE.findall(log)
    return sum(1 for v in verdicts if v[1] == "ok"), [v[0] for v in verdicts if v[1] == "FAILED"]


def pytest(log: str, result: Result) -> bool:
    """Adds pytest's summary line to `result`; False if there is none. Skips come without names: JUnit XML has them."""
    lines = _PYTEST.findall(log)
    if not lines:
        return False
    for number, word in re.findall(r"(\d+) (\w+)", lines[-1]):
        if word in ("passed", "xfailed"):
            result.passed += int(number)
        elif word in ("failed", "error", "errors", "xpassed"):
            for _ in range(int(number)):
                result.fail(f"pytest: {word}")
        elif word == "skipped":
            for _ in range(int(number)):
                result.skip("pytest", "see the log")
    return True


def unittest(log: str, result: Result) -> bool:
    """Adds what Python's unittest printed to `result`; False if it printed no verdict."""
    ran, end = _UNITTEST_RAN.findall(log), _UNITTEST_END.findall(log)
    if not ran or not end:
        return False
    counts = {word: int(n) for word, n in re.findall(r"([\w ]+)=(\d+)", end[-1])}
    bad = counts.get("failures", 0) + counts.get(" errors", 0) + counts.get("errors", 0)
    skipped = counts.get("skipped", 0) + counts.get(" skipped", 0)
    for _ in range(bad):
        result.fail("unittest: see the log")
    named = _unittest_skips(log)[:skipped]
    for name, why in [*named, *[("unittest", "see the log")] * (skipped - len(named))]:
        result.skip(name, why)
    result.passed += max(0, int(ran[-1]) - bad - skipped)
    return True


def _unittest_skips(log: str) -> list[tuple[str, str]]:
    """The skipped tests that a verbose run names; a test that prints has its verdict on a later line."""
    found, current = [], None
    for line in log.splitlines():
        start = _UNITTEST_START.match(line)
        current = start.group(1) if start else current
        end = _UNITTEST_SKIPPED.search(line)
        if current and end:
            found.append((current, end.group(2)))
            current = None
    return found


def junit(path: Path, result: Result) -> bool:
    """Adds a JUnit XML file, as pytest writes it, to `result`; False if it cannot be read."""
    try:
        cases = list(ElementTree.parse(path).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return False
    for case in cases:
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            result.fail(name)
        elif skipped is not None:
            result.skip(name, skipped.get("message") or "no reason given")
        else:
            result.passed += 1
    return True


def closing(log: str, result: Result) -> bool:
    """Adds a last line `N passed, N failed, N skipped` to `result`; False if the log ends otherwise.

    Skips are named by lines `SKIPPED <name>: <reason>` before it.
    """
    last = _CLOSING.search(log)
    if not last:
        return False
    passed, failed, skipped = (int(number) for number in last.groups())
    result.passed += passed
    for _ in range(failed):
        result.fail("see the log")
    named = list(dict.fromkeys(_SKIPPED.findall(log)))[:skipped]
    for name, why in [*named, *[(result.unit, "no reason given")] * (skipped - len(named))]:
        result.skip(name, why)
    return True


def any_of(log: str, result: Result) -> bool:
    """Adds what any known program printed to `result`; False if none did."""
    return closing(log, result) or libtest(log, result) or pytest(log, result) or unittest(log, result)
