"""What is known of a graded submission. Without torch: what is kept is read without it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from autograder.results import SubmissionResult

LOST = ("timeout", "memory", "crashed")
"""Statuses of a submission of which a check got no verdict of the answer's own."""


@dataclass
class Graded:
    """A submission's result with what is kept beside it.

    Attributes:
        result: its ``submission`` is left empty: it depends on the bytes alone.
        keys: what each exercise's result depends on, by the exercise's id.
        seconds: what each exercise took, by the exercise's id.
        again: exercises of which a check hit a limit in a busy machine; to be tried alone.
        failed: the grader's own code raised: tried once more alone, and not kept.
    """

    result: SubmissionResult
    keys: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    again: tuple[str, ...] = ()
    failed: bool = False


def hinted(name: str, stems: Iterable[str]) -> str:
    """The chapter that a file's name speaks of, or ""."""
    found = [stem for stem in stems if stem in name]
    return max(found, key=len, default="")
