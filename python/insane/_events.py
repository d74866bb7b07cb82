"""What the library tells of its own accord."""

from __future__ import annotations


class Event(tuple[int, str, str]):
    """An event: its number, its name, and what has happened in words; and what it is about, for programs."""

    #: The stream's name, if it is about one.
    stream: str | None
    #: QosChanged and QosRefused: the host's name, or `local`.
    peer: str | None
    #: QosChanged: what the session emits on the stream has moved to the datapath that the words name, for this peer; for so
    #: many microseconds at most messages waited for that. When a move begins the event comes with None.
    moved_us: int | None

    def __new__(
        cls,
        number: int,
        name: str,
        text: str,
        stream: str | None = None,
        peer: str | None = None,
        moved_us: int | None = None,
    ) -> Event:
        event = super().__new__(cls, (number, name, text))
        event.stream, event.peer, event.moved_us = stream, peer, moved_us
        return event
