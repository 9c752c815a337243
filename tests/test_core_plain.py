"""Plain data is all that crosses between a learner's code and its judge."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from autograder.guest.plain import MAX_DEPTH, MAX_ITEMS, MAX_TEXT, NotPlain, Opaque, to_plain


@pytest.mark.parametrize("value", [None, True, 3, -0.5, "x", [1, [2.0]], (1, (2,)), {"a": [None]}])
def test_plain_values_stay(value: Any) -> None:
    plain = to_plain(value)
    assert plain == value
    assert type(plain) is type(value)


Pair = namedtuple("Pair", "a b")


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Pair(1, 2), (1, 2)),
        (torch.Size([2, 3]), (2, 3)),
        (OrderedDict(a=1), {"a": 1}),
        (Text("x"), "x"),
        (np.float64(0.5), 0.5),
        (torch.float16, "float16"),
    ],
)
def test_subclasses_become_the_plain_kind(value: Any, plain: Any) -> None:
    found = to_plain(value)
    assert found == plain
    assert type(found) is type(plain)


def test_a_tensor_is_a_copy_without_history() -> None:
    source = torch.ones(2, 3, requires_grad=True)
    plain = to_plain((source * 2).T)
    assert not plain.requires_grad
    assert plain.is_contiguous()
    assert plain.tolist() == [[2.0, 2.0]] * 3
    parameter = nn.Parameter(torch.zeros(1))
    copied = to_plain(parameter)
    assert type(copied) is torch.Tensor
    copied += 1
    assert parameter.item() == 0


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (object(), "type object"),
        ({1: 2}, "type dict"),
        (lambda: 0, "type function"),
        ("x" * (MAX_TEXT + 1), "longer"),
        ([0] * (MAX_ITEMS + 1), "items"),
        (torch.zeros(2, 2).to_sparse(), "layout"),
        (torch.empty(1, dtype=torch.uint16), "dtype"),
        (torch.empty(1).expand(2**26), "larger"),
    ],
)
def test_what_is_not_plain_is_refused_in_words(value: Any, why: str) -> None:
    with pytest.raises(NotPlain, match=why):
        to_plain(value)


def test_depth_is_bounded() -> None:
    nested: list[Any] = []
    for _ in range(MAX_DEPTH + 1):
        nested = [nested]
    with pytest.raises(NotPlain, match="deeper"):
        to_plain(nested)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(NotPlain):
        to_plain(endless)


def test_objects_may_stay_behind() -> None:
    kept: list[Any] = []

    def keep(item: Any) -> Opaque:
        kept.append(item)
        return Opaque(len(kept))

    layer = nn.Linear(1, 1)
    assert to_plain([1, layer], keep) == [1, Opaque(1)]
    assert kept == [layer]
