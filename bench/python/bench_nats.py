#!/usr/bin/env python3
"""NATS by nats-py: round trips through a nats-server, which is the helper. Between two hosts the server is on the host of
the end that answers, so that a question crosses the cable once, and so does its answer.

Questions and answers are messages of two subjects, taken in the callbacks of two subscriptions.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import contract

TOOLS = Path(__file__).resolve().parent.parent.parent / "build" / "tools" / "bin"
#: How long an end waits for the other one or for an answer, and a helper for its server, in seconds.
MEETING_S = 20.0
QUESTIONS, ANSWERS = "bench.questions", "bench.answers"


def server() -> str:
    """The program, as scripts/setup builds it or as the host has it."""
    found = shutil.which("nats-server", path=os.pathsep.join((str(TOOLS), os.environ.get("PATH", ""))))
    if found is None:
        raise SystemExit("there is no nats-server; 'scripts/setup bench' builds it where Go is")
    return found


class Nats:
    """The system."""

    def describe(self) -> dict[str, Any]:
        said = subprocess.run([server(), "--version"], capture_output=True, text=True, timeout=20, check=True).stdout.split()
        return contract.sleeping_round_trips(
            "nats", f"nats-py {version('nats-py')}, nats-server {said[-1].removeprefix('v')}",
            "an event loop sleeps, and so does its server", aux_host=1)

    async def connect(self, args: argparse.Namespace) -> Any:
        """A connection to the helper's server, which says where it is in a file of its own."""
        import nats

        (ports,) = args.dir.glob("nats-server_*.ports")
        # What it lists is where it listens, as the server's own host sees it; its one address is the same from the other.
        return await nats.connect(json.loads(ports.read_text())["nats"][0], allow_reconnect=False)

    async def pinger(self, args: argparse.Namespace) -> Callable[[int], Awaitable[None]]:
        connection = await self.connect(args)
        loop, payload, message = asyncio.get_running_loop(), args.payload, bytearray(args.payload)
        answered: asyncio.Future[bytes] = loop.create_future()

        async def take(answer: Any) -> None:
            answered.set_result(answer.data)

        await connection.subscribe(ANSWERS, cb=take)
        await connection.flush()

        async def exchange(n: int) -> None:
            nonlocal answered
            answered = loop.create_future()
            contract.stamp(message, n)
            await connection.publish(QUESTIONS, bytes(message))
            contract.expect(await answered, payload, n)

        return exchange

    async def echoer(self, args: argparse.Namespace) -> None:
        connection = await self.connect(args)
        payload, message = args.payload, bytearray(args.payload)

        async def take(question: Any) -> None:
            contract.stamp(message, contract.check(question.data, payload))
            await connection.publish(ANSWERS, bytes(message))

        await connection.subscribe(QUESTIONS, cb=take)
        # The server knows of the subscription before anybody is told that this end is ready.
        await connection.flush()


def helper() -> None:
    """Becomes the server, so that its CPU time is charged; a child of it speaks the line protocol and ends it."""
    args = contract.parse(sys.argv[1:])
    os.sched_setaffinity(0, args.core)
    program, pid = server(), os.getpid()
    if os.fork() != 0:
        ctypes.CDLL(None).prctl(contract.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # Its output is the child's to write: lines of the protocol.
        os.dup2(2, 1)
        os.execv(program, [program, "--addr", args.own, "--port", "-1", "--ports_file_dir", str(args.dir)])
    # Goes with the server, and takes the server with it.
    ctypes.CDLL(None).prctl(contract.PR_SET_PDEATHSIG, signal.SIGKILL)
    ports, deadline = args.dir / f"nats-server_{pid}.ports", time.monotonic() + MEETING_S
    while not (ports.exists() and ports.read_text().rstrip().endswith("}")):
        if os.getppid() != pid:
            os._exit(1)
        if time.monotonic() > deadline:
            print("nats-server does not say where it listens", file=sys.stderr)
            os.kill(pid, signal.SIGKILL)
            os._exit(1)
        time.sleep(0.005)
    contract.say("ready")
    sys.stdin.read()
    os.kill(pid, signal.SIGTERM)
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["aux"]:
        helper()
    else:
        contract.main_async(Nats())
