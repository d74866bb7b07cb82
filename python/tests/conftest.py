import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator

import insane
import pytest

ROOT = pathlib.Path(__file__).parents[2]


def built(name: str) -> pathlib.Path:
    """A program that `scripts/test-python` has built, or found built."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    program = pathlib.Path(os.environ.get("INSANE_BIN_DIR", target / "debug")) / name
    assert program.exists(), f"{program} is not there: scripts/test-python builds it"
    return program


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A runtime of its own for the tests."""
    program = built("insaned")
    socket = tmp_path_factory.mktemp("insane") / "insaned.sock"
    process = subprocess.Popen([program, "--socket", socket, "--log", "error"])
    try:
        for _ in range(200):
            if socket.exists():
                break
            time.sleep(0.02)
        os.environ["INSANE_SOCKET"] = str(socket)
        yield str(socket)
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
def hosts(tmp_path: pathlib.Path) -> Iterator[list[pathlib.Path]]:
    """The sockets of two runtimes, `near` and `far`, that know each other over the loopback interface."""
    program = built("insaned")
    # An address that is this process's, so that whoever asks for any port is not given these.
    process = os.getpid()
    address = f"127.{64 + (process >> 16 & 63)}.{process >> 8 & 255}.{process & 255}"
    names, started = ["near", "far"], []
    try:
        for at, name in enumerate(names):
            file, socket = tmp_path / f"{name}.toml", tmp_path / name
            network = f'[network]\nlisten = "{address}:{7411 + at}"\npeers = ["{address}:{7412 - at}"]\n'
            file.write_text(f'[runtime]\nhost = "{name}"\nsocket = "{socket}"\n{network}')
            started.append(subprocess.Popen([program, "--config", file, "--log", "error"]))
        end = time.monotonic() + 20
        while not all((tmp_path / name).exists() for name in names):
            assert time.monotonic() < end and all(one.poll() is None for one in started)
            time.sleep(0.02)
        yield [tmp_path / name for name in names]
    finally:
        for one in started:
            one.terminate()
        for one in started:
            one.wait(10)


@pytest.fixture
def cables(tmp_path: pathlib.Path) -> Iterator[list[pathlib.Path]]:
    """The sockets of two runtimes, `near` and `far`, with AF_XDP between them, in network namespaces."""
    command = [sys.executable, "-m", "testkit.cables", str(built("insaned")), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    pipe = subprocess.PIPE
    # Its end waits for it, by the end of its input.
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as hosts:
        assert hosts.stdout
        said = hosts.stdout.readline().strip()
        if said != "ready":
            assert hosts.wait(20) == 77, said
            pytest.skip(said)
        yield [tmp_path / "near", tmp_path / "far"]


@pytest.fixture(scope="session")
def stand_in() -> pathlib.Path:
    """A server of traffic control without a radio."""
    return built("stand-in")


@pytest.fixture
def session(runtime: str) -> Iterator[insane.Session]:
    with insane.Session("pytest", socket=runtime) as opened:
        yield opened
