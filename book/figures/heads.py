"""Heads of a trained model: a moving figure that switches them off one by one.

``heads.js`` draws it. The model's output map and its read-out are linear, so its logits are a sum:
what the biases give, and a part of each head. The chapter computes these parts once, and the figure
adds up those of the heads that are on. Accuracies cannot be computed from one sequence: the chapter
measures them on a test set for every subset of the heads.
"""

from typing import Any

import anywidget
import torch
import traitlets
from torch import Tensor

from autograder.i18n import _
from book.figures.common import module

MAX_HEADS = 6
"""The figure has this many marks that can be told apart; 2⁶ accuracies are still few."""


def sentences() -> dict[str, str]:
    """Every word that the figure shows or says, in the reader's language."""
    return {
        "figure": _("Heads, switched off one by one"),
        "how": _(
            "Choose the position that asks, and switch heads off. Rows of a map are queries, "
            "columns keys; the darker, the more weight."
        ),
        "settings": _("Settings"),
        "query": _("asking position"),
        "position": _("position {t}, {token}"),
        "reset": _("Reset"),
        "head": _("head {h}"),
        "map": _("Weights of head {h}: queries in rows, keys in columns"),
        "looks": _("looks most at {token} (position {t}): {weight}"),
        "off": _("switched off: its part is left out"),
        "answers": _("What the model answers at this position"),
        "question": _("question"),
        "truth": _("right"),
        "says": _("model"),
        "sure": _("probability"),
        "accuracy": _("right on test texts"),
        "is_right": _("{letter} ✓"),
        "is_wrong": _("{letter} ✗"),
        "agrees": _(
            "The starting probabilities were computed in Python, by the trained model. The "
            "figure's own agree with them."
        ),
        "differs": _("The figure's starting numbers differ from those of Python: do not trust it."),
        "spoken": _("Asking: {query}. Heads off: {off}. {answers}."),
        "spoken_answer": _("{question}: {letter}, {share} percent right on test texts"),
        "none": _("none"),
    }


def subsets(H: int) -> list[list[bool]]:
    """Which heads are on, for each row of the table of accuracies: head h counts 2^h."""
    return [[bool(row >> h & 1) for h in range(H)] for row in range(2**H)]


class Heads(anywidget.AnyWidget):
    """H heads of a model that answers Q questions at each of T positions, with V possible answers.

    Args:
        tokens: the sequence as it is shown, T texts.
        letters: the possible answers, V texts.
        questions: Q texts.
        right: the right answers, (T, Q) indices into ``letters``.
        weights: (H, T, T), what each head attends to.
        base: (Q, V), the logits with every head off.
        parts: (H, T, Q, V), what each head adds to the logits.
        accuracy: (2^H, Q), the share of right answers on a test set, for each of ``subsets(H)``.
        on: which heads are on at first; all by default.
        query: the position that asks at first.

    Raises:
        traitlets.TraitError: sizes that do not fit together; the message says which.

    Without arguments it shows two heads of a model of three positions that was made by hand.
    """

    _esm = module("heads")

    tokens = traitlets.List(["a", "b", "c"]).tag(sync=True)
    letters = traitlets.List(["a", "b", "c"]).tag(sync=True)
    questions = traitlets.List([_("the letter before"), _("the first letter")]).tag(sync=True)
    right = traitlets.List([[2, 0], [0, 0], [1, 0]]).tag(sync=True)
    weights = traitlets.List(
        [
            [[0.05, 0.05, 0.9], [0.9, 0.05, 0.05], [0.05, 0.9, 0.05]],
            [[0.9, 0.05, 0.05], [0.9, 0.05, 0.05], [0.9, 0.05, 0.05]],
        ]
    ).tag(sync=True)
    base = traitlets.List([[0.0, 0.5, 0.0], [0.0, 0.0, 0.5]]).tag(sync=True)
    parts = traitlets.List(
        [
            [[[0, 0, 3], [0, 0, 0]], [[3, 0, 0], [0, 0, 0]], [[0, 3, 0], [0, 0, 0]]],
            [[[0, 0, 0], [3, 0, 0]], [[0, 0, 0], [3, 0, 0]], [[0, 0, 0], [3, 0, 0]]],
        ]
    ).tag(sync=True)
    accuracy = traitlets.List([[0.33, 0.0], [1.0, 0.0], [0.33, 1.0], [1.0, 1.0]]).tag(sync=True)
    on = traitlets.List([True, True]).tag(sync=True)
    query = traitlets.Int(1).tag(sync=True)
    text = traitlets.Dict(read_only=True).tag(sync=True)
    initial = traitlets.Dict(read_only=True).tag(sync=True)
    """The state that the figure starts from and returns to, and its probabilities."""

    def __init__(self, **state: Any) -> None:
        plain = {
            name: value.tolist() if isinstance(value, Tensor) else value
            for name, value in state.items()
        }
        if "weights" in plain:
            plain.setdefault("on", [True] * len(plain["weights"]))
        super().__init__(**plain)
        self._check_sizes()
        self.set_trait("text", sentences())
        self.set_trait("initial", self.reference())

    def _check_sizes(self) -> None:
        H, T = len(self.weights), len(self.tokens)
        Q, V = len(self.questions), len(self.letters)
        wanted = {
            "right": (T, Q),
            "weights": (H, T, T),
            "base": (Q, V),
            "parts": (H, T, Q, V),
            "accuracy": (2**H, Q),
            "on": (H,),
        }
        if not 1 <= H <= MAX_HEADS:
            raise traitlets.TraitError(
                _("weights has {n} heads: give 1 to {most}").format(n=H, most=MAX_HEADS)
            )
        for name, shape in wanted.items():
            found = _shape(getattr(self, name))
            if found != shape:
                raise traitlets.TraitError(
                    _("{name} has shape {found}: with these tokens it must be {shape}").format(
                        name=name, found=found, shape=shape
                    )
                )
        if not 0 <= self.query < T:
            raise traitlets.TraitError(
                _("query is {query}: give a position from 0 to {last}").format(
                    query=self.query, last=T - 1
                )
            )

    def reference(self) -> dict[str, Any]:
        """What the figure shows for its present state, computed by torch.

        Returns:
            ``on``, ``query`` and ``probabilities`` (Q, V), in float64, as plain lists.
        """
        parts = torch.tensor(self.parts, dtype=torch.float64)  # (H, T, Q, V)
        logits = torch.tensor(self.base, dtype=torch.float64)  # (Q, V)
        logits = logits + parts[torch.tensor(self.on), self.query].sum(dim=0)
        return {
            "on": list(self.on),
            "query": self.query,
            "probabilities": torch.softmax(logits, dim=-1).tolist(),
        }

    def __repr__(self) -> str:
        """What stands in place of the figure where nothing can be drawn; the same on every run."""
        return f"Heads({len(self.weights)} heads, {len(self.tokens)} positions)"


def _shape(value: Any) -> tuple[int, ...]:
    """The shape of nested lists; that of the first item speaks for all."""
    if not isinstance(value, list | tuple):
        return ()
    if not value:
        return (0,)
    inner = _shape(value[0])
    # Rows of different lengths have no shape: -1 fits nothing.
    return (len(value), *(inner if all(_shape(item) == inner for item in value) else (-1,)))
