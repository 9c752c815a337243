"""Recognises a mistake: which wrong answer of the bank behaves as this one does, if any.

Every check leaves a trace of what the answer replied. A wrong answer of the bank is run through the
same checks on the same inputs, and traces are compared. Nothing is guessed from the source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from autograder.answer import Link
from autograder.guest.plain import Opaque

Trace = list[Any]

# Two right computations of the same values in another order differ by rounding only: a few hundred
# units in the last place (float32: 1.2e-7, float16: 9.8e-4), relative to the largest value.
_ROUNDING = {torch.float16: 2e-2, torch.bfloat16: 1e-1}
_ROUNDING_DEFAULT = 5e-5


class Recorder:
    """A link that keeps what came back over it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.trace: Trace = []

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Pass on, and remember the reply (of an error: only its type)."""
        reply = self._link.request(message)
        if "error" in reply:
            self.trace.append({"error": reply["error"]})
        else:
            self.trace.append({key: reply[key] for key in sorted(reply) if key != "meter"})
        return reply


def same_trace(one: Trace, other: Trace) -> bool:
    """Whether two answers replied the same, up to rounding."""
    return _same(one, other)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return _same_tensor(one, other)
    if isinstance(one, float) or isinstance(other, float):
        if not isinstance(one, int | float) or not isinstance(other, int | float):
            return False
        return (
            one == other
            or abs(one - other) <= _ROUNDING_DEFAULT * max(abs(one), abs(other))
            or (math.isnan(one) and math.isnan(other))
        )
    if type(one) in (list, tuple) and type(other) in (list, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)


def _same_tensor(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype.is_complex != other.dtype.is_complex:
        return False
    if one.numel() == 0:
        return True
    rounding = max(
        _ROUNDING.get(one.dtype, _ROUNDING_DEFAULT), _ROUNDING.get(other.dtype, _ROUNDING_DEFAULT)
    )
    wide = torch.complex128 if one.dtype.is_complex else torch.float64
    one, other = one.to(wide), other.to(wide)
    finite = other.abs()[other.isfinite()]
    size = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(one, other, rtol=rounding, atol=rounding * size, equal_nan=True)


def _says_something(trace: Trace) -> bool:
    """Whether a trace holds more than exceptions, and than a module that was built and loaded."""
    builds = any(isinstance(reply.get("value"), Opaque) for reply in trace)
    return any(
        reply["error"] == "AssertionError"
        if "error" in reply
        else not (builds and (reply["value"] is None or isinstance(reply["value"], Opaque)))
        for reply in trace
    )


def recognise(
    traces: Mapping[str, Trace],
    failed: Sequence[str],
    bank: Mapping[str, Mapping[str, Trace]],
    names: Mapping[str, str],
) -> dict[str, str]:
    """Name the mistake behind each failed check, where exactly one mistake explains it.

    Args:
        traces: the answer's trace, by check.
        failed: the checks it failed.
        bank: traces of the wrong answers, by entry, then by check.
        names: the diagnosis of each entry (forms of one mistake share it).

    Returns:
        Check → diagnosis. The mistake that agrees with the answer on the most checks wins; a
        check that it does not explain gets a diagnosis only if one other mistake alone does.
        Checks in which nothing but exceptions was seen count as explained only by a mistake that
        agrees everywhere: many mistakes crash alike.
    """
    agree = {
        entry: {c for c in traces if c in found and same_trace(traces[c], found[c])}
        for entry, found in bank.items()
    }
    telling = {check for check in failed if _says_something(traces.get(check, []))}
    explains = {
        entry: checks & (set(failed) if len(checks) == len(traces) else telling)
        for entry, checks in agree.items()
    }
    score: dict[str, int] = {}
    for entry, checks in explains.items():
        if checks:
            score[names[entry]] = max(score.get(names[entry], 0), len(agree[entry]))
    best = [name for name in score if score[name] == max(score.values())]
    result: dict[str, str] = {}
    for check in failed:
        able = {names[entry] for entry, checks in explains.items() if check in checks}
        if len(best) == 1 and best[0] in able:
            result[check] = best[0]
        elif len(able) == 1:
            result[check] = able.pop()
    return result
