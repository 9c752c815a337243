"""Formulas as MathML Core, which every browser of today sets by itself: no script, no images.

Sphinx numbers and labels the equations; this module only turns LaTeX into ``<math>``.
MathML Core: https://www.w3.org/TR/mathml-core/.
"""

import html
import re
from functools import lru_cache

from docutils import nodes
from math_core import LatexError, LatexToMathML
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)
_converter = LatexToMathML(fancy_error=False, annotation=False)

# Sphinx numbers displayed equations, so an environment that would number its own lines is
# replaced by the one that only aligns them.
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
        math_core.LatexError: the LaTeX is malformed or uses an unknown command.
    """
    return _converter.convert_with_local_state(plain_environment(latex), displaystyle=display)


def _math(node: nodes.math | nodes.math_block, display: bool) -> str:
    """MathML, or the source after a warning that says where it stands."""
    latex = node.astext()
    try:
        return to_mathml(latex, display)
    except LatexError as error:
        first_line = str(error).strip().splitlines()[0]
        logger.warning("formula `%s`: %s", latex.strip(), first_line, location=node)
        return f"<code>{html.escape(latex)}</code>"


def visit_inline(translator: HTML5Translator, node: nodes.math) -> None:
    """Write an inline formula."""
    translator.body.append(f'<span class="formula notranslate">{_math(node, display=False)}</span>')
    raise nodes.SkipNode


def visit_display(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a displayed formula with its number, if it has one, and its anchor."""
    translator.body.append(translator.starttag(node, "div", CLASS="equation notranslate"))
    translator.body.append(
        f'<div class="equation-body" tabindex="0">{_math(node, display=True)}</div>'
    )
    if node["number"]:
        number = get_node_equation_number(translator, node)
        translator.body.append(f'<span class="eqno">({number})')
        translator.add_permalink_ref(node, "Link to this equation")
        translator.body.append("</span>")
    translator.body.append("</div>\n")
    raise nodes.SkipNode
