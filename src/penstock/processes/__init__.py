"""The process queue: jobs that are objects, each run in a process of its own, with commands, progress and a registry."""

from penstock.isolation import Limits
from penstock.processes import ipc as ipc  # so that penstock.processes.ipc needs no second import
from penstock.processes.backend_registry import BackendRegistry
from penstock.processes.errors import (
    InvalidJobStateError,
    JobAlreadyExistsError,
    JobNotFoundError,
    ProcessControlError,
)
from penstock.processes.jobs import QueueJobBase, SimpleJob
from penstock.processes.queue import JobQueue, Metrics
from penstock.processes.registry import JsonlRegistry, Registry
from penstock.processes.types import JobCommand, JobId, JobRecord, JobResult, JobStatus

__all__ = [
    "BackendRegistry",
    "InvalidJobStateError",
    "JobAlreadyExistsError",
    "JobCommand",
    "JobId",
    "JobNotFoundError",
    "JobQueue",
    "JobRecord",
    "JobResult",
    "JobStatus",
    "JsonlRegistry",
    "Limits",
    "Metrics",
    "ProcessControlError",
    "QueueJobBase",
    "Registry",
    "SimpleJob",
    "ipc",
]
