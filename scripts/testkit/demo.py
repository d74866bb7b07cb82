"""Runs the demo, checks its report, and compares what it prints with what the front door shows of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

from testkit import docs
from testkit.paths import OUT, ROOT

Report = dict[str, Any]


def shape(line: str) -> str:
    """A line without its figures and identities; what the figures are shares of is kept."""
    if "%" in line:
        return " ".join(line.split())
    line = re.sub(r"\b[0-9a-f]{8}(?= (?:open|ended))", "ID", line)
    # In which counts messages end that a fault cost, and whether another system goes on in time, differs from run to run.
    line = re.sub(r" \(counted: [^)]*\)", "", line)
    line = re.sub(r"did not run again|ran again after [\d.]+ ms", "AGAIN", line)
    return " ".join(re.sub(r"\d+(?:\.\d+)?", "N", line).split())


def the_front_door_shows_what_the_demo_prints(shown: str, printed: str) -> list[str]:
    """The lines shown that the demo does not print: other words, other columns."""
    known = {shape(line) for line in printed.splitlines()}
    return [line for line in shown.splitlines() if line.strip() and shape(line) not in known]


def the_front_door_shows_the_second_act(shown: str, printed: str) -> list[str]:
    """As above, for the block that shows the second act."""
    return the_front_door_shows_what_the_demo_prints(shown, printed)


def _ends(account: Report) -> list[str]:
    """What does not agree in one sink's account."""
    ends, found = account["ends"], []
    if account["intended"] != sum(ends.values()):
        found.append(f"{account['name']}: {account['intended']} intended, in a count: {ends}")
    delivered, unknown = ends.get("delivered", 0), ends.get("unconfirmed", 0)
    if not delivered <= account["seen"] <= delivered + unknown:
        found.append(f"{account['name']}: saw {account['seen']}, {delivered} delivered, {unknown} unconfirmed")
    if delivered == 0:
        found.append(f"{account['name']}: nothing was delivered")
    return found


def faults_of_two_hosts(report: Report, wanted: list[str]) -> list[str]:
    """What is wrong with the second act's part of a report, in which the faults `wanted` must be. Speed is not judged."""
    accounting, insane, found = report["accounting"], report["runs"]["insane"], []
    names = [account["name"] for account in accounting["sinks"]]
    if names != ["local xApp", "remote xApp"]:
        found.append(f"accounts of {names}")
    for account in accounting["sinks"]:
        found += _ends(account)
    missed = sum(accounting["emitted"] - account["intended"] for account in accounting["sinks"])
    if missed != accounting["out_of_view"]:
        found.append(f"{missed} were not meant for a sink, but one was out of view {accounting['out_of_view']} times")
    if list(insane["faults"]) != wanted:
        found.append(f"the faults were {list(insane['faults'])}, not {wanted}")
    for name, fault in insane["faults"].items():
        if fault["remote"]["again_after_ms"] is None:
            found.append(f"the remote loop did not run again after the {name}")
        if fault["remote"]["unanswered"] == 0:
            found.append(f"the {name} cost the remote loop nothing: there was none")
    for who, loop in insane["loops"].items():
        if not loop["running_at_the_end"] or loop["twice"]:
            found.append(f"the {who} loop: {loop}")
    if sorted(report["pids"]) != ["dApp", "local xApp", "remote xApp"]:
        found.append(f"pids of {sorted(report['pids'])}")
    found += [f"{name} was started again: {pids}" for name, pids in report["pids"].items() if len(set(pids)) != 1]
    for path in ("insane", "udp", "zeromq"):
        for who in ("local", "remote"):
            if report["latency"].get(f"{path} {who}", {}).get("count", 0) == 0:
                found.append(f"no loop times of {path} {who}")
    return found


def _run(arguments: list[str]) -> tuple[int, str, Report]:
    """Runs the demo; its code, what it printed, and its report."""
    command = [str(ROOT / "demo/run"), *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, flush=True)
    report = json.loads((OUT / "demo/report.json").read_text()) if done.returncode == 0 else {}
    return done.returncode, done.stdout, report


def _namespaces() -> str:
    """The demo's network namespaces that are there."""
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    return ", ".join(re.findall(r"insane-demo-\S+", done.stdout))


def main() -> int:
    """Runs it with the arguments given, before that its second act on loopback addresses. Fails if something is wrong."""
    # The whole one comes last: its report is what stays.
    code, _, report = _run(["--act", "2", "--hosts", "loopback", *sys.argv[1:]])
    if code:
        return code
    found = faults_of_two_hosts(report["two_hosts"], ["kill"])
    code, printed, report = _run(sys.argv[1:])
    if code:
        return code
    two = report["two_hosts"]
    apart = two["hosts"] == "namespaces"
    found += faults_of_two_hosts(two, ["cut", "kill"] if apart else ["kill"])
    if _namespaces():
        found.append(f"left behind: {_namespaces()}")
    readme = (ROOT / "README.md").read_text()
    # Ways in which few messages end are told only where some did, as when one came to a session that had just closed.
    printed = re.sub(r", (?:expired|invalid|sink_closed) \d+(?=.*; it saw)", "", printed)
    for shows in (the_front_door_shows_what_the_demo_prints, the_front_door_shows_the_second_act):
        # Without root there is no cable, and other lines are printed.
        if apart or shows is the_front_door_shows_what_the_demo_prints:
            missing = shows(docs.block(readme, shows.__name__), printed)
            found += [f"README.md shows what the demo does not print: {line!r}" for line in missing]
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
