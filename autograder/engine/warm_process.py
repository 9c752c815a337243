"""Starts the warm process, and asks it for sandboxes. Needs no torch: another process may judge.

One warm process can serve several processes that judge (its *door* goes to them): its imports cost
more than grading a dozen submissions.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from autograder.engine import scratch
from autograder.engine.environment import environment
from autograder.engine.errors import SandboxUnavailable
from autograder.engine.limits import Limits
from autograder.i18n import _

Sandbox = Literal["auto", "namespaces", "landlock", "none"]

PRELOAD = ("numpy", "triton.language", "triton.runtime.interpreter")
"""What answers use beside torch; figures are drawn by cells that are not run."""

_START = Path(__file__).parent / "warm" / "start.py"
# The user that sandboxes run as where root starts the engine: a number that nothing else uses.
_UNPRIVILEGED = 61_184
_START_SECONDS = 120.0


class Ordered:
    """A sandbox that the warm process was asked for and that may not be there yet.

    Attributes:
        fd: the way to it.
        scratch: its folder, in the second tier.
        pidfd: its process, once it is there.
    """

    def __init__(self, fd: int, scratch: str) -> None:
        self.fd, self.scratch = fd, scratch
        self.pidfd: int | None = None


class Orders:
    """A connection to a warm process, over which sandboxes are ordered.

    Args:
        control: the socket.
        limits: those of its sandboxes.
        uid: the user that they run as, where that is another one.
        folder: where their own folders lie, in the second tier.
    """

    def __init__(
        self, control: socket.socket, limits: Limits, uid: int | None, folder: str
    ) -> None:
        self.limits = limits
        self._control, self._uid, self._scratch = control, uid, folder
        control.settimeout(_START_SECONDS)
        self._ordered: collections.deque[Ordered] = collections.deque()
        self._folders = 0

    def order(self) -> Ordered:
        """Ask for a sandbox, without waiting for it."""
        ours, theirs = socket.socketpair()
        folder = ""
        if self._scratch:
            self._folders += 1
            folder = os.path.join(self._scratch, f"{os.getpid()}-{self._folders}")
            os.mkdir(folder, 0o700)
            if self._uid is not None:
                os.chown(folder, self._uid, self._uid)
        with ours, theirs:
            message = json.dumps({"scratch": folder}).encode()
            socket.send_fds(self._control, [message], [theirs.fileno()])
            self._ordered.append(Ordered(ours.detach(), folder))
        return self._ordered[-1]

    def next_arrival(self) -> None:
        """Wait for the next sandbox that was asked for.

        Raises:
            OSError: it could not be made, or the warm process is gone.
        """
        message, fds = self._hear()
        if "forked" not in message or len(fds) != 1:
            raise OSError(message.get("error", "an unknown message"))
        self._ordered.popleft().pidfd = fds[0]

    def stop(self) -> None:
        """End the connection, and with it every sandbox that was ordered over it."""
        self._control.close()

    def _hear(self) -> tuple[dict[str, Any], list[int]]:
        data, fds, _flags, _address = socket.recv_fds(self._control, 65_536, 4)
        if not data:
            raise OSError(_("the warm process ended"))
        return json.loads(data), fds


@dataclasses.dataclass(frozen=True)
class Door:
    """What another process needs to have a connection of its own; it goes to a new process."""

    control: socket.socket
    tier: str
    limits: Limits
    uid: int | None
    folder: str

    def enter(self) -> Orders:
        """Make the connection. This copy of the door is closed by it.

        Raises:
            OSError: the warm process is gone.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self.control as control:
            try:
                socket.send_fds(control, [b'{"join": true}'], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return Orders(ours, self.limits, self.uid, self.folder)


class WarmProcess(Orders):
    """The process started by :mod:`autograder.engine.warm.start`, seen from the one who starts it.

    Raises:
        OSError: it could not put up its walls; the text says why.
    """

    def __init__(self, tier: str, limits: Limits, preload: Sequence[str]) -> None:
        if sys.platform != "linux":
            raise OSError(_("this is not Linux"))
        uid = _UNPRIVILEGED if os.geteuid() == 0 else None
        self.tier = tier
        self._room = scratch.make(uid) if tier == "landlock" else None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(ours, limits, uid, self._room.path if self._room else "")
        configuration = {
            "tier": tier,
            "uid": self._uid,
            "limits": dataclasses.asdict(limits),
            "preload": list(preload),
            "scratch": self._scratch,
            "control": theirs.fileno(),
        }
        self._process = subprocess.Popen(
            # -P: nothing but this Python's packages; -B: nothing is written
            [sys.executable, "-P", "-B", str(_START), json.dumps(configuration)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=environment(),
            cwd="/",
            start_new_session=True,  # an interrupt at the terminal is the engine's to act on
        )
        theirs.close()
        try:
            self._await_ready()
        except OSError:
            self.stop()
            raise

    def _await_ready(self) -> None:
        while True:
            message, _fds = self._hear()
            if "map" in message:
                self._map_users()
                self._control.send(b"{}")
            elif "ready" in message:
                return
            else:
                raise OSError(message.get("error", "an unknown message"))

    def _map_users(self) -> None:
        """Give the warm process's user namespace its one user."""
        user, group = (
            (self._uid, self._uid) if self._uid is not None else (os.geteuid(), os.getegid())
        )
        folder = Path(f"/proc/{self._process.pid}")
        (folder / "setgroups").write_text("deny", encoding="ascii")
        (folder / "uid_map").write_text(f"0 {user} 1", encoding="ascii")
        (folder / "gid_map").write_text(f"0 {group} 1", encoding="ascii")

    def door(self) -> Door:
        """For other processes; it is of use for as long as this one does not stop."""
        return Door(self._control, self.tier, self.limits, self._uid, self._scratch)

    def stop(self) -> None:
        """End it, and with it every sandbox, whoever ordered it."""
        with contextlib.suppress(OSError):  # closing would leave the copies of the door open
            self._control.shutdown(socket.SHUT_RDWR)
        super().stop()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._room is not None:
            self._room.remove()


def start(
    sandbox: Sandbox, limits: Limits, preload: Sequence[str] = PRELOAD
) -> tuple[WarmProcess, list[str]]:
    """Start one with the strongest walls that the machine has.

    Returns:
        It, and why its walls are not the strongest there are, one line each.

    Raises:
        SandboxUnavailable: there are no walls here.
    """
    weaker: list[str] = []
    for tier in ("namespaces", "landlock") if sandbox == "auto" else (sandbox,):
        try:
            return WarmProcess(tier, limits, preload), weaker
        except OSError as error:
            weaker.append(f"{tier}: {error}")
    raise SandboxUnavailable(
        _(
            "no sandbox on this machine ({why}); `python -m autograder doctor` says how to "
            "mend it, `--sandbox none` runs without one"
        ).format(why="; ".join(weaker))
    )
