"""What was handed out: the student's notebook of a chapter, and which of its cells is which."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from autograder import chapters
from autograder.guest.syntax import syntax_tree
from autograder.sources import GIVEN, SourceError
from autograder.submissions.read import Cell, read
from autograder.submissions.statements import NotPython, Statement, statements

CHECK = "-check"


@dataclass(frozen=True, eq=False)
class Template:
    """A chapter's student notebook.

    Attributes:
        stem: the chapter.
        cells: its cells, in order.
        exercises: bare names of its exercises, in the order of the notebook.
        digest: of the notebook's bytes.
    """

    stem: str
    cells: tuple[Cell, ...]
    exercises: tuple[str, ...]
    digest: str

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """Every statement of its code cells."""
        found: list[Statement] = []
        for position, cell in enumerate(self.cells):
            if cell.kind == "code":
                try:
                    found += statements(cell.source, position)[0]
                except NotPython as error:
                    raise SourceError(
                        f"book/{self.stem}.ipynb: cell {cell.id!r} is no Python: {error.reason}; "
                        "run `python -m autograder compose`"
                    ) from error
        return tuple(found)

    @cached_property
    def meanings(self) -> frozenset[str]:
        """What each statement says: a learner's statement that says the same is not theirs."""
        return frozenset(item.meaning for item in self.statements)

    @cached_property
    def texts(self) -> frozenset[str]:
        """The text of each code cell."""
        return frozenset(cell.source.strip() for cell in self.cells if cell.kind == "code")

    @cached_property
    def long_texts(self) -> frozenset[str]:
        """The text of each cell that says enough to tell chapters apart."""
        return frozenset(cell.source.strip() for cell in self.cells if len(cell.source) > 40)

    @cached_property
    def given(self) -> tuple[Statement, ...]:
        """What every answer may use: the set-up cell, what other locked cells import, and what is
        handed out whole.

        All but the course's own package, which judges and is not there when an answer is run.
        """
        return tuple(
            item
            for item in self.statements
            if self.cells[item.cell].id not in self.exercises
            and (
                item.cell <= self._setup
                or _modules(item)
                or self.cells[item.cell].id.endswith(GIVEN)
            )
            and not any(name.split(".")[0] == "autograder" for name in _modules(item))
        )

    @cached_property
    def modules(self) -> dict[str, str]:
        """The solutions of earlier chapters that its cells import, by module: an answer may too.

        Never this chapter's, nor a later one's, whatever the notebook says.
        """
        order = chapters.stems()
        earlier = set(order[: order.index(self.stem)]) if self.stem in order else set()
        waiting = {
            path
            for item in self.given
            for path in imported_solutions(item.text)
            if path.stem in earlier
        }
        found: dict[str, str] = {}
        while waiting:
            path = waiting.pop()
            text = path.read_text(encoding="utf-8")
            found[f"solutions.{path.stem}"] = text
            waiting |= {
                other
                for other in imported_solutions(text)
                if other.stem in earlier and f"solutions.{other.stem}" not in found
            }
        return {"solutions": "", **dict(sorted(found.items()))} if found else {}

    @cached_property
    def stubs(self) -> dict[str, tuple[Statement, ...]]:
        """The statements of each exercise's cell as it was handed out."""
        return {
            name: tuple(item for item in self.statements if self.cells[item.cell].id == name)
            for name in self.exercises
        }

    @cached_property
    def _setup(self) -> int:
        """Position of the set-up cell: the first that imports torch."""
        return next(
            (
                item.cell
                for item in self.statements
                if any(name.split(".")[0] == "torch" for name in _modules(item))
            ),
            0,
        )


def _modules(item: Statement) -> list[str]:
    """The modules that a statement imports, if it is an import."""
    found: list[str] = []
    for node in item.nodes:
        if isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return found


def imported_solutions(text: str) -> set[Path]:
    """The files of ``solutions`` that some Python imports."""
    found: set[Path] = set()
    for node in ast.walk(syntax_tree(text)):
        modules: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module, *(f"{node.module}.{item.name}" for item in node.names)]
        elif isinstance(node, ast.Import):
            modules = [item.name for item in node.names]
        for module in modules:
            package, _dot, stem = module.partition(".")
            path = chapters.ROOT / "solutions" / f"{stem}.py"
            if package == "solutions" and stem.isidentifier() and path.exists():
                found.add(path)
    return found


def notebook_path(stem: str) -> Path:
    """The student's notebook of a chapter."""
    return chapters.ROOT / "book" / f"{stem}.ipynb"


def template(stem: str) -> Template:
    """The student's notebook of a chapter, remembered until the file changes.

    Raises:
        SourceError: it is missing, or lacks an exercise's cell.
    """
    path = notebook_path(stem)
    try:
        stamp = path.stat()
    except OSError:
        raise SourceError(
            f"book/{stem}.ipynb is missing; run `python -m autograder compose {stem}`"
        ) from None
    return _template(stem, path, stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=32)
def _template(stem: str, path: Path, _modified: int, _size: int) -> Template:
    data = path.read_bytes()
    cells = read(data).cells
    known = chapters.exercises(stem)
    ids = [cell.id for cell in cells]
    missing = [name for name in known if name not in ids]
    if missing:
        raise SourceError(
            f"book/{stem}.ipynb: no cell for the exercise {missing[0]!r}; "
            f"run `python -m autograder compose {stem}`"
        )
    exercises = tuple(sorted(known, key=ids.index))
    return Template(stem, cells, exercises, hashlib.sha256(data).hexdigest())
