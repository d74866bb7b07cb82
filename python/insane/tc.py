"""Control of traffic pipelines: what an xApp needs to show, change and watch the pipelines of a RAN.

    with insane.Session("xapp") as session:
        client = tc.Client(session)
        bearer = client.bearers()[0]
        for indication in client.indications(period=0.005):
            if indication.bearers[bearer].rlc.head_sojourn_ns > 10e6:
                client.change(bearer, tc.modify("pacer", type="5g-bdp"))
                break

Names, units and values of stages are those of the pipeline file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from insane import _native
from insane._errors import InsaneError

__all__ = [
    "Bearer",
    "Change",
    "Client",
    "Indication",
    "Queue",
    "Refused",
    "Rlc",
    "State",
    "Subscription",
    "add",
    "delete",
    "modify",
]

Stage = Literal["filter", "policer", "queue", "scheduler", "shaper", "pacer", "limit"]


class Refused(InsaneError):
    """The server refused a request, and nothing was changed; `outcome` says what kind of refusal it is."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(_native.CODES["InvalidArgument"], "InvalidArgument", f"{outcome}: {reason}")
        self.outcome = outcome
        self.reason = reason

    def __reduce__(self) -> tuple[type[Refused], tuple[str, str]]:  # type: ignore[override]
        """Crosses to other processes whole."""
        return type(self), (self.outcome, self.reason)


class Bearer(NamedTuple):
    """A bearer's name."""

    rnti: int
    drb: int


@dataclass(frozen=True)
class Rlc:
    """The RLC of a bearer in one direction, in the names of the RLC service model."""

    rxsdu_pkts: int
    rxsdu_dd_pkts: int
    txbuf_occ_bytes: int
    txbuf_occ_pkts: int
    txpdu_pkts: int
    txpdu_bytes: int
    txpdu_segmented: int
    txpdu_retx_pkts: int
    txpdu_wt_ns: int
    head_sojourn_ns: int


@dataclass(frozen=True)
class Queue:
    """What a queue counts, in tc's names."""

    id: int
    kind: str
    bytes: int
    packets: int
    drops: int
    overlimits: int
    requeues: int
    backlog: int
    qlen: int
    maxpacket: int
    avg_sojourn_ns: int
    last_sojourn_ns: int
    xstats: dict[str, Any]
    police: dict[str, Any] | None = None
    shaper: dict[str, Any] | None = None


@dataclass(frozen=True)
class State:
    """What a bearer counts at one instant. Of many queues some are left out."""

    bearer: Bearer
    time_ns: int
    generation: int
    queues: dict[int, Queue]
    rlc: Rlc
    uplink_rlc: Rlc
    left_out: int
    #: Everything that the pipeline counts, by tc's names.
    pipeline: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Indication:
    """Statistics at one instant. `late` periods had none, `dropped` ones found no room here, both so far.

    Times are nanoseconds of CLOCK_MONOTONIC, the first two of the server's host."""

    number: int
    late: int
    dropped: int
    taken_ns: int
    sent_ns: int
    received_ns: int
    bearers: dict[Bearer, State]


@dataclass(frozen=True)
class Change:
    """One change of one stage; `add`, `modify` and `delete` make them."""

    action: Literal["add", "modify", "delete"]
    stage: Stage
    id: int = 0
    spec: dict[str, object] | None = None
    drop_packets: bool = False
    remove_references: bool = False


def add(stage: Stage, id: int, **spec: object) -> Change:
    """Adds a filter, a queue, or the policer or shaper of queue `id`."""
    return Change("add", stage, id, spec)


def modify(stage: Stage, id: int = 0, **spec: object) -> Change:
    """Gives a stage other parameters, or makes it one of another kind."""
    return Change("modify", stage, id, spec)


def delete(stage: Stage, id: int = 0, *, drop_packets: bool = False, remove_references: bool = False) -> Change:
    """Deletes a stage that nothing needs. Packets of a queue go to queue 0 unless dropped; with `remove_references` who
    names a queue forgets it."""
    return Change("delete", stage, id, None, drop_packets, remove_references)


def _state(raw: dict[str, Any]) -> State:
    pipeline = raw["pipeline"]
    return State(
        bearer=Bearer(raw["bearer"]["rnti"], raw["bearer"]["drb"]),
        time_ns=raw["time_ns"],
        generation=pipeline["generation"],
        queues={q["id"]: Queue(**q) for q in pipeline["queues"]},
        rlc=Rlc(**raw["rlc"]),
        uplink_rlc=Rlc(**raw["uplink_rlc"]),
        left_out=raw["left_out"],
        pipeline=pipeline,
    )


class Subscription:
    """Indications: they come as long as `next` is called, and end a lease after it is not any more."""

    def __init__(self, native: _native.TrafficSubscription) -> None:
        self._native = native

    def next(self, timeout: float = 1.0) -> Indication:
        """Waits for the next indication, at most `timeout` seconds. A server that starts anew is found again."""
        raw = json.loads(self._native.next(timeout))
        del raw["missing"]
        raw["bearers"] = {state.bearer: state for state in map(_state, raw["bearers"])}
        return Indication(**raw)

    @property
    def restarts(self) -> int:
        """How often the server started anew; pipelines are then as that one began."""
        return self._native.restarts

    def close(self) -> None:
        """Ends it."""
        self._native.close()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """A client of the server whose channels are below `prefix`. A call waits `timeout` seconds at most."""

    def __init__(
        self,
        session: _native.Session,
        prefix: str = "ranlab",
        *,
        timeout: float = 2.0,
        wait: Literal["adaptive", "spin", "sleep"] = "adaptive",
    ) -> None:
        self._native = _native.TrafficClient(session, prefix, timeout=timeout, wait=wait)

    def bearers(self) -> list[Bearer]:
        """The bearers that there are."""
        return [Bearer(*bearer) for bearer in self._native.list()]

    def pipeline(self, bearer: Bearer) -> dict[str, Any]:
        """A pipeline, as its file has it."""
        shown: dict[str, Any] = json.loads(self._native.show(*bearer))
        pipeline: dict[str, Any] = shown["pipeline"]
        return pipeline

    def state(self, bearer: Bearer) -> State:
        """What a bearer counts now."""
        return _state(json.loads(self._native.show(*bearer))["state"])

    def change(self, bearer: Bearer, *changes: Change, generation: int | None = None) -> int:
        """Makes these changes, all or none; if a generation is given, only of that pipeline. Returns the new one."""
        text = json.dumps([vars(change) for change in changes])
        return self._native.change(*bearer, text, generation)

    def load(self, bearer: Bearer, pipeline: str, *, drop_packets: bool = False, generation: int | None = None) -> int:
        """Puts a preset, or a pipeline file's text, in the place of the pipeline. Returns the new generation."""
        return self._native.load(*bearer, pipeline, drop_packets, generation)

    def subscribe(self, *bearers: Bearer, period: float = 0.005, lease: float = 1.0) -> Subscription:
        """Asks for an indication each `period` seconds, of all bearers without any."""
        return Subscription(self._native.subscribe([(b.rnti, b.drb) for b in bearers], period, lease))

    def indications(self, *bearers: Bearer, period: float = 0.005, timeout: float = 1.0) -> Iterator[Indication]:
        """Yields indications for ever; `TimedOut` when none comes for `timeout` seconds."""
        with self.subscribe(*bearers, period=period) as subscription:
            while True:
                yield subscription.next(timeout)

    def timing(self) -> Sequence[int]:
        """When the last request was sent, taken and done, and its reply here: nanoseconds of CLOCK_MONOTONIC."""
        return self._native.timing()
