"""HTML in which nothing runs: what a learner wrote is shown to others.

Neither nbgrader's templates nor nbconvert, unless it is told to, take scripts out. Nor does a page
made here load anything from elsewhere: whoever opens it would be seen there. And what a learner
wrote stays in its place and looks like theirs: it covers nothing, and takes no name of ours.
"""

from __future__ import annotations

import html
import re
import secrets
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import bleach  # type: ignore[import-untyped]
import tinycss2
from nbconvert.filters.strings import files_url_pattern
from pygments.token import STANDARD_TYPES  # type: ignore[import-untyped]

KEPT = 4096  # pieces; a chapter's notebook has some 150, most of which all learners share

OURS = f"ours{secrets.token_hex(8)}n"
"""What an id begins with that stays; whoever writes markup cannot know it."""

_TAGS = """
a abbr b blockquote br caption cite code col colgroup dd del details dfn div dl dt em figcaption
figure h1 h2 h3 h4 h5 h6 hr i img ins kbd li mark ol p pre q s samp small span strong sub summary
sup table tbody td tfoot th thead tr u ul var
"""
_ATTRIBUTES = """
align alt aria-label border cellpadding cellspacing colspan height href open rel rowspan scope src
start style target title valign width
"""
# What the converter makes of code and of headings; any other could be one of a page's own.
_CLASSES = {"highlight", "anchor-link", *STANDARD_TYPES.values()} - {""}
_INVISIBLE = re.compile(r"[\x00-\x20\x7f-\xa0\s]+")
_ELSEWHERE = re.compile(r"(?!data:|attachment:)[a-z][a-z0-9+.-]*:|[/\\]{2}")

# Reports on exercises, tables, colours, type; nothing that lifts text from its place.
_PROPERTIES = """
background background-color border border-bottom border-bottom-color border-collapse border-color
border-left border-left-color border-radius border-right border-right-color border-spacing
border-style border-top border-top-color border-width clear color direction display float
font-family font-size font-style font-variant font-weight height letter-spacing line-height
list-style list-style-type margin margin-bottom margin-left margin-right margin-top max-height
max-width min-width padding padding-bottom padding-left padding-right padding-top text-align
text-decoration text-indent vertical-align white-space width
"""
_UNITS = "ch cm deg em ex in mm pc pt px rem turn"
_COLORS = ("rgb", "rgba", "hsl", "hsla")
_PLAIN_CSS = {
    "ident": re.compile(r"-?[a-z][a-z0-9-]*", re.IGNORECASE),
    "hash": re.compile(r"[0-9a-f]{3,8}", re.IGNORECASE),
    "string": re.compile(r"[\w -]*"),  # a font's name
    "literal": re.compile(r"[,/]"),
    "whitespace": re.compile(r"\s*"),
}
_NO_CSS_OF_PROSE = re.compile(r"[\\@]|/\*")
MOST_CSS = 9999  # of any unit


def is_elsewhere(address: str) -> bool:
    """Whether a picture with this address would be fetched from another place than the page's."""
    return bool(_ELSEWHERE.match(_plain(address)))


def _plain(address: str) -> str:
    return _INVISIBLE.sub("", html.unescape(address)).lower()


class _Css:
    """What bleach asks about a ``style``: declarations of which each word is known stay."""

    def sanitize_css(self, style: str) -> str:
        style = html.unescape(style)  # as a browser reads it
        if _NO_CSS_OF_PROSE.search(style):
            return ""
        found = tinycss2.parse_declaration_list(style, skip_comments=True, skip_whitespace=True)
        return ";".join(
            f"{item.lower_name}:{tinycss2.serialize(item.value).strip()}"
            for item in found
            if item.type == "declaration"
            and item.lower_name in _PROPERTIES.split()
            and _is_plain(item.value)
        )


def _is_plain(value: Iterable[Any], colors: tuple[str, ...] = _COLORS) -> bool:
    """Whether a value is words, colours and lengths from nought on: no files, nothing computed."""
    for token in value:
        if token.type == "function":
            if token.lower_name not in colors or not _is_plain(token.arguments, ()):
                return False
        elif token.type in ("number", "percentage", "dimension"):
            known = token.type != "dimension" or token.lower_unit in _UNITS.split()
            if not known or not 0 <= token.value <= MOST_CSS:
                return False
        elif token.type not in _PLAIN_CSS or not _PLAIN_CSS[token.type].fullmatch(token.value):
            return False
    return True


def _is_allowed(tag: str, name: str, value: str) -> bool:
    if name == "role":
        return value == "img"
    if name == "id":
        return value.startswith(OURS)
    if name == "class":
        return set(value.split()) <= _CLASSES
    if name not in _ATTRIBUTES.split():
        return False
    if name == "src":
        return not is_elsewhere(value)
    # a picture may stand in the page itself; behind a link such data would be a page of its own
    return tag == "img" or not _plain(value).startswith("data:")


@lru_cache(KEPT)
def without_scripts(markup: str) -> str:
    """HTML in which nothing runs: other elements stand there as text, other attributes are gone."""
    return str(
        bleach.clean(
            markup,
            tags=_TAGS.split(),
            attributes=_is_allowed,
            protocols=("http", "https", "mailto", "data", "attachment"),
            css_sanitizer=_Css(),
        )
    )


def safe_markup(markup: Any) -> str:
    """In place of nbconvert's ``clean_html``, which leaves no paragraph and no picture."""
    return without_scripts(markup.decode() if isinstance(markup, bytes) else str(markup))


def laid_out(markup: str) -> str:
    """What came of markdown, safe and without the prefix of addresses in IPython's early days.

    nbconvert's ``strip_files_prefix`` also looks for links that are markdown still, of which there
    are none here, in a time that grows with the square of the text.
    """
    return without_scripts(files_url_pattern.sub(r"\1=\2", markup))


def safe_markdown(markup: str) -> str:
    """In place of ``strip_files_prefix``, the last thing that nbgrader does to markdown.

    In the formgrader, too, it stays in its box.
    """
    return f'<div style="overflow-x:auto;overflow-y:hidden">{laid_out(markup)}</div>'
