"""Proves the graders: ``python -m autograder verify``.

For every exercise and every seed: the reference and each right answer pass every check; each wrong
answer fails, is diagnosed as itself and as nothing else; an untouched stub gets 0, and so does an
answer that does nothing. With the visible checks alone, as in a learner's kernel, a wrong answer is
diagnosed as itself or not at all. What a bug-finding exercise hands out earns nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from autograder import chapters
from autograder.bank import Entry
from autograder.checking import Exercise
from autograder.diagnosis import agreements, same_trace
from autograder.idle import idle_answers
from autograder.judge import Judge, Trials, opening
from autograder.sources import SourceError

HINTS = 3

Complain = Callable[[str, int], None]
Progress = Callable[[str, int, int], None]


@dataclass
class Report:
    """What was proved, and what was not (``failures``, one line each)."""

    exercises: int = 0
    checks: int = 0
    wrong_answers: int = 0
    right_answers: int = 0
    seeds: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Add another exercise's counts and failures."""
        self.exercises += other.exercises
        self.checks += other.checks
        self.wrong_answers += other.wrong_answers
        self.right_answers += other.right_answers
        self.failures += other.failures


def verify_exercise(exercise: Exercise, seeds: Iterable[int]) -> Report:
    """Prove one exercise's checks and bank."""
    entries = chapters.entries(exercise)
    wrong = [entry for entry in entries if not entry.is_right]
    right = [entry for entry in entries if entry.is_right]
    report = Report(1, len(exercise.checks), len(wrong), len(right))
    failures: dict[str, list[int]] = {}

    def complain(text: str, seed: int) -> None:
        failures.setdefault(f"{exercise.id}: {text}", []).append(seed)

    for problem in _form_problems(exercise, entries):
        report.failures.append(f"{exercise.id}: {problem}")
    reference = chapters.reference(exercise)
    idle = idle_answers(exercise)
    trials: Trials = {}
    for number, seed in enumerate(seeds):
        judge = Judge(exercise, entries, seed=seed, trials=trials)
        for name, target in [("the reference", reference)] + [
            (f"right answer {entry.name}", entry.target) for entry in right
        ]:
            for check in judge.judge(opening(exercise, target, trials)).checks:
                if not check.passed:
                    complain(f"{name} fails {check.name}: {check.message}", seed)
        agree = agreements(judge.fingerprints())
        for entry in wrong:
            _verify_wrong(entry, judge, agree[entry.name], seed, complain)
        if number == 0:
            _verify_stable(wrong, judge, seed, complain)
        if exercise.given is None:
            _verify_stub(judge, seed, complain)
        _verify_idle(idle, judge, seed, complain)
    report.failures += [_line(text, found) for text, found in failures.items()]
    return report


def _line(text: str, seeds: list[int]) -> str:
    shown = ", ".join(map(str, seeds[:6])) + (", …" if len(seeds) > 6 else "")
    return f"{text} (seed {shown})"


def _form_problems(exercise: Exercise, entries: Sequence[Entry]) -> list[str]:
    problems = []
    if not exercise.checks:
        problems.append("has no check; add one in the checks file")
    if not any(not entry.is_right for entry in entries):
        problems.append("has no wrong answer in the bank; add what people get wrong")
    if len(exercise.hints) != HINTS:
        problems.append(f"has {len(exercise.hints)} hints; give {HINTS}")
    if exercise.points <= 0:
        problems.append("is worth no points; give a check points")
    names = {entry.name for entry in entries if not entry.is_right}
    for check in exercise.checks:
        if not check.asks:
            problems.append(f"check {check.name} does not say what it asks; give it a docstring")
    for entry in entries:
        if not entry.is_right and not entry.why:
            problems.append(f"wrong answer {entry.name} has no explanation; write its why")
        if not 1 <= entry.rung <= HINTS:
            problems.append(f"wrong answer {entry.name}: rung {entry.rung} is not 1 to {HINTS}")
        if entry.form_of and entry.form_of not in names:
            problems.append(f"{entry.name} is a form of {entry.form_of}, which is not in the bank")
    given = [entry.name for entry in entries if entry.given]
    if exercise.given != (given[0] if given else None) or len(given) > 1:
        problems.append(f"hands out {exercise.given}, but the bank marks {given or 'nothing'}")
    return problems


def _verify_wrong(
    entry: Entry, judge: Judge, agree: dict[str, set[str]], seed: int, complain: Complain
) -> None:
    outcomes = judge.bank_outcomes()[entry.name]
    result = judge.result(outcomes, agree)
    if all(check.passed for check in result.checks):
        complain(f"wrong answer {entry.name} passes every check", seed)
        return
    if entry.diagnosis not in result.diagnoses:
        complain(f"wrong answer {entry.name} is not recognised", seed)
    if entry.given and result.score:
        earned = [check.name for check in result.checks if check.points]
        complain(
            f"what is handed out earns points in {', '.join(earned)}; set their points to 0", seed
        )
    # As in a learner's kernel: a mistake may go unnamed there, but must not be taken for another.
    seen = {check.name for check in judge.checks if not check.hidden}
    visible = judge.result(
        {name: outcome for name, outcome in outcomes.items() if name in seen},
        {other: checks & seen for other, checks in agree.items()},
    )
    for found, where in ((result, ""), (visible, " by the visible checks")):
        others = sorted({d for d in found.diagnoses if d != entry.diagnosis})
        if others:
            complain(f"wrong answer {entry.name} is taken for {', '.join(others)}{where}", seed)


def _verify_stable(wrong: Sequence[Entry], judge: Judge, seed: int, complain: Complain) -> None:
    fingerprints = judge.fingerprints()
    for entry in wrong:
        # without what its tests are known to say: they are run once more
        again = judge.outcomes(opening(judge.exercise, entry.target))
        known = fingerprints[entry.name]
        if not all(same_trace(again[check].trace, known[check]) for check in known):
            complain(f"wrong answer {entry.name} does not behave the same twice", seed)


def _verify_stub(judge: Judge, seed: int, complain: Complain) -> None:
    def stub(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    result = judge.judge(opening(judge.exercise, stub))
    if result.score:
        complain(f"an untouched stub gets {result.score} points", seed)


def _verify_idle(idle: dict[str, Any], judge: Judge, seed: int, complain: Complain) -> None:
    for what, target in idle.items():
        # which mistake it looks like is nobody's concern
        result = judge.result(judge.outcomes(opening(judge.exercise, target)), {})
        if result.score:
            paid = ", ".join(check.name for check in result.checks if check.points)
            complain(f"{what} earns points in {paid}; let it ask for a right result as well", seed)


def verify(
    stems: Sequence[str], seeds: int, *, workers: int = 1, progress: Progress | None = None
) -> Report:
    """Prove chapters; exercises are spread over ``workers`` processes."""
    total = Report(seeds=seeds)
    ids = []
    for stem in stems:
        found = chapters.exercises(stem)
        if not found:
            total.failures.append(f"autograder/checks/{stem}.py: no exercise")
        unknown = {entry.exercise for entry in chapters.bank(stem)} - set(found)
        total.failures += [
            f"autograder/answers/{stem}.py: no exercise {name!r}" for name in sorted(unknown)
        ]
        ids += [exercise.id for exercise in found.values()]
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_one_thread) as pool:
        # the longest first, so that the processes end together
        order = sorted(ids, key=_size, reverse=True)
        jobs = {pool.submit(_verify_by_id, item, seeds): item for item in order}
        results = {}
        for job in as_completed(jobs):
            results[jobs[job]] = job.result()
            if progress:
                progress(jobs[job], len(results), len(ids))
    for item in ids:
        total.add(results[item])
    return total


def _size(exercise_id: str) -> int:
    """How many checks are run for a seed: about how long an exercise takes."""
    exercise = chapters.exercise(exercise_id)
    return len(exercise.checks) * len(chapters.entries(exercise))


def _one_thread() -> None:
    torch.set_num_threads(1)
    # kernels run as in the sandboxes at grading, on machines with a GPU too
    os.environ["TRITON_INTERPRET"] = "1"


def _verify_by_id(exercise_id: str, seeds: int) -> Report:
    exercise = chapters.exercise(exercise_id)
    chapters.entries(exercise)
    # What is loaded stays loaded: the garbage collector need not walk over it again and again.
    gc.collect()
    gc.freeze()
    # Modules are built by the thousand, and nearly all of them end without its help.
    gc.set_threshold(50_000, 20, 20)
    return verify_exercise(exercise, range(seeds))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of ``verify``."""
    parser = argparse.ArgumentParser(prog="python -m autograder verify", description=__doc__)
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER")
    parser.add_argument("--seeds", type=int, default=20, metavar="N")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    try:
        stems = args.chapters or chapters.stems()
        report = verify(stems, args.seeds, workers=args.workers, progress=_Progress())
    except SourceError as error:
        print(error, file=sys.stderr)
        return 2
    if args.json:
        args.json.write_text(json.dumps(vars(report), indent=1) + "\n", encoding="utf-8")
    for failure in report.failures:
        print(failure)
    print(
        f"{report.exercises} exercises, {report.checks} checks, {report.wrong_answers} wrong and "
        f"{report.right_answers} right answers, {report.seeds} seeds: "
        f"{len(report.failures)} failures"
    )
    return 1 if report.failures else 0


class _Progress:
    """Says which exercise is proved: on one line of a terminal, now and then in a log."""

    every = 20.0  # seconds

    def __init__(self) -> None:
        self._said = time.monotonic()

    def __call__(self, name: str, done: int, total: int) -> None:
        now = time.monotonic()
        if sys.stderr.isatty():
            print(f"\r{done}/{total} {name:60}", end="\n" * (done == total), file=sys.stderr)
        elif now - self._said >= self.every:
            self._said = now
            print(f"{done} of {total} exercises proved", file=sys.stderr, flush=True)
