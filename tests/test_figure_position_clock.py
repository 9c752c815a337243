"""Rotary positions as clocks: the figure's numbers against the reference."""

from pathlib import Path

import pytest
import traitlets

from book.figures.position_clock import BASES, PositionClock
from tests.test_figures import FIGURES, in_javascript

MODULE = FIGURES / "position_clock.js"


def test_hands_and_score_are_those_of_rotary(tmp_path: Path) -> None:
    widgets = [PositionClock(t=t, s=s, base=base) for t, s in ((9, 5), (0, 63)) for base in BASES]
    states = [{**widget.reference(), "q": widget.q, "k": widget.k} for widget in widgets]
    computed = in_javascript(
        MODULE,
        "argument.map((a) => [figure.turn(a.q, a.t, a.base), "
        "figure.score(a.q, a.k, a.t, a.s, a.base)])",
        states,
        tmp_path,
    )
    for (query, score), right in zip(computed, states, strict=True):
        # Rotary's angles are float64 like the figure's: only the last places may differ.
        assert query == pytest.approx(right["query"], abs=1e-12)
        assert score == pytest.approx(right["score"], abs=1e-12)


def test_the_score_depends_on_the_distance_alone() -> None:
    scores = {round(PositionClock(t=4 + s, s=s).initial["score"], 9) for s in (0, 20, 59)}
    assert len(scores) == 1


@pytest.mark.parametrize("state", [{"t": 64}, {"s": -1}, {"base": 7}])
def test_a_state_that_cannot_be_drawn_is_refused(state: dict[str, int]) -> None:
    with pytest.raises(traitlets.TraitError, match="give "):
        PositionClock(**state)
