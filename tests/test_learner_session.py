"""What ``check``, ``hint`` and ``status`` show and return."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tinychapter
import torch
from torch import Tensor

from autograder import chapters
from autograder.learner import book, known, session


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A new session that knows the chapter ``tiny`` alone."""
    tinychapter.load()
    known.exercises.cache_clear()
    monkeypatch.setattr(known, "stems", lambda: ("tiny",))
    monkeypatch.setattr(session, "_session", session.Session())
    monkeypatch.setattr(book, "repository", lambda: tinychapter.REPOSITORY)
    yield
    known.exercises.cache_clear()


Check = Callable[..., str]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """``check`` as a notebook with these names would call it; what it printed comes back."""

    def call(exercise_id: Any, **names: Any) -> str:
        capsys.readouterr()
        run = {"check": session.check, "exercise_id": exercise_id, **names}
        exec("result = check(exercise_id)", run)
        assert run["result"] is None
        return capsys.readouterr().out

    return call


def stub(x: Tensor) -> Tensor:
    raise NotImplementedError


def transposed(x: Tensor) -> Tensor:
    return (x - x.amax(dim=-1, keepdim=True)).T


def test_a_right_answer(check: Check) -> None:
    assert check("tiny.shifted", shifted=tinychapter.answer("shifted")) == (
        "Shift the rows: 1.5 of 1.5 points\n"
        "  ✔ The shape stays.\n"
        "  ✔ The largest entry of each row becomes 0.\n"
        "1 more check runs when the notebook is graded.\n"
    )


def test_a_mistake_of_the_bank_is_named_and_linked(check: Check) -> None:
    wrong = tinychapter.answer("shifted", "largest_of_the_column")
    out = check("tiny.shifted", shifted=wrong)
    assert "Shift the rows: 1 of 1.5 points" in out
    assert "✘ The largest entry of each row becomes 0." in out
    assert "The mistake: The largest entry of a column is subtracted." in out
    assert "https://some-course.github.io/some-book/book/tiny.html#tiny-shift" in out


def test_another_mistake_gets_the_checks_own_guess(check: Check) -> None:
    out = check("tiny.shifted", shifted=lambda x: x - 0.5)
    assert "Likely cause: The largest entry is taken along another axis." in out
    assert "Next step: Look at dim." in out
    assert "The mistake" not in out


def test_the_same_twice(check: Check) -> None:
    assert check("tiny.shifted", shifted=transposed) == check("tiny.shifted", shifted=transposed)


def test_an_untouched_stub_says_what_to_do(check: Check) -> None:
    out = check("tiny.shifted", shifted=stub)
    assert "`shifted` is not answered yet." in out
    assert 'hint("tiny.shifted")' in out
    assert "✔" not in out


def test_a_cell_that_did_not_run(check: Check) -> None:
    out = check("tiny.shifted")
    assert out == "✘ `shifted` is not defined yet: run the cell above first, then check again.\n"


@pytest.mark.parametrize(
    ("asked", "near"),
    [("tiny.shiftde", "“tiny.shifted”"), ("shifted", "“tiny.shifted”"), ("tiny.zzz", "zzz"),
     (stub, "“stub”"), (3, "in quotes")],
)  # fmt: skip
def test_an_unknown_id_is_one_line(check: Check, asked: Any, near: str) -> None:
    out = check(asked)
    assert out.count("\n") == 1
    assert near in out


def test_what_is_handed_out_with_bugs_is_not_explained(check: Check) -> None:
    out = check("tiny.doubled", doubled=tinychapter.answer("doubled", "squared"))
    assert "✔ Twice 2 is 4." in out
    assert "✘ Twice 3 is 6." in out
    assert "It squares" not in out


def test_what_the_answer_raises_prints_and_changes_stays_with_it(check: Check) -> None:
    def noisy(x: Tensor) -> Tensor:
        print("do not show this")
        torch.manual_seed(1)
        raise ValueError("bad shape")

    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    out = check("tiny.shifted", shifted=noisy)
    assert "Your code raised ValueError" in out
    assert "bad shape" in out
    assert "do not show this" not in out
    assert "Traceback" not in out
    assert torch.rand(1) == expected


def test_an_interrupt_is_one_line(check: Check) -> None:
    def endless(x: Tensor) -> Tensor:
        raise KeyboardInterrupt

    assert check("tiny.shifted", shifted=endless).startswith("✘ Interrupted")


def test_a_forbidden_call_is_named(check: Check) -> None:
    out = check("tiny.shifted", shifted=lambda x: torch.log_softmax(x, -1))
    assert "Your code calls log_softmax." in out


def hints(capsys: pytest.CaptureFixture[str], count: int) -> list[str]:
    capsys.readouterr()
    found = []
    for _ in range(count):
        session.hint("tiny.shifted")
        found.append(capsys.readouterr().out)
    return found


def test_hints_climb_and_end(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third, end, same = hints(capsys, 5)
    assert "hint 1 of 3" in first
    assert "Which axis is a row?" in first
    assert "Keep the axis" in second
    assert "x minus its amax" in third
    assert "That was the last hint" in end
    assert same == end


def test_hints_begin_where_the_mistake_is(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    check("tiny.shifted", shifted=tinychapter.answer("shifted", "largest_of_the_column"))
    second, third, end = hints(capsys, 3)
    assert "hint 2 of 3" in second
    assert "hint 3 of 3" in third
    # the same mistake again does not start the hints again, another one does
    check("tiny.shifted", shifted=tinychapter.answer("shifted", "largest_of_the_column"))
    assert hints(capsys, 1) == [end]
    check("tiny.shifted", shifted=tinychapter.answer("shifted", "rows_untouched"))
    assert "hint 1 of 3" in hints(capsys, 1)[0]


def status(capsys: pytest.CaptureFixture[str], **names: Any) -> str:
    capsys.readouterr()
    exec("status()", {"status": session.status, **names})
    return capsys.readouterr().out


def test_status_before_anything(capsys: pytest.CaptureFixture[str]) -> None:
    assert "run a cell with check(...) first" in status(capsys)


def test_status_counts_visible_points(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    check("tiny.shifted", shifted=tinychapter.answer("shifted", "largest_of_the_column"))
    check("tiny.doubled", doubled=stub)
    out = status(capsys)
    assert "tiny: 1 of 4.5 points of the visible checks" in out
    assert "✘ shifted: 1 of 1.5\n" in out
    assert "  Shift: 0 of 2, not checked yet" in out
    assert "✘ doubled: 0 of 1, open" in out


def test_status_knows_answers_from_imports(capsys: pytest.CaptureFixture[str]) -> None:
    assert "tiny:" in status(capsys, shifted=transposed)
    assert "tiny:" not in status(capsys, shifted=tinychapter.answer("shifted"))


def test_status_takes_no_helper_for_another_chapters_exercise(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # the chapter on attention trains with a function of its own, whose name is an exercise's
    assert "train" in chapters.exercises("embeddings")
    monkeypatch.setattr(known, "stems", lambda: ("attention", "embeddings"))
    known.exercises.cache_clear()
    page = {"attention_scores": stub, "padding_mask": stub, "train": stub}
    unchecked = status(capsys, **page)
    assert "attention:" in unchecked
    assert "embeddings:" not in unchecked
    # nor where the answers are imported and only the helper is made here
    session.hint("attention.padding_mask")
    hinted = status(capsys, train=stub)
    assert "attention:" in hinted
    assert "embeddings:" not in hinted


class TestUnderNbgrader:
    """``check`` as the fallback where nbgrader itself executes the notebook."""

    @pytest.fixture(autouse=True)
    def _grading(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")

    def points(self, **names: Any) -> Any:
        run = {"check": session.check, **names}
        exec("result = check('tiny.shifted')", run)
        return run["result"]

    def test_all_checks_count(self) -> None:
        assert self.points(shifted=tinychapter.answer("shifted")) == 2.5

    def test_partial_credit(self) -> None:
        assert self.points(shifted=tinychapter.answer("shifted", "rows_untouched")) == 1.0

    @pytest.mark.parametrize("names", [{}, {"shifted": stub}, {"shifted": None}])
    def test_nothing_is_a_number(self, names: dict[str, Any]) -> None:
        result = self.points(**names)
        assert isinstance(result, float)
        assert result == 0.0

    def test_an_unknown_exercise_is_a_number(self) -> None:
        assert session.check("tiny.nothing") == 0.0

    def test_an_interrupt_comes_through(self) -> None:
        # nbgrader interrupts a cell that takes too long; a swallowed interrupt leaves no grade
        def endless(x: Tensor) -> Tensor:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.points(shifted=endless)

    def test_validating_is_no_grading(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NBGRADER_EXECUTION", "validate")
        assert self.points(shifted=tinychapter.answer("shifted")) is None

    @pytest.mark.parametrize(
        ("names", "says"),
        [
            ({}, "is not defined yet"),
            ({"shifted": tinychapter.answer("shifted", "rows_untouched")}, "✘"),
        ],
    )
    def test_validating_says_what_is_wrong_where_nbgrader_looks(
        self,
        names: dict[str, Any],
        says: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        # nbgrader takes a grade cell that wrote to standard error for a failed one
        monkeypatch.setenv("NBGRADER_EXECUTION", "validate")
        assert self.points(**names) is None
        assert says in capsys.readouterr().err
        self.points(shifted=tinychapter.answer("shifted"))
        assert capsys.readouterr().err == ""
