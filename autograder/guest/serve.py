"""The loop that serves an :class:`~autograder.guest.executor.Executor` inside a sandbox.

The first frame opens (the cells to run, the modules that may be imported, the answer's name), each
later one is a request. A body that goes out is ``{"reply": ...}`` or, while a request is pending,
``{"ask": ...}``, to which ``{"answer": ...}`` comes back. Every frame carries the number of its
request. Nothing here is a secret, and nothing that is sent is believed.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from autograder.guest import dispatcher
from autograder.guest.cells import fresh_main, run_cell
from autograder.guest.executor import Executor, _describe
from autograder.guest.plain import NotPlain
from autograder.guest.wire import HEADER, decode, encode

Read = Callable[[int], bytes]
"""Reads exactly so many bytes, or raises EOFError."""
Write = Callable[[bytes], None]
_ENOUGH = 2**16  # bytes that wait to be sent


class Channel:
    """Frames over two functions.

    Args:
        more: whether something lies there to be read. What is sent meanwhile waits, and leaves
            together: each time that the other process is woken costs more than a small call.
    """

    def __init__(self, read: Read, write: Write, more: Callable[[], bool] = lambda: False) -> None:
        self._read, self._write, self._more = read, write, more
        self._waiting: list[bytes] = []
        self._size = 0
        self.number = 0

    def receive(self) -> Any:
        """The next message; its number becomes that of what is sent."""
        length, self.number = HEADER.unpack(self._read(HEADER.size))
        return decode(self._read(length))

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, at the latest when there is nothing more to read."""
        data = encode(message, self.number)
        self._waiting.append(data)
        self._size += len(data)
        if self._size > _ENOUGH or not self._more():
            data, self._waiting, self._size = b"".join(self._waiting), [], 0
            self._write(data)


def read_exactly(fd: int, size: int) -> bytes:
    """So many bytes from a descriptor; EOFError where it ends before."""
    parts = []
    while size:
        part = os.read(fd, min(size, 2**20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_all(fd: int, data: bytes) -> None:
    """All of the bytes to a descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def rehearse() -> None:
    """Do once what every answer does, so that what torch sets up on first use is set up."""
    torch.set_num_threads(1)

    def answer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ y.transpose(-2, -1), dim=-1) @ y

    x = torch.ones(2, 3, 4)
    # Metering and an optimizer's step each load a few hundred modules of torch, for a second.
    request = {"op": "call", "object": 0, "args": [x, x], "seed": 0, "echo": True, "meter": True}
    request |= {"wrt": [0]}
    decode(encode(Executor(answer, quiet=False).handle(request), 0)[HEADER.size :])
    layer = Executor(torch.nn.Linear)
    built = layer.handle({"op": "call", "object": 0, "args": [4, 2]})["value"]
    state = layer.handle({"op": "state", "object": built.number})["value"]
    layer.handle({"op": "load", "object": built.number, "state": state})
    layer.handle({"op": "call", "object": built.number, "args": [x], "wrt": ["parameters"]})
    torch.optim.Adam([torch.nn.Parameter(x)]).step()
    for dtype in (torch.float16, torch.bfloat16):
        answer(x.to(dtype), x.to(dtype))  # torch asks first what the processor can do
    run_cell("import torch", "rehearsal", fresh_main())
    # The same draws in every sandbox: a grade depends on the submission alone.
    torch.manual_seed(0)
    random.seed(0)


def serve(channel: Channel) -> None:
    """Open, then answer requests until the other side closes."""
    # After a fork torch makes its pool of threads and its engine of gradients anew at the first
    # use, and without a lock: two threads of a learner's that came to it together would be refused,
    # or end the process.
    torch.set_num_threads(1)
    torch.autograd.Variable._execution_engine.is_checkpoint_valid()
    opening = channel.receive()
    # before the learner's code, which could put something else in its place
    seen = dispatcher.forbid(opening["forbid"])
    report, namespace = _start(opening)
    seen.clear()  # only what answers a check counts
    channel.send({"reply": report})
    if not report["found"]:
        channel.receive()  # nothing can be asked: wait for the end
        return
    one_at_a_time = threading.Lock()

    def ask(message: dict[str, Any]) -> dict[str, Any]:
        # a learner's threads may call an implementation at the same time
        with one_at_a_time:
            channel.send({"ask": message})
            answer: dict[str, Any] = channel.receive()["answer"]
            return answer

    executor = Executor(namespace[opening["name"]], forbid=opening["forbid"], ask=ask, quiet=False)
    while True:
        request = channel.receive()
        try:
            reply = executor.handle(request)
        except KeyboardInterrupt as error:
            reply = _describe(error)
        if seen:
            reply["forbidden"] = sorted({*reply.get("forbidden", ()), *seen})
            seen.clear()
        try:
            channel.send({"reply": reply})
        except NotPlain as error:
            channel.send({"reply": _describe(error)})


def _start(opening: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the cells; returns the report and their namespace."""
    provide(opening["modules"])
    namespace = fresh_main()
    reports = []
    for label, source in opening["cells"]:
        error = None
        try:
            run_cell(source, label, namespace)
        except BaseException as raised:  # SystemExit and KeyboardInterrupt end their cell alone
            error = _describe(raised)
        reports.append({"label": label, "error": error})
    return {"cells": reports, "found": opening["name"] in namespace}, namespace


class _Provided(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules whose sources came with the opening message."""

    def __init__(self, sources: dict[str, str]) -> None:
        self._sources = sources
        self._packages = {
            name.rsplit(".", depth)[0]
            for name in sources
            for depth in range(1, name.count(".") + 1)
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's spec, where it is one of ours."""
        if fullname not in self._sources and fullname not in self._packages:
            return None
        return importlib.util.spec_from_loader(
            fullname, self, is_package=fullname in self._packages
        )

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the module's source."""
        source = self._sources.get(module.__name__, "")
        exec(compile(source, f"{module.__name__}.py", "exec", dont_inherit=True), module.__dict__)  # noqa: S102


def provide(sources: dict[str, str]) -> None:
    """Make modules importable from their sources; parents of dotted names become packages."""
    if sources:
        sys.meta_path.insert(0, _Provided(sources))
