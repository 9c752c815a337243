"""Keeps on disk what the checks ask, and how the wrong answers of the bank behave: no process finds
it out twice."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from autograder.checking import Exercise
from autograder.diagnosis import Trace
from autograder.grading import keys
from autograder.grading.places import RESULTS
from autograder.grading.recall import Script
from autograder.guest.plain import Opaque

try:
    import fcntl
except ImportError:  # on Windows two processes may find out the same thing
    fcntl = None  # type: ignore[assignment]

Traces = dict[str, dict[str, Trace]]


def _path(exercise: Exercise, seed: int, what: str = "") -> Path:
    key = keys.digest(keys.grader(), keys.judgement(exercise.stem, exercise.name), seed)
    return RESULTS / "bank" / f"{exercise.id}{what}-{key[:32]}.pt"


@contextlib.contextmanager
def claim(exercise: Exercise, seed: int, *, wait: bool) -> Iterator[bool]:
    """Hold the right to find it out; False where another process does. Ends with the process.

    Args:
        wait: until no other process does.
    """
    path = _path(exercise, seed).with_suffix(".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:  # nothing can be kept either
        yield True
        return
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    except OSError:  # a file system without locks
        yield True
    else:
        yield True
    finally:
        os.close(handle)


def read(exercise: Exercise, seed: int) -> Traces | None:
    """How the wrong answers behave, where it is kept; None where it is nothing that can be read."""
    found: Traces | None = _read(_path(exercise, seed))
    return found


def write(exercise: Exercise, seed: int, traces: Mapping[str, Mapping[str, Trace]]) -> None:
    """Keep how the wrong answers behave."""
    _write(_path(exercise, seed), {name: dict(found) for name, found in traces.items()})


def read_scripts(exercise: Exercise, seed: int) -> dict[str, Script] | None:
    """What the checks ask, by check, where it is kept."""
    found = _read(_path(exercise, seed, "-scripts"))
    if found is None:
        return None
    return {name: Script(tuple(ops), tuple(bodies), s) for name, (ops, bodies, s) in found.items()}


def write_scripts(exercise: Exercise, seed: int, scripts: Mapping[str, Script]) -> None:
    """Keep what the checks ask."""
    plain = {n: (list(s.operations), list(s.bodies), s.seconds) for n, s in scripts.items()}
    _write(_path(exercise, seed, "-scripts"), plain)


def _read(path: Path) -> Any:
    try:
        with torch.serialization.safe_globals([Opaque]):
            return torch.load(path, weights_only=True)
    except Exception:
        # torch raises a dozen kinds for a damaged file; it is made anew
        return None


def _write(path: Path, found: Any) -> None:
    # if that can be done; it only saves time
    with contextlib.suppress(OSError, RuntimeError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix="new-", suffix=".part")
        os.close(handle)
        try:
            torch.save(found, beside)
            os.replace(beside, path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(beside)
