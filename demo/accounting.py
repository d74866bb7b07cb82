"""Reconciles what INSANE counted with what the applications counted themselves."""

from __future__ import annotations

from collections.abc import Iterator

from common import Run

AT_SOURCE = ("sink_full", "dropped", "expired", "unconfirmed")
"""The counts that end a message at the source's end of a flow."""
AT_SINK = ("delivered", "expired", "sink_closed", "invalid", "sink_full", "unconfirmed", "dropped")
"""Those that end it at the sink's end; of a sink on another host they are in the network's cells of the source's runtime."""


def _cells(status: Run, source: str, sink: str) -> Iterator[Run]:
    cells = [c for s in status["sessions"] for c in s["counters"]] + status["ended"]
    return (c for c in cells if c["source"] == source and c["sink"] == sink)


def counted(status: Run, source: str, sink: str) -> Run:
    """What a runtime's report has of the messages of one source for one sink: intended, and in which counts they ended."""
    ends: dict[str, int] = {}
    intended = 0
    for cell in _cells(status, source, sink):
        counts = cell["counts"]
        if cell["end"] == "producing":
            intended += counts.get("intended", 0)
        for name in AT_SOURCE if cell["end"] == "producing" else AT_SINK:
            if counts.get(name):
                ends[name] = ends.get(name, 0) + counts[name]
    return {"intended": intended, "ends": ends}


def holds(account: Run) -> bool:
    """Whether every message that was meant for the sink is in exactly one count."""
    return bool(account["intended"] == sum(account["ends"].values()))


def disagreements(accounts: list[Run], emitted: int, out_of_view: int) -> list[str]:
    """What does not agree: the dApp's own counts, INSANE's, and those of the xApps (`seen`)."""
    found = []
    for a in accounts:
        name, ends = a["name"], a["ends"]
        if not holds(a):
            found.append(f"{name}: {a['intended']} intended, but {sum(ends.values())} in a count: {ends}")
        # What the sink took in its runtime's last moment may not have been told to the source's host.
        unknown = ends.get("unconfirmed", 0)
        delivered = ends.get("delivered", 0)
        if not delivered <= a["seen"] <= delivered + unknown:
            found.append(f"{name}: saw {a['seen']}, but {delivered} are delivered and {unknown} unconfirmed")
    missed = sum(emitted - a["intended"] for a in accounts)
    if missed != out_of_view:
        found.append(f"the sinks' counts lack {missed} of the emitted, the dApp saw a sink out of view {out_of_view} times")
    return found


def line(account: Run, emitted: int) -> str:
    """An account in words."""
    ends = ", ".join(f"{name} {account['ends'].get(name, 0)}" for name in ("delivered", "dropped", "sink_full"))
    rest = {k: v for k, v in account["ends"].items() if k not in ("delivered", "dropped", "sink_full", "unconfirmed")}
    ends += "".join(f", {k} {v}" for k, v in rest.items()) + f", unconfirmed {account['ends'].get('unconfirmed', 0)}"
    view = emitted - account["intended"]
    return (
        f"  {account['name']}: emitted {emitted}, out of view {view}, intended {account['intended']} = {ends}; "
        f"it saw {account['seen']}"
    )
