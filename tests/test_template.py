"""The template in ``CONTRIBUTING.md``, taken from source to grade in a copy of the repository.

Adding a chapter adds files, and one line of ``_toc.yml``; nothing else changes.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from autograder.chapters import ROOT

STEM = "temperature"
FENCED = re.compile(r"<!-- template: (\S+) -->\n(`{3,})\w+\n(.*?)\n\2\n", re.S)


def templates() -> dict[str, str]:
    """The files that the template consists of: path → text."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return {path: body + "\n" for path, _fence, body in FENCED.findall(text)}


def run(root: Path, *command: str) -> str:
    """Run a command in the copy, with the copy's packages; its output, or one failure."""
    environment = dict(os.environ, PYTHONPATH=str(root), OMP_NUM_THREADS="1")
    done = subprocess.run(
        [sys.executable, *command],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git tracks, with the new chapter's files and its line."""
    root = tmp_path_factory.mktemp("course")
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, tracked.stdout.decode().split("\0")):
        source, target = ROOT / name, root / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    for path, text in templates().items():
        assert not (root / path).exists(), path
        (root / path).write_text(text, encoding="utf-8")
    with (root / "_toc.yml").open("a", encoding="utf-8") as toc:
        toc.write(f"  - file: book/{STEM}\n")
    return root


def test_the_template_has_a_file_of_each_kind() -> None:
    assert set(templates()) == {
        f"book/{STEM}.md",
        f"solutions/{STEM}.py",
        f"autograder/checks/{STEM}.py",
        f"autograder/answers/{STEM}.py",
    }


@pytest.mark.build
def test_a_chapter_from_the_template_goes_from_source_to_grade(tree: Path) -> None:
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    autograder = ("-m", "autograder")
    run(tree, *autograder, "compose", STEM)
    run(tree, *autograder, "compose", STEM, "--check")
    run(tree, *autograder, "compose", STEM, "--run")
    assert "0 failures" in run(tree, *autograder, "verify", STEM, "--seeds", "3", "--workers", "1")

    notebook = nbformat.read(tree / "book" / f"{STEM}.ipynb", as_version=4)
    cell = next(cell for cell in notebook.cells if cell.id == "tempered_softmax")
    cell.source = cell.source.replace(
        "raise NotImplementedError", "return (scores / temperature).softmax(-1)"
    )
    (tree / "handed-in").mkdir()
    nbformat.write(notebook, tree / "handed-in" / f"{STEM}.ipynb")
    run(tree, *autograder, "grade", "handed-in", "--json", "grades.json", "--workers", "1")
    (result,) = json.loads((tree / "grades.json").read_text(encoding="utf-8"))
    assert (result["chapter"], result["status"]) == (STEM, "graded")
    assert (result["score"], result["max_score"]) == (2, 2)

    # The book with the new page alone: other pages have their own tests.
    (tree / "_toc.yml").write_text(f"format: jb-book\nroot: book/{STEM}\n", encoding="utf-8")
    jupyter_book = Path(sys.executable).with_name("jupyter-book")
    run(tree, str(jupyter_book), "build", ".", "-W", "-n", "--keep-going", "-q")
    page = (tree / "_build" / "html" / "book" / f"{STEM}.html").read_text(encoding="utf-8")
    assert "Flatter and sharper" in page
    assert "0.67" in page  # what the worked run printed: softmax(1, 2, 3) at temperature 1

    changed = {
        str(path.relative_to(tree))
        for path, text in before.items()
        if path.exists() and path.read_bytes() != text and "__pycache__" not in path.parts
    }
    assert changed == {"_toc.yml"}
