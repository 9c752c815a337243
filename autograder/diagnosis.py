"""Recognises a mistake: which wrong answer of the bank behaves as this one does, if any.

Every check leaves a trace of what the answer replied. A wrong answer of the bank is run through the
same checks on the same inputs, and traces are compared. Nothing is guessed from the source.
"""

from __future__ import annotations

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
# Up to here float64 holds every int as it is.
_EXACT = 2**53


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

    def note(self, fact: Any) -> None:
        """Remember what a check found out, see :meth:`autograder.answer.Answer.note`."""
        self.trace.append({"value": fact})


def same_trace(one: Trace | Prepared, other: Trace | Prepared) -> bool:
    """Whether two answers replied the same, up to rounding."""
    return prepared(one).agrees(prepared(other))


@dataclass(frozen=True)
class Prepared:
    """A trace made ready to be compared with many others: its numbers in one row.

    Attributes:
        skeleton: everything but the numbers, in the order in which they stand in the row.
        values: every number of the trace, (n,) float64; an int or float counts as one. Here and
            below, (m, n) for m traces with one skeleton.
        sizes: their absolute values.
        largest: of each number's tensor, the largest finite size; 0 for a number by itself.
        rounding: how far each may be off, relative to ``largest`` plus its own size.
        finite: whether all values are.
    """

    skeleton: tuple[Any, ...]
    values: np.ndarray[Any, Any]
    sizes: np.ndarray[Any, Any]
    largest: np.ndarray[Any, Any]
    rounding: np.ndarray[Any, Any]
    finite: bool

    def agrees(self, other: Prepared) -> bool:
        """Whether the other holds the same, up to rounding."""
        if self.skeleton != other.skeleton:
            return False
        return bool(self.near(other).all())

    def near(self, other: Prepared) -> np.ndarray[Any, Any]:
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


def prepared(trace: Trace | Prepared) -> Prepared:
    """A trace made ready to be compared with many others."""
    if isinstance(trace, Prepared):
        return trace
    skeleton: list[Any] = []
    rows: list[np.ndarray[Any, Any]] = []
    rounding: list[float] = []
    alone: list[bool] = []  # whether it is a number by itself

    def walk(item: Any) -> None:
        if isinstance(item, Tensor):
            skeleton.append(("tensor", tuple(item.shape), item.is_complex()))
            row = torch.view_as_real(item) if item.is_complex() else item
            if row.numel():
                rows.append(_row(row))
                rounding.append(_ROUNDING.get(item.dtype, _ROUNDING_DEFAULT))
                alone.append(False)
        elif type(item) is float or (type(item) is int and abs(item) < _EXACT):
            skeleton.append("number")
            rows.append(np.array([item], dtype=np.float64))
            # Two ints are equal or not; an int and a float may differ by rounding.
            rounding.append(_ROUNDING_DEFAULT if type(item) is float else 0.0)
            alone.append(True)
        elif isinstance(item, Opaque):
            skeleton.append(Opaque)  # its number counts what was made before it
        elif type(item) in (list, tuple):
            skeleton.append(("items", len(item)))
            for part in item:
                walk(part)
        elif isinstance(item, dict):
            skeleton.append(("keys", len(item)))
            for key in sorted(item):
                skeleton.append(key)
                walk(item[key])
        else:
            skeleton.append((type(item), item))

    walk(trace)
    values = np.concatenate(rows) if rows else np.zeros(0)
    sizes = np.abs(values)
    finite = np.isfinite(sizes)
    lengths = np.array([row.size for row in rows], dtype=np.int64)
    largest = np.zeros(0)
    if lengths.size:
        starts = np.cumsum(lengths) - lengths
        largest = np.maximum.reduceat(np.where(finite, sizes, 0.0), starts)
        largest[np.array(alone)] = 0.0
    return Prepared(
        tuple(skeleton),
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
        groups: dict[Any, dict[Any, tuple[Prepared, list[str]]]] = {}
        for entry, found in bank.items():
            if check in found:
                trace = prepared(found[check])
                same = groups.setdefault(trace.skeleton, {})
                content = (trace.values.tobytes(), trace.rounding.tobytes())
                same.setdefault(content, (trace, []))[1].append(entry)
        for group in groups.values():
            alike = list(group.values())
            near = _all_with_all([trace for trace, _entries in alike])
            for (_one, entries), row in zip(alike, near, strict=True):
                for (_other, others), is_near in zip(alike, row, strict=True):
                    if is_near:
                        for entry in entries:
                            for other in others:
                                agree[entry][other].add(check)
    return agree


def _all_with_all(traces: Sequence[Prepared]) -> np.ndarray[Any, Any]:
    """Which agree with which, of traces with one skeleton; (n, n) bool."""
    n = len(traces)
    near = np.eye(n, dtype=bool)
    if n == 1 or not traces[0].values.size:
        return np.ones((n, n), dtype=bool)
    values, sizes, largest, rounding = (
        np.stack([getattr(trace, name) for trace in traces])
        for name in ("values", "sizes", "largest", "rounding")
    )
    finite = all(trace.finite for trace in traces)

    def those(which: int | slice) -> Prepared:
        return Prepared(
            traces[0].skeleton,
            values[which],
            sizes[which],
            largest[which],
            rounding[which],
            finite,
        )

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
