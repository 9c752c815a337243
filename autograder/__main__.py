"""``python -m autograder VERB ...``: each verb's module is loaded when it is asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

VERBS = {
    "check": ("autograder.learner.command", "a learner's own look at a notebook: visible checks"),
    "grade": (
        "autograder.grading.command",
        "grade notebooks, folders or zips, without a gradebook",
    ),
    "autograde": ("autograder.gradebook.command", "nbgrader's submitted/ to its gradebook"),
    "verify": ("autograder.verify", "prove checks and answer bank"),
    "compose": ("autograder.compose.command", "make the notebooks from their three sources"),
    "doctor": ("autograder.doctor", "what this machine offers, what is missing, how to mend it"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Hand over to a verb."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] not in VERBS:
        wanted = argv and argv[0] not in ("-h", "--help")
        if wanted:
            print(f"no verb {argv[0]!r}", file=sys.stderr)
        print("usage: python -m autograder VERB ...   (VERB --help says more)\n")
        for verb, (_module, text) in VERBS.items():
            print(f"  {verb:10} {text}")
        return 2 if wanted else 0
    module = importlib.import_module(VERBS[argv[0]][0])
    return int(module.main(argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
