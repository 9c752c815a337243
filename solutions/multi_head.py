"""Multi-head attention: heads split and merged, the layer of the whole book, and what it costs.

Letters: ``B`` batch, ``T`` queries, ``S`` keys, ``D`` model width, ``H`` heads, ``d`` = D / H width
of a head. A boolean mask is True where attention is allowed.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from solutions.attention import scaled_dot_product_attention

__all__ = [
    "BorrowedAttention",
    "MultiHeadAttention",
    "grouped_query_attention",
    "head_contributions",
    "heads_test",
    "merge_heads",
    "multi_head_cost",
    "split_heads",
    "weights_from_torch",
]


def split_heads(x: Tensor, H: int) -> Tensor:
    """Cut the last axis into heads, and put the heads where a batch stands.

    Args:
        x: shape (B, T, D), any dtype.
        H: number of heads; divides D.

    Returns:
        Shape (B, H, T, d) with d = D / H, dtype of x: head h holds the components h·d to (h + 1)·d
        of x.

    Raises:
        ValueError: H does not divide D.

    Source: Vaswani et al. 2017, section 3.2.2.
    """
    ### BEGIN SOLUTION
    B, T, D = x.shape
    if D % H:
        raise ValueError(f"a width of {D} cannot be cut into {H} heads; take H that divides D")
    return x.reshape(B, T, H, D // H).transpose(1, 2)  # (B, H, T, d)
    ### END SOLUTION


def merge_heads(x: Tensor) -> Tensor:
    """Put the heads side by side again: the inverse of ``split_heads``.

    Args:
        x: shape (B, H, T, d), any dtype, contiguous in memory or not.

    Returns:
        Shape (B, T, D) with D = H·d, dtype of x.

    Source: Vaswani et al. 2017, section 3.2.2 (Concat).
    """
    ### BEGIN SOLUTION
    B, H, T, d = x.shape
    # reshape and not view: after transpose the numbers of a position do not lie together.
    return x.transpose(1, 2).reshape(B, T, H * d)  # (B, T, D)
    ### END SOLUTION


class MultiHeadAttention(nn.Module):
    """Attention in H heads: self-attention, cross-attention, grouped heads, all in one layer.

    Args:
        D: model width.
        H: number of heads; divides D.
        kv_heads: heads of the keys and values (H_kv below); divides H. H by default.
        bias: whether the four linear maps have a bias.
        dropout: each weight is dropped with this probability while the module is in training.

    Attributes:
        query: ``nn.Linear(D, D)``.
        key, value: ``nn.Linear(D, H_kv·d)`` each, which is ``nn.Linear(D, D)`` by default.
        output: ``nn.Linear(D, D)``; all four with a bias or without as ``bias`` says.
        H, kv_heads, dropout: as given.

    Head h uses outputs h·d to (h + 1)·d of ``query``, and of ``key`` and ``value`` (where heads
    share them, those of its group); ``output`` gets the heads side by side in this order.

    Raises:
        ValueError: H does not divide D, or kv_heads does not divide H.

    Source: Vaswani et al. 2017, section 3.2.2; Ainslie et al. 2023, section 2.2, for kv_heads.
    """

    def __init__(
        self,
        D: int,
        H: int,
        *,
        kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        kv_heads = H if kv_heads is None else kv_heads
        if D % H:
            raise ValueError(f"a width of {D} cannot be cut into {H} heads; take H that divides D")
        if H % kv_heads:
            raise ValueError(f"{H} heads cannot share {kv_heads} key heads; take a divisor of H")
        self.H, self.kv_heads, self.dropout = H, kv_heads, dropout
        ### BEGIN SOLUTION
        narrow = kv_heads * (D // H)
        self.query = nn.Linear(D, D, bias=bias)
        self.key = nn.Linear(D, narrow, bias=bias)
        self.value = nn.Linear(D, narrow, bias=bias)
        self.output = nn.Linear(D, D, bias=bias)
        ### END SOLUTION

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        rotary: Callable[[Tensor, int], Tensor] | None = None,
        cache: Any = None,
    ) -> tuple[Tensor, Tensor]:
        """Attend from every position of ``query`` to every allowed position of ``key``.

        Args:
            query: shape (B, T, D).
            key: shape (B, S, D); None for self-attention, where the queries' input asks itself.
            value: shape (B, S, D); None where it is ``key``.
            mask: boolean, broadcastable to (B, H, T, S), such as (T, S) or (B, 1, 1, S); True where
                attention is allowed.
            bias: floats, broadcastable to (B, H, T, S), added to the scaled scores.
            rotary: turns queries and keys by their position, called as ``rotary(x, offset)`` with
                x (B, heads, T, d) and the position of its first row.
            cache: keys and values of earlier calls: ``cache.length`` is how many positions it
                holds, ``cache.update(k, v)`` adds k and v, (B, H_kv, T, d) each, and returns all.

        Returns:
            Output, shape (B, T, D), and weights, shape (B, H, T, S), S counting the cached keys,
            both in the dtype of ``query``.
            The weights are those that multiplied the values, after dropout. Where a query has no
            allowed key, its weights are zero and its output is the bias of ``output``.
        """
        key = query if key is None else key
        value = key if value is None else value
        ### BEGIN SOLUTION
        q = split_heads(self.query(query), self.H)  # (B, H, T, d)
        k = split_heads(self.key(key), self.kv_heads)  # (B, H_kv, S, d)
        v = split_heads(self.value(value), self.kv_heads)  # (B, H_kv, S, d)
        ### END SOLUTION
        # Three hooks of later chapters: positions, decoding with a cache, grouped heads.
        if rotary is not None:
            offset = 0 if cache is None else cache.length
            q, k = rotary(q, offset), rotary(k, offset)
        if cache is not None:
            k, v = cache.update(k, v)  # S grows
        if self.kv_heads != self.H:
            group = self.H // self.kv_heads
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        ### BEGIN SOLUTION
        heads, weights = scaled_dot_product_attention(
            q, k, v, mask, bias=bias, dropout_p=self.dropout if self.training else 0.0
        )  # (B, H, T, d), (B, H, T, S)
        return self.output(merge_heads(heads)), weights
        ### END SOLUTION


def weights_from_torch(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of ``nn.MultiheadAttention`` under the names of our ``MultiHeadAttention``.

    Args:
        state: the ``state_dict()`` of an ``nn.MultiheadAttention(D, H)``: ``in_proj_weight``
            (3D, D), which is queries, keys and values stacked, ``out_proj.weight`` (D, D), and with
            ``bias=True`` also ``in_proj_bias`` (3D,) and ``out_proj.bias`` (D,).

    Returns:
        ``query.weight``, ``key.weight``, ``value.weight``, ``output.weight``, (D, D) each, and
        where the state has biases ``query.bias``, ``key.bias``, ``value.bias``, ``output.bias``.
    """
    ### BEGIN SOLUTION
    names = ("query", "key", "value")
    ours = {"output.weight": state["out_proj.weight"]}
    for name, weight in zip(names, state["in_proj_weight"].chunk(3), strict=True):
        ours[f"{name}.weight"] = weight  # (D, D)
    if "in_proj_bias" in state:
        ours["output.bias"] = state["out_proj.bias"]
        for name, bias in zip(names, state["in_proj_bias"].chunk(3), strict=True):
            ours[f"{name}.bias"] = bias  # (D,)
    return ours
    ### END SOLUTION


def multi_head_cost(
    B: int,
    T: int,
    S: int,
    D: int,
    H: int,
    *,
    kv_heads: int | None = None,
    bytes_per_number: int = 4,
) -> tuple[int, int, int, int]:
    """What one call of ``MultiHeadAttention`` costs.

    A multiplication and an addition are two operations. The softmax, the scale and the additions of
    the biases are left out.

    Args:
        B, T, S, D, H: sizes of the call; H divides D.
        kv_heads: heads of the keys and values; H by default.
        bytes_per_number: 4 for fp32, 2 for fp16 and bf16.

    Returns:
        - the number of parameters, biases included,
        - the floating-point operations of the four linear maps and the two products of attention,
        - the size in bytes of the weights (B, H, T, S),
        - the size in bytes of the keys and the values, (B, H_kv, S, d) each, together.
    """
    ### BEGIN SOLUTION
    kv_heads = H if kv_heads is None else kv_heads
    d = D // H
    narrow = kv_heads * d
    parameters = 2 * (D * D + D) + 2 * (D * narrow + narrow)
    linear = 2 * (2 * B * T * D * D) + 2 * (2 * B * S * D * narrow)
    attention = 2 * (2 * B * H * T * S * d)
    weights = B * H * T * S * bytes_per_number
    keys_and_values = 2 * B * kv_heads * S * d * bytes_per_number
    return parameters, linear + attention, weights, keys_and_values
    ### END SOLUTION


def head_contributions(heads: Tensor, weight: Tensor) -> Tensor:
    """What each head adds to the output of the layer.

    Args:
        heads: what the heads computed, shape (B, H, T, d), before they are merged.
        weight: the weight of the output map as ``nn.Linear`` stores it, shape (D, H·d).

    Returns:
        Shape (B, H, T, D), dtype of the inputs. Its sum over the heads is
        ``merge_heads(heads) @ weight.T``: the output of the layer without the output map's bias.

    Source: Vaswani et al. 2017, section 3.2.2, with Concat and W_O multiplied out.
    """
    ### BEGIN SOLUTION
    H, d = heads.size(1), heads.size(-1)
    per_head = weight.reshape(-1, H, d).permute(1, 2, 0)  # (H, d, D)
    return heads @ per_head  # (B, H, T, D)
    ### END SOLUTION


def grouped_query_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention in which several query heads share one head of keys and values.

    Args:
        q: queries, shape (B, H, T, d).
        k: keys, shape (B, H_kv, S, d); H_kv divides H.
        v: values, shape (B, H_kv, S, d).
        mask: boolean, (T, S) or (B, 1, T, S); True where attention is allowed.

    Returns:
        Output, shape (B, H, T, d), and weights, shape (B, H, T, S), in the dtype of ``q``. Query
        heads 0 to G - 1 use head 0 of the keys and values, the next G head 1, and so on, with
        G = H / H_kv.

    Source: Ainslie et al. 2023, section 2.2; Shazeer 2019 for a single head of keys and values.
    """
    ### BEGIN SOLUTION
    B, H, T, d = q.shape
    kv_heads, S = k.size(1), k.size(2)
    # The queries of a group stand in one long list: their keys are used as they lie, never copied.
    grouped = q.reshape(B, kv_heads, H // kv_heads * T, d)  # (B, H_kv, G·T, d)
    if mask is not None:
        rows = mask if mask.dim() == 4 else mask.reshape(1, 1, T, S)
        mask = rows.repeat(1, 1, H // kv_heads, 1)  # (B or 1, 1, G·T, S)
    output, weights = scaled_dot_product_attention(grouped, k, v, mask)
    return output.reshape(B, H, T, d), weights.reshape(B, H, T, S)
    ### END SOLUTION


class BorrowedAttention(nn.Module):
    """Multi-head self-attention, written by somebody else.

    Args:
        D: model width.
        H: number of heads; divides D.

    Attributes:
        proj_q, proj_k, proj_v, out_proj: ``nn.Linear(D, D)`` each, with a bias.
    """

    ### BEGIN SOLUTION
    def __init__(self, D: int, H: int) -> None:
        super().__init__()
        assert D % H == 0
        self.H = H
        self.d = D // H
        self.proj_q = nn.Linear(D, D)
        self.proj_k = nn.Linear(D, D)
        self.proj_v = nn.Linear(D, D)
        self.out_proj = nn.Linear(D, D)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        B, T, D = x.shape
        q = self.proj_q(x).view(B, T, self.H, self.d).transpose(1, 2)  # (B, H, T, d)
        k = self.proj_k(x).view(B, T, self.H, self.d).transpose(1, 2)
        v = self.proj_v(x).view(B, T, self.H, self.d).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d)  # (B, H, T, T)
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e9)
        heads = scores.softmax(dim=-1) @ v  # (B, H, T, d)
        return self.out_proj(heads.transpose(1, 2).reshape(B, T, D))

    ### END SOLUTION


def heads_test(attention: Callable[..., tuple[Tensor, Tensor]]) -> None:
    """Test somebody's multi-head attention: are its heads what they should be?

    Args:
        attention: called as ``attention(x, w_q, w_k, w_v, w_o, H)`` with x (B, T, D) and four
            weights (D, D) that multiply from the right, ``x @ w_q``; without biases. It returns
            output (B, T, D) and weights (B, H, T, T).

    Raises:
        AssertionError: the implementation is wrong.
    """
    ### BEGIN SOLUTION
    B, T, H, d = 2, 5, 3, 4
    D = H * d
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(B, T, D, generator=noise)
    # Deviation 1/√D keeps the scores near 1: what a saturated softmax would hide shows.
    w_q, w_k, w_v, w_o = (torch.randn(D, D, generator=noise) / math.sqrt(D) for _ in range(4))
    output, weights = attention(x, w_q, w_k, w_v, w_o, H)
    assert output.shape == (B, T, D)
    assert weights.shape == (B, H, T, T)
    expected = torch.zeros(B, T, D)
    for h in range(H):
        own = slice(h * d, (h + 1) * d)  # the head's columns of w_q, w_k, w_v, its rows of w_o
        q, k, v = x @ w_q[:, own], x @ w_k[:, own], x @ w_v[:, own]  # (B, T, d) each
        head = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(d), dim=-1)  # (B, T, T)
        assert torch.allclose(weights[:, h], head, atol=1e-5), f"weights of head {h}"
        expected = expected + head @ v @ w_o[own]
    assert torch.allclose(output, expected, atol=1e-5), "the output"
    ### END SOLUTION
