"""A stream of jobs pushed to one consumer, up to its capacity.

    with queue.stream_jobs("worker-1", tags=["images"], max_assigned_jobs=10) as stream:
        for batch in stream:
            for job in batch:
                ...
                queue.complete_job(job.id, attempt=job.attempt)

A stream owns no thread: one dispatcher per queue claims for all of them (`penstock.queue._dispatcher`). What is claimed is held
here until the consumer takes it; what it has not taken when the stream ends is released.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Self

from penstock._lazy import asyncio
from penstock.backends import ClaimRequest
from penstock.backends.engine import arguments
from penstock.errors import QueueClosedError
from penstock.job import Job, Key
from penstock.scope import current_scope

if TYPE_CHECKING:
    from penstock.queue._dispatcher import Dispatcher

__all__ = ["JobStream", "check_claim", "check_stream"]


class JobStream:
    """The jobs of one consumer. Iterate it with `for` or `async for`; each step returns a list of jobs.

    Made by `Queue.stream_jobs`. Iteration ends when the stream or its queue is closed, and raises the error if the
    store failed for good.
    """

    __slots__ = (
        "_awaiting",
        "_buffer",
        "_changed",
        "_dispatcher",
        "_ended",
        "_error",
        "_is_open",
        "_pid",
        "assignee_id",
        "beyond",
        "filter",
        "held",
        "is_new",
        "is_withheld",
        "late",
        "lost",
        "max_assigned_jobs",
        "reserved",
        "tags",
        "types",
        "waiting",
    )

    def __init__(
        self,
        dispatcher: Dispatcher,
        assignee_id: str,
        tags: tuple[str, ...],
        max_assigned_jobs: int,
        types: tuple[str, ...] | None,
    ) -> None:
        self.assignee_id = assignee_id
        self.tags = tags
        self.types = types
        #: The filter that the streams of one group share.
        self.filter = (frozenset(tags), None if types is None else frozenset(types))
        self.max_assigned_jobs = max_assigned_jobs
        #: Attempts of the jobs that occupy the stream, by id.
        self.held: dict[str, int] = {}
        #: Jobs whose cancellation was acknowledged as "not executing": their slots stay taken (see `free`).
        self.lost: dict[str, int] = {}
        #: Attempts of jobs that the consumer has claimed beyond its capacity, by id; see `claim_beyond`.
        self.beyond: dict[str, int] = {}
        #: How many of its jobs the consumer says wait for other jobs.
        self.waiting = 0
        #: Whether nothing is delivered because the assignee was declared unresponsive: a report on one of the jobs taken
        #: from it, `Queue.heartbeat` or a new stream end this.
        self.is_withheld = False
        #: Whether no claim was made for the stream yet: the first one is a sign of life of its assignee.
        self.is_new = True
        #: Slots that a commit under way may fill.
        self.reserved = 0
        #: Jobs that came with such a commit when the stream was closed already.
        self.late: list[Job] = []
        self._dispatcher = dispatcher
        self._changed = threading.Condition(dispatcher.lock)
        self._buffer: list[Job] = []
        self._awaiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._is_open = True
        self._pid = os.getpid()
        self._error: BaseException | None = None
        self._ended = False

    def __repr__(self) -> str:
        state = "open" if self._is_open else "closed"
        return f"<JobStream {self.assignee_id!r} {state} {self.free} of {self.max_assigned_jobs} free>"

    @property
    def free(self) -> int:
        """How many more jobs the stream can hold now.

        A slot is occupied from the claim until the report, and stays occupied ("lost") after
        `acknowledge_cancellation(job, was_executing=False)`, until `mark_worker_unresponsive`, `reset_running_jobs` or
        the stream's end.
        """
        return self.max_assigned_jobs - len(self.held) - len(self.lost) - self.reserved

    def is_foreign(self) -> bool:
        """Whether this process is the child of a fork and the stream belongs to its parent."""
        return self._pid != os.getpid()

    def _check_own(self) -> None:
        if self.is_foreign():
            raise QueueClosedError("the stream belongs to the process that opened it; open one in the child")

    @property
    def is_open(self) -> bool:
        """Whether jobs may still come."""
        return self._is_open

    # -- consuming ----------------------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[Job]:
        self._check_own()
        scope = current_scope()
        unsubscribe = None if scope is None else scope.subscribe(self._wake)
        try:
            with self._changed:
                while True:
                    if scope is not None:
                        scope.check()
                    batch = self._take()
                    if batch is not None:
                        return batch
                    self._changed.wait(None if scope is None else scope.remaining())
        finally:
            if unsubscribe is not None:
                unsubscribe()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Job]:
        self._check_own()
        loop = asyncio.get_running_loop()
        scope = current_scope()
        unsubscribe = None if scope is None else scope.subscribe(self._wake)
        try:
            while True:
                waiter: asyncio.Future[None]
                with self._changed:
                    if scope is not None:
                        scope.check()
                    try:
                        batch = self._take()
                    except StopIteration:
                        raise StopAsyncIteration from None
                    if batch is not None:
                        return batch
                    waiter = loop.create_future()
                    entry = (loop, waiter)
                    self._awaiting.append(entry)
                try:
                    await asyncio.wait([waiter], timeout=None if scope is None else scope.remaining())
                finally:
                    with self._changed:
                        if entry in self._awaiting:
                            self._awaiting.remove(entry)
        finally:
            if unsubscribe is not None:
                unsubscribe()

    def _take(self) -> list[Job] | None:
        """Return all that is buffered, None if nothing is yet; raise at the end. Called with the lock held."""
        if self._buffer and self._is_open:
            batch, self._buffer = self._buffer, []
            return batch
        if self._is_open:
            return None
        if self._error is not None and not self._ended:
            self._ended = True
            raise self._error
        raise StopIteration

    # -- ending -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the stream, from any thread. Jobs not yet returned are released when this returns. Idempotent.

        Jobs that the consumer has taken stay with it: it may still report them.
        """
        self._dispatcher.end(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def resize(self, capacity: int) -> None:
        """Change how many jobs the consumer may hold at a time; 0 is none. It keeps those that it has beyond that.

        Raises:
            InvalidArgumentError: the capacity is no whole number of at least 0.
        """
        checked = (
            0 if capacity == 0 and type(capacity) is int else arguments.limit(capacity, field="capacity")
        )
        self._dispatcher.resize(self, checked)

    def claim_beyond(self, *, job_ids: Collection[str] | None = None, key: Key | None = None) -> Job | None:
        """Claim one of these jobs, or the first of a key, whatever the capacity. It is returned, not delivered."""
        return self._dispatcher.claim_beyond(self, job_ids, key)

    def set_waiting(self, number: int) -> None:
        """Publish how many of the consumer's jobs wait for other jobs."""
        self._dispatcher.set_waiting(self, number)

    def finished(self, job: Job) -> None:
        """Stop the clock of a job's execution limit: its outcome is known and about to be reported."""
        self._dispatcher.owner.limits.release(job.id, job.attempt)

    # -- for the dispatcher, with its lock held -----------------------------------------------------------------

    def push(self, jobs: Sequence[Job]) -> None:
        """Count jobs as held and deliver them to the consumer."""
        for job in jobs:
            self.held[job.id] = job.attempt
        self._buffer += jobs
        self.wake()

    def shut(self, error: BaseException | None) -> list[Job]:
        """Refuse further deliveries; return the jobs that the consumer has not received."""
        self._is_open = False
        self._error = error
        untaken, self._buffer = self._buffer, []
        for job in untaken:
            self.held.pop(job.id, None)
        self.wake()
        return untaken

    def wake(self) -> None:
        """Wake the consumer."""
        self._changed.notify_all()
        awaiting, self._awaiting = self._awaiting, []
        for loop, waiter in awaiting:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                loop.call_soon_threadsafe(_resolve, waiter)

    def _wake(self) -> None:
        with self._changed:
            self.wake()


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def check_claim(
    assignee_id: str,
    tags: Sequence[str],
    limit: int,
    types: Sequence[str] | None,
    key: Key | str | None,
    job_ids: Sequence[str] | None,
) -> ClaimRequest:
    """Return the checked arguments of `Queue.claim_jobs`, without asking the store anything."""
    return ClaimRequest(
        assignee_id=arguments.assignee(assignee_id),
        tags=arguments.tags(tags),
        limit=arguments.limit(limit),
        types=arguments.types(types),
        key=arguments.key_filter(key),
        job_ids=None if job_ids is None else arguments.job_ids(job_ids),
    )


def check_stream(
    assignee_id: str, tags: Sequence[str], max_assigned_jobs: int, types: Sequence[str] | None
) -> tuple[str, tuple[str, ...], int, tuple[str, ...] | None]:
    """Return the checked arguments of `Queue.stream_jobs`, without asking the store anything."""
    return (
        arguments.assignee(assignee_id),
        arguments.tags(tags),
        arguments.limit(max_assigned_jobs, field="max_assigned_jobs"),
        arguments.types(types),
    )
