"""Recognises a mistake: which wrong answer of the bank behaves as this one does, if any.

Every check leaves a trace of what the answer replied. A wrong answer of the bank is run through the
same checks on the same inputs, and traces are compared. Nothing is guessed from the source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
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
    """A link that keeps what came back over it.

    Args:
        seed: of the calls that set none: each call gets its own, so that two answers draw the same
            random numbers (the weights of a new layer) wherever and after whatever they run.
    """

    def __init__(self, link: Link, seed: int = 0) -> None:
        self._link, self._seed = link, seed
        self.trace: Trace = []

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Pass on, and remember the reply (of an error: only its type)."""
        if message.get("op") == "call" and message.get("seed") is None:
            message = {**message, "seed": self._seed + len(self.trace)}
        reply = self._link.request(message)
        if "error" in reply:
            self.trace.append({"error": reply["error"]})
        else:
            self.trace.append({key: reply[key] for key in sorted(reply) if key != "meter"})
        return reply


def same_trace(one: Trace, other: Trace) -> bool:
    """Whether two answers replied the same, up to rounding."""
    return _same(prepared(one), prepared(other))


@dataclass(frozen=True)
class _Numbers:
    """A tensor as it is compared: in float64 (or complex128), with what rounding may do to it."""

    values: np.ndarray[Any, Any]
    sizes: np.ndarray[Any, Any]
    largest: float
    finite: bool
    rounding: float


def prepared(trace: Any) -> Any:
    """A trace whose tensors are made ready to be compared with many others."""
    if isinstance(trace, Tensor):
        wide = torch.complex128 if trace.dtype.is_complex else torch.float64
        values = trace.to(wide).numpy()
        sizes = np.abs(values)
        known = sizes[np.isfinite(sizes)]
        largest = float(known.max()) if known.size else 0.0
        rounding = _ROUNDING.get(trace.dtype, _ROUNDING_DEFAULT)
        return _Numbers(values, sizes, largest, known.size == sizes.size, rounding)
    if isinstance(trace, Opaque):
        return Opaque  # its number counts what was made before it
    if type(trace) in (list, tuple):
        return [prepared(item) for item in trace]
    if isinstance(trace, dict):
        return {key: prepared(item) for key, item in trace.items()}
    return trace


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, _Numbers) and isinstance(other, _Numbers):
        return _same_numbers(one, other)
    if isinstance(one, float) or isinstance(other, float):
        if not isinstance(one, int | float) or not isinstance(other, int | float):
            return False
        return (
            one == other
            or abs(one - other) <= _ROUNDING_DEFAULT * max(abs(one), abs(other))
            or (math.isnan(one) and math.isnan(other))
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)


def _same_numbers(one: _Numbers, other: _Numbers) -> bool:
    a, b = one.values, other.values
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    rounding = max(one.rounding, other.rounding)
    allowed = rounding * (max(one.largest, other.largest) + np.maximum(one.sizes, other.sizes))
    if one.finite and other.finite:
        return bool((np.abs(a - b) <= allowed).all())
    with np.errstate(invalid="ignore"):
        near = (a == b) | (np.isnan(a) & np.isnan(b))
        near |= np.isfinite(one.sizes) & np.isfinite(other.sizes) & (np.abs(a - b) <= allowed)
    return bool(near.all())


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
    return explain(agreement(traces, bank), traces, failed, names)


def agreement(
    traces: Mapping[str, Trace], bank: Mapping[str, Mapping[str, Trace]]
) -> dict[str, set[str]]:
    """By entry of the bank, the checks in which an answer replied as that entry does."""
    ready = {check: prepared(trace) for check, trace in traces.items()}
    return {
        entry: {c for c in ready if c in found and _same(ready[c], prepared(found[c]))}
        for entry, found in bank.items()
    }


def explain(
    agree: Mapping[str, set[str]],
    traces: Mapping[str, Trace],
    failed: Sequence[str],
    names: Mapping[str, str],
) -> dict[str, str]:
    """:func:`recognise` for an :func:`agreement` that is known already."""
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
