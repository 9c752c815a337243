"""An allow-list of files without namespaces: the second tier's walls.

Landlock (Linux 5.13 and later) lets a process give up, for itself and all that it starts, access to
every file outside a list. From ABI 6 on (Linux 6.12) it also forbids signals to processes outside.
Needs no rights. See <https://docs.kernel.org/userspace-api/landlock.html>.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from autograder.engine.warm import linux

# Rights over files, from <linux/landlock.h>
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_FILE, _MAKE_REG, _TRUNCATE = 1 << 5, 1 << 8, 1 << 14
_READ = _READ_FILE | _READ_DIR
# Plain files in one flat folder: what must be cleared away stays easy to clear away.
_SCRATCH = _READ | _WRITE_FILE | _REMOVE_FILE | _MAKE_REG | _TRUNCATE
_RIGHTS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_NET = 0b11  # bind and connect TCP, from ABI 4
_SCOPED = 0b11  # abstract sockets and signals, from ABI 6
_PATH_BENEATH = 1
SIGNALS_SINCE = 6


class _Ruleset(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("files", "net", "scoped")]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def abi() -> int:
    """The kernel's version of Landlock; 0 where there is none."""
    version_flag = 1
    try:
        return linux.syscall(
            "landlock", linux.LANDLOCK_CREATE_RULESET, ctypes.c_void_p(None), 0, version_flag
        )
    except OSError:
        return 0


def confine(
    readable: Iterable[str], devices: Iterable[str] = (), scratch: str | None = None
) -> None:
    """From here on, reach nothing but these. ``no_new_privs`` must be set.

    Args:
        readable: folders (with all below) and files to read.
        devices: files to read and write.
        scratch: a folder to make, write and remove plain files in.

    Called a second time, the rights of both lists' intersection remain.
    """
    version = abi()
    handled = _RIGHTS_BY_ABI[max(known for known in _RIGHTS_BY_ABI if known <= version)]
    attr = _Ruleset(handled, _NET if version >= 4 else 0, _SCOPED if version >= 6 else 0)
    # an older kernel knows a shorter structure and refuses one that is longer
    size = 8 * (1 if version < 4 else 2 if version < 6 else 3)
    ruleset = linux.syscall("landlock", linux.LANDLOCK_CREATE_RULESET, ctypes.byref(attr), size, 0)
    try:
        for path in readable:
            _allow(ruleset, path, _READ & handled)
        for path in devices:
            _allow(ruleset, path, (_READ_FILE | _WRITE_FILE) & handled)
        if scratch is not None:
            _allow(ruleset, scratch, _SCRATCH & handled)
        linux.syscall("landlock", linux.LANDLOCK_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return  # what is not there, or may not be read anyway, needs no rule
    try:
        if not os.path.isdir(path):
            rights &= ~_READ_DIR
        rule = _PathBeneath(rights, fd)
        linux.syscall(
            "landlock", linux.LANDLOCK_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0
        )
    finally:
        os.close(fd)
