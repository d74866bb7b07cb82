"""Several applications on each of two hosts, and several threads that poll for them: cells, processes, figures, words."""

import sys
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory

from suite import bars, cells, hosts, measure, process, report, rows
from suite.cells import Cell
from suite.machine import choose_cores
from suite.measure import Outcome, Repetition
from suite.process import Void

from tests.made_up import MACHINE
from tests.test_cells import FOUR, TWO, found, mode

SIX = choose_cores(list(range(6)), {}, None)
MODES = [mode("apps", aux=True), mode("apps", variant="xdp-paced", aux=True), mode("threads", aux=True)]
AMOUNTS = {"count": 1, "warmup": 1, "seconds": 0.1}
#: Each leaves its line in the repetition's folder; the sinks tell of them all once everybody has gone off.
TOLD = """
import json, pathlib, sys
role, index = sys.argv[1], sys.argv[sys.argv.index("--index") + 1]
folder = pathlib.Path(sys.argv[sys.argv.index("--dir") + 1])
(folder / f"line-{role}-{index}").write_text(" ".join(sys.argv[1:]))
print("ready", flush=True)
pids = sys.stdin.readline().split()[1:]
if role == "app-sink":
    lines = {file.name[5:]: file.read_text() for file in folder.glob("line-*")}
    print(json.dumps({"lines": lines, "pids": len(pids)}), flush=True)
sys.stdin.read()
"""


def crowd(experiment: str, count: int, variant: str = "") -> Cell:
    return Cell(experiment, "insane", "insane", "rust", "datagram", "adaptive", variant, 1024, count, False, True,
                placement="veth")


def sink(samples: int = 1000, elapsed_ns: int = 10**9, cpu_ns: int = 6 * 10**8, helpers_cpu_ns: int = 4 * 10**8,
         lost: int = 0) -> dict[str, int]:
    return {"samples": samples, "elapsed_ns": elapsed_ns, "cpu_ns": cpu_ns, "helpers_cpu_ns": helpers_cpu_ns, "lost": lost}


class Chosen(unittest.TestCase):
    def test_a_full_run_has_all_counts_and_a_quick_one_the_ends(self) -> None:
        full = [(c.experiment, c.variant, c.payload, c.sinks) for c in found(MODES)[0]]
        apps = [("apps", variant, 1024, count) for variant in ("", "xdp-paced") for count in (1, 2, 4, 8)]
        self.assertEqual(full, apps + [("threads", "", 1024, count) for count in (1, 2, 3)])
        quick = [(c.experiment, c.variant, c.sinks) for c in found(MODES, cells.QUICK)[0]]
        self.assertEqual(quick, [("apps", "xdp-paced", 1), ("apps", "xdp-paced", 8), ("threads", "", 1), ("threads", "", 3)])

    def test_they_are_listed_by_their_count_and_measured_seldom(self) -> None:
        for cell in found(MODES)[0]:
            self.assertIn(f"×{cell.sinks} insane", cell.label)
            self.assertTrue(cell.seldom)
            self.assertEqual(cell.apps, 3 if cell.experiment == "threads" else cell.sinks)


class Placed(unittest.TestCase):
    def run_program(self, cell: Cell, cores: object = TWO) -> list[dict[str, object]]:
        with TemporaryDirectory() as folder, hosts.two_hosts() as pair:
            script = Path(folder) / "program.py"
            script.write_text(TOLD)
            return process.run_cell(cell, [sys.executable, str(script)], cores, AMOUNTS, 0, pair)["app-sink"]

    @unittest.skipIf(hosts.why_not() is not None, hosts.why_not() or "")
    def test_sources_are_on_the_first_host_with_all_helpers_but_one_and_sinks_on_the_second(self) -> None:
        told = self.run_program(crowd("threads", 2))
        self.assertEqual(len(told), 3)
        lines = told[0]["lines"]
        self.assertEqual(told[0]["pids"], len(lines))
        first = {"aux-0", "aux-2", "aux-3", "app-source-0", "app-source-1", "app-source-2"}
        second = {"aux-1", "app-sink-0", "app-sink-1", "app-sink-2"}
        self.assertEqual(set(lines), first | second)
        for name, line in lines.items():
            self.assertIn(f"--own {hosts.ADDRESSES[int(name in second)]}", line)
            self.assertIn("--sinks 3 ", line)
            self.assertIn("--polling 2 --helpers 4", line)

    def test_polling_threads_have_cores_of_their_own_where_there_are_enough(self) -> None:
        def helpers(cell: Cell, cores: object) -> list[tuple[tuple[int, ...], bool]]:
            return [(many, "--alone" in more) for _, many, more in process._helpers(cell, cores)]

        self.assertEqual(helpers(crowd("apps", 8), TWO), [((0,), False), ((1,), False)])
        self.assertEqual(helpers(crowd("apps", 8), FOUR), [((core,), True) for core in FOUR.helpers])
        self.assertEqual(helpers(crowd("threads", 2), TWO), [((0,), False), ((1,), False), *[((0,), False)] * 2])
        sending, (polling, own), *further = helpers(crowd("threads", 2), FOUR)
        self.assertEqual((sending, further, own), (((FOUR.helpers[0],), False), [sending] * 2, False))
        self.assertEqual(polling, (FOUR.helpers[1],))
        sending, (polling, own), *further = helpers(crowd("threads", 2), SIX)
        self.assertTrue(own)
        self.assertEqual(len({*polling, *sending[0], *SIX.pair}), 6)
        self.assertFalse(helpers(crowd("threads", 3), SIX)[1][1], "one core too few")

    def test_the_cores_of_a_row_are_all_that_were_used(self) -> None:
        self.assertEqual(process.used_cores(crowd("threads", 3), TWO), [0, 1])
        self.assertEqual(sorted(process.used_cores(crowd("threads", 3), SIX)), list(range(6)))


class Figures(unittest.TestCase):
    def test_the_rate_is_of_all_together_and_a_message_costs_its_part_of_all_time(self) -> None:
        # 1000 and 3000 messages a second; of a second, 0.4 s polling and 0.2 s of applications.
        told = [sink(1000), sink(1500, 5 * 10**8, 3 * 10**8, 2 * 10**8, 7)]
        values, samples, cpu, lost, extra = measure.digest(crowd("apps", 2), {"app-sink": told})
        self.assertAlmostEqual(values["msgs_per_s"], 4000)
        self.assertAlmostEqual(values["gbit_per_s"], 4000 * 1024 * 8 / 1e9)
        self.assertAlmostEqual(values["polling_cpu_ns"], 4e8 / 4000)
        self.assertAlmostEqual(values["apps_cpu_ns"], 2e8 / 4000)
        self.assertAlmostEqual(cpu or 0, 6e8 / 4000)
        self.assertEqual((samples, lost), (2500, 7))
        self.assertEqual((extra["slowest"], extra["fastest"]), (1000, 3000))

    def test_an_application_that_told_nothing_voids_it(self) -> None:
        for told in ([sink()], [sink(), {"samples": 3}], []):
            with self.assertRaises(Void):
                measure.digest(crowd("apps", 2), {"app-sink": told})

    def kept(self, cell: Cell, rate: float) -> list[Repetition]:
        values, samples, cpu, lost, extra = measure.digest(cell, {"app-sink": [sink(int(rate))] * cell.apps})
        return [Repetition(cell, n, values, samples, 1.0, 1.0, cpu, lost, [0, 1], None, extra) for n in range(3)]

    def test_they_are_reported_and_not_judged(self) -> None:
        broken = crowd("threads", 2)
        kept = [r for count in (1, 8) for r in self.kept(crowd("apps", count, "xdp-paced"), 20_000)]
        said = bars.Judge(kept + self.kept(crowd("threads", 3), 1e6), {}, 1, False, {broken: "no luck"}).all()
        mine = {v.what: v for v in said if "polling thread" in v.what}
        name = "{} on one polling thread over AF_XDP, 20,000 messages/s each, 1 KB, two hosts"
        self.assertEqual([v.verdict for v in mine.values()], ["reported", "reported", "not measured", "reported"])
        self.assertIn("160 k messages/s", mine[name.format("8 applications")].measured)
        # 0.4 s of a second for 20,000 messages.
        self.assertIn("polling 20 s [20–20], applications 10 s", mine[name.format("1 application")].measured)
        self.assertEqual(mine["3 applications receive by 2 polling threads over UDP, 1 KB, two hosts"].measured, "no luck")
        self.assertFalse([v for v in said if "over DPDK" in v.what], "of what is past the kernel nothing else was measured")

    def test_the_report_has_a_line_for_each_count(self) -> None:
        kept = [r for count in (1, 2, 8) for variant in ("", "xdp") for r in self.kept(crowd("apps", count, variant), 1e5)]
        made = rows.make_rows(Outcome(kept=kept), 1)
        self.assertEqual({row["metric"] for row in made}, {"msgs_per_s", "gbit_per_s", "polling_cpu_ns", "apps_cpu_ns"})
        for row in made:
            self.assertEqual((row["unit"], row["reference"]), (rows.UNITS[row["metric"]], None))
        lines = report.make_report(MACHINE, made, [], []).splitlines()
        table = [line for line in lines if line.startswith("| insane ")]
        self.assertEqual([line.split(" | ")[:2] for line in table],
                         [[f"| insane {name}(rust)", count] for name in ("", "xdp ") for count in ("1", "2", "8")])
        self.assertEqual(table[2].split(" | ")[2:6], ["800.0 k [800.0 k–800.0 k]", "6.55", "0.5", "0.25"])


if __name__ == "__main__":
    unittest.main()
