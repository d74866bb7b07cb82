"""What INSANE adds to a packet in one direction between two hosts: judged over memif, reported elsewhere. `bars.Judge` calls
this."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .added import HOPS_A_WAY, PAIRS, PAYLOAD, Parts, by_round, intervals, pairs
from .bars_hosts import FEW_CORES, POLLED
from .bars_kinds import Table, Verdict, shown
from .cells import WAITING_CLASSES, polled
from .rows import hops
from .stats import against_limit, median_interval

if TYPE_CHECKING:
    from .bars import Judge

#: What may be added over memif beyond the link hops, in µs, by spinning ends.
ALLOWANCE_US = 0.25
JUDGED = ("dpdk-memif", "spin")
BAR = f"≤ {HOPS_A_WAY} link hops + {ALLOWANCE_US * 1e3:g} ns"


class Added:
    """Goes through these rows. Those of spinning ends need four cores."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.table: Table = judge.table

    def all(self) -> None:
        """Every row. Nothing is said where no round trip between two hosts was part of the run."""
        known = [*self.table, *self.judge.failed]
        if not any(c.placement == "veth" and c.experiment == "rtt" and c.key == "insane" for c in known):
            return
        self.hop = hops(self.table)
        for variant in PAIRS:
            for waiting in WAITING_CLASSES:
                # Past the kernel's stack nobody wakes who sleeps.
                if waiting != "sleep" or not variant:
                    self._row(variant, waiting)
            self._polled(variant)

    def _row(self, variant: str, waiting: str) -> None:
        judged = (variant, waiting) == JUDGED
        what = f"added per packet and direction over {PAIRS[variant][2]}, {waiting}, two hosts"
        bar = BAR if judged else "reported"
        if waiting == "spin" and not self.judge.four_cores:
            self._say(what, bar, FEW_CORES, "not measured")
            return
        found = by_round(self.table, self.hop, variant, waiting)
        if not found:
            self._say(what, bar, self._why(variant, waiting), "not measured")
            return
        words, verdict = self._words(found), "reported"
        if judged:
            words, verdict = self._against_bar(found, words)
        self._say(what, bar, words, verdict)

    def _polled(self, variant: str) -> None:
        """Where each end polls for its own runtime there are no hops from core to core, and nothing to tell apart."""
        what, judged = f"added per packet and direction over {PAIRS[variant][2]}, {POLLED}, two hosts", variant == JUDGED[0]
        bar = BAR if judged else "reported"
        found = by_round(self.table, self.hop, polled(variant), "spin", variant)
        if not found:
            self._say(what, bar, "not part of this run, or absent for the reason below", "not measured")
            return
        words, verdict = shown(median_interval([each.added for each in found.values()], self.judge.rng), "µs"), "reported"
        if judged:
            words, verdict = self._against_bar(found, words)
        self._say(what, bar, words, verdict)

    def _against_bar(self, found: dict[int, Parts], words: str) -> tuple[str, str]:
        """What is added, of what may be, before these words; and the verdict."""
        shares = [each.added / (HOPS_A_WAY * self.hop[number] / 1e3 + ALLOWANCE_US) for number, each in found.items()]
        interval = median_interval(shares, self.judge.rng)
        return f"{shown(interval)} of that sum; {words}", against_limit(interval, 1.0, True)

    def _words(self, found: dict[int, Parts]) -> str:
        told = intervals(found.values(), self.judge.rng)
        within = ", ".join(f"{name} {told[name].median:.3g}" for name in ("client", "link", "runtime"))
        return f"{shown(told['added'], 'µs')}: {within}; the bare one takes {told['datapath'].median:.3g} µs"

    def _why(self, variant: str, waiting: str) -> str:
        """Why there is no such row."""
        key, bare_variant, _ = PAIRS[variant]
        for cell, reason in self.judge.failed.items():
            is_one = (cell.key, cell.variant) in (("insane", variant), (key, bare_variant)) and cell.waiting == waiting
            if is_one and (cell.experiment, cell.placement, cell.payload) == ("rtt", "veth", PAYLOAD):
                return f"{cell.label}: {reason}"
        if any((ours.variant, ours.waiting) == (variant, waiting) for ours, _ in pairs(self.table)):
            return "no round has both round trips, the link hop and the calls"
        for name in ("insane", key):
            if name in self.judge.absent:
                return f"{name}: {self.judge.absent[name]}"
        return "not part of this run, or absent for the reason below"

    def _say(self, what: str, bar: str, measured: str, verdict: str) -> None:
        self.judge.verdicts.append(Verdict(what, bar, measured, verdict))
