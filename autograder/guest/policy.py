"""Calls that an exercise forbids: attention may not be answered by the library's own attention.

A ``TorchFunctionMode`` sees every call into torch by the function that is called, whatever name
the learner reached it by: an alias, ``getattr``, ``torch.ops``, or a module that wraps it.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodWrapperType
from typing import Any

from torch.overrides import TorchFunctionMode


class ForbiddenCall(Exception):
    """The learner's code called something that its exercise forbids."""


_allowed: dict[frozenset[str], dict[int, Any]] = {}
"""By the names that are forbidden, functions that are not: they stay, so no other gets their id."""


class Forbidding(TorchFunctionMode):
    """While active, raise :class:`ForbiddenCall` on any call to one of ``names``.

    Args:
        names: bare function names as torch knows them, such as ``scaled_dot_product_attention``.

    Attributes:
        seen: the forbidden names called so far. They count even where the learner's code swallowed
            the exception.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = frozenset(names)
        self.seen: list[str] = []
        self._allowed = _allowed.setdefault(self.names, {})

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # Each call into torch comes by here. A function is looked up by what it is, and not by how
        # it compares: it may be the learner's object. What reads an attribute is made anew each
        # time, is called `__get__`, and would fill the table.
        if id(func) not in self._allowed and type(func) is not MethodWrapperType:
            name = _bare_name(func)
            if name in self.names:
                self.seen.append(name)
                raise ForbiddenCall(name)
            self._allowed[id(func)] = func
        return func(*args, **kwargs) if kwargs else func(*args)


def _bare_name(func: Any) -> str:
    # An OpOverload is called "aten.add.Tensor" and its packet "aten.add"; a method descriptor,
    # a builtin and a Python function all carry their bare name.
    packet = getattr(func, "overloadpacket", func)
    name = getattr(packet, "__name__", "") or str(packet)
    return name.rsplit(".", 1)[-1]
