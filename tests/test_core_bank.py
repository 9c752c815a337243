"""How wrong and right answers enter the bank."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import tinychapter
import torch

from autograder import bank, chapters
from autograder.sources import SourceError

Load = Callable[[str], ModuleType]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Import a bank of the chapter ``tiny`` written in a test."""
    tinychapter.load()
    name = "bank_of_a_test.tiny"  # the last part names the chapter

    def run(text: str) -> ModuleType:
        path = tmp_path / "tiny.py"
        path.write_text(
            "from autograder.bank import right, right_edit, wrong, wrong_edit\n" + text, "utf-8"
        )
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield run
    sys.modules.pop(name, None)
    bank._entries.pop(name, None)


def test_a_decorated_answer_is_the_cell_a_learner_would_have_written(load: Load) -> None:
    module = load(
        "@wrong('shifted', why='Because.', see='there', rung=2)\n"
        "def no_shift(x):\n    return x, no_shift\n"
        "@right('shifted', style='short')\n"
        "def short(x):\n    return x - x.amax(-1, keepdim=True)\n"
    )
    wrong, right = bank.entries_of(module.__name__)
    assert (wrong.name, wrong.is_right, wrong.why) == ("no_shift", False, "Because.")
    assert (wrong.see, wrong.rung, wrong.diagnosis) == ("there", 2, "no_shift")
    assert wrong.source == "def shifted(x):\n    return x, shifted\n"
    assert wrong.target is module.no_shift
    assert (right.name, right.is_right, right.why) == ("short", True, "short")


def test_an_edit_is_the_reference_with_a_piece_replaced(load: Load) -> None:
    module = load(
        "wrong_edit('Shift', 'amount_taken_away', {'+ self.amount': '- self.amount'}, why='w')\n"
        "right_edit('Shift', 'other_way', {'shifted(x) + self.amount': 'self.amount + "
        "shifted(x)'})\n"
    )
    wrong, right = bank.entries_of(module.__name__)
    assert "return shifted(x) - self.amount" in wrong.source
    assert "SOLUTION" not in wrong.source
    x = torch.tensor([[1.0, 3.0]])
    assert wrong.target(1.0)(x).tolist() == [[-3.0, -1.0]]
    assert right.target(1.0)(x).tolist() == [[-1.0, 1.0]]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("wrong_edit('Shift', 'lost', {'self.gone': ''}, why='w')", "stands 0 times"),
        ("wrong_edit('Shift', 'many', {'self': ''}, why='w')", "times in the reference, not once"),
        ("wrong_edit('Nothing', 'x', {}, why='w')", "no function or class 'Nothing'"),
        ("for _ in range(2):\n    @wrong('shifted', why='w')\n    def twice(x): ...",
         "no function or class 'twice'"),
        ("@wrong('shifted', why='w')\ndef twice(x): ...\n"
         "wrong_edit('shifted', 'twice', {'-1': '-2'}, why='w')",
         "two entries named 'twice'"),
    ],
)  # fmt: skip
def test_a_malformed_entry_is_one_line(load: Load, text: str, problem: str) -> None:
    with pytest.raises(SourceError) as caught:
        load(text)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_forms_share_a_diagnosis(load: Load) -> None:
    module = load(
        "@wrong('shifted', why='w')\ndef one(x): return x\n"
        "@wrong('shifted', why='w', form_of='one')\ndef other(x): return x\n"
    )
    assert [entry.diagnosis for entry in bank.entries_of(module.__name__)] == ["one", "one"]


def test_every_entry_of_the_course_is_a_cell_of_its_own() -> None:
    for stem in chapters.stems():
        for entry in chapters.bank(stem):
            assert entry.source.count(f"{entry.exercise}") >= 1, entry.name
            compile(entry.source, entry.name, "exec")
