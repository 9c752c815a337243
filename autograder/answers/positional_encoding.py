"""Answer bank of chapter ``positional_encoding``: mistakes, and right answers in other styles."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from autograder.bank import right, right_edit, wrong, wrong_edit
from autograder.i18n import _
from solutions.positional_encoding import sinusoidal_table

# -------------------------------------------------------------------------- sinusoidal_table

TABLE = "sinusoidal_table"
FORMULA = "sinusoidal-formula"

wrong_edit(
    TABLE,
    "sine_and_cosine_exchanged",
    {"angles.sin()": "angles.cos()", "angles[:, : D // 2].cos()": "angles[:, : D // 2].sin()"},
    why=_(
        "Cosines stand in the even columns and sines in the odd ones: it is the other way round."
    ),
    see=FORMULA,
)
wrong_edit(
    TABLE,
    "base_of_one_thousand",
    {"t / base **": "t / 1000.0 **"},
    why=_(
        "The base is fixed at 1000, so the wavelengths grow too slowly and the argument is unused."
    ),
    see="sinusoidal-base",
)
wrong_edit(
    TABLE,
    "width_rounded_up",
    {"/ D)": "/ (D + D % 2))"},
    why=_("Where the width is odd, it is rounded up in the exponent; the formula divides by D."),
    see="sinusoidal-odd",
    rung=3,
)
wrong_edit(
    TABLE,
    "base_fixed_at_ten_thousand",
    {"t / base **": "t / 10000.0 **"},
    why=_("10000 is written into the formula: the argument base is not heeded."),
    see="sinusoidal-base",
)
wrong_edit(
    TABLE,
    "exponent_without_the_two",
    {"(even / D)": "(even / (2 * D))"},
    why=_("The exponent is i/D where 2i/D belongs: wavelengths only reach the root of the base."),
    see=FORMULA,
    rung=2,
)
wrong_edit(
    TABLE,
    "exponent_doubled",
    {"(even / D)": "(2 * even / D)"},
    why=_("The even numbers are 2i already; doubling them again makes the exponent 4i/D."),
    see=FORMULA,
    rung=2,
)
wrong_edit(
    TABLE,
    "one_frequency_for_all",
    {"base ** (even / D)": "base ** (0 * even / D)"},
    why=_(
        "Every pair turns at the same frequency, so positions 2π apart look alike in all columns."
    ),
    see=FORMULA,
)
wrong_edit(
    TABLE,
    "positions_from_one",
    {"torch.arange(length,": "torch.arange(1, length + 1,"},
    why=_("Positions are counted from 1: row 0 belongs to position 1."),
    see=FORMULA,
    rung=1,
)
wrong_edit(
    TABLE,
    "frequencies_grow",
    {"t / base **": "t * base **"},
    why=_("The position is multiplied by the power of the base where it should be divided."),
    see=FORMULA,
)
wrong_edit(
    TABLE,
    "halves_instead_of_pairs",
    {
        "table[:, 0::2] = angles.sin()": "table[:, : (D + 1) // 2] = angles.sin()",
        "table[:, 1::2] = angles": "table[:, (D + 1) // 2 :] = angles",
    },
    why=_(
        "All sines stand in the first half and all cosines in the second. Many programs do that "
        "(a model learns either way), but the formula lets them take turns."
    ),
    see=FORMULA,
    rung=3,
)
wrong_edit(
    TABLE,
    "odd_width_fails",
    {"angles[:, : D // 2].cos()": "angles.cos()"},
    why=_("For an odd width there is one column of cosines fewer than there are angles."),
    see="sinusoidal-odd",
    rung=2,
)
wrong_edit(
    TABLE,
    "each_column_its_own_angle",
    {
        "torch.arange(0, D, 2, dtype=torch.float64)": "torch.arange(0, D, dtype=torch.float64)",
        "angles.sin()": "angles[:, 0::2].sin()",
        "angles[:, : D // 2].cos()": "angles[:, 1::2].cos()",
    },
    why=_("Sine and cosine of a pair have different angles: the odd column uses 2i + 1, not 2i."),
    see=FORMULA,
    rung=1,
)


@wrong(
    TABLE,
    why=_("The table is random: it tells positions apart, but follows no formula."),
    see=FORMULA,
)
def random_rows(length: int, D: int, base: float = 10000.0) -> Tensor:
    return torch.randn(length, D, generator=torch.Generator().manual_seed(0))


@wrong(TABLE, why=_("The table is all zeros."), see=FORMULA)
def zeros(length: int, D: int, base: float = 10000.0) -> Tensor:
    return torch.zeros(length, D)


@right(TABLE, style="frequencies as the exponential of a logarithm, in float32")
def exponential_of_a_logarithm(length: int, D: int, base: float = 10000.0) -> Tensor:
    position = torch.arange(length).unsqueeze(1)
    frequency = torch.exp(torch.arange(0, D, 2) * (-torch.tensor(base).log() / D))
    table = torch.zeros(length, D)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency)[:, : D // 2]
    return table


@right(TABLE, style="two loops")
def two_loops(length: int, D: int, base: float = 10000.0) -> Tensor:
    table = torch.zeros(length, D)
    t = torch.arange(length, dtype=torch.float64)
    for i in range(0, D, 2):
        angle = t / base ** (i / D)
        table[:, i] = torch.sin(angle)
        if i + 1 < D:
            table[:, i + 1] = torch.cos(angle)
    return table


@right(TABLE, style="stack sine and cosine, flatten, cut")
def stacked(length: int, D: int, base: float = 10000.0) -> Tensor:
    angles = torch.outer(
        torch.arange(length).double(), base ** (-torch.arange(0, D, 2).double() / D)
    )
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :D].float()


@right(TABLE, style="the cosine as a sine a quarter turn ahead")
def quarter_turn(length: int, D: int, base: float = 10000.0) -> Tensor:
    column = torch.arange(D, dtype=torch.float64)
    angles = torch.arange(length, dtype=torch.float64)[:, None] / base ** (
        (column - column % 2) / D
    )
    return torch.sin(angles + (column % 2) * torch.pi / 2).float()


# ------------------------------------------------------------------------------ shift_matrix

SHIFT = "shift_matrix"
ROTATION = "sinusoidal-shift"

wrong_edit(
    SHIFT,
    "turns_the_other_way",
    {"k / base **": "-k / base **"},
    why=_("The matrix turns backwards: it moves rows by -k."),
    see=ROTATION,
    rung=2,
)
wrong_edit(
    SHIFT,
    "sign_missing",
    {"= -angles.sin()": "= angles.sin()"},
    why=_("Both sines have the same sign: cos(a + b) is cos a cos b minus sin a sin b."),
    see=ROTATION,
    rung=1,
)
wrong_edit(
    SHIFT,
    "one_angle_for_all_pairs",
    {
        "k / base ** (torch.arange(0, D, 2, dtype=torch.float64) / D)": "k * torch.ones(D // 2).double()"
    },
    why=_("Every pair turns by k radians; each has its own frequency."),
    see=ROTATION,
)
wrong_edit(
    SHIFT,
    "exponent_counts_pairs",
    {
        "torch.arange(0, D, 2, dtype=torch.float64) / D": "torch.arange(D // 2, dtype=torch.float64) / D"
    },
    why=_("The exponent is i/D where the table has 2i/D."),
    see=ROTATION,
    rung=3,
)
wrong_edit(
    SHIFT,
    "base_not_heeded",
    {"k / base **": "k / 10000.0 **"},
    why=_("10000 is written into the formula: the argument base is not heeded."),
    see="sinusoidal-base",
)
wrong_edit(
    SHIFT,
    "sizes_instead_of_signs",
    {"k / base **": "abs(k) / base **"},
    why=_("The sign of k is lost: a shift backwards moves forwards."),
    see=ROTATION,
    rung=3,
)
wrong_edit(
    SHIFT,
    "matrix_in_float64",
    {"return matrix.float()": "return matrix"},
    why=_("The matrix is float64; a float32 table cannot be multiplied with it."),
    see=ROTATION,
    rung=3,
)
wrong_edit(
    SHIFT,
    "halves_paired",
    {
        "    even = torch.arange(0, D, 2)\n": "    even, half = torch.arange(D // 2), D // 2\n",
        "matrix[even + 1, even] =": "matrix[even + half, even] =",
        "matrix[even, even + 1] =": "matrix[even, even + half] =",
        "matrix[even + 1, even + 1] =": "matrix[even + half, even + half] =",
    },
    why=_("Column i is paired with column i + D/2; the table pairs neighbours."),
    see=ROTATION,
    rung=3,
)
wrong_edit(
    SHIFT,
    "cosines_alone",
    {"    matrix[even + 1, even] = angles.sin()\n    matrix[even, even + 1] = -angles.sin()\n": ""},
    why=_("Only the diagonal is filled: rows get shorter instead of turning."),
    see=ROTATION,
)


@wrong(SHIFT, why=_("The identity moves nothing."), see=ROTATION)
def identity(k: int, D: int, base: float = 10000.0) -> Tensor:
    return torch.eye(D)


@wrong(
    SHIFT,
    why=_("The identity with its columns rolled by k moves columns, not positions."),
    see=ROTATION,
)
def columns_rolled(k: int, D: int, base: float = 10000.0) -> Tensor:
    return torch.eye(D).roll(k, dims=1)


@right(SHIFT, style="blocks on the diagonal")
def block_diagonal(k: int, D: int, base: float = 10000.0) -> Tensor:
    blocks = []
    for i in range(0, D, 2):
        b = torch.tensor(k / base ** (i / D))
        blocks.append(torch.stack((b.cos(), -b.sin(), b.sin(), b.cos())).view(2, 2))
    return torch.block_diag(*blocks)


@right(SHIFT, style="solved from the table by least squares")
def least_squares(k: int, D: int, base: float = 10000.0) -> Tensor:
    t = torch.arange(-2 * D, 2 * D + 1, dtype=torch.float64)[:, None]
    column = torch.arange(D, dtype=torch.float64)

    def rows(t: Tensor) -> Tensor:
        return torch.sin(t / base ** ((column - column % 2) / D) + column % 2 * torch.pi / 2)

    result = torch.zeros(D, D, dtype=torch.float64)
    before, after = rows(t), rows(t + k)
    for i in range(0, D, 2):
        result[i : i + 2, i : i + 2] = torch.linalg.lstsq(
            before[:, i : i + 2], after[:, i : i + 2]
        ).solution
    return result.float()


@right(SHIFT, style="matrix exponential of the generator")
def matrix_exponential(k: int, D: int, base: float = 10000.0) -> Tensor:
    generator = torch.zeros(D, D, dtype=torch.float64)
    for i in range(0, D, 2):
        generator[i + 1, i] = base ** (-i / D)
        generator[i, i + 1] = -(base ** (-i / D))
    return torch.linalg.matrix_exp(k * generator).float()


# ----------------------------------------------------------------------- SinusoidalPositions

LAYER = "SinusoidalPositions"
ADDED = "positions-added"

wrong_edit(
    LAYER,
    "parameter_for_buffer",
    {
        'self.register_buffer("table", sinusoidal_table(max_length, D), persistent=False)': "self.table = nn.Parameter(sinusoidal_table(max_length, D))"
    },
    why=_("The table is a parameter, so training would change it; it is a constant."),
    see=ADDED,
    rung=2,
)
wrong_edit(
    LAYER,
    "plain_attribute",
    {
        'self.register_buffer("table", sinusoidal_table(max_length, D), persistent=False)': "self.table = sinusoidal_table(max_length, D)"
    },
    why=_("The table is a plain attribute: it stays where it is when the module is moved."),
    see=ADDED,
    rung=3,
)
wrong_edit(
    LAYER,
    "added_in_place",
    {
        "return self.dropout(x + self": "return self.dropout(x.add_(self",
        ".to(x.dtype))": ".to(x.dtype)))",
    },
    why=_("The sum is right, and it was written into x, which others may still need."),
    see=ADDED,
    rung=1,
)
wrong_edit(
    LAYER,
    "offset_not_heeded",
    {"self.table[offset:end]": "self.table[: x.size(1)]"},
    why=_("The offset is not heeded: a sequence that goes on from a cache starts at 0 again."),
    see=ADDED,
    rung=3,
)
wrong_edit(
    LAYER,
    "rows_by_batch",
    {
        "self.table[offset:end].to(x.dtype)": "self.table[offset:end].to(x.dtype)[: x.size(0)].unsqueeze(1)"
    },
    why=_("The table lines up with the batch: every sequence gets one row for all its positions."),
    see=ADDED,
    rung=2,
)
wrong_edit(
    LAYER,
    "input_scaled_by_root_width",
    {"x + self.table": "x * x.size(-1) ** 0.5 + self.table"},
    why=_("x is multiplied by √D here; in the paper that belongs to the embedding, not to this."),
    see=ADDED,
)
wrong_edit(
    LAYER,
    "table_alone",
    {"x + self.table[offset:end].to(x.dtype)": "0 * x + self.table[offset:end].to(x.dtype)"},
    why=_("The table comes out and x is lost."),
    see=ADDED,
)
wrong_edit(
    LAYER,
    "dtype_of_the_table",
    {"self.table[offset:end].to(x.dtype)": "self.table[offset:end]"},
    why=_("The table is float32 and draws half-precision input up to float32."),
    see=ADDED,
    rung=3,
)
wrong_edit(
    LAYER,
    "no_error_past_the_table",
    {"if end > self.table.size(0):": "if end > 10**9:"},
    why=_(
        "Past the table, a slice has fewer rows than the sequence: with one row left it spreads over "
        "all positions without a word, else the sum fails with a text about shapes."
    ),
    see=ADDED,
    rung=3,
)
wrong_edit(
    LAYER,
    "dropout_forgotten",
    {
        "return self.dropout(x + self.table[offset:end].to(x.dtype))": "return x + self.table[offset:end].to(x.dtype)"
    },
    why=_("Dropout is built and never used."),
    see=ADDED,
    rung=3,
)
wrong_edit(
    LAYER,
    "dropout_before_the_sum",
    {
        "self.dropout(x + self.table[offset:end].to(x.dtype))": "self.dropout(x) + self.table[offset:end].to(x.dtype)"
    },
    why=_("Dropout works on x alone; the paper applies it to the sum."),
    see=ADDED,
    rung=3,
)
wrong_edit(
    LAYER,
    "wraps_around",
    {
        "        if end > self.table.size(0):\n": "        if end < 0:\n",
        "self.table[offset:end].to(x.dtype)": "self.table[torch.arange(offset, end) % self.table.size(0)].to(x.dtype)",
    },
    why=_("Past the table, positions start again from 0 without a word: two positions look alike."),
    see=ADDED,
    rung=3,
)
wrong_edit(
    LAYER,
    "one_row_too_few",
    {"if end > self.table.size(0):": "if end >= self.table.size(0):"},
    why=_("A sequence exactly as long as the table is turned away: end may equal its length."),
    see=ADDED,
    rung=3,
)


@wrong(LAYER, why=_("The input comes back as it was: no position is added."), see=ADDED)
class input_returned(nn.Module):
    def __init__(self, D: int, max_length: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        return self.dropout(x)


right_edit(
    LAYER,
    "batch_axis_in_the_buffer",
    {
        "sinusoidal_table(max_length, D), persistent=False": "sinusoidal_table(max_length, D).unsqueeze(0)",
        "self.table.size(0):": "self.table.size(1):",
        "self.table.size(0)}": "self.table.size(1)}",
        "self.table[offset:end]": "self.table[:, offset:end]",
    },
    style="a persistent buffer of shape (1, max_length, D)",
)
right_edit(
    LAYER,
    "narrow_and_type_as",
    {"self.table[offset:end].to(x.dtype)": "self.table.narrow(0, offset, x.size(1)).type_as(x)"},
    style="narrow and type_as",
)


@right(LAYER, style="the table computed when it is needed")
class computed_on_the_way(nn.Module):
    def __init__(self, D: int, max_length: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.max_length, self.p = max_length, dropout

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        if offset + x.shape[1] > self.max_length:
            raise ValueError("too long")
        rows = sinusoidal_table(offset + x.shape[1], x.shape[2])[offset:]
        return nn.functional.dropout(x + rows.to(x), self.p, self.training)


# --------------------------------------------------------------------------- LearnedPositions

LEARNED = "LearnedPositions"
LEARN = "positions-learned"

wrong_edit(
    LEARNED,
    "written_into_the_input",
    {"return x + self.weight[offset:end]": "return x.add_(self.weight[offset:end])"},
    why=_("The sum is right, and it was written into x, which others may still need."),
    see=LEARN,
)
wrong_edit(
    LEARNED,
    "offset_ignored",
    {"self.weight[offset:end]": "self.weight[: x.size(1)]"},
    why=_("The offset is not heeded: a sequence that goes on from a cache starts at 0 again."),
    see=LEARN,
)
wrong_edit(
    LEARNED,
    "rows_per_sequence",
    {"self.weight[offset:end]": "self.weight[offset : offset + x.size(0)].unsqueeze(1)"},
    why=_("The rows line up with the batch: sequence b gets row b at every position."),
    see=LEARN,
    rung=2,
)
wrong_edit(
    LEARNED,
    "weight_detached",
    {"self.weight[offset:end]": "self.weight.detach()[offset:end]"},
    why=_("The weight was detached: it would never be trained."),
    see=LEARN,
)
wrong_edit(
    LEARNED,
    "no_error_past_the_weight",
    {"if end > self.weight.size(0):": "if end > 10**9:"},
    why=_("Past the weight, a slice has fewer rows than the sequence; nobody says so."),
    see=LEARN,
    rung=3,
)
wrong_edit(
    LEARNED,
    "clamped_to_the_last_row",
    {
        "        if end > self.weight.size(0):\n": "        if end < 0:\n",
        "self.weight[offset:end]": "self.weight[torch.arange(offset, end).clamp(max=self.weight.size(0) - 1)]",
    },
    why=_("Positions past the weight all get the last row, without a word."),
    see=LEARN,
    rung=3,
)
wrong_edit(
    LEARNED,
    "one_position_for_all",
    {"self.weight[offset:end]": "self.weight[offset]"},
    why=_("One row is added at every position: nothing tells positions apart."),
    see=LEARN,
)
wrong_edit(
    LEARNED,
    "rows_reversed",
    {"self.weight[offset:end]": "self.weight[offset:end].flip(0)"},
    why=_("The rows come in reverse: the last position gets the first row."),
    see=LEARN,
)
wrong_edit(
    LEARNED,
    "weight_for_the_input",
    {"return x + self.weight[offset:end]": "return 0 * x + self.weight[offset:end]"},
    why=_("The rows come out and x is lost."),
    see=LEARN,
)
wrong_edit(
    LEARNED,
    "multiplied_for_added",
    {"return x + self.weight": "return x * self.weight"},
    why=_("The rows are multiplied in where they should be added."),
    see=LEARN,
)

right_edit(
    LEARNED,
    "embedding_lookup",
    {"self.weight[offset:end]": "nn.functional.embedding(torch.arange(offset, end), self.weight)"},
    style="an embedding look-up",
)
right_edit(
    LEARNED,
    "index_select",
    {
        "self.weight[offset:end]": "self.weight.index_select(0, torch.arange(offset, end)).expand_as(x)"
    },
    style="index_select and expand",
)


@right(LEARNED, style="nn.Parameter with a batch axis would have another shape; a loop has not")
class one_position_after_another(nn.Module):
    def __init__(self, D: int, max_length: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(max_length, D))

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        if offset + x.shape[1] > len(self.weight):
            raise ValueError("no vector for that position")
        return torch.stack([x[:, t] + self.weight[offset + t] for t in range(x.shape[1])], dim=1)


# -------------------------------------------------------------------------------------- Rotary

ROTARY = "Rotary"
TURN = "rotary"

wrong_edit(
    ROTARY,
    "neighbours_paired",
    {
        "first, second = x.chunk(2, dim=-1)": "first, second = x[..., 0::2], x[..., 1::2]",
        "return torch.cat(turned, dim=-1)": "return torch.stack(turned, dim=-1).flatten(-2)",
    },
    why=_(
        "Neighbours are paired (0 with 1, 2 with 3), as in the paper. The stub pairs component i "
        "with i + d/2; weights trained with one pairing do not work with the other."
    ),
    see=TURN,
    rung=2,
)
wrong_edit(
    ROTARY,
    "pairings_mixed",
    {"first, second = x.chunk(2, dim=-1)": "first, second = x[..., 0::2], x[..., 1::2]"},
    why=_("Neighbours are taken apart as pairs and put back as halves: two conventions are mixed."),
    see=TURN,
    rung=2,
)
wrong_edit(
    ROTARY,
    "turned_backwards",
    {
        "first * cosine - second * sine": "first * cosine + second * sine",
        "first * sine + second * cosine": "second * cosine - first * sine",
    },
    why=_(
        "The vectors turn the other way. Scores still depend on the distance alone, so such a "
        "model can be trained; but weights trained with the one sense are wrong for the other."
    ),
    see=TURN,
    rung=1,
)
wrong_edit(
    ROTARY,
    "sign_lost",
    {"first * cosine - second * sine": "first * cosine + second * sine"},
    why=_("Both new components have a plus: that is no rotation, lengths change."),
    see=TURN,
)
wrong_edit(
    ROTARY,
    "offset_forgotten",
    {"torch.arange(offset, offset + x.size(-2),": "torch.arange(x.size(-2),"},
    why=_("The offset is not heeded: after a cache, positions start at 0 again."),
    see=TURN,
    rung=3,
)
wrong_edit(
    ROTARY,
    "positions_along_the_heads",
    {
        "x.size(-2)": "x.size(-3 if x.dim() > 2 else -2)",
        "t.unsqueeze(1) * self.frequencies.double()": "t.view(-1, *[1] * (x.dim() > 2), 1) * self.frequencies.double()",
    },
    why=_("Heads are counted as positions: the angle grows along the wrong axis."),
    see=TURN,
    rung=3,
)
wrong_edit(
    ROTARY,
    "one_angle_for_every_pair",
    {
        "t.unsqueeze(1) * self.frequencies.double()": "t.unsqueeze(1) * torch.ones(x.size(-1) // 2).double()"
    },
    why=_("All pairs turn at one speed; each has its own frequency."),
    see=TURN,
)
wrong_edit(
    ROTARY,
    "frequencies_inverted",
    {"t.unsqueeze(1) * self.frequencies.double()": "t.unsqueeze(1) / self.frequencies.double()"},
    why=_("The position is divided by the frequency: slow pairs turn fast and fast ones slowly."),
    see=TURN,
    rung=3,
)
wrong_edit(
    ROTARY,
    "added_for_turned",
    {"return torch.cat(turned, dim=-1)": "return x + torch.cat((sine, cosine), dim=-1)"},
    why=_("Sines and cosines are added, as with the sinusoidal table; rotary positions multiply."),
    see=TURN,
)
wrong_edit(
    ROTARY,
    "angles_in_half_precision",
    {
        "device=x.device, dtype=torch.float64": "device=x.device, dtype=x.dtype",
        "self.frequencies.double()": "self.frequencies.to(x.dtype)",
    },
    why=_(
        "Angles are computed in the dtype of x: in half precision a far position is not even a "
        "number of the type, and its angle has no digit that is right."
    ),
    see=TURN,
    rung=3,
)
wrong_edit(
    ROTARY,
    "turned_in_place",
    {"return torch.cat(turned, dim=-1)": "return x.copy_(torch.cat(turned, dim=-1))"},
    why=_("The turned vectors are right, and they were written into x."),
    see=TURN,
)
wrong_edit(
    ROTARY,
    "sines_in_float32",
    {
        "angles.cos().to(x.dtype), angles.sin().to(x.dtype)": "angles.cos().float(), angles.sin().float()"
    },
    why=_("Sine and cosine keep a wider type and draw half-precision queries up to it."),
    see=TURN,
    rung=3,
)


@wrong(ROTARY, why=_("The vectors come back as they were."), see=TURN)
class nothing_turned(nn.Module):
    def __init__(self, d: int, base: float = 10000.0) -> None:
        super().__init__()

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        return x.clone()


right_edit(
    ROTARY,
    "rotate_half",
    {
        "        first, second = x.chunk(2, dim=-1)": "        h = x.size(-1) // 2",
        "        turned = (first * cosine - second * sine, first * sine + second * cosine)\n": "        half = torch.cat((-x[..., h:], x[..., :h]), dim=-1)\n",
        "return torch.cat(turned, dim=-1)": "return x * torch.cat((cosine, cosine), -1) + half * torch.cat((sine, sine), -1)",
    },
    style="x cos + rotate_half(x) sin",
)
right_edit(
    ROTARY,
    "complex_numbers",
    {
        "        turned = (first * cosine - second * sine, first * sine + second * cosine)\n": "        unit = torch.polar(torch.ones_like(angles), angles)\n"
        "        turned = torch.complex(first.double(), second.double()) * unit\n",
        "return torch.cat(turned, dim=-1)": "return torch.cat((turned.real, turned.imag), dim=-1).to(x.dtype)",
    },
    style="multiplication of complex numbers, in float64",
)
right_edit(
    ROTARY,
    "angles_in_float32",
    {
        "device=x.device, dtype=torch.float64": "device=x.device, dtype=torch.float32",
        "self.frequencies.double()": "self.frequencies.float()",
    },
    style="angles in float32",
)

# ---------------------------------------------------------------------------------- alibi_bias

ALIBI = "alibi_bias"
BIAS = "alibi"

wrong_edit(
    ALIBI,
    "bias_in_float64",
    {"return -slopes": "return -slopes.double()"},
    why=_("The bias is float64, and would draw every score it is added to up to float64."),
    see=BIAS,
    rung=3,
)
wrong_edit(
    ALIBI,
    "positive_bias",
    {"return -slopes": "return slopes"},
    why=_("The bias is positive: the farther a key, the more it is preferred."),
    see=BIAS,
)
wrong_edit(
    ALIBI,
    "queries_from_zero",
    {"torch.arange(S - T, S)": "torch.arange(T)"},
    why=_("Queries are counted from 0; after a cache they are the last T of S positions."),
    see=BIAS,
    rung=2,
)
wrong_edit(
    ALIBI,
    "slopes_from_zero",
    {"torch.arange(1, H + 1)": "torch.arange(H)"},
    why=_("The first head has slope 1: exponents begin at 8/H, not at 0."),
    see=BIAS,
    rung=3,
)
wrong_edit(
    ALIBI,
    "one_slope_for_all",
    {"2.0 ** (-8.0 * torch.arange(1, H + 1) / H)": "torch.full((H,), 0.5)"},
    why=_("All heads have one slope; each should look a different distance."),
    see=BIAS,
)
wrong_edit(
    ALIBI,
    "signed_distance",
    {".abs()": ""},
    why=_("The distance keeps its sign: keys that come later get a positive bias."),
    see=BIAS,
)
wrong_edit(
    ALIBI,
    "squared_distance",
    {".abs()": ".square()"},
    why=_("The distance is squared; the bias is linear in it."),
    see=BIAS,
)
wrong_edit(
    ALIBI,
    "linear_slopes",
    {"2.0 ** (-8.0 * torch.arange(1, H + 1) / H)": "torch.arange(1, H + 1) / H"},
    why=_("Slopes grow linearly from 1/H to 1; they are powers of 2 that shrink."),
    see=BIAS,
    rung=3,
)
wrong_edit(
    ALIBI,
    "slopes_for_eight_heads",
    {"-8.0 * torch.arange(1, H + 1) / H": "-1.0 * torch.arange(1, H + 1)"},
    why=_("Slopes are 1/2, 1/4, 1/8, …: right for eight heads, where 8/H is 1, and for no others."),
    see=BIAS,
    rung=3,
)
wrong_edit(
    ALIBI,
    "zeros_of_the_right_shape",
    {"return -slopes": "return 0 * slopes"},
    why=_("The bias is zero everywhere: it prefers nothing."),
    see=BIAS,
)

right_edit(
    ALIBI,
    "outer_product",
    {
        "return -slopes.view(H, 1, 1) * distance": "return -torch.einsum('h,ts->hts', slopes, distance.float())"
    },
    style="an outer product",
)
right_edit(
    ALIBI,
    "powers_of_one_ratio",
    {
        "2.0 ** (-8.0 * torch.arange(1, H + 1) / H)": "torch.tensor([(2 ** (-8 / H)) ** (h + 1) for h in range(H)])"
    },
    style="powers of the first slope",
)


@right(ALIBI, style="three loops")
def three_loops(H: int, T: int, S: int | None = None) -> Tensor:
    if S is None:
        S = T
    bias = torch.zeros(H, T, S)
    for h in range(H):
        for t in range(T):
            for s in range(S):
                bias[h, t, s] = -abs(t + S - T - s) / 2 ** (8 * (h + 1) / H)
    return bias


# ----------------------------------------------------------------------------- add_positions

ADD = "add_positions"


@wrong(
    ADD,
    why=_(
        "The rows are made (T, 1, D), which lines up with the batch: sequence b gets row b at every "
        "position. Where B differs from T it fails; where they are equal nobody notices. And += "
        "writes into x."
    ),
    see=ADDED,
    rung=2,
    given=True,
)
def time_taken_for_batch(x: Tensor, positions: Tensor) -> Tensor:
    """Add a table of positions to a batch of sequences.

    Args:
        x: embeddings, shape (B, T, D).
        positions: one row per position, shape (max_length, D), max_length at least T.

    Returns:
        Shape (B, T, D): row t of the table is added to x[b, t], in every sequence b; neither
        input is changed.
    """
    rows = positions.unsqueeze(1)  # (max_length, 1, D)
    x += rows[: x.size(1)]
    return x


@wrong(
    ADD,
    why=_("Nothing is overwritten now, but the rows still line up with the batch."),
    see=ADDED,
    rung=2,
)
def still_by_batch(x: Tensor, positions: Tensor) -> Tensor:
    return x + positions[: x.size(1)].unsqueeze(1)


@wrong(ADD, why=_("The rows are right now, but += still writes into x."), see=ADDED, rung=3)
def still_in_place(x: Tensor, positions: Tensor) -> Tensor:
    x += positions[: x.size(1)]
    return x


@wrong(
    ADD,
    why=_(
        "As many rows are taken as there are sequences, not positions, so that each "
        "sequence gets one row."
    ),
    see=ADDED,
    rung=1,
)
def rows_counted_by_batch(x: Tensor, positions: Tensor) -> Tensor:
    return x + positions[: x.size(0)].unsqueeze(1)


@wrong(
    ADD,
    why=_("The whole table is added: that works only where it is exactly as long as the sequence."),
    see=ADDED,
    rung=1,
)
def whole_table(x: Tensor, positions: Tensor) -> Tensor:
    return x + positions


@wrong(
    ADD,
    why=_("As many rows are taken as there are sequences: right only where B equals T."),
    see=ADDED,
)
def cut_at_the_batch(x: Tensor, positions: Tensor) -> Tensor:
    return x + positions[: x.size(0)]


@wrong(ADD, why=_("The last T rows are taken where the first belong."), see=ADDED)
def last_rows(x: Tensor, positions: Tensor) -> Tensor:
    return x + positions[-x.size(1) :]


@wrong(ADD, why=_("One row, the first, is added at every position."), see=ADDED)
def first_row_for_all(x: Tensor, positions: Tensor) -> Tensor:
    return x + positions[0]


@wrong(ADD, why=_("The input comes back as it was."), see=ADDED)
def x_returned(x: Tensor, positions: Tensor) -> Tensor:
    return x.clone()


@wrong(
    ADD, why=_("The rows are concatenated: the result is twice as wide."), see="positions-concat"
)
def concatenated(x: Tensor, positions: Tensor) -> Tensor:
    return torch.cat((x, positions[: x.size(1)].expand_as(x)), dim=-1)


@right(ADD, style="a batch axis in front")
def batch_axis(x: Tensor, positions: Tensor) -> Tensor:
    return x + positions.unsqueeze(0)[:, : x.shape[1]]


@right(ADD, style="a loop over the sequences")
def sequence_by_sequence(x: Tensor, positions: Tensor) -> Tensor:
    return torch.stack([one + positions[: len(one)] for one in x])


@right(ADD, style="a copy, then in place")
def copy_then_in_place(x: Tensor, positions: Tensor) -> Tensor:
    y = x.clone()
    y += positions[None, : x.shape[1], :]
    return y


# -------------------------------------------------------------------------------- order_test

TEST = "order_test"
EQUIVARIANT = "positions-equivariance"


@wrong(
    TEST,
    why=_("Every model passes: nothing is asserted, or nothing that has to do with the order."),
    see=EQUIVARIANT,
)
def asserts_nothing(model: Callable[[Tensor], Tensor]) -> None:
    model(torch.randn(2, 5, 8))


@wrong(
    TEST,
    why=_(
        "Models that see the order are turned away: the test asks that the order be invisible, or "
        "for something that holds for no model of the kind, such as that sequences of a batch mix."
    ),
    see=EQUIVARIANT,
)
def rejects_all(model: Callable[[Tensor], Tensor]) -> None:
    assert model is None


@wrong(
    TEST,
    why=_(
        "The output of a permuted input is compared with rows in another order than its own (the "
        "output as it was, or permuted the other way), so every model seems to see the order."
    ),
    see=EQUIVARIANT,
    rung=2,
)
def output_not_permuted(model: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2, 6, 8)
    p = torch.arange(6).flip(0)
    assert not torch.allclose(model(x[:, p]), model(x), atol=1e-4)


@wrong(
    TEST,
    why=_("The test is the wrong way round: it asks that the order be invisible."),
    see=EQUIVARIANT,
    rung=1,
)
def wrong_way_round(model: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2, 6, 8)
    p = torch.arange(6).flip(0)
    assert torch.allclose(model(x[:, p]), model(x)[:, p], atol=1e-4)


@wrong(
    TEST,
    why=_("The batch is permuted, not time. No model mixes the sequences of a batch."),
    see=EQUIVARIANT,
    rung=3,
    form_of="rejects_all",
)
def batch_permuted(model: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(6, 6, 8)
    p = torch.arange(6).flip(0)
    assert not torch.allclose(model(x[p]), model(x)[p], atol=1e-4)


@wrong(
    TEST,
    why=_(
        "Exact equality takes rounding for order: sums in another order differ in their last digit."
    ),
    see=EQUIVARIANT,
    rung=2,
)
def exact_comparison(model: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2, 6, 8)
    p = torch.tensor([3, 0, 5, 1, 4, 2])
    assert not torch.equal(model(x[:, p]), model(x)[:, p])


@wrong(TEST, why=_("Only the shape is asserted."), see=EQUIVARIANT, form_of="asserts_nothing")
def shape_only(model: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2, 6, 8)
    assert model(x).shape == x.shape


@wrong(
    TEST,
    why=_(
        "Only the first position is compared: a model in which another position sees the "
        "order is turned away."
    ),
    see=EQUIVARIANT,
    rung=3,
)
def first_position_only(model: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2, 6, 8)
    p = torch.tensor([0, 5, 4, 3, 2, 1])
    assert not torch.allclose(model(x[:, p])[:, 0], model(x)[:, 0], atol=1e-4)


@wrong(
    TEST,
    why=_("It asks that the input be changed, which says nothing of the order."),
    see=EQUIVARIANT,
    form_of="asserts_nothing",
)
def output_differs_from_input(model: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2, 6, 8)
    assert not torch.allclose(model(x), x)


@wrong(
    TEST,
    why=_(
        "It asks for more than that the order be seen: for a trace in constant inputs, for a large "
        "difference, or for one in every entry. A bias, a mask or rotary positions need not give "
        "that."
    ),
    see=EQUIVARIANT,
    rung=3,
)
def zeros_must_show_positions(model: Callable[[Tensor], Tensor]) -> None:
    y = model(torch.zeros(1, 6, 8))
    assert not torch.allclose(y, y[:, :1].expand_as(y), atol=1e-4)


@wrong(
    TEST,
    why=_(
        "Only the mean over the positions is compared. Where a table is added to each vector, the "
        "mean is the same in any order, and yet the rows tell it."
    ),
    see=EQUIVARIANT,
    rung=2,
)
def means_compared(model: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2, 6, 8)
    p = torch.tensor([1, 0, 3, 4, 5, 2])
    assert not torch.allclose(model(x[:, p]).mean(1), model(x).mean(1), atol=1e-5)


@wrong(
    TEST,
    why=_(
        "Only the reversed order is tried. A bias that depends on the distance alone looks the same "
        "from both ends, and yet it sees the order."
    ),
    see=EQUIVARIANT,
    rung=3,
)
def reversal_only(model: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2, 6, 8)
    p = torch.arange(6).flip(0)
    assert not torch.allclose(model(x[:, p]), model(x)[:, p], atol=1e-4)


@right(TEST, style="several random permutations")
def random_permutations(model: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(3, 5, 6)
    y = model(x)
    gaps = []
    for _i in range(5):
        p = torch.randperm(5)
        gaps.append((model(x[:, p]) - y[:, p]).abs().max().item())
    assert max(gaps) > 1e-3


@right(TEST, style="every swap of two positions")
def every_swap(model: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(1, 4, 8)
    y = model(x)
    for i in range(4):
        for j in range(i):
            p = list(range(4))
            p[i], p[j] = p[j], p[i]
            if (model(x[:, p]) - y[:, p]).abs().max() > 1e-3:
                return
    raise AssertionError("blind to order")


@right(TEST, style="sorted outputs compared as sets")
def sets_of_rows(model: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2, 7, 4)
    p = torch.tensor([2, 0, 3, 6, 1, 5, 4])
    one, other = model(x), model(x[:, p])
    distances = torch.cdist(one, other).amin(-1)
    assert distances.max() > 1e-3
