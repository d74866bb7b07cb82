"""The systems under test: where their programs come from, whether they could be built, what they say they can do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent.parent
ROOT = BENCH.parent


@dataclass(frozen=True)
class Source:
    """One system program. `package` is a crate of the bench workspace; `script` a Python program instead of one; `c` a C
    program that is linked with `libinsane.so`. `cmake` is the oldest CMake that can build it; `native` says that the
    Python program needs the package of this project. `needs` is what pkg-config must know of to build it; `dpdk` says that
    the program uses the project's object for DPDK where that is there."""

    key: str
    package: str = ""
    binary: str = ""
    script: str | None = None
    cmake: tuple[int, int] | None = None
    c: str | None = None
    native: bool = False
    needs: str | None = None
    dpdk: bool = False


SOURCES = (
    Source("floor", "bench-floor", "bench-floor"),
    Source("udp", "bench-sockets", "bench-udp"),
    Source("tcp", "bench-sockets", "bench-tcp"),
    Source("uds", "bench-sockets", "bench-uds"),
    Source("af-xdp", "bench-xdp", "bench-xdp"),
    Source("dpdk", "bench-dpdk", "bench-dpdk", needs="libdpdk >= 22.11"),
    Source("udp-python", script="python/bench_udp.py"),
    Source("zeromq", "bench-zeromq", "bench-zeromq"),
    Source("zeromq-python", script="python/bench_zmq.py"),
    Source("zenoh-python", script="python/bench_zenoh.py"),
    Source("pynng", script="python/bench_nng.py"),
    Source("nats-python", script="python/bench_nats.py"),
    Source("iceoryx2", "bench-iceoryx2", "bench-iceoryx2"),
    Source("zenoh", "bench-zenoh", "bench-zenoh"),
    Source("aeron", "bench-aeron", "bench-aeron", cmake=(3, 30)),
    Source("insane", "bench-insane", "bench-insane", dpdk=True),
    Source("insane-c", binary="bench-insane-c", c="insane-c/main.c"),
    Source("insane-python", script="insane/python/bench_insane.py", native=True),
)


@dataclass
class System:
    """A system program that runs."""

    key: str
    command: list[str]
    describe: dict[str, Any]
    modes: list[dict[str, Any]] = field(default_factory=list)


class Absence(Exception):
    """Why a system takes no part."""


def package_folder(package: str) -> Path:
    """`bench-x` lives in `bench/x`."""
    return BENCH / package.removeprefix("bench-")


def build_floor_method(log_folder: Path) -> Path:
    """Compiles the two spinning floors. Without them nothing can be compared."""
    out = BENCH / "target" / "floor-method"
    out.parent.mkdir(exist_ok=True)
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise SystemExit("bench: no C compiler (cc) for the floor")
    command = [compiler, "-O2", "-Wall", "-Wextra", "-o", str(out), str(BENCH / "floor" / "method.c")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        (log_folder / "build-floor-method.log").write_text(done.stderr)
        raise SystemExit(f"bench: the floor does not compile:\n{done.stderr}")
    return out


def cmake_version(program: str) -> tuple[int, int] | None:
    """Major and minor version of a CMake, or `None` if it is none."""
    try:
        words = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20).stdout.split()
        major, minor = words[2].split(".")[:2]
        return int(major), int(minor)
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError):
        return None


def find_cmake(oldest: tuple[int, int]) -> str:
    """A CMake that is new enough: the system's, or one of our own from the Python package index."""
    system = shutil.which("cmake")
    if system is not None and (cmake_version(system) or (0, 0)) >= oldest:
        return system
    venv = BENCH / "target" / "tools"
    own = str(venv / "bin" / "cmake")
    if (cmake_version(own) or (0, 0)) >= oldest:
        return own
    wanted = f"cmake>={oldest[0]}.{oldest[1]},<4"
    for step in ([sys.executable, "-m", "venv", str(venv)], [str(venv / "bin" / "pip"), "install", "-q", wanted]):
        try:
            done = subprocess.run(step, capture_output=True, text=True, timeout=300)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Absence(f"not built: no {wanted}: {error}") from error
        if done.returncode != 0:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["pip failed"]
            raise Absence(f"not built: no {wanted}: {last[0]}")
    return own


def has_library(wanted: str) -> bool:
    """Whether pkg-config knows a library, such as `libdpdk >= 22.11`."""
    try:
        return subprocess.run(["pkg-config", "--exists", wanted], capture_output=True).returncode == 0
    except OSError:
        return False


def _build_dpdk_object(log: Path) -> None:
    """Builds the project's object for DPDK beside the programs, where a runtime looks for it. One that cannot be built is
    not there, and the program that would use it says so."""
    out = BENCH / "target" / "release" / "libinsane_dpdk.so"
    log.write_text("")
    try:
        if not has_library("libdpdk >= 22.11"):
            raise Absence("not built: there is no DPDK 22.11")
        out.parent.mkdir(parents=True, exist_ok=True)
        _run(["make", "-s", "-C", str(ROOT / "crates" / "datapaths" / "dpdk" / "c"), f"OUT={out}"], ROOT, log)
    except Absence:
        out.unlink(missing_ok=True)


def _build_package(source: Source, jobs: int | None, log_folder: Path) -> None:
    """Builds one crate by itself, so that one that fails takes nothing else with it."""
    if source.needs is not None and not has_library(source.needs):
        raise Absence(f"not built: there is no {source.needs} here (pkg-config): scripts/setup dpdk")
    if source.dpdk:
        _build_dpdk_object(log_folder / f"build-{source.key}-dpdk.log")
    folder = package_folder(source.package)
    if not (folder / "Cargo.toml").is_file():
        raise Absence(f"not built: {folder.relative_to(ROOT)} does not exist")
    cargo = shutil.which("cargo")
    if cargo is None:
        raise Absence("not built: no cargo")
    command = [cargo, "build", "--release", "--locked", "--package", source.package]
    command += ["--jobs", str(jobs)] if jobs else []
    environment = dict(os.environ)
    # Programs are looked for where this workspace builds them, whatever the user's other builds do.
    environment.pop("CARGO_TARGET_DIR", None)
    if source.cmake is not None:
        environment["CMAKE"] = find_cmake(source.cmake)
    log = log_folder / f"build-{source.key}.log"
    with log.open("w") as out:
        done = subprocess.run(command, cwd=BENCH, env=environment, stdout=out, stderr=subprocess.STDOUT)
    code = done.returncode
    if code != 0:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error")] or lines[-1:]
        raise Absence(f"not built: {errors[0] if errors else 'cargo failed'} (all of it in {log})")


def _run(command: list[str], folder: Path, log: Path) -> None:
    """One step of a build."""
    with log.open("a") as out:
        try:
            done = subprocess.run(command, cwd=folder, stdout=out, stderr=subprocess.STDOUT)
        except OSError as error:
            raise Absence(f"not built: {command[0]}: {error}") from error
    if done.returncode != 0:
        lines = [line for line in log.read_text(errors="replace").splitlines() if "error" in line.lower()]
        raise Absence(f"not built: {lines[0] if lines else command[0] + ' failed'} (all of it in {log})")


def _build_c(source: Source, log_folder: Path) -> None:
    """Builds `libinsane.so` and a C program that uses it as any C program would."""
    log = log_folder / f"build-{source.key}.log"
    log.write_text("")
    # Installed as crates/capi/install does it, beside the suite: programs ask for the name in the library.
    _run([str(ROOT / "crates" / "capi" / "install"), str(BENCH / "target" / "c")], ROOT, log)
    library = BENCH / "target" / "c" / "lib"
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang") or "cc"
    _run([compiler, "-O2", "-Wall", "-Wextra", "-I", str(BENCH / "target" / "c" / "include"), "-o",
          str(BENCH / "target" / "release" / str(source.binary)), str(BENCH / str(source.c)), "-L", str(library),
          f"-Wl,-rpath,{library}", "-linsane", "-lpthread"], ROOT, log)


def _build_native(source: Source, jobs: int | None, log_folder: Path) -> None:
    """Builds the Python package's library and lays the package out where the program finds it."""
    log = log_folder / f"build-{source.key}.log"
    log.write_text("")
    more = ["--jobs", str(jobs)] if jobs else []
    os.environ.setdefault("PYO3_PYTHON", sys.executable)
    target = BENCH / "target" / "python-build"
    _run(["cargo", "build", "--release", "--locked", "--target-dir", str(target), *more], ROOT / "python", log)
    package = BENCH / "target" / "python" / "insane"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "python" / "insane", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy2(target / "release" / "lib_native.so", package / "_native.abi3.so")


def prepare(source: Source, jobs: int | None, log_folder: Path, build: bool = True) -> System:
    """Builds one system and asks it what it can do, or raises [`Absence`] with the reason."""
    if source.script is not None:
        script = BENCH / source.script
        if not script.is_file():
            raise Absence(f"not built: {script.relative_to(ROOT)} does not exist")
        if build and source.native:
            _build_native(source, jobs, log_folder)
        command = [sys.executable, str(script)]
    else:
        if build and source.c is not None:
            _build_c(source, log_folder)
        elif build:
            _build_package(source, jobs, log_folder)
        binary = BENCH / "target" / "release" / source.binary
        if not binary.is_file():
            raise Absence(f"not built: {binary.relative_to(ROOT)} does not exist")
        command = [str(binary)]
    try:
        done = subprocess.run([*command, "describe"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Absence(f"does not run: {error}") from error
    if done.returncode != 0:
        tail = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise Absence(f"does not run: {tail[0]}")
    try:
        described = json.loads(done.stdout)
        modes = described["modes"]
    except (ValueError, KeyError, TypeError) as error:
        raise Absence(f"'describe' is not understood: {error}") from error
    return System(source.key, command, described, modes)


def prepare_all(
    wanted: list[str] | None, jobs: int | None, log_folder: Path, say: Callable[[str], None], build: bool = True
) -> tuple[dict[str, System], dict[str, str]]:
    """All systems that can take part, and the reason for each that cannot."""
    present: dict[str, System] = {}
    absent: dict[str, str] = {}
    for source in SOURCES:
        if wanted is not None and source.key not in wanted and source.key != "floor":
            continue
        say(f"building {source.key} …")
        try:
            present[source.key] = prepare(source, jobs, log_folder, build)
        except Absence as reason:
            absent[source.key] = str(reason)
            say(f"ABSENT: {source.key}: {reason}")
    return present, absent
