"""What is known of the machine, which cores are used, and the CPU latency knob."""

from __future__ import annotations

import contextlib
import os
import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KNOB = Path("/dev/cpu_dma_latency")


@dataclass(frozen=True)
class Cores:
    """Who runs where. `pair` is the two ends; `aux` a helper with a core of its own, where there is one."""

    pair: tuple[int, int]
    aux: int | None
    sinks: tuple[int, ...]
    orchestrator: tuple[int, ...]

    @property
    def helpers(self) -> tuple[int, int] | None:
        """With two hosts, the cores of their helpers where each has one of its own."""
        spare = [core for core in self.sinks if core not in self.pair]
        return (spare[0], spare[1]) if len(spare) >= 2 else None

    def for_far_sinks(self, count: int) -> list[int]:
        """The core of each sink of a fan-out between two hosts: in turns those that neither the source nor a helper has."""
        taken = self.helpers or ()
        usable = [c for c in self.sinks if c not in taken] or [self.pair[1]]
        return [usable[i % len(usable)] for i in range(count)]

    def for_polling(self, count: int) -> tuple[tuple[int, ...], bool]:
        """With two hosts, the cores of the second one's helper, of which `count` threads poll besides the one that they poll
        for, and whether each of these has a core to itself."""
        if self.helpers is None:
            return (self.pair[1],), False
        usable = tuple(core for core in self.sinks if core not in self.pair)[1:2 + count]
        return usable, len(usable) == 1 + count

    def for_sinks(self, count: int, aux_taken: bool) -> list[int]:
        """The core of each fan-out sink: in turns, the pair's second core first, never the source's."""
        usable = [c for c in self.sinks if not (aux_taken and c == self.aux)] or [self.pair[1]]
        return [usable[i % len(usable)] for i in range(count)]


def first_siblings(allowed: list[int], siblings: dict[int, frozenset[int]]) -> list[int]:
    """One logical CPU of each physical core."""
    taken: set[int] = set()
    chosen = []
    for cpu in allowed:
        if cpu not in taken:
            chosen.append(cpu)
            taken |= siblings.get(cpu, frozenset({cpu}))
    return chosen


def choose_cores(allowed: list[int], siblings: dict[int, frozenset[int]], wanted: tuple[int, int] | None) -> Cores:
    """Picks the pair from the upper end (lower cores take interrupts), on two physical cores if there are two."""
    allowed = sorted(allowed)
    if len(allowed) < 2:
        raise SystemExit("bench: two cores are needed, this process may use " + ", ".join(map(str, allowed)))
    if wanted is not None:
        missing = [c for c in wanted if c not in allowed]
        if missing or wanted[0] == wanted[1]:
            raise SystemExit(f"bench: --cores {wanted[0]},{wanted[1]}: two different cores out of {allowed} are needed")
    physical = first_siblings(allowed, siblings)
    if len(physical) < 2:
        physical = allowed
    pair = wanted or (physical[-2], physical[-1])
    spare = [c for c in physical if c not in pair]
    aux = spare[-1] if spare else None
    rest = tuple(c for c in allowed if c not in pair and c != aux)
    return Cores(pair, aux, (pair[1], *reversed(spare)), rest or tuple(c for c in allowed if c not in pair) or pair)


def read_siblings(allowed: list[int]) -> dict[int, frozenset[int]]:
    """The hardware threads that share a core, from sysfs."""
    found = {}
    for cpu in allowed:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        with contextlib.suppress(OSError, ValueError):
            found[cpu] = frozenset(parse_cpu_list(path.read_text()))
    return found


def parse_cpu_list(text: str) -> list[int]:
    """`0-2,5` to `[0, 1, 2, 5]`."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def _first_line(path: str) -> str | None:
    try:
        return Path(path).read_text().strip().splitlines()[0]
    except (OSError, IndexError):
        return None


def facts() -> dict[str, object]:
    """The machine, as rows are read beside it."""
    cpu = None
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    flags = _first_line("/proc/cpuinfo") and "hypervisor" in Path("/proc/cpuinfo").read_text()
    idle = Path("/sys/devices/system/cpu/cpuidle")
    return {
        "cpu": cpu,
        "logical_cpus": os.cpu_count(),
        "usable_cpus": sorted(os.sched_getaffinity(0)),
        "virtual": bool(flags),
        "kernel": platform.release(),
        "idle_governor": _first_line(str(idle / "current_governor")),
        "clock_source": _first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average": list(os.getloadavg()),
        "knob_available": knob_available(),
    }


def knob_available() -> bool:
    """Whether this process may hold the CPU latency knob."""
    return os.access(KNOB, os.W_OK)


@contextlib.contextmanager
def knob(held: bool) -> Iterator[None]:
    """Holds the CPU latency knob at 0 µs within the block. The kernel lets go of it when the file is closed."""
    if not held:
        yield
        return
    with KNOB.open("wb", buffering=0) as device:
        device.write(struct.pack("i", 0))
        yield
