"""Linux calls that Python 3.11 does not offer, each with an error that says which call failed."""

from __future__ import annotations

import ctypes
import os
import platform

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

# From <linux/sched.h>
CLONE_NEWNS = 0x0002_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

# From <linux/mount.h>
MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x4_0000
MNT_DETACH = 0x2
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000

# From <linux/prctl.h>
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38

MADV_COLLAPSE = 25

# Numbers of system calls without a function in libc: first those that differ by machine.
MACHINE = platform.machine()
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}.get(MACHINE, -1)
_SECCOMP = {"x86_64": 317, "aarch64": 277}.get(MACHINE, -1)
_CAPSET = {"x86_64": 126, "aarch64": 91}.get(MACHINE, -1)
_CLOSE_RANGE = 436
_MOUNT_SETATTR = 442
LANDLOCK_CREATE_RULESET = 444
LANDLOCK_ADD_RULE = 445
LANDLOCK_RESTRICT_SELF = 446


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def syscall(what: str, number: int, *args: object) -> int:
    """Any system call; ``what`` names it in the error."""
    wide = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    return _checked(_libc.syscall(ctypes.c_long(number), *wide), what)


def unshare(flags: int) -> None:
    """Move this process (for CLONE_NEWPID: its next child) into new namespaces."""
    _checked(_libc.unshare(flags), "unshare")


_with_the_lock = ctypes.PyDLL(None, use_errno=True)


def fork() -> int:
    """``os.fork`` without Python's own preparations, for a process of one thread.

    ``os.fork`` renews the locks of logging and threading, which a lone thread cannot have left
    locked, and reseeds random, which we seed. In doing so it writes to some 300 pages, each of
    which the kernel must copy: a third of what a fork costs. The C library's own preparations run.
    """
    return _checked(_with_the_lock.fork(), "fork")


def setns(fd: int, kind: int) -> None:
    """Enter the namespace behind a descriptor."""
    _checked(_libc.setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mount a file system, or bind a folder to another place."""
    text = [None if item is None else os.fsencode(item) for item in (source, target, kind, options)]
    result = _libc.mount(text[0], text[1], text[2], ctypes.c_ulong(flags), text[3] or None)
    _checked(result, f"mount {target}")


def unmount(target: str) -> None:
    """Take a mount out of the tree now, and away when nobody uses it any longer."""
    _checked(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def mount_setattr(target: str, attributes: int, *, recursive: bool = True) -> None:
    """Add attributes (read-only, no devices) to a mount and, by default, to all below it."""
    attr = _MountAttr(attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    path = ctypes.c_char_p(os.fsencode(target))
    size = ctypes.sizeof(attr)
    syscall("mount_setattr", _MOUNT_SETATTR, _AT_FDCWD, path, flags, ctypes.byref(attr), size)


def pivot_root(new_root: str, put_old: str) -> None:
    """Make a mount the root of this mount namespace."""
    new, old = (ctypes.c_char_p(os.fsencode(item)) for item in (new_root, put_old))
    syscall("pivot_root", _PIVOT_ROOT, new, old)


def _prctl(what: str, *args: int) -> int:
    return _checked(_libc.prctl(*[ctypes.c_ulong(arg) for arg in (*args, 0, 0, 0, 0)][:5]), what)


def die_with_parent(signal_number: int) -> None:
    """Be sent a signal when the parent ends. A change of user id clears this: call it after."""
    _prctl("prctl PDEATHSIG", _PR_SET_PDEATHSIG, signal_number)


def set_dumpable(on: bool) -> None:
    """Whether other processes of this user may read this one's memory and /proc entry."""
    _prctl("prctl DUMPABLE", _PR_SET_DUMPABLE, int(on))


def no_new_privileges() -> None:
    """Nothing that this process starts can gain rights; seccomp and Landlock require it."""
    _prctl("prctl NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


def drop_capabilities() -> None:
    """Give up every capability. Only a program could bring one back: forbid new privileges too."""
    header = _CapHeader(0x2008_0522, 0)  # _LINUX_CAPABILITY_VERSION_3: two words of each set
    syscall("capset", _CAPSET, ctypes.byref(header), ctypes.byref((_CapData * 2)()))


def close_all_but(*keep: int) -> None:
    """Close every descriptor from 3 on, except these."""
    start = 3
    for fd in [*sorted(keep), 2**31]:
        if fd > start:
            syscall("close_range", _CLOSE_RANGE, start, min(fd, 2**31) - 1, 0)
        start = max(start, fd + 1)


class _SockFilter(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint16),
        ("jt", ctypes.c_uint8),
        ("jf", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    ]


class _SockFprog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.POINTER(_SockFilter))]


def install_seccomp(program: bytes) -> None:
    """Put a filter (instructions of 8 bytes each) in front of every later system call."""
    count = len(program) // ctypes.sizeof(_SockFilter)
    instructions = (_SockFilter * count).from_buffer_copy(program)
    prog = _SockFprog(count, instructions)
    set_mode_filter = 1
    syscall("seccomp", _SECCOMP, set_mode_filter, 0, ctypes.byref(prog))


def collapse_to_huge_pages(start: int, length: int) -> bool:
    """Ask for 2 MB pages where memory lies now: a fork then copies far fewer page-table entries."""
    result = _libc.madvise(
        ctypes.c_void_p(start), ctypes.c_size_t(length), ctypes.c_int(MADV_COLLAPSE)
    )
    return bool(result == 0)


def trim_heap() -> None:
    """Give free memory of the C heap back (glibc only)."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
