"""nbgrader's configuration for this course, and the folder that it releases from.

``nbgrader_config.py`` in the repository's root calls :func:`configure`; all of nbgrader's verbs,
the formgrader among them, then work on ``_nbgrader/``, or the folder that ``COURSE_FOLDER`` names.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from autograder import chapters
from autograder.submissions.template import notebook_path

ROOT = chapters.ROOT
COURSE = Path(os.environ.get("COURSE_FOLDER", ROOT / "_nbgrader"))
OURS = "autograder.gradebook"
TEMPLATES = Path(__file__).with_name("templates")
SAFE_FILTERS = {
    "clean_html": f"{OURS}.safe.safe_markup",
    "markdown2html": f"{OURS}.prose.for_formgrader",
    "strip_files_prefix": f"{OURS}.safe.safe_markdown",
}
"""Filters of nbconvert's templates that let no script of a learner's through, and that end soon."""


def configure(c: Any, root: Path = COURSE) -> None:
    """Set what nbgrader needs to know.

    Args:
        c: the configuration of traitlets, as ``get_config()`` gives it.
        root: the folder with ``source/``, ``release/``, ``submitted/`` and so on.
    """
    prepare(root)
    c.CourseDirectory.root = str(root)

    # Released is what is handed out, byte for byte. Its cells go into the gradebook (SaveCells,
    # which wants checksums); then the file itself takes the place of what was parsed.
    c.GenerateAssignment.preprocessors = [
        "nbgrader.preprocessors.CheckCellMetadata",
        "nbgrader.preprocessors.ComputeChecksums",
        "nbgrader.preprocessors.SaveCells",
        f"{OURS}.preprocessors.AsHandedOut",
    ]
    # First the notebook is put back into its form, whatever was done to it: so ids are unique and
    # metadata valid, and neither DeduplicateIds nor the slow CheckCellMetadata is needed.
    c.Autograde.sanitize_preprocessors = [
        f"{OURS}.preprocessors.Restore",
        "nbgrader.preprocessors.OverwriteKernelspec",
        "nbgrader.preprocessors.OverwriteCells",
    ]
    # The engine stands where Execute stood; nothing of the notebook runs in a kernel. What it
    # shows is short and ours, so there is no output to limit. Comments follow the grades, since
    # SaveAutoGrades writes its own; penalties come last, as they depend on the score.
    c.Autograde.autograde_preprocessors = [
        f"{OURS}.preprocessors.Grade",
        "nbgrader.preprocessors.SaveAutoGrades",
        f"{OURS}.preprocessors.Comments",
        "nbgrader.preprocessors.AssignLatePenalties",
    ]
    c.GenerateFeedback.exporter_class = f"{OURS}.feedback.FeedbackPages"
    # The page has style sheets of its own, so GetGrades is all that stays of what goes before it.
    c.GenerateFeedback.preprocessors = ["nbgrader.preprocessors.GetGrades"]
    c.FeedbackPages.template_name = "feedback_page"
    c.FeedbackPages.extra_template_basedirs = [str(TEMPLATES)]
    # The formgrader's pages are nbconvert's own; what learners wrote may not run there either.
    c.HTMLExporter.sanitize_html = True
    c.HTMLExporter.filters = SAFE_FILTERS
    c.ExportApp.plugin_class = f"{OURS}.export.SafeCsv"


def prepare(root: Path = COURSE) -> None:
    """Copy the student's notebooks to nbgrader's source folder, where they are stale.

    Notebooks alone: nbgrader would release a ``.md`` beside them, answers and all.
    """
    for stem in chapters.stems():
        handed_out = notebook_path(stem)
        if not handed_out.exists():
            continue
        target = root / "source" / stem / f"{stem}.ipynb"
        data = handed_out.read_bytes()
        if target.exists() and target.read_bytes() == data:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.part")
        beside.write_bytes(data)
        os.replace(beside, target)


def load(root: Path = ROOT) -> Any:
    """The configuration that ``nbgrader`` itself would read in the repository's root.

    Returns:
        A ``traitlets.config.Config``.
    """
    from traitlets.config.loader import PyFileConfigLoader  # noqa: PLC0415

    os.environ["PATH"] = path_with_this_python()
    return PyFileConfigLoader("nbgrader_config.py", path=str(root)).load_config()


def path_with_this_python() -> str:
    """``PATH`` with this Python's folder: nbgrader starts ``alembic``, which is there, by name."""
    beside = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", os.defpath)
    return path if beside in path.split(os.pathsep) else os.pathsep.join([beside, path])
