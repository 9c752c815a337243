"""Spreads jobs over processes of this machine. One that is killed costs its own jobs a second try.

All ways to spread jobs have one method: ``map`` takes jobs and yields each with what became of it,
in any order; None where the process that had it is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.context import BaseContext
from typing import Any, Protocol

from autograder.grading import work
from autograder.grading.work import Job, Options

# The last one torch loads when it differentiates for the first time.
_PRELOAD = [
    "autograder.grading.work",
    "autograder.grading.run",
    "autograder.engine.engine",
    "torch.fx.experimental.symbolic_shapes",
]
Done = tuple[Job, dict[str, Any] | None]


class Spread(Protocol):
    """A way to spread jobs."""

    def map(self, jobs: Iterable[Job]) -> Iterator[Done]:
        """Each job with its result, as they come."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


class Inline:
    """One job after the other, in this process."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def map(self, jobs: Iterable[Job]) -> Iterator[Done]:
        """See :class:`Spread`."""
        for job in jobs:
            yield job, work.perform(job, self._options)

    def close(self) -> None:
        """See :class:`Spread`."""
        work.close()


class Pool:
    """``workers`` processes, each with its own engine."""

    def __init__(self, options: Options, workers: int) -> None:
        self._options = options
        self._workers = workers
        self._executor: ProcessPoolExecutor | None = None

    def map(self, jobs: Iterable[Job]) -> Iterator[Done]:
        """See :class:`Spread`. Only a few jobs are read ahead, so memory does not grow."""
        waiting = iter(jobs)
        pending: dict[Future[dict[str, Any]], Job] = {}
        while True:
            for job in islice(waiting, 2 * self._workers - len(pending)):
                pending[self._submit(job)] = job
            if not pending:
                return
            done, _rest = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                job = pending.pop(future)
                try:
                    result = future.result()
                except BrokenProcessPool:
                    result = None
                    self._discard()
                yield job, result

    def _submit(self, job: Job) -> Future[dict[str, Any]]:
        for _attempt in range(2):
            if self._executor is None:
                self._executor = ProcessPoolExecutor(
                    self._workers, _context(), work.prepare, (self._options,)
                )
            try:
                return self._executor.submit(work.perform, job, self._options)
            except BrokenProcessPool:
                self._discard()
        raise BrokenProcessPool("no process can be started")

    def _discard(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def close(self) -> None:
        """See :class:`Spread`."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None


def _context() -> BaseContext:
    """How processes start: not as a fork of this one, since it has threads, and their locks.

    Where there is a fork server, it imports torch once for all workers.
    """
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context
