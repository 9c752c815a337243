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
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from autograder.guest.cells import python_of
from autograder.guest.syntax import syntax_tree

# What every notebook has without making it.
GIVEN = frozenset(dir(builtins)) | {"display", "get_ipython", "__name__", "__doc__", "__file__"}

# What a comprehension is called where Python's compiler keeps its names.
_COMPREHENSIONS = frozenset({"listcomp", "setcomp", "dictcomp", "genexpr"})
_SETTERS = frozenset({"setattr", "delattr"})

# Line magics that run the rest of their line.
_RUNS_LINE = re.compile(
    r"^(?P<indent>\s*)%(?:time|timeit|prun)\b(?:\s+-[a-z]+(?:\s*\d+)?)*\s+(?P<code>\S.*)$"
)


@dataclass(frozen=True)
class Names:
    """What a cell does with global names.

    Attributes:
        needs: read before the cell makes them, or read or bound inside functions and not made by
            the cell: a counter that a function declares ``global`` has to begin somewhere.
        makes: bound at the cell's top level, or by its functions as ``global``.
        changes: not bound, but the object behind is written to: ``name[...] = ``, ``name.x = ``,
            or a method called for its effect, as in ``name.append(...)``.
        makes_any: a star import: what it makes cannot be told.
        modules: what it makes by ``import ...``.
        later: those of ``makes`` and ``changes`` that wait for a function to be called.
        calls: the functions that it calls itself, decorators among them.
        builtins: like ``needs``, but there without anybody making them.
    """

    needs: frozenset[str] = frozenset()
    makes: frozenset[str] = frozenset()
    changes: frozenset[str] = frozenset()
    makes_any: bool = False
    modules: frozenset[str] = frozenset()
    later: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()
    builtins: frozenset[str] = frozenset()


def names(source: str) -> Names:
    """Analyse a cell; lines for IPython alone count as empty.

    Raises:
        SyntaxError: the cell is not Python.
    """
    reader = _Reader()
    reader.block(syntax_tree(_python(source)).body)
    # A function's globals are looked up when it is called: the cell's later lines may make them.
    needs = reader.needs | ((reader.late | reader.makes_late) - reader.makes)
    makes = reader.makes | reader.makes_late
    return Names(
        frozenset(needs - GIVEN),
        frozenset(makes),
        frozenset((reader.changes | reader.changes_late) - makes),
        reader.makes_any,
        frozenset(reader.modules & reader.makes),
        frozenset((makes | reader.changes_late) - reader.makes - reader.changes),
        frozenset(reader.calls),
        frozenset(needs & GIVEN),
    )


class _Reader:
    """Goes through a cell in the order in which it runs, and keeps what is made so far."""

    def __init__(self) -> None:
        self.needs: set[str] = set()
        self.makes: set[str] = set()
        self.changes: set[str] = set()
        # globals of functions: what they read, bind, and write to when they are called
        self.late: set[str] = set()
        self.makes_late: set[str] = set()
        self.changes_late: set[str] = set()
        self.calls: set[str] = set()
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
        names_late: set[str] = set()
        for scope, is_at_once in scopes(table):
            for symbol in scope.get_symbols():
                name = symbol.get_name()
                if not symbol.is_global():
                    continue
                names_late.add(name)
                if is_bound(symbol):
                    (self.makes if is_at_once else self.makes_late).add(name)
                elif symbol.is_referenced():
                    self.late.add(name)
        if isinstance(node, ast.ClassDef):
            self.late |= _read_before_bound(node)
        # `x: int` says something about x and makes nothing
        if not (isinstance(node, ast.AnnAssign) and node.value is None):
            self.makes |= {item.get_name() for item in table.get_symbols() if is_bound(item)}
        written, written_late, calls = written_to(node)
        self.changes |= written
        self.changes_late |= written_late & names_late
        self.calls |= calls
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


def scopes(table: symtable.SymbolTable) -> Iterator[tuple[symtable.SymbolTable, bool]]:
    """The scopes inside one, and whether each runs with it: the body of a class and a comprehension
    do, that of a function runs when it is called."""
    waiting = [(child, True) for child in table.get_children()]
    while waiting:
        scope, around = waiting.pop()
        is_at_once = around and (scope.get_type() == "class" or scope.get_name() in _COMPREHENSIONS)
        yield scope, is_at_once
        waiting += [(child, is_at_once) for child in scope.get_children()]


def is_bound(symbol: symtable.Symbol) -> bool:
    """Whether its scope gives it a value; ``import`` does as well as ``=``."""
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


def _read_before_bound(body: ast.ClassDef) -> set[str]:
    """Of the names that a class binds, those that its body reads first, as in ``x = x``."""
    found: set[str] = set()
    bound: set[str] = set()
    for statement in body.body:
        parts = [item for item in _at_once(statement) if isinstance(item, ast.Name)]
        stored = {item.id for item in parts if not isinstance(item.ctx, ast.Load)}
        found |= {item.id for item in parts if isinstance(item.ctx, ast.Load)} & stored - bound
        bound |= stored
    return found


def _at_once(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a statement that run with it: all but the bodies of functions."""
    waiting = [node]
    while waiting:
        item = waiting.pop()
        yield item
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            defaults = [*item.args.defaults, *item.args.kw_defaults]
            waiting += [default for default in defaults if default is not None]
            waiting += [] if isinstance(item, ast.Lambda) else item.decorator_list
        else:
            waiting += ast.iter_child_nodes(item)


def _is_star_import(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and any(a.name == "*" for a in statement.names)


def written_to(statement: ast.stmt) -> tuple[set[str], set[str], set[str]]:
    """The names whose objects a statement writes to, those inside functions, and what it calls."""
    parts = list(_at_once(statement))
    calls = {
        called.id
        for part in parts
        for item in ([part.func] if isinstance(part, ast.Call) else _decorators(part))
        for called in [item.func if isinstance(item, ast.Call) else item]
        if isinstance(called, ast.Name)
    }
    everywhere = _written(ast.walk(statement))
    at_once = _written(parts)
    return at_once, everywhere - at_once, calls


def _decorators(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.decorator_list
    return []


def _written(nodes: Iterable[ast.AST]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Attribute | ast.Subscript):
            targets += [] if isinstance(node.ctx, ast.Load) else [node]
        elif isinstance(node, ast.Expr):
            targets += _for_effect(node.value)
        for target in targets:
            root: ast.expr = target
            while isinstance(root, ast.Attribute | ast.Subscript | ast.Call):
                root = root.func if isinstance(root, ast.Call) else root.value
            if isinstance(root, ast.Name):
                found.add(root.id)
    return found


def _for_effect(value: ast.expr) -> Iterator[ast.expr]:
    """What is called in an expression of whose value nothing is made: methods, and what
    ``setattr`` sets."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            waiting.append(item.elt)
        elif isinstance(item, ast.BoolOp):
            waiting += item.values
        elif isinstance(item, ast.IfExp):
            waiting += [item.body, item.orelse]
        elif isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute):
            yield item.func
        elif isinstance(item, ast.Call) and isinstance(item.func, ast.Name):
            yield from item.args[:1] if item.func.id in _SETTERS else []


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
            poisoned -= found.makes - found.later
        result.append(depends)
    return result


def dependencies(cells: Sequence[str]) -> list[frozenset[int]]:
    """For each cell, the other cells that it needs at once: those that make or complete its names.

    A name that several cells make comes from the nearest above; where none above makes it, from
    the nearest below (a function finds its globals when it is called). A cell that makes it only
    when its function is called comes after those that do at once. A module is complete when it
    is imported: else ``torch.manual_seed(0)`` in a demonstration would make all that follows need
    it. A cell that is not Python needs nothing and makes nothing.
    """
    found = [_names_or_nothing(source) for source in cells]
    result = []
    for here, item in enumerate(found):
        wanted: set[int] = set()
        for name in item.needs:
            makers = [i for i, other in enumerate(found) if name in other.makes and i != here]
            makers = [i for i in makers if name not in found[i].later] or makers
            if makers:
                maker = max((i for i in makers if i < here), default=makers[0])
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
