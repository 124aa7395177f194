"""A stream of jobs pushed to one consumer, up to its capacity.

    with queue.stream_jobs("worker-1", tags=["images"], max_assigned_jobs=10) as stream:
        for batch in stream:
            for job in batch:
                ...
                queue.complete_job(job.id, attempt=job.attempt)

A stream owns no thread: one dispatcher per queue claims for all of them (`penstock._dispatcher`). What is claimed is held
here until the consumer takes it; what it has not taken when the stream ends goes back to the store.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock._lazy import asyncio
from penstock.backends import _arguments as arguments
from penstock.errors import QueueClosedError
from penstock.job import Job
from penstock.scope import current_scope

if TYPE_CHECKING:
    from penstock._dispatcher import Dispatcher

__all__ = ["JobStream", "check_stream"]


class JobStream:
    """The jobs of one consumer. Iterate it, with `for` or `async for`; each step gives a list of jobs.

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
        "filter",
        "held",
        "late",
        "lost",
        "max_assigned_jobs",
        "reserved",
        "tags",
        "types",
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
        #: What streams that are served alike have in common.
        self.filter = (frozenset(tags), None if types is None else frozenset(types))
        self.max_assigned_jobs = max_assigned_jobs
        #: Attempts of the jobs that occupy the stream, by id.
        self.held: dict[str, int] = {}
        #: Jobs whose cancellation was acknowledged as "not executing": their slots stay taken (see `free`).
        self.lost: dict[str, int] = {}
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
        """How many more jobs the stream can take now.

        A slot is taken from the claim until the job is reported, and stays taken ("lost") after
        `acknowledge_cancellation(job, was_executing=False)`, until `mark_worker_unresponsive`, `reset_running_jobs` or
        the stream's end.
        """
        return self.max_assigned_jobs - len(self.held) - len(self.lost) - self.reserved

    def is_foreign(self) -> bool:
        """Whether this is the child of a fork, and the stream its parent's."""
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
        """End the stream, from any thread, once or often. Jobs not taken are back in the store when this returns.

        Jobs that the consumer has taken stay with it: it may still report them.
        """
        self._dispatcher.end(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def resize(self, capacity: int) -> None:
        """Change how many jobs may be with the consumer at a time; 0 is none. What it has beyond that stays with it."""
        self._dispatcher.resize(self, capacity)

    # -- for the dispatcher, with its lock held -----------------------------------------------------------------

    def push(self, jobs: Sequence[Job]) -> None:
        """Count jobs as held and hand them to the consumer."""
        for job in jobs:
            self.held[job.id] = job.attempt
        self._buffer += jobs
        self.wake()

    def shut(self, error: BaseException | None) -> list[Job]:
        """Let nothing more in or out; return what the consumer has not taken."""
        self._is_open = False
        self._error = error
        untaken, self._buffer = self._buffer, []
        for job in untaken:
            self.held.pop(job.id, None)
        self.wake()
        return untaken

    def wake(self) -> None:
        """Let whoever waits look again."""
        self._changed.notify_all()
        awaiting, self._awaiting = self._awaiting, []
        for loop, waiter in awaiting:
            with contextlib.suppress(RuntimeError):  # its loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_resolve, waiter)

    def _wake(self) -> None:
        with self._changed:
            self.wake()


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


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
