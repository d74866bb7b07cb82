"""Runs a command under a watchdog, its output in a log, and lets nothing outlive it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

_PR_SET_CHILD_SUBREAPER = 36
_TERM_GRACE_S = 5.0
_ORPHAN_GRACE_S = 2.0


@dataclass
class Outcome:
    """How a command ended."""

    code: int
    """The exit code; minus the signal's number if one ended it."""
    timed_out: bool
    seconds: float
    left_behind: list[str] = field(default_factory=list)
    """Command lines of processes that it started and that still ran two seconds after its end; they were killed."""

    def trouble(self, limit_s: float) -> str | None:
        """What to say if it did not end well in itself, whatever its tests said."""
        if self.timed_out:
            return f"killed by the watchdog after {limit_s:.0f} s"
        if self.code < 0:
            return f"ended by {signal.Signals(-self.code).name}"
        if self.left_behind:
            return "left processes behind: " + "; ".join(self.left_behind)
        return None


def run(
    command: Sequence[str],
    *,
    log: Path,
    limit_s: float,
    cwd: Path,
    env: Mapping[str, str] | None = None,
) -> Outcome:
    """Runs `command` with `env` added to the environment, both its outputs in `log`, for at most `limit_s` seconds.

    Only one runs at a time in a process: what it leaves behind is found by descent.
    """
    _adopt_orphans()
    log.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    timed_out = False
    with log.open("wb") as out:
        try:
            child = subprocess.Popen(
                list(command),
                cwd=cwd,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            out.write(f"cannot start {command[0]}: {error}\n".encode())
            return Outcome(code=127, timed_out=False, seconds=0.0)
        try:
            child.wait(limit_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            out.seek(0, os.SEEK_END)
            out.write(_picture(child.pid, limit_s).encode())
            _end(child)
        except BaseException:
            # Ctrl-C, or our own watchdog: take everything down with us.
            _end(child)
            _clear_orphans(grace_s=0.0)
            raise
        left = _clear_orphans(grace_s=0.0 if timed_out else _ORPHAN_GRACE_S)
    seconds = time.monotonic() - start
    return Outcome(code=child.returncode, timed_out=timed_out, seconds=seconds, left_behind=[] if timed_out else left)


def stop_on_sigterm() -> None:
    """Makes SIGTERM end this process the way Ctrl-C does, so that `timeout` leaves nothing running."""

    def handler(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, handler)


def tail(log: Path, lines: int = 40) -> str:
    """The end of a log, indented."""
    text = log.read_text(errors="replace").splitlines()[-lines:]
    return "\n".join(f"     | {line}" for line in text)


def _adopt_orphans() -> None:
    """Makes this process the parent of every orphan among its descendants, so that none gets away."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends a child and its process group: asks first, then insists."""
    for number, grace_s in ((signal.SIGTERM, _TERM_GRACE_S), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        try:
            child.wait(grace_s)
            return
        except subprocess.TimeoutExpired:
            continue


def _clear_orphans(grace_s: float) -> list[str]:
    """Waits a little for what the command left, then kills it. Returns the command lines of what had to be killed."""
    deadline = time.monotonic() + grace_s
    while True:
        _reap()
        left = _children(os.getpid())
        if not left or time.monotonic() >= deadline:
            break
        time.sleep(0.05)
    killed = []
    # Killing a parent hands its children to us: until nobody is left, a bounded number of times.
    for _ in range(100):
        left = _children(os.getpid())
        if not left:
            break
        for pid in left:
            killed.append(f"{_command_line(pid)} (pid {pid})")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
        _reap()
    return killed


def _reap() -> None:
    """Collects ended children."""
    while True:
        try:
            pid, _status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def _children(pid: int) -> list[int]:
    """The living children of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) and stat[1] == pid and stat[0] != "Z":
            found.append(int(entry.name))
    return found


def _stat(pid: int) -> tuple[str, int] | None:
    """State and parent of a process, if it is there."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may hold anything.
    state, parent = text.rpartition(")")[2].split()[:2]
    return state, int(parent)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip() or "?"
    except OSError:
        return "?"


def _picture(root: int, limit_s: float) -> str:
    """What a command that ran too long was doing: its processes and where each thread waits."""
    lines = [f"\n--- watchdog: not done after {limit_s:.0f} s; its processes:"]
    todo = [root]
    while todo:
        pid = todo.pop()
        todo += _children(pid)
        lines.append(f"--- pid {pid}: {_command_line(pid)}")
        for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
            try:
                name = (task / "comm").read_text().strip()
                waits = (task / "wchan").read_text().strip()
                call = (task / "syscall").read_text().split()[:1]
            except OSError:
                continue
            lines.append(f"---   thread {task.name} {name}: waits in {waits or '?'}, system call {' '.join(call)}")
    return "\n".join(lines) + "\n"
