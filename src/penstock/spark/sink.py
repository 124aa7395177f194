"""The sink `penstock`: the rows of a DataFrame become jobs, all or none, and none twice.

    df.write.format("penstock").option("url", url).mode("append").save()
    df.writeStream.format("penstock").option("url", url).option("checkpointLocation", folder).start()

Options (names are case-insensitive):
    url         the store
    ids         generate: rows without id and idempotency_key get random ids; a rerun then adds them again
    atomic      false: publish in portions; required above 1,000,000 rows (batch writes only)
    stagingDir  SQLite: a folder for rows that are not published yet; default: beside the store
    reportFile  a file on the driver's machine for {"added": …, "skipped": …} (batch writes only)

A batch write also logs how many rows were added and skipped, to stderr if logging is not configured.

Steps of a write:

    tasks      validate every row and stage it (`penstock.spark.stores`); nothing is a job yet
    driver     raises if a row is invalid, and nothing is stored; else it publishes the stages of the task attempts
               that won, in one transaction of the store
    cleanup    the stages are removed; those of a driver that died, by a write at least a day later

A row whose id or idempotency key is already stored is skipped, so a rerun of the same write adds what is missing. A stream
also records (query, batch) in the same transaction: a batch that is repeated after a restart adds nothing, even if its jobs
were deleted since or had generated ids.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.backends.engine import arguments
from penstock.backends.options import StoreOptions
from penstock.errors import (
    BackendError,
    InvalidArgumentError,
    JobExistsError,
    QueueBlockedError,
    invalid,
    shown,
)
from penstock.job import Job
from penstock.spark._options import Checked, boolean
from penstock.spark._rows import Problem, RowReader, check_schema, pack, unpack
from penstock.spark.stores import SparkStore, Staging

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.backends import Backend

__all__ = ["StreamWriter", "Writer", "Written"]

logger = logging.getLogger("penstock")

_MAX_ATOMIC: Final = 1_000_000
_PORTION: Final = 50_000
_CHUNK_ROWS: Final = 1_000
_CHUNK_BYTES: Final = 8 << 20
#: Another writer may store the same ids between the query and the insert; then both are repeated.
_MAX_TRIES: Final = 5


class SinkOptions(NamedTuple):
    """The options of a write; see the module."""

    store: SparkStore
    staging_dir: str | None
    is_atomic: bool
    generates_ids: bool
    report_file: str | None = None


class Written(msgspec.Struct, frozen=True):
    """How many rows of a write became jobs, and how many were skipped because their id or key was already stored."""

    added: int
    skipped: int


_MAX_PATH: Final = 4_096
_NAMES: Final = ("url", "path", "ids", "stagingDir")
_BATCH_NAMES: Final = ("atomic", "reportFile")


def sink_options(given: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Return the validated options of a write.

    Raises:
        InvalidArgumentError: names every problem.
    """
    options = Checked(given, (*_NAMES, "checkpointLocation") if is_stream else (*_NAMES, *_BATCH_NAMES))
    stores = options.stores()
    if len(stores) > 1:
        options.wrong.append("a frame is written to one store: give one url")
    generates = options.read("ids", _ids, False)
    atomic = options.read("atomic", boolean, True)
    folder = options.read("stagingDir", _path, None)
    if folder is not None and stores and not stores[0].stages_in_files:
        options.wrong.append("stagingDir is for SQLite; PostgreSQL stages in tables")
    report_file = options.read("reportFile", _new_file, None)
    options.check()
    return SinkOptions(stores[0], folder, atomic, generates, report_file)


def _path(name: str, text: str) -> str:
    return arguments.text(name, text, _MAX_PATH)


def _new_file(name: str, text: str) -> str:
    path = Path(_path(name, text)).absolute()
    try:
        if path.parent.is_dir() and not path.is_dir():
            return str(path)
    except OSError:  # not a valid file name
        pass
    raise InvalidArgumentError(f"{name} must name a file in a folder that is there, got {shown(text)}")


def _ids(name: str, text: str) -> bool:
    if text.lower() != "generate":
        raise invalid(name, "generate, or left out", text)
    return True


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The commit message of a task attempt: where its rows are staged, and which rows are invalid."""

    group: str
    name: str
    rows: int
    refused: int
    problems: tuple[Problem, ...]
    query: str | None


class _Sink:
    """The base of batch and stream writers. Made on the driver, pickled to tasks."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgumentError(
                'jobs are added, never overwritten: use .mode("append"), or .outputMode("append") for a stream',
                field="mode",
                value="overwrite",
            )
        check_schema(schema, generates_ids=options.generates_ids)
        if not options.is_atomic and "after" in schema.fieldNames():
            raise InvalidArgumentError(
                "a frame with the column after is published whole: leave out atomic=false", field="atomic"
            )
        self._options = options
        self._staging = self._prepared()

    def _prepared(self) -> Staging:
        options = self._options
        with options.store.open_backend() as backend:
            if backend.is_blocked():
                raise QueueBlockedError
            return options.store.new_staging(backend.journal.store_id(), options.staging_dir)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Validate a task's rows and stage them."""
        self._staging.check()
        context = TaskContext.get()
        reader = RowReader(
            partition=0 if context is None else context.partitionId(),
            generates_ids=self._options.generates_ids,
            max_payload=StoreOptions().max_payload,
        )
        chunks = _chunks(reader, iterator)
        first = next(chunks, None)
        name = "" if first is None else self._staging.write(itertools.chain([first], chunks))
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        return Staged(self._staging.group, name, reader.rows, reader.refused, tuple(reader.problems), query)

    def publish(
        self, messages: Sequence[Staged], *, writer: str | None = None, batch: int | None = None
    ) -> Written:
        """Store the staged rows as jobs; return how many were added and skipped."""
        try:
            self._check(messages, is_stream=writer is not None)
            with self._options.store.open_backend() as backend:
                if self._options.is_atomic:
                    added = _repeated(
                        lambda: backend.publish_jobs(self._jobs(messages), writer=writer, batch=batch)
                    )
                else:
                    added = self._publish_portions(backend, messages)
        finally:
            self.clear(messages)
        return Written(added, sum(message.rows for message in messages) - added)

    def _publish_portions(self, backend: Backend, messages: Sequence[Staged]) -> int:
        _check_unique(lambda: self._jobs(messages))
        jobs = self._jobs(messages)
        added = 0
        while portion := list(itertools.islice(jobs, _PORTION)):
            added += _repeated(partial(backend.publish_jobs, portion))
        return added

    def _check(self, messages: Sequence[Staged], *, is_stream: bool) -> None:
        refused = sum(message.refused for message in messages)
        if refused:
            problems = [problem for message in messages for problem in message.problems][:10]
            listed = "; ".join(f"{problem.where}: {problem.why}" for problem in problems)
            more = f"; and {refused - len(problems)} more" if refused > len(problems) else ""
            raise InvalidArgumentError(
                f"{refused} rows cannot become jobs, so none was stored: {listed}{more}", field="rows"
            )
        rows = sum(message.rows for message in messages)
        if rows > _MAX_ATOMIC and self._options.is_atomic:
            remedy = (
                "make batches smaller, for example with maxRowsPerTrigger"
                if is_stream
                else 'set .option("atomic", "false") to publish them in portions'
            )
            raise InvalidArgumentError(
                f"{rows} rows are too many for one transaction (at most {_MAX_ATOMIC}); {remedy}",
                field="rows",
                value=rows,
            )

    def _jobs(self, messages: Iterable[Staged]) -> Iterator[Job]:
        for message in messages:
            if message.name:
                count = 0
                for chunk in self._staging.read(message.name):
                    for job in unpack(chunk):
                        count += 1
                        yield job
                if count != message.rows:
                    raise BackendError(f"{count} of {message.rows} staged rows were found in {message.name}")

    def clear(self, messages: Iterable[Staged | None]) -> None:
        for group in {self._staging.group, *(message.group for message in messages if message is not None)}:
            self._staging.clear(group)


class Writer(_Sink, DataSourceArrowWriter):
    """Writes a DataFrame: one object per write, pickled to its tasks, and used again for the commit."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        written = self.publish([message for message in messages if isinstance(message, Staged)])
        if self._options.report_file is not None:
            try:
                Path(self._options.report_file).write_bytes(msgspec.json.encode(written))
            except OSError as error:  # the jobs are stored, with or without a report
                _log(f"reportFile {self._options.report_file} could not be written: {error.strerror}")
        location = self._options.store.location
        _log(f"{location}: {written.added} rows added, {written.skipped} skipped (already stored)")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.clear(message for message in messages if isinstance(message, Staged))


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """Writes micro-batches. Each commit is made by another object, so all it needs is in the messages."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        staged = [message for message in messages if isinstance(message, Staged)]
        queries = {message.query for message in staged}
        if not staged:
            return
        (query,) = queries
        if query is None:
            raise BackendError(
                "Spark did not pass the id of the query to its tasks, so batches cannot be distinguished"
            )
        self.publish(staged, writer=f"spark:{query}", batch=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        self.clear(message for message in messages if isinstance(message, Staged))


def _log(text: str) -> None:
    """Log a line, or write it to stderr: Spark commits in a process of its own, where logging is not configured."""
    logger.info(text)
    if not logger.hasHandlers():
        sys.stderr.write(f"penstock: {text}\n")


def _chunks(reader: RowReader, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield packed jobs in chunks of limited number and size."""
    jobs: list[Job] = []
    size = 0
    for batch in batches:
        for begin in range(0, batch.num_rows, _CHUNK_ROWS):
            for job in reader.jobs(batch.slice(begin, _CHUNK_ROWS)):
                jobs.append(job)
                size += len(job.payload)
                if len(jobs) >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
                    yield pack(jobs)
                    jobs, size = [], 0
    if jobs:
        yield pack(jobs)


def _repeated(publish: Callable[[], int]) -> int:
    for _ in range(_MAX_TRIES - 1):
        try:
            return publish()
        except JobExistsError as error:
            if any("twice" in reason for _, _, reason in error.failed):
                raise
    return publish()


def _check_unique(jobs: Callable[[], Iterable[Job]]) -> None:
    """Refuse ids and keys that occur twice, before the first portion is stored. Keeps eight bytes per name in memory."""
    import numpy as np  # noqa: PLC0415 - only here

    hashes = np.fromiter((hash(name) for job in jobs() for name in _names(job)), dtype=np.int64)
    hashes.sort()
    suspects = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    if not suspects:
        return
    seen: set[tuple[str, ...]] = set()
    failed: list[tuple[int, str, str]] = []
    for index, job in enumerate(jobs()):
        for name in _names(job):
            if hash(name) in suspects:
                if name in seen:
                    what = "id" if len(name) == 1 else f"idempotency key {shown(job.idempotency_key)}"
                    failed.append((index, job.id, f"its {what} stands twice in the frame"))
                seen.add(name)
    if failed:
        raise JobExistsError(failed[0][1], failed)


def _names(job: Job) -> Iterator[tuple[str, ...]]:
    yield (job.id,)
    if job.idempotency_key is not None:
        yield (job.type, job.idempotency_key)
