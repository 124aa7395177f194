"""The driver of a fleet: starts its tasks, keeps its light on, and puts it out.

Each task is a Spark job of its own. In one job with many tasks, Spark would end all of them as soon as one was lost for
good: with the first crash of a local session.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Final

import msgspec
from py4j.protocol import Py4JError
from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.app import App
from penstock.backends.base import Backend
from penstock.connection import default_url, open_backend
from penstock.errors import BackendError, InvalidArgumentError, PenstockError, shown
from penstock.job import JobStats
from penstock.lifecycle import Verb
from penstock.policy import duration
from penstock.spark._faults import check_running, is_stopped, short
from penstock.spark._parcel import pack
from penstock.spark._places import Place
from penstock.spark.fleet._task import SCHEMA, Order, Outcome, carry_out
from penstock.task import Isolation
from penstock.worker._signals import stopping_on_signals
from penstock.worker.worker import MOST_SLOTS, checked_tasks, checked_texts, checked_whole

__all__ = ["FleetReport", "run_fleet"]

logger = logging.getLogger("penstock")

MOST_TASKS: Final = 1_000
#: How often a task is begun again after Spark has given it up; it may have tried several times before.
MOST_LOSSES: Final = 3
LOOK_SECONDS: Final = 0.2
SHOW_SECONDS: Final = 1.0
#: How long a task may take to end beyond the grace of its jobs: they are killed, and reported.
END_SECONDS: Final = 45.0
CANCEL_SECONDS: Final = 30.0
BEATS_PER_LIVENESS: Final = 3
_PAGE: Final = 1_000
#: What a task could not do may be of these kinds here, too.
_KINDS: Final[dict[str, type[PenstockError]]] = {
    kind.__name__: kind for kind in (BackendError, InvalidArgumentError)
}


class FleetReport(msgspec.Struct, frozen=True):
    """What `run_fleet` did.

    Attributes:
        completed: jobs whose completion was accepted.
        failed: attempts whose failure was accepted; a job may have had several.
        tasks: Spark tasks that worked and came to their end.
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
    max_seconds: timedelta | float | None = 600.0,
    *,
    isolation: Isolation = "process",
    grace: timedelta | float = 10.0,
    types: Sequence[str] | None = None,
    tags: Sequence[str] = (),
    progress: Callable[[JobStats], None] | None = None,
) -> FleetReport:
    """Run an app's jobs on Spark: each of `tasks` Spark tasks is a worker with room for `capacity` jobs.

        run_fleet(spark, app, tasks=8, capacity=4)

    Handlers run where the executors are, as under `penstock worker`: jobs are held while they run, reports are fenced
    by their attempt, time limits and cancellations hold, and what a killed task or executor held comes back by itself.
    An app in a module is imported there; one of a script or a notebook is sent along.

    In the main thread SIGTERM and SIGINT end the fleet: the first lets running jobs finish within the grace and hands
    back the rest, uncounted; the second ends its Spark jobs at once.

    Args:
        spark: the session; local, on a cluster, or on Connect.
        app: whose handlers. Its store is SQLite, if every executor sees the file, or PostgreSQL.
        tasks: Spark tasks, 1 to 1,000. Those for which the cluster has no room wait for their turn.
        capacity: jobs at a time in each of them.
        until_idle: return when no job of its types is ready, running or waiting for a retry; else work until
            `max_seconds`, or for ever.
        max_seconds: after which no job is begun; None is never.
        isolation: "process": each job in a process of its own below its task, which can be ended; "thread": on a thread
            of the task, which is quicker for very short jobs. A task of the app may decide for itself.
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
        raise InvalidArgumentError(f"app must be an App, got {shown(app)}", field="app", value=app)
    url = app.url if app.url is not None else default_url()
    place = Place.of(url)
    fleet = _Fleet(
        spark,
        app,
        checked_whole("tasks", tasks, 1, MOST_TASKS),
        None if max_seconds is None else duration(max_seconds, "max_seconds", positive=True).total_seconds(),
        Order(
            name="",
            lamp="",
            parcel=pack(app),
            url=place.url if place.kind == "sqlite" else url,  # a file's path is absolute in the former
            place=place,
            capacity=checked_whole("capacity", capacity, 1, MOST_SLOTS),
            isolation=isolation,
            types=tuple(checked_tasks(app, types, isolation)),
            tags=checked_texts("tags", tags),
            until_idle=bool(until_idle),
            seconds=None,
            grace=duration(grace, "grace").total_seconds(),
        ),
        progress,
    )
    if progress is not None and not callable(progress):
        raise InvalidArgumentError(
            f"progress must be a function, got {shown(progress)}", field="progress", value=progress
        )
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
        order: Order,
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
        self._news: SimpleQueue[bool] = SimpleQueue()
        self._ends_at: float | None = None
        self._is_stopping = False
        self._lock = threading.Lock()
        self._outcomes: list[Outcome] = []
        self._losses: list[BaseException] = []
        self._lamp = ""
        self._wants_beat = threading.Event()
        self._beaten = threading.Condition()
        self._beats = 0
        #: Some task was sent out again and its first outcome is not among the outcomes.
        self._is_repeated = False

    def run(self) -> FleetReport:
        began = time.monotonic()
        self._ends_at = None if self._seconds is None else began + self._seconds
        with self._open_store() as backend:
            first = backend.journal_span()[1]
            self._lamp = backend.open_owner()
            try:
                with stopping_on_signals(lambda: self._news.put(False)):
                    self._start()
                    self._lead(backend)
            finally:
                self._put_out(backend)
            worked = [outcome for outcome in self._outcomes if not outcome.error]
            self._complain(worked)
            completed, failed = self._counts(backend, first, worked)
        return FleetReport(completed, failed, len(worked), time.monotonic() - began)

    def _open_store(self) -> Backend:
        return open_backend(**{**self._app.connection(), "url": self._order.url})

    # -- tasks --------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        for number in range(self._tasks):
            target = inheritable_thread_target(self._spark)(self._keep)
            threading.Thread(
                target=target, args=(number,), name=f"penstock-fleet-{number}", daemon=True
            ).start()

    def _keep(self, number: int) -> None:
        """See a task through; begin it again if it was lost."""
        losses = 0
        try:
            while not self._is_stopping and losses <= MOST_LOSSES:
                lamp = self._lamp
                try:
                    outcome = self._submit(number, lamp)
                except (PySparkException, Py4JError) as error:
                    losses += 1
                    with self._lock:
                        self._losses.append(error)
                    if not self._is_stopping:
                        logger.warning("task %d of the fleet was lost: %s", number, short(error))
                    continue
                if outcome.was_told and not self._is_stopping and not self._is_late():
                    # The light went out although nobody wanted it: this process was frozen, or away from the store.
                    self._is_repeated = True
                    if not self._is_lit_again(lamp):
                        losses += 1
                        with self._lock:
                            self._losses.append(PenstockError(self._unseen()))
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
            self._news.put(True)

    def _is_lit_again(self, lamp: str) -> bool:
        """Wait for the next beat, which lights another lamp if this one is out; return whether it was."""
        with self._beaten:
            before = self._beats
            while self._lamp == lamp and self._beats == before and not self._is_stopping:
                self._wants_beat.set()
                self._beaten.wait(LOOK_SECONDS)
        return self._lamp != lamp or self._is_stopping

    def _unseen(self) -> str:
        return f"the executor does not find this fleet in {self._order.place.shown}: is that the same store there?"

    def _submit(self, number: int, lamp: str) -> Outcome:
        left = None if self._ends_at is None else max(0.0, self._ends_at - time.monotonic())
        order = self._order._replace(name=f"{self.name}:{number}", lamp=lamp, seconds=left)
        if self._is_remote:
            self._spark.addTag(self._tag)
        else:
            self._spark.sparkContext.addJobTag(self._tag)
        frame = self._spark.range(0, 1, 1, 1).mapInArrow(lambda batches: carry_out(order, batches), SCHEMA)
        (row,) = frame.collect()
        return Outcome(*row)

    # -- leading ------------------------------------------------------------------------------------------------

    def _is_late(self) -> bool:
        return self._ends_at is not None and time.monotonic() >= self._ends_at

    def _lead(self, backend: Backend) -> None:
        """Wait for all tasks; end them when it is time, or when asked to."""
        left, stops = self._tasks, 0
        give_up_at = float("inf")
        is_cancelled = False
        beat_at = show_at = 0.0
        beat_seconds = backend.liveness.total_seconds() / BEATS_PER_LIVENESS
        while left:
            try:
                if self._news.get(timeout=LOOK_SECONDS):
                    left -= 1
                    continue
                stops += 1
            except Empty:
                pass
            now = time.monotonic()
            if not self._is_stopping and (stops or self._is_late()):
                self._is_stopping = True
                self._put_out(backend)
                give_up_at = now + self._order.grace + END_SECONDS
            if stops > 1 or now >= give_up_at:
                if is_cancelled:
                    logger.error("%d tasks of the fleet do not end; they are left to Spark", left)
                    return
                self._cancel()
                is_cancelled, stops, give_up_at = True, 1, now + CANCEL_SECONDS
            if not self._is_stopping and (now >= beat_at or self._wants_beat.is_set()):
                self._wants_beat.clear()
                beat_at = now + beat_seconds
                self._beat(backend)
            if self._progress is not None and now >= show_at:
                show_at = now + SHOW_SECONDS
                self._show(backend, self._progress)

    def _beat(self, backend: Backend) -> None:
        try:
            if not backend.beat_owner(self._lamp):
                self._lamp = backend.open_owner()
        except PenstockError as error:
            logger.warning("the fleet's driver could not beat; it is tried again: %s", error)
            return
        with self._beaten:
            self._beats += 1
            self._beaten.notify_all()

    @staticmethod
    def _show(backend: Backend, progress: Callable[[JobStats], None]) -> None:
        try:
            stats = backend.get_job_stats()
        except PenstockError as error:
            logger.warning("statistics are not to be had: %s", error)
        else:
            progress(stats)

    def _put_out(self, backend: Backend) -> None:
        """Tell all tasks that the fleet is over."""
        try:
            backend.close_owner(self._lamp)
        except PenstockError as error:  # they find out by themselves: nobody beats for it any more
            logger.warning("the fleet's end could not be told: %s", error)

    def _cancel(self) -> None:
        logger.warning("the Spark jobs of the fleet are cancelled; what they held comes back by itself")
        if self._is_remote:
            self._spark.interruptTag(self._tag)
        else:
            self._spark.sparkContext.cancelJobsWithTag(self._tag)

    # -- the end ------------------------------------------------------------------------------------------------

    def _complain(self, worked: list[Outcome]) -> None:
        """Raise if nobody worked; else say who could not.

        Raises:
            PenstockError: says what went wrong.
        """
        refusals = {outcome.error: outcome.kind for outcome in self._outcomes if outcome.error}
        if worked or (self._is_stopping and not refusals):
            for text in refusals:
                logger.warning("a task of the fleet could not work: %s", text)
            return
        if refusals:
            text, kind = next(iter(refusals.items()))
            raise _KINDS.get(kind, PenstockError)(f"no task of the fleet could work: {text}")
        cause = self._losses[-1]
        if is_stopped(self._spark):
            raise PenstockError("the Spark session was stopped while the fleet worked") from cause
        text = short(cause)
        hint = ": install Penstock on the executors" if "No module named 'penstock" in str(cause) else ""
        raise PenstockError(f"every task of the fleet was lost; the last one: {text}{hint}") from cause

    def _counts(self, backend: Backend, first: int, worked: list[Outcome]) -> tuple[int, int]:
        """Return how many completions and failures were accepted.

        Tasks have counted theirs. One that was killed has told nobody, but the journal knows who did what.
        """
        is_whole = len(worked) == self._tasks and not self._losses and not self._is_repeated
        is_speculative = (
            not is_stopped(self._spark) and self._spark.conf.get("spark.speculation", "false") == "true"
        )
        if is_whole and not is_speculative and not any(outcome.attempt for outcome in worked):
            return sum(each.completed for each in worked), sum(each.failed for each in worked)
        counts: Counter[str] = Counter()
        while rows := backend.read_journal(after=first, limit=_PAGE):
            first = rows[-1].seq
            counts.update(
                row.verb for row in rows if row.assignee_id and row.assignee_id.startswith(f"{self.name}:")
            )
        return counts[Verb.COMPLETE], counts[Verb.FAIL]
