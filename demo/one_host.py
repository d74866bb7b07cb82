"""The first act: the control loop on one host, over INSANE and over plain sockets; a killed xApp in the middle."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

from common import OUT, Apps, Failed, Run, cdf, draw_cdf, follow, pyplot, summary

LIMIT_S = 60.0
"""How long a part may take beyond what it is told to."""


def over_insane(apps: Apps, seconds: float) -> Run:
    """The control loop over INSANE, one xApp killed in the middle and started again."""
    listener = apps.start(OUT / "listener")
    xapp, _ = apps.xapp()
    dapp = apps.start(apps.target / "insane-demo-dapp", "--seconds", str(seconds), "--sinks", "2")
    events: dict[str, Any] = {}
    start = time.monotonic()

    def kill_and_restart() -> None:
        time.sleep(max(0.0, seconds * 0.4 - (time.monotonic() - start)))
        events["killed_at_s"] = round(time.monotonic() - start, 2)
        xapp.kill()
        xapp.wait()
        time.sleep(min(1.0, seconds * 0.1))
        events["again"], _ = apps.xapp()
        events["restarted_at_s"] = round(time.monotonic() - start, 2)

    killer = threading.Thread(target=kill_and_restart)
    killer.start()
    print(f"{'time':>6} {'emitted':>9} {'answered':>9} {'unanswered':>11}   processes")

    def table(line: Run) -> None:
        if "at_s" not in line:
            return
        state = "xApp in Python killed" if xapp.poll() is not None and "again" not in events else "all run"
        answered = line["answered"][0]
        missing = line["emitted"] - answered
        print(f"{line['at_s']:5.0f}s {line['emitted']:9} {answered:9} {missing:11}   {state}", flush=True)

    result = follow(dapp, table, seconds + LIMIT_S)
    killer.join()
    if "again" not in events:
        raise Failed("the xApp in Python was not started again")
    again = events.pop("again")
    seen = {"xApp in Python, second": apps.finish(again), "xApp in C": apps.finish(listener)}
    return result | {"events": events, "seen_by_apps": seen}


def alone(apps: Apps, path: str, seconds: float) -> Run:
    """The loop with nobody who listens, over INSANE or over plain sockets: `insane`, `unix` or `udp`."""
    xapp, ready = apps.xapp("--path", path, "--dir", apps.directory)
    where = [] if ready.get("port") is None else ["--peer", f"127.0.0.1:{ready['port']}"]
    dapp = apps.start(
        apps.target / "insane-demo-dapp", "--path", path, "--seconds", str(seconds), "--dir", apps.directory, *where
    )
    result = follow(dapp, lambda _: None, seconds + LIMIT_S)
    apps.finish(xapp)
    return result


def plot(times: dict[str, list[float]]) -> str | None:
    """Draws the distribution of each path; returns None if there is no matplotlib."""
    plots = pyplot()
    if plots is None:
        return None
    figure, axes = plots.subplots(figsize=(7, 4))
    draw_cdf(axes, times)
    figure.tight_layout()
    figure.savefig(OUT / "latency.png", dpi=120)
    return "out/demo/latency.png"


def shaped(run: Run) -> tuple[Run, list[float]]:
    """A run as the report has it, and its loop times."""
    (xapp,) = run["xapps"]
    kept = {k: v for k, v in run.items() if k not in ("xapps", "sent_us", "accounting")}
    flows = run["accounting"]["flows"] if run["accounting"] else []
    return kept | {k: xapp[k] for k in ("answered", "unanswered", "twice")} | {"accounting": flows}, xapp["times_us"]


def play(apps: Apps, seconds: float) -> Run:
    """Plays the act; returns its part of the report."""
    socket = Path(apps.directory) / "insaned.sock"
    apps.runtime("--socket", socket, "--log", "error", socket=socket)
    print("demo: a dApp (Rust) emits E2 indications at 1 kHz; an xApp in Python answers each with a control")
    print("demo: request, an xApp in C listens; the one in Python is killed in the middle and started again\n")
    runs, times = {}, {}
    runs["insane"], times["insane"] = shaped(over_insane(apps, seconds))
    print("demo: the loop without the listener, over INSANE")
    runs["insane alone"], times["insane alone"] = shaped(alone(apps, "insane", min(seconds, 5.0)))
    for path in ("unix", "udp"):
        print(f"demo: the same over {'a Unix' if path == 'unix' else 'UDP on loopback,'} datagram socket")
        runs[path], times[path] = shaped(alone(apps, path, min(seconds, 5.0)))
    if not all(times.values()):
        raise Failed("a path gave no answers")
    cdf(times)
    insane = runs["insane"]
    emitted = insane["warm_up"] + insane["emitted"]
    print(f"\naccounting of {emitted} indications, per sink (the source's end)")
    for flow in insane["accounting"]:
        rest = ", ".join(f"{k} {v}" for k, v in flow.items() if k not in ("sink", "ended"))
        print(f"  sink {flow['sink'][:8]} {'ended' if flow['ended'] else 'open '}  {rest}")
    for name, seen in insane["seen_by_apps"].items():
        told = {k: v for k, v in seen.items() if k in ("seen", "bad", "gaps", "not_indications")}
        print(f"  {name}: {json.dumps(told)}")
    latency = {name: summary(values) for name, values in times.items()}
    return {"latency": latency, "accounting": insane["accounting"], "runs": runs, "plot": plot(times)}


def wrong(part: Run) -> str | None:
    """What is wrong with what came out; None when nothing is."""
    answers = sum(run["wrong_answers"] for run in part["runs"].values())
    insane = part["runs"]["insane"]
    listener = insane["seen_by_apps"]["xApp in C"]
    emitted = insane["warm_up"] + insane["emitted"]
    if answers or listener["gaps"] or listener["not_indications"] or listener["seen"] != emitted:
        return f"{answers} wrong answers, {emitted} indications, and the xApp in C saw {listener}"
    return None
