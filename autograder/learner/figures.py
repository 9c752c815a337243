"""Shows a plot together with the sentence that says what is in it."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

from autograder.i18n import _

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARPNESS = 2
"""Pixels of the picture for each pixel of the page: screens of today have two."""


def alt(text: str, figure: Figure | None = None) -> None:
    """Show a figure with its alternative text, and close it.

    Args:
        text: one sentence that says what the plot shows, for those who cannot see it.
        figure: the current one by default.
    """
    # Matplotlib takes a second to import; a notebook that plots has it already.
    import matplotlib.pyplot as plt  # noqa: PLC0415

    if figure is None:
        if not plt.get_fignums():
            print(_("✘ There is no figure to show: plot something first, in the same cell."))
            return
        figure = plt.gcf()
    text = " ".join(text.split())
    dots = figure.get_dpi()
    buffer = io.BytesIO()
    # Without the version of Matplotlib in it, the same plot is the same bytes.
    figure.savefig(
        buffer,
        format="png",
        dpi=SHARPNESS * dots,
        bbox_inches="tight",
        metadata={"Software": None},
    )
    plt.close(figure)
    data = buffer.getvalue()
    width, height = (int.from_bytes(data[at : at + 4], "big") // SHARPNESS for at in (16, 20))
    try:
        from IPython import get_ipython  # noqa: PLC0415
        from IPython.display import display  # noqa: PLC0415
    except ImportError:
        return
    if get_ipython() is None:
        return
    display(
        {"image/png": base64.b64encode(data).decode("ascii"), "text/plain": text},
        metadata={"image/png": {"alt": text, "height": height, "width": width}},
        raw=True,
    )
