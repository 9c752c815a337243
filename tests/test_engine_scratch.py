"""What a killed run leaves behind is removed by the next one, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from autograder.engine import scratch

pytestmark = pytest.mark.skipif(os.name != "posix", reason="folders are locked on POSIX only")

KILLED = """
import os, signal, sys, tempfile
from autograder.engine import scratch
tempfile.tempdir = sys.argv[1]
print(scratch.make().path, flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_YOUNG_SECONDS", -1.0)
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[object]:
    """Starts another run that makes a folder; it lives until the test ends, or is killed."""
    started = []

    def begin(how: str) -> Path:
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(folder), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        made = Path(process.stdout.readline().strip())
        if how == "killed":
            process.wait()
        (made / "file").write_text("x", encoding="utf-8")
        return made

    yield begin
    for process in started:
        process.communicate()


def test_what_a_killed_run_left_is_removed(folder: Path, start: object) -> None:
    dead, alive = start("killed"), start("alive")  # type: ignore[operator]
    other = folder / "autograder-not-a-folder"
    other.symlink_to(folder)
    mine = scratch.make()
    assert not dead.exists()
    assert (alive / "file").exists()
    assert other.is_symlink()
    again = scratch.make()
    assert Path(mine.path).is_dir()
    for item in (mine, again):
        item.remove()
        assert not Path(item.path).exists()


def test_what_was_made_a_moment_ago_stays(start: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its making and its lock a folder looks like one that was left."""
    monkeypatch.setattr(scratch, "_YOUNG_SECONDS", 3_600.0)
    dead = start("killed")  # type: ignore[operator]
    scratch.make().remove()
    assert dead.exists()
