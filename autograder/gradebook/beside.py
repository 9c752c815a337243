"""What lies beside a learner's notebook: the time stamp, and data, which go to ``autograded/``.

A learner may put anything there: a pipe that nobody writes to, a link to a device, a file that
nobody may read. Ordinary files alone are opened, links are not followed, and no more is read than
a limit allows. What cannot be had is said in a line, and costs nothing else.
"""

from __future__ import annotations

import errno
import os
import stat
from datetime import datetime
from pathlib import Path

from nbgrader.utils import parse_utc

from autograder.gradebook.listing import State, below, is_folder, remove, state
from autograder.i18n import _
from autograder.submissions import shown

_MOST = 2**22
"""Bytes of a file that goes along."""
_MOST_OF_A_STAMP = 1024


def handed_in_at(folder: Path) -> datetime | None:
    """The time in ``timestamp.txt``, in UTC, as nbgrader reads it; None where there is none.

    Raises:
        ValueError: the file is there, but holds no time that can be read. So does a link.
    """
    path = folder / "timestamp.txt"
    if not os.path.lexists(path):
        return None
    try:
        data = _read(path, _MOST_OF_A_STAMP)
        text = data.decode().strip()
        zone = text.split(" ")[2:3]
        if not text or len(data) > _MOST_OF_A_STAMP or any(map(_is_a_file_somewhere, zone)):
            raise ValueError
        found: datetime = parse_utc(text)
    except Exception:  # whatever a parser of any text raises
        raise ValueError(_("`timestamp.txt` holds no time that can be read.")) from None
    return found


def _is_a_file_somewhere(zone: str) -> bool:
    """Whether a time zone's name leads out of the folder of zones: it would be opened."""
    return os.path.isabs(zone.lstrip(":")) or ".." in zone.split("/")


class Beside:
    """The files beside a notebook that go along: ordinary ones, and small ones.

    Args:
        folder: the learner's.
        stem: the chapter; nothing is put at the place of its notebook.

    Attributes:
        files: what shows of each, by its path below the folder.
        failed: why something could not go along, by the same.
    """

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder, self._notebook = folder, f"{stem}.ipynb"
        self.files: dict[str, State] = {}
        self.failed: dict[str, str] = {}
        if not os.path.isdir(folder):
            return
        for entry in below(folder, self._enters, self._failed):
            if entry.name.lower().endswith((".ipynb", ".zip")):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError as error:
                self._failed(error)
                continue
            if stat.S_ISREG(status.st_mode) and status.st_size <= _MOST:
                self.files[os.path.relpath(entry.path, folder)] = state(entry.path)

    def copy_to(self, target: Path) -> list[Path]:
        """Copy them; what an earlier run left in the way is removed.

        Returns:
            The copies. What could not be copied is in ``failed``.
        """
        copies = []
        for name in self.files:
            try:
                data = _read(self._folder / name, _MOST)
                copy = free(target, name)
                copy.unlink(missing_ok=True)
                with copy.open("xb") as file:
                    file.write(data)
            except OSError as error:
                self.failed[name] = error.strerror or str(error)
            else:
                copies.append(copy)
        return copies

    def notes(self) -> tuple[str, ...]:
        """A line on what could not go along, if there is such."""
        if not self.failed:
            return ()
        name, reason = next(iter(self.failed.items()))
        more = len(self.failed) - 1
        text = (
            _("`{name}` and {more} more could not be copied beside the graded notebook: {reason}.")
            if more
            else _("`{name}` could not be copied beside the graded notebook: {reason}.")
        )
        return (text.format(name=shown.name(name), more=more, reason=reason),)

    def _enters(self, entry: os.DirEntry[str]) -> bool:
        if entry.name.startswith((".", "__")):
            return False
        # in any case: there are file systems to which it is the same
        return os.path.relpath(entry.path, self._folder).lower() != self._notebook.lower()

    def _failed(self, error: OSError) -> None:
        name = os.path.relpath(error.filename, self._folder)
        if name != os.curdir:  # of the folder itself more is said where its notebook is looked for
            self.failed[name] = error.strerror or str(error)


def free(folder: Path, name: str) -> Path:
    """A place below a folder of ours where a file can be put; other folders and links there go.

    Raises:
        OSError: something cannot be removed, or made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder
    *above, last = Path(name).parts
    for part in above:
        path /= part
        if not is_folder(path):
            path.unlink(missing_ok=True)
            path.mkdir()
    path /= last
    if is_folder(path):
        remove(path)
    return path


def _read(path: Path, most: int) -> bytes:
    """An ordinary file's bytes; of a longer one, one more than the most.

    Raises:
        OSError: it is no ordinary file, or cannot be read.
    """
    if stat.S_ISREG(path.lstat().st_mode):
        # what took its place meanwhile is not followed, and not waited for
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        with os.fdopen(os.open(path, flags | getattr(os, "O_BINARY", 0)), "rb") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file.read(most + 1)
    raise OSError(errno.EINVAL, _("not an ordinary file"), str(path))
