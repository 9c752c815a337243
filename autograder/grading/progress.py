"""Says how far a run is: a bar with an estimate on a terminal, a few lines in a log."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from autograder.i18n import _

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
        self._start = time.monotonic()
        self._said = self._start
        self._shown = ""

    def advance(self, name: str, *, kept: bool = False) -> None:
        """One more is done; ``kept`` if it was found and not graded."""
        self.done += 1
        self.kept += kept
        if self.quiet:
            return
        now = time.monotonic()
        if self._bar:
            self._draw(name, now)
        elif now - self._said >= _LOG_EVERY:
            self._said = now
            self.say(
                _("{done} of {total} graded, about {left} left").format(
                    done=self.done, total=self.total, left=_duration(self._left(now))
                )
            )

    def say(self, text: str) -> None:
        """A line of its own."""
        if not self.quiet:
            self._clear()
            print(text, file=self.stream, flush=True)

    def finish(self) -> None:
        """Take the bar away."""
        self._clear()

    def _left(self, now: float) -> float:
        graded = self.done - self.kept
        return (now - self._start) / max(graded, 1) * (self.total - self.done)

    def _draw(self, name: str, now: float) -> None:
        full = round(_WIDTH * self.done / max(self.total, 1))
        line = (
            f"{'█' * full}{'░' * (_WIDTH - full)} {self.done}/{self.total} "
            f"{_('about {left} left').format(left=_duration(self._left(now)))}  {name[-30:]}"
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
