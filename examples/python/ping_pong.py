"""A round trip between two processes: the answer is the question. ping_pong.py [ROUNDS [adaptive|spin|sleep]]."""

import os
import sys
import time

import insane

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
wait = sys.argv[2] if len(sys.argv) > 2 else "adaptive"

if os.fork() == 0:
    with insane.Session("pong in Python") as session:
        stream = session.stream()
        sink = stream.sink("py/ping", wait=wait)  # type: ignore[arg-type]
        source = stream.source("py/pong")
        source.wait_for_sinks(1, timeout=10)
        for _ in range(rounds):
            message = sink.consume(10)
            source.send(message)
            message.release()
        time.sleep(0.1)  # the last answer lies in this process's memory
    os._exit(0)

with insane.Session("ping in Python") as session:
    stream = session.stream()
    sink = stream.sink("py/pong", wait=wait)  # type: ignore[arg-type]
    source = stream.source("py/ping")
    source.wait_for_sinks(1, timeout=10)
    payload = bytes(64)
    times = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        source.send(payload)
        sink.consume(10).release()
        times.append(time.perf_counter_ns() - start)
    times.sort()
    median, p99 = times[rounds // 2] / 1000, times[rounds - 1 - rounds // 100] / 1000
    print(f"{rounds} round trips of 64 bytes, {wait}: median {median:.2f} us, p99 {p99:.2f} us")
os.wait()
