"""Stands in for ``triton`` and ``triton.language`` where Triton cannot be installed.

Kernels can be defined with it, and a launch says in one line what is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

MISSING = (
    "Triton is not installed here (there is none for Windows and macOS): open this notebook in "
    "Colab to run its kernels"
)


class Kernel:
    """A kernel that cannot be launched."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = function
        self.__name__ = function.__name__

    def __getitem__(self, grid: Any) -> NoReturn:
        """Refuse to launch.

        Raises:
            RuntimeError: always; its text is for the learner.
        """
        raise RuntimeError(MISSING)


triton = tl = SimpleNamespace(jit=Kernel, constexpr=int)
