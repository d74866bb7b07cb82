"""Where the time goes, from what `perf` reports."""

import contextlib
import json
import os
import unittest
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from suite import profile, report
from suite.cells import Cell
from suite.process import Beside, Void

from tests.made_up import MACHINE
from tests.test_bars_bypass import cell

FLAT = """
 50.00%  |insane-network |[kernel.kallsyms]  |[k] _copy_from_iter
 20.00%  |insane-network |bench-insane       |[.] insane_transport::transmit::<impl insane_transport::path::Path>::transmit
 10.00%  |insane-network |libc.so.6          |[.] __memmove_avx_unaligned_erms
  5.00%  |bench-insane   |bench-insane       |[.] insane::sink::Sink::consume_each::{{closure}}
  3.00%  |bench-insane   |bench-insane       |[.] bench_harness::payload::check
  2.00%  |bench-insane   |[vdso]             |[.] 0x0000000000000a1b
"""
NESTED = """
 80.00% |  0.00%  |insane-network |[k] entry_SYSCALL_64_after_hwframe
 40.00% |  0.10%  |insane-network |[k] __x64_sys_sendmmsg
 39.00% |  0.10%  |insane-network |[k] ___sys_sendmsg
  8.00% |  0.10%  |insane-network |[k] __x64_sys_sched_yield
"""


class Profiles(unittest.TestCase):
    def test_shares_are_of_the_thread_that_had_them(self) -> None:
        network, application = profile.parts(FLAT, NESTED)
        self.assertEqual((network.thread, network.share, network.kernel), ("insane-network", 80.0, 62.5))
        self.assertEqual(network.calls, {"sendmmsg": 50.0, "sched_yield": 10.0})
        self.assertEqual(network.code, {"insane-transport": 25.0, "copying": 12.5})
        self.assertEqual((application.kernel, application.calls), (0.0, {}))
        self.assertEqual(application.code, {"insane": 50.0, "bench-harness": 30.0, "[vdso]": 20.0})

    def test_what_is_no_report_has_no_parts(self) -> None:
        for text in ("", "Error:\nThe perf.data data has no samples!\n", "a|b|c|d\n", "1.0%|x\n"):
            self.assertEqual(profile.parts(text, text), [], text)

    def test_only_cells_of_insane_run_again_and_one_that_fails_is_told_of(self) -> None:
        cells = [cell("insane", "rtt", "sleep"), cell("udp", "rtt", "sleep"), cell("insane", "oneway", "sleep", "xdp"),
                 cell("insane", "open", "sleep")]
        said: list[str] = []
        ran: list[Cell] = []

        def run(one: Cell, beside: Beside) -> None:
            ran.append(one)
            if one.experiment == "oneway":
                raise Void("it went over udp")
            with beside([1]):
                pass

        @contextlib.contextmanager
        def recording(pids: list[int], data: Path) -> Iterator[None]:
            self.assertEqual(pids, [1])
            yield

        with mock.patch.object(profile, "recording", recording), \
                mock.patch.object(profile, "read", lambda data: profile.parts(FLAT, NESTED)):
            found = profile.profile(cells, run, said.append)
        self.assertEqual(ran, [cells[0], cells[2]])
        self.assertEqual([one.cell for one in found], [cells[0].label])
        self.assertIn("it went over udp", said[-1])
        with TemporaryDirectory() as folder:
            out = Path(folder) / "profiles.json"
            profile.written(found, out)
            self.assertEqual(json.loads(out.read_text())[0]["parts"][0]["calls"]["sendmmsg"], 50.0)
        text = report.make_report(MACHINE, [], [], [], found)
        self.assertIn(f"| {cells[0].label} | insane-network | 80 | 62 | sendmmsg 50, sched_yield 10 | insane-transport 25, "
                      "copying 12 |", text)
        self.assertNotIn("Where the time goes", report.make_report(MACHINE, [], [], []))

    def test_why_there_is_no_profile_is_said(self) -> None:
        with TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"PATH": folder}):
            self.assertIn("linux-perf", profile.why_not() or "")
            false = Path(folder) / "perf"
            false.write_text("#!/bin/sh\necho 'no permission' >&2\nexit 1\n")
            false.chmod(0o755)
            self.assertEqual(profile.why_not(), "perf does not record: no permission")


if __name__ == "__main__":
    unittest.main()
