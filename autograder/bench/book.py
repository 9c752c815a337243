"""Times what somebody who writes a chapter waits for; ``make bench`` runs it.

Prints each step with what was promised for it, and writes ``_build/bench/book.json``. A measurement
on one machine on one day: nothing fails where a promise is broken.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

from autograder import chapters

BUILD = chapters.ROOT / "_build"
RESULT = BUILD / "bench" / "book.json"


@dataclass
class Step:
    """One measured step.

    Attributes:
        seconds: wall-clock time.
        promise: the most that it should take, in seconds on two cores; None where none was made.
    """

    name: str
    seconds: float
    promise: float | None


def measure(name: str, command: list[str], promise: float | None = None) -> Step:
    """Run a command from the repository's root and time it.

    Raises:
        SystemExit: the command failed; its output is printed.
    """
    start = time.perf_counter()
    done = subprocess.run(command, cwd=chapters.ROOT, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\n`{' '.join(command)}` failed: nothing measured")
    step = Step(name, round(seconds, 2), promise)
    limit = "" if promise is None else f"   (promised: under {promise:g} s)"
    print(f"{step.seconds:8.2f} s  {name}{limit}", flush=True)
    return step


def main() -> None:
    """Measure and write the result."""
    make = ["make", f"PYTHON={sys.executable}"]
    measure("everything built once, before the measurements", make)
    steps = [measure("make check", [*make, "check"], 60)]
    for stem in chapters.stems():
        (BUILD / "worked" / f"{stem}.sha256").unlink(missing_ok=True)
        run = [sys.executable, "-m", "autograder", "compose", stem, "--run"]
        steps.append(measure(f"worked notebook of {stem}, run anew", run, 60))
    for folder in (BUILD / "html", BUILD / ".doctrees"):
        shutil.rmtree(folder, ignore_errors=True)
    steps.append(measure("the book, built anew", [*make, "book"]))
    steps.append(measure("make, with nothing changed", make, 15))

    pages = {
        path.name: path.stat().st_size for path in sorted((BUILD / "html/book").glob("*.html"))
    }
    site = sum(path.stat().st_size for path in (BUILD / "html").rglob("*") if path.is_file())
    print(f"{site / 1e6:8.2f} MB the whole site; pages {pages} bytes")
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "machine": {"processors": os.cpu_count(), "system": platform.platform()},
        "python": platform.python_version(),
        "steps": [asdict(step) for step in steps],
        "page_bytes": pages,
        "site_bytes": site,
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written to {RESULT.relative_to(chapters.ROOT)}")


if __name__ == "__main__":
    main()
