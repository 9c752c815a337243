"""What the reference's kernels are held to, and whether a measurement shows it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from autograder.gpu.contenders import BACKENDS

LEAST_SHARE = 0.8
LONG, SHORT = 4096, 512
SLOPE, SLOPE_OFF = 1.0, 0.05


def slope(points: Iterable[tuple[float, float]]) -> float:
    """Exponent of a power law through points (x, y): least squares on the logarithms.

    Returns:
        NaN for fewer than two points.
    """
    logs = [(math.log(x), math.log(y)) for x, y in points]
    if len(logs) < 2:
        return math.nan
    x_mean, y_mean = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    spread = sum((x - x_mean) ** 2 for x, _ in logs)
    return sum((x - x_mean) * (y - y_mean) for x, y in logs) / spread


def judge(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The goals with what was seen.

    Args:
        found: ``checks``, ``times`` and ``memory`` of a measurement.

    Returns:
        For each goal ``asks``, ``seen`` and ``met``. A goal for which nothing was measured is not
        met.
    """
    checks = found["checks"]
    passed = sum(check["passed"] for check in checks)
    shares, gains = [], []
    for case in _cases(found["times"]):
        ours = case.get("ours")
        if ours is None:
            continue
        T, kind = ours["T"], ours["kind"]
        others = [case[name]["tflops"] for name in BACKENDS if name in case]
        if kind == "forward" and others and T >= LONG:
            shares.append(ours["tflops"] / max(others))
        if "plain" in case and T > SHORT:
            gains.append(ours["tflops"] / case["plain"]["tflops"])
    rows = [row for row in found["memory"] if row["implementation"] == "ours" and row["bytes"]]
    exponent = slope((row["T"], row["bytes"]) for row in rows)
    return [
        _goal(
            "the compiled kernels pass the chapter's checks and agree with float64",
            f"{passed} of {len(checks)}",
            bool(checks) and passed == len(checks),
        ),
        _goal(
            f"forward at least {LEAST_SHARE:.0%} of the fastest backend, T ≥ {LONG}",
            f"lowest {min(shares):.0%} of {len(shares)} cases" if shares else "not measured",
            bool(shares) and min(shares) >= LEAST_SHARE,
        ),
        _goal(
            f"never slower than three steps, T > {SHORT}",
            f"lowest gain {min(gains):.2f} of {len(gains)} cases" if gains else "not measured",
            bool(gains) and min(gains) >= 1,
        ),
        _goal(
            f"memory grows as T to the power of {SLOPE} ± {SLOPE_OFF}",
            "not measured" if math.isnan(exponent) else f"power of {exponent:.3f}",
            abs(exponent - SLOPE) <= SLOPE_OFF,
        ),
    ]


def _goal(asks: str, seen: str, met: bool) -> dict[str, Any]:
    return {"asks": asks, "seen": seen, "met": met}


def _cases(rows: Iterable[dict[str, Any]]) -> list[dict[str, dict[str, Any]]]:
    """Rows that were measured, by implementation, for each case."""
    cases: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["tflops"]:
            case = tuple(row[name] for name in ("kind", "dtype", "T", "d", "causal"))
            cases.setdefault(case, {})[row["implementation"]] = row
    return list(cases.values())
