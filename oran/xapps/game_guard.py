#!/usr/bin/env python3
"""An xApp that guards a game: once packets stay in a bearer's RLC buffer for more than 10 ms, whoever fills it gets a queue
of its own with CoDel, and the 5G-BDP pacer keeps the buffer short from then on.

usage: game_guard.py [--lab NAME] [--socket PATH] [--trigger MS] [--greedy-port PORT] [--seconds S]

It prints one JSON line when it acts, and ends then; without cause it ends after S seconds.
"""

from __future__ import annotations

import argparse
import json
import time

import insane
from insane import tc


def guard(client: tc.Client, trigger_ms: float, greedy_port: int, seconds: float) -> dict[str, object] | None:
    """Watches all bearers every 5 ms and acts on the first that needs it; what was done, or nothing in time."""
    end = time.monotonic() + seconds
    for indication in client.indications(period=0.005, timeout=5.0):
        for bearer, state in indication.bearers.items():
            sojourn_ms = state.rlc.head_sojourn_ns / 1e6
            if sojourn_ms > trigger_ms:
                generation = client.change(
                    bearer,
                    tc.modify("pacer", type="5g-bdp"),
                    tc.add("queue", 1, kind={"type": "codel"}),
                    tc.add("filter", 1, match={"proto": 6, "src_port": greedy_port}, to={"type": "queue", "queue": 1}),
                    generation=state.generation,
                )
                sent, _, done, _ = client.timing()
                return {
                    "bearer": bearer,
                    "sojourn_ms": sojourn_ms,
                    "generation": generation,
                    "from_indication_ms": (done - indication.taken_ns) / 1e6,
                    "from_request_ms": (done - sent) / 1e6,
                    "done_ns": done,
                }
        if time.monotonic() > end:
            return None
    return None


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", default="ranlab", help="the name that the lab's channels are below")
    parser.add_argument("--socket", help="the runtime's socket")
    parser.add_argument("--trigger", type=float, default=10.0, metavar="MS")
    parser.add_argument("--greedy-port", type=int, default=5201, metavar="PORT")
    parser.add_argument("--seconds", type=float, default=3600.0)
    options = parser.parse_args()
    with insane.Session("game_guard", socket=options.socket) as session:
        client = tc.Client(session, options.lab)
        done = guard(client, options.trigger, options.greedy_port, options.seconds)
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
