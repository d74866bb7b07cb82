"""The report for people: `report.md`."""

from __future__ import annotations

from typing import Any

from .added import NAMES
from .bars_crowd import per_million
from .bars_kinds import Verdict
from .cells import CROWDS, THREADS_APPS
from .measure import TURNS
from .profile import Profile
from .profile import table as profile_table

HEADS = {
    "rtt": "Round trip", "oneway": "One-way, the sink reading every byte", "fanout": "Fan-out, per sink",
    "large": "One message of 128 MiB, filled, sent and read", "open": "Opening",
    "rebind": "The longest pause at a sink while its stream moves from one datapath to another",
    "calls": "A client's calls: a message sent and taken by one thread",
    "turns": "A round trip in turns: both applications and both runtimes in one thread",
    "added": "What INSANE adds to a packet in one direction, and of what that is made",
    "apps": "Applications that share one polling thread on each host",
    "threads": f"What {THREADS_APPS} applications receive by 1, 2 and more polling threads of one datapath",
}
#: What is to be known of these tables.
WORDS = {
    "calls":
        "Both ends are one thread of one process, which sends a run of messages and then takes them: nothing comes from "
        "another core, nobody waits and nobody is woken.",
    "turns":
        "One thread is both applications and gives both runtimes their turns: nothing comes from another core, nobody "
        "waits and nobody is woken. Client: the calls of a direction. In the sending runtime's turn the kernel's sending "
        "is included, in the receiving one's its receiving; each is a whole look at everything, of which one that finds "
        "nothing takes what the next column says. Bare: two UDP sockets on the loopback interface, over which UDP goes "
        "here. Idle-1000: with 1,000 other channels in each direction, on which nothing goes on.",
    "added":
        "All of one round. Added is half of INSANE's round trip less half of that of the bare technology, which is the "
        "last column: driver and wire. Client: the calls that send and take a message, by one thread. Link: the rest of "
        "two link hops, each half of the local spinning round trip: from core to core, and the runtimes' ends. Runtime: "
        "what is left, with who waits for whom where ends and runtimes share cores or sleep.",
    "apps":
        "Each application of the first host sends to one of the second, on a channel of its own. CPU seconds are user "
        "and system time per million messages: of both hosts' runtimes, which poll, and of all applications. Paced ones "
        "send 20,000 messages a second each.",
    "threads":
        "Kernel UDP of the receiving host's one runtime has so many polling threads, each of which receives what some hosts "
        "send; they hand it to one network thread. What is sent is always the same, by a runtime for each application. "
        "On fewer cores than the threads and the applications need, they share them: then nothing can be gained.",
}

PROFILE_WORDS = (
    "INSANE's cells once more, under perf. Of all samples of a cell's processes, those of threads of one name: in the "
    "kernel, and that by the system calls that it was in; the rest by whose code it was. In percent; parts below 2 are left "
    "out. Who waits by looking again and again is sampled doing so."
)


def quantity(value: float | None, unit: str) -> str:
    """A figure as people read it."""
    if value is None:
        return "–"
    if unit == "msgs/s":
        if value >= 1e6:
            return f"{value / 1e6:.2f} M"
        return f"{value / 1e3:.1f} k" if value >= 1e3 else f"{value:.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _cell_key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[f] for f in ("system", "language", "variant", "knob"))


def _name(row: dict[str, Any]) -> str:
    return " ".join(word for word in (row["system"], row["variant"]) if word) + f" ({row['language']})"


def _by_cell(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, dict[str, Any]]]:
    """What belongs on one line of a table: the rows of a cell, by metric."""
    cells: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((*_cell_key(row), row["sinks"]), {})[row["metric"]] = row
    return cells


def _interval(row: dict[str, Any]) -> str:
    """A median with its interval, in the row's unit."""
    median, low, high = (quantity(row[field], row["unit"]) for field in ("median", "low", "high"))
    return f"{median} [{low}–{high}]"


def _table(rows: list[dict[str, Any]], experiment: str) -> list[str]:
    """One table: a system per line, best first."""
    cells = _by_cell(rows)
    rate = experiment in ("oneway", "fanout")
    main = "msgs_per_s" if rate else "median_us"
    order = sorted(cells.values(), key=lambda m: m[main]["median"], reverse=rate)
    if rate:
        out = ["| system | knob | messages/s | Gbit/s | × reference | loss % | CPU ns per message | runs (discarded) |",
               "| --- | --- | --: | --: | --: | --: | --: | --: |"]
    elif experiment == "rtt":
        out = ["| system | knob | median µs | p99 µs | p99.9 µs | × reference | CPU ns per message | runs (discarded) |",
               "| --- | --- | --: | --: | --: | --: | --: | --: |"]
    else:
        out = ["| system | knob | median µs | Gbit/s | × reference | CPU ns per message | runs (discarded) |",
               "| --- | --- | --: | --: | --: | --: | --: |"]
    for metrics in order:
        row = metrics[main]

        def show(metric: str, interval: bool = False, metrics: dict[str, Any] = metrics) -> str:
            found = metrics.get(metric)
            if found is None:
                return "–"
            return _interval(found) if interval else quantity(found["median"], found["unit"])

        cpu = quantity(row["cpu_per_msg"], "ns")
        runs = f"{row['runs']} ({row['discarded']})"
        head = f"| {_name(row)} | {row['knob']} | {show(main, True)} |"
        if rate:
            out.append(f"{head} {show('gbit_per_s')} | {show('ratio_to_floor', True)} | {row['loss'] * 100:.2g} | "
                       f"{cpu} | {runs} |")
        elif experiment == "rtt":
            out.append(f"{head} {show('p99_us')} | {show('p999_us')} | {show('ratio_to_floor', True)} | {cpu} | {runs} |")
        else:
            out.append(f"{head} {show('gbit_per_s')} | {show('ratio_to_floor', True)} | {cpu} | {runs} |")
    return out


def _crowd_table(rows: list[dict[str, Any]], experiment: str) -> list[str]:
    """One table: a number of applications or polling threads per line."""
    counted = "applications" if experiment == "apps" else "polling threads"
    out = [f"| system | {counted} | messages/s | Gbit/s | CPU s per million: polling | applications | loss % | cores | "
           "runs (discarded) |", "| --- | --: | --: | --: | --: | --: | --: | --- | --: |"]
    for _, metrics in sorted(_by_cell(rows).items()):
        row = metrics["msgs_per_s"]
        cpu = " | ".join(quantity(per_million(metrics[name]["median"]), "s") for name in ("polling_cpu_ns", "apps_cpu_ns"))
        out.append(f"| {_name(row)} | {row['sinks']} | {_interval(row)} | "
                   f"{quantity(metrics['gbit_per_s']['median'], 'Gbit/s')} | {cpu} | {row['loss'] * 100:.2g} | "
                   f"{' '.join(map(str, row['cores']))} | {row['runs']} ({row['discarded']}) |")
    return out


def _added_table(rows: list[dict[str, Any]], _: str) -> list[str]:
    """One table: a datapath per line."""
    out = ["| system | beside | added µs | client | link | runtime | the bare one's µs | runs |",
           "| --- | --- | --: | --: | --: | --: | --: | --: |"]
    for metrics in _by_cell(rows).values():
        row = metrics["added_us"]
        middle = " | ".join(quantity(metrics[f"{name}_us"]["median"], "us") for name in NAMES[1:])
        out.append(f"| {_name(row)} | {row['reference']} | {_interval(row)} | {middle} | {row['runs']} |")
    return out


def _calls_table(rows: list[dict[str, Any]], _: str) -> list[str]:
    """One table: a system per line."""
    out = ["| system | sent in ns | taken and released in ns | runs (discarded) |", "| --- | --: | --: | --: |"]
    for metrics in _by_cell(rows).values():
        row = metrics["send_ns"]
        told = " | ".join(map(_interval, (row, metrics["consume_ns"])))
        out.append(f"| {_name(row)} | {told} | {row['runs']} ({row['discarded']}) |")
    return out


def _turns_table(rows: list[dict[str, Any]], _: str) -> list[str]:
    """One table: a datapath per line."""
    out = ["| system | round trip µs | client ns | sending turn | receiving turn | idle turn | bare send | receive | runs "
           "(discarded) |", "| --- | --: | --: | --: | --: | --: | --: | --: | --: |"]
    for metrics in _by_cell(rows).values():
        row = metrics["median_us"]
        told = " | ".join(quantity(metrics[name]["median"], "ns") for name in TURNS)
        out.append(f"| {_name(row)} | {_interval(row)} | {told} | {row['runs']} ({row['discarded']}) |")
    return out


#: Who makes the tables of an experiment, if not the table of all.
TABLES = {"added": _added_table, "calls": _calls_table, "turns": _turns_table} | dict.fromkeys(CROWDS, _crowd_table)


def make_report(
    machine: dict[str, Any], rows: list[dict[str, Any]], verdicts: list[Verdict], plots: list[str],
    profiles: list[Profile] | None = None,
) -> str:
    """The whole report in Markdown."""
    run = machine["run"]
    out = ["# Comparison with peers", ""]
    out.append(
        f"{machine['cpu']}, {machine['logical_cpus']} CPUs{' (virtual)' if machine['virtual'] else ''}, kernel "
        f"{machine['kernel']}, load {machine['load_average'][0]:.2f} at the start. Pair of cores {run['pair']}, seed "
        f"{run['seed']}, {run['rounds']} rounds in {run['seconds']:.0f} s ({run['extent']}), {run['discarded']} "
        f"repetitions discarded because their two floors differed by more than {run['drift_percent']:g} %, "
        f"{run['failed']} failed."
    )
    out += ["", "Figures are medians over repetitions with a 95 % bootstrap interval in brackets; a difference inside "
            "the interval is a tie. Spinning, adaptive and sleeping ends never share a table. `×` is the median of "
            "per-repetition ratios to the table's reference. CPU is the time of all processes of a repetition.", ""]
    out += ["## Bars", "", "| what | bar | measured | verdict |", "| --- | --- | --- | --- |"]
    out += [f"| {v.what} | {v.bar} | {v.measured} | **{v.verdict}** |" for v in verdicts]
    out += ["", "## Absent", ""]
    gone = [f"- **{key}**: {reason}" for key, reason in machine["absent"].items()]
    out += gone + [f"- {note}" for note in machine["notes"]] or ["Nothing."]
    out.append("")
    tables: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = tuple(row[f] for f in ("experiment", "placement", "payload_bytes", "sinks", "waiting"))
        if row["experiment"] in CROWDS:
            # One table shows how it goes with their number.
            key = (*key[:3], 0, key[4])
        tables.setdefault(key, []).append(row)
    for experiment, head in HEADS.items():
        mine = {key: value for key, value in tables.items() if key[0] == experiment}
        if not mine:
            continue
        out += [f"## {head}", "", *([WORDS[experiment], ""] if experiment in WORDS else [])]
        out += [line for plot in plots if plot.startswith(experiment) for line in (f"![{plot}]({plot})", "")]
        for (_, placement, payload, sinks, waiting), found in sorted(mine.items(), key=lambda item: str(item[0])):
            where = ", between two hosts" if placement == "veth" else ""
            fan = f", {sinks} sink{'s' if sinks > 1 else ''}" if experiment == "fanout" else ""
            reference = next((r["reference"] for r in found if r["reference"] and experiment != "added"), None)
            out += [f"### {payload} B{fan}, {waiting}{where}" + (f" (reference: {reference})" if reference else ""), ""]
            out += [*TABLES.get(experiment, _table)(found, experiment), ""]
    if profiles:
        out += ["## Where the time goes", "", PROFILE_WORDS, "", *profile_table(profiles), ""]
    return "\n".join(out)
