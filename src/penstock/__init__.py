"""Penstock: a durable job queue on SQLite or PostgreSQL, with a journal of every change."""

from importlib.metadata import PackageNotFoundError, version

from penstock import aio as aio  # so that penstock.aio.connect() needs no second import
from penstock.app import App
from penstock.backends.base import Backend
from penstock.connection import connect, open_backend
from penstock.context import JobContext
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
from penstock.flow import Flow, chain, fan_in, fan_out
from penstock.handle import JobHandle
from penstock.job import Job, JobState, JobStats, JobStatus, Key, Priority
from penstock.policy import FailureCategory, PermanentError, RetryPolicy, TemporaryError, Timeouts
from penstock.queue import Queue
from penstock.scope import CancelScope, cancel_scope
from penstock.stream import JobStream
from penstock.worker import Worker

try:
    __version__ = version("penstock")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

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
    "TemporaryError",
    "Timeouts",
    "Worker",
    "cancel_scope",
    "chain",
    "connect",
    "fan_in",
    "fan_out",
    "open_backend",
]
