"""Which cores are taken, which cells there are, and what is said of what there is not."""

import unittest
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from suite import cells, machine, systems
from suite.main import matching, parse
from suite.process import used_cores

NO_SIBLINGS: dict[int, frozenset[int]] = {}


class CoreChoice(unittest.TestCase):
    def test_four_cores(self) -> None:
        found = machine.choose_cores([0, 1, 2, 3], NO_SIBLINGS, None)
        self.assertEqual((found.pair, found.aux, found.orchestrator), ((2, 3), 1, (0,)))
        self.assertEqual(found.for_sinks(8, aux_taken=False), [3, 1, 0, 3, 1, 0, 3, 1])
        self.assertEqual(found.for_sinks(4, aux_taken=True), [3, 0, 3, 0])

    def test_two_cores_are_enough(self) -> None:
        found = machine.choose_cores([0, 1], NO_SIBLINGS, None)
        self.assertEqual((found.pair, found.aux), ((0, 1), None))
        self.assertEqual(found.for_sinks(8, aux_taken=False), [1] * 8)
        self.assertTrue(set(found.orchestrator) <= {0, 1})

    def test_one_core_is_not(self) -> None:
        with self.assertRaises(SystemExit):
            machine.choose_cores([5], NO_SIBLINGS, None)

    def test_hardware_threads_of_one_core_are_not_a_pair(self) -> None:
        siblings = {0: frozenset({0, 1}), 1: frozenset({0, 1}), 2: frozenset({2, 3}), 3: frozenset({2, 3})}
        self.assertEqual(machine.choose_cores([0, 1, 2, 3], siblings, None).pair, (0, 2))
        one = {0: frozenset({0, 1}), 1: frozenset({0, 1})}
        self.assertEqual(machine.choose_cores([0, 1], one, None).pair, (0, 1))

    def test_wishes_are_checked(self) -> None:
        self.assertEqual(machine.choose_cores([0, 1, 2, 3], NO_SIBLINGS, (0, 3)).pair, (0, 3))
        for wish in ((0, 9), (1, 1)):
            with self.assertRaises(SystemExit):
                machine.choose_cores([0, 1, 2, 3], NO_SIBLINGS, wish)

    def test_cpu_lists(self) -> None:
        self.assertEqual(machine.parse_cpu_list("0-2,5\n"), [0, 1, 2, 5])


def system(modes: list[dict[str, object]], key: str = "peer") -> systems.System:
    return systems.System(key, ["x"], {"system": key, "language": "rust"}, modes)


class CellChoice(unittest.TestCase):
    four = machine.choose_cores([0, 1, 2, 3], NO_SIBLINGS, None)
    two = machine.choose_cores([0, 1], NO_SIBLINGS, None)

    def test_the_knob_is_off_and_on(self) -> None:
        made, _ = cells.cells_of(system([{"experiment": "rtt", "waiting": "sleep"}]), cells.QUICK, None, self.four, True)
        self.assertEqual([c.knob for c in made], [False, True])
        made, _ = cells.cells_of(system([{"experiment": "rtt", "waiting": "sleep"}]), cells.QUICK, None, self.four, False)
        self.assertEqual([c.knob for c in made], [False])

    def test_a_full_run_has_every_payload_and_count(self) -> None:
        modes = [{"experiment": "rtt", "waiting": "spin"}, {"experiment": "fanout", "waiting": "spin"}]
        for key, counts in (("insane", [1, 2, 4, 6, 8]), ("peer", [1, 8])):
            made, _ = cells.cells_of(system(modes, key), cells.FULL, None, self.four, False)
            self.assertEqual([c.payload for c in made if c.experiment == "rtt"], [64, 1024, 8192])
            self.assertEqual([c.sinks for c in made if c.experiment == "fanout"], counts)

    def test_between_two_hosts(self) -> None:
        modes = [{"experiment": "rtt", "waiting": "sleep", "placement": "veth"},
                 {"experiment": "oneway", "waiting": "sleep", "placement": "veth", "most_bytes": 65_507},
                 {"experiment": "rtt", "waiting": "sleep"}]
        made, notes = cells.cells_of(system(modes), cells.FULL, None, self.four, True, ["veth"])
        self.assertEqual([(c.experiment, c.payload, c.placement, c.knob) for c in made],
                         [("rtt", 64, "veth", False)] + [("oneway", size, "veth", False) for size in (64, 1024, 8192)])
        self.assertEqual(notes, ["peer oneway veth 65536 B: it carries at most 65507 bytes"])
        made, _ = cells.cells_of(system(modes, "zeromq"), cells.QUICK, None, self.four, False)
        self.assertEqual([(c.experiment, c.payload, c.placement) for c in made],
                         [("rtt", 64, "veth"), ("oneway", 1024, "veth"), ("rtt", 64, "local")])
        self.assertIn("veth", made[0].label)

    def test_helpers_on_both_hosts_need_two_cores_more(self) -> None:
        modes = [{"experiment": "rtt", "waiting": "spin", "placement": "veth", "aux": True, "aux_core": True}]
        three = machine.choose_cores([0, 1, 2], NO_SIBLINGS, None)
        made, notes = cells.cells_of(system(modes), cells.FULL, None, three, False)
        self.assertEqual((made, len(notes)), ([], 1))
        made, notes = cells.cells_of(system(modes), cells.FULL, None, self.four, False)
        self.assertEqual((len(made), notes, used_cores(made[0], self.four)), (1, [], [2, 3, 1, 0]))

    def test_a_helper_that_needs_a_third_core_is_left_out_aloud(self) -> None:
        modes = [{"experiment": "rtt", "waiting": "spin", "variant": "driver-core", "aux": True, "aux_core": True}]
        made, notes = cells.cells_of(system(modes), cells.QUICK, None, self.two, False)
        self.assertEqual((made, len(notes)), ([], 1))
        made, notes = cells.cells_of(system(modes), cells.QUICK, None, self.four, False)
        self.assertEqual((len(made), notes), (1, []))
        self.assertEqual(used_cores(made[0], self.four), [2, 3, 1])

    def test_payloads_that_a_mode_names_are_the_only_ones(self) -> None:
        modes = [{"experiment": "rtt", "waiting": "sleep", "payloads": [64], "aux": True, "aux_host": 1}]
        made, notes = cells.cells_of(system(modes), cells.FULL, None, self.four, False)
        self.assertEqual(([(c.payload, c.aux_host) for c in made], notes), ([(64, 1)], []))

    def test_a_quick_run_leaves_pythons_peers_on_one_host_out(self) -> None:
        modes = [{"experiment": "rtt", "waiting": "sleep", "placement": place} for place in cells.PLACEMENTS]
        for extent, wanted in ((cells.QUICK, []), (cells.FULL, [("local", 64), ("veth", 64)])):
            made, _ = cells.cells_of(system(modes, "pynng"), extent, None, self.four, False)
            self.assertEqual(sorted((c.placement, c.payload) for c in made if c.payload == 64), wanted)

    def test_only(self) -> None:
        modes = [{"experiment": "rtt", "waiting": "spin"}, {"experiment": "oneway", "waiting": "spin"}]
        made, _ = cells.cells_of(system(modes), cells.QUICK, ["oneway"], self.four, False)
        self.assertEqual({c.experiment for c in made}, {"oneway"})

    def test_match(self) -> None:
        modes = [{"experiment": "rtt", "waiting": waiting} for waiting in ("spin", "sleep")]
        made, _ = cells.cells_of(system(modes), cells.QUICK, None, self.four, True)
        chosen = matching(made, "64 B, spin,!knob")
        self.assertEqual([(c.payload, c.waiting, c.knob) for c in chosen], [(64, "spin", False)])
        self.assertEqual((matching(made, None), matching(made, "dance")), (made, []))

    def test_an_unknown_mode_is_said(self) -> None:
        _, notes = cells.cells_of(system([{"experiment": "dance", "waiting": "spin"}]), cells.QUICK, None, self.four, False)
        self.assertEqual(len(notes), 1)

    def test_the_floor_brings_its_method(self) -> None:
        made, _ = cells.cells_of(system([], "floor"), cells.QUICK, None, self.four, False)
        self.assertTrue(made and all(c.is_method_floor for c in made))


class Absences(unittest.TestCase):
    def test_a_missing_crate_is_absent_with_the_reason(self) -> None:
        source = systems.Source("nobody", "bench-nobody", "bench-nobody")
        with TemporaryDirectory() as folder, self.assertRaisesRegex(systems.Absence, "bench/nobody does not exist"):
            systems.prepare(source, None, Path(folder))

    def test_a_crate_that_does_not_compile_is_absent_with_the_first_error(self) -> None:
        with TemporaryDirectory() as folder:
            broken = Path(folder)
            (broken / "wrong").mkdir()
            (broken / "wrong" / "Cargo.toml").write_text("[package]\nname = 5\n")
            source = systems.Source("wrong", "bench-wrong", "bench-wrong")
            places = mock.patch.multiple(systems, BENCH=broken, ROOT=broken)
            with places, self.assertRaisesRegex(systems.Absence, "not built: error"):
                systems.prepare(source, None, broken)

    def test_a_program_that_does_not_describe_itself_is_absent(self) -> None:
        with TemporaryDirectory() as folder:
            script = Path(folder) / "p.py"
            for text, reason in (("print('hello')", "not understood"), ("raise SystemExit('no licence')", "no licence")):
                script.write_text(text)
                with self.assertRaisesRegex(systems.Absence, reason):
                    systems.prepare(systems.Source("p", script=str(script)), None, Path(folder))


class CommandLine(unittest.TestCase):
    def test_bad_options_are_refused(self) -> None:
        for bad in (["--only", "dance"], ["--systems", "nobody"], ["--cores", "2"], ["--cores", "a,b"], ["--rounds", "0"],
                    ["--placement", "moon"], ["--nice", "-30"], ["--jobs", "0"], ["--only", ","], ["--what"]):
            with self.assertRaises(SystemExit), mock.patch("sys.stderr"):
                parse(bad)

    def test_good_ones_are_taken(self) -> None:
        found = parse(["--quick", "--only", "rtt,oneway", "--systems", "floor,udp", "--cores", "0,1", "--seed", "5"])
        self.assertEqual((found.only, found.systems, found.cores), (["rtt", "oneway"], ["floor", "udp"], (0, 1)))


if __name__ == "__main__":
    unittest.main()
