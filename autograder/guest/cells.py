"""Runs the cells of a notebook in one namespace, as a kernel would, without a kernel.

Lines for IPython alone (magics and shell commands) are left out; an error ends its cell, is noted,
and the next cell runs. What IPython puts into a namespace (``display``, ``get_ipython``) is there
and does nothing.
"""

from __future__ import annotations

import builtins
import linecache
import re
import sys
import types
from typing import Any

from autograder.guest.syntax import syntax_tree

# Cell magics that run their body as Python; the body of every other one is no Python.
_RUNS_BODY = frozenset({"time", "timeit", "capture", "prun"})
# Possessive, or a long line that is none would be tried from every one of its blanks.
_LINE_FOR_IPYTHON = re.compile(
    r"""^(?P<indent>[ \t]*+)
        (?: [%!?] .*                              # %magic, !command, ?help
          | [\w.]++ \?{1,2} \s*                   # name?
          | [\w,. \t]++ = [ \t]*+ [%!] .*          # names = %magic, names = !command
        )$""",
    re.VERBOSE,
)
# What can keep a statement open at the end of a line, and what only looks like it.
_PIECE = re.compile(
    r"""(?P<comment>[#].*)
      | (?P<quote>\"{3}|\'{3}|["'])
      | (?P<open>[(\[{])
      | (?P<close>[)\]}])
      | (?P<on>\\$)                              # the next line belongs to this one
    """,
    re.VERBOSE,
)
# In a string: what ends it, and what would but for a backslash.
_IN_STRING = {quote: re.compile(rf"\\.|(?P<end>{quote})") for quote in ("'", '"', "'''", '"""')}
# Each takes the time of reading the cell.
_SECOND_LOOKS = 3


def python_of(source: str) -> str:
    """The Python in a cell: the same lines, with ``pass`` where IPython alone would understand.

    A line is replaced only where Python cannot read it, so that a line that begins with ``%``
    inside a string or a long expression stays. The cell is read a fixed number of times, however
    many such lines it has.
    """
    body = source.lstrip("\ufeff")
    if body.lstrip().startswith("%%"):
        first, _, rest = body.lstrip().partition("\n")
        name = first[2:].split(maxsplit=1)[0] if first[2:].split() else ""
        if name not in _RUNS_BODY:
            return ""
        body = "\n" + rest  # line numbers stay
    lines = body.split("\n")
    for look in range(1 + _SECOND_LOOKS):
        try:
            syntax_tree("\n".join(lines))
        except SyntaxError as error:
            number = (error.lineno or 0) - 1
            match = _LINE_FOR_IPYTHON.match(lines[number]) if 0 <= number < len(lines) else None
            if match is None:
                break
            if look == 0:
                _replace_all(lines)
            else:  # what the short look at strings and brackets misread
                lines[number] = match["indent"] + "pass"
        except (ValueError, RecursionError, MemoryError):  # null bytes, nesting without end
            break
        else:
            break
    return "\n".join(lines)


def _replace_all(lines: list[str]) -> None:
    """Put ``pass`` in the place of every line for IPython at which a statement begins.

    No statement of Python begins as such a line does.
    """
    quote, depth, goes_on = "", 0, False
    for number, line in enumerate(lines):
        if not (quote or depth or goes_on):
            match = _LINE_FOR_IPYTHON.match(line)
            if match is not None:
                lines[number] = match["indent"] + "pass"
                continue
        quote, depth, goes_on = _left_open(line, quote, depth)


def _left_open(line: str, quote: str, depth: int) -> tuple[str, int, bool]:
    """What is open behind a line: a string's quote, brackets, a backslash at the end."""
    place = 0
    while True:
        if quote:
            found = _IN_STRING[quote].finditer(line, place)
            match = next((item for item in found if item["end"]), None)
            if match is None:
                on = line.endswith("\\")
                # a short string ends with its line, unless a backslash carries it on
                return (quote if len(quote) == 3 or on else ""), depth, False
            place, quote = match.end(), ""
        match = _PIECE.search(line, place)
        if match is None or match["comment"]:
            return "", depth, False
        place = match.end()
        if match["on"] is not None:
            return "", depth, True
        if match["quote"]:
            quote = match["quote"]
        else:
            depth = max(0, depth + (1 if match["open"] else -1))


class _IPython:
    """Stands where code asks for the shell: every method exists and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def fresh_main() -> dict[str, Any]:
    """A new ``__main__`` and its namespace."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    shell = _IPython()
    main.__dict__.update(
        display=lambda *args, **kwargs: None, get_ipython=lambda: shell, __builtins__=builtins
    )
    return main.__dict__


def run_cell(source: str, label: str, namespace: dict[str, Any]) -> None:
    """Run one cell; whatever its code raises comes through."""
    # in angle brackets, as the executor looks for the learner's own frames
    filename = f"<{label}>"
    text = source
    try:
        code = compile(text, filename, "exec", dont_inherit=True)
    except SyntaxError:
        text = python_of(source)
        code = compile(text, filename, "exec", dont_inherit=True)
    # tracebacks, inspect.getsource and triton.jit read sources from here
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(code, namespace)  # noqa: S102 — running the learner's code is what this process is for
