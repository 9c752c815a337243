"""One line in place of a traceback, for cells that need an exercise without an answer yet."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any

from autograder.i18n import _
from autograder.learner import known

NEEDED = _("✘ `{name}` is not answered yet: this cell needs it.")
NOT_RUN = _("✘ `{name}` is not defined: run the cell above that holds its exercise first.")
MADE_FROM = _(
    "✘ `{made}` is missing: the cell that makes it needs `{name}`, which is not answered."
)


class Watcher:
    """Follows the cells of a notebook as they run, and explains those that fail for a stub.

    A cell that runs into an unanswered stub prints one line; so does a later cell that needs what
    such a cell would have made. Both still count as failed.
    """

    def __init__(self) -> None:
        self._missing: dict[str, str] = {}  # name: the exercise whose answer it waits for

    def install(self, shell: Any) -> None:
        """Start to watch an IPython shell; a second time does nothing."""
        if getattr(shell, "_course_watcher", None) is not None:
            return
        shell._course_watcher = self
        shell.set_custom_exc((Exception,), self._on_error)
        shell.events.register("post_run_cell", self._on_success)

    def _on_error(
        self,
        shell: Any,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
        tb_offset: int | None = None,
    ) -> None:
        line = None
        # A fault of ours must not stand between the learner and the error.
        with contextlib.suppress(Exception):
            line = self.explain(error, trace, _source_of(shell))
        if line is None:
            shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
        else:
            print(line)
            # what a front end would repeat in its reply is the last traceback, of another cell
            shell._last_traceback = [line]

    def _on_success(self, result: Any) -> None:
        if not self._missing or not result.success:
            return
        with contextlib.suppress(Exception):
            for name in _names(result.info.raw_cell).makes:
                self._missing.pop(name, None)

    def explain(self, error: BaseException, trace: TracebackType | None, source: str) -> str | None:
        """One line where an unanswered exercise is the reason, else None."""
        stub = _stub_behind(error, trace)
        if stub is not None:
            self._remember(source, stub)
            return NEEDED.format(name=stub)
        if isinstance(error, NameError):
            name = error.name or ""
            if name not in self._missing and known.by_name(name) is not None:
                return NOT_RUN.format(name=name)
        waiting = [name for name in sorted(_names(source).needs) if name in self._missing]
        if waiting:
            exercise = self._missing[waiting[0]]
            self._remember(source, exercise)
            return MADE_FROM.format(made=waiting[0], name=exercise)
        return None

    def _remember(self, source: str, exercise: str) -> None:
        with contextlib.suppress(SyntaxError):
            found = _names(source)
            for name in found.makes | found.changes:
                self._missing[name] = exercise


def _names(source: str) -> Any:
    from autograder.compose.names import names  # noqa: PLC0415 — asked for after a failure only

    return names(source)


def _source_of(shell: Any) -> str:
    """Source of the cell that is running."""
    return str(shell.history_manager.input_hist_raw[-1])


def _stub_behind(error: BaseException | None, trace: TracebackType | None) -> str | None:
    """Name of the exercise whose untouched stub raised, or None."""
    while error is not None:
        if type(error) is NotImplementedError and not error.args:
            last = error.__traceback__ or trace
            while last is not None and last.tb_next is not None:
                last = last.tb_next
            if last is not None:
                code = last.tb_frame.f_code
                # co_qualname is new in Python 3.11: "SelfAttention.forward"
                name = code.co_qualname.split(".")[0]
                if known.by_name(name) is not None:
                    return name
        error = error.__cause__ or error.__context__
    return None
