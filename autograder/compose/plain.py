"""Turns the page's MyST into the Markdown that every notebook shows.

The page has admonitions, dropdowns, labels and references; JupyterLab and Colab know none of them
and would show their source. So the notebooks get the nearest thing in plain Markdown, and the page
is built from what was written.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence

from autograder.i18n import _

_FENCE = re.compile(r"^(?P<indent> {0,3})(?P<fence>`{3,}|~{3,}|:{3,})\s*(?P<info>.*?)\s*$")
_DIRECTIVE = re.compile(r"^\{(?P<name>[\w:.-]+)\}\s*(?P<argument>.*)$")
_OPTION = re.compile(r"^:[\w-]+:")
_LABEL = re.compile(r"^\([^()\s]+\)=\s*$")
_COMMENT = re.compile(r"^%(\s|$)")
_ATTRIBUTES = re.compile(r"^\{[.#][^}]*\}\s*$")
_MATH_LABEL = re.compile(r"^(?P<end>.*\$\$)\s*\([\w:.-]+\)\s*$")
_ROLE = re.compile(r"\{(?P<name>[a-zA-Z][\w:-]*)\}`(?P<text>[^`]+)`")
_TARGET = re.compile(r"^(?P<text>.*\S)\s*<(?P<target>[^<>]+)>$", re.DOTALL)

# Kinds of admonition that have no title of their own.
_NOTES = {
    "attention": _("Attention"),
    "caution": _("Caution"),
    "danger": _("Danger"),
    "error": _("Error"),
    "hint": _("Hint"),
    "important": _("Important"),
    "note": _("Note"),
    "seealso": _("See also"),
    "tip": _("Tip"),
    "warning": _("Warning"),
}
_TITLED = {"admonition", "sidebar", "margin", "topic", "card"}
_CODE = {"code", "code-block", "sourcecode"}
# Their argument is a class or a layout.
_BOXES = {"container", "div", "grid", "grid-item", "rst-class"}
_DROPPED = {"bibliography", "contents", "toctree", "tableofcontents"}


def plain(source: str, titles: Mapping[str, str] | None = None) -> str:
    """Markdown without MyST.

    Args:
        source: a prose cell of the page.
        titles: the heading behind each label, for references that give no text.
    """
    return "\n".join(_tidy(_blocks(source.split("\n"), titles or {}))).strip("\n")


def _blocks(lines: Sequence[str], titles: Mapping[str, str]) -> Iterator[str]:
    at = 0
    text: list[str] = []  # lines of running text: a reference may be broken over two of them
    while at < len(lines):
        line = lines[at]
        at += 1
        match = _FENCE.match(line)
        special = match or _LABEL.match(line) or _COMMENT.match(line) or _ATTRIBUTES.match(line)
        if not special:
            numbered = _MATH_LABEL.match(line)
            text.append(numbered["end"] if numbered else line)
            continue
        yield from _running(text, titles)
        text.clear()
        if match:
            end = _end(lines, at, match["fence"])
            body, at = list(lines[at:end]), end + 1
            directive = _DIRECTIVE.match(match["info"])
            if directive is None:
                yield from (line, *body, match["indent"] + match["fence"])
            else:
                yield ""
                yield from _directive(directive["name"], directive["argument"], body, titles)
                yield ""
    yield from _running(text, titles)


def _running(text: Sequence[str], titles: Mapping[str, str]) -> list[str]:
    return _inline("\n".join(text), titles).split("\n") if text else []


def _end(lines: Sequence[str], at: int, fence: str) -> int:
    while at < len(lines):
        match = _FENCE.match(lines[at])
        if match and match["fence"].startswith(fence) and not match["info"]:
            break
        at += 1
    return at


def _directive(
    name: str, argument: str, body: list[str], titles: Mapping[str, str]
) -> Iterator[str]:
    body = _without_options(body)
    if name in _DROPPED:
        return
    if name == "math":
        yield from ("$$", *([argument] if argument else []), *body, "$$")
    elif name in _CODE:
        yield from (f"```{argument}", *body, "```")
    elif name == "dropdown":
        yield f"<details><summary>{_summary(_inline(argument, titles))}</summary>"
        yield ""
        yield from _tidy(_blocks(body, titles))
        yield ""
        yield "</details>"
    elif name in ("figure", "image"):
        yield f"![{' '.join(body).strip()}]({argument})"
    elif name in _NOTES or name in _TITLED:
        # A note's argument is the beginning of its text, an admonition's is its title.
        title = _NOTES.get(name, argument)
        inner = [argument, *body] if name in _NOTES and argument else body
        content = [f"**{_inline(title, titles)}**", ""] if title else []
        for line in _tidy([*content, *_blocks(inner, titles)]):
            yield f"> {line}".rstrip()
    else:
        if argument and name not in _BOXES:
            yield _inline(argument, titles)
            yield ""
        yield from _blocks(body, titles)


def _without_options(body: list[str]) -> list[str]:
    if body and body[0].strip() == "---":
        end = next((i for i in range(1, len(body)) if body[i].strip() == "---"), 0)
        return body[end + 1 :]
    while body and _OPTION.match(body[0]):
        body = body[1:]
    return body


def _inline(line: str, titles: Mapping[str, str]) -> str:
    def role(match: re.Match[str]) -> str:
        name, text = match["name"], match["text"]
        if name == "math":
            return f"${text}$"
        target = _TARGET.match(text)
        if target:
            return target["text"]
        if name in ("ref", "numref", "doc", "eq"):
            return _("“{title}”").format(title=titles.get(text, text.replace("-", " ")))
        return text if name in ("sub", "sup", "abbr", "term") else f"`{text}`"

    return _ROLE.sub(role, line)


def _summary(text: str) -> str:
    """A line of Markdown inside HTML, where only code needs a translation."""
    parts = html.escape(text, quote=False).split("`")
    if len(parts) % 2 == 0:
        return html.escape(text, quote=False)
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def _tidy(lines: Iterator[str] | Sequence[str]) -> list[str]:
    """No two blank lines in a row, outside code, and none at the ends."""
    kept: list[str] = []
    fence = ""
    for line in lines:
        match = _FENCE.match(line)
        if match and not fence:
            fence = match["fence"]
        elif match and match["fence"].startswith(fence) and not match["info"]:
            fence = ""
        if not line.strip() and not fence and (not kept or not kept[-1].strip()):
            continue
        kept.append(line)
    while kept and not kept[-1].strip():
        kept.pop()
    return kept
