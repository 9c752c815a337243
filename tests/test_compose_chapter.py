"""One chapter from its three sources, and one line for each way in which they can be malformed."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
import tinychapter
from nbgrader.nbgraderformat import MetadataValidator
from nbgrader.utils import compute_checksum

from autograder.compose import notebook
from autograder.compose.chapter import Composed, compose
from autograder.site.worked import join
from autograder.sources import SourceError

EXERCISES = ("shifted", "Shift", "doubled")


@pytest.fixture(scope="module")
def tiny() -> Composed:
    return compose(tinychapter.sources())


def cells(nb: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {cell["id"]: cell for cell in nb["cells"]}


def as_node(nb: dict[str, Any]) -> Any:
    return nbformat.reads(notebook.dumps(nb), 4)


def test_the_student_gets_stub_and_check(tiny: Composed) -> None:
    found = cells(tiny.student)
    assert found["shifted"]["source"].endswith("    raise NotImplementedError")
    assert found["shifted-check"]["source"] == 'check("tiny.shifted")'
    order = [cell["id"] for cell in tiny.student["cells"]]
    at = order.index("shifted")
    assert order[at - 1 : at + 2] == ["shifted-about", "shifted", "shifted-check"]


def test_only_the_region_of_a_class_is_left_out(tiny: Composed) -> None:
    stub = cells(tiny.student)["Shift"]["source"]
    assert "self.amount = torch.nn.Parameter" in stub
    assert "return shifted(x)" not in stub
    assert ast.parse(stub)


def test_a_bug_hunt_hands_out_the_bugs(tiny: Composed) -> None:
    assert cells(tiny.student)["doubled"]["source"] == (
        'def doubled(x: Tensor) -> Tensor:\n    """Twice x, any shape."""\n    return x * x'
    )


def test_nothing_of_an_answer_is_handed_out(tiny: Composed) -> None:
    student = notebook.dumps(tiny.student)
    for secret in ("amax", "+ self.amount", "2 * x", "SOLUTION", "squared", "It squares"):
        assert secret not in student


def test_the_worked_cell_is_the_whole_source_without_markers(tiny: Composed) -> None:
    worked = cells(tiny.worked)
    assert "return x - x.amax(dim=-1, keepdim=True)  # (T, S)" in worked["shifted"]["source"]
    assert "return 2 * x" in worked["doubled"]["source"]
    assert "SOLUTION" not in notebook.dumps(tiny.worked)
    assert list(worked) == list(cells(tiny.student))


def test_the_page_gets_hints_answers_and_prose(tiny: Composed) -> None:
    assert list(tiny.page["exercises"]) == list(EXERCISES)
    entry = tiny.page["exercises"]["shifted"]
    assert len(entry["hints"]) == 3
    assert "x.amax" in entry["answer"]
    assert "SOLUTION" not in entry["answer"]
    assert tiny.page["answers"] == "shown"
    assert "(tiny-shift)=" in tiny.page["prose"]["tiny-shift-1"]
    assert "(tiny-shift)=" not in cells(tiny.student)["tiny-shift-1"]["source"]


def test_hidden_answers_do_not_reach_the_page() -> None:
    page = tinychapter.page().replace("answers: shown", "answers: hidden")
    found = compose(tinychapter.sources(text=page))
    assert found.page["answers"] == "hidden"
    assert "amax" not in str(found.page["exercises"]["shifted"]["answer"])


def test_cells_that_need_an_exercise_may_fail_in_the_students_notebook_alone(
    tiny: Composed,
) -> None:
    def tagged(nb: dict[str, Any]) -> set[str]:
        return {
            cell["id"]
            for cell in nb["cells"]
            if "raises-exception" in cell["metadata"].get("tags", [])
        }

    assert tagged(tiny.student) == {
        "exercise-shift-2", "exercise-shift-3", "exercise-shift-4", "tiny-bug-2",
    }  # fmt: skip
    assert tagged(tiny.worked) == set()


def test_ids_are_valid_and_nbgrader_accepts_both(tiny: Composed) -> None:
    for nb in (tiny.student, tiny.worked):
        node = as_node(nb)
        nbformat.validate(node)
        MetadataValidator().validate_nb(node)
        ids = [cell.id for cell in node.cells]
        assert len(set(ids)) == len(ids)
        assert max(map(len, ids)) <= 64


def test_points_and_checksums_are_nbgraders(tiny: Composed) -> None:
    graded = {cell.id: cell for cell in as_node(tiny.student).cells if "nbgrader" in cell.metadata}
    assert graded["shifted-check"].metadata.nbgrader.points == 2.5
    assert set(graded) == {*EXERCISES, *(f"{name}-check" for name in EXERCISES)}
    for cell in graded.values():
        assert cell.metadata.nbgrader.checksum == compute_checksum(cell)


def test_the_badges_say_what_is_asked(tiny: Composed) -> None:
    about = cells(tiny.student)["shifted-about"]["source"]
    for part in ("●○○○○", "5 minutes", "2.5 points", "- The shape stays.", "1 more check runs"):
        assert part in about
    assert "Any number of rows" not in about  # a hidden check's


def test_the_address_of_the_repository_reaches_the_install_cell(tiny: Composed) -> None:
    assert f'"git+{tinychapter.REPOSITORY}"' in cells(tiny.student)["install-the-course"]["source"]


def test_the_same_sources_give_the_same_bytes(tiny: Composed) -> None:
    again = compose(tinychapter.sources())
    assert notebook.dumps(again.student) == notebook.dumps(tiny.student)
    assert notebook.dumps(again.worked) == notebook.dumps(tiny.worked)


def test_an_earlier_chapters_names_may_be_used() -> None:
    page = tinychapter.page().replace(
        "(tiny-shift)=", "```{code-cell} ipython3\nfrom solutions.earlier import helper\n```\n\n"
        "(tiny-shift)="
    )  # fmt: skip
    found = compose(tinychapter.sources(text=page))
    sources = [cell["source"] for cell in found.student["cells"]]
    assert "from solutions.earlier import helper" in sources


def test_a_finished_answer_may_be_shown_under_another_name() -> None:
    page = tinychapter.page().replace(
        "(tiny-shift)=",
        "```{code-cell} ipython3\nfrom solutions.tiny import Shift as Finished\n"
        "print(Finished(1.0))\n```\n\n(tiny-shift)=",
    )
    assert list(compose(tinychapter.sources(text=page)).page["exercises"]) == list(EXERCISES)


def test_several_exercises_may_share_an_import() -> None:
    page = tinychapter.page()
    page = page.replace("import shifted\n", "import shifted, Shift\n")
    page = page.replace("```{code-cell} ipython3\nfrom solutions.tiny import Shift\n```\n", "")
    assert list(compose(tinychapter.sources(text=page)).page["exercises"]) == list(EXERCISES)


# --- malformed sources: one line with the file, the cell, and how to mend it ---------------------


def complaint(**changes: Any) -> str:
    with pytest.raises(SourceError) as caught:
        compose(tinychapter.sources(**changes))
    text = str(caught.value)
    assert "\n" not in text
    return text


def edited(old: str, new: str) -> str:
    page = tinychapter.page()
    assert page.count(old) == 1
    return page.replace(old, new)


SHIFT_CELL = "```{code-cell} ipython3\nfrom solutions.tiny import Shift\n```"


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("import Shift\n", "import Unknown\n", ("solutions.py", "'Unknown'", "define it")),
        ("import Shift\n", "import Shift\nprint(1)\n",
         ("book/tiny.md:57", "“Exercise: a layer”", "cell of their own")),
        ("import Shift\n", "import *\n", ("book/tiny.md:57", "name the exercise")),
        ("import Shift\n", "import Shift, shifted\n",
         ("book/tiny.md:57", "'shifted'", "already in line 35", "remove")),
        ("from solutions.tiny import Shift\n", "from solutions.later import Thing\n",
         ("book/tiny.md:57", "'later' comes later", "_toc.yml")),
        ("from solutions.tiny import Shift\n", "from solutions.nowhere import Thing\n",
         ("book/tiny.md:57", "no chapter 'nowhere'")),
        ("from solutions.tiny import Shift\n", "import solutions.tiny\n",
         ("book/tiny.md:57", "from solutions.<chapter> import <name>")),
        ("print(values.sum())\n", "print(values.sum(\n",
         ("book/tiny.md:46", "“Exercise: shift”", "not Python")),
        ("print(doubled(torch.ones(2)))\n```", "print(doubled(torch.ones(2)))",
         ("book/tiny.md:67", "not closed", "'```'")),
        (f"{SHIFT_CELL}\n", f"{SHIFT_CELL[:-4]}\n", ("book/tiny.md:56", "not closed")),
        ("answers: shown", "answers: never", ("book/tiny.md", "front matter", "hidden")),
        ("kernelspec:", "kernel:", ("book/tiny.md", "kernelspec", "template")),
        ("language: python", "language: [python", ("book/tiny.md", "jupytext", "front matter")),
        ("```{code-cell} ipython3\nprint(values.sum())",
         "```{code-cell} ipython3\n:tags: [a\nprint(values.sum())",
         ("book/tiny.md", "jupytext", "options")),
        (SHIFT_CELL, "", ("checks/tiny.py", "'Shift'", "import Shift", "book/tiny.md")),
        ("(tiny-bug)=\n", "", ("answers/tiny.py", "squared", "(tiny-bug)=")),
    ],
)  # fmt: skip
def test_a_malformed_page(old: str, new: str, parts: tuple[str, ...]) -> None:
    text = complaint(text=edited(old, new))
    for part in parts:
        assert part in text


def solutions(folder: Path, old: str, new: str) -> Path:
    text = (tinychapter.FOLDER / "solutions.py").read_text(encoding="utf-8")
    assert text.count(old) == 1
    path = folder / "solutions.py"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


LAST = "    return 2 * x\n"


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        (f"{LAST}    ### END SOLUTION\n", LAST, ("solutions.py:", "doubled", "not closed")),
        (f"### BEGIN SOLUTION\n{LAST}", LAST.lstrip(), ("solutions.py:", "never opened")),
        ("return shifted(x) + self.amount", "return shifted(x) + AMOUNT",
         ("solutions/tiny.py: Shift", "'AMOUNT'", "set-up cell")),
        ("return x - x.amax(dim=-1, keepdim=True)", "return Shift(1.0)(x)",
         ("solutions/tiny.py: shifted", "'Shift'", "above line 35")),
    ],
)  # fmt: skip
def test_malformed_solutions(tmp_path: Path, old: str, new: str, parts: tuple[str, ...]) -> None:
    text = complaint(solutions=solutions(tmp_path, old, new))
    for part in parts:
        assert part in text


def test_an_answer_without_a_region(tmp_path: Path) -> None:
    text = (tinychapter.FOLDER / "solutions.py").read_text(encoding="utf-8")
    text = text.replace("    ### BEGIN SOLUTION\n    return x - ", "    return x - ")
    text = text.replace("# (T, S)\n    ### END SOLUTION\n", "# (T, S)\n")
    path = tmp_path / "solutions.py"
    path.write_text(text, encoding="utf-8")
    assert "shifted: no solution region" in complaint(solutions=path)


def test_a_definition_without_a_region_is_handed_out_whole(tmp_path: Path) -> None:
    text = tinychapter.sources().solutions.read_text(encoding="utf-8")
    text += "\n\ndef both(x: Tensor) -> Tensor:\n    return doubled(shifted(x))\n"
    path = tmp_path / "solutions.py"
    path.write_text(text, encoding="utf-8")
    page = tinychapter.page() + (
        "\n```{code-cell} ipython3\nfrom solutions.tiny import both\n```\n"
        "\n```{code-cell} ipython3\nprint(both(torch.ones(2)))\n```\n"
    )
    found = compose(tinychapter.sources(text=page, solutions=path))
    for nb in (found.student, found.worked):
        cell = cells(nb)["both-given"]
        assert cell["source"] == "def both(x: Tensor) -> Tensor:\n    return doubled(shifted(x))"
        assert "nbgrader" not in cell["metadata"]
    assert list(found.page["exercises"]) == list(EXERCISES)
    # what uses it needs the exercises behind it
    assert "raises-exception" in found.student["cells"][-1]["metadata"]["tags"]


def test_an_exercise_without_checks_file_entry() -> None:
    known = dict(tinychapter.sources().exercises)
    del known["Shift"]
    text = complaint(exercises=known)
    assert "book/tiny.md:57" in text
    assert "autograder/checks/tiny.py has no exercise 'Shift'" in text


def test_an_exercise_without_a_check() -> None:
    known = dict(tinychapter.sources().exercises)
    # replace() would enter the copy as another exercise of this module: harmless, it has a stem
    known["Shift"] = replace(known["Shift"], checks=[])
    assert "autograder/checks/tiny.py: 'Shift' has no check" in complaint(exercises=known)


def test_an_exercise_without_a_bank() -> None:
    bank = [entry for entry in tinychapter.sources().bank if entry.exercise != "Shift"]
    assert "autograder/answers/tiny.py: 'Shift' has no wrong answer" in complaint(bank=bank)


def test_a_bug_hunt_without_what_it_hands_out() -> None:
    bank = [replace(entry, given=False) for entry in tinychapter.sources().bank]
    text = complaint(bank=bank)
    assert "autograder/answers/tiny.py: doubled" in text
    assert "'squared'" in text


def test_a_bank_entry_with_a_name_that_nobody_makes() -> None:
    bank = [
        replace(entry, source=entry.source.replace("x.clone()", "np.copy(x)"))
        for entry in tinychapter.sources().bank
    ]
    text = complaint(bank=bank)
    assert "autograder/answers/tiny.py: shifted: rows_untouched uses 'np'" in text


def test_the_page_is_built_from_what_was_written(tiny: Composed) -> None:
    page = join(tiny.student, tiny.worked, tiny.page, "book/tiny.ipynb")
    sources = [cell["source"] for cell in page["cells"]]
    assert any(text.startswith("(tiny-shift)=\n## Shifting") for text in sources)
    assert any("Worked answer" in text and "x.amax" in text for text in sources)
