"""Events of a queue, emitted to subscribers of this process in order, each after the commit it reports."""

from __future__ import annotations

import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec

from penstock._lazy import asyncio
from penstock.errors import invalid
from penstock.job import Key

__all__ = ["Event", "EventBus", "EventKind", "Subscriber"]


class EventKind(StrEnum):
    """The kinds of events.

    Attributes:
        JOB_AVAILABLE: a job became claimable: due, its dependencies met, first of its key. Emitted once each time.
        JOB_STARTED: a job was claimed, or restarted.
        JOB_COMPLETED: a job was completed.
        JOB_FAILED: a job ended FAILED or DEAD_LETTER.
        JOB_RETRY: an attempt failed, was lost or released, and another will follow.
        JOB_CANCELLED: a job ended STOPPED, UNSCHEDULED or UNKNOWN_STOPPED.
        QUEUE_BLOCKED: new jobs are refused from now on.
        QUEUE_UNBLOCKED: new jobs are accepted again.
    """

    JOB_AVAILABLE = "job_available"
    JOB_STARTED = "job_started"
    JOB_COMPLETED = "job_completed"
    JOB_FAILED = "job_failed"
    JOB_RETRY = "job_retry"
    JOB_CANCELLED = "job_cancelled"
    QUEUE_BLOCKED = "queue_blocked"
    QUEUE_UNBLOCKED = "queue_unblocked"


def _now() -> datetime:
    return datetime.now(UTC)


class Event(msgspec.Struct, frozen=True):
    """One event. Events of the queue itself have no job.

    Attributes:
        kind: the kind of event.
        job_id: the job; None for events of the queue itself.
        type: its type; None for events of the queue itself.
        key: its key, if it has one.
        tags: its tags.
        at: when it happened, by the store's clock; now, if not given.
        seq: the number of the journal row of the same change; None if it is not known.
    """

    kind: EventKind
    job_id: str | None = None
    type: str | None = None
    key: Key | None = None
    tags: tuple[str, ...] = ()
    at: datetime = msgspec.field(default_factory=_now)
    seq: int | None = None


Subscriber = Callable[[Event], object] | Callable[[Event], Awaitable[object]]
"""A function or coroutine function that is called with an event."""


class EventBus:
    """Calls subscribers in the order of subscription. Events are neither stored nor repeated."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribers: dict[EventKind, dict[object, Subscriber]] = {}
        self._count = 0
        #: Called after each subscribe and unsubscribe, so that the emitter can stop while there are no subscribers.
        self.on_change: Callable[[], None] = _nothing

    def subscribe(self, kind: EventKind, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` with every event of a kind; return a function that unsubscribes it, and may be repeated.

        A subscriber may be a coroutine function. To subscribe or unsubscribe while an event is emitted does not change
        which subscribers get that event.
        """
        if not callable(subscriber):
            raise invalid("subscriber", "callable", subscriber)
        if not isinstance(kind, str) or kind not in list(EventKind):
            raise invalid("kind", f"one of {', '.join(EventKind)}", kind)
        kind = EventKind(kind)
        handle = object()
        with self._lock:
            self._subscribers.setdefault(kind, {})[handle] = subscriber
            self._count += 1

        def unsubscribe() -> None:
            with self._lock:
                if self._subscribers[kind].pop(handle, None) is None:
                    return
                self._count -= 1
            self.on_change()

        try:
            self.on_change()
        except BaseException:
            unsubscribe()
            raise
        return unsubscribe

    def has_subscribers(self) -> bool:
        """Whether there is a subscriber to any kind."""
        return self._count > 0

    def after_fork_in_child(self) -> None:
        """Replace the lock in a child process, where a thread of the parent may have held it; keep the subscribers."""
        self._lock = threading.Lock()

    def emit(self, event: Event) -> None:
        """Call an event's subscribers in order, each to its end.

        Raises:
            InvalidArgumentError: this is no Event; no subscriber was called.
            ExceptionGroup: the errors of subscribers, after all of them were called.
        """
        if not isinstance(event, Event):
            raise invalid("event", "an Event", event)
        with self._lock:
            subscribers = list(self._subscribers.get(event.kind, {}).values())
        errors: list[Exception] = []
        for subscriber in subscribers:
            try:
                run_to_end(subscriber(event))
            except Exception as error:  # one failing subscriber does not stop the rest
                errors.append(error)
        if errors:
            raise ExceptionGroup(
                f"{len(errors)} of {len(subscribers)} subscribers to {event.kind} failed", errors
            )


def _nothing() -> None:
    pass


def run_to_end(outcome: object) -> None:
    """Run what a callback returned to its end if it is awaitable; raise its error."""
    if not inspect.isawaitable(outcome):
        return
    awaitable: Awaitable[Any] = outcome

    async def wait() -> None:
        await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(wait())
        return
    # The loop of this thread is blocked by this call, so the subscriber runs in a loop of another thread.
    failures: list[BaseException] = []

    def elsewhere() -> None:
        try:
            asyncio.run(wait())
        except BaseException as error:
            failures.append(error)

    # Not a service: one call, which this thread waits for.
    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(elsewhere,), name="penstock-subscriber"
    )
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
