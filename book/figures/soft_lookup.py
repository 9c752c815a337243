"""Attention as a soft look-up: a moving figure with one query and a few keys and values.

``soft_lookup.js`` draws it, in the page as in Jupyter. This module says what it starts from, what
it says, and what the right numbers are: those come from the reference attention, computed at the
head's real width (see ``widen_queries`` and ``widen_keys``).
"""

import math
from collections.abc import Sequence
from typing import Any

import anywidget
import torch
import traitlets
from torch import Tensor

from autograder.i18n import _
from book.figures.common import module

LIMIT = 2.5
"""The planes show coordinates from -LIMIT to LIMIT."""

WIDTHS = (2, 4, 8, 16, 32, 64, 128)
"""The widths d that the slider offers."""

MAX_KEYS = 6
"""The figure has this many marks that can be told apart without colour."""

TEMPERATURES = (0.1, 10.0)
"""The ends of the temperature slider."""


def widen_queries(drawn: Tensor, width: int) -> Tensor:
    """Queries of width d for queries drawn in the plane: the pair of components, d/2 times.

    Args:
        drawn: shape (T, 2).
        width: d, one of ``WIDTHS``.

    Returns:
        Shape (T, d).
    """
    return drawn.repeat(1, width // 2)  # (T, d)


def widen_keys(drawn: Tensor, width: int) -> Tensor:
    """Keys of width d for keys drawn in the plane, whose dot products spread as √d.

    Independent components of unit variance give dot products of variance d, the sum of d variances
    (Vaswani et al. 2017, section 3.2.1, footnote 4). Plain copies of two components are not
    independent: their dot products would grow with d itself, and dividing by √d would not mend
    that. So half of the d/2 copies of a key are turned by an angle to the left, the others to the
    right. A turn keeps the size of the components, and with cos(angle) = 1/√(d/2)

        widen_queries(q) · widen_keys(k) = (d/2) cos(angle) q · k = √(d/2) q · k

    which spreads as √d where the drawn q · k spreads as √2.

    Args:
        drawn: shape (S, 2).
        width: d, one of ``WIDTHS``.

    Returns:
        Shape (S, d).
    """
    copies = width // 2
    cosine = 1 / math.sqrt(copies)
    sine = math.sqrt(1 - 1 / copies)
    x, y = drawn[:, 0], drawn[:, 1]
    left = torch.stack((cosine * x - sine * y, sine * x + cosine * y), dim=-1)  # (S, 2)
    right = torch.stack((cosine * x + sine * y, cosine * y - sine * x), dim=-1)  # (S, 2)
    # One copy alone is not turned: cosine is 1, and left and right are the same.
    return torch.cat([left, right] * (copies // 2) or [left], dim=-1)  # (S, d)


def softmax_jacobian(weights: Tensor) -> Tensor:
    """The softmax's gradient ∂w_i/∂s_j = diag(w) - w wᵀ.

    Its rows sum to zero, so the diagonal is minus the rest of the row: w(1 - w) would lose all its
    digits where a weight is nearly 1, which is where the figure has something to show.

    Args:
        weights: shape (S,), summing to 1.

    Returns:
        Shape (S, S).
    """
    jacobian = -torch.outer(weights, weights)  # (S, S)
    jacobian.fill_diagonal_(0.0)
    return jacobian - torch.diag(jacobian.sum(dim=1))


def entropy_bits(weights: Tensor) -> float:
    """The entropy of the weights, -Σ w log₂ w, in bits; between 0 and log₂ S."""
    return float(torch.special.entr(weights).sum()) / math.log(2)


def sentences() -> dict[str, str]:
    """Every word that the figure shows or says, in the reader's language."""
    return {
        "figure": _("Attention as a soft look-up"),
        "how": _(
            "Drag q, a key or a value. Or press Tab until a point is marked, and move it with the "
            "arrow keys (with Shift: bigger steps)."
        ),
        "settings": _("Settings"),
        "scale": _("divide by √d"),
        "width": _("head width d"),
        "temperature": _("temperature τ"),
        "reset": _("Reset"),
        "key_plane": _("Query and keys"),
        "key_plane_note": _(
            "Dotted: how far each key reaches along q. That reach times the length of q is the "
            "q · k of the picture. The fuller a mark, the larger its weight."
        ),
        "value_plane": _("Values and output"),
        "value_plane_note": _(
            "The output is the weighted mean of the values: it never leaves the dashed outline."
        ),
        "point": _("movable point"),
        "query": _("query q"),
        "key": _("key {i}"),
        "value": _("value {i}"),
        "output": _("output"),
        "output_value": _("Output"),
        "at": _("x {x}, y {y}"),
        "weights": _("Scores and weights"),
        "key_column": _("key"),
        "dot_column": _("q · k"),
        "score_column": _("score s"),
        "weight_column": _("weight w"),
        "width_note": _(
            "A head has d components and the picture has two. Dot products of d independent "
            "components spread as √d, so the table has each q · k of the picture times "
            "√(d/2) = {factor}, to spread as in a head of width {d}."
        ),
        "scaled_note": _(
            "Dividing by √d takes that out again: the scores are the same at every width."
        ),
        "unscaled_note": _(
            "Nothing takes that out again: the larger d, the more the softmax picks one key alone."
        ),
        "entropy": _("Entropy of the weights"),
        "entropy_value": _("{bits} of at most {most} bits"),
        "gradient": _("Gradient of the softmax"),
        "gradient_table": _("Row w₁, column s₂ holds ∂w₁/∂s₂, and so on."),
        "gradient_value": _("largest entry {largest}"),
        "gradient_note": _(
            "It is never more than 0.25. Raise one score by 0.1, and its weight rises by "
            "about {step} at most."
        ),
        "agrees": _(
            "The starting numbers were computed in Python, by scaled_dot_product_attention. "
            "The figure's own agree with them."
        ),
        "differs": _("The figure's starting numbers differ from those of Python: do not trust it."),
        "spoken": _(
            "Weights: {weights}. Output at {output}. Entropy {bits} of {most} bits. "
            "Largest entry of the gradient {largest}."
        ),
        "spoken_weight": _("key {i} {weight}"),
        "spoken_power": _("{number} times ten to the {power}"),
    }


class SoftLookup(anywidget.AnyWidget):
    """One query, S keys and S values in the plane, and the attention between them.

    All coordinates lie between -2.5 and 2.5.

    Args:
        q: the query, [x, y].
        k: the S keys, pairs [x, y], 1 < S <= 6.
        v: their values, as many pairs [x, y].
        scale: whether dot products are divided by √d.
        temperature: scores are divided by it, 0.1 to 10; 1 changes nothing.
        width: the head width d that the dot products spread as, one of ``WIDTHS``.

    Raises:
        traitlets.TraitError: one of these is something else; the message says which.

    ``reference()`` gives the right numbers for the present state, moved points included.
    """

    _esm = module("soft_lookup")

    q = traitlets.List([1.3, 0.3]).tag(sync=True)
    k = traitlets.List([[1.5, -0.4], [0.2, 1.6], [-1.4, 0.8], [-0.5, -1.5]]).tag(sync=True)
    v = traitlets.List([[1.8, 1.5], [-1.9, 1.1], [-1.2, -1.7], [1.6, -1.3]]).tag(sync=True)
    scale = traitlets.Bool(True).tag(sync=True)
    temperature = traitlets.Float(1.0).tag(sync=True)
    width = traitlets.Int(64).tag(sync=True)
    limit = traitlets.Float(LIMIT, read_only=True).tag(sync=True)
    widths = traitlets.List(list(WIDTHS), read_only=True).tag(sync=True)
    temperatures = traitlets.List(list(TEMPERATURES), read_only=True).tag(sync=True)
    text = traitlets.Dict(read_only=True).tag(sync=True)
    initial = traitlets.Dict(read_only=True).tag(sync=True)
    """The state that the figure starts from and returns to, and its numbers: ``reference()``."""

    def __init__(self, **state: Any) -> None:
        super().__init__(**state)
        if len(self.k) != len(self.v):
            raise traitlets.TraitError(
                _("{keys} keys and {values} values: give each key its value").format(
                    keys=len(self.k), values=len(self.v)
                )
            )
        self.set_trait("text", sentences())
        self.set_trait("initial", self.reference())

    @traitlets.validate("q")
    def _check_q(self, proposal: Any) -> list[float]:
        return _pair(proposal["value"], "q")

    @traitlets.validate("k", "v")
    def _check_pairs(self, proposal: Any) -> list[list[float]]:
        name, pairs = proposal["trait"].name, proposal["value"]
        if not 1 < len(pairs) <= MAX_KEYS:
            raise traitlets.TraitError(
                _("{name} has {n} points: give 2 to {most}").format(
                    name=name, n=len(pairs), most=MAX_KEYS
                )
            )
        return [_pair(pair, f"{name}[{i}]") for i, pair in enumerate(pairs)]

    @traitlets.validate("temperature")
    def _check_temperature(self, proposal: Any) -> float:
        lowest, highest = TEMPERATURES
        if not lowest <= proposal["value"] <= highest:
            raise traitlets.TraitError(
                _("temperature is {value}: give a number from {lowest} to {highest}").format(
                    value=proposal["value"], lowest=lowest, highest=highest
                )
            )
        return float(proposal["value"])

    @traitlets.validate("width")
    def _check_width(self, proposal: Any) -> int:
        if proposal["value"] not in WIDTHS:
            raise traitlets.TraitError(
                _("width is {value}: give one of {widths}").format(
                    value=proposal["value"], widths=", ".join(map(str, WIDTHS))
                )
            )
        return int(proposal["value"])

    def reference(self) -> dict[str, Any]:
        """What the figure shows for its present state, computed by the reference attention.

        Returns:
            The state (``q``, ``k``, ``v``, ``scale``, ``temperature``, ``width``) and
            ``weights`` (S), ``output`` (2), ``entropy`` in bits, ``jacobian`` (S, S) and
            ``gradient``, its largest entry; float64 throughout, as plain lists and numbers.
        """
        # Imported late: at grading this module is there, and the answers are not.
        from solutions.attention import scaled_dot_product_attention  # noqa: PLC0415

        q = widen_queries(torch.tensor([self.q], dtype=torch.float64), self.width)  # (1, d)
        k = widen_keys(torch.tensor(self.k, dtype=torch.float64), self.width)  # (S, d)
        v = torch.tensor(self.v, dtype=torch.float64)  # (S, 2)
        # The function always divides by √d: what it must not divide by is multiplied in first.
        factor = (1.0 if self.scale else math.sqrt(self.width)) / self.temperature
        output, weights = scaled_dot_product_attention(q * factor, k, v)  # (1, 2), (1, S)
        jacobian = softmax_jacobian(weights[0])  # (S, S)
        return {
            "q": list(self.q),
            "k": [list(pair) for pair in self.k],
            "v": [list(pair) for pair in self.v],
            "scale": self.scale,
            "temperature": self.temperature,
            "width": self.width,
            "weights": weights[0].tolist(),
            "output": output[0].tolist(),
            "entropy": entropy_bits(weights[0]),
            "jacobian": jacobian.tolist(),
            "gradient": float(jacobian.max()),
        }

    def __repr__(self) -> str:
        """What stands in place of the figure where nothing can be drawn; the same on every run."""
        weights = ", ".join(f"{weight:.3f}" for weight in self.initial.get("weights", ()))
        return f"SoftLookup(weights=[{weights}])"


def _pair(value: Sequence[Any], where: str) -> list[float]:
    """A point of the plane as two floats, or one line that says what is wrong with it."""
    try:
        x, y = (float(number) for number in value)
    except (TypeError, ValueError):
        x = y = math.nan
    if not (abs(x) <= LIMIT and abs(y) <= LIMIT):  # False for NaN too
        raise traitlets.TraitError(
            _("{where} is {value}: give two numbers from {lowest} to {highest}").format(
                where=where, value=value, lowest=-LIMIT, highest=LIMIT
            )
        )
    return [x, y]
