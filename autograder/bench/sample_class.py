"""The sample class: submissions as people make them, from the notebook that is handed out.

``python -m autograder.bench.sample_class`` writes ``autograder/samples/``; a test writes it again
and compares, so that the samples follow the chapter, its solutions and its answer bank. What each
must get is stated here, by hand; the points of each exercise are kept in ``expected.json``.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autograder import chapters
from autograder.sources import definition_source, strip_markers
from autograder.submissions.template import notebook_path

SAMPLES = chapters.ROOT / "autograder" / "samples"
EXPECTED = SAMPLES / "expected.json"
STEM = "attention"

Raw = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """One submission, and what it must get.

    Attributes:
        name: what is special about it; the folder is called so.
        data: its bytes.
        status: its status.
        right: exercises that get full points; None for all.
        mistakes: by exercise, the mistake that must be recognised.
        file: the file's name.
        says: a word that its notes must hold.
    """

    name: str
    data: bytes
    status: str
    right: tuple[str, ...] | None = None
    mistakes: Mapping[str, str] = field(default_factory=dict)
    file: str = f"{STEM}.ipynb"
    says: str = ""

    @property
    def path(self) -> str:
        """Its path below the samples."""
        return f"{self.name}/{self.file}"


class Author:
    """Fills in what was handed out of a chapter."""

    def __init__(self, stem: str = STEM) -> None:
        self.stem = stem
        self.exercises = chapters.exercises(stem)
        self._raw: Raw = json.loads(notebook_path(stem).read_text(encoding="utf-8"))
        solutions = chapters.ROOT / "solutions" / f"{stem}.py"
        self.reference = {
            name: strip_markers(definition_source(solutions, name)) for name in self.exercises
        }
        self.right: dict[str, dict[str, str]] = {name: {} for name in self.exercises}
        self.wrong: dict[str, dict[str, str]] = {name: {} for name in self.exercises}
        for entry in chapters.bank(stem):
            kind = self.right if entry.is_right else self.wrong
            kind[entry.exercise][entry.name] = entry.source

    def notebook(self, answers: Mapping[str, str]) -> Raw:
        """The notebook with some exercises answered."""
        notebook = copy.deepcopy(self._raw)
        for cell in notebook["cells"]:
            cell["source"] = "".join(cell["source"])
            if cell.get("id") in answers:
                cell["source"] = answers[cell["id"]].rstrip("\n")
        return notebook


def code(source: str, **keys: Any) -> Raw:
    """A code cell that a learner added."""
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": source,
        **keys,
    }


def text(source: str, **keys: Any) -> Raw:
    """A text cell that a learner added."""
    return {"cell_type": "markdown", "metadata": {}, "source": source, **keys}


def cell_of(notebook: Raw, cell_id: str) -> Raw:
    """The cell of that id."""
    found: Raw = next(cell for cell in notebook["cells"] if cell.get("id") == cell_id)
    return found


def insert_before(notebook: Raw, cell_id: str, *cells: Raw) -> None:
    """Put cells before another one."""
    place = notebook["cells"].index(cell_of(notebook, cell_id))
    notebook["cells"][place:place] = cells


def saved(notebook: Raw, *, indent: int | None = 1) -> bytes:
    """A notebook's bytes."""
    return (json.dumps(notebook, indent=indent, ensure_ascii=False) + "\n").encode()


def through_colab(notebook: Raw) -> Raw:
    """What Colab makes of a notebook: its own ids in the metadata, none of ours, no nbgrader."""
    result: Raw = {
        "nbformat": 4,
        "nbformat_minor": 0,
        "metadata": {
            "colab": {"provenance": []},
            "kernelspec": {"name": "python3", "display_name": "Python 3"},
            "language_info": {"name": "python"},
        },
        "cells": [],
    }
    for number, cell in enumerate(notebook["cells"]):
        mine = {key: copy.deepcopy(cell[key]) for key in ("cell_type", "source")}
        mine["source"] = mine["source"].splitlines(keepends=True)
        mine["metadata"] = {"id": f"{0x9E3779B97F4A7C15 * (number + 1) % 2**48:012x}"}
        if mine["cell_type"] == "code":
            mine |= {"execution_count": number + 1, "outputs": []}
        result["cells"].append(mine)
    return result


def to_format_3(notebook: Raw) -> Raw:
    """A notebook as IPython of 2013 wrote it."""
    cells = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cells.append(
                {
                    "cell_type": "code",
                    "collapsed": False,
                    "input": cell["source"],
                    "language": "python",
                    "metadata": {},
                    "outputs": [],
                }
            )
        else:
            cells.append({"cell_type": cell["cell_type"], "metadata": {}, "source": cell["source"]})
    return {
        "metadata": {"name": ""},
        "nbformat": 3,
        "nbformat_minor": 0,
        "worksheets": [{"cells": cells, "metadata": {}}],
    }


NOISY = """\
import sys
import warnings

def masked_softmax(scores, mask=None):
    warnings.warn("masked_softmax: this is my second version")
    print("scores:", scores.shape)
    print("debug", file=sys.stderr)
    if mask is None:
        return scores.softmax(-1)
    shifted = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return shifted.softmax(-1) * mask
"""

HELPER = """\
def stable_exp(z):
    return (z - z.amax(dim=-1, keepdim=True)).exp()
"""

WITH_HELPER = '''\
def masked_softmax(scores, mask=None):
    """My answer."""
    allowed = np.ones(1, dtype=bool)[0] if mask is None else mask
    z = scores.masked_fill(~torch.as_tensor(allowed), torch.finfo(scores.dtype).min)
    weights = stable_exp(z) * torch.as_tensor(allowed)
    total = weights.sum(dim=-1, keepdim=True)
    return weights / total.masked_fill(total == 0, 1)

# does it work?
masked_softmax(torch.zeros(2, 3))
print(masked_softmax(my_scores, my_mask))
'''

UNCLOSED = """\
def padding_mask(ids: Tensor, padding_id: int = 0) -> Tensor:
    return (ids != padding_id).unsqueeze(-2
"""

ENDLESS = """\
def attention_cost(B, T, S, d, d_v, bytes_per_number=4):
    operations = 0
    while T > 0:
        operations += 2 * B * S * d
    return operations, B * T * S * bytes_per_number
"""

FROM_THE_LIBRARY = """\
def scaled_dot_product_attention(q, k, v, mask=None, *, bias=None, dropout_p=0.0):
    attend = getattr(nn.functional, "scaled_dot_product" + "_attention")
    eye = torch.eye(k.size(-2), dtype=v.dtype).expand(*k.shape[:-2], -1, -1)
    return attend(q, k, v, mask, dropout_p), attend(q, k, eye, mask, dropout_p)
"""


def samples() -> list[Sample]:
    """The whole class."""
    author = Author()
    makers: Sequence[Callable[[Author], Sample]] = (
        _right,
        _other_style,
        _partly,
        _mask_after_softmax,
        _no_scale,
        _several_mistakes,
        _untouched,
        _colab,
        _duplicated,
        _renamed_file,
        _unreadable,
        _code_in_markdown,
        _endless_loop,
        _helpers,
        _old_format,
        _unclosed,
        _moved,
        _noisy,
        _library,
        _other_chapter,
    )
    return [make(author) for make in makers]


def _right(author: Author) -> Sample:
    return Sample("right", saved(author.notebook(author.reference)), "graded")


def _other_style(author: Author) -> Sample:
    answers = {name: list(found.values())[-1] for name, found in author.right.items()}
    return Sample("right-in-another-style", saved(author.notebook(answers)), "graded")


def _partly(author: Author) -> Sample:
    names = tuple(author.exercises)[:4]
    answers = {name: author.reference[name] for name in names}
    return Sample("partly-right", saved(author.notebook(answers)), "graded", names)


def _with_wrong(author: Author, wrong: Mapping[str, str]) -> Raw:
    """The reference but for some exercises, whose answer is a wrong one of the bank."""
    answers = {name: author.wrong[name][mistake] for name, mistake in wrong.items()}
    return author.notebook({**author.reference, **answers})


def _others(author: Author, *names: str) -> tuple[str, ...]:
    return tuple(name for name in author.exercises if name not in names)


def _mask_after_softmax(author: Author) -> Sample:
    wrong = {"masked_softmax": "mask_after_softmax"}
    # what calls the wrong answer goes wrong with it
    right = ("attention_scores", "padding_mask", "mask_test", "attention_cost")
    return Sample(
        "mask-after-softmax",
        saved(_with_wrong(author, wrong)),
        "graded",
        right,
        wrong,
        says="`masked_softmax` is not right",
    )


def _no_scale(author: Author) -> Sample:
    wrong = {"scaled_dot_product_attention": "no_scale"}
    right = _others(author, *wrong, "SelfAttention")
    return Sample("no-scale", saved(_with_wrong(author, wrong)), "graded", right, wrong)


def _several_mistakes(author: Author) -> Sample:
    # none of these answers is called by another one, so each mistake is seen as itself
    wrong = {
        "padding_mask": "true_at_padding",
        "mask_test": "accepts_everything",
        "SelfAttention": "values_from_the_key_map",
        "attend_to_memory": "scale_is_left",
        "attention_cost": "additions_forgotten",
    }
    right = _others(author, *wrong)
    return Sample("several-mistakes", saved(_with_wrong(author, wrong)), "graded", right, wrong)


def _untouched(author: Author) -> Sample:
    return Sample("untouched", saved(author.notebook({})), "empty", ())


def _colab(author: Author) -> Sample:
    notebook = author.notebook(author.reference)
    insert_before(notebook, "masked_softmax", code("x = torch.randn(3)\nx.softmax(0)"))
    return Sample("through-colab", saved(through_colab(notebook), indent=2), "repaired", says="ids")


def _duplicated(author: Author) -> Sample:
    """An answered cell, below it the untouched copy from which it was made."""
    notebook = author.notebook(author.reference)
    name = "scaled_dot_product_attention"
    stub = copy.deepcopy(cell_of(author.notebook({}), name))
    notebook["cells"].insert(notebook["cells"].index(cell_of(notebook, name)) + 1, stub)
    check = copy.deepcopy(cell_of(notebook, f"{name}-check"))
    insert_before(notebook, f"{name}-check", check)
    return Sample("duplicated-cell", saved(notebook), "repaired", says="more than once")


def _renamed_file(author: Author) -> Sample:
    data = saved(author.notebook(author.reference))
    return Sample(
        "renamed-file", data, "repaired", file=f"{STEM} (1) final.ipynb", says="is called"
    )


def _unreadable(author: Author) -> Sample:
    data = saved(author.notebook(author.reference))
    return Sample("unreadable", data[: len(data) // 2], "unreadable", (), says="damaged")


def _code_in_markdown(author: Author) -> Sample:
    """One cell turned into text by a slip of the keyboard, another answer pasted as a quotation."""
    notebook = author.notebook(author.reference)
    slipped = cell_of(notebook, "padding_mask")
    slipped["cell_type"] = "markdown"
    del slipped["outputs"], slipped["execution_count"]
    name = "attention_cost"
    answer = cell_of(notebook, name)
    quoted = text(f"My answer:\n\n```python\n{answer['source']}\n```")
    answer["source"] = cell_of(author.notebook({}), name)["source"]
    insert_before(notebook, name, quoted)
    return Sample("code-in-markdown", saved(notebook), "repaired", says="text cell")


def _endless_loop(author: Author) -> Sample:
    notebook = author.notebook({**author.reference, "attention_cost": ENDLESS})
    return Sample("endless-loop", saved(notebook), "timeout", _others(author, "attention_cost"))


def _helpers(author: Author) -> Sample:
    """An answer spread over three cells, with an import in the first one, and tests below it."""
    notebook = author.notebook({**author.reference, "masked_softmax": WITH_HELPER})
    setup = next(c for c in notebook["cells"] if "import torch\n" in c["source"])
    setup["source"] = setup["source"].replace(
        "import torch\n", "import numpy as np\nimport torch\n"
    )
    insert_before(
        notebook,
        "masked_softmax",
        code("my_scores = torch.randn(4, 4)\nmy_mask = my_scores > 0"),
        code("%matplotlib inline\n" + HELPER + "\nstable_exp(my_scores)"),
    )
    return Sample("helpers-in-other-cells", saved(notebook), "graded")


def _old_format(author: Author) -> Sample:
    data = saved(to_format_3(author.notebook(author.reference)))
    return Sample("old-format", b"\xef\xbb\xbf" + data, "repaired", says="old format")


def _unclosed(author: Author) -> Sample:
    notebook = author.notebook({**author.reference, "padding_mask": UNCLOSED})
    return Sample("bracket-not-closed", saved(notebook), "graded", _others(author, "padding_mask"))


def _moved(author: Author) -> Sample:
    """All answers gathered at the end, in reverse, as cells of the learner's own."""
    notebook = author.notebook({})
    answers = [code(author.reference[name].rstrip("\n")) for name in reversed(author.exercises)]
    notebook["cells"] += [text("# My answers"), *answers]
    return Sample("answers-at-the-end", saved(notebook), "repaired", says="moved")


def _noisy(author: Author) -> Sample:
    notebook = author.notebook({**author.reference, "masked_softmax": NOISY})
    return Sample("noisy", saved(notebook), "graded")


def _library(author: Author) -> Sample:
    name = "scaled_dot_product_attention"
    notebook = author.notebook({**author.reference, name: FROM_THE_LIBRARY})
    # SelfAttention is answered by way of it
    right = _others(author, name, "SelfAttention")
    return Sample(
        "from-the-library",
        saved(notebook),
        "graded",
        right,
        says="`scaled_dot_product_attention` is not right",
    )


def _other_chapter(author: Author) -> Sample:
    other = next(stem for stem in chapters.stems() if stem != author.stem)
    data = notebook_path(other).read_bytes()
    return Sample("other-chapter", data, "empty", ())


def write(folder: Path = SAMPLES) -> list[Path]:
    """Write the class; what is there and does not belong to it is named, not removed."""
    written = []
    for sample in samples():
        path = folder / sample.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sample.data)
        written.append(path)
    return written


def expected(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is kept of a run: status, points and mistakes, by submission."""
    return {
        result["submission"]: {
            "status": result["status"],
            "score": result["score"],
            "max_score": result["max_score"],
            "exercises": {
                item["id"]: {
                    "score": item["score"],
                    "mistakes": list(
                        dict.fromkeys(c["diagnosis"] for c in item["checks"] if c["diagnosis"])
                    ),
                }
                for item in result["exercises"]
            },
        }
        for result in results
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Write the samples; with ``--expected FILE``, also what a run over them gave."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--expected", type=Path, metavar="FILE", help="results of `grade --json` to keep"
    )
    args = parser.parse_args(argv)
    if args.expected:
        results = json.loads(args.expected.read_text(encoding="utf-8"))
        text = json.dumps(expected(results), indent=1, ensure_ascii=False) + "\n"
        EXPECTED.write_text(text, encoding="utf-8")
        print(f"written: {EXPECTED.relative_to(chapters.ROOT)}")
        return 0
    for path in write():
        print(f"written: {path.relative_to(chapters.ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
