"""Owns the warm process and hands out links to fresh sandboxes."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from autograder.answer import Callbacks
from autograder.engine import scratch
from autograder.engine.environment import environment
from autograder.engine.errors import SandboxUnavailable
from autograder.engine.limits import Limits
from autograder.engine.link import SandboxLink, SocketTransport
from autograder.i18n import _

Sandbox = Literal["auto", "namespaces", "landlock", "none"]

_START = Path(__file__).parent / "warm" / "start.py"
# The user that sandboxes run as where root starts the engine: a number that nothing else uses.
_UNPRIVILEGED = 61_184
_START_SECONDS = 120.0
# what answers use beside torch; figures are drawn by cells that are not run
_PRELOAD = ("numpy", "triton.language", "triton.runtime.interpreter")


class Engine:
    """Opens answers in sandboxes, one fresh fork of the warm process for each.

    A context manager. Its methods may be called from several threads.

    Args:
        workers: how many sandboxes are kept ready: while one is judged, the next one is made.
        sandbox: ``auto`` takes the strongest walls that the machine has (``namespaces``, else
            ``landlock``); ``none`` runs answers in plain processes, and warns.
        limits: what one sandbox may use.
        preload: modules that the warm process imports besides torch, where they are installed.

    Attributes:
        tier: the walls in use: ``namespaces``, ``landlock`` or ``none``.
        weaker: why they are not the strongest, one line each.

    Raises:
        SandboxUnavailable: there are no walls here, and ``none`` was not asked for.
    """

    def __init__(
        self,
        *,
        workers: int = 1,
        sandbox: Sandbox = "auto",
        limits: Limits | None = None,
        preload: Sequence[str] = _PRELOAD,
    ) -> None:
        self.limits = limits or Limits()
        self._workers = workers
        self._preload = tuple(preload)
        self._lock = threading.Lock()
        self._warm: _WarmProcess | None = None
        self._ready: collections.deque[_Ordered] = collections.deque()
        self.weaker: list[str] = []
        self.tier = self._choose(sandbox)

    def _choose(self, sandbox: Sandbox) -> str:
        if sandbox == "none":
            warnings.warn(
                _("without a sandbox: the submissions' code can do whatever you can do"),
                stacklevel=3,
            )
            return "none"
        for tier in ("namespaces", "landlock") if sandbox == "auto" else (sandbox,):
            try:
                self._warm = _WarmProcess(tier, self.limits, self._preload)
            except OSError as error:
                self.weaker.append(f"{tier}: {error}")
            else:
                return tier
        raise SandboxUnavailable(
            _(
                "no sandbox on this machine ({why}); `python -m autograder doctor` says how to "
                "mend it, `--sandbox none` runs without one"
            ).format(why="; ".join(self.weaker))
        )

    def open(
        self,
        cells: Sequence[tuple[str, str]],
        name: str,
        *,
        modules: Mapping[str, str] | None = None,
        forbid: Iterable[str] = (),
        callbacks: Callbacks | None = None,
    ) -> SandboxLink:
        """Run cells in a fresh sandbox and link to what they define as ``name``.

        Args:
            cells: label and source of each, in order, in one namespace; an error ends its cell.
            name: the answer.
            modules: what may be imported beyond installed packages: dotted name to source.
            forbid: functions of torch that the answer may not call.
            callbacks: the judge's functions that the learner's code may be handed.

        Returns:
            A link; where the cells went beyond a limit or ended the process, it is lost, and its
            first request says so.

        Raises:
            SandboxUnavailable: no sandbox could be made, though the machine can make them.
        """
        ask = callbacks.answer if callbacks is not None else None
        link = self._take()
        link.answer_with(ask)
        link.open(
            {
                "cells": [[label, source] for label, source in cells],
                "modules": dict(modules or {}),
                "name": name,
                "forbid": [item.rsplit(".", 1)[-1] for item in forbid],
            }
        )
        return link

    def _take(self) -> SandboxLink:
        if self.tier == "none":
            from autograder.engine.bare import open_bare  # noqa: PLC0415 — rarely wanted

            return open_bare(self.limits)
        for attempt in (1, 2):
            with self._lock:
                try:
                    return self._take_ready()
                except OSError as error:
                    # The warm process was ended from outside: a fresh one takes its place.
                    self._stop()
                    if attempt == 2:
                        raise SandboxUnavailable(str(error)) from None
        raise AssertionError

    def _take_ready(self) -> SandboxLink:
        if self._warm is None:
            self._warm = _WarmProcess(self.tier, self.limits, self._preload)
        while len(self._ready) <= self._workers:
            self._ready.append(self._warm.order())
        return self._ready.popleft().collect()

    def _stop(self) -> None:
        for ordered in self._ready:
            ordered.cancel()
        self._ready.clear()
        if self._warm is not None:
            self._warm.stop()
            self._warm = None

    def close(self) -> None:
        """End the warm process and every sandbox."""
        with self._lock:
            self._stop()

    def __enter__(self) -> Engine:
        """Close at the end."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self.close()


class _Ordered:
    """A sandbox that the warm process was asked for and that may not be there yet."""

    def __init__(self, warm: _WarmProcess, fd: int, scratch: str) -> None:
        self._warm, self._fd, self._scratch = warm, fd, scratch
        self.transport: SocketTransport | None = None

    def arrived(self, pidfd: int) -> None:
        self.transport = SocketTransport(
            self._fd, pidfd, self._scratch, self._warm.limits.scratch_megabytes
        )

    def collect(self) -> SandboxLink:
        while self.transport is None:
            self._warm.next_arrival()
        link = SandboxLink(self.transport, self._warm.limits)
        link.await_ready()
        return link

    def cancel(self) -> None:
        if self.transport is None:
            os.close(self._fd)
        else:
            self.transport.kill()


class _WarmProcess:
    """The process started by :mod:`autograder.engine.warm.start`, seen from the engine.

    Raises:
        OSError: it could not put up its walls; the text says why.
    """

    def __init__(self, tier: str, limits: Limits, preload: Sequence[str]) -> None:
        if sys.platform != "linux":
            raise OSError(_("this is not Linux"))
        self.limits = limits
        self._ordered: collections.deque[_Ordered] = collections.deque()
        self._uid = _UNPRIVILEGED if os.geteuid() == 0 else None
        self._room = scratch.make(self._uid) if tier == "landlock" else None
        self._scratch = self._room.path if self._room else ""
        self._folders = 0
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_START_SECONDS)
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

    def _hear(self) -> tuple[dict[str, Any], list[int]]:
        data, fds, _flags, _address = socket.recv_fds(self._control, 65_536, 4)
        if not data:
            raise OSError(_("the warm process ended"))
        return json.loads(data), fds

    def order(self) -> _Ordered:
        """Ask for a sandbox, without waiting for it."""
        ours, theirs = socket.socketpair()
        folder = ""
        if self._scratch:
            self._folders += 1
            folder = os.path.join(self._scratch, str(self._folders))
            os.mkdir(folder, 0o700)
            if self._uid is not None:
                os.chown(folder, self._uid, self._uid)
        with ours, theirs:
            message = json.dumps({"scratch": folder}).encode()
            socket.send_fds(self._control, [message], [theirs.fileno()])
            self._ordered.append(_Ordered(self, ours.detach(), folder))
        return self._ordered[-1]

    def next_arrival(self) -> None:
        """Wait for the next sandbox that was asked for."""
        message, fds = self._hear()
        if "forked" not in message or len(fds) != 1:
            raise OSError(message.get("error", "an unknown message"))
        self._ordered.popleft().arrived(fds[0])

    def stop(self) -> None:
        """End it, and with it every sandbox."""
        self._control.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._room is not None:
            self._room.remove()
