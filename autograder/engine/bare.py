"""The trusted end of a process without walls (``--sandbox none``), on any system.

Reading and writing wait in two threads, so that limits hold on systems where a pipe cannot be
polled. Time is limited as in a sandbox; files, network and memory are not.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from pathlib import Path

import psutil

from autograder.engine import scratch
from autograder.engine.environment import environment
from autograder.engine.limits import Limits
from autograder.engine.link import SandboxLink

_START = Path(__file__).parent / "warm" / "start.py"
_CHUNK = 65_536


def open_bare(limits: Limits) -> SandboxLink:
    """Start a fresh process and wait until it listens."""
    link = SandboxLink(PipeTransport(), limits)
    link.await_ready()
    return link


class PipeTransport:
    """See :class:`autograder.engine.link.Transport`."""

    def __init__(self) -> None:
        self._room = scratch.make()
        folder = self._room.path
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-B", str(_START), json.dumps({"tier": "none"})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment() | {"HOME": folder, "TMPDIR": folder},
            cwd=folder,
            bufsize=0,
        )
        self._watched = psutil.Process(self._process.pid)
        self._arrived: queue.Queue[bytes] = queue.Queue(maxsize=16)
        self._leaving: queue.Queue[bytes] = queue.Queue(maxsize=1)
        self._news = threading.Event()
        self._rest = b""
        for target in (self._read, self._write):
            threading.Thread(target=target, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            while part := self._process.stdout.read(_CHUNK):
                self._arrived.put(part)
                self._news.set()
        self._arrived.put(b"")
        self._news.set()

    def _write(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            while part := self._leaving.get():
                self._process.stdin.write(part)
                self._news.set()

    def send_some(self, data: memoryview) -> int:
        """See :class:`autograder.engine.link.Transport`."""
        part = bytes(data[:_CHUNK])
        try:
            self._leaving.put_nowait(part)
        except queue.Full:
            return 0
        return len(part)

    def receive_some(self, size: int) -> bytes | None:
        """See :class:`autograder.engine.link.Transport`."""
        if not self._rest:
            try:
                self._rest = self._arrived.get_nowait()
            except queue.Empty:
                return None
            if not self._rest:
                self._arrived.put(b"")  # the end stays the end
                raise EOFError
        part, self._rest = self._rest[:size], self._rest[size:]
        return part

    def wait(self, seconds: float, *, to_send: bool = False, to_receive: bool = False) -> None:
        """See :class:`autograder.engine.link.Transport`. News of both kinds wakes it."""
        if self._arrived.empty():
            self._news.wait(seconds)
        self._news.clear()

    def cpu_seconds(self) -> float:
        """See :class:`autograder.engine.link.Transport`."""
        try:
            times = self._watched.cpu_times()
        except psutil.Error as error:
            raise OSError(str(error)) from None
        return float(times.user + times.system)

    def asleep(self) -> bool:
        """See :class:`autograder.engine.link.Transport`."""
        try:
            return bool(self._watched.status() == psutil.STATUS_SLEEPING)
        except psutil.Error:
            return False

    def queued(self) -> float | None:
        """See :class:`autograder.engine.link.Transport`."""
        return None

    def over_quota(self) -> bool:
        """See :class:`autograder.engine.link.Transport`."""
        return False

    def kill(self) -> None:
        """See :class:`autograder.engine.link.Transport`: the process and all that it started."""
        if self._process.poll() is None:
            with contextlib.suppress(psutil.Error):
                for child in self._watched.children(recursive=True):
                    child.kill()
            self._process.kill()
        self._process.wait()
        self._room.remove()
        with contextlib.suppress(queue.Full):
            self._leaving.put_nowait(b"")
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        while not self._arrived.empty():
            self._arrived.get_nowait()  # lets a reader that waits for room end
