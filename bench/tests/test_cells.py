"""Which cells there are past the kernel's network stack, and how often they are measured."""

import unittest
from unittest import mock

from suite import cells, measure, process
from suite.cells import Cell
from suite.machine import choose_cores
from suite.systems import System

from tests.test_measure import EXTENT, bench

TWO, FOUR = choose_cores([0, 1], {}, None), choose_cores([0, 1, 2, 3], {}, None)


def mode(experiment: str, waiting: str = "adaptive", **more: object) -> dict[str, object]:
    return {"experiment": experiment, "waiting": waiting, "transport": "datagram", "placement": "veth"} | more


def found(modes: list[dict[str, object]], extent: cells.Extent = cells.FULL, cores: object = FOUR,
          key: str = "insane") -> tuple[list[Cell], list[str]]:
    system = System(key, ["true"], {"system": key, "language": "rust"}, modes)
    return cells.cells_of(system, extent, None, cores, False)


class Chosen(unittest.TestCase):
    def test_payloads_alone_and_besides(self) -> None:
        some, _ = found([mode("oneway", variant="xdp", payloads=[64, 1024])])
        self.assertEqual([cell.payload for cell in some], [64, 1024])
        link = [mode("oneway", "spin", placement="local", also=[8192])]
        self.assertEqual([cell.payload for cell in found(link)[0]], [64, 1024, 8192])
        self.assertEqual([cell.payload for cell in found(link, cells.QUICK)[0]], [64, 1024])

    def test_what_needs_four_cores_says_so_on_fewer(self) -> None:
        spinning = [mode("rtt", "spin", variant="xdp", four_cores=True)]
        self.assertEqual(len(found(spinning)[0]), 1)
        none, notes = found(spinning, cores=TWO)
        self.assertEqual(none, [])
        self.assertEqual(len(notes), 1)
        self.assertIn("insane rtt xdp spin: it needs four cores", notes[0])

    def test_a_fan_out_from_the_network_has_every_count_for_everybody(self) -> None:
        for key in ("insane", "floor"):
            fanned = [cell.sinks for cell in found([mode("fanout", "sleep")], key=key)[0] if cell.placement == "veth"]
            self.assertEqual(fanned, [1, 2, 4, 6, 8])
        self.assertEqual(found([mode("fanout", "sleep")], cells.QUICK)[0], [])

    def test_moves_are_of_one_kilobyte_and_in_a_quick_run_too(self) -> None:
        for extent in (cells.FULL, cells.QUICK):
            (cell,), _ = found([mode("rebind")], extent)
            self.assertEqual((cell.payload, cell.sinks, cell.seldom), (1024, 1, True))


class Placed(unittest.TestCase):
    def test_sinks_of_another_host_have_no_core_of_a_helper_where_there_are_enough(self) -> None:
        self.assertEqual(TWO.for_far_sinks(3), [1, 1, 1])
        self.assertEqual(FOUR.for_far_sinks(3), [FOUR.pair[1]] * 3)
        six = choose_cores(list(range(6)), {}, None)
        self.assertEqual(set(six.for_far_sinks(8)) & {*six.helpers, six.pair[0]}, set())
        self.assertGreater(len(set(six.for_far_sinks(8))), 1)

    def test_all_cores_of_moves_are_watched(self) -> None:
        (cell,), _ = found([mode("rebind", aux=True)])
        for cores, watched in ((TWO, "0,1"), (FOUR, "2,3,1,0")):
            roles = process._roles(cell, cores)
            self.assertEqual([role for role, _, _ in roles], ["rebind-sink", "rebind-source"])
            self.assertEqual(roles[0][2], ["--watch", watched])


class Seldom(unittest.TestCase):
    def test_what_takes_long_to_open_is_measured_in_some_rounds(self) -> None:
        slow, _ = found([mode("rtt", variant="xdp")])
        fast, _ = found([mode("rtt")])
        self.assertEqual([cell.seldom for cell in slow + fast], [True, False])
        made = bench(slow + fast, [])
        done: list[tuple[int, str]] = []
        with mock.patch.object(made, "repeat", side_effect=lambda cell, number: done.append((number, cell.variant))), \
                mock.patch.object(made, "extent", cells.FULL):
            for number in (1, 2, 3):
                made.round(number, 0)
        self.assertEqual(sorted(done), [(1, ""), (1, "xdp"), (2, ""), (3, ""), (3, "xdp")])
        self.assertEqual(EXTENT.seldom_every, 1)

    def test_moves_take_six_windows(self) -> None:
        (cell,), _ = found([mode("rebind")])
        self.assertAlmostEqual(measure.amounts(cell, cells.FULL)["seconds"], 1.8)


if __name__ == "__main__":
    unittest.main()
