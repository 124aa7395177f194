"""A Spark task of a fleet: a worker that runs until the queue is idle or the fleet ends.

The task polls the store for the owner row of the fleet's driver. The driver removes that row to end the fleet, and the row
expires when the driver dies. So executors and driver need no open port besides Spark's own.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pyarrow as pa

from penstock.app import App
from penstock.app.task import Isolation, Task
from penstock.backends import Backend
from penstock.errors import PenstockError
from penstock.service import Service
from penstock.spark._parcel import Parcel, shipped_origin
from penstock.spark.stores import SparkStore
from penstock.worker import Worker
from penstock.worker.origin import Origin

__all__ = ["SCHEMA", "TaskOrder", "TaskOutcome", "run_task"]

POLL_SECONDS: Final = 0.5
SCHEMA: Final = (
    "attempt int, completed long, failed long, was_stopped boolean, began boolean, error string, kind string"
)
_ARROW: Final = pa.schema(
    [
        pa.field("attempt", pa.int32()),
        pa.field("completed", pa.int64()),
        pa.field("failed", pa.int64()),
        pa.field("was_stopped", pa.bool_()),
        pa.field("began", pa.bool_()),
        pa.field("error", pa.string()),
        pa.field("kind", pa.string()),
    ]
)


class TaskOrder(NamedTuple):
    """The arguments of a task.

    Attributes:
        name: of the task's worker; the id of the Spark task attempt is added to it.
        owner_id: the owner row of the fleet's driver; the task ends when that row is gone.
        store: where the jobs are.
        seconds: after which the task ends in any case.
    """

    name: str
    owner_id: str
    parcel: Parcel
    store: SparkStore
    capacity: int
    isolation: Isolation
    types: tuple[str, ...]
    tags: tuple[str, ...]
    until_idle: bool
    seconds: float | None
    grace: float


class TaskOutcome(NamedTuple):
    """How a task ended.

    Attributes:
        attempt: Spark's attempts of it before this one.
        was_stopped: it ended because the driver's owner row was gone, or its time was up.
        began: the fleet was still running when Spark started the task.
        error: why it could not work; empty if it could.
        kind: the class of that error.
    """

    attempt: int
    completed: int = 0
    failed: int = 0
    was_stopped: bool = False
    began: bool = True
    error: str = ""
    kind: str = ""


def run_task(order: TaskOrder, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a task and yield its outcome as one row. Penstock's errors are in the row, since Spark would retry raised ones."""
    from pyspark import TaskContext  # noqa: PLC0415  # exists in tasks only

    for _ in batches:
        pass  # one row without a meaning
    context: Any = TaskContext.get()
    attempt = context.attemptNumber()
    name = f"{order.name}:{context.taskAttemptId()}"
    try:
        outcome = _work(order, name, attempt)
    except PenstockError as error:
        outcome = TaskOutcome(attempt, error=f"on {socket.gethostname()}: {error}", kind=type(error).__name__)
    yield pa.RecordBatch.from_pylist([outcome._asdict()], schema=_ARROW)


def _work(order: TaskOrder, name: str, attempt: int) -> TaskOutcome:
    store = order.store
    store.check_visible()
    app = order.parcel.open()
    app.move_to(store.url, **store.driver.task_options)
    try:
        backend = app.queue.backend
        if not backend.owners.has(order.owner_id):
            return TaskOutcome(attempt, was_stopped=True, began=False)
        if order.until_idle and not backend.runtime.has_work(order.types, order.tags):
            return TaskOutcome(attempt)  # started too late; saves a template process
        with shipped_origin(order.parcel) as origin:
            worker = _TaskWorker(app, order, name, origin)
            with _watching_driver(worker, backend, order) as was_stopped:
                worker.run(until_idle=order.until_idle)
        return TaskOutcome(attempt, worker.completed, worker.failed, was_stopped.is_set())
    finally:
        app.close()


class _TaskWorker(Worker):
    """A worker whose app may have been pickled into the task."""

    def __init__(self, app: App, order: TaskOrder, name: str, origin: Origin | None) -> None:
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
def _watching_driver(worker: Worker, backend: Backend, order: TaskOrder) -> Iterator[threading.Event]:
    """Stop the worker when the fleet ends; the yielded event is set then. The worker waits for a lost store by itself."""
    was_stopped = threading.Event()
    until = None if order.seconds is None else time.monotonic() + order.seconds

    def check() -> None:
        if (until is not None and time.monotonic() >= until) or not backend.owners.has(order.owner_id):
            was_stopped.set()
            worker.stop()
            watch.retire()

    watch = Service(
        "fleet", check, seconds=POLL_SECONDS, begins_with_pause=True, label="checking for the fleet's driver"
    )
    watch.start()
    try:
        yield was_stopped
    finally:
        watch.stop()
