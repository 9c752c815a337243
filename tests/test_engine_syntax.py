"""A syntax tree is built whatever runs in other threads meanwhile."""

import ast
import gc

import pytest

from autograder.guest.syntax import syntax_tree


def deeper(levels):
    """Parse from another depth of calls, as another thread would."""
    return deeper(levels - 1) if levels else ast.parse("x = 1")


def test_nothing_is_collected_while_a_tree_is_built():
    """What a collection calls may parse: in Python 3.11.7 that ends the outer ``ast.parse``."""
    text = "\n".join(f"a{i} = [b + {i} for b in c({i})]" for i in range(200))
    begun = []

    def at_collection(phase, _info):
        if phase == "start":
            begun.append(deeper(50))

    threshold = gc.get_threshold()
    gc.callbacks.append(at_collection)
    try:
        gc.set_threshold(1)
        del begun[:]
        tree = syntax_tree(text)
        in_the_middle = len(begun)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(at_collection)
    assert len(tree.body) == 200
    # Between the function's own lines a collection may begin; in the tree there are thousands.
    assert in_the_middle < 10


def test_collections_go_on_after_it_and_after_an_error():
    assert gc.isenabled()
    syntax_tree("x = 1")
    assert gc.isenabled()
    with pytest.raises(SyntaxError):
        syntax_tree("x = ")
    assert gc.isenabled()
    gc.disable()
    try:
        syntax_tree("x = 1")
        assert not gc.isenabled()
    finally:
        gc.enable()
