"""What both acts of the demo need: processes that are never left behind, and figures of what they printed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out" / "demo"

Run = dict[str, Any]
Xapp = tuple[subprocess.Popen[str], Run]


class Failed(Exception):
    """The demo cannot go on; the text says why."""


class Apps:
    """The processes of the demo; whatever happens, none is left behind."""

    def __init__(self, target: Path, directory: Path) -> None:
        self.target, self.directory = target, directory
        self.running: list[subprocess.Popen[str]] = []

    def start(self, *command: str | Path, socket: Path | None = None, within: Iterable[str] = ()) -> subprocess.Popen[str]:
        """Starts a program, its output to be read by lines. `socket` is its runtime's; `within` comes before the command."""
        environment = os.environ | {
            "INSANE_SOCKET": str(socket or self.directory / "insaned.sock"),
            "LD_LIBRARY_PATH": str(OUT),
        }
        # In a session of its own: Ctrl-C reaches the demo alone, which ends the others in good order.
        process = subprocess.Popen(
            [*within, *(str(c) for c in command)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def runtime(self, *arguments: str | Path, socket: Path, within: Iterable[str] = ()) -> subprocess.Popen[str]:
        """Starts a runtime and waits until it serves."""
        # What a killed one has left would be taken for the new one's.
        socket.unlink(missing_ok=True)
        process = self.start(self.target / "insaned", *arguments, socket=socket, within=within)
        for _ in range(1000):
            if socket.exists():
                return process
            if process.poll() is not None:
                raise Failed(f"insaned ended with code {process.returncode}; what it said is above")
            time.sleep(0.01)
        raise Failed("insaned does not serve within 10 s")

    def xapp(self, *arguments: str | Path, socket: Path | None = None, within: Iterable[str] = ()) -> Xapp:
        """Starts the xApp in Python; returns its process, and what it says when it is ready."""
        process = self.start(sys.executable, ROOT / "demo" / "xapp.py", *arguments, socket=socket, within=within)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("{"):
            process.wait(timeout=20)
            raise Failed(f"an xApp ended with code {process.returncode}; what it said is above")
        return process, dict(json.loads(line))

    def finish(self, process: subprocess.Popen[str]) -> Run:
        """Asks a process to end and returns the last line that it printed."""
        process.send_signal(signal.SIGTERM)
        try:
            printed, _ = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            raise Failed(f"{process.args!r} did not end within 20 s of SIGTERM") from None
        try:
            return dict(json.loads(printed.strip().splitlines()[-1]))
        except (IndexError, ValueError):
            raise Failed(f"{process.args!r} ended with code {process.returncode} and no last word") from None

    def end(self) -> None:
        """Ends what still runs."""
        for process in reversed(self.running):
            if process.poll() is None:
                process.kill()
            process.wait()


def follow(process: subprocess.Popen[str], table: Callable[[Run], None], limit_s: float) -> Run:
    """Shows a dApp's lines as they come; returns its last one."""
    last: Run = {}
    watchdog = threading.Timer(limit_s, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            last = json.loads(line)
            if "sent_us" not in last:
                table(last)
        process.wait(timeout=20)
    finally:
        watchdog.cancel()
    if process.returncode != 0 or "sent_us" not in last:
        raise Failed(f"the dApp ended with code {process.returncode}")
    return last


def percentile(times: list[float], p: float) -> float:
    """The smallest time that p percent of all do not exceed."""
    ordered = sorted(times)
    return ordered[max(0, min(len(ordered) - 1, -int(-p * len(ordered) // 100) - 1))]


def summary(times: list[float]) -> Run:
    """Median and tail of loop times in microseconds."""
    ordered = sorted(times)
    return {
        "median_us": percentile(ordered, 50),
        "p99_us": percentile(ordered, 99),
        "p999_us": percentile(ordered, 99.9),
        "count": len(ordered),
    }


def cdf(times: dict[str, list[float]]) -> None:
    """The distribution as lines of text: a mark for each decile and the tail."""
    print("\nshare of indications answered within (microseconds)")
    points = [10, 25, 50, 75, 90, 99, 99.9]
    width = max(8, *(len(name) + 2 for name in times))
    print(f"{'':<{width}}" + "".join(f"{p:>9}%" for p in points))
    for name, values in times.items():
        ordered = sorted(values)
        print(f"{name:<{width}}" + "".join(f"{percentile(ordered, p):>10.1f}" for p in points))


def pyplot() -> ModuleType | None:
    """matplotlib's, or None if it is not there."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plots
    except ImportError:
        return None
    return plots


def draw_cdf(axes: Axes, times: dict[str, list[float]]) -> None:
    """Draws the distributions."""
    for name, values in times.items():
        ordered = sorted(values)
        axes.step(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))], label=name)
    axes.set(xscale="log", xlabel="control loop, microseconds", ylabel="share of indications", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend()
