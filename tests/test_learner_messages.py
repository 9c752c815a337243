"""Cells that wait for an answer say so in one line, in a real IPython shell."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import tinychapter
from IPython.core.interactiveshell import InteractiveShell

from autograder.learner import known
from autograder.learner.messages import Watcher

STUBS = (
    "def shifted(x):\n    raise NotImplementedError\n"
    "class Shift:\n    def forward(self):\n        raise NotImplementedError\n"
)

Run = Callable[[str], tuple[bool, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Run a cell; whether it succeeded, and all that it printed."""
    tinychapter.load()
    known.exercises.cache_clear()
    monkeypatch.setattr(known, "stems", lambda: ("tiny",))
    shell = InteractiveShell()
    shell.history_manager.enabled = False
    Watcher().install(shell)

    def cell(source: str) -> tuple[bool, str]:
        capsys.readouterr()
        result = shell.run_cell(source, store_history=True)
        captured = capsys.readouterr()
        return result.success, captured.out + captured.err

    yield cell
    shell.history_manager.end_session()
    known.exercises.cache_clear()


NEEDS = "✘ `shifted` is not answered yet: this cell needs it.\n"


def test_a_cell_that_meets_a_stub(run: Run) -> None:
    run(STUBS)
    assert run("values = shifted(1)") == (False, NEEDS)
    assert run("print([shifted(x) for x in [1]])") == (False, NEEDS)
    assert run("Shift().forward()") == (False, NEEDS.replace("shifted", "Shift"))


def test_a_stub_behind_another_error(run: Run) -> None:
    run(STUBS)
    wrapped = "try:\n    shifted(1)\nexcept NotImplementedError as e:\n    raise ValueError from e"
    assert run(wrapped) == (False, NEEDS)


def test_what_such_a_cell_would_have_made(run: Run) -> None:
    run(STUBS)
    run("losses = []")
    run("values = shifted(1)\nlosses.append(values)")
    waits = "is missing: the cell that makes it needs `shifted`, not answered yet.\n"
    assert run("more = values + 1") == (False, f"✘ `values` {waits}")
    assert run("print(more)") == (False, f"✘ `more` {waits}")
    assert run("print(losses[-1])") == (False, f"✘ `losses` {waits}")
    assert run("values = 3") == (True, "")
    assert run("print(values)") == (True, "3\n")


def test_a_name_of_an_exercise_whose_cell_did_not_run(run: Run) -> None:
    ok, out = run("doubled(2)")
    assert not ok
    assert out == "✘ `doubled` is not defined: run the cell above that makes it first.\n"


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("unknown", "NameError"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise NotImplementedError('mine')", "NotImplementedError"),
        ("def helper():\n    raise NotImplementedError\nhelper()", "NotImplementedError"),
        ("x = (", "SyntaxError"),
    ],
)
def test_other_errors_are_shown_as_ever(run: Run, source: str, error: str) -> None:
    ok, out = run(source)
    assert not ok
    assert error in out
    assert "✘" not in out


def test_a_second_watcher_changes_nothing() -> None:
    shell = InteractiveShell()
    shell.history_manager.enabled = False
    Watcher().install(shell)
    first = shell._course_watcher
    Watcher().install(shell)
    assert shell._course_watcher is first
    shell.history_manager.end_session()
