"""What the results of a whole submission depend on, remembered for the sources as they are.

Finding it out takes the chapter's checks, its bank and with them torch, for seconds. As long as no
source has changed, it is what it was.
"""

from __future__ import annotations

import hashlib
import json
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

from autograder import chapters, i18n
from autograder.grading.store import write_whole

# All that a key may depend on, below the repository: more than it does, and soon read.
_SOURCES = (
    "_toc.yml",
    "autograder/**/*.py",
    "autograder/locale/**/*.mo",
    "book/*.ipynb",
    "solutions/*.py",
)


@cache
def sources_now() -> str:
    """A hash of all that the results of this installation may depend on."""
    found = hashlib.sha256()
    for pattern in _SOURCES:
        for path in sorted(chapters.ROOT.glob(pattern)):
            data = path.read_bytes()
            found.update(f"{path.relative_to(chapters.ROOT)} {len(data)}\n".encode())
            found.update(data)
    found.update(f"{i18n.LANGUAGE} {sys.version_info[:2]} {version('torch')}".encode())
    return found.hexdigest()


class Wholes:
    """What the results of a chapter depend on, kept in a file.

    Args:
        path: the file; it only saves time.
        seed: the instructor's.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self._path, self._seed = path, seed
        self._known: dict[str, str] | None = None

    def of(self, stem: str, hints: tuple[str, ...]) -> str:
        """See :func:`autograder.grading.keys.chapter`; of no chapter where ``stem`` is ""."""
        if self._known is None:
            self._known = self._read()
        name = json.dumps([stem, self._seed, hints])
        if name not in self._known:
            self._known[name] = _found_out(stem, self._seed, hints)
            self._write()
        return self._known[name]

    def _read(self) -> dict[str, str]:
        try:
            kept = json.loads(self._path.read_bytes())
            if kept["sources"] == sources_now():
                return {str(name): str(whole) for name, whole in kept["wholes"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # nothing that can be read
        return {}

    def _write(self) -> None:
        text = json.dumps({"sources": sources_now(), "wholes": self._known})
        try:
            write_whole(self._path, text, durable=False)
        except OSError:
            return


def _found_out(stem: str, seed: int, hints: tuple[str, ...]) -> str:
    from autograder.grading import keys  # noqa: PLC0415 — see above
    from autograder.submissions.template import template  # noqa: PLC0415

    if not stem:
        return keys.digest(keys.grader(), hints)
    return keys.chapter(template(stem), seed, *hints)
