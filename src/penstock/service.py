"""One life cycle for background threads: start, wake, stop, retry after errors, survive a fork.

    start() ──► first pause ──► step ──► pause (or wake) ──► step ──► … ──► stop() or retire()
                                 │ raises
                                 └──► log, then a pause that doubles with every failure in a row

A service calls `step` again and again on one daemon thread. There are two kinds of steps:

- one that does its work and returns; the service then pauses for `seconds`, or for as long as the step says;
- one that waits for its next event by itself, on a condition or a socket. Such a service has an `interrupt`, which ends
  that wait when the service is stopped.

What happens on errors is the same everywhere. `QueueClosedError` ends the service, because its store is closed. Any other
exception is logged and the step is repeated, after 0.05 s, 0.1 s, 0.2 s … up to `max_retry_seconds`, but never later than
it would have come anyway. `wake` does not shorten these pauses, `stop` does.

A service can be started, stopped and started again, from any thread. At no time do two of its threads run a step: a new
thread begins when the previous one has ended. In the child of a fork a service has no thread and starts one when `start`
is called there; locks of the parent are not used in the child.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Final

from penstock.errors import PenstockError, QueueClosedError
from penstock.logs import retry_level

__all__ = ["Backoff", "Service", "start_together"]

FIRST_RETRY_SECONDS: Final = 0.05
MAX_RETRY_SECONDS: Final = 1.0


class Backoff:
    """Pauses between repeated attempts: each one is twice as long as the one before, up to a limit.

    Args:
        first: seconds of the first pause.
        longest: seconds that no pause exceeds.
    """

    __slots__ = ("_first", "_longest", "_next")

    def __init__(self, first: float = FIRST_RETRY_SECONDS, longest: float = MAX_RETRY_SECONDS) -> None:
        self._first = self._next = first
        self._longest = longest

    @property
    def is_first(self) -> bool:
        """Whether no attempt has failed since the last success."""
        return self._next == self._first

    def next(self) -> float:
        """Return the pause after another failure, in seconds."""
        pause, self._next = self._next, min(2 * self._next, self._longest)
        return pause

    def reset(self) -> None:
        """Begin with the first pause again: an attempt succeeded."""
        self._next = self._first


class _Run:
    """One thread of a service, from a start to the stop after it."""

    __slots__ = ("gate", "is_stopping", "previous", "stopping", "thread", "woken")

    def __init__(self, service: Service, previous: threading.Thread | None) -> None:
        self.previous = previous
        self.is_stopping = False
        #: Opened when the thread may begin.
        self.gate = threading.Event()
        self.stopping = threading.Event()
        self.woken = threading.Event()
        self.thread = threading.Thread(
            target=service._serve,  # noqa: SLF001 - the two are one
            args=(self,),
            name=f"penstock-{service.name}",
            daemon=True,
        )

    def stop(self) -> None:
        self.is_stopping = True
        self.stopping.set()
        self.woken.set()
        self.gate.set()


class Service:
    """A background thread that repeats a step.

    Args:
        name: the thread's name, after "penstock-".
        step: does the work once. May return the seconds until the next call; None is `seconds`.
        seconds: the pause between two steps; 0 for a step that waits by itself.
        begins_with_pause: whether the first step comes after a pause of `seconds` instead of at once.
        max_retry_seconds: the longest pause after a failed step, or a function that returns it; no longer than
            `seconds`, if that is not 0.
        interrupt: ends the wait of a step that waits by itself; called by `stop`, on any thread.
        label: what failed, for the log; "the heartbeat" for example.
        log: where failures are logged.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        *,
        seconds: float = 0.0,
        begins_with_pause: bool = False,
        max_retry_seconds: float | Callable[[], float] = MAX_RETRY_SECONDS,
        interrupt: Callable[[], object] | None = None,
        label: str = "",
        log: logging.Logger | None = None,
    ) -> None:
        self.name = name
        self._step = step
        self._seconds = seconds
        self._first_pause = seconds if begins_with_pause else 0.0
        self._max_retry = max_retry_seconds
        self._interrupt = interrupt
        self._label = label or name
        self._log = log or logging.getLogger("penstock")
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._run: _Run | None = None
        #: The last thread that was started; it may have ended.
        self._last: threading.Thread | None = None
        #: On a thread of this service: its run, also after another one was started.
        self._local = threading.local()
        self._pid = os.getpid()

    def _check_fork(self) -> None:
        """Forget the parent's thread and locks in the child of a fork."""
        if self._pid != os.getpid():
            with _after_fork:
                if self._pid != os.getpid():
                    self._reset()

    # -- the life cycle -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread, unless it runs already."""
        run = self.prepare()
        if run is not None:
            run.gate.set()

    def prepare(self) -> _Run | None:
        """Start the thread, but let it wait at its gate; return None if it runs already."""
        self._check_fork()
        with self._lock:
            if self._run is not None:
                return None
            run = _Run(self, self._last)
            run.thread.start()
            self._run, self._last = run, run.thread
            return run

    def stop(self, timeout: float | None = None, *, wait: bool = True) -> bool:
        """End the thread after its present step; return whether it has ended. Idempotent.

        Called by the step itself, it does not wait.

        Args:
            timeout: seconds to wait at the most; None waits until it has ended.
            wait: whether to wait at all.
        """
        self._check_fork()
        with self._lock:
            run, self._run = self._run, None
        if run is not None:
            run.stop()
            if self._interrupt is not None:
                self._interrupt()
        return self.join(timeout if wait else 0.0)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended, which something else brings about; return whether it has."""
        self._check_fork()
        thread = self._last
        if thread is None:
            return True
        if thread is threading.current_thread():
            return False
        thread.join(timeout)
        return not thread.is_alive()

    def retire(self) -> None:
        """End after the present step, by decision of the step itself.

        A `start` from now on starts another thread. A step that retires under the lock under which others add work and
        call `start` therefore loses none of it.
        """
        own: _Run = self._local.run
        with self._lock:
            if self._run is own:
                self._run = None
        own.stop()

    def wake(self) -> None:
        """End the pause between two steps."""
        run = self._run
        if run is not None:
            run.woken.set()

    def pause(self, seconds: float) -> bool:
        """Wait within a step; return False at once when the service is stopped."""
        run = self._own()
        return run is not None and not run.stopping.wait(seconds)

    # -- state --------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped since, in this process."""
        return self._run is not None and self._pid == os.getpid()

    @property
    def is_stopping(self) -> bool:
        """Whether the step that asks should return: its thread was stopped. Elsewhere: whether nothing runs."""
        run = self._own()
        return run is None or run.is_stopping

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is the service's own."""
        self._check_fork()
        return getattr(self._local, "run", None) is not None

    def _own(self) -> _Run | None:
        self._check_fork()
        run: _Run | None = getattr(self._local, "run", None)
        return self._run if run is None else run

    # -- the thread ---------------------------------------------------------------------------------------------

    def _serve(self, run: _Run) -> None:
        run.gate.wait()
        if run.previous is not None:
            run.previous.join()
            run.previous = None
        self._local.run = run
        backoff = Backoff(longest=float("inf"))
        pause = self._first_pause
        while True:
            if pause > 0:
                run.woken.wait(pause)
                run.woken.clear()
            if run.is_stopping:
                return
            try:
                wanted = self._step()
            except QueueClosedError:
                self.retire()
            except PenstockError as error:
                self._log.log(retry_level(error), "%s failed and is retried: %s", self._label, error)
                pause = self._wait_after_failure(run, backoff)
            except Exception:
                self._log.exception("%s failed and is retried", self._label)
                pause = self._wait_after_failure(run, backoff)
            else:
                backoff.reset()
                pause = self._seconds if wanted is None else wanted

    def _wait_after_failure(self, run: _Run, backoff: Backoff) -> float:
        """Wait before a failed step is repeated; return that no other pause is due."""
        longest = self._max_retry() if callable(self._max_retry) else self._max_retry
        run.stopping.wait(min(backoff.next(), longest, self._seconds or longest))
        return 0.0


def start_together(*services: Service) -> None:
    """Start several services, all or none: no step runs before every thread has been started."""
    prepared: list[tuple[Service, _Run]] = []
    try:
        for service in services:
            run = service.prepare()
            if run is not None:
                prepared.append((service, run))
    except BaseException:
        for service, _ in prepared:
            service.stop(wait=False)
        raise
    for _, run in prepared:
        run.gate.set()


_after_fork = threading.Lock()


def _renew_lock() -> None:
    global _after_fork  # noqa: PLW0603 - a thread of the parent may have held it
    _after_fork = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
