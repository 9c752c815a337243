"""The chapter ``tiny``: small sources for tests of whatever makes or judges notebooks.

It lies in ``fixtures/tiny`` and is used in two ways: loaded into this process beside the course's
chapters, or laid out as the only chapter of a copy of the repository.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from autograder import chapters
from autograder.checking import Exercise
from autograder.compose.chapter import Sources

FOLDER = Path(__file__).parent / "fixtures" / "tiny"
REPOSITORY = "https://github.com/some-course/some-book"
_PLACES = {"solutions": "solutions", "checks": "autograder.checks", "answers": "autograder.answers"}


def load() -> None:
    """Put the chapter's modules where ``import`` and the chapters' functions find them."""
    for kind, package in _PLACES.items():
        name = f"{package}.tiny"
        if name in sys.modules:
            continue
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{kind}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def exercise(name: str) -> Exercise:
    """One of its exercises."""
    load()
    return chapters.exercises("tiny")[name]


def answer(name: str, entry: str | None = None) -> Any:
    """An answer of its bank, or the reference."""
    load()
    if entry is None:
        return chapters.reference(exercise(name))
    return next(e.target for e in chapters.entries(exercise(name)) if e.name == entry)


def page() -> str:
    """The authored page."""
    return (FOLDER / "page.md").read_text(encoding="utf-8")


def sources(**changes: Any) -> Sources:
    """Its sources, with some of them replaced."""
    load()
    found = Sources(
        "tiny",
        page(),
        FOLDER / "solutions.py",
        chapters.exercises("tiny"),
        chapters.bank("tiny"),
        ["earlier", "tiny", "later"],
        REPOSITORY,
    )
    return replace(found, **changes)


def tree(root: Path) -> Path:
    """A copy of the repository's code with ``tiny`` as its only chapter."""
    # With what Python compiled of it, which the copies' times and sizes say is still right
    ignored = shutil.ignore_patterns("samples", "*.ipynb")
    shutil.copytree(chapters.ROOT / "autograder", root / "autograder", ignore=ignored)
    for kind in ("checks", "answers"):
        for path in (root / "autograder" / kind).glob("[!_]*.py"):
            path.unlink()
        shutil.copy(FOLDER / f"{kind}.py", root / "autograder" / kind / "tiny.py")
    for package in ("solutions", "book"):
        (root / package).mkdir()
        (root / package / "__init__.py").write_text("", encoding="utf-8")
    shutil.copy(FOLDER / "solutions.py", root / "solutions" / "tiny.py")
    shutil.copy(FOLDER / "page.md", root / "book" / "tiny.md")
    (root / "_config.yml").write_text(f"repository:\n  url: {REPOSITORY}\n", encoding="utf-8")
    (root / "_toc.yml").write_text("format: jb-book\nroot: book/tiny\n", encoding="utf-8")
    return root


def autograder(root: Path, *args: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ``python -m autograder`` in a copy of the repository."""
    return subprocess.run(
        [sys.executable, "-m", "autograder", *map(str, args)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
