"""Recognises a mistake: which wrong answer of the bank behaves as this one does, if any.

Every check leaves a trace of what the answer replied. A wrong answer of the bank is run through the
same checks on the same inputs, and traces are compared. Nothing is guessed from the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autograder.answer import Link, tried_on
from autograder.guest.plain import Callback, Opaque, tensors_in

Trace = list[Any]

# Two right computations of the same values in another order differ by rounding only: a few hundred
# units in the last place (float32: 1.2e-7, float16: 9.8e-4), relative to the largest value.
_ROUNDING = {torch.float16: 2e-2, torch.bfloat16: 1e-1}
_ROUNDING_DEFAULT = 5e-5
# Up to here float64 holds every int as it is.
_EXACT = 2**53


# Bytes of a trace's tensors: those of the bank have one megabyte at most. Traces are kept until the
# last check of an exercise is through.
_MAX_TRACE = 16 * 2**20


class Recorder:
    """A link that keeps what came back over it.

    Args:
        seed: of the calls that set none: each call gets its own, so that two answers draw the same
            random numbers (the weights of a new layer) wherever and after whatever they run.

    Attributes:
        trace: what came back, in order.
        trials: of a learner's test, what it was tried on, and whether it accepted that.
    """

    def __init__(self, link: Link, seed: int = 0) -> None:
        self._link, self._seed = link, seed
        self.trace: Trace = []
        self.trials: list[tuple[Callback, bool]] = []
        self._left = _MAX_TRACE

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Pass on, and remember the reply (of an error: only its type)."""
        if message.get("op") == "call" and message.get("seed") is None:
            message = {**message, "seed": self._seed + len(self.trace)}
        reply = self._link.request(message)
        implementation = tried_on(message)
        if implementation is not None:
            self.trials.append((implementation, "error" not in reply))
        if "error" in reply:
            self.trace.append({"error": reply["error"]})
        elif not self._has_room(reply):
            self.trace.append({"value": "more than a trace may hold"})
        else:
            self.trace.append({key: reply[key] for key in sorted(reply) if key != "meter"})
        return reply

    def _has_room(self, reply: dict[str, Any]) -> bool:
        size = sum(tensor.numel() * tensor.itemsize for tensor in tensors_in(reply))
        if size > self._left:
            return False
        self._left -= size
        return True


def same_trace(one: Trace | Prepared, other: Trace | Prepared) -> bool:
    """Whether two answers replied the same, up to rounding."""
    return prepared(one).agrees(prepared(other))


@dataclass(frozen=True)
class _Numbers:
    """The numbers of a trace in one row.

    Attributes:
        values: every number of the trace, (n,) float64; an int or float counts as one. Here and
            below, (m, n) for m traces with one skeleton.
        sizes: their absolute values.
        largest: of each number's tensor, the largest finite size; 0 for a number by itself.
        rounding: how far each may be off, relative to ``largest`` plus its own size.
        finite: whether all values are.
    """

    values: np.ndarray[Any, Any]
    sizes: np.ndarray[Any, Any]
    largest: np.ndarray[Any, Any]
    rounding: np.ndarray[Any, Any]
    finite: bool

    def near(self, other: _Numbers) -> np.ndarray[Any, Any]:
        """Which numbers are the same up to rounding, of two with one skeleton."""
        a, b = self.values, other.values
        with np.errstate(invalid="ignore", over="ignore"):
            allowed = np.maximum(self.rounding, other.rounding) * (
                np.maximum(self.largest, other.largest) + np.maximum(self.sizes, other.sizes)
            )
            near: np.ndarray[Any, Any] = np.abs(a - b) <= allowed
            if not (self.finite and other.finite):
                near &= np.isfinite(a) & np.isfinite(b)
                near |= (a == b) | (np.isnan(a) & np.isnan(b))
        return near


class Prepared:
    """A trace made ready to be compared with many others.

    Attributes:
        skeleton: everything but the numbers, in the order in which they stand in the row: the
            shapes of tensors too. Only where two are the same is more of either looked at, so a
            reply that is larger than any of the bank's is never copied.
    """

    def __init__(self, trace: Trace) -> None:
        skeleton: list[Any] = []
        parts: list[Tensor | float] = []
        _take_apart(trace, skeleton, parts)
        self.skeleton: tuple[Any, ...] = tuple(skeleton)
        self._parts = parts

    @cached_property
    def numbers(self) -> _Numbers:
        """The numbers, in the order of the skeleton."""
        numbers = _in_one_row(self._parts)
        self._parts = []
        return numbers

    def agrees(self, other: Prepared) -> bool:
        """Whether the other holds the same, up to rounding."""
        if self.skeleton != other.skeleton:
            return False
        return bool(self.numbers.near(other.numbers).all())


def prepared(trace: Trace | Prepared) -> Prepared:
    """A trace made ready to be compared with many others."""
    return trace if isinstance(trace, Prepared) else Prepared(trace)


def _take_apart(item: Any, skeleton: list[Any], parts: list[Tensor | float]) -> None:
    """Add an item to a skeleton, and what has numbers in it to the parts."""
    if isinstance(item, Tensor):
        skeleton.append(("tensor", tuple(item.shape), item.is_complex()))
        if item.numel():
            parts.append(item)
    elif type(item) is float or (type(item) is int and abs(item) < _EXACT):
        skeleton.append("number")
        parts.append(item)
    elif isinstance(item, Opaque):
        skeleton.append(Opaque)  # its number counts what was made before it
    elif type(item) in (list, tuple):
        skeleton.append(("items", len(item)))
        for part in item:
            _take_apart(part, skeleton, parts)
    elif isinstance(item, dict):
        skeleton.append(("keys", len(item)))
        for key in sorted(item):
            skeleton.append(key)
            _take_apart(item[key], skeleton, parts)
    else:
        skeleton.append((type(item), item))


def _in_one_row(parts: Sequence[Tensor | float]) -> _Numbers:
    rows: list[np.ndarray[Any, Any]] = []
    rounding: list[float] = []
    alone = np.array([not isinstance(part, Tensor) for part in parts], dtype=bool)
    for part in parts:
        if isinstance(part, Tensor):
            rows.append(_row(torch.view_as_real(part) if part.is_complex() else part))
            rounding.append(_ROUNDING.get(part.dtype, _ROUNDING_DEFAULT))
        else:
            rows.append(np.array([part], dtype=np.float64))
            # Two ints are equal or not; an int and a float may differ by rounding.
            rounding.append(_ROUNDING_DEFAULT if type(part) is float else 0.0)
    values = np.concatenate(rows) if rows else np.zeros(0)
    sizes = np.abs(values)
    finite = np.isfinite(sizes)
    lengths = np.array([row.size for row in rows], dtype=np.int64)
    largest = np.zeros(0)
    if lengths.size:
        starts = np.cumsum(lengths) - lengths
        largest = np.maximum.reduceat(np.where(finite, sizes, 0.0), starts)
        largest[alone] = 0.0
    return _Numbers(
        values,
        sizes,
        np.repeat(largest, lengths),
        np.repeat(np.array(rounding), lengths),
        bool(finite.all()),
    )


def _row(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Its numbers as float64, in one row."""
    if tensor.dtype == torch.bfloat16:  # numpy has none
        tensor = tensor.float()
    return tensor.detach().numpy().reshape(-1).astype(np.float64)


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
    traces: Mapping[str, Trace | Prepared], bank: Mapping[str, Mapping[str, Trace | Prepared]]
) -> dict[str, set[str]]:
    """By entry of the bank, the checks in which an answer replied as that entry does."""
    ready = {check: prepared(trace) for check, trace in traces.items()}
    return {
        entry: {c for c in ready if c in found and ready[c].agrees(prepared(found[c]))}
        for entry, found in bank.items()
    }


def agreements(bank: Mapping[str, Mapping[str, Trace]]) -> dict[str, dict[str, set[str]]]:
    """By entry of the bank, the checks in which each entry, itself included, replied as it did.

    The same as :func:`agreement` of each with all, in less time: what is the same to the last bit
    is compared once, and one with all others at a time.
    """
    agree: dict[str, dict[str, set[str]]] = {one: {other: set() for other in bank} for one in bank}
    for check in {check: None for found in bank.values() for check in found}:
        # by skeleton, then by all that the comparison depends on beside it
        groups: dict[Any, dict[Any, tuple[_Numbers, list[str]]]] = {}
        for entry, found in bank.items():
            if check in found:
                trace = prepared(found[check])
                same = groups.setdefault(trace.skeleton, {})
                numbers = trace.numbers
                content = (numbers.values.tobytes(), numbers.rounding.tobytes())
                same.setdefault(content, (numbers, []))[1].append(entry)
        for group in groups.values():
            alike = list(group.values())
            near = _all_with_all([numbers for numbers, _entries in alike])
            for (_one, entries), row in zip(alike, near, strict=True):
                for (_other, others), is_near in zip(alike, row, strict=True):
                    if is_near:
                        for entry in entries:
                            for other in others:
                                agree[entry][other].add(check)
    return agree


def _all_with_all(rows: Sequence[_Numbers]) -> np.ndarray[Any, Any]:
    """Which agree with which, of the numbers of traces with one skeleton; (n, n) bool."""
    n = len(rows)
    near = np.eye(n, dtype=bool)
    if n == 1 or not rows[0].values.size:
        return np.ones((n, n), dtype=bool)
    values, sizes, largest, rounding = (
        np.stack([getattr(row, name) for row in rows])
        for name in ("values", "sizes", "largest", "rounding")
    )
    finite = all(row.finite for row in rows)

    def those(which: int | slice) -> _Numbers:
        return _Numbers(values[which], sizes[which], largest[which], rounding[which], finite)

    for i in range(n - 1):
        rest = slice(i + 1, n)
        near[i, rest] = those(i).near(those(rest)).all(axis=1)
    return near | near.T


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
