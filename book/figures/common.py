"""Joins a figure's own ES module with what all figures share.

A browser is given one module that stands alone: a page opened from a disk, Jupyter and Colab have
no place from which a second one could be imported.
"""

from pathlib import Path

FOLDER = Path(__file__).parent


def module(name: str) -> str:
    """The ES module of the figure ``name``: ``common.js``, then ``NAME.js``."""
    return "\n".join(
        (FOLDER / f"{part}.js").read_text(encoding="utf-8") for part in ("common", name)
    )
