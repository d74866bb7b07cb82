"""Runs the demo: the control loop over INSANE, then over plain sockets; a killed xApp in the middle; the accounting."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out" / "demo"


class Apps:
    """The processes of the demo; whatever happens, none is left behind."""

    def __init__(self, target: Path, directory: Path) -> None:
        self.target, self.directory = target, directory
        self.running: list[subprocess.Popen[str]] = []
        self.environment = os.environ | {
            "INSANE_SOCKET": str(directory / "insaned.sock"),
            "LD_LIBRARY_PATH": str(OUT),
        }

    def start(self, *command: str | Path) -> subprocess.Popen[str]:
        """Starts a program of the demo, its output to be read by lines."""
        process = subprocess.Popen(
            [str(c) for c in command], env=self.environment, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.running.append(process)
        return process

    def finish(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """Asks a process to end and returns the last line that it printed."""
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=20)
        return dict(json.loads(printed.strip().splitlines()[-1]))

    def end(self) -> None:
        """Ends what still runs."""
        for process in reversed(self.running):
            if process.poll() is None:
                process.kill()
            process.wait()


def follow(process: subprocess.Popen[str], table: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Shows a dApp's lines as they come; returns its last one."""
    last: dict[str, Any] = {}
    assert process.stdout is not None
    for line in process.stdout:
        last = json.loads(line)
        if "times_us" not in last:
            table(last)
    process.wait(timeout=20)
    if process.returncode != 0 or "times_us" not in last:
        raise SystemExit(f"demo: the dApp ended with code {process.returncode}")
    return last


def percentile(times: list[float], p: float) -> float:
    """The smallest time that p percent of all do not exceed."""
    ordered = sorted(times)
    return ordered[max(0, min(len(ordered) - 1, -int(-p * len(ordered) // 100) - 1))]


def over_insane(apps: Apps, seconds: float) -> dict[str, Any]:
    """The control loop over INSANE, one xApp killed in the middle and started again."""
    python = [sys.executable, ROOT / "demo" / "xapp.py"]
    listener = apps.start(OUT / "listener")
    xapp = apps.start(*python)
    dapp = apps.start(apps.target / "insane-demo-dapp", "--seconds", str(seconds), "--sinks", "2")
    events: dict[str, Any] = {}
    start = time.monotonic()

    def kill_and_restart() -> None:
        time.sleep(max(0.0, seconds * 0.4 - (time.monotonic() - start)))
        events["killed_at_s"] = round(time.monotonic() - start, 2)
        xapp.kill()
        xapp.wait()
        time.sleep(min(1.0, seconds * 0.1))
        events["again"] = apps.start(*python)
        events["restarted_at_s"] = round(time.monotonic() - start, 2)

    killer = threading.Thread(target=kill_and_restart)
    killer.start()
    print(f"{'time':>6} {'emitted':>9} {'answered':>9} {'unanswered':>11}   processes")

    def table(line: dict[str, Any]) -> None:
        state = "xApp in Python killed" if xapp.poll() is not None and "again" not in events else "all run"
        at = time.monotonic() - start
        print(f"{at:5.0f}s {line['emitted']:9} {line['answered']:9} {line['unanswered']:11}   {state}", flush=True)

    result = follow(dapp, table)
    killer.join()
    again = events.pop("again")
    seen = {"xApp in Python, second": apps.finish(again), "xApp in C": apps.finish(listener)}
    return result | {"events": events, "seen_by_apps": seen}


def over_sockets(apps: Apps, path: str, seconds: float) -> dict[str, Any]:
    """The same loop over plain sockets: `unix` or `udp`."""
    xapp = apps.start(sys.executable, ROOT / "demo" / "xapp.py", "--path", path, "--dir", apps.directory)
    assert xapp.stdout is not None
    port = json.loads(xapp.stdout.readline())["port"]
    dapp = apps.start(
        apps.target / "insane-demo-dapp", "--path", path, "--seconds", str(seconds), "--dir", apps.directory,
        "--port", str(port),
    )  # fmt: skip
    result = follow(dapp, lambda _: None)
    apps.finish(xapp)
    return result


def plot(times: dict[str, list[float]]) -> str | None:
    """Draws the distribution of each path; returns why not, if there is no matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return None
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for name, values in times.items():
        ordered = sorted(values)
        axes.step(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))], label=name)
    axes.set(xscale="log", xlabel="control loop, microseconds", ylabel="share of indications", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(OUT / "latency.png", dpi=120)
    return "out/demo/latency.png"


def cdf(times: dict[str, list[float]]) -> None:
    """The distribution as lines of text: a mark for each decile and the tail."""
    print("\nshare of indications answered within (microseconds)")
    points = [10, 25, 50, 75, 90, 99, 99.9]
    print(f"{'':<8}" + "".join(f"{p:>9}%" for p in points))
    for name, values in times.items():
        print(f"{name:<8}" + "".join(f"{percentile(values, p):>10.1f}" for p in points))


def main() -> None:
    """Runs the demo."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="insane-demo-") as place:
        apps = Apps(arguments.target.resolve(), Path(place))
        try:
            apps.start(apps.target / "insaned", "--socket", Path(place) / "insaned.sock", "--log", "error")
            for _ in range(200):
                if (Path(place) / "insaned.sock").exists():
                    break
                time.sleep(0.02)
            print("demo: a dApp (Rust) emits E2 indications at 1 kHz; an xApp in Python answers each with a control")
            print("demo: request, an xApp in C listens; the one in Python is killed in the middle and started again\n")
            runs = {"insane": over_insane(apps, arguments.seconds)}
            for path in ("unix", "udp"):
                print(f"demo: the same loop over {'a Unix' if path == 'unix' else 'UDP on loopback,'} datagram socket")
                runs[path] = over_sockets(apps, path, min(arguments.seconds, 5.0))
        finally:
            apps.end()
    times = {name: run.pop("times_us") for name, run in runs.items()}
    if not all(times.values()):
        raise SystemExit("demo: a path gave no answers")
    latencies = {
        name: {"median_us": percentile(v, 50), "p99_us": percentile(v, 99), "p999_us": percentile(v, 99.9), "count": len(v)}
        for name, v in times.items()
    }
    cdf(times)
    insane = runs["insane"]
    print(f"\naccounting of {insane['emitted']} indications, per sink (the source's end)")
    for flow in insane["accounting"]:
        rest = ", ".join(f"{k} {v}" for k, v in flow.items() if k not in ("sink", "ended"))
        print(f"  sink {flow['sink'][:8]} {'ended' if flow['ended'] else 'open '}  {rest}")
    for name, seen in insane["seen_by_apps"].items():
        print(f"  {name}: {json.dumps(seen)}")
    image = plot(times)
    report = {"latency": latencies, "accounting": insane["accounting"], "runs": runs, "plot": image}
    (OUT / "report.json").write_text(json.dumps(report, indent=1))
    print(f"\nwritten: out/demo/report.json{' and ' + image if image else ''}")
    wrong = sum(run["wrong_answers"] for run in runs.values())
    listener = insane["seen_by_apps"]["xApp in C"]
    if wrong or listener["gaps"] or listener["not_indications"] or listener["seen"] != insane["emitted"]:
        raise SystemExit(f"demo: failed: {wrong} wrong answers, the xApp in C saw {listener}")


if __name__ == "__main__":
    main()
