"""What several applications, and several polling threads, do between two hosts: reported. `bars.Judge` calls this."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .bars_kinds import Table, Verdict, shown
from .cells import CROWDS, Cell
from .stats import median_interval

if TYPE_CHECKING:
    from .bars import Judge

#: Variants of INSANE, in words.
NAMES = {"": "UDP", "xdp": "AF_XDP", "xdp-paced": "AF_XDP, 20,000 messages/s each"}


def per_million(ns_per_message: float) -> float:
    """CPU seconds that a million messages take."""
    return ns_per_message / 1e3


class Crowds:
    """Goes through these rows."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.table: Table = judge.table

    def all(self) -> None:
        """Every row, and a word on each that failed. Nothing is said where none was part of the run."""
        wanted = [c for c in (*self.table, *self.judge.failed) if c.experiment in CROWDS]
        for cell in sorted(dict.fromkeys(wanted), key=lambda c: (c.experiment, c.variant, c.sinks)):
            name = NAMES.get(cell.variant, cell.variant)
            plural = "s" if cell.sinks > 1 else ""
            if cell.experiment == "apps":
                what = f"{cell.sinks} application{plural} on one polling thread over {name}"
            else:
                what = f"{cell.apps} applications receive by {cell.sinks} polling thread{plural} over {name}"
            found = cell in self.table
            measured = self._measured(cell) if found else self.judge.failed[cell]
            self.judge.verdicts.append(
                Verdict(f"{what}, 1 KB, two hosts", "reported", measured, "reported" if found else "not measured"))

    def _measured(self, cell: Cell) -> str:
        reps = self.table[cell]
        rate = median_interval([r.values["msgs_per_s"] / 1e3 for r in reps], self.judge.rng)
        polling, apps = (median_interval([per_million(r.values[name]) for r in reps], self.judge.rng)
                         for name in ("polling_cpu_ns", "apps_cpu_ns"))
        cores = len(reps[0].cores)
        return (f"{shown(rate, 'k messages/s')}; CPU per million of them: polling {shown(polling, 's')}, applications "
                f"{shown(apps, 's')}; all on {cores} cores")
