"""Two hosts with AF_XDP between them, for tests that are not in Rust: runtimes in network namespaces of their own.

`python3 -m testkit.cables PROGRAM FOLDER` starts PROGRAM, which is insaned, twice. Once both serve, at FOLDER/near and
FOLDER/far, it says `ready`, and when its input ends it takes everything away: also when who started it was killed. Where
namespaces or AF_XDP sockets cannot be made it says why and ends with code 77. The tests in Rust have
`tests/network/src/cables.rs`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

SKIPPED = 77
_AF_XDP = 44
_HOSTS = ("near", "far")
_LIMIT_S = 20.0


def missing() -> str | None:
    """Why it cannot be done here."""
    if os.geteuid() != 0:
        return "network namespaces, which only root can make"
    try:
        socket.socket(_AF_XDP, socket.SOCK_RAW).close()
    except OSError as error:
        return f"AF_XDP sockets cannot be made here: {error}"
    return None


def config(folder: Path, end: int) -> str:
    """The configuration of an end: UDP is bound to the first cable, AF_XDP to the second."""
    own, other = (f"10.95.0.{host + 1}:7400" for host in (end, 1 - end))
    return f"""[runtime]
host = "{_HOSTS[end]}"
socket = "{folder / _HOSTS[end]}"
[network]
listen = "{own}"
peers = ["{other}"]
interface = "veth0"
[[network.datapath]]
interface = "veth1"
address = "10.96.0.10{end}/24"
"""


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, stdin=subprocess.DEVNULL, timeout=_LIMIT_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run(program: str, folder: Path) -> None:
    """Has both until the input ends. Raises RuntimeError if they do not serve, CalledProcessError without namespaces."""
    names = [f"ins{host[0]}{os.getpid()}" for host in _HOSTS]
    with ExitStack() as made:
        for name in names:
            _ip(f"netns add {name}")
            made.callback(_ip, f"netns del {name}")
        for net, device in enumerate(("veth0", "veth1")):
            _ip(f"link add {device} netns {names[0]} type veth peer name {device} netns {names[1]}")
            for end, name in enumerate(names):
                _ip(f"-n {name} addr add 10.9{5 + net}.0.{end + 1}/24 dev {device}")
                _ip(f"-n {name} link set {device} up")
        runtimes = []
        for end, name in enumerate(names):
            file = folder / f"{_HOSTS[end]}.cable.toml"
            file.write_text(config(folder, end))
            command = ["ip", "netns", "exec", name, program, "--config", str(file), "--log", "error"]
            runtimes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
            made.callback(_end, runtimes[-1])
        limit = time.monotonic() + _LIMIT_S
        while not all((folder / host).exists() for host in _HOSTS):
            if time.monotonic() > limit or any(one.poll() is not None for one in runtimes):
                raise RuntimeError("the runtimes do not serve")
            time.sleep(0.02)
        print("ready", flush=True)
        sys.stdin.buffer.read()


def main() -> int:
    """See the module's head."""
    why = missing()
    if why:
        print(why, flush=True)
        return SKIPPED
    # What ends the test by a signal to its group ends the input of this process, and not this process.
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    run(sys.argv[1], Path(sys.argv[2]).resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
