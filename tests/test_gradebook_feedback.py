"""Feedback pages: what nbconvert would write, in less time."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbconvert.exporters import HTMLExporter
from nbgrader import converters
from traitlets.config import Config

from autograder.gradebook.course import load
from autograder.gradebook.feedback import FeedbackPages

TEMPLATES = Path(converters.__file__).parents[1] / "server_extensions/formgrader/templates"
PICTURE = "iVBORw0KGgo="  # nobody looks into it
MARKDOWN = (
    "# Scores\n\n$q^\\top k$ and `code`, a [link](https://example.org)",
    "| a | b |\n|-|-|\n| 1 | 2 |",
    "<img src='x.png'> ![](y.png) ![seen](z.png)\n\n<p>1 < 2 & <b>bold</b></p>",
    "$$\n\\sum_i a_i < b\n$$",
)


@pytest.fixture
def notebook() -> Any:
    nb = nbformat.v4.new_notebook(metadata={"language_info": {"name": "python"}})
    for text in MARKDOWN:
        nb.cells.append(nbformat.v4.new_markdown_cell(text))
    attached = nbformat.v4.new_markdown_cell("![](attachment:p.png)")
    attached.attachments = {"p.png": {"image/png": PICTURE}}
    code = nbformat.v4.new_code_cell("%%bash\necho 'a < b'")
    code.metadata["magics_language"] = "bash"
    shown = nbformat.v4.new_output(
        "display_data", {"text/html": "<p>seen<img src='x.png'></p>", "text/plain": "seen"}
    )
    nb.cells += [attached, code, nbformat.v4.new_code_cell("x = 'é' < 3", outputs=[shown])]
    for cell in nb.cells:
        cell.metadata["nbgrader"] = {"grade": False, "solution": False, "comment": None}
    return nb


def page(exporter: type[HTMLExporter], nb: Any, template: str = "feedback") -> str:
    config = load() if template == "formgrade" else Config()
    config.HTMLExporter.template_name = template
    config.HTMLExporter.extra_template_basedirs = [str(TEMPLATES)]
    css = "node_modules/bootstrap/dist/css"
    config.HTMLExporter.extra_template_paths = [str(TEMPLATES.parent / "static" / css)]
    made = exporter(config=config)
    graded = {"notebook": "scores", "score": 1, "max_score": 2, "late_penalty": 0}
    resources = {"nbgrader": graded, "index": 0, "total": 1}
    made.from_notebook_node(nb, resources)  # the second time much is known
    return str(made.from_notebook_node(nb, resources)[0])


def elements(html: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every element, and the text before it."""
    for element in BeautifulSoup(html, "html.parser").find_all(True):
        yield element.name, {**element.attrs, "text": element.get_text()}


def test_a_page_is_what_nbconvert_writes(notebook: Any) -> None:
    ours = list(elements(page(FeedbackPages, notebook)))
    assert len(ours) > 50
    assert ours == list(elements(page(HTMLExporter, notebook)))


HARMFUL = (
    "Hello <script>alert(1)</script> <img src=x onerror=alert(1)>",
    "[click](javascript:alert(1)) <a href='java&#10;script:alert(1)'>a</a>",
    "<iframe srcdoc='<script>parent.document</script>'></iframe> <svg onload=alert(1)></svg>",
    "<a href='da\tta:text/html,<script>alert(1)</script>'>b</a> <p style='background:url(x)'>c</p>",
    "<form action=x><input formaction=y></form> <meta http-equiv=refresh content='0;url=x'>",
    "<object data=x></object> <embed src=x> <base href=x> <link rel=stylesheet href=x>",
)


@pytest.mark.parametrize("place", ["markdown", "output", "markdown output", "isolated", "comment"])
@pytest.mark.parametrize(
    ("exporter", "template"), [(FeedbackPages, "feedback"), (HTMLExporter, "formgrade")]
)
def test_nothing_of_a_learners_runs(
    notebook: Any, exporter: type[HTMLExporter], template: str, place: str
) -> None:
    state = {"grade": False, "solution": True, "comment": None, "grade_id": "x", "locked": False}
    before = page(exporter, notebook, template)
    for text in HARMFUL:
        cell = nbformat.v4.new_code_cell("1")
        kind = {"output": "text/html", "isolated": "text/html", "markdown output": "text/markdown"}
        if place == "markdown":
            cell = nbformat.v4.new_markdown_cell(text)
        elif place in kind:
            cell.outputs = [nbformat.v4.new_output("display_data", {kind[place]: text})]
            cell.outputs[0].metadata = {"text/html": {"isolated": place == "isolated"}}
        cell.metadata["nbgrader"] = {**state, "comment": text if place == "comment" else None}
        notebook.cells.append(cell)
    after = page(exporter, notebook, template)
    if place == "isolated":
        for inner in re.findall('data:text/html;base64,([^"]*)', after):
            after += base64.b64decode(inner).decode()
        after = re.sub('<iframe\\s+class="isolated-iframe"', "<p", after)
    assert harmful(after) == harmful(before)


def harmful(html: str) -> tuple[int, ...]:
    """How many scripts, frames and so on a page has, handlers, and addresses that run."""
    soup = BeautifulSoup(html, "html.parser")
    names = ("script", "iframe", "svg", "form", "input", "object", "embed", "base", "meta", "link")
    attributes = [(n, str(v)) for item in soup.find_all(True) for n, v in item.attrs.items()]
    addresses = [re.sub(r"\s", "", value) for name, value in attributes if name == "href"]
    return (
        *(len(soup.find_all(name)) for name in names),
        sum(name.startswith("on") or name in ("srcdoc", "formaction") for name, _ in attributes),
        sum(address.startswith(("javascript:", "data:")) for address in addresses),
        sum("url(" in value for name, value in attributes if name == "style"),
    )


def test_every_picture_has_a_text(notebook: Any) -> None:
    pictures = BeautifulSoup(page(FeedbackPages, notebook), "html.parser").find_all("img")
    assert len(pictures) >= 5
    assert all(picture.has_attr("alt") for picture in pictures)


def test_an_element_left_open_ends_with_its_cell(notebook: Any) -> None:
    open_one = nbformat.v4.new_markdown_cell("</div></div><div><table><b>never closed")
    open_one.metadata["nbgrader"] = notebook.cells[0].metadata["nbgrader"]
    notebook.cells.insert(1, open_one)
    text = page(FeedbackPages, notebook)
    start, end = text.index("never closed"), text.index("seen")
    assert "</table></div>" in text[start:end].replace("</b>", "")
    assert text.count("<div") == text.count("</div>")
