"""Scaled dot-product attention and the one-headed layer built on it (chapter ``attention``).

Letters: ``B`` batch, ``T`` queries, ``S`` keys, ``D`` model width, ``d`` width of queries and keys,
``d_v`` width of values. A boolean mask is True where attention is allowed.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = [
    "SelfAttention",
    "attend_to_memory",
    "attention_cost",
    "attention_scores",
    "mask_test",
    "masked_softmax",
    "padding_mask",
    "scaled_dot_product_attention",
]


def attention_scores(q: Tensor, k: Tensor) -> Tensor:
    """Scaled dot product of every query with every key.

    Args:
        q: queries, shape (..., T, d), floating point.
        k: keys, shape (..., S, d), same dtype.

    Returns:
        Scores, shape (..., T, S), same dtype: entry (t, s) is q[t] · k[s] / √d.

    Source: Vaswani et al. 2017, section 3.2.1, equation 1 (what stands inside the softmax).
    """
    ### BEGIN SOLUTION
    d = q.size(-1)
    return q @ k.transpose(-2, -1) / math.sqrt(d)  # (..., T, S)
    ### END SOLUTION


def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax over the last axis, taken over the allowed entries alone.

    Args:
        scores: shape (..., T, S), any floating dtype.
        mask: boolean, broadcastable to the shape of ``scores``; True where attention is allowed.

    Returns:
        Weights of the same shape and dtype. A forbidden entry is exactly 0, a row sums to 1, and a
        row without an allowed entry is all 0, with finite gradients.
    """
    ### BEGIN SOLUTION
    if mask is None:
        return torch.softmax(scores, dim=-1)
    # The dtype's own minimum: -1e9 does not exist in fp16, and a whole row of -inf gives NaN.
    lowest = torch.finfo(scores.dtype).min
    weights = torch.softmax(scores.masked_fill(~mask, lowest), dim=-1)
    # Rows with something to attend to hold zeros here already; the others are uniform until now.
    return weights.masked_fill(~mask, 0.0)
    ### END SOLUTION


def padding_mask(ids: Tensor, padding_id: int = 0) -> Tensor:
    """Mask that hides the padding of a batch from every query.

    Args:
        ids: token ids, shape (B, S), integer.
        padding_id: the id that fills short sequences up.

    Returns:
        Boolean, shape (B, 1, S), True where the key is a real token; broadcasts to (B, T, S).
    """
    ### BEGIN SOLUTION
    return (ids != padding_id).unsqueeze(-2)  # (B, 1, S)
    ### END SOLUTION


def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Attention: softmax(q kᵀ / √d + bias) v, over the allowed keys.

    Args:
        q: queries, shape (..., T, d).
        k: keys, shape (..., S, d).
        v: values, shape (..., S, d_v).
        mask: boolean, broadcastable to (..., T, S); True where attention is allowed.
        bias: finite floats, broadcastable to (..., T, S), added to the scaled scores.
        dropout_p: each weight is dropped with this probability after the softmax, and the others
            are divided by 1 - dropout_p. A caller passes 0.0 in evaluation.

    Returns:
        Output, shape (..., T, d_v), and weights, shape (..., T, S), in the dtype of ``q``. The
        weights are those that multiplied ``v``, after dropout: output = weights @ v always holds.
        A query with no allowed key gets zero weights and a zero output.

    Source: Vaswani et al. 2017, section 3.2.1, equation 1.
    """
    ### BEGIN SOLUTION
    scores = attention_scores(q, k)  # (..., T, S)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    weights = masked_softmax(scores, mask)
    if dropout_p > 0.0:
        weights = nn.functional.dropout(weights, dropout_p)
    return weights @ v, weights  # (..., T, d_v), (..., T, S)
    ### END SOLUTION


class SelfAttention(nn.Module):
    """One head of self-attention: a sequence asks itself.

    Args:
        D: width of the input.
        d: width of queries, keys and values.
        bias: whether the three linear maps have a bias.

    Attributes:
        query, key, value: ``nn.Linear(D, d)`` each, with a bias or without as ``bias`` says.

    Source: Vaswani et al. 2017, section 3.2.2, for one head and without the output map.
    """

    def __init__(self, D: int, d: int, bias: bool = True) -> None:
        ### BEGIN SOLUTION
        super().__init__()
        self.query = nn.Linear(D, d, bias=bias)
        self.key = nn.Linear(D, d, bias=bias)
        self.value = nn.Linear(D, d, bias=bias)
        ### END SOLUTION

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Attend from every position of ``x`` to every allowed position of ``x``.

        Args:
            x: shape (B, T, D).
            mask: boolean, broadcastable to (B, T, T); True where attention is allowed.

        Returns:
            Output, shape (B, T, d), and weights, shape (B, T, T). A word with no allowed key gets
            zero weights and a zero output.
        """
        ### BEGIN SOLUTION
        q, k, v = self.query(x), self.key(x), self.value(x)  # (B, T, d) each
        return scaled_dot_product_attention(q, k, v, mask)
        ### END SOLUTION


def attention_cost(
    B: int, T: int, S: int, d: int, d_v: int, bytes_per_number: int = 4
) -> tuple[int, int]:
    """What attention costs: operations of its two matrix products, and bytes of its weights.

    A multiplication and an addition are two operations. The softmax, the scale and the linear maps
    before attention are left out.

    Args:
        B, T, S, d, d_v: sizes of q (B, T, d), k (B, S, d) and v (B, S, d_v).
        bytes_per_number: 4 for fp32, 2 for fp16 and bf16.

    Returns:
        The number of floating-point operations, and the size in bytes of the (B, T, S) weights.
    """
    ### BEGIN SOLUTION
    scores = 2 * B * T * S * d  # (B, T, d) @ (B, d, S)
    mixing = 2 * B * T * S * d_v  # (B, T, S) @ (B, S, d_v)
    return scores + mixing, B * T * S * bytes_per_number
    ### END SOLUTION


def attend_to_memory(
    x: Tensor,
    memory: Tensor,
    weight_q: Tensor,
    weight_k: Tensor,
    weight_v: Tensor,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention from one sequence to another: ``x`` asks, ``memory`` answers.

    Args:
        x: shape (B, T, D).
        memory: shape (B, S, D).
        weight_q, weight_k: shape (D, d) each.
        weight_v: shape (D, d_v).
        mask: boolean, broadcastable to (B, T, S); True where attention is allowed.

    Returns:
        Output, shape (B, T, d_v), and weights, shape (B, T, S). A query with no allowed key gets
        zero weights and a zero output.
    """
    ### BEGIN SOLUTION
    q = x @ weight_q  # (B, T, d)
    k = memory @ weight_k  # (B, S, d)
    v = memory @ weight_v  # (B, S, d_v)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, T, S)
    weights = masked_softmax(scores, mask)
    return weights @ v, weights
    ### END SOLUTION


def mask_test(attention: Callable[..., tuple[Tensor, Tensor]]) -> None:
    """Test somebody's attention: does it treat its mask rightly?

    Args:
        attention: called as ``attention(q, k, v, mask)`` with q (B, T, d), k (B, S, d),
            v (B, S, d_v) and a boolean mask that broadcasts to (B, T, S), True where attention is
            allowed, with at least one True in each row. It returns output (B, T, d_v) and
            weights (B, T, S).

    Raises:
        AssertionError: the implementation is wrong.
    """
    ### BEGIN SOLUTION
    B, T, S, d, d_v = 2, 3, 5, 4, 6
    noise = torch.Generator().manual_seed(0)
    q = torch.randn(B, T, d, generator=noise)
    k = torch.randn(B, S, d, generator=noise)
    v = torch.randn(B, S, d_v, generator=noise)
    each_query = torch.rand(B, T, S, generator=noise) < 0.5
    each_query[..., 2] = True  # no row without an allowed key
    padding = torch.tensor([[[1, 1, 1, 0, 0]], [[1, 1, 1, 1, 0]]], dtype=torch.bool)  # (B, 1, S)
    for mask in (each_query, padding):
        output, weights = attention(q, k, v, mask)
        allowed = mask.expand(B, T, S)
        assert weights.shape == (B, T, S)
        assert (weights[~allowed] == 0).all(), "a forbidden key has weight"
        for b in range(B):
            for t in range(T):
                seen = allowed[b, t]
                # What attention would give if the forbidden keys had never been there.
                expected = torch.softmax(k[b, seen] @ q[b, t] / math.sqrt(d), dim=-1)
                assert torch.allclose(weights[b, t, seen], expected, atol=1e-5)
                assert torch.allclose(output[b, t], expected @ v[b, seen], atol=1e-5)
    ### END SOLUTION
