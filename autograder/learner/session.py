"""What a notebook calls: :func:`check`, :func:`hint`, :func:`status`.

A session lives as long as the kernel. It finds answers by name where the notebook put them, runs
the visible checks here, and remembers what it saw.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from autograder import chapters
from autograder.checking import Exercise, Message
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


@dataclass(frozen=True)
class Look:
    """What the checks said: the result, and the message of each check that failed."""

    judge: Judge
    result: ExerciseResult
    messages: dict[str, Message]


@dataclass
class Session:
    """What is known of a learner's work since the kernel started."""

    judges: dict[str, Judge] = field(default_factory=dict)
    results: dict[str, ExerciseResult] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    diagnosed: dict[str, str] = field(default_factory=dict)
    rungs: dict[str, int] = field(default_factory=dict)

    def look(self, exercise: Exercise, target: object) -> Look:
        """Run the visible checks, and remember what came of them."""
        self.touched.add(exercise.stem)
        if exercise.id not in self.judges:
            # Wrong kernels are compared in Triton's interpreter only: on a GPU each would be
            # compiled first, which takes seconds.
            compiled = exercise.needs and os.environ.get("TRITON_INTERPRET") != "1"
            # It is kept, since it learns how the bank behaves once.
            self.judges[exercise.id] = Judge(
                exercise,
                [] if compiled else chapters.entries(exercise),
                seed=LEARNER_SEED,
                checks=lambda check: not check.hidden,
            )
        look = look_at(self.judges[exercise.id], target)
        self.results[exercise.id] = look.result
        for mistake in look.result.diagnoses[:1]:
            if self.diagnosed.get(exercise.id) != mistake:
                self.diagnosed[exercise.id] = mistake
                self.rungs[exercise.id] = look.judge.explanation(mistake).rung
        return look


def look_at(judge: Judge, target: object) -> Look:
    """Judge an object of this process.

    What a bug-finding exercise hands out is recognised and not explained: its faults are to be
    found.
    """
    threads = torch.get_num_threads()
    # The cases are small: more threads only wait for one another, where the machine is busy.
    torch.set_num_threads(1)
    try:
        outcomes = judge.outcomes(opening(judge.exercise, target))
        result = judge.result(outcomes)
    finally:
        torch.set_num_threads(threads)
    messages = {name: item.message for name, item in outcomes.items() if item.message}
    checks = []
    for item in result.checks:
        entry = judge.explanation(item.diagnosis) if item.diagnosis else None
        if entry is not None and entry.given:
            item = replace(item, diagnosis=None, message=str(messages[item.name]))  # noqa: PLW2901
        elif entry is not None:
            messages[item.name] = replace(messages[item.name], cause=entry.why)
        checks.append(item)
    return Look(judge, replace(result, checks=tuple(checks)), messages)


_session = Session()


def check(exercise_id: str) -> float | None:
    """Run the visible checks of an exercise on your answer, and show what came of each.

    Args:
        exercise_id: ``<chapter>.<name>``, such as ``"attention.masked_softmax"``.

    Returns:
        None; under nbgrader's own execution the points of all checks, as it wants them. Where
        `nbgrader validate` runs the notebook, what is not right is said on standard error: that
        is how it knows that a cell failed, and the text is what it shows.
    """
    execution = os.environ.get("NBGRADER_EXECUTION")
    grading, validating = execution == "autograde", execution == "validate"
    exercise = known.find(exercise_id)
    if isinstance(exercise, str):
        print(exercise)
        return 0.0 if grading else None
    if exercise.missing:
        print(exercise.missing)
        return 0.0 if grading else None
    target = _namespace(sys._getframe(1).f_globals).get(exercise.name, _MISSING)
    if grading:
        return _points_for_nbgrader(exercise, target)
    if target is _MISSING:
        _session.touched.add(exercise.stem)
        print(
            _("✘ `{name}` is not defined yet: run the cell above first, then check again.").format(
                name=exercise.name
            ),
            file=sys.stderr if validating else sys.stdout,
        )
        return None
    try:
        look = _session.look(exercise, target)
        if validating and not all(item.passed for item in look.result.checks):
            print(report(exercise, look).text(), file=sys.stderr)
        else:
            show(report(exercise, look))
    except KeyboardInterrupt:
        print(_("✘ Interrupted: the check had not finished. Is there a loop that does not end?"))
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
    _session.touched.add(exercise.stem)
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
    met = _session.touched or set(known.most_made(_answers_in(namespace)))
    stems = [stem for stem in known.stems() if stem in met]
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


def _answers_in(namespace: Mapping[str, Any]) -> set[str]:
    """The names of exercises that the notebook holds and did not import from the course."""
    return {
        item.name
        for item in known.exercises().values()
        if item.name in namespace
        and not str(getattr(namespace[item.name], "__module__", "")).startswith("solutions.")
    }


def _namespace(caller: dict[str, Any]) -> Mapping[str, Any]:
    shell = _shell()
    return caller if shell is None else shell.user_ns


def _shell() -> Any:
    try:
        from IPython import get_ipython  # noqa: PLC0415
    except ImportError:
        return None
    return get_ipython()


def report(exercise: Exercise, look: Look) -> Report:
    result = look.result
    if result.open and not any(item.passed for item in result.checks):
        line = Line(
            _("`{name}` is not answered yet.").format(name=exercise.name),
            passed=False,
            details=(
                _(
                    "Write your code in the cell above, in place of `raise NotImplementedError`; "
                    "run that cell, then this one."
                ),
                _('`hint("{id}")` shows a first hint.').format(id=exercise.id),
            ),
        )
        return Report(exercise.title, [line])
    asks = {item.name: " ".join(item.asks.split()) for item in exercise.checks}
    explained: set[str] = set()
    lines = []
    for item in result.checks:
        details: list[str] = []
        link = None
        if item.name in look.messages:
            details += _three_parts(look.messages[item.name], certain=item.diagnosis is not None)
        if item.diagnosis and item.diagnosis not in explained:
            explained.add(item.diagnosis)
            label = look.judge.explanation(item.diagnosis).see
            link = (section_url(exercise.stem, label), label) if label else None
        lines.append(Line(asks[item.name], item.passed, tuple(details), link))
    title = _("{title}: {score:g} of {most:g} points").format(
        title=exercise.title, score=result.score, most=result.max_score
    )
    left = len(exercise.checks) - len(result.checks)
    closing = ngettext(
        "{n} more check runs when the notebook is graded.",
        "{n} more checks run when the notebook is graded.",
        left,
    ).format(n=left)
    return Report(title, lines, [closing] if left else [])


def _three_parts(message: Message, *, certain: bool) -> list[str]:
    cause = _("The mistake: {cause}") if certain else _("Likely cause: {cause}")
    parts = [message.seen]
    if message.cause:
        parts.append(cause.format(cause=message.cause))
    if message.next_step:
        parts.append(_("Next step: {step}").format(step=message.next_step))
    return parts


def _points_for_nbgrader(exercise: Exercise, target: object) -> float:
    """All checks in this kernel: the fallback where nbgrader itself executes the notebook.

    The value of a grade cell is its partial credit, and a cell without one gets full marks: so a
    number is returned whatever happens.
    """
    if target is _MISSING:
        print(_("✘ `{name}` is not defined.").format(name=exercise.name))
        return 0.0
    seed = int(os.environ.get("COURSE_SEED", LEARNER_SEED))
    look = look_at(Judge(exercise, chapters.entries(exercise), seed=seed), target)
    show(report(exercise, look))
    return float(look.result.score)


_watching = _shell()
if _watching is not None:
    Watcher().install(_watching)
