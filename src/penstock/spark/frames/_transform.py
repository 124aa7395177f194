"""One Spark job of a wave: jobs become a DataFrame, the transform is applied, and its rows are collected by job id."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.errors import InvalidArgumentError, invalid, shown
from penstock.job import Job
from penstock.policy import FailureCategory
from penstock.spark._faults import is_of_tasks, short
from penstock.spark._settings import temporarily

__all__ = ["FrameRunner", "ResultRow", "TasksFailedError", "Transform"]

logger = logging.getLogger("penstock")

Transform = Callable[[DataFrame], DataFrame]

# Spark keeps a local table of up to 48 MB in the plan and evaluates it while planning, on one core and row by row. That is
# fast for few rows only.
_FEW_ROWS: Final = 5_000
_FOR_MANY: Final = {"spark.sql.execution.arrow.localRelationThreshold": "0"}
_JSON: Final = msgspec.json.Decoder(msgspec.Raw)  # validates a text without building objects
_CORRUPT: Final = "_does_not_fit"
_JOB_COLUMNS: Final = ("id", "attempt", "key", "tags")
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


class ResultRow(NamedTuple):
    """The row that the transform returned for a job."""

    result: bytes | None
    error: str | None
    category: str | None


_UNFIT: Final = ResultRow(None, "the payload does not fit the schema", str(FailureCategory.PERMANENT))


class TasksFailedError(Exception):
    """Spark tasks failed on some row of the batch; the message is Spark's."""


class FrameRunner:
    """Makes a DataFrame of jobs, applies the transform, and collects its rows."""

    def __init__(self, spark: SparkSession, transform: Transform, schema: str | StructType | None) -> None:
        self._spark = spark
        self._transform = transform
        self._fields = None if schema is None else self._parsed(schema)

    def run(self, jobs: Sequence[Job]) -> tuple[dict[str, ResultRow], set[str]]:
        """Return the rows by job id, and the ids that have more than one row.

        Raises:
            TasksFailedError: Spark tasks failed.
        """
        attempts = {job.id: job.attempt for job in jobs}
        if self._fields is None:
            return _by_id(_collected(self._transformed(self._plain(jobs))), attempts)
        # Spark reads the first JSON value of a text and ignores the rest, so the whole text is validated here.
        valid = [job for job in jobs if _is_json(job.payload)]
        rows: dict[str, ResultRow] = {}
        repeated: set[str] = set()
        if valid:
            frame = self._transformed(self._fitting(valid, self._fields))
            rows, repeated = _by_id(_collected(frame), attempts)
        # Only jobs without a row are parsed again: most waves have none, and parsing takes most of the time.
        left = [job for job in valid if job.id not in rows]
        fitting = {job.id for job in valid}.difference(self._unfit(left, self._fields) if left else ())
        if len(fitting) < len(jobs):
            rows |= {job.id: _UNFIT for job in jobs if job.id not in fitting}
        return rows, repeated

    def _fitting(self, jobs: Sequence[Job], fields: StructType) -> DataFrame:
        """Return a DataFrame of the jobs whose payload fits the schema."""
        names = [field.name for field in fields if field.name != _CORRUPT]
        parsed = self._plain(jobs).withColumn("_fields", _parsed_payload(fields))
        return parsed.where(_fits()).select(
            *_JOB_COLUMNS, *(F.col(f"_fields.`{name}`").alias(name) for name in names)
        )

    def _unfit(self, jobs: Sequence[Job], fields: StructType) -> list[str]:
        """Return the ids of the jobs whose payload does not fit the schema."""
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
        """Return the payload's fields, and one for records that do not fit."""
        if isinstance(schema, str):
            # createDataFrame parses DDL also on Connect, which has no parser of its own.
            schema = self._spark.createDataFrame([], schema).schema
        if not isinstance(schema, StructType):
            raise invalid("schema", "DDL or a StructType", schema)
        taken = [name for name in schema.names if name.lower() in _JOB_COLUMNS]
        if taken:
            raise InvalidArgumentError(
                f"schema names {', '.join(taken)}, and the frame has columns of the job by such names; without a schema"
                " the transform gets the payload as bytes and may parse it itself",
                field="schema",
            )
        return StructType([*schema.fields]).add(_CORRUPT, "string")

    def _transformed(self, jobs: DataFrame) -> DataFrame:
        """Return id, attempt, result as JSON, error and its category of every row that the transform returns."""
        with _task_errors():  # the transform may run Spark jobs itself
            frame = self._transform(jobs)
        if not isinstance(frame, DataFrame):
            raise invalid("transform", "a function that returns a DataFrame", frame)
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
    # Bytes that are not UTF-8 become NULL, which does not fit either.
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
        TasksFailedError: Spark tasks failed.
    """
    with _task_errors():
        return frame.toArrow()


@contextmanager
def _task_errors() -> Iterator[None]:
    """Raise errors of tasks, which some row has caused, as TasksFailedError; pass on all others.

    Raises:
        TasksFailedError: Spark tasks failed.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if not is_of_tasks(error):
            raise
        raise TasksFailedError(short(error)) from error


def _by_id(table: pa.Table, attempts: Mapping[str, int]) -> tuple[dict[str, ResultRow], set[str]]:
    rows: dict[str, ResultRow] = {}
    repeated: set[str] = set()
    columns = [
        table.column(name).to_pylist() for name in ("id", "attempt", _RESULT, "error", "error_category")
    ]
    for job_id, attempt, result, error, category in zip(*columns, strict=True):
        if attempts.get(job_id) != attempt:
            logger.warning("the transform returned a row for no job of its wave: id %s", shown(job_id))
        elif job_id in rows:
            repeated.add(job_id)
        else:
            rows[job_id] = ResultRow(None if result is None else result.encode(), error, category)
    return rows, repeated
