"""Jobs as DataFrames: a type's ready jobs become one frame, one transform works on all of them, each is reported by its row.

A wave goes like this:

    claim      up to `max_jobs` and 256 MB of payload; this process holds them while it lives
    run        payloads are parsed, `transform` is applied, its rows are collected: one Spark job
    report     a row completes its job, or fails it; a job without a row is failed; every report is fenced

While Spark runs a wave, a thread claims the next one and reports the one before.

If tasks fail, nobody knows which row it was. So the wave is halved and each half is run by itself, until the rows that
are to blame are alone. If the transform itself is wrong, if its Spark job was cancelled, or if Spark or the store is in
trouble, no row is to blame: the wave is released, and its attempts do not count.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate, islice
from typing import Any, Final, NamedTuple, Self

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.backends._options import StoreOptions
from penstock.backends.base import Failure
from penstock.connection import connect
from penstock.errors import InvalidArgumentError, PenstockError, ReportErrors, shown
from penstock.job import Job
from penstock.policy import FailureCategory, duration
from penstock.queue import Queue
from penstock.spark._faults import is_of_tasks, short
from penstock.spark._places import Place
from penstock.spark._settings import temporarily

__all__ = ["FramesReport", "run_frames"]

logger = logging.getLogger("penstock")

Transform = Callable[[DataFrame], DataFrame]

_MOST_PAYLOAD: Final = 256_000_000
_MOST_SUB_BATCHES: Final = 64
_CHUNK: Final = 5_000
_LOOK_SECONDS: Final = 0.2
# Spark keeps a table of up to 48 MB with the plan and works on it while it plans: on one core, row by row. That is quick
# for few rows only.
_FEW_ROWS: Final = 5_000
_FOR_MANY: Final = {"spark.sql.execution.arrow.localRelationThreshold": "0"}
_JSON: Final = msgspec.json.Decoder(msgspec.Raw)  # looks through a text without making anything of it
_CORRUPT: Final = "_does_not_fit"
_GIVEN: Final = ("id", "attempt", "key", "tags")
_RESULT: Final = "_result"
_INPUT: Final = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("key", pa.list_(pa.string())),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)


class FramesReport(msgspec.Struct, frozen=True):
    """What `run_frames` did.

    Attributes:
        completed: jobs whose completion was accepted.
        failed: jobs whose failure was accepted.
        waves: how many frames there were.
        seconds: how long it took.
    """

    completed: int
    failed: int
    waves: int
    seconds: float


def run_frames(
    spark: SparkSession,
    url: str,
    transform: Transform,
    *,
    type: str,
    schema: str | StructType | None = None,
    max_jobs: int = 100_000,
    until_idle: bool = True,
    max_seconds: float | None = None,
) -> FramesReport:
    """Work on all ready jobs of a type as one DataFrame, wave after wave.

        def score(frame):
            return frame.select("id", "attempt", F.length("text").alias("score"))

        run_frames(spark, url, score, type="score", schema="text string")

    The frame has `id`, `attempt`, `key`, `tags`, and the fields of the JSON payload as `schema` names them, or
    `payload` as bytes without one. The transform returns `id`, `attempt` and whatever the results are: a row's other
    columns become its job's result, as a JSON object. If it has a column `error`, a row where that is not null fails
    its job, as TEMPORARY unless the column `error_category` says otherwise. A job whose row does not come back fails
    as TEMPORARY; one that comes back twice, and one whose payload does not fit the schema, as PERMANENT.

    Args:
        spark: the session.
        url: the store.
        transform: from DataFrame to DataFrame. It may be called several times for one job.
        type: of the jobs.
        schema: of the payload, as DDL or StructType; none of its fields may be called `id`, `attempt`, `key` or `tags`.
        max_jobs: in a wave; a wave also has at most 256 MB of payload, and one job of a key. After a full wave the
            next one is claimed while Spark works, unless both would have more than 256 MB.
        until_idle: return when no job of the type is ready, running or waiting for a retry; else go on for ever.
        max_seconds: no wave begins after so long.

    Raises:
        AnalysisException: the transform does not fit the frame. As after every error that is raised, the jobs of
            the wave have been released, uncounted.
        ParseException: the schema is no DDL; no job was claimed.
        InvalidArgumentError: wrong arguments, a url without a store, or a transform that returns no `id` and `attempt`.
        BackendError: the store is in trouble.
    """
    limit = _checked(transform, type, max_jobs, max_seconds)
    place = Place.of(url)
    frames = _Frames(spark, transform, schema)
    began = time.monotonic()
    with connect(place.address, create=False) as queue, _Waves(queue, frames, type, max_jobs) as waves:
        while limit is None or time.monotonic() - began < limit:
            if waves.run_one():
                continue
            if until_idle and not queue.backend.has_work([type]):
                break
            waves.wait()
    seconds = time.monotonic() - began
    return FramesReport(waves.counts["completed"], waves.counts["failed"], waves.counts["waves"], seconds)


def _checked(transform: object, type_: object, max_jobs: object, max_seconds: float | None) -> float | None:
    if not callable(transform):
        raise InvalidArgumentError(
            f"transform must be a function of a DataFrame, got {shown(transform)}", field="transform"
        )
    if not isinstance(type_, str) or not type_:
        raise InvalidArgumentError(f"type must be a job type, got {shown(type_)}", field="type", value=type_)
    if isinstance(max_jobs, bool) or not isinstance(max_jobs, int) or not 1 <= max_jobs <= 10_000_000:
        raise InvalidArgumentError(
            f"max_jobs must be a whole number from 1 to 10000000, got {shown(max_jobs)}",
            field="max_jobs",
            value=max_jobs,
        )
    return None if max_seconds is None else duration(max_seconds, "max_seconds").total_seconds()


class _Row(NamedTuple):
    """What came back for a job."""

    result: bytes | None
    error: str | None
    category: str | None


_UNFIT: Final = _Row(None, "the payload does not fit the schema", str(FailureCategory.PERMANENT))


class _TasksFailedError(Exception):
    """Tasks failed over some row of the batch; the text says how."""


class _Waves:
    """Claims, runs and reports waves of one type: Spark is asked here, the store by a thread of its own."""

    def __init__(self, queue: Queue, frames: _Frames, type_: str, max_jobs: int) -> None:
        self._queue = queue
        self._frames = frames
        self._type = type_
        self._max_jobs = max_jobs
        self._assignee = f"frames:{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._max_result = StoreOptions().max_payload
        self._store = ThreadPoolExecutor(1, "penstock-frames")
        self._ahead: Future[dict[str, Job]] | None = None
        self._reports: list[tuple[dict[str, Job], Future[None]]] = []
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._store:
            ahead, self._ahead = self._ahead, None
            if ahead is not None and ahead.exception() is None:
                self._release(ahead.result())
            try:
                self._settle()
            except PenstockError as error:
                if kind is None:
                    raise
                logger.warning("jobs could not be reported: %s", error)

    def run_one(self) -> bool:
        """Run one wave; return whether there was anything to do."""
        ahead, self._ahead = self._ahead, None
        held = (ahead or self._store.submit(self._claim, _MOST_PAYLOAD)).result()
        try:
            if not held:
                self._settle()
                return False
            room = _MOST_PAYLOAD - sum(len(job.payload) for job in held.values())
            if len(held) == self._max_jobs and room >= _MOST_PAYLOAD // 2:
                self._ahead = self._store.submit(self._claim, room)
            self.counts["waves"] += 1
            self._work(held)
        except BaseException:
            self._reports.append((held, self._store.submit(self._release, held)))
            raise
        return True

    def _settle(self) -> None:
        """Wait until everything is reported; what could not be is released."""
        reports, self._reports = self._reports, []
        errors = [error for _, future in reports if (error := future.exception()) is not None]
        if errors:
            for held, _ in reports:
                self._release(held)
            raise errors[0]

    def wait(self) -> None:
        """Wait until a job may have become ready."""
        due = self._queue.backend.next_due()
        threading.Event().wait(_LOOK_SECONDS if due is None else min(max(due, 0.01), _LOOK_SECONDS))

    def _claim(self, room: int) -> dict[str, Job]:
        """Return the jobs of the next wave."""
        held: dict[str, Job] = {}
        try:
            for jobs in self._claimed(room):
                held.update((job.id, job) for job in jobs)
        except BaseException:
            self._release(held)
            raise
        return held

    def _claimed(self, room: int) -> Iterator[list[Job]]:
        left = self._max_jobs
        size = self._max_result  # what a payload may have; known better after the first look
        while left > 0 and room > 0:
            wanted = min(left, _CHUNK, max(1, room // size))
            jobs = self._queue.claim_jobs(self._assignee, wanted, types=[self._type])
            total = list(accumulate(len(job.payload) for job in jobs))
            fitting = bisect_right(total, room)
            yield jobs[:fitting]
            if len(jobs) < wanted or fitting < len(jobs):
                self._release({job.id: job for job in jobs[fitting:]})
                return
            left -= len(jobs)
            room -= total[-1]
            size = min(self._max_result, max(1024, 4 * max(len(job.payload) for job in jobs)))

    def _work(self, held: dict[str, Job]) -> None:
        """Run a wave, in halves if need be, and have it reported. What is reported is no longer held."""
        batches = deque([list(held.values())])
        tries = 0
        while batches:
            batch = batches.popleft()
            if tries > _MOST_SUB_BATCHES:
                why = (
                    f"the batch failed and was halved {_MOST_SUB_BATCHES} times; this job may not be to blame"
                )
                self._later(held, {}, {job.id: Failure(message=why) for job in batch})
                continue
            tries += 1
            try:
                rows, repeated = self._frames.run(batch)
            except _TasksFailedError as error:
                if len(batch) == 1:
                    self._later(held, {}, {batch[0].id: Failure(message=str(error))})
                else:
                    half = len(batch) // 2
                    batches += (batch[:half], batch[half:])
                continue
            self._later(held, *self._judged(batch, rows, repeated))

    def _judged(
        self, batch: Sequence[Job], rows: Mapping[str, _Row], repeated: set[str]
    ) -> tuple[dict[str, bytes | None], dict[str, Failure]]:
        done: dict[str, bytes | None] = {}
        failed: dict[str, Failure] = {}
        for job in batch:
            row = rows.get(job.id)
            if job.id in repeated:
                failed[job.id] = _permanent("more than one row came back")
            elif row is None:
                failed[job.id] = Failure(message="no row came back")
            elif row.error is not None:
                failed[job.id] = Failure(
                    message=row.error or "(no message)", category=_category(row.category)
                )
            elif row.result is not None and len(row.result) > self._max_result:
                failed[job.id] = _permanent(
                    f"the result has {len(row.result)} bytes; the limit is {self._max_result}"
                )
            else:
                done[job.id] = row.result
        return done, failed

    def _later(
        self, held: dict[str, Job], done: Mapping[str, bytes | None], failed: Mapping[str, Failure]
    ) -> None:
        """Have jobs reported. An error of an earlier report is raised here, or at the end."""
        under_way = []
        for each in self._reports:
            if each[1].done():
                each[1].result()
            else:
                under_way.append(each)
        self._reports = [*under_way, (held, self._store.submit(self._report, held, done, failed))]

    def _report(
        self, held: dict[str, Job], done: Mapping[str, bytes | None], failed: Mapping[str, Failure]
    ) -> None:
        """Report, count what was accepted, and let go of both."""
        self.counts["completed"] += self._accepted(held, done, self._queue.complete_jobs)
        self.counts["failed"] += self._accepted(held, failed, self._queue.fail_jobs)

    @staticmethod
    def _accepted(held: dict[str, Job], values: Mapping[str, Any], verb: Callable[..., None]) -> int:
        count = 0
        source = iter(values.items())
        while chunk := dict(islice(source, _CHUNK)):
            refused: Sequence[Exception] = ()
            try:
                verb(chunk, attempts={job_id: held[job_id].attempt for job_id in chunk})
            except ReportErrors as errors:
                refused = errors.exceptions
                logger.warning("%d of %d reports came too late: %s", len(refused), len(chunk), refused[0])
            count += len(chunk) - len(refused)
            for job_id in chunk:
                del held[job_id]
        return count

    def _release(self, held: Mapping[str, Job]) -> None:
        source = iter(held.values())
        try:
            while chunk := list(islice(source, _CHUNK)):
                self._queue.release_jobs(
                    {job.id: "the wave was given up" for job in chunk},
                    attempts={job.id: job.attempt for job in chunk},
                )
        except PenstockError as error:  # they come back when this process is seen to hold them no more
            logger.warning("jobs could not be released: %s", error)


class _Frames:
    """Makes a frame of jobs, runs the transform, and collects a row for each."""

    def __init__(self, spark: SparkSession, transform: Transform, schema: str | StructType | None) -> None:
        self._spark = spark
        self._transform = transform
        self._fields = None if schema is None else self._parsed(schema)

    def run(self, jobs: Sequence[Job]) -> tuple[dict[str, _Row], set[str]]:
        """Return what came back by job id, and the ids that came back more than once.

        Raises:
            _TasksFailedError: while rows were worked on.
        """
        attempts = {job.id: job.attempt for job in jobs}
        if self._fields is None:
            return _by_id(_collected(self._answer(self._plain(jobs))), attempts)
        # Spark reads the first value of a text and leaves the rest, so what is no JSON as a whole is found here.
        sound = [job for job in jobs if _is_json(job.payload)]
        rows: dict[str, _Row] = {}
        repeated: set[str] = set()
        if sound:
            answer = self._answer(self._fitting(sound, self._fields))
            rows, repeated = _by_id(_collected(answer), attempts)
        # Asked only now, and only of those left over: most waves have none, and parsing takes most of the time.
        left = [job for job in sound if job.id not in rows]
        fitting = {job.id for job in sound}.difference(self._unfit(left, self._fields) if left else ())
        if len(fitting) < len(jobs):
            rows |= {job.id: _UNFIT for job in jobs if job.id not in fitting}
        return rows, repeated

    def _fitting(self, jobs: Sequence[Job], fields: StructType) -> DataFrame:
        """Return the frame of those whose payload fits."""
        names = [field.name for field in fields if field.name != _CORRUPT]
        parsed = self._plain(jobs).withColumn("_fields", _parsed_payload(fields))
        return parsed.where(_fits()).select(
            *_GIVEN, *(F.col(f"_fields.`{name}`").alias(name) for name in names)
        )

    def _unfit(self, jobs: Sequence[Job], fields: StructType) -> list[str]:
        """Return the ids of those whose payload does not fit."""
        parsed = self._plain(jobs).select("id", _parsed_payload(fields).alias("_fields"))
        found: list[str] = _collected(parsed.where(~_fits()).select("id")).column("id").to_pylist()
        return found

    def _plain(self, jobs: Sequence[Job]) -> DataFrame:
        table = pa.Table.from_pydict(
            {
                "id": [job.id for job in jobs],
                "attempt": [job.attempt for job in jobs],
                "key": [job.key for job in jobs],
                "tags": [job.tags for job in jobs],
                "payload": [job.payload for job in jobs],
            },
            schema=_INPUT,
        )
        with temporarily(self._spark, _FOR_MANY if len(jobs) > _FEW_ROWS else {}):
            frame: DataFrame = self._spark.createDataFrame(table)
        return frame

    def _parsed(self, schema: str | StructType) -> StructType:
        """Return the payload's fields, and one for what does not fit."""
        if isinstance(schema, str):
            # A frame knows how to read DDL also on Connect, which has no parser of its own.
            schema = self._spark.createDataFrame([], schema).schema
        if not isinstance(schema, StructType):
            raise InvalidArgumentError(
                f"schema must be DDL or a StructType, got {shown(schema)}", field="schema"
            )
        taken = [name for name in schema.names if name.lower() in _GIVEN]
        if taken:
            raise InvalidArgumentError(
                f"schema names {', '.join(taken)}, and the frame has columns of the job by such names; without a schema"
                " the transform gets the payload itself, and may parse it as it likes",
                field="schema",
            )
        return StructType([*schema.fields]).add(_CORRUPT, "string")

    def _answer(self, jobs: DataFrame) -> DataFrame:
        """Return id, attempt, result as JSON, error and its category of every row that the transform makes of jobs."""
        with _blaming_rows():  # it may run Spark jobs of its own
            frame = self._transform(jobs)
        if not isinstance(frame, DataFrame):
            raise InvalidArgumentError(
                f"transform must return a DataFrame, got {shown(frame)}", field="transform"
            )
        missing = {"id", "attempt"}.difference(frame.columns)
        if missing:
            raise InvalidArgumentError(
                f"transform must return the columns id and attempt; {' and '.join(sorted(missing))} is missing",
                field="transform",
            )
        twice = sorted(name for name, count in Counter(frame.columns).items() if count > 1)
        if twice:
            raise InvalidArgumentError(
                f"transform must return each column once; {', '.join(twice)} is there more than once",
                field="transform",
            )
        results = [name for name in frame.columns if name not in ("id", "attempt", "error", "error_category")]
        result = (
            F.to_json(F.struct(*(F.col(f"`{name}`") for name in results)), {"ignoreNullFields": "false"})
            if results
            else F.lit(None)
        )
        return frame.select(
            F.col("id").cast("string").alias("id"),
            F.col("attempt").cast("int").alias("attempt"),
            result.cast("string").alias(_RESULT),
            *(
                (F.col(name) if name in frame.columns else F.lit(None)).cast("string").alias(name)
                for name in ("error", "error_category")
            ),
        )


def _parsed_payload(fields: StructType) -> Column:
    # Bytes that are no text are null, and do not fit either.
    text = F.try_validate_utf8(F.col("payload").cast("string"))
    return F.from_json(text, fields, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})


def _is_json(payload: bytes) -> bool:
    try:
        _JSON.decode(payload)
    except msgspec.DecodeError:
        return False
    return True


def _fits() -> Column:
    return F.col("_fields").isNotNull() & F.col(f"_fields.{_CORRUPT}").isNull()


def _collected(frame: DataFrame) -> pa.Table:
    """Return a frame's rows.

    Raises:
        _TasksFailedError: while rows were worked on.
    """
    with _blaming_rows():
        return frame.toArrow()


@contextmanager
def _blaming_rows() -> Iterator[None]:
    """Tell errors over rows from those for which no row is to blame.

    Raises:
        _TasksFailedError: while rows were worked on.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if not is_of_tasks(error):
            raise
        raise _TasksFailedError(short(error)) from error


def _by_id(table: pa.Table, attempts: Mapping[str, int]) -> tuple[dict[str, _Row], set[str]]:
    rows: dict[str, _Row] = {}
    repeated: set[str] = set()
    columns = [
        table.column(name).to_pylist() for name in ("id", "attempt", _RESULT, "error", "error_category")
    ]
    for job_id, attempt, result, error, category in zip(*columns, strict=True):
        if attempts.get(job_id) != attempt:
            logger.warning("a row came back that belongs to no job of its wave: id %s", shown(job_id))
        elif job_id in rows:
            repeated.add(job_id)
        else:
            rows[job_id] = _Row(None if result is None else result.encode(), error, category)
    return rows, repeated


def _permanent(message: str) -> Failure:
    return Failure(message=message, category=FailureCategory.PERMANENT)


def _category(name: str | None) -> FailureCategory:
    try:
        return FailureCategory.TEMPORARY if name is None else FailureCategory(name.lower())
    except ValueError:
        return FailureCategory.TEMPORARY
