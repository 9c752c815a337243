"""Positions: sinusoidal, learned, rotary and linear biases (chapter ``positional_encoding``).

Letters: ``B`` batch, ``T`` positions of the queries, ``S`` of the keys, ``D`` model width, ``H``
heads, ``d`` width of a head.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = [
    "LearnedPositions",
    "Rotary",
    "SinusoidalPositions",
    "add_positions",
    "alibi_bias",
    "order_test",
    "shift_matrix",
    "sinusoidal_table",
]


def sinusoidal_table(length: int, D: int, base: float = 10000.0) -> Tensor:
    """Sines and cosines of the positions, at wavelengths from 2π to nearly 2π·base.

    Args:
        length: number of positions, counted from 0.
        D: width; where it is odd, the last cosine is left out.
        base: what the wavelengths grow to.

    Returns:
        float32, shape (length, D): column 2i holds sin(t / base^(2i/D)), column 2i + 1 the cosine
        of the same angle.

    Source: Vaswani et al. 2017, section 3.5.
    """
    ### BEGIN SOLUTION
    # Angles are computed in float64: at position 5000 a float32 angle is off by 2e-4 already.
    t = torch.arange(length, dtype=torch.float64).unsqueeze(1)  # (length, 1)
    even = torch.arange(0, D, 2, dtype=torch.float64)  # (⌈D/2⌉,)
    angles = t / base ** (even / D)  # (length, ⌈D/2⌉)
    table = torch.empty(length, D, dtype=torch.float64)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles[:, : D // 2].cos()
    return table.float()
    ### END SOLUTION


def shift_matrix(k: int, D: int, base: float = 10000.0) -> Tensor:
    """The matrix that moves every row of the sinusoidal table by ``k`` positions.

    Args:
        k: the shift, also negative.
        D: width, even.
        base: as in :func:`sinusoidal_table`.

    Returns:
        float32, shape (D, D): ``sinusoidal_table(...)[t] @ shift_matrix(k, D)`` is row t + k of the
        table, for every t.

    Source: Vaswani et al. 2017, section 3.5 (that such a linear function exists).
    """
    ### BEGIN SOLUTION
    angles = k / base ** (torch.arange(0, D, 2, dtype=torch.float64) / D)  # (D/2,)
    matrix = torch.zeros(D, D, dtype=torch.float64)
    even = torch.arange(0, D, 2)
    # sin(a + b) = sin a cos b + cos a sin b;  cos(a + b) = cos a cos b - sin a sin b
    matrix[even, even] = angles.cos()
    matrix[even + 1, even] = angles.sin()
    matrix[even, even + 1] = -angles.sin()
    matrix[even + 1, even + 1] = angles.cos()
    return matrix.float()
    ### END SOLUTION


class SinusoidalPositions(nn.Module):
    """Adds the sinusoidal table to a sequence of embeddings.

    Args:
        D: model width.
        max_length: number of positions in the table.
        dropout: on the sum, in training.

    Raises:
        ValueError: (in ``forward``) the sequence ends past the table.

    Source: Vaswani et al. 2017, sections 3.5 and 5.4 (the dropout).
    """

    table: Tensor

    def __init__(self, D: int, max_length: int, dropout: float = 0.0) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        self.dropout = nn.Dropout(dropout)
        # A buffer moves with the module and is no parameter; what can be computed is not saved.
        self.register_buffer("table", sinusoidal_table(max_length, D), persistent=False)
        ### END SOLUTION

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Add positions offset … offset + T - 1.

        Args:
            x: shape (B, T, D), any floating dtype.
            offset: position of the first row; more than 0 where earlier ones are cached.

        Returns:
            Shape (B, T, D), in the dtype of ``x``, which stays as it was.
        """
        ### BEGIN SOLUTION
        end = offset + x.size(1)
        if end > self.table.size(0):
            raise ValueError(f"position {end - 1} is past the table of {self.table.size(0)}")
        return self.dropout(x + self.table[offset:end].to(x.dtype))  # (T, D) spreads over B
        ### END SOLUTION


class LearnedPositions(nn.Module):
    """Adds a vector per position that is learned like any other weight.

    Args:
        D: model width.
        max_length: number of positions that have a vector.

    Attributes:
        weight: parameter, shape (max_length, D).

    Raises:
        ValueError: (in ``forward``) the sequence ends past the table.

    Source: Gehring et al. 2017, section 3.1; Vaswani et al. 2017, section 3.5 and table 3, row E.
    """

    def __init__(self, D: int, max_length: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(max_length, D) * 0.02)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """The sum of x, shape (B, T, D), and the vectors of positions offset … offset + T - 1."""
        ### BEGIN SOLUTION
        end = offset + x.size(1)
        if end > self.weight.size(0):
            raise ValueError(f"position {end - 1} is past the table of {self.weight.size(0)}")
        return x + self.weight[offset:end]  # (T, D) spreads over B
        ### END SOLUTION


class Rotary(nn.Module):
    """Turns each pair of components of queries and keys by an angle that grows with the position.

    Component i is paired with component i + d/2; pair i turns by t / base^(2i/d) at position t.

    Args:
        d: width of a head, even.
        base: what the wavelengths grow to.

    Source: Su et al. 2021, section 3.2.2; the pairing by halves is that of GPT-NeoX.
    """

    frequencies: Tensor

    def __init__(self, d: int, base: float = 10000.0) -> None:
        super().__init__()
        if d % 2:
            raise ValueError(f"a head of odd width {d} has a component without a partner")
        frequencies = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)  # (d/2,)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Turn positions offset … offset + T - 1.

        Args:
            x: queries or keys, shape (..., T, d), any floating dtype.
            offset: position of the first row.

        Returns:
            Same shape and dtype, in a new tensor; norms are as they were.
        """
        ### BEGIN SOLUTION
        t = torch.arange(offset, offset + x.size(-2), device=x.device, dtype=torch.float64)
        angles = t.unsqueeze(1) * self.frequencies.double()  # (T, d/2)
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x.chunk(2, dim=-1)  # (..., T, d/2) each
        turned = (first * cosine - second * sine, first * sine + second * cosine)
        return torch.cat(turned, dim=-1)  # (..., T, d)
        ### END SOLUTION


def alibi_bias(H: int, T: int, S: int | None = None) -> Tensor:
    """Bias that makes attention prefer near keys, at a slope of its own in each head.

    Args:
        H: number of heads, a power of two.
        T: number of queries; they are the last T of the S positions.
        S: number of keys; T by default.

    Returns:
        float32, shape (H, T, S): -slope · |distance| with slope 2^(-8h/H) for head h = 1 … H.

    Source: Press et al. 2022, section 3; the symmetric form for attention in both directions is
    that of the authors' published code.
    """
    ### BEGIN SOLUTION
    S = T if S is None else S
    slopes = 2.0 ** (-8.0 * torch.arange(1, H + 1) / H)  # (H,)
    queries = torch.arange(S - T, S).unsqueeze(1)  # (T, 1)
    distance = (queries - torch.arange(S)).abs()  # (T, S)
    return -slopes.view(H, 1, 1) * distance  # (H, T, S)
    ### END SOLUTION


def add_positions(x: Tensor, positions: Tensor) -> Tensor:
    """Add a table of positions to a batch of sequences.

    Args:
        x: embeddings, shape (B, T, D).
        positions: one row per position, shape (max_length, D), max_length at least T.

    Returns:
        Shape (B, T, D): row t of the table is added to x[b, t], in every sequence b; neither
        input is changed.
    """
    ### BEGIN SOLUTION
    return x + positions[: x.size(1)]  # (B, T, D) + (T, D)
    ### END SOLUTION


def order_test(model: Callable[[Tensor], Tensor]) -> None:
    """Test somebody's model: does it see the order of its input?

    A model that does not gives, for a permuted input, the same outputs in permuted order.

    Args:
        model: takes x, shape (B, T, D) float32 with T at least 3, gives the same shape.

    Raises:
        AssertionError: the model does not see the order.
    """
    ### BEGIN SOLUTION
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 6, 8, generator=noise)
    y = model(x)
    seen = False
    for p in (torch.arange(6).flip(0), torch.tensor([1, 2, 3, 4, 5, 0])):
        seen = seen or not torch.allclose(model(x[:, p]), y[:, p], atol=1e-4)
    assert seen, "a permuted input gives the permuted output"
    ### END SOLUTION
