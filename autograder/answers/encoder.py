"""The answer bank of chapter ``encoder``."""

import math

import torch
from torch import nn

import solutions.encoder  # noqa: F401 - the edits below are made to its source
from autograder.bank import right, right_edit, wrong, wrong_edit
from autograder.i18n import _
from solutions.encoder import EncoderLayer, FeedForward, LayerNorm, Residual
from solutions.multi_head import MultiHeadAttention

# --- LayerNorm ------------------------------------------------------------------------------------

MEAN = "mean = wide.mean(dim=-1, keepdim=True)  # (..., 1)"
VARIANCE = "variance = wide.var(dim=-1, correction=0, keepdim=True)  # (..., 1)"
NORMAL = "normal = (wide - mean) * torch.rsqrt(variance + self.eps)"
SCALED = "return (normal * self.weight + self.bias).to(x.dtype)"
WIDE = "wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x"

wrong_edit(
    "LayerNorm",
    "unbiased_variance",
    {"correction=0, ": ""},
    why=_(
        "torch's var divides by D - 1 unless told otherwise, an estimate for a sample. Here the D "
        "numbers are all there is: divide by D. With D = 512 nobody notices; weights that were "
        "trained with the other form are off all the same."
    ),
    see="encoder-layer-norm",
    rung=2,
)
wrong_edit(
    "LayerNorm",
    "epsilon_outside_the_root",
    {NORMAL: "normal = (wide - mean) / (torch.sqrt(variance) + self.eps)"},
    why=_(
        "ε is added to the deviation and not to the variance: where rows hardly vary, the result "
        "is another one."
    ),
    see="encoder-epsilon",
    rung=3,
)
wrong_edit(
    "LayerNorm",
    "epsilon_added_to_std",
    {
        VARIANCE: "deviation = wide.std(dim=-1, correction=0, keepdim=True)",
        NORMAL: "normal = (wide - mean) / (deviation + self.eps)",
    },
    form_of="epsilon_outside_the_root",
    why=_("ε is added to the deviation and not to the variance."),
    see="encoder-epsilon",
    rung=3,
)
wrong_edit(
    "LayerNorm",
    "no_epsilon",
    {NORMAL: "normal = (wide - mean) / torch.sqrt(variance)"},
    why=_("Without ε a row of equal numbers is 0 divided by 0."),
    see="encoder-epsilon",
    rung=3,
)
wrong_edit(
    "LayerNorm",
    "epsilon_is_fixed",
    {"variance + self.eps": "variance + 1e-5"},
    why=_("ε is written into forward, so the argument of the constructor does nothing."),
    see="encoder-epsilon",
    rung=3,
)
wrong_edit(
    "LayerNorm",
    "another_default_epsilon",
    {"eps: float = 1e-5": "eps: float = 1e-12"},
    why=_("The default is 1e-5: near-constant rows come out much larger with 1e-12."),
    see="encoder-epsilon",
    rung=3,
)
wrong_edit(
    "LayerNorm",
    "root_forgotten",
    {NORMAL: "normal = (wide - mean) / (variance + self.eps)"},
    why=_("Divided is by the variance, not by its root: the deviation of the result is not 1."),
    see="encoder-layer-norm",
    rung=3,
)
wrong_edit(
    "LayerNorm",
    "mean_not_subtracted",
    {NORMAL: "normal = wide * torch.rsqrt(variance + self.eps)"},
    why=_("The mean is computed and then not subtracted."),
    see="encoder-layer-norm",
)
wrong_edit(
    "LayerNorm",
    "normalizes_the_batch",
    {
        MEAN: "mean = wide.mean(dim=0, keepdim=True)",
        VARIANCE: "variance = wide.var(dim=0, correction=0, keepdim=True)",
    },
    why=_(
        "The statistics run over the first axis: that is batch normalization. What a sentence "
        "becomes then depends on its neighbours in the batch."
    ),
    see="encoder-layer-norm",
)
wrong_edit(
    "LayerNorm",
    "normalizes_the_positions",
    {
        MEAN: "mean = wide.mean(dim=-2, keepdim=True) if x.ndim > 1 else wide.mean()",
        VARIANCE: "variance = ((wide - mean) ** 2).mean(dim=-2, keepdim=True) if x.ndim > 1 "
        "else wide.var(correction=0)",
    },
    why=_(
        "The statistics run over the positions of a sentence. Then every position depends on all "
        "others, those to come included, and on the padding."
    ),
    see="encoder-layer-norm",
)
wrong_edit(
    "LayerNorm",
    "one_mean_for_everything",
    {MEAN: "mean = wide.mean()", VARIANCE: "variance = wide.var(correction=0)"},
    why=_(
        "One mean and one variance were taken for the whole tensor: each position needs its own."
    ),
    see="encoder-layer-norm",
)
wrong_edit(
    "LayerNorm",
    "gain_forgotten",
    {SCALED: "return (normal + self.bias).to(x.dtype)"},
    why=_("weight is there and never used: the layer cannot choose a scale."),
    see="encoder-layer-norm",
)
wrong_edit(
    "LayerNorm",
    "shift_forgotten",
    {SCALED: "return (normal * self.weight).to(x.dtype)"},
    why=_("bias is there and never used."),
    see="encoder-layer-norm",
)
wrong_edit(
    "LayerNorm",
    "gain_and_shift_swapped",
    {SCALED: "return (normal * self.bias + self.weight).to(x.dtype)"},
    why=_(
        "The roles of weight and bias are swapped: with bias = 0 every position comes out alike."
    ),
    see="encoder-layer-norm",
)
wrong_edit(
    "LayerNorm",
    "gain_starts_at_random",
    {"torch.ones(D)": "torch.randn(D)"},
    why=_("The gain is drawn at random: a fresh norm should change nothing but mean and variance."),
    see="encoder-layer-norm",
)
wrong_edit(
    "LayerNorm",
    "gain_is_no_parameter",
    {
        "self.weight = nn.Parameter(torch.ones(D))": "self.weight = torch.ones(D)",
        "self.bias = nn.Parameter(torch.zeros(D))": "self.bias = torch.zeros(D)",
    },
    why=_("Plain tensors are not parameters: the optimizer never sees them, nor does state_dict."),
    see="encoder-layer-norm",
)
wrong_edit(
    "LayerNorm",
    "statistics_detached",
    {
        MEAN: "mean = wide.detach().mean(dim=-1, keepdim=True)",
        VARIANCE: "variance = wide.detach().var(dim=-1, correction=0, keepdim=True)",
    },
    why=_(
        "Mean and variance are cut off from the graph. The result is right and its gradient is "
        "not: what the norm takes out of x comes back through the gradient."
    ),
    see="encoder-layer-norm",
    rung=3,
)
wrong_edit(
    "LayerNorm",
    "variance_as_a_difference",
    {VARIANCE: "variance = (wide**2).mean(dim=-1, keepdim=True) - mean**2"},
    why=_(
        "The mean of squares minus the square of the mean is the variance on paper. In float32, "
        "with a mean of 1000 and a deviation of 1, both are a million: their difference is noise."
    ),
    see="encoder-layer-norm",
    rung=3,
)
wrong_edit(
    "LayerNorm",
    "squares_in_half_precision",
    {WIDE: "wide = x"},
    why=_("In fp16 the square of 300 is infinity: the statistics need float32."),
    see="encoder-half-precision",
    rung=3,
)
wrong_edit(
    "LayerNorm",
    "returns_float32",
    {".to(x.dtype)": ""},
    why=_("Half-precision input comes out as float32, and the next layer does not expect it."),
    see="encoder-half-precision",
    rung=3,
)
wrong_edit(
    "LayerNorm",
    "input_overwritten",
    {NORMAL: "x -= mean\n        normal = x * torch.rsqrt(variance + self.eps)"},
    why=_(
        "x -= … changes the tensor of the caller, which the residual still needs, and fails where "
        "a gradient is wanted."
    ),
    see="encoder-layer-norm",
    rung=2,
)
wrong_edit(
    "LayerNorm",
    "input_returned",
    {SCALED: "return x"},
    why=_("What is returned is the input."),
    see="encoder-layer-norm",
)


@wrong(
    "LayerNorm",
    why=_("The result does not depend on the input."),
    see="encoder-layer-norm",
)
class all_zeros(nn.Module):
    def __init__(self, D, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))
        self.bias = nn.Parameter(torch.zeros(D))

    def forward(self, x):
        return torch.zeros_like(x) * self.weight.to(x.dtype) + self.bias.to(x.dtype)


@wrong(
    "LayerNorm",
    why=_(
        "Divided is by the length of the row, which is √D times its deviation: the numbers come "
        "out too small by √D."
    ),
    see="encoder-layer-norm",
    rung=2,
)
class divides_by_the_length(nn.Module):
    def __init__(self, D, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(D))
        self.bias = nn.Parameter(torch.zeros(D))

    def forward(self, x):
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        centred = wide - wide.mean(dim=-1, keepdim=True)
        length = torch.sqrt((centred**2).sum(dim=-1, keepdim=True) + self.eps)
        return (centred / length * self.weight + self.bias).to(x.dtype)


wrong_edit(
    "LayerNorm",
    "one_mean_for_each_sentence",
    {
        MEAN: "axes = tuple(range(1, x.ndim)) or (0,)\n"
        "        mean = wide.mean(dim=axes, keepdim=True)",
        VARIANCE: "variance = wide.var(dim=axes, correction=0, keepdim=True)",
    },
    why=_(
        "Mean and variance run over all positions of a sentence together: then each position "
        "depends on the others, and on the padding."
    ),
    see="encoder-layer-norm",
)
wrong_edit(
    "LayerNorm",
    "keepdim_forgotten",
    {
        MEAN: "mean = wide.mean(dim=-1)",
        VARIANCE: "variance = wide.var(dim=-1, correction=0)",
    },
    why=_(
        "Without keepdim=True the mean has shape (B, T) and is laid against the last two axes of x: "
        "an error, or, where sizes happen to fit, other rows' means."
    ),
    see="encoder-layer-norm",
)
wrong_edit(
    "LayerNorm",
    "epsilon_squared",
    {NORMAL: "normal = (wide - mean) * torch.rsqrt(variance + self.eps**2)"},
    why=_("ε is squared before it is added: 1e-5 becomes 1e-10, and does next to nothing."),
    see="encoder-epsilon",
    rung=3,
)
wrong_edit(
    "LayerNorm",
    "variance_clamped",
    {NORMAL: "normal = (wide - mean) * torch.rsqrt(variance.clamp(min=self.eps))"},
    why=_("ε is used as a lower bound of the variance; the formula adds it."),
    see="encoder-epsilon",
    rung=3,
)
wrong_edit(
    "LayerNorm",
    "gain_plus_one",
    {SCALED: "return (normal * (1 + self.weight) + self.bias).to(x.dtype)"},
    why=_("The gain is weight itself, which starts at one; here one is added to it."),
    see="encoder-layer-norm",
)


wrong_edit(
    "LayerNorm",
    "squares_by_hand_in_half_precision",
    {WIDE: "wide = x", VARIANCE: "variance = ((wide - mean) ** 2).mean(dim=-1, keepdim=True)"},
    form_of="squares_in_half_precision",
    why=_(
        "In fp16 the square of 300 is infinity, and what is divided by it is 0: the statistics need float32."
    ),
    see="encoder-half-precision",
    rung=3,
)
wrong_edit(
    "LayerNorm",
    "bf16_left_as_it_is",
    {
        WIDE: "wide = x.float() if x.dtype == torch.float16 else x",
        VARIANCE: "variance = ((wide - mean) ** 2).mean(dim=-1, keepdim=True)",
    },
    why=_(
        "bf16 is half precision too. It does not overflow, but it has eight bits: its means are rounded to 1 where numbers are 200."
    ),
    see="encoder-half-precision",
    rung=3,
)
wrong_edit(
    "LayerNorm",
    "fp16_left_as_it_is",
    {
        WIDE: "wide = x.float() if x.dtype == torch.bfloat16 else x",
        VARIANCE: "variance = ((wide - mean) ** 2).mean(dim=-1, keepdim=True)",
    },
    form_of="squares_in_half_precision",
    why=_(
        "In fp16 the square of 300 is infinity, and what is divided by it is 0: the statistics need float32."
    ),
    see="encoder-half-precision",
    rung=3,
)
wrong_edit(
    "LayerNorm",
    "epsilon_fixed_at_a_millionth",
    {"self.eps = eps": "self.eps = 1e-6"},
    form_of="epsilon_is_fixed",
    why=_("ε is written into the constructor, so its argument does nothing."),
    see="encoder-epsilon",
    rung=3,
)
wrong_edit(
    "LayerNorm",
    "over_the_last_two_axes",
    {
        MEAN: "axes = (-2, -1) if x.ndim > 1 else (-1,)\n        mean = wide.mean(dim=axes, keepdim=True)",
        VARIANCE: "variance = wide.var(dim=axes, correction=0, keepdim=True)",
    },
    form_of="one_mean_for_each_sentence",
    why=_(
        "Mean and variance run over all positions of a sentence together: then each position depends on the others, and on the padding."
    ),
    see="encoder-layer-norm",
    rung=1,
)
wrong_edit(
    "LayerNorm",
    "over_the_last_two_axes_always",
    {
        MEAN: "mean = wide.mean(dim=(-2, -1), keepdim=True)",
        VARIANCE: "variance = ((wide - mean) ** 2).mean(dim=(-2, -1), keepdim=True)",
    },
    form_of="one_mean_for_each_sentence",
    why=_(
        "Mean and variance run over all positions of a sentence together: then each position depends on the others, and on the padding."
    ),
    see="encoder-layer-norm",
    rung=1,
)
wrong_edit(
    "LayerNorm",
    "axis_counted_from_the_front",
    {
        MEAN: "mean = wide.mean(dim=2, keepdim=True)",
        VARIANCE: "variance = ((wide - mean) ** 2).mean(dim=2, keepdim=True)",
    },
    why=_(
        "Axis 2 is the last one of (B, T, D) alone. The input may have any number of axes: the last is -1."
    ),
    see="encoder-layer-norm",
    rung=2,
)
wrong_edit(
    "LayerNorm",
    "positions_counted_from_the_front",
    {
        MEAN: "mean = wide.mean(dim=1, keepdim=True)",
        VARIANCE: "variance = ((wide - mean) ** 2).mean(dim=1, keepdim=True)",
    },
    form_of="normalizes_the_positions",
    why=_(
        "Axis 1 holds the positions of (B, T, D). The statistics run over the D numbers of one position: axis -1."
    ),
    see="encoder-layer-norm",
    rung=1,
)
wrong_edit(
    "LayerNorm",
    "shift_starts_at_one",
    {"torch.zeros(D)": "torch.ones(D)"},
    why=_("The shift starts at one: a fresh norm should change nothing but mean and variance."),
    see="encoder-layer-norm",
    rung=1,
)
wrong_edit(
    "LayerNorm",
    "variance_detached",
    {VARIANCE: "variance = wide.detach().var(dim=-1, correction=0, keepdim=True)"},
    form_of="statistics_detached",
    why=_("The variance is cut off from the graph: the result is right and its gradient is not."),
    see="encoder-layer-norm",
    rung=3,
)
wrong_edit(
    "LayerNorm",
    "gain_and_shift_before_the_norm",
    {
        NORMAL: "normal = (wide * self.weight + self.bias - mean) * torch.rsqrt(variance + self.eps)",
        SCALED: "return normal.to(x.dtype)",
    },
    why=_(
        "Gain and shift are applied to the input. They come after the norm, or it takes part of them away."
    ),
    see="encoder-layer-norm",
    rung=2,
)
wrong_edit(
    "LayerNorm",
    "parameters_with_an_axis_too_many",
    {"torch.ones(D)": "torch.ones(1, D)", "torch.zeros(D)": "torch.zeros(1, D)"},
    why=_(
        "weight and bias have shape (1, D). They are asked for as (D,): so they are saved and loaded, and a single row keeps its shape."
    ),
    see="encoder-layer-norm",
    rung=1,
)


@wrong(
    "LayerNorm",
    why=_(
        "The parameters have other names than weight and bias: what was trained elsewhere cannot be "
        "loaded."
    ),
    see="encoder-layer-norm",
)
class parameters_of_other_names(nn.Module):
    def __init__(self, D, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(D))
        self.beta = nn.Parameter(torch.zeros(D))

    def forward(self, x):
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        variance, mean = torch.var_mean(wide, dim=-1, correction=0, keepdim=True)
        normal = (wide - mean) * torch.rsqrt(variance + self.eps)
        return (normal * self.gamma + self.beta).to(x.dtype)


@wrong(
    "LayerNorm",
    why=_(
        "The layer remembers a mean from call to call. Each position is normalized with its own "
        "numbers; what came before has no part in it."
    ),
    see="encoder-layer-norm",
    rung=2,
)
class remembers_the_mean(nn.Module):
    def __init__(self, D, eps=1e-5):
        super().__init__()
        self.eps, self.before = eps, None
        self.weight = nn.Parameter(torch.ones(D))
        self.bias = nn.Parameter(torch.zeros(D))

    def forward(self, x):
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        variance, mean = torch.var_mean(wide, dim=-1, correction=0, keepdim=True)
        if self.before is not None and self.before.shape == mean.shape:
            mean = 0.9 * self.before + 0.1 * mean
        self.before = mean.detach()
        normal = (wide - mean) * torch.rsqrt(variance + self.eps)
        return (normal * self.weight + self.bias).to(x.dtype)


wrong_edit(
    "LayerNorm",
    "no_epsilon_by_hand",
    {
        VARIANCE: "variance = ((wide - mean) ** 2).mean(dim=-1, keepdim=True)",
        NORMAL: "normal = (wide - mean) / torch.sqrt(variance)",
    },
    form_of="no_epsilon",
    why=_("Without ε a row of equal numbers is 0 divided by 0."),
    see="encoder-epsilon",
    rung=3,
)


@wrong(
    "LayerNorm",
    form_of="parameters_of_other_names",
    why=_(
        "The parameters have other names than weight and bias: what was trained elsewhere cannot be "
        "loaded."
    ),
    see="encoder-layer-norm",
)
class gamma_and_beta(nn.Module):
    def __init__(self, D, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(D))
        self.beta = nn.Parameter(torch.zeros(D))

    def forward(self, x):
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        mean = wide.mean(dim=-1, keepdim=True)
        variance = ((wide - mean) ** 2).mean(dim=-1, keepdim=True)
        normal = (wide - mean) / torch.sqrt(variance + self.eps)
        return (normal * self.gamma + self.beta).to(x.dtype)


wrong_edit(
    "LayerNorm",
    "root_mean_square_in_its_place",
    {MEAN: "mean = 0.0", VARIANCE: "variance = wide.square().mean(dim=-1, keepdim=True)"},
    why=_("Nothing is subtracted: that is RMSNorm, the next exercise."),
    see="encoder-layer-norm",
    rung=1,
)
wrong_edit(
    "LayerNorm",
    "mean_of_the_distances",
    {VARIANCE: "variance = (wide - mean).abs().mean(dim=-1, keepdim=True) ** 2"},
    why=_(
        "The mean distance from the mean is not the deviation: the squares are averaged, and then the root is taken."
    ),
    see="encoder-layer-norm",
    rung=2,
)
wrong_edit(
    "LayerNorm",
    "parameters_frozen",
    {
        "nn.Parameter(torch.ones(D))": "nn.Parameter(torch.ones(D), requires_grad=False)",
        "nn.Parameter(torch.zeros(D))": "nn.Parameter(torch.zeros(D), requires_grad=False)",
    },
    why=_("weight and bias ask for no gradient: they can never be learned."),
    see="encoder-layer-norm",
    rung=2,
)
wrong_edit(
    "LayerNorm",
    "dtype_of_the_weight",
    {SCALED: SCALED.replace("x.dtype", "self.weight.dtype")},
    form_of="returns_float32",
    why=_("The result takes the dtype of the weight; it takes that of x."),
    see="encoder-half-precision",
    rung=3,
)


@right("LayerNorm", style="one row at a time, mapped")
class mapped_over_rows(nn.Module):
    def __init__(self, D, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.empty(D)), nn.Parameter(torch.empty(D))
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x):
        def row(v):
            c = v - v.sum() / len(v)
            return c / (c @ c / len(v) + self.eps) ** 0.5

        wide = x.float() if x.dtype in (torch.half, torch.bfloat16) else x
        rows = torch.vmap(row)(wide.reshape(-1, wide.shape[-1])).reshape(x.shape)
        return (rows * self.weight + self.bias).type_as(x)


@right("LayerNorm", style="always in float64, by hand")
class in_float64(nn.Module):
    def __init__(self, D, eps=1e-5):
        super().__init__()
        self.epsilon = eps
        self.weight = nn.Parameter(torch.full((D,), 1.0))
        self.bias = nn.Parameter(torch.full((D,), 0.0))

    def forward(self, x):
        y = x.to(torch.float64)
        y = y - y.sum(-1, keepdim=True) / y.shape[-1]
        y = y / ((y * y).sum(-1, keepdim=True) / y.shape[-1] + self.epsilon) ** 0.5
        return (self.weight * y + self.bias).to(x.dtype)


@right("LayerNorm", style="var_mean, always float32")
class with_var_mean(nn.Module):
    def __init__(self, D, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.bias = nn.Parameter(torch.zeros(D))
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x):
        h = x.float()
        var, mean = torch.var_mean(h, dim=-1, unbiased=False, keepdim=True)
        h = (h - mean) / (var + self.eps).sqrt()
        return torch.addcmul(self.bias, h, self.weight).type_as(x)


@right("LayerNorm", style="a matrix that removes the mean, and a norm")
class as_a_projection(nn.Module):
    def __init__(self, D, eps=1e-5):
        super().__init__()
        self.eps, self.D = eps, D
        self.weight = nn.Parameter(torch.ones(D))
        self.bias = nn.Parameter(torch.zeros(D))
        self.register_buffer("centre", torch.eye(D) - 1 / D, persistent=False)

    def forward(self, x):
        rows = x.reshape(-1, self.D).double() @ self.centre.double()
        size = rows.norm(dim=1, keepdim=True)
        # √(variance + ε) = √(|row|² + D ε) / √D; hypot has a slope of 0 at 0, where norm's is 0
        root = torch.hypot(size, torch.full_like(size, math.sqrt(self.D * self.eps)))
        rows = rows / root * math.sqrt(self.D)
        return (rows * self.weight + self.bias).to(x.dtype).reshape(x.shape)


# --- RMSNorm --------------------------------------------------------------------------------------

SQUARE = "mean_square = wide.square().mean(dim=-1, keepdim=True)  # (..., 1)"
SCALE = "return (wide * torch.rsqrt(mean_square + self.eps) * self.weight).to(x.dtype)"

wrong_edit(
    "RMSNorm",
    "mean_subtracted",
    {
        SQUARE: "wide = wide - wide.mean(dim=-1, keepdim=True)\n"
        "        mean_square = wide.square().mean(dim=-1, keepdim=True)"
    },
    why=_("The mean is subtracted: that is layer normalization. RMSNorm only scales."),
    see="encoder-rms-norm",
)
wrong_edit(
    "RMSNorm",
    "divided_by_the_deviation",
    {SQUARE: "mean_square = wide.var(dim=-1, correction=0, keepdim=True)"},
    why=_("The variance is the mean square of what is left without the mean: not the same number."),
    see="encoder-rms-norm",
)
wrong_edit(
    "RMSNorm",
    "sum_for_mean",
    {".square().mean(": ".square().sum("},
    why=_("The squares are summed and not averaged: the numbers come out too small by √D."),
    see="encoder-rms-norm",
    rung=2,
)
wrong_edit(
    "RMSNorm",
    "root_missing",
    {SCALE: "return (wide / (mean_square + self.eps) * self.weight).to(x.dtype)"},
    why=_("Divided is by the mean square and not by its root."),
    see="encoder-rms-norm",
    rung=3,
)
wrong_edit(
    "RMSNorm",
    "mean_of_sizes",
    {
        SQUARE: "mean_square = wide.abs().mean(dim=-1, keepdim=True)",
        SCALE: "return (wide / (mean_square + self.eps) * self.weight).to(x.dtype)",
    },
    why=_("The mean of the absolute values is not the root of the mean square."),
    see="encoder-rms-norm",
    rung=3,
)
wrong_edit(
    "RMSNorm",
    "epsilon_outside",
    {SCALE: "return (wide / (mean_square.sqrt() + self.eps) * self.weight).to(x.dtype)"},
    why=_("ε is added to the root and not under it: near zero the result is another one."),
    see="encoder-epsilon",
    rung=2,
)
wrong_edit(
    "RMSNorm",
    "epsilon_missing",
    {SCALE: "return (wide * torch.rsqrt(mean_square) * self.weight).to(x.dtype)"},
    why=_("Without ε a row of zeros is 0 divided by 0."),
    see="encoder-epsilon",
    rung=2,
)
wrong_edit(
    "RMSNorm",
    "epsilon_of_layer_norm",
    {"eps: float = 1e-6": "eps: float = 1e-5"},
    why=_("The default of ε is 1e-6 here, and not that of LayerNorm."),
    see="encoder-epsilon",
    rung=2,
)
wrong_edit(
    "RMSNorm",
    "gain_not_used",
    {" * self.weight).to": ").to"},
    why=_("weight is there and never used."),
    see="encoder-rms-norm",
)
wrong_edit(
    "RMSNorm",
    "one_root_for_everything",
    {".mean(dim=-1, keepdim=True)  # (..., 1)": ".mean()"},
    why=_("One root mean square was taken for the whole tensor: each position needs its own."),
    see="encoder-rms-norm",
)
wrong_edit(
    "RMSNorm",
    "over_the_positions",
    {".mean(dim=-1, keepdim=True)  # (..., 1)": ".mean(dim=-2, keepdim=True)"},
    why=_("The mean square runs over the positions and not over the numbers of one position."),
    see="encoder-rms-norm",
)
wrong_edit(
    "RMSNorm",
    "has_a_bias",
    {
        "self.weight = nn.Parameter(torch.ones(D))": "self.weight = nn.Parameter(torch.ones(D))\n"
        "        self.bias = nn.Parameter(torch.zeros(D))",
        " * self.weight).to": " * self.weight + self.bias).to",
    },
    why=_("RMSNorm has a gain and no bias."),
    see="encoder-rms-norm",
)
wrong_edit(
    "RMSNorm",
    "gain_starts_at_zero",
    {"torch.ones(D)": "torch.zeros(D)"},
    why=_(
        "The gain starts at zero, so a fresh norm gives zeros. (Where a model stores the gain "
        "minus one, zeros are right; here it is the gain.)"
    ),
    see="encoder-rms-norm",
)
wrong_edit(
    "RMSNorm",
    "overflows_in_half_precision",
    {WIDE: "wide = x"},
    why=_("In fp16 the square of 300 is infinity, and the result 0: square in float32."),
    see="encoder-half-precision",
    rung=2,
)
wrong_edit(
    "RMSNorm",
    "stays_in_float32",
    {".to(x.dtype)": ""},
    why=_("Half-precision input comes out as float32, and the next layer does not expect it."),
    see="encoder-half-precision",
    rung=2,
)
wrong_edit(
    "RMSNorm",
    "root_detached",
    {"wide.square().mean": "wide.detach().square().mean"},
    why=_("The root mean square is cut off from the graph: the gradient is another one."),
    see="encoder-rms-norm",
    rung=3,
)
wrong_edit(
    "RMSNorm",
    "gives_x_back",
    {SCALE: "return x"},
    why=_("What is returned is the input."),
    see="encoder-rms-norm",
)


wrong_edit(
    "RMSNorm",
    "clamped_not_added",
    {
        SCALE: "return (wide * torch.rsqrt(mean_square.clamp(min=self.eps)) * self.weight).to(x.dtype)"
    },
    why=_("ε is used as a lower bound of the mean square; the formula adds it."),
    see="encoder-epsilon",
    rung=2,
)
wrong_edit(
    "RMSNorm",
    "root_clamped",
    {SCALE: "return (wide / mean_square.sqrt().clamp(min=self.eps) * self.weight).to(x.dtype)"},
    why=_("ε is used as a lower bound of the root; the formula adds it under the root."),
    see="encoder-epsilon",
    rung=2,
)
wrong_edit(
    "RMSNorm",
    "square_of_the_mean",
    {"wide.square().mean(dim=-1, keepdim=True)": "wide.mean(dim=-1, keepdim=True).square()"},
    why=_("First the squares, then their mean: the square of the mean is another number."),
    see="encoder-rms-norm",
    rung=2,
)


wrong_edit(
    "RMSNorm",
    "epsilon_fixed",
    {"self.eps = eps": "self.eps = 1e-6"},
    why=_("ε is written into the constructor, so its argument does nothing."),
    see="encoder-epsilon",
    rung=2,
)
wrong_edit(
    "RMSNorm",
    "largest_number_for_the_mean",
    {SQUARE: "mean_square = wide.square().amax(dim=-1, keepdim=True)"},
    why=_("Divided is by the largest number of the row; the root of the mean square is smaller."),
    see="encoder-rms-norm",
    rung=2,
)
wrong_edit(
    "RMSNorm",
    "input_overwritten",
    {
        SCALE: "x *= torch.rsqrt(mean_square + self.eps)\n        return (x * self.weight).to(x.dtype)"
    },
    why=_(
        "x *= … changes the caller's tensor, which the residual still needs, and fails where a gradient is wanted."
    ),
    see="encoder-rms-norm",
    rung=2,
)
wrong_edit(
    "RMSNorm",
    "gain_brings_float32_back",
    {SCALE: "return self.weight * (wide * torch.rsqrt(mean_square + self.eps)).to(x.dtype)"},
    form_of="stays_in_float32",
    why=_("The gain is float32 and comes last: half-precision input comes out as float32."),
    see="encoder-half-precision",
    rung=2,
)
wrong_edit(
    "RMSNorm",
    "one_gain_for_all",
    {"torch.ones(D)": "torch.ones(1)"},
    why=_("There is one gain for all features; each of the D has its own."),
    see="encoder-rms-norm",
    rung=1,
)
wrong_edit(
    "RMSNorm",
    "gain_stored_less_one",
    {"torch.ones(D)": "torch.zeros(D)", SCALE: SCALE.replace("self.weight", "(1 + self.weight)")},
    why=_(
        "weight is the gain less one, as some models store it. Here it is the gain itself, which starts at one."
    ),
    see="encoder-rms-norm",
    rung=1,
)
wrong_edit(
    "RMSNorm",
    "root_of_the_sum_and_epsilon_outside",
    {
        SQUARE: "size = wide.norm(dim=-1, keepdim=True)",
        SCALE: "return (wide / (size + self.eps) * self.weight).to(x.dtype)",
    },
    form_of="sum_for_mean",
    why=_(
        "Divided is by the length of the row, which is √D times its root mean square: the numbers come out too small by √D."
    ),
    see="encoder-rms-norm",
    rung=2,
)


wrong_edit(
    "RMSNorm",
    "gain_frozen",
    {"nn.Parameter(torch.ones(D))": "nn.Parameter(torch.ones(D), requires_grad=False)"},
    why=_("weight asks for no gradient: it can never be learned."),
    see="encoder-rms-norm",
    rung=2,
)


@right("RMSNorm", style="the norm of the row, in float64")
class rms_in_float64(nn.Module):
    def __init__(self, D, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x):
        y = x.double()
        mean_square = torch.einsum("...d,...d->...", y, y)[..., None] / y.shape[-1]
        return (y / (mean_square + self.eps).sqrt() * self.weight).to(x.dtype)


@right("RMSNorm", style="pow, always float32, gain first")
class gain_first(nn.Module):
    def __init__(self, D, eps=1e-6):
        super().__init__()
        self.variance_epsilon = eps
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x):
        hidden = x.to(torch.float32)
        variance = hidden.pow(2).mean(-1, keepdim=True)
        return (self.weight * (hidden * torch.rsqrt(variance + self.variance_epsilon))).to(x.dtype)


@right("RMSNorm", style="one row after the other")
class row_by_row(nn.Module):
    def __init__(self, D, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x):
        rows = [
            row * self.weight / torch.sqrt(torch.dot(row, row) / len(row) + self.eps)
            for row in x.reshape(-1, x.size(-1)).float()
        ]
        return torch.stack(rows).reshape(x.shape).to(x.dtype)


# --- FeedForward ----------------------------------------------------------------------------------

RELU = "hidden = torch.relu(hidden)"
GELU = "hidden = nn.functional.gelu(hidden)"
SWIGLU = "hidden = nn.functional.silu(self.gate(x)) * hidden"
DOWN = "return self.down(self.dropout(hidden))  # (..., D)"

wrong_edit(
    "FeedForward",
    "no_activation",
    {RELU: "pass", GELU: "pass"},
    why=_(
        "Without an activation two linear maps are one linear map, and a wider one buys nothing."
    ),
    see="encoder-feed-forward",
)
wrong_edit(
    "FeedForward",
    "activation_at_the_end",
    {
        RELU: "return torch.relu(self.down(self.dropout(hidden)))",
        GELU: "return nn.functional.gelu(self.down(self.dropout(hidden)))",
    },
    why=_(
        "The activation stands behind the second map. Then the two maps are one, and the network "
        "can add nothing negative to the residual."
    ),
    see="encoder-feed-forward",
)
wrong_edit(
    "FeedForward",
    "activation_twice",
    {DOWN: "out = self.down(self.dropout(hidden))\n"
     "        return out if self.activation == 'swiglu' else torch.relu(out)"},
    why=_("There is an activation behind the second map as well: what is negative is lost."),
    see="encoder-feed-forward",
)  # fmt: skip
wrong_edit(
    "FeedForward",
    "silu_on_the_wrong_map",
    {SWIGLU: "hidden = self.gate(x) * nn.functional.silu(hidden)"},
    why=_("silu belongs to the gate; here it is applied to up."),
    see="encoder-swiglu",
    rung=2,
)
wrong_edit(
    "FeedForward",
    "sigmoid_gate",
    {SWIGLU: "hidden = torch.sigmoid(self.gate(x)) * hidden"},
    why=_(
        "That is the gated linear unit of 2016, with a sigmoid. SwiGLU has silu(g), which is "
        "g · sigmoid(g)."
    ),
    see="encoder-swiglu",
    rung=2,
)
wrong_edit(
    "FeedForward",
    "gelu_gate",
    {SWIGLU: "hidden = nn.functional.gelu(self.gate(x)) * hidden"},
    why=_("With GELU on the gate it is GEGLU, not SwiGLU."),
    see="encoder-swiglu",
    rung=2,
)
wrong_edit(
    "FeedForward",
    "gate_without_silu",
    {SWIGLU: "hidden = self.gate(x) * hidden"},
    why=_("The gate has no activation: that is a bilinear layer."),
    see="encoder-swiglu",
    rung=2,
)
wrong_edit(
    "FeedForward",
    "gate_added",
    {SWIGLU: "hidden = nn.functional.silu(self.gate(x)) + hidden"},
    why=_("The gate is added and not multiplied: it cannot close."),
    see="encoder-swiglu",
    rung=2,
)
wrong_edit(
    "FeedForward",
    "gate_never_used",
    {SWIGLU: "hidden = nn.functional.silu(hidden)"},
    why=_("The gate is built and never used: a third of the parameters does nothing."),
    see="encoder-swiglu",
    rung=2,
)
wrong_edit(
    "FeedForward",
    "biases_in_swiglu",
    {
        "self.up = nn.Linear(D, F, bias=not gated)": "self.up = nn.Linear(D, F)",
        "self.gate = nn.Linear(D, F, bias=False)": "self.gate = nn.Linear(D, F)",
        "self.down = nn.Linear(F, D, bias=not gated)": "self.down = nn.Linear(F, D)",
    },
    why=_("The maps of swiglu have no biases here."),
    see="encoder-swiglu",
    rung=2,
)
wrong_edit(
    "FeedForward",
    "biases_nowhere",
    {
        "self.up = nn.Linear(D, F, bias=not gated)": "self.up = nn.Linear(D, F, bias=False)",
        "self.down = nn.Linear(F, D, bias=not gated)": "self.down = nn.Linear(F, D, bias=False)",
    },
    why=_("The maps of relu and gelu have biases: equation 2 of the paper."),
    see="encoder-feed-forward",
)
wrong_edit(
    "FeedForward",
    "always_four_times_as_wide",
    {
        "nn.Linear(D, F, bias=not gated)": "nn.Linear(D, 4 * D, bias=not gated)",
        "nn.Linear(D, F, bias=False)": "nn.Linear(D, 4 * D, bias=False)",
        "nn.Linear(F, D, bias=not gated)": "nn.Linear(4 * D, D, bias=not gated)",
    },
    why=_("Four times D is a habit and not a law: the width is the argument F."),
    see="encoder-feed-forward",
)
wrong_edit(
    "FeedForward",
    "always_relu",
    {GELU: RELU, SWIGLU: "hidden = torch.relu(self.gate(x)) * hidden"},
    why=_("The argument activation is not heeded."),
    see="encoder-feed-forward",
)
wrong_edit(
    "FeedForward",
    "sigmoid_for_gelu",
    {GELU: "hidden = hidden * torch.sigmoid(1.702 * hidden)"},
    why=_(
        "u · sigmoid(1.702 u) is a rough form of GELU, off by up to 0.02. Some models were trained "
        "with it; the definition is u · Φ(u)."
    ),
    see="encoder-gelu",
    rung=3,
)
wrong_edit(
    "FeedForward",
    "silu_for_gelu",
    {GELU: "hidden = nn.functional.silu(hidden)"},
    why=_("silu is u · sigmoid(u); GELU is u · Φ(u)."),
    see="encoder-gelu",
    rung=3,
)
wrong_edit(
    "FeedForward",
    "dropout_behind_down",
    {DOWN: "return self.dropout(self.down(hidden))"},
    why=_(
        "Dropout stands behind down. The residual connection drops that already; here it is the "
        "hidden numbers that are dropped."
    ),
    see="encoder-dropout",
    rung=3,
)
wrong_edit(
    "FeedForward",
    "dropout_left_out",
    {DOWN: "return self.down(hidden)"},
    why=_("The argument dropout does nothing."),
    see="encoder-dropout",
    rung=3,
)
wrong_edit(
    "FeedForward",
    "dropout_never_off",
    {
        "self.dropout = nn.Dropout(dropout)": "self.dropout = dropout",
        "self.dropout(hidden)": "nn.functional.dropout(hidden, self.dropout)",
    },
    why=_(
        "The function nn.functional.dropout drops in evaluation too unless it is handed "
        "self.training."
    ),
    see="encoder-dropout",
    rung=3,
)
wrong_edit(
    "FeedForward",
    "dropout_without_compensation",
    {
        "self.dropout(hidden)": "hidden * (torch.rand_like(hidden) >= self.dropout.p) "
        "if self.training else hidden"
    },
    why=_("What is kept must be divided by 1 - p, or the numbers are larger in evaluation."),
    see="encoder-dropout",
    rung=3,
)
wrong_edit(
    "FeedForward",
    "residual_inside",
    {DOWN: "return x + self.down(self.dropout(hidden))"},
    why=_(
        "x is added here already. The residual connection is a module of its own, around this one."
    ),
    see="encoder-feed-forward",
)
wrong_edit(
    "FeedForward",
    "positions_mixed",
    {DOWN: "return self.down(self.dropout(hidden - hidden.mean(dim=-2, keepdim=True)))"},
    why=_("Something is computed across positions: here every position is on its own."),
    see="encoder-feed-forward",
)

wrong_edit(
    "FeedForward",
    "dropout_before_the_activation",
    {
        "hidden = self.up(x)  # (..., F)": "hidden = self.dropout(self.up(x))",
        "self.dropout(hidden)": "hidden",
    },
    why=_(
        "Dropout stands before the activation. With ReLU that is the same; a GELU of an enlarged "
        "number is not an enlarged GELU."
    ),
    see="encoder-dropout",
    rung=3,
)
wrong_edit(
    "FeedForward",
    "input_dropped",
    {
        "hidden = self.up(x)  # (..., F)": "x = self.dropout(x)\n        hidden = self.up(x)",
        "self.dropout(hidden)": "hidden",
    },
    why=_("Dropout falls on the D numbers that come in, not on the F hidden ones."),
    see="encoder-dropout",
    rung=3,
)
wrong_edit(
    "FeedForward",
    "silu_of_the_product",
    {SWIGLU: "hidden = nn.functional.silu(self.gate(x) * hidden)"},
    why=_("silu is applied to the product; it belongs to the gate alone, before the product."),
    see="encoder-swiglu",
    rung=2,
)

wrong_edit(
    "FeedForward",
    "gate_in_any_case",
    {"        if gated:\n            self.gate": "        if True:\n            self.gate"},
    why=_("The gate is built for relu and gelu too: a third map that nothing trains."),
    see="encoder-swiglu",
    rung=1,
)
wrong_edit(
    "FeedForward",
    "biases_up_and_down_in_swiglu",
    {
        "self.up = nn.Linear(D, F, bias=not gated)": "self.up = nn.Linear(D, F)",
        "self.down = nn.Linear(F, D, bias=not gated)": "self.down = nn.Linear(F, D)",
    },
    form_of="biases_in_swiglu",
    why=_("The maps of swiglu have no biases here."),
    see="encoder-swiglu",
    rung=2,
)
wrong_edit(
    "FeedForward",
    "bias_in_the_gate",
    {"self.gate = nn.Linear(D, F, bias=False)": "self.gate = nn.Linear(D, F)"},
    form_of="biases_in_swiglu",
    why=_("The maps of swiglu have no biases here, and the gate is one of them."),
    see="encoder-swiglu",
    rung=2,
)
wrong_edit(
    "FeedForward",
    "no_bias_in_down",
    {"self.down = nn.Linear(F, D, bias=not gated)": "self.down = nn.Linear(F, D, bias=False)"},
    form_of="biases_nowhere",
    why=_("The second map of relu and gelu has a bias too: equation 2 of the paper."),
    see="encoder-feed-forward",
    rung=1,
)
wrong_edit(
    "FeedForward",
    "dropout_in_two_places",
    {DOWN: "return self.dropout(self.down(self.dropout(hidden)))"},
    why=_(
        "Dropout falls on the hidden numbers and on the result as well; the result is dropped by the residual connection."
    ),
    see="encoder-dropout",
    rung=3,
)
wrong_edit(
    "FeedForward",
    "dropout_fixed_at_a_tenth",
    {"nn.Dropout(dropout)": "nn.Dropout(0.1)"},
    why=_("The probability is the argument, 0 by default; here it is 0.1 always."),
    see="encoder-dropout",
    rung=2,
)
wrong_edit(
    "FeedForward",
    "leaky_relu",
    {RELU: "hidden = nn.functional.leaky_relu(hidden)"},
    why=_("LeakyReLU lets a hundredth of what is negative through; ReLU nothing."),
    see="encoder-feed-forward",
    rung=1,
)
wrong_edit(
    "FeedForward",
    "input_overwritten",
    {
        "hidden = self.up(x)  # (..., F)": "x.clamp_(min=-100.0, max=1.0)\n        hidden = self.up(x)"
    },
    why=_("A method whose name ends in _ changes the caller's tensor."),
    see="encoder-feed-forward",
    rung=2,
)
wrong_edit(
    "FeedForward",
    "relu_gate",
    {SWIGLU: "hidden = torch.relu(self.gate(x)) * hidden"},
    why=_("With ReLU on the gate it is ReGLU, not SwiGLU."),
    see="encoder-swiglu",
    rung=2,
)
wrong_edit(
    "FeedForward",
    "silu_of_the_sum",
    {SWIGLU: "hidden = nn.functional.silu(self.gate(x) + hidden)"},
    why=_("The two maps are added and not multiplied: there is no gate."),
    see="encoder-swiglu",
    rung=2,
)
wrong_edit(
    "FeedForward",
    "another_dropout",
    {"nn.Dropout(dropout)": "nn.AlphaDropout(dropout)"},
    why=_(
        "AlphaDropout sets numbers to another value than 0 and shifts the rest. nn.Dropout is meant."
    ),
    see="encoder-dropout",
    rung=2,
)
wrong_edit(
    "FeedForward",
    "positions_dropped_whole",
    {"self.dropout(hidden)": "hidden * self.dropout(torch.ones_like(hidden[..., :1]))"},
    why=_("All hidden numbers of a position are dropped together. Each is drawn by itself."),
    see="encoder-dropout",
    rung=2,
)
right_edit(
    "FeedForward",
    "gelu_by_tanh",
    {GELU: "hidden = nn.functional.gelu(hidden, approximate='tanh')"},
    style="tanh form",
)
right_edit("FeedForward", "activations_by_hand", {
    RELU: "hidden = torch.where(hidden > 0, hidden, 0.0)",
    GELU: "hidden = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2",
    SWIGLU: "g = self.gate(x)\n            hidden = hidden * g / (1 + torch.exp(-g))",
}, style="activations by hand")  # fmt: skip


@right("FeedForward", style="a table of functions, dropout by function")
class table_of_functions(nn.Module):
    def __init__(self, D, F, activation="relu", dropout=0.0):
        super().__init__()
        self.gate = nn.Linear(D, F, bias=False) if activation == "swiglu" else None
        bias = self.gate is None
        self.down = nn.Linear(F, D, bias)
        self.up = nn.Linear(D, F, bias)
        self.p = dropout
        self.act = {"relu": nn.ReLU(), "gelu": nn.GELU(), "swiglu": nn.SiLU()}[activation]

    def forward(self, x):
        h = self.act(self.up(x)) if self.gate is None else self.up(x) * self.act(self.gate(x))
        return self.down(nn.functional.dropout(h, self.p, self.training))


@right("FeedForward", style="by matrix products and einsum")
class by_einsum(nn.Module):
    def __init__(self, D, F, activation="relu", dropout=0.0):
        super().__init__()
        self.kind = activation
        self.up, self.down = (
            nn.Linear(a, b, bias=activation != "swiglu") for a, b in ((D, F), (F, D))
        )
        if activation == "swiglu":
            self.gate = nn.Linear(D, F, bias=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        h = torch.einsum("...d,fd->...f", x, self.up.weight)
        if self.kind == "swiglu":
            h = h * nn.SiLU()(x @ self.gate.weight.mT)
            return torch.einsum("...f,df->...d", self.drop(h), self.down.weight)
        h = h + self.up.bias
        h = h.clamp(min=0) if self.kind == "relu" else h * torch.special.ndtr(h)
        return torch.einsum("...f,df->...d", self.drop(h), self.down.weight) + self.down.bias


# --- equal_width ----------------------------------------------------------------------------------


@wrong(
    "equal_width",
    why=_(
        "Two thirds of F is right without biases. The two-map network has F + D numbers more, "
        "which may pay for another hidden number."
    ),
    see="encoder-equal-parameters",
    rung=2,
)
def biases_not_counted(D, F):
    return 2 * F // 3


@wrong(
    "equal_width",
    why=_("Two thirds of F, rounded up: the biases are not counted, and up is the wrong way."),
    see="encoder-equal-parameters",
    rung=2,
)
def two_thirds_rounded_up(D, F):
    return math.ceil(2 * F / 3)


@wrong(
    "equal_width",
    why=_(
        "Two thirds of F, rounded to the nearest. Where the D biases are counted and the F are not, "
        "it comes to the same."
    ),
    see="encoder-equal-parameters",
    rung=2,
)
def two_thirds_rounded(D, F):
    return round(2 * F / 3)


@wrong(
    "equal_width",
    why=_("The same width costs half as much again: three maps in place of two."),
    see="encoder-equal-parameters",
)
def same_width(D, F):
    return F


@wrong(
    "equal_width",
    why=_("Rounded up, the network has a few parameters more than the other one."),
    see="encoder-equal-parameters",
    rung=2,
)
def rounded_up(D, F):
    return -(-(2 * D * F + F + D) // (3 * D))


@wrong(
    "equal_width",
    why=_("Rounded to the nearest, the network may have a few parameters too many."),
    see="encoder-equal-parameters",
    rung=2,
)
def rounded_to_nearest(D, F):
    return round((2 * D * F + F + D) / (3 * D))


@wrong(
    "equal_width",
    why=_("Half the width is less than fits: the third map costs a third, not a half."),
    see="encoder-equal-parameters",
)
def half_the_width(D, F):
    return F // 2


@wrong(
    "equal_width",
    why=_("The maps of SwiGLU have no biases here, but they were counted."),
    see="encoder-equal-parameters",
    rung=2,
)
def swiglu_with_biases(D, F):
    return (2 * D * F + F + D - D) // (3 * D + 2)


@wrong(
    "equal_width",
    why=_("8/3 · D is the answer for F = 4D alone."),
    see="encoder-equal-parameters",
)
def eight_thirds_of_d(D, F):
    return 8 * D // 3


@wrong(
    "equal_width",
    why=_("A width must be an int: / gives a float, // does not."),
    see="encoder-equal-parameters",
)
def not_an_integer(D, F):
    return (2 * D * F + F + D) / (3 * D)


@wrong(
    "equal_width",
    why=_("Of the two biases one was forgotten: one has F numbers, the other D."),
    see="encoder-equal-parameters",
    rung=2,
)
def one_bias_forgotten(D, F):
    return (2 * D * F + F) // (3 * D)


@wrong(
    "equal_width",
    why=_("What is returned is the number of parameters and not a width."),
    see="encoder-equal-parameters",
)
def number_of_parameters(D, F):
    return 2 * D * F + F + D


@wrong(
    "equal_width",
    form_of="not_an_integer",
    why=_("A width must be an int, and this is a float, if a whole one."),
    see="encoder-equal-parameters",
    rung=1,
)
def whole_but_a_float(D, F):
    return float((2 * D * F + F + D) // (3 * D))


@wrong(
    "equal_width",
    why=_("A width must be an int, and this is a tensor."),
    see="encoder-equal-parameters",
    rung=1,
)
def a_tensor(D, F):
    return torch.tensor((2 * D * F + F + D) // (3 * D))


@wrong(
    "equal_width",
    why=_(
        "Rounded down to a multiple of eight, which hardware likes; the largest width is asked for."
    ),
    see="encoder-equal-parameters",
    rung=1,
)
def multiple_of_eight(D, F):
    return (2 * D * F + F + D) // (3 * D) // 8 * 8


@wrong(
    "equal_width",
    why=_("Where SwiGLU can cost exactly as much, one is lost: *no more* allows as many."),
    see="encoder-equal-parameters",
    rung=2,
)
def strictly_fewer(D, F):
    return (2 * D * F + F + D - 1) // (3 * D)


@wrong(
    "equal_width",
    why=_(
        "Divided in floating point, 12 may be 11.999…, and int cuts it. Divide whole numbers with //."
    ),
    see="encoder-equal-parameters",
    rung=2,
)
def rounded_by_floating_point(D, F):
    return int(2 / 3 * F + (F + D) / (3 * D))


@wrong(
    "equal_width",
    why=_("Divided is by 3F. One more hidden number costs three numbers of width D: 3D."),
    see="encoder-equal-parameters",
    rung=1,
)
def d_and_f_exchanged(D, F):
    return (2 * D * F + F + D) // (3 * F)


@wrong(
    "equal_width",
    why=_("One less than fits: // rounds down already."),
    see="encoder-equal-parameters",
    rung=1,
)
def one_less_than_fits(D, F):
    return (2 * D * F + F + D) // (3 * D) - 1


@right("equal_width", style="counting up")
def counting_up(D, F):
    budget, width = 2 * D * F + D + F, 0
    while 3 * D * (width + 1) <= budget:
        width += 1
    return width


@right("equal_width", style="floor")
def with_floor(D, F):
    return math.floor((F * (2 * D + 1) + D) / (3 * D))


@right("equal_width", style="from the modules themselves")
def from_modules(D, F):
    def count(module):
        return sum(p.numel() for p in module.parameters())

    budget = count(FeedForward(D, F, "relu"))
    width = max(1, 2 * F // 3)
    while count(FeedForward(D, width, "swiglu")) > budget:
        width -= 1
        if width == 0:
            return 0
    while count(FeedForward(D, width + 1, "swiglu")) <= budget:
        width += 1
    return width


# --- Residual -------------------------------------------------------------------------------------

PRE = "return x + self.dropout(sublayer(self.norm(x)))"
POST = "return self.norm(x + self.dropout(sublayer(x)))"
FIRST = "if self.norm_first:"

wrong_edit(
    "Residual",
    "always_pre_norm",
    {FIRST: "if True:"},
    why=_(
        "norm_first=False is asked for and pre-norm is given: text that says post-norm, over code "
        "that does pre-norm."
    ),
    see="encoder-two-placements",
)
wrong_edit(
    "Residual",
    "always_post_norm",
    {FIRST: "if False:"},
    why=_("norm_first=True is asked for and post-norm is given."),
    see="encoder-two-placements",
)
wrong_edit(
    "Residual",
    "placements_swapped",
    {FIRST: "if not self.norm_first:"},
    why=_("The two placements are swapped: with norm_first the norm comes before the sub-layer."),
    see="encoder-two-placements",
)
wrong_edit(
    "Residual",
    "x_not_added",
    {PRE: "return self.dropout(sublayer(self.norm(x)))",
     POST: "return self.norm(self.dropout(sublayer(x)))"},
    why=_("There is no residual: x is never added."),
    see="encoder-residual-connection",
)  # fmt: skip
wrong_edit(
    "Residual",
    "normalized_x_added",
    {PRE: "x = self.norm(x)\n            return x + self.dropout(sublayer(x))"},
    why=_(
        "norm(x) is added where x should be. Then no road leads around the norms, which is what "
        "pre-norm is for."
    ),
    see="encoder-two-placements",
)
wrong_edit(
    "Residual",
    "norm_on_the_sublayer_output",
    {PRE: "return x + self.norm(self.dropout(sublayer(x)))"},
    why=_("The norm is behind the sub-layer, inside the residual: neither pre-norm nor post-norm."),
    see="encoder-two-placements",
)
wrong_edit(
    "Residual",
    "post_norm_before_the_sum",
    {POST: "return x + self.norm(self.dropout(sublayer(x)))"},
    why=_("Post-norm normalizes the sum, and not what is added to it."),
    see="encoder-two-placements",
)
wrong_edit(
    "Residual",
    "no_norm",
    {PRE: "return x + self.dropout(sublayer(x))", POST: "return x + self.dropout(sublayer(x))"},
    why=_("The norm is built and never used."),
    see="encoder-two-placements",
)
wrong_edit(
    "Residual",
    "normalized_twice",
    {PRE: "return self.norm(x + self.dropout(sublayer(self.norm(x))))"},
    why=_("The sum is normalized as well: the residual stream no longer runs free."),
    see="encoder-two-placements",
)
wrong_edit(
    "Residual",
    "sum_dropped",
    {PRE: "return self.dropout(x + sublayer(self.norm(x)))",
     POST: "return self.norm(self.dropout(x + sublayer(x)))"},
    why=_("Dropout falls on the sum, x included: the road around the sub-layer has holes."),
    see="encoder-dropout",
    rung=2,
)  # fmt: skip
wrong_edit(
    "Residual",
    "sublayer_input_dropped",
    {PRE: "return x + sublayer(self.dropout(self.norm(x)))",
     POST: "return self.norm(x + sublayer(self.dropout(x)))"},
    why=_("Dropout falls on what the sub-layer is given, not on what it gives."),
    see="encoder-dropout",
    rung=2,
)  # fmt: skip
wrong_edit(
    "Residual",
    "nothing_dropped",
    {PRE: "return x + sublayer(self.norm(x))", POST: "return self.norm(x + sublayer(x))"},
    why=_("The argument dropout does nothing."),
    see="encoder-dropout",
    rung=2,
)
wrong_edit(
    "Residual",
    "dropped_in_evaluation",
    {"self.dropout = nn.Dropout(dropout)": "self.p = dropout",
     PRE: "return x + nn.functional.dropout(sublayer(self.norm(x)), self.p)",
     POST: "return self.norm(x + nn.functional.dropout(sublayer(x), self.p))"},
    why=_(
        "The function nn.functional.dropout drops in evaluation too unless it is handed "
        "self.training."
    ),
    see="encoder-dropout",
    rung=2,
)  # fmt: skip
wrong_edit(
    "Residual",
    "post_norm_without_dropout",
    {POST: "return self.norm(x + sublayer(x))"},
    why=_("Dropout is used with pre-norm and forgotten with post-norm."),
    see="encoder-dropout",
    rung=2,
)
wrong_edit(
    "Residual",
    "dropout_after_the_norm",
    {POST: "return self.dropout(self.norm(x + sublayer(x)))"},
    why=_("With post-norm the norm is the end: dropout belongs to what the sub-layer gives."),
    see="encoder-dropout",
    rung=2,
)
wrong_edit(
    "Residual",
    "x_added_in_place",
    {PRE: "x += self.dropout(sublayer(self.norm(x.clone())))\n            return x",
     POST: "x += self.dropout(sublayer(x.clone()))\n        return self.norm(x)"},
    why=_("x += … changes the caller's tensor, and fails where a gradient is wanted."),
    see="encoder-residual-connection",
)  # fmt: skip
wrong_edit(
    "Residual",
    "sublayer_called_twice",
    {PRE: "return x + 0.5 * self.dropout(sublayer(self.norm(x)) + sublayer(self.norm(x)))",
     POST: "return self.norm(x + 0.5 * self.dropout(sublayer(x) + sublayer(x)))"},
    why=_("The sub-layer is called twice: the same result at twice the cost."),
    see="encoder-residual-connection",
)  # fmt: skip
wrong_edit(
    "Residual",
    "sum_halved",
    {PRE: "return 0.5 * (x + self.dropout(sublayer(self.norm(x))))"},
    why=_("The sum is halved. Through N layers x then fades as 2 to the power -N."),
    see="encoder-residual-connection",
)
wrong_edit(
    "Residual",
    "x_detached",
    {PRE: "return x.detach() + self.dropout(sublayer(self.norm(x)))"},
    why=_("x is cut off from the graph: its value passes, its gradient does not."),
    see="encoder-residual-connection",
    rung=1,
)
wrong_edit(
    "Residual",
    "sublayer_never_called",
    {PRE: "return x", POST: "return self.norm(x)"},
    why=_("The sub-layer is never called."),
    see="encoder-residual-connection",
)
wrong_edit(
    "Residual",
    "post_norm_by_default",
    {"norm_first: bool = True": "norm_first: bool = False"},
    why=_("The default of norm_first is True."),
    see="encoder-two-placements",
)

wrong_edit(
    "Residual",
    "norm_on_x_alone",
    {POST: "return self.norm(x) + self.dropout(sublayer(x))"},
    why=_("Post-norm normalizes the sum; here only x is normalized and the branch is added after."),
    see="encoder-two-placements",
)
wrong_edit(
    "Residual",
    "x_dropped_in_post_norm",
    {POST: "return self.norm(self.dropout(x) + sublayer(x))"},
    why=_("In post-norm dropout falls on x and not on what the sub-layer gives."),
    see="encoder-dropout",
    rung=2,
)
wrong_edit(
    "Residual",
    "branch_subtracted",
    {PRE: "return x - self.dropout(sublayer(self.norm(x)))",
     POST: "return self.norm(x - self.dropout(sublayer(x)))"},
    why=_("The branch is subtracted. A sub-layer could learn to live with it; the formula adds."),
    see="encoder-residual-connection",
)  # fmt: skip
wrong_edit(
    "Residual",
    "dropped_twice",
    {PRE: "return x + self.dropout(sublayer(self.dropout(self.norm(x))))",
     POST: "return self.norm(x + self.dropout(sublayer(self.dropout(x))))"},
    why=_("Dropout falls on what the sub-layer is given as well as on what it gives."),
    see="encoder-dropout",
    rung=2,
)  # fmt: skip

wrong_edit(
    "Residual",
    "sum_dropped_in_post_norm",
    {POST: "return self.norm(self.dropout(x + sublayer(x)))"},
    why=_(
        "In post-norm dropout falls on the sum, x included; it belongs to what the sub-layer gives."
    ),
    see="encoder-dropout",
    rung=2,
)
wrong_edit(
    "Residual",
    "post_norm_hands_norm_of_x",
    {POST: "return self.norm(x + self.dropout(sublayer(self.norm(x))))"},
    why=_("With post-norm the sub-layer reads x as it is; the norm is of the sum alone."),
    see="encoder-two-placements",
    rung=1,
)
wrong_edit(
    "Residual",
    "dropout_fixed_at_a_tenth",
    {"nn.Dropout(dropout)": "nn.Dropout(0.1)"},
    why=_("The probability is the argument, 0 by default; here it is 0.1 always."),
    see="encoder-dropout",
    rung=2,
)
wrong_edit(
    "Residual",
    "rms_norm_inside",
    {"self.norm = LayerNorm(D)": "self.norm = RMSNorm(D)"},
    why=_("The norm is RMSNorm; the docstring asks for LayerNorm."),
    see="encoder-two-placements",
    rung=1,
)
wrong_edit(
    "Residual",
    "sum_divided_by_root_two",
    {PRE: "return (x + self.dropout(sublayer(self.norm(x)))) / 2**0.5"},
    why=_("The sum is divided. Through N layers x then fades."),
    see="encoder-residual-connection",
    rung=1,
)
wrong_edit(
    "Residual",
    "pre_norm_without_dropout",
    {PRE: "return x + sublayer(self.norm(x))"},
    why=_("Dropout is used with post-norm and forgotten with pre-norm."),
    see="encoder-dropout",
    rung=2,
)
wrong_edit(
    "Residual",
    "sequences_dropped_whole",
    {
        PRE: "return x + sublayer(self.norm(x)) * self.dropout(torch.ones(x.size(0), 1, 1))",
        POST: "return self.norm(x + sublayer(x) * self.dropout(torch.ones(x.size(0), 1, 1)))",
    },
    why=_("The whole branch of a sequence is dropped or kept. Each number is drawn by itself."),
    see="encoder-dropout",
    rung=2,
)
wrong_edit(
    "Residual",
    "positions_dropped_whole",
    {
        PRE: "return x + sublayer(self.norm(x)) * self.dropout(torch.ones(*x.shape[:2], 1))",
        POST: "return self.norm(x + sublayer(x) * self.dropout(torch.ones(*x.shape[:2], 1)))",
    },
    why=_("The whole vector of a position is dropped or kept. Each number is drawn by itself."),
    see="encoder-dropout",
    rung=2,
)
wrong_edit(
    "Residual",
    "branch_detached",
    {PRE: "return x + self.dropout(sublayer(self.norm(x.detach())))"},
    why=_("The branch is cut off from x: the layers below learn nothing through this sub-layer."),
    see="encoder-residual-connection",
    rung=2,
)
wrong_edit(
    "Residual",
    "branch_detached_in_post_norm",
    {POST: "return self.norm(x + self.dropout(sublayer(x.detach())))"},
    form_of="branch_detached",
    why=_(
        "With post-norm the branch is cut off from x: the layers below learn nothing through this sub-layer."
    ),
    see="encoder-residual-connection",
    rung=2,
)
wrong_edit(
    "Residual",
    "sum_dropped_in_pre_norm",
    {PRE: "return self.dropout(x + sublayer(self.norm(x)))"},
    form_of="sum_dropped",
    why=_(
        "In pre-norm dropout falls on the sum, x included: the road around the sub-layer has holes."
    ),
    see="encoder-dropout",
    rung=2,
)
wrong_edit(
    "Residual",
    "sublayer_input_dropped_in_pre_norm",
    {PRE: "return x + sublayer(self.dropout(self.norm(x)))"},
    form_of="sublayer_input_dropped",
    why=_("In pre-norm dropout falls on what the sub-layer is given, not on what it gives."),
    see="encoder-dropout",
    rung=2,
)
wrong_edit(
    "Residual",
    "sequences_dropped_whole_in_pre_norm",
    {PRE: "return x + sublayer(self.norm(x)) * self.dropout(torch.ones(x.size(0), 1, 1))"},
    form_of="sequences_dropped_whole",
    why=_("The whole branch of a sequence is dropped or kept. Each number is drawn by itself."),
    see="encoder-dropout",
    rung=2,
)
wrong_edit(
    "Residual",
    "positions_dropped_whole_in_pre_norm",
    {PRE: "return x + sublayer(self.norm(x)) * self.dropout(torch.ones(*x.shape[:2], 1))"},
    form_of="positions_dropped_whole",
    why=_("The whole vector of a position is dropped or kept. Each number is drawn by itself."),
    see="encoder-dropout",
    rung=2,
)
wrong_edit(
    "Residual",
    "sum_detached",
    {POST: "return self.norm((x + self.dropout(sublayer(x))).detach())"},
    why=_("The sum is cut off from the graph: nothing below the norm learns."),
    see="encoder-residual-connection",
    rung=2,
)
wrong_edit(
    "Residual",
    "a_norm_for_each_placement",
    {
        "self.norm = LayerNorm(D)": "self.norm = LayerNorm(D)\n        self.other = LayerNorm(D)",
        POST: POST.replace("self.norm", "self.other"),
    },
    why=_(
        "There are two norms, one for each placement. One is enough, called norm: the other never learns."
    ),
    see="encoder-two-placements",
    rung=1,
)
wrong_edit(
    "Residual",
    "branch_multiplied",
    {PRE: "return x * (1 + self.dropout(sublayer(self.norm(x))))"},
    why=_("x is multiplied by the branch; the formula adds it."),
    see="encoder-residual-connection",
    rung=1,
)
wrong_edit(
    "Residual",
    "scaled_in_evaluation",
    {
        PRE: "scale = 1 if self.training else 1 - self.dropout.p\n            return x + scale * self.dropout(sublayer(self.norm(x)))"
    },
    why=_(
        "In evaluation the branch is made smaller by 1 - p. Dropout has enlarged what it kept in training already."
    ),
    see="encoder-dropout",
    rung=2,
)
wrong_edit(
    "Residual",
    "norm_without_gain",
    {"self.norm = LayerNorm(D)": "self.norm = nn.LayerNorm(D, elementwise_affine=False)"},
    why=_("The norm has no gain and no shift; the docstring asks for LayerNorm(D)."),
    see="encoder-two-placements",
    rung=1,
)
right_edit("Residual", "dropout_by_function", {
    "self.dropout = nn.Dropout(dropout)": "self.p = dropout",
    PRE: "return nn.functional.dropout(sublayer(self.norm(x)), self.p, self.training) + x",
    POST: "return self.norm(nn.functional.dropout(sublayer(x), self.p, self.training) + x)",
}, style="dropout by function")  # fmt: skip


@right("Residual", style="Identity in the place that has no norm")
class two_places(nn.Module):
    def __init__(self, D, dropout=0.0, norm_first=True):
        super().__init__()
        self.norm = LayerNorm(D)
        self.drop = nn.Dropout(dropout)
        self.first = norm_first

    def forward(self, x, sublayer):
        before = self.norm if self.first else (lambda h: h)
        after = (lambda h: h) if self.first else self.norm
        branch = self.drop(sublayer(before(x)))
        return after(torch.add(x, branch))


@right("Residual", style="torch's norm, method chosen at the start")
class chosen_at_the_start(nn.Module):
    def __init__(self, D, dropout=0.0, norm_first=True):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.dropout = nn.Dropout(dropout)
        self.way = self.pre if norm_first else self.post

    def pre(self, x, sublayer):
        h = sublayer(self.norm(x))
        return x.clone().add_(self.dropout(h))

    def post(self, x, sublayer):
        return self.norm(self.dropout(sublayer(x)).add(x))

    def forward(self, x, sublayer):
        return self.way(x, sublayer)


# --- post_norm_block: bug finding -----------------------------------------------------------------

FAULTS = _(
    "Sold as post-norm, the code normalizes before the sub-layer and adds x untouched: that is "
    "pre-norm."
)
DIVISOR = _("torch.std divides by D - 1: the variance of the docstring is the biased one.")
OUTSIDE = _("ε is added to the deviation; the docstring adds it to the variance, under the root.")


@wrong(
    "post_norm_block",
    why=FAULTS + " " + DIVISOR + " " + OUTSIDE,
    see="encoder-reading-a-layer",
    given=True,
)
def three_faults(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        mean = x.mean(dim=-1, keepdim=True)
        deviation = x.std(dim=-1, keepdim=True)
        normal = gain[i] * (x - mean) / (deviation + eps) + shift[i]
        x = x + sublayer(normal)
    return x


@wrong("post_norm_block", why=DIVISOR + " " + OUTSIDE, see="encoder-layer-norm", rung=2)
def only_the_order_mended(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        y = x + sublayer(x)
        mean, deviation = y.mean(dim=-1, keepdim=True), y.std(dim=-1, keepdim=True)
        x = gain[i] * (y - mean) / (deviation + eps) + shift[i]
    return x


@wrong("post_norm_block", why=FAULTS + " " + OUTSIDE, see="encoder-two-placements")
def only_the_divisor_mended(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        mean = x.mean(dim=-1, keepdim=True)
        deviation = x.std(dim=-1, correction=0, keepdim=True)
        x = x + sublayer(gain[i] * (x - mean) / (deviation + eps) + shift[i])
    return x


@wrong("post_norm_block", why=FAULTS + " " + DIVISOR, see="encoder-two-placements")
def only_epsilon_mended(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        mean, variance = x.mean(dim=-1, keepdim=True), x.var(dim=-1, keepdim=True)
        x = x + sublayer(gain[i] * (x - mean) / torch.sqrt(variance + eps) + shift[i])
    return x


@wrong("post_norm_block", why=OUTSIDE, see="encoder-epsilon", rung=3)
def epsilon_left(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        y = x + sublayer(x)
        mean, deviation = y.mean(dim=-1, keepdim=True), y.std(dim=-1, correction=0, keepdim=True)
        x = gain[i] * (y - mean) / (deviation + eps) + shift[i]
    return x


@wrong("post_norm_block", why=DIVISOR, see="encoder-layer-norm", rung=2)
def divisor_left(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        y = x + sublayer(x)
        mean, variance = y.mean(dim=-1, keepdim=True), y.var(dim=-1, keepdim=True)
        x = gain[i] * (y - mean) / torch.sqrt(variance + eps) + shift[i]
    return x


@wrong("post_norm_block", why=FAULTS, see="encoder-two-placements")
def order_left(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        mean, variance = x.mean(dim=-1, keepdim=True), x.var(dim=-1, correction=0, keepdim=True)
        x = x + sublayer(gain[i] * (x - mean) / torch.sqrt(variance + eps) + shift[i])
    return x


@wrong(
    "post_norm_block",
    why=_(
        "The sub-layer is given norm(x), and its sum with x is normalized again: half of each kind."
    ),
    see="encoder-two-placements",
)
def norm_before_and_after(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    def norm(y, i):
        var, mean = torch.var_mean(y, dim=-1, correction=0, keepdim=True)
        return (y - mean) / torch.sqrt(var + eps) * gain[i] + shift[i]

    x = norm(x + attend(norm(x, 0)), 0)
    return norm(x + feed_forward(norm(x, 1)), 1)


@wrong(
    "post_norm_block",
    why=_("What the sub-layer gives is normalized, and x is added behind the norm."),
    see="encoder-two-placements",
)
def norm_inside_the_sum(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        y = sublayer(x)
        var, mean = torch.var_mean(y, dim=-1, correction=0, keepdim=True)
        x = x + (y - mean) / torch.sqrt(var + eps) * gain[i] + shift[i]
    return x


@wrong(
    "post_norm_block",
    why=_("x is no longer added: mending the order has cost the residual."),
    see="encoder-residual-connection",
)
def residual_lost(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        y = sublayer(x)
        var, mean = torch.var_mean(y, dim=-1, correction=0, keepdim=True)
        x = (y - mean) / torch.sqrt(var + eps) * gain[i] + shift[i]
    return x


@wrong(
    "post_norm_block",
    why=_("ε is fixed at 1e-5 on the way: the argument does nothing."),
    see="encoder-epsilon",
    rung=3,
)
def epsilon_not_the_argument(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        y = x + sublayer(x)
        var, mean = torch.var_mean(y, dim=-1, correction=0, keepdim=True)
        x = (y - mean) / torch.sqrt(var + 1e-5) * gain[i] + shift[i]
    return x


@wrong(
    "post_norm_block",
    why=_("Both norms use the first gain and shift."),
    see="encoder-reading-a-layer",
)
def one_gain_for_both(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for sublayer in (attend, feed_forward):
        y = x + sublayer(x)
        var, mean = torch.var_mean(y, dim=-1, correction=0, keepdim=True)
        x = (y - mean) / torch.sqrt(var + eps) * gain[0] + shift[0]
    return x


@wrong(
    "post_norm_block",
    why=_("The shift is added before the gain multiplies: shift comes last."),
    see="encoder-layer-norm",
)
def shift_before_gain(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        y = x + sublayer(x)
        var, mean = torch.var_mean(y, dim=-1, correction=0, keepdim=True)
        x = ((y - mean) / torch.sqrt(var + eps) + shift[i]) * gain[i]
    return x


@wrong(
    "post_norm_block",
    why=_("x is normalized before the sub-layer is added, and its sum not at all."),
    see="encoder-two-placements",
)
def norm_before_the_sum(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        var, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
        x = (x - mean) / torch.sqrt(var + eps) * gain[i] + shift[i]
        x = x + sublayer(x)
    return x


@wrong(
    "post_norm_block",
    why=_("There is one norm at the end; post-norm has one behind each of the two sub-layers."),
    see="encoder-two-placements",
)
def one_norm_at_the_end(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    x = x + attend(x)
    x = x + feed_forward(x)
    var, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(var + eps) * gain[1] + shift[1]


@wrong(
    "post_norm_block",
    why=_("ε is added under the root and once more outside it."),
    see="encoder-epsilon",
    rung=3,
)
def epsilon_in_both_places(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        y = x + sublayer(x)
        var, mean = torch.var_mean(y, dim=-1, correction=0, keepdim=True)
        x = (y - mean) / (torch.sqrt(var + eps) + eps) * gain[i] + shift[i]
    return x


@wrong(
    "post_norm_block",
    why=_("x += … changes the caller's tensor, and fails where a gradient is wanted."),
    see="encoder-reading-a-layer",
    rung=2,
)
def x_overwritten(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        x += sublayer(x)
        y = x
        var, mean = torch.var_mean(y, dim=-1, correction=0, keepdim=True)
        x = (y - mean) / torch.sqrt(var + eps) * gain[i] + shift[i]
    return x


@wrong(
    "post_norm_block",
    why=_("In mending, the gain was lost."),
    see="encoder-reading-a-layer",
    rung=1,
)
def gain_lost(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        y = x + sublayer(x)
        var, mean = torch.var_mean(y, dim=-1, correction=0, keepdim=True)
        x = (y - mean) / torch.sqrt(var + eps) + shift[i]
    return x


@wrong(
    "post_norm_block",
    why=_("In mending, the shift was lost."),
    see="encoder-reading-a-layer",
    rung=1,
)
def shift_lost(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        y = x + sublayer(x)
        var, mean = torch.var_mean(y, dim=-1, correction=0, keepdim=True)
        x = (y - mean) / torch.sqrt(var + eps) * gain[i]
    return x


@wrong(
    "post_norm_block",
    why=_(
        "The feed-forward network comes first. What is right already must stay: attention comes first."
    ),
    see="encoder-reading-a-layer",
    rung=1,
)
def sublayers_exchanged(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((feed_forward, attend)):
        y = x + sublayer(x)
        var, mean = torch.var_mean(y, dim=-1, correction=0, keepdim=True)
        x = (y - mean) / torch.sqrt(var + eps) * gain[i] + shift[i]
    return x


@wrong(
    "post_norm_block",
    why=_(
        "A norm was added at the end, so that mean and variance look right. Inside it is still pre-norm, with both faults."
    ),
    see="encoder-two-placements",
    rung=1,
)
def a_norm_added_at_the_end(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        mean = x.mean(dim=-1, keepdim=True)
        deviation = x.std(dim=-1, keepdim=True)
        x = x + sublayer(gain[i] * (x - mean) / (deviation + eps) + shift[i])
    return (x - x.mean(dim=-1, keepdim=True)) / x.std(dim=-1, keepdim=True)


@wrong(
    "post_norm_block",
    why=_(
        "The gain multiplies y before the mean is subtracted: a bracket was lost. It multiplies what is normalized."
    ),
    see="encoder-layer-norm",
    rung=2,
)
def gain_before_the_mean(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        y = x + sublayer(x)
        var, mean = torch.var_mean(y, dim=-1, correction=0, keepdim=True)
        x = (gain[i] * y - mean) / torch.sqrt(var + eps) + shift[i]
    return x


@wrong(
    "post_norm_block",
    why=_("ε is squared before it is added."),
    see="encoder-epsilon",
    rung=3,
)
def epsilon_squared(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        y = x + sublayer(x)
        var, mean = torch.var_mean(y, dim=-1, correction=0, keepdim=True)
        x = (y - mean) / torch.sqrt(var + eps**2) * gain[i] + shift[i]
    return x


@wrong(
    "post_norm_block",
    why=_("Divided is by the variance, not by its root."),
    see="encoder-layer-norm",
    rung=2,
)
def root_forgotten(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        y = x + sublayer(x)
        var, mean = torch.var_mean(y, dim=-1, correction=0, keepdim=True)
        x = (y - mean) / (var + eps) * gain[i] + shift[i]
    return x


@wrong(
    "post_norm_block",
    why=_(
        "Row 0 of gain and shift belongs to the first norm, row 1 to the second; here they are exchanged."
    ),
    see="encoder-reading-a-layer",
    rung=1,
)
def gains_exchanged(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for i, sublayer in enumerate((attend, feed_forward)):
        y = x + sublayer(x)
        var, mean = torch.var_mean(y, dim=-1, correction=0, keepdim=True)
        x = (y - mean) / torch.sqrt(var + eps) * gain[1 - i] + shift[1 - i]
    return x


@wrong(
    "post_norm_block",
    why=_("The first sub-layer is post-norm now, the second still pre-norm."),
    see="encoder-two-placements",
    rung=1,
)
def second_half_still_pre_norm(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    def norm(y, i):
        var, mean = torch.var_mean(y, dim=-1, correction=0, keepdim=True)
        return (y - mean) / torch.sqrt(var + eps) * gain[i] + shift[i]

    x = norm(x + attend(x), 0)
    return x + feed_forward(norm(x, 1))


@wrong(
    "post_norm_block",
    why=_("The second residual adds the first x, and not what went into the second sub-layer."),
    see="encoder-residual-connection",
    rung=2,
)
def first_x_added_twice(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    start = x
    for i, sublayer in enumerate((attend, feed_forward)):
        y = start + sublayer(x)
        var, mean = torch.var_mean(y, dim=-1, correction=0, keepdim=True)
        x = (y - mean) / torch.sqrt(var + eps) * gain[i] + shift[i]
    return x


@right("post_norm_block", style="two steps written out")
def two_steps(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    def norm(y, g, b):
        centred = y - y.mean(-1, keepdim=True)
        return g * centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps) + b

    x = norm(attend(x) + x, gain[0], shift[0])
    return norm(feed_forward(x) + x, gain[1], shift[1])


@right("post_norm_block", style="the deviation kept, its square taken")
def deviation_squared(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    for g, b, sublayer in zip(gain, shift, (attend, feed_forward)):
        x = x + sublayer(x)
        mean = x.mean(dim=-1, keepdim=True)
        deviation = torch.sqrt(x.var(dim=-1, unbiased=False, keepdim=True) + eps)
        x = g * (x - mean) / deviation + b
    return x


@right("post_norm_block", style="float64 inside")
def float64_inside(x, attend, feed_forward, gain, shift, *, eps=1e-5):
    layers = [LayerNorm(x.size(-1), eps).double() for _i in range(2)]
    for layer, g, b, f in zip(layers, gain, shift, (attend, feed_forward)):
        y = (x + f(x)).double()
        del layer.weight, layer.bias
        layer.weight, layer.bias = g.double(), b.double()
        x = layer(y).to(x.dtype)
    return x


# --- pre_norm_test: test writing ------------------------------------------------------------------


@wrong(
    "pre_norm_test",
    why=_(
        "Everything passes: what the test asserts does not depend on the numbers that are wrong."
    ),
    see="encoder-testing-a-norm",
)
def lets_everything_through(residual):
    x = torch.randn(2, 3, 4)
    assert residual(x, torch.randn(4, 4)).shape == x.shape


@wrong(
    "pre_norm_test",
    why=_("There is no assertion: the test lets everything through."),
    see="encoder-testing-a-norm",
)
def asserts_nothing(residual):
    x, w = torch.randn(2, 3, 4), torch.randn(4, 4)
    expected = x + nn.functional.layer_norm(x, (4,)) @ w
    return torch.allclose(residual(x, w), expected)


@wrong(
    "pre_norm_test",
    why=_("The test turns everything away."),
    see="encoder-testing-a-norm",
)
def rejects_everything(residual):
    raise AssertionError


@wrong(
    "pre_norm_test",
    why=_(
        "What the norm does is never asked. A weight of zeros, say, tells pre-norm from post-norm, "
        "but it multiplies everything else by zero."
    ),
    see="encoder-testing-a-norm",
)
def norm_never_asked(residual):
    x = torch.randn(2, 3, 4)
    assert torch.allclose(residual(x, torch.zeros(4, 4)), x, atol=1e-6)


@wrong(
    "pre_norm_test",
    why=_("Only mean and variance of the result are asked for, which pre-norm does not promise."),
    see="encoder-two-placements",
)
def expects_a_normalized_result(residual):
    x, w = torch.randn(2, 3, 64), torch.randn(64, 64) / 8
    y = residual(x, w)
    assert torch.allclose(y.mean(-1), torch.zeros(2, 3), atol=1e-3)
    assert torch.allclose(y.var(-1, correction=0), torch.ones(2, 3), atol=1e-2)


@wrong(
    "pre_norm_test",
    why=_("The test expects post-norm: it turns away what is right."),
    see="encoder-two-placements",
)
def expects_post_norm(residual):
    x, w = torch.randn(2, 3, 4), torch.randn(4, 4)
    assert torch.allclose(residual(x, w), nn.functional.layer_norm(x + x @ w, (4,)), atol=1e-4)


@wrong(
    "pre_norm_test",
    why=_("An ε outside the root passes: no row varies so little that its place shows."),
    see="encoder-epsilon",
    rung=2,
)
def epsilon_invisible(residual):
    noise = torch.Generator().manual_seed(1)
    x, w = torch.randn(2, 3, 4, generator=noise), torch.randn(4, 4, generator=noise)
    assert torch.allclose(
        residual(x, w), x + nn.functional.layer_norm(x, (4,)) @ w, atol=1e-3, rtol=1e-3
    )


@wrong(
    "pre_norm_test",
    why=_(
        "A variance divided by D - 1 passes. The rows are so wide, or the tolerance is so loose, that "
        "it does not show: take rows of three or four numbers."
    ),
    see="encoder-layer-norm",
    rung=2,
)
def divisor_invisible(residual):
    noise = torch.Generator().manual_seed(1)
    for size in (1.0, 3e-3):
        x = size * torch.randn(2, 3, 512, generator=noise)
        w = torch.randn(512, 512, generator=noise) / 512**0.5
        expected = x + nn.functional.layer_norm(x, (512,)) @ w
        assert torch.allclose(residual(x, w), expected, atol=1e-2)


@wrong(
    "pre_norm_test",
    why=_(
        "The numbers are compared for equality: right code that rounds otherwise is turned away."
    ),
    see="encoder-testing-a-norm",
    rung=2,
)
def compares_exactly(residual):
    noise = torch.Generator().manual_seed(1)
    for size in (1.0, 3e-3):
        x, w = size * torch.randn(2, 3, 4, generator=noise), torch.randn(4, 4, generator=noise)
        mean = x.double().mean(-1, keepdim=True)
        variance = x.double().var(-1, correction=0, keepdim=True)
        expected = x + (x - mean) / torch.sqrt(variance + 1e-5) @ w.double()
        assert torch.equal(residual(x, w), expected.float())


@wrong(
    "pre_norm_test",
    why=_(
        "Statistics over another axis pass: with one sentence of one position, all axes are one."
    ),
    see="encoder-testing-a-norm",
    rung=2,
)
def axes_invisible(residual):
    noise = torch.Generator().manual_seed(1)
    for size in (1.0, 3e-3):
        x = size * torch.randn(1, 1, 4, generator=noise) + torch.randn(1, 1, 1, generator=noise)
        w = torch.randn(4, 4, generator=noise)
        expected = x + nn.functional.layer_norm(x, (4,)) @ w
        found = residual(x, w)
        assert found.shape == x.shape
        assert torch.allclose(found, expected, atol=1e-3)


@wrong(
    "pre_norm_test",
    why=_("A norm that subtracts no mean passes: the rows have mean 0, so that it cannot be seen."),
    see="encoder-rms-norm",
    rung=2,
)
def mean_invisible(residual):
    noise = torch.Generator().manual_seed(1)
    for size in (1.0, 3e-3):
        x = torch.randn(2, 3, 4, generator=noise)
        x = size * (x - x.mean(-1, keepdim=True))
        w = torch.randn(4, 4, generator=noise)
        expected = x + nn.functional.layer_norm(x, (4,)) @ w
        assert torch.allclose(residual(x, w), expected, atol=1e-3)


@wrong(
    "pre_norm_test",
    why=_("Whether x is added is never asked: the difference to x is normalized away."),
    see="encoder-residual-connection",
)
def only_the_branch(residual):
    noise = torch.Generator().manual_seed(1)
    x = torch.randn(2, 3, 4, generator=noise)
    found = residual(x, torch.eye(4)) - x
    assert torch.allclose(found.mean(-1), torch.zeros(2, 3), atol=1e-3) or torch.allclose(
        (found + x).mean(-1), torch.zeros(2, 3), atol=1e-3
    )


@wrong(
    "pre_norm_test",
    why=_(
        "With the identity for a weight, norm(x) @ weight and norm(x @ weight) are the same, so that "
        "a norm in the wrong place passes."
    ),
    see="encoder-testing-a-norm",
    rung=2,
)
def weight_is_the_identity(residual):
    noise = torch.Generator().manual_seed(1)
    for size in (1.0, 3e-3):
        x = size * torch.randn(2, 3, 4, generator=noise) + torch.randn(2, 3, 1, generator=noise)
        expected = x + nn.functional.layer_norm(x, (4,))
        assert torch.allclose(residual(x, torch.eye(4)), expected, atol=1e-3)


@wrong(
    "pre_norm_test",
    why=_("The tolerance is so wide that even wrong results lie within it."),
    see="encoder-testing-a-norm",
    rung=2,
)
def tolerance_too_wide(residual):
    noise = torch.Generator().manual_seed(1)
    x, w = torch.randn(2, 3, 4, generator=noise), torch.randn(4, 4, generator=noise)
    assert torch.allclose(residual(x, w), x + nn.functional.layer_norm(x, (4,)) @ w, atol=1.0)


@wrong(
    "pre_norm_test",
    why=_(
        "With a symmetric weight, weight and its transpose are the same: one that takes the wrong one passes."
    ),
    see="encoder-testing-a-norm",
    rung=2,
)
def weight_is_symmetric(residual):
    noise = torch.Generator().manual_seed(1)
    for size in (1.0, 3e-3):
        x = size * torch.randn(2, 3, 4, generator=noise) + torch.randn(2, 3, 1, generator=noise)
        w = torch.randn(4, 4, generator=noise)
        w = w + w.T
        expected = x + nn.functional.layer_norm(x, (4,)) @ w
        assert torch.allclose(residual(x, w), expected, atol=1e-3)


@wrong(
    "pre_norm_test",
    why=_("One row of one sentence is compared: what is wrong elsewhere passes."),
    see="encoder-testing-a-norm",
    rung=2,
)
def one_row_compared(residual):
    noise = torch.Generator().manual_seed(1)
    for size in (1.0, 3e-3):
        x = size * torch.randn(2, 3, 4, generator=noise) + torch.randn(2, 3, 1, generator=noise)
        w = torch.randn(4, 4, generator=noise)
        expected = x + nn.functional.layer_norm(x, (4,)) @ w
        assert torch.allclose(residual(x, w)[0, 0], expected[0, 0], atol=1e-3)


@wrong(
    "pre_norm_test",
    why=_(
        "The mean of all numbers is compared: numbers that change places, or errors that cancel, pass."
    ),
    see="encoder-testing-a-norm",
    rung=2,
)
def means_compared(residual):
    noise = torch.Generator().manual_seed(1)
    for size in (1.0, 3e-3):
        x = size * torch.randn(2, 3, 4, generator=noise) + torch.randn(2, 3, 1, generator=noise)
        w = torch.randn(4, 4, generator=noise)
        expected = x + nn.functional.layer_norm(x, (4,)) @ w
        assert (residual(x, w).mean() - expected.mean()).abs() < 1e-3


@wrong(
    "pre_norm_test",
    why=_(
        "All rows are so small that x itself drowns in the tolerance: whether it is added is not seen. Take rows that vary by 1 as well."
    ),
    see="encoder-testing-a-norm",
    rung=2,
)
def small_rows_alone(residual):
    noise = torch.Generator().manual_seed(1)
    x, w = 1e-3 * torch.randn(2, 3, 4, generator=noise), torch.randn(4, 4, generator=noise)
    expected = x + nn.functional.layer_norm(x, (4,)) @ w
    assert torch.allclose(residual(x, w), expected, atol=1e-2)


@wrong(
    "pre_norm_test",
    why=_(
        "The formula that the test compares with is wrong itself: torch's var divides by D - 1. Right code is turned away and the wrong divisor passes."
    ),
    see="encoder-layer-norm",
    rung=2,
)
def own_reference_is_unbiased(residual):
    noise = torch.Generator().manual_seed(1)
    for size in (1.0, 3e-3):
        x = size * torch.randn(2, 3, 4, generator=noise) + torch.randn(2, 3, 1, generator=noise)
        w = torch.randn(4, 4, generator=noise)
        mean, variance = x.mean(dim=-1, keepdim=True), x.var(dim=-1, keepdim=True)
        expected = x + (x - mean) / torch.sqrt(variance + 1e-5) @ w
        assert torch.allclose(residual(x, w), expected, atol=1e-3)


@wrong(
    "pre_norm_test",
    why=_(
        "It is asked that 3x + 2 gives the branch that x gives. A norm with another divisor, or over another axis, does that too: compare with numbers."
    ),
    see="encoder-testing-a-norm",
    rung=2,
)
def invariance_alone(residual):
    noise = torch.Generator().manual_seed(1)
    x, w = torch.randn(2, 3, 4, generator=noise), torch.randn(4, 4, generator=noise)
    one, other = residual(x, w) - x, residual(3 * x + 2, w) - (3 * x + 2)
    assert torch.allclose(one, other, atol=1e-3)


@wrong(
    "pre_norm_test",
    form_of="compares_exactly",
    why=_(
        "The numbers are compared for equality: right code that rounds otherwise is turned away."
    ),
    see="encoder-testing-a-norm",
    rung=2,
)
def compares_exactly_in_float32(residual):
    noise = torch.Generator().manual_seed(1)
    for size in (1.0, 3e-3):
        x = size * torch.randn(2, 3, 4, generator=noise) + torch.randn(2, 3, 1, generator=noise)
        w = torch.randn(4, 4, generator=noise)
        mean = x.mean(dim=-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
        expected = x + (x - mean) / torch.sqrt(variance + 1e-5) @ w
        assert torch.equal(residual(x, w), expected)


@wrong(
    "pre_norm_test",
    why=_("There is one sentence in the batch: an implementation that mixes sentences up passes."),
    see="encoder-testing-a-norm",
    rung=2,
)
def one_sentence_alone(residual):
    noise = torch.Generator().manual_seed(1)
    for size in (1.0, 3e-3):
        x = size * torch.randn(1, 5, 4, generator=noise) + torch.randn(1, 5, 1, generator=noise)
        w = torch.randn(4, 4, generator=noise)
        expected = x + nn.functional.layer_norm(x, (4,)) @ w
        assert torch.allclose(residual(x, w), expected, atol=1e-3)


@wrong(
    "pre_norm_test",
    why=_("The sentences have one position: statistics over the positions as well pass."),
    see="encoder-testing-a-norm",
    rung=2,
)
def one_position_alone(residual):
    noise = torch.Generator().manual_seed(1)
    for size in (1.0, 3e-3):
        x = size * torch.randn(3, 1, 4, generator=noise) + torch.randn(3, 1, 1, generator=noise)
        w = torch.randn(4, 4, generator=noise)
        expected = x + nn.functional.layer_norm(x, (4,)) @ w
        assert torch.allclose(residual(x, w), expected, atol=1e-3)


@right("pre_norm_test", style="torch's layer norm on several sizes")
def against_torch(residual):
    torch.manual_seed(0)
    for scale in (1e-3, 1.0, 10.0):
        for shape in ((2, 3, 4), (5, 2, 3)):
            x = scale * torch.randn(shape) + torch.randn(shape[0], shape[1], 1)
            w = torch.randn(shape[-1], shape[-1])
            want = x + nn.functional.layer_norm(x, shape[-1:]) @ w
            assert torch.allclose(residual(x, w), want, atol=1e-3, rtol=1e-3)


@right("pre_norm_test", style="properties and three rows by hand")
def by_hand(residual):
    x = torch.tensor(
        [[[1.0, 3.0], [5.0, 5.0], [0.0, 0.002]], [[2.0, 8.0], [-1.0, 0.0], [4.0, 4.002]]]
    )
    assert torch.allclose(residual(x, torch.zeros(2, 2)), x)
    weight = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    branch = residual(x, weight) - x
    half = (x[..., 1] - x[..., 0]) / 2
    size = half / (half**2 + 1e-5).sqrt()
    assert torch.allclose(branch, torch.stack([-size, size], dim=-1) @ weight, atol=1e-3)


@right("pre_norm_test", style="a loop over the rows, float64, an if and a raise")
def row_after_row(residual):
    g = torch.Generator().manual_seed(3)
    x = torch.randn(3, 2, 5, generator=g, dtype=torch.float64)
    x[:, 1] *= 2e-3
    x += 1
    w = torch.randn(5, 5, generator=g, dtype=torch.float64)
    y = residual(x, w)
    for b in range(3):
        for t in range(2):
            row = x[b, t]
            n = (row - row.mean()) / (((row - row.mean()) ** 2).mean() + 1e-5) ** 0.5
            if not torch.allclose(y[b, t], row + n @ w, atol=1e-3):
                raise AssertionError(f"row {b}, {t}")


# --- EncoderLayer ---------------------------------------------------------------------------------

ATTEND = "x = self.residuals[0](x, lambda h: self.self_attention(h, mask=mask, **attention)[0])"
WORK = "return self.residuals[1](x, self.feed_forward)"
TWO = "self.residuals = nn.ModuleList(Residual(D, dropout, norm_first) for _ in range(2))"

wrong_edit(
    "EncoderLayer",
    "feed_forward_missing",
    {WORK: "return x"},
    why=_("The feed-forward network is built and never used."),
    see="encoder-one-layer",
)
wrong_edit(
    "EncoderLayer",
    "attention_missing",
    {ATTEND: "pass"},
    why=_("The attention is built and never used: no position sees another."),
    see="encoder-one-layer",
)
wrong_edit(
    "EncoderLayer",
    "feed_forward_first",
    {ATTEND: "x = self.residuals[1](x, self.feed_forward)",
     WORK: "return " + ATTEND.removeprefix("x = ")},
    why=_("The feed-forward network comes first; in the encoder attention does."),
    see="encoder-one-layer",
)  # fmt: skip
wrong_edit(
    "EncoderLayer",
    "one_norm_for_both",
    {WORK: "return self.residuals[0](x, self.feed_forward)"},
    why=_("Both sub-layers go through the first residual: they share a norm, the other is idle."),
    see="encoder-one-layer",
)
wrong_edit(
    "EncoderLayer",
    "residuals_swapped",
    {"self.residuals[0](x, lambda": "self.residuals[1](x, lambda",
     WORK: "return self.residuals[0](x, self.feed_forward)"},
    why=_("The first residual belongs to attention and the second to the feed-forward network."),
    see="encoder-one-layer",
)  # fmt: skip
wrong_edit(
    "EncoderLayer",
    "side_by_side",
    {ATTEND: "y" + ATTEND.removeprefix("x"),
     WORK: "return y + self.residuals[1](x, self.feed_forward) - x"},
    why=_(
        "Both sub-layers read the same x. Some models do that on purpose, to compute them at once; "
        "here the feed-forward network reads what attention made."
    ),
    see="encoder-one-layer",
)  # fmt: skip
wrong_edit(
    "EncoderLayer",
    "attention_outside_its_residual",
    {ATTEND: "x = self.self_attention(self.residuals[0].norm(x), mask=mask, **attention)[0]"},
    why=_("Attention has no residual around it: what a position was before is lost."),
    see="encoder-one-layer",
)
wrong_edit(
    "EncoderLayer",
    "feed_forward_outside_its_residual",
    {WORK: "return self.feed_forward(self.residuals[1].norm(x))"},
    why=_("The feed-forward network has no residual around it."),
    see="encoder-one-layer",
)
wrong_edit(
    "EncoderLayer",
    "x_added_twice",
    {ATTEND: "x = x + " + ATTEND.removeprefix("x = ")},
    why=_("The residual adds x already: here it is added once more."),
    see="encoder-one-layer",
)  # fmt: skip
wrong_edit(
    "EncoderLayer",
    "keys_not_normalized",
    {"self.self_attention(h, mask=mask": "self.self_attention(h, x, x, mask=mask"},
    why=_(
        "Queries come from norm(x), keys and values from x itself. In self-attention all three "
        "come from the same tensor: the one that the residual hands over."
    ),
    see="encoder-one-layer",
    rung=3,
)
wrong_edit(
    "EncoderLayer",
    "mask_dropped",
    {"mask=mask, ": ""},
    why=_("The mask never reaches the attention: padding is read as if it were text."),
    see="encoder-one-layer",
    rung=2,
)
wrong_edit(
    "EncoderLayer",
    "mask_inverted",
    {"mask=mask, ": "mask=None if mask is None else ~mask, "},
    why=_("True means allowed all through this book; here it is turned round."),
    see="encoder-one-layer",
    rung=2,
)
wrong_edit(
    "EncoderLayer",
    "arguments_dropped",
    {", **attention)[0]": ")[0]"},
    why=_("The further arguments are taken by forward and not handed on: a bias has no effect."),
    see="encoder-one-layer",
    rung=3,
)
wrong_edit(
    "EncoderLayer",
    "activation_not_handed_on",
    {"self.feed_forward = FeedForward(D, F, activation)": "self.feed_forward = FeedForward(D, F)"},
    why=_("The activation does not reach the feed-forward network."),
    see="encoder-one-layer",
)
wrong_edit(
    "EncoderLayer",
    "placement_not_handed_on",
    {"Residual(D, dropout, norm_first)": "Residual(D, dropout)"},
    why=_("norm_first does not reach the residuals: the layer is pre-norm always."),
    see="encoder-two-placements",
)
wrong_edit(
    "EncoderLayer",
    "dropout_not_handed_on",
    {"Residual(D, dropout, norm_first)": "Residual(D, norm_first=norm_first)"},
    why=_("The dropout does not reach both residuals, the first one at least."),
    see="encoder-dropout",
)
wrong_edit(
    "EncoderLayer",
    "dropout_in_one_residual",
    {TWO: "self.residuals = nn.ModuleList([Residual(D, dropout, norm_first), "
     "Residual(D, 0.0, norm_first)])"},
    why=_("Only one of the two residuals has the dropout."),
    see="encoder-dropout",
)  # fmt: skip
wrong_edit(
    "EncoderLayer",
    "weights_returned_too",
    {WORK: "return self.residuals[1](x, self.feed_forward), None"},
    why=_("A layer returns one tensor, so that the next layer can take it."),
    see="encoder-one-layer",
)
wrong_edit(
    "EncoderLayer",
    "width_of_feed_forward_fixed",
    {
        "self.feed_forward = FeedForward(D, F, activation)": "self.feed_forward = FeedForward("
        "D, 4 * D, activation)"
    },
    why=_("The width of the feed-forward network is the argument F."),
    see="encoder-one-layer",
)
wrong_edit(
    "EncoderLayer",
    "always_one_head",
    {
        "self.self_attention = MultiHeadAttention(D, H)": "self.self_attention = "
        "MultiHeadAttention(D, 1)"
    },
    why=_("The number of heads does not reach the attention. No shape tells; the scale does."),
    see="encoder-one-layer",
)
wrong_edit(
    "EncoderLayer",
    "x_comes_back",
    {WORK: "return x", ATTEND: "pass"},
    why=_("The layer gives back its input."),
    see="encoder-one-layer",
)
wrong_edit(
    "EncoderLayer",
    "feed_forward_twice",
    {WORK: "x = self.residuals[1](x, self.feed_forward)\n"
     "        return self.residuals[1](x, self.feed_forward)"},
    why=_("The feed-forward network is applied twice."),
    see="encoder-one-layer",
)  # fmt: skip

wrong_edit(
    "EncoderLayer",
    "normalized_x_added",
    {ATTEND: "h = self.residuals[0].norm(x)\n"
     "        x = h + self.self_attention(h, mask=mask, **attention)[0]",
     WORK: "h = self.residuals[1].norm(x)\n        return h + self.feed_forward(h)"},
    why=_("norm(x) is added where x should be, and norm_first is not asked for."),
    see="encoder-two-placements",
)  # fmt: skip
wrong_edit(
    "EncoderLayer",
    "mask_as_numbers",
    {"mask=mask, ": "mask=None if mask is None else mask.float(), "},
    why=_("The mask is turned into 0 and 1; the attention wants True and False."),
    see="encoder-one-layer",
    rung=2,
)
wrong_edit(
    "EncoderLayer",
    "mask_passed_as_keys",
    {"self.self_attention(h, mask=mask, ": "self.self_attention(h, mask, "},
    why=_("The second argument of the attention is the keys. The mask has to go by name."),
    see="encoder-one-layer",
    rung=2,
)
wrong_edit(
    "EncoderLayer",
    "values_not_normalized",
    {"self.self_attention(h, mask=mask": "self.self_attention(h, h, x, mask=mask"},
    why=_("Values come from x itself, queries and keys from norm(x); all three come from norm(x)."),
    see="encoder-one-layer",
    rung=3,
)
wrong_edit(
    "EncoderLayer",
    "second_sum_doubled",
    {WORK: "return x + self.residuals[1](x, self.feed_forward)"},
    why=_("The second residual adds its input already: here it is added once more."),
    see="encoder-one-layer",
)

wrong_edit(
    "EncoderLayer",
    "pair_given_to_the_residual",
    {ATTEND: ATTEND.replace("[0])", ")").replace("self.residuals(", "self.residuals[0](")},
    why=_(
        "The attention returns a pair, output and weights, and the residual was given both: it adds the first."
    ),
    see="encoder-one-layer",
    rung=1,
)
wrong_edit(
    "EncoderLayer",
    "weights_given_to_the_residual",
    {"**attention)[0]": "**attention)[1]"},
    why=_(
        "The second item of what the attention returns is its weights, (B, H, T, T); the residual adds the first."
    ),
    see="encoder-one-layer",
    rung=1,
)
wrong_edit(
    "EncoderLayer",
    "feed_forward_first_by_order",
    {
        ATTEND: "x = self.residuals[0](x, self.feed_forward)",
        WORK: "return " + ATTEND.removeprefix("x = ").replace("residuals[0]", "residuals[1]"),
    },
    form_of="feed_forward_first",
    why=_("The feed-forward network comes first; in the encoder attention does."),
    see="encoder-one-layer",
    rung=1,
)
wrong_edit(
    "EncoderLayer",
    "one_module_at_both_places",
    {TWO: "self.residuals = nn.ModuleList([Residual(D, dropout, norm_first)] * 2)"},
    form_of="one_norm_for_both",
    why=_("[residual] * 2 is the same object twice: both sub-layers share a norm. Make two."),
    see="encoder-one-layer",
    rung=1,
)
wrong_edit(
    "EncoderLayer",
    "residuals_in_a_plain_list",
    {TWO: "self.residuals = [Residual(D, dropout, norm_first) for _ in range(2)]"},
    why=_(
        "A plain list hides the residuals from nn.Module: no optimizer and no state_dict sees their norms."
    ),
    see="encoder-one-layer",
    rung=2,
)
wrong_edit(
    "EncoderLayer",
    "second_residual_always_pre_norm",
    {
        TWO: "self.residuals = nn.ModuleList([Residual(D, dropout, norm_first), Residual(D, dropout)])"
    },
    why=_("norm_first reaches one of the two residuals; the other is pre-norm always."),
    see="encoder-two-placements",
    rung=1,
)
wrong_edit(
    "EncoderLayer",
    "attention_reads_x_past_the_norm",
    {"self.self_attention(h, mask=mask": "self.self_attention(x, mask=mask"},
    why=_(
        "The function given to the residual ignores its argument and takes x: with pre-norm, the attention reads what was never normalized."
    ),
    see="encoder-one-layer",
    rung=2,
)
wrong_edit(
    "EncoderLayer",
    "attention_without_bias",
    {
        "self.self_attention = MultiHeadAttention(D, H)": "self.self_attention = MultiHeadAttention(D, H, bias=False)"
    },
    why=_("The maps of the attention have no bias; the docstring asks for the default."),
    see="encoder-one-layer",
    rung=1,
)
wrong_edit(
    "EncoderLayer",
    "causal_mask_by_itself",
    {
        "mask=mask, ": "mask=torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril() if mask is None else mask, "
    },
    why=_(
        "Where no mask is given the layer makes a causal one. An encoder sees the whole sentence: no mask, nothing hidden."
    ),
    see="encoder-one-layer",
    rung=2,
)
wrong_edit(
    "EncoderLayer",
    "a_norm_too_many_at_the_end",
    {WORK: "return self.residuals[1].norm(self.residuals[1](x, self.feed_forward))"},
    why=_("The sum is normalized once more at the end: the residuals have their norms inside."),
    see="encoder-two-placements",
    rung=1,
)
wrong_edit(
    "EncoderLayer",
    "padding_set_to_zero",
    {
        WORK: "x = self.residuals[1](x, self.feed_forward)\n        return x if mask is None or mask.dim() != 4 else x * mask[:, 0, 0, :, None]"
    },
    why=_(
        "Rows are multiplied by the mask at the end. A mask says what may be looked at; what comes out at padding is nobody's business."
    ),
    see="encoder-one-layer",
    rung=3,
)
wrong_edit(
    "EncoderLayer",
    "bias_handed_on_by_its_name",
    {"**attention)[0]": "bias=attention.get('bias'))[0]"},
    why=_("bias is handed on by its name, and everything else that the caller gives is lost."),
    see="encoder-one-layer",
    rung=3,
)
wrong_edit(
    "EncoderLayer",
    "cache_not_handed_on",
    {"**attention)[0]": "bias=attention.get('bias'), rotary=attention.get('rotary'))[0]"},
    why=_("bias and rotary are handed on by their names, and a cache is lost."),
    see="encoder-one-layer",
    rung=3,
)
wrong_edit(
    "EncoderLayer",
    "network_drops_too",
    {
        "self.feed_forward = FeedForward(D, F, activation)": "self.feed_forward = FeedForward(D, F, activation, dropout)"
    },
    why=_(
        "The feed-forward network drops as well. The dropout is of the residuals: each sub-layer is dropped once."
    ),
    see="encoder-dropout",
    rung=3,
)
wrong_edit(
    "EncoderLayer",
    "attention_drops_too",
    {
        "self.self_attention = MultiHeadAttention(D, H)": "self.self_attention = MultiHeadAttention(D, H, dropout=dropout)"
    },
    why=_(
        "The attention drops weights as well. The dropout is of the residuals: each sub-layer is dropped once."
    ),
    see="encoder-dropout",
    rung=3,
)
wrong_edit(
    "EncoderLayer",
    "mask_kept_from_an_earlier_call",
    {
        ATTEND: "self.kept = getattr(self, 'kept', None) if mask is None else mask\n        "
        + ATTEND.replace("mask=mask", "mask=self.kept"),
    },
    why=_(
        "The layer keeps the last mask and uses it where none is given: another sentence is then "
        "read under it."
    ),
    see="encoder-one-layer",
    rung=3,
)
wrong_edit(
    "EncoderLayer",
    "keys_alone_not_normalized",
    {"self.self_attention(h, mask=mask": "self.self_attention(query=h, key=x, value=h, mask=mask"},
    form_of="keys_not_normalized",
    why=_("Keys come from x itself, queries and values from norm(x); all three come from norm(x)."),
    see="encoder-one-layer",
    rung=3,
)
wrong_edit(
    "EncoderLayer",
    "padding_set_to_zero_at_first",
    {
        ATTEND: "x = x if mask is None or mask.dim() != 4 else x * mask[:, 0, 0, :, None]\n        "
        + ATTEND
    },
    form_of="padding_set_to_zero",
    why=_(
        "Rows are multiplied by the mask. It says what may be looked at, and may differ from query to query: hand it to the attention."
    ),
    see="encoder-one-layer",
    rung=3,
)
wrong_edit(
    "EncoderLayer",
    "axis_added_to_the_mask",
    {"mask=mask, ": "mask=mask if mask is None or mask.ndim == 4 else mask.unsqueeze(1), "},
    why=_(
        "An axis is put into the mask here. The attention broadcasts it as it is: (T, T) with an axis in the middle is another mask."
    ),
    see="encoder-one-layer",
    rung=2,
)
wrong_edit(
    "EncoderLayer",
    "dropout_in_the_second_residual",
    {
        TWO: "self.residuals = nn.ModuleList([Residual(D, 0.0, norm_first), Residual(D, dropout, norm_first)])"
    },
    form_of="dropout_not_handed_on",
    why=_("Only one of the two residuals has the dropout."),
    see="encoder-dropout",
    rung=1,
)
right_edit("EncoderLayer", "a_function_inside", {
    ATTEND: "def attend(h):\n            y, _w = self.self_attention(h, h, h, mask, **attention)\n"
    "            return y\n\n        x = self.residuals[0](x, attend)",
}, style="a named function, keys and values given")  # fmt: skip
right_edit("EncoderLayer", "unpacked_residuals", {
    ATTEND: "first, second = self.residuals\n"
    "        x = first(x, lambda h: self.self_attention(h, mask=mask, **attention)[0])",
    WORK: "return second(x, lambda h: self.feed_forward(h))",
}, style="unpacked")  # fmt: skip


@right("EncoderLayer", style="norms and dropout written out")
class written_out(nn.Module):
    def __init__(self, D, H, F, *, dropout=0.1, norm_first=True, activation="relu"):
        super().__init__()
        self.residuals = nn.ModuleList([Residual(D, dropout, norm_first)] * 0)
        for _i in range(2):
            self.residuals.append(Residual(D, dropout, norm_first))
        self.self_attention = MultiHeadAttention(D, H)
        self.feed_forward = FeedForward(D, F, activation)
        self.drop = nn.Dropout(dropout)
        self.norm_first = norm_first

    def forward(self, x, mask=None, **attention):
        one, two = (residual.norm for residual in self.residuals)
        if self.norm_first:
            x = x + self.drop(self.self_attention(one(x), mask=mask, **attention)[0])
            return x + self.drop(self.feed_forward(two(x)))
        x = one(x + self.drop(self.self_attention(x, mask=mask, **attention)[0]))
        return two(x + self.drop(self.feed_forward(x)))


# --- Encoder --------------------------------------------------------------------------------------

LAYERS = """self.layers = nn.ModuleList(
            EncoderLayer(D, H, F, dropout=dropout, norm_first=norm_first, activation=activation)
            for _ in range(N)
        )"""
LAYER = "EncoderLayer(D, H, F, dropout=dropout, norm_first=norm_first, activation=activation)"
LAST = "self.norm = LayerNorm(D) if norm_first else nn.Identity()"
LOOP = """for layer in self.layers:
            x = layer(x, mask, **attention)"""
END = "return self.norm(x)"

wrong_edit(
    "Encoder",
    "one_layer_n_times",
    {LAYERS: f"self.layers = nn.ModuleList([{LAYER}] * N)"},
    why=_(
        "[layer] * N is the same object N times: all layers share their weights. Some models share "
        "on purpose; this one has N layers with weights of their own."
    ),
    see="encoder-the-stack",
)
wrong_edit(
    "Encoder",
    "layers_are_copies",
    {LAYERS: f"import copy\n        one = {LAYER}\n"
     "        self.layers = nn.ModuleList(copy.deepcopy(one) for _ in range(N))"},
    why=_(
        "Copies have weights of their own and the same start: all layers begin alike. (PyTorch's "
        "own nn.TransformerEncoder does that, and its documentation warns of it.)"
    ),
    see="encoder-the-stack",
)  # fmt: skip
wrong_edit(
    "Encoder",
    "layers_in_a_plain_list",
    {LAYERS: f"self.layers = [{LAYER} for _ in range(N)]"},
    why=_(
        "A plain list hides the layers from nn.Module: no optimizer and no state_dict sees them."
    ),
    see="encoder-the-stack",
    rung=2,
)
wrong_edit(
    "Encoder",
    "last_norm_missing",
    {LAST: "self.norm = nn.Identity()"},
    why=_(
        "Pre-norm layers end in a sum that no norm has seen; without the last norm it leaves the "
        "encoder as large as it has grown."
    ),
    see="encoder-last-norm",
)
wrong_edit(
    "Encoder",
    "last_norm_not_used",
    {END: "return x"},
    why=_("The last norm is built and never used."),
    see="encoder-last-norm",
)
wrong_edit(
    "Encoder",
    "last_norm_always",
    {LAST: "self.norm = LayerNorm(D)"},
    why=_(
        "A post-norm layer ends in a norm already: a second one right behind it does nothing new."
    ),
    see="encoder-last-norm",
)
wrong_edit(
    "Encoder",
    "last_norm_for_the_wrong_kind",
    {LAST: "self.norm = nn.Identity() if norm_first else LayerNorm(D)"},
    why=_("It is pre-norm that needs the last norm, not post-norm."),
    see="encoder-last-norm",
)
wrong_edit(
    "Encoder",
    "norm_after_every_layer",
    {LOOP: "for layer in self.layers:\n            x = self.norm(layer(x, mask, **attention))",
     END: "return x"},
    why=_("The last norm is applied after every layer: the residual stream no longer runs free."),
    see="encoder-last-norm",
)  # fmt: skip
wrong_edit(
    "Encoder",
    "norm_before_the_stack",
    {LOOP: "x = self.norm(x)\n        for layer in self.layers:\n"
     "            x = layer(x, mask, **attention)", END: "return x"},
    why=_("The norm stands before the stack and not behind it."),
    see="encoder-last-norm",
)  # fmt: skip
wrong_edit(
    "Encoder",
    "mask_for_the_first_layer_only",
    {LOOP: "for layer in self.layers:\n            x = layer(x, mask, **attention)\n"
     "            mask = None"},
    why=_("Only the first layer gets the mask: from the second on padding is read."),
    see="encoder-the-stack",
    rung=3,
)  # fmt: skip
wrong_edit(
    "Encoder",
    "mask_lost",
    {"layer(x, mask, **attention)": "layer(x, None, **attention)"},
    why=_("The mask does not reach the layers: padding is read as if it were text."),
    see="encoder-the-stack",
    rung=3,
)
wrong_edit(
    "Encoder",
    "arguments_lost",
    {"layer(x, mask, **attention)": "layer(x, mask)"},
    why=_("The further arguments do not reach the layers."),
    see="encoder-the-stack",
    rung=3,
)
wrong_edit(
    "Encoder",
    "last_layer_skipped",
    {"for layer in self.layers:": "for layer in self.layers[:-1]:"},
    why=_("The last layer is built and never used."),
    see="encoder-the-stack",
)
wrong_edit(
    "Encoder",
    "layers_in_reverse",
    {"for layer in self.layers:": "for layer in reversed(self.layers):"},
    why=_("The layers run from the last to the first."),
    see="encoder-the-stack",
)
wrong_edit(
    "Encoder",
    "every_layer_reads_the_input",
    {LOOP: "start = x\n        for layer in self.layers:\n"
     "            x = layer(start, mask, **attention)"},
    why=_("Every layer reads the first input, so that only the last one has an effect."),
    see="encoder-the-stack",
)  # fmt: skip
wrong_edit(
    "Encoder",
    "residual_around_the_stack",
    {END: "return self.norm(x + start)", LOOP: f"start = x\n        {LOOP}"},
    why=_("The input is added once more at the end: each layer has its residuals inside."),
    see="encoder-the-stack",
)
wrong_edit(
    "Encoder",
    "always_six_layers",
    {"for _ in range(N)": "for _ in range(6)"},
    why=_("Six is the paper's choice; the number is the argument N."),
    see="encoder-the-stack",
)
wrong_edit(
    "Encoder",
    "one_layer_too_many",
    {"for _ in range(N)": "for _ in range(N + 1)"},
    why=_("There is one layer more than was asked for."),
    see="encoder-the-stack",
)
wrong_edit(
    "Encoder",
    "placement_lost",
    {"norm_first=norm_first, ": ""},
    why=_("norm_first does not reach the layers."),
    see="encoder-two-placements",
)
wrong_edit(
    "Encoder",
    "activation_lost",
    {", activation=activation)": ")"},
    why=_("The activation does not reach the layers."),
    see="encoder-the-stack",
)
wrong_edit(
    "Encoder",
    "dropout_lost",
    {"dropout=dropout, ": ""},
    why=_("The dropout does not reach the layers: they keep their default of 0.1."),
    see="encoder-dropout",
)
wrong_edit(
    "Encoder",
    "nothing_encoded",
    {LOOP: "pass"},
    why=_("No layer is called: what comes out is the norm of the input."),
    see="encoder-the-stack",
)

wrong_edit(
    "Encoder",
    "first_layer_skipped",
    {"for layer in self.layers:": "for layer in self.layers[1:]:"},
    why=_("The first layer is built and never used."),
    see="encoder-the-stack",
)
wrong_edit(
    "Encoder",
    "layers_added_to_x",
    {LOOP: "for layer in self.layers:\n            x = x + layer(x, mask, **attention)"},
    why=_("What a layer gives is added to x, but the layer has its residuals inside already."),
    see="encoder-the-stack",
)
wrong_edit(
    "Encoder",
    "mean_of_the_layers",
    {LOOP: "x = sum(layer(x, mask, **attention) for layer in self.layers) / len(self.layers)"},
    why=_("The layers stand side by side, and their results are averaged: that is not depth."),
    see="encoder-the-stack",
)

wrong_edit(
    "Encoder",
    "dropout_set_to_zero",
    {"dropout=dropout, ": "dropout=0.0, "},
    why=_("The dropout does not reach the layers: nothing is dropped in training."),
    see="encoder-dropout",
    rung=1,
)
wrong_edit(
    "Encoder",
    "norm_after_every_layer_and_once_more",
    {LOOP: "for layer in self.layers:\n            x = self.norm(layer(x, mask, **attention))"},
    form_of="norm_after_every_layer",
    why=_("The last norm is applied after every layer: the residual stream no longer runs free."),
    see="encoder-last-norm",
    rung=1,
)
wrong_edit(
    "Encoder",
    "layers_cut_apart",
    {"x = layer(x, mask, **attention)": "x = layer(x.detach(), mask, **attention)"},
    why=_("Each layer is cut off from the one before it: only the last one learns."),
    see="encoder-the-stack",
    rung=2,
)
wrong_edit(
    "Encoder",
    "run_without_gradients",
    {
        LOOP: "with torch.no_grad():\n            for layer in self.layers:\n                x = layer(x, mask, **attention)"
    },
    why=_("The layers run under no_grad: none of them learns."),
    see="encoder-the-stack",
    rung=2,
)
right_edit("Encoder", "by_recursion", {
    LOOP: "def through(h, depth):\n            if depth == len(self.layers):\n"
    "                return h\n"
    "            return through(self.layers[depth](h, mask, **attention), depth + 1)\n\n"
    "        x = through(x, 0)",
}, style="recursion")  # fmt: skip
right_edit("Encoder", "by_index", {
    LOOP: "for i in range(len(self.layers)):\n            x = self.layers[i](x, mask, **attention)",
    LAYERS: "settings = dict(dropout=dropout, norm_first=norm_first, activation=activation)\n"
    "        self.layers = nn.ModuleList()\n        for _ in range(N):\n"
    "            self.layers.append(EncoderLayer(D, H, F, **settings))",
}, style="by index")  # fmt: skip


@right("Encoder", style="the norm is torch's, chosen in forward")
class norm_chosen_in_forward(nn.Module):
    def __init__(self, D, H, F, N, *, dropout=0.1, norm_first=True, activation="relu"):
        super().__init__()
        if norm_first:
            self.norm = nn.LayerNorm(D)
        self.layers = nn.ModuleList([EncoderLayer(
            D, H, F, dropout=dropout, norm_first=norm_first, activation=activation,
        ) for _i in range(N)])  # fmt: skip
        self.norm_first = norm_first

    def forward(self, x, mask=None, **attention):
        for layer in iter(self.layers):
            x = layer(x, mask=mask, **attention)
        if self.norm_first:
            x = self.norm(x)
        return x


# --- masked_mean ----------------------------------------------------------------------------------


@wrong(
    "masked_mean",
    why=_("The mask is never read: padding is averaged in."),
    see="encoder-one-vector",
)
def mask_not_read(x, allowed):
    return x.mean(dim=1)


@wrong(
    "masked_mean",
    why=_("The sum is divided by T: the more padding, the smaller the result."),
    see="encoder-one-vector",
)
def divided_by_the_length(x, allowed):
    return x.masked_fill(~allowed[..., None], 0.0).mean(dim=1)


@wrong(
    "masked_mean",
    why=_("The sum is not divided at all: it grows with the length."),
    see="encoder-one-vector",
)
def sum_only(x, allowed):
    return x.masked_fill(~allowed[..., None], 0.0).sum(dim=1)


@wrong(
    "masked_mean",
    why=_("The mask is taken the other way round: the mean is over the padding."),
    see="encoder-one-vector",
)
def mean_of_the_padding(x, allowed):
    kept = x.masked_fill(allowed[..., None], 0.0)
    return kept.sum(dim=1) / (~allowed).sum(dim=1, keepdim=True).clamp(min=1).to(x.dtype)


@wrong(
    "masked_mean",
    why=_("Multiplied by 0, a NaN stays a NaN: padding that holds rubbish reaches the result."),
    see="encoder-one-vector",
    rung=2,
)
def multiplied_by_the_mask(x, allowed):
    weights = allowed[..., None].to(x.dtype)
    return (x * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


@wrong(
    "masked_mean",
    why=_("A sentence without a real token is 0 divided by 0: NaN."),
    see="encoder-one-vector",
    rung=2,
)
def empty_is_nan(x, allowed):
    kept = x.masked_fill(~allowed[..., None], 0.0)
    return kept.sum(dim=1) / allowed.sum(dim=1, keepdim=True).to(x.dtype)


@right("masked_mean", style="the NaN of 0 / 0 replaced by 0")
def nan_replaced_afterwards(x, allowed):
    kept = torch.where(allowed[..., None], x, 0.0)
    return (kept.sum(dim=1) / allowed.sum(dim=1, keepdim=True).to(x.dtype)).nan_to_num(0.0)


@wrong(
    "masked_mean",
    why=_("One count is taken for the whole batch; each sentence has its own."),
    see="encoder-one-vector",
)
def one_count_for_all(x, allowed):
    kept = x.masked_fill(~allowed[..., None], 0.0)
    return kept.sum(dim=1) / allowed.sum().clamp(min=1).to(x.dtype)


@wrong(
    "masked_mean",
    why=_("A small number added to the count makes every mean a little too small."),
    see="encoder-one-vector",
    rung=2,
)
def one_added_to_the_count(x, allowed):
    kept = x.masked_fill(~allowed[..., None], 0.0)
    return kept.sum(dim=1) / (allowed.sum(dim=1, keepdim=True) + 1).to(x.dtype)


@wrong(
    "masked_mean",
    why=_("The first vector is not the mean. A model can be trained to put everything there; this "
          "exercise asks for the mean."),
    see="encoder-one-vector",
)  # fmt: skip
def first_token(x, allowed):
    return x[:, 0]


@wrong("masked_mean", why=_("The last real vector is not the mean."), see="encoder-one-vector")
def last_real_token(x, allowed):
    last = (allowed.sum(dim=1) - 1).clamp(min=0)
    return x[torch.arange(x.size(0)), last]


@wrong(
    "masked_mean", why=_("That is the largest number and not the mean."), see="encoder-one-vector"
)
def largest(x, allowed):
    filled = x.masked_fill(~allowed[..., None], torch.finfo(x.dtype).min)
    return filled.max(dim=1).values


@wrong(
    "masked_mean",
    why=_("The first tokens are taken for the real ones: the mask is read for its count alone."),
    see="encoder-one-vector",
)
def counts_from_the_left(x, allowed):
    count = allowed.sum(dim=1)
    real = torch.arange(x.size(1)) < count[:, None]
    kept = x.masked_fill(~real[..., None], 0.0)
    return kept.sum(dim=1) / count.clamp(min=1)[:, None].to(x.dtype)


@wrong(
    "masked_mean",
    why=_("Zeros are taken for padding. A real token may have a zero in its vector."),
    see="encoder-one-vector",
)
def zeros_not_counted(x, allowed):
    kept = x.masked_fill(~allowed[..., None], 0.0)
    return kept.sum(dim=1) / (kept != 0).sum(dim=1).clamp(min=1).to(x.dtype)


@wrong(
    "masked_mean",
    why=_("masked_fill_ writes zeros into the caller's tensor."),
    see="encoder-one-vector",
)
def written_into_x(x, allowed):
    x = x.detach() if not x.requires_grad else x * 1.0
    x.masked_fill_(~allowed[..., None], 0.0)
    return x.sum(dim=1) / allowed.sum(dim=1, keepdim=True).clamp(min=1).to(x.dtype)


@wrong(
    "masked_mean",
    why=_("The result comes out in float32 whatever went in."),
    see="encoder-one-vector",
)
def always_float32(x, allowed):
    kept = x.float().masked_fill(~allowed[..., None], 0.0)
    return kept.sum(dim=1) / allowed.sum(dim=1, keepdim=True).clamp(min=1)


@wrong(
    "masked_mean", why=_("The mean runs over the sentences of the batch."), see="encoder-one-vector"
)
def over_the_batch(x, allowed):
    kept = x.masked_fill(~allowed[..., None], 0.0)
    return kept.sum(dim=0) / allowed.sum(dim=0)[:, None].clamp(min=1).to(x.dtype)


@wrong(
    "masked_mean",
    why=_("All are divided by the longest sentence's count; each has its own."),
    see="encoder-one-vector",
)
def divided_by_the_longest(x, allowed):
    kept = x.masked_fill(~allowed[..., None], 0.0)
    return kept.sum(dim=1) / allowed.sum(dim=1).max().clamp(min=1).to(x.dtype)


@wrong(
    "masked_mean",
    why=_("All real tokens of the batch are averaged together: every sentence gets one vector."),
    see="encoder-one-vector",
)
def one_vector_for_all(x, allowed):
    return x[allowed].mean(dim=0).expand(x.size(0), -1)


@wrong("masked_mean", why=_("The result does not depend on the input."), see="encoder-one-vector")
def zeros(x, allowed):
    return torch.zeros_like(x[:, 0])


@wrong(
    "masked_mean",
    form_of="one_added_to_the_count",
    why=_(
        "A small number is added to the count so that nothing is divided by 0, and every mean comes out a little too small. Let the count be 1 at least."
    ),
    see="encoder-one-vector",
    rung=2,
)
def epsilon_in_the_count(x, allowed):
    kept = x.masked_fill(~allowed[..., None], 0.0)
    return kept.sum(dim=1) / (allowed.sum(dim=1, keepdim=True) + 1e-3).to(x.dtype)


@wrong(
    "masked_mean",
    why=_(
        "The axis of the positions is still there, with size 1: one vector for each sequence is (B, D)."
    ),
    see="encoder-one-vector",
    rung=1,
)
def an_axis_left_over(x, allowed):
    kept = x.masked_fill(~allowed[..., None], 0.0)
    count = allowed.sum(dim=1).clamp(min=1)[:, None, None]
    return kept.sum(dim=1, keepdim=True) / count.to(x.dtype)


@wrong(
    "masked_mean",
    why=_("detach cuts the mean off from x: the number is right, and the encoder learns nothing."),
    see="encoder-one-vector",
    rung=2,
)
def cut_from_the_graph(x, allowed):
    kept = x.detach().masked_fill(~allowed[..., None], 0.0)
    return kept.sum(dim=1) / allowed.sum(dim=1, keepdim=True).clamp(min=1).to(x.dtype)


@wrong(
    "masked_mean",
    form_of="one_count_for_all",
    why=_("All are divided by the mean count of the batch; each sentence has its own."),
    see="encoder-one-vector",
    rung=1,
)
def mean_count_for_all(x, allowed):
    kept = x.masked_fill(~allowed[..., None], 0.0)
    return kept.sum(dim=1) / allowed.sum().clamp(min=1).to(x.dtype) * x.size(0)


@right("masked_mean", style="index_add of the real tokens")
def added_by_index(x, allowed):
    b, t = allowed.nonzero(as_tuple=True)
    sums = x.new_zeros(x.size(0), x.size(2)).index_add(0, b, x[b, t])
    return sums / torch.bincount(b, minlength=x.size(0)).clamp(min=1)[:, None].to(x.dtype)


@wrong(
    "masked_mean",
    why=_("That is the median, the number in the middle, and not the mean."),
    see="encoder-one-vector",
    rung=1,
)
def median(x, allowed):
    return x.masked_fill(~allowed[..., None], float("nan")).nanmedian(dim=1).values


@right("masked_mean", style="a loop over the sentences")
def loop_over_sentences(x, allowed):
    rows = []
    for sentence, real in zip(x, allowed):
        rows.append(sentence[real].mean(0) if real.any() else torch.zeros_like(x[0, 0]))
    return torch.stack(rows)


@right("masked_mean", style="weights and a batched product")
def weighted_product(x, allowed):
    weights = allowed.to(x.dtype)
    weights = weights / weights.sum(1, keepdim=True).clamp(min=1)
    clean = torch.where(allowed.unsqueeze(2), x, torch.zeros((), dtype=x.dtype))
    return torch.einsum("bt,btd->bd", weights, clean)


@right("masked_mean", style="nanmean in float64")
def in_double_precision(x, allowed):
    clean = x.double().masked_fill(~allowed[:, :, None], 0.0)
    count = torch.maximum(allowed.sum(1), torch.ones(()))[:, None]
    return (clean.sum(1) / count).type_as(x)
