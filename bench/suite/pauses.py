"""What a move of a stream from one datapath to another costs: the longest wait for the next message, by both ends' notes.

All times are nanoseconds of the clock that all processes of the machine have.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Stretch = tuple[int, int]


def merged(stretches: Iterable[Sequence[int]]) -> list[Stretch]:
    """The same time as stretches that do not overlap, in order."""
    out: list[Stretch] = []
    for start, end in sorted((int(a), int(b)) for a, b in stretches):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def without(gap: Stretch, stalls: list[Stretch]) -> int:
    """How long a gap is without the stalls in it. `stalls` do not overlap."""
    return gap[1] - gap[0] - sum(max(0, min(gap[1], end) - max(gap[0], start)) for start, end in stalls)


@dataclass(frozen=True)
class Pauses:
    """The longest pause of each span, in ns."""

    #: Of those in which a flow moved.
    moves: list[int]
    #: Of those in which none was asked to.
    still: list[int]
    #: How many spans had their pause made shorter by a stall of the machine, and by how much in all.
    stalled: int
    stalled_ns: int
    #: Whether the machine's stalls were seen at all.
    watched: bool


def pauses(source: dict[str, Any], sink: dict[str, Any]) -> Pauses:
    """Puts both ends' notes together. A gap belongs to the span that has its middle; the machine's stalls are left out."""
    still = [int(at) for at in source["still"]]
    moves = [(int(at), int(flows)) for at, flows in source["moves"]]
    starts = still + [at for at, _ in moves]
    # A request that found the stream on its way already is no move.
    counted = [True] * len(still) + [flows > 0 for _, flows in moves]
    stalls = merged(sink["stalls"] or [])
    longest, bare = [0] * len(starts), [0] * len(starts)
    for start, end in sink["gaps"]:
        middle = (start + end) // 2
        at = bisect_right(starts, middle) - 1
        if at < 0 or middle >= source["end"]:
            continue
        longest[at] = max(longest[at], without((start, end), stalls))
        bare[at] = max(bare[at], end - start)
    spoilt = [b - a for a, b, use in zip(longest, bare, counted, strict=True) if use and b > a]
    edge = len(still)
    return Pauses(
        [value for value, use in zip(longest[edge:], counted[edge:], strict=True) if use], longest[:edge], len(spoilt),
        sum(spoilt), sink["stalls"] is not None)


def at_part(values: Sequence[float], part: float) -> float:
    """The value below which that part of them is: no average of two."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
