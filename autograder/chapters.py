"""The chapters: their stems and order (from ``_toc.yml``), their sources, exercises and bank."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from autograder.sources import SourceError

if TYPE_CHECKING:
    from autograder.bank import Entry
    from autograder.checking import Exercise

ROOT = Path(__file__).resolve().parent.parent


def stems() -> list[str]:
    """The chapters' stems in the order of ``_toc.yml``: pages that are notebooks.

    A page counts where it has a code cell or where any of its other sources is there: what is
    missing then is an error, and no reason to pass the page over.

    Raises:
        SourceError: ``_toc.yml`` is not there; only the repository has it, not the package.
    """
    return [stem for stem in _pages() if _is_chapter(stem)]


def _is_chapter(stem: str) -> bool:
    sources = [f"autograder/{kind}/{stem}.py" for kind in ("checks", "answers")]
    if any((ROOT / path).exists() for path in [*sources, f"solutions/{stem}.py"]):
        return True
    page = ROOT / "book" / f"{stem}.md"
    return page.exists() and "{code-cell}" in page.read_text(encoding="utf-8")


def _pages() -> list[str]:
    """All pages of ``book/`` that ``_toc.yml`` names, in order."""
    toc = ROOT / "_toc.yml"
    if not toc.exists():
        raise SourceError("_toc.yml is missing; run this from the repository")
    # Only the repository needs yaml; a learner's notebook does not.
    import yaml  # noqa: PLC0415

    found: list[str] = []

    def visit(item: object) -> None:
        if isinstance(item, list):
            for part in item:
                visit(part)
        elif isinstance(item, dict):
            for key in ("root", "file"):
                if str(item.get(key, "")).startswith("book/"):
                    found.append(str(item[key]).removeprefix("book/"))
            for key in ("chapters", "sections", "parts"):
                visit(item.get(key, []))

    visit(yaml.safe_load(toc.read_text(encoding="utf-8")))
    return found


def exercises(stem: str) -> dict[str, Exercise]:
    """The exercises of a chapter by bare name, in the order of its checks file.

    Raises:
        SourceError: no checks file for that stem, or two exercises of one name.
    """
    return dict(_exercises(stem))


@cache
def _exercises(stem: str) -> dict[str, Exercise]:
    try:
        module = importlib.import_module(f"autograder.checks.{stem}")
    except ModuleNotFoundError as error:
        if error.name != f"autograder.checks.{stem}":
            raise
        raise SourceError(
            f"autograder/checks/{stem}.py is missing; "
            "write it after the template in CONTRIBUTING.md"
        ) from error
    from autograder.checking import exercises_of  # noqa: PLC0415 — with torch, which stems need not

    found: dict[str, Exercise] = {}
    for item in exercises_of(module.__name__):
        if item.name in found:
            raise SourceError(
                f"autograder/checks/{stem}.py: two exercises named {item.name!r}; rename one"
            )
        found[item.name] = item
    return found


def exercise(exercise_id: str) -> Exercise:
    """The exercise ``<stem>.<name>``.

    Raises:
        SourceError: no such exercise.
    """
    stem, _dot, name = exercise_id.partition(".")
    known = exercises(stem)
    if name not in known:
        raise SourceError(
            f"no exercise {exercise_id!r}; chapter {stem!r} has {', '.join(known) or 'none'}"
        )
    return known[name]


def bank(stem: str) -> list[Entry]:
    """The answer bank of a chapter.

    Raises:
        SourceError: no bank for that stem.
    """
    name = f"autograder.answers.{stem}"
    try:
        importlib.import_module(f"solutions.{stem}")
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in (name, f"solutions.{stem}"):
            raise
        raise SourceError(
            f"{error.name.replace('.', '/')}.py is missing; "
            "write it after the template in CONTRIBUTING.md"
        ) from error
    from autograder.bank import entries_of  # noqa: PLC0415 — see above

    return entries_of(name)


def entries(exercise: Exercise) -> list[Entry]:
    """The bank's entries for one exercise."""
    return [entry for entry in bank(exercise.stem) if entry.exercise == exercise.name]


def reference(exercise: Exercise) -> object:
    """The right answer itself, from ``solutions``."""
    module = importlib.import_module(f"solutions.{exercise.stem}")
    return getattr(module, exercise.name)
