"""``python -m autograder doctor``: what this machine offers, what is missing, how to mend it."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autograder.i18n import _

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        good: True (there), False (missing, and something does not work), None (not needed here).
        what: what was looked at.
        found: what was found.
        mend: what to do about it.
    """

    good: bool | None
    what: str
    found: str
    mend: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; returns 1 where submissions cannot be graded safely here."""
    parser = argparse.ArgumentParser(prog="python -m autograder doctor", description=__doc__)
    parser.parse_args(argv)
    safe = True
    for finding in findings():
        sign = {True: "ok", False: "missing", None: "-"}[finding.good]
        print(f"{sign:8}{finding.what}: {finding.found}")
        if finding.mend:
            print(f"{'':8}  {finding.mend}")
        if finding.what == SANDBOX and not finding.good:
            safe = False
    return 0 if safe else 1


SANDBOX = _("sandbox for grading")


def findings() -> Iterator[Finding]:
    """Everything that is looked at, in the order in which it is needed."""
    yield Finding(True, "Python", f"{platform.python_version()}, {platform.platform()}")
    yield _package("torch", needed=True, mend=_("pip install -r requirements.txt"))
    yield from _sandbox()
    yield _package(
        "nbgrader", needed=True, mend=_("needed for `autograde`: pip install -r requirements.txt")
    )
    yield _package(
        "triton",
        needed=sys.platform == "linux",
        mend=_("needed for the chapter on flash attention; it has wheels for Linux alone"),
    )
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    yield Finding(
        browser is not None,
        _("a browser for the tests of the pages"),
        browser or _("none"),
        "" if browser else _("Debian and Ubuntu: apt-get install chromium"),
    )
    bubblewrap = shutil.which("bwrap")
    yield Finding(None, "bubblewrap", bubblewrap or _("none; the engine does not need it"))


def _package(name: str, *, needed: bool, mend: str) -> Finding:
    try:
        return Finding(True, name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(False if needed else None, name, _("not installed"), mend)


def _sandbox() -> Iterator[Finding]:
    if sys.platform != "linux":
        yield Finding(
            False,
            SANDBOX,
            _("none: namespaces and Landlock are Linux's"),
            _("grade on Linux (a virtual machine will do), or with --sandbox none code you trust"),
        )
        return
    # Only Linux has what these import.
    from autograder.engine import Engine, SandboxUnavailable  # noqa: PLC0415
    from autograder.engine.tiers import SECOND_TIER_LACKS, why_no_namespaces  # noqa: PLC0415

    try:
        with Engine() as engine:
            tier, weaker = engine.tier, engine.weaker
            with engine.open([("probe", "def probe(): return 1")], "probe") as link:
                works = link.request({"op": "call", "object": 0})["value"] == 1
    except SandboxUnavailable as error:
        yield Finding(False, SANDBOX, str(error), " ".join(why_no_namespaces()))
        return
    if tier == "namespaces":
        yield Finding(works, SANDBOX, _("full: namespaces, seccomp and limits"))
        return
    reasons = " ".join(why_no_namespaces()) or "; ".join(weaker)
    yield Finding(works, SANDBOX, _("second tier: Landlock, seccomp and limits"), reasons)
    for lack in SECOND_TIER_LACKS:
        yield Finding(None, _("this tier cannot keep"), lack)


if __name__ == "__main__":
    sys.exit(main())
