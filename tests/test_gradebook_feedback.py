"""Feedback pages: what they hold, that nothing of a learner's runs in them, how they are read."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import nbformat
import pytest
from bs4 import BeautifulSoup
from mistune.plugins.table import parse_nptable
from nbconvert.exporters import HTMLExporter
from nbgrader import converters
from test_site_book import CONTRAST, UNNAMED, browser, look  # noqa: F401 — fixtures, by their names

from autograder.formulas import MOST
from autograder.gradebook.course import SAFE_FILTERS, load
from autograder.gradebook.feedback import FeedbackPages, handed_out
from autograder.gradebook.prose import (
    LONGEST,
    MOST_BROKEN,
    MOST_ON_PAGE,
    Page,
    as_typed,
    formula,
    prose,
)
from autograder.gradebook.prose import comment as a_comment
from autograder.gradebook.restored import NOTES
from autograder.gradebook.safe import safe_markdown, safe_markup

TEMPLATES = Path(converters.__file__).parents[1] / "server_extensions/formgrader/templates"
PICTURE = "iVBORw0KGgo="  # nobody looks into it
MARKDOWN = (
    "# Scores\n\nSome `code`, a [link](https://example.org)",
    "| a | b |\n|-|-|\n| 1 | 2 |",
    "<img src='x.png'> ![](y.png) ![seen](z.png)\n\n<p>1 < 2 & <b>bold</b></p>",
)
FORMULAS = (
    "## The $q^\\top k$ of it\n\nHere $q^\\top k$, ![of $z$](z.png) and <code>$y$</code>",
    "$$\n\\sum_i a_i < b\n$$",
    "\\begin{align}\na &= b \\\\\nc &= d\n\\end{align}",
)


def graded(cell: Any, **info: Any) -> Any:
    known = {"grade": False, "solution": False, "comment": None, "grade_id": "x", "locked": False}
    cell.metadata["nbgrader"] = {**known, **info}
    return cell


@pytest.fixture
def notebook() -> Any:
    nb = nbformat.v4.new_notebook(metadata={"language_info": {"name": "python"}})
    nb.cells += [nbformat.v4.new_markdown_cell(text) for text in MARKDOWN]
    attached = nbformat.v4.new_markdown_cell("![](attachment:p.png)")
    attached.attachments = {"p.png": {"image/png": PICTURE}}
    code = nbformat.v4.new_code_cell("%%bash\necho 'a < b'")
    code.metadata["magics_language"] = "bash"
    shown = nbformat.v4.new_output(
        "display_data", {"text/html": "<p>seen<img src='x.png'></p>", "text/plain": "seen"}
    )
    picture = nbformat.v4.new_output("display_data", {"image/png": PICTURE})
    outputs = [shown, picture]
    nb.cells += [attached, code, nbformat.v4.new_code_cell("x = 'é' < 3", outputs=outputs)]
    for cell in nb.cells:
        graded(cell)
    return nb


@pytest.fixture
def exercises(notebook: Any) -> Any:
    """The notebook with formulas, and with two exercises; the first has a comment."""
    new = nbformat.v4
    notebook.cells += [graded(new.new_markdown_cell(text)) for text in FORMULAS]
    for name, score, comment in (("one_<b>", 1.5, "See $x^2$."), ("two", 2.0, None)):
        answer = new.new_code_cell(f"def {name[:3]}():\n    return 'a long line'  # {'long ' * 30}")
        check = new.new_code_cell(f"check('{name}')")
        check.outputs = [
            new.new_output("display_data", {"text/html": f"<p>{name[:3]} was looked at</p>"}),
            new.new_output("error", ename="E", evalue="", traceback=["\x1b[1;31mE\x1b[0m: a"]),
            new.new_output("stream", name="stdout", text="a word " * 40),
            new.new_output("execute_result", {"text/plain": "777.0"}),
        ]
        notebook.cells += [
            graded(answer, solution=True, grade_id=name, comment=comment),
            graded(check, grade=True, grade_id=f"{name}-check", score=score, points=2.0),
        ]
    return notebook


def page(exporter: type[HTMLExporter], nb: Any, template: str = "", late: float = 0.0) -> str:
    config = load()
    if template:
        config.HTMLExporter.template_name = template
        config.HTMLExporter.extra_template_basedirs = [str(TEMPLATES)]
        css = "node_modules/bootstrap/dist/css"
        config.HTMLExporter.extra_template_paths = [str(TEMPLATES.parent / "static" / css)]
    made = exporter(config=config)
    grades = {"notebook": "scores & <more>", "score": 3.5, "max_score": 4.0, "late_penalty": late}
    resources = {"nbgrader": grades, "index": 0, "total": 1}
    made.from_notebook_node(nb, resources)  # the second time much is known
    return str(made.from_notebook_node(nb, resources)[0])


def parsed(nb: Any, **options: Any) -> BeautifulSoup:
    return BeautifulSoup(page(FeedbackPages, nb, **options), "html.parser")


# --- what is on a page --------------------------------------------------------------------------


def test_a_page_holds_what_nbconvert_would_write(notebook: Any) -> None:
    stock = BeautifulSoup(page(HTMLExporter, notebook, "feedback"), "html.parser")
    ours = parsed(notebook)

    def held(soup: BeautifulSoup, cells: str) -> list[str]:
        return [" ".join(item.get_text().split()) for item in soup.select(cells)]

    assert held(ours, ".cell.prose") == held(stock, ".text_cell_render")
    assert held(ours, ".highlight") == held(stock, ".highlight")
    assert held(ours, ".html") == held(stock, ".output_html")
    for name, attribute in (("img", "src"), ("a", "href")):
        found = [item.get(attribute) for item in stock.select(f"#notebook {name}")]
        kept = [item.get(attribute) for item in ours.select(f"main {name}")]
        assert len(found) >= 2
        assert kept == found


def test_points_stand_at_the_top_and_lead_to_their_cells(exercises: Any) -> None:
    soup = parsed(exercises)
    assert soup.html is not None
    assert soup.html["lang"] == "en"
    assert "scores & <more>" in soup.title.get_text()  # type: ignore[union-attr]
    assert [item.get_text() for item in soup.find_all("h1")] == ["Feedback on scores & <more>"]
    assert soup.select_one("body > header .total").get_text() == "3.5 of 4 points"  # type: ignore[union-attr]
    assert len(soup.select("body > main")) == 1
    rows = [
        [" ".join(cell.get_text().split()) for cell in row.find_all(["th", "td"])]
        for row in soup.select("header nav tbody tr")
    ]
    assert rows == [["one_<b>", "1.5 of 2", "Comment on one_<b>"], ["two", "2 of 2 ✔", ""]]
    ids = [item["id"] for item in soup.select("[id]")]
    assert len(ids) == len(set(ids))
    links = [unquote(link["href"][1:]) for link in soup.select('a[href^="#"]')]
    assert {"one_<b>-check", "comment-one_<b>", "two-check", "points"} <= set(links)
    assert set(links) <= set(ids)
    for section in soup.select("section.graded"):
        assert soup.find(id=section["aria-labelledby"]) is not None
    check = soup.find(id="one_<b>-check")
    assert "1.5 of 2 points" in check.get_text()  # type: ignore[union-attr]
    assert "777" not in soup.get_text()  # the points once more, for nbgrader


def test_a_penalty_is_told(exercises: Any) -> None:
    assert "late" not in parsed(exercises).header.get_text()  # type: ignore[union-attr]
    assert "late: 0.25" in parsed(exercises, late=0.25).header.get_text()  # type: ignore[union-attr]


def test_what_scrolls_is_reached_by_the_keyboard(exercises: Any) -> None:
    soup = parsed(exercises)
    scrolling = soup.select("pre, .scroll, .equation")
    assert len(scrolling) > 10
    assert [item for item in scrolling if item.get("tabindex") != "0"] == []
    tables = soup.select("main table")
    assert tables
    assert all(table.parent["class"] == ["scroll"] for table in tables)  # type: ignore[index]


def test_every_picture_has_a_text(notebook: Any) -> None:
    pictures = parsed(notebook).find_all("img")
    assert len(pictures) >= 6
    assert all(picture.has_attr("alt") for picture in pictures)


def test_an_element_left_open_ends_with_its_cell(notebook: Any) -> None:
    open_one = nbformat.v4.new_markdown_cell("</div></div><div><table><b>never closed")
    notebook.cells.insert(1, graded(open_one))
    text = page(FeedbackPages, notebook)
    cell = BeautifulSoup(text, "html.parser").select(".cell.prose")[1]
    assert cell.get_text().strip() == "never closed"
    assert text.count("<div") == text.count("</div>")


# --- formulas -----------------------------------------------------------------------------------


def test_formulas_are_mathml(exercises: Any) -> None:
    soup = parsed(exercises)
    inline, display = soup.select(".formula > math"), soup.select(".equation > math")
    assert [item.get_text() for item in inline] == ["q⊤k", "q⊤k", "x2"]
    assert [item.get("display") for item in display] == ["block", "block"]
    assert len(display[1].find_all("mtr")) == 2
    assert "\\" not in soup.select_one("main").get_text()  # type: ignore[union-attr]


def test_a_formula_in_an_attribute_or_in_code_stays_text() -> None:
    soup = BeautifulSoup(prose(FORMULAS[0]), "html.parser")
    assert soup.img["alt"] == "of $z$"  # type: ignore[index]
    assert soup.code.get_text() == "$y$"  # type: ignore[union-attr]
    assert soup.h3["id"] == "The-$q^\\top-k$-of-it"  # type: ignore[index]
    assert len(soup.find_all("math")) == 2


@pytest.mark.parametrize(
    "latex",
    [
        "\\nosuch{<b>}",
        "\\frac{1}{",
        "a & b",
        "\\eqref{x}",  # a link
        "x" * (MOST + 1),
        "{" * 100_000 + "}" * 100_000,  # would end the converter, and the process with it
        "a\udc80b",  # half a character
        "\x0b",
    ],
    ids=lambda latex: latex[:8],
)
@pytest.mark.parametrize("display", [False, True], ids=["inline", "display"])
def test_a_formula_that_cannot_be_converted_stays_text(latex: str, display: bool) -> None:
    fence = "$$" if display else "$"
    soup = BeautifulSoup(prose(f"before {fence}{latex}{fence} after"), "html.parser")
    assert soup.find(["math", "b"]) is None
    assert soup.code.get_text() == fence + latex + fence  # type: ignore[union-attr]
    assert soup.get_text().split()[0] == "before"
    assert soup.get_text().split()[-1] == "after"


def test_an_empty_link_has_a_text() -> None:
    assert prose("go to [](later)").strip() == '<p>go to <a href="later">later</a></p>'


def test_markdown_that_nobody_would_read_is_shown_as_it_is() -> None:
    assert "end" in prose("> " * 3000 + "*_" * 3000 + "end")
    assert "gone.png" in prose("![](attachment:gone.png)")


# --- more than anybody reads ---------------------------------------------------------------------


@pytest.mark.parametrize("piece", ["<b>$", "\\\\[", "![", "<table><tr><td>", "word "])
def test_a_text_that_is_too_long_is_shown_as_it_was_typed(piece: str) -> None:
    text = piece * (LONGEST // len(piece) + 1)
    assert Page().prose(text) == as_typed(text)
    assert Page({text.strip()}).prose(text) != as_typed(text)
    soup = BeautifulSoup(as_typed(text), "html.parser")
    assert soup.pre.get_text() == text  # type: ignore[union-attr]
    assert soup.pre["class"] == ["typed"]  # type: ignore[index]  # its long lines are broken
    assert "as it was typed" in soup.p.get_text()  # type: ignore[union-attr]


def test_a_picture_in_the_text_itself_counts_for_nothing() -> None:
    data = "iVBORw0KGgo" * LONGEST
    text = f"*before* ![plot](data:image/png;base64,{data}=) and ![two](data:image/png;base64,AAAA)"
    page = Page()
    for _again in range(2):  # and no room is taken
        soup = BeautifulSoup(page.prose(text), "html.parser")
        assert soup.em is not None
        assert [(item["alt"], item["src"]) for item in soup.find_all("img")] == [
            ("plot", f"data:image/png;base64,{data}="),
            ("two", "data:image/png;base64,AAAA"),
        ]
    mixed = page.prose(
        "![](attachment:a.png) ![](data:image/png;base64,AAAA)", {"a.png": {"image/png": "BBBB"}}
    )
    assert mixed.count("<img") == 2


def test_a_page_lays_out_so_much_and_what_was_handed_out_always() -> None:
    page, size = Page({"*ours*"}), LONGEST
    texts = [f"*{number}*".ljust(size, "x") for number in range(MOST_ON_PAGE // size + 2)]
    shown = [page.prose(text) for text in texts]
    assert sum("<pre" in item for item in shown) == 2
    assert shown[-1] == as_typed(texts[-1])
    assert "<em>ours</em>" in page.prose("*ours*\n")
    assert page.prose("*theirs*") == as_typed("*theirs*")


def test_all_of_a_chapters_own_text_is_laid_out(notebook: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("autograder.gradebook.prose.LONGEST", 0)
    [text] = [text for text in handed_out("intro") if text.startswith("# ")]
    notebook.cells = [nbformat.v4.new_markdown_cell(source) for source in (text, "*mine*")]
    assert handed_out("no such chapter") == frozenset()
    made = FeedbackPages(config=load())
    grades = {"notebook": "intro", "score": 0, "max_score": 1, "late_penalty": 0.0}
    html, _resources = made.from_notebook_node(notebook, {"nbgrader": grades})
    ours, theirs = BeautifulSoup(html, "html.parser").select(".prose")
    assert ours.h2 is not None
    assert "*mine*" in theirs.get_text()


def test_a_table_that_is_none_is_read_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def spied(block: Any, head: Any, state: Any) -> int | None:
        tried.append(head[0])
        end: int | None = parse_nptable(block, head, state)
        return end

    monkeypatch.setattr("autograder.gradebook.prose.parse_nptable", spied)
    good = "a | b\n-|-\n1 | 2\n"
    before = BeautifulSoup(prose("1 | 2\n" * 99 + "\n" + good), "html.parser")
    assert len(before.find_all("table")) == len(tried) == 1
    prose("|a|b\n|-|-\n" * 200 + "|a|b|c")
    assert len(tried) == 1 + MOST_BROKEN


# --- nothing of a learner's runs ----------------------------------------------------------------

HARMFUL = (
    "Hello <script>alert(1)</script> <img src=x onerror=alert(1)>",
    "[click](javascript:alert(1)) <a href='java&#10;script:alert(1)'>a</a>",
    "<iframe srcdoc='<script>parent.document</script>'></iframe> <svg onload=alert(1)></svg>",
    "<a href='da\tta:text/html,<script>alert(1)</script>'>b</a> <p style='background:url(x)'>c</p>",
    "<form action=x><input formaction=y></form> <meta http-equiv=refresh content='0;url=x'>",
    "<object data=x></object> <embed src=x> <base href=x> <link rel=stylesheet href=x>",
    "<math><maction actiontype='statusline#x' xlink:href='javascript:alert(1)'>m</maction></math>",
    "<math href='javascript:alert(1)'><mtext><img src=x onerror=alert(1)></mtext></math>",
    "<math><semantics><annotation-xml encoding='text/html'><script>alert(1)</script>"
    "</annotation-xml></semantics></math>",
    "$\\href{javascript:alert(1)}{x}$ $\\text{<script>alert(1)</script>}$ $<math href='x'>$",
    "![$x$ \" onerror=alert(1) x=\"](y.png '$x$')",
    "<a title='$x$ <img src=x onerror=alert(1)>'>d</a>",
    "<p title='<table onclick=alert(1)>'>e</p> <p title='<pre onclick=x>'>f</p> <pre>g</pre>",
    "<p style='list-style:url(x)'>g</p> <p style='list-style:\\75rl(x)'>h</p>",
)


@pytest.mark.parametrize("place", ["markdown", "output", "markdown output", "isolated", "comment"])
@pytest.mark.parametrize(
    ("exporter", "template"), [(FeedbackPages, ""), (HTMLExporter, "formgrade")]
)
def test_nothing_of_a_learners_runs(
    notebook: Any, exporter: type[HTMLExporter], template: str, place: str
) -> None:
    before = page(exporter, notebook, template)
    for text in HARMFUL:
        cell = nbformat.v4.new_code_cell("1")
        kind = {"output": "text/html", "isolated": "text/html", "markdown output": "text/markdown"}
        if place == "markdown":
            cell = nbformat.v4.new_markdown_cell(text)
        elif place in kind:
            cell.outputs = [nbformat.v4.new_output("display_data", {kind[place]: text})]
            cell.outputs[0].metadata = {"text/html": {"isolated": place == "isolated"}}
        notebook.cells.append(
            graded(cell, solution=True, comment=text if place == "comment" else None)
        )
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
    foreign = ("maction", "semantics", "annotation-xml", "mglyph")
    attributes = [(n, str(v)) for item in soup.find_all(True) for n, v in item.attrs.items()]
    addresses = [re.sub(r"\s", "", value) for name, value in attributes if name.endswith("href")]
    return (
        *(len(soup.find_all(name)) for name in names + foreign),
        len([item for item in soup.select("math *") if item.name in ("a", "img")]),
        sum(item.parent["class"] not in (["formula"], ["equation"]) for item in soup("math")),  # type: ignore[index]
        sum(name.startswith("on") or name in ("srcdoc", "formaction") for name, _ in attributes),
        sum(address.startswith(("javascript:", "data:text")) for address in addresses),
        sum("url(" in value or "\\" in value for name, value in attributes if name == "style"),
    )


NAMES = (
    '`<p style="margin:1px"><span style="background-color:white">13.5 of 13.5 points`.ipynb',
    "`**13 of 13 points** _well_ ~~done~~",
    "`[13 of 13](http:example.org) <http:example.org> [x][y]",
    "`![13 of 13](x.png) <b>x</b>",
    "``&lt;b&gt; <b>x</b>",
    "**13 of 13 points**",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_files_name_makes_no_markup(exercises: Any, name: str) -> None:
    said = f"The file is called `{name}`, not `scores.ipynb`."
    heading = "**Notes on this submission**"
    told = nbformat.v4.new_markdown_cell(f"{heading}\n\n- {said}\n- {said}", id=NOTES)
    exercises.cells.append(told)
    exercises.cells[-2].metadata["nbgrader"]["comment"] = said
    soup = parsed(exercises)
    boxes = [soup.select(".comment")[-1], soup.select(".prose")[-1]]
    for box in boxes:
        kinds = {item.name for item in box.find_all(True)}
        assert kinds <= {"strong", "p", "code", "ul", "li"}
        assert [item.get_text() for item in box.find_all("strong")] in (
            ["Comment"],
            ["Notes on this submission"],
        )
        assert name.replace("`", "") in box.get_text().replace("`", "")
        assert all(item.attrs == {} for item in box.find_all(True))


def test_a_comment_has_code_lists_formulas_and_addresses() -> None:
    text = "See $x^2$ at https://example.org/a_b_c.\n\n- `one`\n- two\n\n```python\nx = 1\n```"
    text += "\n\n# plain\n\n> plain\n\n<p>plain</p>"
    soup = BeautifulSoup(a_comment(text), "html.parser")
    assert [item.get_text() for item in soup.select("math, a, li, li code")] == [
        "x2",
        "https://example.org/a_b_c",
        "one",
        "one",
        "two",
    ]
    assert soup.pre.get_text() == "x = 1\n"  # type: ignore[union-attr]
    plain = [item.get_text() for item in soup.find_all("p")][-3:]
    assert plain == ["# plain", "> plain", "<p>plain</p>"]
    assert a_comment("word " * LONGEST) == as_typed("word " * LONGEST)


@pytest.mark.parametrize(
    "style",
    [
        "margin-top: calc(0px - 900px)",
        "margin: min(0px, 0px - 900px)",
        "margin: 0 0 0 -900px",
        "margin: -1e3px",
        "margin: var(--far)",
        "margin: 99999px",
        "text-indent: 1vw",
        "letter-spacing: (1px)",
        "list-style: image-set('http://example.org/x' 1x)",
        "list-style: src('http://example.org/x')",
        "list-style: 'http://example.org/x'",
        "margin: 1px ? 1px",
        "background: cross-fade(red, blue)",
        "background: ur\\6c (x)",
        "background: u/**/rl(x)",
        "background&#58; url(x)",
        "color: rgb(calc(1), 2, 3)",
        "position: fixed",
        "z-index: 3",
        "transform: scale(9)",
        "@import 'x'",
        "--far: 1px",
    ],
)
def test_a_style_holds_nothing_that_is_not_known(style: str) -> None:
    for made in (safe_markup, prose, safe_markdown):
        soup = BeautifulSoup(made(f'<p style="{style}; color: red">x</p>'), "html.parser")
        assert soup.p["style"] in ("", "color:red")  # type: ignore[index]


@pytest.mark.parametrize("style", ["c\\6flor: red", "color: red; @media {}", "color: red /* */"])
def test_a_style_that_needs_reading_twice_is_gone(style: str) -> None:
    assert safe_markup(f'<p style="{style}">x</p>') == '<p style="">x</p>'


def test_a_style_keeps_what_prose_needs() -> None:
    for style in (
        "color:#a0f;background:yellow;background-color:rgb(1 2 3 / 50%)",
        "color:hsla(120deg, 30%, 40%, .5);border:1px solid currentColor",
        "text-align:center;width:50%;height:20px;max-width:48em;margin:0 auto",
        "padding:.1em 0 .1em .8em;line-height:1.5;font-family:mono, serif;font-weight:700",
        "display:block;float:right;list-style:none;font-size:1.2rem",
    ):
        soup = BeautifulSoup(prose(f'<div style="{style}">x</div>'), "html.parser")
        assert soup.div["style"] == style  # type: ignore[index]
    quoted = BeautifulSoup(prose("<p style=\"font-family: 'Courier New'\">x</p>"), "html.parser")
    assert quoted.p["style"] == 'font-family:"Courier New"'  # type: ignore[index]


def test_in_the_formgrader_too_a_text_stays_in_its_box(notebook: Any) -> None:
    soup = BeautifulSoup(page(HTMLExporter, notebook, "formgrade"), "html.parser")
    texts = soup.select(".text_cell_render")
    assert len(texts) == len(soup.select('.text_cell_render > div[style*="overflow-y:hidden"]')) > 2


def test_the_formgrader_lays_out_what_nbconvert_would_and_no_more(
    notebook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = "![p](data:image/png;base64,iVBORw0KGgo=) and $x$"
    notebook.cells.append(nbformat.v4.new_markdown_cell(picture))
    here = page(HTMLExporter, notebook, "formgrade")
    with monkeypatch.context() as patch:
        patch.delitem(SAFE_FILTERS, "markdown2html")
        assert page(HTMLExporter, notebook, "formgrade") == here
    # stock ends without a page where a picture is not there, and takes minutes for long ones
    lost, long = "![p](attachment:p.png) *a*", "*a* " * LONGEST
    monkeypatch.setattr("autograder.gradebook.prose.MOST_IN_FORMGRADER", 3 * LONGEST)
    texts = [lost, long, *["a " * (LONGEST // 2)] * 4]
    notebook.cells += [nbformat.v4.new_markdown_cell(text) for text in texts]
    soup = BeautifulSoup(page(HTMLExporter, notebook, "formgrade"), "html.parser")
    typed = [cell.pre.text if cell.pre else "" for cell in soup.select(".text_cell_render")]
    assert typed[-len(texts) :][:2] == [lost, long]
    assert typed[-1] == texts[-1]
    assert 1 < typed.index("", len(typed) - len(texts)) < len(typed)


def test_what_a_learner_wrote_takes_no_name_of_ours(exercises: Any) -> None:
    text = (
        "## two-check\n\n# points\n\n# comment-one_<b>\n\n## Mine\n\n"
        '<a id="two-check" name="points">x</a>\n\n<p class="total got graded">4 of 4</p>\n\n'
        '<h2 id="about-two">x</h2>\n\n<i class="k total">x</i>\n\n```python\nx = 1\n```'
    )
    exercises.cells.insert(0, graded(nbformat.v4.new_markdown_cell(text)))
    soup = parsed(exercises)
    cell = soup.select_one(".prose")
    assert cell is not None
    assert [item["id"] for item in cell.select("[id]")] == ["Mine"]
    assert cell.select("[name]") == []
    assert {name for item in cell.select("[class]") for name in item["class"]} == {
        *("highlight", "anchor-link"),
        *("n", "o", "mi"),
    }
    ids = [item["id"] for item in soup.select("[id]")]
    assert len(ids) == len(set(ids))


def test_marks_and_tables_are_found_at_any_depth() -> None:
    deep = 300
    text = f"a {'<code>' * deep}$x${'</code>' * deep} $y$ {'<table><tr><td>' * deep}"
    soup = BeautifulSoup(prose(text), "html.parser")
    tables = soup.find_all("table")
    assert len(tables) == deep
    assert all(table.parent["class"] == ["scroll"] for table in tables)  # type: ignore[index]
    assert [item.get_text() for item in soup.find_all("math")] == ["y"]
    assert "$x$" in soup.get_text()


def test_of_a_formula_only_what_is_known_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in (
        "<math><mi href='x'>a</mi></math>",
        "<math><maction>a</maction></math>",
        "<math><mi onclick='x'>a</mi></math>",
        "<math><mi style='background:url(x)'>a</mi></math>",
        "<math><mi>a</math>",
    ):
        monkeypatch.setattr("autograder.gradebook.prose.to_mathml", lambda *_, bad=bad: bad)
        assert formula("a", False, "$a$") == '<code class="formula">$a$</code>'


def test_a_page_needs_no_script_and_no_other_site(exercises: Any) -> None:
    far = "https://example.org/x.png"
    text = f"![far]({far}) <img src={far}> <img src='\\\\example.org/x'> <img src=//example.org/x>"
    exercises.cells.append(graded(nbformat.v4.new_markdown_cell(text)))
    output = nbformat.v4.new_output("display_data", {"text/html": text})
    exercises.cells.append(graded(nbformat.v4.new_code_cell("1", outputs=[output])))
    html = page(FeedbackPages, exercises)
    soup = BeautifulSoup(html, "html.parser")
    assert soup.find(["script", "iframe"]) is None
    for name, attribute in (("link", "href"), ("img", "src")):
        fetched = [str(item.get(attribute, "")) for item in soup.find_all(name)]
        assert [f for f in fetched if re.match(r"(?!data:)\w+:|[/\\]{2}", f)] == []
    styles = "".join(item.get_text() for item in soup.find_all("style"))
    assert len(styles) > 1000
    assert "url(" not in styles
    assert "@import" not in styles
    policy = soup.find("meta", attrs={"http-equiv": "Content-Security-Policy"})
    assert str(policy["content"]).startswith("default-src 'none';")  # type: ignore[index]
    assert soup.select_one(f'main a[href="{far}"]') is not None  # a link is left of the picture


def test_the_layout_of_a_report_gets_through() -> None:
    from autograder.learner.report import Line, Report

    report = Report("title", [Line("text", True, ("detail",), ("https://example.org", "more"))])
    kept = BeautifulSoup(safe_markup(report.html()), "html.parser")
    asked = BeautifulSoup(report.html(), "html.parser")
    for ours, theirs in zip(kept.find_all(True), asked.find_all(True), strict=True):
        given = {key: re.sub(r"\s|;$", "", str(value)) for key, value in theirs.attrs.items()}
        assert {key: re.sub(r"\s|;$", "", str(v)) for key, v in ours.attrs.items()} == given
    assert "margin" not in safe_markup('<p style="margin-left: -99em">over there</p>')


# --- in a browser -------------------------------------------------------------------------------

SCROLLS = "document.documentElement.scrollWidth > innerWidth"


def pictures(folder: Path) -> None:
    for name in "xyz":
        (folder / f"{name}.png").write_bytes(base64.b64decode(PICTURE))


@pytest.mark.browser
def test_what_somebody_wrote_stays_in_its_box(
    look: Any,  # noqa: F811
    exercises: Any,
    tmp_path: Path,
) -> None:
    high = '<p><span style="padding:9999px;background:red">over the page</span></p>'
    exercises.cells[-1].metadata["nbgrader"]["comment"] = f"`{high}`"
    exercises.cells.append(nbformat.v4.new_markdown_cell(high))
    exercises.cells[-2].outputs[0]["data"] = {"text/html": high}
    pictures(tmp_path)
    path = tmp_path / "scores.html"
    path.write_text(page(FeedbackPages, exercises), encoding="utf-8")
    [tab] = look(path.as_uri(), viewport={"width": 1100, "height": 900})
    assert (
        tab.evaluate(
            "[...document.querySelectorAll('.prose, .html, .comment')].filter("
            "item => !getComputedStyle(item).overflow.endsWith('hidden')).length"
        )
        == 0
    )
    on_top = tab.evaluate(
        "(at => document.elementFromPoint(at.x + 9, at.y + 9).className)"
        "(document.querySelector('.total').getBoundingClientRect())"
    )
    assert on_top == "total"


@pytest.mark.browser
def test_a_page_is_readable_on_a_phone_and_in_the_dark(
    look: Any,  # noqa: F811
    exercises: Any,
    tmp_path: Path,
) -> None:
    wide = "| " + " | ".join(["a wide column"] * 12) + " |\n|" + "-|" * 12 + "\n"
    for text in (
        wide,
        "$$" + "+".join(f"x_{{{i}}}" for i in range(80)) + "$$",
        "$\\hspace{99em}x$",
    ):
        exercises.cells.append(graded(nbformat.v4.new_markdown_cell(text)))
    html = nbformat.v4.new_output("display_data", {"text/html": "<p style='color:black'>ink</p>"})
    exercises.cells.append(graded(nbformat.v4.new_code_cell("1", outputs=[html])))
    pictures(tmp_path)
    path = tmp_path / "scores.html"
    path.write_text(page(FeedbackPages, exercises), encoding="utf-8")
    for scheme in ("light", "dark"):
        [tab] = look(path.as_uri(), viewport={"width": 390, "height": 800}, color_scheme=scheme)
        assert tab.evaluate(SCROLLS) is False
        assert tab.evaluate(CONTRAST) == []
        assert tab.evaluate(UNNAMED) == []
        drawn = tab.evaluate(
            "document.querySelector('.formula msup').getBoundingClientRect().width"
        )
        assert drawn > 0
