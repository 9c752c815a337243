"""Puts one chapter together: the student's notebook, the worked one, and what the page adds.

The three sources are joined here and here alone, and what is malformed in them is found here: every
:class:`~autograder.sources.SourceError` names file, cell and mend in one line.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autograder.bank import Entry
from autograder.checking import Exercise
from autograder.compose.authored import (
    MAX_ID,
    SUFFIX,
    AuthoredCell,
    Page,
    path_of,
    read_page,
    titles_of,
)
from autograder.compose.names import dependents, names
from autograder.compose.notebook import code_cell, markdown_cell, notebook
from autograder.compose.plain import plain
from autograder.i18n import _, ngettext
from autograder.sources import (
    GIVEN,
    SourceError,
    definition_source,
    has_solution,
    make_stub,
    strip_markers,
)

DIFFICULTY = 5
CONFESSION, INSTALL = "about-this-notebook", "install-the-course"


@dataclass(frozen=True)
class Sources:
    """What a chapter is made of.

    Attributes:
        text: of ``book/<stem>.md``.
        solutions: path of ``solutions/<stem>.py``.
        order: the stems of all chapters.
        repository: the address that the notebook installs the course from.
        titles: by label, the heading behind it, in all of the book.
    """

    stem: str
    text: str
    solutions: Path
    exercises: Mapping[str, Exercise]
    bank: Sequence[Entry]
    order: Sequence[str]
    repository: str
    titles: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Composed:
    """What comes of a chapter.

    Attributes:
        page: what the built page adds to the student's notebook: ``answers``; by exercise
            ``hints`` and ``answer``; in ``prose``, by cell id, what is written in MyST where a
            notebook has plain Markdown.
        origin: by cell id, the authored file (with a line, where there is one) behind the cell.
    """

    stem: str
    student: dict[str, Any]
    worked: dict[str, Any]
    page: dict[str, Any]
    origin: dict[str, str] = field(default_factory=dict)


def compose(sources: Sources) -> Composed:
    """Compose a chapter.

    Raises:
        SourceError: a malformed source.
    """
    page = read_page(sources.stem, sources.text, sources.order)
    _check_exercises(page, sources)
    cells = _Cells(page, sources)
    cells.build()
    exercises = {
        name: {
            "hints": list(sources.exercises[name].hints),
            "answer": _answer(sources, name) if page.answers == "shown" else "",
        }
        for cell in page.cells
        for name in cell.exercises
        if name in sources.exercises
    }
    return Composed(
        sources.stem,
        notebook(cells.student),
        notebook(cells.worked),
        {"answers": page.answers, "exercises": exercises, "prose": cells.prose},
        cells.origin,
    )


def _answer(sources: Sources, name: str) -> str:
    return strip_markers(definition_source(sources.solutions, name))


def _check_exercises(page: Page, sources: Sources) -> None:
    """Every exercise has an answer, checks and a bank, and stands on the page once."""
    checks, answers = (f"autograder/{kind}/{page.stem}.py" for kind in ("checks", "answers"))
    seen: dict[str, AuthoredCell] = {}
    for cell in page.cells:
        for name in cell.exercises:
            where = page.where(cell)
            if name in seen:
                raise SourceError(
                    f"{where}: {name!r} is an exercise already in line {seen[name].line}; "
                    "remove one of the two cells"
                )
            seen[name] = cell
            if len(name) > MAX_ID - SUFFIX:
                raise SourceError(f"{where}: {name!r} is too long for a cell's id; shorten it")
            source = definition_source(sources.solutions, name)
            if name not in sources.exercises:
                if not has_solution(source):
                    continue  # nothing to answer: it is handed out as it is
                raise SourceError(
                    f"{where}: {checks} has no exercise {name!r}; add one, or mend the import"
                )
            exercise = sources.exercises[name]
            if not exercise.checks:
                raise SourceError(f"{checks}: {name!r} has no check; add one")
            entries = [entry for entry in sources.bank if entry.exercise == name]
            if not any(not entry.is_right for entry in entries):
                raise SourceError(
                    f"{answers}: {name!r} has no wrong answer; add what people get wrong"
                )
            if exercise.given is None and not has_solution(source):
                raise SourceError(
                    f"solutions/{page.stem}.py: {name}: no solution region; put "
                    "'### BEGIN SOLUTION' and '### END SOLUTION' around what the learner writes"
                )
            if exercise.given is not None and _given(sources, exercise) is None:
                raise SourceError(
                    f"{answers}: {name}: no wrong answer {exercise.given!r} with given=True, which "
                    f"{checks} hands out; mark one"
                )
            _check_labels(page, answers, entries)
    for name in sources.exercises:
        if name not in seen:
            raise SourceError(
                f"{checks}: {name!r} is not on the page; add a cell "
                f"`from solutions.{page.stem} import {name}` to {page.path}, or remove it"
            )


def _check_labels(page: Page, answers: str, entries: Sequence[Entry]) -> None:
    for entry in entries:
        if entry.see and entry.see not in page.labels:
            raise SourceError(
                f"{answers}: {entry.exercise}: {entry.name}: no label ({entry.see})= in "
                f"{page.path}; mend its see"
            )


def _given(sources: Sources, exercise: Exercise) -> Entry | None:
    for entry in sources.bank:
        if entry.exercise == exercise.name and entry.name == exercise.given and entry.given:
            return entry
    return None


class _Cells:
    """Builds the cells of both notebooks side by side."""

    def __init__(self, page: Page, sources: Sources) -> None:
        self.page, self.sources = page, sources
        self.student: list[dict[str, Any]] = []
        self.worked: list[dict[str, Any]] = []
        self.origin: dict[str, str] = {}
        self.prose: dict[str, str] = {}
        self.known: set[str] = set()

    def build(self) -> None:
        """Make the student's cells, the worked cells, and say where each comes from."""
        self._opening()
        is_first = True
        for cell in self.page.cells:
            if cell.exercises:
                for name in cell.exercises:
                    if name in self.sources.exercises:
                        self._exercise(cell, self.sources.exercises[name])
                    else:
                        self._handed_out(cell, name)
                continue
            if cell.kind == "code":
                found = names(cell.source)
                # What an answer may use: the set-up cell, and imports from earlier chapters.
                self.known |= found.makes if is_first else _imported(cell.source)
                is_first = False
                made = code_cell(cell.id, cell.source, cell.metadata)
            else:
                made = markdown_cell(cell.id, self._prose(cell), cell.metadata)
            self._both(made, f"{self.page.path}:{cell.line}")
        self._tag_dependents()
        self._check_ids()

    def _prose(self, cell: AuthoredCell) -> str:
        written = _(cell.source)
        shown = plain(written, {**self.sources.titles, **self.page.labels})
        if shown != written:
            self.prose[cell.id] = written
        return shown

    def _opening(self) -> None:
        confession = _(
            "*This notebook is generated from `{path}`; do not edit it, edit that one. Learners "
            "work on a copy of it.*"
        ).format(path=self.page.path)
        hidden = {"tags": ["remove-cell"]}
        self._both(markdown_cell(CONFESSION, confession, hidden), "autograder/compose/chapter.py")
        install = "\n".join(
            [
                *(f"# {line}" for line in _INSTALL_NOTE.splitlines()),
                "import importlib.util",
                "",
                'if importlib.util.find_spec("autograder") is None:',
                f'    %pip install -q "git+{self.sources.repository}"',
                "    importlib.invalidate_caches()",
            ]
        )
        self._both(code_cell(INSTALL, install, hidden), "autograder/compose/chapter.py")

    def _both(self, cell: dict[str, Any], origin: str) -> None:
        self.student.append(cell)
        self.worked.append(cell)
        self.origin[cell["id"]] = origin

    def _exercise(self, cell: AuthoredCell, exercise: Exercise) -> None:
        name, stem = exercise.name, self.page.stem
        checks = f"autograder/checks/{stem}.py"
        source = definition_source(self.sources.solutions, name)
        answer, origin = strip_markers(source), f"solutions/{stem}.py"
        stub = make_stub(source)
        given = _given(self.sources, exercise)
        if exercise.given is not None and given is not None:
            stub, origin = given.source, f"autograder/answers/{stem}.py"
        self._check_names(cell, exercise, answer)
        self.known.add(name)

        self._both(markdown_cell(f"{name}-about", about(exercise)), checks)
        # The checksum is the stub's: by it nbgrader knows that nothing was answered.
        metadata = {**cell.metadata, "nbgrader": _nbgrader(name, stub.rstrip("\n"))}
        self.student.append(code_cell(name, stub.rstrip("\n"), metadata, deletable=False))
        self.worked.append(code_cell(name, answer.rstrip("\n"), metadata, deletable=False))
        self.origin[name] = origin
        check = f'check("{exercise.id}")'
        metadata = {"nbgrader": _nbgrader(f"{name}-check", check, points=exercise.points)}
        self._both(
            code_cell(f"{name}-check", check, metadata, deletable=False, editable=False), checks
        )

    def _handed_out(self, cell: AuthoredCell, name: str) -> None:
        """A definition of the chapter in which nothing is to be answered."""
        source = definition_source(self.sources.solutions, name)
        where = f"solutions/{self.page.stem}.py: {name}"
        self._expect_known(where, source, cell, name)
        self.known.add(name)
        made = code_cell(f"{name}{GIVEN}", source.rstrip("\n"), cell.metadata)
        self._both(made, f"solutions/{self.page.stem}.py")

    def _check_names(self, cell: AuthoredCell, exercise: Exercise, answer: str) -> None:
        """The answer, and all of the bank, get by with what stands above."""
        where = f"solutions/{self.page.stem}.py: {exercise.name}"
        sources = [(where, answer)] + [
            (f"autograder/answers/{self.page.stem}.py: {exercise.name}: {entry.name}", entry.source)
            for entry in self.sources.bank
            if entry.exercise == exercise.name
        ]
        for place, source in sources:
            self._expect_known(place, source, cell, exercise.name)

    def _expect_known(self, place: str, source: str, cell: AuthoredCell, name: str) -> None:
        missing = names(source).needs - self.known - {name}
        if missing:
            raise SourceError(
                f"{place} uses {', '.join(map(repr, sorted(missing)))}, which neither the "
                f"set-up cell of {self.page.path} nor an exercise or import above line "
                f"{cell.line} makes; add it there, or do without"
            )

    def _tag_dependents(self) -> None:
        """In the student's notebook, let the cells fail that need an unanswered exercise."""
        exercises = {name for cell in self.page.cells for name in cell.exercises}
        locked = exercises | {f"{name}-check" for name in exercises}
        sources = [
            None if cell["cell_type"] != "code" or cell["id"] in locked else cell["source"]
            for cell in self.student
        ]
        for i, depends in enumerate(dependents(sources, exercises)):
            if depends:
                cell = self.student[i]
                tags = [*cell["metadata"].get("tags", []), "raises-exception"]
                tags = list(dict.fromkeys(tags))
                self.student[i] = {**cell, "metadata": {**cell["metadata"], "tags": tags}}

    def _check_ids(self) -> None:
        seen: set[str] = set()
        for cell in self.student:
            if cell["id"] in seen:
                raise SourceError(
                    f"{self.origin[cell['id']]}: two cells have the id {cell['id']!r}; rename the "
                    "section's label, its heading, or the exercise"
                )
            seen.add(cell["id"])


_INSTALL_NOTE = _(
    "Installs the course where it is missing, as in Colab. A torch that is there stays as it is."
)


def _imported(source: str) -> set[str]:
    """Names that a cell imports from chapters' modules."""
    from autograder.guest.cells import python_of  # noqa: PLC0415
    from autograder.guest.syntax import syntax_tree  # noqa: PLC0415

    return {
        alias.asname or alias.name
        for node in syntax_tree(python_of(source)).body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("solutions.")
        for alias in node.names
    }


def _nbgrader(grade_id: str, source: str, *, points: float | None = None) -> dict[str, Any]:
    """What nbgrader wants to know of a cell, as after a release; it admits no further keys.

    With points it is a locked grade cell, without it is a cell to answer in.
    """
    grade = points is not None
    found: dict[str, Any] = {
        "cell_type": "code",
        "grade": grade,
        "grade_id": grade_id,
        "locked": grade,
        "schema_version": 3,
        "solution": not grade,
        "task": False,
    }
    parts = [source, "code", str(grade), str(not grade), str(grade), grade_id]
    if points is not None:
        found["points"] = points
        parts.append(str(float(points)))
    # nbgrader.utils.compute_checksum; a test compares the two
    digest = hashlib.md5("".join(parts).encode("utf-8"), usedforsecurity=False)
    found["checksum"] = digest.hexdigest()
    return found


def about(exercise: Exercise) -> str:
    """The badges above an exercise, in Markdown that every notebook shows alike."""
    dots = "●" * exercise.difficulty + "○" * (DIFFICULTY - exercise.difficulty)
    badges = _("difficulty {dots} ({n} of {most}) · about {minutes} · {points}").format(
        dots=dots,
        n=exercise.difficulty,
        most=DIFFICULTY,
        minutes=ngettext("{n} minute", "{n} minutes", exercise.minutes).format(n=exercise.minutes),
        points=points_text(exercise.points),
    )
    visible = [check for check in exercise.checks if not check.hidden]
    hidden = len(exercise.checks) - len(visible)
    lines = [_("**{title}** — {badges}").format(title=exercise.title, badges=badges)]
    if visible:
        lines += ["", _("The check below asks, in this order:"), ""]
        lines += [f"- {' '.join(check.asks.split())}" for check in visible]
    if hidden:
        more = ngettext(
            "{n} more check runs when the notebook is graded.",
            "{n} more checks run when the notebook is graded.",
            hidden,
        )
        lines += ["", more.format(n=hidden)]
    named = ", ".join(f"`{name}`" for name in exercise.forbid if not name.startswith("_"))
    if named:
        lines += [
            "",
            _("Build it yourself: an answer that calls PyTorch's {names} gets no points.").format(
                names=named
            ),
        ]
    return "\n".join(lines)


def points_text(points: float) -> str:
    """``1 point``, ``2.5 points``."""
    text = ngettext("{n} point", "{n} points", 1 if points == 1 else 2)
    return text.format(n=f"{points:g}")


def load(stem: str, root: Path, order: Sequence[str], repository: str) -> Sources:
    """Read a chapter's sources from the repository.

    Raises:
        SourceError: a file is missing, or malformed in itself.
    """
    from autograder import chapters  # noqa: PLC0415 — imports the checks, and torch with them

    page = root / "book" / f"{stem}.md"
    if not page.exists():
        raise SourceError(
            f"{path_of(stem)} is missing, which _toc.yml names; write it after the template in "
            "CONTRIBUTING.md"
        )
    solutions = root / "solutions" / f"{stem}.py"
    if not solutions.exists():
        raise SourceError(
            f"solutions/{stem}.py is missing; write it after the template in CONTRIBUTING.md"
        )
    exercises = chapters.exercises(stem)
    return Sources(
        stem,
        page.read_text(encoding="utf-8"),
        solutions,
        exercises,
        chapters.bank(stem),
        order,
        repository,
        {
            label: title
            for path in sorted(page.parent.glob("*.md"))
            for label, title in titles_of(path.read_text(encoding="utf-8")).items()
        },
    )
