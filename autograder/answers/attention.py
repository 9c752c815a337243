"""Answers to the exercises of the chapter ``attention``, wrong and right, as people write them."""

import math

import torch
from torch import nn

from autograder.bank import right, right_edit, wrong, wrong_edit
from autograder.i18n import _
from solutions.attention import (
    attention_scores,
    masked_softmax,
    scaled_dot_product_attention,
)

# --- attention_scores ----------------------------------------------------------------------------


@wrong(
    "attention_scores",
    why=_("The scores are not divided by √d. They grow with the width, and the softmax hardens."),
    see="why-root-d",
    rung=2,
)
def no_scale(q, k):
    return q @ k.transpose(-2, -1)


@wrong(
    "attention_scores",
    why=_(
        "The scores are divided by d, their variance. Their deviation is √d: divided by d, wide "
        "vectors give every key nearly the same share."
    ),
    see="why-root-d",
    rung=2,
)
def divided_by_d(q, k):
    return q @ k.transpose(-2, -1) / q.size(-1)


@wrong(
    "attention_scores",
    why=_("The scores are multiplied by √d, which makes large scores larger still."),
    see="why-root-d",
    rung=2,
)
def multiplied_by_root_d(q, k):
    return q @ k.transpose(-2, -1) * math.sqrt(q.size(-1))


@wrong(
    "attention_scores",
    why=_(
        "The divisor is √T, from the number of queries. What makes scores large is the number of "
        "terms in one dot product, and that is d: `q.size(-1)`, not `q.size(-2)`."
    ),
    see="why-root-d",
    rung=2,
)
def divided_by_root_T(q, k):
    return q @ k.transpose(-2, -1) / math.sqrt(q.size(-2))


@wrong(
    "attention_scores",
    why=_(
        "The divisor is √S, from the number of keys. After the transpose, the last size of k is S; "
        "take d from q, or before the transpose."
    ),
    see="why-root-d",
    rung=2,
)
def divided_by_root_S(q, k):
    k = k.transpose(-2, -1)
    return q @ k / math.sqrt(k.size(-1))


@wrong(
    "attention_scores",
    why=_(
        "The divisor is always 8, the √64 of the paper's model. It has to follow the width of q."
    ),
    see="why-root-d",
    rung=2,
)
def divided_by_eight(q, k):
    return q @ k.transpose(-2, -1) / 8.0


@wrong(
    "attention_scores",
    why=_("The root is rounded down to a whole number, so it is right for d = 4, 9, 16 … only."),
    see="why-root-d",
    rung=2,
)
def root_cut_to_integer(q, k):
    return q @ k.transpose(-2, -1) / int(q.size(-1) ** 0.5)


@wrong(
    "attention_scores",
    why=_(
        "Keys are in the rows and queries in the columns: the product was taken the other way "
        "round, k qᵀ instead of q kᵀ."
    ),
    see="scores",
    rung=2,
)
def keys_in_rows(q, k):
    return k @ q.transpose(-2, -1) / math.sqrt(q.size(-1))


@wrong(
    "attention_scores",
    why=_(
        "Queries and keys are brought to length 1 first. That is the cosine, which forgets how "
        "long a vector is; the score is the plain dot product."
    ),
    see="scores",
    rung=1,
)
def cosine_instead(q, k):
    q = q / q.norm(dim=-1, keepdim=True)
    k = k / k.norm(dim=-1, keepdim=True)
    return q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))


@wrong(
    "attention_scores",
    why=_("This is the softmax of the scores already. Scores come before it, and may be negative."),
    see="scores",
    rung=1,
)
def softmax_already(q, k):
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1)


@wrong(
    "attention_scores",
    why=_("The sign is turned round: the best key gets the lowest score."),
    see="scores",
    rung=1,
)
def negative_scores(q, k):
    return -(q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))


@wrong(
    "attention_scores",
    why=_("These are distances, not dot products: close vectors get low scores."),
    see="scores",
    rung=1,
)
def distances_instead(q, k):
    return torch.cdist(q.float(), k.float()) / math.sqrt(q.size(-1))


@wrong(
    "attention_scores",
    why=_(
        "The axes are named from the front, `transpose(1, 2)`. That fits three axes and no other "
        "number; -2 and -1 always mean the last two."
    ),
    see="scores",
    rung=2,
)
def transposed_from_the_front(q, k):
    return q @ k.transpose(1, 2) / math.sqrt(q.size(-1))


@wrong(
    "attention_scores",
    why=_("The queries are divided in place, and the caller's tensor is changed with them."),
    see="scores",
    rung=2,
)
def scaled_in_place(q, k):
    with torch.no_grad():
        q /= math.sqrt(q.size(-1))
    return q @ k.transpose(-2, -1)


@wrong(
    "attention_scores",
    why=_("The result is a new tensor, made from numbers: no gradient can flow back through it."),
    see="scores",
    rung=2,
)
def scores_detached(q, k):
    return (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).detach()


@wrong(
    "attention_scores",
    why=_(
        "The dot products are summed over the batch: every sequence is compared with all of them."
    ),
    see="scores",
    rung=2,
)
def summed_over_the_batch(q, k):
    q, k = q / math.sqrt(q.size(-1)), k
    if q.dim() == 2:
        return q @ k.T
    total = torch.einsum("b...td,b...sd->...ts", q, k)
    return total.expand(q.size(0), *total.shape)


@wrong(
    "attention_scores",
    why=_("The result has the right shape and reads nothing: it is all zeros."),
    see="scores",
    rung=1,
)
def zero_scores(q, k):
    return q.new_zeros(*q.shape[:-1], k.size(-2))


@wrong(
    "attention_scores",
    why=_(
        "`k.T` turns round all axes of k, the batch included. Only the last two change places: "
        "`k.transpose(-2, -1)`, or `k.mT`."
    ),
    see="scores",
    rung=2,
)
def all_axes_reversed(q, k):
    return q @ k.T / math.sqrt(q.size(-1))


@wrong(
    "attention_scores",
    why=_(
        "`//` rounds each score down to a whole number. Then many keys have the same score, and no "
        "gradient comes back."
    ),
    see="why-root-d",
    rung=2,
)
def scores_rounded_down(q, k):
    return q @ k.transpose(-2, -1) // math.sqrt(q.size(-1))


@wrong(
    "attention_scores",
    why=_(
        "Exactly three axes are expected, one of them in front. There may be none, as for a single "
        "sentence, or two, as with heads."
    ),
    see="scores",
    rung=2,
)
def exactly_three_axes(q, k):
    B, T, d = q.shape
    out = q.new_zeros(B, T, k.size(1))
    for b in range(B):
        out[b] = q[b] @ k[b].T / math.sqrt(d)
    return out


@wrong(
    "attention_scores",
    form_of="cosine_instead",
    why=_(
        "Queries and keys are brought to length 1, so these are cosines. Lengths count in a dot "
        "product: a long key asks for more attention."
    ),
    see="scores",
    rung=1,
)
def cosine_alone(q, k):
    q, k = (nn.functional.normalize(item, dim=-1) for item in (q, k))
    return q @ k.transpose(-2, -1)


@wrong(
    "attention_scores",
    why=_(
        "The scores are filled into a new tensor of single precision, whatever the dtype of q. Use "
        "`q.new_zeros(...)`, or one product that needs no new tensor."
    ),
    see="half-precision",
    rung=2,
)
def scores_filled_in_single_precision(q, k):
    out = torch.zeros(*q.shape[:-1], k.size(-2))
    for s in range(k.size(-2)):
        out[..., s] = (q * k[..., s : s + 1, :]).sum(dim=-1) / math.sqrt(q.size(-1))
    return out


@right("attention_scores", style="einsum, the queries scaled first")
def scores_by_einsum(q, k):
    return torch.einsum("...td,...sd->...ts", q * q.size(-1) ** -0.5, k)


@right("attention_scores", style="both sides scaled by the fourth root")
def scores_by_fourth_root(q, k):
    scale = q.size(-1) ** 0.25
    return (q / scale) @ (k / scale).mT


@right("attention_scores", style="the root as a tensor, as many tutorials have it")
def scores_by_tensor_root(q, k):
    d_k = q.shape[-1]
    return torch.matmul(q, k.transpose(-1, -2)) / torch.sqrt(torch.tensor(d_k, dtype=torch.float32))


@right("attention_scores", style="a loop over queries")
def scores_by_loop(q, k):
    rows = [(k * q[..., t : t + 1, :]).sum(dim=-1) for t in range(q.size(-2))]
    return torch.stack(rows, dim=-2) / math.sqrt(q.size(-1))


@right("attention_scores", style="a result in float64")
def scores_in_double(q, k):
    return q.double() @ k.double().transpose(-2, -1) / math.sqrt(q.size(-1))


# --- masked_softmax ------------------------------------------------------------------------------


@wrong(
    "masked_softmax",
    why=_(
        "The mask comes after the softmax. By then the forbidden entries have had their share, and "
        "what is left of a row sums to less than 1."
    ),
    see="masked-softmax",
    rung=1,
)
def mask_after_softmax(scores, mask=None):
    weights = torch.softmax(scores, dim=-1)
    if mask is not None:
        weights = weights * mask
    return weights


@wrong(
    "masked_softmax",
    why=_(
        "The mask is read upside down: True means allowed, and `masked_fill` fills where its "
        "argument is True, so it needs `~mask`."
    ),
    see="masked-softmax",
    rung=2,
)
def mask_inverted(scores, mask=None):
    if mask is None:
        return torch.softmax(scores, dim=-1)
    weights = torch.softmax(scores.masked_fill(mask, torch.finfo(scores.dtype).min), dim=-1)
    return weights.masked_fill(mask, 0.0)


@wrong(
    "masked_softmax",
    why=_("The mask is not used at all."),
    see="masked-softmax",
    rung=1,
)
def mask_ignored(scores, mask=None):
    return torch.softmax(scores, dim=-1)


@wrong(
    "masked_softmax",
    why=_("Forbidden scores are set to 0, and 0 is a score like any other: its exponential is 1."),
    see="masked-softmax",
    rung=1,
)
def zero_before_softmax(scores, mask=None):
    if mask is not None:
        scores = scores * mask
    return torch.softmax(scores, dim=-1)


@wrong(
    "masked_softmax",
    why=_("The mask is added to the scores, as 0 and 1. What is to be added is 0 and −∞."),
    see="masked-softmax",
    rung=1,
)
def mask_added_as_numbers(scores, mask=None):
    if mask is not None:
        scores = scores + mask.to(scores.dtype)
    return torch.softmax(scores, dim=-1)


@wrong(
    "masked_softmax",
    why=_("The fill is not low enough: forbidden entries keep a small weight."),
    see="masked-softmax",
    rung=1,
)
def fill_too_weak(scores, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, -10.0)
    weights = torch.softmax(scores, dim=-1)
    if mask is not None:
        weights = weights.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0)
    return weights


@wrong(
    "masked_softmax",
    form_of="zero_before_softmax",
    why=_("The fill, 1e-9, is a tiny positive number. What was meant is −1e9."),
    see="masked-softmax",
    rung=1,
)
def fill_of_tiny_number(scores, mask=None):
    if mask is not None:
        scores = scores.masked_fill(mask == 0, 1e-9)
    return torch.softmax(scores, dim=-1)


@wrong(
    "masked_softmax",
    why=_(
        "The fill, −100, is low only as long as the scores are near 0. It has to be lower than any "
        "score can be."
    ),
    see="masked-softmax",
    rung=2,
)
def fill_of_minus_hundred(scores, mask=None):
    if mask is None:
        return torch.softmax(scores, dim=-1)
    weights = torch.softmax(scores.masked_fill(~mask, -100.0), dim=-1)
    return weights.masked_fill(~mask, 0.0)


@wrong(
    "masked_softmax",
    why=_("The softmax runs over the queries: the columns sum to 1 and the rows do not."),
    see="scores",
    rung=2,
)
def softmax_over_queries(scores, mask=None):
    if mask is None:
        return torch.softmax(scores, dim=-2)
    weights = torch.softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min), dim=-2)
    return weights.masked_fill(~mask, 0.0)


@wrong(
    "masked_softmax",
    why=_(
        "The axis of the softmax is given from the front, `dim=1`. In a table without a batch that "
        "is the last axis; with a batch it is the queries."
    ),
    see="scores",
    rung=2,
)
def softmax_over_axis_one(scores, mask=None):
    if mask is None:
        return torch.softmax(scores, dim=1)
    weights = torch.softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min), dim=1)
    return weights.masked_fill(~mask, 0.0)


@wrong(
    "masked_softmax",
    why=_(
        "The softmax runs over the whole table: all entries together sum to 1, and not each row."
    ),
    see="scores",
    rung=2,
)
def softmax_over_everything(scores, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores.flatten(), dim=0).view_as(scores)
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


@wrong(
    "masked_softmax",
    why=_(
        "A row without an allowed entry is filled with −∞ from end to end, and its softmax is NaN."
    ),
    see="nothing-to-attend-to",
    rung=2,
)
def empty_row_is_nan(scores, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.softmax(scores, dim=-1)


@wrong(
    "masked_softmax",
    why=_(
        "In a row without an allowed entry all scores are equal after the fill, so it shares "
        "evenly over entries that are all forbidden."
    ),
    see="nothing-to-attend-to",
    rung=2,
)
def empty_row_is_even(scores, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=-1)


@wrong(
    "masked_softmax",
    why=_(
        "Half precision has no −1e9. In single precision that fill is right, and then a row "
        "without an allowed entry still needs a step of its own, after the softmax."
    ),
    see="half-precision",
    rung=2,
)
def minus_a_billion(scores, mask=None):
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    return torch.softmax(scores, dim=-1)


@wrong(
    "masked_softmax",
    why=_("Half precision has no −1e9: the fill cannot be written into a tensor of that dtype."),
    see="half-precision",
    rung=2,
)
def minus_a_billion_then_zeros(scores, mask=None):
    if mask is None:
        return torch.softmax(scores, dim=-1)
    return torch.softmax(scores.masked_fill(~mask, -1e9), dim=-1).masked_fill(~mask, 0.0)


@wrong(
    "masked_softmax",
    why=_(
        "NaN is replaced in front and comes back in the gradient: −∞ was *added*, and an addition "
        "hands on the NaN of the softmax's derivative."
    ),
    see="nothing-to-attend-to",
    rung=2,
)
def nan_in_the_gradient(scores, mask=None):
    if mask is None:
        return torch.softmax(scores, dim=-1)
    added = torch.where(mask, 0.0, float("-inf")).to(scores.dtype)
    return torch.nan_to_num(torch.softmax(scores + added, dim=-1))


@wrong(
    "masked_softmax",
    why=_(
        "The exponential is taken of the scores as they are, and overflows where they are large. "
        "Subtract the largest score of each row first."
    ),
    see="why-root-d",
    rung=2,
)
def exponential_overflows(scores, mask=None):
    exponentials = torch.exp(scores)
    if mask is not None:
        exponentials = exponentials * mask
    total = exponentials.sum(dim=-1, keepdim=True)
    return exponentials / torch.where(total == 0, torch.ones_like(total), total)


@wrong(
    "masked_softmax",
    why=_(
        "The weights are divided by their sum, and the sum of a row without an allowed entry is 0."
    ),
    see="nothing-to-attend-to",
    rung=2,
)
def renormalised_by_zero(scores, mask=None):
    weights = torch.softmax(scores, dim=-1)
    if mask is None:
        return weights
    weights = weights * mask
    return weights / weights.sum(dim=-1, keepdim=True)


@wrong(
    "masked_softmax",
    why=_("The 1e-9 that is to keep the sum from 0 is itself 0 in fp16."),
    see="half-precision",
    rung=2,
)
def epsilon_lost_in_half(scores, mask=None):
    weights = torch.softmax(scores, dim=-1)
    if mask is None:
        return weights
    weights = weights * mask
    return weights / (weights.sum(dim=-1, keepdim=True) + 1e-9)


@wrong(
    "masked_softmax",
    why=_("The scores are filled in place, and the caller's tensor is changed with them."),
    see="masked-softmax",
    rung=2,
)
def filled_in_place(scores, mask=None):
    if mask is None:
        return torch.softmax(scores, dim=-1)
    with torch.no_grad():
        scores.masked_fill_(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=-1).masked_fill(~mask, 0.0)


@wrong(
    "masked_softmax",
    why=_("The mask is expected in the very shape of the scores. It has only to broadcast to it."),
    see="masked-softmax",
    rung=2,
)
def mask_must_be_full(scores, mask=None):
    if mask is None:
        return torch.softmax(scores, dim=-1)
    scores = scores.clone()
    scores[~mask] = torch.finfo(scores.dtype).min
    weights = torch.softmax(scores, dim=-1)
    return weights * mask


@wrong(
    "masked_softmax",
    why=_("A sigmoid judges each entry by itself; nothing makes a row sum to 1."),
    see="soft-lookup",
    rung=1,
)
def sigmoid_instead(scores, mask=None):
    weights = torch.sigmoid(scores)
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


@wrong(
    "masked_softmax",
    why=_("These are the logarithms of the weights."),
    see="soft-lookup",
    rung=1,
)
def logarithms_instead(scores, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.log_softmax(scores, dim=-1)


@wrong(
    "masked_softmax",
    why=_(
        "The scores are divided by their sum, which may be negative or 0; the exponential is "
        "missing."
    ),
    see="soft-lookup",
    rung=1,
)
def divided_by_their_sum(scores, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, 0.0)
    total = scores.sum(dim=-1, keepdim=True)
    return scores / torch.where(total == 0, torch.ones_like(total), total)


@wrong(
    "masked_softmax",
    why=_("Every allowed entry gets the same share: the scores are not read."),
    see="soft-lookup",
    rung=1,
)
def even_shares(scores, mask=None):
    allowed = torch.ones_like(scores) if mask is None else mask.expand_as(scores).to(scores.dtype)
    return allowed / allowed.sum(dim=-1, keepdim=True).clamp_min(1.0)


@wrong(
    "masked_softmax",
    why=_("The largest entry takes everything. That is the hard choice, without a gradient."),
    see="soft-lookup",
    rung=1,
)
def hard_choice(scores, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = torch.zeros_like(scores).scatter(-1, scores.argmax(dim=-1, keepdim=True), 1.0)
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


@wrong(
    "masked_softmax",
    why=_("The smallest score gets the largest share: the sign is turned round."),
    see="soft-lookup",
    rung=1,
)
def smallest_wins(scores, mask=None):
    if mask is None:
        return torch.softmax(-scores, dim=-1)
    filled = (-scores).masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(filled, dim=-1).masked_fill(~mask, 0.0)


@wrong(
    "masked_softmax",
    why=_("The weights are cut off the graph: no gradient flows back to the scores."),
    see="masked-softmax",
    rung=2,
)
def weights_detached(scores, mask=None):
    if mask is None:
        return torch.softmax(scores, dim=-1).detach()
    filled = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(filled, dim=-1).masked_fill(~mask, 0.0).detach()


@wrong(
    "masked_softmax",
    why=_(
        "The largest score of the whole table is subtracted. In a row that lies far below it every "
        "exponential is 0, and 0 is divided by 0. Each row has a largest score of its own."
    ),
    see="why-root-d",
    rung=2,
)
def largest_of_the_table_subtracted(scores, mask=None):
    exponentials = torch.exp(scores - scores.max())
    if mask is not None:
        exponentials = exponentials * mask
    total = exponentials.sum(dim=-1, keepdim=True)
    return exponentials / torch.where(total == 0, torch.ones_like(total), total)


@wrong(
    "masked_softmax",
    why=_(
        "The result of the softmax is written to in place. Its backward pass needs the numbers "
        "that were there, and raises an error."
    ),
    see="nothing-to-attend-to",
    rung=2,
)
def result_written_in_place(scores, mask=None):
    if mask is None:
        return torch.softmax(scores, dim=-1)
    weights = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
    weights[torch.isnan(weights)] = 0.0
    return weights


@wrong(
    "masked_softmax",
    why=_(
        "The lowest number of single precision does not exist in half precision: ask for that of "
        "`scores.dtype`."
    ),
    see="half-precision",
    rung=2,
)
def lowest_of_single_precision(scores, mask=None):
    if mask is None:
        return torch.softmax(scores, dim=-1)
    filled = scores.masked_fill(~mask, torch.finfo(torch.float32).min)
    return torch.softmax(filled, dim=-1) * mask


@wrong(
    "masked_softmax",
    why=_(
        "The softmax is taken twice. The second one sees numbers between 0 and 1, and makes nearly "
        "even shares of them."
    ),
    see="soft-lookup",
    rung=1,
)
def softmax_twice(scores, mask=None):
    weights = torch.softmax(scores, dim=-1)
    if mask is None:
        return torch.softmax(weights, dim=-1)
    lowest = torch.finfo(scores.dtype).min
    weights = torch.softmax(scores.masked_fill(~mask, lowest), dim=-1)
    return torch.softmax(weights.masked_fill(~mask, lowest), dim=-1).masked_fill(~mask, 0.0)


@wrong(
    "masked_softmax",
    form_of="empty_row_is_nan",
    why=_("Rows without an allowed entry are provided for only where the whole table has none."),
    see="nothing-to-attend-to",
    rung=2,
)
def only_a_table_all_forbidden(scores, mask=None):
    if mask is None:
        return torch.softmax(scores, dim=-1)
    if not mask.any():
        return torch.zeros_like(scores)
    return torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)


@wrong(
    "masked_softmax",
    why=_(
        "The fill of -10⁴ exists in every type, but scores may be lower than it: then the "
        "forbidden entries are the largest of their row."
    ),
    see="half-precision",
    rung=2,
)
def fill_of_minus_ten_thousand(scores, mask=None):
    if mask is None:
        return torch.softmax(scores, dim=-1)
    weights = torch.softmax(scores.masked_fill(~mask, -1e4), dim=-1)
    return weights.masked_fill(~mask, 0.0)


@wrong(
    "masked_softmax",
    why=_(
        "The small number that is added to the sum changes every weight where the sum is small "
        "itself, as it is where a forbidden score is the largest of the row."
    ),
    see="masked-softmax",
    rung=2,
)
def epsilon_as_large_as_the_sum(scores, mask=None):
    exponentials = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    if mask is not None:
        exponentials = exponentials * mask
    return exponentials / (exponentials.sum(dim=-1, keepdim=True) + 1e-6)


@wrong(
    "masked_softmax",
    why=_(
        "Without a mask there is an error: the default is None, which has no `~` and fills "
        "nothing. Ask `if mask is not None` first."
    ),
    see="masked-softmax",
    rung=3,
)
def mask_taken_for_granted(scores, mask=None):
    lowest = torch.finfo(scores.dtype).min
    return torch.softmax(scores.masked_fill(~mask, lowest), dim=-1).masked_fill(~mask, 0.0)


@wrong(
    "masked_softmax",
    why=_(
        "`logical_not_` with an underscore turns round the caller's own mask. This call is right, "
        "and the next, given the same mask, hides what it should show."
    ),
    see="masked-softmax",
    rung=3,
)
def mask_turned_round_in_place(scores, mask=None):
    if mask is None:
        return torch.softmax(scores, dim=-1)
    forbidden = mask.logical_not_()
    lowest = torch.finfo(scores.dtype).min
    weights = torch.softmax(scores.masked_fill(forbidden, lowest), dim=-1)
    return weights.masked_fill(forbidden, 0.0)


@wrong(
    "masked_softmax",
    why=_(
        "`if mask:` asks whether the mask is True, which is said of one number and not of a table: "
        "torch raises. Ask `if mask is not None`."
    ),
    see="masked-softmax",
    rung=3,
)
def truth_of_a_table(scores, mask=None):
    if mask:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1)
    return weights.masked_fill(~mask, 0.0) if mask else weights


@wrong(
    "masked_softmax",
    why=_(
        "Scores and weights are both multiplied by the mask. In the softmax a score of 0 still "
        "takes a share, and what is struck out afterwards is missing from the row."
    ),
    see="masked-softmax",
    rung=1,
)
def scores_and_weights_struck_out(scores, mask=None):
    if mask is None:
        return torch.softmax(scores, dim=-1)
    return torch.softmax(scores * mask, dim=-1) * mask


@wrong(
    "masked_softmax",
    why=_(
        "The scores are clamped, so that all beyond the limit are equal. A softmax needs no such "
        "care: subtracting a row's largest score changes nothing and keeps every exponential small."
    ),
    see="why-root-d",
    rung=2,
)
def scores_clamped(scores, mask=None):
    scores = scores.clamp(-10, 10)
    if mask is None:
        return torch.softmax(scores, dim=-1)
    lowest = torch.finfo(scores.dtype).min
    return torch.softmax(scores.masked_fill(~mask, lowest), dim=-1).masked_fill(~mask, 0.0)


@wrong(
    "masked_softmax",
    why=_(
        "The result is in single precision whatever the dtype of the scores. Convert it back to "
        "`scores.dtype`."
    ),
    see="half-precision",
    rung=2,
)
def weights_left_in_single_precision(scores, mask=None):
    wide = scores.float()
    if mask is None:
        return torch.softmax(wide, dim=-1)
    return torch.softmax(wide.masked_fill(~mask, -1e9), dim=-1).masked_fill(~mask, 0.0)


@right("masked_softmax", style="own softmax: the largest allowed score subtracted")
def softmax_by_hand(scores, mask=None):
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    lowest = torch.finfo(scores.dtype).min
    top = torch.where(mask, scores, lowest).amax(dim=-1, keepdim=True)
    exponentials = torch.exp(torch.where(mask, scores - top, lowest)) * mask
    total = exponentials.sum(dim=-1, keepdim=True)
    return exponentials / total.masked_fill(total == 0, 1.0)


@right("masked_softmax", style="-1e9 in single precision, whatever the dtype")
def softmax_in_single(scores, mask=None):
    wide = scores.float()
    if mask is not None:
        wide = wide.masked_fill(mask == 0, -1e9)
    weights = wide.softmax(-1)
    if mask is not None:
        weights = weights * mask
    return weights.to(scores.dtype)


@right("masked_softmax", style="logsumexp subtracted, in single precision or double")
def softmax_by_logsumexp(scores, mask=None):
    wide = scores if scores.dtype == torch.float64 else scores.float()
    if mask is None:
        return (wide - wide.logsumexp(dim=-1, keepdim=True)).exp().to(scores.dtype)
    allowed = mask.expand(wide.shape)
    wide = torch.where(allowed, wide, -1e30)
    return ((wide - wide.logsumexp(-1, keepdim=True)).exp() * allowed).to(scores.dtype)


@right("masked_softmax", style="-inf by masked_fill, NaN replaced: no gradient flows into the fill")
def softmax_nan_to_num(scores, mask=None):
    if mask is None:
        return torch.softmax(scores, dim=-1)
    return torch.nan_to_num(torch.softmax(scores.masked_fill(~mask, -torch.inf), dim=-1), nan=0.0)


@right("masked_softmax", style="empty rows opened before, closed after")
def softmax_of_opened_rows(scores, mask=None):
    if mask is None:
        return scores.softmax(dim=-1)
    empty = ~mask.any(dim=-1, keepdim=True)
    filled = torch.where(mask | empty, scores, float("-inf"))
    return torch.where(empty, 0.0, filled.softmax(dim=-1)).to(scores.dtype)


@right("masked_softmax", style="renormalised after the softmax")
def softmax_renormalised(scores, mask=None):
    weights = torch.softmax(scores, dim=-1)
    if mask is None:
        return weights
    weights = weights * mask
    total = weights.sum(dim=-1, keepdim=True)
    return weights / torch.where(total > 0, total, torch.ones_like(total))


@right("masked_softmax", style="a result in float64")
def softmax_in_double(scores, mask=None):
    scores = scores.double()
    if mask is None:
        return torch.softmax(scores, dim=-1)
    return torch.softmax(scores.masked_fill(~mask, -1e300), dim=-1) * mask


# --- padding_mask --------------------------------------------------------------------------------


@wrong(
    "padding_mask",
    why=_(
        "True stands at the padding. In this book True means allowed, and real tokens are allowed."
    ),
    see="padding",
    rung=1,
)
def true_at_padding(ids, padding_id=0):
    return (ids == padding_id).unsqueeze(1)


@wrong(
    "padding_mask",
    why=_(
        "The axis for the queries is missing. A mask of shape (B, S) broadcasts as (1, B, S): its "
        "sequences would be taken for queries."
    ),
    see="padding",
    rung=2,
)
def no_axis_for_queries(ids, padding_id=0):
    return ids != padding_id


@wrong(
    "padding_mask",
    why=_(
        "The axis of size 1 stands last: this hides padding *queries*, and leaves all keys visible."
    ),
    see="padding",
    rung=2,
)
def hides_queries(ids, padding_id=0):
    return (ids != padding_id).unsqueeze(-1)


@wrong(
    "padding_mask",
    why=_("There is an axis too many: (B, 1, 1, S) is the shape for several heads."),
    see="padding",
    rung=2,
)
def shape_for_heads(ids, padding_id=0):
    return (ids != padding_id)[:, None, None, :]


@wrong(
    "padding_mask",
    why=_(
        "The mask is of numbers, 0.0 and 1.0. `~mask` does not exist for them, and added to scores "
        "they hide nothing."
    ),
    see="padding",
    rung=2,
)
def mask_of_numbers(ids, padding_id=0):
    return (ids != padding_id).float().unsqueeze(1)


@wrong(
    "padding_mask",
    why=_("This is a mask to be added to scores, 0 and −∞. The book's masks are boolean."),
    see="padding",
    rung=2,
)
def mask_to_be_added(ids, padding_id=0):
    return torch.zeros(ids.shape).masked_fill(ids == padding_id, float("-inf")).unsqueeze(1)


@wrong(
    "padding_mask",
    why=_("The ids are compared with 0 and not with the argument `padding_id`."),
    see="padding",
    rung=2,
)
def always_zero(ids, padding_id=0):
    return (ids != 0).unsqueeze(1)


@wrong(
    "padding_mask",
    why=_(
        "Ids above padding_id are taken for real tokens. A padding id may lie anywhere in the "
        "vocabulary."
    ),
    see="padding",
    rung=2,
)
def only_larger_ids(ids, padding_id=0):
    return (ids > padding_id).unsqueeze(1)


@wrong(
    "padding_mask",
    why=_(
        "The tokens are counted, and as many places from the left are allowed. With padding in "
        "front, these are the wrong ones."
    ),
    see="padding",
    rung=2,
)
def counted_from_the_left(ids, padding_id=0):
    lengths = (ids != padding_id).sum(dim=1, keepdim=True)
    return (torch.arange(ids.size(1)) < lengths).unsqueeze(1)


@wrong(
    "padding_mask",
    why=_(
        "Everything after the first padding is hidden. With padding in front, that is everything."
    ),
    see="padding",
    rung=2,
)
def cut_at_the_first_padding(ids, padding_id=0):
    return (ids != padding_id).cumprod(dim=1).bool().unsqueeze(1)


@wrong(
    "padding_mask",
    why=_("The first sequence's row serves all of them: each needs its own."),
    see="padding",
    rung=2,
)
def one_row_for_all(ids, padding_id=0):
    return (ids[:1] != padding_id).expand(ids.size(0), -1).unsqueeze(1)


@wrong(
    "padding_mask",
    why=_("The mask is True everywhere: nothing is hidden."),
    see="padding",
    rung=1,
)
def hides_nothing(ids, padding_id=0):
    return torch.ones(ids.size(0), 1, ids.size(1), dtype=torch.bool)


@wrong(
    "padding_mask",
    why=_("The ids themselves are overwritten."),
    see="padding",
    rung=2,
)
def ids_overwritten(ids, padding_id=0):
    mask = (ids != padding_id).unsqueeze(1)
    ids[ids == padding_id] = -100
    return mask


@wrong(
    "padding_mask",
    why=_(
        "Padding queries are hidden as well, (B, S, S). This mask is for keys alone, and fits "
        "queries of another sequence too."
    ),
    see="padding",
    rung=2,
)
def hides_queries_too(ids, padding_id=0):
    real = ids != padding_id
    return real[:, None, :] & real[:, :, None]


@wrong(
    "padding_mask",
    why=_(
        "The row is repeated for each query, (B, S, S). There may be any number of queries: an "
        "axis of size 1 serves them all."
    ),
    see="padding",
    rung=2,
)
def one_row_for_each_query(ids, padding_id=0):
    return (ids != padding_id).unsqueeze(1).expand(-1, ids.size(1), -1)


@wrong(
    "padding_mask",
    why=_(
        "The padding is renamed to 0 and then looked for: a real token 0 is taken for padding, and "
        "the caller's ids are overwritten."
    ),
    see="padding",
    rung=2,
)
def padding_renamed_to_zero(ids, padding_id=0):
    ids[ids == padding_id] = 0
    return (ids != 0).unsqueeze(1)


@right("padding_mask", style="indexing with None")
def by_indexing(ids, padding_id=0):
    return ids.ne(padding_id)[:, None, :]


@right("padding_mask", style="not equal, then a view")
def by_view(ids, padding_id=0):
    B, S = ids.shape
    return (~(ids == padding_id)).view(B, 1, S)


@right("padding_mask", style="Python loops")
def by_loops(ids, padding_id=0):
    rows = [[[token != padding_id for token in sequence]] for sequence in ids.tolist()]
    return torch.tensor(rows)


# --- scaled_dot_product_attention ----------------------------------------------------------------

_SCORES = "scores = attention_scores(q, k)  # (..., T, S)"
_BIAS = "scores = scores + bias.to(scores.dtype)"
_SOFTMAX = "weights = masked_softmax(scores, mask)"
_DROPOUT = "weights = nn.functional.dropout(weights, dropout_p)"
_RETURN = "return weights @ v, weights  # (..., T, d_v), (..., T, S)"
_ATTENTION = "scaled_dot_product_attention"

wrong_edit(
    _ATTENTION,
    "no_scale",
    {_SCORES: "scores = q @ k.transpose(-2, -1)"},
    why=_("The scores are not divided by √d. They grow with the width, and the softmax hardens."),
    see="why-root-d",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "divided_by_d",
    {_SCORES: "scores = q @ k.transpose(-2, -1) / q.size(-1)"},
    why=_("The scores are divided by d and not by its root: the look-up is too soft."),
    see="why-root-d",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "scaled_twice",
    {_SCORES: "scores = attention_scores(q, k) / math.sqrt(q.size(-1))"},
    form_of="divided_by_d",
    why=_("The scores are divided by √d twice: `attention_scores` does it already."),
    see="why-root-d",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "divided_by_root_T",
    {_SCORES: "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-2))"},
    why=_("The divisor is √T. It is the width of the queries that counts, `q.size(-1)`."),
    see="why-root-d",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "divided_by_root_d_v",
    {_SCORES: "scores = q @ k.transpose(-2, -1) / math.sqrt(v.size(-1))"},
    why=_(
        "The divisor is the root of the width of the *values*. Dot products are of queries and "
        "keys."
    ),
    see="why-root-d",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "divided_by_eight",
    {_SCORES: "scores = q @ k.transpose(-2, -1) / 8.0"},
    why=_(
        "The divisor is always 8, the √64 of the paper's model. It has to follow the width of q."
    ),
    see="why-root-d",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "softmax_over_queries",
    {
        _SOFTMAX: "weights = masked_softmax(scores.mT, None if mask is None else\n"
        "            mask.expand(scores.shape).mT).mT"
    },
    why=_("The softmax runs over the queries: the columns sum to 1 and the rows do not."),
    see="scores",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "softmax_over_the_batch",
    {
        _SOFTMAX: "if mask is not None:\n"
        "        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)\n"
        "    weights = torch.softmax(scores, dim=0)"
    },
    why=_("The softmax runs over the first axis, `dim=0`: in a batch, over the sequences."),
    see="scores",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "mask_after_softmax",
    {
        _SOFTMAX: "weights = torch.softmax(scores, dim=-1)\n"
        "    if mask is not None:\n"
        "        weights = weights * mask"
    },
    why=_("The mask comes after the softmax. The weights that are left no longer sum to 1."),
    see="masked-softmax",
    rung=1,
)
wrong_edit(
    _ATTENTION,
    "mask_inverted",
    {_SOFTMAX: "weights = masked_softmax(scores, None if mask is None else ~mask)"},
    why=_("The mask is read upside down: True means allowed."),
    see="masked-softmax",
    rung=1,
)
wrong_edit(
    _ATTENTION,
    "mask_ignored",
    {_SOFTMAX: "weights = masked_softmax(scores)"},
    why=_("The mask is not used at all."),
    see="masked-softmax",
    rung=1,
)
wrong_edit(
    _ATTENTION,
    "zero_before_softmax",
    {
        _SOFTMAX: "if mask is not None:\n"
        "        scores = scores * mask\n"
        "    weights = torch.softmax(scores, dim=-1)"
    },
    why=_("Forbidden scores are set to 0, and 0 is a score like any other: its exponential is 1."),
    see="masked-softmax",
    rung=1,
)
wrong_edit(
    _ATTENTION,
    "values_masked_instead",
    {
        _SOFTMAX: "weights = torch.softmax(scores, dim=-1)\n"
        "    hidden = torch.zeros_like(weights) if mask is None else weights * ~mask",
        _RETURN: "return weights @ v - hidden @ v, weights",
    },
    why=_("The hidden values are left out, but their keys keep their share of the weights."),
    see="masked-softmax",
    rung=1,
)
wrong_edit(
    _ATTENTION,
    "mask_added_as_numbers",
    {
        _SOFTMAX: "if mask is not None:\n"
        "        scores = scores + mask\n"
        "    weights = torch.softmax(scores, dim=-1)"
    },
    why=_("The mask is added to the scores, as 0 and 1. What is to be added is 0 and −∞."),
    see="masked-softmax",
    rung=1,
)
wrong_edit(
    _ATTENTION,
    "empty_row_is_nan",
    {
        _SOFTMAX: "if mask is not None:\n"
        "        scores = scores.masked_fill(~mask, float('-inf'))\n"
        "    weights = torch.softmax(scores, dim=-1)"
    },
    why=_("A query with no allowed key has only scores of −∞, and their softmax is NaN."),
    see="nothing-to-attend-to",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "empty_row_is_even",
    {
        _SOFTMAX: "if mask is not None:\n"
        "        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)\n"
        "    weights = torch.softmax(scores, dim=-1)"
    },
    why=_(
        "A query with no allowed key attends to all of them evenly: their scores are equal after "
        "the fill."
    ),
    see="nothing-to-attend-to",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "minus_a_billion",
    {
        _SOFTMAX: "if mask is not None:\n"
        "        scores = scores.masked_fill(mask == 0, -1e9)\n"
        "    weights = torch.softmax(scores, dim=-1)"
    },
    why=_(
        "Half precision has no −1e9. In single precision that fill is right, and then a query with "
        "no allowed key still needs a step of its own, after the softmax."
    ),
    see="half-precision",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "minus_a_billion_then_zeros",
    {
        _SOFTMAX: "weights = torch.softmax(scores, dim=-1)\n"
        "    if mask is not None:\n"
        "        weights = torch.softmax(scores.masked_fill(~mask, -1e9), dim=-1)\n"
        "        weights = weights.masked_fill(~mask, 0.0)"
    },
    why=_("Half precision has no −1e9: the fill cannot be written into a tensor of that dtype."),
    see="half-precision",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "nan_in_the_gradient",
    {
        _SOFTMAX: "if mask is not None:\n"
        "        scores = scores + torch.where(mask, 0.0, float('-inf')).to(scores.dtype)\n"
        "    weights = torch.nan_to_num(torch.softmax(scores, dim=-1))"
    },
    why=_(
        "NaN is replaced in front and comes back in the gradient: −∞ was *added*, and an addition "
        "hands on the NaN of the softmax's derivative."
    ),
    see="nothing-to-attend-to",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "exponential_overflows",
    {
        _SOFTMAX: "exponentials = torch.exp(scores)\n"
        "    if mask is not None:\n"
        "        exponentials = exponentials * mask\n"
        "    total = exponentials.sum(dim=-1, keepdim=True)\n"
        "    weights = exponentials / total.masked_fill(total == 0, 1.0)"
    },
    why=_(
        "The exponential is taken of the scores as they are, and overflows where they are large."
    ),
    see="why-root-d",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "mask_of_one_shape",
    {
        _SOFTMAX: "if mask is not None and mask.dim() < q.dim():\n"
        "        mask = mask.unsqueeze(1)\n"
        "    weights = masked_softmax(scores, mask)"
    },
    why=_(
        "The mask gets an axis in second place, as if its shape were always the same. It "
        "broadcasts by itself."
    ),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "axes_from_the_front",
    {_SCORES: "scores = torch.matmul(q, k.transpose(1, 2)) / math.sqrt(q.size(2))"},
    why=_("The axes are named from the front, which fits three axes and no other number."),
    see="scores",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "bias_ignored",
    {_BIAS: "pass"},
    why=_("The bias is not used."),
    see="the-function",
    rung=1,
)
wrong_edit(
    _ATTENTION,
    "bias_scaled_too",
    {_BIAS: "scores = scores + bias.to(scores.dtype) / math.sqrt(q.size(-1))"},
    why=_(
        "The bias is divided by √d together with the scores. It is added to the *scaled* scores."
    ),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "bias_after_softmax",
    {
        _BIAS: "pass",
        _SOFTMAX: "weights = masked_softmax(scores, mask)\n"
        "    if bias is not None:\n"
        "        weights = weights + bias.to(weights.dtype)",
    },
    why=_(
        "The bias is added to the weights, after the softmax: rows no longer sum to 1, and weights "
        "can be negative."
    ),
    see="the-function",
    rung=1,
)
wrong_edit(
    _ATTENTION,
    "bias_subtracted",
    {_BIAS: "scores = scores - bias.to(scores.dtype)"},
    why=_("The bias is subtracted."),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "dropout_ignored",
    {_DROPOUT: "pass"},
    why=_("`dropout_p` is not used."),
    see="the-function",
    rung=1,
)
wrong_edit(
    _ATTENTION,
    "dropout_never_trains",
    {_DROPOUT: "weights = nn.functional.dropout(weights, dropout_p, training=False)"},
    form_of="dropout_ignored",
    why=_(
        "With `training=False` dropout does nothing. Here the caller decides, by dropout_p alone."
    ),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "dropout_on_the_output",
    {
        _DROPOUT: "pass",
        _RETURN: "output = weights @ v\n"
        "    if dropout_p > 0.0:\n"
        "        output = nn.functional.dropout(output, dropout_p)\n"
        "    return output, weights",
    },
    why=_(
        "The output is struck out, number by number. Dropout of attention strikes out weights, "
        "that is, whole keys of a query."
    ),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "dropout_before_softmax",
    {
        _SOFTMAX: "if dropout_p > 0.0:\n"
        "        scores = nn.functional.dropout(scores, dropout_p)\n"
        "    weights = masked_softmax(scores, mask)",
        _DROPOUT: "pass",
    },
    why=_("Scores are struck out, before the softmax. A score of 0 is not a weight of 0."),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "dropout_without_rescaling",
    {_DROPOUT: "weights = weights * (torch.rand_like(weights) >= dropout_p)"},
    why=_("What is left is not divided by 1 − p, so the weights are too small on average."),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "dropout_normalised_again",
    {
        _DROPOUT: "weights = nn.functional.dropout(weights, dropout_p)\n"
        "        weights = weights / weights.sum(dim=-1, keepdim=True).clamp_min(1e-9)"
    },
    why=_(
        "After dropout the rows are made to sum to 1 again. They should do so on average only: "
        "what is left is divided by 1 − p."
    ),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "dropout_keeps_with_p",
    {_DROPOUT: "weights = weights * (torch.rand_like(weights) < dropout_p) / dropout_p"},
    why=_(
        "`dropout_p` is taken for the probability to keep a weight. It is that of striking it out."
    ),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "dropout_by_key",
    {
        _DROPOUT: "weights = weights * nn.functional.dropout(torch.ones_like(weights[..., :1, "
        ":]),\n"
        "                                                 dropout_p)"
    },
    why=_(
        "All queries lose the same keys: one draw serves all rows. Each weight is struck out by "
        "itself."
    ),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "dropout_always_on",
    {
        "if dropout_p > 0.0:": "if True:",
        _DROPOUT: "weights = nn.Dropout(dropout_p or 0.1)(weights)",
    },
    why=_("Dropout is on although dropout_p is 0."),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "weights_before_dropout",
    {
        _DROPOUT: "pass",
        _RETURN: "if dropout_p > 0.0:\n"
        "        return nn.functional.dropout(weights, dropout_p) @ v, weights\n"
        "    return weights @ v, weights",
    },
    why=_(
        "The weights that are returned are those before dropout. The docstring promises those that "
        "multiplied v."
    ),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "returns_scores",
    {_RETURN: "return weights @ v, scores"},
    why=_("The second result are the scores. It should be the weights."),
    see="the-function",
    rung=1,
)
wrong_edit(
    _ATTENTION,
    "returns_in_other_order",
    {_RETURN: "return weights, weights @ v"},
    why=_("The two results are in the other order: output first, then weights."),
    see="the-function",
    rung=1,
)
wrong_edit(
    _ATTENTION,
    "returns_output_only",
    {_RETURN: "return weights @ v"},
    why=_("Only the output is returned; the weights are missing."),
    see="the-function",
    rung=1,
)
wrong_edit(
    _ATTENTION,
    "queries_scaled_in_place",
    {
        _SCORES: "with torch.no_grad():\n"
        "        q /= math.sqrt(q.size(-1))\n"
        "    scores = q @ k.transpose(-2, -1)"
    },
    why=_("The queries are divided in place, and the caller's tensor is changed with them."),
    see="scores",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "weights_detached",
    {_SOFTMAX: "weights = masked_softmax(scores, mask).detach()"},
    why=_("The weights are cut off the graph: queries and keys get no gradient and never learn."),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "always_causal",
    {
        _SOFTMAX: "causal = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()\n"
        "    weights = masked_softmax(scores, causal if mask is None else causal & mask)"
    },
    why=_("Later keys are hidden although no mask asks for it."),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "first_value",
    {_RETURN: "return v[..., :1, :].expand(*q.shape[:-1], v.size(-1)), weights"},
    why=_("The output is the first value, for every query: the weights are not used."),
    see="soft-lookup",
    rung=1,
)
wrong_edit(
    _ATTENTION,
    "mean_of_the_values",
    {_SCORES: "scores = torch.zeros_like(q @ k.transpose(-2, -1))"},
    why=_("Every key gets the same share: queries and keys are not read."),
    see="soft-lookup",
    rung=1,
)
wrong_edit(
    _ATTENTION,
    "best_value_only",
    {
        _RETURN: "best = torch.zeros_like(weights).scatter(-1, weights.argmax(-1, keepdim=True), "
        "1.0)\n"
        "    return best @ v, weights"
    },
    why=_("The output is the value of the best key alone. The weights mix all values."),
    see="soft-lookup",
    rung=1,
)
wrong_edit(
    _ATTENTION,
    "all_zeros",
    {_RETURN: "return torch.zeros_like(weights @ v), torch.zeros_like(weights)"},
    why=_("Both results are zeros: nothing is computed."),
    see="soft-lookup",
    rung=1,
)


wrong_edit(
    _ATTENTION,
    "softmax_twice",
    {_SOFTMAX: "weights = masked_softmax(masked_softmax(scores, mask), mask)"},
    why=_("The softmax is taken twice: the second one makes nearly even shares."),
    see="soft-lookup",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "mixes_the_keys",
    {_RETURN: "return weights @ k, weights"},
    why=_("The keys are mixed. What is mixed are the values."),
    see="soft-lookup",
    rung=1,
)
wrong_edit(
    _ATTENTION,
    "weights_transposed",
    {_RETURN: "return weights.transpose(-2, -1) @ v[..., : q.size(-2), :], weights"},
    why=_("The weights are transposed before they meet the values. Rows are queries already."),
    see="scores",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "bias_instead_of_scores",
    {_BIAS: "scores = torch.zeros_like(scores) + bias.to(scores.dtype)"},
    why=_("With a bias, the scores are forgotten: it takes their place. It is added to them."),
    see="the-function",
    rung=1,
)
wrong_edit(
    _ATTENTION,
    "bias_times_scores",
    {_BIAS: "scores = scores * bias.to(scores.dtype)"},
    why=_("The scores are multiplied by the bias. It is added to them."),
    see="the-function",
    rung=1,
)
wrong_edit(
    _ATTENTION,
    "bias_or_mask",
    {"if bias is not None:": "if bias is not None and mask is None:"},
    why=_("The bias is used only where there is no mask. The two do not exclude each other."),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "bias_overwritten",
    {
        _BIAS: "scores = bias.expand_as(scores).add_(scores) if bias.shape == scores.shape else (\n"
        "            scores + bias.to(scores.dtype))"
    },
    why=_(
        "The scores are added to the bias in place: the caller's bias is changed, and a bias that "
        "is learned raises an error."
    ),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "dropout_same_for_all_sequences",
    {
        _DROPOUT: "weights = weights * nn.functional.dropout(torch.ones(weights.shape[-2:]), "
        "dropout_p)"
    },
    why=_("All sequences lose the same weights: one draw serves the whole batch."),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "one_sequence_for_all",
    {
        _SOFTMAX: "weights = masked_softmax(scores, mask)\n"
        "    weights = weights[-1:].expand_as(weights) if q.dim() > 2 else weights"
    },
    why=_("The last sequence's weights serve the whole batch."),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "running_mean",
    {
        _SOFTMAX: "causal = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()\n"
        "    weights = masked_softmax(torch.zeros_like(scores), causal)"
    },
    why=_(
        "The output is the running mean of the values: neither the scores nor the mask are used."
    ),
    see="soft-lookup",
    rung=1,
)
wrong_edit(
    _ATTENTION,
    "library_call",
    {_RETURN: "return nn.functional.scaled_dot_product_attention(q, k, v, mask), weights"},
    why=_("The library's own function is called. That is what this exercise asks you to build."),
    see="the-function",
    rung=1,
)


wrong_edit(
    _ATTENTION,
    "dropout_of_a_half_always",
    {
        "    if dropout_p > 0.0:\n        " + _DROPOUT: (
            "    weights = nn.functional.dropout(weights)"
        )
    },
    form_of="dropout_always_on",
    why=_(
        "`dropout(weights)` without its second argument strikes out half of them, in training and "
        "evaluation alike. The probability is dropout_p, and 0 means none."
    ),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "scores_added_into_the_bias",
    {_BIAS: "scores = bias.add_(scores)"},
    form_of="bias_overwritten",
    why=_(
        "The scores are added into the bias itself: the caller's table is overwritten, autograd "
        "refuses it for a parameter, and a table without a batch axis has no room for them."
    ),
    see="the-function",
    rung=2,
)


wrong_edit(
    _ATTENTION,
    "root_cut_to_integer",
    {_SCORES: "scores = q @ k.transpose(-2, -1) / int(math.sqrt(q.size(-1)))"},
    why=_(
        "The root is cut to a whole number: right for d = 64, where the root is 8, and wrong for "
        "most other widths."
    ),
    see="why-root-d",
    rung=2,
)


wrong_edit(
    _ATTENTION,
    "truth_of_the_bias",
    {"if bias is not None:": "if bias:"},
    why=_(
        "`if bias:` asks whether the bias is True, which is said of one number and not of a table: "
        "torch raises. Ask `if bias is not None`."
    ),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "truth_of_the_mask",
    {
        _SOFTMAX: "if mask:\n"
        "        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)\n"
        "    weights = torch.softmax(scores, dim=-1)"
    },
    why=_(
        "`if mask:` asks whether the mask is True, which is said of one number and not of a table: "
        "torch raises. Ask `if mask is not None`."
    ),
    see="masked-softmax",
    rung=2,
)


wrong_edit(
    _ATTENTION,
    "dropout_on_the_values",
    {_DROPOUT: "v = nn.functional.dropout(v, dropout_p)"},
    why=_("Entries of v are struck out. Dropout strikes out weights, so that a word is not seen."),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "dropout_of_whole_keys",
    {
        _DROPOUT: "kept = torch.rand(weights.size(-1)) >= dropout_p\n"
        "        weights = weights * kept / (1 - dropout_p)"
    },
    form_of="dropout_by_key",
    why=_(
        "One draw per key serves all queries and all sequences. Each weight is struck out by "
        "itself."
    ),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "seed_set_inside",
    {_DROPOUT: "torch.manual_seed(0)\n        " + _DROPOUT},
    why=_(
        "A seed is set inside the function, so every call strikes out the same weights, and all "
        "other random numbers of the program start over as well."
    ),
    see="the-function",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "nan_replaced_at_the_end",
    {
        _SOFTMAX: "if mask is not None:\n"
        "        scores = scores.masked_fill(~mask, float('-inf'))\n"
        "    weights = torch.softmax(scores, dim=-1)",
        _RETURN: "return torch.nan_to_num(weights @ v), torch.nan_to_num(weights)",
    },
    form_of="nan_in_the_gradient",
    why=_(
        "NaN is replaced by 0 at the end, in both results. On the way back it is still there: the "
        "derivative by v is made of the weights, and those are NaN."
    ),
    see="nothing-to-attend-to",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "axis_added_to_tables",
    {
        _SOFTMAX: "if mask is not None and mask.dim() == 2:\n"
        "        mask = mask.unsqueeze(1)\n"
        "    " + _SOFTMAX
    },
    why=_(
        "A mask of two axes is taken for (B, S) and given an axis for the queries. By the rule of "
        "broadcasting it is (T, S), the same for every sequence, and fits as it is."
    ),
    see="masked-softmax",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "einsum_of_three_axes",
    {
        _SCORES: "scores = torch.einsum('btd,bsd->bts', q, k) / math.sqrt(q.size(-1))",
        _RETURN: "return torch.einsum('bts,bsv->btv', weights, v), weights",
    },
    why=_(
        "The letters of the einsum name exactly three axes. There may be none in front, or two: "
        "three dots stand for any number of them."
    ),
    see="scores",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "mask_counted_in_single_precision",
    {
        _SOFTMAX: "if mask is not None:\n"
        "        scores = scores + (1 - mask.float()) * -1e9\n"
        "    weights = torch.softmax(scores, dim=-1)\n"
        "    if mask is not None:\n"
        "        weights = weights * mask"
    },
    why=_(
        "The mask is made a table of single precision and added, which turns half-precision scores "
        "into single precision: the product with v then has two dtypes."
    ),
    see="half-precision",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "results_left_in_single_precision",
    {"    " + _SCORES: "    q, k, v = q.float(), k.float(), v.float()\n    " + _SCORES},
    why=_(
        "The inputs are converted to single precision and the results stay there. They are to have "
        "the dtype of q."
    ),
    see="half-precision",
    rung=2,
)
wrong_edit(
    _ATTENTION,
    "weights_returned_by_columns",
    {_RETURN: "return weights @ v, weights.transpose(-2, -1)"},
    why=_("The weights are returned transposed, (..., S, T): queries belong in rows."),
    see="scores",
    rung=3,
)


@right("scaled_dot_product_attention", style="einsum, with a fill of -1e9 in single precision")
def attention_by_einsum(q, k, v, mask=None, *, bias=None, dropout_p=0.0):
    scores = torch.einsum("...td,...sd->...ts", q, k).float() / q.shape[-1] ** 0.5
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    weights = torch.softmax(scores, -1)
    if mask is not None:
        weights = weights * mask
    weights = torch.dropout(weights, dropout_p, train=True).to(v.dtype)
    return torch.einsum("...ts,...sv->...tv", weights, v), weights


@right("scaled_dot_product_attention", style="float64 inside and outside")
def attention_in_double(q, k, v, mask=None, *, bias=None, dropout_p=0.0):
    q, k, v = q.double(), k.double(), v.double()
    scores = (q / math.sqrt(q.size(-1))) @ k.transpose(-1, -2)
    if bias is not None:
        scores = scores + bias.double()
    weights = masked_softmax(scores, mask)
    if dropout_p:
        kept = torch.bernoulli(torch.full_like(weights, 1 - dropout_p))
        weights = weights * kept / (1 - dropout_p)
    return weights @ v, weights


@right("scaled_dot_product_attention", style="own softmax, renormalised under the mask")
def attention_by_exponentials(q, k, v, mask=None, *, bias=None, dropout_p=0.0):
    scores = attention_scores(q, k)
    if bias is not None:
        scores = scores + bias
    exponentials = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    if mask is not None:
        exponentials = exponentials * mask
    total = exponentials.sum(dim=-1, keepdim=True)
    weights = exponentials / torch.where(total == 0, torch.ones_like(total), total)
    if dropout_p > 0:
        keep = torch.rand(weights.shape) >= dropout_p
        weights = (weights * keep) / (1 - dropout_p)
    return torch.matmul(weights, v), weights


@right("scaled_dot_product_attention", style="a loop over queries")
def attention_by_loop(q, k, v, mask=None, *, bias=None, dropout_p=0.0):
    T, S = q.size(-2), k.size(-2)
    shape = (*q.shape[:-2], T, S)
    mask = torch.ones(shape, dtype=torch.bool) if mask is None else mask.expand(shape)
    bias = torch.zeros(shape) if bias is None else bias.expand(shape)
    rows = []
    for t in range(T):
        score = (k @ q[..., t, :, None])[..., 0] / math.sqrt(q.size(-1)) + bias[..., t, :]
        rows.append(masked_softmax(score, mask[..., t, :]))
    weights = torch.stack(rows, dim=-2).to(v.dtype)
    weights = nn.functional.dropout(weights, p=dropout_p)
    return weights @ v, weights


@right("scaled_dot_product_attention", style="mask turned into a bias; baddbmm on flattened axes")
def attention_by_baddbmm(q, k, v, mask=None, *, bias=None, dropout_p=0.0):
    front, T, S, d = q.shape[:-2], q.size(-2), k.size(-2), q.size(-1)
    added = q.new_zeros(*front, T, S)
    if bias is not None:
        added = added + bias
    if mask is not None:
        added = added.masked_fill(~mask, torch.finfo(q.dtype).min / 2)
    flat = torch.baddbmm(
        added.reshape(-1, T, S), q.reshape(-1, T, d), k.reshape(-1, S, d).mT, alpha=d**-0.5
    )
    weights = flat.reshape(*front, T, S).softmax(dim=-1)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0)
    weights = nn.Dropout(dropout_p)(weights)
    return weights @ v, weights


# --- mask_test -----------------------------------------------------------------------------------


@wrong(
    "mask_test",
    form_of="accepts_everything",
    why=_(
        "Shapes are right in almost every wrong implementation. Assert something of the numbers."
    ),
    see="testing-masks",
    rung=1,
)
def looks_at_shapes(attention):
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
    output, weights = attention(q, k, v, torch.ones(2, 3, 5, dtype=torch.bool))
    assert output.shape == (2, 3, 6)
    assert weights.shape == (2, 3, 5)


@wrong(
    "mask_test",
    why=_("Only row sums are looked at. An implementation that never reads its mask passes."),
    see="testing-masks",
    rung=1,
)
def looks_at_row_sums(attention):
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
    mask = torch.rand(2, 3, 5) < 0.5
    mask[..., 0] = True
    _output, weights = attention(q, k, v, mask)
    assert torch.allclose(weights.sum(dim=-1), torch.ones(2, 3), atol=1e-5)


@wrong(
    "mask_test",
    why=_(
        "Only the forbidden weights are looked at. A mask after the softmax makes them 0 as well."
    ),
    see="testing-masks",
    rung=1,
)
def looks_at_forbidden_weights(attention):
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
    mask = torch.rand(2, 3, 5) < 0.5
    mask[:, :, 0] = True
    mask[:, :, 1] = False
    _output, weights = attention(q, k, v, mask)
    assert (weights[~mask] == 0).all()


@wrong(
    "mask_test",
    why=_("The weights are tested and the output is not: it may come from others."),
    see="testing-masks",
    rung=2,
)
def never_looks_at_the_output(attention):
    q, k, v = torch.randn(3, 4, 5), torch.randn(3, 6, 5), torch.randn(3, 6, 2)
    mask = torch.rand(3, 4, 6) < 0.5
    mask[..., 0] = True
    mask[..., 1] = False
    _output, weights = attention(q, k, v, mask)
    assert (weights[~mask] == 0).all()
    assert torch.allclose(weights.sum(dim=-1), torch.ones(3, 4), atol=1e-5)


@wrong(
    "mask_test",
    why=_("The mask allows everything, so no implementation can get it wrong."),
    see="testing-masks",
    rung=2,
)
def mask_allows_everything(attention):
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
    mask = torch.ones(2, 3, 5, dtype=torch.bool)
    output, weights = attention(q, k, v, mask)
    expected = torch.softmax(q @ k.transpose(-2, -1) / 2.0, dim=-1)
    assert torch.allclose(weights, expected, atol=1e-5)
    assert torch.allclose(output, expected @ v, atol=1e-5)


@wrong(
    "mask_test",
    why=_(
        "There is one sequence only. An implementation that uses the first sequence's mask for all "
        "is right for it."
    ),
    see="testing-masks",
    rung=2,
)
def one_sequence_only(attention):
    q, k, v = torch.randn(1, 3, 4), torch.randn(1, 5, 4), torch.randn(1, 5, 6)
    mask = torch.tensor([[[1, 1, 0, 0, 1], [0, 1, 1, 0, 0], [1, 0, 0, 1, 1]]], dtype=torch.bool)
    output, weights = attention(q, k, v, mask)
    scores = (q @ k.transpose(-2, -1) / 2.0).masked_fill(~mask, -torch.inf)
    expected = torch.softmax(scores, dim=-1)
    assert torch.allclose(weights, expected, atol=1e-5)
    assert torch.allclose(output, expected @ v, atol=1e-5)


@wrong(
    "mask_test",
    why=_(
        "Every query of a sequence has the same mask. An implementation that uses the first "
        "query's mask for all passes."
    ),
    see="testing-masks",
    rung=2,
)
def padding_masks_only(attention):
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
    mask = torch.tensor([[[1, 1, 1, 0, 0]], [[1, 1, 0, 0, 0]]], dtype=torch.bool)
    output, weights = attention(q, k, v, mask)
    scores = (q @ k.transpose(-2, -1) / 2.0).masked_fill(~mask, -torch.inf)
    expected = torch.softmax(scores, dim=-1)
    assert torch.allclose(weights, expected, atol=1e-5)
    assert torch.allclose(output, expected @ v, atol=1e-5)


@wrong(
    "mask_test",
    why=_("Only the first query of the first sequence is looked at."),
    see="testing-masks",
    rung=2,
)
def looks_at_the_first_row(attention):
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
    mask = torch.rand(2, 3, 5) < 0.5
    mask[0, 0] = torch.tensor([True, True, False, False, True])
    mask[..., 0] = True
    output, weights = attention(q, k, v, mask)
    expected = torch.softmax(k[0, mask[0, 0]] @ q[0, 0] / 2.0, dim=-1)
    assert torch.allclose(weights[0, 0, mask[0, 0]], expected, atol=1e-5)
    assert (weights[0, 0, ~mask[0, 0]] == 0).all()
    assert torch.allclose(output[0, 0], expected @ v[0, mask[0, 0]], atol=1e-5)


@wrong(
    "mask_test",
    why=_("The tolerance is so wide that a forbidden key may keep some hundredths of the weight."),
    see="testing-masks",
    rung=2,
)
def tolerance_too_wide(attention):
    noise = torch.Generator().manual_seed(3)
    q, k = torch.randn(2, 3, 4, generator=noise), torch.randn(2, 5, 4, generator=noise)
    v = torch.randn(2, 5, 6, generator=noise)
    mask = torch.rand(2, 3, 5, generator=noise) < 0.5
    mask[..., 0] = True
    output, weights = attention(q, k, v, mask)
    scores = (q @ k.transpose(-2, -1) / 2.0).masked_fill(~mask, -torch.inf)
    expected = torch.softmax(scores, dim=-1)
    assert torch.allclose(weights, expected, atol=0.1)
    assert torch.allclose(output, expected @ v, atol=0.2)


@wrong(
    "mask_test",
    form_of="refuses_everything",
    why=_(
        "Floating numbers are compared with `==`: right implementations that add up in another "
        "order are refused."
    ),
    see="testing-masks",
    rung=2,
)
def no_tolerance(attention):
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
    mask = torch.rand(2, 3, 5) < 0.5
    mask[..., 0] = True
    output, weights = attention(q, k, v, mask)
    for b in range(2):
        for t in range(3):
            seen = mask[b, t]
            expected = torch.exp(k[b, seen] @ q[b, t] / 2.0)
            expected = expected / expected.sum()
            assert weights[b, t, seen].tolist() == expected.tolist()
            assert output[b, t].tolist() == (expected @ v[b, seen]).tolist()


@wrong(
    "mask_test",
    why=_("The test takes True for forbidden. In this book True means allowed."),
    see="masked-softmax",
    rung=2,
)
def expects_true_to_hide(attention):
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
    mask = torch.rand(2, 3, 5) < 0.5
    mask[..., 0], mask[..., 1] = True, False
    output, weights = attention(q, k, v, mask)
    assert (weights[mask] < 1e-6).all()
    assert torch.allclose(output, weights @ v, atol=1e-5)


@wrong(
    "mask_test",
    why=_(
        "The test expects the weights of a softmax without a mask, with zeros in the forbidden "
        "places. That is the mask after the softmax, a mistake."
    ),
    see="masked-softmax",
    rung=2,
)
def expects_mask_after_softmax(attention):
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
    mask = torch.rand(2, 3, 5) < 0.5
    mask[..., 0], mask[..., 1] = True, False
    output, weights = attention(q, k, v, mask)
    expected = torch.softmax(q @ k.transpose(-2, -1) / 2.0, dim=-1) * mask
    assert torch.allclose(weights, expected, atol=1e-5)
    assert torch.allclose(output, expected @ v, atol=1e-5)


@wrong(
    "mask_test",
    form_of="accepts_everything",
    why=_(
        "The test prints or returns its finding. Only an AssertionError counts, so every "
        "implementation passes."
    ),
    see="testing-masks",
    rung=1,
)
def returns_its_finding(attention):
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
    mask = torch.rand(2, 3, 5) < 0.5
    mask[..., 0] = True
    _output, weights = attention(q, k, v, mask)
    return bool((weights[~mask] == 0).all())


@wrong(
    "mask_test",
    form_of="accepts_everything",
    why=_("The assertion is caught again, so every implementation passes."),
    see="testing-masks",
    rung=1,
)
def swallows_its_assertion(attention):
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
    mask = torch.rand(2, 3, 5) < 0.5
    mask[..., 0] = True
    _output, weights = attention(q, k, v, mask)
    try:
        assert (weights[~mask] == 0).all()
    except AssertionError:
        print("the mask is wrong")


@wrong(
    "mask_test",
    why=_(
        "Every implementation passes. Either nothing is asserted that a wrong mask would break "
        "(shapes are right in almost every wrong implementation), or the finding is printed, "
        "returned or caught again instead of raised."
    ),
    see="testing-masks",
    rung=1,
)
def accepts_everything(attention):
    pass


@wrong(
    "mask_test",
    why=_(
        "Every implementation is refused, the right ones too. Either floating numbers are compared "
        "with `==`, and two right computations differ in the last digits, or an assertion can "
        "never hold."
    ),
    see="testing-masks",
    rung=1,
)
def refuses_everything(attention):
    raise AssertionError("wrong")


@wrong(
    "mask_test",
    why=_("Outputs are compared, and weights are not: they may be those of another mask."),
    see="testing-masks",
    rung=2,
)
def never_looks_at_the_weights(attention):
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
    mask = torch.rand(2, 3, 5) < 0.5
    mask[..., 0], mask[..., 1] = True, False
    output, _weights = attention(q, k, v, mask)
    other, _weights = attention(q, k, v + 10 * ~mask.any(dim=1)[..., None], mask)
    assert torch.allclose(output, other, atol=1e-4)


@wrong(
    "mask_test",
    form_of="one_sequence_only",
    why=_(
        "There is no batch, so an implementation that uses the first sequence's mask for all "
        "passes."
    ),
    see="testing-masks",
    rung=2,
)
def without_a_batch(attention):
    noise = torch.Generator().manual_seed(2)
    q, k = torch.randn(3, 4, generator=noise), torch.randn(5, 4, generator=noise)
    v = torch.randn(5, 6, generator=noise)
    mask = torch.rand(3, 5, generator=noise) < 0.5
    mask[:, 0] = True
    output, weights = attention(q, k, v, mask)
    expected = masked_softmax(attention_scores(q, k), mask)
    assert torch.allclose(weights, expected, atol=1e-5)
    assert torch.allclose(output, expected @ v, atol=1e-5)


@wrong(
    "mask_test",
    why=_(
        "All masks of the test have the shape of the scores. An implementation that does not read "
        "smaller ones, such as (B, 1, S), passes."
    ),
    see="testing-masks",
    rung=3,
)
def full_masks_only(attention):
    torch.manual_seed(1)
    q, k, v = torch.randn(4, 3, 2), torch.randn(4, 5, 2), torch.randn(4, 5, 6)
    mask = torch.rand(4, 3, 5) < 0.5
    mask[..., 2] = True
    expected_output, expected_weights = scaled_dot_product_attention(q, k, v, mask)
    output, weights = attention(q, k, v, mask=mask)
    torch.testing.assert_close(output, expected_output, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(weights, expected_weights, atol=1e-5, rtol=1e-5)


@wrong(
    "mask_test",
    why=_(
        "Zeros in forbidden places and rows that sum to 1 are asked for, and nothing of the shares "
        "in between: the allowed keys may have anything."
    ),
    see="testing-masks",
    rung=3,
)
def never_looks_at_the_shares(attention):
    noise = torch.Generator().manual_seed(2)
    q = torch.randn(2, 3, 4, generator=noise)
    k, v = torch.randn(2, 5, 4, generator=noise), torch.randn(2, 5, 6, generator=noise)
    full = torch.rand(2, 3, 5, generator=noise) < 0.5
    full[..., 0] = True
    for mask in (full, full[:, :1]):
        output, weights = attention(q, k, v, mask)
        assert (weights[~mask.expand(2, 3, 5)] == 0).all()
        assert torch.allclose(weights.sum(dim=-1), torch.ones(2, 3), atol=1e-5)
        assert torch.allclose(output, weights @ v, atol=1e-5)


@wrong(
    "mask_test",
    form_of="never_looks_at_the_shares",
    why=_(
        "Zeros in forbidden places and rows that sum to 1 are asked for, and nothing of the shares "
        "in between; and all masks have the shape of the scores."
    ),
    see="testing-masks",
    rung=3,
)
def never_looks_at_the_shares_of_full_masks(attention):
    noise = torch.Generator().manual_seed(2)
    q = torch.randn(2, 3, 4, generator=noise)
    k, v = torch.randn(2, 5, 4, generator=noise), torch.randn(2, 5, 6, generator=noise)
    mask = torch.rand(2, 3, 5, generator=noise) < 0.5
    mask[..., 0] = True
    output, weights = attention(q, k, v, mask)
    assert (weights[~mask] == 0).all()
    assert torch.allclose(weights.sum(dim=-1), torch.ones(2, 3), atol=1e-5)
    assert torch.allclose(output, weights @ v, atol=1e-5)


@wrong(
    "mask_test",
    form_of="tolerance_too_wide",
    why=_(
        "The tolerance of 0.5 is wider than many a wrong share. Two right implementations differ "
        "by 0.00001 at most."
    ),
    see="testing-masks",
    rung=2,
)
def tolerance_of_a_half(attention):
    noise = torch.Generator().manual_seed(0)
    q = torch.randn(2, 3, 4, generator=noise)
    k, v = torch.randn(2, 5, 4, generator=noise), torch.randn(2, 5, 6, generator=noise)
    full = torch.rand(2, 3, 5, generator=noise) < 0.6
    full[..., 0] = True
    for mask in (full, full[:, :1]):
        output, weights = attention(q, k, v, mask)
        expected = masked_softmax(attention_scores(q, k), mask)
        assert torch.allclose(weights, expected, atol=0.5)
        assert torch.allclose(output, expected @ v, atol=0.5)


@wrong(
    "mask_test",
    why=_(
        "The queries are zero, so all scores are equal and every share is even: an implementation "
        "that shares out evenly looks right."
    ),
    see="testing-masks",
    rung=3,
)
def tests_with_equal_scores(attention):
    noise = torch.Generator().manual_seed(2)
    q = torch.zeros(2, 3, 4)
    k, v = torch.randn(2, 5, 4, generator=noise), torch.randn(2, 5, 6, generator=noise)
    full = torch.rand(2, 3, 5, generator=noise) < 0.5
    full[..., 0] = True
    for mask in (full, full[:, :1]):
        output, weights = attention(q, k, v, mask)
        expected = masked_softmax(attention_scores(q, k), mask)
        assert torch.allclose(weights, expected, atol=1e-5)
        assert torch.allclose(output, expected @ v, atol=1e-5)


@wrong(
    "mask_test",
    why=_(
        "The differences are compared without their absolute value, so weights that are far too "
        "small pass: `(found - expected).abs()`."
    ),
    see="testing-masks",
    rung=3,
)
def compares_without_absolute_value(attention):
    noise = torch.Generator().manual_seed(2)
    q = torch.randn(2, 3, 4, generator=noise)
    k, v = torch.randn(2, 5, 4, generator=noise), torch.randn(2, 5, 6, generator=noise)
    full = torch.rand(2, 3, 5, generator=noise) < 0.5
    full[..., 0] = True
    for mask in (full, full[:, :1]):
        output, weights = attention(q, k, v, mask)
        expected = masked_softmax(attention_scores(q, k), mask)
        assert (weights - expected).max() < 1e-5
        assert (output - expected @ v).max() < 1e-5


@wrong(
    "mask_test",
    why=_("Outputs are compared with what they should be, and the weights beside them are not."),
    see="testing-masks",
    rung=2,
)
def compares_the_output_only(attention):
    noise = torch.Generator().manual_seed(2)
    q = torch.randn(2, 3, 4, generator=noise)
    k, v = torch.randn(2, 5, 4, generator=noise), torch.randn(2, 5, 6, generator=noise)
    full = torch.rand(2, 3, 5, generator=noise) < 0.5
    full[..., 0] = True
    for mask in (full, full[:, :1]):
        output, _weights = attention(q, k, v, mask)
        expected = masked_softmax(attention_scores(q, k), mask)
        assert torch.allclose(output, expected @ v, atol=1e-5)


@wrong(
    "mask_test",
    form_of="compares_the_output_only",
    why=_("Outputs are compared with what they should be, and the weights beside them are not."),
    see="testing-masks",
    rung=2,
)
def compares_the_output_under_full_masks(attention):
    noise = torch.Generator().manual_seed(2)
    q = torch.randn(2, 3, 4, generator=noise)
    k, v = torch.randn(2, 5, 4, generator=noise), torch.randn(2, 5, 6, generator=noise)
    full = torch.rand(2, 3, 5, generator=noise) < 0.5
    full[..., 0] = True
    for mask in (full,):
        output, _weights = attention(q, k, v, mask)
        expected = masked_softmax(attention_scores(q, k), mask)
        assert torch.allclose(output, expected @ v, atol=1e-5)


@wrong(
    "mask_test",
    why=_(
        "The comparison is exact. Right implementations add in another order and differ in the "
        "last digit: allow for rounding."
    ),
    see="testing-masks",
    rung=2,
)
def compares_to_the_last_digit(attention):
    noise = torch.Generator().manual_seed(2)
    q = torch.randn(2, 3, 4, generator=noise)
    k, v = torch.randn(2, 5, 4, generator=noise), torch.randn(2, 5, 6, generator=noise)
    full = torch.rand(2, 3, 5, generator=noise) < 0.5
    full[..., 0] = True
    for mask in (full, full[:, :1]):
        output, weights = attention(q, k, v, mask)
        scores = q @ k.transpose(-2, -1) / math.sqrt(4)
        expected = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
        assert torch.equal(weights, expected)
        assert torch.equal(output, expected @ v)


@right("mask_test", style="changes what is forbidden and compares with a softmax of its own")
def by_perturbation(attention):
    torch.manual_seed(0)
    B, T, S, d, d_v = 3, 4, 6, 5, 2
    q, k, v = torch.randn(B, T, d), torch.randn(B, S, d), torch.randn(B, S, d_v)
    full = torch.rand(B, T, S) < 0.6
    full[..., 0] = True
    for mask in (full, full[0], full[:, 1:2]):
        output, weights = attention(q, k, v, mask)
        forbidden = ~mask.broadcast_to(B, T, S)
        assert (weights[forbidden].abs() < 1e-6).all()
        scores = (q @ k.mT / d**0.5).masked_fill(forbidden, -1e9)
        assert torch.allclose(weights, scores.softmax(-1), atol=1e-4)
        assert torch.allclose(output, weights @ v, atol=1e-4)


@right("mask_test", style="leaves forbidden keys out, query by query")
def by_leaving_out(attention):
    B, T, S, d, d_v = 2, 3, 7, 4, 5
    for attempt in range(3):
        noise = torch.Generator().manual_seed(attempt)
        q = torch.randn(B, T, d, generator=noise)
        k = torch.randn(B, S, d, generator=noise)
        v = torch.randn(B, S, d_v, generator=noise)
        mask = torch.rand(B, T, S, generator=noise) < 0.5
        mask[..., attempt] = True
        if attempt == 2:
            mask = mask[:, :1]
        output, weights = attention(q, k, v, mask)
        for b in range(B):
            for t in range(T):
                seen = mask.expand(B, T, S)[b, t]
                short, _weights = attention(
                    q[b : b + 1, t : t + 1],
                    k[b : b + 1, seen],
                    v[b : b + 1, seen],
                    torch.ones(1, 1, int(seen.sum()), dtype=torch.bool),
                )
                assert torch.allclose(output[b, t], short[0, 0], atol=1e-5)
                assert weights[b, t, ~seen].abs().sum() < 1e-5
                assert abs(weights[b, t].sum() - 1) < 1e-5


@right("mask_test", style="against the chapter's own function")
def against_own_function(attention):
    torch.manual_seed(1)
    q, k, v = torch.randn(4, 3, 2), torch.randn(4, 5, 2), torch.randn(4, 5, 6)
    mask = torch.rand(4, 3, 5) < 0.5
    mask[..., 2] = True
    for some in (mask, mask[2], mask[:, 1:2]):
        expected_output, expected_weights = scaled_dot_product_attention(q, k, v, some)
        output, weights = attention(q, k, v, mask=some)
        torch.testing.assert_close(output, expected_output, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(weights, expected_weights, atol=1e-5, rtol=1e-5)


@right("mask_test", style="PyTorch's function in float64, weights by way of the identity")
def against_the_library(attention):
    for seed in range(2):
        noise = torch.Generator().manual_seed(seed)
        q = torch.randn(2, 3, 4, generator=noise)
        k, v = torch.randn(2, 5, 4, generator=noise), torch.randn(2, 5, 6, generator=noise)
        full = torch.rand(2, 3, 5, generator=noise) < 0.5
        full[..., seed] = True
        for mask in (full, full[1], full[:, :1]):
            output, weights = attention(q, k, v, mask)
            for found, values in ((output, v), (weights, torch.eye(5).expand(2, 5, 5))):
                expected = nn.functional.scaled_dot_product_attention(
                    q.double(), k.double(), values.double(), attn_mask=mask
                )
                assert found.shape == expected.shape
                assert float((found - expected).abs().max()) < 1e-5


# --- SelfAttention -------------------------------------------------------------------------------

_MAPS = "q, k, v = self.query(x), self.key(x), self.value(x)  # (B, T, d) each"
_ATTEND = "return scaled_dot_product_attention(q, k, v, mask)"
_LAYER = "SelfAttention"
_SUPER = "        super().__init__()\n"
_QUERY = "self.query = nn.Linear(D, d, bias=bias)"
_KEY = "self.key = nn.Linear(D, d, bias=bias)"
_VALUE = "self.value = nn.Linear(D, d, bias=bias)"

wrong_edit(
    _LAYER,
    "divided_by_root_D",
    {
        _ATTEND: "return scaled_dot_product_attention(q * math.sqrt(q.size(-1) / x.size(-1)), k, "
        "v, mask)"
    },
    why=_("The divisor is √D, from the width of the model. Dot products are d terms long."),
    see="why-root-d",
    rung=2,
)
wrong_edit(
    _LAYER,
    "no_scale",
    {
        _ATTEND: "scores = q @ k.transpose(-2, -1)\n"
        "        weights = masked_softmax(scores, mask)\n"
        "        return weights @ v, weights"
    },
    why=_("The scores are not divided by √d."),
    see="why-root-d",
    rung=2,
)
wrong_edit(
    _LAYER,
    "divided_by_root_T",
    {
        _ATTEND: "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(1))\n"
        "        weights = masked_softmax(scores, mask)\n"
        "        return weights @ v, weights"
    },
    why=_("The divisor is √T, from the number of words."),
    see="why-root-d",
    rung=2,
)
wrong_edit(
    _LAYER,
    "scaled_twice",
    {_ATTEND: "return scaled_dot_product_attention(q / math.sqrt(q.size(-1)), k, v, mask)"},
    why=_("The scores are divided by √d twice: the function does it already."),
    see="why-root-d",
    rung=2,
)
wrong_edit(
    _LAYER,
    "values_from_the_key_map",
    {_MAPS: "q, k, v = self.query(x), self.key(x), self.key(x)"},
    why=_("The values come from the key map: a line was copied and not changed."),
    see="the-module",
    rung=1,
)
wrong_edit(
    _LAYER,
    "keys_from_the_query_map",
    {_MAPS: "q, k, v = self.query(x), self.query(x), self.value(x)"},
    why=_("The keys come from the query map, so the scores are symmetric."),
    see="the-module",
    rung=1,
)
wrong_edit(
    _LAYER,
    "queries_and_keys_swapped",
    {_ATTEND: "return scaled_dot_product_attention(k, q, v, mask)"},
    why=_("Queries and keys have changed places: each word is asked where it should ask."),
    see="the-module",
    rung=1,
)
wrong_edit(
    _LAYER,
    "values_are_the_input",
    {
        _ATTEND: "_output, weights = scaled_dot_product_attention(q, k, v, mask)\n"
        "        return (weights @ x)[..., : v.size(-1)], weights"
    },
    why=_("The input itself is mixed: the value map is not used."),
    see="the-module",
    rung=1,
)
wrong_edit(
    _LAYER,
    "one_shared_map",
    {_KEY: "self.key = self.query", _VALUE: "self.value = self.query"},
    why=_("One map serves as query, key and value. They are three maps with weights of their own."),
    see="the-module",
    rung=1,
)
wrong_edit(
    _LAYER,
    "bias_always",
    {
        _QUERY: "self.query = nn.Linear(D, d)",
        _KEY: "self.key = nn.Linear(D, d)",
        _VALUE: "self.value = nn.Linear(D, d)",
    },
    why=_("The argument `bias` is not handed on: the maps always have one."),
    see="the-module",
    rung=2,
)
wrong_edit(
    _LAYER,
    "bias_never",
    {
        _QUERY: "self.query = nn.Linear(D, d, bias=False)",
        _KEY: "self.key = nn.Linear(D, d, bias=False)",
        _VALUE: "self.value = nn.Linear(D, d, bias=False)",
    },
    why=_("The maps never have a bias. Without an argument they should have one."),
    see="the-module",
    rung=2,
)
wrong_edit(
    _LAYER,
    "mask_not_handed_on",
    {_ATTEND: "return scaled_dot_product_attention(q, k, v)"},
    why=_("The mask is not handed on to the function."),
    see="the-module",
    rung=1,
)
wrong_edit(
    _LAYER,
    "mask_inverted",
    {_ATTEND: "return scaled_dot_product_attention(q, k, v, None if mask is None else ~mask)"},
    why=_("The mask is turned round on the way: True means allowed, here as in the function."),
    see="masked-softmax",
    rung=2,
)
wrong_edit(
    _LAYER,
    "mask_transposed",
    {_ATTEND: "return scaled_dot_product_attention(q, k, v, None if mask is None else mask.mT)"},
    why=_("The mask has its last two axes exchanged: it hides queries from keys."),
    see="masked-softmax",
    rung=2,
)
wrong_edit(
    _LAYER,
    "init_not_called",
    {_SUPER: ""},
    why=_("`super().__init__()` is missing. A module cannot keep layers before it has run."),
    see="the-module",
    rung=2,
)
wrong_edit(
    _LAYER,
    "sizes_swapped",
    {
        _QUERY: "self.query = nn.Linear(d, D, bias=bias)",
        _KEY: "self.key = nn.Linear(d, D, bias=bias)",
        _VALUE: "self.value = nn.Linear(d, D, bias=bias)",
    },
    why=_("The sizes of the layers are swapped: `nn.Linear` takes the width of its input first."),
    see="the-module",
    rung=2,
)
wrong_edit(
    _LAYER,
    "values_as_wide_as_the_model",
    {_VALUE: "self.value = nn.Linear(D, D, bias=bias)"},
    why=_("The values are D wide. In this layer all three maps lead to d."),
    see="the-module",
    rung=2,
)
wrong_edit(
    _LAYER,
    "other_names",
    {
        _QUERY: "self.W_Q = nn.Linear(D, d, bias=bias)",
        _KEY: "self.W_K = nn.Linear(D, d, bias=bias)",
        _VALUE: "self.W_V = nn.Linear(D, d, bias=bias)",
        _MAPS: "q, k, v = self.W_Q(x), self.W_K(x), self.W_V(x)",
    },
    why=_("The layers have other names than the docstring gives: query, key and value."),
    see="the-module",
    rung=2,
)
wrong_edit(
    _LAYER,
    "layers_made_in_forward",
    {
        _MAPS: "d = self.query.out_features\n"
        "        q, k, v = (nn.Linear(x.size(-1), d)(x) for _ in range(3))"
    },
    why=_(
        "The layers are made anew, with random weights, at every call. Nothing can be learned so."
    ),
    see="the-module",
    rung=2,
)
wrong_edit(
    _LAYER,
    "one_layer_too_many",
    {
        _VALUE: "self.value = nn.Linear(D, d, bias=bias)\n"
        "        self.output = nn.Linear(d, d, bias=bias)",
        _ATTEND: "output, weights = scaled_dot_product_attention(q, k, v, mask)\n"
        "        return self.output(output), weights",
    },
    why=_("There is an output layer. It belongs to multi-head attention, and this layer has none."),
    see="the-module",
    rung=1,
)
wrong_edit(
    _LAYER,
    "nonlinear_maps",
    {_MAPS: "q, k, v = (torch.relu(layer(x)) for layer in (self.query, self.key, self.value))"},
    why=_("The maps are followed by a ReLU. They are linear and nothing else."),
    see="the-module",
    rung=2,
)
wrong_edit(
    _LAYER,
    "softmax_over_queries",
    {
        _ATTEND: "weights = torch.softmax(attention_scores(q, k), dim=1)\n"
        "        if mask is not None:\n"
        "            weights = weights * mask\n"
        "        return weights @ v, weights"
    },
    why=_("The softmax runs over the queries, `dim=1`."),
    see="scores",
    rung=2,
)
wrong_edit(
    _LAYER,
    "returns_output_only",
    {_ATTEND: "return scaled_dot_product_attention(q, k, v, mask)[0]"},
    why=_("Only the output is returned; the weights are missing."),
    see="the-module",
    rung=1,
)
wrong_edit(
    _LAYER,
    "dropout_inside",
    {
        _ATTEND: "return scaled_dot_product_attention(q, k, v, mask,\n"
        "                                            dropout_p=0.1 if self.training else 0.0)"
    },
    why=_("There is dropout in training. This layer has none."),
    see="the-module",
    rung=2,
)
wrong_edit(
    _LAYER,
    "weights_detached",
    {
        _ATTEND: "_output, weights = scaled_dot_product_attention(q, k, v, mask)\n"
        "        return weights.detach() @ v, weights"
    },
    why=_("The weights are cut off the graph: the query and key maps get no gradient."),
    see="the-module",
    rung=2,
)
wrong_edit(
    _LAYER,
    "always_causal",
    {
        _ATTEND: "causal = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril()\n"
        "        return scaled_dot_product_attention(q, k, v,\n"
        "                                            causal if mask is None else causal & mask)"
    },
    why=_("Later words are hidden although no mask asks for it."),
    see="the-module",
    rung=2,
)
wrong_edit(
    _LAYER,
    "values_pass_through",
    {
        _ATTEND: "_output, weights = scaled_dot_product_attention(q, k, v, mask)\n"
        "        return v, weights"
    },
    why=_("Each word gets its own value: the weights are not used."),
    see="the-module",
    rung=1,
)

wrong_edit(
    _LAYER,
    "empty_row_is_even",
    {
        _ATTEND: "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))\n"
        "        if mask is not None:\n"
        "            scores = scores.masked_fill(~mask, -1e9)\n"
        "        weights = torch.softmax(scores, dim=-1)\n"
        "        return weights @ v, weights"
    },
    why=_(
        "A word that may see none attends to all evenly: its scores are all equal. It gets zero "
        "weights."
    ),
    see="nothing-to-attend-to",
    rung=2,
)
wrong_edit(
    _LAYER,
    "empty_row_is_nan",
    {
        _ATTEND: "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))\n"
        "        if mask is not None:\n"
        "            scores = scores.masked_fill(~mask, float('-inf'))\n"
        "        weights = torch.softmax(scores, dim=-1)\n"
        "        return weights @ v, weights"
    },
    why=_("A word that may see none gets NaN: the softmax of a row of −∞ is 0/0."),
    see="nothing-to-attend-to",
    rung=2,
)
wrong_edit(
    _LAYER,
    "adds_its_input",
    {
        _ATTEND: "output, weights = scaled_dot_product_attention(q, k, v, mask)\n"
        "        return output + x, weights"
    },
    why=_(
        "The input is added to the output. They have the same width by chance only, and the "
        "residual connection belongs to the block around this layer."
    ),
    see="the-module",
    rung=2,
)


wrong_edit(
    _LAYER,
    "mask_kept_for_later_calls",
    {
        _ATTEND: "if mask is not None:\n"
        "            self.mask = mask\n"
        "        return scaled_dot_product_attention(q, k, v, getattr(self, 'mask', None))"
    },
    why=_(
        "The mask of a call is kept in the module, and a later call without a mask uses it. A mask "
        "belongs to the batch that it came with."
    ),
    see="the-module",
    rung=2,
)
wrong_edit(
    _LAYER,
    "bias_of_one_map_only",
    {_KEY: "self.key = nn.Linear(D, d)", _VALUE: "self.value = nn.Linear(D, d)"},
    why=_("The argument `bias` reaches one of the three maps; the others always have a bias."),
    see="the-module",
    rung=2,
)
wrong_edit(
    _LAYER,
    "maps_as_wide_as_the_model",
    {
        _QUERY: "self.query = nn.Linear(D, D, bias=bias)",
        _KEY: "self.key = nn.Linear(D, D, bias=bias)",
        _VALUE: "self.value = nn.Linear(D, D, bias=bias)",
    },
    why=_("All three maps go from D to D, and d is never used: they go from D to d."),
    see="the-module",
    rung=2,
)
wrong_edit(
    _LAYER,
    "layers_in_a_plain_list",
    {
        _QUERY: "self.maps = [nn.Linear(D, d, bias=bias) for _ in range(3)]",
        _KEY: "self.d = d",
        _VALUE: "self.D = D",
        _MAPS: "q, k, v = (layer(x) for layer in self.maps)",
    },
    why=_(
        "The layers stand in a plain list, which nn.Module does not look into: the module has no "
        "parameters, and nothing would be trained or saved."
    ),
    see="the-module",
    rung=2,
)
wrong_edit(
    _LAYER,
    "one_map_for_all_three_parts",
    {
        _QUERY: "self.qkv = nn.Linear(D, 3 * d, bias=bias)",
        _KEY: "self.d = d",
        _VALUE: "self.D = D",
        _MAPS: "q, k, v = self.qkv(x).chunk(3, dim=-1)",
    },
    why=_(
        "One map makes all three parts. That computes the same, but the exercise names three "
        "layers, query, key and value, and weights are loaded by these names."
    ),
    see="the-module",
    rung=2,
)
wrong_edit(
    _LAYER,
    "mask_given_one_more_axis",
    {_ATTEND: "mask = None if mask is None else mask.unsqueeze(1)\n        " + _ATTEND},
    why=_("The mask is given one more axis. It broadcasts to (B, T, T) as it came."),
    see="the-module",
    rung=2,
)
wrong_edit(
    _LAYER,
    "computed_without_gradients",
    {
        _ATTEND: "with torch.no_grad():\n"
        "            return scaled_dot_product_attention(q, k, v, mask)"
    },
    why=_("Attention is computed under `no_grad`, so no parameter ever gets a gradient."),
    see="the-module",
    rung=2,
)
wrong_edit(
    _LAYER,
    "input_detached",
    {_MAPS: "x = x.detach()\n        " + _MAPS},
    why=_(
        "The input is detached. The maps learn, but nothing that stands before this layer ever "
        "would."
    ),
    see="the-module",
    rung=2,
)
wrong_edit(
    _LAYER,
    "nonlinear_queries_and_keys",
    {_MAPS: "q, k, v = torch.relu(self.query(x)), torch.relu(self.key(x)), self.value(x)"},
    form_of="nonlinear_maps",
    why=_("Queries and keys go through a ReLU. The three maps are linear."),
    see="the-module",
    rung=1,
)


right_edit(
    _LAYER,
    "maps_in_one_product",
    {
        _MAPS: "layers = (self.query, self.key, self.value)\n"
        "        fused = x @ torch.cat([layer.weight for layer in layers]).T\n"
        "        if self.query.bias is not None:\n"
        "            fused = fused + torch.cat([layer.bias for layer in layers])\n"
        "        q, k, v = fused.chunk(3, dim=-1)"
    },
    style="one matrix product for the three maps",
)
right_edit(
    _LAYER,
    "all_by_hand",
    {
        _ATTEND: "scores = torch.einsum('btd,bsd->bts', q, k) * q.size(-1) ** -0.5\n"
        "        if mask is not None:\n"
        "            scores = scores.masked_fill(~mask, -1e9)\n"
        "        weights = scores.softmax(dim=2)\n"
        "        if mask is not None:\n"
        "            weights = weights * mask\n"
        "        return torch.einsum('bts,bsd->btd', weights, v), weights"
    },
    style="scores and softmax written out, with -1e9",
)
right_edit(
    _LAYER,
    "sequence_by_sequence",
    {
        _MAPS: "B = x.size(0)\n"
        "        mask = None if mask is None else mask.expand(B, x.size(1), x.size(1))",
        _ATTEND: "pairs = [\n"
        "            scaled_dot_product_attention(\n"
        "                self.query(x[b]), self.key(x[b]), self.value(x[b]),\n"
        "                None if mask is None else mask[b])\n"
        "            for b in range(B)\n"
        "        ]\n"
        "        outputs, weights = zip(*pairs)\n"
        "        return torch.stack(outputs), torch.stack(weights)",
    },
    style="a loop over the batch",
)
right_edit(
    _LAYER,
    "scale_in_a_buffer",
    {
        _VALUE: "self.value = nn.Linear(D, d, bias=bias)\n"
        "        self.register_buffer('scale', torch.tensor(float(d)).rsqrt())",
        _ATTEND: "weights = masked_softmax(q @ k.transpose(-2, -1) * self.scale, mask)\n"
        "        return weights @ v, weights",
    },
    style="the scale kept in a buffer",
)
right_edit(
    _LAYER,
    "layers_in_a_loop",
    {
        _QUERY: "for name in ('value', 'key', 'query'):\n"
        "            self.add_module(name, nn.Linear(D, d, bias))",
        _KEY: "self.d = d",
        _VALUE: "self.D = D",
    },
    style="layers made in another order, by name",
)

# --- attend_to_memory ----------------------------------------------------------------------------

_MENDED_SCORES = "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, T, S)"
_MENDED_WEIGHTS = "weights = masked_softmax(scores, mask)"
_BUG_SCALE = {
    _MENDED_SCORES: "scores = q @ k.transpose(-2, -1) / math.sqrt(x.size(-1))  # (B, T, S)"
}
_BUG_AXIS = {
    _MENDED_WEIGHTS: "if mask is not None:\n"
    "        scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)\n"
    "    weights = torch.softmax(scores, dim=1)\n"
    "    if mask is not None:\n"
    "        weights = weights.masked_fill(mask == 0, 0.0)"
}
_BUG_MASK = {
    _MENDED_WEIGHTS: "weights = torch.softmax(scores, dim=-1)\n"
    "    if mask is not None:\n"
    "        weights = weights.masked_fill(mask == 0, 0.0)"
}
_BUG_AXIS_AND_MASK = {
    _MENDED_WEIGHTS: "weights = torch.softmax(scores, dim=1)\n"
    "    if mask is not None:\n"
    "        weights = weights.masked_fill(mask == 0, 0.0)"
}
_MEMORY = "attend_to_memory"

wrong_edit(
    _MEMORY,
    "as_handed_out",
    {**_BUG_SCALE, **_BUG_AXIS_AND_MASK},
    given=True,
    why=_("It still behaves as it was handed out: all three faults are there."),
    see="reading-code",
    rung=1,
)
wrong_edit(
    _MEMORY,
    "scale_is_left",
    _BUG_SCALE,
    why=_("Two faults are mended. The third sits in the size of the scores."),
    see="why-root-d",
    rung=2,
)
wrong_edit(
    _MEMORY,
    "axis_is_left",
    _BUG_AXIS,
    why=_("Two faults are mended. The third shows in the row sums, with a mask and without."),
    see="scores",
    rung=2,
)
wrong_edit(
    _MEMORY,
    "mask_is_left",
    _BUG_MASK,
    why=_("Two faults are mended. The third shows only where there is a mask."),
    see="masked-softmax",
    rung=2,
)
wrong_edit(
    _MEMORY,
    "axis_and_mask_are_left",
    _BUG_AXIS_AND_MASK,
    why=_("The scores have the right size now. Two faults are left, and the row sums show both."),
    see="reading-code",
    rung=2,
)
wrong_edit(
    _MEMORY,
    "scale_and_mask_are_left",
    {**_BUG_SCALE, **_BUG_MASK},
    why=_(
        "Without a mask the rows sum to 1 now. Two faults are left: one in the size of the scores, "
        "one that shows only where there is a mask."
    ),
    see="reading-code",
    rung=2,
)
wrong_edit(
    _MEMORY,
    "scale_and_axis_are_left",
    {**_BUG_SCALE, **_BUG_AXIS},
    why=_(
        "The mask comes in time now. Two faults are left: one in the size of the scores, one in "
        "the row sums."
    ),
    see="reading-code",
    rung=2,
)
wrong_edit(
    _MEMORY,
    "scale_removed",
    {_MENDED_SCORES: "scores = q @ k.transpose(-2, -1)"},
    why=_("The wrong divisor was taken away, and none put in its place."),
    see="why-root-d",
    rung=2,
)
wrong_edit(
    _MEMORY,
    "divided_by_root_d_v",
    {_MENDED_SCORES: "scores = q @ k.transpose(-2, -1) / math.sqrt(v.size(-1))"},
    why=_(
        "The divisor is the root of the width of the values. Dot products are of queries and keys."
    ),
    see="why-root-d",
    rung=2,
)
wrong_edit(
    _MEMORY,
    "divided_by_root_S",
    {_MENDED_SCORES: "scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(1))"},
    why=_(
        "The divisor is the root of the number of keys. What counts is the width of the queries."
    ),
    see="why-root-d",
    rung=2,
)
wrong_edit(
    _MEMORY,
    "axis_over_the_batch",
    {
        _MENDED_WEIGHTS: "if mask is not None:\n"
        "        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)\n"
        "    weights = torch.softmax(scores, dim=0)\n"
        "    if mask is not None:\n"
        "        weights = weights.masked_fill(~mask, 0.0)"
    },
    why=_("The softmax runs over the sequences of the batch now."),
    see="scores",
    rung=2,
)
wrong_edit(
    _MEMORY,
    "mask_inverted",
    {_MENDED_WEIGHTS: "weights = masked_softmax(scores, None if mask is None else ~mask)"},
    why=_("The mask comes in time now, and upside down: True means allowed."),
    see="masked-softmax",
    rung=2,
)
wrong_edit(
    _MEMORY,
    "empty_row_is_nan",
    {
        _MENDED_WEIGHTS: "if mask is not None:\n"
        "        scores = scores.masked_fill(mask == 0, float('-inf'))\n"
        "    weights = torch.softmax(scores, dim=-1)"
    },
    why=_(
        "All three faults are mended, and a new one came in: a query with no allowed key, which "
        "got zeros before, gets NaN."
    ),
    see="nothing-to-attend-to",
    rung=3,
)
wrong_edit(
    _MEMORY,
    "empty_row_is_even",
    {
        _MENDED_WEIGHTS: "if mask is not None:\n"
        "        scores = scores.masked_fill(mask == 0, -1e9)\n"
        "    weights = torch.softmax(scores, dim=-1)"
    },
    why=_(
        "All three faults are mended, and a new one came in: a query with no allowed key, which "
        "got zeros before, attends to everything."
    ),
    see="nothing-to-attend-to",
    rung=3,
)
wrong_edit(
    _MEMORY,
    "keys_from_the_query_map",
    {"k = memory @ weight_k  # (B, S, d)": "k = memory @ weight_q  # (B, S, d)"},
    why=_("The three faults are mended, and a new one came in: the keys are made with weight_q."),
    see="the-module",
    rung=1,
)
wrong_edit(
    _MEMORY,
    "values_from_the_key_map",
    {
        "return weights @ v, weights": "return weights @ k @ weight_k.T @ weight_v, weights",
    },
    why=_("The three faults are mended, and a new one came in: the output is made from the keys."),
    see="reading-code",
    rung=1,
)

wrong_edit(
    _MEMORY,
    "memory_ignored",
    {
        "k = memory @ weight_k  # (B, S, d)": "k = x @ weight_k",
        "v = memory @ weight_v  # (B, S, d_v)": "v = x @ weight_v",
    },
    why=_("Keys and values are made from x: it asks itself, and the memory is not read."),
    see="reading-code",
    rung=1,
)
wrong_edit(
    _MEMORY,
    "mask_ignored",
    {_MENDED_WEIGHTS: "weights = masked_softmax(scores)"},
    why=_("Without a mask all is right now, and with one it is not used."),
    see="masked-softmax",
    rung=1,
)

wrong_edit(
    _MEMORY,
    "zero_before_softmax",
    {
        _MENDED_WEIGHTS: "if mask is not None:\n"
        "        scores = scores.masked_fill(mask == 0, 0.0)\n"
        "    weights = torch.softmax(scores, dim=-1)"
    },
    why=_(
        "The mask comes before the softmax now, but fills with 0, and a score of 0 is a score like "
        "any other."
    ),
    see="masked-softmax",
    rung=3,
)
wrong_edit(
    _MEMORY,
    "nan_in_the_gradient",
    {
        _MENDED_WEIGHTS: "if mask is not None:\n"
        "        scores = scores.masked_fill(mask == 0, float('-inf'))\n"
        "    weights = torch.softmax(scores, dim=-1)",
        "return weights @ v, weights": (
            "return torch.nan_to_num(weights @ v), torch.nan_to_num(weights)"
        ),
    },
    why=_(
        "A query without keys gets NaN, which is replaced at the end. On the way back it is still "
        "there: one such row, and every weight of a model is NaN."
    ),
    see="nothing-to-attend-to",
    rung=3,
)
wrong_edit(
    _MEMORY,
    "values_from_the_asking_words",
    {"v = memory @ weight_v": "v = x @ weight_v"},
    why=_("The values are made from x. It is the memory that answers: that was right."),
    see="reading-code",
    rung=1,
)
wrong_edit(
    _MEMORY,
    "returns_output_only",
    {"return weights @ v, weights": "return weights @ v"},
    why=_("Only the output is returned. Output and weights were returned, and must be."),
    see="reading-code",
    rung=1,
)


right_edit(
    _MEMORY,
    "with_the_function",
    {
        _MENDED_SCORES: "return scaled_dot_product_attention(q, k, v, mask)",
        _MENDED_WEIGHTS: "",
        "    return weights @ v, weights": "",
    },
    style="handed over to scaled_dot_product_attention",
)
right_edit(
    _MEMORY,
    "mended_in_place",
    {
        _MENDED_SCORES: "scores = q @ k.transpose(-2, -1) / math.sqrt(weight_q.size(-1))",
        _MENDED_WEIGHTS: "if mask is not None:\n"
        "        scores = scores.masked_fill(mask == 0, -1e9)\n"
        "    weights = torch.softmax(scores, dim=2)\n"
        "    if mask is not None:\n"
        "        weights = weights.masked_fill(mask == 0, 0.0)",
    },
    style="the handed-out lines in another order",
)
right_edit(
    _MEMORY,
    "renormalised",
    {
        _MENDED_WEIGHTS: "weights = torch.softmax(scores, dim=-1)\n"
        "    if mask is not None:\n"
        "        weights = weights.masked_fill(mask == 0, 0.0)\n"
        "        total = weights.sum(dim=-1, keepdim=True)\n"
        "        weights = weights / torch.where(total == 0, 1.0, total)"
    },
    style="mask after the softmax, and the rows made to sum to 1 again",
)

# --- attention_cost ------------------------------------------------------------------------------


@wrong(
    "attention_cost",
    why=_("Only multiplications are counted. A multiplication and an addition are two operations."),
    see="cost",
    rung=2,
)
def additions_forgotten(B, T, S, d, d_v, bytes_per_number=4):
    return B * T * S * (d + d_v), B * T * S * bytes_per_number


@wrong(
    "attention_cost",
    why=_("Only the scores are counted. Mixing the values is a matrix product, too."),
    see="cost",
    rung=1,
)
def scores_only(B, T, S, d, d_v, bytes_per_number=4):
    return 2 * B * T * S * d, B * T * S * bytes_per_number


@wrong(
    "attention_cost",
    why=_("Only the mixing is counted. The scores are a matrix product, too."),
    see="cost",
    rung=1,
)
def mixing_only(B, T, S, d, d_v, bytes_per_number=4):
    return 2 * B * T * S * d_v, B * T * S * bytes_per_number


@wrong(
    "attention_cost",
    why=_("Both products are counted with d. The values are d_v wide."),
    see="cost",
    rung=2,
)
def d_for_both(B, T, S, d, d_v, bytes_per_number=4):
    return 4 * B * T * S * d, B * T * S * bytes_per_number


@wrong(
    "attention_cost",
    why=_("T² stands where T · S should: queries and keys are counted alike."),
    see="cost",
    rung=2,
)
def square_of_T(B, T, S, d, d_v, bytes_per_number=4):
    return 2 * B * T * T * (d + d_v), B * T * T * bytes_per_number


@wrong(
    "attention_cost",
    why=_("The batch is left out."),
    see="cost",
    rung=2,
)
def batch_forgotten(B, T, S, d, d_v, bytes_per_number=4):
    return 2 * T * S * (d + d_v), T * S * bytes_per_number


@wrong(
    "attention_cost",
    why=_("The bytes are those of q, k and v. The weights have a number for each query and key."),
    see="cost",
    rung=1,
)
def bytes_of_the_inputs(B, T, S, d, d_v, bytes_per_number=4):
    return 2 * B * T * S * (d + d_v), B * (T * d + S * d + S * d_v) * bytes_per_number


@wrong(
    "attention_cost",
    why=_("The weights are counted as if each were d wide. A weight is a single number."),
    see="cost",
    rung=2,
)
def weights_as_vectors(B, T, S, d, d_v, bytes_per_number=4):
    return 2 * B * T * S * (d + d_v), B * T * S * d * bytes_per_number


@wrong(
    "attention_cost",
    why=_("Numbers are counted, not bytes."),
    see="cost",
    rung=2,
)
def numbers_for_bytes(B, T, S, d, d_v, bytes_per_number=4):
    return 2 * B * T * S * (d + d_v), B * T * S


@wrong(
    "attention_cost",
    why=_("A number always takes 4 bytes here; the argument `bytes_per_number` is not used."),
    see="cost",
    rung=2,
)
def always_four_bytes(B, T, S, d, d_v, bytes_per_number=4):
    return 2 * B * T * S * (d + d_v), B * T * S * 4


@wrong(
    "attention_cost",
    why=_(
        "The two products are multiplied with each other. They come one after the other: add them."
    ),
    see="cost",
    rung=1,
)
def products_multiplied(B, T, S, d, d_v, bytes_per_number=4):
    return (2 * B * T * S * d) * (2 * B * T * S * d_v), B * T * S * bytes_per_number


@wrong(
    "attention_cost",
    why=_("The two results are in the other order: operations first, then bytes."),
    see="cost",
    rung=1,
)
def cost_in_other_order(B, T, S, d, d_v, bytes_per_number=4):
    return B * T * S * bytes_per_number, 2 * B * T * S * (d + d_v)


@wrong(
    "attention_cost",
    why=_("The three linear maps are counted as well. The exercise asks for attention alone."),
    see="cost",
    rung=2,
)
def maps_counted(B, T, S, d, d_v, bytes_per_number=4):
    maps = 2 * B * (T * d * d + S * d * d + S * d_v * d_v)
    return maps + 2 * B * T * S * (d + d_v), B * T * S * bytes_per_number


@wrong(
    "attention_cost",
    why=_(
        "The two widths are multiplied. The products come one after the other: their costs add up."
    ),
    see="cost",
    rung=1,
)
def widths_multiplied(B, T, S, d, d_v, bytes_per_number=4):
    return 2 * B * T * S * d * d_v, B * T * S * bytes_per_number


@wrong(
    "attention_cost",
    why=_("The softmax is counted as well. The exercise asks for the two products alone."),
    see="cost",
    rung=2,
)
def softmax_counted(B, T, S, d, d_v, bytes_per_number=4):
    return 2 * B * T * S * (d + d_v) + 3 * B * T * S, B * T * S * bytes_per_number


@wrong(
    "attention_cost",
    why=_("Scores and weights are both counted as memory. The exercise asks for the weights."),
    see="cost",
    rung=2,
)
def scores_stored_too(B, T, S, d, d_v, bytes_per_number=4):
    return 2 * B * T * S * (d + d_v), 2 * B * T * S * bytes_per_number


@wrong(
    "attention_cost",
    why=_("The memory is given in mebibytes. The exercise asks for bytes."),
    see="cost",
    rung=2,
)
def mebibytes_for_bytes(B, T, S, d, d_v, bytes_per_number=4):
    return 2 * B * T * S * (d + d_v), B * T * S * bytes_per_number / 2**20


@wrong(
    "attention_cost",
    why=_("The weights are those of one sequence; there are B of them."),
    see="cost",
    rung=2,
)
def batch_forgotten_in_the_bytes(B, T, S, d, d_v, bytes_per_number=4):
    return 2 * B * T * S * (d + d_v), T * S * bytes_per_number


@wrong(
    "attention_cost",
    why=_(
        "A sum of n products is counted with n − 1 additions. That is exact, but here, as in most "
        "counts, each multiplication comes with an addition: m·n·p of both."
    ),
    see="cost",
    rung=2,
)
def one_addition_less(B, T, S, d, d_v, bytes_per_number=4):
    return B * T * S * (2 * d - 1) + B * T * d_v * (2 * S - 1), B * T * S * bytes_per_number


@wrong(
    "attention_cost",
    why=_("The size is given in bits. The exercise asks for bytes."),
    see="cost",
    rung=2,
)
def bits_for_bytes(B, T, S, d, d_v, bytes_per_number=4):
    return 2 * B * T * S * (d + d_v), 8 * B * T * S * bytes_per_number


@wrong(
    "attention_cost",
    why=_("Queries, keys and values are counted as well. The exercise asks for the weights alone."),
    see="cost",
    rung=2,
)
def inputs_stored_too(B, T, S, d, d_v, bytes_per_number=4):
    numbers = B * (T * S + T * d + S * d + S * d_v)
    return 2 * B * T * S * (d + d_v), numbers * bytes_per_number


@right("attention_cost", style="multiply-adds first, doubled at the end")
def as_multiply_adds(B, T, S, d, d_v, bytes_per_number=4):
    multiply_adds = sum(B * T * S * width for width in (d, d_v))
    return multiply_adds * 2, bytes_per_number * T * S * B


@right("attention_cost", style="by the sizes of tensors on the meta device")
def by_meta_tensors(B, T, S, d, d_v, bytes_per_number=4):
    weights = torch.empty(B, T, S, device="meta")
    output = torch.empty(B, T, d_v, device="meta")
    return 2 * weights.numel() * d + 2 * output.numel() * S, weights.numel() * bytes_per_number


@right("attention_cost", style="a list of floats that are whole")
def as_floats(B, T, S, d, d_v, bytes_per_number=4):
    return [2.0 * B * T * S * (d + d_v), 1.0 * B * T * S * bytes_per_number]
