#!/usr/bin/env python3
"""ZeroMQ by pyzmq over TCP: round trips with PAIR sockets."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import contract
import zmq

MEETING_MS = 20_000


class ZeroMq(contract.RoundTrips):
    """The system."""

    def describe(self) -> dict[str, Any]:
        return contract.sleeping_round_trips(
            "zeromq", f"pyzmq {zmq.pyzmq_version()}, libzmq {zmq.zmq_version()}",
            "its I/O threads sleep whatever the application does")

    def socket(self) -> Any:
        """A socket that gives up when nothing comes for long. The context lives as long as the process."""
        self.context = zmq.Context()
        socket = self.context.socket(zmq.PAIR)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, MEETING_MS)
        return socket

    def pinger(self, args: argparse.Namespace) -> Callable[[int], None]:
        socket = self.socket()
        socket.connect((args.dir / "zeromq").read_text())
        message, payload = bytearray(args.payload), args.payload

        def exchange(n: int) -> None:
            contract.stamp(message, n)
            socket.send(message)
            contract.expect(socket.recv(), payload, n)

        return exchange

    def echoer(self, args: argparse.Namespace) -> Callable[[], None]:
        socket = self.socket()
        port = socket.bind_to_random_port(f"tcp://{args.own}")
        (args.dir / "zeromq").write_text(f"tcp://{args.own}:{port}")
        answer, payload = bytearray(args.payload), args.payload

        def serve() -> None:
            contract.stamp(answer, contract.check(socket.recv(), payload))
            socket.send(answer)

        return serve


if __name__ == "__main__":
    contract.main(ZeroMq())
