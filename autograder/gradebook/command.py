"""``python -m autograder autograde CHAPTER``: nbgrader's submitted/ into its gradebook, in one go.

Where nothing has changed since the last run, that is all it finds out; see
:mod:`autograder.gradebook.autograde` for what it does else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from autograder.engine import SandboxUnavailable
from autograder.gradebook import course
from autograder.gradebook.errors import BooksError
from autograder.gradebook.last_run import LastRun, Left
from autograder.grading.batch import known_stems
from autograder.grading.cluster import ClusterError
from autograder.grading.command import add_options
from autograder.i18n import _
from autograder.sources import SourceError
from autograder.submissions import shown


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of ``autograde``."""
    parser = argparse.ArgumentParser(prog="python -m autograder autograde", description=__doc__)
    parser.add_argument("chapter", metavar="CHAPTER")
    add_options(parser)
    args = parser.parse_args(argv)
    try:
        return autograde(args)
    except (SourceError, SandboxUnavailable, ClusterError, BooksError) as error:
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


def autograde(args: argparse.Namespace) -> int:
    """Bring a chapter's gradebook up to date with what is handed in."""
    stem = args.chapter
    if stem not in known_stems():
        raise SourceError(
            _("there is no chapter {stem}; there are {known}").format(
                stem=stem, known=", ".join(known_stems())
            )
        )
    config = course.load()
    last = LastRun(stem, [args.seed, args.sandbox], config)
    asks_for_files = args.json or args.report
    left = None if asks_for_files else last.unchanged()
    if left is None:
        # Imported late: nbgrader and torch take seconds.
        from autograder.gradebook.autograde import autograde_class  # noqa: PLC0415

        left = autograde_class(stem, args, config, last)
    if not args.quiet:
        _say(left)
    if left.partly:
        print(
            _("not whole in autograded/, and their comments say why: {students}").format(
                students=", ".join(map(shown.name, left.partly))
            ),
            file=sys.stderr,
        )
    if left.failure:
        print(
            _("results could not be kept ({reason}); the next run grades them again").format(
                reason=left.failure
            ),
            file=sys.stderr,
        )
        return 1
    return 0


def _say(left: Left) -> None:
    left.summary.print()
    for path in left.written:
        print(_("written: {path}").format(path=path))
    print(_("gradebook: {url}").format(url=left.db_url))
