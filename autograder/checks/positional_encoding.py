"""How the answers of chapter ``positional_encoding`` are judged."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

import solutions.positional_encoding as reference
from autograder.answer import Answer, AnswerRaised
from autograder.checking import Cases, Exercise, expect, expect_close, expect_tensor, fail
from autograder.i18n import _
from autograder.trial import verdicts

# A sine of a float32 angle of at most 60 is off by half a unit of the angle's last place, 2e-6.
SINE = 1e-5
# The same for angles of up to 5000, whose last place is 5e-4: a table computed in float32
# throughout is right to that, and more than that is not asked.
FAR_SINE = 2e-3
# A few float32 products and sums of numbers near 1.
SHORT_SUM = 1e-5
# float32 numbers added or copied once.
ONE_STEP = 2e-6


def _table(length: int, D: int, base: float = 10000.0) -> Tensor:
    """The table by its formula, entry by entry, in float64, shape (length, D)."""
    rows = []
    for t in range(length):
        row = []
        for column in range(D):
            angle = t / base ** ((column - column % 2) / D)
            row.append(math.cos(angle) if column % 2 else math.sin(angle))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


# -------------------------------------------------------------------------- sinusoidal_table

table = Exercise(
    "sinusoidal_table",
    title=_("The sinusoidal table"),
    difficulty=2,
    minutes=20,
    hints=(
        _("Columns 2i and 2i + 1 share one angle. Which power of the base divides the position?"),
        _(
            "If the first two columns are right and the others are not, look at the exponent: it "
            "is 2i/D, where i counts pairs. If odd widths raise an error, one column of cosines "
            "is too many."
        ),
        _(
            "angles (length, ⌈D/2⌉) = t / base^(even/D) with even = 0, 2, 4, …; sines into columns "
            "0::2, cosines into 1::2, as many as there are."
        ),
    ),
)


def _expect_table(answer: Answer, length: int, D: int, **options: float) -> None:
    expect_close(
        answer(length, D, **options),
        _table(length, D, **options),
        atol=SINE,
        what=_("the table"),
        cause=_("The angle, the order of the columns, or the base is not that of the formula."),
        next_step=_("Compare row 1 with sin(1), cos(1), sin(1/base^(2/D)), cos(1/base^(2/D)), …"),
    )


@table.check(points=0.5)
def one_row_per_position(answer: Answer, cases: Cases) -> None:
    """The table has shape (length, D)."""
    length, half = cases.distinct(2, 4, 9)
    expect_tensor(answer(length, 2 * half), (length, 2 * half), what=_("the table"))


@table.check(points=0.5)
def first_rows(answer: Answer, cases: Cases) -> None:
    """Row 0 is 0, 1, 0, 1, …, and row 1 begins with sin(1), cos(1)."""
    D = 2 * cases.integer(2, 6)
    found = expect_tensor(answer(5, D), (5, D), what=_("the table"))
    expect_close(
        found[0],
        torch.tensor([0.0, 1.0] * (D // 2), dtype=torch.float64),
        atol=SINE,
        what=_("row 0"),
        cause=_("At position 0 every angle is 0: sines are 0 and cosines 1, and they take turns."),
        next_step=_("Check that positions start at 0, and that sines stand in the even columns."),
    )
    expect_close(
        found[1, :2],
        torch.tensor([math.sin(1), math.cos(1)], dtype=torch.float64),
        atol=SINE,
        what=_("the beginning of row 1"),
        cause=_("The first pair turns by one radian per position: base^0 is 1."),
        next_step=_("Print the angles of row 1; the first is 1."),
    )


@table.check(points=1)
def follows_the_formula(answer: Answer, cases: Cases) -> None:
    """Every entry follows the formula."""
    length, half = cases.distinct(2, 4, 30)
    _expect_table(answer, length, 2 * half)


@table.check(points=1, hidden=True)
def odd_widths(answer: Answer, cases: Cases) -> None:
    """An odd width leaves the last cosine out."""
    for D in (5, 3, 1):
        _expect_table(answer, cases.integer(3, 9), D)


@table.check(points=0.5, hidden=True)
def other_bases(answer: Answer, cases: Cases) -> None:
    """Another base is heeded."""
    _expect_table(answer, 7, 8, base=float(cases.integer(20, 900)))


@table.check(points=0.5, hidden=True)
def far_positions(answer: Answer, cases: Cases) -> None:
    """Positions far out are right, and the table is float32."""
    D = 2 * cases.integer(2, 5)
    found = expect_tensor(answer(5001, D), (5001, D), what=_("the table"), dtype=torch.float32)
    far = cases.integer(4000, 5000)
    even = torch.arange(0, D, 2, dtype=torch.float64)
    angles = far / 10000.0 ** (even / D)
    expect_close(
        found[far, 0::2],
        angles.sin(),
        atol=FAR_SINE,
        what=_("a row far out"),
        cause=_("The angle loses its digits, or positions wrap around."),
        next_step=_("Compute angles as position times frequency, once, without adding up steps."),
    )


# ------------------------------------------------------------------------------ shift_matrix

shift = Exercise(
    "shift_matrix",
    title=_("A shift is a rotation"),
    difficulty=3,
    minutes=25,
    hints=(
        _("How do sin(a + b) and cos(a + b) follow from the sine and cosine of a?"),
        _(
            "If every second column is wrong in sign, the rotation goes the other way: rows are "
            "multiplied from the left, row @ matrix."
        ),
        _(
            "A 2 × 2 block per pair, on the diagonal: column 2i makes sin a cos b + cos a sin b, "
            "column 2i + 1 makes cos a cos b - sin a sin b, with b = k / base^(2i/D)."
        ),
    ),
)


def _expect_shift(answer: Answer, k: int, D: int, base: float = 10000.0) -> None:
    options = {} if base == 10000.0 else {"base": base}
    matrix = expect_tensor(answer(k, D, **options), (D, D), what=_("the matrix"))
    rows = _table(40, D, base)
    first = max(0, -k)
    last = min(40, 40 - k)
    expect_close(
        rows[first:last] @ matrix.double(),
        rows[first + k : last + k],
        atol=SHORT_SUM,
        what=_("the moved table"),
        cause=_("The matrix turns some pair by another angle, the other way, or mixes pairs."),
        next_step=_("Take D = 2: the matrix must send (sin t, cos t) to (sin(t+k), cos(t+k))."),
    )


@shift.check(points=1)
def moves_one_pair(answer: Answer, cases: Cases) -> None:
    """For D = 2 it moves (sin t, cos t) to (sin(t + k), cos(t + k))."""
    _expect_shift(answer, cases.integer(1, 6), 2)


@shift.check(points=1)
def moves_every_pair(answer: Answer, cases: Cases) -> None:
    """Each pair turns by its own angle."""
    _expect_shift(answer, cases.integer(1, 6), 2 * cases.integer(2, 7))


@shift.check(points=0.5, hidden=True)
def keeps_lengths(answer: Answer, cases: Cases) -> None:
    """The matrix is a rotation, whose transpose undoes it, in float32."""
    D = 2 * cases.integer(2, 6)
    found = answer(3, D)
    matrix = expect_tensor(found, (D, D), what=_("the matrix"), dtype=torch.float32).double()
    expect_close(
        matrix @ matrix.T,
        torch.eye(D, dtype=torch.float64),
        atol=SHORT_SUM,
        what=_("the matrix times its transpose"),
        cause=_("A rotation keeps lengths; this matrix does not."),
        next_step=_("Each 2 × 2 block needs cos, sin, -sin, cos of one angle."),
    )
    _expect_shift(answer, 3, D)


@shift.check(points=1, hidden=True)
def any_shift_and_base(answer: Answer, cases: Cases) -> None:
    """No shift, shifts backwards and other bases work."""
    D = 2 * cases.integer(2, 6)
    _expect_shift(answer, 0, D)
    _expect_shift(answer, -cases.integer(1, 6), D)
    _expect_shift(answer, 4, D, base=float(cases.integer(20, 900)))


# ----------------------------------------------------------------------- SinusoidalPositions

sinusoidal = Exercise(
    "SinusoidalPositions",
    title=_("The layer that adds the table"),
    difficulty=2,
    minutes=20,
    hints=(
        _("Which axis of x says how many rows of the table are needed?"),
        _(
            "If every sequence of the batch gets one and the same row, the table lines up with the "
            "batch axis. If a check speaks of parameters, the table should be a buffer."
        ),
        _(
            "register_buffer in the constructor; in forward: rows offset to offset + T, in x's "
            "dtype, added to x, then dropout; ValueError where the table ends before."
        ),
    ),
)


def _positions(answer: Answer, D: int, max_length: int, **options: float) -> Answer:
    layer = answer(D, max_length, **options)
    if not isinstance(layer, Answer):
        fail(
            seen=_("Building the layer gave no layer."),
            cause=_("The name holds a function or a value, not a class."),
            next_step=_("Keep the class of the stub and fill in its two methods."),
        )
    return layer


def _expect_input_kept(layer: Answer, x: Tensor) -> None:
    expect_close(
        layer.run((x,), echo=True).args[0],
        x.double(),
        atol=0.0,
        what=_("the input after the call"),
        cause=_("An operation in place (+=, add_, copy_) writes into what was given."),
        next_step=_("Write x + … instead."),
    )


def _expect_sum(layer: Answer, x: Tensor, offset: int = 0) -> None:
    options = {"offset": offset} if offset else {}
    T, D = x.shape[1:]
    expect_close(
        layer(x, **options),
        x.double() + _table(offset + T, D)[offset:],
        atol=SINE,
        what=_("the output"),
        cause=_("Other rows of the table were added, or x was changed besides."),
        next_step=_("Send zeros through: what comes out is rows 0 … T - 1 of the table."),
    )


@sinusoidal.check(points=1)
def zeros_show_the_table(answer: Answer, cases: Cases) -> None:
    """Zeros in give the first T rows of the table out, in every sequence of the batch."""
    B, T, half = cases.distinct(3, 2, 8)
    layer = _positions(answer, 2 * half, 20)
    layer.eval()
    _expect_sum(layer, torch.zeros(B, T, 2 * half))


@sinusoidal.check(points=1)
def adds_to_the_input(answer: Answer, cases: Cases) -> None:
    """The table is added to x, which is neither scaled nor replaced."""
    B, T, half = cases.distinct(3, 2, 8)
    layer = _positions(answer, 2 * half, 20)
    layer.eval()
    _expect_sum(layer, cases.normal(B, T, 2 * half))


@sinusoidal.check(points=0.5)
def has_no_parameters(answer: Answer, cases: Cases) -> None:
    """There is nothing to train."""
    D = 2 * cases.integer(2, 6)
    layer = _positions(answer, D, 9)
    expect(
        not layer.parameters(),
        seen=_("The layer has parameters."),
        cause=_("An nn.Parameter or an nn.Embedding holds the table, so training would change it."),
        next_step=_("Keep the table with register_buffer."),
    )
    _expect_sum(layer, torch.zeros(2, 3, D))


@sinusoidal.check(points=0.5, hidden=True)
def goes_on_from_an_offset(answer: Answer, cases: Cases) -> None:
    """With an offset the rows from there on are added; x stays as it was."""
    B, T, offset = cases.distinct(3, 2, 8)
    layer = _positions(answer, 6, 30)
    layer.eval()
    x = cases.normal(B, T, 6)
    _expect_sum(layer, x, offset)
    _expect_input_kept(layer, x)


@sinusoidal.check(points=0.5, hidden=True)
def keeps_the_dtype(answer: Answer, cases: Cases) -> None:
    """Half-precision input gives half-precision output; the table moves with the layer."""
    layer = _positions(answer, 8, 12)
    layer.eval()
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        x = cases.normal(2, 5, 8, dtype=dtype)
        found = expect_tensor(layer(x), (2, 5, 8), what=_("the output"), dtype=dtype)
        # One unit in the last place of numbers below 4, in each dtype; in float64 the table itself
        # may be float32.
        tolerance = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float64: SINE}[dtype]
        expect_close(
            found,
            x.double() + _table(5, 8),
            atol=tolerance,
            what=_("the output"),
            cause=_("The table has another dtype than x, or lost its digits."),
            next_step=_("Convert the rows to x.dtype just before they are added."),
        )
    # A move to another device cannot be had everywhere; one to another dtype moves buffers too.
    layer.method("half")
    try:
        moved = layer.attribute("table")
    except AnswerRaised:
        return  # no table is kept, so none can stay behind
    expect(
        isinstance(moved, Tensor) and moved.dtype == torch.float16,
        seen=_("When the layer is moved, its table stays behind."),
        cause=_("A tensor that is a plain attribute does not belong to the module."),
        next_step=_('Keep it with self.register_buffer("table", …).'),
    )


@sinusoidal.check(points=0.5, hidden=True)
def past_the_table_is_an_error(answer: Answer, cases: Cases) -> None:
    """A sequence that ends past the table raises ValueError, with an offset too."""
    layer = _positions(answer, 6, 8)
    layer.eval()
    _expect_sum(layer, cases.normal(2, 8, 6))
    for length, options in ((9, {}), (1, {"offset": 8}), (4, {"offset": 5})):
        try:
            layer(cases.normal(2, length, 6), **options)
        except AnswerRaised as error:
            if error.kind == "ValueError":
                continue
        fail(
            seen=_("A position past the table does not raise ValueError."),
            cause=_("Slicing past the end gives fewer rows, and the sum then fails or spreads."),
            next_step=_("Compare offset + T with the length of the table before adding."),
        )


@sinusoidal.check(points=0.5, hidden=True)
def drops_out_in_training_only(answer: Answer, cases: Cases) -> None:
    """Dropout works in training and rests in evaluation."""
    layer = _positions(answer, 8, 40, dropout=0.5)
    x = cases.normal(3, 40, 8) + 3.0
    layer.eval()
    _expect_sum(layer, x)
    layer.train()
    found = expect_tensor(
        layer.run((x,), seed=cases.seed()).value, (3, 40, 8), what=_("the output")
    )
    dropped = (found == 0).double().mean().item()
    # 960 entries dropped with probability 1/2: the share has deviation 0.016; six of them.
    expect(
        abs(dropped - 0.5) < 0.1,
        seen=_("In training, the share of zeros is far from the dropout probability."),
        cause=_("Dropout is missing, or applied before the table is added."),
        next_step=_("Return self.dropout(x + rows)."),
    )
    kept = found != 0
    expect_close(
        found[kept],
        (2 * (x.double() + _table(40, 8)))[kept],
        atol=4 * SINE,
        what=_("what dropout kept"),
        cause=_("Dropout divides what it keeps by 1 - p; something else happened to it."),
        next_step=_("Use nn.Dropout on the sum."),
    )


# --------------------------------------------------------------------------- LearnedPositions

learned = Exercise(
    "LearnedPositions",
    title=_("A vector per position, learned"),
    difficulty=1,
    minutes=10,
    hints=(
        _("Which rows of the weight belong to a sequence of length T that starts at offset?"),
        _("If a shape error speaks of the batch, T and B changed places."),
        _("x + weight[offset : offset + T]; ValueError where that ends past the weight."),
    ),
)


def _learned(answer: Answer, D: int, max_length: int, weight: Tensor) -> Answer:
    layer = _positions(answer, D, max_length)
    layer.load({"weight": weight})
    return layer


def _expect_learned(layer: Answer, x: Tensor, weight: Tensor, offset: int = 0) -> None:
    options = {"offset": offset} if offset else {}
    expect_close(
        layer(x, **options),
        x.double() + weight[offset : offset + x.shape[1]].double(),
        atol=ONE_STEP,
        what=_("the output"),
        cause=_("Other rows of the weight were added, or something besides."),
        next_step=_("Set row t of the weight to t and send zeros through."),
    )


@learned.check(points=1)
def adds_the_first_rows(answer: Answer, cases: Cases) -> None:
    """Row t of the weight is added at position t."""
    B, T, D = cases.distinct(3, 2, 8)
    weight = cases.normal(12, D)
    _expect_learned(_learned(answer, D, 12, weight), cases.normal(B, T, D), weight)


@learned.check(points=0.5)
def goes_on_from_the_offset(answer: Answer, cases: Cases) -> None:
    """With an offset, the rows from there on are added; x stays as it was."""
    B, T, D = cases.distinct(3, 2, 6)
    weight = cases.normal(12, D)
    layer = _learned(answer, D, 12, weight)
    x = cases.normal(B, T, D)
    _expect_learned(layer, x, weight, offset=cases.integer(1, 6))
    _expect_input_kept(layer, x)


@learned.check(points=0.5, hidden=True)
def gradients_reach_rows_in_use(answer: Answer, cases: Cases) -> None:
    """The gradient of each row in use is the sum over the batch; other rows get none."""
    B, T, D = cases.distinct(3, 2, 7)
    layer = _learned(answer, D, 9, cases.normal(9, D))
    cotangent = cases.normal(B, T, D)
    run = layer.run((cases.normal(B, T, D),), wrt=["parameters"], cotangent=cotangent)
    expected = torch.zeros(9, D, dtype=torch.float64)
    expected[:T] = cotangent.double().sum(0)
    found = run.grads.get("weight")
    if found is None:
        fail(
            seen=_("No gradient reaches the weight."),
            cause=_("The weight was detached, copied as data, or is not used."),
            next_step=_("Index the parameter itself."),
        )
    expect_close(
        found,
        expected,
        atol=SHORT_SUM,
        what=_("the gradient of the weight"),
        cause=_("Rows that were not used get a gradient, or those that were get too little."),
        next_step=_("Add the rows by indexing the parameter, without a detour."),
    )


@learned.check(points=0.5, hidden=True)
def past_the_weight_is_an_error(answer: Answer, cases: Cases) -> None:
    """A sequence that ends past the weight raises ValueError."""
    weight = cases.normal(6, 4)
    layer = _learned(answer, 4, 6, weight)
    _expect_learned(layer, cases.normal(2, 6, 4), weight)
    for length, options in ((7, {}), (2, {"offset": 5}), (1, {"offset": 6})):
        try:
            layer(cases.normal(2, length, 4), **options)
        except AnswerRaised as error:
            if error.kind == "ValueError":
                continue
        fail(
            seen=_("A position past the weight does not raise ValueError."),
            cause=_("Slicing past the end gives fewer rows, and the sum then fails or spreads."),
            next_step=_("Compare offset + T with the number of rows before adding."),
        )


# -------------------------------------------------------------------------------------- Rotary

rotary = Exercise(
    "Rotary",
    title=_("Rotary positions"),
    difficulty=3,
    minutes=30,
    hints=(
        _("A rotation of (a, b) by an angle: which of the two new components has the minus sign?"),
        _(
            "If norms are kept and values are wrong, look at the pairing: component i goes with "
            "i + d/2 here, not with its neighbour."
        ),
        _(
            "angles (T, d/2) = positions · frequencies; first, second = halves of x; concatenate "
            "first cos - second sin and first sin + second cos."
        ),
    ),
)


def _turned(x: Tensor, offset: int = 0, base: float = 10000.0) -> Tensor:
    """Rotary positions pair by pair, as complex numbers, in float64."""
    T, d = x.shape[-2:]
    frequencies = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    t = torch.arange(offset, offset + T, dtype=torch.float64)
    unit = torch.polar(torch.ones(T, d // 2, dtype=torch.float64), t[:, None] * frequencies)
    first, second = x.double().chunk(2, dim=-1)
    product = torch.complex(first, second) * unit
    return torch.cat([product.real, product.imag], dim=-1)


def _expect_turned(layer: Answer, x: Tensor, offset: int = 0, base: float = 10000.0) -> None:
    options = {"offset": offset} if offset else {}
    expect_close(
        layer(x, **options),
        _turned(x, offset, base),
        atol=5 * SINE,
        what=_("the result"),
        cause=_("Pairs, angles or the direction differ from those of the docstring."),
        next_step=_("Take d = 2: position t turns (1, 0) into (cos t, sin t)."),
    )


@rotary.check(points=0.5)
def keeps_shape_and_norm(answer: Answer, cases: Cases) -> None:
    """Vectors are turned: the shape stays, and so does the length of every vector."""
    B, H, T, half = cases.distinct(4, 2, 8)
    x = cases.normal(B, H, T, 2 * half)
    found = expect_tensor(answer(2 * half)(x), x.shape, what=_("the result"))
    expect_close(
        found.double().norm(dim=-1),
        x.double().norm(dim=-1),
        atol=SHORT_SUM,
        what=_("the length of the vectors"),
        cause=_("A rotation keeps lengths. A sign or a sine is wrong, or something is added."),
        next_step=_("cos² + sin² = 1: check that both new components use both old ones."),
    )
    # a turn by up to 7 radians moves the first components of hundreds of vectors, or of one of
    # length 1, by much more than this
    expect(
        (found.double() - x.double())[..., 1:, :].abs().max().item() > 1e-3,
        seen=_("What comes out is what went in."),
        cause=_("Nothing is turned: the angles are all 0, or x itself is returned."),
        next_step=_("The angle grows with the position, 0, 1, 2, …"),
    )


@rotary.check(points=1)
def depends_on_the_distance_alone(answer: Answer, cases: Cases) -> None:
    """The dot product of a turned query and a turned key depends on their distance alone."""
    half = cases.integer(2, 6)
    layer = answer(2 * half)
    q, k = cases.normal(2 * half), cases.normal(2 * half)
    T = 9
    queries = expect_tensor(
        layer(q.expand(1, 1, T, -1).contiguous()), (1, 1, T, 2 * half), what=_("the result")
    )
    keys = expect_tensor(
        layer(k.expand(1, 1, T, -1).contiguous()), (1, 1, T, 2 * half), what=_("the result")
    )
    scores = (queries.double() @ keys.double().mT)[0, 0]  # (T, T)
    for distance in range(-T + 2, T - 1):
        diagonal = scores.diagonal(distance)
        expect(
            (diagonal - diagonal[0]).abs().max().item() < 10 * SINE,
            seen=_("Scores of pairs at the same distance differ."),
            cause=_("Queries and keys are not turned by an angle proportional to the position."),
            next_step=_("Check that the angle is position times frequency, for every pair."),
        )
    expect(
        (scores[0] - scores[0, 0]).abs().max().item() > 1e-3,
        seen=_("The scores do not depend on the distance at all."),
        cause=_("Nothing is turned, or every position is turned alike."),
        next_step=_("The angle grows with the position, 0, 1, 2, …"),
    )


@rotary.check(points=1)
def equals_the_definition(answer: Answer, cases: Cases) -> None:
    """Component i is paired with i + d/2 and turned by t / base^(2i/d)."""
    B, H, T, half = cases.distinct(4, 2, 8)
    _expect_turned(answer(2 * half), cases.normal(B, H, T, 2 * half))


@rotary.check(points=0.5, hidden=True)
def goes_on_after_a_cache(answer: Answer, cases: Cases) -> None:
    """With an offset, turning goes on from there; x stays as it was."""
    B, H, T, half = cases.distinct(4, 2, 7)
    layer = answer(2 * half)
    x = cases.normal(B, H, T, 2 * half)
    _expect_turned(layer, x, offset=cases.integer(1, 50))
    _expect_input_kept(layer, x)


@rotary.check(points=0.5, hidden=True)
def other_bases_and_any_axes(answer: Answer, cases: Cases) -> None:
    """Another base is heeded; x may have any axes in front."""
    base = float(cases.integer(20, 900))
    layer = answer(6, base=base)
    _expect_turned(layer, cases.normal(5, 6), base=base)
    _expect_turned(layer, cases.normal(2, 3, 2, 4, 6), base=base)


@rotary.check(points=0.5, hidden=True)
def half_precision_and_gradient(answer: Answer, cases: Cases) -> None:
    """fp16 and bf16 keep their dtype; the gradient is the rotation backwards."""
    layer = answer(8)
    for dtype, tolerance in ((torch.float16, 8e-3), (torch.bfloat16, 6e-2)):
        x = cases.normal(2, 3, 5, 8, dtype=dtype)
        # So far out, half precision has no digits left for the angle (nor for the position).
        offset = cases.integer(3000, 4000)
        found = expect_tensor(layer(x, offset=offset), x.shape, what=_("the result"), dtype=dtype)
        # Products and one sum of numbers below 4, each rounded to the dtype's last place.
        expect_close(
            found,
            _turned(x, offset),
            atol=tolerance,
            what=_("the result"),
            cause=_(
                "Angles were computed in half precision, which keeps two or three digits: too few "
                "for an angle of thousands."
            ),
            next_step=_("Compute angles in float32 or wider and convert sine and cosine."),
        )
    x, cotangent = cases.normal(2, 3, 5, 8), cases.normal(2, 3, 5, 8)
    gradient = layer.run((x,), wrt=[0], cotangent=cotangent).grads["0"]
    if gradient is None:
        fail(
            seen=_("No gradient reaches x."),
            cause=_("x was detached or copied as data."),
            next_step=_("Use x itself in the products."),
        )
    back = torch.zeros_like(x, dtype=torch.float64).requires_grad_()
    (expected,) = torch.autograd.grad(_turned(back), back, cotangent.double())
    expect_close(
        gradient,
        expected,
        atol=5 * SINE,
        what=_("the gradient"),
        cause=_("The gradient of a rotation is the rotation backwards."),
        next_step=_("Use x itself in the products, without detach."),
    )


# ---------------------------------------------------------------------------------- alibi_bias

alibi = Exercise(
    "alibi_bias",
    title=_("A bias against distance"),
    difficulty=2,
    minutes=15,
    hints=(
        _("Where do T queries stand among S keys when earlier keys were cached?"),
        _("If only S = T is right, the queries were counted from 0. They are the last T of S."),
        _(
            "slopes 2^(-8h/H) for h = 1 … H as (H, 1, 1), distances |query - key| as (T, S) with "
            "queries S - T … S - 1; minus the product."
        ),
    ),
)


def _bias(H: int, T: int, S: int) -> Tensor:
    result = torch.empty(H, T, S, dtype=torch.float64)
    for h in range(H):
        for t in range(T):
            for s in range(S):
                result[h, t, s] = -(2.0 ** (-8 * (h + 1) / H)) * abs(S - T + t - s)
    return result


def _expect_bias(answer: Answer, H: int, T: int, S: int | None = None) -> None:
    found = answer(H, T) if S is None else answer(H, T, S)
    expect_close(
        found,
        _bias(H, T, T if S is None else S),
        atol=SHORT_SUM,
        what=_("the bias"),
        cause=_("Slopes, distances or their sign are not those of the docstring."),
        next_step=_("Print head 0 for T = 3: zeros on the diagonal, -slope beside it."),
    )


@alibi.check(points=0.5)
def one_table_per_head(answer: Answer, cases: Cases) -> None:
    """The bias has shape (H, T, S), with S = T where S is not given."""
    T, S = sorted(cases.distinct(2, 3, 9))
    expect_tensor(answer(4, T), (4, T, T), what=_("the bias"))
    expect_tensor(answer(8, T, S), (8, T, S), what=_("the bias"))


@alibi.check(points=1)
def slopes_and_distances(answer: Answer, cases: Cases) -> None:
    """For S = T, entry (h, t, s) is minus head h's slope times |t - s|."""
    _expect_bias(answer, cases.shuffled([2, 4, 8])[0], cases.integer(3, 8))


@alibi.check(points=0.5, hidden=True)
def queries_are_the_last(answer: Answer, cases: Cases) -> None:
    """With more keys than queries, the queries are the last positions."""
    T, S = sorted(cases.distinct(2, 2, 9))
    _expect_bias(answer, 4, T, S)
    _expect_bias(answer, 2, 1, S)


@alibi.check(points=0.5, hidden=True)
def one_head_and_sixteen(answer: Answer, cases: Cases) -> None:
    """The slopes are right for one head and for sixteen, in float32."""
    T = cases.integer(3, 7)
    expect_tensor(answer(1, T), (1, T, T), what=_("the bias"), dtype=torch.float32)
    _expect_bias(answer, 1, T)
    _expect_bias(answer, 16, cases.integer(3, 7))


# ----------------------------------------------------------------------------- add_positions

adding = Exercise(
    "add_positions",
    title=_("Find the bugs: positions for a batch"),
    difficulty=2,
    minutes=15,
    hints=(
        _("Which axis of x is time? Which axis of the table?"),
        _(
            "A table of shape (T, 1, D) spreads over the second axis: right where time comes "
            "first. Here the batch does. When B and T are equal, nothing complains."
        ),
        _("Rows 0 … T - 1 as (1, T, D), or simply (T, D); and x itself stays as it was."),
    ),
    given="time_taken_for_batch",
)


def _expect_added(answer: Answer, x: Tensor, positions: Tensor) -> None:
    expect_close(
        answer(x, positions),
        x.double() + positions[: x.shape[1]].double(),
        atol=ONE_STEP,
        what=_("the result"),
        cause=_("The rows of the table lie along another axis than time."),
        next_step=_("Print the two shapes before they are added and line them up from the right."),
    )


@adding.check(points=1)
def batch_as_long_as_time(answer: Answer, cases: Cases) -> None:
    """Where B equals T, each position still gets its own row."""
    n, D = cases.distinct(2, 3, 7)
    _expect_added(answer, cases.normal(n, n, D), cases.normal(n + 4, D))


@adding.check(points=1)
def batch_of_another_size(answer: Answer, cases: Cases) -> None:
    """Batches of any size work, with a table longer than the sequence."""
    B, T, D = cases.distinct(3, 2, 8)
    # longer than the batch too: rows that are counted by it are all there
    _expect_added(answer, cases.normal(B, T, D), cases.normal(max(B, T) + 3, D))


@adding.check(points=0)
def one_sequence_of_one_token(answer: Answer, cases: Cases) -> None:
    """One sequence of one token gets row 0."""
    D = cases.integer(3, 7)
    _expect_added(answer, cases.normal(1, 1, D), cases.normal(4, D))


@adding.check(points=0.5, hidden=True)
def same_for_the_whole_batch(answer: Answer, cases: Cases) -> None:
    """Every sequence of the batch gets the same positions."""
    n, D = cases.distinct(2, 3, 7)
    x = cases.normal(1, n, D).expand(n, n, D).contiguous()
    _expect_added(answer, x, cases.normal(n, D))
    B, T = cases.distinct(2, 2, 7)
    _expect_added(answer, cases.normal(1, T, D).expand(B, T, D).contiguous(), cases.normal(9, D))


@adding.check(points=0.5, hidden=True)
def inputs_stay(answer: Answer, cases: Cases) -> None:
    """Neither x nor the table is overwritten, and the result is right."""
    n, D = cases.distinct(2, 3, 7)
    x, positions = cases.normal(n, n, D), cases.normal(n + 2, D)
    run = answer.run((x, positions), echo=True)
    expect_close(
        run.value,
        x.double() + positions[:n].double(),
        atol=ONE_STEP,
        what=_("the result"),
        cause=_("The rows of the table lie along another axis than time."),
        next_step=_("Print the two shapes before they are added and line them up from the right."),
    )
    for before, after in zip((x, positions), run.args, strict=True):
        expect_close(
            after,
            before.double(),
            atol=0.0,
            what=_("an input after the call"),
            cause=_("An operation in place (+=, add_, copy_) writes into what was given."),
            next_step=_("Write x + … instead."),
        )


# -------------------------------------------------------------------------------- order_test

order = Exercise(
    "order_test",
    title=_("Write a test: does this model see the order?"),
    difficulty=3,
    minutes=20,
    hints=(
        _("What happens to the output of plain attention when its input rows change places?"),
        _(
            "Compare the output of the permuted input with the permuted output. For a model that "
            "sees the order they differ; the mean over positions alone can hide that."
        ),
        _(
            "Draw x, a permutation p that is more than a reversal, y = model(x), "
            "z = model(x[:, p]); assert not allclose(z, y[:, p]). Ask for nothing more: for "
            "constant inputs a causal mask or a bias leaves no trace."
        ),
    ),
)

Model = Callable[[Tensor], Tensor]


def _attend(x: Tensor) -> Tensor:
    return torch.softmax(x @ x.mT / math.sqrt(x.shape[-1]), dim=-1) @ x


def _with_sines(x: Tensor) -> Tensor:
    T, D = x.shape[1:]
    return _attend(x + reference.sinusoidal_table(T, D).to(x.dtype))


def _with_recency(x: Tensor) -> Tensor:
    bias = reference.alibi_bias(1, x.shape[1])[0].to(x.dtype)
    return torch.softmax(x @ x.mT / math.sqrt(x.shape[-1]) + bias, dim=-1) @ x


def _causal(x: Tensor) -> Tensor:
    T = x.shape[1]
    allowed = torch.ones(T, T, dtype=torch.bool).tril()
    scores = (x @ x.mT / math.sqrt(x.shape[-1])).masked_fill(~allowed, -torch.inf)
    return torch.softmax(scores, dim=-1) @ x


def _sines_added(x: Tensor) -> Tensor:
    return x + reference.sinusoidal_table(*x.shape[1:]).to(x.dtype)


def _only_last_pair(x: Tensor) -> Tensor:
    y = _attend(x)
    return torch.cat([y[:, :-1], y[:, -1:] + 0.5 * x[:, :1]], dim=1)


def _constant_added(x: Tensor) -> Tensor:
    return _attend(x + 1.7)


def _summary_everywhere(x: Tensor) -> Tensor:
    return _attend(x).mean(1, keepdim=True).expand_as(x)


def _position_wise(x: Tensor) -> Tensor:
    return torch.tanh(x) * 2


def _takes_x(x: Tensor) -> None:
    if not x.is_floating_point():
        raise TypeError


def _expect_judged(
    answer: Answer, cases: Cases, right: list[Model], wrong: list[Model], seen: str
) -> None:
    """It accepts models that see the order, and rejects those that do not: ``seen`` where not."""
    accepted, refused = verdicts(answer, cases, right=right, wrong=wrong, takes=_takes_x)
    expect(
        all(accepted),
        seen=_("Your test turns a model away that does see the order."),
        cause=_("It asks for something that only one kind of position encoding does."),
        next_step=_("Ask one thing: is the output of a permuted input the permuted output?"),
    )
    expect(
        all(refused),
        seen=seen,
        cause=_("Permuting the input only permutes its output, and your test does not notice."),
        next_step=_("Compare model(x[:, p]) with model(x)[:, p], for a p that moves something."),
    )


@order.check(points=0.5)
def tells_attention_from_positions(answer: Answer, cases: Cases) -> None:
    """It accepts attention with sinusoidal positions and rejects attention without any."""
    _expect_judged(
        answer,
        cases,
        [_with_sines],
        [_attend],
        _("Your test accepts plain attention, which sees no order."),
    )


@order.check(points=1)
def accepts_every_kind(answer: Answer, cases: Cases) -> None:
    """It accepts models that see the order by a bias or by a causal mask, and rejects one not."""
    _expect_judged(
        answer,
        cases,
        [_with_recency, _causal],
        [_attend],
        _("Your test accepts plain attention, which sees no order."),
    )


@order.check(points=0.5, hidden=True)
def rejects_what_merely_differs(answer: Answer, cases: Cases) -> None:
    """It rejects models that change their input and still see no order."""
    _expect_judged(
        answer,
        cases,
        [_with_sines],
        [_constant_added, _position_wise],
        _("Your test accepts a model that changes every vector and sees no order."),
    )


@order.check(points=0.5, hidden=True)
def rejects_one_summary(answer: Answer, cases: Cases) -> None:
    """It rejects a model that gives one summary of the set at every position."""
    _expect_judged(
        answer,
        cases,
        [_with_recency],
        [_summary_everywhere],
        _("Your test accepts a model that gives the same summary whatever the order."),
    )


@order.check(points=0.5, hidden=True)
def accepts_one_place_alone(answer: Answer, cases: Cases) -> None:
    """It accepts a model in which one position alone sees the order, or whose mean does not."""
    _expect_judged(
        answer,
        cases,
        [_only_last_pair, _causal, _sines_added],
        [_attend],
        _("Your test accepts plain attention, which sees no order."),
    )
