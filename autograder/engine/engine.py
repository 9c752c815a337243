"""Owns the warm process and hands out links to fresh sandboxes."""

from __future__ import annotations

import collections
import contextlib
import os
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence

from autograder.answer import Callbacks
from autograder.engine import warm_process
from autograder.engine.errors import SandboxUnavailable
from autograder.engine.limits import Limits
from autograder.engine.link import SandboxLink, SocketTransport
from autograder.engine.warm_process import PRELOAD, Door, Ordered, Orders, Sandbox, WarmProcess
from autograder.i18n import _


class Engine:
    """Opens answers in sandboxes, one fresh fork of the warm process for each.

    A context manager. Its methods may be called from several threads.

    Args:
        workers: how many sandboxes are kept ready: while one is judged, the next one is made.
        sandbox: ``auto`` takes the strongest walls that the machine has (``namespaces``, else
            ``landlock``); ``none`` runs answers in plain processes, and warns.
        limits: what one sandbox may use.
        preload: modules that the warm process imports besides torch, where they are installed.
        door: to another process's warm process, which is used for as long as it lives.

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
        preload: Sequence[str] = PRELOAD,
        door: Door | None = None,
    ) -> None:
        self.limits = door.limits if door else limits or Limits()
        self._workers = workers
        self._preload = tuple(preload)
        self._lock = threading.Lock()
        self._warm: Orders | None = None
        self._ready: collections.deque[Ordered] = collections.deque()
        self.weaker: list[str] = []
        self.tier = self._choose(sandbox, door)

    def _choose(self, sandbox: Sandbox, door: Door | None) -> str:
        if door is not None:
            with contextlib.suppress(OSError):  # it is gone: the first sandbox needs another one
                self._warm = door.enter()
            return door.tier
        if sandbox == "none":
            warnings.warn(
                _("without a sandbox: the submissions' code can do whatever you can do"),
                stacklevel=3,
            )
            return "none"
        warm, self.weaker = warm_process.start(sandbox, self.limits, self._preload)
        self._warm = warm
        return warm.tier

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
            self._warm = WarmProcess(self.tier, self.limits, self._preload)
        while len(self._ready) <= self._workers:
            self._ready.append(self._warm.order())
        ordered = self._ready.popleft()
        try:
            while ordered.pidfd is None:
                self._warm.next_arrival()
        except OSError:
            os.close(ordered.fd)
            raise
        link = SandboxLink(self._transport(ordered, ordered.pidfd), self.limits)
        link.await_ready()
        return link

    def _transport(self, ordered: Ordered, pidfd: int) -> SocketTransport:
        megabytes = self.limits.scratch_megabytes
        return SocketTransport(ordered.fd, pidfd, ordered.scratch, megabytes)

    def _stop(self) -> None:
        for ordered in self._ready:
            if ordered.pidfd is None:
                os.close(ordered.fd)
            else:
                self._transport(ordered, ordered.pidfd).kill()
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
