"""From committed changes to events: collected in commit order, told by whoever comes out of a verb first."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from penstock.backends.base import Backend, Change
from penstock.events import Event, EventBus, EventKind
from penstock.job import CANCELLED, JobStatus
from penstock.lifecycle import Verb

__all__ = ["Emitter", "is_telling"]

logger = logging.getLogger("penstock")

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
        self._pending: deque[Event] = deque()
        self._turn = threading.Lock()
        self._unlisten: Callable[[], None] | None = None

    def attend(self) -> None:
        """Begin to listen to the store, if that has not happened yet."""
        if self._unlisten is None:
            self._unlisten = self._backend.listen(self._collect)

    def stop(self) -> None:
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None

    def add(self, event: Event) -> None:
        self._pending.append(event)

    def tell(self) -> None:
        """Emit what is pending, in order. A subscriber that calls verbs does not make events overtake each other."""
        around = _telling.get()
        if not self._pending or self in around:
            return
        with self._turn:
            token = _telling.set(around | {self})
            try:
                while self._pending:
                    try:
                        self._bus.emit(self._pending.popleft())
                    except ExceptionGroup:
                        logger.exception("a subscriber failed")
            finally:
                _telling.reset(token)

    def _collect(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._pending.extend(events_of(change))


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
