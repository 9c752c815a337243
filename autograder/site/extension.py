"""The Sphinx extension of the book; ``_config.yml`` names it."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

from autograder.site import lean, mathml
from autograder.site.worked import PageError, alternatives, page_notebook

logger = logging.getLogger(__name__)

ALTERNATIVES = "book_alternatives"

EMPTY_HEADER = re.compile(r"<th\b([^>]*)>\s*(?:<p>\s*</p>)?\s*</th>")
SIZED = re.compile(r'(<img\b[^>]*?) style="width: (\d+)px; height: (\d+)px;"([^>]*>)')
OPENING = re.compile(r"[(\[“‘]*$")
CLOSING = re.compile(r"[)\]”’.,;:!?]*")

WIDE = 760  # px; a wider picture's letters are too small on a phone that shows all of it
ONE_WORD = 24  # characters of code that a phone's line has room for

LOOK = (".css", ".html", ".js", ".py", ".svg")

# Where a page is opened from a disk, a browser forbids the search to read others for their text.
SEARCH = "DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = location.protocol !== 'file:';"


def read_worked_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put outputs, widget state, hints and answers into a chapter's page (``source-read``)."""
    path = Path(app.env.doc2path(docname))
    if path.suffix != ".ipynb":
        return
    root = Path(app.srcdir)
    worked = root / app.config.book_worked / path.name
    page = root / app.config.book_page / f"{path.stem}.json"
    try:
        notebook = page_notebook(path, worked, page)
    except PageError as error:
        # Logged, not raised: Jupyter Book would bury it in a traceback. With -W it ends the build.
        logger.error(str(error).replace(f"{root.as_posix()}/", ""))
        return
    # The page is read again when its worked run changes, though its source has not.
    app.env.note_dependency(str(worked))
    app.env.note_dependency(str(page))
    app.env.temp_data[ALTERNATIVES] = alternatives(notebook)
    source[0] = json.dumps(notebook)


def describe_pictures(app: Sphinx, doctree: nodes.document) -> None:
    """Give a page's pictures their alternative texts (``doctree-read``).

    myst-nb names a picture's file by its hash, and knows one alternative text a cell.
    """
    texts = app.env.temp_data.get(ALTERNATIVES, {})
    for image in doctree.findall(nodes.image):
        text = texts.get(Path(image["uri"]).stem)
        if text:
            image["alt"] = text
        if float(str(image.get("width", "0")).removesuffix("px")) > WIDE:
            image["classes"].append("wide")


def lighten_scripts(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Defer the scripts that a page can be read without (``html-page-context``)."""
    if pagename == "search":  # its own script wants the others loaded before it
        return
    # Sphinx hands all pages the same objects: a page gets its own.
    context["script_files"] = [_deferred(script) for script in context["script_files"]]


def _deferred(script: Any) -> Any:
    name = str(getattr(script, "filename", "") or "")
    # The inline scripts that follow set entries of DOCUMENTATION_OPTIONS at once.
    if not name.endswith(".js") or "documentation_options" in name:
        return script
    attributes = {**script.attributes, "defer": "defer"}
    return type(script)(script.filename, priority=script.priority, **attributes)


def leave_empty_corners_unnamed(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Make a table's empty corner a plain cell: it heads nothing (``html-page-context``)."""
    if "body" in context:
        context["body"] = EMPTY_HEADER.sub(r"<td\1></td>", context["body"])


def give_pictures_their_room(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Say a picture's size where a browser reads it at once (``html-page-context``).

    The page then does not jump when a picture arrives, and those far down can be fetched late.
    """
    if "body" in context:
        context["body"] = SIZED.sub(r'\1 width="\2" height="\3" loading="lazy"\4', context["body"])


def leave_out_authored_pages(app: Sphinx, config: Config) -> None:
    """Read a chapter's notebook and not the authored page beside it (``config-inited``)."""
    root = Path(app.srcdir)
    config.exclude_patterns += [
        page.relative_to(root).as_posix()
        for page in root.glob("book/*.md")
        if page.with_suffix(".ipynb").exists()
    ]


def notice_another_look(app: Sphinx, config: Config) -> None:
    """Build every page again where style, templates or this package changed (``config-inited``).

    Sphinx looks at the pages' sources only.
    """
    folders = (Path(app.srcdir) / "book" / "_site", Path(__file__).parent)
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in LOOK)
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files))
    config.book_look = digest.hexdigest()


class ExerciseCards(SphinxPostTransform):
    """Wraps an exercise's badges, cell, check, hints and answer in one box."""

    default_priority = 200

    def run(self, **kwargs: Any) -> None:
        """Wrap each exercise cell together with the siblings that belong to it."""
        for cell in list(self.document.findall(_is("tag_exercise"))):
            siblings = cell.parent
            start = end = siblings.index(cell)
            if start > 0 and _has(siblings[start - 1], "exercise-about"):
                start -= 1
            while end + 1 < len(siblings) and any(
                _has(siblings[end + 1], name) for name in ("tag_check", "hint", "answer")
            ):
                end += 1
            card = nodes.container(classes=["exercise"])
            card += siblings[start : end + 1]
            siblings[start : end + 1] = [card]


class FormulasKeepPunctuation(SphinxPostTransform):
    """Keeps what closes or opens around a formula in its line: `(` before it, `,` after it.

    A browser may break a line on either side of an inline formula, whatever stands there.
    """

    default_priority = 210

    def run(self, **kwargs: Any) -> None:
        """Put an inline formula into one unbreakable piece with its punctuation."""
        for formula in list(self.document.findall(nodes.math)):
            parent = formula.parent
            at = parent.index(formula)
            before = _text_beside(parent, at - 1)
            after = _text_beside(parent, at + 1)
            opening = OPENING.search(before)[0]  # type: ignore[index]
            closing = CLOSING.match(after)[0]  # type: ignore[index]
            if not opening and not closing:
                continue
            piece = nodes.inline(classes=["unbroken"])
            piece += [nodes.Text(opening), formula.deepcopy(), nodes.Text(closing)]
            parent[at] = piece
            if closing:
                parent[at + 1] = nodes.Text(after[len(closing) :])
            if opening:
                parent[at - 1] = nodes.Text(before[: -len(opening)])


class ShortCodeInOneLine(SphinxPostTransform):
    """Keeps `(B, T, d)` and other short code from being broken at its spaces."""

    default_priority = 210

    def run(self, **kwargs: Any) -> None:
        """Mark the short ones for the style sheet."""
        for code in self.document.findall(nodes.literal):
            if len(code.astext()) <= ONE_WORD:
                code["classes"].append("unbroken")


class PlannedChapters(SphinxPostTransform):
    """Names a chapter that is still to come, where a page links to it."""

    default_priority = 5  # before myst-parser looks for the targets of links

    def run(self, **kwargs: Any) -> None:
        """Replace links whose target is a planned chapter without a page."""
        planned: dict[str, str] = self.config.book_planned
        for link in list(self.document.findall(addnodes.pending_xref)):
            target = link.get("reftarget", "")
            if link.get("reftype") != "myst" or target not in planned:
                continue
            if f"book/{target}" not in self.env.found_docs:
                text = link.astext() or planned[target]
                link.replace_self(nodes.inline(text, text, classes=["planned"]))


def trim_site(app: Sphinx, exception: Exception | None) -> None:
    """Cut the written site to what it uses (``build-finished``)."""
    if exception is None and app.builder.format == "html":
        lean.trim(Path(app.outdir))


def _text_beside(parent: nodes.Element, at: int) -> str:
    """The text at a place among children, "" where there is none."""
    beside = parent[at] if 0 <= at < len(parent) else None
    return beside.astext() if isinstance(beside, nodes.Text) else ""


def _has(node: nodes.Node, css_class: str) -> bool:
    if not isinstance(node, nodes.Element):
        return False
    return css_class in [*node.get("classes", ()), *node.get("container_classes", ())]


def _is(css_class: str) -> Any:
    return lambda node: _has(node, css_class)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_config_value("book_worked", "_build/worked", "env", [str])
    app.add_config_value("book_page", "_build/page", "env", [str])
    app.add_config_value("book_look", "", "env", [str])
    app.add_config_value("book_planned", {}, "env", [dict])
    # Jupyter Book sets it whether or not sphinx_comments, which reads it, is among the extensions.
    app.add_config_value("comments_config", {}, "", [dict])
    app.add_html_math_renderer("mathml", (mathml.visit_inline, None), (mathml.visit_display, None))
    app.add_post_transform(ExerciseCards)
    app.add_post_transform(FormulasKeepPunctuation)
    app.add_post_transform(ShortCodeInOneLine)
    app.add_post_transform(PlannedChapters)
    app.connect("config-inited", leave_out_authored_pages)
    app.connect("config-inited", notice_another_look)
    app.connect("source-read", read_worked_page)
    app.connect("doctree-read", describe_pictures)
    app.connect("html-page-context", lighten_scripts, priority=900)
    app.connect("html-page-context", leave_empty_corners_unnamed)
    app.connect("html-page-context", give_pictures_their_room)
    app.connect("build-finished", trim_site)
    app.add_js_file(None, body=SEARCH, priority=600)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
