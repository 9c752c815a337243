"""What a check draws, and what it works out from that, kept for the next answer.

A check is asked of many answers with one seed: of every wrong answer of the bank, and of every
submission. Its inputs, weights and expected values are the same each time, so they are made once.
Nothing that an answer replied is ever kept here.
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
    """An argument is neither drawn nor worked out from what was."""


class Memory:
    """What one check drew with one seed, and what it worked out from that."""

    def __init__(self) -> None:
        self.draws: list[_Draw] = []
        self._values: dict[Hashable, tuple[Any, list[_Known]]] = {}
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[int, _Known] = {}

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
        try:
            key = (function, self._key(args), self._key(kwargs))
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

    def _key(self, item: Any) -> Hashable:
        if isinstance(item, Tensor):
            known = self._known.get(id(item))
            if known is None or not known.is_untouched:
                raise _Foreign
            return known.token
        if item is None or type(item) in _PLAIN:
            return (type(item), item)  # 1, 1.0 and True are equal
        if type(item) in (list, tuple):
            return (type(item), *[self._key(part) for part in item])
        if type(item) is dict:
            return (dict, *[(name, self._key(part)) for name, part in item.items()])
        if type(item) is FunctionType and item.__closure__ is None:
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
    """Work a function's value out once for all answers, where all its arguments were drawn.

    The function depends on its arguments alone, and neither writes into them nor into what it
    returns. What was written into since, or comes from an answer, is worked out anew.
    """

    @functools.wraps(function)
    def worked_out(*args: P.args, **kwargs: P.kwargs) -> R:
        memory = memory_now.get()
        if memory is None:
            return function(*args, **kwargs)
        value: R = memory.worked_out(function, args, kwargs)
        return value

    return worked_out
