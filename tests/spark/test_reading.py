"""The source without a session: what its readers plan and read, in this process."""

import json
from datetime import UTC, datetime

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import datasource as ds
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

import penstock
from penstock import Job
from penstock.errors import BackendError, InvalidArgumentError
from penstock.spark import _planning, _scan
from penstock.spark._places import Place
from penstock.spark.schemas import JOBS, JOURNAL, struct_of
from penstock.spark.source import PenstockSource, PushingSource

SEQS = StructType([StructField("seq", LongType())])


def reader_of(url, schema=SEQS, kind=PenstockSource, **options):
    return kind(CaseInsensitiveDict(url=url, **options)).reader(schema=schema)


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
        entries, source_id = backend.read_journal(), backend.store_id()
    rows = rows_of(reader_of(varied, struct_of(JOURNAL)))
    assert len(rows) == len(entries) > 15
    for row, entry in zip(rows, entries, strict=True):
        assert row.pop("source") == source_id
        for name, value in row.items():
            said = getattr(entry, name)
            if name in ("after", "after_any"):  # told once, on the first row
                assert value == (list(said) if entry.from_status is None else None)
            elif isinstance(said, tuple):
                assert value == list(said), name
            else:
                assert value == said, name


def test_the_jobs_are_what_the_store_says(varied):
    with penstock.open_backend(varied) as backend:
        jobs, source_id = {job.id: job for job in backend.list_jobs()}, backend.store_id()
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


# -- filters ------------------------------------------------------------------------------------------------------

FILTERS = [
    (ds.EqualTo(("status",), "failed_retry"), lambda row: row["status"] == "failed_retry"),
    (ds.EqualTo(("job_id",), "späte 'r'"), lambda row: row["job_id"] == "späte 'r'"),
    (ds.EqualTo(("error_message",), "boom \\ 'quoted'"), lambda row: "boom" in row["error_message"]),
    (ds.In(("verb",), ["claim", "fail"]), lambda row: row["verb"] in ("claim", "fail")),
    (ds.Not(ds.EqualTo(("type",), "a")), lambda row: row["type"] != "a"),
    (ds.IsNull(("from_status",)), lambda row: row["from_status"] is None),
    (ds.Not(ds.IsNull(("from_status",))), lambda row: row["from_status"] is not None),
    (ds.IsNotNull(("error_code",)), lambda row: row["error_code"] is not None),
    (ds.GreaterThan(("seq",), 5), lambda row: row["seq"] > 5),
    (ds.LessThanOrEqual(("seq",), 3), lambda row: row["seq"] <= 3),
    (ds.EqualTo(("seq",), 4), lambda row: row["seq"] == 4),
    (ds.GreaterThanOrEqual(("attempt",), 1), lambda row: row["attempt"] >= 1),
    (ds.LessThan(("priority",), 4), lambda row: row["priority"] < 4),
    (ds.GreaterThan(("due_at",), datetime(2000, 1, 1, tzinfo=UTC)), lambda row: row["due_at"] is not None),
    (ds.EqualTo(("source",), "another"), lambda row: False),
]
UNPUSHED = [
    ds.EqualTo(("tags",), ["x"]),
    ds.EqualTo(("retry", "max_attempts"), 3),
    ds.EqualTo(("status",), "nul\0"),
    ds.EqualTo(("attempt",), 2**70),
    ds.EqualTo(("due_at",), datetime(2000, 1, 1)),
    ds.In(("verb",), []),
    ds.StringStartsWith(("verb",), "c"),
]


@pytest.mark.parametrize(("condition", "wanted"), FILTERS, ids=[str(each) for each, _ in FILTERS])
def test_a_pushed_filter_lets_pass_what_it_says(varied, condition, wanted):
    reader = reader_of(varied, struct_of(JOURNAL), PushingSource)
    everything = rows_of(reader_of(varied, struct_of(JOURNAL)))
    assert list(reader.pushFilters([condition])) == [condition]  # Spark looks again
    assert rows_of(reader) == [row for row in everything if wanted(row)]


@pytest.mark.parametrize("condition", UNPUSHED, ids=str)
def test_a_filter_that_the_store_cannot_decide_lets_all_pass(varied, condition):
    reader = reader_of(varied, SEQS, PushingSource)
    reader.pushFilters([condition])
    assert seqs_of(reader) == seqs_of(reader_of(varied))


def test_a_filter_cannot_leave_its_quotes(varied):
    for text in ("' OR 1 = 1 --", "\\' OR 1 = 1 --", "\\", "''", "\\'; DROP TABLE journal; --"):
        reader = reader_of(varied, SEQS, PushingSource)
        reader.pushFilters([ds.EqualTo(("status",), text)])
        assert rows_of(reader) == []
    assert seqs_of(reader_of(varied))


def test_readers_take_filters_only_where_that_is_allowed(sqlite_url):
    """A session that does not push filters refuses a reader that would take them."""
    assert type(reader_of(sqlite_url)).pushFilters is ds.DataSourceReader.pushFilters
    assert type(reader_of(sqlite_url, kind=PushingSource)).pushFilters is not ds.DataSourceReader.pushFilters
    assert type(reader_of(sqlite_url, kind=PushingSource, pushdown="false")) is type(reader_of(sqlite_url))


# -- several stores -----------------------------------------------------------------------------------------------


def test_several_stores_are_told_apart_by_their_ids(varied, tmp_path):
    other = f"sqlite:///{tmp_path}/other.db"
    with penstock.connect(other) as queue:
        queue.submit("t")
        other_id = queue.backend.store_id()
    schema = StructType([StructField("source", StringType()), *SEQS])
    rows = rows_of(reader_of(json.dumps([varied, other]), schema))
    assert [row["seq"] for row in rows if row["source"] == other_id] == [1]
    assert len({row["source"] for row in rows}) == 2
    reader = reader_of(json.dumps([varied, other]), schema, PushingSource)
    reader.pushFilters([ds.EqualTo(("source",), other_id)])
    assert rows_of(reader) == [{"source": other_id, "seq": 1}]


def test_one_store_cannot_be_named_twice(varied, tmp_path):
    with pytest.raises(InvalidArgumentError, match="url stands twice"):
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
            " WHERE query LIKE '%COPY%' AND pid <> pg_backend_pid()"
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
    place = Place.of(url + "&pgbouncer=true")
    assert (place.schema, place.pgbouncer, Place.of(place.address)) == ("named_in_url", True, place)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA named_in_url CASCADE")
