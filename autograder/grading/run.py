"""Grades one submission: from its bytes to its result. Nothing that it holds raises here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from autograder import chapters
from autograder.answer import (
    Answer,
    AnswerRaised,
    Callbacks,
    ForbiddenUse,
    Link,
    LinkLost,
    LocalLink,
)
from autograder.checking import Cases, Check, Exercise
from autograder.diagnosis import Prepared, prepared
from autograder.grading import bank, keys
from autograder.grading.graded import LOST, Graded, hinted
from autograder.grading.recall import (
    AskedOtherwise,
    NoCallbacks,
    Replies,
    Script,
    Verdicts,
    Writing,
    key_of,
)
from autograder.i18n import _
from autograder.judge import Judge, OpenLink, Outcome
from autograder.results import CheckResult, ExerciseResult, SubmissionResult
from autograder.submissions.align import Aligned, Found, align, matches
from autograder.submissions.program import Program, program
from autograder.submissions.reaches import reaches
from autograder.submissions.read import Notebook, Unreadable, read
from autograder.submissions.template import template

# Processor seconds for the questions of all checks together; what takes longer is asked one by one,
# with a limit for each.
_AT_ONCE = 2.0
# Of a check that takes the reference longer, little is saved by asking all at once.
_SHORT = 0.1

# Of what is worth a look, so many are named.
_NAMED = 4

# Less than this share of a chapter's cells, and a notebook is not that chapter's.
_SOME = 0.05


class Engine(Protocol):
    """What runs a learner's code; :mod:`autograder.engine` has the one that is used."""

    def open(
        self,
        cells: Sequence[tuple[str, str]],
        name: str,
        *,
        modules: Mapping[str, str] | None = ...,
        forbid: Iterable[str] = ...,
        callbacks: Callbacks | None = ...,
    ) -> Link:
        """Run the cells in a fresh sandbox, and return a way to the object of that name."""
        ...


class _PatientJudge(Judge):
    """A judge that asks again what fails, where asking again can change anything.

    A check that fails is asked again in a fresh sandbox, and that answer counts: perhaps another
    check had spoiled the state. Several that fail share one sandbox, where they fail alike in the
    opposite order; else each has its own. Three kinds of failure need no second fork. What a
    sandbox was asked first met no other check's state. Replies that are those of a wrong answer of
    the bank, number for number, come from that mistake and from no state. And a limit is hit for
    seconds on end: in the crowd the exercise is given up at once, since it will be tried again
    alone; alone, each check has its one full chance.
    """

    alone = False
    # what to do while another process finds out how the wrong answers behave
    meanwhile: Callable[[], None] = staticmethod(lambda: None)
    _ready: dict[str, dict[str, Prepared]] | None = None
    _scripts: dict[str, Script] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._verdicts = Verdicts()

    def outcomes(self, open_link: OpenLink, *, again: bool = False) -> dict[str, Outcome]:
        """See :class:`autograder.judge.Judge`."""
        if not again:  # the bank's own answers
            return super().outcomes(open_link)
        first = _opened(open_link)
        told = self._at_once(self.checks, *first)
        # One that took too long says so to the first check as well; it will be tried again alone.
        late = getattr(first[0], "lost", None) == "timeout"
        opened = first if told is not None or late else None
        found = told or {}
        # What was asked of a sandbox before anything else needs no other one.
        in_fresh = set(list(found)[:1])
        for check in self.checks:
            if check.name in found:
                continue
            if opened is None or not found:
                in_fresh.add(check.name)
            opened = opened or _opened(open_link)
            found[check.name] = outcome = self._run(check, *opened)
            if outcome.lost:
                opened = None
                if not self.alone:
                    rest = [item for item in self.checks if item.name not in found]
                    return found | {item.name: replace(outcome, trace=[]) for item in rest}
        failed = {name: item for name, item in _failed(found).items() if name not in in_fresh}
        # many mistakes raise alike, and a spoiled state raises too
        raised = {name for name, item in failed.items() if self._raised(name, item)}
        explained = set().union(
            *self._alike({n: item for n, item in failed.items() if n not in raised}).values()
        )
        rest = [c for c in self.checks if c.name in failed and c.name not in explained]
        found = {c.name: found[c.name] for c in self.checks}
        found |= self._again(rest, found, open_link)
        return (
            found
            if self._says_so_alone(found, open_link)
            else found | self._one_by_one(found, open_link)
        )

    def _says_so_alone(self, found: Mapping[str, Outcome], open_link: OpenLink) -> bool:
        """Whether a learner's test says the same of implementations that are the first it sees.

        All checks try theirs in one sandbox, where a test could compare with what it saw before:
        the right ones come again and again. Who judges by that cannot say, of the first one alone,
        both that a right one is right and that a wrong one is wrong.
        """
        passed = [item for item in found.values() if item.message is None]
        # what it said of the first one of all, it said of it alone
        first = [said for _f, said in found[self.checks[0].name].trials[:1]]
        for accepted, count in _ALONE[first[0] if first else None]:
            trials = [f for item in passed for f, said in item.trials if said is accepted]
            cases = Cases(self.seed, self.exercise.id, "alone", str(accepted))
            for implementation in cases.shuffled(trials)[:count]:
                link, callbacks = _opened(open_link)
                try:
                    said = Answer(link, callbacks).accepts(implementation)
                except (AnswerRaised, ForbiddenUse, LinkLost):
                    said = False
                if said is not accepted:
                    return False
        return True

    def _one_by_one(self, found: Mapping[str, Outcome], open_link: OpenLink) -> dict[str, Outcome]:
        """What checks say of a learner's test that has a fresh sandbox for each implementation."""
        callbacks = Callbacks()
        link = _FreshEachTime(open_link, callbacks)
        return {c.name: self._run(c, link, callbacks) for c in self.checks if found[c.name].trials}

    def _raised(self, name: str, outcome: Outcome) -> bool:
        """Whether an exception is in what was replied. Of a test that a learner wrote, which is
        handed functions, ``AssertionError`` is a reply like any other."""
        errors = {reply["error"] for reply in outcome.trace if "error" in reply}
        return bool(errors - {"AssertionError"} if name not in self.scripts() else errors)

    def _again(
        self, checks: Sequence[Check], found: Mapping[str, Outcome], open_link: OpenLink
    ) -> dict[str, Outcome]:
        """What checks say in fresh sandboxes: in one, where they say there what they said before.

        Asked without those that passed, and the last one first, a spoiled state would show. Where
        a single reply differs, every check gets a sandbox of its own.
        """
        fresh: dict[str, Outcome] = {}
        if len(checks) > 1 and all(found[check.name].key for check in checks):
            second = self._at_once(checks[::-1], *_opened(open_link)) or {}
            if all(found[c.name].key == second.get(c.name, _NOTHING).key for c in checks):
                return second
            # what a sandbox was asked first met no other check's state
            fresh = dict(list(second.items())[:1])
        return {c.name: fresh.get(c.name) or self._in_fresh(c, open_link) for c in checks}

    def _in_fresh(self, check: Check, open_link: OpenLink) -> Outcome:
        """What a check says over a link of its own."""
        opened = _opened(open_link)
        found = self._at_once([check], *opened)
        if found is None:
            opened = _opened(open_link)
        return (found or {}).get(check.name) or self._run(check, *opened)

    def _at_once(
        self, checks: Sequence[Check], link: Link, callbacks: Callbacks
    ) -> dict[str, Outcome] | None:
        """What checks say where their questions are known; None where the link was lost.

        What is not in it is still to be asked.
        """
        ask_all = getattr(link, "ask_all", None)
        # Alone, a limit counts: it must be known which request was too much.
        scripts = self.scripts() if ask_all and not self.alone else {}
        found: dict[str, Outcome] = {}
        # What lies there to be read, an answer could put into a visible check's message: hidden
        # inputs are sent when all of those are written.
        for hidden in (False, True):
            known = [c for c in checks if c.name in scripts and c.hidden is hidden]
            if ask_all is None or not known:
                continue
            try:
                bodies = ask_all([b for item in known for b in scripts[item.name].bodies], _AT_ONCE)
            except LinkLost:
                return None
            for check in known:
                script = scripts[check.name]
                own, bodies = bodies[: len(script.bodies)], bodies[len(script.bodies) :]
                outcome = self._said(check, script, own)
                if outcome is not None:
                    found[check.name] = outcome
        return found

    def _said(self, check: Check, script: Script, bodies: Sequence[bytes]) -> Outcome | None:
        """What a check says of replies to its script; None where it must be asked by itself."""
        key = key_of(check, bodies)
        outcome = self._verdicts.find(key)
        if outcome is None:
            try:
                outcome = self._run(check, Replies(script, bodies), NoCallbacks())
            except AskedOtherwise:
                return None
            if outcome.lost:
                return None
            outcome.key = key
            self._verdicts.keep(key, outcome, sum(map(len, bodies)))
        return outcome

    def scripts(self) -> dict[str, Script]:
        """What the checks ask, of those of which that can be known."""
        if self._scripts is None:
            self._scripts = bank.read_scripts(self.exercise, self.seed)
        if self._scripts is None:
            self._scripts = {}
            reference = LocalLink(chapters.reference(self.exercise), forbid=self.exercise.forbid)
            for check in self.checks:
                for _attempt in range(2):  # what torch does for the first time takes long
                    writing = Writing(reference)
                    try:
                        outcome = self._run(check, writing, NoCallbacks())
                    except AskedOtherwise:
                        break
                    script = writing.script()
                    if outcome.message is None and script.bodies and script.seconds < _SHORT:
                        self._scripts[check.name] = script
                        break
            bank.write_scripts(self.exercise, self.seed, self._scripts)
        return self._scripts

    def result(
        self, outcomes: Mapping[str, Outcome], agree: Mapping[str, set[str]] | None = None
    ) -> ExerciseResult:
        """See :class:`autograder.judge.Judge`.

        A wrong answer that agrees in no failed check cannot be the diagnosis: comparing it in all
        the others would take most of the time of grading.
        """
        if agree is not None:
            return super().result(outcomes, agree)
        keys_ = tuple(item.key for item in outcomes.values())
        result = self._verdicts.results.get(keys_) if all(keys_) else None
        if result is None:
            likely = self._alike(_failed(outcomes))
            passed = {name: item for name, item in outcomes.items() if item.message is None}
            more = self._alike(passed, likely)
            agree = {entry: checks | more.get(entry, set()) for entry, checks in likely.items()}
            result = super().result(outcomes, agree)
            if all(keys_):
                self._verdicts.results[keys_] = result
        return result

    def _alike(
        self, outcomes: Mapping[str, Outcome], entries: Iterable[str] | None = None
    ) -> dict[str, set[str]]:
        """The wrong answers that reply as an answer did, and in which checks."""
        if not outcomes:
            return {}
        ready = self.ready()
        own: dict[str, Prepared] = {}
        found: dict[str, set[str]] = {}
        for entry in ready if entries is None else entries:
            for name, outcome in outcomes.items():
                known = self._verdicts.agrees.get((outcome.key, entry)) if outcome.key else None
                if known is None:
                    own[name] = own.get(name) or prepared(outcome.trace)
                    known = name in ready[entry] and own[name].agrees(ready[entry][name])
                    if outcome.key:
                        self._verdicts.agrees[outcome.key, entry] = known
                if known:
                    found.setdefault(entry, set()).add(name)
        return found

    def ready(self) -> dict[str, dict[str, Prepared]]:
        """How each wrong answer behaves, ready to be compared: kept on disk, or found out now."""
        if self._ready is None:
            traces = bank.read(self.exercise, self.seed) or self.find_out(wait=False)
            if traces is None:
                self.meanwhile()
                traces = self.find_out(wait=True) or {}
            self._ready = {
                entry: {check: prepared(trace) for check, trace in found.items()}
                for entry, found in traces.items()
            }
        return self._ready

    def find_out(self, *, wait: bool) -> bank.Traces | None:
        """How the wrong answers behave, found out now; None where another process is at it."""
        with bank.claim(self.exercise, self.seed, wait=wait) as ours:
            if not ours:
                return None
            traces = bank.read(self.exercise, self.seed)
            if traces is None:
                traces = self.fingerprints()
                bank.write(self.exercise, self.seed, traces)
            return traces


_NOTHING = Outcome([])
# By what a learner's test said of the first implementation, whether it accepted it: of so many that
# it accepted, and that it turned away, it is asked once more. None: it gave no reply.
_ALONE = {True: ((False, 2),), False: ((True, 1), (False, 1)), None: ((True, 1), (False, 2))}


class _FreshEachTime:
    """A link that has a sandbox of its own for every request."""

    def __init__(self, open_link: OpenLink, callbacks: Callbacks) -> None:
        self._open, self._callbacks = open_link, callbacks

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """See :class:`autograder.answer.Link`."""
        link = self._open(self._callbacks)
        try:
            return link.request(message)
        finally:
            _close([link])


def _failed(outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """What the checks said that failed for a reason of the answer's own."""
    return {
        name: outcome
        for name, outcome in outcomes.items()
        if outcome.message is not None and not outcome.unanswered and not outcome.lost
    }


def _opened(open_link: OpenLink) -> tuple[Link, Callbacks]:
    callbacks = Callbacks()
    return open_link(callbacks), callbacks


class Grader:
    """Grades submissions one at a time; what it learned of the bank serves them all.

    Args:
        engine: runs the learner's code.
        seed: the instructor's.
    """

    def __init__(self, engine: Engine, *, seed: int = 0) -> None:
        self._engine = engine
        self._seed = seed
        self._judges: dict[str, _PatientJudge] = {}
        self._handed_out: dict[str, ExerciseResult] = {}

    def warm(self, stem: str) -> None:
        """Run a chapter's bank now rather than while the first submission waits."""
        for item in chapters.exercises(stem).values():
            self._judge(item).ready()

    def grade(
        self,
        data: bytes,
        name: str = "",
        *,
        stems: Iterable[str],
        expected: str = "",
        known: Mapping[str, ExerciseResult] | None = None,
        alone: bool = False,
    ) -> Graded:
        """Grade one submission.

        Args:
            data: the file.
            name: its name; a hint at the chapter, where the content leaves it open.
            stems: the chapters that it may be of.
            expected: the chapter that it must be of, if that is known.
            known: results that need not be made again, by their key.
            alone: nothing else runs meanwhile: a limit hit now counts.
        """
        start = time.perf_counter()
        try:
            notebook = read(data, name)
        except Unreadable as error:
            return Graded(nothing("unreadable", expected or hinted(name, stems), str(error)))
        stem, note = chapter_of(notebook, name, list(stems), expected)
        if not stem or note:
            status = "empty" if stem else "unreadable"
            return Graded(nothing(status, stem, *(note and [note]), *notebook.notes))
        graded = self._grade(align(notebook, template(stem)), known or {}, alone)
        seconds = time.perf_counter() - start
        return replace(graded, result=replace(graded.result, seconds=seconds))

    def _grade(self, aligned: Aligned, known: Mapping[str, ExerciseResult], alone: bool) -> Graded:
        stem = aligned.template.stem
        graded = Graded(SubmissionResult("", stem, "graded"))
        results: dict[str, ExerciseResult] = {}
        programs: dict[str, Program] = {}
        again = []
        for name in aligned.template.exercises:
            item = chapters.exercises(stem)[name]
            found = aligned.found[name]
            if found.problem:
                results[name] = _unreadable(item, found)
                continue
            if item.missing:  # of this machine: nothing is kept, and another may grade it
                results[name] = _all_failed(item, item.missing, is_open=True)
                aligned.note(item.missing)
                continue
            code = program(aligned, name)
            programs[name] = code
            modules = aligned.template.modules
            key = keys.exercise(item, code.cells, modules, self._seed)
            graded.keys[item.id] = key
            start = time.perf_counter()
            results[name] = known.get(key) or self._exercise(item, code, modules, key, alone)
            if found.is_open and item.given:
                results[name] = _as_handed_out(results[name])
            graded.seconds[item.id] = time.perf_counter() - start
            if any(check.lost for check in results[name].checks) and not alone:
                again.append(item.id)
        _note_calls(aligned, results, {name: code.calls for name, code in programs.items()})
        _note_reaches(aligned, programs.values())
        graded.again = tuple(again)
        graded.result = SubmissionResult(
            "",
            stem,
            _status(aligned, results.values()),
            tuple(results.values()),
            tuple(aligned.notes),
        )
        return graded

    def _exercise(
        self, item: Exercise, code: Program, modules: Mapping[str, str], key: str, alone: bool
    ) -> ExerciseResult:
        if key in self._handed_out:
            return self._handed_out[key]
        links: list[Any] = []

        def open_link(callbacks: Callbacks) -> Link:
            # the first one serves every check; what is asked again has a fork of its own
            _close(links[1:])
            del links[1:]
            link = self._engine.open(
                code.cells, item.name, modules=modules, forbid=item.forbid, callbacks=callbacks
            )
            links.append(link)
            _raise_not_defined(link, item.name)
            return link

        judge = self._judge(item)
        judge.alone = alone
        try:
            result = judge.judge(open_link, again=True)
        except _NotDefined as error:
            result = _all_failed(item, str(error), is_open=error.unanswered)
        finally:
            _close(links)
        if not code.own and not any(check.lost for check in result.checks):
            self._handed_out[key] = result
        return result

    def _judge(self, item: Exercise) -> _PatientJudge:
        if item.id not in self._judges:
            judge = _PatientJudge(item, chapters.entries(item), seed=self._seed)
            judge.meanwhile = lambda: self._help_with(item.stem)
            self._judges[item.id] = judge
        return self._judges[item.id]

    def _help_with(self, stem: str) -> None:
        """Find out how the wrong answers to another exercise of a chapter behave: it will be
        needed too."""
        for item in chapters.exercises(stem).values():
            known = bank.read(item, self._seed)
            if known is None and self._judge(item).find_out(wait=False) is not None:
                return


class _NotDefined(Exception):
    """The cells ran, and did not define the answer."""

    def __init__(self, text: str, unanswered: bool) -> None:
        super().__init__(text)
        self.unanswered = unanswered


def _raise_not_defined(link: Any, name: str) -> None:
    report = getattr(link, "startup", None)
    if not report or report["found"]:
        return
    errors = [cell["error"] for cell in report["cells"] if cell["error"]]
    if not errors:
        raise _NotDefined(
            _("The cell ran, but `{name}` is not defined after it.").format(name=name), False
        )
    error = errors[-1]
    where = _(" in line {line}").format(line=error["line"]) if error["line"] else ""
    raise _NotDefined(
        _(
            "`{name}` is not defined: the cell raised {kind}{where}: {text} It must run after the "
            "set-up cell and your answers above it, without other cells."
        ).format(name=name, kind=error["error"], where=where, text=error["text"]),
        error["unanswered"],
    )


def _close(links: list[Any]) -> None:
    for link in links:
        close: Callable[[], None] = getattr(link, "close", lambda: None)
        close()


def chapter_of(
    notebook: Notebook, name: str, stems: list[str], expected: str = ""
) -> tuple[str, str]:
    """Which chapter a notebook is of, and a sentence where it is not the expected one."""
    if notebook.is_empty:
        return expected or hinted(name, stems), _("The notebook has no text in any cell.")
    if expected and matches(notebook, template(expected)) >= _SOME:
        return expected, ""
    share = {stem: matches(notebook, template(stem)) for stem in stems}
    best = max(share, key=lambda stem: (share[stem], stem == hinted(name, stems)), default="")
    if expected:
        if best and share[best] >= _SOME:
            return expected, _(
                "This is the notebook of the chapter `{other}`; nothing of `{stem}` is in it."
            ).format(other=best, stem=expected)
        return expected, _("Nothing of the chapter `{stem}` is in this notebook.").format(
            stem=expected
        )
    if not best or share[best] < _SOME:
        return hinted(name, stems), _("This notebook is of none of the chapters.")
    return best, ""


def nothing(status: str, stem: str, *notes: str) -> SubmissionResult:
    """The result of a submission in which there is nothing to grade: no points, and why."""
    exercises: tuple[ExerciseResult, ...] = ()
    if stem:
        message = notes[0] if notes else ""
        exercises = tuple(
            _all_failed(item, message, is_open=True) for item in chapters.exercises(stem).values()
        )
    return SubmissionResult("", stem, status, exercises, tuple(notes))


def _all_failed(item: Exercise, message: str, *, is_open: bool = False) -> ExerciseResult:
    return ExerciseResult(
        item.id,
        tuple(
            CheckResult(c.name, 0.0, c.points, c.hidden, False, message, open=is_open)
            for c in item.checks
        ),
    )


def _as_handed_out(result: ExerciseResult) -> ExerciseResult:
    """What a bug-finding exercise hands out is not the learner's mistake, and not explained."""
    message = _("The code is as it was handed out: its faults are still in it.")
    return replace(
        result,
        checks=tuple(
            c if c.passed or c.lost else replace(c, message=message, diagnosis=None, open=True)
            for c in result.checks
        ),
    )


def _unreadable(item: Exercise, found: Found) -> ExerciseResult:
    if found.is_too_much:
        text = _("The cell was not read: {reason}. Write the answer in fewer, simpler statements.")
        return _all_failed(item, text.format(reason=found.problem))
    where = _(" (line {line})").format(line=found.line) if found.line else ""
    return _all_failed(
        item,
        _(
            "Python cannot read this cell: {reason}{where}. A bracket, a quote or an indentation "
            "is not closed. Run the cell and mend what its error points at."
        ).format(reason=found.problem, where=where),
    )


def _note_calls(
    aligned: Aligned, results: Mapping[str, ExerciseResult], calls: Mapping[str, tuple[str, ...]]
) -> None:
    """Say where a failure may come from another answer that is called and not right."""
    wrong = {
        name
        for name, result in results.items()
        if result.score < result.max_score and not aligned.found[name].is_open
    }
    not_right = {name for name, result in results.items() if result.score < result.max_score}
    for other in aligned.template.exercises:
        if other not in not_right or any(name in not_right for name in calls.get(other, ())):
            continue  # what it calls is named instead
        callers = [name for name in calls if other in calls[name] and name in wrong]
        if callers:
            aligned.note(
                _(
                    "`{other}` is not right; what calls it may fail because of that: {names}."
                ).format(other=other, names=", ".join(f"`{name}`" for name in callers))
            )


def _note_reaches(aligned: Aligned, programs: Iterable[Program]) -> None:
    """Name what no exercise needs, for a person to look at. It costs no points."""
    found: dict[str, int] = {}  # the cell that names it first
    for item in {id(item): item for code in programs for item in code.own}.values():
        for _line, name in reaches(item):
            found[name] = min(item.cell, found.get(name, item.cell))
    if found:
        names = [
            _("`{name}` (cell {number})").format(name=name, number=cell + 1)
            for name, cell in sorted(found.items(), key=lambda pair: (pair[1], pair[0]))
        ]
        more = _(" and {count} more").format(count=len(names) - _NAMED) * (len(names) > _NAMED)
        aligned.note(
            _("Worth a look: no exercise needs {names}{more}.").format(
                names=", ".join(names[:_NAMED]), more=more
            )
        )


def _status(aligned: Aligned, results: Iterable[ExerciseResult]) -> str:
    lost = {check.lost for result in results for check in result.checks if check.lost}
    for status in LOST:
        if status in lost:
            return status
    if lost:  # a reply that could not be read
        return "crashed"
    if aligned.is_empty:
        return "empty"
    return "repaired" if aligned.repaired else "graded"
