"""A learner's test is tried on implementations that it can tell apart by what they return alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import pytest
import torch
from torch import Tensor

from autograder import chapters
from autograder.answer import Answer, Callbacks, LocalLink
from autograder.checking import Cases
from autograder.diagnosis import Recorder
from autograder.judge import Judge, opening
from autograder.trial import name_of, verdicts

WRITTEN = [
    item.id
    for stem in chapters.stems()
    for item in chapters.exercises(stem).values()
    if item.name.endswith("_test") and not item.missing
]


def right(x: Tensor) -> Tensor:
    return 2 * x


def right_too(x: Tensor, secret: int = 0) -> Tensor:
    return x + x


def wrong(numbers: Tensor) -> Tensor:
    if numbers.ndim != 1:
        raise ValueError("a wrong one of the course's own")
    return 3 * numbers


def promise(x: Tensor, scale: float = 1.0) -> None:
    if not x.is_floating_point():
        raise TypeError


def tried(
    test: Callable[[Callable[..., Tensor]], None],
    seed: int = 0,
    known: dict[Hashable, dict[str, Any]] | None = None,
) -> tuple[list[bool], ...]:
    callbacks = Callbacks()
    answer = Answer(LocalLink(test, callbacks=callbacks, trials=known), callbacks)
    cases = Cases(seed, "e", "c")
    return verdicts(answer, cases, right=[right, right_too], wrong=[wrong] * 3, takes=promise)


def test_verdicts_stand_in_the_order_of_the_implementations() -> None:
    def looks(f: Callable[..., Tensor]) -> None:
        assert f(x=torch.ones(1)).item() == 2

    assert tried(looks) == ([True, True], [True, True, True])
    assert tried(lambda f: None) == ([True, True], [False, False, False])


def test_the_order_depends_on_the_seed_and_mixes_right_and_wrong() -> None:
    orders = set()
    for seed in range(20):
        found = []

        def notes(f: Callable[..., Tensor], found: list[float] = found) -> None:
            found.append(f(torch.ones(1)).item())

        tried(notes, seed)
        orders.add(tuple(found))
    assert len(orders) > 5
    assert {order[0] for order in orders} == {2.0, 3.0}


@pytest.mark.parametrize(
    "call",
    [
        lambda f: f(torch.ones(1, 1)),
        lambda f: f(torch.ones(1), secret=1),
        lambda f: f(numbers=torch.ones(1)),
        lambda f: f(no_such=1),
        lambda f: f(torch.ones(1, dtype=torch.int64)),
        lambda f: f(),
    ],
)
def test_what_an_implementation_raises_tells_nothing_of_it(
    call: Callable[[Callable[..., Tensor]], Tensor],
) -> None:
    texts = []

    def notes(f: Callable[..., Tensor]) -> None:
        try:
            call(f)
        except Exception as error:
            texts.append(f"{type(error)} {error}")

    tried(notes)
    assert len(set(texts)) == 1
    assert "own" not in texts[0]
    assert "secret" not in texts[0]


def test_a_probe_is_tried_once_and_says_the_same_to_every_check() -> None:
    seen = []

    def looks(f: Callable[..., Tensor]) -> None:
        seen.append(f(torch.ones(1)).item())
        assert seen[-1] == 2

    traces = []
    for callbacks in (shared := Callbacks(), shared, Callbacks()):  # the last one asks by itself
        recorder = Recorder(LocalLink(looks, callbacks=callbacks))
        answer, cases = Answer(recorder, callbacks), Cases(0, "e", "c")
        verdicts(answer, cases, right=[right], takes=promise, probes=[wrong, right_too])
        traces.append(recorder.trace)
    assert sorted(seen[:3]) == [2, 2, 3]
    assert seen[3:] == [2, *seen[:3]]
    assert traces[0] == traces[1] == traces[2]


def test_what_a_test_of_the_bank_said_is_known_for_every_seed() -> None:
    seen = []

    def looks(f: Callable[..., Tensor]) -> None:
        seen.append(f(torch.ones(1)).item())
        assert seen[-1] == 2

    known: dict[Hashable, dict[str, Any]] = {}
    for seed in range(5):
        assert tried(looks, seed, known) == ([True, True], [True, True, True])
    # two right ones and a wrong one, each once
    assert sorted(seen) == [2, 2, 3]
    # and nothing is known of another test
    assert tried(lambda f: None, 0, {}) == ([True, True], [False, False, False])


def test_functions_have_one_name_where_they_do_the_same() -> None:
    def by(factor: Any, then: Callable[[Tensor], Tensor] = lambda x: x) -> Callable[..., Tensor]:
        return lambda x, twice=False: then(factor * x)

    tensor = torch.ones(1)
    assert name_of(by(2)) == name_of(by(2))
    assert name_of(by(2, right)) == name_of(by(2, right))
    names = [by(2), by(3), by(2.0), by(True), by(0.0), by(-0.0), by((2,)), by(2, right), right]
    # what cannot be read is another one each time
    names += [by(tensor), by(tensor), by([2]), by([2])]
    assert len({name_of(item) for item in names}) == len(names)
    assert name_of(right, promise) != name_of(right, right)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_test_that_turns_everything_away_earns_nothing(name: str) -> None:
    """Every check that asks for a refusal also hands over a right implementation."""
    item = chapters.exercise(name)

    def refuses(*implementations: object) -> None:
        raise AssertionError

    assert Judge(item).judge(opening(item, refuses)).score == 0
