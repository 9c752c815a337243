"""Names code that reaches behind what an exercise is about: into the interpreter, into memory, into
this course's own package.

No exercise needs any of it, and hardly anyone writes it by accident. It costs no points, since what
is worth points is decided in another process; but what is counted inside the learner's own process
(:mod:`autograder.guest.meter`, :mod:`autograder.guest.dispatcher`) could be forged from there, so
an instructor should see it. Whoever hides the names from this has written something that no reader
takes for an answer.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from autograder.submissions.statements import Statement

_MODULES = frozenset(
    [
        "autograder",
        "builtins",
        "cffi",
        "ctypes",
        "dis",
        "faulthandler",
        "gc",
        "importlib",
        "inspect",
        "marshal",
        "mmap",
        "multiprocessing",
        "pickle",
        "psutil",
        "ptrace",
        "resource",
        "signal",
        "socket",
        "subprocess",
        "traceback",
        "tracemalloc",
        "atexit",
    ]
)
# Where one module has another by accident: torch.os, random._os
_MODULES_OF_MODULES = _MODULES | {"os", "sys", "_os", "_sys"}
_FUNCTIONS = frozenset(["__import__", "compile", "eval", "exec", "open"])
_NAMES = frozenset(
    [
        "__array_interface__",
        "__base__",
        "__bases__",
        "__builtins__",
        "__closure__",
        "__code__",
        "__defaults__",
        "__del__",
        "__func__",
        "__globals__",
        "__import__",
        "__kwdefaults__",
        "__loader__",
        "__mro__",
        "__self__",
        "__spec__",
        "__subclasses__",
        "__torch_dispatch__",
        "__torch_function__",
        "__wrapped__",
        "_C",
        "_current_frames",
        "_disable_current_modes",
        "_exit",
        "_getframe",
        "_python_dispatch",
        "addaudithook",
        "cell_contents",
        "co_code",
        "cr_frame",
        "data_ptr",
        "DisableTorchFunction",
        "DisableTorchFunctionSubclass",
        "f_back",
        "f_builtins",
        "f_globals",
        "f_locals",
        "fork",
        "from_address",
        "get_objects",
        "get_referents",
        "get_referrers",
        "gi_frame",
        "memmove",
        "setprofile",
        "settrace",
        "string_at",
        "tb_frame",
        "tb_next",
        "TorchDispatchMode",
        "TorchFunctionMode",
        "untyped_storage",
        "urlopen",
    ]
)
_OF_SYSTEM = frozenset(
    [
        "abort",
        "execv",
        "execve",
        "execvp",
        "fdopen",
        "kill",
        "killpg",
        "listdir",
        "modules",
        "popen",
        "read",
        "scandir",
        "spawnv",
        "system",
        "walk",
        "write",
    ]
)
"""Of ``os`` and ``sys`` alone: the same names are harmless elsewhere."""
_SYSTEM = frozenset({"os", "sys", "_os", "_sys"})
_VALUES = frozenset({"Tensor", "bool", "bytes", "float", "int", "str"})
"""Types whose subclasses could pass for a value and be none."""
_NOT_THEIRS = frozenset(
    ["F", "Tensor", "math", "nn", "np", "numpy", "random", "tl", "torch", "triton"]
)
"""What a submission uses, and has no reason to change."""
_OFFERED = frozenset({"alt", "check", "hint", "status"})
"""What this course's package is for in a notebook."""
_PLACES = re.compile(r"/(?:proc|dev|sys|etc|home|root)\b")


def reaches(statement: Statement) -> list[tuple[int, str]]:
    """What a statement names that no exercise needs.

    Returns:
        Line in the statement's cell, and the name, in order.
    """
    return sorted(
        {item for tree in statement.nodes for node in ast.walk(tree) for item in _named(node)}
    )


def _named(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Import):
        yield from _modules(node, (alias.name for alias in node.names))
    elif isinstance(node, ast.ImportFrom):
        if node.module == "autograder" and {alias.name for alias in node.names} <= _OFFERED:
            return
        yield from _modules(node, [node.module or ""])
        names = [alias.name for alias in node.names]
        yield from ((node.lineno, name) for name in names if _is_telling(name))
        if node.module in _SYSTEM:
            yield from ((node.lineno, name) for name in names if name in _OF_SYSTEM)
    elif isinstance(node, ast.Name):
        if node.id in _FUNCTIONS or node.id in _NAMES:
            yield node.lineno, node.id
    elif isinstance(node, ast.Attribute):
        inside = _last(node.value)
        if _is_telling(node.attr) or (inside in _SYSTEM and node.attr in _OF_SYSTEM):
            yield node.lineno, node.attr
        elif not isinstance(node.ctx, ast.Load) and _first(node) in _NOT_THEIRS:
            yield node.lineno, f"{ast.unparse(node)} = …"
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if _is_telling(node.value) or _PLACES.match(node.value):
            yield node.lineno, node.value.split("\n")[0][:40]
    elif isinstance(node, ast.ClassDef):
        for base in node.bases:
            if _last(base) in _VALUES:
                yield node.lineno, f"class {node.name}({_last(base)})"
    elif isinstance(node, ast.FunctionDef) and node.name in _NAMES:
        yield node.lineno, node.name


def _modules(node: ast.stmt, names: Iterable[str]) -> Iterator[tuple[int, str]]:
    for name in names:
        parts = name.split(".")
        if parts[0] in _MODULES:
            yield node.lineno, parts[0]
        else:
            yield from ((node.lineno, part) for part in parts if part in _NAMES)


def _is_telling(name: str) -> bool:
    return name in _NAMES or name in _MODULES_OF_MODULES


def _first(node: ast.expr) -> str:
    """The first name of a dotted one."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _last(node: ast.expr) -> str:
    """The last name of a dotted one."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
