"""Journals for tests of the tables: made by a store, or by hand, and handed to Spark."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

import penstock
from penstock.backends import Backend
from penstock.job import JobStatus, JournalEntry, Key, Priority
from penstock.testing import ManualClock

START = datetime(2026, 11, 16, 9, 30, tzinfo=UTC)


def _arrow_schema() -> Any:
    import pyarrow as pa

    moment, strings = pa.timestamp("us", "UTC"), pa.list_(pa.string())
    kinds = {
        "seq": pa.int64(),
        **dict.fromkeys(("recorded_at", "due_at", "ready_at", "started_at"), moment),
        **dict.fromkeys(("key", "tags", "after", "after_any"), strings),
        **dict.fromkeys(
            ("n", "attempt", "retry_count", "failures", "max_attempts", "priority", "progress"), pa.int32()
        ),
    }
    names = ("source", *JournalEntry.__struct_fields__)
    return pa.schema([(name, kinds.get(name, pa.string())) for name in names])


def memory_store(**options: Any) -> tuple[Backend, ManualClock]:
    """Return a store in memory and the clock it goes by."""
    clock = ManualClock(START)
    return penstock.open_backend("memory:", clock=clock, **options), clock


def entries_of(backend: Backend) -> list[JournalEntry]:
    found: list[JournalEntry] = []
    while page := backend.read_journal(after=found[-1].seq if found else 0, limit=10_000):
        found += page
    return found


def frame_of(spark: Any, entries: Iterable[JournalEntry], source: str = "store") -> Any:
    """Return journal entries as the DataFrame that the source would give."""
    return frame_of_all(spark, {source: list(entries)})


def frame_of_all(spark: Any, journals: Mapping[str, Iterable[JournalEntry]]) -> Any:
    """Return the journals of several stores as one DataFrame; handed over in one piece, which is far quicker."""
    return spark.createDataFrame(table_of_all(journals))


def table_of_all(journals: Mapping[str, Iterable[JournalEntry]]) -> Any:
    import pyarrow as pa

    rows = [_values(entry, source) for source, entries in journals.items() for entry in entries]
    return pa.Table.from_pylist(rows, schema=_arrow_schema())


def _values(entry: JournalEntry, source: str) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, Key | tuple):
            return list(value)
        if isinstance(value, Priority):
            return int(value)
        return str(value) if isinstance(value, str) else value

    fields = {name: plain(value) for name, value in msgspec.structs.asdict(entry).items()}
    if entry.from_status is not None:
        fields["after"] = fields["after_any"] = None
    return {"source": source, **fields}


class Journal:
    """A journal written by hand: each call adds a row, as right or as wrong as it is told."""

    def __init__(self) -> None:
        self.entries: list[JournalEntry] = []
        self._last: dict[str, JournalEntry] = {}
        self.now = START

    def __call__(self, job_id: str, verb: str, status: str | None = None, **fields: Any) -> JournalEntry:
        previous = self._last.get(job_id)
        before = JobStatus.INITIAL_PENDING if previous is None else previous.status
        defaults: dict[str, Any] = {
            "recorded_at": self.now,
            "n": 1 if previous is None else previous.n + 1,
            "type": "work",
            "from_status": None if previous is None else before,
            "status": before if status is None else JobStatus(status),
            "attempt": 0,
            "retry_count": 0,
            "failures": 0,
            "max_attempts": 3,
            "priority": Priority.NORMAL,
            "key": None,
            "tags": (),
            "idempotency_key": None,
            "assignee_id": None,
            "due_at": None,
            "error_category": None,
            "error_code": None,
            "error_message": "",
            "progress": 0,
        }
        kept = (
            "type",
            "attempt",
            "retry_count",
            "failures",
            "max_attempts",
            "key",
            "tags",
            "idempotency_key",
        )
        if previous is not None:
            defaults |= {name: getattr(previous, name) for name in (*kept, "assignee_id")}
        if verb in {"claim", "restart"}:
            defaults |= {
                "attempt": defaults["attempt"] + 1,
                "assignee_id": "worker-1",
                "status": JobStatus.RUNNING,
            }
        elif (
            previous is not None
            and before in {"running", "cancelling"}
            and defaults["status"]
            not in {
                "running",
                "cancelling",
            }
        ):
            started = [each for each in self.entries if each.job_id == job_id and each.verb == "claim"]
            defaults |= {"ready_at": started[-1].recorded_at, "started_at": started[-1].recorded_at}
        given = {"seq": len(self.entries) + 1, **defaults, **fields}
        entry = JournalEntry(job_id=job_id, verb=verb, **given)
        self.entries.append(entry)
        self._last[job_id] = entry
        self.now += timedelta(seconds=1)
        return entry

    def forget(self, job_id: str) -> None:
        """Let the next row of an id begin a new history."""
        del self._last[job_id]

    def healthy(self, job_id: str, **fields: Any) -> None:
        """Add a job that was enqueued, claimed and completed."""
        self(job_id, "enqueue", **fields)
        self(job_id, "claim")
        self(job_id, "complete", "completed")


def rows_of(frame: Any, *columns: str) -> list[tuple[Any, ...]]:
    """Return a frame's rows, sorted, as tuples of these columns."""
    chosen: Sequence[str] = columns or frame.columns
    return sorted((tuple(row) for row in frame.select(*chosen).collect()), key=repr)
