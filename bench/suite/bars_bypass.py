"""The figures past the kernel's network stack, between two hosts, that the project is held to. `bars.Judge` calls this."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .added import PAST_THE_KERNEL as KINDS
from .bars_hosts import FEW_CORES, LINK_HOPS, MOST_LOSS, POLLED, loss
from .bars_kinds import Table, Verdict, find, shown
from .cells import BARE, BYPASS, CROWDS, Cell, polled
from .pauses import at_part
from .rows import hops
from .stats import against_limit, median_interval

if TYPE_CHECKING:
    from .bars import Judge

#: What a round trip may cost beyond the bare technology, in µs; over memif beyond that and the link hops.
ALLOWANCE_US = 1.0
MEMIF_ALLOWANCE_US = 0.6
XDP_SHARE, MEMIF_SHARE, FAN_OUT_SHARE = 0.85, 0.70, 0.85
#: What a move may cost, in ms: the median, and all but the slowest hundredth.
MEDIAN_MS, P99_MS = 1.0, 20.0

Rounds = dict[int, float]


def _size(payload: int) -> str:
    return f"{payload} B" if payload < 1024 else f"{payload // 1024} KB"


class Bypass:
    """Goes through these bars. Those of spinning ends need four cores; with fewer they are not judged, and what adaptive
    ends do is reported."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.table: Table = judge.table

    def all(self) -> None:
        """Every bar. Nothing is said where nothing of this was part of the run."""
        known = [*self.table, *self.judge.failed]
        if any(c.placement == "veth" and c.experiment not in CROWDS and (c.variant in BYPASS or c.key in BARE)
               for c in known):
            for variant in KINDS:
                self._round_trip(variant)
            self._one_way("xdp", (64, 1024))
            self._one_way("dpdk-memif", (64, 1024, 8192))
            for variant, name in (("xdp", "AF_XDP"), ("dpdk-af-packet", "DPDK over AF_PACKET")):
                self._copies(f"{variant}-scattered", name)
        if any(c.placement == "veth" and c.experiment == "fanout" for c in known):
            self._fan_out()
        if any(c.experiment == "rebind" for c in known):
            self._moves("", "best effort")
            self._moves("reliable", "reliable")

    def _say(self, what: str, bar: str, measured: str, verdict: str) -> None:
        self.judge.verdicts.append(Verdict(what + ", two hosts", bar, measured, verdict))

    def _cell(self, key: str, experiment: str, **wanted: object) -> Cell | None:
        return next(iter(find(self.table, key=key, experiment=experiment, placement="veth", **wanted)), None)

    def _why(self, key: str, **wanted: object) -> str:
        """Why there is no such cell."""
        for cell, reason in self.judge.failed.items():
            if cell.key == key and cell.placement == "veth" and all(getattr(cell, n) == v for n, v in wanted.items()):
                return f"{cell.label}: {reason}"
        return f"{key}: {self.judge.absent.get(key, 'not part of this run, or absent for the reason below')}"

    def _rounds(self, cell: Cell, metric: str) -> Rounds:
        return {r.round: r.values[metric] for r in self.table[cell]}

    def _quotient(self, what: str, bar: str, mine: Rounds, theirs: Rounds, judge: Callable[[float, float, float], str],
                  name: str) -> None:
        """Mine to theirs, round by round."""
        quotients = [value / theirs[number] for number, value in mine.items() if theirs.get(number, 0) > 0]
        if not quotients:
            self._say(what, bar, f"no round has both insane and {name}", "not measured")
            return
        interval = median_interval(quotients, self.judge.rng)
        self._say(what, bar, f"{shown(interval)} of {name}", judge(interval.median, interval.low, interval.high))

    def _limit(self, limit: float, at_most: bool, reported: bool) -> Callable[[float, float, float], str]:
        def verdict(median: float, low: float, high: float) -> str:
            if reported:
                return "reported"
            if low < limit < high:
                return "tie"
            return "pass" if (median <= limit if at_most else median >= limit) else "fail"

        return verdict

    def _pair(
        self, what: str, bar: str, variant: str, experiment: str, waiting: str, payload: int, ours: str | None = None
    ) -> tuple[Cell, Cell] | None:
        """Ours and the bare one, or a word on which is missing and why."""
        key, bare_variant, _ = KINDS[variant]
        same: dict[str, Any] = {"experiment": experiment, "waiting": waiting, "payload": payload}
        found = []
        for who, its in (("insane", variant if ours is None else ours), (key, bare_variant)):
            cell = self._cell(who, variant=its, **same)
            if cell is None:
                self._say(what, bar, self._why(who, variant=its, **same), "not measured")
                return None
            found.append(cell)
        return found[0], found[1]

    def _round_trip(self, variant: str) -> None:
        name = KINDS[variant][2]
        memif = variant == "dpdk-memif"
        more = f"{LINK_HOPS} link hops + {MEMIF_ALLOWANCE_US} µs" if memif else f"{ALLOWANCE_US:g} µs"
        for waiting, ours, how in (("spin", variant, "spinning"), ("spin", polled(variant), POLLED),
                                   ("adaptive", variant, "adaptive")):
            what, bar = f"RTT 64 B over {name}, {how}", f"≤ bare {name} + {more}"
            if (waiting, ours) == ("spin", variant) and not self.judge.four_cores:
                self._say(what, bar, FEW_CORES, "not measured")
                continue
            bar = bar if waiting == "spin" else "reported"
            pair = self._pair(what, bar, variant, "rtt", waiting, 64, ours)
            if pair is None:
                continue
            mine, bare = (self._rounds(cell, "median_us") for cell in pair)
            if waiting != "spin":
                self._quotient(what, bar, mine, bare, self._limit(1, True, True), f"bare {name}")
                continue
            if memif:
                hop = hops(self.table)
                limits = {n: bare[n] + LINK_HOPS * hop[n] / 1e3 + MEMIF_ALLOWANCE_US for n in bare if n in hop}
            else:
                limits = {n: value + ALLOWANCE_US for n, value in bare.items()}
            self._quotient(what, bar, mine, limits, self._limit(1, True, False), "that sum")

    def _one_way(self, variant: str, payloads: tuple[int, ...]) -> None:
        name = KINDS[variant][2]
        memif = variant == "dpdk-memif"
        for payload in payloads:
            for waiting in ("spin", "adaptive"):
                share = MEMIF_SHARE if memif else XDP_SHARE
                lower = f"the lower of bare {name} and the local link" if memif else f"bare {name}"
                what = f"one-way {_size(payload)} over {name}, {'spinning' if waiting == 'spin' else waiting}"
                bar = f"≥ {share:.0%} of {lower}, loss ≤ {MOST_LOSS:.1%}"
                if waiting == "spin" and not self.judge.four_cores:
                    self._say(what, bar, FEW_CORES, "not measured")
                    continue
                bar = bar if waiting == "spin" else "reported"
                pair = self._pair(what, bar, variant, "oneway", waiting, payload)
                if pair is not None:
                    self._rate(what, bar, pair, share, lower, memif and waiting == "spin", waiting != "spin")

    def _rate(self, what: str, bar: str, pair: tuple[Cell, Cell], share: float, lower: str, with_link: bool,
              reported: bool) -> None:
        for cell, verdict in zip(pair, ("fail", "not measured"), strict=True):
            lost = loss(self.table[cell])
            if lost > MOST_LOSS:
                self._say(what, bar, f"{cell.label}: loss {lost:.2%}, at most {MOST_LOSS:.1%} counts",
                          "reported" if reported else verdict)
                return
        mine, best = (self._rounds(cell, "msgs_per_s") for cell in pair)
        name = f"bare {KINDS[pair[0].variant][2]}"
        if with_link:
            wanted = {"experiment": "oneway", "variant": "", "waiting": "spin", "knob": False, "payload": pair[0].payload}
            link = find(self.table, key="insane", **wanted)
            if not link:
                self._say(what, bar, "insane on one host: not part of this run", "not measured")
                return
            local = self._rounds(link[0], "msgs_per_s")
            best, name = {n: min(best[n], local[n]) for n in best if n in local}, lower
        self._quotient(what, bar, mine, best, self._limit(share, False, reported), name)

    def _copies(self, variant: str, name: str) -> None:
        what, bar = f"64 KB messages over {name} in the frames in which they came", "copies by user code: 0"
        cell = self._cell("insane", "oneway", variant=variant)
        if cell is None:
            why = self._why("insane", experiment="oneway", variant=variant)
            self._say(what, bar, why, "not measured")
            return
        reps = self.table[cell]
        copies, messages = sum(r.extra["copies"] for r in reps), sum(r.samples for r in reps)
        speed = shown(median_interval([r.values["gbit_per_s"] for r in reps], self.judge.rng), "Gbit/s")
        self._say(what, bar, f"{copies} of {messages} messages, {speed}", "pass" if copies == 0 else "fail")

    def _fan_out(self) -> None:
        bar = f"≥ {FAN_OUT_SHARE:.0%} of a bare fan-out to as many sleeping readers"
        counts = sorted({c.sinks for c in [*self.table, *self.judge.failed]
                         if c.placement == "veth" and c.experiment == "fanout"})
        for count in counts:
            same: dict[str, Any] = {"experiment": "fanout", "sinks": count, "waiting": "sleep"}
            bare = self._cell("floor", variant="", **same)
            for variant, name in (("", "UDP"), ("xdp", "AF_XDP")):
                what = f"fan-out 1 KB to {count} fed over {name}, sleeping"
                mine = self._cell("insane", variant=variant, **same)
                if mine is None or bare is None:
                    why = self._why("floor" if mine else "insane", variant="" if mine else variant, **same)
                    self._say(what, bar, why, "not measured")
                elif loss(self.table[mine]) > MOST_LOSS:
                    lost = loss(self.table[mine])
                    self._say(what, bar, f"loss {lost:.2%}, at most {MOST_LOSS:.1%} counts", "fail")
                else:
                    ours, theirs = (self._rounds(cell, "msgs_per_s") for cell in (mine, bare))
                    self._quotient(what, bar, ours, theirs, self._limit(FAN_OUT_SHARE, False, False), "a bare fan-out")

    def _moves(self, variant: str, name: str) -> None:
        what = f"pause of a stream that moves on request, {name}"
        cell = self._cell("insane", "rebind", variant=variant)
        if cell is None:
            why = self._why("insane", experiment="rebind", variant=variant)
            self._say(what, f"median ≤ {MEDIAN_MS:g} ms, p99 ≤ {P99_MS:g} ms", why, "not measured")
            return
        reps = self.table[cell]
        moves, still = ([us / 1e3 for r in reps for us in r.extra[key]] for key in ("moves_us", "still_us"))
        stalled, out = sum(r.extra["stalled"] for r in reps), sum(r.extra["stalled_us"] for r in reps) / 1e3
        shown_stalls = (f"stalls of the machine left out of {stalled} pauses, {out:.3g} ms in all"
                        if all(r.extra["watched"] for r in reps) else "the machine's stalls could not be seen")
        for part, label, limit in ((0.5, "median", MEDIAN_MS), (0.99, "p99", P99_MS)):
            figure = at_part(moves, part)
            # The median of repetitions has an interval; the tail is of all moves together.
            interval = median_interval([r.values["median_us"] / 1e3 for r in reps], self.judge.rng)
            verdict = against_limit(interval, limit, True) if part == 0.5 else "pass" if figure <= limit else "fail"
            without = f"{at_part(still, part):.3g} ms without a move" if still else "no span without a move"
            self._say(what, f"{label} ≤ {limit:g} ms", f"{figure:.3g} ms of {len(moves)} moves, {without}; {shown_stalls}",
                      verdict)
