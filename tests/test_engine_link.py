"""The trusted end of a link, with someone at the other end who says what the test wants."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

import pytest
import torch

from autograder.answer import LinkLost
from autograder.engine import link
from autograder.engine.limits import Limits
from autograder.engine.link import SandboxLink, read_reply
from autograder.guest.wire import HEADER, decode, encode, pack

LIMITS = Limits(
    request_seconds=0.2,
    wall_factor=10,
    reply_bytes=10_000,
    asks=3,
    ask_elements=100,
    ask_reach=1_000,
)


class Wire:
    """A transport over a socket pair; the test holds the other end and the clock."""

    def __init__(self):
        ours, self.theirs = socket.socketpair()
        ours.setblocking(False)
        self.ours = ours
        self.killed = False
        self.cpu = 0.0
        self.sleeping = False

    def send_some(self, data):
        try:
            return self.ours.send(data)
        except BlockingIOError:
            return 0

    def receive_some(self, size):
        try:
            part = self.ours.recv(size)
        except BlockingIOError:
            return None
        if not part:
            raise EOFError
        return part

    def wait(self, seconds, *, to_send=False, to_receive=False):
        time.sleep(min(seconds, 0.002))
        self.cpu += 0.01 if not self.sleeping else 0

    def cpu_seconds(self):
        return self.cpu

    def asleep(self):
        return self.sleeping

    def queued(self):
        return None

    def over_quota(self):
        return False

    def kill(self):
        self.killed = True
        self.ours.close()


@pytest.fixture
def wire():
    wire = Wire()
    yield wire
    wire.ours.close()
    wire.theirs.close()


def request(wire, respond, message=None, ask=None, link=None):
    """One request; ``respond(number)`` gives the bytes that the other side writes."""

    def other_side():
        header = wire.theirs.recv(HEADER.size, socket.MSG_WAITALL)
        length, number = HEADER.unpack(header)
        wire.theirs.recv(length, socket.MSG_WAITALL)
        with contextlib.suppress(struct.error, OSError):  # the link was ended meanwhile
            for part in respond(number):
                wire.theirs.sendall(part)

    thread = threading.Thread(target=other_side)
    thread.start()
    link = link or SandboxLink(wire, LIMITS)
    link.answer_with(ask)
    try:
        return link.request(message or {"op": "call", "object": 0})
    finally:
        thread.join()


def test_a_reply(wire):
    reply = {"value": torch.ones(2), "grads": {"0": None}, "args": [1], "meter": {"largest": 3}}
    got = request(wire, lambda number: [encode({"reply": reply}, number)])
    assert torch.equal(got.pop("value"), reply.pop("value"))
    assert got == reply


def test_a_reply_in_pieces(wire):
    def respond(number):
        data = encode({"reply": {"value": "x" * 5_000}}, number)
        return [data[i : i + 7] for i in range(0, len(data), 7)]

    assert request(wire, respond) == {"value": "x" * 5_000}


ERROR = {"error": "ValueError", "text": "", "line": None, "unanswered": False}
GARBLED = {
    "another number": lambda n: [encode({"reply": {"value": 1}}, n ^ 1)],
    "no number": lambda n: [encode({"reply": {"value": 1}}, 0)],
    "too long": lambda n: [HEADER.pack(10_001, n)],
    "no dict": lambda n: [encode([1], n)],
    "two things": lambda n: [encode({"reply": {"value": 1}, "ask": {}}, n)],
    "neither": lambda n: [encode({"verdict": {"passed": True}}, n)],
    "a reply that is a list": lambda n: [encode({"reply": [1]}, n)],
    "no value": lambda n: [encode({"reply": {}}, n)],
    "a verdict": lambda n: [encode({"reply": {"value": 1, "passed": True}}, n)],
    "gradients in a list": lambda n: [encode({"reply": {"value": 1, "grads": [1]}}, n)],
    "gradients that are texts": lambda n: [encode({"reply": {"value": 1, "grads": {"0": ""}}}, n)],
    "a meter of bools": lambda n: [encode({"reply": {"value": 1, "meter": {"l": True}}}, n)],
    "arguments in a dict": lambda n: [encode({"reply": {"value": 1, "args": {}}}, n)],
    "forbidden numbers": lambda n: [encode({"reply": {"value": 1, "forbidden": [1]}}, n)],
    "many forbidden": lambda n: [encode({"reply": {"value": 1, "forbidden": ["x"] * 101}}, n)],
    "a long name at the end": lambda n: [
        encode({"reply": {"value": 1, "forbidden": ["x"] * 99 + ["x" * 101]}}, n)
    ],
    "a name that is none": lambda n: [
        encode({"reply": {"value": 1, "forbidden": ["<script>alert(1)</script>"]}}, n)
    ],
    "an error without a line": lambda n: [encode({"reply": {"error": "E", "text": ""}}, n)],
    "an error with a value": lambda n: [encode({"reply": ERROR | {"value": 1}}, n)],
    "a long error": lambda n: [encode({"reply": ERROR | {"error": "E" * 200}}, n)],
    "a call of nothing": lambda n: [encode({"ask": {"callback": "0"}}, n)],
    "a call that nobody answers": lambda n: [encode({"ask": {"backward": 0, "cotangents": []}}, n)],
}


@pytest.mark.parametrize("respond", GARBLED.values(), ids=GARBLED)
def test_garbled(wire, respond):
    with pytest.raises(LinkLost, match="garbled"):
        request(wire, respond)
    assert wire.killed


def ask_two(wire, respond):
    """Two requests in one message; what is read of the replies."""

    def other_side():
        for _ in range(2):
            header = wire.theirs.recv(HEADER.size, socket.MSG_WAITALL)
            length, number = HEADER.unpack(header)
            wire.theirs.recv(length, socket.MSG_WAITALL)
        with contextlib.suppress(struct.error, OSError):
            for part in respond(number):
                wire.theirs.sendall(part)

    thread = threading.Thread(target=other_side)
    thread.start()
    bodies = [pack({"op": "call", "object": 0, "args": [n]}) for n in range(2)]
    try:
        return [read_reply("call", body) for body in SandboxLink(wire, LIMITS).ask_all(bodies, 0.2)]
    finally:
        thread.join()


def test_two_replies_in_pieces(wire):
    def respond(number):
        data = b"".join(encode({"reply": {"value": "x" * n}}, number) for n in (3_000, 1))
        return [data[i : i + 7] for i in range(0, len(data), 7)]

    assert ask_two(wire, respond) == [{"value": "x" * 3_000}, {"value": "x"}]


RIGHT = {"reply": {"value": 1}}
GARBLED_TWICE = {
    **{name: lambda n, f=f: [encode(RIGHT, n), *f(n)] for name, f in GARBLED.items()},
    "one too many": lambda n: [b"".join([encode(RIGHT, n)] * 3)],
    "a byte too many": lambda n: [b"".join([encode(RIGHT, n)] * 2) + b"x"],
    "together too long": lambda n: [encode({"reply": {"value": "x" * 6_000}}, n)] * 2,
}


@pytest.mark.parametrize("respond", GARBLED_TWICE.values(), ids=GARBLED_TWICE)
def test_garbled_among_several(wire, respond):
    with pytest.raises(LinkLost, match="garbled"):
        ask_two(wire, respond)


@pytest.mark.parametrize("count", [0, 1])
def test_replies_that_do_not_come(wire, count):
    with pytest.raises(LinkLost, match="timeout"):
        ask_two(wire, lambda n: [encode(RIGHT, n)] * count)


def test_a_state_must_hold_tensors(wire):
    with pytest.raises(LinkLost, match="garbled"):
        request(
            wire,
            lambda n: [encode({"reply": {"value": {"w": 1}}}, n)],
            {"op": "state", "object": 0},
        )


@pytest.mark.parametrize("shape", ["(2)", "(2, x)", "<b>", [2]])
def test_shapes_must_be_shapes(wire, shape):
    message = {"op": "shapes", "object": 0}
    right = {"a": "(2, 3)", "b": "(4,)", "c": "()"}
    assert request(wire, lambda n: [encode({"reply": {"value": right}}, n)], message)
    with pytest.raises(LinkLost, match="garbled"):
        request(wire, lambda n: [encode({"reply": {"value": {"a": shape}}}, n)], message)


def test_a_second_reply_is_never_read(wire):
    request(wire, lambda n: [encode({"reply": {"value": 1}}, n)] * 2)
    link = SandboxLink(wire, LIMITS)
    with pytest.raises(LinkLost, match="garbled"):
        link.request({"op": "call", "object": 0})


def test_what_is_lost_stays_lost(wire):
    wire.theirs.close()
    link = SandboxLink(wire, LIMITS)
    for _ in range(2):
        with pytest.raises(LinkLost, match="crashed"):
            link.request({"op": "call", "object": 0})
    assert link.lost == "crashed"


def test_an_end_in_the_middle_of_a_reply(wire):
    def respond(number):
        yield encode({"reply": {"value": "abc"}}, number)[:-1]
        wire.theirs.shutdown(socket.SHUT_RDWR)

    with pytest.raises(LinkLost, match="crashed"):
        request(wire, respond)


def test_processor_time_decides(wire):
    with pytest.raises(LinkLost, match="timeout"):
        request(wire, lambda number: [])
    assert wire.cpu >= LIMITS.request_seconds


def test_sleep_counts_as_work(wire):
    wire.sleeping = True
    start = time.monotonic()
    with pytest.raises(LinkLost, match="timeout"):
        request(wire, lambda number: [])
    # well before the backstop of 2 s, though no processor time was used
    assert time.monotonic() - start < LIMITS.request_seconds * LIMITS.wall_factor
    assert wire.cpu == 0


class Drip:
    """A process that works a little between two looks, and waits the rest of the time."""

    def __init__(self, worked, queued, *, asleep=True):
        self.now = self.cpu = 0.0
        self.waited = 0.0 if queued is not None else None
        self._worked, self._queued, self._asleep = worked, queued, asleep

    def pass_by(self, seconds):
        self.now += seconds
        self.cpu += self._worked * seconds
        if self.waited is not None:
            self.waited += self._queued * seconds

    def cpu_seconds(self):
        return self.cpu

    def queued(self):
        return self.waited

    def asleep(self):
        return self._asleep

    def over_quota(self):
        return False


@pytest.mark.parametrize(
    ("drip", "ours", "until"),
    [
        pytest.param(Drip(0.06, 0.0), 0.0, 5, id="work and sleep in turn"),
        pytest.param(Drip(0.06, 0.94), 0.0, 50, id="a busy machine"),
        pytest.param(Drip(0.06, 3.0), 0.0, 50, id="threads on a busy machine"),
        pytest.param(Drip(0.06, 0.0), 0.94, 50, id="a busy machine keeps us waiting"),
        pytest.param(Drip(0.06, 0.0, asleep=False), 0.0, 50, id="it waits for a disk"),
        pytest.param(Drip(0.06, None), 0.0, 50, id="nobody counts queueing"),
        pytest.param(Drip(0.0, None), 0.0, 5, id="nobody counts queueing, and it sleeps"),
    ],
)
def test_sleep_counts_and_queueing_does_not(monkeypatch, drip, ours, until):
    monkeypatch.setattr(link.time, "monotonic", lambda: drip.now)
    monkeypatch.setattr(link, "_own_seconds", lambda: ours * drip.now)
    clock = link._Clock(drip, 5.0, 10.0)

    def look_on():
        while True:
            drip.pass_by(clock.pause())

    with pytest.raises(LinkLost, match="timeout"):
        look_on()
    # the first look has nothing to compare with
    assert until <= drip.now < until + 1


def test_sleep_in_many_requests_is_limited_together(wire, monkeypatch):
    monkeypatch.setattr(link._Clock, "slept", LIMITS.total_seconds * 0.4, raising=False)
    monkeypatch.setattr(link._Clock, "pause", lambda clock: 0.001)
    monkeypatch.setattr(link._Clock, "__init__", lambda clock, *limits: None)
    ours = SandboxLink(wire, LIMITS)
    for _ in range(2):
        assert request(wire, lambda n: [encode(RIGHT, n)], link=ours) == {"value": 1}
    with pytest.raises(LinkLost, match="timeout"):
        request(wire, lambda n: [encode(RIGHT, n)], link=ours)


@pytest.mark.parametrize(
    "error",
    [
        ERROR | {"error": "MemoryError"},
        ERROR | {"error": "RuntimeError", "text": "DefaultCPUAllocator: can't allocate memory: x"},
    ],
)
def test_out_of_memory(wire, error):
    with pytest.raises(LinkLost, match="memory"):
        request(wire, lambda number: [encode({"reply": error}, number)])


def ask_then_reply(wire, asks):
    """The other side asks, hears, and returns what it heard as its reply."""

    def respond(number):
        heard = []
        for ask in asks:
            yield encode({"ask": ask}, number)
            length, _ = HEADER.unpack(wire.theirs.recv(HEADER.size, socket.MSG_WAITALL))
            heard.append(decode(wire.theirs.recv(length, socket.MSG_WAITALL))["answer"])
        yield encode({"reply": {"value": heard}}, number)

    return respond


def call(*args):
    return {"callback": 0, "args": list(args), "kwargs": {}, "requires_grad": False}


def test_calls_of_the_judges_functions(wire):
    seen = []

    def answer(ask):
        seen.append(ask)
        return {"value": 5}

    reply = request(wire, ask_then_reply(wire, [call(1), call(2)]), ask=answer)
    assert reply["value"] == [{"value": 5}, {"value": 5}]
    assert [ask["args"] for ask in seen] == [[1], [2]]


@pytest.mark.parametrize(
    "args",
    [
        (torch.zeros(101),),
        (101,),
        (11, 11),
        ([{"a": torch.zeros(60)}, (torch.zeros(60),)],),
        (torch.tensor(2**40),),
        (torch.tensor(-(2**63)),),
        (torch.tensor(1e9),),
        # attention makes 40 times 40 of them
        (torch.zeros(40, 1), torch.zeros(40, 1)),
        (1e300,),
        (-(2**62), 2**62),
    ],
)
def test_large_calls_never_reach_the_judge(wire, args):
    reply = request(
        wire, ask_then_reply(wire, [call(*args)]), ask=lambda ask: pytest.fail("called")
    )
    assert "error" in reply["value"][0]


def test_calls_without_end(wire):
    with pytest.raises(LinkLost, match="timeout"):
        request(wire, ask_then_reply(wire, [call()] * 4), ask=lambda ask: {"value": 1})


def test_a_request_that_nobody_reads(wire):
    link = SandboxLink(wire, LIMITS)
    with pytest.raises(LinkLost, match="timeout"):
        link.request({"op": "call", "object": 0, "args": [torch.zeros(2**22)]})


def test_random_numbers(wire):
    numbers = []
    for _ in range(3):
        request(wire, lambda n: [numbers.append(n) or encode({"reply": {"value": 1}}, n)])
    assert len(set(numbers)) == 3
