"""What grading finds out once is kept: a later process need not find it out again."""

from __future__ import annotations

from pathlib import Path

import pytest

from autograder import chapters
from autograder.bench.sample_class import Author, saved
from autograder.grading import bank
from autograder.grading.run import Grader, _PatientJudge
from tests.in_process import InProcess

ITEM = chapters.exercise("attention.padding_mask")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bank, "RESULTS", tmp_path)
    return tmp_path


def judge() -> _PatientJudge:
    return _PatientJudge(ITEM, chapters.entries(ITEM), seed=3)


def refuse(*args: object) -> object:
    raise AssertionError("this was found out already")


def test_the_next_process_runs_neither_the_reference_nor_the_bank(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = judge()
    scripts, ready = first.scripts(), first.ready()
    assert set(scripts) == {check.name for check in ITEM.checks}
    monkeypatch.setattr(chapters, "reference", refuse)
    monkeypatch.setattr(_PatientJudge, "bank_outcomes", refuse)
    second = judge()
    assert second.scripts() == scripts
    assert second.ready().keys() == ready.keys()


def test_another_seed_is_found_out_by_itself(kept: Path) -> None:
    scripts = judge().scripts()
    other = _PatientJudge(ITEM, chapters.entries(ITEM), seed=4).scripts()
    assert {name: script.bodies for name, script in other.items()} != {
        name: script.bodies for name, script in scripts.items()
    }


@pytest.mark.parametrize("damage", [b"", b"no archive"])
def test_a_damaged_file_is_made_anew(kept: Path, damage: bytes) -> None:
    first = judge()
    scripts, ready = first.scripts(), first.ready()
    files = list(kept.rglob("*.pt"))
    assert len(files) == 2
    for file in files:
        file.write_bytes(damage)
    again = judge()
    assert again.scripts().keys() == scripts.keys()
    assert again.ready().keys() == ready.keys()


def test_grading_is_the_same_with_what_is_kept(kept: Path) -> None:
    author = Author()
    wrong = author.wrong["padding_mask"]["true_at_padding"]
    data = saved(author.notebook({**author.reference, "padding_mask": wrong}))
    found = [
        Grader(InProcess()).grade(data, "attention.ipynb", stems=("attention",)) for _ in range(2)
    ]
    assert found[0].result.exercises == found[1].result.exercises
