"""What a process that grades does: it owns an engine and a grader, and takes one job at a time."""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autograder.grading.store import to_plain
from autograder.results import ExerciseResult

if TYPE_CHECKING:
    from autograder.engine import Engine
    from autograder.engine.warm_process import Door
    from autograder.grading.run import Grader


@dataclass(frozen=True)
class Options:
    """What every submission of a run is graded with.

    Attributes:
        seed: the instructor's.
        sandbox: ``auto`` or ``none``.
        stems: the chapters that a submission may be of.
        expected: the one that it must be of, or "".
    """

    seed: int = 0
    sandbox: str = "auto"
    stems: tuple[str, ...] = ()
    expected: str = ""


@dataclass(frozen=True)
class Job:
    """One submission to grade.

    Attributes:
        index: its row.
        data: its bytes; nothing of them is looked at but by the reader, and nothing is run but in
            a sandbox.
        known: results that are kept, by their key.
        alone: nothing else runs meanwhile.
    """

    index: int
    name: str
    data: bytes
    known: Mapping[str, ExerciseResult] = field(default_factory=dict)
    alone: bool = False


_lock = threading.Lock()
_graders: dict[Options, tuple[Engine, Grader]] = {}


def prepare(options: Options, door: Door | None = None) -> Grader:
    """This process's grader, made once.

    Args:
        door: to another process's warm process, instead of one of its own.
    """
    # The process that hands out the work may need none of them.
    import torch  # noqa: PLC0415

    from autograder.engine import Engine  # noqa: PLC0415
    from autograder.grading.run import Grader  # noqa: PLC0415

    with _lock:
        if options not in _graders:
            # One thread: the engine's processes and the other workers have the other cores.
            torch.set_num_threads(1)
            # the bank's kernels run as the sandboxes run a learner's, on machines with a GPU too
            os.environ["TRITON_INTERPRET"] = "1"
            with warnings.catch_warnings():
                # the command says it once; each process need not
                warnings.simplefilter("ignore")
                engine = Engine(sandbox=options.sandbox, door=door)  # type: ignore[arg-type]
            atexit.register(engine.close)
            _graders[options] = engine, Grader(engine, seed=options.seed)
        return _graders[options][1]


def perform(job: Job, options: Options) -> dict[str, Any]:
    """Grade one submission; plain data, as it is kept."""
    grader = prepare(options)
    graded = grader.grade(
        job.data,
        job.name,
        stems=options.stems,
        expected=options.expected,
        known=job.known,
        alone=job.alone,
    )
    return to_plain(graded)


def close() -> None:
    """End this process's engines."""
    with _lock:
        while _graders:
            _options, (engine, _grader) = _graders.popitem()
            engine.close()
