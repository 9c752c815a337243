"""Which names a cell needs from elsewhere, and which it makes: by syntax, without running it.

Four things rest on it: an answer may use only what stands above it; cells that depend on an
exercise are tagged; a stub never needs a demonstration; and a cell that the learner added runs at
grading only if an answer needs a name that it makes.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from autograder.guest.cells import python_of

# What every notebook has without making it.
GIVEN = frozenset(dir(builtins)) | {"display", "get_ipython", "__name__", "__doc__", "__file__"}


# Line magics that run the rest of their line.
_RUNS_LINE = re.compile(r"^(?P<indent>\s*)%(?:time|timeit|prun)\b(?:\s+-\S+)*\s+(?P<code>\S.*)$")


@dataclass(frozen=True)
class Names:
    """What a cell does with global names.

    Attributes:
        needs: read before the cell makes them, or read inside functions and not made by the cell.
        makes: bound at the cell's top level.
        changes: not bound, but the object behind is written to: ``name[...] = ``, ``name.x = ``,
            or a method called for its effect, as in ``name.append(...)``.
        makes_any: a star import: what it makes cannot be told.
    """

    needs: frozenset[str] = frozenset()
    makes: frozenset[str] = frozenset()
    changes: frozenset[str] = frozenset()
    makes_any: bool = False


def names(source: str) -> Names:
    """Analyse a cell; lines for IPython alone count as empty.

    Raises:
        SyntaxError: the cell is not Python.
    """
    tree = ast.parse(_python(source))
    needs: set[str] = set()
    late: set[str] = set()
    makes: set[str] = set()
    changes: set[str] = set()
    makes_any = False
    for statement in tree.body:
        makes_any = makes_any or _is_star_import(statement)
        table = symtable.symtable(ast.unparse(statement), "<cell>", "exec")
        for symbol in table.get_symbols():
            if symbol.is_referenced() and symbol.get_name() not in makes:
                needs.add(symbol.get_name())
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            needs |= {statement.target.id} - makes
        for scope in _scopes(table):
            for symbol in scope.get_symbols():
                if not symbol.is_global():
                    continue
                if symbol.is_assigned() and symbol.is_declared_global():
                    makes.add(symbol.get_name())
                elif symbol.is_referenced():
                    late.add(symbol.get_name())
        makes |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if (symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace())
            and not _only_for_annotation(statement)
        }
        changes |= set(_written_to(statement))
    # A function's globals are looked up when it is called: the cell's later lines may make them.
    needs |= late - makes
    return Names(frozenset(needs - GIVEN), frozenset(makes), frozenset(changes - makes), makes_any)


def _python(source: str) -> str:
    """The Python of a cell, that of lines such as ``%time f(x)`` included."""
    given, kept = source.split("\n"), python_of(source).split("\n")
    if len(given) != len(kept):
        return python_of(source)
    for number, (line, python) in enumerate(zip(given, kept, strict=True)):
        match = _RUNS_LINE.match(line) if line != python else None
        if match:
            kept[number] = match["indent"] + match["code"]
    return "\n".join(kept)


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _scopes(child)


def _is_star_import(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and any(a.name == "*" for a in statement.names)


def _only_for_annotation(statement: ast.stmt) -> bool:
    """``x: int`` says something about x and makes nothing."""
    return isinstance(statement, ast.AnnAssign) and statement.value is None


def _written_to(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        target: ast.expr | None = None
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(
            node.ctx, ast.Store | ast.Del
        ):
            target = node
        elif (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Attribute)
        ):
            target = node.value.func
        while isinstance(target, ast.Attribute | ast.Subscript | ast.Call):
            target = target.func if isinstance(target, ast.Call) else target.value
        if isinstance(target, ast.Name):
            yield target.id


def dependents(cells: Sequence[str | None], exercises: Collection[str]) -> list[bool]:
    """Which cells fail, or may, as long as an exercise is not answered.

    Args:
        cells: sources in order; None where a cell is an exercise's own, a check, or prose.
        exercises: the names that the exercises make.

    Returns:
        For each cell whether it needs an exercise, itself or by way of names that other cells make.
    """
    poisoned = set(exercises)
    result = []
    for source in cells:
        found = Names() if source is None else names(source)
        depends = bool(found.needs & poisoned)
        if depends:
            poisoned |= found.makes | found.changes
        else:
            poisoned -= found.makes
        result.append(depends)
    return result


def dependencies(cells: Sequence[str]) -> list[frozenset[int]]:
    """For each cell, the other cells that it needs at once: those that make or complete its names.

    A name that several cells make comes from the nearest above; where none above makes it, from
    the nearest below (a function finds its globals when it is called). A cell that is not Python
    needs nothing and makes nothing.
    """
    found = [_names_or_nothing(source) for source in cells]
    result = []
    for here, item in enumerate(found):
        wanted: set[int] = set()
        for name in item.needs:
            above = [i for i in range(here) if name in found[i].makes]
            below = [i for i in range(here + 1, len(cells)) if name in found[i].makes]
            if above or below:
                maker = above[-1] if above else below[0]
                wanted.add(maker)
                wanted |= {i for i in range(maker + 1, here) if name in found[i].changes}
            else:
                wanted |= {i for i in range(here) if found[i].makes_any}
        result.append(frozenset(wanted - {here}))
    return result


def cells_needed(cells: Sequence[str], index: int) -> list[int]:
    """All cells that must run before the cell at ``index`` can be used, in order, without it."""
    direct = dependencies(cells)
    wanted: set[int] = set()
    waiting = [index]
    while waiting:
        for item in direct[waiting.pop()]:
            if item not in wanted:
                wanted.add(item)
                waiting.append(item)
    return sorted(wanted - {index})


def _names_or_nothing(source: str) -> Names:
    try:
        return names(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Names()
