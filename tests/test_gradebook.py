"""A class goes into nbgrader's gradebook: by our command and by nbgrader's, with one result."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from nbgrader import api
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config

from autograder.bench.sample_class import SAMPLES, Author
from autograder.gradebook import autograde, beside, command, course, last_run, restored
from autograder.gradebook.export import SafeCsv
from autograder.grading import batch, work
from autograder.grading.pool import Inline
from autograder.grading.run import Grader
from autograder.report.csvfile import safe, write_rows
from autograder.submissions.align import align
from autograder.submissions.read import read
from autograder.submissions.template import CHECK, notebook_path, template
from tests.in_process import InProcess

# nbgrader's own: its add_submission makes SQLAlchemy warn, and it reads mishandled notebooks
# through nbformat, which warns of ids that are missing or there twice. Nothing of ours goes
# that way.
pytestmark = pytest.mark.filterwarnings(
    "ignore::sqlalchemy.exc.SAWarning",
    "ignore::nbformat.warnings.DuplicateCellId",
    "ignore::nbformat.warnings.MissingIDFieldWarning",
)

AUTHOR = Author()
TOTAL = sum(item.points for item in AUTHOR.exercises.values())
# What the process of the tests may run itself: no endless loops.
CLASS = (
    "right",
    "untouched",
    "several-mistakes",
    "mask-after-softmax",
    "through-colab",
    "duplicated-cell",
    "code-in-markdown",
    "renamed-file",
    "unreadable",
    "old-format",
)
# nbgrader itself wants a readable file of the right name.
OPENED_BY_NBGRADER = tuple(
    name for name in CLASS if name not in ("renamed-file", "unreadable", "old-format")
)


class Class:
    """A course folder with a class in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = Config()
        course.configure(self.config, root)
        self.folders = CourseDirectory(config=self.config)

    def hand_in(self, name: str, student: str = "", timestamp: str = "") -> Path:
        folder = self.root / "submitted" / (student or name) / "attention"
        shutil.copytree(SAMPLES / name, folder)
        if timestamp:
            (folder / "timestamp.txt").write_text(timestamp, encoding="utf-8")
        return folder

    def autograde(self, *options: str) -> int:
        parser = argparse.ArgumentParser()
        parser.add_argument("chapter")
        command.add_options(parser)
        return command.autograde(parser.parse_args(["attention", "--workers", "1", *options]))

    def books(self) -> dict[str, dict[str, Any]]:
        """All that the gradebook holds of the class, by learner."""
        found = {}
        with Gradebook(self.folders.db_url) as gradebook:
            for submission in gradebook.assignment_submissions("attention"):
                notebook = submission.notebooks[0]
                found[submission.student.id] = {
                    "score": submission.score,
                    "max_score": submission.max_score,
                    "manual": submission.needs_manual_grade,
                    "penalty": notebook.late_submission_penalty,
                    "grades": {grade.name: grade.auto_score for grade in notebook.grades},
                    "comments": {c.name: c.auto_comment for c in notebook.comments},
                }
        return found

    def api(self) -> NbGraderAPI:
        return NbGraderAPI(self.folders, config=self.config)


@pytest.fixture(scope="module")
def in_process() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    grader = Grader(InProcess())
    patch.setattr(work, "prepare", lambda options: grader)
    patch.setattr(batch, "Pool", lambda options, workers: Inline(options))
    patch.setenv("PATH", course.path_with_this_python())
    # For every new gradebook nbgrader starts a process that takes seconds, and says the same.
    patch.setattr(api, "get_alembic_version", cache(api.get_alembic_version))
    yield
    patch.undo()


@pytest.fixture
def klass(tmp_path: Path, in_process: None, monkeypatch: pytest.MonkeyPatch) -> Class:
    """An empty class with folders of its own."""
    found = Class(tmp_path / "course")
    monkeypatch.setattr(course, "load", lambda: found.config)
    monkeypatch.setattr(autograde, "RESULTS", tmp_path / "kept")
    monkeypatch.setattr(last_run, "RESULTS", tmp_path / "kept")
    kept = batch.Store(tmp_path / "kept")
    fields = batch.Batch.__dataclass_fields__["store"]
    monkeypatch.setattr(fields, "default_factory", lambda: kept)
    monkeypatch.setattr(batch, "RESULTS", tmp_path / "kept")
    return found


def test_the_whole_class_has_rows(klass: Class) -> None:
    for name in CLASS:
        klass.hand_in(name)
    assert klass.autograde("--quiet") == 0
    books = klass.books()
    assert set(books) == set(CLASS)
    expected = json.loads((SAMPLES / "expected.json").read_text(encoding="utf-8"))
    scores = {path.split("/")[0]: item["score"] for path, item in expected.items()}
    assert {name: row["score"] for name, row in books.items()} == {n: scores[n] for n in CLASS}
    assert all(row["max_score"] == TOTAL and not row["manual"] for row in books.values())
    for name in CLASS:
        path = klass.root / "autograded" / name / "attention" / "attention.ipynb"
        assert json.loads(path.read_text(encoding="utf-8"))["cells"]
    comments = books["unreadable"]["comments"]
    assert "damaged" in comments["attention_scores"]
    assert books["untouched"]["comments"]["padding_mask"] == "No response."
    assert "is called" in books["renamed-file"]["comments"]["attention_scores"]


def test_nbgrader_gives_the_same_grades(klass: Class) -> None:
    for name in OPENED_BY_NBGRADER:
        klass.hand_in(name)
    klass.autograde("--quiet")
    ours = klass.books()
    shutil.rmtree(klass.root / "autograded")
    (klass.root / "gradebook.db").unlink()
    assert klass.api().generate_assignment("attention")["success"]
    for name in OPENED_BY_NBGRADER:
        done = klass.api().autograde("attention", name)
        assert done["success"], done
    assert klass.books() == ours


def test_nbgrader_does_not_follow_a_link_either(klass: Class) -> None:
    right = klass.hand_in("right") / "attention.ipynb"
    linked = klass.hand_in("untouched") / "attention.ipynb"
    linked.unlink()
    linked.symlink_to(right)
    assert klass.api().generate_assignment("attention")["success"]
    assert klass.api().autograde("attention", "untouched")["success"]
    row = klass.books()["untouched"]
    assert row["score"] == 0
    assert "symbolic link" in row["comments"]["attention_scores"]


def test_released_is_what_is_handed_out(klass: Class) -> None:
    assert klass.api().generate_assignment("attention")["success"]
    folder = klass.root / "release" / "attention"
    assert [path.name for path in folder.iterdir()] == ["attention.ipynb"]
    released = (folder / "attention.ipynb").read_bytes()
    assert released == notebook_path("attention").read_bytes()
    sources = [path for path in (klass.root / "source").rglob("*") if path.is_file()]
    assert sources
    assert all(path.suffix == ".ipynb" for path in sources)


def test_a_second_run_changes_nothing(
    klass: Class,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("right", "several-mistakes"):
        klass.hand_in(name)
    klass.autograde("--quiet")
    books, db = klass.books(), klass.root / "gradebook.db"
    with Gradebook(klass.folders.db_url) as gradebook:
        ids = sorted(
            grade.id
            for grade in gradebook.find_submission("attention", "right").notebooks[0].grades
        )
    written = {path: path.stat().st_mtime_ns for path in (klass.root / "autograded").rglob("*")}
    data = db.read_bytes()
    with monkeypatch.context() as patch:
        patch.delattr(autograde, "autograde_class")  # nothing changed: it need not be there
        capsys.readouterr()
        assert klass.autograde() == 0
        said = capsys.readouterr().out
        assert "2 submissions: 2 graded; 0 graded now, 2 kept from before" in said
        assert str(db) in said
    shutil.rmtree(tmp_path / "kept" / "last-runs")
    klass.autograde("--quiet")
    assert klass.books() == books
    assert db.read_bytes() == data
    assert {p: p.stat().st_mtime_ns for p in (klass.root / "autograded").rglob("*")} == written
    with Gradebook(klass.folders.db_url) as gradebook:
        notebook = gradebook.find_submission("attention", "right").notebooks[0]
        assert sorted(grade.id for grade in notebook.grades) == ids


def test_killed_between_two_transactions(klass: Class, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was written before the end, the next run ends in the same books."""
    names = ("right", "several-mistakes", "untouched", "unreadable")
    for name in names:
        klass.hand_in(name)
    klass.autograde("--quiet")
    books = klass.books()
    shutil.rmtree(klass.root / "autograded")
    (klass.root / "gradebook.db").unlink()
    monkeypatch.setattr(autograde, "_TOGETHER", 1)
    write = autograde.Books.write
    done = []

    def killed(self: Any, entries: Any) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(write(self, entries))

    monkeypatch.setattr(autograde.Books, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        klass.autograde("--quiet")
    assert len(klass.books()) == 2
    monkeypatch.setattr(autograde.Books, "write", write)
    klass.autograde("--quiet")
    assert klass.books() == books


def test_another_courses_folder_is_written_too(
    klass: Class, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results of both are kept in one place, and the same was handed in."""
    other = Class(tmp_path / "other")
    for course_ in (klass, other):
        course_.hand_in("right")
        monkeypatch.setattr(course, "load", lambda course_=course_: course_.config)
        assert course_.autograde("--quiet") == 0
        path = course_.root / "autograded" / "right" / "attention" / "attention.ipynb"
        assert path.is_file()


def test_what_a_person_gave_stays(klass: Class) -> None:
    klass.hand_in("several-mistakes", student="ada")
    klass.autograde("--quiet")
    with Gradebook(klass.folders.db_url) as gradebook:
        grade = gradebook.find_grade(f"padding_mask{CHECK}", "attention", "attention", "ada")
        grade.manual_score, grade.extra_credit = 3.0, 0.5
        comment = gradebook.find_comment("padding_mask", "attention", "attention", "ada")
        comment.manual_comment = "Nearly."
        gradebook.db.commit()
    klass.autograde("--quiet")
    with Gradebook(klass.folders.db_url) as gradebook:
        grade = gradebook.find_grade(f"padding_mask{CHECK}", "attention", "attention", "ada")
        assert (grade.manual_score, grade.extra_credit, grade.score) == (3.0, 0.5, 3.5)
        assert grade.needs_manual_grade
        comment = gradebook.find_comment("padding_mask", "attention", "attention", "ada")
        assert comment.comment == "Nearly."


def test_late_penalties_are_made_anew(klass: Class) -> None:
    klass.config.LateSubmissionPlugin.penalty_method = "zero"
    folder = klass.hand_in("right", student="ada", timestamp="2026-02-02 12:00:00 UTC")
    klass.autograde("--quiet")
    assert klass.books()["ada"]["penalty"] is None
    with Gradebook(klass.folders.db_url) as gradebook:
        gradebook.update_or_create_assignment("attention", duedate="2026-02-02 11:00:00 UTC")
    klass.autograde("--quiet")
    assert klass.books()["ada"]["penalty"] == TOTAL
    (folder / "timestamp.txt").write_text("2026-02-02 10:59:00 UTC", encoding="utf-8")
    klass.autograde("--quiet")
    assert klass.books()["ada"]["penalty"] is None


def test_a_time_that_is_not_said_again_stays(klass: Class) -> None:
    klass.config.LateSubmissionPlugin.penalty_method = "zero"
    folder = klass.hand_in("right", student="ada", timestamp="2026-02-02 12:00:00 UTC")
    klass.autograde("--quiet")
    with Gradebook(klass.folders.db_url) as gradebook:
        gradebook.update_or_create_assignment("attention", duedate="2026-02-02 11:00:00 UTC")
    (folder / "timestamp.txt").unlink()
    klass.autograde("--quiet")
    assert klass.books()["ada"]["penalty"] == TOTAL
    os.mkfifo(folder / "timestamp.txt")
    klass.autograde("--quiet")
    row = klass.books()["ada"]
    assert row["penalty"] == TOTAL
    assert "`timestamp.txt` holds no time" in row["comments"]["attention_scores"]


def test_what_lies_beside_a_notebook_stops_nobody(
    klass: Class, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("ada", "bob", "cy", "ed", "lou\nnew")
    folders = {name: klass.hand_in("right", student=name) for name in names}
    for name in ("ada", "cy"):
        (folders[name] / "data.txt").write_text("data", encoding="utf-8")
    (folders["bob"] / "attention.ipynb").rename(folders["bob"] / "mine-attention.ipynb")
    (folders["bob"] / "attention.ipynb").mkdir()
    (folders["bob"] / "attention.ipynb" / "x.txt").touch()
    os.mkfifo(folders["ed"] / "timestamp.txt")
    read, write = beside._read, autograde.write_whole

    def refuses(path: Path, most: int) -> bytes:
        if "cy" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, most)

    def fails(path: Path, text: str, *, durable: bool) -> None:
        if "ed" in path.parts:
            raise OSError(36, "File name too long", str(path))
        write(path, text, durable=durable)

    with monkeypatch.context() as patch:
        patch.setattr(beside, "_read", refuses)
        patch.setattr(autograde, "write_whole", fails)
        for _run in range(2):  # the second knows what the first wrote
            assert klass.autograde() == 0
            said = capsys.readouterr()
            assert "5 submissions" in said.out
            assert "not whole in autograded/, and their comments say why: cy, ed" in said.err
            books = klass.books()
            assert {name: row["score"] for name, row in books.items()} == dict.fromkeys(
                names, TOTAL
            )
            told = {name: row["comments"]["attention_scores"] or "" for name, row in books.items()}
            assert "`data.txt` could not be copied" in told["cy"]
            assert "notebook could not be written: File name too long" in told["ed"]
            assert "could not" not in told["ada"] + told["bob"] + told["lou\nnew"]
    assert klass.autograde() == 0
    assert capsys.readouterr().err == ""
    told = {name: row["comments"]["attention_scores"] for name, row in klass.books().items()}
    assert told["cy"] is None
    for name in names:
        path = klass.root / "autograded" / name / "attention" / "attention.ipynb"
        assert json.loads(path.read_text(encoding="utf-8"))["cells"]
    data = klass.root / "autograded" / "cy" / "attention" / "data.txt"
    assert data.read_text(encoding="utf-8") == "data"
    data.unlink()
    klass.autograde("--quiet")
    assert data.read_text(encoding="utf-8") == "data"


def test_several_files_in_one_folder(klass: Class) -> None:
    folder = klass.hand_in("untouched", student="ada")
    data = (SAMPLES / "right" / "attention.ipynb").read_bytes()
    (folder / "attention-Copy1.ipynb").write_bytes(data)
    klass.autograde("--quiet")
    row = klass.books()["ada"]
    assert row["score"] == TOTAL
    assert "`attention-Copy1.ipynb` counts" in row["comments"]["attention_scores"]


def test_an_empty_folder_has_a_row(klass: Class) -> None:
    klass.hand_in("right")
    (klass.root / "submitted" / "zoe" / "attention").mkdir(parents=True)
    klass.autograde("--quiet")
    row = klass.books()["zoe"]
    assert row["score"] == 0
    assert "empty" in row["comments"]["attention_scores"]


@pytest.mark.parametrize(("name", "student"), [("a\nb", "a\nb"), ("a\udcff", "a\\udcff")])
def test_any_name_of_a_folder_has_a_row(klass: Class, name: str, student: str) -> None:
    klass.hand_in("untouched", student=name)
    klass.hand_in("right")
    assert klass.autograde("--quiet") == 0
    assert {name: row["score"] for name, row in klass.books().items()} == {
        student: 0,
        "right": TOTAL,
    }
    assert (klass.root / "autograded" / student / "attention" / "attention.ipynb").exists()


def test_feedback_tells_mistakes_and_no_source(klass: Class) -> None:
    for name in ("several-mistakes", "unreadable"):
        klass.hand_in(name)
    klass.autograde("--quiet")
    done = klass.api().generate_feedback("attention")
    assert done["success"], done
    page = klass.root / "feedback" / "several-mistakes" / "attention" / "attention.html"
    text = page.read_text(encoding="utf-8")
    why = {e.name: e.why for e in course.chapters.bank("attention")}["true_at_padding"]
    assert " ".join(why.split())[:40] in " ".join(text.split())
    for hidden in ("expect_close", "cases.normal", "BEGIN SOLUTION", "def real_tokens"):
        assert hidden not in text
    for name in ("padding_mask", "SelfAttention", "mask_test"):
        assert AUTHOR.reference[name] not in text
    page = klass.root / "feedback" / "unreadable" / "attention" / "attention.html"
    assert "damaged" in page.read_text(encoding="utf-8")


def test_what_a_learner_wrote_is_no_html_in_feedback() -> None:
    raised = (
        "def padding_mask(ids, padding_id=0):\n    raise ValueError('<script>alert(1)</script>')"
    )
    data = json.dumps(AUTHOR.notebook({**AUTHOR.reference, "padding_mask": raised})).encode()
    result = Grader(InProcess()).grade(data, "attention.ipynb", stems=("attention",)).result
    exercise = next(item for item in result.exercises if item.id.endswith("padding_mask"))
    cell: dict[str, Any] = {"outputs": []}
    restored.show(cell, exercise)
    shown = cell["outputs"][0]["data"]
    assert "<script>" in shown["text/plain"]
    assert "<script>" not in shown["text/html"]
    assert cell["outputs"][1]["data"]["text/plain"] == "0.0"


@pytest.mark.parametrize("name", [n for n in CLASS if n != "unreadable"])
def test_a_restored_notebook_is_valid_and_holds_the_answers(name: str) -> None:
    import nbformat
    from nbgrader.nbgraderformat import MetadataValidator

    (path,) = (SAMPLES / name).iterdir()
    handed_out = template("attention")
    notebook = read(path.read_bytes())
    aligned = align(notebook, handed_out)
    raw = restored.restored(handed_out, notebook, aligned)
    nb = nbformat.from_dict(raw)
    nbformat.validate(nb)
    MetadataValidator().validate_nb(nb)
    by_id = {cell["id"]: cell["source"] for cell in raw["cells"]}
    assert len(by_id) == len(raw["cells"])
    for exercise, found in aligned.found.items():
        for part in found.parts[:1]:
            assert part.text in by_id[exercise]
        assert by_id[f"{exercise}{CHECK}"] == f'check("attention.{exercise}")'


def test_export_quotes_everything_and_runs_nothing(klass: Class, tmp_path: Path) -> None:
    klass.hand_in("right", student="=cmd|' -C calc'!A0")
    klass.autograde("--quiet")
    target = tmp_path / "grades.csv"
    plugin = SafeCsv()
    plugin.to = str(target)
    with Gradebook(klass.folders.db_url) as gradebook:
        plugin.export(gradebook)
    text = target.read_text(encoding="utf-8")
    row = next(csv.DictReader(io.StringIO(text)))
    assert row["student_id"] == "'=cmd|' -C calc'!A0"
    assert (row["score"], row["max_score"]) == (f"{TOTAL:g}", f"{TOTAL:g}")
    assert all(cell.startswith('"') for line in text.splitlines() for cell in line.split('","')[:1])


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", " =", "\uff1d"])
def test_no_cell_begins_a_formula(start: str) -> None:
    file = io.StringIO()
    write_rows(file, [[f"{start}1+1", -1.5, None, "ok"]])
    (row,) = csv.reader(io.StringIO(file.getvalue()))
    assert row[0].startswith("'")
    assert row[1:] == ["-1.5", "", "ok"]
    assert safe("plain = text") == "plain = text"
