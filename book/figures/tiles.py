"""Attention in tiles: a moving figure of blocks of queries and keys, and of one row's numbers.

``tiles.js`` draws it. This module says what it starts from, what it says, and what the right
numbers are: the output and the logsumexp from the reference attention, the bytes counted on slices
as a kernel would load and store them.
"""

import math
from collections.abc import Iterator
from typing import Any

import anywidget
import torch
import traitlets
from torch import Tensor

from autograder.i18n import _
from book.figures.common import module

MAX_LENGTH = 16
"""So many columns of cells fit a phone."""

BYTES_PER_NUMBER = 4
"""The figure counts float32."""

MEMORIES = (128, 256, 384, 512, 768, 1024, 2048)
"""Sizes of the fast memory in bytes that the slider offers; a GPU's are a thousand times larger."""


def example(seed: int, length: int, last: float = 1.0) -> list[list[float]]:
    """Vectors of two components, (length, 2): normal numbers with two decimals.

    Their size goes from 1 to ``last``: keys that grow raise the maximum again and again.
    """
    noise = torch.Generator().manual_seed(seed)
    drawn = torch.randn(length, 2, generator=noise, dtype=torch.float64)
    drawn *= torch.linspace(1.0, last, length, dtype=torch.float64)[:, None]
    return [[round(float(x), 2) for x in row] for row in drawn]


def causal(T: int, S: int) -> Tensor:
    """The causal mask (T, S), True where attention is allowed; the last query sees the last key."""
    return torch.ones(T, S, dtype=torch.bool).tril(S - T)


def tiles_of(mask: Tensor, block_q: int, block_k: int) -> Iterator[tuple[int, int]]:
    """The tiles, row by row, in which a mask (T, S) allows anything: (query block, key block)."""
    for i, rows in enumerate(mask.split(block_q, dim=0)):
        for j, part in enumerate(rows.split(block_k, dim=1)):
            if part.any():
                yield i, j


def traffic(mask: Tensor, block_q: int, block_k: int, d: int) -> tuple[int, int]:
    """Numbers to and from main memory of one head's forward pass: plain, and in tiles.

    Plain: q and k are read, T × S scores written and read, T × S weights written and read, v read
    and the output written; nothing is saved by a mask. In tiles: each block of queries is read
    once, and for it every block of keys and values that it may see; the output and one logsumexp a
    query are written.

    Args:
        mask: shape (T, S), True where attention is allowed.
        block_q: queries in a block.
        block_k: keys in a block.
        d: width of the head.
    """
    T, S = mask.shape
    queries, keys = torch.zeros(T, d), torch.zeros(S, d)
    plain = 2 * queries.numel() + 2 * keys.numel() + 4 * mask.numel()
    tiled, begun = 0, set()
    for i, j in tiles_of(mask, block_q, block_k):
        rows = queries.split(block_q)[i]
        if i not in begun:
            begun.add(i)
            tiled += 2 * rows.numel() + rows.size(0)  # queries in; output and logsumexp out
        tiled += 2 * keys.split(block_k)[j].numel()  # keys and values in
    return plain, tiled


def sentences() -> dict[str, str]:
    """Every word that the figure shows or says, in the reader's language."""
    return {
        "figure": _("Attention in tiles"),
        "how": _(
            "Step through the tiles with the buttons or the slider, choose the row to follow, and "
            "change the blocks. A click on the map goes to a row and a tile."
        ),
        "settings": _("Settings"),
        "step": _("tile"),
        "row": _("row followed"),
        "block_q": _("queries a block"),
        "block_k": _("keys a block"),
        "memory": _("fast memory"),
        "causal": _("causal"),
        "rescale": _("rescale the accumulator"),
        "back": _("Back"),
        "next": _("Next"),
        "reset": _("Reset"),
        "bytes": _("{n} bytes"),
        "map": _("Scores: queries in rows, keys in columns"),
        "keys_axis": _("keys and values"),
        "queries_axis": _("queries"),
        "range": _("{first}–{last}"),
        "map_note": _(
            "Tile {at} of {tiles}: queries {queries} against keys {keys}. "
            "Tiles that the mask hides and nobody computes: {skipped}."
        ),
        "legend": _(
            "Thick frame: the tile being computed. Grey: done. Dashed with a stroke: skipped. Full "
            "bars at the edges: the blocks in fast memory. The larger a square, the larger its "
            "exp(s − m); a dot is a hidden score."
        ),
        "map_spoken": _(
            "Tile {visited} of {tiles}, queries {queries}, keys {keys}; {skipped} tiles skipped. "
            "Row {row} has seen {seen} keys."
        ),
        "row_title": _("Row {row} now"),
        "running_maximum": _("running maximum m"),
        "running_sum": _("running sum ℓ"),
        "accumulator": _("accumulator a"),
        "output_now": _("output so far, a / ℓ"),
        "error_now": _("off by"),
        "walk": _("The row's way through the keys"),
        "keys_column": _("keys"),
        "largest_column": _("largest"),
        "factor_column": _("factor"),
        "error_column": _("off by"),
        "hidden": _("hidden"),
        "walk_note": _(
            "Largest: the largest score of the block. Factor: what the old ℓ and the old a are "
            "multiplied by, exp(old m − new m); 1 where the maximum stays, 0 at the first block."
        ),
        "broken_note": _(
            "The accumulator misses its factor while ℓ gets it: what was summed under an old "
            "maximum weighs too much from the first block on that raises the maximum."
        ),
        "fast": _("In fast memory at once"),
        "fits": _(
            "{needed} of {there} bytes: blocks of q, k and v, the scores of the tile, a, m and ℓ."
        ),
        "too_large": _(
            "{needed} bytes are needed and {there} are there: the blocks do not fit. Make them "
            "smaller."
        ),
        "fits_word": _("The blocks fit"),
        "too_large_word": _("The blocks do not fit"),
        "traffic": _("Bytes to and from main memory"),
        "form_column": _("form"),
        "bytes_column": _("bytes"),
        "share_column": _("share"),
        "plain_line": _("plain: scores and weights are stored"),
        "so_far_line": _("in tiles, so far"),
        "tiled_line": _("in tiles, all of them"),
        "traffic_note": _(
            "For a head of width {d}, {bytes} bytes a number. Keys and values are read once for "
            "each block of queries: larger blocks of queries save traffic and need fast memory."
        ),
        "agrees": _(
            "Outputs, logsumexp and bytes were computed in Python, by the reference attention and "
            "on slices. The figure's own agree with them."
        ),
        "differs": _("The figure's numbers differ from those of Python: do not trust it."),
        "spoken": _(
            "Tile {step} of {steps}. Row {row}: maximum {m}, sum {sum}, off by {error}. {fits}."
        ),
        "spoken_power": _("{number} times ten to the {power}"),
    }


class Tiles(anywidget.AnyWidget):
    """One head's attention, T queries over S keys, computed tile by tile.

    Args:
        q: T queries, each of d numbers; 2 <= T <= S <= 16.
        k: S keys of as many numbers.
        v: their S values of as many numbers.
        causal: whether a query sees only the keys up to its own place (the last the last).
        rescale: whether the accumulator is multiplied by its factor; False is the mistake.
        block_q: queries in a block, 2 to T.
        block_k: keys in a block, 2 to S.
        memory: fast memory in bytes, one of ``MEMORIES``.
        row: the query that is followed, from 0.
        step: the tile shown, from 0, in the order of their computation.

    Raises:
        traitlets.TraitError: one of these is something else; the message says which.
    """

    _esm = module("tiles")

    q = traitlets.List(example(0, 12)).tag(sync=True)
    k = traitlets.List(example(1, 16, 3.0)).tag(sync=True)
    v = traitlets.List(example(2, 16)).tag(sync=True)
    causal = traitlets.Bool(True).tag(sync=True)
    rescale = traitlets.Bool(True).tag(sync=True)
    block_q = traitlets.Int(4).tag(sync=True)
    block_k = traitlets.Int(3).tag(sync=True)
    memory = traitlets.Int(256).tag(sync=True)
    row = traitlets.Int(10).tag(sync=True)
    step = traitlets.Int(9).tag(sync=True)
    bytes_per_number = traitlets.Int(BYTES_PER_NUMBER, read_only=True).tag(sync=True)
    memories = traitlets.List(list(MEMORIES), read_only=True).tag(sync=True)
    text = traitlets.Dict(read_only=True).tag(sync=True)
    initial = traitlets.Dict(read_only=True).tag(sync=True)
    """The state that the figure returns to, and its ``numbers``: ``reference()``."""

    def __init__(self, **state: Any) -> None:
        super().__init__(**state)
        T, S = len(self.q), len(self.k)
        d = len(self.q[0]) if self.q else 0
        if not 2 <= T <= S <= MAX_LENGTH:
            raise traitlets.TraitError(
                _("{T} queries, {S} keys: give 2 to {most}, and no more queries than keys").format(
                    T=T, S=S, most=MAX_LENGTH
                )
            )
        for name, table, length in (("q", self.q, T), ("k", self.k, S), ("v", self.v, S)):
            if len(table) != length or any(
                len(vector) != d or not all(map(math.isfinite, vector)) for vector in table
            ):
                raise traitlets.TraitError(
                    _("{name}: give {length} rows of {d} numbers").format(
                        name=name, length=length, d=d
                    )
                )
        for name, value, least, most in (
            ("block_q", self.block_q, 2, T),
            ("block_k", self.block_k, 2, S),
            ("row", self.row, 0, T - 1),
            ("step", self.step, 0, len(self.tiles()) - 1),
        ):
            if not least <= value <= most:
                raise traitlets.TraitError(
                    _("{name} is {value}: give {least} to {most}").format(
                        name=name, value=value, least=least, most=most
                    )
                )
        if self.memory not in MEMORIES:
            raise traitlets.TraitError(
                _("memory is {value}: give one of {sizes}").format(
                    value=self.memory, sizes=", ".join(map(str, MEMORIES))
                )
            )
        self.set_trait("text", sentences())
        names = ("causal", "rescale", "block_q", "block_k", "memory", "row", "step")
        self.set_trait(
            "initial", {name: getattr(self, name) for name in names} | {"numbers": self.reference()}
        )

    def mask(self) -> Tensor:
        """The mask (T, S) of the present state, True where attention is allowed."""
        T, S = len(self.q), len(self.k)
        return causal(T, S) if self.causal else torch.ones(T, S, dtype=torch.bool)

    def tiles(self) -> list[tuple[int, int]]:
        """The tiles that are computed, in order: (query block, key block)."""
        return list(tiles_of(self.mask(), self.block_q, self.block_k))

    def reference(self) -> dict[str, Any]:
        """The right numbers of the present state, whatever ``rescale`` says.

        Returns:
            ``tiles``, pairs of a query block and a key block; ``output`` (T, d) and ``logsumexp``
            (T), float64; ``plain_traffic`` and ``tiled_traffic`` in bytes; ``fast``, the bytes that
            lie in fast memory at once.
        """
        # Imported late: at grading this module is there, and the answers are not.
        from solutions.attention import scaled_dot_product_attention  # noqa: PLC0415

        q, k, v = (torch.tensor(x, dtype=torch.float64) for x in (self.q, self.k, self.v))
        mask, d = self.mask(), q.size(-1)
        output, _weights = scaled_dot_product_attention(q, k, v, mask)  # (T, d)
        scores = (q @ k.T / math.sqrt(d)).masked_fill(~mask, -math.inf)  # (T, S)
        plain, tiled = traffic(mask, self.block_q, self.block_k, d)
        fast = 2 * (self.block_q + self.block_k) * d  # q, accumulator, k, v
        fast += self.block_q * self.block_k + 2 * self.block_q  # scores, m, l
        return {
            "tiles": [list(tile) for tile in self.tiles()],
            "output": output.tolist(),
            "logsumexp": scores.logsumexp(dim=-1).tolist(),
            "plain_traffic": BYTES_PER_NUMBER * plain,
            "tiled_traffic": BYTES_PER_NUMBER * tiled,
            "fast": BYTES_PER_NUMBER * fast,
        }

    def __repr__(self) -> str:
        """What stands in place of the figure where nothing can be drawn; the same on every run."""
        numbers = self.initial.get("numbers", {})
        return (
            f"Tiles(tiles={len(numbers.get('tiles', ()))}, "
            f"bytes={numbers.get('tiled_traffic')} of {numbers.get('plain_traffic')})"
        )
