"""Byte pairs: the figure's merges against the reference."""

from pathlib import Path

import pytest
import traitlets

from book.figures.byte_pairs import MOST, WORDS, BytePairs
from tests.test_figures import FIGURES, in_javascript

MODULE = FIGURES / "byte_pairs.js"


def test_the_merges_are_those_of_python(tmp_path: Path) -> None:
    initial = BytePairs().initial
    computed = in_javascript(MODULE, f"figure.mergeAll(argument, {MOST})", list(WORDS), tmp_path)
    assert computed["pairs"] == initial["pairs"]
    assert [symbols for symbols, _times in computed["words"]] == initial["tokens"]
    # By hand: w e and e s occur eight and nine times, s t nine times as well; e s comes first.
    assert initial["pairs"][0] == ["e", "s"]


def test_overlapping_pairs_are_joined_from_the_left(tmp_path: Path) -> None:
    merged = in_javascript(
        MODULE, "figure.mergePair(argument, ['a', 'a'])", list("aaaab"), tmp_path
    )
    assert merged == ["aa", "aa", "b"]


def test_a_state_that_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(traitlets.TraitError, match="give a number"):
        BytePairs(merges=13)
