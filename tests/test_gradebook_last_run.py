"""A run over a class is passed over only where nothing at all has changed."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from autograder.gradebook import last_run
from autograder.gradebook.last_run import LastRun, Left
from autograder.gradebook.listing import remove
from autograder.grading.summary import Summary


class Course:
    """A class, and what a run left behind."""

    monkeypatch: pytest.MonkeyPatch

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config: dict[str, dict[str, object]] = {"CourseDirectory": {"root": str(root)}}
        self.options = [0, "auto"]
        self.books = root / "gradebook.db"
        self.submission = root / "submitted" / "ada" / "attention" / "attention.ipynb"
        self.autograded = root / "autograded" / "ada" / "attention" / "attention.ipynb"
        self.linked = root / "elsewhere.txt"
        self.copied = self.autograded.parent / "data" / "more.txt"
        self.plugin = root / "plugins" / "penalty.py"
        for path in (
            *(self.books, self.submission, self.autograded),
            *(self.copied, self.linked, self.plugin),
        ):
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
        left = Left(summary, url or f"sqlite:///{self.books}")
        last.end(left, [self.autograded, str(self.copied)])


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    """A class that was just graded."""
    monkeypatch.setattr(last_run, "RESULTS", tmp_path / "kept")
    course = Course(tmp_path / "course")
    course.monkeypatch = monkeypatch
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


def a_copied_file_is_gone(ran: Course) -> None:
    ran.copied.unlink()


def the_gradebook(ran: Course) -> None:
    ran.books.write_text("as it was not", encoding="utf-8")


def the_gradebook_is_gone(ran: Course) -> None:
    ran.books.unlink()


def what_sqlite_has_put_beside_it(ran: Course) -> None:
    ran.books.with_name("gradebook.db-wal").touch()


def another_seed(ran: Course) -> None:
    ran.options = [1, "auto"]


def the_configuration(ran: Course) -> None:
    ran.config["LateSubmissionPlugin"] = {"penalty_method": "zero"}


def a_run_that_was_killed(ran: Course) -> None:
    ran.last().begin(str(ran.root / "submitted" / "*" / "attention"))


def books_in_another_database(ran: Course) -> None:
    ran.last().begin(str(ran.root / "submitted" / "*" / "attention"))
    ran.run("postgresql://books")


def somebody_else_runs_it(ran: Course) -> None:
    ran.monkeypatch.setattr(os, "getgroups", lambda: [54_321])


def a_written_file_is_gone_at_the_end(ran: Course) -> None:
    ran.copied.unlink()
    ran.run()


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
    a_copied_file_is_gone,
    the_gradebook,
    the_gradebook_is_gone,
    what_sqlite_has_put_beside_it,
    another_seed,
    the_configuration,
    a_run_that_was_killed,
    books_in_another_database,
    somebody_else_runs_it,
    a_written_file_is_gone_at_the_end,
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


class Penalty:
    """A class that a configuration may hold itself."""


@pytest.mark.parametrize(
    "named", ["penalty.Late", "plugins.penalty.Late", ["plugins.penalty.Late"], Penalty]
)
def test_the_code_that_the_configuration_names(ran: Course, named: object) -> None:
    ran.monkeypatch.syspath_prepend(str(ran.root))
    ran.monkeypatch.syspath_prepend(str(ran.plugin.parent))
    ran.monkeypatch.setattr(Penalty, "__module__", "plugins.penalty")
    ran.config["AssignLatePenalties"] = {"plugin_class": named}
    ran.run()
    assert ran.last().unchanged() is not None
    ran.plugin.write_text("as it was not", encoding="utf-8")
    assert ran.last().unchanged() is None
    assert not {"plugins", "plugins.penalty", "penalty"} & set(sys.modules)


def test_the_file_of_the_configuration(ran: Course) -> None:
    ran.monkeypatch.setattr(last_run.chapters, "ROOT", ran.root)
    ran.monkeypatch.setattr(last_run, "sources_now", lambda: "the same")
    ran.run()
    assert ran.last().unchanged() is not None
    (ran.root / "nbgrader_config.py").touch()
    assert ran.last().unchanged() is None


@pytest.mark.parametrize("url", ["sqlite:///{}?timeout=5", "sqlite+pysqlite:///{}"])
def test_an_address_of_books_with_more_in_it(ran: Course, url: str) -> None:
    ran.run(url.format(ran.books))
    assert ran.last().unchanged() is not None
    ran.books.touch()
    assert ran.last().unchanged() is None


def test_nothing_that_is_remembered_ends_a_run(ran: Course) -> None:
    """All is written by then."""
    ran.run("sqlite://")
    assert ran.last().unchanged() is None

    def full(path: Path, text: str, *, durable: bool) -> None:
        raise OSError(28, "No space left on device", str(path))

    ran.monkeypatch.setattr(last_run, "write_whole", full)
    ran.run()
    assert ran.last().unchanged() is None


def test_what_cannot_be_looked_at_is_no_change_and_no_end(ran: Course) -> None:
    lstat = os.lstat

    def refuses(path: str) -> os.stat_result:
        if str(path).endswith("link.txt"):
            raise PermissionError(13, "Permission denied", path)
        return lstat(path)

    with ran.monkeypatch.context() as patch:
        patch.setattr(os, "lstat", refuses)
        ran.run()
        assert ran.last().unchanged() is not None
    assert ran.last().unchanged() is None


def test_more_levels_than_python_calls(ran: Course) -> None:
    ran.monkeypatch.chdir(ran.submission.parent)
    for _level in range(1200):
        os.mkdir("d")
        os.chdir("d")
    try:
        ran.run()
        assert ran.last().unchanged() is not None
        os.chdir("..")
        os.rmdir("d")
        os.chdir(ran.submission.parent)
        assert ran.last().unchanged() is None
    finally:
        remove(ran.submission.parent / "d")
