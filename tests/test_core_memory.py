"""What a check draws and works out is the same for the next answer, whatever happens to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import tinychapter
import torch
from torch import Tensor

from autograder.answer import Answer
from autograder.checking import Cases, Check, expect
from autograder.judge import Judge, opening
from autograder.memory import Memory, memory_now, remembered

KEY = (0, "a.b", "check")


def all_draws(cases: Cases) -> list[Any]:
    """One of each kind, in an order that a generator of its own would notice."""
    return [
        cases.normal(2, 3, scale=0.5),
        cases.distinct(3, 1, 7),
        cases.mask(2, 4),
        cases.integer(0, 1000),
        cases.uniform(5, high=2.0),
        cases.shuffled("abcde"),
        cases.integers(0, 9, 4),
        cases.permutation(5),
        cases.seed(),
        cases.normal(2, dtype=torch.float64),
    ]


def same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


@contextmanager
def in_mind(memory: Memory) -> Iterator[None]:
    token = memory_now.set(memory)
    try:
        yield
    finally:
        memory_now.reset(token)


def test_draws_from_memory_are_those_of_a_generator() -> None:
    memory = Memory()
    wanted = all_draws(Cases(*KEY))
    for _round in range(3):
        found = all_draws(Cases(*KEY, memory=memory))
        assert all(map(same, found, wanted))


def test_an_answer_that_stops_early_leaves_the_next_draw_to_others() -> None:
    memory = Memory()
    Cases(*KEY, memory=memory).normal(2, 3, scale=0.5)
    assert all(map(same, all_draws(Cases(*KEY, memory=memory)), all_draws(Cases(*KEY))))


def test_an_answer_that_takes_another_way_draws_what_it_would_alone() -> None:
    def another(cases: Cases) -> list[Any]:
        return [cases.normal(2, 3, scale=0.5), cases.normal(7), cases.normal(2)]

    memory = Memory()
    wanted = all_draws(Cases(*KEY, memory=memory))
    assert all(map(same, another(Cases(*KEY, memory=memory)), another(Cases(*KEY))))
    assert all(map(same, all_draws(Cases(*KEY, memory=memory)), wanted))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda x: x.zero_(),
        lambda x: x[1:].fill_(9.0),
        lambda x: x.detach().mul_(2),
        lambda x: x.requires_grad_(),
    ],
)
def test_what_was_written_into_is_drawn_again(spoil: Callable[[Tensor], Any]) -> None:
    memory = Memory()
    wanted = Cases(*KEY).normal(4)
    for _round in range(3):
        x = Cases(*KEY, memory=memory).normal(4)
        assert torch.equal(x, wanted)
        assert not x.requires_grad
        spoil(x)


class Counted:
    """A remembered function that counts how often it is worked out."""

    def __init__(self) -> None:
        self.times = 0

        def double(x: Any, state: dict[str, Tensor] | None = None) -> Any:
            self.times += 1
            return 2 * x if state is None else {name: 2 * item for name, item in state.items()}

        self.function = remembered(double)


def test_a_function_of_draws_is_worked_out_once() -> None:
    memory, double = Memory(), Counted()
    with in_mind(memory):
        for _round in range(3):
            x = Cases(*KEY, memory=memory).normal(4)
            once = double.function(x)
            assert torch.equal(double.function(once), 4 * x)
            assert torch.equal(double.function(1, {"a": x})["a"], once)
    assert double.times == 3


def test_values_that_are_equal_and_of_another_type_are_told_apart() -> None:
    double = Counted()
    with in_mind(Memory()):
        assert [type(double.function(x)) for x in (1, 1.0, 1)] == [int, float, int]
    assert double.times == 2


def test_what_was_not_drawn_is_known_by_what_it_holds() -> None:
    double = Counted()
    with in_mind(Memory()):
        for x in (torch.ones(2), torch.ones(2), -torch.ones(2), torch.ones(2).half()):
            assert torch.equal(double.function(x), 2 * x)
            assert double.function(x).dtype == x.dtype
    assert double.times == 3


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(5000),
        torch.ones(2, requires_grad=True),
        torch.ones(2, dtype=torch.bfloat16),
    ],
)
def test_what_cannot_be_known_is_worked_out_each_time(x: Tensor) -> None:
    double = Counted()
    with in_mind(Memory()):
        assert torch.equal(double.function(x), double.function(x))
    assert double.times == 2


def test_what_answers_reply_is_kept_within_bounds() -> None:
    """Submissions are many, and none of them gives the same numbers as another."""
    memory, double = Memory(), Counted()
    with in_mind(memory):
        for value in range(1000):
            assert double.function(torch.tensor(value)) == 2 * value
    assert len(memory._values) == len(memory._known) == 256


def test_what_was_written_into_is_worked_out_again() -> None:
    memory, double = Memory(), Counted()
    wanted = 2 * Cases(*KEY).normal(4)
    with in_mind(memory):
        for _round in range(2):
            x = Cases(*KEY, memory=memory).normal(4)
            value = double.function(x)
            assert torch.equal(value, wanted)
            value.zero_()  # the value
            x += 1  # and the argument
            assert torch.equal(double.function(x), wanted + 2)  # 2 · (x + 1)
        named = double.function(1, {"a": Cases(*KEY, memory=memory).normal(4)})
        named["a"] = torch.zeros(1)
        again = double.function(1, {"a": Cases(*KEY, memory=memory).normal(4)})
    assert torch.equal(again["a"], wanted)


def test_without_a_memory_it_is_an_ordinary_function() -> None:
    double = Counted()
    assert [double.function(1), double.function(1)] == [2, 2]
    assert double.times == 2


def test_no_answer_meets_what_another_one_spoiled() -> None:
    """An answer that writes into all it is given, and a check that writes into what it drew."""
    seen: list[Tensor] = []

    def spoils(x: Tensor) -> Tensor:
        seen.append(x.clone())
        x.zero_()
        return x

    def check(answer: Answer, cases: Cases) -> None:
        x = cases.normal(3)
        answer(x)
        expect(not bool((x == 0).any()), seen="It", cause="is", next_step="spoiled.")
        x[0] = 7
        answer(x)

    exercise = replace(
        tinychapter.exercise("shifted"), checks=[Check(check, "check", "It asks.", 1.0, False)]
    )
    judge = Judge(exercise)
    for _round in range(3):
        assert judge.judge(opening(exercise, spoils)).score == 1
    assert len(seen) == 6
    assert all(torch.equal(seen[i], seen[i % 2]) for i in range(6))
