"""The contract of bench/README.md for Python programs: command line, line protocol, payload rules, loops."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

#: Where the distribution is kept: parts per 100 000, as in harness/src/summary.rs.
CDF_POINTS = (
    0, 1000, 5000, 10000, 15000, 20000, 25000, 30000, 35000, 40000, 45000, 50000, 55000, 60000, 65000, 70000, 75000,
    80000, 85000, 90000, 95000, 98000, 99000, 99500, 99900, 99990, 100000,
)
ROLES = ("rtt-server", "rtt-client", "oneway-source", "oneway-sink", "fanout-source", "fanout-sink", "large-source",
         "large-sink", "open", "aux", "describe")
PR_SET_PDEATHSIG = 1


class Ends(Protocol):
    """What a system offers; each is called once and gives a function that the loop calls per message."""

    def describe(self) -> dict[str, Any]: ...
    def pinger(self, args: argparse.Namespace) -> Callable[[int], None]: ...
    def echoer(self, args: argparse.Namespace) -> Callable[[], None]: ...
    def producer(self, args: argparse.Namespace) -> Callable[[int], None]: ...
    def consumer(self, args: argparse.Namespace) -> Callable[[], int]: ...


class RoundTrips:
    """The ends that a system of round trips alone does not have."""

    def producer(self, args: argparse.Namespace) -> Callable[[int], None]:
        raise SystemExit("only round trips")

    def consumer(self, args: argparse.Namespace) -> Callable[[], int]:
        raise SystemExit("only round trips")


class AsyncEnds(Protocol):
    """As [`Ends`], of a system of round trips whose calls are coroutines. The event loop is the process's own."""

    def describe(self) -> dict[str, Any]: ...
    async def pinger(self, args: argparse.Namespace) -> Callable[[int], Awaitable[None]]: ...

    async def echoer(self, args: argparse.Namespace) -> None:
        """Sets the echo up; it answers for as long as the event loop runs."""


def sleeping_round_trips(system: str, version: str, reason: str, aux_host: int | None = None) -> dict[str, Any]:
    """What a system says that only sleeps, over TCP, and why; round trips of 64 bytes on one host and between two. With
    `aux_host` it needs a helper, on that one of two hosts."""
    modes = [{"experiment": "rtt", "waiting": "sleep", "variant": "", "transport": "reliable", "aux": aux_host is not None,
              "aux_core": False, "placement": placement, "payloads": [64]} for placement in ("local", "veth")]
    for mode in modes if aux_host is not None else []:
        mode["aux_host"] = aux_host
    absent = [{"experiment": "*", "waiting": waiting, "reason": reason} for waiting in ("spin", "adaptive")]
    return {"system": system, "language": "python", "version": version, "modes": modes, "absent": absent}


def stamp(message: bytearray, n: int) -> None:
    """Fills the whole message for number `n`: every byte its low byte, the first eight the number itself."""
    message[:] = bytes((n & 0xFF,)) * len(message)
    message[:8] = n.to_bytes(8, "little")


def check(message: memoryview | bytes | bytearray, payload: int) -> int:
    """Copies every byte out, checks both ends of the message and returns its number."""
    data = bytes(message)
    if len(data) != payload:
        raise SystemExit(f"a message of {len(data)} bytes where {payload} were sent")
    n = int.from_bytes(data[:8], "little")
    if payload > 8 and data[-1] != n & 0xFF:
        raise SystemExit(f"message {n} was damaged")
    return n


def expect(message: memoryview | bytes | bytearray, payload: int, n: int) -> None:
    """As [`check`], of the answer to message `n`."""
    if check(message, payload) != n:
        raise SystemExit(f"an answer to another message than {n}")


def cpu_ns(pids: list[int]) -> int:
    """CPU time of processes so far, by their POSIX CPU-time clocks (clock_getcpuclockid(3))."""
    return sum(time.clock_gettime_ns((~pid << 3) | 2) for pid in pids)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="One process of one repetition; see bench/README.md")
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--core", type=lambda text: [int(core) for core in text.split(",")], default=[0])
    parser.add_argument("--dir", type=Path, default=Path())
    parser.add_argument("--payload", type=int, default=64)
    parser.add_argument("--waiting", choices=("spin", "adaptive", "sleep"), default="spin")
    parser.add_argument("--variant", default="")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--warmup", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--sinks", type=int, default=1)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--placement", choices=("local", "veth"), default="local")
    parser.add_argument("--own", default="127.0.0.1")
    parser.add_argument("--peer", default="127.0.0.1")
    parser.add_argument("--alone", action="store_true")
    args = parser.parse_args(arguments)
    if args.payload < 8 or args.payload % 8:
        parser.error("--payload is not a multiple of 8")
    if args.count < 1 or args.warmup < 0 or not args.seconds > 0 or args.sinks < 1:
        parser.error("--count, --warmup, --seconds and --sinks must be positive")
    return args


def host(args: argparse.Namespace) -> int:
    """Which of two hosts this process is on: 0 is that of the active end."""
    if args.placement == "local":
        return 0
    return args.index if args.role == "aux" else int(args.role in ("rtt-server", "oneway-sink", "fanout-sink", "large-sink"))


def say(line: str) -> None:
    """One line to the orchestrator."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def await_go() -> list[int]:
    """Waits for `go`; from then on the process ends when its standard input closes."""
    words = sys.stdin.readline().split()
    if not words:
        os._exit(0)
    if words[0] != "go":
        raise SystemExit(f"expected 'go PID…' on standard input, got '{words[0]}'")

    def watch() -> None:
        while sys.stdin.readline():
            pass
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    return [int(word) for word in words[1:]]


def begin(ends: Ends | AsyncEnds) -> argparse.Namespace | None:
    """The start of every program: its command line, its cores, its end with its parent's. `None` if it only had to describe
    itself."""
    args = parse(sys.argv[1:])
    if args.role == "describe":
        say(json.dumps(ends.describe()))
        return None
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.sched_setaffinity(0, args.core)
    sys.setswitchinterval(0.1)
    return args


def main(ends: Ends) -> None:
    """The whole of a Python system program."""
    args = begin(ends)
    if args is None:
        return
    if args.role == "rtt-server":
        serve = ends.echoer(args)
        say("ready")
        await_go()
        while True:
            serve()
    elif args.role == "rtt-client":
        exchange = ends.pinger(args)
        say("ready")
        ask(args, await_go(), exchange)
    elif args.role in ("oneway-source", "fanout-source"):
        send = ends.producer(args)
        say("ready")
        produce(args, await_go(), send)
    elif args.role in ("oneway-sink", "fanout-sink"):
        receive = ends.consumer(args)
        say("ready")
        consume(args, await_go(), receive)
    else:
        raise SystemExit(f"this system has no role {args.role}")


def main_async(ends: AsyncEnds) -> None:
    """The whole of a program whose system has coroutines. Nothing but `go` is waited for outside of the event loop."""
    args = begin(ends)
    if args is None:
        return

    async def run() -> None:
        if args.role == "rtt-server":
            await ends.echoer(args)
            say("ready")
            await_go()
        elif args.role == "rtt-client":
            exchange = await ends.pinger(args)
            say("ready")
            await ask_async(args, await_go(), exchange)
        else:
            raise SystemExit(f"this system has no role {args.role}")
        await asyncio.Event().wait()

    asyncio.run(run())


def report(samples: list[int], elapsed: int, cpu: int) -> None:
    """The result line of round trips, all in ns."""
    samples.sort()

    def at(part: int) -> int:
        return samples[min(len(samples) * part // 100_000, len(samples) - 1)]

    say(json.dumps({
        "samples": len(samples), "elapsed_ns": elapsed, "cpu_ns": cpu, "min_ns": samples[0],
        "median_ns": at(50_000), "p99_ns": at(99_000), "p999_ns": at(99_900), "max_ns": samples[-1],
        "cdf_ns": [at(part) for part in CDF_POINTS],
    }))


def ask(args: argparse.Namespace, pids: list[int], exchange: Callable[[int], None]) -> None:
    """Round trips: measures and reports."""
    for n in range(1, args.warmup + 1):
        exchange(n)
    clock, samples, n = time.perf_counter_ns, [], args.warmup
    cpu, start = cpu_ns(pids), clock()
    limit = start + int(args.seconds * 1e9)
    end = start
    while len(samples) < args.count and end < limit:
        n += 1
        begin = clock()
        exchange(n)
        end = clock()
        samples.append(end - begin)
    report(samples, end - start, cpu_ns(pids) - cpu)
    threading.Event().wait()


async def ask_async(args: argparse.Namespace, pids: list[int], exchange: Callable[[int], Awaitable[None]]) -> None:
    """As [`ask`], awaiting each round trip in the loop that the system runs in: nothing is put between the two."""
    for n in range(1, args.warmup + 1):
        await exchange(n)
    clock, samples, n = time.perf_counter_ns, [], args.warmup
    cpu, start = cpu_ns(pids), clock()
    limit = start + int(args.seconds * 1e9)
    end = start
    while len(samples) < args.count and end < limit:
        n += 1
        begin = clock()
        await exchange(n)
        end = clock()
        samples.append(end - begin)
    report(samples, end - start, cpu_ns(pids) - cpu)


def produce(args: argparse.Namespace, pids: list[int], send: Callable[[int], None]) -> None:
    """Sends until told to stop; in a fan-out it charges the CPU time."""
    n = 0
    if args.role == "fanout-source":
        while n < args.warmup:
            send(n)
            n += 1
        cpu, start, first = cpu_ns(pids), time.perf_counter_ns(), n
        while time.perf_counter_ns() - start < args.seconds * 1e9:
            for _ in range(64):
                send(n)
                n += 1
        elapsed = time.perf_counter_ns() - start
        say(json.dumps({"samples": n - first, "elapsed_ns": elapsed, "cpu_ns": cpu_ns(pids) - cpu, "lost": 0}))
    while True:
        send(n)
        n += 1


def consume(args: argparse.Namespace, pids: list[int], receive: Callable[[], int]) -> None:
    """Receives until told to stop; reports once its window is over."""
    received = 0
    while received <= args.warmup:
        last = receive()
        received += 1
    cpu, start = cpu_ns(pids) if args.role == "oneway-sink" else 0, time.perf_counter_ns()
    first, taken, limit = last, 0, int(args.seconds * 1e9)
    while True:
        for _ in range(64):
            n = receive()
            if n <= last:
                raise SystemExit(f"message {n} came again or out of order, after {last}")
            last = n
        taken += 64
        elapsed = time.perf_counter_ns() - start
        if elapsed >= limit:
            break
    result = {"samples": taken, "elapsed_ns": elapsed, "lost": last - first - taken}
    if args.role == "oneway-sink":
        result["cpu_ns"] = cpu_ns(pids) - cpu
    say(json.dumps(result))
    while True:
        receive()
