"""Tools for tests: an app without a worker, a clock that stands still, a model, the journal's invariants and the conformance suite.

`BackendConformance`, `QueueConformance` and what else is in `penstock.testing.conformance` need pytest, as does
`penstock.testing.pytest_plugin`; nothing else here does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.testing.app import Drained, drain, in_memory, inline
from penstock.testing.assertions import all_enqueued, assert_enqueued, assert_not_enqueued
from penstock.testing.clock import ManualClock
from penstock.testing.journal import (
    FoldedJob,
    Violation,
    check_fold,
    check_invariants,
    check_store,
    fold_journal,
)
from penstock.testing.model import ModelBackend

if TYPE_CHECKING:
    from penstock.testing.conformance import BackendConformance, QueueConformance

__all__ = [
    "BackendConformance",
    "Drained",
    "FoldedJob",
    "ManualClock",
    "ModelBackend",
    "QueueConformance",
    "Violation",
    "all_enqueued",
    "assert_enqueued",
    "assert_not_enqueued",
    "check_fold",
    "check_invariants",
    "check_store",
    "drain",
    "fold_journal",
    "in_memory",
    "inline",
]


def __getattr__(name: str) -> Any:
    if name in ("BackendConformance", "QueueConformance"):
        from penstock.testing import conformance  # noqa: PLC0415  # needs pytest

        return getattr(conformance, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
