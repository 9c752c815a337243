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
from collections.abc import Iterable, Iterator, Sequence

from autograder.submissions.modules import Modules
from autograder.submissions.statements import Statement

_MODULES = frozenset(
    [
        "_io",
        "_thread",
        "asyncio",
        "atexit",
        "autograder",
        "builtins",
        "cffi",
        "code",
        "codeop",
        "concurrent",
        "ctypes",
        "dis",
        "faulthandler",
        "fcntl",
        "gc",
        "importlib",
        "inspect",
        "joblib",
        "marshal",
        "mmap",
        "multiprocessing",
        "pickle",
        "pkgutil",
        "posix",
        "psutil",
        "ptrace",
        "pty",
        "resource",
        "runpy",
        "select",
        "selectors",
        "signal",
        "socket",
        "subprocess",
        "threading",
        "traceback",
        "tracemalloc",
    ]
)
"""Threads are among them: what is counted is counted in one."""
_HARMLESS = {
    "gc": frozenset({"collect"}),
    "inspect": frozenset({"Parameter", "Signature", "signature"}),
    "traceback": frozenset({"format_exc", "print_exc"}),
}
"""What of such a module is used in good faith."""
_SYSTEM = frozenset({"os", "sys", "_os", "_sys", "posix"})
_WORDS = frozenset({"code", "resource", "select", "signal"})
"""Modules whose names other modules have for something else: ``torch.signal``."""
_FIELDS = frozenset({"concurrent", "dis", "gc", "inspect", "os", "pickle", "socket", "traceback"})
"""Modules whose names an object may have for something else: ``self.os``."""
# Where one module has another by accident: torch.os, random._os
_MODULES_OF_MODULES = (_MODULES | _SYSTEM) - _WORDS
_OF_TORCH = frozenset(
    [
        "cpp_extension",
        "distributed",
        "fork",
        "futures",
        "hub",
        "library",
        "parallel",
    ]
)
"""Parts of torch that change its operators, run other languages, or work in threads."""
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
        "FileIO",
        "from_address",
        "get_objects",
        "get_referents",
        "get_referrers",
        "gi_frame",
        "handle_torch_function",
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
        "dup",
        "dup2",
        "execv",
        "execve",
        "execvp",
        "fdopen",
        "fork",
        "forkpty",
        "kill",
        "killpg",
        "listdir",
        "modules",
        "open",
        "pipe",
        "popen",
        "posix_spawn",
        "read",
        "scandir",
        "spawnv",
        "system",
        "walk",
        "write",
    ]
)
"""Of ``os`` and ``sys`` alone: the same names are harmless elsewhere."""
_VALUES = frozenset({"Tensor", "bool", "bytes", "float", "int", "str"})
"""Types whose subclasses could pass for a value and be none."""
_NOT_THEIRS = frozenset({"math", "numpy", "random", "torch", "triton"})
"""What a submission uses, and has no reason to change."""
_SETTINGS = frozenset({"backends", "config"})
"""Of such a module, what is there to be set."""
_BY_NAME = frozenset({"getattr", "setattr", "delattr", "__setattr__", "__delattr__", "vars"})
"""What finds or sets an attribute by its name."""
_OFFERED = frozenset({"alt", "check", "hint", "status"})
"""What this course's package is for in a notebook."""
_PLACES = re.compile(r"/(?:proc|dev(?!/null$)|sys|etc|home|root)\b")
# A name in a text, for the functions that look names up; a sentence is none.
_NAME = re.compile(r"\w+(?:[.:]\w+)*")
_SHOWN = 40


def reaches(statement: Statement) -> list[tuple[int, str]]:
    """What a statement names that no exercise needs.

    Returns:
        Line in the statement's cell, and the name, in order.
    """
    return sorted(set(_Look(statement.modules or Modules(statement.nodes)).at(statement.nodes)))


class _Look:
    """A look at syntax trees, with what the notebook calls its modules in mind."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._seen: set[int] = set()  # the parts of dotted names that were looked at as one

    def at(self, trees: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
        """What is named in them: lines and names."""
        for tree in trees:
            for node in ast.walk(tree):
                line = getattr(node, "lineno", 0)
                yield from ((line, _short(name)) for name in self._named(node))

    def _named(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if not self._is_harmless(alias):
                    yield from self._imported(alias.name)
        elif isinstance(node, ast.ImportFrom):
            yield from self._imported_from(node)
        elif isinstance(node, ast.Name):
            if node.id in _FUNCTIONS or node.id in _NAMES:
                yield node.id
        elif isinstance(node, ast.Attribute):
            if id(node) not in self._seen:
                yield from self._dotted(node)
        elif isinstance(node, ast.Call):
            yield from self._call(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if _is_telling(node.value):
                yield node.value.split("\n")[0]
        elif isinstance(node, ast.ClassDef):
            bases = [_last(base) for base in node.bases]
            if not any(base.endswith(("Enum", "Flag")) for base in bases):
                yield from (f"class {node.name}({base})" for base in bases if base in _VALUES)
        elif isinstance(node, ast.FunctionDef) and node.name in _NAMES:
            yield node.name

    def _is_harmless(self, alias: ast.alias) -> bool:
        """Whether all that is used of a module is used in good faith."""
        used = self._modules.uses.get(alias.asname or alias.name, set())
        return bool(used) and used <= _HARMLESS.get(alias.name, frozenset())

    def _imported_from(self, node: ast.ImportFrom) -> Iterator[str]:
        module = node.module or ""
        names = {alias.name for alias in node.names}
        if names <= (_OFFERED if module == "autograder" else _HARMLESS.get(module, frozenset())):
            return
        yield from self._imported(module)
        owner = module.split(".")
        for name in sorted(names):
            if name in _NAMES or self._is_telling_of(owner, name):
                yield name

    def _imported(self, module: str) -> Iterator[str]:
        parts = module.split(".")
        if parts[0] in _MODULES:
            yield parts[0]
            return
        for place, part in enumerate(parts):
            owner = (parts[0], parts[place - 1])
            if part in _NAMES or (place and self._is_telling_of(owner, part)):
                yield part
        if module == "unittest.mock":
            yield module

    def _is_telling_of(self, owner: Sequence[str], name: str) -> bool:
        """Whether a name is telling for the module that it is looked up in, and not of itself."""
        if owner[-1] in _SYSTEM and name in _OF_SYSTEM:
            return True
        if owner[-1] in ("io", "codecs") and name == "open":
            return True
        if owner[0] == "torch" and name in _OF_TORCH:
            return True
        of_module = owner[0] in self._modules.roots
        return name in _MODULES_OF_MODULES and (of_module or name not in _FIELDS)

    def _dotted(self, node: ast.Attribute) -> Iterator[str]:
        """A dotted name, each part in front of those before it."""
        attributes: list[str] = []
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            self._seen.add(id(inner))
            attributes.append(inner.attr)
            inner = inner.value
        behind = self._modules.dotted(inner) or ("",)
        parts = (*behind, *reversed(attributes))
        told = False
        for place in range(len(behind), len(parts)):
            # of a long name, the module in front and the last two parts decide
            if parts[place] in _NAMES or self._is_telling_of(
                (parts[0], parts[place - 1]), parts[place]
            ):
                told = True
                yield parts[place]
        if parts[0] in _NOT_THEIRS and not told:
            if "__dict__" in attributes:
                yield ".".join(parts)
            elif not isinstance(node.ctx, ast.Load) and _SETTINGS.isdisjoint(parts[1:-1]):
                yield f"{_short('.'.join(parts), _SHOWN - 4)} = …"

    def _call(self, node: ast.Call) -> Iterator[str]:
        """What functions do with names that they are given as text."""
        called = _last(node.func)
        if called not in _BY_NAME or not node.args:
            return
        owner = self._modules.dotted(node.args[0])
        is_theirs = bool(owner) and owner[0] in _NOT_THEIRS
        if called == "getattr":
            texts = [item.value for item in node.args[1:2] if isinstance(item, ast.Constant)]
            names = [text for text in texts if isinstance(text, str)]
            yield from (name for name in names if owner and self._is_telling_of(owner, name))
        elif called == "vars":
            yield from [f"vars({_short('.'.join(owner), _SHOWN // 2)})"] if is_theirs else []
        else:
            if not is_theirs and isinstance(node.func, ast.Attribute):  # torch.__setattr__
                owner = self._modules.dotted(node.func.value)
                is_theirs = bool(owner) and owner[0] in _NOT_THEIRS
            if is_theirs and _SETTINGS.isdisjoint(owner[1:]):
                yield f"{called}({_short('.'.join(owner), _SHOWN // 2)}, …)"


def _is_telling(text: str) -> bool:
    """Whether a text is a place in the system, or a name with a part that is telling anywhere."""
    if _PLACES.match(text):
        return True
    if not _NAME.fullmatch(text):
        return False
    parts = re.split("[.:]", text)
    return any(part in _NAMES for part in parts) or (parts[0] == "autograder" and len(parts) > 1)


def _short(text: str, room: int = _SHOWN) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _last(node: ast.expr) -> str:
    """The last name of a dotted one."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
