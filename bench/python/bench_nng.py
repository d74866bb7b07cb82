#!/usr/bin/env python3
"""NNG by pynng over TCP: round trips with Pair0 sockets."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import contract
import pynng

MEETING_MS = 20_000


class Nng(contract.RoundTrips):
    """The system."""

    def describe(self) -> dict[str, Any]:
        return contract.sleeping_round_trips(
            "nng", f"pynng {version('pynng')}", "its I/O threads sleep whatever the application does")

    def pinger(self, args: argparse.Namespace) -> Callable[[int], None]:
        # Waits for the connection, and for each answer no longer than MEETING_MS.
        socket = pynng.Pair0(dial=(args.dir / "nng").read_text(), block_on_dial=True, recv_timeout=MEETING_MS)
        message, payload = bytearray(args.payload), args.payload

        def exchange(n: int) -> None:
            contract.stamp(message, n)
            socket.send(bytes(message))
            contract.expect(socket.recv(), payload, n)

        return exchange

    def echoer(self, args: argparse.Namespace) -> Callable[[], None]:
        socket = pynng.Pair0(recv_timeout=MEETING_MS)
        listener = socket.listen(f"tcp://{args.own}:0")
        (args.dir / "nng").write_text(f"tcp://{listener.local_address}")
        answer, payload = bytearray(args.payload), args.payload

        def serve() -> None:
            contract.stamp(answer, contract.check(socket.recv(), payload))
            socket.send(bytes(answer))

        return serve


if __name__ == "__main__":
    contract.main(Nng())
