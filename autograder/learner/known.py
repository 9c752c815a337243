"""The exercises that this installation knows, and how a learner's name or id finds one."""

from __future__ import annotations

import difflib
import pkgutil
from collections.abc import Set
from functools import cache

import autograder.checks
from autograder import chapters
from autograder.checking import Exercise
from autograder.i18n import _
from autograder.sources import SourceError


@cache
def stems() -> tuple[str, ...]:
    """The chapters that have checks, by name."""
    return tuple(sorted(item.name for item in pkgutil.iter_modules(autograder.checks.__path__)))


@cache
def exercises() -> dict[str, Exercise]:
    """All exercises by id, chapter after chapter."""
    found = {}
    for stem in stems():
        for exercise in chapters.exercises(stem).values():
            found[exercise.id] = exercise
    return found


def find(exercise_id: object) -> Exercise | str:
    """The exercise of that id, or one line that says which were meant."""
    if isinstance(exercise_id, str):
        stem = exercise_id.partition(".")[0]
        if stem in stems():
            # the usual case: one chapter's checks are imported, not the whole book's
            for exercise in chapters.exercises(stem).values():
                if exercise.id == exercise_id:
                    return exercise
    wanted = getattr(exercise_id, "__name__", exercise_id)
    if not isinstance(wanted, str):
        return _('✘ Name the exercise in quotes, as in check("attention.masked_softmax").')
    known = exercises()
    near = [key for key, item in known.items() if wanted in (key, item.name)]
    near = near or difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
    names = {item.name: key for key, item in known.items()}
    near = near or [names[name] for name in difflib.get_close_matches(wanted, names, n=3)]
    line = _("✘ There is no exercise “{id}”.").format(id=wanted)
    if near:
        line += " " + _("Did you mean {names}?").format(
            names=_(" or ").join(f"“{key}”" for key in near)
        )
    return line


def most_made(names: Set[str]) -> list[str]:
    """The chapter whose exercises most of these names are: no chapter, one, or several that tie.

    One name tells nothing: a page may define a helper that is called as another page's exercise.
    """
    counts = {stem: len(names & chapters.exercises(stem).keys()) for stem in stems()}
    return [stem for stem, count in counts.items() if count and count == max(counts.values())]


def by_name(name: str) -> Exercise | None:
    """The exercise with that bare name, if there is one."""
    try:
        found = exercises()
    except SourceError:
        return None
    return next((exercise for exercise in found.values() if exercise.name == name), None)
