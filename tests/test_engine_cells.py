"""Cells run as in a kernel, without IPython."""

from __future__ import annotations

import ast
import random

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


def one_by_one(source: str) -> str:
    """What ``python_of`` does, with a look at the whole cell for every line."""
    lines = source.split("\n")
    for _ in lines:
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            line = lines[error.lineno - 1]
            if not line.lstrip().startswith(("!", "%", "?")) and not line.rstrip().endswith("?"):
                break
            lines[error.lineno - 1] = line[: len(line) - len(line.lstrip())] + "pass"
        else:
            break
    return "\n".join(lines)


PIECES = (
    *("!ls", "%time x", "y?", "x = 1", "if x:\n    !ls\n    y = 2\nelse:\n    %who"),
    *('t = """\n%time\n!ls\n"""', "t = '''\n! \" \n'''", "t = 'a\\\n%b'", "t = '#' \"!\" # ' ("),
    *("!echo \"(it's", "t = (7 # )\n% 4)", "t = 7 \\\n% 4", "f(')', [\n'''(''' % 2\n])"),
    *("t = r'\\\\' + '''\\''''", "t = '\\\\'"),
)


@pytest.mark.parametrize("seed", range(60))
def test_all_lines_for_ipython_at_once_or_one_by_one_is_the_same(seed):
    chosen = random.Random(seed).choices(PIECES, k=6)
    source = "\n".join(chosen)
    expected = one_by_one(source)
    assert ast.parse(expected)
    assert python_of(source) == expected


def test_a_cell_is_read_a_few_times_however_many_lines_are_for_ipython(monkeypatch):
    reads = []
    parse = ast.parse
    monkeypatch.setattr(ast, "parse", lambda text: reads.append(text) or parse(text))
    assert python_of("!ls\nx = 1\n" * 5_000) == "pass\nx = 1\n" * 5_000
    assert len(reads) == 2
    reads.clear()
    python_of("x = f'{'\n'}'\n!ls\n" * 5_000)
    assert len(reads) < 5


@pytest.mark.parametrize("line", [" " * 10_000_000 + "a b", "a" * 10_000_000 + " b"])
def test_a_long_line_is_looked_at_once(line):
    """Tried from each of its blanks, it would take days."""
    assert python_of(line) == line
