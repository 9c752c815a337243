"""Gradients through depth: a moving figure of a small encoder with or without residuals and norms.

``gradient_depth.js`` runs the encoder, there and back, in the page. This module says what it starts
from and what it says; the numbers of its first state come from the reference ``EncoderLayer`` and
torch's gradients, with the same weights: both sides draw them with the same generator.
"""

import math
from collections.abc import Callable
from typing import Any

import anywidget
import torch
import traitlets
from torch import Tensor

from autograder.i18n import _
from book.figures.common import module

T, D, F = 6, 16, 32
"""Positions, width, and width of the feed-forward network; one head."""

DEEPEST = 48
"""The depth slider ends here."""

GAINS = (0.5, 0.7, 1.0, 1.4)
"""What the slider multiplies the first weights by; their deviation is gain / √(numbers read)."""

PLACEMENTS = ("none", "pre", "post")

SEED = 2017


def uniform(count: int, seed: int) -> Tensor:
    """The first numbers in [0, 1) of the generator mulberry32: shape (count,), float64.

    Its state grows by a constant, so that all of them can be made at once. Products are taken
    modulo 2⁶⁴ and then cut to 32 bits, as a 32-bit multiplication does.
    """
    mask = 0xFFFFFFFF
    z = (seed + 0x6D2B79F5 * torch.arange(1, count + 1)) & mask
    z = ((z ^ (z >> 15)) * (z | 1)) & mask
    z = z ^ ((z + (((z ^ (z >> 7)) * (z | 61)) & mask)) & mask)
    return (z ^ (z >> 14)).double() / 2**32


def weights(depth: int, gain: float, seed: int = SEED) -> tuple[Tensor, Tensor, list[list[Tensor]]]:
    """Input (T, D), cotangent (T, D), and query, key, value, output, up, down of each layer."""
    shapes = [(D, D)] * 4 + [(F, D), (D, F)]
    counts = [T * D] * 2 + [rows * columns for rows, columns in shapes] * depth
    pairs = uniform(2 * sum(counts), seed).view(-1, 2)
    # Box and Muller 1958
    normal = torch.sqrt(-2 * torch.log(1 - pairs[:, 0])) * torch.cos(2 * math.pi * pairs[:, 1])
    x, cotangent, *rest = normal.split(counts)
    matrices = [
        part.view(shape) * gain / math.sqrt(shape[1])
        for part, shape in zip(rest, shapes * depth, strict=True)
    ]
    per_layer = [matrices[i : i + len(shapes)] for i in range(0, len(matrices), len(shapes))]
    return x.view(T, D), cotangent.view(T, D), per_layer


def sentences() -> dict[str, str]:
    """Every word that the figure shows or says, in the reader's language."""
    return {
        "figure": _("Gradients through depth"),
        "how": _(
            "Switch the residuals and the norms, add layers, and make the first weights smaller or "
            "larger. The encoder runs anew at every change, there and back."
        ),
        "settings": _("The encoder"),
        "residual": _("residuals"),
        "norm": _("norm"),
        "none": _("no norm"),
        "pre": _("pre-norm"),
        "post": _("post-norm"),
        "depth": _("layers"),
        "gain": _("size of the weights"),
        "reset": _("Reset"),
        "plot": _("From the input (left) to the output of the last layer"),
        "legend": _(
            "Disc, solid: the gradient at each depth, as a share of the gradient at the output. "
            "Square, dashed: the size of the numbers that go forward (root mean square)."
        ),
        "layer": _("layers passed"),
        "arrives": _("share of the gradient that arrives at the input"),
        "grown": _("size of the numbers at the output"),
        "alike": _("likeness of the positions at the output (mean cosine)"),
        "vanishes": _("The gradient vanishes on its way back."),
        "explodes": _("The gradient explodes on its way back."),
        "passes": _("The gradient passes."),
        "collapsed": _(
            "But all positions have become alike: there is nothing left to tell them apart by."
        ),
        "note": _(
            "Six positions, width 16, one head, feed-forward width 32, untrained. A weight of size "
            "1 is drawn with deviation 1/√n, where n is how many numbers its row reads. Below "
            "10⁻²⁰ the plot ends."
        ),
        "agrees": _(
            "The first curves were computed in Python, by EncoderLayer and torch's gradients. The "
            "figure's own agree with them."
        ),
        "differs": _("The figure's first curves differ from Python's: do not trust it."),
        "spoken": _(
            "{depth} layers: the share of the gradient that arrives is {gradient}, the numbers at "
            "the output have size {size}, the likeness of the positions is {alike}."
        ),
    }


class GradientDepth(anywidget.AnyWidget):
    """A small encoder, untrained, and what depth does to its gradients.

    Args:
        residual: whether x is added around each sub-layer.
        placement: ``"none"``, ``"pre"`` or ``"post"``: where the norms are.
        depth: layers, 1 to 48.
        gain: size of the first weights, one of ``GAINS``.

    Raises:
        traitlets.TraitError: one of these is something else; the message says which.

    ``reference()`` gives the right numbers for the present state.
    """

    _esm = module("gradient_depth")

    residual = traitlets.Bool(False).tag(sync=True)
    placement = traitlets.Unicode("none").tag(sync=True)
    depth = traitlets.Int(24).tag(sync=True)
    gain = traitlets.Float(1.0).tag(sync=True)
    deepest = traitlets.Int(DEEPEST, read_only=True).tag(sync=True)
    gains = traitlets.List(list(GAINS), read_only=True).tag(sync=True)
    seed = traitlets.Int(SEED, read_only=True).tag(sync=True)
    text = traitlets.Dict(read_only=True).tag(sync=True)
    initial = traitlets.Dict(read_only=True).tag(sync=True)
    """The state that the figure starts from and returns to, and its numbers: ``reference()``."""

    def __init__(self, **state: Any) -> None:
        super().__init__(**state)
        self.set_trait("text", sentences())
        self.set_trait("initial", self.reference())

    @traitlets.validate("placement", "gain")
    def _check_choice(self, proposal: Any) -> Any:
        name, value = proposal["trait"].name, proposal["value"]
        choices: tuple[Any, ...] = PLACEMENTS if name == "placement" else GAINS
        if value not in choices:
            raise traitlets.TraitError(
                _("{name} is {value}: give one of {choices}").format(
                    name=name, value=value, choices=", ".join(map(str, choices))
                )
            )
        return value

    @traitlets.validate("depth")
    def _check_depth(self, proposal: Any) -> int:
        if not 1 <= proposal["value"] <= DEEPEST:
            raise traitlets.TraitError(
                _("depth is {value}: give a number from 1 to {most}").format(
                    value=proposal["value"], most=DEEPEST
                )
            )
        return int(proposal["value"])

    def reference(self) -> dict[str, Any]:
        """What the figure shows for its present state, computed by the reference encoder layer.

        Returns:
            The state (``residual``, ``placement``, ``depth``, ``gain``) and, from the input to the
            output of the last layer, ``gradients`` (as shares of the last), ``sizes`` (root mean
            square) and ``likeness`` (mean cosine between positions), depth + 1 numbers each.
        """
        # Imported late: at grading this module is there, and the answers are not.
        from solutions.encoder import EncoderLayer, LayerNorm, Residual  # noqa: PLC0415

        x, cotangent, matrices = weights(self.depth, self.gain)

        def run(layer: EncoderLayer, h: Tensor) -> Tensor:
            sublayers: list[Callable[[Tensor], Tensor]] = [
                lambda y: layer.self_attention(y)[0],
                layer.feed_forward,
            ]
            residuals = [item for item in layer.residuals if isinstance(item, Residual)]
            for residual, sublayer in zip(residuals, sublayers, strict=True):
                if self.placement == "none":
                    h = h + sublayer(h) if self.residual else sublayer(h)
                elif self.residual:
                    h = residual(h, sublayer)
                elif self.placement == "pre":
                    h = sublayer(residual.norm(h))
                else:
                    h = residual.norm(sublayer(h))
            return h

        states = [x[None].requires_grad_()]  # (1, T, D)
        for matrix in matrices:
            layer = EncoderLayer(D, 1, F, dropout=0.0, norm_first=self.placement == "pre").double()
            attention, feed_forward = layer.self_attention, layer.feed_forward
            maps = (attention.query, attention.key, attention.value, attention.output)
            with torch.no_grad():
                for part, weight in zip(
                    (*maps, feed_forward.up, feed_forward.down), matrix, strict=True
                ):
                    part.weight.copy_(weight)
                    part.bias.zero_()
            states.append(run(layer, states[-1]))
        last = LayerNorm(D).double()(states[-1]) if self.placement == "pre" else states[-1]
        found = torch.autograd.grad((last[0] * cotangent).sum(), states)
        sizes = torch.stack([gradient.norm() for gradient in found])
        return {
            "residual": self.residual,
            "placement": self.placement,
            "depth": self.depth,
            "gain": self.gain,
            "gradients": (sizes / sizes[-1]).tolist(),
            "sizes": [float(state.detach().square().mean().sqrt()) for state in states],
            "likeness": [_likeness(state.detach()[0]) for state in states],
        }

    def __repr__(self) -> str:
        """What stands in place of the figure where nothing can be drawn; the same on every run."""
        share = self.initial["gradients"][0] if self.initial else 1.0
        power = round(math.log10(share)) if share > 0 else "-inf"
        return f"GradientDepth(depth={self.depth}, arrives=10^{power})"


def _likeness(x: Tensor) -> float:
    """Mean cosine between two different positions of x (T, D)."""
    unit = x / x.norm(dim=-1, keepdim=True)
    cosines = unit @ unit.T
    return float((cosines.sum() - cosines.diagonal().sum()) / (len(x) * (len(x) - 1)))
