"""An engine without a sandbox and without a process, for submissions that the tests wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autograder.answer import Callbacks, Link, LocalLink


class InProcess:
    """Runs cells here. It counts what it was asked to run."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, tuple[tuple[str, str], ...]]] = []

    def open(
        self,
        cells: Sequence[tuple[str, str]],
        name: str,
        *,
        modules: Mapping[str, str] | None = None,
        forbid: Iterable[str] = (),
        callbacks: Callbacks | None = None,
    ) -> Link:
        """See :class:`autograder.grading.run.Engine`."""
        self.opened.append((name, tuple(cells)))
        namespace: dict[str, Any] = {"__name__": "__main__"}
        errors = []
        for label, source in cells:
            try:
                exec(compile(source, f"<{label}>", "exec", dont_inherit=True), namespace)
            except Exception as error:
                errors.append((label, error))
        if name not in namespace:
            return _Nothing(errors)
        return LocalLink(namespace[name], forbid=forbid, callbacks=callbacks)


class _Nothing:
    """A link to an answer that its cells did not define."""

    def __init__(self, errors: list[tuple[str, Exception]]) -> None:
        self.startup = {
            "found": False,
            "cells": [
                {
                    "label": label,
                    "error": {
                        "error": type(error).__name__,
                        "text": str(error),
                        "line": None,
                        "unanswered": isinstance(error, NotImplementedError),
                    },
                }
                for label, error in errors
            ],
        }

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Never asked: the grader looks at the report first."""
        raise AssertionError(message)
