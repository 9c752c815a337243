"""A plugin for nbval: compare what a committed worked notebook holds, which is text.

``python -m pytest -p tests.notebooks.text_only --nbval solutions/notebooks``
"""

from __future__ import annotations

import pytest
from nbval.plugin import IPyNbFile

DROPPED = ("text/html", "application/javascript")
"""Forms of an output that `compose --execute` leaves out, beside the pictures."""


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path, parent):  # type: ignore[no-untyped-def]
    """Tell nbval's collectors what not to compare."""
    found = yield
    for item in notebooks_of(found):
        item.skip_compare = (*item.skip_compare, *DROPPED)
    return found


def notebooks_of(found):  # type: ignore[no-untyped-def]
    """nbval's collectors, of all that were found for a file."""
    return [item for item in found if isinstance(item, IPyNbFile)]
