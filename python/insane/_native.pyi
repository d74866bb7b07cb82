"""The native half of the package. All calls may be made from any thread unless they say otherwise."""

import builtins
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Self, final

from typing_extensions import Buffer as ReadableBuffer

from insane._events import Event

CODES: dict[str, int]
__version__: str

@final
class Session:
    """An application's connection to the runtime of its host. Closing it closes its sources and sinks."""

    def __new__(cls, app: str, *, domain: str | None = None, socket: str | PathLike[str] | None = None) -> Self:
        """Opens a session; blocks for the runtime's answer, at most five seconds."""
    @property
    def id(self) -> str: ...
    @property
    def domain(self) -> str: ...
    def stream(self, name: str = "", *, qos: str = "", strict: bool = False) -> Stream:
        """Opens a stream; `qos` such as "reliability=reliable"; without a name it is made of the QoS."""
    def report(self, what: str) -> str:
        """A report of the runtime as JSON text: "status" or "doctor"."""
    def events(self) -> list[Event]:
        """Takes the events that came since the last call: number, name, and what has happened in words; of a stream also
        `stream`, `peer`, and `moved_us`, the pause in microseconds of a move to another datapath that is over. Never blocks.

        1 RuntimeLost, 2 RuntimeBack, 3 QosChanged, 4 PeerLost, 5 PeerBroken, 6 SinkGivenUp, 7 QosRefused,
        8 StreamRefused."""
    def counts(self) -> list[dict[str, Any]]:
        """The counts of this session's flows."""
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@final
class Stream:
    """A named set of quality requirements."""

    @property
    def name(self) -> str: ...
    def effective_qos(self) -> list[tuple[str, str, str, str, list[str]]]:
        """(peer, datapath, transport, QoS served, reasons for downgrades) for each peer."""
    def source(
        self,
        channel: str | int,
        *,
        message_bytes: int = 1024,
        deadline: float = 1.0,
        fail_when_full: bool = False,
        timestamps: bool = False,
        priority: int = 0,
    ) -> Source:
        """Opens the producing end of a channel; `deadline` in seconds is for reliable streams.

        Raises DataPathError (NoBuffer) when what the session's streams have in use leaves too little of its memory
        (`quota.memory_mib_per_session`) for one message of `message_bytes`."""
    def sink(
        self,
        channel: str | int,
        *,
        wait: Literal["adaptive", "spin", "sleep"] = "adaptive",
        observer: bool = False,
        scattered: bool = False,
    ) -> Sink:
        """Opens the consuming end of a channel.

        The sinks of a stream in one session share its links: one that takes nothing has half of one, and loses what
        comes then alone (best effort); reliable sources wait for the slowest.

        With `scattered` a message of 1024 bytes or more of another host comes as the pieces in which its frames arrived,
        where the datapath has it so: see `Message.pieces`. What reads several as one costs a copy, once a message."""

@final
class Outcome:
    """How many intended sinks of a message are in each state. Of sinks of other hosts, best effort, losses are counted and
    not named: a message is said to be delivered once as many have ended as were emitted before and with it."""

    intended: int
    pending: int
    delivered: int
    dropped: int
    expired: int
    unconfirmed: int

@final
class Copies:
    """What was copied of a `scattered` sink's messages by user code of this host. Small messages are not counted.

    `scattered` messages were left in the frames in which they came, in so many `pieces` together."""

    scattered: int
    pieces: int
    runtime: int
    here: int

@final
class Source:
    """The producing end of a channel."""

    @property
    def epoch(self) -> str: ...
    @property
    def channel(self) -> int: ...
    @property
    def sinks(self) -> int: ...
    def wait_for_sinks(self, count: int = 1, timeout: float = 5.0) -> int:
        """Waits until `count` sinks are in the source's view; returns how many are."""
    def wait_for_room(self, timeout: float = 5.0) -> None:
        """Waits until a message of up to the source's `message_bytes` emitted now would be dropped by no sink."""
    def send(self, data: ReadableBuffer, *, more: bool = False) -> int:
        """Copies bytes into a buffer and emits it; returns the token.

        With `more` it says that more follows at once: messages of up to 2048 bytes may wait for each other and share a
        slot, and sinks that sleep are woken later. End such a batch without `more`, or with `flush`."""
    def buffer(self, size: int) -> Buffer:
        """Borrows memory for a message, to be written through a memoryview."""
    def emit(self, buffer: Buffer, length: int | None = None, *, more: bool = False) -> int:
        """Emits a buffer, or its first `length` bytes; returns the token. Its views must be released before.

        `more` is as for `send`."""
    def flush(self) -> None:
        """Sends what waits for more, and wakes the sinks that have messages of a batch. Never blocks."""
    def outcome(self, token: int) -> Outcome: ...
    def close(self) -> None: ...

@final
class Buffer:
    """A message's memory to be written: supports the buffer protocol. For one thread at a time."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def discard(self) -> None:
        """Gives the memory back without emitting it."""

@final
class Message:
    """A consumed message: supports the buffer protocol, read-only. For one thread at a time.

    A forked child cannot read it, not even through a view that was made before: the memory is not there."""

    @property
    def sequence(self) -> int: ...
    @property
    def channel(self) -> int: ...
    @property
    def source(self) -> str: ...
    @property
    def timestamp_ns(self) -> int | None: ...
    @property
    def priority(self) -> int: ...
    @property
    def copies(self) -> int:
        """How often user code of this host has copied the payload; known if the sink is `scattered`, else 0."""
    def pieces(self) -> builtins.list[Piece]:
        """The pieces in which the payload lies, in order: one, unless the sink is `scattered`. Copies nothing."""
    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def release(self) -> None:
        """Gives the memory back; its views must be released before."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@final
class Piece:
    """Bytes of a message that lie in one place: supports the buffer protocol, read-only. It keeps the message."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class WaitSet:
    """Several sinks that one thread or one event loop serves, with one descriptor.

    In an event loop of your own: `arm()` until it is true, wait for `fileno()` to become readable, then `ready()`."""

    def __new__(cls) -> WaitSet: ...
    def add(self, sink: Sink) -> None:
        """Adds a sink. One that is closed is reported as ready once more, and then removed."""
    def remove(self, sink: Sink) -> None:
        """Removes a sink."""
    def __len__(self) -> int: ...
    def fileno(self) -> int:
        """The descriptor; valid as long as the set."""
    def arm(self) -> bool:
        """Whether the descriptor becomes readable when something comes; if not, something is there now."""
    def ready(self) -> list[Sink]:
        """The sinks that have a message, in turns. Never blocks."""
    def wait(self, timeout: float | None = None) -> list[Sink]:
        """Waits until a sink has a message, at most `timeout` seconds, and returns all that have one."""

class Sink:
    """The consuming end of a channel."""

    @property
    def id(self) -> str: ...
    @property
    def channel(self) -> int: ...
    @property
    def wait(self) -> str: ...
    @property
    def copies(self) -> Copies: ...
    def try_consume(self) -> Message | None:
        """Takes the next message if there is one. Never blocks."""
    def consume(self, timeout: float | None = None) -> Message:
        """Takes the next message; waits for one at most `timeout` seconds, for ever without."""
    def _fileno(self) -> int: ...
    def _arm(self) -> bool: ...
    def close(self) -> None: ...

@final
class TrafficClient:
    """A client of traffic control; `insane.tc.Client` gives it types. What is nested is JSON text."""

    def __new__(
        cls, session: Session, prefix: str, *, timeout: float = 2.0, wait: Literal["adaptive", "spin", "sleep"] | None = None
    ) -> Self: ...
    def list(self) -> builtins.list[tuple[int, int]]:
        """The bearers: RNTI and id."""
    def show(self, rnti: int, drb: int) -> str:
        """A pipeline and its state."""
    def change(self, rnti: int, drb: int, changes: str, generation: int | None = None) -> int:
        """Changes stages, all or none; returns the pipeline's new generation."""
    def load(
        self, rnti: int, drb: int, pipeline: str, drop_packets: bool = False, generation: int | None = None
    ) -> int:
        """Puts a whole pipeline, a preset's name or a file's text, in the place of the one that is there."""
    def timing(self) -> tuple[int, int, int, int]:
        """When the last request was sent, taken, done, and its reply here, in nanoseconds of CLOCK_MONOTONIC."""
    def subscribe(self, bearers: builtins.list[tuple[int, int]], period: float, lease: float) -> TrafficSubscription:
        """Asks for indications, of all bearers without any; times in seconds."""

@final
class TrafficSubscription:
    """Indications, as long as `next` is called."""

    @property
    def restarts(self) -> int: ...
    def next(self, timeout: float = 1.0) -> str:
        """Waits for the next indication; renews the subscription on the way."""
    def close(self) -> None: ...
