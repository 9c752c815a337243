"""The code to run for one exercise: the answer, and what it needs; nothing else.

Statements are put in order of need, not of place, so that a moved cell does no harm. A name comes
from what was handed out (the set-up cell, imports of earlier chapters), from the learner's answer
to another exercise of the chapter, or from a statement that the learner added, in this order. With
it come the statements that change it, and those that call a helper which does. Demonstrations,
prints and tests are never run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autograder.compose.names import GIVEN
from autograder.submissions.align import Aligned
from autograder.submissions.statements import Statement, joined

_SETTINGS = "os"

_ByName = dict[str, list[Statement]]


@dataclass(frozen=True)
class Program:
    """What is run for one exercise.

    Attributes:
        cells: label and source of each cell, in order.
        own: what of it is the learner's.
        calls: the other exercises of the chapter whose answers it uses.
    """

    cells: tuple[tuple[str, str], ...]
    own: tuple[Statement, ...]
    calls: tuple[str, ...]


def program(aligned: Aligned, name: str) -> Program:
    """Cut out what one exercise needs."""
    order = _Order(aligned)
    order.answer(name)
    handed_out = {id(item) for item in aligned.template.statements}
    cells = _grouped(order.emitted, handed_out, _futures(aligned.added))
    found = aligned.found[name]
    if found.alias:
        cells.append(("name", f"{name} = {found.alias}\n"))
    return Program(
        tuple(cells),
        tuple(item for item in order.emitted if id(item) not in handed_out),
        tuple(n for n in aligned.template.exercises if n in order.calls),
    )


# A step asks for others, which are done before it goes on.
_Step = Iterator[Any]  # of steps


def _run(step: _Step) -> None:
    """Run a step, and all that it asks for. No recursion: helpers may call each other in a row."""
    stack = [step]
    while stack:
        asked = next(stack[-1], None)
        if asked is None:
            stack.pop()
        else:
            stack.append(asked)


class _Order:
    def __init__(self, aligned: Aligned) -> None:
        self.aligned = aligned
        self.template = aligned.template
        self.emitted: list[Statement] = []
        self.calls: set[str] = set()
        self._asked: set[str] = set()
        self._seen: set[int] = set()
        # An answer's statements are the learner's, but not helpers of other answers.
        answers = {id(part) for found in aligned.found.values() for part in found.parts}
        helpers = [item for item in aligned.added if id(item) not in answers]
        self._given = _by_name(self.template.given, "makes")
        self._makers = _by_name(helpers, "makes")
        self._changers = _by_name(helpers, "changes")
        self._doers, self._callers = _doers(helpers), _by_name(helpers, "calls")
        # an answer is not called, and what was handed out and modules are complete
        for name in (*aligned.found, *self._given, *(n for i in helpers for n in i.names.modules)):
            self._doers.pop(name, None)
        self._make_any = [item for item in helpers if item.names.makes_any]
        self._under_way: set[str] = set()
        self._postponed: list[Statement] = []
        # The environment is set before the module that reads it is imported.
        _run(self._emit(item for item in self.template.given if _SETTINGS in item.names.changes))

    def answer(self, name: str) -> None:
        """Emit the answer to an exercise: the learner's, or the stub as it was handed out."""
        _run(self._answer(name))
        _run(self._emit(self._postponed))

    def _answer(self, name: str) -> _Step:
        found = self.aligned.found[name]
        self._asked.add(name)
        if found.parts:
            yield self._emit(found.parts, beside=found.parts[0].cell)
        else:
            yield self._emit(self.template.stubs[name])

    def _emit(self, items: Iterable[Statement], beside: int = -1) -> _Step:
        for item in items:
            if id(item) in self._seen:
                continue
            self._seen.add(id(item))
            names = item.names
            self._under_way |= names.makes
            for name in sorted(names.needs | names.builtins):
                if name not in self._asked:
                    self._asked.add(name)
                    yield self._provide(name, beside)
            # who makes a name when called needs nobody else's call
            for name in sorted(names.needs - names.later):
                for function in self._doers.pop(name, ()):
                    yield self._complete(self._callers.pop(function, []), beside)
            self.emitted.append(item)
            self._under_way -= names.makes

    def _complete(self, items: Iterable[Statement], beside: int) -> _Step:
        """Emit what makes and changes a name; at the very end, what calls a function that is not
        there yet, as it waits for the name."""
        for item in items:
            if item.defines or item.names.calls.isdisjoint(self._under_way):
                yield self._emit([item], beside)
            else:
                self._postponed.append(item)

    def _provide(self, name: str, beside: int) -> _Step:
        """Emit what makes a name.

        Args:
            beside: the cell of the answer; what it makes itself comes on top of what was given.
        """
        given = self._given.get(name, [])
        yield self._emit(given)
        if name in self.aligned.found:
            self.calls.add(name)
            yield self._answer(name)
            return
        makers = self._makers.get(name, [])
        here = [item for item in makers if item.cell == beside]
        if (given or name in GIVEN) and not here:
            return
        makers = (here if given else makers) or self._make_any
        if makers:
            yield self._complete(
                sorted(
                    [*makers, *self._changers.get(name, [])],
                    key=lambda item: (item.cell, item.first),
                ),
                beside,
            )


def _doers(items: Iterable[Statement]) -> dict[str, list[str]]:
    """For each name the functions and classes that make or change it when they are called."""
    found: dict[str, list[str]] = {}
    for item in items:
        for function in item.defines if item.names.later else ():
            for name in item.names.later:
                found.setdefault(name, []).append(function)
    return found


def _futures(items: Iterable[Statement]) -> dict[int, list[Statement]]:
    """What each cell imports from ``__future__``: it holds for all of the cell."""
    found: dict[int, list[Statement]] = {}
    for item in items:
        if any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in item.nodes):
            found.setdefault(item.cell, []).append(item)
    return found


def _by_name(items: Iterable[Statement], what: Literal["makes", "changes", "calls"]) -> _ByName:
    """The statements that make, change, or call each name; in order."""
    found: _ByName = {}
    for item in items:
        for name in getattr(item.names, what):
            found.setdefault(name, []).append(item)
    return found


def _grouped(
    emitted: list[Statement], template: set[int], futures: Mapping[int, Sequence[Statement]]
) -> list[tuple[str, str]]:
    """Neighbours of one cell in one source, each at its own line."""
    cells: list[tuple[str, str]] = []
    group: list[Statement] = []

    def flush() -> None:
        if group:
            cell = group[-1].cell
            owner = "course" if id(group[-1]) in template else "notebook"
            first = futures.get(cell, ()) if owner == "notebook" else ()
            cells.append((f"{owner} cell {cell + 1}", joined(list({*first, *group}))))
            group.clear()

    for item in emitted:
        if group and not (
            group[-1].cell == item.cell
            and group[-1].first < item.first
            and (id(group[-1]) in template) == (id(item) in template)
        ):
            flush()
        group.append(item)
    flush()
    return cells
