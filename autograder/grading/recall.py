"""Asks the checks of an exercise all at once, and gives the same verdict on the same replies.

What a check asks is mostly known beforehand: it follows from the seed, and not from what the
answer replies. So every check is run on the reference once, and what it asked is written down. A
submission's answer then gets the questions of all checks in one message, since a hundred turns of a
conversation between two processes cost more than the hundred calls. Each check runs as ever, over
a link that has the replies already; one that asks anything else than it asked the reference is run
by itself.

What a check says follows from the replies alone. So it is kept by their hash, and the next answer
that replies the same, bit for bit, gets the same verdict without running the check again. All of it
is made here, from plain data: no learner's code has a part in it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from autograder.answer import Callbacks, Link
from autograder.checking import Check
from autograder.engine.link import read_reply
from autograder.guest.plain import Callback
from autograder.guest.wire import pack
from autograder.judge import Outcome
from autograder.results import ExerciseResult

_MOST_RESULTS = 2_000
_MOST_AGREES = 100_000


@dataclass(frozen=True)
class Script:
    """What a check asks of the reference.

    Attributes:
        operations: what each request is, see :mod:`autograder.guest.executor`.
        bodies: the requests, packed.
        seconds: processor time that the reference took for them.
    """

    operations: tuple[str, ...]
    bodies: tuple[bytes, ...]
    seconds: float


class AskedOtherwise(BaseException):
    """A check asks what is not in its script. No error of an answer's, so no ``Exception``."""


class NoCallbacks(Callbacks):
    """Of a check that hands functions to the answer there is no script: they must be there."""

    def add(self, function: Any, name: Hashable = None) -> Callback:
        """Refuse."""
        raise AskedOtherwise


class Writing:
    """A link that passes on what is asked, and writes it down."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._operations: list[str] = []
        self._bodies: list[bytes] = []
        self._start = time.process_time()

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """See :class:`autograder.answer.Link`."""
        message = _marked(message, len(self._bodies))
        self._operations.append(message["op"])
        self._bodies.append(pack(message))
        return self._link.request(message)

    def script(self) -> Script:
        """What was asked so far."""
        seconds = time.process_time() - self._start
        return Script(tuple(self._operations), tuple(self._bodies), seconds)


class Replies:
    """A link to an answer that has replied to a script already."""

    def __init__(self, script: Script, bodies: Sequence[bytes]) -> None:
        self._script, self._bodies = script, bodies
        self._asked = 0

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """See :class:`autograder.answer.Link`.

        Raises:
            AskedOtherwise: this is not what the script says.
        """
        number = self._asked
        self._asked += 1
        if self._script.bodies[number : number + 1] != (pack(_marked(message, number)),):
            raise AskedOtherwise
        return read_reply(self._script.operations[number], self._bodies[number])


def _marked(message: dict[str, Any], number: int) -> dict[str, Any]:
    # The numbers of objects start anew, so that they do not depend on the checks before.
    return message if number else {**message, "fresh": True}


class Verdicts:
    """What the checks of an exercise said, by what they were replied, and what follows from it.

    All of it goes when it gets too large.

    Args:
        megabytes: of replies behind what is kept.

    Attributes:
        agrees: whether an outcome, by its key, is that of a wrong answer of the bank.
        results: by the keys of all outcomes.
    """

    def __init__(self, megabytes: int = 32) -> None:
        self._most = megabytes * 2**20
        self._size = 0
        self._kept: dict[str, Outcome] = {}
        self.agrees: dict[tuple[str, str], bool] = {}
        self.results: dict[tuple[str, ...], ExerciseResult] = {}

    def find(self, key: str) -> Outcome | None:
        """What was said."""
        return self._kept.get(key)

    def keep(self, key: str, outcome: Outcome, size: int) -> None:
        """Keep it."""
        if (
            self._size + size > self._most
            or len(self.results) > _MOST_RESULTS
            or len(self.agrees) > _MOST_AGREES
        ):
            for kept in (self._kept, self.agrees, self.results):
                kept.clear()
            self._size = 0
        self._kept[key] = outcome
        self._size += size


def key_of(check: Check, bodies: Sequence[bytes]) -> str:
    """Names the replies to one check."""
    found = hashlib.sha256(check.name.encode())
    for body in bodies:
        found.update(len(body).to_bytes(8, "big"))
        found.update(body)
    return found.hexdigest()
