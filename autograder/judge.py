"""Gives the verdict: runs an exercise's checks over links, earns points, names mistakes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autograder.answer import (
    Answer,
    AnswerRaised,
    Callbacks,
    ForbiddenUse,
    Link,
    LinkLost,
    LocalLink,
)
from autograder.bank import Entry
from autograder.checking import Cases, Check, CheckFailed, Exercise, Message, hidden_now
from autograder.diagnosis import Recorder, Trace, agreement, explain
from autograder.i18n import _
from autograder.memory import Memory, memory_now
from autograder.results import CheckResult, ExerciseResult

OpenLink = Callable[[Callbacks], Link]
"""Opens a fresh way to the answer; the callbacks are what the learner's code may call."""


@dataclass
class Outcome:
    """What one check said of one answer: no message means that it passed.

    Attributes:
        trials: of a learner's test, implementations that it was tried on, and whether it accepted
            them.
        key: two outcomes of one judge with the same key are the same; "" where there is none.
    """

    trace: Trace
    message: Message | None = None
    lost: str | None = None
    unanswered: bool = False
    trials: list[tuple[Callable[..., Any], bool]] = field(default_factory=list)
    key: str = ""


Trials = dict[Hashable, dict[Hashable, dict[str, Any]]]
"""By a test of the bank, and the implementation that it was tried on, what it said: it draws from a
seed of its own, so it says the same whatever the instructor's is."""


class Judge:
    """Judges answers to one exercise with one seed, and remembers how the bank behaves.

    Args:
        exercise: with its checks.
        bank: the exercise's entries; only wrong ones are used, to recognise mistakes.
        seed: the instructor's, or 0 in the learner's kernel.
        checks: which checks to run; all by default.
        trials: what the bank's tests are known to say, see :data:`Trials`.
    """

    def __init__(
        self,
        exercise: Exercise,
        bank: Iterable[Entry] = (),
        *,
        seed: int = 0,
        checks: Callable[[Check], bool] = lambda check: True,
        trials: Trials | None = None,
    ) -> None:
        self.exercise = exercise
        self._trials = trials
        self.seed = seed
        self.checks = [check for check in exercise.checks if checks(check)]
        self._wrong = {entry.name: entry for entry in bank if not entry.is_right}
        self._bank_outcomes: dict[str, dict[str, Outcome]] | None = None
        self._memories = {check.name: Memory() for check in self.checks}
        self._draws = {
            check.name: Cases(seed, exercise.id, check.name, "draws").seed()
            for check in self.checks
        }

    def judge(self, open_link: OpenLink, *, again: bool = False) -> ExerciseResult:
        """Run every check and return points, messages and diagnoses.

        Args:
            open_link: called once, and again after a link was lost.
            again: ask a check that failed again over a fresh link; that answer counts.
        """
        outcomes = self.outcomes(open_link, again=again)
        return self.result(outcomes)

    def outcomes(self, open_link: OpenLink, *, again: bool = False) -> dict[str, Outcome]:
        """What each check says, by the check's name."""
        outcomes: dict[str, Outcome] = {}
        opened: tuple[Link, Callbacks] | None = None
        for check in self.checks:
            opened = opened or _open(open_link)
            outcome = self._run(check, *opened)
            if outcome.lost:
                opened = None
            if again and outcome.message is not None and not outcome.unanswered:
                outcome = self._run(check, *_open(open_link))
            outcomes[check.name] = outcome
        return outcomes

    def _run(self, check: Check, link: Link, callbacks: Callbacks) -> Outcome:
        memory = self._memories[check.name]
        recorder = Recorder(link, self._draws[check.name])
        answer = Answer(recorder, callbacks)
        cases = Cases(self.seed, self.exercise.id, check.name, memory=memory)
        outcome = Outcome(recorder.trace)
        hidden, remembering = hidden_now.set(check.hidden), memory_now.set(memory)
        try:
            check.function(answer, cases)
        except CheckFailed as failure:
            outcome.message = failure.message
        except ForbiddenUse as use:
            outcome.message = _forbidden(use)
        except AnswerRaised as error:
            outcome.unanswered = error.unanswered
            outcome.message = _raised(error, check.hidden)
        except LinkLost as lost:
            outcome.lost = lost.reason
            outcome.message = _lost(lost.reason)
        except Exception:
            # The reply was plain data of a kind that the check did not expect (a string where a
            # number should be): the answer's fault, seen by our code. `verify` proves that no
            # right answer comes here.
            outcome.message = Message(
                _("The result is not of the kind that the docstring promises."),
                _("A return value is missing, has another type, or stands in another place."),
                _(
                    "Print what your code returns for a small input and compare it with the "
                    "docstring."
                ),
            )
        finally:
            hidden_now.reset(hidden)
            memory_now.reset(remembering)
        outcome.trials = [(callbacks.function(item), said) for item, said in recorder.trials]
        return outcome

    def result(
        self,
        outcomes: Mapping[str, Outcome],
        agree: Mapping[str, set[str]] | None = None,
    ) -> ExerciseResult:
        """Points, messages and diagnoses of what the checks said.

        Args:
            outcomes: of all checks or of some; only these are in the result.
            agree: with which entries the answer agrees in which checks, where that is known.
        """
        failed = [name for name, outcome in outcomes.items() if outcome.message is not None]
        telling = [
            name for name in failed if not outcomes[name].unanswered and not outcomes[name].lost
        ]
        found: dict[str, str] = {}
        if telling and self._wrong:
            traces = {n: outcome.trace for n, outcome in outcomes.items() if not outcome.lost}
            if agree is None:
                agree = agreement(traces, self.fingerprints())
            names = {name: entry.diagnosis for name, entry in self._wrong.items()}
            found = explain(agree, traces, telling, names)
        results = []
        for check in self.checks:
            if check.name not in outcomes:
                continue
            outcome = outcomes[check.name]
            result = CheckResult(
                check.name, check.points, check.points, check.hidden, outcome.message is None
            )
            if outcome.message is not None:
                diagnosis = found.get(check.name)
                result = replace(
                    result,
                    points=0.0,
                    message=self._text(outcome.message, diagnosis),
                    diagnosis=diagnosis,
                    lost=outcome.lost,
                    open=outcome.unanswered,
                )
            results.append(result)
        return ExerciseResult(self.exercise.id, tuple(results))

    def explanation(self, diagnosis: str) -> Entry:
        """The bank's entry that explains a diagnosis."""
        return next(e for e in self._wrong.values() if diagnosis in (e.name, e.form_of))

    def _text(self, message: Message, diagnosis: str | None) -> str:
        if diagnosis is None:
            return str(message)
        # A recognised mistake is certain; the check's own guess at the cause is not.
        return str(Message(message.seen, self.explanation(diagnosis).why, message.next_step))

    def bank_outcomes(self) -> dict[str, dict[str, Outcome]]:
        """What each check says of each wrong answer, computed once."""
        if self._bank_outcomes is None:
            self._bank_outcomes = {
                name: self.outcomes(opening(self.exercise, entry.target, self._trials))
                for name, entry in self._wrong.items()
            }
        return self._bank_outcomes

    def fingerprints(self) -> dict[str, dict[str, Trace]]:
        """How each wrong answer behaves in each check."""
        return {
            name: {check: outcome.trace for check, outcome in outcomes.items()}
            for name, outcomes in self.bank_outcomes().items()
        }


def opening(exercise: Exercise, target: object, trials: Trials | None = None) -> OpenLink:
    """Open links to an object of this process."""
    known = None if trials is None else trials.setdefault(target, {})
    return lambda callbacks: LocalLink(
        target, forbid=exercise.forbid, callbacks=callbacks, trials=known
    )


def _open(open_link: OpenLink) -> tuple[Link, Callbacks]:
    callbacks = Callbacks()
    return open_link(callbacks), callbacks


def _forbidden(use: ForbiddenUse) -> Message:
    return Message(
        _("Your code calls {names}.").format(names=", ".join(use.names)),
        _("That is what this exercise asks you to build, so it may not be the answer."),
        _("Write it from the operations that the exercise names."),
    )


# What a hidden check's message may name: a type that Python itself defines says nothing of a case.
_TELLING_ERRORS = frozenset(
    {
        "AssertionError",
        "AttributeError",
        "IndexError",
        "KeyError",
        "NameError",
        "RuntimeError",
        "TypeError",
        "ValueError",
        "ZeroDivisionError",
        "UnboundLocalError",
        "RecursionError",
        "MemoryError",
        "OverflowError",
        "NotPlain",
    }
)


def _raised(error: AnswerRaised, hidden: bool) -> Message:
    if error.unanswered:
        return Message(
            _("This exercise is not answered yet."),
            "",
            _("Replace `raise NotImplementedError` by your code, run the cell, then check again."),
        )
    kind = error.kind if error.kind in _TELLING_ERRORS else _("an exception")
    if hidden:
        return Message(
            _("Your code raised {kind}.").format(kind=kind),
            _("It meets an input here that it does not expect."),
            _("Try other shapes, masks and dtypes than those of the visible checks."),
        )
    where = _(" in line {line} of your cell").format(line=error.line) if error.line else ""
    return Message(
        _("Your code raised {kind}{where}: {text}").format(kind=kind, where=where, text=error.text),
        _("A shape, a name or a type differs there from what the line expects."),
        _("Print the shapes just before that line."),
    )


def _lost(reason: str) -> Message:
    seen = {
        "timeout": _("Your code did not finish in the time that a check may take."),
        "memory": _("Your code asked for more memory than a check may use."),
        "crashed": _("The process that ran your code ended before it replied."),
    }.get(reason, _("What came back from your code could not be read."))
    return Message(
        seen,
        _("A loop that does not end, a very large tensor, or code that leaves Python."),
        _("Run the cell on a small input and watch how long it takes and what it allocates."),
    )
