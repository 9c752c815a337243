"""Grades a class: takes what is kept, grades the rest, tries alone what hit a limit, loses none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autograder import chapters
from autograder.grading.graded import LOST, Graded, hinted
from autograder.grading.places import RESULTS
from autograder.grading.pool import Inline, Pool, Spread
from autograder.grading.progress import Progress
from autograder.grading.store import Store, from_plain
from autograder.grading.wholes import Wholes
from autograder.grading.work import Job, Options
from autograder.i18n import _
from autograder.results import SubmissionResult
from autograder.submissions import shown
from autograder.submissions.find import Submission
from autograder.submissions.read import Unreadable, kind_of
from autograder.submissions.template import notebook_path

# Fewer are graded faster than processes start.
_FEW = 3


def known_stems() -> tuple[str, ...]:
    """The chapters that have been composed."""
    return tuple(stem for stem in chapters.stems() if notebook_path(stem).exists())


@dataclass
class Batch:
    """A run over a class.

    Args:
        submissions: rows, in order.
        options: what they are graded with.
        store: the kept results.
        workers: processes of this machine.
        spread: where jobs go instead, such as a cluster.
        keep_open: leave this process's engine running for the next batch.

    Attributes:
        graded: how many were graded now.
        unsettled: those that the next run would try again.
    """

    submissions: Sequence[Submission]
    options: Options
    store: Store = field(default_factory=lambda: Store(RESULTS))
    workers: int = 1
    spread: Spread | None = None
    progress: Progress | None = None
    keep_open: bool = False
    graded: int = 0
    unsettled: set[int] = field(default_factory=set)
    _wholes: Wholes = field(init=False)
    _kept: dict[int, Path] = field(default_factory=dict)
    _held: dict[int, Graded] = field(default_factory=dict)
    _again: list[int] = field(default_factory=list)
    _gone: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._wholes = Wholes(self.store.folder / "wholes", self.options.seed)

    def run(self) -> None:
        """Grade what is not kept. When this returns, every submission has a result."""
        todo = [index for index in range(len(self.submissions)) if not self._is_kept(index)]
        if todo:
            spread = self.spread or (
                Pool(self.options, min(self.workers, len(todo)))
                if self.workers > 1 and len(todo) >= _FEW
                else Inline(self.options)
            )
            try:
                self._pass(spread, todo, alone=False)
            finally:
                if self.spread is None and not self.keep_open:
                    spread.close()
        # What hit a limit, or lost its process, is tried once more with nothing beside it.
        again = sorted({*self._again, *self._gone})
        self._again, self._gone = [], []
        if again:
            alone = Inline(self.options) if self.keep_open else Pool(self.options, 1)
            try:
                for index in again:
                    self._pass(alone, [index], alone=True)
            finally:
                alone.close()
        self.unsettled.update(self._gone)
        for index in self._gone:
            note = _("The grader's own process ended twice at this file; look at it by hand.")
            stem = self.options.expected or hinted(self.submissions[index].name, self.options.stems)
            self._held[index] = Graded(nothing("crashed", stem, note))

    def results(self) -> Iterator[tuple[Submission, Graded]]:
        """Every submission with its result, in order; read one by one from what is kept."""
        for index, submission in enumerate(self.submissions):
            graded = self._held.get(index)
            if graded is None:
                kept = self.store.read(self._kept[index])
                if kept is None:
                    raise OSError(f"{self._kept[index]} was changed while it was read; run again")
                graded = kept[0]
            yield submission, replace(graded, result=_named(graded.result, submission))

    def _is_kept(self, index: int) -> bool:
        """Whether a submission needs no grading: its result is kept, or it cannot be read."""
        submission = self.submissions[index]
        try:
            data = submission.data()
        except Unreadable as error:
            stem = self.options.expected or hinted(submission.name, self.options.stems)
            self._held[index] = Graded(nothing("unreadable", stem, str(error)))
            self._advance(index, kept=True)
            return True
        path = self._path(data, submission)
        kept = self.store.read(path)
        if kept is None or not kept[1] or kept[1] != self._whole(kept[0].result, submission):
            return False
        self._kept[index] = path
        self._advance(index, kept=True)
        return True

    def _path(self, data: bytes, submission: Submission) -> Path:
        # The same bytes under another name may be read otherwise.
        hint = hinted(submission.file_name, self.options.stems)
        read_as = ("" if not hint else f"+{hint}") + kind_of(submission.file_name)
        return self.store.path(data, self.options.seed, self.options.expected, read_as)

    def _whole(self, result: SubmissionResult, submission: Submission) -> str:
        hints = (hinted(submission.file_name, self.options.stems), *self.options.stems)
        stem = result.chapter if result.chapter in self.options.stems else ""
        return self._wholes.of(stem, hints)

    def _jobs(self, indices: Sequence[int], alone: bool) -> Iterator[Job]:
        for index in indices:
            submission = self.submissions[index]
            try:
                data = submission.data()
            except Unreadable as error:  # it was there a moment ago
                self._held[index] = Graded(nothing("unreadable", "", str(error)))
                self.unsettled.add(index)
                continue
            kept = self.store.read(self._path(data, submission))
            known = {}
            if kept is not None:
                known = {
                    kept[0].keys[item.id]: item
                    for item in kept[0].result.exercises
                    if item.id in kept[0].keys and not any(check.lost for check in item.checks)
                }
            yield Job(index, submission.file_name, data, known, alone)

    def _pass(self, spread: Spread, indices: Sequence[int], *, alone: bool) -> None:
        for job, plain in spread.map(self._jobs(indices, alone)):
            if plain is None:
                self._gone.append(job.index)
                continue
            graded = from_plain(plain)
            tried = not (graded.again or graded.failed)
            whole = self._whole(graded.result, self.submissions[job.index]) if tried else ""
            path = self._path(job.data, self.submissions[job.index])
            self.unsettled.add(job.index)
            if self.store.write(path, graded, whole):
                if tried:
                    self.unsettled.discard(job.index)
                self._kept[job.index] = path
                self._held.pop(job.index, None)
            else:
                self._held[job.index] = graded
            if graded.again or (graded.failed and not job.alone):
                self._again.append(job.index)
            else:
                self.graded += 1
                self._advance(job.index)

    def _advance(self, index: int, *, kept: bool = False) -> None:
        if self.progress is not None:
            self.progress.advance(self.submissions[index].name, kept=kept)


def nothing(status: str, stem: str, *notes: str) -> SubmissionResult:
    """See :func:`autograder.grading.run.nothing`, which needs the chapter's checks."""
    from autograder.grading import run  # noqa: PLC0415

    return run.nothing(status, stem, *notes)


def _named(result: SubmissionResult, submission: Submission) -> SubmissionResult:
    """A result with its row's name, and a word where the file was renamed; fit to be shown."""
    notes, status = result.notes, result.status
    stem = result.chapter
    if stem and status not in ("unreadable", *LOST):
        name = submission.file_name
        if not re.search(rf"(^|[_\-. ]){re.escape(stem)}\.ipynb$", name):
            notes = (
                *notes,
                _("The file is called `{name}`, not `{stem}.ipynb`.").format(name=name, stem=stem),
            )
            status = "repaired" if status == "graded" else status
    return replace(
        result,
        submission=shown.one_line(submission.name),
        notes=tuple(map(shown.one_line, notes)),
        status=status,
        exercises=tuple(
            replace(
                item,
                checks=tuple(replace(c, message=shown.lines(c.message)) for c in item.checks),
            )
            for item in result.exercises
        ),
    )
