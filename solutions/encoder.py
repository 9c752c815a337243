"""What surrounds attention: normalization, feed-forward, residual connection, the encoder.

Letters: ``B`` batch, ``T`` length, ``D`` model width, ``H`` heads, ``F`` feed-forward width, ``N``
layers. A boolean mask is True where attention is allowed.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from solutions.multi_head import MultiHeadAttention

__all__ = [
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "LayerNorm",
    "RMSNorm",
    "Residual",
    "equal_width",
    "masked_mean",
    "post_norm_block",
    "pre_norm_test",
]


class LayerNorm(nn.Module):
    """Layer normalization: each position is shifted to mean 0 and scaled to variance 1.

    Args:
        D: width of the last axis.
        eps: added to the variance under the root.

    Attributes:
        weight: gain, parameter of shape (D,), ones at first.
        bias: shift, parameter of shape (D,), zeros at first.

    Source: Ba, Kiros and Hinton 2016, section 3, equation 4; eps as in every implementation.
    """

    def __init__(self, D: int, eps: float = 1e-5) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(D))
        self.bias = nn.Parameter(torch.zeros(D))
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis with its own mean and biased variance.

        Args:
            x: shape (..., D), floating point.

        Returns:
            (x - mean) / sqrt(variance + eps) · weight + bias, in the shape and dtype of ``x``.
            Half-precision input (fp16, bf16) is computed in float32.
        """
        ### BEGIN SOLUTION
        # In fp16 the square of 300 is infinity already.
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        mean = wide.mean(dim=-1, keepdim=True)  # (..., 1)
        variance = wide.var(dim=-1, correction=0, keepdim=True)  # (..., 1)
        normal = (wide - mean) * torch.rsqrt(variance + self.eps)
        return (normal * self.weight + self.bias).to(x.dtype)
        ### END SOLUTION


class RMSNorm(nn.Module):
    """Root-mean-square normalization: each position is scaled to mean square 1, and not shifted.

    Args:
        D: width of the last axis.
        eps: added to the mean square under the root.

    Attributes:
        weight: gain, parameter of shape (D,), ones at first. There is no bias.

    Source: Zhang and Sennrich 2019, section 4, equation 4.
    """

    def __init__(self, D: int, eps: float = 1e-6) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(D))
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Divide the last axis by its root mean square.

        Args:
            x: shape (..., D), floating point.

        Returns:
            x / sqrt(mean of x² + eps) · weight, in the shape and dtype of ``x``. Half-precision
            input (fp16, bf16) is computed in float32.
        """
        ### BEGIN SOLUTION
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        mean_square = wide.square().mean(dim=-1, keepdim=True)  # (..., 1)
        return (wide * torch.rsqrt(mean_square + self.eps) * self.weight).to(x.dtype)
        ### END SOLUTION


class FeedForward(nn.Module):
    """Feed-forward network: the same small network at every position, by itself.

    Args:
        D: width of input and output.
        F: width between the linear maps.
        activation: ``"relu"`` or ``"gelu"``: down(activation(up(x))), both maps with a bias;
            ``"swiglu"``: down(silu(gate(x)) · up(x)), the three maps without a bias.
        dropout: each number of width F is dropped with this probability in training.

    Attributes:
        up: ``nn.Linear(D, F)``.
        gate: ``nn.Linear(D, F)``, with ``"swiglu"`` only.
        down: ``nn.Linear(F, D)``.

    Raises:
        ValueError: an activation of another name.

    Source: Vaswani et al. 2017, section 3.3, equation 2; Hendrycks and Gimpel 2016 (GELU,
    x · Φ(x)); Shazeer 2020, equation 6 (SwiGLU).
    """

    def __init__(self, D: int, F: int, activation: str = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        if activation not in ("relu", "gelu", "swiglu"):
            raise ValueError(f"activation {activation!r}: give 'relu', 'gelu' or 'swiglu'")
        ### BEGIN SOLUTION
        self.activation = activation
        gated = activation == "swiglu"
        self.up = nn.Linear(D, F, bias=not gated)
        if gated:
            self.gate = nn.Linear(D, F, bias=False)
        self.down = nn.Linear(F, D, bias=not gated)
        self.dropout = nn.Dropout(dropout)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Transform every position by itself.

        Args:
            x: shape (..., D).

        Returns:
            Shape (..., D).
        """
        ### BEGIN SOLUTION
        hidden = self.up(x)  # (..., F)
        if self.activation == "relu":
            hidden = torch.relu(hidden)
        elif self.activation == "gelu":
            hidden = nn.functional.gelu(hidden)
        else:
            hidden = nn.functional.silu(self.gate(x)) * hidden
        return self.down(self.dropout(hidden))  # (..., D)
        ### END SOLUTION


def equal_width(D: int, F: int) -> int:
    """Width at which SwiGLU costs what a feed-forward network of width ``F`` costs.

    Args:
        D: model width.
        F: width of a network with two linear maps, each with a bias (``"relu"``, ``"gelu"``).

    Returns:
        The largest width at which a ``"swiglu"`` network (three maps, no bias) has no more
        parameters than that network.

    Source: Shazeer 2020, section 2, reduces the width to two thirds, biases left out.
    """
    ### BEGIN SOLUTION
    budget = (D * F + F) + (F * D + D)
    return budget // (3 * D)
    ### END SOLUTION


class Residual(nn.Module):
    """Residual connection around one sub-layer, with its normalization and dropout.

    Args:
        D: model width.
        dropout: each number that the sub-layer gives is dropped with this probability in training.
        norm_first: pre-norm where True, post-norm where False.

    Attributes:
        norm: ``LayerNorm(D)``.

    Source: He et al. 2015 (residual); Vaswani et al. 2017, sections 3.1 and 5.4 (post-norm and
    dropout); Xiong et al. 2020, table 1 (pre-norm).
    """

    def __init__(self, D: int, dropout: float = 0.0, norm_first: bool = True) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        self.norm = LayerNorm(D)
        self.dropout = nn.Dropout(dropout)
        self.norm_first = norm_first
        ### END SOLUTION

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Add to ``x`` what the sub-layer makes of it.

        Args:
            x: shape (B, T, D).
            sublayer: called once, with a tensor of shape (B, T, D); returns that shape.

        Returns:
            Shape (B, T, D): x + dropout(sublayer(norm(x))) where ``norm_first``, else
            norm(x + dropout(sublayer(x))).
        """
        ### BEGIN SOLUTION
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))
        ### END SOLUTION


def post_norm_block(
    x: Tensor,
    attend: Callable[[Tensor], Tensor],
    feed_forward: Callable[[Tensor], Tensor],
    gain: Tensor,
    shift: Tensor,
    *,
    eps: float = 1e-5,
) -> Tensor:
    """A post-norm layer: LayerNorm(x + attend(x)), then the same around the feed-forward network.

    Args:
        x: shape (B, T, D).
        attend, feed_forward: the two sub-layers; each takes and returns shape (B, T, D).
        gain, shift: of the two norms, shape (2, D) each; row 0 belongs to the first.
        eps: added to the biased variance under the root.

    Returns:
        Shape (B, T, D).

    Source: Vaswani et al. 2017, section 3.1.
    """
    ### BEGIN SOLUTION
    for i, sublayer in enumerate((attend, feed_forward)):
        y = x + sublayer(x)
        mean = y.mean(dim=-1, keepdim=True)
        variance = y.var(dim=-1, correction=0, keepdim=True)
        x = (y - mean) / torch.sqrt(variance + eps) * gain[i] + shift[i]
    return x
    ### END SOLUTION


def pre_norm_test(residual: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Test somebody's residual connection: is it the pre-norm that it is sold as?

    Args:
        residual: called as ``residual(x, weight)`` with x (B, T, D) and weight (D, D). It promises
            x + norm(x) @ weight, where norm is layer normalization over the last axis: biased
            variance, 1e-5 added under the root, no gain and no shift. It returns (B, T, D).

    Raises:
        AssertionError: the implementation is wrong.
    """
    ### BEGIN SOLUTION
    noise = torch.Generator().manual_seed(0)
    B, T, D = 2, 3, 4  # few features: a biased variance differs from an unbiased one
    weight = torch.randn(D, D, generator=noise, dtype=torch.float64)
    centre = torch.randn(B, T, 1, generator=noise, dtype=torch.float64)
    around = torch.randn(B, T, D, generator=noise, dtype=torch.float64)
    # The second size brings the variance down to eps: there its place shows.
    for size in (1.0, 3e-3):
        x = 3.0 * centre + size * around
        mean = x.mean(dim=-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
        expected = x + (x - mean) / torch.sqrt(variance + 1e-5) @ weight
        found = residual(x.clone(), weight.clone())
        assert found.shape == x.shape
        # float32 inside would round to about 1e-6 of a gap that is never below 1e-2
        assert torch.allclose(found.to(x.dtype), expected, atol=1e-3)
    ### END SOLUTION


class EncoderLayer(nn.Module):
    """One layer of the encoder: self-attention, then feed-forward, each inside a residual.

    Args:
        D: model width.
        H: heads.
        F: feed-forward width.
        dropout: of both residuals, and of nothing else.
        norm_first: pre-norm where True, post-norm where False.
        activation: of the feed-forward network.

    Attributes:
        self_attention: ``MultiHeadAttention(D, H)``.
        feed_forward: ``FeedForward(D, F, activation)``.
        residuals: ``nn.ModuleList`` of two ``Residual``: around attention, around feed-forward.

    Source: Vaswani et al. 2017, section 3.1 and figure 1 (left).
    """

    def __init__(
        self,
        D: int,
        H: int,
        F: int,
        *,
        dropout: float = 0.1,
        norm_first: bool = True,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        self.self_attention = MultiHeadAttention(D, H)
        self.feed_forward = FeedForward(D, F, activation)
        self.residuals = nn.ModuleList(Residual(D, dropout, norm_first) for _ in range(2))
        ### END SOLUTION

    def forward(self, x: Tensor, mask: Tensor | None = None, **attention: Any) -> Tensor:
        """Let the positions look at each other, then work on each by itself.

        Args:
            x: shape (B, T, D).
            mask: boolean, broadcastable to (B, H, T, T); True where attention is allowed.
            **attention: handed on to the attention as they are (``bias``, ``rotary``, ``cache``).

        Returns:
            Shape (B, T, D).
        """
        ### BEGIN SOLUTION
        x = self.residuals[0](x, lambda h: self.self_attention(h, mask=mask, **attention)[0])
        return self.residuals[1](x, self.feed_forward)
        ### END SOLUTION


class Encoder(nn.Module):
    """The encoder: N layers of one kind, each with its own weights, each drawn anew.

    Args:
        D: model width.
        H: heads.
        F: feed-forward width.
        N: number of layers; 6 in the paper.
        dropout, norm_first, activation: of every layer.

    Attributes:
        layers: ``nn.ModuleList`` of N ``EncoderLayer``.
        norm: the last norm, ``LayerNorm(D)`` where ``norm_first``, else ``nn.Identity()``: a
            post-norm layer ends in a norm of its own.

    Source: Vaswani et al. 2017, section 3.1; Xiong et al. 2020, table 1 (the last norm).
    """

    def __init__(
        self,
        D: int,
        H: int,
        F: int,
        N: int,
        *,
        dropout: float = 0.1,
        norm_first: bool = True,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        self.layers = nn.ModuleList(
            EncoderLayer(D, H, F, dropout=dropout, norm_first=norm_first, activation=activation)
            for _ in range(N)
        )
        self.norm = LayerNorm(D) if norm_first else nn.Identity()
        ### END SOLUTION

    def forward(self, x: Tensor, mask: Tensor | None = None, **attention: Any) -> Tensor:
        """Run the layers one after the other, then the last norm.

        Args:
            x: shape (B, T, D), embedded, with positions.
            mask: boolean, broadcastable to (B, H, T, T); True where attention is allowed. Every
                layer gets it.
            **attention: handed on to every layer (``bias``, ``rotary``).

        Returns:
            Shape (B, T, D): what the decoder, or a classifier, reads.
        """
        ### BEGIN SOLUTION
        for layer in self.layers:
            x = layer(x, mask, **attention)
        return self.norm(x)
        ### END SOLUTION


def masked_mean(x: Tensor, allowed: Tensor) -> Tensor:
    """One vector for each sequence: the mean over its real tokens.

    Args:
        x: shape (B, T, D), floating point; what stands at padding may be anything, NaN included.
        allowed: boolean, shape (B, T), True at a real token.

    Returns:
        Shape (B, D), in the dtype of ``x``. A sequence without a real token gives zeros.
    """
    ### BEGIN SOLUTION
    kept = x.masked_fill(~allowed.unsqueeze(-1), 0.0)  # (B, T, D); 0 · NaN would be NaN
    count = allowed.sum(dim=1, keepdim=True).clamp(min=1)  # (B, 1)
    return kept.sum(dim=1) / count.to(x.dtype)  # (B, D)
    ### END SOLUTION
