"""Wait for many jobs with one subscription and one query for all of them, of any app and store."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Iterator
from typing import Any, Final, Literal, TypeVar, overload

from penstock._lazy import asyncio
from penstock.app.client import Client, EndedJobs
from penstock.app.handle import JobHandle
from penstock.app.lending import lending
from penstock.durations import Duration, duration
from penstock.errors import InvalidArgumentError, JobFailedError, JobNotFoundError, PenstockError, shown
from penstock.job import Job
from penstock.scope import CancelScope, checkpoint, current_scope

__all__ = ["as_completed", "as_completed_async", "gather", "gather_async"]

R = TypeVar("R")

#: How many jobs are read with one query, so that results of thousands need not be in memory at once.
JOBS_PER_READ: Final = 500


@overload
def gather(
    handles: Iterable[JobHandle[R]],
    timeout: Duration | None = None,
    *,
    return_exceptions: Literal[False] = False,
) -> list[R]: ...


@overload
def gather(
    handles: Iterable[JobHandle[R]], timeout: Duration | None = None, *, return_exceptions: bool
) -> list[R | PenstockError]: ...


def gather(
    handles: Iterable[JobHandle[Any]], timeout: Duration | None = None, *, return_exceptions: bool = False
) -> list[Any]:
    """Wait for many jobs and return their results, in the order of the handles.

        penstock.gather([resize.submit(image) for image in images], timeout="5m")

    One subscription serves all of them, thousands as well. The handles may belong to different apps. Works inside a job,
    too; `penstock.aio.gather` is the same for asyncio.

    Args:
        handles: of submitted jobs.
        timeout: for all of them together; None waits for ever.
        return_exceptions: return errors in the place of results instead of raising the first one.

    Raises:
        JobFailedError: a job ended without success: the first that is seen. The others go on.
        JobNotFoundError: a job was deleted.
        TimeoutError: not all of them have ended in time; it says how many. They go on.
    """
    gathering = _Gathering(handles, timeout)
    results = _Results(gathering, return_exceptions=return_exceptions)
    for ended in gathering.wait():
        results.add(ended)
    return results.in_order()


def as_completed(handles: Iterable[JobHandle[R]], timeout: Duration | None = None) -> Iterator[JobHandle[R]]:
    """Yield handles as their jobs end, however they end; `handle.result()` then returns or raises at once.

        for handle in penstock.as_completed(handles):
            print(handle.result())

    One subscription serves all of them. `penstock.aio.as_completed` is the same for asyncio.

    Args:
        handles: of submitted jobs.
        timeout: for all of them together; None waits for ever.

    Raises:
        TimeoutError: not all of them have ended in time; it says how many. They go on.
    """
    gathering = _Gathering(handles, timeout)
    return (handle for ended in gathering.wait() for handle in ended)


@overload
async def gather_async(
    handles: Iterable[JobHandle[R]],
    timeout: Duration | None = None,  # noqa: ASYNC109  # the same arguments as `gather`
    *,
    return_exceptions: Literal[False] = False,
) -> list[R]: ...


@overload
async def gather_async(
    handles: Iterable[JobHandle[R]],
    timeout: Duration | None = None,  # noqa: ASYNC109
    *,
    return_exceptions: bool,
) -> list[R | PenstockError]: ...


async def gather_async(
    handles: Iterable[JobHandle[Any]],
    timeout: Duration | None = None,  # noqa: ASYNC109
    *,
    return_exceptions: bool = False,
) -> list[Any]:
    """Wait for many jobs without blocking the loop; see `penstock.gather`."""
    gathering = _Gathering(handles, timeout)
    results = _Results(gathering, return_exceptions=return_exceptions)
    async with contextlib.aclosing(gathering.wait_async()) as batches:
        async for ended in batches:
            results.add(ended)
    return results.in_order()


def as_completed_async(
    handles: Iterable[JobHandle[R]], timeout: Duration | None = None
) -> AsyncIterator[JobHandle[R]]:
    """Yield handles as their jobs end, without blocking the loop; see `penstock.as_completed`."""
    gathering = _Gathering(handles, timeout)

    async def each() -> AsyncIterator[JobHandle[R]]:
        async with contextlib.aclosing(gathering.wait_async()) as batches:
            async for ended in batches:
                for handle in ended:
                    yield handle

    return each()


class _Gathering:
    """Handles that one call waits for.

    Args:
        handles: what the caller gave.
        timeout: for all of them.

    Raises:
        InvalidArgumentError: not an iterable of handles, or no duration.
    """

    def __init__(self, handles: Iterable[JobHandle[Any]], timeout: Duration | None) -> None:
        self.handles = _checked(handles)
        self._seconds = None if timeout is None else duration(timeout, "timeout").total_seconds()
        self._gives_up_at = None if self._seconds is None else time.monotonic() + self._seconds
        #: Those that have not ended, by client and id; several handles may be of one job.
        self._unfinished: dict[Client, dict[str, list[JobHandle[Any]]]] = {}

    def wait(self) -> Iterator[list[JobHandle[Any]]]:
        """Yield handles whose jobs have ended, each with its job remembered, until all have."""
        woken = threading.Event()
        scope = current_scope()
        with contextlib.ExitStack() as stack:
            if scope is not None:
                stack.callback(scope.subscribe(woken.set))
            watches = self._watch(stack, woken.set)
            while self._unfinished:
                checkpoint()
                woken.clear()
                found = False
                for client, watch in watches:
                    for batch in self._take(client, watch):
                        found = True
                        yield batch
                if not found and self._unfinished:
                    self._refuse_to_wait_longer()
                    if not any(watch.is_polled for _, watch in watches):
                        with lending(self._first()):
                            woken.wait(self._patience(scope))

    async def wait_async(self) -> AsyncGenerator[list[JobHandle[Any]], None]:
        """Do as `wait` does, with blocking calls on threads."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(woken.set)

        with contextlib.ExitStack() as stack:
            watches = await asyncio.to_thread(self._watch, stack, wake)
            while self._unfinished:
                woken.clear()
                found = False
                for client, watch in watches:
                    for batch in await asyncio.to_thread(list, self._take(client, watch)):
                        found = True
                        yield batch
                if not found and self._unfinished:
                    await asyncio.to_thread(self._refuse_to_wait_longer)
                    if not any(watch.is_polled for _, watch in watches):
                        with lending(self._first(), may_block=False), contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(woken.wait(), self._patience(None))

    def _watch(self, stack: contextlib.ExitStack, wake: Callable[[], None]) -> list[tuple[Client, EndedJobs]]:
        """Begin to wait, with one watch for each client; this may open stores."""
        for handle in {id(each): each for each in self.handles}.values():
            self._unfinished.setdefault(handle.client, {}).setdefault(handle.id, []).append(handle)
        return [
            (client, stack.enter_context(client.watch(list(waiting), wake)))
            for client, waiting in list(self._unfinished.items())
        ]

    def _take(self, client: Client, watch: EndedJobs) -> Iterator[list[JobHandle[Any]]]:
        """Yield the handles of one client's jobs that have ended, some at a time."""
        ended = watch.take()
        for start in range(0, len(ended), JOBS_PER_READ):
            ids = ended[start : start + JOBS_PER_READ]
            jobs = client.get_jobs(ids)
            yield [handle for job_id in ids for handle in self._ended(client, job_id, jobs.get(job_id))]

    def _ended(self, client: Client, job_id: str, job: Job | None) -> list[JobHandle[Any]]:
        waiting = self._unfinished.get(client, {})
        handles = waiting.pop(job_id, [])
        if not waiting:
            self._unfinished.pop(client, None)
        if job is not None:
            for handle in handles:
                handle.remember(job)
        return handles

    def _first(self) -> str:
        """Return a job that has not ended: the one in whose place another may run meanwhile."""
        return next(iter(next(iter(self._unfinished.values()))))

    def _patience(self, scope: CancelScope | None) -> float | None:
        """Return for how long to wait for the next end."""
        left = None if self._gives_up_at is None else max(0.0, self._gives_up_at - time.monotonic())
        ends = (left, None if scope is None else scope.remaining())
        return min((each for each in ends if each is not None), default=None)

    def _refuse_to_wait_longer(self) -> None:
        if self._gives_up_at is None or time.monotonic() < self._gives_up_at:
            return
        client, waiting = next(iter(self._unfinished.items()))
        job_id = next(iter(waiting))
        number = sum(len(each) for found in self._unfinished.values() for each in found.values())
        reason = client.explain(job_id)
        raise TimeoutError(
            f"{number} of {len(self.handles)} jobs have not ended within {self._seconds:g} s; they go on"
            + (f"; job {job_id}{reason}" if reason else f", among them job {job_id}")
        )


class _Results:
    """The results of a gathering, in the order of its handles."""

    def __init__(self, gathering: _Gathering, *, return_exceptions: bool) -> None:
        self._handles = gathering.handles
        self._return_exceptions = return_exceptions
        self._found: dict[int, Any] = {}

    def add(self, ended: Collection[JobHandle[Any]]) -> None:
        """Note the results of jobs that have ended; raise the first error unless errors are results."""
        for handle in ended:
            try:
                self._found[id(handle)] = handle.ended_result()
            except (JobFailedError, JobNotFoundError) as error:
                if not self._return_exceptions:
                    raise
                self._found[id(handle)] = error

    def in_order(self) -> list[Any]:
        """Return the results in the order of the handles."""
        return [self._found[id(handle)] for handle in self._handles]


def _checked(handles: object) -> list[JobHandle[Any]]:
    if isinstance(handles, JobHandle | str | bytes) or not isinstance(handles, Iterable):
        raise InvalidArgumentError(
            f"handles must be an iterable of JobHandle, got {shown(handles)}", field="handles", value=handles
        )
    found = list(handles)
    for each in found:
        if not isinstance(each, JobHandle):
            raise InvalidArgumentError(
                f"handles must hold what task.submit(…) or app.handle(id) returns, got {shown(each)}",
                field="handles",
                value=each,
            )
    return found
