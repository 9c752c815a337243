"""Answer bank of chapter ``flash_attention``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from autograder.bank import right, right_edit, wrong, wrong_edit
from autograder.i18n import _
from solutions.flash_attention import (  # noqa: F401 — what answers may use
    flash_backward,
    flash_forward,
    tl,
    triton,
)

# --- attention_traffic -----------------------------------------------------------------------


def _traffic(name: str, edits: dict[str, str], why: str, *, rung: int = 2) -> None:
    wrong_edit("attention_traffic", name, edits, why=why, see="flash-traffic", rung=rung)


_traffic(
    "half_of_the_work",
    {"2 * T * S * d + 2 * T * S * d": "2 * T * S * d"},
    _(
        "Only half of the FLOPs are counted: one of the two products is missing, or the additions "
        "of both are."
    ),
    rung=1,
)
_traffic(
    "half_of_the_matrix_traffic",
    {"4 * T * S": "2 * T * S"},
    _(
        "The T × S numbers cross to the main memory and back twice: the scores are written and "
        "read, and so are the weights. Not all of these four journeys are counted."
    ),
)
wrong_edit(
    "attention_traffic",
    "three_quarters_of_the_matrix_traffic",
    {"4 * T * S": "3 * T * S"},
    why=_("One of the four journeys of the T × S numbers is missing."),
    see="flash-traffic",
    rung=2,
    form_of="half_of_the_matrix_traffic",
)
_traffic(
    "numbers_taken_for_bytes",
    {"(inputs_and_output + matrix) * item_bytes": "inputs_and_output + matrix"},
    _("Numbers are counted where bytes are asked for: each number takes item_bytes bytes."),
    rung=3,
)
_traffic(
    "always_two_bytes",
    {"(inputs_and_output + matrix) * item_bytes": "(inputs_and_output + matrix) * 2"},
    _("The size of a number is fixed at two bytes, and item_bytes is not used."),
    rung=3,
)
_traffic(
    "fused_is_ignored",
    {"0 if fused else 4 * T * S": "4 * T * S"},
    _("The fused form is counted like the unfused one: its scores never leave the fast memory."),
)
_traffic(
    "fused_the_wrong_way_round",
    {"0 if fused else 4 * T * S": "4 * T * S if fused else 0"},
    _("Fused and unfused are exchanged: it is the fused form that has no T × S traffic."),
)
_traffic(
    "values_are_forgotten",
    {"(T + 2 * S) * d + T * d": "(T + S) * d + T * d"},
    _("Keys and values are read, both of S rows; one of the two is missing."),
)
_traffic(
    "output_is_forgotten",
    {"(T + 2 * S) * d + T * d": "(T + 2 * S) * d"},
    _("What is written counts as traffic too: the output's T rows are missing."),
)
_traffic(
    "an_output_for_each_key",
    {"(T + 2 * S) * d + T * d": "(T + 2 * S) * d + S * d"},
    _("The output has a row for each of the T queries, and none for a key."),
)
_traffic(
    "as_many_keys_as_queries",
    {"4 * T * S": "4 * T * T"},
    _("The matrix has T rows and S columns; it is square only where T and S are equal."),
)
_traffic(
    "keys_read_for_every_query",
    {"(T + 2 * S) * d + T * d": "(T + 2 * T * S) * d + T * d"},
    _(
        "Keys and values are counted once per query. That is how often they are used; they are "
        "read from main memory once."
    ),
)
_traffic(
    "fused_does_less_work",
    {"return flops, (": "return flops // (2 if fused else 1), ("},
    _("Fusing saves traffic, not work: both products are computed in either form."),
)
_traffic(
    "bytes_before_flops",
    {
        "return flops, (inputs_and_output + matrix) * item_bytes": (
            "return (inputs_and_output + matrix) * item_bytes, flops"
        )
    },
    _("The two results stand in the wrong order: FLOPs first, then bytes."),
    rung=3,
)


@right("attention_traffic", style="a table of steps")
def from_a_table(
    T: int, S: int, d: int, *, fused: bool = False, item_bytes: int = 2
) -> tuple[int, int]:
    steps = [
        ([(T, d), (S, d)], [(T, S)]),
        ([(T, S)], [(T, S)]),
        ([(T, S), (S, d)], [(T, d)]),
    ]
    if fused:
        steps = [([(T, d), (S, d), (S, d)], [(T, d)])]
    moved = sum(rows * columns for reads, writes in steps for rows, columns in reads + writes)
    return 4 * T * S * d, moved * item_bytes


@right("attention_traffic", style="floating-point numbers")
def in_floats(
    T: int, S: int, d: int, *, fused: bool = False, item_bytes: int = 2
) -> tuple[float, float]:
    numbers = 2.0 * d * (T + S)
    if not fused:
        numbers = numbers + 4.0 * T * S
    return 4.0 * T * S * d, numbers * item_bytes


@right("attention_traffic", style="tensors without memory")
def from_shapes(
    T: int, S: int, d: int, *, fused: bool = False, item_bytes: int = 2
) -> tuple[int, int]:
    q, k = torch.empty(T, d, device="meta"), torch.empty(S, d, device="meta")
    scores = q @ k.T
    moved = q.numel() + 2 * k.numel() + (scores @ k).numel()
    if not fused:
        moved += 4 * scores.numel()
    return 2 * 2 * scores.numel() * d, moved * item_bytes


# --- online_softmax --------------------------------------------------------------------------


def _online(name: str, edits: dict[str, str], why: str, *, rung: int = 2) -> None:
    wrong_edit("online_softmax", name, edits, why=why, see="flash-online-softmax", rung=rung)


_online(
    "sum_not_rescaled",
    {"total * math.exp(m - m_new)": "total"},
    _(
        "When a larger score arrives, the exponentials summed so far still belong to the old "
        "maximum: the sum must be multiplied by exp(old − new)."
    ),
)
_online(
    "rescaled_by_the_inverse",
    {"math.exp(m - m_new)": "(math.exp(m_new - m) if m > -math.inf else 0.0)"},
    _(
        "The factor is upside down. A larger maximum makes earlier exponentials smaller, so it is "
        "exp(old − new), at most 1."
    ),
)
_online(
    "maximum_starts_at_zero",
    {"m, total = -math.inf, 0.0": "m, total = 0.0, 0.0"},
    _(
        "The maximum starts at 0, so it is 0 for a stream of negative scores, and their "
        "exponentials are taken against a score that never came."
    ),
    rung=3,
)
_online(
    "factor_falls_on_the_new_score_too",
    {
        "total * math.exp(m - m_new) + math.exp(score - m_new)": (
            "(total + math.exp(score - m_new)) * math.exp(m - m_new)"
        )
    },
    _(
        "The new score's exponential is multiplied by the factor as well. It is taken against the "
        "new maximum already: only what was summed before is rescaled."
    ),
)
_online(
    "exponential_upside_down",
    {"math.exp(score - m_new)": "math.exp(m_new - score)"},
    _(
        "A score adds exp(maximum − score), which is the more the lower it is. It adds "
        "exp(score − maximum), at most 1."
    ),
)
_online(
    "infinity_minus_infinity",
    {"if score == -math.inf:\n            continue": "if False:\n            continue"},
    _(
        "As long as the maximum is −∞, a score of −∞ gives −∞ − (−∞), which is NaN, and stays "
        "there. Such a score adds nothing and can be passed over."
    ),
)
_online(
    "first_score_counted_twice",
    {"m = m_new": "total, m = total + (1.0 if m == -math.inf else 0.0), m_new"},
    _(
        "The first score enters the sum twice: once by what it is initialised with, once in the "
        "loop."
    ),
    rung=3,
)
_online(
    "returns_the_logsumexp",
    {"return m, total": "return m, (m + math.log(total) if total else -math.inf)"},
    _("The second result is the logsumexp; asked for is the sum of exp(score − maximum) itself."),
    rung=3,
)
_online(
    "maximum_added_back",
    {"return m, total": "return m, total * math.exp(min(m, 700.0))"},
    _(
        "The sum is multiplied by exp(maximum) in the end: then it is the sum of exp(score), which "
        "overflows for the scores that the maximum was to protect from."
    ),
    rung=3,
)


@wrong(
    "online_softmax",
    why=_(
        "Exponentials are summed without a maximum, which overflows for large scores and vanishes "
        "for very negative ones."
    ),
    see="flash-online-softmax",
)
def no_maximum_subtracted(stream: Iterable[float]) -> tuple[float, float]:
    m, total = -math.inf, 0.0
    for score in stream:
        m = max(m, score)
        total += math.exp(score)
    return m, total / math.exp(m) if m > -math.inf else 0.0


@wrong(
    "online_softmax",
    why=_(
        "All scores are kept, and then there are two passes over the copy. A stream may be longer "
        "than the memory: two numbers must do."
    ),
    see="flash-online-softmax",
)
def scores_are_kept(stream: Iterable[float]) -> tuple[float, float]:
    scores = list(stream)
    m = max(scores, default=-math.inf)
    return m, 0.0 if m == -math.inf else sum(math.exp(score - m) for score in scores)


@wrong(
    "online_softmax",
    why=_("The stream is gone through twice, once for the maximum and once for the sum."),
    see="flash-online-softmax",
)
def two_passes(stream: Iterable[float]) -> tuple[float, float]:
    m = max(stream, default=-math.inf)
    total = 0.0
    for score in stream:
        if score > -math.inf:
            total += math.exp(score - m)
    return m, total


@wrong(
    "online_softmax",
    why=_(
        "Scores that do not raise the maximum are passed over. They add their exponentials all "
        "the same."
    ),
    see="flash-online-softmax",
    rung=3,
)
def only_new_maxima_count(stream: Iterable[float]) -> tuple[float, float]:
    m, total = -math.inf, 0.0
    for score in stream:
        if score > m:
            total = total * math.exp(m - score) + 1.0
            m = score
    return m, total


@wrong(
    "online_softmax",
    why=_(
        "The last score is taken for the maximum: the result depends on the order of the stream."
    ),
    see="flash-online-softmax",
)
def against_the_last_score(stream: Iterable[float]) -> tuple[float, float]:
    m, total = -math.inf, 0.0
    for score in stream:
        if score == -math.inf:
            continue
        total = total * math.exp(min(m - score, 700.0)) + 1.0
        m = score
    return m, total


@wrong(
    "online_softmax",
    why=_("Scores equal to the maximum are counted once, however often they come."),
    see="flash-online-softmax",
)
def ties_are_dropped(stream: Iterable[float]) -> tuple[float, float]:
    m, total = -math.inf, 0.0
    for score in stream:
        if score > m:
            total = total * math.exp(m - score) + 1.0
            m = score
        elif score < m:
            total += math.exp(score - m)
    return m, total


@right("online_softmax", style="a branch for each case")
def with_branches(stream: Iterable[float]) -> tuple[float, float]:
    m, total = float("-inf"), 0.0
    for score in stream:
        if score > m:
            total = total * math.exp(m - score) + 1.0
            m = float(score)
        elif score > float("-inf"):
            total += math.exp(score - m)
    return m, total


@right("online_softmax", style="one-element tensors in float64")
def with_tensors(stream: Iterable[float]) -> tuple[Tensor, Tensor]:
    m = torch.tensor(-math.inf, dtype=torch.float64)
    logsumexp = torch.tensor(-math.inf, dtype=torch.float64)
    for score in stream:
        x = torch.tensor(float(score), dtype=torch.float64)
        m = torch.maximum(m, x)
        logsumexp = torch.logaddexp(logsumexp, x)
    if m == -math.inf:
        return m, torch.zeros((), dtype=torch.float64)
    return m, torch.exp(logsumexp - m)


@right("online_softmax", style="pairs joined by a rule that does not mind the order")
def with_reduce(stream: Iterable[float]) -> tuple[float, float]:
    from functools import reduce

    def join(one: tuple[float, float], two: tuple[float, float]) -> tuple[float, float]:
        m = max(one[0], two[0])
        if m == -math.inf:
            return m, 0.0
        return m, one[1] * math.exp(one[0] - m) + two[1] * math.exp(two[0] - m)

    return reduce(join, ((score, 1.0) for score in stream), (-math.inf, 0.0))


# --- attend_in_blocks ------------------------------------------------------------------------


def _blocks(name: str, edits: dict[str, str], why: str, *, rung: int = 2) -> None:
    wrong_edit("attend_in_blocks", name, edits, why=why, see="flash-blocks", rung=rung)


_blocks(
    "accumulator_not_rescaled",
    {"accumulator * factor": "accumulator"},
    _(
        "The accumulator is a sum of exponentials times values, so it belongs to the old maximum "
        "as the sum does, and needs the same factor."
    ),
    rung=1,
)
_blocks(
    "sum_not_rescaled",
    {"total * factor": "total"},
    _("The accumulator is rescaled and the sum is not, so numerator and denominator part."),
    rung=1,
)
_blocks(
    "weights_against_the_blocks_maximum",
    {"p = torch.exp(scores - m_new)": "p = torch.exp(scores - scores.max())"},
    _(
        "The exponentials of a block are taken against its own maximum, while what was summed "
        "before belongs to the running one: two blocks are added in different units."
    ),
)
_blocks(
    "only_full_blocks",
    {"range(0, k.shape[0], block)": "range(0, k.shape[0] // block * block, block)"},
    _("The number of blocks is rounded down: keys behind the last full block take no part."),
)
_blocks(
    "no_scale",
    {"scale = 1 / math.sqrt(q.shape[-1])": "scale = 1.0"},
    _("The scores are not divided by √d."),
    rung=3,
)
_blocks(
    "always_in_float32",
    {
        "    scale = 1 / math.sqrt(q.shape[-1])": (
            "    dtype, q, k, v = q.dtype, q.float(), k.float(), v.float()\n"
            "    scale = 1 / math.sqrt(q.shape[-1])"
        ),
        "return accumulator / total, m + torch.log(total)": (
            "return (accumulator / total).to(dtype), (m + torch.log(total)).to(dtype)"
        ),
    },
    _(
        "float64 inputs are computed in float32, and what is converted back in the end has its "
        "seven digits only."
    ),
    rung=3,
)
_blocks(
    "scaled_by_d",
    {"1 / math.sqrt(q.shape[-1])": "1 / q.shape[-1]"},
    _("The scores are divided by d, where the definition has √d."),
    rung=3,
)
_blocks(
    "scaled_by_the_block",
    {"1 / math.sqrt(q.shape[-1])": "1 / math.sqrt(block)"},
    _("The scale is made of the block's length; it is the width d of queries and keys."),
    rung=3,
)
_blocks(
    "normalised_in_every_block",
    {"        m = m_new": "        m = m_new\n        accumulator = accumulator / total"},
    _(
        "The accumulator is divided by the sum after every block, and then what is divided already "
        "is divided again. Divide once, in the end."
    ),
)
_blocks(
    "output_not_divided",
    {"accumulator / total": "accumulator"},
    _("The accumulator holds unnormalised weights times values; it is never divided by their sum."),
    rung=3,
)
_blocks(
    "maximum_starts_at_zero",
    {"q.new_tensor(-math.inf)": "q.new_tensor(0.0)"},
    _(
        "The maximum starts at 0. Where all scores are far below, every exponential vanishes, and "
        "0 is divided by 0."
    ),
    rung=3,
)
_blocks(
    "logsumexp_in_base_two",
    {"m + torch.log(total)": "m / math.log(2) + torch.log2(total)"},
    _("The logsumexp is in base 2; the chapter's is natural."),
    rung=3,
)
_blocks(
    "logsumexp_without_the_maximum",
    {"m + torch.log(total)": "torch.log(total)"},
    _("The logarithm of the sum belongs to exp(score − m): the maximum must be added back."),
    rung=3,
)
_blocks(
    "sum_instead_of_logsumexp",
    {"m + torch.log(total)": "total"},
    _("The sum is returned itself, which means nothing without its maximum."),
    rung=3,
)
_blocks(
    "only_the_first_block",
    {"        m = m_new": "        m = m_new\n        break"},
    _("The loop ends after the first block."),
)
_blocks(
    "sum_alone_in_base_two",
    {"m + torch.log(total)": "m + torch.log2(total)"},
    _("The sum's logarithm is taken in base 2, and m is natural: the two do not add up."),
    rung=3,
)
_blocks(
    "divided_in_every_block",
    {
        "accumulator * factor + p @ v[start : start + block]": (
            "(accumulator * factor + p @ v[start : start + block]) / total"
        ),
        "accumulator / total": "accumulator",
    },
    _(
        "The sum is divided by the total after each block, and what was divided is divided again "
        "with the next. Divide once, at the end."
    ),
    rung=3,
)
_blocks(
    "all_scores_at_once",
    {
        "k[start : start + block] @ q * scale": "(k @ q * scale)[start : start + block]",
    },
    _(
        "For all keys at once something is computed, their scores or the keys scaled, and then cut "
        "into blocks. The result is right, but the tensor of length S was to be avoided."
    ),
    rung=3,
)


@wrong(
    "attend_in_blocks",
    why=_(
        "Each block is attended to by itself and the outputs are averaged. A block's share of the "
        "attention is its sum of exponentials, and that differs from block to block."
    ),
    see="flash-blocks",
    rung=1,
)
def blocks_are_averaged(q: Tensor, k: Tensor, v: Tensor, *, block: int) -> tuple[Tensor, Tensor]:
    outputs, sums = [], []
    for start in range(0, k.shape[0], block):
        scores = k[start : start + block] @ q / math.sqrt(q.shape[0])
        outputs.append(torch.softmax(scores, dim=0) @ v[start : start + block])
        sums.append(torch.logsumexp(scores, dim=0))
    return torch.stack(outputs).mean(0), torch.logsumexp(torch.stack(sums), dim=0)


@wrong(
    "attend_in_blocks",
    why=_(
        "Exponentials are taken of the scores as they are, so that large ones overflow and very "
        "negative ones vanish."
    ),
    see="flash-blocks",
)
def no_maximum(q: Tensor, k: Tensor, v: Tensor, *, block: int) -> tuple[Tensor, Tensor]:
    total = q.new_tensor(0.0)
    accumulator = torch.zeros_like(v[0])
    for start in range(0, k.shape[0], block):
        p = torch.exp(k[start : start + block] @ q / math.sqrt(q.shape[0]))
        total = total + p.sum()
        accumulator = accumulator + p @ v[start : start + block]
    return accumulator / total, torch.log(total)


@wrong(
    "attend_in_blocks",
    why=_(
        "The last block is filled up with zeros, and a key of zeros has score 0, not −∞: it takes "
        "a share of the weights."
    ),
    see="flash-blocks",
)
def padding_takes_part(q: Tensor, k: Tensor, v: Tensor, *, block: int) -> tuple[Tensor, Tensor]:
    m, total = q.new_tensor(-math.inf), q.new_tensor(0.0)
    accumulator = torch.zeros_like(v[0])
    for start in range(0, k.shape[0], block):
        keys, values = k[start : start + block], v[start : start + block]
        missing = block - keys.shape[0]
        keys = torch.cat([keys, keys.new_zeros(missing, keys.shape[1])])
        values = torch.cat([values, values.new_zeros(missing, values.shape[1])])
        scores = keys @ q / math.sqrt(q.shape[0])
        m_new = torch.maximum(m, scores.max())
        p, factor = torch.exp(scores - m_new), torch.exp(m - m_new)
        total = total * factor + p.sum()
        accumulator = accumulator * factor + p @ values
        m = m_new
    return accumulator / total, m + torch.log(total)


@wrong(
    "attend_in_blocks",
    why=_("The values are averaged, and neither the query nor the keys are read."),
    see="flash-blocks",
    rung=3,
)
def mean_of_the_values(q: Tensor, k: Tensor, v: Tensor, *, block: int) -> tuple[Tensor, Tensor]:
    return v.mean(0), q.new_tensor(math.log(k.shape[0]))


@right("attend_in_blocks", style="output kept normalised, joined by logsumexps")
def joined_by_logsumexps(q: Tensor, k: Tensor, v: Tensor, *, block: int) -> tuple[Tensor, Tensor]:
    q = q / q.shape[-1] ** 0.5
    output, logsumexp = torch.zeros_like(v[0]), q.new_tensor(-math.inf)
    for keys, values in zip(k.split(block), v.split(block)):
        scores = keys @ q
        own = torch.logsumexp(scores, 0)
        both = torch.logaddexp(logsumexp, own)
        output = output * (logsumexp - both).exp() + (scores - both).exp() @ values
        logsumexp = both
    return output, logsumexp


@right("attend_in_blocks", style="powers of two")
def with_powers_of_two(q: Tensor, k: Tensor, v: Tensor, *, block: int) -> tuple[Tensor, Tensor]:
    scale = 1 / (math.sqrt(q.numel()) * math.log(2))
    m, total, accumulator = -math.inf, 0.0, 0.0
    start = 0
    while start < len(k):
        scores = (k[start : start + block] * q).sum(-1) * scale
        m_new = max(m, scores.max().item())
        p = torch.exp2(scores - m_new)
        factor = 2.0 ** (m - m_new)
        total = total * factor + p.sum()
        accumulator = accumulator * factor + p @ v[start : start + block]
        m, start = m_new, start + block
    return accumulator / total, m * math.log(2) + torch.log(total)


@right("attend_in_blocks", style="the sum as one more column of the values")
def sum_as_a_column(q: Tensor, k: Tensor, v: Tensor, *, block: int) -> tuple[Tensor, Tensor]:
    m = torch.full((), -math.inf, dtype=q.dtype)
    state = torch.zeros(v.shape[1] + 1, dtype=q.dtype)
    for i in range(-(-k.shape[0] // block)):
        part = slice(i * block, (i + 1) * block)
        scores = torch.einsum("sd,d->s", k[part], q) / math.sqrt(q.shape[0])
        new = torch.max(m, scores.amax())
        with_ones = torch.cat([v[part], torch.ones_like(v[part, :1])], dim=1)
        state = state * torch.exp(m - new) + torch.exp(scores - new) @ with_ones
        m = new
    return state[:-1] / state[-1], m + state[-1].log()


# --- flash_forward ---------------------------------------------------------------------------


def _forward(
    name: str, edits: dict[str, str], why: str, *, rung: int = 2, see: str = "flash-tiles"
) -> None:
    wrong_edit("flash_forward", name, edits, why=why, see=see, rung=rung)


_CAUSAL = "flash-causal-tiles"
_forward(
    "accumulator_not_rescaled",
    {"accumulator * factor.unsqueeze(-1) + p @ values": "accumulator + p @ values"},
    _(
        "The accumulator belongs to the maximum of the tiles before. When a tile raises it, what "
        "was accumulated must be multiplied by exp(old − new), row by row."
    ),
    rung=1,
)
_forward(
    "sum_not_rescaled",
    {"total * factor + p.sum(dim=-1)": "total + p.sum(dim=-1)"},
    _("The accumulator is rescaled and the sum of exponentials is not."),
    rung=1,
)
_forward(
    "weights_against_the_tiles_maximum",
    {
        "torch.exp(scores - subtracted.unsqueeze(-1))": (
            "torch.exp(scores - scores.amax(-1, keepdim=True).nan_to_num(neginf=0.0))"
        )
    },
    _(
        "The exponentials of a tile are taken against the tile's own maximum and not against the "
        "running one, while the sums before belong to the running one."
    ),
    rung=1,
)
_forward(
    "causal_is_ignored",
    {
        "if causal else S": "if False else S",
        "            if causal:\n": "            if False:\n",
    },
    _("The argument causal changes nothing: every query sees every key."),
    see=_CAUSAL,
)
_forward(
    "causal_hides_the_query_itself",
    {"key > position": "key >= position"},
    _("The mask is one too narrow: a query must see the key at its own position."),
    see=_CAUSAL,
)
_forward(
    "causal_shows_the_next_key",
    {"key > position": "key > 1 + position", "t + bq + S - T)": "t + bq + S - T + 1)"},
    _("The mask is one too wide: a query sees the key behind its own position."),
    see=_CAUSAL,
)
_forward(
    "positions_within_the_tile",
    {
        "torch.arange(t, t + bq, device=q.device) + (S - T)": "torch.arange(bq, device=q.device)",
        "torch.arange(s, s + keys.shape[-2], device=q.device)": (
            "torch.arange(keys.shape[-2], device=q.device)"
        ),
    },
    _(
        "Positions are counted from the edge of the tile, so that every tile has a diagonal of its "
        "own. Compare positions in the whole sequence."
    ),
    see=_CAUSAL,
)
_forward(
    "first_query_at_the_first_key",
    {"device=q.device) + (S - T)": "device=q.device)", "t + bq + S - T)": "t + bq)"},
    _(
        "Queries are taken to stand at the beginning of the keys. The last query sees the last "
        "key, so query t stands at position t + S − T."
    ),
    see=_CAUSAL,
)
_forward(
    "a_tile_too_many_is_skipped",
    {"t + bq + S - T)": "t + S - T + 1)"},
    _(
        "The loop ends behind the last key that the first query of a tile sees. The last query "
        "of the tile sees more."
    ),
    see=_CAUSAL,
)
_forward(
    "no_tile_is_skipped",
    {"min(S, t + bq + S - T) if causal else S": "S"},
    _(
        "Tiles above the diagonal are computed, and then every score in them is masked. The result "
        "is right, and nearly half of the work is for nothing."
    ),
    see=_CAUSAL,
    rung=3,
)
_forward(
    "skipping_ends_a_tile_late",
    {"t + bq + S - T)": "t + bq + S - T + 1)"},
    _(
        "The loop goes one key too far: where a tile ends at the diagonal, one more is computed and "
        "masked as a whole."
    ),
    see=_CAUSAL,
    rung=3,
)
_forward(
    "hidden_scores_are_the_lowest_number",
    {
        "scores.masked_fill(key > position.unsqueeze(-1), -math.inf)": (
            "scores.masked_fill(key > position.unsqueeze(-1), torch.finfo(wide).min)"
        )
    },
    _(
        "Hidden scores are set to the lowest number and not to −∞: a query that sees no key has a "
        "maximum then, and averages over values that are hidden."
    ),
    see=_CAUSAL,
    rung=3,
)
_forward(
    "maximum_over_hidden_scores",
    {
        "            if causal:\n"
        "                key = torch.arange(s, s + keys.shape[-2], device=q.device)\n"
        "                scores = scores.masked_fill(key > position.unsqueeze(-1), -math.inf)\n"
        "            m_new = torch.maximum(m, scores.amax(dim=-1))\n": (
            "            m_new = torch.maximum(m, scores.amax(dim=-1))\n"
            "            if causal:\n"
            "                key = torch.arange(s, s + keys.shape[-2], device=q.device)\n"
            "                scores = scores.masked_fill(key > position.unsqueeze(-1), -math.inf)\n"
        ),
    },
    _(
        "The maximum is taken before the mask: a large score that a query does not see makes all "
        "of its weights vanish."
    ),
    see=_CAUSAL,
    rung=3,
)
_forward(
    "last_keys_dropped",
    {"range(0, end, block_k)": "range(0, end // block_k * block_k, block_k)"},
    _("The number of tiles is rounded down: keys in a last tile that is not full take no part."),
)
_forward(
    "last_queries_dropped",
    {
        "range(0, T, block_q)": "range(0, T // block_q * block_q, block_q)",
        "torch.empty_like(q)": "torch.zeros_like(q)",
        "logsumexp = torch.empty(": "logsumexp = torch.zeros(",
    },
    _("The number of tiles is rounded down: queries in a last tile that is not full get nothing."),
)
_forward(
    "rows_without_keys_are_nan",
    {
        "m_new.masked_fill(m_new == -math.inf, 0.0)": "m_new",
        "total.masked_fill(total == 0, 1.0).unsqueeze(-1)": "total.unsqueeze(-1)",
    },
    _(
        "A row that has seen no key yet has maximum −∞, and −∞ − (−∞) is NaN. Subtract 0 in such a "
        "row: exp(−∞ − 0) is the 0 that is meant."
    ),
)
_forward(
    "zero_divided_by_zero",
    {"total.masked_fill(total == 0, 1.0).unsqueeze(-1)": "total.unsqueeze(-1)"},
    _("A row that sees no key has sum 0, and 0 divided by 0 is NaN; its output is defined as 0."),
)
_forward(
    "accumulator_in_half_precision",
    {
        "factor.unsqueeze(-1) + p @ values": (
            "factor.unsqueeze(-1) + p @ values\n"
            "            accumulator = accumulator.to(q.dtype).to(wide)"
        ),
        "total = total * factor + p.sum(dim=-1)": (
            "total = (total * factor + p.sum(dim=-1)).to(q.dtype).to(wide)"
        ),
    },
    _(
        "Scores, sum or accumulator are rounded to half precision at every tile, and the errors of "
        "all tiles add up. Widen queries and keys before their product."
    ),
    rung=3,
)
wrong_edit(
    "flash_forward",
    "everything_in_half_precision",
    {
        "torch.promote_types(q.dtype, torch.float32)": "q.dtype",
        "return output, logsumexp": (
            "return output, logsumexp.to(torch.promote_types(q.dtype, torch.float32))"
        ),
    },
    why=_("Scores and sums are in half precision; every step of every tile is rounded."),
    see="flash-tiles",
    rung=3,
    form_of="accumulator_in_half_precision",
)
wrong_edit(
    "flash_forward",
    "scores_rounded_to_half_precision",
    {"rows @ keys.transpose(-2, -1)  #": "(rows @ keys.transpose(-2, -1)).to(q.dtype).to(wide)  #"},
    why=_("The scores are rounded to half precision before the softmax."),
    see="flash-tiles",
    rung=3,
    form_of="accumulator_in_half_precision",
)
wrong_edit(
    "flash_forward",
    "products_in_half_precision",
    {
        "rows @ keys.transpose(-2, -1)  #": (
            "(rows.to(q.dtype) @ keys.to(q.dtype).transpose(-2, -1)).to(wide)  #"
        )
    },
    why=_("Scaled queries and keys are multiplied in half precision, which rounds the scores."),
    see="flash-tiles",
    rung=3,
    form_of="accumulator_in_half_precision",
)
_forward(
    "scale_applied_twice",
    {"rows @ keys.transpose(-2, -1)  #": "rows @ keys.transpose(-2, -1) / math.sqrt(d)  #"},
    _(
        "The scores are divided by √d twice, which is d: once with the queries, say, and once more "
        "after the product."
    ),
)
_forward(
    "no_scale",
    {".to(wide) / math.sqrt(d)": ".to(wide)"},
    _("The scores are not divided by √d."),
)
_forward(
    "logsumexp_in_base_two",
    {"m + torch.log(total)": "m / math.log(2) + torch.log2(total)"},
    _("The logsumexp is in base 2; the chapter's, and PyTorch's, is natural."),
    rung=3,
)
_forward(
    "logsumexp_without_the_maximum",
    {"m + torch.log(total)": "torch.log(total)"},
    _("log of the sum belongs to exp(score − m): the maximum must be added back."),
    rung=3,
)
_forward(
    "maximum_instead_of_logsumexp",
    {"m + torch.log(total)": "m"},
    _("The row's maximum is saved, without the logarithm of the sum: backward needs both."),
    rung=3,
)
_forward(
    "maximum_starts_at_zero",
    {"rows.new_full(rows.shape[:-1], -math.inf)": "rows.new_zeros(rows.shape[:-1])"},
    _(
        "The running maximum starts at 0: rows whose scores are all far below lose their weights, "
        "and a row without keys looks as if it had seen a score."
    ),
)
_forward(
    "no_maximum_subtracted",
    {
        "m_new.masked_fill(m_new == -math.inf, 0.0)": "torch.zeros_like(m_new)",
        "torch.exp(m - subtracted)": "torch.ones_like(m)",
        "m + torch.log(total)": "torch.log(total)",
    },
    _("exp is taken of the scores as they are, which overflows from 89 on in float32."),
)
_forward(
    "normalised_in_every_tile",
    {
        "            m = m_new\n": "            m = m_new\n            accumulator = accumulator / total.clamp_min(1e-30).unsqueeze(-1)\n"
    },
    _(
        "What is divided by the sum in one tile is divided again in the next. Divide once, at the end."
    ),
)
_forward(
    "output_not_divided",
    {"(accumulator / divisor)": "accumulator"},
    _("The accumulator is returned without division by the sum of the exponentials."),
    rung=3,
)
_forward(
    "only_the_first_tile_of_keys",
    {"            m = m_new\n": "            m = m_new\n            break\n"},
    _("The inner loop ends after the first tile of keys."),
)
_forward(
    "query_scaled_in_place",
    {
        "q[..., t : t + block_q, :].to(wide) / math.sqrt(d)": (
            "q[..., t : t + block_q, :].to(wide).div_(math.sqrt(d))"
        )
    },
    _(
        "Slicing gives a view, and to() gives the same tensor where the dtype fits: the division in "
        "place writes into the caller's queries."
    ),
    rung=3,
)
_forward(
    "logsumexp_keeps_its_axis",
    {"return output, logsumexp": "return output, logsumexp.unsqueeze(-1)"},
    _("The logsumexp has an axis of length 1 too many: it is one number per query, (..., T)."),
    rung=3,
)
_forward(
    "logsumexp_in_the_inputs_dtype",
    {"return output, logsumexp": "return output, logsumexp.to(q.dtype)"},
    _("The logsumexp is returned in half precision; backward needs it in float32."),
    rung=3,
)


@wrong(
    "flash_forward",
    why=_(
        "The whole matrix of scores is made, and tiles play no part. The numbers are right, and "
        "the memory is what this exercise is about."
    ),
    see="flash-tiles",
    rung=3,
)
def the_matrix_at_once(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[Tensor, Tensor]:
    T, S, d = q.shape[-2], k.shape[-2], q.shape[-1]
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = q.to(wide) @ k.to(wide).transpose(-2, -1) / math.sqrt(d)
    if causal:
        scores = scores.masked_fill(torch.ones(T, S, dtype=torch.bool).triu(S - T + 1), -math.inf)
    logsumexp = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - logsumexp.masked_fill(logsumexp == -math.inf, 0.0)[..., None])
    return (weights @ v.to(wide)).to(q.dtype), logsumexp


@wrong(
    "flash_forward",
    why=_(
        "The whole matrix of scores is made in NumPy, where PyTorch does not see it: the numbers "
        "are right, and the memory is what this exercise is about."
    ),
    see="flash-tiles",
    rung=3,
)
def the_matrix_in_numpy(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[Tensor, Tensor]:
    import numpy as np  # noqa: PLC0415 — a cell of the notebook has to bring it along

    T, S, d = q.shape[-2], k.shape[-2], q.shape[-1]
    wide = torch.promote_types(q.dtype, torch.float32)
    queries, keys, values = (x.detach().to(wide).numpy() for x in (q, k, v))
    scores = queries @ keys.swapaxes(-2, -1) / math.sqrt(d)
    if causal:
        scores = np.where(np.triu(np.ones((T, S), dtype=bool), S - T + 1), -np.inf, scores)
    m = scores.max(-1, keepdims=True)
    p = np.exp(scores - np.where(np.isinf(m), 0.0, m))
    total = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        logsumexp = (m + np.log(np.where(np.isinf(m), 1.0, total)))[..., 0]
    output = p / np.where(total == 0, 1.0, total) @ values
    return torch.from_numpy(output).to(q.dtype), torch.from_numpy(logsumexp).to(wide)


@wrong(
    "flash_forward",
    why=_("The result does not depend on queries and keys: every row is the mean of the values."),
    see="flash-tiles",
)
def mean_of_the_values_in_every_row(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[Tensor, Tensor]:
    output = v.mean(dim=-2, keepdim=True).expand_as(q).clone()
    return output, torch.full(q.shape[:-1], math.log(k.shape[-2]), dtype=torch.float32)


@wrong(
    "flash_forward",
    why=_("The result is zero, whatever the inputs are."),
    see="flash-tiles",
)
def zeros_are_returned(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(q), torch.zeros(q.shape[:-1], dtype=torch.float32)


@right("flash_forward", style="keys outside, queries inside")
def keys_outside(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[Tensor, Tensor]:
    T, S, d = q.size(-2), k.size(-2), q.size(-1)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    m = torch.full(q.shape[:-1], -math.inf, dtype=wide)
    total = torch.zeros(q.shape[:-1], dtype=wide)
    output = torch.zeros(q.shape, dtype=wide)
    for s in range(0, S, block_k):
        keys, values = k[..., s : s + block_k, :].to(wide), v[..., s : s + block_k, :].to(wide)
        for t in range(0, T, block_q):
            rows = slice(t, min(t + block_q, T))
            if causal and rows.stop - 1 + S - T < s:
                continue
            scores = torch.einsum("...td,...sd->...ts", q[..., rows, :].to(wide), keys) * d**-0.5
            if causal:
                hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(t + S - T - s + 1)
                scores = torch.where(hidden, -math.inf, scores)
            new = torch.maximum(m[..., rows], scores.max(dim=-1).values)
            safe = torch.nan_to_num(new, neginf=0.0)
            p, factor = (scores - safe[..., None]).exp(), (m[..., rows] - safe).exp()
            total[..., rows] = total[..., rows] * factor + p.sum(-1)
            output[..., rows, :] = output[..., rows, :] * factor[..., None] + p @ values
            m[..., rows] = new
    output = torch.where(total[..., None] > 0, output / total[..., None], torch.zeros_like(output))
    return output.to(q.dtype), m + total.log()


@right("flash_forward", style="a list of tiles, joined by logaddexp")
def joined_tiles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[Tensor, Tensor]:
    T, S = q.shape[-2], k.shape[-2]
    wide = torch.promote_types(q.dtype, torch.float32)
    outputs, sums = [], []
    for t, rows in zip(range(0, T, block_q), q.split(block_q, dim=-2)):
        rows = rows.to(wide) * q.shape[-1] ** -0.5
        output = torch.zeros_like(rows)
        logsumexp = torch.full_like(rows[..., 0], -math.inf)
        for s, keys, values in zip(
            range(0, S, block_k), k.split(block_k, dim=-2), v.split(block_k, dim=-2)
        ):
            first, last = t + S - T, t + S - T + rows.shape[-2] - 1
            if causal and s > last:
                break
            scores = rows @ keys.to(wide).mT
            if causal and s + keys.shape[-2] - 1 > first:
                seen = torch.arange(s, s + keys.shape[-2]) <= torch.arange(first, last + 1)[:, None]
                scores = scores.where(seen, torch.tensor(-math.inf, dtype=wide))
            both = torch.logaddexp(logsumexp, scores.logsumexp(-1))
            safe = both.masked_fill(both == -math.inf, 0.0)
            output = output * torch.exp(logsumexp - safe)[..., None]
            output = output + torch.exp(scores - safe[..., None]) @ values.to(wide)
            logsumexp = both
        outputs.append(output.to(q.dtype))
        sums.append(logsumexp)
    return torch.cat(outputs, dim=-2), torch.cat(sums, dim=-1)


@right("flash_forward", style="exp2, and weights rounded to the values' dtype")
def with_exp2(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[Tensor, Tensor]:
    T, d = q.shape[-2:]
    S = k.shape[-2]
    wide = torch.promote_types(q.dtype, torch.float32)
    output, logsumexp = torch.zeros_like(q), torch.zeros(q.shape[:-1], dtype=wide)
    for i in range((T + block_q - 1) // block_q):
        low, high = i * block_q, min((i + 1) * block_q, T)
        rows = q[..., low:high, :].to(wide) * (math.log2(math.e) / math.sqrt(d))
        m = torch.full(rows.shape[:-1], -1e30, dtype=wide)
        total = torch.zeros(rows.shape[:-1], dtype=wide)
        accumulator = torch.zeros(rows.shape, dtype=wide)
        limit = S
        if causal:
            limit = max(0, min(S, high + S - T))
        for s in range(0, limit, block_k):
            stop = min(s + block_k, limit)
            scores = rows @ k[..., s:stop, :].to(wide).transpose(-1, -2)
            if causal:
                allowed = torch.tril(torch.ones(high - low, stop - s), low + S - T - s).bool()
                scores = scores.masked_fill(~allowed, -math.inf)
            m_new = torch.maximum(m, scores.amax(-1))
            p = torch.exp2(scores - m_new[..., None])
            factor = torch.exp2(m - m_new)
            total = total * factor + p.sum(-1)
            weighted = p.to(v.dtype).to(wide) @ v[..., s:stop, :].to(wide)
            accumulator = accumulator * factor[..., None] + weighted
            m = m_new
        empty = total == 0
        output[..., low:high, :] = (accumulator / (total + empty)[..., None]).to(q.dtype)
        found = (m + torch.log2(total)) * math.log(2)
        logsumexp[..., low:high] = torch.where(empty, -math.inf, found)
    return output, logsumexp


# --- borrowed_forward ------------------------------------------------------------------------

_DROPPED = {"for s in range(0, S, block_k):": "for s in range(0, S // block_k * block_k, block_k):"}
_AT_THE_START = {
    "s > rows.stop - 1 + S - T": "s > rows.stop - 1",
    "torch.arange(rows.start, rows.stop, device=q.device) + S - T": (
        "torch.arange(rows.start, rows.stop, device=q.device)"
    ),
}
_FROM_ZERO = {"q.new_full(q.shape[:-1], -math.inf)": "q.new_zeros(q.shape[:-1])"}


def _borrowed(
    name: str, edits: dict[str, str], why: str, *, rung: int = 2, given: bool = False
) -> None:
    wrong_edit("borrowed_forward", name, edits, why=why, see="flash-bug", rung=rung, given=given)


_borrowed(
    "borrowed_as_found",
    _DROPPED | _AT_THE_START | _FROM_ZERO,
    _("This is the code as it was handed out: three bugs are in it."),
    rung=1,
    given=True,
)
_borrowed(
    "two_bugs_left_mask_and_maximum",
    _AT_THE_START | _FROM_ZERO,
    _(
        "The ragged tile is mended. Two bugs are left: where queries stand among the keys, and "
        "what the maximum starts from."
    ),
)
_borrowed(
    "two_bugs_left_tiles_and_maximum",
    _DROPPED | _FROM_ZERO,
    _(
        "The mask is mended. Two bugs are left: a last tile that is not full, and what the maximum "
        "starts from."
    ),
)
_borrowed(
    "two_bugs_left_tiles_and_mask",
    _DROPPED | _AT_THE_START,
    _(
        "The maximum is mended. Two bugs are left: a last tile that is not full, and where queries "
        "stand among the keys."
    ),
)
_borrowed(
    "last_tile_still_dropped",
    _DROPPED,
    _("One bug is left: the number of tiles of keys is rounded down."),
    rung=3,
)
_borrowed(
    "queries_still_at_the_start",
    _AT_THE_START,
    _("One bug is left: query t stands at position t + S − T among the keys, not at t."),
    rung=3,
)
_borrowed(
    "maximum_still_from_zero",
    _FROM_ZERO,
    _(
        "One bug is left: the running maximum starts at a number, which is larger than all scores of "
        "some rows. Only −∞ is below them all."
    ),
    rung=3,
)
_borrowed(
    "mask_mended_and_not_the_skipping",
    {"s > rows.stop - 1 + S - T": "s > rows.stop - 1"},
    _(
        "The positions in the mask count S − T now, and the line that skips tiles does not: it "
        "passes over tiles that are seen."
    ),
    rung=3,
)


@right("borrowed_forward", style="written anew with the loops of flash_forward")
def by_flash_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[Tensor, Tensor]:
    return flash_forward(q, k, v, causal=causal, block_q=block_q, block_k=block_k)


right_edit(
    "borrowed_forward",
    "very_small_instead_of_infinite",
    {"q.new_full(q.shape[:-1], -math.inf)": "q.new_full(q.shape[:-1], -1e30)"},
    style="a finite start far below every score",
)
right_edit(
    "borrowed_forward",
    "tiles_counted",
    {
        "for s in range(0, S, block_k):": (
            "for j in range((S + block_k - 1) // block_k):\n        s = j * block_k"
        )
    },
    style="tiles counted, rounded up",
)


# --- flash_forward_test ----------------------------------------------------------------------


def _tests(name: str, edits: dict[str, str], why: str, *, rung: int = 2) -> None:
    wrong_edit("flash_forward_test", name, edits, why=why, see="flash-test", rung=rung)


_SIZES = "((8, 8), (7, 11), (9, 5))"
_TILES = "((4, 4), (2, 5))"
_SCORES = "((1.0, 0.0), (30.0, 0.0), (1.0, -60.0))"
_tests(
    "only_square_sizes",
    {_SIZES: "((8, 8), (7, 7))"},
    _(
        "T equals S in every call. A mask that forgets S − T, and queries without keys, can only "
        "be seen where they differ."
    ),
)
_tests(
    "only_sizes_that_fit",
    {_SIZES: "((8, 8), (4, 12))", _TILES: "((4, 4), (2, 2))"},
    _("Every tile is full in every call, so one that drops a last tile that is not full passes."),
)
_tests(
    "only_without_a_mask",
    {"for causal in (False, True)": "for causal in (False,)"},
    _("causal is never True: whatever the mask does wrong is not seen."),
    rung=1,
)
_tests(
    "one_tile_holds_everything",
    {_TILES: "((64, 64),)"},
    _(
        "One tile holds all queries and keys in every call. Then nothing is ever carried over from "
        "tile to tile, and nothing of that is tested."
    ),
    rung=1,
)
_tests(
    "only_small_scores",
    {_SCORES: "((1.0, 0.0),)"},
    _(
        "All scores are near zero, where a softmax without a maximum is right. Use scores of some "
        "hundreds on both sides of zero."
    ),
    rung=3,
)
_tests(
    "no_scores_far_below_zero",
    {_SCORES: "((1.0, 0.0), (30.0, 0.0))"},
    _(
        "Large scores are tested, but no row in which all are far below zero: a maximum that starts "
        "at 0 passes."
    ),
    rung=3,
)
_tests(
    "logsumexp_not_compared",
    {'assert torch.allclose(logsumexp, scores.logsumexp(-1), atol=5e-3), "logsumexp"': "pass"},
    _("Only the output is compared: a wrong logsumexp passes, and backward will use it."),
    rung=3,
)
_tests(
    "output_not_compared",
    {'assert torch.allclose(output, expected, atol=5e-3), "the output"': "pass"},
    _("Only the logsumexp is compared, which does not depend on the values at all."),
    rung=3,
)
_tests(
    "no_query_without_keys",
    {_SIZES: "((8, 8), (7, 11))"},
    _("T is never larger than S, so no query is without keys, and NaN in such rows passes."),
    rung=3,
)
_tests(
    "asks_for_equality",
    {
        'torch.allclose(output, expected, atol=5e-3), "the output"': (
            'torch.equal(output, expected), "the output"'
        )
    },
    _(
        "The test asks for the same bits. Tiles are summed in another order than the whole row, so "
        "a right implementation differs in the last places."
    ),
)
_tests(
    "tolerance_of_everything",
    {
        'allclose(output, expected, atol=5e-3), "the output"': (
            'allclose(output, expected, atol=10.0, equal_nan=True), "the output"'
        ),
        'allclose(logsumexp, scores.logsumexp(-1), atol=5e-3), "logsumexp"': (
            'allclose(logsumexp, scores.logsumexp(-1), atol=1e6, equal_nan=True), "logsumexp"'
        ),
    },
    _("The tolerances are wider than the numbers themselves."),
)
_tests(
    "expects_another_scale",
    {"/ math.sqrt(4)": "/ 4"},
    _("What the test expects is not attention: scores are divided by √d, not by d."),
)
_tests(
    "expects_a_mask_without_the_offset",
    {"torch.arange(T).unsqueeze(-1) + S - T": "torch.arange(T).unsqueeze(-1)"},
    _(
        "The mask that the test expects places queries at the beginning of the keys; the last "
        "query sees the last key."
    ),
)


@wrong(
    "flash_forward_test",
    why=_(
        "The test asserts too little about values: tensors of the right shapes pass it, whatever "
        "mask, tiles and scores do to them."
    ),
    see="flash-test",
    rung=1,
)
def only_shapes(flash_forward: Callable[..., tuple[Tensor, Tensor]]) -> None:
    q, k = torch.randn(2, 7, 4), torch.randn(2, 9, 4)
    for causal in (False, True):
        output, logsumexp = flash_forward(q, k, k, causal=causal, block_q=2, block_k=4)
        assert output.shape == q.shape
        assert logsumexp.shape == q.shape[:-1]


@wrong(
    "flash_forward_test",
    why=_("The test calls the implementation and asserts nothing."),
    see="flash-test",
    rung=1,
    form_of="only_shapes",
)
def nothing_is_asserted(flash_forward: Callable[..., tuple[Tensor, Tensor]]) -> None:
    q = torch.randn(2, 7, 4)
    flash_forward(q, q, q, causal=True, block_q=2, block_k=4)


@wrong(
    "flash_forward_test",
    why=_(
        "The implementation is compared with itself under other tile sizes. What it gets wrong in "
        "the same way for all of them passes."
    ),
    see="flash-test",
    rung=3,
)
def only_tile_sizes_compared(flash_forward: Callable[..., tuple[Tensor, Tensor]]) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 7, 4), torch.randn(2, 11, 4), torch.randn(2, 11, 4)
    for causal in (False, True):
        one = flash_forward(q, k, v, causal=causal, block_q=64, block_k=64)
        for block_q, block_k in ((2, 3), (4, 4), (1, 1)):
            two = flash_forward(q, k, v, causal=causal, block_q=block_q, block_k=block_k)
            assert torch.allclose(one[0], two[0], atol=1e-4)
            assert torch.allclose(one[1], two[1], atol=1e-4)


@right("flash_forward_test", style="one call per property")
def by_property(flash_forward: Callable[..., tuple[Tensor, Tensor]]) -> None:
    torch.manual_seed(1)

    def by_hand(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        T, S = q.shape[-2], k.shape[-2]
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if causal:
            hidden = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
            scores = scores.masked_fill(hidden, -math.inf)
        return torch.softmax(scores, -1).nan_to_num(0.0) @ v, scores.logsumexp(-1)

    def same(q: Tensor, k: Tensor, v: Tensor, causal: bool, a: int, b: int) -> None:
        output, logsumexp = flash_forward(q, k, v, causal=causal, block_q=a, block_k=b)
        expected, sums = by_hand(q, k, v, causal)
        torch.testing.assert_close(output, expected, atol=2e-3, rtol=1e-3)
        torch.testing.assert_close(logsumexp, sums, atol=2e-3, rtol=1e-3)

    for T, S in ((6, 6), (4, 10), (10, 4), (5, 7)):
        q, k, v = torch.randn(T, 3), torch.randn(S, 3), torch.randn(S, 3)
        for causal in (True, False):
            for a, b in ((2, 3), (4, 4), (1, 1)):
                same(q, k, v, causal, a, b)
            steep = k + torch.arange(S)[:, None] * 5
            same(q.abs() * 10, steep, v, causal, 2, 2)
            same(q.abs() * 10 + 5, k - 40, v, causal, 3, 2)


@right("flash_forward_test", style="against torch's own attention in float64")
def against_the_library(flash_forward: Callable[..., tuple[Tensor, Tensor]]) -> None:
    generator = torch.Generator().manual_seed(7)
    for T, S in ((5, 5), (3, 8), (8, 3), (9, 13)):
        for causal in (False, True):
            for shift in (0.0, 40.0, -40.0):
                q, k, v = (torch.randn(1, n, 2, generator=generator) for n in (T, S, S))
                q = q.abs() + 5
                k = k + shift
                mask = torch.ones(T, S, dtype=torch.bool)
                if causal:
                    mask = mask.tril(S - T)
                wide = q.double(), k.double(), v.double()
                expected = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=mask)
                expected = torch.where(mask.any(-1)[:, None], expected, 0.0)
                scores = (wide[0] @ wide[1].mT / math.sqrt(2)).masked_fill(~mask, -math.inf)
                output, sums = flash_forward(q, k, v, causal=causal, block_q=2, block_k=3)
                assert (output.double() - expected).abs().max() < 1e-2
                assert torch.allclose(sums.double(), scores.logsumexp(-1), atol=1e-2)


@right("flash_forward_test", style="query by query, in plain Python loops")
def row_by_row(flash_forward: Callable[..., tuple[Tensor, Tensor]]) -> None:
    torch.manual_seed(3)
    for T, S, a, b in ((4, 6, 2, 4), (6, 4, 4, 3), (5, 5, 2, 2), (3, 3, 9, 9)):
        for causal in (False, True):
            for factor, shift in ((1.0, 0.0), (1.0, 200.0), (1.0, -200.0), (40.0, 0.0)):
                q, k, v = torch.randn(T, 4), torch.randn(S, 4), torch.randn(S, 4)
                q[:, 0], k[:, 0] = 2.0, k[:, 0] * factor + shift
                output, sums = flash_forward(q, k, v, causal=causal, block_q=a, block_k=b)
                for t in range(T):
                    seen = range(S if not causal else max(0, t + S - T + 1))
                    scores = torch.tensor([float(q[t] @ k[s]) / 2 for s in seen])
                    if len(scores) == 0:
                        assert sums[t] == -math.inf and (output[t] == 0).all()
                        continue
                    wanted = torch.softmax(scores, 0) @ v[: len(scores)]
                    assert (output[t] - wanted).abs().max() < 5e-3
                    assert abs(float(sums[t]) - float(scores.logsumexp(0))) < 5e-3


_DRAWN = "q, k, v = normal(2, T, 4) * scale, normal(2, S, 4), normal(2, S, 4)"
_IN_HALF_TOO = {
    "for causal in (False, True)": (
        "for causal, dtype in ((False, torch.float32), (True, torch.float32), "
        "(False, torch.float16), (True, torch.float16))"
    ),
    _DRAWN: "if dtype == torch.float16 and (scale, shift) != (1.0, 0.0):\n"
    "                        continue\n"
    f"                    {_DRAWN}\n"
    "                    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)",
    "assert output.shape == expected.shape": "assert output.dtype == dtype",
    'scores.logsumexp(-1), atol=5e-3), "logsumexp"': (
        'scores.float().logsumexp(-1), atol=5e-3), "logsumexp"'
    ),
}
right_edit(
    "flash_forward_test",
    "in_half_too",
    _IN_HALF_TOO,
    style="half precision too, and its dtypes",
)
right_edit(
    "flash_forward_test",
    "as_exact_as_float64_is",
    {
        _DRAWN: f"{_DRAWN}\n                    q, k, v = q.double(), k.double(), v.double()",
        "assert output.shape == expected.shape": (
            "assert output.dtype == logsumexp.dtype == torch.float64"
        ),
        'expected, atol=5e-3), "the output"': 'expected, rtol=1e-9, atol=1e-9), "the output"',
        'logsumexp(-1), atol=5e-3), "logsumexp"': (
            'logsumexp(-1), rtol=1e-9, atol=1e-9), "logsumexp"'
        ),
    },
    style="in float64, to its last places",
)
# Another dtype is no substitute for what is not compared, or never called.
wrong_edit(
    "flash_forward_test",
    "logsumexp_not_compared_in_half_either",
    {
        **{old: new for old, new in _IN_HALF_TOO.items() if "logsumexp" not in old},
        'assert torch.allclose(logsumexp, scores.logsumexp(-1), atol=5e-3), "logsumexp"': "pass",
    },
    why=_("Only the output is compared: a wrong logsumexp passes, and backward will use it."),
    see="flash-test",
    rung=3,
    form_of="logsumexp_not_compared",
)
wrong_edit(
    "flash_forward_test",
    "no_query_without_keys_in_half_either",
    {**_IN_HALF_TOO, _SIZES: "((8, 8), (7, 11))"},
    why=_("T is never larger than S, so no query is without keys, and NaN in such rows passes."),
    see="flash-test",
    rung=3,
    form_of="no_query_without_keys",
)
wrong_edit(
    "flash_forward_test",
    "only_dtypes",
    {
        **{old: new for old, new in _IN_HALF_TOO.items() if "logsumexp" not in old},
        'assert torch.allclose(output, expected, atol=5e-3), "the output"': "pass",
        'assert torch.allclose(logsumexp, scores.logsumexp(-1), atol=5e-3), "logsumexp"': "pass",
    },
    why=_("Dtypes are asserted and no values: whatever is computed passes."),
    see="flash-test",
    rung=1,
    form_of="only_shapes",
)


# --- flash_backward --------------------------------------------------------------------------


def _backward(
    name: str, edits: dict[str, str], why: str, *, rung: int = 2, see: str = "flash-backward"
) -> None:
    wrong_edit("flash_backward", name, edits, why=why, see=see, rung=rung)


_SPREAD = "p * (dp - delta[..., rows].unsqueeze(-1)) * scale"
_backward(
    "delta_forgotten",
    {_SPREAD: "p * dp * scale"},
    _(
        "The softmax couples the scores of a row, and D is what the other scores take back. "
        "Without D the gradient of a row of scores does not sum to 0."
    ),
    rung=3,
)
_backward(
    "delta_added",
    {_SPREAD: "p * (dp + delta[..., rows].unsqueeze(-1)) * scale"},
    _("D is subtracted from dP, not added."),
    rung=3,
)
_backward(
    "dk_scaled_twice",
    {
        "queries, g = q[..., rows, :].to(wide), ": "queries, g = q[..., rows, :].to(wide) * scale, ",
        "queries @ keys.transpose(-2, -1) * scale": "queries @ keys.transpose(-2, -1)",
    },
    _(
        "The queries are scaled before the scores, and the scaled ones are used again for dk, whose "
        "scores' gradient holds the scale already: dk has it twice."
    ),
    rung=3,
)
_backward(
    "delta_from_the_queries",
    {"output.to(wide)).sum(dim=-1)": "q.to(wide)).sum(dim=-1)"},
    _("D is the sum of grad_output · output; here the queries stand in the output's place."),
    rung=3,
)
_backward(
    "delta_of_the_tile",
    {_SPREAD: "p * (dp - (p * dp).sum(dim=-1, keepdim=True)) * scale"},
    _(
        "D is summed over the keys of the tile alone. It is a sum over the whole row, which is "
        "why it is computed beforehand from output and grad_output."
    ),
    rung=3,
)
_backward(
    "delta_without_the_output",
    {"(grad_output.to(wide) * output.to(wide)).sum(dim=-1)": "grad_output.to(wide).sum(dim=-1)"},
    _("D is the row sum of grad_output times output; the output is missing."),
    rung=3,
)
_backward(
    "no_scale_in_dq_and_dk",
    {_SPREAD: "p * (dp - delta[..., rows].unsqueeze(-1))"},
    _("The scores were divided by √d, so the gradients by q and k must be divided by it too."),
)
_backward(
    "dk_without_the_scale",
    {"ds.transpose(-2, -1) @ queries": "ds.transpose(-2, -1) @ queries / scale"},
    _("dq has the factor 1/√d and dk lacks it: both come from the same scores."),
)
_backward(
    "scale_applied_twice",
    {
        "dq[..., rows, :] += ds @ keys": "dq[..., rows, :] += ds @ keys * scale",
        "ds.transpose(-2, -1) @ queries": "ds.transpose(-2, -1) @ queries * scale",
    },
    _("The factor 1/√d stands twice in dq and dk."),
)
_backward(
    "no_scale_in_the_scores",
    {"keys.transpose(-2, -1) * scale  #": "keys.transpose(-2, -1)  #"},
    _("The weights are recomputed from scores without 1/√d, so they are not those of forward."),
)
_backward(
    "dk_and_dv_swapped",
    {"dk.to(k.dtype), dv.to(v.dtype)": "dv.to(k.dtype), dk.to(v.dtype)"},
    _("dk and dv are returned in each other's place."),
    rung=1,
)
_backward(
    "dv_from_the_scores_gradient",
    {
        "            dv[..., columns, :] += p.transpose(-2, -1) @ g\n": "",
        "            dk[..., columns, :]": "            dv[..., columns, :] += ds.transpose(-2, -1) @ g\n            dk[..., columns, :]",
    },
    _("dV is Pᵀ dO: the weights themselves, not the gradient of the scores."),
    rung=1,
)
_backward(
    "dk_from_the_weights",
    {"ds.transpose(-2, -1) @ queries": "p.transpose(-2, -1) @ queries"},
    _("dK is dSᵀ Q: the gradient of the scores, not the weights."),
    rung=1,
)
_backward(
    "dk_from_grad_output",
    {"ds.transpose(-2, -1) @ queries": "ds.transpose(-2, -1) @ g"},
    _("dK multiplies the gradient of the scores by the queries, not by grad_output."),
)
_backward(
    "softmax_of_the_tile",
    {
        "torch.exp(scores - logsumexp[..., rows].unsqueeze(-1))": "torch.softmax(scores, dim=-1).nan_to_num(0.0)"
    },
    _(
        "A softmax over the keys of the tile makes every tile's weights sum to 1. The saved "
        "logsumexp is that of the whole row: exp(score − logsumexp)."
    ),
    rung=1,
)
_backward(
    "exponentials_without_the_logsumexp",
    {"torch.exp(scores - logsumexp[..., rows].unsqueeze(-1))": "torch.exp(scores)"},
    _("exp(score) is not a weight: the logsumexp of the row must be subtracted first."),
    rung=1,
)
_backward(
    "divided_after_the_exponential",
    {
        "torch.exp(scores - logsumexp[..., rows].unsqueeze(-1))": (
            "torch.exp(scores) / torch.exp(logsumexp[..., rows].unsqueeze(-1))"
        )
    },
    _(
        "exp of the score and exp of the logsumexp both overflow for large scores, and their "
        "quotient is NaN. Subtract before exp."
    ),
)
_backward(
    "causal_is_ignored",
    {
        "            if causal:\n": "            if False:\n",
        "block_q if causal else 0": "block_q if False else 0",
    },
    _("The mask of the forward pass is missing: hidden keys get weights, and gradients with them."),
)
_backward(
    "causal_hides_the_query_itself",
    {"key > query": "key >= query"},
    _("The mask is one narrower than in the forward pass: a query saw the key at its position."),
)
_backward(
    "first_query_at_the_first_key",
    {
        "torch.arange(rows.start, rows.stop, device=q.device) + (S - T)": (
            "torch.arange(rows.start, rows.stop, device=q.device)"
        ),
        "max(0, s - (S - T)) // block_q": "max(0, s) // block_q",
    },
    _("Query t stands at position t + S − T among the keys, here as in the forward pass."),
)
_backward(
    "a_tile_too_many_is_skipped",
    {"max(0, s - (S - T)) // block_q * block_q": "-(-max(0, s - (S - T)) // block_q) * block_q"},
    _(
        "The first tile of queries is rounded up: the tile in which the first seeing query stands "
        "in the middle is passed over."
    ),
)
_backward(
    "no_tile_is_skipped",
    {"max(0, s - (S - T)) // block_q * block_q if causal else 0": "0"},
    _("Tiles in which no query sees a key are computed and then masked: right, and for nothing."),
    rung=3,
)
_backward(
    "skipping_begins_a_tile_early",
    {"max(0, s - (S - T)) // block_q": "max(0, s - 1 - (S - T)) // block_q"},
    _(
        "The loop begins one query too early: where a tile begins at the diagonal, one before it is "
        "computed and masked as a whole."
    ),
    rung=3,
)
_backward(
    "mask_by_multiplication",
    {
        "scores = scores.masked_fill(key > query.unsqueeze(-1), -math.inf)\n": (
            "seen = key <= query.unsqueeze(-1)\n"
        ),
        "p = torch.exp(scores - logsumexp[..., rows].unsqueeze(-1))": (
            "p = torch.exp(scores - logsumexp[..., rows].unsqueeze(-1))\n"
            "            p = p * seen if causal else p"
        ),
    },
    _(
        "Hidden weights are made first and then multiplied by 0. A hidden score may be far above "
        "the logsumexp of what is seen: its exponential is ∞, and ∞ · 0 is NaN."
    ),
    rung=3,
)
_backward(
    "delta_in_half_precision",
    {
        "(grad_output.to(wide) * output.to(wide)).sum(dim=-1)": (
            "(grad_output * output).sum(dim=-1).to(wide)"
        )
    },
    _(
        "D is multiplied and summed in half precision, and made wide afterwards: it is rounded, "
        "and infinite from 65,520 on, which large gradients reach."
    ),
    rung=3,
)
_backward(
    "last_keys_dropped",
    {"range(0, S, block_k)": "range(0, S // block_k * block_k, block_k)"},
    _("The number of tiles is rounded down: the last keys get no gradient and give none."),
)
_backward(
    "dk_and_dv_overwritten",
    {
        "dv[..., columns, :] += p": "dv[..., columns, :] = p",
        "dk[..., columns, :] += ds": "dk[..., columns, :] = ds",
    },
    _(
        "Every tile of queries adds to the gradients of the keys it sees. Here each tile overwrites "
        "what the tile before left, and the last one stays."
    ),
    rung=1,
)
_backward(
    "dq_overwritten",
    {"dq[..., rows, :] += ds @ keys": "dq[..., rows, :] = ds @ keys"},
    _("Every tile of keys adds to the gradient of the queries; here the last tile alone stays."),
    rung=1,
)
_backward(
    "rows_without_keys_are_nan",
    {"    logsumexp = logsumexp.masked_fill(logsumexp == -math.inf, math.inf)\n": ""},
    _(
        "For a query that sees no key, score and logsumexp are both −∞, and their difference is "
        "NaN. Its weights are 0."
    ),
)
_backward(
    "logsumexp_filled_in_place",
    {"logsumexp = logsumexp.masked_fill(": "logsumexp = logsumexp.masked_fill_("},
    _("masked_fill_ writes into the saved logsumexp, which belongs to the caller."),
)
_backward(
    "summed_in_half_precision",
    {
        "dq = torch.zeros(q.shape, dtype=wide, device=q.device)": "dq = torch.zeros_like(q)",
        "dk = torch.zeros(k.shape, dtype=wide, device=q.device)": "dk = torch.zeros_like(k)",
        "dv = torch.zeros(v.shape, dtype=wide, device=q.device)": "dv = torch.zeros_like(v)",
    },
    _(
        "The gradients are added up in the inputs' dtype: in half precision every tile's addition "
        "is rounded, and there are many."
    ),
)
_backward(
    "gradients_in_float32",
    {"dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)": "dq, dk, dv"},
    _("The gradients come back in float32; they should have the dtype of their inputs."),
)


@wrong(
    "flash_backward",
    why=_(
        "The whole matrix of weights is made again, and then its gradient: right numbers, and the "
        "memory that the tiles were to save."
    ),
    see="flash-backward",
    rung=1,
)
def the_matrix_in_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    grad_output: Tensor,
    *,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[Tensor, Tensor, Tensor]:
    T, S, d = q.shape[-2], k.shape[-2], q.shape[-1]
    wide = torch.promote_types(q.dtype, torch.float32)
    queries, keys, g = q.to(wide), k.to(wide), grad_output.to(wide)
    scores = queries @ keys.mT / math.sqrt(d)
    if causal:
        scores = scores.masked_fill(torch.ones(T, S, dtype=torch.bool).triu(S - T + 1), -math.inf)
    p = torch.exp(scores - logsumexp.nan_to_num(neginf=math.inf, posinf=math.inf)[..., None])
    ds = p * (g @ v.to(wide).mT - (g * output.to(wide)).sum(-1, keepdim=True)) / math.sqrt(d)
    return (ds @ keys).to(q.dtype), (ds.mT @ queries).to(k.dtype), (p.mT @ g).to(v.dtype)


@wrong(
    "flash_backward",
    why=_("The gradients are zero, whatever comes in."),
    see="flash-backward",
)
def no_gradient_at_all(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    grad_output: Tensor,
    *,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)


@right("flash_backward", style="queries outside; a pass for dq and one for dk and dv")
def two_passes_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    grad_output: Tensor,
    *,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[Tensor, Tensor, Tensor]:
    T, S, d = q.shape[-2], k.shape[-2], q.shape[-1]
    wide = torch.promote_types(q.dtype, torch.float32)
    delta = torch.einsum("...td,...td->...t", grad_output.to(wide), output.to(wide))

    def tile(t: int, s: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        rows, columns = slice(t, t + block_q), slice(s, s + block_k)
        qs, ks, vs = (x.to(wide) for x in (q[..., rows, :], k[..., columns, :], v[..., columns, :]))
        g = grad_output[..., rows, :].to(wide)
        scores = qs @ ks.mT / d**0.5
        p = torch.exp(scores - logsumexp[..., rows, None].nan_to_num(neginf=0.0))
        if causal:
            allowed = torch.ones(p.shape[-2:], dtype=torch.bool).tril(t + S - T - s)
            p = torch.where(allowed, p, torch.zeros_like(p))
        ds = p * (g @ vs.mT - delta[..., rows, None]) / d**0.5
        return qs, ks, g, p, ds

    def seen(t: int, s: int) -> bool:
        return not causal or s <= min(t + block_q, T) - 1 + S - T

    dq, dk, dv = (torch.zeros(x.shape, dtype=wide) for x in (q, k, v))
    for t in range(0, T, block_q):
        for s in range(0, S, block_k):
            if seen(t, s):
                _qs, ks, _g, _p, ds = tile(t, s)
                dq[..., t : t + block_q, :] += ds @ ks
    for s in range(0, S, block_k):
        for t in range(0, T, block_q):
            if seen(t, s):
                qs, _ks, g, p, ds = tile(t, s)
                dk[..., s : s + block_k, :] += ds.mT @ qs
                dv[..., s : s + block_k, :] += p.mT @ g
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


right_edit(
    "flash_backward",
    "scale_on_the_queries",
    {
        "queries, g = q[..., rows, :].to(wide), grad_output[..., rows, :].to(wide)": (
            "queries, g = q[..., rows, :].to(wide) * scale, grad_output[..., rows, :].to(wide)"
        ),
        "queries @ keys.transpose(-2, -1) * scale  #": "queries @ keys.transpose(-2, -1)  #",
        "p * (dp - delta[..., rows].unsqueeze(-1)) * scale": (
            "p * (dp - delta[..., rows].unsqueeze(-1))"
        ),
        "dq[..., rows, :] += ds @ keys": "dq[..., rows, :] += ds @ keys * scale",
    },
    style="the queries are scaled, and dk needs no scale any more",
)
right_edit(
    "flash_backward",
    "weights_without_a_mask",
    {
        "scores = scores.masked_fill(key > query.unsqueeze(-1), -math.inf)": (
            "hidden = key > query.unsqueeze(-1)"
        ),
        "            p = torch.exp(scores - logsumexp[..., rows].unsqueeze(-1))  # the weights once more\n": (
            "            p = torch.exp(scores - logsumexp[..., rows].unsqueeze(-1))\n"
            "            p = p.masked_fill(hidden, 0.0) if causal else p\n"
        ),
    },
    style="the weights are masked, since they need no normalising any more",
)


# --- FlashAttention --------------------------------------------------------------------------


def _function(name: str, edits: dict[str, str], why: str, *, rung: int = 2) -> None:
    wrong_edit("FlashAttention", name, edits, why=why, see="flash-function", rung=rung)


_function(
    "causal_lost_in_forward",
    {"flash_forward(q, k, v, causal=causal)": "flash_forward(q, k, v)"},
    _("forward does not hand causal on: the output sees the future."),
)
_function(
    "causal_lost_in_backward",
    {"grad_output, causal=ctx.causal)": "grad_output)"},
    _("backward does not hand causal on: hidden keys get gradients."),
)
_function(
    "causal_always_in_backward",
    {"grad_output, causal=ctx.causal)": "grad_output, causal=True)"},
    _("backward masks always, also where forward did not."),
)
_function(
    "causal_kept_in_the_class",
    {
        "ctx.causal = causal": "FlashAttention.causal = causal",
        "causal=ctx.causal)": "causal=FlashAttention.causal)",
    },
    _(
        "The flag is kept in the class, of which there is one; every call overwrites it. ctx is "
        "made anew for every call."
    ),
    rung=1,
)
_function(
    "tensors_kept_in_the_class",
    {
        "ctx.save_for_backward(q, k, v, output, logsumexp)": (
            "FlashAttention.saved = (q, k, v, output, logsumexp)"
        ),
        "ctx.saved_tensors": "FlashAttention.saved",
    },
    _(
        "The tensors are kept in the class, of which there is one; the next call overwrites them "
        "before this one's backward pass."
    ),
    rung=1,
)
_function(
    "gradient_for_causal_missing",
    {"return dq, dk, dv, None": "return dq, dk, dv"},
    _("backward returns three gradients for four arguments: causal needs its None."),
)
_function(
    "dk_and_dv_swapped",
    {"return dq, dk, dv, None": "return dq, dv, dk, None"},
    _("The gradients by k and v stand in each other's place."),
)
_function(
    "queries_and_keys_swapped",
    {
        "q, k, v, output, logsumexp = ctx.saved_tensors": "k, q, v, output, logsumexp = ctx.saved_tensors"
    },
    _("saved_tensors comes back in the order of save_for_backward; q and k are exchanged here."),
)
_function(
    "values_get_no_gradient",
    {"return dq, dk, dv, None": "return dq, dk, None, None"},
    _("The gradient by v is None, so what stands before the values never learns."),
)
_function(
    "grad_output_is_ignored",
    {"logsumexp, grad_output, causal": "logsumexp, torch.ones_like(grad_output), causal"},
    _(
        "backward takes ones for the gradient of the output. That is right for a sum and for "
        "nothing else."
    ),
)
_function(
    "grad_output_saved_instead_of_output",
    {
        "q, k, v, output, logsumexp, grad_output, causal": "q, k, v, grad_output, logsumexp, grad_output, causal"
    },
    _("flash_backward gets grad_output in the place of the output, and D is wrong with it."),
)
_function(
    "logsumexp_is_returned_too",
    {"        return output\n": "        return output, logsumexp\n"},
    _("apply returns a pair; asked for is the output alone."),
)
_function(
    "gradients_are_averaged",
    {"return dq, dk, dv, None": "n = q.shape[-2]\n        return dq / n, dk / n, dv / n, None"},
    _("The gradients are divided by the number of queries, which no step of attention does."),
)


@wrong(
    "FlashAttention",
    why=_(
        "forward computes the whole matrix of weights and keeps it for backward: the memory that "
        "this chapter is about."
    ),
    see="flash-function",
    rung=1,
)
class weights_are_kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if causal:
            T, S = scores.shape[-2:]
            hidden = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
            scores = scores.masked_fill(hidden, -math.inf)
        weights = torch.softmax(scores, -1)
        ctx.save_for_backward(q, k, v, weights)
        return weights @ v

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, p = ctx.saved_tensors
        dp = grad_output @ v.transpose(-2, -1)
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.transpose(-2, -1) @ q, p.transpose(-2, -1) @ grad_output, None


@right("FlashAttention", style="other tiles, results kept as attributes")
class with_other_tiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal):
        out, lse = flash_forward(q, k, v, causal=causal, block_q=16, block_k=32)
        ctx.save_for_backward(lse, out, v, k, q)
        ctx.options = {"causal": causal, "block_q": 32, "block_k": 16}
        return out

    @staticmethod
    def backward(ctx, g):
        lse, out, v, k, q = ctx.saved_tensors
        return (*flash_backward(q, k, v, out, lse, g.contiguous(), **ctx.options), None)


@right("FlashAttention", style="forward is run again in backward")
class runs_forward_again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal):
        ctx.save_for_backward(q, k, v)
        ctx.causal = causal
        return flash_forward(q, k, v, causal=causal)[0]

    @staticmethod
    def backward(ctx, g):
        q, k, v = ctx.saved_tensors
        output, logsumexp = flash_forward(q, k, v, causal=ctx.causal)
        grads = flash_backward(q, k, v, output, logsumexp, g, causal=ctx.causal)
        return tuple(
            grad if needed else None for grad, needed in zip((*grads, None), ctx.needs_input_grad)
        )


@right("FlashAttention", style="forward and setup_context apart")
class with_setup_context(torch.autograd.Function):
    @staticmethod
    def forward(q, k, v, causal):
        return flash_forward(q, k, v, causal=causal)[0]

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, causal = inputs
        ctx.save_for_backward(q, k, v, output)
        ctx.causal = causal

    @staticmethod
    def backward(ctx, grad_output):
        q, k, v, output = ctx.saved_tensors
        _again, logsumexp = flash_forward(q, k, v, causal=ctx.causal)
        dq, dk, dv = flash_backward(q, k, v, output, logsumexp, grad_output, causal=ctx.causal)
        return dq, dk, dv, None


# --- logsumexp_kernel ------------------------------------------------------------------------


def _rows(name: str, edits: dict[str, str], why: str, *, rung: int = 2) -> None:
    wrong_edit("logsumexp_kernel", name, edits, why=why, see="flash-triton-first", rung=rung)


_rows(
    "sum_not_rescaled",
    {"total * tl.exp(m - m_new) + tl.sum": "total + tl.sum"},
    _("When a block raises the maximum, the sum so far must be multiplied by exp(old − new)."),
    rung=3,
)
_rows(
    "low_number_behind_the_end",
    {'other=float("-inf")': "other=-1000.0"},
    _(
        "What stands behind the end is loaded as a number that is low for most scores. Scores may "
        "be lower than that; only −∞ is below them all."
    ),
    rung=3,
)
_rows(
    "out_of_bounds_load",
    {', mask=columns < S, other=float("-inf"))': ")"},
    _(
        "The load has no mask: in the last block it reads what stands behind the row, the next row "
        "or memory that belongs to something else."
    ),
)
_rows(
    "masked_scores_count_as_zero",
    {'other=float("-inf")': "other=0.0"},
    _(
        "What the mask leaves out is loaded as 0, and a score of 0 has exponential 1. It must be "
        "−∞, whose exponential is 0."
    ),
)
_rows(
    "rows_a_block_apart",
    {"row * S": "row * BLOCK"},
    _("Rows begin S numbers apart in memory, however many are loaded together."),
    rung=1,
)
_rows(
    "always_the_first_row",
    {"row * S + columns": "columns"},
    _("The pointer does not depend on the program's row: every program reads row 0."),
    rung=1,
)
_rows(
    "only_the_first_block",
    {"range(0, S, BLOCK)": "range(0, BLOCK, BLOCK)"},
    _("There is one step only: what stands behind the first block of a row takes no part."),
    rung=1,
)
_rows(
    "only_full_blocks",
    {"range(0, S, BLOCK)": "range(0, S // BLOCK * BLOCK, BLOCK)"},
    _("The number of blocks is rounded down: the end of a row takes no part."),
)
_rows(
    "maximum_starts_at_zero",
    {'m = float("-inf")': "m = 0.0"},
    _("The maximum starts at 0: rows far below zero lose all their exponentials, and log 0 is −∞."),
    rung=3,
)
_rows(
    "no_maximum_subtracted",
    {
        "total * tl.exp(m - m_new)": "total",
        "tl.exp(x - m_new)": "tl.exp(x)",
        "m + tl.log(total)": "tl.log(total)",
    },
    _("exp is taken of the scores as they are, and overflows for large ones."),
    rung=3,
)
_rows(
    "against_the_blocks_maximum",
    {"m_new = tl.maximum(m, tl.max(x, axis=0))": "m_new = tl.max(x, axis=0)"},
    _(
        "The maximum is that of the last block. Where an earlier block held a much larger score, "
        "exp(old − new) overflows."
    ),
    rung=3,
)
_rows(
    "maximum_forgotten_in_the_end",
    {"m + tl.log(total)": "tl.log(total)"},
    _("log of the sum belongs to exp(x − m): the maximum must be added back."),
    rung=3,
)
_rows(
    "logarithm_in_base_two",
    {"m + tl.log(total)": "m + tl.log2(total)"},
    _("tl.log2 has base 2, and the maximum is in natural units: the two do not add up."),
    rung=3,
)
_rows(
    "stored_in_every_step",
    {
        "        m = m_new\n    tl.store(logsumexp_ptr + row, m + tl.log(total))": (
            "        m = m_new\n        tl.store(logsumexp_ptr + row, m + tl.log(total))"
        )
    },
    _("The result is stored after every block; the last store alone is wanted."),
    rung=3,
)
_rows(
    "row_loaded_twice",
    {
        "        m_new = tl.maximum(m, tl.max(x, axis=0))\n": (
            "        again = tl.load(\n"
            "            x_ptr + row * S + columns, mask=columns < S, other=float('-inf')\n"
            "        )\n"
            "        m_new = tl.maximum(m, tl.max(again, axis=0))\n"
        )
    },
    _("Every score is loaded twice, once for the maximum and once for the sum."),
    rung=3,
)


@right("logsumexp_kernel", style="a vector of maxima and sums, reduced in the end")
@triton.jit
def one_state_per_column(x_ptr, logsumexp_ptr, S, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    m = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, S, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * S + at, mask=at < S, other=float("-inf"))
        new = tl.maximum(m, x)
        total = total * tl.exp(m - new) + tl.exp(x - new)
        m = new
    largest = tl.max(m, axis=0)
    total = tl.sum(total * tl.exp(m - largest), axis=0)
    tl.store(logsumexp_ptr + row, largest + tl.log(total))


@right("logsumexp_kernel", style="exp2 and log2, pointers moved along")
@triton.jit
def moving_pointers(x_ptr, logsumexp_ptr, S, BLOCK: tl.constexpr):
    pointers = x_ptr + tl.program_id(0) * S + tl.arange(0, BLOCK)
    left = S
    m = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    while left > 0:
        x = (
            tl.load(pointers, mask=tl.arange(0, BLOCK) < left, other=float("-inf"))
            * 1.4426950408889634
        )
        new = tl.maximum(m, tl.max(x, 0))
        total = total * tl.exp2(m - new) + tl.sum(tl.exp2(x - new), 0)
        m = new
        pointers += BLOCK
        left -= BLOCK
    tl.store(logsumexp_ptr + tl.program_id(0), (m + tl.log2(total)) / 1.4426950408889634)


right_edit(
    "logsumexp_kernel",
    "the_mask_applied_by_where",
    {
        'mask=columns < S, other=float("-inf"))': (
            'mask=columns < S)\n        x = tl.where(columns < S, x, float("-inf"))'
        )
    },
    style="masked scores are set by tl.where",
)


# --- flash_forward_kernel --------------------------------------------------------------------


def _kernel(
    name: str,
    edits: dict[str, str],
    why: str,
    *,
    rung: int = 2,
    form_of: str | None = None,
) -> None:
    wrong_edit(
        "flash_forward_kernel",
        name,
        edits,
        why=why,
        see="flash-triton-forward",
        rung=rung,
        form_of=form_of,
    )


_kernel(
    "accumulator_not_rescaled",
    {"accumulator = accumulator * factor[:, None]": "accumulator = accumulator * 1.0"},
    _("The accumulator must be multiplied by exp(old maximum − new), row by row, in every step."),
    rung=3,
)
_kernel(
    "total_not_rescaled",
    {"total = total * factor + tl.sum(p, axis=1)": "total = total + tl.sum(p, axis=1)"},
    _("The accumulator is rescaled and the sum of exponentials is not."),
    rung=3,
)
_kernel(
    "keys_behind_the_end_take_part",
    {"allowed = keys[None, :] < S": "allowed = keys[None, :] >= 0"},
    _(
        "The load leaves out keys behind S, which gives them score 0 and not −∞: they take a share "
        "of the weights."
    ),
)
_kernel(
    "out_of_bounds_load",
    {
        "k = tl.load(k_ptr + k_at, mask=keys[:, None] < S, other=0.0)": "k = tl.load(k_ptr + k_at)",
        "v = tl.load(v_ptr + k_at, mask=keys[:, None] < S, other=0.0)": "v = tl.load(v_ptr + k_at)",
    },
    _(
        "Keys and values of the last tile are loaded without a mask: rows behind S lie in the next "
        "head, or in memory that belongs to something else."
    ),
)
_kernel(
    "queries_loaded_out_of_bounds",
    {"tl.load(q_ptr + q_at, mask=queries[:, None] < T, other=0.0)": "tl.load(q_ptr + q_at)"},
    _("The last tile of queries is loaded without a mask: rows behind T are read."),
)
_kernel(
    "out_of_bounds_store",
    {"output.to(q.dtype), mask=queries[:, None] < T)": "output.to(q.dtype))"},
    _(
        "The output of the last tile is stored without a mask: rows behind T overwrite the next "
        "head, or memory that belongs to something else."
    ),
)
_kernel(
    "logsumexp_stored_out_of_bounds",
    {"logsumexp, mask=queries < T)": "logsumexp)"},
    _("The logsumexp of the last tile is stored without a mask, over what stands behind it."),
)
_kernel(
    "always_the_first_head",
    {"head = tl.program_id(1).to(tl.int64)": "head = tl.program_id(1).to(tl.int64) * 0"},
    _("The pointers do not depend on the head: every program reads and writes head 0."),
    rung=1,
)
_kernel(
    "keys_lie_T_rows_apart",
    {"(head * S + keys[:, None]) * d": "(head * T + keys[:, None]) * d"},
    _("The keys of a head begin S rows after those of the one before, not T rows."),
    rung=1,
)
_kernel(
    "causal_is_ignored",
    {
        "    if CAUSAL:\n        whole": "    if False:\n        whole",
        "                if CAUSAL:\n": "                if False:\n",
    },
    _("CAUSAL changes nothing: every query sees every key."),
)
_kernel(
    "causal_hides_the_query_itself",
    {
        "keys[None, :] <= queries[:, None] + (S - T)": "keys[None, :] < queries[:, None] + (S - T)",
        "tile * BLOCK_Q + S - T + 1)": "tile * BLOCK_Q + S - T)",
    },
    _("The mask is one too narrow: a query must see the key at its own position."),
)
_kernel(
    "first_query_at_the_first_key",
    {
        "keys[None, :] <= queries[:, None] + (S - T)": "keys[None, :] <= queries[:, None]",
        "tl.minimum(S, tile * BLOCK_Q + S - T + 1)": "tl.minimum(S, tile * BLOCK_Q + 1)",
        "tile * BLOCK_Q + BLOCK_Q + S - T)": "tile * BLOCK_Q + BLOCK_Q)",
    },
    _("Query t stands at position t + S − T among the keys: the last query sees the last key."),
)
_kernel(
    "a_tile_too_many_is_skipped",
    {"tile * BLOCK_Q + BLOCK_Q + S - T)": "tile * BLOCK_Q + S - T)"},
    _(
        "The loop ends too early: keys that queries of the tile see, near the diagonal, are missing."
    ),
)
_kernel(
    "end_from_the_first_query",
    {"tile * BLOCK_Q + BLOCK_Q + S - T)": "tile * BLOCK_Q + S - T + 1)"},
    _("The loop ends with the tile's first query; the last one sees the most keys."),
    form_of="a_tile_too_many_is_skipped",
)
_kernel(
    "no_tile_is_skipped",
    {"end = tl.maximum(0, tl.minimum(S, tile * BLOCK_Q + BLOCK_Q + S - T))": "end = S"},
    _("Tiles above the diagonal are loaded and computed, and then masked away."),
    rung=3,
)
_kernel(
    "skipping_ends_a_tile_late",
    {"tile * BLOCK_Q + BLOCK_Q + S - T)": "tile * BLOCK_Q + BLOCK_Q + S - T + 1)"},
    _("The loop goes one key too far: where a tile ends at the diagonal, one more is loaded."),
    rung=3,
)
_kernel(
    "tiles_without_a_mask_on_the_diagonal",
    {
        "whole = tl.maximum(0, tl.minimum(S, tile * BLOCK_Q + S - T + 1))": (
            "whole = tl.maximum(0, tl.minimum(S, tile * BLOCK_Q + BLOCK_Q + S - T))"
        )
    },
    _(
        "Tiles on the diagonal are taken for tiles that every query sees whole, and are left "
        "unmasked."
    ),
)
_kernel(
    "last_keys_dropped",
    {"last = end if masked else whole": "last = end // BLOCK_K * BLOCK_K if masked else whole"},
    _("The number of tiles is rounded down: keys in a last tile that is not full take no part."),
)
_kernel(
    "scale_forgotten",
    {"scale *= 1.4426950408889634": "scale = 1.4426950408889634"},
    _("The scores are not multiplied by the scale."),
    rung=3,
)
_kernel(
    "scale_applied_twice",
    {"scale *= 1.4426950408889634": "scale *= 1.4426950408889634 * scale"},
    _("The scores are multiplied by the scale twice."),
    rung=3,
)
_kernel(
    "exp2_of_natural_scores",
    {"    scale *= 1.4426950408889634\n": ""},
    _("tl.exp2 is 2 to the power: scores must be multiplied by log2(e) before, or tl.exp be used."),
    rung=3,
)
_kernel(
    "logsumexp_in_base_two",
    {"(m + tl.log2(divisor)) * 0.6931471805599453": "m + tl.log2(divisor)"},
    _("The logsumexp is in base 2, in which the kernel counts; stored is the natural one."),
    rung=3,
)
_kernel(
    "maximum_alone_in_base_two",
    {"(m + tl.log2(divisor)) * 0.6931471805599453": "m + tl.log(divisor)"},
    _("The maximum is in base 2 and the sum's logarithm natural: the two do not add up."),
    rung=3,
)
_kernel(
    "logsumexp_converted_backwards",
    {"(m + tl.log2(divisor)) * 0.6931471805599453": "(m + tl.log2(divisor)) * 1.4426950408889634"},
    _("From base 2 to base e one multiplies by ln 2; log2(e) leads the other way."),
    rung=3,
)
_kernel(
    "logsumexp_without_the_maximum",
    {"(m + tl.log2(divisor))": "tl.log2(divisor)"},
    _("log of the sum belongs to exp(score − m): the maximum must be added back."),
    rung=3,
)
_kernel(
    "maximum_starts_at_zero",
    {'m = tl.full((BLOCK_Q,), float("-inf"), tl.float32)': "m = tl.zeros((BLOCK_Q,), tl.float32)"},
    _("The maximum starts at 0: rows whose scores are all far below lose their weights."),
)
_kernel(
    "no_maximum_subtracted",
    {
        "            subtracted = m_new\n": "            subtracted = m_new * 0.0\n",
        'subtracted = tl.where(m_new == float("-inf"), 0.0, m_new)': "subtracted = tl.zeros_like(m_new)",
        "factor = tl.exp2(m - subtracted)": "factor = tl.full((BLOCK_Q,), 1.0, tl.float32)",
        "(m + tl.log2(divisor))": "tl.log2(total)",
    },
    _("The exponentials are taken without a maximum, and overflow for large scores."),
)
_kernel(
    "rows_without_keys_are_nan",
    {
        'subtracted = tl.where(m_new == float("-inf"), 0.0, m_new)': "subtracted = m_new",
        "divisor = tl.where(total == 0.0, 1.0, total)": "divisor = total",
    },
    _("A row that has seen no key yet has maximum −∞, and −∞ − (−∞) is NaN. Subtract 0 there."),
)
_kernel(
    "rows_without_keys_beside_others_are_nan",
    {'subtracted = tl.where(m_new == float("-inf"), 0.0, m_new)': "subtracted = m_new"},
    _("−∞ is subtracted from −∞ in a row without keys of a tile that others see."),
    form_of="rows_without_keys_are_nan",
)
_kernel(
    "accumulator_in_half_precision",
    {
        "accumulator = accumulator * factor[:, None]": (
            "accumulator = (accumulator * factor[:, None]).to(q.dtype).to(tl.float32)"
        ),
        "total = total * factor + tl.sum(p, axis=1)": (
            "total = (total * factor + tl.sum(p, axis=1)).to(q.dtype).to(tl.float32)"
        ),
    },
    _("Sum and accumulator are rounded to half precision in every step; keep them in tl.float32."),
)
_kernel(
    "accumulator_rounded_after_the_product",
    {
        'tl.dot(p.to(v.dtype), v, accumulator, input_precision="ieee")': (
            'tl.dot(p.to(v.dtype), v, accumulator, input_precision="ieee")'
            ".to(v.dtype).to(tl.float32)"
        )
    },
    _("The accumulator is rounded to half precision in every step; keep it in tl.float32."),
    form_of="accumulator_in_half_precision",
)
_kernel(
    "scores_in_half_precision",
    {
        'tl.dot(q, tl.trans(k), input_precision="ieee") * scale': (
            'tl.dot(q, tl.trans(k), input_precision="ieee").to(q.dtype).to(tl.float32) * scale'
        )
    },
    _("tl.dot gives float32; the scores are rounded back to half precision before the softmax."),
    form_of="accumulator_in_half_precision",
)
_kernel(
    "weights_rounded_to_float16",
    {"tl.dot(p.to(v.dtype), v, accumulator": "tl.dot(p.to(tl.float16).to(v.dtype), v, accumulator"},
    _(
        "The weights are made float16 whatever the inputs are. They may be as narrow as the values, "
        "not narrower."
    ),
)
_kernel(
    "queries_loaded_in_every_step",
    {
        "            scores = tl.dot(q, tl": (
            "            q = tl.load(q_ptr + q_at, mask=queries[:, None] < T, other=0.0)\n"
            "            scores = tl.dot(q, tl"
        )
    },
    _("The tile of queries is loaded again in every step, though it never changes."),
    rung=1,
)
_kernel(
    "stored_in_every_step",
    {
        "            m = m_new\n": (
            "            m = m_new\n"
            "            tl.store(output_ptr + q_at, accumulator.to(q.dtype), mask=queries[:, None] < T)\n"
        )
    },
    _("The accumulator is stored in every step. It stays in registers until the loop has ended."),
    rung=1,
)
_kernel(
    "output_not_divided",
    {"output = accumulator / divisor[:, None]": "output = accumulator"},
    _("The accumulator is stored without division by the sum of the exponentials."),
    rung=3,
)


@right("flash_forward_kernel", style="every tile masked, natural exponentials")
@triton.jit
def every_tile_masked(
    q_ptr,
    k_ptr,
    v_ptr,
    output_ptr,
    logsumexp_ptr,
    T,
    S,
    scale,
    d: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    i = tl.program_id(0)
    n = tl.program_id(1)
    rows = i * BLOCK_Q + tl.arange(0, BLOCK_Q)
    cols = tl.arange(0, d)
    q_ptr += n * T * d
    output_ptr += n * T * d
    k_ptr += n * S * d
    v_ptr += n * S * d
    q = tl.load(q_ptr + rows[:, None] * d + cols[None, :], mask=(rows < T)[:, None], other=0.0)
    m = tl.full([BLOCK_Q], -1e30, dtype=tl.float32)
    l = tl.zeros([BLOCK_Q], dtype=tl.float32)
    acc = tl.zeros([BLOCK_Q, d], dtype=tl.float32)
    hi = S
    if CAUSAL:
        hi = tl.minimum(S, (i + 1) * BLOCK_Q + S - T)
    for s in range(0, hi, BLOCK_K):
        keys = s + tl.arange(0, BLOCK_K)
        k = tl.load(k_ptr + keys[None, :] * d + cols[:, None], mask=(keys < S)[None, :], other=0.0)
        ok = (keys < S)[None, :]
        if CAUSAL:
            ok = ok & (rows[:, None] + S - T >= keys[None, :])
        qk = tl.where(ok, tl.dot(q, k, input_precision="ieee") * scale, float("-inf"))
        new = tl.maximum(m, tl.max(qk, 1))
        p = tl.exp(qk - new[:, None])
        alpha = tl.exp(m - new)
        v = tl.load(v_ptr + keys[:, None] * d + cols[None, :], mask=(keys < S)[:, None], other=0.0)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        l = l * alpha + tl.sum(p, 1)
        m = new
    o = tl.where((l > 0)[:, None], acc / tl.where(l > 0, l, 1.0)[:, None], 0.0)
    tl.store(
        output_ptr + rows[:, None] * d + cols[None, :],
        o.to(output_ptr.dtype.element_ty),
        mask=(rows < T)[:, None],
    )
    lse = tl.where(l > 0, m + tl.log(tl.where(l > 0, l, 1.0)), float("-inf"))
    tl.store(logsumexp_ptr + n * T + rows, lse, mask=rows < T)


@right("flash_forward_kernel", style="block pointers")
@triton.jit
def with_block_pointers(
    q_ptr,
    k_ptr,
    v_ptr,
    output_ptr,
    logsumexp_ptr,
    T,
    S,
    scale,
    d: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    start = tl.program_id(0) * BLOCK_Q
    head = tl.program_id(1)
    q_block = tl.make_block_ptr(
        q_ptr + head * T * d, (T, d), (d, 1), (start, 0), (BLOCK_Q, d), (1, 0)
    )
    k_block = tl.make_block_ptr(k_ptr + head * S * d, (d, S), (1, d), (0, 0), (d, BLOCK_K), (0, 1))
    v_block = tl.make_block_ptr(v_ptr + head * S * d, (S, d), (d, 1), (0, 0), (BLOCK_K, d), (1, 0))
    o_block = tl.make_block_ptr(
        output_ptr + head * T * d, (T, d), (d, 1), (start, 0), (BLOCK_Q, d), (1, 0)
    )
    q = tl.load(q_block, boundary_check=(0,), padding_option="zero")
    rows = start + tl.arange(0, BLOCK_Q)
    logsumexp = tl.full((BLOCK_Q,), -1e30, tl.float32)
    out = tl.zeros((BLOCK_Q, d), tl.float32)
    stop = S
    if CAUSAL:
        stop = tl.minimum(stop, start + BLOCK_Q + S - T)
    for s in range(0, stop, BLOCK_K):
        k = tl.load(k_block, boundary_check=(1,), padding_option="zero")
        v = tl.load(v_block, boundary_check=(0,), padding_option="zero")
        keys = s + tl.arange(0, BLOCK_K)
        seen = (keys < S)[None, :]
        if CAUSAL:
            seen = seen & (keys[None, :] - (S - T) <= rows[:, None])
        scores = tl.dot(q, k, input_precision="ieee") * scale + tl.where(seen, 0.0, float("-inf"))
        top = tl.maximum(logsumexp, tl.max(scores, axis=1))
        p = tl.exp(scores - top[:, None])
        old = tl.exp(logsumexp - top)
        total = old + tl.sum(p, axis=1)
        total = tl.where(total > 0.0, total, 1.0)
        # the output is kept divided all the time
        out = out * (old / total)[:, None]
        out = tl.dot((p / total[:, None]).to(v.dtype), v, out, input_precision="ieee")
        logsumexp = top + tl.log(total)
        k_block = tl.advance(k_block, (0, BLOCK_K))
        v_block = tl.advance(v_block, (BLOCK_K, 0))
    logsumexp = tl.where(logsumexp < -1e29, float("-inf"), logsumexp)
    tl.store(o_block, out.to(q.dtype), boundary_check=(0,))
    tl.store(logsumexp_ptr + head * T + rows, logsumexp, mask=rows < T)


right_edit(
    "flash_forward_kernel",
    "queries_scaled_beforehand",
    {
        'tl.dot(q, tl.trans(k), input_precision="ieee") * scale': (
            'tl.dot(q.to(tl.float32) * scale, tl.trans(k).to(tl.float32), input_precision="ieee")'
        )
    },
    style="queries widened and scaled before the product",
)


# --- the backward kernels --------------------------------------------------------------------


def _both_kernels(
    name: str, dq: dict[str, str] | None, dkv: dict[str, str] | None, why: str, *, rung: int = 2
) -> None:
    for exercise, edits in (
        ("flash_backward_dq_kernel", dq),
        ("flash_backward_dkv_kernel", dkv),
    ):
        if edits is not None:
            wrong_edit(exercise, name, edits, why=why, see="flash-triton-backward", rung=rung)


_DS = "ds = p * (dp - delta[:, None])"
_P = "p = tl.exp(scores - logsumexp[:, None])"
_both_kernels(
    "delta_forgotten",
    {_DS: "ds = p * dp"},
    {_DS: "ds = p * dp"},
    _("delta is not subtracted from dp: the softmax couples the scores of a row."),
    rung=3,
)
_both_kernels(
    "delta_of_the_tile",
    {_DS: "ds = p * (dp - tl.sum(p * dp, axis=1)[:, None])"},
    {_DS: "ds = p * (dp - tl.sum(p * dp, axis=1)[:, None])"},
    _(
        "delta is summed over the tile's keys only; it belongs to the whole row, and was handed over."
    ),
    rung=3,
)
_both_kernels(
    "scaled_twice",
    {"(dq * scale)": "(dq * scale * scale)"},
    {"(dk * scale)": "(dk * scale * scale)"},
    _("The scores are divided by √d once, so that their gradient holds the scale once, not twice."),
    rung=3,
)
_both_kernels(
    "scale_missing_in_the_gradient",
    {"(dq * scale)": "dq"},
    {"(dk * scale)": "dk"},
    _("The scores were multiplied by the scale, so the gradient must be too."),
    rung=3,
)
_both_kernels(
    "scale_missing_in_the_scores",
    {'tl.trans(k), input_precision="ieee") * scale': 'tl.trans(k), input_precision="ieee")'},
    {'tl.trans(k), input_precision="ieee") * scale': 'tl.trans(k), input_precision="ieee")'},
    _(
        "The weights are recomputed from scores without the scale, so they are not those of forward."
    ),
)
_both_kernels(
    "exponentials_without_the_logsumexp",
    {_P: "p = tl.exp(scores)"},
    {_P: "p = tl.exp(scores)"},
    _("exp(score) is no weight: subtract the row's logsumexp first."),
    rung=1,
)
_both_kernels(
    "logsumexp_taken_for_base_two",
    {_P: "p = tl.exp2(scores * 1.4426950408889634 - logsumexp[:, None])"},
    {_P: "p = tl.exp2(scores * 1.4426950408889634 - logsumexp[:, None])"},
    _(
        "The saved logsumexp is natural; in a power of two it must be multiplied by log2(e) as well."
    ),
)
_both_kernels(
    "causal_is_ignored",
    {
        "    if CAUSAL:\n        end": "    if False:\n        end",
        "        if CAUSAL:\n            allowed": "        if False:\n            allowed",
    },
    {
        "    if CAUSAL:  #": "    if False:  #",
        "        if CAUSAL:\n            allowed": "        if False:\n            allowed",
    },
    _("CAUSAL changes nothing: hidden keys get weights, and gradients with them."),
)
_both_kernels(
    "causal_hides_the_query_itself",
    {"keys[None, :] <= queries[:, None]": "keys[None, :] < queries[:, None]"},
    {"keys[None, :] <= queries[:, None]": "keys[None, :] < queries[:, None]"},
    _("The mask is one narrower than in the forward pass: a query sees the key at its position."),
)
_both_kernels(
    "first_query_at_the_first_key",
    {
        "queries[:, None] + (S - T)": "queries[:, None]",
        "tile * BLOCK_Q + BLOCK_Q + S - T)": "tile * BLOCK_Q + BLOCK_Q)",
    },
    {
        "queries[:, None] + (S - T)": "queries[:, None]",
        "tile * BLOCK_K - (S - T))": "tile * BLOCK_K)",
    },
    _("Query t stands at position t + S − T among the keys, as in the forward pass."),
)
_both_kernels(
    "a_tile_too_many_is_skipped",
    {"tile * BLOCK_Q + BLOCK_Q + S - T)": "tile * BLOCK_Q + S - T)"},
    {"// BLOCK_Q * BLOCK_Q": "// BLOCK_Q * BLOCK_Q + BLOCK_Q"},
    _("A tile on the diagonal is passed over, though some of it is seen."),
)
wrong_edit(
    "flash_backward_dkv_kernel",
    "begin_from_the_last_key",
    {"tile * BLOCK_K - (S - T))": "tile * BLOCK_K + BLOCK_K - 1 - (S - T))"},
    why=_("The loop begins where the tile's last key is seen; its first key is seen earlier."),
    see="flash-triton-backward",
    rung=2,
    form_of="a_tile_too_many_is_skipped",
)
wrong_edit(
    "flash_backward_dkv_kernel",
    "skipping_without_the_offset",
    {"tile * BLOCK_K - (S - T))": "tile * BLOCK_K)"},
    why=_("The mask knows of S − T, and the first tile of the loop does not."),
    see="flash-triton-backward",
    rung=2,
    form_of="first_query_at_the_first_key",
)
_both_kernels(
    "no_tile_is_skipped",
    {"end = tl.minimum(S, tile * BLOCK_Q + BLOCK_Q + S - T)": "end = S"},
    {"tl.maximum(0, tile * BLOCK_K - (S - T)) // BLOCK_Q * BLOCK_Q": "0"},
    _("Tiles in which no query sees a key are loaded and computed, and then masked away."),
    rung=3,
)
_both_kernels(
    "out_of_bounds_load",
    {"k = tl.load(k_ptr + k_at, mask=keys[:, None] < S, other=0.0)": "k = tl.load(k_ptr + k_at)"},
    {"q = tl.load(q_ptr + q_at, mask=inside[:, None], other=0.0)": "q = tl.load(q_ptr + q_at)"},
    _(
        "Rows are read that are not there: a last tile is loaded without a mask, or the loop begins "
        "before the first row."
    ),
)
_both_kernels(
    "skipping_is_a_tile_off",
    {"tile * BLOCK_Q + BLOCK_Q + S - T)": "tile * BLOCK_Q + BLOCK_Q + S - T + 1)"},
    {"tile * BLOCK_K - (S - T))": "tile * BLOCK_K - 1 - (S - T))"},
    _("The loop goes one row too far: where a tile ends at the diagonal, one more is loaded."),
    rung=3,
)
_both_kernels(
    "keys_behind_the_end_have_score_zero",
    {"allowed = keys[None, :] < S\n": "allowed = keys[None, :] >= 0\n"},
    None,
    _(
        "Keys behind the end are loaded as 0, and their score is 0. That is no harm as long as "
        "exp(0 − logsumexp) is finite; where all scores are far below zero, it is not."
    ),
    rung=3,
)
_both_kernels(
    "out_of_bounds_store",
    {"(dq * scale).to(q.dtype), mask=inside[:, None])": "(dq * scale).to(q.dtype))"},
    {"dv.to(k.dtype), mask=keys[:, None] < S)": "dv.to(k.dtype))"},
    _("The gradient of a last tile is stored without a mask, over what stands behind it."),
)
_both_kernels(
    "always_the_first_head",
    {"tl.program_id(1).to(tl.int64)": "tl.program_id(1).to(tl.int64) * 0"},
    {"tl.program_id(1).to(tl.int64)": "tl.program_id(1).to(tl.int64) * 0"},
    _("The pointers do not depend on the head: every program reads and writes head 0."),
    rung=1,
)
_both_kernels(
    "queries_without_keys_are_nan",
    {'    logsumexp = tl.where(logsumexp == float("-inf"), float("inf"), logsumexp)\n': ""},
    {'        logsumexp = tl.where(logsumexp == float("-inf"), float("inf"), logsumexp)\n': ""},
    _(
        "For a query that sees no key, score and logsumexp are both −∞, and their difference is "
        "NaN. With +∞ its weights are 0."
    ),
    rung=1,
)
_both_kernels(
    "only_the_last_tile_stays",
    {"tl.dot(ds.to(k.dtype), k, dq, ": "tl.dot(ds.to(k.dtype), k, "},
    {"tl.dot(tl.trans(ds.to(q.dtype)), q, dk, ": "tl.dot(tl.trans(ds.to(q.dtype)), q, "},
    _(
        "The sum over tiles is overwritten in every step: what the last tile adds is all that stays."
    ),
)
_both_kernels(
    "summed_in_half_precision",
    {'k, dq, input_precision="ieee")': 'k, dq, input_precision="ieee").to(q.dtype).to(tl.float32)'},
    {'g, dv, input_precision="ieee")': 'g, dv, input_precision="ieee").to(q.dtype).to(tl.float32)'},
    _("The sum is rounded to half precision in every step; keep it in tl.float32 to the end."),
)
wrong_edit(
    "flash_backward_dkv_kernel",
    "dk_summed_in_half_precision",
    {'q, dk, input_precision="ieee")': 'q, dk, input_precision="ieee").to(q.dtype).to(tl.float32)'},
    why=_("The sum is rounded to half precision in every step; keep it in tl.float32 to the end."),
    see="flash-triton-backward",
    rung=2,
    form_of="summed_in_half_precision",
)
_both_kernels(
    "softmax_of_the_tile",
    {
        _P: "p = tl.exp(scores - tl.max(scores, axis=1)[:, None])\n        p = p / tl.sum(p, axis=1)[:, None]"
    },
    {
        _P: "p = tl.exp(scores - tl.max(scores, axis=1)[:, None])\n        p = p / tl.sum(p, axis=1)[:, None]"
    },
    _("A softmax over the tile makes every tile's weights sum to 1; use the row's logsumexp."),
    rung=1,
)
_both_kernels(
    "keys_behind_the_end_take_part",
    {
        "allowed = keys[None, :] < S": "allowed = keys[None, :] >= 0",
        "k = tl.load(k_ptr + k_at, mask=keys[:, None] < S, other=0.0)": (
            "k = tl.load(k_ptr + k_at, mask=keys[:, None] < S, other=1.0)"
        ),
    },
    None,
    _("Keys behind S take part: they were loaded as numbers other than 0, and are not masked."),
)
_both_kernels(
    "dk_and_dv_swapped",
    None,
    {
        "tl.store(dk_ptr + k_at, (dk * scale)": "tl.store(dv_ptr + k_at, (dk * scale)",
        "tl.store(dv_ptr + k_at, dv": "tl.store(dk_ptr + k_at, dv",
    },
    _("dk and dv are stored in each other's place."),
)
_both_kernels(
    "dv_with_the_scale",
    None,
    {"dv.to(k.dtype)": "(dv * scale).to(k.dtype)"},
    _("dv is multiplied by the scale. The values do not enter the scores, so no scale is in dv."),
    rung=2,
)
_both_kernels(
    "dv_from_the_scores_gradient",
    None,
    {
        '        dv = tl.dot(tl.trans(p.to(g.dtype)), g, dv, input_precision="ieee")\n': "",
        "        dk = tl.dot(": '        dv = tl.dot(tl.trans(ds.to(g.dtype)), g, dv, input_precision="ieee")\n        dk = tl.dot(',
    },
    _("dv is pᵀ g: the weights themselves, not the gradient of the scores."),
    rung=3,
)
_both_kernels(
    "dk_from_the_weights",
    None,
    {"tl.dot(tl.trans(ds.to(q.dtype)), q, dk": "tl.dot(tl.trans(p.to(q.dtype)), q, dk"},
    _("dk is dsᵀ q: the gradient of the scores, not the weights."),
    rung=3,
)
_both_kernels(
    "dq_from_the_queries",
    {"tl.dot(ds.to(k.dtype), k, dq": "tl.dot(ds.to(k.dtype), v, dq"},
    None,
    _("dq multiplies the gradient of the scores by the keys, not by the values."),
    rung=3,
)
_both_kernels(
    "rows_behind_the_end_take_part",
    None,
    {
        'mask=inside, other=float("inf"))': "mask=inside, other=0.0)",
        "g = tl.load(grad_output_ptr + q_at, mask=inside[:, None], other=0.0)": (
            "g = tl.load(grad_output_ptr + q_at, mask=inside[:, None], other=1.0)"
        ),
    },
    _("Rows behind T get weights, since their logsumexp was loaded as 0, and add to dk and dv."),
    rung=1,
)


right_edit(
    "flash_backward_dq_kernel",
    "with_exp2",
    {_P: "p = tl.exp2((scores - logsumexp[:, None]) * 1.4426950408889634)"},
    style="powers of two",
)
right_edit(
    "flash_backward_dq_kernel",
    "weights_masked_instead",
    {
        '        scores = tl.where(allowed, scores, float("-inf"))\n': "",
        _P: "p = tl.where(allowed, tl.exp(scores - logsumexp[:, None]), 0.0)",
    },
    style="the weights are masked, not the scores",
)
right_edit(
    "flash_backward_dkv_kernel",
    "with_exp2",
    {_P: "p = tl.exp2((scores - logsumexp[:, None]) * 1.4426950408889634)"},
    style="powers of two",
)


@right("flash_backward_dq_kernel", style="keys loaded transposed, pointers moved along")
@triton.jit
def dq_with_moving_pointers(
    q_ptr,
    k_ptr,
    v_ptr,
    grad_output_ptr,
    logsumexp_ptr,
    delta_ptr,
    dq_ptr,
    T,
    S,
    scale,
    d: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    i, n = tl.program_id(0), tl.program_id(1)
    rows, cols = i * BLOCK_Q + tl.arange(0, BLOCK_Q), tl.arange(0, d)
    at = n * T * d + rows[:, None] * d + cols[None, :]
    there = rows[:, None] < T
    q = tl.load(q_ptr + at, mask=there, other=0.0).to(tl.float32) * scale
    g = tl.load(grad_output_ptr + at, mask=there, other=0.0).to(tl.float32)
    lse = tl.load(logsumexp_ptr + n * T + rows, mask=rows < T, other=0.0)
    delta = tl.load(delta_ptr + n * T + rows, mask=rows < T, other=0.0)
    keys = tl.arange(0, BLOCK_K)
    k_at = k_ptr + n * S * d + cols[:, None] + keys[None, :] * d
    v_at = v_ptr + n * S * d + cols[:, None] + keys[None, :] * d
    dq = tl.zeros([BLOCK_Q, d], tl.float32)
    hi = S if not CAUSAL else tl.minimum(S, (i + 1) * BLOCK_Q + S - T)
    for s in range(0, hi, BLOCK_K):
        ok = (s + keys)[None, :] < S
        kt = tl.load(k_at, mask=ok, other=0.0).to(tl.float32)
        vt = tl.load(v_at, mask=ok, other=0.0).to(tl.float32)
        p = tl.exp(tl.dot(q, kt, input_precision="ieee") - lse[:, None])
        if CAUSAL:
            ok = ok & ((s + keys)[None, :] - (S - T) <= rows[:, None])
        p = tl.where(ok, p, 0.0)
        ds = p * (tl.dot(g, vt, input_precision="ieee") - delta[:, None])
        dq += tl.dot(ds, tl.trans(kt), input_precision="ieee")
        k_at += BLOCK_K * d
        v_at += BLOCK_K * d
    tl.store(dq_ptr + at, (dq * scale).to(dq_ptr.dtype.element_ty), mask=there)


@right("flash_backward_dkv_kernel", style="scores transposed: keys in rows")
@triton.jit
def keys_in_rows(
    q_ptr,
    k_ptr,
    v_ptr,
    grad_output_ptr,
    logsumexp_ptr,
    delta_ptr,
    dk_ptr,
    dv_ptr,
    T,
    S,
    scale,
    d: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    j, n = tl.program_id(0), tl.program_id(1)
    keys, cols = j * BLOCK_K + tl.arange(0, BLOCK_K), tl.arange(0, d)
    at = n * S * d + keys[:, None] * d + cols[None, :]
    k = tl.load(k_ptr + at, mask=keys[:, None] < S, other=0.0)
    v = tl.load(v_ptr + at, mask=keys[:, None] < S, other=0.0)
    dk = tl.zeros([BLOCK_K, d], tl.float32)
    dv = tl.zeros([BLOCK_K, d], tl.float32)
    lo = 0
    if CAUSAL:
        lo = tl.maximum(j * BLOCK_K + T - S, 0) // BLOCK_Q * BLOCK_Q
    for t in range(lo, T, BLOCK_Q):
        rows = t + tl.arange(0, BLOCK_Q)
        there = rows < T
        q_at = n * T * d + rows[:, None] * d + cols[None, :]
        q = tl.load(q_ptr + q_at, mask=there[:, None], other=0.0)
        g = tl.load(grad_output_ptr + q_at, mask=there[:, None], other=0.0)
        lse = tl.load(logsumexp_ptr + n * T + rows, mask=there, other=0.0)
        delta = tl.load(delta_ptr + n * T + rows, mask=there, other=0.0)
        pt = tl.exp(tl.dot(k, tl.trans(q), input_precision="ieee") * scale - lse[None, :])
        ok = there[None, :]
        if CAUSAL:
            ok = ok & (keys[:, None] <= rows[None, :] + S - T)
        pt = tl.where(ok, pt, 0.0)
        dv += tl.dot(pt.to(g.dtype), g, input_precision="ieee")
        dpt = tl.dot(v, tl.trans(g), input_precision="ieee")
        dst = pt * (dpt - delta[None, :]) * scale
        dk += tl.dot(dst.to(q.dtype), q, input_precision="ieee")
    tl.store(dk_ptr + at, dk.to(dk_ptr.dtype.element_ty), mask=keys[:, None] < S)
    tl.store(dv_ptr + at, dv.to(dv_ptr.dtype.element_ty), mask=keys[:, None] < S)


right_edit(
    "flash_backward_dkv_kernel",
    "scale_in_every_step",
    {
        _DS: "ds = p * (dp - delta[:, None]) * scale",
        "(dk * scale)": "dk",
    },
    style="the scale enters with the scores' gradient",
)


# --- combine_splits --------------------------------------------------------------------------


def _combine(name: str, edits: dict[str, str], why: str, *, rung: int = 2) -> None:
    wrong_edit("combine_splits", name, edits, why=why, see="flash-splits", rung=rung)


_combine(
    "outputs_averaged",
    {
        "weights = shares / total.masked_fill(total == 0, 1.0)": (
            "weights = torch.full_like(shares, 1 / shares.shape[0])"
        )
    },
    _("Every part counts the same. A part counts by its sum of exponentials, exp(logsumexp)."),
    rung=1,
)
_combine(
    "outputs_added",
    {"weights = shares / total.masked_fill(total == 0, 1.0)": "weights = torch.ones_like(shares)"},
    _("The outputs are added up as they are; their weights must sum to 1."),
    rung=1,
)
_combine(
    "shares_not_normalised",
    {"weights = shares / total.masked_fill(total == 0, 1.0)": "weights = shares"},
    _("The shares are not divided by their sum."),
    rung=3,
)
_combine(
    "weighted_by_the_logsumexp",
    {
        "shares = torch.exp(logsumexps - subtracted)": (
            "shares = (logsumexps - logsumexps.amin(dim=0) + 1).nan_to_num(0.0, 0.0, 0.0)"
        )
    },
    _("The weight of a part is exp of its logsumexp, not the logsumexp."),
    rung=1,
)
_combine(
    "no_maximum_subtracted",
    {
        "subtracted = m.masked_fill(m == -math.inf, 0.0)": "subtracted = torch.zeros_like(m)",
        "m + torch.log(total)": "torch.log(total)",
    },
    _(
        "exp of a large logsumexp overflows, and of a very negative one vanishes: subtract the maximum."
    ),
)
_combine(
    "one_maximum_for_all_queries",
    {"m = logsumexps.amax(dim=0)": "m = logsumexps.amax().expand(logsumexps.shape[1:])"},
    _(
        "One maximum is taken over all queries. A query whose logsumexps are far below it loses "
        "all its shares."
    ),
)
_combine(
    "powers_of_two",
    {"torch.exp(logsumexps - subtracted)": "torch.exp2(logsumexps - subtracted)"},
    _("The logsumexps are natural, so their exponential is exp, not a power of two."),
)
_combine(
    "empty_parts_are_nan",
    {"m.masked_fill(m == -math.inf, 0.0)": "m", "total.masked_fill(total == 0, 1.0)": "total"},
    _(
        "Where no part saw anything, −∞ is subtracted from −∞ or 0 divided by 0, which is NaN; asked "
        "for are zeros."
    ),
)
wrong_edit(
    "combine_splits",
    "output_alone_is_nan",
    {"total.masked_fill(total == 0, 1.0)": "total"},
    why=_("Where no part saw anything, the shares are 0, and so is their sum: 0 / 0 is NaN."),
    see="flash-splits",
    rung=2,
    form_of="empty_parts_are_nan",
)
_combine(
    "logsumexp_is_the_maximum",
    {"m + torch.log(total)": "m"},
    _("The joint logsumexp is the maximum plus the log of the sum of the shares."),
    rung=3,
)
_combine(
    "logsumexps_added",
    {"m + torch.log(total)": "logsumexps.sum(dim=0)"},
    _("Logarithms are added where sums should be: log(a + b) is not log a + log b."),
    rung=3,
)
_combine(
    "logsumexps_averaged",
    {"m + torch.log(total)": "logsumexps.mean(dim=0)"},
    _("The mean of the logsumexps is returned; the joint sum is larger than each part's."),
    rung=3,
)
_combine(
    "only_the_largest_part",
    {"torch.exp(logsumexps - subtracted)": "(logsumexps == m).to(logsumexps.dtype)"},
    _("The part with the largest logsumexp takes everything; the others have their shares too."),
)
_combine(
    "normalised_over_the_queries",
    {
        "weights = shares / total.masked_fill(total == 0, 1.0)": (
            "weights = shares / shares.sum(dim=-1, keepdim=True).clamp_min(1e-30)"
        )
    },
    _("The shares are divided by a sum over the queries; they must sum to 1 over the parts."),
)
_combine(
    "the_first_part_alone",
    {"output = (weights.unsqueeze(-1) * outputs).sum(dim=0)": "output = outputs[0]"},
    _("The first part's output is returned; the others are not read."),
)


@right("combine_splits", style="softmax over the parts")
def softmax_over_parts(outputs: Tensor, logsumexps: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(logsumexps, dim=0).nan_to_num(0.0)
    output = torch.einsum("n...,n...d->...d", weights, outputs)
    return output, torch.logsumexp(logsumexps, dim=0)


@right("combine_splits", style="one part after another")
def part_after_part(outputs: Tensor, logsumexps: Tensor) -> tuple[Tensor, Tensor]:
    output = torch.zeros_like(outputs[0])
    logsumexp = torch.full_like(logsumexps[0], -math.inf)
    for other, its in zip(outputs, logsumexps):
        both = torch.logaddexp(logsumexp, its)
        safe = torch.where(both == -math.inf, torch.zeros_like(both), both)
        output = (
            output * (logsumexp - safe).exp()[..., None] + other * (its - safe).exp()[..., None]
        )
        logsumexp = both
    return output, logsumexp


@right("combine_splits", style="computed in float64")
def in_double(outputs: Tensor, logsumexps: Tensor) -> tuple[Tensor, Tensor]:
    wide = logsumexps.double()
    total = wide.logsumexp(0)
    shares = torch.exp(wide - total.nan_to_num(neginf=0.0))
    output = (shares[..., None] * outputs.double()).sum(0)
    return output.to(outputs.dtype), total.to(logsumexps.dtype)
