"""Writes the report of a class into a folder: ``index.html``, ``grades.csv``, ``report.json``."""

from __future__ import annotations

import io
import json
from pathlib import Path

from autograder.grading.graded import Graded
from autograder.grading.store import write_whole
from autograder.report.csvfile import write_rows
from autograder.report.page import page
from autograder.report.summary import ClassSummary
from autograder.submissions.find import Submission


class Report:
    """Takes results and writes the report at the end.

    Args:
        folder: where to; it is made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "index.html"
        self._summary = ClassSummary()

    def add(self, _submission: Submission, graded: Graded) -> None:
        """Take one result."""
        self._summary.add(graded.result)

    def finish(self) -> None:
        """Write the three files."""
        summary = self._summary
        write_whole(self._folder / "grades.csv", grades(summary), durable=False)
        text = json.dumps(summary.to_json(), indent=1, ensure_ascii=False) + "\n"
        write_whole(self._folder / "report.json", text, durable=False)
        write_whole(self.path, page(summary), durable=False)


def grades(summary: ClassSummary) -> str:
    """The table of grades as CSV: a row a submission, a column an exercise."""
    exercises = summary.exercises
    file = io.StringIO()
    write_rows(
        file,
        [["submission", "chapter", "status", "score", "max_score", *exercises, "notes"]],
    )
    write_rows(
        file,
        (
            [
                *(row.submission, row.chapter, row.status, row.score, row.max_score),
                *(row.scores.get(exercise) for exercise in exercises),
                " ".join(row.notes),
            ]
            for row in summary.rows
        ),
    )
    return file.getvalue()
