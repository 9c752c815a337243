"""Plain data: the only thing that crosses between a learner's code and the one who judges it.

Plain data is ``None``, ``bool``, ``int``, ``float``, ``str``, ``list``, ``tuple``, ``dict`` with
``str`` keys, and dense CPU tensors, nested to a bounded depth, plus two kinds of reference:
:class:`Opaque` (an object that stays on the learner's side) and :class:`Callback` (a function that
stays on the judge's side).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MAX_DEPTH = 12
MAX_ITEMS = 20_000
MAX_TENSOR_BYTES = 64 * 2**20
MAX_TEXT = 100_000

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Opaque:
    """A reference to an object that the learner's code made and that never leaves its process."""

    number: int


@dataclass(frozen=True)
class Callback:
    """A reference to a function that the judge answers, handed to the learner's code."""

    number: int


class NotPlain(ValueError):
    """A value that is not plain data, or more of it than may cross. One line says which."""


def to_plain(value: Any, opaque: Callable[[Any], Opaque] | None = None) -> Any:
    """Copy ``value`` into plain data.

    Tensors are detached, moved to the CPU and copied, so that neither side can reach the other's
    memory. Subclasses of containers become the plain container (a ``NamedTuple`` is a tuple), a
    parameter becomes a tensor, a NumPy or one-element number its Python number. A dtype of torch
    becomes its name.

    Args:
        opaque: what to do with a value that is not plain data; without it such a value is an error.

    Raises:
        NotPlain: too deep, too many items, too large, or no plain data and no ``opaque``.
    """
    budget = [MAX_ITEMS]

    def copy(item: Any, depth: int) -> Any:
        budget[0] -= 1
        if budget[0] < 0:
            raise NotPlain(f"more than {MAX_ITEMS} items")
        if depth > MAX_DEPTH:
            raise NotPlain(f"nested deeper than {MAX_DEPTH} levels")
        if item is None or type(item) in (bool, int, float, Opaque, Callback):
            return item
        if isinstance(item, Tensor):
            return _copy_tensor(item)
        if isinstance(item, str):
            if len(item) > MAX_TEXT:
                raise NotPlain(f"a text longer than {MAX_TEXT} characters")
            return str(item)
        if isinstance(item, torch.dtype):
            return DTYPE_NAMES.get(item, str(item))
        if isinstance(item, tuple):  # torch.Size and NamedTuple too
            return tuple(copy(part, depth + 1) for part in item)
        if isinstance(item, list):
            return [copy(part, depth + 1) for part in item]
        if isinstance(item, dict) and all(isinstance(key, str) for key in item):
            return {str(key): copy(part, depth + 1) for key, part in item.items()}
        if isinstance(item, bool | int):
            return int(item)
        if isinstance(item, float):
            return float(item)
        if opaque is not None:
            return opaque(item)
        raise NotPlain(f"a value of type {type(item).__name__}")

    return copy(value, 0)


def tensors_in(value: Any) -> Iterable[Tensor]:
    """Every tensor in lists, tuples and dicts."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, list | tuple):
            pending += item


def reach(tensors: Iterable[Tensor]) -> int:
    """How many elements may come of a computation with these tensors that is no larger than ours.

    Attention makes T·S scores of T queries and S keys, however narrow they are: so it is all
    elements together, times the longest axis.
    """
    elements, longest = 0, 1
    for tensor in tensors:
        elements += tensor.numel()
        longest = max(longest, *tensor.shape, 1)
    return elements * longest


def _copy_tensor(tensor: Tensor) -> Tensor:
    if tensor.numel() * tensor.dtype.itemsize > MAX_TENSOR_BYTES:
        raise NotPlain(f"a tensor larger than {MAX_TENSOR_BYTES} bytes")
    if tensor.dtype not in DTYPE_NAMES:
        raise NotPlain(f"a tensor of dtype {tensor.dtype}")
    if tensor.layout != torch.strided:
        raise NotPlain(f"a tensor of layout {tensor.layout}")
    plain = tensor.detach()
    if type(plain) is not Tensor:
        plain = plain.as_subclass(Tensor)
    if plain.device.type != "cpu":
        plain = plain.to("cpu")
    return plain.clone(memory_format=torch.contiguous_format)
