"""A list of the system calls that a sandbox may make; every other one does not exist there.

A filter is a little program in the kernel's BPF machine language that runs before each system
call. It sees the call's number, the machine's name and the six arguments, and ends with a verdict.
What numeric Python needs is short, so the list says what is allowed, not what is dangerous: a call
that a later kernel brings is refused as well. No maintained package on PyPI brings libseccomp
along, hence the few lines of assembler below.

Refused altogether: new processes and programs (fork, exec), signals to others, sockets, ptrace,
mounts, namespaces, keys, bpf, io_uring, shared memory by name, changes of owner, mode and limits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from autograder.engine.warm import linux

# Verdicts, from <linux/seccomp.h>; an error number goes into the low half.
_ALLOW = 0x7FFF_0000
_ERRNO = 0x0005_0000
_KILL_PROCESS = 0x8000_0000
_EPERM, _ENOSYS = 1, 38

# Instructions, from <linux/bpf_common.h>
_LOAD = 0x20  # accumulator = the 32-bit word at offset k of the call's data
_AND = 0x54  # accumulator &= k
_EQUAL = 0x15  # if accumulator == k skip jt instructions, else jf
_GREATER = 0x25  # the same for accumulator > k
_AT_LEAST = 0x35  # the same for accumulator >= k
_RETURN = 0x06  # end with verdict k

# Offsets into struct seccomp_data: number, machine, instruction pointer, six 64-bit arguments.
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
_AUDIT_MACHINE = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}

# name: (number on x86_64, number on aarch64); None where that machine has no such call.
ALLOWED: dict[str, tuple[int | None, int | None]] = {
    # reading and writing what is open
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66),
    "pread64": (17, 67), "pwrite64": (18, 68), "lseek": (8, 62), "close": (3, 57),
    "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "fsync": (74, 82),
    "fdatasync": (75, 83), "ftruncate": (77, 46), "fallocate": (285, 47),
    "fadvise64": (221, 223), "copy_file_range": (326, 285), "sendfile": (40, 71),
    "pipe": (22, None), "pipe2": (293, 59), "flock": (73, 32), "eventfd2": (290, 19),
    # files: which ones is decided by the mounts or by Landlock
    "open": (2, None), "openat": (257, 56), "creat": (85, None), "access": (21, None),
    "faccessat": (269, 48), "faccessat2": (439, 439), "stat": (4, None), "lstat": (6, None),
    "fstat": (5, 80), "newfstatat": (262, 79), "statx": (332, 291), "statfs": (137, 43),
    "fstatfs": (138, 44), "getdents": (78, None), "getdents64": (217, 61), "getcwd": (79, 17),
    "chdir": (80, 49), "fchdir": (81, 50), "readlink": (89, None), "readlinkat": (267, 78),
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None),
    "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "umask": (95, 166),
    # waiting
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    "epoll_create": (213, None), "epoll_create1": (291, 20), "epoll_ctl": (233, 21),
    "epoll_wait": (232, None), "epoll_pwait": (281, 22), "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115), "pause": (34, None), "restart_syscall": (219, 128),
    # memory
    "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216),
    "madvise": (28, 233), "brk": (12, 214), "msync": (26, 227),
    # threads of one's own (their making is ruled below)
    "futex": (202, 98), "set_robust_list": (273, 99), "get_robust_list": (274, 100),
    "rseq": (334, 293), "set_tid_address": (218, 96), "sched_yield": (24, 124),
    "membarrier": (324, 283), "exit": (60, 93), "exit_group": (231, 94),
    "sched_getaffinity": (204, 123), "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120), "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126), "getcpu": (309, 168),
    # signals to oneself
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137), "sigaltstack": (131, 132),
    "setitimer": (38, 103), "getitimer": (36, 102), "alarm": (37, None),
    # asking who and when
    "gettid": (186, 178), "getpid": (39, 172), "getppid": (110, 173), "getuid": (102, 174),
    "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "getgroups": (115, 158),
    "getpgrp": (111, None), "getpgid": (121, 155), "getsid": (124, 156),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "gettimeofday": (96, 169),
    "time": (201, None), "times": (100, 153), "getrandom": (318, 278), "uname": (63, 160),
    "sysinfo": (99, 179), "getrusage": (98, 165), "getrlimit": (97, 163),
    "arch_prctl": (158, None), "wait4": (61, 260), "waitid": (247, 95),
}  # fmt: skip

# Refused with "not permitted", which a learner's traceback shows, and not with "no such call".
DENIED: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "kill": (62, 129), "tkill": (200, 130), "socket": (41, 198), "connect": (42, 203),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "mount": (165, 40), "unshare": (272, 97), "setns": (308, 268), "chmod": (90, None),
    "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, None), "fchown": (93, 55),
    "fchownat": (260, 54), "setuid": (105, 146), "setgid": (106, 144), "link": (86, None),
    "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36), "mknod": (133, None),
    "mknodat": (259, 33), "utimensat": (280, 88), "memfd_create": (319, 279),
    # by path: before Linux 6.2 Landlock does not watch it
    "truncate": (76, 45),
    "setrlimit": (160, 164), "setpriority": (141, 140), "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
}  # fmt: skip

# Allowed for some arguments only.
_RULED = {
    "clone": (56, 220),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "tgkill": (234, 131),
    "socketpair": (53, 199),
}
_CLONE_THREAD = 0x1_0000
_CLONE_NEW = 0x7E02_0000  # every flag that asks for a new namespace
# F_DUPFD, GETFD, SETFD, GETFL, SETFL, GETLK, SETLK, SETLKW, DUPFD_CLOEXEC. Not F_SETOWN, which has
# the kernel send signals.
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 1030)
# TCGETS (isatty), TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX: the same on both machines.
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5451, 0x5450)
_PRCTL = (15, 16)  # PR_SET_NAME, PR_GET_NAME
_AF_UNIX = 1

_Code = list[tuple[int, int, int, int]]


def _op(code: int, k: int, jt: int = 0, jf: int = 0) -> tuple[int, int, int, int]:
    return code, jt, jf, k


def _argument(index: int, *, high: bool = False) -> tuple[int, int, int, int]:
    # both machines are little-endian: the low word stands first
    return _op(_LOAD, _ARGUMENTS + 8 * index + 4 * high)


def _if_equal_return(value: int, verdict: int) -> _Code:
    return [_op(_EQUAL, value, 0, 1), _op(_RETURN, verdict)]


def _any_of(index: int, values: Iterable[int]) -> _Code:
    """Allow if argument ``index`` is one of ``values``, refuse otherwise."""
    code = [_argument(index)]
    for value in values:
        code += _if_equal_return(value, _ALLOW)
    return [*code, _op(_RETURN, _ERRNO | _EPERM)]


def _rules(pid: int) -> dict[str, _Code]:
    """For each call in :data:`_RULED`, the code that ends in its verdict."""
    refuse = _op(_RETURN, _ERRNO | _EPERM)
    allow = _op(_RETURN, _ALLOW)
    return {
        # a thread of this process, in no new namespace; a new process is refused
        "clone": [
            _argument(0),
            _op(_AND, _CLONE_THREAD | _CLONE_NEW),
            _op(_EQUAL, _CLONE_THREAD, 0, 1),
            allow,
            refuse,
        ],
        "fcntl": _any_of(1, _FCNTL),
        "ioctl": _any_of(1, _IOCTL),
        "prctl": _any_of(0, _PRCTL),
        # reading one's own limits: pid 0 and no new limits (a null pointer, both halves)
        "prlimit64": [
            _argument(0),
            _op(_EQUAL, 0, 0, 5),
            _argument(2),
            _op(_EQUAL, 0, 0, 3),
            _argument(2, high=True),
            _op(_EQUAL, 0, 0, 1),
            allow,
            refuse,
        ],
        "tgkill": _any_of(0, (pid,)),
        "socketpair": _any_of(0, (_AF_UNIX,)),
    }


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of consecutive numbers: a shorter program than one test each."""
    ordered = sorted(numbers)
    first = 0
    for index, number in enumerate(ordered):
        if index + 1 == len(ordered) or ordered[index + 1] != number + 1:
            yield ordered[first], number
            first = index + 1


def _table(table: dict[str, tuple[int | None, int | None]], column: int, verdict: int) -> _Code:
    """End in ``verdict`` where the accumulator is one of the table's numbers."""
    code: _Code = []
    for first, last in _runs(n[column] or 0 for n in table.values() if n[column] is not None):
        # above the run: to the next one; below it: to the next one too, past the verdict
        code += [_op(_GREATER, last, 2, 0), _op(_AT_LEAST, first, 0, 1), _op(_RETURN, verdict)]
    return code


def supported() -> bool:
    """Whether the numbers above are known for this machine."""
    return linux.MACHINE in _AUDIT_MACHINE


def program(pid: int) -> bytes:
    """The filter for a process that knows itself as ``pid``."""
    column = 0 if linux.MACHINE == "x86_64" else 1
    code: _Code = [
        # Another machine's numbers (32-bit calls on x86_64) would mean other calls.
        _op(_LOAD, _MACHINE),
        _op(_EQUAL, _AUDIT_MACHINE[linux.MACHINE], 1, 0),
        _op(_RETURN, _KILL_PROCESS),
        _op(_LOAD, _NUMBER),
    ]
    code += _table(ALLOWED, column, _ALLOW)
    code += _table(DENIED, column, _ERRNO | _EPERM)
    for name, rule in _rules(pid).items():
        code += [_op(_EQUAL, _RULED[name][column], 0, len(rule)), *rule]
    # clone3 hides its flags from filters; "no such call" makes libc use clone
    code.append(_op(_RETURN, _ERRNO | _ENOSYS))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)
