"""A report as HTML and as text."""

from html.parser import HTMLParser

import pytest

from autograder.learner import book
from autograder.learner.report import Line, Report

REPORT = Report(
    "Softmax: 1 of 2 points",
    [
        Line("Rows sum to 1.", passed=True),
        Line(
            "a < b & c",
            passed=False,
            details=("Seen `x < 1`.", "An odd ` stays."),
            link=("https://x.org/?a=1&b=2", "why-root-d"),
        ),
        Line("Neither", link=(None, "label")),
    ],
    ["2 more."],
)


def test_text() -> None:
    assert REPORT.text() == (
        "Softmax: 1 of 2 points\n"
        "  ✔ Rows sum to 1.\n"
        "  ✘ a < b & c\n"
        "      Seen `x < 1`.\n"
        "      An odd ` stays.\n"
        "      The book explains it: why root d <https://x.org/?a=1&b=2>\n"
        "  Neither\n"
        "      The book explains it: label\n"
        "2 more."
    )


class Balance(HTMLParser):
    """Collects text, and sees that every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.attributes: dict[str, str | None] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.attributes |= dict(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_html_is_escaped_and_closed() -> None:
    parser = Balance()
    parser.feed(REPORT.html())
    assert parser.open == []
    text = "".join(parser.words)
    assert "a < b & c" in text
    assert "Seen x < 1." in text
    assert "An odd ` stays." in text
    assert "<code>x &lt; 1</code>" in REPORT.html()
    assert parser.attributes["href"] == "https://x.org/?a=1&b=2"


def test_html_says_in_words_what_the_marks_say_and_sets_no_colour() -> None:
    found = REPORT.html()
    assert 'aria-label="passed"' in found
    assert 'aria-label="not passed"' in found
    assert "currentColor" in found
    assert "#" not in found  # colours come from the page, light or dark


@pytest.mark.parametrize(
    ("repository", "url"),
    [
        ("https://github.com/Some-One/book", "https://some-one.github.io/book/book/a.html#x-y"),
        ("https://github.com/some/book.git", "https://some.github.io/book/book/a.html#x-y"),
        ("file:///tmp/clone", None),
        (None, None),
    ],
)
def test_the_books_address(
    monkeypatch: pytest.MonkeyPatch, repository: str | None, url: str | None
) -> None:
    monkeypatch.setattr(book, "repository", lambda: repository)
    assert book.section_url("a", "x_Y") == url


def test_the_address_is_that_of_the_configuration() -> None:
    book.repository.cache_clear()
    import yaml

    config = yaml.safe_load((book.ROOT / "_config.yml").read_text(encoding="utf-8"))
    assert book.repository() == config["repository"]["url"]
