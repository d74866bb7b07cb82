import os
import pathlib
import subprocess
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


@pytest.fixture(scope="session")
def stand_in() -> pathlib.Path:
    """A server of traffic control without a radio."""
    return built("stand-in")


@pytest.fixture
def session(runtime: str) -> Iterator[insane.Session]:
    with insane.Session("pytest", socket=runtime) as opened:
        yield opened
