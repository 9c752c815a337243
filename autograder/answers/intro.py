"""Answer bank of chapter ``intro``: what people get wrong, and right answers in other styles."""

from __future__ import annotations

import torch
from torch import Tensor

from autograder.bank import right, wrong
from autograder.i18n import _

# ------------------------------------------------------------------------ pairwise_differences


@wrong(
    "pairwise_differences",
    why=_("The subtraction goes the other way round: the result is y - x."),
    see="intro-broadcasting",
)
def other_way_round(x: Tensor, y: Tensor) -> Tensor:
    return y.unsqueeze(1) - x.unsqueeze(2)


@wrong(
    "pairwise_differences",
    why=_("The new axes stand in the other tensor's place, so T and S are exchanged."),
    see="intro-broadcasting",
    rung=2,
)
def targets_and_sources_exchanged(x: Tensor, y: Tensor) -> Tensor:
    return x.unsqueeze(1) - y.unsqueeze(2)


@wrong(
    "pairwise_differences",
    why=_(
        "The two are subtracted without an axis for each: only equal positions are paired, "
        "and T ≠ S is an error."
    ),
    see="intro-broadcasting",
    rung=2,
)
def positions_paired(x: Tensor, y: Tensor) -> Tensor:
    return x - y


@wrong(
    "pairwise_differences",
    why=_("The differences are squared or made absolute: that is a distance, not a difference."),
    see="intro-broadcasting",
)
def absolute_differences(x: Tensor, y: Tensor) -> Tensor:
    return (x.unsqueeze(2) - y.unsqueeze(1)).abs()


@wrong(
    "pairwise_differences",
    why=_("The last axis was summed away: it should keep its d differences."),
    see="intro-broadcasting",
)
def summed_over_width(x: Tensor, y: Tensor) -> Tensor:
    return (x.unsqueeze(2) - y.unsqueeze(1)).sum(-1)


@wrong(
    "pairwise_differences",
    why=_("The pairs are added, not subtracted."),
    see="intro-broadcasting",
)
def pairs_added(x: Tensor, y: Tensor) -> Tensor:
    return x.unsqueeze(2) + y.unsqueeze(1)


@wrong(
    "pairwise_differences",
    why=_("Every item of the batch is paired with the first item of y."),
    see="intro-broadcasting",
)
def first_batch_item_of_y(x: Tensor, y: Tensor) -> Tensor:
    return x.unsqueeze(2) - y[:1].unsqueeze(1)


@wrong(
    "pairwise_differences",
    why=_("The shape is right and the content is all zeros: neither input is read."),
    see="intro-broadcasting",
)
def zeros_of_the_right_shape(x: Tensor, y: Tensor) -> Tensor:
    return torch.zeros(x.shape[0], x.shape[1], y.shape[1], x.shape[2])


@wrong(
    "pairwise_differences",
    why=_(
        "The differences are right, and y was overwritten on the way: neg_ writes into y itself."
    ),
    see="intro-broadcasting",
    rung=1,
)
def second_input_negated(x: Tensor, y: Tensor) -> Tensor:
    return x.unsqueeze(2) + y.neg_().unsqueeze(1)


@wrong(
    "pairwise_differences",
    why=_("Every item of the batch gets the differences of the first one."),
    see="intro-broadcasting",
)
def first_item_for_all(x: Tensor, y: Tensor) -> Tensor:
    return (x[0].unsqueeze(1) - y[0].unsqueeze(0)).expand(x.shape[0], -1, -1, -1)


@right("pairwise_differences", style="indexing with None")
def with_none(x: Tensor, y: Tensor) -> Tensor:
    return x[:, :, None] - y[:, None]


@right("pairwise_differences", style="a loop over the sources")
def with_a_loop(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([x - y[:, s : s + 1] for s in range(y.shape[1])], dim=2)


@right("pairwise_differences", style="expand to the full shape first")
def with_expand(x: Tensor, y: Tensor) -> Tensor:
    B, T, d = x.shape
    S = y.shape[1]
    return x.view(B, T, 1, d).expand(B, T, S, d) - y.view(B, 1, S, d).expand(B, T, S, d)


@right("pairwise_differences", style="repeat_interleave and repeat")
def with_repeats(x: Tensor, y: Tensor) -> Tensor:
    B, T, d = x.shape
    S = y.shape[1]
    return (x.repeat_interleave(S, dim=1) - y.repeat(1, T, 1)).reshape(B, T, S, d)


# ---------------------------------------------------------------------------- batched_products


@wrong(
    "batched_products",
    why=_("k is not transposed: the last axis of q meets the positions of k and not its features."),
    see="intro-batched-products",
    rung=2,
)
def without_transpose(q: Tensor, k: Tensor) -> Tensor:
    return q @ k


@wrong(
    "batched_products",
    why=_("k.T or permute turns all axes round: the batch is exchanged as well."),
    see="intro-batched-products",
    rung=2,
)
def all_axes_turned(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.permute(2, 1, 0)


@wrong(
    "batched_products",
    why=_(
        "The shape is made to fit with view, which renames axes and moves no number: k's "
        "features and positions are mixed up."
    ),
    see="intro-view-transpose",
    rung=2,
)
def view_for_transpose(q: Tensor, k: Tensor) -> Tensor:
    B, S, d = k.shape
    return q @ k.reshape(B, d, S)


@wrong(
    "batched_products",
    why=_("Queries and keys are exchanged: the result is (B, S, T)."),
    see="intro-batched-products",
)
def keys_times_queries(q: Tensor, k: Tensor) -> Tensor:
    return k @ q.transpose(-2, -1)


@wrong(
    "batched_products",
    why=_(
        "The products are divided by √d. That comes in the attention chapter; here the plain "
        "dot product was asked for."
    ),
    see="intro-batched-products",
)
def already_scaled(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5


@wrong(
    "batched_products",
    why=_("The vectors are brought to length 1 first: these are cosines, not dot products."),
    see="intro-batched-products",
)
def cosines(q: Tensor, k: Tensor) -> Tensor:
    q = q / q.norm(dim=-1, keepdim=True)
    k = k / k.norm(dim=-1, keepdim=True)
    return q @ k.transpose(-2, -1)


@wrong(
    "batched_products",
    why=_("The products are averaged over the width instead of summed."),
    see="intro-batched-products",
)
def mean_for_sum(q: Tensor, k: Tensor) -> Tensor:
    return (q.unsqueeze(2) * k.unsqueeze(1)).mean(-1)


@wrong(
    "batched_products",
    why=_("Every query meets the keys of the first item of the batch only."),
    see="intro-batched-products",
)
def keys_of_first_item(q: Tensor, k: Tensor) -> Tensor:
    return q @ k[0].T


@wrong(
    "batched_products",
    why=_("The sum runs over the batch as well, so that every item gets the total."),
    see="intro-batched-products",
)
def batch_summed(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("btd,bsd->ts", q, k).expand(q.shape[0], -1, -1)


@wrong(
    "batched_products",
    why=_(
        "The products are right, and k was overwritten on the way: *= writes into what was given."
    ),
    see="intro-batched-products",
    rung=1,
)
def products_over_the_keys(q: Tensor, k: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1)
    k *= 0
    return scores


@wrong(
    "batched_products",
    why=_(
        "A softmax is taken of the products. That comes later; here the products were asked for."
    ),
    see="intro-batched-products",
)
def softmax_of_the_products(q: Tensor, k: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1), dim=-1)


@wrong(
    "batched_products",
    why=_("Every query meets the keys of all items of the batch, added up."),
    see="intro-batched-products",
)
def keys_summed_over_the_batch(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("btd,csd->bts", q, k)


@right("batched_products", style="einsum")
def with_einsum(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("btd,bsd->bts", q, k)


@right("batched_products", style="bmm")
def with_bmm(q: Tensor, k: Tensor) -> Tensor:
    return torch.bmm(q, k.permute(0, 2, 1))


@right("batched_products", style="broadcast, multiply, sum")
def with_broadcast(q: Tensor, k: Tensor) -> Tensor:
    return (q[:, :, None] * k[:, None]).sum(-1)


@right("batched_products", style="a loop over the batch")
def with_loop(q: Tensor, k: Tensor) -> Tensor:
    return torch.stack([one @ other.T for one, other in zip(q, k, strict=True)])


# ------------------------------------------------------------------------------- image_patches


@wrong(
    "image_patches",
    why=_(
        "One view into the final shape cuts the memory into pieces, not the image into squares: "
        "a row holds stretches of pixel lines."
    ),
    see="intro-view-transpose",
    rung=2,
)
def view_alone(images: Tensor, P: int) -> Tensor:
    B, C, height, width = images.shape
    return images.reshape(B, (height // P) * (width // P), C * P * P)


@wrong(
    "image_patches",
    why=_(
        "The axes were split rightly and then merged in the order in which they lay: the "
        "permutation between the two is missing."
    ),
    see="intro-view-transpose",
    rung=2,
)
def channels_before_patches(images: Tensor, P: int) -> Tensor:
    B, C, height, width = images.shape
    cut = images.view(B, C, height // P, P, width // P, P).permute(0, 1, 2, 4, 3, 5)
    return cut.reshape(B, -1, C * P * P)


@wrong(
    "image_patches",
    why=_("The channels come last in each row; the exercise asks for them first."),
    see="intro-view-transpose",
    rung=3,
)
def channels_last(images: Tensor, P: int) -> Tensor:
    B, C, height, width = images.shape
    cut = images.view(B, C, height // P, P, width // P, P).permute(0, 2, 4, 3, 5, 1)
    return cut.reshape(B, -1, C * P * P)


@wrong(
    "image_patches",
    why=_("The patches come column by column of the image; the exercise asks for row by row."),
    see="intro-view-transpose",
    rung=3,
)
def patches_column_by_column(images: Tensor, P: int) -> Tensor:
    B, C, height, width = images.shape
    cut = images.view(B, C, height // P, P, width // P, P).permute(0, 4, 2, 1, 3, 5)
    return cut.reshape(B, -1, C * P * P)


@wrong(
    "image_patches",
    why=_("Rows and columns are exchanged inside each patch: each patch lies on its side."),
    see="intro-view-transpose",
    rung=3,
)
def patches_transposed(images: Tensor, P: int) -> Tensor:
    B, C, height, width = images.shape
    cut = images.view(B, C, height // P, P, width // P, P).permute(0, 2, 4, 1, 5, 3)
    return cut.reshape(B, -1, C * P * P)


@wrong(
    "image_patches",
    why=_(
        "The split axes are named the wrong way round: P stands where the number of patches "
        "belongs, so a row gathers every P-th pixel instead of neighbours."
    ),
    see="intro-view-transpose",
    rung=3,
)
def strided_pixels(images: Tensor, P: int) -> Tensor:
    B, C, height, width = images.shape
    cut = images.view(B, C, P, height // P, P, width // P).permute(0, 3, 5, 1, 2, 4)
    return cut.reshape(B, -1, C * P * P)


@wrong(
    "image_patches",
    why=_("Only the first channel is cut; the others are copies of it."),
    see="intro-view-transpose",
)
def first_channel_only(images: Tensor, P: int) -> Tensor:
    images = images[:, :1].expand_as(images)
    B, C, height, width = images.shape
    cut = images.reshape(B, C, height // P, P, width // P, P).permute(0, 2, 4, 1, 3, 5)
    return cut.reshape(B, -1, C * P * P)


@wrong(
    "image_patches",
    why=_("The result has features and patches exchanged: (B, C·P·P, N), as unfold gives it."),
    see="intro-view-transpose",
)
def unfold_not_transposed(images: Tensor, P: int) -> Tensor:
    return torch.nn.functional.unfold(images, kernel_size=P, stride=P)


@wrong(
    "image_patches",
    why=_("The windows move by one pixel, so they overlap; patches do not."),
    see="intro-view-transpose",
)
def overlapping_windows(images: Tensor, P: int) -> Tensor:
    return torch.nn.functional.unfold(images, kernel_size=P).transpose(1, 2)


@right("image_patches", style="unfold, transposed")
def with_unfold(images: Tensor, P: int) -> Tensor:
    return torch.nn.functional.unfold(images, kernel_size=P, stride=P).transpose(1, 2)


@right("image_patches", style="two loops over the corners")
def with_loops(images: Tensor, P: int) -> Tensor:
    B, C, height, width = images.shape
    rows = []
    for i in range(height // P):
        for j in range(width // P):
            square = images[:, :, i * P : i * P + P, j * P : j * P + P]
            rows.append(square.reshape(B, C * P * P))
    return torch.stack(rows, 1)


@right("image_patches", style="Tensor.unfold twice")
def with_tensor_unfold(images: Tensor, P: int) -> Tensor:
    cut = images.unfold(2, P, P).unfold(3, P, P)  # (B, C, height/P, width/P, P, P)
    return cut.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


@right("image_patches", style="chunks")
def with_chunks(images: Tensor, P: int) -> Tensor:
    rows = []
    for band in images.split(P, dim=2):
        rows += [square.flatten(1) for square in band.split(P, dim=3)]
    return torch.stack(rows, dim=1)


# ---------------------------------------------------------------------------------- row_shares


@wrong(
    "row_shares",
    why=_(
        "The row sums have shape (..., n) and line up with the columns, not with the rows: in a "
        "square matrix column j is divided by the sum of row j, elsewhere it is an error."
    ),
    see="intro-broadcasting",
    rung=2,
    given=True,
)
def sums_line_up_with_columns(x: Tensor) -> Tensor:
    """Divide every row by its sum, so that its entries become shares of 1.

    Args:
        x: positive, shape (..., n).

    Returns:
        Same shape; each row along the last axis sums to 1, and ``x`` is as it was.
    """
    total = x.sum(dim=-1)  # the sum of each row
    x /= total
    return x


@wrong(
    "row_shares",
    why=_("The sums keep their axis now, but /= still writes into the input."),
    see="intro-broadcasting",
    rung=3,
)
def overwrites_its_input(x: Tensor) -> Tensor:
    x /= x.sum(dim=-1, keepdim=True)
    return x


@wrong(
    "row_shares",
    why=_("Nothing is overwritten now, but the sums still line up with the columns."),
    see="intro-broadcasting",
    rung=2,
)
def new_tensor_same_broadcast(x: Tensor) -> Tensor:
    return x / x.sum(dim=-1)


@wrong(
    "row_shares",
    why=_("The sum runs down the first axis: the columns sum to 1."),
    see="intro-broadcasting",
)
def sums_of_the_first_axis(x: Tensor) -> Tensor:
    return x / x.sum(dim=0, keepdim=True)


@wrong(
    "row_shares",
    why=_("All entries share one sum: the whole tensor sums to 1, not each row."),
    see="intro-broadcasting",
)
def one_sum_for_all(x: Tensor) -> Tensor:
    return x / x.sum()


@wrong(
    "row_shares",
    why=_(
        "Softmax makes rows that sum to 1, but of exponentials: the ratios of the input are lost."
    ),
    see="intro-broadcasting",
)
def softmax_for_shares(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


@wrong(
    "row_shares",
    why=_("Rows are divided by their largest entry: the largest becomes 1, not the sum."),
    see="intro-broadcasting",
)
def largest_for_sum(x: Tensor) -> Tensor:
    return x / x.amax(dim=-1, keepdim=True)


@wrong(
    "row_shares",
    why=_("Rows are divided by their length (the root of the sum of squares), not by their sum."),
    see="intro-broadcasting",
)
def length_for_sum(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


@wrong(
    "row_shares",
    why=_("The input comes back as it was."),
    see="intro-broadcasting",
)
def input_returned(x: Tensor) -> Tensor:
    return x.clone()


@wrong(
    "row_shares",
    why=_(
        "The axis of the sums is put back in second place, not in last place: that is right for "
        "a matrix and wrong for a batch of matrices."
    ),
    see="intro-broadcasting",
    rung=3,
)
def axis_put_back_in_second_place(x: Tensor) -> Tensor:
    if x.dim() == 1:
        return x / x.sum()
    return x / x.sum(dim=-1).unsqueeze(1)


@wrong(
    "row_shares",
    why=_("Sums below 1 are taken for 1, so rows of small numbers are not divided at all."),
    see="intro-broadcasting",
)
def small_sums_raised_to_one(x: Tensor) -> Tensor:
    return x / x.sum(dim=-1, keepdim=True).clamp(min=1.0)


@right("row_shares", style="unsqueeze")
def with_unsqueeze(x: Tensor) -> Tensor:
    return x / x.sum(-1).unsqueeze(-1)


@right("row_shares", style="softmax of logarithms")
def with_logarithms(x: Tensor) -> Tensor:
    return torch.softmax(torch.log(x), dim=-1)


@right("row_shares", style="the library's normalize")
def with_normalize(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, p=1.0, dim=-1)


@right("row_shares", style="a copy, then in place")
def with_copy(x: Tensor) -> Tensor:
    y = x.clone()
    y /= torch.einsum("...n->...", x)[..., None]
    return y


# --------------------------------------------------------------------------------- shares_test


@wrong(
    "shares_test",
    why=_(
        "No fault is ever found: nothing is asserted, or only what a wrong implementation fulfils "
        "as well, such as the shape, the sum of a single row, or numbers within a wide tolerance."
    ),
    see="intro-tests",
)
def asserts_nothing(row_shares):
    row_shares(torch.rand(3, 4) + 0.5)


@wrong(
    "shares_test",
    why=_("Only the shape is asserted, and a wrong implementation keeps the shape."),
    see="intro-tests",
    rung=2,
    form_of="asserts_nothing",
)
def asserts_the_shape_only(row_shares):
    for shape in ((3, 3), (2, 5), (2, 3, 4)):
        assert row_shares(torch.rand(shape) + 0.5).shape == shape


@wrong(
    "shares_test",
    why=_("Only the sums are asserted: 1/n in every place passes as well."),
    see="intro-tests",
    rung=2,
)
def asserts_sums_only(row_shares):
    for shape in ((3, 3), (2, 5), (2, 3, 4)):
        y = row_shares(torch.rand(shape) + 0.5)
        assert torch.allclose(y.sum(-1), torch.ones(shape[:-1]))


@wrong(
    "shares_test",
    why=_("Only one oblong shape is tried: a bug that needs a square matrix to show stays hidden."),
    see="intro-tests",
    rung=2,
)
def one_oblong_shape(row_shares):
    x = torch.rand(2, 5) + 0.5
    before = x.clone()
    y = row_shares(x)
    assert torch.allclose(y, before / before.sum(-1, keepdim=True))
    assert torch.equal(x, before)


@wrong(
    "shares_test",
    why=_("Exact equality turns right implementations away that round in another order."),
    see="intro-tests",
    rung=1,
)
def exact_equality(row_shares):
    x = torch.rand(3, 3) + 0.5
    assert (row_shares(x) == x / x.sum(-1, keepdim=True)).all()


@wrong(
    "shares_test",
    why=_("Every right implementation is turned away: what is asserted does not hold for them."),
    see="intro-tests",
)
def rejects_everything(row_shares):
    assert row_shares is None, "wrong"


@wrong(
    "shares_test",
    why=_(
        "The total of the whole result is asserted and not the sum of each row: one sum for all "
        "rows, or columns that sum to 1, can pass."
    ),
    see="intro-tests",
    rung=2,
)
def asserts_the_total(row_shares):
    for shape in ((3, 3), (2, 5), (2, 3, 4)):
        y = row_shares(torch.rand(shape) + 0.5)
        rows = y.numel() / shape[-1]
        assert abs(y.sum().item() - rows) < 1e-4


@wrong(
    "shares_test",
    why=_(
        "Overwriting is not seen: the input after the call is compared with itself, or not at all, "
        "and not with a copy made before."
    ),
    see="intro-tests",
    rung=3,
)
def no_copy_before_the_call(row_shares):
    for shape in ((3, 3), (2, 5), (2, 3, 4)):
        x = torch.rand(shape) + 0.5
        y = row_shares(x)
        assert torch.allclose(y.sum(-1), torch.ones(shape[:-1]))
        assert torch.allclose(y, x / x.sum(-1, keepdim=True))


@wrong(
    "shares_test",
    why=_("All rows are the same, so one row's sum serves for every row without being noticed."),
    see="intro-tests",
    rung=3,
)
def rows_all_alike(row_shares):
    for shape in ((3, 3), (2, 5), (2, 3, 4)):
        x = torch.arange(1.0, shape[-1] + 1).expand(shape).clone()
        before = x.clone()
        y = row_shares(x)
        assert torch.allclose(y, before / before.sum(-1, keepdim=True))
        assert torch.equal(x, before)


@right("shares_test", style="against a loop over rows")
def against_a_loop(row_shares):
    for shape in [(4, 4), (3, 5), (2, 2, 2), (2, 3, 4)]:
        x = torch.rand(shape) * 3 + 0.1
        original = x.clone()
        result = row_shares(x)
        rows, wanted = result.reshape(-1, shape[-1]), original.reshape(-1, shape[-1])
        for row, source in zip(rows, wanted, strict=True):
            assert torch.allclose(row, source / source.sum(), atol=1e-5)
        assert torch.allclose(x, original)


@right("shares_test", style="properties by hand-made numbers")
def by_hand(row_shares):
    x = torch.tensor([[1.0, 3.0], [4.0, 4.0]])
    y = row_shares(x)
    if not torch.allclose(y, torch.tensor([[0.25, 0.75], [0.5, 0.5]]), atol=1e-4):
        raise AssertionError("wrong shares")
    assert x.tolist() == [[1.0, 3.0], [4.0, 4.0]]
    z = row_shares(torch.tensor([[[1.0, 1.0, 2.0]], [[2.0, 6.0, 8.0]]]))
    assert abs(z[1, 0, 2].item() - 0.5) < 1e-4
    assert abs(z[0, 0, 0].item() - 0.25) < 1e-4


@right("shares_test", style="torch.testing in float64")
def with_torch_testing(row_shares):
    for shape in ((3, 3), (3, 3, 3), (2, 6)):
        x = torch.rand(shape, dtype=torch.float64) + 0.5
        y = row_shares(x.clone())
        torch.testing.assert_close(y, x / x.sum(-1, keepdim=True))
        copy = x.clone()
        row_shares(copy)
        torch.testing.assert_close(copy, x)
