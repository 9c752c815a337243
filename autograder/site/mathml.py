"""Sphinx's formulas as MathML; Sphinx numbers and labels the equations."""

import html

from docutils import nodes
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

from autograder.formulas import LatexError, to_mathml

logger = logging.getLogger(__name__)


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
