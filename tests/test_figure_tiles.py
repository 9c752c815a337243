"""The tiles figure: its numbers against torch, its words, its buttons and keys by hand."""

import itertools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import traitlets

from book.figures.tiles import MEMORIES, Tiles, causal, sentences, traffic
from tests.test_figures import FIGURES, PAGE, chromium, flat, in_javascript

MODULE = FIGURES / "tiles.js"

# Blocks that divide the lengths and blocks that do not, one block and many, masked and not.
STATES: list[dict[str, Any]] = [
    {"block_q": rows, "block_k": columns, "causal": masked, "row": 0, "step": 0}
    for rows, columns, masked in itertools.product((2, 5, 12), (3, 4, 16), (True, False))
]


def test_the_figure_computes_what_the_reference_computes(tmp_path: Path) -> None:
    widgets = [Tiles(**state) for state in STATES]
    arguments = [
        {**widget.initial, "q": widget.q, "k": widget.k, "v": widget.v, "bytes": 4}
        for widget in widgets
    ]
    computed = in_javascript(MODULE, "argument.map(figure.follow)", arguments, tmp_path)
    for ours, widget in zip(computed, widgets, strict=True):
        right = widget.initial["numbers"]
        assert set(ours) == set(right)
        for part in ("tiles", "plain_traffic", "tiled_traffic", "fast"):
            assert ours[part] == right[part], part
        # Both are float64, sums of 16 terms near 1: rounding is near 1e-15.
        for part in ("output", "logsumexp"):
            assert flat(ours[part]) == pytest.approx(flat(right[part]), rel=1e-12), part


def test_a_row_is_right_after_every_block_and_wrong_without_the_factor(tmp_path: Path) -> None:
    widget = Tiles()
    q, k, v = (torch.tensor(x, dtype=torch.float64) for x in (widget.q, widget.k, widget.v))
    scores = q @ k.T / math.sqrt(2)
    setting = {"v": widget.v, "t": 10, "T": 12, "S": 16, "block_k": 3, "causal": True}
    arguments = [
        {"scores": scores.tolist(), **setting, "rescale": rescale} for rescale in (True, False)
    ]
    whole, broken = in_javascript(MODULE, "argument.map(figure.walkRow)", arguments, tmp_path)
    assert len(whole) == len(broken) == 5  # query 10 sees 15 keys
    accumulator = torch.zeros(2, dtype=torch.float64)
    for b, (right, wrong) in enumerate(zip(whole, broken, strict=True)):
        seen = scores[10, : 3 * b + 3]
        assert right["m"] == pytest.approx(float(seen.max()), rel=1e-12)
        assert right["l"] == pytest.approx(float((seen - seen.max()).exp().sum()), rel=1e-12)
        exact = seen.softmax(dim=0) @ v[: seen.numel()]
        assert right["error"] < 1e-14
        accumulator += (seen[3 * b :] - seen.max()).exp() @ v[3 * b : 3 * b + 3]
        error = float((accumulator / right["l"] - exact).abs().max())
        assert wrong["error"] == pytest.approx(error, rel=1e-9, abs=1e-14)
    # What the figure is for: in the row it starts with, the error is there for everyone to see.
    errors = [state["error"] for state in broken]
    assert errors[0] < 1e-14
    assert errors[1] < errors[2] < errors[3]
    assert errors[3] > 0.5


def test_bytes_are_those_of_a_kernel_that_loads_block_by_block() -> None:
    everything = torch.ones(12, 16, dtype=torch.bool)
    plain, one_block = traffic(everything, 12, 16, 2)
    assert plain == 2 * 12 * 2 + 2 * 16 * 2 + 4 * 12 * 16
    assert one_block == 2 * 12 * 2 + 2 * 16 * 2 + 12  # each number once, and the logsumexp
    # Keys and values are read again for each block of queries.
    assert traffic(everything, 5, 16, 2)[1] == one_block + 2 * (2 * 16 * 2)
    assert traffic(causal(12, 16), 4, 4, 2)[1] < traffic(everything, 4, 4, 2)[1]


def test_the_figure_notices_numbers_that_are_not_its_own(tmp_path: Path) -> None:
    right = Tiles().initial["numbers"]
    wrong = {**right, "tiled_traffic": right["tiled_traffic"] + 4}
    found = in_javascript(
        MODULE, "argument.map((them) => figure.agree(argument[0], them))", [right, wrong], tmp_path
    )
    assert found == [True, False]


def test_every_word_comes_from_python_and_is_used() -> None:
    source = MODULE.read_text(encoding="utf-8")
    assert set(re.findall(r"(?<!svg )\btext\.([a-z_]+)\b", source)) == set(sentences())


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"q": [[1.0, 2.0]]}, "1 queries, 16 keys: give 2 to 16, and no more"),
        ({"k": [[1.0, 2.0]] * 8}, "12 queries, 8 keys: give 2 to 16, and no more"),
        ({"v": [[1.0, 2.0]] * 8}, "v: give 16 rows of 2 numbers"),
        ({"v": [[1.0, math.nan]] * 16}, "v: give 16 rows of 2 numbers"),
        ({"block_q": 13}, "block_q is 13: give 2 to 12"),
        ({"block_k": 1}, "block_k is 1: give 2 to 16"),
        ({"row": 12}, "row is 12: give 0 to 11"),
        ({"step": 13}, "step is 13: give 0 to 12"),
        ({"memory": 100}, f"memory is 100: give one of {', '.join(map(str, MEMORIES))}"),
    ],
)
def test_a_state_that_cannot_be_drawn_is_refused_in_one_line(
    state: dict[str, Any], says: str
) -> None:
    with pytest.raises(traitlets.TraitError, match=f"^{re.escape(says)}") as refused:
        Tiles(**state)
    assert "\n" not in str(refused.value)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    """The figure in a page without a kernel, at a phone's width; whatever it complains of fails."""
    state = {name: value for name, value in Tiles().get_state().items() if name != "layout"}
    file = tmp_path / "page.html"
    filled = PAGE.read_text(encoding="utf-8").replace(
        "STATE", json.dumps(state).replace("</", r"<\/")
    )
    file.write_text(filled, encoding="utf-8")
    playwright, started = chromium()
    page = started.new_page(viewport={"width": 360, "height": 740})
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(file.as_uri())
    page.wait_for_selector("body[data-ready]")
    yield page
    started.close()
    playwright.stop()
    assert complaints == []


def now(page: Any) -> list[str]:
    return page.locator(".fig-tiles-numbers dd").all_inner_texts()


def shares(page: Any) -> list[str]:
    return page.locator(".fig-tiles-traffic td:nth-child(2)").all_inner_texts()


@pytest.mark.browser
def test_the_tiles_by_hand(page: Any) -> None:
    initial = Tiles().initial["numbers"]
    assert page.locator(".fig-tiles-verdict").inner_text() == sentences()["agrees"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    traffic_line = [initial["plain_traffic"], initial["tiled_traffic"]]
    assert [int(x) for x in (shares(page)[0], shares(page)[2])] == traffic_line
    first = now(page)
    # The last tile of the row: its output is the reference's.
    slider = page.get_by_role("slider", name="tile")
    slider.press("End")
    row = page.get_by_role("slider", name="row followed")
    assert row.get_attribute("aria-valuetext") == "11 / 12"
    right = ", ".join(f"{x:.3f}" for x in initial["output"][10]).replace("-", "−")
    assert now(page)[3:] == [f"({right})", "0.000"]
    assert page.get_by_role("button", name="Next").is_disabled()
    assert shares(page)[1] == shares(page)[2]
    page.get_by_role("button", name="Back").press("Enter")
    assert slider.get_attribute("aria-valuetext") == "12 / 13"
    page.get_by_role("status").filter(has_text="Tile 12 of 13. Row 11").wait_for(state="attached")
    # The picture says in words what it shows.
    said = page.get_by_role("img").get_attribute("aria-label")
    assert "queries 9–12, keys 13–15; 5 tiles skipped. Row 11 has seen 15 keys." in said
    # Without the factor the error is there.
    page.get_by_label("rescale the accumulator").press("Space")
    assert float(now(page)[4]) > 0.5
    page.get_by_role("button", name="Reset").press("Enter")
    assert now(page) == first


@pytest.mark.browser
def test_blocks_row_and_memory_by_hand(page: Any) -> None:
    page.get_by_label("causal").press("Space")
    assert page.locator("table.fig-tiles-walk tbody tr").count() == 6
    full = Tiles(causal=False, step=0).initial["numbers"]
    assert int(shares(page)[2]) == full["tiled_traffic"]
    page.get_by_role("slider", name="queries a block").press("End")  # one block of queries
    wide = Tiles(causal=False, block_q=12, step=0).initial["numbers"]
    assert int(shares(page)[2]) == wide["tiled_traffic"] < full["tiled_traffic"]
    note = page.locator(".fig-tiles-fast")
    assert f"{wide['fast']} bytes are needed and 256 are there" in note.inner_text()
    page.get_by_role("slider", name="fast memory").press("End")
    assert f"{wide['fast']} of 2048 bytes" in note.inner_text()
    # A row of another block takes the tile along.
    page.get_by_role("slider", name="queries a block").press("Home")
    page.get_by_role("slider", name="row followed").press("Home")
    assert page.get_by_role("slider", name="tile").get_attribute("aria-valuetext") == "1 / 36"
    page.locator(".fig-tiles-map").click(position={"x": 200, "y": 150})
    assert page.get_by_role("slider", name="tile").get_attribute("aria-valuetext") != "1 / 36"
    before = now(page)
    page.evaluate("cleanUp()")
    page.get_by_role("slider", name="row followed").press("ArrowRight")
    assert now(page) == before
