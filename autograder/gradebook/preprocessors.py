"""How nbgrader itself grades and releases with this engine; see ``course.configure``.

nbgrader converts a submission twice: it sanitizes ``submitted/`` into ``autograded/``, then grades
what it wrote there. The engine grades the bytes that were handed in, as everywhere, so the results
are the same ones that ``python -m autograder autograde`` keeps and finds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Enum, Integer

from autograder.gradebook.restored import comments, restored, show
from autograder.grading.batch import Batch, known_stems
from autograder.grading.run import nothing
from autograder.grading.work import Options
from autograder.results import SubmissionResult
from autograder.submissions.align import align
from autograder.submissions.find import Submission, find
from autograder.submissions.read import Unreadable, read
from autograder.submissions.template import CHECK, notebook_path, template

Node = nbformat.NotebookNode
Resources = dict[str, Any]


class AsHandedOut(NbGraderPreprocessor):
    """Puts the student's notebook itself in the place of what was parsed and checked."""

    def preprocess(self, nb: Node, resources: Resources) -> tuple[Node, Resources]:
        """See nbconvert."""
        path = notebook_path(resources["nbgrader"]["notebook"])
        return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4), resources


class Restore(NbGraderPreprocessor):
    """Puts a submission back into the form that was handed out."""

    def preprocess(self, nb: Node, resources: Resources) -> tuple[Node, Resources]:
        """See nbconvert."""
        info = resources["nbgrader"]
        handed_out = template(info["notebook"])
        try:
            notebook = read(_handed_in(self, info).data())
        except (OSError, Unreadable):
            return nbformat.from_dict(restored(handed_out)), resources
        aligned = align(notebook, handed_out)
        return nbformat.from_dict(restored(handed_out, notebook, aligned)), resources


class _Graded(NbGraderPreprocessor):
    seed = Integer(0, help="The seed of the cases.").tag(config=True)
    sandbox = Enum(["auto", "none"], "auto", help="none runs learners' code unprotected.").tag(
        config=True
    )

    def result(self, resources: Resources) -> SubmissionResult:
        """The submission's result: kept, or made now."""
        info = resources["nbgrader"]
        if "autograder" not in info:
            submission = _handed_in(self, info)
            options = Options(self.seed, self.sandbox, known_stems(), info["notebook"])
            batch = Batch([submission], options, keep_open=True)
            batch.run()
            found = [graded.result for _submission, graded in batch.results()]
            info["autograder"] = found[0] if found else nothing("unreadable", info["notebook"])
        result: SubmissionResult = info["autograder"]
        return result


class Grade(_Graded):
    """Grades a submission and puts the results into the checks' cells."""

    def preprocess(self, nb: Node, resources: Resources) -> tuple[Node, Resources]:
        """See nbconvert."""
        results = {
            item.id.partition(".")[2] + CHECK: item for item in self.result(resources).exercises
        }
        for cell in nb.cells:
            grade_id = cell.metadata.get("nbgrader", {}).get("grade_id", "")
            if grade_id in results:
                show(cell, results[grade_id])
                cell.outputs = [nbformat.from_dict(output) for output in cell.outputs]
        return nb, resources


class Comments(_Graded):
    """Writes the notes on a submission into the gradebook."""

    def preprocess(self, nb: Node, resources: Resources) -> tuple[Node, Resources]:
        """See nbconvert."""
        info = resources["nbgrader"]
        names = template(info["notebook"]).exercises
        with Gradebook(info["db_url"]) as gradebook:
            for name, text in comments(self.result(resources), names).items():
                comment = gradebook.find_comment(
                    name, info["notebook"], info["assignment"], info["student"]
                )
                comment.auto_comment = text
            gradebook.db.commit()
        return nb, resources


def _handed_in(preprocessor: NbGraderPreprocessor, info: Resources) -> Submission:
    """The file as it was handed in: the converter that runs a preprocessor knows the folders.

    As everywhere, a link is not followed: it would hand in somebody else's answers.
    """
    course = preprocessor.parent.parent.coursedir
    folder = course.format_path(course.submitted_directory, info["student"], info["assignment"])
    return find([Path(folder, f"{info['notebook']}.ipynb")])[0]
