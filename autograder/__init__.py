"""How the course judges answers.

A notebook needs four names of it: :func:`check`, :func:`hint`, :func:`status`, and :func:`alt`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autograder.learner.figures import alt
    from autograder.learner.session import check, hint, status

__all__ = ["alt", "check", "hint", "status"]

_HOMES = {"alt": "figures", "check": "session", "hint": "session", "status": "session"}


def __getattr__(name: str) -> Any:
    # Loaded when first used: the engine's processes import this package without IPython.
    if name in _HOMES:
        import importlib  # noqa: PLC0415

        return getattr(importlib.import_module(f"autograder.learner.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'autograder' has no attribute {name!r}")
