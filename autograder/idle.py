"""Answers that do nothing: no check may pay for one.

They hand back what they were given, or zeros, or nothing, or refuse whatever they are given; as
somebody's test they accept everything or turn everything away. A check that looks at one property
alone, such as that an input stays as it was, is easily passed by them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autograder import chapters
from autograder.bank import built
from autograder.checking import Exercise
from autograder.sources import STUB, definition_source, make_stub

Values = tuple[Any, ...]


def _input(values: Values) -> Any:
    """The first tensor, or the first value where there is none."""
    return next((item for item in values if isinstance(item, Tensor)), next(iter(values), None))


def _last_input(values: Values) -> Any:
    """The last tensor: a mask, mostly."""
    return _input(values[::-1])


def _turn_away(values: Values) -> None:
    raise AssertionError


def _refuse(values: Values) -> None:
    raise ValueError


_DOINGS: dict[str, Callable[[Values], Any]] = {
    "returns None": lambda values: None,
    "returns its input": _input,
    "returns its input twice": lambda values: (_input(values),) * 2,
    "returns its input three times": lambda values: (_input(values),) * 3,
    "returns its last input": _last_input,
    "returns zeros": lambda values: torch.zeros_like(_input(values)),
    "raises AssertionError": _turn_away,
    "raises ValueError": _refuse,
}


def idle_answers(exercise: Exercise) -> dict[str, Any]:
    """Answers to an exercise that do nothing, by what is to be said of them.

    The stub with ``pass`` in its gaps is one; the others have the kind of the reference: functions,
    or classes with the same base and methods, without parameters. (A Triton kernel returns nothing,
    so its stub is all there is.)
    """
    reference = chapters.reference(exercise)
    answers = {"the stub with `pass`": _passing_stub(exercise)}
    if inspect.isclass(reference) or inspect.isfunction(reference):
        for what, do in _DOINGS.items():
            made = _class(reference, do) if inspect.isclass(reference) else _function(do)
            answers[f"an answer that {what}"] = made
    return answers


def _passing_stub(exercise: Exercise) -> Any:
    solutions = sys.modules[f"solutions.{exercise.stem}"]
    source = make_stub(definition_source(Path(solutions.__file__ or ""), exercise.name))
    return built(source.replace(STUB, "pass"), exercise.name, solutions, f"<{exercise.id}: pass>")


def _function(do: Callable[[Values], Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: do((*args, *kwargs.values()))


def _class(reference: type, do: Callable[[Values], Any]) -> type:
    def method(_self: Any, *args: Any, **kwargs: Any) -> Any:
        return do((*args, *kwargs.values()))

    def begin(self: Any, *_args: Any, **_kwargs: Any) -> None:
        if isinstance(self, nn.Module):
            nn.Module.__init__(self)

    own: dict[str, Any] = {}
    for name, item in vars(reference).items():
        if isinstance(item, staticmethod):  # of an autograd function
            own[name] = staticmethod(_function(do))
        elif inspect.isfunction(item):
            own[name] = method
    base = nn.Module if issubclass(reference, nn.Module) else reference.__base__ or object
    return type(reference.__name__, (base,), {**own, "__init__": begin})
