"""Where results are kept: in the repository, or where an instructor has the room."""

from __future__ import annotations

import os
from pathlib import Path

from autograder import chapters

RESULTS = Path(os.environ.get("COURSE_RESULTS", chapters.ROOT / "_build" / "results"))
