"""Finds the submissions in what an instructor names: a notebook, a folder, a zip.

A folder may be nbgrader's ``submitted/`` or a learning platform's download, a zip may hold zips
(one a learner). Nothing is unpacked to disk: a member is read into memory, up to a limit, when its
turn comes. What is refused gets a row that says so: nothing is passed over in silence.
"""

from __future__ import annotations

import io
import itertools
import os
import stat
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO, ClassVar

from autograder.i18n import _
from autograder.submissions import shown
from autograder.submissions.read import Unreadable

MAX_FILE = 32 * 2**20
"""Bytes of one submission; a notebook with every plot in it has a few million."""
MAX_INNER_ZIP = 128 * 2**20
MAX_MEMBERS = 20_000
"""Of one zip; of it and the zips inside together, :data:`MAX_ALL_MEMBERS`."""
MAX_ALL_MEMBERS = 50_000
MAX_UNPACKED = 16 * 2**30
"""Bytes of all that is read of one zip and the zips inside it."""
# A member has some 200 bytes in a zip's directory, which is read whole.
_MAX_DIRECTORY = 400 * MAX_MEMBERS
_MAX_DEPTH = 50

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
        found += _sorted(_in_folder(path)) if path.is_dir() else _in_file(path, path.name)
    return _distinct(found)


def _sorted(chunks: Iterable[list[Submission]]) -> list[Submission]:
    """Rows by name; those of one zip stay together, as it is opened once for all of them."""
    return [item for chunk in sorted(chunks, key=lambda chunk: chunk[0].name) for item in chunk]


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


def _in_folder(root: Path) -> Iterator[list[Submission]]:
    holders: set[Path] = set()
    closed: list[OSError] = []
    for folder, folders, all_files in os.walk(root, followlinks=False, onerror=closed.append):
        here = Path(folder)
        depth = len(here.relative_to(root).parts)
        entered, is_too_deep = [], False
        for name in sorted(folders):
            relative = (here / name).relative_to(root).as_posix()
            if os.path.islink(here / name):
                yield [_refuse(relative, _("This is a symbolic link; it is not followed."))]
            elif _ignored_folder(name):
                continue
            elif depth == _MAX_DEPTH:
                is_too_deep = True
                yield [_refuse(relative, _("The folder lies too deep; it is not read."))]
            else:
                entered.append(name)
        folders[:] = entered
        files = sorted(name for name in all_files if not _ignored_file(name))
        wanted, wrong = _sorted_out(files, alone=here != root and not folders)
        if here == root and not folders and not wanted:
            wrong = files
        below = any(parent in holders for parent in here.parents)
        for name in wanted:
            yield _in_file(here / name, (here / name).relative_to(root).as_posix())
        if here == root:
            for name in wrong:
                yield [_refuse(name, _not_a_notebook(name))]
        elif wanted:
            holders.add(here)
        elif not (folders or is_too_deep or below):
            yield [_refuse(here.relative_to(root).as_posix(), _no_notebook(files))]
    for error in closed:
        relative = Path(error.filename).relative_to(root).as_posix()
        why = _("The folder cannot be read: {reason}.").format(reason=error.strerror)
        yield [_refuse(root.name if relative == "." else relative, why)]


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


def _in_file(path: Path, name: str) -> list[Submission]:
    if os.path.islink(path):
        return [_refuse(name, _("This is a symbolic link; it is not followed."))]
    try:
        status = path.lstat()
    except OSError as error:
        return [
            _refuse(name, _("The file cannot be read: {reason}.").format(reason=error.strerror))
        ]
    if not stat.S_ISREG(status.st_mode):
        return [_refuse(name, _("This is not an ordinary file."))]
    if name.lower().endswith(".zip"):
        return _in_zip(_Archive(lambda: path.open("rb")), name, _Room())
    if status.st_size > MAX_FILE:
        return [_refuse(name, _too_large(status.st_size))]
    return [Submission(name, lambda: _read_file(path), size=status.st_size)]


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


class _TooManyMembers(Exception):
    """A zip's directory alone is more than is read."""


class _Archive:
    """A zip, opened once for members that are read one after the other.

    Of each depth one stays open in the whole process, until another takes its place: a class may
    hand in ten thousand zips.
    """

    _lock: ClassVar[threading.RLock] = threading.RLock()
    _held: ClassVar[dict[int, tuple[_Archive, zipfile.ZipFile, BinaryIO]]] = {}

    def __init__(self, load: Callable[[], BinaryIO], depth: int = 0) -> None:
        self._load = load
        self.depth = depth

    def members(self) -> list[zipfile.ZipInfo]:
        """What is in it."""
        with self._lock:
            return self._opened().infolist()

    def reader(self, member: zipfile.ZipInfo, most: int) -> Callable[[], bytes]:
        """How to get the bytes of a member."""

        def load() -> bytes:
            try:
                # what is announced need not be true
                with self._lock, self._opened().open(member) as file:
                    data = file.read(most + 1)
            except (OSError, Unreadable):
                raise
            except Exception:
                # zipfile and its decompressors raise a dozen kinds for damaged data
                raise Unreadable(_("The file in the zip is damaged.")) from None
            if len(data) > most:
                raise Unreadable(_too_large(len(data)))
            return data

        return load

    def inner(self, member: zipfile.ZipInfo) -> _Archive:
        """A zip among the members."""
        load = self.reader(member, MAX_INNER_ZIP)
        return _Archive(lambda: io.BytesIO(load()), self.depth + 1)

    def _opened(self) -> zipfile.ZipFile:
        held = self._held.get(self.depth)
        if held is None or held[0] is not self:
            if held is not None:
                del self._held[self.depth]
                held[1].close()
                held[2].close()
            file = self._load()
            try:
                self._held[self.depth] = held = self, _zip_file(file), file
            except BaseException:
                file.close()
                raise
        return held[1]


def _zip_file(file: BinaryIO) -> zipfile.ZipFile:
    end = zipfile._EndRecData(file)  # type: ignore[attr-defined]
    if end and end[zipfile._ECD_SIZE] > _MAX_DIRECTORY:  # type: ignore[attr-defined]
        raise _TooManyMembers
    return zipfile.ZipFile(file)


class _Room:
    """How much of a zip, and of the zips in it, is still read."""

    def __init__(self) -> None:
        self._members, self._size = MAX_ALL_MEMBERS, MAX_UNPACKED

    def members(self, count: int) -> bool:
        """Whether so many more members are read."""
        self._members -= count
        return count <= MAX_MEMBERS and self._members >= 0

    def size(self, size: int) -> bool:
        """Whether so many more bytes are read."""
        self._size -= size
        return self._size >= 0


def _in_zip(archive: _Archive, name: str, room: _Room) -> list[Submission]:
    """The submissions in a zip, sorted; zips inside are opened, but none inside those."""
    prefix = name[: -len(".zip")] if name.lower().endswith(".zip") else name
    try:
        members = archive.members()
    except _TooManyMembers:
        return [_refuse(name, _too_many())]
    except (zipfile.BadZipFile, OSError, NotImplementedError, Unreadable, ValueError):
        return [_refuse(name, _("The zip is damaged and cannot be opened."))]
    if not room.members(len(members)):
        return [_refuse(name, _too_many())]
    labels: dict[str, list[str]] = {}
    found: list[Submission] = []
    inside: list[list[Submission]] = []
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
        elif label.lower().endswith((*_NOTEBOOKS, _SCRIPT)) and not room.size(member.file_size):
            found.append(
                _refuse(
                    label,
                    _("More than {most:.0f} GB of the zip would have to be read.").format(
                        most=MAX_UNPACKED / 1e9
                    ),
                )
            )
        elif label.lower().endswith(".zip"):
            if archive.depth == 0:
                inside.append(_in_zip(archive.inner(member), label, room))
            else:
                found.append(_refuse(label, _("A zip in a zip in a zip is not opened.")))
        elif label.lower().endswith((*_NOTEBOOKS, _SCRIPT)):
            load = archive.reader(member, MAX_FILE)
            found.append(Submission(label, load, size=member.file_size))
        else:
            labels.setdefault(label.rpartition("/")[0], []).append(label)
    # Folders in which nothing was found: on the top level each file is somebody's.
    holders = {item.name.rpartition("/")[0] for item in itertools.chain(found, *inside)}
    for folder, files in sorted(labels.items()):
        if folder == prefix:
            wrong = files if not found and not inside else _sorted_out(files, alone=False)[1]
            found += [_refuse(label, _not_a_notebook(label)) for label in wrong]
        elif not (_above(folder) & (holders - {prefix})):
            names = [label.rpartition("/")[2] for label in files]
            found.append(_refuse(folder, _no_notebook(names)))
    if not found and not inside:
        found.append(_refuse(name, _("There is no notebook in the zip.")))
    return _sorted([*([item] for item in found), *inside])


def _above(folder: str) -> set[str]:
    """A folder and those that it lies in."""
    parts = folder.split("/")
    return {"/".join(parts[: end + 1]) for end in range(len(parts))}


def _too_many() -> str:
    return _(
        "The zip has too many members: {n} are read, and {all} with those of zips inside."
    ).format(n=MAX_MEMBERS, all=MAX_ALL_MEMBERS)


def _problem(member: zipfile.ZipInfo, parts: tuple[str, ...]) -> str:
    """Why a member of a zip is refused, or ""."""
    if ".." in parts or parts[0] == "/" or ":" in parts[0]:
        return _("The path in the zip leads out of it; the file is not read.")
    if len(parts) > _MAX_DEPTH:
        return _("The path in the zip is too deep; the file is not read.")
    mode = member.external_attr >> 16
    if stat.S_ISLNK(mode):
        return _("This is a symbolic link; it is not followed.")
    if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return _("This is not an ordinary file.")
    if member.flag_bits & 1:
        return _("The file in the zip is encrypted.")
    most = MAX_INNER_ZIP if parts[-1].lower().endswith(".zip") else MAX_FILE
    return _too_large(member.file_size) if member.file_size > most else ""
