"""What a check draws, and what it works out from that, kept for the next answer.

A check is asked of many answers with one seed: of every wrong answer of the bank, and of every
submission. Its inputs, weights and expected values are the same each time, so they are made once.
No verdict depends on it: what is handed out is, to the last bit, what would be made anew.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass, is_dataclass
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

_PLAIN = (bool, int, float, str, torch.dtype)
# Tensors up to this many numbers are known by what they hold, where it is not known how they were
# made; values that depend on such are kept up to this many.
_SMALL = 4096
_MOST = 256
_READABLE = (torch.float64, torch.float32, torch.float16, torch.int64, torch.bool)


@dataclass
class _Known:
    """A tensor as it was made; ``token`` stands for what it holds."""

    tensor: Tensor
    version: int
    token: Hashable

    @property
    def is_untouched(self) -> bool:
        """Whether nobody wrote into it, or made a leaf of it, since."""
        return self.tensor._version == self.version and not self.tensor.requires_grad


@dataclass
class _Draw:
    """One draw of a check: how it is made, and what came of it."""

    what: Hashable
    make: Callable[[torch.Generator], Any]
    value: Any
    copy: Any


class _Foreign(Exception):
    """An argument is no plain data, too large to be read, or part of a graph."""


class Memory:
    """What one check drew with one seed, and what it worked out from that."""

    def __init__(self) -> None:
        self.draws: list[_Draw] = []
        self._values: dict[Hashable, tuple[Any, list[_Known]]] = {}
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[int, _Known] = {}
        self._read = 0  # values that depend on tensors known by what they hold

    def add(self, what: Hashable, make: Callable[[torch.Generator], Any], value: Any) -> None:
        """Keep the next draw."""
        copy = value
        if isinstance(value, Tensor):
            copy = value.clone()
            self._know(value, ("draw", len(self.draws)))
        self.draws.append(_Draw(what, make, value, copy))

    def drawn(self, number: int) -> Any:
        """A draw once more. A tensor that was written into since is what was drawn again."""
        draw = self.draws[number]
        if isinstance(draw.value, Tensor) and not self._known[id(draw.value)].is_untouched:
            del self._known[id(draw.value)]
            draw.value = draw.copy.clone()
            self._know(draw.value, ("draw", number))
        return draw.value

    def up_to(self, number: int) -> Memory:
        """A memory of the first draws alone, for an answer that takes another way from there."""
        other = Memory()
        for draw in self.draws[:number]:
            other.add(draw.what, draw.make, draw.copy)
        return other

    def worked_out(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The value of a function that is remembered, see :func:`remembered`."""
        reads: list[Tensor] = []
        try:
            key = (function, self._key(args, reads), self._key(kwargs, reads))
        except _Foreign:
            return function(*args, **kwargs)
        if key in self._values:
            value, made = self._values[key]
            if all(known.is_untouched for known in made):
                return value.copy() if type(value) in (list, dict) else value
            for known in made:
                del self._known[id(known.tensor)]
            del self._values[key]
        value = function(*args, **kwargs)
        tensors = _tensors(value)
        if tensors is None or any(tensor.requires_grad for tensor in tensors):
            return value
        if reads:
            if self._read == _MOST:
                return value
            self._read += 1
        number = self._numbers.setdefault(key, len(self._numbers))
        made = [
            self._know(tensor, ("value", number, place))
            for place, tensor in enumerate(tensors)
            if id(tensor) not in self._known
        ]
        self._values[key] = (value, made)
        return value.copy() if type(value) in (list, dict) else value

    def _know(self, tensor: Tensor, token: Hashable) -> _Known:
        known = _Known(tensor, tensor._version, token)
        self._known[id(tensor)] = known
        return known

    def _key(self, item: Any, reads: list[Tensor]) -> Hashable:
        """What an argument is known by; ``reads`` takes the tensors that had to be read for it."""
        if isinstance(item, Tensor):
            known = self._known.get(id(item))
            if known is not None and known.is_untouched:
                return known.token
            if item.requires_grad or item.numel() > _SMALL:
                raise _Foreign
            if item.dtype not in _READABLE or item.device.type != "cpu":
                raise _Foreign
            reads.append(item)
            return (item.dtype, tuple(item.shape), item.numpy().tobytes())
        if item is None or type(item) in _PLAIN:
            return (type(item), item)  # 1, 1.0 and True are equal
        if type(item) in (list, tuple):
            return (type(item), *[self._key(part, reads) for part in item])
        if type(item) is dict:
            return (dict, *[(name, self._key(part, reads)) for name, part in item.items()])
        if type(item) is FunctionType and (
            item.__closure__ is None or hasattr(item, "__wrapped__")
        ):
            return item
        raise _Foreign


def _tensors(value: Any) -> list[Tensor] | None:
    """The tensors in a value, or None where there is something else in it."""
    if isinstance(value, Tensor):
        return [value]
    if value is None or type(value) in _PLAIN:
        return []
    if isinstance(value, list | tuple):
        parts = list(value)
    elif isinstance(value, dict):
        parts = list(value.values())
    elif is_dataclass(value):
        parts = list(vars(value).values())
    else:
        return None
    found: list[Tensor] = []
    for part in parts:
        tensors = _tensors(part)
        if tensors is None:
            return None
        found += tensors
    return found


memory_now: ContextVar[Memory | None] = ContextVar("memory_now", default=None)
"""The memory of the check that is running."""


def remembered(function: Callable[P, R]) -> Callable[P, R]:
    """Work a function's value out once for all answers that a check is asked of.

    The function depends on its arguments alone and writes into none of them. Who writes into its
    value changes it for nobody else.
    """

    @functools.wraps(function)
    def worked_out(*args: P.args, **kwargs: P.kwargs) -> R:
        memory = memory_now.get()
        if memory is None:
            return function(*args, **kwargs)
        value: R = memory.worked_out(function, args, kwargs)
        return value

    return worked_out
