"""The floor is what it is said to be: an independent implementation of the same method finds the same figures.

By default that is the Rust twin in `bench-floor`. `BENCH_FLOOR_REFERENCE=file.c` compares with any C source that has
the command line and output names of `floor/method.c` instead. The two run in turns and are compared where the machine
held still; where it never did, the test is skipped, and says so.

The one-way ring agrees with C only: see `floor/method.c` for why code of another length finds up to twice the rate. The
twin must not find less, nor more than that.
"""

import json
import os
import random
import shutil
import subprocess
import time
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory

from suite import machine, stats
from suite.cells import Cell
from suite.process import run_cell, run_method
from suite.systems import SOURCES, build_floor_method, prepare

WANTED, TRIES, ATTEMPTS = 7, 20, 4
#: After this long nothing further is measured.
LONG_S = 6.0
#: How far apart the two may be beyond their bootstrap interval: what the suite itself cannot tell apart.
NOISE = stats.FLOOR_TOLERANCE
#: How much more than the floor's one-way rate code of another length may find.
LONGER_CODE = 2.5
#: How much longer than the floor's round trip that of the twin may be: another compiler's loops over the payload. Where both
#: ends share one core's pipeline that is 1.24 at 1 KB. A floor that is the lower of the two is the stricter one.
OTHER_COMPILER = 1.35


class FloorAgrees(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        allowed = sorted(os.sched_getaffinity(0))
        cls.cores = machine.choose_cores(allowed, machine.read_siblings(allowed), None)
        cls.method = build_floor_method(Path(cls.folder.name))
        source = os.environ.get("BENCH_FLOOR_REFERENCE")
        cls.reference = None
        if source:
            cls.reference = Path(cls.folder.name) / "reference"
            subprocess.run([shutil.which("cc"), "-O2", "-o", cls.reference, source], check=True)
        else:
            floor = next(s for s in SOURCES if s.key == "floor")
            cls.twin = prepare(floor, None, Path(cls.folder.name)).command

    def ours(self, what: str, payload: int) -> float:
        found = run_method(self.method, what, self.cores.pair, payload, 30_000 if what == "rtt" else 0.06, 0)
        return float(found["median_ns" if what == "rtt" else "msgs_per_s"])

    def theirs(self, what: str, payload: int) -> float:
        if self.reference is not None:
            amount = "30000" if what == "rtt" else "0.06"
            pair = [str(core) for core in self.cores.pair]
            done = subprocess.run([self.reference, what, *pair, str(payload), amount], capture_output=True, check=True)
            return float(json.loads(done.stdout)["median_ns" if what == "rtt" else "msgs_per_s"])
        cell = Cell(what, "floor", "floor", "rust", "shm", "spin", "", payload, 1, False)
        amounts = {"count": 30_000, "warmup": 10_000, "seconds": 1.0 if what == "rtt" else 0.06}
        (found,) = next(iter(run_cell(cell, self.twin, self.cores, amounts, 0).values()))
        return float(found["median_ns"]) if what == "rtt" else found["samples"] * 1e9 / found["elapsed_ns"]

    def measure(self, what: str, payload: int, end: float) -> tuple[stats.Interval | None, list[float]]:
        """The other's ratio to the floor, if the machine held still often enough, and the floors."""
        ratios: list[float] = []
        floors = [self.ours(what, payload)]
        for _ in range(TRIES):
            if time.monotonic() > end:
                break
            other = self.theirs(what, payload)
            floors.append(self.ours(what, payload))
            if stats.floors_agree(*floors[-2:]):
                ratios.append(other / stats.floor_between(*floors[-2:]))
            if len(ratios) == WANTED:
                return stats.median_interval(ratios, random.Random(1)), floors
        return None, floors

    def compare(self, what: str, payload: int, most: float = 1 + NOISE) -> None:
        """Two that measure the same agree where nothing is in the way, and it may be in the way of one alone: each runs with
        memory and a placement of its own. So one agreement in a few attempts shows it, and a difference counts only if it
        stays while the floor itself does not move."""
        seen: list[stats.Interval] = []
        floors: list[float] = []
        end = time.monotonic() + LONG_S
        for attempt in range(ATTEMPTS):
            if time.monotonic() > end:
                break
            if attempt:
                time.sleep(0.5)
            found, beside = self.measure(what, payload, end)
            floors += beside
            if found is None:
                continue
            seen.append(found)
            print(f"floor {what} {payload} B: the other is {found.median:.3f} × [{found.low:.3f}–{found.high:.3f}]")
            if found.low <= most and found.high >= 1 - NOISE:
                return
        if len(seen) < ATTEMPTS or not stats.floors_agree(min(floors), max(floors)):
            self.skipTest(f"the machine did not hold still: floors from {min(floors):.0f} to {max(floors):.0f}")
        self.fail(f"the other differs from the floor in every attempt: {seen}")

    def longest(self) -> float:
        """How long the other's round trip may be, in the floor's."""
        return 1 + NOISE if self.reference is not None else OTHER_COMPILER

    def test_round_trips_of_64_bytes(self) -> None:
        self.compare("rtt", 64, self.longest())

    def test_round_trips_of_1_kb(self) -> None:
        self.compare("rtt", 1024, self.longest())

    def test_round_trips_of_8_kb(self) -> None:
        self.compare("rtt", 8192, self.longest())

    def test_one_way(self) -> None:
        for payload in (64, 1024) if self.reference is not None else (1024,):
            self.compare("oneway", payload, 1 + NOISE if self.reference is not None else LONGER_CODE)


if __name__ == "__main__":
    unittest.main()
