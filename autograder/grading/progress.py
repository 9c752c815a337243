"""Says how far a run is: a bar with an estimate on a terminal, a few lines in a log."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from autograder.i18n import _
from autograder.submissions import shown

_WIDTH = 30
_LOG_EVERY = 20.0  # seconds


class Progress:
    """The state of a run.

    Args:
        total: submissions.
        quiet: say nothing.
    """

    def __init__(self, total: int, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.total, self.quiet = total, quiet
        self.stream = stream or sys.stderr
        self.done = 0
        self.kept = 0
        self._bar = self.stream.isatty() and not quiet
        self._said = time.monotonic()
        self._first: float | None = None  # when the first one was graded
        self._shown = ""

    def advance(self, name: str, *, kept: bool = False) -> None:
        """One more is done; ``kept`` if it was found and not graded."""
        self.done += 1
        self.kept += kept
        if self.quiet:
            return
        now = time.monotonic()
        if self._first is None and not kept:
            self._first = now
        if self._bar:
            self._draw(name, now)
        elif now - self._said >= _LOG_EVERY:
            self._said = now
            done = _("{done} of {total} graded").format(done=self.done, total=self.total)
            self.say(done + self._estimate(now))

    def say(self, text: str) -> None:
        """A line of its own."""
        if not self.quiet:
            self._clear()
            print(text, file=self.stream, flush=True)

    def finish(self) -> None:
        """Take the bar away."""
        self._clear()

    def _estimate(self, now: float) -> str:
        """What is left, once two were graded: the first one waited for the machinery to start."""
        graded = self.done - self.kept
        if graded <= 1 or self._first is None:
            return ""
        left = (now - self._first) / (graded - 1) * (self.total - self.done)
        return _(", about {left} left").format(left=_duration(left))

    def _draw(self, name: str, now: float) -> None:
        full = round(_WIDTH * self.done / max(self.total, 1))
        line = (
            f"{'█' * full}{'░' * (_WIDTH - full)} {self.done}/{self.total}"
            f"{self._estimate(now)}  {shown.one_line(name)[-30:]}"
        )
        print("\r" + line.ljust(len(self._shown)), end="", file=self.stream, flush=True)
        self._shown = line

    def _clear(self) -> None:
        if self._shown:
            print("\r" + " " * len(self._shown) + "\r", end="", file=self.stream, flush=True)
            self._shown = ""


def _duration(seconds: float) -> str:
    if seconds < 90:
        return _("{n:.0f} s").format(n=seconds)
    if seconds < 5400:
        return _("{n:.0f} min").format(n=seconds / 60)
    return _("{n:.1f} h").format(n=seconds / 3600)
