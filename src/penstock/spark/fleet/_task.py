"""What a Spark task of a fleet does: it is a worker until nothing is left to do, or the fleet is over.

Whether the fleet goes on is asked of the store: its driver keeps a liveness row there, removes it to end the fleet, and
loses it by dying. So no port has to be open between executors and driver but Spark's own.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pyarrow as pa

from penstock.app import App
from penstock.backends.base import Backend
from penstock.errors import PenstockError
from penstock.spark._parcel import Parcel, shipped_origin
from penstock.spark._places import Place
from penstock.task import Isolation, Task
from penstock.worker import Worker
from penstock.worker._origin import Origin

__all__ = ["SCHEMA", "Order", "Outcome", "carry_out"]

logger = logging.getLogger("penstock")

LOOK_SECONDS: Final = 0.5
SCHEMA: Final = "attempt int, completed long, failed long, was_told boolean, error string, kind string"
_ARROW: Final = pa.schema(
    [
        pa.field("attempt", pa.int32()),
        pa.field("completed", pa.int64()),
        pa.field("failed", pa.int64()),
        pa.field("was_told", pa.bool_()),
        pa.field("error", pa.string()),
        pa.field("kind", pa.string()),
    ]
)


class Order(NamedTuple):
    """What a task is to do.

    Attributes:
        name: by which the store knows it, but for the number of its Spark task.
        lamp: the driver's liveness row: no light, no fleet.
        url: of the store; the place is the same, for those who look at files.
        seconds: after which it ends in any case.
    """

    name: str
    lamp: str
    parcel: Parcel
    url: str
    place: Place
    capacity: int
    isolation: Isolation
    types: tuple[str, ...]
    tags: tuple[str, ...]
    until_idle: bool
    seconds: float | None
    grace: float


class Outcome(NamedTuple):
    """What became of a task.

    Attributes:
        attempt: how many times Spark had tried it before.
        was_told: it ended because the fleet did.
        error: why it could not work; empty if it could.
        kind: the class of that error.
    """

    attempt: int
    completed: int = 0
    failed: int = 0
    was_told: bool = False
    error: str = ""
    kind: str = ""


def carry_out(order: Order, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Work as the order says, and give one row. Our errors are told in it: Spark would try them again and again."""
    from pyspark import TaskContext  # noqa: PLC0415  # there is one only in a task

    for _ in batches:
        pass  # one row, which says nothing
    context: Any = TaskContext.get()
    attempt = context.attemptNumber()
    name = f"{order.name}:{context.taskAttemptId()}"
    try:
        outcome = _work(order, name, attempt)
    except PenstockError as error:
        outcome = Outcome(attempt, error=f"on {socket.gethostname()}: {error}", kind=type(error).__name__)
    yield pa.RecordBatch.from_pylist([outcome._asdict()], schema=_ARROW)


def _work(order: Order, name: str, attempt: int) -> Outcome:
    place = order.place
    if place.kind == "sqlite":
        place.check_file()
    app = order.parcel.open()
    # Many tasks share a server: one connection each is enough, since reports are batched and claims are too.
    app.move_to(order.url, **({"pool_size": 1, "listen": False} if place.kind == "postgresql" else {}))
    try:
        backend = app.queue.backend
        if not backend.has_owner(order.lamp):
            return Outcome(attempt, was_told=True)
        if order.until_idle and not backend.has_work(order.types, order.tags):
            return Outcome(attempt)  # it came too late; that need not cost a template
        with shipped_origin(order.parcel) as origin:
            worker = _TaskWorker(app, order, name, origin)
            with _looking(worker, backend, order) as was_told:
                worker.run(until_idle=order.until_idle)
        return Outcome(attempt, worker.completed, worker.failed, was_told.is_set())
    finally:
        app.close()


class _TaskWorker(Worker):
    """A worker whose app may have come by value."""

    def __init__(self, app: App, order: Order, name: str, origin: Origin | None) -> None:
        self._shipped = origin
        super().__init__(
            app,
            order.capacity,
            isolation=order.isolation,
            grace=order.grace,
            tags=order.tags,
            types=order.types,
            name=name,
        )

    def _origin_of(self, tasks: list[Task[Any, Any]]) -> Origin:
        return self._shipped or super()._origin_of(tasks)


@contextmanager
def _looking(worker: Worker, backend: Backend, order: Order) -> Iterator[threading.Event]:
    """Stop the worker when the fleet is over; gives an event that says so."""
    ended, was_told = threading.Event(), threading.Event()
    until = None if order.seconds is None else time.monotonic() + order.seconds

    def look() -> None:
        while not ended.wait(LOOK_SECONDS):
            try:
                is_lit = backend.has_owner(order.lamp)
            except PenstockError as error:  # nobody can say; the worker itself waits for the store
                logger.warning("whether the fleet goes on is not known: %s", error)
                is_lit = True
            if not is_lit or (until is not None and time.monotonic() >= until):
                was_told.set()
                worker.stop()
                return

    thread = threading.Thread(target=look, name="penstock-fleet", daemon=True)
    thread.start()
    try:
        yield was_told
    finally:
        ended.set()
        thread.join()
