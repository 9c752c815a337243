"""MyST becomes Markdown that every notebook shows."""

import pytest

from autograder.compose.plain import plain


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("(why)=\n## Why\n\nText.", "## Why\n\nText."),
        ("% a comment\nText.", "Text."),
        ("See {ref}`the cost <cost>`.", "See the cost."),
        ("See {ref}`cost`.", "See “What it costs”."),
        ("See {ref}`far-away`.", "See “far away”."),
        ("See {ref}`two\nlines <cost>`.", "See two\nlines."),
        ("So {math}`x^2` and {func}`f`.", "So $x^2$ and `f`."),
        ("```{math}\n:label: eq\nx = 1\n```", "$$\nx = 1\n$$"),
        ("$$\nx\n$$ (eq)", "$$\nx\n$$"),
        ("```{note}\nMind *this*.\n```", "> **Note**\n>\n> Mind *this*."),
        ("```{admonition} Key idea\n:class: key\n\n- one\n- two\n```",
         "> **Key idea**\n>\n> - one\n> - two"),
        ("````{dropdown} Use `dim=-1` & go\nYes.\n````",
         "<details><summary>Use <code>dim=-1</code> &amp; go</summary>\n\nYes.\n\n</details>"),
        ("```{code-block} python\nf({ref})\n```", "```python\nf({ref})\n```"),
        ("```python\n(not-a-label)=\n% kept\n\n\nx\n```",
         "```python\n(not-a-label)=\n% kept\n\n\nx\n```"),
        (":::{div} wide\nText.\n:::", "Text."),
        ("{.class}\n| a | b |", "| a | b |"),
        ("$e^{\\text{score}_s}$ and `{ref}` stay.", "$e^{\\text{score}_s}$ and `{ref}` stay."),
    ],
)  # fmt: skip
def test_translates(source: str, expected: str) -> None:
    assert plain(source, {"cost": "What it costs"}) == expected


def test_a_quiz_hides_its_explanations() -> None:
    quiz = (
        "`````{admonition} Quiz\n:class: quiz\n\nWhich?\n\n"
        "````{dropdown} A. This\nNo.\n````\n````{dropdown} B. That\nYes.\n````\n`````"
    )
    assert plain(quiz) == (
        "> **Quiz**\n>\n> Which?\n>\n"
        "> <details><summary>A. This</summary>\n>\n> No.\n>\n> </details>\n>\n"
        "> <details><summary>B. That</summary>\n>\n> Yes.\n>\n> </details>"
    )


def test_plain_markdown_stays_as_it_is() -> None:
    table = "| a | b |\n|---|---|\n| 1 | 2 |"
    text = f"# Title\n\nA *word*, `code`, $x_{{i}}$.\n\n{table}\n\n- item\n  - item"
    assert plain(text) == text
