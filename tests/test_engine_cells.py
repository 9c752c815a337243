"""Cells run as in a kernel, without IPython."""

from __future__ import annotations

import pytest

from autograder.guest.cells import fresh_main, python_of, run_cell


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1", "x = 1"),
        ("%matplotlib inline\nx = 1", "pass\nx = 1"),
        ("!pip install torch", "pass"),
        ("  %time x = 1\ny = 2", "  pass\ny = 2"),
        ("if True:\n    !ls\n    x = 1", "if True:\n    pass\n    x = 1"),
        ("files = !ls", "pass"),
        ("a, b = %sx ls", "pass"),
        ("torch.softmax?", "pass"),
        ("torch.softmax??", "pass"),
        ("?torch", "pass"),
        ("%%time\nx = 1", "\nx = 1"),
        ("%%bash\nrm -rf /", ""),
        ("%%html\n<b>", ""),
        ("%%", ""),
        ("x = (7\n% 4)", "x = (7\n% 4)"),
        ('x = """\n%time\n"""', 'x = """\n%time\n"""'),
        ("def f(:\n%time", "def f(:\n%time"),  # the first line is no Python: nothing helps
    ],
)
def test_python_of(source, expected):
    assert python_of(source) == expected


@pytest.mark.parametrize("source", ["(" * 10_000, "\0", "x = '\ud800'", "%" * 50_000, "!a\n" * 300])
def test_python_of_never_raises(source):
    assert isinstance(python_of(source), str)


def test_the_line_of_an_error_is_the_line_of_the_cell(monkeypatch):
    monkeypatch.setitem(
        __import__("sys").modules, "__main__", __import__("sys").modules["__main__"]
    )
    namespace = fresh_main()
    with pytest.raises(ZeroDivisionError) as caught:
        run_cell("%time\n!ls\n1 / 0", "cell", namespace)
    frame = caught.traceback[-1]
    assert (str(frame.path), frame.lineno + 1) == ("<cell>", 3)
