"""Gradients through depth: the figure's own forward and backward pass against torch."""

import itertools
from pathlib import Path

import pytest
import traitlets

from book.figures.gradient_depth import DEEPEST, GAINS, PLACEMENTS, SEED, GradientDepth, uniform
from tests.test_figures import FIGURES, in_javascript

MODULE = FIGURES / "gradient_depth.js"
NUMBERS = ("gradients", "sizes", "likeness")


def test_both_sides_draw_the_same_numbers(tmp_path: Path) -> None:
    drawn = in_javascript(
        MODULE,
        "(() => { const draw = figure.uniform(argument); "
        "return Array.from({ length: 1000 }, () => draw()); })()",
        SEED,
        tmp_path,
    )
    assert drawn == uniform(1000, SEED).tolist()


def test_the_curves_are_those_of_torch(tmp_path: Path) -> None:
    states = [
        {"residual": residual, "placement": placement, "depth": depth, "gain": gain}
        for residual, placement, (depth, gain) in itertools.product(
            (True, False), PLACEMENTS, ((1, GAINS[0]), (5, 1.0), (12, GAINS[-1]))
        )
    ]
    right = [GradientDepth(**state).reference() for state in states]
    computed = in_javascript(
        MODULE,
        f"argument.map((state) => figure.pass({{ ...state, seed: {SEED} }}))",
        states,
        tmp_path,
    )
    for ours, theirs in zip(computed, right, strict=True):
        for name in NUMBERS:
            # Both are float64. Where a softmax saturates, torch subtracts numbers that are nearly
            # equal and the figure does not: their gradients agree to six digits there.
            assert ours[name] == pytest.approx(theirs[name], rel=1e-6, abs=1e-300)


def test_a_residual_road_lets_the_gradient_through() -> None:
    bare = GradientDepth(depth=24).initial
    open_road = GradientDepth(depth=24, residual=True, placement="pre").initial
    assert bare["gradients"][0] < 1e-6
    assert 0.1 < open_road["gradients"][0] < 10


@pytest.mark.parametrize("state", [{"depth": DEEPEST + 1}, {"placement": "mid"}, {"gain": 3.0}])
def test_a_state_that_cannot_be_drawn_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(traitlets.TraitError, match="give "):
        GradientDepth(**state)
