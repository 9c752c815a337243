"""From text to vectors: tokens, embeddings, and how they are trained (chapter ``embeddings``).

Letters: ``B`` batch, ``T`` positions, ``D`` model width, ``V`` vocabulary.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "TokenEmbedding",
    "average_loss",
    "cross_entropy",
    "lookup_test",
    "merge_pair",
    "most_frequent_pair",
    "one_hot_lookup",
    "perplexity",
    "train",
]


def one_hot_lookup(ids: Tensor, weight: Tensor) -> Tensor:
    """Look vectors up by a matrix product: one-hot rows times the table.

    Args:
        ids: token ids, any shape, int64, each in 0 … V-1.
        weight: the table, shape (V, D), floating point.

    Returns:
        Shape (*ids.shape, D): row ids[...] of the table, computed as a product of matrices.
    """
    ### BEGIN SOLUTION
    one_hot = nn.functional.one_hot(ids, weight.size(0)).to(weight.dtype)  # (..., V)
    return one_hot @ weight  # (..., V) @ (V, D) -> (..., D)
    ### END SOLUTION


class TokenEmbedding(nn.Module):
    """A table with one vector per token.

    Args:
        V: size of the vocabulary.
        D: width of a vector.
        padding_id: a token whose vector is zero and stays zero, or None.
        scale: multiply what was looked up by √D.

    Attributes:
        weight: parameter, shape (V, D); entries are drawn with deviation 1/√D.

    Source: Vaswani et al. 2017, section 3.4.
    """

    def __init__(self, V: int, D: int, padding_id: int | None = None, scale: bool = False) -> None:
        super().__init__()
        self.padding_id = padding_id
        self.factor = math.sqrt(D) if scale else 1.0
        self.weight = nn.Parameter(torch.randn(V, D) / math.sqrt(D))
        if padding_id is not None:
            with torch.no_grad():
                self.weight[padding_id] = 0.0

    def forward(self, ids: Tensor) -> Tensor:
        """Look up.

        Args:
            ids: token ids, shape (B, T), int64.

        Returns:
            Shape (B, T, D). Padding gives zeros, and no gradient reaches its row.
        """
        ### BEGIN SOLUTION
        x = self.weight[ids]  # (B, T, D)
        if self.padding_id is not None:
            # Zero whatever the row holds: then no gradient can reach it either.
            x = x.masked_fill((ids == self.padding_id).unsqueeze(-1), 0.0)
        return x * self.factor
        ### END SOLUTION


def cross_entropy(logits: Tensor, targets: Tensor, ignore_id: int | None = None) -> Tensor:
    """Mean negative log-probability of the targets, in nats.

    Args:
        logits: shape (..., V), floating point, of any size.
        targets: right ids, shape (...), int64.
        ignore_id: targets of this id do not count, and it may lie outside 0 … V-1; None counts all.

    Returns:
        A scalar: the mean over the targets that count, 0 where none does.
    """
    ### BEGIN SOLUTION
    log_probabilities = logits - logits.logsumexp(dim=-1, keepdim=True)  # (..., V)
    counted = torch.ones_like(targets, dtype=torch.bool)
    if ignore_id is not None:
        counted = targets != ignore_id
    # What does not count may be no id at all, such as -1: any id will do in its place.
    ids = targets.masked_fill(~counted, 0).unsqueeze(-1)  # (..., 1)
    losses = -log_probabilities.gather(-1, ids).squeeze(-1)  # (...)
    return losses.masked_fill(~counted, 0.0).sum() / counted.sum().clamp(min=1)
    ### END SOLUTION


def perplexity(loss: float | Tensor) -> float:
    """The number of equally likely choices that would be as surprising: e to the loss.

    Args:
        loss: a mean cross-entropy in nats.

    Returns:
        At least 1 for a loss of at least 0.
    """
    ### BEGIN SOLUTION
    value = loss.item() if isinstance(loss, Tensor) else loss
    return math.exp(value)
    ### END SOLUTION


def most_frequent_pair(words: list[tuple[tuple[str, ...], int]]) -> tuple[str, str] | None:
    """The pair of neighbouring symbols that occurs most often.

    Args:
        words: each word as a tuple of symbols, and how often it occurs.

    Returns:
        The pair; of equally frequent ones the first in alphabetical order; None where no word has
        two symbols.

    Source: Sennrich et al. 2016, section 3.2, algorithm 1.
    """
    ### BEGIN SOLUTION
    counts: Counter[tuple[str, str]] = Counter()
    for symbols, times in words:
        for pair in pairwise(symbols):
            counts[pair] += times
    if not counts:
        return None
    return min(counts, key=lambda pair: (-counts[pair], pair))
    ### END SOLUTION


def merge_pair(symbols: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    """Join every occurrence of a pair into one symbol, from the left, without overlap.

    Args:
        symbols: a word as a tuple of symbols.
        pair: the two neighbours to join.

    Returns:
        The word with the pair joined: merging (a, a) in (a, a, a) gives (aa, a).

    Source: Sennrich et al. 2016, section 3.2, algorithm 1.
    """
    ### BEGIN SOLUTION
    merged: list[str] = []
    i = 0
    while i < len(symbols):
        if symbols[i : i + 2] == pair:
            merged.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            merged.append(symbols[i])
            i += 1
    return tuple(merged)
    ### END SOLUTION


def train(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Callable[[nn.Module, Any], Tensor],
    steps: int,
    learning_rate: float = 1e-3,
    schedule: Callable[[int], float] | None = None,
) -> list[float]:
    """The training loop of the whole book: one batch, one loss, one step of AdamW.

    Args:
        model: its parameters that want gradients are trained, in place and in training mode.
        batches: what ``loss`` takes; begun again when it runs out before ``steps``.
        loss: ``loss(model, batch)`` gives a scalar.
        steps: how many batches.
        learning_rate: of AdamW.
        schedule: step (from 0) → factor on the learning rate; None keeps it.

    Returns:
        The loss before each step.

    Source: Loshchilov and Hutter 2019, algorithm 2 (AdamW).
    """
    ### BEGIN SOLUTION
    optimizer = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=learning_rate,
        fused=True,  # the same step, in one call for all parameters
    )
    losses: list[float] = []
    source: Iterator[Any] = iter(batches)
    model.train()
    for step in range(steps):
        batch = next(source, None)
        if batch is None:
            source = iter(batches)
            batch = next(source)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * (schedule(step) if schedule else 1.0)
        value = loss(model, batch)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses
    ### END SOLUTION


def average_loss(batches: list[tuple[Tensor, Tensor]], padding_id: int) -> float:
    """Mean cross-entropy of a whole data set that comes in padded batches.

    Args:
        batches: pairs of logits (B, T, V) and targets (B, T); B and T differ between batches.
        padding_id: targets of this id do not count.

    Returns:
        The mean over all targets that count, in nats: each weighs the same, whichever batch it
        stands in. 0 where none counts.
    """
    ### BEGIN SOLUTION
    total, counted = 0.0, 0
    for logits, targets in batches:
        n = int((targets != padding_id).sum())
        total += n * float(cross_entropy(logits, targets, padding_id))  # back from mean to sum
        counted += n
    return total / max(counted, 1)
    ### END SOLUTION


def lookup_test(lookup: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Test somebody's embedding look-up, its gradient included.

    Args:
        lookup: called as ``lookup(ids, weight)`` with ids (B, T) int64 and weight (V, D) float32;
            gives row ids[b, t] of the weight at [b, t], shape (B, T, D), and lets gradients
            through to the weight.

    Raises:
        AssertionError: the implementation is wrong.
    """
    ### BEGIN SOLUTION
    noise = torch.Generator().manual_seed(0)
    weight = torch.randn(5, 3, generator=noise).requires_grad_()
    ids = torch.tensor([[4, 1, 1], [0, 4, 1]])
    rows = lookup(ids, weight)
    assert rows.shape == (2, 3, 3)
    assert torch.allclose(rows, weight[ids], atol=1e-6), "other rows than those of the ids"
    rows.sum().backward()
    uses = torch.bincount(ids.flatten(), minlength=5).float()  # (V,)
    assert weight.grad is not None
    assert torch.allclose(weight.grad, uses.unsqueeze(-1).expand(5, 3)), "other gradients"
    ### END SOLUTION
