"""``python -m autograder compose``: the notebooks from their three sources."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

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
    for stem in args.chapters or order:
        try:
            composed = compose(load(stem, root, order, address))
            problems += _deal_with(Files(root, stem), composed, args)
        except SourceError as error:
            print(error, file=sys.stderr)
            return 2
    if args.check and not args.chapters:
        for line in orphans(root, order):
            print(line)
            problems += 1
    return 1 if problems else 0


def _deal_with(files: Files, composed: Composed, args: argparse.Namespace) -> int:
    """Do with one chapter what was asked; return the number of stale files."""
    if args.check:
        stale = list(drift(files, composed))
        for line in stale:
            print(line)
        return len(stale)
    for path in write_composed(files, composed):
        print(f"wrote {_short(path, files)}")
    if args.run or args.execute:
        start = time.perf_counter()
        executed, did_run = execute.run(files, composed.worked)
        if did_run:
            seconds = time.perf_counter() - start
            print(f"ran   {_short(files.executed, files)} ({seconds:.0f} s)")
        if args.execute and write(files.worked, notebook.dumps(notebook.text_outputs(executed))):
            print(f"wrote {_short(files.worked, files)}, with outputs")
    return 0


def _short(path: Path, files: Files) -> str:
    return path.relative_to(files.root).as_posix()
