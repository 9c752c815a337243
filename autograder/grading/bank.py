"""Keeps on disk how the wrong answers of the bank behave, so that no process finds it out twice."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from autograder.checking import Exercise
from autograder.diagnosis import Trace
from autograder.grading import keys
from autograder.grading.places import RESULTS
from autograder.guest.plain import Opaque

try:
    import fcntl
except ImportError:  # on Windows two processes may find out the same thing
    fcntl = None  # type: ignore[assignment]

Traces = dict[str, dict[str, Trace]]


def _path(exercise: Exercise, seed: int) -> Path:
    key = keys.digest(keys.grader(), keys.judgement(exercise.stem, exercise.name), seed)
    return RESULTS / "bank" / f"{exercise.id}-{key[:32]}.pt"


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
    """What is kept; None where it is nothing that can be read."""
    try:
        with torch.serialization.safe_globals([Opaque]):
            found: Traces = torch.load(_path(exercise, seed), weights_only=True)
    except Exception:
        # torch raises a dozen kinds for a damaged file; it is made anew
        return None
    return found


def write(exercise: Exercise, seed: int, traces: Mapping[str, Mapping[str, Trace]]) -> None:
    """Keep it, if that can be done; it only saves time."""
    path = _path(exercise, seed)
    with contextlib.suppress(OSError, RuntimeError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix="new-", suffix=".part")
        os.close(handle)
        try:
            torch.save({name: dict(found) for name, found in traces.items()}, beside)
            os.replace(beside, path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(beside)
