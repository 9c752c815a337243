"""Answer bank of chapter ``embeddings``: mistakes, and right answers in other styles."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from autograder.bank import right, right_edit, wrong, wrong_edit
from autograder.i18n import _
from solutions.embeddings import cross_entropy

# ------------------------------------------------------------------------------ one_hot_lookup

ONE_HOT = "one_hot_lookup"
PRODUCT = "embeddings-lookup"


@wrong(
    ONE_HOT,
    why=_(
        "The rows are read by their number. That is the look-up; the exercise asks for a product."
    ),
    see=PRODUCT,
    rung=3,
)
def rows_by_number(ids: Tensor, weight: Tensor) -> Tensor:
    return weight[ids]


@wrong(
    ONE_HOT,
    why=_("The library's look-up reads rows; the exercise asks for a product of matrices."),
    see=PRODUCT,
    rung=3,
    form_of="rows_by_number",
)
def library_look_up(ids: Tensor, weight: Tensor) -> Tensor:
    return nn.functional.embedding(ids, weight)


wrong_edit(
    ONE_HOT,
    "identity_instead_of_ids",
    {
        "nn.functional.one_hot(ids, weight.size(0)).to(weight.dtype)": "torch.eye(weight.size(0), dtype=weight.dtype)[: ids.size(-1) if ids.dim() else 1].expand(*ids.shape, weight.size(0)) if ids.dim() else torch.eye(weight.size(0), dtype=weight.dtype)[0]"
    },
    why=_("The first rows of the table come out: the ids are not read."),
    see=PRODUCT,
)
wrong_edit(
    ONE_HOT,
    "size_from_the_largest_id",
    {"nn.functional.one_hot(ids, weight.size(0))": "nn.functional.one_hot(ids)"},
    why=_(
        "Without the number of classes, one_hot takes the largest id that occurs for the last one."
    ),
    see=PRODUCT,
    rung=3,
)
wrong_edit(
    ONE_HOT,
    "dtype_fixed_at_float32",
    {
        ".to(weight.dtype)  # (..., V)\n    return one_hot @ weight": ".float()  # (..., V)\n    return one_hot @ weight.float()"
    },
    why=_("Everything becomes float32, whatever the table is."),
    see=PRODUCT,
    rung=2,
)
wrong_edit(
    ONE_HOT,
    "integers_times_floats",
    {".to(weight.dtype)": ""},
    why=_("The one-hot rows are integers; torch does not multiply them with a float table."),
    see=PRODUCT,
    rung=2,
)
wrong_edit(
    ONE_HOT,
    "ids_count_from_one",
    {
        "nn.functional.one_hot(ids, weight.size(0))": "nn.functional.one_hot((ids - 1) % weight.size(0), weight.size(0))"
    },
    why=_("Ids count from 0: id 0 is the first row."),
    see=PRODUCT,
)
wrong_edit(
    ONE_HOT,
    "detached_table",
    {"one_hot @ weight": "one_hot @ weight.detach()"},
    why=_("The table is detached: nothing could train it."),
    see="embeddings-gradient",
    rung=3,
)
wrong_edit(
    ONE_HOT,
    "table_normalized",
    {"one_hot @ weight": "one_hot @ (weight / weight.norm(dim=-1, keepdim=True))"},
    why=_("The rows are brought to length 1 first; a look-up changes nothing."),
    see=PRODUCT,
)
wrong_edit(
    ONE_HOT,
    "softmax_of_the_one_hot",
    {"one_hot @ weight": "one_hot.softmax(-1) @ weight"},
    why=_("A softmax over the one-hot row mixes all rows of the table; it is no choice any more."),
    see=PRODUCT,
)
wrong_edit(
    ONE_HOT,
    "summed_over_time",
    {
        "return one_hot @ weight": "return (one_hot.sum(-2, keepdim=True) if one_hot.dim() > 1 else one_hot) @ weight"
    },
    why=_("The one-hot rows are summed over the positions: a bag of words, not a sequence."),
    see=PRODUCT,
)
wrong_edit(
    ONE_HOT,
    "zeros_returned",
    {"return one_hot @ weight": "return 0 * (one_hot @ weight)"},
    why=_("The shape is right and the content is all zeros."),
    see=PRODUCT,
)


@right(ONE_HOT, style="compare with all ids")
def by_comparison(ids: Tensor, weight: Tensor) -> Tensor:
    chosen = ids.unsqueeze(-1) == torch.arange(weight.shape[0])
    return torch.matmul(chosen.type_as(weight), weight)


@right(ONE_HOT, style="rows of the identity, einsum")
def by_identity(ids: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("...v,vd->...d", torch.eye(len(weight), dtype=weight.dtype)[ids], weight)


@right(ONE_HOT, style="scatter")
def by_scatter(ids: Tensor, weight: Tensor) -> Tensor:
    one_hot = torch.zeros(*ids.shape, weight.size(0), dtype=weight.dtype)
    one_hot.scatter_(-1, ids.unsqueeze(-1), 1)
    return one_hot @ weight


# ------------------------------------------------------------------------------ TokenEmbedding

LAYER = "TokenEmbedding"
PADDING = "embeddings-padding"
SCALE = "embeddings-scale"

wrong_edit(
    LAYER,
    "scale_forgotten",
    {"return x * self.factor": "return x"},
    why=_("scale=True changes nothing here: the factor is not used."),
    see=SCALE,
)
wrong_edit(
    LAYER,
    "always_scaled",
    {"return x * self.factor": "return x * math.sqrt(x.size(-1))"},
    why=_("The rows are multiplied by √D even where scale is False."),
    see=SCALE,
)
wrong_edit(
    LAYER,
    "divided_by_the_factor",
    {"return x * self.factor": "return x / self.factor"},
    why=_("The rows are divided by √D where they should be multiplied."),
    see=SCALE,
)
wrong_edit(
    LAYER,
    "scaled_by_width",
    {"return x * self.factor": "return x * self.factor**2"},
    why=_("The factor is D; it is √D."),
    see=SCALE,
)
wrong_edit(
    LAYER,
    "padding_not_hidden",
    {"if self.padding_id is not None:\n            # Zero": "if False:\n            # Zero"},
    why=_("The padding's row is looked up like any other, and trained like any other."),
    see=PADDING,
    rung=1,
)
wrong_edit(
    LAYER,
    "padding_without_gradient_alone",
    {
        "x = self.weight[ids]": "x = nn.functional.embedding(ids, self.weight, padding_idx=self.padding_id)",
        "if self.padding_id is not None:\n            # Zero": "if False:\n            # Zero",
    },
    why=_(
        "padding_idx keeps the gradient from the padding's row and no more: what the row holds "
        "comes out as it is."
    ),
    see=PADDING,
    rung=2,
)
wrong_edit(
    LAYER,
    "id_zero_always_hidden",
    {
        "if self.padding_id is not None:\n            # Zero": "if True:\n            # Zero",
        "(ids == self.padding_id)": "(ids == 0)",
    },
    why=_("Id 0 is taken for padding, whatever padding_id says."),
    see=PADDING,
    rung=3,
)
wrong_edit(
    LAYER,
    "padding_zero_taken_for_none",
    {
        "if self.padding_id is not None:\n            # Zero": "if self.padding_id:\n            # Zero"
    },
    why=_("A padding id of 0 is taken for none: `if padding_id` is False for 0."),
    see=PADDING,
    rung=3,
)
wrong_edit(
    LAYER,
    "padding_still_trained",
    {
        "x = x.masked_fill((ids == self.padding_id).unsqueeze(-1), 0.0)": "x = x - (ids == self.padding_id).unsqueeze(-1) * x.detach()"
    },
    why=_("Padding gives zeros, but its row still gets a gradient and will not stay zero."),
    see=PADDING,
    rung=2,
)
wrong_edit(
    LAYER,
    "everything_but_padding_hidden",
    {"(ids == self.padding_id)": "(ids != self.padding_id)"},
    why=_("The mask is the wrong way round: padding stays and the words become zeros."),
    see=PADDING,
    rung=3,
)
wrong_edit(
    LAYER,
    "whole_sequence_hidden",
    {"(ids == self.padding_id).unsqueeze(-1)": "(ids == self.padding_id).any(-1)[:, None, None]"},
    why=_("A sequence that has padding anywhere becomes zeros as a whole."),
    see=PADDING,
)
wrong_edit(
    LAYER,
    "weight_detached",
    {"x = self.weight[ids]": "x = self.weight.data[ids] + 0 * self.weight.sum()"},
    why=_("The rows are taken from weight.data, which no gradient passes through."),
    see="embeddings-gradient",
)

right_edit(
    LAYER,
    "library_lookup",
    {"x = self.weight[ids]": "x = nn.functional.embedding(ids, self.weight)"},
    style="the library's look-up",
)
right_edit(
    LAYER,
    "mask_multiplied",
    {
        "x = x.masked_fill((ids == self.padding_id).unsqueeze(-1), 0.0)": "x = x * (ids != self.padding_id).unsqueeze(-1).to(x.dtype)"
    },
    style="multiplied by a mask of ones and zeros",
)
right_edit(
    LAYER,
    "where_in_the_table",
    {
        "x = self.weight[ids]": "table = self.weight",
        "            # Zero whatever the row holds: then no gradient can reach it either.\n": "",
        "x = x.masked_fill((ids == self.padding_id).unsqueeze(-1), 0.0)": "table = table * (torch.arange(len(table)) != self.padding_id)[:, None]",
        "return x * self.factor": "return (table * self.factor)[ids]",
    },
    style="the table masked and scaled before the look-up",
)

# ------------------------------------------------------------------------------- cross_entropy

LOSS = "cross_entropy"
NATS = "embeddings-cross-entropy"

wrong_edit(
    LOSS,
    "naive_softmax_then_log",
    {
        "log_probabilities = logits - logits.logsumexp(dim=-1, keepdim=True)": "log_probabilities = (logits.exp() / logits.exp().sum(-1, keepdim=True)).log()"
    },
    why=_(
        "Exponentials of large logits overflow, and those of very negative ones become 0, whose "
        "logarithm is −∞. logsumexp subtracts the largest first."
    ),
    see="embeddings-logsumexp",
    rung=2,
)
wrong_edit(
    LOSS,
    "sign_forgotten",
    {"losses = -log": "losses = log"},
    why=_("The minus sign is missing: the loss is negative, and training would make it worse."),
    see=NATS,
)
wrong_edit(
    LOSS,
    "summed_not_averaged",
    {
        "return losses.masked_fill(~counted, 0.0).sum() / counted.sum().clamp(min=1)": "return losses.masked_fill(~counted, 0.0).sum()"
    },
    why=_("The losses are summed and not averaged: a larger batch has a larger loss."),
    see=NATS,
)
wrong_edit(
    LOSS,
    "ignored_still_counted",
    {"counted.sum().clamp(min=1)": "max(counted.numel(), 1)"},
    why=_("Ignored targets add nothing to the sum, but the mean still divides by all targets."),
    see="embeddings-ignore",
    rung=2,
)
wrong_edit(
    LOSS,
    "nothing_ignored",
    {"counted = targets != ignore_id": "counted = counted & (targets >= 0)"},
    why=_("The ignored id is not heeded: such targets count like any word."),
    see="embeddings-ignore",
)
wrong_edit(
    LOSS,
    "ignored_zero_taken_for_none",
    {"if ignore_id is not None:": "if ignore_id:"},
    why=_("An ignore_id of 0 is taken for none: `if ignore_id` is False for 0."),
    see=NATS,
    rung=3,
)
wrong_edit(
    LOSS,
    "one_target_too_many",
    {"counted.sum().clamp(min=1)": "(counted.sum() + 1)"},
    why=_("The mean divides by one more than the number of targets that count."),
    see=NATS,
)
wrong_edit(
    LOSS,
    "softmax_over_positions",
    {
        "logits.logsumexp(dim=-1, keepdim=True)": "logits.logsumexp(dim=-2 if logits.dim() > 1 else -1, keepdim=True)"
    },
    why=_("The probabilities are normalized over the positions, not over the vocabulary."),
    see=NATS,
)
wrong_edit(
    LOSS,
    "logarithm_to_base_two",
    {"losses = -log_probabilities": "losses = -1.4426950408889634 * log_probabilities"},
    why=_("The loss is in bits: the logarithm has base 2 where e was asked for."),
    see=NATS,
)
wrong_edit(
    LOSS,
    "logits_without_normalizing",
    {
        "log_probabilities = logits - logits.logsumexp(dim=-1, keepdim=True)": "log_probabilities = logits"
    },
    why=_("The target's logit itself is taken; what the other words got does not count."),
    see=NATS,
)
wrong_edit(
    LOSS,
    "probabilities_without_logarithm",
    {
        "log_probabilities = logits - logits.logsumexp(dim=-1, keepdim=True)": "log_probabilities = logits.softmax(-1) - 1"
    },
    why=_("One minus the probability of the target is no cross-entropy: the logarithm is missing."),
    see=NATS,
)
wrong_edit(
    LOSS,
    "all_ignored_gives_nan",
    {"counted.sum().clamp(min=1)": "counted.sum()"},
    why=_("Where no target counts, 0 is divided by 0. The docstring promises 0."),
    see="embeddings-ignore",
    rung=3,
)
wrong_edit(
    LOSS,
    "ignored_id_outside_fails",
    {"ids = targets.masked_fill(~counted, 0).unsqueeze(-1)": "ids = targets.unsqueeze(-1)"},
    why=_(
        "An ignored id need not be a word: gather stumbles over −1. Put any id in its place before."
    ),
    see="embeddings-ignore",
    rung=3,
)

right_edit(
    LOSS,
    "log_softmax",
    {"logits - logits.logsumexp(dim=-1, keepdim=True)": "logits.log_softmax(-1)"},
    style="log_softmax",
)


@right(LOSS, style="largest logit subtracted by hand, boolean selection")
def selected(logits: Tensor, targets: Tensor, ignore_id: int | None = None) -> Tensor:
    V = logits.shape[-1]
    flat, ids = logits.reshape(-1, V), targets.reshape(-1)
    if ignore_id is not None:
        keep = ids != ignore_id
        flat, ids = flat[keep], ids[keep]
    if len(ids) == 0:
        return logits.sum() * 0
    shifted = flat - flat.amax(-1, keepdim=True)
    log_p = shifted - shifted.exp().sum(-1, keepdim=True).log()
    return -log_p[torch.arange(len(ids)), ids].mean()


@right(LOSS, style="a one-hot product, in float64")
def one_hot_product(logits: Tensor, targets: Tensor, ignore_id: int | None = None) -> Tensor:
    wide = logits.double()
    log_p = wide - torch.logsumexp(wide, -1, True)
    weight = torch.ones(targets.shape, dtype=torch.float64)
    if ignore_id is not None:
        weight = (targets != ignore_id).double()
    safe = torch.where(weight > 0, targets, torch.zeros_like(targets))
    one_hot = nn.functional.one_hot(safe, logits.shape[-1]).double()
    losses = -(one_hot * log_p).sum(-1)
    return ((losses * weight).sum() / weight.sum().clamp(min=1)).float()


@right(LOSS, style="a loop over positions")
def looped(logits: Tensor, targets: Tensor, ignore_id: int | None = None) -> Tensor:
    losses = []
    rows = logits.reshape(-1, logits.shape[-1])
    for row, target in zip(rows, targets.reshape(-1).tolist(), strict=True):
        if ignore_id is None or target != ignore_id:
            losses.append(torch.logsumexp(row, 0) - row[target])
    return torch.stack(losses).mean() if losses else logits.sum() * 0.0


# ---------------------------------------------------------------------------------- perplexity

PPL = "perplexity"
PERPLEXITY = "embeddings-perplexity"

wrong_edit(
    PPL,
    "two_to_the_loss",
    {"math.exp(value)": "2 ** value"},
    why=_("2 to the loss belongs to a loss in bits; ours is in nats."),
    see=PERPLEXITY,
    rung=2,
)
wrong_edit(
    PPL,
    "loss_returned",
    {"math.exp(value)": "value"},
    why=_("The loss comes back as it was."),
    see=PERPLEXITY,
)
wrong_edit(
    PPL,
    "negative_exponent",
    {"math.exp(value)": "math.exp(-value)"},
    why=_("e to minus the loss is the geometric mean of the probabilities, the inverse."),
    see=PERPLEXITY,
)
wrong_edit(
    PPL,
    "logarithm_for_exponential",
    {"math.exp(value)": "math.log(value + 1)"},
    why=_("The logarithm is taken once more, where it should be undone."),
    see=PERPLEXITY,
)
wrong_edit(
    PPL,
    "ten_to_the_loss",
    {"math.exp(value)": "10 ** value"},
    why=_("The logarithm of the loss is natural, not to base 10."),
    see=PERPLEXITY,
    rung=2,
)


@right(PPL, style="torch's exponential")
def with_torch(loss: float | Tensor) -> float:
    return torch.as_tensor(loss, dtype=torch.float64).exp().item()


@right(PPL, style="a power of e")
def power_of_e(loss: float | Tensor) -> float:
    return math.e ** float(loss)


# -------------------------------------------------------------------------- most_frequent_pair

PAIR = "most_frequent_pair"
BPE = "embeddings-bpe"

wrong_edit(
    PAIR,
    "words_counted_once",
    {"counts[pair] += times": "counts[pair] += 1"},
    why=_("Each word counts once, however often it occurs."),
    see=BPE,
    rung=1,
)
wrong_edit(
    PAIR,
    "ties_to_the_last",
    {
        "min(counts, key=lambda pair: (-counts[pair], pair))": "max(counts, key=lambda pair: (counts[pair], pair))"
    },
    why=_("A tie goes to the last pair in alphabetical order; it goes to the first."),
    see=BPE,
    rung=2,
)
wrong_edit(
    PAIR,
    "least_frequent",
    {"(-counts[pair], pair)": "(counts[pair], pair)"},
    why=_("The rarest pair comes out."),
    see=BPE,
)
wrong_edit(
    PAIR,
    "first_in_the_alphabet",
    {"(-counts[pair], pair)": "pair"},
    why=_("The first pair in alphabetical order comes out; the counts are not used."),
    see=BPE,
)
wrong_edit(
    PAIR,
    "pairs_do_not_overlap",
    {"pairwise(symbols)": "zip(symbols[::2], symbols[1::2])"},
    why=_("The word is cut into pairs; neighbours at odd places are never seen."),
    see=BPE,
    rung=2,
)
wrong_edit(
    PAIR,
    "first_pair_of_each_word",
    {"pairwise(symbols)": "list(pairwise(symbols))[:1]"},
    why=_("Only the first pair of each word is counted."),
    see=BPE,
)
wrong_edit(
    PAIR,
    "each_pair_once_a_word",
    {"pairwise(symbols)": "set(pairwise(symbols))"},
    why=_("A pair that repeats within a word is counted once; every occurrence counts."),
    see=BPE,
    rung=2,
)
wrong_edit(
    PAIR,
    "empty_fails",
    {"    if not counts:\n        return None\n": ""},
    why=_(
        "Where no word has two symbols there is no pair, and the minimum of nothing is an error."
    ),
    see=BPE,
    rung=3,
)
wrong_edit(
    PAIR,
    "order_within_the_pair_lost",
    {"counts[pair] += times": "counts[tuple(sorted(pair))] += times"},
    why=_("(a, b) and (b, a) are counted together; they are two pairs."),
    see=BPE,
)


wrong_edit(
    PAIR,
    "ties_to_the_first_seen",
    {"lambda pair: (-counts[pair], pair)": "lambda pair: -counts[pair]"},
    why=_("A tie goes to the pair that was seen first; it goes to the first in the alphabet."),
    see=BPE,
    rung=2,
)
wrong_edit(
    PAIR,
    "ties_by_the_first_symbol",
    {"lambda pair: (-counts[pair], pair)": "lambda pair: (-counts[pair], pair[0])"},
    why=_("A tie is decided by the first symbol alone; the second counts as well."),
    see=BPE,
    rung=2,
)
wrong_edit(
    PAIR,
    "ties_by_the_joined_text",
    {"lambda pair: (-counts[pair], pair)": 'lambda pair: (-counts[pair], "".join(pair))'},
    why=_("A tie is decided by the joined text; (a, c) comes before (ab, a) all the same."),
    see=BPE,
    rung=2,
)


@wrong(
    PAIR,
    why=_("Pairs are counted across the border between one word and the next."),
    see=BPE,
    rung=1,
)
def pairs_across_words(words: list[tuple[tuple[str, ...], int]]) -> tuple[str, str] | None:
    line = [symbol for symbols, times in words for symbol in list(symbols) * times]
    counts = Counter(zip(line, line[1:], strict=False))
    return min(counts, key=lambda pair: (-counts[pair], pair)) if counts else None


@wrong(
    PAIR,
    why=_("The pair comes back as a list; no slice of a word, which is a tuple, ever equals it."),
    see=BPE,
    rung=3,
)
def list_for_the_pair(words: list[tuple[tuple[str, ...], int]]) -> Any:
    counts: Counter[tuple[str, str]] = Counter()
    for symbols, times in words:
        for pair in zip(symbols, symbols[1:], strict=False):
            counts[pair] += times
    return list(min(counts, key=lambda p: (-counts[p], p))) if counts else None


@wrong(
    PAIR,
    why=_(
        "Letters are counted across the border of merged symbols: (th, e) is a pair of "
        "symbols, not of letters."
    ),
    see=BPE,
    rung=3,
)
def letters_not_symbols(words: list[tuple[tuple[str, ...], int]]) -> tuple[str, str] | None:
    counts: Counter[tuple[str, str]] = Counter()
    for symbols, times in words:
        text = "".join(symbols)
        for pair in zip(text, text[1:], strict=False):
            counts[pair] += times
    return min(counts, key=lambda pair: (-counts[pair], pair)) if counts else None


@right(PAIR, style="a dictionary and a sorted list")
def sorted_list(words: list[tuple[tuple[str, ...], int]]) -> tuple[str, str] | None:
    counts: dict[tuple[str, str], int] = {}
    for symbols, times in words:
        for i in range(1, len(symbols)):
            pair = (symbols[i - 1], symbols[i])
            counts[pair] = counts.get(pair, 0) + times
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ranked[0][0] if ranked else None


@right(PAIR, style="repeat every word as often as it occurs")
def repeated_words(words: list[tuple[tuple[str, ...], int]]) -> tuple[str, str] | None:
    found = Counter(
        pair
        for symbols, times in words
        for _again in range(times)
        for pair in zip(symbols, symbols[1:], strict=False)
    )
    if not found:
        return None
    most = max(found.values())
    return min(pair for pair in found if found[pair] == most)


@right(PAIR, style="zeros first, then a sorted list")
def counted_from_zero(words: list[tuple[tuple[str, ...], int]]) -> tuple[str, str] | None:
    counts: Counter[tuple[str, str]] = Counter()
    for symbols, times in words:
        counts.update({pair: 0 for pair in zip(symbols, symbols[1:], strict=False)})
        for left, right_one in zip(symbols[:-1], symbols[1:], strict=True):
            counts[left, right_one] += times
    return sorted(counts, key=lambda p: (-counts[p], p))[0] if counts else None


# ---------------------------------------------------------------------------------- merge_pair

MERGE = "merge_pair"

wrong_edit(
    MERGE,
    "first_occurrence_only",
    {
        "if symbols[i : i + 2] == pair:": "if symbols[i : i + 2] == pair and not any(symbol == ''.join(pair) for symbol in merged):"
    },
    why=_("Only the first occurrence is joined."),
    see=BPE,
)
wrong_edit(
    MERGE,
    "second_symbol_kept",
    {"i += 2": "i += 1"},
    why=_("After a merge the search goes on one place further, so the second symbol comes again."),
    see=BPE,
    rung=2,
)
wrong_edit(
    MERGE,
    "pair_in_any_order",
    {"symbols[i : i + 2] == pair": "symbols[i : i + 2] in (pair, pair[::-1])"},
    why=_("The pair is joined in either order; (b, a) is another pair than (a, b)."),
    see=BPE,
)
wrong_edit(
    MERGE,
    "nothing_merged",
    {"symbols[i : i + 2] == pair": "symbols[i : i + 2] == ()"},
    why=_("The word comes back as it was."),
    see=BPE,
)
wrong_edit(
    MERGE,
    "last_symbol_lost",
    {"while i < len(symbols):": "while i < len(symbols) - 1:"},
    why=_("The loop stops before the last symbol, which is lost unless it was merged."),
    see=BPE,
    rung=3,
)
wrong_edit(
    MERGE,
    "joined_symbol_dropped",
    {"            merged.append(symbols[i] + symbols[i + 1])\n": ""},
    why=_("The pair is taken out and nothing is put in its place."),
    see=BPE,
)
wrong_edit(
    MERGE,
    "merged_the_wrong_way_round",
    {"symbols[i] + symbols[i + 1])": "symbols[i + 1] + symbols[i])"},
    why=_("The joined symbol has its halves exchanged."),
    see=BPE,
)


@wrong(
    MERGE,
    why=_(
        "A replacement in the joined text knows letters, not symbols: it also joins "
        "across (t, he), and everything else falls apart into letters."
    ),
    see=BPE,
    rung=3,
)
def text_replaced(symbols: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    joined = "".join(pair)
    parts: list[str] = []
    text = "".join(symbols)
    while joined in text:
        before, text = text.split(joined, 1)
        parts += [*before, joined]
    return tuple([*parts, *text])


wrong_edit(
    MERGE,
    "joined_text_compared",
    {
        "symbols[i : i + 2] == pair": '"".join(symbols[i : i + 2]) == "".join(pair) and i + 1 < len(symbols)'
    },
    why=_("The joined text is compared, and (t, he) has the same text as (th, e)."),
    see=BPE,
    rung=3,
)
wrong_edit(
    MERGE,
    "list_returned",
    {"return tuple(merged)": "return merged"},
    why=_(
        "A list comes back. Slices of a list never equal the pair, so the next merge finds none."
    ),
    see=BPE,
    rung=3,
)


@wrong(
    MERGE,
    why=_("Overlapping occurrences are joined from the right; the algorithm goes from the left."),
    see=BPE,
    rung=2,
)
def from_the_right(symbols: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    merged: list[str] = []
    i = len(symbols)
    while i > 0:
        if i > 1 and symbols[i - 2 : i] == pair:
            merged.insert(0, symbols[i - 2] + symbols[i - 1])
            i -= 2
        else:
            merged.insert(0, symbols[i - 1])
            i -= 1
    return tuple(merged)


@wrong(
    MERGE,
    why=_(
        "A merged symbol is compared again and joined with the next one, if that makes "
        "the pair's letters once more."
    ),
    see=BPE,
    rung=2,
)
def every_neighbour_joined(symbols: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    merged: list[str] = []
    for symbol in symbols:
        if merged and merged[-1].endswith(pair[0]) and symbol == pair[1]:
            merged[-1] += symbol
        else:
            merged.append(symbol)
    return tuple(merged)


@right(MERGE, style="a flag instead of an index")
def with_a_flag(symbols: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    merged: list[str] = []
    waiting = False  # the last symbol is a first half that was not used yet
    for symbol in symbols:
        if waiting and symbol == pair[1]:
            merged[-1] += symbol
            waiting = False
        else:
            merged.append(symbol)
            waiting = symbol == pair[0]
    return tuple(merged)


@right(MERGE, style="recursion")
def recursive(symbols: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    if len(symbols) < 2:
        return tuple(symbols)
    if tuple(symbols[:2]) == tuple(pair):
        return ("".join(pair), *recursive(symbols[2:], pair))
    return (symbols[0], *recursive(symbols[1:], pair))


@right(MERGE, style="a regular expression over separated symbols")
def separated(symbols: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    import re

    text = "\0".join(symbols) + "\0"
    target = re.escape(f"{pair[0]}\0{pair[1]}\0")
    text = re.sub(rf"(?:(?<=\0)|^){target}", "".join(pair) + "\0", text)
    return tuple(text.split("\0")[:-1]) if symbols else ()


# --------------------------------------------------------------------------------------- train

TRAIN = "train"
LOOP = "embeddings-training"

wrong_edit(
    TRAIN,
    "gradients_pile_up",
    {"        optimizer.zero_grad()\n": ""},
    why=_(
        "The gradients of earlier steps are never cleared: each step uses the sum of all "
        "that came before."
    ),
    see=LOOP,
    rung=2,
)
wrong_edit(
    TRAIN,
    "cleared_before_the_step",
    {
        "        optimizer.zero_grad()\n        value.backward()\n": "        value.backward()\n        optimizer.zero_grad()\n"
    },
    why=_("zero_grad stands between backward and step: the step sees no gradient."),
    form_of="no_step",
    see=LOOP,
    rung=1,
)
wrong_edit(
    TRAIN,
    "no_step",
    {"        optimizer.step()\n": ""},
    why=_(
        "Nothing is trained: the optimizer never takes a step, or its gradients are cleared before it "
        "does."
    ),
    see=LOOP,
)
wrong_edit(
    TRAIN,
    "ends_with_the_batches",
    {
        "            source = iter(batches)\n            batch = next(source)\n": "            break\n"
    },
    why=_("The loop ends when the batches run out; they should begin again."),
    see=LOOP,
    rung=2,
)
wrong_edit(
    TRAIN,
    "first_batch_only",
    {
        "        batch = next(source, None)\n": "        source = iter(batches)\n        batch = next(source, None)\n"
    },
    why=_("Every step trains on the first batch."),
    see=LOOP,
)
wrong_edit(
    TRAIN,
    "schedule_not_heeded",
    {"learning_rate * (schedule(step) if schedule else 1.0)": "learning_rate"},
    why=_("The schedule is not used: the rate stays what it was."),
    see=LOOP,
    rung=3,
)
wrong_edit(
    TRAIN,
    "schedule_piles_up",
    {
        'group["lr"] = learning_rate * (schedule(step) if schedule else 1.0)': 'group["lr"] *= schedule(step) if schedule else 1.0'
    },
    why=_("The factor is multiplied onto the last rate and not onto the first: factors pile up."),
    see=LOOP,
    rung=3,
)
wrong_edit(
    TRAIN,
    "rate_fixed",
    {"lr=learning_rate": "lr=1e-3", "learning_rate * (sched": "1e-3 * (sched"},
    why=_("The learning rate is fixed at 0.001."),
    see=LOOP,
    rung=3,
)
wrong_edit(
    TRAIN,
    "plain_gradient_descent",
    {"torch.optim.AdamW(": "torch.optim.SGD("},
    why=_("Plain gradient descent is used where AdamW was asked for."),
    see=LOOP,
)
wrong_edit(
    TRAIN,
    "adam_without_decay",
    {"torch.optim.AdamW(": "torch.optim.Adam("},
    why=_("Adam has no weight decay; AdamW has 0.01 by default, apart from the gradient."),
    see=LOOP,
)
wrong_edit(
    TRAIN,
    "losses_kept_as_tensors",
    {"value.item()": "value.detach()"},
    why=_("The losses are tensors; kept with their graph they would fill the memory."),
    see=LOOP,
    rung=3,
)
wrong_edit(
    TRAIN,
    "loss_after_the_step",
    {"losses.append(value.item())": "losses.append(loss(model, batch).item())"},
    why=_("The loss is computed again after the step; the docstring asks for the one before."),
    see=LOOP,
)
wrong_edit(
    TRAIN,
    "last_loss_only",
    {"return losses": "return losses[-1:]"},
    why=_("Only the last loss comes back."),
    see=LOOP,
)

wrong_edit(
    TRAIN,
    "evaluation_mode",
    {"model.train()": "model.eval()"},
    why=_("The model is set to evaluation, so its dropout rests all through the training."),
    see=LOOP,
    rung=3,
)
wrong_edit(
    TRAIN,
    "schedule_for_the_rate",
    {
        "learning_rate * (schedule(step) if schedule else 1.0)": "schedule(step) if schedule else learning_rate"
    },
    why=_("The schedule replaces the learning rate; it is a factor on it."),
    see=LOOP,
    rung=2,
)
wrong_edit(
    TRAIN,
    "schedule_one_step_ahead",
    {"schedule(step)": "schedule(step + 1)"},
    why=_("The schedule is asked for the step after: steps count from 0."),
    see=LOOP,
    rung=2,
)
wrong_edit(
    TRAIN,
    "one_step_too_many",
    {"range(steps)": "range(steps + 1)"},
    why=_("The loop takes one step more than it was asked to."),
    see=LOOP,
)

right_edit(
    TRAIN,
    "cleared_once_more",
    {"    model.train()\n": "    model.train(True)\n    model.zero_grad()\n"},
    style="model.train(True), gradients cleared once more before",
)


@right(TRAIN, style="LambdaLR and itertools")
def with_lambda_lr(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Callable[..., Tensor],
    steps: int,
    learning_rate: float = 1e-3,
    schedule: Callable[[int], float] | None = None,
) -> list[float]:
    from itertools import cycle, islice

    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule or (lambda step: 1.0))
    losses = []
    for batch in islice(cycle(list(batches)), steps):
        optimizer.zero_grad(set_to_none=False)
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        rates.step()
        losses.append(float(value))
    return losses


@right(TRAIN, style="gradients through autograd.grad")
def with_autograd_grad(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Callable[..., Tensor],
    steps: int,
    learning_rate: float = 1e-3,
    schedule: Callable[[int], float] | None = None,
) -> list[float]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate)
    data, losses = list(batches), []
    for step in range(steps):
        if schedule is not None:
            optimizer.param_groups[0]["lr"] = learning_rate * schedule(step)
        value = loss(model, data[step % len(data)])
        for parameter, grad in zip(parameters, torch.autograd.grad(value, parameters), strict=True):
            parameter.grad = grad
        optimizer.step()
        losses.append(value.item())
    return losses


# -------------------------------------------------------------------------------- average_loss

AVERAGE = "average_loss"
IGNORE = "embeddings-ignore"


@wrong(
    AVERAGE,
    why=_(
        "Two things at once: padding is counted as a target, and the mean of the "
        "batches' means weighs a token of a short batch more than one of a long one."
    ),
    see=IGNORE,
    rung=2,
    given=True,
)
def mean_of_means_with_padding(batches: list[tuple[Tensor, Tensor]], padding_id: int) -> float:
    """Mean cross-entropy of a whole data set that comes in padded batches.

    Args:
        batches: pairs of logits (B, T, V) and targets (B, T); B and T differ between batches.
        padding_id: targets of this id do not count.

    Returns:
        The mean over all targets that count, in nats: each weighs the same, whichever batch it
        stands in. 0 where none counts.
    """
    total = 0.0
    for logits, targets in batches:
        total += float(cross_entropy(logits, targets))
    return total / len(batches)


@wrong(
    AVERAGE,
    why=_(
        "Padding no longer counts, but the batches' means are averaged as if all had "
        "the same number of tokens."
    ),
    see=IGNORE,
    rung=2,
)
def mean_of_means(batches: list[tuple[Tensor, Tensor]], padding_id: int) -> float:
    means = [float(cross_entropy(logits, targets, padding_id)) for logits, targets in batches]
    return sum(means) / max(len(means), 1)


@wrong(
    AVERAGE,
    why=_("Batches are weighed by their size, but padding is part of that size and of the losses."),
    see=IGNORE,
    rung=2,
)
def weighed_with_padding(batches: list[tuple[Tensor, Tensor]], padding_id: int) -> float:
    total, counted = 0.0, 0
    for logits, targets in batches:
        total += targets.numel() * float(cross_entropy(logits, targets))
        counted += targets.numel()
    return total / max(counted, 1)


@wrong(
    AVERAGE,
    why=_("Where no target counts at all, 0 is divided by 0. The docstring promises 0."),
    see=IGNORE,
    rung=3,
)
def nothing_counted_fails(batches: list[tuple[Tensor, Tensor]], padding_id: int) -> float:
    total, counted = 0.0, 0
    for logits, targets in batches:
        n = int((targets != padding_id).sum())
        total += n * float(cross_entropy(logits, targets, padding_id))
        counted += n
    return total / counted


@wrong(
    AVERAGE,
    why=_("The losses leave padding out, the weights of the batches do not."),
    see=IGNORE,
    rung=3,
)
def weights_count_padding(batches: list[tuple[Tensor, Tensor]], padding_id: int) -> float:
    total, counted = 0.0, 0
    for logits, targets in batches:
        total += targets.numel() * float(cross_entropy(logits, targets, padding_id))
        counted += targets.numel()
    return total / max(counted, 1)


@wrong(AVERAGE, why=_("The losses are summed over the batches and never divided."), see=IGNORE)
def sum_of_means(batches: list[tuple[Tensor, Tensor]], padding_id: int) -> float:
    return sum(float(cross_entropy(logits, targets, padding_id)) for logits, targets in batches)


@wrong(AVERAGE, why=_("Only the last batch is averaged."), see=IGNORE)
def last_batch(batches: list[tuple[Tensor, Tensor]], padding_id: int) -> float:
    logits, targets = batches[-1]
    return float(cross_entropy(logits, targets, padding_id))


@wrong(
    AVERAGE,
    why=_(
        "Sequences are weighed and not tokens: each row counts the same, however much "
        "of it is padding."
    ),
    see=IGNORE,
    rung=3,
)
def weighed_by_sequences(batches: list[tuple[Tensor, Tensor]], padding_id: int) -> float:
    total, counted = 0.0, 0
    for logits, targets in batches:
        total += len(targets) * float(cross_entropy(logits, targets, padding_id))
        counted += len(targets)
    return total / max(counted, 1)


@wrong(AVERAGE, why=_("The padding id is fixed at 0; it is given."), see=IGNORE, rung=3)
def padding_fixed_at_zero(batches: list[tuple[Tensor, Tensor]], padding_id: int) -> float:
    total, counted = 0.0, 0
    for logits, targets in batches:
        n = int((targets != 0).sum())
        total += n * float(cross_entropy(logits, targets, 0))
        counted += n
    return total / max(counted, 1)


@right(AVERAGE, style="everything flattened into one batch")
def one_long_batch(batches: list[tuple[Tensor, Tensor]], padding_id: int) -> float:
    logits = torch.cat([one.flatten(0, -2) for one, _t in batches])
    targets = torch.cat([one.flatten() for _l, one in batches])
    return cross_entropy(logits, targets, padding_id).item()


@right(AVERAGE, style="a loop over every token")
def token_by_token(batches: list[tuple[Tensor, Tensor]], padding_id: int) -> float:
    losses = []
    for logits, targets in batches:
        for row, target in zip(logits.flatten(0, 1), targets.flatten(), strict=True):
            if target != padding_id:
                losses.append(float(torch.logsumexp(row, 0) - row[target]))
    return sum(losses) / len(losses) if losses else 0.0


@right(AVERAGE, style="a tensor returned")
def as_a_tensor(batches: list[tuple[Tensor, Tensor]], padding_id: int) -> Any:
    counts = torch.tensor([float((targets != padding_id).sum()) for _l, targets in batches])
    means = torch.stack([cross_entropy(logits, targets, padding_id) for logits, targets in batches])
    return (means * counts).sum() / counts.sum().clamp(min=1)


# --------------------------------------------------------------------------------- lookup_test

TEST = "lookup_test"
GRADIENT = "embeddings-gradient"


@wrong(
    TEST,
    why=_(
        "No fault is ever found: nothing is asserted, or only what a wrong look-up fulfils as well."
    ),
    see=GRADIENT,
)
def asserts_nothing(lookup: Callable[[Tensor, Tensor], Tensor]) -> None:
    lookup(torch.tensor([[1, 0]]), torch.randn(3, 2))


@wrong(
    TEST,
    why=_("Every right look-up is turned away: what is asserted does not hold for any of them."),
    see=GRADIENT,
)
def rejects_everything(lookup: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert lookup is None


@wrong(TEST, why=_("Only the shape is asserted."), see=GRADIENT)
def shape_only(lookup: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert lookup(torch.tensor([[1, 0, 2], [2, 2, 1]]), torch.randn(4, 5)).shape == (2, 3, 5)


@wrong(
    TEST,
    why=_(
        "A look-up that nothing can train passes: the gradient is not looked at, or one that is "
        "zero everywhere is enough."
    ),
    see=GRADIENT,
    rung=2,
)
def no_gradients(lookup: Callable[[Tensor, Tensor], Tensor]) -> None:
    weight, ids = torch.randn(5, 3), torch.tensor([[4, 1, 1], [0, 4, 1]])
    assert torch.allclose(lookup(ids, weight), weight[ids])


@wrong(
    TEST,
    why=_(
        "A repeated row that gets one share of gradient instead of two passes: the size of the "
        "gradient is not compared, or no id is repeated."
    ),
    see=GRADIENT,
    rung=2,
)
def gradient_exists(lookup: Callable[[Tensor, Tensor], Tensor]) -> None:
    weight, ids = torch.randn(5, 3).requires_grad_(), torch.tensor([[4, 1, 1], [0, 4, 1]])
    rows = lookup(ids, weight)
    assert torch.allclose(rows, weight[ids])
    rows.sum().backward()
    assert weight.grad is not None and (weight.grad[[0, 1, 4]] != 0).all()


@wrong(
    TEST,
    why=_("No id occurs twice, so a wrong gradient of a repeated row cannot show."),
    see=GRADIENT,
    rung=3,
    form_of="gradient_exists",
)
def no_repeats(lookup: Callable[[Tensor, Tensor], Tensor]) -> None:
    weight, ids = torch.randn(6, 3).requires_grad_(), torch.tensor([[4, 1, 2], [0, 3, 5]])
    rows = lookup(ids, weight)
    assert torch.allclose(rows, weight[ids])
    rows.sum().backward()
    assert torch.allclose(weight.grad, torch.ones(6, 3))


@wrong(
    TEST,
    why=_("One sequence with ids in order shows neither a lost batch nor a lost order."),
    see=GRADIENT,
    rung=3,
)
def one_sequence_in_order(lookup: Callable[[Tensor, Tensor], Tensor]) -> None:
    weight, ids = torch.randn(5, 3).requires_grad_(), torch.tensor([[0, 1, 1, 3, 4]])
    rows = lookup(ids, weight)
    assert rows.shape == (1, 5, 3)
    assert torch.allclose(rows, weight[ids])
    rows.sum().backward()
    uses = torch.tensor([1.0, 2.0, 0.0, 1.0, 1.0])
    assert torch.allclose(weight.grad, uses[:, None].expand(5, 3))


@wrong(
    TEST,
    why=_("A table of zeros looks the same whichever row is taken."),
    see=GRADIENT,
    rung=3,
    form_of="shape_only",
)
def table_of_zeros(lookup: Callable[[Tensor, Tensor], Tensor]) -> None:
    weight, ids = torch.zeros(5, 3).requires_grad_(), torch.tensor([[4, 1, 1], [0, 4, 1]])
    rows = lookup(ids, weight)
    assert rows.shape == (2, 3, 3)
    assert torch.allclose(rows, weight[ids])


@right(TEST, style="against the library, rows and gradients")
def against_the_library(lookup: Callable[[Tensor, Tensor], Tensor]) -> None:
    for shape in ((2, 4), (3, 3)):
        ids = torch.randint(6, shape)
        ids[0, :2] = 5
        ids[1, 0] = 2
        mine, theirs = torch.randn(6, 4).requires_grad_(), None
        theirs = mine.detach().clone().requires_grad_()
        factor = torch.randn(*shape, 4)
        one, other = lookup(ids, mine), nn.functional.embedding(ids, theirs)
        assert one.shape == other.shape and torch.allclose(one, other, atol=1e-5)
        (one * factor).sum().backward()
        (other * factor).sum().backward()
        assert torch.allclose(mine.grad, theirs.grad, atol=1e-5)


@right(TEST, style="numbers by hand, autograd.grad")
def by_hand(lookup: Callable[[Tensor, Tensor], Tensor]) -> None:
    weight = torch.tensor([[0.0, 10.0], [1.0, 11.0], [2.0, 12.0]], requires_grad=True)
    rows = lookup(torch.tensor([[2, 0, 0], [1, 2, 0]]), weight)
    assert rows.tolist() == [[[2, 12], [0, 10], [0, 10]], [[1, 11], [2, 12], [0, 10]]]
    (gradient,) = torch.autograd.grad(rows.sum(), weight)
    assert gradient.tolist() == [[3, 3], [1, 1], [2, 2]]


@right(TEST, style="a loop over places and a finite difference")
def finite_difference(lookup: Callable[[Tensor, Tensor], Tensor]) -> None:
    weight, ids = torch.randn(4, 2), torch.tensor([[3, 0], [0, 2]])
    rows = lookup(ids, weight)
    for b in range(2):
        for t in range(2):
            assert (rows[b, t] - weight[ids[b, t]]).abs().max() < 1e-5
    leaf = weight.clone().requires_grad_()
    lookup(ids, leaf).sum().backward()
    for row in range(4):
        moved = weight.clone()
        moved[row] += 1.0
        expected = (moved[ids].sum() - weight[ids].sum()) / 2
        assert (leaf.grad[row] - expected).abs().max() < 1e-3
