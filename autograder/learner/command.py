"""``python -m autograder check NOTEBOOK``: a learner's own look, without Jupyter.

Runs the answers of a notebook in this process and prints the visible checks. Plots and
experiments are not run: only the cells that an answer needs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autograder import chapters
from autograder.checking import Exercise
from autograder.compose.names import cells_needed, names
from autograder.guest.cells import fresh_main, run_cell
from autograder.i18n import _
from autograder.judge import Judge
from autograder.learner import known
from autograder.learner.report import Line, Report
from autograder.learner.session import LEARNER_SEED, look_at, report
from autograder.submissions.read import Unreadable, read

_CHECKED = re.compile(r"""\bcheck\(\s*["'](?P<id>[\w.]+)["']""")

DONE, OPEN, UNREADABLE, INTERRUPTED = 0, 1, 2, 130


@dataclass
class _Answers:
    """What running a notebook gave: its names, and what the cells of some answers raised."""

    namespace: dict[str, Any]
    raised: dict[str, str]


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of ``check``; 0 where every visible check passes, 2 for an unreadable file."""
    parser = argparse.ArgumentParser(prog="python -m autograder check", description=__doc__)
    parser.add_argument("notebook", type=Path, metavar="NOTEBOOK")
    args = parser.parse_args(argv)
    # A Windows console may have an encoding without ✔: print what it can.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        cells = [
            cell.source
            for cell in read(args.notebook.read_bytes(), args.notebook.name).cells
            if cell.kind == "code"
        ]
    except OSError as error:
        print(f"{args.notebook}: {error.strerror or error}", file=sys.stderr)
        return UNREADABLE
    except Unreadable as error:
        print(f"{args.notebook}: {error}", file=sys.stderr)
        return UNREADABLE
    exercises = exercises_in(cells)
    if not exercises:
        print(
            _("{file}: no exercise of this course is in it.").format(file=args.notebook),
            file=sys.stderr,
        )
        return UNREADABLE
    try:
        return _print_checks(exercises, cells)
    except KeyboardInterrupt:
        print(_("Interrupted."), file=sys.stderr)
        return INTERRUPTED


def exercises_in(cells: Sequence[str]) -> list[Exercise]:
    """The exercises of a notebook's chapter, which its checks tell, or else the names it makes."""
    found = [match["id"].partition(".")[0] for cell in cells for match in _CHECKED.finditer(cell)]
    stems = [stem for stem in found if stem in known.stems()]
    if not stems:
        stems = known.most_made({name for cell in cells for name in _made(cell)})
    if not stems:
        return []
    return list(chapters.exercises(max(stems, key=stems.count)).values())


def _print_checks(exercises: Sequence[Exercise], cells: Sequence[str]) -> int:
    earned = possible = 0.0
    done = True
    with _another_main(), _quiet():
        answers = _run(cells, [exercise.name for exercise in exercises])
        reports = []
        for exercise in exercises:
            if exercise.missing:
                reports.append(Report(exercise.title, [Line(exercise.missing, passed=False)]))
                possible += sum(item.points for item in exercise.checks if not item.hidden)
                done = False
                continue
            if exercise.name not in answers.namespace:
                reports.append(_missing(exercise, answers.raised.get(exercise.name)))
                possible += sum(item.points for item in exercise.checks if not item.hidden)
                done = False
                continue
            judge = Judge(
                exercise,
                chapters.entries(exercise),
                seed=LEARNER_SEED,
                checks=lambda check: not check.hidden,
            )
            look = look_at(judge, answers.namespace[exercise.name])
            reports.append(report(exercise, look))
            earned, possible = earned + look.result.score, possible + look.result.max_score
            done = done and all(item.passed for item in look.result.checks)
    for item in reports:
        print(item.text(), end="\n\n")
    print(
        _("{earned:g} of {possible:g} points of the visible checks").format(
            earned=earned, possible=possible
        )
    )
    return DONE if done else OPEN


def _missing(exercise: Exercise, raised: str | None) -> Report:
    if raised is None:
        text = _("`{name}` is not in the notebook.").format(name=exercise.name)
    else:
        text = _("The cell of `{name}` does not run: {error}").format(
            name=exercise.name, error=raised
        )
    return Report(exercise.title, [Line(text, passed=False)])


def _run(cells: Sequence[str], exercises: Sequence[str]) -> _Answers:
    """Run the cells that the answers need, in the notebook's order, each once."""
    made = [_made(cell) for cell in cells]
    homes = {name: [i for i, found in enumerate(made) if name in found] for name in exercises}
    wanted = {index for found in homes.values() for index in found}
    wanted |= set(cells_needed(cells, *wanted))
    answers = _Answers(fresh_main(), {})
    for index in sorted(wanted):
        try:
            run_cell(cells[index], f"cell {index + 1}", answers.namespace)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            line = f"{type(error).__name__}: {error}"
            answers.raised |= {name: line for name in exercises if index in homes[name]}
    for name, found in homes.items():
        broken = [i for i, cell in enumerate(cells) if not made[i] and _is_broken(cell, name)]
        if not found and broken:
            answers.raised[name] = _("it is not Python, in cell {n}").format(n=broken[-1] + 1)
    return answers


def _made(cell: str) -> frozenset[str]:
    try:
        return names(cell).makes
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()


def _is_broken(cell: str, name: str) -> bool:
    return re.search(rf"^\s*(?:def|class)\s+{re.escape(name)}\b", cell, re.MULTILINE) is not None


@contextlib.contextmanager
def _another_main() -> Iterator[None]:
    """Let the notebook have a ``__main__`` of its own for a while."""
    kept = sys.modules["__main__"]
    try:
        yield
    finally:
        sys.modules["__main__"] = kept


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop what the notebook prints, and open no window for its plots."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
