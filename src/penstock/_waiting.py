"""Wait for jobs to end: told at once by this process's own commits, soon by hints, and at the latest by looking.

One thread looks for everybody who waits, with one question for all of them; it is there only while somebody does. It
looks more seldom the longer the wait already is: a tenth of it, within bounds.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from penstock._lazy import asyncio
from penstock.backends.base import Backend, Change
from penstock.errors import BackendError, JobNotFoundError, PenstockError, QueueClosedError
from penstock.scope import current_scope

__all__ = ["Waiting"]

logger = logging.getLogger("penstock")

SHORTEST_LOOK: Final = 0.005
LONGEST_LOOK: Final = 0.25
SHARE: Final = 0.1
LINGER_SECONDS: Final = 1.0  # after the last one was served, the thread waits so long for the next


class _Waiter:
    """Somebody who waits: `settle` tells it that the job has ended, or the error that keeps it from knowing."""

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


class Waiting:
    """Those who wait for jobs of one store, in this process."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._waiters: dict[str, list[_Waiter]] = {}
        self._thread: threading.Thread | None = None
        self._hinted = False
        self._closed = False

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
            while not waiter.is_settled:
                if scope is not None:
                    scope.check()
                left = None if give_up_at is None else give_up_at - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"job {job_id} has not ended within {timeout:g} s")
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
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(ended.set)

        waiter = self._add(job_id, wake)
        try:
            await ended.wait()
        finally:
            self._remove(waiter)
        if waiter.error is not None:
            raise waiter.error

    def close(self) -> None:
        """Let nobody wait any longer."""
        with self._lock:
            self._closed = True
            waiters = [each for found in self._waiters.values() for each in found]
            thread = self._thread
            self._work.notify_all()
        for waiter in waiters:
            waiter.settle(QueueClosedError("the app was closed while a result was waited for"))
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # -- inside -------------------------------------------------------------------------------------------------

    def _has_ended(self, job_id: str) -> bool:
        found = self._backend.statuses([job_id])
        if job_id not in found:
            raise JobNotFoundError(job_id)
        return found[job_id][0].is_final

    def _add(self, job_id: str, wake: Callable[[], None]) -> _Waiter:
        waiter = _Waiter(job_id, wake)
        with self._lock:
            if self._closed:
                raise QueueClosedError("the app is closed")
            self._waiters.setdefault(job_id, []).append(waiter)
            self._hinted = True  # whoever begins to wait looks once more: the end may have come in between
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="penstock-results", daemon=True)
                self._thread.start()
            self._work.notify_all()
        return waiter

    def _remove(self, waiter: _Waiter) -> None:
        with self._lock:
            found = self._waiters.get(waiter.job_id, [])
            if waiter in found:
                found.remove(waiter)
            if not found:
                self._waiters.pop(waiter.job_id, None)

    def _notice(self, changes: Sequence[Change]) -> None:
        """Be told of a commit of this process: quick, and never raises."""
        if not self._waiters:
            return
        for change in changes:
            if change.job_id in self._waiters and change.status.is_final:
                for waiter in list(self._waiters.get(change.job_id, ())):
                    waiter.settle()

    def _hint(self) -> None:
        with self._lock:
            self._hinted = True
            self._work.notify_all()

    def _look(self) -> None:
        with contextlib.ExitStack() as stack:
            try:
                stack.callback(self._backend.listen(self._notice))
                stack.callback(self._backend.watch(self._hint))
            except PenstockError as error:
                logger.debug("results are waited for without hints: %s", error)
            while self._is_wanted():
                self._look_once()

    def _is_wanted(self) -> bool:
        """Wait until it is time to look; whether anybody still waits for anything."""
        with self._lock:
            if not self._waiters:
                self._work.wait_for(lambda: self._waiters or self._closed, LINGER_SECONDS)
            elif not self._hinted:
                since = max(waiter.since for found in self._waiters.values() for waiter in found)
                pause = (time.monotonic() - since) * SHARE
                self._work.wait(min(max(pause, SHORTEST_LOOK), LONGEST_LOOK))
            self._hinted = False
            if self._closed or not self._waiters:
                self._thread = None
                return False
            return True

    def _look_once(self) -> None:
        with self._lock:
            waiting = {job_id: list(found) for job_id, found in self._waiters.items()}
        try:
            found = self._backend.statuses(list(waiting))
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
