"""The figures that the project is held to, judged as measured: pass, fail, tie, or not measured and why."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from .bars_added import Added
from .bars_bypass import Bypass
from .bars_crowd import Crowds
from .bars_hosts import TwoHosts
from .bars_kinds import Table, Verdict, find, shown
from .cells import Cell
from .measure import Repetition
from .rows import by_cell, paired_ratios, ratios
from .stats import against_limit, median_interval, relation


def _waits(waiting: str) -> Callable[[Cell], bool]:
    """Whether a cell waits so."""
    return lambda cell: cell.waiting == waiting


class Judge:
    """Goes through the bars."""

    def __init__(
        self, kept: list[Repetition], absent: dict[str, str], seed: int, four_cores: bool = True,
        failed: dict[Cell, str] | None = None,
    ) -> None:
        self.four_cores = four_cores
        #: Why cells without a repetition have none.
        self.failed = failed or {}
        self.table: Table = by_cell(kept)
        self.absent = absent
        self.rng = random.Random(seed)
        self.verdicts: list[Verdict] = []

    def _missing(self, what: str, bar: str, who: str) -> None:
        reason = self.absent.get(who, "not part of this run")
        self.verdicts.append(Verdict(what, bar, f"{who}: {reason}", "not measured"))

    def limit(self, what: str, bar: str, limit: float, at_most: bool, **wanted: object) -> None:
        """The median per-repetition ratio to the reference against a limit."""
        cells = find(self.table, **({"key": "insane", "variant": ""} | wanted))
        if not cells:
            self._missing(what, bar, "insane")
        for cell in cells:
            quotients = ratios(cell, self.table)
            if not quotients:
                self.verdicts.append(Verdict(what, bar, "its floor was not measured", "not measured"))
                continue
            interval = median_interval(quotients, self.rng)
            knob = ", knob held" if cell.knob else ""
            self.verdicts.append(Verdict(what + knob, bar, shown(interval), against_limit(interval, limit, at_most)))

    def versus(
        self, what: str, bar: str, mine: Cell, other: Cell, lower_is_better: bool, tie_is_enough: bool
    ) -> None:
        """One cell against another, round by round."""
        by_floor = mine.experiment in ("rtt", "oneway") and "sleep" not in (mine.waiting, other.waiting)
        quotients = paired_ratios(self.table[mine], self.table[other], by_floor)
        name = f"{other.system} {other.variant or ''} {other.waiting}".replace("  ", " ")
        if not quotients:
            self.verdicts.append(Verdict(what, bar, f"no round has both insane and {name}", "not measured"))
            return
        interval = median_interval(quotients, self.rng)
        found = relation(interval, lower_is_better)
        verdict = {"better": "pass", "worse": "fail", "tie": "pass" if tie_is_enough else "tie"}[found]
        self.verdicts.append(Verdict(what, bar, f"{shown(interval)} of {name}: {found}", verdict))

    def versus_system(
        self, what: str, bar: str, system: str, lower_is_better: bool, tie_is_enough: bool,
        pick: Callable[[Cell], bool] = lambda _: True, **wanted: object,
    ) -> None:
        """`insane` against every cell of a peer that `pick` takes; `wanted` says which cell of `insane`."""
        mine = find(self.table, key="insane", variant="", **wanted)
        if not mine:
            self._missing(what, bar, "insane")
            return
        for cell in mine:
            same = {"experiment": cell.experiment, "placement": cell.placement, "payload": cell.payload,
                    "sinks": cell.sinks, "knob": cell.knob}
            others = [c for c in find(self.table, key=system, **same) if pick(c)]
            if not others:
                self._missing(what, bar, system)
            for other in others:
                label = what + (", knob held" if cell.knob else "")
                self.versus(label, bar, cell, other, lower_is_better, tie_is_enough)

    def all(self) -> list[Verdict]:
        """Every bar, in the order in which the project lists them."""
        self._round_trips()
        self._one_way()
        self._fan_out()
        self._others()
        TwoHosts(self).all()
        Bypass(self).all()
        Added(self).all()
        Crowds(self).all()
        return self.verdicts

    def _round_trips(self) -> None:
        spin: dict[str, Any] = {"experiment": "rtt", "payload": 64, "waiting": "spin", "knob": False}
        what = "RTT 64 B, spinning"
        self.limit(what, "≤ 1.3 × floor", 1.3, True, **spin)
        self.versus_system(what, "no worse than a tie with Aeron IPC", "aeron", True, True,
                           _waits("spin"), **spin)
        self.versus_system(what, "lower than iceoryx2", "iceoryx2", True, False, _waits("spin"), **spin)
        what, bar = "RTT 64 B, adaptive", "≤ 1.2 × spinning"
        adaptive = find(self.table, key="insane", variant="", experiment="rtt", payload=64, waiting="adaptive")
        spinning = find(self.table, key="insane", variant="", **spin)
        if not adaptive or not spinning:
            self._missing(what, bar, "insane")
        for cell in adaptive:
            for other in spinning:
                interval = median_interval(paired_ratios(self.table[cell], self.table[other], True) or [0], self.rng)
                knob = ", knob held" if cell.knob else ""
                verdict = against_limit(interval, 1.2, True) if interval.median else "not measured"
                self.verdicts.append(Verdict(what + knob, bar, shown(interval), verdict))
        self.versus_system("RTT 64 B, sleeping", "a tie with a bare futex ping-pong", "floor", True, True,
                           _waits("sleep"), experiment="rtt", payload=64, waiting="sleep")

    def _one_way(self) -> None:
        for payload, share in ((64, 0.40), (1024, 0.50)):
            mine: dict[str, Any] = {"experiment": "oneway", "payload": payload, "waiting": "spin", "knob": False}
            what = f"one-way {payload} B, spinning"
            self.limit(what, f"≥ {share:.0%} of the floor ring", share, False, **mine)
            for peer in ("aeron", "iceoryx2", "zeromq"):
                self.versus_system(what, f"more than {peer}", peer, False, False, **mine)

    def _fan_out(self) -> None:
        counts = sorted({c.sinks for c in self.table if c.experiment == "fanout"}) or [1, 8]
        for count in counts:
            for waiting in ("spin", "sleep"):
                self.versus_system(
                    f"fan-out 1 KB to {count}, {waiting}", "per-sink rate above iceoryx2", "iceoryx2", False, False,
                    _waits(waiting),
                    experiment="fanout", sinks=count, waiting=waiting, knob=False)
        # The bare one wakes with every message, so that is what is compared.
        self.limit("fan-out 1 KB to 8, sleeping, unbatched", "≥ 85 % of a bare fan-out to 8 sleeping readers", 0.85,
                   False, experiment="fanout", sinks=8, waiting="sleep", variant="unbatched")

    def _others(self) -> None:
        what, bar = "Python RTT 64 B, spinning", "≤ 10 µs"
        cells = find(self.table, key="insane-python", experiment="rtt", payload=64, waiting="spin", knob=False)
        if not cells:
            self._missing(what, bar, "insane-python")
        for cell in cells:
            interval = median_interval([r.main for r in self.table[cell]], self.rng)
            self.verdicts.append(Verdict(what, bar, shown(interval, "µs"), against_limit(interval, 10, True)))
        what, bar = "128 MiB message, one-way", "no copy"
        cells = find(self.table, key="insane", experiment="large")
        if not cells:
            self._missing(what, bar, "insane")
        for cell in cells:
            places = {r.extra.get("in_place") for r in self.table[cell]}
            speed = median_interval([r.values["gbit_per_s"] for r in self.table[cell]], self.rng)
            verdict = "pass" if places == {True} else "fail"
            self.verdicts.append(Verdict(f"{what}, {cell.waiting}", bar, shown(speed, "Gbit/s"), verdict))
        what, bar = "session open, stream with 1,000 channels", "reported"
        cells = find(self.table, key="insane", experiment="open")
        if not cells:
            self._missing(what, bar, "insane")
        for cell in cells:
            interval = median_interval([r.main for r in self.table[cell]], self.rng)
            self.verdicts.append(Verdict(f"open: {cell.variant}", bar, shown(interval, "µs"), "reported"))
