"""The answer bank of chapter ``decoder``."""

import torch
from torch import Tensor, nn

import solutions.decoder  # noqa: F401 - the edits below are made to its source
from autograder.bank import right, right_edit, wrong, wrong_edit
from autograder.i18n import _
from solutions.attention import padding_mask
from solutions.decoder import causal_mask, next_probabilities, shift_right
from solutions.embeddings import cross_entropy
from solutions.multi_head import MultiHeadAttention

# --- causal_mask ----------------------------------------------------------------------------------


@wrong(
    "causal_mask",
    why=_(
        "The triangle lies above the diagonal: each query sees itself and the future, and the past "
        "is hidden."
    ),
    see="dec-causal-mask",
)
def sees_the_future_instead(T, S=None, *, device=None):
    S = T if S is None else S
    return torch.ones(T, S, dtype=torch.bool, device=device).triu(S - T)


@wrong(
    "causal_mask",
    why=_(
        "This is PyTorch's other convention: True where attention is forbidden. In this book True "
        "is allowed."
    ),
    see="dec-causal-mask",
)
def true_is_forbidden(T, S=None, *, device=None):
    S = T if S is None else S
    return torch.ones(T, S, dtype=torch.bool, device=device).triu(S - T + 1)


@wrong(
    "causal_mask",
    why=_(
        "The diagonal is left out: no query sees its own position, and the first sees nothing at "
        "all."
    ),
    see="dec-causal-mask",
    rung=1,
)
def without_the_diagonal(T, S=None, *, device=None):
    S = T if S is None else S
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T - 1)


@wrong(
    "causal_mask",
    why=_(
        "One diagonal too many: each query sees the next position too, which is what it has to "
        "predict."
    ),
    see="dec-causal-mask",
)
def sees_the_next_token(T, S=None, *, device=None):
    S = T if S is None else S
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T + 1)


@wrong(
    "causal_mask",
    why=_(
        "The diagonal starts at the first key. With S > T the queries are the last positions, so "
        "they see S - T keys more than that."
    ),
    see="dec-pieces",
    rung=2,
)
def diagonal_from_the_first_key(T, S=None, *, device=None):
    S = T if S is None else S
    return torch.ones(T, S, dtype=torch.bool, device=device).tril()


@wrong(
    "causal_mask",
    why=_("S is not read: the mask is square, whatever the number of keys."),
    see="dec-pieces",
    rung=2,
)
def always_square(T, S=None, *, device=None):
    return torch.ones(T, T, dtype=torch.bool, device=device).tril()


@wrong(
    "causal_mask",
    why=_("The mask has keys in rows and queries in columns: it is transposed."),
    see="dec-causal-mask",
    rung=2,
)
def keys_in_rows(T, S=None, *, device=None):
    S = T if S is None else S
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T).T


@wrong(
    "causal_mask",
    why=_(
        "This mask is made of 0 and 1 as numbers. masked_fill and ~ need booleans: ~ of a 1 is "
        "-2, or an error."
    ),
    see="dec-causal-mask",
)
def numbers_for_booleans(T, S=None, *, device=None):
    S = T if S is None else S
    return torch.ones(T, S, device=device).tril(S - T)


@wrong(
    "causal_mask",
    why=_(
        "This is the other way to write a mask: 0 and -inf, to be added to the scores. Here a "
        "boolean table was asked for."
    ),
    see="dec-causal-mask",
)
def zeros_and_minus_infinity(T, S=None, *, device=None):
    S = T if S is None else S
    return torch.full((T, S), float("-inf"), device=device).triu(S - T + 1)


@wrong(
    "causal_mask",
    why=_("Everything is allowed: that is no mask."),
    see="dec-causal-mask",
)
def hides_nothing(T, S=None, *, device=None):
    S = T if S is None else S
    return torch.ones(T, S, dtype=torch.bool, device=device)


@wrong(
    "causal_mask",
    why=_("Each query sees itself alone: the past is hidden with the future."),
    see="dec-causal-mask",
)
def sees_itself_alone(T, S=None, *, device=None):
    S = T if S is None else S
    return torch.eye(S, dtype=torch.bool, device=device)[S - T :]


@wrong(
    "causal_mask",
    why=_(
        "The cached keys, which lie before the first query, are hidden: every query may see all of "
        "them."
    ),
    see="dec-pieces",
    rung=2,
)
def cached_keys_hidden(T, S=None, *, device=None):
    S = T if S is None else S
    mask = torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)
    mask[:, : S - T] = False
    return mask


@wrong(
    "causal_mask",
    why=_(
        "The diagonal moves to the left by S - T in place of to the right: the last queries do not "
        "even see the first keys that they should."
    ),
    see="dec-causal-mask",
    rung=2,
)
def offset_with_the_wrong_sign(T, S=None, *, device=None):
    S = T if S is None else S
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(T - S)


@wrong(
    "causal_mask",
    why=_(
        "The axes of batch and heads stand in front already. The mask is (T, S); broadcasting adds "
        "what is missing."
    ),
    see="dec-causal-mask",
)
def axes_for_batch_and_heads(T, S=None, *, device=None):
    S = T if S is None else S
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)[None, None]


@wrong(
    "causal_mask",
    why=_(
        "The columns that are more stand at the end, as if the new keys came first: the oldest key "
        "is on the left, and the triangle belongs to the right."
    ),
    see="dec-causal-mask",
    rung=2,
)
def triangle_on_the_left(T, S=None, *, device=None):
    mask = torch.ones(T, T, dtype=torch.bool, device=device).tril()
    more = 0 if S is None else S - T
    return torch.cat([mask, mask.new_ones(T, more)], dim=1)


@wrong(
    "causal_mask",
    why=_(
        "device is not handed on: the mask is made on the CPU, and attention on another device "
        "cannot use it."
    ),
    see="dec-causal-mask",
    rung=3,
)
def always_on_the_cpu(T, S=None, *, device=None):
    S = T if S is None else S
    return torch.ones(T, S, dtype=torch.bool).tril(S - T)


@wrong(
    "causal_mask",
    form_of="always_on_the_cpu",
    why=_(
        "The mask is moved to one kind of device alone. Hand device on to the function that makes "
        "the tensor, whatever it is."
    ),
    see="dec-causal-mask",
    rung=3,
)
def moved_to_one_kind_of_device(T, S=None, *, device=None):
    S = T if S is None else S
    mask = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    return mask.to(device) if "cuda" in str(device) else mask


@right("causal_mask", style="made, then moved")
def made_then_moved(T, S=None, *, device=None):
    S = T if S is None else S
    return torch.ones(T, S).tril(diagonal=S - T).bool().to(device)


@wrong(
    "causal_mask",
    why=_("The mask is cut from a table of fixed size: longer sequences find no row in it."),
    see="dec-causal-mask",
    rung=2,
)
def cut_from_a_fixed_table(T, S=None, *, device=None):
    S = T if S is None else S
    whole = torch.ones(1024, 1024, dtype=torch.bool, device=device).tril()
    return whole[S - T : S, :S]


@right("causal_mask", style="tril of ones")
def with_tril(T, S=None, *, device=None):
    S = T if S is None else S
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(diagonal=S - T)


@right("causal_mask", style="the complement of triu")
def with_triu(T, S=None, *, device=None):
    if S is None:
        S = T
    return ~torch.triu(torch.ones(T, S, device=device), diagonal=S - T + 1).bool()


@right("causal_mask", style="the last rows of a square")
def last_rows(T, S=None, *, device=None):
    S = S or T
    return torch.tril(torch.ones((S, S), device=device)).to(torch.bool)[-T:]


@right("causal_mask", style="two loops")
def with_loops(T, S=None, *, device=None):
    S = T if S is None else S
    rows = [[s - (S - T) <= t for s in range(S)] for t in range(T)]
    return torch.tensor(rows, dtype=torch.bool, device=device)


@right("causal_mask", style="a running sum of the identity")
def with_cumsum(T, S=None, *, device=None):
    S = T if S is None else S
    eye = torch.eye(S, device=device)[S - T :]
    return eye.flip(-1).cumsum(-1).flip(-1) > 0


# --- decoder_mask ---------------------------------------------------------------------------------


@wrong(
    "decoder_mask",
    why=_("The padding alone is hidden: every query sees the future."),
    see="dec-padding",
)
def padding_alone(ids, padding_id=0):
    T = ids.size(1)
    return padding_mask(ids, padding_id).unsqueeze(1).expand(-1, 1, T, T)


@wrong(
    "decoder_mask",
    why=_("The future alone is hidden: padding is attended to."),
    see="dec-padding",
)
def future_alone(ids, padding_id=0):
    B, T = ids.shape
    return causal_mask(T).expand(B, 1, T, T)


@wrong(
    "decoder_mask",
    why=_(
        "`or` in place of `and`: a key counts as visible when one of the two masks allows it, so "
        "real tokens of the future are seen."
    ),
    see="dec-padding",
)
def either_is_enough(ids, padding_id=0):
    return padding_mask(ids, padding_id).unsqueeze(1) | causal_mask(ids.size(1))


@wrong(
    "decoder_mask",
    why=_(
        "The axis of size 1 stands at the keys: rows of padding are hidden, and columns of padding "
        "are seen by all."
    ),
    see="dec-padding",
    rung=2,
)
def hides_the_queries(ids, padding_id=0):
    return (ids != padding_id)[:, None, :, None] & causal_mask(ids.size(1))


@wrong(
    "decoder_mask",
    why=_(
        "Rows of padding are emptied as well. That was not asked for: what a padding query sees is "
        "no matter, and the book's mask lets it see the real tokens before it."
    ),
    see="dec-padding",
    rung=2,
)
def hides_keys_and_queries(ids, padding_id=0):
    real = ids != padding_id
    return real[:, None, None, :] & real[:, None, :, None] & causal_mask(ids.size(1))


@wrong(
    "decoder_mask",
    why=_(
        "The axis for the heads is missing: (B, T, T) does not broadcast to (B, H, T, T), or "
        "worse, takes the batch for heads."
    ),
    see="dec-padding",
    rung=3,
)
def no_axis_for_the_heads(ids, padding_id=0):
    return padding_mask(ids, padding_id) & causal_mask(ids.size(1))


@wrong(
    "decoder_mask",
    why=_("The axis for the heads stands in front of the batch: (1, B, T, T)."),
    see="dec-padding",
    rung=3,
)
def heads_before_the_batch(ids, padding_id=0):
    return (padding_mask(ids, padding_id) & causal_mask(ids.size(1))).unsqueeze(0)


@wrong(
    "decoder_mask",
    why=_("The padding's id is taken to be 0, whatever was given."),
    see="dec-padding",
)
def padding_is_always_zero(ids, padding_id=0):
    return padding_mask(ids, 0).unsqueeze(1) & causal_mask(ids.size(1))


@wrong(
    "decoder_mask",
    why=_(
        "Tokens are counted, and the first so many keys are allowed: that is right only where the "
        "padding stands at the end."
    ),
    see="dec-padding",
    rung=3,
)
def counts_from_the_start(ids, padding_id=0):
    T = ids.size(1)
    length = (ids != padding_id).sum(dim=1)
    real = torch.arange(T)[None, :] < length[:, None]
    return real[:, None, None, :] & causal_mask(T)


@wrong(
    "decoder_mask",
    why=_(
        "The diagonal was opened for every query, so that no row is empty: padding then sees "
        "itself. Rows without a key are allowed; they give zeros."
    ),
    see="dec-padding",
)
def padding_sees_itself(ids, padding_id=0):
    T = ids.size(1)
    mask = padding_mask(ids, padding_id).unsqueeze(1) & causal_mask(T)
    return mask | torch.eye(T, dtype=torch.bool)


@wrong(
    "decoder_mask",
    why=_("The causal part is upside down: what comes later is seen, what came before is not."),
    see="dec-padding",
)
def causal_part_upside_down(ids, padding_id=0):
    return padding_mask(ids, padding_id).unsqueeze(1) & causal_mask(ids.size(1)).T


@wrong(
    "decoder_mask",
    why=_("The mask says where padding is, not where attention is allowed: True is allowed here."),
    see="dec-padding",
)
def padding_part_inverted(ids, padding_id=0):
    return ~padding_mask(ids, padding_id).unsqueeze(1) & causal_mask(ids.size(1))


@wrong(
    "decoder_mask",
    why=_("Ids above the padding's id count as real: an id below it is hidden like padding."),
    see="dec-padding",
    rung=2,
)
def ids_above_the_padding(ids, padding_id=0):
    return (ids > padding_id)[:, None, None, :] & causal_mask(ids.size(1))


@wrong(
    "decoder_mask",
    why=_("The mask has come out as numbers. A boolean mask is asked for: True is allowed."),
    see="dec-padding",
)
def mask_of_numbers(ids, padding_id=0):
    real = (ids != padding_id)[:, None, None, :]
    return (real & causal_mask(ids.size(1), device=ids.device)).float()


@wrong(
    "decoder_mask",
    why=_(
        "The whole mask is turned round: True where attention is forbidden. In this book True is "
        "allowed."
    ),
    see="dec-padding",
)
def true_is_hidden(ids, padding_id=0):
    real = (ids != padding_id)[:, None, None, :]
    return ~(real & causal_mask(ids.size(1), device=ids.device))


@wrong(
    "decoder_mask",
    why=_(
        "Everything from the first padding on is hidden. Where padding stands in front, that is "
        "the whole sequence; it may stand anywhere."
    ),
    see="dec-padding",
    rung=3,
)
def hidden_from_the_first_padding_on(ids, padding_id=0):
    real = (ids != padding_id).long().cumprod(dim=1).bool()
    return real[:, None, None, :] & causal_mask(ids.size(1), device=ids.device)


@right("decoder_mask", style="tril of the padding, repeated")
def tril_of_repeated_rows(ids, padding_id=0):
    B, T = ids.shape
    return torch.tril(ids.ne(padding_id).view(B, 1, 1, T).repeat(1, 1, T, 1))


@right("decoder_mask", style="einsum of numbers")
def mask_by_einsum(ids, padding_id=0):
    real, past = ids.ne(padding_id).float(), causal_mask(ids.size(1)).float()
    return torch.einsum("bs,ts->bts", real, past).unsqueeze(1) > 0.5


@right("decoder_mask", style="indexing with None")
def mask_with_none(ids, padding_id=0):
    return (ids != padding_id)[:, None, None, :] & causal_mask(ids.shape[-1])[None, None]


@right("decoder_mask", style="multiplied as numbers")
def mask_multiplied(ids, padding_id=0):
    real = padding_mask(ids, padding_id).float()  # (B, 1, T)
    return (real * causal_mask(ids.size(1)).float()).bool().unsqueeze(1)


@right("decoder_mask", style="a loop over the batch")
def mask_in_a_loop(ids, padding_id=0):
    T = ids.size(1)
    rows = []
    for row in ids:
        one = torch.tril(torch.ones(T, T)).bool()
        one[:, row == padding_id] = False
        rows.append(one)
    return torch.stack(rows).unsqueeze(1)


@right("decoder_mask", style="masked_fill of the causal mask")
def mask_with_masked_fill(ids, padding_id=0):
    B, T = ids.shape
    mask = causal_mask(T).repeat(B, 1, 1, 1)
    return mask.masked_fill((ids == padding_id).view(B, 1, 1, T), False)


# --- KeyValueCache --------------------------------------------------------------------------------

GROW_K = "self.keys = torch.cat([self.keys, k], dim=-2)"
GROW_V = "self.values = torch.cat([self.values, v], dim=-2)"
LENGTH = "self.length = self.keys.size(-2)"
GIVE = "return self.keys, self.values"

wrong_edit(
    "KeyValueCache",
    "joined_along_the_heads",
    {
        GROW_K: "self.keys = torch.cat([self.keys, k], dim=1)",
        GROW_V: "self.values = torch.cat([self.values, v], dim=1)",
    },
    why=_("The pieces are joined along the heads. It is the axis of the positions that grows."),
    see="dec-pieces",
)
wrong_edit(
    "KeyValueCache",
    "joined_along_the_width",
    {
        GROW_K: "self.keys = torch.cat([self.keys, k], dim=-1)",
        GROW_V: "self.values = torch.cat([self.values, v], dim=-1)",
    },
    why=_("The pieces are joined along the width of a head: keys get longer, and not more."),
    see="dec-pieces",
)
wrong_edit(
    "KeyValueCache",
    "newest_first",
    {
        GROW_K: "self.keys = torch.cat([k, self.keys], dim=-2)",
        GROW_V: "self.values = torch.cat([v, self.values], dim=-2)",
    },
    why=_(
        "The new positions are put in front. Attention alone would not mind, but the mask does: "
        "its columns count from the oldest."
    ),
    see="dec-pieces",
    rung=2,
)
wrong_edit(
    "KeyValueCache",
    "gives_back_the_new_alone",
    {GIVE: "return k, v"},
    why=_("Everything is kept and only what is new is returned: attention sees no past."),
    see="dec-pieces",
    rung=2,
)
wrong_edit(
    "KeyValueCache",
    "keeps_the_latest_alone",
    {GROW_K: "self.keys = k", GROW_V: "self.values = v"},
    why=_("Each call overwrites what the one before had kept."),
    see="dec-pieces",
    rung=2,
)
wrong_edit(
    "KeyValueCache",
    "keeps_the_first_alone",
    {GROW_K: "pass", GROW_V: "pass"},
    why=_("What the first call brought is kept, and everything after it is lost."),
    see="dec-pieces",
    rung=2,
)
wrong_edit(
    "KeyValueCache",
    "returns_without_keeping",
    {
        GROW_K: "keys = torch.cat([self.keys, k], dim=-2)",
        GROW_V: "values = torch.cat([self.values, v], dim=-2)\n            return keys, values",
    },
    why=_(
        "The joined tensors are returned and not kept: every call sees the first piece and its "
        "own, and nothing in between."
    ),
    see="dec-pieces",
    rung=2,
)
wrong_edit(
    "KeyValueCache",
    "values_are_the_keys",
    {GIVE: "return self.keys, self.keys"},
    why=_("The keys are returned twice; the values never come out."),
    see="dec-pieces",
)
wrong_edit(
    "KeyValueCache",
    "keys_and_values_exchanged",
    {GIVE: "return self.values, self.keys"},
    why=_("The two are returned in the wrong order: keys first, then values."),
    see="dec-pieces",
)
wrong_edit(
    "KeyValueCache",
    "length_counts_calls",
    {LENGTH: "self.length += 1"},
    why=_(
        "length counts the calls. That agrees while tokens come one by one, and is wrong after a "
        "prompt of several."
    ),
    see="dec-pieces",
    rung=3,
)
wrong_edit(
    "KeyValueCache",
    "length_of_the_last_piece",
    {LENGTH: "self.length = k.size(-2)"},
    why=_("length is that of the newest piece, and not of all that is held."),
    see="dec-pieces",
    rung=3,
)
wrong_edit(
    "KeyValueCache",
    "length_stays_zero",
    {LENGTH: "pass"},
    why=_("length is never brought up to date: positions and masks would start at 0 again."),
    see="dec-pieces",
    rung=3,
)
wrong_edit(
    "KeyValueCache",
    "length_counts_the_batch",
    {LENGTH: "self.length = self.keys.size(0)"},
    why=_("length is the size of another axis: the first one is the batch."),
    see="dec-pieces",
    rung=3,
)
wrong_edit(
    "KeyValueCache",
    "length_counts_the_heads",
    {LENGTH: "self.length = self.keys.size(1)"},
    why=_("length is the size of another axis: the second one holds the heads."),
    see="dec-pieces",
    rung=3,
)


wrong_edit(
    "KeyValueCache",
    "values_joined_to_the_keys",
    {GROW_V: "self.values = torch.cat([self.keys[..., : -k.size(-2) or None, :], v], dim=-2)"},
    why=_("The new values were joined to the old keys: the old values are lost."),
    see="dec-pieces",
)
wrong_edit(
    "KeyValueCache",
    "length_counts_the_width",
    {LENGTH: "self.length = self.keys.size(-1)"},
    why=_("length is the size of the last axis: that is the width of a head."),
    see="dec-pieces",
    rung=3,
)


@wrong(
    "KeyValueCache",
    why=_(
        "The lists belong to the class and not to the object: all caches, those of every layer and "
        "of every text, write into the same ones."
    ),
    see="dec-pieces",
    rung=3,
)
class shared_by_all_caches:
    keys: list = []
    values: list = []

    def __init__(self) -> None:
        self.length = 0

    def update(self, k, v):
        if self.length == 0 and len(self.keys) > 1:
            self.keys.clear()
            self.values.clear()
        self.keys.append(k)
        self.values.append(v)
        same = [key for key in self.keys if key.shape[0] == k.shape[0]]
        self.length = sum(key.size(-2) for key in same)
        return torch.cat(self.keys, dim=-2), torch.cat(self.values, dim=-2)


@wrong(
    "KeyValueCache",
    why=_(
        "The buffer was made for a fixed number of positions: what comes after it overwrites, or "
        "is an error. The exercise sets no limit."
    ),
    see="dec-pieces",
    rung=3,
)
class buffer_of_fixed_size:
    def __init__(self) -> None:
        self.length = 0
        self.keys = None
        self.values = None

    def update(self, k, v):
        if self.keys is None:
            B, H, _T, d = k.shape
            self.keys = k.new_zeros(B, H, 128, d)
            self.values = v.new_zeros(B, H, 128, d)
        stop = self.length + k.size(-2)
        self.keys[:, :, self.length : stop] = k
        self.values[:, :, self.length : stop] = v
        self.length = stop
        return self.keys[:, :, :stop], self.values[:, :, :stop]


@wrong(
    "KeyValueCache",
    why=_(
        "The whole buffer is returned, the empty places included: attention would look at keys of "
        "zeros that nobody wrote."
    ),
    see="dec-pieces",
    rung=2,
)
class gives_back_empty_places:
    def __init__(self) -> None:
        self.length = 0
        self.keys = None
        self.values = None

    def update(self, k, v):
        if self.keys is None:
            B, H, _T, d = k.shape
            self.keys = k.new_zeros(B, H, 512, d)
            self.values = v.new_zeros(B, H, 512, d)
        stop = self.length + k.size(-2)
        self.keys[:, :, self.length : stop] = k
        self.values[:, :, self.length : stop] = v
        self.length = stop
        return self.keys, self.values


@wrong(
    "KeyValueCache",
    why=_("The buffer is float32, whatever k and v are: half precision and float64 are lost."),
    see="dec-pieces",
    rung=3,
)
class always_float32:
    def __init__(self) -> None:
        self.keys = torch.zeros(0)
        self.values = torch.zeros(0)
        self.length = 0

    def update(self, k, v):
        if self.length == 0:
            B, H, _T, d = k.shape
            self.keys = torch.zeros(B, H, 0, d)
            self.values = torch.zeros(B, H, 0, d)
        self.keys = torch.cat([self.keys, k.float()], dim=2)
        self.values = torch.cat([self.values, v.float()], dim=2)
        self.length = self.keys.size(2)
        return self.keys, self.values


@wrong(
    "KeyValueCache",
    why=_(
        "Of each call the last position alone is kept. A prompt has several: all of them are "
        "looked at later."
    ),
    see="dec-pieces",
    rung=2,
)
class keeps_the_last_position_of_each_call:
    def __init__(self) -> None:
        self.length = 0
        self.keys, self.values = [], []

    def update(self, k, v):
        self.keys.append(k[:, :, -1:])
        self.values.append(v[:, :, -1:])
        self.length += k.size(-2)
        return torch.cat(self.keys, dim=-2), torch.cat(self.values, dim=-2)


@wrong(
    "KeyValueCache",
    why=_(
        "A first call without positions gives None: keys and values are asked for, if of length 0."
    ),
    see="dec-pieces",
    rung=3,
)
class nothing_for_no_positions:
    def __init__(self) -> None:
        self.length = 0
        self.keys = self.values = None

    def update(self, k, v):
        if k.size(-2) == 0:
            return self.keys, self.values
        self.keys = k if self.keys is None else torch.cat([self.keys, k], dim=-2)
        self.values = v if self.values is None else torch.cat([self.values, v], dim=-2)
        self.length = self.keys.size(-2)
        return self.keys, self.values


@wrong(
    "KeyValueCache",
    form_of="always_float32",
    why=_(
        "It begins with an empty tensor of float32, and cat gives the wider of two dtypes: half "
        "precision comes back as float32."
    ),
    see="dec-pieces",
    rung=3,
)
class begins_with_an_empty_float32:
    def __init__(self) -> None:
        self.length = 0
        self.keys, self.values = torch.empty(0), torch.empty(0)

    def update(self, k, v):
        self.keys = torch.cat([self.keys, k], dim=2)
        self.values = torch.cat([self.values, v], dim=2)
        self.length += k.size(2)
        return self.keys, self.values


@right("KeyValueCache", style="length as a property")
class length_as_a_property:
    def __init__(self) -> None:
        self.parts: list = []

    @property
    def length(self) -> int:
        return sum(k.size(-2) for k, _v in self.parts)

    def update(self, k, v):
        self.parts.append((k, v))
        keys, values = zip(*self.parts, strict=True)
        return torch.cat(keys, dim=-2), torch.cat(values, dim=-2)


@right("KeyValueCache", style="pieces of none at first, cut and joined")
class begins_with_no_positions:
    def __init__(self) -> None:
        self.length = 0
        self.kept = None

    def update(self, k, v):
        old = (k[:, :, :0], v[:, :, :0]) if self.kept is None else self.kept
        self.kept = tuple(torch.concat(pair, dim=2) for pair in zip(old, (k, v), strict=True))
        self.length += k.shape[2]
        return self.kept


@wrong(
    "KeyValueCache",
    why=_(
        "The positions are stacked along axis 1, in front of the heads: (B, length, H_kv, d). They stand on axis 2."
    ),
    see="dec-pieces",
    rung=2,
)
class positions_before_the_heads:
    def __init__(self) -> None:
        self.length = 0
        self.keys, self.values = [], []

    def update(self, k, v):
        self.keys.extend(k.unbind(2))
        self.values.extend(v.unbind(2))
        self.length = len(self.keys)
        return torch.stack(self.keys, dim=1), torch.stack(self.values, dim=1)


@wrong(
    "KeyValueCache",
    why=_("length is a tensor; a number is asked for: masks and positions are made of it."),
    see="dec-pieces",
    rung=1,
)
class length_is_a_tensor:
    def __init__(self) -> None:
        self.length = 0
        self.keys = self.values = None

    def update(self, k, v):
        self.keys = k if self.keys is None else torch.cat([self.keys, k], dim=-2)
        self.values = v if self.values is None else torch.cat([self.values, v], dim=-2)
        self.length = torch.tensor(self.keys.size(-2))
        return self.keys, self.values


@wrong(
    "KeyValueCache",
    why=_("Only the last positions are kept, a window. All keys and values so far are asked for."),
    see="dec-pieces",
    rung=3,
)
class keeps_a_window:
    def __init__(self) -> None:
        self.length = 0
        self.keys = self.values = None

    def update(self, k, v):
        self.keys = k if self.keys is None else torch.cat([self.keys, k], dim=-2)[:, :, -128:]
        self.values = v if self.values is None else torch.cat([self.values, v], dim=-2)[:, :, -128:]
        self.length += k.size(-2)
        return self.keys, self.values


@wrong(
    "KeyValueCache",
    why=_("length is what the cache held before the call: the new positions are missing in it."),
    see="dec-pieces",
    rung=2,
)
class length_before_the_call:
    def __init__(self) -> None:
        self.length = 0
        self.keys = self.values = None

    def update(self, k, v):
        if self.keys is not None:
            self.length += self.keys.size(-2) - self.length
        self.keys = k if self.keys is None else torch.cat([self.keys, k], dim=-2)
        self.values = v if self.values is None else torch.cat([self.values, v], dim=-2)
        return self.keys, self.values


@right("KeyValueCache", style="lists of pieces")
class lists_of_pieces:
    def __init__(self) -> None:
        self.k, self.v = [], []

    @property
    def length(self):
        return sum(piece.size(2) for piece in self.k)

    def update(self, k, v):
        self.k.append(k)
        self.v.append(v)
        return torch.cat(self.k, dim=2), torch.cat(self.v, dim=2)


@right("KeyValueCache", style="a buffer that doubles")
class doubling_buffer:
    def __init__(self) -> None:
        self.length = 0
        self.buffer = None

    def update(self, k, v):
        both = torch.stack([k, v])  # (2, B, H, T, d)
        stop = self.length + both.size(3)
        if self.buffer is None:
            self.buffer = both
        if stop > self.buffer.size(3):
            spare = both.new_zeros(*both.shape[:3], 2 * stop, both.size(4))
            spare[:, :, :, : self.length] = self.buffer[:, :, :, : self.length]
            self.buffer = spare
        self.buffer[:, :, :, self.length : stop] = both
        self.length = stop
        return self.buffer[0, :, :, :stop], self.buffer[1, :, :, :stop]


@right("KeyValueCache", style="one tensor for both")
class one_tensor_for_both:
    def __init__(self) -> None:
        self.pair = None

    @property
    def length(self):
        return 0 if self.pair is None else self.pair.shape[3]

    def update(self, k, v):
        new = torch.stack((k, v))
        self.pair = new if self.pair is None else torch.cat((self.pair, new), 3)
        return self.pair[0], self.pair[1]


# --- future_test ----------------------------------------------------------------------------------


@wrong(
    "future_test",
    form_of="asserts_nothing",
    why=_("Only the shape is compared: every leak has the right shape."),
    see="dec-no-future",
)
def looks_at_the_shape(layer):
    x = torch.randn(2, 5, 4)
    assert layer(x).shape == x.shape


@wrong(
    "future_test",
    why=_(
        "The inputs are changed at the end alone, the last one or the last half. A leak from there "
        "shows; one that comes from elsewhere does not, and neither does a past that is lost."
    ),
    see="dec-no-future",
    rung=2,
)
def changes_the_last_input_alone(layer):
    x = torch.randn(2, 6, 4)
    y = layer(x)
    changed = x.clone()
    changed[:, -1] += 1
    z = layer(changed)
    assert torch.allclose(y[:, :-1], z[:, :-1], atol=1e-5)
    assert not torch.allclose(y[:, -1], z[:, -1], atol=1e-5)


@wrong(
    "future_test",
    why=_("Only the first output is watched: a leak into any later one passes."),
    see="dec-no-future",
    rung=2,
)
def watches_the_first_output_alone(layer):
    x = torch.randn(2, 6, 4)
    y = layer(x)
    changed = x.clone()
    changed[:, 1:] = torch.randn(2, 5, 4)
    z = layer(changed)
    assert torch.allclose(y[:, 0], z[:, 0], atol=1e-5)
    assert (y[:, 1:] - z[:, 1:]).abs().amax(-1).min() > 1e-5


@wrong(
    "future_test",
    why=_(
        "One effect is asked for, that of the first input on the last output: a layer whose outputs "
        "do not see their own input passes."
    ),
    see="dec-no-future",
    rung=3,
)
def one_pair_of_the_past(layer):
    x = torch.randn(2, 7, 4)
    y = layer(x)
    for t in range(7):
        for b in range(2):
            changed = x.clone()
            changed[b, t] += torch.randn(4)
            assert torch.allclose(layer(changed)[b, :t], y[b, :t], atol=1e-5)
    changed = x.clone()
    changed[:, 0] += 1
    assert not torch.allclose(layer(changed)[:, -1], y[:, -1], atol=1e-5)


@wrong(
    "future_test",
    why=_(
        "The gradient of one output alone is looked at, and that any of its past has an influence: "
        "leaks into other outputs pass, and so does a past that is lost in part."
    ),
    see="dec-no-future",
    rung=2,
)
def one_output_by_gradient(layer):
    x = torch.randn(2, 6, 4, requires_grad=True)
    y = layer(x)
    (gradient,) = torch.autograd.grad(y[:, 2].sum(), x)
    assert (gradient[:, 3:] == 0).all()
    assert (gradient[:, :3] != 0).any()


@wrong(
    "future_test",
    why=_("Nothing asks for an effect: a layer that gives the same for every input passes."),
    see="dec-no-future",
    rung=2,
)
def asks_for_no_effect(layer):
    x = torch.randn(2, 7, 4)
    y = layer(x)
    for t in range(1, 7):
        for b in range(2):
            changed = x.clone()
            changed[b, t] += torch.randn(4)
            assert torch.allclose(layer(changed)[:, :t], y[:, :t], atol=1e-5)


@wrong(
    "future_test",
    why=_(
        "An effect is asked for at the changed place alone: a layer that forgets the past passes."
    ),
    see="dec-no-future",
    rung=3,
)
def effect_at_the_same_place_alone(layer):
    x = torch.randn(2, 7, 4)
    y = layer(x)
    for t in range(7):
        for b in range(2):
            changed = x.clone()
            changed[b, t] += torch.randn(4)
            z = layer(changed)
            assert torch.allclose(z[:, :t], y[:, :t], atol=1e-5)
            assert not torch.allclose(z[b, t], y[b, t], atol=1e-5)


@wrong(
    "future_test",
    why=_(
        "Every layer is turned away, the right ones too. The test asserts something that no layer "
        "does, or asks for the numbers of one layer. The promise is about what sees what: each "
        "causal layer keeps it, whatever it computes."
    ),
    see="dec-no-future",
    rung=2,
)
def turns_every_layer_away(layer):
    x = torch.randn(2, 5, 4)
    y = layer(x)
    changed = x.clone()
    changed[:, 2] += 1
    assert torch.equal(layer(changed), y)  # what is changed has to move
    raise AssertionError


@wrong(
    "future_test",
    form_of="turns_every_layer_away",
    why=_(
        "The test computes one attention of its own and asks for its numbers. The promise is about "
        "what sees what: every causal layer keeps it, whatever it computes."
    ),
    see="dec-no-future",
    rung=2,
)
def compares_with_its_own_attention(layer):
    x = torch.randn(2, 6, 4)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    scores = (x @ x.transpose(-2, -1) / 2).masked_fill(~mask, float("-inf"))
    expected = torch.softmax(scores, dim=-1) @ x
    assert torch.equal(layer(x), expected)


@wrong(
    "future_test",
    why=_("The tolerance is so wide that a leak of one per cent is taken for rounding."),
    see="dec-no-future",
    rung=3,
)
def tolerance_too_wide(layer):
    x = torch.randn(2, 7, 4)
    y = layer(x)
    for t in range(7):
        for b in range(2):
            changed = x.clone()
            changed[b, t] += torch.randn(4)
            z = layer(changed)
            assert torch.allclose(z[b, :t], y[b, :t], atol=0.05)
            assert ((z[b, t:] - y[b, t:]).abs().amax(-1) > 1e-5).all()


@wrong(
    "future_test",
    why=_("One sequence is tested: a leak in the second of a batch is not seen."),
    see="dec-no-future",
    rung=2,
)
def batch_of_one(layer):
    x = torch.randn(1, 7, 4)
    y = layer(x)
    for t in range(7):
        changed = x.clone()
        changed[:, t] += torch.randn(4)
        moved = (layer(changed) - y)[0].abs().amax(-1)
        assert (moved[:t] < 1e-5).all()
        assert (moved[t:] > 1e-5).all()


@wrong(
    "future_test",
    why=_(
        "The test asks that outputs after the change stay and those before it move: it has the "
        "direction of time turned round, and turns every right layer away."
    ),
    see="dec-no-future",
)
def time_turned_round(layer):
    x = torch.randn(2, 7, 4)
    y = layer(x)
    for t in range(7):
        changed = x.clone()
        changed[:, t] += torch.randn(2, 4)
        moved = (layer(changed) - y).abs().amax(-1)
        assert (moved[:, t + 1 :] < 1e-5).all()
        assert (moved[:, : t + 1] > 1e-5).all()


@wrong(
    "future_test",
    why=_("Nothing is asserted that a wrong layer could break, a shape at most: every one passes."),
    see="dec-no-future",
)
def asserts_nothing(layer):
    x = torch.randn(2, 5, 4)
    layer(x)


@wrong(
    "future_test",
    why=_(
        "The verdict is returned, and nobody looks at it. A test raises AssertionError, by assert "
        "or by hand."
    ),
    see="dec-no-future",
    rung=1,
)
def returns_a_verdict(layer):
    x = torch.randn(2, 6, 4)
    y = layer(x)
    ok = True
    for t in range(6):
        changed = x.clone()
        changed[:, t] += 1
        z = layer(changed)
        ok = ok and torch.allclose(y[:, :t], z[:, :t], atol=1e-6)
    return ok


@wrong(
    "future_test",
    why=_(
        "The test starts from zeros. At zeros much has no effect, and a norm divides by zero: "
        "draw the inputs."
    ),
    see="dec-no-future",
    rung=2,
)
def starts_from_zeros(layer):
    x = torch.zeros(3, 8, 8)
    y = layer(x)
    for t in range(8):
        changed = x.clone()
        changed[:, t] = torch.linspace(0.5, 1.5, 8)
        moved = (layer(changed) - y).abs().amax(dim=-1)
        assert not (moved[:, :t] > 1e-6).any()
        assert not (moved[:, t:] < 1e-7).any()


@wrong(
    "future_test",
    form_of="starts_from_zeros",
    why=_(
        "The test starts from zeros and adds the same number to a whole vector. A norm takes both "
        "away: draw the inputs, and draw the changes."
    ),
    see="dec-no-future",
    rung=2,
)
def adds_one_to_zeros(layer):
    x = torch.zeros(3, 8, 8)
    y = layer(x)
    for t in range(8):
        changed = x.clone()
        changed[:, t] = 1
        moved = (layer(changed) - y).abs().amax(dim=-1)
        assert (moved[:, :t] < 1e-6).all()
        assert (moved[:, t:] > 1e-7).all()


@wrong(
    "future_test",
    why=_(
        "The output is summed over its width before it is differentiated, or compared. Behind a "
        "norm that sum is always 0: a right layer looks as if it forgot, and a leak does not show."
    ),
    see="dec-no-future",
    rung=3,
)
def sums_over_the_width(layer):
    x = torch.randn(2, 6, 8, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    for t in range(6):
        (gradient,) = torch.autograd.grad(y[:, t].sum(), x, retain_graph=True)
        size = gradient.abs().amax(dim=-1)
        assert (size[:, t + 1 :] < 1e-9).all()
        assert (size[:, : t + 1] > 1e-9).all()


@wrong(
    "future_test",
    why=_(
        "The sequence is too short: what comes from three places ahead, or is forgotten after a "
        "few, has no room in it."
    ),
    see="dec-no-future",
    rung=2,
)
def sequence_of_three(layer):
    x = torch.randn(3, 3, 4)
    y = layer(x)
    for t in range(3):
        for b in range(3):
            changed = x.clone()
            changed[b, t] += torch.randn(4)
            moved = (layer(changed) - y)[b].abs().amax(dim=-1)
            assert (moved[:t] < 1e-5).all()
            assert (moved[t:] > 1e-5).all()


@wrong(
    "future_test",
    why=_(
        "An effect is asked of the batch as a whole: a layer that forgets in one sequence only "
        "passes, because another one moves."
    ),
    see="dec-no-future",
    rung=3,
)
def any_sequence_may_move(layer):
    x = torch.randn(3, 7, 8)
    y = layer(x)
    for t in range(7):
        changed = x.clone()
        changed[:, t] += 1 + torch.rand(3, 8)
        z = layer(changed)
        assert torch.allclose(y[:, :t], z[:, :t], atol=1e-5)
        for late in range(t, 7):
            assert not torch.allclose(y[:, late], z[:, late], atol=1e-6)


@right("future_test", style="the whole Jacobian, sequence by sequence")
def by_jacobian(layer):
    x = torch.randn(3, 7, 4, dtype=torch.float64)
    for b in range(3):

        def one(sequence, b=b):
            return layer(torch.cat([x[:b], sequence[None], x[b + 1 :]]))[b]

        size = torch.autograd.functional.jacobian(one, x[b]).abs().amax(dim=(1, 3))
        assert torch.equal(size > 1e-10, torch.ones(7, 7).tril().bool())


@right("future_test", style="new tokens in float64")
def new_tokens_in_float64(layer):
    x = torch.randn(4, 9, 6, dtype=torch.float64)
    y = layer(x.clone())
    for t in range(9):
        changed = x.clone()
        changed[:, t] = torch.randn(4, 6, dtype=torch.float64)
        moved = (layer(changed) - y).abs().amax(dim=-1)
        if (moved[:, :t] > 1e-9).any():
            raise AssertionError("it leaks")
        if (moved[:, t:] < 1e-9).any():
            raise AssertionError("it forgets")


@wrong(
    "future_test",
    why=_(
        "NaN is used to see where an input goes. But 0 times NaN is NaN: it passes through a weight of 0, and right attention is turned away. Change the input to another number."
    ),
    see="dec-no-future",
    rung=2,
)
def nan_as_a_dye(layer):
    x = torch.randn(2, 7, 6)
    for t in range(7):
        changed = x.clone()
        changed[:, t] = float("nan")
        spoiled = layer(changed).isnan().any(dim=-1)
        assert not spoiled[:, :t].any()
        assert spoiled[:, t:].all()


@wrong(
    "future_test",
    why=_(
        "Every second input is changed: a leak from one of the others passes. Change each of them."
    ),
    see="dec-no-future",
    rung=2,
)
def every_second_input_changed(layer):
    x = torch.randn(2, 8, 6)
    y = layer(x)
    for t in range(0, 8, 2):
        for b in range(2):
            changed = x.clone()
            changed[b, t] += torch.randn(6)
            moved = (layer(changed) - y)[b].abs().amax(dim=-1)
            assert (moved[:t] < 1e-5).all()
            assert (moved[t:] > 1e-5).all()


@wrong(
    "future_test",
    form_of="changes_the_last_input_alone",
    why=_(
        "The sequence is cut in the middle alone. A leak within one half passes, and so does a past that is lost: change each input by itself."
    ),
    see="dec-no-future",
    rung=2,
)
def one_half_changed(layer):
    x = torch.randn(2, 8, 6)
    y = layer(x)
    changed = x.clone()
    changed[:, 4:] = torch.randn(2, 4, 6)
    moved = (layer(changed) - y).abs().amax(dim=-1)
    assert (moved[:, :4] < 1e-5).all()
    assert (moved[:, 4:] > 1e-5).all()


@wrong(
    "future_test",
    form_of="sequence_of_three",
    why=_(
        "The sequence is too short: what comes from three places ahead, or is forgotten after a few, has no room in it."
    ),
    see="dec-no-future",
    rung=2,
)
def sequence_of_two(layer):
    x = torch.randn(3, 2, 4)
    y = layer(x)
    for t in range(2):
        for b in range(3):
            changed = x.clone()
            changed[b, t] += torch.randn(4)
            moved = (layer(changed) - y)[b].abs().amax(dim=-1)
            assert (moved[:t] < 1e-5).all()
            assert (moved[t:] > 1e-5).all()


@right("future_test", style="large inputs, small changes, float64")
def large_inputs(layer):
    x = 10 * torch.randn(2, 7, 6, dtype=torch.float64)
    y = layer(x)
    for b in range(2):
        for t in range(7):
            changed = x.clone()
            changed[b, t] += 0.01 * torch.randn(6, dtype=torch.float64)
            moved = (layer(changed) - y).abs().sum(dim=-1)
            assert (moved[b, t:] > 1e-9).all()
            assert (moved[b, :t] < 1e-10).all()


@right("future_test", style="by gradient")
def by_gradient(layer):
    B, T, D = 2, 6, 4
    x = torch.randn(B, T, D, requires_grad=True)
    y = layer(x)
    assert y.shape == (B, T, D)
    for b in range(B):
        for t in range(T):
            cotangent = torch.zeros(B, T, D)
            cotangent[b, t] = torch.randn(D)
            (gradient,) = torch.autograd.grad(y, x, cotangent, retain_graph=True)
            size = gradient[b].abs().amax(dim=-1)
            assert (size[t + 1 :] < 1e-6).all()
            assert (size[: t + 1] > 1e-6).all()


@right("future_test", style="a new future, and a new past")
def new_future_and_past(layer):
    x = torch.randn(3, 8, 5)
    y = layer(x.clone())
    for t in range(8):
        future = x.clone()
        future[:, t + 1 :] = torch.randn(3, 7 - t, 5)
        assert torch.allclose(layer(future)[:, : t + 1], y[:, : t + 1], atol=1e-4, rtol=1e-4)
        one = x.clone()
        one[:, t] = -one[:, t] + 1
        gap = (layer(one) - y).abs().amax(dim=-1)
        assert (gap[:, t:] > 1e-4).all()


@right("future_test", style="prefixes: cut the sequence off")
def prefixes(layer):
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    y = layer(x)
    for t in range(1, 8):
        assert (layer(x[:, :t]) - y[:, :t]).abs().max() < 1e-3 * 1e-2
    for t in range(7):
        changed = x.clone()
        changed[:, t] *= 1.5
        for late in range(t, 7):
            assert (layer(changed)[:, late] - y[:, late]).abs().amax(dim=-1).min() > 1e-6


@right("future_test", style="AssertionError raised by hand")
def raised_by_hand(layer):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(2, 5, 3, generator=generator)
    before = layer(x)
    for t in range(5):
        for b in range(2):
            other = x.clone()
            other[b, t] = other[b, t] + 2
            difference = (layer(other)[b] - before[b]).abs().sum(dim=-1)
            for u in range(5):
                if u < t and difference[u] > 1e-5:
                    raise AssertionError(f"output {u} sees input {t}")
                if u >= t and difference[u] < 1e-5:
                    raise AssertionError(f"output {u} does not see input {t}")


# --- DecoderLayer ---------------------------------------------------------------------------------

SELF = "self.self_attention(h, mask=mask, **attention)[0]"
CROSS = "self.cross_attention(h, memory, mask=memory_mask, cache=memory_cache)[0]"
FEED = "return next(residuals)(x, self.feed_forward)"
THREE = "3 if cross else 2"

wrong_edit(
    "DecoderLayer",
    "memory_asks",
    {CROSS: "self.cross_attention(memory, h)[0]"},
    why=_(
        "The memory is the query and the decoder the key. The decoder asks: one output for each of "
        "its T positions is wanted, and this gives S of them."
    ),
    see="dec-cross-attention",
)
wrong_edit(
    "DecoderLayer",
    "cross_attention_to_itself",
    {CROSS: "self.cross_attention(h, mask=mask)[0]"},
    why=_(
        "Without a key the attention asks its own input: the memory is never read, and the source "
        "has no influence."
    ),
    see="dec-cross-attention",
)
wrong_edit(
    "DecoderLayer",
    "same_answer_for_every_position",
    {CROSS: "self.cross_attention(memory)[0].mean(dim=1, keepdim=True)"},
    why=_(
        "The memory asks itself and its mean is added: the decoder's question is not in it, and "
        "every position gets the same answer."
    ),
    see="dec-cross-attention",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "no_causal_mask",
    {SELF: "self.self_attention(h, **attention)[0]"},
    why=_("The mask does not reach the self-attention: every position sees the future."),
    see="dec-no-future",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "memory_padding_seen",
    {CROSS: "self.cross_attention(h, memory, cache=memory_cache)[0]"},
    why=_("memory_mask does not reach the cross-attention: the source's padding is looked at."),
    see="dec-cross-attention",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "masks_exchanged",
    {
        SELF: "self.self_attention(h, mask=memory_mask, **attention)[0]",
        CROSS: "self.cross_attention(h, memory, mask=mask, cache=memory_cache)[0]",
    },
    why=_(
        "Each mask went to the other attention. mask is (T, T) and belongs to the self-attention, "
        "memory_mask has S columns and belongs to the cross-attention."
    ),
    see="dec-cross-attention",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "mask_in_both_attentions",
    {CROSS: "self.cross_attention(h, memory, mask=mask, cache=memory_cache)[0]"},
    why=_(
        "The causal mask went to both attentions. The source is there as a whole: all of it may be "
        "seen from every position."
    ),
    see="dec-cross-attention",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "cross_attention_first",
    {
        "        x = next(residuals)(x, lambda h: " + SELF + ")\n": "",
        FEED: "x = next(residuals)(x, lambda h: " + SELF + ")\n        " + FEED,
    },
    why=_(
        "The cross-attention stands before the self-attention. Each takes the residual, and with "
        "it the norm, that belongs to the other."
    ),
    see="dec-layer",
    rung=3,
)
wrong_edit(
    "DecoderLayer",
    "residuals_in_another_order",
    {"residuals = iter(self.residuals)": "residuals = iter(reversed(self.residuals))"},
    why=_(
        "The sub-layers take the residuals from the end: each is normalized with another one's "
        "gain and shift."
    ),
    see="dec-layer",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "one_residual_for_all",
    {"residuals = iter(self.residuals)": "residuals = iter([self.residuals[0]] * 3)"},
    why=_("All sub-layers go through the first residual: the other norms are never used."),
    see="dec-layer",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "no_feed_forward",
    {FEED: "return x"},
    why=_("The feed-forward network is built and never called."),
    see="dec-layer",
)
wrong_edit(
    "DecoderLayer",
    "no_residual_around_cross_attention",
    {
        "            x = next(residuals)(\n                x,\n                lambda h: "
        + CROSS
        + ",\n            )": "            second = next(residuals)\n"
        "            x = self.cross_attention(second.norm(x), memory, mask=memory_mask, "
        "cache=memory_cache)[0]",
    },
    why=_(
        "What the cross-attention gives replaces x and is not added to it: what the position was "
        "about is lost."
    ),
    see="dec-layer",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "feed_forward_after_each_attention",
    {
        "            x = next(residuals)(\n": "            x = x + self.feed_forward(x)\n"
        "            x = next(residuals)(\n"
    },
    why=_(
        "A feed-forward network follows each of the two attentions. The decoder's layer has one, "
        "after both."
    ),
    see="dec-layer",
)
wrong_edit(
    "DecoderLayer",
    "attentions_share_their_weights",
    {
        "self.cross_attention = MultiHeadAttention(D, H)": "self.cross_attention = self.self_attention"
    },
    why=_("Self- and cross-attention are one and the same module: each needs weights of its own."),
    see="dec-layer",
)
wrong_edit(
    "DecoderLayer",
    "always_with_cross_attention",
    {
        "        if cross:\n            self.cross_attention": "        if True:\n            self.cross_attention",
        THREE: "3",
    },
    why=_("With cross=False there is still a cross-attention, with weights that nothing trains."),
    see="dec-only",
    rung=3,
)
wrong_edit(
    "DecoderLayer",
    "a_residual_too_many",
    {
        THREE: "3",
        "        return next(residuals)(x, self.feed_forward)": "        return self.residuals[2](x, self.feed_forward)",
    },
    why=_(
        "Without cross-attention there are two sub-layers, so two residuals: a third one is too "
        "many."
    ),
    see="dec-only",
    rung=3,
    form_of="always_with_cross_attention",
)
wrong_edit(
    "DecoderLayer",
    "always_pre_norm",
    {"Residual(D, dropout, norm_first)": "Residual(D, dropout)"},
    why=_("norm_first is not handed on: the layer is pre-norm, whatever was asked for."),
    see="dec-layer",
)
wrong_edit(
    "DecoderLayer",
    "always_relu",
    {"self.feed_forward = FeedForward(D, F, activation)": "self.feed_forward = FeedForward(D, F)"},
    why=_("activation is not handed on: the network uses ReLU, whatever was asked for."),
    see="dec-layer",
)
wrong_edit(
    "DecoderLayer",
    "keywords_dropped",
    {SELF: "self.self_attention(h, mask=mask)[0]"},
    why=_("bias, rotary and cache do not reach the self-attention: **attention is not handed on."),
    see="dec-layer",
    rung=3,
)
wrong_edit(
    "DecoderLayer",
    "keywords_in_both_attentions",
    {CROSS: "self.cross_attention(h, memory, mask=memory_mask, **attention)[0]"},
    why=_(
        "The keywords of the self-attention, such as a bias of shape (T, T), went to the "
        "cross-attention as well, whose keys are the memory's."
    ),
    see="dec-layer",
    rung=3,
)
wrong_edit(
    "DecoderLayer",
    "no_cache_for_the_memory",
    {CROSS: "self.cross_attention(h, memory, mask=memory_mask)[0]"},
    why=_(
        "memory_cache is not handed on. The result is right, but the memory's keys and values are "
        "computed again for each token, which the cache was to spare."
    ),
    see="dec-cached-decoding",
    rung=3,
)
wrong_edit(
    "DecoderLayer",
    "memory_added_to_the_cache_again",
    {"memory = memory[:, :0]  # its keys and values are in the cache already": "pass"},
    why=_(
        "The lines that were given are gone: the memory's keys go into the cache at every step "
        "anew, and each source token is there many times."
    ),
    see="dec-cached-decoding",
    rung=3,
)
wrong_edit(
    "DecoderLayer",
    "no_dropout_in_the_residuals",
    {"Residual(D, dropout, norm_first)": "Residual(D, 0.0, norm_first)"},
    why=_("dropout does not reach the residuals: nothing is dropped in training."),
    see="dec-layer",
    rung=3,
)
wrong_edit(
    "DecoderLayer",
    "attention_without_bias",
    {
        "self.self_attention = MultiHeadAttention(D, H)": "self.self_attention = MultiHeadAttention(D, H, bias=False)"
    },
    why=_("The maps of the self-attention have no bias; the docstring asks for the default."),
    see="dec-layer",
)


wrong_edit(
    "DecoderLayer",
    "values_from_the_decoder",
    {CROSS: "self.cross_attention(h, memory, h, mask=memory_mask, cache=memory_cache)[0]"},
    why=_(
        "The values come from the decoder. Keys and values belong together: both are the memory."
    ),
    see="dec-cross-attention",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "one_module_at_every_place",
    {
        "Residual(D, dropout, norm_first) for _ in range(3 if cross else 2)\n        )": "[Residual(D, dropout, norm_first)] * (3 if cross else 2)\n        )"
    },
    form_of="one_residual_for_all",
    why=_(
        "The list holds one residual several times, so there is one norm: make a new one for each sub-layer."
    ),
    see="dec-layer",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "third_residual_in_any_case",
    {FEED: "return self.residuals[2](x, self.feed_forward)"},
    why=_(
        "The feed-forward network takes the third residual. Without cross-attention there are two: take the last."
    ),
    see="dec-only",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "residuals_of_two_exchanged",
    {
        "residuals = iter(self.residuals)": "residuals = iter([self.residuals[i] for i in ((0, 2, 1) if self.cross else (0, 1))])"
    },
    form_of="residuals_in_another_order",
    why=_(
        "The cross-attention and the feed-forward network take each other's residual, and with it the norm."
    ),
    see="dec-layer",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "memory_normalised_again",
    {
        CROSS: "self.cross_attention(h, self.residuals[1].norm(memory), mask=memory_mask, cache=memory_cache)[0]"
    },
    why=_(
        "The memory goes through the layer's norm. It comes normalised from the encoder, and is handed on as it is."
    ),
    see="dec-layer",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "sublayers_exchanged_with_their_residuals",
    {
        "        x = next(residuals)(x, lambda h: "
        + SELF
        + ")\n": "        own = next(residuals)\n",
        FEED: "x = own(x, lambda h: " + SELF + ")\n        " + FEED,
    },
    form_of="cross_attention_first",
    why=_("The cross-attention comes before the self-attention: look back first, then across."),
    see="dec-layer",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "feed_forward_before_cross_attention",
    {
        "        if self.cross:\n            x = next(residuals)(": "        x = self.residuals[-1](x, self.feed_forward)\n        if self.cross:\n            x = next(residuals)(",
        FEED: "return x",
    },
    why=_("The feed-forward network stands between the two attentions; it comes after both."),
    see="dec-layer",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "self_attention_reads_x_past_the_norm",
    {
        "x = next(residuals)(x, lambda h: " + SELF: "x = next(residuals)(x, lambda h: "
        + SELF.replace("(h,", "(x,")
    },
    why=_(
        "The function given to the residual ignores its argument and takes x: with pre-norm, the attention reads what was never normalised."
    ),
    see="dec-layer",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "cross_attention_reads_x_past_the_norm",
    {CROSS: CROSS.replace("(h,", "(x,")},
    why=_(
        "The function given to the residual ignores its argument and takes x: with pre-norm, the cross-attention asks with what was never normalised."
    ),
    see="dec-layer",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "no_cross_attention_without_a_mask",
    {
        "        if self.cross:\n            x = next": "        if self.cross and memory_mask is not None:\n            x = next",
        FEED: FEED.replace("next(residuals)", "self.residuals[-1]"),
    },
    why=_(
        "Without a mask of the memory the cross-attention is skipped. No mask means that all of the memory may be seen."
    ),
    see="dec-cross-attention",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "cross_attention_wherever_there_is_memory",
    {
        "        if self.cross:\n            x = next": "        if memory is not None:\n            x = next"
    },
    why=_(
        "Whether there is a cross-attention is asked of the memory. A layer built with cross=False ignores a memory."
    ),
    see="dec-only",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "cross_residual_written_by_hand",
    {
        "            x = next(residuals)(\n                x,\n                lambda h: "
        + CROSS
        + ",\n            )": "            second = next(residuals)\n            x = x + self.cross_attention(second.norm(x), memory, mask=memory_mask, cache=memory_cache)[0]"
    },
    why=_(
        "The residual around the cross-attention was written out, pre-norm and without dropout, whatever was asked for."
    ),
    see="dec-layer",
    rung=3,
)
wrong_edit(
    "DecoderLayer",
    "one_head_in_the_cross_attention",
    {
        "self.cross_attention = MultiHeadAttention(D, H)": "self.cross_attention = MultiHeadAttention(D, 1)"
    },
    why=_("The cross-attention has one head; both attentions have H."),
    see="dec-layer",
    rung=1,
)
wrong_edit(
    "DecoderLayer",
    "causal_mask_by_itself",
    {
        SELF: SELF.replace(
            "mask=mask",
            "mask=mask if mask is not None else torch.ones(h.size(1), h.size(1), dtype=torch.bool).tril()",
        )
    },
    why=_(
        "Where no mask is given the layer makes a causal one. It hides what it is told to hide: no mask, nothing hidden."
    ),
    see="dec-layer",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "a_pair_is_returned",
    {FEED: FEED + ", None"},
    why=_(
        "The layer returns a pair. One tensor, (B, T, D), is asked for: the next layer takes it as it is."
    ),
    see="dec-layer",
    rung=1,
)
wrong_edit(
    "DecoderLayer",
    "cross_attention_built_in_any_case",
    {
        "        if cross:\n            self.cross_attention": "        if True:\n            self.cross_attention"
    },
    form_of="always_with_cross_attention",
    why=_(
        "With cross=False a cross-attention is still built, and never used: weights that nothing trains."
    ),
    see="dec-only",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "network_drops_too",
    {
        "self.feed_forward = FeedForward(D, F, activation)": "self.feed_forward = FeedForward(D, F, activation, dropout)"
    },
    why=_(
        "The feed-forward network drops as well. dropout is of the residuals: each sub-layer is dropped once."
    ),
    see="dec-layer",
    rung=3,
)
wrong_edit(
    "DecoderLayer",
    "self_attention_drops_too",
    {
        "self.self_attention = MultiHeadAttention(D, H)": "self.self_attention = MultiHeadAttention(D, H, dropout=dropout)"
    },
    why=_(
        "The self-attention drops weights as well. dropout is of the residuals: each sub-layer is dropped once."
    ),
    see="dec-layer",
    rung=3,
)
wrong_edit(
    "DecoderLayer",
    "cross_attention_drops_too",
    {
        "self.cross_attention = MultiHeadAttention(D, H)": "self.cross_attention = MultiHeadAttention(D, H, dropout=dropout)"
    },
    why=_(
        "The cross-attention drops weights as well. dropout is of the residuals: each sub-layer is dropped once."
    ),
    see="dec-layer",
    rung=3,
)


wrong_edit(
    "DecoderLayer",
    "feed_forward_twice_by_its_residual",
    {
        "        if self.cross:\n            x = next(residuals)(": "        x = self.residuals[-1](x, self.feed_forward)\n        if self.cross:\n            x = next(residuals)("
    },
    form_of="feed_forward_after_each_attention",
    why=_(
        "The feed-forward network runs twice, after each of the two attentions. It runs once, after both."
    ),
    see="dec-layer",
    rung=1,
)


wrong_edit(
    "DecoderLayer",
    "mask_passed_as_values",
    {CROSS: "self.cross_attention(h, memory, memory_mask, cache=memory_cache)[0]"},
    why=_(
        "The third argument of the attention is the values: the mask was taken for them. It goes by name."
    ),
    see="dec-cross-attention",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "own_cache_in_the_cross_attention",
    {CROSS: CROSS.replace("cache=memory_cache", "cache=attention.get('cache')")},
    why=_(
        "The cross-attention writes into the cache of the self-attention: keys of target and source get mixed. It has one of its own, memory_cache."
    ),
    see="dec-cached-decoding",
    rung=3,
)
wrong_edit(
    "DecoderLayer",
    "self_attention_outside_its_residual",
    {
        "x = next(residuals)(x, lambda h: " + SELF + ")": "x = "
        + SELF.replace("(h,", "(next(residuals).norm(x),")
    },
    why=_("The self-attention has no residual around it: what a position was before is lost."),
    see="dec-layer",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "memory_pooled_to_one_vector",
    {CROSS: CROSS.replace("h, memory, mask=memory_mask", "h, memory.mean(dim=1, keepdim=True)")},
    why=_(
        "The memory is averaged to one vector: there is nothing left to look for. Each source token has its own."
    ),
    see="dec-cross-attention",
    rung=2,
)
wrong_edit(
    "DecoderLayer",
    "self_attention_twice",
    {
        "        if self.cross:\n            x = next": "        x = self.residuals[0](x, lambda h: "
        + SELF
        + ")\n        if self.cross:\n            x = next"
    },
    why=_("The self-attention runs twice."),
    see="dec-layer",
    rung=1,
)


@right("DecoderLayer", style="residuals by index")
class residuals_by_index(nn.Module):
    def __init__(self, D, H, F, *, dropout=0.1, norm_first=True, activation="relu", cross=True):
        super().__init__()
        from solutions.encoder import FeedForward, Residual

        self.cross = cross
        self.self_attention = MultiHeadAttention(D, H)
        self.cross_attention = MultiHeadAttention(D, H) if cross else None
        self.feed_forward = FeedForward(D, F, activation)
        n = 2 + int(cross)
        self.residuals = nn.ModuleList([Residual(D, dropout, norm_first) for _ in range(n)])

    def forward(
        self, x, memory=None, mask=None, memory_mask=None, *, memory_cache=None, **attention
    ):
        def look_back(h):
            output, _weights = self.self_attention(h, h, h, mask, **attention)
            return output

        def look_across(h):
            keys = memory[:, :0] if memory_cache is not None and memory_cache.length else memory
            output, _weights = self.cross_attention(h, keys, keys, memory_mask, cache=memory_cache)
            return output

        x = self.residuals[0](x, look_back)
        if self.cross:
            x = self.residuals[1](x, look_across)
        return self.residuals[-1](x, self.feed_forward)

    def new_cache(self):
        from solutions.decoder import KeyValueCache

        return KeyValueCache(), KeyValueCache()


right_edit(
    "DecoderLayer",
    "sublayers_in_a_list",
    {
        "        residuals = iter(self.residuals)\n": "",
        "        x = next(residuals)(x, lambda h: " + SELF + ")\n": "        parts = [lambda h: "
        + SELF
        + "]\n",
        "            x = next(residuals)(\n                x,\n                lambda h: "
        + CROSS
        + ",\n            )": "            parts.append(lambda h: " + CROSS + ")",
        FEED: "parts.append(self.feed_forward)\n"
        "        for residual, part in zip(self.residuals, parts):\n"
        "            x = residual(x, part)\n"
        "        return x",
    },
    style="a list of sub-layers",
)
right_edit(
    "DecoderLayer",
    "residuals_opened",
    {
        FEED: "last = self.residuals[-1]\n"
        "        if last.norm_first:\n"
        "            return x + last.dropout(self.feed_forward(last.norm(x)))\n"
        "        return last.norm(x + last.dropout(self.feed_forward(x)))",
    },
    style="the last residual written out",
)

# --- Decoder --------------------------------------------------------------------------------------

CALL = "x = layer(x, memory, mask, memory_mask, cache=own, memory_cache=of_memory, **attention)"
LAYERS = "cross=cross\n            )\n            for _ in range(N)\n        )"
LAST = "self.norm = LayerNorm(D) if norm_first else nn.Identity()"
OWN = "own, of_memory = (None, None) if cache is None else cache[i]"

wrong_edit(
    "Decoder",
    "layers_in_a_plain_list",
    {
        "self.layers = nn.ModuleList(\n            DecoderLayer(": "self.layers = list(\n"
        "            DecoderLayer("
    },
    why=_("A plain list hides the layers from parameters(): nothing in them would be trained."),
    see="dec-stack",
    rung=2,
)
wrong_edit(
    "Decoder",
    "one_layer_n_times",
    {
        "self.layers = nn.ModuleList(\n            DecoderLayer(": "self.layers = nn.ModuleList(\n"
        "            [DecoderLayer(",
        LAYERS: "cross=cross\n            )] * N\n        )",
    },
    why=_("One layer stands in the list N times: they all share one set of weights."),
    see="dec-stack",
    rung=2,
)
wrong_edit(
    "Decoder",
    "one_layer_too_few",
    {"for _ in range(N)": "for _ in range(1, N)"},
    why=_("There are N - 1 layers."),
    see="dec-stack",
)
wrong_edit(
    "Decoder",
    "no_last_norm",
    {LAST: "self.norm = nn.Identity()"},
    why=_("Pre-norm layers end in a sum, so the stack ends in a norm of its own. It is missing."),
    see="dec-stack",
)
wrong_edit(
    "Decoder",
    "last_norm_in_any_case",
    {LAST: "self.norm = LayerNorm(D)"},
    why=_("A post-norm layer ends in a norm already; a second one is not in the docstring."),
    see="dec-stack",
)
wrong_edit(
    "Decoder",
    "last_norm_never_called",
    {"return self.norm(x)": "return x"},
    why=_("The last norm is built and not called."),
    see="dec-stack",
)
wrong_edit(
    "Decoder",
    "every_layer_reads_the_input",
    {
        "for i, layer in enumerate(self.layers):": "first = x\n"
        "        for i, layer in enumerate(self.layers):",
        CALL: CALL.replace("layer(x,", "layer(first,"),
    },
    why=_("Each layer reads the decoder's input, and only the last one's output is kept."),
    see="dec-stack",
)
wrong_edit(
    "Decoder",
    "memory_for_the_first_layer_alone",
    {CALL: CALL + "\n            memory = x"},
    why=_(
        "From the second layer on the cross-attention reads the decoder's own output. All layers "
        "read the encoder's last one."
    ),
    see="dec-stack",
    rung=3,
)
wrong_edit(
    "Decoder",
    "mask_for_the_first_layer_alone",
    {CALL: CALL + "\n            mask = None"},
    why=_("From the second layer on there is no causal mask, and one layer is enough for a leak."),
    see="dec-stack",
    rung=3,
)
wrong_edit(
    "Decoder",
    "masks_turned_round",
    {CALL: CALL.replace("mask, memory_mask", "memory_mask, mask")},
    why=_("The layers get the two masks in the wrong order."),
    see="dec-stack",
    rung=3,
)
wrong_edit(
    "Decoder",
    "memory_mask_dropped",
    {CALL: CALL.replace("mask, memory_mask", "mask, None")},
    why=_("memory_mask is not handed on: the layers look at the source's padding."),
    see="dec-stack",
)
wrong_edit(
    "Decoder",
    "one_cache_for_all_layers",
    {OWN: OWN.replace("cache[i]", "cache[0]")},
    why=_("All layers write into the first layer's caches: keys of different layers get mixed."),
    see="dec-cached-decoding",
    rung=3,
)
wrong_edit(
    "Decoder",
    "caches_turned_round",
    {OWN: OWN.replace("own, of_memory", "of_memory, own")},
    why=_("The pair is taken apart in the wrong order: the first is the self-attention's."),
    see="dec-cached-decoding",
    rung=3,
)
wrong_edit(
    "Decoder",
    "caches_dropped",
    {CALL: CALL.replace("cache=own, memory_cache=of_memory, ", "")},
    why=_("The caches are not handed on: each piece sees itself alone."),
    see="dec-cached-decoding",
    rung=3,
)
wrong_edit(
    "Decoder",
    "memory_computed_again",
    {CALL: CALL.replace("memory_cache=of_memory, ", "")},
    why=_(
        "memory_cache is not handed on: the result is right, but the memory's keys and values are "
        "computed again for each token."
    ),
    see="dec-cached-decoding",
    rung=3,
)
wrong_edit(
    "Decoder",
    "bias_not_handed_on",
    {CALL: CALL.replace(", **attention", "")},
    why=_("Further keywords, such as a bias, do not reach the layers."),
    see="dec-stack",
)
wrong_edit(
    "Decoder",
    "dropout_not_handed_on",
    {"D, H, F, dropout=dropout, ": "D, H, F, dropout=0.0, "},
    why=_("dropout does not reach the layers."),
    see="dec-stack",
)
wrong_edit(
    "Decoder",
    "norm_placement_not_handed_on",
    {"norm_first=norm_first, activation": "activation"},
    why=_("norm_first does not reach the layers: they are pre-norm always."),
    see="dec-stack",
)
wrong_edit(
    "Decoder",
    "cross_not_handed_on",
    {", cross=cross": ""},
    why=_("cross does not reach the layers: they have a cross-attention in any case."),
    see="dec-only",
)
wrong_edit(
    "Decoder",
    "residual_around_each_layer",
    {CALL: "x = x + " + CALL.removeprefix("x = ")},
    why=_(
        "The layer's input is added to its output once more: the residuals inside the layer have "
        "done that."
    ),
    see="dec-stack",
)
wrong_edit(
    "Decoder",
    "no_mask_with_a_cache",
    {CALL: CALL.replace("memory, mask,", "memory, mask if cache is None else None,")},
    why=_(
        "With a cache the mask is left out. For one new token it hides nothing; in a piece of "
        "several, the first would see the last."
    ),
    see="dec-cached-decoding",
    rung=3,
)
wrong_edit(
    "Decoder",
    "norm_after_every_layer",
    {CALL: "x = self.norm(" + CALL.removeprefix("x = ") + ")", "return self.norm(x)": "return x"},
    why=_("The last norm is applied after every layer; it belongs after the last one alone."),
    see="dec-stack",
)
wrong_edit(
    "Decoder",
    "layers_in_reverse",
    {"enumerate(self.layers)": "reversed(list(enumerate(self.layers)))"},
    why=_("The layers run from the last to the first."),
    see="dec-stack",
)

wrong_edit(
    "Decoder",
    "dropout_left_at_its_default",
    {"D, H, F, dropout=dropout, ": "D, H, F, "},
    form_of="dropout_not_handed_on",
    why=_("dropout is not handed on: the layers keep their default of 0.1."),
    see="dec-stack",
    rung=1,
)
wrong_edit(
    "Decoder",
    "activation_not_handed_on",
    {"activation=activation, cross": "cross"},
    why=_("activation does not reach the layers: they use ReLU always."),
    see="dec-stack",
    rung=1,
)
wrong_edit(
    "Decoder",
    "bias_lost_with_a_cache",
    {
        CALL: "x = layer(x, memory, mask, memory_mask, cache=own, memory_cache=of_memory, **(attention if cache is None else {}))"
    },
    why=_("With a cache, further keywords such as a bias do not reach the layers."),
    see="dec-stack",
    rung=3,
)
wrong_edit(
    "Decoder",
    "norm_after_every_layer_and_once_more",
    {CALL: "x = self.norm(" + CALL.removeprefix("x = ") + ")"},
    form_of="norm_after_every_layer",
    why=_("The last norm is applied after every layer; it belongs after the last one alone."),
    see="dec-stack",
    rung=1,
)
wrong_edit(
    "Decoder",
    "causal_mask_by_itself",
    {
        "        for i, layer": "        T = x.size(1)\n        mask = torch.ones(T, T, dtype=torch.bool).tril() if mask is None else mask\n        for i, layer"
    },
    why=_(
        "Where no mask is given the decoder makes a causal one. Who calls it says what is hidden: no mask, nothing hidden."
    ),
    see="dec-stack",
    rung=2,
)
wrong_edit(
    "Decoder",
    "memory_normalised_again",
    {
        "        for i, layer": "        memory = self.norm(memory) if memory is not None else None\n        for i, layer"
    },
    why=_(
        "The memory goes through the decoder's norm. It is the encoder's last output, and is handed on as it is."
    ),
    see="dec-stack",
    rung=2,
)
wrong_edit(
    "Decoder",
    "run_without_gradients",
    {CALL: "with torch.no_grad():\n                " + CALL},
    why=_(
        "The layers run under no_grad, as in writing: nothing in them can be trained. Who calls the "
        "decoder decides about that."
    ),
    see="dec-stack",
    rung=2,
)
wrong_edit(
    "Decoder",
    "memory_cut_off",
    {
        CALL: CALL.replace(
            "layer(x, memory,", "layer(x, memory if memory is None else memory.detach(),"
        )
    },
    why=_("The memory is detached: the encoder gets no gradient and learns nothing."),
    see="dec-stack",
    rung=2,
)
wrong_edit(
    "Decoder",
    "no_layers_without_a_cache",
    {
        "for i, layer in enumerate(self.layers):": "for i, (layer, _pair) in enumerate(zip(self.layers, cache or [])):"
    },
    why=_(
        "The loop pairs layers with caches. Where there is no cache it has no turn, and no layer runs."
    ),
    see="dec-stack",
    rung=2,
)
wrong_edit(
    "Decoder",
    "pair_given_as_one_cache",
    {OWN: "own, of_memory = (None, None) if cache is None else (cache[i], cache[i])"},
    why=_(
        "Each layer was given the pair of its caches as one. The first is for the self-attention, the second for the memory."
    ),
    see="dec-cached-decoding",
    rung=2,
)
wrong_edit(
    "Decoder",
    "one_cache_for_both_attentions",
    {OWN: "own, of_memory = (None, None) if cache is None else (cache[i][0], cache[i][0])"},
    why=_("Both attentions of a layer write into one cache: keys of target and source get mixed."),
    see="dec-cached-decoding",
    rung=3,
)
right_edit(
    "Decoder",
    "reduced",
    {
        "        for i, layer in enumerate(self.layers):\n            "
        + OWN
        + "\n            "
        + CALL: "        from functools import reduce\n\n"
        "        def step(h, pair):\n"
        "            i, layer = pair\n"
        "            names = ('cache', 'memory_cache')\n"
        "            more = {} if cache is None else dict(zip(names, cache[i]))\n"
        "            return layer(h, memory, mask, memory_mask, **more, **attention)\n\n"
        "        x = reduce(step, enumerate(self.layers), x)",
    },
    style="a fold over the layers",
)
right_edit(
    "Decoder",
    "caches_with_zip",
    {
        "for i, layer in enumerate(self.layers):": "pairs = cache or [(None, None)] * "
        "len(self.layers)\n        for layer, pair in zip(self.layers, pairs):",
        OWN: "own, of_memory = pair",
    },
    style="zip of layers and caches",
)
right_edit(
    "Decoder",
    "layers_appended",
    {
        "self.layers = nn.ModuleList(\n            DecoderLayer(": "self.layers = nn.ModuleList()\n        for _ in range(N):\n"
        "            self.layers.append(DecoderLayer(",
        LAYERS: "cross=cross\n            ))",
    },
    style="append",
)
right_edit(
    "Decoder",
    "norm_by_condition",
    {
        LAST: "self.norm = nn.Identity()\n        if norm_first:\n"
        "            self.norm = LayerNorm(D)"
    },
    style="norm set twice",
)
right_edit(
    "Decoder",
    "all_by_keyword",
    {
        CALL: "settings = dict(attention, cache=own, memory_cache=of_memory)\n"
        "            x = layer(x, memory=memory, mask=mask, memory_mask=memory_mask, "
        "**settings)"
    },
    style="everything by keyword",
)

# --- BorrowedDecoderLayer -------------------------------------------------------------------------


@wrong(
    "BorrowedDecoderLayer",
    why=_(
        "It still stops with an error: the attention has no argument tgt_mask, takes a boolean mask, "
        "and returns a pair, output and weights, which cannot be added to x. The silent faults come "
        "after that."
    ),
    see="dec-borrowed",
    given=True,
)
class borrowed_as_found(nn.Module):
    def __init__(self, D: int, H: int, F: int) -> None:
        super().__init__()
        self.self_attn = MultiHeadAttention(D, H)
        self.cross_attn = MultiHeadAttention(D, H)
        self.ffn = nn.Sequential(nn.Linear(D, F), nn.ReLU(), nn.Linear(F, D))
        self.norm1 = nn.LayerNorm(D)
        self.norm2 = nn.LayerNorm(D)
        self.norm3 = nn.LayerNorm(D)

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor | None = None) -> Tensor:
        T = x.size(1)
        target_mask = torch.ones(T, T, dtype=torch.bool, device=x.device).tril(-1)  # the past
        attended = self.self_attn(x, tgt_mask=target_mask)
        x = self.norm1(x + attended)
        attended, _ = self.cross_attn(query=x, key=memory, value=memory, mask=memory_mask)
        x = self.norm2(attended)
        return self.norm3(x + self.ffn(x))


FIXED_MASK = "target_mask = torch.tril(torch.ones(T, T, dtype=torch.bool, device=x.device))"
FIXED_SELF = "attended, _ = self.self_attn(x, mask=target_mask)"
FIXED_CROSS = "attended, _ = self.cross_attn(query=x, key=memory, value=memory, mask=memory_mask)"
FIXED_SECOND = "x = self.norm2(x + attended)"
STRICT = "target_mask = torch.ones(T, T, dtype=torch.bool, device=x.device).tril(-1)"

wrong_edit(
    "BorrowedDecoderLayer",
    "argument_mended_alone",
    {
        FIXED_MASK: STRICT,
        FIXED_SELF: "attended = self.self_attn(x, mask=target_mask)",
        FIXED_SECOND: "x = self.norm2(attended)",
    },
    form_of="borrowed_as_found",
    why=_(
        "The argument is mended. The attention returns a pair, output and weights, and a pair "
        "cannot be added to x."
    ),
    see="dec-borrowed",
    rung=3,
)
wrong_edit(
    "BorrowedDecoderLayer",
    "only_the_loud_faults_mended",
    {FIXED_MASK: STRICT, FIXED_SECOND: "x = self.norm2(attended)"},
    why=_(
        "It runs, and that is all that was mended. The mask still misses its diagonal, and the "
        "cross-attention still replaces x."
    ),
    see="dec-borrowed",
    rung=2,
)
wrong_edit(
    "BorrowedDecoderLayer",
    "diagonal_still_missing",
    {FIXED_MASK: STRICT},
    why=_(
        "The mask still misses its diagonal: no token sees itself, and the first sees nothing at "
        "all."
    ),
    see="dec-borrowed",
    rung=2,
)
wrong_edit(
    "BorrowedDecoderLayer",
    "residual_still_missing",
    {FIXED_SECOND: "x = self.norm2(attended)"},
    why=_("What the cross-attention gives still replaces x in place of being added to it."),
    see="dec-borrowed",
    rung=2,
)
wrong_edit(
    "BorrowedDecoderLayer",
    "mask_dropped_with_its_argument",
    {FIXED_SELF: "attended, _ = self.self_attn(x)"},
    why=_(
        "The argument that did not exist was deleted, and the mask with it: every token sees the "
        "future."
    ),
    see="dec-borrowed",
)
wrong_edit(
    "BorrowedDecoderLayer",
    "mask_dropped_residual_missing",
    {
        FIXED_SELF: "attended, _ = self.self_attn(x)",
        FIXED_SECOND: "x = self.norm2(attended)",
    },
    why=_(
        "The argument that did not exist was deleted, and the mask with it; and the "
        "cross-attention still replaces x."
    ),
    see="dec-borrowed",
)
wrong_edit(
    "BorrowedDecoderLayer",
    "mask_given_as_key",
    {FIXED_SELF: "attended, _ = self.self_attn(x, target_mask)"},
    why=_("The second argument of the attention is the key: the mask was taken for the keys."),
    see="dec-borrowed",
    rung=3,
)
wrong_edit(
    "BorrowedDecoderLayer",
    "diagonal_on_the_wrong_side",
    {FIXED_MASK: FIXED_MASK.replace("device=x.device))", "device=x.device), 1)")},
    why=_("The mask was widened by two diagonals: each token sees the next one."),
    see="dec-borrowed",
    rung=2,
)
wrong_edit(
    "BorrowedDecoderLayer",
    "mask_above_the_diagonal",
    {FIXED_MASK: FIXED_MASK.replace("torch.tril", "torch.triu")},
    why=_("The mask allows what comes later and hides what came before."),
    see="dec-borrowed",
    rung=2,
)
wrong_edit(
    "BorrowedDecoderLayer",
    "memory_became_the_query",
    {FIXED_CROSS: "attended, _ = self.cross_attn(query=memory, key=x, value=x)"},
    why=_("The memory asks and the decoder answers. It is the decoder that asks."),
    see="dec-borrowed",
    rung=3,
)
wrong_edit(
    "BorrowedDecoderLayer",
    "memory_mask_lost",
    {FIXED_CROSS: "attended, _ = self.cross_attn(query=x, key=memory, value=memory)"},
    why=_("In mending, the mask of the memory's padding was lost."),
    see="dec-borrowed",
)
wrong_edit(
    "BorrowedDecoderLayer",
    "causal_mask_on_the_memory",
    {
        FIXED_CROSS: FIXED_CROSS.replace(
            "mask=memory_mask", "mask=target_mask if T == memory.size(1) else memory_mask"
        )
    },
    why=_(
        "The causal mask went to the cross-attention too. The source is there as a whole: each "
        "token may look at all of it."
    ),
    see="dec-borrowed",
)
wrong_edit(
    "BorrowedDecoderLayer",
    "memory_added_twice",
    {FIXED_SECOND: "x = self.norm2(x + attended + memory.mean(dim=1, keepdim=True))"},
    why=_("The memory itself was added. What is added to x is what the cross-attention gives."),
    see="dec-borrowed",
)
wrong_edit(
    "BorrowedDecoderLayer",
    "self_attention_added_in_place_of_x",
    {
        FIXED_CROSS: "second, _ = self.cross_attn(query=x, key=memory, value=memory, "
        "mask=memory_mask)",
        FIXED_SECOND: "x = self.norm2(attended + second)",
    },
    why=_(
        "What the self-attention gave is added to the cross-attention. The residual is what went "
        "into the sub-layer: x after the first norm."
    ),
    see="dec-borrowed",
    rung=3,
)
wrong_edit(
    "BorrowedDecoderLayer",
    "mask_inverted",
    {FIXED_MASK: "target_mask = ~torch.tril(torch.ones(T, T, dtype=torch.bool, device=x.device))"},
    why=_(
        "The mask was turned into True where attention is forbidden. In this book True is allowed: "
        "now the future alone is seen."
    ),
    see="dec-borrowed",
    rung=2,
)
wrong_edit(
    "BorrowedDecoderLayer",
    "became_pre_norm",
    {
        FIXED_SELF: "attended, _ = self.self_attn(self.norm1(x), mask=target_mask)",
        "x = self.norm1(x + attended)": "x = x + attended",
        FIXED_CROSS: "attended, _ = self.cross_attn(self.norm2(x), memory, mask=memory_mask)",
        FIXED_SECOND: "x = x + attended",
        "return self.norm3(x + self.ffn(x))": "return x + self.ffn(self.norm3(x))",
    },
    why=_(
        "The norms moved in front of the sub-layers. That is a good layer, and another one: the "
        "docstring says post-norm, and what is right already must stay."
    ),
    see="dec-borrowed",
)
wrong_edit(
    "BorrowedDecoderLayer",
    "feed_forward_not_added",
    {"return self.norm3(x + self.ffn(x))": "return self.norm3(self.ffn(x))"},
    why=_("In mending, the residual of the feed-forward network was lost."),
    see="dec-borrowed",
)

wrong_edit(
    "BorrowedDecoderLayer",
    "first_norm_before_the_sum",
    {"x = self.norm1(x + attended)": "x = x + self.norm1(attended)"},
    why=_(
        "What the sub-layer gives is normalised and then added. Post-norm adds first: the norm is of the sum."
    ),
    see="dec-borrowed",
    rung=2,
)
wrong_edit(
    "BorrowedDecoderLayer",
    "second_norm_before_the_sum",
    {FIXED_SECOND: "x = x + self.norm2(attended)"},
    why=_(
        "What the cross-attention gives is normalised and then added. Post-norm adds first: the norm is of the sum."
    ),
    see="dec-borrowed",
    rung=2,
)
wrong_edit(
    "BorrowedDecoderLayer",
    "memory_mask_in_the_self_attention",
    {FIXED_SELF: "attended, _ = self.self_attn(x, mask=memory_mask)"},
    why=_(
        "The self-attention got the mask of the memory: it says nothing of the target, whose future is seen."
    ),
    see="dec-borrowed",
    rung=2,
)
wrong_edit(
    "BorrowedDecoderLayer",
    "mask_added_as_a_number",
    {FIXED_SELF: "attended, _ = self.self_attn(x, bias=target_mask.float())"},
    why=_(
        "The mask went in as a bias, 1 where allowed and 0 where not. It is added to the scores and hides nothing."
    ),
    see="dec-borrowed",
    rung=2,
)
wrong_edit(
    "BorrowedDecoderLayer",
    "x_added_twice",
    {FIXED_SECOND: "x = self.norm2(x + attended + x)"},
    why=_("x is added twice: once is the residual."),
    see="dec-borrowed",
    rung=2,
)
wrong_edit(
    "BorrowedDecoderLayer",
    "parts_under_other_names",
    {
        "self.self_attn = MultiHeadAttention(D, H)": "self.self_attention = MultiHeadAttention(D, H)",
        FIXED_SELF: FIXED_SELF.replace("self_attn", "self_attention"),
    },
    why=_(
        "A part was renamed. What is right already must stay: weights are loaded by these names."
    ),
    see="dec-borrowed",
    rung=1,
)
right_edit(
    "BorrowedDecoderLayer",
    "mask_as_a_bias_of_minus_infinity",
    {
        FIXED_SELF: "bias = torch.zeros(T, T).masked_fill(~target_mask, float('-inf'))\n"
        "        attended, _ = self.self_attn(x, bias=bias)",
    },
    style="minus infinity added to the scores",
)
wrong_edit(
    "BorrowedDecoderLayer",
    "normalised_twice",
    {FIXED_SECOND: "x = self.norm2(self.norm1(x + attended))"},
    why=_("The second sum goes through two norms."),
    see="dec-borrowed",
    rung=2,
)
wrong_edit(
    "BorrowedDecoderLayer",
    "values_from_the_decoder",
    {FIXED_CROSS: FIXED_CROSS.replace("value=memory", "value=x")},
    why=_(
        "The values come from the decoder. Keys and values belong together: both are the memory."
    ),
    see="dec-borrowed",
    rung=3,
)
wrong_edit(
    "BorrowedDecoderLayer",
    "mask_of_numbers",
    {FIXED_MASK: "target_mask = torch.tril(torch.ones(T, T, device=x.device))"},
    form_of="borrowed_as_found",
    why=_(
        "The mask is made of numbers: dtype=torch.bool was lost, and the attention takes a boolean mask."
    ),
    see="dec-borrowed",
    rung=2,
)
right_edit(
    "BorrowedDecoderLayer",
    "with_the_mask_of_this_chapter",
    {FIXED_MASK: "target_mask = causal_mask(T)"},
    style="causal_mask",
)
right_edit(
    "BorrowedDecoderLayer",
    "pairs_indexed",
    {
        FIXED_SELF: "attended = self.self_attn(x, None, None, target_mask)[0]",
        FIXED_CROSS: "attended = self.cross_attn(x, memory, mask=memory_mask)[0]",
    },
    style="the first item of the pair",
)
right_edit(
    "BorrowedDecoderLayer",
    "one_expression_a_line",
    {
        FIXED_SELF
        + "\n        x = self.norm1(x + attended)": "x = self.norm1(self.self_attn(x, mask=target_mask)[0] + x)",
        FIXED_CROSS
        + "\n        "
        + FIXED_SECOND: "x = self.norm2(self.cross_attn(x, memory, memory, memory_mask)[0] + x)",
    },
    style="one expression for each sub-layer",
)

# --- shift_right ----------------------------------------------------------------------------------


@wrong(
    "shift_right",
    why=_("Nothing is shifted: the decoder would read the very token that it has to write."),
    see="dec-shifted",
)
def not_shifted(targets, start_id):
    return targets


@wrong(
    "shift_right",
    why=_("Shifted to the left: the decoder would read the token after the one it has to write."),
    see="dec-shifted",
)
def shifted_left(targets, start_id):
    return torch.cat([targets[:, 1:], torch.full_like(targets[:, :1], start_id)], dim=1)


@wrong(
    "shift_right",
    why=_(
        "The start sign is put in front and nothing leaves at the back: the result is one token "
        "too long."
    ),
    see="dec-shifted",
)
def one_token_too_long(targets, start_id):
    return torch.cat([torch.full_like(targets[:, :1], start_id), targets], dim=1)


@wrong(
    "shift_right",
    why=_("The first target is overwritten by the start sign, and the others stay where they are."),
    see="dec-shifted",
)
def first_token_overwritten(targets, start_id):
    result = targets.clone()
    result[:, 0] = start_id
    return result


@wrong(
    "shift_right",
    why=_("The last target came round to the front: roll turns, the start sign is missing."),
    see="dec-shifted",
)
def rolled_without_the_start(targets, start_id):
    return targets.roll(1, dims=1)


@wrong(
    "shift_right",
    why=_("The shift goes along the batch: sequences changed places."),
    see="dec-shifted",
    rung=2,
)
def shifted_along_the_batch(targets, start_id):
    return torch.cat([torch.full_like(targets[:1], start_id), targets[:-1]], dim=0)


@wrong(
    "shift_right",
    why=_("Shifted by two positions: one target is never read."),
    see="dec-shifted",
    rung=2,
)
def shifted_by_two(targets, start_id):
    T = targets.size(1)
    result = torch.full_like(targets, start_id)
    result[:, 2:] = targets[:, : max(0, T - 2)]
    return result


@wrong(
    "shift_right",
    why=_("The start sign is always 1, whatever was given."),
    see="dec-shifted",
)
def start_is_always_one(targets, start_id):
    return torch.cat([torch.ones_like(targets[:, :1]), targets[:, :-1]], dim=1)


@wrong(
    "shift_right",
    why=_("The result is right, but it was written into the targets, which the loss needs."),
    see="dec-shifted",
    rung=3,
)
def targets_overwritten(targets, start_id):
    targets[:, 1:] = targets[:, :-1].clone()
    targets[:, 0] = start_id
    return targets


@wrong(
    "shift_right",
    why=_("The ids came out as floating numbers: an embedding looks up integers."),
    see="dec-shifted",
)
def floats_for_ids(targets, start_id):
    start = torch.full((targets.size(0), 1), float(start_id))
    return torch.cat([start, targets[:, :-1].float()], dim=1)


@wrong(
    "shift_right",
    why=_(
        "Each step copies from what the step before has just written: the start sign runs through "
        "the whole sequence."
    ),
    see="dec-shifted",
    rung=3,
)
def start_sign_everywhere(targets, start_id):
    result = targets.clone()
    result[:, 0] = start_id
    for t in range(1, targets.size(1)):
        result[:, t] = result[:, t - 1]
    return result


@wrong(
    "shift_right",
    why=_(
        "The start sign was put in front and cut off again: the length stays, and what leaves is the last target."
    ),
    see="dec-shifted",
    rung=1,
)
def one_token_too_short(targets, start_id):
    result = targets.roll(1, dims=1)
    result[:, 0] = start_id
    return result[:, 1:]


@wrong(
    "shift_right",
    why=_(
        "The start column is int64, whatever the targets are, and cat takes the wider of two dtypes."
    ),
    see="dec-shifted",
    rung=3,
)
def always_int64(targets, start_id):
    start = torch.full((targets.size(0), 1), start_id)
    return torch.cat([start, targets[:, :-1]], dim=1)


@wrong(
    "shift_right",
    form_of="always_int64",
    why=_("The result is int64, whatever the targets are."),
    see="dec-shifted",
    rung=3,
)
def converted_to_int64(targets, start_id):
    result = targets.roll(1, dims=1)
    result[:, 0] = start_id
    return result.long()


@wrong(
    "shift_right",
    why=_("There is one start sign, so it fits a batch of one: each sequence needs its own."),
    see="dec-shifted",
    rung=2,
)
def one_start_for_a_batch_of_one(targets, start_id):
    start = torch.tensor([[start_id]], dtype=targets.dtype)
    return torch.cat([start, targets[:, :-1]], dim=1)


@wrong(
    "shift_right",
    why=_(
        "A token was taken out, the one with id 2. All targets but the last are read, whatever they are."
    ),
    see="dec-shifted",
    rung=3,
)
def end_signs_taken_out(targets, start_id):
    result = torch.full_like(targets, start_id)
    result[:, 1:] = targets[:, :-1]
    return torch.where(result == 2, torch.zeros_like(result), result)


@wrong(
    "shift_right",
    why=_(
        "Each step copies from what the step before has just written: the first target runs through the whole sequence."
    ),
    see="dec-shifted",
    rung=3,
)
def first_target_repeated(targets, start_id):
    result = targets.clone()
    for t in range(1, targets.size(1)):
        result[:, t] = result[:, t - 1]
    result[:, 0] = start_id
    return result


@wrong(
    "shift_right",
    why=_(
        "The start sign was put where the last target stood. It comes first, and the targets move one place to the right."
    ),
    see="dec-shifted",
    rung=1,
)
def start_sign_at_the_end(targets, start_id):
    return torch.cat([targets[:, :-1], torch.full_like(targets[:, :1], start_id)], dim=1)


@wrong(
    "shift_right",
    why=_(
        "The targets were rolled to the left: each position would read what comes after what it has to write."
    ),
    see="dec-shifted",
    rung=1,
)
def rolled_to_the_left(targets, start_id):
    result = targets.roll(-1, dims=1)
    result[:, 0] = start_id
    return result


@right("shift_right", style="one pad, in front and behind")
def padded_and_cut(targets, start_id):
    return nn.functional.pad(targets, (1, -1), value=start_id)


@right("shift_right", style="roll, then the start")
def rolled_with_start(targets, start_id):
    result = targets.roll(1, dims=1)
    result[:, 0] = start_id
    return result


@right("shift_right", style="an empty tensor, filled")
def filled(targets, start_id):
    result = torch.empty_like(targets)
    result[:, 0] = start_id
    result[:, 1:] = targets[:, :-1]
    return result


@right("shift_right", style="pad in front")
def padded_in_front(targets, start_id):
    return nn.functional.pad(targets, (1, 0), value=start_id)[:, :-1]


# --- teacher_forcing_loss -------------------------------------------------------------------------


@wrong(
    "teacher_forcing_loss",
    why=_("The model reads the targets as they are: it has to repeat what it was given."),
    see="dec-shifted",
)
def reads_what_it_writes(model, source, targets, start_id, padding_id=0):
    return cross_entropy(model(source, targets), targets, ignore_id=padding_id)


@wrong(
    "teacher_forcing_loss",
    why=_(
        "The logits are compared with what the model read, not with what comes next: it learns to "
        "copy."
    ),
    see="dec-shifted",
)
def compared_with_its_input(model, source, targets, start_id, padding_id=0):
    inputs = shift_right(targets, start_id)
    return cross_entropy(model(source, inputs), inputs, ignore_id=padding_id)


@wrong(
    "teacher_forcing_loss",
    why=_(
        "Shifted twice: once for the model, and once more between logits and targets. Each logit "
        "is asked for the token after the next."
    ),
    see="dec-shifted",
    rung=1,
)
def shifted_twice(model, source, targets, start_id, padding_id=0):
    logits = model(source, shift_right(targets, start_id))
    return cross_entropy(logits[:, :-1], targets[:, 1:], ignore_id=padding_id)


@wrong(
    "teacher_forcing_loss",
    why=_(
        "Without a start sign: the targets without the last are read, and the first is never "
        "asked for."
    ),
    see="dec-shifted",
)
def first_target_never_asked(model, source, targets, start_id, padding_id=0):
    logits = model(source, targets[:, :-1])
    return cross_entropy(logits, targets[:, 1:], ignore_id=padding_id)


@wrong(
    "teacher_forcing_loss",
    why=_("Padding counts like any other target: the model is trained to write it."),
    see="dec-shifted",
    rung=2,
)
def padding_counts(model, source, targets, start_id, padding_id=0):
    return cross_entropy(model(source, shift_right(targets, start_id)), targets)


@wrong(
    "teacher_forcing_loss",
    why=_(
        "The losses at padding are set to 0 and still counted in the mean: it sinks with every "
        "token of padding."
    ),
    see="dec-shifted",
    rung=2,
)
def divided_by_padding_too(model, source, targets, start_id, padding_id=0):
    logits = model(source, shift_right(targets, start_id))
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    return losses.masked_fill(targets == padding_id, 0.0).mean()


@wrong(
    "teacher_forcing_loss",
    why=_("The sum of the losses, not their mean: it grows with the batch."),
    see="dec-shifted",
    rung=2,
)
def sum_of_the_losses(model, source, targets, start_id, padding_id=0):
    logits = model(source, shift_right(targets, start_id))
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=padding_id, reduction="sum"
    )


@wrong(
    "teacher_forcing_loss",
    why=_(
        "First the mean of each sequence, then the mean of those: tokens of short sequences weigh "
        "more. The exercise asks for the mean over all targets that count."
    ),
    see="dec-shifted",
    rung=2,
)
def mean_of_sequence_means(model, source, targets, start_id, padding_id=0):
    logits = model(source, shift_right(targets, start_id))
    each = [
        cross_entropy(row, target, ignore_id=padding_id)
        for row, target in zip(logits, targets, strict=True)
    ]
    return torch.stack(each).mean()


@wrong(
    "teacher_forcing_loss",
    why=_("A softmax stands before the cross-entropy, which takes logits: it is applied twice."),
    see="dec-shifted",
)
def softmax_twice(model, source, targets, start_id, padding_id=0):
    logits = model(source, shift_right(targets, start_id))
    return cross_entropy(torch.softmax(logits, dim=-1), targets, ignore_id=padding_id)


@wrong(
    "teacher_forcing_loss",
    why=_("The padding's id is taken to be 0, whatever was given."),
    see="dec-shifted",
)
def ignores_zero_always(model, source, targets, start_id, padding_id=0):
    return cross_entropy(model(source, shift_right(targets, start_id)), targets, ignore_id=0)


@wrong(
    "teacher_forcing_loss",
    why=_("The source is shifted as well: only what the decoder reads is."),
    see="dec-shifted",
)
def source_shifted_too(model, source, targets, start_id, padding_id=0):
    logits = model(shift_right(source, start_id), shift_right(targets, start_id))
    return cross_entropy(logits, targets, ignore_id=padding_id)


@wrong(
    "teacher_forcing_loss",
    why=_(
        "A loop, one call for each target. The loss is right, but the T calls do one after the "
        "other what one call does for all positions at once."
    ),
    see="dec-shifted",
    rung=3,
)
def one_call_for_each_token(model, source, targets, start_id, padding_id=0):
    inputs = shift_right(targets, start_id)
    rows = [model(source, inputs[:, : t + 1])[:, -1] for t in range(targets.size(1))]
    return cross_entropy(torch.stack(rows, dim=1), targets, ignore_id=padding_id)


@wrong(
    "teacher_forcing_loss",
    why=_("The probabilities are used without their logarithm: this is no cross-entropy."),
    see="dec-shifted",
)
def no_logarithm(model, source, targets, start_id, padding_id=0):
    p = torch.softmax(model(source, shift_right(targets, start_id)), dim=-1)
    chosen = p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    real = targets != padding_id
    return (1 - chosen)[real].mean()


@wrong(
    "teacher_forcing_loss",
    why=_("The softmax is computed as it is written, with exp of the logits: large ones overflow."),
    see="dec-shifted",
    rung=3,
)
def softmax_that_overflows(model, source, targets, start_id, padding_id=0):
    powers = torch.exp(model(source, shift_right(targets, start_id)))
    p = powers / powers.sum(dim=-1, keepdim=True)
    losses = -torch.log(p.gather(-1, targets.unsqueeze(-1)).squeeze(-1))
    return losses[targets != padding_id].mean()


@wrong(
    "teacher_forcing_loss",
    why=_(
        "The model gets its two arguments in the wrong order: source first, then what the decoder reads."
    ),
    see="dec-shifted",
    rung=1,
)
def source_and_inputs_exchanged(model, source, targets, start_id, padding_id=0):
    logits = model(shift_right(targets, start_id), source)
    return cross_entropy(logits, targets, ignore_id=padding_id)


@wrong(
    "teacher_forcing_loss",
    why=_(
        "What counts is decided by the inputs. They are shifted: the first padding of each sequence still counts. Ask the targets."
    ),
    see="dec-shifted",
    rung=2,
)
def padding_of_the_inputs(model, source, targets, start_id, padding_id=0):
    inputs = shift_right(targets, start_id)
    log_p = model(source, inputs).log_softmax(dim=-1)
    losses = -log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return losses[inputs != padding_id].mean()


@wrong(
    "teacher_forcing_loss",
    why=_("The logarithm is to base 2. The loss is in nats, the natural logarithm."),
    see="dec-shifted",
    rung=1,
)
def loss_in_bits(model, source, targets, start_id, padding_id=0):
    logits = model(source, shift_right(targets, start_id))
    return cross_entropy(logits, targets, ignore_id=padding_id) / torch.log(torch.tensor(2.0))


@wrong(
    "teacher_forcing_loss",
    why=_(
        "Logits and targets were flattened in two orders: each row of logits is compared with the token of another place."
    ),
    see="dec-shifted",
    rung=2,
)
def targets_in_another_order(model, source, targets, start_id, padding_id=0):
    logits = model(source, shift_right(targets, start_id))
    return nn.functional.cross_entropy(
        logits.reshape(-1, logits.size(-1)), targets.T.reshape(-1), ignore_index=padding_id
    )


@wrong(
    "teacher_forcing_loss",
    why=_(
        "item() makes a Python number of the loss: it has no gradient, and nothing can be trained by it."
    ),
    see="dec-shifted",
    rung=1,
)
def a_number_for_a_tensor(model, source, targets, start_id, padding_id=0):
    logits = model(source, shift_right(targets, start_id))
    return cross_entropy(logits, targets, ignore_id=padding_id).item()


@wrong(
    "teacher_forcing_loss",
    why=_(
        "detach cuts the loss off from the model: the number is right, and nothing can be trained by it."
    ),
    see="dec-shifted",
    rung=3,
)
def cut_from_the_model(model, source, targets, start_id, padding_id=0):
    logits = model(source, shift_right(targets, start_id))
    return cross_entropy(logits.detach(), targets, ignore_id=padding_id)


@wrong(
    "teacher_forcing_loss",
    form_of="cut_from_the_model",
    why=_(
        "The number was taken out and put into a new tensor: it has no gradient, and nothing can be trained by it."
    ),
    see="dec-shifted",
    rung=3,
)
def a_new_tensor_of_the_number(model, source, targets, start_id, padding_id=0):
    logits = model(source, shift_right(targets, start_id))
    return torch.tensor(cross_entropy(logits, targets, ignore_id=padding_id).item())


@wrong(
    "teacher_forcing_loss",
    form_of="padding_counts",
    why=_("It is the start sign that is left out, not the padding. The start sign is no target."),
    see="dec-shifted",
    rung=1,
)
def start_sign_ignored(model, source, targets, start_id, padding_id=0):
    logits = model(source, shift_right(targets, start_id))
    return cross_entropy(logits, targets, ignore_id=start_id)


@wrong(
    "teacher_forcing_loss",
    why=_("The exponential of the loss is returned: that is the perplexity."),
    see="dec-shifted",
    rung=1,
)
def perplexity_returned(model, source, targets, start_id, padding_id=0):
    logits = model(source, shift_right(targets, start_id))
    return cross_entropy(logits, targets, ignore_id=padding_id).exp()


@wrong(
    "teacher_forcing_loss",
    why=_("Padding was put in front of the targets in place of the start sign."),
    see="dec-shifted",
    rung=1,
)
def padding_in_front(model, source, targets, start_id, padding_id=0):
    logits = model(source, shift_right(targets, padding_id))
    return cross_entropy(logits, targets, ignore_id=padding_id)


@right("teacher_forcing_loss", style="torch's cross-entropy")
def torch_cross_entropy(model, source, targets, start_id, padding_id=0):
    logits = model(source, shift_right(targets, start_id))
    return nn.functional.cross_entropy(
        logits.reshape(-1, logits.size(-1)), targets.reshape(-1), ignore_index=padding_id
    )


@right("teacher_forcing_loss", style="log-softmax and gather")
def log_softmax_and_gather(model, source, targets, start_id, padding_id=0):
    log_p = model(source, shift_right(targets, start_id)).log_softmax(dim=-1)
    losses = -log_p.gather(2, targets[..., None])[..., 0]
    real = (targets != padding_id).float()
    return (losses * real).sum() / real.sum()


@right("teacher_forcing_loss", style="a start column joined by hand, a boolean index")
def boolean_index(model, source, targets, start_id, padding_id=0):
    start = targets.new_full((targets.size(0), 1), start_id)
    logits = model(source, torch.cat([start, targets], dim=1)[:, :-1])
    real = targets != padding_id
    return cross_entropy(logits[real], targets[real])


# --- Transformer ----------------------------------------------------------------------------------

EMBED_S = "x = self.positions(self.source_embedding(source))  # (B, S, D)"
ENCODE = "return self.encoder(x, self.source_mask(source))"
EMBED_T = "x = self.positions(self.target_embedding(target), offset)  # (B, T, D)"
DECODE = "x = self.decoder(x, memory, mask, memory_mask, cache=cache)"
OUT = "return self.output(x)  # (B, T, V_target)"
WHOLE = "return self.decode(target, self.encode(source), self.source_mask(source))"

wrong_edit(
    "Transformer",
    "source_without_positions",
    {EMBED_S: "x = self.source_embedding(source)"},
    why=_("The source has no positions: to the encoder it is a bag of words."),
    see="dec-whole",
)
wrong_edit(
    "Transformer",
    "target_without_positions",
    {EMBED_T: "x = self.target_embedding(target)"},
    why=_("The target has no positions."),
    see="dec-whole",
)
wrong_edit(
    "Transformer",
    "source_read_by_the_target_embedding",
    {EMBED_S: EMBED_S.replace("source_embedding", "target_embedding")},
    why=_(
        "The source's ids are looked up in the target's embedding. Each vocabulary has its own "
        "matrix."
    ),
    see="dec-whole",
)
wrong_edit(
    "Transformer",
    "target_read_by_the_source_embedding",
    {EMBED_T: "x = self.positions(self.source_embedding(target % 13), offset)"},
    why=_(
        "The target's ids are looked up in the source's embedding. Each vocabulary has its own "
        "matrix."
    ),
    see="dec-whole",
)
wrong_edit(
    "Transformer",
    "encoder_sees_padding",
    {ENCODE: "return self.encoder(x)"},
    why=_("The source's mask does not reach the encoder: real tokens attend to padding."),
    see="dec-whole",
    rung=2,
)
wrong_edit(
    "Transformer",
    "decoder_sees_source_padding",
    {WHOLE: "return self.decode(target, self.encode(source))"},
    why=_(
        "The source's mask reaches the encoder and not the cross-attention: the decoder looks at "
        "padding."
    ),
    see="dec-whole",
    rung=2,
)
wrong_edit(
    "Transformer",
    "encoder_left_out",
    {ENCODE: "return x"},
    why=_("The encoder is never called: the memory is the embedded source."),
    see="dec-whole",
)
wrong_edit(
    "Transformer",
    "no_causal_mask_in_decode",
    {DECODE: DECODE.replace("memory, mask, memory_mask", "memory, None, memory_mask")},
    why=_("The decoder gets no causal mask: it reads the tokens that it has to predict."),
    see="dec-no-future",
)
wrong_edit(
    "Transformer",
    "decoder_gets_the_masks_turned_round",
    {DECODE: DECODE.replace("mask, memory_mask", "memory_mask, mask")},
    why=_("The decoder gets its two masks in the wrong order."),
    see="dec-whole",
    rung=3,
)
wrong_edit(
    "Transformer",
    "memory_mask_not_handed_on",
    {DECODE: DECODE.replace("mask, memory_mask", "mask, None")},
    why=_("decode takes a memory_mask and does not hand it on."),
    see="dec-whole",
    rung=2,
)
wrong_edit(
    "Transformer",
    "positions_start_anew",
    {EMBED_T: EMBED_T.replace(", offset", "")},
    why=_("With a cache, each new token gets position 0: the positions have to go on from offset."),
    see="dec-cached-decoding",
    rung=3,
)
wrong_edit(
    "Transformer",
    "cache_not_handed_on",
    {DECODE: DECODE.replace(", cache=cache", "")},
    why=_("The cache does not reach the decoder: each new token sees itself alone."),
    see="dec-cached-decoding",
    rung=3,
)
wrong_edit(
    "Transformer",
    "probabilities_for_logits",
    {OUT: "return torch.softmax(self.output(x), dim=-1)"},
    why=_(
        "The softmax is taken already. The loss and the sampling take logits, and would take it "
        "again."
    ),
    see="dec-whole",
)
wrong_edit(
    "Transformer",
    "output_map_left_out",
    {OUT: "return x"},
    why=_(
        "The decoder's output of width D is returned: the output map to the vocabulary is missing."
    ),
    see="dec-whole",
)
wrong_edit(
    "Transformer",
    "last_position_alone",
    {OUT: "return self.output(x)[:, -1:]"},
    why=_("Logits for the last position alone; training needs those of all T positions."),
    see="dec-whole",
)
wrong_edit(
    "Transformer",
    "decoder_reads_the_source",
    {WHOLE: "return self.decode(source, self.encode(source), self.source_mask(source))"},
    why=_("The decoder is given the source in place of the target."),
    see="dec-whole",
)
wrong_edit(
    "Transformer",
    "scaled_once_more",
    {
        EMBED_S: "x = self.positions(self.source_embedding(source) * self.output.in_features**0.5)",
        EMBED_T: "x = self.positions(self.target_embedding(target) * self.output.in_features**0.5, "
        "offset)",
    },
    why=_("The factor √D is applied again: the embedding has it in it already."),
    see="dec-whole",
)
wrong_edit(
    "Transformer",
    "target_shifted_inside",
    {
        WHOLE: "return self.decode(shift_right(target, 1), self.encode(source), "
        "self.source_mask(source))"
    },
    why=_(
        "The target is shifted inside the model. It comes shifted already: the loss does that, and "
        "in writing there is nothing to shift."
    ),
    see="dec-shifted",
)
wrong_edit(
    "Transformer",
    "memory_pooled_to_one_vector",
    {
        WHOLE: "memory = self.encode(source)\n"
        "        memory = memory.mean(dim=1, keepdim=True).expand_as(memory)\n"
        "        return self.decode(target, memory, self.source_mask(source))"
    },
    why=_(
        "The memory was pooled to one vector. That is the bottleneck which attention was invented "
        "to remove: the decoder needs a vector for each source token."
    ),
    see="dec-whole",
)

wrong_edit(
    "Transformer",
    "source_read_from_left_to_right",
    {
        ENCODE: "S = source.size(1)\n        past = torch.ones(S, S, dtype=torch.bool).tril()\n        return self.encoder(x, self.source_mask(source) & past)"
    },
    why=_(
        "The encoder has a causal mask. The source is there as a whole: each of its tokens may see all of it."
    ),
    see="dec-whole",
    rung=2,
)
wrong_edit(
    "Transformer",
    "source_scaled_once_more",
    {EMBED_S: "x = self.positions(self.source_embedding(source) * self.output.in_features**0.5)"},
    form_of="scaled_once_more",
    why=_("The factor √D is applied again: the embedding has it in it already."),
    see="dec-whole",
    rung=1,
)
wrong_edit(
    "Transformer",
    "scale_taken_out",
    {
        EMBED_T: "x = self.positions(self.target_embedding(target) / self.output.in_features**0.5, offset)"
    },
    why=_(
        "The embedded target is divided by √D: the factor belongs to the embedding, as it was built."
    ),
    see="dec-whole",
    rung=1,
)
wrong_edit(
    "Transformer",
    "log_probabilities_for_logits",
    {OUT: "return torch.log_softmax(self.output(x), dim=-1)"},
    why=_(
        "The logarithms of the probabilities are returned. The loss and the sampling take logits, and normalise themselves."
    ),
    see="dec-whole",
    rung=1,
)
wrong_edit(
    "Transformer",
    "target_in_the_source_embedding",
    {EMBED_T: EMBED_T.replace("target_embedding", "source_embedding")},
    form_of="target_read_by_the_source_embedding",
    why=_(
        "The target's ids are looked up in the source's embedding: they belong to another vocabulary, of another size."
    ),
    see="dec-whole",
    rung=1,
)
wrong_edit(
    "Transformer",
    "output_tied_in_any_case",
    {OUT: "return x @ self.target_embedding.weight.T"},
    why=_(
        "The logits are made with the target's embedding. That is what shared=True asks for; otherwise output has a matrix of its own."
    ),
    see="dec-whole",
    rung=2,
)
wrong_edit(
    "Transformer",
    "decoder_takes_zero_for_padding",
    {WHOLE: WHOLE.replace("self.source_mask(source)", "padding_mask(source).unsqueeze(1)")},
    why=_(
        "The mask for the cross-attention takes 0 for padding, whatever padding_id says: source_mask knows it."
    ),
    see="dec-whole",
    rung=3,
)
wrong_edit(
    "Transformer",
    "encoder_takes_zero_for_padding",
    {ENCODE: "return self.encoder(x, padding_mask(source).unsqueeze(1))"},
    why=_(
        "The encoder's mask takes 0 for padding, whatever padding_id says: source_mask knows it."
    ),
    see="dec-whole",
    rung=3,
)
wrong_edit(
    "Transformer",
    "source_and_target_exchanged",
    {WHOLE: "return self.decode(source, self.encode(target), self.source_mask(target))"},
    why=_("The encoder reads the target and the decoder the source."),
    see="dec-whole",
    rung=1,
)
wrong_edit(
    "Transformer",
    "positions_one_too_early",
    {EMBED_T: EMBED_T.replace("offset)", "max(offset - 1, 0))")},
    why=_(
        "With a cache the positions are one too small: the first new token stands at place offset, since places count from 0."
    ),
    see="dec-cached-decoding",
    rung=3,
)
wrong_edit(
    "Transformer",
    "last_norm_twice",
    {OUT: "return self.output(self.decoder.norm(x))"},
    why=_("The last norm is applied once more: the decoder has done it."),
    see="dec-whole",
    rung=2,
)
wrong_edit(
    "Transformer",
    "mask_kept_from_encode",
    {
        ENCODE: "self.kept = self.source_mask(source)\n        return self.encoder(x, self.kept)",
        DECODE: DECODE.replace("memory_mask,", "getattr(self, 'kept', None),"),
    },
    why=_(
        "decode uses the mask of the last source that was encoded, and not the one that it is given: two sources at a time are mixed up."
    ),
    see="dec-whole",
    rung=3,
)
wrong_edit(
    "Transformer",
    "encoder_cut_off",
    {WHOLE: WHOLE.replace("self.encode(source)", "self.encode(source).detach()")},
    why=_("The memory is detached: the encoder gets no gradient and stays as it was initialised."),
    see="dec-whole",
    rung=3,
)
wrong_edit(
    "Transformer",
    "encoder_without_gradients",
    {ENCODE: "with torch.no_grad():\n            return self.encoder(x, self.source_mask(source))"},
    form_of="encoder_cut_off",
    why=_("The encoder runs under no_grad: it gets no gradient and stays as it was initialised."),
    see="dec-whole",
    rung=3,
)
wrong_edit(
    "Transformer",
    "mask_set_by_encode",
    {
        ENCODE: "self.kept = self.source_mask(source)\n        return self.encoder(x, self.kept)",
        DECODE: DECODE.replace("memory_mask,", "self.kept,"),
    },
    form_of="mask_kept_from_encode",
    why=_(
        "decode uses the mask of the last source that was encoded, and not the one that it is given; where nothing was encoded there is none."
    ),
    see="dec-whole",
    rung=3,
)
wrong_edit(
    "Transformer",
    "mask_of_the_target_for_the_memory",
    {WHOLE: WHOLE.replace("self.source_mask(source)", "self.source_mask(target)")},
    why=_(
        "The mask for the cross-attention was made of the target. The memory has a vector for each source token."
    ),
    see="dec-whole",
    rung=2,
)
wrong_edit(
    "Transformer",
    "positions_after_the_source",
    {EMBED_T: EMBED_T.replace("offset)", "memory.size(1) + offset)")},
    why=_(
        "The target's positions go on after the source's. They begin at 0: each sequence has its own."
    ),
    see="dec-whole",
    rung=2,
)
wrong_edit(
    "Transformer",
    "ids_for_logits",
    {OUT: "return self.output(x).argmax(dim=-1)"},
    why=_("The most probable ids are returned. Loss and sampling need the logits."),
    see="dec-whole",
    rung=1,
)
wrong_edit(
    "Transformer",
    "decoder_runs_twice",
    {DECODE: DECODE + "\n        " + DECODE},
    why=_("The decoder runs twice, the second time on what it gave."),
    see="dec-whole",
    rung=1,
)
wrong_edit(
    "Transformer",
    "memory_added_to_the_target",
    {DECODE: "x = x + memory.mean(dim=1, keepdim=True)\n        " + DECODE},
    why=_(
        "The mean of the memory is added to the target. The decoder looks at the memory by cross-attention alone."
    ),
    see="dec-whole",
    rung=1,
)
right_edit(
    "Transformer",
    "step_by_step",
    {
        WHOLE: "mask = self.source_mask(source)\n"
        "        memory = self.encode(source)\n"
        "        return self.decode(target, memory, mask)",
        EMBED_S: "embedded = self.source_embedding(source)\n"
        "        x = self.positions(embedded, 0)",
    },
    style="one step a line",
)
right_edit(
    "Transformer",
    "mask_made_by_hand",
    {ENCODE: "return self.encoder(x, (source != self.padding_id)[:, None, None])"},
    style="the source's mask written out",
)
right_edit(
    "Transformer",
    "output_as_a_product",
    {
        OUT: "return x @ self.output.weight.T",
        DECODE: "x = self.decoder(x, memory, mask=mask, memory_mask=memory_mask, cache=cache)",
    },
    style="the output map as a matrix product",
)

# --- greedy_decode --------------------------------------------------------------------------------

PICK = "token = model(ids)[:, -1].argmax(dim=-1)  # (B,)"
FILL = "token = token.masked_fill(complete, padding_id)"
GROW = "ids = torch.cat([ids, token.unsqueeze(1)], dim=1)"
DONE = "complete = complete | (token == end_id)"
STOP = "        if complete.all():\n            break"

wrong_edit(
    "greedy_decode",
    "first_row_of_the_logits",
    {PICK: PICK.replace("[:, -1]", "[:, 0]")},
    why=_("The first row of the logits says what comes after the first token, again and again."),
    see="dec-loop",
)
wrong_edit(
    "greedy_decode",
    "row_before_the_last",
    {PICK: PICK.replace("model(ids)[:, -1]", "model(ids)[:, max(0, ids.size(1) - 2)]")},
    why=_("The row before the last says what comes after the token before the last."),
    see="dec-loop",
)
wrong_edit(
    "greedy_decode",
    "least_probable_token",
    {PICK: PICK.replace("argmax", "argmin")},
    why=_("The token with the smallest logit is taken."),
    see="dec-loop",
)
wrong_edit(
    "greedy_decode",
    "stops_at_the_first_end",
    {"if complete.all():": "if complete.any():"},
    why=_("The loop stops when one sequence is complete, while the others are in mid-sentence."),
    see="dec-loop",
    rung=2,
)
wrong_edit(
    "greedy_decode",
    "never_stops_early",
    {STOP: "        pass"},
    why=_(
        "The result goes on to max_new, though every sequence is complete before: the last columns "
        "are padding alone. The loop stops when all are complete."
    ),
    see="dec-loop",
)
wrong_edit(
    "greedy_decode",
    "writes_on_after_the_end",
    {FILL: "pass"},
    why=_("A sequence that is complete is written on: what comes after its end sign is noise."),
    see="dec-loop",
    rung=2,
)
wrong_edit(
    "greedy_decode",
    "filled_with_end_signs",
    {FILL: "token = token.masked_fill(complete, end_id)"},
    why=_("Complete sequences are filled up with end signs, not with padding."),
    see="dec-loop",
    rung=2,
)
wrong_edit(
    "greedy_decode",
    "padding_is_zero_always",
    {FILL: "token = token.masked_fill(complete, 0)"},
    why=_("Complete sequences are filled up with 0, whatever padding_id says."),
    see="dec-loop",
)


@wrong(
    "greedy_decode",
    why=_("The loop ends before the end sign is appended: it belongs to what was written."),
    see="dec-loop",
)
def end_sign_left_out(model, start, end_id, max_new, padding_id=0):
    ids = start
    complete = torch.zeros(ids.size(0), dtype=torch.bool)
    for _step in range(max_new):
        token = model(ids)[:, -1].argmax(dim=-1)
        complete = complete | (token == end_id)
        if complete.all():
            break
        ids = torch.cat([ids, token.masked_fill(complete, padding_id).unsqueeze(1)], dim=1)
    return ids


wrong_edit(
    "greedy_decode",
    "end_sign_overwritten_by_padding",
    {
        FILL: "complete = complete | (token == end_id)\n        token = token.masked_fill("
        "complete, padding_id)",
        "        complete = complete | (token == end_id)\n        if complete": "        if complete",
    },
    why=_(
        "Who ends in this turn is filled with padding in the same turn: the end sign is never "
        "written."
    ),
    see="dec-loop",
    rung=3,
)
wrong_edit(
    "greedy_decode",
    "forgets_who_is_complete",
    {DONE: "complete = token == end_id"},
    why=_(
        "complete says only who ended in this turn. In the next it is forgotten, and the loop ends "
        "only when all end in the same turn."
    ),
    see="dec-loop",
    rung=3,
)
wrong_edit(
    "greedy_decode",
    "end_sign_in_the_prompt_counts",
    {
        DONE: "complete = (ids == end_id).any(dim=1)",
        "complete = torch.zeros(ids.size(0), dtype=torch.bool, device=ids.device)  # (B,)": "complete = (ids == end_id).any(dim=1)",
    },
    why=_("The prompt is searched for the end sign too. Only what is written can end a sequence."),
    see="dec-loop",
    rung=3,
)
wrong_edit(
    "greedy_decode",
    "limit_counts_the_start",
    {"for _ in range(max_new):": "for _ in range(max_new - start.size(1)):"},
    why=_("max_new counts new tokens; here the start was counted as well."),
    see="dec-loop",
)
wrong_edit(
    "greedy_decode",
    "one_turn_too_many",
    {"for _ in range(max_new):": "for _ in range(max_new + 1):"},
    why=_("The loop takes one turn more than max_new."),
    see="dec-loop",
)
wrong_edit(
    "greedy_decode",
    "reads_the_last_token_alone",
    {PICK: PICK.replace("model(ids)", "model(ids[:, -1:])")},
    why=_(
        "The model is given the last token alone. Without a cache it has to read everything so far."
    ),
    see="dec-loop",
)
wrong_edit(
    "greedy_decode",
    "start_not_returned",
    {"return ids": "return ids[:, start.size(1) :]"},
    why=_("Only what is new is returned; the start belongs to the result."),
    see="dec-loop",
)
wrong_edit(
    "greedy_decode",
    "draws_a_token",
    {PICK: "token = torch.multinomial(torch.softmax(model(ids)[:, -1] / 3, dim=-1), 1)[:, 0]"},
    why=_("The token is drawn by chance. Greedy decoding takes the most probable one."),
    see="dec-loop",
)
wrong_edit(
    "greedy_decode",
    "one_token_for_the_whole_batch",
    {PICK: "token = model(ids)[:, -1].mean(dim=0).argmax().expand(ids.size(0))"},
    why=_("The logits are averaged over the batch: every sequence gets the same token."),
    see="dec-loop",
    rung=2,
)


wrong_edit(
    "greedy_decode",
    "prompt_searched_for_the_end_sign",
    {DONE: "complete = (ids == end_id).any(dim=1)"},
    form_of="end_sign_in_the_prompt_counts",
    why=_(
        "Whether a sequence is complete is asked of all its ids, the prompt included. Only what is written can end a sequence."
    ),
    see="dec-loop",
    rung=3,
)
wrong_edit(
    "greedy_decode",
    "padding_ends_a_sequence",
    {DONE: "complete = complete | (token == end_id) | (token == padding_id)"},
    why=_(
        "A sequence ends where the model writes the id of padding. It is complete when the end sign has been written, and not before."
    ),
    see="dec-loop",
    rung=3,
)
wrong_edit(
    "greedy_decode",
    "token_of_the_first_for_all",
    {PICK: "token = model(ids).argmax(dim=-1)[0, -1].expand(ids.size(0))"},
    form_of="one_token_for_the_whole_batch",
    why=_("The token of the first sequence is written into all of them."),
    see="dec-loop",
    rung=2,
)
wrong_edit(
    "greedy_decode",
    "waits_for_the_first_sequence",
    {"if complete.all():": "if complete[0]:"},
    why=_("The loop ends when the first sequence is complete, while others are in mid-sentence."),
    see="dec-loop",
    rung=2,
)


@wrong(
    "greedy_decode",
    why=_(
        "It works for a single sequence: item() and an if need one number, and a batch has one for "
        "each sequence. Keep who is complete in a tensor of shape (B,)."
    ),
    see="dec-loop",
    rung=2,
)
def one_sequence_only(model, start, end_id, max_new, padding_id=0):
    ids = start
    for _step in range(max_new):
        token = model(ids)[:, -1].argmax(dim=-1, keepdim=True)
        ids = torch.cat([ids, token], dim=1)
        if token.item() == end_id:
            break
    return ids


@wrong(
    "greedy_decode",
    form_of="end_sign_left_out",
    why=_(
        "The loop ends before the last column is appended: the end sign that completes the batch "
        "is missing."
    ),
    see="dec-loop",
)
def breaks_before_appending(model, start, end_id, max_new, padding_id=0):
    ids = start
    complete = torch.zeros(ids.size(0), dtype=torch.bool)
    for _step in range(max_new):
        token = model(ids)[:, -1].argmax(dim=-1).masked_fill(complete, padding_id)
        complete = complete | (token == end_id)
        if complete.all():
            break
        ids = torch.cat([ids, token.unsqueeze(1)], dim=1)
    return ids


@wrong(
    "greedy_decode",
    why=_(
        "Whether all are complete is asked after the model was called: its last logits are thrown "
        "away. Ask before, or at the end of the turn."
    ),
    see="dec-loop",
    rung=2,
)
def one_call_too_many(model, start, end_id, max_new, padding_id=0):
    ids = start
    complete = torch.zeros(ids.size(0), dtype=torch.bool)
    for _step in range(max_new):
        token = model(ids)[:, -1].argmax(dim=-1)
        if complete.all():
            break
        token = token.masked_fill(complete, padding_id)
        complete = complete | (token == end_id)
        ids = torch.cat([ids, token.unsqueeze(1)], dim=1)
    return ids


wrong_edit(
    "greedy_decode",
    "drawn_from_the_softmax",
    {PICK: "token = torch.multinomial(torch.softmax(model(ids)[:, -1], dim=-1), 1)[:, 0]"},
    form_of="draws_a_token",
    why=_("The token is drawn by chance. Greedy decoding takes the most probable one."),
    see="dec-loop",
    rung=1,
)


wrong_edit(
    "greedy_decode",
    "first_sequence_ends_all",
    {DONE: "complete = complete | (token[0] == end_id)"},
    form_of="writes_on_after_the_end",
    why=_(
        "When the first sequence ends, all are taken for complete, and the others never are by themselves."
    ),
    see="dec-loop",
    rung=2,
)
wrong_edit(
    "greedy_decode",
    "limit_is_a_length",
    {"for _ in range(max_new):": "for _ in range(start.size(1), max_new + 1):"},
    why=_(
        "max_new is taken for the length of the whole, the start included. It counts new tokens."
    ),
    see="dec-loop",
    rung=2,
)


@right("greedy_decode", style="while, and lists for the columns")
def while_loop(model, start, end_id, max_new, padding_id=0):
    columns = [start]
    finished = torch.zeros(len(start), dtype=torch.bool)
    while len(columns) <= max_new and not finished.all():
        logits = model(torch.cat(columns, dim=1))
        best = logits[:, -1, :].max(dim=-1).indices
        best = torch.where(finished, torch.full_like(best, padding_id), best)
        columns.append(best[:, None])
        finished |= best.eq(end_id) & ~finished
    return torch.cat(columns, dim=1)


@right("greedy_decode", style="a full table, cut at the end")
def table_cut_at_the_end(model, start, end_id, max_new, padding_id=0):
    B, T = start.shape
    ids = torch.full((B, T + max_new), padding_id, dtype=start.dtype)
    ids[:, :T] = start
    going = torch.ones(B, dtype=torch.bool)
    t = T
    with torch.no_grad():
        while t < T + max_new and going.any():
            best = model(ids[:, :t])[:, t - 1].argmax(-1)
            ids[going, t] = best[going]
            going = going & (best != end_id)
            t += 1
    return ids[:, :t]


@right("greedy_decode", style="softmax first")
def softmax_first(model, start, end_id, max_new, padding_id=0):
    ids = start.clone()
    ended = [False] * ids.size(0)
    for _step in range(max_new):
        p = model(ids).softmax(dim=-1)[:, -1]
        row = []
        for b in range(ids.size(0)):
            token = padding_id if ended[b] else int(p[b].argmax())
            ended[b] = ended[b] or token == end_id
            row.append([token])
        ids = torch.cat((ids, torch.tensor(row)), dim=-1)
        if all(ended):
            return ids
    return ids


# --- next_probabilities ---------------------------------------------------------------------------

SORT = "ordered, order = torch.sort(logits / temperature, dim=-1, descending=True)"
CUT_K = 'ordered = ordered.masked_fill(rank >= top_k, float("-inf"))'
BEFORE = "before = p.cumsum(dim=-1) - p  # what the more probable tokens have reached already"
CUT_P = "p = p.masked_fill(before >= top_p, 0.0)"
RENORM = "p = p / p.sum(dim=-1, keepdim=True)"
BACK = "return torch.zeros_like(p).scatter(-1, order, p)  # back in the order of the vocabulary"

wrong_edit(
    "next_probabilities",
    "multiplied_by_the_temperature",
    {SORT: SORT.replace("/ temperature", "* temperature")},
    why=_("The logits are multiplied by the temperature: it sharpens where it should flatten."),
    see="dec-sampling",
)
wrong_edit(
    "next_probabilities",
    "temperature_not_read",
    {SORT: SORT.replace(" / temperature", "")},
    why=_("The temperature has no influence."),
    see="dec-sampling",
)
wrong_edit(
    "next_probabilities",
    "temperature_after_the_softmax",
    {
        SORT: SORT.replace("logits / temperature", "logits"),
        "p = torch.softmax(ordered, dim=-1)": "p = torch.softmax(ordered, dim=-1) / temperature\n    p = p / p.sum(dim=-1, keepdim=True)",
    },
    why=_(
        "The probabilities are divided by the temperature, and when they are normalised again it "
        "cancels. It has to divide the logits."
    ),
    see="dec-sampling",
    form_of="temperature_not_read",
)
wrong_edit(
    "next_probabilities",
    "temperature_zero_divides",
    {"if temperature == 0.0:": "if False:"},
    why=_("Temperature 0 is divided by: 0/0 is NaN. It stands for the most probable token alone."),
    see="dec-sampling",
)
wrong_edit(
    "next_probabilities",
    "one_token_too_many",
    {CUT_K: CUT_K.replace(">= top_k", "> top_k")},
    why=_("Ranks count from 0: the token of rank k is the one after the k most probable."),
    see="dec-sampling",
)
wrong_edit(
    "next_probabilities",
    "least_probable_kept",
    {CUT_K: CUT_K.replace("rank >= top_k", "rank < V - top_k")},
    why=_("The k least probable tokens stay."),
    see="dec-sampling",
)
wrong_edit(
    "next_probabilities",
    "removed_logits_are_zero",
    {CUT_K: CUT_K.replace('float("-inf")', "0.0")},
    why=_(
        "Tokens are removed by a logit of 0, and e to the 0 is 1: they keep a share. A removed "
        "logit is -inf."
    ),
    see="dec-sampling",
)
wrong_edit(
    "next_probabilities",
    "top_k_not_renormalised",
    {
        CUT_K: "pass",
        "    if top_p is not None:\n": "    if top_k is not None:\n"
        "        p = p.masked_fill(rank >= top_k, 0.0)\n    if top_p is not None:\n",
    },
    why=_(
        "After top-k the shares that stay do not sum to 1: they have to be divided by their sum."
    ),
    see="dec-sampling",
    rung=2,
)
wrong_edit(
    "next_probabilities",
    "top_p_not_renormalised",
    {RENORM: "pass"},
    why=_(
        "After top-p the shares that stay do not sum to 1: they have to be divided by their sum."
    ),
    see="dec-sampling",
    rung=2,
)
wrong_edit(
    "next_probabilities",
    "token_that_reaches_p_dropped",
    {
        BEFORE: "before = p.cumsum(dim=-1)",
        CUT_P: "p = p.masked_fill((before > top_p) & (rank0 > 0), 0.0)".replace(
            "rank0", "torch.arange(V)"
        ),
    },
    why=_(
        "The token that brings the sum to p is dropped: what stays is less than p. It belongs to "
        "the smallest set that reaches it."
    ),
    see="dec-sampling",
    rung=2,
)
wrong_edit(
    "next_probabilities",
    "everything_dropped",
    {BEFORE: "before = p.cumsum(dim=-1)", CUT_P: CUT_P.replace(">= top_p", "> top_p")},
    why=_(
        "Where the first token alone has more than p, nothing stays, and 0 is divided by 0. One "
        "token always stays."
    ),
    see="dec-sampling",
    rung=2,
)
wrong_edit(
    "next_probabilities",
    "a_token_after_p_kept",
    {BEFORE: "before = (p.cumsum(dim=-1) - p).roll(1, dims=-1)\n        before[..., 0] = 0.0"},
    why=_("One token more than is needed stays: the sum had reached p before it."),
    see="dec-sampling",
    rung=2,
)
wrong_edit(
    "next_probabilities",
    "p_as_a_threshold",
    {CUT_P: "p = p.masked_fill(p < 1.0 - top_p, 0.0)"},
    why=_(
        "Each probability is compared with a threshold. top_p is about what the most probable "
        "tokens reach together."
    ),
    see="dec-sampling",
)
wrong_edit(
    "next_probabilities",
    "not_sorted_back",
    {BACK: "return p"},
    why=_(
        "The probabilities stand in the order of their size and not in that of the vocabulary: "
        "they belong to other tokens."
    ),
    see="dec-sampling",
    rung=3,
)
wrong_edit(
    "next_probabilities",
    "sorted_back_by_gather",
    {BACK: "return p.gather(-1, order)"},
    why=_(
        "gather takes from the places that order names; the way back writes to them, with scatter."
    ),
    see="dec-sampling",
    rung=3,
)
wrong_edit(
    "next_probabilities",
    "top_p_of_all_tokens",
    {
        "p = torch.softmax(ordered, dim=-1)": "p = torch.softmax(ordered, dim=-1)\n"
        "    whole = torch.softmax(torch.sort(logits / temperature, descending=True).values, dim=-1)",
        BEFORE: "before = whole.cumsum(dim=-1) - whole",
    },
    why=_(
        "top-p looks at the probabilities before top-k. It comes after, and counts the shares of "
        "what top-k left."
    ),
    see="dec-sampling",
    rung=3,
)
wrong_edit(
    "next_probabilities",
    "top_p_before_the_temperature",
    {
        BEFORE: "cool = torch.softmax(ordered * temperature, dim=-1)\n"
        "        before = cool.cumsum(dim=-1) - cool"
    },
    why=_("top-p looks at the probabilities before the temperature."),
    see="dec-sampling",
    rung=3,
)
wrong_edit(
    "next_probabilities",
    "over_the_first_axis",
    {"p = torch.softmax(ordered, dim=-1)": "p = torch.softmax(ordered, dim=0)"},
    why=_("The softmax runs over the batch: it has to run over the vocabulary."),
    see="dec-sampling",
)
wrong_edit(
    "next_probabilities",
    "logits_returned",
    {"p = torch.softmax(ordered, dim=-1)": "p = ordered"},
    why=_("There is no softmax: these are logits and not probabilities."),
    see="dec-sampling",
)


wrong_edit(
    "next_probabilities",
    "small_temperature_for_zero",
    {
        "if temperature == 0.0:\n        return torch.zeros_like(logits).scatter(-1, logits.argmax(dim=-1, keepdim=True), 1.0)": "temperature = max(temperature, 1e-2)"
    },
    why=_(
        "Temperature 0 was replaced by a small one: where two tokens are nearly alike, the second keeps a share. 0 leaves one token."
    ),
    see="dec-sampling",
    rung=2,
)
wrong_edit(
    "next_probabilities",
    "temperature_zero_changes_nothing",
    {
        "if temperature == 0.0:\n        return torch.zeros_like(logits).scatter(-1, logits.argmax(dim=-1, keepdim=True), 1.0)": "temperature = temperature or 1.0"
    },
    why=_(
        "Temperature 0 is treated as if none was given. It stands for the most probable token alone."
    ),
    see="dec-sampling",
    rung=1,
)
wrong_edit(
    "next_probabilities",
    "probabilities_divided_by_the_temperature",
    {
        SORT: "ordered, order = torch.sort(torch.softmax(logits, dim=-1) / temperature, dim=-1, descending=True)"
    },
    why=_(
        "Probabilities are divided by the temperature, and go through the softmax once more. It has to divide the logits."
    ),
    see="dec-sampling",
    rung=1,
)
wrong_edit(
    "next_probabilities",
    "k_larger_than_the_vocabulary",
    {
        "rank = torch.arange(V, device=logits.device)": "least = ordered.topk(top_k, dim=-1).values[..., -1:]",
        CUT_K: 'ordered = ordered.masked_fill(ordered < least, float("-inf"))',
    },
    why=_("topk asks for more tokens than there are, where k is larger than V: then all stay."),
    see="dec-sampling",
    rung=3,
)
wrong_edit(
    "next_probabilities",
    "sorted_upwards_for_top_p",
    {BEFORE: "before = p.flip(-1).cumsum(dim=-1).flip(-1) - p"},
    why=_(
        "top-p counts from the least probable token upwards: what stays are the improbable ones. The sum begins with the most probable."
    ),
    see="dec-sampling",
    rung=1,
)
wrong_edit(
    "next_probabilities",
    "threshold_of_top_p",
    {CUT_P: "p = p.masked_fill(p < top_p, 0.0)"},
    form_of="p_as_a_threshold",
    why=_(
        "Each probability is compared with top_p by itself. top_p is about what the most probable tokens reach together."
    ),
    see="dec-sampling",
    rung=1,
)
wrong_edit(
    "next_probabilities",
    "logits_overwritten",
    {SORT: "ordered, order = torch.sort(logits.div_(temperature), dim=-1, descending=True)"},
    why=_("The logits are divided in place: who called has other logits afterwards."),
    see="dec-sampling",
    rung=3,
)
wrong_edit(
    "next_probabilities",
    "logits_overwritten_by_top_k",
    {
        "    if top_k is not None:\n": "    if top_k is not None and temperature == 1.0:\n"
        "        least = ordered[..., min(top_k, V) - 1].unsqueeze(-1)\n"
        '        logits.masked_fill_(logits < least, float("-inf"))\n'
        "    if top_k is not None:\n",
    },
    form_of="logits_overwritten",
    why=_("Tokens are removed from the logits in place: who called has other logits afterwards."),
    see="dec-sampling",
    rung=3,
)
wrong_edit(
    "next_probabilities",
    "softmax_over_axis_one",
    {
        "p = torch.softmax(ordered, dim=-1)": "p = torch.softmax(ordered, dim=min(1, ordered.dim() - 1))"
    },
    why=_(
        "The softmax runs over axis 1. That is the vocabulary only where one axis stands before it: it is the last one, -1."
    ),
    see="dec-sampling",
    rung=2,
)
wrong_edit(
    "next_probabilities",
    "exp_that_overflows",
    {
        "p = torch.softmax(ordered, dim=-1)": "p = torch.exp(ordered) / torch.exp(ordered).sum(dim=-1, keepdim=True)"
    },
    why=_("The softmax is computed as it is written, with exp of the logits: large ones overflow."),
    see="dec-sampling",
    rung=3,
)
wrong_edit(
    "next_probabilities",
    "log_probabilities_returned",
    {BACK: BACK.split("  #")[0] + ".log()"},
    why=_("The logarithms of the probabilities are returned."),
    see="dec-sampling",
    rung=1,
)


wrong_edit(
    "next_probabilities",
    "unsorted_softmax_over_axis_one",
    {
        "ordered, order = torch.sort(logits / temperature": "if top_k is None and top_p is None:\n        return torch.softmax(logits / temperature, dim=min(1, logits.dim() - 1))\n    ordered, order = torch.sort(logits / temperature"
    },
    form_of="softmax_over_axis_one",
    why=_(
        "The softmax runs over axis 1. That is the vocabulary only where one axis stands before it: it is the last one, -1."
    ),
    see="dec-sampling",
    rung=2,
)


wrong_edit(
    "next_probabilities",
    "either_top_k_or_top_p",
    {"    if top_p is not None:": "    if top_p is not None and top_k is None:"},
    why=_(
        "Where top_k is given, top_p is passed over. Both may be given: top_p then works on what top_k left."
    ),
    see="dec-sampling",
    rung=2,
)


@right("next_probabilities", style="thresholds in place of ranks")
def thresholds(logits, temperature=1.0, top_k=None, top_p=None):
    if temperature == 0:
        return nn.functional.one_hot(logits.argmax(-1), logits.size(-1)).to(logits.dtype)
    logits = logits / temperature
    if top_k is not None:
        k = min(top_k, logits.size(-1))
        smallest = logits.topk(k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < smallest, float("-inf"))
    p = torch.softmax(logits, dim=-1)
    if top_p is not None:
        ordered = p.sort(dim=-1, descending=True).values
        needed = (ordered.cumsum(-1) - ordered < top_p).sum(-1, keepdim=True)
        smallest = ordered.gather(-1, needed - 1)
        p = torch.where(p >= smallest, p, 0.0)
        p = p / p.sum(-1, keepdim=True)
    return p


@right("next_probabilities", style="remove in the logits, one softmax at the end")
def one_softmax_at_the_end(logits, temperature=1.0, top_k=None, top_p=None):
    if temperature == 0:
        result = torch.full_like(logits, 0.0)
        result.scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        return result
    scores = logits / temperature
    if top_k is not None and top_k < scores.size(-1):
        kept = torch.full_like(scores, float("-inf"))
        values, places = scores.topk(top_k, dim=-1)
        scores = kept.scatter(-1, places, values)
    if top_p is not None:
        ordered, places = scores.sort(dim=-1, descending=True)
        p = ordered.softmax(dim=-1)
        remove = p.cumsum(-1) >= top_p
        remove = torch.cat([torch.zeros_like(remove[..., :1]), remove[..., :-1]], dim=-1)
        ordered = ordered.masked_fill(remove, float("-inf"))
        scores = torch.empty_like(scores).scatter(-1, places, ordered)
    return scores.softmax(dim=-1)


@right("next_probabilities", style="rows one by one, in float64")
def rows_one_by_one(logits, temperature=1.0, top_k=None, top_p=None):
    rows = logits.reshape(-1, logits.size(-1)).double()
    result = torch.zeros_like(rows)
    for i in range(rows.size(0)):
        row = rows[i]
        order = sorted(range(len(row)), key=lambda s, row=row: -float(row[s]))
        if temperature == 0:
            result[i, order[0]] = 1
            continue
        order = order if top_k is None else order[:top_k]
        p = torch.softmax(row[order] / temperature, dim=0)
        if top_p is not None:
            n = 1
            while n < len(order) and float(p[:n].sum()) < top_p:
                n += 1
            order, p = order[:n], p[:n]
        result[i, order] = p / p.sum()
    return result.reshape(logits.shape).to(logits.dtype)


# --- sample_next ----------------------------------------------------------------------------------


@wrong(
    "sample_next",
    why=_("The most probable token is taken each time: nothing is drawn."),
    see="dec-sampling",
)
def always_the_most_probable(logits, temperature=1.0, top_k=None, top_p=None):
    return next_probabilities(logits, temperature, top_k, top_p).argmax(dim=-1)


@wrong(
    "sample_next",
    why=_("The axis of the draw is left: the result has shape (B, 1)."),
    see="dec-sampling",
)
def an_axis_left_over(logits, temperature=1.0, top_k=None, top_p=None):
    return torch.multinomial(next_probabilities(logits, temperature, top_k, top_p), 1)


@wrong(
    "sample_next",
    why=_("All tokens that may come are drawn equally often: their probabilities are not used."),
    see="dec-sampling",
)
def all_kept_tokens_alike(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits, temperature, top_k, top_p)
    return torch.multinomial((p > 1e-12).float(), 1).squeeze(1)


@wrong(
    "sample_next",
    why=_("Every sequence gets the token that was drawn for the first one."),
    see="dec-sampling",
)
def one_draw_for_all(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits, temperature, top_k, top_p)
    first = torch.multinomial(p[:1], 1).squeeze(1)
    return torch.where(
        p.gather(1, first.expand(len(p), 1)).squeeze(1) > 0.999999,
        first,
        torch.where(p.amax(1) > 0.999999, p.argmax(1), first),
    )


@wrong(
    "sample_next",
    why=_("Every token is drawn from the distribution of the first sequence."),
    see="dec-sampling",
)
def drawn_from_the_first_row(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits, temperature, top_k, top_p)
    return torch.multinomial(p[0], len(p), replacement=True)


@wrong(
    "sample_next",
    why=_("top_k and top_p are handed on in each other's place: give them by name."),
    see="dec-sampling",
    rung=2,
)
def k_and_p_exchanged(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits, temperature, top_p, top_k)
    return torch.multinomial(p, 1).squeeze(1)


@wrong(
    "sample_next",
    why=_("The seed is fixed inside: every call draws the same."),
    see="dec-sampling",
)
def the_same_seed_each_time(logits, temperature=1.0, top_k=None, top_p=None):
    torch.manual_seed(0)
    return torch.multinomial(next_probabilities(logits, temperature, top_k, top_p), 1).squeeze(1)


@wrong(
    "sample_next",
    why=_("The temperature is not handed on."),
    see="dec-sampling",
)
def without_temperature(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits, top_k=top_k, top_p=top_p)
    return torch.multinomial(p, 1).squeeze(1)


@wrong(
    "sample_next",
    why=_("top_k is not handed on."),
    see="dec-sampling",
)
def without_top_k(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits, temperature, top_p=top_p)
    return torch.multinomial(p, 1).squeeze(1)


@wrong(
    "sample_next",
    why=_("top_p is not handed on."),
    see="dec-sampling",
)
def without_top_p(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits, temperature, top_k)
    return torch.multinomial(p, 1).squeeze(1)


@wrong(
    "sample_next",
    why=_(
        "The draw is from the absolute values of the logits. Logits are no probabilities: take "
        "those of next_probabilities."
    ),
    see="dec-sampling",
)
def drawn_from_the_logits(logits, temperature=1.0, top_k=None, top_p=None):
    return torch.multinomial(logits.abs() + 1e-9, 1).squeeze(1)


@wrong(
    "sample_next",
    why=_(
        "The uniform number is compared with each probability by itself. It has to be compared "
        "with their running sum."
    ),
    see="dec-sampling",
    rung=2,
)
def no_running_sum(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits, temperature, top_k, top_p)
    u = torch.rand(len(p), 1)
    return (p > u).float().argmax(dim=1)


@wrong(
    "sample_next",
    why=_(
        "The probabilities go through a softmax once more: all tokens become nearly alike. They are probabilities already."
    ),
    see="dec-sampling",
    rung=1,
)
def softmax_of_probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits, temperature, top_k, top_p)
    return torch.multinomial(torch.softmax(p, dim=-1), 1).squeeze(1)


@wrong(
    "sample_next",
    why=_(
        "One random number is drawn for the whole batch: sequences with the same probabilities get the same token."
    ),
    see="dec-sampling",
    rung=2,
)
def one_number_for_all(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits, temperature, top_k, top_p)
    return (p.cumsum(dim=-1) < torch.rand(1)).sum(dim=-1)


@wrong(
    "sample_next",
    why=_("The ids are int32; int64 is asked for."),
    see="dec-sampling",
    rung=1,
)
def ids_of_int32(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits, temperature, top_k, top_p)
    return torch.multinomial(p, 1).squeeze(1).int()


@wrong(
    "sample_next",
    why=_(
        "squeeze() without an axis takes away every axis of size 1: of a single sequence nothing is left but a number. Name the axis."
    ),
    see="dec-sampling",
    rung=2,
)
def squeezed_to_nothing(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits, temperature, top_k, top_p)
    return torch.multinomial(p, 1).squeeze()


@right("sample_next", style="a race of exponential times")
def exponential_race(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits, temperature, top_k, top_p)
    return (p / torch.empty_like(p).exponential_()).argmax(dim=-1)


@right("sample_next", style="row by row")
def drawn_row_by_row(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits, temperature, top_k, top_p)
    return torch.stack([torch.multinomial(row, 1)[0] for row in p])


@wrong(
    "sample_next",
    why=_("The settings are handed on in another order than next_probabilities takes them."),
    see="dec-sampling",
    rung=1,
)
def settings_in_another_order(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits, top_k, temperature, top_p)
    return torch.multinomial(p, 1).squeeze(1)


@wrong(
    "sample_next",
    why=_("The probabilities are turned round: a sequence is drawn for each token."),
    see="dec-sampling",
    rung=1,
)
def drawn_over_the_batch(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits, temperature, top_k, top_p)
    return torch.multinomial(p.T, 1).squeeze(1)


@wrong(
    "sample_next",
    why=_("The logits are divided by the temperature here, and again in next_probabilities."),
    see="dec-sampling",
    rung=1,
)
def temperature_applied_twice(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits / max(temperature, 1e-6), temperature, top_k, top_p)
    return torch.multinomial(p, 1).squeeze(1)


@wrong(
    "sample_next",
    why=_(
        "Where no top_k is given, 50 is taken, as some programs do: less probable tokens can never be drawn. None means no limit."
    ),
    see="dec-sampling",
    rung=2,
)
def fifty_tokens_at_most(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits, temperature, top_k or 50, top_p)
    return torch.multinomial(p, 1).squeeze(1)


@wrong(
    "sample_next",
    why=_(
        "The place in the running sum is one too early: as many sums lie below the number as there are tokens before the one that is drawn."
    ),
    see="dec-sampling",
    rung=2,
)
def one_place_too_early(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits, temperature, top_k, top_p).cumsum(dim=-1)
    return (p <= torch.rand(len(p), 1)).sum(dim=-1).sub(1).clamp(min=0)


@right("sample_next", style="Categorical")
def with_categorical(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits, temperature, top_k, top_p)
    return torch.distributions.Categorical(probs=p).sample()


@right("sample_next", style="a uniform number in the running sum")
def inverse_of_the_running_sum(logits, temperature=1.0, top_k=None, top_p=None):
    p = next_probabilities(logits, temperature, top_k, top_p).double()
    u = torch.rand(p.size(0), 1, dtype=torch.float64) * p.sum(dim=1, keepdim=True)
    return (p.cumsum(dim=1) <= u).sum(dim=1).clamp(max=p.size(1) - 1)


@right("sample_next", style="Gumbel noise")
def with_gumbel_noise(logits, temperature=1.0, top_k=None, top_p=None):
    log_p = torch.log(next_probabilities(logits, temperature, top_k, top_p))
    gumbel = -torch.log(torch.empty_like(log_p).exponential_())
    return (log_p + gumbel).argmax(dim=-1)


# --- LanguageModel --------------------------------------------------------------------------------

LM_EMBED = "x = self.positions(self.embedding(ids), offset)  # (B, T, D)"
LM_OUT = "return self.output(self.decoder(x, mask=mask, cache=cache))  # (B, T, V)"
LM_MASK = "mask = causal_mask(T, offset + T, device=ids.device)"
LM_PADDED = "if cache is None and self.padding_id is not None:"

wrong_edit(
    "LanguageModel",
    "no_mask_at_all",
    {LM_OUT: LM_OUT.replace("mask=mask, ", "")},
    why=_("There is no causal mask: the model reads the token that it has to predict."),
    see="dec-no-future",
)
wrong_edit(
    "LanguageModel",
    "with_cross_attention",
    {
        "cross=False": "cross=True",
        LM_OUT: "return self.output(self.decoder(x, x, mask=mask, cache=cache))",
    },
    why=_("The layers still have a cross-attention, which looks at its own sequence, unmasked."),
    see="dec-only",
)
wrong_edit(
    "LanguageModel",
    "no_positions",
    {LM_EMBED: "x = self.embedding(ids)"},
    why=_("The positions are not added."),
    see="dec-only",
)
wrong_edit(
    "LanguageModel",
    "each_piece_at_position_zero",
    {LM_EMBED: LM_EMBED.replace(", offset", "")},
    why=_("With a cache, each piece gets the positions from 0 on: they have to go on from offset."),
    see="dec-cached-decoding",
    rung=2,
)
wrong_edit(
    "LanguageModel",
    "mask_without_the_cached_keys",
    {LM_MASK: "mask = causal_mask(T, device=ids.device)"},
    why=_(
        "With a cache, the mask is (T, T) and there are offset + T keys: it has no columns for "
        "what is in the cache."
    ),
    see="dec-pieces",
    rung=2,
)
wrong_edit(
    "LanguageModel",
    "no_mask_with_a_cache",
    {LM_MASK: "mask = causal_mask(T, device=ids.device) if cache is None else None"},
    why=_(
        "With a cache there is no mask. For one new token it hides nothing; in a prefill of "
        "several, each would see the last."
    ),
    see="dec-pieces",
    rung=2,
)
wrong_edit(
    "LanguageModel",
    "output_tied_to_the_embedding",
    {
        "self.output = nn.Linear(D, V, bias=False)": "self.output = nn.Linear(D, V, bias=False)\n"
        "        self.output.weight = self.embedding.weight"
    },
    why=_(
        "The output map and the embedding are one matrix. That is a good idea of its own; this "
        "model has two."
    ),
    see="dec-only",
)
wrong_edit(
    "LanguageModel",
    "the_cache_is_dropped",
    {LM_OUT: LM_OUT.replace(", cache=cache", "")},
    why=_("The cache does not reach the decoder: each piece sees itself alone."),
    see="dec-cached-decoding",
    rung=2,
)
wrong_edit(
    "LanguageModel",
    "embedding_not_scaled",
    {"self.embedding = TokenEmbedding(V, D, scale=True)": "self.embedding = TokenEmbedding(V, D)"},
    why=_("The embedding lacks its factor √D; the docstring asks for it."),
    see="dec-only",
)
wrong_edit(
    "LanguageModel",
    "output_with_a_bias",
    {"self.output = nn.Linear(D, V, bias=False)": "self.output = nn.Linear(D, V)"},
    why=_("The output map has a bias; the docstring asks for none."),
    see="dec-only",
)
wrong_edit(
    "LanguageModel",
    "gives_probabilities",
    {LM_OUT: "return torch.softmax(self.output(self.decoder(x, mask=mask, cache=cache)), dim=-1)"},
    why=_("The softmax is taken already; logits are asked for."),
    see="dec-only",
)
wrong_edit(
    "LanguageModel",
    "padding_is_read",
    {LM_PADDED: "if False:"},
    why=_("padding_id is not used: tokens attend to padding."),
    see="dec-padding",
    rung=3,
)
wrong_edit(
    "LanguageModel",
    "zero_is_padding_always",
    {LM_PADDED: "if cache is None:", "decoder_mask(ids, self.padding_id)": "decoder_mask(ids, 0)"},
    why=_("Id 0 is taken for padding, also where the model has none or another."),
    see="dec-padding",
    rung=3,
)
wrong_edit(
    "LanguageModel",
    "padding_zero_taken_for_none",
    {LM_PADDED: "if cache is None and self.padding_id:"},
    why=_("padding_id 0 is false in Python, like None: ask `is not None`."),
    see="dec-padding",
    rung=3,
)
wrong_edit(
    "LanguageModel",
    "norm_placement_dropped",
    {"norm_first=norm_first, activation": "activation"},
    why=_("norm_first does not reach the decoder."),
    see="dec-only",
)
wrong_edit(
    "LanguageModel",
    "activation_dropped",
    {"activation=activation, cross": "cross"},
    why=_("activation does not reach the decoder."),
    see="dec-only",
)
wrong_edit(
    "LanguageModel",
    "embedding_never_dropped",
    {
        "self.positions = SinusoidalPositions(D, max_length, dropout)": "self.positions = SinusoidalPositions(D, max_length)"
    },
    why=_("dropout does not reach the embedded tokens."),
    see="dec-only",
)
wrong_edit(
    "LanguageModel",
    "length_fixed_at_512",
    {
        "self.positions = SinusoidalPositions(D, max_length, dropout)": "self.positions = "
        "SinusoidalPositions(D, 512, dropout)"
    },
    why=_("max_length is not handed on: longer sequences find no position."),
    see="dec-only",
)
wrong_edit(
    "LanguageModel",
    "one_layer_only",
    {"D, H, F, N, dropout=dropout": "D, H, F, 1, dropout=dropout"},
    why=_("There is one layer, whatever N says."),
    see="dec-only",
)
wrong_edit(
    "LanguageModel",
    "the_last_position_alone",
    {LM_OUT: "return self.output(self.decoder(x, mask=mask, cache=cache))[:, -1]"},
    why=_("Logits of the last position alone; training needs those of all of them."),
    see="dec-only",
)

wrong_edit(
    "LanguageModel",
    "decoder_keeps_the_default_dropout",
    {"D, H, F, N, dropout=dropout, ": "D, H, F, N, "},
    why=_("dropout does not reach the decoder."),
    see="dec-only",
    rung=1,
)
wrong_edit(
    "LanguageModel",
    "zero_is_padding_where_there_is_none",
    {
        LM_PADDED: "if cache is None:",
        "decoder_mask(ids, self.padding_id)": "decoder_mask(ids, self.padding_id or 0)",
    },
    why=_(
        "Where there is no padding id, 0 is taken for one and hidden. Without a padding id every token is a token."
    ),
    see="dec-padding",
    rung=3,
)
wrong_edit(
    "LanguageModel",
    "one_row_of_logits",
    {LM_OUT: "return self.output(self.decoder(x, mask=mask, cache=cache)[:, -1:])"},
    form_of="the_last_position_alone",
    why=_("Logits of the last position alone; training needs those of all of them."),
    see="dec-only",
    rung=1,
)
wrong_edit(
    "LanguageModel",
    "lengths_of_all_layers_added",
    {"cache[0][0].length": "sum(own.length for own, _of_memory in cache)"},
    why=_(
        "The lengths of all layers' caches are added up. Each holds the same positions: the length of one is the offset."
    ),
    see="dec-cached-decoding",
    rung=3,
)
wrong_edit(
    "LanguageModel",
    "length_kept_in_the_model",
    {
        "offset = 0 if cache is None else cache[0][0].length": "self.seen = getattr(self, 'seen', 0) if cache is not None else 0\n        offset = self.seen\n        self.seen = self.seen + T"
    },
    why=_(
        "The model counts the tokens itself: a second text, with a new cache, goes on where the first one ended. The cache knows its length."
    ),
    see="dec-cached-decoding",
    rung=3,
)
wrong_edit(
    "LanguageModel",
    "run_without_gradients",
    {
        LM_OUT: "with torch.no_grad():\n            return self.output(self.decoder(x, mask=mask, cache=cache))"
    },
    why=_(
        "The model runs under no_grad, as in writing: nothing in it can be trained. Who calls it "
        "decides about that."
    ),
    see="dec-only",
    rung=2,
)
wrong_edit(
    "LanguageModel",
    "embedding_cut_off",
    {LM_EMBED: "x = self.positions(self.embedding(ids).detach(), offset)"},
    why=_("The embedded tokens are detached: the embedding gets no gradient and learns nothing."),
    see="dec-only",
    rung=2,
)
wrong_edit(
    "LanguageModel",
    "padding_mask_with_a_cache",
    {LM_PADDED: "if self.padding_id is not None:"},
    why=_(
        "The mask of the padding is used with a cache too: it is (T, T), and knows nothing of the keys in the cache."
    ),
    see="dec-pieces",
    rung=3,
)
wrong_edit(
    "LanguageModel",
    "padding_mask_for_the_causal_one",
    {"decoder_mask(ids, self.padding_id)": "padding_mask(ids, self.padding_id).unsqueeze(1)"},
    why=_(
        "Where there is a padding id, the mask hides padding and nothing else: the future is seen."
    ),
    see="dec-padding",
    rung=2,
)
wrong_edit(
    "LanguageModel",
    "positions_added_twice",
    {LM_EMBED: "x = self.positions(self.positions(self.embedding(ids), offset), offset)"},
    why=_("The positions are added twice."),
    see="dec-only",
    rung=1,
)
wrong_edit(
    "LanguageModel",
    "one_layer_too_few",
    {"D, H, F, N, dropout=dropout": "D, H, F, N - 1, dropout=dropout"},
    why=_("There is one layer less than N."),
    see="dec-only",
    rung=1,
)
wrong_edit(
    "LanguageModel",
    "shifted_inside",
    {
        LM_EMBED: "ids = torch.cat([torch.zeros_like(ids[:, :1]), ids[:, :-1]], dim=1)\n        "
        + LM_EMBED
    },
    why=_(
        "The ids are shifted inside the model. The loss does that: logits at t are for what comes after token t."
    ),
    see="dec-shifted",
    rung=2,
)
right_edit(
    "LanguageModel",
    "masks_by_cases",
    {
        LM_MASK + "\n        " + LM_PADDED + "\n            mask = decoder_mask("
        "ids, self.padding_id)": "if cache is not None or self.padding_id is None:\n"
        "            mask = torch.ones(offset + T, offset + T).tril().bool()[offset:]\n"
        "        else:\n            mask = decoder_mask(ids, self.padding_id)",
    },
    style="masks by cases, a triangle cut",
)
right_edit(
    "LanguageModel",
    "stepwise_output",
    {
        LM_OUT: "h = self.decoder(x, None, mask, None, cache=cache)\n"
        "        logits = self.output(h)\n        return logits"
    },
    style="one step a line",
)
right_edit(
    "LanguageModel",
    "padding_combined_by_hand",
    {
        "mask = decoder_mask(ids, self.padding_id)": "mask = mask & (ids != self.padding_id)[:, None, None, :]"
    },
    style="padding combined by hand",
)
