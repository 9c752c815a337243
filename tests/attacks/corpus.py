"""What an attack is, what it is run against, and what it may get.

The exercise is attention, ``attend(q, k, v)``. An attacker does not know how to write it; every
attack tries to be paid all the same, or to do harm. *Loot* is a right answer's source, laid out
where a sandbox must not reach: who can read it, has it, and is paid.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

import torch

from autograder.answer import Answer
from autograder.checking import Cases, Exercise, expect_close, fail

RIGHT = """
def attend(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return scores.softmax(-1) @ v
"""
MARK = "# 7c1f-loot"
LOOT = MARK + RIGHT
SETUP = ("setup", "import math\nimport torch\nimport torch.nn.functional as F")


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention in float64."""
    q, k, v = q.double(), k.double(), v.double()
    return ((q @ k.transpose(-2, -1)) / q.shape[-1] ** 0.5).softmax(-1) @ v


exercise = Exercise(
    "attend",
    title="attention",
    difficulty=1,
    minutes=1,
    hints=("", "", ""),
    forbid=("scaled_dot_product_attention", "multi_head_attention_forward"),
    stem="toy",
)


def _inputs(cases: Cases) -> tuple[torch.Tensor, ...]:
    return cases.normal(2, 3, 5), cases.normal(2, 4, 5), cases.normal(2, 4, 6)


@exercise.check(points=1, hidden=True)
def values(answer: Answer, cases: Cases) -> None:
    """The values are those of the definition."""
    q, k, v = _inputs(cases)
    # float32 against float64 at width 5: errors of a few 1e-7
    expect_close(answer(q, k, v), reference(q, k, v), atol=1e-5, what="out", cause="", next_step="")


@exercise.check(points=1, hidden=True)
def gradient(answer: Answer, cases: Cases) -> None:
    """So are the gradients, and the inputs stay as they were."""
    q, k, v = _inputs(cases)
    run = answer.run([q, k, v], wrt=[0, 2], echo=True)
    leaves = [item.double().requires_grad_() for item in (q, k, v)]
    wanted = torch.autograd.grad(reference(*leaves).sum(), [leaves[0], leaves[2]])
    for key, grad in zip(("0", "2"), wanted, strict=True):
        # as above
        expect_close(run.grads[key], grad, atol=1e-5, what="grad", cause="", next_step="")
    if not all(torch.equal(a, b) for a, b in zip(run.args, (q, k, v), strict=True)):
        fail(seen="inputs changed", cause="", next_step="")


@dataclass(frozen=True)
class Attack:
    """One attack or fault.

    Attributes:
        name: what it does.
        source: the learner's cell; ``{pid}``, ``{port}`` and so on are filled in (see ``Target``).
        earns: points it may get: 0 unless it holds a right answer, then 2.
        lost: the statuses it may end in; empty where every check gets its reply, with an ``""``
            in it where that is possible too.
        before: cells that stand before it.
    """

    name: str
    source: str
    earns: int = 0
    lost: tuple[str, ...] = ()
    before: tuple[str, ...] = ()

    def cells(self, target: Any) -> list[tuple[str, str]]:
        """The submission's cells."""
        places = vars(target)
        cells = [SETUP]
        for index, text in enumerate((*self.before, self.source)):
            source = textwrap.dedent(text)
            for key, value in places.items():
                source = source.replace("{" + key + "}", str(value))
            cells.append((f"cell-{index}", source.replace("{RIGHT}", RIGHT)))
        return cells


def attempt(body: str) -> str:
    """A cell that tries to bring a right answer home with ``body`` (which sets ``loot``).

    Where that fails, ``attend`` is there and wrong.
    """
    return (
        "def attend(q, k, v):\n    return q\n"
        "loot = None\n"
        "try:\n"
        + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
        + "\nexcept BaseException as problem:\n    pass\n"
        "if isinstance(loot, bytes):\n    loot = loot.decode(errors='replace')\n"
        "if loot and 'def attend' in loot:\n"
        "    exec(loot[loot.index('def attend') :].partition('\\0')[0])\n"
    )
