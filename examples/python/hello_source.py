"""Emits ten greetings to every sink of the channel "hello"."""

import insane

with insane.Session("hello source in Python") as session:
    source = session.stream().source("hello")
    if source.wait_for_sinks(1, timeout=10) < 1:
        raise SystemExit("no sink within ten seconds")
    for i in range(10):
        token = source.send(f"hello {i} from Python".encode())
    for _ in range(1000):
        if source.outcome(token).pending == 0:
            break
        source.wait_for_sinks(1000, timeout=0.005)  # a pause
