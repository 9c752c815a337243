"""Cuts definitions out of source files, by syntax tree, and makes stubs of them.

``inspect.getsource`` fails on decorated objects such as ``triton.jit`` functions, and a bare
``end_lineno`` loses a closing marker, which is a comment: so neither is used.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

from autograder.guest.syntax import syntax_tree

BEGIN = "### BEGIN SOLUTION"
END = "### END SOLUTION"
STUB = "raise NotImplementedError"
GIVEN = "-given"
"""Ends the id of a cell with a definition that is handed out whole."""


class SourceError(Exception):
    """A malformed source. Its text is one line: the place, what is wrong, how to mend it."""


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@lru_cache(maxsize=64)
def _parsed(path: Path, _modified: float) -> tuple[tuple[str, ...], ast.Module]:
    text = path.read_text(encoding="utf-8")
    try:
        return tuple(text.splitlines()), syntax_tree(text)
    except SyntaxError as error:
        raise SourceError(f"{path.name}:{error.lineno}: {error.msg}") from error


def parsed(path: Path) -> tuple[tuple[str, ...], ast.Module]:
    """Lines and syntax tree of a file, remembered until the file changes."""
    return _parsed(path, path.stat().st_mtime)


def definitions(path: Path) -> dict[str, Definition]:
    """Top-level functions and classes of a module, by name, in order."""
    return {
        node.name: node
        for node in parsed(path)[1].body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }


def definition_source(path: Path, name: str) -> str:
    """Source of a top-level definition, from its first decorator to its closing marker.

    Raises:
        SourceError: no such name, or a solution region that is not closed or not opened.
    """
    found = definitions(path).get(name)
    if found is None:
        raise SourceError(
            f"{path.name}: no function or class {name!r}; define it, or mend the name"
        )
    lines, _tree = parsed(path)
    first = min([found.lineno, *(item.lineno for item in found.decorator_list)])
    last = found.end_lineno or found.lineno
    # The closing marker may stand below the last statement of the definition.
    ahead = last
    while ahead < len(lines) and _may_follow(lines[ahead]):
        ahead += 1
        if lines[ahead - 1].strip() == END:
            last = ahead
    body = list(lines[first - 1 : last])
    problem = _region_problem(body)
    if problem:
        raise SourceError(f"{path.name}:{first}: {name}: {problem}")
    return "\n".join(body).rstrip() + "\n"


def _may_follow(line: str) -> bool:
    return not line.strip() or (line.startswith((" ", "\t")) and line.lstrip().startswith("#"))


def _region_problem(lines: list[str]) -> str | None:
    is_open = False
    for line in lines:
        if line.strip() == BEGIN:
            if is_open:
                return f"a solution region opens inside another; add {END!r} above it"
            is_open = True
        elif line.strip() == END:
            if not is_open:
                return f"a solution region closes that was never opened; add {BEGIN!r}"
            is_open = False
        elif "BEGIN SOLUTION" in line or "END SOLUTION" in line:
            return f"a marker must stand alone on its line as {BEGIN!r} or {END!r}"
    return f"the solution region is not closed; add {END!r}" if is_open else None


def has_solution(source: str) -> bool:
    """Whether the source has at least one solution region."""
    return any(line.strip() == BEGIN for line in source.splitlines())


def make_stub(source: str) -> str:
    """Replace every solution region by ``raise NotImplementedError`` at its indentation."""
    result: list[str] = []
    inside = False
    for line in source.splitlines():
        if line.strip() == BEGIN:
            inside = True
            result.append(line[: len(line) - len(line.lstrip())] + STUB)
        elif line.strip() == END:
            inside = False
        elif not inside:
            result.append(line)
    return "\n".join(result) + "\n"


def strip_markers(source: str) -> str:
    """The source without its region markers: how a reader sees the answer."""
    kept = [line for line in source.splitlines() if line.strip() not in (BEGIN, END)]
    return "\n".join(kept) + "\n"


def renamed(source: str, old: str, new: str) -> str:
    """Give a definition another name, wherever its own source mentions it."""
    return re.sub(rf"\b{re.escape(old)}\b", new, source)


def without_decorators(source: str, names: tuple[str, ...]) -> str:
    """Drop the decorators called ``names`` from a definition's source."""
    tree = syntax_tree(source)
    node = tree.body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    dropped: set[int] = set()
    for item in node.decorator_list:
        called = item.func if isinstance(item, ast.Call) else item
        if isinstance(called, ast.Name) and called.id in names:
            dropped |= set(range(item.lineno, (item.end_lineno or item.lineno) + 1))
    lines = source.splitlines()
    return "\n".join(line for i, line in enumerate(lines, 1) if i not in dropped) + "\n"
