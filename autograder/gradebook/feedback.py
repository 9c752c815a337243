"""nbgrader's feedback pages: readable anywhere, and what most submissions share is rendered once.

nbconvert parses each finished page a second time, to give pictures a text and to make cells of its
own layout focusable; that takes more than half of the time. Here the pieces are looked at, not the
page. The page's layout is in ``templates/feedback_page``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from nbconvert.exporters import HTMLExporter
from nbconvert.exporters.templateexporter import TemplateExporter
from nbconvert.filters import Highlight2HTML
from nbconvert.filters.widgetsdatatypefilter import WidgetsDataTypeFilter
from traitlets import default

from autograder.gradebook.prose import Page, comment, notes, prose, shown
from autograder.gradebook.restored import NOTES
from autograder.gradebook.safe import KEPT, safe_markdown, safe_markup
from autograder.i18n import LANGUAGE, _
from autograder.submissions.read import read
from autograder.submissions.template import CHECK, notebook_path


@dataclass
class Exercise:
    """A row of the table at the top of a page.

    Attributes:
        name: the function, or the graded cell's id.
        place: the id of the cell with the points; "" if there is none.
        score: points; None where the cell is not graded.
        most: points that could be had.
        comment: the id of the cell that is commented on; "" if there is none.
    """

    name: str
    place: str = ""
    score: float | None = None
    most: float = 0.0
    comment: str = ""


def exercise(grade_id: str) -> str:
    """The exercise that a cell with this id belongs to."""
    return str(grade_id).removesuffix(CHECK)


def exercises(nb: Any) -> list[Exercise]:
    """What is graded or commented on in a notebook, in its order.

    Args:
        nb: a notebook with points and comments, as nbgrader's ``GetGrades`` leaves it.
    """
    found: dict[str, Exercise] = {}
    for cell in nb.cells:
        info = cell.metadata.get("nbgrader") or {}
        place = info.get("grade_id", "")
        name = exercise(place)
        if info.get("comment"):
            found.setdefault(name, Exercise(name)).comment = place
        if info.get("grade") or info.get("task"):
            row = found.setdefault(name, Exercise(name))
            row.place = place
            row.score = float(info.get("score") or 0)
            row.most = float(info.get("points") or 0)
    return list(found.values())


def places(nb: Any) -> frozenset[str]:
    """The ids that a page gives to its parts; see its template."""
    infos = [cell.metadata.get("nbgrader") or {} for cell in nb.cells]
    names = [str(info["grade_id"]) for info in infos if info.get("grade_id")]
    made = {f"{part}{name}" for name in names for part in ("", "about-", "comment-")}
    return frozenset({"points"} | made)


def handed_out(stem: str) -> frozenset[str]:
    """The markdown of a chapter's notebook; none where there is no such chapter."""
    path = notebook_path(stem)
    return _texts(path, path.stat().st_mtime_ns) if path.exists() else frozenset()


@lru_cache(maxsize=8)
def _texts(path: Path, _modified: int) -> frozenset[str]:
    cells = read(path.read_bytes()).cells
    return frozenset(cell.source.strip() for cell in cells if cell.kind == "markdown")


def points(number: float) -> str:
    """``number`` with as many digits as it needs, two behind the point at most."""
    return f"{round(float(number), 2):.12g}"


class FeedbackPages(HTMLExporter):
    """HTML as the template ``feedback_page`` lays it out; see the module's description."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._colored = lru_cache(KEPT)(self._color)

    @default("sanitize_html")
    def _sanitizes(self) -> bool:
        return True

    @default("language_code")
    def _language(self) -> str:
        return LANGUAGE.partition("_")[0]

    def default_filters(self) -> Iterable[tuple[str, Any]]:
        """See nbconvert."""
        yield from super().default_filters()
        yield "clean_html", safe_markup
        yield "strip_files_prefix", safe_markdown
        yield "prose", prose
        yield "comment", comment
        yield "notes", notes
        yield "shown", shown
        yield "exercise", exercise
        yield "exercises", exercises
        yield "points", points

    def from_notebook_node(  # type: ignore[override]  # as nbconvert's own differs from its base
        self, nb: Any, resources: dict[str, Any] | None = None, **kw: Any
    ) -> tuple[str, dict[str, Any]]:
        """See nbconvert."""
        language = nb.metadata.get("language_info", {})
        lexer = language.get("pygments_lexer", language.get("name"))

        def highlight_code(code: str, language: str | None = None, metadata: Any = None) -> str:
            return self._colored(lexer, code, language, (metadata or {}).get("magics_language"))

        resources = self._init_resources(resources)
        widgets = WidgetsDataTypeFilter(
            notebook_metadata=self._nb_metadata, parent=self, resources=resources
        )
        self.register_filter("highlight_code", highlight_code)
        self.register_filter("filter_data_type", widgets)
        page = Page(handed_out(resources.get("nbgrader", {}).get("notebook", "")), places(nb))
        self.register_filter("prose", page.prose)
        self.environment.globals["_"] = _
        self.environment.globals["NOTES"] = NOTES
        html, resources = TemplateExporter.from_notebook_node(self, nb, resources, **kw)
        return html, resources

    def _color(
        self, lexer: str | None, code: str, language: str | None, magics_language: str | None
    ) -> str:
        metadata = {"magics_language": magics_language} if magics_language else None
        highlight = Highlight2HTML(pygments_lexer=lexer, parent=self)
        colored = str(highlight(code, language=language, metadata=metadata))
        return colored.replace("<pre>", '<pre tabindex="0">', 1)  # long lines scroll in it
