"""What no exercise needs is named; nothing of what answers are written with is."""

from __future__ import annotations

import inspect
import textwrap

import pytest

from autograder import chapters
from autograder.submissions.modules import Modules
from autograder.submissions.reaches import reaches
from autograder.submissions.statements import statements
from tests.attacks import theft


def named(source: str) -> list[tuple[int, str]]:
    modules = Modules()
    parts = statements(textwrap.dedent(source), 0, modules)[0]
    modules.read(node for part in parts for node in part.nodes)
    return [item for part in parts for item in reaches(part)]


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
        ("setattr(torch, 'softmax', f)", {"setattr(torch, …)"}),
        ("delattr(torch.Tensor, 'item')", {"delattr(torch.Tensor, …)"}),
        ("object.__setattr__(nn.Linear, 'forward', f)", {"__setattr__(torch.nn.Linear, …)"}),
        ("torch.nn.__setattr__('Linear', f)", {"__setattr__(torch.nn, …)"}),
        ("t = torch; t.softmax = f", {"torch.softmax = …"}),
        ("import torch as T; T.softmax = f", {"torch.softmax = …"}),
        ("from torch import nn as n; n.Linear.forward = f", {"torch.nn.Linear.forward = …"}),
        ("import torch as T; f = lambda: setattr((a := T.nn), 0, 0); a.x = 1", {"torch.nn.x = …"}),
        ("torch.nn.__dict__['x'] = f", {"torch.nn.__dict__"}),
        ("torch.__dict__.update(softmax=f)", {"torch.__dict__.update"}),
        ("vars(torch)['softmax'] = f", {"vars(torch)"}),
        ("x = operator.attrgetter('a.__globals__')(f)", {"a.__globals__"}),
        (
            "import pkgutil\npkgutil.resolve_name('autograder.guest.meter:Meter')",
            {"pkgutil", "autograder.guest.meter:Meter"},
        ),
        (
            "import runpy\nrunpy.run_module('autograder.guest')",
            {"runpy", "autograder.guest"},
        ),
        ("torch.library.Library('aten', 'IMPL').impl('mm', f)", {"library"}),
        ("from torch import library", {"library"}),
        ("torch.overrides.handle_torch_function(f, (x,), x)", {"handle_torch_function"}),
        ("import torch.utils.cpp_extension", {"cpp_extension"}),
        ("import io; io.FileIO(3).write(b'')", {"FileIO"}),
        ("import io; io.open(3)", {"open"}),
        ("import os; os.fork()", {"fork"}),
        ("from threading import Thread", {"threading"}),
        ("import _thread", {"_thread"}),
        ("import concurrent.futures as c", {"concurrent"}),
        ("import multiprocessing.pool", {"multiprocessing"}),
        ("import asyncio", {"asyncio"}),
        ("torch.jit.fork(f)", {"fork"}),
        ("getattr(torch, 'os')", {"os"}),
        ("x = random._os", {"_os"}),
        ("import gc\ngc.collect()\nx = gc", {"gc"}),
        ("import inspect as i\ni.currentframe()", {"inspect"}),
        ("from unittest.mock import patch", {"unittest.mock"}),
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
        "self.signal = batch.signal.mean()",
        "x = {'signal': 1, 'os': 2, 'resource': 3, 'inspect': 4, 'fork': 5}",
        "x = self.os, self.gc, torch.signal.windows.hann(3)",
        "from scipy import signal",
        "x = '/dev/null'",
        "class K(str, Enum):\n    A = 'a'",
        "class K(int, enum.Flag): pass",
        "torch.backends.cudnn.deterministic = True\ntorch._dynamo.config.suppress_errors = True",
        "import traceback\ntry:\n    f()\nexcept ValueError:\n    traceback.print_exc()",
        "import inspect\nx = inspect.signature(f)",
        "from inspect import signature",
        "import gc\ngc.collect()",
        "t = torch\ny = t.softmax(x, -1)",
        "x = math.inf\nx = nn.Parameter(y)\nx.requires_grad = False",
        "setattr(self, f'head_{i}', nn.Linear(1, 1))",
        "x = 'autograder', 'a/b.c', 'e.g. __globals__'",
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


def test_what_a_notebook_calls_a_module_holds_in_all_its_cells() -> None:
    modules = Modules()
    parts = [
        part
        for cell in ("T.softmax = f", "import torch as T, gc", "gc.collect()")
        for part in statements(cell, 0, modules)[0]
    ]
    modules.read(node for part in parts for node in part.nodes)
    assert [reaches(part) for part in parts] == [[(1, "torch.softmax = …")], [], []]
    assert reaches(statements("T.softmax = f")[0][0]) == []
    assert reaches(statements("import gc")[0][0]) == [(1, "gc")]


@pytest.mark.parametrize(
    "source",
    [
        f"torch.q{'.a' * 900} = 1",
        f"setattr(torch{'.a' * 900}, 'b', 1)",
        f"import torch{'.a' * 150} as T\nT.b = 1",
        f"x = 'a{'.__globals__' * 2_000}'",
        "x = torch" + "; y = x; x = y.a" * 500 + "; x.b = 1",
        f"x = {'f(' * 90}{')' * 90}",
    ],
)
def test_long_names_are_looked_at_once_and_shown_short(source: str) -> None:
    found = named(source)
    assert all(len(name) <= 40 for _line, name in found)
