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
_RUNS_LINE = re.compile(
    r"^(?P<indent>\s*)%(?:time|timeit|prun)\b(?:\s+-[a-z]+(?:\s*\d+)?)*\s+(?P<code>\S.*)$"
)


@dataclass(frozen=True)
class Names:
    """What a cell does with global names.

    Attributes:
        needs: read before the cell makes them, or read inside functions and not made by the cell.
        makes: bound at the cell's top level.
        changes: not bound, but the object behind is written to: ``name[...] = ``, ``name.x = ``,
            or a method called for its effect, as in ``name.append(...)``.
        makes_any: a star import: what it makes cannot be told.
        modules: what it makes by ``import ...``.
    """

    needs: frozenset[str] = frozenset()
    makes: frozenset[str] = frozenset()
    changes: frozenset[str] = frozenset()
    makes_any: bool = False
    modules: frozenset[str] = frozenset()


def names(source: str) -> Names:
    """Analyse a cell; lines for IPython alone count as empty.

    Raises:
        SyntaxError: the cell is not Python.
    """
    reader = _Reader()
    reader.block(ast.parse(_python(source)).body)
    # A function's globals are looked up when it is called: the cell's later lines may make them.
    needs = reader.needs | (reader.late - reader.makes)
    return Names(
        frozenset(needs - GIVEN),
        frozenset(reader.makes),
        frozenset(reader.changes - reader.makes),
        reader.makes_any,
        frozenset(reader.modules & reader.makes),
    )


class _Reader:
    """Goes through a cell in the order in which it runs, and keeps what is made so far."""

    def __init__(self) -> None:
        self.needs: set[str] = set()
        self.late: set[str] = set()  # globals of functions
        self.makes: set[str] = set()
        self.changes: set[str] = set()
        self.modules: set[str] = set()
        self.makes_any = False

    def block(self, body: Sequence[ast.stmt]) -> None:
        """Statements, one after the other."""
        for statement in body:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        """One statement; the parts of a compound one in their order."""
        if isinstance(node, ast.For | ast.AsyncFor):
            self.read(node.iter)
            self.bind(node.target)
            self.block([*node.body, *node.orelse])
        elif isinstance(node, ast.If | ast.While):
            self.read(node.test)
            self.block([*node.body, *node.orelse])
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                self.read(item.context_expr)
                if item.optional_vars is not None:
                    self.bind(item.optional_vars)
            self.block(node.body)
        elif isinstance(node, ast.Try | ast.TryStar):
            self.block(node.body)
            for handler in node.handlers:
                if handler.type is not None:
                    self.read(handler.type)
                self.makes |= {handler.name} if handler.name else set()
                self.block(handler.body)
            self.block([*node.orelse, *node.finalbody])
        elif isinstance(node, ast.Match):
            self.read(node.subject)
            for case in node.cases:
                self._pattern(case.pattern)
                if case.guard is not None:
                    self.read(case.guard)
                self.block(case.body)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                self._delete(target)
        else:
            self._simple(node)

    def read(self, expression: ast.expr) -> None:
        """An expression that is evaluated."""
        self._simple(ast.Expr(expression))

    def bind(self, target: ast.expr) -> None:
        """The target of a loop or of ``with``."""
        self._simple(ast.Assign([target], ast.Constant(None), lineno=0))

    def _delete(self, target: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.needs |= {target.id} - self.makes
            self.makes.discard(target.id)
        else:
            self._simple(ast.Delete([target]))

    def _pattern(self, pattern: ast.pattern) -> None:
        for node in ast.walk(pattern):
            if isinstance(node, ast.MatchValue):
                self.read(node.value)
            elif isinstance(node, ast.MatchClass):
                self.read(node.cls)
            elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
                self.makes.add(node.name)
            elif isinstance(node, ast.MatchMapping) and node.rest:
                self.makes.add(node.rest)

    def _simple(self, node: ast.stmt) -> None:
        """A statement without statements inside, or a definition: what Python's compiler says."""
        table = symtable.symtable(ast.unparse(node), "<cell>", "exec")
        inside = {item.target.id for item in ast.walk(node) if isinstance(item, ast.NamedExpr)}
        there = self.makes | inside
        for symbol in table.get_symbols():
            if symbol.is_referenced() and symbol.get_name() not in there:
                self.needs.add(symbol.get_name())
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            self.needs |= {node.target.id} - self.makes
        for scope in _scopes(table):
            for symbol in scope.get_symbols():
                if not symbol.is_global():
                    continue
                if symbol.is_assigned() and symbol.is_declared_global():
                    self.makes.add(symbol.get_name())
                elif symbol.is_referenced():
                    self.late.add(symbol.get_name())
        # `x: int` says something about x and makes nothing
        if not (isinstance(node, ast.AnnAssign) and node.value is None):
            self.makes |= {
                symbol.get_name()
                for symbol in table.get_symbols()
                if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
            }
        self.changes |= set(_written_to(node))
        if isinstance(node, ast.Import):
            self.modules |= {item.asname or item.name.partition(".")[0] for item in node.names}
        self.makes_any = self.makes_any or _is_star_import(node)


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
    the nearest below (a function finds its globals when it is called). A module is complete when it
    is imported: else ``torch.manual_seed(0)`` in a demonstration would make all that follows need
    it. A cell that is not Python needs nothing and makes nothing.
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
                if name not in found[maker].modules:
                    wanted |= {i for i in range(maker + 1, here) if name in found[i].changes}
            else:
                wanted |= {i for i in range(here) if found[i].makes_any}
        result.append(frozenset(wanted - {here}))
    return result


def cells_needed(cells: Sequence[str], *indices: int) -> list[int]:
    """All cells that must run before those at ``indices`` can be used, in order, without them."""
    direct = dependencies(cells)
    wanted: set[int] = set()
    waiting = list(indices)
    while waiting:
        for item in direct[waiting.pop()]:
            if item not in wanted:
                wanted.add(item)
                waiting.append(item)
    return sorted(wanted.difference(indices))


def _names_or_nothing(source: str) -> Names:
    try:
        return names(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Names()
