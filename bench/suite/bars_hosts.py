"""The figures between two hosts that the project is held to. `bars.Judge` calls this; rows of one host are judged there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .bars_kinds import Table, Verdict, find, shown
from .cells import Cell, polled
from .measure import Repetition
from .rows import hops
from .stats import against_limit, median_interval, relation

if TYPE_CHECKING:
    from .bars import Judge

#: A rate with more loss than this does not count.
MOST_LOSS = 0.001
#: What a spinning round trip may cost beyond raw UDP and the link hops, in µs.
SPIN_ALLOWANCE_US = 0.6
LINK_HOPS = 4
PEERS = ("zeromq", "zenoh", "aeron")
PYTHON_PEERS = ("zeromq-python", "zenoh-python", "pynng", "nats-python")
#: Bare relays of the floor: their variants, and what of theirs is compared.
RELAYS = (("rtt", 64, "relay", "median_us"), ("oneway", 64, "relay-gso", "msgs_per_s"),
          ("oneway", 1024, "relay-gso", "msgs_per_s"))
#: Ends that have their runtime's network side in a loop of their own.
OWN_LOOP = "ends that poll for their runtimes"
POLLED = f"spinning, {OWN_LOOP}"
FEW_CORES = "needs four cores, for both ends and both runtimes, to spin"


def loss(reps: Iterable[Repetition]) -> float:
    """The part of what was sent in all repetitions that did not arrive."""
    reps = list(reps)
    lost, samples = sum(r.lost for r in reps), sum(r.samples for r in reps)
    return lost / (lost + samples) if lost + samples else 0.0


class TwoHosts:
    """Goes through the bars between two hosts."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.table: Table = judge.table

    def all(self) -> None:
        """Every bar. Nothing is said where nothing was measured between two hosts."""
        if not any(cell.placement == "veth" for cell in self.table):
            return
        self._spinning()
        self._adaptive()
        self._sleeping()
        self._rates()
        self._relays()
        self._python()

    def _say(self, what: str, bar: str, measured: str, verdict: str) -> None:
        self.judge.verdicts.append(Verdict(what + ", two hosts", bar, measured, verdict))

    def _cells(self, key: str, experiment: str, **wanted: object) -> list[Cell]:
        return find(self.table, key=key, experiment=experiment, placement="veth", **wanted)

    def _reason(self, key: str) -> str:
        return f"{key}: {self.judge.absent.get(key, 'not part of this run')}"

    def _by_round(self, cells: Iterable[Cell], metric: str, best: bool = False) -> dict[int, float]:
        """The figure of each round: the largest of all cells', or that of the last."""
        found: dict[int, float] = {}
        for cell in cells:
            for r in self.table[cell]:
                value = r.values[metric]
                found[r.round] = max(found.get(r.round, value), value) if best else value
        return found

    @staticmethod
    def _quotients(mine: dict[int, float], theirs: dict[int, float]) -> list[float]:
        """Mine to theirs, of each round that has both."""
        return [value / theirs[number] for number, value in mine.items() if theirs.get(number, 0) > 0]

    def _ratio(
        self, what: str, bar: str, mine: dict[int, float], theirs: dict[int, float], limit: float, at_most: bool, name: str
    ) -> None:
        """Mine to theirs, round by round, against a limit; the unit is theirs."""
        quotients = self._quotients(mine, theirs)
        if not quotients:
            self._say(what, bar, f"no round has both insane and {name}", "not measured")
            return
        interval = median_interval(quotients, self.judge.rng)
        self._say(what, bar, f"{shown(interval)} of {name}", against_limit(interval, limit, at_most))

    def _ours(self, what: str, bar: str, experiment: str = "rtt", key: str = "insane", **wanted: object) -> list[Cell]:
        """Our cells, or a word that there are none."""
        cells = self._cells(key, experiment, **({"variant": ""} | wanted))
        if not cells:
            self._say(what, bar, self._reason(key), "not measured")
        return cells

    def _spinning(self) -> None:
        for variant, what in (("", "RTT 64 B, spinning"), (polled(""), f"RTT 64 B, {POLLED}")):
            self._spins(variant, what)

    def _spins(self, variant: str, what: str) -> None:
        bars = (f"≤ raw polled UDP + {LINK_HOPS} link hops + {SPIN_ALLOWANCE_US} µs", "p99.9 ≤ 2 × raw polled UDP",
                "lower than Aeron UDP")
        if not variant and not self.judge.four_cores:
            for bar in bars:
                self._say(what, bar, FEW_CORES, "not measured")
            return
        raw = self._cells("udp", "rtt", waiting="spin", payload=64)
        hop = hops(self.table)
        for cell in self._ours(what, bars[0], waiting="spin", variant=variant, payload=64):
            median, plain = self._by_round([cell], "median_us"), self._by_round(raw, "median_us")
            limits = {n: plain[n] + LINK_HOPS * hop[n] / 1e3 + SPIN_ALLOWANCE_US for n in plain if n in hop}
            self._ratio(what, bars[0], median, limits, 1.0, True, "that sum")
            self._ratio(what, bars[1], self._by_round([cell], "p999_us"), self._by_round(raw, "p999_us"), 2.0, True,
                        "raw polled UDP")
            peers = self._cells("aeron", "rtt", waiting="spin", payload=64)
            for peer in peers:
                self._lower(what, bars[2], cell, peer)
            if not peers:
                self._say(what, bars[2], self._reason("aeron"), "not measured")

    def _lower(self, what: str, bar: str, mine: Cell, other: Cell) -> None:
        quotients = self._quotients(self._by_round([mine], "median_us"), self._by_round([other], "median_us"))
        name = f"{other.key} {other.variant} {other.waiting}".replace("  ", " ")
        if not quotients:
            self._say(what, bar, f"no round has both {mine.key} and {name}", "not measured")
            return
        interval = median_interval(quotients, self.judge.rng)
        found = relation(interval, lower_is_better=True)
        self._say(what, bar, f"{shown(interval)} of {name}: {found}",
                  {"better": "pass", "worse": "fail", "tie": "tie"}[found])

    def _ways(self, waiting: str) -> list[tuple[str, str]]:
        """Our variants of a round trip that does not spin, and what they are called: with a runtime beside each end and,
        where that was measured, in it."""
        own = self._cells("insane", "rtt", waiting=waiting, payload=64, variant=polled(""))
        return [("", "")] + ([(polled(""), f", {OWN_LOOP}")] if own else [])

    def _adaptive(self) -> None:
        for variant, how in self._ways("adaptive"):
            self._adapts(variant, f"RTT 64 B, adaptive{how}")

    def _adapts(self, variant: str, what: str) -> None:
        for peer in ("zeromq", "zenoh"):
            bars = (f"median ≤ 1/4 of {peer}'s", f"p99.9 ≤ 1/5 of {peer}'s")
            theirs = self._cells(peer, "rtt", payload=64)
            for bar, metric, limit in ((bars[0], "median_us", 0.25), (bars[1], "p999_us", 0.2)):
                if not theirs:
                    self._say(what, bar, self._reason(peer), "not measured")
                    continue
                for cell in self._ours(what, bar, waiting="adaptive", payload=64, variant=variant):
                    self._ratio(what, bar, self._by_round([cell], metric), self._by_round(theirs, metric), limit, True, peer)

    def _sleeping(self) -> None:
        bar = "≤ raw blocking UDP + (a bare chain of six wake-ups − one of two) + 10 %"
        raw = self._by_round(self._cells("udp", "rtt", waiting="sleep", payload=64), "median_us")
        six, two = (self._by_round(self._cells("floor", "rtt", variant=f"chain-{n}", payload=64), "median_us")
                    for n in (6, 2))
        limits = {n: 1.1 * (raw[n] + six[n] - two[n]) for n in raw if n in six and n in two}
        for variant, how in self._ways("sleep"):
            what = f"RTT 64 B, sleeping{how}"
            for cell in self._ours(what, bar, waiting="sleep", payload=64, variant=variant):
                self._ratio(what, bar, self._by_round([cell], "median_us"), limits, 1.0, True, "that sum")

    def _counted(self, cells: Iterable[Cell]) -> list[Cell]:
        return [cell for cell in cells if loss(self.table[cell]) <= MOST_LOSS]

    def _rate(
        self, payload: int, variant: str, limit: float, keys: tuple[str, ...], peer_variant: str | None = None
    ) -> None:
        """Ours, of every class, against the best of others in each round. Who loses too much does not count."""
        names = {("zeromq", "zenoh"): "the best of ZeroMQ and Zenoh", PEERS: "the best peer"}.get(keys, "raw UDP gso")
        size = f"{payload} B" if payload < 1024 else f"{payload // 1024} KB"
        what = f"{'reliable ' if variant else ''}one-way {size}"
        bar = f"≥ {limit:g} × {names}"
        others = self._counted(
            cell for key in keys for cell in self._cells(key, "oneway", payload=payload)
            if peer_variant is None or cell.variant == peer_variant)
        for cell in self._ours(what, bar, "oneway", payload=payload, variant=variant):
            label, lost = f"{what}, {cell.waiting}", loss(self.table[cell])
            if lost > MOST_LOSS:
                self._say(label, bar, f"loss {lost:.2%}, at most {MOST_LOSS:.1%} counts", "fail")
            elif not others:
                self._say(label, bar, f"none of {', '.join(keys)} has a row that counts", "not measured")
            else:
                best = self._by_round(others, "msgs_per_s", best=True)
                self._ratio(label, bar, self._by_round([cell], "msgs_per_s"), best, limit, False, names)

    def _rates(self) -> None:
        sizes = {cell.payload for cell in self.table if cell.placement == "veth" and cell.experiment == "oneway"}
        for payload, limit in ((64, 1.0), (1024, 2.0)):
            if payload in sizes:
                self._rate(payload, "reliable", limit, ("zeromq", "zenoh"))
        for payload, limit in ((64, 1.5), (1024, 3.0), (8192, 2.0), (65536, 2.0)):
            if payload in sizes:
                self._rate(payload, "", limit, PEERS)
        if 1024 in sizes:
            self._rate(1024, "", 0.35, ("udp",), "gso")

    def _relays(self) -> None:
        """What is left to gain, and what not: ours and the peers' beside processes that only pass messages on."""
        for experiment, payload, variant, metric in RELAYS:
            relay = self._by_round(self._cells("floor", experiment, payload=payload, variant=variant), metric)
            if not relay:
                continue
            what = f"{'RTT' if experiment == 'rtt' else 'one-way'} {payload} B, adaptive"
            others = [*self._cells("insane", experiment, payload=payload, waiting="adaptive", variant="")]
            others += [cell for key in PEERS[:2] for cell in self._cells(key, experiment, payload=payload)]
            for cell in others:
                quotients = self._quotients(self._by_round([cell], metric), relay)
                if quotients:
                    shares = shown(median_interval(quotients, self.judge.rng))
                    self._say(what, f"{cell.key} beside a bare relay", f"{shares} of it", "reported")

    def _python(self) -> None:
        what, bar = "Python RTT 64 B, adaptive", "lower than pyzmq, pynng, zenoh and nats-py"
        mine = self._ours(what, bar, key="insane-python", waiting="adaptive", payload=64)
        for peer in PYTHON_PEERS:
            theirs = self._cells(peer, "rtt", payload=64)
            for other in theirs:
                for cell in mine:
                    self._lower(what, f"lower than {peer}", cell, other)
            if mine and not theirs:
                self._say(what, f"lower than {peer}", self._reason(peer), "not measured")
        what, bar = "Python RTT 64 B, spinning", "≤ 30 µs"
        if not self.judge.four_cores:
            self._say(what, bar, FEW_CORES, "not measured")
            return
        for cell in self._ours(what, bar, key="insane-python", waiting="spin", payload=64):
            interval = median_interval([r.main for r in self.table[cell]], self.judge.rng)
            self._say(what, bar, shown(interval, "µs"), against_limit(interval, 30, True))
