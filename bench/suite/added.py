"""What INSANE adds to a packet in one direction between two hosts, and of what that is made.

All figures are made of other experiments' repetitions of the same round. Half of INSANE's round trip less half of that of
the bare technology is what is added. Of that,

- `client` is what the calls take that send a message and take it, by one thread that has everything in its core's caches
  (`calls`),
- `link` is the rest of two link hops (half of the local spinning round trip each), from the application to its runtime and
  from the other runtime to its application: what it takes from core to core, and the runtimes' ends of the links,
- `runtime` is what is left: what runtimes do between link and datapath, and, where ends and runtimes share cores or sleep,
  who waits for whom.

`datapath` is half of the bare round trip: the technology, its driver and the wire. As elsewhere spinning ends say nothing
between two hosts where the ends and the runtimes share cores.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from .bars_kinds import Table, find
from .cells import Cell, polled
from .stats import Interval, median_interval

PAYLOAD = 64
HOPS_A_WAY = 2
#: Of two ends and two runtimes.
CORES = 4
#: A variant of INSANE, and what is bare of the same: the system, its variant, its name.
PAST_THE_KERNEL = {
    "xdp": ("af-xdp", "", "AF_XDP"), "dpdk-memif": ("dpdk", "memif", "DPDK over memif"),
    "dpdk-af-packet": ("dpdk", "af-packet", "DPDK over AF_PACKET"), "dpdk-af-xdp": ("dpdk", "af-xdp", "DPDK over AF_XDP"),
}
PAIRS = {"": ("udp", "", "UDP")} | PAST_THE_KERNEL


@dataclass(frozen=True)
class Parts:
    """Of one direction in one round, in µs. The first is all but the last."""

    added: float
    client: float
    link: float
    runtime: float
    datapath: float


NAMES = tuple(field.name for field in fields(Parts))


def parts(ours_us: float, bare_us: float, hop_ns: float, calls_ns: float, spinning_calls_ns: float) -> Parts:
    """From two round trips, a link hop, and a client's calls for a message as ends wait and as spinning ends do."""
    added, client = (ours_us - bare_us) / 2, calls_ns / 1e3
    # A hop is of spinning ends, so what is taken off it is, too.
    link = (HOPS_A_WAY * hop_ns - spinning_calls_ns) / 1e3
    return Parts(added, client, link, added - client - link, bare_us / 2)


def _ours(cells: Iterable[Cell], variant: str, waiting: str) -> Cell | None:
    return _cell(cells, "insane", variant, waiting, "rtt", "veth")


def _bare(cells: Iterable[Cell], variant: str, waiting: str) -> Cell | None:
    key, bare_variant, _ = PAIRS[variant]
    return _cell(cells, key, bare_variant, waiting, "rtt", "veth")


def _calls(cells: Iterable[Cell], waiting: str) -> Cell | None:
    return _cell(cells, "insane", "", waiting, "calls", "local")


def _cell(cells: Iterable[Cell], key: str, variant: str, waiting: str, experiment: str, placement: str) -> Cell | None:
    wanted = {"key": key, "variant": variant, "waiting": waiting, "experiment": experiment, "placement": placement}
    return next(iter(find(cells, payload=PAYLOAD, knob=False, **wanted)), None)


def is_part(cell: Cell) -> bool:
    """Whether something is made of this cell."""
    if cell.experiment == "calls":
        return True
    if cell.experiment != "rtt" or cell.payload != PAYLOAD or cell.knob:
        return False
    if cell.placement == "local":
        return (cell.key, cell.variant, cell.waiting) == ("insane", "", "spin")
    bare = [(key, variant) for key, variant, _ in PAIRS.values()]
    ours = cell.key == "insane" and cell.variant in (*PAIRS, *map(polled, PAIRS))
    return ours or (cell.key, cell.variant) in bare


def pairs(cells: Iterable[Cell]) -> list[tuple[Cell, Cell]]:
    """Ours and the bare one, of every datapath and waiting class that has both."""
    cells = list(cells)
    found = []
    for ours in cells:
        bare = _bare(cells, ours.variant, ours.waiting) if ours.variant in PAIRS else None
        if bare is not None and ours == _ours(cells, ours.variant, ours.waiting):
            found.append((ours, bare))
    return found


def listed(cells: Iterable[Cell], four_cores: bool) -> list[str]:
    """A line for each row that will be made."""
    return [f"added {ours.label.removeprefix('rtt ')}: with {bare.label}, link hops and calls"
            for ours, bare in pairs(cells) if four_cores or ours.waiting != "spin"]


def by_round(table: Table, hop: dict[int, float], variant: str, waiting: str, base: str | None = None) -> dict[int, Parts]:
    """The parts, in every round that has all of what they are made of. `base` is the variant of which the bare one is beside
    it, if that is another."""
    ours, bare = _ours(table, variant, waiting), _bare(table, variant if base is None else base, waiting)
    calls, spinning = _calls(table, waiting), _calls(table, "spin")
    if ours is None or bare is None or calls is None or spinning is None:
        return {}
    rounds = [{r.round: r for r in table[cell]} for cell in (ours, bare, calls, spinning)]
    found = {}
    for number in sorted(set(hop).intersection(*rounds)):
        mine, theirs, own, least = (of[number].values for of in rounds)
        took, least_took = (values["send_ns"] + values["consume_ns"] for values in (own, least))
        found[number] = parts(mine["median_us"], theirs["median_us"], hop[number], took, least_took)
    return found


def intervals(found: Iterable[Parts], rng: random.Random) -> dict[str, Interval]:
    """Each part's median and interval."""
    found = list(found)
    return {name: median_interval([getattr(each, name) for each in found], rng) for name in NAMES}


def make_rows(table: Table, hop: dict[int, float], rng: random.Random, units: dict[str, str]) -> list[dict[str, Any]]:
    """Rows as of other experiments; those fields that say nothing here are those of our round trips."""
    made = []
    for ours, bare in pairs(table):
        found = by_round(table, hop, ours.variant, ours.waiting)
        reps = [r for r in table[ours] if r.round in found]
        if not reps or (ours.waiting == "spin" and len(reps[0].cores) < CORES):
            continue
        for name, interval in intervals(found.values(), rng).items():
            made.append({
                "experiment": "added", "system": ours.system, "language": ours.language, "transport": ours.transport,
                "waiting": ours.waiting, "variant": ours.variant, "placement": ours.placement, "payload_bytes": PAYLOAD,
                "sinks": 1, "metric": f"{name}_us", "unit": units[f"{name}_us"], "median": interval.median,
                "low": interval.low, "high": interval.high, "runs": len(found), "discarded": 0,
                "samples": sum(r.samples for r in reps), "reference": f"{bare.key} {bare.variant}".strip(),
                "reference_median": statistics.median(each.datapath for each in found.values()),
                "hop_ns": statistics.median(hop[number] for number in found),
                "floor_before": statistics.median(r.floor_before for r in reps),
                "floor_after": statistics.median(r.floor_after for r in reps),
                "knob": "off", "cores": reps[0].cores, "cpu_per_msg": None, "loss": 0.0,
            })
    return made
