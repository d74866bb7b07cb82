"""Builds the workspace's test binaries and runs them one by one, each under a watchdog of its own.

`cargo test` does the same without the watchdogs, the logs per binary and the hunt for processes left behind; what it
gives a test binary (working directory, variables) is given here too, so a test passes under both or under neither.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from testkit import parse, watch
from testkit.paths import LOGS, OUT, ROOT, in_ci
from testkit.results import Result, slug

DEFAULT_LIMIT_S = 300.0
"""How long one test binary may run unless its package says otherwise."""


@dataclass(frozen=True)
class Package:
    """What the runner knows of a package; the last three from `[package.metadata.insane]` in its Cargo.toml."""

    name: str
    version: str
    folder: Path
    limit_s: float
    threads: int | None
    fast: bool


@dataclass(frozen=True)
class Binary:
    """One built test binary."""

    package: Package
    target: str
    kind: str
    path: Path
    env: tuple[tuple[str, str], ...]

    @property
    def unit(self) -> str:
        """Its name in reports."""
        return f"{self.package.name} {self.kind}" + (f" {self.target}" if self.kind in ("test", "bin") else "")


class BuildFailed(RuntimeError):
    """Cargo could not build or describe the workspace; it has said why."""


@cache
def metadata() -> dict[str, Any]:
    """`cargo metadata` without the dependencies."""
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise BuildFailed("cargo metadata failed")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def package(entry: dict[str, Any]) -> Package:
    """Reads one package of the metadata. Raises BuildFailed on a `[package.metadata.insane]` that it cannot use."""
    name, folder = str(entry["name"]), Path(entry["manifest_path"]).parent
    own = (entry.get("metadata") or {}).get("insane") or {}
    unknown = set(own) - {"limit_seconds", "threads", "fast"}
    if unknown:
        raise BuildFailed(
            f"{folder}/Cargo.toml: unknown keys in [package.metadata.insane]: {', '.join(sorted(unknown))}"
        )
    limit_s, threads = own.get("limit_seconds", DEFAULT_LIMIT_S), own.get("threads")
    # Whole-system tests are too long for `test-fast` unless they say otherwise.
    fast = own.get("fast", (ROOT / "tests") not in folder.parents)
    return Package(
        name, str(entry["version"]), folder, float(limit_s), None if threads is None else int(threads), bool(fast)
    )


def build(packages: Iterable[str] = (), *, release: bool = False, tests: Iterable[str] = ()) -> list[Binary]:
    """Builds libraries, programs, examples and tests of some packages, or of the whole workspace; returns the test binaries
    in run order. With `tests` the programs and those integration tests alone.

    Everything in one go, so that all of it sees the same set of features and system tests find the programs built.
    """
    chosen = [word for name in packages for word in ("-p", name)]
    targets = [word for name in tests for word in ("--test", name)] or ["--lib", "--examples", "--tests"]
    command = ["cargo", "build", *(chosen or ["--workspace"]), "--bins", *targets]
    command += ["--message-format=json-render-diagnostics"]
    command += ["--release"] if release else []
    # A lock file that does not fit the manifests is a mistake that only CI should insist on.
    command += ["--locked"] if in_ci() else []
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise BuildFailed("the workspace does not build")
    return binaries([json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")])


def binaries(messages: Iterable[dict[str, Any]]) -> list[Binary]:
    """The test binaries among cargo's build messages: unit tests first, then integration tests, by package."""
    packages = {entry["id"]: package(entry) for entry in metadata()["packages"]}
    programs: dict[str, dict[str, str]] = {}
    out_dirs: dict[str, str] = {}
    tests = []
    for message in messages:
        owner = message.get("package_id", "")
        if message.get("reason") == "build-script-executed":
            out_dirs[owner] = message["out_dir"]
        if message.get("reason") != "compiler-artifact" or not message.get("executable") or owner not in packages:
            continue
        target = message["target"]
        if message["profile"]["test"]:
            tests.append((owner, target["name"], target["kind"][0], Path(message["executable"])))
        elif "bin" in target["kind"]:
            programs.setdefault(owner, {})[target["name"]] = message["executable"]
    found = []
    for owner, name, kind, path in tests:
        env = {f"CARGO_BIN_EXE_{program}": where for program, where in programs.get(owner, {}).items()}
        if owner in out_dirs:
            env["OUT_DIR"] = out_dirs[owner]
        kind = kind if kind in ("bin", "test", "example", "bench") else "lib"
        found.append(Binary(packages[owner], name, kind, path, tuple(sorted(env.items()))))
    return sorted(found, key=lambda b: (b.kind == "test", b.package.fast is False, b.package.name, b.kind, b.target))


def environment(binary: Binary) -> dict[str, str]:
    """What cargo sets for a test binary, and what the project adds: where the programs and the output are."""
    profile = binary.path.parent.parent
    library_path = [str(profile / "deps"), str(profile), sysroot_libraries(), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        **dict(binary.env),
        "CARGO_MANIFEST_DIR": str(binary.package.folder),
        "CARGO_PKG_NAME": binary.package.name,
        "CARGO_PKG_VERSION": binary.package.version,
        "LD_LIBRARY_PATH": ":".join(part for part in library_path if part),
        "INSANE_BIN_DIR": str(profile),
        "INSANE_OUT": str(OUT),
        "RUST_BACKTRACE": os.environ.get("RUST_BACKTRACE", "1"),
    }


@cache
def sysroot_libraries() -> str:
    """Where the compiler's own shared libraries are: test binaries of procedural macros need them."""
    done = subprocess.run(
        ["rustc", "--print", "target-libdir"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    return done.stdout.strip()


def run(
    binary: Binary,
    arguments: Sequence[str] = (),
    *,
    limit_s: float | None = None,
    name: str = "",
    env: dict[str, str] | None = None,
) -> Result:
    """Runs one test binary and counts its tests. `name` stands for the unit's where one is run several times."""
    result = Result(unit=name or binary.unit)
    limit = binary.package.limit_s if limit_s is None else limit_s
    log = LOGS / f"{slug(result.unit)}.log"
    result.log = str(log.relative_to(ROOT))
    threads = [] if binary.package.threads is None else [f"--test-threads={binary.package.threads}"]
    outcome = watch.run(
        [str(binary.path), "--show-output", *threads, *arguments],
        log=log,
        limit_s=limit,
        cwd=binary.package.folder,
        env={**environment(binary), **(env or {})},
    )
    result.seconds = outcome.seconds
    text = log.read_text(errors="replace")
    if not parse.libtest(text, result):
        # Cut short, or a harness of its own.
        passed, failed = parse.tests_finished(text)
        result.passed += passed
        for one in failed:
            result.fail(one)
        if outcome.code == 0 and not passed:
            result.passed += 1
    trouble = outcome.trouble(limit)
    if trouble is None and outcome.code and not result.failed:
        trouble = f"ended with code {outcome.code}"
    if trouble:
        result.fail(trouble)
    return result
