"""CSV that a spreadsheet opens as a table and as nothing else."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from typing import Any, TextIO

# The same signs as East Asian keyboards write them; some spreadsheets take them for the others.
_WIDE = ("\uff1d", "\uff0b", "\uff0d", "\uff20")


def write_rows(file: TextIO, rows: Iterable[Iterable[Any]]) -> None:
    """Write rows as CSV."""
    writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for row in rows:
        writer.writerow([safe(item) for item in row])


def safe(item: Any) -> str:
    """The text of a cell, with an apostrophe before what a spreadsheet would run."""
    if item is None:
        return ""
    if isinstance(item, int | float):
        return f"{item:g}" if isinstance(item, float) else str(item)
    text = str(item)
    # Spaces before it do not stop a spreadsheet, and a tab or a line break begins a cell.
    if text.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r", "\n", *_WIDE)):
        return f"'{text}"
    return text
