"""Whether everything is as the last run over a class left it: then there is nothing to do.

To find that out the long way takes nbgrader and torch, which are seconds in loading.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from glob import glob
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autograder.grading.places import RESULTS
from autograder.grading.store import write_whole
from autograder.grading.summary import Summary
from autograder.grading.wholes import sources_now

_SQLITE = "sqlite:///"

State = list[int]
"""What shows of a file that it was written to: its size, times, and which file it is."""


@dataclass
class Left:
    """What a run leaves behind.

    Attributes:
        summary: what it prints.
        db_url: of the gradebook.
        failure: why results could not be kept, or "".
        written: other files that it wrote.
    """

    summary: Summary
    db_url: str
    failure: str = ""
    written: list[Path] = field(default_factory=list)


class LastRun:
    """What the last run over a chapter's class depended on, and what it left.

    Args:
        stem: the chapter.
        options: what was asked for, as far as a grade depends on it.
        config: nbgrader's configuration; by what it says, not by the file that says it.
    """

    def __init__(self, stem: str, options: Sequence[Any], config: Any) -> None:
        self._path = RESULTS / "last-runs" / f"{stem}.json"
        depends = [
            sources_now(),
            version("nbgrader"),
            sys.version,
            os.getcwd(),
            stem,
            *options,
            repr(config),
        ]
        self._depends = hashlib.sha256(json.dumps(depends).encode()).hexdigest()

    def unchanged(self) -> Left | None:
        """What the last run left, where a run now would change nothing; else None."""
        try:
            kept = json.loads(self._path.read_bytes())
            if kept["depends"] != self._depends:
                return None
            known = kept["files"]
            if sorted(glob(kept["handed"])) != kept["folders"]:
                return None
            paths = {*known, *_below(kept["folders"])}
            if any(known.get(path) != _state(path) for path in paths):
                return None
            summary = Summary(kept["lines"], Counter(kept["statuses"]))
            return Left(summary, kept["db_url"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # nothing that can be read, or a file is gone

    def begin(self, handed: str) -> None:
        """Look at what is handed in, before any of it is read.

        Args:
            handed: a pattern of the learners' folders, as :mod:`glob` reads it.
        """
        self._path.unlink(missing_ok=True)
        self._handed, self._folders = handed, sorted(glob(handed))
        self._submitted = {path: _state(path) for path in _below(self._folders)}

    def end(self, left: Left, written: Iterable[Path]) -> None:
        """Remember a run that has done all that was to do.

        Args:
            written: the files that it wrote, or would have.
        """
        if not left.db_url.startswith(_SQLITE):
            return  # what another database holds does not show in a file
        books = Path(left.db_url.removeprefix(_SQLITE)).absolute()
        kept = {
            "depends": self._depends,
            "handed": self._handed,
            "folders": self._folders,
            "files": self._submitted | {path: _state(path) for path in map(str, [books, *written])},
            "lines": left.summary.lines,
            "statuses": left.summary.statuses,
            "db_url": left.db_url,
        }
        write_whole(self._path, json.dumps(kept), durable=False)


def _below(folders: Iterable[str]) -> list[str]:
    """The folders and all that lies in them."""
    found = []
    for folder in folders:
        found.append(folder)
        for here, inner, files in os.walk(folder):
            found += [os.path.join(here, name) for name in [*inner, *files]]
    return found


def _state(path: str) -> State:
    states = [os.lstat(path)]
    if os.path.islink(path) and os.path.exists(path):
        states.append(os.stat(path))
    return [
        number
        for state in states
        for number in (state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)
    ]
