"""Runs a command as an ordinary user: ``python ordinary_user.py COMMAND...``, as root.

The user has no rights and no capabilities. Where Python itself lies in a folder that only root can
enter (root's home, say), a mount namespace of this process's own opens the way to it, and to it
alone; nothing outside changes.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

USER = 12_345
_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    texts = [None if text is None else text.encode() for text in (source, target, kind, options)]
    if libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3] or None) != 0:
        raise OSError(ctypes.get_errno(), f"mount {target}")


def _closed_to_others(path: Path) -> Path | None:
    for folder in reversed([path, *path.parents]):
        if not folder.stat().st_mode & 0o001:
            return folder
    return None


def open_the_way(path: Path) -> None:
    """Make a folder reachable for everyone, within this process's mount namespace."""
    closed = _closed_to_others(path)
    if closed is None:
        return
    held = os.open(path, os.O_PATH)
    _mount("tmpfs", str(closed), "tmpfs", 0, "mode=755")
    path.mkdir(parents=True)
    _mount(f"/proc/self/fd/{held}", str(path), None, _MS_BIND | _MS_REC)
    os.close(held)


def main() -> None:
    """Become the user, then the command."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    for prefix in {sys.base_prefix, sys.prefix, str(Path.cwd())}:
        open_the_way(Path(prefix).resolve())
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    os.environ["HOME"] = "/nonexistent"
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
