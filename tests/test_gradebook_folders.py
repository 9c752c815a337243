"""Which of a learner's files counts, whatever the others hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from autograder.bench.sample_class import Author, saved
from autograder.gradebook import folders
from autograder.gradebook.folders import handed_in

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
