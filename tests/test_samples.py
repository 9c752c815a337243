"""The sample class is written from its sources, and each submission gets what it must get."""

import json
from pathlib import Path

import pytest

from autograder.bench import sample_class
from autograder.bench.sample_class import EXPECTED, SAMPLES, Sample
from autograder.grading.batch import Batch, known_stems
from autograder.grading.store import Store
from autograder.grading.work import Options
from autograder.results import SubmissionResult, to_json
from autograder.submissions.find import find

CLASS = sample_class.samples()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SubmissionResult]:
    """The whole class, graded behind the engine."""
    store = Store(tmp_path_factory.mktemp("results"))
    batch = Batch(find([SAMPLES]), Options(stems=known_stems()), store, workers=2)
    batch.run()
    return {graded.result.submission: graded.result for _item, graded in batch.results()}


@pytest.mark.parametrize("sample", CLASS, ids=lambda sample: sample.name)
def test_what_is_committed_follows_its_sources(sample: Sample) -> None:
    path = SAMPLES / sample.path
    assert path.read_bytes() == sample.data, (
        "the samples are stale: run `python -m autograder.bench.sample_class`"
    )


def test_nothing_else_lies_among_the_samples() -> None:
    known = {SAMPLES / sample.path for sample in CLASS} | {EXPECTED}
    found = {path for path in SAMPLES.rglob("*") if path.is_file()}
    assert found == known


def test_there_is_a_row_for_each(results: dict[str, SubmissionResult]) -> None:
    assert set(results) == {sample.path for sample in CLASS}


@pytest.mark.parametrize("sample", CLASS, ids=lambda sample: sample.name)
def test_each_gets_what_it_must_get(sample: Sample, results: dict[str, SubmissionResult]) -> None:
    result = results[sample.path]
    assert result.status == sample.status, result.notes
    right = {item.id.partition(".")[2] for item in result.exercises if item.score == item.max_score}
    wanted = {item.id.partition(".")[2] for item in result.exercises}
    assert right == (wanted if sample.right is None else set(sample.right))
    found = {item.id.partition(".")[2]: item.diagnoses for item in result.exercises}
    for exercise, mistake in sample.mistakes.items():
        assert mistake in found[exercise]
    assert any(sample.says in note for note in result.notes) or not sample.says, result.notes


def test_points_are_those_that_are_kept(results: dict[str, SubmissionResult]) -> None:
    kept = json.loads(Path(EXPECTED).read_text(encoding="utf-8"))
    now = sample_class.expected([to_json(result) for result in results.values()])
    assert now == kept


def test_hidden_checks_tell_no_values(results: dict[str, SubmissionResult]) -> None:
    """No message of a hidden check holds a number with decimals: that would be a case's value."""
    for result in results.values():
        for exercise in result.exercises:
            for check in exercise.checks:
                if check.hidden:
                    assert "tensor(" not in check.message
