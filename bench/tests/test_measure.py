"""Rounds: discards, retries, shared floors, failures; and what becomes of repetitions in rows and verdicts."""

import random
import unittest
from pathlib import Path
from unittest import mock

from suite import bars, cells, measure, rows
from suite.cells import Cell
from suite.machine import Cores
from suite.measure import Bench, Outcome, Repetition
from suite.process import Void
from suite.systems import System

CORES = Cores((2, 3), 1, (3, 1, 0), (0,))
EXTENT = cells.Extent("test", (64,), (64,), (1,), False, 2, 2, 2, 60.0, 0.1, 1)


def cell(system: str = "udp", experiment: str = "rtt", waiting: str = "spin", **more: object) -> Cell:
    fields = {"key": system, "language": "rust", "transport": "shm", "variant": "", "payload": 64, "sinks": 1,
              "knob": False} | more
    return Cell(experiment=experiment, system=system, waiting=waiting, **fields)


def latency(median_us: float) -> dict[str, object]:
    ns = int(median_us * 1000)
    return {"rtt-client": [{"samples": 1000, "elapsed_ns": 10**6, "cpu_ns": 2 * 10**6, "median_ns": ns,
                            "p99_ns": 2 * ns, "p999_ns": 3 * ns}]}


def bench(wanted: list[Cell], floors: list[float]) -> Bench:
    """A bench whose floors come from a list, each measured afresh."""
    systems = {c.key: System(c.key, ["true"], {}) for c in wanted}
    made = Bench(systems, wanted, EXTENT, CORES, Path("none"), 1, 0, lambda _: None)
    left = iter(floors)

    def floor(key: tuple[str, int], fresh: bool) -> float:
        return next(left)

    made._floor = floor  # type: ignore[method-assign]
    return made


class Repeating(unittest.TestCase):
    def test_a_steady_repetition_is_kept(self) -> None:
        made = bench([cell()], [0.2, 0.22])
        with mock.patch.object(measure, "run_cell", return_value=latency(6)):
            self.assertTrue(made.repeat(cell(), 1))
        (kept,) = made.outcome.kept
        self.assertEqual((kept.floor_before, kept.floor_after, kept.main), (0.2, 0.22, 6.0))
        self.assertEqual(kept.cpu_ns_per_msg, 2000)
        self.assertEqual(made.outcome.discarded[cell()], 0)

    def test_an_unsteady_one_is_discarded_counted_and_retried(self) -> None:
        made = bench([cell()], [0.2, 0.7, 0.7, 0.7])
        with mock.patch.object(measure, "run_cell", return_value=latency(6)) as ran:
            self.assertTrue(made.repeat(cell(), 1))
        self.assertEqual(ran.call_count, 2)
        self.assertEqual(made.outcome.discarded[cell()], 1)
        self.assertEqual(len(made.outcome.kept), 1)

    def test_a_run_says_how_much_the_machine_may_move(self) -> None:
        for drift, kept in ((0.2, 0), (2.4, 0), (2.6, 1)):
            made = bench([cell()], [0.2, 0.7] * 3)
            made.drift = drift
            with mock.patch.object(measure, "run_cell", return_value=latency(6)):
                self.assertEqual(made.repeat(cell(), 1), bool(kept))
            self.assertEqual(len(made.outcome.kept), kept)

    def test_retries_are_bounded(self) -> None:
        made = bench([cell()], [0.2, 0.7] * 10)
        with mock.patch.object(measure, "run_cell", return_value=latency(6)) as ran:
            self.assertFalse(made.repeat(cell(), 1))
        self.assertEqual(ran.call_count, 1 + EXTENT.retries)
        self.assertEqual(made.outcome.discarded[cell()], 1 + EXTENT.retries)
        self.assertEqual(made.outcome.kept, [])

    def test_a_failure_is_counted_with_its_reason_and_given_up_after_a_while(self) -> None:
        made = bench([cell()], [0.2] * 100)
        with mock.patch.object(measure, "run_cell", side_effect=Void("it broke")) as ran:
            for number in range(10):
                made.round(number, 0.0)
        self.assertEqual(ran.call_count, measure.GIVE_UP_AFTER)
        self.assertEqual(made.outcome.failed[cell()], measure.GIVE_UP_AFTER)
        self.assertEqual(made.outcome.reasons[cell()], "it broke")

    def test_a_result_line_that_lacks_something_is_a_failure(self) -> None:
        made = bench([cell()], [0.2, 0.2])
        with mock.patch.object(measure, "run_cell", return_value={"rtt-client": [{"samples": 5}]}):
            self.assertFalse(made.repeat(cell(), 1))
        self.assertEqual(made.outcome.failed[cell()], 1)

    def test_every_round_has_every_cell_and_the_seed_decides_the_order(self) -> None:
        wanted = [cell(name) for name in "abcdefgh"]

        def order(seed: int) -> list[str]:
            made = bench(list(wanted), [0.2] * 1000)
            made.rng = random.Random(seed)
            with mock.patch.object(measure, "run_cell", return_value=latency(6)):
                made.run()
            return [r.cell.system for r in made.outcome.kept]

        first = order(1)
        self.assertEqual(first, order(1))
        self.assertNotEqual(first, order(2))
        self.assertEqual(sorted(first[:8]), list("abcdefgh"))
        self.assertEqual(sorted(first[8:]), list("abcdefgh"))

    def test_a_fresh_floor_serves_the_next_repetition_but_not_another_kind(self) -> None:
        made = Bench({}, [], EXTENT, CORES, Path("none"), 1, 0, lambda _: None)
        with mock.patch.object(measure, "run_method", return_value={"median_ns": 200, "msgs_per_s": 5}) as ran:
            self.assertEqual(made._floor(("rtt", 64), fresh=True), 0.2)
            self.assertEqual(made._floor(("rtt", 64), fresh=False), 0.2)
            self.assertEqual(ran.call_count, 1)
            self.assertEqual(made._floor(("oneway", 64), fresh=False), 5)
            made._floor(("rtt", 64), fresh=False)
            self.assertEqual(ran.call_count, 3)

    def test_rounds_stop_when_the_budget_has_no_room_for_another(self) -> None:
        import dataclasses

        made = bench([cell()], [0.2] * 1000)
        made.extent = dataclasses.replace(EXTENT, min_rounds=3, max_rounds=100, budget_s=0.0)
        with mock.patch.object(measure, "run_cell", return_value=latency(6)):
            self.assertEqual(made.run().rounds, 3)


def repetition(what: Cell, number: int, main: float, floor: float = 0.2, **extra: object) -> Repetition:
    rate = what.experiment in ("oneway", "fanout")
    values = {"msgs_per_s": main, "gbit_per_s": main} if rate else {"median_us": main, "p99_us": main, "p999_us": main}
    return Repetition(what, number, values, 100, floor, floor, 50.0, 0, [2, 3], None, dict(extra))


class Rows(unittest.TestCase):
    def test_a_row_has_the_fields_in_their_order(self) -> None:
        outcome = Outcome(kept=[repetition(cell(), n, 0.5 + n / 100) for n in range(5)])
        outcome.discarded[cell()] = 2
        made = rows.make_rows(outcome, 1)
        self.assertEqual([r["metric"] for r in made], ["median_us", "p99_us", "p999_us", "ratio_to_floor"])
        for row in made:
            self.assertEqual(tuple(row), rows.FIELDS)
            self.assertEqual((row["runs"], row["discarded"], row["samples"]), (5, 2, 500))
        self.assertAlmostEqual(made[-1]["median"], 0.52 / 0.2)
        self.assertAlmostEqual(made[-1]["reference_median"], 0.2)
        self.assertIsNone(made[0]["hop_ns"])

    def test_a_ratio_is_of_its_own_repetition_not_of_medians(self) -> None:
        # The machine was near in one round and far in the others; the system is at twice the floor throughout.
        kept = [repetition(cell(), n, 2 * floor, floor) for n, floor in enumerate([0.17, 0.7, 0.69])]
        (row,) = [r for r in rows.make_rows(Outcome(kept=kept), 1) if r["metric"] == "ratio_to_floor"]
        self.assertEqual((row["median"], row["low"], row["high"]), (2.0, 2.0, 2.0))

    def test_sleeping_round_trips_are_compared_with_the_futex_of_the_same_round(self) -> None:
        futex, udp = cell("floor", waiting="sleep"), cell("udp", waiting="sleep")
        kept = [repetition(futex, n, 60.0 + n) for n in range(3)] + [repetition(udp, n, 2 * (60.0 + n)) for n in range(3)]
        kept.append(repetition(udp, 9, 1000.0))  # A round whose futex was discarded.
        table = rows.by_cell(kept)
        self.assertEqual(rows.ratios(udp, table), [2.0, 2.0, 2.0])
        self.assertEqual(rows.references(udp, table)[0], "floor sleep")

    def test_the_hop_is_half_of_our_round_trip_in_that_round(self) -> None:
        ours = cell("insane")
        kept = [repetition(ours, n, 0.2 + n / 10) for n in range(3)] + [repetition(cell("udp"), 1, 6.0)]
        made = [r for r in rows.make_rows(Outcome(kept=kept), 1) if r["system"] == "udp"]
        self.assertAlmostEqual(made[0]["hop_ns"], 150.0)

    def test_loss_is_a_part_of_what_was_sent(self) -> None:
        what = cell("udp", "oneway")
        kept = [repetition(what, 1, 1e6)]
        kept[0].lost = 300
        self.assertEqual(rows.make_rows(Outcome(kept=kept), 1)[0]["loss"], 0.75)


class Bars(unittest.TestCase):
    def verdicts(self, kept: list[Repetition]) -> dict[tuple[str, str], str]:
        return {(v.what, v.bar): v.verdict for v in bars.Judge(kept, {"insane": "not built"}, 1).all()}

    def test_without_our_system_nothing_is_judged(self) -> None:
        self.assertEqual(set(self.verdicts([repetition(cell("udp"), 1, 6.0)]).values()), {"not measured"})

    def test_the_spinning_bars(self) -> None:
        kept = []
        for number, floor in enumerate([0.17, 0.2, 0.7, 0.69, 0.18]):
            kept.append(repetition(cell("insane"), number, 1.1 * floor, floor))
            kept.append(repetition(cell("aeron", variant="invoker"), number, 1.1 * floor, floor))
            kept.append(repetition(cell("iceoryx2"), number, 4 * floor, floor))
        found = self.verdicts(kept)
        what = "RTT 64 B, spinning"
        self.assertEqual(found[what, "≤ 1.3 × floor"], "pass")
        self.assertEqual(found[what, "no worse than a tie with Aeron IPC"], "pass")
        self.assertEqual(found[what, "lower than iceoryx2"], "pass")

    def test_a_worse_figure_fails(self) -> None:
        kept = []
        for number in range(5):
            kept.append(repetition(cell("insane"), number, 0.4 + number / 1000, 0.2))
            kept.append(repetition(cell("aeron", variant="invoker"), number, 0.2, 0.2))
        found = self.verdicts(kept)
        what = "RTT 64 B, spinning"
        self.assertEqual(found[what, "≤ 1.3 × floor"], "fail")
        self.assertEqual(found[what, "no worse than a tie with Aeron IPC"], "fail")

    def test_a_copied_large_message_fails_whatever_its_speed(self) -> None:
        what = cell("insane", "large", "sleep", payload=cells.LARGE_BYTES)
        for place, verdict in ((True, "pass"), (False, "fail"), (None, "fail")):
            kept = [repetition(what, 1, 1.0, in_place=place)]
            kept[0].values["gbit_per_s"] = 400.0
            self.assertEqual(self.verdicts(kept)["128 MiB message, one-way, sleep", "no copy"], verdict)


if __name__ == "__main__":
    unittest.main()
