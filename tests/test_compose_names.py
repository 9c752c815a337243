"""What a cell needs and makes, read from its syntax."""

import pytest

from autograder.compose.names import cells_needed, dependencies, dependents, names


@pytest.mark.parametrize(
    ("source", "needs"),
    [
        ("y = x + 1", {"x"}),
        ("x = 1\ny = x", set()),
        ("x += 1", {"x"}),
        ("print(len([1]))", set()),
        ("def f(a, b=c):\n    return a + d", {"c", "d"}),
        ("def f():\n    return g()\ndef g():\n    return 1", set()),
        ("def f(x: Tensor) -> Out: ...", {"Tensor", "Out"}),
        ("class A(Base):\n    size = n\n    def f(self):\n        return helper(self)",
         {"Base", "n", "helper"}),
        ("[a for a in items if a > low]", {"items", "low"}),
        ("[i for i in range(3)]\nprint(i)", {"i"}),
        ("def f():\n    x = 1\n    def g():\n        return x + y\n    return g", {"y"}),
        ("lambda a: a + b", {"b"}),
        ("@decorator\ndef f(): ...", {"decorator"}),
        ("try:\n    f()\nexcept Oops as error:\n    print(error)", {"f", "Oops"}),
        ("with opened as handle:\n    handle.read()", {"opened"}),
        ("f'{value:.2f}'", {"value"}),
        ("import torch.nn as nn\nnn.Linear", set()),
        ("x: int\nprint(x)", {"x"}),
        ("for i, (a, b) in pairs:\n    print(i, a, b)", {"pairs"}),
        ("while (n := step()):\n    print(n)", {"step"}),
        ("if ready:\n    x = 1\nelse:\n    x = 2\nprint(x)", {"ready"}),
        ("del gone", {"gone"}),
        ("match thing:\n    case Point(x=a):\n        print(a)", {"thing", "Point"}),
        ("def f():\n    global n\n    n += 1", {"n"}),
        ("def f():\n    def g():\n        global n\n        del n\n    return g", {"n"}),
        ("class A:\n    def f(self):\n        global n\n        n = 1", {"n"}),
        ("n = 0\ndef f():\n    global n\n    n += 1", set()),
        ("def f():\n    n = 0\n    def g():\n        nonlocal n\n        n += 1", set()),
        ("global n\nn = 0", set()),
        ("class A:\n    global n\n    n = 0\n    m = n", set()),
        ("class A:\n    x = x\n    y = 1\n    z = y", {"x"}),
        ("[n := i for i in items]\nprint(n)", {"items"}),
    ],
)  # fmt: skip
def test_needs(source: str, needs: set[str]) -> None:
    assert names(source).needs == needs


@pytest.mark.parametrize(
    ("source", "makes"),
    [
        ("a, (b, *c) = f()", {"a", "b", "c"}),
        ("import torch\nimport os.path\nfrom x import y as z", {"torch", "os", "z"}),
        ("for i in range(3):\n    j = i", {"i", "j"}),
        ("def f():\n    global g\n    g = 1\n    local = 2", {"f", "g"}),
        ("if (n := 3) > 2: pass", {"n"}),
        ("def f():\n    global np\n    import numpy as np", {"f", "np"}),
        ("class A:\n    global n\n    n = 0", {"A", "n"}),
        ("[n := i for i in range(3)]", {"n"}),
        ("x: int", set()),
        ("x: int = 1", {"x"}),
        ("x.y = 1\nz[0] = 2", set()),
    ],
)
def test_makes(source: str, makes: set[str]) -> None:
    assert names(source).makes == makes


def test_changes() -> None:
    found = names("table['a'] = 1\nlayer.weight.data[0] = 0\nlosses.append(2)\nx = f(y)")
    assert found.changes == {"table", "layer", "losses"}


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        ("[losses.append(i) for i in range(3)]", {"losses"}),
        ("ready and losses.append(1)", {"losses"}),
        ("setattr(layer, 'scale', 2)", {"layer"}),
        ("for i in range(3):\n    table[i] = 0", {"table"}),
        ("print(losses.pop())", set()),
        ("def f(x):\n    x[0] = out = x + 1\n    out.y = 1", set()),
        ("def f(x):\n    table[0] = x", {"table"}),
    ],
)
def test_what_counts_as_a_change(source: str, changes: set[str]) -> None:
    assert names(source).changes == changes


@pytest.mark.parametrize(
    ("source", "later"),
    [
        ("def f():\n    global n\n    n = 1", {"n"}),
        ("n = 0\ndef f():\n    global n\n    n = 1", set()),
        ("def f(x):\n    table[0] = x", {"table"}),
        ("table[1] = 0\ndef f(x):\n    table[0] = x", set()),
        ("class A:\n    global n\n    n = 0", set()),
        ("class A:\n    def f(self):\n        global n\n        n = 0", {"n"}),
    ],
)
def test_what_waits_for_a_call(source: str, later: set[str]) -> None:
    assert names(source).later == later


def test_what_is_called_at_once() -> None:
    found = names("@a\n@b(c())\ndef f(x=d()):\n    e()\nx = [g() for i in h()]\nlambda: i()")
    assert found.calls == set("abcdgh")


def test_a_builtin_is_told_from_what_somebody_has_to_make() -> None:
    found = names("y = sum(x)")
    assert (found.needs, found.builtins) == ({"x"}, {"sum"})


def test_star_import_makes_any() -> None:
    assert names("from somewhere import *").makes_any


@pytest.mark.parametrize(
    ("source", "needs"),
    [
        ("%matplotlib inline\nx", {"x"}),
        ("!pip install a b\nx", {"x"}),
        ("files = !ls\nx", {"x"}),
        ("x?", set()),
        ("%time f(x)", {"f", "x"}),
        ("%timeit -n 3 g(y)", {"g", "y"}),
        ("%%time\nh(z)", {"h", "z"}),
        ("%%bash\necho $x", set()),
        ("text = '''\n%not a magic\n'''\nx", {"x"}),
        ("a = (b\n% c)", {"b", "c"}),
    ],
)
def test_lines_for_ipython_do_not_hide_the_rest(source: str, needs: set[str]) -> None:
    assert names(source).needs == needs


def test_dependents_follow_names_and_forget_what_is_made_anew() -> None:
    cells = [
        "import torch",
        None,  # the exercise `f`
        "a = f(1)",
        "b = a + 1",
        "c = 2",
        "losses.append(b)",
        "print(losses)",
        "a = 0",
        "print(a)",
        "def g(): return f(2)",
    ]
    assert [i for i, depends in enumerate(dependents(cells, {"f"})) if depends] == [2, 3, 5, 6, 9]


def test_a_name_comes_from_the_nearest_cell_above_or_else_from_below() -> None:
    cells = ["x = 1", "x = x + 1", "def f(): return x + late", "late = 3", "x = 9"]
    assert dependencies(cells)[2] == {1, 3}
    assert cells_needed(cells, 2) == [0, 1, 3]


def test_a_name_comes_from_where_it_is_made_at_once() -> None:
    cells = ["n = 0", "def g():\n    global n\n    n = 1", "def f(): return n"]
    assert cells_needed(cells, 2) == [0]
    assert cells_needed(cells[1:], 1) == [0]
    assert cells_needed(cells, 1) == [0]


def test_what_completes_an_object_is_needed_too() -> None:
    cells = ["table = {}", "table['a'] = 1", "print(table)", "def f(): return table['a']"]
    assert cells_needed(cells, 3) == [0, 1]


def test_a_module_is_complete_when_it_is_imported() -> None:
    cells = ["import torch as t", "t.manual_seed(0)\nt.x = 1", "def f(): return t.ones(1)"]
    assert cells_needed(cells, 2) == [0]
    cells[0] = "from somewhere import t"
    assert cells_needed(cells, 2) == [0, 1]


def test_what_several_cells_need() -> None:
    cells = ["x = 1", "y = x", "z = 2", "w = z", "v = w + y"]
    assert cells_needed(cells, 1, 3) == [0, 2]
    assert cells_needed(cells, 4, 1) == [0, 2, 3]


def test_a_star_import_is_needed_where_nothing_else_makes_a_name() -> None:
    cells = ["from helpers import *", "y = 1", "def f(): return helper(y)"]
    assert cells_needed(cells, 2) == [0, 1]


def test_a_cell_that_is_no_python_makes_nothing() -> None:
    assert cells_needed(["def broken(:", "x = 1", "print(x)"], 2) == [1]
