"""Repetitions to rows of `latest.json`."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable
from typing import Any

from . import added
from .cells import CROWDS, Cell
from .measure import TURNS, Outcome, Repetition
from .stats import Interval, median_interval

#: The fields of a row, in their order. Later work adds fields at the end only.
FIELDS = (
    "experiment", "system", "language", "transport", "waiting", "variant", "placement", "payload_bytes", "sinks",
    "metric", "unit", "median", "low", "high", "runs", "discarded", "samples", "reference", "reference_median",
    "hop_ns", "floor_before", "floor_after", "knob", "cores", "cpu_per_msg", "loss",
)

UNITS = {
    "median_us": "us", "p99_us": "us", "p999_us": "us", "msgs_per_s": "msgs/s", "gbit_per_s": "Gbit/s",
    "ratio_to_floor": "ratio", "polling_cpu_ns": "ns", "apps_cpu_ns": "ns", "send_ns": "ns", "consume_ns": "ns",
    **{f"{name}_us": "us" for name in added.NAMES}, **dict.fromkeys(TURNS, "ns"),
}


def by_cell(kept: Iterable[Repetition]) -> dict[Cell, list[Repetition]]:
    """Kept repetitions by cell, in the order of their first appearance."""
    table: dict[Cell, list[Repetition]] = {}
    for repetition in kept:
        table.setdefault(repetition.cell, []).append(repetition)
    return table


def reference_cell(cell: Cell, cells: Iterable[Cell]) -> Cell | None:
    """The floor's cell that a cell is compared with within a round, or `None` if the floor around each repetition is.

    Sleeping round trips are compared with the bare futex ping-pong, fan-outs with the bare fan-out of their class (a
    polling one for adaptive sinks), large messages with bare shared memory.
    """
    if cell.experiment == "oneway" or (cell.experiment == "rtt" and cell.waiting != "sleep"):
        return None
    waiting = "sleep" if cell.waiting == "sleep" else "spin"
    for other in cells:
        same = (other.experiment, other.payload, other.sinks) == (cell.experiment, cell.payload, cell.sinks)
        # The bare fan-out has the cores of what it is compared with, wherever that is.
        place = cell.placement if cell.experiment == "fanout" else "local"
        bare = other.key == "floor" and other.variant == "" and other.waiting == waiting and other.placement == place
        if bare and same and (other.knob == cell.knob or (waiting == "spin" and not other.knob)):
            return other
    return None


def references(cell: Cell, table: dict[Cell, list[Repetition]]) -> tuple[str | None, dict[int, Repetition | float]]:
    """What a cell's repetitions are compared with: its name, and per round a repetition or a floor's figure."""
    reps = table[cell]
    if cell.experiment in ("open", "rebind", "calls", "turns", *CROWDS):
        return None, {}
    other = reference_cell(cell, table)
    if other is not None:
        return f"floor {other.waiting}", {r.round: r for r in table[other]}
    if cell.experiment in ("rtt", "oneway") and not (cell.experiment == "rtt" and cell.waiting == "sleep"):
        return "floor spin", {r.round: r.floor for r in reps}
    return None, {}


def ratios(cell: Cell, table: dict[Cell, list[Repetition]]) -> list[float]:
    """Per-repetition ratios to the reference."""
    _, found = references(cell, table)
    out = []
    for repetition in table[cell]:
        reference = found.get(repetition.round)
        if reference is not None:
            out.append(repetition.main / (reference.main if isinstance(reference, Repetition) else reference))
    return out


def paired_ratios(a: list[Repetition], b: list[Repetition], by_floor: bool) -> list[float]:
    """A / B within each round. `by_floor` takes each relative to the floor around it: the hypervisor may have moved
    the virtual CPUs between the two, which matters where both are about as fast as the floor."""
    others = {r.round: r for r in b}
    out = []
    for repetition in a:
        other = others.get(repetition.round)
        if other is not None:
            ratio = repetition.main / other.main
            out.append(ratio * other.floor / repetition.floor if by_floor else ratio)
    return out


def hops(table: dict[Cell, list[Repetition]]) -> dict[int, float]:
    """Per round, half the local spinning RTT of `insane` in nanoseconds."""
    for cell, reps in table.items():
        ours = cell.key == "insane" and cell.placement == "local"
        plain = ours and cell.experiment == "rtt" and cell.waiting == "spin" and cell.payload == 64
        if plain and not cell.variant and not cell.knob:
            return {r.round: r.values["median_us"] * 1e3 / 2 for r in reps}
    return {}


def make_rows(outcome: Outcome, seed: int) -> list[dict[str, Any]]:
    """All rows, sorted for reading."""
    table = by_cell(outcome.kept)
    hop = hops(table)
    rng = random.Random(seed)
    order = sorted(table, key=lambda c: (c.experiment, c.placement, c.payload, c.sinks, c.waiting, c.system, c.language,
                                         c.variant, c.knob))
    rows = []
    for cell in order:
        rows.extend(_rows_of(cell, table, hop, outcome.discarded[cell], rng))
    rows.extend({field: row[field] for field in FIELDS} for row in added.make_rows(table, hop, rng, UNITS))
    return rows


def _rows_of(
    cell: Cell, table: dict[Cell, list[Repetition]], hop: dict[int, float], discarded: int, rng: random.Random
) -> list[dict[str, Any]]:
    reps = table[cell]
    name, found = references(cell, table)
    samples, lost = sum(r.samples for r in reps), sum(r.lost for r in reps)
    rounds_hops = [hop[r.round] for r in reps if r.round in hop]
    cpu = [r.cpu_ns_per_msg for r in reps if r.cpu_ns_per_msg is not None]
    common = {
        "experiment": cell.experiment, "system": cell.system, "language": cell.language,
        "transport": cell.transport, "waiting": cell.waiting, "variant": cell.variant, "placement": cell.placement,
        "payload_bytes": cell.payload, "sinks": cell.sinks, "runs": len(reps), "discarded": discarded,
        "samples": samples, "reference": name, "hop_ns": statistics.median(rounds_hops) if rounds_hops else None,
        "floor_before": statistics.median(r.floor_before for r in reps),
        "floor_after": statistics.median(r.floor_after for r in reps),
        "knob": "on" if cell.knob else "off", "cores": reps[0].cores,
        "cpu_per_msg": statistics.median(cpu) if cpu else None,
        "loss": lost / (lost + samples) if lost + samples else 0.0,
    }
    measured: dict[str, list[float]] = {metric: [r.values[metric] for r in reps] for metric in reps[0].values}
    quotients = ratios(cell, table)
    if quotients:
        measured["ratio_to_floor"] = quotients
    rows = []
    for metric, values in measured.items():
        interval: Interval = median_interval(values, rng)
        row = common | {
            "metric": metric, "unit": UNITS[metric], "median": interval.median, "low": interval.low,
            "high": interval.high, "reference_median": _reference_median(metric, reps, found),
        }
        rows.append({field: row[field] for field in FIELDS})
    return rows


def _reference_median(metric: str, reps: list[Repetition], found: dict[int, Repetition | float]) -> float | None:
    """The reference's own figure in the row's unit, over the rounds that the row has."""
    figures = []
    for repetition in reps:
        reference = found.get(repetition.round)
        if isinstance(reference, Repetition):
            figure = reference.main if metric == "ratio_to_floor" else reference.values.get(metric)
        elif metric in ("median_us", "msgs_per_s", "ratio_to_floor"):
            figure = reference
        else:
            figure = None  # The floors around a repetition are medians and rates only.
        if figure is not None:
            figures.append(figure)
    return statistics.median(figures) if figures else None
