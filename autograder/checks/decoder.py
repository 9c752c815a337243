"""How the answers of chapter ``decoder`` are judged."""

from __future__ import annotations

import math
from collections.abc import Callable
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
    expect_items,
    expect_parameters,
    expect_shapes,
    expect_tensor,
    fail,
)
from autograder.i18n import _
from autograder.memory import remembered
from autograder.trial import expect_refused, verdicts

# Numbers that are only moved or kept stay what they are, to the last bit.
MOVED = 0.0
# A layer has a dozen products of up to 24 terms near 1, two softmaxes and three norms; in float32
# the rounding of 1.2e-7 grows to about 1e-5. The mildest wrong answer differs by more than 1e-2.
LAYER = 1e-4
# Two layers and more, and a product with the vocabulary behind them.
MODEL = 5e-4
# A softmax, a sum and a division of at most 40 numbers in float32.
SHARES = 1e-5
# One mean of at most 40 losses in float32.
LOSS = 1e-5

Mask = Tensor | None


# --- the definitions once more, in float64 -------------------------------------------------------


@remembered
def _causal(T: int, S: int) -> Tensor:
    mask = torch.zeros(T, S, dtype=torch.bool)
    for t in range(T):
        mask[t, : max(0, t + S - T + 1)] = True
    return mask


@remembered
def _normal(x: Tensor, state: dict[str, Tensor], at: str) -> Tensor:
    x = x.double()
    mean = x.mean(dim=-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
    normal = (x - mean) / torch.sqrt(variance + 1e-5)
    return normal * state[f"{at}.weight"].double() + state[f"{at}.bias"].double()


def _linear(x: Tensor, state: dict[str, Tensor], at: str) -> Tensor:
    return x @ state[f"{at}.weight"].double().T + state[f"{at}.bias"].double()


def _attend(
    x: Tensor,
    memory: Tensor,
    state: dict[str, Tensor],
    at: str,
    H: int,
    mask: Mask,
    bias: Tensor | None = None,
) -> Tensor:
    B, T, D = x.shape
    S, d = memory.size(1), D // H
    q = _linear(x, state, f"{at}.query")
    k, v = _linear(memory, state, f"{at}.key"), _linear(memory, state, f"{at}.value")
    allowed = torch.ones(B, H, T, S, dtype=torch.bool)
    if mask is not None:
        allowed = mask.expand(B, H, T, S)
    heads = []
    for h in range(H):  # each head by itself, as the paper writes it
        own = slice(h * d, (h + 1) * d)
        scores = q[..., own] @ k[..., own].transpose(-2, -1) / math.sqrt(d)  # (B, T, S)
        if bias is not None:
            scores = scores + bias.double().expand(B, H, T, S)[:, h]
        powers = torch.exp(scores) * allowed[:, h]
        total = powers.sum(dim=-1, keepdim=True)
        # a row without an allowed key gives zeros, as everywhere in the book
        weights = powers / torch.where(total == 0, torch.ones_like(total), total)
        heads.append(weights @ v[..., own])
    return _linear(torch.cat(heads, dim=-1), state, f"{at}.output")


def _feed(x: Tensor, state: dict[str, Tensor], at: str, activation: str = "relu") -> Tensor:
    hidden = _linear(x, state, f"{at}.up")
    if activation == "relu":
        hidden = hidden.clamp(min=0)
    else:
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
    return _linear(hidden, state, f"{at}.down")


@remembered
def _layer(
    x: Tensor,
    memory: Tensor | None,
    state: dict[str, Tensor],
    H: int,
    *,
    mask: Mask = None,
    memory_mask: Mask = None,
    norm_first: bool = True,
    activation: str = "relu",
    bias: Tensor | None = None,
    at: str = "",
) -> Tensor:
    x = x.double()
    parts: list[Callable[[Tensor], Tensor]] = [
        lambda h: _attend(h, h, state, f"{at}self_attention", H, mask, bias)
    ]
    if memory is not None:
        wide = memory.double()
        parts.append(lambda h: _attend(h, wide, state, f"{at}cross_attention", H, memory_mask))
    parts.append(lambda h: _feed(h, state, f"{at}feed_forward", activation))
    for i, part in enumerate(parts):
        norm = f"{at}residuals.{i}.norm"
        x = x + part(_normal(x, state, norm)) if norm_first else _normal(x + part(x), state, norm)
    return x


@remembered
def _stack(
    x: Tensor,
    memory: Tensor | None,
    state: dict[str, Tensor],
    H: int,
    N: int,
    *,
    norm_first: bool = True,
    at: str = "",
    **more: Any,
) -> Tensor:
    for i in range(N):
        x = _layer(x, memory, state, H, norm_first=norm_first, at=f"{at}layers.{i}.", **more)
    return _normal(x, state, f"{at}norm") if norm_first else x


@remembered
def _embed(ids: Tensor, weight: Tensor, offset: int = 0) -> Tensor:
    # Imported late: earlier chapters' answers are there where an answer of this one is judged.
    from solutions.positional_encoding import sinusoidal_table  # noqa: PLC0415

    D, T = weight.size(1), ids.size(1)
    table = sinusoidal_table(offset + T, D)[offset:].double()
    return weight.double()[ids] * math.sqrt(D) + table


# --- weights by the names that the docstrings give ----------------------------------------------

Shapes = dict[str, list[int]]


def _attention_shapes(D: int, at: str) -> Shapes:
    shapes: Shapes = {}
    for name in ("query", "key", "value", "output"):
        shapes |= {f"{at}.{name}.weight": [D, D], f"{at}.{name}.bias": [D]}
    return shapes


def _layer_shapes(D: int, F: int, *, cross: bool = True, at: str = "") -> Shapes:
    shapes = _attention_shapes(D, f"{at}self_attention")
    if cross:
        shapes |= _attention_shapes(D, f"{at}cross_attention")
    shapes |= {
        f"{at}feed_forward.up.weight": [F, D],
        f"{at}feed_forward.up.bias": [F],
        f"{at}feed_forward.down.weight": [D, F],
        f"{at}feed_forward.down.bias": [D],
    }
    for i in range(3 if cross else 2):
        shapes |= {f"{at}residuals.{i}.norm.weight": [D], f"{at}residuals.{i}.norm.bias": [D]}
    return shapes


def _decoder_shapes(
    D: int, F: int, N: int, *, cross: bool = True, norm_first: bool = True, at: str = ""
) -> Shapes:
    shapes: Shapes = {}
    for i in range(N):
        shapes |= _layer_shapes(D, F, cross=cross, at=f"{at}layers.{i}.")
    if norm_first:
        shapes |= {f"{at}norm.weight": [D], f"{at}norm.bias": [D]}
    return shapes


@remembered
def _near_one(x: Tensor) -> Tensor:
    return 1 + x


def _load(module: Answer, shapes: Shapes, cases: Cases) -> dict[str, Tensor]:
    """Put random weights into a module in evaluation; return them. Gains lie around 1."""
    expect_shapes(module, shapes)
    state = {}
    for name, shape in shapes.items():
        if "norm" in name and name.endswith("weight"):
            state[name] = _near_one(cases.normal(*shape, scale=0.3))
        elif "norm" in name:
            state[name] = cases.normal(*shape, scale=0.3)
        else:
            state[name] = cases.normal(*shape, scale=1 / math.sqrt(shape[-1]))
    module.load(state, strict=False)  # buffers of one's own stay as they are
    module.eval()
    return state


def _sizes(cases: Cases) -> tuple[int, int, int, int, int, int]:
    """B, T, S, H, D and F: all different, H divides D and divides neither T nor S."""
    H = 2
    d = cases.integer(2, 4)
    B, T, S = [2 * i + 1 for i in cases.distinct(3, 1, 4)]  # 3, 5, 7 in some order
    return B, T, S, H, H * d * 2, cases.integer(10, 12) + (1 if d == 3 else 5)


# --- causal_mask ----------------------------------------------------------------------------------

causal = Exercise(
    "causal_mask",
    title=_("The causal mask"),
    difficulty=1,
    minutes=8,
    hints=(
        _("Which keys may the first of T queries see? And which the first, if S = T + 3?"),
        _(
            "If the square case is right and the oblong one is not, the diagonal ends in the wrong "
            "corner: the last query has to see the last key."
        ),
        _(
            "Compare the numbers of the keys, a row, with those of the queries plus S - T, in a "
            "column."
        ),
    ),
)

CAUSAL_STEP = _("Print causal_mask(2, 5).int(): its rows are 1 1 1 1 0 and 1 1 1 1 1.")


def _expect_mask(found: Any, expected: Tensor, *, what: str, cause: str, next_step: str) -> None:
    found = expect_tensor(found, expected.shape, what=what, dtype=torch.bool)
    if torch.equal(found, expected):
        return
    more = bool((found & ~expected).any())
    less = bool((~found & expected).any())
    fail(
        seen=(
            _("{what} allows what it should hide and hides what it should allow.")
            if more and less
            else _("{what} allows more than it should.")
            if more
            else _("{what} hides more than it should.")
        ).format(what=what),
        cause=cause,
        next_step=next_step,
    )


@causal.check(points=0.5)
def is_a_boolean_table(answer: Answer, cases: Cases) -> None:
    """The mask is boolean, of shape (T, T) or (T, S)."""
    T, S = sorted(cases.distinct(2, 2, 9))
    expect_tensor(answer(T), (T, T), what=_("the mask"), dtype=torch.bool)
    expect_tensor(answer(T, S), (T, S), what=_("the mask"), dtype=torch.bool)


@causal.check(points=1)
def a_square_mask_is_a_triangle(answer: Answer, cases: Cases) -> None:
    """Without S, each query sees itself and what comes before it."""
    for T in cases.distinct(3, 1, 9):
        _expect_mask(
            answer(T),
            _causal(T, T),
            what=_("The mask of {T} queries").format(T=T),
            cause=_("The triangle lies on the wrong side of the diagonal, or misses it."),
            next_step=_("Print causal_mask(3).int(): row 0 is 1 0 0, and row 2 is 1 1 1."),
        )


@causal.check(points=1)
def the_last_query_sees_the_last_key(answer: Answer, cases: Cases) -> None:
    """With more keys than queries, the queries are the last positions."""
    T, S = sorted(cases.distinct(2, 2, 9))
    _expect_mask(
        answer(T, S),
        _causal(T, S),
        what=_("The mask of {T} queries and {S} keys").format(T=T, S=S),
        cause=_("The diagonal starts at the first key: the S - T cached positions are forgotten."),
        next_step=CAUSAL_STEP,
    )


@causal.check(points=0.5, hidden=True)
def all_sizes(answer: Answer, cases: Cases) -> None:
    """Every T and every S from 1 on, one query and one key included, and long sequences."""
    sizes = [(T, S) for T in range(1, 6) for S in range(T, 8)]
    # at (4, 6) first, since small masks look alike where mistakes do not
    for T, S in [(4, 6), *sizes, (2, 2100)]:
        _expect_mask(
            answer(T, S),
            _causal(T, S),
            what=_("The mask of some size"),
            cause=_("It is right for some sizes only."),
            next_step=CAUSAL_STEP,
        )


@causal.check(points=0.5, hidden=True)
def pieces_are_rows_of_the_whole(answer: Answer, cases: Cases) -> None:
    """A sequence read in pieces meets the rows of the mask that it would meet at once."""
    lengths = cases.distinct(3, 1, 5)
    whole, start = sum(lengths), 0
    expected = _causal(whole, whole)
    for length in lengths:
        stop = start + length
        _expect_mask(
            answer(length, stop),
            expected[start:stop, :stop],
            what=_("The mask of a later piece"),
            cause=_("Queries count from 0 again in each piece."),
            next_step=CAUSAL_STEP,
        )
        start = stop


@causal.check(points=0.5, hidden=True)
def is_made_where_it_was_asked_for(answer: Answer, cases: Cases) -> None:
    """device says where the mask is made."""
    T, S = sorted(cases.distinct(2, 2, 9))
    _expect_mask(
        answer(T, S, device=None),
        _causal(T, S),
        what=_("The mask made on no device in particular"),
        cause=_("device=None means the default device."),
        next_step=CAUSAL_STEP,
    )
    try:
        # A tensor on the device "meta" has no numbers: it cannot come back, and that shows it.
        answer(T, S, device="meta")
    except AnswerRaised as error:
        if not error.unanswered:
            raise
        return
    fail(
        seen=_("The mask was asked for on another device, and was made on the CPU."),
        cause=_("device is not handed on."),
        next_step=_("Give device=device to the function that makes the tensor, arange or ones."),
    )


# --- decoder_mask ---------------------------------------------------------------------------------

combined = Exercise(
    "decoder_mask",
    title=_("Causal and padding mask in one"),
    difficulty=2,
    minutes=10,
    hints=(
        _("A key may be seen if it is neither in the future nor padding: which operator is that?"),
        _(
            "If whole rows are wrong, the padding hides queries and not keys: its axis of size 1 "
            "has to stand where the queries are."
        ),
        _("padding_mask is (B, 1, T); give it an axis for the heads, (B, 1, 1, T), and `&`."),
    ),
)


@remembered
def _expected_decoder_mask(ids: Tensor, padding_id: int) -> Tensor:
    T = ids.size(1)
    rows = [
        [[s <= t and row[s] != padding_id for s in range(T)] for t in range(T)]
        for row in ids.tolist()
    ]
    return torch.tensor(rows).unsqueeze(1)


def _padded(cases: Cases, B: int, T: int, padding_id: int, *, left: bool = False) -> Tensor:
    return _ends_hidden(cases.integers(1, 50, B, T), padding_id, left=left)


@remembered
def _ends_hidden(ids: Tensor, padding_id: int, *, left: bool) -> Tensor:
    ids = torch.where(ids == padding_id, torch.full_like(ids, 60), ids)
    B, T = ids.shape
    for b in range(B):
        n = b % (T - 1)  # none in the first sequence
        if n and left:
            ids[b, :n] = padding_id
        elif n:
            ids[b, -n:] = padding_id
    return ids


def _check_decoder_mask(
    answer: Answer, ids: Tensor, padding_id: int | None, *, cause: str, next_step: str
) -> None:
    found = answer(ids) if padding_id is None else answer(ids, padding_id)
    _expect_mask(
        found,
        _expected_decoder_mask(ids, padding_id or 0),
        what=_("The mask"),
        cause=cause,
        next_step=next_step,
    )


@combined.check(points=0.5)
def has_an_axis_for_the_heads(answer: Answer, cases: Cases) -> None:
    """The mask is boolean and has shape (B, 1, T, T)."""
    B, T = cases.distinct(2, 3, 8)
    found = answer(_padded(cases, B, T, 0))
    expect_tensor(found, (B, 1, T, T), what=_("the mask"), dtype=torch.bool)


@combined.check(points=1)
def without_padding_it_is_causal(answer: Answer, cases: Cases) -> None:
    """Without padding, each query sees itself and what comes before it."""
    B, T = cases.distinct(2, 3, 8)
    _check_decoder_mask(
        answer,
        cases.integers(1, 50, B, T),
        None,
        cause=_("The causal part is missing, turned round, or combined by the wrong operator."),
        next_step=_("Print the mask of one sequence of three tokens: mask[0, 0].int()."),
    )


@combined.check(points=1)
def padding_at_the_end_is_hidden(answer: Answer, cases: Cases) -> None:
    """No query sees padding; queries that are padding themselves see the real tokens."""
    B, T = 4, cases.integer(5, 8)
    _check_decoder_mask(
        answer,
        _padded(cases, B, T, 0),
        None,
        cause=_("Padding hides the rows and not the columns, or hides nothing."),
        next_step=_("Print the mask of the ids [[5, 6, 0]]: its rows are 1 0 0, 1 1 0, 1 1 0."),
    )


@combined.check(points=1, hidden=True)
def padding_at_the_start_is_hidden(answer: Answer, cases: Cases) -> None:
    """Padding in front is hidden too, also from itself."""
    B, T = 5, cases.integer(6, 9)
    _check_decoder_mask(
        answer,
        _padded(cases, B, T, 0, left=True),
        None,
        cause=_("Something relies on padding standing at the end."),
        next_step=_("Try the ids [[0, 0, 5, 6]]: rows 0 and 1 are all zeros."),
    )


@combined.check(points=0.5, hidden=True)
def another_padding_id(answer: Answer, cases: Cases) -> None:
    """The padding's id is the one that was given, and 0 is then a token like any other."""
    B, T = 4, cases.integer(5, 8)
    padding_id = cases.integer(3, 20)
    ids = _padded(cases, B, T, padding_id)
    ids[:, 1] = 0
    ids[2, 0] = padding_id  # in front as well
    _check_decoder_mask(
        answer,
        ids,
        padding_id,
        cause=_("A fixed id stands in the code where padding_id belongs."),
        next_step=_("Hand padding_id on to padding_mask."),
    )


# --- KeyValueCache --------------------------------------------------------------------------------

kv_cache = Exercise(
    "KeyValueCache",
    title=_("A cache of keys and values"),
    difficulty=2,
    minutes=15,
    hints=(
        _("Of the axes (B, H_kv, T, d), which one grows when tokens are added?"),
        _(
            "If only the second call is wrong, look at what is kept and what is returned: both "
            "must be all positions so far, the oldest first."
        ),
        _(
            "None at first; in update, keep k and v if nothing is there yet, else torch.cat([old, "
            "new], dim=-2); length is the size of that axis; return both."
        ),
    ),
)

CACHE_CAUSE = _("Positions are joined along another axis, in another order, or not kept.")
CACHE_STEP = _("Print the shapes of what update returns, call after call: one axis alone grows.")


def _pieces(
    cases: Cases, lengths: list[int], *, dtype: torch.dtype = torch.float32
) -> list[tuple[Tensor, Tensor]]:
    B, H, d = cases.distinct(3, 2, 6)
    return [
        (cases.normal(B, H, T, d, dtype=dtype), cases.normal(B, H, T, d, dtype=dtype))
        for T in lengths
    ]


def _expect_kept(cache: Answer, pieces: list[tuple[Tensor, Tensor]]) -> None:
    for i, (k, v) in enumerate(pieces):
        found = expect_items(cache.method("update", k, v), 2, what=_("a tuple of keys and values"))
        for name, kind in ((_("the keys"), 0), (_("the values"), 1)):
            expected = torch.cat([piece[kind] for piece in pieces[: i + 1]], dim=2)
            actual = expect_tensor(found[kind], expected.shape, what=name, dtype=expected.dtype)
            expect_close(
                actual,
                expected.double(),
                atol=MOVED,
                what=name,
                cause=CACHE_CAUSE,
                next_step=CACHE_STEP,
            )


@kv_cache.check(points=0.5)
def starts_empty(answer: Answer, cases: Cases) -> None:
    """A new cache has length 0, and gives back the first keys and values as they are."""
    cache = answer()
    _expect_length(cache, 0)
    _expect_kept(cache, _pieces(cases, [cases.integer(2, 6)]))


def _expect_length(cache: Answer, wanted: int) -> None:
    found = cache.attribute("length")
    expect(
        type(found) is int and found == wanted,
        seen=_("length is {found} where the cache holds {wanted} positions.").format(
            found=found, wanted=wanted
        ),
        cause=_("It counts something other than positions, or is not brought up to date."),
        next_step=_("Set it in update, to the size of the axis that grows."),
    )


@kv_cache.check(points=1)
def grows_token_by_token(answer: Answer, cases: Cases) -> None:
    """One position at a time: all so far come back, the oldest first."""
    _expect_kept(answer(), _pieces(cases, [1, 1, 1, 1]))


@kv_cache.check(points=1)
def takes_several_positions_at_once(answer: Answer, cases: Cases) -> None:
    """A prompt of several positions, then pieces of any length; length counts positions."""
    lengths = cases.distinct(3, 1, 6)
    pieces = _pieces(cases, lengths)
    cache = answer()
    total = 0
    for (k, v), T in zip(pieces, lengths, strict=True):
        cache.method("update", k, v)
        total += T
        _expect_length(cache, total)
    _expect_kept(answer(), pieces)


@kv_cache.check(points=1, hidden=True)
def attention_is_equal_at_every_step(answer: Answer, cases: Cases) -> None:
    """Multi-head attention in pieces with this cache gives what it gives at once."""
    from solutions.multi_head import MultiHeadAttention  # noqa: PLC0415

    B, T, H = 3, 7, 2
    x = cases.normal(B, T, 12)
    torch_state = torch.random.get_rng_state()
    torch.manual_seed(cases.seed())
    layer = MultiHeadAttention(12, 4, kv_heads=H)
    torch.random.set_rng_state(torch_state)
    whole, _weights = layer(x, mask=_causal(T, T))
    for lengths in ([3, 1, 1, 2], [1, 5, 1]):
        cache = _Remote(answer())
        start = 0
        for length in lengths:
            stop = start + length
            piece, _weights = layer(x[:, start:stop], mask=_causal(length, stop), cache=cache)
            expect_close(
                piece,
                whole[:, start:stop].double(),
                atol=LAYER,
                what=_("attention with the cache"),
                cause=CACHE_CAUSE,
                next_step=CACHE_STEP,
            )
            start = stop


class _Remote:
    """A learner's cache, as an attention of ours sees it."""

    def __init__(self, cache: Answer) -> None:
        self._cache = cache

    @property
    def length(self) -> int:
        return int(self._cache.attribute("length"))

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self._cache.method("update", k.detach(), v.detach())
        return keys, values


@kv_cache.check(points=0.5, hidden=True)
def two_caches_know_nothing_of_each_other(answer: Answer, cases: Cases) -> None:
    """Each cache keeps its own, however calls are mixed."""
    one, other = answer(), answer()
    first, second = _pieces(cases, [2, 1]), _pieces(cases, [3, 1])
    for cache, pieces in ((one, first[:1]), (other, second[:1])):
        _expect_kept(cache, pieces)
    for cache, pieces in ((one, first), (other, second)):
        found = expect_items(
            cache.method("update", *pieces[1]), 2, what=_("a tuple of keys and values")
        )
        expected = torch.cat([piece[0] for piece in pieces], dim=2)
        expect_close(
            found[0],
            expected.double(),
            atol=MOVED,
            what=_("the keys of one of two caches"),
            cause=_("Both write to the same place: a list of the class, or a default argument."),
            next_step=_("Make what a cache keeps in __init__."),
        )


@kv_cache.check(points=0.5, hidden=True)
def any_dtype_and_nothing_added(answer: Answer, cases: Cases) -> None:
    """fp16 and float64 come back as they are; a call without new positions changes nothing."""
    for dtype in (torch.float16, torch.float64):
        cache = answer()
        _expect_kept(cache, _pieces(cases, [0, 2, 0, 1], dtype=dtype))
        _expect_length(cache, 3)


@kv_cache.check(points=0.5, hidden=True)
def long_sequences(answer: Answer, cases: Cases) -> None:
    """It has no end: thirty calls, some of them long."""
    _expect_kept(answer(), _pieces(cases, [*[1] * 20, 150, *[1] * 8, 60]))


# --- future_test ----------------------------------------------------------------------------------

future = Exercise(
    "future_test",
    title=_("Write a test that finds a leak"),
    difficulty=3,
    minutes=25,
    hints=(
        _("You may change x[:, t] as you like. Which outputs may move then, and which may not?"),
        _(
            "If a leak gets through, ask where you looked: at every t? In every sequence of the "
            "batch? If a right layer is turned away, exact equality was asked of rounded numbers."
        ),
        _(
            "y = layer(x). For every t: change x[:, t] alone and call again; outputs before t must "
            "not have moved, outputs from t on must have."
        ),
    ),
)

Layer = Callable[[Tensor], Tensor]


def _scores(x: Tensor) -> Tensor:
    """Scores between -1 and 1, however wide and however large x is: no weight rounds to 0."""
    h = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1)
    return h @ h.transpose(-2, -1) / x.size(-1)


def _mix(x: Tensor, mask: Tensor) -> Tensor:
    """Attention of x with itself, without parameters."""
    scores = _scores(x)
    return torch.softmax(scores.masked_fill(~mask, -math.inf), dim=-1).nan_to_num() @ x


def _square(x: Tensor) -> Tensor:
    return torch.ones(x.size(1), x.size(1), dtype=torch.bool)


def _right_attention(x: Tensor) -> Tensor:
    return x + _mix(x, _square(x).tril())


def _right_float64(x: Tensor) -> Tensor:
    return _right_attention(x.double()).to(x.dtype)


def _right_mean(x: Tensor) -> Tensor:
    count = torch.arange(1, x.size(1) + 1, dtype=x.dtype).unsqueeze(-1)
    return x.cumsum(dim=1) / count


def _right_recurrence(x: Tensor) -> Tensor:
    state = torch.zeros_like(x[:, 0])
    outputs = []
    for t in range(x.size(1)):
        state = x[:, t] + 0.9 * state
        outputs.append(state)
    return torch.stack(outputs, dim=1)


def _right_stack(x: Tensor) -> Tensor:
    # Another order of summation than the first pass takes: last digits differ from call to call.
    return _right_attention(_right_attention(x)) + x.flip(-1)


def _centred(y: Tensor) -> Tensor:
    """Something bent, then the first half of a layer norm: the sum over the width is always 0."""
    y = torch.sin(y)  # without it, the same number added to a whole vector would be no change
    return y - y.mean(dim=-1, keepdim=True) if y.size(-1) > 1 else y


def _right_centred(x: Tensor) -> Tensor:
    return _centred(_right_attention(x))


def _leak_behind_a_norm(x: Tensor) -> Tensor:
    return _centred(x + _mix(x, _square(x)))


def _leak_no_mask(x: Tensor) -> Tensor:
    return x + _mix(x, _square(x))


def _leak_upside_down(x: Tensor) -> Tensor:
    return x + _mix(x, _square(x).triu())


def _leak_next(x: Tensor) -> Tensor:
    return x + _mix(x, _square(x).tril(1))


def _leak_second_sequence(x: Tensor) -> Tensor:
    y = _right_attention(x)
    return torch.cat([y[:1], (x + _mix(x, _square(x)))[1:]], dim=0)


def _leak_small(x: Tensor) -> Tensor:
    return _right_attention(x) + 0.01 * (x.mean(dim=1, keepdim=True))


def _leak_last_position(x: Tensor) -> Tensor:
    mask = _square(x).tril()
    mask[1:, -1] = True  # the last token alone is seen by all but the first
    return x + _mix(x, mask)


def _leak_first_query(x: Tensor) -> Tensor:
    mask = _square(x).tril()
    mask[0, 1:2] = True  # one row alone sees one token too many
    return x + _mix(x, mask)


def _leak_in_the_middle(x: Tensor) -> Tensor:
    mask = _square(x).tril()
    middle = x.size(1) // 2
    mask[middle, middle + 1 : middle + 2] = True  # one query sees one token too many
    return x + _mix(x, mask)


def _leak_three_ahead(x: Tensor) -> Tensor:
    return x + _mix(x, _square(x).tril() | _square(x).triu(3))


def _leak_through_the_norm(x: Tensor) -> Tensor:
    y = _right_attention(x)
    return y / y.square().mean(dim=(1, 2), keepdim=True).sqrt()  # one size for the whole sequence


def _leak_after_the_softmax(x: Tensor) -> Tensor:
    return (
        x + torch.softmax(_scores(x), dim=-1).tril() @ x
    )  # the sum below the line still counts all


def _blind_to_itself(x: Tensor) -> Tensor:
    # A sum and no attention: a query whose own key is hidden still asks with what it is.
    return x.cumsum(dim=1) - x


def _blind_to_the_past(x: Tensor) -> Tensor:
    return torch.tanh(x)


def _blind_beyond_a_window(x: Tensor) -> Tensor:
    mask = _square(x).tril() & _square(x).triu(-1)
    return x + _mix(x, mask)


def _blind_to_the_first(x: Tensor) -> Tensor:
    mask = _square(x).tril()
    mask[1:, 0] = False
    return x + _mix(x, mask)


def _blind_in_later_sequences(x: Tensor) -> Tensor:
    return torch.cat([_right_attention(x)[:1], torch.tanh(x)[1:]], dim=0)


def _constant(x: Tensor) -> Tensor:
    return torch.ones_like(x)


def _takes_x(x: Tensor) -> None:
    if not x.is_floating_point():
        raise TypeError


def _judge_test(
    answer: Answer,
    cases: Cases,
    groups: list[tuple[list[Layer], str, str]],
    *,
    every_right: bool = False,
) -> None:
    """The learner's test accepts what is right and rejects each layer of each group.

    All are run before anything is said: what a test does to all of them tells mistakes apart.
    """
    others = [_right_float64, _right_mean, _right_recurrence, _right_stack, _right_centred]
    right = [_right_attention, *(others if every_right else cases.shuffled(others)[:1])]
    wrong = [layer for group, _seen, _next in groups for layer in group]
    accepted, refused = verdicts(answer, cases, right=right, wrong=wrong, takes=_takes_x)
    expect(
        all(accepted),
        seen=_("Your test raises AssertionError for a layer that keeps its promise."),
        cause=_(
            "It asks for exact equality, for too large an effect, or for too much; or it sums an "
            "output over its width, where effects can cancel."
        ),
        next_step=_(
            "Compare with a tolerance that is larger than rounding (1e-6) and smaller than an "
            "effect (1e-3)."
        ),
    )
    said = [(seen, next_step) for group, seen, next_step in groups for _layer in group]
    expect_refused(refused, said)


@future.check(points=1)
def accepts_what_is_right_and_finds_a_missing_mask(answer: Answer, cases: Cases) -> None:
    """It accepts causal layers of several kinds, and rejects attention without a mask."""
    groups: list[tuple[list[Layer], str, str]] = [
        (
            [_leak_no_mask, _leak_upside_down],
            _("Your test accepts a layer whose outputs see the whole sequence."),
            _("Change one input and assert that the outputs before it stay."),
        ),
    ]
    _judge_test(answer, cases, groups, every_right=True)


@future.check(points=1)
def finds_one_step_of_future(answer: Answer, cases: Cases) -> None:
    """It rejects a mask that is one diagonal too wide, and one that is too narrow."""
    groups: list[tuple[list[Layer], str, str]] = [
        (
            [_leak_next],
            _("Your test accepts a layer that sees the next token."),
            _("Look at the output just before the one that was changed."),
        ),
        (
            [_blind_to_itself, _constant],
            _("Your test accepts a layer whose outputs do not see their own input."),
            _("Assert that something moves, too: the output at the place that was changed."),
        ),
    ]
    _judge_test(answer, cases, groups)


@future.check(points=1, hidden=True)
def finds_leaks_of_single_rows_and_columns(answer: Answer, cases: Cases) -> None:
    """It rejects leaks at one end, of a single query in the middle, and from farther ahead."""
    groups: list[tuple[list[Layer], str, str]] = [
        (
            [_leak_last_position, _leak_first_query, _leak_in_the_middle, _leak_three_ahead],
            _("Your test accepts a layer that leaks at one place of the sequence."),
            _(
                "Take a sequence of six or more, change every position in turn, and look at every "
                "output before it."
            ),
        ),
    ]
    _judge_test(answer, cases, groups)


@future.check(points=1, hidden=True)
def finds_leaks_that_are_small_or_rare(answer: Answer, cases: Cases) -> None:
    """It rejects leaks through a norm or a sum, a leak of 1 %, and one in a later sequence only."""
    groups: list[tuple[list[Layer], str, str]] = [
        (
            [
                _leak_small,
                _leak_second_sequence,
                _leak_through_the_norm,
                _leak_after_the_softmax,
                _leak_behind_a_norm,
            ],
            _("Your test accepts a layer that leaks a little, or in some sequences only."),
            _("Use a batch of two, look at both, and let the tolerance be far below 1 %."),
        ),
    ]
    _judge_test(answer, cases, groups)


@future.check(points=1, hidden=True)
def finds_a_past_that_is_lost(answer: Answer, cases: Cases) -> None:
    """It rejects layers that see themselves alone, a window, or everything but the first token."""
    groups: list[tuple[list[Layer], str, str]] = [
        (
            [_blind_to_the_past, _blind_beyond_a_window, _blind_to_the_first],
            _("Your test accepts a layer that does not see all of the past."),
            _("Assert that every output from the changed position on has moved."),
        ),
        (
            [_blind_in_later_sequences],
            _("Your test accepts a layer that forgets the past in one sequence of the batch."),
            _("Ask each sequence for the effect, not the batch as a whole."),
        ),
    ]
    _judge_test(answer, cases, groups)


# --- DecoderLayer ---------------------------------------------------------------------------------

decoder_layer = Exercise(
    "DecoderLayer",
    title=_("The decoder layer"),
    difficulty=3,
    minutes=25,
    hints=(
        _("Which two sequences meet in cross-attention: who asks, and who answers?"),
        _(
            "If only masked calls are wrong, the two masks are exchanged: mask belongs to the "
            "self-attention, (T, T), memory_mask to the cross-attention, (T, S). If numbers are "
            "nearly right, look at which residual, so which norm, each sub-layer got."
        ),
        _(
            "x = residuals[0](x, masked self-attention); x = residuals[1](x, cross-attention from "
            "h to memory) where there is one; the last residual around feed_forward. Attention "
            "returns a pair: its first item is what the residual adds."
        ),
    ),
)

LAYER_CAUSE = _("A sub-layer is missing, stands in another place, or got another input.")
LAYER_STEP = _(
    "Write the three sub-layers one below the other, each with its residual, its input and its "
    "mask, and compare with the drawing of the layer."
)


@decoder_layer.check(points=0.5)
def has_the_parts_of_the_docstring(answer: Answer, cases: Cases) -> None:
    """Two attentions, a feed-forward network, three residuals; without cross, one less each."""
    _B, _T, _S, H, D, F = _sizes(cases)
    expect_parameters(answer(D, H, F), _layer_shapes(D, F))
    expect_parameters(answer(D, H, F, cross=False), _layer_shapes(D, F, cross=False))


@decoder_layer.check(points=1)
def equals_the_definition(answer: Answer, cases: Cases) -> None:
    """Pre-norm, without masks: x and memory, of one length or two, give what the formula gives."""
    B, T, S, H, D, F = _sizes(cases)
    layer = answer(D, H, F)
    state = _load(layer, _layer_shapes(D, F), cases)
    x = cases.normal(B, T, D)
    for length in (T, S):  # of one length first: what is mixed up is no error then
        memory = cases.normal(B, length, D)
        expect_close(
            layer(x, memory),
            _layer(x, memory, state, H),
            atol=LAYER,
            what=_("the layer's output"),
            cause=LAYER_CAUSE,
            next_step=LAYER_STEP,
        )


@decoder_layer.check(points=1)
def each_mask_has_its_place(answer: Answer, cases: Cases) -> None:
    """With a causal mask and padding in the memory, the output is that of the formula."""
    B, T, S, H, D, F = _sizes(cases)
    layer = answer(D, H, F)
    state = _load(layer, _layer_shapes(D, F), cases)
    x, memory = cases.normal(B, T, D), cases.normal(B, S, D)
    mask, memory_mask = _causal(T, T), cases.mask(B, 1, 1, S)
    for one, other in ((mask, None), (None, memory_mask), (mask, memory_mask)):
        expect_close(
            layer(x, memory, one, other),
            _layer(x, memory, state, H, mask=one, memory_mask=other),
            atol=LAYER,
            what=_("the output with masks"),
            cause=_("A mask is dropped, or each reaches the other attention."),
            next_step=_("mask goes to self_attention, memory_mask to cross_attention."),
        )


@decoder_layer.check(points=1)
def post_norm_as_well(answer: Answer, cases: Cases) -> None:
    """With norm_first=False and activation="gelu", the output is that of the formula."""
    B, T, S, H, D, F = _sizes(cases)
    layer = answer(D, H, F, norm_first=False, activation="gelu")
    state = _load(layer, _layer_shapes(D, F), cases)
    x, memory = cases.normal(B, T, D), cases.normal(B, S, D)
    expect_close(
        layer(x, memory, _causal(T, T)),
        _layer(x, memory, state, H, mask=_causal(T, T), norm_first=False, activation="gelu"),
        atol=1e-3,  # the tanh form of GELU is right too, and is off by up to 5e-4
        what=_("the output of a post-norm layer"),
        cause=_("norm_first or activation is not handed on to the parts."),
        next_step=_("Give norm_first to every Residual, and activation to FeedForward."),
    )


@decoder_layer.check(points=1, hidden=True)
def without_cross_attention(answer: Answer, cases: Cases) -> None:
    """With cross=False there is no memory: self-attention, then feed-forward."""
    B, T, S, H, D, F = _sizes(cases)
    layer = answer(D, H, F, cross=False)
    state = _load(layer, _layer_shapes(D, F, cross=False), cases)
    x = cases.normal(B, T, D)
    expected = _layer(x, None, state, H, mask=_causal(T, T))
    for memory in (None, cases.normal(B, S, D)):
        expect_close(
            layer(x, memory, mask=_causal(T, T)),
            expected,
            atol=LAYER,
            what=_("the output without cross-attention"),
            cause=_("Something of the cross-attention is still there, or a residual is misplaced."),
            next_step=_("Skip the second sub-layer where self.cross is False."),
        )


@decoder_layer.check(points=1, hidden=True)
def no_access_to_the_future(answer: Answer, cases: Cases) -> None:
    """By gradient: an output depends on no later input, and on all of the memory that is real."""
    B, T, S, H, D, F = _sizes(cases)
    layer = answer(D, H, F)
    _load(layer, _layer_shapes(D, F), cases)
    x, memory = cases.normal(B, T, D), cases.normal(B, S, D)
    memory_mask = torch.ones(B, 1, 1, S, dtype=torch.bool)
    memory_mask[0, ..., -2:] = False
    t = cases.integer(1, T - 1)
    cotangent = torch.zeros(B, T, D)
    cotangent[:, t] = cases.normal(B, D)
    run = layer.run((x, memory, _causal(T, T), memory_mask), wrt=[0, 1], cotangent=cotangent)
    by_x, by_memory = run.grads["0"], run.grads["1"]
    expect(
        by_x is not None and bool((by_x[:, t + 1 :] == 0).all()),
        seen=_("The gradient of an output by a later input is not zero."),
        cause=_("The causal mask does not reach the self-attention."),
        next_step=_("Hand mask to self_attention as mask=mask."),
    )
    expect(
        by_x is not None and bool((by_x[:, : t + 1].abs().amax(dim=-1) > 0).all()),
        seen=_("An output does not depend on everything before it."),
        cause=_("The past is cut off."),
        next_step=LAYER_STEP,
    )
    expect(
        by_memory is not None
        and bool((by_memory[0, -2:] == 0).all())
        and bool((by_memory[1:].abs().amax(dim=-1) > 0).all()),
        seen=_("Outputs depend on the memory's padding, or not on all that is no padding."),
        cause=_("memory_mask does not reach the cross-attention, or the memory is cut."),
        next_step=_("Hand memory_mask to cross_attention as mask=memory_mask."),
    )


@decoder_layer.check(points=1, hidden=True)
def what_belongs_to_self_attention_alone(answer: Answer, cases: Cases) -> None:
    """Keywords such as bias reach the self-attention, and only it."""
    B, T, S, H, D, F = _sizes(cases)
    layer = answer(D, H, F)
    state = _load(layer, _layer_shapes(D, F), cases)
    x, memory = cases.normal(B, T, D), cases.normal(B, S, D)
    bias = cases.normal(1, H, T, T)
    expect_close(
        layer(x, memory, bias=bias),
        _layer(x, memory, state, H, bias=bias),
        atol=LAYER,
        what=_("the output with a bias"),
        cause=_("The further keywords are dropped, or go to the wrong attention."),
        next_step=_("Give **attention to self_attention."),
    )


@decoder_layer.check(points=1, hidden=True)
def pieces_with_a_cache_equal_the_whole(answer: Answer, cases: Cases) -> None:
    """In pieces, with both caches, the layer gives what it gives at once."""
    B, _T, S, H, D, F = _sizes(cases)
    T = 6
    layer = answer(D, H, F)
    state = _load(layer, _layer_shapes(D, F), cases)
    x, memory = cases.normal(B, T, D), cases.normal(B, S, D)
    # No mask of the memory: keys added twice would change its size, and end in an error; so the
    # length tells it from other mistakes.
    expected = _layer(x, memory, state, H, mask=_causal(T, T))
    cache, memory_cache = layer.method("new_cache")
    start = 0
    for length in (3, 1, 2):
        stop = start + length
        expect_close(
            layer(
                x[:, start:stop],
                memory,
                _causal(length, stop),
                cache=cache,
                memory_cache=memory_cache,
            ),
            expected[:, start:stop],
            atol=LAYER,
            what=_("a piece with caches"),
            cause=_("A cache does not reach its attention, or reaches the other one."),
            next_step=_("cache is in **attention; memory_cache goes to the cross-attention."),
        )
        start = stop
    expect(
        memory_cache.attribute("length") == S,
        seen=_("After three pieces memory_cache does not hold the S positions of the memory."),
        cause=_("The memory's keys and values are computed again each time, or added again."),
        next_step=_("Give memory_cache to the cross-attention as its cache."),
    )


@decoder_layer.check(points=0.5, hidden=True)
def dropout_of_the_residuals(answer: Answer, cases: Cases) -> None:
    """In training each sub-layer's output is dropped with the given probability; x stays."""
    D, H, F = 8, 2, 12
    for cross, parts in ((True, 3), (False, 2)):
        layer = answer(D, H, F, dropout=1.0, cross=cross)
        state = _load(layer, _layer_shapes(D, F, cross=cross), cases)
        x, memory = cases.normal(2, 3, D), cases.normal(2, 4, D)
        layer.train()
        run = layer.run((x, memory), echo=True)
        expect_close(
            run.value,
            x.double(),
            atol=MOVED,
            what=_("the output of a layer that drops everything"),
            cause=_("Not every one of the {n} residuals has the dropout.").format(n=parts),
            next_step=_("Give dropout to every Residual, and use one for each sub-layer."),
        )
        expect(
            torch.equal(run.args[0], x) and torch.equal(run.args[1], memory),
            seen=_("The input has other values after the call."),
            cause=_("An operation in place: x += …, or a method whose name ends in _."),
            next_step=_("Write x = x + …: that makes a new tensor."),
        )
        layer.eval()
        expect_close(
            layer(x, memory),
            _layer(x, memory if cross else None, state, H),
            atol=LAYER,
            what=_("the output in evaluation"),
            cause=_("Something is dropped in evaluation too."),
            next_step=_("Leave dropping to the residuals: they know the mode."),
        )
    _expect_dropped_once(answer, cases)


@remembered
def _silenced(state: dict[str, Tensor], names: tuple[str, ...]) -> dict[str, Tensor]:
    """The same weights, with 0 for those whose names begin so."""
    return {
        name: torch.zeros_like(value) if name.startswith(names) else value
        for name, value in state.items()
    }


def _expect_dropped_once(answer: Answer, cases: Cases) -> None:
    """With probability ½, what a sub-layer adds is 0 or doubled, and nothing in between."""
    D, H, F = 8, 2, 12
    ends = {0: "self_attention.output", 1: "cross_attention.output", 2: "feed_forward.down"}
    layer = answer(D, H, F, dropout=0.5)
    loaded = _load(layer, _layer_shapes(D, F), cases)
    layer.train()
    x, memory = cases.normal(3, 4, D), cases.normal(3, 5, D)
    for i in ends:
        silent = tuple(end for j, end in ends.items() if j != i)
        state = _silenced(loaded, silent)
        layer.load(state, strict=False)
        part = _layer(x, memory, state, H) - x
        found = expect_tensor(layer(x, memory), x.shape, what=_("the output in training"))
        added = found.double() - x
        gone, doubled = added.abs() <= LAYER, (added - 2 * part).abs() <= LAYER
        expect(
            bool((gone | doubled).all()) and not bool(gone.all() or doubled.all()),
            seen=_("With dropout of ½, what a sub-layer adds is not everywhere 0 or doubled."),
            cause=_("Something inside a sub-layer is dropped as well."),
            next_step=_(
                "dropout is of the residuals alone: build the attentions and the network as the "
                "docstring writes them."
            ),
        )


# --- Decoder --------------------------------------------------------------------------------------

decoder = Exercise(
    "Decoder",
    title=_("The decoder"),
    difficulty=2,
    minutes=15,
    hints=(
        _("What does layer 2 read: what layer 1 read, or what layer 1 wrote? And which memory?"),
        _(
            "If parameters are missing, the layers stand in a plain list. If all layers change "
            "together, one layer was repeated: make a new one for each of the N."
        ),
        _(
            "ModuleList of N DecoderLayer; in forward, one after the other, each with the same "
            "memory and masks and its own pair of caches; then norm."
        ),
    ),
)

STACK_STEP = _(
    "Follow x through two layers with a pencil: what goes into each, and what comes out?"
)


@decoder.check(points=0.5)
def has_n_layers_and_a_last_norm(answer: Answer, cases: Cases) -> None:
    """N layers with weights of their own; a last norm with pre-norm, none with post-norm."""
    D, H, F = 8, 2, 10
    for norm_first, cross, N in ((True, True, 3), (False, False, 1)):
        found = answer(D, H, F, N, norm_first=norm_first, cross=cross)
        expect_parameters(found, _decoder_shapes(D, F, N, cross=cross, norm_first=norm_first))


def _expect_stack(
    answer: Answer,
    cases: Cases,
    *,
    masked: bool,
    norm_first: bool = True,
    cross: bool = True,
    activation: str = "relu",
) -> None:
    B, T, S, H, D, F = _sizes(cases)
    N = 2
    kind = {} if activation == "relu" else {"activation": activation}
    module = answer(D, H, F, N, norm_first=norm_first, cross=cross, **kind)
    state = _load(module, _decoder_shapes(D, F, N, norm_first=norm_first, cross=cross), cases)
    x = cases.normal(B, T, D)
    memory = cases.normal(B, S, D) if cross else None
    mask = _causal(T, T) if masked else None
    memory_mask = cases.mask(B, 1, 1, S) if masked and cross else None
    expect_close(
        module(x, memory, mask, memory_mask),
        _stack(
            x,
            memory,
            state,
            H,
            N,
            norm_first=norm_first,
            activation=activation,
            mask=mask,
            memory_mask=memory_mask,
        ),
        # the tanh form of GELU is right too, and is off by up to 5e-4 in each of two layers
        atol=MODEL if activation == "relu" else 2e-3,
        what=_("the decoder's output"),
        cause=_("A layer, a mask, the memory or the last norm is not where it belongs."),
        next_step=STACK_STEP,
    )


@decoder.check(points=1)
def layers_follow_one_another(answer: Answer, cases: Cases) -> None:
    """Without masks, the output is that of two layers and the norm."""
    _expect_stack(answer, cases, masked=False)


@decoder.check(points=1)
def every_layer_gets_masks_and_memory(answer: Answer, cases: Cases) -> None:
    """With both masks, the output is that of two layers and the norm."""
    _expect_stack(answer, cases, masked=True)


@decoder.check(points=1, hidden=True)
def other_kinds_of_layers(answer: Answer, cases: Cases) -> None:
    """Post-norm, without cross-attention, and with GELU."""
    _expect_stack(answer, cases, masked=True, norm_first=False)
    _expect_stack(answer, cases, masked=True, cross=False)
    _expect_stack(answer, cases, masked=True, activation="gelu")


@decoder.check(points=1, hidden=True)
def cached_pieces_equal_the_whole(answer: Answer, cases: Cases) -> None:
    """In pieces, with the pairs of new_cache, the decoder gives what it gives at once."""
    B, _T, S, H, D, F = _sizes(cases)
    N, T = 2, 6
    module = answer(D, H, F, N)
    state = _load(module, _decoder_shapes(D, F, N), cases)
    x, memory = cases.normal(B, T, D), cases.normal(B, S, D)
    memory_mask = cases.mask(B, 1, 1, S)
    expected = _stack(x, memory, state, H, N, mask=_causal(T, T), memory_mask=memory_mask)
    cache = module.method("new_cache")
    start = 0
    for length in (3, 1, 2):
        stop = start + length
        found = module(x[:, start:stop], memory, _causal(length, stop), memory_mask, cache=cache)
        expect_close(
            found,
            expected[:, start:stop],
            atol=MODEL,
            what=_("a piece with caches"),
            cause=_("A layer has no cache, that of another layer, or its pair turned round."),
            next_step=_("Layer i gets cache=cache[i][0] and memory_cache=cache[i][1]."),
        )
        start = stop
    held = [pair[1].attribute("length") for pair in cache]
    expect(
        held == [S] * N,
        seen=_("After a call the caches of the memory do not hold its S positions."),
        cause=_("memory_cache is not handed on: keys of the memory are computed again each time."),
        next_step=_("Layer i gets memory_cache=cache[i][1]."),
    )


@decoder.check(points=0.5, hidden=True)
def keywords_reach_every_layer(answer: Answer, cases: Cases) -> None:
    """A bias reaches the self-attention of each layer, with a cache too; in training, dropout."""
    B, T, S, H, D, F = _sizes(cases)
    N = 2
    module = answer(D, H, F, N, dropout=1.0)
    state = _load(module, _decoder_shapes(D, F, N), cases)
    x, memory, bias = cases.normal(B, T, D), cases.normal(B, S, D), cases.normal(1, H, T, T)
    expect_close(
        module(x, memory, bias=bias),
        _stack(x, memory, state, H, N, bias=bias),
        atol=MODEL,
        what=_("the output with a bias"),
        cause=_("**attention is not handed on to every layer."),
        next_step=_("Give **attention to each call of a layer."),
    )
    expect_close(
        module(x, memory, cache=module.method("new_cache"), bias=bias),
        _stack(x, memory, state, H, N, bias=bias),
        atol=MODEL,
        what=_("the output with a bias and a cache"),
        cause=_("**attention is handed on only where there is no cache."),
        next_step=_("Give **attention to each call of a layer, beside its caches."),
    )
    module.train()
    expect_close(
        module(x, memory),
        _normal(x, state, "norm"),
        atol=LAYER,
        what=_("the output of a decoder that drops everything"),
        cause=_("dropout is not handed on to every layer."),
        next_step=_("Give dropout=dropout to each DecoderLayer."),
    )


@decoder.check(points=0.5, hidden=True)
def every_layer_is_trained(answer: Answer, cases: Cases) -> None:
    """The gradient of the output reaches every layer, the last norm, x and the memory."""
    B, T, S, H, D, F = _sizes(cases)
    module = answer(D, H, F, 2)
    _load(module, _decoder_shapes(D, F, 2), cases)
    x, memory, cotangent = cases.normal(B, T, D), cases.normal(B, S, D), cases.normal(B, T, D)
    run = module.run((x, memory, _causal(T, T)), wrt=[0, 1, "parameters"], cotangent=cotangent)
    expect_tensor(run.value, (B, T, D), what=_("the output"))
    _expect_trained(run.grads, ("layers.0", "layers.1", "norm"))
    _expect_trained(run.grads, ("0", "1"), what={"0": "x", "1": "memory"})


def _expect_trained(
    grads: dict[str, Tensor | None], parts: tuple[str, ...], what: dict[str, str] | None = None
) -> None:
    """A gradient reaches each part: the parameters whose names begin so, or an argument."""
    for part in parts:
        # A key's bias has no influence, and ReLU may silence a unit: the part as a whole counts.
        found = [g for name, g in grads.items() if name == part or name.startswith(f"{part}.")]
        expect(
            any(grad is not None and bool((grad != 0).any()) for grad in found),
            seen=_("No gradient reaches {part}.").format(part=(what or {}).get(part, part)),
            cause=_("detach or no_grad cuts it off, or it is never used."),
            next_step=_("Leave both out: who calls the model decides whether it is trained."),
        )


# --- BorrowedDecoderLayer -------------------------------------------------------------------------

borrowed = Exercise(
    "BorrowedDecoderLayer",
    title=_("Four bugs in a borrowed layer"),
    difficulty=3,
    minutes=25,
    hints=(
        _(
            "Two faults announce themselves, one after the other. Which lines does Python name, "
            "and what does it say?"
        ),
        _(
            "The other two are silent. Print the mask of three tokens; then set the "
            "cross-attention's output map to zero and see what is left of x."
        ),
        _(
            "MultiHeadAttention takes query, key, value and mask, and returns a pair. The mask's "
            "diagonal is True. Each of the three sub-layers is added to what went into it. The "
            "decoder asks, the memory answers."
        ),
    ),
    given="borrowed_as_found",
)


def _borrowed_shapes(D: int, F: int) -> Shapes:
    shapes = _attention_shapes(D, "self_attn") | _attention_shapes(D, "cross_attn")
    shapes |= {
        "ffn.0.weight": [F, D],
        "ffn.0.bias": [F],
        "ffn.2.weight": [D, F],
        "ffn.2.bias": [D],
    }
    for i in (1, 2, 3):
        shapes |= {f"norm{i}.weight": [D], f"norm{i}.bias": [D]}
    return shapes


@remembered
def _borrowed(
    x: Tensor, memory: Tensor, state: dict[str, Tensor], H: int, memory_mask: Mask
) -> Tensor:
    x, memory, T = x.double(), memory.double(), x.size(1)
    x = _normal(x + _attend(x, x, state, "self_attn", H, _causal(T, T)), state, "norm1")
    x = _normal(x + _attend(x, memory, state, "cross_attn", H, memory_mask), state, "norm2")
    hidden = _linear(x, state, "ffn.0").clamp(min=0)
    return _normal(x + _linear(hidden, state, "ffn.2"), state, "norm3")


def _expect_borrowed(
    answer: Answer,
    cases: Cases,
    sizes: tuple[int, int, int],
    *,
    masked: bool,
    zero: tuple[str, ...] = (),
    what: str,
    cause: str,
    next_step: str,
) -> None:
    B, T, S = sizes
    D, H, F = 8, 2, 12
    layer = answer(D, H, F)
    shapes = _borrowed_shapes(D, F)
    state = _silenced(_load(layer, shapes, cases), zero)
    layer.load(state, strict=False)
    x, memory = cases.normal(B, T, D), cases.normal(B, S, D)
    memory_mask = cases.mask(B, 1, 1, S) if masked else None
    args = (x, memory, memory_mask) if masked else (x, memory)
    expect_close(
        layer(*args),
        _borrowed(x, memory, state, H, memory_mask),
        atol=LAYER,
        what=what,
        cause=cause,
        next_step=next_step,
    )


@borrowed.check(points=0)
def parts_keep_their_names(answer: Answer, cases: Cases) -> None:
    """The parts are those of the docstring, under its names."""
    expect_parameters(answer(8, 2, 12), _borrowed_shapes(8, 12))


@borrowed.check(points=0.5)
def runs_and_keeps_the_shape(answer: Answer, cases: Cases) -> None:
    """It runs with T ≠ S and returns (B, T, D), each position with mean 0 and variance 1."""
    B, T, S = [2 * i + 1 for i in cases.distinct(3, 1, 4)]
    layer = answer(8, 2, 12)
    found = layer(cases.normal(B, T, 8), cases.normal(B, S, 8))
    y = expect_tensor(found, (B, T, 8), what=_("the output")).double()
    # ε = 1e-5 takes 1e-5 / variance off the variance of 1
    expect(
        bool((y.mean(dim=-1).abs() < 1e-3).all())
        and bool(((y**2).mean(dim=-1) - 1).abs().max() < 1e-2),
        seen=_("The positions of the output do not have mean 0 and variance 1."),
        cause=_("The last of the three norms is left out, or something comes after it."),
        next_step=_("Keep the last line as it was found: norm3 of a sum."),
    )


@borrowed.check(points=1)
def without_the_memory_a_masked_layer_is_left(answer: Answer, cases: Cases) -> None:
    """With a cross-attention that adds nothing, the output is that of masked self-attention."""
    _expect_borrowed(
        answer,
        cases,
        (2, 5, 3),
        masked=False,
        zero=("cross_attn.output.weight", "cross_attn.output.bias"),
        what=_("the output with a silent cross-attention"),
        cause=_("The mask of the self-attention, or a residual, is wrong."),
        next_step=_("Print the mask of three tokens; then look at what each norm is given."),
    )


@borrowed.check(points=1)
def one_token_equals_the_formula(answer: Answer, cases: Cases) -> None:
    """A single token, without a mask of the memory: the output is that of the three formulas."""
    _expect_borrowed(
        answer,
        cases,
        (3, 1, 4),
        masked=False,
        what=_("the output for a single token"),
        cause=_(
            "A token that may not see itself, a sub-layer that is not added, or a wrong query."
        ),
        next_step=_("Write down what each of the three norms is given."),
    )


@borrowed.check(points=1, hidden=True)
def equals_the_three_formulas(answer: Answer, cases: Cases) -> None:
    """With padding in the memory, the output is that of the three formulas."""
    _expect_borrowed(
        answer,
        cases,
        (3, 5, 7),
        masked=True,
        what=_("the output"),
        cause=_("One of the sub-layers, its residual, or its mask is not what it should be."),
        next_step=_("Write down what each of the three norms is given."),
    )


@borrowed.check(points=1, hidden=True)
def source_and_target_of_one_length(answer: Answer, cases: Cases) -> None:
    """With T = S, where query and memory can be mixed up without an error."""
    _expect_borrowed(
        answer,
        cases,
        (2, 5, 5),
        masked=True,
        what=_("the output with T = S"),
        cause=_("The memory asks where the decoder should, or the causal mask went to the memory."),
        next_step=_("In cross-attention the decoder asks: query=x, key=memory, value=memory."),
    )


@borrowed.check(points=0.5, hidden=True)
def hides_the_future_and_the_padding(answer: Answer, cases: Cases) -> None:
    """By gradient: no later input and no padding of the memory has an influence; x stays."""
    B, T, S, D = 2, 5, 4, 8
    layer = answer(D, 2, 12)
    _load(layer, _borrowed_shapes(D, 12), cases)
    memory_mask = torch.ones(B, 1, 1, S, dtype=torch.bool)
    memory_mask[0, ..., -1] = False
    x, memory = cases.normal(B, T, D), cases.normal(B, S, D)
    t = cases.integer(1, T - 1)
    cotangent = torch.zeros(B, T, D)
    cotangent[:, t] = cases.normal(B, D)
    run = layer.run((x, memory, memory_mask), wrt=[0, 1], cotangent=cotangent)
    by_x, by_memory = run.grads["0"], run.grads["1"]
    expect(
        by_x is not None
        and by_memory is not None
        and bool((by_x[:, t + 1 :] == 0).all())
        and bool((by_memory[0, -1] == 0).all())
        and bool((by_x[:, : t + 1].abs().amax(dim=-1) > 0).all())
        and bool((by_memory[1].abs().amax(dim=-1) > 0).all()),
        seen=_("An output depends on what it should not see, or not on what it should."),
        cause=_("One of the two masks is wrong or missing."),
        next_step=_("Print both masks, and where each of them goes."),
    )
    untouched = layer.run((x, memory), echo=True).args
    expect(
        torch.equal(untouched[0], x) and torch.equal(untouched[1], memory),
        seen=_("The input has other values after the call."),
        cause=_("An operation in place: x += …, or a method whose name ends in _."),
        next_step=_("Write x = x + …: that makes a new tensor."),
    )


# --- shift_right ----------------------------------------------------------------------------------

shift = Exercise(
    "shift_right",
    title=_("Shift the targets"),
    difficulty=1,
    minutes=5,
    hints=(
        _("When the decoder has to write the first target, what may it have read?"),
        _("The length stays: what is put in front has to leave at the back."),
        _("A column of start signs, joined along the second axis with all targets but the last."),
    ),
)

SHIFT_STEP = _("For the targets 5 6 7 and the start sign 1, the decoder reads 1 5 6.")


def _expect_shifted(found: Any, targets: Tensor, start_id: int) -> None:
    expected = targets.clone()
    expected[:, 0] = start_id
    for t in range(1, targets.size(1)):
        expected[:, t] = targets[:, t - 1]
    found = expect_tensor(
        found, expected.shape, what=_("what the decoder reads"), dtype=targets.dtype
    )
    expect(
        torch.equal(found, expected),
        seen=_("The decoder would read other tokens than the start sign and the targets before."),
        cause=_("The shift goes the other way, is missing, or drops the wrong token."),
        next_step=SHIFT_STEP,
    )


@shift.check(points=0.5)
def begins_with_the_start_sign(answer: Answer, cases: Cases) -> None:
    """The result has the shape of the targets, and its first column is the start sign."""
    B, T = cases.distinct(2, 3, 8)
    targets, start_id = cases.integers(10, 90, B, T), cases.integer(1, 9)
    found = expect_tensor(answer(targets, start_id), (B, T), what=_("what the decoder reads"))
    expect(
        bool((found[:, 0] == start_id).all()),
        seen=_("The first token of a sequence is not the start sign."),
        cause=_("Something else was put in front, or at the end."),
        next_step=SHIFT_STEP,
    )


@shift.check(points=1)
def then_the_targets_before(answer: Answer, cases: Cases) -> None:
    """Position t holds target t - 1."""
    B, T = cases.distinct(2, 3, 8)
    targets, start_id = cases.integers(10, 90, B, T), cases.integer(1, 9)
    _expect_shifted(answer(targets, start_id), targets, start_id)


@shift.check(points=0.5, hidden=True)
def one_token_and_other_integers(answer: Answer, cases: Cases) -> None:
    """A single target, one sequence, int32 ids, and a start sign of 0."""
    _expect_shifted(answer(cases.integers(10, 90, 3, 1), 4), torch.zeros(3, 1).long() + 4, 4)
    for targets, start_id in (
        (cases.integers(10, 90, 1, 6), 0),
        (cases.integers(10, 90, 4, 3).to(torch.int32), 7),
        (cases.integers(0, 3, 3, 5), 2),
    ):
        _expect_shifted(answer(targets, start_id), targets, start_id)


@shift.check(points=0.5, hidden=True)
def the_targets_stay(answer: Answer, cases: Cases) -> None:
    """The targets are needed for the loss, and are not overwritten."""
    targets = cases.integers(10, 90, 2, 5)
    run = answer.run((targets, 1), echo=True)
    _expect_shifted(run.value, targets, 1)
    expect(
        torch.equal(run.args[0], targets),
        seen=_("The targets have other values after the call."),
        cause=_("The shift is written into the tensor that was given."),
        next_step=_("Make a new tensor, for example with torch.cat."),
    )


# --- teacher_forcing_loss -------------------------------------------------------------------------

forcing = Exercise(
    "teacher_forcing_loss",
    title=_("Teacher forcing"),
    difficulty=2,
    minutes=10,
    hints=(
        _("The logits at position t: which tokens did the model read for them, and which is next?"),
        _(
            "If the loss is a little too small or too large, padding counts, in the sum or in what "
            "it is divided by."
        ),
        _("Shift, call the model once, cross-entropy of its logits with the targets themselves."),
    ),
)

LOSS_STEP = _(
    "For one sequence of two targets and no padding, add the two losses by hand and halve them."
)


class _Model:
    """A model of ours: its logits depend on the source and on what the decoder reads."""

    def __init__(self, cases: Cases, V: int) -> None:
        self.table = cases.normal(V, V)
        self.of_source = cases.normal(V, V, scale=0.5)
        self.calls: list[tuple[Tensor, Tensor]] = []

    def __call__(self, source: Tensor, inputs: Tensor) -> Tensor:
        self.calls.append((source.clone(), inputs.clone()))
        return self.table[inputs] + self.of_source[source].mean(dim=1, keepdim=True)

    def loss(self, source: Tensor, targets: Tensor, start_id: int, padding_id: int) -> Tensor:
        inputs = torch.cat([torch.full_like(targets[:, :1], start_id), targets[:, :-1]], dim=1)
        logits = self.table.double()[inputs]
        logits = logits + self.of_source.double()[source].mean(dim=1, keepdim=True)
        log_p = torch.log_softmax(logits, dim=-1)
        total = torch.zeros((), dtype=torch.float64)
        count = 0
        for b in range(targets.size(0)):
            for t in range(targets.size(1)):
                if targets[b, t] != padding_id:
                    total = total - log_p[b, t, targets[b, t]]
                    count += 1
        return total / count


def _expect_loss(
    answer: Answer,
    cases: Cases,
    *,
    padded: bool,
    padding_id: int | None = None,
    cause: str,
) -> None:
    B, T, S = cases.distinct(3, 3, 8)
    V = 11
    model = _Model(cases, V)
    source, targets = cases.integers(3, V, B, S), cases.integers(3, V, B, T)
    pad = padding_id or 0
    if padding_id is not None:
        targets = torch.where(targets == pad, torch.full_like(targets, 3), targets)
        targets[:, 0] = 0  # an id like any other then
    if padded:
        for b in range(1, B):
            targets[b, T - b % (T - 1) :] = pad
    args = (model, source, targets, 1) if padding_id is None else (model, source, targets, 1, pad)
    found = expect_tensor(answer(*args), (), what=_("the loss"))
    expect_close(
        found,
        model.loss(source, targets, 1, pad),
        atol=LOSS,
        what=_("the loss"),
        cause=cause,
        next_step=LOSS_STEP,
    )


@forcing.check(points=0.5)
def one_call_with_shifted_targets(answer: Answer, cases: Cases) -> None:
    """The model is called once, with the source as it is and the targets shifted."""
    B, T, S = cases.distinct(3, 3, 8)
    model = _Model(cases, 11)
    source, targets = cases.integers(3, 11, B, S), cases.integers(3, 11, B, T)
    answer(model, source, targets, 1)
    expect(
        len(model.calls) == 1,
        seen=_("The model was called {n} times.").format(n=len(model.calls)),
        cause=_("A loop over the tokens: teacher forcing needs all of them at once."),
        next_step=_("Call model(source, shifted) once."),
    )
    seen_source, inputs = model.calls[0]
    _expect_shifted(inputs, targets, 1)
    expect(
        torch.equal(seen_source, source),
        seen=_("The model was given another source."),
        cause=_("The source is shifted, or the two arguments are exchanged."),
        next_step=_("Call model(source, shifted)."),
    )


@forcing.check(points=1)
def is_the_mean_over_all_targets(answer: Answer, cases: Cases) -> None:
    """Without padding, the loss is the mean cross-entropy of all targets."""
    _expect_loss(
        answer,
        cases,
        padded=False,
        cause=_("Logits are compared with other tokens than those that come next, or summed."),
    )


@forcing.check(points=1)
def padding_does_not_count(answer: Answer, cases: Cases) -> None:
    """With padding, the loss is the mean over the targets that count."""
    _expect_loss(
        answer,
        cases,
        padded=True,
        cause=_("Padding is in the sum, or in the number that the sum is divided by."),
    )


@forcing.check(points=0.5, hidden=True)
def padding_of_another_id(answer: Answer, cases: Cases) -> None:
    """The padding's id is the one that was given, and 0 then counts."""
    _expect_loss(
        answer,
        cases,
        padded=True,
        padding_id=2,
        cause=_("A fixed id stands in the code where padding_id belongs."),
    )


@forcing.check(points=0.5, hidden=True)
def large_logits_stay_finite(answer: Answer, cases: Cases) -> None:
    """Logits of several hundred give the right loss."""
    B, T, S, V = 2, 4, 3, 9
    targets, source = cases.integers(3, V, B, T), cases.integers(3, V, B, S)
    loud = _Model(cases, V)
    loud.table = loud.table * 300
    expect_close(
        answer(loud, source, targets, 1),
        loud.loss(source, targets, 1, 0),
        atol=1e-2,  # losses of several hundred, rounded at 3e-5 each
        what=_("the loss of large logits"),
        cause=_("The softmax is taken before the logarithm: it rounds to 0, or overflows."),
        next_step=_("Use the cross_entropy of the embeddings chapter: it takes logits."),
    )


@forcing.check(points=0.5, hidden=True)
def the_loss_trains_the_model(answer: Answer, cases: Cases) -> None:
    """The loss has a gradient: by it the model is to be trained."""
    B, T, S, V = 3, 5, 4, 9
    table, direction = cases.normal(V, V), cases.normal(V)
    targets = cases.integers(3, V, B, T)
    targets[1, -2:] = 0

    def model(source: Tensor, inputs: Tensor) -> Tensor:
        # Numbers for a source, so that there is something to differentiate by.
        return table[inputs] + source.mean(dim=1)[:, None, None] * direction

    source = cases.normal(B, S)
    leaf = source.double().requires_grad_()
    inputs = torch.cat([torch.full_like(targets[:, :1], 1), targets[:, :-1]], dim=1)
    logits = table.double()[inputs] + leaf.mean(dim=1)[:, None, None] * direction.double()
    real = targets != 0
    losses = -torch.log_softmax(logits, dim=-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    (expected,) = torch.autograd.grad(losses[real].mean(), leaf)
    run = answer.run((model, source, targets, 1), wrt=[1])
    expect_tensor(run.value, (), what=_("the loss"))
    found = run.grads["1"]
    if found is None:
        fail(
            seen=_("The loss has no gradient."),
            cause=_(
                "It was cut from the model: detach, item, no_grad, or a new tensor of a number."
            ),
            next_step=_("Return what cross_entropy gives, as it is."),
        )
    expect_close(
        found,
        expected,
        atol=LOSS,
        what=_("the gradient of the loss"),
        cause=_("Part of the loss is cut from the model."),
        next_step=_("Return what cross_entropy gives, as it is."),
    )


# --- Transformer ----------------------------------------------------------------------------------

transformer = Exercise(
    "Transformer",
    title=_("The whole Transformer"),
    difficulty=3,
    minutes=25,
    hints=(
        _("Which of the two inputs meets the output map, and how often does the encoder run?"),
        _(
            "If only padded batches are wrong, look where the source's mask goes: into the "
            "encoder, and into the cross-attention as well."
        ),
        _(
            "encode: embed, add positions, encoder with source_mask. decode: embed, add positions "
            "from offset on, decoder with memory, both masks and the cache, output map. forward: "
            "decode what encode gave."
        ),
    ),
)


def _transformer_shapes(
    V_source: int, V_target: int, D: int, F: int, N: int, *, norm_first: bool = True
) -> Shapes:
    shapes: Shapes = {
        "source_embedding.weight": [V_source, D],
        "target_embedding.weight": [V_target, D],
        "output.weight": [V_target, D],
    }
    for i in range(N):
        at = f"encoder.layers.{i}."
        shapes |= _attention_shapes(D, f"{at}self_attention")
        shapes |= {
            f"{at}feed_forward.up.weight": [F, D],
            f"{at}feed_forward.up.bias": [F],
            f"{at}feed_forward.down.weight": [D, F],
            f"{at}feed_forward.down.bias": [D],
        }
        for j in range(2):
            shapes |= {f"{at}residuals.{j}.norm.weight": [D], f"{at}residuals.{j}.norm.bias": [D]}
    if norm_first:
        shapes |= {"encoder.norm.weight": [D], "encoder.norm.bias": [D]}
    return shapes | _decoder_shapes(D, F, N, norm_first=norm_first, at="decoder.")


@remembered
def _source_mask(source: Tensor, padding_id: int) -> Tensor:
    return (source != padding_id)[:, None, None, :]


@remembered
def _encoded(source: Tensor, state: dict[str, Tensor], H: int, N: int, pad: int) -> Tensor:
    # An encoder layer is a decoder layer without cross-attention and without the causal mask.
    x = _embed(source, state["source_embedding.weight"])
    return _stack(x, None, state, H, N, mask=_source_mask(source, pad), at="encoder.")


@remembered
def _decoded(
    target: Tensor,
    memory: Tensor,
    memory_mask: Mask,
    state: dict[str, Tensor],
    H: int,
    N: int,
    pad: int,
) -> Tensor:
    x = _embed(target, state["target_embedding.weight"])
    mask = _expected_decoder_mask(target, pad)
    x = _stack(x, memory, state, H, N, mask=mask, memory_mask=memory_mask, at="decoder.")
    return x @ state["output.weight"].double().T


@dataclass
class _Built:
    """A learner's Transformer with weights of ours, and a batch for it."""

    module: Answer
    state: dict[str, Tensor]
    source: Tensor
    target: Tensor
    H: int
    N: int
    D: int
    pad: int

    def memory(self) -> Tensor:
        return _encoded(self.source, self.state, self.H, self.N, self.pad)

    def logits(self) -> Tensor:
        mask = _source_mask(self.source, self.pad)
        return _decoded(self.target, self.memory(), mask, self.state, self.H, self.N, self.pad)


@remembered
def _padded_pair(source: Tensor, target: Tensor, pad: int) -> tuple[Tensor, Tensor]:
    source, target = source.clone(), target.clone()
    (B, S), T = source.shape, target.size(1)
    for b in range(1, B):
        source[b, S - 1 - b % (S - 1) :] = pad
        target[b, T - b % (T - 1) :] = pad
    if pad:
        source[0, 0] = target[0, 0] = 0  # an id like any other then
    return source, target


def _build(answer: Answer, cases: Cases, *, padded: bool, pad: int = 0, N: int = 1) -> _Built:
    B, T, S, H, D, F = _sizes(cases)
    V_source, V_target = 13, 17
    keywords = {} if pad == 0 else {"padding_id": pad}
    module = answer(V_source, V_target, D, H, F, N, **keywords)
    state = _load(module, _transformer_shapes(V_source, V_target, D, F, N), cases)
    source, target = cases.integers(4, 13, B, S), cases.integers(4, 17, B, T)
    if padded:
        source, target = _padded_pair(source, target, pad)
    return _Built(module, state, source, target, H, N, D, pad)


WHOLE_CAUSE = _("A step of the data flow is missing, or gets another input.")
WHOLE_STEP = _("Compare with the data flow on this page, line by line, shape by shape.")


@transformer.check(points=0.5)
def gives_logits_of_the_target_vocabulary(answer: Answer, cases: Cases) -> None:
    """encode gives (B, S, D), the call itself logits of shape (B, T, V_target)."""
    built = _build(answer, cases, padded=False)
    (B, S), T = built.source.shape, built.target.size(1)
    expect_tensor(
        built.module.method("encode", built.source), (B, S, built.D), what=_("the memory")
    )
    expect_tensor(built.module(built.source, built.target), (B, T, 17), what=_("the logits"))


@transformer.check(points=1)
def encodes_the_source(answer: Answer, cases: Cases) -> None:
    """encode: embedding, positions, encoder with the source's mask."""
    built = _build(answer, cases, padded=True)
    real = built.source != 0
    found = expect_tensor(
        built.module.method("encode", built.source),
        (*built.source.shape, built.D),
        what=_("the memory"),
    )
    expect_close(
        found[real],  # what stands at padding is hidden from everyone
        built.memory()[real],
        atol=MODEL,
        what=_("the memory at real tokens"),
        cause=_("Positions, the mask, or the right one of two embeddings is missing."),
        next_step=WHOLE_STEP,
    )


@transformer.check(points=1)
def the_whole_equals_the_formula(answer: Answer, cases: Cases) -> None:
    """Without padding, the logits are those of the formulas."""
    built = _build(answer, cases, padded=False, N=2)
    expect_close(
        built.module(built.source, built.target),
        built.logits(),
        atol=MODEL,
        what=_("the logits"),
        cause=WHOLE_CAUSE,
        next_step=WHOLE_STEP,
    )


@transformer.check(points=1, hidden=True)
def padding_of_source_and_target(answer: Answer, cases: Cases) -> None:
    """With padding, of id 0 or another, the logits at real tokens are those of the formulas."""
    for pad in (0, 3):
        built = _build(answer, cases, padded=True, pad=pad)
        real = built.target != pad
        found = expect_tensor(
            built.module(built.source, built.target),
            (*built.target.shape, 17),
            what=_("the logits"),
        )
        expect_close(
            found[real],
            built.logits()[real],
            atol=MODEL,
            what=_("the logits of a padded batch"),
            cause=_("The source's mask does not reach the encoder, or not the cross-attention."),
            next_step=_("source_mask goes into the encoder and into decode."),
        )


@transformer.check(points=1, hidden=True)
def decodes_from_any_memory(answer: Answer, cases: Cases) -> None:
    """decode uses the memory and the mask that it is given, and nothing else of the source."""
    built = _build(answer, cases, padded=False)
    B, S = built.source.shape
    memory, memory_mask = cases.normal(B, S + 1, built.D), cases.mask(B, 1, 1, S + 1)
    for mask in (memory_mask, None):
        expect_close(
            built.module.method("decode", built.target, memory, mask),
            _decoded(built.target, memory, mask, built.state, built.H, built.N, built.pad),
            atol=MODEL,
            what=_("the logits of decode"),
            cause=_("The memory, or its mask, is not handed on as it is."),
            next_step=WHOLE_STEP,
        )


@transformer.check(points=1, hidden=True)
def cached_decoding_is_equal_at_every_step(answer: Answer, cases: Cases) -> None:
    """With a cache, in pieces of any length, decode gives what it gives at once."""
    built = _build(answer, cases, padded=False)
    target = cases.integers(4, 17, built.source.size(0), 6)
    memory = cases.normal(*built.source.shape, built.D)
    expected = _decoded(target, memory, None, built.state, built.H, built.N, built.pad)
    cache = built.module.method("new_cache")
    start = 0
    for length in (3, 1, 1, 1):
        stop = start + length
        run = built.module.run((target[:, start:stop], memory), {"cache": cache}, method="decode")
        expect_close(
            run.value,
            expected[:, start:stop],
            atol=MODEL,
            what=_("the logits of a piece"),
            cause=_("The cache is not handed on, or positions count from 0 in each piece."),
            next_step=_("Add the positions from offset on, and give the decoder the cache."),
        )
        start = stop


@transformer.check(points=0.5, hidden=True)
def the_future_has_no_influence(answer: Answer, cases: Cases) -> None:
    """Other tokens later in the target do not move the logits before them."""
    built = _build(answer, cases, padded=False)
    t = cases.integer(1, built.target.size(1) - 1)
    changed = built.target.clone()
    changed[:, t + 1 :] = 4 + (changed[:, t + 1 :] - 3) % 13
    one = built.module(built.source, built.target)
    other = built.module(built.source, changed)
    expect_tensor(one, (*built.target.shape, 17), what=_("the logits"))
    expect_close(
        other[:, : t + 1],
        one[:, : t + 1].double(),
        atol=LAYER,
        what=_("the logits before a change"),
        cause=_("The causal mask does not reach the decoder: it reads what it should predict."),
        next_step=_("Hand mask to the decoder as its third argument, memory_mask as its fourth."),
    )


@transformer.check(points=0.5, hidden=True)
def every_part_is_trained(answer: Answer, cases: Cases) -> None:
    """The gradient of the logits reaches encoder, decoder and both embeddings."""
    built = _build(answer, cases, padded=False)
    cotangent = cases.normal(*built.target.shape, 17)
    run = built.module.run((built.source, built.target), wrt=["parameters"], cotangent=cotangent)
    expect_tensor(run.value, (*built.target.shape, 17), what=_("the logits"))
    parts = ("source_embedding", "encoder", "target_embedding", "decoder", "output")
    _expect_trained(run.grads, parts)


# --- greedy_decode --------------------------------------------------------------------------------

greedy = Exercise(
    "greedy_decode",
    title=_("The loop that writes"),
    difficulty=3,
    minutes=20,
    hints=(
        _("Of the logits (B, t, V), which row says what comes after the last token?"),
        _(
            "If single sequences are right and batches are not, think of one that ends early: what "
            "is written into it, and does the loop go on for the others?"
        ),
        _(
            "Keep complete, (B,) of False. Loop: argmax of the last logits; padding where "
            "complete; append; complete |= (token == end_id); stop when all are."
        ),
    ),
)

LOOP_STEP = _(
    "Print the ids after each turn of the loop, for a batch of two that end at two times."
)


class _Writer:
    """A model of ours: after the ids so far comes what a table says, for all of them."""

    def __init__(self, cases: Cases, texts: list[list[int]], prompt: int, V: int) -> None:
        self.texts, self.prompt, self.V = texts, prompt, V
        self.noise = cases.normal(len(texts), prompt + 20, V)
        self.calls: list[Tensor] = []

    def __call__(self, ids: Tensor) -> Tensor:
        self.calls.append(ids.clone())
        B, t = ids.shape
        logits = self.noise[:B, :t].clone()  # what the other rows say is no matter
        for b in range(B):
            step = t - self.prompt
            text = self.texts[b]
            # after its end a sequence would go on with anything but padding
            token = text[step] if step < len(text) else 5 + step % 2
            # the most probable, but not by much: what is drawn is often another
            logits[b, -1, token] = logits[b, -1].max() + 0.5
        return logits


def _expect_written(
    answer: Answer,
    cases: Cases,
    texts: list[list[int]],
    *,
    prompt: int = 1,
    max_new: int = 9,
    end_id: int = 2,
    padding_id: int | None = None,
    cause: str,
) -> _Writer:
    writer = _Writer(cases, texts, prompt, 11)
    start = cases.integers(3, 11, len(texts), prompt)
    if prompt > 3:
        start[:, 0] = end_id
    pad = padding_id or 0
    args = (writer, start, end_id, max_new) + (() if padding_id is None else (padding_id,))
    found = answer(*args)
    # A text without an end sign is as long as the limit at least.
    written = [text[: text.index(end_id) + 1] if end_id in text else text for text in texts]
    steps = min(max_new, max(len(text) for text in written))
    expected = torch.full((len(texts), prompt + steps), pad)
    expected[:, :prompt] = start
    for b, text in enumerate(written):
        kept = text[:steps]
        expected[b, prompt : prompt + len(kept)] = torch.tensor(kept, dtype=torch.int64)
    found = expect_tensor(found, expected.shape, what=_("the ids"), dtype=torch.int64)
    expect(
        torch.equal(found, expected),
        seen=_("The ids are not those that the model finds most probable, up to the end sign."),
        cause=cause,
        next_step=LOOP_STEP,
    )
    return writer


@greedy.check(points=1)
def writes_until_the_end_sign(answer: Answer, cases: Cases) -> None:
    """One sequence: the most probable token, again and again, up to the end sign."""
    text = [*cases.integers(3, 11, cases.integer(3, 6)).tolist(), 2]
    _expect_written(
        answer,
        cases,
        [text],
        cause=_("Another row of the logits than the last was taken, or the loop ends elsewhere."),
    )


@greedy.check(points=1)
def the_model_reads_all_so_far(answer: Answer, cases: Cases) -> None:
    """Each call gets the start and all that was written, one token more each time."""
    text = [*cases.integers(3, 11, 4).tolist(), 2]
    writer = _expect_written(
        answer, cases, [text], prompt=3, cause=_("A prompt of three tokens was not continued.")
    )
    lengths = [ids.size(1) for ids in writer.calls]
    expect(
        lengths == [3, 4, 5, 6, 7],
        seen=_("The model was called with {lengths} tokens.").format(lengths=lengths),
        cause=_("Tokens are not appended, or the model is called when all is written."),
        next_step=LOOP_STEP,
    )


@greedy.check(points=1)
def sequences_that_end_early_are_filled_up(answer: Answer, cases: Cases) -> None:
    """A batch: after its end sign a sequence gets padding, while the others go on."""
    lengths = cases.distinct(3, 1, 7)
    texts = [[*cases.integers(3, 11, n).tolist(), 2] for n in lengths]
    _expect_written(
        answer,
        cases,
        texts,
        cause=_("The loop stops at the first end sign, or writes on where a sequence is complete."),
    )


@greedy.check(points=1, hidden=True)
def stops_at_the_limit(answer: Answer, cases: Cases) -> None:
    """At most max_new tokens are added, be a sequence complete or not; 0 adds none."""
    texts = [cases.integers(3, 11, 12).tolist(), [*cases.integers(3, 11, 2).tolist(), 2]]
    for limit in (4, 1, 0):
        writer = _expect_written(
            answer, cases, texts, max_new=limit, cause=_("The limit is counted in another way.")
        )
        expect(
            len(writer.calls) == limit,
            seen=_("The model is called more or less often than tokens are added."),
            cause=_("The limit counts the prompt, or a last call is thrown away."),
            next_step=LOOP_STEP,
        )
    _expect_written(
        answer, cases, texts, prompt=3, max_new=5, cause=_("The limit counts the prompt as well.")
    )


@greedy.check(points=1, hidden=True)
def other_ids_for_end_and_padding(answer: Answer, cases: Cases) -> None:
    """End sign and padding are those that were given; an end sign in the prompt ends nothing."""
    end_id, pad = cases.distinct(2, 7, 10)
    words = [3, 4, 5, 6]
    for prompt in (1, 4):
        texts = [[*words[: 1 + b], end_id] for b in cases.shuffled([0, 1, 2])]
        _expect_written(
            answer,
            cases,
            texts,
            prompt=prompt,
            end_id=end_id,
            padding_id=pad,
            cause=_("A fixed id stands in the code, or the prompt is searched for the end sign."),
        )
    texts = [[3, pad, 4, end_id], [5, end_id], [pad, 6, 3, 4, end_id]]
    _expect_written(
        answer,
        cases,
        texts,
        end_id=end_id,
        padding_id=pad,
        cause=_(
            "A sequence is complete after the end sign alone; the padding's id may be written."
        ),
    )


@greedy.check(points=0.5, hidden=True)
def the_start_stays(answer: Answer, cases: Cases) -> None:
    """What was given as start is not overwritten."""
    writer = _Writer(cases, [[4, 3, 2]], 2, 11)
    start = cases.integers(3, 11, 1, 2)
    run = answer.run((writer, start, 2, 5), echo=True)
    expected = torch.cat([start, torch.tensor([[4, 3, 2]])], dim=1)
    found = expect_tensor(run.value, (1, 5), what=_("the ids"))
    expect(
        torch.equal(found, expected) and torch.equal(run.args[1], start),
        seen=_("The start was overwritten, or the ids are wrong."),
        cause=_("Tokens are written into the tensor that was given."),
        next_step=_("Make a longer tensor with torch.cat."),
    )


# --- next_probabilities ---------------------------------------------------------------------------

probabilities = Exercise(
    "next_probabilities",
    title=_("Temperature, top-k and top-p"),
    difficulty=3,
    minutes=25,
    hints=(
        _("Is the temperature applied before or after the softmax, and the other two?"),
        _(
            "If only top-p is wrong, ask of each token what the more probable ones reach together: "
            "it stays while that is less than p, so the first always stays."
        ),
        _(
            "Sort in descending order. Divide by the temperature; ranks from k on get -inf; "
            "softmax; cumsum minus the token itself >= p gets 0; divide by the sum; scatter back."
        ),
    ),
)

SHARE_STEP = _("Take four tokens of 0.4, 0.3, 0.2, 0.1 and work out what should stay.")


def _expected_probabilities(
    logits: Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    rows = logits.double().reshape(-1, logits.size(-1))
    result = torch.zeros_like(rows)
    for i, row in enumerate(rows):
        order = row.argsort(descending=True).tolist()
        if temperature == 0:
            result[i, order[0]] = 1.0
            continue
        kept = order if top_k is None else order[:top_k]
        powers = {s: math.exp((float(row[s]) - float(row[order[0]])) / temperature) for s in kept}
        total = sum(powers.values())
        share = {s: power / total for s, power in powers.items()}
        if top_p is not None:
            reached, enough = 0.0, []
            for s in kept:
                enough.append(s)
                reached += share[s]
                if reached >= top_p:
                    break
            kept = enough
        total = sum(share[s] for s in kept)
        for s in kept:
            result[i, s] = share[s] / total
    return result.reshape(logits.shape)


def _expect_shares(
    answer: Answer, logits: Tensor, *, what: str, cause: str, **settings: Any
) -> None:
    expect_close(
        answer(logits, **settings),
        _expected_probabilities(logits, **settings),
        atol=SHARES,
        what=what,
        cause=cause,
        next_step=SHARE_STEP,
    )


def _clear_p(logits: Tensor, wanted: float, **settings: Any) -> float:
    """A top_p near ``wanted`` that no running sum comes close to: rounding cannot decide."""
    shares = _expected_probabilities(logits, **settings)
    sums = shares.sort(dim=-1, descending=True).values.cumsum(dim=-1).flatten()
    grid = torch.linspace(max(0.02, wanted - 0.05), min(0.98, wanted + 0.05), 41).double()
    gap = (grid.unsqueeze(1) - sums).abs().amin(dim=1)
    return round(float(grid[int(gap.argmax())]), 6)


@probabilities.check(points=0.5)
def plain_softmax_by_default(answer: Answer, cases: Cases) -> None:
    """Without settings: the softmax of the logits over the last axis, whatever stands before."""
    for shape in ((3, 7), (2, 3, 5), (6,)):
        _expect_shares(
            answer,
            cases.normal(*shape, scale=1.5),
            what=_("the probabilities without settings"),
            cause=_("The softmax runs over another axis, or something is cut without being asked."),
        )


@probabilities.check(points=1)
def temperature_divides_the_logits(answer: Answer, cases: Cases) -> None:
    """A low temperature sharpens, a high one flattens, 0 leaves the most probable token alone."""
    logits = cases.normal(4, 7)
    best = logits.topk(2, dim=-1)
    # A near tie: a small temperature in place of 0 leaves the second a share.
    logits = logits.scatter(-1, best.indices[:, 1:], best.values[:, :1] - 0.003)
    for temperature in (0.5, 2.5, 0.0):
        _expect_shares(
            answer,
            logits,
            temperature=temperature,
            what=_("the probabilities at temperature {t}").format(t=temperature),
            cause=_("Logits are multiplied, probabilities are divided, or 0 is divided by."),
        )


@probabilities.check(points=1)
def top_k_keeps_k_tokens(answer: Answer, cases: Cases) -> None:
    """The k most probable tokens stay, in their places, and share out 1 among themselves."""
    logits = cases.normal(4, 9)
    for k in (1, 3, 9):
        _expect_shares(
            answer,
            logits,
            top_k=k,
            what=_("the probabilities with top_k={k}").format(k=k),
            cause=_("Another number of tokens stays, in other places, or their sum is not 1."),
        )


@probabilities.check(points=1)
def top_p_keeps_what_reaches_p(answer: Answer, cases: Cases) -> None:
    """The fewest of the most probable tokens stay whose sum is at least p."""
    logits = cases.normal(4, 9, scale=1.5)
    for wanted in (0.6, 0.9):
        p = _clear_p(logits, wanted)
        _expect_shares(
            answer,
            logits,
            top_p=p,
            what=_("the probabilities with top_p={p:.2f}").format(p=p),
            cause=_("The token that reaches p is left out, or one too many stays."),
        )


@probabilities.check(points=1, hidden=True)
def one_token_always_stays(answer: Answer, cases: Cases) -> None:
    """Where the first token has more than p already, it stays alone; with p = 1 all stay."""
    logits = cases.normal(4, 8)
    logits[torch.arange(4), cases.integers(0, 8, 4)] += 6.0
    for p in (0.3, 1e-4):
        _expect_shares(
            answer,
            logits,
            top_p=p,
            what=_("the probabilities with a small top_p"),
            cause=_("The first token alone is above p, and was dropped with the others."),
        )
    _expect_shares(
        answer,
        cases.normal(4, 8),
        top_p=1.0,
        what=_("the probabilities with top_p=1"),
        cause=_("With p = 1 every token is needed."),
    )


@probabilities.check(points=1, hidden=True)
def all_three_in_their_order(answer: Answer, cases: Cases) -> None:
    """Temperature first, then top-k, then top-p of what top-k left; and each pair of them."""
    logits = cases.normal(5, 12, scale=1.5)
    # the pair first: a mistake in the three may look like one in the two
    for temperature in (0.6, 2.0):
        p = _clear_p(logits, 0.8, temperature=temperature)
        _expect_shares(
            answer,
            logits,
            temperature=temperature,
            top_p=p,
            what=_("the probabilities with temperature and top_p"),
            cause=_("top-p looks at the probabilities before the temperature."),
        )
    for settings in (
        {"temperature": 0.7, "top_k": 4},
        {"temperature": 1.8, "top_k": 6},
    ):
        p = _clear_p(logits, 0.75, **settings)
        _expect_shares(
            answer,
            logits,
            **settings,
            top_p=p,
            what=_("the probabilities with three settings"),
            cause=_("The three are applied in another order, or top-p ignores what top-k left."),
        )
    _expect_shares(
        answer,
        logits,
        temperature=0.0,
        top_k=3,
        what=_("the probabilities at temperature 0 with top_k"),
        cause=_("Temperature 0 has to work with the other settings as well."),
    )


@probabilities.check(points=0.5, hidden=True)
def edges_and_large_logits(answer: Answer, cases: Cases) -> None:
    """k beyond V keeps all; forbidden tokens of −inf stay at 0; logits of several hundred work."""
    logits = cases.normal(3, 6)
    _expect_shares(
        answer,
        logits,
        top_k=40,
        what=_("the probabilities with top_k > V"),
        cause=_("There are not as many tokens as k asks for."),
    )
    forbidden = logits.clone()
    forbidden[:, 2] = -math.inf
    _expect_shares(
        answer,
        forbidden,
        top_k=4,
        what=_("the probabilities with a forbidden token"),
        cause=_("A logit of −inf has to end as a probability of 0."),
    )
    loud = logits * 200
    loud[1] -= 900
    _expect_shares(
        answer,
        loud,
        temperature=0.5,
        what=_("the probabilities of large logits"),
        cause=_("exp of a large number is infinite: use torch.softmax."),
    )


@probabilities.check(points=0.5, hidden=True)
def the_logits_stay(answer: Answer, cases: Cases) -> None:
    """The logits are not overwritten, and the sums of the rows are 1."""
    logits = cases.normal(4, 9)
    p = _clear_p(logits, 0.7, temperature=0.8, top_k=6)
    run = answer.run((logits,), {"temperature": 0.8, "top_k": 6, "top_p": p}, echo=True)
    found = expect_tensor(run.value, (4, 9), what=_("the probabilities"))
    expect_close(
        found.double().sum(dim=-1),
        torch.ones(4, dtype=torch.float64),
        atol=SHARES,
        what=_("the sum of each row"),
        cause=_("What stays is not divided by its sum."),
        next_step=SHARE_STEP,
    )
    for settings in ({"temperature": 0.8, "top_k": 6, "top_p": p}, {"top_k": 3}, {"top_p": p}):
        run = answer.run((logits,), settings, echo=True)
        expect(
            torch.equal(run.args[0], logits),
            seen=_("The logits have other values after the call."),
            cause=_(
                "An operation in place: /=, logits[...] = …, or a method whose name ends in _."
            ),
            next_step=_("Work on a new tensor, for example with masked_fill."),
        )


# --- sample_next ----------------------------------------------------------------------------------

sampling = Exercise(
    "sample_next",
    title=_("Draw the next token"),
    difficulty=1,
    minutes=8,
    hints=(
        _("What is drawn from: the logits, or the probabilities that you just computed?"),
        _("If the shape is (B, 1), an axis is left over from the draw."),
        _("torch.multinomial of next_probabilities(…), one sample for each row; drop that axis."),
    ),
)

DRAWS = 4000


def _drawn(answer: Answer, cases: Cases, row: Tensor, **settings: Any) -> Tensor:
    logits = row.expand(DRAWS, row.size(0)).clone()
    found = answer.run((logits,), settings, seed=cases.seed()).value
    found = expect_tensor(found, (DRAWS,), what=_("the tokens"), dtype=torch.int64)
    expect(
        bool((found >= 0).all() and (found < row.size(0)).all()),
        seen=_("There are tokens outside the vocabulary."),
        cause=_("A rank, or a position among the kept tokens, is returned in place of an id."),
        next_step=_("Draw from probabilities in the order of the vocabulary."),
    )
    return torch.bincount(found, minlength=row.size(0)).double() / DRAWS


def _expect_frequencies(
    answer: Answer, cases: Cases, row: Tensor, cause: str, **settings: Any
) -> None:
    shares = _drawn(answer, cases, row, **settings)
    expected = _expected_probabilities(row, **settings)
    # Five standard deviations √(p(1-p)/n): a right answer is outside once in a million draws.
    spread = 5 * torch.sqrt(expected * (1 - expected) / DRAWS)
    expect(
        bool(((shares - expected).abs() <= spread + 1e-9).all()),
        seen=_("Over many draws, tokens do not come as often as their probabilities say."),
        cause=cause,
        next_step=_("Draw 10,000 times from logits of three tokens, and count."),
    )


@sampling.check(points=0.5)
def one_token_for_each_sequence(answer: Answer, cases: Cases) -> None:
    """The result has shape (B,), int64; what can only be one token is that token."""
    B, V = cases.distinct(2, 3, 9)
    logits = cases.normal(B, V)
    wanted = cases.integers(0, V, B)
    wanted[-1] = (wanted[0] + 1) % V  # no row may stand for all
    logits[torch.arange(B), wanted] = 60.0
    found = expect_tensor(answer(logits), (B,), what=_("the tokens"), dtype=torch.int64)
    expect(
        torch.equal(found, wanted),
        seen=_("A token of probability 1 was not drawn."),
        cause=_("Something other than the probabilities is drawn from."),
        next_step=_("Draw from next_probabilities(logits, …)."),
    )
    expect_tensor(
        answer(logits[:1]), (1,), what=_("the token of a single sequence"), dtype=torch.int64
    )


@sampling.check(points=1)
def as_often_as_the_probabilities_say(answer: Answer, cases: Cases) -> None:
    """Over many draws, tokens come as often as the softmax says."""
    row = cases.normal(6, scale=0.8)
    # A draw that falls back on token 0 looks right where that is the likeliest: make it the least.
    row[[0, int(row.argmin())]] = row[[int(row.argmin()), 0]]
    _expect_frequencies(
        answer,
        cases,
        row,
        _("The draw is uniform, always the same, or from something other than the softmax."),
    )


@sampling.check(points=1, hidden=True)
def settings_are_handed_on(answer: Answer, cases: Cases) -> None:
    """temperature, top_k and top_p change the draw as they should; so does temperature 0."""
    row = cases.normal(8, scale=0.5)  # flat: no token has the 0.6 to itself
    cause = _("A setting is not handed on, or handed on in another's place.")
    _expect_frequencies(answer, cases, row, cause, temperature=2.5)
    _expect_frequencies(answer, cases, row, cause, temperature=0.5)
    _expect_frequencies(answer, cases, row, cause, temperature=0.0)
    _expect_frequencies(answer, cases, row, cause, top_p=_clear_p(row.unsqueeze(0), 0.6))
    _expect_frequencies(answer, cases, row, cause, top_k=3)
    # Many tokens, nearly alike: what is cut without being asked is missed.
    _expect_frequencies(answer, cases, cases.normal(80, scale=0.2), cause)


@sampling.check(points=0.5, hidden=True)
def each_sequence_draws_for_itself(answer: Answer, cases: Cases) -> None:
    """Sequences with the same logits get different tokens; another seed gives other tokens."""
    logits = torch.zeros(64, 50)
    one = answer.run((logits,), seed=1).value
    other = answer.run((logits,), seed=2).value
    again = answer.run((logits,), seed=1).value
    for found in (one, other, again):
        expect_tensor(found, (64,), what=_("the tokens"))
    expect(
        len(set(one.tolist())) > 20 and not torch.equal(one, other),
        seen=_("Many sequences got the same token, or another seed changed nothing."),
        cause=_("One draw is used for all, or the seed is fixed inside."),
        next_step=_("torch.multinomial draws for every row of a matrix."),
    )
    expect(
        torch.equal(one, again),
        seen=_("The same seed of torch gave other tokens."),
        cause=_("The draw uses another source of chance than torch's generator."),
        next_step=_("Use torch.multinomial."),
    )


# --- LanguageModel --------------------------------------------------------------------------------

language = Exercise(
    "LanguageModel",
    title=_("The decoder-only model"),
    difficulty=3,
    minutes=20,
    hints=(
        _("Which of the Transformer's parts are left if there is no source?"),
        _(
            "If it predicts too well, the mask is missing. If only pieces with a cache are wrong, "
            "their positions or their mask count from 0 again."
        ),
        _(
            "offset = length of the first layer's cache, or 0. mask = causal_mask(T, offset + T), "
            "or decoder_mask where there is padding. Embed, positions from offset on, decoder, "
            "output map."
        ),
    ),
)


def _language_shapes(V: int, D: int, F: int, N: int, *, norm_first: bool = True) -> Shapes:
    shapes: Shapes = {"embedding.weight": [V, D], "output.weight": [V, D]}
    return shapes | _decoder_shapes(D, F, N, cross=False, norm_first=norm_first, at="decoder.")


@remembered
def _language_logits(
    ids: Tensor,
    state: dict[str, Tensor],
    H: int,
    N: int,
    *,
    padding_id: int | None = None,
    norm_first: bool = True,
    activation: str = "relu",
) -> Tensor:
    T = ids.size(1)
    mask = _causal(T, T) if padding_id is None else _expected_decoder_mask(ids, padding_id)
    x = _stack(
        _embed(ids, state["embedding.weight"]),
        None,
        state,
        H,
        N,
        mask=mask,
        norm_first=norm_first,
        activation=activation,
        at="decoder.",
    )
    return x @ state["output.weight"].double().T


@language.check(points=0.5)
def has_no_encoder_and_no_cross_attention(answer: Answer, cases: Cases) -> None:
    """The parameters: an embedding, a decoder without cross-attention, an output map."""
    _B, _T, _S, H, D, F = _sizes(cases)
    for norm_first, N in ((True, 2), (False, 1)):
        expect_parameters(
            answer(13, D, H, F, N, norm_first=norm_first),
            _language_shapes(13, D, F, N, norm_first=norm_first),
        )


@language.check(points=1)
def logits_equal_the_formula(answer: Answer, cases: Cases) -> None:
    """The logits are those of the formulas, for two kinds of layers."""
    B, T, _S, H, D, F = _sizes(cases)
    for norm_first, activation in ((True, "relu"), (False, "gelu")):
        module = answer(13, D, H, F, 2, norm_first=norm_first, activation=activation)
        state = _load(module, _language_shapes(13, D, F, 2, norm_first=norm_first), cases)
        ids = cases.integers(0, 13, B, T)
        expect_close(
            module(ids),
            _language_logits(ids, state, H, 2, norm_first=norm_first, activation=activation),
            atol=2e-3,  # the tanh form of GELU is off by 5e-4 in each of two layers
            what=_("the logits"),
            cause=_("Positions, the mask, the scale √D or a setting is missing."),
            next_step=WHOLE_STEP,
        )


@language.check(points=1)
def later_tokens_have_no_influence(answer: Answer, cases: Cases) -> None:
    """Other tokens later on do not move the logits before them; those after them move."""
    B, T, _S, H, D, F = _sizes(cases)
    module = answer(13, D, H, F, 1)
    _load(module, _language_shapes(13, D, F, 1), cases)
    ids = cases.integers(0, 13, B, T)
    t = cases.integer(1, T - 1)
    changed = ids.clone()
    changed[:, t + 1 :] = (changed[:, t + 1 :] + 5) % 13
    one, other = module(ids), module(changed)
    expect_tensor(one, (B, T, 13), what=_("the logits"))
    expect_close(
        other[:, : t + 1],
        one[:, : t + 1].double(),
        atol=LAYER,
        what=_("the logits before a change"),
        cause=_("The causal mask is missing, or too wide: the model reads what it should predict."),
        next_step=_("Hand the mask to the decoder as mask=mask."),
    )
    expect(
        not torch.allclose(other[:, t + 1 :], one[:, t + 1 :], atol=1e-3),
        seen=_("Other tokens give the same logits."),
        cause=_("The tokens are not read, or each output sees the past alone and not itself."),
        next_step=WHOLE_STEP,
    )


@remembered
def _without_fours(ids: Tensor) -> Tensor:
    return torch.where(ids == 4, torch.full_like(ids, 5), ids)


@language.check(points=1, hidden=True)
def pieces_with_a_cache_give_the_same_logits(answer: Answer, cases: Cases) -> None:
    """With a cache, in pieces of any length, the logits are those of the whole."""
    B, _T, _S, H, D, F = _sizes(cases)
    module = answer(13, D, H, F, 2)
    state = _load(module, _language_shapes(13, D, F, 2), cases)
    ids = cases.integers(0, 13, B, 7)
    expected = _language_logits(ids, state, H, 2)
    cache = module.method("new_cache")
    start = 0
    for length in (3, 1, 1, 2):
        stop = start + length
        expect_close(
            module(ids[:, start:stop], cache=cache),
            expected[:, start:stop],
            atol=MODEL,
            what=_("the logits of a piece"),
            cause=_("The cache, the mask's second size, or the offset of the positions is wrong."),
            next_step=_(
                "For a piece of T tokens after n: positions from n on, mask of (T, n + T)."
            ),
        )
        start = stop
    padded = answer(13, D, H, F, 2, padding_id=4)
    padded.load(state, strict=False)
    padded.eval()
    real = _without_fours(ids)
    cache = padded.method("new_cache")
    for start, stop in ((0, 3), (3, 7)):
        expect_close(
            padded(real[:, start:stop], cache=cache),
            _language_logits(real, state, H, 2)[:, start:stop],
            atol=MODEL,
            what=_("the logits of a piece, in a model with a padding id"),
            cause=_("With a cache the mask of the padding is used, which knows no cached keys."),
            next_step=_("With a cache there is no padding: use causal_mask(T, offset + T)."),
        )
    start, cache = 0, module.method("new_cache")
    for length in (2, 1):  # a second text, with a cache of its own
        stop = start + length
        expect_close(
            module(ids[:, start:stop], cache=cache),
            expected[:, start:stop],
            atol=MODEL,
            what=_("the logits of a second text"),
            cause=_("The model remembers the first text: its length is kept outside the cache."),
            next_step=_("Ask the cache for its length, each time."),
        )
        start = stop


@remembered
def _with_zero(ids: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(ids[:, :1]), ids[:, 1:]], dim=1)


@remembered
def _one_end_hidden(ids: Tensor, padding_id: int, *, left: bool) -> Tensor:
    ids = ids.clone()
    B, T = ids.shape
    ids[:, 2] = 9 if padding_id == 0 else 0
    for b in range(1, B):
        n = 1 + b % (T - 2)
        ids[b, slice(None, n) if left else slice(T - n, None)] = padding_id
    return ids


@language.check(points=1, hidden=True)
def padding_is_hidden_where_there_is_one(answer: Answer, cases: Cases) -> None:
    """With padding_id, padding at either end is hidden; without, 0 is a token like any other."""
    B, T, _S, H, D, F = _sizes(cases)
    for padding_id, left in ((4, False), (4, True), (0, True)):
        module = answer(13, D, H, F, 1, padding_id=padding_id)
        state = _load(module, _language_shapes(13, D, F, 1), cases)
        ids = _one_end_hidden(cases.integers(5, 13, B, T), padding_id, left=left)
        real = ids != padding_id
        found = expect_tensor(module(ids), (B, T, 13), what=_("the logits"))
        expect_close(
            found[real],
            _language_logits(ids, state, H, 1, padding_id=padding_id)[real],
            atol=MODEL,
            what=_("the logits of a padded batch"),
            cause=_("padding_id does not reach the mask, or is compared with a fixed number."),
            next_step=_("Use decoder_mask(ids, self.padding_id) where padding_id is not None."),
        )
    module = answer(13, D, H, F, 1)
    state = _load(module, _language_shapes(13, D, F, 1), cases)
    ids = _with_zero(cases.integers(5, 13, B, T))
    expect_close(
        module(ids),
        _language_logits(ids, state, H, 1),
        atol=MODEL,
        what=_("the logits of a model without a padding id"),
        cause=_("A token is hidden as padding where there is none."),
        next_step=_("Use decoder_mask where padding_id is not None, and causal_mask else."),
    )


@language.check(points=0.5, hidden=True)
def the_model_is_trained(answer: Answer, cases: Cases) -> None:
    """The gradient of the logits reaches embedding, decoder and output map."""
    B, T, _S, H, D, F = _sizes(cases)
    module = answer(13, D, H, F, 1)
    _load(module, _language_shapes(13, D, F, 1), cases)
    ids, cotangent = cases.integers(0, 13, B, T), cases.normal(B, T, 13)
    run = module.run((ids,), wrt=["parameters"], cotangent=cotangent)
    expect_tensor(run.value, (B, T, 13), what=_("the logits"))
    _expect_trained(run.grads, ("embedding", "decoder", "output"))


@language.check(points=0.5, hidden=True)
def settings_reach_the_parts(answer: Answer, cases: Cases) -> None:
    """dropout and max_length reach the parts that they are meant for."""
    D, H, F = 8, 2, 12
    module = answer(13, D, H, F, 1, dropout=1.0, max_length=6)
    _load(module, _language_shapes(13, D, F, 1), cases)
    ids = cases.integers(0, 13, 2, 6)
    module.train()
    found = expect_tensor(module(ids), (2, 6, 13), what=_("the logits"))
    expect_close(
        found - found[:1, :1],
        torch.zeros(2, 6, 13, dtype=torch.float64),
        atol=MOVED,
        what=_("the difference between positions, where everything is dropped"),
        cause=_("dropout does not reach the positions, or not the decoder."),
        next_step=_("Hand dropout to SinusoidalPositions and to Decoder."),
    )
    module.eval()
    long = answer(13, D, H, F, 1, max_length=700)
    long.eval()
    expect_tensor(
        long(cases.integers(0, 13, 1, 600)), (1, 600, 13), what=_("the logits of 600 tokens")
    )
