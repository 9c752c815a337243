"""The allow-list of files: what a sandbox can read, and nothing else exists there.

Python's own library, installed packages, and the folders of the system libraries that Python uses.
Never this project's own packages, wherever they are installed: those hold checks and answers.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from autograder.engine.warm import linux

OWN_PACKAGES = ("autograder", "solutions", "book")
"""The project's import names; an installed copy of one is never part of a view."""

GUEST = str(Path(__file__).resolve().parents[2] / "guest")
"""The one folder of this project that a view has: the sandbox's side."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_FILES = (
    "/etc/ld.so.cache",
    "/etc/localtime",
    # torch asks there what the processor can do, and has no half precision where it cannot
    "/proc/cpuinfo",
    "/sys/devices/system/cpu/possible",
    "/sys/devices/system/cpu/present",
)
_TIME_ZONES = "/usr/share/zoneinfo"
SCRATCH = "/scratch"
"""A file system of the sandbox's own is mounted there. Not /tmp: Python or this project may lie
below it."""


def import_folders() -> list[str]:
    """The folders of ``sys.path`` that belong to this Python or to its packages."""
    prefixes = {
        os.path.realpath(prefix)
        for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
    }
    # A prefix such as /usr must not let in everything below it that a .pth file may name.
    homes = {
        os.path.realpath(path)
        for key, path in sysconfig.get_paths().items()
        if key in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    homes |= {os.path.join(prefix, "lib") for prefix in prefixes}
    if site.ENABLE_USER_SITE:
        homes.add(os.path.realpath(site.getusersitepackages()))
    found = []
    for entry in sys.path:
        path = os.path.realpath(entry) if entry else ""
        if os.path.isdir(path) and any(_below(path, home) for home in homes):
            found.append(path)
    return list(dict.fromkeys([*found, *sorted(h for h in homes if _is_library(h))]))


def _is_library(path: str) -> bool:
    return os.path.isdir(path) and os.path.basename(path) != "lib"


def library_folders() -> list[str]:
    """The folders of the system libraries that this process has mapped."""
    folders = set()
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if ".so" in path:
                folders.add(os.path.realpath(os.path.dirname("/" + path)))
    return sorted(folders)


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def readable() -> list[str]:
    """Every folder and file of the view, no folder below another."""
    folders = [*import_folders(), *library_folders(), _TIME_ZONES]
    top = [
        path
        for path in dict.fromkeys(folders)
        if os.path.isdir(path)
        and not any(path != other and _below(path, other) for other in folders)
    ]
    return top + [path for path in _FILES if os.path.exists(path)]


def hidden() -> list[str]:
    """The project's own packages where they lie in a folder of the view."""
    return [
        path
        for folder in import_folders()
        for name in OWN_PACKAGES
        for path in (os.path.join(folder, name), os.path.join(folder, name + ".py"))
        if os.path.lexists(path)
    ]


def readable_without_hidden() -> Iterator[str]:
    """The same view for Landlock, which cannot take anything out of a folder that it let in."""
    yield GUEST
    out = hidden()
    pending = readable()
    while pending:
        path = pending.pop()
        if path in out:
            continue
        if any(_below(item, path) for item in out):
            pending += [entry.path for entry in os.scandir(path)]
        else:
            yield path


def build(megabytes: int) -> None:
    """Replace the root of this mount namespace by the view. Needs the right to mount.

    Args:
        megabytes: size of the warm process's own scratch.
    """
    paths, masks = readable(), hidden()
    # Nothing that is mounted here must reach the file system outside.
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    root = _mount_point([*paths, GUEST])
    linux.mount("tmpfs", root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=1m")
    read_only = linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV
    for path in paths:
        _bind(path, root, read_only)
    for path in DEVICES:
        # a device on a mount that is read-only can still be written to, one on nodev not opened
        _bind(path, root, linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID)
    for path in masks:
        if os.path.isdir(path):
            linux.mount("tmpfs", root + path, "tmpfs", linux.MS_NOSUID, "mode=755,size=4k")
        else:
            linux.mount("/dev/null", root + path, None, linux.MS_BIND)
    _bind(GUEST, root, read_only)
    for path in masks:
        linux.mount_setattr(root + path, read_only, recursive=False)
    for link in ("/lib", "/lib64", "/lib32", "/usr/lib64"):
        if os.path.islink(link) and not os.path.lexists(root + link):
            os.makedirs(os.path.dirname(root + link), exist_ok=True)
            os.symlink(os.readlink(link), root + link)
    os.makedirs(root + SCRATCH, exist_ok=True)
    os.chdir(root)
    # The old root goes on top of the new one and is taken away: no path leads to it any more.
    linux.pivot_root(".", ".")
    linux.unmount(".")
    os.chdir("/")
    linux.mount_setattr("/", linux.MOUNT_ATTR_RDONLY, recursive=False)
    # The warm process changes its user after this; each sandbox mounts its own over it.
    mount_scratch(megabytes, mode="777")


def mount_scratch(megabytes: int, mode: str = "700") -> None:
    """A private, empty, small file system to write to; it ends with its mount namespace."""
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    options = f"mode={mode},size={megabytes}m,nr_inodes=2048"
    linux.mount("tmpfs", SCRATCH, "tmpfs", flags, options)


def _mount_point(paths: list[str]) -> str:
    """A folder to build the new root over, above none of the folders that go into it."""
    for folder in ("/mnt", "/media", "/srv", "/opt", "/tmp", "/run"):  # noqa: S108 — only mounted over
        if os.path.isdir(folder) and not any(_below(path, folder) for path in paths):
            return folder
    raise OSError("no folder to mount over: /mnt, /media and /srv are missing")


def _bind(path: str, root: str, attributes: int) -> None:
    target = root + path
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "a", encoding="utf-8"):
            pass
    linux.mount(path, target, None, linux.MS_BIND | linux.MS_REC)
    linux.mount_setattr(target, attributes)
