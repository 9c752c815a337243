"""``python -m autograder grade``: grades notebooks, folders or zips, without a gradebook."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from autograder.engine import SandboxUnavailable
from autograder.grading.batch import Batch, known_stems
from autograder.grading.cluster import Cluster, ClusterError
from autograder.grading.graded import Graded
from autograder.grading.pool import Spread
from autograder.grading.progress import Progress
from autograder.grading.summary import Summary
from autograder.grading.work import Options
from autograder.i18n import _
from autograder.results import to_json
from autograder.sources import SourceError
from autograder.submissions.find import Submission, find


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that ``grade`` and ``autograde`` share."""
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all results there, one object a submission"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes of this machine (default: one a core)",
    )
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="grade on a Dask cluster: tls://…, or this machine"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the cases (default 0)")
    parser.add_argument(
        "--sandbox",
        choices=("auto", "none"),
        default="auto",
        help="none runs the submissions' code without any protection",
    )
    parser.add_argument("--report", type=Path, metavar="DIR", help="write the report there")
    parser.add_argument("--quiet", action="store_true", help="say only what goes wrong")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of ``grade``."""
    parser = argparse.ArgumentParser(prog="python -m autograder grade", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    add_options(parser)
    args = parser.parse_args(argv)
    try:
        submissions = find(args.paths)
    except FileNotFoundError as error:
        print(_("there is no {path}").format(path=error.args[0]), file=sys.stderr)
        return 2
    if not submissions:
        print(
            _("there is nothing to grade in {paths}").format(paths=", ".join(map(str, args.paths))),
            file=sys.stderr,
        )
        return 2
    try:
        options = Options(args.seed, args.sandbox, known_stems())
        return run(submissions, options, args)
    except (SourceError, SandboxUnavailable, ClusterError) as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(
            _("{file}: {reason}").format(file=error.filename, reason=error.strerror or error),
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print(_("\ninterrupted; what is graded is kept, the same command goes on"), file=sys.stderr)
        return 130


def run(submissions: Sequence[Submission], options: Options, args: argparse.Namespace) -> int:
    """Grade, and write what was asked for."""
    if options.sandbox == "none":
        print(
            _("warning: without a sandbox the submissions' code can do whatever you can do"),
            file=sys.stderr,
        )
    progress = Progress(len(submissions), quiet=args.quiet)
    batch = graded_batch(submissions, options, args, progress)
    summary = Summary(graded=batch.graded)
    sinks = open_sinks(args)
    for submission, graded in batch.results():
        summary.add(submission, graded)
        for sink in sinks:
            sink.add(submission, graded)
    for sink in sinks:
        sink.finish()
    if not args.quiet:
        summary.print()
        for sink in sinks:
            print(_("written: {path}").format(path=sink.path))
    if batch.store.failure:
        print(
            _("results could not be kept ({reason}); the next run grades them again").format(
                reason=batch.store.failure
            ),
            file=sys.stderr,
        )
        return 1
    return 0


class Sink(Protocol):
    """Takes results, one after the other, and writes them somewhere."""

    path: Path

    def add(self, submission: Submission, graded: Graded) -> None:
        """Take one."""
        ...

    def finish(self) -> None:
        """Write what is left."""
        ...


def open_sinks(args: argparse.Namespace) -> list[Sink]:
    """What the options ask to write."""
    sinks: list[Sink] = []
    if args.json:
        sinks.append(JsonList(args.json))
    if args.report:
        from autograder.report.write import Report  # noqa: PLC0415

        sinks.append(Report(args.report))
    return sinks


def graded_batch(
    submissions: Sequence[Submission],
    options: Options,
    args: argparse.Namespace,
    progress: Progress,
) -> Batch:
    """A batch that has run."""
    spread: Spread | None = Cluster(options, args.scheduler) if args.scheduler else None
    batch = Batch(
        submissions, options, workers=max(1, args.workers), spread=spread, progress=progress
    )
    try:
        batch.run()
    finally:
        progress.finish()
        if spread is not None:
            spread.close()
    return batch


class JsonList:
    """Writes results as a JSON list, one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._beside = path.with_name(f".{path.name}.part")
        self._beside.parent.mkdir(parents=True, exist_ok=True)
        # what UTF-8 cannot hold is written as JSON's own escape
        self._file = self._beside.open(
            "w", encoding="utf-8", errors="backslashreplace", newline="\n"
        )
        self._lead = "[\n"

    def add(self, _submission: Submission, graded: Graded) -> None:
        """Write one."""
        text = json.dumps(to_json(graded.result), ensure_ascii=False, indent=1)
        self._file.write(f"{self._lead}{text}")
        self._lead = ",\n"

    def finish(self) -> None:
        """Put the file in its place."""
        self._file.write("\n]\n" if self._lead != "[\n" else "[]\n")
        self._file.close()
        os.replace(self._beside, self.path)
