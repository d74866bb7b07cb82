"""The watchdog ends what hangs, finds what is left behind and takes nobody else down."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from testkit import watch


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Watch(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.log = self.folder / "log"

    def run_script(self, text: str, limit_s: float = 30) -> watch.Outcome:
        return watch.run(["bash", "-c", text], log=self.log, limit_s=limit_s, cwd=self.folder, env={"WORD": "here"})

    def test_output_code_and_environment(self) -> None:
        outcome = self.run_script("echo $WORD; echo there >&2; exit 3")
        self.assertEqual((outcome.code, outcome.trouble(30)), (3, None))
        self.assertEqual(self.log.read_text(), "here\nthere\n")

    def test_a_signal_is_named(self) -> None:
        self.assertEqual(self.run_script("kill -SEGV $$").trouble(30), "ended by SIGSEGV")

    def test_what_hangs_is_ended_with_all_its_processes(self) -> None:
        outcome = self.run_script("setsid sleep 1000 & echo $! >pid; trap '' TERM; sleep 1000 & wait; wait", limit_s=1)
        self.assertTrue(outcome.timed_out)
        self.assertIn("killed by the watchdog after 1 s", str(outcome.trouble(1)))
        self.assertIn("sleep 1000", self.log.read_text())
        self.assertFalse(alive(int((self.folder / "pid").read_text())))

    def test_what_is_left_behind_is_named_and_ended(self) -> None:
        outcome = self.run_script("setsid sleep 1001 & echo $! >pid; echo ok")
        self.assertIn("sleep 1001", str(outcome.trouble(30)))
        self.assertFalse(alive(int((self.folder / "pid").read_text())))

    def test_what_ends_by_itself_soon_is_not_held_against_anyone(self) -> None:
        outcome = self.run_script("sleep 0.5 & exit 0")
        self.assertEqual((outcome.code, outcome.trouble(30)), (0, None))

    def test_a_stranger_is_left_alone(self) -> None:
        stranger = subprocess.Popen(["sleep", "30"], start_new_session=True)
        self.addCleanup(stranger.wait)
        self.addCleanup(stranger.kill)
        script = f"""if True:
            from pathlib import Path
            from testkit import watch
            here = Path({str(self.folder)!r})
            print(watch.run(["true"], log=here / "l", limit_s=9, cwd=here).left_behind)
        """
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, "[]\n")
        self.assertTrue(alive(stranger.pid))

    def test_nothing_survives_our_own_end(self) -> None:
        script = f"""if True:
            from pathlib import Path
            from testkit import watch
            watch.stop_on_sigterm()
            here = Path({str(self.folder)!r})
            sleeper = "echo $$ >pid.tmp; mv pid.tmp pid; exec sleep 1000"
            watch.run(["bash", "-c", sleeper], log=here / "l", limit_s=900, cwd=here)
        """
        runner = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not (self.folder / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        pid = int((self.folder / "pid").read_text())
        os.kill(runner.pid, signal.SIGTERM)
        runner.wait(30)
        self.assertFalse(alive(pid))

    def test_a_command_that_is_not_there(self) -> None:
        outcome = watch.run(["./nothing"], log=self.log, limit_s=5, cwd=self.folder)
        self.assertEqual(outcome.code, 127)
        self.assertIn("cannot start", self.log.read_text())
