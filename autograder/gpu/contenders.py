"""The forms of attention that are measured against one another."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from autograder.gpu.sizes import Blocks

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
NAMES = ("ours", "plain", *BACKENDS)


class TritonAttention(torch.autograd.Function):
    """The reference's kernels, joined for autograd, with blocks of one's choice."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        forward_blocks: Blocks,
        backward_blocks: Blocks,
    ) -> Tensor:
        """Output, shape (..., T, d), of q (..., T, d), k and v (..., S, d)."""
        from solutions.flash_attention import triton_flash_forward  # noqa: PLC0415 — needs Triton

        output, logsumexp = triton_flash_forward(q, k, v, causal=causal, **forward_blocks)
        ctx.save_for_backward(q, k, v, output, logsumexp)
        ctx.causal, ctx.blocks = causal, backward_blocks
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients by q, k and v, and None for what is no tensor."""
        from solutions.flash_attention import triton_flash_backward  # noqa: PLC0415 — needs Triton

        q, k, v, output, logsumexp = ctx.saved_tensors
        dq, dk, dv = triton_flash_backward(
            q, k, v, output, logsumexp, grad_output, causal=ctx.causal, **ctx.blocks
        )
        return dq, dk, dv, None, None, None


def plain(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """Attention in three steps, in the inputs' type: what one writes without a kernel.

    With ``causal`` the last query sees the last key. A query that sees none gets zeros.
    """
    T, S = q.shape[-2], k.shape[-2]
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)  # (..., T, S)
    if causal:
        hidden = torch.ones(T, S, dtype=torch.bool, device=q.device).triu(S - T + 1)
        scores = scores.masked_fill(hidden, -math.inf)
    weights = torch.softmax(scores, dim=-1)
    if T > S and causal:
        weights = weights.nan_to_num(0.0)
    return weights @ v


def contender(
    name: str, *, causal: bool, forward_blocks: Blocks, backward_blocks: Blocks
) -> Attention:
    """The form of that name, as a function of q, k and v (B, H, T, d).

    Raises:
        KeyError: there is no such form.
    """
    if name == "ours":
        return lambda q, k, v: TritonAttention.apply(
            q, k, v, causal, forward_blocks, backward_blocks
        )
    if name == "plain":
        return lambda q, k, v: plain(q, k, v, causal=causal)
    backend = BACKENDS[name]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return attend
