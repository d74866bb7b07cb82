"""Prints ten messages of the channel "hello"."""

import insane

with insane.Session("hello sink in Python") as session:
    sink = session.stream().sink("hello")
    for _ in range(10):
        with sink.consume(timeout=10) as message:
            print(bytes(message).decode())
