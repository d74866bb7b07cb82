"""The two hosts of the second act: network namespaces with a cable between them, or two addresses of the loopback."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from common import Failed

PORT = 7400
_NAME = re.compile(r"\binsane-demo-(\d+)-(?:ran|ric)\b")


def ip(*arguments: str) -> None:
    """Runs `ip`. Raises Failed with what it said."""
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"ip {' '.join(arguments)}: {error}") from None
    if done.returncode != 0:
        raise Failed(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@dataclass
class Host:
    """One of the two."""

    name: str
    address: str
    port: int
    socket: Path
    namespace: str | None = None
    within: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.namespace:
            self.within = ["ip", "netns", "exec", self.namespace]

    @property
    def listen(self) -> str:
        """The address of its runtime's datapath."""
        return f"{self.address}:{self.port}"

    def configuration(self, other: Host) -> Path:
        """Writes its runtime's configuration: the defaults, and who the other is."""
        interface = 'interface = "veth0"' if self.namespace else ""
        path = self.socket.with_suffix(".toml")
        path.write_text(
            f'[runtime]\nsocket = "{self.socket}"\nhost = "{self.name}"\nlog_level = "error"\n'
            f'[network]\nlisten = "{self.listen}"\npeers = ["{other.listen}"]\n{interface}\n'
        )
        return path


def _free_port(address: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def remove_stale() -> None:
    """Removes the namespaces of demos that were killed before they could."""
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    for match in _NAME.finditer(done.stdout):
        if not Path(f"/proc/{match.group(1)}").exists():
            subprocess.run(["ip", "netns", "del", match.group()], capture_output=True, check=False)


class Hosts:
    """Both hosts, as long as `with` lasts. `kind` is `namespaces`, `loopback`, or `auto`: namespaces if they can be made."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.directory, self.kind = directory, kind
        self.why_not: str | None = None
        self._made: list[str] = []
        self.ran = self.ric = Host("RAN", "", 0, directory)

    def __enter__(self) -> Hosts:
        try:
            self._choose()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _choose(self) -> None:
        if self.kind != "loopback":
            self.why_not = None if os.geteuid() == 0 else "network namespaces need root"
            if self.why_not is None:
                try:
                    self._make_namespaces()
                    self.kind = "namespaces"
                    return
                except Failed as error:
                    self._remove()
                    self.why_not = f"network namespaces cannot be made here ({error})"
            if self.kind == "namespaces":
                raise Failed(self.why_not)
        self.kind = "loopback"
        self.why_not = self.why_not or "told so"
        self.ran, self.ric = (
            Host(name, address, _free_port(address), self.directory / f"{name.lower()}.sock")
            for name, address in (("RAN", "127.0.0.1"), ("RIC", "127.0.0.2"))
        )

    def _make_namespaces(self) -> None:
        remove_stale()
        names = [f"insane-demo-{os.getpid()}-{end}" for end in ("ran", "ric")]
        for name in names:
            ip("netns", "add", name)
            self._made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        # Both ends are made where they belong: nothing appears among the machine's own interfaces.
        ip("link", "add", "veth0", "netns", names[0], "type", "veth", "peer", "name", "veth0", "netns", names[1])
        for name, address in zip(names, ("10.97.0.1", "10.97.0.2"), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "veth0")
            ip("-n", name, "link", "set", "veth0", "up")
        self.ran, self.ric = (
            Host(host, address, PORT, self.directory / f"{host.lower()}.sock", name)
            for host, address, name in zip(("RAN", "RIC"), ("10.97.0.1", "10.97.0.2"), names, strict=True)
        )

    def cut(self) -> None:
        """Takes the cable down at the RAN's end."""
        self._link("down")

    def mend(self) -> None:
        """Takes it up again."""
        self._link("up")

    def _link(self, state: str) -> None:
        assert self.ran.namespace is not None
        ip("-n", self.ran.namespace, "link", "set", "veth0", state)

    def _remove(self) -> None:
        """The cable goes with the namespaces."""
        while self._made:
            subprocess.run(["ip", "netns", "del", self._made.pop()], capture_output=True, check=False)
