"""A plugin for nbval: compare the run that the book's pages show, where there is one.

``make test`` has just run every worked notebook for the book. This plugin hands nbval the outputs
of that run instead of running each notebook once more: what is compared is what is shown. A
notebook without such a run, or whose sources or imports changed since, is run as ever.

``python -m pytest -p tests.notebooks.kept_run --nbval solutions/notebooks``
"""

from __future__ import annotations

from collections import deque
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from autograder.compose import execute, notebook
from autograder.compose.files import Files
from tests.notebooks.text_only import notebooks_of


class KeptRun:
    """Stands where nbval has a kernel, and says what the kept run said, cell by cell.

    Args:
        cells: the code cells of the kept run, in order.
    """

    def __init__(self, cells: list[dict[str, Any]]) -> None:
        self._cells = deque(cells)
        self._waiting: deque[dict[str, Any]] = deque()

    def execute_cell_input(self, source: str, allow_stdin: bool | None = None) -> str:
        """Have the outputs of the next cell ready; returns what names the request."""
        cell = self._cells.popleft()
        assert cell["source"] == source, f"the kept run has another cell here: {cell['id']}"
        header = {"msg_id": cell["id"]}
        for output in cell["outputs"]:
            self._waiting.append(
                {
                    "msg_type": output["output_type"],
                    "parent_header": header,
                    "content": {"metadata": {}, "execution_count": None, **output},
                }
            )
        idle = {"execution_state": "idle"}
        self._waiting.append({"msg_type": "status", "parent_header": header, "content": idle})
        return str(cell["id"])

    def await_reply(self, msg_id: str, timeout: float | None = None) -> None:
        """The reply is there."""

    def await_idle(self, msg_id: str, timeout: float | None = None) -> None:
        """Drop what is left of the cell's outputs."""
        self._waiting.clear()

    def get_message(self, stream: str, timeout: float | None = None) -> dict[str, Any]:
        """The next message of the cell."""
        if not self._waiting:
            raise Empty
        return self._waiting.popleft()

    def is_alive(self) -> bool:
        """It can always be asked."""
        return True

    def interrupt(self) -> None:
        """Nothing runs."""

    stop = interrupt


def kept_run(worked: Path) -> list[dict[str, Any]] | None:
    """The code cells, with outputs, of a run of this notebook that is still what it would give."""
    files = Files(worked.parents[2], worked.stem)
    committed = notebook.read(worked)
    if files.worked != worked or committed is None:
        return None
    kept = execute.kept_run(files, notebook.without_outputs(committed))
    return kept and [cell for cell in kept["cells"] if cell["cell_type"] == "code"]


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path, parent):  # type: ignore[no-untyped-def]
    """Let nbval's collectors of notebooks that have a kept run begin with it."""
    found = yield
    for item in notebooks_of(found):
        item.setup = partial(_set_up, item, item.setup)
    return found


def _set_up(item, with_a_kernel):  # type: ignore[no-untyped-def]
    cells = kept_run(item.path)
    if cells is None:
        with_a_kernel()
    else:
        item.kernel = KeptRun(cells)
        item.setup_sanitize_files()
