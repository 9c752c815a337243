"""Rotary positions as clocks: turn a query and a key, and see that the score knows the distance.

``position_clock.js`` draws it. This module says what it starts from and what it says; the numbers
of its first state are computed by the reference ``Rotary``.
"""

from typing import Any

import anywidget
import torch
import traitlets

from autograder.i18n import _
from book.figures.common import module

LONGEST = 64
"""Positions run from 0 to LONGEST - 1."""

BASES = (10, 100, 1000, 10000)
"""The bases that the slider offers."""

QUERY = [1.0, 0.6, 0.9, -0.4, 0.2, 0.7, -0.3, 0.8]
KEY = [0.8, 0.9, 0.5, 0.3, 0.5, 0.2, 0.6, 0.7]
"""Vectors of a head of width 8; component i is paired with component i + 4."""


def sentences() -> dict[str, str]:
    """Every word that the figure shows or says, in the reader's language."""
    return {
        "figure": _("Rotary positions as clocks"),
        "how": _(
            "Move both positions together, and every hand turns while the score stays. Move one, "
            "and the score follows the distance."
        ),
        "settings": _("Positions"),
        "query": _("query at t"),
        "key": _("key at s"),
        "together": _("move both"),
        "base": _("base"),
        "reset": _("Reset"),
        "pair": _("pair {i}: {angle} per position"),
        "pair_label": _(
            "Pair {i}: query at {query} degrees, key at {key} degrees, {angle} radians per position"
        ),
        "radians": _("{number} rad"),
        "curve": _("Score against distance t − s"),
        "distance": _("distance"),
        "score": _("score"),
        "now": _("distance {distance}: score {score}"),
        "legend": _("Disc: the query's hand. Square: the key's hand."),
        "note": _(
            "Each pair of components is a hand. Its angle is position times frequency; the score "
            "is the sum of the dot products of the pairs, divided by √8."
        ),
        "agrees": _(
            "The first score was computed in Python, by Rotary. The figure's own agrees with it."
        ),
        "differs": _("The figure's first score differs from Python's: do not trust it."),
        "spoken": _("Query at {t}, key at {s}, distance {distance}, score {score}."),
    }


class PositionClock(anywidget.AnyWidget):
    """A query and a key of one head, turned by their positions.

    Args:
        t: position of the query, 0 to 63.
        s: position of the key, 0 to 63.
        base: 10, 100, 1000 or 10000.

    Raises:
        traitlets.TraitError: a position outside, or another base.
    """

    _esm = module("position_clock")

    t = traitlets.Int(9).tag(sync=True)
    s = traitlets.Int(5).tag(sync=True)
    base = traitlets.Int(10000).tag(sync=True)
    q = traitlets.List(QUERY, read_only=True).tag(sync=True)
    k = traitlets.List(KEY, read_only=True).tag(sync=True)
    bases = traitlets.List(list(BASES), read_only=True).tag(sync=True)
    longest = traitlets.Int(LONGEST, read_only=True).tag(sync=True)
    text = traitlets.Dict(read_only=True).tag(sync=True)
    initial = traitlets.Dict(read_only=True).tag(sync=True)

    def __init__(self, **state: Any) -> None:
        super().__init__(**state)
        self.set_trait("text", sentences())
        self.set_trait("initial", self.reference())

    @traitlets.validate("t", "s")
    def _check_position(self, proposal: Any) -> int:
        if not 0 <= proposal["value"] < LONGEST:
            raise traitlets.TraitError(
                _("{name} is {value}: give a position from 0 to {last}").format(
                    name=proposal["trait"].name, value=proposal["value"], last=LONGEST - 1
                )
            )
        return int(proposal["value"])

    @traitlets.validate("base")
    def _check_base(self, proposal: Any) -> int:
        if proposal["value"] not in BASES:
            raise traitlets.TraitError(
                _("base is {value}: give one of {bases}").format(
                    value=proposal["value"], bases=", ".join(map(str, BASES))
                )
            )
        return int(proposal["value"])

    def reference(self) -> dict[str, Any]:
        """The state, the turned vectors (8 numbers each) and their score, computed by Rotary."""
        # Imported late: at grading this module is there, and the answers are not.
        from solutions.positional_encoding import Rotary  # noqa: PLC0415

        rotary = Rotary(len(QUERY), base=float(self.base))
        query = rotary(torch.tensor([QUERY], dtype=torch.float64), offset=self.t)[0]
        key = rotary(torch.tensor([KEY], dtype=torch.float64), offset=self.s)[0]
        score = float(query @ key) / len(QUERY) ** 0.5
        return {
            "t": self.t,
            "s": self.s,
            "base": self.base,
            "query": query.tolist(),
            "key": key.tolist(),
            "score": score,
        }

    def __repr__(self) -> str:
        """What stands in place of the figure where nothing can be drawn; the same on every run."""
        return f"PositionClock(score={self.initial.get('score', 0.0):.3f})"
