"""What INSANE adds to a packet, and of what that is made, on made-up repetitions."""

import unittest
from pathlib import Path
from tempfile import TemporaryDirectory

from suite import added, bars, bars_hosts, cells, main, measure, report, rows, systems
from suite.cells import Cell
from suite.measure import Outcome, Repetition
from suite.process import Void

from tests.made_up import MACHINE
from tests.test_bars_bypass import ROUNDS, cell, reps
from tests.test_cells import FOUR, TWO, found, mode

MEMIF = "added per packet and direction over DPDK over memif, spin, two hosts"
BAR = "≤ 2 link hops + 250 ns"


def calls(waiting: str, send_ns: float = 30.0, consume_ns: float = 20.0) -> list[Repetition]:
    what = cell("insane", "calls", waiting, placement="local")
    result = {"samples": 64, "cpu_ns": 6400, "send_ns": send_ns, "consume_ns": consume_ns}
    values, samples, cpu, lost, extra = measure.digest(what, {"calls": [result]})
    return [Repetition(what, n, values, samples, 0.2, 0.2, cpu, lost, [0], None, extra) for n in range(ROUNDS)]


def kept(variant: str, waiting: str, ours_us: float, bare_us: float, cores: int = 4) -> list[Repetition]:
    """A local hop is 200 ns; a message's calls take 50 ns if ends spin and 70 ns otherwise."""
    key, bare_variant, _ = added.PAIRS[variant]
    made = reps(cell("insane", "rtt", waiting, variant), ours_us) + reps(cell(key, "rtt", waiting, bare_variant), bare_us)
    for repetition in made:
        repetition.cores = list(range(cores))
    return made + reps(cell("insane", "rtt", "spin", placement="local"), 0.4) + calls("spin") + calls("adaptive", 45, 25)


def judged(made: list[Repetition], four_cores: bool = True, absent: dict[str, str] | None = None,
           failed: dict[Cell, str] | None = None) -> dict[str, tuple[str, str, str]]:
    said = bars.Judge(made, absent or {}, 1, four_cores, failed).all()
    mine = [v for v in said if v.what.startswith("added per packet")]
    assert len({v.what for v in mine}) == len(mine), "said twice"
    return {v.what: (v.bar, v.verdict, v.measured) for v in mine}


class Made(unittest.TestCase):
    def test_the_parts_are_together_what_is_added(self) -> None:
        one = added.parts(10.0, 4.0, 200.0, 70.0, 50.0)
        self.assertAlmostEqual(one.added, 3.0)
        self.assertAlmostEqual(one.datapath, 2.0)
        self.assertAlmostEqual(one.client, 0.07)
        # Two hops of 200 ns, without what spinning ends' calls take of them.
        self.assertAlmostEqual(one.link, 0.35)
        self.assertAlmostEqual(one.client + one.link + one.runtime, one.added)

    def test_a_round_that_lacks_something_has_none(self) -> None:
        table = rows.by_cell(kept("xdp", "adaptive", 10.0, 4.0))
        hop = rows.hops(table)
        self.assertEqual(list(added.by_round(table, hop, "xdp", "adaptive")), list(range(ROUNDS)))
        for what in table:
            fewer = {c: [r for r in of if c != what or r.round] for c, of in table.items()}
            self.assertNotIn(0, added.by_round(fewer, rows.hops(fewer), "xdp", "adaptive"), what.label)
            without = {c: of for c, of in table.items() if c != what}
            self.assertEqual(added.by_round(without, rows.hops(without), "xdp", "adaptive"), {}, what.label)

    def test_the_rows_have_all_fields_and_the_report_a_line(self) -> None:
        made = rows.make_rows(Outcome(kept=kept("xdp", "adaptive", 10.0, 4.0)), 1)
        mine = [row for row in made if row["experiment"] == "added"]
        self.assertEqual([row["metric"] for row in mine], [f"{name}_us" for name in added.NAMES])
        for row in mine:
            self.assertEqual(tuple(row), rows.FIELDS)
            self.assertEqual((row["unit"], row["reference"], row["runs"], row["variant"]), ("us", "af-xdp", ROUNDS, "xdp"))
        text = report.make_report(MACHINE, made, [], [])
        self.assertIn("| insane xdp (rust) | af-xdp | 3 [3–3] | 0.07 | 0.35 | 2.58 | 2 | 5 |", text)
        self.assertIn("| insane (rust) | 45 [45–45] | 25 [25–25] | 5 (0) |", text)

    def test_spinning_ends_that_share_cores_have_no_row(self) -> None:
        for cores, count in ((4, len(added.NAMES)), (2, 0)):
            made = rows.make_rows(Outcome(kept=kept("", "spin", 10.0, 4.0, cores)), 1)
            self.assertEqual(len([row for row in made if row["experiment"] == "added"]), count)


class Judged(unittest.TestCase):
    def test_over_memif_two_hops_and_a_quarter_of_a_microsecond(self) -> None:
        # Two hops are 0.4 µs, so 0.65 µs may be added a direction, 1.3 µs a round trip.
        for ours, verdict in ((5.29, "pass"), (5.31, "fail")):
            bar, said, words = judged(kept("dpdk-memif", "spin", ours, 4.0))[MEMIF]
            self.assertEqual((bar, said), (BAR, verdict), words)

    def test_elsewhere_it_is_reported(self) -> None:
        for variant, waiting in (("", "spin"), ("xdp", "spin"), ("dpdk-memif", "adaptive"), ("dpdk-af-xdp", "adaptive")):
            what = f"added per packet and direction over {added.PAIRS[variant][2]}, {waiting}, two hosts"
            bar, verdict, words = judged(kept(variant, waiting, 10.0, 4.0))[what]
            self.assertEqual((bar, verdict), ("reported", "reported"))
            client = "0.05" if waiting == "spin" else "0.07"
            runtime = "2.6" if waiting == "spin" else "2.58"
            self.assertEqual(words, f"3 µs [3–3]: client {client}, link 0.35, runtime {runtime}; the bare one takes 2 µs")

    def test_with_fewer_than_four_cores_spinning_ends_are_not_judged(self) -> None:
        bar, verdict, words = judged(kept("dpdk-memif", "spin", 4.1, 4.0, 2), four_cores=False)[MEMIF]
        self.assertEqual((bar, verdict), (BAR, "not measured"))
        self.assertIn("needs four cores", words)

    def test_of_ends_that_poll_for_their_runtimes_it_is_judged_with_two_cores_too(self) -> None:
        what = f"added per packet and direction over DPDK over memif, {bars_hosts.POLLED}, two hosts"
        for ours, verdict in ((5.29, "pass"), (5.31, "fail")):
            made = [r for r in kept("dpdk-memif", "spin", 4.1, 4.0, 2) if r.cell.variant != "dpdk-memif"]
            made += reps(cell("insane", "rtt", "spin", "dpdk-memif-polled"), ours)
            bar, said, words = judged(made, four_cores=False)[what]
            self.assertEqual((bar, said), (BAR, verdict), words)
        self.assertEqual(judged(kept("xdp", "adaptive", 10.0, 4.0))[what][1], "not measured")

    def test_what_could_not_be_made_says_why(self) -> None:
        other = kept("xdp", "adaptive", 10.0, 4.0)
        failed = cell("insane", "rtt", "spin", "dpdk-memif")
        for more, word in (({"absent": {"dpdk": "there is no DPDK"}}, "there is no DPDK"),
                           ({"failed": {failed: "it went over udp"}}, "it went over udp")):
            _, verdict, words = judged(other, **more)[MEMIF]
            self.assertEqual(verdict, "not measured")
            self.assertIn(word, words)
        lacking = [r for r in kept("dpdk-memif", "spin", 5.0, 4.0) if r.cell.experiment != "calls"]
        self.assertIn("no round has", judged(lacking)[MEMIF][2])
        self.assertEqual(judged(calls("spin")), {}, "no round trip between two hosts was part of the run")

    def test_a_result_that_lacks_something_is_void(self) -> None:
        with self.assertRaises(Void):
            measure.digest(cell("insane", "calls", "spin", placement="local"), {"calls": [{"samples": 64, "cpu_ns": 1}]})


class Chosen(unittest.TestCase):
    modes = (
        mode("calls", "spin", placement="local"), mode("calls", placement="local"), mode("rtt", "spin", placement="local"),
        mode("rtt"), mode("rtt", "spin"), mode("rtt", variant="xdp"),
        mode("rtt", "spin", placement="local", variant="reliable"),
    )

    def test_what_is_added_is_made_of_these_cells_and_listed(self) -> None:
        ours, _ = found(list(self.modes))
        bare = found([mode("rtt")], key="af-xdp")[0] + found([mode("rtt"), mode("rtt", "spin")], key="udp")[0]
        parts = [c for c in ours + bare if added.is_part(c)]
        self.assertEqual({c.payload for c in parts}, {64})
        self.assertFalse([c for c in parts if c.variant == "reliable"])
        lines = added.listed(ours + bare, True)
        self.assertEqual(len(lines), 3)
        self.assertTrue(all(line.startswith("added veth 64 B insane") for line in lines), lines)
        self.assertEqual(len(added.listed(ours + bare, False)), 2)
        self.assertEqual(added.listed(ours, True), [])

    def test_a_run_of_round_trips_between_hosts_measures_the_calls_too(self) -> None:
        from suite.systems import System

        system = System("insane", ["true"], {"system": "insane", "language": "rust"}, list(self.modes))
        veth = [c for c in found(list(self.modes))[0] if c.placement == "veth"]
        more = main._own_cells(system, cells.FULL, TWO, veth, True)
        wanted = [("calls", "spin"), ("calls", "adaptive"), ("rtt", "spin")]
        self.assertEqual([(c.experiment, c.waiting) for c in more], wanted)
        self.assertEqual(main._own_cells(system, cells.FULL, TWO, veth + more, True), [])
        self.assertEqual([c.experiment for c in main._own_cells(system, cells.FULL, FOUR, [], True)], ["rtt"])
        self.assertEqual(main._own_cells(system, cells.FULL, FOUR, [], False), [])


class Programs(unittest.TestCase):
    def test_every_kind_is_among_the_modes_that_the_program_has(self) -> None:
        source = next(s for s in systems.SOURCES if s.key == "insane")
        with TemporaryDirectory() as logs:
            modes = systems.prepare(source, None, Path(logs)).modes
        has = {(m["experiment"], m["variant"], m["waiting"], m["placement"]) for m in modes}
        wanted = {("rtt", variant, "adaptive", "veth") for variant in ("", "xdp")} | {
            ("calls", "", waiting, "local") for waiting in cells.WAITING_CLASSES}
        self.assertEqual(wanted - has, set())


if __name__ == "__main__":
    unittest.main()
