"""Small objects that a check may put beside the learner's code: a model to train, a loss to use.

They live on the learner's side, because a model is no plain data; the check refers to them. They
are nobody's secret and take part in no verdict.
"""

from __future__ import annotations

import tracemalloc
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

    Args:
        values: the numbers.
        times: how often they come, one round after another.

    Attributes:
        hoarded: whether whoever went over all of them still held memory for each of them.
    """

    def __init__(self, values: Sequence[float], times: int = 1) -> None:
        self._values, self._times = tuple(values), times
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
        tracing = tracemalloc.is_tracing()
        tracemalloc.start()
        before, _peak = tracemalloc.get_traced_memory()
        for _round in range(self._times):
            for value in self._values:
                yield value + 0.0  # an object of its own
        held = tracemalloc.get_traced_memory()[0] - before
        if not tracing:
            tracemalloc.stop()
        # a list has 8 bytes for each number that it points to
        self.hoarded = held > 8 * self._times * len(self._values)


class EnlargingCache:
    """In place of a cache of keys and values: it keeps nothing, and hands out larger values.

    Args:
        factor: values are multiplied by it.
    """

    length = 0

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys as they are, and larger values, each (B, H, T, d)."""
        return k, self._factor * v


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
    "enlarging_cache": EnlargingCache,
    "launcher": launcher,
    "linear": linear,
    "squared_error": squared_error,
    "stream": Stream,
    "there_and_back": lambda: there_and_back,
    "with_dropout": with_dropout,
    "with_frozen_part": with_frozen_part,
}
