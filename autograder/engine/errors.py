"""What the engine raises where it cannot work. Without torch, so that it can be caught without."""

from __future__ import annotations


class SandboxUnavailable(RuntimeError):
    """This machine cannot run a learner's code safely. One line says why."""
