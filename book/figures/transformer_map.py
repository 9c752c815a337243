"""A map of the whole Transformer: choose a part to see its shapes, its parameters, its chapter.

``transformer_map.js`` draws it. This module says what it starts from and what it says; the numbers
of its first state are counted by torch, on modules that hold no data (device ``meta``).
"""

from typing import Any

import anywidget
import traitlets
from torch import nn

from autograder.i18n import _
from book.figures.common import module

SIZES = {
    "B": [1, 64, 32],
    "S": [1, 64, 7],
    "T": [1, 64, 5],
    "H": [1, 16, 8],
    "d": [8, 128, 64],
    "F": [64, 4096, 2048],
    "N": [1, 12, 6],
    "V": [1000, 50000, 37000],
}
"""Lowest, highest and first value of each slider; the first are the base model's of Vaswani et al.
2017, table 3, with the shared vocabulary of its section 5.1 (about 37,000)."""

PARTS = {
    "source_embedding": "embeddings",
    "source_positions": "positional_encoding",
    "encoder_attention": "multi_head",
    "encoder_norm": "encoder",
    "encoder_feed_forward": "encoder",
    "target_embedding": "embeddings",
    "target_positions": "positional_encoding",
    "decoder_attention": "decoder",
    "cross_attention": "decoder",
    "decoder_norm": "encoder",
    "decoder_feed_forward": "encoder",
    "output": "decoder",
}
"""The parts of the map, from below, and the stem of the chapter that builds each."""


def sentences() -> dict[str, Any]:
    """Every word that the figure shows or says, in the reader's language."""
    return {
        "figure": _("Map of the Transformer"),
        "how": _("Choose a part (click it, or Tab and Enter). Move a slider and shapes follow."),
        "settings": _("Sizes"),
        "reset": _("Reset"),
        "encoder": _("encoder, {N} layers"),
        "decoder": _("decoder, {N} layers"),
        "source": _("source tokens"),
        "target": _("target tokens so far"),
        "next": _("next token's probabilities"),
        "in": _("in"),
        "out": _("out"),
        "parameters": _("parameters, all layers"),
        "none": _("none"),
        "shared": _("the same numbers as those of the embedding"),
        "total": _("Parameters of the whole model"),
        "chapter": _("Go to the chapter"),
        "memory": _("the encoder's output"),
        "agrees": _(
            "The first count was made in Python, by torch. The figure's own agrees with it."
        ),
        "differs": _("The figure's first count differs from torch's: do not trust it."),
        "spoken": _("{part}: {shapes}. {parameters} parameters."),
        "parts": {
            "source_embedding": _("embedding"),
            "source_positions": _("positions added"),
            "encoder_attention": _("self-attention, {H} heads"),
            "encoder_norm": _("add and normalize 2×"),
            "encoder_feed_forward": _("feed-forward"),
            "target_embedding": _("embedding"),
            "target_positions": _("positions added"),
            "decoder_attention": _("causal self-attention"),
            "cross_attention": _("cross-attention"),
            "decoder_norm": _("add and normalize 3×"),
            "decoder_feed_forward": _("feed-forward"),
            "output": _("linear, softmax"),
        },
        "notes": {
            "source_embedding": _("Gives each source token its vector, by looking it up."),
            "source_positions": _("Without it, the encoder could not tell one order from another."),
            "encoder_attention": _(
                "Each source position takes what it needs from all source positions. Queries and "
                "keys make one S × S table of weights per head."
            ),
            "encoder_norm": _(
                "After attention and after the feed-forward: the input is added back, and each "
                "vector is brought to a common scale."
            ),
            "encoder_feed_forward": _("Works on each position alone: D to F and back to D."),
            "target_embedding": _("The tokens written so far, with a start sign in front."),
            "target_positions": _("The same positions as on the source side."),
            "decoder_attention": _(
                "Like the encoder's, but no position sees one that comes later."
            ),
            "cross_attention": _(
                "Queries from the target, keys and values from the encoder's output: one T × S "
                "table of weights per head."
            ),
            "decoder_norm": _("The same as in the encoder, after each of three sub-layers."),
            "decoder_feed_forward": _("The same form as in the encoder, with its own numbers."),
            "output": _(
                "Compares each position with every word of the vocabulary; the paper shares these "
                "numbers with both embeddings."
            ),
        },
    }


def count_parameters(sizes: dict[str, int]) -> dict[str, int]:
    """Parameters of each part over all layers, counted on torch's own modules.

    Args:
        sizes: ``H``, ``d``, ``F``, ``N``, ``V``.

    Returns:
        Part → number of parameters; the output shares the embedding's and counts 0.

    Source: Vaswani et al. 2017, figure 1 (the parts), section 3.4 (the shared embedding).
    """
    heads, width, layers = sizes["H"], sizes["H"] * sizes["d"], sizes["N"]

    def count(module: nn.Module) -> int:
        return layers * sum(parameter.numel() for parameter in module.parameters())

    attention = count(nn.MultiheadAttention(width, heads, device="meta"))
    norm = count(nn.LayerNorm(width, device="meta"))
    feed_forward = count(
        nn.Sequential(
            nn.Linear(width, sizes["F"], device="meta"), nn.Linear(sizes["F"], width, device="meta")
        )
    )
    return {
        "source_embedding": sizes["V"] * width,
        "source_positions": 0,
        "encoder_attention": attention,
        "encoder_norm": 2 * norm,
        "encoder_feed_forward": feed_forward,
        "target_embedding": 0,
        "target_positions": 0,
        "decoder_attention": attention,
        "cross_attention": attention,
        "decoder_norm": 3 * norm,
        "decoder_feed_forward": feed_forward,
        "output": 0,
    }


class TransformerMap(anywidget.AnyWidget):
    """The encoder–decoder of 2017 with its sizes on sliders.

    Args:
        sizes: ``B, S, T, H, d, F, N, V``; what is left out is the base model's.
        part: the part that is chosen at first, a key of ``PARTS``.

    Raises:
        traitlets.TraitError: a size outside its slider, or an unknown part.
    """

    _esm = module("transformer_map")

    sizes = traitlets.Dict({name: first for name, (_l, _h, first) in SIZES.items()}).tag(sync=True)
    part = traitlets.Unicode("encoder_attention").tag(sync=True)
    ranges = traitlets.Dict(SIZES, read_only=True).tag(sync=True)
    chapters = traitlets.Dict(PARTS, read_only=True).tag(sync=True)
    text = traitlets.Dict(read_only=True).tag(sync=True)
    initial = traitlets.Dict(read_only=True).tag(sync=True)

    def __init__(self, **state: Any) -> None:
        super().__init__(**state)
        self.set_trait("text", sentences())
        self.set_trait("initial", self.reference())

    @traitlets.validate("sizes")
    def _check_sizes(self, proposal: Any) -> dict[str, int]:
        sizes = {name: first for name, (_l, _h, first) in SIZES.items()} | proposal["value"]
        for name, size in sizes.items():
            lowest, highest, _first = SIZES.get(name, (0, -1, 0))
            if not lowest <= size <= highest:
                raise traitlets.TraitError(
                    _("{name} is {size}: give {names} within its slider's range").format(
                        name=name, size=size, names=", ".join(SIZES)
                    )
                )
        return sizes

    @traitlets.validate("part")
    def _check_part(self, proposal: Any) -> str:
        if proposal["value"] not in PARTS:
            raise traitlets.TraitError(
                _("no part {part}: give one of {parts}").format(
                    part=proposal["value"], parts=", ".join(PARTS)
                )
            )
        return str(proposal["value"])

    def reference(self) -> dict[str, Any]:
        """The sizes and the number of parameters of each part, counted by torch."""
        parameters = count_parameters(self.sizes)
        return {
            "sizes": dict(self.sizes),
            "part": self.part,
            "parameters": parameters,
            "total": sum(parameters.values()),
        }

    def __repr__(self) -> str:
        """What stands in place of the figure where nothing can be drawn; the same on every run."""
        return f"TransformerMap(parameters={self.initial.get('total', 0):,})"
