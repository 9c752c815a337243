"""``python -m autograder compose``: the notebooks from their three sources."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from autograder import chapters
from autograder.compose import execute, notebook
from autograder.compose.chapter import Composed, compose, load
from autograder.compose.files import Files, drift, orphans, repository, write, write_composed
from autograder.sources import SourceError


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of ``compose``; 0 where all is well, 1 on drift, 2 on a malformed source."""
    parser = argparse.ArgumentParser(prog="python -m autograder compose", description=__doc__)
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help="stems; all by default")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--check", action="store_true", help="write nothing; say which notebooks are stale"
    )
    mode.add_argument(
        "--run", action="store_true", help="also run the worked notebooks, into _build/worked/"
    )
    mode.add_argument(
        "--execute",
        action="store_true",
        help="also run them and keep their text outputs in solutions/notebooks/",
    )
    args = parser.parse_args(argv)
    root = chapters.ROOT
    problems = 0
    try:
        order = chapters.stems()
        address = repository(root)
        unknown = [stem for stem in args.chapters if stem not in order]
        if unknown:
            raise SourceError(f"no chapter {unknown[0]!r} in _toc.yml; it has {', '.join(order)}")
    except SourceError as error:
        print(error, file=sys.stderr)
        return 2
    to_run: list[tuple[Files, Composed]] = []
    try:
        for stem in args.chapters or order:
            files, composed = Files(root, stem), compose(load(stem, root, order, address))
            problems += _compare(files, composed) if args.check else _write(files, composed)
            to_run.append((files, composed))
        if args.run or args.execute:
            _run(to_run, keep_outputs=args.execute)
    except SourceError as error:
        print(error, file=sys.stderr)
        return 2
    if args.check and not args.chapters:
        for line in orphans(root, order):
            print(line)
            problems += 1
    return 1 if problems else 0


def _compare(files: Files, composed: Composed) -> int:
    """Name the stale files, and return how many there are."""
    stale = list(drift(files, composed))
    for line in stale:
        print(line)
    return len(stale)


def _write(files: Files, composed: Composed) -> int:
    for path in write_composed(files, composed):
        print(f"wrote {_short(path, files)}")
    return 0


def _run(chapters_to_run: Sequence[tuple[Files, Composed]], *, keep_outputs: bool) -> None:
    """Run worked notebooks, as many at a time as there are processors: each uses one."""
    for files, executed, seconds in _executed(chapters_to_run):
        if seconds is not None:
            print(f"ran   {_short(files.executed, files)} ({seconds:.0f} s)", flush=True)
        if keep_outputs and write(files.worked, notebook.dumps(notebook.text_outputs(executed))):
            print(f"wrote {_short(files.worked, files)}, with outputs")


def _executed(
    chapters_to_run: Sequence[tuple[Files, Composed]],
) -> Iterator[tuple[Files, dict[str, Any], float | None]]:
    """The chapters' notebooks with their outputs, as they are done; see :func:`_timed`."""
    at_a_time = min(len(chapters_to_run), os.cpu_count() or 1)
    if at_a_time == 1:  # another process would only import everything once more
        for files, composed in chapters_to_run:
            yield (files, *_timed(files, composed.worked))
        return
    with ProcessPoolExecutor(at_a_time, get_context("spawn")) as pool:
        # Later chapters take longer: what is begun last ends soon, and no processor waits for it.
        jobs = {
            pool.submit(_timed, files, composed.worked): files
            for files, composed in reversed(chapters_to_run)
        }
        try:
            for job in as_completed(jobs):
                yield (jobs[job], *job.result())
        finally:
            pool.shutdown(cancel_futures=True)


def _timed(files: Files, worked: dict[str, Any]) -> tuple[dict[str, Any], float | None]:
    """The notebook with its outputs, and how long it ran; None where a kept run was there."""
    start = time.perf_counter()
    executed, did_run = execute.run(files, worked)
    return executed, time.perf_counter() - start if did_run else None


def _short(path: Path, files: Files) -> str:
    return path.relative_to(files.root).as_posix()
