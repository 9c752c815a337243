"""Reads Python into a syntax tree, whatever the process's other threads do meanwhile."""

from __future__ import annotations

import ast
import gc


def syntax_tree(text: str | bytes) -> ast.Module:
    """``ast.parse``, which Python 3.11 cannot run in two threads at once.

    While it builds the tree it counts its depth in one place for all threads. A collection of
    garbage may begin in the middle and run Python's code (Dask's, which times it, for one); the
    other thread's turn comes; and where that parses too, as it does to format a traceback, the
    first ends in "SystemError: AST constructor recursion depth mismatch"
    (github.com/python/cpython/issues/106905, mended in 3.11.8). So nothing is collected meanwhile.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as ``ast.parse``.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)  # noqa: TID251
    finally:
        if collects:
            gc.enable()
