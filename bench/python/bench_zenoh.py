#!/usr/bin/env python3
"""Eclipse Zenoh's Python package, set up as the Rust program of bench/zenoh is: two peers over TCP, one listens at its own
address and the other connects; scouting by multicast and gossip are off, everything else is as shipped.

The echo publishes in its subscriber's callback, as Zenoh's own `z_pong.py` does; the other end receives by the default
handler.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import contract
import zenoh

#: How long an end waits for the other one, in seconds.
MEETING_S = 20.0
QUESTIONS, ANSWERS = "bench/questions", "bench/answers"


def open_session(args: argparse.Namespace, listens: bool) -> zenoh.Session:
    """A session that listens, or connects, and does nothing else."""
    file = args.dir / "zenoh"
    listen: list[str] = []
    connect: list[str] = []
    if listens:
        # A free port: the listener is gone before Zenoh takes it, and nobody else is at the address.
        with socket.create_server((args.own, 0)) as free:
            port = free.getsockname()[1]
        file.write_text(str(port))
        listen.append(f"tcp/{args.own}:{port}")
    else:
        connect.append(f"tcp/{args.peer}:{file.read_text()}")
    config = zenoh.Config()
    for key, value in (("mode", "peer"), ("listen/endpoints", listen), ("connect/endpoints", connect),
                       ("scouting/multicast/enabled", False), ("scouting/gossip/enabled", False)):
        config.insert_json5(key, json.dumps(value))
    return zenoh.open(config)


class Zenoh(contract.RoundTrips):
    """The system."""

    def describe(self) -> dict[str, Any]:
        return contract.sleeping_round_trips(
            "zenoh", f"eclipse-zenoh {version('eclipse-zenoh')}", "its threads sleep whatever the application does")

    def open(self, args: argparse.Namespace, listens: bool, key: str) -> zenoh.Publisher:
        """A publisher that waits where a full queue would drop. The session lives as long as the process."""
        self.session = open_session(args, listens)
        return self.session.declare_publisher(key, congestion_control=zenoh.CongestionControl.BLOCK)

    def pinger(self, args: argparse.Namespace) -> Callable[[int], None]:
        publisher = self.open(args, False, QUESTIONS)
        answers = self.session.declare_subscriber(ANSWERS)
        deadline = time.monotonic() + MEETING_S
        while not publisher.matching_status:
            if time.monotonic() > deadline:
                raise SystemExit("the other end did not come")
            time.sleep(0.001)
        message, payload = bytearray(args.payload), args.payload

        def exchange(n: int) -> None:
            contract.stamp(message, n)
            publisher.put(message)
            contract.expect(answers.recv().payload.to_bytes(), payload, n)

        return exchange

    def echoer(self, args: argparse.Namespace) -> Callable[[], None]:
        publisher = self.open(args, True, ANSWERS)
        answer, payload = bytearray(args.payload), args.payload

        def echo(question: zenoh.Sample) -> None:
            contract.stamp(answer, contract.check(question.payload.to_bytes(), payload))
            publisher.put(answer)

        self.subscriber = self.session.declare_subscriber(QUESTIONS, echo)
        return lambda: time.sleep(1)


if __name__ == "__main__":
    contract.main(Zenoh())
