"""Grades what a class handed in to nbgrader, and writes its gradebook, in one go.

Every folder gets its row: grades, a comment, and a notebook in ``autograded/``, whatever was handed
in. Killed at any moment, the next run ends in the same books.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import replace
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any

from nbgrader.apps import NbGraderAPI
from nbgrader.coursedir import CourseDirectory

from autograder import chapters
from autograder.gradebook.books import Books, Entry, points
from autograder.gradebook.errors import BooksError
from autograder.gradebook.folders import Handed, submissions
from autograder.gradebook.last_run import LastRun, Left
from autograder.gradebook.restored import comments, restored
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
    written = []
    sinks = open_sinks(args)
    with Books(folders.db_url, folders.course_id, stem, config) as books:
        rows = zip(handed, batch.results(), strict=True)
        while part := list(islice(rows, _TOGETHER)):
            entries = []
            for item, (submission, graded) in part:
                graded = _with_notes(graded, item)  # noqa: PLW2901
                written.append(_write_autograded(folders, stem, item, graded))
                entries.append(_entry(folders, stem, item, graded.result))
                left.summary.add(submission, graded)
                for sink in sinks:
                    sink.add(submission, graded)
            books.write(entries)
    for sink in sinks:
        sink.finish()
    left.written = [sink.path for sink in sinks]
    if not batch.unsettled:
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
    """Every learner's folder of the chapter, by name."""
    pattern = folders.format_path(folders.submitted_directory, "(?P<student>.*)", stem, escape=True)
    found = []
    excluded = set(filter(None, folders.student_id_exclude.split(",")))
    for place in sorted(glob(folders.format_path(folders.submitted_directory, "*", stem))):
        match = re.fullmatch(pattern, place)
        if match and match["student"] not in excluded:
            found.append((match["student"], Path(place)))
    return found


def _with_notes(graded: Graded, item: Handed) -> Graded:
    result = graded.result
    status = "repaired" if item.notes and result.status == "graded" else result.status
    return replace(
        graded, result=replace(result, notes=(*item.notes, *result.notes), status=status)
    )


def _entry(folders: Any, stem: str, item: Handed, result: SubmissionResult) -> Entry:
    try:
        timestamp = folders.get_existing_timestamp(str(item.folder))
    except Exception:
        # nbgrader ends the run at a timestamp that it cannot read; the grade is worth more.
        timestamp = None
    return Entry(
        item.student,
        timestamp,
        {exercise.id.partition(".")[2]: exercise.score for exercise in result.exercises},
        comments(result, template(stem).exercises),
    )


def _write_autograded(folders: Any, stem: str, item: Handed, graded: Graded) -> Path:
    """Write ``autograded/<student>/<chapter>/``, unless it is there and nothing changed.

    Returns:
        The notebook in it.
    """
    target = Path(folders.format_path(folders.autograded_directory, item.student, stem))
    path = target / f"{stem}.ipynb"
    mark = RESULTS / "autograded" / stem / f"{_file_name(item.student)}.json"
    depends = _depends(stem, item, graded)
    if _is_written(path, mark, depends):
        return path
    handed_out = template(stem)
    try:
        notebook = read(item.submission.data(), item.submission.file_name)
        shown = restored(handed_out, notebook, align(notebook, handed_out), graded.result)
    except Exception:  # unreadable, or a fault of ours that its result names: the run goes on
        shown = restored(handed_out, result=graded.result)
    target.mkdir(parents=True, exist_ok=True)
    for other in _other_files(item.folder):
        copy = target / other.relative_to(item.folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.unlink(missing_ok=True)
        shutil.copyfile(other, copy)
    text = json.dumps(shown, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    write_whole(path, text, durable=False)
    path.chmod(0o444)  # as nbgrader leaves it
    state = path.stat()
    write_whole(
        mark, json.dumps([depends, str(path), state.st_size, state.st_mtime_ns]), durable=False
    )
    return path


def _depends(stem: str, item: Handed, graded: Graded) -> str:
    result = graded.result
    return keys.digest(
        keys.grader(),
        template(stem).digest,
        item.submission.name,
        item.submission.size,
        graded.keys,
        result.status,
        result.notes,
        [(exercise.id, exercise.score) for exercise in result.exercises],
        [(str(other), other.stat().st_mtime_ns) for other in _other_files(item.folder)],
        _stamp(item),
    )


def _stamp(item: Handed) -> int:
    try:
        return (item.folder / item.submission.file_name).stat().st_mtime_ns
    except OSError:
        return 0


def _is_written(path: Path, mark: Path, depends: str) -> bool:
    try:
        state = path.stat()
        return bool(
            json.loads(mark.read_text(encoding="utf-8"))
            == [depends, str(path), state.st_size, state.st_mtime_ns]
        )
    except (OSError, ValueError):
        return False


def _file_name(student: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", student)[:80]
    return f"{plain}-{hashlib.sha256(student.encode()).hexdigest()[:12]}"


def _other_files(folder: Path) -> Iterator[Path]:
    """What lies beside the notebook: the time stamp, data. Ordinary files only, and small ones."""
    for here, folders, files in os.walk(folder, followlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        for name in sorted(files):
            path = Path(here) / name
            state = path.lstat()
            if (
                stat.S_ISREG(state.st_mode)
                and state.st_size <= 2**22
                and not name.lower().endswith((".ipynb", ".zip"))
            ):
                yield path
