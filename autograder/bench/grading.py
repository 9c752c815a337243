"""Times the grading of a class beside stock nbgrader's: ``make bench-grading``.

The class is made from the answer bank, seeded: right, wrong and unanswered exercises, one in eight
mishandled as learners do. Stock nbgrader has its own preprocessors, a kernel a submission,
and ``check`` returning partial credit there; it grades a sample of those that it can open. Ours
grades the whole class from nothing, start-up included. Both must give the same scores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook

from autograder import chapters
from autograder.bench.sample_class import (
    STEM,
    Author,
    cell_of,
    saved,
    through_colab,
    to_format_3,
)
from autograder.gradebook.course import path_with_this_python

RESULT = chapters.ROOT / "_build" / "bench" / "grading.json"
MISHANDLED = 8
# A class, and how many times larger the one is that shows how the cost grows.
CLASS, SCALE = 200, 10


def make_class(folder: Path, count: int, seed: int) -> dict[str, bool]:
    """Write ``count`` submissions as nbgrader lays them out.

    Returns:
        By learner, whether stock nbgrader can open the file.
    """
    author, rng = Author(), random.Random(seed)
    opened = {}
    for number in range(count):
        answers = {}
        for name in author.exercises:
            kind = rng.random()
            if kind < 0.5:
                answer = rng.choice([author.reference[name], *author.right[name].values()])
            elif kind < 0.85:
                answer = rng.choice(list(author.wrong[name].values()))
            else:
                continue
            # nobody's text is another's
            answers[name] = f"{answer.rstrip()}\n# {number}"
        notebook = author.notebook(answers)
        student = f"learner-{number:04d}"
        data = saved(notebook)
        opened[student] = number % MISHANDLED != MISHANDLED - 1
        if not opened[student]:
            cell = cell_of(notebook, "padding_mask")
            notebook["cells"].append(dict(cell, id="copy", metadata={}))
            data = rng.choice(
                [
                    saved(through_colab(notebook)),
                    saved(to_format_3(notebook)),
                    b"\xef\xbb\xbf" + saved(notebook),
                    saved(notebook),
                ]
            )
        target = folder / student / STEM / f"{STEM}.ipynb"
        target.parent.mkdir(parents=True)
        target.write_bytes(data)
    return opened


def timed(
    command: Sequence[str], env: Mapping[str, str], cwd: Path = chapters.ROOT
) -> tuple[float, str]:
    """Seconds that a command takes, and what it printed; a failure ends the bench."""
    start = time.perf_counter()
    done = subprocess.run(
        command, env={**os.environ, **env}, cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return time.perf_counter() - start, done.stdout


STOCK_CONFIG = """\
c = get_config()
c.CourseDirectory.root = {root!r}
"""


class Stock:
    """Stock nbgrader, with a folder and a configuration of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            "PYTHONPATH": str(chapters.ROOT),
            "PATH": path_with_this_python(),
            "JUPYTER_CONFIG_DIR": str(folder / "no-config"),
            # as the engine does it: more threads would fight over the cores
            "OMP_NUM_THREADS": "1",
        }
        folder.mkdir(parents=True)
        config = folder / "nbgrader_config.py"
        config.write_text(STOCK_CONFIG.format(root=str(folder)), encoding="utf-8")
        source = folder / "source" / STEM
        source.mkdir(parents=True)
        shutil.copy(chapters.ROOT / "book" / f"{STEM}.ipynb", source)
        self._run("generate_assignment", STEM)

    def _run(self, *args: str) -> float:
        command = [sys.executable, "-m", "nbgrader", *args]
        return timed(command, self.env, self.folder)[0]

    def grade(self, submitted: Path, students: Sequence[str]) -> tuple[float, float]:
        """Seconds for autograding and for feedback, per submission."""
        for student in students:
            shutil.copytree(submitted / student, self.folder / "submitted" / student)
        graded = self._run("autograde", STEM)
        feedback = self._run("generate_feedback", STEM)
        return graded / len(students), feedback / len(students)

    def scores(self) -> dict[str, float]:
        """What is in its gradebook."""
        return book_scores(self.folder)


def book_scores(folder: Path) -> dict[str, float]:
    """The scores in a course's gradebook, by learner."""
    with Gradebook(f"sqlite:///{folder / 'gradebook.db'}") as gradebook:
        return {item.student.id: item.score for item in gradebook.assignment_submissions(STEM)}


_MEASURED = """\
import json, resource, sys
from autograder.__main__ import main
code = main(sys.argv[1:])
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
sys.exit(code)
"""


class Ours:
    """This course's grading, with folders of its own."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self.workers = str(workers)
        self.env = {
            "PYTHONPATH": str(chapters.ROOT),
            "COURSE_FOLDER": str(folder),
            "COURSE_RESULTS": str(folder / "results"),
            "OMP_NUM_THREADS": "1",
        }

    def run(self, *args: str) -> tuple[float, float]:
        """Seconds, and the largest memory of the trusted process in megabytes."""
        command = [sys.executable, "-c", _MEASURED, *args, "--workers", self.workers]
        seconds, out = timed([*command, "--quiet"], self.env)
        return seconds, float(out.strip().splitlines()[-1])

    def feedback(self) -> float:
        """Seconds that the feedback pages take."""
        env = {**self.env, "PATH": path_with_this_python()}
        return timed([sys.executable, "-m", "nbgrader", "generate_feedback", STEM], env)[0]


def measure(count: int, sample: int, workers: int, seed: int, *, scale: bool) -> dict[str, Any]:
    """Run everything once."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        submitted = root / "class" / "submitted"
        opened = make_class(submitted, count, seed)
        students = [student for student, stock_can in opened.items() if stock_can][:sample]

        stock = Stock(root / "stock")
        print(f"stock nbgrader on {len(students)} …", flush=True)
        stock_s, stock_feedback_s = stock.grade(submitted, students)

        print(f"ours on {count} …", flush=True)
        engine = Ours(root / "engine", workers)
        engine_total, rss = engine.run("grade", str(submitted))
        again_total, _rss = engine.run("grade", str(submitted))
        books = Ours(root / "class", workers)
        books_total, _rss = books.run("autograde", STEM)
        books_again, _rss = books.run("autograde", STEM)
        feedback_total = books.feedback()

        ours, theirs = book_scores(root / "class"), stock.scores()
        differ = {s: (ours[s], theirs[s]) for s in students if abs(ours[s] - theirs[s]) > 1e-9}
        if differ:
            sys.exit(f"the scores differ: {differ}")

        found: dict[str, Any] = {
            "submissions": count,
            "stock_sample": len(students),
            "workers": workers,
            "stock_s": stock_s,
            "stock_feedback_s": stock_feedback_s,
            "engine_s": engine_total / count,
            "gradebook_s": books_total / count,
            "feedback_s": (books_total + feedback_total) / count,
            "repeated_engine_s": again_total / count,
            "repeated_gradebook_s": books_again / count,
            "ratio_engine": stock_s * count / engine_total,
            "ratio_gradebook": stock_s * count / books_total,
            "ratio_feedback": (stock_s + stock_feedback_s) * count / (books_total + feedback_total),
            "peak_rss_mb": rss,
        }
        if scale:
            print(f"ours on {count * SCALE} …", flush=True)
            large = root / "large" / "submitted"
            make_class(large, count * SCALE, seed + 1)
            many = Ours(root / "many", workers)
            total, large_rss = many.run("grade", str(large))
            found["scale_2000_over_200"] = (total / (count * SCALE)) / (engine_total / count)
            found["peak_rss_mb_2000"] = large_rss
        return found


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--submissions", type=int, default=CLASS, metavar="N")
    parser.add_argument(
        "--stock", type=int, default=12, metavar="N", help="graded by stock nbgrader"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--no-scale", action="store_true", help="leave out the class ten times as large"
    )
    args = parser.parse_args(argv)
    found = measure(args.submissions, args.stock, args.workers, args.seed, scale=not args.no_scale)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for key, value in found.items():
        print(f"{key:24} {value:.4g}" if isinstance(value, float) else f"{key:24} {value}")
    print(f"written: {RESULT.relative_to(chapters.ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
