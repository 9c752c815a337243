"""The order in which the tests run: files that take long first, so that the processes that share
them out end together."""

from __future__ import annotations

import pytest

# About longest first; each of the others takes seconds.
LONG = (
    "test_learner_notebooks",
    "test_gradebook",
    "test_engine_tiers",
    "test_site_book",
    "test_engine",
    "test_engine_attacks",
    "test_samples",
    "test_learner_command",
    "test_grading_batch",
    "test_template",
    "test_gradebook_nbgrader_apps",
    "test_learner_install",
    "test_compose_command",
    "test_grading_cluster",
    "test_gpu",
)
_PLACES = {name: place for place, name in enumerate(LONG)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Within a file the order stays."""
    items.sort(key=lambda item: _PLACES.get(item.path.stem, len(LONG)))
