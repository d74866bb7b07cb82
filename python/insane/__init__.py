"""INSANE for Python: name the data, state the QoS.

Messages cross between processes without a copy; `memoryview(message)` reads them where they lie.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from insane import _native
from insane._errors import (
    Closed,
    Conflict,
    ConnectionFailed,
    DataPathError,
    InsaneError,
    InvalidArgument,
    NotAllowed,
    TimedOut,
)
from insane._native import CODES, Buffer, Message, Outcome, Session, Sink, Source, Stream, __version__

__all__ = [
    "CODES",
    "Buffer",
    "Closed",
    "Conflict",
    "ConnectionFailed",
    "DataPathError",
    "InsaneError",
    "InvalidArgument",
    "Message",
    "NotAllowed",
    "Outcome",
    "Session",
    "Sink",
    "Source",
    "Stream",
    "TimedOut",
    "__version__",
    "messages",
    "receive",
    "stream_messages",
]


async def receive(sink: _native.Sink) -> _native.Message:
    """Waits for the next message of a sink in the running event loop."""
    loop = asyncio.get_running_loop()
    while True:
        ready: asyncio.Future[None] = loop.create_future()

        def done(ready: asyncio.Future[None] = ready) -> None:
            if not ready.done():
                ready.set_result(None)

        def wake(done: object = done) -> None:
            loop.call_soon_threadsafe(done)  # type: ignore[arg-type]

        message = sink._poll(wake)
        if message is not None:
            return message
        await ready


async def stream_messages(sink: _native.Sink) -> AsyncIterator[_native.Message]:
    """Yields the messages of a sink in the running event loop until the sink is closed."""
    while True:
        try:
            message = await receive(sink)
        except Closed:
            return
        yield message


def messages(sink: _native.Sink, timeout: float | None = None) -> Iterator[_native.Message]:
    """Yields the messages of a sink until it is closed or none comes within `timeout` seconds."""
    while True:
        try:
            message = sink.consume(timeout)
        except (Closed, TimedOut):
            return
        yield message
