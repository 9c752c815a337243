"""Tries a test that a learner wrote on implementations, right and wrong, which it cannot tell apart
but by what they return.

They come in an order that follows from the seed, right and wrong ones mixed; they are called with
the arguments that the exercise promises, and with no others; and whatever one of them raises reads
the same to the test.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from types import FunctionType
from typing import Any

import torch

from autograder.answer import Answer
from autograder.checking import Cases, expect
from autograder.i18n import _

Implementation = Callable[..., Any]


def verdicts(
    answer: Answer,
    cases: Cases,
    *,
    right: Sequence[Implementation] = (),
    wrong: Sequence[Implementation] = (),
    takes: Implementation,
    probes: Sequence[Implementation] = (),
) -> tuple[list[bool], list[bool]]:
    """Run the learner's test on every implementation, before anything is said of one.

    Args:
        right: in each check at least one, or a test that turns everything away passes it.
        wrong: those that it should turn away.
        takes: a function with the parameters that the exercise promises; it raises where an
            argument is not what they may be.
        probes: what the test says of them tells one weak test from another, and nothing else; so
            they are tried once for all checks.

    Returns:
        Which of ``right`` it accepts, which of ``wrong`` it turns away, in their order.

    Raises:
        autograder.answer.AnswerRaised: on a right one it raised anything but ``AssertionError``.
    """
    accepted, refused = [False] * len(right), [False] * len(wrong)
    groups = {"right": right, "wrong": wrong, "probe": probes}
    places = [(group, i) for group, items in groups.items() for i in range(len(items))]
    for group, place in cases.shuffled(places):
        implementation = groups[group][place]
        promised, name = _promised(implementation, takes), name_of(implementation, takes)
        if group == "right":
            accepted[place] = answer.accepts(promised, name)
        elif group == "wrong":
            refused[place] = answer.rejects(promised, name)
        else:
            answer.probe(promised, name)
    return accepted, refused


def expect_refused(refused: Sequence[bool], said: Iterable[tuple[str, str]]) -> None:
    """Fail at the first wrong implementation that was let through.

    Args:
        refused: as :func:`verdicts` returns it.
        said: of each, what is seen where it is let through, and the next step.
    """
    for found, (seen, next_step) in zip(refused, said, strict=True):
        expect(
            found,
            seen=seen,
            cause=_("No assertion of yours looks at what this one gets wrong."),
            next_step=next_step,
        )


def name_of(*functions: Any) -> Hashable:
    """A name that functions have in common which do the same: a check makes its own anew each time.

    That is their code, and what it closes over, where these are functions and plain values. Any
    other function has a name of its own.
    """
    names: list[Hashable] = []
    for function in functions:
        if type(function) is not FunctionType:
            names.append(function)
            continue
        held = [cell.cell_contents for cell in function.__closure__ or ()]
        held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
        parts = [_value_name(item) for item in held]
        names.append(
            function if None in parts else (function.__module__, function.__code__, *parts)
        )
    return tuple(names)


def _value_name(value: Any) -> Hashable:
    if type(value) is FunctionType:
        return name_of(value)
    if type(value) is tuple:
        parts = tuple(map(_value_name, value))
        return None if None in parts else parts
    # 1, 1.0 and True are equal, and so are 0.0 and −0.0
    return (type(value), repr(value)) if value is None or type(value) in _PLAIN else None


_PLAIN = (bool, int, float, str, torch.dtype)


def _promised(implementation: Implementation, takes: Implementation) -> Implementation:
    signature = inspect.signature(takes)
    by_name_alone = {p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}

    # not functools.wraps: nothing of the implementation's own shows
    def called(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.keys() <= by_name_alone:  # an implementation may have other names
            given = signature.bind(*args, **kwargs)
            args, kwargs = given.args, given.kwargs
        takes(*args, **kwargs)
        return implementation(*args, **kwargs)

    return called
