"""What tests of several files use, and the order in which they run: files that take long first, so
that the processes that share them out end together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# About longest first; each of the others takes seconds.
LONG = (
    "test_learner_notebooks",
    "test_engine_tiers",
    "test_site_book",
    "test_engine",
    "test_grading_run",
    "test_grading_batch",
    "test_samples",
    "test_gradebook_nbgrader_apps",
    "test_engine_attacks",
    "test_template",
    "test_gradebook",
    "test_compose_command",
    "test_learner_install",
    "test_gpu",
    "test_grading_cluster",
    "test_flash_kernels",
)
_PLACES = {name: place for place, name in enumerate(LONG)}


def _place(item: pytest.Item) -> int:
    return _PLACES.get(item.path.stem, len(LONG))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Within a file the order stays."""
    items.sort(key=_place)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of folders that nobody may look into."""
    names: set[str] = set()
    scan = os.scandir

    def refuses(path: str) -> object:
        if Path(path).name in names:
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuses)
    return names
