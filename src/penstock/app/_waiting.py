"""Wait for jobs to end: at once by this process's own commits, soon by notifications, and at the latest by a poll.

One thread polls for all waiters, with one query for all their jobs; it exists only while there are waiters. It polls less
often the longer they have waited: the pause is a tenth of the wait, within bounds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Self

from penstock._lazy import asyncio
from penstock.app.lending import lending
from penstock.backends import Backend, Change
from penstock.errors import BackendError, JobNotFoundError, PenstockError, QueueClosedError
from penstock.scope import current_scope
from penstock.service import Service

__all__ = ["Waiting"]

logger = logging.getLogger("penstock")

MIN_POLL_SECONDS: Final = 0.005
MAX_POLL_SECONDS: Final = 0.25
PAUSE_PER_WAIT: Final = 0.1
PAUSE_PER_QUERY: Final = 4.0  # the pause after a query is at least this many times its duration
LINGER_SECONDS: Final = 1.0  # how long the thread waits for the next waiter after the last one


class _Waiter:
    """One wait for one job: `settle` ends it, with an error if the wait has failed."""

    __slots__ = ("error", "is_settled", "job_id", "since", "wake")

    def __init__(self, job_id: str, wake: Callable[[], None]) -> None:
        self.job_id = job_id
        self.wake = wake
        self.since = time.monotonic()
        self.is_settled = False
        self.error: BaseException | None = None

    def settle(self, error: BaseException | None = None) -> None:
        self.error = error
        self.is_settled = True
        self.wake()


class Watch:
    """Several jobs that one caller waits for; a context manager that ends the wait."""

    #: Whether `take` waits by itself.
    is_polled = False

    def __init__(self, waiting: Waiting, wake: Callable[[], None]) -> None:
        self._waiting = waiting
        self._wake = wake
        self._ended: deque[str] = deque()
        self._waiters: dict[str, _Waiter] = {}

    def begin(self, unfinished: Iterable[str]) -> list[_Waiter]:
        """Return the waiters of jobs that have not ended yet."""
        self._waiters = {job_id: _Waiter(job_id, partial(self.note, job_id)) for job_id in unfinished}
        return list(self._waiters.values())

    def note(self, job_id: str) -> None:
        """Note that a job has ended, or does not exist; may be called twice for one job."""
        self._ended.append(job_id)
        self._wake()

    def take(self) -> list[str]:
        """Return the jobs that have ended, or turned out not to exist, since the last call.

        Raises:
            PenstockError: the store does not answer any more.
        """
        ended: dict[str, None] = {}
        while self._ended:
            ended[self._ended.popleft()] = None
        settled = [self._waiters.pop(job_id) for job_id in ended if job_id in self._waiters]
        self._waiting.remove_all(settled)
        for waiter in settled:
            if waiter.error is not None and not isinstance(waiter.error, JobNotFoundError):
                raise waiter.error
        return list(ended)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.remove_all(list(self._waiters.values()))


class Waiting:
    """The waiters for jobs of one store, in this process."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._is_closed = False
        self._service = Service(
            "results", self._poll_if_wanted, interrupt=self._wake, label="waiting for results"
        )
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._waiters: dict[str, list[_Waiter]] = {}
        self._is_notified = False
        #: Before this moment the store is not queried again.
        self._rests_until = 0.0
        #: The subscription of the thread while it runs.
        self._subscriptions: contextlib.ExitStack | None = None

    def _check_fork(self) -> None:
        """Begin anew in the child of a fork: waiters, thread and lock are the parent's."""
        if self._pid != os.getpid():
            self._reset()

    def wait(self, job_id: str, timeout: float | None) -> None:
        """Return when a job has ended.

        Raises:
            TimeoutError: it has not, in time.
            JobNotFoundError: there is no such job.
            OperationCancelledError: the ambient scope ends.
        """
        if self._has_ended(job_id):
            return
        scope = current_scope()
        give_up_at = None if timeout is None else time.monotonic() + timeout
        event = threading.Event()
        waiter = self._add(job_id, event.set)
        unsubscribe = None if scope is None else scope.subscribe(event.set)
        try:
            with lending(job_id):
                while not waiter.is_settled:
                    if scope is not None:
                        scope.check()
                    left = None if give_up_at is None else give_up_at - time.monotonic()
                    if left is not None and left <= 0:
                        raise TimeoutError(f"job {job_id} has not ended within {timeout:g} s; it goes on")
                    ends = (left, None if scope is None else scope.remaining())
                    event.wait(min((each for each in ends if each is not None), default=None))
                    if scope is not None and not waiter.is_settled:
                        event.clear()
        finally:
            if unsubscribe is not None:
                unsubscribe()
            self._remove(waiter)
        if waiter.error is not None:
            raise waiter.error

    async def wait_async(self, job_id: str) -> None:
        """As `wait`, without blocking the loop."""
        if await asyncio.to_thread(self._has_ended, job_id):
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(ended.set)

        waiter = self._add(job_id, wake)
        try:
            with lending(job_id, may_block=False):
                await ended.wait()
        finally:
            self._remove(waiter)
        if waiter.error is not None:
            raise waiter.error

    def watch(self, job_ids: Sequence[str], wake: Callable[[], None]) -> Watch:
        """Begin to wait for several jobs, with one query for all of them.

        Args:
            job_ids: the jobs.
            wake: called, on any thread, when one of them has ended; it must not block.
        """
        watch = Watch(self, wake)
        found = self._backend.runtime.statuses(job_ids)
        unfinished = []
        for job_id in job_ids:
            if job_id in found and not found[job_id][0].is_final:
                unfinished.append(job_id)
            else:
                watch.note(job_id)
        self._add_all(watch.begin(unfinished))
        return watch

    def close(self) -> None:
        """End all waits with an error."""
        self._check_fork()
        with self._lock:
            self._is_closed = True
            waiters = [each for found in self._waiters.values() for each in found]
        for waiter in waiters:
            waiter.settle(QueueClosedError("the app was closed while a result was waited for"))
        self._service.stop()
        self._unsubscribe()

    # -- inside -------------------------------------------------------------------------------------------------

    def _has_ended(self, job_id: str) -> bool:
        found = self._backend.runtime.statuses([job_id])
        if job_id not in found:
            raise JobNotFoundError(job_id)
        return found[job_id][0].is_final

    def _add(self, job_id: str, wake: Callable[[], None]) -> _Waiter:
        waiter = _Waiter(job_id, wake)
        self._add_all([waiter])
        return waiter

    def _add_all(self, waiters: Sequence[_Waiter]) -> None:
        if not waiters:
            return
        self._check_fork()
        with self._lock:
            if self._is_closed:
                raise QueueClosedError("the app is closed")
            for waiter in waiters:
                self._waiters.setdefault(waiter.job_id, []).append(waiter)
            self._is_notified = True  # a new waiter polls once more: the job may have ended in between
            self._service.start()
            self._work.notify_all()

    def _remove(self, waiter: _Waiter) -> None:
        self.remove_all([waiter])

    def remove_all(self, waiters: Sequence[_Waiter]) -> None:
        """Forget waiters, whether they were settled or not."""
        with self._lock:
            for waiter in waiters:
                found = self._waiters.get(waiter.job_id, [])
                if waiter in found:
                    found.remove(waiter)
                if not found:
                    self._waiters.pop(waiter.job_id, None)

    def _on_commit(self, changes: Sequence[Change]) -> None:
        """Settle the waiters of jobs that a commit of this process ended: quick, and never raises."""
        if not self._waiters:
            return
        for change in changes:
            if change.job_id in self._waiters and change.status.is_final:
                for waiter in list(self._waiters.get(change.job_id, ())):
                    waiter.settle()

    def _on_notification(self) -> None:
        with self._lock:
            self._is_notified = True
            self._work.notify_all()

    def _wake(self) -> None:
        with self._lock:
            self._work.notify_all()

    # -- the thread ---------------------------------------------------------------------------------------------

    def _poll_if_wanted(self) -> None:
        """Poll once when it is time; without waiters, end the thread."""
        self._subscribe()
        if self._is_wanted():
            self._poll_once()
        else:
            self._unsubscribe()

    def _subscribe(self) -> None:
        if self._subscriptions is None:
            self._subscriptions = contextlib.ExitStack()
            try:
                self._subscriptions.callback(self._backend.runtime.listen(self._on_commit))
                self._subscriptions.callback(self._backend.runtime.watch(self._on_notification))
            except PenstockError as error:
                logger.debug("results are waited for without notifications: %s", error)

    def _unsubscribe(self) -> None:
        subscriptions, self._subscriptions = self._subscriptions, None
        if subscriptions is not None:
            subscriptions.close()

    def _is_wanted(self) -> bool:
        """Wait until it is time to poll; return whether there are waiters."""
        with self._lock:
            if self._waiters and not self._service.is_stopping:
                # A query for thousands of jobs takes its time; it is not made for every notification.
                self._work.wait_for(
                    lambda: self._service.is_stopping, max(0.0, self._rests_until - time.monotonic())
                )
            if not self._waiters:
                self._work.wait_for(lambda: self._waiters or self._service.is_stopping, LINGER_SECONDS)
            elif not self._is_notified and not self._service.is_stopping:
                since = max(waiter.since for found in self._waiters.values() for waiter in found)
                pause = (time.monotonic() - since) * PAUSE_PER_WAIT
                self._work.wait(min(max(pause, MIN_POLL_SECONDS), MAX_POLL_SECONDS))
            self._is_notified = False
            if self._service.is_stopping or not self._waiters:
                self._service.retire()
                return False
            return True

    def _poll_once(self) -> None:
        begun = time.monotonic()
        try:
            self._settle_ended()
        finally:
            now = time.monotonic()
            self._rests_until = now + min((now - begun) * PAUSE_PER_QUERY, MAX_POLL_SECONDS)

    def _settle_ended(self) -> None:
        with self._lock:
            waiting = {job_id: list(found) for job_id, found in self._waiters.items()}
        try:
            found = self._backend.runtime.statuses(list(waiting))
        except BackendError as error:
            if not error.retryable:
                _settle_all(waiting, error)
            return
        except Exception as error:
            _settle_all(waiting, error)
            return
        for job_id, waiters in waiting.items():
            if job_id not in found:
                _settle_all({job_id: waiters}, JobNotFoundError(job_id))
            elif found[job_id][0].is_final:
                _settle_all({job_id: waiters}, None)


def _settle_all(waiting: dict[str, list[_Waiter]], error: BaseException | None) -> None:
    for waiters in waiting.values():
        for waiter in waiters:
            waiter.settle(error)
