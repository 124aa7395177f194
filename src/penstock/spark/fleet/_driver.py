"""The driver of a fleet: starts its tasks, sends heartbeats for the owner row they poll, and removes that row to end them.

Each task is a Spark job of its own. In one job with many tasks, Spark would end all of them as soon as one has failed too
often, which in a local session is its first crash.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Final

from py4j.protocol import Py4JError
from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.app import App
from penstock.app.task import Isolation
from penstock.backends import Backend
from penstock.backends.drivers import default_url, open_backend
from penstock.backends.engine import arguments
from penstock.durations import Duration, duration
from penstock.errors import BackendError, InvalidArgumentError, PenstockError, invalid
from penstock.job import JobStats
from penstock.lifecycle import Verb
from penstock.liveness import Heartbeat, Owner
from penstock.spark._faults import check_running, is_stopped, short
from penstock.spark._parcel import pack
from penstock.spark._report import Report
from penstock.spark.fleet._task import SCHEMA, TaskOrder, TaskOutcome, run_task
from penstock.spark.stores import store_at
from penstock.worker.arguments import MAX_SLOTS, checked_tasks, checked_whole
from penstock.worker.signals import stopping_on_signals

__all__ = ["FleetReport", "run_fleet"]

logger = logging.getLogger("penstock")

MAX_TASKS: Final = 1_000
#: How often a task is started again after Spark has given it up, each time after attempts of its own.
MAX_LOSSES: Final = 3
POLL_SECONDS: Final = 0.2
PROGRESS_SECONDS: Final = 1.0
#: How long a task may take to end after the grace of its jobs, in which they are killed and reported.
END_SECONDS: Final = 45.0
CANCEL_SECONDS: Final = 30.0
_PAGE: Final = 1_000
#: Errors of a task that are raised as the same class here.
_ERRORS: Final[dict[str, type[PenstockError]]] = {
    each.__name__: each for each in (BackendError, InvalidArgumentError)
}


class FleetReport(Report, frozen=True):
    """What `run_fleet` did.

    Attributes:
        completed: jobs whose completion was accepted.
        failed: attempts whose failure was accepted; a job may have had several.
        tasks: Spark tasks that ran to their end, without those that got no core before the fleet ended.
        seconds: how long it took.
    """

    completed: int
    failed: int
    tasks: int
    seconds: float


def run_fleet(
    spark: SparkSession,
    app: App,
    tasks: int = 8,
    capacity: int = 4,
    until_idle: bool = True,
    max_seconds: Duration | None = 600.0,
    *,
    isolation: Isolation = "process",
    grace: Duration = 10.0,
    types: Sequence[str] | None = None,
    tags: Sequence[str] = (),
    progress: Callable[[JobStats], None] | None = None,
) -> FleetReport:
    """Run an app's jobs on Spark: each of `tasks` Spark tasks is a worker with room for `capacity` jobs.

        run_fleet(spark, app, tasks=8, capacity=4)

    Handlers run where the executors are, as under `penstock worker`: jobs are held while they run, reports are fenced
    by their attempt, time limits and cancellations apply, and the jobs of a killed task or executor are reclaimed.
    An app in a module is imported there; one of a script or a notebook is pickled.

    In the main thread SIGTERM and SIGINT end the fleet: the first signal lets running jobs finish within the grace and
    releases the rest, uncounted; the second cancels its Spark jobs at once.

    Args:
        spark: the session; local, on a cluster, or on Connect.
        app: whose handlers. Its store is SQLite, if every executor sees the file, or PostgreSQL.
        tasks: Spark tasks, 1 to 1,000. Those for which the cluster has no free core wait.
        capacity: concurrent jobs per task.
        until_idle: return when no job of its types is ready, running or waiting for a retry; else work until
            `max_seconds`, or until stopped.
        max_seconds: after which no job is started; None is never.
        isolation: "process": each job in a process of its own below its task, which can be ended; "thread": on a thread
            of the task, which is quicker for very short jobs. A task of the app may name its own.
        grace: how long running jobs may go on when the fleet ends, in seconds or a timedelta.
        types: only these of the app's types; None is all.
        tags: only jobs that have all of these.
        progress: called about once a second with the store's statistics.

    Raises:
        InvalidArgumentError: an argument is wrong, or the app cannot be sent to executors; nothing was started.
        BackendError: the store cannot be opened.
        PenstockError: no task could work, for example because executors cannot import the app; says why.
    """
    if not isinstance(app, App):
        raise invalid("app", "an App", app)
    url = app.url if app.url is not None else default_url()
    store = store_at(url)
    fleet = _Fleet(
        spark,
        app,
        checked_whole("tasks", tasks, 1, MAX_TASKS),
        None if max_seconds is None else duration(max_seconds, "max_seconds", positive=True).total_seconds(),
        TaskOrder(
            name="",
            owner_id="",
            parcel=pack(app),
            store=store,
            capacity=checked_whole("capacity", capacity, 1, MAX_SLOTS),
            isolation=isolation,
            types=tuple(checked_tasks(app, types, isolation)),
            tags=arguments.tags(tags),
            until_idle=bool(until_idle),
            seconds=None,
            grace=duration(grace, "grace").total_seconds(),
        ),
        progress,
    )
    if progress is not None and not callable(progress):
        raise invalid("progress", "a function", progress)
    check_running(spark)
    return fleet.run()


class _Fleet:
    """One call of `run_fleet`."""

    def __init__(
        self,
        spark: SparkSession,
        app: App,
        tasks: int,
        seconds: float | None,
        order: TaskOrder,
        progress: Callable[[JobStats], None] | None,
    ) -> None:
        self._spark = spark
        self._app = app
        self._tasks = tasks
        self._seconds = seconds
        self._order = order
        self._progress = progress
        self.name = f"spark:{uuid.uuid4().hex[:12]}"
        self._tag = f"penstock-fleet-{self.name.partition(':')[2]}"
        self._is_remote = "connect" in type(spark).__module__
        #: False is a request to stop, True the end of a task's thread.
        self._signals: SimpleQueue[bool] = SimpleQueue()
        self._ends_at: float | None = None
        self._is_stopping = False
        self._lock = threading.Lock()
        self._outcomes: list[TaskOutcome] = []
        self._losses: list[BaseException] = []
        #: The driver's owner row: tasks work while it exists.
        self._owner: Owner | None = None
        self._heartbeat: Heartbeat | None = None
        self._beaten = threading.Condition()
        self._beats = 0
        #: A task was started again, so its first outcome is not among the outcomes.
        self._is_repeated = False

    def run(self) -> FleetReport:
        began = time.monotonic()
        self._ends_at = None if self._seconds is None else began + self._seconds
        with self._open_store() as backend:
            first = backend.journal.span()[1]
            self._owner = Owner(backend)
            self._heartbeat = Heartbeat(
                "fleet-beat", backend, self._beat, label="the heartbeat of the fleet's driver", log=logger
            )
            self._heartbeat.start()
            try:
                with stopping_on_signals(lambda: self._signals.put(False)):
                    self._start()
                    self._wait(backend)
            finally:
                self._end_owner()
            ended = [outcome for outcome in self._outcomes if not outcome.error]
            self._check_outcomes(ended)
            completed, failed = self._counts(backend, first, ended)
        tasks = sum(outcome.began for outcome in ended)
        return FleetReport(completed, failed, tasks, time.monotonic() - began)

    @property
    def _owner_id(self) -> str:
        return "" if self._owner is None else self._owner.id

    def _open_store(self) -> Backend:
        return open_backend(**{**self._app.connection(), "url": self._order.store.url})

    # -- tasks --------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        for number in range(self._tasks):
            target = inheritable_thread_target(self._spark)(self._supervise)
            threading.Thread(
                target=target, args=(number,), name=f"penstock-fleet-{number}", daemon=True
            ).start()

    def _supervise(self, number: int) -> None:
        """Run a task to its end; start it again if it was lost."""
        losses = 0
        try:
            while not self._is_stopping and losses <= MAX_LOSSES:
                owner_id = self._owner_id
                try:
                    outcome = self._run_task(number, owner_id)
                except (PySparkException, Py4JError) as error:
                    losses += 1
                    with self._lock:
                        self._losses.append(error)
                    if not self._is_stopping:
                        logger.warning("task %d of the fleet was lost: %s", number, short(error))
                    continue
                if outcome.was_stopped and not self._is_stopping and not self._is_late():
                    # The owner row expired without a stop request: this process was frozen, or cut off from the store.
                    self._is_repeated = True
                    if not self._has_new_owner(owner_id):
                        losses += 1
                        with self._lock:
                            self._losses.append(PenstockError(self._other_store()))
                    continue
                with self._lock:
                    self._outcomes.append(outcome)
                return
        except Exception as error:
            if not is_stopped(self._spark):
                logger.exception("task %d of the fleet was lost", number)
            with self._lock:
                self._losses.append(error)
        finally:
            self._signals.put(True)

    def _has_new_owner(self, owner_id: str) -> bool:
        """Wait for the next heartbeat, which makes a new owner row if this one expired; return whether it did."""
        with self._beaten:
            before = self._beats
            while self._owner_id == owner_id and self._beats == before and not self._is_stopping:
                if self._heartbeat is not None:
                    self._heartbeat.beat_now()
                self._beaten.wait(POLL_SECONDS)
        return self._owner_id != owner_id or self._is_stopping

    def _other_store(self) -> str:
        return f"the executor does not find this fleet in {self._order.store.location}: is that the same store there?"

    def _run_task(self, number: int, owner_id: str) -> TaskOutcome:
        left = None if self._ends_at is None else max(0.0, self._ends_at - time.monotonic())
        order = self._order._replace(name=f"{self.name}:{number}", owner_id=owner_id, seconds=left)
        if self._is_remote:
            self._spark.addTag(self._tag)
        else:
            self._spark.sparkContext.addJobTag(self._tag)
        frame = self._spark.range(0, 1, 1, 1).mapInArrow(lambda batches: run_task(order, batches), SCHEMA)
        (row,) = frame.collect()
        return TaskOutcome(*row)

    # -- waiting ------------------------------------------------------------------------------------------------

    def _is_late(self) -> bool:
        return self._ends_at is not None and time.monotonic() >= self._ends_at

    def _wait(self, backend: Backend) -> None:
        """Wait for all tasks; end them when the time is up or a stop is requested."""
        left, stops = self._tasks, 0
        give_up_at = float("inf")
        is_cancelled = False
        progress_at = 0.0
        while left:
            try:
                if self._signals.get(timeout=POLL_SECONDS):
                    left -= 1
                    continue
                stops += 1
            except Empty:
                pass
            now = time.monotonic()
            if not self._is_stopping and (stops or self._is_late()):
                self._is_stopping = True
                self._end_owner()
                give_up_at = now + self._order.grace + END_SECONDS
            if stops > 1 or now >= give_up_at:
                if is_cancelled:
                    logger.error("%d tasks of the fleet do not end; they are left to Spark", left)
                    return
                self._cancel()
                is_cancelled, stops, give_up_at = True, 1, now + CANCEL_SECONDS
            if self._progress is not None and now >= progress_at:
                progress_at = now + PROGRESS_SECONDS
                self._report_progress(backend, self._progress)

    def _beat(self) -> None:
        """Send a heartbeat, and wake the threads of tasks that wait for one."""
        if self._owner is not None:
            self._owner.beat()
        with self._beaten:
            self._beats += 1
            self._beaten.notify_all()

    @staticmethod
    def _report_progress(backend: Backend, progress: Callable[[JobStats], None]) -> None:
        try:
            stats = backend.get_job_stats()
        except PenstockError as error:
            logger.warning("statistics cannot be read: %s", error)
        else:
            progress(stats)

    def _end_owner(self) -> None:
        """Remove the owner row, which ends all tasks."""
        try:
            if self._heartbeat is not None:
                self._heartbeat.stop()
            if self._owner is not None:
                self._owner.close()
        except PenstockError as error:  # the row expires without heartbeats
            logger.warning("the fleet's owner row could not be removed, and will expire: %s", error)

    def _cancel(self) -> None:
        logger.warning("the Spark jobs of the fleet are cancelled; their running jobs will be reclaimed")
        if self._is_remote:
            self._spark.interruptTag(self._tag)
        else:
            self._spark.sparkContext.cancelJobsWithTag(self._tag)

    # -- the end ------------------------------------------------------------------------------------------------

    def _check_outcomes(self, ended: list[TaskOutcome]) -> None:
        """Raise if no task worked; else log why some could not.

        Raises:
            PenstockError: no task worked; says why.
        """
        refusals = {outcome.error: outcome.kind for outcome in self._outcomes if outcome.error}
        if ended or (self._is_stopping and not refusals):
            for text in refusals:
                logger.warning("a task of the fleet could not work: %s", text)
            return
        if refusals:
            text, kind = next(iter(refusals.items()))
            raise _ERRORS.get(kind, PenstockError)(f"no task of the fleet could work: {text}")
        cause = self._losses[-1]
        if is_stopped(self._spark):
            raise PenstockError("the Spark session was stopped while the fleet worked") from cause
        text = short(cause)
        hint = ": install Penstock on the executors" if "No module named 'penstock" in str(cause) else ""
        raise PenstockError(f"every task of the fleet was lost; the last one: {text}{hint}") from cause

    def _counts(self, backend: Backend, first: int, ended: list[TaskOutcome]) -> tuple[int, int]:
        """Return how many completions and failures were accepted.

        Tasks count their own. Those of a killed task are counted from the journal, which has the name of the worker.
        """
        is_whole = len(ended) == self._tasks and not self._losses and not self._is_repeated
        is_speculative = (
            not is_stopped(self._spark) and self._spark.conf.get("spark.speculation", "false") == "true"
        )
        if is_whole and not is_speculative and not any(outcome.attempt for outcome in ended):
            return sum(each.completed for each in ended), sum(each.failed for each in ended)
        counts: Counter[str] = Counter()
        while rows := backend.read_journal(after=first, limit=_PAGE):
            first = rows[-1].seq
            counts.update(
                row.verb for row in rows if row.assignee_id and row.assignee_id.startswith(f"{self.name}:")
            )
        return counts[Verb.COMPLETE], counts[Verb.FAIL]
