"""What the judges of one host and of two share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .cells import Cell
from .measure import Repetition
from .stats import Interval

Table = dict[Cell, list[Repetition]]


@dataclass(frozen=True)
class Verdict:
    """One bar."""

    what: str
    bar: str
    measured: str
    verdict: str


def find(table: Iterable[Cell], **wanted: object) -> list[Cell]:
    """Cells whose attributes are as wanted; those of one host unless another placement is."""
    wanted = {"placement": "local"} | wanted
    return [cell for cell in table if all(getattr(cell, name) == value for name, value in wanted.items())]


def shown(interval: Interval, unit: str = "×") -> str:
    """A figure and its interval."""
    return f"{interval.median:.3g} {unit} [{interval.low:.3g}–{interval.high:.3g}]"
