"""autograder.site.worked: a page's notebook from the student's and the worked one."""

import copy
import json

import pytest

from autograder.site.worked import PageError, join, page_notebook

STUB = "def double(x):\n    raise NotImplementedError\n"
ANSWER = 'def double(x):\n    """Twice ``x``."""\n    return 2 * x\n'
PRINTED = {"output_type": "stream", "name": "stdout", "text": "6\n"}


def code(key, source, outputs=(), count=None):
    return {
        "cell_type": "code",
        "id": key,
        "metadata": {},
        "source": source,
        "outputs": list(outputs),
        "execution_count": count,
    }


def prose(key, source):
    return {"cell_type": "markdown", "id": key, "metadata": {}, "source": source}


@pytest.fixture
def chapter():
    """Student's notebook, worked notebook, page entry: one exercise, used once."""
    student = {
        "cells": [
            prose("double-about", "**Exercise** 1 point"),
            code("double", STUB),
            code("double-check", 'check("c.double")'),
            code("use", "print(double(3))"),
            prose("end", "The end."),
        ],
        "metadata": {"kernelspec": {"name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    worked = copy.deepcopy(student)
    worked["cells"][1] = code("double", ANSWER, count=1)
    worked["cells"][2] = code("double-check", 'check("c.double")', [PRINTED], 2)
    worked["cells"][3] = code("use", "print(double(3))", [PRINTED], 3)
    worked["metadata"]["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    page = {
        "answers": "shown",
        "exercises": {"double": {"hints": ["Twice?", "A sum?", "x + x"], "answer": ANSWER}},
    }
    return student, worked, page


def ids(notebook):
    return [cell["id"] for cell in notebook["cells"]]


def cell(notebook, key):
    return next(cell for cell in notebook["cells"] if cell["id"] == key)


def test_a_page_shows_the_stub_and_the_worked_outputs(chapter):
    page = join(*chapter, name="book/c.ipynb")
    assert cell(page, "double")["source"] == STUB
    assert cell(page, "use")["outputs"] == [PRINTED]
    assert cell(page, "use")["execution_count"] == 3
    assert page["metadata"]["widgets"] == chapter[1]["metadata"]["widgets"]


def test_a_checks_output_is_left_out(chapter):
    assert cell(join(*chapter, name="c"), "double-check")["outputs"] == []


def test_hints_and_answer_follow_the_check_cell(chapter):
    page = join(*chapter, name="c")
    order = [
        "double-about",
        "double",
        "double-check",
        "double-hints",
        "double-answer",
        "use",
        "end",
    ]
    assert ids(page) == order
    assert "A sum?" in cell(page, "double-hints")["source"]
    assert ANSWER.strip() in cell(page, "double-answer")["source"]


@pytest.mark.parametrize("last", [1, 2], ids=["after the exercise", "after the check"])
def test_hints_follow_an_exercise_that_ends_the_notebook(chapter, last):
    student, worked, page = chapter
    for notebook in (student, worked):
        del notebook["cells"][last + 1 :]
    assert ids(join(student, worked, page, name="c"))[-2:] == ["double-hints", "double-answer"]


def test_hidden_answers_are_nowhere_on_the_page(chapter):
    student, worked, page = chapter
    page["answers"] = "hidden"
    joined = json.dumps(join(student, worked, page, name="c"))
    assert "2 * x" not in joined
    assert "A sum?" in joined


def test_fences_in_hints_and_answers_do_not_end_the_dropdown(chapter):
    student, worked, page = chapter
    page["exercises"]["double"] = {
        "hints": ["::::\nfour colons\n::::"],
        "answer": 'def double(x):\n    """```` four ticks"""\n    return 2 * x\n',
    }
    joined = join(student, worked, page, name="c")
    assert cell(joined, "double-hints")["source"].startswith(":::::{dropdown}")
    assert "\n`````python\n" in cell(joined, "double-answer")["source"]


def test_a_hints_lines_stay_lines_and_its_dunders_dunders(chapter):
    student, worked, page = chapter
    hint = "1. call `super().__init__()`\n2. for each k:\n     a <- k\n__init__: a\n\nend"
    page["exercises"]["double"]["hints"] = [hint]
    source = cell(join(student, worked, page, name="c"), "double-hints")["source"]
    assert "1. call `super().__init__()`\n2. for each k:\\\n     a <- k\\\n" in source
    assert "\n\\_\\_init\\_\\_: a\n\nend" in source


def test_the_arguments_stay_as_they_were(chapter):
    before = copy.deepcopy(chapter)
    join(*chapter, name="c")
    assert chapter == before


def test_a_cell_that_differs_from_its_run_is_named(chapter):
    student, worked, page = chapter
    student["cells"][3]["source"] = "print(double(4))"
    with pytest.raises(PageError, match=r"^book/c\.ipynb: cell 'use' differs .*make") as caught:
        join(student, worked, page, name="book/c.ipynb")
    assert "\n" not in str(caught.value)


def test_a_cell_that_was_not_run_is_named(chapter):
    student, worked, page = chapter
    student["cells"].append(code("new", "1"))
    with pytest.raises(PageError, match=r"cell 'new' has not been run"):
        join(student, worked, page, name="c")


@pytest.mark.parametrize("key", ["use", "double"])
def test_a_cell_that_the_notebook_lost_is_named(chapter, key):
    student, worked, page = chapter
    student["cells"] = [one for one in student["cells"] if one["id"] != key]
    with pytest.raises(PageError, match=rf"no cell '{key}'"):
        join(student, worked, page, name="c")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "is missing"), ("{", "cannot be read"), ("[]", "holds no notebook")],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path, chapter, content, message):
    paths = [tmp_path / name for name in ("c.ipynb", "worked.ipynb", "c.json")]
    for path, value in zip(paths, chapter, strict=True):
        path.write_text(json.dumps(value), encoding="utf-8")
    assert page_notebook(*paths)["cells"]
    if content is None:
        paths[1].unlink()
    else:
        paths[1].write_text(content, encoding="utf-8")
    with pytest.raises(PageError, match=message) as caught:
        page_notebook(*paths)
    assert "worked.ipynb" in str(caught.value)
    assert "\n" not in str(caught.value)
