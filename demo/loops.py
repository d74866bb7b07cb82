"""What is read out of a dApp's run: when each xApp's answers came, what a fault cost, and when the loop ran again."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from common import Run

LATE_S = 0.1
"""An answer that takes longer is one to the past."""


@dataclass
class Answers:
    """One xApp's answers, in seconds since the loop's start."""

    sent: list[float]
    numbers: list[int]
    took: list[float]

    @classmethod
    def of(cls, run: Run, instance: int) -> Answers:
        """Those of an xApp in a dApp's last line."""
        xapp = run["xapps"][instance]
        return cls([t / 1e6 for t in run["sent_us"]], xapp["numbers"], [t / 1e6 for t in xapp["times_us"]])

    def arrivals(self) -> list[float]:
        """When they came."""
        return sorted(self.sent[n] + t for n, t in zip(self.numbers, self.took, strict=True))

    def again(self, at: float) -> float | None:
        """When the first answer to an indication emitted after `at` came."""
        later = (self.sent[n] + t for n, t in zip(self.numbers, self.took, strict=True) if self.sent[n] >= at)
        return min(later, default=None)

    def unanswered(self, begin: float, end: float) -> int:
        """Indications emitted in a span that were never answered."""
        answered = set(self.numbers)
        return sum(begin <= t < end and n not in answered for n, t in enumerate(self.sent))

    def late(self, begin: float, end: float) -> int:
        """Indications emitted in a span that were answered too late."""
        both = zip(self.numbers, self.took, strict=True)
        return sum(begin <= self.sent[n] < end and t > LATE_S for n, t in both)

    def longest_gap(self, begin: float = 0.0, end: float = float("inf")) -> float | None:
        """The longest time between two answers that ended in a span."""
        came = self.arrivals()
        gaps = (b - a for a, b in itertools.pairwise(came) if begin <= b and a < end)
        return max(gaps, default=None)

    def outside(self, spans: list[tuple[float, float]]) -> list[float]:
        """The loop times, in microseconds, of what was emitted outside of spans."""
        return [
            t * 1e6
            for n, t in zip(self.numbers, self.took, strict=True)
            if not any(begin <= self.sent[n] <= end for begin, end in spans)
        ]


@dataclass
class Fault:
    """What was done to the loop: from when to when, in seconds since its start."""

    name: str
    begin: float
    over: float

    def cost(self, answers: Answers) -> dict[str, Any]:
        """What it cost one xApp's loop."""
        again = answers.again(self.over)
        gap = answers.longest_gap(self.begin, self.over if again is None else again)
        end = answers.sent[-1] + 1 if again is None else again
        return {
            "unanswered": answers.unanswered(self.begin, end),
            "late": answers.late(self.begin, end),
            "longest_gap_ms": None if gap is None else round(gap * 1e3, 1),
            "again_after_ms": None if again is None else round((again - self.over) * 1e3, 1),
        }

    def span(self, answers: Answers) -> tuple[float, float]:
        """What is left out of the latencies: the fault, and a little after the loop ran again."""
        again = answers.again(self.over)
        return self.begin, float("inf") if again is None else again + 0.1


def running_at_the_end(answers: Answers) -> bool:
    """Whether something emitted in the last half second was answered."""
    return any(answers.sent[n] >= answers.sent[-1] - 0.5 for n in answers.numbers)
