"""Plain data as bytes, for the pipe between a sandbox and the process that judges.

A frame is a header (length of the body, number of the request it belongs to) and a body in
msgpack. msgpack has no code that runs on reading, and what it lacks is added here: tuples, tensors
(number of the dtype, shape, raw little-endian bytes), references. :func:`decode` believes nothing:
sizes, depth, number of items, exact types and the length of every tensor are checked, and anything
else is :class:`Garbled`.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from typing import Any

import msgpack
import torch
from torch import Tensor

from autograder.guest.plain import (
    DTYPES,
    MAX_DEPTH,
    MAX_ITEMS,
    MAX_TENSOR_BYTES,
    MAX_TEXT,
    Callback,
    NotPlain,
    Opaque,
)

MAX_FRAME = MAX_TENSOR_BYTES + 2**20
"""Bytes of a body: the largest tensor that may cross, and room for what stands around it."""

HEADER = struct.Struct("<IQ")
"""Length of the body, number of the request."""

_TUPLE, _TENSOR, _OPAQUE, _CALLBACK = range(1, 5)
_BY_NUMBER = tuple(DTYPES.values())
_NUMBERS = {dtype: number for number, dtype in enumerate(_BY_NUMBER)}
_MAX_DIMS = 16
_MAX_SIZE = 2**31
# A body this short cannot hold enough to matter: its items are counted when they are there.
_SHORT = 2**16
# A dict's keys are items of their own to msgpack.
_MAX_HEADS = 2 * (MAX_ITEMS + 1_000)
# Nested tuples are bodies in bodies, and each is copied out of the one around it.
_MAX_TUPLES = 3 * MAX_FRAME
# A message wraps plain data in a few levels of its own ("reply", "grads", a name).
_LEVELS = MAX_DEPTH + 6


class Garbled(ValueError):
    """Bytes that are not a message."""


def encode(value: Any, number: int) -> bytes:
    """One frame.

    Raises:
        NotPlain: see :func:`pack`.
    """
    return frame(pack(value), number)


def frame(body: bytes, number: int) -> bytes:
    """A header, and the body that :func:`pack` made."""
    return HEADER.pack(len(body), number) + body


def pack(value: Any) -> bytes:
    """The body of a frame.

    Raises:
        NotPlain: something that msgpack cannot hold (an integer of more than 64 bits, say), or a
            body that is longer than a frame may be.
    """
    try:
        body = _pack(value)
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise NotPlain(str(error)[:200]) from None
    if len(body) > MAX_FRAME:
        raise NotPlain(f"a reply larger than {MAX_FRAME} bytes")
    return body


def _pack(value: Any) -> bytes:
    # strict_types sends every type that is not exactly a built-in one through _extend; a lone
    # surrogate in a text becomes a question mark.
    return msgpack.packb(value, default=_extend, strict_types=True, unicode_errors="replace")


def _extend(value: Any) -> Any:
    if type(value) is tuple:
        return msgpack.ExtType(_TUPLE, _pack(list(value)))
    if type(value) is Opaque:
        return msgpack.ExtType(_OPAQUE, struct.pack("<I", value.number))
    if type(value) is Callback:
        return msgpack.ExtType(_CALLBACK, struct.pack("<I", value.number))
    if isinstance(value, Tensor):
        return msgpack.ExtType(_TENSOR, _tensor_to_bytes(value))
    raise TypeError(f"a value of type {type(value).__name__}")


def _tensor_to_bytes(tensor: Tensor) -> bytes:
    # resolve_*: conjugation and negation may be pending and then do not stand in the memory
    plain = tensor
    if plain.is_conj() or plain.is_neg() or not plain.is_contiguous():
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    size = plain.nbytes
    raw = ctypes.string_at(plain.data_ptr(), size) if size else b""
    if sys.byteorder == "big":  # none of today's torch platforms; a wrong number would be silent
        raise TypeError("a tensor on a big-endian machine")
    shape = plain.shape
    return struct.pack(f"<BB{len(shape)}I", _NUMBERS[plain.dtype], len(shape), *shape) + raw


def decode(body: bytes) -> Any:
    """The plain data that a body holds.

    Raises:
        Garbled: whatever is wrong with it.
    """
    budget = [MAX_ITEMS + 1_000, _MAX_TUPLES]
    try:
        return _convert(_unpack(body), 0, budget)
    except Garbled:
        raise
    except Exception as error:  # msgpack's own errors, bad UTF-8, too deep, too large a number
        raise Garbled(type(error).__name__) from None


def _unpack(body: bytes) -> Any:
    if len(body) > _SHORT:
        _count(body, _MAX_HEADS)
    # what is announced and cannot be there is not made room for
    most = min(MAX_ITEMS, len(body))
    return msgpack.unpackb(
        body,
        strict_map_key=True,
        max_str_len=4 * MAX_TEXT,
        max_bin_len=0,
        max_array_len=most,
        max_map_len=most,
        max_ext_len=MAX_FRAME,
    )


def _heads() -> tuple[tuple[int, int], ...]:
    """By an item's first byte: bytes of it, and how many behind the first one say how many more."""
    heads = [(1, 0)] * 256  # small numbers, None, booleans; heads of short lists and dicts
    for length in range(32):
        heads[0xA0 + length] = (1 + length, 0)  # short texts
    for first, fixed in (
        *zip(range(0xCA, 0xD4), (5, 9, 2, 3, 5, 9, 2, 3, 5, 9), strict=True),  # numbers
        *zip(range(0xD4, 0xD9), (3, 4, 6, 10, 18), strict=True),  # extensions of a fixed size
        *zip(range(0xDC, 0xE0), (3, 5, 3, 5), strict=True),  # heads of lists and dicts
    ):
        heads[first] = (fixed, 0)
    for first, kind in ((0xC4, 0), (0xC7, 1), (0xD9, 0)):  # bytes, extensions, texts
        for place, size in enumerate((1, 2, 4)):
            heads[first + place] = (1 + size + kind, size)
    return tuple(heads)


_HEADS = _heads()


def _count(body: bytes, most: int) -> None:
    """Refuse a body of too many items before any is made: an empty dict is 64 times its byte."""
    at, end = 0, len(body)
    while at < end:
        most -= 1
        if most < 0:
            raise Garbled("too many items")
        fixed, size = _HEADS[body[at]]
        at += fixed + (int.from_bytes(body[at + 1 : at + 1 + size]) if size else 0)


def _convert(item: Any, depth: int, budget: list[int]) -> Any:
    budget[0] -= 1
    if budget[0] < 0:
        raise Garbled("too many items")
    if depth > _LEVELS:
        raise Garbled("too deep")
    kind = type(item)
    if item is None or kind in (bool, int, float, str):
        return item
    if kind is list:
        return [_convert(part, depth + 1, budget) for part in item]
    if kind is dict:
        if not all(type(key) is str for key in item):
            raise Garbled("a key that is no text")
        return {key: _convert(part, depth + 1, budget) for key, part in item.items()}
    if kind is not msgpack.ExtType:
        raise Garbled(f"a {kind.__name__}")
    code, data = item
    if code == _TENSOR:
        return _tensor_from_bytes(data)
    if code == _TUPLE:
        budget[1] -= len(data)
        if budget[1] < 0:
            raise Garbled("too much in tuples")
        parts = _unpack(data)
        if type(parts) is not list:
            raise Garbled("a tuple that is none")
        return tuple(_convert(part, depth + 1, budget) for part in parts)
    if code in (_OPAQUE, _CALLBACK) and len(data) == 4:
        (number,) = struct.unpack("<I", data)
        return Opaque(number) if code == _OPAQUE else Callback(number)
    raise Garbled(f"extension {code}")


def _tensor_from_bytes(data: bytes) -> Tensor:
    if len(data) < 2 or data[0] >= len(_BY_NUMBER):
        raise Garbled("a tensor's dtype")
    dtype, dims = _BY_NUMBER[data[0]], data[1]
    start = 2 + 4 * dims
    if dims > _MAX_DIMS or len(data) < start:
        raise Garbled("a tensor's shape")
    shape = struct.unpack_from(f"<{dims}I", data, 2)
    elements = math.prod(shape)
    # the product of the sizes that are not zero bounds the strides of an empty tensor as well
    if (elements or math.prod(n for n in shape if n)) >= _MAX_SIZE:
        raise Garbled("a tensor's size")
    if elements * dtype.itemsize != len(data) - start:
        raise Garbled("a tensor's length")
    if len(data) == start:
        return torch.empty(shape, dtype=dtype)
    memory = bytearray(memoryview(data)[start:])
    # a byte other than 0 and 1 is no bool: what torch does with it is undefined
    if dtype is torch.bool and memory.translate(None, b"\0\1"):
        raise Garbled("a bool that is none")
    return torch.frombuffer(memory, dtype=dtype).view(shape)
