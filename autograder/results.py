"""Typed results: what grading knows of a check, an exercise and a submission.

:func:`to_json` gives the objects of ``python -m autograder grade --json``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

STATUSES = ("graded", "repaired", "timeout", "memory", "crashed", "unreadable", "empty")


@dataclass(frozen=True)
class CheckResult:
    """One check's outcome.

    Attributes:
        name: the check's name, such as ``weights_sum_to_one``.
        points: points earned, 0 or ``max_points``.
        message: what was seen, the likely cause, the next step; empty where it passed.
        diagnosis: name of the bank's wrong answer that behaves alike, or None.
        lost: why there was no verdict of the answer's own (a status), or None.
        open: the stub is as it was handed out.
    """

    name: str
    points: float
    max_points: float
    hidden: bool
    passed: bool
    message: str = ""
    diagnosis: str | None = None
    lost: str | None = None
    open: bool = False


@dataclass(frozen=True)
class ExerciseResult:
    """One exercise's outcome; its score is the sum of its checks' points."""

    id: str
    checks: tuple[CheckResult, ...]

    @property
    def score(self) -> float:
        """Points earned."""
        return sum(check.points for check in self.checks)

    @property
    def max_score(self) -> float:
        """Points to be had."""
        return sum(check.max_points for check in self.checks)

    @property
    def diagnoses(self) -> tuple[str, ...]:
        """The mistakes recognised, each once, in the checks' order."""
        return tuple(dict.fromkeys(c.diagnosis for c in self.checks if c.diagnosis))

    @property
    def open(self) -> bool:
        """Whether the exercise is as it was handed out."""
        return (
            bool(self.checks)
            and all(check.open for check in self.checks if not check.passed)
            and not all(check.passed for check in self.checks)
        )


@dataclass(frozen=True)
class SubmissionResult:
    """One submission's outcome; every submission has one, whatever it did.

    Attributes:
        submission: the path as it was given, relative to the folder or archive it came in.
        status: one of :data:`STATUSES`.
        notes: what was repaired or could not be read, one sentence each.
    """

    submission: str
    chapter: str
    status: str
    exercises: tuple[ExerciseResult, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def score(self) -> float:
        """Points earned."""
        return sum(exercise.score for exercise in self.exercises)

    @property
    def max_score(self) -> float:
        """Points to be had."""
        return sum(exercise.max_score for exercise in self.exercises)


def to_json(result: SubmissionResult) -> dict[str, Any]:
    """The public form of a result; see ``python -m autograder grade --json``."""
    return {
        "submission": result.submission,
        "chapter": result.chapter,
        "status": result.status,
        "score": result.score,
        "max_score": result.max_score,
        "notes": list(result.notes),
        "exercises": [
            {
                "id": exercise.id,
                "score": exercise.score,
                "max_score": exercise.max_score,
                "checks": [_check_to_json(check) for check in exercise.checks],
            }
            for exercise in result.exercises
        ],
    }


def _check_to_json(check: CheckResult) -> dict[str, Any]:
    public = asdict(check)
    del public["lost"], public["open"]
    return public
