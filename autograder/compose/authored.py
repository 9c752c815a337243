"""Reads an authored page, ``book/<stem>.md``: its cells, where they stand, which are exercises."""

from __future__ import annotations

import ast
import re
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jupytext.myst import myst_to_notebook

from autograder.guest.cells import python_of
from autograder.guest.syntax import syntax_tree
from autograder.sources import SourceError

ANSWERS = ("shown", "hidden")
MAX_ID = 64  # nbformat's limit for a cell's id
SUFFIX = 16  # room for "-about", "-check", "-answer" behind a name or a slug

_FENCE = re.compile(r"^ {0,3}(?P<fence>`{3,}|~{3,}|:{3,})(?P<info>.*)$")
_HEADING = re.compile(r"^#{1,6}\s+(?P<text>.+?)\s*#*\s*$")
_LABEL = re.compile(r"^\((?P<label>[^()\s]+)\)=\s*$")


@dataclass
class AuthoredCell:
    """One cell of the page.

    Attributes:
        kind: ``code``, ``markdown`` or ``raw``.
        heading: the heading that it stands under, or that it opens.
        line: its first line in the ``.md``, from 1.
        id: its section's label or heading and a number: the same as long as the section is;
            an exercise's cell has none, since exercises have names.
        exercises: what it imports from the chapter's own module, to be answered by the learner; or
            handed out as it is, where the definition has no solution region.
    """

    kind: str
    source: str
    metadata: dict[str, Any]
    heading: str
    line: int
    id: str = ""
    exercises: tuple[str, ...] = ()


@dataclass
class Page:
    """An authored page.

    Attributes:
        answers: whether the built page shows them, ``shown`` or ``hidden``.
        labels: the heading behind each label.
    """

    stem: str
    cells: list[AuthoredCell]
    answers: str
    labels: dict[str, str]

    @property
    def path(self) -> str:
        """The page's file, as messages name it."""
        return path_of(self.stem)

    def where(self, cell: AuthoredCell) -> str:
        """The place of a cell, as messages name it."""
        return f"{self.path}:{cell.line} (under “{cell.heading}”)"


def path_of(stem: str) -> str:
    """The authored file of a chapter, as messages name it."""
    return f"book/{stem}.md"


def read_page(stem: str, text: str, order: Sequence[str]) -> Page:
    """Parse a page.

    Args:
        order: the stems of all chapters in the order of ``_toc.yml``.

    Raises:
        SourceError: malformed; one line with file, cell and mend.
    """
    path = path_of(stem)
    text = text.replace("\r\n", "\n")
    lines = text.split("\n")
    _check_fences(path, lines)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            notebook = myst_to_notebook(text, add_source_map=True)
    except Exception as error:
        raise SourceError(
            f"{path}: jupytext cannot read it as a MyST notebook ({_one_line(error)}); "
            "mend its front matter or the options of its cells"
        ) from error
    if "kernelspec" not in notebook.metadata:
        raise SourceError(
            f"{path}: the front matter has no kernelspec; "
            "copy it from the template in CONTRIBUTING.md"
        )
    page = Page(stem, [], _answers(path, notebook.metadata), titles_of(text))
    heading, slug = stem, _slug(stem)
    counts: dict[str, int] = {}
    for cell, start in zip(notebook.cells, notebook.metadata["source_map"], strict=True):
        first = next((i for i in range(start, len(lines)) if lines[i].strip()), start)
        own: list[tuple[str, str]] = []
        if cell.cell_type == "markdown":
            label = ""
            for kind, value in _marks(cell.source.split("\n")):
                if kind == "heading":
                    own.append((value, _slug(label or value)))
                label = value if kind == "label" else ""
        # A cell that opens sections belongs to the first of them; what follows it, to the last.
        opened, section = own[0] if own else (heading, slug)
        if own:
            heading, slug = own[-1]
        authored = AuthoredCell(cell.cell_type, cell.source, dict(cell.metadata), opened, first + 1)
        page.cells.append(authored)
        if cell.cell_type == "code":
            _read_imports(page, authored, order)
        if not authored.exercises:
            counts[section] = counts.get(section, 0) + 1
            authored.id = f"{section}-{counts[section]}"
    return page


def titles_of(text: str) -> dict[str, str]:
    """The heading behind each label of a page; a label before other things stands for itself."""
    found: dict[str, str] = {}
    waiting: list[str] = []
    for kind, value in _marks(text.replace("\r\n", "\n").split("\n")):
        if kind == "label":
            waiting.append(value)
            found[value] = value
            continue
        if kind == "heading":
            found |= dict.fromkeys(waiting, value)
        waiting.clear()
    return found


def _answers(path: str, metadata: dict[str, Any]) -> str:
    course = metadata.get("course") or {}
    value = course.get("answers", "shown") if isinstance(course, dict) else None
    if value not in ANSWERS:
        raise SourceError(
            f"{path}: the front matter says course: {course!r}; write `course: {{answers: shown}}` "
            "or `course: {answers: hidden}`"
        )
    return str(value)


def _check_fences(path: str, lines: list[str]) -> None:
    opened: tuple[str, int] | None = None
    heading = path
    for number, line in enumerate(lines, 1):
        match = _FENCE.match(line)
        if opened is None:
            title = _HEADING.match(line)
            heading = title["text"] if title else heading
            if match:
                opened = match["fence"], number
                is_cell = match["info"].strip().startswith("{code-cell}")
            continue
        fence, start = opened
        if match and match["fence"].startswith(fence) and not match["info"].strip():
            opened = None
        elif is_cell and match and match["info"].strip().startswith("{code-cell}"):
            break
    if opened is not None:
        fence, start = opened
        raise SourceError(
            f"{path}:{start} (under “{heading}”): the block that opens here is not closed; "
            f"add a line {fence!r} at its end"
        )


def _marks(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Labels, headings and other lines with text, in order; what fences hold is left out."""
    fence = ""
    for line in lines:
        match = _FENCE.match(line)
        if fence:
            if match and match["fence"].startswith(fence) and not match["info"].strip():
                fence = ""
        elif match:
            fence = match["fence"]
            yield "text", line
        elif label := _LABEL.match(line):
            yield "label", label["label"]
        elif title := _HEADING.match(line):
            yield "heading", title["text"]
        elif line.strip():
            yield "text", line


def _slug(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    slug = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
    return slug[: MAX_ID - SUFFIX].rstrip("-") or "cell"


def _read_imports(page: Page, cell: AuthoredCell, order: Sequence[str]) -> None:
    """Find the exercises of a cell, and refuse imports from chapters that come later."""
    where = page.where(cell)
    try:
        tree = syntax_tree(python_of(cell.source))
    except SyntaxError as error:
        line = cell.line + (error.lineno or 1) - 1
        raise SourceError(
            f"{page.path}:{line} (under “{cell.heading}”): not Python: {error.msg}; mend the cell"
        ) from error
    found: list[str] = []
    for node in ast.walk(tree):
        for stem in _solution_modules(node):
            if not isinstance(node, ast.ImportFrom) or stem is None:
                raise SourceError(
                    f"{where}: import names from a chapter's module: "
                    "`from solutions.<chapter> import <name>`"
                )
            if stem == page.stem:
                found += _exercise_names(where, node)
            elif stem not in order:
                raise SourceError(
                    f"{where}: no chapter {stem!r} in _toc.yml; mend the import or add the chapter"
                )
            elif order.index(stem) > order.index(page.stem):
                raise SourceError(
                    f"{where}: chapter {stem!r} comes later in _toc.yml; use what stands before, "
                    "or move the chapter"
                )
    if found and len(tree.body) > 1:
        raise SourceError(
            f"{where}: an exercise's cell holds its import and nothing else; "
            "move the other lines to a cell of their own"
        )
    cell.exercises = tuple(found)


def _solution_modules(node: ast.AST) -> Iterator[str | None]:
    """Stems that an import statement takes from; None for ``solutions`` itself."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] == "solutions":
                yield None
    elif isinstance(node, ast.ImportFrom) and not node.level:
        module = node.module or ""
        if module == "solutions":
            yield None
        elif module.startswith("solutions."):
            yield module.removeprefix("solutions.")


def _exercise_names(where: str, node: ast.ImportFrom) -> list[str]:
    """What is to be answered; under another name, the finished answer is merely shown at work."""
    names = []
    for alias in node.names:
        if alias.name == "*":
            raise SourceError(f"{where}: name the exercise instead of `*`")
        if alias.asname is None:
            names.append(alias.name)
    return names


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:199] + "…"
