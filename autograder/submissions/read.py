"""Reads a notebook tolerantly: the cells, whatever its age, its encoding or its damage.

``nbformat`` validates and upgrades; a learner's file need not be valid to hold an answer. So the
JSON is read directly, and of each cell only its kind, its text and its ids are kept.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from autograder.i18n import _

MAX_CELL = 200_000
"""Characters of one cell that are read: more than anybody types."""
MAX_CELLS = 5_000
MAX_TEXT = 2_000_000
"""Characters of all code cells together that are read, and of all others. A long chapter has a
hundred thousand."""
SCRIPT = ".py"

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class Unreadable(Exception):
    """A submission that cannot be read. Its text is one sentence for the instructor."""


@dataclass(frozen=True)
class Cell:
    """One cell as it was handed in.

    Attributes:
        kind: ``code``, ``markdown`` or ``raw``.
        source: its text.
        id: its id, or "".
        grade_id: nbgrader's id, or "".
    """

    kind: str
    source: str
    id: str = ""
    grade_id: str = ""


@dataclass(frozen=True)
class Notebook:
    """A notebook's cells, and what had to be mended to read them."""

    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()
    is_empty: bool = False


def read(data: bytes, name: str = "") -> Notebook:
    """Read a notebook, or a Python file as Jupyter exports it.

    Args:
        data: the file.
        name: the file's name; only its suffix matters.

    Raises:
        Unreadable: it is neither.
    """
    if not data.strip(b"\x00 \t\r\n\xef\xbb\xbf\xff\xfe"):
        raise Unreadable(_("The file is empty."))
    _refuse_other_kinds(data)
    text, notes = _decoded(data)
    if kind_of(name) == SCRIPT:
        cells, said = _within_limits(_python_cells(text))
        return Notebook(
            tuple(cells),
            (*notes, _("A Python file was handed in; its parts were read as cells."), *said),
        )
    return _from_json(text, notes)


def kind_of(name: str) -> str:
    """What of a file's name decides how it is read: :data:`SCRIPT`, or "" for a notebook."""
    return SCRIPT if name.lower().endswith(SCRIPT) else ""


def _refuse_other_kinds(data: bytes) -> None:
    head = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n")
    kinds = (
        (b"%PDF", "PDF"),
        (b"\x89PNG", "PNG"),
        (b"\xff\xd8\xff", "JPEG"),
        (b"PK\x03\x04", "zip"),
        (b"\x1f\x8b", "gzip"),
        (b"Rar!", "RAR"),
        (b"7z\xbc\xaf", "7z"),
        (b"\xd0\xcf\x11\xe0", "Word"),
    )
    for mark, kind in kinds:
        if head.startswith(mark):
            raise Unreadable(_("This is a {kind} file, not a notebook.").format(kind=kind))
    if head[:200].lower().startswith((b"<!doctype html", b"<html", b"<?xml")):
        raise Unreadable(_("This is a web page, not a notebook: the `.ipynb` itself is needed."))


def _decoded(data: bytes) -> tuple[str, tuple[str, ...]]:
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            try:
                return data.decode(encoding), (
                    _("The file was saved as {encoding} with a byte-order mark.").format(
                        encoding=encoding.removesuffix("-sig").upper()
                    ),
                )
            except UnicodeDecodeError:
                break
    # UTF-16 without a mark: every other byte of the JSON's ASCII is zero.
    for encoding, start in (("utf-16-le", 1), ("utf-16-be", 0)):
        sample = data[start:200:2]
        if sample and sample.count(0) > 0.9 * len(sample):
            try:
                return data.decode(encoding), (
                    _("The file was saved as {encoding}.").format(encoding="UTF-16"),
                )
            except UnicodeDecodeError:
                pass
    try:
        return data.decode("utf-8"), ()
    except UnicodeDecodeError:
        # Windows' code page; bytes that it leaves undefined are kept as they are.
        return data.decode("cp1252", errors="replace"), (
            _("The file was not saved as UTF-8; it was read as Windows-1252."),
        )


def _from_json(text: str, notes: tuple[str, ...]) -> Notebook:
    text = text.lstrip("\ufeff \t\r\n")
    try:
        found, end = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError) as error:
        place = (
            f" ({error.msg}, line {error.lineno})"
            if isinstance(error, json.JSONDecodeError)
            else ""
        )
        raise Unreadable(
            _("The file is no notebook, or a damaged one: its JSON cannot be read{place}.").format(
                place=place
            )
        ) from None
    if text[end:].strip("\x00 \t\r\n"):
        notes = (*notes, _("Something stands behind the end of the notebook; it was left out."))
    if not isinstance(found, dict):
        raise Unreadable(_("The file holds JSON, but not a notebook."))
    raw = found.get("cells")
    if raw is None and isinstance(found.get("worksheets"), list):
        raw = [
            cell
            for sheet in found["worksheets"]
            if isinstance(sheet, dict) and isinstance(sheet.get("cells"), list)
            for cell in sheet["cells"]
        ]
        notes = (*notes, _("The notebook is in an old format, and was converted."))
    if not isinstance(raw, list):
        raise Unreadable(_("The file holds JSON, but not a notebook: it has no cells."))
    cells = [cell for cell in map(_cell, raw[:MAX_CELLS]) if cell is not None]
    if len(raw) > MAX_CELLS:
        notes = (*notes, _("Only the first {n} cells were read.").format(n=MAX_CELLS))
    cells, said = _within_limits(cells)
    notes = (*notes, *said)
    return Notebook(tuple(cells), notes, is_empty=not any(cell.source.strip() for cell in cells))


def _cell(raw: Any) -> Cell | None:
    if not isinstance(raw, dict):
        return None
    kind = raw.get("cell_type")
    if kind == "heading":  # nbformat 3
        kind = "markdown"
    if kind not in ("code", "markdown", "raw"):
        kind = "code" if "outputs" in raw or "input" in raw else "raw"
    source = _text(raw.get("source", raw.get("input", "")))
    metadata = raw.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    graded = metadata.get("nbgrader")
    grade_id = graded.get("grade_id", "") if isinstance(graded, dict) else ""
    cell_id = raw.get("id", metadata.get("id", ""))
    return Cell(
        kind,
        source,
        cell_id if isinstance(cell_id, str) else "",
        grade_id if isinstance(grade_id, str) else "",
    )


def _within_limits(cells: Iterable[Cell]) -> tuple[list[Cell], list[str]]:
    """The cells, with what is longer than anybody types cut off, and sentences that say so."""
    kept: list[Cell] = []
    cut = left_out = 0
    room = {True: MAX_TEXT, False: MAX_TEXT}
    for cell in cells:
        if len(cell.source) > MAX_CELL:
            cell = replace(cell, source=cell.source[:MAX_CELL])  # noqa: PLW2901
            cut += 1
        is_code = cell.kind == "code"
        if len(cell.source) > room[is_code]:
            left_out += 1
            continue
        room[is_code] -= len(cell.source)
        kept.append(cell)
    notes = []
    if cut:
        notes.append(_("Of a cell, only the first {n} characters were read.").format(n=MAX_CELL))
    if left_out:
        notes.append(
            _(
                "The notebook has too much text: {count} cells beyond {n} characters were left out."
            ).format(count=left_out, n=MAX_TEXT)
        )
    return kept, notes


def _text(source: Any) -> str:
    if isinstance(source, list):
        source = "".join(part for part in source if isinstance(part, str))
    if not isinstance(source, str):
        return ""
    # A lone surrogate cannot be encoded again, a null byte not be compiled.
    source = source.encode("utf-8", "replace").decode("utf-8").replace("\x00", "")
    return source.replace("\r\n", "\n").replace("\r", "\n")


_CELL_MARK = re.compile(r"^# (?:In\[[ \d*]*\]:|%%.*|<codecell>)\s*$")


def _python_cells(text: str) -> list[Cell]:
    """The parts of a script, cut where Jupyter, Jupytext or an editor marks a cell."""
    parts: list[list[str]] = [[]]
    for line in _text(text).splitlines():
        if len(parts) <= MAX_CELLS and _CELL_MARK.match(line):
            parts.append([])
        else:
            parts[-1].append(line)
    return [Cell("code", "\n".join(part)) for part in parts if "".join(part).strip()]
