"""Cuts a cell into its statements, each with the names that it makes and needs.

A learner's notebook is read here as a set of statements, not run: of all that it holds, only what
an answer needs is run (:mod:`autograder.submissions.program`).
"""

from __future__ import annotations

import ast
import hashlib
import re
import symtable
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from autograder.compose.names import GIVEN, Names, is_bound, names, scopes, written_to
from autograder.guest.cells import python_of
from autograder.guest.syntax import syntax_tree
from autograder.i18n import _
from autograder.submissions.modules import Modules

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

_T = TypeVar("_T")

MAX_LINES = 20_000
MAX_STATEMENTS = 5_000
"""Of one cell, those inside others included. A long one that somebody wrote has two hundred."""
MAX_NODES = 60_000
"""Of the syntax tree of a cell: a table of ten thousand numbers has twenty thousand."""

MAX_PARTS = 200
"""Of the dotted name of a module. Python's parser joins them one by one, each time from the first:
ninety thousand take it a minute."""
# No possessive group: Python before 3.11.5 takes some of them wrongly
_DOTTED = re.compile(r"\w++(?:[\s\\]*+\.[\s\\]*+\w++)*")

# Of longer texts, which nobody hands in twice, nothing is remembered.
_SHORT = 10_000

# What a word processor or a chat makes of code.
_TYPOGRAPHY = str.maketrans(
    {"\u00a0": " ", "\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\ufeff": None}
)
_NOT_READABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class NotPython(Exception):
    """A cell that Python cannot read.

    Attributes:
        reason: what the parser says.
        line: where, if it says so.
    """

    def __init__(self, reason: str, line: int | None) -> None:
        super().__init__(reason)
        self.reason, self.line = reason, line


class TooMuch(NotPython):
    """A cell that is longer, or deeper, than anybody types."""


@dataclass(frozen=True, eq=False)
class Statement:
    """One statement of a cell, or several that share a line.

    Attributes:
        text: its lines.
        first: number of the first of them in the cell, from 1.
        nodes: its syntax trees.
        cell: position of the cell in its notebook.
        modules: what its notebook calls the modules that it uses, where that is known.
    """

    text: str
    first: int
    nodes: tuple[ast.stmt, ...]
    cell: int
    modules: Modules | None = None

    @cached_property
    def names(self) -> Names:
        """The global names that it makes, needs and changes."""
        return _remembered(_names, self.text)

    @cached_property
    def defines(self) -> tuple[str, ...]:
        """Names of the functions and classes that it defines."""
        return tuple(node.name for node in self.nodes if isinstance(node, _Definition))

    @cached_property
    def docstring(self) -> str:
        """First line of the docstring of what it defines, or ""."""
        found = [ast.get_docstring(n) or "" for n in self.nodes if isinstance(n, _Definition)]
        return found[0].split("\n")[0] if found else ""

    @cached_property
    def meaning(self) -> str:
        """The same for two statements that differ in layout, comments and docstrings alone."""
        return _remembered(_meaning, self.text)


def _remembered(function: _lru_cache_wrapper[_T], text: str) -> _T:
    return function(text) if len(text) <= _SHORT else function.__wrapped__(text)


# A class hands in the same statements again and again.
@lru_cache(maxsize=4_096)
def _names(text: str) -> Names:
    try:
        return names(text)
    except _NOT_READABLE:
        return _names_at_large(text)


def _names_at_large(text: str) -> Names:
    """What :func:`names` says, at least: for what is too deep to be taken apart, piece by piece."""
    top = symtable.symtable(python_of(text), "<cell>", "exec")
    needs = {item.get_name() for item in top.get_symbols() if item.is_referenced()}
    makes = {item.get_name() for item in top.get_symbols() if is_bound(item)}
    late: set[str] = set()
    makes_late: set[str] = set()
    for scope, is_at_once in scopes(top):
        for item in scope.get_symbols():
            if item.is_global() and is_bound(item):
                (makes if is_at_once else makes_late).add(item.get_name())
            elif item.is_global() and item.is_referenced():
                late.add(item.get_name())
    needs |= (late | makes_late) - makes
    changes: set[str] = set()
    calls: set[str] = set()
    for statement in syntax_tree(python_of(text)).body:
        written, _written_late, called = written_to(statement)
        changes |= written
        calls |= called
    return Names(
        frozenset(needs - GIVEN),
        frozenset(makes | makes_late),
        frozenset(changes - makes),
        later=frozenset(makes_late - makes),
        calls=frozenset(calls),
        builtins=frozenset(needs & GIVEN),
    )


@lru_cache(maxsize=4_096)
def _meaning(text: str) -> str:
    """A digest of the syntax tree. The walk is no recursion: a sum of 500 terms is 500 deep."""
    found = hashlib.sha256()
    waiting: list[Any] = [syntax_tree(text)]
    while waiting:
        item = waiting.pop()
        if isinstance(item, ast.AST):
            fields = [_undocumented(item, name) for name in item._fields]
            found.update(f"{type(item).__name__}({len(fields)} ".encode())
            waiting += fields
        elif isinstance(item, list):
            found.update(f"[{len(item)} ".encode())
            waiting += item
        else:
            # decimal digits of a long integer are refused, as they take long
            said = hex(item) if type(item) is int else repr(item)
            said = f"{type(item).__name__} {said}"
            found.update(f"{len(said)} {said}".encode("utf-8", "surrogatepass"))
    return found.hexdigest()


def _undocumented(node: ast.AST, name: str) -> Any:
    """A field of a node; a definition's body without its docstring."""
    value = getattr(node, name, None)
    if name == "body" and isinstance(node, _Definition) and len(node.body) > 1:
        first = node.body[0]
        if (
            isinstance(first, ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
        ):
            return node.body[1:]
    return value


def statements(
    source: str, cell: int = -1, modules: Modules | None = None
) -> tuple[list[Statement], str]:
    """The statements of a cell, in order, and what had to be mended to read them ("": nothing).

    Raises:
        NotPython: Python cannot read it, however it is mended.
    """
    if source.count("\n") > MAX_LINES or _has_endless_name(source):
        raise TooMuch(_("it is too long"), None)
    parsed = _remembered(_parse, source)
    if isinstance(parsed, NotPython):
        raise type(parsed)(parsed.reason, parsed.line)
    text, tree, note = parsed
    lines = text.split("\n")
    groups: list[tuple[int, int, list[ast.stmt]]] = []
    for node in tree.body:
        decorated = node.decorator_list if isinstance(node, _Definition) else []
        first = min([node.lineno, *(item.lineno for item in decorated)])
        last = node.end_lineno or node.lineno
        if groups and first <= groups[-1][1]:  # a; b
            before = groups.pop()
            groups.append((before[0], max(last, before[1]), [*before[2], node]))
        else:
            groups.append((first, last, [node]))
    return [
        Statement("\n".join(lines[first - 1 : last]), first, tuple(nodes), cell, modules)
        for first, last, nodes in groups
    ], note


def _has_endless_name(source: str) -> bool:
    return "import" in source and any(
        match[0].count(".") > MAX_PARTS for match in _DOTTED.finditer(source)
    )


@lru_cache(maxsize=2_048)
def _parse(source: str) -> tuple[str, ast.Module, str] | NotPython:
    first: Exception | None = None
    for text, note in _ways(source):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = syntax_tree(text)
                if _is_too_much(tree):
                    return TooMuch(_("it is too long"), None)
                # The compiler refuses more than the parser does, such as `return` outside.
                compile(tree, "<cell>", "exec", dont_inherit=True)
        except _NOT_READABLE as error:
            first = first or error
        else:
            return text, tree, note
    if isinstance(first, SyntaxError):
        return NotPython(str(first.msg), first.lineno)
    if isinstance(first, RecursionError | MemoryError):
        return TooMuch(_("it is nested too deeply"), None)
    return NotPython(type(first).__name__, None)


def _is_too_much(tree: ast.Module) -> bool:
    parts = 0
    for nodes, node in enumerate(ast.walk(tree), 1):
        parts += isinstance(node, ast.stmt)
        if nodes > MAX_NODES or parts > MAX_STATEMENTS:
            return True
    return False


def _ways(source: str) -> Iterator[tuple[str, str]]:
    """The source without IPython's lines; then dedented; then without a word processor's marks."""
    plain = python_of(source)
    yield plain, ""
    yield textwrap.dedent(plain), ""  # IPython dedents as well
    typed = python_of(textwrap.dedent(source.translate(_TYPOGRAPHY)))
    yield typed, _("Typographic quotes or spaces in the code were replaced by plain ones.")


def joined(parts: Sequence[Statement]) -> str:
    """Statements of one cell at the lines where they stood, the others left blank."""
    lines: list[str] = []
    for part in sorted(parts, key=lambda item: item.first):
        lines += [""] * (part.first - 1 - len(lines))
        lines += part.text.split("\n")
    return "\n".join(lines) + "\n"
