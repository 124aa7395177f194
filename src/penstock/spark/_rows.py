"""Converting the rows of a DataFrame to jobs: the allowed columns, the field each becomes, and the problems of a row.

Tasks do this, so that an invalid row is found before the first job is stored. They send packed jobs to the driver, which
unpacks them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql import types as T

from penstock.backends.engine import arguments
from penstock.clock import from_micros, to_micros
from penstock.errors import InvalidArgumentError, PenstockError, invalid, shown
from penstock.job import GIVEN, TEXT_LIMITS, Job, Key, Priority
from penstock.payloads.json import encode_json
from penstock.policy import DEFAULT_RETRY, DEFAULT_TIMEOUTS, RetryPolicy, Timeouts
from penstock.spark.schemas import JOBS

__all__ = ["COLUMNS", "Problem", "RowReader", "check_schema", "pack", "reference", "unpack"]

_INTEGERS: Final = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_TEXT: Final = ("string",)
_MICROS: Final = timedelta(microseconds=1)


class SinkColumn(NamedTuple):
    """A column that a DataFrame of jobs may have; `types` are the names of its allowed types."""

    name: str
    types: tuple[str, ...]
    doc: str


#: Texts of a job that are no columns, or are one by themselves: a submitter does not give the first two, and ancestry is
#: set by the job that spawns.
_APART: Final = frozenset({"redrive_of", "trace", "parent_id", "idempotency_key"})
#: The other texts that a submitter gives. They mean what they mean in the table of jobs, and are stored as they are.
_COPIED: Final = tuple(name for name in TEXT_LIMITS if name in GIVEN and name not in _APART)
COLUMNS: Final = (
    SinkColumn("type", _TEXT, "The job's type. Required, and never null."),
    SinkColumn("id", _TEXT, "The job's id. A row needs this or `idempotency_key`."),
    SinkColumn("idempotency_key", _TEXT, "A key that is already stored (per type, for a day) adds no job."),
    SinkColumn(
        "payload",
        ("string", "binary", "struct", "map"),
        "The payload; a struct or map is stored as a JSON object.",
    ),
    SinkColumn("tags", ("array<string>",), "Labels."),
    SinkColumn("priority", ("integer",), "0 CRITICAL to 4 BULK; 2 if null."),
    SinkColumn("run_at", ("timestamp",), "Not before this moment."),
    SinkColumn("key", ("string", "array<string>"), "Jobs of one key run one at a time, in order."),
    *(SinkColumn(each.name, _TEXT, each.doc) for each in JOBS.columns if each.name in _COPIED),
    SinkColumn(
        "after",
        ("array<string>",),
        "Ids of jobs, already stored or in this DataFrame, that must complete first.",
    ),
    SinkColumn("max_attempts", ("integer",), "Maximum attempts of the retry policy; 3 if null."),
    SinkColumn("execution_timeout", ("integer", "double"), "Maximum seconds per attempt; 1800 if null."),
)
_BY_NAME: Final = {column.name: column for column in COLUMNS}


def reference() -> str:
    """Return the columns as Markdown."""
    lines = ["| Column | Type | Meaning |", "| --- | --- | --- |"]
    lines += [f"| `{each.name}` | {' or '.join(each.types)} | {each.doc} |" for each in COLUMNS]
    return "\n".join(lines)


def check_schema(schema: T.StructType, *, generates_ids: bool) -> None:
    """Check the columns of a DataFrame of jobs.

    Raises:
        InvalidArgumentError: columns are missing, unknown, of another type, or given twice; names all of them.
    """
    names = [field.name for field in schema]
    wrong = [f"the column {name} is given twice" for name in sorted({n for n in names if names.count(n) > 1})]
    for field in schema:
        column = _BY_NAME.get(field.name)
        if column is None:
            wrong.append(f"the column {shown(field.name)} is unknown (known: {', '.join(_BY_NAME)})")
        elif _type_name(field.dataType) not in (*column.types, "void"):
            wrong.append(
                f"the column {field.name} must be {' or '.join(column.types)}, not {field.dataType.simpleString()}"
                + (
                    ": a timestamp without a time zone is ambiguous"
                    if _type_name(field.dataType) == "timestamp_ntz"
                    else ""
                )
            )
    if "type" not in names:
        wrong.append("the column type is missing")
    if not generates_ids and not {"id", "idempotency_key"}.intersection(names):
        wrong.append(
            "the column id or idempotency_key is missing, so a repeated task would add its jobs twice"
            ' (if that is fine: .option("ids", "generate"))'
        )
    if wrong:
        raise InvalidArgumentError("; ".join(wrong), field="columns")


def _type_name(kind: T.DataType) -> str:
    if isinstance(kind, _INTEGERS):
        return "integer"
    if isinstance(kind, T.FloatType | T.DoubleType | T.DecimalType):  # in SQL, 12.5 is a decimal
        return "double"
    if isinstance(kind, T.StructType | T.MapType):
        return "struct" if isinstance(kind, T.StructType) else "map"
    if isinstance(kind, T.StringType):
        return "string"  # of any collation
    return kind.simpleString()


class Problem(NamedTuple):
    """A row that is not a valid job."""

    where: str
    why: str


class RowReader:
    """Converts the rows of one task to jobs.

    Attributes:
        rows: read so far.
        problems: the first few invalid rows.
        refused: how many rows are invalid.
    """

    _MAX_PROBLEMS: Final = 10

    def __init__(self, *, partition: int, generates_ids: bool, max_payload: int) -> None:
        self._partition = partition
        self._generates_ids = generates_ids
        self._max_payload = max_payload
        self.rows = 0
        self.refused = 0
        self.problems: list[Problem] = []

    def jobs(self, batch: pa.RecordBatch) -> list[Job]:
        """Return the jobs of a batch; invalid rows are recorded and left out."""
        names = batch.schema.names
        columns = [_values(name, batch.column(index)) for index, name in enumerate(names)]
        jobs: list[Job] = []
        for values in zip(*columns, strict=True):
            row = dict(zip(names, values, strict=True))
            self.rows += 1
            try:
                jobs.append(self._job(row))
            except PenstockError as error:
                self._note(row, error)
        return jobs

    def _job(self, row: dict[str, Any]) -> Job:
        get = row.get
        idempotency_key = get("idempotency_key")
        job_id = get("id")
        if job_id is None:
            if idempotency_key is None and not self._generates_ids:
                raise InvalidArgumentError("id and idempotency_key are both null", field="id")
            job_id = str(uuid.uuid4())
        if row["type"] is None:
            raise InvalidArgumentError("type is null", field="type")
        run_at, priority, key = get("run_at"), get("priority"), get("key")
        job = Job(
            id=job_id,
            type=row["type"],
            payload=_payload(get("payload")),
            tags=get("tags") or (),
            priority=Priority.NORMAL if priority is None else arguments.priority(priority),
            run_at=None if run_at is None else _moment(run_at),
            key=Key.of(key),
            idempotency_key=idempotency_key,
            after=get("after") or (),
            retry=_policy(get("max_attempts")),
            timeouts=_timeouts(get("execution_timeout")),
        )
        # Most rows have none, and naming them in the call above would double its cost.
        copied = {name: row[name] for name in _COPIED if get(name) is not None}
        return arguments.check_job(replace(job, **copied) if copied else job, self._max_payload)

    def _note(self, row: dict[str, Any], error: PenstockError) -> None:
        self.refused += 1
        if len(self.problems) < self._MAX_PROBLEMS:
            name = next(
                (f"{name} {shown(row[name])}" for name in ("id", "idempotency_key") if row.get(name)), None
            )
            where = f"row {self.rows} of partition {self._partition}"
            self.problems.append(Problem(where if name is None else f"{where}, {name}", str(error)))


# -- values -------------------------------------------------------------------------------------------------------


def _values(name: str, column: pa.Array) -> Sequence[Any]:
    """Return a column as Python values, structs and maps as values that JSON supports."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).to_pylist()  # Spark supports more years than Python
    if pa.types.is_decimal(column.type):
        return column.cast(pa.float64()).to_pylist()
    values: list[Any] = column.to_pylist()
    if name == "payload" and pa.types.is_nested(column.type):
        plain = _converter(column.type)
        return values if plain is None else [_optional(plain, each) for each in values]
    return values


def _converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return a function that converts values of a type for JSON; None if they need none."""
    if pa.types.is_struct(kind):
        inner = {field.name: convert for field in kind if (convert := _converter(field.type)) is not None}
        if not inner:
            return None
        return lambda value: {name: _optional(inner.get(name), each) for name, each in value.items()}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = _converter(kind.value_type)
        return None if item is None else lambda value: [_optional(item, each) for each in value]
    if pa.types.is_map(kind):
        entry = _converter(kind.item_type)
        return lambda value: {key: _optional(entry, each) for key, each in value}
    if pa.types.is_decimal(kind):
        return _number
    return _iso if pa.types.is_temporal(kind) else None


def _optional(convert: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if value is None or convert is None else convert(value)


def _iso(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value


def _number(value: Decimal) -> int | float | Decimal:
    """Return an equal int or float; the decimal itself, which the JSON encoder refuses, if there is none."""
    if value == value.to_integral_value():
        return int(value)
    rounded = float(value)
    return rounded if Decimal(repr(rounded)) == value else value


def _payload(value: Any) -> bytes:
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _encoded(value)
    return encode_json(value)


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError("payload holds a lone surrogate", field="payload", value=text) from None


def _moment(micros: int) -> datetime:
    if not _FIRST_MOMENT <= micros < _LAST_MOMENT:
        raise invalid(
            "run_at",
            f"in the years {arguments.FIRST_YEAR} to {arguments.LAST_YEAR} (UTC), in microseconds since 1970",
            micros,
        )
    return from_micros(micros)


_FIRST_MOMENT: Final = 0
_LAST_MOMENT: Final = to_micros(datetime.fromisoformat(f"{arguments.LAST_YEAR + 1}-01-01T00:00:00+00:00"))


# There are few different ones; equal ones are one object, since stores recognise a known policy by its identity.
@lru_cache(maxsize=1024)
def _policy(max_attempts: int | None) -> RetryPolicy:
    if max_attempts is None:
        return DEFAULT_RETRY
    return replace(DEFAULT_RETRY, max_attempts=max_attempts)


@lru_cache(maxsize=1024)
def _timeouts(execution: float | None) -> Timeouts:
    if execution is None:
        return DEFAULT_TIMEOUTS
    return replace(DEFAULT_TIMEOUTS, execution=execution)


# -- packed -------------------------------------------------------------------------------------------------------

_Packed = tuple[
    str,  # id
    str,  # type
    bytes,  # payload
    tuple[str, ...],  # tags
    int,  # priority
    int | None,  # run_at
    tuple[str, ...] | None,  # key
    str | None,  # idempotency_key
    tuple[str, ...],  # after
    int | None,  # max_attempts
    int | None,  # execution_timeout, in microseconds
    tuple[str | None, ...],  # those of _COPIED
]
_copied_of: Final = attrgetter(*_COPIED)  # a tuple, as there are several
_NONE_COPIED: Final = (None,) * len(_COPIED)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Packed]).decode


def pack(jobs: Iterable[Job]) -> bytes:
    """Return jobs as bytes for `unpack`."""
    return _encode(
        [
            (
                job.id,
                job.type,
                bytes(job.payload),
                job.tags,
                int(job.priority),
                None if job.run_at is None else to_micros(job.run_at),
                job.key,
                job.idempotency_key,
                job.after,
                None if job.retry is DEFAULT_RETRY or job.retry is None else job.retry.max_attempts,
                None if job.timeouts is DEFAULT_TIMEOUTS else _execution(job.timeouts),
                _copied_of(job),
            )
            for job in jobs
        ]
    )


def _execution(timeouts: Timeouts) -> int | None:
    return None if timeouts.execution is None else timeouts.execution // _MICROS


def unpack(data: bytes) -> Iterator[Job]:
    """Yield the jobs that `pack` has packed."""
    for (
        job_id, type_, payload, tags, priority, run_at, key, idempotency_key, after, max_attempts, execution, copied,
    ) in _decode(data):  # fmt: skip
        job = Job(
            id=job_id,
            type=type_,
            payload=payload,
            tags=tags,
            priority=_PRIORITIES[priority],
            retry=_policy(max_attempts),
            timeouts=_timeouts(None if execution is None else execution / 1_000_000),
            idempotency_key=idempotency_key,
            run_at=None if run_at is None else from_micros(run_at),
            key=None if key is None else Key(*key),
            after=after,
        )
        yield job if copied == _NONE_COPIED else replace(job, **dict(zip(_COPIED, copied, strict=True)))


_PRIORITIES: Final = tuple(Priority)
