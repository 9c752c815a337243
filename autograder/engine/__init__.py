"""Runs learners' code in sandboxes, and lets a judge ask it questions.

>>> with Engine() as engine:                                        # doctest: +SKIP
...     link = engine.open([("answer", source)], "softmax", forbid=("torch.softmax",))
...     reply = link.request({"op": "call", "object": 0, "args": [scores]})

:class:`Engine` starts a warm process, which forks for every :meth:`Engine.open`;
:class:`SandboxLink` is the trusted end of one fork. The sandbox's side is in
:mod:`autograder.engine.warm` (walls) and :mod:`autograder.guest` (the loop, the executor).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autograder.engine.engine import Engine
    from autograder.engine.errors import SandboxUnavailable
    from autograder.engine.limits import Limits
    from autograder.engine.link import SandboxLink

__all__ = ["Engine", "Limits", "SandboxLink", "SandboxUnavailable"]

_HOMES = {
    "Engine": "engine",
    "Limits": "limits",
    "SandboxLink": "link",
    "SandboxUnavailable": "errors",
}


def __getattr__(name: str) -> Any:
    # Loaded when first used: who grades nothing anew needs no torch.
    if name in _HOMES:
        return getattr(importlib.import_module(f"autograder.engine.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'autograder.engine' has no attribute {name!r}")
