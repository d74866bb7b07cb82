"""Pauses of moves, from made-up notes of both ends."""

import unittest

from suite import measure, pauses
from suite.cells import Cell
from suite.process import Void

MS = 1_000_000
CELL = Cell("rebind", "insane", "insane", "rust", "datagram", "adaptive", "", 1024, 1, False, placement="veth")


def source(**more: object) -> dict[str, object]:
    """Two spans without a move and three with one, of 40 ms each from 100 ms on; the last request moved nothing."""
    return {"still": [100 * MS, 140 * MS], "moves": [[180 * MS, 1], [220 * MS, 1], [260 * MS, 0]], "end": 300 * MS,
            "sent": 4000, "cpu_ns": 8_000_000} | more


def sink(gaps: list[tuple[float, float]], stalls: list[tuple[float, float]] | None = None) -> dict[str, object]:
    """Gaps and stalls in ms."""
    def ns(all_of_them: list[tuple[float, float]]) -> list[list[int]]:
        return [[int(a * MS), int(b * MS)] for a, b in all_of_them]

    return {"gaps": ns(gaps), "stalls": None if stalls is None else ns(stalls), "received": 4000, "lost": 0}


class Spans(unittest.TestCase):
    def test_the_longest_gap_of_each_span_counts(self) -> None:
        found = pauses.pauses(source(), sink([(110, 110.2), (120, 120.1), (150, 150.3), (180.1, 181), (190, 190.5),
                                              (219.9, 223), (270, 290)], []))
        self.assertEqual(found.still, [0.2 * MS, 0.3 * MS])
        self.assertEqual(found.moves, [0.9 * MS, 3.1 * MS])
        self.assertEqual((found.stalled, found.stalled_ns, found.watched), (0, 0, True))

    def test_before_and_after_nothing_counts(self) -> None:
        found = pauses.pauses(source(), sink([(10, 60), (299, 350)]))
        self.assertEqual((found.still, found.moves), ([0, 0], [0, 0]))
        self.assertFalse(found.watched)

    def test_a_gap_that_lasts_into_the_next_span_counts_once(self) -> None:
        found = pauses.pauses(source(), sink([(181, 229)], []))
        self.assertEqual(found.moves, [48 * MS, 0])

    def test_a_stall_of_the_machine_is_left_out_and_told(self) -> None:
        # Two cores that stall at the same time are one stall.
        found = pauses.pauses(source(), sink([(181, 191), (221, 222)], [(182, 188), (185, 190), (230, 240)]))
        self.assertEqual(found.moves, [2 * MS, 1 * MS])
        self.assertEqual((found.stalled, found.stalled_ns), (1, 8 * MS))

    def test_a_stall_hides_no_other_pause_of_its_span(self) -> None:
        found = pauses.pauses(source(), sink([(181, 191), (200, 203)], [(181, 191)]))
        self.assertEqual(found.moves[0], 3 * MS)

    def test_parts_of_a_list(self) -> None:
        values = list(range(1, 101))
        self.assertEqual([pauses.at_part(values, part) for part in (0, 0.5, 0.99, 1)], [1, 51, 100, 100])
        self.assertEqual(pauses.at_part([7], 0.99), 7)


class Digested(unittest.TestCase):
    def test_a_repetition(self) -> None:
        results = {"rebind-source": [source()], "rebind-sink": [sink([(180, 181), (220, 222)], [])]}
        values, samples, cpu, lost, extra = measure.digest(CELL, results)
        self.assertEqual(values, {"median_us": 2000, "p99_us": 2000})
        self.assertEqual((samples, cpu, lost), (2, 2000, 0))
        self.assertEqual((extra["moves_us"], extra["still_us"], extra["watched"]), ([1000, 2000], [0, 0], True))

    def test_requests_that_move_nothing_are_no_repetition(self) -> None:
        nothing = source(moves=[[180 * MS, 0]])
        with self.assertRaisesRegex(Void, "none of 1 requests"):
            measure.digest(CELL, {"rebind-source": [nothing], "rebind-sink": [sink([], [])]})


if __name__ == "__main__":
    unittest.main()
