"""Two hosts on one machine: network namespaces that two veth pairs join, for as long as a run lasts.

Nothing leaves them: each has its loopback and its ends of the cables, and no route to anywhere else. The second cable is for
what goes past the kernel's network stack: the kernel has no address on it and says nothing there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

#: The active end (clients, sources) is at the first, the other end at the second.
ADDRESSES = ("10.98.0.1", "10.98.0.2")
#: Of the second cable's ends, veth1; the programs know them (harness/src/cable.rs).
STATIONS = ("02:62:00:00:00:01", "02:62:00:00:00:02")
_NAME = re.compile(r"insane-bench-(\d+)-\d+[ab]\b")
_COUNT = itertools.count()


class NoHosts(Exception):
    """Why there are none."""


def _ip(*words: str) -> None:
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoHosts(f"ip {' '.join(words)}: {error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise NoHosts(f"ip {' '.join(words)}: {last}")


def present() -> list[str]:
    """The names of all namespaces of this suite, of other runs too."""
    with contextlib.suppress(OSError):
        return sorted(path.name for path in Path("/run/netns").iterdir() if _NAME.fullmatch(path.name))
    return []


def remove_stale() -> None:
    """Removes the namespaces of runs that were killed before they could."""
    for name in present():
        match = _NAME.fullmatch(name)
        if match and not Path(f"/proc/{match.group(1)}").exists():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def why_not() -> str | None:
    """Why there can be no two hosts here, as far as can be said without trying."""
    if os.geteuid() != 0:
        return "two hosts are network namespaces, and making them needs root"
    if shutil.which("ip") is None:
        return "two hosts are network namespaces, and there is no 'ip' program to make them"
    return None


class Hosts:
    """Both hosts. Made by [`two_hosts`]."""

    def __init__(self) -> None:
        run = f"insane-bench-{os.getpid()}-{next(_COUNT)}"
        self.names = (run + "a", run + "b")
        self._made: list[str] = []

    def make(self) -> None:
        """Makes both and the cable, or raises [`NoHosts`]; what was made until then is for [`remove`] to remove."""
        reason = why_not()
        if reason is not None:
            raise NoHosts(reason)
        remove_stale()
        for name in self.names:
            self._made.append(name)
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        # Both ends are made where they belong: nothing appears among the machine's own interfaces.
        _ip("link", "add", "veth0", "netns", self.names[0], "type", "veth", "peer", "name", "veth0", "netns",
            self.names[1])
        _ip("link", "add", "veth1", "netns", self.names[0], "type", "veth", "peer", "name", "veth1", "netns",
            self.names[1])
        for name, address, station in zip(self.names, ADDRESSES, STATIONS, strict=True):
            # Without an IPv6 address the kernel says nothing by itself.
            _ip("-n", name, "link", "set", "veth0", "addrgenmode", "none")
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "veth0")
            _ip("-n", name, "link", "set", "veth0", "up")
            _ip("-n", name, "link", "set", "veth1", "address", station, "addrgenmode", "none")
            _ip("-n", name, "link", "set", "veth1", "up")

    def free_second_cable(self) -> None:
        """Takes off what a program past the kernel's stack has left at the second cable's ends: that of DPDK's AF_XDP stays
        attached when its process is ended."""
        for name in self.names:
            subprocess.run(["ip", "-n", name, "link", "set", "veth1", "xdp", "off"], capture_output=True, check=False)

    def remove(self) -> None:
        """Removes them; the cable goes with them. Programs in them must have ended."""
        while self._made:
            subprocess.run(["ip", "netns", "del", self._made.pop()], capture_output=True, check=False)

    def within(self, host: int, command: list[str]) -> list[str]:
        """The command on host 0 or 1. `ip` becomes the program, so it has the pid that was started."""
        return ["ip", "netns", "exec", self.names[host], *command]

    def arguments(self, host: int) -> list[str]:
        """What a program on that host is told."""
        return ["--placement", "veth", "--own", ADDRESSES[host], "--peer", ADDRESSES[1 - host]]


@contextlib.contextmanager
def orderly() -> Iterator[None]:
    """Within the block SIGTERM raises `SystemExit`, so that what was made is removed. Only the main thread can ask for that;
    in another nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Two hosts within the block, gone after it whatever happens in it. Raises [`NoHosts`] with the reason if there can be
    none."""
    hosts = Hosts()
    with orderly():
        try:
            hosts.make()
            yield hosts
        finally:
            hosts.remove()
