"""The rounds: every cell once per round in shuffled order, a floor before and after each, discards and retries."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import stats
from .cells import CROWDS, Cell, Extent
from .hosts import Hosts
from .machine import Cores, knob
from .pauses import at_part, pauses
from .process import Beside, Void, run_cell, run_method, used_cores
from .systems import System

#: A floor younger than this is both the one after a repetition and the one before the next.
FLOOR_SHARED_S = 1.0
#: A cell that failed so often in a row is given up, and reported.
GIVE_UP_AFTER = 3
FLOOR_ROUND_TRIPS = 30_000
#: What a round trip in turns is made of, and what is beside it: a line of `turns` has these.
TURNS = ("client_ns", "sending_ns", "receiving_ns", "idle_ns", "bare_send_ns", "bare_receive_ns")
#: So many times as long is a repetition that is profiled.
PROFILED_LONGER = 4
FLOOR_SECONDS = 0.06


@dataclass
class Repetition:
    """One kept repetition."""

    cell: Cell
    round: int
    #: Metric to value: `median_us`, `p99_us`, `p999_us`, or `msgs_per_s`, `gbit_per_s`.
    values: dict[str, float]
    samples: int
    floor_before: float
    floor_after: float
    cpu_ns_per_msg: float | None
    lost: int
    cores: list[int]
    cdf_ns: list[int] | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def main(self) -> float:
        """The value that ratios are made of."""
        return self.values["msgs_per_s" if "msgs_per_s" in self.values else "median_us"]

    @property
    def floor(self) -> float:
        """The spinning floor around it, in the unit of `main` where that is the same kind of thing."""
        return stats.floor_between(self.floor_before, self.floor_after)


@dataclass
class Outcome:
    """All that a run found."""

    kept: list[Repetition] = field(default_factory=list)
    discarded: Counter[Cell] = field(default_factory=Counter)
    failed: Counter[Cell] = field(default_factory=Counter)
    reasons: dict[Cell, str] = field(default_factory=dict)
    rounds: int = 0
    seconds: float = 0.0


def amounts(cell: Cell, extent: Extent) -> dict[str, float]:
    """How many messages and seconds a repetition of this cell takes."""
    slow = cell.waiting != "spin" or cell.language == "python" or cell.placement != "local"
    if cell.experiment == "rtt":
        return {"count": 100_000, "warmup": 1_000 if slow else 10_000, "seconds": extent.window_s}
    if cell.experiment == "rebind":
        # A move every 40 ms.
        return {"count": 1, "warmup": 0, "seconds": 6 * extent.window_s}
    if cell.experiment == "large":
        return {"count": extent.large_count, "warmup": 1, "seconds": 4}
    if cell.experiment == "open":
        return {"count": 50, "warmup": 1, "seconds": 1.5}
    if cell.experiment in ("calls", "turns"):
        return {"count": 1, "warmup": 10_000, "seconds": extent.window_s / 4}
    if cell.payload > 1024:
        return {"count": 1, "warmup": 200, "seconds": extent.window_s}
    return {"count": 1, "warmup": 2_000 if slow or cell.experiment == "fanout" else 10_000, "seconds": extent.window_s}


def digest(cell: Cell, results: dict[str, Any]) -> tuple[dict[str, float], int, float | None, int, dict[str, Any]]:
    """Result lines to (values, samples, CPU ns per message, lost, extra)."""
    try:
        if cell.experiment in ("rtt", "large", "open"):
            (r,) = next(iter(results.values()))
            values = {name: r[f"{name[:-3]}_ns"] / 1e3 for name in ("median_us", "p99_us", "p999_us")}
            if cell.experiment == "large":
                values = {"median_us": values["median_us"], "gbit_per_s": cell.payload * 8 / r["median_ns"]}
            extra = {"cdf_ns": r.get("cdf_ns"), "in_place": r.get("in_place")}
            return values, r["samples"], r["cpu_ns"] / r["samples"], 0, extra
        if cell.experiment == "rebind":
            return _digest_moves(results)
        if cell.experiment == "calls":
            (r,) = results["calls"]
            send, consume = float(r["send_ns"]), float(r["consume_ns"])
            values = {"median_us": (send + consume) / 1e3, "send_ns": send, "consume_ns": consume}
            return values, r["samples"], r["cpu_ns"] / r["samples"], 0, {}
        if cell.experiment == "turns":
            (r,) = results["turns"]
            values = {"median_us": float(r["round_ns"]) / 1e3} | {name: float(r[name]) for name in TURNS}
            return values, r["samples"], r["cpu_ns"] / r["samples"], 0, {}
        if cell.experiment == "oneway":
            (r,) = results["oneway-sink"]
            rate = r["samples"] * 1e9 / r["elapsed_ns"]
            values = {"msgs_per_s": rate, "gbit_per_s": rate * cell.payload * 8 / 1e9}
            return values, r["samples"], r["cpu_ns"] / r["samples"], r["lost"], {"copies": r.get("copies")}
        if cell.experiment in CROWDS:
            return _digest_crowd(cell, results["app-sink"])
        (source,), sinks = results["fanout-source"], results["fanout-sink"]
        rates = [r["samples"] * 1e9 / r["elapsed_ns"] for r in sinks]
        rate = sum(rates) / len(rates)
        values = {"msgs_per_s": rate, "gbit_per_s": sum(rates) * cell.payload * 8 / 1e9}
        samples, lost = sum(r["samples"] for r in sinks), sum(r["lost"] for r in sinks)
        return values, samples, source["cpu_ns"] / source["samples"], lost, {"slowest": min(rates)}
    except (KeyError, TypeError, ValueError, ZeroDivisionError, StopIteration) as error:
        raise Void(f"a result line lacks something: {error!r}") from error


def _digest_moves(results: dict[str, Any]) -> tuple[dict[str, float], int, float | None, int, dict[str, Any]]:
    """The pauses of the moves of a repetition; a sample is a move."""
    (source,), (sink,) = results["rebind-source"], results["rebind-sink"]
    found = pauses(source, sink)
    if not found.moves:
        raise Void(f"none of {len(source['moves'])} requests moved anything")
    moves, still = [ns / 1e3 for ns in found.moves], [ns / 1e3 for ns in found.still]
    values = {"median_us": at_part(moves, 0.5), "p99_us": at_part(moves, 0.99)}
    extra = {"moves_us": moves, "still_us": still, "stalled": found.stalled, "stalled_us": found.stalled_ns / 1e3,
             "watched": found.watched, "messages": sink["received"]}
    return values, len(moves), source["cpu_ns"] / source["sent"], sink["lost"], extra


def _digest_crowd(
    cell: Cell, sinks: list[dict[str, Any]]
) -> tuple[dict[str, float], int, float | None, int, dict[str, Any]]:
    """The rate of all applications together, and what CPU time a message takes of who polls and of the applications. Each
    sink has a window of its own, in which all of them were at work."""
    if len(sinks) != cell.apps:
        raise Void(f"{len(sinks)} of {cell.apps} applications told what they received")
    rates = [r["samples"] * 1e9 / r["elapsed_ns"] for r in sinks]
    rate = sum(rates)
    busy, polling = (sum(r[key] / r["elapsed_ns"] for r in sinks) / len(sinks) for key in ("cpu_ns", "helpers_cpu_ns"))
    values = {
        "msgs_per_s": rate, "gbit_per_s": rate * cell.payload * 8 / 1e9,
        "polling_cpu_ns": polling * 1e9 / rate, "apps_cpu_ns": (busy - polling) * 1e9 / rate,
    }
    samples, lost = sum(r["samples"] for r in sinks), sum(r["lost"] for r in sinks)
    return values, samples, busy * 1e9 / rate, lost, {"slowest": min(rates), "fastest": max(rates)}


class Bench:
    """One run of the suite."""

    def __init__(
        self, systems: dict[str, System], cells: list[Cell], extent: Extent, cores: Cores, method: Path, seed: int,
        nice: int, say: Callable[[str], None], hosts: Hosts | None = None, drift: float = stats.FLOOR_TOLERANCE,
    ) -> None:
        self.hosts, self.drift = hosts, drift
        self.systems, self.cells, self.extent, self.cores = systems, cells, extent, cores
        self.method, self.nice, self.say = method, nice, say
        self.rng = random.Random(seed)
        self.outcome = Outcome()
        self._last_floor: tuple[tuple[str, int], float, float] | None = None
        self._in_a_row: Counter[Cell] = Counter()

    def _floor(self, key: tuple[str, int], fresh: bool) -> float:
        """One spinning floor: µs for `rtt`, messages per second for `oneway`."""
        now = time.monotonic()
        last = self._last_floor
        if not fresh and last and last[0] == key and now - last[2] < FLOOR_SHARED_S:
            return last[1]
        what, payload = key
        if what == "rtt":
            value = run_method(self.method, what, self.cores.pair, payload, FLOOR_ROUND_TRIPS, self.nice)
            figure = float(value["median_ns"]) / 1e3
        else:
            value = run_method(self.method, what, self.cores.pair, payload, FLOOR_SECONDS, self.nice)
            figure = float(value["msgs_per_s"])
        self._last_floor = (key, figure, time.monotonic())
        return figure

    def profiled(self, cell: Cell, beside: Beside) -> None:
        """One more repetition, longer, for what is done beside it."""
        longer = {name: value * (PROFILED_LONGER if name == "seconds" else 1)
                  for name, value in amounts(cell, self.extent).items()}
        self._run_processes(cell, longer, beside)

    def _run_processes(self, cell: Cell, much: dict[str, float], beside: Beside | None = None) -> dict[str, Any]:
        return run_cell(cell, self.systems[cell.key].command, self.cores, much, self.nice, self.hosts, beside)

    def _run_once(self, cell: Cell) -> dict[str, Any]:
        with knob(cell.knob):
            if not cell.is_method_floor:
                return self._run_processes(cell, amounts(cell, self.extent))
            amount = FLOOR_ROUND_TRIPS if cell.experiment == "rtt" else FLOOR_SECONDS
            result = run_method(self.method, cell.experiment, self.cores.pair, cell.payload, amount, self.nice)
            return {"rtt-client" if cell.experiment == "rtt" else "oneway-sink": [result]}

    def repeat(self, cell: Cell, number: int) -> bool:
        """One repetition, again if its floors disagree, a bounded number of times. Whether one was kept."""
        for _ in range(1 + self.extent.retries):
            try:
                before = self._floor(cell.floor_key, fresh=False)
                results = self._run_once(cell)
                after = self._floor(cell.floor_key, fresh=True)
                values, samples, cpu, lost, extra = digest(cell, results)
            except Void as reason:
                self.outcome.failed[cell] += 1
                self.outcome.reasons[cell] = str(reason)
                self._in_a_row[cell] += 1
                self.say(f"VOID: {cell.label}: {reason}")
                return False
            self._in_a_row[cell] = 0
            if not stats.floors_agree(before, after, self.drift):
                self.outcome.discarded[cell] += 1
                continue
            self.outcome.kept.append(
                Repetition(cell, number, values, samples, before, after, cpu, lost, used_cores(cell, self.cores),
                           extra.pop("cdf_ns", None), extra)
            )
            return True
        return False

    def run(self) -> Outcome:
        """Rounds until there are enough, or until the budget has no room for another one like the last."""
        start = time.monotonic()
        longest = 0.0
        while self.outcome.rounds < self.extent.max_rounds:
            spent = time.monotonic() - start
            if self.outcome.rounds >= self.extent.min_rounds and spent + longest > self.extent.budget_s:
                break
            self.round(self.outcome.rounds + 1, start)
            longest = max(longest, time.monotonic() - start - spent)
            self.outcome.rounds += 1
        self.outcome.seconds = time.monotonic() - start
        return self.outcome

    def round(self, number: int, start: float) -> None:
        """All cells once. What shares a floor stays together, so that floors can be shared and systems compared."""
        blocks: dict[tuple[object, ...], list[Cell]] = {}
        wanted = [c for c in self.cells if not (c.seldom and (number - 1) % self.extent.seldom_every)]
        for cell in wanted:
            blocks.setdefault((cell.experiment, cell.placement, cell.payload, cell.sinks), []).append(cell)
        order = list(blocks.values())
        self.rng.shuffle(order)
        position = 0
        for block in order:
            self.rng.shuffle(block)
            for cell in block:
                position += 1
                if self._in_a_row[cell] >= GIVE_UP_AFTER:
                    continue
                self.say(f"[{time.monotonic() - start:5.0f} s] round {number} {position}/{len(wanted)}  {cell.label}")
                self.repeat(cell, number)
