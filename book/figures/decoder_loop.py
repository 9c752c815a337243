"""The decoder's loop: a moving figure of one text being written, with a cache or without.

``decoder_loop.js`` draws it. What it shows is one attention head of a decoder while it writes; the
page hands the numbers of its own model over. This module says what the figure says, and computes
the right numbers with the reference: ``causal_mask``, ``masked_softmax``, and the work counted on
masks.
"""

from typing import Any

import anywidget
import torch
import traitlets
from torch import Tensor

from autograder.i18n import _
from book.figures.common import module

MAX_WORDS = 9
"""So many rows fit a phone, the start sign included."""

MAX_CANDIDATES = 5


def example_scores(rows: int, columns: int, seed: int) -> list[list[float]]:
    """Scores of a head that learned nothing: normal numbers, for a figure without a model."""
    noise = torch.Generator().manual_seed(seed)
    drawn = torch.randn(rows, columns, generator=noise, dtype=torch.float64)
    return [[float(score) for score in row] for row in drawn]


def work_so_far(step: int, *, cached: bool) -> dict[str, int]:
    """What the decoder has computed when the token of ``step`` (from 0) is written.

    Returns:
        ``positions`` that went through the layers, and ``scores``: entries of the products of
        queries and keys, masked ones included, of one head in one layer.
    """
    from solutions.decoder import causal_mask  # noqa: PLC0415 - not there at grading

    positions = scores = 0
    for t in range(step + 1):
        queries = 1 if cached else t + 1
        positions += queries
        scores += causal_mask(queries, t + 1).numel()
    return {"positions": positions, "scores": scores}


def sentences() -> dict[str, str]:
    """Every word that the figure shows or says, in the reader's language."""
    return {
        "figure": _("The decoder's loop"),
        "how": _(
            "Go through the text with the buttons or the slider; switch the cache off and on."
        ),
        "settings": _("Settings"),
        "back": _("Back"),
        "next": _("Next"),
        "step": _("step"),
        "cached": _("keep keys and values (cache)"),
        "source_line": _("Source, read once by the encoder"),
        "target_line": _("Read by the decoder in this step"),
        "written": _("Written in this step"),
        "mask": _("Self-attention of one head: queries in rows, keys in columns"),
        "mask_corner": _("query"),
        "mask_note_cached": _(
            "This step computes one row. Keys and values of the columns before it (grey heads) "
            "come from the cache."
        ),
        "mask_note_whole": _(
            "This step computes every row again, though nothing in the rows above the last has "
            "changed: the mask hides the new word from them."
        ),
        "legend": _("Number: a weight, computed now. ✓: computed in an earlier step. ×: hidden."),
        "seen": _("allowed, from an earlier step"),
        "hidden": _("hidden by the causal mask"),
        "later": _("not there yet"),
        "cross": _("Cross-attention of the last row: where it looks in the source"),
        "candidates": _("Probabilities of the next token"),
        "work": _("Work, one head of one layer"),
        "work_column": _("counted"),
        "with_column": _("cache"),
        "without_column": _("no cache"),
        "positions_now": _("positions through the layers, this step"),
        "positions_all": _("… since the start"),
        "scores_now": _("scores computed, this step"),
        "scores_all": _("… since the start"),
        "kept": _("keys kept"),
        "agrees": _(
            "The weights and the counts were computed in Python, by masked_softmax and "
            "causal_mask. The figure's own agree with them."
        ),
        "differs": _("The figure's numbers differ from those of Python: do not trust it."),
        "spoken": _(
            "Step {step} of {steps}: the decoder reads {n} words and writes {word}. "
            "{now} positions now, {all} since the start."
        ),
    }


class DecoderLoop(anywidget.AnyWidget):
    """One text being written token after token, as one attention head sees it.

    Args:
        source: the S words of the source.
        words: the T + 1 words of the target: the start sign first, the end sign last. Step t (from
            0) reads words 0 … t and writes word t + 1.
        scores: self-attention scores of one head, T rows of T; masked entries may be any number.
        memory_weights: cross-attention weights of one head, T rows of S.
        candidates: for each step, pairs of a word and its probability, the largest first.
        step: the step shown, from 0.
        cached: whether keys and values are kept.

    Raises:
        traitlets.TraitError: the sizes do not fit one another; the message says which.
    """

    _esm = module("decoder_loop")

    source = traitlets.List(["hello", "world"]).tag(sync=True)
    words = traitlets.List(["<start>", "bonjour", "le", "monde", "<end>"]).tag(sync=True)
    scores: traitlets.List[Any] = traitlets.List().tag(sync=True)
    memory_weights: traitlets.List[Any] = traitlets.List().tag(sync=True)
    candidates: traitlets.List[Any] = traitlets.List().tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    cached = traitlets.Bool(True).tag(sync=True)
    text = traitlets.Dict(read_only=True).tag(sync=True)
    initial = traitlets.Dict(read_only=True).tag(sync=True)
    """What follows from the scores, for every step: ``reference()``."""

    def __init__(self, **state: Any) -> None:
        words = state.get("words", self.words)
        source = state.get("source", self.source)
        T = len(words) - 1
        if not 1 <= T <= MAX_WORDS:
            raise traitlets.TraitError(
                _("words has {n} words: give 2 to {most}").format(n=T + 1, most=MAX_WORDS + 1)
            )
        state.setdefault("scores", example_scores(T, T, seed=0))
        even = [[1 / max(1, len(source))] * len(source)] * T
        state.setdefault("memory_weights", even)
        state.setdefault("candidates", [[[word, 1.0]] for word in words[1:]])
        super().__init__(**state)
        for name, table, width in (
            ("scores", self.scores, T),
            ("memory_weights", self.memory_weights, len(self.source)),
        ):
            if len(table) != T or any(len(row) != width for row in table):
                raise traitlets.TraitError(
                    _("{name}: give {T} rows of {width} numbers").format(
                        name=name, T=T, width=width
                    )
                )
        if len(self.candidates) != T or not all(
            1 <= len(step) <= MAX_CANDIDATES for step in self.candidates
        ):
            raise traitlets.TraitError(
                _("candidates: give 1 to {most} for each of {T} steps").format(
                    most=MAX_CANDIDATES, T=T
                )
            )
        self.set_trait("text", sentences())
        self.set_trait("initial", self.reference())

    @traitlets.validate("step")
    def _check_step(self, proposal: Any) -> int:
        T = len(self.words) - 1
        if not 0 <= proposal["value"] < T:
            raise traitlets.TraitError(
                _("step is {step}: give 0 to {last}").format(step=proposal["value"], last=T - 1)
            )
        return int(proposal["value"])

    def reference(self) -> dict[str, Any]:
        """The weights of every row, and the work of every step, by the reference.

        Returns:
            ``weights`` (T, T), and ``cached`` and ``whole``: for each step its ``positions`` and
            ``scores`` since the start, with a cache and without.
        """
        # Imported late: at grading this module is there, and the answers are not.
        from solutions.attention import masked_softmax  # noqa: PLC0415
        from solutions.decoder import causal_mask  # noqa: PLC0415

        T = len(self.words) - 1
        scores: Tensor = torch.tensor(self.scores, dtype=torch.float64)  # (T, T)
        return {
            "weights": masked_softmax(scores, causal_mask(T)).tolist(),
            "cached": [work_so_far(step, cached=True) for step in range(T)],
            "whole": [work_so_far(step, cached=False) for step in range(T)],
        }

    def __repr__(self) -> str:
        return f"DecoderLoop(words={self.words})"
