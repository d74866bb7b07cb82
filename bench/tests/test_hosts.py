"""Two hosts are made and removed whatever happens in them, and programs on them see each other and nothing else."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from suite import hosts, process
from suite.cells import Cell
from suite.machine import choose_cores
from suite.systems import BENCH

WHY_NOT = hosts.why_not()
CORES = choose_cores([0, 1], {}, None)
AMOUNTS = {"count": 10, "warmup": 1, "seconds": 0.1}
#: Two ends that look where they are; the second is told by the first, over the cable.
LOOK = """
import json, socket, sys
words = sys.argv
def option(name): return words[words.index(name) + 1]
seen = {"own": option("--own"), "peer": option("--peer"), "placement": option("--placement"),
        "interfaces": sorted(name for _, name in socket.if_nameindex())}
passive = words[1] == "rtt-server"
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.settimeout(10)
link.bind((option("--own"), 5000))
print("ready", flush=True)
sys.stdin.readline()
if passive:
    link.sendto(json.dumps(seen).encode(), (option("--peer"), 5000))
else:
    print(json.dumps({"active": seen, "passive": json.loads(link.recv(4096))}), flush=True)
sys.stdin.read()
"""


def veth(waiting: str = "spin", **more: object) -> Cell:
    return Cell("rtt", "fake", "fake", "python", "shm", waiting, "", 64, 1, False, placement="veth", **more)


#: Its helpers leave a file each, and the active end says which there are.
HELPED = """
import json, pathlib, sys
role = sys.argv[1]
index = sys.argv[sys.argv.index("--index") + 1] if "--index" in sys.argv else "-"
folder = pathlib.Path(sys.argv[sys.argv.index("--dir") + 1])
(folder / f"{role}-{index}").write_text(" ".join(sys.argv))
print("ready", flush=True)
sys.stdin.readline()
if role == "rtt-client":
    print(json.dumps({file.name[-1]: file.read_text() for file in folder.glob("aux-?")}), flush=True)
sys.stdin.read()
"""


@unittest.skipIf(WHY_NOT is not None, WHY_NOT or "")
class Made(unittest.TestCase):
    def mine(self) -> list[str]:
        return [name for name in hosts.present() if f"-{os.getpid()}-" in name]

    def run_program(self, text: str, pair: hosts.Hosts) -> dict[str, list[dict[str, object]]]:
        with TemporaryDirectory() as folder:
            script = Path(folder) / "program.py"
            script.write_text(text)
            return process.run_cell(veth(), [sys.executable, str(script)], CORES, AMOUNTS, 0, pair)

    def test_each_end_is_on_its_host_and_the_cable_joins_them(self) -> None:
        with hosts.two_hosts() as pair:
            self.assertEqual(self.mine(), sorted(pair.names))
            (found,) = self.run_program(LOOK, pair)["rtt-client"]
        self.assertEqual((found["active"]["own"], found["active"]["peer"]), hosts.ADDRESSES)
        self.assertEqual((found["passive"]["own"], found["passive"]["peer"]), hosts.ADDRESSES[::-1])
        for end in found.values():
            self.assertEqual((end["placement"], end["interfaces"]), ("veth", ["lo", "veth0", "veth1"]))
        self.assertEqual(self.mine(), [])

    def test_there_is_no_way_out(self) -> None:
        with hosts.two_hosts() as pair:
            for host in (0, 1):
                routes = subprocess.run(pair.within(host, ["ip", "route"]), capture_output=True, text=True, check=True)
                self.assertEqual([line.split()[0] for line in routes.stdout.splitlines()], ["10.98.0.0/24"])

    def test_a_program_that_fails_leaves_no_host_behind(self) -> None:
        with self.assertRaisesRegex(process.Void, "status 3.*no luck"), hosts.two_hosts() as pair:
            self.run_program("import sys; print('no luck', file=sys.stderr); sys.exit(3)", pair)
        self.assertEqual(self.mine(), [])

    def test_a_cable_that_cannot_be_made_leaves_no_host_behind(self) -> None:
        with mock.patch.object(hosts, "ADDRESSES", ("10.98.0.1", "nonsense")), self.assertRaisesRegex(
                hosts.NoHosts, "addr add"), hosts.two_hosts():
            self.fail("there is no such address")
        self.assertEqual(self.mine(), [])

    def test_a_run_that_is_told_to_end_removes_them(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            # Who is started in the background by a shell has its interrupts ignored, and so would this one.
            text = ("import signal, sys, time\n" "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
                    f"sys.path.insert(0, {str(BENCH)!r})\n" "from suite import hosts\n"
                    "with hosts.two_hosts() as pair:\n    print(*pair.names, flush=True)\n    time.sleep(60)\n")
            with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  text=True) as run:
                names = run.stdout.readline().split()
                self.assertEqual(len(names), 2)
                self.assertTrue(set(names) <= set(hosts.present()))
                run.send_signal(number)
                self.assertNotEqual(run.wait(30), 0)
            self.assertEqual(set(names) & set(hosts.present()), set())

    def test_what_a_killed_run_left_is_removed_by_the_next(self) -> None:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        name = f"insane-bench-{gone.pid}-0a"
        subprocess.run(["ip", "netns", "add", name], check=True)
        self.assertIn(name, hosts.present())
        with hosts.two_hosts():
            self.assertNotIn(name, hosts.present())

    def test_helpers_are_one_a_host(self) -> None:
        with TemporaryDirectory() as folder, hosts.two_hosts() as pair:
            script = Path(folder) / "program.py"
            script.write_text(HELPED)
            command = [sys.executable, str(script)]
            for cores, wanted, alone in ((CORES, CORES.pair, False), (choose_cores([0, 1, 2, 3], {}, None), (1, 0), True)):
                (found,) = process.run_cell(veth(aux=True), command, cores, AMOUNTS, 0, pair)["rtt-client"]
                for host in (0, 1):
                    self.assertIn(f"--core {wanted[host]} ", found[str(host)])
                    self.assertIn(f"--own {hosts.ADDRESSES[host]} ", found[str(host)])
                    self.assertEqual("--alone" in found[str(host)], alone)

    def test_a_helper_that_is_alone_is_on_the_host_that_was_asked_for(self) -> None:
        with TemporaryDirectory() as folder, hosts.two_hosts() as pair:
            script = Path(folder) / "program.py"
            script.write_text(HELPED)
            cell = veth("sleep", aux=True, aux_host=1)
            (found,) = process.run_cell(cell, [sys.executable, str(script)], CORES, AMOUNTS, 0, pair)["rtt-client"]
        self.assertEqual(list(found), ["1"])
        self.assertIn(f"--own {hosts.ADDRESSES[1]} ", found["1"])


class SecondCable(unittest.TestCase):
    def test_it_is_freed_after_what_takes_it_even_if_that_failed(self) -> None:
        pair = mock.Mock(spec=hosts.Hosts, **{"within.side_effect": lambda _, line: line, "arguments.return_value": []})
        for cell, times in ((veth(), 0), (dataclasses.replace(veth(), variant="xdp"), 1),
                            (dataclasses.replace(veth(), key="dpdk"), 2)):
            with self.assertRaises(process.Void):
                process.run_cell(cell, [sys.executable, "-c", "raise SystemExit(3)"], CORES, AMOUNTS, 0, pair)
            self.assertEqual(pair.free_second_cable.call_count, times)


class NotMade(unittest.TestCase):
    def test_without_root_or_the_program_there_are_none_and_why(self) -> None:
        with mock.patch.object(os, "geteuid", return_value=1000), self.assertRaisesRegex(hosts.NoHosts, "root"):
            hosts.Hosts().make()
        with mock.patch.object(os, "geteuid", return_value=0), mock.patch.object(hosts.shutil, "which", return_value=None):
            self.assertIn("'ip'", hosts.why_not() or "")

    def test_a_cell_between_two_hosts_is_void_without_them(self) -> None:
        start = time.monotonic()
        with self.assertRaisesRegex(process.Void, "no two hosts"):
            process.run_cell(veth(), ["true"], CORES, AMOUNTS, 0)
        self.assertLess(time.monotonic() - start, 10)


if __name__ == "__main__":
    unittest.main()
