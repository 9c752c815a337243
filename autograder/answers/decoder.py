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
        "It still stops with a TypeError: the attention has no argument tgt_mask, and it returns a "
        "pair, output and weights, which cannot be added to x. The silent faults come after that."
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
