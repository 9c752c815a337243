"""Grades as CSV: every cell quoted, none of which a spreadsheet takes for a formula."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.plugins import ExportPlugin

from autograder.report.csvfile import write_rows

COLUMNS = (
    "assignment",
    "duedate",
    "timestamp",
    "student_id",
    "last_name",
    "first_name",
    "email",
    "raw_score",
    "late_submission_penalty",
    "score",
    "max_score",
)


class SafeCsv(ExportPlugin):
    """nbgrader's own columns, written so that names cannot do anything."""

    def export(self, gradebook: Gradebook) -> None:
        """Write the file that ``--to`` names, by default ``grades.csv``."""
        target = Path(self.to or "grades.csv")
        self.log.info("Exporting grades to %s", target)
        students, assignments = set(map(str, self.student)), set(map(str, self.assignment))
        with target.open("w", encoding="utf-8", newline="") as file:
            write_rows(file, [COLUMNS])
            for assignment in gradebook.assignments:
                if assignments and assignment.name not in assignments:
                    continue
                write_rows(
                    file,
                    (
                        _row(gradebook, assignment, student)
                        for student in gradebook.students
                        if not students or student.id in students
                    ),
                )


def _row(gradebook: Gradebook, assignment: Any, student: Any) -> list[Any]:
    try:
        submission = gradebook.find_submission(assignment.name, student.id)
    except MissingEntry:  # nothing handed in: no points
        timestamp, raw, penalty = "", 0.0, 0.0
    else:
        timestamp, raw = submission.timestamp or "", submission.score
        penalty = submission.late_submission_penalty or 0.0
    person = (student.id, student.last_name, student.first_name, student.email)
    score = max(0.0, raw - penalty)
    return [
        *(assignment.name, assignment.duedate, timestamp, *person),
        *(raw, penalty, score, assignment.max_score),
    ]
