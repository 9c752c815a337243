"""The map of the Transformer: its counts against torch, its words, its links."""

from pathlib import Path

import pytest
import torch
import traitlets
from torch import nn

from book.figures.transformer_map import PARTS, SIZES, TransformerMap, count_parameters, sentences
from tests.test_figures import FIGURES, in_javascript

MODULE = FIGURES / "transformer_map.js"


def test_the_map_counts_what_torch_counts(tmp_path: Path) -> None:
    base = {name: first for name, (_low, _high, first) in SIZES.items()}
    states = [base, base | {"H": 3, "d": 24, "F": 192, "N": 1, "V": 1000}]
    computed = in_javascript(MODULE, "argument.map(figure.countParameters)", states, tmp_path)
    assert computed == [count_parameters(state) for state in states]


def test_the_count_is_that_of_the_whole_model_of_torch() -> None:
    sizes = {"H": 8, "d": 64, "F": 2048, "N": 6, "V": 37000}
    with torch.device("meta"):
        model = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
    # torch adds a last norm to each stack, which the paper does not have.
    last_norms = 2 * 2 * 512
    layers = sum(p.numel() for p in model.parameters()) - last_norms
    assert sum(count_parameters(sizes).values()) == layers + 37000 * 512


def test_every_part_has_a_name_a_note_and_a_shape(tmp_path: Path) -> None:
    words = sentences()
    assert set(words["parts"]) == set(words["notes"]) == set(PARTS)
    shapes = in_javascript(MODULE, "argument.map(figure.shapesOf)", list(PARTS), tmp_path)
    assert all(shape["in"][0] == "B" and shape["out"][0] == "B" for shape in shapes)


@pytest.mark.parametrize("state", [{"sizes": {"H": 0}}, {"sizes": {"Q": 1}}, {"part": "soul"}])
def test_a_state_that_cannot_be_drawn_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(traitlets.TraitError, match="give "):
        TransformerMap(**state)
