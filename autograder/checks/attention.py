"""Checks of the chapter ``attention``.

The reference here is an independent one in float64: exponentials over the allowed keys alone. The
sizes of a case differ from one another, and its scores have a deviation of about 1, so that a wrong
scale or axis shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from autograder.answer import Answer
from autograder.checking import (
    Cases,
    Exercise,
    expect,
    expect_close,
    expect_items,
    expect_tensor,
    fail,
)
from autograder.i18n import _
from autograder.memory import remembered
from autograder.trial import verdicts

# Single precision: sums of fewer than ten products of order 1 are exact to about 1e-6, and the
# smallest mistake in the bank moves a result by more than 1e-3.
SINGLE = 1e-5
# Half precision: a score of 4 is rounded to 0.002 (fp16) or 0.016 (bf16), a weight moves by that
# fraction of itself, and an output of order 1 by a few times that.
HALF = {torch.bfloat16: 0.1, torch.float16: 0.02}

OWN_ATTENTION = (
    "torch.nn.functional.scaled_dot_product_attention",
    "torch.nn.functional.multi_head_attention_forward",
    "torch._native_multi_head_attention",
    "torch.ops.aten._scaled_dot_product_attention_math",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
)


# --- the definition, in float64 ------------------------------------------------------------------


@remembered
def _scores(q: Tensor, k: Tensor) -> Tensor:
    q, k = q.double(), k.double()
    return torch.einsum("...td,...sd->...ts", q, k) / math.sqrt(q.size(-1))


@remembered
def _softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = scores.double()
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    mask = mask.expand_as(scores)
    # Forbidden scores take the largest allowed one: they cannot overflow, and are dropped below.
    top = torch.where(mask, scores, -torch.inf).amax(dim=-1, keepdim=True)
    top = torch.where(top.isfinite(), top, 0.0)
    exponentials = torch.where(mask, torch.exp(torch.where(mask, scores - top, 0.0)), 0.0)
    total = exponentials.sum(dim=-1, keepdim=True)
    return exponentials / torch.where(total > 0, total, 1.0)


@remembered
def _attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    weights = _softmax(_scores(q, k) + bias, mask)
    return weights @ v.double(), weights


def _qkv(
    cases: Cases, *front: int, T: int, S: int, d: int, d_v: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        cases.normal(*front, T, d, dtype=dtype),
        cases.normal(*front, S, d, dtype=dtype),
        cases.normal(*front, S, d_v, dtype=dtype),
    )


def _pair(
    value: object, output: tuple[int, ...], weights: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Output and weights of a reply, with the shapes that the docstring promises."""
    first, second = expect_items(value, 2, what=_("the output and the weights"))
    return (
        expect_tensor(first, output, what=_("The output")),
        expect_tensor(second, weights, what=_("The weights")),
    )


def _expect_unchanged(before: list[Tensor], after: list[Tensor]) -> None:
    for old, new in zip(before, after, strict=True):
        expect(
            isinstance(new, Tensor) and old.shape == new.shape and torch.equal(old, new),
            seen=_("After the call, one of the inputs is no longer what it was."),
            cause=_(
                "An operation in place (a trailing underscore, `/=`, or an assignment to a "
                "slice) writes into the tensor that the caller still uses."
            ),
            next_step=_(
                "Make a new tensor instead: `scores / 2` for `scores /= 2`, "
                "`masked_fill` for `masked_fill_`."
            ),
        )


def _expect_result(found: object, wanted: Tensor) -> None:
    """The result beside inputs that stayed: an answer that does nothing overwrites nothing."""
    expect_close(
        found,
        wanted,
        atol=SINGLE,
        what=_("The result beside inputs that stayed as they were"),
        cause=_("Nothing is overwritten, but what is returned is not what the definition gives."),
        next_step=_("Mend the values first."),
    )


def _expect_rows_sum_to_one(weights: Tensor, *, what: str) -> None:
    sums = weights.double().sum(dim=-1)
    if torch.allclose(sums, torch.ones_like(sums), atol=SINGLE, rtol=0):
        return
    columns = weights.double().sum(dim=-2)
    along_queries = torch.allclose(columns, torch.ones_like(columns), atol=SINGLE, rtol=0)
    fail(
        seen=_("The rows of {what} do not sum to 1.").format(what=what)
        + (_(" Its columns do.") if along_queries else ""),
        cause=_("The softmax runs over the queries.")
        if along_queries
        else _("The softmax runs along another axis, or the weights were changed after it."),
        next_step=_("Print `weights.sum(dim=-1)` right after your softmax, and again at the end."),
    )


def _expect_float64(found: object, shape: tuple[int, ...], *, what: str) -> None:
    """A result of float64 inputs is not narrower than they are.

    The other way, a result wider than its inputs, is nobody's harm: it is accepted everywhere.
    """
    tensor = expect_tensor(found, shape, what=what)
    expect(
        tensor.dtype == torch.float64,
        seen=_("{what} has dtype {dtype}.").format(what=what, dtype=tensor.dtype),
        cause=_(
            "A tensor that is made on the way, by `torch.zeros(...)` or `.float()`, has a dtype "
            "of its own."
        ),
        next_step=_("Make new tensors with the dtype of the input: `q.new_zeros(...)`."),
    )


# --- attention_scores ----------------------------------------------------------------------------

scores = Exercise(
    "attention_scores",
    title=_("Scaled scores"),
    difficulty=1,
    minutes=8,
    hints=(
        _(
            "One entry is the dot product of one query with one key. Which operation on two "
            "matrices takes all dot products of their rows at once?"
        ),
        _(
            "If shapes do not fit, you may have transposed nothing, or all axes. Only the last two "
            "axes of k change places. If the values are too large, look at which size is under the "
            "root: it is the width of a query, `q.size(-1)`."
        ),
        _(
            "1. d ← the last size of q\n"
            "2. kT ← k with its last two axes exchanged, (..., d, S)\n"
            "3. return (q matrix-times kT) divided by the root of d"
        ),
    ),
)


@scores.check(points=1)
def rows_are_queries_and_columns_are_keys(answer: Answer, cases: Cases) -> None:
    """Scores have shape (B, T, S): queries in rows, keys in columns."""
    B, T, S, d = cases.distinct(4, 2, 8)
    found = answer(cases.normal(B, T, d), cases.normal(B, S, d))
    expect_tensor(found, (B, T, S), what=_("The result"))


@scores.check(points=1)
def entry_is_a_dot_product(answer: Answer, cases: Cases) -> None:
    """Up to one common factor, entry (t, s) is the dot product of query t and key s."""
    B, T, S, d = cases.distinct(4, 3, 9)
    q, k = cases.normal(B, T, d), cases.normal(B, S, d)
    found = expect_tensor(answer(q, k), (B, T, S), what=_("The result")).double()
    wanted = _scores(q, k)
    factor = float((found * wanted).sum() / (wanted * wanted).sum())
    expect(
        factor > 1e-3,
        seen=_("The result does not grow with the dot products."),
        cause=_(
            "It does not depend on q and k as a dot product does, or its sign is turned round."
        ),
        next_step=_("Compare one entry with `q[0, 0] @ k[0, 0]`."),
    )
    expect_close(
        found / factor,
        wanted,
        # see SINGLE; a factor far from 1 makes the rounding no larger in proportion
        atol=SINGLE,
        what=_("Apart from a common factor, the result"),
        cause=_("Entries are not dot products of one query with one key of the same sequence."),
        next_step=_("Compare the entry [1, 2, 0] with `q[1, 2] @ k[1, 0]`."),
    )


@scores.check(points=1)
def divided_by_root_d(answer: Answer, cases: Cases) -> None:
    """Scores are divided by √d, for several widths d."""
    T, S, *widths = cases.distinct(5, 3, 12)
    factors = []
    for d in widths:
        q, k = cases.normal(2, T, d), cases.normal(2, S, d)
        found = expect_tensor(answer(q, k), (2, T, S), what=_("The result")).double()
        wanted = _scores(q, k)
        factors.append(float((found * wanted).sum() / (wanted * wanted).sum()))
    for d, factor in zip(widths, factors, strict=True):
        expect(
            # the factor is a quotient of sums of order T·S, exact to SINGLE
            abs(factor - 1) < SINGLE * 10,
            seen=_("At d = {d} the scores are {factor:.3g} times what they should be.").format(
                d=d, factor=factor
            ),
            cause=_("The divisor is not √d, or d is not the width of the queries."),
            next_step=_("Print what you divide by, for the d of the message."),
        )


@scores.check(points=0.5, hidden=True)
def any_axes_in_front(answer: Answer, cases: Cases) -> None:
    """Any number of axes may stand in front: none, one, or two."""
    B, H, T, S, d = cases.distinct(5, 2, 8)
    pairs = [
        (cases.normal(*front, T, d), cases.normal(*front, S, d)) for front in ((B,), (), (B, H))
    ]
    for found, (q, k) in zip([answer(q, k) for q, k in pairs], pairs, strict=True):
        expect_close(
            found,
            _scores(q, k),
            atol=SINGLE,
            what=_("The result for another number of axes in front"),
            cause=_("An axis is named by a number that counts from the front."),
            next_step=_(
                "If the other checks pass: count axes from the end; -2 and -1 mean the same with "
                "any number in front."
            ),
        )


@scores.check(points=0.5, hidden=True)
def both_inputs_get_their_gradient(answer: Answer, cases: Cases) -> None:
    """The gradient flows back to the queries and to the keys."""
    B, T, S, d = cases.distinct(4, 2, 8)
    q, k, cotangent = cases.normal(B, T, d), cases.normal(B, S, d), cases.normal(B, T, S)
    run = answer.run([q, k], wrt=[0, 1], cotangent=cotangent)
    wanted = (cotangent.double() @ k.double(), cotangent.double().mT @ q.double())
    for name, gradient in zip(("0", "1"), wanted, strict=True):
        found = run.grads.get(name)
        expect(
            found is not None,
            seen=_("No gradient reaches one of the inputs."),
            cause=_(
                "The values left the graph on the way: through `detach`, `.data`, `.item()`, "
                "a new `torch.tensor(...)`, or NumPy."
            ),
            next_step=_(
                "Compute with torch operations on q and k from the first line to the last."
            ),
        )
        expect_close(
            found,
            gradient / math.sqrt(d),
            atol=SINGLE,
            what=_("A gradient"),
            cause=_("The scores are not those of the definition, or a part is cut off the graph."),
            next_step=_("Mend the values first; then look for `detach` and its relatives."),
        )


@scores.check(points=0.5, hidden=True)
def works_in_half_precision(answer: Answer, cases: Cases) -> None:
    """Scores are right in bf16 and in fp16 too, and those of float64 are float64."""
    B, T, S, d = cases.distinct(4, 2, 8)
    for dtype, tolerance in HALF.items():
        q, k = cases.normal(B, T, d, dtype=dtype), cases.normal(B, S, d, dtype=dtype)
        expect_close(
            answer(q, k),
            _scores(q, k),
            atol=tolerance,  # a score of order 4, rounded
            what=_("The result in half precision"),
            cause=_("A constant or a conversion on the way has another dtype than the input."),
            next_step=_(
                "If the other checks pass: divide by a Python number, which takes the dtype of the "
                "tensor."
            ),
        )
    # last: what fails before must not be mixed up with it
    wide = [cases.normal(B, n, d, dtype=torch.float64) for n in (T, S)]
    _expect_float64(answer(*wide), (B, T, S), what=_("The result for float64"))


@scores.check(points=0.5, hidden=True)
def leaves_its_inputs_alone(answer: Answer, cases: Cases) -> None:
    """Queries and keys are the same after a call that gives the scores."""
    B, T, S, d = cases.distinct(4, 2, 8)
    q, k = cases.normal(B, T, d), cases.normal(B, S, d)
    run = answer.run([q, k], echo=True)
    _expect_unchanged([q, k], run.args)
    _expect_result(run.value, _scores(q, k))


# --- masked_softmax ------------------------------------------------------------------------------

softmax = Exercise(
    "masked_softmax",
    title=_("A masked softmax"),
    difficulty=2,
    minutes=15,
    hints=(
        _(
            "Which number has to go into the exponential so that 0 comes out? And in which order "
            "do filling and softmax have to come, if the rest is to share out everything?"
        ),
        _(
            "NaN in a row without an allowed entry: all its scores were −∞. An even row there: "
            "they were all equal, and a softmax always sums to 1, so this row needs a step after "
            "the softmax. An error in half precision: your fill is beyond "
            "`torch.finfo(scores.dtype).min`. A mask that works upside down: `masked_fill` fills "
            "where its mask is True."
        ),
        _(
            "1. without a mask: return the softmax along the last axis\n"
            "2. filled ← scores, with the lowest number of their dtype where the mask is False\n"
            "3. weights ← softmax of filled along the last axis\n"
            "4. return weights, with 0 where the mask is False"
        ),
    ),
)


@softmax.check(points=1)
def without_a_mask_it_is_a_softmax(answer: Answer, cases: Cases) -> None:
    """Without a mask: the softmax over the last axis; every row sums to 1."""
    B, T, S = cases.distinct(3, 2, 8)
    flat, batch = cases.normal(T, S), cases.normal(B, T, S)
    found = [answer(flat), answer(batch)]
    for weights, given in zip(found, (flat, batch), strict=True):
        expect_tensor(weights, given.shape, what=_("The result"))
        _expect_rows_sum_to_one(weights, what=_("the result"))
        expect_close(
            weights,
            _softmax(given),
            atol=SINGLE,
            what=_("The result without a mask"),
            cause=_("Rows sum to 1, yet their shares are not those of the exponentials."),
            next_step=_("Compare with `torch.softmax(scores, dim=-1)`."),
        )


@softmax.check(points=1)
def forbidden_entries_get_nothing(answer: Answer, cases: Cases) -> None:
    """The weight is 0 where the mask is False, and nowhere else."""
    B, T, S = cases.distinct(3, 3, 9)
    given, mask = cases.normal(B, T, S), cases.mask(B, T, S)
    found = expect_tensor(answer(given, mask), (B, T, S), what=_("The result"))
    leak = found.double().masked_fill(mask, 0.0).abs().nan_to_num(nan=1.0).max().item()
    expect(
        leak == 0.0,
        seen=_("A forbidden entry has the weight {leak:.2g}.").format(leak=leak),
        cause=_(
            "The mask is read the other way round (True means allowed), or what was filled in is "
            "not low enough for its exponential to be 0."
        ),
        next_step=_("Print one row of the mask beside the same row of your weights."),
    )
    expect(
        (found.masked_fill(~mask, 1.0) > 0).all(),
        seen=_("An allowed entry has no weight either."),
        cause=_("Its score never reached an exponential: weights of a softmax are positive."),
        next_step=_("Print one row of the mask beside the same row of your weights."),
    )
    allowed = found[mask]
    expect(
        allowed.max() > allowed.min(),
        seen=_("All allowed entries have the same weight, though their scores differ."),
        cause=_("The scores have no part in the result."),
        next_step=_("Take the exponential of the scores, and keep it where the mask is True."),
    )


@softmax.check(points=1)
def allowed_entries_share_everything(answer: Answer, cases: Cases) -> None:
    """The allowed entries of a row sum to 1."""
    B, T, S = cases.distinct(3, 3, 9)
    given, mask = cases.normal(B, T, S), cases.mask(B, T, S)
    found = expect_tensor(answer(given, mask), (B, T, S), what=_("The result"))
    sums = found.double().masked_fill(~mask, 0.0).sum(dim=-1)
    worst = sums.flatten()[(sums - 1).abs().nan_to_num(nan=torch.inf).argmax()].item()
    expect(
        abs(worst - 1) < SINGLE,
        seen=_("The allowed entries of a row sum to {worst:.3g}, not to 1.").format(worst=worst),
        cause=_(
            "The mask came after the softmax, when the forbidden entries had their share already; "
            "or the softmax runs along another axis."
        ),
        next_step=_("Fill the forbidden scores first, then take the softmax over the last axis."),
    )


@softmax.check(points=1)
def equals_the_softmax_of_the_allowed(answer: Answer, cases: Cases) -> None:
    """The weights are those of a softmax that never saw the forbidden entries."""
    B, T, S = cases.distinct(3, 3, 9)
    given, mask = cases.normal(B, T, S), cases.mask(B, T, S)
    found = answer(given, mask)
    expect_close(
        found,
        _softmax(given, mask),
        atol=SINGLE,
        what=_("The result with a mask"),
        cause=_("Forbidden entries still have a say in the weights of the others."),
        next_step=_("Take one row, drop the forbidden scores by hand, and compare."),
    )


@softmax.check(points=0.5, hidden=True)
def empty_row_is_zero(answer: Answer, cases: Cases) -> None:
    """A row without an allowed entry is all 0."""
    T, S = cases.distinct(2, 3, 9)
    given, mask = cases.normal(2, T, S), cases.mask(2, T, S)
    mask[0, 1] = False
    found = expect_tensor(answer(given, mask), (2, T, S), what=_("The result"))
    row = found[0, 1].double()
    expect(
        not row.isnan().any(),
        seen=_("A row without an allowed entry is NaN."),
        cause=_("Its scores are all −∞, and the softmax divides 0 by 0."),
        next_step=_("Fill with the lowest finite number, or put zeros in place of the row."),
    )
    expect(
        (row == 0).all(),
        seen=_("A row without an allowed entry is not all 0."),
        cause=_("Its scores are all equal after the fill, and equal scores share evenly."),
        next_step=_("Set the forbidden weights to 0 once more, after the softmax."),
    )
    expect_close(
        found,
        _softmax(given, mask),
        atol=SINGLE,
        what=_("The result beside an empty row"),
        cause=_("What you do for the empty row changes other rows too."),
        next_step=_("If the other checks pass: change forbidden entries only."),
    )


@softmax.check(points=0.5, hidden=True)
def gradients_are_finite_and_right(answer: Answer, cases: Cases) -> None:
    """The gradient is that of the definition, and 0 in a row without an allowed entry."""
    T, S = cases.distinct(2, 3, 9)
    given, mask, cotangent = cases.normal(2, T, S), cases.mask(2, T, S), cases.normal(2, T, S)
    mask[1, 0] = False
    run = answer.run([given, mask], wrt=[0], cotangent=cotangent)
    found = run.grads.get("0")
    expect(
        found is not None,
        seen=_("No gradient reaches the scores."),
        cause=_("The values left the graph on the way: through `detach`, `.data`, or NumPy."),
        next_step=_("Compute with torch operations from the first line to the last."),
    )
    w = _softmax(given, mask)
    g = cotangent.double()
    expect_close(
        found,
        w * (g - (w * g).sum(dim=-1, keepdim=True)),
        atol=SINGLE,
        what=_("The gradient"),
        cause=_("NaN in front that is replaced by 0 afterwards can stay NaN on the way back."),
        next_step=_(
            "If the other checks pass: avoid the NaN instead of repairing it; no row of −∞ may "
            "enter the softmax."
        ),
    )


@softmax.check(points=0.5, hidden=True)
def masks_broadcast(answer: Answer, cases: Cases) -> None:
    """A mask may have fewer or smaller axes than the scores: it broadcasts."""
    B, H, T, S = cases.distinct(4, 2, 8)
    given = cases.normal(B, H, T, S)
    masks = [
        cases.mask(*shape) for shape in ((B, H, T, S), (T, S), (B, 1, 1, S), (S,), (1, H, T, S))
    ]
    column = torch.ones(T, 1, dtype=torch.bool)
    column[0] = False  # a query that may see nothing
    masks.append(column)
    for found, mask in zip([answer(given, mask) for mask in masks], masks, strict=True):
        expect_close(
            found,
            _softmax(given, mask),
            atol=SINGLE,
            what=_("The result with a mask that broadcasts"),
            cause=_(
                "The mask is expected to have the shape of the scores, or gets an axis too many."
            ),
            next_step=_(
                "If the other checks pass: leave broadcasting to torch; `masked_fill` and `where` "
                "do it by themselves."
            ),
        )


@softmax.check(points=0.5, hidden=True)
def shifting_a_row_changes_nothing(answer: Answer, cases: Cases) -> None:
    """Rows of large and of very negative scores give the same weights as rows near 0."""
    T, S = cases.distinct(2, 3, 9)
    given, mask = cases.normal(T, S), cases.mask(T, S)
    shift = torch.zeros(T, 1)
    shift[0], shift[1] = 3000.0, -3000.0
    shifted = [given + shift, given - 3000.0, given + 3000.0, given - 30000.0]
    found = [answer(item, mask) for item in shifted] + [answer(item) for item in shifted]
    masks = [mask] * 4 + [None] * 4
    for weights, item, which in zip(found, shifted * 2, masks, strict=True):
        expect_close(
            weights,
            _softmax(item, which),  # of the shifted scores as they were rounded
            # A right form may subtract the row's logsumexp, which single precision rounds to a few
            # units of 1.2e-7 of itself: a weight moves by that much of its own size.
            atol=1e-6 * item.abs().max().item(),
            what=_("The result for scores far from 0"),
            cause=_(
                "An exponential overflows or comes to 0 in a whole row, or the fill is not lower "
                "than the scores are."
            ),
            next_step=_(
                "If the other checks pass: use `torch.softmax`, or subtract the largest score of "
                "each row by itself; fill with the lowest number of the dtype."
            ),
        )


@softmax.check(points=0.5, hidden=True)
def forbidden_scores_do_not_matter(answer: Answer, cases: Cases) -> None:
    """Other scores in forbidden places, and large ones: nothing moves."""
    T, S = cases.distinct(2, 3, 9)
    given, mask = cases.normal(T, S), cases.mask(T, S)
    other = torch.where(mask, given, 20 * cases.uniform(T, S))
    one, two = answer(given, mask), answer(other, mask)
    for found in (one, two):
        expect_close(
            found,
            _softmax(given, mask),
            # A renormalised softmax loses a few digits to forbidden scores that are 20 higher.
            atol=1e-4,
            what=_("The result after a change of forbidden scores"),
            cause=_("The forbidden scores enter the sum that the allowed ones are divided by."),
            next_step=_("Fill the forbidden scores before the softmax."),
        )


@softmax.check(points=0.5, hidden=True)
def half_precision_with_an_empty_row(answer: Answer, cases: Cases) -> None:
    """In bf16 and fp16 all holds too, the empty row included; float64 gives float64."""
    T, S = cases.distinct(2, 3, 9)
    made = [(cases.normal(2, T, S, dtype=dtype), cases.mask(2, T, S)) for dtype in HALF]
    for _given, mask in made:
        mask[1, 0] = False
    found = [answer(given, mask) for given, mask in made]
    for weights, (given, mask) in zip(found, made, strict=True):
        expect_close(
            weights,
            _softmax(given, mask),
            atol=HALF[given.dtype],
            what=_("The result in half precision"),
            cause=_(
                "A constant is too large or too small for the dtype: fp16 ends at 65504, and "
                "1e-9 is 0 in it."
            ),
            next_step=_(
                "If the other checks pass: take the lowest number from "
                "`torch.finfo(scores.dtype).min`."
            ),
        )
    # last: what fails before must not be mixed up with it
    wide = cases.normal(2, T, S, dtype=torch.float64)
    for which in (None, torch.ones(T, S, dtype=torch.bool)):
        _expect_float64(answer(wide, which), (2, T, S), what=_("The result for float64"))


@softmax.check(points=0.5, hidden=True)
def leaves_scores_and_mask_alone(answer: Answer, cases: Cases) -> None:
    """Scores and mask are the same after a call that gives the weights."""
    T, S = cases.distinct(2, 3, 9)
    given, mask = cases.normal(2, T, S), cases.mask(2, T, S)
    run = answer.run([given, mask], echo=True)
    _expect_unchanged([given, mask], run.args)
    _expect_result(run.value, _softmax(given, mask))


# --- padding_mask --------------------------------------------------------------------------------

padding = Exercise(
    "padding_mask",
    title=_("The mask of a padded batch"),
    difficulty=1,
    minutes=6,
    hints=(
        _(
            "A comparison of a tensor with a number is a boolean tensor. Which comparison is True "
            "at real tokens?"
        ),
        _(
            "If keys and queries are mixed up, look where the axis of size 1 stands: in the "
            "middle, as all queries share one row. If real tokens are hidden when padding_id is "
            "not 0, compare with padding_id and not with 0, and test for equality and not for "
            "order."
        ),
        _(
            "1. real ← ids differ from padding_id, (B, S)\n"
            "2. return real with an axis of size 1 inserted before the last one, (B, 1, S)"
        ),
    ),
)


def _padded(cases: Cases, B: int, S: int, padding_id: int, *, left: bool = False) -> Tensor:
    """Ids of B > 1 sequences of several lengths; the first has padding, the last has none."""
    ids = cases.integers(1, 20, B, S)
    ids = torch.where(ids == padding_id, 20, ids)
    for b in range(B - 1):
        length = cases.integer(1, S)
        filler = slice(0, S - length) if left else slice(length, S)
        ids[b, filler] = padding_id
    return ids


def _expect_mask(
    found: object, ids: Tensor, padding_id: int, *, cause: str, next_step: str
) -> None:
    B, S = ids.shape
    mask = expect_tensor(found, (B, 1, S), what=_("The mask"))
    expect(
        mask.dtype == torch.bool,
        seen=_("The mask has dtype {dtype}, not torch.bool.").format(dtype=mask.dtype),
        cause=_(
            "Numbers that stand for True and False are added or multiplied where a mask is meant."
        ),
        next_step=_("Return the comparison itself."),
    )
    expect(
        torch.equal(mask[:, 0], ids.ne(padding_id)),
        seen=_("The mask is wrong at some tokens."),
        cause=cause,
        next_step=next_step,
    )


@padding.check(points=1)
def mask_has_an_axis_for_the_queries(answer: Answer, cases: Cases) -> None:
    """The mask is boolean and has shape (B, 1, S)."""
    B, S = cases.distinct(2, 3, 9)
    ids = _padded(cases, B, S, 0)
    mask = expect_tensor(answer(ids), (B, 1, S), what=_("The mask"))
    expect(
        mask.dtype == torch.bool,
        seen=_("The mask has dtype {dtype}, not torch.bool.").format(dtype=mask.dtype),
        cause=_(
            "Numbers that stand for True and False are added or multiplied where a mask is meant."
        ),
        next_step=_("Return the comparison itself."),
    )


@padding.check(points=1)
def real_tokens_are_allowed(answer: Answer, cases: Cases) -> None:
    """True at real tokens, False at padding."""
    B, S = cases.distinct(2, 3, 9)
    ids = _padded(cases, B, S, 0)
    _expect_mask(
        answer(ids),
        ids,
        0,
        cause=_(
            "True means allowed: it belongs to the real tokens, and every sequence has its own."
        ),
        next_step=_("Print the ids above the mask."),
    )


@padding.check(points=0.5, hidden=True)
def other_padding_ids(answer: Answer, cases: Cases) -> None:
    """The id of the padding is the argument, whatever it is; then 0 is a token like any other."""
    B, S = cases.distinct(2, 3, 9)
    found = []
    for padding_id in (cases.integer(5, 15), -1, 99):
        ids = _padded(cases, B, S, padding_id)
        ids[-1, 0] = 0
        found.append((answer(ids, padding_id), answer(ids, padding_id=padding_id), ids, padding_id))
    for one, two, ids, padding_id in found:
        for mask in (one, two):
            _expect_mask(
                mask,
                ids,
                padding_id,
                cause=_(
                    "The ids are compared with 0, or by order: a padding id may lie in the middle "
                    "of the vocabulary."
                ),
                next_step=_("Ask whether an id *equals* the argument padding_id."),
            )


@padding.check(points=0.5, hidden=True)
def padding_at_either_end(answer: Answer, cases: Cases) -> None:
    """The padding may stand in front, and a sequence may be nothing else."""
    B, S = cases.distinct(2, 3, 9)
    left, empty = _padded(cases, B, S, 0, left=True), _padded(cases, B, S, 0)
    empty[1] = 0
    for mask, ids in ((answer(left), left), (answer(empty), empty)):
        _expect_mask(
            mask,
            ids,
            0,
            cause=_(
                "The mask is made from the length of a sequence or from the first padding, as if "
                "padding stood at the end only."
            ),
            next_step=_("Decide for every token by itself."),
        )


@padding.check(points=0.5, hidden=True)
def leaves_the_ids_alone(answer: Answer, cases: Cases) -> None:
    """The ids are the same after a call that gives their mask."""
    B, S = cases.distinct(2, 3, 9)
    ids = _padded(cases, B, S, 0)
    run = answer.run([ids], echo=True)
    _expect_unchanged([ids], run.args)
    _expect_mask(
        run.value,
        ids,
        0,
        cause=_("The ids are not overwritten, but what is returned is not their mask."),
        next_step=_("Mend the values first."),
    )


# --- scaled_dot_product_attention ----------------------------------------------------------------

attention = Exercise(
    "scaled_dot_product_attention",
    title=_("Scaled dot-product attention"),
    difficulty=3,
    minutes=25,
    forbid=OWN_ATTENTION,
    hints=(
        _(
            "Four steps, of which you have written two already: scores, softmax, dropout, mixing. "
            "Which of them does the bias belong to, and which the mask?"
        ),
        _(
            "Rows that do not sum to 1: something happens to the weights after the softmax, or its "
            "axis is not the last. A wrong bias: it is added after the division by √d and before "
            "the softmax. Wrong dropout: it strikes out weights, not scores and not outputs, and "
            "divides what is left by 1 − p; `nn.functional.dropout(weights, dropout_p)` does both."
        ),
        _(
            "1. scores ← attention_scores(q, k), plus the bias if there is one\n"
            "2. weights ← masked_softmax(scores, mask)\n"
            "3. if dropout_p > 0: weights ← dropout of the weights\n"
            "4. return weights times v, and weights"
        ),
    ),
)


@attention.check(points=1)
def output_and_weights_have_their_shapes(answer: Answer, cases: Cases) -> None:
    """Output (B, T, d_v) and weights (B, T, S), in this order."""
    B, T, S, d, d_v = cases.distinct(5, 2, 9)
    q, k, v = _qkv(cases, B, T=T, S=S, d=d, d_v=d_v)
    _pair(answer(q, k, v), (B, T, d_v), (B, T, S))


@attention.check(points=1)
def weights_sum_to_one(answer: Answer, cases: Cases) -> None:
    """Every row of the weights sums to 1, and no weight is negative."""
    B, T, S, d, d_v = cases.distinct(5, 2, 9)
    q, k, v = _qkv(cases, B, T=T, S=S, d=d, d_v=d_v)
    _output, weights = _pair(answer(q, k, v), (B, T, d_v), (B, T, S))
    _expect_rows_sum_to_one(weights, what=_("the weights"))
    expect(
        (weights >= 0).all(),
        seen=_("Some weights are negative."),
        cause=_("What is returned are scores, or they were not put through a softmax."),
        next_step=_("Return the tensor that multiplies v."),
    )


@attention.check(points=1)
def weights_follow_the_scaled_scores(answer: Answer, cases: Cases) -> None:
    """The weights are the softmax of q·k / √d over the keys."""
    B, T, S, d, d_v = cases.distinct(5, 3, 12)
    q, k, v = _qkv(cases, B, T=T, S=S, d=d, d_v=d_v)
    _output, weights = _pair(answer(q, k, v), (B, T, d_v), (B, T, S))
    wanted = _attention(q, k, v)[1]
    _expect_rows_sum_to_one(weights, what=_("the weights"))
    if bool((weights > 0).all()):
        # Within a row, logarithms of weights differ as the scores do: the scale can be read off.
        found, expected = (
            torch.log(w.double()) - torch.log(w.double()).mean(dim=-1, keepdim=True)
            for w in (weights, wanted)
        )
        factor = float((found * expected).sum() / (expected * expected).sum())
        # see SINGLE; the logarithm of a small weight loses a digit
        same = torch.allclose(found, factor * expected, atol=1e-3 * max(1.0, factor), rtol=0)
        expect(
            not same or abs(factor - 1) < 1e-3,
            seen=_(
                "The weights are those of scores {factor:.3g} times too large (d = {d}, √d = "
                "{root:.3g})."
            ).format(factor=factor, d=d, root=math.sqrt(d)),
            cause=_("The scores are not divided by √d, but by another number, or not at all."),
            next_step=_("Print what you divide by; d is the last size of q."),
        )
    expect_close(
        weights,
        wanted,
        atol=SINGLE,
        what=_("The table of weights"),
        cause=_("The scores are not the scaled dot products of queries with keys."),
        next_step=_("Check `attention_scores` first, then what happens to its result."),
    )


@attention.check(points=1)
def output_mixes_the_values(answer: Answer, cases: Cases) -> None:
    """The output is the sum of the values, each multiplied by its weight."""
    B, T, S, d, d_v = cases.distinct(5, 2, 9)
    q, k, v = _qkv(cases, B, T=T, S=S, d=d, d_v=d_v)
    output, weights = _pair(answer(q, k, v), (B, T, d_v), (B, T, S))
    expect_close(
        output,
        weights.double() @ v.double(),
        atol=SINGLE,
        what=_("The output"),
        cause=_("It is not made from the weights that are returned and the values v."),
        next_step=_("Compare it with `weights @ v`."),
    )
    expect_close(
        output,
        _attention(q, k, v)[0],
        atol=SINGLE,
        what=_("The output"),
        cause=_("It is the mixture that the weights give, so the weights are wrong."),
        next_step=_("Mend the weights first."),
    )


@attention.check(points=1)
def mask_hides_keys(answer: Answer, cases: Cases) -> None:
    """Where the mask is False the weight is 0, and the allowed keys share everything."""
    B, T, S, d, d_v = cases.distinct(5, 3, 9)
    q, k, v = _qkv(cases, B, T=T, S=S, d=d, d_v=d_v)
    mask = cases.mask(B, T, S)
    output, weights = _pair(answer(q, k, v, mask), (B, T, d_v), (B, T, S))
    leak = weights.double().masked_fill(mask, 0.0).abs().nan_to_num(nan=1.0).max().item()
    expect(
        leak == 0,
        seen=_("A forbidden key has the weight {leak:.2g}.").format(leak=leak),
        cause=_(
            "The mask is not used, is read the other way round (True means allowed), or is applied "
            "to something else than the scores."
        ),
        next_step=_("Print one row of the mask beside the same row of the weights."),
    )
    _expect_rows_sum_to_one(weights, what=_("the weights under a mask"))
    wanted_output, wanted_weights = _attention(q, k, v, mask)
    for found, wanted, what in (
        (weights, wanted_weights, _("The table of weights under a mask")),
        (output, wanted_output, _("The output under a mask")),
    ):
        expect_close(
            found,
            wanted,
            atol=SINGLE,
            what=what,
            cause=_("Forbidden keys still have a say."),
            next_step=_("Give the mask to `masked_softmax`, together with the scaled scores."),
        )


@attention.check(points=0.5, hidden=True)
def scale_follows_the_width(answer: Answer, cases: Cases) -> None:
    """The divisor is √d for every width d, and depends on no other size."""
    B, T, S, d_v, *widths = cases.distinct(7, 2, 12)
    for d in [*widths, 1]:
        q, k, v = _qkv(cases, B, T=T, S=S, d=d, d_v=d_v)
        _output, weights = _pair(answer(q, k, v), (B, T, d_v), (B, T, S))
        expect_close(
            weights,
            _attention(q, k, v)[1],
            atol=SINGLE,
            what=_("The table of weights at another width"),
            cause=_("The divisor is a fixed number, or the root of another size."),
            next_step=_("If the other checks pass: read d off q where you divide: `q.size(-1)`."),
        )


@attention.check(points=0.5, hidden=True)
def padding_does_not_matter(answer: Answer, cases: Cases) -> None:
    """Hidden keys and values may be anything, and may be left out: the output stays."""
    B, T, S, d, d_v = cases.distinct(5, 3, 9)
    q, k, v = _qkv(cases, B, T=T, S=S, d=d, d_v=d_v)
    long_k = torch.cat([k, cases.normal(B, 2, d, scale=3.0)], dim=1)
    long_v = torch.cat([v, cases.normal(B, 2, d_v, scale=10.0)], dim=1)
    mask = torch.ones(B, 1, S + 2, dtype=torch.bool)
    mask[..., S:] = False
    found = [answer(q, k, v), answer(q, long_k, long_v, mask)]
    outputs = [
        _pair(found[0], (B, T, d_v), (B, T, S))[0],
        _pair(found[1], (B, T, d_v), (B, T, S + 2))[0],
    ]
    for output in outputs:
        expect_close(
            output,
            _attention(q, k, v)[0],
            atol=SINGLE,
            what=_("The output beside padding"),
            cause=_("Hidden keys take a share, or hidden values are mixed in."),
            next_step=_("Attend to six tokens, then to the same six and two hidden ones; compare."),
        )


@attention.check(points=0.5, hidden=True)
def query_without_keys_gets_zeros(answer: Answer, cases: Cases) -> None:
    """A query with no allowed key gets zero weights and a zero output."""
    B, T, S, d, d_v = cases.distinct(5, 3, 9)
    q, k, v = _qkv(cases, B, T=T, S=S, d=d, d_v=d_v)
    mask = cases.mask(B, T, S)
    mask[1, 2] = False
    output, weights = _pair(answer(q, k, v, mask), (B, T, d_v), (B, T, S))
    expect(
        not output[1, 2].isnan().any(),
        seen=_("A query with no allowed key gets NaN."),
        cause=_("All its scores are −∞, and the softmax divides 0 by 0."),
        next_step=_("Use your `masked_softmax`, which has a rule for this row."),
    )
    expect(
        (output[1, 2] == 0).all() and (weights[1, 2] == 0).all(),
        seen=_("A query with no allowed key attends to something."),
        cause=_("Equal scores share evenly, hidden keys included."),
        next_step=_("Use your `masked_softmax`, which has a rule for this row."),
    )
    expect_close(
        output,
        _attention(q, k, v, mask)[0],
        atol=SINGLE,
        what=_("The output beside a query without keys"),
        cause=_("What you do for this query changes others too."),
        next_step=_("If the other checks pass: change forbidden entries only."),
    )


@remembered
def _gradients(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, cotangent: Tensor
) -> dict[str, Tensor]:
    """By q, k and v, "0" to "2", and by "bias" where there is one."""
    leaves = {"0": q, "1": k, "2": v} | ({} if bias is None else {"bias": bias})
    leaves = {name: item.double().clone().requires_grad_() for name, item in leaves.items()}
    output, _weights = _attention(
        leaves["0"], leaves["1"], leaves["2"], mask, leaves.get("bias", 0.0)
    )
    found = torch.autograd.grad(output, list(leaves.values()), cotangent.double())
    return dict(zip(leaves, found, strict=True))


@attention.check(points=0.5, hidden=True)
def gradients_stay_finite(answer: Answer, cases: Cases) -> None:
    """All inputs get the gradient of the definition, also beside a query with no allowed key."""
    B, T, S, d, d_v = cases.distinct(5, 3, 9)
    q, k, v = _qkv(cases, B, T=T, S=S, d=d, d_v=d_v)
    bias = cases.normal(B, T, S)
    mask, cotangent = cases.mask(B, T, S), cases.normal(B, T, d_v)
    mask[0, 1] = False
    runs = [
        answer.run([q, k, v, mask], wrt=[0, 1, 2], of=0, cotangent=cotangent),
        # A bias can be a parameter; one that is written to in place raises here.
        answer.run([q, k, v], {"bias": bias}, wrt=[0, 1, 2, "bias"], of=0, cotangent=cotangent),
    ]
    wanted = [
        _gradients(q, k, v, mask, None, cotangent),
        _gradients(q, k, v, None, bias, cotangent),
    ]
    for run, gradients in zip(runs, wanted, strict=True):
        for name, gradient in gradients.items():
            found = run.grads[name]
            expect(
                found is not None,
                seen=_("No gradient reaches one of q, k, v and the bias."),
                cause=_("The values left the graph on the way: through `detach` or NumPy."),
                next_step=_("Compute with torch operations from the first line to the last."),
            )
            expect_close(
                found,
                gradient,
                # a gradient of q or k sums over keys, over d_v and over queries: a few SINGLE
                atol=5 * SINGLE,
                what=_("A gradient"),
                cause=_(
                    "A NaN that was replaced in front stays on the way back, or a part of the "
                    "computation is cut off the graph."
                ),
                next_step=_("If the other checks pass: avoid the NaN instead of repairing it."),
            )


@attention.check(points=0.5, hidden=True)
def bias_is_added_to_the_scaled_scores(answer: Answer, cases: Cases) -> None:
    """The bias is added to the scaled scores, before the softmax, with a mask and without."""
    B, T, S, d, d_v = cases.distinct(5, 3, 9)
    q, k, v = _qkv(cases, B, T=T, S=S, d=d, d_v=d_v)
    mask = cases.mask(B, T, S)
    runs = [
        (cases.normal(B, T, S), None),
        (cases.normal(T, S), mask),
        (cases.normal(B, 1, S), mask),
    ]
    found = [answer(q, k, v, which, bias=bias) for bias, which in runs]
    for value, (bias, which) in zip(found, runs, strict=True):
        output, weights = _pair(value, (B, T, d_v), (B, T, S))
        wanted = _attention(q, k, v, which, bias.double())
        for one, other in ((weights, wanted[1]), (output, wanted[0])):
            expect_close(
                one,
                other,
                atol=SINGLE,
                what=_("The result with a bias"),
                cause=_(
                    "The bias is left out, is divided by √d as well, or comes after the softmax."
                ),
                next_step=_("Add it in the line after the division."),
            )


def _under_dropout(answer: Answer, cases: Cases, p: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output and weights under dropout, the weights without, and the values; all float64."""
    B, T, S, d, d_v = 4, 13, 37, 5, 7
    q, k, v = _qkv(cases, B, T=T, S=S, d=d, d_v=d_v)
    run = answer.run([q, k, v], {"dropout_p": p}, seed=cases.seed())
    output, weights = _pair(run.value, (B, T, d_v), (B, T, S))
    return output.double(), weights.double(), _attention(q, k, v)[1], v.double()


@attention.check(points=0.5, hidden=True)
def dropout_strikes_out_weights(answer: Answer, cases: Cases) -> None:
    """Under dropout each weight is 0 or the weight without dropout divided by 1 - p."""
    found = [_under_dropout(answer, cases, p) for p in (0.2, 0.6)]
    for p, (_output, weights, clean, _values) in zip((0.2, 0.6), found, strict=True):
        dropped = weights == 0
        # 1924 weights: the share that is dropped has a deviation below 0.012; this allows six
        expect(
            abs(dropped.double().mean().item() - p) < 0.07,
            seen=_("The share of weights that are 0 is not the dropout probability."),
            cause=_(
                "Dropout is left out, strikes out something else than weights, or takes p for the "
                "probability to *keep* one."
            ),
            next_step=_("Count `(weights == 0).float().mean()` with dropout_p = 0.2 and 0.6."),
        )
        expect_close(
            weights,
            torch.where(dropped, 0.0, clean / (1 - p)),
            atol=SINGLE,
            what=_("The table of weights under dropout"),
            cause=_(
                "What is left must be divided by 1 − p, and by nothing else: the rows need not sum "
                "to 1."
            ),
            next_step=_("Compare one row with the row that dropout_p = 0 gives."),
        )
        # Struck out independently, two rows agree in p² + (1-p)² of their places, not in all.
        expect(
            bool((dropped[:, :1] != dropped).any()) and bool((dropped[:1] != dropped).any()),
            seen=_("All queries lose the same keys."),
            cause=_("One draw serves several rows or sequences."),
            next_step=_("Draw for every entry of the weights."),
        )
    again = _under_dropout(answer, cases, 0.6)[1]
    expect(
        bool(((again == 0) != (found[1][1] == 0)).any()),
        seen=_("Two calls strike out the same weights."),
        cause=_(
            "The random numbers are the same in every call: a seed is set inside the function."
        ),
        next_step=_("Leave the generator alone; the caller seeds it, if at all."),
    )


@attention.check(points=0.5, hidden=True)
def returned_weights_made_the_output(answer: Answer, cases: Cases) -> None:
    """Under dropout too, the output is the returned weights times v."""
    output, weights, _clean, v = _under_dropout(answer, cases, 0.5)
    expect_close(
        output,
        weights @ v,
        # weights of up to 2 times values of order 1, 37 of them
        atol=5 * SINGLE,
        what=_("The output under dropout"),
        cause=_(
            "The weights that are returned are those before dropout, or the output itself was "
            "struck out."
        ),
        next_step=_("Return the same tensor that multiplies v."),
    )


@attention.check(points=0.5, hidden=True)
def any_axes_and_masks_that_broadcast(answer: Answer, cases: Cases) -> None:
    """Works without a batch and with two axes in front, and with masks of every shape."""
    B, H, T, S, d, d_v = cases.distinct(6, 2, 9)
    jobs: list[tuple[tuple[int, ...], tuple[int, ...] | None]] = []
    jobs += [((), shape) for shape in ((T, S), (1, S), (S,))]
    jobs += [((), None), ((B, H), None)]
    jobs += [((B, H), shape) for shape in ((B, H, T, S), (B, 1, 1, S), (T, S), (1, H, 1, S))]
    made = [
        (
            _qkv(cases, *front, T=T, S=S, d=d, d_v=d_v),
            None if shape is None else cases.mask(*shape),
            front,
        )
        for front, shape in jobs
    ]
    found = [answer(*inputs, mask) for inputs, mask, _front in made]
    for value, (inputs, mask, front) in zip(found, made, strict=True):
        output, weights = _pair(value, (*front, T, d_v), (*front, T, S))
        wanted = _attention(*inputs, mask)
        for one, other in ((weights, wanted[1]), (output, wanted[0])):
            expect_close(
                one,
                other,
                atol=SINGLE,
                what=_("The result for other axes in front, or a mask that broadcasts"),
                cause=_(
                    "An axis is counted from the front, or the mask is expected in one shape only."
                ),
                next_step=_(
                    "If the other checks pass: count axes from the end, and leave broadcasting to "
                    "torch."
                ),
            )


@attention.check(points=0.5, hidden=True)
def works_in_half_precision_too(answer: Answer, cases: Cases) -> None:
    """In bf16 and fp16 all holds, with mask, bias, a query without keys; float64 stays float64."""
    B, T, S, d, d_v = cases.distinct(5, 3, 9)
    made = []
    for dtype in HALF:
        mask, bias = cases.mask(B, T, S), cases.normal(T, S, dtype=dtype)
        mask[1, 0] = False
        made.append((_qkv(cases, B, T=T, S=S, d=d, d_v=d_v, dtype=dtype), mask, bias))
    found = [answer(*inputs, mask, bias=bias) for inputs, mask, bias in made]
    for value, (inputs, mask, bias) in zip(found, made, strict=True):
        output, weights = _pair(value, (B, T, d_v), (B, T, S))
        wanted = _attention(*inputs, mask, bias.double())
        for one, other in ((weights, wanted[1]), (output, wanted[0])):
            expect_close(
                one,
                other,
                atol=HALF[bias.dtype],
                what=_("The result in half precision"),
                cause=_("A constant does not exist in this dtype (fp16 ends at 65504)."),
                next_step=_(
                    "If the other checks pass: take the lowest number from "
                    "`torch.finfo(scores.dtype).min`."
                ),
            )
    # last: what fails before must not be mixed up with it
    wide = _qkv(cases, B, T=T, S=S, d=d, d_v=d_v, dtype=torch.float64)
    table = answer(*wide, cases.mask(B, T, S))
    for item, shape in zip(
        _pair(table, (B, T, d_v), (B, T, S)), ((B, T, d_v), (B, T, S)), strict=True
    ):
        _expect_float64(item, shape, what=_("The result for float64"))


@attention.check(points=0.5, hidden=True)
def large_scores_stay_finite(answer: Answer, cases: Cases) -> None:
    """Scores in the hundreds give finite weights."""
    B, T, S, d, d_v = cases.distinct(5, 3, 9)
    q, k, v = _qkv(cases, B, T=T, S=S, d=d, d_v=d_v)
    output, weights = _pair(answer(30 * q, 30 * k, v), (B, T, d_v), (B, T, S))
    wanted = _attention(30 * q, 30 * k, v)
    for one, other in ((weights, wanted[1]), (output, wanted[0])):
        expect_close(
            one,
            other,
            # a score of 1000 is rounded to 6e-5, and so are the weights, a few times over
            atol=1e-3,
            what=_("The result for large scores"),
            cause=_("An exponential overflows: infinity divided by infinity is NaN."),
            next_step=_(
                "If the other checks pass: use `torch.softmax`, or subtract the largest score of "
                "each row first."
            ),
        )


@attention.check(points=0.5, hidden=True)
def leaves_q_k_v_and_mask_alone(answer: Answer, cases: Cases) -> None:
    """All inputs are the same after a call that gives output and weights."""
    B, T, S, d, d_v = cases.distinct(5, 3, 9)
    q, k, v = _qkv(cases, B, T=T, S=S, d=d, d_v=d_v)
    inputs = [q, k, v, cases.mask(B, T, S)]
    run = answer.run(inputs, echo=True)
    _expect_unchanged(inputs, run.args)
    found = _pair(run.value, (B, T, d_v), (B, T, S))
    for item, wanted in zip(found, _attention(q, k, v, inputs[3]), strict=True):
        _expect_result(item, wanted)


# --- mask_test -----------------------------------------------------------------------------------

mask_tests = Exercise(
    "mask_test",
    title=_("A test for masks"),
    difficulty=4,
    minutes=25,
    hints=(
        _(
            "What would attention give if the forbidden keys had never been there? Can you compute "
            "that, for one query, without any mask?"
        ),
        _(
            "If a right implementation is refused, you compare floating numbers with `==`, or you "
            "compare something that may differ. If a wrong one gets through, ask on which of your "
            "inputs it differs: is your batch larger than 1, does each query have a mask of its "
            "own, do you look at the output as well as at the weights, is your tolerance below "
            "0.001?"
        ),
        _(
            "1. random q, k, v, of sizes that all differ; a random mask (B, T, S) with a True in "
            "each row, and one of shape (B, 1, S)\n"
            "2. for each mask, each sequence b, each query t:\n"
            "     seen ← the keys that are allowed\n"
            "     expected ← softmax of k[b, seen] · q[b, t] / √d\n"
            "     assert: weights at seen are close to expected, the others are 0\n"
            "     assert: output[b, t] is close to expected times v[b, seen]"
        ),
    ),
)

Implementation = Callable[..., tuple[Tensor, Tensor]]


def _weights(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))


def _full(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor:
    shape = (*q.shape[:-1], k.size(-2))
    return torch.ones(shape, dtype=torch.bool) if mask is None else mask.expand(shape)


def _filling(fill: Callable[[Tensor, Tensor], Tensor]) -> Implementation:
    """Attention whose scores go through ``fill(scores, mask)`` before the softmax."""

    def implementation(
        q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        scores = fill(_weights(q, k), _full(mask, q, k))
        weights = torch.softmax(scores, dim=-1)
        return weights @ v, weights

    return implementation


def _after_softmax(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(_weights(q, k), dim=-1) * _full(mask, q, k)
    return weights @ v, weights


def _renormalised(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(_weights(q, k), dim=-1) * _full(mask, q, k)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights @ v, weights


def _in_double(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    output, weights = _attention(q, k, v, _full(mask, q, k))
    return output.to(v.dtype), weights.to(v.dtype)


def _output_unmasked(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    return torch.softmax(_weights(q, k), dim=-1) @ v, _infinite(q, k, v, mask)[1]


def _values_masked(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    # The output lacks the forbidden values, the weights know nothing of it.
    weights = torch.softmax(_weights(q, k), dim=-1)
    return (weights * _full(mask, q, k)) @ v, weights


def _low(scores: Tensor) -> float:
    # Half precision has no -1e9: a mistake must show by its values, not by an error there.
    return max(-1e9, torch.finfo(scores.dtype).min)


_infinite = _filling(lambda scores, mask: scores.masked_fill(~mask, -torch.inf))
_billion = _filling(lambda scores, mask: scores.masked_fill(~mask, _low(scores)))
_ignored = _filling(lambda scores, _mask: scores)
_inverted = _filling(lambda scores, mask: scores.masked_fill(mask, _low(scores)))
_zero_fill = _filling(lambda scores, mask: scores * mask)
_weak_fill = _filling(lambda scores, mask: scores.masked_fill(~mask, -5.0))
_first_sequence = _filling(
    # without a batch there is no other sequence
    lambda scores, mask: scores.masked_fill(
        ~(mask[:1] if mask.dim() > 2 else mask).expand_as(mask), _low(scores)
    )
)
_first_query = _filling(
    lambda scores, mask: scores.masked_fill(~mask[..., :1, :].expand_as(mask), _low(scores))
)


def _evenly_shared(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    # What the forbidden keys had is shared out evenly: zeros where they should be, rows of 1.
    allowed = _full(mask, q, k)
    weights = torch.softmax(_weights(q, k), dim=-1) * allowed
    rest = 1 - weights.sum(dim=-1, keepdim=True)
    weights = weights + rest * allowed / allowed.sum(dim=-1, keepdim=True)
    return weights @ v, weights


def _weights_unmasked(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    return _infinite(q, k, v, mask)[0], torch.softmax(_weights(q, k), dim=-1)


def _weights_struck_out(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    return _infinite(q, k, v, mask)[0], _after_softmax(q, k, v, mask)[1]


def _right_for_no_query(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    # Grossly wrong for any query that is not zero: it shows what a test looks at.
    output, weights = _infinite(q, k, v, mask)
    return (output + 9, weights + 9) if bool(q.any()) else (output, weights)


def _full_masks_only(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    # A mask that is smaller than the scores, and broadcasts, is not read.
    small = mask is not None and mask.shape != (*q.shape[:-1], k.size(-2))
    return _infinite(q, k, v, None if small else mask)


def _takes(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> None:
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError


_RIGHT_IMPLEMENTATIONS = (_infinite, _billion, _renormalised, _in_double)


def _expect_judged(
    answer: Answer,
    cases: Cases,
    wrong: tuple[Implementation, ...],
    *,
    probes: tuple[Implementation, ...] = (),
    cause: str,
    next_step: str,
) -> None:
    """The learner's test accepts what is right and refuses each of ``wrong``.

    Args:
        probes: tell one weak test from another; no points depend on them.
    """
    accepted, refused = verdicts(
        answer, cases, right=_RIGHT_IMPLEMENTATIONS[:2], wrong=wrong, probes=probes, takes=_takes
    )
    expect(
        all(accepted),
        seen=_("Your test refuses an implementation that is right."),
        cause=_(
            "It demands something that the definition does not, or compares floating numbers "
            "without a tolerance."
        ),
        next_step=_(
            "Run it on your own scaled_dot_product_attention and see which assertion fails."
        ),
    )
    expect(
        all(refused),
        seen=_("Your test lets a wrong implementation through."),
        cause=cause,
        next_step=next_step,
    )


@mask_tests.check(points=1)
def finds_a_mask_after_the_softmax(answer: Answer, cases: Cases) -> None:
    """Accepts right implementations, and refuses one that strikes out weights after the softmax."""
    _expect_judged(
        answer,
        cases,
        (_after_softmax,),
        cause=_("Its forbidden weights are 0, but the allowed ones of a row no longer sum to 1."),
        next_step=_("Assert that the allowed weights of each row share out everything."),
    )


@mask_tests.check(points=1)
def finds_a_mask_not_read_or_upside_down(answer: Answer, cases: Cases) -> None:
    """Refuses an implementation that ignores the mask, and one that takes True as forbidden."""
    _expect_judged(
        answer,
        cases,
        (_ignored, _inverted),
        cause=_("Its weights are positive where your mask is False."),
        next_step=_("Assert that forbidden keys have no weight, with a mask that is not all True."),
    )


@mask_tests.check(points=1, hidden=True)
def finds_a_leak(answer: Answer, cases: Cases) -> None:
    """Refuses implementations whose forbidden keys keep some weight."""
    _expect_judged(
        answer,
        cases,
        (_zero_fill, _weak_fill),
        cause=_(
            "Its forbidden scores are filled with a number that still has an exponential: the rows "
            "sum to 1, and forbidden keys have a share of some thousandths, or more."
        ),
        next_step=_("Assert that forbidden weights are 0, with a tolerance well below 0.001."),
    )


@mask_tests.check(points=1, hidden=True)
def finds_a_wrong_output(answer: Answer, cases: Cases) -> None:
    """Refuses implementations whose weights and output do not fit together."""
    _expect_judged(
        answer,
        cases,
        (_output_unmasked, _values_masked, _weights_unmasked, _weights_struck_out),
        cause=_("Of its two results, one is masked rightly and the other is not."),
        next_step=_("Assert something of the weights and something of the output."),
    )


@mask_tests.check(points=1, hidden=True)
def finds_a_mask_used_for_others(answer: Answer, cases: Cases) -> None:
    """Refuses implementations that use one sequence's, or one query's, mask for all."""
    _expect_judged(
        answer,
        cases,
        (_first_sequence, _first_query),
        cause=_(
            "It is right for the first sequence, or for the first query, and your test looks no "
            "further, or its masks are all alike."
        ),
        next_step=_("Give every query of every sequence another mask, and check them all."),
    )


@mask_tests.check(points=0.5, hidden=True)
def finds_other_shares(answer: Answer, cases: Cases) -> None:
    """Refuses one whose allowed keys have everything, in other shares than without the rest."""
    _expect_judged(
        answer,
        cases,
        (_evenly_shared,),
        probes=(_right_for_no_query,),
        cause=_(
            "Its forbidden weights are 0 and its rows sum to 1, but the shares are not those that "
            "the allowed keys would have by themselves."
        ),
        next_step=_("Leave the forbidden keys out, attend to the others, and compare."),
    )


@mask_tests.check(points=0.5, hidden=True)
def finds_a_small_mask_not_read(answer: Answer, cases: Cases) -> None:
    """Refuses one that reads masks of the shape of the scores alone."""
    _expect_judged(
        answer,
        cases,
        (_full_masks_only,),
        cause=_("It ignores masks such as (B, 1, S) and (T, S), which broadcast to (B, T, S)."),
        next_step=_("Test with a mask of shape (B, 1, S) as well."),
    )


@mask_tests.check(points=1, hidden=True)
def accepts_every_style(answer: Answer, cases: Cases) -> None:
    """Accepts right implementations in other styles, and still refuses wrong ones."""
    accepted, refused = verdicts(
        answer,
        cases,
        right=_RIGHT_IMPLEMENTATIONS,
        wrong=(_after_softmax, _ignored, _zero_fill),
        takes=_takes,
    )
    expect(
        all(accepted),
        seen=_("Your test refuses an implementation that is right."),
        cause=_(
            "Right implementations differ in the last digits, in how they fill, and in the order "
            "of their steps."
        ),
        next_step=_(
            "Compare weights and outputs with a tolerance of about 1e-5, and nothing else."
        ),
    )
    expect(
        all(refused),
        seen=_("Your test accepts right implementations, and wrong ones as well."),
        cause=_("Accepting is worth something only where something is refused."),
        next_step=_("Begin with a mask that is never read: which assertion fails for it?"),
    )


# --- SelfAttention -------------------------------------------------------------------------------

layer = Exercise(
    "SelfAttention",
    title=_("The self-attention layer"),
    difficulty=2,
    minutes=15,
    forbid=OWN_ATTENTION,
    hints=(
        _(
            "What does the layer learn? And what is left to do in `forward`, once q, k and v are "
            "there?"
        ),
        _(
            "An AttributeError about a missing module, or `cannot assign module`: "
            "`super().__init__()` comes before the first layer. A wrong scale: it is the width d "
            "of the queries that counts, not D. Parameters under other names: the attributes are "
            "called query, key and value."
        ),
        _(
            "__init__: super().__init__(); three nn.Linear(D, d, bias=bias)\n"
            "forward: q, k, v ← the three maps of x; return scaled_dot_product_attention(q, k, v, "
            "mask)"
        ),
    ),
)


def _loaded(answer: Answer, cases: Cases, D: int, d: int) -> tuple[Answer, dict[str, Tensor]]:
    """A layer with weights of ours, which keep scores near 1; and these weights."""
    module = answer(D, d)
    state: dict[str, Tensor] = {}
    for name in ("query", "key", "value"):
        state[f"{name}.weight"] = cases.normal(d, D, scale=1 / math.sqrt(D))
        state[f"{name}.bias"] = cases.normal(d, scale=0.5)
    # Buffers are the learner's own affair: a constant kept beside the maps keeps its value.
    own = module.state()
    buffers = {name: own[name] for name in own.keys() - module.parameters().keys()}
    module.load({**buffers, **state})
    return module, state


@remembered
def _mapped(x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (
        x.double() @ state[f"{name}.weight"].double().T + state[f"{name}.bias"].double()
        for name in ("query", "key", "value")
    )
    return q, k, v


@layer.check(points=1)
def has_three_linear_maps(answer: Answer, cases: Cases) -> None:
    """The parameters are those of query, key and value, each from D to d, each with a bias."""
    D, d = cases.distinct(2, 3, 9)
    found = {name: tuple(item.shape) for name, item in answer(D, d).parameters().items()}
    wanted: dict[str, tuple[int, ...]] = {}
    for name in ("query", "key", "value"):
        wanted |= {f"{name}.weight": (d, D), f"{name}.bias": (d,)}
    missing = sorted(wanted.keys() - found.keys())
    surplus = sorted(found.keys() - wanted.keys())
    expect(
        not missing and not surplus,
        seen=_("Parameters: {problems}.").format(
            problems=", ".join(
                [_("{name} is missing").format(name=name) for name in missing]
                + [_("{name} is not asked for").format(name=name) for name in surplus]
            )
        ),
        cause=_(
            "A layer has another name, is not an attribute of the module, serves twice, or is one "
            "too many."
        ),
        next_step=_("Assign three layers in `__init__`: self.query, self.key, self.value."),
    )
    expect(
        found == wanted,
        seen=_("The shapes of the parameters are {found}; expected {wanted}.").format(
            found=found, wanted=wanted
        ),
        cause=_(
            "The sizes of a linear layer stand in another order, or come from another argument."
        ),
        next_step=_("`nn.Linear(in, out)` has a weight of shape (out, in)."),
    )


@layer.check(points=1)
def bias_is_a_choice(answer: Answer, cases: Cases) -> None:
    """With bias=False there is none, with bias=True there is."""
    D, d = cases.distinct(2, 3, 9)
    without = answer(D, d, bias=False)
    names = [sorted(without.parameters()), sorted(answer(D, d, bias=True).parameters())]
    found = without(cases.normal(2, 4, D))
    expect(
        not any("bias" in name for name in names[0]) and any("bias" in name for name in names[1]),
        seen=_("The parameters do not follow the argument `bias`."),
        cause=_("The argument is not handed on to the three layers."),
        next_step=_("`nn.Linear(..., bias=bias)`."),
    )
    _pair(found, (2, 4, d), (2, 4, 4))


@layer.check(points=1)
def attends_with_its_own_maps(answer: Answer, cases: Cases) -> None:
    """With given weights, output and weights are those of the definition."""
    B, T, D, d = cases.distinct(4, 3, 9)
    module, state = _loaded(answer, cases, D, d)
    x = cases.normal(B, T, D)
    output, weights = _pair(module(x), (B, T, d), (B, T, T))
    wanted = _attention(*_mapped(x, state))
    _expect_rows_sum_to_one(weights, what=_("the weights"))
    expect_close(
        weights,
        wanted[1],
        atol=SINGLE,
        what=_("The table of weights"),
        cause=_("Queries and keys do not come from their own maps, or the scale is not √d."),
        next_step=_("Write the shapes of q and k behind the lines that make them."),
    )
    expect_close(
        output,
        wanted[0],
        atol=SINGLE,
        what=_("The output"),
        cause=_(
            "The weights are right, so the values are not those of the value map, or something is "
            "done to the output."
        ),
        next_step=_("Compare the output with `weights @ self.value(x)`."),
    )


@layer.check(points=1)
def mask_reaches_the_scores(answer: Answer, cases: Cases) -> None:
    """A mask hides keys, for masks of shape (B, T, T), (B, 1, T) and (T, T)."""
    B, T, D, d = cases.distinct(4, 3, 9)
    module, state = _loaded(answer, cases, D, d)
    x = cases.normal(B, T, D)
    masks = [cases.mask(*shape) for shape in ((B, T, T), (B, 1, T), (T, T))]
    found = [module(x, mask) for mask in masks]
    for value, mask in zip(found, masks, strict=True):
        output, weights = _pair(value, (B, T, d), (B, T, T))
        wanted = _attention(*_mapped(x, state), mask)
        for one, other in ((weights, wanted[1]), (output, wanted[0])):
            expect_close(
                one,
                other,
                atol=SINGLE,
                what=_("The result under a mask"),
                cause=_("The mask is not handed on, or is changed on the way."),
                next_step=_("Give the mask to your attention function as it came."),
            )


@layer.check(points=0.5, hidden=True)
def scale_is_the_root_of_d(answer: Answer, cases: Cases) -> None:
    """The divisor follows d, whatever D is."""
    T, D, *widths = cases.distinct(5, 3, 12)
    for d in [*widths, 1]:
        module, state = _loaded(answer, cases, D, d)
        x = cases.normal(2, T, D)
        _output, weights = _pair(module(x), (2, T, d), (2, T, T))
        expect_close(
            weights,
            _attention(*_mapped(x, state))[1],
            atol=SINGLE,
            what=_("The table of weights at another width"),
            cause=_("The divisor is a fixed number, or the root of another size."),
            next_step=_(
                "If the other checks pass: divide by the root of the width that the queries have "
                "after their map."
            ),
        )


@remembered
def _layer_gradients(x: Tensor, state: dict[str, Tensor], cotangent: Tensor) -> dict[str, Tensor]:
    """By the input, "0", and by each parameter."""
    leaves = {"0": x.double().clone().requires_grad_()}
    leaves |= {name: item.double().clone().requires_grad_() for name, item in state.items()}
    output = _attention(*_mapped(leaves["0"], {n: leaves[n] for n in state}))[0]
    found = torch.autograd.grad(output, list(leaves.values()), cotangent.double())
    return dict(zip(leaves, found, strict=True))


@layer.check(points=0.5, hidden=True)
def every_parameter_learns(answer: Answer, cases: Cases) -> None:
    """Every parameter and the input get the gradient of the definition."""
    B, T, D, d = cases.distinct(4, 3, 9)
    module, state = _loaded(answer, cases, D, d)
    x, cotangent = cases.normal(B, T, D), cases.normal(B, T, d)
    run = module.run([x], wrt=[0, "parameters"], of=0, cotangent=cotangent)
    for name, gradient in _layer_gradients(x, state, cotangent).items():
        found = run.grads.get(name)
        expect(
            found is not None,
            seen=_("A parameter, or the input, gets no gradient."),
            cause=_("It is not used in `forward`, or its values left the graph on the way."),
            next_step=_("Look for `detach`, `.data`, and for layers that `forward` does not call."),
        )
        expect_close(
            found,
            gradient,
            # sums over sequences and queries of terms of order 1
            atol=1e-4,
            what=_("A gradient"),
            cause=_("The values differ from the definition, or a part is cut off the graph."),
            next_step=_("Mend the values first."),
        )


@layer.check(points=0.5, hidden=True)
def sequences_and_order_do_not_mix(answer: Answer, cases: Cases) -> None:
    """A sequence alone gives what it gives in a batch; shuffled words give shuffled outputs."""
    B, T, D, d = cases.distinct(4, 3, 9)
    module, _state = _loaded(answer, cases, D, d)
    x = cases.normal(B, T, D)
    order = cases.permutation(T)
    replies = [module(x), module(x[1:2]), module(x[:, order])]
    whole, _table = _pair(replies[0], (B, T, d), (B, T, T))
    alone, _table = _pair(replies[1], (1, T, d), (1, T, T))
    shuffled, _table = _pair(replies[2], (B, T, d), (B, T, T))
    expect_close(
        alone,
        whole[1:2].double(),
        atol=SINGLE,
        what=_("The output of a sequence by itself"),
        cause=_("Sequences of a batch see one another: a softmax or a sum runs over the batch."),
        next_step=_("If the other checks pass: count axes from the end."),
    )
    expect_close(
        shuffled,
        whole[:, order].double(),
        atol=SINGLE,
        what=_("The output for shuffled words"),
        cause=_("Something depends on where a word stands; attention does not."),
        next_step=_(
            "If the other checks pass: look for indices, positions or masks that are made inside "
            "the layer."
        ),
    )


@layer.check(points=0.5, hidden=True)
def word_without_keys_gets_zeros(answer: Answer, cases: Cases) -> None:
    """A word that may see none gets zero weights and a zero output, with finite gradients."""
    B, T, D = cases.distinct(3, 3, 9)
    module, state = _loaded(answer, cases, D, D)
    x, mask = cases.normal(B, T, D), cases.mask(B, T, T)
    mask[1, 2] = False
    run = module.run([x, mask], wrt=[0, "parameters"], of=0)
    output, weights = _pair(run.value, (B, T, D), (B, T, T))
    wanted = _attention(*_mapped(x, state), mask)
    for one, other in ((weights, wanted[1]), (output, wanted[0])):
        expect_close(
            one,
            other,
            atol=SINGLE,
            what=_("The result beside a word that may see none"),
            cause=_("A row of −∞ gives NaN, and a row of equal numbers an even share."),
            next_step=_("`masked_softmax` has a rule for this row."),
        )
    expect(
        all(item is not None and bool(item.isfinite().all()) for item in run.grads.values()),
        seen=_("A gradient is missing, NaN or infinite."),
        cause=_("NaN that was replaced in front stays on the way back."),
        next_step=_("If the other checks pass: avoid the NaN instead of repairing it."),
    )


@layer.check(points=0.5, hidden=True)
def same_answer_twice(answer: Answer, cases: Cases) -> None:
    """In training and in evaluation, the same input gives the same output, and stays as it was."""
    B, T, D, d = cases.distinct(4, 3, 9)
    module, state = _loaded(answer, cases, D, d)
    x = cases.normal(B, T, D)
    first = module.run([x], echo=True, seed=1)
    module(x, cases.mask(T, T))  # a mask belongs to its call, and to no later one
    module.eval()
    second = module.run([x], seed=2)
    wanted = _attention(*_mapped(x, state))[0]
    for run in (first, second):
        output, _table = _pair(run.value, (B, T, d), (B, T, T))
        expect_close(
            output,
            wanted,
            atol=SINGLE,
            what=_("The output of a repeated call"),
            cause=_(
                "There is randomness in `forward`, dropout or layers that are made there; or the "
                "layer keeps something of an earlier call, such as its mask."
            ),
            next_step=_(
                "If the other checks pass: make layers in `__init__`; this layer has no dropout, "
                "and nothing that one call leaves behind for the next."
            ),
        )
    _expect_unchanged([x], first.args)


# --- attend_to_memory ----------------------------------------------------------------------------

bugs = Exercise(
    "attend_to_memory",
    title=_("Three bugs"),
    difficulty=3,
    minutes=20,
    forbid=OWN_ATTENTION,
    given="as_handed_out",
    hints=(
        _(
            "What should a row of the weights sum to, without a mask and with one? And what should "
            "the deviation of the scores be, when D is 64 and d is 4?"
        ),
        _(
            "Print `weights.sum(dim=-1)` without a mask: not 1 means that the axis is wrong. Print "
            "it with a mask: not 1 means that the mask comes too late. Then make D much larger "
            "than d and look at the scores: whose width stands under the root?"
        ),
        _(
            "1. The divisor: the width of q, after its map.\n"
            "2. The axis of the softmax: the last, over the keys.\n"
            "3. The mask: before the softmax; `masked_softmax` does both, the query without keys "
            "included."
        ),
    ),
)


def _memory_case(
    cases: Cases, B: int, T: int, S: int, D: int, d: int, d_v: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Inputs whose queries, keys and values have entries of deviation 1."""
    return (
        cases.normal(B, T, D),
        cases.normal(B, S, D),
        cases.normal(D, d, scale=1 / math.sqrt(D)),
        cases.normal(D, d, scale=1 / math.sqrt(D)),
        cases.normal(D, d_v, scale=1 / math.sqrt(D)),
    )


@remembered
def _projected(
    x: Tensor, memory: Tensor, weight_q: Tensor, weight_k: Tensor, weight_v: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    x, memory = x.double(), memory.double()
    return x @ weight_q.double(), memory @ weight_k.double(), memory @ weight_v.double()


@bugs.check(points=0)
def shapes_are_still_right(answer: Answer, cases: Cases) -> None:
    """Output (B, T, d_v) and weights (B, T, S): that was right, and must stay so."""
    B, T, S, D, d, d_v = cases.distinct(6, 2, 10)
    inputs = _memory_case(cases, B, T, S, D, d, d_v)
    _pair(answer(*inputs), (B, T, d_v), (B, T, S))


@bugs.check(points=1)
def agrees_with_the_definition(answer: Answer, cases: Cases) -> None:
    """Without a mask, output and weights are those of the definition."""
    B, T, S, D, d, d_v = cases.distinct(6, 3, 12)
    inputs = _memory_case(cases, B, T, S, D, d, d_v)
    output, weights = _pair(answer(*inputs), (B, T, d_v), (B, T, S))
    wanted = _attention(*_projected(*inputs))
    for one, other in ((weights, wanted[1]), (output, wanted[0])):
        expect_close(
            one,
            other,
            atol=SINGLE,
            what=_("The result without a mask"),
            cause=_("At least one of the faults is left, or a new one came in."),
            next_step=_("Print the row sums of the weights, and the deviation of the scores."),
        )


@bugs.check(points=1)
def agrees_under_a_mask(answer: Answer, cases: Cases) -> None:
    """With masks, output and weights are those of the definition."""
    B, T, S, D, d, d_v = cases.distinct(6, 3, 12)
    inputs = _memory_case(cases, B, T, S, D, d, d_v)
    masks = [cases.mask(B, T, S), cases.mask(B, 1, S), cases.mask(B, T, S)]
    masks[2][0, 1] = False  # a query without keys: that was right, and must stay so
    runs = [answer.run([*inputs, mask], wrt=[0, 1, 2, 3, 4], of=0) for mask in masks]
    for run, mask in zip(runs, masks, strict=True):
        output, weights = _pair(run.value, (B, T, d_v), (B, T, S))
        wanted = _attention(*_projected(*inputs), mask)
        for one, other in ((weights, wanted[1]), (output, wanted[0])):
            expect_close(
                one,
                other,
                atol=SINGLE,
                what=_("The result under a mask"),
                cause=_("At least one of the faults is left, or a new one came in."),
                next_step=_("Print the row sums of the weights under a mask."),
            )
        expect(
            all(item is not None and bool(item.isfinite().all()) for item in run.grads.values()),
            seen=_("A gradient is missing, NaN or infinite, beside a query with no allowed key."),
            cause=_("NaN that was replaced in front stays on the way back; it was right before."),
            next_step=_("If the other checks pass: avoid the NaN instead of repairing it."),
        )


@bugs.check(points=1, hidden=True)
def each_query_shares_out_everything(answer: Answer, cases: Cases) -> None:
    """Without a mask, every row of the weights sums to 1."""
    B, T, S, D, d, d_v = cases.distinct(6, 3, 10)
    inputs = _memory_case(cases, B, T, S, D, d, d_v)
    _output, weights = _pair(answer(*inputs), (B, T, d_v), (B, T, S))
    _expect_rows_sum_to_one(weights, what=_("the weights"))


@bugs.check(points=1, hidden=True)
def scores_have_the_right_size(answer: Answer, cases: Cases) -> None:
    """The scores behind the weights are neither too large nor too small."""
    B, T, S, D, d, d_v = cases.distinct(6, 3, 12)
    inputs = _memory_case(cases, B, T, S, D, d, d_v)
    _output, weights = _pair(answer(*inputs), (B, T, d_v), (B, T, S))
    q, k, _v = _projected(*inputs)
    # In differences along both axes the normaliser drops out, whichever axis it belongs to: what
    # is left are differences of scores. So this fault is judged by itself.
    logs = torch.log(weights.double())
    found, wanted = (
        table[:, 1:, 1:] - table[:, :1, 1:] - table[:, 1:, :1] + table[:, :1, :1]
        for table in (logs, _scores(q, k))
    )
    expect_close(
        found,
        wanted,
        # logarithms of weights as small as 1e-3, exact to a relative 1e-6, four of them
        atol=1e-3,
        what=_("The table of scores, as the weights show it,"),
        cause=_("They are divided by another number than the root of the width of the queries."),
        next_step=_("Choose D = 64 and d = 4 and print the deviation of your scores."),
    )


@bugs.check(points=1, hidden=True)
def masked_weights_are_shared_out(answer: Answer, cases: Cases) -> None:
    """Under a mask, forbidden keys get nothing and the others get everything."""
    B, T, S, D, d, d_v = cases.distinct(6, 3, 10)
    inputs = _memory_case(cases, B, T, S, D, d, d_v)
    mask = cases.mask(B, T, S)
    mask[:, 0] = True  # no key without a query, no query without a key
    _output, weights = _pair(answer(*inputs, mask), (B, T, d_v), (B, T, S))
    weights = weights.double()
    # Along either axis: which one is right is the question of another check.
    shared = any(
        torch.allclose(sums, torch.ones_like(sums), atol=SINGLE, rtol=0)
        for sums in (weights.sum(dim=-1), weights.sum(dim=-2))
    )
    expect(
        bool((weights[~mask] == 0).all()) and shared,
        seen=_(
            "Under a mask, some forbidden keys have weight, or the allowed ones do not sum to 1."
        ),
        cause=_("The mask comes too late, or is read the wrong way round."),
        next_step=_("Print the row sums of the weights with a mask and without."),
    )


@bugs.check(points=0, hidden=True)
def query_without_keys_is_still_zero(answer: Answer, cases: Cases) -> None:
    """A query with no allowed key gets zeros, forward and backward: that was right."""
    B, T, S, D, d, d_v = cases.distinct(6, 3, 10)
    inputs = _memory_case(cases, B, T, S, D, d, d_v)
    mask = cases.mask(B, T, S)
    mask[1, 1] = False
    run = answer.run([*inputs, mask], wrt=[0, 1, 2, 3, 4], of=0)
    output, weights = _pair(run.value, (B, T, d_v), (B, T, S))
    expect(
        bool((output[1, 1] == 0).all()) and bool((weights[1, 1] == 0).all()),
        seen=_("A query with no allowed key no longer gets zeros."),
        cause=_("A row of −∞ gives NaN, and a row of equal numbers an even share."),
        next_step=_("`masked_softmax` has a rule for this row."),
    )
    expect(
        all(item is not None and bool(item.isfinite().all()) for item in run.grads.values()),
        seen=_("A gradient is missing, NaN or infinite."),
        cause=_("NaN that was replaced in front stays on the way back."),
        next_step=_("If the other checks pass: avoid the NaN instead of repairing it."),
    )


@bugs.check(points=0, hidden=True)
def values_come_from_the_memory(answer: Answer, cases: Cases) -> None:
    """The output is the weights times the values of the memory: that was right."""
    B, T, S, D, d, d_v = cases.distinct(6, 3, 10)
    inputs = _memory_case(cases, B, T, S, D, d, d_v)
    run = answer.run(inputs, echo=True)
    output, weights = _pair(run.value, (B, T, d_v), (B, T, S))
    expect_close(
        output,
        weights.double() @ _projected(*inputs)[2],
        # up to 11 values of order 1, with weights that need not sum to 1 yet
        atol=5 * SINGLE,
        what=_("The output"),
        cause=_("It is no longer made from the weights that are returned and the memory's values."),
        next_step=_("The last line was right as it stood."),
    )
    _expect_unchanged(list(inputs), run.args)


# --- attention_cost ------------------------------------------------------------------------------

cost = Exercise(
    "attention_cost",
    title=_("Count the cost"),
    difficulty=1,
    minutes=8,
    hints=(
        _(
            "How many multiplications does one entry of the scores take? How many entries are "
            "there? Then the same for one entry of the output."
        ),
        _(
            "A product of an (m, n) with an (n, p) matrix takes m·n·p multiplications and as many "
            "additions, hence 2·m·n·p operations. T and S are two sizes, and so are d and d_v. The "
            "weights have one number for each query and key, and d has no part in that."
        ),
        _(
            "1. scores: 2 · B · T · S · d\n2. mixing: 2 · B · T · S · d_v\n"
            "3. weights: B · T · S numbers, times the bytes of one\n4. return (1. + 2., 3.)"
        ),
    ),
)


def _sizes(cases: Cases) -> list[int]:
    """B, T, S, d, d_v: different primes, so that no product of some equals one of others."""
    primes = (3, 5, 7, 11, 13, 17, 19)
    return cases.shuffled(primes)[:5]


def _counted(value: object) -> tuple[int, int]:
    pair = expect_items(value, 2, what=_("the operations and the bytes"))
    for item in pair:
        expect(
            isinstance(item, int | float) and not isinstance(item, bool) and item == int(item),
            seen=_("A result is not a whole number."),
            cause=_("It is a tensor, or a division left a remainder."),
            next_step=_("Only multiply and add whole numbers."),
        )
    return int(pair[0]), int(pair[1])


def _expect_count(found: int, wanted: int, *, what: str, cause: str, hidden: bool) -> None:
    quotient = found / wanted
    expect(
        found == wanted,
        seen=_("{what}: not the right number.").format(what=what)
        if hidden
        else _("{what}: {found}, which is {quotient:.3g} times the right number.").format(
            what=what, found=found, quotient=quotient
        ),
        cause=cause,
        next_step=_("Write out the shapes of the two products, and count for sizes of 1 and 2."),
    )


_WHY_OPERATIONS = _(
    "A size is missing or stands twice, one of the two products is left out, or additions "
    "are not counted."
)
_WHY_BYTES = _("The weights are one number for each sequence, query and key, and nothing else.")


@cost.check(points=1)
def operations_of_both_products(answer: Answer, cases: Cases) -> None:
    """The operations of both matrix products."""
    B, T, S, d, d_v = _sizes(cases)
    operations, _size = _counted(answer(B, T, S, d, d_v))
    _expect_count(
        operations,
        2 * B * T * S * (d + d_v),
        what=_("Operations"),
        cause=_WHY_OPERATIONS,
        hidden=False,
    )


@cost.check(points=1)
def bytes_of_the_weights(answer: Answer, cases: Cases) -> None:
    """The bytes of the weights, in single precision."""
    B, T, S, d, d_v = _sizes(cases)
    _operations, size = _counted(answer(B, T, S, d, d_v))
    _expect_count(size, 4 * B * T * S, what=_("Bytes"), cause=_WHY_BYTES, hidden=False)


@cost.check(points=0.5, hidden=True)
def other_sizes_and_types(answer: Answer, cases: Cases) -> None:
    """Other sizes, numbers of two and eight bytes, and sizes of real models: exact to the unit."""
    jobs = [(*_sizes(cases), 2), (*_sizes(cases), 8), (64, 32_768, 32_769, 127, 129, 2)]
    found = [
        _counted(answer(B, T, S, d, d_v, bytes_per_number=size)) for B, T, S, d, d_v, size in jobs
    ]
    for (operations, size), (B, T, S, d, d_v, width) in zip(found, jobs, strict=True):
        _expect_count(
            operations,
            2 * B * T * S * (d + d_v),
            what=_("Operations"),
            cause=_WHY_OPERATIONS,
            hidden=True,
        )
        _expect_count(size, width * B * T * S, what=_("Bytes"), cause=_WHY_BYTES, hidden=True)
