"""Folders for the sandboxes that have no file system of their own, and the removal of what is left.

A run that is killed cannot clean up. So every folder is locked by the process that made it for as
long as that lives, and the next run removes the folders that nobody holds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from dataclasses import dataclass

try:
    import fcntl
except ImportError:  # elsewhere than on POSIX nothing is removed
    fcntl = None  # type: ignore[assignment]

_PREFIX = "autograder-"
# A folder is made first and locked then.
_YOUNG_SECONDS = 60.0


@dataclass
class Scratch:
    """A folder of this process.

    Attributes:
        path: where it is.
    """

    path: str
    _lock: int = -1

    def remove(self) -> None:
        """Remove it, with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def make(owner: int | None = None) -> Scratch:
    """A new folder, empty and private; those of dead runs are removed.

    Args:
        owner: the user who will write there, if another one.
    """
    _remove_left(owner)
    folder = tempfile.mkdtemp(prefix=_PREFIX)
    lock = -1
    if fcntl is not None:
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a file system without locks: it may stay behind
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    if owner is not None:
        os.chown(folder, owner, owner)
    return Scratch(folder, lock)


def _remove_left(owner: int | None) -> None:
    if os.name != "posix":
        return
    mine = {os.geteuid(), owner}
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if not entry.name.startswith(_PREFIX) or not entry.is_dir(follow_symlinks=False):
                continue
            with contextlib.suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                if found.st_uid in mine and time.time() - found.st_ctime > _YOUNG_SECONDS:
                    _remove_if_free(entry.path)


def _remove_if_free(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(handle)
