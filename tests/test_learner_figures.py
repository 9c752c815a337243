"""A plot with its alternative text."""

from __future__ import annotations

import base64
import struct
from typing import Any

import matplotlib as mpl
import pytest

mpl.use("Agg")

import matplotlib.pyplot as plt

from autograder.learner import figures


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What would have been displayed."""
    found: list[dict[str, Any]] = []

    def display(data: dict[str, Any], *, metadata: dict[str, Any], raw: bool) -> None:
        assert raw
        found.append({"data": data, "metadata": metadata})

    plt.switch_backend("Agg")  # before the shell below, which is none, is asked for hooks
    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr("IPython.get_ipython", lambda: "a shell")
    plt.close("all")
    return found


def draw() -> None:
    plt.figure(figsize=(2, 1), dpi=50)
    plt.plot([1, 2])


def test_shows_the_current_figure_with_its_text_and_closes_it(shown: list[dict[str, Any]]) -> None:
    draw()
    figures.alt("A line that\n   climbs.")
    (item,) = shown
    assert item["data"]["text/plain"] == "A line that climbs."
    png = base64.b64decode(item["data"]["image/png"])
    width, height = struct.unpack(">II", png[16:24])
    metadata = item["metadata"]["image/png"]
    assert metadata["alt"] == "A line that climbs."
    # drawn with two pixels for each pixel of the page
    assert (metadata["width"], metadata["height"]) == (width // 2, height // 2)
    assert plt.get_fignums() == []


def test_the_same_plot_is_the_same_bytes(shown: list[dict[str, Any]]) -> None:
    for _ in range(2):
        draw()
        figures.alt("A line.")
    assert shown[0] == shown[1]


def test_another_figure_may_be_named(shown: list[dict[str, Any]]) -> None:
    named, _ = plt.figure(), plt.figure()
    figures.alt("An empty figure.", named)
    assert len(shown) == 1
    assert plt.get_fignums() == [2]
    plt.close("all")


def test_without_a_figure_it_says_so(
    shown: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    figures.alt("Nothing.")
    assert shown == []
    assert capsys.readouterr().out.startswith("✘ There is no figure to show")
