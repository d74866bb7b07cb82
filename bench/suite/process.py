"""Running the processes of one repetition by the contract of bench/README.md."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .cells import CROWDS, Cell
from .hosts import Hosts
from .machine import Cores

#: A process that says nothing for this long hangs. Not a judgement of speed: the repetition is void and counted.
SILENCE_S = 30.0
#: How long a process may take to end after its standard input closed.
FAREWELL_S = 5.0


class Void(Exception):
    """The repetition gave no figures, and why."""


#: What happens beside a cell's processes: entered before they begin, with their ids.
Beside = Callable[[list[int]], contextlib.AbstractContextManager[None]]


class Process:
    """One process of a repetition, and its lines."""

    def __init__(self, command: list[str], log: Path, nice: int) -> None:
        self.name = command[-1] if len(command) == 1 else " ".join(command[-3:])
        self.log = log
        self.is_ready = False
        self._buffer = b""
        with log.open("wb") as errors:
            self.popen = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                preexec_fn=(lambda: os.setpriority(os.PRIO_PROCESS, 0, nice)) if nice else None,
            )
        assert self.popen.stdin is not None and self.popen.stdout is not None, "both are asked for above"
        self._to, self._from = self.popen.stdin, self.popen.stdout

    def line(self, timeout: float) -> str:
        """The next line of its standard output."""
        deadline = time.monotonic() + timeout
        fd = self._from.fileno()
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise Void(f"{self.log.stem} said nothing for {timeout:.0f} s")
            chunk = os.read(fd, 65536)
            if not chunk:
                self.popen.wait(FAREWELL_S)
                raise Void(f"{self.log.stem} ended with status {self.popen.returncode}: {self._complaint()}")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode(errors="replace").strip()

    def _complaint(self) -> str:
        text = self.log.read_text(errors="replace").strip().splitlines()
        # What went wrong is Python's last line.
        text = text[-1:] if text[:1] == ["Traceback (most recent call last):"] else text
        return " | ".join(text[:6])[:400] or "no word on standard error"

    def await_ready(self) -> None:
        """Waits for its `ready`."""
        line = self.line(SILENCE_S)
        if line != "ready":
            raise Void(f"{self.log.stem} said '{line[:80]}' instead of 'ready'")
        self.is_ready = True

    def go(self, pids: list[int]) -> None:
        """Starts it."""
        try:
            self._to.write(("go " + " ".join(map(str, pids)) + "\n").encode())
            self._to.flush()
        except OSError as error:
            raise Void(f"{self.log.stem} is gone: {error}: {self._complaint()}") from error

    def result(self) -> dict[str, Any]:
        """Its result line."""
        line = self.line(SILENCE_S)
        try:
            return dict(json.loads(line))
        except (ValueError, TypeError) as error:
            raise Void(f"{self.log.stem}: no result in '{line[:80]}'") from error

    def close(self) -> None:
        """Tells it to end."""
        with contextlib.suppress(OSError):
            self._to.close()

    def reap(self) -> None:
        """Sees it off, by force if need be."""
        try:
            self.popen.wait(FAREWELL_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self._from.close()


def run_method(method: Path, what: str, pair: tuple[int, int], payload: int, amount: float, nice: int) -> dict[str, Any]:
    """One of the two spinning floors. `amount` is round trips or seconds."""
    command = [str(method), what, str(pair[0]), str(pair[1]), str(payload), f"{amount:g}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SILENCE_S,
            preexec_fn=(lambda: os.setpriority(os.PRIO_PROCESS, 0, nice)) if nice else None,
        )
        if done.returncode != 0:
            raise Void(f"floor: {done.stderr.strip()}")
        return dict(json.loads(done.stdout))
    except subprocess.TimeoutExpired as error:
        raise Void("floor: no answer") from error
    except ValueError as error:
        raise Void(f"floor: {error}") from error


def _roles(cell: Cell, cores: Cores) -> list[tuple[str, int, list[str]]]:
    """The processes in the order in which they start: role, core, further arguments. The last one is the active end."""
    a, b = cores.pair
    if cell.experiment == "rtt":
        return [("rtt-server", b, []), ("rtt-client", a, [])]
    if cell.experiment == "large":
        return [("large-sink", b, []), ("large-source", a, [])]
    if cell.experiment == "oneway":
        return [("oneway-sink", b, []), ("oneway-source", a, [])]
    if cell.experiment in ("open", "calls", "turns"):
        return [(cell.experiment, a, [])]
    if cell.experiment == "rebind":
        watched = ",".join(map(str, dict.fromkeys((a, b, *(cores.helpers or ())))))
        return [("rebind-sink", b, ["--watch", watched]), ("rebind-source", a, [])]
    if cell.experiment in CROWDS:
        each = range(cell.apps)
        return [("app-sink", b, ["--index", str(i)]) for i in each] + [("app-source", a, ["--index", str(i)]) for i in each]
    far = cell.placement == "veth"
    sinks = cores.for_far_sinks(cell.sinks) if far else cores.for_sinks(cell.sinks, cell.aux_core)
    return [("fanout-sink", core, ["--index", str(i)]) for i, core in enumerate(sinks)] + [("fanout-source", a, [])]


MEASURING = ("rtt-client", "large-source", "oneway-sink", "open", "fanout-sink", "fanout-source", "rebind-source",
             "rebind-sink", "app-sink", "calls", "turns")
#: The active ends, which are on the first host.
ACTIVE = ("rtt-client", "large-source", "oneway-source", "open", "calls", "turns", "fanout-source", "rebind-source",
          "app-source")
#: Of these there may be several, which do not need each other.
SEVERAL = ("fanout-sink", "app-sink", "app-source")


def used_cores(cell: Cell, cores: Cores) -> list[int]:
    """The cores of a repetition: the active end, the other ends, a helper with a core of its own."""
    roles = _roles(cell, cores)
    order = [roles[-1][1]] + [core for _, core, _ in roles[:-1]]
    unique = list(dict.fromkeys(order))
    if cell.experiment in CROWDS:
        return list(dict.fromkeys([*unique, *(core for _, many, _ in _helpers(cell, cores) for core in many)]))
    if cell.placement == "veth":
        return unique + (list(cores.helpers) if cell.aux and cores.helpers is not None else [])
    return unique + ([cores.aux] if cell.aux_core and cores.aux is not None else [])


def _polling(cell: Cell) -> int:
    """How many threads of the second host poll its kernel UDP."""
    return cell.sinks if cell.experiment == "threads" else 1


def _host(role: str, more: list[str]) -> int:
    """The host of a process of two; of helpers one is on the second."""
    return int(more[1] == "1") if role == "aux" else int(role not in ACTIVE)


def _helpers(cell: Cell, cores: Cores) -> list[tuple[str, tuple[int, ...], list[str]]]:
    """The helper processes, each with its cores, which start first: one, or one on each host that has any; of those of the
    first host, which share a core, one for each application that sends to several polling threads."""
    if not cell.aux:
        return []
    if cell.placement == "local":
        # A helper has a core of its own where there is one, even if it does not need it.
        return [("aux", (cores.aux if cores.aux is not None else cores.pair[1],), [])]
    if cell.experiment == "threads":
        (polling, own), sending = cores.for_polling(_polling(cell)), (cores.helpers or cores.pair)[:1]
        numbers = range(1 + cell.apps)
        return [("aux", polling if number == 1 else sending,
                 ["--index", str(number), *(["--alone"] if own and number == 1 else [])]) for number in numbers]
    alone = ["--alone"] if cores.helpers is not None else []
    return [("aux", (core,), ["--index", str(host), *alone]) for host, core in enumerate(cores.helpers or cores.pair)
            if cell.aux_host in (None, host)]


def run_cell(
    cell: Cell, command: list[str], cores: Cores, amounts: dict[str, float], nice: int, hosts: Hosts | None = None,
    beside: Beside | None = None,
) -> dict[str, Any]:
    """Runs all processes of one repetition, on `hosts` if the cell is placed on two. Gives the result lines by role; a
    fan-out has one per sink. `beside` is entered with the processes' ids before they begin, and left with their results."""
    if cell.placement == "veth" and hosts is None:
        raise Void("there are no two hosts")
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=shm if os.access(shm, os.W_OK) else None))
    shared = ["--dir", str(folder), "--payload", str(cell.payload), "--waiting", cell.waiting,
              "--variant", cell.variant, "--sinks", str(cell.apps), "--count", str(int(amounts["count"])),
              "--warmup", str(int(amounts["warmup"])), "--seconds", f"{amounts['seconds']:g}"]
    shared += ["--moves"] if cell.experiment == "rebind" else []
    helpers = _helpers(cell, cores)
    shared += ["--polling", str(_polling(cell)), "--helpers", str(len(helpers))] if cell.experiment in CROWDS else []
    roles = helpers + [(role, (core,), more) for role, core, more in _roles(cell, cores)]
    started: list[tuple[str, Process]] = []
    try:
        def gather() -> None:
            for _, process in started:
                if not process.is_ready:
                    process.await_ready()

        for number, (role, many, more) in enumerate(roles):
            # Each is ready before the next starts, except those that do not need each other.
            if role not in SEVERAL or role != roles[number - 1][0]:
                gather()
            line = [*command, role, "--core", ",".join(map(str, many)), *shared, *more]
            if cell.placement == "veth" and hosts is not None:
                host = _host(role, more)
                line = hosts.within(host, [*line, *hosts.arguments(host)])
            started.append((role, Process(line, folder / f"{role}-{number}.log", nice)))
            if role == "aux":
                gather()
        gather()
        pids = [process.popen.pid for _, process in started]
        results: dict[str, Any] = {}
        with beside(pids) if beside else contextlib.nullcontext():
            for _, process in started:
                process.go(pids)
            # The active end first: if it fails the others may have to wait for it in vain, and it knows why.
            for role, process in reversed(started):
                if role in MEASURING:
                    results.setdefault(role, []).append(process.result())
        return results
    finally:
        # The active ends stop first, so that nobody is left writing to somebody gone.
        active = [process for role, process in started if role in ACTIVE]
        for process in active:
            process.close()
        for process in active:
            process.reap()
        for _, process in reversed(started):
            process.close()
        for _, process in reversed(started):
            process.reap()
        if hosts is not None and cell.seldom:
            hosts.free_second_cable()
        shutil.rmtree(folder, ignore_errors=True)
        # Shared memory that a system left behind carries the folder's name, by contract.
        for left in shm.glob(folder.name + "*"):
            left.unlink(missing_ok=True)
