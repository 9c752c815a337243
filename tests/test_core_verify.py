"""The verifier accepts a sound bank, and says which fault it sees in any other."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tinychapter
import torch
from torch import Tensor

from autograder import chapters, verify
from autograder.bank import Entry
from autograder.checking import Check, Exercise, expect_items, expect_tensor
from autograder.verify import verify_exercise

SEEDS = range(3)

Prove = Callable[..., list[str]]


def exercise(name: str, **changes: Any) -> Exercise:
    """An exercise of the tiny chapter, without points for what is had by doing nothing."""
    item = tinychapter.exercise(name)
    checks = [
        replace(check, points=0.0) if check.name == "keeps_the_shape" else check
        for check in item.checks
    ]
    return replace(item, **{"checks": checks, **changes})


def bank(name: str) -> list[Entry]:
    return chapters.entries(tinychapter.exercise(name))


def entry(name: str, target: Any, **changes: Any) -> Entry:
    """A wrong answer with that behaviour."""
    made = Entry("shifted", name, False, "why", "", 1, None, False, "", target)
    return replace(made, **changes)


@pytest.fixture
def prove(monkeypatch: pytest.MonkeyPatch) -> Prove:
    """The failures that the verifier finds."""

    def run(
        item: Exercise, entries: Sequence[Entry] | None = None, reference: Any = None
    ) -> list[str]:
        known = bank(item.name) if entries is None else list(entries)
        right = tinychapter.answer(item.name) if reference is None else reference
        monkeypatch.setattr(chapters, "entries", lambda _: known)
        monkeypatch.setattr(chapters, "reference", lambda _: right)
        return verify_exercise(item, SEEDS).failures

    return run


@pytest.mark.parametrize("name", ["shifted", "Shift", "doubled"])
def test_a_sound_exercise_has_no_failure(prove: Prove, name: str) -> None:
    assert prove(exercise(name)) == []


def test_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    report = verify_exercise(exercise("shifted"), SEEDS)
    assert (report.exercises, report.checks) == (1, 3)
    assert (report.wrong_answers, report.right_answers) == (2, 1)


def only(failures: list[str], text: str) -> None:
    assert len(failures) == 1, failures
    assert failures[0].startswith("tiny.")
    assert text in failures[0]


def columns(x: Tensor) -> Tensor:
    return x - x.amax(dim=0, keepdim=True)


def test_a_reference_that_fails(prove: Prove) -> None:
    wrong = [item for item in bank("shifted") if item.name == "rows_untouched"]
    failures = prove(exercise("shifted"), wrong, columns)
    assert any("the reference fails largest_is_zero: " in line for line in failures)
    assert any("the reference fails more_rows: " in line for line in failures)
    assert any("(seed 0, 1, 2)" in line for line in failures)


def test_a_right_answer_that_fails(prove: Prove) -> None:
    broken = entry("by_the_smallest", lambda x: x - x.amin(), is_right=True)
    failures = prove(exercise("shifted"), [*bank("shifted"), broken])
    assert all("right answer by_the_smallest fails" in line for line in failures)
    assert any("right answer by_the_smallest fails largest_is_zero" in line for line in failures)


def test_a_wrong_answer_that_passes(prove: Prove) -> None:
    passes = entry("no_mistake", lambda x: x - x.amax(-1, keepdim=True))
    only(prove(exercise("shifted"), [*bank("shifted"), passes]), "no_mistake passes every check")


def test_two_wrong_answers_that_cannot_be_told_apart(prove: Prove) -> None:
    twin = entry("other_name", columns)
    failures = prove(exercise("shifted"), [*bank("shifted"), twin])
    assert any("largest_of_the_column is not recognised" in line for line in failures)
    assert any("other_name is not recognised" in line for line in failures)


def test_two_forms_of_one_mistake_need_not_be_told_apart(prove: Prove) -> None:
    twin = entry("other_form", columns, form_of="largest_of_the_column")
    assert prove(exercise("shifted"), [*bank("shifted"), twin]) == []


def test_a_wrong_answer_that_is_another_one_half_of_the_time(prove: Prove) -> None:
    calls = itertools.count()

    def moody(x: Tensor) -> Tensor:
        return x + next(calls)

    failures = prove(exercise("shifted"), [*bank("shifted"), entry("moody", moody)])
    assert any("moody does not behave the same twice" in line for line in failures)


def test_a_learners_test_that_says_another_thing_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it said once stands for every seed, except where it is asked once more."""
    item = chapters.exercise("intro.shares_test")
    calls = itertools.count()

    def moody(shares: Any) -> None:
        if next(calls) % 3 == 0:
            raise AssertionError

    entries = [replace(e, target=moody) for e in chapters.entries(item) if not e.is_right][:1]
    monkeypatch.setattr(chapters, "entries", lambda _: entries)
    failures = verify_exercise(item, SEEDS).failures
    assert any("does not behave the same twice" in line for line in failures)


def test_a_wrong_answer_that_turns_into_another(prove: Prove) -> None:
    # Three checks make its fingerprint; when it is run again it has changed into another one.
    calls = itertools.count()

    def chameleon(x: Tensor) -> Tensor:
        return x + 1 if next(calls) < 3 else columns(x)

    failures = prove(exercise("shifted"), [*bank("shifted"), entry("chameleon", chameleon)])
    assert any("chameleon does not behave the same twice" in line for line in failures)


def test_a_stub_that_earns_points(prove: Prove) -> None:
    def asks_nothing(answer: Any, cases: Any) -> None:
        """Nothing."""

    item = exercise("shifted")
    free = Check(asks_nothing, "asks_nothing", "Nothing.", 1.0, False)
    failures = prove(replace(item, checks=[*item.checks, free]))
    assert any("an untouched stub gets 1.0 points" in line for line in failures)


def keeps_the_shape(answer: Any, cases: Any) -> None:
    """The shape stays."""
    expect_tensor(answer(0.5)(cases.normal(2, 3)), (2, 3), what="it")


def leaves_its_input_alone(answer: Any, cases: Any) -> None:
    """The input stays."""
    x = cases.normal(2, 3)
    assert torch.equal(answer.run((x,), echo=True).args[0], x)


def returns_a_pair(answer: Any, cases: Any) -> None:
    """Two results."""
    expect_items(answer(cases.normal(2, 3)), 2, what="two")


def returns_three(answer: Any, cases: Any) -> None:
    """Three results."""
    expect_items(answer(cases.normal(2, 3)), 3, what="three")


def accepts_the_right(answer: Any, cases: Any) -> None:
    """A right implementation passes."""
    assert answer.accepts(torch.relu)


def rejects_the_wrong(answer: Any, cases: Any) -> None:
    """A wrong implementation does not."""
    assert answer.rejects(torch.relu)


@pytest.mark.parametrize(
    ("name", "check", "paid"),
    [
        (
            "Shift",
            keeps_the_shape,
            {"returns its input", "returns its last input", "returns zeros"},
        ),
        ("shifted", returns_a_pair, {"returns its input twice"}),
        ("shifted", returns_three, {"returns its input three times"}),
        (
            "shifted",
            rejects_the_wrong,
            {"returns zeros", "raises AssertionError", "raises ValueError"},
        ),
        (
            "shifted",
            leaves_its_input_alone,
            {
                "the stub with `pass`",
                "returns None",
                "returns its input",
                "returns its input twice",
                "returns its input three times",
                "returns its last input",
                "returns zeros",
            },
        ),
        (
            "shifted",
            accepts_the_right,
            {
                "the stub with `pass`",
                "returns None",
                "returns its input",
                "returns its input twice",
                "returns its input three times",
                "returns its last input",
            },
        ),
    ],
)
def test_a_check_that_pays_for_doing_nothing(
    prove: Prove, name: str, check: Callable[..., None], paid: set[str]
) -> None:
    item = exercise(name)
    free = Check(check, "free", "It.", 1.0, False)
    failures = prove(replace(item, checks=[*item.checks, free]))
    ending = " earns points in free; let it ask for a right result as well (seed 0, 1, 2)"
    found = {line.removesuffix(ending) for line in failures if line.endswith(ending)}
    assert {
        line.removeprefix(f"{item.id}: ").removeprefix("an answer that ") for line in found
    } == paid


def test_a_bug_hunt_that_pays_at_once(prove: Prove) -> None:
    item = exercise("doubled")
    paid = [replace(check, points=1.0) for check in item.checks]
    only(prove(replace(item, checks=paid)), "what is handed out earns points in two_stays_right")


def test_a_check_that_draws_from_the_global_generator(prove: Prove) -> None:
    def uncertain(answer: Any, cases: Any) -> None:
        """Draw."""
        expect_tensor(answer(torch.rand(2, 3)), (2, 3), what="it")

    item = exercise("shifted")
    drawn = Check(uncertain, "uncertain", "Draw.", 0.0, False)
    failures = prove(replace(item, checks=[*item.checks, drawn]))
    assert any("does not behave the same twice" in line for line in failures)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"checks": []}, "has no check"),
        ({"hints": ("one", "two")}, "has 2 hints; give 3"),
        ({"given": "nobody"}, "hands out nobody, but the bank marks nothing"),
    ],
)
def test_a_malformed_exercise(prove: Prove, changes: dict[str, Any], text: str) -> None:
    assert any(text in line for line in prove(exercise("shifted", **changes)))


def test_an_exercise_worth_nothing(prove: Prove) -> None:
    item = exercise("shifted")
    checks = [replace(check, points=0.0) for check in item.checks]
    only(prove(replace(item, checks=checks)), "is worth no points")


def test_a_check_that_does_not_say_what_it_asks(prove: Prove) -> None:
    item = exercise("shifted")
    checks = [replace(item.checks[0], asks=""), *item.checks[1:]]
    only(prove(replace(item, checks=checks)), "check keeps_the_shape does not say what it asks")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"why": ""}, "wrong answer rows_untouched has no explanation"),
        ({"rung": 4}, "wrong answer rows_untouched: rung 4 is not 1 to 3"),
        ({"form_of": "nobody"}, "rows_untouched is a form of nobody, which is not in the bank"),
    ],
)
def test_a_malformed_entry(prove: Prove, changes: dict[str, Any], text: str) -> None:
    entries = [
        replace(item, **changes) if item.name == "rows_untouched" else item
        for item in bank("shifted")
    ]
    assert any(text in line for line in prove(exercise("shifted"), entries))


def test_a_bank_without_wrong_answers(prove: Prove) -> None:
    right = [item for item in bank("shifted") if item.is_right]
    only(prove(exercise("shifted"), right), "has no wrong answer in the bank")


def test_a_bank_for_an_exercise_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = bank("shifted")
    monkeypatch.setattr(chapters, "exercises", lambda _: {})
    monkeypatch.setattr(chapters, "bank", lambda _: entries)
    assert verify.verify(["tiny"], 1).failures == [
        "autograder/checks/tiny.py: no exercise",
        "autograder/answers/tiny.py: no exercise 'shifted'",
    ]


def test_the_command_writes_its_report_and_fails_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = verify.Report(1, 3, 2, 1, 5, [])
    monkeypatch.setattr(verify, "verify", lambda *args, **kwargs: report)
    path = tmp_path / "verify.json"
    command = ["tiny", "--seeds", "5", "--json", str(path)]
    assert verify.main(command) == 0
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "exercises": 1, "checks": 3, "wrong_answers": 2, "right_answers": 1, "seeds": 5,
        "failures": [],
    }  # fmt: skip
    report.failures.append("tiny.shifted: oh")
    assert verify.main(command) == 1
    assert "tiny.shifted: oh" in capsys.readouterr().out


def test_an_unknown_chapter_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main(["nowhere", "--seeds", "1"]) == 2
    assert "autograder/checks/nowhere.py is missing" in capsys.readouterr().err
