"""Every attack and fault, in a sandbox: what it may earn, and that it touches nothing else.

The tier is ``AUTOGRADER_TIER`` (``namespaces`` by default). As root the corpus runs in the first
tier, and :mod:`tests.test_engine_tiers` runs it again as an ordinary user, in the second.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from autograder.answer import Callbacks
from autograder.engine import Engine, Limits, SandboxLink
from autograder.judge import Judge
from tests.attacks import exhaustion, faults, forgery, harm, theft
from tests.attacks.corpus import LOOT, SETUP, Attack, exercise
from tests.attacks.target import Target

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/ns").exists(), reason="sandboxes are Linux only"
)

CORPUS = [
    pytest.param(attack, id=f"{module.__name__.rpartition('.')[2]}: {attack.name}")
    for module in (forgery, theft, harm, exhaustion, faults)
    for attack in module.ATTACKS
]
LIMITS = Limits(
    # generous for right answers (which take 0.05 s), short for loops
    startup_seconds=0.8,
    request_seconds=0.3,
    total_seconds=10,
    memory=256 * 2**20,
    scratch_megabytes=8,
    threads=16,
)


@pytest.fixture(scope="module")
def engine():
    with Engine(sandbox=os.environ.get("AUTOGRADER_TIER", "namespaces"), limits=LIMITS) as engine:
        assert grade(engine, [SETUP, ("cell", LOOT)]) == (2, set())
        yield engine


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    target = Target(tmp_path_factory.mktemp("target"))
    yield target
    target.close()


def grade(engine: Engine, cells: list[tuple[str, str]], name: str = "attend"):
    """Points, and the reasons of lost links."""
    links: list[SandboxLink] = []

    def open_link(callbacks: Callbacks) -> SandboxLink:
        links.append(engine.open(cells, name, forbid=exercise.forbid, callbacks=callbacks))
        return links[-1]

    outcomes = Judge(exercise).outcomes(open_link)
    for link in links:
        link.close()
    points = sum(outcome.message is None for outcome in outcomes.values())
    return points, {outcome.lost for outcome in outcomes.values()} - {None}


@pytest.mark.parametrize("attack", CORPUS)
def test_attack(attack: Attack, engine: Engine, target: Target):
    points, lost = grade(engine, attack.cells(target))

    assert points == attack.earns
    assert lost <= set(attack.lost)
    assert lost or not attack.lost or "" in attack.lost, "expected to be lost"
    assert target.touched() == []
    assert nothing_left(engine)
    # the next submission is none the worse; it holds a right answer, which the next attack finds
    # only if something of it stays
    assert grade(engine, [SETUP, ("cell", LOOT)]) == (2, set())


def nothing_left(engine: Engine) -> bool:
    """Whether only the warm process (two) and sandboxes that wait for work (two) are alive."""
    warm = psutil.Process(engine._warm._process.pid)
    for _ in range(100):  # what was killed takes a moment to go
        if len(warm.children(recursive=True)) <= 3:
            return True
        time.sleep(0.05)
    return False


def test_corpus_is_large_enough():
    assert len(CORPUS) >= 60
    assert len({param.id for param in CORPUS}) == len(CORPUS)
