"""Whether everything is as the last run over a class left it: then there is nothing to do.

To find that out the long way takes nbgrader and torch, which are seconds in loading.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from glob import glob
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autograder import chapters
from autograder.gradebook.listing import below, state
from autograder.grading.places import RESULTS
from autograder.grading.store import write_whole
from autograder.grading.summary import Summary
from autograder.grading.wholes import sources_now

# A class in the configuration, by the path it is imported by: quoted, in whatever it lies.
_NAMED = re.compile(r"""(['"])([^\W\d]\w*(?:\.[^\W\d]\w*)+)\1""")


@dataclass
class Left:
    """What a run leaves behind.

    Attributes:
        summary: what it prints.
        db_url: of the gradebook.
        failure: why results could not be kept, or "".
        written: other files that it wrote.
        partly: learners of whose folder in ``autograded/`` something could not be written.
    """

    summary: Summary
    db_url: str
    failure: str = ""
    written: list[Path] = field(default_factory=list)
    partly: list[str] = field(default_factory=list)


class LastRun:
    """What the last run over a chapter's class depended on, and what it left.

    Args:
        stem: the chapter.
        options: what was asked for, as far as a grade depends on it.
        config: nbgrader's configuration: what it says, and the code that it names.
    """

    def __init__(self, stem: str, options: Sequence[Any], config: Any) -> None:
        self._path = RESULTS / "last-runs" / f"{stem}.json"
        depends = [
            sources_now(),
            version("nbgrader"),
            sys.version,
            os.getcwd(),
            *_whoever_runs_this(),
            stem,
            *options,
            repr(config),
            {path: state(path) for path in _code_of(repr(config))},
        ]
        self._depends = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()

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
            if any(known.get(path) != state(path) for path in paths):
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
        self._submitted = {path: state(path) for path in _below(self._folders)}

    def end(self, left: Left, written: Iterable[str | Path]) -> None:
        """Remember a run that has done all that was to do.

        Args:
            written: the files that it wrote, or would have.
        """
        books = _books(left.db_url)
        files = {path: state(path) for path in map(str, [*books[:1], *written])}
        if not books or not all(files.values()):
            return  # what another database holds does not show in a file; or one is gone again
        kept = {
            "depends": self._depends,
            "handed": self._handed,
            "folders": self._folders,
            "files": self._submitted | files | {path: state(path) for path in books},
            "lines": left.summary.lines,
            "statuses": left.summary.statuses,
            "db_url": left.db_url,
        }
        with suppress(OSError):  # all is written; this only saves time
            write_whole(self._path, json.dumps(kept), durable=False)


def _books(db_url: str) -> list[str]:
    """The files of a gradebook, and where SQLite puts first what goes into it; [] if not known."""
    from sqlalchemy.engine import make_url  # noqa: PLC0415 — a run that changes nothing needs none

    url = make_url(db_url)
    if url.get_backend_name() != "sqlite" or not url.database:
        return []
    path = os.path.abspath(url.database)
    return [path, f"{path}-wal"]


def _below(folders: Iterable[str]) -> list[str]:
    """The folders and all that lies in them."""
    return [*folders, *(entry.path for folder in folders for entry in below(folder))]


def _whoever_runs_this() -> Iterator[Any]:
    """What may be read depends on it."""
    for name in ("geteuid", "getegid", "getgroups"):
        if hasattr(os, name):  # not everywhere
            yield getattr(os, name)()


def _code_of(config: str) -> Iterator[str]:
    """The files of the configuration and of the modules that it names; none is imported for it."""
    yield str(chapters.ROOT / "nbgrader_config.py")
    for name in {found[1] for found in _NAMED.findall(config)}:
        module, folders = "", None
        for part in name.split("."):
            module = f"{module}.{part}" if module else part
            spec = _found(module, folders)
            if spec is None:
                break
            if spec.has_location and spec.origin:
                yield spec.origin
            folders = spec.submodule_search_locations
            if folders is None:
                break


def _found(module: str, folders: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        with suppress(Exception):  # a configuration may quote anything
            spec = finder.find_spec(module, folders)
            if spec is not None:
                return spec
    return None
