"""nbgrader's own programs, as an instructor starts them here: the formgrader and `validate`."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from autograder.bench.sample_class import SAMPLES
from autograder.gradebook.course import ROOT, path_with_this_python


def environment(course: Path) -> dict[str, str]:
    return {
        **os.environ,
        "COURSE_FOLDER": str(course),
        "PATH": path_with_this_python(),
        "JUPYTER_PLATFORM_DIRS": "1",
    }


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return str(answer.read().decode("utf-8"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Jupyter server over a course with one submission; its address."""
    course = tmp_path_factory.mktemp("formgrader") / "course"
    shutil.copytree(SAMPLES / "untouched", course / "submitted" / "untouched" / "attention")
    done = subprocess.run(
        [sys.executable, "-m", "autograder", "autograde", "attention", "--quiet"],
        cwd=ROOT,
        env=environment(course),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyter", "server", "--no-browser", "--allow-root"]
    # Without a token: it listens on this machine only, and as long as the test runs.
    command += [f"--ServerApp.port={port}", "--IdentityProvider.token="]
    command += [f"--ServerApp.root_dir={course.parent}"]  # nbgrader wants the course below it
    with (course / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(course), stdout=log, stderr=subprocess.STDOUT
        )
    address = f"http://127.0.0.1:{port}"
    try:
        for _attempt in range(300):
            try:
                get(f"{address}/api")
                break
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None, (course / "log").read_text()
                time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def test_the_formgrader_knows_the_class(server: str) -> None:
    (submission,) = json.loads(get(f"{server}/formgrader/api/submissions/attention"))
    assert submission["student"] == "untouched"
    assert submission["score"] == 0
    assert submission["autograded"]
    assert not submission["needs_manual_grade"]
    names = {item["name"] for item in json.loads(get(f"{server}/formgrader/api/assignments"))}
    assert "attention" in names


@pytest.mark.parametrize("page", ["manage_assignments", "gradebook", "manage_students"])
def test_the_formgrader_has_its_pages(server: str, page: str) -> None:
    found = get(f"{server}/formgrader/{page}")
    assert "<tfoot>" in found
    assert "error-500" not in found


def test_the_formgrader_shows_a_submission(server: str) -> None:
    (submission,) = json.loads(get(f"{server}/formgrader/api/submissions/attention"))
    (notebook,) = json.loads(
        get(f"{server}/formgrader/api/submitted_notebooks/attention/attention")
    )
    assert notebook["score"] == submission["score"]
    assert "attention_scores" in get(f"{server}/formgrader/submissions/{notebook['id']}/")


def test_validate_says_what_is_not_right(tmp_path: Path) -> None:
    notebook = shutil.copy(SAMPLES / "untouched" / "attention.ipynb", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", "validate", notebook],
        cwd=ROOT,
        env=environment(tmp_path / "course"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "VALIDATION FAILED ON 8 CELL(S)" in done.stdout, done.stdout + done.stderr
    assert 'hint("attention.attention_cost")' in done.stdout  # what `check` said
    assert "Traceback" not in done.stdout
