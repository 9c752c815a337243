"""The notebook that nbgrader shows an instructor and a learner after grading.

It is what was handed out, with the learner's answers in their cells, what the learner changed and
added at its place, and the results below each check. So it is valid whatever was handed in: each
id is there once, each cell of the kind that the gradebook knows.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from autograder import chapters
from autograder.i18n import _
from autograder.learner.book import section_url
from autograder.learner.report import Line, Report
from autograder.results import ExerciseResult, SubmissionResult
from autograder.submissions.align import Aligned
from autograder.submissions.read import Cell, Notebook
from autograder.submissions.statements import joined
from autograder.submissions.template import CHECK, Template, notebook_path

RawCell = dict[str, Any]
RawNotebook = dict[str, Any]

NOTES = "notes-on-this-submission"
MAX_TEXT = 20_000
"""Characters of one cell that are shown."""


@lru_cache(maxsize=8)
def _handed_out(stem: str, _digest: str) -> RawNotebook:
    found: RawNotebook = json.loads(notebook_path(stem).read_text(encoding="utf-8"))
    for cell in found["cells"]:
        if isinstance(cell["source"], list):
            cell["source"] = "".join(cell["source"])
    return found


def restored(
    template: Template,
    notebook: Notebook | None = None,
    aligned: Aligned | None = None,
    result: SubmissionResult | None = None,
) -> RawNotebook:
    """Put a notebook into the form that was handed out.

    Args:
        notebook: what was handed in; None where it could not be read.
        aligned: the same, laid over what was handed out.
        result: what to show below the checks, if it is known already.
    """
    handed_out = _handed_out(template.stem, template.digest)
    own = _by_place(template, notebook, aligned) if notebook and aligned else _Own()
    cells: list[RawCell] = [_added(cell, i, "top") for i, cell in enumerate(own.added.get("", ()))]
    for raw in handed_out["cells"]:
        cell = {**raw, "metadata": copy.deepcopy(raw["metadata"])}
        cell["source"] = own.sources.get(cell["id"], cell["source"])[:MAX_TEXT]
        cells.append(cell)
        cells += [
            _added(item, i, cell["id"]) for i, item in enumerate(own.added.get(cell["id"], ()))
        ]
    if result is not None:
        _show(cells, result)
    return {**handed_out, "cells": cells}


class _Own:
    """What of a notebook is the learner's: new text of known cells, and further cells by place."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}
        self.added: dict[str, list[Cell]] = {}


def _by_place(template: Template, notebook: Notebook, aligned: Aligned) -> _Own:
    own = _Own()
    by_id = {cell.id: cell for cell in template.cells}
    by_text: dict[str, str] = {}
    for cell in reversed(template.cells):
        by_text[cell.source.strip()] = cell.id
    answered: dict[int, list[str]] = {}
    for name, found in aligned.found.items():
        if found.parts:
            answered.setdefault(found.parts[0].cell, []).append(name)
    place = ""
    for position, cell in enumerate(notebook.cells):
        names = answered.get(position, [])
        known = next(
            (
                key
                for key in (cell.id, cell.grade_id, by_text.get(cell.source.strip(), ""))
                if key in by_id
            ),
            "",
        )
        if names:
            place = names[0]
            own.sources[place] = cell.source
            for name in names[1:]:  # two answers in one cell: each is shown in its own
                own.sources[name] = joined(aligned.found[name].parts).lstrip("\n")
        elif known.endswith(CHECK) and known.removesuffix(CHECK) in template.exercises:
            place = known
        elif known in template.exercises:
            # an answer that Python cannot read stays where it is; a copy of a stub is no news
            if aligned.found[known].parts or known in own.sources:
                if cell.source.strip() != by_id[known].source.strip():
                    own.added.setdefault(place, []).append(cell)
            else:
                own.sources[known] = cell.source
                place = known
        elif known and known not in own.sources and cell.kind == by_id[known].kind:
            place = known
            own.sources[known] = cell.source
        elif cell.source.strip():
            own.added.setdefault(place, []).append(cell)
    return own


def _added(cell: Cell, number: int, after: str) -> RawCell:
    raw: RawCell = {
        "cell_type": cell.kind,
        "id": f"added-{number}-{after}"[:64],
        "metadata": {},
        "source": cell.source[:MAX_TEXT],
    }
    if cell.kind == "code":
        raw |= {"execution_count": None, "outputs": []}
    return raw


def _show(cells: list[RawCell], result: SubmissionResult) -> None:
    results = {item.id.partition(".")[2] + CHECK: item for item in result.exercises}
    for cell in cells:
        if cell["id"] in results:
            show(cell, results[cell["id"]])
    if result.notes:
        text = "\n".join(f"- {note}" for note in result.notes)
        heading = _("**Notes on this submission**")
        cells.insert(
            0,
            {
                "cell_type": "markdown",
                "id": NOTES,
                "metadata": {},
                "source": f"{heading}\n\n{text}",
            },
        )


def show(cell: Mapping[str, Any], result: ExerciseResult) -> None:
    """Put a result into a check's cell: a report to read, and the points as its value.

    nbgrader takes the value of a grade cell for its partial credit.
    """
    shown = report(result)
    cell["outputs"][:] = [
        {
            "output_type": "display_data",
            "data": {"text/html": shown.html(), "text/plain": shown.text()},
            "metadata": {},
        },
        {
            "output_type": "execute_result",
            "data": {"text/plain": repr(float(result.score))},
            "execution_count": None,
            "metadata": {},
        },
    ]


def report(result: ExerciseResult) -> Report:
    """What a learner is told of an exercise after grading: messages, never source or values."""
    exercise = chapters.exercise(result.id)
    title = _("{title}: {score:g} of {most:g} points").format(
        title=exercise.title, score=result.score, most=result.max_score
    )
    if result.open and not any(check.passed for check in result.checks):
        return Report(title, [Line(_("Not answered."), passed=False)])
    asks = {check.name: " ".join(check.asks.split()) for check in exercise.checks}
    entries = {entry.name: entry for entry in chapters.entries(exercise)}
    lines = []
    linked: set[str] = set()
    for check in result.checks:
        link = None
        entry = entries.get(check.diagnosis or "")
        if entry is not None and entry.see and entry.name not in linked:
            linked.add(entry.name)
            link = (section_url(exercise.stem, entry.see), entry.see)
        points = _("{text} ({score:g} of {most:g})").format(
            text=asks.get(check.name, check.name), score=check.points, most=check.max_points
        )
        details = (check.message,) if check.message else ()
        lines.append(Line(points, check.passed, details, link))
    return Report(title, lines)


def comments(result: SubmissionResult, exercises: Sequence[str]) -> dict[str, str | None]:
    """The comment on each exercise's cell: what is open, and on the first one all notes."""
    by_name = {item.id.partition(".")[2]: item for item in result.exercises}
    found: dict[str, str | None] = {}
    for position, name in enumerate(exercises):
        parts = list(result.notes) if position == 0 else []
        item = by_name.get(name)
        if item is not None and item.open and not parts:
            parts.append(_("No response."))
        found[name] = " ".join(parts) or None
    return found
