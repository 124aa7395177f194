"""Turns committed changes into events: collected in commit order, emitted by the first thread that leaves a verb.

A verb of the queue returns after its subscribers have. Verbs called on the backend itself emit nothing, so a service emits
what stays pending for a moment. The service and the listener exist only while there are subscribers.
"""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from penstock.backends import Backend, Change
from penstock.events import Event, EventBus, EventKind
from penstock.job import CANCELLED, JobStatus
from penstock.lifecycle import ENQUEUES
from penstock.scope import shielded
from penstock.service import Service

__all__ = ["Emitter", "is_emitting"]

logger = logging.getLogger("penstock")

#: Commits whose events may be pending. Verbs of a queue wait for theirs, so only those of the backend get so far.
MAX_PENDING: Final = 10_000
GRACE_SECONDS: Final = 0.005  # within it, the thread of the verb itself emits
TURN_POLL_SECONDS: Final = 0.1

#: The emitters whose subscribers run this code. A context variable, not the thread: a coroutine's verb runs elsewhere.
_emitting: contextvars.ContextVar[frozenset[Emitter]] = contextvars.ContextVar(
    "penstock_emitting", default=frozenset()
)

_BY_STATUS = {
    JobStatus.COMPLETED: EventKind.JOB_COMPLETED,
    JobStatus.FAILED: EventKind.JOB_FAILED,
    JobStatus.DEAD_LETTER: EventKind.JOB_FAILED,
    JobStatus.FAILED_RETRY: EventKind.JOB_RETRY,
    JobStatus.UNKNOWN_RETRY: EventKind.JOB_RETRY,
    JobStatus.RUNNING: EventKind.JOB_STARTED,
} | dict.fromkeys(CANCELLED, EventKind.JOB_CANCELLED)


def is_emitting() -> bool:
    """Whether this code runs on behalf of a subscriber, so that the next event waits for it."""
    return bool(_emitting.get())


class Emitter:
    """Emits to a bus what a backend commits. Listens only while there are subscribers."""

    def __init__(self, backend: Backend, bus: EventBus) -> None:
        self._backend = backend
        self._bus = bus
        self._closing = False
        self._begin()
        bus.on_change = self.follow_subscribers
        _emitters.add(weakref.ref(self, _emitters.discard))

    def _begin(self) -> None:
        #: Commits whose events are to be emitted.
        self.pending: deque[Sequence[Change] | Event] = deque()
        self.is_emitting = False
        #: Whether there are subscribers, but the listener is the parent's, in a child process.
        self.lost_listener = False
        self._turn = threading.Lock()
        self._mutex = threading.Lock()
        self._more = threading.Condition(self._mutex)
        #: Held while the listener is added or removed; never while events are collected or emitted.
        self._switching = threading.Lock()
        self._unlisten: Callable[[], None] | None = None
        self._dropped = 0
        self._service = Service("events", self._emit_left_over, interrupt=self._wake, label="emitting events")

    def after_fork_in_child(self) -> None:
        """Reset this object in a child process: the listener, the thread and the holders of locks are the parent's."""
        self._begin()
        self._bus.after_fork_in_child()
        self.lost_listener = self._bus.has_subscribers()

    def follow_subscribers(self) -> None:
        """Listen to the store if there are subscribers, and only then."""
        if self._closing:
            return
        with self._switching:
            is_wanted = self._bus.has_subscribers()
            if is_wanted and self._unlisten is None:
                with shielded():
                    unlisten = self._backend.runtime.listen(self._collect)
                try:
                    self._service.start()
                except BaseException:
                    unlisten()
                    raise
                self._unlisten = unlisten
            elif not is_wanted and self._unlisten is not None:
                self._unfollow()
            self.lost_listener = False

    def close(self) -> None:
        """End every wait for subscribers: they may be waiting for the queue to close."""
        self._closing = True

    def stop(self) -> None:
        """Stop listening, and drop what is pending."""
        with self._switching:
            self._unfollow()

    def _unfollow(self) -> None:
        unlisten, self._unlisten = self._unlisten, None
        if unlisten is not None:
            unlisten()
        with self._mutex:
            self.pending.clear()
        self._service.stop(wait=False)  # a subscriber may be what calls this

    def _wake(self) -> None:
        with self._mutex:
            self._more.notify_all()

    def add(self, event: Event) -> None:
        """Emit an event that is not of a commit, after those that are pending."""
        if self._unlisten is not None:
            with self._mutex:
                self.pending.append(event)

    def emit_pending(self) -> None:
        """Emit what is pending, in order. Verbs that a subscriber calls do not make events overtake each other."""
        around = _emitting.get()
        if not (self.pending or self.is_emitting) or self in around:
            return
        while not self._turn.acquire(timeout=TURN_POLL_SECONDS):
            if self._closing:
                return
        token = _emitting.set(around | {self})
        try:
            self.is_emitting = True
            while (pending := self._next()) is not None:
                for event in [pending] if isinstance(pending, Event) else events_of_all(pending):
                    try:
                        self._bus.emit(event)
                    except ExceptionGroup:
                        logger.exception("a subscriber failed")
        finally:
            self.is_emitting = False
            _emitting.reset(token)
            self._turn.release()

    def _next(self) -> Sequence[Change] | Event | None:
        with self._mutex:
            if self._dropped:
                logger.warning(
                    "subscribers are too slow: the events of %d commits were dropped", self._dropped
                )
                self._dropped = 0
            return self.pending.popleft() if self.pending else None

    def _collect(self, changes: Sequence[Change]) -> None:
        with self._mutex:
            if not self.pending:
                self._more.notify_all()
            self.pending.append(changes)
            if len(self.pending) > MAX_PENDING:
                self.pending.popleft()
                self._dropped += 1

    def _emit_left_over(self) -> None:
        """Emit what no verb has emitted within a moment."""
        with self._mutex:
            self._more.wait_for(lambda: self.pending or self._service.is_stopping)
        if self._service.pause(GRACE_SECONDS):
            self.emit_pending()


# No WeakSet: iterating one touches much memory, which each process of a job would have to copy.
_emitters: set[weakref.ref[Emitter]] = set()


def _after_fork_in_child() -> None:
    for known in list(_emitters):
        emitter = known()
        if emitter is not None:
            emitter.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def events_of_all(changes: Sequence[Change]) -> Iterator[Event]:
    """Yield the events of several changes, in their order."""
    for change in changes:
        yield from events_of(change)


def events_of(change: Change) -> Iterator[Event]:
    """Yield the events of one change: what happened to the job, then that it is available."""
    kinds = []
    if change.from_status != change.status and change.verb not in (*ENQUEUES, "available"):
        kind = _BY_STATUS.get(change.status)
        if kind is not None:
            kinds.append(kind)
    if change.available and (change.from_status != change.status or change.verb == "available"):
        kinds.append(EventKind.JOB_AVAILABLE)
    for kind in kinds:
        yield Event(
            kind=kind, at=change.at, job_id=change.job_id, type=change.type, key=change.key, tags=change.tags
        )
