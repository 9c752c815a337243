"""The wire: what goes in comes out, and no bytes at all do anything but raise Garbled."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc

import msgpack
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autograder.guest import wire
from autograder.guest.plain import DTYPES, MAX_ITEMS, Callback, NotPlain, Opaque
from autograder.guest.wire import HEADER, Garbled, decode, encode

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.builds(Opaque, st.integers(0, 2**32 - 1))
    | st.builds(Callback, st.integers(0, 2**32 - 1))
)
PLAIN = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner, max_size=5)
    ),
    max_leaves=20,
)


def body(value):
    return encode(value, 7)[HEADER.size :]


def same(a, b):
    """Equal, of the same types all the way down."""
    if type(a) is not type(b):
        return False
    if type(a) in (list, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if type(a) is dict:
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b


@given(PLAIN)
def test_plain_data_comes_back_with_its_types(value):
    # half a surrogate pair is no text that can be sent; it is replaced
    expected = _without_surrogates(value)
    assert same(decode(body(value)), expected)


def _without_surrogates(value):
    if type(value) is str:
        return value.encode("utf-8", "replace").decode()
    if type(value) in (list, tuple):
        return type(value)(map(_without_surrogates, value))
    if type(value) is dict:
        return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
    return value


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3, 4)])
def test_tensors_come_back_bit_for_bit(dtype, shape):
    tensor = (torch.randn(shape, dtype=torch.float64) * 3).to(dtype)
    back = decode(body(tensor))
    assert type(back) is torch.Tensor
    assert back.dtype == dtype
    assert torch.equal(back, tensor)


def test_views_conjugates_and_strides_come_back_as_values():
    tensor = torch.randn(3, 4, dtype=torch.complex64)
    for view in (
        tensor.T,
        tensor[:, ::2],
        tensor.conj(),
        tensor.conj().imag,
        tensor.expand(2, 3, 4),
    ):
        assert torch.equal(decode(body(view)), view)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_raise(data):
    with contextlib.suppress(Garbled):
        decode(data)


@settings(max_examples=300)
@given(st.data())
def test_a_message_with_changed_bytes_is_a_message_or_garbled(data):
    message = bytearray(
        body({"reply": {"value": (torch.ones(2, 3), [1, "a"]), "args": [Opaque(3)]}})
    )
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Garbled):
        decode(bytes(message))


def tensor_bytes(dtype, shape, raw=b"", dims=None):
    """A tensor as the wire has it, whatever is wrong with it."""
    number = dtype if type(dtype) is int else list(DTYPES).index(dtype)
    head = struct.pack(f"<BB{len(shape)}I", number, len(shape) if dims is None else dims, *shape)
    return msgpack.packb(msgpack.ExtType(2, head + raw))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x91" * 5_000 + b"\xc0", id="lists in lists"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="a list of four billion"),
        pytest.param(msgpack.packb([0] * (MAX_ITEMS + 2_000)), id="too many items"),
        pytest.param(msgpack.packb({1: 2}), id="a key that is a number"),
        pytest.param(msgpack.packb({b"a": 2}), id="a key that is bytes"),
        pytest.param(msgpack.packb(b"bytes"), id="bytes"),
        pytest.param(b"\xa2\xff\xfe", id="a text that is none"),
        pytest.param(msgpack.packb(msgpack.Timestamp(1)), id="a time"),
        pytest.param(msgpack.packb(msgpack.ExtType(9, b"")), id="an unknown extension"),
        pytest.param(msgpack.packb(msgpack.ExtType(1, b"\x01")), id="a tuple that is a number"),
        pytest.param(msgpack.packb(msgpack.ExtType(3, b"\x01")), id="a reference cut short"),
        pytest.param(msgpack.packb(msgpack.ExtType(2, b"\x01")), id="a tensor cut short"),
        pytest.param(tensor_bytes("float32", [2], b"1234567"), id="a byte too few"),
        pytest.param(tensor_bytes("float32", [2], b"123456789"), id="a byte too many"),
        pytest.param(tensor_bytes(len(DTYPES), [1], b"12345678"), id="an unknown dtype"),
        pytest.param(tensor_bytes("float32", [2**32 - 1]), id="a size that is not there"),
        pytest.param(tensor_bytes("float32", [0, 2**31]), id="an empty tensor of a huge shape"),
        pytest.param(tensor_bytes("float32", [1] * 70, b"1234"), id="seventy axes"),
        pytest.param(tensor_bytes("float32", [1], dims=3), id="axes that are not there"),
        pytest.param(tensor_bytes("bool", [2], b"\x00\x02"), id="a bool that is two"),
        pytest.param(msgpack.packb(1) + msgpack.packb(2), id="two messages in one"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_garbled(data):
    with pytest.raises(Garbled):
        decode(data)


EMPTY = b"\xdc" + struct.pack(">H", MAX_ITEMS) + b"\x80" * MAX_ITEMS


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xdc" + struct.pack(">H", 200) + EMPTY * 200, id="empty dicts"),
        pytest.param(
            msgpack.packb(msgpack.ExtType(1, b"\xdc" + struct.pack(">H", 200) + EMPTY * 200)),
            id="empty dicts in a tuple",
        ),
        pytest.param((b"\xdc" + struct.pack(">H", MAX_ITEMS)) * 1_000, id="announced lists"),
    ],
)
def test_what_is_too_much_is_not_made_first(data):
    tracemalloc.start()
    with pytest.raises(Garbled):
        decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # a tuple's bytes are copied once; the lists have room for as many items as there are bytes
    assert peak < 32 * 2**20


def test_tuples_in_tuples_are_not_copied_without_end():
    value = msgpack.ExtType(2, tensor_bytes("uint8", [2**20], bytes(2**20))[6:])
    assert decode(msgpack.packb(value)).shape == (2**20,)
    for _ in range(10):
        value = msgpack.ExtType(1, msgpack.packb([value]))
    data = msgpack.packb(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "_MAX_TUPLES", 11 * 2**20)
        decode(data)
        patch.setattr(wire, "_MAX_TUPLES", 9 * 2**20)
        with pytest.raises(Garbled):
            decode(data)


@given(PLAIN)
def test_items_are_counted_as_they_stand(value):
    """The count goes from head to head and finds every item once."""
    data, items = body(value), sum(1 for _ in _seen(value))
    wire._count(data, items)
    with pytest.raises(Garbled):
        wire._count(data, items - 1)


def _seen(value):
    """What msgpack sees: keys too, and of a tuple nothing but its bytes."""
    yield value
    if type(value) is list:
        for part in value:
            yield from _seen(part)
    if type(value) is dict:
        for key, part in value.items():
            yield key
            yield from _seen(part)


def test_tuples_in_tuples_end():
    item = None
    for _ in range(100):
        item = msgpack.ExtType(1, msgpack.packb([item]))
    with pytest.raises(Garbled):
        decode(msgpack.packb(item))


@pytest.mark.parametrize("value", [2**64, object(), {1, 2}, type("Int", (int,), {})(3)])
def test_what_is_not_plain_is_not_sent(value):
    with pytest.raises(NotPlain):
        encode([value], 0)
