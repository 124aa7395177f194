"""The calls that tasks, handles and contexts make to a queue: few enough to be sent over a pipe.

In a worker and in a user's program that is the app's own queue. In the process of a job it is the pipe to its worker
(`penstock.worker._child`): no store is opened there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol, Self

import msgspec

from penstock._lazy import asyncio
from penstock.app._explaining import why_unfinished
from penstock.app._waiting import Waiting
from penstock.errors import InvalidArgumentError
from penstock.job import Job
from penstock.queue import Queue, Submitter
from penstock.queue.connect import warn_of_new_store

__all__ = [
    "Client",
    "EndedJobs",
    "JobProcess",
    "QueueClient",
    "SubmitClient",
    "SubmittingClient",
    "delayed",
    "set_child_client",
]


logger = logging.getLogger("penstock")


def delayed(job: Job, run_at: datetime) -> Job:
    """Return a job whose `run_at` is the store's time plus the delay."""
    if job.run_at is not None:
        raise InvalidArgumentError("give run_at or delay, not both", field="delay")
    return msgspec.structs.replace(job, run_at=run_at)


class SubmittingClient(Protocol):
    """Submits jobs."""

    def submit(self, jobs: Sequence[Job], delay: timedelta | None = None) -> list[str]:
        """Store jobs, all or none; return the id of each, which is another job's for a duplicate.

        Args:
            jobs: what to store.
            delay: how long after the store's now they may run.
        """
        ...


class EndedJobs(Protocol):
    """Several jobs that are waited for; a context manager that ends the wait."""

    #: Whether `take` waits a moment by itself, because nothing wakes its caller.
    is_polled: bool

    def take(self) -> list[str]:
        """Return the jobs that have ended, or turned out not to exist, since the last call."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Client(SubmittingClient, Protocol):
    """Submits jobs, waits for them and reads them."""

    def get_job(self, job_id: str) -> Job: ...

    def get_output(self, job_id: str) -> str: ...

    def wait(self, job_id: str, timeout: float | None) -> Job:
        """Return a job once it has ended; raise TimeoutError if that takes longer."""
        ...

    async def wait_async(self, job_id: str) -> Job: ...

    def cancel(self, job_id: str) -> bool:
        """Cancel a job; return False if it has ended already."""
        ...

    def watch(self, job_ids: Sequence[str], wake: Callable[[], None]) -> EndedJobs:
        """Begin to wait for several jobs; `wake` is called when one has ended."""
        ...

    def get_jobs(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """Return those of some jobs that exist, by id."""
        ...

    def explain(self, job_id: str) -> str:
        """Return why a job has not ended, to be added to a message; "" if that is not known."""
        ...


class SubmitClient:
    """Submits through a queue: all that a queue inside the caller's own transaction supports."""

    queue: Submitter
    #: Whether this process made the store and has not said so yet; a worker, which claims from it, clears it.
    is_new_store: bool = False

    def __init__(self, queue: Submitter) -> None:
        self.queue = queue

    def submit(self, jobs: Sequence[Job], delay: timedelta | None = None) -> list[str]:
        if delay is not None:
            run_at = self.queue.backend.now() + delay
            jobs = [delayed(job, run_at) for job in jobs]
        ids = [self.queue.enqueue_job(jobs[0])] if len(jobs) == 1 else self.queue.enqueue_jobs(jobs)
        if self.is_new_store:
            self._note_new_store()
        return ids

    def _note_new_store(self) -> None:
        """Log once that the store was made by this process."""


class QueueClient(SubmitClient):
    """The client of a queue in this process."""

    queue: Queue

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue)
        self._waiting = Waiting(queue.backend)
        self.is_new_store = queue.backend.runtime.is_new

    def _note_new_store(self) -> None:
        self.is_new_store = False
        warn_of_new_store(self.queue.backend)

    def get_job(self, job_id: str) -> Job:
        return self.queue.get_job(job_id)

    def get_output(self, job_id: str) -> str:
        return self.queue.get_output(job_id)

    def wait(self, job_id: str, timeout: float | None, *, explains: bool = True) -> Job:
        """Return a job once it has ended; see `Client`.

        Args:
            job_id: the job.
            timeout: in seconds; None waits for ever.
            explains: say in the TimeoutError where the job is, what it waits for, and whether no living worker claims it.
        """
        try:
            self._waiting.wait(job_id, timeout)
        except TimeoutError as error:
            if not explains:
                raise
            raise TimeoutError(f"{error}{self.explain(job_id)}") from None
        return self.queue.get_job(job_id)

    async def wait_async(self, job_id: str) -> Job:
        await self._waiting.wait_async(job_id)
        return await asyncio.to_thread(self.queue.get_job, job_id)

    def cancel(self, job_id: str) -> bool:
        cancelled, _ = self.queue.cancel_jobs(job_ids=[job_id])
        return bool(cancelled)

    def watch(self, job_ids: Sequence[str], wake: Callable[[], None]) -> EndedJobs:
        return self._waiting.watch(job_ids, wake)

    def get_jobs(self, job_ids: Sequence[str]) -> dict[str, Job]:
        return self.queue.get_jobs(job_ids)

    def explain(self, job_id: str) -> str:
        return why_unfinished(self.queue.backend, job_id)

    def close(self) -> None:
        self._waiting.close()


class JobProcess:
    """The process of a job."""

    #: The pipe to the worker, which every app uses there; None in other processes.
    client: Client | None = None


def set_child_client(client: Client | None) -> None:
    """Make every app of this child process use the pipe to its worker."""
    JobProcess.client = client
