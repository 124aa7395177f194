"""The sink without a session: what its writers make of rows, in this process."""

import math
import os
import pickle
import threading
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema

import penstock
from penstock import Job, JobStatus, Priority
from penstock.errors import (
    BackendError,
    DependencyError,
    InvalidArgumentError,
    JobExistsError,
    PenstockError,
    QueueBlockedError,
)
from penstock.policy import DEFAULT_RETRY, DEFAULT_TIMEOUTS
from penstock.spark import sink
from penstock.spark.source import PenstockSource
from penstock.spark.stores import store_at
from penstock.spark.stores.sqlite import FileStaging
from penstock.spark.stores.staging import STALE_SECONDS


def writer_of(url, table, *, overwrite=False, **options):
    schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=False)
    return PenstockSource(CaseInsensitiveDict(url=url, **options)).writer(schema, overwrite)


def attempt(writer, table):
    """What a task does, in a process of its own: so the writer is pickled."""
    return pickle.loads(pickle.dumps(writer)).write(iter(table.to_batches(max_chunksize=7)))


def save(url, *parts, **options):
    """Write a frame of these partitions."""
    writer = writer_of(url, parts[0], **options)
    messages = [attempt(writer, part) for part in parts]
    pickle.loads(pickle.dumps(writer)).commit(messages)
    return writer


def frame(count=3, first=0, **columns):
    rows = range(first, first + count)
    return pa.table({"id": [f"job-{n}" for n in rows], "type": ["t"] * count, **columns})


def jobs_in(url):
    with penstock.open_backend(url) as backend:
        return {job.id: job for job in backend.list_jobs(limit=1000)}


def leftovers(url):
    """Return the stages that were left behind."""
    if url.startswith("sqlite"):
        folder = Path(url.removeprefix("sqlite:///") + "-staging")
        return [entry.name for entry in folder.iterdir() if entry.is_dir()] if folder.exists() else []
    with psycopg.connect(url) as connection:
        found = connection.execute(
            r"SELECT relname FROM pg_class WHERE relname LIKE 'sink\_%' AND relkind = 'r'"
        )
        return [name for (name,) in found]


def test_every_column_reaches_its_field(url):
    due = datetime(2030, 1, 2, 3, 4, 5, 678901, UTC)
    table = pa.table(
        {
            "id": ["a", "b"],
            "type": ["mail", "mail"],
            "payload": ["text ü", None],
            "tags": [["x", "y", "x"], None],
            "priority": pa.array([0, None], pa.int32()),
            "run_at": pa.array([due, None], pa.timestamp("us", "UTC")),
            "key": ["customer-1", None],
            "idempotency_key": ["once", None],
            "correlation_id": ["c", None],
            "callback_url": ["http://x/", None],
            "after": [["b"], None],
            "max_attempts": pa.array([7, None], pa.int64()),
            "execution_timeout": [1.5, None],
        }
    )
    save(url, table)
    full, bare = jobs_in(url)["a"], jobs_in(url)["b"]
    assert (full.type, full.payload, full.tags) == ("mail", "text ü".encode(), ("x", "y"))
    assert (full.priority, full.run_at, full.key) == (Priority.CRITICAL, due, ("customer-1",))
    assert (full.idempotency_key, full.correlation_id, full.callback_url) == ("once", "c", "http://x/")
    assert (full.after, full.retry.max_attempts) == (("b",), 7)
    assert full.timeouts.execution == timedelta(seconds=1.5)
    assert (full.timeouts.visibility, full.timeouts.lifetime) == (
        DEFAULT_TIMEOUTS.visibility,
        DEFAULT_TIMEOUTS.lifetime,
    )
    assert (bare.payload, bare.tags, bare.run_at, bare.key, bare.after) == (b"", (), None, None, ())
    assert (bare.retry, bare.timeouts) == (DEFAULT_RETRY, DEFAULT_TIMEOUTS)


def test_null_means_the_default_of_submit(url):
    nulls = {
        name: pa.array([None], kind)
        for name, kind in {
            "payload": pa.binary(), "tags": pa.list_(pa.string()), "priority": pa.int8(), "run_at": pa.timestamp("us", "UTC"),
            "key": pa.list_(pa.string()), "correlation_id": pa.string(), "max_attempts": pa.int32(),
            "execution_timeout": pa.float32(),
        }.items()
    }  # fmt: skip
    save(url, frame(1, **nulls))
    with penstock.connect(url) as queue:
        submitted = queue.submit("t")
        written = queue.get_job("job-0")
    times = ("id", "created_at", "scheduled_at", "updated_at")
    assert {name: getattr(written, name) for name in Job.__struct_fields__ if name not in times} == {
        name: getattr(submitted, name) for name in Job.__struct_fields__ if name not in times
    }


STRUCT = {
    "text": "ü",
    "number": 5,
    "real": 0.5,
    "truth": True,
    "nothing": None,
    "list": [1, 2],
    "price": Decimal("1.250"),
    "whole": Decimal(9007199254740993),
    "inner": {"when": datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC), "day": date(2030, 1, 2)},
}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array(["{}"]), b"{}"),
        (pa.array([b"\x00\xff"]), b"\x00\xff"),
        (
            pa.array([STRUCT]),
            '{"text":"ü","number":5,"real":0.5,"truth":true,"nothing":null,"list":[1,2],"price":1.25,"whole":9007199254740993,'
            '"inner":{"when":"2030-01-02T03:04:05Z","day":"2030-01-02"}}'.encode(),
        ),
        (pa.array([[("a", 1), ("b", None)]], pa.map_(pa.string(), pa.int64())), b'{"a":1,"b":null}'),
    ],
    ids=["text", "bytes", "struct", "map"],
)
def test_payloads_may_be_text_bytes_or_what_becomes_json(sqlite_url, values, expected):
    save(sqlite_url, frame(1, payload=values))
    assert jobs_in(sqlite_url)["job-0"].payload == expected


def test_a_frame_is_published_once_however_often_it_is_written(url):
    for _ in range(2):
        save(url, frame(4), frame(4, 4))
    save(url, frame(3, 2), frame(3, 5))  # other partitions, some of the same rows
    with penstock.open_backend(url) as backend:
        entries = backend.read_journal()
    assert sorted(entry.job_id for entry in entries) == sorted(f"job-{n}" for n in range(8))
    assert leftovers(url) == []


def test_a_job_that_has_run_is_not_added_again(url):
    save(url, frame(2))
    with penstock.connect(url) as queue:
        (job,) = queue.backend.dequeue_jobs("w")
        queue.complete_job(job.id)
    save(url, frame(2))
    assert jobs_in(url)[job.id].status is JobStatus.COMPLETED


def test_an_idempotency_key_is_enough(url):
    table = pa.table({"type": ["t", "t"], "idempotency_key": ["a", "b"]})
    for _ in range(2):
        save(url, table)
    assert sorted(job.idempotency_key for job in jobs_in(url).values()) == ["a", "b"]


def test_only_the_attempt_that_won_is_published(url):
    """F31: an attempt that was repeated, by failure or speculation, leaves rows that are never read."""
    writer = writer_of(url, frame())
    lost, won = attempt(writer, frame()), attempt(writer, frame())
    assert lost.name != won.name
    assert jobs_in(url) == {}
    writer.commit([won])
    assert len(jobs_in(url)) == 3
    assert leftovers(url) == []


def test_an_attempt_that_dies_leaves_nothing_in_the_way(url):
    writer = writer_of(url, frame())

    def batches():
        yield from frame(2000).to_batches()
        raise OSError("killed")

    with pytest.raises((OSError, BackendError)):
        writer.write(batches())
    writer.commit([attempt(writer, frame())])
    assert len(jobs_in(url)) == 3
    assert leftovers(url) == []


def test_an_aborted_write_leaves_nothing(url):
    writer = writer_of(url, frame())
    writer.abort([attempt(writer, frame()), None])
    assert jobs_in(url) == {}
    assert leftovers(url) == []


def test_what_a_dead_driver_left_goes_by_its_age(url, monkeypatch):
    attempt(writer_of(url, frame()), frame())
    attempt(writer_of(url, frame()), frame())
    assert len(leftovers(url)) == 2
    save(url, frame())
    assert len(leftovers(url)) == 2  # they might be in use
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + STALE_SECONDS + 60)
    save(url, frame())
    assert leftovers(url) == []


def test_a_job_may_wait_for_others_of_the_frame_and_of_the_store(url):
    save(url, frame(1))
    chain = pa.table({"id": ["z", "y"], "type": ["t", "t"], "after": [["y"], ["job-0"]]})
    save(url, chain)
    assert jobs_in(url)["z"].after == ("y",)
    with pytest.raises(DependencyError, match="missing"):
        save(url, pa.table({"id": ["q", "r"], "type": ["t", "t"], "after": [None, ["missing"]]}))
    assert {"q", "r"}.isdisjoint(jobs_in(url))


def test_no_rows_are_no_jobs(url):
    save(url, frame(0, payload=pa.array([], pa.string())))
    assert jobs_in(url) == {}


def test_ids_are_made_up_only_if_that_is_asked_for(url):
    table = pa.table({"type": ["t", "t"]})
    with pytest.raises(InvalidArgumentError, match=r"id or idempotency_key is missing.*generate"):
        save(url, table)
    save(url, table, ids="generate")
    save(url, table, IDS="generate")
    assert len(jobs_in(url)) == 4


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (pa.table({"id": ["a"]}), "column type is missing"),
        (frame(1, colour=["red"]), "column 'colour' is unknown"),
        (frame(1, priority=["high"]), "priority must be integer, not string"),
        (frame(1, tags=["x"]), "tags must be array<string>, not string"),
        (frame(1, run_at=pa.array([0], pa.timestamp("us"))), "run_at must be timestamp, not timestamp_ntz"),
        (frame(1, key=[5]), "key must be string or array<string>"),
        (frame(1, payload=[1.5]), "payload must be string or binary or struct or map"),
        (frame(1, execution_timeout=["1s"]), "execution_timeout must be integer or double"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_frame_of_another_shape_is_refused(sqlite_url, table, says):
    with pytest.raises(InvalidArgumentError, match=says):
        schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
        PenstockSource(CaseInsensitiveDict(url=sqlite_url)).writer(schema, False)


BAD_ROWS = [
    ({"type": pa.array([None], pa.string())}, "type is null"),
    ({"id": pa.array([None], pa.string())}, "both null"),
    ({"id": [""]}, "id must be a text of 1 to 512"),
    ({"type": ["nul\0"]}, "without NUL"),
    ({"priority": [9]}, "priority must be a Priority"),
    ({"tags": [["x", None]]}, "tags must be made of strings"),
    ({"max_attempts": [0]}, "max_attempts must be a whole number"),
    ({"execution_timeout": [math.nan]}, "execution"),
    ({"execution_timeout": [-1.0]}, "execution"),
    ({"payload": ["x" * 1_048_577]}, "payload has 1048577 bytes"),
    ({"payload": [{"deep": {"real": math.inf}}]}, r"payload\.deep\.real must be a finite number"),
    ({"payload": [{"raw": b"bytes"}]}, r"payload\.raw must be JSON"),
    ({"payload": [{"price": Decimal("0.1234567890123456789")}]}, r"payload\.price must be JSON"),
    ({"key": pa.array([[]], pa.list_(pa.string()))}, "key must be one or more strings"),
    ({"run_at": pa.array([-1], pa.timestamp("us", "UTC"))}, "run_at must be in the years"),
    ({"run_at": pa.array([2**62], pa.timestamp("us", "UTC"))}, "run_at must be in the years"),
]


@pytest.mark.parametrize(("columns", "says"), BAD_ROWS, ids=[says for _, says in BAD_ROWS])
def test_a_bad_row_is_named_and_nothing_is_stored(sqlite_url, columns, says):
    names = {
        name: pa.array(values) if isinstance(values, list) else values for name, values in columns.items()
    }
    bad = pa.table({"id": pa.array(["bad"]), "type": pa.array(["t"]), **names})
    good = pa.table(
        {
            name: pa.array([{"id": "good", "type": "t"}.get(name)], kind)
            for name, kind in zip(bad.schema.names, bad.schema.types, strict=True)
        }
    )
    with pytest.raises(
        InvalidArgumentError, match=f"1 rows cannot become jobs, so none was stored: row 2.*{says}"
    ):
        save(sqlite_url, pa.concat_tables([good, bad]))
    assert jobs_in(sqlite_url) == {}
    assert leftovers(sqlite_url) == []


def test_of_many_bad_rows_the_first_are_listed(sqlite_url):
    bad = frame(50, priority=[7] * 50)
    with pytest.raises(InvalidArgumentError, match=r"100 rows cannot .*'job-0'.*; and 90 more"):
        save(sqlite_url, bad, bad)


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"id": ["a", "b", "a"], "type": ["t"] * 3}),
        pa.table({"type": ["t"] * 3, "idempotency_key": ["a", "b", "a"]}),
    ],
    ids=["id", "idempotency_key"],
)
def test_what_stands_twice_refuses_the_write(url, table, monkeypatch):
    monkeypatch.setattr(sink, "_PORTION", 1)
    for options in ({}, {"atomic": "false"}):
        with pytest.raises(JobExistsError, match="twice"):
            save(url, table.slice(0, 2), table.slice(2), **options)
        assert jobs_in(url) == {}
    other_type = pa.table({"type": ["t", "u"], "idempotency_key": ["a", "a"]})
    save(url, other_type)
    assert len(jobs_in(url)) == 2


def test_overwriting_is_refused(sqlite_url):
    with pytest.raises(InvalidArgumentError, match=r'never overwritten: use \.mode\("append"\)'):
        writer_of(sqlite_url, frame(), overwrite=True)


def test_wrong_options_are_all_named(sqlite_url):
    with pytest.raises(InvalidArgumentError) as caught:
        writer_of(sqlite_url, frame(), colour="red", ids="random", atomic="maybe")
    for word in ("'colour'", "ids must be generate", "atomic must be true or false"):
        assert word in str(caught.value)


def test_a_frame_goes_to_one_store(sqlite_url):
    with pytest.raises(InvalidArgumentError, match="one store"):
        writer_of(f'["{sqlite_url}", "{sqlite_url}2"]', frame())
    with pytest.raises(InvalidArgumentError, match="belongs to one process"):
        writer_of("memory:", frame())
    with pytest.raises(BackendError, match="does not exist"):
        writer_of(f"{sqlite_url}/nowhere/jobs.db", frame())


def test_a_blocked_queue_takes_nothing(url):
    writer = writer_of(url, frame())
    message = attempt(writer, frame())
    with penstock.connect(url) as queue:
        queue.block()
    with pytest.raises(QueueBlockedError):
        writer_of(url, frame())
    with pytest.raises(QueueBlockedError):
        writer.commit([message])
    assert jobs_in(url) == {}


def test_many_rows_are_published_in_portions_if_that_is_said(url, monkeypatch):
    monkeypatch.setattr(sink, "_MAX_ATOMIC", 5)
    monkeypatch.setattr(sink, "_PORTION", 4)
    with pytest.raises(InvalidArgumentError, match=r'6 rows are too many.*"atomic", "false"'):
        save(url, frame(6))
    assert jobs_in(url) == {}
    save(url, frame(6), atomic="false")
    save(url, frame(9), atomic="false")
    assert len(jobs_in(url)) == 9
    with pytest.raises(InvalidArgumentError, match="leave out atomic=false"):
        save(url, frame(1, after=[["job-0"]]), atomic="false")


# -- faults -------------------------------------------------------------------------------------------------------


def test_two_that_write_the_same_frame_at_once_add_it_once(url):
    writers = [writer_of(url, frame()) for _ in range(3)]
    ready = threading.Barrier(3)
    failures = []

    def run(writer):
        message = writer.write(iter(frame(200).to_batches()))
        ready.wait()
        try:
            writer.commit([message])
        except PenstockError as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert len(jobs_in(url)) == 200


def test_staging_that_executors_do_not_see_is_an_error_that_says_so(sqlite_url, tmp_path):
    writer = writer_of(sqlite_url, frame(), stagingDir=str(tmp_path / "stage"))
    message = attempt(writer, frame())
    for entry in (tmp_path / "stage").glob("probe-*"):
        entry.unlink()
    with pytest.raises(BackendError, match="driver and executors share"):
        attempt(writer, frame())
    Path(message.name).unlink()
    with pytest.raises(BackendError, match="staged rows are gone"):
        writer.commit([message])
    assert jobs_in(sqlite_url) == {}


def test_a_torn_stage_is_noticed(sqlite_url):
    writer = writer_of(sqlite_url, frame())
    message = attempt(writer, frame(3000))
    size = Path(message.name).stat().st_size
    for keep in (size // 2, 3, 0):
        again = attempt(writer, frame(3000))
        os.truncate(again.name, keep)
        with pytest.raises(BackendError, match="staged rows"):
            writer.commit([again])
    assert jobs_in(sqlite_url) == {}


def test_a_folder_that_cannot_be_written_to_is_said_at_once(sqlite_url, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BackendError, match="cannot be written to"):
        writer_of(sqlite_url, frame(), stagingDir=str(tmp_path / "file"))


def test_staged_rows_are_for_their_owner_alone(sqlite_url):
    message = attempt(writer_of(sqlite_url, frame()), frame())
    assert Path(message.name).stat().st_mode & 0o077 == 0
    assert Path(message.name).parent.stat().st_mode & 0o077 == 0


@pytest.mark.postgres
def test_a_server_that_goes_away_is_an_error_without_the_password(postgres_database):
    secret = postgres_database.replace("postgres:@", "postgres:hush@")
    writer = writer_of(secret, frame())
    writer._staging._store = store_at(secret.replace("/data", "/nowhere"))
    with pytest.raises(BackendError, match="while rows were staged") as caught:
        attempt(writer, frame())
    assert "hush" not in str(caught.value)
    with pytest.raises(InvalidArgumentError, match="stagingDir is for SQLite"):
        writer_of(postgres_database, frame(), stagingDir="/tmp")


def test_the_folder_of_a_store_is_its_own(tmp_path):
    FileStaging(tmp_path, "1" * 32)
    FileStaging(tmp_path, "2" * 32).check()
    assert len(list(tmp_path.iterdir())) == 2
