"""Fixtures and shorthand for the suite of the queue, which runs over any store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.documents import DocumentQueue
from penstock.errors import OperationCancelledError
from penstock.events import EventKind
from penstock.job import Job, Key
from penstock.queue import Queue
from penstock.queue.stream import JobStream
from penstock.scope import cancel_scope
from penstock.testing.conformance._support import MakeBackend, assert_sound

#: Seconds after which a test that waits fails.
SOON = 20.0
HERE = ("doc", "global", "main")


class QueueSuite:
    """Base of every family: the fixtures that the tests ask for. Time is real: streams wait."""

    @pytest.fixture
    def connect(self, make_backend: MakeBackend) -> Iterator[Callable[..., Queue]]:
        """Opens queues on the store; what is still open at the end is closed, and its journal must be sound."""
        opened: list[Queue] = []

        def open_queue(**options: Any) -> Queue:
            opened.append(Queue(make_backend(**options)))
            return opened[-1]

        yield open_queue
        for queue in opened:
            try:
                if not queue._closed:  # noqa: SLF001 - not public
                    queue._dispatcher.stop()  # noqa: SLF001 - nothing moves while the journal is read
                    assert_sound(queue.backend)
            finally:
                queue.close()

    @pytest.fixture
    def queue(self, connect: Callable[..., Queue]) -> Queue:
        """A queue on an empty store."""
        return connect()

    @pytest.fixture
    def documents(self, queue: Queue) -> DocumentQueue:
        """A document queue on an empty store."""
        return DocumentQueue(queue)


def job(name: str, **fields: Any) -> Job:
    """Return a job; its type is "work" unless given."""
    return Job(**{"id": name, "type": "work", **fields})


def part(name: str, key: tuple[str, str, str] = HERE) -> Job:
    """Return a job of a document."""
    return Job(id=name, type="document", key=Key(*key))


def taken(found: Job | None) -> Job:
    """Return a job that must be there."""
    assert found is not None
    return found


def put(queue: Queue, *names: str, **fields: Any) -> None:
    """Enqueue one job per name, in one call, all with the same fields."""
    queue.enqueue_jobs([job(name, **fields) for name in names])


def take(stream: JobStream, count: int) -> list[Job]:
    """Receive exactly so many jobs, within bounds."""
    jobs: list[Job] = []
    with cancel_scope(timeout=SOON):
        while len(jobs) < count:
            jobs += next(stream)
    assert len(jobs) == count
    return jobs


def nothing_comes(stream: JobStream) -> None:
    """Assert that a stream delivers nothing for a while."""
    with cancel_scope(timeout=0.25), pytest.raises(OperationCancelledError):
        next(stream)


def until(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + SOON
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.002)


def heard(queue: Queue) -> list[tuple[EventKind, Any]]:
    """Return a list to which every event is added from now on."""
    events: list[tuple[EventKind, Any]] = []
    for kind in EventKind:
        queue.events.subscribe(kind, lambda event: events.append((event.kind, event.job_id)))
    return events


def drain(documents: DocumentQueue) -> list[str]:
    """Complete every job; return the ids in the order of delivery."""
    order = []
    while (found := documents.dequeue_next()) is not None:
        order.append(found.id)
        documents.complete(found.id)
    return order
