"""Submissions are found in folders and zips; what is refused gets a row that says so."""

import io
import os
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from autograder.submissions.find import MAX_FILE, find
from autograder.submissions.read import Unreadable

NOTEBOOK = b'{"cells": [], "nbformat": 4, "metadata": {}}'


def put(root: Path, *names: str, data: bytes = NOTEBOOK) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def zipped(*names: str, data: bytes = NOTEBOOK) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, data)
    return file.getvalue()


def rows(*paths: Path) -> dict[str, str]:
    """Name and refusal of what is found."""
    return {item.name: item.refused for item in find(paths)}


def test_one_file(tmp_path: Path) -> None:
    put(tmp_path, "attention.ipynb")
    (found,) = find([tmp_path / "attention.ipynb"])
    assert (found.name, found.data()) == ("attention.ipynb", NOTEBOOK)


def test_nbgraders_folders(tmp_path: Path) -> None:
    put(
        tmp_path,
        "ada/attention/attention.ipynb",
        "ada/attention/timestamp.txt",
        "ada/attention/data/more.csv",
        "ada/attention/helper.py",
        "ada/attention/.ipynb_checkpoints/attention-checkpoint.ipynb",
        "bob/attention/attention (1).ipynb",
    )
    assert rows(tmp_path) == {
        "ada/attention/attention.ipynb": "",
        "bob/attention/attention (1).ipynb": "",
    }


def test_a_folder_without_a_notebook_has_a_row(tmp_path: Path) -> None:
    put(tmp_path, "ada/attention.ipynb", "bob/answers.pdf", "eve/attention.py")
    (tmp_path / "zoe").mkdir()
    found = rows(tmp_path)
    assert "answers.pdf" in found["bob"]
    assert "empty" in found["zoe"]
    assert found["eve/attention.py"] == ""


def test_a_flat_download(tmp_path: Path) -> None:
    put(tmp_path, "ada_1_attention.ipynb", "bob_2_attention.ipynb.txt", "eve_3_answers.docx")
    found = rows(tmp_path)
    assert found["ada_1_attention.ipynb"] == found["bob_2_attention.ipynb.txt"] == ""
    assert "docx" in found["eve_3_answers.docx"]


def test_two_of_one_name(tmp_path: Path) -> None:
    put(tmp_path, "a/attention.ipynb", "b/attention.ipynb")
    found = rows(tmp_path / "a/attention.ipynb", tmp_path / "b/attention.ipynb")
    assert set(found) == {"attention.ipynb", "attention.ipynb (2)"}
    both = find([tmp_path / "a/attention.ipynb", tmp_path / "b/attention.ipynb"])
    assert {item.file_name for item in both} == {"attention.ipynb"}  # neither was renamed


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        find([tmp_path / "nothing"])


@pytest.mark.skipif(sys.platform == "win32", reason="needs a right there that users lack")
def test_links_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.ipynb"
    put(tmp_path, "secret.ipynb")
    put(tmp_path, "class/ada/attention.ipynb")
    (tmp_path / "class" / "bob").mkdir()
    (tmp_path / "class" / "bob" / "attention.ipynb").symlink_to(secret)
    (tmp_path / "class" / "eve").symlink_to(tmp_path / "class" / "ada")
    found = rows(tmp_path / "class")
    assert "symbolic link" in found["bob/attention.ipynb"]
    assert "symbolic link" in found["eve"]
    assert found["ada/attention.ipynb"] == ""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes in folders")
def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    put(tmp_path, "ada/attention.ipynb")
    os.mkfifo(tmp_path / "ada" / "waiting.ipynb")
    assert "ordinary" in rows(tmp_path)["ada/waiting.ipynb"]


def test_a_file_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "attention.ipynb"
    with path.open("wb") as file:
        file.truncate(MAX_FILE + 1)
    (found,) = find([path])
    assert "too large" in found.refused


def test_a_file_that_grows_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "attention.ipynb"
    path.write_bytes(NOTEBOOK)
    (found,) = find([path])
    with path.open("wb") as file:
        file.truncate(MAX_FILE + 1)
    with pytest.raises(Unreadable, match="too large"):
        found.data()


def test_a_zip_of_a_platform(tmp_path: Path) -> None:
    data = zipped(
        "Ada L_1_assignsubmission_file_/attention.ipynb",
        "Bob_2_assignsubmission_file_/answers.pdf",
        "__MACOSX/x/._attention.ipynb",
    )
    (tmp_path / "all.zip").write_bytes(data)
    found = rows(tmp_path / "all.zip")
    assert found.pop("all/Ada L_1_assignsubmission_file_/attention.ipynb") == ""
    ((name, refused),) = found.items()
    assert name == "all/Bob_2_assignsubmission_file_"
    assert "answers.pdf" in refused


def test_a_zip_in_a_zip_once(tmp_path: Path) -> None:
    inner = zipped("attention.ipynb")
    (tmp_path / "all.zip").write_bytes(
        _zip({"ada.zip": inner, "bob.zip": _zip({"deep.zip": inner, "x.ipynb": NOTEBOOK})})
    )
    found = rows(tmp_path / "all.zip")
    assert found["all/ada/attention.ipynb"] == ""
    assert found["all/bob/x.ipynb"] == ""
    assert "not opened" in found["all/bob/deep.zip"]
    (submission,) = [item for item in find([tmp_path / "all.zip"]) if "ada" in item.name]
    assert submission.data() == NOTEBOOK


def _zip(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


@pytest.mark.parametrize(
    "name", ["../up.ipynb", "a/../../up.ipynb", "/root.ipynb", "C:/x.ipynb", "..\\up.ipynb"]
)
def test_a_path_that_leads_out_of_the_zip(tmp_path: Path, name: str) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        info = zipfile.ZipInfo("x")
        info.filename = name
        archive.writestr(info, NOTEBOOK)
        archive.writestr("good/attention.ipynb", NOTEBOOK)
    (tmp_path / "all.zip").write_bytes(file.getvalue())
    found = rows(tmp_path / "all.zip")
    assert found.pop("all/good/attention.ipynb") == ""
    ((label, refused),) = found.items()
    assert "leads out" in refused
    assert ".." not in label.split("/")


def test_a_link_in_a_zip(tmp_path: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        info = zipfile.ZipInfo("attention.ipynb")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    (tmp_path / "all.zip").write_bytes(file.getvalue())
    assert "symbolic link" in rows(tmp_path / "all.zip")["all/attention.ipynb"]


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    data = zipped("attention.ipynb", data=b"\0" * (MAX_FILE + 1))
    assert len(data) < 100_000
    (tmp_path / "bomb.zip").write_bytes(data)
    assert "too large" in rows(tmp_path / "bomb.zip")["bomb/attention.ipynb"]


def test_a_bomb_that_lies_about_its_size(tmp_path: Path) -> None:
    data = bytearray(zipped("attention.ipynb", data=b"\0" * (MAX_FILE + 1)))
    announced = (MAX_FILE + 1).to_bytes(4, "little")
    while announced in data:
        place = data.index(announced)
        data[place : place + 4] = (1000).to_bytes(4, "little")
    (tmp_path / "bomb.zip").write_bytes(data)
    (found,) = find([tmp_path / "bomb.zip"])
    with pytest.raises(Unreadable):
        found.data()


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"PK\x05\x06" + b"\0" * 10, b"no zip"])
def test_a_damaged_zip(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "all.zip").write_bytes(data)
    assert "damaged" in rows(tmp_path / "all.zip")["all.zip"]


def test_a_damaged_member(tmp_path: Path) -> None:
    data = bytearray(zipped("attention.ipynb"))
    place = data.index(b"attention.ipynb") + len("attention.ipynb") + 4
    data[place : place + 4] = b"\xff\xff\xff\xff"
    (tmp_path / "all.zip").write_bytes(data)
    (found,) = find([tmp_path / "all.zip"])
    with pytest.raises(Unreadable, match="damaged"):
        found.data()


def test_an_encrypted_member(tmp_path: Path) -> None:
    data = bytearray(zipped("attention.ipynb"))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + offset] |= 1
    (tmp_path / "all.zip").write_bytes(data)
    assert "encrypted" in rows(tmp_path / "all.zip")["all/attention.ipynb"]


def test_a_zip_without_a_notebook(tmp_path: Path) -> None:
    (tmp_path / "ada.zip").write_bytes(_zip({}))
    assert "no notebook" in rows(tmp_path / "ada.zip")["ada.zip"]


@pytest.mark.skipif(
    sys.platform != "linux", reason="Windows and macOS refuse names that are no Unicode"
)
def test_names_are_fit_to_be_shown(tmp_path: Path) -> None:
    names = (b"m\xfcller", b"m\xfdller", b"\x1b[2Jeve", b"a\nb", "Zoë 王".encode(), b"=1+1")
    for name in names:
        folder = os.fsencode(tmp_path) + b"/" + name
        os.mkdir(folder)
        with open(folder + b"/attention.ipynb", "wb") as file:
            file.write(NOTEBOOK)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "x\x1b[2J.rtf").write_bytes(b"")
    found = find([tmp_path])
    assert {item.name for item in found} == {
        "m\ufffdller/attention.ipynb",
        "m\ufffdller/attention.ipynb (2)",
        "\ufffd[2Jeve/attention.ipynb",
        "a\ufffdb/attention.ipynb",
        "Zoë 王/attention.ipynb",
        "=1+1/attention.ipynb",
        "odd",
    }
    assert all(item.file_name == "attention.ipynb" for item in found if item.name != "odd")
    assert all(item.refused.isprintable() for item in found)
    assert [item.data() for item in found if not item.refused] == [NOTEBOOK] * len(names)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_number_given_is_no_name_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "class.zip"
    path.write_bytes(
        zipped("a.ipynb", "a.ipynb", "a.ipynb", "a.ipynb (2)/x.rtf", f"{'l' * 60_000}.ipynb")
    )
    found = find([path])
    names = [item.name for item in found]
    assert len(set(names)) == len(names) == 5
    assert {"class/a.ipynb", "class/a.ipynb (2)", "class/a.ipynb (3)"} <= set(names)
    assert max(map(len, names)) <= 400
    assert all(item.file_name.endswith(".ipynb") for item in found if not item.refused)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The zips that are opened from now on."""
    opened: list[object] = []
    known = zipfile.ZipFile.__init__

    def opening(self: zipfile.ZipFile, file: object, *args: object, **keys: object) -> None:
        opened.append(file)
        known(self, file, *args, **keys)  # type: ignore[arg-type]

    monkeypatch.setattr(zipfile.ZipFile, "__init__", opening)
    return opened


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_zip_is_opened_once_for_all_its_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where two zips inside have one name, and their members' names alternate."""
    inner = zipped(*(f"{i}/attention.ipynb" for i in range(50)))
    path = tmp_path / "class.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("a.zip", "b.zip", "a.zip"):
            archive.writestr(name, inner)
        archive.writestr("a/7/extra.ipynb", NOTEBOOK)
    opened = counted(monkeypatch)
    found = find([tmp_path])
    assert len(found) == 151
    assert len(opened) == 4
    assert all(item.data() == NOTEBOOK for item in found)
    assert len(opened) == 7  # the last one is still open, and the outer one


def test_members_and_bytes_are_counted_over_all_levels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = zipped(*(f"{i}/attention.ipynb" for i in range(8)))
    path = tmp_path / "class.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("a.zip", "b.zip", "c.zip"):
            archive.writestr(name, inner)
    monkeypatch.setattr("autograder.submissions.find.MAX_ALL_MEMBERS", 3 + 2 * 8)
    found = rows(path)
    assert len([name for name, refused in found.items() if not refused]) == 16
    assert "too many members" in found["class/c.zip"]
    monkeypatch.undo()
    limit = 2 * (len(inner) + 8 * len(NOTEBOOK))
    monkeypatch.setattr("autograder.submissions.find.MAX_UNPACKED", limit)
    opened = counted(monkeypatch)
    found = rows(path)
    assert len(opened) == 3
    assert len([name for name, refused in found.items() if not refused]) == 16
    assert "GB" in found["class/c.zip"]
    monkeypatch.setattr("autograder.submissions.find._MAX_DIRECTORY", 100)
    assert "too many members" in rows(path)["class.zip"]


def test_a_path_of_many_folders_is_refused_in_one_row(tmp_path: Path) -> None:
    path = tmp_path / "class.zip"
    path.write_bytes(zipped("a/" * 20_000 + "attention.ipynb", "b/attention.ipynb"))
    assert sorted(rows(path).values())[0] == ""
    assert "too deep" in sorted(rows(path).values())[1]


def test_a_folder_that_cannot_be_looked_into_has_a_row(tmp_path: Path, closed: set[str]) -> None:
    put(tmp_path / "class", "ada/attention.ipynb", "bob/attention.ipynb")
    closed.add("bob")
    assert rows(tmp_path / "class") == {
        "ada/attention.ipynb": "",
        "bob": "The folder cannot be read: Permission denied.",
    }
    closed.add("class")
    assert rows(tmp_path / "class") == {"class": "The folder cannot be read: Permission denied."}


def test_a_file_of_which_nothing_can_be_seen_has_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "ada/attention.ipynb", "bob/attention.ipynb")
    look = os.lstat

    def closed(path: str | Path, **keys: object) -> object:
        if "bob/" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return look(path)

    monkeypatch.setattr(os, "lstat", closed)
    monkeypatch.setattr(Path, "lstat", closed)
    found = rows(tmp_path)
    assert found["ada/attention.ipynb"] == ""
    assert "Permission denied" in found["bob/attention.ipynb"]


def test_a_folder_below_many_folders_is_refused_in_one_row(tmp_path: Path) -> None:
    put(tmp_path, "ada/attention.ipynb", f"bob/{'d/' * 60}attention.ipynb")
    found = rows(tmp_path)
    assert found.pop("ada/attention.ipynb") == ""
    (refused,) = found.values()
    assert "too deep" in refused
