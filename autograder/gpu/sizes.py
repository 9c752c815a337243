"""How large everything is: on a GPU, and where the script itself is tried out on a CPU."""

from __future__ import annotations

from dataclasses import dataclass

Blocks = dict[str, int]
"""Keyword arguments of a launcher: blocks, and what the compiler may choose from."""


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Attributes:
        lengths: T = S of the timed cases.
        widths: d, the widths of a head.
        dtypes: names of the types that are timed.
        tokens: B · T, the same for every length, as in the measurements of Dao 2023, section 4.1.
        model_width: D = H · d, the same for every width.
        pairs: T and S of the cases that are compared with float64.
        tuned_at: the length at which blocks are chosen.
        forward_blocks: choices for the forward kernel, the first is taken where none is tried.
        backward_blocks: the same for the backward kernels.
    """

    lengths: tuple[int, ...]
    widths: tuple[int, ...]
    dtypes: tuple[str, ...]
    tokens: int
    model_width: int
    pairs: tuple[tuple[int, int], ...]
    tuned_at: int
    forward_blocks: tuple[Blocks, ...]
    backward_blocks: tuple[Blocks, ...]


def _blocks(block_q: int, block_k: int, num_warps: int, num_stages: int) -> Blocks:
    return {
        "block_q": block_q,
        "block_k": block_k,
        "num_warps": num_warps,
        "num_stages": num_stages,
    }


FULL = Sizes(
    lengths=(512, 1024, 2048, 4096, 8192, 16384),
    widths=(64, 128),
    dtypes=("bfloat16", "float16"),
    tokens=16384,
    model_width=2048,
    pairs=((256, 256), (200, 333), (333, 200), (3, 500)),
    tuned_at=4096,
    forward_blocks=(
        _blocks(128, 64, 4, 3),
        _blocks(128, 128, 8, 3),
        _blocks(128, 64, 8, 3),
        _blocks(128, 128, 8, 2),
        _blocks(128, 32, 4, 4),
        _blocks(64, 64, 4, 3),
    ),
    backward_blocks=(
        _blocks(64, 64, 4, 3),
        _blocks(64, 128, 8, 2),
        _blocks(64, 64, 8, 2),
        _blocks(128, 64, 8, 2),
    ),
)

TINY = Sizes(
    lengths=(32, 64),
    widths=(16,),
    dtypes=("bfloat16", "float16"),
    tokens=64,
    model_width=16,
    pairs=((20, 36), (36, 20)),
    tuned_at=32,
    forward_blocks=({"block_q": 16, "block_k": 16}, {"block_q": 32, "block_k": 32}),
    backward_blocks=({"block_q": 32, "block_k": 32},),
)
"""For the interpreter: what is to be seen is that every part runs, not how fast."""
