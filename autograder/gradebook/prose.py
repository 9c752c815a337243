"""Markdown and outputs as HTML that is safe, needs no script, and is reached by the keyboard.

A formula is left out while the sanitizer looks at what the learner wrote, and put in, as MathML of
our own making, afterwards. So no MathML that somebody typed gets through.
"""

from __future__ import annotations

import html
import re
import secrets
from functools import lru_cache
from typing import Any
from xml.etree import ElementTree

from bs4 import BeautifulSoup
from nbconvert.filters import strip_files_prefix
from nbconvert.filters.markdown_mistune import (
    InvalidNotebook,
    IPythonRenderer,
    MarkdownWithMath,
)

from autograder.formulas import LatexError, to_mathml
from autograder.gradebook.safe import KEPT, is_elsewhere, safe_markup, without_scripts
from autograder.i18n import _

# Whoever writes markdown cannot know it, so cannot write what stands for a formula.
_MARK = f"formula{secrets.token_hex(8)}n"
_MARKED = re.compile(rf"{_MARK}(\d+)e")
_VERBATIM = ["code", "pre", "kbd", "samp"]
_NEEDS_CARE = re.compile(r"<(?:pre|table|img)\b")

_MATHML = """
math merror mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow ms mspace
msqrt mstyle msub msubsup msup mtable mtd mtext mtr munder munderover
"""
"""Elements of MathML Core that hold text or each other: no link, no action, nothing foreign."""
_NAMED = re.compile(r"&(?!amp;|lt;|gt;|quot;|apos;)[A-Za-z]+;")  # XML knows five
_ACTS = re.compile(r"^(?:on.*|.*href|src|id)$", re.IGNORECASE)

Attachments = dict[str, dict[str, str]]


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
        markup = MarkdownWithMath(renderer=renderer).render(source)
        return _finished(without_scripts(strip_files_prefix(markup)), renderer.formulas)
    except RecursionError:  # nested deeper than anybody reads
        return f'<pre tabindex="0">{html.escape(source)}</pre>'


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

    def __init__(self, attachments: Attachments | None) -> None:
        super().__init__(escape=False, attachments=attachments)
        self.formulas: list[tuple[str, bool, str]] = []

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
        return str(super().heading(text, min(level + 1, 6), **attrs))

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


def _finished(markup: str, formulas: Any) -> str:
    """``markup`` with its formulas; what may scroll is reached, each picture has a text."""
    if not formulas and not _NEEDS_CARE.search(markup):
        return markup
    soup = BeautifulSoup(markup, features="html.parser", multi_valued_attributes=None)
    for item in soup.find_all("pre"):
        item["tabindex"] = "0"
    for item in soup.find_all("table"):
        item.wrap(soup.new_tag("div", attrs={"class": "scroll", "tabindex": "0"}))
    for item in soup.find_all("img"):
        item.attrs.setdefault("alt", _("No description has been provided for this image"))
    if not formulas:
        return str(soup)

    def written(match: re.Match[str]) -> str:
        return str(formulas[int(match[1])][2])

    # Marks stay where MathML may stand; in attributes and in code is what was written.
    for item in soup.find_all(True):
        for name, value in item.attrs.items():
            if _MARK in value:
                text = _MARKED.sub(written, str(value))
                item[name] = text.replace(" ", "-") if name in ("id", "href") else text
    for text in soup.find_all(string=_MARKED):
        if text.find_parent(_VERBATIM):
            text.replace_with(_MARKED.sub(written, text))
    return _MARKED.sub(lambda match: formula(*formulas[int(match[1])]), str(soup))
