"""The page of the report: one file, readable on paper too, that asks no other site for anything."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from string import Template

from autograder.i18n import LANGUAGE, _, ngettext
from autograder.learner.book import section_url
from autograder.report.summary import CheckCount, ClassSummary, Mistake, Row

_PAGE = Path(__file__).with_name("page.html")
_BINS = 10
# Letters of a word that fits into a column.
_WHOLE = 24


def page(summary: ClassSummary) -> str:
    """The page as HTML."""
    chapters = sorted({row.chapter for row in summary.rows if row.chapter})
    title = _("Grades: {chapters}").format(chapters=", ".join(chapters) or "–")
    body = "\n".join(
        [
            _facts(summary),
            _contents(summary),
            _spread(summary),
            _submissions(summary.rows),
            _mistakes(summary.frequent, len(summary.rows)),
            _checks(list(summary.checks.values())),
        ]
    )
    template = Template(_PAGE.read_text(encoding="utf-8"))
    return template.substitute(language=LANGUAGE, title=html.escape(title), body=body)


def _text(text: str) -> str:
    """A sentence, with what stands in back ticks as code."""
    parts = html.escape(text).split("`")
    if len(parts) % 2 == 0:
        return html.escape(text)
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def _name(text: str) -> str:
    """A name or a path that may go on in the next line where one of its words ends, only there."""
    parts = (
        f'<span class="whole">{html.escape(part)}</span>'
        if len(part) <= _WHOLE
        else html.escape(part)
        for part in re.split(r"(?<=[/_ ])", text)
    )
    return "<wbr>".join(parts)


def _number(value: float) -> str:
    return f"{value:g}"


def _facts(summary: ClassSummary) -> str:
    shares = summary.shares()
    facts = [(_("submissions"), str(len(summary.rows)))]
    if shares:
        facts.append((_("median"), f"{median(shares):.0%}"))
    facts += [(status, str(count)) for status, count in summary.statuses.items()]
    items = "".join(
        f'<div><dt>{html.escape(name)}</dt><dd class="{html.escape(name)}">{value}</dd></div>'
        for name, value in facts
    )
    return f'<dl class="facts">{items}</dl>'


def _contents(summary: ClassSummary) -> str:
    """Ways to the tables: that of a large class is long."""
    found = [("submissions", _("Submissions"))]
    if summary.frequent:
        found.append(("mistakes", _("Most frequent mistakes")))
    found.append(("checks", _("Checks")))
    links = "".join(f'<a href="#{name}">{html.escape(text)}</a>' for name, text in found)
    return f"<nav>{links}</nav>"


def _spread(summary: ClassSummary) -> str:
    """How the scores are spread, in tenths of what there was to be had."""
    shares = summary.shares()
    if not shares:
        return ""
    counts = [0] * _BINS
    for share in shares:
        counts[min(_BINS - 1, max(0, int(share * _BINS)))] += 1
    most = max(counts)
    bars = "".join(
        f'<div style="height:{85 * count / most:.1f}%"><span>{count or ""}</span></div>'
        for count in counts
    )
    spoken = "; ".join(
        _("{low} to {high}%: {count}").format(low=10 * i, high=10 * i + 10, count=count)
        for i, count in enumerate(counts)
        if count
    )
    label = html.escape(_("Submissions by share of the points. {spoken}").format(spoken=spoken))
    scale = "".join(f"<span>{value}</span>" for value in ("0%", "50%", "100%"))
    return (
        f"<h2>{_('Scores')}</h2>"
        f'<div class="spread" role="img" aria-label="{label}">{bars}</div>'
        f'<div class="scale" aria-hidden="true">{scale}</div>'
    )


def _table(name: str, heads: Sequence[tuple[str, str]], rows: Iterable[str]) -> str:
    head = "".join(
        f'<th scope="col" class="{kind}"><button type="button">{html.escape(text)}</button></th>'
        for text, kind in heads
    )
    return (
        f'<div class="scroll"><table id="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _submissions(rows: Sequence[Row]) -> str:
    def line(row: Row) -> str:
        notes = "<br>".join(map(_text, row.notes))
        mistakes = ", ".join(f"<code>{html.escape(name)}</code>" for name in row.mistakes)
        share = row.score / row.max_score if row.max_score else 0.0
        score = f"{_number(row.score)} / {_number(row.max_score)}"
        return (
            f'<tr><td class="name">{_name(row.submission)}</td>'
            f"<td>{html.escape(row.chapter)}</td>"
            f'<td class="{row.status}">{row.status}</td>'
            f'<td class="n" data-value="{share:.6f}">{score}</td>'
            f'<td class="text">{mistakes}</td><td class="text">{notes}</td></tr>'
        )

    heads = [
        (_("submission"), ""),
        (_("chapter"), ""),
        (_("status"), ""),
        (_("points"), "n"),
        (_("mistakes recognised"), ""),
        (_("notes"), ""),
    ]
    label = html.escape(_("show only rows with …"))
    field = (
        f'<input type="search" data-for="submissions" placeholder="{label}" aria-label="{label}">'
    )
    table = _table("submissions", heads, map(line, rows))
    return f"<h2>{_('Submissions')}</h2>{field}{table}"


def _mistakes(mistakes: Sequence[Mistake], total: int) -> str:
    if not mistakes:
        return ""

    def line(item: Mistake) -> str:
        where = ""
        if item.see:
            address = section_url(item.exercise.partition(".")[0], item.see)
            where = html.escape(item.see)
            if address:
                where = f'<a href="{html.escape(address)}">{where}</a>'
        return (
            f'<tr><td class="n" data-value="{item.count}">{item.count}</td>'
            f'<td class="name"><code>{_name(item.name)}</code><br>'
            f'<span class="tag">{html.escape(item.exercise)}</span></td>'
            f'<td class="text">{_text(" ".join(item.why.split()))}</td><td>{where}</td></tr>'
        )

    heads = [
        (_("made by"), "n"),
        (_("mistake"), ""),
        (_("which mistake it is"), ""),
        (_("section"), ""),
    ]
    note = ngettext(
        "Recognised by how the answer behaves, in {n} submission.",
        "Recognised by how the answers behave, in {n} submissions.",
        total,
    ).format(n=total)
    table = _table("mistakes", heads, map(line, mistakes))
    return f'<h2>{_("Most frequent mistakes")}</h2><p class="muted">{note}</p>{table}'


def _checks(checks: Sequence[CheckCount]) -> str:
    def line(item: CheckCount) -> str:
        rate = item.passed / item.answered if item.answered else 0.0
        shown = f"{rate:.0%}" if item.answered else "–"
        kind = _("hidden") if item.hidden else _("visible")
        bar = f'<span class="rate"><i style="width:{rate:.1%}"></i></span>'
        return (
            f"<tr><td>{html.escape(item.exercise)}</td>"
            f'<td class="name"><code>{_name(item.name)}</code></td>'
            f'<td class="text">{_text(item.asks)}</td><td>{kind}</td>'
            f'<td data-value="{rate:.6f}" style="white-space:nowrap">{bar}{shown}</td>'
            f'<td class="n" data-value="{item.answered}">{item.passed} / {item.answered}</td></tr>'
        )

    heads = [
        (_("exercise"), ""),
        (_("check"), ""),
        (_("what it asks"), ""),
        (_("kind"), ""),
        (_("passed"), ""),
        (_("of those who answered"), "n"),
    ]
    return f"<h2>{_('Checks')}</h2>" + _table("checks", heads, map(line, checks))
