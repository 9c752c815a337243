"""What shows of files and folders without opening any: to walk through them, and to see changes.

A folder that was handed in may hold anything: a thousand levels, what nobody may look at, what is
gone a moment later. Nothing here ends a run over a class for it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

State = list[int]
"""What shows of a file that it was written to: its size, times, and which file it is."""


def state(path: str | Path) -> State:
    """What shows of a file, and of what a link leads to; [] where nothing can be seen of it."""
    try:
        states = [os.lstat(path)]
        if stat.S_ISLNK(states[0].st_mode) and os.path.exists(path):
            states.append(os.stat(path))
    except OSError:
        return []
    return [
        number
        for found in states
        for number in (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
    ]


def below(
    folder: str | Path,
    enters: Callable[[os.DirEntry[str]], bool] = lambda _entry: True,
    failed: Callable[[OSError], None] = lambda _error: None,
) -> Iterator[os.DirEntry[str]]:
    """All that lies in a folder, each folder before what lies in it; links are not followed.

    Not :func:`os.walk`: before Python 3.12 it calls itself for each level, up to Python's limit.

    Args:
        enters: whether to look into a folder.
        failed: is told of each folder that cannot be looked into.
    """
    waiting = [os.fspath(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            failed(error)
            continue
        for entry in entries:
            yield entry
            try:
                if entry.is_dir(follow_symlinks=False) and enters(entry):
                    waiting.append(entry.path)
            except OSError as error:
                failed(error)


def is_folder(path: str | Path) -> bool:
    """Whether a folder is there: itself, not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def remove(folder: Path) -> None:
    """Remove a folder with all that lies in it; of a link, the link.

    Raises:
        OSError: something cannot be removed.
    """
    for path in reversed([str(folder), *(entry.path for entry in below(folder))]):
        if is_folder(path):
            os.rmdir(path)
        else:
            os.unlink(path)
