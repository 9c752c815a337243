"""Keeps results on disk by content, so that an interrupted run goes on where it stopped.

One file a submission, named by the hash of its bytes, the seed, and how it is read. It is written
beside its place and moved there, so that it is whole or not there at all, whatever happens
meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autograder.grading.graded import Graded
from autograder.results import CheckResult, ExerciseResult, SubmissionResult

FORMAT = 2


def to_plain(graded: Graded, whole: str = "") -> dict[str, Any]:
    """A result as JSON keeps it.

    Args:
        whole: what all of it depends on; "" where a part is still to be made.
    """
    result = graded.result
    return {
        "format": FORMAT,
        "whole": whole,
        "chapter": result.chapter,
        "status": result.status,
        "notes": list(result.notes),
        "seconds": round(result.seconds, 3),
        "exercises": [
            {
                "id": item.id,
                "key": graded.keys.get(item.id, ""),
                "seconds": round(graded.seconds.get(item.id, 0.0), 3),
                "checks": [asdict(check) for check in item.checks],
            }
            for item in result.exercises
        ],
        "again": list(graded.again),
        "failed": graded.failed,
    }


def from_plain(kept: dict[str, Any]) -> Graded:
    """A result as it was kept.

    Raises:
        KeyError, TypeError: it is of another format.
    """
    if kept["format"] != FORMAT:
        raise KeyError("format")
    exercises = tuple(
        ExerciseResult(item["id"], tuple(CheckResult(**check) for check in item["checks"]))
        for item in kept["exercises"]
    )
    result = SubmissionResult(
        "", kept["chapter"], kept["status"], exercises, tuple(kept["notes"]), kept["seconds"]
    )
    return Graded(
        result,
        {item["id"]: item["key"] for item in kept["exercises"] if item["key"]},
        {item["id"]: item["seconds"] for item in kept["exercises"]},
        tuple(kept["again"]),
        kept["failed"],
    )


class Store:
    """The kept results below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failure = ""

    def path(self, data: bytes, seed: int, expected: str = "", read_as: str = "") -> Path:
        """Where the result of a submission is kept.

        Args:
            data: its bytes.
            seed: the instructor's.
            expected: the chapter that it must be of.
            read_as: what else decides how it is read.
        """
        name = hashlib.sha256(data).hexdigest()
        suffix = f"-{expected}" if expected else ""
        return self.folder / name[:2] / f"{name[2:]}-{seed}{suffix}{read_as}.json"

    def read(self, path: Path) -> tuple[Graded, str] | None:
        """What is kept there, and what it depends on; None where it is nothing that can be read."""
        try:
            kept = json.loads(path.read_bytes())
            return from_plain(kept), kept["whole"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, path: Path, graded: Graded, whole: str) -> bool:
        """Keep a result; whether that worked. A full disk ends no run: ``failure`` says it."""
        # in ASCII: half a surrogate pair in a learner's text cannot be written otherwise
        text = json.dumps(to_plain(graded, whole)) + "\n"
        try:
            write_whole(path, text)
        except OSError as error:
            self.failure = error.strerror or str(error)
            return False
        return True


def write_whole(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a file so that it is there whole or not at all.

    Args:
        durable: and stays there after a power cut, which takes a millisecond.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    if durable:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
