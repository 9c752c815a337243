"""Notebooks as plain data, and as the same bytes every time."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Cell = dict[str, Any]
Notebook = dict[str, Any]

TEXT = "text/plain"


def markdown_cell(cell_id: str, source: str, metadata: dict[str, Any] | None = None) -> Cell:
    """A markdown cell."""
    return {
        "cell_type": "markdown",
        "id": cell_id,
        "metadata": dict(metadata or {}),
        "source": source,
    }


def code_cell(
    cell_id: str, source: str, metadata: dict[str, Any] | None = None, **flags: bool
) -> Cell:
    """A code cell without outputs; ``flags`` are Jupyter's ``deletable`` and ``editable``."""
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": cell_id,
        "metadata": {**(metadata or {}), **flags},
        "outputs": [],
        "source": source,
    }


def notebook(cells: Iterable[Cell]) -> Notebook:
    """A notebook with no more metadata than a notebook needs."""
    return {
        "cells": [copy.deepcopy(cell) for cell in cells],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def dumps(nb: Notebook) -> str:
    """The notebook's text: sorted keys, one line of source a line, a newline at the end."""
    nb = copy.deepcopy(nb)
    for cell in nb["cells"]:
        cell["source"] = cell["source"].splitlines(keepends=True)
        for output in cell.get("outputs", ()):
            _split(output)
    return json.dumps(nb, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _split(output: dict[str, Any]) -> None:
    if isinstance(output.get("text"), str):
        output["text"] = output["text"].splitlines(keepends=True)
    for key, value in output.get("data", {}).items():
        if isinstance(value, str) and not key.endswith("+json") and key != "application/json":
            output["data"][key] = value.splitlines(keepends=True)


def loads(text: str) -> Notebook:
    """A notebook from its text, with every source and output as one string."""
    nb: Notebook = json.loads(text)
    for cell in nb["cells"]:
        cell["source"] = "".join(cell["source"])
        for output in cell.get("outputs", ()):
            _join(output)
    return nb


def read(path: Path) -> Notebook | None:
    """A notebook's file; None where there is none, or none that can be read."""
    try:
        return loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _join(output: dict[str, Any]) -> None:
    if isinstance(output.get("text"), list):
        output["text"] = "".join(output["text"])
    for key, value in output.get("data", {}).items():
        if isinstance(value, list) and all(isinstance(line, str) for line in value):
            output["data"][key] = "".join(value)


def merged_streams(nb: Notebook) -> Notebook:
    """``nb`` with what a cell printed in one piece: where it is cut depends on the moment."""
    nb = copy.deepcopy(nb)
    for cell in nb["cells"]:
        merged: list[dict[str, Any]] = []
        for output in cell.get("outputs", ()):
            last = merged[-1] if merged else {}
            if output["output_type"] == "stream" and last.get("name") == output["name"]:
                last["text"] += output["text"]
            else:
                merged.append(output)
        if cell["cell_type"] == "code":
            cell["outputs"] = merged
    return nb


def with_outputs_of(nb: Notebook, old: Notebook | None) -> Notebook:
    """``nb`` with the outputs that ``old`` has for cells of the same id and source."""
    nb = copy.deepcopy(nb)
    kept = {cell.get("id"): cell for cell in old["cells"]} if old else {}
    for cell in nb["cells"]:
        known = kept.get(cell["id"])
        if cell["cell_type"] == "code" and known and known["source"] == cell["source"]:
            cell["outputs"] = known.get("outputs", [])
            cell["execution_count"] = known.get("execution_count")
    return nb


def text_outputs(nb: Notebook) -> Notebook:
    """``nb`` with what can be compared on another machine alone: streams and plain text."""
    nb = merged_streams(nb)
    nb["metadata"].pop("widgets", None)
    for cell in nb["cells"]:
        kept = []
        for output in cell.get("outputs", ()):
            if output["output_type"] == "stream" and output["name"] == "stdout":
                kept.append(output)
            elif TEXT in output.get("data", {}):
                kept.append({**output, "data": {TEXT: output["data"][TEXT]}, "metadata": {}})
        if cell["cell_type"] == "code":
            cell["outputs"] = kept
    return nb


def without_outputs(nb: Notebook) -> Notebook:
    """``nb`` as it is before it runs."""
    nb = copy.deepcopy(nb)
    for cell in nb["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return nb
