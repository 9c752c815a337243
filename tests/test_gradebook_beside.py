"""What lies beside a notebook goes along, and nothing that lies there ends a run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from autograder.gradebook import beside
from autograder.gradebook.beside import Beside, free, handed_in_at
from autograder.gradebook.listing import remove

NOON = datetime(2026, 2, 2, 12)
"""As nbgrader keeps times: in UTC, without a zone."""


class Folders:
    """A learner's folder, and the one in ``autograded/``."""

    def __init__(self, root: Path) -> None:
        self.handed, self.target = root / "submitted", root / "autograded"
        self.handed.mkdir()

    def hand_in(self, name: str, text: str = "new") -> Path:
        path = self.handed / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def copied(self) -> Beside:
        found = Beside(self.handed, "intro")
        assert found.copy_to(self.target) == [
            self.target / name for name in found.files if name not in found.failed
        ]
        return found

    def copies(self) -> dict[str, str]:
        return {
            path.relative_to(self.target).as_posix(): path.read_text(encoding="utf-8")
            for path in self.target.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folders]:
    monkeypatch.chdir(tmp_path)
    yield Folders(tmp_path)
    for path in tmp_path.iterdir():
        remove(path)  # pytest itself gets no further down than Python's limit


def test_small_ordinary_files_go_along(folders: Folders) -> None:
    for name in ("data/a.txt", "timestamp.txt", "intro.ipynb", "x.zip", ".git/x", "__MACOSX/x"):
        folders.hand_in(name)
    folders.hand_in("large").write_bytes(bytes(2**22 + 1))
    (folders.handed / "link").symlink_to("timestamp.txt")
    (folders.handed / "linked").symlink_to("data")
    os.mkfifo(folders.handed / "pipe")
    assert folders.copied().notes() == ()
    assert folders.copies() == {"data/a.txt": "new", "timestamp.txt": "new"}


@pytest.mark.parametrize("name", ["intro.ipynb", "Intro.IPYNB"])
def test_nothing_goes_to_the_place_of_the_notebook(folders: Folders, name: str) -> None:
    folders.hand_in(f"{name}/x.txt")
    folders.hand_in(f"data/{name}/x.txt")
    folders.copied()
    assert folders.copies() == {f"data/{name}/x.txt": "new"}


def test_a_file_becomes_a_folder_and_a_file_again(folders: Folders) -> None:
    file = folders.hand_in("data")
    assert not folders.copied().failed
    file.unlink()
    folders.hand_in("data/x/y")
    assert not folders.copied().failed
    assert folders.copies() == {"data/x/y": "new"}
    shutil.rmtree(folders.handed / "data")
    folders.hand_in("data")
    assert not folders.copied().failed
    assert folders.copies() == {"data": "new"}


def test_a_link_in_the_way_is_not_followed(folders: Folders, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x").write_text("kept", encoding="utf-8")
    folders.target.mkdir()
    for name in ("data", "more"):
        (folders.target / name).symlink_to(elsewhere)
    (folders.target / "file").symlink_to(elsewhere / "x")
    (folders.target / "gone").mkdir()
    (folders.target / "gone" / "link").symlink_to(elsewhere)
    for name in ("data/x", "more", "file", "gone"):
        folders.hand_in(name)
    assert not folders.copied().failed
    assert folders.copies() == {"data/x": "new", "more": "new", "file": "new", "gone": "new"}
    assert (elsewhere / "x").read_text(encoding="utf-8") == "kept"


def test_a_folder_at_the_place_of_a_notebook_goes(folders: Folders) -> None:
    (folders.target / "intro.ipynb" / "a").mkdir(parents=True)
    (folders.target / "intro.ipynb" / "a" / "x").touch()
    path = free(folders.target, "intro.ipynb")
    assert path == folders.target / "intro.ipynb"
    assert not path.exists()


def test_deep_folders(folders: Folders) -> None:
    os.chdir(folders.handed)
    for _level in range(1200):  # more than Python calls functions within functions
        os.mkdir("d")
        os.chdir("d")
    Path("x").touch()
    os.chdir(folders.handed)
    os.rename("d", "data")
    found = folders.copied()
    assert not found.failed
    assert len(found.files) == 1
    os.rename("data", folders.handed.parent / "away")
    folders.hand_in("data")
    assert not folders.copied().failed
    assert folders.copies() == {"data": "new"}


def test_what_cannot_be_read_costs_itself(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "data/b", "c"):
        folders.hand_in(name)
    read = beside._read

    def refuses(path: Path, most: int) -> bytes:
        if path.name != "c":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, most)

    monkeypatch.setattr(beside, "_read", refuses)
    found = folders.copied()
    assert folders.copies() == {"c": "new"}
    assert found.notes() == (
        "`a` and 1 more could not be copied beside the graded notebook: Permission denied.",
    )


def test_gone_between_two_looks(folders: Folders) -> None:
    folders.hand_in("a")
    path = folders.hand_in("b\n\udcff")
    found = Beside(folders.handed, "intro")
    path.unlink()
    os.mkfifo(path)
    found.copy_to(folders.target)
    assert folders.copies() == {"a": "new"}
    assert found.notes() == (
        "`b\ufffd\ufffd` could not be copied beside the graded notebook: not an ordinary file.",
    )


def test_a_path_that_is_too_long_over_there(folders: Folders) -> None:
    room = 4090 - len(os.fsencode(folders.handed))
    levels = [*["d" * 200] * (room // 201), "x" * (room % 201)]
    os.chdir(folders.handed)
    for name in levels[:-1]:
        os.mkdir(name)
        os.chdir(name)
    Path(levels[-1] or "x").touch()
    os.chdir(folders.handed)
    folders.hand_in("a")
    folders.target = folders.target.with_name("autograded-" + "d" * 20)
    (note,) = folders.copied().notes()
    assert "File name too long" in note
    assert folders.copies() == {"a": "new"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-02-02 12:00:00 UTC", NOON),
        ("2026-02-02 12:00:00.000000 UTC\n", NOON),
        ("2026-02-02 12:00:00", NOON),
        ("2026-02-02T14:00:00+02:00", NOON),
        ("2026-02-02 13:00:00 Europe/Berlin", NOON),
        ("2026-02-02 13:00:00 CET-1CEST,M3.5.0,M10.5.0/3", NOON),
    ],
)
def test_a_time_as_nbgrader_reads_it(folders: Folders, text: str, expected: datetime) -> None:
    folders.hand_in("timestamp.txt", text)
    assert handed_in_at(folders.handed) == expected


def test_no_time(folders: Folders) -> None:
    assert handed_in_at(folders.handed) is None


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_link_to_a_file(path: Path) -> None:
    path.with_name("other").write_text("2026-02-02 12:00:00 UTC", encoding="utf-8")
    path.symlink_to("other")


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to("nothing")


def an_empty_file(path: Path) -> None:
    path.touch()


def much(path: Path) -> None:
    path.write_text("2026-02-02 12:00:00 UTC" + " " * 1024, encoding="utf-8")


def no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")


def no_time(path: Path) -> None:
    path.write_text("yesterday", encoding="utf-8")


def the_last_year_of_all(path: Path) -> None:
    path.write_text("9999-12-31 23:59:59 -86000", encoding="utf-8")


@pytest.mark.parametrize(
    "make",
    [
        a_pipe,
        a_folder,
        a_link_to_a_device,
        a_link_to_a_file,
        a_link_to_nothing,
        an_empty_file,
        much,
        no_text,
        no_time,
        the_last_year_of_all,
    ],
    ids=lambda item: item.__name__,
)
def test_no_time_that_can_be_read(folders: Folders, make: Callable[[Path], None]) -> None:
    make(folders.handed / "timestamp.txt")
    with pytest.raises(ValueError, match="holds no time"):
        handed_in_at(folders.handed)


@pytest.mark.parametrize("zone", ["/submitted/zone", ":/submitted/zone", "../../submitted/zone"])
def test_no_zone_is_read_from_a_file_that_was_handed_in(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    monkeypatch.setattr(beside, "parse_utc", lambda text: NOON)
    folders.hand_in("timestamp.txt", f"2026-02-02 12:00:00 {zone}")
    with pytest.raises(ValueError, match="holds no time"):
        handed_in_at(folders.handed)


def test_what_is_no_ordinary_file_is_not_opened(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folders.handed / "pipe"
    os.mkfifo(path)
    monkeypatch.delattr(os, "open")
    with pytest.raises(OSError, match="not an ordinary file"):
        beside._read(path, 10)


@pytest.mark.parametrize("make", [a_pipe, a_link_to_a_file])
def test_what_takes_the_place_of_an_ordinary_file(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    """Between the look at it and the opening: it is not waited for, and not followed."""
    path = folders.handed / "timestamp.txt"
    make(path)
    before = folders.hand_in("before").lstat()
    monkeypatch.setattr(Path, "lstat", lambda path: before)
    with pytest.raises(OSError, match=r"not an ordinary file|symbolic links"):
        beside._read(path, 10)
