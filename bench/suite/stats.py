"""Medians, bootstrap intervals, ratios, ties and the rule by which a repetition is discarded."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

#: Two floors around one repetition that differ by more than this part of the smaller one void it.
FLOOR_TOLERANCE = 0.20
#: Resamples of a bootstrap interval.
RESAMPLES = 2000
#: Coverage of a bootstrap interval.
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A median with its bootstrap interval."""

    median: float
    low: float
    high: float


def median_interval(values: Sequence[float], rng: random.Random, resamples: int = RESAMPLES) -> Interval:
    """The median of `values` and the percentile-bootstrap interval of it. One value gives an interval of no width."""
    if not values:
        raise ValueError("no values")
    values = list(values)
    middle = statistics.median(values)
    if len(values) == 1:
        return Interval(middle, middle, middle)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(resamples))
    edge = (1 - LEVEL) / 2
    low, high = medians[int(edge * resamples)], medians[min(resamples - 1, int((1 - edge) * resamples))]
    return Interval(middle, low, high)


def floors_agree(before: float, after: float, tolerance: float = FLOOR_TOLERANCE) -> bool:
    """Whether two floors are near enough to each other for the repetition between them to count."""
    if before <= 0 or after <= 0:
        return False
    return max(before, after) <= min(before, after) * (1 + tolerance)


def floor_between(before: float, after: float) -> float:
    """The floor that a repetition is compared with."""
    return (before + after) / 2


def relation(ratio: Interval, lower_is_better: bool) -> str:
    """How A stands to B, given the interval of A / B: `better`, `worse`, or `tie` if the difference lies inside it."""
    if ratio.low <= 1.0 <= ratio.high:
        return "tie"
    return "better" if (ratio.median < 1.0) == lower_is_better else "worse"


def against_limit(value: Interval, limit: float, at_most: bool) -> str:
    """`pass`, `fail`, or `tie` if the limit lies inside the interval (its own median decides when it has no width)."""
    if value.low < limit < value.high:
        return "tie"
    holds = value.median <= limit if at_most else value.median >= limit
    return "pass" if holds else "fail"
