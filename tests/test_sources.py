"""Definitions are cut by syntax tree, from the first decorator to the closing marker."""

from __future__ import annotations

from pathlib import Path

import pytest

from autograder.sources import (
    SourceError,
    definition_source,
    definitions,
    has_solution,
    make_stub,
    renamed,
    strip_markers,
    without_decorators,
)

MODULE = '''\
import torch


@first
@second(1,
        2)
def decorated(x):
    """Say."""
    ### BEGIN SOLUTION
    return x
    ### END SOLUTION


# A comment that belongs to nobody.
class Layer:
    """Two regions."""

    def __init__(self):
        self.a = 1
        ### BEGIN SOLUTION
        self.b = 2

        ### END SOLUTION

    def forward(self, x):
        ### BEGIN SOLUTION
        if x:
            return 1
        return 2
        ### END SOLUTION


def given(x):
    return x  # nothing to fill in
# a comment at the margin


def last(x):
    ### BEGIN SOLUTION
    return x

    # the end
    ### END SOLUTION
'''


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "module.py"
    path.write_text(MODULE, encoding="utf-8")
    return path


def test_from_the_first_decorator_to_the_closing_marker(module: Path) -> None:
    source = definition_source(module, "decorated")
    assert source.startswith("@first\n@second(1,\n")
    assert source.endswith("    return x\n    ### END SOLUTION\n")
    assert definition_source(module, "Layer").endswith("        ### END SOLUTION\n")
    assert definition_source(module, "last").endswith("    # the end\n    ### END SOLUTION\n")
    assert definition_source(module, "given") == (
        "def given(x):\n    return x  # nothing to fill in\n"
    )


def test_definitions_come_in_order(module: Path) -> None:
    assert list(definitions(module)) == ["decorated", "Layer", "given", "last"]


def test_an_edited_file_is_read_again(module: Path) -> None:
    definition_source(module, "given")
    module.write_text("def given(x):\n    return -x\n", encoding="utf-8")
    import os

    os.utime(module, (1, 1))
    assert "-x" in definition_source(module, "given")


def test_every_region_becomes_a_stub_at_its_indentation(module: Path) -> None:
    assert make_stub(definition_source(module, "Layer")) == (
        'class Layer:\n    """Two regions."""\n\n    def __init__(self):\n        self.a = 1\n'
        "        raise NotImplementedError\n\n    def forward(self, x):\n"
        "        raise NotImplementedError\n"
    )
    given = definition_source(module, "given")
    assert make_stub(given) == given
    assert not has_solution(given)
    assert has_solution(definition_source(module, "last"))


def test_the_worked_source_has_no_markers(module: Path) -> None:
    source = strip_markers(definition_source(module, "Layer"))
    assert "SOLUTION" not in source
    assert "self.b = 2" in source


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def f():\n    ### BEGIN SOLUTION\n    return 1\n", "not closed; add '### END SOLUTION'"),
        ("def f():\n    return 1\n    ### END SOLUTION\n", "never opened"),
        ("def f():\n    ### BEGIN SOLUTION\n    ### BEGIN SOLUTION\n    return 1\n"
         "    ### END SOLUTION\n", "opens inside another"),
        ("def f():\n    x = 1  ### BEGIN SOLUTION\n    return x\n", "stand alone"),
        ("def f():\n    # BEGIN SOLUTION\n    return 1\n", "stand alone"),
        ("def g():\n    pass\n", "no function or class 'f'"),
        ("def f(:\n", "invalid syntax"),
    ],
)  # fmt: skip
def test_a_malformed_module_is_one_line(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SourceError) as caught:
        definition_source(path, "f")
    assert str(caught.value).startswith("bad.py")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_region_left_open_does_not_run_into_the_next_definition(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "def f():\n    ### BEGIN SOLUTION\n    return 1\n\n\ndef g():\n    ### BEGIN SOLUTION\n"
        "    return 2\n    ### END SOLUTION\n",
        encoding="utf-8",
    )
    with pytest.raises(SourceError, match="f: the solution region is not closed"):
        definition_source(path, "f")
    assert "return 1" not in definition_source(path, "g")


def test_a_definition_gets_another_name_and_loses_decorators() -> None:
    source = (
        "@wrong('f',\n       why='x')\n@keep\ndef no_scale(q):\n    return no_scale_2, no_scale\n"
    )
    assert renamed(without_decorators(source, ("wrong",)), "no_scale", "f") == (
        "@keep\ndef f(q):\n    return no_scale_2, f\n"
    )
