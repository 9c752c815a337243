"""Counts a class, one result after the other: memory grows with the rows, not with the answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from autograder import chapters
from autograder.results import STATUSES, SubmissionResult


@dataclass(frozen=True)
class Row:
    """One submission's row.

    Attributes:
        scores: points by exercise id.
        mistakes: names of the mistakes recognised in it.
    """

    submission: str
    chapter: str
    status: str
    score: float
    max_score: float
    notes: tuple[str, ...]
    scores: dict[str, float]
    mistakes: tuple[str, ...]


@dataclass
class CheckCount:
    """How one check went.

    Attributes:
        passed: submissions that passed it.
        answered: submissions in which its exercise was answered.
        asks: what it asks, in a sentence.
    """

    exercise: str
    name: str
    hidden: bool
    asks: str
    passed: int = 0
    answered: int = 0


@dataclass
class Mistake:
    """One mistake of the answer bank: how many made it, and what it is."""

    exercise: str
    name: str
    why: str
    see: str
    count: int = 0


@dataclass
class ClassSummary:
    """A class, counted."""

    rows: list[Row] = field(default_factory=list)
    checks: dict[tuple[str, str], CheckCount] = field(default_factory=dict)
    mistakes: dict[tuple[str, str], Mistake] = field(default_factory=dict)

    def add(self, result: SubmissionResult) -> None:
        """Count one submission."""
        found: list[str] = []
        for exercise in result.exercises:
            asks = {check.name: check.asks for check in _checks(exercise.id)}
            is_open = exercise.open and not any(check.passed for check in exercise.checks)
            for check in exercise.checks:
                count = self.checks.setdefault(
                    (exercise.id, check.name),
                    CheckCount(
                        exercise.id,
                        check.name,
                        check.hidden,
                        " ".join(asks.get(check.name, "").split()),
                    ),
                )
                count.answered += not is_open
                count.passed += check.passed
            for name in exercise.diagnoses:
                self._mistake(exercise.id, name).count += 1
                found.append(name)
        self.rows.append(
            Row(
                result.submission,
                result.chapter,
                result.status,
                result.score,
                result.max_score,
                result.notes,
                {exercise.id: exercise.score for exercise in result.exercises},
                tuple(dict.fromkeys(found)),
            )
        )

    def _mistake(self, exercise_id: str, name: str) -> Mistake:
        key = exercise_id, name
        if key not in self.mistakes:
            entries = chapters.entries(chapters.exercise(exercise_id))
            entry = next((e for e in entries if name in (e.name, e.form_of)), None)
            self.mistakes[key] = Mistake(
                exercise_id, name, entry.why if entry else "", entry.see if entry else ""
            )
        return self.mistakes[key]

    @property
    def statuses(self) -> dict[str, int]:
        """How many submissions there are of each status."""
        counted = Counter(row.status for row in self.rows)
        return {status: counted[status] for status in STATUSES if counted[status]}

    @property
    def exercises(self) -> list[str]:
        """Ids of all exercises, in the order in which they were met."""
        return list(dict.fromkeys(exercise for exercise, _name in self.checks))

    @property
    def frequent(self) -> list[Mistake]:
        """The mistakes, the most frequent first."""
        return sorted(self.mistakes.values(), key=lambda m: (-m.count, m.exercise, m.name))

    def shares(self) -> list[float]:
        """Each submission's share of the points, where there were any to be had."""
        return [row.score / row.max_score for row in self.rows if row.max_score]

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        shares = self.shares()
        return {
            "submissions": [
                {**vars(row), "notes": list(row.notes), "mistakes": list(row.mistakes)}
                for row in self.rows
            ],
            "statuses": self.statuses,
            "median_share": round(median(shares), 4) if shares else None,
            "checks": [
                {
                    **vars(check),
                    "pass_rate": round(check.passed / check.answered, 4)
                    if check.answered
                    else None,
                }
                for check in self.checks.values()
            ],
            "mistakes": [vars(mistake) for mistake in self.frequent],
        }


def _checks(exercise_id: str) -> list[Any]:
    return list(chapters.exercise(exercise_id).checks)
