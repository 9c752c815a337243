"""nbgrader's feedback pages, written faster: what most submissions share is rendered once.

nbconvert parses each finished page a second time, to give pictures a text and to make cells of its
own layout focusable; that takes more than half of the time. nbgrader's page has another layout, and
only markdown and outputs can bring a picture, so here the pieces are looked at, not the page.

What a learner wrote is shown to others, so nothing of it may run there. Neither nbgrader's
templates nor nbconvert, unless it is told to, take scripts out of it; the filters here do.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import bleach  # type: ignore[import-untyped]
from bleach.css_sanitizer import CSSSanitizer  # type: ignore[import-untyped]
from bs4 import BeautifulSoup
from jinja2 import pass_context
from nbconvert.exporters import HTMLExporter
from nbconvert.exporters.templateexporter import TemplateExporter
from nbconvert.filters import Highlight2HTML, strip_files_prefix
from nbconvert.filters.widgetsdatatypefilter import WidgetsDataTypeFilter
from traitlets import default

from autograder.i18n import _

_KEPT = 4096  # pieces; a chapter's notebook has some 150, most of which all learners share
_PICTURE_WITHOUT_TEXT = re.compile(r"<img\b(?![^>]*\salt\s*=)", re.IGNORECASE)


_TAGS = """
a abbr b blockquote br caption cite code col colgroup dd del details dfn div dl dt em figcaption
figure h1 h2 h3 h4 h5 h6 hr i img ins kbd li mark ol p pre q s samp small span strong sub summary
sup table tbody td tfoot th thead tr u ul var
"""
_ATTRIBUTES = """
alt align border cellpadding cellspacing class colspan height href id name open rel rowspan scope
src start style target title valign width
"""
_INVISIBLE = re.compile(r"[\x00-\x20\x7f-\xa0\s]+")
_CSS = CSSSanitizer()


def _is_allowed(tag: str, name: str, value: str) -> bool:
    if name not in _ATTRIBUTES.split():
        return False
    # a picture may stand in the page itself; behind a link such data would be a page of its own
    address = _INVISIBLE.sub("", html.unescape(value)).lower()
    return tag == "img" or not address.startswith("data:")


@lru_cache(_KEPT)
def without_scripts(markup: str) -> str:
    """HTML in which nothing runs: other elements stand there as text, other attributes are gone."""
    return bleach.clean(
        markup,
        tags=_TAGS.split(),
        attributes=_is_allowed,
        protocols=("http", "https", "mailto", "data", "attachment"),
        css_sanitizer=_CSS,
    )


def safe_markup(markup: Any) -> str:
    """In place of nbconvert's ``clean_html``, which leaves no paragraph and no picture."""
    return without_scripts(markup.decode() if isinstance(markup, bytes) else str(markup))


def safe_markdown(markup: str) -> str:
    """In place of ``strip_files_prefix``, the last thing that nbgrader does to markdown."""
    return without_scripts(strip_files_prefix(markup))


class FeedbackPages(HTMLExporter):
    """HTML as nbgrader's template lays it out; see the module's description."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rendered = lru_cache(_KEPT)(self._render)
        self._colored = lru_cache(_KEPT)(self._color)

    @default("sanitize_html")
    def _sanitizes(self) -> bool:
        return True

    def default_filters(self) -> Iterable[tuple[str, Any]]:
        """See nbconvert."""
        yield from super().default_filters()
        yield "clean_html", safe_markup
        yield "strip_files_prefix", safe_markdown

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
        self.register_filter("highlight_code", self.filters.get("highlight_code", highlight_code))
        self.register_filter("filter_data_type", widgets)
        page, resources = TemplateExporter.from_notebook_node(self, nb, resources, **kw)
        return _with_texts(page), resources

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        """Markdown as HTML whose every element is closed: one cell cannot break the next."""
        if context.get("cell", {}).get("attachments"):
            return _closed(HTMLExporter.markdown2html(self, context, source))
        path = context.get("resources", {}).get("metadata", {}).get("path", "")
        return self._rendered(source, path if self.embed_images else "")

    def _render(self, source: str, path: str) -> str:
        return _closed(
            HTMLExporter.markdown2html(self, {"resources": {"metadata": {"path": path}}}, source)
        )

    def _color(
        self, lexer: str | None, code: str, language: str | None, magics_language: str | None
    ) -> str:
        metadata = {"magics_language": magics_language} if magics_language else None
        highlight = Highlight2HTML(pygments_lexer=lexer, parent=self)
        return str(highlight(code, language=language, metadata=metadata))


def _closed(markup: str) -> str:
    return str(BeautifulSoup(markup, features="html.parser"))


def _with_texts(page: str) -> str:
    text = _("No description has been provided for this image")
    return _PICTURE_WITHOUT_TEXT.sub(f'<img alt="{text}"', page)
