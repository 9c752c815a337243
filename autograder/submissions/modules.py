"""Which modules the names of a notebook stand for: as far as imports and plain assignments say."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

# Names that need no import to be known: the set-up cells make them.
_USUAL = {
    "F": ("torch", "nn", "functional"),
    "Tensor": ("torch", "Tensor"),
    "math": ("math",),
    "nn": ("torch", "nn"),
    "np": ("numpy",),
    "numpy": ("numpy",),
    "random": ("random",),
    "tl": ("triton", "language"),
    "torch": ("torch",),
    "triton": ("triton",),
}
# Of names that stand for names: in how many steps one is followed, and how long it may get.
_STEPS = 8
_LONGEST = 20

Dotted = tuple[str, ...]


class Modules:
    """What a notebook calls the modules that it uses.

    Attributes:
        names: the dotted name behind a name.
        uses: what of a name is used: attributes, or "" where it stands alone.
        roots: the modules that the dotted names begin with.
    """

    def __init__(self, trees: Iterable[ast.AST] = ()) -> None:
        self.names: dict[str, Dotted] = dict(_USUAL)
        self.uses: dict[str, set[str]] = {}
        self.roots: set[str] = set()
        self.read(trees)

    def read(self, trees: Iterable[ast.AST]) -> None:
        """Take in some statements: all of a notebook, as a name may be made below its use."""
        same: dict[str, list[list[str]]] = {}  # names and what they are set to, if that is a name
        bound: dict[str, int] = {}
        alone: dict[str, int] = {}
        for tree in trees:
            for node in ast.walk(tree):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    self._import(node)
                elif isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    value = _chain(node.value) if node.value is not None else []
                    for target in targets:
                        if value and isinstance(target, ast.Name):
                            same.setdefault(target.id, []).append(value)
                elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    self.uses.setdefault(node.value.id, set()).add(node.attr)
                    alone[node.value.id] = alone.get(node.value.id, 0) - 1
                elif isinstance(node, ast.arg):
                    bound[node.arg] = bound.get(node.arg, 0) + 1
                elif isinstance(node, ast.Name):
                    counts = alone if isinstance(node.ctx, ast.Load) else bound
                    counts[node.id] = counts.get(node.id, 0) + 1
        for name, count in alone.items():
            if count > 0:
                self.uses.setdefault(name, set()).add("")
        # what is now a module and now a number is no module
        follow = {n: values[-1] for n, values in same.items() if len(values) == bound.get(n)}
        for _step in range(_STEPS):
            for name, value in follow.items():
                if value[0] in self.names and name not in _USUAL:
                    self.names[name] = (*self.names[value[0]], *value[1:])[:_LONGEST]
        self.roots = {name[0] for name in self.names.values()}

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".")[:_LONGEST]
            for item in node.names:
                self.names[item.asname or item.name] = (*module, item.name)
            return
        for item in node.names:
            parts = tuple(item.name.split(".")[:_LONGEST])
            self.names[item.asname or parts[0]] = parts if item.asname else parts[:1]

    def behind(self, parts: Sequence[str]) -> Dotted:
        """A dotted name with the module's own name in front."""
        return (*self.names.get(parts[0], (parts[0],)), *parts[1:])

    def dotted(self, node: ast.AST) -> Dotted:
        """The dotted name that an expression is, or ()."""
        parts = _chain(node)
        return self.behind(parts) if parts else ()


def _chain(node: ast.AST) -> list[str]:
    """The parts of ``a.b.c``, or none. A loop: somebody may write a thousand."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []
