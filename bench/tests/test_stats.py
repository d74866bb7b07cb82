"""Medians, intervals, discards and verdicts."""

import random
import unittest

from suite import stats
from suite.stats import Interval


class Bootstrap(unittest.TestCase):
    def test_the_interval_holds_the_median(self) -> None:
        rng = random.Random(1)
        for size in (2, 3, 5, 9, 30):
            values = [rng.lognormvariate(0, 1) for _ in range(size)]
            found = stats.median_interval(values, rng)
            self.assertLessEqual(found.low, found.median)
            self.assertLessEqual(found.median, found.high)
            self.assertGreaterEqual(found.low, min(values))
            self.assertLessEqual(found.high, max(values))

    def test_one_value_has_no_width_and_none_is_an_error(self) -> None:
        self.assertEqual(stats.median_interval([3.0], random.Random(1)), Interval(3.0, 3.0, 3.0))
        with self.assertRaises(ValueError):
            stats.median_interval([], random.Random(1))

    def test_the_same_seed_gives_the_same_interval(self) -> None:
        values = [1.0, 2.0, 4.0, 8.0, 16.0]
        self.assertEqual(stats.median_interval(values, random.Random(7)), stats.median_interval(values, random.Random(7)))

    def test_the_interval_covers_the_true_median_about_as_often_as_it_says(self) -> None:
        rng = random.Random(42)
        covered = 0
        for _ in range(200):
            sample = [rng.gauss(10, 2) for _ in range(15)]
            found = stats.median_interval(sample, rng, resamples=300)
            covered += found.low <= 10 <= found.high
        self.assertGreater(covered, 200 * 0.88)

    def test_more_samples_narrow_it(self) -> None:
        rng = random.Random(3)
        few = stats.median_interval([rng.gauss(0, 1) for _ in range(8)], rng)
        many = stats.median_interval([rng.gauss(0, 1) for _ in range(400)], rng)
        self.assertLess(many.high - many.low, few.high - few.low)


class Floors(unittest.TestCase):
    def test_up_to_a_fifth_apart_is_kept(self) -> None:
        self.assertTrue(stats.floors_agree(100, 100))
        self.assertTrue(stats.floors_agree(100, 120))
        self.assertTrue(stats.floors_agree(120, 100))

    def test_more_than_a_fifth_apart_is_not(self) -> None:
        self.assertFalse(stats.floors_agree(100, 120.1))
        self.assertFalse(stats.floors_agree(120.1, 100))
        self.assertFalse(stats.floors_agree(0.17, 0.70))

    def test_a_floor_of_nothing_is_none(self) -> None:
        self.assertFalse(stats.floors_agree(0, 0))
        self.assertFalse(stats.floors_agree(-1, -1))

    def test_a_repetition_is_compared_with_the_mean(self) -> None:
        self.assertEqual(stats.floor_between(1.0, 1.1), 1.05)


class Verdicts(unittest.TestCase):
    def test_a_difference_inside_the_interval_is_a_tie(self) -> None:
        self.assertEqual(stats.relation(Interval(0.97, 0.9, 1.02), lower_is_better=True), "tie")
        self.assertEqual(stats.relation(Interval(1.0, 1.0, 1.0), lower_is_better=True), "tie")

    def test_outside_it_the_sense_decides(self) -> None:
        below, above = Interval(0.8, 0.7, 0.9), Interval(1.3, 1.2, 1.4)
        self.assertEqual(stats.relation(below, lower_is_better=True), "better")
        self.assertEqual(stats.relation(below, lower_is_better=False), "worse")
        self.assertEqual(stats.relation(above, lower_is_better=True), "worse")
        self.assertEqual(stats.relation(above, lower_is_better=False), "better")

    def test_limits(self) -> None:
        self.assertEqual(stats.against_limit(Interval(1.1, 1.0, 1.2), 1.3, at_most=True), "pass")
        self.assertEqual(stats.against_limit(Interval(1.4, 1.35, 1.5), 1.3, at_most=True), "fail")
        self.assertEqual(stats.against_limit(Interval(1.25, 1.1, 1.4), 1.3, at_most=True), "tie")
        self.assertEqual(stats.against_limit(Interval(0.5, 0.45, 0.6), 0.4, at_most=False), "pass")
        self.assertEqual(stats.against_limit(Interval(0.3, 0.2, 0.35), 0.4, at_most=False), "fail")
        self.assertEqual(stats.against_limit(Interval(1.3, 1.3, 1.3), 1.3, at_most=True), "pass")


if __name__ == "__main__":
    unittest.main()
