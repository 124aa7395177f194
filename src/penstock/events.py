"""What happened, told to whoever subscribed: after the commit it reports, in order, in this process."""

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
from penstock.errors import InvalidArgumentError, shown
from penstock.job import Key

__all__ = ["Event", "EventBus", "EventKind", "Subscriber"]


class EventKind(StrEnum):
    """What an event tells of.

    Attributes:
        JOB_AVAILABLE: a job can be taken: it is due, its dependencies are met, its key's turn has come. Once each time.
        JOB_STARTED: a job was claimed, or restarted.
        JOB_COMPLETED: a job was completed.
        JOB_FAILED: a job ended FAILED or DEAD_LETTER.
        JOB_RETRY: an attempt failed, was lost or handed back, and another will follow.
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
    """One thing that happened. Events of the queue itself have no job.

    Attributes:
        kind: what happened.
        job_id: the job; None for events of the queue itself.
        type: its type; None for events of the queue itself.
        key: its key, if it has one.
        tags: its tags.
        at: when, by the store's clock; now, if not given.
        seq: the number of the journal row that tells the same, where it is known; None if it is not.
    """

    kind: EventKind
    job_id: str | None = None
    type: str | None = None
    key: Key | None = None
    tags: tuple[str, ...] = ()
    at: datetime = msgspec.field(default_factory=_now)
    seq: int | None = None


Subscriber = Callable[[Event], object] | Callable[[Event], Awaitable[object]]
"""What is called with an event: a function or a coroutine function."""


class EventBus:
    """Calls subscribers in the order they came. Keeps nothing, repeats nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribers: dict[EventKind, dict[object, Subscriber]] = {}
        self._count = 0
        #: Called after each subscription and each end of one: by it, whoever emits knows whether that is worth while.
        self.on_change: Callable[[], None] = _nothing

    def subscribe(self, kind: EventKind, subscriber: Subscriber) -> Callable[[], None]:
        """Have `subscriber` called with every event of a kind; return a function that ends it, once or often.

        A subscriber may be a coroutine function. Whoever subscribes or ends while an event is being told does not
        change who is told of that event.
        """
        if not callable(subscriber):
            raise InvalidArgumentError(
                f"a subscriber must be callable, got {shown(subscriber)}",
                field="subscriber",
                value=subscriber,
            )
        try:
            kind = EventKind(kind)
        except ValueError:
            raise InvalidArgumentError(
                f"kind must be one of {', '.join(EventKind)}, got {shown(kind)}", field="kind", value=kind
            ) from None
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
        """Whether anybody listens to anything."""
        return self._count > 0

    def after_fork_in_child(self) -> None:
        """Go on in a child, with the same subscribers: a thread of the parent's may hold the lock."""
        self._lock = threading.Lock()

    def emit(self, event: Event) -> None:
        """Tell an event to its subscribers, in order, each to its end.

        Raises:
            InvalidArgumentError: this is no Event; nobody was told.
            ExceptionGroup: of what subscribers raised, after all of them were called.
        """
        if not isinstance(event, Event):
            raise InvalidArgumentError(f"expected an Event, got {shown(event)}", field="event", value=event)
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
    """Wait for what a callback has returned, if it is to be awaited; raise what it raises."""
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
    # This thread's own loop is busy running us; the subscriber gets one elsewhere.
    failures: list[BaseException] = []

    def elsewhere() -> None:
        try:
            asyncio.run(wait())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(elsewhere,), name="penstock-subscriber"
    )
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
