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
from insane._events import Event
from insane._native import (
    CODES,
    Buffer,
    Copies,
    Message,
    Outcome,
    Piece,
    Session,
    Sink,
    Source,
    Stream,
    WaitSet,
    __version__,
)

__all__ = [
    "CODES",
    "Buffer",
    "Closed",
    "Conflict",
    "ConnectionFailed",
    "Copies",
    "DataPathError",
    "Event",
    "InsaneError",
    "InvalidArgument",
    "Message",
    "NotAllowed",
    "Outcome",
    "Piece",
    "Session",
    "Sink",
    "Source",
    "Stream",
    "TimedOut",
    "WaitSet",
    "__version__",
    "messages",
    "receive",
    "stream_messages",
]


#: Who waits for which descriptor in which event loop.
_waiting: dict[tuple[asyncio.AbstractEventLoop, int], list[asyncio.Future[None]]] = {}


def _wake(loop: asyncio.AbstractEventLoop, fd: int) -> None:
    """A descriptor is readable: everybody who waits for it looks."""
    loop.remove_reader(fd)
    for future in _waiting.pop((loop, fd), []):
        if not future.done():
            future.set_result(None)


def _checked(sink: _native.Sink) -> _native.Sink:
    if not isinstance(sink, _native.Sink):
        raise TypeError(f"argument 'sink': it takes a Sink, not {type(sink).__name__}")
    return sink


async def receive(sink: _native.Sink) -> _native.Message:
    """Waits for the next message of a sink in the running event loop, without a thread: by the sink's own descriptor."""
    _checked(sink)
    loop = asyncio.get_running_loop()
    while True:
        message = sink.try_consume()
        if message is not None:
            return message
        fd = sink._fileno()
        if not sink._arm():
            continue
        future: asyncio.Future[None] = loop.create_future()
        others = _waiting.setdefault((loop, fd), [])
        others.append(future)
        if len(others) == 1:
            loop.add_reader(fd, _wake, loop, fd)
        try:
            await future
        finally:
            # Cancelled: the last one to leave takes the descriptor out of the loop.
            if future in others:
                others.remove(future)
            if not others and _waiting.get((loop, fd)) is others:
                del _waiting[(loop, fd)]
                loop.remove_reader(fd)


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
    _checked(sink)
    while True:
        try:
            message = sink.consume(timeout)
        except (Closed, TimedOut):
            return
        yield message
