"""Small objects that a check may put beside the learner's code: a model to train, a loss to use.

They live on the learner's side, because a model is no plain data; the check refers to them. They
are nobody's secret and take part in no verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


FIXTURES: dict[str, Callable[..., Any]] = {
    "launcher": launcher,
    "linear": linear,
    "squared_error": squared_error,
    "with_dropout": with_dropout,
    "with_frozen_part": with_frozen_part,
}
