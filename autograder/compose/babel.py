"""Collects, with Babel, what its own Python extractor does not see: prose, and what checks ask.

``pybabel extract -F babel.cfg -o messages.pot .`` reads it all. A prose cell is one message, and
its English text is what it is found by.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from babel.messages.extract import extract_python

from autograder.compose.authored import read_page
from autograder.guest.syntax import syntax_tree
from autograder.sources import SourceError

Message = tuple[int, Any, Any, Any]


def extract_prose(
    fileobj: IO[bytes],
    keywords: Mapping[str, Any],
    comment_tags: Collection[str],
    options: Any,
) -> Iterator[Message]:
    """The prose cells of an authored page; a page that is no notebook has none."""
    stem = Path(fileobj.name).stem
    # Its imports from earlier chapters are of no interest here.
    order = sorted({path.stem for path in Path(fileobj.name).parent.glob("*.md")} - {stem})
    try:
        page = read_page(stem, fileobj.read().decode("utf-8"), [*order, stem])
    except SourceError:
        return
    for cell in page.cells:
        if cell.kind == "markdown":
            yield cell.line, None, cell.source, [cell.heading]


def extract_checks(
    fileobj: IO[bytes],
    keywords: Mapping[str, Any],
    comment_tags: Collection[str],
    options: Any,
) -> Iterator[Message]:
    """Besides what Python's extractor finds: docstrings of checks, which a learner reads."""
    yield from extract_python(fileobj, keywords, comment_tags, options)
    fileobj.seek(0)
    for node in syntax_tree(fileobj.read()).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        called = [item.func for item in node.decorator_list if isinstance(item, ast.Call)]
        if any(isinstance(item, ast.Attribute) and item.attr == "check" for item in called):
            text = (ast.get_docstring(node, clean=False) or "").strip()
            if text:
                yield node.lineno, None, text, []
