"""A page's notebook: the student's cells with the outputs of the worked run.

The student's notebook is what the page's launch and download buttons hand out, and what Sphinx
copies to ``_sources/``. Outputs, hints and answers join it here, in memory, while Sphinx reads the
page; nothing of them is written back.
"""

import json
import re
from base64 import b64decode
from hashlib import sha256
from pathlib import Path
from typing import Any

from autograder.i18n import _

Notebook = dict[str, Any]
Cell = dict[str, Any]

PNG = "image/png"
ABOUT, CHECK, HINTS, ANSWER = "-about", "-check", "-hints", "-answer"


_FENCE = re.compile(r"\s*(`{3,}|~{3,}|:{3,})")
_CODE_SPAN = re.compile(r"(`+[^`]*`+)")
_LIST_ITEM = re.compile(r"\s*(\d+[.)]|[-*+])\s")


class PageError(Exception):
    """What keeps a page from being built, in one line: file, cell, how to mend it."""


def page_notebook(student_path: Path, worked_path: Path, page_path: Path) -> Notebook:
    """Read the three files of a chapter and join them.

    Args:
        student_path: ``book/<stem>.ipynb``, the notebook that is handed out.
        worked_path: the executed worked notebook, with the same cell ids.
        page_path: ``{"answers": "shown"|"hidden", "exercises": {name: {"hints", "answer"}}}``.

    Raises:
        PageError: a file is missing or unreadable, or the notebooks do not belong together.
    """
    student, worked, page = (_read(path) for path in (student_path, worked_path, page_path))
    return join(student, worked, page, name=student_path.as_posix())


def join(student: Notebook, worked: Notebook, page: dict[str, Any], name: str) -> Notebook:
    """Join a student's notebook with its worked run; the arguments stay as they were.

    Args:
        name: how error messages call the student's notebook.
    """
    exercises: dict[str, Any] = page["exercises"]
    runs = {cell["id"]: cell for cell in worked["cells"] if cell["cell_type"] == "code"}
    cells: list[Cell] = []
    owed: str | None = None  # the exercise whose hints come after its check cell
    prose = page.get("prose", {})  # in MyST, where the notebook has plain Markdown
    for given in student["cells"]:
        cell = {**given, "source": prose.get(given["id"], given["source"])}
        if owed and cell["id"] != owed + CHECK:
            cells += _help_cells(owed, exercises[owed], page["answers"])
            owed = None
        cells.append(_joined(cell, runs, exercises, name))
        if cell["id"] in exercises:
            owed = cell["id"]
        elif owed:
            cells += _help_cells(owed, exercises[owed], page["answers"])
            owed = None
    if owed:
        cells += _help_cells(owed, exercises[owed], page["answers"])

    known = {cell["id"] for cell in student["cells"]}
    for lost in [key for key in (*runs, *exercises) if key not in known]:
        raise PageError(
            _("{file}: it has no cell '{cell}', its worked run has: run `make compose`").format(
                file=name, cell=lost
            )
        )
    run_metadata = worked.get("metadata", {})
    # The language tells Sphinx how to colour the code.
    taken = {key: run_metadata[key] for key in ("language_info", "widgets") if key in run_metadata}
    metadata = {**student.get("metadata", {}), **taken}
    return {**student, "metadata": metadata, "cells": cells}


def _joined(cell: Cell, runs: dict[str, Cell], exercises: dict[str, Any], name: str) -> Cell:
    """One cell of the page."""
    key: str = cell["id"]
    if cell["cell_type"] != "code":
        if key.endswith(ABOUT) and key.removesuffix(ABOUT) in exercises:
            return {**cell, "source": _boxed(_text(cell), "exercise-about")}
        return cell
    run = runs.get(key)
    if run is None:
        raise PageError(
            _("{file}: cell '{cell}' has not been run: run `make worked`").format(
                file=name, cell=key
            )
        )
    if key in exercises:
        # The learner's stub stands above what the right answer printed.
        return {**_tagged(cell, "exercise"), **_ran(run)}
    if _text(run) != _text(cell):
        raise PageError(
            _("{file}: cell '{cell}' differs from its worked run: run `make compose`").format(
                file=name, cell=key
            )
        )
    if key.endswith(CHECK) and key.removesuffix(CHECK) in exercises:
        # What `check` prints about the right answer tells a reader nothing.
        return {**_tagged(cell, "check"), "outputs": [], "execution_count": None}
    return {**cell, **_ran(run)}


def alternatives(notebook: Notebook) -> dict[str, str]:
    """The alternative texts of a notebook's pictures, by the SHA-256 of the picture.

    A picture says it in its output's metadata, ``{"image/png": {"alt": ...}}``.
    """
    found = {}
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            text = output.get("metadata", {}).get(PNG, {}).get("alt")
            picture = output.get("data", {}).get(PNG)
            if text and picture:
                data = picture if isinstance(picture, str) else "".join(picture)
                found[sha256(b64decode(data)).hexdigest()] = text
    return found


def _ran(run: Cell) -> Cell:
    return {"outputs": run["outputs"], "execution_count": run["execution_count"]}


def _tagged(cell: Cell, tag: str) -> Cell:
    """The cell with one more tag; myst-nb makes the CSS class ``tag_<tag>`` of it."""
    metadata = cell.get("metadata", {})
    return {**cell, "metadata": {**metadata, "tags": [*metadata.get("tags", []), tag]}}


def _help_cells(exercise: str, entry: dict[str, Any], answers: str) -> list[Cell]:
    """The dropdowns below an exercise: a rung of hints each, and the worked answer."""
    rungs = [
        _dropdown(_("Hint {number}").format(number=number), _lines_kept(hint), "hint")
        for number, hint in enumerate(entry["hints"], start=1)
    ]
    cells = [_markdown(exercise + HINTS, "\n\n".join(rungs))] if rungs else []
    if answers == "shown" and entry.get("answer"):
        code = entry["answer"].rstrip("\n")
        fence = "`" * (_longest_run("`", code) + 1)
        block = f"{fence}python\n{code}\n{fence}"
        cells.append(_markdown(exercise + ANSWER, _dropdown(_("Worked answer"), block, "answer")))
    return cells


def _dropdown(title: str, body: str, css_class: str) -> str:
    fence = ":" * (_longest_run(":", body) + 1)
    return f"{fence}{{dropdown}} {title}\n:class-container: {css_class}\n\n{body.strip()}\n{fence}"


def _lines_kept(hint: str) -> str:
    """A hint as Markdown that breaks its lines where the hint does, and takes `__init__` as it is.

    Hints are shown as plain text in a notebook; many are pseudocode. Lists and fences stay what
    they are.
    """
    lines = hint.split("\n")
    if any(_FENCE.match(line) for line in lines):
        return hint
    kept = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        parts = _CODE_SPAN.split(line)
        parts[::2] = [part.replace("__", r"\_\_") for part in parts[::2]]
        goes_on = line.strip() and following.strip() and not _LIST_ITEM.match(following)
        kept.append("".join(parts) + ("\\" if goes_on else ""))
    return "\n".join(kept)


def _boxed(body: str, css_class: str) -> str:
    fence = ":" * (_longest_run(":", body) + 1)
    return f"{fence}{{div}} {css_class}\n{body}\n{fence}"


def _longest_run(character: str, text: str) -> int:
    """Length of the longest run of ``character``; 2 at least, so that a fence has 3."""
    return max([2, *(len(run) for run in re.findall(re.escape(character) + "+", text))])


def _markdown(key: str, source: str) -> Cell:
    return {"cell_type": "markdown", "id": key, "metadata": {}, "source": source}


def _text(cell: Cell) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PageError(_("{file} is missing: run `make worked`").format(file=path)) from None
    except (OSError, ValueError) as error:
        raise PageError(
            _("{file} cannot be read ({error}): delete it and run `make worked`").format(
                file=path, error=error
            )
        ) from None
    if not isinstance(value, dict):
        raise PageError(_("{file} holds no notebook: run `make worked`").format(file=path))
    return value
