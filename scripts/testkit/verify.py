"""`make verify`: loom models, Miri and fuzz smoke, as `scripts/verify.list` names them.

Every line must come to at least one test, or it counts as failed: a list that has quietly become empty proves nothing.
What has models, unsafe code under test or fuzz targets and is not on the list is a failure too.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from testkit import cargo, parse, summarise, watch
from testkit.paths import LOGS, OUT, RESULTS, ROOT
from testkit.results import Result, slug

KINDS = ("loom", "miri", "fuzz")
DEFAULT_LIMIT_S = 600.0
BUILD_LIMIT_S = 1200.0
FUZZ_SECONDS = 10
PLACEHOLDER_LINES = 20
"""A crate whose sources are shorter than this has no content yet."""


@dataclass(frozen=True)
class Line:
    """One line of the list: `kind name [limit=seconds] [VARIABLE=value ...] [arguments ...] [-- filters ...]`."""

    kind: str
    name: str
    limit_s: float
    env: tuple[tuple[str, str], ...]
    build: tuple[str, ...]
    run: tuple[str, ...]

    @property
    def unit(self) -> str:
        """Its name in reports. Lines that differ in their arguments alone stay apart."""
        return " ".join([self.kind, self.name, *self.build, *self.run])


def parse_list(text: str) -> list[Line]:
    """Reads `scripts/verify.list`. Raises ValueError with the line's number."""
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if len(words) < 2 or words[0] not in KINDS:
            raise ValueError(f"line {number}: `{'|'.join(KINDS)} NAME …` is wanted: {line!r}")
        kind, name, *rest = words
        limit_s, env = DEFAULT_LIMIT_S, []
        while rest and re.match(r"[A-Za-z_]\w*=", rest[0]):
            key, value = rest.pop(0).split("=", 1)
            if key == "limit":
                limit_s = float(value)
            else:
                env.append((key, value))
        cut = rest.index("--") if "--" in rest else len(rest)
        lines.append(Line(kind, name, limit_s, tuple(env), tuple(rest[:cut]), tuple(rest[cut + 1 :])))
    return lines


def missing(lines: list[Line], crates: dict[str, str], fuzz_targets: list[str]) -> list[str]:
    """What must be on the list and is not; `crates` are names with all their sources' text."""
    have = {(line.kind, line.name) for line in lines}
    wanted = [("fuzz", target, "there is such a fuzz target") for target in fuzz_targets]
    for name, text in crates.items():
        content = len([line for line in text.splitlines() if line.strip()]) > PLACEHOLDER_LINES
        if re.search(r"\bcfg\(loom\)|\bloom::", text):
            wanted.append(("loom", name, "it has loom models"))
        if name == "insane-shm" and content:
            # The crate in which lock-free code lives must be verified by all that there is.
            wanted += [(kind, name, "it holds the lock-free code") for kind in ("loom", "miri")]
    absent = dict.fromkeys(
        f"{kind} {name} is not in scripts/verify.list, but {why}"
        for kind, name, why in wanted
        if (kind, name) not in have
    )
    return list(absent)


class Verifier:
    """Runs lines and writes each result down."""

    def __init__(self, nightly: str, fuzz_seconds: int) -> None:
        self.nightly = nightly
        self.fuzz_seconds = fuzz_seconds
        self.folder = RESULTS / "verify"
        self.ran: Counter[str] = Counter()

    def run(self, line: Line) -> None:
        """Runs one line, counts its tests, fails it if they are none."""
        start = time.monotonic()
        result = Result(unit=line.unit, log=str((LOGS / f"{slug(line.unit)}.log").relative_to(ROOT)))
        {"loom": self._loom, "miri": self._miri, "fuzz": self._fuzz}[line.kind](line, result)
        if not result.passed and not result.failed:
            result.fail("is listed and ran no test at all")
        self.ran[line.kind] += result.passed + result.failed
        result.seconds = time.monotonic() - start
        self.keep(result)

    def keep(self, result: Result) -> None:
        """Writes a result down and shows it; of a failed one, the end of its log."""
        result.write(self.folder)
        print(result.line(), flush=True)
        for failure in result.failures:
            print(f"     failed: {failure}", flush=True)
        if result.failed and result.log and (ROOT / result.log).exists():
            print(watch.tail(ROOT / result.log))

    def _cargo(self, line: Line, result: Result, command: list[str], env: dict[str, str]) -> None:
        """Builds, then runs, so that the limit is the tests' own; the log is added to what is there."""
        log = ROOT / result.log
        env = {**env, **dict(line.env)}
        before = log.read_text(errors="replace") if log.exists() and result.passed else ""
        outcome = watch.run([*command, "--no-run"], log=log, limit_s=BUILD_LIMIT_S, cwd=ROOT, env=env)
        if outcome.code:
            result.fail(outcome.trouble(BUILD_LIMIT_S) or "does not build")
            return
        outcome = watch.run([*command, "--", *line.run], log=log, limit_s=line.limit_s, cwd=ROOT, env=env)
        text = log.read_text(errors="replace")
        # What a test ignores under Miri or loom is not skipped: it runs elsewhere.
        parse.libtest(text, result, ignored_are_skips=False)
        trouble = outcome.trouble(line.limit_s)
        if trouble is None and outcome.code and not result.failed:
            trouble = f"ended with code {outcome.code}"
        if trouble:
            result.fail(trouble)
        log.write_text(before + text)

    def _loom(self, line: Line, result: Result) -> None:
        """Unit tests with `loom` in their path, then the integration tests called `loom…`."""
        env = {
            "RUSTFLAGS": " ".join(filter(None, [os.environ.get("RUSTFLAGS", ""), "--cfg loom"])),
            "CARGO_TARGET_DIR": str(ROOT / "target/loom"),
            "LOOM_MAX_PREEMPTIONS": os.environ.get("LOOM_MAX_PREEMPTIONS", "3"),
        }
        command = ["cargo", "test", "--release", "-p", line.name, *line.build]
        if {"--lib", "--test", "--tests"} & set(line.build):
            self._cargo(line, result, command, env)
            return
        unit_tests = Line(line.kind, line.name, line.limit_s, line.env, line.build, ("loom", *line.run))
        self._cargo(unit_tests, result, [*command, "--lib"], env)
        targets = loom_targets(line.name)
        if targets and not result.failed:
            self._cargo(line, result, [*command, *(word for t in targets for word in ("--test", t))], env)

    def _miri(self, line: Line, result: Result) -> None:
        env = {"CARGO_TARGET_DIR": str(ROOT / "target/miri")}
        # Documentation examples only repeat what unit tests do, and take a build each.
        chosen = any(word in ("--lib", "--test", "--tests", "--doc") for word in line.build)
        command = [
            "cargo",
            f"+{self.nightly}",
            "miri",
            "test",
            "-p",
            line.name,
            *([] if chosen else ["--lib"]),
            *line.build,
        ]
        self._cargo(line, result, command, env)

    def _fuzz(self, line: Line, result: Result) -> None:
        """Some seconds of one target, from the committed corpus; what it finds stays under out/fuzz."""
        folder, target = fuzz_folder(line.name)
        scratch = OUT / "fuzz" / slug(line.name)
        shutil.rmtree(scratch, ignore_errors=True)
        (scratch / "corpus").mkdir(parents=True)
        (scratch / "found").mkdir()
        common = ["cargo", f"+{self.nightly}", "fuzz"]
        place = ["--fuzz-dir", folder, "--target-dir", str(ROOT / "target/fuzz")]
        log, env = ROOT / result.log, dict(line.env)
        outcome = watch.run([*common, "build", *place, target], log=log, limit_s=BUILD_LIMIT_S, cwd=ROOT, env=env)
        if outcome.code:
            result.fail(outcome.trouble(BUILD_LIMIT_S) or "does not build")
            return
        seeds = ROOT / folder / "corpus" / target
        corpora = [str(scratch / "corpus"), *([str(seeds)] if seeds.is_dir() else [])]
        flags = [f"-max_total_time={self.fuzz_seconds}", f"-artifact_prefix={scratch}/found/", "-timeout=10", *line.run]
        limit_s = max(line.limit_s, self.fuzz_seconds * 2 + 60)
        outcome = watch.run(
            [*common, "run", *place, *line.build, target, *corpora, "--", *flags],
            log=log,
            limit_s=limit_s,
            cwd=ROOT,
            env=env,
        )
        done = re.findall(r"^Done (\d+) runs in ", log.read_text(errors="replace"), re.M)
        trouble = outcome.trouble(limit_s)
        if outcome.code or trouble:
            result.fail(trouble or f"found something: see {scratch.relative_to(ROOT)}/found and the log")
        elif not done or int(done[-1]) == 0:
            result.fail("ran no input at all")
        else:
            result.passed = 1
            print(f"     {line.name}: {done[-1]} inputs", flush=True)


def loom_targets(name: str) -> list[str]:
    """The integration tests of a package that are loom models."""
    for entry in cargo.metadata()["packages"]:
        if entry["name"] == name:
            targets = [target for target in entry["targets"] if "test" in target["kind"]]
            return sorted(str(target["name"]) for target in targets if str(target["name"]).startswith("loom"))
    return []


def sources() -> dict[str, str]:
    """The text of every crate's sources and tests, by package name."""
    found = {}
    for entry in cargo.metadata()["packages"]:
        folder = Path(entry["manifest_path"]).parent
        files = sorted([*folder.glob("src/**/*.rs"), *folder.glob("tests/**/*.rs")])
        found[str(entry["name"])] = "\n".join(path.read_text(errors="replace") for path in files)
    return found


def fuzz_targets() -> list[str]:
    """The fuzz targets that exist, as the list names them."""
    own = [path.stem for path in (ROOT / "fuzz/fuzz_targets").glob("*.rs")]
    crates = (ROOT / "crates").glob("*/fuzz/fuzz_targets/*.rs")
    return sorted(own + [f"{path.parents[1].relative_to(ROOT)}/{path.stem}" for path in crates])


def fuzz_folder(name: str) -> tuple[str, str]:
    """The folder of a fuzz target and its name there: `control` is in fuzz, others say where they are."""
    folder, _, target = name.rpartition("/")
    return folder or "fuzz", target


def pinned_nightly() -> str:
    """The toolchain for Miri and fuzzing, as scripts/lib.sh chooses it."""
    script = ". scripts/lib.sh; nightly"
    return subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    """Runs the list, or the part of it that the arguments name."""
    parser = argparse.ArgumentParser(prog="scripts/verify", description=__doc__)
    parser.add_argument("--fuzz-seconds", type=int, default=FUZZ_SECONDS, help=f"per target (default {FUZZ_SECONDS})")
    parser.add_argument("only", nargs="*", help="kinds or names: `loom`, `insane-shm`; without any, the whole list")
    arguments = parser.parse_args()
    if arguments.fuzz_seconds < 1:
        parser.error("--fuzz-seconds is at least 1")
    lines = parse_list((ROOT / "scripts/verify.list").read_text())
    chosen = [line for line in lines if not arguments.only or {line.kind, line.name} & set(arguments.only)]
    if not chosen:
        parser.error(f"nothing in scripts/verify.list is called {' or '.join(arguments.only) or 'anything'}")
    watch.stop_on_sigterm()
    shutil.rmtree(RESULTS / "verify", ignore_errors=True)
    verifier = Verifier(pinned_nightly(), arguments.fuzz_seconds)
    try:
        complete = Result(unit="verify.list is complete")
        for what in missing(lines, sources(), fuzz_targets()):
            complete.fail(what)
        complete.passed = 0 if complete.failed else 1
        verifier.keep(complete)
        for line in chosen:
            verifier.run(line)
    except KeyboardInterrupt:
        print("interrupted; what was running has been ended", file=sys.stderr)
        return 130
    print("     ran: " + ", ".join(f"{verifier.ran[kind]} {kind}" for kind in KINDS))
    return summarise.report(["verify"])


if __name__ == "__main__":
    sys.exit(main())
