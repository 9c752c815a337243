"""What a result depends on, as hashes: whatever is not in them may change and nothing is redone.

An exercise's result depends on its own checks, its own wrong answers in the bank, the solutions
they use, the grader's code, the seed, and the code that is run. So a changed check re-grades its
own exercise and no other.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder import i18n
from autograder.guest.syntax import syntax_tree
from autograder.submissions.template import Template, imported_solutions

if TYPE_CHECKING:
    from autograder.checking import Exercise

PACKAGE = Path(__file__).resolve().parent.parent
ROOT = PACKAGE.parent

# The code that a score or a message comes from.
_GRADER = (
    "answer.py",
    "bank.py",
    "chapters.py",
    "checking.py",
    "diagnosis.py",
    "judge.py",
    "memory.py",
    "results.py",
    "sources.py",
    "trial.py",
    "compose/names.py",
    "guest/**/*.py",
    "engine/**/*.py",
    "submissions/**/*.py",
    "grading/recall.py",
    "grading/run.py",
    "grading/keys.py",
    "locale/**/*.mo",
)


def digest(*parts: Any) -> str:
    """SHA-256 of some JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def grader() -> str:
    """The grader's own code, its language, and what it runs on."""
    found = {
        path.relative_to(PACKAGE).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for pattern in _GRADER
        for path in sorted(PACKAGE.glob(pattern))
    }
    return digest(found, i18n.LANGUAGE, sys.version_info[:2], version("torch"))


@cache
def judgement(stem: str, name: str) -> str:
    """What judges one exercise: its checks, its wrong answers, and the solutions behind them."""
    checks = PACKAGE / "checks" / f"{stem}.py"
    bank = PACKAGE / "answers" / f"{stem}.py"
    texts = [*_own_checks(checks, name), "--", *_own_answers(bank, name)]
    behind = _solutions([checks, bank, ROOT / "solutions" / f"{stem}.py"])
    return digest(texts, {path.name: path.read_text(encoding="utf-8") for path in behind})


def exercise(
    item: Exercise, cells: Iterable[tuple[str, str]], modules: Mapping[str, str], seed: int
) -> str:
    """One exercise's result for one program."""
    return digest(grader(), judgement(item.stem, item.name), list(cells), dict(modules), seed)


def chapter(handed_out: Template, seed: int, *hints: str) -> str:
    """All of a chapter's results for one submission.

    Args:
        hints: what else its notes and its status depend on.
    """
    exercises = [judgement(handed_out.stem, name) for name in handed_out.exercises]
    return digest(grader(), handed_out.digest, handed_out.modules, exercises, seed, hints)


def _own_checks(path: Path, name: str) -> list[str]:
    """The statements of a checks file, but those of the other exercises."""
    others: set[str] = set()
    kept = []
    for node, text in _top_level(path):
        exercise_name = _exercise_made(node)
        if exercise_name is not None and exercise_name != name:
            assert isinstance(node, ast.Assign)
            others |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif not (isinstance(node, ast.FunctionDef) and _checked_by(node) & others):
            kept.append(text)
    return kept


def _exercise_made(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
        call = node.value
        if isinstance(call.func, ast.Name) and call.func.id == "Exercise":
            return _first_text(call)
    return None


def _checked_by(node: ast.FunctionDef) -> set[str]:
    found = set()
    for item in node.decorator_list:
        func = item.func if isinstance(item, ast.Call) else item
        if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
            found.add(func.value.id)
    return found


def _own_answers(path: Path, name: str) -> list[str]:
    """The statements of a bank, but right answers and those for other exercises."""
    kept = []
    for node, text in _top_level(path):
        calls: list[ast.expr] = []
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            calls = list(node.decorator_list)
        elif isinstance(node, ast.Expr):
            calls = [node.value]
        entered = [
            (call.func.id, _first_text(call))
            for call in calls
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        ]
        entered = [pair for pair in entered if pair[0].split("_")[0] in ("wrong", "right")]
        if all(kind.startswith("wrong") and of in (name, None) for kind, of in entered):
            kept.append(text)
    return kept


def _first_text(call: ast.Call) -> str | None:
    first = call.args[0] if call.args else None
    return first.value if isinstance(first, ast.Constant) and type(first.value) is str else None


@cache
def _top_level(path: Path) -> list[tuple[ast.stmt, str]]:
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    found = []
    for node in syntax_tree(text).body:
        decorated = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(item.lineno for item in decorated)])
        found.append((node, "\n".join(lines[first - 1 : node.end_lineno])))
    return found


@cache
def _imported(path: Path) -> set[Path]:
    return imported_solutions(path.read_text(encoding="utf-8"))


def _solutions(start: Iterable[Path]) -> list[Path]:
    """The modules of ``solutions`` among some files, and what they import, directly or not."""
    waiting = list(start)
    found: set[Path] = {path for path in waiting if path.parent.name == "solutions"}
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            others = _imported(path)
            found |= others
            waiting += others
    return sorted(found)
