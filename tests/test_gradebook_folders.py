"""Which of a learner's files counts, whatever the others hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autograder.bench.sample_class import Author, saved
from autograder.gradebook import folders
from autograder.gradebook.folders import handed_in
from autograder.gradebook.listing import remove

AUTHOR = Author()


def test_the_file_with_the_answers_counts(tmp_path: Path) -> None:
    (tmp_path / "attention.ipynb").write_bytes(saved(AUTHOR.notebook({})))
    (tmp_path / "attention (1).ipynb").write_bytes(saved(AUTHOR.notebook(AUTHOR.reference)))
    handed = handed_in("ada", tmp_path, "attention")
    assert handed.submission.file_name == "attention (1).ipynb"
    assert "`attention.ipynb`" in handed.notes[0]


def test_a_fault_of_ours_at_one_file_costs_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.ipynb").write_bytes(b"{}")
    (tmp_path / "attention.ipynb").write_bytes(saved(AUTHOR.notebook({})))
    whole = folders.read

    def fails(data: bytes, name: str) -> object:
        if data == b"{}":
            raise RecursionError
        return whole(data, name)

    monkeypatch.setattr(folders, "read", fails)
    assert handed_in("ada", tmp_path, "attention").submission.file_name == "attention.ipynb"


def test_a_folder_beside_the_notebook_that_cannot_be_looked_into(
    tmp_path: Path, closed: set[str]
) -> None:
    """It costs a note, not the grade."""
    (tmp_path / "below").mkdir()
    (tmp_path / "attention (1).ipynb").write_bytes(saved(AUTHOR.notebook({})))
    closed.add("below")
    handed = handed_in("ada", tmp_path, "attention")
    assert handed.submission.name == "ada/attention (1).ipynb"
    assert not handed.submission.refused
    (note,) = handed.notes
    assert "below" in note


def test_more_levels_than_python_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "attention.ipynb").write_bytes(saved(AUTHOR.notebook({})))
    monkeypatch.chdir(tmp_path)
    for _level in range(1200):
        os.mkdir("d")
        os.chdir("d")
    try:
        assert handed_in("ada", tmp_path, "attention").submission.file_name == "attention.ipynb"
    finally:
        remove(tmp_path / "d")


def test_a_folder_that_nobody_may_look_into(tmp_path: Path, closed: set[str]) -> None:
    closed.add(tmp_path.name)
    refused = handed_in("ada", tmp_path, "attention").submission.refused
    assert refused == "The folder cannot be read: Permission denied."


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    assert handed_in("ada", tmp_path / "gone", "attention").submission.refused
