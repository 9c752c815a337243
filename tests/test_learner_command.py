"""``python -m autograder check NOTEBOOK``: a learner's look without Jupyter."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
import tinychapter

from autograder import chapters
from autograder.compose import notebook
from autograder.compose.chapter import compose
from autograder.learner import known
from autograder.learner.command import main

ROOT = Path(__file__).resolve().parent.parent
STEMS = [stem for stem in chapters.stems() if (ROOT / "book" / f"{stem}.ipynb").exists()]


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    tinychapter.load()
    known.exercises.cache_clear()
    monkeypatch.setattr(known, "stems", lambda: ("tiny",))
    yield
    known.exercises.cache_clear()


def student() -> dict[str, Any]:
    return compose(tinychapter.sources()).student


def answered(nb: dict[str, Any], **answers: str) -> dict[str, Any]:
    for cell in nb["cells"]:
        if cell["id"] in answers:
            cell["source"] = answers[cell["id"]]
    return nb


def right_answers(**others: str) -> dict[str, str]:
    found = {
        "shifted": "def shifted(x):\n    return x - x.amax(dim=-1, keepdim=True)",
        "Shift": (
            "class Shift(torch.nn.Module):\n"
            "    def __init__(self, start):\n"
            "        super().__init__()\n"
            "        self.amount = torch.nn.Parameter(torch.tensor(start))\n"
            "    def forward(self, x):\n"
            "        return shifted(x) + self.amount"
        ),
        "doubled": "def doubled(x):\n    return x + x",
    }
    return {**found, **others}


def write(folder: Path, nb: dict[str, Any]) -> str:
    path = folder / "mine.ipynb"
    path.write_text(notebook.dumps(nb), encoding="utf-8")
    return str(path)


@pytest.mark.usefixtures("_tiny")
class TestTiny:
    def test_untouched(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([write(tmp_path, student())]) == 1
        out = capsys.readouterr().out
        assert "`shifted` is not answered yet" in out
        assert out.endswith("0 of 4.5 points of the visible checks\n")

    def test_answered(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        nb = answered(student(), **right_answers())
        assert main([write(tmp_path, nb)]) == 0
        assert capsys.readouterr().out.endswith("4.5 of 4.5 points of the visible checks\n")

    def test_helpers_of_ones_own_run_and_experiments_do_not(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        nb = answered(
            student(), **right_answers(shifted="def shifted(x):\n    return x - largest(x)")
        )
        nb["cells"] += [
            notebook.code_cell("own-1", "!pip install nothing\ndef largest(x):\n"
                               "    return x.amax(dim=axis, keepdim=True)"),
            notebook.code_cell("own-2", "axis = -1"),
            notebook.code_cell("own-3", "raise SystemExit('an experiment')"),
        ]  # fmt: skip
        assert main([write(tmp_path, nb)]) == 0
        assert "an experiment" not in capsys.readouterr().out

    def test_what_does_not_run_is_said(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        nb = answered(
            student(),
            **right_answers(shifted="def shifted(x:\n    return x", doubled="doubled = 1 / 0"),
        )
        assert main([write(tmp_path, nb)]) == 1
        out = capsys.readouterr().out
        assert "The cell of `shifted` does not run: it is not Python" in out
        assert "The cell of `doubled` does not run: ZeroDivisionError" in out
        assert "Traceback" not in out

    def test_a_notebook_that_lost_its_ids(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        nb = answered(student(), **right_answers())
        nb["cells"] = [
            {**cell, "id": f"lost-{i}", "metadata": {}}
            for i, cell in enumerate(nb["cells"])
            if "check(" not in cell["source"]
        ]
        assert main([write(tmp_path, nb)]) == 0

    def test_the_process_keeps_its_own_main(self, tmp_path: Path) -> None:
        kept = sys.modules["__main__"]
        main([write(tmp_path, student())])
        assert sys.modules["__main__"] is kept

    @pytest.mark.parametrize(
        ("data", "line"),
        [(b"", "empty"), (b"{", "damaged"), (b"%PDF-1.4", "PDF"), (b'{"cells": []}', "no exercise"),
         (None, "No such file")],
    )  # fmt: skip
    def test_what_cannot_be_read_is_one_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes | None, line: str
    ) -> None:
        path = tmp_path / "mine.ipynb"
        if data is not None:
            path.write_bytes(data)
        assert main([str(path)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert line in captured.err
        assert captured.err.count("\n") == 1


@pytest.mark.parametrize("stem", STEMS)
def test_the_banks_right_answers_pass_as_cells_of_the_notebook(
    stem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nb = nbformat.read(ROOT / "book" / f"{stem}.ipynb", 4)
    right: dict[str, str] = {}
    for entry in chapters.bank(stem):
        if entry.is_right:
            right.setdefault(entry.exercise, entry.source)
    for cell in nb.cells:
        cell.source = right.get(cell.id, cell.source)
    path = tmp_path / "renamed.ipynb"
    nbformat.write(nb, path)
    assert set(right) == set(chapters.exercises(stem))
    assert main([str(path)]) == 0, capsys.readouterr().out
