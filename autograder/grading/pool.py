"""Spreads jobs over processes of this machine. One that is killed costs its own jobs a second try.

All ways to spread jobs have one method: ``map`` takes jobs and yields each with what became of it,
in any order; None where the process that had it is gone.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from concurrent.futures.thread import ThreadPoolExecutor
from itertools import islice
from multiprocessing import forkserver, get_all_start_methods, get_context
from multiprocessing.context import BaseContext
from typing import Any, Protocol

from autograder.engine import warm_process
from autograder.engine.limits import Limits
from autograder.engine.warm_process import Door, WarmProcess
from autograder.grading import work
from autograder.grading.work import Job, Options

# The last one torch loads when it differentiates for the first time.
_PRELOAD = [
    "autograder.grading.work",
    "autograder.grading.run",
    "autograder.engine.engine",
    "torch.fx.experimental.symbolic_shapes",
]
# So many processes share a warm one: it makes a sandbox in a tenth of the time that one is used.
_SHARE = 4
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
    """``workers`` processes that judge; a few share a warm process, which makes the sandboxes."""

    def __init__(self, options: Options, workers: int) -> None:
        self._options = options
        self._workers = workers
        self._executor: ProcessPoolExecutor | None = None
        self._warm: list[WarmProcess] | None = None

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
                self._executor = self._start()
            try:
                return self._executor.submit(work.perform, job, self._options)
            except BrokenProcessPool:
                self._discard()
        raise BrokenProcessPool("no process can be started")

    def _start(self) -> ProcessPoolExecutor:
        context = _context()
        if self._warm is None:
            self._warm = self._start_warm(context)
        doors = tuple(warm.door() for warm in self._warm)
        return ProcessPoolExecutor(self._workers, context, _begin, (self._options, doors))

    def _start_warm(self, context: BaseContext) -> list[WarmProcess]:
        if context.get_start_method() != "forkserver" or self._options.sandbox == "none":
            return []
        forkserver.ensure_running()  # it has its own imports to do meanwhile
        count = -(-self._workers // _SHARE)
        with ThreadPoolExecutor(count) as threads:
            started = [
                threads.submit(warm_process.start, self._options.sandbox, Limits())  # type: ignore[arg-type]
                for _ in range(count)
            ]
        return [job.result()[0] for job in started]

    def _discard(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def close(self) -> None:
        """See :class:`Spread`."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None
        for warm in self._warm or ():
            warm.stop()
        self._warm = None


def _begin(options: Options, doors: Sequence[Door]) -> None:
    """A worker's first step. It ends with the process that started it, however that ends."""
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    mine = doors[os.getpid() % len(doors)] if doors else None
    for door in doors:
        if door is not mine:
            door.control.close()
    work.prepare(options, mine)


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _context() -> BaseContext:
    """How processes start: not as a fork of this one, since it has threads, and their locks.

    Where there is a fork server, it imports torch once for all workers.
    """
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context
