"""Where the time goes: cells of INSANE once more, under `perf`, after the comparison and no part of it."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from .cells import Cell
from .process import Beside, Void

#: What is profiled: messages flow for long enough.
EXPERIMENTS = ("rtt", "oneway", "fanout", "apps", "threads")
#: Samples per second of each core, no divisor of any timer's.
FREQUENCY = 4999
#: How long `perf` may take to begin, in seconds; a later part of the cell is as good.
START_S = 0.3
#: How long `perf` may take to end, and to read what it recorded, in seconds.
PATIENCE_S = 60
#: Parts smaller than this are left out of tables, in percent.
SMALLEST = 2.0


Sums = dict[str, float]


@dataclass(frozen=True)
class Part:
    """What threads of one name did."""

    thread: str
    #: Of all samples, in percent.
    share: float
    #: Of this one's: what ran in the kernel, and that by the system calls that it was in; the rest by whose code it was.
    kernel: float
    calls: dict[str, float]
    code: dict[str, float]


@dataclass(frozen=True)
class Profile:
    """A cell's parts, the largest first."""

    cell: str
    parts: list[Part]


def why_not() -> str | None:
    """Why nothing can be profiled here."""
    perf = shutil.which("perf")
    if perf is None:
        return "there is no perf (Debian: apt install linux-perf)"
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run([perf, "record", "-q", "-o", f"{folder}/try", "--", "true"], capture_output=True, text=True)
    last = tried.stderr.strip().splitlines()[-1:] or [f"exit status {tried.returncode}"]
    return None if tried.returncode == 0 else f"perf does not record: {last[0]}"


@contextlib.contextmanager
def recording(pids: list[int], data: Path) -> Iterator[None]:
    """Samples processes meanwhile."""
    command = ["perf", "record", "-q", "-F", str(FREQUENCY), "-g", "-p", ",".join(map(str, pids)), "-o", str(data)]
    perf = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        # It says nothing when it has begun.
        time.sleep(START_S)
        yield
    finally:
        perf.send_signal(signal.SIGINT)
        try:
            perf.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            perf.kill()
            perf.wait()


def read(data: Path) -> list[Part]:
    """What was recorded; nothing if that cannot be read."""
    def report(*more: str) -> str:
        command = ["perf", "report", "-i", str(data), "--stdio", "-q", "-g", "none", "-t", "|", *more]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S).stdout

    return parts(report("--no-children", "--sort", "comm,dso,sym"), report("--children", "--sort", "comm,sym"))


def _owner(program: str, symbol: str) -> str:
    """Whose code it is: the crate's, or else the program's or library's."""
    crate = re.search(r"\b(insane(?:_[a-z]+)*|bench_[a-z]+)::", symbol)
    if crate:
        return crate[1].replace("_", "-")
    return "copying" if re.search(r"mem(move|cpy|set)", symbol) else program


def parts(flat: str, nested: str) -> list[Part]:
    """From two reports of `perf`: each sample where it was, and each with all that called it."""
    shares: Sums = defaultdict(float)
    kernel: Sums = defaultdict(float)
    code: dict[str, Sums] = defaultdict(lambda: defaultdict(float))
    calls: dict[str, Sums] = defaultdict(lambda: defaultdict(float))
    for percent, (thread, program, symbol) in _lines(flat):
        shares[thread] += percent
        if symbol.startswith("[k]"):
            kernel[thread] += percent
        else:
            code[thread][_owner(program, symbol)] += percent
    for percent, (_, thread, symbol) in _lines(nested):
        call = re.fullmatch(r"\[k\] __(?:x64|arm64|s390x|riscv)_sys_(\w+)", symbol)
        if call:
            calls[thread][call[1]] += percent

    def of(thread: str, found: Sums) -> dict[str, float]:
        return {name: round(100 * percent / shares[thread], 1) for name, percent in _largest_first(found)}

    return [
        Part(thread, round(share, 1), round(100 * kernel[thread] / share, 1), of(thread, calls[thread]),
             of(thread, code[thread]))
        for thread, share in _largest_first(shares) if share > 0]


def _largest_first(sums: Sums) -> list[tuple[str, float]]:
    return sorted(sums.items(), key=lambda item: -item[1])


def _lines(report: str) -> Iterator[tuple[float, list[str]]]:
    """The lines of a report: a percentage and three more columns."""
    for line in report.splitlines():
        percent, *columns = (word.strip() for word in line.split("|", 3))
        if len(columns) == 3 and re.fullmatch(r"[\d.]+%", percent):
            yield float(percent.rstrip("%")), columns


def profile(cells: list[Cell], run: Callable[[Cell, Beside], object], say: Callable[[str], None]) -> list[Profile]:
    """Runs each of the cells that are profiled once; `run` does so, and is given what to do beside it."""
    wanted = [c for c in cells if c.key == "insane" and c.experiment in EXPERIMENTS and not c.knob]
    found = []
    for number, cell in enumerate(wanted, 1):
        say(f"profile {number}/{len(wanted)}: {cell.label}")
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "perf.data"
            try:
                run(cell, partial(recording, data=data))
                found.append(Profile(cell.label, read(data)))
            except (Void, OSError, subprocess.SubprocessError) as reason:
                # The others are worth having.
                say(f"profile: {cell.label}: {reason}")
    return found


def table(profiles: list[Profile]) -> list[str]:
    """The profiles in Markdown."""
    def listed(found: dict[str, float]) -> str:
        return ", ".join(f"{name} {percent:.0f}" for name, percent in found.items() if percent >= SMALLEST) or "–"

    lines = ["| what | thread | of all | in the kernel | by call | other code |", "| --- | --- | --- | --- | --- | --- |"]
    for one in profiles:
        for part in one.parts:
            if part.share >= SMALLEST:
                lines.append(f"| {one.cell} | {part.thread} | {part.share:.0f} | {part.kernel:.0f} | {listed(part.calls)} | "
                             f"{listed(part.code)} |")
    return lines


def written(profiles: list[Profile], out: Path) -> None:
    """All of them, as JSON."""
    out.write_text(json.dumps([asdict(one) for one in profiles], indent=1) + "\n")
