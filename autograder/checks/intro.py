"""How the answers of chapter ``intro`` are judged."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from autograder.answer import Answer
from autograder.checking import (
    Cases,
    Exercise,
    expect,
    expect_close,
    expect_tensor,
)
from autograder.i18n import _
from autograder.trial import expect_refused, verdicts

# Sums of at most a dozen products of numbers near 1, in float32: 12 · 1.2e-7 · a few.
SHORT_SUM = 1e-5
# One subtraction or one copy of float32 numbers is exact to its last place.
ONE_STEP = 1e-6

# ---------------------------------------------------------------------------------------------

differences = Exercise(
    "pairwise_differences",
    title=_("Every pair at once"),
    difficulty=1,
    minutes=8,
    hints=(
        _("The result has an axis for T and one for S. Which of the two does x lack, and where?"),
        _(
            "If you see a shape error, the two sizes T and S met each other. Each tensor needs an "
            "axis of length 1 where the other one has its own."
        ),
        _("x as (B, T, 1, d), y as (B, 1, S, d), then subtract; unsqueeze adds such an axis."),
    ),
)


@differences.check(points=0.5)
def has_an_axis_for_each(answer: Answer, cases: Cases) -> None:
    """The result has shape (B, T, S, d)."""
    B, T, S, d = cases.distinct(4, 2, 8)
    expect_tensor(
        answer(cases.normal(B, T, d), cases.normal(B, S, d)), (B, T, S, d), what=_("the result")
    )


@differences.check(points=1)
def each_pair_is_subtracted(answer: Answer, cases: Cases) -> None:
    """Entry (b, t, s) is x[b, t] - y[b, s]."""
    B, T, S, d = cases.distinct(4, 2, 8)
    _expect_differences(answer, cases.normal(B, T, d), cases.normal(B, S, d))


@differences.check(points=0.5, hidden=True)
def equal_sizes_are_no_special_case(answer: Answer, cases: Cases) -> None:
    """It is still every pair where T equals S and the batch size; x and y stay as they were."""
    n, d = cases.distinct(2, 2, 6)
    x, y = cases.normal(n, n, d), cases.normal(n, n, d)
    _expect_differences(answer, x, y)
    _expect_inputs_kept(answer, x, y)


def _expect_inputs_kept(answer: Answer, *inputs: Tensor) -> None:
    for before, after in zip(inputs, answer.run(inputs, echo=True).args, strict=True):
        expect_close(
            after,
            before.double(),
            atol=0.0,
            what=_("an input after the call"),
            cause=_("An operation in place (-=, neg_, mul_) writes into what was given."),
            next_step=_("Compute into a new tensor: x - …, not x -= …."),
        )


def _expect_differences(answer: Answer, x: Tensor, y: Tensor) -> None:
    B, T, d = x.shape
    S = y.shape[1]
    expected = torch.empty(B, T, S, d, dtype=torch.float64)
    for t in range(T):
        for s in range(S):
            expected[:, t, s] = x[:, t].double() - y[:, s].double()
    expect_close(
        answer(x, y),
        expected,
        atol=ONE_STEP,
        what=_("the result"),
        cause=_("The pairs are not formed, or the subtraction goes the other way round."),
        next_step=_("Take B = 1, T = 2, S = 3, d = 1 and compare with the six numbers by hand."),
    )


# ---------------------------------------------------------------------------------------------

products = Exercise(
    "batched_products",
    title=_("All dot products in one product"),
    difficulty=1,
    minutes=8,
    hints=(
        _("In a product of matrices, which axis of the left meets which axis of the right one?"),
        _(
            "If the shapes do not fit, k still has d as its last axis; a batched product wants it "
            "last but one. Exchange the last two axes only: the batch stays where it is."
        ),
        _("(B, T, d) @ (B, d, S): transpose k's last two axes, then multiply."),
    ),
)


@products.check(points=0.5)
def one_number_per_pair(answer: Answer, cases: Cases) -> None:
    """The result has shape (B, T, S)."""
    B, T, S, d = cases.distinct(4, 2, 8)
    expect_tensor(
        answer(cases.normal(B, T, d), cases.normal(B, S, d)), (B, T, S), what=_("the result")
    )


@products.check(points=1)
def equals_the_loop(answer: Answer, cases: Cases) -> None:
    """Entry (b, t, s) is the dot product of q[b, t] and k[b, s]."""
    B, T, S, d = cases.distinct(4, 2, 8)
    _expect_products(answer, cases.normal(B, T, d), cases.normal(B, S, d))


@products.check(points=0.5, hidden=True)
def batches_stay_apart(answer: Answer, cases: Cases) -> None:
    """Square sizes do not mix the axes up, no item sees another, and q and k stay as they were."""
    n = cases.integer(3, 6)
    q, k = cases.normal(n, n, n), cases.normal(n, n, n)
    _expect_products(answer, q, k)
    _expect_inputs_kept(answer, q, k)


def _expect_products(answer: Answer, q: Tensor, k: Tensor) -> None:
    B, T, _d = q.shape
    expected = torch.empty(B, T, k.shape[1], dtype=torch.float64)
    for b in range(B):
        for t in range(T):
            expected[b, t] = (k[b].double() * q[b, t].double()).sum(-1)
    expect_close(
        answer(q, k),
        expected,
        atol=SHORT_SUM,
        what=_("the result"),
        cause=_("Axes are exchanged that should stay, or something is added to the plain product."),
        next_step=_("Compute one entry with (q[0, 1] * k[0, 2]).sum() and find it in the result."),
    )


# ---------------------------------------------------------------------------------------------

patches = Exercise(
    "image_patches",
    title=_("Cut an image into patches"),
    difficulty=3,
    minutes=20,
    hints=(
        _("Height splits into two axes: which patch, and which row in the patch. And the width?"),
        _(
            "If the shape is right and the numbers are not, the axes were merged in the order in "
            "which they lay. Permute first: both patch axes must come before C, P and P."
        ),
        _(
            "view as (B, C, height/P, P, width/P, P); permute to (B, height/P, width/P, C, P, P); "
            "reshape to (B, N, C·P·P)."
        ),
    ),
)


def _patches(images: Tensor, P: int) -> Tensor:
    rows = []
    for top in range(0, images.shape[2], P):
        for left in range(0, images.shape[3], P):
            rows.append(images[:, :, top : top + P, left : left + P].flatten(1))
    return torch.stack(rows, dim=1)  # (B, N, C·P·P)


def _expect_patches(answer: Answer, images: Tensor, P: int) -> None:
    expect_close(
        answer(images, P),
        _patches(images.double(), P),
        atol=ONE_STEP,
        what=_("the result"),
        cause=_("Axes were merged in the wrong order, so that a row mixes several patches."),
        next_step=_(
            "Take one 4 × 4 image of the numbers 0 … 15, P = 2: the first row is 0, 1, 4, 5."
        ),
    )


@patches.check(points=0.5)
def one_row_per_patch(answer: Answer, cases: Cases) -> None:
    """The result has shape (B, N, C·P·P)."""
    P = cases.integer(2, 4)
    B, C, down, right = cases.distinct(4, 2, 6)
    expect_tensor(
        answer(cases.normal(B, C, down * P, right * P), P),
        (B, down * right, C * P * P),
        what=_("the result"),
    )


@patches.check(points=1)
def first_patch_is_the_corner(answer: Answer, cases: Cases) -> None:
    """For one channel, the first row is the upper left patch, read line by line."""
    images = cases.normal(2, 1, 4, 6)
    found = expect_tensor(answer(images, 2), (2, 6, 4), what=_("the result"))
    expect_close(
        found[:, 0],
        images[:, 0, :2, :2].reshape(2, 4).double(),
        atol=ONE_STEP,
        what=_("the first row"),
        cause=_("The row holds numbers from other places of the image."),
        next_step=_("Number a 4 × 6 image from 0 to 23 and look at the first row: 0, 1, 6, 7."),
    )


@patches.check(points=1)
def every_patch_in_order(answer: Answer, cases: Cases) -> None:
    """All rows are right where height and width differ and there are several channels."""
    P = cases.integer(2, 4)
    B, C, down, right = cases.distinct(4, 2, 6)
    _expect_patches(answer, cases.normal(B, C, down * P, right * P), P)


@patches.check(points=1, hidden=True)
def one_patch_and_patches_of_one(answer: Answer, cases: Cases) -> None:
    """P equal to the side gives one row; P = 1 gives one row per pixel."""
    images = cases.normal(2, 3, 4, 4)
    _expect_patches(answer, images, 4)
    _expect_patches(answer, images, 1)


# ---------------------------------------------------------------------------------------------

shares = Exercise(
    "row_shares",
    title=_("Find the bug: shares of a row"),
    difficulty=2,
    minutes=10,
    hints=(
        _("What shape has x.sum(-1) for an x of shape (2, 3), and how does it line up with x?"),
        _(
            "Shapes line up from the right. A (3, 3) matrix divided by 3 row sums raises no error: "
            "which sum divides which column?"
        ),
        _("Keep the summed axis as an axis of length 1, and write into a new tensor."),
    ),
    given="sums_line_up_with_columns",
)


def _expect_shares(answer: Answer, x: Tensor) -> None:
    expect_close(
        answer(x),
        x.double() / x.double().sum(-1, keepdim=True),
        atol=ONE_STEP,
        what=_("the result"),
        cause=_("A row is divided by something other than its own sum."),
        next_step=_("Print x.sum(-1).shape beside x.shape and line the two up from the right."),
    )


@shares.check(points=1)
def square_matrix(answer: Answer, cases: Cases) -> None:
    """Rows of a square matrix sum to 1."""
    n = cases.integer(3, 6)
    x = cases.uniform(n, n, low=0.5, high=2.0)
    found = expect_tensor(answer(x), (n, n), what=_("the result"))
    worst = (found.double().sum(-1) - 1).abs().max().item()
    expect(
        worst < SHORT_SUM,
        seen=_("The rows do not sum to 1; one is off by {worst:.2g}.").format(worst=worst),
        cause=_("For a square matrix, rows and columns can be mixed up without an error."),
        next_step=_("Print x.sum(-1).shape beside x.shape and line the two up from the right."),
    )


@shares.check(points=1)
def other_shapes(answer: Answer, cases: Cases) -> None:
    """Matrices that are not square, and batches of them, are divided row by row."""
    a, b, c = cases.distinct(3, 2, 7)
    _expect_shares(answer, cases.uniform(a, b, low=0.5, high=2.0))
    _expect_shares(answer, cases.uniform(a, b, c, low=0.5, high=2.0))


@shares.check(points=0)
def one_row_alone(answer: Answer, cases: Cases) -> None:
    """A single row, without a batch, still sums to 1."""
    _expect_shares(answer, cases.uniform(5, low=0.5, high=2.0))


@shares.check(points=0.5, hidden=True)
def square_batches(answer: Answer, cases: Cases) -> None:
    """Batches whose sizes are all equal are divided row by row too, small sums and large."""
    n = cases.integer(2, 5)
    _expect_shares(answer, cases.uniform(n, n, n, low=0.5, high=2.0))
    _expect_shares(answer, cases.uniform(n, n, n, low=0.05, high=0.2))


@shares.check(points=0.5, hidden=True)
def input_stays_as_it_was(answer: Answer, cases: Cases) -> None:
    """The result is right and the input is not overwritten."""
    n = cases.integer(3, 6)
    x = cases.uniform(n, n, low=0.5, high=2.0)
    run = answer.run((x,), echo=True)
    expect_tensor(run.value, (n, n), what=_("the result"))
    expect_close(
        run.value.double().sum(-1),
        torch.ones(n, dtype=torch.float64),
        atol=SHORT_SUM,
        what=_("the sum of each row"),
        cause=_("A row is divided by something other than its own sum."),
        next_step=_("Print x.sum(-1).shape beside x.shape and line the two up from the right."),
    )
    expect_close(
        run.args[0],
        x.double(),
        atol=0.0,
        what=_("the input after the call"),
        cause=_("An operation in place (/=, div_, copy_) writes into the tensor that was given."),
        next_step=_("Write `x / ...` into a new name instead."),
    )


# ---------------------------------------------------------------------------------------------

test_writing = Exercise(
    "shares_test",
    title=_("Write a test that finds the bug"),
    difficulty=3,
    minutes=15,
    hints=(
        _("Which property does the result always have, whatever the input, if the code is right?"),
        _(
            "A test that only looks at the sums lets code through that returns 1/n everywhere. And "
            "one shape alone lets a bug through that needs another shape to show."
        ),
        _(
            "For a square, an oblong and a three-axis input: the shape, the sums of the rows, "
            "result · row sum against the input, and the input against a copy made before."
        ),
    ),
)

Shares = Callable[[Tensor], Tensor]

ACCEPTS = _(
    "Your test raises AssertionError for an implementation that is right (written another way)."
)


def _right_shares(x: Tensor) -> Tensor:
    return x / x.sum(-1, keepdim=True)


def _right_by_logarithms(x: Tensor) -> Tensor:
    return torch.softmax(x.log(), dim=-1)


def _right_by_product(x: Tensor) -> Tensor:
    return x * (1.0 / torch.einsum("...n->...", x)).unsqueeze(-1)


def _columns(x: Tensor) -> Tensor:
    return x / x.sum(-2, keepdim=True) if x.dim() > 1 else x / x.sum()


def _lined_up(x: Tensor) -> Tensor:
    total = x.sum(-1)
    return x / total if total.dim() == 0 or total.shape[-1] == x.shape[-1] else _right_shares(x)


def _everything(x: Tensor) -> Tensor:
    return x / x.sum() * (x.numel() / x.shape[-1])  # right on average, in no single row


def _uniform(x: Tensor) -> Tensor:
    return torch.full_like(x, 1 / x.shape[-1])


def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def _first_sum(x: Tensor) -> Tensor:
    return x / x.flatten(0, -2)[0].sum() if x.dim() > 1 else x / x.sum()


def _in_place(x: Tensor) -> Tensor:
    total = x.sum(-1, keepdim=True)
    return x.div_(total)


def _takes_x(x: Tensor) -> None:
    if not x.is_floating_point():
        raise TypeError


def _expect_judged(answer: Answer, cases: Cases, wrong: dict[Shares, tuple[str, str]]) -> None:
    """It accepts what is right, and rejects each of ``wrong``: by function, what is said else."""
    right = [_right_shares, _right_by_logarithms, _right_by_product]
    accepted, refused = verdicts(answer, cases, right=right, wrong=list(wrong), takes=_takes_x)
    expect(
        all(accepted),
        seen=ACCEPTS,
        cause=_("It asks for exact equality, or for something the docstring does not promise."),
        next_step=_("Compare floating-point numbers with torch.allclose."),
    )
    expect_refused(refused, wrong.values())


@test_writing.check(points=0.5)
def accepts_right_and_finds_one(answer: Answer, cases: Cases) -> None:
    """It accepts right implementations and rejects one that divides by the sum of everything."""
    _expect_judged(
        answer,
        cases,
        {
            _everything: (
                _(
                    "Your test accepts an implementation that divides by the sum of the whole "
                    "tensor."
                ),
                _("Assert that each row sums to 1."),
            ),
        },
    )


@test_writing.check(points=1)
def finds_mixed_axes(answer: Answer, cases: Cases) -> None:
    """It rejects division by the sums of the columns, and accepts right implementations."""
    _expect_judged(
        answer,
        cases,
        {
            _columns: (
                _("Your test accepts an implementation that makes the columns sum to 1."),
                _("Assert that each row sums to 1, on a matrix whose columns do not."),
            ),
        },
    )


@test_writing.check(points=0.5, hidden=True)
def finds_what_only_a_square_shows(answer: Answer, cases: Cases) -> None:
    """It rejects one that is wrong for square inputs alone."""
    _expect_judged(
        answer,
        cases,
        {
            _lined_up: (
                _("Your test accepts an implementation that is wrong for some shapes only."),
                _("Try shapes whose axes are equal as well as shapes whose axes differ."),
            ),
        },
    )


@test_writing.check(points=0.5, hidden=True)
def finds_lost_ratios(answer: Answer, cases: Cases) -> None:
    """It rejects results whose rows sum to 1 but are not shares of the input."""
    said = (
        _("Your test accepts rows that sum to 1 and have lost the ratios of the input."),
        _("Assert something that ties each entry to its own input."),
    )
    _expect_judged(answer, cases, {_uniform: said, _softmax: said})


@test_writing.check(points=0.5, hidden=True)
def finds_borrowed_sums_and_overwriting(answer: Answer, cases: Cases) -> None:
    """It rejects one that divides by the first row's sum, and one that overwrites its input."""
    _expect_judged(
        answer,
        cases,
        {
            _first_sum: (
                _("Your test accepts an implementation that divides every row by one row's sum."),
                _("Use rows of different sums."),
            ),
            _in_place: (
                _("Your test accepts an implementation that overwrites its input."),
                _("Keep a copy of the input and compare it after the call."),
            ),
        },
    )
