"""What is measured: a cell is one system doing one thing in one way; a round is all cells once, in shuffled order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .machine import Cores
from .systems import System

WAITING_CLASSES = ("spin", "adaptive", "sleep")
EXPERIMENTS = ("rtt", "oneway", "fanout", "large", "open", "rebind", "apps", "threads", "calls", "turns")
#: What is made of others' cells: see added.py.
DERIVED = ("added",)
#: On one host, or between two: see hosts.py.
PLACEMENTS = ("local", "veth")
LARGE_BYTES = 128 << 20
#: Several applications on each of two hosts: their number differs, or that of the threads that poll for always as many.
CROWDS = ("apps", "threads")
THREADS_APPS = 3
#: Who is measured at every count of sinks; the others show the first and the last.
EVERY_COUNT = ("insane", "iceoryx2", "aeron")
#: Past the kernel's network stack, between two hosts: who does so alone, and the variants of INSANE that do.
BARE = ("af-xdp", "dpdk")
BYPASS = ("xdp", "dpdk-memif", "dpdk-af-packet", "dpdk-af-xdp", "xdp-scattered", "dpdk-af-packet-scattered", "xdp-polled",
          "dpdk-memif-polled", "dpdk-af-packet-polled", "dpdk-af-xdp-polled")


def polled(variant: str) -> str:
    """The variant of INSANE over the same datapath in which each end polls for its own runtime: two cores are enough."""
    return f"{variant}-polled".lstrip("-")


@dataclass(frozen=True)
class Cell:
    """One row of measurements in the making."""

    experiment: str
    key: str
    system: str
    language: str
    transport: str
    waiting: str
    variant: str
    payload: int
    sinks: int
    knob: bool
    aux: bool = False
    aux_core: bool = False
    placement: str = "local"
    #: Which of two hosts its only helper is on; `None`: one on each.
    aux_host: int | None = None

    @property
    def label(self) -> str:
        """For people."""
        name = self.system + (f"/{self.language}" if self.language == "python" else "")
        name += f" {self.variant}" if self.variant else ""
        fan = f" ×{self.sinks}" if self.experiment in ("fanout", *CROWDS) else ""
        where = "" if self.placement == "local" else f"{self.placement} "
        return f"{self.experiment} {where}{self.payload} B{fan} {name} {self.waiting}{' knob' if self.knob else ''}"

    @property
    def seldom(self) -> bool:
        """Whether a full run measures it in some of the rounds only: opening an interface or DPDK takes long."""
        bypass = self.key in BARE or self.variant in BYPASS or self.experiment in ("fanout", "rebind", *CROWDS)
        return self.placement == "veth" and bypass

    @property
    def apps(self) -> int:
        """How many applications there are on each host."""
        return THREADS_APPS if self.experiment == "threads" else self.sinks

    @property
    def floor_key(self) -> tuple[str, int]:
        """Which spinning floor stands beside it."""
        if self.experiment in ("oneway", "fanout", *CROWDS):
            return ("oneway", self.payload)
        return ("rtt", self.payload if self.experiment == "rtt" else 64)

    @property
    def is_method_floor(self) -> bool:
        """Whether this cell is one of the two spinning floors, measured by the method itself."""
        return self.system == "floor" and self.waiting == "spin" and self.experiment in ("rtt", "oneway")


@dataclass(frozen=True)
class Extent:
    """How much of everything is measured."""

    name: str
    rtt_payloads: tuple[int, ...]
    oneway_payloads: tuple[int, ...]
    fanout_sinks: tuple[int, ...]
    knob_everywhere: bool
    min_rounds: int
    max_rounds: int
    retries: int
    budget_s: float
    window_s: float
    large_count: int
    veth_rtt_payloads: tuple[int, ...] = (64,)
    veth_oneway_payloads: tuple[int, ...] = (64, 1024, 8192, 65536)
    #: Between two hosts only these: experiment, system, waiting, variant. `None`: all.
    veth_chosen: tuple[tuple[str, str, str, str], ...] | None = None
    #: Systems that are measured between two hosts only.
    not_local: tuple[str, ...] = ()
    #: Whether modes are measured with the payloads that they name besides, too.
    also: bool = False
    #: Applications that share a polling thread, and polling threads that share a host's load.
    apps: tuple[int, ...] = (1, 2, 4, 8)
    threads: tuple[int, ...] = (1, 2, 3)
    #: What is measured seldom is so in every so many rounds, from the first on.
    seldom_every: int = 1


FULL = Extent("full", (64, 1024, 8192), (64, 1024), (1, 2, 4, 6, 8), True, 5, 15, 2, 1080, 0.30, 8, also=True,
              seldom_every=2)
#: A few cells between two hosts, for the bars that matter most; three rounds stay within the budget.
QUICK_VETH = (
    ("rtt", "insane", "adaptive", ""), ("rtt", "insane", "sleep", ""), ("rtt", "udp", "sleep", ""),
    ("rtt", "insane", "spin", "polled"), ("rtt", "insane", "adaptive", "polled"), ("rtt", "udp", "spin", ""),
    ("rtt", "zeromq", "sleep", ""), ("rtt", "zenoh", "sleep", ""), ("rtt", "floor", "sleep", "chain-2"),
    ("rtt", "floor", "sleep", "chain-6"), ("rtt", "floor", "adaptive", "relay"),
    ("oneway", "floor", "adaptive", "relay-gso"),
    ("oneway", "insane", "adaptive", ""), ("oneway", "insane", "adaptive", "reliable"),
    ("oneway", "udp", "sleep", "gso"), ("oneway", "zeromq", "sleep", ""), ("oneway", "zenoh", "sleep", ""),
    ("rtt", "insane", "adaptive", "xdp"), ("rtt", "af-xdp", "adaptive", ""), ("rebind", "insane", "adaptive", ""),
    ("apps", "insane", "adaptive", "xdp-paced"), ("threads", "insane", "adaptive", ""),
)
#: Python's peers on one host are a full run's.
QUICK = Extent("quick", (64,), (64, 1024), (1, 4, 8), False, 3, 5, 1, 230, 0.20, 4, (64,), (1024,), QUICK_VETH,
               ("zeromq-python", "zenoh-python", "pynng", "nats-python"), apps=(1, 8), threads=(1, 3))


def _shapes(experiment: str, extent: Extent, placement: str) -> Iterable[tuple[int, int]]:
    """(payload, sinks) of an experiment."""
    if experiment == "rebind":
        return [(1024, 1)]
    if experiment in CROWDS:
        return [(1024, count) for count in (extent.apps if experiment == "apps" else extent.threads)]
    if placement == "veth" and experiment != "fanout":
        payloads = extent.veth_rtt_payloads if experiment == "rtt" else extent.veth_oneway_payloads
        return [(payload, 1) for payload in payloads]
    if experiment == "rtt":
        return [(payload, 1) for payload in extent.rtt_payloads]
    if experiment == "oneway":
        return [(payload, 1) for payload in extent.oneway_payloads]
    if experiment == "fanout":
        return [(1024, sinks) for sinks in extent.fanout_sinks]
    if experiment == "large":
        return [(LARGE_BYTES, 1)]
    return [(64, 1)]


def _counts(key: str, variant: str, sinks: int, extent: Extent) -> bool:
    """Whether a fan-out to so many sinks is measured. The curve is drawn for shared memory as it is meant to be used."""
    return sinks in (extent.fanout_sinks[0], extent.fanout_sinks[-1]) or (key in EVERY_COUNT and not variant)


def _knobs(
    experiment: str, waiting: str, payload: int, extent: Extent, available: bool, placement: str
) -> list[bool]:
    """Off always; on where sleeping plays a part, and for every class of the main experiments in a full run. Between two
    hosts it is off."""
    if not available or placement != "local" or experiment in ("large", "open", "calls", "turns"):
        return [False]
    if experiment == "rtt" and payload == 64 and (waiting != "spin" or extent.knob_everywhere):
        return [False, True]
    if experiment == "oneway" and extent.knob_everywhere:
        return [False, True]
    if experiment == "fanout" and waiting == "sleep" and extent.knob_everywhere:
        return [False, True]
    return [False]


def _no_room(mode: dict[str, object], placement: str, cores: Cores) -> str | None:
    """Why a mode that needs more cores cannot run here."""
    aux_core = bool(mode.get("aux_core", False))
    if mode.get("four_cores") and cores.helpers is None:
        return "it needs four cores, for both ends and both runtimes, to spin; this machine has fewer"
    if aux_core and placement == "veth" and cores.helpers is None:
        return "its helper on each host needs a core of its own, this machine has fewer than four"
    if aux_core and cores.aux is None:
        return "its helper needs a third core, this machine has two"
    return None


def cells_of(
    system: System, extent: Extent, only: list[str] | None, cores: Cores, knob_available: bool,
    placements: Iterable[str] = PLACEMENTS,
) -> tuple[list[Cell], list[str]]:
    """The cells of one system, and notes on modes that this machine has no room for."""
    cells: list[Cell] = []
    notes: list[str] = []
    name, language = str(system.describe["system"]), str(system.describe["language"])
    modes = list(system.modes)
    if system.key == "floor":
        modes += [{"experiment": e, "waiting": "spin", "variant": "", "transport": "shm"} for e in ("rtt", "oneway")]
    for mode in modes:
        experiment, waiting, variant = str(mode["experiment"]), str(mode["waiting"]), str(mode.get("variant", ""))
        placement = str(mode.get("placement", "local"))
        if experiment not in EXPERIMENTS or waiting not in WAITING_CLASSES or placement not in PLACEMENTS:
            notes.append(f"{system.key}: a mode with experiment '{experiment}', waiting '{waiting}' and placement "
                         f"'{placement}' is not known")
            continue
        if (only is not None and experiment not in only) or placement not in placements:
            continue
        if placement == "local" and system.key in extent.not_local:
            continue
        chosen = extent.veth_chosen
        if placement == "veth" and chosen is not None and (experiment, system.key, waiting, variant) not in chosen:
            continue
        aux_core = bool(mode.get("aux_core", False))
        gap = _no_room(mode, placement, cores)
        if gap is not None:
            what = f"{experiment} {variant} {waiting}".replace("  ", " ") if mode.get("four_cores") else variant or waiting
            note = f"{system.key} {what}: {gap}"
            if note not in notes:
                notes.append(note)
            continue
        most = int(str(mode.get("most_bytes", 0)))
        alone = mode.get("payloads")
        host = mode.get("aux_host")
        also = mode.get("also") if extent.also else None
        shapes = list(_shapes(experiment, extent, placement))
        shapes += [(int(str(payload)), 1) for payload in also] if isinstance(also, list) else []
        for payload, sinks in shapes:
            if most and payload > most:
                notes.append(f"{system.key} {experiment} {placement} {payload} B: it carries at most {most} bytes")
                continue
            if isinstance(alone, list) and payload not in alone:
                continue
            if experiment == "fanout" and placement == "local" and not _counts(system.key, variant, sinks, extent):
                continue
            for held in _knobs(experiment, waiting, payload, extent, knob_available, placement):
                spoken = "c" if system.key == "floor" and mode not in system.modes else language
                cells.append(
                    Cell(experiment, system.key, name, spoken, str(mode.get("transport", "")), waiting, variant,
                         payload, sinks, held, bool(mode.get("aux", False)), aux_core, placement,
                         None if host is None else int(str(host)))
                )
    return cells, notes
