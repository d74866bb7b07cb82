"""The line protocol, against programs that keep it and programs that do not."""

import sys
import time
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from suite import process
from suite.cells import Cell
from suite.machine import choose_cores

PING = Cell("rtt", "fake", "fake", "python", "shm", "spin", "", 64, 1, False)
FAN = Cell("fanout", "fake", "fake", "python", "shm", "spin", "", 64, 3, False)
AMOUNTS = {"count": 10, "warmup": 1, "seconds": 0.1}

GOOD = """
import sys, json
role = sys.argv[1]
print("ready", flush=True)
go = sys.stdin.readline().split()
assert go[0] == "go" and all(int(pid) > 0 for pid in go[1:])
if role in ("rtt-client", "fanout-sink", "fanout-source"):
    print(json.dumps({"pids": len(go) - 1, "role": role}), flush=True)
sys.stdin.read()
"""


class Protocol(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.cores = choose_cores([0, 1], {}, None)

    def run_program(self, text: str, cell: Cell = PING) -> dict[str, object]:
        script = Path(self.folder.name) / "program.py"
        script.write_text(text)
        return process.run_cell(cell, [sys.executable, str(script)], self.cores, AMOUNTS, 0)

    def test_a_good_pair(self) -> None:
        self.assertEqual(self.run_program(GOOD), {"rtt-client": [{"pids": 2, "role": "rtt-client"}]})

    def test_a_fan_out_gives_one_result_per_sink(self) -> None:
        found = self.run_program(GOOD, FAN)
        self.assertEqual((len(found["fanout-sink"]), len(found["fanout-source"])), (3, 1))
        self.assertEqual(found["fanout-source"][0]["pids"], 4)

    def test_a_crash_is_void_with_its_last_words(self) -> None:
        with self.assertRaisesRegex(process.Void, "status 3.*out of memory"):
            self.run_program("import sys; print('out of memory', file=sys.stderr); sys.exit(3)")

    def test_of_a_traceback_the_last_line_is_told(self) -> None:
        with self.assertRaisesRegex(process.Void, "status 1: ValueError: no such thing$"):
            self.run_program("def far():\n    raise ValueError('no such thing')\nfar()")

    def test_silence_is_void(self) -> None:
        short = mock.patch.multiple(process, SILENCE_S=0.3, FAREWELL_S=0.2)
        with short, self.assertRaisesRegex(process.Void, "said nothing"):
            self.run_program("import time; time.sleep(60)")

    def test_gibberish_is_void(self) -> None:
        with mock.patch.object(process, "FAREWELL_S", 0.2), self.assertRaisesRegex(process.Void, "instead of 'ready'"):
            self.run_program("print('hello', flush=True); import time; time.sleep(60)")
        with self.assertRaisesRegex(process.Void, "no result"):
            self.run_program(GOOD.replace('json.dumps({"pids": len(go) - 1, "role": role})', '"{"'))

    def test_who_does_not_end_is_made_to(self) -> None:
        stubborn = GOOD.replace("sys.stdin.read()", "import time; time.sleep(60)")
        start = time.monotonic()
        with mock.patch.object(process, "FAREWELL_S", 0.2):
            self.run_program(stubborn)
        self.assertLess(time.monotonic() - start, 30)

    def test_nothing_is_left_behind(self) -> None:
        note = Path(self.folder.name) / "where"
        left = (
            "import sys, pathlib\nd = sys.argv[sys.argv.index('--dir') + 1]\n"
            f"pathlib.Path(d + '_left').touch()\npathlib.Path({str(note)!r}).write_text(d)\n"
        )
        self.run_program(left + GOOD)
        folder = Path(note.read_text())
        self.assertTrue(folder.name.startswith("bench-"))
        self.assertEqual(list(folder.parent.glob(folder.name + "*")), [])


if __name__ == "__main__":
    unittest.main()
