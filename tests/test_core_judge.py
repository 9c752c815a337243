"""The judge: points check by check, whatever the answer does, and mistakes by their behaviour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import tinychapter
import torch
from torch import Tensor

from autograder import chapters, diagnosis
from autograder.answer import MAX_GRAPHS, Answer, Callbacks, LinkLost, LocalLink
from autograder.checking import Cases, Check, Exercise, expect
from autograder.diagnosis import agreement, agreements, recognise, same_trace
from autograder.judge import Judge, opening
from autograder.results import ExerciseResult, SubmissionResult, to_json


def right(x: Tensor) -> Tensor:
    return x - x.amax(-1, keepdim=True)


def exercise(*functions: Callable[[Answer, Cases], None], hidden: bool = False) -> Exercise:
    """An exercise with these checks, one point each."""
    made = [Check(f, f.__name__, "It asks.", 1.0, hidden) for f in functions]
    return replace(tinychapter.exercise("shifted"), checks=made)


def judged(item: Exercise, target: Any, **options: Any) -> ExerciseResult:
    return Judge(item, **options).judge(opening(item, target))


def tiny(target: Any, *, bank: bool = True, **options: Any) -> ExerciseResult:
    item = tinychapter.exercise("shifted")
    entries = chapters.entries(item) if bank else []
    return judged(item, target, bank=entries, **options)


def test_points_are_earned_check_by_check() -> None:
    result = tiny(lambda x: right(x) if x.size(0) == 2 else x)
    assert [item.points for item in result.checks] == [1.0, 0.5, 0.0]
    assert (result.score, result.max_score) == (1.5, 2.5)
    assert result.id == "tiny.shifted"


def test_checks_may_be_chosen() -> None:
    visible = tiny(right, checks=lambda check: not check.hidden)
    assert [item.name for item in visible.checks] == ["keeps_the_shape", "largest_is_zero"]


def test_seeds_change_the_cases() -> None:
    seen: list[Tensor] = []

    def watching(x: Tensor) -> Tensor:
        seen.append(x.clone())
        return right(x)

    for seed in (0, 0, 1):
        tiny(watching, bank=False, seed=seed)
    assert torch.equal(seen[0], seen[3])
    assert not torch.equal(seen[0], seen[6])


@pytest.mark.parametrize(
    ("target", "seen"),
    [
        (lambda x: None, "not a tensor"),
        (lambda x: x.sum(), "shape ()"),
        (lambda: 0, "raised TypeError"),
        (lambda x: x + float("nan"), "NaN"),
        (lambda x: (_ for _ in ()).throw(SystemExit), "raised"),
        (None, "raised TypeError"),
    ],
)
def test_no_answer_stops_the_judge(target: Any, seen: str) -> None:
    result = tiny(target, bank=False)
    assert result.score in (0.0, 1.0)
    assert not result.checks[1].passed
    assert seen in result.checks[1].message


def test_an_unexpected_kind_of_reply_is_the_answers_fault() -> None:
    def adds(answer: Answer, cases: Cases) -> None:
        answer(1) + 1

    result = judged(exercise(adds), lambda x: "text")
    assert result.checks[0].points == 0
    assert "not of the kind that the docstring promises" in result.checks[0].message


def test_a_stub_is_open_and_half_an_answer_is_not() -> None:
    def stub(x: Tensor) -> Tensor:
        raise NotImplementedError

    assert tiny(stub).open
    assert tiny(stub).score == 0
    assert not tiny(lambda x: x).open
    assert not tiny(right).open


def test_an_error_names_the_line_of_the_cell_but_not_where_hidden() -> None:
    source = "def f(x):\n    y = 1\n    raise ValueError(f'secret {x}')\n"
    namespace: dict[str, Any] = {}
    exec(compile(source, "<cell>", "exec"), namespace)

    def asks(answer: Answer, cases: Cases) -> None:
        answer(3)

    shown = judged(exercise(asks), namespace["f"]).checks[0].message
    assert "ValueError in line 3 of your cell: secret 3" in shown
    hidden = judged(exercise(asks, hidden=True), namespace["f"]).checks[0].message
    assert "ValueError" in hidden
    assert "secret" not in hidden
    assert "line" not in hidden


def test_an_error_type_of_the_learners_own_is_not_repeated() -> None:
    class Telling42(Exception):
        pass

    def f(x: Any) -> None:
        raise Telling42

    def asks(answer: Answer, cases: Cases) -> None:
        answer(42)

    assert "Telling42" not in judged(exercise(asks, hidden=True), f).checks[0].message


def test_a_forbidden_call_counts_even_where_it_was_swallowed() -> None:
    def sly(x: Tensor) -> Tensor:
        try:
            return torch.log_softmax(x, -1)
        except BaseException:
            return right(x)

    result = tiny(sly, bank=False)
    assert result.score == 0
    assert "log_softmax" in result.checks[0].message
    allowed = replace(tinychapter.exercise("shifted"), forbid=())
    assert judged(allowed, sly).score == 1  # only its shape is right


def test_an_answer_that_overwrites_its_input_is_seen() -> None:
    def keeps_its_input(answer: Answer, cases: Cases) -> None:
        x = cases.normal(3)
        (after,) = answer.run((x,), echo=True).args
        expect(torch.equal(x, after), seen="It changed.", cause="", next_step="")

    assert judged(exercise(keeps_its_input), lambda x: x + 1).score == 1
    assert judged(exercise(keeps_its_input), lambda x: x.mul_(0)).score == 0


class Breaking:
    """A link that is lost at its first request, each time it is opened."""

    opened = 0

    def __init__(self, target: Any, callbacks: Callbacks, losses: int) -> None:
        Breaking.opened += 1
        self.link = LocalLink(target, callbacks=callbacks)
        self.lose = Breaking.opened <= losses

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        if self.lose:
            raise LinkLost("timeout")
        return self.link.request(message)


@pytest.mark.parametrize(("again", "points"), [(True, 2.0), (False, 1.0)])
def test_a_lost_link_costs_its_check_alone_and_may_be_asked_again(
    again: bool, points: float
) -> None:
    def one(answer: Answer, cases: Cases) -> None:
        answer(1)

    def two(answer: Answer, cases: Cases) -> None:
        answer(2)

    Breaking.opened = 0
    item = exercise(one, two)
    judge = Judge(item)
    result = judge.judge(lambda callbacks: Breaking(lambda x: x, callbacks, 1), again=again)
    assert result.score == points
    if not again:
        assert result.checks[0].lost == "timeout"
        assert "did not finish" in result.checks[0].message


def test_the_second_answer_counts() -> None:
    calls: list[int] = []

    def works_once_it_is_warm(x: Tensor) -> Tensor:
        calls.append(1)
        return right(x) if len(calls) > 1 else x.T

    item = exercise(tinychapter.exercise("shifted").checks[0].function)
    assert Judge(item).judge(opening(item, works_once_it_is_warm), again=True).score == 1


# --- diagnosis -----------------------------------------------------------------------------------


def test_a_mistake_is_known_by_its_behaviour_not_by_its_source() -> None:
    def written_otherwise(x: Tensor) -> Tensor:
        return torch.stack(list(x)) - torch.max(x, 0, keepdim=True).values

    result = tiny(written_otherwise)
    assert result.diagnoses == ("largest_of_the_column",)
    failed = next(item for item in result.checks if not item.passed)
    assert "The largest entry of a column is subtracted." in failed.message
    assert "taken along another axis" not in failed.message  # the check's guess gives way


def test_rounding_hides_no_mistake() -> None:
    def in_double(x: Tensor) -> Tensor:
        return (x.double() - x.double().amax(0, keepdim=True)).float() * (1 + 1e-7)

    assert tiny(in_double).diagnoses == ("largest_of_the_column",)


@pytest.mark.parametrize("target", [lambda x: x - 1, lambda x: x.T, lambda x: None, None])
def test_an_unknown_mistake_has_no_name(target: Any) -> None:
    assert tiny(target).diagnoses == ()


def test_a_right_answer_has_no_diagnosis() -> None:
    assert tiny(right).diagnoses == ()


ONE = torch.tensor([1.0, 2.0])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (ONE, ONE * (1 + 1e-6), True),
        (ONE, ONE * 1.001, False),
        (ONE.half(), (ONE * 1.005).half(), True),
        (ONE, ONE[:1], False),
        (ONE, ONE.to(torch.complex64), False),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), True),
        (torch.zeros(0), torch.zeros(0), True),
        (1.0, 1.0 + 1e-7, True),
        (1.0, "1.0", False),
        (float("nan"), float("nan"), True),
        ([1, (2,)], [1, (2,)], True),
        ({"a": 1}, {"b": 1}, False),
        (True, True, True),
    ],
)
def test_same_trace(one: Any, other: Any, same: bool) -> None:
    assert same_trace([one], [other]) is same
    assert same_trace([other], [one]) is same


def test_all_at_once_agree_as_each_with_each() -> None:
    nan, inf = torch.tensor([float("nan"), 1.0]), torch.tensor([float("inf"), 1.0])
    values = [
        ONE, ONE.clone(), ONE * (1 + 4e-5), ONE * (1 + 8e-5), ONE.half(), ONE * 1.01, ONE[:1],
        ONE.double(), nan, nan * (1 + 1e-5), inf, -inf, torch.zeros(0), 1, 1.0, 1.0 + 4e-5, True,
        "1", [1, 2], [1, 2.00001], {"a": ONE}, {"a": ONE * (1 + 1e-6)}, {"b": ONE},
    ]  # fmt: skip
    bank = {str(i): {"all": [value], f"{i % 2}": [value]} for i, value in enumerate(values)}
    one_by_one = {entry: agreement(traces, bank) for entry, traces in bank.items()}
    assert agreements(bank) == one_by_one
    assert one_by_one["0"]["2"]  # rounding is on both sides of the limit
    assert not one_by_one["0"]["5"]


def test_a_reply_of_another_shape_is_never_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    row = diagnosis._row
    monkeypatch.setattr(diagnosis, "_row", lambda item: copied.append(item.numel()) or row(item))
    bank = {"one": {"a": [{"value": ONE}]}, "two": {"a": [{"value": ONE + 1}]}}
    assert agreement({"a": [{"value": torch.zeros(1_000)}]}, bank) == {"one": set(), "two": set()}
    assert copied == []
    assert agreement({"a": [{"value": ONE}]}, bank) == {"one": {"a"}, "two": set()}


def test_a_trace_keeps_no_more_than_it_may() -> None:
    class Large:
        def request(self, message: dict[str, Any]) -> dict[str, Any]:
            return {"value": torch.zeros(7 * 2**20, dtype=torch.uint8)}

    recorder = diagnosis.Recorder(Large())
    for _ in range(3):
        assert recorder.request({"op": "call"})["value"].numel() == 7 * 2**20
    assert [type(reply["value"]) for reply in recorder.trace] == [Tensor, Tensor, str]


def test_exceptions_name_a_mistake_only_where_all_agrees() -> None:
    crash = [{"error": "TypeError"}]
    bank = {"crashes": {"a": crash, "b": [{"value": 1}]}}
    names = {"crashes": "crashes"}
    same = {"a": crash, "b": [{"value": 1}]}
    assert recognise(same, ["a", "b"], bank, names) == {"a": "crashes", "b": "crashes"}
    other = {"a": crash, "b": [{"value": 2}]}
    assert recognise(other, ["a", "b"], bank, names) == {}


def test_two_mistakes_that_explain_as_much_name_none() -> None:
    trace = [{"value": 1}]
    bank = {"one": {"a": trace}, "two": {"a": trace}}
    assert recognise({"a": trace}, ["a"], bank, {"one": "one", "two": "two"}) == {}
    assert recognise({"a": trace}, ["a"], bank, {"one": "x", "two": "x"}) == {"a": "x"}


# --- results -------------------------------------------------------------------------------------


def test_the_public_form() -> None:
    result = SubmissionResult(
        "ada/tiny.ipynb", "tiny", "graded", (tiny(lambda x: x),), ("Mended.",)
    )
    public = to_json(result)
    assert set(public) == {
        "submission", "chapter", "status", "score", "max_score", "notes", "exercises",
    }  # fmt: skip
    assert (public["score"], public["max_score"]) == (1.0, 2.5)
    (found,) = public["exercises"]
    assert set(found) == {"id", "score", "max_score", "checks"}
    assert set(found["checks"][2]) == {
        "name", "points", "max_points", "hidden", "passed", "message", "diagnosis",
    }  # fmt: skip
    assert found["checks"][2]["diagnosis"] == "rows_untouched"


def test_only_the_latest_results_can_be_differentiated() -> None:
    """However often a learner's test calls an implementation, the judge's memory is bounded."""
    callbacks = Callbacks()
    number = callbacks.add(lambda x: x**2).number
    call = {"callback": number, "args": [torch.tensor([3.0])], "kwargs": {}, "requires_grad": True}
    first = callbacks.answer({**call, "args": [torch.tensor([3.0])]})["call"]
    for _ in range(MAX_GRAPHS):
        last = callbacks.answer({**call, "args": [torch.tensor([3.0])]})["call"]
    ones = [torch.ones(1)]
    assert callbacks.answer({"backward": last, "cotangents": ones})["value"] == [6.0]
    assert "error" in callbacks.answer({"backward": first, "cotangents": ones})


def test_kept_results_are_bounded_by_what_their_graphs_may_hold() -> None:
    callbacks = Callbacks()
    number = callbacks.add(lambda x: x @ x.mT).number
    x = torch.ones(1_000, 1)  # a million scores
    call = {"callback": number, "kwargs": {}, "requires_grad": True}
    calls = [callbacks.answer({**call, "args": [x.clone()]})["call"] for _ in range(6)]
    ones = [torch.ones(1_000, 1_000)]
    heard = [callbacks.answer({"backward": made, "cotangents": ones}) for made in calls]
    assert ["error" in answer for answer in heard] == [True, True, False, False, False, False]


def test_an_implementation_returns_no_more_than_a_test_needs() -> None:
    callbacks = Callbacks()
    number = callbacks.add(lambda n: [torch.ones(1).expand(n)]).number
    call = {"callback": number, "kwargs": {}, "requires_grad": False}
    assert "value" in callbacks.answer({**call, "args": [1_000]})
    assert "too much" in callbacks.answer({**call, "args": [10**12]})["error"]
