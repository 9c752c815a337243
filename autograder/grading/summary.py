"""What is printed at the end of a run over a class."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from autograder.grading.graded import Graded
from autograder.i18n import _
from autograder.results import STATUSES, SubmissionResult
from autograder.submissions.find import Submission

_SHOWN = 30
_SLOWEST = 3


@dataclass
class Summary:
    """What is printed.

    Attributes:
        lines: one of each submission, of the first ones.
        statuses: how many submissions there are of each.
        graded: how many were graded now.
        slowest: submissions, with their seconds.
        cells: exercises, with their seconds.
    """

    lines: list[str] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    graded: int = 0
    slowest: list[tuple[float, str]] = field(default_factory=list)
    cells: list[tuple[float, str]] = field(default_factory=list)

    def add(self, submission: Submission, graded: Graded) -> None:
        """Count one."""
        result = graded.result
        self.statuses[result.status] += 1
        if len(self.lines) < _SHOWN:
            self.lines.append(_line(result))
        _keep(self.slowest, result.seconds, submission.name)
        for exercise, seconds in graded.seconds.items():
            _keep(self.cells, seconds, f"{exercise} ({submission.name})")

    def print(self) -> None:
        """Print it."""
        total = sum(self.statuses.values())
        if total <= _SHOWN:
            print("\n".join(self.lines))
        counts = ", ".join(f"{self.statuses[s]} {s}" for s in STATUSES if self.statuses[s])
        print(
            _("{total} submissions: {counts}; {graded} graded now, {kept} kept from before").format(
                total=total, counts=counts, graded=self.graded, kept=total - self.graded
            )
        )
        for title, found in (
            (_("slowest submissions"), self.slowest),
            (_("slowest exercises"), self.cells),
        ):
            slow = [f"{name} {seconds:.1f} s" for seconds, name in _largest(found)]
            if slow and self.graded:
                print(f"{title}: {'; '.join(slow)}")


def _line(result: SubmissionResult) -> str:
    notes = f"  {' '.join(result.notes)}" if result.notes else ""
    score = f"{result.score:g}/{result.max_score:g}"
    return f"{result.submission:40} {result.status:10} {score:>9}{notes}"


def _keep(heap: list[tuple[float, str]], seconds: float, name: str) -> None:
    heapq.heappush(heap, (seconds, name))
    if len(heap) > _SLOWEST:
        heapq.heappop(heap)


def _largest(heap: list[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    return (item for item in sorted(heap, reverse=True) if item[0] >= 0.05)
