"""The floor is what it is said to be: an independent implementation of the same method finds the same figures.

By default that is the Rust twin in `bench-floor`. `BENCH_FLOOR_REFERENCE=file.c` compares with any C source that has
the command line and output names of `floor/method.c` instead. The two run in turns and are compared where the machine
held still; where it never did, the test is skipped, and says so.

The one-way ring at 64 bytes is compared with C only: see `floor/method.c` for why code of another length finds another
rate there.
"""

import json
import os
import random
import shutil
import subprocess
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory

from suite import machine, stats
from suite.cells import Cell
from suite.process import run_cell, run_method
from suite.systems import SOURCES, build_floor_method, prepare

WANTED, TRIES = 7, 30
#: How far apart the two may be beyond their bootstrap interval.
NOISE = 0.10


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

    def compare(self, what: str, payload: int) -> None:
        ratios: list[float] = []
        before = self.ours(what, payload)
        for _ in range(TRIES):
            other = self.theirs(what, payload)
            after = self.ours(what, payload)
            if stats.floors_agree(before, after):
                ratios.append(other / stats.floor_between(before, after))
            before = after
            if len(ratios) == WANTED:
                break
        if len(ratios) < WANTED:
            self.skipTest(f"the machine held still only {len(ratios)} times out of {TRIES}")
        found = stats.median_interval(ratios, random.Random(1))
        print(f"floor {what} {payload} B: the other is {found.median:.3f} × [{found.low:.3f}–{found.high:.3f}]")
        self.assertLessEqual(found.low, 1 + NOISE, found)
        self.assertGreaterEqual(found.high, 1 - NOISE, found)

    def test_round_trips(self) -> None:
        for payload in (64, 1024, 8192):
            with self.subTest(payload=payload):
                self.compare("rtt", payload)

    def test_one_way(self) -> None:
        for payload in (64, 1024) if self.reference is not None else (1024,):
            with self.subTest(payload=payload):
                self.compare("oneway", payload)


if __name__ == "__main__":
    unittest.main()
