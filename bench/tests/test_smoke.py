"""A tiny bench from end to end: builds, measures the floor and UDP, and the files are as promised."""

import json
import math
import subprocess
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from suite import hosts, rows
from suite.cells import WAITING_CLASSES
from suite.systems import BENCH

#: Building may be part of it. A watchdog, not a judgement.
WATCHDOG_S = 900

#: The limit on what the machine may move by, in percent: none. What is checked here are files, not figures, and a run whose
#: repetitions were all discarded has nothing to check. That the usual limit discards is the test of `test_measure.py`.
ANY_DRIFT = "1000000"


class Smoke(unittest.TestCase):
    def run_bench(self, *options: str, only: str = "rtt") -> tuple[dict[str, Any], list[dict[str, Any]], str]:
        """One quick round of some experiments: what is in `latest.json`, in `runs.jsonl` and in the report."""
        with TemporaryDirectory() as folder:
            out = Path(folder) / "latest.json"
            command = [str(BENCH / "run"), "--quick", "--only", only, "--rounds", "1", "--no-plots", "--drift", ANY_DRIFT,
                       *options, "--out", str(out)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_S)
            self.assertEqual(done.returncode, 0, done.stderr)
            raw = [json.loads(line) for line in (Path(folder) / "runs.jsonl").read_text().splitlines()]
            return json.loads(out.read_text()), raw, (Path(folder) / "report.md").read_text()

    def test_a_quick_round_trip_run(self) -> None:
        found, raw, report = self.run_bench("--placement", "local", "--systems", "floor,udp", "--seed", "7")
        self.assertEqual(list(found), ["machine", "rows"])
        self.assertEqual(found["machine"]["run"]["seed"], 7)
        self.assertTrue(found["rows"])
        kept = {(r["cell"]["system"], r["cell"]["waiting"], r["cell"]["knob"]) for r in raw}
        self.assertTrue(kept)
        for row in found["rows"]:
            self.check_row(row)
            self.assertIn((row["system"], row["waiting"], row["knob"] == "on"), kept)
        self.assertIn("not measured", report)
        self.assertIn("insane: not part of this run", report)

    @unittest.skipIf(hosts.why_not() is not None, hosts.why_not() or "")
    def test_a_run_between_two_hosts(self) -> None:
        before = hosts.present()
        found, raw, _ = self.run_bench("--placement", "veth", "--match", "sleep", "--systems", "floor,udp,insane")
        self.assertEqual(hosts.present(), before)
        self.assertEqual(found["machine"]["run"]["failed"], 0, found["machine"]["notes"])
        kept = {(r["cell"]["system"], r["cell"]["variant"]) for r in raw if r["cell"]["placement"] == "veth"}
        self.assertEqual(kept, {("floor", "chain-2"), ("floor", "chain-6"), ("udp", ""), ("insane", "")})
        for row in (r for r in found["rows"] if r["placement"] == "veth" and r["experiment"] != "added"):
            self.check_row(row, "veth", ("floor", "udp", "insane"))
        measured = {tuple(r["cell"][name] for name in ("experiment", "system", "waiting", "placement")) for r in raw}
        made_of = {("rtt", "insane", "sleep", "veth"), ("rtt", "udp", "sleep", "veth"), ("rtt", "insane", "spin", "local"),
                   ("calls", "insane", "spin", "local"), ("calls", "insane", "sleep", "local")}
        parts = {r["metric"]: r["median"] for r in found["rows"] if r["experiment"] == "added"}
        self.assertLessEqual(made_of, measured)
        together = parts["client_us"] + parts["link_us"] + parts["runtime_us"]
        self.assertAlmostEqual(together, parts["added_us"])

    @unittest.skipIf(hosts.why_not() is not None, hosts.why_not() or "")
    def test_bare_relays_pass_messages_on(self) -> None:
        found, raw, _ = self.run_bench("--placement", "veth", "--match", "relay", "--systems", "floor", only="rtt,oneway")
        self.assertEqual(found["machine"]["run"]["failed"], 0, found["machine"]["notes"])
        kept = {(r["cell"]["variant"], r["cell"]["payload"]) for r in raw if r["cell"]["placement"] == "veth"}
        self.assertEqual(kept, {("relay", 64), ("relay-gso", 1024)})

    @unittest.skipIf(hosts.why_not() is not None, hosts.why_not() or "")
    def test_applications_share_a_polling_thread_and_polling_threads_a_load(self) -> None:
        found, raw, report = self.run_bench("--placement", "veth", "--systems", "floor,insane", only="apps,threads")
        self.assertEqual(found["machine"]["run"]["failed"], 0, found["machine"]["notes"])
        kept = {(r["cell"]["experiment"], r["cell"]["sinks"]) for r in raw if r["cell"]["placement"] == "veth"}
        self.assertEqual(kept, {("apps", 1), ("apps", 8), ("threads", 1), ("threads", 3)})
        for row in (r for r in found["rows"] if r["placement"] == "veth"):
            self.assertEqual(tuple(row), rows.FIELDS)
            self.assertEqual(row["unit"], rows.UNITS[row["metric"]])
            self.assertTrue(math.isfinite(row["median"]) and row["median"] > 0, row)
        for experiment, count in kept:
            words = "on one polling thread" if experiment == "apps" else "polling thread"
            self.assertRegex(report, rf"{count} .*{words}.*\*\*reported\*\*")

    def check_row(
        self, row: dict[str, object], placement: str = "local", systems: tuple[str, ...] = ("floor", "udp")
    ) -> None:
        self.assertEqual(tuple(row), rows.FIELDS)
        self.assertEqual(row["experiment"], "rtt")
        self.assertIn(row["system"], systems)
        self.assertIn(row["waiting"], WAITING_CLASSES)
        self.assertIn(row["metric"], rows.UNITS)
        self.assertEqual(row["unit"], rows.UNITS[row["metric"]])
        self.assertEqual((row["placement"], row["payload_bytes"], row["sinks"]), (placement, 64, 1))
        self.assertEqual(len(set(row["cores"])), len(row["cores"]))
        self.assertIn(len(row["cores"]), (2, 4) if placement == "veth" else (2,))
        for name in ("median", "low", "high", "floor_before", "floor_after", "cpu_per_msg"):
            self.assertTrue(math.isfinite(row[name]) and row[name] > 0, (name, row))
        self.assertTrue(row["low"] <= row["median"] <= row["high"])
        self.assertGreaterEqual(row["samples"], 1)
        self.assertEqual(row["loss"], 0)
        if placement == "local":
            self.assertIsNone(row["hop_ns"])


if __name__ == "__main__":
    unittest.main()
