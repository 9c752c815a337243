"""A run over a class is passed over only where nothing at all has changed."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from autograder.gradebook import last_run
from autograder.gradebook.last_run import LastRun, Left
from autograder.grading.summary import Summary


class Course:
    """A class, and what a run left behind."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = {"CourseDirectory": {"root": str(root)}}
        self.options = [0, "auto"]
        self.books = root / "gradebook.db"
        self.submission = root / "submitted" / "ada" / "attention" / "attention.ipynb"
        self.autograded = root / "autograded" / "ada" / "attention" / "attention.ipynb"
        self.linked = root / "elsewhere.txt"
        for path in (self.books, self.submission, self.autograded, self.linked):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("as it was", encoding="utf-8")
        (self.submission.parent / "data").mkdir()
        (self.submission.parent / "data" / "link.txt").symlink_to(self.linked)
        (self.submission.parent / "data" / "dangling.txt").symlink_to(root / "nowhere")

    def last(self) -> LastRun:
        return LastRun("attention", self.options, self.config)

    def run(self, url: str = "") -> None:
        last = self.last()
        last.begin(str(self.root / "submitted" / "*" / "attention"))
        summary = Summary(["ada graded"], Counter(graded=1), graded=1)
        last.end(Left(summary, url or f"sqlite:///{self.books}"), [self.autograded])


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    """A class that was just graded."""
    monkeypatch.setattr(last_run, "RESULTS", tmp_path / "kept")
    course = Course(tmp_path / "course")
    course.run()
    return course


def test_what_is_said_of_it_again(ran: Course) -> None:
    left = ran.last().unchanged()
    assert left is not None
    assert left.summary == Summary(["ada graded"], Counter(graded=1), graded=0)
    assert (left.db_url, left.failure, left.written) == (f"sqlite:///{ran.books}", "", [])


def the_submission(ran: Course) -> None:
    ran.submission.write_text("as it was not", encoding="utf-8")


def as_many_bytes_at_the_same_time(ran: Course) -> None:
    state = ran.submission.stat()
    ran.submission.write_text("as it wos", encoding="utf-8")
    os.utime(ran.submission, ns=(state.st_atime_ns, state.st_mtime_ns))


def another_file_in_its_place(ran: Course) -> None:
    other = ran.submission.with_name("other")
    shutil.copy2(ran.submission, other)
    os.replace(other, ran.submission)


def what_a_link_leads_to(ran: Course) -> None:
    ran.linked.write_text("as it was not", encoding="utf-8")


def a_link_leads_somewhere(ran: Course) -> None:
    (ran.root / "nowhere").touch()


def another_learner(ran: Course) -> None:
    shutil.copytree(ran.root / "submitted" / "ada", ran.root / "submitted" / "bob", symlinks=True)


def a_learner_is_gone(ran: Course) -> None:
    shutil.rmtree(ran.root / "submitted" / "ada")


def a_file_beside(ran: Course) -> None:
    (ran.submission.parent / "timestamp.txt").touch()


def a_file_below(ran: Course) -> None:
    (ran.submission.parent / "data" / "more.txt").touch()


def a_file_is_gone(ran: Course) -> None:
    (ran.submission.parent / "data" / "link.txt").unlink()


def the_autograded_notebook(ran: Course) -> None:
    ran.autograded.write_text("as it was not", encoding="utf-8")


def the_autograded_notebook_is_gone(ran: Course) -> None:
    ran.autograded.unlink()


def the_gradebook(ran: Course) -> None:
    ran.books.write_text("as it was not", encoding="utf-8")


def the_gradebook_is_gone(ran: Course) -> None:
    ran.books.unlink()


def another_seed(ran: Course) -> None:
    ran.options = [1, "auto"]


def the_configuration(ran: Course) -> None:
    ran.config["LateSubmissionPlugin"] = {"penalty_method": "zero"}


def a_run_that_was_killed(ran: Course) -> None:
    ran.last().begin(str(ran.root / "submitted" / "*" / "attention"))


def books_in_another_database(ran: Course) -> None:
    ran.last().begin(str(ran.root / "submitted" / "*" / "attention"))
    ran.run("postgresql://books")


def nonsense_is_remembered(ran: Course) -> None:
    (last_run.RESULTS / "last-runs" / "attention.json").write_text("[]", encoding="utf-8")


CHANGES = (
    the_submission,
    as_many_bytes_at_the_same_time,
    another_file_in_its_place,
    what_a_link_leads_to,
    a_link_leads_somewhere,
    another_learner,
    a_learner_is_gone,
    a_file_beside,
    a_file_below,
    a_file_is_gone,
    the_autograded_notebook,
    the_autograded_notebook_is_gone,
    the_gradebook,
    the_gradebook_is_gone,
    another_seed,
    the_configuration,
    a_run_that_was_killed,
    books_in_another_database,
    nonsense_is_remembered,
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda item: item.__name__)
def test_nothing_is_passed_over(ran: Course, change: Callable[[Course], None]) -> None:
    assert ran.last().unchanged() is not None
    change(ran)
    assert ran.last().unchanged() is None


def test_a_source_changed(ran: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_run, "sources_now", lambda: "another file")
    assert ran.last().unchanged() is None


def test_what_changes_while_the_class_is_graded(ran: Course) -> None:
    last = ran.last()
    last.begin(str(ran.root / "submitted" / "*" / "attention"))
    the_submission(ran)
    last.end(Left(Summary(), f"sqlite:///{ran.books}"), [ran.autograded])
    assert ran.last().unchanged() is None
