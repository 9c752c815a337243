"""A notebook is read whatever its age, its encoding or its damage."""

import json

import pytest

from autograder.submissions.read import Unreadable, read

CELLS = [
    {"cell_type": "code", "id": "f", "metadata": {}, "outputs": [], "source": ["a = 1\n", "b"]},
    {"cell_type": "markdown", "id": "t", "metadata": {}, "source": "é ñ 注意"},
]
NOTEBOOK = {"cells": CELLS, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
TEXT = json.dumps(NOTEBOOK, ensure_ascii=False)


@pytest.mark.parametrize(
    ("encoding", "says"),
    [
        ("utf-8", ""),
        ("utf-8-sig", "byte-order mark"),
        ("utf-16", "byte-order mark"),
        ("utf-32", "byte-order mark"),
        ("utf-16-le", "UTF-16"),
        ("utf-16-be", "UTF-16"),
    ],
)
def test_encodings(encoding: str, says: str) -> None:
    notebook = read(TEXT.encode(encoding))
    assert [cell.source for cell in notebook.cells] == ["a = 1\nb", "é ñ 注意"]
    assert says in " ".join(notebook.notes)
    assert bool(notebook.notes) == bool(says)


def test_windows_code_page() -> None:
    notebook = read(TEXT.replace(" 注意", "").encode("cp1252"))
    assert notebook.cells[1].source == "é ñ"
    assert "Windows-1252" in notebook.notes[0]


def test_ids_of_the_cell_and_of_nbgrader() -> None:
    cells = [
        {"cell_type": "code", "id": "x", "metadata": {"nbgrader": {"grade_id": "y"}}, "source": ""},
        {"cell_type": "code", "metadata": {"id": "colab"}, "source": ""},
        {"cell_type": "code", "id": 3, "metadata": {"nbgrader": {"grade_id": []}}, "source": ""},
    ]
    found = read(json.dumps({"cells": cells}).encode()).cells
    assert [(cell.id, cell.grade_id) for cell in found] == [("x", "y"), ("colab", ""), ("", "")]


def test_format_3() -> None:
    old = {
        "nbformat": 3,
        "worksheets": [
            {
                "cells": [
                    {"cell_type": "heading", "level": 1, "source": ["Title"]},
                    {"cell_type": "code", "input": ["x = 1"], "language": "python"},
                ]
            }
        ],
    }
    notebook = read(json.dumps(old).encode())
    assert [(c.kind, c.source) for c in notebook.cells] == [
        ("markdown", "Title"),
        ("code", "x = 1"),
    ]
    assert "old format" in notebook.notes[0]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"\xef\xbb\xbf \n", "empty"),
        (b"\x00" * 100, "empty"),
        (TEXT.encode()[:-40], "damaged"),
        (b"{", "damaged"),
        (b"[" * 100_000, "damaged"),
        (b"[1, 2]", "not a notebook"),
        (b'"cells"', "not a notebook"),
        (b'{"cells": 3}', "no cells"),
        (b'{"nbformat": 4}', "no cells"),
        (b"%PDF-1.7 ...", "PDF"),
        (b"PK\x03\x04...", "zip"),
        (b"\x89PNG\r\n", "PNG"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"hello", "damaged"),
        (bytes(range(256)) * 10, "damaged"),
    ],
)
def test_what_is_no_notebook_says_so(data: bytes, says: str) -> None:
    with pytest.raises(Unreadable, match=says):
        read(data)


def test_cells_of_any_shape_do_no_harm() -> None:
    cells = [
        None,
        3,
        [],
        {},
        {"cell_type": "code"},
        {"cell_type": 7, "source": {"a": 1}},
        {"cell_type": "code", "source": [1, "x", None], "metadata": []},
        {"cell_type": "code", "source": "a\x00b\r\nc\rd\ud800"},
    ]
    text = json.dumps({"cells": cells})
    notebook = read(text.encode())
    assert [cell.source for cell in notebook.cells][-2:] == ["x", "ab\nc\nd?"]


def test_something_behind_the_end_is_said() -> None:
    notebook = read(TEXT.encode() + b"\n<<<<<<< HEAD")
    assert len(notebook.cells) == 2
    assert "behind the end" in notebook.notes[0]


def test_a_notebook_without_text_is_empty() -> None:
    assert read(b'{"cells": []}').is_empty
    assert read(b'{"cells": [{"cell_type": "code", "source": " \\n"}]}').is_empty


def test_a_script_is_cut_into_cells() -> None:
    script = b"# In[1]:\nimport torch\n\n# In[ ]:\ndef f():\n    pass\n# %% [markdown]\n# text\n"
    notebook = read(script, "attention.py")
    assert [cell.source.strip() for cell in notebook.cells] == [
        "import torch",
        "def f():\n    pass",
        "# text",
    ]
    assert notebook.notes


def test_what_is_longer_than_anybody_types_is_left_out_and_said() -> None:
    cells = [
        {"cell_type": "code", "source": text}
        for text in ("a" * 200_001, *["b" * 190_000] * 10, "c")
    ]
    found = read(json.dumps({"cells": cells}).encode())
    assert sum(len(cell.source) for cell in found.cells) <= 2_000_000
    assert found.cells[-1].source == "c"
    assert len(found.notes) == 2
    assert "200000" in found.notes[0]
    assert "1 cells" in found.notes[1]


def test_a_script_has_no_more_cells_than_a_notebook() -> None:
    found = read(b"# %%\nx\n" * 20_000, "a.py")
    assert len(found.cells) <= 5_001
    assert "\n".join(cell.source for cell in found.cells).count("x") == 20_000
