"""The answer bank of chapter ``decoder``."""

from collections.abc import Callable

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
        "Only the last input is changed. A leak from the next token shows at the output before the "
        "last, but one that comes from elsewhere does not."
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
        "Exact equality is asked for. A right layer may differ in the last digit from call to "
        "call, and between two ways to add up."
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
