"""Warm-ups in shapes: broadcasting, batched products, view, transpose (chapter ``intro``).

Letters: ``B`` batch, ``T`` targets or queries, ``S`` sources or keys, ``d`` width of a vector,
``C`` channels of an image, ``P`` side of a patch.
"""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = [
    "batched_products",
    "image_patches",
    "pairwise_differences",
    "row_shares",
    "shares_test",
]


def pairwise_differences(x: Tensor, y: Tensor) -> Tensor:
    """Every vector of ``x`` minus every vector of ``y``, in each item of the batch.

    Args:
        x: shape (B, T, d).
        y: shape (B, S, d).

    Returns:
        Shape (B, T, S, d): entry (b, t, s) is x[b, t] - y[b, s]. Neither input is changed.
    """
    ### BEGIN SOLUTION
    return x.unsqueeze(2) - y.unsqueeze(1)  # (B, T, 1, d) - (B, 1, S, d) -> (B, T, S, d)
    ### END SOLUTION


def batched_products(q: Tensor, k: Tensor) -> Tensor:
    """Dot product of every vector of ``q`` with every vector of ``k``, in each item of the batch.

    Args:
        q: shape (B, T, d).
        k: shape (B, S, d).

    Returns:
        Shape (B, T, S): entry (b, t, s) is q[b, t] · k[b, s]. Neither input is changed.
    """
    ### BEGIN SOLUTION
    return q @ k.transpose(-2, -1)  # (B, T, d) @ (B, d, S) -> (B, T, S)
    ### END SOLUTION


def image_patches(images: Tensor, P: int) -> Tensor:
    """Cut images into square patches and lay each patch out as one row.

    Args:
        images: shape (B, C, height, width); P divides height and width.
        P: side of a patch.

    Returns:
        Shape (B, N, C·P·P) with N = (height/P)·(width/P). Patches come row by row of the image,
        from the left; within a row of the result the channels come first, then the rows of the
        patch, then its columns.

    Source: Dosovitskiy et al. 2021, section 3.1 (there the channels come last).
    """
    ### BEGIN SOLUTION
    B, C, height, width = images.shape
    cut = images.view(B, C, height // P, P, width // P, P)
    cut = cut.permute(0, 2, 4, 1, 3, 5)  # (B, height/P, width/P, C, P, P)
    return cut.reshape(B, -1, C * P * P)  # (B, N, C·P·P)
    ### END SOLUTION


def row_shares(x: Tensor) -> Tensor:
    """Divide every row by its sum, so that its entries become shares of 1.

    Args:
        x: positive, shape (..., n).

    Returns:
        Same shape; each row along the last axis sums to 1, and ``x`` is as it was.
    """
    ### BEGIN SOLUTION
    return x / x.sum(dim=-1, keepdim=True)  # (..., n) / (..., 1)
    ### END SOLUTION


def shares_test(row_shares: Callable[[Tensor], Tensor]) -> None:
    """Test somebody's ``row_shares``: does it divide every row by its own sum?

    Args:
        row_shares: takes a positive tensor of shape (..., n), returns one of the same shape, and
            leaves what it was given as it was.

    Raises:
        AssertionError: the implementation is wrong.
    """
    ### BEGIN SOLUTION
    noise = torch.Generator().manual_seed(0)
    for shape in ((3, 3), (2, 5), (2, 3, 4)):
        x = torch.rand(shape, generator=noise) + 0.5
        before = x.clone()
        y = row_shares(x)
        assert y.shape == x.shape
        assert torch.allclose(y.sum(-1), torch.ones(shape[:-1])), "a row does not sum to 1"
        assert torch.allclose(y * before.sum(-1, keepdim=True), before), "the ratios changed"
        assert torch.equal(x, before), "the input was overwritten"
    ### END SOLUTION
