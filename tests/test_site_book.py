"""A small book, built as the whole one is: what its pages hold, how they behave in a browser."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SECRET, SEALED = "the_whole_secret", "a_sealed_secret"
FIGURE = """
export default { render({ model, el }) {
  el.innerHTML = '<label>width <input type="range" min="0" max="9"></label> <output></output>';
  const [slider, out] = [el.querySelector("input"), el.querySelector("output")];
  const show = () => { slider.value = out.textContent = model.get("width"); };
  slider.addEventListener("input", () => {
    model.set("width", slider.valueAsNumber); model.save_changes(); });
  model.on("change:width", show); show();
} };
"""
WIDGET = "0123456789abcdef0123456789abcdef"
STUB = "def double(x):\n    raise NotImplementedError\n"
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGA"
    "WjR9awAAAABJRU5ErkJggg=="
)
PROSE = r"""# A chapter

A number $\sqrt{d}$, and {eq}`eq-sum`. Two ($a$, $b$) more.

$$
s = \sum_{i=1}^{d} q_i k_i
$$ (eq-sum)

```{admonition} Claim to test
:class: claim

That it moves.
```

````{admonition} Which?
:class: quiz

```{dropdown} A. This one
No: *that* one.
```
````

|   | b |
|---|---|
| 1 | 2 |

```
x = 1, but no code
```
"""


def code(key, source, outputs=()):
    return {
        "cell_type": "code",
        "id": key,
        "metadata": {},
        "source": source,
        "outputs": list(outputs),
        "execution_count": None,
    }


def shown(**data):
    return {"output_type": "display_data", "metadata": {}, "data": data}


def answer(secret):
    return f"def double(x):\n    {secret} = 2 * x\n    return {secret}\n"


def write_book(root):
    """A book in ``root``, with the repository's own configuration: a chapter, one whose answers
    are hidden, and one that is planned."""
    for folder in ("book", "_build/worked", "_build/page"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    config = (ROOT / "_config.yml").read_text(encoding="utf-8")
    assert "book_planned: {}" in config
    (root / "_config.yml").write_text(
        config.replace("book_planned: {}", "book_planned: {later: What Comes Later}"),
        encoding="utf-8",
    )
    shutil.copytree(ROOT / "book/_site", root / "book/_site", dirs_exist_ok=True)
    (root / "_toc.yml").write_text(
        "format: jb-book\nroot: book/start\n"
        "chapters:\n  - file: book/chapter\n  - file: book/sealed\n",
        encoding="utf-8",
    )
    (root / "book/start.md").write_text(
        "# The start\n\nNext: [](later), [](chapter).\n", encoding="utf-8"
    )
    write_chapter(root, "chapter", PROSE, SECRET, "shown")
    write_chapter(root, "sealed", "# A sealed chapter\n", SEALED, "hidden")
    return root


def write_chapter(root, stem, prose, secret, answers):
    """A chapter with an exercise; ``secret`` is a word that stands in its answer alone."""
    # The authored page lies beside the notebook, as everywhere, and is not read.
    (root / f"book/{stem}.md").write_text(f"# Authored {secret}\n", encoding="utf-8")
    cells = [
        {"cell_type": "markdown", "id": "prose", "metadata": {}, "source": prose},
        {"cell_type": "markdown", "id": "double-about", "metadata": {}, "source": "**Exercise**"},
        code("double", STUB),
        code("double-check", f'check("{stem}.double")'),
        code("use", "print(double(3))"),
        code("figure", "Figure()"),
        code("plot", "plt.plot(x)"),
    ]
    outputs = {
        "double-check": [{"output_type": "stream", "name": "stdout", "text": "check's output"}],
        "use": [{"output_type": "stream", "name": "stdout", "text": "worked output 6"}],
        "figure": [
            shown(
                **{
                    "text/plain": "Figure()",
                    "application/vnd.jupyter.widget-view+json": {"model_id": WIDGET},
                }
            )
        ],
        "plot": [
            {
                "output_type": "display_data",
                "metadata": {"image/png": {"alt": "One pixel.", "width": 320, "height": 200}},
                "data": {"image/png": PIXEL, "text/plain": "One pixel."},
            }
        ],
    }
    student = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"name": "python3", "display_name": "Python 3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    worked = json.loads(json.dumps(student))
    for cell in worked["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = outputs.get(cell["id"], [])
        if cell["id"] == "double":
            cell["source"] = answer(secret)
    state = {"model_name": "AnyModel", "state": {"_esm": FIGURE, "width": 3}}
    worked["metadata"]["widgets"] = {
        "application/vnd.jupyter.widget-state+json": {"state": {WIDGET: state}}
    }
    page = {
        "answers": answers,
        "exercises": {"double": {"hints": ["Twice?", "A sum?", "x + x"], "answer": answer(secret)}},
    }
    for path, value in (
        (f"book/{stem}.ipynb", student),
        (f"_build/worked/{stem}.ipynb", worked),
        (f"_build/page/{stem}.json", page),
    ):
        (root / path).write_text(json.dumps(value), encoding="utf-8")


def build(root):
    """Build the book in ``root`` as the Makefile does."""
    return subprocess.run(
        [
            Path(sys.executable).with_name("jupyter-book"),
            "build",
            ".",
            "-W",
            "--keep-going",
            "-n",
            "-q",
        ],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built small book."""
    root = write_book(tmp_path_factory.mktemp("book"))
    result = build(root)
    assert result.returncode == 0, result.stderr
    return root / "_build/html"


@pytest.fixture(scope="module")
def page(site):
    return (site / "book/chapter.html").read_text(encoding="utf-8")


def texts(site):
    """Every text file of a site with its content."""
    for path in sorted(site.rglob("*")):
        if path.suffix in {".html", ".js", ".json", ".ipynb", ".md", ".txt", ".css"}:
            yield path.relative_to(site).as_posix(), path.read_text(encoding="utf-8")


@pytest.mark.build
class TestPage:
    def test_what_is_handed_out_is_the_students_notebook(self, site, page):
        handed = site / "_sources/book/chapter.ipynb"
        assert handed.read_bytes() == (site.parents[1] / "book/chapter.ipynb").read_bytes()
        assert 'href="../_sources/book/chapter.ipynb" download' in page
        assert "/blob/main/book/chapter.ipynb" in page

    def test_the_answer_stands_in_its_dropdown_alone(self, site, page):
        """In the page and the search index, but in nothing that is handed out."""
        holders = {name for name, text in texts(site) if SECRET in text}
        assert holders - {"searchindex.js"} == {"book/chapter.html"}
        before, after = page.split("Worked answer", 1)
        assert SECRET not in before
        assert SECRET in after

    def test_a_hidden_answer_is_nowhere_on_the_site(self, site):
        assert "worked output 6" in (site / "book/sealed.html").read_text(encoding="utf-8")
        assert [name for name, text in texts(site) if SEALED in text] == []

    def test_a_planned_chapter_is_named(self, site):
        start = (site / "book/start.html").read_text(encoding="utf-8")
        planned = r'Next: <span class="planned">What Comes Later</span>, <a .*chapter\.html'
        assert re.search(planned, start)

    def test_an_exercise_is_one_box(self, page):
        card = page[page.index('class="exercise docutils') :]
        order = ["exercise-about", "NotImplementedError", "tag_check", "Hint 1", "Hint 3", "Worked"]
        assert [card.index(word) for word in order] == sorted(card.index(word) for word in order)

    def test_outputs_are_those_of_the_worked_run(self, page):
        assert "worked output 6" in page
        assert "check's output" not in page
        assert "check&#39;s output" not in page

    def test_a_picture_has_its_words(self, page):
        assert re.search(r'<img alt="One pixel\."[^>]*png"', page)

    def test_a_picture_has_its_room_before_it_is_there(self, page):
        """Attributes, for a style sheet that says `height: auto` leaves no room."""
        assert re.search(r'<img [^>]*png" width="320" height="200" loading="lazy"', page)

    def test_formulas_are_mathml_with_numbers(self, page):
        assert page.count("<math") == 4
        assert re.search(r'id="equation-eq-sum".*?\(1\)', page, re.DOTALL)
        assert re.search(r'href="#equation-eq-sum"[^>]*>\(1\)<', page)

    def test_formulas_keep_their_punctuation(self, page):
        """A line may break beside any formula, so a comma would begin the next."""
        piece = r'<span class="unbroken">{}<span class="formula[^"]*"><math.*?</math></span>{}<'
        assert re.search(piece.format(r"\(", ",") + "/span> " + piece.format("", r"\)"), page)

    def test_an_empty_corner_of_a_table_is_no_heading(self, page):
        assert re.search(r'<td class="head[^"]*"></td>\s*<th', page)

    def test_a_fence_without_a_language_is_no_code(self, page):
        assert "highlight-none" in page
        assert "x = 1, but no code" in page

    def test_nothing_is_loaded_from_elsewhere(self, site):
        loads = re.compile(
            r"""<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=["']((?:https?:)?//[^"']+)|@import[^;]+//|url\(["']?(?:https?:)?//"""
        )
        for name, text in texts(site):
            if name.endswith((".html", ".css")):
                assert not loads.findall(text), name

    def test_no_large_file_stays(self, site):
        """fontawesome.js alone has 1.5 MB, the theme's style sheet 397 KB."""
        sizes = {path.name: path.stat().st_size for path in site.rglob("*") if path.is_file()}
        assert max(sizes.values()) < 150_000, max(sizes, key=sizes.get)


@pytest.mark.build
def test_a_stale_worked_run_is_one_line(tmp_path):
    root = write_book(tmp_path)
    path = root / "book/chapter.ipynb"
    path.write_text(path.read_text(encoding="utf-8").replace("double(3)", "double(4)"), "utf-8")
    result = build(root)
    assert result.returncode != 0
    assert "book/chapter.ipynb: cell 'use' differs from its worked run" in result.stderr
    assert str(root) + "/book" not in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.build
def test_each_fault_of_a_page_is_a_warning_with_its_place(tmp_path):
    root = write_book(tmp_path)
    start = "# The start\n\nSee $\\nonsense{x}$.\n\nNext: [](sooner).\n"
    (root / "book/start.md").write_text(start, encoding="utf-8")
    result = build(root)
    assert result.returncode != 0
    assert re.search(r"start\.md:3: WARNING: formula `\\nonsense\{x\}`", result.stderr)
    assert re.search(r"start\.md:5: WARNING: .*target not found: 'sooner'", result.stderr)


def do_without(what):
    """Skip on a reader's machine what it does not have; continuous integration has it all."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="module")
def whole_book():
    """The whole book as `make` builds it."""
    site = ROOT / "_build/html"
    if not (site / "index.html").exists():
        do_without("the book is not built: `make book` builds it, and `make test` does so first")
    return site


def test_no_answer_is_handed_out(whole_book):
    """Notebooks and sources hold no solution; where answers are hidden, no page does."""

    def flat(text):
        return " ".join(text.split())

    pages = flat(
        "\n".join(
            html.unescape(re.sub(r"<[^>]+>", "", text))
            for name, text in texts(whole_book)
            if name.endswith((".html", "searchindex.js"))
        )
    )
    looked_for = 0
    for path in sorted((ROOT / "_build/page").glob("*.json")):
        page = json.loads(path.read_text("utf-8"))
        handed = whole_book / f"_sources/book/{path.stem}.ipynb"
        assert handed.read_bytes() == (ROOT / f"book/{path.stem}.ipynb").read_bytes()
        student, worked = (
            {
                cell["id"]: "".join(cell["source"])
                for cell in json.loads(file.read_text("utf-8"))["cells"]
            }
            for file in (handed, ROOT / f"_build/worked/{path.stem}.ipynb")
        )
        for name in page["exercises"]:
            body = what_differs(student[name], worked[name])
            if body.count("\n") < 2:
                continue  # a line or two of an answer may well stand in an example
            looked_for += 1
            assert all(flat(body) not in flat(source) for source in student.values()), name
            if page["answers"] == "hidden":
                assert flat(body) not in pages, name
            else:
                assert flat(body) in pages, name
    assert looked_for


def what_differs(stub, answer):
    """The lines of an answer between those that it shares with its stub at both ends."""
    stub, answer = stub.splitlines(), answer.splitlines()
    while stub and answer and stub[0] == answer[0]:
        stub, answer = stub[1:], answer[1:]
    while stub and answer and stub[-1] == answer[-1]:
        stub, answer = stub[:-1], answer[:-1]
    return "\n".join(answer)


# --- in a browser ------------------------------------------------------------------------------

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
FLAGS = [
    "--no-sandbox",  # Chromium's own sandbox refuses to start as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# Text whose contrast with what lies behind it is under WCAG 2.1's AA: 4.5, large text 3.
CONTRAST = r"""
() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const kept = (make, found = new Map()) => (key) => {
    if (!found.has(key)) found.set(key, make(key));
    return found.get(key);
  };
  // Thousands of elements share a few colours: each pile of layers is painted once.
  const light = kept((pile) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const layer of pile.split(";")) { canvas.fillStyle = layer; canvas.fillRect(0, 0, 1, 1); }
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => v / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  });
  const pileBehind = kept((el) =>
    `${el.parentElement ? pileBehind(el.parentElement) : "white"};`
    + getComputedStyle(el).backgroundColor);
  const found = new Set();
  for (const el of document.querySelectorAll("body *")) {
    const own = [...el.childNodes].filter((n) => n.nodeType === 3 && n.data.trim());
    if (!own.length) continue;
    if (!el.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    if (el.closest("svg, [aria-hidden=true], [disabled], script, style")) continue;
    const box = el.getBoundingClientRect();
    if (box.width < 2 || box.height < 2) continue;
    const style = getComputedStyle(el), pile = pileBehind(el);
    const [a, b] = [light(pile), light(`${pile};${style.color}`)].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize), bold = +style.fontWeight >= 700;
    const wanted = size >= 24 || (bold && size >= 18.66) ? 3 : 4.5;
    const ratio = (a + 0.05) / (b + 0.05);
    const text = own[0].data.trim().slice(0, 30);
    if (ratio < wanted) found.add(`${el.tagName}.${el.className} ${text} ${ratio.toFixed(2)}`);
  }
  return [...found];
}
"""

# What a page gets wrong whoever reads it: markup that was not understood, code that is cut off
# though a line has 100 characters at most, headings out of order, links that lead nowhere.
FAULTS = r"""
() => {
  const found = [];
  const article = document.querySelector("article");
  const words = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    const { data, parentElement } = words.currentNode;
    if (parentElement.closest("pre, code, script, style, annotation")) continue;
    if (/```|:::|\{(dropdown|admonition|ref|eq|doc)\}|\$\$/.test(data)) {
      found.push(`markup: ${data}`);
    }
  }
  for (const pre of article.querySelectorAll("pre")) {
    const longest = Math.max(...pre.textContent.split("\n").map((line) => [...line].length));
    const cut = pre.scrollWidth > pre.clientWidth + 1;
    if (cut && longest <= 100 && innerWidth >= 1265) found.push(`cut off: ${pre.textContent}`);
    if (/^`{3}/m.test(pre.textContent)) found.push(`markup: ${pre.textContent}`);
  }
  const shown = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter((h) =>
    h.checkVisibility());
  const levels = shown.map((h) => Number(h.tagName[1]));
  if (levels.filter((level) => level === 1).length !== 1) found.push(`h1: ${levels}`);
  levels.forEach((level, i) => {
    if (i && level > levels[i - 1] + 1) found.push(`skips a level: ${shown[i].textContent}`);
  });
  for (const link of document.querySelectorAll('a[href^="#"]')) {
    const target = decodeURIComponent(link.hash.slice(1));
    if (target && !document.getElementById(target)) found.push(`leads nowhere: ${link.hash}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((el) => el.id);
  for (const id of ids.filter((id, i) => ids.indexOf(id) !== i)) found.push(`twice: #${id}`);
  if (!document.documentElement.lang) found.push("no language");
  if (!document.querySelector('.skip-link a[href="#main-content"]')) found.push("no skip link");
  if (document.querySelector("th:empty")) found.push("an empty heading in a table");
  const brand = document.querySelector(".navbar-brand");
  if (!brand.closest("nav, header, main, aside")) found.push("outside all landmarks: the title");
  return found.map((fault) => fault.trim().slice(0, 120));
}
"""

# Controls that have no name, and those whose aria-label lacks the words that they show.
UNNAMED = r"""
() => [...document.querySelectorAll("a[href], button, summary, input")].filter((el) => {
  if (!el.checkVisibility({ opacityProperty: true, visibilityProperty: true })) return false;
  const label = (el.getAttribute("aria-label") ?? "").trim().toLowerCase();
  const text = el.innerText.trim().toLowerCase();
  const named = label || text || el.title || el.labels?.length || el.placeholder
    || el.querySelector("img[alt]:not([alt='']), svg[role=img][aria-label]");
  return !named || (label && text && !label.includes(text));
}).map((el) => el.outerHTML.slice(0, 200))
"""


def browser_path():
    """A Chromium on this machine."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    if Path(MAC).exists():
        return MAC
    return do_without("no Chromium on this machine: `make system` installs it where it can")


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    path = browser_path()
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def look(browser):
    """Opens pages, all before it waits for the first; at the end nothing has been asked of another
    site, and no error was logged."""
    contexts, requests, errors = [], [], []

    def opened(*urls, **options):
        tabs = []
        for url in urls:
            context = browser.new_context(**options)
            contexts.append(context)
            tab = context.new_page()
            tab.on("request", lambda request: requests.append(request.url))
            tab.on("pageerror", lambda error: errors.append(str(error)))
            tab.on(
                "console",
                lambda said: (
                    errors.append(said.text) if said.type in ("error", "warning") else None
                ),
            )
            tab.goto(url)
            tabs.append(tab)
        for tab in tabs:
            tab.wait_for_load_state("networkidle")
        return tabs

    yield opened
    for context in contexts:
        context.close()
    own = re.compile(r"(file:///|data:|blob:|http://127\.0\.0\.1[:/])")
    assert [url for url in requests if not own.match(url)] == []
    assert errors == []


@pytest.fixture
def served(site):
    """The small book over HTTP."""
    handler = partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["file", "http"])
def test_a_figure_moves_without_a_kernel(look, site, served, scheme):
    address = site.as_uri() if scheme == "file" else served
    [tab] = look(f"{address}/book/chapter.html")
    slider, output = tab.locator(".figure-live input"), tab.locator(".figure-live output")
    assert output.inner_text() == "3"
    slider.focus()
    tab.keyboard.press("ArrowRight")
    assert output.inner_text() == "4"


def pages_of(book):
    """The addresses of a book's pages."""
    found = [path.as_uri() for path in sorted((book / "book").glob("*.html"))]
    assert found
    return found


def assert_can_be_read(tab, colours, width):
    """Enough contrast, controls with names, nothing wider than the screen."""
    assert tab.evaluate("document.documentElement.dataset.theme") == colours, tab.url
    assert tab.evaluate(CONTRAST) == [], tab.url
    assert tab.evaluate(UNNAMED) == [], tab.url
    assert tab.evaluate("document.documentElement.scrollWidth") <= width, tab.url


def assert_has_no_faults(tab):
    """Each figure draws itself, every picture is put into words, all markup is understood."""
    views = tab.locator('script[type="application/vnd.jupyter.widget-view+json"]').count()
    assert tab.locator(".figure-live > *").count() >= views, tab.url
    bare = tab.evaluate(
        "[...document.images].map((i) => [i.alt, i.src])"
        ".filter(([alt]) => !alt || /[.](png|svg)$/.test(alt))"
    )
    assert bare == [], tab.url
    assert tab.evaluate(FAULTS) == [], tab.url


def open_all(tab):
    """Open whatever a page has folded away."""
    tab.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")


COLOURS, WIDTHS = ("light", "dark"), (390, 1366)
DESK = 1265
"""A screen of 1280 px less a scrollbar."""


@pytest.mark.browser
@pytest.mark.parametrize("colours", COLOURS)
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_can_be_read_everywhere(look, site, colours, width):
    viewport = {"width": width, "height": 900}
    for tab in look(*pages_of(site), color_scheme=colours, viewport=viewport):
        open_all(tab)
        assert_can_be_read(tab, colours, width)


@pytest.mark.browser
def test_pages_have_no_faults(look, site):
    for tab in look(*pages_of(site), viewport={"width": DESK, "height": 900}):
        open_all(tab)
        assert_has_no_faults(tab)


@pytest.mark.browser
def test_the_whole_book_in_all_colours_and_widths(look, whole_book):
    """Its pages are long: each is opened once, and follows the system's colours and its window."""
    for tab in look(*pages_of(whole_book), viewport={"width": DESK, "height": 900}):
        open_all(tab)
        assert_has_no_faults(tab)
        for colours in COLOURS:
            tab.emulate_media(color_scheme=colours)
            tab.wait_for_function(
                "(wanted) => document.documentElement.dataset.theme === wanted", arg=colours
            )
            tab.evaluate("Promise.all(document.getAnimations().map((change) => change.finished))")
            for width in WIDTHS:
                tab.set_viewport_size({"width": width, "height": 900})
                assert_can_be_read(tab, colours, width)


@pytest.mark.browser
def test_paper_is_light(look, site):
    """Who reads in dark colours prints dark letters on white all the same."""
    [tab] = look(f"{site.as_uri()}/book/chapter.html", color_scheme="dark")
    tab.evaluate(
        "addEventListener('beforeprint', () => {"
        " window.printed = getComputedStyle(document.querySelector('article')).color; })"
    )
    tab.pdf()
    assert tab.evaluate("window.printed") == "rgb(36, 39, 44)"
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.browser
def test_search_finds_a_page(look, site):
    [tab] = look(f"{site.as_uri()}/search.html?q=chapter")
    tab.locator("#search-results li a").first.wait_for()
    assert "chapter.html" in tab.locator("#search-results li a").first.get_attribute("href")
