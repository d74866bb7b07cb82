"""`make test` and `make test-fast`: runs the suites of `scripts/suites.list` under watchdogs and adds them up."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from testkit import cargo, parse, summarise, watch
from testkit.paths import LOGS, OUT, RESULTS, ROOT
from testkit.results import BadResult, Result, read, slug

BUDGET_S = {"test": 46 * 60.0, "fast": 5 * 60.0}
"""What a verb may take once built. It is a watchdog, not the aim (15 and 2 minutes on two cores)."""

SKIP_CODE = 77
"""The exit code by which a script says that it cannot run here; its last line of output is the reason."""


@dataclass(frozen=True)
class Suite:
    """One line of the list."""

    name: str
    verbs: frozenset[str]
    limit_s: float
    needs: str
    command: list[str]


def parse_list(text: str) -> list[Suite]:
    """Reads `scripts/suites.list`. Raises ValueError with the line's number."""
    suites: list[Suite] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) < 5:
            raise ValueError(f"line {number}: name, verbs, seconds, needs and command are wanted: {line!r}")
        name, verbs, limit, needs, *command = words
        if not set(verbs.split(",")) <= set(BUDGET_S):
            raise ValueError(f"line {number}: verbs are `test`, `fast` or `test,fast`, not {verbs!r}")
        if command[0] == "@cargo":
            # Each test binary has a limit of its own.
            limit = str(int(BUDGET_S["test"]))
        if not limit.isdigit() or int(limit) == 0:
            raise ValueError(f"line {number}: {limit!r} is no number of seconds")
        if any(suite.name == name for suite in suites):
            raise ValueError(f"line {number}: a second suite called {name!r}")
        suites.append(Suite(name, frozenset(verbs.split(",")), float(limit), needs, command))
    return suites


class Runner:
    """Runs suites for one verb and writes each result down."""

    def __init__(self, verb: str, *, filters: list[str]) -> None:
        self.verb = verb
        self.filters = filters
        self.folder = RESULTS / verb
        self.results: list[Result] = []
        self._deadline = 0.0
        self._built: list[cargo.Binary] = []

    def run(self, suites: list[Suite]) -> None:
        """Runs them in order. What the verb's budget leaves no time for counts as failed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if not self._build():
            # The programs that are there are not those of these sources: judging them would mislead.
            return
        self._deadline = time.monotonic() + BUDGET_S[self.verb]
        for suite in suites:
            missing = suite.needs != "-" and not (ROOT / suite.needs).exists()
            if missing:
                print(f"     {suite.name:<44} not there yet ({suite.needs})", flush=True)
            elif suite.command[0] == "@cargo":
                self._cargo()
            elif suite.command[0] == "@each":
                self._each(suite)
            else:
                self._keep(self._command(suite.name, suite.command, self._limit(suite.limit_s)))

    def _build(self) -> bool:
        try:
            start = time.monotonic()
            self._built = cargo.build()
            print(f"     built in {time.monotonic() - start:.0f} s, {len(self._built)} test binaries", flush=True)
            return True
        except cargo.BuildFailed as error:
            result = Result(unit="build")
            result.fail(f"{error}; no test was run")
            self._keep(result)
            return False

    def _limit(self, limit_s: float) -> float:
        return min(limit_s, self._deadline - time.monotonic())

    def _keep(self, result: Result) -> None:
        """Writes a result down and shows it; of a failed one, the end of its log."""
        self.results.append(result)
        result.write(self.folder)
        print(result.line(), flush=True)
        for failure in result.failures:
            print(f"     failed: {failure}")
        if result.failed and result.log and (ROOT / result.log).exists():
            print(watch.tail(ROOT / result.log))
            print(f"     all of it: {result.log}", flush=True)

    def _cargo(self) -> None:
        """Every test binary of the workspace."""
        for binary in self._built:
            if self.verb == "fast" and not binary.package.fast:
                continue
            limit_s = self._limit(binary.package.limit_s)
            arguments = list(self.filters)
            if self.verb == "fast":
                # By convention the long ones are called slow_….
                arguments += ["--skip", "slow_"]
            if limit_s <= 0:
                self._keep(self._no_time(binary.unit))
            else:
                result = cargo.run(binary, arguments, limit_s=limit_s, env={"INSANE_VERB": self.verb})
                if result.passed or result.failed or result.skipped or not self.filters:
                    self._keep(result)

    def _each(self, suite: Suite) -> None:
        """Every executable file of a folder is one suite."""
        for path in sorted((ROOT / suite.command[1]).iterdir()):
            if path.is_file() and os.access(path, os.X_OK):
                name = f"{suite.name} {path.stem}"
                self._keep(self._command(name, [str(path)], self._limit(suite.limit_s)))

    def _env(self, name: str) -> dict[str, str]:
        target = Path(str(cargo.metadata()["target_directory"]))
        return {
            "INSANE_RESULT": str(self.folder / "own" / f"{slug(name)}.json"),
            "INSANE_BIN_DIR": str(target / "debug"),
            "INSANE_OUT": str(OUT),
            "INSANE_VERB": self.verb,
        }

    def _no_time(self, name: str) -> Result:
        result = Result(unit=name)
        result.fail("not run: the time of the whole verb was used up")
        return result

    def _command(self, name: str, command: list[str], limit_s: float) -> Result:
        """Runs any command. It counts by a result file of its own, by what it prints, or as one test by its exit."""
        if limit_s <= 0:
            return self._no_time(name)
        log, env = LOGS / f"{slug(name)}.log", self._env(name)
        own = Path(env["INSANE_RESULT"])
        own.parent.mkdir(parents=True, exist_ok=True)
        outcome = watch.run(command, log=log, limit_s=limit_s, cwd=ROOT, env=env)
        result = self._count(name, own, log.read_text(errors="replace"), outcome.code)
        result.seconds, result.log = outcome.seconds, str(log.relative_to(ROOT))
        trouble = outcome.trouble(limit_s)
        if trouble is None and outcome.code not in (0, SKIP_CODE) and not result.failed:
            trouble = f"ended with code {outcome.code}"
        if trouble:
            result.fail(trouble)
        return result

    def _count(self, name: str, own: Path, log: str, code: int) -> Result:
        result = Result(unit=name)
        if own.exists():
            try:
                result = read(own, unit=name)
            except BadResult as error:
                result.fail(str(error))
            # Taken in here; it must not be added up twice.
            own.rename(own.with_suffix(".taken"))
        elif own.with_suffix(".xml").exists():
            if not parse.junit(own.with_suffix(".xml"), result):
                result.fail("its JUnit file cannot be read")
        elif code == SKIP_CODE:
            result.skip(name, (log.strip().splitlines() or ["no reason given"])[-1])
        elif not parse.any_of(log, result) and code == 0:
            result.passed = 1
        return result


def main() -> int:
    """Runs the verb that the arguments name."""
    parser = argparse.ArgumentParser(prog="scripts/test", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="what takes under two minutes")
    parser.add_argument("--only", metavar="SUITE", help="this suite alone (the first column of scripts/suites.list)")
    parser.add_argument("--list", action="store_true", help="name the suites and stop")
    parser.add_argument("filter", nargs="*", help="run only Rust tests whose name has this in it (suite cargo)")
    arguments = parser.parse_args()
    verb = "fast" if arguments.fast else "test"
    suites = [s for s in parse_list((ROOT / "scripts/suites.list").read_text()) if verb in s.verbs]
    if arguments.filter and not arguments.only:
        arguments.only = "cargo"
    if arguments.only:
        suites = [suite for suite in suites if suite.name == arguments.only]
        if not suites:
            parser.error(f"no suite of `{verb}` is called {arguments.only!r}: see --list")
    if arguments.list:
        print("\n".join(f"{suite.name:<16} {' '.join(suite.command)}" for suite in suites))
        return 0
    watch.stop_on_sigterm()
    runner = Runner(verb, filters=arguments.filter)
    try:
        runner.run(suites)
    except KeyboardInterrupt:
        print("interrupted; what was running has been ended", file=sys.stderr)
        return 130
    return summarise.report([verb])


if __name__ == "__main__":
    sys.exit(main())
