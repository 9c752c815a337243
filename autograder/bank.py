"""The answer bank: wrong answers with their explanation, right answers in other styles.

``autograder/answers/<stem>.py`` holds ordinary implementations under decorators::

    @wrong("masked_softmax", why=_("..."), see="masked-softmax", rung=2)
    def mask_after_softmax(scores, mask=None): ...

    @right("masked_softmax", style="own softmax")
    def with_exp(scores, mask=None): ...

The name of a wrong answer is its diagnosis. For a long class, an entry may be the reference with a
piece of it replaced (:func:`wrong_edit`, :func:`right_edit`): the difference is all there is to
read, and where the reference changes under it, the entry fails with a clear line.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from autograder.sources import (
    SourceError,
    definition_source,
    renamed,
    strip_markers,
    without_decorators,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """One answer of the bank.

    Attributes:
        exercise: bare name of the exercise.
        name: of a wrong answer, the diagnosis; of a right one, its style as an identifier.
        is_right: whether it must pass every check.
        why: to the learner: which mistake this is, and why it is one (empty for right answers).
        see: label of the section that explains it.
        rung: the hint that fits the mistake, 1 to 3.
        form_of: the diagnosis this is another form of; then the two need not be told apart.
        given: this is what a bug-finding exercise hands out.
        source: the cell a learner would have written.
        target: the implementation itself.
    """

    exercise: str
    name: str
    is_right: bool
    why: str
    see: str
    rung: int
    form_of: str | None
    given: bool
    source: str
    target: Any

    @property
    def diagnosis(self) -> str:
        """The mistake's name, shared by all its forms."""
        return self.form_of or self.name


def wrong(
    exercise: str,
    *,
    why: str,
    see: str = "",
    rung: int = 1,
    form_of: str | None = None,
    given: bool = False,
) -> Callable[[T], T]:
    """Enter the decorated implementation as a wrong answer of ``exercise``."""
    return _entering(exercise, False, why, see, rung, form_of, given)


def right(exercise: str, *, style: str = "") -> Callable[[T], T]:
    """Enter the decorated implementation as a right answer; ``style`` says what is unusual."""
    return _entering(exercise, True, style, "", 1, None, False)


def wrong_edit(
    exercise: str,
    name: str,
    edits: dict[str, str],
    *,
    why: str,
    see: str = "",
    rung: int = 1,
    form_of: str | None = None,
    given: bool = False,
) -> None:
    """Enter the reference with pieces replaced (old text: new text) as a wrong answer."""
    _enter_edit(exercise, name, edits, False, why, see, rung, form_of, given)


def right_edit(exercise: str, name: str, edits: dict[str, str], *, style: str = "") -> None:
    """Enter the reference with pieces replaced as a right answer."""
    _enter_edit(exercise, name, edits, True, style, "", 1, None, False)


_entries: dict[str, list[Entry]] = {}


def entries_of(module_name: str) -> list[Entry]:
    """All entries that a module of ``autograder.answers`` made, in order."""
    return _entries.get(module_name, [])


def _register(module_name: str, entry: Entry) -> None:
    known = _entries.setdefault(module_name, [])
    if any(e.name == entry.name and e.exercise == entry.exercise for e in known):
        raise SourceError(
            f"{module_name}: {entry.exercise} has two entries named {entry.name!r}; rename one"
        )
    known.append(entry)


def _entering(
    exercise: str, is_right: bool, why: str, see: str, rung: int, form_of: str | None, given: bool
) -> Callable[[T], T]:
    def enter(target: T) -> T:
        function: Any = getattr(target, "fn", target)  # behind a Triton kernel
        name, module = function.__name__, function.__module__
        path = Path(sys.modules[module].__file__ or "")
        source = without_decorators(definition_source(path, name), ("wrong", "right"))
        entry = Entry(
            exercise,
            name,
            is_right,
            why,
            see,
            rung,
            form_of,
            given,
            renamed(source, name, exercise),
            target,
        )
        _register(module, entry)
        return target

    return enter


def _enter_edit(
    exercise: str,
    name: str,
    edits: dict[str, str],
    is_right: bool,
    why: str,
    see: str,
    rung: int,
    form_of: str | None,
    given: bool,
) -> None:
    module = sys._getframe(2).f_globals["__name__"]
    solutions = sys.modules[f"solutions.{module.rsplit('.', 1)[-1]}"]
    source = strip_markers(definition_source(Path(solutions.__file__ or ""), exercise))
    for old, new in edits.items():
        if source.count(old) != 1:
            raise SourceError(
                f"{module}: {exercise}: {name}: {old!r} stands {source.count(old)} times in the "
                "reference, not once; mend the edit"
            )
        source = source.replace(old, new)
    target = built(source, exercise, solutions, f"<{module}: {exercise}: {name}>")
    entry = Entry(exercise, name, is_right, why, see, rung, form_of, given, source, target)
    _register(module, entry)


def built(source: str, name: str, solutions: ModuleType, filename: str) -> Any:
    """What a definition's source defines, where the reference runs: with its module's names."""
    namespace = dict(vars(solutions))
    # Triton reads a kernel's source from here
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), namespace)  # noqa: S102
    return namespace[name]
