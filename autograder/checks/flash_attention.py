"""How the answers of chapter ``flash_attention`` are judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor

from autograder.answer import Answer
from autograder.checking import (
    Cases,
    Exercise,
    expect,
    expect_close,
    expect_counted,
    expect_items,
    expect_tensor,
    fail,
)
from autograder.i18n import _
from autograder.trial import verdicts

# Two products with a softmax between them over at most 128 numbers near 1, in float32: rounding of
# 6e-8 grows to some 1e-6. The mildest wrong answer of the bank differs by more than 1e-3.
FLOAT32 = 2e-5
# Gradients take two products more, and add up as many terms again.
GRADIENT = 1e-4
# float64, in the same places.
FLOAT64 = 1e-10
# A half-precision result near 1 is rounded once (5e-4, bfloat16 4e-3), and may come from weights
# that were rounded before they met the values; sums in float32 add nothing to that.
HALF = {torch.float16: 3e-3, torch.bfloat16: 2e-2}
# Scores of half-precision inputs, multiplied and summed in float32: the logsumexp is as exact as in
# float32. Scores that were rounded to half precision are off by some 1e-3.
HALF_LOGSUMEXP = 1e-4

_LIBRARY = (
    "torch.nn.functional.scaled_dot_product_attention",
    "torch.nn.functional.multi_head_attention_forward",
)


def _attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> tuple[Tensor, Tensor]:
    """Output and logsumexp by the definition, in float64; a query without keys gets 0 and −∞."""
    q, k, v = q.double(), k.double(), v.double()
    scores = _scores(q, k, causal)
    logsumexp = scores.logsumexp(-1)
    weights = torch.exp(scores - logsumexp.nan_to_num(neginf=0.0).unsqueeze(-1))
    return weights @ v, logsumexp


def _scores(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:
        T, S = scores.shape[-2:]
        hidden = torch.arange(S) > torch.arange(T).unsqueeze(-1) + S - T
        scores = scores.masked_fill(hidden, -math.inf)
    return scores


def _hidden_spike(cases: Cases) -> tuple[Tensor, Tensor, Tensor]:
    """T = S = 6, scores near 1 for the first three keys, near 400 for those that follow.

    With a causal mask the first three queries do not see the large ones: what stands under the mask
    must neither be a maximum nor be multiplied by 0 after exp.
    """
    q, k, v = _case(cases, 2, d=4, T=6, S=6)
    q[..., 0], k[..., 0] = 20.0, 0.0
    k[..., 3:, 0] = 40.0
    return q, k, v


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, grad_output: Tensor, causal: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by q, k and v, in float64."""
    q, k, v, g = q.double(), k.double(), v.double(), grad_output.double()
    output, logsumexp = _attend(q, k, v, causal)
    p = torch.exp(_scores(q, k, causal) - logsumexp.nan_to_num(neginf=0.0).unsqueeze(-1))
    dp = g @ v.transpose(-2, -1)
    ds = p * (dp - (g * output).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
    return ds @ k, ds.transpose(-2, -1) @ q, p.transpose(-2, -1) @ g


def _case(cases: Cases, *shape: int, d: int, T: int, S: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values whose scores are near 1."""
    return cases.normal(*shape, T, d), cases.normal(*shape, S, d), cases.normal(*shape, S, d)


# --- attention_traffic -----------------------------------------------------------------------

traffic = Exercise(
    "attention_traffic",
    title=_("Count work and traffic"),
    difficulty=1,
    minutes=10,
    hints=(
        _("How many multiplications and additions does one entry of a matrix product cost?"),
        _(
            "If the traffic is too small, ask of each of the three steps what it reads and what "
            "it writes: the scores are written by the first and read by the second."
        ),
        _(
            "FLOPs: 2·T·S·d for each product. Numbers moved: q, k, v and the output once; "
            "unfused, T·S four times more. Bytes: numbers times item_bytes."
        ),
    ),
)


def _sizes(cases: Cases) -> tuple[int, int, int]:
    T, S, d = cases.distinct(3, 3, 200)
    return T, S, d


def _expect_count(found: object, expected: int, *, what: str, cause: str, next_step: str) -> None:
    if isinstance(found, bool) or not isinstance(found, int | float):
        fail(
            seen=_("{what} are a {kind}, not a number.").format(
                what=what, kind=type(found).__name__
            ),
            cause=_("The two results are not numbers, or stand in another order."),
            next_step=_("Return FLOPs and bytes as two integers."),
        )
    expect(
        found == expected,
        seen=_("{what} are not what the definition counts.").format(what=what),
        cause=cause,
        next_step=next_step,
    )


def _expect_traffic(
    answer: Answer, T: int, S: int, d: int, *, which: int, expected: int, **options: Any
) -> None:
    found = expect_items(answer(T, S, d, **options), 2, what=_("FLOPs and bytes"))[which]
    if which == 0:
        what, cause = _("The FLOPs"), _("A product is left out, or additions are not counted.")
        step = _("One entry of a product over d takes d multiplications and d additions.")
    else:
        what = _("The bytes")
        cause = _("A tensor is left out or counted twice, or numbers are taken for bytes.")
        step = _("Make a table: each step, what it reads, what it writes, each with its shape.")
    _expect_count(found, expected, what=what, cause=cause, next_step=step)


@traffic.check(points=1)
def both_products_are_counted(answer: Answer, cases: Cases) -> None:
    """FLOPs: multiplications and additions of both products."""
    T, S, d = _sizes(cases)
    _expect_traffic(answer, T, S, d, which=0, expected=4 * T * S * d)


@traffic.check(points=1)
def unfused_moves_the_matrix_four_times(answer: Answer, cases: Cases) -> None:
    """Bytes, unfused: every step reads its inputs and writes its result."""
    T, S, d = _sizes(cases)
    expected = 2 * (2 * T * d + 2 * S * d + 4 * T * S)
    _expect_traffic(answer, T, S, d, which=1, expected=expected)


@traffic.check(points=1)
def fused_moves_inputs_and_output(answer: Answer, cases: Cases) -> None:
    """Bytes, fused: q, k, v and the output, once each."""
    T, S, d = _sizes(cases)
    _expect_traffic(answer, T, S, d, which=1, expected=4 * d * (T + S), fused=True)


@traffic.check(points=0.5, hidden=True)
def fusing_saves_no_work(answer: Answer, cases: Cases) -> None:
    """The FLOPs are the same fused, for one query as for many."""
    T, S, d = _sizes(cases)
    _expect_traffic(answer, T, S, d, which=0, expected=4 * T * S * d, fused=True)
    _expect_traffic(answer, 1, S, d, which=0, expected=4 * S * d)


@traffic.check(points=0.5, hidden=True)
def wider_numbers_move_more(answer: Answer, cases: Cases) -> None:
    """Bytes follow the size of a number, fused and unfused."""
    T, S, d = _sizes(cases)
    n = cases.integer(3, 9)
    expected = n * (2 * T * d + 2 * S * d + 4 * T * S)
    _expect_traffic(answer, T, S, d, which=1, expected=expected, item_bytes=n)
    expected = 2 * n * d * (T + S)
    _expect_traffic(answer, T, S, d, which=1, expected=expected, fused=True, item_bytes=n)


# --- online_softmax --------------------------------------------------------------------------

online = Exercise(
    "online_softmax",
    title=_("A softmax over a stream"),
    difficulty=2,
    minutes=15,
    hints=(
        _("When a larger score arrives, what are the exponentials worth that you summed so far?"),
        _(
            "If the sum is too large, it still belongs to the old maximum. If it is NaN, −∞ was "
            "subtracted from −∞. If you see “can be seen once only”, you iterate twice."
        ),
        _(
            "m, l = −∞, 0; for each score x that is not −∞: m′ = max(m, x); "
            "l = l·exp(m − m′) + exp(x − m′); m = m′."
        ),
    ),
)

# An answer may use float32 tensors: a score of 1000 is then off by 3e-5, its exponential as much.
SUM = 2e-4


def _number(value: object, what: str) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        fail(
            seen=_("{what} is a {kind}, not a number.").format(
                what=what, kind=type(value).__name__
            ),
            cause=_("Something else is returned than maximum and sum."),
            next_step=_("Return the maximum and the sum, in this order."),
        )
    return float(cast(float, value))


def _expect_online(answer: Answer, scores: Sequence[float]) -> None:
    maximum = max(scores, default=-math.inf)
    total = 0.0 if maximum == -math.inf else sum(math.exp(x - maximum) for x in scores)
    found = expect_items(answer(list(scores)), 2, what=_("maximum and sum"))
    m, l = _number(found[0], _("The maximum")), _number(found[1], _("The sum"))  # noqa: E741
    expect(
        m == maximum or abs(m - maximum) <= 1e-6 * abs(maximum),  # an answer in float32 rounds
        seen=_("The first result is not the largest score."),
        cause=_("The maximum starts at a wrong value, or is not kept from score to score."),
        next_step=_("Start at −∞ and print the maximum after each of three scores."),
    )
    expect(
        not math.isnan(l),
        seen=_("The sum is NaN."),
        cause=_("−∞ is subtracted from −∞ as long as the maximum is −∞."),
        next_step=_("Ask before you subtract whether there is a finite maximum yet."),
    )
    expect(
        abs(l - total) <= SUM * max(total, 1.0),
        seen=_("The sum is not that of exp(score − maximum) over all scores."),
        cause=_("What was summed before a larger score came still belongs to the old maximum."),
        next_step=_("Do the stream 0, 1 by hand: the sum is exp(−1) + 1."),
    )


@online.check(points=1)
def falling_scores_need_no_rescaling(answer: Answer, cases: Cases) -> None:
    """The largest score comes first: maximum and sum are right."""
    scores = sorted(cases.normal(9).tolist(), reverse=True)
    _expect_online(answer, scores)


@online.check(points=1)
def rising_scores_rescale_the_sum(answer: Answer, cases: Cases) -> None:
    """Larger scores come later: the sum belongs to the last maximum."""
    _expect_online(answer, sorted(cases.normal(9).tolist()))
    _expect_online(answer, cases.normal(12, scale=2.0).tolist())


@online.check(points=1)
def the_stream_is_seen_once(answer: Answer, cases: Cases) -> None:
    """It goes over the stream once and keeps none of its scores."""
    stream = answer.fixture("stream", cases.normal(50).tolist(), 40)
    found = expect_items(answer(stream), 2, what=_("maximum and sum"))
    _number(found[0], _("The maximum"))
    expect(
        stream.attribute("hoarded") is False,
        seen=_("The scores are kept in a list, a tensor or the like."),
        cause=_("They are gathered first and the softmax is computed afterwards."),
        next_step=_("Hold two numbers, the maximum and the sum, and update them at each score."),
    )


@online.check(points=0.5, hidden=True)
def large_scores_do_not_overflow(answer: Answer, cases: Cases) -> None:
    """Scores of a thousand, positive or negative, are no trouble."""
    for shift in (1000.0, -1000.0):
        _expect_online(answer, [x + shift for x in cases.normal(8).tolist()])


@online.check(points=0.5, hidden=True)
def equal_scores_count_each(answer: Answer, cases: Cases) -> None:
    """One score, and scores that are equal to the maximum."""
    x = float(cases.normal(1))
    _expect_online(answer, [x])
    _expect_online(answer, [x, x - 1.0, x, x])


@online.check(points=1, hidden=True)
def masked_scores_add_nothing(answer: Answer, cases: Cases) -> None:
    """Scores of −∞, at the beginning, between others, and throughout; and no scores."""
    a, b = cases.normal(2).tolist()
    _expect_online(answer, [-math.inf, -math.inf, a, -math.inf, b])
    _expect_online(answer, [-math.inf, -math.inf])
    _expect_online(answer, [])


# --- attend_in_blocks ------------------------------------------------------------------------

blocks = Exercise(
    "attend_in_blocks",
    title=_("One query, block by block"),
    difficulty=2,
    minutes=20,
    hints=(
        _("Which three quantities belong to the old maximum when a new one is found?"),
        _(
            "If one block is right and several are not, the accumulator was not multiplied by "
            "exp(m − m′). If only lengths that are no multiple fail, look at the last slice."
        ),
        _(
            "For each block: s = k·q/√d; m′ = max(m, max s); p = exp(s − m′); f = exp(m − m′); "
            "l = l·f + Σp; a = a·f + p·v. In the end a / l and m + log l."
        ),
    ),
    forbid=_LIBRARY,
)

_BLOCK_CAUSE = _("What was summed over earlier blocks is not carried over rightly to the next.")
_BLOCK_STEP = _("Take S = 4 and blocks of 2, and compare m, l and the accumulator after each.")


def _row(cases: Cases, S: int, d: int) -> tuple[Tensor, Tensor, Tensor]:
    return cases.normal(d), cases.normal(S, d), cases.normal(S, d)


def _expect_row(answer: Answer, q: Tensor, k: Tensor, v: Tensor, block: int, **bounds: Any) -> None:
    _expect_row_values(answer(q, k, v, block=block), q, k, v, **bounds)


def _expect_row_values(
    result: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    atol: float = FLOAT32,
    cause: str = _BLOCK_CAUSE,
) -> None:
    expected = [x[..., 0, :] if x.ndim > 1 else x[0] for x in _attend(q.unsqueeze(0), k, v)]
    found = expect_items(result, 2, what=_("output and logsumexp"))
    for value, wanted, what in zip(
        found, expected, (_("the output"), _("the logsumexp")), strict=True
    ):
        expect_close(value, wanted, atol=atol, what=what, cause=cause, next_step=_BLOCK_STEP)


@blocks.check(points=1)
def one_block_is_attention(answer: Answer, cases: Cases) -> None:
    """One block that holds all keys: the output is that of attention."""
    S, d = cases.distinct(2, 5, 10)
    q, k, v = _row(cases, S, d)
    block = S + cases.integer(1, 4)
    cause = _("The scale 1/√d, the softmax or the logsumexp is another one than the definition's.")
    _expect_row(answer, q, k, v, block, cause=cause)


@blocks.check(points=1)
def several_blocks_are_attention(answer: Answer, cases: Cases) -> None:
    """Several blocks give the same output and logsumexp."""
    block, d = cases.distinct(2, 3, 7)
    _expect_row(answer, *_row(cases, 4 * block, d), block)


@blocks.check(points=1)
def the_last_block_is_shorter(answer: Answer, cases: Cases) -> None:
    """A block that does not divide the number of keys."""
    block, d = cases.distinct(2, 3, 7)
    S = 3 * block + cases.integer(1, block)
    cause = _("The last keys are left out, or keys are counted that are not there.")
    _expect_row(answer, *_row(cases, S, d), block, cause=cause)


@blocks.check(points=1)
def nothing_of_length_S_is_made(answer: Answer, cases: Cases) -> None:
    """The result is right, and no tensor is made that is as long as the keys are many."""
    S, d, block = 600, 4, 16
    q, k, v = _row(cases, S, d)
    run = answer.run((q, k, v), {"block": block}, meter=True)
    expect_items(run.value, 2, what=_("output and logsumexp"))
    # a block of keys or values, or two, may be copied; S scores may not be there
    small = run.meter["largest"] < S // 2
    answer.note(small)
    expect(
        small,
        seen=_("A tensor of {n} numbers is made for {S} keys.").format(n=run.meter["largest"], S=S),
        cause=_("The scores of all keys are computed at once, or all keys are copied or scaled."),
        next_step=_("Scale the query and not the keys, and slice before you multiply."),
    )
    expect_counted(answer, run.meter, S)
    # last: who computes nothing makes no tensor
    _expect_row_values(run.value, q, k, v)


@blocks.check(points=1, hidden=True)
def any_block_will_do(answer: Answer, cases: Cases) -> None:
    """Blocks of one key, blocks of many, and blocks longer than the keys."""
    S, d = cases.distinct(2, 5, 12)
    q, k, v = _row(cases, S, d)
    for block in (1, 2, S - 1, S + 3):
        _expect_row(answer, q, k, v, block)


@blocks.check(points=1, hidden=True)
def large_scores_are_no_trouble(answer: Answer, cases: Cases) -> None:
    """Scores of some hundreds, positive and negative, rising and falling from block to block."""
    S, d, block = 11, 4, 3
    q, k, v = _row(cases, S, d)
    q = q / q.norm() * 2
    for slope in (60.0, -60.0):
        # along q, each key is larger than the one before by `slope`
        steep = k + torch.arange(S).unsqueeze(1) * slope * q
        # scores of 600 in float32 are off by 6e-5, and the output by as much
        _expect_row(
            answer,
            q,
            steep,
            v,
            block,
            atol=2e-3,
            cause=_("exp overflows, or every weight of a block vanishes: the maximum is wrong."),
        )
        below = k - 300 * q  # every score is near −600
        _expect_row(
            answer, q, below, v, block, atol=2e-3, cause=_("The maximum does not start at −∞.")
        )


@blocks.check(points=0.5, hidden=True)
def double_stays_double_and_inputs_stay(answer: Answer, cases: Cases) -> None:
    """float64 inputs give float64 results, and no input is overwritten."""
    S, d, block = 7, 3, 2
    given = [x.double() for x in _row(cases, S, d)]
    run = answer.run(given, {"block": block}, echo=True)
    found = expect_items(run.value, 2, what=_("output and logsumexp"))
    expect_tensor(found[0], (d,), what=_("the output"), dtype=torch.float64)
    _expect_row(answer, given[0], given[1], given[2], block, atol=FLOAT64)
    _expect_kept(given, run.args)


def _expect_kept(before: Sequence[Any], after: Sequence[Any]) -> None:
    for one, other in zip(before, after, strict=True):
        if isinstance(one, Tensor):
            expect(
                isinstance(other, Tensor)
                and other.shape == one.shape
                and torch.equal(other.nan_to_num(), one.nan_to_num()),
                seen=_("An input is not what it was before the call."),
                cause=_(
                    "An operation in place (-=, mul_, masked_fill_) writes into a given tensor."
                ),
                next_step=_("Write into tensors that you made."),
            )


# --- flash_forward ---------------------------------------------------------------------------

forward = Exercise(
    "flash_forward",
    title=_("Attention in tiles"),
    difficulty=4,
    minutes=45,
    hints=(
        _("Which of m, l and the accumulator belong to a tile of queries, which to one of keys?"),
        _(
            "If causal rows are wrong near the edges of tiles, compare positions in the whole "
            "sequence, and add S − T to the query's. If there is NaN, a row of a tile has seen no "
            "key yet, and −∞ − (−∞) was computed."
        ),
        _(
            "For each tile of queries: m = −∞, l = 0, a = 0; for each tile of keys that one of "
            "its queries may see: scores, mask, and the three updates of the exercise before, row "
            "by row. Then a / l (or 0) and m + log l."
        ),
    ),
    forbid=_LIBRARY,
)

_TILE_STEP = _(
    "Take T = S = 4, d = 1 and tiles of 2: print scores, m, l and the accumulator of each tile."
)
_Forward = tuple[Tensor, Tensor]


def _note_dtypes(answer: Answer, *results: object) -> None:
    answer.note([str(getattr(item, "dtype", None)) for item in results])


def _both(value: object) -> tuple[Any, Any]:
    output, logsumexp = expect_items(value, 2, what=_("output and logsumexp"))
    return output, logsumexp


def _expect_forward(
    found: object,
    expected: _Forward,
    *,
    cause: str,
    atol: float = FLOAT32,
    logsumexp_atol: float | None = None,
    rtol: float = 0.0,
    step: str = _TILE_STEP,
) -> None:
    output, logsumexp = _both(found)
    expect_close(
        output,
        expected[0],
        atol=atol,
        rtol=rtol,
        what=_("the output"),
        cause=cause,
        next_step=step,
    )
    expect_close(
        logsumexp,
        expected[1],
        atol=logsumexp_atol or atol,
        rtol=rtol,
        what=_("the logsumexp"),
        cause=_("It is m + log l, natural, with the m and l of the whole row."),
        next_step=_("Compare it with torch.logsumexp of the scores, for a single row."),
    )


@forward.check(points=0.5)
def output_and_logsumexp_have_their_shapes(answer: Answer, cases: Cases) -> None:
    """Output (..., T, d) of the inputs' dtype, logsumexp (..., T) in float32."""
    T, S, d, H = cases.distinct(4, 3, 9)
    for dtype in (torch.float32, torch.float16):
        q, k, v = (x.to(dtype) for x in _case(cases, 2, H, d=d, T=T, S=S))
        output, logsumexp = _both(answer(q, k, v, block_q=2, block_k=3))
        _note_dtypes(answer, output, logsumexp)
        expect_tensor(output, q.shape, what=_("the output"), dtype=dtype)
        expect_tensor(logsumexp, q.shape[:-1], what=_("the logsumexp"), dtype=torch.float32)


@forward.check(points=1)
def tiles_that_fit_give_attention(answer: Answer, cases: Cases) -> None:
    """Tiles that divide T and S: output and logsumexp are those of attention."""
    q, k, v = _case(cases, 2, d=5, T=8, S=12)
    cause = _("A tile's sums are not carried over to the next, or the scale is wrong.")
    _expect_forward(answer(q, k, v, block_q=4, block_k=3), _attend(q, k, v), cause=cause)


@forward.check(points=1)
def ragged_tiles_give_attention(answer: Answer, cases: Cases) -> None:
    """The last tiles of queries and of keys are smaller."""
    T, S = 10 + cases.integer(0, 2), 13 + cases.integer(0, 2)
    q, k, v = _case(cases, 3, d=4, T=T, S=S)
    cause = _("The last queries or keys are left out, or keys are counted that are not there.")
    _expect_forward(answer(q, k, v, block_q=4, block_k=3), _attend(q, k, v), cause=cause)


@forward.check(points=1)
def causal_tiles_hide_the_future(answer: Answer, cases: Cases) -> None:
    """With causal=True and T = S, a query sees itself and what is before it."""
    n = 9 + cases.integer(0, 3)
    q, k, v = _case(cases, 2, d=4, T=n, S=n)
    cause = _("The mask is off by one, is missing, or uses positions within a tile.")
    for block_q, block_k in ((4, 3), (3, 4), (n, n)):
        found = answer(q, k, v, causal=True, block_q=block_q, block_k=block_k)
        _expect_forward(found, _attend(q, k, v, True), cause=cause)


@forward.check(points=1)
def the_matrix_is_never_made(answer: Answer, cases: Cases) -> None:
    """The result is right, and no tensor of T × S numbers is made, nor of a large part of it."""
    T, S, d, block = 75, 80, 4, 16
    q, k, v = _case(cases, d=d, T=T, S=S)
    options = {"causal": True, "block_q": block, "block_k": block}
    run = answer.run((q, k, v), options, meter=True)
    _both(run.value)
    # a tile has 256 numbers, a tile of queries with all keys 1280, the matrix 6000
    small = run.meter["largest"] < T * S // 4
    answer.note(small)
    expect(
        small,
        seen=_("A tensor of {n} numbers is made, where T × S is {all}.").format(
            n=run.meter["largest"], all=T * S
        ),
        cause=_("The scores or the weights of all queries and keys stand in one tensor."),
        next_step=_("Slice queries and keys first; multiply slices only."),
    )
    expect_counted(answer, run.meter, T * S // 2)  # about half of the scores are seen
    # last: who computes nothing makes no tensor
    cause = _("The tiles are small, and what they add up to is not attention.")
    _expect_forward(run.value, _attend(q, k, v, True), cause=cause)


@forward.check(points=1, hidden=True)
def causal_counts_from_the_last_key(answer: Answer, cases: Cases) -> None:
    """Causal with fewer queries than keys: the last query sees the last key."""
    T, S = 5 + cases.integer(0, 3), 12 + cases.integer(0, 3)
    q, k, v = _case(cases, 2, d=4, T=T, S=S)
    cause = _("Query t stands at position t + S − T among the keys.")
    for block_q, block_k in ((3, 4), (2, 2), (64, 64)):
        found = answer(q, k, v, causal=True, block_q=block_q, block_k=block_k)
        _expect_forward(found, _attend(q, k, v, True), cause=cause)


@forward.check(points=1, hidden=True)
def queries_without_keys_get_zeros(answer: Answer, cases: Cases) -> None:
    """Causal with more queries than keys: the first queries get zeros and −∞, and no NaN."""
    T, S = 11, 5
    q, k, v = _case(cases, 2, d=4, T=T, S=S)
    cause = _("A query that sees no key divides 0 by 0, or subtracts −∞ from −∞.")
    for block_q, block_k in ((4, 2), (3, 3), (64, 64)):
        found = answer(q, k, v, causal=True, block_q=block_q, block_k=block_k)
        _expect_forward(found, _attend(q, k, v, True), cause=cause)


@forward.check(points=1, hidden=True)
def large_logits_stay_finite(answer: Answer, cases: Cases) -> None:
    """Scores of some hundreds, above zero and below it."""
    cause = _("exp overflows or vanishes: the maximum is missing, or not that of the row so far.")
    for sign in (1.0, -1.0):
        q, k, v = _case(cases, 2, d=4, T=6, S=11)
        q[..., 0] = 20.0
        k[..., 0] = sign * (20 + 3 * torch.arange(11.0))  # scores 200 … 500
        for causal in (False, True):
            found = answer(q, k, v, causal=causal, block_q=4, block_k=3)
            # scores of 500 in float32 are off by 6e-5, and the output by as much
            _expect_forward(found, _attend(q, k, v, causal), cause=cause, atol=1e-3)
    q, k, v = _hidden_spike(cases)
    _expect_forward(
        answer(q, k, v, causal=True, block_q=4, block_k=3),
        _attend(q, k, v, True),
        cause=_("Scores that the mask hides are taken into the maximum."),
        atol=1e-3,  # as above
    )


@forward.check(points=1, hidden=True)
def half_precision_sums_in_float32(answer: Answer, cases: Cases) -> None:
    """float16 and bfloat16 inputs: scores and sums are kept in float32, over many tiles."""
    for dtype, atol in HALF.items():
        q, k, v = _case(cases, d=8, T=8, S=200)
        q, k, v = (2 * q).to(dtype), k.to(dtype), v.to(dtype)
        found = answer(q, k, v, block_q=8, block_k=10)
        expect_tensor(_both(found)[0], q.shape, what=_("the output"), dtype=dtype)
        _expect_forward(
            found,
            _attend(q, k, v),
            cause=_("Scores or sums are rounded to half precision at every step."),
            atol=atol,
            logsumexp_atol=HALF_LOGSUMEXP,
        )


@forward.check(points=1, hidden=True)
def tiles_nobody_sees_are_skipped(answer: Answer, cases: Cases) -> None:
    """With causal=True, tiles in which no query sees a key cost nothing."""
    n, block = 24, 8
    q, k, v = _case(cases, d=16, T=n, S=n)
    work = []
    for causal in (False, True):
        options = {"causal": causal, "block_q": block, "block_k": block}
        run = answer.run((q, k, v), options, meter=True)
        _expect_forward(run.value, _attend(q, k, v, causal), cause=_("The mask is wrong."))
        work.append(run.meter["flops"] or run.meter["total"])
    _expect_work_skipped(answer, *work)


def _expect_skipped(
    answer: Answer, done: float, needed: float, whole: float, *, seen: str, next_step: str
) -> None:
    """Nothing is done for tiles in which no query sees a key.

    Args:
        done: work or traffic with a causal mask.
        needed: that of the tiles that hold something seen.
        whole: that of all tiles.
    """
    # 0 where every such tile is skipped, 1 where none is; with 3 × 3 tiles, a loop that ends a tile
    # too late is at 0.67
    in_vain = (done - needed) / (whole - needed)
    answer.note("skipped" if in_vain < 0.2 else "some" if in_vain < 0.85 else "none")
    expect(
        in_vain < 0.2,
        seen=seen,
        cause=_(
            "The loop goes a tile too far, or tiles above the diagonal are masked and not skipped."
        ),
        next_step=next_step,
    )


def _expect_work_skipped(answer: Answer, full: int, causal: int) -> None:
    """Of 3 × 3 tiles, 6 hold something that is seen: two thirds of the work."""
    _expect_skipped(
        answer,
        causal,
        6 / 9 * full,
        full,
        seen=_("With causal=True, tiles are computed in which no query sees a key."),
        next_step=_("Work out the last key that the last query of a tile sees, and stop there."),
    )


@forward.check(points=1, hidden=True)
def any_tiles_and_any_axes(answer: Answer, cases: Cases) -> None:
    """Tiles of one, tiles larger than the input, the default tiles; no batch axis or three."""
    for shape in ((), (2, 1, 3)):
        T, S = cases.distinct(2, 3, 7)
        q, k, v = _case(cases, *shape, d=3, T=T, S=S)
        cause = _("It rests on a tile size, or on the number of leading axes.")
        for options in ({"block_q": 1, "block_k": 1}, {"block_q": 5, "block_k": 2}, {}):
            _expect_forward(answer(q, k, v, **options), _attend(q, k, v), cause=cause)


@forward.check(points=0.5, hidden=True)
def double_is_kept_and_inputs_too(answer: Answer, cases: Cases) -> None:
    """float64 inputs are computed in float64, and no input is overwritten."""
    given = [x.double() for x in _case(cases, 2, d=4, T=7, S=9)]
    run = answer.run(given, {"causal": True, "block_q": 3, "block_k": 4}, echo=True)
    _expect_forward(
        run.value,
        _attend(given[0], given[1], given[2], True),
        cause=_("Something on the way is in float32."),
        atol=FLOAT64,
    )
    _expect_kept(given, run.args)


# --- borrowed_forward ------------------------------------------------------------------------

borrowed = Exercise(
    "borrowed_forward",
    title=_("Three bugs in borrowed tiles"),
    difficulty=3,
    minutes=25,
    hints=(
        _("Where do T, S and a block that divides neither meet in this code?"),
        _(
            "Try one thing at a time: S = 5 with blocks of 2; T = 2 and S = 4 with causal=True; "
            "scores that are all near −200. Each of the three shows one bug."
        ),
        _(
            "The number of tiles of keys is rounded down; positions of queries lack S − T; the "
            "running maximum must start at −∞."
        ),
    ),
    forbid=_LIBRARY,
    given="borrowed_as_found",
)


@borrowed.check(points=0)
def tiles_that_fit_still_work(answer: Answer, cases: Cases) -> None:
    """Tiles that divide T and S give attention, as before."""
    q, k, v = _case(cases, 2, d=4, T=8, S=12)
    cause = _("Something that worked was changed.")
    _expect_forward(answer(q, k, v, block_q=4, block_k=3), _attend(q, k, v), cause=cause)


@borrowed.check(points=0)
def a_square_causal_mask_still_works(answer: Answer, cases: Cases) -> None:
    """Causal with T = S and tiles that fit gives attention, as before."""
    q, k, v = _case(cases, 2, d=4, T=12, S=12)
    found = answer(q, k, v, causal=True, block_q=4, block_k=3)
    _expect_forward(found, _attend(q, k, v, True), cause=_("Something that worked was changed."))


@borrowed.check(points=1)
def every_key_is_seen(answer: Answer, cases: Cases) -> None:
    """Blocks that do not divide T and S."""
    T, S = 9 + cases.integer(0, 3), 13 + cases.integer(0, 2)
    q, k, v = _case(cases, 2, d=4, T=T, S=S)
    cause = _("Some keys or queries at the end take no part.")
    _expect_forward(answer(q, k, v, block_q=4, block_k=3), _attend(q, k, v), cause=cause)


@borrowed.check(points=1)
def the_last_query_sees_the_last_key(answer: Answer, cases: Cases) -> None:
    """Causal with fewer queries than keys, in tiles that fit."""
    q, k, v = _case(cases, 2, d=4, T=4, S=12)
    cause = _("Queries are taken to stand at the beginning of the keys.")
    for block_q in (2, 4):
        found = answer(q, k, v, causal=True, block_q=block_q, block_k=3)
        _expect_forward(found, _attend(q, k, v, True), cause=cause)


@borrowed.check(points=1)
def scores_far_below_zero(answer: Answer, cases: Cases) -> None:
    """Scores that are all far below zero, in tiles that fit."""
    q, k, v = _case(cases, 2, d=4, T=4, S=6)
    q[..., 0], k[..., 0] = 20.0, k[..., 0] - 30.0  # scores near −300
    cause = _("All weights vanish: they are taken against something other than the row's maximum.")
    found = answer(q, k, v, block_q=2, block_k=3)
    # scores of 300 in float32 are off by 3e-5, and the output by as much
    _expect_forward(found, _attend(q, k, v), cause=cause, atol=1e-3)


@borrowed.check(points=1, hidden=True)
def all_of_it_together(answer: Answer, cases: Cases) -> None:
    """Ragged, causal, T smaller than S, scores far below zero, all at once; inputs are kept."""
    q, k, v = _case(cases, 2, d=4, T=5, S=11)
    q[..., 0], k[..., 0] = 20.0, k[..., 0] - 30.0
    options = {"causal": True, "block_q": 2, "block_k": 4}
    run = answer.run((q, k, v), options, echo=True)
    # as above
    _expect_forward(run.value, _attend(q, k, v, True), cause=_("A bug is left."), atol=1e-3)
    _expect_kept((q, k, v), run.args)


# --- flash_forward_test ----------------------------------------------------------------------

test_writing = Exercise(
    "flash_forward_test",
    title=_("Write the test that finds wrong tiles"),
    difficulty=3,
    minutes=30,
    hints=(
        _("For which sizes is a tiled attention right although its last tile is wrong?"),
        _(
            "If a wrong one passes, vary what you have held fixed: blocks that divide nothing, "
            "T ≠ S, causal on and off, scores of some hundreds on both sides of zero."
        ),
        _(
            "Loops over (T, S), causal, (block_q, block_k) and a scale; the expected output and "
            "logsumexp from one softmax; assert torch.allclose of both, with an absolute tolerance."
        ),
    ),
)

_Tiled = Callable[..., _Forward]


# How many small results of an implementation are remembered: a test makes some dozens of calls.
_REMEMBERED = 2000


def _remembering(compute: _Tiled) -> _Tiled:
    """The same, computed once for each input: tests draw theirs from a seed of their own."""
    known: dict[tuple[Any, ...], _Forward] = {}

    @wraps(compute)
    def flash_forward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> _Forward:
        given = (q, k, v)
        if not (
            all(type(x) is Tensor and x.is_floating_point() for x in given)
            and all(type(value) in (bool, int) for value in options.values())
            and sum(x.numel() for x in given) < 2000
            and not any(x.requires_grad for x in given)
        ):
            return compute(q, k, v, **options)
        numbers = [(x.dtype, x.shape, x.double().numpy().tobytes()) for x in given]
        key = (*numbers, *sorted(options.items()))
        if key not in known:
            if len(known) == _REMEMBERED:
                known.clear()
            known[key] = compute(q, k, v, **options)
        return known[key]

    return flash_forward


def _in_any_dtype(compute: _Tiled) -> _Tiled:
    """The same, with the dtypes that the docstring promises: no mistake shows by its dtype."""

    @_remembering
    @wraps(compute)
    def flash_forward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> _Forward:
        wide = torch.promote_types(q.dtype, torch.float32)
        output, logsumexp = compute(q.to(wide), k.to(wide), v.to(wide), **options)
        return output.to(q.dtype), logsumexp.to(wide)

    return flash_forward


def _tiled(
    *,
    start: float = -math.inf,
    whole_tiles: bool = False,
    offset: Callable[[int, int], int] = lambda T, S: S - T,
    rescale: bool = True,
    base: float = math.e,
    skip_one: bool = False,
    late: bool = False,
    zeros: bool = True,
    scaled: Callable[[int], float] = math.sqrt,
) -> _Tiled:
    """A tiled attention, right by default; each option makes another mistake."""

    @_in_any_dtype
    def flash_forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        causal: bool = False,
        block_q: int = 64,
        block_k: int = 64,
    ) -> _Forward:
        T, S, d = q.shape[-2], k.shape[-2], q.shape[-1]
        output = torch.zeros_like(q)
        logsumexp = q.new_full(q.shape[:-1], -math.inf)
        for t in range(0, T, block_q):
            rows = q[..., t : t + block_q, :] / scaled(d)
            m = rows.new_full(rows.shape[:-1], start)
            total = torch.zeros_like(m)
            accumulator = torch.zeros_like(rows)
            position = torch.arange(t, t + rows.shape[-2]) + offset(T, S) + int(late)
            last = S // block_k * block_k if whole_tiles and block_k < S else S
            for s in range(0, last, block_k):
                if causal and skip_one and s > t + offset(T, S) and s > 0:
                    continue  # skipped as if the tile had one query
                scores = rows @ k[..., s : s + block_k, :].transpose(-2, -1)
                if causal:
                    key = torch.arange(s, s + scores.shape[-1])
                    scores = scores.masked_fill(key > position.unsqueeze(-1), -math.inf)
                m_new = torch.maximum(m, scores.amax(-1))
                against = m_new.nan_to_num(neginf=0.0) if zeros else m_new
                p = torch.exp(scores - against.unsqueeze(-1))
                factor = torch.exp(m - against)
                total = total * factor + p.sum(-1)
                old = accumulator * factor.unsqueeze(-1) if rescale else accumulator
                accumulator = old + p @ v[..., s : s + block_k, :]
                m = m_new
            divisor = torch.where(total == 0, 1.0, total) if zeros else total
            output[..., t : t + block_q, :] = accumulator / divisor.unsqueeze(-1)
            logsumexp[..., t : t + block_q] = (m + torch.log(total)) / math.log(base)
        return output, logsumexp

    return flash_forward


@_in_any_dtype
def _at_once(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, **tiles: int) -> _Forward:
    return _attend(q, k, v, causal)


@_in_any_dtype
def _no_mask(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, **tiles: int) -> _Forward:
    return _attend(q, k, v)


@_in_any_dtype
def _no_maximum(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, **tiles: int) -> _Forward:
    powers = torch.exp(_scores(q, k, causal))
    total = powers.sum(-1, keepdim=True)
    return powers / torch.where(total == 0, 1.0, total) @ v, torch.log(total).squeeze(-1)


_IN_TILES = _tiled()
_NO_RESCALE = _tiled(rescale=False)
_WHOLE_TILES = _tiled(whole_tiles=True)
_OFF_MASKS = (_tiled(late=True), _tiled(offset=lambda T, S: 0), _tiled(skip_one=True))
_FROM_ZERO = _tiled(start=0.0)
_BASE_TWO = _tiled(base=2.0)
_DIVIDED_BY_D = _tiled(scaled=float)
_WITH_NAN = _tiled(zeros=False)


def _takes_tiles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> None:
    if not all(item.is_floating_point() for item in (q, k, v)) or min(block_q, block_k) < 1:
        raise TypeError


def _expect_verdicts(answer: Answer, cases: Cases, wrong: Sequence[tuple[_Tiled, str]]) -> None:
    """The learner's test accepts what is right and rejects each wrong implementation."""
    right = cases.shuffled([_IN_TILES, _at_once])[:1]
    accepted, refused = verdicts(
        answer, cases, right=right, wrong=[item for item, _seen in wrong], takes=_takes_tiles
    )
    expect(
        all(accepted),
        seen=_("Your test rejects a right implementation."),
        cause=_("It compares too strictly, or asks what the docstring does not promise."),
        next_step=_(
            "Run it on your own flash_forward, and compare with torch.allclose and an absolute "
            "tolerance near 1e-3."
        ),
    )
    for (_item, seen), found in zip(wrong, refused, strict=True):
        expect(
            found,
            seen=seen,
            cause=_("No call and no assertion of yours shows what this one gets wrong."),
            next_step=_("Think of the sizes, blocks and scores for which it must fail; use them."),
        )


@test_writing.check(points=1)
def finds_a_missing_mask_and_a_missing_rescale(answer: Answer, cases: Cases) -> None:
    """It accepts right ones; it rejects one that ignores causal, one without rescaling."""
    _expect_verdicts(
        answer,
        cases,
        [
            (_no_mask, _("Your test accepts one that ignores causal.")),
            (_NO_RESCALE, _("Your test accepts one that never rescales its output.")),
        ],
    )


@test_writing.check(points=1)
def finds_dropped_keys(answer: Answer, cases: Cases) -> None:
    """It rejects one that leaves out a last tile that is not full."""
    _expect_verdicts(
        answer,
        cases,
        [(_WHOLE_TILES, _("Your test accepts one that drops a ragged last tile."))],
    )


@test_writing.check(points=1, hidden=True)
def finds_masks_that_are_off(answer: Answer, cases: Cases) -> None:
    """It rejects masks off by one, without S − T, and tiles skipped that are seen."""
    seen = _("Your test accepts one whose causal mask or skipping is wrong for some sizes.")
    _expect_verdicts(answer, cases, [(item, seen) for item in _OFF_MASKS])


@test_writing.check(points=1, hidden=True)
def finds_what_large_scores_break(answer: Answer, cases: Cases) -> None:
    """It rejects one without a maximum, and one whose maximum starts at zero."""
    seen = _("Your test accepts one that fails for scores far from zero.")
    _expect_verdicts(answer, cases, [(item, seen) for item in (_no_maximum, _FROM_ZERO)])


@test_writing.check(points=1, hidden=True)
def finds_a_wrong_logsumexp_and_scale(answer: Answer, cases: Cases) -> None:
    """It rejects a logsumexp in base 2, and a wrong scale."""
    _expect_verdicts(
        answer,
        cases,
        [
            (_BASE_TWO, _("Your test accepts a logsumexp in base 2.")),
            (_DIVIDED_BY_D, _("Your test accepts scores divided by d.")),
        ],
    )


@test_writing.check(points=0.5, hidden=True)
def finds_queries_without_keys(answer: Answer, cases: Cases) -> None:
    """It rejects one that gives NaN where a query sees no key."""
    _expect_verdicts(
        answer,
        cases,
        [(_WITH_NAN, _("Your test accepts NaN where a query sees no key."))],
    )


# --- flash_backward --------------------------------------------------------------------------

backward = Exercise(
    "flash_backward",
    title=_("Backward without the matrix"),
    difficulty=4,
    minutes=45,
    hints=(
        _("From which two saved tensors can a tile of weights be computed again, and how?"),
        _(
            "If dv is right and dq, dk are not, look at D and at the scale: it stands once in the "
            "scores and once more in dq and dk. If dk has dv's shape and not its values, ask which "
            "of q and grad_output it is multiplied by."
        ),
        _(
            "D = Σ grad_output·output; P = exp(scores − logsumexp); dV += Pᵀ dO; dP = dO Vᵀ; "
            "dS = P·(dP − D); dQ += dS K/√d; dK += dSᵀ Q/√d."
        ),
    ),
    forbid=_LIBRARY,
)

_BACKWARD_STEP = _(
    "Compare with torch.autograd.grad on attention by the definition, for T = S = 2 and one tile."
)


def _saved(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> tuple[Tensor, Tensor]:
    """Output and logsumexp as the forward pass leaves them."""
    output, logsumexp = _attend(q, k, v, causal)
    wide = torch.promote_types(q.dtype, torch.float32)
    return output.to(q.dtype), logsumexp.to(wide)


def _expect_gradients(
    found: object,
    expected: Sequence[Tensor],
    *,
    cause: str,
    atol: float = GRADIENT,
    step: str = _BACKWARD_STEP,
) -> None:
    items = expect_items(found, len(expected), what=_("dq, dk and dv"))
    # dv needs the least, so it is compared first
    for value, wanted, name in reversed(
        list(zip(items, expected, ("dq", "dk", "dv"), strict=True))
    ):
        if value is None:
            fail(
                seen=_("{name} is None.").format(name=name),
                cause=_("No gradient is returned in this place."),
                next_step=_("Return one gradient for each input, in the order of the inputs."),
            )
        expect_close(value, wanted, atol=atol, what=name, cause=cause, next_step=step)


def _run_backward(
    answer: Answer,
    given: tuple[Tensor, Tensor, Tensor],
    g: Tensor,
    *,
    causal: bool = False,
    blocks: tuple[int, int] = (4, 3),
    **options: Any,
) -> Any:
    saved = _saved(*given, causal)
    kwargs = {"causal": causal, "block_q": blocks[0], "block_k": blocks[1]}
    return answer.run((*given, *saved, g), kwargs, **options)


@backward.check(points=0.5)
def gradients_have_their_shapes(answer: Answer, cases: Cases) -> None:
    """dq, dk and dv have the shapes and the dtype of q, k and v."""
    T, S, d, H = cases.distinct(4, 3, 8)
    for dtype in (torch.float32, torch.float16):
        q, k, v = (x.to(dtype) for x in _case(cases, H, d=d, T=T, S=S))
        found = _run_backward(answer, (q, k, v), torch.ones_like(q)).value
        items = expect_items(found, 3, what=_("dq, dk and dv"))
        _note_dtypes(answer, *items)
        for item, like, name in zip(items, (q, k, v), ("dq", "dk", "dv"), strict=True):
            expect_tensor(item, like.shape, what=name, dtype=dtype)


@backward.check(points=1.5)
def tiles_that_fit_give_the_gradients(answer: Answer, cases: Cases) -> None:
    """Tiles that divide T and S: dq, dk and dv are those of attention."""
    given = _case(cases, 2, d=5, T=8, S=12)
    g = cases.normal(2, 8, 5)
    cause = _("A factor is missing in this gradient, or one is transposed.")
    _expect_gradients(_run_backward(answer, given, g).value, _gradients(*given, g), cause=cause)


@backward.check(points=1)
def ragged_tiles_give_the_gradients(answer: Answer, cases: Cases) -> None:
    """The last tiles are smaller."""
    T, S = 10 + cases.integer(0, 2), 13 + cases.integer(0, 2)
    given, g = _case(cases, 3, d=4, T=T, S=S), cases.normal(3, T, 4)
    cause = _("The last queries or keys are left out, or overwritten instead of added to.")
    _expect_gradients(_run_backward(answer, given, g).value, _gradients(*given, g), cause=cause)


@backward.check(points=1)
def causal_gradients_hide_the_future(answer: Answer, cases: Cases) -> None:
    """With causal=True, also where T and S differ."""
    for T, S in ((9, 9), (5, 12)):
        given, g = _case(cases, 2, d=4, T=T, S=S), cases.normal(2, T, 4)
        for blocks in ((4, 3), (3, 4)):
            found = _run_backward(answer, given, g, causal=True, blocks=blocks).value
            _expect_gradients(
                found,
                _gradients(*given, g, True),
                cause=_("The mask is missing or another one than in the forward pass."),
            )


@backward.check(points=1)
def the_matrix_is_not_made_again(answer: Answer, cases: Cases) -> None:
    """Gradients are right, and no tensor of T × S numbers is made, nor of a large part of it."""
    T, S, d = 75, 80, 4  # in the sizes of the forward pass's check
    given, g = _case(cases, d=d, T=T, S=S), cases.normal(T, d)
    run = _run_backward(answer, given, g, blocks=(16, 16), meter=True)
    expect_items(run.value, 3, what=_("dq, dk and dv"))
    small = run.meter["largest"] < T * S // 4
    answer.note(small)
    expect(
        small,
        seen=_("A tensor of {n} numbers is made, where T × S is {all}.").format(
            n=run.meter["largest"], all=T * S
        ),
        cause=_("The weights or their gradient stand in one tensor for all queries and keys."),
        next_step=_("Compute the weights of a tile from its scores and the rows' logsumexp."),
    )
    expect_counted(answer, run.meter, T * S)
    # last: who computes nothing makes no tensor
    cause = _("The tiles are small, and what they add up to are not the gradients.")
    _expect_gradients(run.value, _gradients(*given, g), cause=cause)


@backward.check(points=1, hidden=True)
def queries_without_keys_get_no_gradient(answer: Answer, cases: Cases) -> None:
    """Causal with more queries than keys: zeros and no NaN for those that see no key."""
    T, S = 11, 5
    given, g = _case(cases, 2, d=4, T=T, S=S), cases.normal(2, T, 4)
    for blocks in ((4, 2), (3, 3)):
        found = _run_backward(answer, given, g, causal=True, blocks=blocks).value
        cause = _("A logsumexp of −∞ turns exp(score − logsumexp) into NaN or infinity.")
        _expect_gradients(found, _gradients(*given, g, True), cause=cause)


@backward.check(points=1, hidden=True)
def saved_values_are_used(answer: Answer, cases: Cases) -> None:
    """Weights come from the saved logsumexp, D from the saved output; large scores stay finite."""
    given, g = _case(cases, 2, d=4, T=6, S=7), cases.normal(2, 6, 4)
    given[0][..., 0], given[1][..., 0] = 20.0, 25.0 + given[1][..., 0]  # scores near 250
    found = _run_backward(answer, given, g).value
    cause = _("exp(score) overflows before it is divided: subtract the logsumexp first.")
    # scores of 250 in float32 are off by 3e-5, times inputs of 25
    _expect_gradients(found, _gradients(*given, g), cause=cause, atol=1e-2)
    given = _hidden_spike(cases)
    _expect_gradients(
        _run_backward(answer, given, g[:, :6], causal=True).value,
        _gradients(*given, g[:, :6], True),
        cause=_("Weights that the mask hides are made first and multiplied by 0: ∞ · 0 is NaN."),
        atol=1e-2,  # scores of 400 in float32 are off by 3e-5, times inputs of 40
    )


@backward.check(points=1, hidden=True)
def half_precision_gradients_sum_in_float32(answer: Answer, cases: Cases) -> None:
    """float16 inputs and gradients: sums over many tiles are kept in float32."""
    T, S, d = 200, 6, 8
    q, k, v = _case(cases, d=d, T=T, S=S)
    q, g = q * 0.2, cases.normal(T, d)
    # One column of dv grows to more than 100 and comes back to nearly 0: what was rounded on the
    # way stays, 0.1 and more.
    g[:, 0] = torch.where(torch.arange(T) < T // 2, 8.0, -8.0)
    q, k, v, g = q.half(), k.half(), v.half(), g.half()
    saved = _saved(q, k, v)
    found = answer(q, k, v, *saved, g, block_q=10, block_k=3)
    # Results of a few units are rounded once, by 2e-3; D comes from an output rounded by 5e-4.
    _expect_gradients(
        found,
        _gradients(q, k, v, g),
        cause=_("Gradients are added up in half precision, and each addition is rounded."),
        atol=1e-2,
    )
    # D is 131,072 here, which half precision has not; all gradients are 0, as all values are alike
    # and what two equal queries hand back cancels.
    q, k, _values = _case(cases, d=d, T=4, S=6)
    q[1::2] = q[::2]
    g = torch.full((4, d), 2048.0)
    g[1::2] *= -1
    q, k, v, g = q.half(), k.half(), torch.full((6, d), 8.0).half(), g.half()
    _expect_gradients(
        answer(q, k, v, *_saved(q, k, v), g, block_q=4, block_k=3),
        _gradients(q, k, v, g),
        cause=_("D is computed in half precision, where it becomes infinite."),
        atol=0.1,  # float32 numbers of 131,072 are 0.016 apart, and D is subtracted
    )


@backward.check(points=1, hidden=True)
def tiles_nobody_saw_are_skipped(answer: Answer, cases: Cases) -> None:
    """With causal=True, tiles in which no query sees a key cost nothing."""
    n = 24
    given, g = _case(cases, d=16, T=n, S=n), cases.normal(n, 16)
    work = []
    for causal in (False, True):
        run = _run_backward(answer, given, g, causal=causal, blocks=(8, 8), meter=True)
        _expect_gradients(run.value, _gradients(*given, g, causal), cause=_("The mask is wrong."))
        work.append(run.meter["flops"] or run.meter["total"])
    _expect_work_skipped(answer, *work)


@backward.check(points=1, hidden=True)
def other_tiles_double_and_inputs(answer: Answer, cases: Cases) -> None:
    """Tiles of one and larger than the input; float64; no input is overwritten."""
    given = tuple(x.double() for x in _case(cases, 2, 1, d=3, T=5, S=4))
    q, k, v = given
    g = cases.normal(2, 1, 5, 3, dtype=torch.float64)
    for blocks in ((1, 1), (64, 64)):
        run = _run_backward(answer, (q, k, v), g, causal=True, blocks=blocks, echo=True)
        _expect_gradients(
            run.value,
            _gradients(q, k, v, g, True),
            cause=_("It rests on a tile size, or something on the way is in float32."),
            atol=FLOAT64,
        )
        _expect_kept((q, k, v, *_saved(q, k, v, True), g), run.args)


# --- FlashAttention --------------------------------------------------------------------------

function = Exercise(
    "FlashAttention",
    title=_("A function with its own backward pass"),
    difficulty=3,
    minutes=20,
    hints=(
        _("What does backward need that forward has, and what may not be kept?"),
        _(
            "If you see “incorrect number of gradients”, backward returns one value per argument "
            "of forward, None for those that are no tensors. Keep tensors by save_for_backward, "
            "and the flag as an attribute of ctx."
        ),
        _(
            "forward: flash_forward, ctx.save_for_backward(q, k, v, output, logsumexp), "
            "ctx.causal. backward: flash_backward of what was saved, then dq, dk, dv, None."
        ),
    ),
    forbid=_LIBRARY,
)


def _apply(
    answer: Answer,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    cotangent: Tensor,
    wrt: Sequence[int | str] = (0, 1, 2),
    **options: Any,
) -> Any:
    return answer.run((q, k, v, causal), method="apply", wrt=wrt, cotangent=cotangent, **options)


def _expect_function(
    answer: Answer, cases: Cases, causal: bool, T: int, S: int, *, double: bool = False
) -> None:
    q, k, v = _case(cases, 2, 2, d=4, T=T, S=S)
    g = cases.normal(2, 2, T, 4)
    if double:
        q, k, v, g = q.double(), k.double(), v.double(), g.double()
    run = _apply(answer, q, k, v, causal, g)
    expect_close(
        run.value,
        _attend(q, k, v, causal)[0],
        atol=FLOAT64 if double else FLOAT32,
        what=_("the output"),
        cause=_("forward returns something else than the output, or loses causal."),
        next_step=_("Return flash_forward's first result, for the given causal."),
    )
    _expect_gradients(
        [run.grads.get(name) for name in ("0", "1", "2")],
        _gradients(q, k, v, g, causal),
        cause=_("backward gets another tensor or flag than forward had, or returns another order."),
        atol=FLOAT64 if double else GRADIENT,
        step=_("Compare the order of save_for_backward with that of saved_tensors."),
    )


@function.check(points=0.5)
def the_output_is_attention(answer: Answer, cases: Cases) -> None:
    """apply returns the output of attention, causal and not."""
    q, k, v = _case(cases, 2, d=4, T=5, S=7)
    for causal in (False, True):
        expect_close(
            answer.method("apply", q, k, v, causal),
            _attend(q, k, v, causal)[0],
            atol=FLOAT32,
            what=_("the output"),
            cause=_("forward returns something else than the output, or loses causal."),
            next_step=_("Return flash_forward's first result, for the given causal."),
        )


@function.check(points=1)
def gradients_without_a_mask(answer: Answer, cases: Cases) -> None:
    """The gradients by q, k and v are those of attention, causal=False."""
    _expect_function(answer, cases, False, 5, 8)


@function.check(points=1)
def gradients_with_a_mask(answer: Answer, cases: Cases) -> None:
    """The gradients by q, k and v are those of attention, causal=True."""
    _expect_function(answer, cases, True, 5, 8)


@function.check(points=0.5, hidden=True)
def double_precision_gradients(answer: Answer, cases: Cases) -> None:
    """In float64 the gradients are right to ten places, as gradcheck asks."""
    for causal in (False, True):
        _expect_function(answer, cases, causal, 6, 6, double=True)


@function.check(points=0.5, hidden=True)
def one_input_at_a_time(answer: Answer, cases: Cases) -> None:
    """A gradient comes back where one input alone asks for it, several tiles included."""
    q, k, v = _case(cases, d=4, T=70, S=66)
    g = cases.normal(70, 4)
    expected = _gradients(q, k, v, g)
    for place in (0, 1, 2):
        run = _apply(answer, q, k, v, False, g, wrt=[place])
        found = run.grads.get(str(place))
        name = ("dq", "dk", "dv")[place]
        if found is None:
            fail(
                seen=_("{name} is None.").format(name=name),
                cause=_("backward returns None in the place of a tensor."),
                next_step=_("Return one gradient per argument of forward, in forward's order."),
            )
        expect_close(
            found,
            expected[place],
            atol=GRADIENT,
            what=name,
            cause=_("The gradient stands in another input's place."),
            next_step=_("Return one gradient per argument of forward, in forward's order."),
        )


@function.check(points=0.5, hidden=True)
def two_calls_do_not_meet(answer: Answer, cases: Cases) -> None:
    """Two calls before either backward pass keep what each of them needs."""
    q, k, v = _case(cases, 2, d=4, T=5, S=5)
    g = cases.normal(2, 5, 4)
    twice = answer.fixture("both_ways")
    run = twice.run((answer, q, k, v), wrt=[1, 2, 3], cotangent=g)
    expected = [
        one + 2 * two
        for one, two in zip(
            _gradients(q, k, v, g, True), _gradients(q, k, v, g, False), strict=True
        )
    ]
    _expect_gradients(
        [run.grads.get(name) for name in ("1", "2", "3")],
        expected,
        cause=_("What a call leaves for its backward pass is overwritten by the next call."),
        step=_("Keep everything in ctx: nothing in the class, nothing in a global variable."),
    )


@function.check(points=0.5, hidden=True)
def neither_pass_makes_the_matrix(answer: Answer, cases: Cases) -> None:
    """Forward and backward make no tensor of T × S numbers, and the gradients are right."""
    n, d = 192, 4
    q, k, v = _case(cases, d=d, T=n, S=n)
    g = cases.normal(n, d)
    passes = answer.fixture("there_and_back")
    run = passes.run((answer, q, k, v, True, g), meter=True)
    expect_items(run.value, 3, what=_("dq, dk and dv"))
    # a tile of 64 × 64 numbers is a ninth of the matrix, a tile of queries with all keys a third
    small = run.meter["largest"] < n * n // 2
    answer.note(small)
    expect(
        small,
        seen=_("A tensor as large as T × S is made."),
        cause=_("A pass computes the weights of all queries and keys at once."),
        next_step=_("Keep q, k, v, the output and the logsumexp, and leave the rest to tiles."),
    )
    expect_counted(answer, run.meter, n * n)  # half of the scores are seen, in each of two passes
    # last: who computes nothing makes no tensor
    _expect_gradients(
        run.value,
        _gradients(q, k, v, g, True),
        cause=_("backward gets another tensor or flag than forward had, or returns another order."),
    )


# --- Triton: launching -----------------------------------------------------------------------

# Widths and blocks are 16, the least that a GPU's tl.dot takes: several tiles each way remain few.
WIDTH = BLOCK = 16
# exp2 and log2 of the interpreter, in float32, over at most 64 keys; wrong answers differ by 1e-3.
KERNEL = 2e-5
_NAN = math.nan


def _launch(
    answer: Answer,
    grid: Sequence[int],
    arguments: Sequence[Any],
    constants: dict[str, Any],
    *,
    meter: bool = False,
) -> tuple[list[Tensor], dict[str, int]]:
    """Launch a learner's kernel; the tensors as it left them, and what was counted.

    The check fails where the kernel left its tensors, and where there is no Triton.
    """
    launcher = answer.fixture("launcher")
    run = launcher.run((answer, list(grid), list(arguments), constants), meter=meter)
    found = run.value if isinstance(run.value, dict) else {}
    if found.get("missing"):
        fail(
            seen=_("Triton is not installed here, so this kernel cannot be run."),
            cause=_("There is no Triton for Windows and macOS."),
            next_step=_("Open this chapter in Colab; the other exercises work here."),
        )
    outside = found.get("outside")
    if outside:
        load = outside[0] == "load"
        fail(
            seen=(
                _("A load reads outside the tensor of {name}.")
                if load
                else _("A store writes outside the tensor of {name}.")
            ).format(name=outside[1]),
            cause=_("Its mask lets rows of a last tile through that are not there, or is missing."),
            next_step=_("Compare the tile's row numbers with T or S, and pass that as mask=."),
        )
    tensors = found.get("tensors")
    given = [item for item in arguments if isinstance(item, Tensor)]
    expect(
        isinstance(tensors, list) and len(tensors) == len(given),
        seen=_("The kernel came to no end."),
        cause=_("It was stopped."),
        next_step=_("Run it on a small input in a cell of your own."),
    )
    return [
        expect_tensor(item, like.shape, what=_("a tensor after the launch"), dtype=like.dtype)
        for item, like in zip(cast(list[Any], tensors), given, strict=True)
    ], run.meter


def _counted(meter: dict[str, int]) -> dict[str, int]:
    """The counts, where there are any: a compiled kernel is not watched."""
    expect(
        meter.get("stored", 0) > 0,
        seen=_("What the kernel loads and stores could not be counted."),
        cause=_("It ran compiled, on a GPU, where nobody watches."),
        next_step=_("Set the environment variable TRITON_INTERPRET=1 and start the kernel anew."),
    )
    return meter


# --- logsumexp_kernel ------------------------------------------------------------------------

first_kernel = Exercise(
    "logsumexp_kernel",
    title=_("A first kernel: logsumexp of rows"),
    difficulty=2,
    minutes=25,
    hints=(
        _("Which row does program number i have, and where in memory does that row begin?"),
        _(
            "If you are told of a load outside the tensor, the last block reaches past the row's "
            "end: mask it with columns < S. What should a masked score be, so that its "
            "exponential is 0?"
        ),
        _(
            "row = program_id(0); for start in range(0, S, BLOCK): load x at row·S + start + "
            "arange, other=−∞; update m and the sum as for a stream, with tl.max and tl.sum; "
            "store m + log of the sum."
        ),
    ),
    needs=("triton",),
)


def _expect_rows(answer: Answer, x: Tensor, block: int, *, atol: float = KERNEL) -> dict[str, int]:
    N, S = x.shape
    tensors, meter = _launch(
        answer, (N,), [x, torch.full((N,), _NAN), S], {"BLOCK": block}, meter=True
    )
    expect_close(
        tensors[1],
        x.double().logsumexp(-1),
        atol=atol,
        what=_("the logsumexp of the rows"),
        cause=_("A row's blocks are not joined rightly, or the row begins elsewhere."),
        next_step=_("Launch it on one row of 4 numbers with BLOCK = 2, and print inside."),
    )
    return meter


@first_kernel.check(points=1)
def one_block_a_row(answer: Answer, cases: Cases) -> None:
    """Rows that fit into one block."""
    _expect_rows(answer, cases.normal(3, 8), 8)


@first_kernel.check(points=1)
def several_blocks_a_row(answer: Answer, cases: Cases) -> None:
    """Rows of several blocks."""
    _expect_rows(answer, cases.normal(2, 24, scale=2.0), 8)


@first_kernel.check(points=1)
def rows_that_do_not_fill_their_blocks(answer: Answer, cases: Cases) -> None:
    """Rows whose last block is not full; nothing is read past the last row."""
    _expect_rows(answer, cases.normal(3, 17 + cases.integer(0, 6)), 8)
    _expect_rows(answer, cases.normal(2, 3), 8)


@first_kernel.check(points=1, hidden=True)
def large_scores_in_rows(answer: Answer, cases: Cases) -> None:
    """Scores of some hundreds on both sides of zero, rising and falling."""
    rising = torch.linspace(-400.0, 300.0, 20)
    x = torch.stack([rising, rising.flip(0), rising - 500, rising + 500]) + cases.normal(4, 20)
    _expect_rows(answer, x, 8, atol=2e-3)  # float32 numbers of 800 are 6e-5 apart
    _expect_rows(answer, cases.normal(2, 20) - 16_000, 8, atol=2e-3)  # 1e-3 apart


@first_kernel.check(points=1, hidden=True)
def each_score_is_loaded_once(answer: Answer, cases: Cases) -> None:
    """Every score is loaded once, and each row is stored once."""
    N, S = 3, 21
    counts = _counted(_expect_rows(answer, cases.normal(N, S), 8))
    once = [counts["loaded"] <= N * S, counts["stored"] <= N]
    answer.note(once)
    expect(
        all(once),
        seen=_("More is loaded or stored than each score and each result once."),
        cause=_("There are two passes over the row, or what a mask should leave out is loaded."),
        next_step=_("Keep the maximum and the sum together, in one loop."),
    )


# --- flash_forward_kernel --------------------------------------------------------------------

forward_kernel = Exercise(
    "flash_forward_kernel",
    title=_("The forward kernel"),
    difficulty=5,
    minutes=60,
    hints=(
        _("Which of the loops of flash_forward is the grid now, and which one is left?"),
        _(
            "If you are told of an access outside a tensor, mask loads and stores by row: "
            "queries < T, keys < S. Masked keys load 0 and so have score 0: they need −∞ before "
            "the softmax."
        ),
        _(
            "Load q once; loop over tiles of keys: load k and v, scores = tl.dot(q, tl.trans(k)) · "
            "scale, −∞ where keys ≥ S or, causal, keys > queries + S − T; the three updates; then "
            "store accumulator / total and m + log of the total."
        ),
    ),
    needs=("triton",),
)

_KERNEL_STEP = _("Launch it on T = S = 16, one tile and one head, and compare line by line.")


def _forward_kernel(
    answer: Answer,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    blocks: tuple[int, int] = (BLOCK, BLOCK),
    meter: bool = False,
) -> tuple[_Forward, dict[str, int]]:
    (N, T, d), S = q.shape, k.shape[1]
    output = torch.full(q.shape, _NAN, dtype=q.dtype)
    logsumexp = torch.full((N, T), _NAN)
    tensors, counts = _launch(
        answer,
        (-(-T // blocks[0]), N),
        [q, k, v, output, logsumexp, T, S, 1 / math.sqrt(d)],
        {"d": d, "CAUSAL": causal, "BLOCK_Q": blocks[0], "BLOCK_K": blocks[1]},
        meter=meter,
    )
    _expect_kept((q, k, v), tensors[:3])
    return (tensors[3], tensors[4]), counts


def _expect_kernel(
    answer: Answer, q: Tensor, k: Tensor, v: Tensor, *, cause: str, **options: Any
) -> dict[str, int]:
    atol = {name: options.pop(name) for name in ("atol", "logsumexp_atol") if name in options}
    found, counts = _forward_kernel(answer, q, k, v, **options)
    expected = _attend(q, k, v, options.get("causal", False))
    _expect_forward(found, expected, cause=cause, step=_KERNEL_STEP, **({"atol": KERNEL} | atol))
    return counts


@forward_kernel.check(points=1)
def kernel_tiles_that_fit(answer: Answer, cases: Cases) -> None:
    """Two heads, tiles that fit: output and logsumexp are those of attention."""
    q, k, v = _case(cases, 2, d=WIDTH, T=16, S=48)
    cause = _("The pointers of a head or a row are wrong, or tiles are not joined rightly.")
    _expect_kernel(answer, q, k, v, cause=cause)


@forward_kernel.check(points=1)
def kernel_ragged_tiles(answer: Answer, cases: Cases) -> None:
    """The last tiles are not full; nothing is read or written outside a tensor."""
    q, k, v = _case(cases, 1, d=WIDTH, T=16 + cases.integer(1, 16), S=32 + cases.integer(1, 16))
    cause = _("Keys that are not there take part, or the last queries are not stored.")
    _expect_kernel(answer, q, k, v, cause=cause)


@forward_kernel.check(points=1)
def kernel_causal(answer: Answer, cases: Cases) -> None:
    """Causal with T = S, with tiles of two shapes."""
    q, k, v = _case(cases, 1, d=WIDTH, T=40, S=40)
    cause = _("The mask is missing or off by one, or a tile that is seen is skipped.")
    for blocks in ((32, 16), (16, 32)):
        _expect_kernel(answer, q, k, v, causal=True, blocks=blocks, cause=cause)


@forward_kernel.check(points=1, hidden=True)
def kernel_causal_with_other_lengths(answer: Answer, cases: Cases) -> None:
    """Causal with fewer queries than keys, and with more: those that see no key get zeros."""
    cause = _("Query t stands at position t + S − T; a row without keys gives zeros and −∞.")
    for T, S in ((20, 45), (45, 20)):
        q, k, v = _case(cases, 1, d=WIDTH, T=T, S=S)
        _expect_kernel(answer, q, k, v, causal=True, cause=cause)


@forward_kernel.check(points=1, hidden=True)
def kernel_half_precision(answer: Answer, cases: Cases) -> None:
    """float16 inputs: scores and sums are kept in float32."""
    q, k, v = _case(cases, 1, d=WIDTH, T=16, S=110)
    # scores of some units, which half precision rounds by 2e-3; an accumulator that grows
    q, k, v = (2 * q).half(), k.half(), (v + 1).half()
    _expect_kernel(
        answer,
        q,
        k,
        v,
        cause=_("The accumulator or the scores are in half precision."),
        blocks=(BLOCK, 2 * BLOCK),
        atol=HALF[torch.float16],
        logsumexp_atol=HALF_LOGSUMEXP,
    )
    # All weights are alike, and the values' sum grows to some thousand and comes back to 0.
    values = 64 + 32 * cases.uniform(1, 55, WIDTH)
    _expect_kernel(
        answer,
        torch.zeros_like(q),
        k,
        torch.cat([values, -values], dim=1).half(),
        cause=_("The accumulator is rounded to half precision in every step."),
        blocks=(BLOCK, 2 * BLOCK),
        atol=HALF[torch.float16],
    )


@forward_kernel.check(points=1, hidden=True)
def kernel_large_logits(answer: Answer, cases: Cases) -> None:
    """Scores of some hundreds, above zero and below it, rising from tile to tile."""
    cause = _("exp overflows or vanishes: the maximum is missing, or not that of the row so far.")
    for sign in (1.0, -1.0):
        q, k, v = _case(cases, 1, d=WIDTH, T=16, S=40)
        q[..., 0] = 20.0
        k[..., 0] = sign * (40 + 1.0 * torch.arange(40.0))  # scores 200 … 400
        # scores of 400 in float32 are off by 3e-5, and the output by as much
        _expect_kernel(answer, q, k, v, cause=cause, atol=1e-3)


@forward_kernel.check(points=1, hidden=True)
def kernel_moves_no_more_than_it_must(answer: Answer, cases: Cases) -> None:
    """Queries are loaded once, keys and values once per tile of queries, results stored once."""
    T, S = 32, 32
    q, k, v = _case(cases, 1, d=WIDTH, T=T, S=S)
    cause = _("Tiles are not joined rightly.")
    counts = _counted(_expect_kernel(answer, q, k, v, cause=cause, meter=True))
    need = T * WIDTH + T // BLOCK * 2 * S * WIDTH
    lean = [counts["loaded"] <= 1.2 * need, counts["stored"] <= 1.2 * (T * WIDTH + T)]
    answer.note(lean)
    expect(
        all(lean),
        seen=_("{loaded} numbers are loaded where {need} are needed; {stored} are stored.").format(
            loaded=counts["loaded"], need=need, stored=counts["stored"]
        ),
        cause=_("Queries are loaded, or results stored, in every step of the loop."),
        next_step=_("Load q before the loop, keep the sums in registers, store after the loop."),
    )


@forward_kernel.check(points=1, hidden=True)
def kernel_skips_tiles(answer: Answer, cases: Cases) -> None:
    """With CAUSAL, tiles in which no query sees a key are not loaded."""
    n = 48
    q, k, v = _case(cases, 1, d=WIDTH, T=n, S=n)
    cause = _("A tile that is seen is skipped, or the mask is wrong.")
    counts = _counted(_expect_kernel(answer, q, k, v, causal=True, cause=cause, meter=True))
    # of 3 × 3 tiles of keys and values 6 are seen
    once, tile = n * WIDTH, 2 * BLOCK * WIDTH
    _expect_skipped(
        answer,
        counts["loaded"],
        once + 6 * tile,
        once + 9 * tile,
        seen=_("Keys are loaded that no query of the tile sees."),
        next_step=_("End the loop behind the last key that the tile's last query sees."),
    )


# --- the backward kernels --------------------------------------------------------------------

dq_kernel = Exercise(
    "flash_backward_dq_kernel",
    title=_("The kernel of dq"),
    difficulty=4,
    minutes=35,
    hints=(
        _("What of the forward kernel stays as it is, and what is no longer needed in the loop?"),
        _(
            "If rows behind T disturb the others or give NaN, load their logsumexp as +∞: then "
            "their weights are 0. The same helps for queries that see no key."
        ),
        _(
            "Loop over tiles of keys: p = exp(q kᵀ·scale − logsumexp), masked; dp = g vᵀ; "
            "ds = p·(dp − delta); dq += ds k. Store dq·scale."
        ),
    ),
    needs=("triton",),
)

dkv_kernel = Exercise(
    "flash_backward_dkv_kernel",
    title=_("The kernel of dk and dv"),
    difficulty=4,
    minutes=35,
    hints=(
        _("Which tensors are loaded once now, and over what does the loop run?"),
        _(
            "With CAUSAL, the first queries see none of this tile's keys: begin the loop at the "
            "tile of query start − (S − T), but not below 0. dk needs the scale as dq does; dv "
            "does not."
        ),
        _(
            "Loop over tiles of queries: p as before; dv += pᵀ g; dp = g vᵀ; ds = p·(dp − delta); "
            "dk += dsᵀ q. Store dk·scale and dv."
        ),
    ),
    needs=("triton",),
)


def _expect_backward_kernel(
    answer: Answer,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    *,
    of_keys: bool,
    cause: str,
    causal: bool = False,
    blocks: tuple[int, int] = (BLOCK, BLOCK),
    atol: float = GRADIENT,
    meter: bool = False,
) -> dict[str, int]:
    (N, T, d), S = q.shape, k.shape[1]
    output, logsumexp = _attend(q, k, v, causal)
    delta = (g.double() * output).sum(-1).float()
    results = [torch.full(x.shape, _NAN, dtype=x.dtype) for x in ((k, v) if of_keys else (q,))]
    tiles = -(-S // blocks[1]) if of_keys else -(-T // blocks[0])
    given = [q, k, v, g, logsumexp.float(), delta]
    tensors, counts = _launch(
        answer,
        (tiles, N),
        [*given, *results, T, S, 1 / math.sqrt(d)],
        {"d": d, "CAUSAL": causal, "BLOCK_Q": blocks[0], "BLOCK_K": blocks[1]},
        meter=meter,
    )
    expected = _gradients(q, k, v, g, causal)
    wanted = list(zip(tensors[6:], expected[1:] if of_keys else expected[:1], strict=True))
    names = ("dk", "dv") if of_keys else ("dq",)
    for (found, right), name in reversed(list(zip(wanted, names, strict=True))):
        expect_close(found, right, atol=atol, what=name, cause=cause, next_step=_KERNEL_STEP)
    return counts


def _backward_checks(exercise: Exercise, *, of_keys: bool) -> None:
    """Both kernels are asked the same."""
    tiles_cause = _("A factor is missing or transposed, or tiles are not added up rightly.")

    def case(cases: Cases, N: int, T: int, S: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return *_case(cases, N, d=WIDTH, T=T, S=S), cases.normal(N, T, WIDTH)

    @exercise.check(points=1)
    def gradient_tiles_that_fit(answer: Answer, cases: Cases) -> None:
        """Two heads, tiles that fit."""
        given = case(cases, 2, *((32, 16) if of_keys else (16, 32)))
        _expect_backward_kernel(answer, *given, of_keys=of_keys, cause=tiles_cause)

    @exercise.check(points=1)
    def gradient_ragged_tiles(answer: Answer, cases: Cases) -> None:
        """The last tiles are not full; nothing is read or written outside a tensor."""
        given = case(cases, 1, 16 + cases.integer(1, 16), 16 + cases.integer(1, 16))
        cause = _("Rows behind the end take part, or the last rows are not stored.")
        _expect_backward_kernel(answer, *given, of_keys=of_keys, cause=cause)
        # All scores near −140: a key that is not there would have 0, and a weight of e¹⁴⁰.
        q, k, v, g = given
        q[..., 0], k[..., 0] = 20.0, k[..., 0] - 28.0
        _expect_backward_kernel(
            answer,
            q,
            k,
            v,
            g,
            of_keys=of_keys,
            cause=_("Keys behind the end get a weight, which is infinite where scores are low."),
            atol=1e-2,  # scores of 140 in float32 are off by 1e-5, times inputs of 28
        )

    @exercise.check(points=1)
    def gradient_causal(answer: Answer, cases: Cases) -> None:
        """Causal with T = S, with tiles of two shapes."""
        given = case(cases, 1, 40, 40)
        cause = _("The mask is missing or off by one, or a tile that is seen is skipped.")
        for blocks in ((32, 16), (16, 32)):
            _expect_backward_kernel(
                answer, *given, of_keys=of_keys, causal=True, blocks=blocks, cause=cause
            )

    @exercise.check(points=1, hidden=True)
    def gradient_causal_with_other_lengths(answer: Answer, cases: Cases) -> None:
        """Causal with fewer queries than keys, and with more: no NaN from those that see none."""
        cause = _("Query t stands at position t + S − T; a logsumexp of −∞ means no weights.")
        for T, S in ((20, 45), (45, 20)):
            given = case(cases, 1, T, S)
            _expect_backward_kernel(answer, *given, of_keys=of_keys, causal=True, cause=cause)

    @exercise.check(points=1, hidden=True)
    def gradient_half_precision(answer: Answer, cases: Cases) -> None:
        """float16 inputs: gradients are summed in float32 and stored in float16."""
        T, S, blocks = (192, 16, (32, 16)) if of_keys else (16, 150, (16, 16))
        q, k, v, g = case(cases, 1, T, S)
        q = q * 0.2  # no weight stands out
        # One column of the sum grows to some hundred over the first tiles, and comes back to
        # nearly 0 over the others: what was rounded on the way stays.
        if of_keys:
            g[..., 0] = torch.where(torch.arange(T) < T // 2, 8.0, -8.0)
        else:
            q[..., 1], k[..., 1], g[..., 0] = 0.0, 64.0, 2.0
            v[..., 0] = torch.where(torch.arange(S) < S // 2, 2.0, -2.0)
        cause = _("The gradient is summed in half precision, and each addition is rounded.")
        # Weights or their gradients are rounded by 5e-4 before they meet factors of up to 64: 4e-3
        # over twelve seeds. Rounded sums are off by 0.017 and more.
        _expect_backward_kernel(
            answer,
            q.half(),
            k.half(),
            v.half(),
            g.half(),
            of_keys=of_keys,
            cause=cause,
            blocks=blocks,
            atol=9e-3,
        )
        if of_keys:
            # The same for dk: all weights are alike, and the queries' sum comes back to 0.
            q[:, : T // 2] = 64 + 64 * cases.uniform(1, T // 2, WIDTH)
            q[:, T // 2 :] = -q[:, : T // 2]
            g = g[:, :1].expand_as(g) / 16
            q, k, v, g = q.half(), torch.zeros_like(k).half(), v.half(), g.half()
            _expect_backward_kernel(
                answer, q, k, v, g, of_keys=True, cause=cause, blocks=blocks, atol=9e-3
            )

    @exercise.check(points=1, hidden=True)
    def gradient_tiles_are_skipped(answer: Answer, cases: Cases) -> None:
        """With CAUSAL, tiles in which no query sees a key are not loaded; what is loaded once."""
        n = 48
        given = case(cases, 1, n, n)
        cause = _("A tile that is seen is skipped, or the mask is wrong.")
        counts = _counted(
            _expect_backward_kernel(
                answer, *given, of_keys=of_keys, causal=True, cause=cause, meter=True
            )
        )
        # The tile's two tensors once, two more for each of the 6 of 9 tiles that are seen; the two
        # numbers of each row come with the queries.
        once, tile = 2 * n * WIDTH, 2 * BLOCK * WIDTH
        if of_keys:
            tile += 2 * BLOCK
        else:
            once += 2 * n
        _expect_skipped(
            answer,
            counts["loaded"],
            once + 6 * tile,
            once + 9 * tile,
            seen=_("More is loaded than the tiles that hold something seen."),
            next_step=_("Work out the first or last tile that matters, and loop from or to there."),
        )


_backward_checks(dq_kernel, of_keys=False)
_backward_checks(dkv_kernel, of_keys=True)


# --- combine_splits --------------------------------------------------------------------------

combine = Exercise(
    "combine_splits",
    title=_("Join attention over parts of a cache"),
    difficulty=3,
    minutes=20,
    hints=(
        _("If the logsumexp of a part is larger by 1, how much more does its output count?"),
        _(
            "If it is right for small scores and NaN for large ones, subtract the largest "
            "logsumexp before exp. If a part of −∞ gives NaN, all parts may be −∞."
        ),
        _(
            "m = max over parts; shares = exp(logsumexp − m); output = Σ shares·outputs divided by "
            "Σ shares; logsumexp = m + log Σ shares."
        ),
    ),
)

_COMBINE_CAUSE = _("Each part must count by exp of its logsumexp, as a share of the sum of all.")
_COMBINE_STEP = _("Take two parts of one key each: the shares are the softmax of the two scores.")


def _parts(q: Tensor, k: Tensor, v: Tensor, edges: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Attention of q over each part of the keys, as a split forward pass leaves it."""
    found = [
        _attend(q, k[..., a:b, :], v[..., a:b, :])
        if b > a
        else (torch.zeros_like(q), torch.full(q.shape[:-1], -math.inf))
        for a, b in pairwise(edges)
    ]
    return (
        torch.stack([output.to(q.dtype) for output, _lse in found]),
        torch.stack([lse.float() for _output, lse in found]),
    )


def _expect_joined(
    answer: Answer,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    edges: Sequence[int],
    *,
    atol: float = FLOAT32,
) -> None:
    outputs, logsumexps = _parts(q, k, v, edges)
    _expect_forward(
        answer(outputs, logsumexps),
        _attend(q, k, v),
        cause=_COMBINE_CAUSE,
        atol=atol,
        step=_COMBINE_STEP,
    )


@combine.check(points=0.5)
def one_part_is_itself(answer: Answer, cases: Cases) -> None:
    """One part comes back as it was."""
    q, k, v = _case(cases, 3, d=4, T=2, S=5)
    _expect_joined(answer, q, k, v, (0, 5))


@combine.check(points=1)
def two_parts_are_one(answer: Answer, cases: Cases) -> None:
    """Two parts of different size give attention over all keys."""
    q, k, v = _case(cases, 3, d=4, T=2, S=9)
    _expect_joined(answer, q, k, v, (0, 2 + cases.integer(0, 3), 9))


@combine.check(points=1)
def many_parts_any_axes(answer: Answer, cases: Cases) -> None:
    """Several parts; one axis in between, or four."""
    for shape, T in (((), 1), ((2, 2, 3), 2)):
        q, k, v = _case(cases, *shape, d=5, T=T, S=14)
        _expect_joined(answer, q, k, v, (0, 1, 4, 9, 14))


@combine.check(points=1, hidden=True)
def large_logsumexps_are_no_trouble(answer: Answer, cases: Cases) -> None:
    """Logsumexps of some hundreds, above zero and below it."""
    for sign in (1.0, -1.0):
        q, k, v = _case(cases, 2, d=4, T=3, S=9)
        q[..., 0] = torch.tensor([20.0, -20.0, 0.0])  # each query far from the next
        k[..., 0] = sign * (20 + 3 * torch.arange(9.0))
        # logsumexps of 500 are rounded by 3e-5, and so are the shares
        _expect_joined(answer, q, k, v, (0, 3, 5, 9), atol=1e-3)


@combine.check(points=1, hidden=True)
def parts_without_keys_do_not_count(answer: Answer, cases: Cases) -> None:
    """Parts in which nothing was seen, first, last, and all of them."""
    q, k, v = _case(cases, 2, d=4, T=3, S=6)
    _expect_joined(answer, q, k, v, (0, 0, 4, 6, 6))
    outputs = torch.zeros(3, 2, 4)
    found = answer(outputs, torch.full((3, 2), -math.inf))
    nothing = torch.zeros(2, 4).double(), torch.full((2,), -math.inf).double()
    _expect_forward(found, nothing, cause=_("0 is divided by 0, or −∞ subtracted from −∞."))


@combine.check(points=0.5, hidden=True)
def parts_stay_as_they_were(answer: Answer, cases: Cases) -> None:
    """Rows of the same parts keep to themselves, and no input is overwritten."""
    q, k, v = _case(cases, 4, d=4, T=4, S=8)
    q = q * torch.tensor([0.2, 1.0, 3.0, 6.0]).view(4, 1, 1)
    given = _parts(q, k, v, (0, 3, 8))
    run = answer.run(given, echo=True)
    _expect_forward(run.value, _attend(q, k, v), cause=_COMBINE_CAUSE, atol=1e-4)
    _expect_kept(given, run.args)
