"""Runs the cells of a notebook in one namespace, as a kernel would, without a kernel.

Lines for IPython alone (magics and shell commands) are left out; an error ends its cell, is noted,
and the next cell runs. What IPython puts into a namespace (``display``, ``get_ipython``) is there
and does nothing.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import re
import sys
import types
from typing import Any

# Cell magics that run their body as Python; the body of every other one is no Python.
_RUNS_BODY = frozenset({"time", "timeit", "capture", "prun"})
_LINE_FOR_IPYTHON = re.compile(
    r"""^(?P<indent>[ \t]*)
        (?: [%!?] .*                              # %magic, !command, ?help
          | [\w.]+ \?{1,2} \s*                    # name?
          | [\w,. \t]+ = [ \t]* [%!] .*           # names = %magic, names = !command
        )$""",
    re.VERBOSE,
)


def python_of(source: str) -> str:
    """The Python in a cell: the same lines, with ``pass`` where IPython alone would understand.

    A line is replaced only where Python cannot read it, so that a line that begins with ``%``
    inside a string or a long expression stays.
    """
    body = source.lstrip("\ufeff")
    if body.lstrip().startswith("%%"):
        first, _, rest = body.lstrip().partition("\n")
        name = first[2:].split(maxsplit=1)[0] if first[2:].split() else ""
        if name not in _RUNS_BODY:
            return ""
        body = "\n" + rest  # line numbers stay
    lines = body.split("\n")
    for _ in range(len(lines)):
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            number = (error.lineno or 0) - 1
            match = _LINE_FOR_IPYTHON.match(lines[number]) if 0 <= number < len(lines) else None
            if match is None:
                break
            lines[number] = match["indent"] + "pass"
        except (ValueError, RecursionError, MemoryError):  # null bytes, nesting without end
            break
        else:
            break
    return "\n".join(lines)


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
