"""`make soak`: the long runs. Writes out/soak.json.

A soak test is an ignored Rust test whose name begins with `soak_`, or an executable file in tests/soak. Each gets its
share of the time in INSANE_SOAK_SECONDS and may leave a report, any JSON, at INSANE_SOAK_REPORT. A line of its log that
begins with `progress: ` is shown while it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testkit import cargo, parse, summarise, watch
from testkit.paths import LOGS, OUT, RESULTS, ROOT
from testkit.results import Result, slug

MIN_SHARE_S = 10
SPARE_S = 900.0
"""What a soak test may take beyond its share before the watchdog ends it: those that count rounds have no clock."""


def with_soak(folder: Path) -> list[str]:
    """The integration tests of a package that have a soak test in them."""
    return [path.stem for path in sorted(folder.glob("tests/*.rs")) if "fn soak_" in path.read_text(errors="replace")]


def rust_tests() -> list[tuple[cargo.Binary, str]]:
    """The ignored tests of the release build that are called soak_…."""
    # Only those that have some: all of a workspace, or of the network's tests, takes longer to build than a short run takes.
    tests = {p["name"]: with_soak(Path(p["manifest_path"]).parent) for p in cargo.metadata()["packages"]}
    packages = [name for name, names in tests.items() if names]
    found = []
    for binary in (
        cargo.build(packages, release=True, tests=[n for names in tests.values() for n in names]) if packages else []
    ):
        command = [str(binary.path), "--list", "--ignored", "--format", "terse"]
        environment = {**os.environ, **cargo.environment(binary)}
        done = subprocess.run(
            command,
            cwd=binary.package.folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
        names = re.findall(r"^(.+): test$", done.stdout, re.M)
        found += [(binary, name) for name in names if name.rsplit("::", 1)[-1].startswith("soak_")]
    return found


def scripts() -> list[Path]:
    """The executable files of tests/soak."""
    return sorted(path for path in (ROOT / "tests/soak").glob("*") if path.is_file() and os.access(path, os.X_OK))


PROGRESS = "progress: "
"""How a line begins that is shown while its test runs."""

LOOK_S = 2.0
"""How often a log is looked at for such lines, in seconds."""


def told(text: str) -> list[str]:
    """What the lines of a log say that tell how far its test is."""
    lines = text.splitlines()
    return [line.removeprefix(PROGRESS) for line in lines if line.startswith(PROGRESS)]


@contextlib.contextmanager
def shown(unit: str) -> Iterator[None]:
    """Shows how far the test is whose log this is, until it has ended."""
    log, over = LOGS / f"{slug(unit)}.log", threading.Event()
    # That of the run before.
    log.unlink(missing_ok=True)

    def show() -> None:
        count = 0
        while not over.wait(LOOK_S):
            lines = told(log.read_text(errors="replace")) if log.exists() else []
            for line in lines[count:]:
                print(f"       {line}", flush=True)
            count = len(lines)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def script(path: Path, env: dict[str, str], limit_s: float) -> Result:
    """Runs one executable as one test."""
    result = Result(unit=f"soak {path.stem}")
    log = LOGS / f"{slug(result.unit)}.log"
    result.log = str(log.relative_to(ROOT))
    target = Path(str(cargo.metadata()["target_directory"]))
    own = {"INSANE_BIN_DIR": str(target / "release"), "INSANE_OUT": str(OUT), **env}
    outcome = watch.run([str(path)], log=log, limit_s=limit_s, cwd=ROOT, env=own)
    result.seconds = outcome.seconds
    counted = parse.any_of(log.read_text(errors="replace"), result)
    trouble = outcome.trouble(limit_s) or (f"ended with code {outcome.code}" if outcome.code else None)
    if trouble and not result.failed:
        result.fail(trouble)
    elif not counted:
        result.passed = 1
    return result


def report_of(path: Path) -> object:
    """The report that a test left, or None; a broken one as its text."""
    if not path.exists():
        return None
    text = path.read_text(errors="replace")
    try:
        report: object = json.loads(text)
        return report
    except ValueError:
        return {"unreadable": text[:2000]}


def write(items: list[dict[str, Any]], seconds: int, started: str) -> None:
    """Writes out/soak.json afresh, so that a run cut short leaves what it has."""
    OUT.mkdir(exist_ok=True)
    whole = {
        "started": started,
        "seconds_asked": seconds,
        "seconds": round(sum(item["seconds"] for item in items), 1),
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "arch": platform.machine()},
        "passed": sum(item["passed"] for item in items),
        "failed": sum(item["failed"] for item in items),
        "items": items,
    }
    (OUT / "soak.json").write_text(json.dumps(whole, indent=1) + "\n")


def run(seconds: int, only: list[str]) -> int:
    """Runs everything once, each with an equal share of the time."""
    shutil.rmtree(RESULTS / "soak", ignore_errors=True)
    rust = [(b, n) for b, n in rust_tests() if not only or any(word in n for word in only)]
    files = [path for path in scripts() if not only or any(word in path.stem for word in only)]
    count = len(rust) + len(files)
    if count == 0:
        print("soak: there are no soak tests" + (" of that name" if only else " yet"), file=sys.stderr)
        return 1
    share = max(MIN_SHARE_S, seconds // count)
    print(f"     {count} soak tests of about {share} s each; begun {time.strftime('%H:%M:%S')}", flush=True)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    items: list[dict[str, Any]] = []
    jobs: list[Path | tuple[cargo.Binary, str]] = [*rust, *files]
    for number, job in enumerate(jobs, 1):
        name = job.stem if isinstance(job, Path) else job[1]
        print(f"     {number} of {count}: {name}", flush=True)
        own = OUT / "soak" / f"{slug(name)}.json"
        own.parent.mkdir(parents=True, exist_ok=True)
        own.unlink(missing_ok=True)
        env = {"INSANE_SOAK_SECONDS": str(share), "INSANE_SOAK_REPORT": str(own), "INSANE_VERB": "soak"}
        limit_s = share + SPARE_S
        if isinstance(job, Path):
            with shown(f"soak {job.stem}"):
                result = script(job, env, limit_s)
        else:
            arguments, unit = ["--ignored", "--exact", name], f"soak {job[0].package.name} {name}"
            with shown(unit):
                result = cargo.run(job[0], arguments, limit_s=limit_s, name=unit, env=env)
            if not result.passed and not result.failed:
                result.fail("did not run")
        result.write(RESULTS / "soak")
        print(result.line(), flush=True)
        if result.failed:
            print(watch.tail(ROOT / result.log), flush=True)
        items.append(
            {
                "name": name,
                "passed": result.passed,
                "failed": result.failed,
                "failures": result.failures,
                "seconds": round(result.seconds, 1),
                "report": report_of(own),
            }
        )
        write(items, seconds, started)
    return summarise.report(["soak"])


def main() -> int:
    """Runs the soak that the arguments ask for."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--seconds", type=int, default=3600, help="for all of them together (default 3600)")
    parser.add_argument("only", nargs="*", help="run only those whose name has one of these in it")
    arguments = parser.parse_args()
    if arguments.seconds < 1:
        parser.error("--seconds is at least 1")
    watch.stop_on_sigterm()
    try:
        return run(arguments.seconds, arguments.only)
    except cargo.BuildFailed as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; what was running has been ended", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
