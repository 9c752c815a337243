"""Finds the submission in a learner's folder: the notebook with the answers, whatever it is called.

nbgrader wants one name; learners hand in ``attention (1).ipynb``, two copies, or a zip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autograder.i18n import _
from autograder.submissions.align import align, matches
from autograder.submissions.find import Submission, find
from autograder.submissions.read import read
from autograder.submissions.template import template


@dataclass(frozen=True)
class Handed:
    """What one learner handed in.

    Attributes:
        student: nbgrader's id of the learner.
        folder: ``submitted/<student>/<chapter>``.
        submission: the file that counts; refused where there is none.
        notes: what is worth saying of the others.
    """

    student: str
    folder: Path
    submission: Submission
    notes: tuple[str, ...] = ()


def handed_in(student: str, folder: Path, stem: str) -> Handed:
    """Choose the file that counts in one learner's folder."""
    try:
        found = find([folder])
    except FileNotFoundError:  # it is gone since the class was listed
        found = []
    if not found:
        why = _("The folder is empty.")
        return Handed(student, folder, Submission(student, lambda: b"", refused=why))
    found = [replace(item, name=f"{student}/{item.name}") for item in found]
    if len(found) == 1:
        return Handed(student, folder, found[0])
    best = max(found, key=lambda item: _worth(item, stem))
    others = ", ".join(f"`{item.file_name}`" for item in found if item is not best)
    note = _("Several files were handed in; `{name}` counts, and not {others}.").format(
        name=best.file_name, others=others
    )
    return Handed(student, folder, best, (note,))


def _worth(item: Submission, stem: str) -> tuple[bool, int, bool, str]:
    """Orders files: readable ones of the chapter, by answers; the right name among equals."""
    is_named = item.file_name == f"{stem}.ipynb"
    try:
        notebook = read(item.data(), item.file_name)
        if matches(notebook, template(stem)) <= 0.0:
            return False, 0, is_named, item.name
        found = align(notebook, template(stem)).found.values()
    except Exception:  # unreadable, or a fault of ours, which grading will name: one row's, at most
        return False, -1, is_named, item.name
    return True, sum(not part.is_open for part in found), is_named, item.name


def submissions(folders: Sequence[tuple[str, Path]], stem: str) -> list[Handed]:
    """What a class handed in, in the order of the folders."""
    return [handed_in(student, folder, stem) for student, folder in folders]
