"""Finds the submissions in what an instructor names: a notebook, a folder, a zip.

A folder may be nbgrader's ``submitted/`` or a learning platform's download, a zip may hold zips
(one a learner). Nothing is unpacked to disk: a member is read into memory, up to a limit, when its
turn comes. What is refused gets a row that says so: nothing is passed over in silence.
"""

from __future__ import annotations

import io
import os
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from autograder.i18n import _
from autograder.submissions import shown
from autograder.submissions.read import Unreadable

MAX_FILE = 32 * 2**20
"""Bytes of one submission; a notebook with every plot in it has a few million."""
MAX_INNER_ZIP = 128 * 2**20
MAX_MEMBERS = 20_000

# A notebook, and what a browser or a mail program makes of its name.
_NOTEBOOKS = (".ipynb", ".ipynb.txt", ".ipynb.json", ".zip")
_SCRIPT = ".py"
# What people hand in by mistake; other files beside notebooks are data and need no word.
_DOCUMENTS = (
    *(".pdf", ".doc", ".docx", ".odt", ".rtf", ".pages", ".html", ".htm"),
    *(".rar", ".7z", ".tar", ".gz", ".png", ".jpg", ".jpeg", ".heic"),
)
_IGNORED_FOLDERS = {"__MACOSX", "__pycache__"}
_IGNORED_FILES = {"timestamp.txt", "desktop.ini", "thumbs.db"}


@dataclass(frozen=True)
class Submission:
    """One submission: a name for its row, and how to get its bytes.

    Attributes:
        name: its path below what was named, with ``/``; numbered where there are several such.
        refused: why it is not read, or "".
        size: bytes, as announced.
        number: of the row among those of the same path.
    """

    name: str
    load: Callable[[], bytes]
    refused: str = ""
    size: int = 0
    number: int = 1

    @property
    def file_name(self) -> str:
        """The last part of its path."""
        name = PurePosixPath(self.name).name
        return name if self.number == 1 else name.removesuffix(f" ({self.number})")

    def data(self) -> bytes:
        """Its bytes.

        Raises:
            Unreadable: it is refused, or cannot be read; the text says why.
        """
        if self.refused:
            raise Unreadable(self.refused)
        try:
            return self.load()
        except OSError as error:
            raise Unreadable(
                _("The file cannot be read: {reason}.").format(reason=error.strerror or "error")
            ) from None


def find(paths: Iterable[Path]) -> list[Submission]:
    """All submissions below some paths, in a stable order, each name once.

    Raises:
        FileNotFoundError: a path does not exist.
    """
    found: list[Submission] = []
    for path in paths:
        if not os.path.lexists(path):
            raise FileNotFoundError(path)
        if path.is_dir():
            found += sorted(_in_folder(path), key=lambda item: item.name)
        else:
            found += sorted(_in_file(path, path.name), key=lambda item: item.name)
    return _distinct(found)


def _distinct(found: list[Submission]) -> list[Submission]:
    """Give every row a name that can be shown, and that no other row has."""
    found = [
        replace(item, name=shown.name(item.name), refused=shown.one_line(item.refused))
        for item in found
    ]
    taken = {item.name for item in found}
    seen: dict[str, int] = {}
    result = []
    for item in found:
        number = seen.get(item.name, 0) + 1
        name = item.name
        while number > 1 and (name := f"{item.name} ({number})") in taken:
            number += 1
        seen[item.name] = number
        taken.add(name)
        result.append(replace(item, name=name, number=number))
    return result


def _nothing() -> bytes:
    return b""


def _refuse(name: str, why: str) -> Submission:
    return Submission(name, _nothing, refused=why)


def _in_folder(root: Path) -> Iterator[Submission]:
    holders: set[Path] = set()
    for folder, folders, all_files in os.walk(root, followlinks=False):
        here = Path(folder)
        for name in sorted(folders):
            if (here / name).is_symlink():
                relative = (here / name).relative_to(root).as_posix()
                yield _refuse(relative, _("This is a symbolic link; it is not followed."))
        folders[:] = sorted(
            n for n in folders if not _ignored_folder(n) and not (here / n).is_symlink()
        )
        files = sorted(name for name in all_files if not _ignored_file(name))
        wanted, wrong = _sorted_out(files, alone=here != root and not folders)
        if here == root and not folders and not wanted:
            wrong = files
        below = any(parent in holders for parent in here.parents)
        for name in wanted:
            yield from _in_file(here / name, (here / name).relative_to(root).as_posix())
        if here == root:
            for name in wrong:
                yield _refuse(name, _not_a_notebook(name))
        elif wanted:
            holders.add(here)
        elif not folders and not below:
            yield _refuse(here.relative_to(root).as_posix(), _no_notebook(files))


def _sorted_out(files: Iterable[str], *, alone: bool) -> tuple[list[str], list[str]]:
    """Of the files of one folder: what was handed in, and what was handed in by mistake.

    Args:
        alone: the folder is one learner's: a script in it is the submission, not a tool.
    """
    files = list(files)
    wanted = [name for name in files if name.lower().endswith(_NOTEBOOKS)]
    if alone and not wanted:
        wanted = [name for name in files if name.lower().endswith(_SCRIPT)]
    return wanted, [name for name in files if name.lower().endswith(_DOCUMENTS)]


def _no_notebook(files: list[str]) -> str:
    if not files:
        return _("The folder is empty.")
    shown = ", ".join(sorted(files)[:3])
    return _("There is no notebook in the folder, only: {files}.").format(files=shown)


def _not_a_notebook(name: str) -> str:
    kind = name.rsplit(".", 1)[-1] if "." in name else name
    return _("This is a {kind} file, not a notebook.").format(kind=kind)


def _ignored_folder(name: str) -> bool:
    return name.startswith(".") or name in _IGNORED_FOLDERS


def _ignored_file(name: str) -> bool:
    return name.startswith((".", "~$")) or name.lower() in _IGNORED_FILES


def _in_file(path: Path, name: str) -> Iterator[Submission]:
    if path.is_symlink():
        yield _refuse(name, _("This is a symbolic link; it is not followed."))
        return
    try:
        status = path.lstat()
    except OSError as error:
        yield _refuse(name, _("The file cannot be read: {reason}.").format(reason=error.strerror))
        return
    if not stat.S_ISREG(status.st_mode):
        yield _refuse(name, _("This is not an ordinary file."))
    elif name.lower().endswith(".zip"):
        yield from _in_zip(lambda: zipfile.ZipFile(path), name, deep=True)
    elif status.st_size > MAX_FILE:
        yield _refuse(name, _too_large(status.st_size))
    else:
        yield Submission(name, lambda: _read_file(path), size=status.st_size)


def _read_file(path: Path) -> bytes:
    # A link that took the file's place meanwhile is not followed either.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise Unreadable(_too_large(len(data)))
    return data


def _too_large(size: int) -> str:
    return _("The file is too large: {size:.0f} MB, and at most {most:.0f} MB are read.").format(
        size=size / 1e6, most=MAX_FILE / 1e6
    )


def _in_zip(
    open_zip: Callable[[], zipfile.ZipFile], name: str, *, deep: bool
) -> Iterator[Submission]:
    """The submissions in a zip.

    Args:
        open_zip: opens it; again for every member, so that no handle stays open.
        deep: whether zips inside are opened.
    """
    prefix = name[: -len(".zip")] if name.lower().endswith(".zip") else name
    try:
        with open_zip() as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, NotImplementedError, Unreadable, ValueError):
        yield _refuse(name, _("The zip is damaged and cannot be opened."))
        return
    if len(members) > MAX_MEMBERS:
        yield _refuse(name, _("The zip has {n} members.").format(n=len(members)))
        return
    labels: dict[str, list[str]] = {}
    found: list[Submission] = []
    for member in members:
        parts = PurePosixPath(member.filename.replace("\\", "/")).parts
        if member.is_dir() or not parts or _ignored_file(parts[-1]):
            continue
        if any(_ignored_folder(part) for part in parts[:-1] if part != ".."):
            continue
        label = f"{prefix}/{'/'.join(part for part in parts if part not in ('/', '..'))}"
        problem = _problem(member, parts)
        if problem:
            found.append(_refuse(label, problem))
        elif label.lower().endswith(".zip"):
            if deep:
                found += _in_zip(_inner(open_zip, member), label, deep=False)
            else:
                found.append(_refuse(label, _("A zip in a zip in a zip is not opened.")))
        elif label.lower().endswith((*_NOTEBOOKS, _SCRIPT)):
            found.append(
                Submission(label, _member(open_zip, member, MAX_FILE), size=member.file_size)
            )
        else:
            labels.setdefault(label.rpartition("/")[0], []).append(label)
    # Folders in which nothing was found: on the top level each file is somebody's.
    holders = {item.name.rpartition("/")[0] for item in found}
    for folder, files in sorted(labels.items()):
        if folder == prefix:
            wrong = files if not found else _sorted_out(files, alone=False)[1]
            found += [_refuse(label, _not_a_notebook(label)) for label in wrong]
        elif not any(f"{folder}/".startswith(f"{holder}/") for holder in holders - {prefix}):
            names = [label.rpartition("/")[2] for label in files]
            found.append(_refuse(folder, _no_notebook(names)))
    if not found:
        found.append(_refuse(name, _("There is no notebook in the zip.")))
    yield from found


def _problem(member: zipfile.ZipInfo, parts: tuple[str, ...]) -> str:
    """Why a member of a zip is refused, or ""."""
    if ".." in parts or parts[0] == "/" or ":" in parts[0]:
        return _("The path in the zip leads out of it; the file is not read.")
    mode = member.external_attr >> 16
    if stat.S_ISLNK(mode):
        return _("This is a symbolic link; it is not followed.")
    if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return _("This is not an ordinary file.")
    if member.flag_bits & 1:
        return _("The file in the zip is encrypted.")
    most = MAX_INNER_ZIP if parts[-1].lower().endswith(".zip") else MAX_FILE
    return _too_large(member.file_size) if member.file_size > most else ""


def _member(
    open_zip: Callable[[], zipfile.ZipFile], member: zipfile.ZipInfo, most: int
) -> Callable[[], bytes]:
    def load() -> bytes:
        try:
            with open_zip() as archive, archive.open(member) as file:
                # what is announced need not be true
                data = file.read(most + 1)
        except OSError:
            raise
        except Exception:
            # zipfile and its decompressors raise a dozen kinds for damaged data
            raise Unreadable(_("The file in the zip is damaged.")) from None
        if len(data) > most:
            raise Unreadable(_too_large(len(data)))
        return data

    return load


def _inner(
    open_zip: Callable[[], zipfile.ZipFile], member: zipfile.ZipInfo
) -> Callable[[], zipfile.ZipFile]:
    load = _member(open_zip, member, MAX_INNER_ZIP)
    return lambda: zipfile.ZipFile(io.BytesIO(load()))
