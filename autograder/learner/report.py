"""Shows a learner what came of it: as HTML where a page is there, and as text everywhere."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

from autograder.i18n import _

PASSED, FAILED = "✔", "✘"


@dataclass(frozen=True)
class Line:
    """One line of a report.

    Attributes:
        passed: whether it gets ✔ or ✘; None for neither.
        details: sentences that stand below it.
        link: address and text of where to read on.
    """

    text: str
    passed: bool | None = None
    details: tuple[str, ...] = ()
    link: tuple[str | None, str] | None = None


@dataclass(frozen=True)
class Report:
    """A heading, lines, and what is said at the end."""

    title: str
    lines: Sequence[Line] = ()
    closing: Sequence[str] = field(default_factory=tuple)

    def text(self) -> str:
        """As text."""
        rows = [self.title]
        for line in self.lines:
            mark = {True: f"{PASSED} ", False: f"{FAILED} ", None: ""}[line.passed]
            rows.append(f"  {mark}{line.text}")
            rows += [f"      {detail}" for detail in line.details]
            if line.link:
                address, label = line.link
                rows.append(f"      {_read_on(label)}" + (f" <{address}>" if address else ""))
        return "\n".join([*rows, *self.closing])

    def html(self) -> str:
        """As HTML: readable on light and on dark, and by a screen reader."""
        items = "".join(_html_line(line) for line in self.lines)
        closing = "".join(f'<p style="margin:.3em 0">{_escape(text)}</p>' for text in self.closing)
        listed = f'<ul style="list-style:none;margin:.3em 0;padding:0">{items}</ul>'
        return (
            '<div style="border-left:3px solid currentColor;padding:.1em 0 .1em .8em;'
            'line-height:1.5;max-width:48em">'
            f'<p style="margin:.3em 0"><strong>{_escape(self.title)}</strong></p>'
            f"{listed if self.lines else ''}{closing}</div>"
        )


def _html_line(line: Line) -> str:
    mark = ""
    if line.passed is not None:
        sign, word = (PASSED, _("passed")) if line.passed else (FAILED, _("not passed"))
        mark = f'<span role="img" aria-label="{_escape(word)}"><strong>{sign}</strong></span> '
    details = list(map(_escape, line.details))
    if line.link:
        address, label = line.link
        text = _escape(_read_on(label))
        if address:
            text = f'<a href="{_escape(address)}" style="color:inherit">{text}</a>'
        details.append(text)
    below = "".join(f'<div style="margin-left:1.4em">{item}</div>' for item in details)
    return f'<li style="margin:.3em 0">{mark}{_escape(line.text)}{below}</li>'


def _read_on(label: str) -> str:
    return _("The book explains it: {section}").format(section=label.replace("-", " "))


def _escape(text: str) -> str:
    # back ticks mark code in messages, as in Markdown
    parts = html.escape(text).split("`")
    if len(parts) % 2 == 0:
        return html.escape(text)
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def show(report: Report) -> None:
    """Show a report: in a notebook as one output with both forms, elsewhere as text."""
    try:
        from IPython import get_ipython  # noqa: PLC0415
        from IPython.display import display  # noqa: PLC0415
    except ImportError:
        print(report.text())
        return
    if get_ipython() is None:
        print(report.text())
        return
    both = {"text/html": report.html(), "text/plain": report.text()}
    display(both, raw=True)
