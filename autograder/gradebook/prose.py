"""Markdown and outputs as HTML that is safe, needs no script, and is reached by the keyboard.

A formula is left out while the sanitizer looks at what the learner wrote, and put in, as MathML of
our own making, afterwards. So no MathML that somebody typed gets through.
"""

from __future__ import annotations

import html
import re
import secrets
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any
from xml.etree import ElementTree

from jinja2 import pass_context
from jinja2.runtime import Context
from mistune import BlockParser, BlockState
from mistune.plugins.table import NP_TABLE_PATTERN, parse_nptable
from mistune.plugins.url import url as plain_addresses
from nbconvert.filters.markdown_mistune import (
    InvalidNotebook,
    IPythonRenderer,
    MarkdownWithMath,
    MathBlockParser,
    MathInlineParser,
)

from autograder.formulas import LatexError, to_mathml
from autograder.gradebook.safe import KEPT, OURS, is_elsewhere, laid_out, safe_markup
from autograder.i18n import _

LONGEST = 10_000
"""Characters of one text that are laid out; the markdown parser's time grows with their square."""
MOST_ON_PAGE = 60_000
"""Characters of one page that are laid out, those that were handed out left aside."""
MOST_IN_FORMGRADER = 2 * MOST_ON_PAGE
"""The same of one of the formgrader's pages, those that were handed out among them."""

MOST_BROKEN = 20
"""Tables of one text that may turn out to be none; each is read to its end, row by row."""

# Whoever writes markdown cannot know it, so cannot write what stands for a formula.
_MARK = f"formula{secrets.token_hex(8)}n"
_MARKED = re.compile(rf"{_MARK}(\d+)e")
_RULE = re.compile(r"[-:| \t]+$", re.MULTILINE)  # between a table's head and its body
_VERBATIM = ("code", "pre", "kbd", "samp")
# As the sanitizer writes them.
_TAG = re.compile(r"""<(/?)([a-z][a-z0-9]*)((?:[^>"']|"[^"]*"|'[^']*')*)>""")
_ATTRIBUTE = re.compile(r"""([^\s=>"'/]+)(?:=(?:"([^"]*)"|'([^']*)'))?""")
_PICTURE = re.compile(
    r"(!\[[^\]\n]{0,200}\]\()data:(image/[a-z0-9.+-]{1,40});base64,([A-Za-z0-9+/]++=*+)(?=\))"
)
_HEADING = re.compile(r'(<h[1-6]) id="([^"]*)"')

_MATHML = """
math merror mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow ms mspace
msqrt mstyle msub msubsup msup mtable mtd mtext mtr munder munderover
"""
"""Elements of MathML Core that hold text or each other: no link, no action, nothing foreign."""
_NAMED = re.compile(r"&(?!amp;|lt;|gt;|quot;|apos;)[A-Za-z]+;")  # XML knows five
_ACTS = re.compile(r"^(?:on.*|.*href|src|id)$", re.IGNORECASE)

Attachments = dict[str, dict[str, str]]
Formula = tuple[str, bool, str]
"""LaTeX, whether it stands on lines of its own, and what was written."""


class Page:
    """What one page shows as Markdown: so much of a learner's, and no heading named as a place of
    the page.

    Args:
        handed_out: texts of the course's own, which are laid out whatever else is there.
        places: ids that the page gives to its parts.
    """

    def __init__(self, handed_out: Collection[str] = (), places: Collection[str] = ()) -> None:
        self._handed_out = handed_out
        self._places = places
        self._room = MOST_ON_PAGE

    def prose(self, source: str, attachments: Attachments | None = None) -> str:
        """See :func:`prose`."""
        if source.strip() not in self._handed_out:
            short, pictures = _without_pictures(source)
            if len(short) > min(LONGEST, self._room):
                return as_typed(source)
            self._room -= len(short)
            if pictures:
                source, attachments = short, {**(attachments or {}), **pictures}
        return _HEADING.sub(self._unless_taken, prose(source, attachments))

    def _unless_taken(self, heading: re.Match[str]) -> str:
        return heading[1] if html.unescape(heading[2]) in self._places else heading[0]


def _without_pictures(source: str) -> tuple[str, Attachments]:
    """A text with its pictures as attachments: Colab writes them into the text itself."""
    pictures: Attachments = {}

    def attached(picture: re.Match[str]) -> str:
        name = f"{_MARK}p{len(pictures)}"
        pictures[name] = {picture[2]: picture[3]}
        return f"{picture[1]}attachment:{name}"

    return _PICTURE.sub(attached, source), pictures


def prose(source: str, attachments: Attachments | None = None) -> str:
    """Markdown as HTML whose every element is closed: one cell cannot break the next.

    Args:
        source: Markdown with formulas, as Jupyter has it.
        attachments: the cell's pictures: by name, their data by type.
    """
    return _rendered(source, attachments) if attachments else _kept(source)


@lru_cache(KEPT)
def _kept(source: str) -> str:
    return _rendered(source, None)


def _rendered(source: str, attachments: Attachments | None) -> str:
    renderer = _Renderer(attachments)
    try:
        markup = _bounded(renderer).render(source)
        return _finished(laid_out(markup), renderer.formulas)
    except RecursionError:  # nested deeper than anybody reads
        return _verbatim(source)


@pass_context
def for_formgrader(context: Context, source: str) -> str:
    """In place of nbconvert's ``markdown2html``: the same of so much text and no more.

    Formulas stay as they were typed, for a script of the formgrader's own. What comes of it is
    still to be made safe.
    """
    resources = context.get("resources", {})
    short, pictures = _without_pictures(source)
    before = resources.get("laid_out", 0)
    if len(short) > min(LONGEST, MOST_IN_FORMGRADER - before):
        return as_typed(source)
    resources["laid_out"] = before + len(short)
    attachments = {**(context.get("cell", {}).get("attachments") or {}), **pictures}
    renderer = IPythonRenderer(escape=False, attachments=attachments)
    try:
        return str(_bounded(renderer).render(short))
    except (InvalidNotebook, RecursionError):  # a picture is not there; nested without end
        return _verbatim(source)


def _bounded(renderer: IPythonRenderer) -> MarkdownWithMath:
    """What reads Markdown as nbconvert does, but a would-be table so often and no more."""

    def parsed(block: BlockParser, head: re.Match[str], state: BlockState) -> int | None:
        if not _RULE.match(state.src, head.end()):
            return None
        broken = state.env.get("broken tables", 0)
        end = parse_nptable(block, head, state) if broken < MOST_BROKEN else None
        state.env["broken tables"] = broken + (end is None)
        return end

    markdown = MarkdownWithMath(renderer=renderer)
    markdown.block.register("nptable", NP_TABLE_PATTERN, parsed, before="paragraph")
    return markdown


def as_typed(source: str) -> str:
    """A text that is too long to be laid out, and a line that says so."""
    reason = _("Shown as it was typed, since there is too much text to be laid out.")
    return f"<p><em>{html.escape(reason)}</em></p>{_verbatim(source)}"


def _verbatim(source: str) -> str:
    return f'<pre class="typed" tabindex="0">{html.escape(source)}</pre>'


@lru_cache(KEPT)
def comment(source: str) -> str:
    """A comment as HTML: paragraphs, lists, code, formulas and plain addresses; the rest is text.

    A comment of ours quotes what a file is called or what an error says, and neither makes markup:
    no HTML, no emphasis, no picture, no link under other words.
    """
    if len(source) > LONGEST:
        return as_typed(source)
    block, inline = MathBlockParser(), MathInlineParser()
    block.rules = block.list_rules = ["multiline_math", "fenced_code", "list", "blank_line"]
    shown_rules = ("math", "latex_environment", "escape", "codespan", "break")
    inline.rules = [rule for rule in inline.rules if any(part in rule for part in shown_rules)]
    renderer = _Renderer(escape=True)
    markdown = MarkdownWithMath(renderer, block, inline, plugins=[plain_addresses])
    return _finished(laid_out(markdown.render(source)), renderer.formulas)


def notes(source: str) -> str:
    """A cell with our notes on a submission: a heading of ours, then what a comment may hold."""
    heading, _blank, rest = source.partition("\n\n")
    return prose(heading) + comment(rest)


def shown(markup: Any) -> str:
    """HTML of an output, safe and reached by the keyboard."""
    return _kept_output(safe_markup(markup))


@lru_cache(KEPT)
def _kept_output(markup: str) -> str:
    return _finished(markup, ())


def formula(latex: str, display: bool, source: str) -> str:
    """MathML, or the LaTeX as it was written where it cannot be converted."""
    kind = "equation" if display else "formula"
    try:
        mathml = to_mathml(latex, display)
        if not _is_harmless(mathml):
            raise LatexError("links are not shown")
    except LatexError:
        return f'<code class="{kind}">{html.escape(source)}</code>'
    # a wide equation scrolls in itself, so the keyboard has to reach it
    reached = ' tabindex="0"' if display else ""
    return f'<span class="{kind}"{reached}>{mathml}</span>'


def _is_harmless(mathml: str) -> bool:
    """The second lock on the door: the converter writes no such thing, of what we know."""
    try:
        # only what our own converter wrote is parsed here, and that declares nothing
        root = ElementTree.fromstring(_NAMED.sub(lambda m: html.unescape(m[0]), mathml))  # noqa: S314
    except ElementTree.ParseError:
        return False
    known = _MATHML.split()
    return all(
        item.tag in known
        and not any(_ACTS.match(name) or "url" in value for name, value in item.attrib.items())
        for item in root.iter()
    )


class _Renderer(IPythonRenderer):
    """Puts a mark where a formula is, and asks for no picture from elsewhere."""

    def __init__(self, attachments: Attachments | None = None, *, escape: bool = False) -> None:
        super().__init__(escape=escape, attachments=attachments)
        self.formulas: list[Formula] = []

    def _mark(self, latex: str, display: bool, source: str) -> str:
        self.formulas.append((latex, display, source))
        return f"{_MARK}{len(self.formulas) - 1}e"

    def inline_math(self, body: str) -> str:
        return self._mark(body, False, f"${body}$")

    def block_math(self, body: str) -> str:
        return self._mark(body, True, f"$${body}$$")

    def latex_environment(self, name: str, body: str) -> str:
        source = f"\\begin{{{name}}}{body}\\end{{{name}}}"
        return self._mark(source, True, source)

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        # above the notebook stands the page's own
        made = str(super().heading(text, min(level + 1, 6), **attrs))
        return re.sub('^(<h[1-6] id=")', rf"\g<1>{OURS}", made)

    def link(self, text: str, url: str, title: str | None = None) -> str:
        # the book fills an empty link with the title of its page
        return str(super().link(text or html.escape(url), url, title))

    def image(self, text: str, url: str, title: str | None = None) -> str:
        if is_elsewhere(url):
            return self.link(text, url, title)
        try:
            return str(super().image(text, url, title))
        except InvalidNotebook:  # the picture was not handed in
            return html.escape(text) or html.escape(url)


def _finished(markup: str, formulas: Sequence[Formula]) -> str:
    """``markup`` with its formulas; what may scroll is reached, each picture has a text.

    Marks stay where MathML may stand; in attributes and in code is what was written.
    """

    def drawn(mark: re.Match[str]) -> str:
        return formula(*formulas[int(mark[1])])

    def written(mark: re.Match[str]) -> str:
        return html.escape(formulas[int(mark[1])][2])

    pieces: list[str] = []
    end = depth = 0  # depth: of elements whose text stays as it is
    for tag in _TAG.finditer(markup):
        pieces.append(_MARKED.sub(written if depth else drawn, markup[end : tag.start()]))
        end = tag.end()
        slash, name, attributes = tag.groups()
        if name in _VERBATIM:
            depth += -1 if slash else 1
        piece = f"</{name}>" if slash else _opened(name, attributes, written)
        if name == "table":  # it scrolls in an element around it
            piece = f"{piece}</div>" if slash else f'<div class="scroll" tabindex="0">{piece}'
        pieces.append(piece)
    pieces.append(_MARKED.sub(drawn, markup[end:]))
    return "".join(pieces)


def _opened(name: str, attributes: str, written: Callable[[re.Match[str]], str]) -> str:
    """The start of an element, its attributes quoted alike and without marks."""
    found: dict[str, str] = {}
    for key, double, single in _ATTRIBUTE.findall(attributes):
        value = double or single.replace('"', "&quot;")
        if _MARK in value:
            value = _MARKED.sub(written, value)
            value = value.replace(" ", "-") if key in ("id", "href") else value
        found[key] = value.removeprefix(OURS)
    if name == "pre":
        found["tabindex"] = "0"
    if name == "img":
        found.setdefault("alt", html.escape(_("No description has been provided for this image")))
    return "<" + " ".join([name, *(f'{key}="{value}"' for key, value in found.items())]) + ">"
