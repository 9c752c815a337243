"""How the answers of chapter ``multi_head`` are judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autograder.answer import Answer, AnswerRaised
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
from autograder.memory import remembered
from autograder.trial import verdicts

# Numbers that are only moved stay what they are, to the last bit.
MOVED = 0.0
# Two products in a row, a softmax and a third, over at most 24 terms near 1, in float32: rounding
# of 1.2e-7 grows to a few 1e-6. The mildest wrong answer of the bank differs by more than 1e-3.
FLOAT32 = 3e-5
# Gradients add up B·T such numbers more.
GRADIENT = 2e-4


def _wide(x: Tensor) -> Tensor:
    """The same beyond the range of float32: what passes through that on the way is infinite."""
    return x.double() * 1e60


def _head_sizes(cases: Cases) -> tuple[int, int, int, int]:
    """Different B, T, H and d, none of which is 1; H does not divide T.

    T, H, d², and D differ as well, so that no two of the roots that a scale may be are the same.
    """
    while True:
        B, T, H, d = cases.distinct(4, 2, 8)
        if T % H and d * d not in (T, H) and H * d != T:
            return B, T, H, d


# --- split_heads -----------------------------------------------------------------------------

split = Exercise(
    "split_heads",
    title=_("Cut the vectors into heads"),
    difficulty=2,
    minutes=10,
    hints=(
        _("Which numbers of x are neighbours in memory: those of a position, or those of a head?"),
        _(
            "If the shape is right and the values are not, one reshape did everything. It reads "
            "the numbers in their order in memory, and cannot move one axis past another."
        ),
        _("Cut the last axis D into (H, d), which is a view; then exchange the axes T and H."),
    ),
)

_SPLIT_CAUSE = _("Numbers of different positions or of different heads got mixed up.")
_SPLIT_STEP = _(
    "Take x = torch.arange(12.).view(1, 2, 6) and H = 3: head 0 must hold 0, 1 and 6, 7."
)


@remembered
def _columns(x: Tensor, H: int) -> Tensor:
    """The definition, head by head, in float64."""
    d = x.shape[-1] // H
    return torch.stack([x[:, :, h * d : (h + 1) * d] for h in range(H)], dim=1).double()


def _expect_split(answer: Answer, x: Tensor, H: int) -> None:
    _expect_split_values(answer(x, H), x, H)


def _expect_split_values(found: object, x: Tensor, H: int) -> None:
    expect_close(
        found,
        _columns(x, H),
        atol=MOVED,
        what=_("the result"),
        cause=_SPLIT_CAUSE,
        next_step=_SPLIT_STEP,
    )


@split.check(points=0.5)
def has_an_axis_of_heads(answer: Answer, cases: Cases) -> None:
    """The result has shape (B, H, T, d)."""
    B, T, H, d = _head_sizes(cases)
    expect_tensor(answer(cases.normal(B, T, H * d), H), (B, H, T, d), what=_("the result"))


@split.check(points=1)
def each_head_has_its_columns(answer: Answer, cases: Cases) -> None:
    """Head h holds the components h·d to (h + 1)·d of every position."""
    B, T, H, d = _head_sizes(cases)
    _expect_split(answer, cases.normal(B, T, H * d), H)


@split.check(points=0.5)
def uneven_widths_are_refused(answer: Answer, cases: Cases) -> None:
    """A width that H does not divide raises ValueError."""
    B, T, H, d = _head_sizes(cases)
    answer(cases.normal(B, T, H * d), H)  # who refuses everything raises here
    try:
        answer(cases.normal(B, T, H * d + 1), H)
    except AnswerRaised as error:
        if error.unanswered:
            raise
        expect(
            error.kind == "ValueError",
            seen=_("An uneven width raises {kind}.").format(kind=error.kind),
            cause=_("The error comes from elsewhere, or has another type than was promised."),
            next_step=_("Compare D % H with 0 first, and raise ValueError with the two numbers."),
        )
        return
    fail(
        seen=_("A width that H does not divide goes through without a word."),
        cause=_("D // H rounds down, so the last components belong to no head or to a wrong one."),
        next_step=_("Compare D % H with 0 first, and raise ValueError with the two numbers."),
    )


@split.check(points=1, hidden=True)
def equal_sizes_are_told_apart(answer: Answer, cases: Cases) -> None:
    """Where T equals H, positions and heads are still not exchanged."""
    n, d, B = cases.distinct(3, 2, 6)
    _expect_split(answer, cases.normal(B, n, n * d), n)


@split.check(points=0.5, hidden=True)
def one_head_and_narrow_heads(answer: Answer, cases: Cases) -> None:
    """One head of width D, and D heads of width 1."""
    B, T, D = cases.distinct(3, 2, 8)
    x = cases.normal(B, T, D)
    _expect_split(answer, x, 1)
    _expect_split(answer, x, D)


@split.check(points=0.5, hidden=True)
def one_sequence_one_position_any_dtype(answer: Answer, cases: Cases) -> None:
    """One sequence and one position work too, and the result has the dtype of the input."""
    B, T, H, d = _head_sizes(cases)
    _expect_split(answer, cases.normal(1, T, H * d), H)
    _expect_split(answer, cases.normal(B, 1, H * d), H)
    for x in (_wide(cases.normal(B, T, H * d)), cases.integers(0, 99, B, T, H * d)):
        found = expect_tensor(answer(x, H), (B, H, T, d), what=_("the result"), dtype=x.dtype)
        _expect_split_values(found, x, H)


@split.check(points=0.5, hidden=True)
def gradients_go_back_through_the_split(answer: Answer, cases: Cases) -> None:
    """Each component's gradient comes back to where the component was."""
    B, T, H, d = _head_sizes(cases)
    x, cotangent = cases.normal(B, T, H * d), cases.normal(B, H, T, d)
    run = answer.run((x, H), wrt=[0], cotangent=cotangent)
    _expect_gradient(run.grads["0"], cotangent.permute(0, 2, 1, 3).flatten(2).double())


def _expect_untouched(before: Sequence[Tensor], after: Sequence[Any]) -> None:
    """Every argument has the shape and the values that it was handed in with."""
    expect(
        all(torch.equal(one, other) for one, other in zip(before, after, strict=True)),
        seen=_("An input is another one after the call."),
        cause=_("An operation in place (its name ends in _, or it is *= or an index) changed it."),
        next_step=_("Use the form without the underscore, or work on a copy (clone)."),
    )


def _expect_gradient(found: Tensor | None, expected: Tensor, atol: float = MOVED) -> None:
    if found is None:
        fail(
            seen=_("No gradient comes back to the input."),
            cause=_("The result was cut off from what it was made of."),
            next_step=_("Do without .data, .detach(), numpy and torch.tensor(...) on the way."),
        )
    expect_close(
        found,
        expected,
        atol=atol,
        what=_("the gradient"),
        cause=_("The values are made in another way than the definition says."),
        next_step=_("Mend the failing checks of the values first."),
    )


# --- merge_heads -----------------------------------------------------------------------------

merge = Exercise(
    "merge_heads",
    title=_("Put the heads side by side"),
    difficulty=2,
    minutes=8,
    hints=(
        _("What must stand next to each other before two axes can become one?"),
        _(
            "If you see a RuntimeError about strides, the axes you merge do not lie together in "
            "memory. view never copies; something else copies where it must."
        ),
        _("Exchange the axes H and T, then make one axis of the last two."),
    ),
)

_MERGE_CAUSE = _("The numbers of one position do not stand side by side, head after head.")
_MERGE_STEP = _(
    "Take x = torch.arange(12.).view(1, 3, 2, 2): position 0 must become 0, 1, 4, 5, 8, 9."
)


def _side_by_side(x: Tensor) -> Tensor:
    return torch.cat([x[:, h] for h in range(x.shape[1])], dim=-1).double()


def _expect_merged(answer: Answer, x: Tensor) -> None:
    _expect_merged_values(answer(x), x)


def _expect_merged_values(found: object, x: Tensor) -> None:
    expect_close(
        found,
        _side_by_side(x),
        atol=MOVED,
        what=_("the result"),
        cause=_MERGE_CAUSE,
        next_step=_MERGE_STEP,
    )


@merge.check(points=0.5)
def has_the_model_width(answer: Answer, cases: Cases) -> None:
    """The result has shape (B, T, H·d)."""
    B, T, H, d = _head_sizes(cases)
    expect_tensor(answer(cases.normal(B, H, T, d)), (B, T, H * d), what=_("the result"))


@merge.check(points=1)
def heads_stand_side_by_side(answer: Answer, cases: Cases) -> None:
    """Position t is head 0's vector at t, then head 1's, and so on."""
    B, T, H, d = _head_sizes(cases)
    _expect_merged(answer, cases.normal(B, H, T, d))


@merge.check(points=1, hidden=True)
def equal_sizes_merge_rightly(answer: Answer, cases: Cases) -> None:
    """Positions and heads are not exchanged where T equals H."""
    n, d, B = cases.distinct(3, 2, 6)
    _expect_merged(answer, cases.normal(B, n, n, d))


@merge.check(points=0.5, hidden=True)
def one_head_one_position(answer: Answer, cases: Cases) -> None:
    """It works for one head, for one position, and for heads of width 1."""
    B, T, H, d = _head_sizes(cases)
    _expect_merged(answer, cases.normal(B, 1, T, d))
    _expect_merged(answer, cases.normal(B, H, 1, d))
    _expect_merged(answer, cases.normal(B, H, T, 1))


@merge.check(points=0.5, hidden=True)
def one_sequence_any_dtype(answer: Answer, cases: Cases) -> None:
    """One sequence works too; the result has the input's dtype, and the input keeps its shape."""
    B, T, H, d = _head_sizes(cases)
    _expect_merged(answer, cases.normal(1, H, T, d))
    for x in (_wide(cases.normal(B, H, T, d)), cases.integers(0, 99, B, H, T, d)):
        run = answer.run((x,), echo=True)
        found = expect_tensor(run.value, (B, T, H * d), what=_("the result"), dtype=x.dtype)
        _expect_merged_values(found, x)
        _expect_untouched((x,), run.args)


@merge.check(points=0.5, hidden=True)
def gradients_go_back_through_the_merge(answer: Answer, cases: Cases) -> None:
    """Each component's gradient comes back to its head."""
    B, T, H, d = _head_sizes(cases)
    x, cotangent = cases.normal(B, H, T, d), cases.normal(B, T, H * d)
    run = answer.run((x,), wrt=[0], cotangent=cotangent)
    _expect_gradient(run.grads["0"], _columns(cotangent, H))


# --- MultiHeadAttention ----------------------------------------------------------------------

layer_exercise = Exercise(
    "MultiHeadAttention",
    title=_("The multi-head attention layer"),
    difficulty=3,
    minutes=35,
    hints=(
        _(
            "Which of the four maps sees the queries' input, which the keys', which the values', "
            "and which sees none of them?"
        ),
        _(
            "If the shapes are right and the values are not, look at the scale first (it must be "
            "that of a head), then at the merge, then at which input each map is given."
        ),
        _(
            "q, k, v = each map of its input, split; heads, weights = attention of them with mask, "
            "bias, and dropout in training only; output map of the merged heads."
        ),
    ),
    forbid=(
        "torch.nn.functional.scaled_dot_product_attention",
        "torch.nn.functional.multi_head_attention_forward",
    ),
)


@dataclass
class _Expected:
    output: Tensor  # (B, T, D)
    weights: Tensor  # (B, H, T, S)


def _state(
    cases: Cases, D: int, narrow: int | None = None, *, bias: bool = True
) -> dict[str, Tensor]:
    """Weights of the four maps that keep scores and outputs near 1."""
    widths = {"query": D, "key": narrow or D, "value": narrow or D, "output": D}
    state = {f"{m}.weight": cases.normal(n, D, scale=1.2 / math.sqrt(D)) for m, n in widths.items()}
    if bias:
        state |= {f"{name}.bias": cases.normal(n, scale=0.5) for name, n in widths.items()}
    return state


@remembered
def _linear(x: Tensor, state: dict[str, Tensor], name: str) -> Tensor:
    bias = state.get(f"{name}.bias")
    y = x.double() @ state[f"{name}.weight"].double().T
    return y if bias is None else y + bias.double()


@remembered
def _attend(
    state: dict[str, Tensor],
    H: int,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    kv_heads: int | None = None,
    turn: Callable[[Tensor], Tensor] = lambda x: x,
) -> _Expected:
    """The definition, one head after another, in float64."""
    key = query if key is None else key
    value = key if value is None else value
    B, T, D = query.shape
    S, d, group = key.shape[1], D // H, H // (kv_heads or H)
    q, k, v = (_linear(x, state, n) for x, n in ((query, "query"), (key, "key"), (value, "value")))
    full = torch.ones(B, H, T, S, dtype=torch.bool)
    allowed = full if mask is None else full & mask
    added = torch.zeros(B, H, T, S).double() if bias is None else bias.double() + torch.zeros(T, S)
    added = added.expand(B, H, T, S)
    heads, weights = [], []
    for h in range(H):
        own = slice(h * d, (h + 1) * d)
        theirs = slice(h // group * d, (h // group + 1) * d)
        scores = turn(q[..., own]) @ turn(k[..., theirs]).transpose(1, 2) / math.sqrt(d)
        scores = scores + added[:, h]
        w = torch.softmax(scores.masked_fill(~allowed[:, h], -1e30), dim=-1)
        w = w * allowed[:, h]  # a row without an allowed key becomes zero
        weights.append(w)
        heads.append(w @ v[..., theirs])
    output = _linear(torch.cat(heads, dim=-1), state, "output")
    return _Expected(output, torch.stack(weights, dim=1))


def _built(answer: Answer, D: int, H: int, state: dict[str, Tensor], **options: object) -> Answer:
    layer: Answer = answer(D, H, **options)
    layer.eval()
    layer.load(state)
    return layer


def _both(value: object) -> tuple[object, ...]:
    return expect_items(value, 2, what=_("the output and the weights"))


_LAYER_STEP = _(
    "Set B = 1, T = 2, H = 2 and compare with a loop over the heads, one line of forward at a time."
)


def _expect_output(found: object, expected: Tensor, cause: str) -> None:
    expect_close(
        found, expected, atol=FLOAT32, what=_("the output"), cause=cause, next_step=_LAYER_STEP
    )


def _expect_weights(found: object, expected: Tensor, cause: str) -> None:
    expect_close(
        found,
        expected,
        atol=FLOAT32,
        what=_("the weights, one (T, S) table per head,"),
        cause=cause,
        next_step=_LAYER_STEP,
    )


@layer_exercise.check(points=1)
def has_four_maps(answer: Answer, cases: Cases) -> None:
    """The parameters are those of query, key, value and output, with biases or without."""
    H, d = cases.distinct(2, 2, 6)
    D = H * d
    for bias in (True, False):
        layer: Answer = answer(D, H) if bias else answer(D, H, bias=False)
        found = {name: tuple(item.shape) for name, item in layer.parameters().items()}
        wanted = {name: tuple(item.shape) for name, item in _state(cases, D, bias=bias).items()}
        if found == wanted:
            continue
        # sorted lists of both names would be long: say the first difference
        odd = sorted(n for n in found.keys() | wanted.keys() if found.get(n) != wanted.get(n))[0]
        fail(
            seen=_("With bias={bias}, {name} is {found}; expected {wanted}.").format(
                bias=bias,
                name=odd,
                found=found.get(odd) or _("missing"),
                wanted=wanted.get(odd) or _("no such parameter"),
            ),
            cause=_("A map is missing or has another name or width, or bias is not passed on."),
            next_step=_("Make the four nn.Linear that the docstring lists, each with bias=bias."),
        )


@layer_exercise.check(points=2)
def self_attention_equals_the_loop(answer: Answer, cases: Cases) -> None:
    """With one input, the output is what a loop over the heads gives."""
    B, T, H, d = _head_sizes(cases)
    state = _state(cases, H * d)
    x = cases.normal(B, T, H * d)
    output, _weights = _both(_built(answer, H * d, H, state)(x))
    _expect_output(
        output,
        _attend(state, H, x).output,
        _("The scale is not that of a head, heads are cut or merged wrongly, or a map is lost."),
    )


@layer_exercise.check(points=1)
def each_head_has_its_weights(answer: Answer, cases: Cases) -> None:
    """The weights have shape (B, H, T, S), and are those of each head."""
    B, T, H, d = _head_sizes(cases)
    state = _state(cases, H * d)
    x = cases.normal(B, T, H * d)
    _output, weights = _both(_built(answer, H * d, H, state)(x))
    _expect_weights(
        weights,
        _attend(state, H, x).weights,
        _("The heads' weights are averaged, scaled by another width, or taken over another axis."),
    )


@layer_exercise.check(points=1)
def cross_attention_asks_another_sequence(answer: Answer, cases: Cases) -> None:
    """With a key of another length, queries come from one sequence, keys and values from it."""
    B, T, H, d = _head_sizes(cases)
    S = T + cases.integer(1, 4)
    state = _state(cases, H * d)
    x, memory = cases.normal(B, T, H * d), cases.normal(B, S, H * d)
    output, weights = _both(_built(answer, H * d, H, state)(x, memory))
    expected = _attend(state, H, x, memory)
    cause = _("A map is given the wrong one of the two sequences.")
    _expect_weights(weights, expected.weights, cause)
    _expect_output(output, expected.output, cause)


@layer_exercise.check(points=1)
def masks_broadcast_over_heads(answer: Answer, cases: Cases) -> None:
    """A mask (T, S) or (B, 1, 1, S) holds for every head."""
    B, T, H, d = _head_sizes(cases)
    S = T + cases.integer(1, 4)
    state = _state(cases, H * d)
    x, memory = cases.normal(B, T, H * d), cases.normal(B, S, H * d)
    layer = _built(answer, H * d, H, state)
    cause = _("The mask is not handed on, not for every head, or taken the other way round.")
    for mask in (cases.mask(T, S), cases.mask(B, 1, 1, S)):
        output, weights = _both(layer(x, memory, mask=mask))
        expected = _attend(state, H, x, memory, mask=mask)
        _expect_weights(weights, expected.weights, cause)
        _expect_output(output, expected.output, cause)


@layer_exercise.check(points=1, hidden=True)
def values_may_differ_from_keys(answer: Answer, cases: Cases) -> None:
    """A third sequence may give the values."""
    B, T, H, d = _head_sizes(cases)
    S = T + 1
    state = _state(cases, H * d)
    x, key, value = (cases.normal(B, n, H * d) for n in (T, S, S))
    output, _weights = _both(_built(answer, H * d, H, state)(x, key, value))
    _expect_output(
        output,
        _attend(state, H, x, key, value).output,
        _("The argument value is not what the value map is given."),
    )


@remembered
def _with_empty_rows(mask: Tensor) -> Tensor:
    mask = mask.clone()
    mask[0, 0, 1] = False
    mask[1, :, 0] = False
    return mask


@remembered
def _gradient_by_input(state: dict[str, Tensor], H: int, x: Tensor, mask: Tensor) -> Tensor:
    leaf = x.double().clone().requires_grad_()
    (wanted,) = torch.autograd.grad(_attend(state, H, leaf, mask=mask).output.sum(), leaf)
    return wanted


@layer_exercise.check(points=1, hidden=True)
def a_mask_for_each_head_and_an_empty_row(answer: Answer, cases: Cases) -> None:
    """Heads may have masks of their own; a query with nothing to attend to gets a zero mix."""
    B, T, H, d = _head_sizes(cases)
    state = _state(cases, H * d)
    x = cases.normal(B, T, H * d)
    own = cases.mask(H, T, T)  # the same for every sequence
    output, weights = _both(_built(answer, H * d, H, state)(x, mask=own))
    expected = _attend(state, H, x, mask=own)
    cause = _("A mask (H, T, S), one for each head, is applied along another axis.")
    _expect_weights(weights, expected.weights, cause)
    _expect_output(output, expected.output, cause)
    mask = _with_empty_rows(cases.mask(B, H, T, T))
    layer = _built(answer, H * d, H, state)
    run = layer.run((x,), {"mask": mask}, wrt=[0], of=0)
    output, weights = _both(run.value)
    expected = _attend(state, H, x, mask=mask)
    cause = _("The mask of one head is used for another, or an empty row is not handled.")
    _expect_weights(weights, expected.weights, cause)
    _expect_output(output, expected.output, cause)
    _expect_gradient(run.grads["0"], _gradient_by_input(state, H, x, mask), GRADIENT)


@layer_exercise.check(points=0.5, hidden=True)
def a_bias_is_added_to_the_scores(answer: Answer, cases: Cases) -> None:
    """The argument bias is added to the scaled scores, whatever its shape, beside a mask too."""
    B, T, H, d = _head_sizes(cases)
    state = _state(cases, H * d)
    S = T + 3  # several keys are left in each row of the mask
    x, memory = cases.normal(B, T, H * d), cases.normal(B, S, H * d)
    layer = _built(answer, H * d, H, state)
    own, alike = cases.normal(H, T, S), cases.normal(B, 1, T, S)
    for bias, mask in ((own, None), (alike, None), (own, cases.mask(T, S, p=0.8))):
        output, weights = _both(layer(x, memory, mask=mask, bias=bias))
        expected = _attend(state, H, x, memory, mask=mask, bias=bias)
        cause = (
            _("bias is not handed on to the attention of the heads, or is scaled as well.")
            if mask is None
            else _("Beside a bias the mask is not applied, or beside a mask the bias is not.")
        )
        _expect_weights(weights, expected.weights, cause)
        _expect_output(output, expected.output, cause)


@layer_exercise.check(points=0.5, hidden=True)
def rotary_turns_queries_and_keys(answer: Answer, cases: Cases) -> None:
    """The argument rotary is applied to the split queries and keys, and not to the values."""
    B, T, H, d = _head_sizes(cases)
    state = _state(cases, H * d)
    x = cases.normal(B, T, H * d)
    size = cases.uniform(T, d, low=0.5, high=1.5)

    def rotary(heads: Tensor, offset: int = 0) -> Tensor:
        if heads.dim() != 4:
            raise ValueError("rotary wants (B, H, T, d)")
        return heads * size[offset : offset + heads.shape[2]].to(heads.dtype)

    output, weights = _both(_built(answer, H * d, H, state)(x, rotary=rotary))
    expected = _attend(state, H, x, turn=lambda heads: heads * size.double())
    cause = _("The given lines between the two parts no longer get q, k and v as (B, H, T, d).")
    _expect_weights(weights, expected.weights, cause)
    _expect_output(output, expected.output, cause)


@layer_exercise.check(points=1, hidden=True)
def grouped_heads_share_keys(answer: Answer, cases: Cases) -> None:
    """With kv_heads below H the key and value maps are narrower, and heads share them."""
    kv_heads, B, T = cases.distinct(3, 2, 6)
    H, d = 2 * kv_heads, cases.integer(2, 5)
    state = _state(cases, H * d, kv_heads * d)
    x = cases.normal(B, T, H * d)
    output, weights = _both(_built(answer, H * d, H, state, kv_heads=kv_heads)(x))
    expected = _attend(state, H, x, kv_heads=kv_heads)
    cause = _("The key and value maps are not kv_heads·d wide, or are split into H heads.")
    _expect_weights(weights, expected.weights, cause)
    _expect_output(output, expected.output, cause)


@layer_exercise.check(points=1, hidden=True)
def dropout_acts_in_training_only(answer: Answer, cases: Cases) -> None:
    """In training weights are dropped and the others scaled up; in evaluation nothing is."""
    B, T, H, d = 3, 11, 4, 5
    p = 0.25
    state = _state(cases, H * d)
    x = cases.normal(B, T, H * d)
    plain = _attend(state, H, x)
    layer = _built(answer, H * d, H, state, dropout=p)
    output, weights = _both(layer(x))
    cause = _("Weights are dropped in evaluation too.")
    _expect_weights(weights, plain.weights, cause)
    _expect_output(output, plain.output, cause)
    layer.train()
    output, weights = _both(layer.run((x,), seed=cases.seed()).value)
    weights = expect_tensor(weights, plain.weights.shape, what=_("the weights"))
    dropped = weights == 0
    # 1452 draws of probability 0.25: the share lies within 0.07 (6 deviations) of it.
    expect(
        abs(dropped.double().mean().item() - p) < 0.07,
        seen=_("In training, the share of weights that are 0 is not the dropout probability."),
        cause=_("The weights do not pass through dropout, or another probability is used."),
        next_step=_("Hand self.dropout on as dropout_p while self.training is True."),
    )
    _expect_weights(
        weights,
        plain.weights / (1 - p) * ~dropped,
        _("The weights that survive are not divided by 1 - p."),
    )
    _again, others = _both(layer.run((x,), seed=cases.seed()).value)
    others = expect_tensor(others, plain.weights.shape, what=_("the weights"))
    expect(
        bool(((others == 0) != dropped).any()),
        seen=_("Two calls in training drop the same weights."),
        cause=_("The random numbers are the same in every call: a seed is set inside forward."),
        next_step=_("Leave the generator alone; the caller seeds it, if at all."),
    )
    v = _columns(_linear(x, state, "value"), H)
    mixed = _side_by_side(weights.double() @ v)
    _expect_output(
        output,
        _linear(mixed, state, "output"),
        _("The weights that are returned are not those that multiplied the values."),
    )


@remembered
def _gradients(
    inputs: dict[str, Tensor], H: int, mask: Tensor, cotangent: Tensor
) -> dict[str, Tensor]:
    """By the query "0", the key "1" and each parameter."""
    leaves = {name: item.double().clone().requires_grad_() for name, item in inputs.items()}
    output = _attend(leaves, H, leaves["0"], leaves["1"], mask=mask).output
    found = torch.autograd.grad(output, list(leaves.values()), cotangent.double())
    return dict(zip(leaves, found, strict=True))


@layer_exercise.check(points=1, hidden=True)
def gradients_reach_every_map(answer: Answer, cases: Cases) -> None:
    """Gradients are those of the definition, and the inputs stay as they are."""
    B, T, H, d = _head_sizes(cases)
    state = _state(cases, H * d)
    x, memory = cases.normal(B, T, H * d), cases.normal(B, T + 2, H * d)
    cotangent = cases.normal(B, T, H * d)
    layer = _built(answer, H * d, H, state)
    mask = cases.mask(T, T + 2)
    # A mask belongs to its call, and to no later one.
    layer(x, memory, None, mask)
    output, _weights = _both(layer(x, memory))
    _expect_output(
        output,
        _attend(state, H, x, memory).output,
        _("Something of an earlier call, such as its mask, is used in a later one."),
    )
    run = layer.run(
        (x, memory, None, mask), wrt=[0, 1, "parameters"], of=0, cotangent=cotangent, echo=True
    )
    inputs = {"0": x, "1": memory, **state}
    for name, gradient in _gradients(inputs, H, mask, cotangent).items():
        _expect_gradient(run.grads.get(name), gradient, GRADIENT)
    _expect_untouched((x, memory, mask), [item for item in run.args if item is not None])


@layer_exercise.check(points=0.5, hidden=True)
def the_dtype_of_its_maps(answer: Answer, cases: Cases) -> None:
    """Turned to float64 by ``layer.double()``, the layer computes in float64."""
    B, T, H, d = _head_sizes(cases)
    state = _state(cases, H * d)
    x = cases.normal(B, T, H * d, dtype=torch.float64)
    mask = cases.mask(B, 1, 1, T)
    layer = _built(answer, H * d, H, state)
    layer.method("double")
    output, weights = _both(layer(x, mask=mask))
    expected = _attend(state, H, x, mask=mask)
    cause = _("A tensor that forward makes has a dtype of its own and not that of its input.")
    for found, wanted, what in (
        (output, expected.output, _("the output")),
        (weights, expected.weights, _("the weights")),
    ):
        expect_tensor(found, wanted.shape, what=what, dtype=torch.float64)
    _expect_weights(weights, expected.weights, cause)
    _expect_output(output, expected.output, cause)


# --- weights_from_torch ----------------------------------------------------------------------

carry = Exercise(
    "weights_from_torch",
    title=_("Carry weights over from PyTorch"),
    difficulty=2,
    minutes=15,
    hints=(
        _("in_proj_weight has 3D rows. What does one row of a weight of nn.Linear compute?"),
        _(
            "If you see a KeyError, the layer was made with bias=False. If the shapes are wrong, "
            "the cut went through the columns."
        ),
        _("Cut the rows into three equal parts: queries, keys, values. The bias likewise."),
    ),
)


def _torch_state(cases: Cases, D: int, *, bias: bool = True) -> dict[str, Tensor]:
    state = {
        "in_proj_weight": cases.normal(3 * D, D, scale=1 / math.sqrt(D)),
        "out_proj.weight": cases.normal(D, D, scale=1 / math.sqrt(D)),
    }
    if bias:
        state |= {"in_proj_bias": cases.normal(3 * D), "out_proj.bias": cases.normal(D)}
    return state


def _ours(state: dict[str, Tensor]) -> dict[str, Tensor]:
    D = state["out_proj.weight"].shape[0]
    ours = {"output.weight": state["out_proj.weight"]}
    for i, name in enumerate(("query", "key", "value")):
        ours[f"{name}.weight"] = state["in_proj_weight"][i * D : (i + 1) * D]
        if "in_proj_bias" in state:
            ours[f"{name}.bias"] = state["in_proj_bias"][i * D : (i + 1) * D]
    if "out_proj.bias" in state:
        ours["output.bias"] = state["out_proj.bias"]
    return ours


def _state_dict(value: object) -> dict[str, Tensor]:
    if not isinstance(value, dict):
        fail(
            seen=_("The result is a {kind}, not a dict.").format(kind=type(value).__name__),
            cause=_("Perhaps the return value is missing."),
            next_step=_("Return a dict from names to tensors."),
        )
    return dict(value)  # type: ignore[call-overload]


def _expect_names(value: object, wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    found = _state_dict(value)
    missing = sorted(wanted.keys() - found.keys())
    extra = sorted(found.keys() - wanted.keys())
    expect(
        not missing and not extra,
        seen=_("Names missing: {missing}; names too many: {extra}.").format(
            missing=", ".join(missing) or _("none"), extra=", ".join(extra) or _("none")
        ),
        cause=_("Our layer's load_state_dict takes its own names and no others."),
        next_step=_("Print MultiHeadAttention(4, 2, bias=...).state_dict().keys()."),
    )
    return found


def _expect_carried(found: dict[str, Tensor], wanted: dict[str, Tensor], kind: str) -> None:
    for name in sorted(wanted):
        if name.endswith(kind):
            expect_close(
                found[name],
                wanted[name].double(),
                atol=MOVED,
                what=name,
                cause=_("The stacked tensor is cut along another axis or in another order."),
                next_step=_(
                    "Fill in_proj_weight with its row numbers and see where each row goes."
                ),
            )


@carry.check(points=0.5)
def names_are_ours(answer: Answer, cases: Cases) -> None:
    """The result has the names of our layer, and no others."""
    state = _torch_state(cases, cases.integer(3, 8))
    _expect_names(answer(state), _ours(state))


@carry.check(points=1)
def weights_are_cut_by_rows(answer: Answer, cases: Cases) -> None:
    """Queries, keys and values get their rows; the output map its weight as it is."""
    state = _torch_state(cases, 3 * cases.integer(1, 4))
    wanted = _ours(state)
    found = _state_dict(answer(state))
    _expect_names({n: t for n, t in found.items() if n in wanted}, wanted)
    _expect_carried(found, wanted, "weight")


@carry.check(points=1)
def biases_are_cut_alike(answer: Answer, cases: Cases) -> None:
    """The biases are cut in the same order."""
    state = _torch_state(cases, cases.integer(3, 8))
    wanted = _ours(state)
    found = _state_dict(answer(state))
    _expect_names({n: t for n, t in found.items() if n in wanted}, wanted)
    _expect_carried(found, wanted, "bias")


@carry.check(points=1, hidden=True)
def a_layer_without_biases(answer: Answer, cases: Cases) -> None:
    """Where the state has no biases, the result has none."""
    state = _torch_state(cases, cases.integer(3, 8), bias=False)
    wanted = _ours(state)
    _expect_carried(_expect_names(answer(state), wanted), wanted, "weight")


@carry.check(points=1, hidden=True)
def both_layers_agree(answer: Answer, cases: Cases) -> None:
    """With what you carry over, multi-head attention gives what PyTorch's layer gives."""
    H, d = cases.distinct(2, 2, 5)
    D = H * d
    state = _torch_state(cases, D)
    theirs = torch.nn.MultiheadAttention(D, H, batch_first=True)
    theirs.load_state_dict(state)
    query, memory = cases.normal(2, 3, D), cases.normal(2, 4, D)
    with torch.no_grad():
        expected, _weights = theirs(query, memory, memory)
    found = _expect_names(answer(state), _ours(state))
    for name, tensor in _ours(state).items():
        expect_tensor(found[name], tensor.shape, what=name)
    expect_close(
        _attend(found, H, query, memory).output,
        expected.double(),
        atol=FLOAT32,
        what=_("the output with the weights carried over"),
        cause=_("The weights stand in other places than the two layers need."),
        next_step=_("Compare the queries alone: in_proj_weight[:D] must be query.weight."),
    )


@carry.check(points=0.5, hidden=True)
def their_state_stays(answer: Answer, cases: Cases) -> None:
    """The state that was handed in has its names and values afterwards."""
    state = _torch_state(cases, cases.integer(3, 8))
    run = answer.run((state,), echo=True)
    after = run.args[0]
    expect(
        after.keys() == state.keys() and all(torch.equal(after[n], state[n]) for n in state),
        seen=_("The state that was handed in is changed."),
        cause=_("Entries were popped, renamed or overwritten in it."),
        next_step=_("Make a new dict and leave the other one alone."),
    )
    # what has eaten its input gives nothing the second time
    _expect_names(run.value, _ours(state))


# --- multi_head_cost -------------------------------------------------------------------------

cost = Exercise(
    "multi_head_cost",
    title=_("Count the cost"),
    difficulty=2,
    minutes=20,
    hints=(
        _("Which of the sizes are those of the maps, and which of the two products per head?"),
        _(
            "If one number is off by a factor: 2 is for a multiplication with its addition, H is "
            "for one (T, S) table per head, and H·d is D."
        ),
        _(
            "A map from n to m: n·m + m parameters and 2·rows·n·m operations, with T rows for "
            "query and output and S rows for key and value. Per head: two products of 2·T·S·d."
        ),
    ),
)


def _count(
    B: int, T: int, S: int, D: int, H: int, kv_heads: int | None = None, size: int = 4
) -> tuple[int, int, int, int]:
    """The definition, added up product by product."""
    kv, d = kv_heads or H, D // H
    maps = [(T, D), (S, kv * d), (S, kv * d), (T, D)]  # rows of the input, width of the output
    parameters = sum(D * width + width for _rows, width in maps)
    operations = sum(2 * B * rows * D * width for rows, width in maps)
    for _head in range(H):
        operations += 2 * B * T * d * S + 2 * B * T * S * d
    return parameters, operations, B * H * T * S * size, 2 * B * kv * S * d * size


def _cost_sizes(cases: Cases) -> tuple[int, int, int, int, int]:
    B, T, S, d, H = cases.distinct(5, 2, 12)
    return B, T, S, H * d, H


def _expect_count(value: object, wanted: int, what: str, next_step: str) -> None:
    number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    if type(number) not in (int, float):
        fail(
            seen=_("{what} is a {kind}, not a number.").format(
                what=what, kind=type(value).__name__
            ),
            cause=_("Perhaps a return value is missing, or in another order."),
            next_step=_("Return four numbers in the order of the docstring."),
        )
    expect(
        number == wanted,
        seen=_("{what} is {ratio} what it should be.").format(
            what=what,
            ratio=_("{r:.3g} times").format(r=number / wanted),  # type: ignore[operator]
        ),
        cause=_("A factor or a term is missing, or one is counted that the docstring leaves out."),
        next_step=next_step,
    )


def _four(answer: Answer, *sizes: int, **options: int) -> tuple[object, ...]:
    return expect_items(answer(*sizes, **options), 4, what=_("four numbers"))


_PARAMETERS = _("Build nn.Linear(D, D) and add up p.numel() of its parameters.")
_OPERATIONS = _("Let FlopCounterMode count one linear map, then one of the products of attention.")
_BYTES = _("Write the shape of the tensor down, multiply its sizes, then the bytes of a number.")


@cost.check(points=1)
def parameters_are_those_of_four_maps(answer: Answer, cases: Cases) -> None:
    """The parameters are counted with their biases."""
    sizes = _cost_sizes(cases)
    _expect_count(_four(answer, *sizes)[0], _count(*sizes)[0], _("The parameters"), _PARAMETERS)


@cost.check(points=1)
def operations_are_maps_and_products(answer: Answer, cases: Cases) -> None:
    """The operations are those of the maps and of the two products, with S keys for T queries."""
    sizes = _cost_sizes(cases)
    _expect_count(_four(answer, *sizes)[1], _count(*sizes)[1], _("The operations"), _OPERATIONS)


@cost.check(points=1)
def every_head_has_a_table(answer: Answer, cases: Cases) -> None:
    """The weights are one (T, S) table per head and sequence."""
    sizes = _cost_sizes(cases)
    _expect_count(_four(answer, *sizes)[2], _count(*sizes)[2], _("The weights' size"), _BYTES)


@cost.check(points=1)
def keys_and_values_together(answer: Answer, cases: Cases) -> None:
    """The last number is the size of keys and values together."""
    sizes = _cost_sizes(cases)
    _expect_count(
        _four(answer, *sizes)[3], _count(*sizes)[3], _("The size of keys and values"), _BYTES
    )


@cost.check(points=1, hidden=True)
def grouped_heads_cost_less(answer: Answer, cases: Cases) -> None:
    """With kv_heads below H, key and value maps and what they give are narrower."""
    B, T, S, d, kv_heads = cases.distinct(5, 2, 12)
    H = 3 * kv_heads
    sizes = (B, T, S, H * d, H)
    found = _four(answer, *sizes, kv_heads=kv_heads)
    wanted = _count(*sizes, kv_heads)
    whats = (
        _("The parameters"),
        _("The operations"),
        _("The weights' size"),
        _("The size of keys and values"),
    )
    steps = (_PARAMETERS, _OPERATIONS, _BYTES, _BYTES)
    for value, right, what, step in zip(found, wanted, whats, steps, strict=True):
        _expect_count(value, right, what, step)


@cost.check(points=0.5, hidden=True)
def half_precision_takes_half_the_bytes(answer: Answer, cases: Cases) -> None:
    """The sizes in bytes follow bytes_per_number, the counts do not."""
    sizes = _cost_sizes(cases)
    found = _four(answer, *sizes, bytes_per_number=2)
    wanted = _count(*sizes, size=2)
    whats = (
        _("In half precision, the number of parameters"),
        _("In half precision, the number of operations"),
        _("In half precision, the weights' size"),
        _("In half precision, the size of keys and values"),
    )
    for value, right, what in zip(found, wanted, whats, strict=True):
        _expect_count(value, right, what, _BYTES)


# --- head_contributions ----------------------------------------------------------------------

contributions = Exercise(
    "head_contributions",
    title=_("What each head adds"),
    difficulty=3,
    minutes=15,
    hints=(
        _(
            "Merged, head h stands in the components h·d to (h + 1)·d. Which numbers of the weight "
            "do these components meet?"
        ),
        _(
            "If the shapes do not fit, remember that nn.Linear stores (out, in): a head owns "
            "columns of the weight, not rows."
        ),
        _("For each h: heads[:, h] @ (columns h·d to (h + 1)·d of weight), transposed; stack."),
    ),
)


def _each_head(heads: Tensor, weight: Tensor) -> Tensor:
    H, d = heads.shape[1], heads.shape[-1]
    parts = [heads[:, h].double() @ weight[:, h * d : (h + 1) * d].double().T for h in range(H)]
    return torch.stack(parts, dim=1)


def _contribution_case(cases: Cases) -> tuple[Tensor, Tensor]:
    B, T, H, d = _head_sizes(cases)
    return cases.normal(B, H, T, d), cases.normal(H * d, H * d, scale=1 / math.sqrt(H * d))


_ADDED_CAUSE = _("A head meets numbers of the weight that belong to another head.")
_ADDED_STEP = _(
    "Set all heads but one to 0 and compare with merge_heads(heads) @ weight.T: only that head's "
    "part may be left."
)


@contributions.check(points=0.5)
def one_output_for_each_head(answer: Answer, cases: Cases) -> None:
    """The result has shape (B, H, T, D)."""
    heads, weight = _contribution_case(cases)
    B, H, T, _d = heads.shape
    expect_tensor(answer(heads, weight), (B, H, T, weight.shape[0]), what=_("the result"))


@contributions.check(points=1)
def the_parts_add_up_to_the_output(answer: Answer, cases: Cases) -> None:
    """Their sum over the heads is the output map of the merged heads."""
    heads, weight = _contribution_case(cases)
    B, H, T, _d = heads.shape
    found = expect_tensor(answer(heads, weight), (B, H, T, weight.shape[0]), what=_("the result"))
    expect_close(
        found.double().sum(dim=1),
        _side_by_side(heads) @ weight.double().T,
        atol=FLOAT32,
        what=_("the sum of the parts"),
        cause=_ADDED_CAUSE,
        next_step=_ADDED_STEP,
    )


@contributions.check(points=1)
def each_part_is_its_own_heads(answer: Answer, cases: Cases) -> None:
    """Part h is what the layer gives where every other head is 0."""
    heads, weight = _contribution_case(cases)
    expect_close(
        answer(heads, weight),
        _each_head(heads, weight),
        atol=FLOAT32,
        what=_("the result"),
        cause=_ADDED_CAUSE,
        next_step=_ADDED_STEP,
    )


@contributions.check(points=1, hidden=True)
def an_output_of_another_width(answer: Answer, cases: Cases) -> None:
    """The output may be wider or narrower than the heads together."""
    B, T, H, d = _head_sizes(cases)
    heads = cases.normal(B, H, T, d)
    for D in (H * d + 3, H * d - 1):
        weight = cases.normal(D, H * d, scale=1 / math.sqrt(H * d))
        expect_close(
            answer(heads, weight),
            _each_head(heads, weight),
            atol=FLOAT32,
            what=_("the result"),
            cause=_("Rows and columns of the weight are exchanged, or D is taken to be H·d."),
            next_step=_ADDED_STEP,
        )


@contributions.check(points=0.5, hidden=True)
def gradients_and_dtype_are_kept(answer: Answer, cases: Cases) -> None:
    """Gradients reach heads and weight, and float64 stays float64."""
    heads, weight = _contribution_case(cases)
    B, H, T, _d = heads.shape
    cotangent = cases.normal(B, H, T, weight.shape[0])
    run = answer.run((heads, weight), wrt=[0, 1], cotangent=cotangent)
    leaves = [item.double().requires_grad_() for item in (heads, weight)]
    wanted = torch.autograd.grad(_each_head(*leaves), leaves, cotangent.double())
    for name, gradient in zip("01", wanted, strict=True):
        _expect_gradient(run.grads.get(name), gradient, GRADIENT)
    expect_tensor(
        answer(_wide(heads), weight.double()),
        cotangent.shape,
        what=_("the result"),
        dtype=torch.float64,
    )


@contributions.check(points=0.5, hidden=True)
def nothing_is_overwritten(answer: Answer, cases: Cases) -> None:
    """Where T equals H all is well too, and the inputs stay as they were."""
    n, d, B = cases.distinct(3, 2, 6)
    heads, weight = cases.normal(B, n, n, d), cases.normal(n * d, n * d, scale=0.3)
    run = answer.run((heads, weight), echo=True)
    expect_close(
        run.value,
        _each_head(heads, weight),
        atol=FLOAT32,
        what=_("the result"),
        cause=_ADDED_CAUSE,
        next_step=_ADDED_STEP,
    )
    _expect_untouched((heads, weight), run.args)


# --- grouped_query_attention -----------------------------------------------------------------

grouped = Exercise(
    "grouped_query_attention",
    title=_("Heads that share their keys"),
    difficulty=4,
    minutes=25,
    hints=(
        _("If G heads ask the same keys, how does that differ from one head with G·T queries?"),
        _(
            "If the values are right and a copy is reported, remember that a product that "
            "broadcasts over a batch axis copies the smaller side first."
        ),
        _(
            "q as (B, H_kv, G·T, d): consecutive heads lie together in memory already. Attend, "
            "with the mask's T rows repeated G times, and reshape both results back."
        ),
    ),
    forbid=("torch.nn.functional.scaled_dot_product_attention",),
)


def _shared(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> _Expected:
    """The definition, one head after another, in float64."""
    B, H, T, d = q.shape
    S, group = k.shape[2], q.shape[1] // k.shape[1]
    allowed = torch.ones(B, 1, T, S, dtype=torch.bool)
    allowed = allowed if mask is None else allowed & mask
    outputs, weights = [], []
    for h in range(H):
        scores = q[:, h].double() @ k[:, h // group].double().transpose(1, 2) / math.sqrt(d)
        w = torch.softmax(scores.masked_fill(~allowed[:, 0], -1e30), dim=-1) * allowed[:, 0]
        weights.append(w)
        outputs.append(w @ v[:, h // group].double())
    return _Expected(torch.stack(outputs, dim=1), torch.stack(weights, dim=1))


def _grouped_case(cases: Cases, group: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    B, T, S, d = cases.distinct(4, 2, 8)
    q = cases.normal(B, group * kv_heads, T, d)
    return q, cases.normal(B, kv_heads, S, d), cases.normal(B, kv_heads, S, d)


def _expect_grouped(value: object, expected: _Expected, cause: str) -> None:
    output, weights = _both(value)
    step = _("Give every head of the keys other numbers and see which of them head 1 reads.")
    for found, wanted, what in (
        (weights, expected.weights, _("the weights")),
        (output, expected.output, _("the output")),
    ):
        expect_close(found, wanted, atol=FLOAT32, what=what, cause=cause, next_step=step)


@grouped.check(points=0.5)
def both_results_have_every_head(answer: Answer, cases: Cases) -> None:
    """The output is (B, H, T, d), the weights are (B, H, T, S)."""
    q, k, v = _grouped_case(cases, 3, 2)
    output, weights = _both(answer(q, k, v))
    expect_tensor(output, q.shape, what=_("the output"))
    expect_tensor(weights, (*q.shape[:3], k.shape[2]), what=_("the weights"))


@grouped.check(points=1.5)
def neighbours_share_a_head(answer: Answer, cases: Cases) -> None:
    """Heads 0 to G - 1 use head 0 of keys and values, the next G head 1."""
    q, k, v = _grouped_case(cases, cases.integer(2, 4), cases.integer(2, 4))
    _expect_grouped(
        answer(q, k, v), _shared(q, k, v), _("A query head reads the keys of another group.")
    )


@grouped.check(points=1)
def keys_are_not_copied(answer: Answer, cases: Cases) -> None:
    """No tensor as large as keys for every query head is made."""
    B, kv_heads, group, S, d = 2, 2, 4, 40, 16
    q = cases.normal(B, group * kv_heads, 1, d)
    k, v = cases.normal(B, kv_heads, S, d), cases.normal(B, kv_heads, S, d)
    run = answer.run((q, k, v), meter=True)
    _expect_grouped(run.value, _shared(q, k, v), _("A query head reads the keys of another group."))
    expect(
        run.meter["largest"] < B * group * kv_heads * S * d,
        seen=_("A tensor as large as {group} copies of the keys is made.").format(group=group),
        cause=_("The keys are repeated for every query head, or a product broadcasts over them."),
        next_step=_("Stand the queries of a group in one list, as if T were G times as long."),
    )
    expect_counted(answer, run.meter, B * group * kv_heads * S)


@grouped.check(points=1, hidden=True)
def from_one_shared_head_to_none(answer: Answer, cases: Cases) -> None:
    """One head of keys for all, and as many heads of keys as queries."""
    for group, kv_heads in ((4, 1), (1, 3)):
        q, k, v = _grouped_case(cases, group, kv_heads)
        _expect_grouped(answer(q, k, v), _shared(q, k, v), _("The group size is not H / H_kv."))


@grouped.check(points=1)
def a_mask_holds_for_every_head(answer: Answer, cases: Cases) -> None:
    """A mask (T, S) is applied to every head of every sequence."""
    q, k, v = _grouped_case(cases, 2, 3)
    mask = cases.mask(q.shape[2], k.shape[2])
    _expect_grouped(
        answer(q, k, v, mask),
        _shared(q, k, v, mask),
        _("A row of the mask meets the query of another position."),
    )


@grouped.check(points=1, hidden=True)
def a_mask_for_each_sequence_and_an_empty_row(answer: Answer, cases: Cases) -> None:
    """A mask (B, 1, T, S) differs from sequence to sequence; an empty row gives zeros."""
    q, k, v = _grouped_case(cases, 3, 2)
    mask = cases.mask(q.shape[0], 1, q.shape[2], k.shape[2])
    mask[0, 0, 1] = False
    run = answer.run((q, k, v, mask), echo=True)
    _expect_grouped(
        run.value,
        _shared(q, k, v, mask),
        _("A sequence gets the mask of another, or an empty row is not zero."),
    )
    _expect_untouched((q, k, v, mask), run.args)


@grouped.check(points=0.5, hidden=True)
def shared_keys_gather_gradients(answer: Answer, cases: Cases) -> None:
    """Keys and values get the gradients of all heads; the results have the dtype of the input."""
    q, k, v = _grouped_case(cases, 2, 2)
    cotangent = cases.normal(*q.shape)
    run = answer.run((q, k, v), wrt=[0, 1, 2], of=0, cotangent=cotangent)
    leaves = [item.double().requires_grad_() for item in (q, k, v)]
    wanted = torch.autograd.grad(_shared(*leaves).output, leaves, cotangent.double())
    for name, gradient in zip("012", wanted, strict=True):
        _expect_gradient(run.grads.get(name), gradient, GRADIENT)
    output, weights = _both(answer(q.double(), k.double(), _wide(v)))
    S = k.shape[2]
    expect_tensor(output, q.shape, what=_("the output"), dtype=torch.float64)
    expect_tensor(weights, (*q.shape[:3], S), what=_("the weights"), dtype=torch.float64)


# --- BorrowedAttention -----------------------------------------------------------------------

borrowed = Exercise(
    "BorrowedAttention",
    title=_("Four faults in borrowed code"),
    difficulty=3,
    minutes=25,
    hints=(
        _("Two faults stop the code with an error. What would you compare the rest with?"),
        _(
            "If it runs and differs from MultiHeadAttention for two heads but not for one: what "
            "do the two cases differ in?"
        ),
        _(
            "Read it in the order in which it runs: the constructor, every self.name that forward "
            "uses, the scale, the shape of heads before the last reshape."
        ),
    ),
    given="constructor_without_super",
)

_BORROWED = {"query": "proj_q", "key": "proj_k", "value": "proj_v", "output": "out_proj"}


def _theirs(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights under the names of the borrowed code."""
    return {
        f"{_BORROWED[name.split('.')[0]]}.{name.split('.')[1]}": item
        for name, item in state.items()
    }


def _borrowed_case(cases: Cases) -> tuple[dict[str, Tensor], int, Tensor]:
    B, T, H, d = _head_sizes(cases)
    return _state(cases, H * d), H, cases.normal(B, T, H * d)


def _run_borrowed(
    answer: Answer, state: dict[str, Tensor], H: int, x: Tensor, mask: Tensor | None = None
) -> Tensor:
    layer = _built(answer, x.shape[-1], H, _theirs(state))
    return expect_tensor(
        layer(x) if mask is None else layer(x, mask), x.shape, what=_("the output")
    )


@borrowed.check(points=0.5)
def it_can_be_built(answer: Answer, cases: Cases) -> None:
    """The module can be made, and has its four maps."""
    state, H, x = _borrowed_case(cases)
    layer: Answer = answer(x.shape[-1], H)
    found = {name: tuple(item.shape) for name, item in layer.parameters().items()}
    wanted = {name: tuple(item.shape) for name, item in _theirs(state).items()}
    expect(
        found == wanted,
        seen=_("Its parameters are {found}.").format(found=", ".join(found) or _("none")),
        cause=_("A map was renamed, removed, or made with another width or without a bias."),
        next_step=_("Keep proj_q, proj_k, proj_v and out_proj as the docstring has them."),
    )


@borrowed.check(points=0.5)
def it_runs(answer: Answer, cases: Cases) -> None:
    """It gives an output of the shape of its input."""
    _run_borrowed(answer, *_borrowed_case(cases))


@borrowed.check(points=0.5)
def one_head_is_plain_attention(answer: Answer, cases: Cases) -> None:
    """With one head it is attention between four maps."""
    B, T, D = cases.distinct(3, 3, 8)
    state, x = _state(cases, D), cases.normal(B, T, D)
    _expect_output(
        _run_borrowed(answer, state, 1, x),
        _attend(state, 1, x).output,
        _("Something that was right is no longer so: this holds before the silent faults matter."),
    )


@borrowed.check(points=2)
def several_heads_equal_the_loop(answer: Answer, cases: Cases) -> None:
    """With several heads the output is what a loop over the heads gives."""
    state, H, x = _borrowed_case(cases)
    _expect_output(
        _run_borrowed(answer, state, H, x),
        _attend(state, H, x).output,
        _("A silent fault is left: it shows with more than one head only."),
    )


@borrowed.check(points=1, hidden=True)
def heads_are_put_side_by_side(answer: Answer, cases: Cases) -> None:
    """Where all keys are alike, each position gets the mean of the values, head by head."""
    state, H, x = _borrowed_case(cases)
    state["key.weight"] = torch.zeros_like(state["key.weight"])
    _expect_output(
        _run_borrowed(answer, state, H, x),
        _attend(state, H, x).output,
        _("The scale does not matter here: heads and positions are mixed up."),
    )


@borrowed.check(points=1, hidden=True)
def scores_have_the_scale_of_a_head(answer: Answer, cases: Cases) -> None:
    """The mixed values are right, in whatever order they stand."""
    state, H, x = _borrowed_case(cases)
    state["output.weight"] = torch.eye(x.shape[-1])
    state["output.bias"] = torch.zeros(x.shape[-1])
    expect_close(
        _run_borrowed(answer, state, H, x).flatten(1).sort(dim=1).values,
        _attend(state, H, x).output.flatten(1).sort(dim=1).values,
        atol=FLOAT32,
        what=_("the set of mixed values"),
        cause=_("The order of the heads does not matter here: the weights themselves are wrong."),
        next_step=_("Print the standard deviation of the scores for H = 1 and for H = 8."),
    )


@borrowed.check(points=1, hidden=True)
def the_mask_still_holds(answer: Answer, cases: Cases) -> None:
    """Masks (T, T) and (B, 1, 1, T) are applied, True where attention is allowed."""
    state, H, x = _borrowed_case(cases)
    B, T, _D = x.shape
    for mask in (cases.mask(T, T), cases.mask(B, 1, 1, T)):
        _expect_output(
            _run_borrowed(answer, state, H, x, mask),
            _attend(state, H, x, mask=mask).output,
            _("The mask was right before; or one of the silent faults is left."),
        )


@borrowed.check(points=0.5, hidden=True)
def every_map_learns(answer: Answer, cases: Cases) -> None:
    """Gradients reach all parameters, and are those of the definition."""
    state, H, x = _borrowed_case(cases)
    cotangent = cases.normal(*x.shape)
    layer = _built(answer, x.shape[-1], H, _theirs(state))
    run = layer.run((x,), wrt=["parameters"], cotangent=cotangent)
    leaves = {name: item.double().requires_grad_() for name, item in state.items()}
    output = _attend(leaves, H, x).output
    wanted = torch.autograd.grad(output, list(leaves.values()), cotangent.double())
    for name, gradient in zip(_theirs(leaves), wanted, strict=True):
        _expect_gradient(run.grads.get(name), gradient, GRADIENT)


# --- heads_test ------------------------------------------------------------------------------

test_exercise = Exercise(
    "heads_test",
    title=_("A test for heads"),
    difficulty=4,
    minutes=25,
    hints=(
        _("What does every head have to itself, and what of it can be seen from outside?"),
        _(
            "If a wrong implementation passes, ask which number of your case hides its mistake: "
            "one head, T equal to H, scores far from 1, an identity for w_o?"
        ),
        _(
            "For random x and weights: for each h take its d columns of w_q, w_k and w_v, compute "
            "its weights and its mix in plain attention; the output is the sum of mix @ (its d "
            "rows of w_o). Compare weights and output, to 1e-5 or so."
        ),
    ),
)

_Implementation = Callable[..., tuple[Tensor, Tensor]]


def _model(
    *,
    cut: Callable[[Tensor, int], Tensor] = lambda x, H: x.view(*x.shape[:-1], H, -1).transpose(
        1, 2
    ),
    scale: Callable[[int, int], float] = lambda d, H: math.sqrt(d),
    soft: Callable[[Tensor], Tensor] = lambda scores: scores.softmax(dim=-1),
    join: Callable[[Tensor], Tensor] = lambda x: x.transpose(1, 2).flatten(2),
    last: Callable[[Tensor, Tensor], Tensor] = lambda x, w_o: x @ w_o,
    shown: Callable[[Tensor], Tensor] = lambda weights: weights,
    maps: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] = lambda *maps: maps,
    wide: torch.dtype | None = None,
) -> _Implementation:
    """Multi-head attention, with any one step replaced."""

    def attention(
        x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, H: int
    ) -> tuple[Tensor, Tensor]:
        given = x.dtype
        x, w_q, w_k, w_v, w_o = (t.to(wide or given) for t in (x, w_q, w_k, w_v, w_o))
        q, k, v = (cut(x @ w, H) for w in maps(w_q, w_k, w_v))
        weights = soft(q @ k.transpose(-2, -1) / scale(x.shape[-1] // H, H))
        output = last(join(weights @ v), w_o)
        return output.to(given), shown(weights).to(given)

    return attention


def _interleaved(x: Tensor, H: int) -> Tensor:
    return x.view(*x.shape[:-1], -1, H).permute(0, 3, 1, 2)


_RIGHT: tuple[_Implementation, ...] = (
    _model(),
    _model(wide=torch.float64),
    # Rounding of another order of summation: the last place or two.
    _model(shown=lambda weights: weights * (1 + 2e-7), last=lambda x, w: x @ w * (1 - 3e-7)),
    _model(cut=lambda x, H: torch.stack(x.chunk(H, dim=-1), dim=1)),
)


_ZEROS = _model(last=lambda x, w: 0 * x @ w, shown=lambda weights: 0 * weights)


def _right_only_if(
    condition: Callable[[Tensor, Tensor, int], bool | Tensor], *, output: bool = True
) -> _Implementation:
    """Right where the condition on x, w_o and H holds, and grossly wrong elsewhere."""

    def attention(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        mixed, weights = _model()(x, *rest)
        if condition(x, rest[3], rest[4]):
            return mixed, weights
        return (mixed + 9, weights + 9) if output else (mixed, weights + 9)

    return attention


# What a test looks at: it tells one weak test from another, and no points depend on it.
_PROBES: tuple[_Implementation, ...] = (
    _right_only_if(lambda x, w_o, H: x.shape[1] == 1),
    _right_only_if(lambda x, w_o, H: H == 1),
    _right_only_if(lambda x, w_o, H: not x.any()),
    _right_only_if(lambda x, w_o, H: torch.equal(w_o, torch.eye(len(w_o)).to(w_o))),
    _right_only_if(lambda x, w_o, H: torch.allclose(x, x[:, :1])),
    _right_only_if(lambda x, w_o, H: False, output=False),
    _model(shown=lambda weights: weights + 0.1, last=lambda x, w: x @ w + 0.1),
)


_TURNED_AWAY = _("Your test turns away a right implementation.")


def _takes(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, H: int) -> None:
    if not all(item.is_floating_point() for item in (x, w_q, w_k, w_v, w_o)):
        raise TypeError


def _expect_rejected(answer: Answer, cases: Cases, wrong: dict[str, _Implementation]) -> None:
    accepted, refused = verdicts(
        answer, cases, right=_RIGHT[:1], wrong=list(wrong.values()), probes=_PROBES, takes=_takes
    )
    expect(
        all(accepted),
        seen=_TURNED_AWAY,
        cause=_("A test that turns everything away finds nothing."),
        next_step=_("Run it on an attention that you know to be right first."),
    )
    _expect_none_passed(wrong, refused)


def _expect_none_passed(wrong: dict[str, _Implementation], refused: Sequence[bool]) -> None:
    passed = [name for name, is_refused in zip(wrong, refused, strict=True) if not is_refused]
    expect(
        not passed,
        seen=_("Your test lets an implementation pass that is wrong."),
        cause=_("It is wrong in this way: {mistake}.").format(
            mistake=_MISTAKES[min(passed, default="zeros")]
        ),
        next_step=_("Find a number that is different there, and assert what it must be."),
    )


_MISTAKES = {
    "cut_by_view": _("heads are cut off by a view, without a transpose"),
    "joined_by_view": _("heads are merged without a transpose"),
    "interleaved": _("head h takes every H-th component and not d neighbours"),
    "root_of_D": _("scores are divided by √D and not by √d"),
    "no_scale": _("scores are not divided at all"),
    "divided_by_d": _("scores are divided by d and not by √d"),
    "root_of_H": _("scores are divided by √H, the number of heads, and not by √d"),
    "root_of_T": _("scores are divided by √T, the number of positions, and not by √d"),
    "first_head_for_all": _("the first head is used for all"),
    "mean_of_heads": _("every head is replaced by the mean of the heads"),
    "heads_in_reverse": _("the heads are merged in reverse order"),
    "no_output_map": _("the last map is left out"),
    "output_map_transposed": _("the last map is transposed"),
    "over_queries": _("the softmax runs over the queries"),
    "over_heads": _("the softmax runs over the heads"),
    "mean_weights_shown": _("the weights returned are the mean of the heads' weights"),
    "mean_weights_alone": _("one (T, T) table is returned in place of H of them"),
    "weights_transposed": _("the weights returned have queries and keys exchanged"),
    "scores_shown": _("the weights returned are the scores"),
    "first_weights_shown": _("the weights returned are those of the first head, for every head"),
    "keys_by_w_q": _("the keys are made with w_q"),
    "values_by_w_k": _("the values are made with w_k"),
    "w_q_and_w_k_exchanged": _("w_q and w_k are exchanged"),
    "maps_transposed": _("w_q, w_k and w_v are transposed, as nn.Linear would have them"),
    "first_sequences_weights": _("every sequence is mixed by the weights of the first one"),
    "joined_across_sequences": _("heads are merged so that sequences and positions change places"),
    "zeros": _("everything is zero"),
    "input_back": _("the output is the input"),
    "causal": _("positions to the right cannot be seen"),
}


@test_exercise.check(points=1)
def right_implementations_pass(answer: Answer, cases: Cases) -> None:
    """Right implementations pass your test, whatever their last digit; zeros do not."""
    accepted, refused = verdicts(
        answer, cases, right=_RIGHT, wrong=[_ZEROS], probes=_PROBES, takes=_takes
    )
    expect(
        all(accepted),
        seen=_TURNED_AWAY,
        cause=_(
            "Your expectation is wrong, or the comparison is stricter than float32 rounding allows."
        ),
        next_step=_("Let torch.allclose compare with an absolute tolerance of about 1e-5."),
    )
    # a test that lets everything through has let the right ones through as well
    _expect_none_passed({"zeros": _ZEROS}, refused)


@test_exercise.check(points=1)
def a_view_without_transpose_is_caught(answer: Answer, cases: Cases) -> None:
    """Heads that are cut by a view alone do not pass."""

    def cut(x: Tensor, H: int) -> Tensor:
        B, T, D = x.shape
        return x.reshape(B, H, T, D // H)

    _expect_rejected(answer, cases, {"cut_by_view": _model(cut=cut)})


@test_exercise.check(points=1)
def the_scale_of_the_model_is_caught(answer: Answer, cases: Cases) -> None:
    """Scores that are divided by √D do not pass."""
    scale: Callable[[int, int], float] = lambda d, H: math.sqrt(d * H)  # noqa: E731
    _expect_rejected(answer, cases, {"root_of_D": _model(scale=scale)})


@test_exercise.check(points=0.5)
def nonsense_is_caught(answer: Answer, cases: Cases) -> None:
    """Zeros, and the input given back, do not pass."""

    def back(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        return x, _model()(x, *rest)[1]

    _expect_rejected(answer, cases, {"zeros": _ZEROS, "input_back": back})


@test_exercise.check(points=1, hidden=True)
def a_merge_without_transpose_is_caught(answer: Answer, cases: Cases) -> None:
    """Heads that are merged without a transpose do not pass."""

    def join(x: Tensor) -> Tensor:
        B, H, T, d = x.shape
        return x.reshape(B, T, H * d)

    _expect_rejected(answer, cases, {"joined_by_view": _model(join=join)})


@test_exercise.check(points=1, hidden=True)
def other_scales_are_caught(answer: Answer, cases: Cases) -> None:
    """No scale, and a division by d, by √H or by √T, do not pass."""
    wrong = {
        "no_scale": _model(scale=lambda d, H: 1.0),
        "divided_by_d": _model(scale=lambda d, H: float(d)),
        "root_of_H": _model(scale=lambda d, H: math.sqrt(H)),
        "root_of_T": _model(
            scale=lambda d, H: 1.0,
            soft=lambda scores: (scores / math.sqrt(scores.shape[-1])).softmax(dim=-1),
        ),
    }
    _expect_rejected(answer, cases, wrong)


@test_exercise.check(points=1, hidden=True)
def mixed_up_heads_are_caught(answer: Answer, cases: Cases) -> None:
    """Heads that are interleaved, repeated, averaged or reversed do not pass."""
    wrong = {
        "interleaved": _model(cut=_interleaved, join=lambda x: x.permute(0, 2, 3, 1).flatten(2)),
        "first_head_for_all": _model(
            join=lambda x: x[:, :1].expand_as(x).transpose(1, 2).flatten(2)
        ),
        "mean_of_heads": _model(
            join=lambda x: x.mean(1, keepdim=True).expand_as(x).transpose(1, 2).flatten(2)
        ),
        "heads_in_reverse": _model(join=lambda x: x.flip(1).transpose(1, 2).flatten(2)),
    }
    _expect_rejected(answer, cases, wrong)


@test_exercise.check(points=1, hidden=True)
def a_wrong_output_map_is_caught(answer: Answer, cases: Cases) -> None:
    """An output without the last map, or with its transpose, does not pass."""
    wrong = {
        "no_output_map": _model(last=lambda x, w: x),
        "output_map_transposed": _model(last=lambda x, w: x @ w.T),
    }
    _expect_rejected(answer, cases, wrong)


@test_exercise.check(points=1, hidden=True)
def wrong_axes_are_caught(answer: Answer, cases: Cases) -> None:
    """A softmax over queries or over heads, or one that hides positions, does not pass."""

    def causal(scores: Tensor) -> Tensor:
        T = scores.shape[-1]
        allowed = torch.ones(T, T, dtype=torch.bool).tril()
        return scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1)

    wrong = {
        "over_queries": _model(soft=lambda scores: scores.softmax(dim=-2)),
        "over_heads": _model(soft=lambda scores: scores.softmax(dim=1)),
        "causal": _model(soft=causal),
    }
    _expect_rejected(answer, cases, wrong)


@test_exercise.check(points=0.5, hidden=True)
def one_table_for_all_heads_is_caught(answer: Answer, cases: Cases) -> None:
    """One (T, T) table of weights in place of H of them does not pass."""
    # by itself: a test that compares shapes and one that does not raise different exceptions here
    _expect_rejected(
        answer, cases, {"mean_weights_alone": _model(shown=lambda weights: weights.mean(1))}
    )


@test_exercise.check(points=0.5, hidden=True)
def wrong_weights_are_caught(answer: Answer, cases: Cases) -> None:
    """A right output beside wrong weights does not pass."""
    wrong = {
        "mean_weights_shown": _model(shown=lambda w: w.mean(1, keepdim=True).expand_as(w)),
        "weights_transposed": _model(shown=lambda w: w.transpose(-2, -1)),
        "scores_shown": _model(shown=lambda w: w.clamp_min(1e-30).log()),
        "first_weights_shown": _model(shown=lambda w: w[:, :1].expand_as(w)),
    }
    _expect_rejected(answer, cases, wrong)


@test_exercise.check(points=1, hidden=True)
def exchanged_maps_are_caught(answer: Answer, cases: Cases) -> None:
    """Maps that are exchanged, used twice or transposed do not pass."""
    wrong = {
        "keys_by_w_q": _model(maps=lambda q, k, v: (q, q, v)),
        "values_by_w_k": _model(maps=lambda q, k, v: (q, k, k)),
        "w_q_and_w_k_exchanged": _model(maps=lambda q, k, v: (k, q, v)),
        "maps_transposed": _model(maps=lambda q, k, v: (q.T, k.T, v.T)),
    }
    _expect_rejected(answer, cases, wrong)


@test_exercise.check(points=0.5, hidden=True)
def mixed_sequences_are_caught(answer: Answer, cases: Cases) -> None:
    """An implementation that is right for one sequence only does not pass."""

    def join(x: Tensor) -> Tensor:
        B, H, T, d = x.shape
        return x.permute(2, 0, 1, 3).reshape(B, T, H * d)

    wrong = {
        "first_sequences_weights": _model(soft=lambda s: s[:1].softmax(dim=-1).expand_as(s)),
        "joined_across_sequences": _model(join=join),
    }
    _expect_rejected(answer, cases, wrong)
