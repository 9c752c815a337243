"""Generated files: written once, kept where they are fresh, named where they are stale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tinychapter

from autograder.compose import notebook
from autograder.compose.chapter import Composed, compose
from autograder.compose.files import Files, drift, orphans, repository, write_composed
from autograder.sources import SourceError


@pytest.fixture
def composed() -> Composed:
    return compose(tinychapter.sources())


@pytest.fixture
def files(tmp_path: Path, composed: Composed) -> Files:
    found = Files(tmp_path, "tiny")
    write_composed(found, composed)
    return found


def test_a_second_time_writes_nothing(files: Files, composed: Composed) -> None:
    before = files.student.stat().st_mtime_ns
    assert write_composed(files, composed) == []
    assert files.student.stat().st_mtime_ns == before
    assert list(drift(files, composed)) == []


def test_generated_files_end_with_a_newline_and_are_sorted(files: Files) -> None:
    for path in (files.student, files.worked, files.page):
        text = path.read_text(encoding="utf-8")
        assert text.endswith("}\n")
        assert json.dumps(json.loads(text), indent=1, sort_keys=True, ensure_ascii=False) in text


def with_outputs(files: Files) -> notebook.Notebook:
    """Give each worked code cell an output that names it."""
    worked = notebook.read(files.worked)
    assert worked is not None
    for cell in worked["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": cell["id"]}]
            cell["execution_count"] = 1
    files.worked.write_text(notebook.dumps(worked), encoding="utf-8")
    return worked


def test_outputs_are_no_drift_and_stay(files: Files, composed: Composed) -> None:
    with_outputs(files)
    assert list(drift(files, composed)) == []
    assert write_composed(files, composed) == []


def test_outputs_of_a_changed_cell_go(files: Files) -> None:
    with_outputs(files)
    page = tinychapter.page().replace("print(values.sum())", "print(values.mean())")
    write_composed(files, compose(tinychapter.sources(text=page)))
    kept = notebook.read(files.worked)
    assert kept is not None
    empty = [
        cell["id"] for cell in kept["cells"] if cell["cell_type"] == "code" and not cell["outputs"]
    ]
    assert empty == ["exercise-shift-3"]


@pytest.mark.parametrize(
    ("cell", "source"),
    [
        ("exercise-shift-2", "edit book/tiny.md:41"),
        ("shifted", "edit solutions/tiny.py"),
        ("doubled", "edit autograder/answers/tiny.py"),
        ("shifted-check", "edit autograder/checks/tiny.py"),
        ("shifted-about", "edit autograder/checks/tiny.py"),
    ],
)
def test_drift_names_the_file_to_edit(
    files: Files, composed: Composed, cell: str, source: str
) -> None:
    student = notebook.read(files.student)
    assert student is not None
    next(item for item in student["cells"] if item["id"] == cell)["source"] += "\n# edited"
    files.student.write_text(notebook.dumps(student), encoding="utf-8")
    (line,) = drift(files, composed)
    assert line.startswith("book/tiny.ipynb is stale")
    assert cell in line
    assert source in line
    assert "run `python -m autograder compose tiny`" in line


def test_drift_of_the_worked_notebook(files: Files, composed: Composed) -> None:
    worked = with_outputs(files)
    worked["cells"][7]["source"] += " "
    files.worked.write_text(notebook.dumps(worked), encoding="utf-8")
    (line,) = drift(files, composed)
    assert line.startswith("solutions/notebooks/tiny.ipynb is stale")


def test_a_cell_put_in_by_hand_is_drift(files: Files, composed: Composed) -> None:
    student = notebook.read(files.student)
    assert student is not None
    student["cells"].append(notebook.code_cell("extra", "1"))
    files.student.write_text(notebook.dumps(student), encoding="utf-8")
    (line,) = drift(files, composed)
    assert "stale" in line


def test_outputs_in_the_students_notebook_are_drift(files: Files, composed: Composed) -> None:
    student = notebook.read(files.student)
    assert student is not None
    code = next(cell for cell in student["cells"] if cell["cell_type"] == "code")
    code["outputs"] = [{"name": "stdout", "output_type": "stream", "text": "secret"}]
    files.student.write_text(notebook.dumps(student), encoding="utf-8")
    (line,) = drift(files, composed)
    assert "holds outputs" in line


def test_missing_and_broken_notebooks(files: Files, composed: Composed) -> None:
    files.student.unlink()
    files.worked.write_text("{", encoding="utf-8")
    missing, broken = drift(files, composed)
    assert missing.startswith("book/tiny.ipynb is missing")
    assert broken.startswith("solutions/notebooks/tiny.ipynb is no notebook")


def test_orphans(files: Files) -> None:
    assert list(orphans(files.root, ["tiny"])) == []
    (files.root / "book" / "old.ipynb").write_text("{}", encoding="utf-8")
    (line,) = orphans(files.root, ["tiny"])
    assert line.startswith("book/old.ipynb belongs to no chapter")


def test_the_repositorys_address(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"_config\.yml: repository: url"):
        repository(tmp_path)
    (tmp_path / "_config.yml").write_text("repository:\n  url: https://x.org/y/\n", "utf-8")
    assert repository(tmp_path) == "https://x.org/y"


def test_text_outputs_keep_streams_and_plain_text_alone(composed: Composed) -> None:
    nb = composed.worked
    nb["metadata"]["widgets"] = {"state": {}}
    code = [cell for cell in nb["cells"] if cell["cell_type"] == "code"]
    png = {"image/png": "AAAA", "text/plain": "a plot"}
    code[0]["outputs"] = [
        {"name": "stdout", "output_type": "stream", "text": "printed"},
        {"name": "stderr", "output_type": "stream", "text": "a warning"},
        {"data": png, "metadata": {"image/png": {"alt": "a plot"}}, "output_type": "display_data"},
        {"data": {"text/html": "<b>x</b>"}, "metadata": {}, "output_type": "display_data"},
    ]
    kept = notebook.text_outputs(nb)
    assert "widgets" not in kept["metadata"]
    outputs = next(cell for cell in kept["cells"] if cell["cell_type"] == "code")["outputs"]
    assert [item.get("text") or item["data"] for item in outputs] == [
        "printed",
        {"text/plain": "a plot"},
    ]
