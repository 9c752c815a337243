"""Answers are found wherever they are, and no more is run than an answer needs."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from autograder.bench.sample_class import Author, cell_of, code, insert_before, saved, text
from autograder.compose.names import names
from autograder.submissions import align as align_module
from autograder.submissions.align import MAX_PASTED, MAX_STATEMENTS, Aligned, _code_in, align
from autograder.submissions.program import program
from autograder.submissions.read import read
from autograder.submissions.statements import Statement, statements
from autograder.submissions.template import template

AUTHOR = Author()
TEMPLATE = template("attention")
Raw = dict[str, Any]


def aligned(notebook: Raw) -> Aligned:
    return align(read(saved(notebook)), TEMPLATE)


def right() -> Raw:
    return AUTHOR.notebook(AUTHOR.reference)


def source_run(found: Aligned, name: str) -> str:
    return "\n".join(source for _label, source in program(found, name).cells)


def test_the_untouched_notebook_is_empty() -> None:
    found = aligned(AUTHOR.notebook({}))
    assert found.is_empty
    assert not found.notes
    assert not found.repaired
    assert not any(program(found, name).own for name in TEMPLATE.exercises)


def test_comments_and_docstrings_are_no_answer() -> None:
    notebook = AUTHOR.notebook({})
    cell = cell_of(notebook, "padding_mask")
    cell["source"] = cell["source"].replace('"""', '"""Mine. ', 1) + "\n# no idea\n"
    assert aligned(notebook).is_empty


def test_the_right_notebook_needs_no_word() -> None:
    found = aligned(right())
    assert not found.notes
    assert not any(item.is_open for item in found.found.values())


def test_each_exercise_is_run_with_what_it_calls_and_nothing_else() -> None:
    found = aligned(right())
    assert program(found, "attention_scores").calls == ()
    assert program(found, "scaled_dot_product_attention").calls == (
        "attention_scores",
        "masked_softmax",
    )
    run = source_run(found, "masked_softmax")
    assert "matplotlib" not in run
    assert "autograder" not in run
    assert "attention_scores" not in run


def test_no_solution_is_run_beside_an_answer() -> None:
    """What is not the learner's is what was handed out; a stub stays a stub."""
    notebook = AUTHOR.notebook({"SelfAttention": AUTHOR.reference["SelfAttention"]})
    run = source_run(aligned(notebook), "SelfAttention")
    assert run.count("raise NotImplementedError") == 1  # the one that it calls
    assert "masked_fill" not in run


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_answers_the_last_counts(order: int) -> None:
    notebook = right()
    first, second = "def padding_mask(ids): return 1", "def padding_mask(ids): return 2"
    cell_of(notebook, "padding_mask")["source"] = (first, second)[::order][0]
    notebook["cells"].append(code((first, second)[::order][1]))
    found = aligned(notebook)
    assert (first, second)[::order][1] in source_run(found, "padding_mask")
    assert (first, second)[::order][0] not in source_run(found, "padding_mask")
    assert found.repaired
    assert "more than once" in found.notes[0]


@pytest.mark.parametrize("place", ["above", "below"])
def test_the_untouched_copy_never_counts(place: str) -> None:
    notebook = right()
    stub = cell_of(AUTHOR.notebook({}), "padding_mask")
    index = notebook["cells"].index(cell_of(notebook, "padding_mask")) + (place == "below")
    notebook["cells"].insert(index, copy.deepcopy(stub))
    found = aligned(notebook)
    assert "NotImplementedError" not in source_run(found, "padding_mask")
    assert "more than once" in found.notes[0]


def test_a_stub_below_the_answer_in_the_same_cell() -> None:
    notebook = right()
    cell = cell_of(notebook, "padding_mask")
    cell["source"] += "\n\n" + cell_of(AUTHOR.notebook({}), "padding_mask")["source"]
    assert "NotImplementedError" not in source_run(aligned(notebook), "padding_mask")


def test_helpers_constants_and_imports_come_along() -> None:
    notebook = right()
    cell_of(notebook, "padding_mask")["source"] = (
        "def padding_mask(ids, padding_id=0):\n    return helper(ids, padding_id, SCALE)"
    )
    insert_before(
        notebook,
        "padding_mask",
        code("import os.path as p\nfrom math import *\nSCALE = {}\nSCALE['a'] = 1\nunused = 2"),
        code("def helper(a, b, c):\n    return inner(a, b) * sqrt(c['a'])\nprint(helper)"),
    )
    notebook["cells"].append(code("def inner(a, b):\n    return (a != b)[..., None, :]"))
    run = source_run(aligned(notebook), "padding_mask")
    for wanted in ("SCALE = {}", "SCALE['a'] = 1", "def helper", "def inner", "from math import *"):
        assert wanted in run
    for unwanted in ("unused", "print", "os.path"):
        assert unwanted not in run


def test_a_local_name_pulls_nothing_in() -> None:
    notebook = right()
    insert_before(notebook, "padding_mask", code("ids = launch_everything()"))
    assert "launch_everything" not in source_run(aligned(notebook), "padding_mask")


def test_what_stands_below_the_answer_is_not_run() -> None:
    notebook = right()
    cell_of(notebook, "padding_mask")["source"] += "\nprint(padding_mask(q))\n1/0\nx = undefined"
    run = source_run(aligned(notebook), "padding_mask")
    assert "1/0" not in run
    assert "undefined" not in run


def test_what_changes_the_answer_afterwards_is_run() -> None:
    notebook = right()
    notebook["cells"].append(
        code("padding_mask.calls = 0\npadding_mask = functools.lru_cache(padding_mask)")
    )
    insert_before(notebook, "padding_mask", code("import functools"))
    run = source_run(aligned(notebook), "padding_mask")
    assert run.index("def padding_mask") < run.index("padding_mask.calls = 0")
    assert run.index("import functools") < run.index("functools.lru_cache")


def test_lines_stay_where_they_were() -> None:
    notebook = right()
    cell_of(notebook, "padding_mask")["source"] = (
        "# one\nprint('two')\n\n@staticmethod\ndef padding_mask(ids):\n    return 1/0  # six\n"
    )
    cells = program(aligned(notebook), "padding_mask").cells
    assert cells[-1][1].split("\n")[5] == "    return 1/0  # six"


def test_magics_and_shell_commands_are_no_python() -> None:
    notebook = right()
    cell = cell_of(notebook, "padding_mask")
    cell["source"] = (
        "%%time\n!pip install einops\n" + cell["source"] + "\n%timeit padding_mask(x)\n"
    )
    found = aligned(notebook)
    assert not found.found["padding_mask"].problem
    assert "pip" not in source_run(found, "padding_mask")


def test_typographic_quotes_and_spaces() -> None:
    notebook = right()
    cell_of(notebook, "padding_mask")["source"] = (
        "def padding_mask(ids, padding_id=0):\n\u00a0\u00a0\u00a0\u00a0kind = \u201ckey\u201d\n"
        "\u00a0\u00a0\u00a0\u00a0return (ids != padding_id).unsqueeze(-2)\n"
    )
    found = aligned(notebook)
    assert found.repaired
    assert 'kind = "key"' in source_run(found, "padding_mask")


@pytest.mark.parametrize(
    "source",
    [
        "def padding_mask(ids:\n    return ids",
        "def padding_mask(ids):\nreturn ids",
        "def padding_mask(ids):\n    return \x01",
        "def padding_mask(ids):\n    return " + "(" * 1000 + ")" * 1000,
        "def padding_mask(ids):\n    return " + "-" * 100_000 + "1",
    ],
)
def test_a_cell_that_python_cannot_read_costs_itself_alone(source: str) -> None:
    notebook = right()
    cell_of(notebook, "padding_mask")["source"] = source
    found = aligned(notebook)
    assert found.found["padding_mask"].problem
    assert not found.is_empty
    assert found.found["attention_scores"].parts


@pytest.mark.parametrize("kind", ["markdown", "raw"])
def test_a_cell_of_another_type(kind: str) -> None:
    notebook = right()
    cell_of(notebook, "padding_mask")["cell_type"] = kind
    found = aligned(notebook)
    assert found.found["padding_mask"].parts
    assert "text cell" in found.notes[0]


def test_code_pasted_among_prose() -> None:
    notebook = AUTHOR.notebook({})
    answer = AUTHOR.reference["padding_mask"]
    notebook["cells"].append(text(f"I did it so:\n\n~~~python\n{answer}~~~\n\nand it works"))
    assert aligned(notebook).found["padding_mask"].parts


def test_prose_that_mentions_an_answer_is_none() -> None:
    notebook = AUTHOR.notebook({})
    notebook["cells"].append(text("I would write def padding_mask(ids) somehow"))
    assert aligned(notebook).is_empty


def test_a_text_cell_is_read_once_and_all_of_them_together_not_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[str] = []
    known = align_module.statements
    monkeypatch.setattr(
        align_module, "statements", lambda text, *rest: reads.append(text) or known(text, *rest)
    )
    prose = "".join(f"def {name}(: I do not know\n" for name in TEMPLATE.exercises)
    notebook = AUTHOR.notebook({})
    notebook["cells"] += [text(prose + "x " * 15_000 + str(number)) for number in range(6)]
    notebook["cells"].append(text(AUTHOR.reference["padding_mask"]))
    found = aligned(notebook)
    assert found.found["padding_mask"].parts
    assert len(reads) == len(set(reads)) == 3
    assert sum(map(len, reads)) <= MAX_PASTED
    assert "A cell was not read: the text cells hold too much code." in found.notes


def test_another_name_with_the_docstring_of_the_stub() -> None:
    notebook = right()
    cell = cell_of(notebook, "padding_mask")
    cell["source"] = cell["source"].replace("def padding_mask", "def my_mask")
    found = aligned(notebook)
    assert found.found["padding_mask"].alias == "my_mask"
    assert "`my_mask`" in " ".join(found.notes)
    assert program(found, "padding_mask").cells[-1][1] == "padding_mask = my_mask\n"


def test_a_deleted_cell_is_said_and_counts_as_open() -> None:
    notebook = right()
    notebook["cells"].remove(cell_of(notebook, "padding_mask"))
    found = aligned(notebook)
    assert found.found["padding_mask"].is_open
    assert "missing" in found.notes[0]


def _without_ids(notebook: Raw) -> None:
    for cell in notebook["cells"]:
        cell.pop("id", None)
        cell["metadata"] = {}


def _with_other_ids(notebook: Raw) -> None:
    for number, cell in enumerate(notebook["cells"]):
        cell["id"] = f"cell-{number}"
        cell["metadata"] = {}


def _in_one_cell(notebook: Raw) -> None:
    everything = "\n\n".join(AUTHOR.reference.values())
    notebook["cells"] = [code(everything)]


def _in_reverse(notebook: Raw) -> None:
    notebook["cells"].reverse()


@pytest.mark.parametrize("change", [_without_ids, _with_other_ids, _in_one_cell, _in_reverse])
def test_every_answer_is_found(change: Callable[[Raw], None]) -> None:
    notebook = right()
    change(notebook)
    found = aligned(notebook)
    assert not any(item.is_open for item in found.found.values())
    assert found.repaired
    assert len(found.notes) <= 2


def test_ids_exchanged_between_two_cells() -> None:
    notebook = right()
    one, two = cell_of(notebook, "padding_mask"), cell_of(notebook, "attention_scores")
    one["id"], two["id"] = two["id"], one["id"]
    one["metadata"], two["metadata"] = two["metadata"], one["metadata"]
    found = aligned(notebook)
    assert "unsqueeze" in source_run(found, "padding_mask")
    assert found.repaired


def test_the_template_offers_nothing_of_this_or_a_later_chapter() -> None:
    assert TEMPLATE.modules == {}


def test_a_long_sum_and_a_long_row_of_helpers_are_read() -> None:
    """Each is deeper than Python's own walks over a syntax tree go."""
    row = "\n".join(f"def h{i}(q, k): return h{i + 1}(q, k)" for i in range(2_000))
    total = "scale = 0" + " + 1" * 700
    answers = {
        **AUTHOR.reference,
        "attention_scores": "def attention_scores(q, k): return h0(q, k)",
    }
    notebook = AUTHOR.notebook(answers)
    insert_before(
        notebook,
        "attention_scores",
        code(row),
        code(f"{total}\ndef h2000(q, k): return scale * (q @ k.mT)"),
    )
    source = source_run(aligned(notebook), "attention_scores")
    assert total in source
    assert source.index("scale = 0") < source.index("def h2000") < source.index("def h0")


@pytest.mark.parametrize(
    "answer",
    [
        "def padding_mask(ids):\n    return ids" + " + 1" * 700,
        "def padding_mask(ids):\n    return ids != 0x" + "f" * 50_000,
    ],
)
def test_the_names_of_what_unparse_cannot_write_are_known(answer: str) -> None:
    found = aligned(AUTHOR.notebook({"padding_mask": answer + "\n"}))
    assert answer in source_run(found, "padding_mask")


def test_an_expression_too_deep_for_python_costs_itself_alone() -> None:
    answer = "def padding_mask(ids):\n    return ids" + " + 1" * 20_000
    found = aligned(AUTHOR.notebook({**AUTHOR.reference, "padding_mask": answer}))
    assert found.found["padding_mask"].problem == "it is nested too deeply"
    assert found.found["masked_softmax"].parts


def test_meaning_tells_what_is_different() -> None:
    texts = [
        "x = 1",
        "x = 1.0",
        "x = True",
        "x = '1'",
        "x = [1], 2",
        "x = [1, 2]",
        "x = [], 1",
        "y = 1",
    ]
    assert len({statements(item)[0][0].meaning for item in texts}) == len(texts)


def test_fences_without_an_end_are_looked_at_once() -> None:
    """From each of them to the end of the text would be 10^11 lines."""
    many = "```x\n" * 500_000
    assert list(_code_in(many)) == [many]
    pairs = "~~~\n" + many + "```py\na\n```\n  ~~~~\nb\n~~~ \n~~~\nc"
    assert next(iter(_code_in(pairs))) == f"{many}```py\na\n```\n  ~~~~\nb\n"
    assert next(iter(_code_in("```\na\n~~~\n```\nprose\n~~~~py\nb\n   ~~~\n"))) == "a\n~~~\n\nb\n"


@pytest.mark.parametrize(
    "source",
    [
        "a;" * 6_000,
        "if x:\n a;" + "a;" * 6_000,
        "t = [" + "1," * 70_000 + "]",
        # each would take Python's parser a minute
        "import a" + ".a" * 90_000,
        "from a" + " . \\\n a" * 15_000 + " import b",
    ],
)
def test_a_cell_of_too_many_statements_costs_itself_alone_and_is_said(source: str) -> None:
    notebook = right()
    insert_before(notebook, "padding_mask", code(source))
    found = aligned(notebook)
    assert found.notes == ["A cell was not read: it is too long."]
    assert not found.added or all(item.text not in source for item in found.added)
    assert all(item.parts for item in found.found.values())


def test_a_notebook_of_too_many_statements_is_read_up_to_there() -> None:
    notebook = right()
    for number in range(5):
        notebook["cells"].append(code("\n".join(f"x{number} = {i}" for i in range(4_500))))
    found = aligned(notebook)
    assert found.notes == ["A cell was not read: the notebook has too many statements."]
    assert len(found.added) < MAX_STATEMENTS
    assert all(item.parts for item in found.found.values())


def test_who_makes_a_name_is_looked_up_and_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"n{i}" for i in range(300)]
    answer = f"def attention_scores(q, k):\n    return {' + '.join(names)}\n"
    notebook = AUTHOR.notebook({"attention_scores": answer})
    insert_before(notebook, "attention_scores", code("\n".join(f"{n} = 0" for n in names)))
    found = aligned(notebook)
    asked: list[str] = []
    known = Statement.names.func
    monkeypatch.setattr(
        Statement, "names", property(lambda self: asked.append(self.text) or known(self))
    )
    assert "n299 = 0" in source_run(found, "attention_scores")
    assert max(Counter(asked).values()) < 10


def namespace(source: str) -> dict[str, Any]:
    """What is there when the learner's code for an answer has run."""
    notebook = AUTHOR.notebook({"padding_mask": source})
    made: dict[str, Any] = {}
    for label, cell in program(aligned(notebook), "padding_mask").cells:
        if label.startswith("notebook"):
            exec(compile(cell, label, "exec", dont_inherit=True), made)
    return made


_ANSWER = "def padding_mask(ids):\n    return "
_WITH_STATE = {
    "a counter": "n = 0\ndef padding_mask(ids):\n    global n\n    n += 1\n    return n",
    "a counter of a helper": (
        "n = 0\ndef helper():\n    global n\n    n += 1\n    return n\n"
        "print(helper())\n" + _ANSWER + "helper()"
    ),
    "a counter of a method": (
        "n = 0\nclass K:\n    def f(self):\n        global n\n        n += 1\n        return n\n"
        + _ANSWER
        + "K().f()"
    ),
    "a counter of a nested function": (
        "n = 0\ndef padding_mask(ids):\n    def f():\n        global n\n        n += 1\n"
        "    f()\n    return n"
    ),
    "a table made anew": (
        "t = [0]\ndef padding_mask(ids):\n    global t\n    t = [*t, 1]\n    return t[1]"
    ),
    "made when called": "def padding_mask(ids):\n    global n\n    n = 1\n    return n",
    "made by a helper that is called": (
        "def setup():\n    global n\n    n = 1\nsetup()\n" + _ANSWER + "n"
    ),
    "filled by a helper that is called": (
        "t = {}\ndef fill(): t[0] = 1\nfill()\n" + _ANSWER + "t[0]"
    ),
    "filled by a decorator": (
        "t = {}\ndef kept(f):\n    t[f.__name__] = f\n    return f\n"
        "@kept\ndef one(): return 1\n" + _ANSWER + "t['one']()"
    ),
    "filled in a loop": ("t = []\nfor i in range(3):\n    t.append(i)\n" + _ANSWER + "t[1]"),
    "filled in a comprehension": "t = []\n[t.append(i) for i in range(3)]\n" + _ANSWER + "t[1]",
    "completed below what uses it": (
        "t = {0: 1}\ndef helper(): return t[0]\nt[1] = helper()\n" + _ANSWER + "helper()"
    ),
    "raised below what it starts from": "n = 0\nn += 1\n" + _ANSWER + "n",
    "a builtin's name": "def sum(x): return 1\n" + _ANSWER + "sum(3)",
    "the name of a class above": (
        "def one(): return 1\nclass K:\n    one = staticmethod(one)\n" + _ANSWER + "K.one()"
    ),
    "annotations that nobody makes": (
        "from __future__ import annotations\ndef padding_mask(ids: Ids) -> Mask:\n    return 1"
    ),
}


@pytest.mark.parametrize("style", _WITH_STATE)
def test_an_answer_finds_what_it_starts_from(style: str) -> None:
    assert namespace(_WITH_STATE[style])["padding_mask"](None) == 1


def test_what_calls_an_answer_does_not_run_for_its_counter() -> None:
    notebook = AUTHOR.notebook({"padding_mask": _WITH_STATE["a counter"]})
    notebook["cells"].append(code("x = padding_mask(None)\nprint(n, padding_mask(x))\nn = 5"))
    run = source_run(aligned(notebook), "padding_mask")
    assert "print" not in run
    assert "x =" not in run


def test_a_function_that_sets_something_of_torch_is_not_called_for_it() -> None:
    notebook = right()
    notebook["cells"].append(code("def demo(): torch.manual_seed(0); run_for_hours()\ndemo()"))
    assert "demo" not in source_run(aligned(notebook), "masked_softmax")


def test_what_is_too_deep_to_be_taken_apart_is_told_the_same() -> None:
    deep = " + 1" * 700
    for source in [
        "def f():\n    global n\n    n = x{}",
        "table[0] = f(x{})",
        "class A:\n    global n\n    n = sum(x{})",
        "@a\ndef f(): y = x{}",
    ]:
        part = statements(source.format(deep))[0][0]
        assert part.names == names(source.format(""))
