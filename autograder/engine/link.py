"""The trusted end of a sandbox: one request out, one reply back, and every byte of it doubted.

Everything that arrives comes from a process in which a learner's code runs, which can write to
the pipe what it likes. So a reply must carry the number of the request that is pending (drawn at
random, so that nothing can be written ahead), be plain data of the shape that the request calls
for, be there before the limits are reached, and be alone. Anything else ends the link.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import secrets
import select
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor

from autograder.answer import LinkLost
from autograder.engine.limits import Limits
from autograder.guest.plain import NotPlain, reach, tensors_in
from autograder.guest.wire import HEADER, Garbled, decode, encode, frame
from autograder.i18n import _

T = TypeVar("T")
Ask = Callable[[dict[str, Any]], dict[str, Any]]
_PART = 2**16
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")  # of a function of torch
_SHAPE = re.compile(r"\((\d+,|\d+(, \d+)+)?\)")
_MAX_FILES = 2_048
_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
_CORES = os.cpu_count() or 1
_TICK = 0.2  # seconds between looks at a process that takes its time
_MOMENTS = random.Random()  # not the generator that a check may seed


class Transport(Protocol):
    """Bytes to and from a sandbox's process, and what can be known of it from outside."""

    def send_some(self, data: memoryview) -> int:
        """Send what can be sent without waiting; 0 where nothing can."""
        ...

    def receive_some(self, size: int) -> bytes | None:
        """Receive up to so many bytes without waiting; None where nothing is there yet.

        Raises:
            EOFError: the other side has closed.
        """
        ...

    def wait(self, seconds: float, *, to_send: bool = False, to_receive: bool = False) -> None:
        """Wait until bytes can be sent, or are there, at most so long."""
        ...

    def cpu_seconds(self) -> float:
        """Processor time that the process has used; OSError when it has ended."""
        ...

    def asleep(self) -> bool:
        """Whether every thread of the process waits for something that is no processor."""
        ...

    def queued(self) -> float | None:
        """How long its threads have waited for a processor; None where nobody counts that."""
        ...

    def over_quota(self) -> bool:
        """Whether its scratch holds more than it may, where nothing else bounds that."""
        ...

    def kill(self) -> None:
        """End the process, and all below it."""
        ...


class _Clock:
    """Measures one request against the limits.

    Who sleeps is not slowed down by a busy machine, so sleep counts as work does: real time in
    which the process neither worked nor queued for a processor, nor this one here did. Where
    queueing is not counted, sleep counts only where hardly any work was done between two looks.
    """

    def __init__(self, transport: Transport, seconds: float, wall_factor: float) -> None:
        self._transport, self._seconds = transport, seconds
        self._cpu = self._start_cpu = transport.cpu_seconds()
        self._wall = self._seen = time.monotonic()
        self._wall_seconds = seconds * wall_factor
        self._queued: float | None = None  # at the last look, with our own time
        self.slept = 0.0

    def pause(self) -> float:
        """How long to wait before the next look.

        Raises:
            LinkLost: a limit is reached.
        """
        now, cpu = time.monotonic(), self._transport.cpu_seconds()
        if now - self._seen >= _TICK / 2:
            self._look(now, cpu)
            if self._transport.over_quota():
                raise LinkLost("memory")
        used = cpu - self._start_cpu + self.slept
        if used >= self._seconds or now - self._wall >= self._wall_seconds:
            raise LinkLost("timeout")
        # at a moment that the learner's code cannot foresee: it could be at work just then
        tick = _TICK * _MOMENTS.uniform(0.6, 1.0)
        return min(tick, max(0.005, (self._seconds - used) / _CORES))

    def _look(self, now: float, cpu: float) -> None:
        queued = self._transport.queued()
        if queued is not None:
            queued += _own_seconds()
        real, worked = now - self._seen, cpu - self._cpu
        idle = real if worked < 0.001 else 0.0
        if queued is not None and self._queued is not None:
            idle = real - worked - (queued - self._queued)
        if idle > 0 and self._transport.asleep():
            self.slept += idle
        self._seen, self._cpu, self._queued = now, cpu, queued

    def excuse(self, seconds: float) -> None:
        """Time that the trusted side took meanwhile."""
        self._wall += seconds
        self._seen, self._queued = time.monotonic(), None


def _own_seconds() -> float:
    """How long this thread has worked, and waited for a processor: no sleep of the other side's."""
    return time.thread_time() + (_waited("/proc/thread-self") or 0.0)


def _waited(task: str) -> float | None:
    """How long a thread has waited for a processor."""
    try:
        with open(f"{task}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


class SandboxLink:
    """A link (:class:`autograder.answer.Link`) to an answer in a sandbox.

    Args:
        transport: to the process.
        limits: what it may use.

    Attributes:
        startup: the report of the cells, ``{"cells": [{"label", "error"}], "found": bool}``, where
            ``error`` is None or ``{"error", "text", "line", "unanswered"}``; None where there is
            none to be had.
        lost: why the link is lost, or None.
        cpu_seconds: processor time at the end of the last request.
    """

    def __init__(self, transport: Transport, limits: Limits) -> None:
        self._transport, self._limits = transport, limits
        self._ask: Ask | None = None
        self._asks = 0
        self._ask_seconds = 0.0
        self._slept = 0.0
        self.startup: dict[str, Any] | None = None
        self.lost: str | None = None
        self.cpu_seconds = 0.0

    def await_ready(self) -> None:
        """Wait for the walls to stand. No learner's code has run in the process before that.

        Raises:
            OSError: they do not; the text says which.
        """
        try:
            message, _ = self._receive(_Clock(self._transport, 30, self._limits.wall_factor))
        except (LinkLost, Garbled, EOFError, OSError) as error:
            raise OSError(f"a sandbox did not start ({error})") from None
        if message != {"ready": True}:
            raise OSError(f"a sandbox did not start ({message.get('failed')})")

    def answer_with(self, ask: Ask | None) -> None:
        """What answers calls of the judge's functions."""
        self._ask = ask

    def open(self, opening: dict[str, Any]) -> None:
        """Run the cells. A link that is lost here says so at the first request."""

        def start() -> dict[str, Any]:
            report = self._converse(opening, self._limits.startup_seconds)
            if not _startup_is_well_formed(report):
                raise Garbled("not a report")
            return cast(dict[str, Any], report)

        with contextlib.suppress(LinkLost):
            self.startup = self._exchange(start)

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send one request of :mod:`autograder.guest.executor`, return its reply.

        Raises:
            LinkLost: ``timeout``, ``memory``, ``crashed`` or ``garbled``; from then on always.
        """
        if self.lost is None and self.startup is not None and not self.startup["found"]:
            return {
                "error": "NameError",
                "text": "the answer is not defined",
                "line": None,
                "unanswered": False,
            }
        seconds = self._limits.request_seconds
        return self._exchange(
            lambda: checked(message["op"], self._converse(message, seconds)),
        )

    def ask_all(self, requests: Sequence[bytes], seconds: float) -> list[bytes]:
        """Send several requests at once, and return the body of each reply.

        The learner's code could look at what it will be asked next. It could also have waited with
        every reply until the last request was there: what a check tells it is no secret, and what
        it replies is judged all the same.

        Args:
            requests: packed by :func:`autograder.guest.wire.pack`; none may be a callback's.
            seconds: for all of them together.

        Returns:
            What :func:`read_reply` reads.

        Raises:
            LinkLost: as :meth:`request` does; nothing is known of any of the replies then.
        """
        return self._exchange(lambda: self._converse_at_once(requests, seconds))

    def close(self) -> None:
        """End the process. What it was doing is of no interest any longer."""
        self.lost = self.lost or "crashed"
        self._transport.kill()

    def __enter__(self) -> SandboxLink:
        """Close at the end."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self.close()

    # --- one exchange

    def _exchange(self, converse: Callable[[], T]) -> T:
        if self.lost is not None:
            raise LinkLost(self.lost)
        try:
            reply = converse()
            if self._transport.over_quota():
                raise LinkLost("memory")
            with contextlib.suppress(OSError):  # it may have ended itself since
                self.cpu_seconds = self._transport.cpu_seconds()
            return reply
        except LinkLost as lost:
            reason = lost.reason
        except (Garbled, NotPlain):
            reason = "garbled"
        except (EOFError, OSError):
            reason = "crashed"
        self.close()
        self.lost = reason
        raise LinkLost(reason)

    def _converse(self, message: dict[str, Any], seconds: float) -> Any:
        clock = _Clock(self._transport, seconds, self._limits.wall_factor)
        number = secrets.randbits(64)
        self._send(message, number, clock)
        while True:
            body, echoed = self._receive(clock)
            if echoed != number or type(body) is not dict or len(body) != 1:
                raise Garbled("not the reply to this request")
            if "reply" in body:
                self._account_for(clock)
                return body["reply"]
            start = time.monotonic()
            answer = self._answer(body.get("ask"))
            clock.excuse(time.monotonic() - start)
            self._send({"answer": answer}, number, clock)

    def _converse_at_once(self, requests: Sequence[bytes], seconds: float) -> list[bytes]:
        clock = _Clock(self._transport, seconds, self._limits.wall_factor)
        number = secrets.randbits(64)
        self._refuse_what_lies_there()
        leaving = memoryview(b"".join(frame(body, number) for body in requests))
        arrived, start, total = bytearray(), 0, 0
        bodies: list[bytes] = []
        while len(bodies) < len(requests):
            sent = self._transport.send_some(leaving) if leaving else 0
            leaving = leaving[sent:]
            part = self._transport.receive_some(_PART)
            if part is None:
                if not sent:
                    waits = bool(leaving)
                    self._transport.wait(clock.pause(), to_send=waits, to_receive=True)
                continue
            arrived += part
            total += len(part)
            if total > self._limits.reply_bytes:
                raise Garbled("more than replies may be")
            while len(arrived) - start >= HEADER.size:
                length, echoed = HEADER.unpack_from(arrived, start)
                if echoed != number or length > self._limits.reply_bytes:
                    raise Garbled("not a reply to these requests")
                end = start + HEADER.size + length
                if len(arrived) < end:
                    break
                bodies.append(bytes(arrived[start + HEADER.size : end]))
                start = end
        if len(bodies) > len(requests) or len(arrived) > start:
            raise Garbled("more than was asked for")
        self._account_for(clock)
        return bodies

    def _account_for(self, clock: _Clock) -> None:
        # work in all requests together is limited by the process's own limit
        self._slept += clock.slept
        if self._slept > self._limits.total_seconds:
            raise LinkLost("timeout")

    def _refuse_what_lies_there(self) -> None:
        # It answers nothing that was asked.
        if self._transport.receive_some(1):
            raise Garbled("a reply before the request")

    def _send(self, message: dict[str, Any], number: int, clock: _Clock) -> None:
        self._refuse_what_lies_there()
        data = memoryview(encode(message, number))
        while data:
            sent = self._transport.send_some(data)
            data = data[sent:]
            if not sent:
                self._transport.wait(clock.pause(), to_send=True)

    def _receive(self, clock: _Clock) -> tuple[Any, int]:
        length, number = HEADER.unpack(self._receive_exactly(HEADER.size, clock))
        if length > self._limits.reply_bytes:
            raise Garbled("a reply longer than replies may be")
        return decode(bytes(self._receive_exactly(length, clock))), number

    def _receive_exactly(self, size: int, clock: _Clock) -> bytearray:
        # grows with what arrives, not with what was announced
        data = bytearray()
        while len(data) < size:
            part = self._transport.receive_some(min(size - len(data), 2**20))
            if part is None:
                self._transport.wait(clock.pause(), to_receive=True)
            else:
                data += part
        return data

    # --- calls of the judge's functions

    def _answer(self, ask: Any) -> dict[str, Any]:
        if not _ask_is_well_formed(ask):
            raise Garbled("not a call")
        self._asks += 1
        if self._ask is None or self._asks > self._limits.asks:
            raise LinkLost("timeout" if self._ask else "garbled")
        given = (ask.get("args", ()), ask.get("kwargs", {}))
        if (
            _weight(given) > self._limits.ask_elements
            or reach(tensors_in(given)) > self._limits.ask_reach
        ):
            # This runs in the trusted process, where no sandbox bounds memory and time.
            return {"error": _("a test may call an implementation with small inputs only")}
        start = time.process_time()
        answer = self._ask(ask)
        self._ask_seconds += time.process_time() - start
        if self._ask_seconds > self._limits.ask_seconds:
            raise LinkLost("timeout")
        return answer


def checked(op: str, reply: Any) -> dict[str, Any]:
    """A reply of the shape that its request calls for; its values are the judge's business.

    Raises:
        Garbled: of another shape.
        LinkLost: the learner's code ran out of memory.
    """
    if not _reply_is_well_formed(op, reply):
        raise Garbled("not a reply to that request")
    if _ran_out_of_memory(reply):
        raise LinkLost("memory")
    return cast(dict[str, Any], reply)


def read_reply(op: str, body: bytes) -> dict[str, Any]:
    """What one of the bodies says that :meth:`SandboxLink.ask_all` returned.

    Args:
        op: that of its request.

    Raises:
        LinkLost: it is no such reply, or it says that memory ran out.
    """
    try:
        message = decode(body)
        if type(message) is not dict or message.keys() != {"reply"}:
            raise Garbled("not a reply")
        return checked(op, message["reply"])
    except (Garbled, NotPlain):
        raise LinkLost("garbled") from None


def _weight(given: Any) -> int:
    """Elements of all tensors, and the product of all numbers: what a function may allocate."""
    elements, product, pending = 0, 1, [given]
    while pending:
        item = pending.pop()
        if isinstance(item, Tensor):
            elements += item.numel()
            if item.numel() and item.dtype in _INTEGERS:
                # no abs: that of the least number is negative
                product *= max(1, -int(item.min()), int(item.max()))
            elif item.ndim == 0 and item.dtype.is_floating_point and item.isfinite():
                product *= max(1, int(item.abs()))
        elif type(item) is int:
            product *= max(1, abs(item))
        elif type(item) is float and math.isfinite(item):
            product *= max(1, int(abs(item)))
        elif type(item) is dict:
            pending += item.values()
        elif type(item) in (list, tuple):
            pending += item
        product = min(product, 2**63)
    return max(elements, product)


def _ask_is_well_formed(ask: Any) -> bool:
    if type(ask) is not dict:
        return False
    if ask.keys() == {"callback", "args", "kwargs", "requires_grad"}:
        return (
            type(ask["callback"]) is int
            and ask["callback"] >= 0
            and type(ask["args"]) is list
            and type(ask["kwargs"]) is dict
            and type(ask["requires_grad"]) is bool
        )
    return (
        ask.keys() == {"backward", "cotangents"}
        and type(ask["backward"]) is int
        and type(ask["cotangents"]) is list
    )


def _error_is_well_formed(error: Any) -> bool:
    return (
        type(error) is dict
        and error.keys() - {"forbidden"} == {"error", "text", "line", "unanswered"}
        and type(error["error"]) is str
        and len(error["error"]) <= 100
        and type(error["text"]) is str
        and len(error["text"]) <= 1_000
        and (error["line"] is None or type(error["line"]) is int)
        and type(error["unanswered"]) is bool
    )


def _startup_is_well_formed(report: Any) -> bool:
    return (
        type(report) is dict
        and report.keys() == {"cells", "found"}
        and type(report["found"]) is bool
        and type(report["cells"]) is list
        and all(
            type(cell) is dict
            and cell.keys() == {"label", "error"}
            and type(cell["label"]) is str
            and (cell["error"] is None or _error_is_well_formed(cell["error"]))
            for cell in report["cells"]
        )
    )


def _reply_is_well_formed(op: Any, reply: Any) -> bool:
    """Whether a reply has the shape that its request calls for; its values are the judge's."""
    if type(reply) is not dict:
        return False
    forbidden = reply.get("forbidden", [])
    if (
        type(forbidden) is not list
        or len(forbidden) > 100
        or not all(type(name) is str and _NAME.fullmatch(name) for name in forbidden)
    ):
        return False
    if "error" in reply:
        return _error_is_well_formed(reply)
    if "value" not in reply or not reply.keys() <= {"value", "grads", "args", "meter", "forbidden"}:
        return False
    if op in ("state", "parameters") and not _holds(reply["value"], Tensor):
        return False
    if op == "shapes" and not (
        _holds(reply["value"], str) and all(map(_SHAPE.fullmatch, reply["value"].values()))
    ):
        return False
    return (
        _holds(reply.get("grads", {}), Tensor, type(None))
        and type(reply.get("args", [])) is list
        and _holds(reply.get("meter", {}), int)
    )


def _holds(mapping: Any, *kinds: type) -> bool:
    return type(mapping) is dict and all(type(item) in kinds for item in mapping.values())


def _ran_out_of_memory(reply: dict[str, Any]) -> bool:
    kind, text = reply.get("error"), reply.get("text", "")
    return kind == "MemoryError" or (kind == "RuntimeError" and "can't allocate memory" in text)


class SocketTransport:
    """A sandbox on Linux: a socket, and a descriptor of its process.

    Args:
        scratch: in the second tier, the sandbox's folder, which lies on a disk without quota.
        megabytes: how much may be in it.
    """

    def __init__(self, fd: int, pidfd: int, scratch: str = "", megabytes: int = 0) -> None:
        os.set_blocking(fd, False)
        self._scratch, self._quota = scratch, megabytes * 2**20
        self._fd, self._pidfd = fd, pidfd
        self._waits: dict[str, float] = {}  # by thread
        self._pid = _pid_of(pidfd)
        # clock_getcpuclockid(3): the clock of another process
        self._clock = (~self._pid << 3) | 2

    def send_some(self, data: memoryview) -> int:
        """See :class:`Transport`."""
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0

    def receive_some(self, size: int) -> bytes | None:
        """See :class:`Transport`."""
        try:
            part = os.read(self._fd, size)
        except BlockingIOError:
            return None
        if not part:
            raise EOFError
        return part

    def wait(self, seconds: float, *, to_send: bool = False, to_receive: bool = False) -> None:
        """See :class:`Transport`."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT * to_send | select.POLLIN * to_receive)
        poll.poll(math.ceil(seconds * 1000))

    def cpu_seconds(self) -> float:
        """See :class:`Transport`."""
        return time.clock_gettime(self._clock)

    def asleep(self) -> bool:
        """See :class:`Transport`."""
        tasks = f"/proc/{self._pid}/task"
        try:
            for task in os.listdir(tasks):
                with open(f"{tasks}/{task}/stat", "rb") as file:
                    if file.read().rpartition(b")")[2].split()[0] not in (b"S", b"T", b"t"):
                        return False
        except OSError:
            return False
        return True

    def queued(self) -> float | None:
        """See :class:`Transport`. What has ended counts with what it had waited when last seen."""
        tasks = f"/proc/{self._pid}/task"
        try:
            for task in os.listdir(tasks):
                waited = _waited(f"{tasks}/{task}")
                if waited is not None:
                    self._waits[task] = waited
        except OSError:
            return None
        return sum(self._waits.values()) if self._waits else None

    def over_quota(self) -> bool:
        """See :class:`Transport`."""
        if not self._scratch:
            return False
        size = 0
        with os.scandir(self._scratch) as entries:
            for count, entry in enumerate(entries):
                with contextlib.suppress(FileNotFoundError):
                    size += max(4096, entry.stat(follow_symlinks=False).st_size)
                if size > self._quota or count > _MAX_FILES:
                    return True
        return False

    def kill(self) -> None:
        """See :class:`Transport`. The first process of its namespace takes all others along."""
        if self._fd < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        if self._scratch:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            poll.poll(5_000)  # its end; until then it could still write
            shutil.rmtree(self._scratch, ignore_errors=True)
        os.close(self._fd)
        os.close(self._pidfd)
        self._fd = self._pidfd = -1


def _pid_of(pidfd: int) -> int:
    """The process's number as this process sees it."""
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="utf-8") as info:
        for line in info:
            if line.startswith("Pid:"):
                return int(line.split()[1])
    raise OSError("no process behind the descriptor")
