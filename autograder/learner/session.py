"""What a notebook calls: :func:`check`, :func:`hint`, :func:`status`.

A session lives as long as the kernel. It finds answers by name where the notebook put them, runs
the visible checks here, and remembers what it saw.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autograder import chapters
from autograder.checking import Exercise
from autograder.i18n import _, ngettext
from autograder.judge import Judge, opening
from autograder.learner import known
from autograder.learner.book import section_url
from autograder.learner.messages import Watcher
from autograder.learner.report import Line, Report, show
from autograder.results import ExerciseResult

LEARNER_SEED = 0
RUNGS = 3

_MISSING = object()


@dataclass
class Session:
    """What is known of a learner's work since the kernel started."""

    judges: dict[str, Judge] = field(default_factory=dict)
    results: dict[str, ExerciseResult] = field(default_factory=dict)
    touched: dict[str, None] = field(default_factory=dict)
    diagnosed: dict[str, str] = field(default_factory=dict)
    rungs: dict[str, int] = field(default_factory=dict)

    def judge(self, exercise: Exercise) -> Judge:
        """The judge of the visible checks; it learns how the bank behaves once."""
        if exercise.id not in self.judges:
            # What a bug-finding exercise hands out is not explained: its faults are to be found.
            entries = [entry for entry in chapters.entries(exercise) if not entry.given]
            self.judges[exercise.id] = Judge(
                exercise, entries, seed=LEARNER_SEED, checks=lambda check: not check.hidden
            )
        return self.judges[exercise.id]

    def look(self, exercise: Exercise, target: object) -> ExerciseResult:
        """Run the visible checks, and remember what came of them."""
        self.touched[exercise.stem] = None
        result = self.judge(exercise).judge(opening(exercise, target))
        self.results[exercise.id] = result
        if result.diagnoses:
            mistake = result.diagnoses[0]
            if self.diagnosed.get(exercise.id) != mistake:
                self.diagnosed[exercise.id] = mistake
                self.rungs[exercise.id] = self.judge(exercise).explanation(mistake).rung
        return result


_session = Session()


def check(exercise_id: str) -> float | None:
    """Run the visible checks of an exercise on your answer, and show what came of each.

    Args:
        exercise_id: ``<chapter>.<name>``, such as ``"attention.masked_softmax"``.

    Returns:
        None; under nbgrader's own execution the points of all checks, as it wants them.
    """
    grading = os.environ.get("NBGRADER_EXECUTION") == "autograde"
    exercise = known.find(exercise_id)
    if isinstance(exercise, str):
        print(exercise)
        return 0.0 if grading else None
    target = _namespace(sys._getframe(1).f_globals).get(exercise.name, _MISSING)
    if grading:
        return _points_for_nbgrader(exercise, target)
    if target is _MISSING:
        _session.touched[exercise.stem] = None
        print(
            _("✘ `{name}` is not defined yet: run the cell above first, then check again.").format(
                name=exercise.name
            )
        )
        return None
    try:
        result = _session.look(exercise, target)
    except KeyboardInterrupt:
        print(_("✘ Interrupted: the check had not finished. Is there a loop that does not end?"))
        return None
    show(_report(exercise, result))
    return None


def hint(exercise_id: str) -> None:
    """Show one hint more, beginning with the one that fits the mistake last recognised.

    Args:
        exercise_id: ``<chapter>.<name>``.
    """
    exercise = known.find(exercise_id)
    if isinstance(exercise, str):
        print(exercise)
        return
    _session.touched[exercise.stem] = None
    rung = _session.rungs.get(exercise.id, 1)
    if rung > RUNGS:
        show(
            Report(
                exercise.title,
                closing=[
                    _(
                        "That was the last hint. On the book's page of this chapter the worked "
                        "answer, where your course shows it, stands below the exercise."
                    )
                ],
            )
        )
        return
    _session.rungs[exercise.id] = rung + 1
    title = _("{title}: hint {rung} of {most}").format(title=exercise.title, rung=rung, most=RUNGS)
    show(Report(title, [Line(exercise.hints[rung - 1])]))


def status() -> None:
    """Show the points of the visible checks, and what is open, in the chapters you worked on."""
    namespace = _namespace(sys._getframe(1).f_globals)
    stems = [
        stem for stem in known.stems() if stem in _session.touched or _works_on(stem, namespace)
    ]
    if not stems:
        print(_("Nothing is checked yet: run a cell with check(...) first."))
        return
    for stem in stems:
        lines, earned, possible = [], 0.0, 0.0
        for exercise in chapters.exercises(stem).values():
            most = sum(item.points for item in exercise.checks if not item.hidden)
            result = _session.results.get(exercise.id)
            score = result.score if result else 0.0
            earned, possible = earned + score, possible + most
            lines.append(_status_line(exercise, result, score, most))
        title = _("{stem}: {earned:g} of {possible:g} points of the visible checks").format(
            stem=stem, earned=earned, possible=possible
        )
        show(Report(title, lines, [_("Hidden checks count when the notebook is graded.")]))


def _status_line(
    exercise: Exercise, result: ExerciseResult | None, score: float, most: float
) -> Line:
    points = _("{name}: {score:g} of {most:g}").format(name=exercise.name, score=score, most=most)
    if result is None:
        return Line(_("{points}, not checked yet").format(points=points))
    if result.open:
        return Line(_("{points}, open").format(points=points), passed=False)
    return Line(points, passed=all(item.passed for item in result.checks))


def _works_on(stem: str, namespace: Mapping[str, Any]) -> bool:
    """Whether the notebook holds an answer to the chapter that was not imported from the course."""
    return any(
        name in namespace
        and not str(getattr(namespace[name], "__module__", "")).startswith("solutions.")
        for name in chapters.exercises(stem)
    )


def _namespace(caller: dict[str, Any]) -> Mapping[str, Any]:
    shell = _shell()
    return caller if shell is None else shell.user_ns


def _shell() -> Any:
    try:
        from IPython import get_ipython  # noqa: PLC0415
    except ImportError:
        return None
    return get_ipython()


def _report(exercise: Exercise, result: ExerciseResult) -> Report:
    if result.open:
        return Report(
            exercise.title,
            [
                Line(
                    _("`{name}` is not answered yet.").format(name=exercise.name),
                    passed=False,
                    details=(
                        _("Write your code in the cell above in place of")
                        + " `raise NotImplementedError`, "
                        + _("run that cell, then this one."),
                        _('hint("{id}") shows a first hint.').format(id=exercise.id),
                    ),
                )
            ],
        )
    asks = {item.name: " ".join(item.asks.split()) for item in exercise.checks}
    lines = []
    explained: set[str] = set()
    for item in result.checks:
        link = None
        if item.diagnosis and item.diagnosis not in explained:
            explained.add(item.diagnosis)
            label = _session.judge(exercise).explanation(item.diagnosis).see
            link = (section_url(exercise.stem, label), label) if label else None
        details = tuple(item.message.splitlines()) if item.message else ()
        lines.append(Line(asks[item.name], item.passed, details, link))
    most = sum(item.max_points for item in result.checks)
    title = _("{title}: {score:g} of {most:g} points").format(
        title=exercise.title, score=result.score, most=most
    )
    hidden = sum(item.hidden for item in exercise.checks)
    closing = []
    if hidden:
        closing.append(
            ngettext(
                "{n} more check runs when the notebook is graded.",
                "{n} more checks run when the notebook is graded.",
                hidden,
            ).format(n=hidden)
        )
    return Report(title, lines, closing)


def _points_for_nbgrader(exercise: Exercise, target: object) -> float:
    """All checks in this kernel: the fallback where nbgrader itself executes the notebook.

    The value of a grade cell is its partial credit, and a cell without one gets full marks: so a
    number is returned whatever happens.
    """
    if target is _MISSING:
        print(_("✘ `{name}` is not defined.").format(name=exercise.name))
        return 0.0
    seed = int(os.environ.get("COURSE_SEED", LEARNER_SEED))
    judge = Judge(exercise, chapters.entries(exercise), seed=seed)
    result = judge.judge(opening(exercise, target))
    show(_report(exercise, result))
    return float(result.score)


_watching = _shell()
if _watching is not None:
    Watcher().install(_watching)
