"""Grades what a class handed in to nbgrader, and writes its gradebook, in one go.

Every folder gets its row: grades, a comment, and a notebook in ``autograded/``, whatever was handed
in. Killed at any moment, the next run ends in the same books.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any

from nbgrader.apps import NbGraderAPI
from nbgrader.coursedir import CourseDirectory

from autograder import chapters
from autograder.gradebook.beside import Beside, free, handed_in_at
from autograder.gradebook.books import Books, Entry, points
from autograder.gradebook.errors import BooksError
from autograder.gradebook.folders import Handed, submissions
from autograder.gradebook.last_run import LastRun, Left
from autograder.gradebook.listing import state
from autograder.gradebook.restored import RawNotebook, comments, restored
from autograder.grading import keys
from autograder.grading.batch import known_stems
from autograder.grading.command import graded_batch, open_sinks
from autograder.grading.graded import Graded
from autograder.grading.places import RESULTS
from autograder.grading.progress import Progress
from autograder.grading.store import write_whole
from autograder.grading.summary import Summary
from autograder.grading.work import Options
from autograder.i18n import _
from autograder.results import SubmissionResult
from autograder.submissions.align import align
from autograder.submissions.read import read
from autograder.submissions.template import CHECK, template

# Learners whose rows are written in one transaction.
_TOGETHER = 100


def autograde_class(stem: str, args: argparse.Namespace, config: Any, last: LastRun) -> Left:
    """Grade a chapter's class and write the books.

    Args:
        config: nbgrader's.
        last: what is remembered of a run.
    """
    folders = CourseDirectory(config=config)
    _ensure_released(stem, folders, config)
    last.begin(folders.format_path(folders.submitted_directory, "*", stem))
    handed = submissions(_learners(folders, stem), stem)
    if not handed:
        raise BooksError(
            _("nobody handed anything in: there is no {place}").format(
                place=folders.format_path(folders.submitted_directory, "*", stem)
            )
        )
    options = Options(args.seed, args.sandbox, known_stems(), stem)
    progress = Progress(len(handed), quiet=args.quiet)
    batch = graded_batch([item.submission for item in handed], options, args, progress)
    left = Left(Summary(graded=batch.graded), folders.db_url, batch.store.failure)
    written: list[str] = []
    sinks = open_sinks(args)
    with Books(folders.db_url, folders.course_id, stem, config) as books:
        rows = zip(handed, batch.results(), strict=True)
        while part := list(islice(rows, _TOGETHER)):
            entries = []
            for item, (submission, graded) in part:
                timestamp, notes = _handed_in_at(item)
                graded = _with_notes(graded, *item.notes, *notes)  # noqa: PLW2901
                notes, files = _write_autograded(folders, stem, item, graded)
                graded = _with_notes(graded, *notes)  # noqa: PLW2901
                written += files
                if notes:
                    left.partly.append(item.student)
                entries.append(_entry(stem, item.student, timestamp, graded.result))
                left.summary.add(submission, graded)
                for sink in sinks:
                    sink.add(submission, graded)
            books.write(entries)
    for sink in sinks:
        sink.finish()
    left.written = [sink.path for sink in sinks]
    if not (batch.unsettled or left.partly):
        last.end(left, written)
    return left


def _ensure_released(stem: str, folders: Any, config: Any) -> None:
    """Bring the chapter's cells into the gradebook, where they are missing or worth less now."""
    handed_out = template(stem)
    worth = {
        f"{name}{CHECK}": float(chapters.exercises(stem)[name].points)
        for name in handed_out.exercises
    }
    if points(folders.db_url, folders.course_id, stem) == worth:
        return
    done = NbGraderAPI(folders, config=config).generate_assignment(stem)
    if not done["success"]:
        lines = (done.get("error") or done.get("log") or "").strip().splitlines()
        raise BooksError(
            _("nbgrader generate_assignment {stem} failed: {reason}").format(
                stem=stem, reason=lines[-1] if lines else "?"
            )
        )


def _learners(folders: Any, stem: str) -> list[tuple[str, Path]]:
    """Every learner's folder of the chapter, by name; one that is no text is spelled out."""
    pattern = folders.format_path(folders.submitted_directory, "(?P<student>.*)", stem, escape=True)
    found = []
    excluded = set(filter(None, folders.student_id_exclude.split(",")))
    for place in sorted(glob(folders.format_path(folders.submitted_directory, "*", stem))):
        match = re.fullmatch(pattern, place, re.DOTALL)
        if match and match["student"] not in excluded:
            # any bytes may be a name, and no books hold them
            student = match["student"].encode("utf-8", "backslashreplace").decode()
            found.append((student, Path(place)))
    return found


def _handed_in_at(item: Handed) -> tuple[datetime | None, tuple[str, ...]]:
    """When a learner handed in, as far as that is known, and a note where it cannot be read."""
    try:
        return handed_in_at(item.folder), ()
    except ValueError as error:
        return None, (str(error),)


def _with_notes(graded: Graded, *notes: str) -> Graded:
    result = graded.result
    status = "repaired" if notes and result.status == "graded" else result.status
    return replace(graded, result=replace(result, notes=(*notes, *result.notes), status=status))


def _entry(stem: str, student: str, timestamp: datetime | None, result: SubmissionResult) -> Entry:
    return Entry(
        student,
        timestamp,
        {exercise.id.partition(".")[2]: exercise.score for exercise in result.exercises},
        comments(result, template(stem).exercises),
    )


def _write_autograded(
    folders: Any, stem: str, item: Handed, graded: Graded
) -> tuple[tuple[str, ...], list[str]]:
    """Write ``autograded/<student>/<chapter>/``, unless it is there and nothing changed.

    Returns:
        Notes on what could not be written, and the files in it.
    """
    target = Path(folders.format_path(folders.autograded_directory, item.student, stem))
    mark = RESULTS / "autograded" / stem / f"{_file_name(item.student)}.json"
    beside = Beside(item.folder, stem)
    depends = _depends(stem, item, graded, beside, target)
    before = _written_before(mark, depends)
    if before and not beside.failed:
        return (), before
    copies = beside.copy_to(target)
    notes = beside.notes()
    try:
        path = free(target, f"{stem}.ipynb")
        shown = _restored(stem, item, _with_notes(graded, *notes))
        text = json.dumps(shown, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        write_whole(path, text, durable=False)
        path.chmod(0o444)  # as nbgrader leaves it
    except OSError as error:
        note = _("The graded notebook could not be written: {reason}.")
        return (*notes, note.format(reason=error.strerror or error)), []
    written = {str(file): state(file) for file in (path, *copies)}
    if not beside.failed:
        with suppress(OSError):  # it only saves time
            write_whole(mark, json.dumps([depends, written]), durable=False)
    return notes, list(written)


def _restored(stem: str, item: Handed, graded: Graded) -> RawNotebook:
    handed_out = template(stem)
    try:
        notebook = read(item.submission.data(), item.submission.file_name)
        return restored(handed_out, notebook, align(notebook, handed_out), graded.result)
    except Exception:  # unreadable, or a fault of ours that its result names: the run goes on
        return restored(handed_out, result=graded.result)


def _depends(stem: str, item: Handed, graded: Graded, beside: Beside, target: Path) -> str:
    result = graded.result
    return keys.digest(
        keys.grader(),
        str(target.absolute()),  # another course's folder may hold the same
        template(stem).digest,
        item.submission.name,
        item.submission.size,
        graded.keys,
        result.status,
        result.notes,
        [(exercise.id, exercise.score) for exercise in result.exercises],
        beside.files,
        _stamp(item),
    )


def _stamp(item: Handed) -> int:
    try:
        return (item.folder / item.submission.file_name).stat().st_mtime_ns
    except OSError:
        return 0


def _written_before(mark: Path, depends: str) -> list[str]:
    """The files of an earlier run, where they are still what would be written now; else none."""
    try:
        of, written = json.loads(mark.read_text(encoding="utf-8"))
        is_there = of == depends and all(state(path) == kept for path, kept in written.items())
    except (OSError, ValueError, TypeError, AttributeError):
        return []
    return list(written) if is_there else []


def _file_name(student: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", student)[:80]
    return f"{plain}-{hashlib.sha256(student.encode()).hexdigest()[:12]}"
