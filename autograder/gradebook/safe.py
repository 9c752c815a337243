"""HTML in which nothing runs: what a learner wrote is shown to others.

Neither nbgrader's templates nor nbconvert, unless it is told to, take scripts out. Nor does a page
made here load anything from elsewhere: whoever opens it would be seen there.
"""

from __future__ import annotations

import html
import re
from functools import lru_cache
from typing import Any

import bleach  # type: ignore[import-untyped]
from bleach.css_sanitizer import (  # type: ignore[import-untyped]
    ALLOWED_CSS_PROPERTIES,
    CSSSanitizer,
)
from nbconvert.filters import strip_files_prefix

KEPT = 4096  # pieces; a chapter's notebook has some 150, most of which all learners share

_TAGS = """
a abbr b blockquote br caption cite code col colgroup dd del details dfn div dl dt em figcaption
figure h1 h2 h3 h4 h5 h6 hr i img ins kbd li mark ol p pre q s samp small span strong sub summary
sup table tbody td tfoot th thead tr u ul var
"""
_ATTRIBUTES = """
align alt aria-label border cellpadding cellspacing class colspan height href id name open rel
rowspan scope src start style target title valign width
"""
# The layout of reports on exercises and of most tables; nothing that lifts text from its place.
_PROPERTIES = "border-bottom border-left list-style margin margin-left max-width padding text-align"
_INVISIBLE = re.compile(r"[\x00-\x20\x7f-\xa0\s]+")
_ELSEWHERE = re.compile(r"(?!data:|attachment:)[a-z][a-z0-9+.-]*:|[/\\]{2}")
_REACHES_OUT = re.compile(
    r"\\|url|(?<![\w.])-\.?\d", re.IGNORECASE
)  # escapes, files, less than zero


def is_elsewhere(address: str) -> bool:
    """Whether a picture with this address would be fetched from another place than the page's."""
    return bool(_ELSEWHERE.match(_plain(address)))


def _plain(address: str) -> str:
    return _INVISIBLE.sub("", html.unescape(address)).lower()


class _Css(CSSSanitizer):
    def sanitize_css(self, style: str) -> str:
        kept: str = super().sanitize_css(style)
        return "" if _REACHES_OUT.search(kept) else kept


_CSS = _Css(allowed_css_properties=ALLOWED_CSS_PROPERTIES | set(_PROPERTIES.split()))


def _is_allowed(tag: str, name: str, value: str) -> bool:
    if name == "role":
        return value == "img"
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
            css_sanitizer=_CSS,
        )
    )


def safe_markup(markup: Any) -> str:
    """In place of nbconvert's ``clean_html``, which leaves no paragraph and no picture."""
    return without_scripts(markup.decode() if isinstance(markup, bytes) else str(markup))


def safe_markdown(markup: str) -> str:
    """In place of ``strip_files_prefix``, the last thing that nbgrader does to markdown."""
    return without_scripts(strip_files_prefix(markup))
