"""What a process that grades does: it owns an engine and a grader, and takes one job at a time."""

from __future__ import annotations

import atexit
import os
import threading
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.grading.graded import Graded, hinted
from autograder.grading.store import to_plain
from autograder.i18n import _
from autograder.results import ExerciseResult
from autograder.sources import SourceError

if TYPE_CHECKING:
    from autograder.engine import Engine
    from autograder.engine.warm_process import Door
    from autograder.grading.run import Grader

_HERE = Path(__file__).parents[1]


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
    """Grade one submission; plain data, as it is kept.

    Raises:
        SourceError, SandboxUnavailable: nothing can be graded, whatever was handed in.
    """
    from autograder.engine import SandboxUnavailable  # noqa: PLC0415

    grader = prepare(options)
    try:
        graded = grader.grade(
            job.data,
            job.name,
            stems=options.stems,
            expected=options.expected,
            known=job.known,
            alone=job.alone,
        )
        return to_plain(graded)
    except (SourceError, SandboxUnavailable):
        raise
    except Exception as error:  # memory and recursion included: it costs this row alone
        return to_plain(_failed(error, job, options))


def _failed(error: Exception, job: Job, options: Options) -> Graded:
    """The result where the grader's own code raised, with the place where it did."""
    from autograder.grading.run import nothing  # noqa: PLC0415

    places = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in places if _HERE in Path(frame.filename).parents] or list(places)
    place = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    note = _(
        "The grader itself failed at this file ({kind} in {place}); look at it by hand, and "
        "report it."
    ).format(kind=type(error).__name__, place=place)
    stem = options.expected or hinted(job.name, options.stems)
    return Graded(nothing("crashed", stem, note), failed=True)


def close() -> None:
    """End this process's engines."""
    with _lock:
        while _graders:
            _options, (engine, _grader) = _graders.popitem()
            engine.close()
