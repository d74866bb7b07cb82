"""Runs the demo: a control loop on one host, then on two; what is killed and cut in the middle, and the accounts."""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import one_host
import two_hosts
from common import OUT, Apps, Failed

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stopped(number: int, _frame: object) -> None:
    """A signal that ends the demo: everything is cleaned up on the way out, and a second signal does not disturb that."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main() -> None:
    """Runs the demo."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", type=Path, required=True, help="where the programs are")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the first act's loop; the rest is scaled by it")
    parser.add_argument("--act", type=int, choices=(1, 2), help="only this one")
    parser.add_argument("--hosts", choices=("auto", "namespaces", "loopback"), default="auto", help="of the second act")
    parser.add_argument("--without-zeromq", metavar="WHY", help="leave it out")
    arguments = parser.parse_args()
    for number in SIGNALS:
        signal.signal(number, stopped)
    OUT.mkdir(parents=True, exist_ok=True)
    # What is there afterwards is of this run.
    (OUT / "report.json").unlink(missing_ok=True)
    without_zeromq = arguments.without_zeromq
    if not without_zeromq and importlib.util.find_spec("zmq") is None:
        without_zeromq = "there is no pyzmq (scripts/setup python)"
    report: dict[str, Any] = {}
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix="insane-demo-") as place:
        for act in (1, 2) if arguments.act is None else (arguments.act,):
            apps = Apps(arguments.target.resolve(), Path(place))
            try:
                if act == 1:
                    report |= one_host.play(apps, arguments.seconds)
                    found.append(one_host.wrong(report) or "")
                else:
                    report["two_hosts"] = two_hosts.play(apps, arguments.hosts, arguments.seconds, without_zeromq)
                    found.append(two_hosts.wrong(report["two_hosts"]) or "")
            finally:
                apps.end()
    (OUT / "report.json").write_text(json.dumps(report, indent=1))
    images = [image for image in (report.get("plot"), report.get("two_hosts", {}).get("plot")) if image]
    print("\nwritten: " + ", ".join(["out/demo/report.json", *images]))
    if any(found):
        raise Failed("; ".join(filter(None, found)))


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"demo: failed: {error}")
