#!/usr/bin/env python3
"""UDP in plain Python, one datagram per message."""

from __future__ import annotations

import argparse
import select
import socket
import time
from collections.abc import Callable
from typing import Any

import contract

SOCKET_BUFFER = 8 << 20
SO_RCVBUFFORCE = 33
ADAPTIVE_SPIN_S = 50e-6


class Port:
    """A socket and its way of waiting."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, SOCKET_BUFFER)
        except PermissionError:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER)
        self.socket.bind((args.own, 0))
        self.payload = args.payload
        self.buffer = bytearray(args.payload)
        self.waiting = args.waiting
        self.socket.setblocking(args.waiting == "sleep")

    def tell(self, args: argparse.Namespace, index: int) -> None:
        """Leaves the port for the other end."""
        (args.dir / f"port-{index}").write_text(str(self.socket.getsockname()[1]))

    def connect(self, args: argparse.Namespace, index: int) -> None:
        """Connects to an end that is ready."""
        self.socket.connect((args.peer, int((args.dir / f"port-{index}").read_text())))

    def receive(self) -> int:
        """The number of the next message."""
        since = None
        while True:
            try:
                return contract.check(memoryview(self.buffer)[: self.socket.recv_into(self.buffer)], self.payload)
            except BlockingIOError:
                if self.waiting != "adaptive":
                    continue
                now = time.perf_counter()
                since = since or now
                if now - since > ADAPTIVE_SPIN_S:
                    select.select([self.socket], [], [])
                    since = None

    def send(self, message: bytearray) -> None:
        """Sends one message, waiting for room."""
        while True:
            try:
                self.socket.send(message)
                return
            except BlockingIOError:
                continue


class Udp:
    """The system."""

    def describe(self) -> dict[str, Any]:
        pairs = [("rtt", "local"), ("oneway", "local"), ("rtt", "veth")]
        modes = [{"experiment": experiment, "waiting": waiting, "variant": "", "transport": "datagram", "aux": False,
                  "aux_core": False, "placement": placement}
                 for experiment, placement in pairs for waiting in ("spin", "adaptive", "sleep")]
        return {"system": "udp", "language": "python", "version": "kernel", "modes": modes, "absent": []}

    def pinger(self, args: argparse.Namespace) -> Callable[[int], None]:
        port = Port(args)
        port.connect(args, 0)
        message = bytearray(args.payload)

        def exchange(n: int) -> None:
            contract.stamp(message, n)
            port.send(message)
            if port.receive() != n:
                raise SystemExit(f"an answer to another message than {n}")

        return exchange

    def echoer(self, args: argparse.Namespace) -> Callable[[], None]:
        port = Port(args)
        port.tell(args, 0)
        answer = bytearray(args.payload)
        connected = False

        def serve() -> None:
            nonlocal connected
            if not connected:
                port.socket.setblocking(True)
                port.socket.connect(port.socket.recvfrom(1, socket.MSG_PEEK)[1])
                port.socket.setblocking(args.waiting == "sleep")
                connected = True
            contract.stamp(answer, port.receive())
            port.send(answer)

        return serve

    def producer(self, args: argparse.Namespace) -> Callable[[int], None]:
        port = Port(args)
        port.connect(args, 0)
        message = bytearray(args.payload)

        def send(n: int) -> None:
            contract.stamp(message, n)
            port.send(message)

        return send

    def consumer(self, args: argparse.Namespace) -> Callable[[], int]:
        port = Port(args)
        port.tell(args, args.index)
        return port.receive


if __name__ == "__main__":
    contract.main(Udp())
