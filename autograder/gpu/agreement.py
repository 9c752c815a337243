"""The reference's kernels, graded as a learner's are and compared with float64 on the device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from autograder import chapters
from autograder.checking import Check
from autograder.gpu.contenders import TritonAttention, plain
from autograder.gpu.sizes import Sizes
from autograder.judge import Judge, opening

KERNELS = (
    "logsumexp_kernel",
    "flash_forward_kernel",
    "flash_backward_dq_kernel",
    "flash_backward_dkv_kernel",
)

# Of the largest number compared. The output is rounded once and the weights once before they meet
# the values, so a few units in the last place; gradients go through two such products.
_UNITS = {"output": 4, "gradient": 8}
# float32 sums some hundred terms: a unit in the last place, 1.2e-7, for each ten of them.
_FLOAT32 = 1e-5


def tolerance(dtype: torch.dtype, what: str) -> float:
    """The largest difference, relative to the largest number, for ``output`` or ``gradient``."""
    if dtype == torch.float32:
        return _FLOAT32
    return _UNITS[what] * torch.finfo(dtype).eps


def is_asked(check: Check, device: str) -> bool:
    """Whether a check can be asked: what is loaded is counted in Triton's interpreter alone."""
    return device == "cpu" or "_counted" not in check.function.__code__.co_names


def graded(device: str) -> Iterator[dict[str, Any]]:
    """Run the chapter's own checks of its kernels, hidden ones too, on the reference.

    Yields:
        One row a check: ``name``, ``passed`` and ``message``.
    """
    for name in KERNELS:
        exercise = chapters.exercise(f"flash_attention.{name}")
        judge = Judge(exercise, checks=lambda check: is_asked(check, device))
        for check in judge.judge(opening(exercise, chapters.reference(exercise))).checks:
            yield {
                "name": f"{name}: {check.name}",
                "passed": check.passed,
                "message": check.message or "",
            }


def compare(sizes: Sizes, device: str, large: float = 10.0) -> Iterator[dict[str, Any]]:
    """Compare outputs and gradients for ragged, causal and long-tailed cases.

    Args:
        sizes: the lengths and widths.
        device: ``"cuda"``, or ``"cpu"`` for the interpreter.
        large: queries are multiplied by it in the cases with large scores.

    Yields:
        One row a case: ``name``, ``passed``, ``errors`` and ``tolerances`` of the output and of
        the gradients, relative to the largest number.
    """
    noise = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=noise).to(device)

    halves = itertools.product((torch.float16, torch.bfloat16), sizes.widths, sizes.pairs)
    # Each type and width is compiled anew: float32, which nobody trains in, gets one of each.
    whole = ((torch.float32, sizes.widths[0], pair) for pair in sizes.pairs[-2:])
    for (dtype, d, (T, S)), causal, scale in itertools.product(
        (*halves, *whole), (False, True), (1.0, large)
    ):
        q, k, v = normal(2, T, d) * scale, normal(2, S, d), normal(2, S, d)
        tensors = [x.to(dtype) for x in (q, k, v, normal(2, T, d))]
        yield _case(tensors, causal, sizes, scale > 1)


def _case(inputs: list[Tensor], causal: bool, sizes: Sizes, is_large: bool) -> dict[str, Any]:
    q, k, v, upstream = inputs
    blocks = (sizes.forward_blocks[0], sizes.backward_blocks[0])
    ours = [x.clone().requires_grad_() for x in (q, k, v)]
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    output = TritonAttention.apply(*ours, causal, *blocks)
    right = plain(*exact, causal=causal)
    pairs = {"output": [(output, right)]}
    pairs["gradient"] = list(
        zip(
            torch.autograd.grad(output, ours, upstream),
            torch.autograd.grad(right, exact, upstream.double()),
            strict=True,
        )
    )
    errors = {what: max(_relative(*pair) for pair in both) for what, both in pairs.items()}
    tolerances = {what: tolerance(q.dtype, what) for what in pairs}
    # A softmax that is nearly a choice turns the rounding of a score into one of the weights:
    # of scores up to 50, in units of the last place of the product of two rounded numbers.
    if is_large:
        tolerances = {what: 4 * allowed for what, allowed in tolerances.items()}
    kind = str(q.dtype).removeprefix("torch.")
    return {
        "name": f"{kind}, d = {q.shape[-1]}, T = {q.shape[-2]}, S = {k.shape[-2]}"
        + (", causal" if causal else "")
        + (", large scores" if is_large else ""),
        "passed": all(errors[what] <= tolerances[what] for what in pairs),
        "errors": errors,
        "tolerances": tolerances,
    }


def _relative(ours: Tensor, right: Tensor) -> float:
    """Largest difference over the largest number; infinite where one of ours is not finite."""
    if not bool(torch.isfinite(ours).all()):
        return float("inf")
    ours, right = ours.detach().double(), right.detach()
    return float((ours - right).abs().max() / right.abs().max().clamp(min=1e-30))
