"""Runs learners' code in sandboxes, and lets a judge ask it questions.

>>> with Engine() as engine:                                        # doctest: +SKIP
...     link = engine.open([("answer", source)], "softmax", forbid=("torch.softmax",))
...     reply = link.request({"op": "call", "object": 0, "args": [scores]})

:class:`Engine` starts a warm process, which forks for every :meth:`Engine.open`;
:class:`SandboxLink` is the trusted end of one fork. The sandbox's side is in
:mod:`autograder.engine.warm` (walls) and :mod:`autograder.guest` (the loop, the executor).
"""

from autograder.engine.engine import Engine, SandboxUnavailable
from autograder.engine.limits import Limits
from autograder.engine.link import SandboxLink

__all__ = ["Engine", "Limits", "SandboxLink", "SandboxUnavailable"]
