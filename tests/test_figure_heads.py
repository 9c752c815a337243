"""The heads figure: its probabilities against torch, its words, its switches by hand."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import traitlets

from book.figures.heads import Heads, sentences, subsets
from tests.test_figures import FIGURES, PAGE, chromium, flat, in_javascript

MODULE = FIGURES / "heads.js"


def random_state(H: int, T: int, Q: int, V: int) -> dict[str, Any]:
    noise = torch.Generator().manual_seed(H)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=noise, dtype=torch.float64)

    return {
        "tokens": [str(t) for t in range(T)],
        "letters": [str(i) for i in range(V)],
        "questions": [f"question {i}" for i in range(Q)],
        "right": [[0] * Q] * T,
        "weights": draw(H, T, T).softmax(dim=-1),
        "base": draw(Q, V),
        "parts": 3 * draw(H, T, Q, V),
        "accuracy": [[row / 2**H] * Q for row in range(2**H)],
    }


def test_the_figure_adds_up_what_torch_adds_up(tmp_path: Path) -> None:
    data = random_state(3, 5, 2, 7)
    widgets = [Heads(**data, on=on, query=query) for on in subsets(3) for query in (0, 4)]
    arguments = [
        {name: getattr(widget, name) for name in ("base", "parts", "on", "query")}
        for widget in widgets
    ]
    computed = in_javascript(MODULE, "argument.map(figure.probabilities)", arguments, tmp_path)
    for ours, widget in zip(computed, widgets, strict=True):
        # Both are float64, a sum of four numbers and a softmax: rounding is near 1e-15.
        assert flat(ours) == pytest.approx(flat(widget.initial["probabilities"]), rel=1e-12)


def test_rows_of_the_table_are_numbered_as_python_lists_them(tmp_path: Path) -> None:
    found = in_javascript(MODULE, "argument.map(figure.subset)", subsets(4), tmp_path)
    assert found == list(range(16))


def test_every_word_comes_from_python_and_is_used() -> None:
    source = MODULE.read_text(encoding="utf-8")
    used = set(re.findall(r"(?<!svg )\btext\.([a-z_]+)\b", source))
    columns = {"question", "truth", "says", "sure", "accuracy"}  # used as text[title]
    assert used | columns == set(sentences())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"on": [True]}, r"on has shape \(1,\).*it must be \(3,\)"),
        ({"query": 5}, "query is 5: give a position from 0 to 4"),
        ({"base": [[0.0] * 7]}, r"base has shape \(1, 7\).*it must be \(2, 7\)"),
        ({"right": [[0, 0]] * 4}, r"right has shape \(4, 2\)"),
        ({"weights": [[[1.0] * 5] * 5] * 7}, "weights has 7 heads: give 1 to 6"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_in_one_line(change: dict[str, Any], says: str) -> None:
    with pytest.raises(traitlets.TraitError, match=f"^{says}") as refused:
        Heads(**random_state(3, 5, 2, 7) | change)
    assert "\n" not in str(refused.value)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    """The figure with its own example in a page without a kernel, at a phone's width."""
    state = {name: value for name, value in Heads().get_state().items() if name != "layout"}
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


@pytest.mark.browser
def test_a_head_that_is_switched_off_takes_its_answer_along(page: Any) -> None:
    answers = page.locator(".heads-answers tbody tr")
    assert page.locator(".heads-verdict").inner_text() == sentences()["agrees"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    before = answers.all_inner_texts()
    assert "✓" in before[0]
    assert "✓" in before[1]
    page.get_by_role("checkbox", name="head 1").press("Space")
    without = answers.all_inner_texts()
    assert "✗" in without[0]
    assert without[1] == before[1]
    expected = Heads(on=[False, True]).initial["probabilities"][0]
    assert f"{max(expected):.2f}" in without[0]
    # The other positions are chosen by the arrow keys of a group of radio buttons.
    page.locator("input[type=radio]:checked").press("ArrowRight")
    assert page.locator("input[type=radio]:checked").get_attribute("value") == "2"
    assert page.evaluate("calls") == ["save_changes"] * 2
    page.get_by_role("button", name="Reset").press("Enter")
    assert answers.all_inner_texts() == before
