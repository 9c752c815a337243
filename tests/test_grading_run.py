"""One submission, from its bytes to its result: whatever it holds, there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from autograder import chapters
from autograder.answer import LinkLost
from autograder.bench.sample_class import Author, cell_of, code, insert_before, saved
from autograder.grading.graded import Graded
from autograder.grading.run import Grader
from autograder.guest.wire import decode, pack
from tests.in_process import InProcess

AUTHOR = Author()
STEMS = ("intro", "attention")
RIGHT = AUTHOR.notebook(AUTHOR.reference)
TOTAL = sum(item.points for item in AUTHOR.exercises.values())


@pytest.fixture(scope="module")
def grader() -> Grader:
    return Grader(InProcess())


def grade(grader: Grader, data: bytes, name: str = "attention.ipynb", **keys: Any) -> Graded:
    return grader.grade(data, name, stems=STEMS, **keys)


def test_a_right_answer_gets_all_points(grader: Grader) -> None:
    result = grade(grader, saved(RIGHT)).result
    assert (result.status, result.chapter, result.score) == ("graded", "attention", TOTAL)
    assert result.notes == ()


def test_an_untouched_notebook_gets_none_and_is_empty(grader: Grader) -> None:
    result = grade(grader, saved(AUTHOR.notebook({}))).result
    assert (result.status, result.score) == ("empty", 0)
    assert result.max_score == TOTAL


@pytest.mark.parametrize(
    ("data", "name", "status", "chapter"),
    [
        (b"", "attention.ipynb", "unreadable", "attention"),
        (b"%PDF-1.4", "x.ipynb", "unreadable", ""),
        (b'{"cells": []}', "attention.ipynb", "empty", "attention"),
        (b'{"cells": [{"cell_type": "code", "source": "1"}]}', "x.ipynb", "unreadable", ""),
    ],
)
def test_what_cannot_be_graded(
    grader: Grader, data: bytes, name: str, status: str, chapter: str
) -> None:
    result = grade(grader, data, name).result
    assert (result.status, result.chapter, result.score) == (status, chapter, 0)
    assert len(result.notes) == 1
    assert result.max_score == (TOTAL if chapter else 0)


def test_a_notebook_of_another_chapter(grader: Grader) -> None:
    """It is graded as what it is, but not where one chapter is asked for."""
    data = saved(Author("intro").notebook({}))
    assert grade(grader, data).result.chapter == "intro"
    result = grade(grader, data, expected="attention").result
    assert (result.chapter, result.status, result.score) == ("attention", "empty", 0)
    assert "`intro`" in result.notes[0]
    assert result.max_score == TOTAL


def test_a_cell_that_python_cannot_read_says_where(grader: Grader) -> None:
    source = "def padding_mask(ids):\n    return (ids != 0\n"
    answers = {**AUTHOR.reference, "padding_mask": source}
    result = grade(grader, saved(AUTHOR.notebook(answers))).result
    assert result.score == TOTAL - AUTHOR.exercises["padding_mask"].points
    message = next(e for e in result.exercises if e.id.endswith("padding_mask")).checks[0].message
    assert "line 2" in message


@pytest.mark.parametrize(
    ("line", "says"),
    [("x = 0" + " + 1" * 20_000, "nested too deeply"), ("x;" * 6_000, "too long")],
)
def test_a_cell_that_is_too_much_says_so_and_costs_itself(
    grader: Grader, line: str, says: str
) -> None:
    source = f"def padding_mask(ids):\n    {line}\n    return ids\n"
    result = grade(grader, saved(AUTHOR.notebook({**AUTHOR.reference, "padding_mask": source})))
    assert result.result.score == TOTAL - AUTHOR.exercises["padding_mask"].points
    found = next(e for e in result.result.exercises if e.id.endswith("padding_mask"))
    assert says in found.checks[0].message
    assert "bracket" not in found.checks[0].message
    assert says in result.result.notes[0]


def test_an_answer_whose_cell_raises_says_what(grader: Grader) -> None:
    source = "@nothing\ndef padding_mask(ids):\n    return ids\n"
    answers = {**AUTHOR.reference, "padding_mask": source}
    result = grade(grader, saved(AUTHOR.notebook(answers))).result
    message = next(e for e in result.exercises if e.id.endswith("padding_mask")).checks[0].message
    assert "NameError" in message
    assert "nothing" in message


def test_a_follow_up_names_its_cause(grader: Grader) -> None:
    answers = {**AUTHOR.reference, "masked_softmax": AUTHOR.wrong["masked_softmax"]["mask_ignored"]}
    result = grade(grader, saved(AUTHOR.notebook(answers))).result
    (note,) = result.notes
    assert note.startswith("`masked_softmax` is not right")
    assert "`scaled_dot_product_attention`" in note
    assert result.status == "graded"


def test_a_warning_on_standard_error_costs_nothing(grader: Grader) -> None:
    notebook = AUTHOR.notebook(AUTHOR.reference)
    cell = cell_of(notebook, "padding_mask")
    cell["source"] = cell["source"].replace(
        "return", "import sys; print('hm', file=sys.stderr); return"
    )
    insert_before(notebook, "padding_mask", code("import warnings; warnings.warn('x')"))
    assert grade(grader, saved(notebook)).result.score == TOTAL


class _Breaking(InProcess):
    """Loses every link to one exercise, for a reason."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__()
        self.name, self.reason = name, reason

    def open(self, cells: Any, name: str, **keys: Any) -> Any:
        link = super().open(cells, name, **keys)
        if name != self.name:
            return link
        reason = self.reason

        class Lost:
            def request(self, message: dict[str, Any]) -> dict[str, Any]:
                raise LinkLost(reason)

        return Lost()


@pytest.mark.parametrize(
    ("reason", "status"),
    [("timeout", "timeout"), ("memory", "memory"), ("crashed", "crashed"), ("garbled", "crashed")],
)
def test_a_limit_costs_its_exercise_alone_and_is_tried_again(reason: str, status: str) -> None:
    engine = _Breaking("padding_mask", reason)
    grader = Grader(engine)
    first = grade(grader, saved(RIGHT))
    assert first.again == ("attention.padding_mask",)
    asked = sum(name == "padding_mask" for name, _cells in engine.opened)
    assert asked == 1  # given up at once: it will be tried alone
    known = {
        first.keys[item.id]: item for item in first.result.exercises if item.id not in first.again
    }
    engine.opened.clear()
    second = grade(grader, saved(RIGHT), known=known, alone=True)
    assert {name for name, _cells in engine.opened} == {"padding_mask"}
    checks = len(AUTHOR.exercises["padding_mask"].checks)
    assert len(engine.opened) == checks  # each check its one full chance
    assert second.again == ()
    assert second.result.status == status
    assert second.result.score == TOTAL - AUTHOR.exercises["padding_mask"].points


def test_what_is_known_is_not_run_again(grader: Grader) -> None:
    first = grade(grader, saved(RIGHT))
    known = {first.keys[item.id]: item for item in first.result.exercises}
    engine = InProcess()
    second = Grader(engine).grade(saved(RIGHT), "attention.ipynb", stems=STEMS, known=known)
    assert engine.opened == []
    assert second.result == first.result


SPOILED = """\
calls = []
def padding_mask(ids, padding_id=0):
    calls.append(1)
    if len(calls) > 1:
        raise ValueError("only once")
    return (ids != padding_id).unsqueeze(-2)
"""


def test_a_failed_check_is_asked_again_in_a_fresh_sandbox() -> None:
    """What an earlier check spoiled costs nothing, and that answer counts."""
    engine = InProcess()
    answers = {**AUTHOR.reference, "padding_mask": SPOILED}
    result = grade(Grader(engine), saved(AUTHOR.notebook(answers))).result
    checks = next(e for e in result.exercises if e.id.endswith("padding_mask")).checks
    opened = sum(name == "padding_mask" for name, _cells in engine.opened)
    assert opened == len(checks)  # one for all, and one more for each but the first
    assert sum(check.passed for check in checks) >= 2


def test_a_known_mistake_needs_no_second_sandbox() -> None:
    engine = InProcess()
    answers = {**AUTHOR.reference, "padding_mask": AUTHOR.wrong["padding_mask"]["true_at_padding"]}
    result = grade(Grader(engine), saved(AUTHOR.notebook(answers))).result
    checks = next(e for e in result.exercises if e.id.endswith("padding_mask")).checks
    assert {check.diagnosis for check in checks if not check.passed} == {"true_at_padding"}
    assert sum(name == "padding_mask" for name, _cells in engine.opened) == 1


# Right implementations come again and again: this one asks whether it saw these numbers before.
COMPARES = """
_seen = []
def mask_test(attention):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 4)
    mask = torch.tensor([True, True, False, True, False]).expand(2, 3, 5)
    found = attention(q, k, v, mask)[0]
    assert {first}
    if not any(torch.allclose(found, item, atol=1e-4) for item in _seen):
        _seen.append(found)
        assert {other}
"""


@cache
def seeded(seed: int) -> Grader:
    return Grader(InProcess(), seed=seed)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("first", "other"),
    [
        ("True", "len(_seen) == 1"),  # the first one is right, and what equals it
        ("_seen or _seen.append(found)", "True"),
        ("len(_seen) < 2", "True"),
    ],
)
def test_a_learners_test_that_compares_with_what_it_saw_earns_nothing(
    first: str, other: str, seed: int
) -> None:
    answers = {"mask_test": COMPARES.format(first=first, other=other)}
    result = grade(seeded(seed), saved(AUTHOR.notebook(answers))).result
    assert next(e for e in result.exercises if e.id.endswith("mask_test")).score == 0


def test_a_learners_test_is_asked_once_more_of_two() -> None:
    engine = InProcess()
    answers = {"mask_test": AUTHOR.reference["mask_test"]}
    result = grade(Grader(engine), saved(AUTHOR.notebook(answers))).result
    assert result.score == AUTHOR.exercises["mask_test"].points
    assert sum(name == "mask_test" for name, _cells in engine.opened) == 3


def test_a_bug_that_is_handed_out_is_not_explained(grader: Grader) -> None:
    result = grade(grader, saved(AUTHOR.notebook({}))).result
    checks = next(e for e in result.exercises if e.id.endswith("attend_to_memory")).checks
    failed = [check for check in checks if not check.passed]
    assert failed
    assert all(check.open and check.diagnosis is None for check in failed)
    assert {check.message for check in failed} == {
        "The code is as it was handed out: its faults are still in it."
    }


def test_an_untouched_exercise_is_run_once_for_the_whole_class() -> None:
    engine = InProcess()
    grader = Grader(engine)
    data = saved(AUTHOR.notebook({}))
    first = grade(grader, data).result
    count = len(engine.opened)
    assert grade(grader, data).result == first
    assert len(engine.opened) == count


def test_the_solutions_are_not_what_is_run() -> None:
    engine = InProcess()
    grade(Grader(engine), saved(AUTHOR.notebook({})))
    text = "\n".join(source for _name, cells in engine.opened for _label, source in cells)
    for name in chapters.exercises("attention"):
        assert AUTHOR.reference[name] not in text


class _AtOnce(InProcess):
    """Takes the questions of all checks in one message, as a sandbox does."""

    def __init__(self, lost: str = "") -> None:
        super().__init__()
        self.reason, self.messages, self.single = lost, 0, 0
        self.sent: list[Sequence[bytes]] = []

    def open(self, cells: Any, name: str, **keys: Any) -> Any:
        link, engine = super().open(cells, name, **keys), self

        class Link:
            startup = getattr(link, "startup", None)
            lost: str | None = None

            def request(self, message: dict[str, Any]) -> dict[str, Any]:
                engine.single += 1
                if self.lost:
                    raise LinkLost(self.lost)
                return link.request(message)

            def ask_all(self, requests: Sequence[bytes], _seconds: float) -> list[bytes]:
                engine.messages += 1
                engine.sent.append(requests)
                if engine.reason and name == "padding_mask":
                    self.lost = engine.reason
                    raise LinkLost(engine.reason)
                return [pack({"reply": link.request(decode(body))}) for body in requests]

        return Link()


@pytest.mark.parametrize("mistake", ["", "true_at_padding", "no_axis_for_queries"])
def test_asked_at_once_or_one_by_one_is_the_same(grader: Grader, mistake: str) -> None:
    answers = dict(AUTHOR.reference)
    if mistake:
        answers["padding_mask"] = AUTHOR.wrong["padding_mask"][mistake]
    data = saved(AUTHOR.notebook(answers))
    engine = _AtOnce()
    together = Grader(engine)
    result = replace(grade(together, data).result, seconds=0.0)
    assert result == replace(grade(grader, data).result, seconds=0.0)
    # the questions of checks that hand over functions are not known beforehand
    assert engine.messages >= len(AUTHOR.exercises) - 1
    # whatever replies the same is not judged again
    assert replace(grade(together, data).result, seconds=0.0) == result


def test_hidden_inputs_are_sent_when_the_visible_checks_have_their_replies() -> None:
    """What is sent ahead an answer can read, and put into the message that its learner sees."""
    engine = _AtOnce()
    grader = Grader(engine)
    answers = {**AUTHOR.reference, "padding_mask": UNKNOWN}
    grade(grader, saved(AUTHOR.notebook(answers)))
    item = chapters.exercise("attention.padding_mask")
    scripts = grader._judges[item.id].scripts()
    hidden = {body: c.hidden for c in item.checks for body in scripts[c.name].bodies}
    sent = [[hidden[body] for body in bodies] for bodies in engine.sent if bodies[0] in hidden]
    assert [set(kinds) for kinds in sent] == [{False}, {True}] * 2  # and in the second sandbox


def test_a_spoiled_state_costs_nothing_when_all_is_asked_at_once() -> None:
    answers = {**AUTHOR.reference, "padding_mask": SPOILED}
    one_by_one = grade(Grader(InProcess()), saved(AUTHOR.notebook(answers))).result
    at_once = grade(Grader(_AtOnce()), saved(AUTHOR.notebook(answers))).result
    assert at_once.score == one_by_one.score > 0


UNKNOWN = """
def padding_mask(ids, padding_id=0):
    return (ids == ids.flatten()[-1]).unsqueeze(-2)
"""


@pytest.mark.parametrize("answer", [UNKNOWN, SPOILED])
def test_checks_that_fail_alike_in_the_opposite_order_share_a_fresh_sandbox(answer: str) -> None:
    """A mistake that nobody foresaw costs two sandboxes; a state that is spoiled, one a check."""
    engine = _AtOnce()
    answers = {**AUTHOR.reference, "padding_mask": answer}
    result = grade(Grader(engine), saved(AUTHOR.notebook(answers))).result
    checks = next(e for e in result.exercises if e.id.endswith("padding_mask")).checks
    opened = sum(name == "padding_mask" for name, _cells in engine.opened)
    assert sum(not check.passed and not check.diagnosis for check in checks) > 1
    assert opened == (2 if answer == UNKNOWN else len(checks))


@pytest.mark.parametrize(("reason", "score"), [("timeout", 0), ("crashed", 1), ("garbled", 1)])
def test_a_link_that_is_lost_with_all_questions(reason: str, score: int) -> None:
    """What took too long is tried alone at once; anything else is found out check by check."""
    graded = grade(Grader(_AtOnce(reason)), saved(RIGHT))
    result = next(e for e in graded.result.exercises if e.id.endswith("padding_mask"))
    assert result.score == score * result.max_score
    assert graded.again == (("attention.padding_mask",) if reason == "timeout" else ())


def test_what_no_exercise_needs_is_named_and_costs_nothing(grader: Grader) -> None:
    answers = dict(AUTHOR.reference)
    answers["padding_mask"] = "import gc\n" + answers["padding_mask"] + "\n    # gc.collect()"
    answers["attention_scores"] = answers["attention_scores"].replace(
        "def attention_scores", "import ctypes\n\n\ndef attention_scores"
    )
    result = grade(grader, saved(AUTHOR.notebook(answers))).result
    assert (result.status, result.score) == ("graded", TOTAL)
    assert result.notes == ()  # no answer uses them, so they are not run

    answers = {
        name: text.replace('"""\n', '"""\n    import gc\n    import ctypes\n', 1)
        if name in ("padding_mask", "attention_scores")
        else text
        for name, text in AUTHOR.reference.items()
    }
    notebook = AUTHOR.notebook(answers)
    result = grade(grader, saved(notebook)).result
    assert (result.status, result.score) == ("graded", TOTAL)
    (note,) = result.notes
    first = min(
        notebook["cells"].index(cell_of(notebook, n)) for n in ("padding_mask", "attention_scores")
    )
    assert f"`ctypes` (cell {first + 1}), `gc` (cell {first + 1})" in note
