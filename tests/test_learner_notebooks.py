"""Whole notebooks in a kernel: run to the end, compared by nbval, graded by nbgrader's Execute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
import tinychapter
from nbclient import NotebookClient
from nbgrader.preprocessors import Execute
from nbgrader.utils import determine_grade, is_grade

from autograder import chapters
from autograder.compose.files import Files
from tests.notebooks.kept_run import kept_run

ROOT = Path(__file__).resolve().parent.parent
STEMS = [stem for stem in chapters.stems() if (ROOT / "book" / f"{stem}.ipynb").exists()]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tinychapter.tree(tmp_path_factory.mktemp("course"))
    made = tinychapter.autograder(root, "compose", "--execute")
    assert made.returncode == 0, made.stderr
    return root


@pytest.fixture
def _in_tree(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tree))


def outputs_of(cell: Any) -> str:
    parts = []
    for output in cell.outputs:
        parts.append(output.get("text") or output.get("data", {}).get("text/plain", ""))
    return "".join(parts)


def run_student(path: Path) -> Any:
    """The student's notebook after a run; a cell that fails without the tag ends it."""
    nb = nbformat.read(path, 4)
    NotebookClient(
        nb, timeout=300, kernel_name="python3", extra_arguments=["--log-level=ERROR"]
    ).execute()
    return nb


def assert_fails_in_one_line_alone(nb: Any) -> None:
    for cell in nb.cells:
        if cell.cell_type != "code":
            continue
        for output in cell.outputs:
            assert output.output_type != "error", (cell.id, output.get("evalue"))
            assert output.get("name") != "stderr", (cell.id, output.text)
        if cell.id.endswith("-check"):
            assert "✘" in outputs_of(cell), cell.id
        for line in outputs_of(cell).splitlines():
            if line.startswith("✘"):
                assert "raises-exception" in cell.metadata.get("tags", []), cell.id
                assert line.endswith(("this cell needs it.", "not answered yet.")), line


@pytest.mark.usefixtures("_in_tree")
def test_the_students_notebook_says_what_is_missing(tree: Path) -> None:
    nb = run_student(tree / "book" / "tiny.ipynb")
    assert_fails_in_one_line_alone(nb)
    said = {cell.id: outputs_of(cell) for cell in nb.cells if cell.cell_type == "code"}
    needs = "✘ `shifted` is not answered yet: this cell needs it.\n"
    waits = "✘ `values` is missing: the cell that makes it needs `shifted`, not answered yet.\n"
    assert said["exercise-shift-2"] == needs
    assert said["exercise-shift-3"] == waits
    assert said["exercise-shift-4"] == waits
    assert "`shifted` is not answered yet." in said["shifted-check"]


@pytest.mark.parametrize("stem", STEMS)
def test_each_chapters_student_notebook_runs_to_its_end(stem: str) -> None:
    nb = run_student(ROOT / "book" / f"{stem}.ipynb")
    assert_fails_in_one_line_alone(nb)


@pytest.mark.usefixtures("_in_tree")
def test_plain_nbconvert_runs_it(tree: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nbconvert", "--execute", "--to", "notebook"]
    result = subprocess.run(
        [*command, "--output-dir", str(tmp_path), str(tree / "book" / "tiny.ipynb")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "✘ `shifted` is not answered yet" in (tmp_path / "tiny.ipynb").read_text("utf-8")


def nbval(*arguments: Path | str) -> subprocess.CompletedProcess[str]:
    """Compare notebooks as `make nbval` does."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         "-p", "tests.notebooks.text_only", "--nbval",
         "--nbval-sanitize-with", "tests/nbval.cfg", *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.usefixtures("_in_tree")
def test_nbval_accepts_the_worked_notebook_and_sees_a_changed_output(
    tree: Path, tmp_path: Path
) -> None:
    worked = tree / "solutions" / "notebooks" / "tiny.ipynb"
    text = worked.read_text("utf-8")
    changes = (("tensor(-2.)", "tensor(-3.)"), ("1.5 of 1.5", "1.4 of 1.5"))
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    changed = tmp_path / "changed.ipynb"
    changed.write_text(text, "utf-8")
    done = nbval(worked, changed)
    assert done.returncode == 1
    # the two cells that were changed, and no other of either notebook
    assert done.stdout.count("\nFAILED ") == len(changes), done.stdout
    assert all(new in done.stdout for _old, new in changes), done.stdout


@pytest.mark.usefixtures("_in_tree")
def test_nbval_compares_the_run_that_the_pages_show(tree: Path) -> None:
    """As `make test` has it: the output of the book's run, not that of another one."""
    worked = tree / "solutions" / "notebooks" / "tiny.ipynb"
    files = Files(tree, "tiny")
    shown = files.executed.read_text("utf-8")
    assert shown.count("tensor(-2.)") == 1
    files.executed.write_text(shown.replace("tensor(-2.)", "tensor(-9.)"), "utf-8")
    done = nbval("-p", "tests.notebooks.kept_run", worked)
    files.executed.write_text(shown, "utf-8")
    assert done.stdout.count("\nFAILED ") == 1, done.stdout
    assert "tensor(-9.)" in done.stdout, done.stdout


def test_a_run_of_other_sources_is_none_to_compare(tree: Path) -> None:
    worked = tree / "solutions" / "notebooks" / "tiny.ipynb"
    assert kept_run(worked)
    checks = tree / "autograder" / "checks" / "tiny.py"  # which its cells ask
    before = checks.read_text("utf-8")
    checks.write_text(before + "\n# changed\n", "utf-8")
    assert kept_run(worked) is None
    checks.write_text(before, "utf-8")
    assert kept_run(worked)
    # a copy elsewhere is not what the book shows
    elsewhere = tree / "tiny.ipynb"
    elsewhere.write_bytes(worked.read_bytes())
    assert kept_run(elsewhere) is None
    elsewhere.unlink()


@pytest.mark.usefixtures("_in_tree")
class TestUnderNbgradersOwnExecute:
    """Where somebody's nbgrader executes the notebook itself: the fallback, and the baseline."""

    def grades(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch, **answers: str
    ) -> dict[str, float]:
        monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
        nb = nbformat.read(tree / "book" / "tiny.ipynb", 4)
        for cell in nb.cells:
            cell.source = answers.get(cell.id, cell.source)
        resources: dict[str, Any] = {"metadata": {"path": str(tree)}}
        Execute(timeout=120).preprocess(nb, resources)
        return {
            cell.id: determine_grade(cell)[0]
            for cell in nb.cells
            if cell.cell_type == "code" and is_grade(cell)
        }

    def test_an_untouched_notebook_gets_nothing(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.grades(tree, monkeypatch) == {
            "shifted-check": 0.0, "Shift-check": 0.0, "doubled-check": 0.0,
        }  # fmt: skip

    def test_partial_credit_and_a_warning_that_costs_nothing(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = self.grades(
            tree,
            monkeypatch,
            shifted="def shifted(x):\n    import warnings; warnings.warn('slow')\n"
                    "    return x - x.amax(-1, keepdim=True)",
            doubled="def doubled(x):\n    return x + 2",
            Shift="raise ValueError",
        )  # fmt: skip
        assert found == {"shifted-check": 2.5, "Shift-check": 0.0, "doubled-check": 0.0}


def test_the_committed_notebooks_hold_what_they_should() -> None:
    for stem in STEMS:
        student = json.loads((ROOT / "book" / f"{stem}.ipynb").read_text("utf-8"))
        assert not any(cell.get("outputs") for cell in student["cells"])
        path = ROOT / "solutions" / "notebooks" / f"{stem}.ipynb"
        worked = json.loads(path.read_text("utf-8"))
        checks = [cell for cell in worked["cells"] if cell["id"].endswith("-check")]
        # run, and every visible check passed: stale or missing outputs would compare nothing
        assert all("✔" in str(cell["outputs"]) for cell in checks), stem
        assert not any("✘" in str(cell["outputs"]) for cell in checks), stem
        assert os.path.getsize(path) < 2**20
