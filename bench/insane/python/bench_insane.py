#!/usr/bin/env python3
"""INSANE through its Python package: round trips. The helper process is that of bench-insane."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(BENCH / "python"), str(BENCH / "target" / "python")]

import contract  # noqa: E402

MEETING_S = 20.0


class Insane(contract.RoundTrips):
    """The system."""

    def describe(self) -> dict[str, Any]:
        import insane

        modes = [{"experiment": "rtt", "waiting": waiting, "variant": "", "transport": transport, "aux": True,
                  "aux_core": False, "placement": placement}
                 for placement, transport in (("local", "shm"), ("veth", "datagram"))
                 for waiting in ("spin", "adaptive", "sleep")]
        return {"system": "insane", "language": "python", "version": insane.__version__, "modes": modes, "absent": []}

    def stream(self, args: argparse.Namespace) -> Any:
        """A stream of the default QoS. The session lives as long as the process."""
        import insane

        name = "insane-1.sock" if contract.host(args) else "insane.sock"
        self.session = insane.Session("bench", socket=str(args.dir / name))
        return self.session.stream()

    def pinger(self, args: argparse.Namespace) -> Callable[[int], None]:
        stream = self.stream(args)
        sink = stream.sink("answers", wait=args.waiting)
        source = stream.source("questions")
        if source.wait_for_sinks(1, timeout=MEETING_S) < 1:
            raise SystemExit("the other end did not come")
        message, payload = bytearray(args.payload), args.payload

        def exchange(n: int) -> None:
            contract.stamp(message, n)
            source.send(message)
            with sink.consume(timeout=MEETING_S) as answer:
                contract.expect(answer, payload, n)

        return exchange

    def echoer(self, args: argparse.Namespace) -> Callable[[], None]:
        stream = self.stream(args)
        sink = stream.sink("questions", wait=args.waiting)
        answer, payload = bytearray(args.payload), args.payload
        source: Any = None

        def serve() -> None:
            nonlocal source
            with sink.consume() as question:
                if source is None:
                    source = stream.source("answers")
                    if args.placement != "local" and source.wait_for_sinks(1, timeout=MEETING_S) < 1:
                        raise SystemExit("nobody is there for answers")
                contract.stamp(answer, contract.check(question, payload))
                source.send(answer)

        return serve


if __name__ == "__main__":
    if sys.argv[1:2] == ["aux"]:
        program = str(BENCH / "target" / "release" / "bench-insane")
        os.execv(program, [program, *sys.argv[1:]])
    contract.main(Insane())
