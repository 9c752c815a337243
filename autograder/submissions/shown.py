"""Text of a learner's as it may be shown: on a terminal, in a file, in a row of a table.

A file's name may hold any byte, and a notebook any character: escape sequences that rewrite a
terminal, new lines that look like other rows, halves of characters that no file can be written
with. Each is replaced by the sign for a character that cannot be shown, so that one sees it.
"""

from __future__ import annotations

import unicodedata

MAX_NAME = 400

_SIGN = "\ufffd"
# Controls, surrogates, separators of lines and paragraphs.
_NOT_SHOWN = frozenset({"Cc", "Cs", "Zl", "Zp"})
# They turn the direction of what follows them, which makes `cod.ipynb` of another name.
_TURNING = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def one_line(text: str) -> str:
    """The text without anything that is not a visible character or a blank."""
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def lines(text: str) -> str:
    """The same for a text of several lines."""
    if text.isprintable():
        return text
    return "".join(char if char in "\n\t" else _shown(char) for char in text)


def name(text: str) -> str:
    """The same for a path, which keeps its beginning and its end where it is very long."""
    text = one_line(text)
    half = MAX_NAME // 2
    return text if len(text) <= MAX_NAME else f"{text[:half]}…{text[-half + 1 :]}"


def _shown(char: str) -> str:
    return _SIGN if unicodedata.category(char) in _NOT_SHOWN or char in _TURNING else char
