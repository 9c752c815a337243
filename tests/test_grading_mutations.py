"""Right submissions, mishandled in every way that we know of, keep their points.

The oracle is simple: an exercise earns full points where its answer, and those of the exercises
that it calls, are still somewhere in the notebook as text; else it is open, and said to be.
"""

from __future__ import annotations

import copy
import io
import json
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autograder.bench.sample_class import Author, cell_of, through_colab, to_format_3
from autograder.grading.run import Grader, nothing
from autograder.results import STATUSES, ExerciseResult, SubmissionResult
from autograder.submissions.align import align
from autograder.submissions.find import Submission, find
from autograder.submissions.program import program
from autograder.submissions.read import Unreadable, read
from autograder.submissions.template import template
from tests.in_process import InProcess

Raw = dict[str, Any]
AUTHOR = Author()
NAMES = tuple(AUTHOR.exercises)
STUBS = AUTHOR.notebook({})
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32")


class _Remembering(Grader):
    """A grader that does not run the same code twice, wherever it stood in its notebook."""

    def _exercise(self, item: Any, code: Any, *rest: Any) -> ExerciseResult:
        sources = tuple(source.strip() for _label, source in code.cells)
        key = item.id, sources
        if key not in _results:
            _results[key] = super()._exercise(item, code, *rest)
        return _results[key]


_results: dict[Any, ExerciseResult] = {}
GRADER = _Remembering(InProcess())


@cache
def calls() -> dict[str, set[str]]:
    """The exercises that each answer calls, itself included."""
    found = align(
        read(json.dumps(AUTHOR.notebook(AUTHOR.reference)).encode()), template("attention")
    )
    return {name: {name, *program(found, name).calls} for name in NAMES}


def grade(submission: Submission) -> SubmissionResult:
    """As a batch does it."""
    try:
        data = submission.data()
    except Unreadable as error:
        return nothing("unreadable", "attention", str(error))
    return GRADER.grade(
        data, submission.file_name, stems=("intro", "attention"), expected="attention"
    ).result


# --- what happens to the cells --------------------------------------------------------------------


def _delete(notebook: Raw, place: int, _other: int) -> None:
    del notebook["cells"][place]


def _duplicate(notebook: Raw, place: int, other: int) -> None:
    notebook["cells"].insert(other, copy.deepcopy(notebook["cells"][place]))


def _move(notebook: Raw, place: int, other: int) -> None:
    notebook["cells"].insert(other, notebook["cells"].pop(place))


def _retype(notebook: Raw, place: int, other: int) -> None:
    cell = notebook["cells"][place]
    cell["cell_type"] = ("markdown", "raw", "code")[other % 3]


def _stub_copy(notebook: Raw, place: int, other: int) -> None:
    stub = copy.deepcopy(cell_of(STUBS, NAMES[other % len(NAMES)]))
    notebook["cells"].insert(place, stub)


def _strip(notebook: Raw, place: int, _other: int) -> None:
    notebook["cells"][place]["metadata"] = {}


def _new_id(notebook: Raw, place: int, other: int) -> None:
    notebook["cells"][place]["id"] = f"id-{other}"
    notebook["cells"][place]["metadata"].pop("nbgrader", None)


def _broken_cell(notebook: Raw, place: int, _other: int) -> None:
    notebook["cells"].insert(place, {"cell_type": "code", "source": "def (:", "metadata": {}})


def _junk_below(notebook: Raw, place: int, _other: int) -> None:
    cell = notebook["cells"][place]
    if cell["cell_type"] == "code" and cell.get("id") in NAMES:
        cell["source"] += "\n\nassert 1 == 2, 'my test'\n"


CHANGES = (
    _delete,
    _duplicate,
    _move,
    _retype,
    _stub_copy,
    _strip,
    _new_id,
    _broken_cell,
    _junk_below,
)


def _as_is(notebook: Raw) -> Raw:
    return notebook


def _nothing_of_ours(notebook: Raw) -> Raw:
    for cell in notebook["cells"]:
        cell.pop("id", None)
        cell["metadata"] = {}
    return notebook


SHAPES = (_as_is, _nothing_of_ours, through_colab, to_format_3)
NUMBERS = st.integers(0, 9_999)
MISHAPS = st.lists(st.tuples(st.sampled_from(CHANGES), st.booleans(), NUMBERS, NUMBERS), max_size=6)
Mishap = tuple[Callable[[Raw, int, int], None], bool, int, int]


def mishandled(mishaps: list[Mishap], shape: Callable[[Raw], Raw]) -> Raw:
    """A right notebook after a few mishaps; half of them meet an answer."""
    notebook = AUTHOR.notebook(AUTHOR.reference)
    for change, meets_answer, one, two in mishaps:
        answers = [i for i, c in enumerate(notebook["cells"]) if c.get("id") in NAMES]
        places = answers if meets_answer and answers else list(range(len(notebook["cells"])))
        change(notebook, places[one % len(places)], two % len(notebook["cells"]))
    return shape(notebook)


def there(notebook: Raw) -> set[str]:
    """The exercises whose answer stands somewhere in the notebook."""
    cells = notebook.get("cells") or notebook["worksheets"][0]["cells"]
    texts = ["".join(cell.get("source", cell.get("input", ""))) for cell in cells]
    return {
        name for name in NAMES if any(AUTHOR.reference[name].rstrip("\n") in text for text in texts)
    }


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    mishaps=MISHAPS,
    shape=st.sampled_from(SHAPES),
    encoding=st.sampled_from(ENCODINGS),
    indent=st.sampled_from((None, 1)),
)
def test_points_stay_where_the_answer_stays(
    mishaps: list[Mishap], shape: Callable[[Raw], Raw], encoding: str, indent: int | None
) -> None:
    notebook = mishandled(mishaps, shape)
    data = json.dumps(notebook, ensure_ascii=False, indent=indent).encode(encoding)
    result = grade(Submission("attention.ipynb", lambda: data))
    found = there(notebook)
    for item in result.exercises:
        name = item.id.partition(".")[2]
        if calls()[name] <= found:
            assert item.score == item.max_score, (name, result.notes, item)
        elif name not in found:
            assert item.score == 0
            assert all(check.open for check in item.checks if not check.passed), item
    assert result.status in ("graded", "repaired", "empty")
    missing = [name for name in NAMES if name not in found]
    assert not missing or result.status == "empty" or _said(missing, notebook, result)


def _said(missing: list[str], notebook: Raw, result: SubmissionResult) -> bool:
    """Each missing answer has a word, unless its stub is there."""
    text = json.dumps(notebook)
    return all(
        f"`{name}`" in " ".join(result.notes) or f"def {name}" in text or f"class {name}" in text
        for name in missing
    )


# --- what happens to the file ---------------------------------------------------------------------

RIGHT = json.dumps(AUTHOR.notebook(AUTHOR.reference)).encode()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_file_ends_the_run(data: st.DataObject) -> None:
    """Cut, changed, or any bytes at all: there is a result, with a status and a note."""
    kind = data.draw(st.sampled_from(("cut", "changed", "any")))
    if kind == "cut":
        raw = RIGHT[: data.draw(st.integers(0, len(RIGHT) - 1))]
    elif kind == "changed":
        changed = bytearray(RIGHT)
        for _ in range(data.draw(st.integers(1, 5))):
            changed[data.draw(st.integers(0, len(RIGHT) - 1))] = data.draw(st.integers(0, 255))
        raw = bytes(changed)
    else:
        raw = data.draw(st.binary(max_size=300))
    result = grade(Submission("attention.ipynb", lambda: raw))
    assert result.status in STATUSES
    if kind != "changed":
        assert (result.status, result.score) == ("unreadable", 0)
        assert result.notes


def _zip(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def _zip_in_a_zip(data: bytes) -> bytes:
    return _zip({"ada.zip": _zip({"ada/attention.ipynb": data})})


def _out_of_the_zip(data: bytes) -> bytes:
    return _zip({"../../attention.ipynb": data, "bob/attention.ipynb": RIGHT})


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (_zip_in_a_zip, {"class/ada/ada/attention.ipynb": True}),
        (_out_of_the_zip, {"class/attention.ipynb": False, "class/bob/attention.ipynb": True}),
    ],
)
def test_archives(tmp_path: Path, make: Callable[[bytes], bytes], wanted: dict[str, bool]) -> None:
    (tmp_path / "class.zip").write_bytes(make(RIGHT))
    results = {item.name: grade(item) for item in find([tmp_path / "class.zip"])}
    assert {name: result.score == result.max_score for name, result in results.items()} == wanted
    assert all(result.notes or result.score for result in results.values())


def test_a_broken_neighbour_changes_no_grade(tmp_path: Path) -> None:
    """The right submission's result is the same alone and among all kinds of trouble."""
    alone = grade(Submission("attention.ipynb", lambda: RIGHT))
    for name, data in {
        "a": RIGHT[:100],
        "b": b"",
        "c": b"\xff" * 50,
        "d": _zip_in_a_zip(RIGHT),
        "e": RIGHT,
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "attention.ipynb").write_bytes(data)
    (tmp_path / "f").symlink_to(tmp_path / "e")
    results = {item.name: grade(item) for item in find([tmp_path])}
    assert results["e/attention.ipynb"] == alone
    assert {name[0] for name in results} == set("abcdef")
