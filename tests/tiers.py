"""Which parameters of a test run in `make test`, and which only in `make test-deep`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest

#: Verbs of a store that stand for the others: one that adds, claims, ends, changes many, and does the upkeep.
VERBS = {"cancel_jobs", "complete_job", "dequeue_jobs", "enqueue_jobs", "maintain", "read_journal"}


def some(values: Iterable[Any], broad: Collection[Any] = VERBS) -> list[Any]:
    """Return parameters, of which all but some are deep."""
    values = list(values)
    assert any(value in broad for value in values), "none is left for `make test`"
    return [value if value in broad else pytest.param(value, marks=pytest.mark.deep) for value in values]
