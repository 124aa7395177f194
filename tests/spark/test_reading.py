"""The source without a session: what its readers plan and read, in this process."""

import json
from datetime import UTC, datetime, timedelta

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import datasource as ds
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType
from tests.waiting import until

import penstock
from penstock import Job
from penstock.errors import BackendError, InvalidArgumentError
from penstock.spark import _planning, _scan
from penstock.spark.schemas import JOBS, JOURNAL, struct_of
from penstock.spark.source import PenstockSource
from penstock.spark.stores import store_at
from penstock.testing import ManualClock

SEQS = StructType([StructField("seq", LongType())])


def reader_of(url, schema=SEQS, **options):
    return PenstockSource(CaseInsensitiveDict(url=url, **options)).reader(schema=schema)


def rows_of(reader):
    """All rows as dicts, in the order of the partitions."""
    found = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            found += batch.to_pylist()
    return found


def seqs_of(reader):
    return [row["seq"] for row in rows_of(reader)]


def test_the_journal_is_what_the_store_says(varied):
    with penstock.open_backend(varied) as backend:
        entries, source_id = backend.read_journal(), backend.journal.store_id()
    rows = rows_of(reader_of(varied, struct_of(JOURNAL)))
    assert len(rows) == len(entries) > 15
    for row, entry in zip(rows, entries, strict=True):
        assert row.pop("source") == source_id
        for name, value in row.items():
            said = getattr(entry, name)
            if name in ("after", "after_any"):  # only on the first row
                assert value == (list(said) if entry.from_status is None else None)
            elif isinstance(said, tuple):
                assert value == list(said), name
            else:
                assert value == said, name


def test_the_jobs_are_what_the_store_says(varied):
    with penstock.open_backend(varied) as backend:
        jobs, source_id = {job.id: job for job in backend.list_jobs()}, backend.journal.store_id()
        steps = {entry.job_id: entry.n for entry in backend.read_journal()}
    rows = rows_of(reader_of(varied, struct_of(JOBS), table="jobs"))
    assert {row["id"] for row in rows} == set(jobs)
    for row in rows:
        job = jobs[row["id"]]
        assert row.pop("source") == source_id
        assert row.pop("n") == steps[job.id]
        retry, timeouts = row.pop("retry"), row.pop("timeouts")
        assert timeouts == {
            name: None if (span := getattr(job.timeouts, name)) is None else span.total_seconds()
            for name in ("execution", "visibility", "lifetime")
        }
        if job.retry is None:
            assert retry is None
        else:
            assert retry["max_attempts"] == job.retry.max_attempts
            assert retry["initial_delay"] == job.retry.initial_delay.total_seconds()
            assert retry["retry_on"] == list(job.retry.retry_on)
        for name, value in row.items():
            said = getattr(job, name)
            assert value == (list(said) if isinstance(said, tuple) else said), (job.id, name)


def test_the_table_jobs_has_every_field_of_a_job():
    assert set(struct_of(JOBS).names) == {"source", "n", *Job.__struct_fields__} - {
        "state"
    }  # a view of the others


def test_a_schema_chooses_columns_and_their_order(varied):
    schema = StructType([StructField("status", StringType()), StructField("n", IntegerType())])
    (partition,) = reader_of(varied, schema).partitions()
    batches = list(reader_of(varied, schema).read(partition))
    assert {batch.schema for batch in batches} == {
        pa.schema([pa.field("status", pa.string()), pa.field("n", pa.int32())])
    }
    only_source = StructType([StructField("source", StringType())])
    assert len(rows_of(reader_of(varied, only_source))) == sum(batch.num_rows for batch in batches)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ([("status", LongType())], "status is string, not bigint"),
        ([("seq", LongType()), ("nonsense", StringType())], "'nonsense' is unknown"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(sqlite_url, fields, says):
    with pytest.raises(InvalidArgumentError, match=says):
        reader_of(sqlite_url, StructType([StructField(name, kind) for name, kind in fields]))


def test_the_same_range_read_twice_gives_the_same_rows(varied):
    reader = reader_of(varied, struct_of(JOURNAL))
    (partition,) = reader.partitions()
    first = [batch.to_pylist() for batch in reader.read(partition)]
    with penstock.connect(varied) as queue:
        queue.submit("late")
        queue.cancel_jobs(job_ids=["held"])
    assert [batch.to_pylist() for batch in reader.read(partition)] == first


@pytest.mark.postgres
def test_a_row_that_commits_late_is_not_skipped(postgres_database):
    """Its number is given after the commit: a read that came before cannot have passed it."""
    with penstock.connect(postgres_database) as queue, psycopg.connect(postgres_database) as slow:
        queue.joined(slow).submit("slow")
        queue.submit("quick")
        assert seqs_of(reader_of(postgres_database)) == [1]
        slow.commit()
    assert seqs_of(reader_of(postgres_database)) == [1, 2]


def test_an_empty_store_has_no_rows(url):
    penstock.connect(url).close()
    reader = reader_of(url, struct_of(JOURNAL))
    assert reader.partitions() == []
    assert list(reader.read(ds.InputPartition(None))) == []  # what Spark plans for no partitions


def test_large_ranges_are_split_among_tasks_and_statements(varied, monkeypatch):
    monkeypatch.setattr(_planning, "_ROWS_PER_TASK", 4)
    monkeypatch.setattr(_scan, "_STATEMENT_ROWS", 3)
    whole = seqs_of(reader_of(varied, partitions="1"))
    reader = reader_of(varied, partitions="3", batchRows="2")
    assert len(reader.partitions()) == 3
    assert seqs_of(reader) == whole == list(range(1, len(whole) + 1))
    assert len(reader_of(varied, partitions="100").partitions()) == -(-len(whole) // 4)


def test_columns_that_are_empty_at_first_keep_their_type(sqlite_url):
    """SQLite's driver takes types from the first values it sees."""
    with penstock.connect(sqlite_url) as queue:
        for number in range(6):
            queue.submit("t", key=f"k{number}" if number > 4 else None)
    rows = rows_of(reader_of(sqlite_url, struct_of(JOURNAL), batchRows="2"))
    assert [row["key"] for row in rows] == [None] * 5 + [["k5"]]


# -- a part of a table ---------------------------------------------------------------------------------------------

MOMENT = {"journal": "recorded_at", "jobs": "created_at"}
SELECTIONS = [
    ({"minSeq": "5"}, lambda row: row["seq"] >= 5),
    ({"maxSeq": "3"}, lambda row: row["seq"] <= 3),
    ({"minSeq": "4", "maxSeq": "4"}, lambda row: row["seq"] == 4),
    ({"minSeq": "0", "maxSeq": str(2**63 - 1)}, lambda _: True),
    ({"minSeq": "1000"}, lambda _: False),
    ({"maxSeq": "0"}, lambda _: False),
    ({"statuses": "failed_retry"}, lambda row: row["status"] == "failed_retry"),
    ({"statuses": "RUNNING, failed"}, lambda row: row["status"] in ("running", "failed")),
    ({"statuses": "['running', 'failed']"}, lambda row: row["status"] in ("running", "failed")),
    ({"types": "b"}, lambda row: row["type"] == "b"),
    ({"types": '["a", "none"]'}, lambda row: row["type"] == "a"),
    ({"types": "a,c", "statuses": "running,completed"}, lambda row: row["type"] in "ac"
        and row["status"] in ("running", "completed")),
    ({"types": "a", "minSeq": "3", "maxSeq": "12"}, lambda row: row["type"] == "a" and 3 <= row["seq"] <= 12),
]  # fmt: skip


CASES = [("journal", *each) for each in SELECTIONS]
CASES += [("jobs", *each) for each in SELECTIONS if "Seq" not in str(each[0])]


@pytest.mark.parametrize(
    ("table", "options", "wanted"), CASES, ids=[f"{name} {given}" for name, given, _ in CASES]
)
def test_a_part_of_a_table_is_what_a_filter_of_the_whole_gives(varied, table, options, wanted):
    schema = struct_of({"journal": JOURNAL, "jobs": JOBS}[table])
    everything = rows_of(reader_of(varied, schema, table=table))
    assert rows_of(reader_of(varied, schema, table=table, **options)) == [
        row for row in everything if wanted(row)
    ]


@pytest.mark.parametrize("table", ["journal", "jobs"])
def test_a_time_begins_with_since_and_ends_before_until(url, table):
    clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))
    with penstock.connect(url, clock=clock) as queue:
        for _ in range(5):
            queue.submit("t")
            clock.advance(60)
    schema = struct_of({"journal": JOURNAL, "jobs": JOBS}[table])
    moments = [row[MOMENT[table]] for row in rows_of(reader_of(url, schema, table=table))]
    assert len(set(moments)) == 5

    def between(**options):
        rows = rows_of(reader_of(url, schema, table=table, **options))
        return [row[MOMENT[table]] for row in rows]

    assert between(since=str(moments[2])) == moments[2:]
    assert between(until=moments[2].isoformat()) == moments[:2]
    assert between(since="2026-03-01T01:01:00+01:00", until="2026-03-01 00:03:00Z") == moments[1:3]
    assert between(since="2026-03-01T00:00:00.000001Z") == moments[1:]


def test_a_range_of_seq_reads_no_other_rows(varied):
    """The store's primary key decides: rows outside are not even looked at."""
    (partition,) = reader_of(varied, minSeq="4", maxSeq="6").partitions()
    assert (partition.first, partition.last) == (4, 6)
    assert reader_of(varied, minSeq="7", maxSeq=str(2**63 - 1), partitions="1").partitions()[0].first == 7
    assert reader_of(varied, minSeq="1000").partitions() == []


def test_several_stores_are_each_read_in_part(varied, tmp_path):
    other = f"sqlite:///{tmp_path}/other.db"
    with penstock.connect(other) as queue:
        queue.submit_many([{"type": "a"}, {"type": "z"}])
    schema = StructType([*SEQS, StructField("type", StringType())])
    rows = rows_of(reader_of(json.dumps([varied, other]), schema, types="a,z", maxSeq="2"))
    everything = rows_of(reader_of(json.dumps([varied, other]), schema))
    assert rows == [row for row in everything if row["seq"] <= 2 and row["type"] in "az"]


def test_text_cannot_leave_its_quotes(varied):
    for text in ("' OR 1 = 1 --", "\\' OR 1 = 1 --", "\\", "''", "\\'; DROP TABLE journal; --"):
        assert rows_of(reader_of(varied, types=json.dumps([text]))) == []
    assert seqs_of(reader_of(varied))


def test_types_may_have_any_letters(url):
    names = ["späte, 'r'", "a\\b", "[x]", "plain"]
    with penstock.connect(url) as queue:
        queue.submit_many([{"type": name} for name in names])
    schema = StructType([StructField("type", StringType())])
    for name in names:
        found = rows_of(reader_of(url, schema, types=str([name])))
        assert found == [{"type": name}]


WRONG = [
    ({"minSeq": "-1"}, "minSeq must be a whole number from 0 to 9223372036854775807, got '-1'"),
    ({"maxSeq": "1.5"}, "maxSeq must be a whole number from 0 to 9223372036854775807, got '1.5'"),
    ({"maxSeq": "9223372036854775808"}, "maxSeq must be a whole number"),
    ({"minSeq": "9" * 5000}, "minSeq must be a whole number"),
    ({"minSeq": "٣"}, "minSeq must be a whole number"),
    ({"minSeq": "5", "maxSeq": "4"}, "minSeq must not be above maxSeq, got 5 and 4"),
    ({"since": "yesterday"}, "since must be a moment with its time zone, such as .*, got 'yesterday'"),
    ({"until": "2026-01-01T00:00:00"}, "until must be a moment with its time zone"),
    ({"until": ""}, "until must be a moment with its time zone"),
    ({"since": "0001-01-01T00:00:00+14:00"}, "since must be in the years 1970 to 2199, got '0001"),
    ({"since": "9999-12-31T23:59:59-14:00"}, "since must be in the years 1970 to 2199"),
    ({"since": "2026-01-02T00:00Z", "until": "2026-01-02T00:00Z"}, "since must be before until"),
    ({"statuses": "runing"}, "statuses must be one or more of initial_pending, running, .*, got 'runing'"),
    ({"statuses": ""}, "statuses must be one or more of"),
    ({"statuses": "[]"}, "statuses must be one or more of"),
    ({"statuses": "[5]"}, r"statuses must be a list of texts, got \[5\]"),
    ({"types": ""}, "types must be a text of 1 to 256 characters, got an empty one"),
    ({"types": "a,,b"}, "types must be a text of 1 to 256 characters, got an empty one"),
    ({"types": "t" * 257}, "types must be a text of 1 to 256 characters, got 257"),
    ({"types": "a\0"}, "types must be text without NUL"),
    ({"types": "a\ud800"}, "types must be"),
    ({"types": "[]"}, "types must be one or more types"),
    ({"partitions": "9" * 5000}, "partitions must be a whole number from 1 to 2147483647"),
    (
        {"table": "jobs", "minSeq": "1"},
        "minSeq and maxSeq are for the table journal; the table jobs has no seq",
    ),
]


@pytest.mark.parametrize(("options", "says"), WRONG, ids=[str(each)[:50] for each, _ in WRONG])
def test_a_wrong_part_is_refused_when_it_is_loaded(sqlite_url, options, says):
    with pytest.raises(InvalidArgumentError, match=says):
        reader_of(sqlite_url, **options)
    with pytest.raises(InvalidArgumentError, match=says):
        PenstockSource(CaseInsensitiveDict(url=sqlite_url, **options)).schema()


@pytest.mark.parametrize(
    "options",
    [
        {"minSeq": "1"},
        {"maxSeq": "1"},
        {"since": "2026-01-01Z"},
        {"until": "2026-01-01T00:00Z"},
        {"statuses": "running"},
        {"types": "a"},
    ],
    ids=str,
)
def test_a_stream_has_no_parts(varied, options):
    (name,) = options
    stream = PenstockSource(CaseInsensitiveDict(url=varied, **options)).streamReader(
        schema=struct_of(JOURNAL)
    )
    with pytest.raises(InvalidArgumentError, match=f"{name}: for batch reads"):
        stream.initialOffset()


def test_filters_are_never_pushed(sqlite_url):
    """Spark would keep the plan of the last query that pushed one, and use it for those that push none."""
    for pushdown in ("true", "false"):
        reader = reader_of(sqlite_url, pushdown=pushdown)
        assert type(reader).pushFilters is ds.DataSourceReader.pushFilters


def test_jobs_that_come_after_the_plan_are_read(url):
    """Spark plans a DataFrame once; the jobs are as they are when it is used."""
    schema = StructType([StructField("id", StringType()), StructField("scheduled_at", TimestampType())])
    with penstock.connect(url) as queue:
        reader = reader_of(url, schema, table="jobs")
        planned = reader.partitions()
        queue.enqueue_job(Job(id="late", type="t", run_at=datetime.now(UTC) + timedelta(milliseconds=300)))

    def read():
        return [row for each in planned for batch in reader.read(each) for row in batch.to_pylist()]

    assert [row["id"] for row in read()] == ["late"]
    until(lambda: read()[0]["scheduled_at"] is not None)


# -- several stores -----------------------------------------------------------------------------------------------


def test_rows_of_several_stores_have_the_ids_of_their_stores(varied, tmp_path):
    other = f"sqlite:///{tmp_path}/other.db"
    with penstock.connect(other) as queue:
        queue.submit("t")
        other_id = queue.backend.journal.store_id()
    schema = StructType([StructField("source", StringType()), *SEQS])
    rows = rows_of(reader_of(json.dumps([varied, other]), schema))
    assert [row["seq"] for row in rows if row["source"] == other_id] == [1]
    assert len({row["source"] for row in rows}) == 2


def test_one_store_cannot_be_named_twice(varied, tmp_path):
    with pytest.raises(InvalidArgumentError, match="url is given twice"):
        reader_of(json.dumps([varied, varied]))
    if varied.startswith("sqlite"):
        (tmp_path / "link.db").symlink_to(tmp_path / "jobs.db")
        with pytest.raises(InvalidArgumentError, match="same store"):
            reader_of(json.dumps([varied, f"sqlite:///{tmp_path}/link.db"])).partitions()


# -- bad input and faults -----------------------------------------------------------------------------------------


def test_wrong_options_are_all_named(sqlite_url):
    with pytest.raises(InvalidArgumentError) as caught:
        reader_of(sqlite_url, table="nonsense", PARTITIONS="0", batchrows="many", colour="red")
    for word in ("'nonsense'", "partitions", "batchRows", "unknown option 'colour'"):
        assert word in str(caught.value)


def test_the_url_is_required_and_must_be_of_a_store():
    with pytest.raises(InvalidArgumentError, match="url is missing"):
        PenstockSource(CaseInsensitiveDict()).reader(schema=SEQS)
    with pytest.raises(InvalidArgumentError, match="belongs to one process"):
        reader_of("memory:")
    with pytest.raises(InvalidArgumentError, match="must begin with"):
        reader_of("mysql://x")


def test_names_of_options_have_no_case(varied):
    options = CaseInsensitiveDict(URL=varied, TaBlE="journal")
    assert seqs_of(PenstockSource(options).reader(schema=SEQS))


def test_a_store_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(BackendError, match="no file"):
        reader_of(f"sqlite:///{tmp_path}/none.db").partitions()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.postgres
def test_a_schema_that_is_not_there_is_not_made(postgres_database):
    with pytest.raises(BackendError, match="no Penstock store"):
        reader_of(postgres_database).partitions()
    with psycopg.connect(postgres_database) as connection:
        assert not connection.execute("SELECT FROM pg_namespace WHERE nspname = 'penstock'").fetchall()


@pytest.mark.postgres
def test_a_schema_of_another_name_is_read(postgres_database):
    with penstock.connect(postgres_database, schema="other") as queue:
        queue.submit("t")
    mark = "&" if "?" in postgres_database else "?"
    assert seqs_of(reader_of(f"{postgres_database}{mark}schema=other")) == [1]


def test_a_file_that_goes_away_is_an_error_that_says_so(varied, tmp_path):
    if not varied.startswith("sqlite"):
        pytest.skip("a file")
    reader = reader_of(varied)
    (partition,) = reader.partitions()
    (tmp_path / "jobs.db").unlink()
    with pytest.raises(BackendError, match="every executor sees the file"):
        list(reader.read(partition))


@pytest.mark.postgres
def test_a_server_that_goes_away_is_an_error_without_the_password(postgres_database):
    with penstock.connect(postgres_database) as queue:
        queue.enqueue_jobs([Job(id=str(number), type="t") for number in range(20_000)])
    secret = postgres_database.replace("postgres:@", "postgres:hush@")
    reader = reader_of(secret, struct_of(JOURNAL))
    (partition,) = reader.partitions()
    batches = reader.read(partition)
    next(batches)
    with psycopg.connect(postgres_database, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE '%COPY%' AND pid <> pg_backend_pid()"
        )
    with pytest.raises(BackendError, match="could not be read") as caught:
        list(batches)
    assert caught.value.retryable
    assert "hush" not in str(caught.value)
    assert "hush" not in repr(partition)


def test_a_file_that_is_no_store_is_refused(tmp_path):
    (tmp_path / "jobs.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(BackendError):
        reader_of(f"sqlite:///{tmp_path}/jobs.db").partitions()


def test_the_url_may_name_the_schema(postgres_url):
    mark = "&" if "?" in postgres_url else "?"
    url = f"{postgres_url}{mark}schema=named_in_url"
    with penstock.open_backend(url) as backend:
        backend.enqueue_job(Job(id="there", type="t"))
    assert seqs_of(reader_of(url)) == [1]
    store = store_at(url + "&pgbouncer=true")
    assert store.table("jobs") == '"named_in_url".jobs'
    assert store.driver.options_in(store.url) == {"schema": "named_in_url", "pgbouncer": True}
    assert store_at(store.url) == store
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA named_in_url CASCADE")
