"""From committed changes to events: collected in commit order, told by whoever comes out of a verb first.

A verb of the queue returns after its subscribers have. Verbs called on the backend itself tell nobody, so a thread looks
after what stays untold for a moment. There is one only while somebody is subscribed, and so is the listener.
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

from penstock.backends.base import Backend, Change
from penstock.events import Event, EventBus, EventKind
from penstock.job import CANCELLED, JobStatus
from penstock.lifecycle import Verb
from penstock.scope import shielded

__all__ = ["Emitter", "is_telling"]

logger = logging.getLogger("penstock")

#: Commits that may wait for their turn to be told. Verbs of a queue wait for it, so only those of the backend come so far.
MOST_UNTOLD: Final = 10_000
GRACE_SECONDS: Final = 0.005  # within it, the thread of the verb itself tells
TURN_LOOK_SECONDS: Final = 0.1

#: The emitters whose subscribers run this code. A context variable, not the thread: a coroutine's verb runs elsewhere.
_telling: contextvars.ContextVar[frozenset[Emitter]] = contextvars.ContextVar(
    "penstock_telling", default=frozenset()
)

_BY_STATUS = {
    JobStatus.COMPLETED: EventKind.JOB_COMPLETED,
    JobStatus.FAILED: EventKind.JOB_FAILED,
    JobStatus.DEAD_LETTER: EventKind.JOB_FAILED,
    JobStatus.FAILED_RETRY: EventKind.JOB_RETRY,
    JobStatus.UNKNOWN_RETRY: EventKind.JOB_RETRY,
    JobStatus.RUNNING: EventKind.JOB_STARTED,
} | dict.fromkeys(CANCELLED, EventKind.JOB_CANCELLED)


def is_telling() -> bool:
    """Whether this code runs on behalf of a subscriber, so that somebody waits for it before telling the next event."""
    return bool(_telling.get())


class Emitter:
    """Tells a bus what a backend commits. Listens only while somebody is subscribed."""

    def __init__(self, backend: Backend, bus: EventBus) -> None:
        self._backend = backend
        self._bus = bus
        self._closing = False
        self._begin()
        bus.on_change = self.attend
        _emitters.add(weakref.ref(self, _emitters.discard))

    def _begin(self) -> None:
        self._untold: deque[Sequence[Change] | Event] = deque()
        self._is_telling = False
        self._turn = threading.Lock()
        self._mutex = threading.Lock()
        self._more = threading.Condition(self._mutex)
        #: Held while the listener comes and goes; never while events are collected or told.
        self._switching = threading.Lock()
        self._unlisten: Callable[[], None] | None = None
        self._ended = threading.Event()
        self._dropped = 0

    def after_fork_in_child(self) -> None:
        """Begin anew: the listener, the thread and whoever held the locks stayed with the parent."""
        self._begin()
        self._bus.after_fork_in_child()

    def attend(self) -> None:
        """Listen to the store if somebody is subscribed, and only then."""
        if self._closing or (self._unlisten is not None) == self._bus.has_subscribers():
            return
        with self._switching:
            is_wanted = self._bus.has_subscribers()
            if is_wanted and self._unlisten is None:
                with shielded():
                    unlisten = self._backend.listen(self._collect)
                ended = threading.Event()
                try:
                    threading.Thread(
                        target=self._look_after, args=(ended,), name="penstock-events", daemon=True
                    ).start()
                except BaseException:
                    unlisten()
                    raise
                self._unlisten, self._ended = unlisten, ended
            elif not is_wanted and self._unlisten is not None:
                self._ignore()

    def close(self) -> None:
        """Let nobody wait for subscribers any more: they may be waiting for the end."""
        self._closing = True

    def stop(self) -> None:
        with self._switching:
            self._ignore()

    def _ignore(self) -> None:
        unlisten, self._unlisten = self._unlisten, None
        if unlisten is not None:
            unlisten()
        with self._mutex:
            self._ended.set()
            self._untold.clear()
            self._more.notify_all()

    def add(self, event: Event) -> None:
        if self._unlisten is not None:
            with self._mutex:
                self._untold.append(event)

    def tell(self) -> None:
        """Emit what is pending, in order. A subscriber that calls verbs does not make events overtake each other."""
        around = _telling.get()
        if not (self._untold or self._is_telling) or self in around:
            return
        while not self._turn.acquire(timeout=TURN_LOOK_SECONDS):
            if self._closing:
                return
        token = _telling.set(around | {self})
        try:
            self._is_telling = True
            while (untold := self._next()) is not None:
                for event in [untold] if isinstance(untold, Event) else events_of_all(untold):
                    try:
                        self._bus.emit(event)
                    except ExceptionGroup:
                        logger.exception("a subscriber failed")
        finally:
            self._is_telling = False
            _telling.reset(token)
            self._turn.release()

    def _next(self) -> Sequence[Change] | Event | None:
        with self._mutex:
            if self._dropped:
                logger.warning(
                    "subscribers are too slow: the events of %d commits were dropped", self._dropped
                )
                self._dropped = 0
            return self._untold.popleft() if self._untold else None

    def _collect(self, changes: Sequence[Change]) -> None:
        with self._mutex:
            if not self._untold:
                self._more.notify_all()
            self._untold.append(changes)
            if len(self._untold) > MOST_UNTOLD:
                self._untold.popleft()
                self._dropped += 1

    def _look_after(self, ended: threading.Event) -> None:
        """Tell what nobody else does, for as long as the store is listened to."""
        while not ended.is_set():
            with self._mutex:
                self._more.wait_for(lambda: self._untold or ended.is_set())
            if not ended.wait(GRACE_SECONDS):
                self.tell()


# No WeakSet: to look into one touches much memory, which each process of a job would have to copy.
_emitters: set[weakref.ref[Emitter]] = set()


def _after_fork_in_child() -> None:
    for known in list(_emitters):
        emitter = known()
        if emitter is not None:
            emitter.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def events_of_all(changes: Sequence[Change]) -> Iterator[Event]:
    for change in changes:
        yield from events_of(change)


def events_of(change: Change) -> Iterator[Event]:
    """Yield the events of one change: what happened to the job, then that it can be taken."""
    kinds = []
    if change.from_status != change.status and change.verb not in (Verb.ENQUEUE, "available"):
        kind = _BY_STATUS.get(change.status)
        if kind is not None:
            kinds.append(kind)
    if change.available and (change.from_status != change.status or change.verb == "available"):
        kinds.append(EventKind.JOB_AVAILABLE)
    for kind in kinds:
        yield Event(
            kind=kind, at=change.at, job_id=change.job_id, type=change.type, key=change.key, tags=change.tags
        )
