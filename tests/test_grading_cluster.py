"""The same grading on a Dask cluster, one of whose workers is killed in the middle."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from autograder.bench.sample_class import Author, saved
from autograder.grading import cluster
from autograder.grading.batch import Batch
from autograder.grading.cluster import Cluster, ClusterError
from autograder.grading.store import Store
from autograder.grading.work import Options
from autograder.submissions.find import find

AUTHOR = Author()
OPTIONS = Options(stems=("attention",))
TOTAL = sum(item.points for item in AUTHOR.exercises.values())

# Dask's own threads and sockets end a moment after their objects are collected.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


def test_a_cluster_with_a_killed_worker(tmp_path: Path) -> None:
    from distributed import LocalCluster

    # One answers everything; the others, to be graded soon, one exercise.
    count = 8
    one = "padding_mask"
    for number in range(count):
        answers = dict(AUTHOR.reference if number == 0 else {one: AUTHOR.reference[one]})
        answers[one] += f"# {number}\n"
        folder = tmp_path / "class" / f"learner-{number}"
        folder.mkdir(parents=True)
        (folder / "attention.ipynb").write_bytes(saved(AUTHOR.notebook(answers)))
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
    ) as local:
        spread = Cluster(OPTIONS, local.scheduler_address)
        plain = spread.map
        killed: list[int] = []

        def map_and_kill(jobs: Any) -> Any:
            for job, result in plain(jobs):
                if not killed:
                    pids = spread._client.run(os.getpid)
                    killed.append(next(iter(pids.values())))
                    os.kill(killed[0], signal.SIGKILL)
                yield job, result

        spread.map = map_and_kill  # type: ignore[method-assign]
        batch = Batch(find([tmp_path / "class"]), OPTIONS, Store(tmp_path / "kept"), spread=spread)
        batch.run()
        spread.close()
    assert killed
    results = [graded.result for _submission, graded in batch.results()]
    points = AUTHOR.exercises[one].points
    assert [result.score for result in results] == [TOTAL] + [points] * (count - 1)
    assert {result.status for result in results} == {"graded"}


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_PATIENCE", "500ms")
    with pytest.raises(ClusterError, match="no scheduler answers"):
        Cluster(OPTIONS, "tcp://127.0.0.1:9")
