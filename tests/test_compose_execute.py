"""A worked notebook runs once for each state of its sources and of what it imports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autograder.compose import notebook
from autograder.compose.execute import fingerprint, imported_files, run
from autograder.compose.files import Files
from autograder.sources import SourceError


def worked(*sources: str) -> dict[str, Any]:
    return notebook.notebook(notebook.code_cell(f"c-{i}", s) for i, s in enumerate(sources))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A repository with a few modules that import one another in every way."""
    texts = {
        "solutions/__init__.py": "",
        "solutions/one.py": "from solutions.two import x\n",
        "solutions/two.py": "x = 2\n",
        "solutions/unused.py": "",
        "book/__init__.py": "",
        "book/figures/__init__.py": "",
        "book/figures/plot.py": "def f():\n    from . import shared\n",
        "book/figures/plot.js": "export default 1",
        "book/figures/shared.py": "import json\n",
        "book/figures/other.js": "",
        "book/data/__init__.py": "",
        "book/data/words/__init__.py": "",
        "book/data/words/words.txt": "a b",
        "autograder/__init__.py": "",
        "autograder/checks/tiny.py": "import autograder.judge\n",
        "autograder/judge.py": "",
        "autograder/learner/session.py": "",
        "autograder/verify.py": "",
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Files(tmp_path, "tiny")


CELLS = (
    "import math\nfrom solutions.one import x",
    "%time 1\nfrom book.figures import plot",
    "import book.data.words",
)


def test_imports_are_followed(files: Files) -> None:
    found = {
        path.relative_to(files.root).as_posix() for path in imported_files(files, worked(*CELLS))
    }
    assert found == {
        "solutions/__init__.py", "solutions/one.py", "solutions/two.py",
        "book/__init__.py", "book/figures/__init__.py", "book/figures/plot.py",
        "book/figures/plot.js", "book/figures/shared.py",
        "book/data/__init__.py", "book/data/words/__init__.py", "book/data/words/words.txt",
        "autograder/__init__.py", "autograder/checks/tiny.py", "autograder/judge.py",
        "autograder/learner/session.py",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "matters"),
    [
        ("solutions/two.py", True),
        ("book/figures/plot.js", True),
        ("book/data/words/words.txt", True),
        ("autograder/judge.py", True),
        ("solutions/unused.py", False),
        ("book/figures/other.js", False),
        ("autograder/verify.py", False),
    ],
)
def test_what_makes_it_run_again(files: Files, name: str, matters: bool) -> None:
    before = fingerprint(files, worked(*CELLS))
    (files.root / name).write_text("# changed\n", encoding="utf-8")
    assert (fingerprint(files, worked(*CELLS)) != before) is matters


def test_another_source_makes_it_run_again(files: Files) -> None:
    assert fingerprint(files, worked("1")) != fingerprint(files, worked("2"))


def test_it_runs_once_and_is_kept(files: Files) -> None:
    nb = worked("from solutions.two import x\nprint('x is', x)", "import os\nprint(os.listdir())")
    first, did_run = run(files, nb)
    assert did_run
    texts = [cell["outputs"][0]["text"] for cell in first["cells"]]
    # the notebook runs in an empty folder: what it reads beside it would not be there in Colab
    assert texts == ["x is 2\n", "[]\n"]
    second, did_run = run(files, nb)
    assert not did_run
    assert second == first
    assert nb == worked(*(cell["source"] for cell in nb["cells"]))  # left as it was


def test_a_damaged_result_is_made_again(files: Files) -> None:
    nb = worked("print(1)")
    run(files, nb)
    files.executed.write_text("{", encoding="utf-8")
    assert run(files, nb)[1]


def test_a_failing_cell_is_one_line(files: Files) -> None:
    with pytest.raises(SourceError) as caught:
        run(files, worked("print(1)", "1 / 0"))
    assert "\n" not in str(caught.value)
    assert "'c-1' fails: ZeroDivisionError" in str(caught.value)
    assert not files.executed.exists()
