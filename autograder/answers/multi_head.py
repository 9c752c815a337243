"""The answer bank of chapter ``multi_head``."""

import math

import torch
from torch import nn

from autograder.bank import right, right_edit, wrong, wrong_edit
from autograder.i18n import _
from solutions.attention import masked_softmax, scaled_dot_product_attention
from solutions.multi_head import MultiHeadAttention, merge_heads, split_heads

# --- split_heads -----------------------------------------------------------------------------

SPLIT = "split_heads"


@wrong(
    SPLIT,
    see="mha-split-heads",
    rung=2,
    why=_(
        "One reshape to (B, H, T, d) reads the numbers in their order in memory, position by "
        "position. So head 0 gets whole vectors of the first positions, not a part of each vector: "
        "heads and positions are mixed up."
    ),
)
def view_without_transpose(x, H):
    B, T, D = x.shape
    if D % H:
        raise ValueError("D must be a multiple of H")
    return x.reshape(B, H, T, D // H)


@wrong(
    SPLIT,
    see="mha-split-heads",
    rung=3,
    why=_(
        "The last axis is cut rightly, but the heads still stand behind the positions: (B, T, H, "
        "d). Attention works on the last two axes, and would compare the heads of one position."
    ),
)
def heads_stay_behind_positions(x, H):
    B, T, D = x.shape
    if D % H:
        raise ValueError("D must be a multiple of H")
    return x.reshape(B, T, H, D // H)


@wrong(
    SPLIT,
    see="mha-split-heads",
    rung=3,
    why=_(
        "The heads are right, but they stand in front of the batch: (H, B, T, d). The batch stays "
        "the first axis."
    ),
)
def heads_before_the_batch(x, H):
    B, T, D = x.shape
    if D % H:
        raise ValueError("D must be a multiple of H")
    return torch.stack(x.chunk(H, dim=-1))


@wrong(
    SPLIT,
    see="mha-split-heads",
    rung=3,
    why=_(
        "The last axis is cut into (d, H) and not into (H, d), so a head gets every H-th component "
        "instead of d neighbouring ones. Weights from elsewhere would meet the wrong components."
    ),
)
def interleaved_heads(x, H):
    B, T, D = x.shape
    if D % H:
        raise ValueError("D must be a multiple of H")
    return x.reshape(B, T, D // H, H).permute(0, 3, 1, 2)


@wrong(
    SPLIT,
    see="mha-split-heads",
    rung=3,
    why=_("The number of heads and their width are exchanged: these are d heads of width H."),
)
def as_many_heads_as_width(x, H):
    B, T, D = x.shape
    if D % H:
        raise ValueError("D must be a multiple of H")
    return x.reshape(B, T, D // H, H).transpose(1, 2)


@wrong(
    SPLIT,
    see="mha-split-heads",
    rung=2,
    why=_(
        "The wrong two axes are exchanged, and before the cut. After x.transpose(1, 2) the numbers "
        "of a position no longer stand side by side, and the reshape mixes positions."
    ),
)
def transposes_before_the_cut(x, H):
    B, T, D = x.shape
    if D % H:
        raise ValueError("D must be a multiple of H")
    return x.transpose(1, 2).reshape(B, H, T, D // H)


@wrong(
    SPLIT,
    see="mha-split-heads",
    rung=1,
    why=_(
        "Where H does not divide D, D // H rounds down and the last components are dropped without "
        "a word. The docstring promises a ValueError."
    ),
)
def drops_what_is_left_over(x, H):
    d = x.shape[-1] // H
    return torch.stack([x[..., h * d : (h + 1) * d] for h in range(H)], dim=1)


@wrong(
    SPLIT,
    see="mha-split-heads",
    rung=1,
    why=_(
        "Uneven widths are noticed, but not with the promised ValueError: whoever catches that "
        "would not catch this. An assert even disappears under python -O."
    ),
)
def asserts_instead_of_raising(x, H):
    B, T, D = x.shape
    assert D % H == 0
    return x.reshape(B, T, H, D // H).transpose(1, 2)


@wrong(
    SPLIT,
    see="mha-subspaces",
    rung=1,
    why=_(
        "Every head gets the whole vector. A head is a part of the vector: d = D / H components."
    ),
)
def whole_vector_for_every_head(x, H):
    if x.shape[-1] % H:
        raise ValueError("D must be a multiple of H")
    return x.unsqueeze(1).expand(-1, H, -1, -1)


@wrong(
    SPLIT,
    see="mha-subspaces",
    rung=1,
    why=_("Every head gets the first d components; the others of the vector are never read."),
)
def first_components_for_every_head(x, H):
    D = x.shape[-1]
    if D % H:
        raise ValueError("D must be a multiple of H")
    return x[:, None, :, : D // H].expand(-1, H, -1, -1)


@wrong(
    SPLIT,
    see="mha-split-heads",
    rung=2,
    why=_(
        "The result is cut off from x (through .data, .detach() or a new tensor), so nothing that "
        "stands before the heads could ever learn."
    ),
)
def cut_off_from_the_input(x, H):
    B, T, D = x.shape
    if D % H:
        raise ValueError("D must be a multiple of H")
    return x.detach().reshape(B, T, H, D // H).transpose(1, 2)


@wrong(
    SPLIT,
    see="mha-split-heads",
    rung=1,
    why=_("The result has the right shape and nothing of x in it."),
)
def zeros_of_the_right_shape(x, H):
    B, T, D = x.shape
    if D % H:
        raise ValueError("D must be a multiple of H")
    return torch.zeros(B, H, T, D // H)


@wrong(
    SPLIT,
    see="mha-split-heads",
    rung=3,
    why=_("The heads come out in reverse order: head 0 must hold the first components."),
)
def heads_in_reverse_order(x, H):
    B, T, D = x.shape
    if D % H:
        raise ValueError("D must be a multiple of H")
    return x.reshape(B, T, H, D // H).transpose(1, 2).flip(1)


@wrong(
    SPLIT,
    see="mha-split-heads",
    rung=1,
    why=_(
        "Uneven widths are left to torch, which stumbles over them with a RuntimeError about "
        "shapes. The docstring promises a ValueError that names the two numbers."
    ),
)
def uneven_widths_left_to_torch(x, H):
    return torch.stack(x.chunk(H, dim=-1), dim=1)


@wrong(
    SPLIT,
    see="mha-split-heads",
    rung=1,
    form_of="uneven_widths_left_to_torch",
    why=_(
        "Uneven widths are left to view, which refuses them with a RuntimeError about shapes. The "
        "docstring promises a ValueError that names the two numbers."
    ),
)
def uneven_widths_left_to_view(x, H):
    B, T, D = x.shape
    return x.view(B, T, H, D // H).transpose(1, 2)


@wrong(
    SPLIT,
    see="mha-split-heads",
    rung=1,
    why=_(
        "The ValueError is returned and not raised: the caller gets an error object for a tensor, "
        "and goes on with it."
    ),
)
def error_returned_not_raised(x, H):
    B, T, D = x.shape
    if D % H:
        return ValueError("D must be a multiple of H")
    return x.reshape(B, T, H, D // H).transpose(1, 2)


@wrong(
    SPLIT,
    see="mha-split-heads",
    rung=1,
    why=_(
        "The number of positions is compared with H. It is the width D that is cut; T may be any "
        "number."
    ),
)
def length_checked_for_width(x, H):
    B, T, D = x.shape
    if T % H:
        raise ValueError("cannot be cut into H heads")
    return x.reshape(B, T, H, D // H).transpose(1, 2)


@wrong(
    SPLIT,
    see="mha-split-heads",
    rung=3,
    why=_(
        "squeeze() takes away every axis of size 1, so with one head, one sequence or one position "
        "an axis is missing that the next step counts on."
    ),
)
def axes_of_size_one_squeezed_away(x, H):
    B, T, D = x.shape
    if D % H:
        raise ValueError("D must be a multiple of H")
    return x.reshape(B, T, H, D // H).transpose(1, 2).squeeze()


@wrong(
    SPLIT,
    see="mha-split-heads",
    rung=3,
    why=_(
        "The result is a new tensor of float32, whatever x is. A cut changes no number: make it "
        "with the dtype of x, as x.new_empty does, or as a view."
    ),
)
def filled_in_as_float32(x, H):
    B, T, D = x.shape
    if D % H:
        raise ValueError("D must be a multiple of H")
    d = D // H
    out = torch.zeros(B, H, T, d)
    for h in range(H):
        out[:, h] = x[:, :, h * d : (h + 1) * d]
    return out


@right(SPLIT, style="chunks, stacked")
def stacked_chunks(x, H):
    if x.size(-1) % H != 0:
        raise ValueError("H does not divide D")
    return torch.stack(torch.chunk(x, H, dim=-1), dim=1)


@right(SPLIT, style="unflatten and movedim, contiguous")
def unflattened(x, H):
    if x.shape[2] % H:
        raise ValueError
    return x.unflatten(2, (H, -1)).movedim(2, 1).contiguous()


@right(SPLIT, style="one permutation of four named sizes")
def permuted(x, H):
    B, T, D = x.size()
    d, rest = divmod(D, H)
    if rest != 0:
        raise ValueError(f"rest {rest}")
    return x.view(B, T, H, d).permute(0, 2, 1, 3)


@right(SPLIT, style="filled in head by head")
def filled_in(x, H):
    B, T, D = x.shape
    if D / H != int(D / H):
        raise ValueError("not even")
    d = int(D / H)
    out = x.new_empty(B, H, T, d)
    for h in range(H):
        out[:, h] = x[:, :, h * d : h * d + d]
    return out


# --- merge_heads -----------------------------------------------------------------------------

MERGE = "merge_heads"


@wrong(
    MERGE,
    see="mha-merge-heads",
    rung=3,
    why=_(
        "Without the transpose, the reshape runs through head 0 at all positions before it comes "
        "to head 1. A row of the result then holds one head at several positions."
    ),
)
def reshape_without_transpose(x):
    B, H, T, d = x.shape
    return x.reshape(B, T, H * d)


@wrong(
    MERGE,
    see="mha-strides",
    rung=2,
    why=_(
        "view never copies, and after the transpose the heads of a position do not lie side by "
        "side in memory: it has to refuse. reshape copies where it must; so does contiguous()."
    ),
)
def view_of_a_transposed_tensor(x):
    B, H, T, d = x.shape
    return x.transpose(1, 2).view(B, T, H * d)


@wrong(
    MERGE,
    see="mha-merge-heads",
    rung=3,
    why=_(
        "The last two axes are merged as (d, H): component 0 of every head, then component 1. The "
        "heads should stand side by side, each in one piece."
    ),
)
def interleaved_components(x):
    B, H, T, d = x.shape
    return x.permute(0, 2, 3, 1).reshape(B, T, d * H)


@wrong(
    MERGE,
    see="mha-merge-heads",
    rung=1,
    why=_(
        "The heads are added, and what each of them found can no longer be told apart. Concat puts "
        "them side by side; the output map decides how they are added."
    ),
)
def sum_of_heads(x):
    return x.sum(dim=1)


@wrong(
    MERGE,
    see="mha-merge-heads",
    rung=1,
    why=_("The heads are averaged, which loses what each of them found. They belong side by side."),
)
def mean_of_heads(x):
    return x.mean(dim=1)


@wrong(
    MERGE,
    see="mha-merge-heads",
    rung=2,
    why=_(
        "The heads are put one after another along the axis of positions. They belong side by side "
        "in the vector of each position."
    ),
)
def heads_along_the_positions(x):
    return torch.cat(list(x.unbind(1)), dim=1)


@wrong(
    MERGE,
    see="mha-merge-heads",
    rung=2,
    why=_(
        "The wrong axes are exchanged: T and d instead of H and T. The shape comes out right, and "
        "the numbers of different positions are mixed up."
    ),
)
def exchanges_time_and_width(x):
    B, H, T, d = x.shape
    return x.transpose(2, 3).reshape(B, T, H * d)


@wrong(
    MERGE,
    see="mha-merge-heads",
    rung=3,
    why=_("The axes are exchanged, but H and d are still two axes: they are to become one."),
)
def axes_not_joined(x):
    return x.transpose(1, 2)


@wrong(
    MERGE,
    see="mha-merge-heads",
    rung=3,
    why=_("The heads are joined in reverse order: head 0 stands last."),
)
def last_head_first(x):
    return x.flip(1).transpose(1, 2).flatten(2)


@wrong(
    MERGE,
    see="mha-merge-heads",
    rung=1,
    why=_("Head 0 is repeated H times, the other heads are lost."),
)
def first_head_repeated(x):
    return x[:, 0].repeat(1, 1, x.shape[1])


@wrong(
    MERGE,
    see="mha-merge-heads",
    rung=2,
    why=_("The values are right, but they are cut off from the heads: no gradient can come back."),
)
def cut_off_from_the_heads(x):
    return torch.cat([part.detach() for part in x.unbind(1)], dim=-1)


@wrong(
    MERGE,
    see="mha-merge-heads",
    rung=2,
    why=_(
        "The positions were moved in front of the batch, and the reshape reads them in that order: "
        "sequences get each other's positions. For a single sequence it happens to be right."
    ),
)
def positions_before_the_batch(x):
    B, H, T, d = x.shape
    return x.permute(2, 0, 1, 3).reshape(B, T, H * d)


@wrong(
    MERGE,
    see="mha-merge-heads",
    rung=3,
    why=_(
        "squeeze() takes away every axis of size 1, so for one sequence or one position an axis is "
        "missing that the next step counts on."
    ),
)
def joined_axes_squeezed_away(x):
    return torch.cat(x.unbind(1), dim=-1).squeeze()


@wrong(
    MERGE,
    see="mha-merge-heads",
    rung=3,
    why=_(
        "The result is a new tensor of float32, whatever x is. Moving numbers changes none of "
        "them: make it with the dtype of x."
    ),
)
def joined_in_float32(x):
    B, H, T, d = x.shape
    out = torch.zeros(B, T, H * d)
    for h in range(H):
        out[..., h * d : (h + 1) * d] = x[:, h]
    return out


@wrong(
    MERGE,
    see="mha-merge-heads",
    rung=2,
    why=_(
        "transpose_ with an underscore exchanges the axes of the tensor that was handed in: the "
        "caller's heads have another shape afterwards. transpose leaves it alone."
    ),
)
def transposes_the_heads_in_place(x):
    return x.transpose_(1, 2).flatten(2)


@right(MERGE, style="heads joined by cat")
def joined(x):
    return torch.cat(x.unbind(dim=1), dim=-1)


@right(MERGE, style="permute, contiguous, view with -1")
def contiguous_view(x):
    B, _H, T, _d = x.shape
    return x.permute(0, 2, 1, 3).contiguous().view(B, T, -1)


@right(MERGE, style="flatten")
def flattened(x):
    return x.transpose(-3, -2).flatten(start_dim=-2)


@right(MERGE, style="position by position")
def by_position(x):
    B, H, T, d = x.shape
    rows = [x[:, :, t, :].reshape(B, H * d) for t in range(T)]
    return torch.stack(rows, dim=1)


# --- MultiHeadAttention ----------------------------------------------------------------------

LAYER = "MultiHeadAttention"
_Q = "q = split_heads(self.query(query), self.H)"
_K = "k = split_heads(self.key(key), self.kv_heads)"
_V = "v = split_heads(self.value(value), self.kv_heads)"
_ATTEND = "q, k, v, mask, bias=bias, dropout_p=self.dropout if self.training else 0.0"
_RETURN = "return self.output(merge_heads(heads)), weights"
_CALL = """heads, weights = scaled_dot_product_attention(
            q, k, v, mask, bias=bias, dropout_p=self.dropout if self.training else 0.0
        )  # (B, H, T, d), (B, H, T, S)"""

wrong_edit(
    LAYER,
    "scaled_by_model_width",
    {_Q: _Q + " / self.H**0.5"},
    why=_(
        "The scores are divided by √D. A query and a key of a head have d = D / H components, so "
        "their dot product spreads as √d; with √D the weights come out too even."
    ),
    see="mha-layer",
    rung=2,
)
wrong_edit(
    LAYER,
    "not_scaled",
    {_Q: _Q + "\n        q = q * q.size(-1) ** 0.5"},
    why=_("The scores are not divided by √d, so the weights come out too sharp."),
    see="mha-layer",
    rung=2,
)
wrong_edit(
    LAYER,
    "scaled_twice",
    {_Q: _Q + "\n        q = q / q.size(-1) ** 0.5"},
    why=_(
        "The scores are divided by √d twice: scaled_dot_product_attention does that itself. So "
        "they are divided by d, and the weights come out too even."
    ),
    see="mha-layer",
    rung=2,
)
wrong_edit(
    LAYER,
    "merged_without_transpose",
    {"merge_heads(heads)": "heads.reshape(query.shape)"},
    why=_(
        "The heads are put back with a reshape alone. It runs through head 0 at all positions "
        "first, so a position gets numbers of other positions."
    ),
    see="mha-merge-heads",
    rung=2,
)
wrong_edit(
    LAYER,
    "split_without_transpose",
    {
        "split_heads(self.query(query), self.H)": (
            "self.query(query).view(query.size(0), self.H, query.size(1), -1)"
        ),
        "split_heads(self.key(key), self.kv_heads)": (
            "self.key(key).view(key.size(0), self.kv_heads, key.size(1), -1)"
        ),
        "split_heads(self.value(value), self.kv_heads)": (
            "self.value(value).view(key.size(0), self.kv_heads, key.size(1), -1)"
        ),
    },
    why=_(
        "The heads are cut by a view alone. It does not move the axis of heads past the positions: "
        "a head gets whole vectors of some positions instead of a part of each."
    ),
    see="mha-split-heads",
    rung=2,
)
wrong_edit(
    LAYER,
    "interleaved_heads",
    {
        "split_heads(self.query(query), self.H)": (
            "self.query(query).unflatten(-1, (-1, self.H)).permute(0, 3, 1, 2)"
        ),
        "split_heads(self.key(key), self.kv_heads)": (
            "self.key(key).unflatten(-1, (-1, self.kv_heads)).permute(0, 3, 1, 2)"
        ),
        "split_heads(self.value(value), self.kv_heads)": (
            "self.value(value).unflatten(-1, (-1, self.kv_heads)).permute(0, 3, 1, 2)"
        ),
        "merge_heads(heads)": "heads.permute(0, 2, 3, 1).flatten(2)",
    },
    why=_(
        "A head takes every H-th component and not d neighbouring ones. In itself that is "
        "consistent, but the docstring says which components a head uses, and weights that come "
        "from another model rely on it."
    ),
    see="mha-split-heads",
    rung=2,
)
wrong_edit(
    LAYER,
    "output_map_left_out",
    {_RETURN: "return merge_heads(heads), weights"},
    why=_(
        "The merged heads are returned as they are. The output map is missing: without it the "
        "heads never mix, each keeps to its own d components."
    ),
    see="mha-layer",
    rung=1,
)
wrong_edit(
    LAYER,
    "keys_and_values_from_the_queries",
    {"self.key(key)": "self.key(query)", "self.value(value)": "self.value(query)"},
    why=_(
        "Keys and values are made from the queries' input, so it is self-attention whatever "
        "sequence is asked."
    ),
    see="mha-cross",
    rung=1,
)
wrong_edit(
    LAYER,
    "values_from_the_keys",
    {"self.value(value)": "self.value(key)"},
    why=_("The values are made from key, and the argument value is never read."),
    see="mha-cross",
    rung=1,
)
wrong_edit(
    LAYER,
    "queries_and_keys_exchanged",
    {"self.query(query)": "self.key(query)", "self.key(key)": "self.query(key)"},
    why=_(
        "The key map is applied to the asking sequence and the query map to the other: that is the "
        "transposed table of scores."
    ),
    see="mha-layer",
    rung=1,
)
wrong_edit(
    LAYER,
    "keys_and_values_share_a_map",
    {"self.value(value)": "self.key(value)"},
    why=_("The values go through the key map, and the value map is never used."),
    see="mha-sharing",
    rung=1,
)
wrong_edit(
    LAYER,
    "queries_and_keys_share_a_map",
    {"self.key(key)": "self.query(key)"},
    why=_(
        "The keys go through the query map, and the key map is never used: the scores are "
        "symmetric."
    ),
    see="mha-sharing",
    rung=1,
)
wrong_edit(
    LAYER,
    "mask_not_handed_on",
    {_ATTEND: _ATTEND.replace("mask,", "None,")},
    why=_("The mask is accepted and then forgotten: every key can be seen."),
    see="mha-masks",
    rung=3,
)
wrong_edit(
    LAYER,
    "mask_inverted",
    {_ATTEND: _ATTEND.replace("mask,", "None if mask is None else ~mask,")},
    why=_(
        "The mask is taken the other way round, as nn.MultiheadAttention does. In this book True "
        "is where attention is allowed."
    ),
    see="mha-masks",
    rung=2,
)
wrong_edit(
    LAYER,
    "mask_after_softmax",
    {
        _CALL: """heads, weights = scaled_dot_product_attention(
            q, k, v, None, bias=bias, dropout_p=self.dropout if self.training else 0.0
        )
        if mask is not None:
            weights = weights * mask
            heads = weights @ v"""
    },
    why=_(
        "The mask strikes out weights after the softmax, when the forbidden keys have had their "
        "share: what is left does not sum to 1."
    ),
    see="mha-masks",
    rung=2,
)
wrong_edit(
    LAYER,
    "bias_not_handed_on",
    {_ATTEND: _ATTEND.replace("bias=bias, ", "")},
    why=_("The argument bias is accepted and then forgotten: the scores stay as they are."),
    see="mha-layer",
    rung=3,
)
wrong_edit(
    LAYER,
    "maps_always_have_biases",
    {
        "self.query = nn.Linear(D, D, bias=bias)": "self.query = nn.Linear(D, D)",
        "self.key = nn.Linear(D, narrow, bias=bias)": "self.key = nn.Linear(D, narrow)",
        "self.value = nn.Linear(D, narrow, bias=bias)": "self.value = nn.Linear(D, narrow)",
        "self.output = nn.Linear(D, D, bias=bias)": "self.output = nn.Linear(D, D)",
    },
    why=_("The constructor's bias=False changes nothing: the maps have biases all the same."),
    see="mha-layer",
    rung=1,
)
wrong_edit(
    LAYER,
    "maps_never_have_biases",
    {
        "self.query = nn.Linear(D, D, bias=bias)": "self.query = nn.Linear(D, D, bias=False)",
        "self.key = nn.Linear(D, narrow, bias=bias)": (
            "self.key = nn.Linear(D, narrow, bias=False)"
        ),
        "self.value = nn.Linear(D, narrow, bias=bias)": (
            "self.value = nn.Linear(D, narrow, bias=False)"
        ),
        "self.output = nn.Linear(D, D, bias=bias)": "self.output = nn.Linear(D, D, bias=False)",
    },
    why=_("The maps are made without biases, and bias=True, the default, asks for them."),
    see="mha-layer",
    rung=1,
)
wrong_edit(
    LAYER,
    "output_map_without_bias",
    {"self.output = nn.Linear(D, D, bias=bias)": "self.output = nn.Linear(D, D, bias=False)"},
    why=_("Three maps have their bias; that of the output map is missing."),
    see="mha-layer",
    rung=1,
)
wrong_edit(
    LAYER,
    "maps_of_every_head_for_grouped_keys",
    {"narrow = kv_heads * (D // H)": "narrow = D"},
    why=_(
        "With kv_heads below H the key and value maps are still D wide. They make kv_heads heads "
        "of width d, so they are kv_heads·d wide."
    ),
    see="mha-grouped",
    rung=1,
)
wrong_edit(
    LAYER,
    "weights_averaged_over_heads",
    {_RETURN: "return self.output(merge_heads(heads)), weights.mean(dim=1)"},
    why=_(
        "The weights are averaged over the heads, as nn.MultiheadAttention does by default. Then "
        "nobody can see what a single head looks at."
    ),
    see="mha-against-torch",
    rung=3,
)
wrong_edit(
    LAYER,
    "weights_not_returned",
    {_RETURN: "return self.output(merge_heads(heads))"},
    why=_("Only the output is returned. The docstring promises output and weights."),
    see="mha-layer",
    rung=3,
)
wrong_edit(
    LAYER,
    "dropout_in_evaluation",
    {_ATTEND: _ATTEND.replace(" if self.training else 0.0", "")},
    why=_("Weights are dropped in evaluation as well, so the same input gives another output."),
    see="mha-layer",
    rung=2,
)
wrong_edit(
    LAYER,
    "no_dropout",
    {_ATTEND: _ATTEND.replace("self.dropout if self.training else 0.0", "0.0")},
    why=_("dropout is accepted and never used: in training no weight is dropped."),
    see="mha-layer",
    rung=3,
)
wrong_edit(
    LAYER,
    "dropout_on_the_output",
    {
        _ATTEND: _ATTEND.replace("self.dropout if self.training else 0.0", "0.0"),
        _RETURN: (
            "output = self.output(merge_heads(heads))\n        "
            "return nn.functional.dropout(output, self.dropout, self.training), weights"
        ),
    },
    why=_(
        "Dropout acts on the output. Here it belongs to the weights, between softmax and values; "
        "that of the output comes with the residual connection."
    ),
    see="mha-layer",
    rung=3,
)
wrong_edit(
    LAYER,
    "one_head_of_full_width",
    {
        "split_heads(self.query(query), self.H)": "split_heads(self.query(query), 1)",
        "split_heads(self.key(key), self.kv_heads)": "split_heads(self.key(key), 1)",
        "split_heads(self.value(value), self.kv_heads)": "split_heads(self.value(value), 1)",
    },
    why=_("The vectors are never cut: this is one head of width D, whatever H says."),
    see="mha-subspaces",
    rung=2,
)
wrong_edit(
    LAYER,
    "first_head_for_all",
    {"merge_heads(heads)": "merge_heads(heads[:, :1].expand_as(heads))"},
    why=_("What head 0 found stands in the place of every head; the others have no effect."),
    see="mha-merge-heads",
    rung=2,
)
wrong_edit(
    LAYER,
    "softmax_over_heads",
    {
        _CALL: """weights = (q @ k.transpose(-2, -1) / q.size(-1) ** 0.5).softmax(dim=1)
        heads = weights @ v"""
    },
    why=_(
        "The softmax runs over the axis of heads: for a query and a key the heads share 1 among "
        "themselves. It must run over the keys, the last axis."
    ),
    see="mha-layer",
    rung=2,
)
wrong_edit(
    LAYER,
    "softmax_over_queries",
    {
        _CALL: """weights = (q @ k.transpose(-2, -1) / q.size(-1) ** 0.5).softmax(dim=2)
        heads = weights @ v"""
    },
    why=_("The softmax runs over the queries. Each query shares out over the keys, the last axis."),
    see="mha-layer",
    rung=2,
)
wrong_edit(
    LAYER,
    "adds_its_input",
    {_RETURN: "return query + self.output(merge_heads(heads)), weights"},
    why=_(
        "The input is added to the output. That residual connection is part of the block around "
        "this layer, not of the layer."
    ),
    see="mha-layer",
    rung=3,
)
wrong_edit(
    LAYER,
    "input_given_back",
    {_RETURN: "return query, weights"},
    why=_("The output is the input: nothing that the heads found gets into it."),
    see="mha-layer",
    rung=1,
)
wrong_edit(
    LAYER,
    "even_weights",
    {_Q: _Q.replace("self.query(query)", "0 * self.query(query)")},
    why=_("Every key gets the same weight: the output is the mean of the values, whoever asks."),
    see="mha-layer",
    rung=1,
)

wrong_edit(
    LAYER,
    "output_bias_forgotten",
    {_RETURN: "return merge_heads(heads) @ self.output.weight.T, weights"},
    why=_("The weight of the output map is applied, its bias is not."),
    see="mha-layer",
    rung=3,
)
wrong_edit(
    LAYER,
    "output_weight_transposed",
    {
        _RETURN: """merged = merge_heads(heads) @ self.output.weight
        return (merged if self.output.bias is None else merged + self.output.bias), weights"""
    },
    why=_(
        "The merged heads are multiplied by the stored weight itself. nn.Linear stores (out, in) "
        "and multiplies by the transpose."
    ),
    see="mha-contributions",
    rung=3,
)
wrong_edit(
    LAYER,
    "bias_scaled_like_the_scores",
    {
        _ATTEND: _ATTEND.replace(
            "bias=bias", "bias=None if bias is None else bias / q.size(-1) ** 0.5"
        )
    },
    why=_("The bias is divided by √d too. It is added to the scores after they are scaled."),
    see="mha-layer",
    rung=3,
)
wrong_edit(
    LAYER,
    "even_weights_on_empty_rows",
    {
        _CALL: """scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
        if bias is not None:
            scores = scores + bias
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e9)
        p = self.dropout if self.training else 0.0
        weights = nn.functional.dropout(scores.softmax(dim=-1), p)
        heads = weights @ v"""
    },
    why=_(
        "A query that may see no key attends to all of them evenly: its scores are all equally "
        "low. It is to get zero weights."
    ),
    see="mha-masks",
    rung=2,
)
wrong_edit(
    LAYER,
    "nan_on_empty_rows",
    {
        _CALL: """scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
        if bias is not None:
            scores = scores + bias
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        p = self.dropout if self.training else 0.0
        weights = nn.functional.dropout(scores.softmax(dim=-1), p)
        heads = weights @ v"""
    },
    why=_(
        "A query that may see no key gives NaN: the softmax of a row of -inf is 0/0. It is to get "
        "zero weights."
    ),
    see="mha-masks",
    rung=2,
)
wrong_edit(
    LAYER,
    "weights_before_dropout_returned",
    {
        _ATTEND: _ATTEND.replace("self.dropout if self.training else 0.0", "0.0"),
        _RETURN: """dropped = nn.functional.dropout(weights, self.dropout, self.training)
        return self.output(merge_heads(dropped @ v)), weights""",
    },
    why=_(
        "The weights that are returned are not those that multiplied the values: these had passed "
        "through dropout."
    ),
    see="mha-layer",
    rung=3,
)
wrong_edit(
    LAYER,
    "dropout_on_the_heads",
    {
        _ATTEND: _ATTEND.replace("self.dropout if self.training else 0.0", "0.0"),
        _RETURN: """heads = nn.functional.dropout(heads, self.dropout, self.training)
        return self.output(merge_heads(heads)), weights""",
    },
    why=_(
        "Dropout acts on what the heads have mixed. It belongs to the weights, between softmax "
        "and values."
    ),
    see="mha-layer",
    rung=3,
)
wrong_edit(
    LAYER,
    "weights_before_output",
    {_RETURN: "return weights, self.output(merge_heads(heads))"},
    why=_("The two results are returned in the wrong order: the output comes first."),
    see="mha-layer",
    rung=3,
)
wrong_edit(
    LAYER,
    "keys_from_the_values",
    {"self.key(key)": "self.key(value)"},
    why=_("The keys are made from the argument value; they are made from key."),
    see="mha-cross",
    rung=1,
)
wrong_edit(
    LAYER,
    "output_map_always_has_a_bias",
    {"self.output = nn.Linear(D, D, bias=bias)": "self.output = nn.Linear(D, D)"},
    why=_("bias is passed on to three maps; the output map has a bias with bias=False too."),
    see="mha-layer",
    rung=1,
)
wrong_edit(
    LAYER,
    "keys_and_values_without_bias",
    {
        "self.key = nn.Linear(D, narrow, bias=bias)": (
            "self.key = nn.Linear(D, narrow, bias=False)"
        ),
        "self.value = nn.Linear(D, narrow, bias=bias)": (
            "self.value = nn.Linear(D, narrow, bias=False)"
        ),
    },
    why=_("The maps of keys and values have no bias, and bias=True, the default, asks for it."),
    see="mha-layer",
    rung=1,
)
wrong_edit(
    LAYER,
    "dropout_on_the_merged_heads",
    {
        _ATTEND: _ATTEND.replace("self.dropout if self.training else 0.0", "0.0"),
        _RETURN: """merged = nn.functional.dropout(merge_heads(heads), self.dropout, self.training)
        return self.output(merged), weights""",
    },
    form_of="dropout_on_the_heads",
    why=_(
        "Dropout acts on the merged heads. It belongs to the weights, between softmax and values."
    ),
    see="mha-layer",
    rung=3,
)
wrong_edit(
    LAYER,
    "renormalised_after_dropout",
    {
        _RETURN: """weights = weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-9)
        return self.output(merge_heads(weights @ v)), weights"""
    },
    why=_(
        "After dropout the rows are made to sum to 1 again. That undoes it: a weight that survives "
        "takes over the share of those that were dropped."
    ),
    see="mha-layer",
    rung=3,
)
wrong_edit(
    LAYER,
    "mask_axis_added_for_the_heads",
    {
        _CALL: """if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)
        """
        + _CALL
    },
    why=_(
        "A mask of three axes is taken for (B, T, S) and given an axis for the heads. By the rule "
        "of broadcasting, and by the docstring, it is (H, T, S): one mask for each head."
    ),
    see="mha-masks",
    rung=2,
)
wrong_edit(
    LAYER,
    "first_sequences_mask_for_all",
    {
        _CALL: """if mask is not None and mask.dim() == 4:
            mask = mask[0]
        """
        + _CALL
    },
    why=_("The mask of the first sequence is used for the whole batch."),
    see="mha-masks",
    rung=2,
)
wrong_edit(
    LAYER,
    "mask_added_to_the_scores",
    {
        _CALL: """scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
        if bias is not None:
            scores = scores + bias
        if mask is not None:
            scores = scores + mask
        p = self.dropout if self.training else 0.0
        weights = nn.functional.dropout(scores.softmax(dim=-1), p)
        heads = weights @ v"""
    },
    why=_(
        "The boolean mask is added to the scores, where True counts as 1 and False as 0: allowed "
        "keys are favoured a little and none is hidden."
    ),
    see="mha-masks",
    rung=2,
)
wrong_edit(
    LAYER,
    "mask_forgotten_beside_a_bias",
    {
        _CALL: """if bias is not None:
            mask = None
        """
        + _CALL
    },
    why=_(
        "Where a bias is given the mask is not applied (an elif, or an early return). The two say "
        "different things, how much and whether, and both may be given."
    ),
    see="mha-masks",
    rung=2,
)
wrong_edit(
    LAYER,
    "bias_given_one_more_axis",
    {
        _CALL: """if bias is not None:
            bias = bias.unsqueeze(0)
        """
        + _CALL
    },
    why=_(
        "The bias is given one more axis in front. A table (H, T, S) broadcasts as it is, and one "
        "with an axis for the batch no longer fits."
    ),
    see="mha-masks",
    rung=3,
)


wrong_edit(
    LAYER,
    "bias_forgotten_beside_a_mask",
    {
        _CALL: """if mask is not None:
            bias = None
        """
        + _CALL
    },
    why=_(
        "Where a mask is given the bias is not added (an elif, or an early return). The two say "
        "different things, whether and how much, and both may be given."
    ),
    see="mha-masks",
    rung=2,
)
wrong_edit(
    LAYER,
    "mask_turned_round_in_place",
    {
        _CALL: """if mask is not None:
            forbidden = mask.logical_not_()
            mask = ~forbidden
        """
        + _CALL
    },
    why=_(
        "logical_not_ with an underscore turns round the caller's own mask. This call is right, "
        "and the next layer, given the same mask, hides what it should show."
    ),
    see="mha-masks",
    rung=2,
)
wrong_edit(
    LAYER,
    "truth_of_a_table",
    {
        _CALL: """scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
        if bias:
            scores = scores + bias
        weights = masked_softmax(scores, mask)
        p = self.dropout if self.training else 0.0
        weights = nn.functional.dropout(weights, p)
        heads = weights @ v"""
    },
    why=_(
        "`if bias:` asks whether the bias is True, which is said of one number and not of a table: "
        "torch raises. Ask `if bias is not None`."
    ),
    see="mha-masks",
    rung=3,
)
wrong_edit(
    LAYER,
    "mask_kept_for_later_calls",
    {
        _CALL: """if mask is not None:
            self.mask = mask
        mask = getattr(self, "mask", None)
        """
        + _CALL
    },
    why=_(
        "The mask of a call is kept in the module, and a later call without a mask uses it. A mask "
        "belongs to the batch that it came with."
    ),
    see="mha-masks",
    rung=3,
)
wrong_edit(
    LAYER,
    "seed_set_inside",
    {_CALL: "torch.manual_seed(0)\n        " + _CALL},
    why=_(
        "A seed is set inside forward, so every call drops the same weights, and all other random "
        "numbers of the program start over as well."
    ),
    see="mha-layer",
    rung=3,
)


wrong_edit(
    LAYER,
    "zero_output_for_empty_rows",
    {
        _RETURN: """output = self.output(merge_heads(heads))
        return output * (weights.sum(dim=(1, 3)) > 0).unsqueeze(-1), weights"""
    },
    why=_(
        "The whole output of a query without keys is set to 0. Its mix is 0, and the output map "
        "makes its own bias of that, as the docstring says."
    ),
    see="mha-masks",
    rung=3,
)
wrong_edit(
    LAYER,
    "one_length_for_queries_and_keys",
    {
        "split_heads(self.key(key), self.kv_heads)": (
            "self.key(key).view(*query.shape[:2], self.kv_heads, -1).transpose(1, 2)"
        ),
        "split_heads(self.value(value), self.kv_heads)": (
            "self.value(value).view(*query.shape[:2], self.kv_heads, -1).transpose(1, 2)"
        ),
    },
    why=_(
        "The lengths T and S are taken to be the same: keys are cut, or heads merged, with the "
        "length of the other sequence. They differ as soon as another sequence is asked."
    ),
    see="mha-cross",
    rung=2,
)
wrong_edit(
    LAYER,
    "keys_cut_at_the_queries_length",
    {
        "split_heads(self.key(key), self.kv_heads)": (
            "self.key(key).view(*query.shape[:2], self.kv_heads, query.size(2) // self.H)"
            ".transpose(1, 2)"
        ),
        "split_heads(self.value(value), self.kv_heads)": (
            "self.value(value).view(*query.shape[:2], self.kv_heads, query.size(2) // self.H)"
            ".transpose(1, 2)"
        ),
    },
    form_of="one_length_for_queries_and_keys",
    why=_(
        "The lengths T and S are taken to be the same: keys are cut, or heads merged, with the "
        "length of the other sequence. They differ as soon as another sequence is asked."
    ),
    see="mha-cross",
    rung=2,
)
wrong_edit(
    LAYER,
    "heads_merged_at_the_keys_length",
    {"merge_heads(heads)": "heads.transpose(1, 2).reshape(key.size(0), key.size(1), -1)"},
    form_of="one_length_for_queries_and_keys",
    why=_(
        "The heads are merged with the length of the keys. There is one result for each query: T "
        "positions, not S."
    ),
    see="mha-cross",
    rung=2,
)
wrong_edit(
    LAYER,
    "grouped_keys_split_into_all_heads",
    {
        "split_heads(self.key(key), self.kv_heads)": "split_heads(self.key(key), self.H)",
        "split_heads(self.value(value), self.kv_heads)": "split_heads(self.value(value), self.H)",
    },
    why=_(
        "Keys and values are split into H heads. They have kv_heads of them, and the given lines "
        "repeat these for their groups."
    ),
    see="mha-grouped",
    rung=2,
)
wrong_edit(
    LAYER,
    "weights_collected_as_float32",
    {
        _RETURN: """shown = torch.zeros(weights.shape)
        for h in range(self.H):
            shown[:, h] = weights[:, h]
        return self.output(merge_heads(heads)), shown"""
    },
    why=_(
        "The weights are collected in a new tensor of float32, whatever dtype the layer has. Make "
        "it with the dtype of what goes into it."
    ),
    see="mha-layer",
    rung=3,
)


right_edit(
    LAYER,
    "fused_projection",
    {
        "        " + _Q: """        if key is query and value is query and self.kv_heads == self.H:
            weight = torch.cat([self.query.weight, self.key.weight, self.value.weight])
            bias_ = None
            if self.query.bias is not None:
                bias_ = torch.cat([self.query.bias, self.key.bias, self.value.bias])
            joint = nn.functional.linear(query, weight, bias_)  # (B, T, 3D)
            q, k, v = (split_heads(part, self.H) for part in joint.chunk(3, dim=-1))
        else:
            q = split_heads(self.query(query), self.H)""",
        "        " + _K: "            " + _K,
        "        " + _V: "            " + _V,
    },
    style="one product for queries, keys and values",
)
right_edit(
    LAYER,
    "attention_by_einsum",
    {
        _CALL: """scores = torch.einsum("bhtd,bhsd->bhts", q, k) / q.shape[-1] ** 0.5
        if bias is not None:
            scores = scores + bias
        if mask is not None:
            scores = scores.masked_fill(mask.logical_not(), -1e9)
        weights = torch.softmax(scores, dim=-1)
        if mask is not None:
            weights = torch.where(mask, weights, torch.zeros(()))
        weights = nn.functional.dropout(weights, p=self.dropout, training=self.training)
        heads = torch.einsum("bhts,bhsd->bhtd", weights, v)"""
    },
    style="own softmax, einsum, dropout module's flag",
)
right_edit(
    LAYER,
    "loop_over_heads",
    {
        _CALL: """p = self.dropout if self.training else 0.0
        full = (q.size(0), self.H, q.size(2), k.size(2))
        m = None if mask is None else mask.expand(full)
        a = None if bias is None else bias.expand(full)
        found = [
            scaled_dot_product_attention(
                q[:, h], k[:, h], v[:, h],
                None if m is None else m[:, h],
                bias=None if a is None else a[:, h],
                dropout_p=p,
            )
            for h in range(self.H)
        ]
        heads = torch.stack([item[0] for item in found], dim=1)
        weights = torch.stack([item[1] for item in found], dim=1)"""
    },
    style="one head after another",
)
right_edit(
    LAYER,
    "sum_of_head_outputs",
    {
        _RETURN: """d = heads.size(-1)
        parts = [heads[:, h] @ self.output.weight[:, h * d : (h + 1) * d].T for h in range(self.H)]
        total = sum(parts)
        if self.output.bias is not None:
            total = total + self.output.bias
        return total, weights"""
    },
    style="the output map head by head, no merge",
)
right_edit(
    LAYER,
    "queries_scaled_first",
    {
        _Q: "q = split_heads(self.query(query) / (query.size(-1) // self.H) ** 0.25, self.H)",
        _K: "k = split_heads(self.key(key) / (query.size(-1) // self.H) ** 0.25, self.kv_heads)",
        _CALL: """weights = q @ k.mT
        if bias is not None:
            weights = weights + bias
        if mask is None:
            weights = weights.softmax(dim=-1)
        else:
            powers = weights.sub(weights.amax(-1, keepdim=True)).exp() * mask
            weights = powers / powers.sum(-1, keepdim=True).clamp_min(1e-20)
        if self.training and self.dropout:
            keep = torch.rand_like(weights) >= self.dropout
            weights = weights * keep / (1 - self.dropout)
        heads = weights @ v""",
    },
    style="both sides scaled before the product, own dropout",
)

# --- weights_from_torch ----------------------------------------------------------------------

CARRY = "weights_from_torch"
_CUT = 'state["in_proj_weight"].chunk(3)'
_CUT_BIAS = 'state["in_proj_bias"].chunk(3)'
_NAMES = 'names = ("query", "key", "value")'

wrong_edit(
    CARRY,
    "keys_before_queries",
    {_NAMES: 'names = ("key", "query", "value")'},
    why=_("The first third goes to the keys. PyTorch stacks queries, keys, values, in this order."),
    see="mha-against-torch",
    rung=3,
)
wrong_edit(
    CARRY,
    "values_before_keys",
    {_NAMES: 'names = ("query", "value", "key")'},
    why=_("The second third goes to the values. PyTorch stacks queries, keys, values."),
    see="mha-against-torch",
    rung=3,
)
wrong_edit(
    CARRY,
    "cut_by_columns",
    {_CUT: 'state["in_proj_weight"].chunk(3, dim=1)'},
    why=_(
        "The stacked weight is cut along its columns. Columns belong to inputs; the three maps "
        "stand above one another in the rows, the outputs."
    ),
    see="mha-against-torch",
    rung=2,
)
wrong_edit(
    CARRY,
    "every_third_row",
    {
        _CUT: '[state["in_proj_weight"][i::3] for i in range(3)]',
        _CUT_BIAS: '[state["in_proj_bias"][i::3] for i in range(3)]',
    },
    why=_("Each map gets every third row. The maps stand in blocks of D rows."),
    see="mha-against-torch",
    rung=3,
)
wrong_edit(
    CARRY,
    "weights_transposed",
    {
        'ours[f"{name}.weight"] = weight': 'ours[f"{name}.weight"] = weight.T',
        '{"output.weight": state["out_proj.weight"]}': (
            '{"output.weight": state["out_proj.weight"].T}'
        ),
    },
    why=_(
        "All weights are transposed. PyTorch's layer and nn.Linear store them alike, as (out, in)."
    ),
    see="mha-against-torch",
    rung=1,
)
wrong_edit(
    CARRY,
    "stacked_weights_transposed",
    {'ours[f"{name}.weight"] = weight': 'ours[f"{name}.weight"] = weight.T'},
    why=_("The three stacked weights are transposed. They are stored as (out, in) already."),
    see="mha-against-torch",
    rung=1,
)
wrong_edit(
    CARRY,
    "output_map_transposed",
    {
        '{"output.weight": state["out_proj.weight"]}': (
            '{"output.weight": state["out_proj.weight"].T}'
        )
    },
    why=_("The weight of the output map is transposed. It is stored as (out, in) already."),
    see="mha-against-torch",
    rung=1,
)
wrong_edit(
    CARRY,
    "biases_taken_for_granted",
    {'if "in_proj_bias" in state:': "if True:"},
    why=_("A layer made with bias=False has no biases in its state: asking for them is an error."),
    see="mha-against-torch",
    rung=2,
)
wrong_edit(
    CARRY,
    "biases_forgotten",
    {'if "in_proj_bias" in state:': "if False:"},
    why=_("Only the weights are carried over; the four biases are missing."),
    see="mha-against-torch",
    rung=3,
)
wrong_edit(
    CARRY,
    "output_bias_forgotten",
    {'ours["output.bias"] = state["out_proj.bias"]': "pass"},
    why=_("The bias of the output map is missing."),
    see="mha-against-torch",
    rung=3,
)
wrong_edit(
    CARRY,
    "biases_in_another_order",
    {"zip(names, " + _CUT_BIAS: "zip(names[::-1], " + _CUT_BIAS},
    why=_("The weights are in order; the biases of queries and values are exchanged."),
    see="mha-against-torch",
    rung=3,
)
wrong_edit(
    CARRY,
    "whole_stack_for_each_map",
    {
        'ours[f"{name}.weight"] = weight': 'ours[f"{name}.weight"] = state["in_proj_weight"]',
        'ours[f"{name}.bias"] = bias': 'ours[f"{name}.bias"] = state["in_proj_bias"]',
    },
    why=_("Each map gets all 3D rows. Its own are D of them."),
    see="mha-against-torch",
    rung=1,
)
wrong_edit(
    CARRY,
    "zero_biases_added",
    {
        "    return ours": """    D = state["out_proj.weight"].size(0)
    for name in (*names, "output"):
        ours.setdefault(f"{name}.bias", torch.zeros(D))
    return ours"""
    },
    why=_(
        "Zeros are made up for biases that are not there. They change no output, but a layer "
        "without biases refuses to load them."
    ),
    see="mha-against-torch",
    rung=2,
)
wrong_edit(
    CARRY,
    "their_names_kept",
    {"    return ours": "    return {**state, **ours}"},
    why=_("PyTorch's own entries stand beside ours; load_state_dict refuses names too many."),
    see="mha-against-torch",
    rung=3,
)


wrong_edit(
    CARRY,
    "output_map_forgotten",
    {
        '{"output.weight": state["out_proj.weight"]}': "{}",
        'ours["output.bias"] = state["out_proj.bias"]': "pass",
    },
    why=_("The three stacked maps are carried over; the output map is missing."),
    see="mha-against-torch",
    rung=3,
)


@wrong(
    CARRY,
    see="mha-against-torch",
    rung=3,
    why=_(
        "The values are right, but entries of the state that was handed in are taken out of it: "
        "whoever gave it cannot use it any more."
    ),
)
def takes_their_state_apart(state):
    ours = {}
    for kind in ("weight", "bias"):
        if f"in_proj_{kind}" in state:
            parts = state.pop(f"in_proj_{kind}").chunk(3)
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                ours[f"{name}.{kind}"] = part
            ours[f"output.{kind}"] = state.pop(f"out_proj.{kind}")
    return ours


@wrong(
    CARRY,
    see="mha-against-torch",
    rung=2,
    why=_(
        "Where the state has no biases the names stand there all the same, with None for a tensor: "
        "load_state_dict refuses them. Leave the names out."
    ),
)
def none_for_missing_biases(state):
    q, k, v = state["in_proj_weight"].chunk(3)
    a, b, c = state["in_proj_bias"].chunk(3) if "in_proj_bias" in state else (None, None, None)
    return {
        "query.weight": q,
        "key.weight": k,
        "value.weight": v,
        "output.weight": state["out_proj.weight"],
        "query.bias": a,
        "key.bias": b,
        "value.bias": c,
        "output.bias": state.get("out_proj.bias"),
    }


@wrong(
    CARRY,
    see="mha-against-torch",
    rung=3,
    why=_(
        "The cut is made at rows 32 and 64, as for the layer of the example. The width D is that "
        "of the state: a third of its rows."
    ),
)
def cut_at_the_examples_width(state):
    ours = {}
    for kind in ("weight", "bias"):
        if f"in_proj_{kind}" in state:
            stacked = state[f"in_proj_{kind}"]
            ours[f"query.{kind}"] = stacked[:32]
            ours[f"key.{kind}"] = stacked[32:64]
            ours[f"value.{kind}"] = stacked[64:]
            ours[f"output.{kind}"] = state[f"out_proj.{kind}"]
    return ours


@wrong(
    CARRY,
    see="mha-against-torch",
    rung=3,
    why=_("The values get the rows of the keys: the last third of the stack is never read."),
)
def values_get_the_keys_rows(state):
    ours = {}
    for kind in ("weight", "bias"):
        if f"in_proj_{kind}" in state:
            q, k, _v = state[f"in_proj_{kind}"].chunk(3)
            ours[f"query.{kind}"], ours[f"key.{kind}"], ours[f"value.{kind}"] = q, k, k
            ours[f"output.{kind}"] = state[f"out_proj.{kind}"]
    return ours


@right(CARRY, style="slices of D rows, copied")
def by_row_slices(state):
    D = state["in_proj_weight"].shape[1]
    result = {}
    for kind in ("weight", "bias"):
        stacked = state.get("in_proj_" + kind)
        if stacked is None:
            continue
        result["query." + kind] = stacked[:D].clone()
        result["key." + kind] = stacked[D : 2 * D].clone()
        result["value." + kind] = stacked[2 * D :].clone()
        result["output." + kind] = state["out_proj." + kind].clone()
    return result


@right(CARRY, style="unflatten and unbind, another order of names")
def by_unflatten(state):
    names = "query", "key", "value"
    result = {
        f"{name}.{full.rsplit('_', 1)[1]}": part
        for full in sorted(state)
        if full.startswith("in_proj")
        for name, part in zip(names, state[full].unflatten(0, (3, -1)).unbind(0), strict=True)
    }
    result.update(
        {full.replace("out_proj", "output"): t for full, t in state.items() if "out_proj" in full}
    )
    return result


@right(CARRY, style="loaded into a module and read back")
def through_a_module(state):
    D = state["out_proj.weight"].shape[0]
    biased = "out_proj.bias" in state
    layer = MultiHeadAttention(D, 1, bias=biased)
    with torch.no_grad():
        q, k, v = torch.split(state["in_proj_weight"], D, dim=0)
        layer.query.weight.copy_(q)
        layer.key.weight.copy_(k)
        layer.value.weight.copy_(v)
        layer.output.weight.copy_(state["out_proj.weight"])
        if biased:
            for linear, part in zip(
                (layer.query, layer.key, layer.value), state["in_proj_bias"].split(D), strict=True
            ):
                linear.bias.copy_(part)
            layer.output.bias.copy_(state["out_proj.bias"])
    return layer.state_dict()


# --- multi_head_cost -------------------------------------------------------------------------

COST = "multi_head_cost"


wrong_edit(
    COST,
    "biases_not_counted",
    {"2 * (D * D + D) + 2 * (D * narrow + narrow)": "2 * D * D + 2 * D * narrow"},
    why=_("The four biases are parameters too: one number for each output of a map."),
    see="mha-cost",
    rung=3,
)
wrong_edit(
    COST,
    "output_map_not_counted",
    {
        "2 * (D * D + D) + 2": "(D * D + D) + 2",
        "2 * (2 * B * T * D * D) +": "2 * B * T * D * D +",
    },
    why=_("Three maps are counted. The output map is the fourth."),
    see="mha-cost",
    rung=1,
)
wrong_edit(
    COST,
    "maps_of_full_width_for_each_head",
    {
        "2 * (D * D + D) + 2 * (D * narrow + narrow)": (
            "2 * (D * D + D) * H + 2 * (D * narrow + narrow) * kv_heads"
        )
    },
    why=_(
        "Each head is given maps of its own from D to D. A head's maps go from D to d; all heads "
        "together make one map from D to D, so the number of heads does not change the parameters."
    ),
    see="mha-cost",
    rung=1,
)
wrong_edit(
    COST,
    "one_operation_for_two",
    {
        "2 * (2 * B * T * D * D) + 2 * (2 * B * S * D * narrow)": (
            "2 * B * T * D * D + 2 * B * S * D * narrow"
        ),
        "2 * (2 * B * H * T * S * d)": "2 * B * H * T * S * d",
    },
    why=_("A multiplication and its addition are counted as one operation; they are two."),
    see="mha-cost",
    rung=2,
)
wrong_edit(
    COST,
    "keys_counted_at_the_queries_length",
    {"2 * (2 * B * S * D * narrow)": "2 * (2 * B * T * D * narrow)"},
    why=_("Keys and values are made from S positions, not from T."),
    see="mha-cost",
    rung=3,
)
wrong_edit(
    COST,
    "queries_counted_at_the_keys_length",
    {"2 * (2 * B * T * D * D) +": "2 * B * T * D * D + 2 * B * S * D * D +"},
    why=_("One of the two maps of the asking sequence is counted at S positions instead of T."),
    see="mha-cost",
    rung=3,
)
wrong_edit(
    COST,
    "linear_maps_left_out",
    {"return parameters, linear + attention,": "return parameters, attention,"},
    why=_(
        "The operations of the four linear maps are missing; for short texts they are most of it."
    ),
    see="mha-cost",
    rung=1,
)
wrong_edit(
    COST,
    "attention_left_out",
    {"return parameters, linear + attention,": "return parameters, linear,"},
    why=_("The two products of attention are missing: only the linear maps are counted."),
    see="mha-cost",
    rung=1,
)
wrong_edit(
    COST,
    "one_product_of_attention",
    {"2 * (2 * B * H * T * S * d)": "2 * B * H * T * S * d"},
    why=_("Attention has two products: queries with keys, and weights with values."),
    see="mha-cost",
    rung=3,
)
wrong_edit(
    COST,
    "heads_of_full_width",
    {"2 * (2 * B * H * T * S * d)": "2 * (2 * B * H * T * S * D)"},
    why=_(
        "Each head's products are counted with width D. A head is d wide, and H·d is D: more heads "
        "do not make the products dearer."
    ),
    see="mha-cost",
    rung=2,
)
wrong_edit(
    COST,
    "one_table_for_all_heads",
    {"weights = B * H * T * S": "weights = B * T * S"},
    why=_(
        "One (T, S) table is counted for all heads. Each head has a table of its own, as large as "
        "if it were alone: splitting makes the vectors narrower, not the tables."
    ),
    see="mha-memory",
    rung=2,
)
wrong_edit(
    COST,
    "tables_shrink_with_the_heads",
    {"weights = B * H * T * S * bytes_per_number": "weights = B * T * S * bytes_per_number // H"},
    why=_(
        "The weights are taken to shrink with the number of heads. A table is (T, S) whatever the "
        "width of a head, and there are H of them: they grow with the number of heads."
    ),
    see="mha-memory",
    rung=2,
)
wrong_edit(
    COST,
    "grouping_changes_nothing",
    {"kv_heads = H if kv_heads is None else kv_heads": "kv_heads = H"},
    why=_("kv_heads is never used: fewer heads of keys make maps, keys and values smaller."),
    see="mha-grouped",
    rung=3,
)
wrong_edit(
    COST,
    "grouping_shrinks_the_tables",
    {"weights = B * H * T * S": "weights = B * kv_heads * T * S"},
    why=_(
        "The tables of weights are counted per head of the keys. Every query head still has a "
        "table of its own; only keys and values become fewer."
    ),
    see="mha-grouped",
    rung=2,
)
wrong_edit(
    COST,
    "keys_without_values",
    {"2 * B * kv_heads * S * d": "B * kv_heads * S * d"},
    why=_("Only the keys are counted; the values take as much again."),
    see="mha-cost",
    rung=3,
)
wrong_edit(
    COST,
    "always_four_bytes",
    {
        "B * H * T * S * bytes_per_number": "B * H * T * S * 4",
        "kv_heads * S * d * bytes_per_number": "kv_heads * S * d * 4",
    },
    why=_("Four bytes are counted for a number whatever bytes_per_number says."),
    see="mha-cost",
    rung=3,
)
wrong_edit(
    COST,
    "numbers_instead_of_bytes",
    {
        "B * H * T * S * bytes_per_number": "B * H * T * S",
        "kv_heads * S * d * bytes_per_number": "kv_heads * S * d",
    },
    why=_("The last two results are numbers of entries; asked for are bytes."),
    see="mha-cost",
    rung=3,
)
wrong_edit(
    COST,
    "batch_forgotten",
    {
        "2 * (2 * B * T * D * D) + 2 * (2 * B * S * D * narrow)": (
            "2 * (2 * T * D * D) + 2 * (2 * S * D * narrow)"
        ),
        "2 * (2 * B * H * T * S * d)": "2 * (2 * H * T * S * d)",
        "weights = B * H": "weights = H",
        "2 * B * kv_heads * S": "2 * kv_heads * S",
    },
    why=_("This is the cost of one sequence; there are B of them."),
    see="mha-cost",
    rung=3,
)


wrong_edit(
    COST,
    "softmax_counted",
    {
        "return parameters, linear + attention,": "return parameters, linear + attention + 5 * B * H * T * S,"
    },
    why=_("Operations of the softmax or of the scale are counted; the docstring leaves them out."),
    see="mha-cost",
    rung=1,
)
wrong_edit(
    COST,
    "additions_of_biases_counted",
    {
        "return parameters, linear + attention,": (
            "return parameters, linear + attention + 2 * B * T * D + 2 * B * S * narrow,"
        )
    },
    why=_("The additions of the biases are counted; the docstring leaves them out."),
    see="mha-cost",
    rung=1,
)
wrong_edit(
    COST,
    "keys_and_values_of_every_head",
    {"2 * B * kv_heads * S * d": "2 * B * H * S * d"},
    why=_(
        "The last number counts keys and values for every query head. With kv_heads there are "
        "fewer of them, and that is the point of sharing."
    ),
    see="mha-grouped",
    rung=3,
)
wrong_edit(
    COST,
    "grouping_saves_products",
    {"2 * (2 * B * H * T * S * d)": "2 * (2 * B * kv_heads * T * S * d)"},
    why=_(
        "The products of attention are counted per head of the keys. Every query head still meets "
        "all keys of its group: sharing saves memory, not products."
    ),
    see="mha-grouped",
    rung=2,
)
wrong_edit(
    COST,
    "biases_of_full_width",
    {"2 * (D * narrow + narrow)": "2 * (D * narrow + D)"},
    why=_("The biases of the key and value maps are as long as these maps are wide: kv_heads·d."),
    see="mha-grouped",
    rung=3,
)
wrong_edit(
    COST,
    "one_length_for_both",
    {"    d = D // H\n": "    d, S = D // H, T\n"},
    why=_("Everything is counted as in self-attention: the number of keys, S, is never used."),
    see="mha-cross",
    rung=3,
)


wrong_edit(
    COST,
    "grouping_shrinks_the_cache_only",
    {"narrow = kv_heads * d": "narrow = D"},
    why=_(
        "kv_heads makes the keys and values smaller here, but not the maps that make them: the key "
        "and value maps go from D to kv_heads·d."
    ),
    see="mha-grouped",
    rung=3,
)
wrong_edit(
    COST,
    "keys_and_values_always_of_four_bytes",
    {"kv_heads * S * d * bytes_per_number": "kv_heads * S * d * 4"},
    why=_("Four bytes are counted for each number of keys and values, whatever is asked for."),
    see="mha-cost",
    rung=3,
)
wrong_edit(
    COST,
    "weights_always_of_four_bytes",
    {"B * H * T * S * bytes_per_number": "B * H * T * S * 4"},
    why=_("Four bytes are counted for each of the weights, whatever bytes_per_number says."),
    see="mha-cost",
    rung=3,
)
wrong_edit(
    COST,
    "products_of_queries_with_queries",
    {"2 * (2 * B * H * T * S * d)": "2 * (2 * B * H * T * T * d)"},
    why=_("The products are counted with T keys for T queries; there are S keys."),
    see="mha-cross",
    rung=3,
)


@right(COST, style="a list of maps, added up")
def added_up(B, T, S, D, H, *, kv_heads=None, bytes_per_number=4):
    groups = kv_heads or H
    d = D // H
    parameters = operations = 0
    for rows, width in ((T, H * d), (S, groups * d), (S, groups * d), (T, D)):
        parameters += (D + 1) * width
        operations += 2 * B * rows * D * width
    operations += 4 * B * T * S * D
    return [
        parameters,
        operations,
        bytes_per_number * B * H * T * S,
        bytes_per_number * 2 * B * S * groups * d,
    ]


@right(COST, style="parameters counted on a real layer")
def counted_on_a_layer(B, T, S, D, H, *, kv_heads=None, bytes_per_number=4):
    layer = MultiHeadAttention(D, H, kv_heads=kv_heads)
    parameters = sum(p.numel() for p in layer.parameters())
    weights = [layer.query, layer.output, layer.key, layer.value]
    operations = sum(
        2 * B * rows * linear.weight.numel()
        for linear, rows in zip(weights, (T, T, S, S), strict=True)
    )
    operations += 2 * B * H * T * S * (D // H) * 2
    table = torch.empty(B, H, T, S, device="meta")
    keys = torch.empty(2, B, S, layer.key.out_features, device="meta")
    return (
        parameters,
        operations,
        table.numel() * bytes_per_number,
        keys.numel() * bytes_per_number,
    )


@right(COST, style="shares of D, and floats on the way")
def with_shares_of_the_width(B, T, S, D, H, *, kv_heads=None, bytes_per_number=4):
    share = (kv_heads or H) / H
    parameters = 2 * D * (D + 1) * (1 + share)
    operations = 4 * B * D * (D * (T + S * share) + T * S)
    keys_and_values = 2 * B * S * D * share * bytes_per_number
    table = B * H * T * S * bytes_per_number
    return round(parameters), round(operations), table, round(keys_and_values)


# --- head_contributions ----------------------------------------------------------------------

ADDS = "head_contributions"


@wrong(
    ADDS,
    see="mha-contributions",
    rung=2,
    why=_(
        "Head h is given rows h·d to (h + 1)·d of the weight. nn.Linear stores (out, in): what a "
        "head is multiplied by stands in its columns."
    ),
)
def rows_for_columns(heads, weight):
    B, H, T, d = heads.shape
    return torch.stack([heads[:, h] @ weight[h * d : (h + 1) * d] for h in range(H)], dim=1)


@wrong(
    ADDS,
    see="mha-contributions",
    rung=1,
    why=_(
        "Head h is given every H-th column of the weight. Merged heads stand side by side, so head "
        "h owns d neighbouring columns."
    ),
)
def every_hth_column(heads, weight):
    H = heads.shape[1]
    return torch.stack([heads[:, h] @ weight[:, h::H].T for h in range(H)], dim=1)


@wrong(
    ADDS,
    see="mha-contributions",
    rung=3,
    why=_("Every head is multiplied by the columns of head 0."),
)
def columns_of_the_first_head(heads, weight):
    d = heads.shape[-1]
    return heads @ weight[:, :d].T


@wrong(
    ADDS,
    see="mha-contributions",
    rung=3,
    why=_("Head h meets the columns of the head that is as far from the other end."),
)
def columns_in_reverse_order(heads, weight):
    H, d = heads.shape[1], heads.shape[-1]
    parts = weight.reshape(-1, H, d).flip(1)
    return torch.stack([heads[:, h] @ parts[:, h].T for h in range(H)], dim=1)


@wrong(
    ADDS,
    see="mha-contributions",
    rung=3,
    why=_("Each head meets the columns of its neighbour: the slices are shifted by one head."),
)
def columns_of_the_next_head(heads, weight):
    H, d = heads.shape[1], heads.shape[-1]
    parts = weight.reshape(-1, H, d).roll(-1, 1)
    return torch.stack([heads[:, h] @ parts[:, h].T for h in range(H)], dim=1)


@wrong(
    ADDS,
    see="mha-contributions",
    rung=1,
    why=_(
        "Each part is the whole output divided by H. The heads do not add alike: that is what the "
        "parts are to show."
    ),
)
def even_share_of_the_output(heads, weight):
    B, H, T, d = heads.shape
    whole = heads.transpose(1, 2).reshape(B, T, H * d) @ weight.T
    return (whole / H).unsqueeze(1).repeat(1, H, 1, 1)


@wrong(
    ADDS,
    see="mha-contributions",
    rung=1,
    why=_("Each part is the whole output, so that they add up to H times the output."),
)
def whole_output_for_each_head(heads, weight):
    B, H, T, d = heads.shape
    whole = heads.transpose(1, 2).reshape(B, T, H * d) @ weight.T
    return whole.unsqueeze(1).repeat(1, H, 1, 1)


@wrong(
    ADDS,
    see="mha-contributions",
    rung=1,
    why=_(
        "This is what is left of the output when a head is cut. Asked for is what the head adds: "
        "the difference of the two."
    ),
)
def what_is_left_without_the_head(heads, weight):
    B, H, T, d = heads.shape
    left = []
    for h in range(H):
        cut = heads.clone()
        cut[:, h] = 0
        left.append(cut.transpose(1, 2).reshape(B, T, H * d) @ weight.T)
    return torch.stack(left, dim=1)


@wrong(
    ADDS,
    see="mha-contributions",
    rung=1,
    why=_("The parts are added up already. They are wanted one by one, on an axis of heads."),
)
def parts_already_added(heads, weight):
    B, H, T, d = heads.shape
    return heads.transpose(1, 2).reshape(B, T, H * d) @ weight.T


@wrong(
    ADDS,
    see="mha-contributions",
    rung=3,
    why=_("The parts are right, but the axis of heads stands behind the positions."),
)
def heads_behind_positions(heads, weight):
    H, d = heads.shape[1], heads.shape[-1]
    return torch.einsum("bhti,ohi->btho", heads, weight.reshape(-1, H, d))


@wrong(
    ADDS,
    see="mha-contributions",
    rung=1,
    why=_(
        "The head is put into its place in the merged vector, with zeros around it, but the output "
        "map is not applied."
    ),
)
def output_map_not_applied(heads, weight):
    B, H, T, d = heads.shape
    parts = torch.zeros(B, H, T, weight.shape[0])
    for h in range(H):
        width = parts[:, h, :, h * d : (h + 1) * d].shape[-1]
        parts[:, h, :, h * d : (h + 1) * d] = heads[:, h, :, :width]
    return parts


@wrong(
    ADDS,
    see="mha-merge-heads",
    rung=2,
    why=_(
        "The heads were merged by a reshape without a transpose, so the parts belong to a mixture "
        "of positions and heads."
    ),
)
def merged_without_transpose(heads, weight):
    B, H, T, d = heads.shape
    parts = []
    for h in range(H):
        alone = torch.zeros_like(heads)
        alone[:, h] = heads[:, h]
        parts.append(alone.reshape(B, T, H * d) @ weight.T)
    return torch.stack(parts, dim=1)


@wrong(
    ADDS,
    see="mha-contributions",
    rung=2,
    why=_(
        "The values are right, but the heads that were handed in are set to 0 on the way: the "
        "caller's tensor is spoilt."
    ),
)
def sets_the_heads_to_zero(heads, weight):
    whole = merge_heads(heads) @ weight.T
    parts = []
    for h in range(heads.shape[1]):
        heads[:, h] = 0
        left = merge_heads(heads) @ weight.T
        parts.append(whole - left)
        whole = left
    return torch.stack(parts, dim=1)


@wrong(
    ADDS,
    see="mha-split-heads",
    rung=2,
    why=_(
        "The weight is cut by one reshape to (H, D, d). It reads row by row, so a head gets whole "
        "rows of some outputs and not its d columns of all of them."
    ),
)
def weight_cut_by_a_view(heads, weight):
    H, d = heads.shape[1], heads.shape[-1]
    return heads @ weight.reshape(H, weight.shape[0], d).transpose(-2, -1)


@wrong(
    ADDS,
    see="mha-contributions",
    rung=3,
    why=_(
        "The width of the output is taken to be H·d. It is the number of rows of the weight, and "
        "the docstring lets the two differ."
    ),
)
def output_as_wide_as_the_heads(heads, weight):
    B, H, T, d = heads.shape
    parts = [heads[:, h] @ weight[:, h * d : (h + 1) * d].T for h in range(H)]
    return torch.stack(parts, dim=1).reshape(B, H, T, H * d)


@wrong(
    ADDS,
    see="mha-contributions",
    rung=3,
    why=_(
        "The parts are stacked in front of the batch and reshaped to (B, H, T, D) afterwards. A "
        "reshape moves no axis past another: parts and sequences are mixed up."
    ),
)
def stacked_before_the_batch(heads, weight):
    B, H, T, d = heads.shape
    parts = [heads[:, h] @ weight[:, h * d : (h + 1) * d].T for h in range(H)]
    return torch.stack(parts).reshape(B, H, T, -1)


@wrong(
    ADDS,
    see="mha-contributions",
    rung=1,
    why=_(
        "Each part is the sum of the heads so far. Asked for is what each of them adds by itself."
    ),
)
def sum_of_the_heads_so_far(heads, weight):
    H, d = heads.shape[1], heads.shape[-1]
    parts = [heads[:, h] @ weight[:, h * d : (h + 1) * d].T for h in range(H)]
    return torch.stack(parts, dim=1).cumsum(dim=1)


@wrong(
    ADDS,
    see="mha-contributions",
    rung=1,
    why=_(
        "The finished output is cut into H pieces of its width. After the output map every "
        "component holds something of every head: what a head adds is D wide."
    ),
)
def output_cut_into_pieces(heads, weight):
    B, H, T, d = heads.shape
    whole = merge_heads(heads) @ weight.T
    parts = torch.zeros(B, H, T, whole.shape[-1], dtype=whole.dtype)
    step = whole.shape[-1] // H
    for h in range(H):
        own = slice(h * step, (h + 1) * step)
        parts[:, h, :, own] = whole[..., own]
    return parts


@wrong(
    ADDS,
    see="mha-contributions",
    rung=2,
    why=_(
        "alone = heads gives the same tensor a second name and copies nothing: what is set to 0 "
        "for the first head stays 0 for all that follow. clone() makes a copy."
    ),
)
def second_name_for_a_copy(heads, weight):
    parts = []
    for h in range(heads.shape[1]):
        alone = heads
        alone[:, :h] = 0
        alone[:, h + 1 :] = 0
        parts.append(merge_heads(alone) @ weight.T)
    return torch.stack(parts, dim=1)


@wrong(
    ADDS,
    see="mha-contributions",
    rung=2,
    form_of="sets_the_heads_to_zero",
    why=_(
        "The values are right, but the heads that were handed in are overwritten on the way: only "
        "the last of them is left."
    ),
)
def leaves_the_last_head_alone(heads, weight):
    kept = heads.clone()
    parts = []
    for h in range(heads.shape[1]):
        heads.zero_()
        heads[:, h] = kept[:, h]
        parts.append(merge_heads(heads) @ weight.T)
    return torch.stack(parts, dim=1)


@wrong(
    ADDS,
    see="mha-contributions",
    rung=3,
    why=_(
        "The values are right, but no gradient can come back: they were computed under no_grad or "
        "cut off by detach. Let the caller decide about that."
    ),
)
def computed_without_gradients(heads, weight):
    H, d = heads.shape[1], heads.shape[-1]
    with torch.no_grad():
        parts = [heads[:, h] @ weight[:, h * d : (h + 1) * d].T for h in range(H)]
        return torch.stack(parts, dim=1)


@wrong(
    ADDS,
    see="mha-contributions",
    rung=3,
    why=_(
        "The parts are collected in a new tensor of float32, whatever dtype the heads have. Make "
        "it with theirs, or stack the parts."
    ),
)
def parts_collected_in_float32(heads, weight):
    B, H, T, d = heads.shape
    parts = torch.zeros(B, H, T, weight.shape[0])
    for h in range(H):
        parts[:, h] = heads[:, h] @ weight[:, h * d : (h + 1) * d].T
    return parts


@right(ADDS, style="loop over slices")
def by_slices(heads, weight):
    d = heads.size(-1)
    found = []
    for h, head in enumerate(heads.unbind(1)):
        found.append(nn.functional.linear(head, weight[:, h * d : h * d + d]))
    return torch.stack(found, 1)


@right(ADDS, style="einsum")
def by_einsum(heads, weight):
    _B, H, _T, d = heads.shape
    return torch.einsum("bhtd,ohd->bhto", heads, weight.unflatten(1, (H, d)))


@right(ADDS, style="all other heads set to zero")
def by_cutting_all_others(heads, weight):
    H = heads.shape[1]
    keep = torch.eye(H)[:, None, :, None, None]  # (H, 1, H, 1, 1)
    alone = keep * heads  # (H, B, H, T, d)
    return torch.stack([merge_heads(item) @ weight.mT for item in alone], dim=1)


@right(ADDS, style="difference of the output with and without the head, in float64")
def by_difference(heads, weight):
    whole = merge_heads(heads).double() @ weight.T.double()
    parts = []
    for h in range(heads.shape[1]):
        cut = heads.clone()
        cut[:, h] = 0
        parts.append(whole - merge_heads(cut).double() @ weight.T.double())
    return torch.stack(parts, dim=1).to(heads.dtype)


# --- grouped_query_attention -----------------------------------------------------------------

GROUPED = "grouped_query_attention"


@wrong(
    GROUPED,
    see="mha-grouped",
    rung=1,
    why=_(
        "Query head h is given head h mod H_kv of the keys, as `repeat` lays them out. Neighbours "
        "share: heads 0 to G - 1 use head 0."
    ),
)
def keys_tiled_instead_of_interleaved(q, k, v, mask=None):
    group = q.shape[1] // k.shape[1]
    return scaled_dot_product_attention(q, k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1), mask)


@wrong(
    GROUPED,
    see="mha-grouped",
    rung=2,
    why=_(
        "The results are right, but keys and values are copied for every query head. The point of "
        "sharing them is that they need not be read, or stored, so often."
    ),
)
def keys_copied_for_every_head(q, k, v, mask=None):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    return scaled_dot_product_attention(q, k, v, mask)


@wrong(
    GROUPED,
    see="mha-grouped",
    rung=2,
    form_of="keys_copied_for_every_head",
    why=_(
        "The product broadcasts the keys over the axis of the group, and copies them for that: as "
        "if they had been repeated."
    ),
)
def keys_copied_by_broadcasting(q, k, v, mask=None):
    B, H, T, d = q.shape
    n = k.shape[1]
    if mask is not None and mask.dim() == 4:
        mask = mask.unsqueeze(1)
    output, weights = scaled_dot_product_attention(
        q.reshape(B, n, H // n, T, d), k.unsqueeze(2), v.unsqueeze(2), mask
    )
    return output.reshape(B, H, T, d), weights.reshape(B, H, T, -1)


@wrong(
    GROUPED,
    see="mha-grouped",
    rung=1,
    why=_("All query heads read head 0 of the keys and values; the other heads are never used."),
)
def first_key_head_for_all(q, k, v, mask=None):
    B, H, T, d = q.shape
    rows = mask if mask is None or mask.dim() == 4 else mask[None, None]
    output, weights = scaled_dot_product_attention(
        q.reshape(B, 1, H * T, d),
        k[:, :1],
        v[:, :1],
        None if rows is None else rows.repeat(1, 1, H, 1),
    )
    return output.reshape(B, H, T, d), weights.reshape(B, H, T, -1)


@wrong(
    GROUPED,
    see="mha-grouped",
    rung=1,
    why=_("The heads of keys and values are averaged into one before they are used."),
)
def key_heads_averaged(q, k, v, mask=None):
    B, H, T, d = q.shape
    k, v = k.mean(1, keepdim=True), v.mean(1, keepdim=True)
    if mask is not None:
        mask = (mask if mask.dim() == 4 else mask[None, None]).repeat(1, 1, H, 1)
    output, weights = scaled_dot_product_attention(q.reshape(B, 1, H * T, d), k, v, mask)
    return output.reshape(B, H, T, d), weights.reshape(B, H, T, -1)


@wrong(
    GROUPED,
    see="mha-grouped",
    rung=1,
    why=_(
        "The queries of a group are averaged, and all heads of the group give the same. Each query "
        "head asks for itself; only keys and values are shared."
    ),
)
def queries_of_a_group_averaged(q, k, v, mask=None):
    B, H, T, d = q.shape
    n = k.shape[1]
    mean = q.reshape(B, n, H // n, T, d).mean(2)
    output, weights = scaled_dot_product_attention(mean, k, v, mask)
    group = H // n
    return output.repeat_interleave(group, dim=1), weights.repeat_interleave(group, dim=1)


wrong_edit(
    GROUPED,
    "rows_of_the_mask_repeated_in_place",
    {"rows.repeat(1, 1, H // kv_heads, 1)": "rows.repeat_interleave(H // kv_heads, dim=2)"},
    why=_(
        "The queries stand head after head, T rows each; the mask has each of its rows G times in "
        "a row. So most queries meet the row of another position."
    ),
    see="mha-grouped",
    rung=3,
)
wrong_edit(
    GROUPED,
    "mask_ignored",
    {"(grouped, k, v, mask)": "(grouped, k, v)"},
    why=_("The mask is never applied: every key can be seen."),
    see="mha-masks",
    rung=3,
)
wrong_edit(
    GROUPED,
    "mask_inverted",
    {"(grouped, k, v, mask)": "(grouped, k, v, None if mask is None else ~mask)"},
    why=_("The mask is taken the other way round; True is where attention is allowed."),
    see="mha-masks",
    rung=3,
)
wrong_edit(
    GROUPED,
    "first_sequences_mask_for_all",
    {"mask if mask.dim() == 4 else": "mask[:1] if mask.dim() == 4 else"},
    why=_("The mask of the first sequence is used for the whole batch."),
    see="mha-masks",
    rung=3,
)
wrong_edit(
    GROUPED,
    "mask_of_two_axes_only",
    {
        "rows = mask if mask.dim() == 4 else mask.reshape(1, 1, T, S)": "rows = mask",
        "rows.repeat(1, 1, H // kv_heads, 1)": "rows.repeat(H // kv_heads, 1)",
    },
    why=_("Only masks (T, S) are handled; a mask (B, 1, T, S), one per sequence, is not."),
    see="mha-masks",
    rung=3,
)
wrong_edit(
    GROUPED,
    "heads_left_in_their_groups",
    {"output.reshape(B, H, T, d), weights.reshape(B, H, T, S)": "output, weights"},
    why=_(
        "The results still have the shape of the groups, (B, H_kv, G·T, …). They are to be given "
        "back head by head."
    ),
    see="mha-grouped",
    rung=3,
)
wrong_edit(
    GROUPED,
    "scaled_by_the_width_of_the_group",
    {"(grouped, k, v, mask)": "(grouped / (H // kv_heads) ** 0.5, k, v, mask)"},
    why=_(
        "The scores are divided by √(G·d). However many heads share the keys, a query and a key "
        "have d components."
    ),
    see="mha-grouped",
    rung=2,
)
wrong_edit(
    GROUPED,
    "not_scaled",
    {"(grouped, k, v, mask)": "(grouped * d**0.5, k, v, mask)"},
    why=_("The scores are not divided by √d."),
    see="mha-grouped",
    rung=2,
)
wrong_edit(
    GROUPED,
    "positions_grouped_instead_of_heads",
    {
        "q.reshape(B, kv_heads, H // kv_heads * T, d)": (
            "q.transpose(1, 2).reshape(B, kv_heads, H // kv_heads * T, d)"
        )
    },
    why=_(
        "The axes were exchanged before the reshape, so queries of the first positions read head "
        "0 of the keys, whichever head they belong to."
    ),
    see="mha-grouped",
    rung=3,
)


@wrong(
    GROUPED,
    see="mha-grouped",
    rung=1,
    why=_("The keys are shared among neighbours, but the values go round in turn."),
)
def values_tiled_keys_interleaved(q, k, v, mask=None):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat(1, group, 1, 1)
    return scaled_dot_product_attention(q, k, v, mask)


@wrong(
    GROUPED,
    see="mha-grouped",
    rung=2,
    why=_(
        "A row without an allowed key gives NaN: the softmax of a row of -inf is 0/0. It is to get "
        "zero weights and a zero output."
    ),
)
def empty_rows_become_nan(q, k, v, mask=None):
    B, H, T, d = q.shape
    n = k.shape[1]
    scores = q.reshape(B, n, -1, d) @ k.transpose(-2, -1) / math.sqrt(d)
    scores = scores.reshape(B, H, T, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(-1)
    return (weights.reshape(B, n, -1, k.shape[2]) @ v).reshape(B, H, T, d), weights


@wrong(
    GROUPED,
    see="mha-grouped",
    rung=2,
    why=_("The softmax runs over the heads of a group instead of over the keys."),
)
def softmax_over_the_group(q, k, v, mask=None):
    B, H, T, d = q.shape
    n, S = k.shape[1], k.shape[2]
    scores = (q.reshape(B, n, -1, d) @ k.transpose(-2, -1) / math.sqrt(d)).reshape(B, n, -1, T, S)
    weights = scores.softmax(2).reshape(B, n, -1, S)
    return (weights @ v).reshape(B, H, T, d), weights.reshape(B, H, T, S)


@wrong(
    GROUPED,
    see="mha-masks",
    rung=2,
    why=_(
        "A row without an allowed key attends to all keys evenly: its scores are all equally low. "
        "It is to get zero weights and a zero output."
    ),
)
def even_weights_on_empty_rows(q, k, v, mask=None):
    B, H, T, d = q.shape
    n = k.shape[1]
    scores = q.reshape(B, n, -1, d) @ k.transpose(-2, -1) / math.sqrt(d)
    scores = scores.reshape(B, H, T, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    weights = scores.softmax(-1)
    return (weights.reshape(B, n, -1, k.shape[2]) @ v).reshape(B, H, T, d), weights


@wrong(
    GROUPED,
    see="mha-masks",
    rung=2,
    why=_(
        "The mask strikes out weights after the softmax, when the forbidden keys have had their "
        "share: what is left does not sum to 1."
    ),
)
def mask_after_softmax(q, k, v, mask=None):
    B, H, T, d = q.shape
    n = k.shape[1]
    scores = q.reshape(B, n, -1, d) @ k.transpose(-2, -1) / math.sqrt(d)
    weights = scores.softmax(-1).reshape(B, H, T, -1)
    if mask is not None:
        weights = weights * mask
    return (weights.reshape(B, n, -1, k.shape[2]) @ v).reshape(B, H, T, d), weights


@wrong(
    GROUPED,
    see="mha-grouped",
    rung=2,
    why=_(
        "The queries are scaled in place (*=, mul_ or div_), which changes the caller's tensor, "
        "and which autograd refuses for a leaf. q = q / … makes a new one."
    ),
)
def queries_scaled_in_place(q, k, v, mask=None):
    B, H, T, d = q.shape
    n = k.shape[1]
    q *= d**-0.5
    scores = (q.reshape(B, n, -1, d) @ k.transpose(-2, -1)).reshape(B, H, T, -1)
    weights = masked_softmax(scores, mask)
    return (weights.reshape(B, n, -1, k.shape[2]) @ v).reshape(B, H, T, d), weights


@wrong(
    GROUPED,
    see="mha-grouped",
    rung=3,
    why=_(
        "The output is given back head by head, the weights still have the axes of the groups. "
        "Both results are to be (B, H, …)."
    ),
)
def weights_left_in_their_groups(q, k, v, mask=None):
    B, H, T, d = q.shape
    n = k.shape[1]
    scores = q.reshape(B, n, -1, d) @ k.transpose(-2, -1) / math.sqrt(d)
    weights = masked_softmax(scores.reshape(B, H, T, -1), mask)
    output = (weights.reshape(B, n, -1, k.shape[2]) @ v).reshape(B, H, T, d)
    return output, weights.reshape(B, n, H // n, T, -1)


@wrong(
    GROUPED,
    see="mha-grouped",
    rung=1,
    why=_("The keys are shared in groups, but every head mixes the values of head 0."),
)
def values_of_the_first_head(q, k, v, mask=None):
    B, H, T, d = q.shape
    n = k.shape[1]
    scores = q.reshape(B, n, -1, d) @ k.transpose(-2, -1) / math.sqrt(d)
    weights = masked_softmax(scores.reshape(B, H, T, -1), mask)
    output = weights.reshape(B, H * T, -1) @ v[:, 0]
    return output.reshape(B, H, T, d), weights


@wrong(
    GROUPED,
    see="mha-grouped",
    rung=1,
    why=_(
        "Query head h is given head h // H_kv of the keys. A group has G = H / H_kv heads, so it "
        "is h // G."
    ),
)
def divided_by_the_key_heads(q, k, v, mask=None):
    H, n = q.shape[1], k.shape[1]
    rows = mask if mask is None or mask.dim() == 2 else mask[:, 0]
    pairs = []
    for h in range(H):
        own = min(h // n, n - 1)
        pairs.append(scaled_dot_product_attention(q[:, h], k[:, own], v[:, own], rows))
    output, weights = zip(*pairs, strict=True)
    return torch.stack(output, dim=1), torch.stack(weights, dim=1)


@wrong(
    GROUPED,
    see="mha-grouped",
    rung=3,
    why=_(
        "Results are collected in new tensors of float32, whatever dtype the queries have. Make "
        "them with theirs (q.new_empty), or stack what you computed."
    ),
)
def results_collected_in_float32(q, k, v, mask=None):
    B, H, T, d = q.shape
    group = H // k.shape[1]
    output, weights = torch.zeros(B, H, T, d), torch.zeros(B, H, T, k.shape[2])
    rows = mask if mask is None or mask.dim() == 2 else mask[:, 0]
    for h in range(H):
        own = h // group
        output[:, h], weights[:, h] = scaled_dot_product_attention(
            q[:, h], k[:, own], v[:, own], rows
        )
    return output, weights


@right(GROUPED, style="einsum with an axis of its own for the group")
def by_einsum_with_groups(q, k, v, mask=None):
    B, H, T, d = q.shape
    n, S = k.shape[1], k.shape[2]
    scores = torch.einsum("bngtd,bnsd->bngts", q.unflatten(1, (n, -1)), k) / d**0.5
    weights = masked_softmax(scores.reshape(B, H, T, S), mask)
    output = torch.einsum("bngts,bnsd->bngtd", weights.unflatten(1, (n, -1)), v)
    return output.flatten(1, 2), weights


@right(GROUPED, style="one query head after another")
def head_after_head(q, k, v, mask=None):
    group = q.shape[1] // k.shape[1]
    if mask is not None and mask.dim() == 4:
        mask = mask[:, 0]
    pairs = [
        scaled_dot_product_attention(q[:, h], k[:, h // group], v[:, h // group], mask)
        for h in range(q.shape[1])
    ]
    return tuple(torch.stack(items, dim=1) for items in zip(*pairs, strict=True))


@right(GROUPED, style="positions before heads in the list of queries")
def heads_innermost(q, k, v, mask=None):
    B, H, T, d = q.shape
    n, S = k.shape[1], k.shape[2]
    g = H // n
    listed = q.reshape(B, n, g, T, d).transpose(2, 3).reshape(B, n, T * g, d)
    if mask is not None:
        mask = mask.repeat_interleave(g, dim=-2)
    output, weights = scaled_dot_product_attention(listed, k, v, mask)
    back = output.reshape(B, n, T, g, d).transpose(2, 3).reshape(B, H, T, d)
    return back, weights.reshape(B, n, T, g, S).transpose(2, 3).reshape(B, H, T, S)


# --- BorrowedAttention -----------------------------------------------------------------------

BORROWED = "BorrowedAttention"
_SCALE = "/ math.sqrt(self.d)"
_MERGE_LINE = "heads.transpose(1, 2).reshape(B, T, D)"
_SUPER_MISSING = {"        super().__init__()\n": ""}

wrong_edit(
    BORROWED,
    "constructor_without_super",
    {
        "        super().__init__()\n": "",
        "        self.H = H\n": "",
        _SCALE: "/ math.sqrt(D)",
        _MERGE_LINE: "heads.reshape(B, T, D)",
    },
    given=True,
    why=_(
        "The constructor never calls super().__init__(), so nn.Module has no place yet in which to "
        "register a map: the first assignment of one raises AttributeError."
    ),
    see="mha-borrowed",
    rung=3,
)
wrong_edit(
    BORROWED,
    "super_still_missing",
    _SUPER_MISSING,
    form_of="constructor_without_super",
    why=_(
        "The constructor never calls super().__init__(), so nn.Module has no place yet in which to "
        "register a map."
    ),
    see="mha-borrowed",
    rung=3,
)
wrong_edit(
    BORROWED,
    "attribute_never_stored",
    {
        "        self.H = H\n": "",
        _SCALE: "/ math.sqrt(D)",
        _MERGE_LINE: "heads.reshape(B, T, D)",
    },
    why=_(
        "forward reads self.H, and the constructor never stores it. It can be built, and fails at "
        "the first call."
    ),
    see="mha-borrowed",
    rung=3,
)
wrong_edit(
    BORROWED,
    "both_silent_faults_left",
    {_SCALE: "/ math.sqrt(D)", _MERGE_LINE: "heads.reshape(B, T, D)"},
    why=_(
        "It runs now, and two silent faults are left: one in the scale of the scores, one where "
        "the heads are put back together. With one head neither of them shows."
    ),
    see="mha-borrowed",
    rung=2,
)
wrong_edit(
    BORROWED,
    "merge_fault_left",
    {_MERGE_LINE: "heads.reshape(B, T, D)"},
    why=_(
        "One silent fault is left: the heads are put back by a reshape without a transpose, which "
        "mixes positions and heads."
    ),
    see="mha-merge-heads",
    rung=3,
)
wrong_edit(
    BORROWED,
    "scale_fault_left",
    {_SCALE: "/ math.sqrt(D)"},
    why=_(
        "One silent fault is left: the scores are divided by √D, and a head's vectors have d = "
        "D / H components."
    ),
    see="mha-layer",
    rung=3,
)
wrong_edit(
    BORROWED,
    "merge_left_and_not_scaled",
    {_SCALE: "* 1.0", _MERGE_LINE: "heads.reshape(B, T, D)"},
    why=_("The scale was removed instead of mended, and the heads are still merged wrongly."),
    see="mha-borrowed",
    rung=3,
)
wrong_edit(
    BORROWED,
    "scale_removed",
    {_SCALE: "* 1.0"},
    why=_("The scores are no longer divided by anything; they are to be divided by √d."),
    see="mha-layer",
    rung=3,
)
wrong_edit(
    BORROWED,
    "scaled_by_width_not_by_root",
    {_SCALE: "/ self.d"},
    why=_("The scores are divided by d and not by its root."),
    see="mha-layer",
    rung=3,
)
wrong_edit(
    BORROWED,
    "scaled_by_number_of_heads",
    {_SCALE: "/ math.sqrt(self.H)"},
    why=_("The scores are divided by √H, the number of heads; it is the width d that counts."),
    see="mha-layer",
    rung=3,
)
wrong_edit(
    BORROWED,
    "merged_the_wrong_way_round",
    {_MERGE_LINE: "heads.permute(0, 2, 3, 1).reshape(B, T, D)"},
    why=_(
        "The heads are merged with their components alternating: component 0 of every head, then "
        "component 1. The heads stand side by side, each in one piece."
    ),
    see="mha-merge-heads",
    rung=3,
)
wrong_edit(
    BORROWED,
    "merged_over_width_and_time",
    {_MERGE_LINE: "heads.transpose(2, 3).reshape(B, T, D)"},
    why=_("The transpose before the merge exchanges T and d; it must exchange H and T."),
    see="mha-merge-heads",
    rung=3,
)
wrong_edit(
    BORROWED,
    "keys_and_values_not_transposed",
    {
        "k = self.proj_k(x).view(B, T, self.H, self.d).transpose(1, 2)": (
            "k = self.proj_k(x).view(B, self.H, T, self.d)"
        ),
        "v = self.proj_v(x).view(B, T, self.H, self.d).transpose(1, 2)": (
            "v = self.proj_v(x).view(B, self.H, T, self.d)"
        ),
    },
    why=_(
        "Keys and values are now cut by a view without a transpose, while the queries are cut "
        "rightly: heads compare positions that are not theirs."
    ),
    see="mha-split-heads",
    rung=3,
)
wrong_edit(
    BORROWED,
    "mask_turned_round",
    {"masked_fill(~mask, -1e9)": "masked_fill(mask, -1e9)"},
    why=_("The mask was right and is turned round now: True is where attention is allowed."),
    see="mha-masks",
    rung=2,
)
wrong_edit(
    BORROWED,
    "mask_removed",
    {"scores = scores.masked_fill(~mask, -1e9)": "pass"},
    why=_("The mask is no longer applied."),
    see="mha-masks",
    rung=2,
)
wrong_edit(
    BORROWED,
    "mask_times_scores",
    {"masked_fill(~mask, -1e9)": "mul(mask)"},
    why=_("Scores are multiplied by the mask. A score of 0 is a score like any other."),
    see="mha-masks",
    rung=2,
)
wrong_edit(
    BORROWED,
    "scaled_by_number_of_positions",
    {_SCALE: "/ math.sqrt(T)"},
    why=_("The scores are divided by √T. How many keys compete does not change a score's size."),
    see="mha-layer",
    rung=3,
)
wrong_edit(
    BORROWED,
    "heads_added_up",
    {_MERGE_LINE: "heads.sum(dim=1).repeat(1, 1, self.H)"},
    why=_("The heads are added up. They are to stand side by side."),
    see="mha-merge-heads",
    rung=3,
)
wrong_edit(
    BORROWED,
    "maps_without_bias",
    {
        "self.proj_q = nn.Linear(D, D)": "self.proj_q = nn.Linear(D, D, bias=False)",
        "self.proj_k = nn.Linear(D, D)": "self.proj_k = nn.Linear(D, D, bias=False)",
        "self.proj_v = nn.Linear(D, D)": "self.proj_v = nn.Linear(D, D, bias=False)",
        "self.out_proj = nn.Linear(D, D)": "self.out_proj = nn.Linear(D, D, bias=False)",
    },
    why=_("The maps have lost their biases, which the docstring gives them."),
    see="mha-borrowed",
    rung=2,
)
wrong_edit(
    BORROWED,
    "names_changed",
    {
        "self.proj_q = nn": "self.query = nn",
        "self.proj_q(x)": "self.query(x)",
        "self.proj_k = nn": "self.key = nn",
        "self.proj_k(x)": "self.key(x)",
    },
    why=_("The maps have other names now: whoever has saved weights cannot load them any more."),
    see="mha-borrowed",
    rung=2,
)
wrong_edit(
    BORROWED,
    "output_map_unused",
    {
        "return self.out_proj(heads.transpose(1, 2).reshape(B, T, D))": (
            "return heads.transpose(1, 2).reshape(B, T, D)"
        )
    },
    why=_("The output map is no longer applied."),
    see="mha-layer",
    rung=2,
)

wrong_edit(
    BORROWED,
    "view_of_a_transposed_tensor",
    {_MERGE_LINE: "heads.transpose(1, 2).view(B, T, D)"},
    why=_(
        "The transpose is there now, but view never copies, and the heads of a position do not lie "
        "side by side in memory: it has to refuse. reshape copies where it must."
    ),
    see="mha-merge-heads",
    rung=3,
)
wrong_edit(
    BORROWED,
    "cut_by_a_view_to_fit_the_merge",
    {
        "q = self.proj_q(x).view(B, T, self.H, self.d).transpose(1, 2)": (
            "q = self.proj_q(x).view(B, self.H, T, self.d)"
        ),
        "k = self.proj_k(x).view(B, T, self.H, self.d).transpose(1, 2)": (
            "k = self.proj_k(x).view(B, self.H, T, self.d)"
        ),
        "v = self.proj_v(x).view(B, T, self.H, self.d).transpose(1, 2)": (
            "v = self.proj_v(x).view(B, self.H, T, self.d)"
        ),
        _MERGE_LINE: "heads.reshape(B, T, D)",
    },
    why=_(
        "The cut, which was right, was made to fit the merge, which is wrong: without a transpose "
        "on either side, heads hold whole vectors of some positions."
    ),
    see="mha-split-heads",
    rung=3,
)
wrong_edit(
    BORROWED,
    "fill_not_low_enough",
    {"masked_fill(~mask, -1e9)": "masked_fill(~mask, -10.0)"},
    why=_(
        "The fill was right at -1e9. At -10 a forbidden key still has a share, small and not 0, "
        "and with larger scores not even small."
    ),
    see="mha-masks",
    rung=3,
)
wrong_edit(
    BORROWED,
    "mask_given_one_more_axis",
    {"masked_fill(~mask, -1e9)": "masked_fill(~mask.unsqueeze(1), -1e9)"},
    why=_(
        "The mask is given one more axis. It broadcasts to (B, H, T, T) as it is: that was right."
    ),
    see="mha-masks",
    rung=3,
)
wrong_edit(
    BORROWED,
    "three_maps_without_bias",
    {
        "self.proj_q = nn.Linear(D, D)": "self.proj_q = nn.Linear(D, D, bias=False)",
        "self.proj_k = nn.Linear(D, D)": "self.proj_k = nn.Linear(D, D, bias=False)",
        "self.proj_v = nn.Linear(D, D)": "self.proj_v = nn.Linear(D, D, bias=False)",
    },
    form_of="maps_without_bias",
    why=_("Three maps have lost their biases, which the docstring gives them."),
    see="mha-borrowed",
    rung=2,
)
wrong_edit(
    BORROWED,
    "all_names_changed",
    {
        "self.proj_q = nn": "self.query = nn",
        "self.proj_q(x)": "self.query(x)",
        "self.proj_k = nn": "self.key = nn",
        "self.proj_k(x)": "self.key(x)",
        "self.proj_v = nn": "self.value = nn",
        "self.proj_v(x)": "self.value(x)",
        "self.out_proj = nn": "self.output = nn",
        "self.out_proj(heads": "self.output(heads",
    },
    form_of="names_changed",
    why=_("The maps have other names now: whoever has saved weights cannot load them any more."),
    see="mha-borrowed",
    rung=2,
)
wrong_edit(
    BORROWED,
    "weights_returned_as_well",
    {
        "return self.out_proj(heads.transpose(1, 2).reshape(B, T, D))": (
            "return self.out_proj(heads.transpose(1, 2).reshape(B, T, D)), scores.softmax(dim=-1)"
        )
    },
    why=_(
        "Output and weights are returned. This code returns the output alone, and whoever calls it "
        "relies on that."
    ),
    see="mha-borrowed",
    rung=2,
)
wrong_edit(
    BORROWED,
    "softmax_over_queries",
    {"scores.softmax(dim=-1)": "scores.softmax(dim=-2)"},
    why=_("The softmax was right, over the keys; now it runs over the queries."),
    see="mha-borrowed",
    rung=2,
)


right_edit(
    BORROWED,
    "no_sizes_stored",
    {
        "        self.H = H\n        self.d = D // H\n": "        self.heads = H\n",
        "        B, T, D = x.shape\n": (
            "        B, T, D = x.shape\n        H, d = self.heads, D // self.heads\n"
        ),
        "q = self.proj_q(x).view(B, T, self.H, self.d)": "q = self.proj_q(x).view(B, T, H, d)",
        "k = self.proj_k(x).view(B, T, self.H, self.d)": "k = self.proj_k(x).view(B, T, H, d)",
        "v = self.proj_v(x).view(B, T, self.H, self.d)": "v = self.proj_v(x).view(B, T, H, d)",
        _SCALE: "* d**-0.5",
    },
    style="sizes kept under other names",
)


@right(BORROWED, style="rewritten with the chapter's functions")
class RewrittenWithHelpers(nn.Module):
    def __init__(self, D, H):
        nn.Module.__init__(self)
        self.count = H
        self.proj_q, self.proj_k, self.proj_v, self.out_proj = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x, mask=None):
        q, k, v = (split_heads(f(x), self.count) for f in (self.proj_q, self.proj_k, self.proj_v))
        return self.out_proj(merge_heads(scaled_dot_product_attention(q, k, v, mask)[0]))


right_edit(
    BORROWED,
    "contiguous_and_view",
    {
        _MERGE_LINE: "heads.permute(0, 2, 1, 3).contiguous().view(B, T, -1)",
        "scores = scores.masked_fill(~mask, -1e9)": (
            'scores = scores.masked_fill(mask == 0, float("-inf"))'
        ),
    },
    style="contiguous, view, minus infinity",
)

# --- heads_test ------------------------------------------------------------------------------

TEST = "heads_test"


@wrong(
    TEST,
    see="mha-testing",
    rung=1,
    why=_("Nothing is asserted, so everything passes. A print or a returned False stops nobody."),
)
def asserts_nothing(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    print(torch.allclose(found, output))
    return torch.allclose(shown, weights)


@wrong(
    TEST,
    see="mha-testing",
    rung=1,
    why=_(
        "Everything is turned away, right implementations too: the test knows nothing right, or "
        "compares more exactly than float32 rounds."
    ),
)
def turns_everything_away(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    raise AssertionError("wrong")


@wrong(
    TEST,
    see="mha-testing",
    rung=3,
    form_of="turns_everything_away",
    why=_(
        "The comparison is exact. Two right implementations add in another order and differ in "
        "the last digit: allow for rounding."
    ),
)
def compares_exactly(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert (found == output + 1e-9).all()
    assert (shown == weights).all()


@wrong(
    TEST,
    see="mha-testing",
    rung=1,
    why=_("Only shapes are compared. Most mistakes with heads keep every shape as it was."),
)
def compares_shapes_only(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert found.shape == (2, 5, 12)
    assert shown.shape == (2, 3, 5, 5)


@wrong(
    TEST,
    see="mha-testing",
    rung=1,
    why=_(
        "Only the row sums of the weights are looked at. A wrong scale, or heads that are mixed "
        "up, leave them at 1."
    ),
)
def looks_at_row_sums_only(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert torch.allclose(shown.sum(dim=-1), torch.ones(2, 3, 5), atol=1e-5)


@wrong(
    TEST,
    see="mha-testing",
    rung=1,
    why=_("The output is compared and the weights that are returned are not."),
)
def compares_the_output_only(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert torch.allclose(found, output, atol=1e-5)


@wrong(
    TEST,
    see="mha-testing",
    rung=1,
    why=_(
        "The weights are compared and the output is not: what happens to the values, in the merge "
        "and in the last map, goes unseen."
    ),
)
def compares_the_weights_only(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert torch.allclose(shown, weights, atol=1e-5)


@wrong(
    TEST,
    see="mha-testing",
    rung=2,
    why=_(
        "The case has one head. With one head there is nothing to mix up, and √D is √d: take "
        "several."
    ),
)
def tests_one_head_only(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 1) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 1)
    assert torch.allclose(found, output, atol=1e-5)
    assert torch.allclose(shown, weights, atol=1e-5)


@wrong(
    TEST,
    see="mha-testing",
    rung=2,
    why=_(
        "The case has one position. Its weight is 1 whatever the scale, and there is no other "
        "position that it could be mixed up with."
    ),
)
def tests_one_position_only(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 1, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert torch.allclose(found, output, atol=1e-5)
    assert torch.allclose(shown, weights, atol=1e-5)


@wrong(
    TEST,
    see="mha-testing",
    rung=2,
    why=_(
        "The last map of the case is the identity, so an implementation without it, or with its "
        "transpose, gives the same."
    ),
)
def last_map_is_the_identity(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    w_o = torch.eye(12)
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert torch.allclose(found, output, atol=1e-5)
    assert torch.allclose(shown, weights, atol=1e-5)


@wrong(
    TEST,
    see="mha-testing",
    rung=3,
    why=_("The expectation divides by √D, so right implementations are turned away."),
)
def expects_the_scale_of_the_model(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q / 3**0.5, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert torch.allclose(found, output, atol=1e-5)
    assert torch.allclose(shown, weights, atol=1e-5)


@wrong(
    TEST,
    see="mha-testing",
    rung=3,
    why=_(
        "The tolerance is so wide that another scale fits into it. Rounding in float32 needs "
        "1e-5, not 0.5."
    ),
)
def compares_far_too_loosely(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert found.shape == output.shape
    assert shown.shape == weights.shape
    assert torch.allclose(found, output, atol=0.5)
    assert torch.allclose(shown, weights, atol=0.5)


@wrong(
    TEST,
    see="mha-testing",
    rung=2,
    why=_(
        "The input is zero. All scores are then 0 and all values too, and every implementation "
        "gives the same."
    ),
)
def tests_with_zeros(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    x = torch.zeros_like(x)
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert torch.allclose(found, output, atol=1e-5)
    assert torch.allclose(shown, weights, atol=1e-5)


@wrong(
    TEST,
    see="mha-testing",
    rung=2,
    why=_(
        "Every position of the case holds the same vector: all weights are even, whatever the "
        "scale, and what is mixed up between queries cannot be seen."
    ),
)
def tests_with_equal_positions(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    x = x[:, :1].expand(-1, 5, -1)
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert torch.allclose(found, output, atol=1e-5)
    assert torch.allclose(shown, weights, atol=1e-5)


@wrong(
    TEST,
    see="mha-testing",
    rung=3,
    why=_(
        "Only one number is compared, the sum of everything. Numbers that change places leave a "
        "sum as it was."
    ),
)
def compares_sums_only(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert torch.allclose(found.sum(), output.sum(), atol=1e-3)
    assert torch.allclose(shown.sum(), weights.sum(), atol=1e-3)


@wrong(
    TEST,
    see="mha-testing",
    rung=3,
    why=_(
        "Head 0 is looked at and the others are not, so heads that are all alike pass, and the "
        "output goes unseen."
    ),
)
def looks_at_the_first_head_only(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert shown.shape == weights.shape
    assert torch.allclose(shown[:, 0], weights[:, 0], atol=1e-5)


@wrong(
    TEST,
    see="mha-testing",
    rung=2,
    why=_(
        "Only one property is looked at, that a head's weights depend on its own columns. Much "
        "that is wrong has this property."
    ),
)
def looks_at_independence_only(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    _found, before = attention(x, w_q, w_k, w_v, w_o, 3)
    changed = w_q.clone()
    changed[:, 4:] = 0
    _found, after = attention(x, changed, w_k, w_v, w_o, 3)
    assert torch.allclose(before[:, 0], after[:, 0], atol=1e-6)
    assert not torch.allclose(before[:, 1], after[:, 1], atol=1e-6)


@wrong(
    TEST,
    see="mha-testing",
    rung=2,
    why=_(
        "The weights of the case are so large that the softmax is a choice. Every scale gives the "
        "same choice: take scores near 1."
    ),
)
def tests_with_huge_scores(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) * 30 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert torch.allclose(found, output, rtol=1e-4, atol=1e-1)
    assert torch.allclose(shown, weights, atol=1e-4)


@wrong(
    TEST,
    see="mha-testing",
    rung=2,
    why=_(
        "The weights of the case are so small that all scores are near 0 and the output too: "
        "within the tolerance every scale and every order of heads gives the same. Take "
        "scores near 1."
    ),
)
def tests_with_tiny_scores(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) * 1e-3 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert torch.allclose(found, output, atol=1e-5)
    assert torch.allclose(shown, weights, atol=1e-5)


@wrong(
    TEST,
    see="mha-testing",
    rung=2,
    form_of="tests_with_tiny_scores",
    why=_(
        "The weights of the case are so small that all scores are near 0 and the output too: "
        "within the tolerance every scale and every order of heads gives the same. Take "
        "scores near 1."
    ),
)
def maps_too_small_for_the_tolerance(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) * 1e-3 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert torch.allclose(found, output, atol=1e-4)
    assert torch.allclose(shown, weights, atol=1e-4)


@wrong(
    TEST,
    see="mha-testing",
    rung=2,
    why=_(
        "The four maps of the case are one and the same, so an implementation that exchanges "
        "them or uses one of them twice gives the same."
    ),
)
def one_map_for_all_four(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    w_q = w_k = w_v = w_o
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert torch.allclose(found, output, atol=1e-5)
    assert torch.allclose(shown, weights, atol=1e-5)


@wrong(
    TEST,
    see="mha-testing",
    rung=2,
    why=_(
        "The maps of the case are symmetric, so an implementation that multiplies by their "
        "transposes gives the same."
    ),
)
def all_maps_symmetric(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    w_q, w_k, w_v, w_o = (w + w.T for w in (w_q, w_k, w_v, w_o))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert torch.allclose(found, output, atol=1e-5)
    assert torch.allclose(shown, weights, atol=1e-5)


@wrong(
    TEST,
    see="mha-testing",
    rung=2,
    why=_(
        "The case has one sequence. What is mixed up between sequences cannot be seen in it: "
        "take several."
    ),
)
def tests_one_sequence_only(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(1, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert torch.allclose(found, output, atol=1e-5)
    assert torch.allclose(shown, weights, atol=1e-5)


@wrong(
    TEST,
    see="mha-testing",
    rung=2,
    why=_(
        "Some sizes of the case are equal, H and d or T and d, so that the roots of the two are "
        "the same number: an implementation with the wrong one of them passes."
    ),
)
def sizes_that_are_equal(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 16, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(16, 16, generator=noise) / 16**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 4) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 4)
    assert torch.allclose(found, output, atol=1e-5)
    assert torch.allclose(shown, weights, atol=1e-5)


@wrong(
    TEST,
    see="mha-testing",
    rung=2,
    form_of="sizes_that_are_equal",
    why=_(
        "Some sizes of the case are equal, H and d or T and d, so that the roots of the two are "
        "the same number: an implementation with the wrong one of them passes."
    ),
)
def as_many_positions_as_width(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert torch.allclose(found, output, atol=1e-5)
    assert torch.allclose(shown, weights, atol=1e-5)


@wrong(
    TEST,
    see="mha-testing",
    rung=2,
    form_of="sizes_that_are_equal",
    why=_(
        "Some sizes of the case are equal, H and d or T and d, so that the roots of the two are "
        "the same number: an implementation with the wrong one of them passes."
    ),
)
def positions_heads_and_width_alike(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 9, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(9, 9, generator=noise) / 9**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert torch.allclose(found, output, atol=1e-5)
    assert torch.allclose(shown, weights, atol=1e-5)


@wrong(
    TEST,
    see="mha-testing",
    rung=3,
    why=_(
        "The output is compared, and of the weights those of head 0: the same table for every "
        "head passes."
    ),
)
def compares_the_first_heads_weights(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert torch.allclose(found, output, atol=1e-5)
    assert torch.allclose(shown[:, 0], weights[:, 0], atol=1e-5)


@wrong(
    TEST,
    see="mha-testing",
    rung=3,
    why=_(
        "The output is compared, and of the weights their mean over the heads: a table that "
        "is not a head's own passes."
    ),
)
def averages_the_weights_over_the_heads(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert torch.allclose(found, output, atol=1e-5)
    assert torch.allclose(shown.mean(dim=1), weights.mean(dim=1), atol=1e-5)


@wrong(
    TEST,
    see="mha-testing",
    rung=3,
    why=_(
        "The difference is compared without its absolute value, so a number that is far too "
        "small passes: (found - expected).abs()."
    ),
)
def compares_without_absolute_value(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert (found - output).max() < 1e-4
    assert (shown - weights).max() < 1e-4


@wrong(
    TEST,
    see="mha-testing",
    rung=3,
    form_of="compares_sums_only",
    why=_(
        "Only the means of all numbers are compared. Numbers that change places leave a mean "
        "as it was, and weights that sum to 1 always have the same."
    ),
)
def compares_means_only(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert abs(found.mean() - output.mean()) < 1e-4
    assert abs(shown.mean() - weights.mean()) < 1e-4


@wrong(
    TEST,
    see="mha-testing",
    rung=3,
    why=_(
        "The output is compared with a mix by the weights that were returned. Nobody asks "
        "whether these weights are right."
    ),
)
def output_compared_with_their_own_weights(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert torch.allclose(found, merge_heads(shown @ v) @ w_o, atol=1e-5)


@wrong(
    TEST,
    see="mha-testing",
    rung=2,
    form_of="compares_the_weights_only",
    why=_(
        "The weights are compared, shape and values, and the output is not: what happens to "
        "the values goes unseen."
    ),
)
def compares_weights_and_their_shape(attention):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    output = merge_heads(heads) @ w_o
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    assert shown.shape == weights.shape
    assert torch.allclose(shown, weights, atol=1e-5)


@right(TEST, style="against a loop over heads, in float64")
def against_a_loop(attention):
    noise = torch.Generator().manual_seed(7)
    B, T, H, d = 3, 4, 2, 5
    D = H * d
    x, *maps = (
        torch.randn(B, T, D, generator=noise),
        *(torch.randn(D, D, generator=noise) / D**0.5 for _ in range(4)),
    )
    found, shown = attention(x, *maps, H)
    wide, w_q, w_k, w_v, w_o = (item.double() for item in (x, *maps))
    output = torch.zeros(B, T, D, dtype=torch.float64)
    for h in range(H):
        own = slice(h * d, (h + 1) * d)
        q, k, v = wide @ w_q[:, own], wide @ w_k[:, own], wide @ w_v[:, own]
        weights = (q @ k.mT / d**0.5).softmax(-1)
        output += weights @ v @ w_o[own]
        torch.testing.assert_close(shown[:, h].double(), weights, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.double(), output, atol=1e-5, rtol=1e-4)


@right(TEST, style="against the chapter's own layer")
def against_the_layer(attention):
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(3))
    layer = MultiHeadAttention(12, 3, bias=False)
    maps = [getattr(layer, n).weight.detach().T for n in ("query", "key", "value", "output")]
    with torch.no_grad():
        expected = layer(x)
    for found, wanted in zip(attention(x, *maps, 3), expected, strict=True):
        if found.shape != wanted.shape or (found - wanted).abs().max() > 1e-5:
            raise AssertionError("differs from the layer")


@right(TEST, style="against einsum, several cases")
def against_einsum(attention):
    for seed, (B, T, H, d) in enumerate([(1, 4, 2, 3), (2, 6, 4, 2)]):
        noise = torch.Generator().manual_seed(seed)
        D = H * d
        x = torch.randn(B, T, D, generator=noise)
        w_q, w_k, w_v, w_o = torch.randn(4, D, D, generator=noise) / math.sqrt(D)
        q, k, v = ((x @ w).unflatten(-1, (H, d)) for w in (w_q, w_k, w_v))
        weights = (torch.einsum("bthd,bshd->bhts", q, k) / d**0.5).softmax(-1)
        output = torch.einsum("bhts,bshd->bthd", weights, v).flatten(2) @ w_o
        found, shown = attention(x, w_q, w_k, w_v, w_o, H)
        assert torch.allclose(found, output, atol=1e-4)
        assert torch.allclose(shown, weights, atol=1e-4)


@right(TEST, style="other shapes are found by the error they make")
def without_a_look_at_shapes(attention):
    noise = torch.Generator().manual_seed(5)
    x = torch.randn(2, 5, 12, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(12, 12, generator=noise) / 12**0.5 for _ in range(4))
    found, shown = attention(x, w_q, w_k, w_v, w_o, 3)
    q, k, v = (split_heads(x @ w, 3) for w in (w_q, w_k, w_v))
    heads, weights = scaled_dot_product_attention(q, k, v)
    assert torch.allclose(shown, weights, atol=1e-5)
    assert torch.allclose(found, merge_heads(heads) @ w_o, atol=1e-5)


@right(TEST, style="properties of single heads, no full reference")
def by_properties_and_parts(attention):
    noise = torch.Generator().manual_seed(1)
    x = torch.randn(2, 6, 8, generator=noise)
    w_q, w_k, w_v, w_o = (torch.randn(8, 8, generator=noise) * 0.4 for _ in range(4))
    found, shown = attention(x, w_q, w_k, w_v, w_o, 2)
    heads, weights = scaled_dot_product_attention(*(split_heads(x @ w, 2) for w in (w_q, w_k, w_v)))
    assert shown.shape == weights.shape, "shape of the weights"
    assert float((shown - weights).abs().max()) < 1e-5
    parts = sum(heads[:, h] @ w_o[4 * h : 4 * h + 4] for h in range(2))
    assert float((found - parts).abs().max()) < 1e-5
