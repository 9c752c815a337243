"""LaTeX as MathML Core, which every browser of today sets by itself: no script, no images.

The book's pages and the feedback pages both take their formulas from here.
MathML Core: https://www.w3.org/TR/mathml-core/.
"""

from __future__ import annotations

import re
from functools import lru_cache

from math_core import LatexError, LatexToMathML

__all__ = ["MOST", "LatexError", "to_mathml"]

MOST = 2000
"""Characters of a formula: the converter descends into braces, and thousands of them would end it
and the process that it runs in."""

_converter = LatexToMathML(fancy_error=False, annotation=False)

# An environment that would number its own lines is replaced by the one that only aligns them: the
# book numbers its formulas itself, and feedback has no numbers.
_ENVIRONMENT = re.compile(
    r"^\s*\\begin\{(?P<name>equation|align|gather)\*?\}(?P<body>.*)\\end\{(?P=name)\*?\}\s*$",
    re.DOTALL,
)
_INNER = {"align": "aligned", "gather": "gathered"}


def plain_environment(latex: str) -> str:
    """``latex`` without an outer environment that numbers its lines."""
    match = _ENVIRONMENT.match(latex)
    if not match:
        return latex
    inner = _INNER.get(match["name"])
    body = match["body"].strip()
    return rf"\begin{{{inner}}}{body}\end{{{inner}}}" if inner else body


@lru_cache(maxsize=4096)
def to_mathml(latex: str, display: bool) -> str:
    """MathML of a formula.

    Raises:
        LatexError: the LaTeX is malformed, too long, or uses an unknown command.
    """
    if len(latex) > MOST:
        raise LatexError(f"longer than {MOST} characters")
    try:
        return _converter.convert_with_local_state(plain_environment(latex), displaystyle=display)
    except UnicodeEncodeError as error:
        raise LatexError(str(error)) from error
