"""What no exercise needs is named; nothing of what answers are written with is."""

from __future__ import annotations

import inspect
import textwrap

import pytest

from autograder import chapters
from autograder.submissions.reaches import reaches
from autograder.submissions.statements import statements
from tests.attacks import theft


def named(source: str) -> list[tuple[int, str]]:
    return [item for part in statements(textwrap.dedent(source), 0)[0] for item in reaches(part)]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import gc", {"gc"}),
        ("import torch, ctypes as c", {"ctypes"}),
        ("from autograder.guest.meter import Meter", {"autograder"}),
        (
            "from torch.utils._python_dispatch import TorchDispatchMode",
            {"_python_dispatch", "TorchDispatchMode"},
        ),
        ("import torch._C", {"_C"}),
        ("from sys import modules", {"modules"}),
        ("x = torch.os", {"os"}),
        ("x = torch.sys.modules", {"sys", "modules"}),
        ("x = sys._getframe(1).f_back.f_locals", {"_getframe", "f_back", "f_locals"}),
        ("x = ().__class__.__base__.__subclasses__()", {"__base__", "__subclasses__"}),
        ("x = getattr(f, '__globals__')", {"__globals__"}),
        ("x = __import__('o' + 's')", {"__import__"}),
        ("x = eval('1')", {"eval"}),
        ("x = open('/proc/self/mem')", {"open", "/proc/self/mem"}),
        ("class Lies(torch.Tensor): pass", {"class Lies(Tensor)"}),
        ("class Lies(float): pass", {"class Lies(float)"}),
        ("torch.allclose = lambda *a: True", {"torch.allclose = …"}),
        ("torch.equal, x = f, 1", {"torch.equal = …"}),
        ("del torch.Tensor.item", {"torch.Tensor.item = …"}),
        ("def __torch_function__(self): pass", {"__torch_function__"}),
        ("from torch.overrides import TorchFunctionMode as M", {"TorchFunctionMode"}),
    ],
)
def test_it_is_named(source: str, names: set[str]) -> None:
    found = named(f"# one line above\n{source}")
    assert {name for _line, name in found} == names
    assert min(line for line, _name in found) == 2


@pytest.mark.parametrize(
    "source",
    [
        "import os, sys, math, random, warnings, copy, functools, itertools",
        "os.environ['TRITON_INTERPRET'] = '1'",
        "from autograder import check, hint, status",
        "x = model.modules()",
        "x = copy.copy(y); z = f.read()",
        "x = 'a sentence about gc and ctypes, __globals__ and eval'",
        "# import gc\nx = 1  # sys._getframe",
        "self.weight = nn.Parameter(torch.empty(3)); nn.init.zeros_(self.weight)",
        "x = torch.compile(f); x = re.compile('a')",
        "class Head(nn.Module):\n    def __init__(self):\n        super().__init__()",
        "class Cache(dict):\n    pass",
        "x = getattr(self, f'head_{i}')",
        "model.training = torch.is_grad_enabled()",
    ],
)
def test_it_is_not(source: str) -> None:
    assert named(source) == []


@pytest.mark.parametrize("stem", chapters.stems())
def test_no_answer_of_the_bank_is_worth_a_look(stem: str) -> None:
    looked_at = 0
    for exercise in chapters.exercises(stem).values():
        for entry in chapters.entries(exercise):
            if not inspect.isroutine(entry.target) and not inspect.isclass(entry.target):
                continue
            try:
                source = inspect.getsource(entry.target)
            except OSError:  # made of a source that is not in a file
                continue
            looked_at += 1
            assert named(source) == [], entry.name
    assert looked_at > 20


def test_every_theft_of_the_corpus_is_worth_a_look() -> None:
    for attack in theft.ATTACKS:
        assert any(named(text) for text in (*attack.before, attack.source)), attack.name
