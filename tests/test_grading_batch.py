"""A class is graded, kept, taken up again; nothing of it is lost, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from autograder import chapters
from autograder.bench.sample_class import Author, saved
from autograder.grading import keys, work
from autograder.grading.batch import Batch, known_stems
from autograder.grading.cluster import ClusterError, check_address
from autograder.grading.command import main
from autograder.grading.pool import Inline, Pool
from autograder.grading.run import Grader
from autograder.grading.store import Store, write_whole
from autograder.grading.work import Options
from autograder.results import SubmissionResult, to_json
from autograder.submissions.find import find
from autograder.submissions.read import Notebook, read
from tests.in_process import InProcess

AUTHOR = Author()
OPTIONS = Options(stems=("attention",))


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Four submissions, one of them unreadable."""
    folder = tmp_path / "class"
    wrong = {**AUTHOR.reference, "padding_mask": AUTHOR.wrong["padding_mask"]["true_at_padding"]}
    for name, data in {
        "right": saved(AUTHOR.notebook(AUTHOR.reference)),
        "untouched": saved(AUTHOR.notebook({})),
        "wrong": saved(AUTHOR.notebook(wrong)),
        "zip": b"nothing",
    }.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "attention.ipynb").write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def shared() -> tuple[InProcess, Grader]:
    """A grader finds out once how the bank behaves; of submissions it remembers nothing."""
    found = InProcess()
    return found, Grader(found)


@pytest.fixture
def engine(shared: tuple[InProcess, Grader], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """An engine in this process, in the place of the sandboxed one."""
    found, grader = shared
    found.opened.clear()
    monkeypatch.setattr(work, "prepare", lambda options: grader)
    return found


def run(folder: Path, store: Store, **keys: Any) -> tuple[Batch, list[SubmissionResult]]:
    batch = Batch(find([folder]), OPTIONS, store, **keys)
    batch.run()
    return batch, [graded.result for _submission, graded in batch.results()]


def as_json(results: list[SubmissionResult]) -> str:
    return json.dumps([to_json(result) for result in results])


def test_a_second_run_finds_everything(few: Path, tmp_path: Path, engine: InProcess) -> None:
    first, results = run(few, Store(tmp_path / "kept"))
    assert first.graded == 4
    assert not first.unsettled
    assert [r.status for r in results] == ["graded", "empty", "graded", "unreadable"]
    engine.opened.clear()
    second, again = run(few, Store(tmp_path / "kept"))
    assert second.graded == 0
    assert engine.opened == []
    assert as_json(again) == as_json(results)


def test_a_changed_check_is_graded_again_and_nothing_else(
    few: Path, tmp_path: Path, engine: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    _batch, results = run(few, Store(tmp_path / "kept"))
    monkeypatch.setattr("autograder.grading.wholes.sources_now", lambda: "another file")
    before = keys.judgement
    monkeypatch.setattr(
        keys, "judgement", lambda stem, name: before(stem, name) + "+" * (name == "padding_mask")
    )
    engine.opened.clear()
    second, again = run(few, Store(tmp_path / "kept"))
    assert second.graded == 4
    assert {name for name, _cells in engine.opened} == {"padding_mask"}
    assert as_json(again) == as_json(results)


def test_another_seed_is_another_result(few: Path, tmp_path: Path, engine: InProcess) -> None:
    run(few, Store(tmp_path / "kept"))
    batch = Batch(find([few]), Options(seed=1, stems=("attention",)), Store(tmp_path / "kept"))
    batch.run()
    assert batch.graded == 4


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 99}', "null", "\x00"])
def test_a_damaged_result_is_made_again(
    few: Path, tmp_path: Path, engine: InProcess, text: str
) -> None:
    _batch, results = run(few, Store(tmp_path / "kept"))
    for path in (tmp_path / "kept").rglob("*.json"):
        path.write_text(text, encoding="utf-8")
    batch, again = run(few, Store(tmp_path / "kept"))
    assert batch.graded == 4
    assert as_json(again) == as_json(results)


def test_a_full_disk_ends_no_run(
    few: Path, tmp_path: Path, engine: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    _batch, results = run(few, Store(tmp_path / "kept"))
    full = Store(tmp_path / "full")

    def refuse(*_args: Any, **_keys: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("autograder.grading.store.write_whole", refuse)
    batch, again = run(few, full)
    assert full.failure == "No space left on device"
    assert batch.unsettled
    assert as_json(again) == as_json(results)


def test_a_file_is_written_whole_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    write_whole(path, "old")

    def stop(*_args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["x.json"]


class _Losing:
    """Loses the process of some jobs, so many times."""

    def __init__(self, times: int) -> None:
        self.times = times
        self._inline = Inline(OPTIONS)

    def map(self, jobs: Any) -> Any:
        for job, result in self._inline.map(jobs):
            self.times -= 1
            yield job, None if self.times >= 0 else result

    def close(self) -> None:
        pass


def test_a_lost_process_costs_a_second_try(
    few: Path, tmp_path: Path, engine: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    _batch, results = run(few, Store(tmp_path / "kept"))
    monkeypatch.setattr("autograder.grading.batch.Pool", lambda options, workers: _Losing(0))
    _batch, again = run(few, Store(tmp_path / "more"), spread=_Losing(2))
    assert as_json(again) == as_json(results)


def test_a_file_that_ends_its_process_twice_has_a_row(
    few: Path, tmp_path: Path, engine: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autograder.grading.batch.Pool", lambda options, workers: _Losing(1))
    _batch, results = run(few, Store(tmp_path / "more"), spread=_Losing(1))
    lost = [result for result in results if result.status == "crashed"]
    assert len(lost) == 1
    assert "by hand" in lost[0].notes[0]
    assert lost[0].max_score > 0


# --- with real processes -----------------------------------------------------------------------


def test_a_killed_worker_and_a_killed_run(few: Path, tmp_path: Path) -> None:
    """kill -9 of a worker in the middle, then of the run: the next one ends in the same results."""
    for number in range(8):
        # One exercise: each is graded soon, and is another submission all the same.
        answers = {"padding_mask": AUTHOR.reference["padding_mask"] + f"# {number}"}
        path = few / f"more-{number}" / "attention.ipynb"
        path.parent.mkdir()
        path.write_bytes(saved(AUTHOR.notebook(answers)))
    pool = Pool(OPTIONS, 2)
    batch = Batch(find([few]), OPTIONS, Store(tmp_path / "kept"), spread=pool)
    killed = []
    lost = []
    plain = pool.map

    def map_and_kill(jobs: Any) -> Any:
        for job, result in plain(jobs):
            if not killed:
                killed.append(_kill_a_worker(pool))
            if result is None:
                lost.append(job)
            yield job, result

    pool.map = map_and_kill  # type: ignore[method-assign]
    batch.run()
    pool.close()
    assert killed
    assert lost
    found = [graded.result for _submission, graded in batch.results()]
    assert [r.status for r in found] == ["graded"] * 9 + ["empty", "graded", "unreadable"]

    process = subprocess.Popen(
        [sys.executable, "-c", _RUN_AND_STOP, str(few), str(tmp_path / "other")],
        cwd=chapters.ROOT,
        env={**os.environ, "PYTHONPATH": str(chapters.ROOT)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"three are done\n"
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    # nothing lives on: neither those that judge, nor the warm process, nor a sandbox
    assert family
    assert not psutil.wait_procs(family, timeout=10)[1]
    kept = len(list((tmp_path / "other").rglob("[!.]*.json")))
    second = Batch(find([few]), OPTIONS, Store(tmp_path / "other"))
    second.run()
    assert kept == 3
    assert second.graded == 12 - kept
    again = [graded.result for _submission, graded in second.results()]
    assert as_json(again) == as_json(found)


# Its main process stops in the middle of the run; the others work on.
_RUN_AND_STOP = """
import sys, time
from pathlib import Path
from tests.test_grading_batch import OPTIONS, Batch, Store, find

class Stop:
    done = 0
    def advance(self, name, *, kept=False):
        self.done += 1
        if self.done == 3:
            print("three are done", flush=True)
            time.sleep(600)

store = Store(Path(sys.argv[2]))
Batch(find([Path(sys.argv[1])]), OPTIONS, store, workers=2, progress=Stop()).run()
"""


def _kill_a_worker(pool: Pool) -> int:
    assert pool._executor is not None
    pid = next(iter(pool._executor._processes))
    os.kill(pid, signal.SIGKILL)
    return pid


# --- the command -------------------------------------------------------------------------------


def test_the_command_writes_what_the_design_says(
    few: Path,
    tmp_path: Path,
    engine: InProcess,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("autograder.grading.batch.RESULTS", tmp_path / "kept")
    monkeypatch.setattr("autograder.grading.command.known_stems", lambda: ("attention",))
    target = tmp_path / "out" / "grades.json"
    monkeypatch.setattr("autograder.grading.batch.Pool", lambda options, workers: Inline(options))
    assert main([str(few), "--json", str(target), "--workers", "1"]) == 0
    found = json.loads(target.read_text(encoding="utf-8"))
    assert [item["submission"] for item in found] == [
        f"{name}/attention.ipynb" for name in ("right", "untouched", "wrong", "zip")
    ]
    assert list(found[0]) == [
        "submission",
        "chapter",
        "status",
        "score",
        "max_score",
        "notes",
        "exercises",
    ]
    check = found[2]["exercises"][2]["checks"][1]
    assert list(check) == [
        "name",
        "points",
        "max_points",
        "hidden",
        "passed",
        "message",
        "diagnosis",
    ]
    assert check["diagnosis"] == "true_at_padding"
    out = capsys.readouterr().out
    assert "4 submissions: 2 graded, 1 unreadable, 1 empty" in out


@pytest.mark.parametrize(
    ("argv", "says"),
    [(["nothing-there"], "there is no nothing-there"), (["{folder}"], "nothing to grade")],
)
def test_the_command_says_in_one_line_what_is_wrong(
    argv: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert main([item.format(folder=tmp_path / "empty") for item in argv]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("address", ["tls://10.0.0.1:8786", "tcp://127.0.0.1:8786", "localhost:1"])
def test_safe_addresses(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:8786", "example.org:8786", "ws://x:1", "x"])
def test_addresses_where_somebody_could_listen(address: str) -> None:
    with pytest.raises(ClusterError, match="TLS"):
        check_address(address)


def test_keys_follow_what_they_should() -> None:
    """Each exercise depends on its own checks and wrong answers, not on those of another."""
    checks = chapters.ROOT / "autograder" / "checks" / "attention.py"
    bank = chapters.ROOT / "autograder" / "answers" / "attention.py"
    own = "\n".join(keys._own_checks(checks, "padding_mask"))
    assert "def real_tokens_are_allowed" in own
    assert "def weights_sum_to_one" not in own
    answers = "\n".join(keys._own_answers(bank, "padding_mask"))
    assert "def true_at_padding" in answers
    assert "def by_indexing" not in answers  # right answers judge nobody
    assert "def mask_after_softmax" not in answers


def test_every_composed_chapter_is_known() -> None:
    assert "attention" in known_stems()


@pytest.mark.parametrize("kind", [RecursionError, MemoryError, ZeroDivisionError])
def test_an_error_of_the_grader_costs_one_row_and_is_not_kept(
    few: Path,
    tmp_path: Path,
    engine: InProcess,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Exception],
) -> None:
    def broken(data: bytes, name: str = "") -> Notebook:
        if data == b"nothing":
            raise kind
        return read(data, name)

    monkeypatch.setattr("autograder.grading.run.read", broken)
    _batch, results = run(few, Store(tmp_path / "kept"), keep_open=True)
    assert [item.status for item in results] == ["graded", "empty", "graded", "crashed"]
    assert kind.__name__ in results[3].notes[0]
    assert results[3].max_score == results[0].max_score
    monkeypatch.undo()
    monkeypatch.setattr(work, "prepare", lambda options: Grader(engine))
    batch, results = run(few, Store(tmp_path / "kept"), keep_open=True)
    assert (batch.graded, results[3].status) == (1, "unreadable")


def test_an_interrupt_is_no_error_of_a_submission(
    few: Path, tmp_path: Path, engine: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(data: bytes, name: str = "") -> Notebook:
        raise KeyboardInterrupt

    monkeypatch.setattr("autograder.grading.run.read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(few, Store(tmp_path / "kept"), keep_open=True)


def test_the_same_bytes_under_another_name_are_another_result(
    tmp_path: Path, engine: InProcess
) -> None:
    data = saved(AUTHOR.notebook(AUTHOR.reference))
    folder = tmp_path / "class"
    for name in ("ada/attention.ipynb", "eve/attention.py", "zoe/work.ipynb"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(data)
    for _attempt in range(2):
        _batch, results = run(folder, Store(tmp_path / "kept"))
        ada, eve, zoe = results
        assert (ada.status, eve.score) == ("graded", 0)
        assert ada.score == ada.max_score == zoe.score
    batch, (alone,) = run(folder / "ada", Store(tmp_path / "kept"))
    assert (batch.graded, alone.score) == (0, ada.score)


def test_strange_text_of_one_submission_reaches_no_terminal_and_ends_no_run(
    few: Path,
    tmp_path: Path,
    engine: InProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    strange = "\x1b[2J\ud800\nada/attention.ipynb  graded  100/100"
    answers = {**AUTHOR.reference, "padding_mask": f"raise ValueError({strange!r})"}
    path = few / "wrong" / "attention.ipynb"
    path.write_bytes(saved(AUTHOR.notebook(answers)))
    (few / "\udcff\x1b").mkdir()
    (few / "\udcff\x1b" / "attention.ipynb").write_bytes(path.read_bytes())

    def noted(data: bytes, name: str = "") -> Notebook:
        found = read(data, name)
        return replace(found, notes=(*found.notes, strange))

    monkeypatch.setattr("autograder.grading.run.read", noted)
    monkeypatch.setattr(
        "autograder.grading.command.Batch",
        partial(Batch, store=Store(tmp_path / "kept"), keep_open=True),
    )
    target = tmp_path / "all.json"
    rc = main([str(few), "--json", str(target), "--report", str(tmp_path / "r"), "--workers", "1"])
    said = capsys.readouterr()
    assert rc == 0
    assert "\x1b" not in said.out + said.err
    assert not any(line.startswith("ada/") for line in said.out.splitlines())
    rows = json.loads(target.read_bytes())
    assert len(rows) == 5
    assert not any("\x1b" in note or "\n" in note for row in rows for note in row["notes"])
