"""Penstock: a durable job queue on SQLite or PostgreSQL, with a journal of every change."""

from typing import TYPE_CHECKING, Any

from penstock.app import App
from penstock.app.context import JobContext
from penstock.app.gathering import as_completed, gather
from penstock.app.handle import JobHandle
from penstock.backends import Backend
from penstock.backends.drivers import open_backend
from penstock.errors import (
    BackendError,
    DependencyError,
    InvalidArgumentError,
    InvalidTransitionError,
    JobExistsError,
    JobFailedError,
    JobNotFoundError,
    OperationCancelledError,
    PayloadTooLargeError,
    PenstockError,
    ProcessControlError,
    QueueBlockedError,
    QueueClosedError,
    QueueFullError,
    ReportErrors,
    StaleAttemptError,
)
from penstock.events import Event, EventBus, EventKind
from penstock.job import Job, JobState, JobStats, JobStatus, Key, Priority
from penstock.policy import (
    FailureCategory,
    PermanentError,
    RetryPolicy,
    TemporaryError,
    Timeouts,
    register_backoff,
)
from penstock.queue import Queue, Submitter, connect
from penstock.queue.flow import Flow, chain, fan_in, fan_out
from penstock.queue.stream import JobStream
from penstock.scope import CancelScope, cancel_scope
from penstock.worker import Worker

if TYPE_CHECKING:
    from penstock import aio as aio

    __version__: str


def __getattr__(name: str) -> Any:
    """Import rarely used names on first access: `penstock.aio`, and the version, which is read from a file."""
    import importlib  # noqa: PLC0415 - the same

    if name == "aio":
        return importlib.import_module("penstock.aio")
    if name == "__version__":
        metadata = importlib.import_module("importlib.metadata")
        try:
            return metadata.version("penstock")
        except metadata.PackageNotFoundError:  # run from a source tree that was never installed
            return "0+unknown"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "App",
    "Backend",
    "BackendError",
    "CancelScope",
    "DependencyError",
    "Event",
    "EventBus",
    "EventKind",
    "FailureCategory",
    "Flow",
    "InvalidArgumentError",
    "InvalidTransitionError",
    "Job",
    "JobContext",
    "JobExistsError",
    "JobFailedError",
    "JobHandle",
    "JobNotFoundError",
    "JobState",
    "JobStats",
    "JobStatus",
    "JobStream",
    "Key",
    "OperationCancelledError",
    "PayloadTooLargeError",
    "PenstockError",
    "PermanentError",
    "Priority",
    "ProcessControlError",
    "Queue",
    "QueueBlockedError",
    "QueueClosedError",
    "QueueFullError",
    "ReportErrors",
    "RetryPolicy",
    "StaleAttemptError",
    "Submitter",
    "TemporaryError",
    "Timeouts",
    "Worker",
    "as_completed",
    "cancel_scope",
    "chain",
    "connect",
    "fan_in",
    "fan_out",
    "gather",
    "open_backend",
    "register_backoff",
]
