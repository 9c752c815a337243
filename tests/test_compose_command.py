"""``python -m autograder compose`` in a copy of the repository with one small chapter."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import tinychapter

from autograder import chapters
from autograder.compose.chapter import load
from autograder.sources import SourceError


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tinychapter.tree(tmp_path_factory.mktemp("course"))


def snapshot(root: Path) -> dict[str, bytes]:
    folders = ("book", "solutions", "_build")
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for folder in folders
        for path in sorted((root / folder).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_from_sources_to_outputs(tree: Path) -> None:
    stale = tinychapter.autograder(tree, "compose", "--check")
    assert stale.returncode == 1
    assert "book/tiny.ipynb is missing" in stale.stdout

    made = tinychapter.autograder(tree, "compose", "--execute")
    assert made.returncode == 0, made.stderr
    kept = json.loads((tree / "solutions" / "notebooks" / "tiny.ipynb").read_text("utf-8"))
    mimetypes = {
        kind
        for cell in kept["cells"]
        for output in cell.get("outputs", ())
        for kind in output.get("data", {})
    }
    assert mimetypes == {"text/plain"}
    full = json.loads((tree / "_build" / "worked" / "tiny.ipynb").read_text("utf-8"))
    assert any("text/html" in str(cell.get("outputs")) for cell in full["cells"])

    before = snapshot(tree)
    fresh = tinychapter.autograder(tree, "compose", "--check")
    assert (fresh.returncode, fresh.stdout) == (0, "")
    again = tinychapter.autograder(tree, "compose", "--run")
    assert (again.returncode, again.stdout) == (0, "")  # nothing written, nothing run
    assert snapshot(tree) == before


def test_an_unknown_chapter_is_one_line(tree: Path) -> None:
    result = tinychapter.autograder(tree, "compose", "nowhere")
    assert result.returncode == 2
    assert result.stderr == "no chapter 'nowhere' in _toc.yml; it has tiny\n"


def test_sources_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match=r"book/tiny\.md is missing, which _toc\.yml names"):
        load("tiny", tmp_path, ["tiny"], "")
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "tiny.md").write_text(tinychapter.page(), encoding="utf-8")
    with pytest.raises(SourceError, match=r"solutions/tiny\.py is missing; write it"):
        load("tiny", tmp_path, ["tiny"], "")
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "nowhere.py").write_text("", encoding="utf-8")
    (tmp_path / "book" / "nowhere.md").write_text("", encoding="utf-8")
    with pytest.raises(SourceError, match=r"autograder/checks/nowhere\.py is missing; write it"):
        load("nowhere", tmp_path, ["nowhere"], "")
    monkeypatch.setitem(sys.modules, "solutions.nowhere", sys.modules[__name__])
    with pytest.raises(SourceError, match=r"autograder/answers/nowhere\.py is missing; write it"):
        chapters.bank("nowhere")


def test_which_pages_are_chapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chapters, "ROOT", tmp_path)
    with pytest.raises(SourceError, match=r"_toc\.yml is missing"):
        chapters.stems()
    (tmp_path / "_toc.yml").write_text(
        "root: book/intro\nparts:\n- chapters:\n  - file: book/cells\n"
        "    sections:\n    - file: book/judged\n  - file: elsewhere/x\n",
        encoding="utf-8",
    )
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "intro.md").write_text("# Words alone\n", encoding="utf-8")
    (tmp_path / "book" / "cells.md").write_text("```{code-cell}\n1\n```\n", encoding="utf-8")
    (tmp_path / "autograder" / "checks").mkdir(parents=True)
    (tmp_path / "autograder" / "checks" / "judged.py").write_text("", encoding="utf-8")
    assert chapters.stems() == ["cells", "judged"]
