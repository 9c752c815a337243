"""One line in place of a traceback, for cells that need an exercise without an answer yet."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import TYPE_CHECKING, Any

from autograder.i18n import _
from autograder.learner import known

if TYPE_CHECKING:
    from autograder.compose.names import Names

NEEDED = _("✘ `{name}` is not answered yet: this cell needs it.")
NOT_RUN = _("✘ `{name}` is not defined: run the cell above that makes it first.")
MADE_FROM = _("✘ `{made}` is missing: the cell that makes it needs `{name}`, not answered yet.")


class Watcher:
    """Follows the cells of a notebook as they run, and explains those that fail for a stub.

    A cell that runs into an unanswered stub prints one line; so does a later cell that needs what
    such a cell would have made. Both still count as failed.
    """

    def __init__(self) -> None:
        self._cell = ""
        self._missing: dict[str, str] = {}  # a name, and the exercise whose answer it waits for

    def install(self, shell: Any) -> None:
        """Start to watch an IPython shell, unless one watches it already."""
        if getattr(shell, "_course_watcher", None) is not None:
            return
        shell._course_watcher = self
        shell.set_custom_exc((Exception,), self._on_error)
        shell.events.register("pre_run_cell", self._before)
        shell.events.register("post_run_cell", self._after)

    def _before(self, info: Any) -> None:
        self._cell = info.raw_cell

    def _after(self, result: Any) -> None:
        if self._missing and result.success:
            for name in _names(self._cell).makes:
                self._missing.pop(name, None)

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
            line = self.explain(error)
        if line is None:
            shell.showtraceback(
                (kind, error, trace), tb_offset=tb_offset, running_compiled_code=True
            )
            return
        print(line)
        # The kernel's reply repeats the last traceback, which would be that of another cell.
        shell._last_traceback = [line]

    def explain(self, error: BaseException) -> str | None:
        """One line where an unanswered exercise is the reason for the running cell's error."""
        stub = _stub_behind(error)
        found = _names(self._cell)
        if stub is not None:
            self._remember(found, stub)
            return NEEDED.format(name=stub)
        waiting = sorted(found.needs & self._missing.keys())
        if waiting:
            exercise = self._missing[waiting[0]]
            self._remember(found, exercise)
            return MADE_FROM.format(made=waiting[0], name=exercise)
        if isinstance(error, NameError) and error.name and known.by_name(error.name):
            return NOT_RUN.format(name=error.name)
        return None

    def _remember(self, found: Names, exercise: str) -> None:
        self._missing |= dict.fromkeys(found.makes | found.changes, exercise)


def _names(source: str) -> Names:
    # Asked for after a failure only: most notebooks never need it.
    from autograder.compose.names import Names, names  # noqa: PLC0415

    try:
        return names(source)
    except SyntaxError:
        return Names()


def _stub_behind(error: BaseException | None) -> str | None:
    """Name of the exercise whose untouched stub raised, or None."""
    while error is not None:
        if type(error) is NotImplementedError and not error.args:
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            if trace is not None:
                # such as "SelfAttention.forward"; the exercise is the outermost name
                name = trace.tb_frame.f_code.co_qualname.split(".")[0]
                if known.by_name(name) is not None:
                    return name
        error = error.__cause__ or error.__context__
    return None
