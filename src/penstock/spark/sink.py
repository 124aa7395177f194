"""The sink `penstock`: the rows of a DataFrame become jobs, all or none, and none of them twice.

    df.write.format("penstock").option("url", url).mode("append").save()
    df.writeStream.format("penstock").option("url", url).option("checkpointLocation", folder).start()

Options (names without regard to case):
    url         the store
    ids         generate: rows without id and idempotency_key get random ids; a rerun then adds them again
    atomic      false: more than 1,000,000 rows, published in portions (batch writes only)
    stagingDir  SQLite: where rows wait until all of them are known to be good; beside the store

What happens when:

    tasks      check every row and stage what it becomes (`_staging`); nothing is a job yet
    driver     if a row was bad: says which, nothing was stored
               else publishes the stages of the attempts that won, in one transaction of the store
    afterwards the stages are removed; those of a driver that died, by the next write a day later

A job whose id, or idempotency key, is stored is left out: so a rerun of the same write adds what is missing. A stream also
notes (query, batch) in the same transaction: a batch that is run again after a restart adds nothing, even if its jobs were
deleted since or had no ids of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.backends._options import StoreOptions
from penstock.errors import BackendError, InvalidArgumentError, JobExistsError, QueueBlockedError, shown
from penstock.job import Job
from penstock.spark._options import Checked, boolean
from penstock.spark._places import Place
from penstock.spark._rows import Problem, RowReader, check_schema, pack, unpack
from penstock.spark._staging import Staging, staging_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StreamWriter", "Writer"]

_MOST_ATOMIC: Final = 1_000_000
_PORTION: Final = 50_000
_CHUNK_ROWS: Final = 1_000
_CHUNK_BYTES: Final = 8 << 20
#: Another writer may store the same ids between our look and our insert; then we look again.
_TRIES: Final = 5


class SinkOptions(NamedTuple):
    """The options of a write; see the module."""

    place: Place
    staging_dir: str | None
    is_atomic: bool
    generates_ids: bool


_NAMES: Final = ("url", "path", "ids", "stagingDir")


def sink_options(given: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Return the options of a write, checked.

    Raises:
        InvalidArgumentError: names everything that is wrong.
    """
    options = Checked(given, (*_NAMES, "checkpointLocation") if is_stream else (*_NAMES, "atomic"))
    places = options.places()
    if len(places) > 1:
        options.wrong.append("a frame is written to one store: give one url")
    generates = options.read("ids", _ids, False)
    atomic = options.read("atomic", boolean, True)
    folder = options.read("stagingDir", lambda _, text: text, None)
    if folder is not None and places and places[0].kind != "sqlite":
        options.wrong.append("stagingDir is for SQLite; PostgreSQL stages in tables")
    options.check()
    return SinkOptions(places[0], folder, atomic, generates)


def _ids(name: str, text: str) -> bool:
    if text.lower() != "generate":
        raise InvalidArgumentError(f"{name} must be generate, or left out, got {shown(text)}")
    return True


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task attempt tells the driver: where its rows are, and what was wrong with others."""

    group: str
    name: str
    rows: int
    refused: int
    problems: tuple[Problem, ...]
    query: str | None


class _Sink:
    """What batch and stream writers share. Made on the driver, pickled to tasks."""

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
        with options.place.open_backend() as backend:
            if backend.is_blocked():
                raise QueueBlockedError
            return staging_of(options.place, backend.store_id(), options.staging_dir)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Check a task's rows and stage them."""
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
    ) -> None:
        """Make jobs of what the tasks staged."""
        try:
            self._check(messages, is_stream=writer is not None)
            with self._options.place.open_backend() as backend:
                if self._options.is_atomic:
                    _repeated(lambda: backend.publish_jobs(self._jobs(messages), writer=writer, batch=batch))
                    return
                _check_unique(lambda: self._jobs(messages))
                jobs = self._jobs(messages)
                while portion := list(itertools.islice(jobs, _PORTION)):
                    _repeated(lambda: backend.publish_jobs(portion))
        finally:
            self.clear(messages)

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
        if rows > _MOST_ATOMIC and self._options.is_atomic:
            way_out = (
                "let a batch have less, for example by maxRowsPerTrigger"
                if is_stream
                else 'say .option("atomic", "false") to have them published in portions'
            )
            raise InvalidArgumentError(
                f"{rows} rows are too many for one transaction (at most {_MOST_ATOMIC}); {way_out}",
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
    """Writes a frame: one object is made for a write, used by its tasks, and asked to commit."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.publish([message for message in messages if isinstance(message, Staged)])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.clear(message for message in messages if isinstance(message, Staged))


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """Writes micro-batches. Each commit is made by another object, so what it needs is in the messages."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        staged = [message for message in messages if isinstance(message, Staged)]
        queries = {message.query for message in staged}
        if not staged:
            return
        (query,) = queries
        if query is None:
            raise BackendError(
                "Spark does not tell tasks the id of their query, so batches cannot be told apart"
            )
        self.publish(staged, writer=f"spark:{query}", batch=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        self.clear(message for message in messages if isinstance(message, Staged))


def _chunks(reader: RowReader, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield packed jobs, neither many nor large at a time."""
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


def _repeated(publish: Callable[[], int]) -> None:
    for left in reversed(range(_TRIES)):
        try:
            publish()
        except JobExistsError as error:
            if not left or any("twice" in reason for _, _, reason in error.failed):
                raise
        else:
            return


def _check_unique(jobs: Callable[[], Iterable[Job]]) -> None:
    """Refuse ids and keys that stand twice, before the first portion is stored. Remembers eight bytes for each."""
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
