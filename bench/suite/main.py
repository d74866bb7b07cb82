"""The command line of the comparison suite."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from . import added, cells, hosts, machine, plots, profile, report, rows, stats, systems
from .bars import Judge
from .measure import Bench, Outcome


def say(text: str) -> None:
    """Progress and complaints go to standard error."""
    print(text, file=sys.stderr, flush=True)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options, checked."""
    known = [source.key for source in systems.SOURCES]
    parser = argparse.ArgumentParser(
        prog="bench/run", description="Measures INSANE and its peers side by side; see bench/README.md.")
    parser.add_argument("--quick", action="store_true", default=os.environ.get("QUICK", "") not in ("", "0"),
                        help="under 5 minutes instead of about 20; QUICK=1 in the environment says the same")
    parser.add_argument("--only", metavar="EXP,…", help="experiments: " + ",".join(cells.EXPERIMENTS + cells.DERIVED))
    parser.add_argument("--systems", metavar="A,…", help="systems: " + ",".join(known))
    parser.add_argument("--placement", metavar="P,…", help="on one host, or between two: " + ",".join(cells.PLACEMENTS) +
                        " (default: both; two hosts need root)")
    parser.add_argument("--match", metavar="TEXT,…",
                        help="only cells whose line in --list has each of these texts, and none of those after a '!', such "
                             "as '64 B,spin,!knob'")
    parser.add_argument("--out", type=Path, default=systems.ROOT / "out" / "bench" / "latest.json",
                        help="where the rows go; the report and plots go beside it")
    parser.add_argument("--cores", metavar="A,B", help="the pair of cores (default: the two highest)")
    parser.add_argument("--seed", type=int, help="of the order and the bootstrap (default: the clock)")
    parser.add_argument("--rounds", type=int, help="this many rounds, whatever the time")
    parser.add_argument("--budget", type=float, metavar="S", help="no further round after so many seconds")
    parser.add_argument("--drift", type=float, metavar="PERCENT", default=100 * stats.FLOOR_TOLERANCE,
                        help="how far the floors before and after a repetition may be apart for it to count (default: "
                             "%(default)g); more on a machine that does not hold still, for figures that tell less")
    parser.add_argument("--nice", type=int, default=0, help="priority of the measured processes, such as -20")
    parser.add_argument("--jobs", type=int, help="parallel build jobs")
    parser.add_argument("--no-build", action="store_true", help="use what is built")
    parser.add_argument("--profile", action="store_true",
                        help="afterwards INSANE's cells once more under perf: where the time goes (a few seconds each)")
    parser.add_argument("--no-plots", action="store_true", help="no CDF plots")
    parser.add_argument("--list", action="store_true", help="build, list what would be measured, and end")
    options = parser.parse_args(arguments)
    reason = profile.why_not() if options.profile else None
    if reason is not None:
        parser.error(f"--profile: {reason}")
    options.only = _names(parser, "--only", options.only, cells.EXPERIMENTS + cells.DERIVED)
    options.placement = _names(parser, "--placement", options.placement, cells.PLACEMENTS)
    options.systems = _names(parser, "--systems", options.systems, known)
    if options.cores is not None:
        try:
            first, second = (int(core) for core in options.cores.split(","))
        except ValueError:
            parser.error(f"--cores takes two core numbers such as 2,3, not '{options.cores}'")
        options.cores = (first, second)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if not options.drift >= 0:
        parser.error("--drift must be at least 0")
    if not -20 <= options.nice <= 19:
        parser.error("--nice must be from -20 to 19")
    if options.jobs is not None and options.jobs < 1:
        parser.error("--jobs must be at least 1")
    return options


def _names(parser: argparse.ArgumentParser, option: str, text: str | None, known: Any) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        parser.error(f"{option}: {', '.join(unknown) or 'nothing'} is not known; there are {', '.join(known)}")
    return names


def _extent(options: argparse.Namespace) -> cells.Extent:
    extent = cells.QUICK if options.quick else cells.FULL
    if options.rounds is not None:
        extent = dataclasses.replace(extent, min_rounds=options.rounds, max_rounds=options.rounds)
    if options.budget is not None:
        extent = dataclasses.replace(extent, budget_s=options.budget)
    return extent


def _failed_cells(outcome: Outcome) -> list[str]:
    return [f"{cell.label}: {count} failed, the last one: {outcome.reasons[cell]}"
            for cell, count in outcome.failed.items()]


def _absent_classes(present: dict[str, systems.System]) -> list[str]:
    notes = []
    for key, system in present.items():
        for gap in system.describe.get("absent", []):
            notes.append(f"{key}, {gap['experiment']}, {gap['waiting']}: {gap['reason']}")
    return notes


def main(arguments: list[str]) -> int:
    """Builds, measures, writes `latest.json`, `runs.jsonl`, `report.md` and the plots."""
    options = parse(arguments)
    extent = _extent(options)
    folder = options.out.resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    facts = machine.facts()
    allowed = sorted(os.sched_getaffinity(0))
    cores = machine.choose_cores(allowed, machine.read_siblings(allowed), options.cores)
    method = systems.build_floor_method(folder)
    present, absent = systems.prepare_all(options.systems, options.jobs, folder, say, not options.no_build)
    if "floor" not in present:
        say(f"bench: no floor, no comparison: {absent['floor']}")
        return 1
    placements, notes = list(options.placement or cells.PLACEMENTS), _absent_classes(present)
    chosen: list[cells.Cell] = []
    with contextlib.ExitStack() as stack:
        pair_of_hosts = None
        if "veth" in placements and not options.list:
            try:
                pair_of_hosts = stack.enter_context(hosts.two_hosts())
            except hosts.NoHosts as reason:
                placements.remove("veth")
                notes.append(f"placement veth: {reason}")
        for system in present.values():
            only = _with_parts(options.only)
            more, gaps = cells.cells_of(system, extent, only, cores, machine.knob_available(), placements)
            chosen += [c for c in more if options.only is None or c.experiment in options.only or added.is_part(c)]
            notes += gaps
        chosen = matching(chosen, options.match)
        if not chosen:
            say(f"bench: no cell matches '{options.match}'; see --list" if options.match else
                "bench: there is nothing to measure" + "".join(f"; {note}" for note in notes[-1:]))
            return 1
        if "insane" in present:
            no_rtt = "local" not in placements or (options.only is not None and "rtt" not in options.only)
            chosen += _own_cells(present["insane"], extent, cores, chosen, no_rtt)
        if not machine.knob_available():
            notes.append(f"CPU latency knob: {machine.KNOB} may not be written by this user; measured with it off only")
        for note in notes:
            say(f"absent: {note}")
        if options.list:
            print("\n".join([cell.label for cell in chosen] + added.listed(chosen, cores.helpers is not None)))
            return 0
        os.sched_setaffinity(0, cores.orchestrator)
        seed = options.seed if options.seed is not None else time.time_ns() % 2**32
        bench = Bench(present, chosen, extent, cores, method, seed, options.nice, say, pair_of_hosts, options.drift / 100)
        outcome = bench.run()
        profiles = profile.profile(chosen, bench.profiled, say) if options.profile else []
    facts["run"] = {
        "extent": extent.name, "seed": seed, "pair": list(cores.pair), "aux_core": cores.aux, "nice": options.nice,
        "rounds": outcome.rounds, "seconds": round(outcome.seconds, 1), "cells": len(chosen),
        "drift_percent": options.drift, "discarded": sum(outcome.discarded.values()), "failed": sum(outcome.failed.values()),
    }
    facts["versions"] = {key: system.describe.get("version") for key, system in present.items()}
    facts["absent"], facts["notes"] = absent, notes + _failed_cells(outcome)
    return _write(options, folder, facts, outcome, absent, seed, cores, profiles)


def matching(chosen: list[cells.Cell], match: str | None) -> list[cells.Cell]:
    """The cells that `--match` asks for."""
    texts = [text.strip() for text in (match or "").split(",") if text.strip()]
    unwanted = [text[1:] for text in texts if text.startswith("!")]
    wanted = [text for text in texts if not text.startswith("!")]
    return [cell for cell in chosen
            if all(text in cell.label for text in wanted) and not any(text in cell.label for text in unwanted)]


def _with_parts(only: list[str] | None) -> list[str] | None:
    """The experiments to measure: what is added is made of round trips and calls."""
    return only if only is None or "added" not in only else [*only, "rtt", "calls"]


def _own_cells(
    system: systems.System, extent: cells.Extent, cores: machine.Cores, chosen: list[cells.Cell], no_rtt: bool
) -> list[cells.Cell]:
    """What a run has besides, for what is made of it: the spinning round trip that the link hop is half of, if there is no
    round trip on one host or there are some between two, and what a client's calls take, if there are those between two."""
    found, _ = cells.cells_of(system, extent, ["rtt", "calls"], cores, False, ["local"])
    between = any(c.key == "insane" and c.experiment == "rtt" and c.placement == "veth" for c in chosen)
    wanted = {"rtt": between or no_rtt, "calls": between}
    return [c for c in found if added.is_part(c) and wanted[c.experiment] and c not in chosen]


def _write(
    options: argparse.Namespace, folder: Path, facts: dict[str, Any], outcome: Outcome, absent: dict[str, str], seed: int,
    cores: machine.Cores, profiles: list[profile.Profile],
) -> int:
    table = rows.make_rows(outcome, seed)
    verdicts = Judge(outcome.kept, absent, seed, cores.helpers is not None, outcome.reasons).all()
    drawn = [] if options.no_plots else plots.draw(outcome.kept, folder, folder / ".venv", say)
    options.out.write_text(json.dumps({"machine": facts, "rows": table}, indent=1) + "\n")
    with (folder / "runs.jsonl").open("w") as raw:
        for repetition in outcome.kept:
            raw.write(json.dumps(dataclasses.asdict(repetition)) + "\n")
    if profiles:
        profile.written(profiles, folder / "profiles.json")
    (folder / "report.md").write_text(report.make_report(facts, table, verdicts, drawn, profiles))
    for verdict in verdicts:
        say(f"{verdict.verdict:>12}  {verdict.what}: {verdict.bar}: {verdict.measured}")
    for key, reason in absent.items():
        say(f"ABSENT: {key}: {reason}")
    say(f"{len(table)} rows in {options.out}, report in {folder / 'report.md'}")
    if not table:
        run = facts["run"]
        say(f"bench: nothing was measured: of the repetitions {run['discarded']} were discarded because the machine had "
            f"moved by more than {run['drift_percent']:g} %, and {run['failed']} failed; see --drift")
        return 1
    return 0
