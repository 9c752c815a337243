"""Writes a class into nbgrader's gradebook: one writer, one transaction for many submissions.

The tables, their columns and the session are ``nbgrader.api``'s. Rows are written in bulk: object
by object, with a commit each, as nbgrader does it, takes a hundred times as long. Only what differs
is written, so a second run writes nothing, and a run that was killed is finished by the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nbgrader.api import (
    Comment,
    Grade,
    Gradebook,
    MissingEntry,
    Student,
    SubmittedAssignment,
    SubmittedNotebook,
    new_uuid,
)
from nbgrader.preprocessors import AssignLatePenalties
from sqlalchemy import insert, select, update

from autograder.gradebook.errors import BooksError
from autograder.i18n import _
from autograder.submissions.template import CHECK

Row = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """What is written for one learner.

    Attributes:
        timestamp: when it was handed in; None leaves what the books say.
        scores: points by exercise.
        comments: the comment on each exercise's cell, or None.
    """

    student: str
    timestamp: datetime | None
    scores: Mapping[str, float]
    comments: Mapping[str, str | None]


class Books:
    """The gradebook, open for one chapter.

    Args:
        config: nbgrader's; of it the plugin for late penalties is taken.

    Raises:
        BooksError: the chapter is not in the gradebook.
    """

    def __init__(self, db_url: str, course_id: str, stem: str, config: Any = None) -> None:
        self._gradebook = Gradebook(db_url, course_id)
        self._stem = stem
        try:
            self._assignment = self._gradebook.find_assignment(stem)
            notebook = self._gradebook.find_notebook(stem, stem)
        except MissingEntry:
            self._gradebook.close()
            raise BooksError(
                _(
                    "{stem} is not in the gradebook; run `nbgrader generate_assignment {stem}`"
                ).format(stem=stem)
            ) from None
        self._assignment_id = self._assignment.id
        self._due = self._assignment.duedate
        self._notebooks = {item.id: item.name for item in self._assignment.notebooks}
        self._notebook_id = notebook.id
        self._grade_cells = {item.name: item.id for item in notebook.grade_cells}
        self._solution_cells = {item.name: item.id for item in notebook.solution_cells}
        self._late = AssignLatePenalties(config=config)
        self._late.init_plugin()

    def __enter__(self) -> Books:
        """Close at the end."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self._gradebook.close()

    def write(self, entries: Sequence[Entry]) -> None:
        """Write some learners' rows, all or none."""
        db = self._gradebook.db
        try:
            self._students(entries)
            submissions = self._submissions(entries)
            notebooks = self._submitted_notebooks(submissions)
            wanted = {notebooks[submissions[item.student]]: item for item in entries}
            self._fill(Grade, self._grade_cells, wanted, self._grade)
            self._fill(Comment, self._solution_cells, wanted, self._comment)
            self._penalties(wanted)
            db.commit()
        except BaseException:
            db.rollback()
            raise

    def _rows(self, table: Any, *where: Any) -> list[Row]:
        found = self._gradebook.db.execute(select(table).where(*where))
        return [dict(row._mapping) for row in found]

    def _insert(self, table: Any, rows: list[Row]) -> None:
        if rows:
            self._gradebook.db.execute(insert(table), rows)

    def _students(self, entries: Iterable[Entry]) -> None:
        names = [item.student for item in entries]
        table = Student.__table__
        known = {row["id"] for row in self._rows(table, table.c.id.in_(names))}
        self._insert(table, [{"id": name} for name in dict.fromkeys(names) if name not in known])

    def _submissions(self, entries: Sequence[Entry]) -> dict[str, str]:
        """Ids of the submissions, by learner."""
        table = SubmittedAssignment.__table__
        names = [item.student for item in entries]
        known = {
            row["student_id"]: row
            for row in self._rows(
                table,
                table.c.assignment_id == self._assignment_id,
                table.c.student_id.in_(names),
            )
        }
        fresh = []
        for item in entries:
            row = known.get(item.student)
            if row is None:
                row = {
                    "id": new_uuid(),
                    "assignment_id": self._assignment_id,
                    "student_id": item.student,
                    "timestamp": item.timestamp,
                    "extension": None,
                }
                known[item.student] = row
                fresh.append(row)
            elif item.timestamp is not None and row["timestamp"] != item.timestamp:
                row["timestamp"] = item.timestamp
                self._gradebook.db.execute(
                    update(table).where(table.c.id == row["id"]).values(timestamp=item.timestamp)
                )
        self._insert(table, fresh)
        self._extensions = {row["id"]: row["extension"] for row in known.values()}
        self._timestamps = {row["id"]: row["timestamp"] for row in known.values()}
        return {name: row["id"] for name, row in known.items()}

    def _submitted_notebooks(self, submissions: Mapping[str, str]) -> dict[str, str]:
        """Ids of the chapter's notebooks, by the submission's id."""
        table = SubmittedNotebook.__table__
        known = {
            (row["assignment_id"], row["notebook_id"]): row
            for row in self._rows(table, table.c.assignment_id.in_(list(submissions.values())))
        }
        fresh = [
            {
                "id": new_uuid(),
                "assignment_id": submission,
                "notebook_id": notebook,
                "flagged": False,
                "late_submission_penalty": None,
            }
            for submission in submissions.values()
            for notebook in self._notebooks
            if (submission, notebook) not in known
        ]
        self._insert(table, fresh)
        known |= {(row["assignment_id"], row["notebook_id"]): row for row in fresh}
        self._penalty = {row["id"]: row["late_submission_penalty"] for row in known.values()}
        self._owner = {row["id"]: row["assignment_id"] for row in known.values()}
        return {
            submission: known[submission, self._notebook_id]["id"]
            for submission in submissions.values()
        }

    def _fill(
        self, model: Any, cells: Mapping[str, str], wanted: Mapping[str, Entry], value: Any
    ) -> None:
        """Make or change the rows of one kind, one per learner and cell."""
        table = model.__table__
        known = {
            (row["notebook_id"], row["cell_id"]): row
            for row in self._rows(table, table.c.notebook_id.in_(list(wanted)))
        }
        fresh = []
        for notebook, entry in wanted.items():
            for name, cell in cells.items():
                row = known.get((notebook, cell))
                values = value(entry, name, row)
                if row is None:
                    fresh.append(
                        {"id": new_uuid(), "notebook_id": notebook, "cell_id": cell, **values}
                    )
                elif any(row[key] != item for key, item in values.items()):
                    self._gradebook.db.execute(
                        update(table).where(table.c.id == row["id"]).values(**values)
                    )
        self._insert(table, fresh)

    @staticmethod
    def _grade(entry: Entry, cell: str, row: Row | None) -> Row:
        # What a person gave stays, and is marked for another look, as SaveAutoGrades does it.
        manual = row is not None and row["manual_score"] is not None
        score = float(entry.scores.get(cell.removesuffix(CHECK), 0.0))
        return {"auto_score": score, "needs_manual_grade": manual}

    @staticmethod
    def _comment(entry: Entry, cell: str, _row: Row | None) -> Row:
        return {"auto_comment": entry.comments.get(cell)}

    def _penalties(self, wanted: Mapping[str, Entry]) -> None:
        """Late penalties as nbgrader's plugin gives them, made anew each time."""
        table = Grade.__table__
        scores: dict[str, float] = dict.fromkeys(wanted, 0.0)
        late = {notebook: self._seconds_late(notebook) for notebook in wanted}
        if any(late.values()):
            for row in self._rows(table, table.c.notebook_id.in_(list(wanted))):
                given = (
                    row["manual_score"] if row["manual_score"] is not None else row["auto_score"]
                )
                scores[row["notebook_id"]] += (given or 0.0) + (row["extra_credit"] or 0.0)
        books = SubmittedNotebook.__table__
        for notebook, entry in wanted.items():
            penalty = None
            if late[notebook] > 0:
                penalty = self._late.plugin_inst.late_submission_penalty(
                    entry.student, scores[notebook], late[notebook]
                )
            if penalty is not None:
                penalty = min(max(penalty, 0.0), scores[notebook])
            if penalty != self._penalty[notebook]:
                self._gradebook.db.execute(
                    update(books)
                    .where(books.c.id == notebook)
                    .values(late_submission_penalty=penalty)
                )

    def _seconds_late(self, notebook: str) -> float:
        # by the time in the books: a file that says none, now, does not take it back
        timestamp = self._timestamps[self._owner[notebook]]
        if timestamp is None or self._due is None:
            return 0.0
        extension = self._extensions[self._owner[notebook]]
        due = self._due + extension if extension is not None else self._due
        return max(0.0, (timestamp - due).total_seconds())


def points(db_url: str, course_id: str, stem: str) -> dict[str, float]:
    """What each grade cell of a chapter is worth in the gradebook; {} where it is not there."""
    with Gradebook(db_url, course_id) as gradebook:
        try:
            notebook = gradebook.find_notebook(stem, stem)
        except MissingEntry:
            return {}
        return {item.name: item.max_score for item in notebook.grade_cells}
