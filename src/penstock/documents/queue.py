"""The document queue: write jobs in order, one at a time per (document, scope, branch).

It neither makes nor checks signatures, and leaves retrying and reshuffling to the caller that executes the jobs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

from penstock.backends.contract.backend import read_stored
from penstock.backends.engine import arguments
from penstock.errors import InvalidArgumentError, PenstockError, invalid, shown
from penstock.job import FINAL, Job, Key
from penstock.payloads.json import encode_json
from penstock.policy import FailureCategory
from penstock.queue import Queue
from penstock.queue.flow import Flow, flatten
from penstock.scope import shielded

__all__ = ["DOCUMENT_TYPE", "DocumentQueue"]

DOCUMENT_TYPE: Final = "document"
_PAGE: Final = 1000
_FEW: Final = 256  # attempts that are remembered without asking which of the jobs have ended


class DocumentQueue:
    """Jobs in sub-queues by document, scope and branch, each in FIFO order. Thread-safe."""

    def __init__(self, queue: Queue, *, assignee_id: str = "documents") -> None:
        if not isinstance(queue, Queue):
            raise invalid("queue", "a Queue", queue)
        self.queue = queue
        self._assignee_id = assignee_id
        self._attempts: dict[str, int] = {}
        self._most_attempts = _FEW
        self._lock = threading.Lock()

    # -- submission ---------------------------------------------------------------------------------------------

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
        return read_stored(self.queue.backend, [job], [self.queue.enqueue_job(job)])[0]

    def add_flow(self, flow: Flow) -> list[Job]:
        """Store a tree of jobs, children first; a parent can be claimed when all its children have succeeded.

        Raises:
            InvalidArgumentError: a job is not of the type "document", or has no key: no sub-queue would have it.
        """
        jobs = flatten(flow, max_depth=self.queue.backend.options.max_depth)
        for job in jobs:
            if job.type != DOCUMENT_TYPE or job.key is None:
                raise InvalidArgumentError(
                    f"jobs of a document queue have the type {DOCUMENT_TYPE!r} and a key,"
                    f" got type {shown(job.type)} and key {shown(job.key)} of job {shown(job.id)}",
                    field="flow",
                    value=job,
                )
        return read_stored(self.queue.backend, jobs, self.queue.enqueue_jobs(jobs))

    # -- claims and reports -------------------------------------------------------------------------------------

    def dequeue(self, document_id: str, scope: str, branch: str) -> Job | None:
        """Claim the next job of one sub-queue; None if there is none to claim now."""
        return self._take(_key(document_id, scope, branch))

    def dequeue_next(self) -> Job | None:
        """Claim the next job of any sub-queue; None if there is none to claim now."""
        return self._take(None)

    def complete(self, job_id: str, result: object = None) -> None:
        """Report success.

        Raises:
            StaleAttemptError: this object claimed the job, but another owner has claimed it since.
        """
        data = result if result is None or isinstance(result, bytes) else encode_json(result, "result")
        with self._reporting(job_id) as attempt:
            self.queue.complete_job(job_id, data, attempt=attempt)

    def fail(self, job_id: str, reason: str) -> None:
        """Report a permanent failure: the job ends FAILED, and so do its dependents."""
        with self._reporting(job_id) as attempt:
            self.queue.fail_job(job_id, reason, category=FailureCategory.PERMANENT, attempt=attempt)

    def retry(self, job_id: str, reason: str) -> None:
        """Put a job back at the head of its sub-queue."""
        with self._reporting(job_id) as attempt:
            self.queue.fail_job(job_id, reason, attempt=attempt)

    # -- looking and clearing -----------------------------------------------------------------------------------

    def size(self, document_id: str, scope: str, branch: str) -> int:
        """Return how many jobs of a sub-queue wait, parents included, the running one not."""
        return self.queue.backend.reading.count_keyed(_key(document_id, scope, branch))

    def total_size(self) -> int:
        """Return how many jobs of all sub-queues wait."""
        return self.queue.backend.reading.count_keyed(type=DOCUMENT_TYPE)

    def remove(self, job_id: str) -> bool:
        """Cancel a waiting job; False if it is not waiting or does not exist."""
        cancelled, _ = self.queue.cancel_jobs(job_ids=[job_id], waiting_only=True)
        return bool(cancelled)

    def clear(self, document_id: str, scope: str, branch: str) -> None:
        """Cancel all waiting jobs of a sub-queue."""
        self._clear(_key(document_id, scope, branch))

    def clear_all(self) -> None:
        """Cancel all waiting jobs."""
        self._clear(None)

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
        with self._lock:
            self._attempts |= {job.id: job.attempt for job in jobs}
            is_many = len(self._attempts) > self._most_attempts
        if is_many:
            self._forget_ended()
        return jobs[0] if jobs else None

    def _forget_ended(self) -> None:
        """Drop the attempts of jobs that ended without a report from here: lost, cancelled, deleted."""
        with self._lock:
            known = dict(self._attempts)
        try:
            with shielded():  # a job was claimed: its caller must receive it
                found = self.queue.get_jobs(known)
        except PenstockError:
            return  # the next claim tries again
        with self._lock:
            for job_id, attempt in known.items():
                is_over = job_id not in found or found[job_id].status in FINAL
                if is_over and self._attempts.get(job_id) == attempt:
                    del self._attempts[job_id]
            self._most_attempts = max(_FEW, 2 * len(self._attempts))

    @contextlib.contextmanager
    def _reporting(self, job_id: str) -> Iterator[int | None]:
        """Fence a report by the attempt that this object claimed, if it did, until one is accepted."""
        attempt = self._attempts.get(arguments.job_id(job_id))
        yield attempt
        with self._lock:
            if self._attempts.get(job_id) == attempt:
                self._attempts.pop(job_id, None)

    def _clear(self, key: Key | None) -> None:
        """Cancel the jobs that wait now; those enqueued meanwhile may stay."""
        backend = self.queue.backend
        _, upto = backend.reading.jobs_span()
        type_ = DOCUMENT_TYPE if key is None else None
        while ids := backend.reading.list_keyed(key, type=type_, upto=upto, limit=_PAGE):
            self.queue.cancel_jobs(job_ids=ids, waiting_only=True)


def _key(document_id: str, scope: str, branch: str) -> Key:
    return Key(document_id, scope, branch)
