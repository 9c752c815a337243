"""Byte pairs step by step: join the most frequent pair, and see words grow together.

``byte_pairs.js`` draws it. This module says what it starts from and what it says; the numbers of
its first state come from the reference functions.
"""

from typing import Any

import anywidget
import traitlets

from autograder.i18n import _
from book.figures.common import module

WORDS = (("low", 5), ("lower", 2), ("newest", 6), ("widest", 3), ("wider", 2), ("slow", 1))
"""Words and how often each occurs."""

MOST = 12
"""The slider goes this far."""


def sentences() -> dict[str, str]:
    """Every word that the figure shows or says, in the reader's language."""
    return {
        "figure": _("Byte pairs, merge by merge"),
        "how": _("Move the slider: each step joins the most frequent pair of neighbours."),
        "settings": _("Merges"),
        "merges": _("merges"),
        "next": _("Next merge"),
        "reset": _("Reset"),
        "words": _("The words, cut into tokens"),
        "word": _("word"),
        "times": _("times"),
        "tokens": _("tokens"),
        "pairs": _("Pairs of neighbours, most frequent first"),
        "pair": _("pair"),
        "count": _("count"),
        "chosen": _("joined next"),
        "none": _("No pair is left: every word is one token."),
        "learned": _("Learned so far: {tokens}"),
        "nothing": _("nothing yet"),
        "total": _("Tokens of the whole text: {tokens}. Tokens in the vocabulary: {vocabulary}."),
        "agrees": _(
            "The first merges were computed in Python as well. The figure's own agree with them."
        ),
        "differs": _("The figure's merges differ from Python's: do not trust it."),
        "spoken": _("{merges} merges. {total}"),
    }


class BytePairs(anywidget.AnyWidget):
    """A few words, and the merges that their counts ask for.

    Args:
        merges: how many merges are done at first, 0 to 12.

    Raises:
        traitlets.TraitError: another number.
    """

    _esm = module("byte_pairs")

    merges = traitlets.Int(0).tag(sync=True)
    words = traitlets.List([list(word) for word in WORDS], read_only=True).tag(sync=True)
    most = traitlets.Int(MOST, read_only=True).tag(sync=True)
    text = traitlets.Dict(read_only=True).tag(sync=True)
    initial = traitlets.Dict(read_only=True).tag(sync=True)

    def __init__(self, **state: Any) -> None:
        super().__init__(**state)
        self.set_trait("text", sentences())
        self.set_trait("initial", self.reference())

    @traitlets.validate("merges")
    def _check_merges(self, proposal: Any) -> int:
        if not 0 <= proposal["value"] <= MOST:
            raise traitlets.TraitError(
                _("merges is {value}: give a number from 0 to {most}").format(
                    value=proposal["value"], most=MOST
                )
            )
        return int(proposal["value"])

    def reference(self) -> dict[str, Any]:
        """All merges in order, and the words' tokens after the last of them."""
        # Imported late: at grading this module is there, and the answers are not.
        from solutions.embeddings import merge_pair, most_frequent_pair  # noqa: PLC0415

        words = [(tuple(word), times) for word, times in WORDS]
        pairs: list[list[str]] = []
        for _merge in range(MOST):
            pair = most_frequent_pair(words)
            if pair is None:
                break
            pairs.append(list(pair))
            words = [(merge_pair(symbols, pair), times) for symbols, times in words]
        return {
            "merges": self.merges,
            "pairs": pairs,
            "tokens": [list(symbols) for symbols, _times in words],
        }

    def __repr__(self) -> str:
        """What stands in place of the figure where nothing can be drawn; the same on every run."""
        first = ", ".join("".join(pair) for pair in self.initial.get("pairs", [])[:3])
        return f"BytePairs(first merges: {first})"
