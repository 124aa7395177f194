"""What tasks, handles and contexts need of a queue: small enough to be spoken over a pipe.

In a worker and in a user's program that is the app's own queue. In the process of a job it is the pipe to its worker
(`penstock.worker._child`): no store is opened there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock._lazy import asyncio
from penstock._waiting import Waiting
from penstock.job import Job
from penstock.queue import Queue

if TYPE_CHECKING:
    from penstock.task import Submission

__all__ = ["Client", "JoinedClient", "QueueClient", "Submitter", "in_child", "set_child_client"]


class Submitter(Protocol):
    """Submits jobs."""

    def submit(self, submissions: Sequence[Submission]) -> list[str]:
        """Store jobs, all or none, and return their ids."""
        ...


class Client(Submitter, Protocol):
    """Submits jobs and asks what became of them."""

    def get_job(self, job_id: str) -> Job: ...

    def get_output(self, job_id: str) -> str: ...

    def wait(self, job_id: str, timeout: float | None) -> Job:
        """Return a job once it has ended; raise TimeoutError if that takes longer."""
        ...

    async def wait_async(self, job_id: str) -> Job: ...

    def cancel(self, job_id: str) -> bool:
        """Ask for a job's end; whether there was anything to end."""
        ...


class JoinedClient:
    """Submits to a queue that has joined a transaction; nothing else can be done there."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def submit(self, submissions: Sequence[Submission]) -> list[str]:
        jobs = [submission.to_job(self.queue) for submission in submissions]
        if len(jobs) == 1:
            return [self.queue.enqueue_job(jobs[0])]
        return self.queue.enqueue_jobs(jobs)


class QueueClient(JoinedClient):
    """Talks to a queue in this process."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue)
        self._waiting = Waiting(queue.backend)

    def get_job(self, job_id: str) -> Job:
        return self.queue.get_job(job_id)

    def get_output(self, job_id: str) -> str:
        return self.queue.get_output(job_id)

    def wait(self, job_id: str, timeout: float | None) -> Job:
        self._waiting.wait(job_id, timeout)
        return self.queue.get_job(job_id)

    async def wait_async(self, job_id: str) -> Job:
        await self._waiting.wait_async(job_id)
        return await asyncio.to_thread(self.queue.get_job, job_id)

    def cancel(self, job_id: str) -> bool:
        cancelled, _ = self.queue.cancel_jobs(job_ids=[job_id])
        return bool(cancelled)

    def close(self) -> None:
        self._waiting.close()


_child_client: Client | None = None


def set_child_client(client: Client | None) -> None:
    """From now on this process is a job's: every app in it talks to its worker."""
    global _child_client  # noqa: PLW0603  # one process, one job
    _child_client = client


def in_child() -> Client | None:
    """Return the pipe to the worker, in the process of a job."""
    return _child_client
