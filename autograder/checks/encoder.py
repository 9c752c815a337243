"""How the answers of chapter ``encoder`` are judged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from autograder.answer import Answer
from autograder.checking import (
    Cases,
    Exercise,
    expect,
    expect_close,
    expect_parameters,
    expect_shapes,
    expect_tensor,
)
from autograder.i18n import _
from autograder.memory import remembered
from autograder.trial import verdicts

# float32 against float64: a few hundred roundings of 1.2e-7 in sums of at most a dozen terms.
ROUNDING = 2e-5
# Two layers or more one behind the other, each with products, a softmax and a division.
DEEP = 2e-4
# fp16 keeps 11 bits: the result alone is rounded by 5e-4 of its size, which is below 8.
HALF = 8e-3

# Where each activation is 1.
UNIT = {"relu": 1.0, "gelu": 1.1446, "silu": 1.27846}

LIBRARY_NORMS = (
    "layer_norm",
    "native_layer_norm",
    "rms_norm",
    "group_norm",
    "native_group_norm",
    "batch_norm",
    "instance_norm",
)


# --- the definitions once more, in float64 -------------------------------------------------------


@remembered
def _normal(x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float = 1e-5) -> Tensor:
    x = x.double()
    mean = x.mean(dim=-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
    result = (x - mean) / torch.sqrt(variance + eps)
    if weight is not None:
        result = result * weight.double()
    return result if bias is None else result + bias.double()


@remembered
def _rms(x: Tensor, weight: Tensor, *, eps: float = 1e-6) -> Tensor:
    x = x.double()
    return x / torch.sqrt((x**2).mean(dim=-1, keepdim=True) + eps) * weight.double()


def _gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def _linear(x: Tensor, state: dict[str, Tensor], name: str) -> Tensor:
    result = x.double() @ state[f"{name}.weight"].double().T
    bias = state.get(f"{name}.bias")
    return result if bias is None else result + bias.double()


@remembered
def _feed_forward(x: Tensor, state: dict[str, Tensor], activation: str, at: str = "") -> Tensor:
    up = _linear(x, state, f"{at}up")
    if activation == "relu":
        hidden = up.clamp(min=0)
    elif activation == "gelu":
        hidden = _gelu(up)
    else:
        gate = _linear(x, state, f"{at}gate")
        hidden = gate * torch.sigmoid(gate) * up
    return _linear(hidden, state, f"{at}down")


def _attention(
    x: Tensor,
    state: dict[str, Tensor],
    H: int,
    *,
    mask: Tensor | None,
    bias: Tensor | None,
    at: str,
) -> Tensor:
    B, T, D = x.shape
    q, k, v = (_linear(x, state, f"{at}{name}") for name in ("query", "key", "value"))
    d = D // H
    heads = []
    for h in range(H):  # each head by itself, as the paper writes it
        part = slice(h * d, (h + 1) * d)
        scores = q[..., part] @ k[..., part].transpose(-2, -1) / math.sqrt(d)  # (B, T, T)
        if bias is not None:
            scores = scores + bias.double().expand(H, T, T)[h]
        if mask is not None:
            scores = scores.masked_fill(~mask.expand(B, H, T, T)[:, h], -math.inf)
        heads.append(torch.softmax(scores, dim=-1) @ v[..., part])
    return _linear(torch.cat(heads, dim=-1), state, f"{at}output")


@remembered
def _layer(
    x: Tensor,
    state: dict[str, Tensor],
    H: int,
    *,
    norm_first: bool,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str = "relu",
    at: str = "",
) -> Tensor:
    x = x.double()

    def norm(i: int, y: Tensor) -> Tensor:
        name = f"{at}residuals.{i}.norm"
        return _normal(y, state[f"{name}.weight"], state[f"{name}.bias"])

    def attend(y: Tensor) -> Tensor:
        return _attention(y, state, H, mask=mask, bias=bias, at=f"{at}self_attention.")

    def work(y: Tensor) -> Tensor:
        return _feed_forward(y, state, activation, f"{at}feed_forward.")

    for i, sublayer in enumerate((attend, work)):
        x = x + sublayer(norm(i, x)) if norm_first else norm(i, x + sublayer(x))
    return x


# --- weights by the names that the docstrings give ----------------------------------------------


def _feed_forward_shapes(D: int, F: int, activation: str, at: str = "") -> dict[str, list[int]]:
    if activation == "swiglu":
        return {f"{at}up.weight": [F, D], f"{at}gate.weight": [F, D], f"{at}down.weight": [D, F]}
    return {
        f"{at}up.weight": [F, D],
        f"{at}up.bias": [F],
        f"{at}down.weight": [D, F],
        f"{at}down.bias": [D],
    }


def _layer_shapes(D: int, F: int, activation: str = "relu", at: str = "") -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = {}
    for name in ("query", "key", "value", "output"):
        shapes[f"{at}self_attention.{name}.weight"] = [D, D]
        shapes[f"{at}self_attention.{name}.bias"] = [D]
    shapes |= _feed_forward_shapes(D, F, activation, f"{at}feed_forward.")
    for i in range(2):
        shapes[f"{at}residuals.{i}.norm.weight"] = [D]
        shapes[f"{at}residuals.{i}.norm.bias"] = [D]
    return shapes


def _encoder_shapes(
    D: int, F: int, N: int, *, norm_first: bool = True, activation: str = "relu"
) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = {}
    for i in range(N):
        shapes |= _layer_shapes(D, F, activation, f"layers.{i}.")
    if norm_first:
        shapes |= {"norm.weight": [D], "norm.bias": [D]}
    return shapes


@remembered
def _near_one(x: Tensor) -> Tensor:
    return 1 + x


@remembered
def _silenced(state: dict[str, Tensor], names: str) -> dict[str, Tensor]:
    """The same weights, with 0 for those whose names begin so."""
    return {n: torch.zeros_like(v) if n.startswith(names) else v for n, v in state.items()}


def _load(module: Answer, shapes: dict[str, list[int]], cases: Cases) -> dict[str, Tensor]:
    """Put random weights into a module; return them. Gains lie around 1."""
    expect_shapes(module, shapes)
    state = {}
    for name, shape in shapes.items():
        if "norm." in name and name.endswith("weight"):
            state[name] = _near_one(cases.normal(*shape, scale=0.4))
        else:
            state[name] = cases.normal(*shape, scale=1 / math.sqrt(shape[-1]))
    module.load(state, strict=False)  # buffers of one's own stay as they are
    return state


NORM_CAUSE = _("The mean, the variance, the root or the place of ε is not what the formula says.")
NORM_STEP = _("Take one row of four numbers and go through the formula with a pencil.")

# ---------------------------------------------------------------------------------------------

layer_norm = Exercise(
    "LayerNorm",
    title=_("Layer normalization"),
    difficulty=2,
    minutes=15,
    hints=(
        _("Over which axis is the mean taken, and how many means has a (B, T, D) tensor then?"),
        _(
            "If a comparison with the formula fails by a few per cent, look at the variance: "
            "torch divides by D - 1 unless it is told correction=0."
        ),
        _(
            "mean and biased variance over the last axis with keepdim; subtract, divide by "
            "sqrt(variance + eps); times weight, plus bias; half precision goes to float32 before, "
            "and back after."
        ),
    ),
    forbid=LIBRARY_NORMS,
)


@layer_norm.check(points=0.5)
def keeps_the_shape(answer: Answer, cases: Cases) -> None:
    """Each position is normalized and the shape stays, however many axes the input has."""
    B, T, D = cases.distinct(3, 2, 8)
    layer = answer(D)
    for shape in ((B, T, D), (T, D), (D,), (2, B, T, D)):
        x = cases.normal(*shape)
        expect_close(
            layer(x),
            _normal(x, None, None),
            atol=2e-3,  # as in equals_the_formula
            what=_("the result"),
            cause=NORM_CAUSE,
            next_step=NORM_STEP,
        )


@layer_norm.check(points=1)
def starts_with_gain_one_and_shift_zero(answer: Answer, cases: Cases) -> None:
    """Fresh: weight (D,) is all ones, bias (D,) all zeros; each position has mean 0, variance 1."""
    B, T, D = cases.distinct(3, 3, 9)
    layer = answer(D)
    expect_parameters(layer, {"weight": [D], "bias": [D]})
    found = layer.parameters()
    expect(
        bool((found["weight"] == 1).all()) and bool((found["bias"] == 0).all()),
        seen=_("A fresh layer's weight is not all ones, or its bias not all zeros."),
        cause=_("The parameters were drawn at random or swapped."),
        next_step=_("Use torch.ones(D) for the weight and torch.zeros(D) for the bias."),
    )
    y = expect_tensor(layer(cases.normal(B, T, D, scale=3.0) + 2), (B, T, D), what=_("the result"))
    y = y.double()
    # ε = 1e-5 takes 1e-5 / variance off the variance of 1; random rows have a variance above 0.05
    expect(
        bool((y.mean(dim=-1).abs() < 1e-3).all())
        and bool(((y**2).mean(dim=-1) - 1).abs().max() < 1e-2),
        seen=_("The positions do not have mean 0 and variance 1."),
        cause=_("The statistics were taken over another axis, or one of the two steps is missing."),
        next_step=_("Print y.mean(-1) and y.var(-1, correction=0) for one input."),
    )


@layer_norm.check(points=1)
def equals_the_formula(answer: Answer, cases: Cases) -> None:
    """With any weight and bias, and rows of four numbers, the result is that of the formula."""
    B, T, D = 2, 3, 4
    layer = answer(D)
    state = {"weight": 1 + cases.normal(D, scale=0.5), "bias": cases.normal(D)}
    layer.load(state, strict=False)  # buffers of one's own stay as they are
    kept = _("Something of the first call is kept: each position has its own statistics.")
    for what, cause in (
        (_("the result"), NORM_CAUSE),
        (_("the result of a second call"), kept),
    ):
        x = cases.normal(B, T, D, scale=2.0) + cases.normal(B, T, 1, scale=2.0)
        expect_close(
            layer(x),
            _normal(x, state["weight"], state["bias"]),
            atol=2e-3,  # what ε does to rows of small variance is the next check's matter
            what=what,
            cause=cause,
            next_step=NORM_STEP,
        )


@layer_norm.check(points=1, hidden=True)
def epsilon_is_inside_the_root(answer: Answer, cases: Cases) -> None:
    """ε is the one that was given, 1e-5 by default, and is added to the variance."""
    D = cases.integer(5, 9)
    for kwargs, eps in (({"eps": 0.1}, 0.1), ({}, 1e-5)):
        layer = answer(D, **kwargs)
        # The variance is about ε, below it and above: where ε stands decides the result.
        x = cases.normal(3, D, scale=math.sqrt(eps)) * torch.tensor([[0.4], [1.0], [1.6]])
        expect_close(
            layer(x),
            _normal(x, None, None, eps=eps),
            atol=1e-3,  # x is 1e-3 and is rounded to 1e-10: the quotient is good to 1e-6 and more
            what=_("the result for rows that hardly vary"),
            cause=_("ε stands outside the root, is missing, or is another number than was given."),
            next_step=_("Add self.eps to the variance, then take the root."),
        )


@layer_norm.check(points=1, hidden=True)
def constant_rows_are_finite(answer: Answer, cases: Cases) -> None:
    """A row of equal numbers gives the bias, and its gradient is finite."""
    D = 6
    layer = answer(D)
    state = {"weight": 1 + cases.normal(D, scale=0.5), "bias": cases.normal(D)}
    layer.load(state, strict=False)  # buffers of one's own stay as they are
    x = cases.normal(4, 1).expand(4, D).clone()
    x[3] = 0.0
    run = layer.run((x,), wrt=[0], cotangent=cases.normal(4, D))
    # the mean of six equal float32 numbers may be off by one rounding, which 1/√ε enlarges by 316
    expect_close(
        run.value,
        state["bias"].double().expand(4, D),
        atol=1e-3,
        what=_("the result for constant rows"),
        cause=_("Their variance is 0, and something is divided by its root."),
        next_step=_("Add ε to the variance before the root and the division."),
    )
    gradient = run.grads.get("0")
    expect(
        gradient is not None and bool(gradient.isfinite().all()),
        seen=_("The gradient of a constant row is not finite."),
        cause=_("The root of a variance of 0 has an infinite slope; ε is not under the root."),
        next_step=_("Add ε to the variance, then take the root."),
    )


@remembered
def _gradients(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...], cotangent: Tensor
) -> tuple[Tensor, ...]:
    """The gradients of a formula by all its inputs, in float64."""
    leaves = [item.double().clone().requires_grad_() for item in inputs]
    return torch.autograd.grad(function(*leaves), leaves, cotangent.double())


@layer_norm.check(points=1, hidden=True)
def gradients_go_through_the_statistics(answer: Answer, cases: Cases) -> None:
    """The gradient is that of the formula, mean and variance included."""
    B, T, D = cases.distinct(3, 3, 8)
    layer = answer(D)
    state = {"weight": _near_one(cases.normal(D, scale=0.5)), "bias": cases.normal(D)}
    layer.load(state, strict=False)  # buffers of one's own stay as they are
    x, cotangent = cases.normal(B, T, D), cases.normal(B, T, D)
    run = layer.run((x,), wrt=[0, "parameters"], cotangent=cotangent)
    expected = _gradients(_normal, (x, state["weight"], state["bias"]), cotangent)
    for key, wanted in zip(("0", "weight", "bias"), expected, strict=True):
        found = run.grads.get(key)
        expect_close(
            torch.zeros_like(wanted) if found is None else found,
            wanted,
            atol=1e-4,  # sums of up to 56 products, divided by deviations of 0.3 and more
            rtol=1e-3,
            what=_("the gradient"),
            cause=_("Mean or variance, or a parameter, is cut off from the graph."),
            next_step=_("Leave out detach, .data, .item() and torch.no_grad()."),
        )


@layer_norm.check(points=0.5, hidden=True)
def a_large_mean_does_no_harm(answer: Answer, cases: Cases) -> None:
    """Rows whose mean is far larger than their deviation are normalized as well."""
    D = 8
    x = cases.normal(3, D) + 1000
    # 1000 in float32 is good to 6e-5; the mean adds as much; deviations are 0.4 and more
    expect_close(
        answer(D)(x),
        _normal(x, None, None),
        atol=5e-3,
        what=_("the result for rows with a large mean"),
        cause=_("The mean of squares minus the square of the mean cancels: few digits are left."),
        next_step=_("Subtract the mean first, then take the mean of the squares."),
    )


@layer_norm.check(points=0.5, hidden=True)
def half_precision_is_computed_in_float32(answer: Answer, cases: Cases) -> None:
    """fp16 and bf16 come out as they went in; no overflow, and means that are not rounded."""
    D = 8
    for dtype, tolerance in ((torch.float16, HALF), (torch.bfloat16, 8 * HALF)):
        x = cases.normal(3, D, scale=400.0).to(dtype)
        expect_tensor(answer(D)(x), (3, D), what=_("the result"), dtype=dtype)
        expect_close(
            answer(D)(x),
            _normal(x, None, None),
            atol=tolerance,
            what=_("the result in half precision"),
            cause=_("fp16 ends at 65504: the square of 300 is infinity."),
            next_step=_("Take half-precision input to float32 first, and the result back."),
        )
        # Around 200 the numbers of fp16 lie 1/8 apart, those of bf16 1: a mean that is rounded to
        # one of them is off by up to 1/50 or 1/6 of the deviation, in one of 20 rows at least.
        x = (cases.normal(20, D, scale=3.0) + 200).to(dtype)
        expect_close(
            answer(D)(x),
            _normal(x, None, None),
            atol=tolerance,
            what=_("the result in half precision"),
            cause=_("fp16 ends at 65504: the square of 300 is infinity."),
            next_step=_("Take half-precision input to float32 first, and the result back."),
        )


@layer_norm.check(points=0.5, hidden=True)
def the_input_stays(answer: Answer, cases: Cases) -> None:
    """The input is not overwritten, and the result is right."""
    x = cases.normal(2, 3, 5)
    _expect_normalized(_expect_untouched(answer(5), x), _normal(x, None, None))


def _expect_normalized(found: Any, wanted: Tensor) -> None:
    """What a fresh norm gives beside an input that stays: doing nothing overwrites nothing."""
    expect_close(
        found,
        wanted,
        atol=2e-3,  # what ε does to rows of small variance is another check's matter
        what=_("the result beside an input that stayed as it was"),
        cause=NORM_CAUSE,
        next_step=NORM_STEP,
    )


def _expect_untouched(module: Answer, x: Tensor, *more: object) -> Any:
    """A call leaves x as it was; returns its value."""
    run = module.run((x, *more), echo=True)
    expect(
        torch.equal(run.args[0], x),
        seen=_("The input has other values after the call."),
        cause=_("An operation in place: x += …, x -= …, or a method whose name ends in _."),
        next_step=_("Write x = x + …: that makes a new tensor."),
    )
    return run.value


# ---------------------------------------------------------------------------------------------

rms_norm = Exercise(
    "RMSNorm",
    title=_("RMS normalization"),
    difficulty=1,
    minutes=8,
    hints=(
        _("What is left of layer normalization if nothing is subtracted?"),
        _(
            "If fp16 gives zeros, the mean square has become infinite: square in float32. If ε "
            "seems to do nothing, it stands outside the root."
        ),
        _(
            "x · rsqrt(mean of x² over the last axis + eps) · weight; half precision goes to "
            "float32 before, and back after."
        ),
    ),
    forbid=LIBRARY_NORMS,
)


@rms_norm.check(points=0.5)
def starts_with_gain_one(answer: Answer, cases: Cases) -> None:
    """Fresh: one parameter, weight (D,), all ones; the mean square of each position is 1."""
    B, T, D = cases.distinct(3, 3, 9)
    layer = answer(D)
    expect_parameters(layer, {"weight": [D]})
    expect(
        bool((layer.parameters()["weight"] == 1).all()),
        seen=_("A fresh layer's weight is not all ones."),
        cause=_("The gain was drawn at random or starts at zero."),
        next_step=_("Use torch.ones(D)."),
    )
    y = expect_tensor(layer(cases.normal(B, T, D, scale=3.0) + 2), (B, T, D), what=_("the result"))
    # ε = 1e-6 takes less than 1e-4 off
    expect(
        bool(((y.double() ** 2).mean(dim=-1) - 1).abs().max() < 1e-2),
        seen=_("The mean square of the positions is not 1."),
        cause=_("Another axis, a sum in place of a mean, or a missing root."),
        next_step=_("Print (y**2).mean(-1) for one input."),
    )


@rms_norm.check(points=1)
def equals_its_formula(answer: Answer, cases: Cases) -> None:
    """With any weight, the result is that of the formula; nothing is subtracted."""
    B, T, D = cases.distinct(3, 3, 9)
    layer = answer(D)
    weight = 1 + cases.normal(D, scale=0.5)
    layer.load({"weight": weight}, strict=False)
    for shape in ((B, T, D), (T, D)):
        x = cases.normal(*shape, scale=2.0) + 1
        expect_close(
            layer(x),
            _rms(x, weight),
            atol=ROUNDING,
            what=_("the result"),
            cause=_("A mean is subtracted, the root is missing, or the gain is not applied."),
            next_step=_("For the row 3, 4 the root of the mean square is √12.5: begin there."),
        )


@rms_norm.check(points=0.5, hidden=True)
def epsilon_is_under_the_root(answer: Answer, cases: Cases) -> None:
    """ε is the one that was given, 1e-6 by default, and is added to the mean square."""
    D = cases.integer(5, 9)
    for kwargs, eps in (({"eps": 0.1}, 0.1), ({}, 1e-6)):
        x = cases.normal(4, D, scale=math.sqrt(eps))
        x[3] = 0.0
        run = answer(D, **kwargs).run((x,), wrt=[0])
        expect_close(
            run.value,
            _rms(x, torch.ones(D), eps=eps),
            atol=1e-4,  # the quotient of two float32 numbers, whatever their size
            what=_("the result for rows near zero"),
            cause=_("ε stands outside the root, is missing, or is another number than was given."),
            next_step=_("Add self.eps to the mean square, then take the root."),
        )
        gradient = run.grads.get("0")
        expect(
            gradient is not None and bool(gradient.isfinite().all()),
            seen=_("The gradient of a row of zeros is not finite."),
            cause=_("The root of 0 has an infinite slope; ε is not under the root."),
            next_step=_("Add ε to the mean square, then take the root."),
        )


@rms_norm.check(points=0.5, hidden=True)
def gradients_are_those_of_the_formula(answer: Answer, cases: Cases) -> None:
    """The gradient passes through the root mean square."""
    B, T, D = cases.distinct(3, 3, 8)
    layer = answer(D)
    weight = _near_one(cases.normal(D, scale=0.5))
    layer.load({"weight": weight}, strict=False)
    x, cotangent = cases.normal(B, T, D), cases.normal(B, T, D)
    run = layer.run((x,), wrt=[0, "parameters"], cotangent=cotangent)
    expected = _gradients(_rms, (x, weight), cotangent)
    for key, wanted in zip(("0", "weight"), expected, strict=True):
        found = run.grads.get(key)
        expect_close(
            torch.zeros_like(wanted) if found is None else found,
            wanted,
            atol=1e-4,  # sums of up to 56 products, divided by deviations of 0.3 and more
            rtol=1e-3,
            what=_("the gradient"),
            cause=_("The root mean square, or the weight, is cut off from the graph."),
            next_step=_("Leave out detach, .data, .item() and torch.no_grad()."),
        )


@rms_norm.check(points=0.5, hidden=True)
def squares_do_not_overflow(answer: Answer, cases: Cases) -> None:
    """fp16 and bf16 go in and come out, and numbers of a few hundred do not overflow."""
    D = 8
    for dtype, tolerance in ((torch.float16, HALF), (torch.bfloat16, 8 * HALF)):
        x = cases.normal(3, D, scale=400.0).to(dtype)
        expect_tensor(answer(D)(x), (3, D), what=_("the result"), dtype=dtype)
        expect_close(
            answer(D)(x),
            _rms(x, torch.ones(D)),
            atol=tolerance,
            what=_("the result in half precision"),
            cause=_("fp16 ends at 65504: the square of 300 is infinity."),
            next_step=_("Take half-precision input to float32 first, and the result back."),
        )


@rms_norm.check(points=0.5, hidden=True)
def leaves_its_input_alone(answer: Answer, cases: Cases) -> None:
    """The input is not overwritten, and the result is right."""
    x = cases.normal(2, 3, 5)
    _expect_normalized(_expect_untouched(answer(5), x), _rms(x, torch.ones(5)))


# ---------------------------------------------------------------------------------------------

feed_forward = Exercise(
    "FeedForward",
    title=_("The feed-forward network"),
    difficulty=2,
    minutes=15,
    hints=(
        _("Which of its two or three linear maps makes vectors wider, and which narrower?"),
        _(
            "If swiglu alone is wrong: silu belongs to the gate, the two results are multiplied "
            "entry by entry, and none of its maps has a bias."
        ),
        _(
            "hidden = activation(up(x)), or silu(gate(x)) · up(x); then dropout on hidden (a "
            "module of its own, so that it knows about evaluation); then down."
        ),
    ),
)


def _check_activation(answer: Answer, cases: Cases, activation: str, tolerance: float) -> None:
    B, T, D, F = cases.distinct(4, 2, 12)
    layer = answer(D, F, activation)
    state = _load(layer, _feed_forward_shapes(D, F, activation), cases)
    x = cases.normal(B, T, D, scale=1.5)
    expect_close(
        layer(x),
        _feed_forward(x, state, activation),
        atol=tolerance,
        what=_("the result with {activation}").format(activation=activation),
        cause=_("The activation is another one, or stands in another place."),
        next_step=_("Write down the two or three steps of the docstring, one line each."),
    )


@feed_forward.check(points=0.5)
def has_the_maps_of_the_docstring(answer: Answer, cases: Cases) -> None:
    """up, gate and down have the shapes and biases of the docstring, for each activation."""
    D, F = cases.distinct(2, 2, 12)
    for activation in ("relu", "gelu", "swiglu"):
        expect_parameters(answer(D, F, activation), _feed_forward_shapes(D, F, activation))


@feed_forward.check(points=1)
def relu_is_right(answer: Answer, cases: Cases) -> None:
    """With "relu": down(max(0, up(x))); and relu is the default."""
    _check_activation(answer, cases, "relu", ROUNDING)
    D, F = cases.distinct(2, 4, 12)
    layer = answer(D, F)
    state = _load(layer, _feed_forward_shapes(D, F, "relu"), cases)
    x = cases.normal(3, D)
    expect_close(
        layer(x),
        _feed_forward(x, state, "relu"),
        atol=ROUNDING,
        what=_("the result without an activation named"),
        cause=_("The default is another activation than relu."),
        next_step=_("Leave the signature as it was handed out."),
    )


@feed_forward.check(points=1)
def gelu_is_right(answer: Answer, cases: Cases) -> None:
    """With "gelu": down(u · Φ(u)) for u = up(x)."""
    # The tanh form of the same paper is off by 5e-4 at most; summed over F of them it is right too.
    _check_activation(answer, cases, "gelu", 2.5e-3)


@feed_forward.check(points=1)
def swiglu_is_right(answer: Answer, cases: Cases) -> None:
    """With "swiglu": down(silu(gate(x)) · up(x))."""
    _check_activation(answer, cases, "swiglu", ROUNDING)


@feed_forward.check(points=0.5, hidden=True)
def every_position_by_itself(answer: Answer, cases: Cases) -> None:
    """A position's result depends on that position alone."""
    T, D, F = cases.distinct(3, 4, 10)
    x = cases.normal(3, T, D)
    changed = x.clone()
    changed[:, 1:] = cases.normal(3, T - 1, D)
    changed[1:] = cases.normal(2, T, D)
    for activation in ("relu", "swiglu"):
        layer = answer(D, F, activation)
        _load(layer, _feed_forward_shapes(D, F, activation), cases)
        expect_close(
            layer(changed)[0, 0],
            layer(x)[0, 0].double(),
            atol=ROUNDING,
            what=_("a position whose neighbours changed"),
            cause=_("Something is computed across positions or across the batch."),
            next_step=_("Every step here works on the last axis alone."),
        )


@feed_forward.check(points=1, hidden=True)
def dropout_is_on_the_hidden_numbers(answer: Answer, cases: Cases) -> None:
    """In training hidden numbers are dropped, the others enlarged; in evaluation none is."""
    D, F, p = 4, 64, 0.4
    for activation in ("relu", "gelu", "swiglu"):
        layer = answer(D, F, activation, p)
        shapes = _feed_forward_shapes(D, F, activation)
        state = _load(layer, shapes, cases)
        x = cases.normal(1, D)
        layer.eval()
        expect_close(
            layer(x),
            _feed_forward(x, state, activation),
            atol=2.5e-3,  # GELU in its tanh form is right too
            what=_("the result in evaluation"),
            cause=_("Dropout is on although the module is in evaluation."),
            next_step=_("Use nn.Dropout as a module, or hand self.training on."),
        )
        layer.train()
        # For the diagnosis alone: what is dropped elsewhere leaves its trace here.
        layer.run((cases.normal(5, D),), seed=cases.seed())
        # Every hidden number is 1, and each output is their mean: outputs are alike, and 1 on
        # average. Were the outputs dropped, they would be 0 or 1/(1-p).
        ones = {name: torch.zeros(shape) for name, shape in shapes.items()}
        ones["down.weight"] += 1 / F
        if activation == "swiglu":
            ones["up.weight"][:, 0], ones["gate.weight"][:, 0] = 1, UNIT["silu"]
        else:
            ones["up.bias"] += UNIT[activation]
        layer.load(ones, strict=False)
        start = torch.zeros(200, D)
        start[:, 0] = 1.0
        y = layer.run((start,), seed=cases.seed()).value
        expect_tensor(y, (200, D), what=_("the result"))
        y = y.double()
        alike = bool((y - y[:, :1]).abs().max() < 1e-4)
        # expected √(p/((1-p)F)) = 0.10, good to 0.01; √(p/(1-p)) = 0.82 if dropped all together
        varies = 0.02 < float(y[:, 0].std()) < 0.3
        # 200 · 64 draws: the mean of 1 is good to 0.0072; five times that is far from 1-p, 1/(1-p),
        # and 1.12, where GELU comes after the dropout
        right_mean = abs(float(y[:, 0].mean()) - 1) < 0.036
        expect(
            alike and varies and right_mean,
            seen=_("In training, what is dropped is not the numbers of width F."),
            cause=_(
                "Dropout is missing, stands behind down, drops whole positions, or does not "
                "enlarge what it keeps."
            ),
            next_step=_("Apply nn.Dropout(dropout) between the activation and down."),
        )


@feed_forward.check(points=0.5, hidden=True)
def hands_on_the_gradient(answer: Answer, cases: Cases) -> None:
    """The gradient reaches the input and every parameter, any number of axes, input untouched."""
    D, F = 5, 7
    for activation in ("gelu", "swiglu"):
        layer = answer(D, F, activation)
        _load(layer, _feed_forward_shapes(D, F, activation), cases)
        x = cases.normal(2, 3, 2, D)
        run = layer.run((x,), wrt=[0, "parameters"], echo=True)
        dead = [n for n, g in run.grads.items() if g is None or not bool((g != 0).any())]
        expect(
            not dead,
            seen=_("No gradient arrives at {names}.").format(names=", ".join(dead)),
            cause=_("A map is built and never used, or the graph is cut."),
            next_step=_("Use every map, and leave out detach and no_grad."),
        )
        expect(
            torch.equal(run.args[0].detach(), x),
            seen=_("The input has other values after the call."),
            cause=_("An operation in place on the input."),
            next_step=_("Make new tensors."),
        )


# ---------------------------------------------------------------------------------------------

equal_width = Exercise(
    "equal_width",
    title=_("Equal parameters"),
    difficulty=1,
    minutes=8,
    hints=(
        _("How many parameters has each network? Count weights and biases."),
        _("If you are off by one, the biases are not counted, or the quotient is rounded up."),
        _("(2·D·F + F + D) // (3·D)"),
    ),
)


def _check_widths(answer: Answer, pairs: list[tuple[int, int]]) -> None:
    widths = [answer(D, F) for D, F in pairs]
    for (D, F), found in zip(pairs, widths, strict=True):
        expect(
            type(found) is int,
            seen=_("The result is of type {kind}, not int.").format(kind=type(found).__name__),
            cause=_("A plain division gives a float, even where the result is whole."),
            next_step=_("Divide with //."),
        )
        budget = 2 * D * F + F + D
        expect(
            3 * D * found <= budget,
            seen=_("At the width returned, SwiGLU has more parameters than the other network."),
            cause=_("It has three maps and not two, or the width was rounded up."),
            next_step=_("Count the parameters of both for D = 2, F = 3 by hand."),
        )
        expect(
            3 * D * (found + 1) > budget,
            seen=_("One more would still fit."),
            cause=_("The biases of the two-map network count too: F + D parameters."),
            next_step=_("Count the parameters of both for D = 2, F = 3 by hand."),
        )


@equal_width.check(points=0.5)
def fits_the_paper_sizes(answer: Answer, cases: Cases) -> None:
    """For (D, F) = (512, 2048), (4, 10), (3, 7) and (8, 24) it is the largest width that fits."""
    _check_widths(answer, [(512, 2048), (4, 10), (3, 7), (8, 24)])


@equal_width.check(points=1, hidden=True)
def fits_any_size(answer: Answer, cases: Cases) -> None:
    """It is the largest width that fits, for any D and F."""
    pairs = [(cases.integer(1, 40), cases.integer(1, 200)) for _i in range(30)]
    # at these SwiGLU can cost exactly as much, and floating point may make a little less of it
    exact = [(2, 2), (5, 5), (2, 14), (2, 50), (11, 176)]
    _check_widths(answer, [*pairs, (1, 1), (2, 3), (3, 2), (64, 1), *exact])


# ---------------------------------------------------------------------------------------------

residual = Exercise(
    "Residual",
    title=_("Residual connection, either norm placement"),
    difficulty=2,
    minutes=12,
    hints=(
        _("In which of the two placements does x reach the output without passing a norm?"),
        _(
            "If dropout is what fails: it belongs to what the sub-layer gave. x itself must never "
            "be dropped, or the road around the sub-layer is broken."
        ),
        _("pre-norm: x + drop(sublayer(norm(x))); post-norm: norm(x + drop(sublayer(x)))."),
    ),
)


def _residual_case(
    answer: Answer, cases: Cases, *, norm_first: bool
) -> tuple[Answer, dict[str, Tensor], Tensor, Callable[[Tensor], Tensor]]:
    B, T, D = cases.distinct(3, 3, 8)
    module = answer(D, 0.0, norm_first)
    state = _load(module, {"norm.weight": [D], "norm.bias": [D]}, cases)
    weight = cases.normal(D, D, scale=0.7)

    def sublayer(h: Tensor) -> Tensor:
        return torch.tanh(h @ weight.to(h.dtype))

    return module, state, cases.normal(B, T, D, scale=1.5) + 0.5, sublayer


def _check_residual(answer: Answer, cases: Cases, *, norm_first: bool) -> None:
    module, state, x, sublayer = _residual_case(answer, cases, norm_first=norm_first)

    def norm(y: Tensor) -> Tensor:
        return _normal(y, state["norm.weight"], state["norm.bias"])

    x64 = x.double()
    expected = x64 + sublayer(norm(x64)) if norm_first else norm(x64 + sublayer(x64))
    expect_close(
        module(x, sublayer),
        expected,
        atol=1e-4,  # a norm, whose small deviations enlarge the rounding, then a product of D terms
        what=_("the pre-norm result") if norm_first else _("the post-norm result"),
        cause=_("The norm stands in another place, or x is not added, or not as it came in."),
        next_step=_("Read the docstring's formula from the inside out, and write it that way."),
    )


@residual.check(points=1)
def pre_norm_is_right(answer: Answer, cases: Cases) -> None:
    """With norm_first=True, the default: x + sublayer(norm(x))."""
    _check_residual(answer, cases, norm_first=True)
    x = cases.normal(2, 3, 4)
    expect_close(
        answer(4)(x, torch.zeros_like),
        x.double(),
        atol=0.0,  # x + 0 is x to the last bit
        what=_("the default, around a sub-layer that gives zeros"),
        cause=_("By default x must reach the output untouched: pre-norm."),
        next_step=_("Leave the signature as it was handed out; look at where the norm stands."),
    )


@residual.check(points=1)
def post_norm_is_right(answer: Answer, cases: Cases) -> None:
    """With norm_first=False: norm(x + sublayer(x))."""
    _check_residual(answer, cases, norm_first=False)


@residual.check(points=0.5, hidden=True)
def the_sublayer_is_called_once(answer: Answer, cases: Cases) -> None:
    """The sub-layer is called once, with norm(x) or with x."""
    for norm_first in (True, False):
        module, state, x, _sublayer = _residual_case(answer, cases, norm_first=norm_first)
        seen: list[Tensor] = []

        def remember(h: Tensor, seen: list[Tensor] = seen) -> Tensor:
            seen.append(h.detach().clone())
            return torch.zeros_like(h)

        module(x, remember)
        expect(
            len(seen) == 1,
            seen=_("The sub-layer was called {n} times.").format(n=len(seen)),
            cause=_("Each call costs what a whole attention costs."),
            next_step=_("Keep its result in a variable."),
        )
        wanted = _normal(x, state["norm.weight"], state["norm.bias"]) if norm_first else x.double()
        expect_close(
            seen[0],
            wanted,
            atol=1e-4,  # one norm in float32
            what=_("what the sub-layer is given"),
            cause=_("Pre-norm hands norm(x) to the sub-layer, post-norm hands x."),
            next_step=_("Read the docstring's formula from the inside out."),
        )


@residual.check(points=1, hidden=True)
def only_the_sublayer_is_dropped(answer: Answer, cases: Cases) -> None:
    """In training, dropout falls on what the sub-layer gives, and x itself stays whole."""
    D, p = 6, 0.4
    x = cases.normal(20, 10, D)
    seen: list[Tensor] = []

    def give_ones(h: Tensor) -> Tensor:
        seen.append(h.detach().clone())
        return torch.ones_like(h)

    module = answer(D, p, True)
    module.train()
    # For the diagnosis alone: around ones, what is dropped before the sub-layer leaves no trace;
    # and where one placement is wrong already, the other has not been seen.
    module.run((x, torch.clone), seed=cases.seed())
    other = answer(D, p, False)
    other.train()
    other.run((x, torch.ones_like), seed=cases.seed())
    y = module.run((x, give_ones), seed=cases.seed()).value
    added = expect_tensor(y, x.shape, what=_("the result")).double() - x.double()
    zero, kept = added.abs() < 1e-5, (added - 1 / (1 - p)).abs() < 1e-5
    share = float(zero.double().mean())
    # 1200 draws: the share of 0.4 is good to 0.014; five times that
    expect(
        bool((zero | kept).all()) and abs(share - p) < 0.075,
        seen=_("What is added to x is not 0 or 1/(1 - p), with p of them 0."),
        cause=_("Dropout is missing, or falls on x, on the sum or on what the sub-layer is given."),
        next_step=_("Apply nn.Dropout(dropout) to what the sub-layer returns, then add x."),
    )
    # Of 200 rows of six draws each, five in a hundred are all alike.
    alike = (zero == zero[..., :1]).all(dim=-1)
    expect(
        float(alike.double().mean()) < 0.5,
        seen=_("Whole vectors are dropped, or kept whole."),
        cause=_("One draw is made for a position or a sequence: each number is drawn by itself."),
        next_step=_("Apply nn.Dropout(dropout) to the tensor that the sub-layer returns."),
    )
    expect_close(
        seen[0],
        _normal(x, None, None),
        atol=1e-3,  # one norm in float32; a dropped number would be off by its whole size
        what=_("what the sub-layer is given in training"),
        cause=_("Dropout falls on the input of the sub-layer."),
        next_step=_("Drop what the sub-layer returns, not what it is given."),
    )
    module = answer(D, p, False)
    module.train()
    y = module.run((x, give_ones), seed=cases.seed()).value
    y = expect_tensor(y, x.shape, what=_("the result")).double()
    expect(
        bool((y.mean(dim=-1).abs() < 1e-3).all()),
        seen=_("In training, the post-norm result has not mean 0 at each position."),
        cause=_("Something comes after the norm."),
        next_step=_("Post-norm ends with the norm: dropout is inside."),
    )
    expect(
        not torch.allclose(y, _normal(x, None, None), atol=1e-2),
        seen=_("In training, post-norm drops nothing."),
        cause=_("Dropout is used in one of the two placements only."),
        next_step=_("Apply it to what the sub-layer returns in both."),
    )
    # Around zeros there is nothing to drop but x.
    y = module.run((x, torch.zeros_like), seed=cases.seed()).value
    expect_close(
        y,
        _normal(x, None, None),
        atol=1e-3,  # one norm in float32; a dropped number would be off by its whole size
        what=_("post-norm around a sub-layer that gives zeros, in training"),
        cause=_("Dropout falls on x, or on the sum."),
        next_step=_("Drop what the sub-layer returns, and nothing else."),
    )


@residual.check(points=0.5, hidden=True)
def nothing_is_dropped_in_evaluation(answer: Answer, cases: Cases) -> None:
    """In evaluation there is no dropout."""
    D = 6
    x = cases.normal(2, 3, D)
    for norm_first in (True, False):
        module = answer(D, 0.5, norm_first)
        module.eval()
        expected = x.double() + 1 if norm_first else _normal(x + 1, None, None)
        expect_close(
            module(x, torch.ones_like),
            expected,
            atol=1e-3,  # one norm in float32; a dropped number would be off by about 1
            what=_("the result in evaluation"),
            cause=_("Dropout is on although the module is in evaluation."),
            next_step=_("Use nn.Dropout as a module, or hand self.training on."),
        )


@residual.check(points=0.5, hidden=True)
def the_road_around_is_open(answer: Answer, cases: Cases) -> None:
    """Pre-norm: where the sub-layer's gradient is zero, x still gets the whole gradient."""
    module, _state, x, _sublayer = _residual_case(answer, cases, norm_first=True)
    cotangent = cases.normal(*x.shape)
    run = module.run((x, lambda h: 0.0 * h), wrt=[0], cotangent=cotangent)
    gradient = run.grads.get("0")
    expect_close(
        torch.zeros_like(x) if gradient is None else gradient,
        cotangent.double(),
        atol=1e-6,  # a sum with zeros
        what=_("the gradient of x"),
        cause=_("x passes something else on its way to the sum, or is cut off from the graph."),
        next_step=_("Add x itself: no norm, no dropout, no detach."),
    )


@residual.check(points=0.5, hidden=True)
def the_gradient_takes_both_roads(answer: Answer, cases: Cases) -> None:
    """The gradient is that of the formula: past the sub-layer, and through it and the norm."""
    for norm_first in (True, False):
        module, state, x, sublayer = _residual_case(answer, cases, norm_first=norm_first)
        cotangent = cases.normal(*x.shape)
        run = module.run((x, sublayer), wrt=[0, "parameters"], cotangent=cotangent)
        leaves = [item.double().requires_grad_() for item in (x, *state.values())]
        inner, weight, bias = leaves
        if norm_first:
            y = inner + sublayer(_normal(inner, weight, bias))
        else:
            y = _normal(inner + sublayer(inner), weight, bias)
        expected = torch.autograd.grad(y, leaves, cotangent.double())
        for key, wanted in zip(("0", *state), expected, strict=True):
            found = run.grads.get(key)
            expect_close(
                torch.zeros_like(wanted) if found is None else found,
                wanted,
                atol=1e-3,  # small deviations enlarge the rounding of float32
                rtol=1e-3,
                what=_("the gradient"),
                cause=_("The sub-layer, the norm or x is cut off from the graph."),
                next_step=_("Leave out detach, .data and torch.no_grad()."),
            )


@residual.check(points=0.5, hidden=True)
def does_not_overwrite_x(answer: Answer, cases: Cases) -> None:
    """The input is not overwritten."""
    for norm_first in (True, False):
        module, _state, x, sublayer = _residual_case(answer, cases, norm_first=norm_first)
        _expect_untouched(module, x, sublayer)


# ---------------------------------------------------------------------------------------------

post_norm_block = Exercise(
    "post_norm_block",
    title=_("Three faults in a post-norm layer"),
    difficulty=3,
    minutes=15,
    hints=(
        _("What mean and what variance must the output have with gain 1 and shift 0?"),
        _(
            "Make the sub-layers give zeros: then the output of post-norm is norm(x), and that "
            "of pre-norm is x. Then take rows of four numbers that hardly vary."
        ),
        _("y = x + sublayer(x); (y - mean) / sqrt(biased variance + eps); for each sub-layer."),
    ),
    forbid=LIBRARY_NORMS,
    given="three_faults",
)


def _block_case(
    cases: Cases, D: int, scale: float = 1.0
) -> tuple[Tensor, list[Callable[[Tensor], Tensor]], Tensor, Tensor]:
    first, second = (cases.normal(D, D, scale=0.6) for _i in range(2))
    sublayers = [
        lambda h: scale * torch.tanh(h.roll(1, dims=-2) @ first.to(h.dtype)),
        lambda h: scale * torch.tanh(h @ second.to(h.dtype)),
    ]
    gain, shift = 1 + cases.normal(2, D, scale=0.4), cases.normal(2, D)
    return scale * cases.normal(2, 3, D), sublayers, gain, shift


def _block(
    x: Tensor, sublayers: list[Callable[[Tensor], Tensor]], gain: Tensor, shift: Tensor, eps: float
) -> Tensor:
    y = x.double()
    for i, sublayer in enumerate(sublayers):
        y = _normal(y + sublayer(y), gain[i], shift[i], eps=eps)
    return y


@post_norm_block.check(points=0)
def runs_and_keeps_the_shape(answer: Answer, cases: Cases) -> None:
    """It still runs, and the result has the shape of x."""
    x, sublayers, gain, shift = _block_case(cases, 5)
    expect_tensor(answer(x, *sublayers, gain, shift), x.shape, what=_("the result"))


@post_norm_block.check(points=0)
def both_sublayers_are_used(answer: Answer, cases: Cases) -> None:
    """Both sub-layers are still called, once each, attention first."""
    x, sublayers, gain, shift = _block_case(cases, 5)
    calls: list[int] = []

    def remembering(i: int) -> Callable[[Tensor], Tensor]:
        def sublayer(h: Tensor) -> Tensor:
            calls.append(i)
            return sublayers[i](h)

        return sublayer

    answer(x, remembering(0), remembering(1), gain, shift)
    expect(
        calls == [0, 1],
        seen=_("The sub-layers are not called once each, attention first."),
        cause=_("More was changed than was wrong."),
        next_step=_("Keep the order of the given code."),
    )


@post_norm_block.check(points=1)
def zeros_give_the_norm(answer: Answer, cases: Cases) -> None:
    """Where the sub-layers give zeros, the output is norm(norm(x)): mean 0, not x itself."""
    D = 64  # so many features that the form of the variance hardly matters
    x = cases.normal(2, 3, D, scale=3.0) + 2
    gain, shift = torch.ones(2, D), torch.zeros(2, D)
    y = expect_tensor(
        answer(x, torch.zeros_like, torch.zeros_like, gain, shift), x.shape, what=_("the result")
    )
    expect_close(
        y,
        _normal(_normal(x, None, None), None, None),
        atol=0.1,  # an unbiased deviation is 0.8 % larger twice; x itself is off by 2 and more
        what=_("the result around sub-layers that give zeros"),
        cause=_("x reaches the output without passing a norm: that is pre-norm."),
        next_step=_("Post-norm adds first and normalizes the sum."),
    )


@post_norm_block.check(points=1)
def narrow_rows_are_right(answer: Answer, cases: Cases) -> None:
    """Rows of three and four numbers: the result is that of the formula."""
    for D in (3, 4):
        x, sublayers, gain, shift = _block_case(cases, D)
        expect_close(
            answer(x, *sublayers, gain, shift),
            _block(x, sublayers, gain, shift, 1e-5),
            atol=1e-3,  # narrow rows may have deviations of 0.05, which enlarge rounding
            rtol=1e-3,
            what=_("the result for narrow rows"),
            cause=_("The variance is divided by D - 1, or the norm stands in another place."),
            next_step=_("torch.std and torch.var divide by D - 1 unless told correction=0."),
        )


@post_norm_block.check(points=1, hidden=True)
def epsilon_belongs_under_the_root(answer: Answer, cases: Cases) -> None:
    """ε is added to the variance, in both norms."""
    D = 5
    x, sublayers, gain, shift = _block_case(cases, D, scale=0.3)
    expect_close(
        answer(x, *sublayers, gain, shift, eps=0.1),
        _block(x, sublayers, gain, shift, 0.1),
        atol=1e-4,  # with ε = 0.1 nothing is divided by less than 0.3
        what=_("the result for rows that hardly vary"),
        cause=_("ε is added to the deviation and not to the variance, or is not the one given."),
        next_step=_("sqrt(variance + eps)."),
    )


@post_norm_block.check(points=1, hidden=True)
def each_norm_has_its_own_gain(answer: Answer, cases: Cases) -> None:
    """Row 0 of gain and shift belongs to the first norm, row 1 to the second; inputs stay."""
    D = 16
    x, sublayers, gain, shift = _block_case(cases, D)
    run = answer.run((x, *sublayers, gain, shift), echo=True)
    expect_close(
        run.value,
        _block(x, sublayers, gain, shift, 1e-5),
        atol=1e-4,  # two norms and two products of 16 terms in float32
        what=_("the result"),
        cause=_("A gain or a shift is missing, or belongs to the other norm."),
        next_step=_("Use gain[0], shift[0] in the first norm and gain[1], shift[1] in the second."),
    )
    expect(
        torch.equal(run.args[0], x),
        seen=_("The input has other values after the call."),
        cause=_("An operation in place, such as x += …."),
        next_step=_("Write x = x + …."),
    )


# ---------------------------------------------------------------------------------------------

pre_norm_test = Exercise(
    "pre_norm_test",
    title=_("Write the test: sold as pre-norm"),
    difficulty=3,
    minutes=20,
    hints=(
        _("With which weight does pre-norm give back x itself, and what does post-norm give then?"),
        _(
            "If a wrong one is let through: rows of 512 numbers hide the unbiased variance, and "
            "rows that vary much hide where ε stands. If a right one is turned away: compare with "
            "a tolerance that float32 can meet."
        ),
        _(
            "For x with D = 4, once varying by 1 and once by 0.003: compute x + norm(x) @ weight "
            "by the formula and assert allclose."
        ),
    ),
)


def _plain_norm(x: Tensor) -> Tensor:
    mean = x.mean(dim=-1, keepdim=True)
    return (x - mean) / torch.sqrt(((x - mean) ** 2).mean(dim=-1, keepdim=True) + 1e-5)


Implementation = tuple[Callable[[Tensor, Tensor], Tensor], str]


def _takes_x_and_weight(x: Tensor, weight: Tensor) -> None:
    if not (x.is_floating_point() and weight.is_floating_point()):
        raise TypeError


def _expect_verdicts(
    answer: Answer, cases: Cases, implementations: list[Implementation], *, right: bool
) -> None:
    # All are asked before the first verdict: which of them pass tells one mistake from another.
    # A right one is among them always, and a wrong one: to turn everything away finds nothing, and
    # neither does letting everything through.
    plain: Implementation = (lambda x, w: x + _plain_norm(x) @ w, _("the formula as it is written"))
    zeros: Implementation = (lambda x, w: torch.zeros_like(x), _("one that returns zeros"))
    good, bad = (implementations, [zeros]) if right else ([plain], implementations)
    accepted, refused = verdicts(
        answer,
        cases,
        right=[residual for residual, _what in good],
        wrong=[residual for residual, _what in bad],
        takes=_takes_x_and_weight,
    )
    for (_residual, what), found in zip(good, accepted, strict=True):
        expect(
            found,
            seen=_("The test turns away {what}, which is right.").format(what=what),
            cause=_("It compares too strictly, or with something else than the promise."),
            next_step=_("Compare with torch.allclose and atol=1e-4, against the formula."),
        )
    for (_residual, what), found in zip(bad, refused, strict=True):
        expect(
            found,
            seen=_("The test lets {what} through.").format(what=what),
            cause=_("No assertion depends on the property that is broken."),
            next_step=_("Find an input for which it and the promise differ by more than rounding."),
        )


@pre_norm_test.check(points=1)
def lets_right_ones_through(answer: Answer, cases: Cases) -> None:
    """The test lets right implementations through, however they are written; zeros do not pass."""

    def in_torch(x: Tensor, weight: Tensor) -> Tensor:
        return x + nn.functional.layer_norm(x, x.shape[-1:]) @ weight

    def in_double(x: Tensor, weight: Tensor) -> Tensor:
        return (x.double() + _plain_norm(x.double()) @ weight.double()).to(x.dtype)

    right_ones: list[Implementation] = [
        (in_torch, _("torch's own layer norm")),
        (in_double, _("one that computes in float64")),
        (lambda x, weight: _plain_norm(x) @ weight + x, _("one that adds x last")),
    ]
    _expect_verdicts(answer, cases, right_ones, right=True)


@pre_norm_test.check(points=1)
def exposes_post_norm(answer: Answer, cases: Cases) -> None:
    """The test exposes post-norm: norm(x + x @ weight)."""
    post_norm: Implementation = (lambda x, w: _plain_norm(x + x @ w), _("post-norm"))
    _expect_verdicts(answer, cases, [post_norm], right=False)


@pre_norm_test.check(points=1)
def exposes_a_broken_residual(answer: Answer, cases: Cases) -> None:
    """The test exposes one without x, one that adds norm(x) for x, and one without a norm."""
    wrong_ones: list[Implementation] = [
        (lambda x, w: _plain_norm(x) @ w, _("one that does not add x")),
        (lambda x, w: _plain_norm(x) + _plain_norm(x) @ w, _("one that adds norm(x) for x")),
        (lambda x, w: x + x @ w, _("one without a norm")),
    ]
    _expect_verdicts(answer, cases, wrong_ones, right=False)


@pre_norm_test.check(points=0.5, hidden=True)
def exposes_a_second_norm(answer: Answer, cases: Cases) -> None:
    """The test exposes a norm of what the sub-layer gives, or of the sum; and weight turned."""
    wrong_ones: list[Implementation] = [
        (lambda x, w: x + _plain_norm(x) @ w.mT, _("one that takes the transpose of weight")),
        (lambda x, w: x + _plain_norm(x @ w), _("one that normalizes the sub-layer's output")),
        (lambda x, w: _plain_norm(x + _plain_norm(x) @ w), _("one that normalizes the sum too")),
    ]
    _expect_verdicts(answer, cases, wrong_ones, right=False)


@pre_norm_test.check(points=0.5, hidden=True)
def exposes_an_unbiased_variance(answer: Answer, cases: Cases) -> None:
    """The test exposes a variance divided by D - 1."""

    def unbiased(x: Tensor, weight: Tensor) -> Tensor:
        mean, variance = x.mean(dim=-1, keepdim=True), x.var(dim=-1, keepdim=True)
        return x + (x - mean) / torch.sqrt(variance + 1e-5) @ weight

    _expect_verdicts(answer, cases, [(unbiased, _("an unbiased variance"))], right=False)


@pre_norm_test.check(points=0.5, hidden=True)
def exposes_epsilon_outside_the_root(answer: Answer, cases: Cases) -> None:
    """The test exposes an ε that is added to the deviation."""

    def outside(x: Tensor, weight: Tensor) -> Tensor:
        mean = x.mean(dim=-1, keepdim=True)
        deviation = x.std(dim=-1, correction=0, keepdim=True)
        return x + (x - mean) / (deviation + 1e-5) @ weight

    _expect_verdicts(answer, cases, [(outside, _("an ε outside the root"))], right=False)


@pre_norm_test.check(points=0.5, hidden=True)
def exposes_another_axis(answer: Answer, cases: Cases) -> None:
    """The test exposes statistics over another axis than the last, or over several."""

    def over(dims: int | tuple[int, ...]) -> Callable[[Tensor, Tensor], Tensor]:
        def implementation(x: Tensor, weight: Tensor) -> Tensor:
            mean = x.mean(dim=dims, keepdim=True)
            variance = x.var(dim=dims, correction=0, keepdim=True)
            return x + (x - mean) / torch.sqrt(variance + 1e-5) @ weight

        return implementation

    wrong_ones = [
        (over(dims), _("statistics over another axis")) for dims in (0, 1, (1, 2), (0, 1, 2))
    ]
    _expect_verdicts(answer, cases, wrong_ones, right=False)


@pre_norm_test.check(points=0.5, hidden=True)
def exposes_a_missing_mean(answer: Answer, cases: Cases) -> None:
    """The test exposes an RMS norm, which subtracts no mean."""

    def rms(x: Tensor, weight: Tensor) -> Tensor:
        return x + x * torch.rsqrt((x**2).mean(dim=-1, keepdim=True) + 1e-5) @ weight

    _expect_verdicts(answer, cases, [(rms, _("a norm that subtracts no mean"))], right=False)


@pre_norm_test.check(points=0.5, hidden=True)
def exposes_what_is_wrong_in_one_place(answer: Answer, cases: Cases) -> None:
    """The test exposes a last row that is not normalized, and numbers that change places."""

    def last_row(x: Tensor, weight: Tensor) -> Tensor:
        y = _plain_norm(x)
        last = torch.zeros(y.shape[:-1], dtype=torch.bool)
        last[-1, -1] = True
        return x + torch.where(last.unsqueeze(-1), x, y) @ weight

    def by_the_first(x: Tensor, weight: Tensor) -> Tensor:
        mean, variance = x.mean(-1, keepdim=True)[:1], x.var(-1, correction=0, keepdim=True)[:1]
        return x + (x - mean) / torch.sqrt(variance + 1e-5) @ weight

    wrong_ones: list[Implementation] = [
        (last_row, _("one that does not normalize the last row")),
        (by_the_first, _("one that takes the first sentence's statistics for all")),
        (lambda x, w: x + (_plain_norm(x) @ w).roll(1, -1), _("one that shifts the features")),
    ]
    _expect_verdicts(answer, cases, wrong_ones, right=False)


# ---------------------------------------------------------------------------------------------

encoder_layer = Exercise(
    "EncoderLayer",
    title=_("One layer of the encoder"),
    difficulty=3,
    minutes=20,
    hints=(
        _("The attention returns two things, and a residual wants one. Which one?"),
        _(
            "If only the case with a mask fails, follow the mask by name from forward to the "
            "attention: its second and third arguments are keys and values."
        ),
        _(
            "x = first residual around a small function that calls the attention with mask and "
            "**attention and returns item 0; then the second residual around feed_forward."
        ),
    ),
)


def _built_layer(
    answer: Answer, cases: Cases, **kwargs: object
) -> tuple[Answer, dict[str, Tensor], Tensor, int]:
    H, d = cases.distinct(2, 2, 4)
    B, T = 3, cases.integer(4, 7)
    D, F = H * d, H * d + 3
    layer = answer(D, H, F, **({"dropout": 0.0} | kwargs))
    state = _load(layer, _layer_shapes(D, F, str(kwargs.get("activation", "relu"))), cases)
    return layer, state, cases.normal(B, T, D, scale=1.5), H


LAYER_STEP = _("Load zeros into one sub-layer after the other and see which one does not vanish.")


@encoder_layer.check(points=0.5)
def layer_keeps_the_shape(answer: Answer, cases: Cases) -> None:
    """The result is one tensor of shape (B, T, D), and the parameters have the given names."""
    layer, _state, x, _H = _built_layer(answer, cases)
    expect_tensor(layer(x), x.shape, what=_("the result"))


@encoder_layer.check(points=1)
def pre_norm_layer_is_right(answer: Answer, cases: Cases) -> None:
    """Pre-norm, the default, without a mask: attention, then feed-forward, each in its residual."""
    layer, state, x, H = _built_layer(answer, cases)
    expect_close(
        layer(x),
        _layer(x, state, H, norm_first=True),
        atol=DEEP,
        what=_("the pre-norm layer"),
        cause=_("A sub-layer, a norm or a residual is missing, or stands in another place."),
        next_step=LAYER_STEP,
    )


@encoder_layer.check(points=1)
def post_norm_layer_is_right(answer: Answer, cases: Cases) -> None:
    """With norm_first=False both residuals are post-norm."""
    layer, state, x, H = _built_layer(answer, cases, norm_first=False)
    expect_close(
        layer(x),
        _layer(x, state, H, norm_first=False),
        atol=DEEP,
        what=_("the post-norm layer"),
        cause=_("norm_first does not reach both residuals."),
        next_step=LAYER_STEP,
    )


def _padding(cases: Cases, B: int, T: int) -> Tensor:
    """Which tokens are real, shape (B, T): different lengths, at least one, one sequence whole."""
    lengths = [1 + (i + cases.integer(0, T)) % T for i in range(B)]
    return _begun([T, *lengths[1:-1], max(1, T // 2)], T)


@remembered
def _begun(lengths: list[int], T: int) -> Tensor:
    return torch.arange(T) < torch.tensor(lengths)[:, None]


@encoder_layer.check(points=1)
def padding_does_not_matter(answer: Answer, cases: Cases) -> None:
    """With a padding mask (B, 1, 1, T), what stands at padding does not change the real tokens."""
    layer, state, x, H = _built_layer(answer, cases)
    B, T, _D = x.shape
    real = _padding(cases, B, T)
    mask = real[:, None, None, :]
    changed = torch.where(real[..., None], x, cases.normal(*x.shape, scale=3.0))
    one = expect_tensor(layer(x, mask), x.shape, what=_("the result"))
    expect_close(
        layer(changed, mask)[real],
        one[real].double(),
        atol=ROUNDING,
        what=_("the real tokens after the padding changed"),
        cause=_("The mask does not reach the attention, or is taken the other way round."),
        next_step=_("Hand it on by name: mask=mask. It is True where attention is allowed."),
    )
    expect_close(
        one[real],
        _layer(x, state, H, norm_first=True, mask=mask)[real],
        atol=DEEP,
        what=_("the layer with a padding mask"),
        cause=_("The mask is taken another way than the attention takes it."),
        next_step=_("Hand it on as it is."),
    )


@encoder_layer.check(points=0.5, hidden=True)
def any_mask_is_handed_on(answer: Answer, cases: Cases) -> None:
    """Masks of shape (T, T) and (B, 1, T, T) work, with either norm placement."""
    for norm_first in (True, False):
        layer, state, x, H = _built_layer(answer, cases, norm_first=norm_first)
        B, T, _D = x.shape
        mask = cases.mask(*((T, T) if norm_first else (B, 1, T, T)))
        expect_close(
            layer(x, mask),
            _layer(x, state, H, norm_first=norm_first, mask=mask),
            atol=DEEP,
            what=_("the layer with a mask"),
            cause=_("The mask is changed on its way, or one shape of it is assumed."),
            next_step=_("Hand it on as it is: the attention broadcasts it."),
        )
        expect_close(
            layer(x),
            _layer(x, state, H, norm_first=norm_first),
            atol=DEEP,
            what=_("the layer without a mask, after a call with one"),
            cause=_("A mask is kept from an earlier call, or one is made where none is given."),
            next_step=_("Use the mask of this call, and none where it is None."),
        )


@remembered
def _enlarged(state: dict[str, Tensor], names: tuple[str, ...]) -> dict[str, Tensor]:
    return {n: 1.5 * v if n.startswith(names) else v for n, v in state.items()}


@encoder_layer.check(points=0.5, hidden=True)
def more_arguments_reach_the_attention(answer: Answer, cases: Cases) -> None:
    """What forward does not know, bias, rotary and cache, is handed on to the attention."""
    layer, state, x, H = _built_layer(answer, cases)
    T = x.size(1)
    bias = cases.normal(1, T, T)
    mask = cases.mask(T, T)
    expect_close(
        layer.run((x, mask), {"bias": bias}).value,
        _layer(x, state, H, norm_first=True, mask=mask, bias=bias),
        atol=DEEP,
        what=_("the layer with a bias on its scores"),
        cause=_("The further named arguments are not handed on."),
        next_step=_("Write **attention in the call of self_attention too."),
    )

    def enlarge(h: Tensor, offset: int = 0) -> Tensor:
        return 1.5 * h

    cache = answer.fixture("enlarging_cache", 1.5)
    # What is done to queries, keys or values might as well be done to the maps that make them.
    for given, maps in (
        ({"rotary": enlarge}, ("self_attention.query", "self_attention.key")),
        ({"cache": cache}, ("self_attention.value",)),
    ):
        expect_close(
            layer.run((x, mask), given).value,
            _layer(x, _enlarged(state, maps), H, norm_first=True, mask=mask),
            atol=DEEP,
            what=_("the layer with {argument}").format(argument=next(iter(given))),
            cause=_("Some of the further named arguments are not handed on."),
            next_step=_("Write **attention in the call of self_attention, and not their names."),
        )


@encoder_layer.check(points=0.5, hidden=True)
def the_activation_is_handed_on(answer: Answer, cases: Cases) -> None:
    """The activation is that of the argument."""
    for activation in ("gelu", "swiglu"):
        layer, state, x, H = _built_layer(answer, cases, activation=activation)
        expect_close(
            layer(x),
            _layer(x, state, H, norm_first=True, activation=activation),
            atol=2.5e-3,  # GELU in its tanh form is right too
            what=_("the layer with {activation}").format(activation=activation),
            cause=_("The activation does not reach the feed-forward network."),
            next_step=_("Hand it on as the third argument."),
        )


@encoder_layer.check(points=0.5, hidden=True)
def the_dropout_is_handed_on(answer: Answer, cases: Cases) -> None:
    """Around each sub-layer there is the dropout that was given: 0.1 by default, 0 if asked."""
    D, H, F = 8, 2, 12
    x = cases.normal(40, 10, D)
    one, other = "self_attention.output.bias", "feed_forward.down.bias"
    given = {"dropout": 0.3}
    shapes = _layer_shapes(D, F)
    for kwargs, p, speaking in (
        (given, 0.3, (one, other)),
        ({}, 0.1, (one,)),
        ({"dropout": 0.0}, 0.0, (other,)),
    ):
        layer = answer(D, H, F, **kwargs)
        expect_shapes(layer, shapes)
        for bias in speaking:
            # Every sub-layer gives zeros, but for one that gives ones: their share is 1 - p.
            state = {
                name: torch.ones(shape) if name.endswith("norm.weight") else torch.zeros(shape)
                for name, shape in shapes.items()
            }
            state[bias] += 1
            layer.load(state, strict=False)
            layer.train()
            y = layer.run((x,), seed=cases.seed()).value
            added = expect_tensor(y, x.shape, what=_("the result")).double() - x.double()
            share = float((added.abs() < 1e-5).double().mean())
            # 3200 draws: shares are good to 0.009; five times that
            expect(
                abs(share - p) < 0.045,
                seen=_("In training, another share of the sub-layers' numbers is dropped."),
                cause=_("The layer's dropout does not reach both residuals."),
                next_step=_("Hand dropout on to each Residual."),
            )
    layer = answer(D, H, F, norm_first=False, **given)
    state[bias] = torch.zeros(D)
    layer.load(state, strict=False)
    layer.train()
    expect_close(
        layer.run((x,), seed=cases.seed()).value,
        _normal(_normal(x, None, None), None, None),
        atol=1e-3,  # two norms in float32; a dropped number would be off by its whole size
        what=_("post-norm around sub-layers that give zeros, in training"),
        cause=_("Dropout falls on x and not on what a sub-layer gives."),
        next_step=_("Leave dropout to Residual."),
    )
    _expect_dropped_once(answer, cases)


def _expect_dropped_once(answer: Answer, cases: Cases) -> None:
    """With probability ½, what a sub-layer adds is 0 or doubled, and nothing in between."""
    D, H, F = 8, 2, 12
    layer = answer(D, H, F, dropout=0.5)
    loaded = _load(layer, _layer_shapes(D, F), cases)
    layer.train()
    x = cases.normal(3, 4, D)
    for silent in ("feed_forward.down", "self_attention.output"):
        state = _silenced(loaded, silent)
        layer.load(state, strict=False)
        part = _layer(x, state, H, norm_first=True) - x
        found = expect_tensor(layer(x), x.shape, what=_("the output in training"))
        added = found.double() - x
        gone, doubled = added.abs() <= DEEP, (added - 2 * part).abs() <= DEEP
        expect(
            bool((gone | doubled).all()) and not bool(gone.all() or doubled.all()),
            seen=_("With dropout of ½, what a sub-layer adds is not everywhere 0 or doubled."),
            cause=_("Something inside a sub-layer is dropped as well."),
            next_step=_(
                "The dropout is of the residuals alone: build the attention and the network as the "
                "docstring writes them."
            ),
        )


@encoder_layer.check(points=0.5, hidden=True)
def every_parameter_learns(answer: Answer, cases: Cases) -> None:
    """The gradient reaches every parameter, and the input is not overwritten."""
    layer, _state, x, _H = _built_layer(answer, cases)
    run = layer.run((x,), wrt=[0, "parameters"], cotangent=cases.normal(*x.shape), echo=True)
    # A bias of the keys moves all scores of a query alike: its gradient is zero by right.
    dead = [
        name
        for name, grad in run.grads.items()
        if not name.endswith("key.bias") and (grad is None or not bool((grad != 0).any()))
    ]
    expect(
        not dead,
        seen=_("No gradient arrives at {names}.").format(names=", ".join(dead[:3])),
        cause=_("Something is built and never used, or one norm serves twice."),
        next_step=_("Use both residuals, one for each sub-layer."),
    )
    expect(
        torch.equal(run.args[0].detach(), x),
        seen=_("The input has other values after the call."),
        cause=_("An operation in place, such as x += …."),
        next_step=_("Write x = x + …."),
    )


# ---------------------------------------------------------------------------------------------

encoder = Exercise(
    "Encoder",
    title=_("The stack"),
    difficulty=2,
    minutes=15,
    hints=(
        _("How many different EncoderLayer objects are there, and who keeps them?"),
        _(
            "If parameters are missing, the layers stand in a plain list: nn.Module looks into "
            "nn.ModuleList only. If they are too few, one layer stands in it N times."
        ),
        _(
            "nn.ModuleList of N new layers; LayerNorm(D) or nn.Identity(); in forward, a loop of "
            "x = layer(x, mask, **attention), then the norm."
        ),
    ),
)


def _built_encoder(
    answer: Answer, cases: Cases, N: int = 2, **kwargs: object
) -> tuple[Answer, dict[str, Tensor], Tensor, int, int]:
    H, d = cases.distinct(2, 2, 4)
    B, T = 3, cases.integer(4, 7)
    D, F = H * d, H * d + 3
    module = answer(D, H, F, N, **({"dropout": 0.0} | kwargs))
    norm_first = bool(kwargs.get("norm_first", True))
    activation = str(kwargs.get("activation", "relu"))
    shapes = _encoder_shapes(D, F, N, norm_first=norm_first, activation=activation)
    return module, _load(module, shapes, cases), cases.normal(B, T, D), H, N


@remembered
def _encoder(
    x: Tensor,
    state: dict[str, Tensor],
    H: int,
    N: int,
    *,
    norm_first: bool = True,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str = "relu",
) -> Tensor:
    for i in range(N):
        x = _layer(
            x,
            state,
            H,
            norm_first=norm_first,
            mask=mask,
            bias=bias,
            activation=activation,
            at=f"layers.{i}.",
        )
    return _normal(x, state["norm.weight"], state["norm.bias"]) if norm_first else x


@encoder.check(points=1)
def has_n_layers_and_a_last_norm(answer: Answer, cases: Cases) -> None:
    """N layers with weights of their own; a last norm with pre-norm, none with post-norm."""
    D, H, F = 6, 2, 5
    for N, norm_first in ((3, True), (1, False)):
        module = answer(D, H, F, N, norm_first=norm_first)
        expect_parameters(module, _encoder_shapes(D, F, N, norm_first=norm_first))


@encoder.check(points=1)
def is_its_layers_one_after_another(answer: Answer, cases: Cases) -> None:
    """Pre-norm: the layers in order, each on what the last one gave, then the last norm."""
    module, state, x, H, N = _built_encoder(answer, cases, 3)
    expect_close(
        module(x),
        _encoder(x, state, H, N),
        atol=DEEP,
        what=_("the result"),
        cause=_("A layer is left out or gets another input, or the last norm is missing."),
        next_step=_("With N = 1, compare with layers[0] and norm called by hand; then N = 2."),
    )


@encoder.check(points=0.5)
def post_norm_ends_with_its_last_layer(answer: Answer, cases: Cases) -> None:
    """Post-norm: the layers in order and nothing after them."""
    module, state, x, H, N = _built_encoder(answer, cases, norm_first=False)
    expect_close(
        module(x),
        _encoder(x, state, H, N, norm_first=False),
        atol=DEEP,
        what=_("the post-norm result"),
        cause=_("norm_first does not reach the layers, or something comes after the last one."),
        next_step=_("Post-norm: the last layer's own norm is the end."),
    )


@encoder.check(points=1)
def padding_changes_nothing(answer: Answer, cases: Cases) -> None:
    """A sentence gives the same vectors alone and in a padded batch with its mask."""
    module, _state, x, _H, _N = _built_encoder(answer, cases)
    B, T, _D = x.shape
    real = _padding(cases, B, T)
    x = torch.where(real[..., None], x, cases.normal(*x.shape, scale=3.0))
    together = expect_tensor(
        module(x, real[:, None, None, :]), x.shape, what=_("the result")
    ).double()
    for b in range(B):
        length = int(real[b].sum())
        expect_close(
            module(x[b : b + 1, :length]),
            together[b : b + 1, :length],
            atol=DEEP,
            what=_("a sentence by itself"),
            cause=_("The mask does not reach every layer."),
            next_step=_("Hand the mask to each layer, not to the first alone."),
        )


@encoder.check(points=0.5, hidden=True)
def mask_and_bias_reach_every_layer(answer: Answer, cases: Cases) -> None:
    """Every layer gets the mask and the further arguments."""
    for norm_first in (True, False):
        module, state, x, H, N = _built_encoder(answer, cases, norm_first=norm_first)
        T = x.size(1)
        mask, bias = cases.mask(T, T), cases.normal(H, T, T)
        expect_close(
            module.run((x, mask), {"bias": bias}).value,
            _encoder(x, state, H, N, norm_first=norm_first, mask=mask, bias=bias),
            atol=DEEP,
            what=_("the result with a mask and a bias"),
            cause=_("One layer sees what it should not, or lacks an argument."),
            next_step=_("Call layer(x, mask, **attention) in the loop."),
        )


@encoder.check(points=0.5, hidden=True)
def settings_reach_every_layer(answer: Answer, cases: Cases) -> None:
    """Activation and dropout are those of the arguments, in every layer."""
    module, state, x, H, N = _built_encoder(answer, cases, activation="swiglu")
    expect_close(
        module(x),
        _encoder(x, state, H, N, activation="swiglu"),
        atol=DEEP,
        what=_("the result with swiglu"),
        cause=_("The activation does not reach the layers."),
        next_step=_("Hand it on by name."),
    )
    D, H, F, N = 8, 2, 6, 2
    for kwargs, p in (({"dropout": 0.0}, 0.0), ({"dropout": 0.4}, 0.4), ({}, 0.1)):
        module = answer(D, H, F, N, norm_first=True, **kwargs)
        shapes = _encoder_shapes(D, F, N)
        expect_shapes(module, shapes)
        # The layers add ones or, dropped, nothing: the last norm is told by which rows are level.
        fresh = {name: torch.zeros(shape) for name, shape in shapes.items()}
        fresh["norm.weight"] += 1
        for i in range(N):
            fresh[f"layers.{i}.self_attention.output.bias"] += 1
        module.load(fresh, strict=False)
        module.train()
        y = module.run((torch.zeros(300, 2, D),), seed=cases.seed()).value
        y = expect_tensor(y, (300, 2, D), what=_("the result"))
        level = float((y.abs().amax(dim=-1) < 1e-2).double().mean())
        # A row is level where all of its 8 sums of N draws agree.
        sums = [math.comb(N, k) * p ** (N - k) * (1 - p) ** k for k in range(N + 1)]
        # 600 rows, of which 0, 2 or 20 in a hundred are level: good to 0.016; five times that
        expect(
            abs(level - sum(share**8 for share in sums)) < 0.08,
            seen=_("In training, another share of numbers is dropped than was asked for."),
            cause=_("The dropout does not reach every layer."),
            next_step=_("Hand dropout=dropout on to each EncoderLayer."),
        )


@encoder.check(points=0.5, hidden=True)
def layers_start_different(answer: Answer, cases: Cases) -> None:
    """Before any training, no two layers have the same weights."""
    state = answer(6, 2, 5, 2).parameters()
    names = [name for name in state if name.startswith("layers.0.") and state[name].ndim == 2]
    alike = [
        name
        for name in names
        if torch.equal(state[name], state[name.replace("layers.0.", "layers.1.")])
    ]
    expect(
        bool(names) and not alike,
        seen=_("Two layers start with the same weights."),
        cause=_("One layer was built and then copied."),
        next_step=_("Build a new EncoderLayer in each turn of the loop."),
    )


@encoder.check(points=0.5, hidden=True)
def gradient_reaches_every_layer(answer: Answer, cases: Cases) -> None:
    """The gradient reaches every layer and the last norm, and the input is not overwritten."""
    module, _state, x, _H, _N = _built_encoder(answer, cases)
    run = module.run((x,), wrt=["parameters"], cotangent=cases.normal(*x.shape), echo=True)
    dead = [
        name
        for name, grad in run.grads.items()
        if not name.endswith("key.bias") and (grad is None or not bool((grad != 0).any()))
    ]
    expect(
        not dead,
        seen=_("No gradient arrives at {names}.").format(names=", ".join(dead[:3])),
        cause=_("A layer is built and never used."),
        next_step=_("Loop over self.layers."),
    )
    expect(
        torch.equal(run.args[0], x),
        seen=_("The input has other values after the call."),
        cause=_("An operation in place, such as x += …."),
        next_step=_("Write x = x + …."),
    )


# ---------------------------------------------------------------------------------------------

masked_mean = Exercise(
    "masked_mean",
    title=_("One vector for a sentence"),
    difficulty=2,
    minutes=10,
    hints=(
        _("By what is the sum divided, for a sentence of 3 tokens in a batch of length 7?"),
        _(
            "If NaN comes out, you multiplied by the mask: 0 · NaN is NaN. Or a sentence without "
            "a token was divided by 0."
        ),
        _("masked_fill with zeros, sum over the positions, divide by the count, at least 1."),
    ),
)


@remembered
def _mean(x: Tensor, allowed: Tensor) -> Tensor:
    rows = [
        sequence[keep].double().mean(dim=0)
        if bool(keep.any())
        else x.new_zeros(x.size(-1)).double()
        for sequence, keep in zip(x, allowed, strict=True)
    ]
    return torch.stack(rows)


def _expect_mean(answer: Answer, x: Tensor, allowed: Tensor, what: str, cause: str) -> None:
    expect_close(
        answer(x, allowed),
        _mean(x, allowed),
        atol=ROUNDING if x.dtype == torch.float32 else HALF,
        what=what,
        cause=cause,
        next_step=_("Take one sentence with two real tokens and one padding, and do it by hand."),
    )


@masked_mean.check(points=0.5)
def one_vector_each(answer: Answer, cases: Cases) -> None:
    """The result has shape (B, D)."""
    B, T, D = cases.distinct(3, 2, 8)
    found = answer(cases.normal(B, T, D), _padding(cases, B, T))
    expect_tensor(found, (B, D), what=_("the result"))


@masked_mean.check(points=1)
def is_the_mean_of_the_real_tokens(answer: Answer, cases: Cases) -> None:
    """The result is the mean over the real tokens of each sequence."""
    B, T, D = cases.distinct(3, 3, 8)
    x = cases.normal(B, T, D) + 1
    _expect_mean(
        answer,
        x,
        _padding(cases, B, T),
        _("the result"),
        _("Padding is counted, in the sum or in what it is divided by."),
    )


@masked_mean.check(points=0.5, hidden=True)
def real_tokens_may_stand_anywhere(answer: Answer, cases: Cases) -> None:
    """It follows the mask, and not the order of the tokens or their values."""
    B, T, D = cases.distinct(3, 4, 8)
    x = cases.normal(B, T, D) + 1
    x[:, ::2] = torch.where(cases.mask(B, D)[:, None], x[:, ::2], 0.0)
    x[0, 0] = 0.0
    allowed = cases.mask(B, T)
    allowed[0, 0] = True  # a real token whose vector is zero counts
    allowed[0, -1] = False  # no sentence fills its row: T is nobody's count
    _expect_mean(
        answer,
        x,
        allowed,
        _("the result"),
        _("The first tokens are taken for the real ones, or a zero vector for padding."),
    )


@masked_mean.check(points=0.5, hidden=True)
def padding_may_hold_anything(answer: Answer, cases: Cases) -> None:
    """NaN and infinity at padding do not reach the result, or its gradient."""
    B, T, D = cases.distinct(3, 3, 8)
    allowed = _padding(cases, B, T)
    x = cases.normal(B, T, D)
    for rubbish in (math.nan, math.inf):
        spoiled = torch.where(allowed[..., None], x, rubbish)
        run = answer.run((spoiled, allowed), wrt=[0])
        expect_close(
            run.value,
            _mean(x, allowed),
            atol=ROUNDING,
            what=_("the result with rubbish at padding"),
            cause=_("Multiplying by a mask of 0 does not remove a NaN."),
            next_step=_("Replace what is not real: masked_fill or torch.where."),
        )
        gradient = run.grads.get("0")
        expect(
            gradient is not None and bool(gradient.isfinite().all()),
            seen=_("The gradient is not finite, or does not arrive."),
            cause=_("The rubbish is multiplied on its way."),
            next_step=_("Replace what is not real before anything else: masked_fill."),
        )


@masked_mean.check(points=0.5, hidden=True)
def an_empty_sequence_gives_zeros(answer: Answer, cases: Cases) -> None:
    """A sequence without a real token gives zeros, and its gradient is finite."""
    B, T, D = 3, 4, 5
    allowed = _padding(cases, B, T)
    allowed[1] = False
    x = cases.normal(B, T, D) + 1
    run = answer.run((x, allowed), wrt=[0])
    expect_close(
        run.value,
        _mean(x, allowed),
        atol=ROUNDING,
        what=_("the result with an empty sequence"),
        cause=_("0 was divided by 0."),
        next_step=_("Let the count be 1 at least: clamp(min=1)."),
    )
    gradient = run.grads.get("0")
    expect(
        gradient is not None and bool(gradient.isfinite().all()),
        seen=_("The gradient with an empty sequence is not finite."),
        cause=_("0 was divided by 0, and the result replaced afterwards: too late for it."),
        next_step=_("Let the count be 1 at least before you divide."),
    )


@masked_mean.check(points=0.5, hidden=True)
def keeps_dtype_and_input(answer: Answer, cases: Cases) -> None:
    """fp16 and float64 come out as they went in, and the input is not overwritten."""
    allowed = _padding(cases, 3, 4)
    for dtype in (torch.float16, torch.float64):
        x = cases.normal(3, 4, 5, dtype=dtype)
        run = answer.run((x, allowed), echo=True)
        expect_tensor(run.value, (3, 5), what=_("the result"), dtype=dtype)
        expect_close(
            run.value,
            _mean(x, allowed),
            atol=HALF,
            what=_("the result"),
            cause=_("Something else than a mean over real tokens."),
            next_step=_("Compare with float32."),
        )
        expect(
            torch.equal(run.args[0], x) and torch.equal(run.args[1], allowed),
            seen=_("An input has other values after the call."),
            cause=_("An operation in place: masked_fill_, or x[...] = 0."),
            next_step=_("Use masked_fill, which makes a new tensor."),
        )
