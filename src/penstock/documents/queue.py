"""The document queue: write jobs in order, one at a time per (document, scope, branch).

It neither makes nor checks signatures, and leaves retrying and reshuffling to whoever executes the jobs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from penstock._json import encode_json
from penstock.errors import InvalidArgumentError, shown
from penstock.flow import Flow
from penstock.job import Job, JobStatus, Key
from penstock.policy import FailureCategory
from penstock.queue import Queue

__all__ = ["DOCUMENT_TYPE", "DocumentQueue"]

DOCUMENT_TYPE: Final = "document"
_PAGE: Final = 1000


class DocumentQueue:
    """Jobs in sub-queues by document, scope and branch, each in FIFO order. Thread-safe."""

    def __init__(self, queue: Queue, *, assignee_id: str = "documents") -> None:
        if not isinstance(queue, Queue):
            raise InvalidArgumentError(
                f"queue must be a Queue, got {shown(queue)}", field="queue", value=queue
            )
        self.queue = queue
        self._assignee_id = assignee_id
        self._attempts: dict[str, int] = {}

    # -- putting in ---------------------------------------------------------------------------------------------

    def enqueue(
        self, document_id: str, scope: str, branch: str, payload: object, *, id: str | None = None
    ) -> Job:
        """Append a job to its document's queue and return it.

        Args:
            document_id: with `scope` and `branch`, the sub-queue.
            scope: any text.
            branch: any text.
            payload: bytes as they are, anything else as JSON.
            id: the job's id; a random one if not given.

        Raises:
            QueueBlockedError: the queue is blocked.
        """
        data = bytes(payload) if isinstance(payload, bytes | bytearray | memoryview) else encode_json(payload)
        key = _key(document_id, scope, branch)
        job = (
            Job.new(DOCUMENT_TYPE, data, key=key)
            if id is None
            else Job(id=id, type=DOCUMENT_TYPE, payload=data, key=key)
        )
        return self.queue.get_job(self.queue.enqueue_job(job))

    def add_flow(self, flow: Flow) -> list[Job]:
        """Store a tree of jobs, children first; a parent can be taken when all its children have succeeded."""
        ids = self.queue.enqueue_flow(flow)
        found = self.queue.get_jobs(ids)
        return [found[job_id] for job_id in ids]

    # -- taking out ---------------------------------------------------------------------------------------------

    def dequeue(self, document_id: str, scope: str, branch: str) -> Job | None:
        """Take the next job of one sub-queue; None if there is none to take now."""
        return self._take(_key(document_id, scope, branch))

    def dequeue_next(self) -> Job | None:
        """Take the next job of any sub-queue; None if there is none to take now."""
        return self._take(None)

    def complete(self, job_id: str, result: object = None) -> None:
        """Report success.

        Raises:
            StaleAttemptError: this object took the job, but it was given to somebody else since.
        """
        data = result if result is None or isinstance(result, bytes) else encode_json(result, "result")
        with self._reporting(job_id) as attempt:
            self.queue.complete_job(job_id, data, attempt=attempt)

    def fail(self, job_id: str, reason: str) -> None:
        """Report failure for good: FAILED, and so the jobs that wait for it."""
        with self._reporting(job_id) as attempt:
            self.queue.fail_job(job_id, reason, category=FailureCategory.PERMANENT, attempt=attempt)

    def retry(self, job_id: str, reason: str) -> None:
        """Put a job back at the head of its sub-queue."""
        with self._reporting(job_id) as attempt:
            self.queue.fail_job(job_id, reason, attempt=attempt)

    # -- looking and clearing -----------------------------------------------------------------------------------

    def size(self, document_id: str, scope: str, branch: str) -> int:
        """Return how many jobs of a sub-queue wait, parents included, the running one not."""
        return len(self._waiting(_key(document_id, scope, branch)))

    def total_size(self) -> int:
        """Return how many jobs of all sub-queues wait."""
        return len(self._waiting())

    def remove(self, job_id: str) -> bool:
        """Cancel a waiting job; False if it is not waiting or does not exist."""
        cancelled, _ = self.queue.cancel_jobs(job_ids=[job_id], waiting_only=True)
        return bool(cancelled)

    def clear(self, document_id: str, scope: str, branch: str) -> None:
        """Cancel all waiting jobs of a sub-queue."""
        self._cancel(self._waiting(_key(document_id, scope, branch)))

    def clear_all(self) -> None:
        """Cancel all waiting jobs."""
        self._cancel(self._waiting())

    # -- blocking -----------------------------------------------------------------------------------------------

    def block(self, on_drained: Callable[[], object] | None = None) -> None:
        """Accept no new jobs; see `Queue.block`."""
        self.queue.block(on_drained)

    def unblock(self) -> None:
        """Accept new jobs again."""
        self.queue.unblock()

    def is_drained(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return self.queue.is_drained()

    # -- shared -------------------------------------------------------------------------------------------------

    def _take(self, key: Key | None) -> Job | None:
        types = [DOCUMENT_TYPE] if key is None else None
        jobs = self.queue.claim_jobs(self._assignee_id, types=types, key=key)
        for job in jobs:
            self._attempts[job.id] = job.attempt
        return jobs[0] if jobs else None

    @contextlib.contextmanager
    def _reporting(self, job_id: str) -> Iterator[int | None]:
        """Fence a report by the attempt that was taken here, if it was, until one is accepted."""
        yield self._attempts.get(job_id)
        self._attempts.pop(job_id, None)

    def _waiting(self, key: Key | None = None) -> list[str]:
        """Return the ids of what waits: in one sub-queue, or of all document jobs."""
        found: dict[str, None] = {}
        for status in (JobStatus.INITIAL_PENDING, JobStatus.FAILED_RETRY, JobStatus.UNKNOWN_RETRY):
            after: str | None = None
            while page := self.queue.list_jobs(
                status=status, type=DOCUMENT_TYPE if key is None else None, after=after, limit=_PAGE
            ):
                found |= {job.id: None for job in page if key is None or job.key == key}
                after = page[-1].id
                if len(page) < _PAGE:
                    break
        return list(found)

    def _cancel(self, ids: list[str]) -> None:
        for start in range(0, len(ids), _PAGE):
            self.queue.cancel_jobs(job_ids=ids[start : start + _PAGE], waiting_only=True)


def _key(document_id: str, scope: str, branch: str) -> Key:
    return Key(document_id, scope, branch)
