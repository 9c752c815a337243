"""Small objects that a check may put beside the learner's code: a model to train, a loss to use.

They live on the learner's side, because a model is no plain data; the check refers to them. They
are nobody's secret and take part in no verdict.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from autograder.guest.kernels import launcher


def linear(inputs: int, outputs: int) -> nn.Module:
    """A linear layer, shape (..., inputs) to (..., outputs)."""
    return nn.Linear(inputs, outputs)


def with_frozen_part(inputs: int, outputs: int) -> nn.Module:
    """Two linear layers, of which the first wants no gradient."""
    frozen = nn.Linear(inputs, inputs)
    frozen.requires_grad_(False)
    return nn.Sequential(frozen, nn.Linear(inputs, outputs))


def with_dropout(inputs: int, outputs: int) -> nn.Module:
    """A linear layer behind a dropout of nearly everything: its mode shows in every loss."""
    return nn.Sequential(nn.Dropout(0.9), nn.Linear(inputs, outputs))


def squared_error() -> Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]:
    """A loss: the mean squared error of ``model(x)`` against y, for a batch (x, y)."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return (model(x) - y).square().mean()

    return loss


class Stream:
    """Numbers that can be seen once, one after another.

    Attributes:
        hoarded: whether whoever iterates kept more than a few of them.
    """

    def __init__(self, values: Sequence[float]) -> None:
        self._values = tuple(values)
        self._begun = False
        self.hoarded = False

    def __iter__(self) -> Iterator[float]:
        """Hand the numbers out.

        Raises:
            RuntimeError: for the second time.
        """
        if self._begun:
            raise RuntimeError("the stream can be seen once only")
        self._begun = True
        return self._once()

    def _once(self) -> Iterator[float]:
        alive: weakref.WeakSet[_Number] = weakref.WeakSet()
        for value in self._values:
            number = _Number(value)
            alive.add(number)
            yield number
            del number
            self.hoarded = self.hoarded or len(alive) > _FEW


_FEW = 8


class _Number(float):
    """A float of which one can know whether it is still there."""

    __hash__ = object.__hash__


def both_ways(function: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """An autograd function applied with ``True`` and with ``False``, before either goes back."""
    first: Tensor = function.apply(q, k, v, True)
    second: Tensor = function.apply(q, k, v, False)
    return first + 2 * second


def there_and_back(
    function: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, cotangent: Tensor
) -> tuple[Tensor, ...]:
    """An autograd function's forward and backward pass; the gradients by q, k and v."""
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(function.apply(*inputs, causal), inputs, cotangent)


FIXTURES: dict[str, Callable[..., Any]] = {
    "both_ways": lambda: both_ways,
    "launcher": launcher,
    "linear": linear,
    "squared_error": squared_error,
    "stream": Stream,
    "there_and_back": lambda: there_and_back,
    "with_dropout": with_dropout,
    "with_frozen_part": with_frozen_part,
}
