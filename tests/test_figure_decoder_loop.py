"""The decoder's loop as a figure: its weights and counts against the reference, its words."""

import re
from pathlib import Path
from typing import Any

import pytest
import traitlets

from book.figures.decoder_loop import DecoderLoop, sentences, work_so_far
from tests.test_figures import FIGURES, in_javascript

MODULE = FIGURES / "decoder_loop.js"

# Scores beyond the range of exp, and masked ones that would win if they were seen.
LOUD = [[0.0, 900.0, 900.0], [800.0, -800.0, 900.0], [1.0, 2.0, 3.0]]


def test_the_figure_follows_the_reference(tmp_path: Path) -> None:
    widgets = [DecoderLoop(), DecoderLoop(words=["<start>", "a", "b", "<end>"], scores=LOUD)]
    computed = in_javascript(
        MODULE, "argument.map(figure.follow)", [widget.scores for widget in widgets], tmp_path
    )
    for ours, widget in zip(computed, widgets, strict=True):
        for found, right in zip(ours["weights"], widget.initial["weights"], strict=True):
            assert found == pytest.approx(right, rel=1e-9, abs=1e-12)  # float64 on both sides
        assert ours["cached"] == widget.initial["cached"]
        assert ours["whole"] == widget.initial["whole"]


def test_the_figure_notices_numbers_that_are_not_its_own(tmp_path: Path) -> None:
    widget = DecoderLoop()
    wrong = widget.initial | {"cached": widget.initial["whole"]}
    agree = "argument[1].map((them) => figure.agree(figure.follow(argument[0]), them))"
    found = in_javascript(MODULE, agree, [widget.scores, [widget.initial, wrong]], tmp_path)
    assert found == [True, False]


def test_a_cache_saves_what_the_sums_say() -> None:
    T = 9
    assert work_so_far(T - 1, cached=True) == {"positions": T, "scores": T * (T + 1) // 2}
    squares = T * (T + 1) * (2 * T + 1) // 6
    assert work_so_far(T - 1, cached=False) == {"positions": T * (T + 1) // 2, "scores": squares}


def test_every_word_comes_from_python_and_is_used() -> None:
    source = MODULE.read_text(encoding="utf-8")
    assert set(re.findall(r"(?<!svg )\btext\.([a-z_]+)\b", source)) == set(sentences())


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"words": ["<start>"]}, "words has 1 words: give 2 to 10"),
        ({"words": ["x"] * 11}, "words has 11 words: give 2 to 10"),
        ({"scores": [[1.0]]}, "scores: give 4 rows of 4 numbers"),
        ({"source": ["one"], "memory_weights": [[0.5, 0.5]] * 4}, "memory_weights: give 4 rows"),
        ({"candidates": [[]] * 4}, "candidates: give 1 to 5 for each of 4 steps"),
        ({"step": 4}, "step is 4: give 0 to 3"),
    ],
)
def test_a_state_that_cannot_be_drawn_is_refused_in_one_line(
    state: dict[str, Any], says: str
) -> None:
    with pytest.raises(traitlets.TraitError, match=f"^{says}") as refused:
        DecoderLoop(**state)
    assert "\n" not in str(refused.value)
