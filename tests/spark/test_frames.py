"""Jobs as DataFrames: waves of claimed jobs, one transform, a fenced report for each."""

import json
import threading

import pytest
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F

import penstock
from penstock import FailureCategory, Job, JobStatus, RetryPolicy
from penstock import spark as ps
from penstock.errors import InvalidArgumentError
from penstock.spark._settings import temporarily
from penstock.spark.frames import _transform, _waves

ONCE = RetryPolicy(max_attempts=1)


def put(url, *payloads, type="score", **fields):
    jobs = [
        Job(id=f"job-{number:04}", type=type, payload=each if isinstance(each, bytes) else json.dumps(each).encode(), **fields)
        for number, each in enumerate(payloads)
    ]  # fmt: skip
    with penstock.open_backend(url) as backend:
        backend.enqueue_jobs(jobs)


def jobs_in(url):
    with penstock.open_backend(url) as backend:
        return {job.id: job for job in backend.list_jobs(limit=1000)}


def lengths(frame):
    return frame.select("id", "attempt", F.length("text").alias("score"), F.lit(None).alias("nothing"))


def test_jobs_become_rows_and_rows_become_results(spark, url):
    put(url, *({"text": "x" * number, "ignored": 1} for number in range(50)), tags=("t",))
    report = ps.run_frames(spark, url, lengths, type="score", schema="text string", jobs_per_wave=20)
    assert (report.completed, report.failed, report.waves) == (50, 0, 3)
    found = jobs_in(url)
    assert {job.status for job in found.values()} == {JobStatus.COMPLETED}
    assert json.loads(found["job-0007"].result) == {"score": 7, "nothing": None}


def test_a_large_wave_is_spread_over_the_cores(spark, sqlite_url, monkeypatch):
    """Spark keeps a small table with its plan, and works on it there, on one core."""
    monkeypatch.setattr(_transform, "_FEW_ROWS", 5)
    name = "spark.sql.execution.arrow.localRelationThreshold"
    before, parts = spark.conf.get(name), []

    def look(frame):
        parts.append(frame.rdd.getNumPartitions())
        return lengths(frame)

    put(sqlite_url, *({"text": "x" * number} for number in range(6)), b"[1]", b"no JSON")
    with temporarily(
        spark, {"spark.sql.execution.arrow.maxRecordsPerBatch": "2"}
    ):  # what is sent to one core
        report = ps.run_frames(spark, sqlite_url, look, type="score", schema="text string")
    assert (report.completed, report.failed, parts) == (6, 2, [4])
    found = jobs_in(sqlite_url)
    assert json.loads(found["job-0005"].result)["score"] == 5
    assert found["job-0006"].error_category is FailureCategory.PERMANENT
    assert spark.conf.get(name) == before


@pytest.mark.postgres
def test_the_url_may_name_the_schema(spark, postgres_database):
    url = f"{postgres_database}{'&' if '?' in postgres_database else '?'}schema=shop"
    put(url, {"text": "a"})
    put(postgres_database, {"text": "b"})
    assert ps.run_frames(spark, url, lengths, type="score", schema="text string").completed == 1
    (elsewhere,) = jobs_in(postgres_database).values()
    assert elsewhere.status is JobStatus.INITIAL_PENDING


def test_the_frame_has_what_a_job_has(spark, sqlite_url):
    put(sqlite_url, b"\x00\xff", key=("k", "1"), tags=("a", "b"))
    seen = []

    def look(frame):
        seen.append((frame.columns, frame.collect()))
        return frame.select("id", "attempt")

    assert ps.run_frames(spark, sqlite_url, look, type="score").completed == 1
    ((columns, (row,)),) = seen
    assert columns == ["id", "attempt", "key", "tags", "payload"]
    assert (row.id, row.attempt, row.key, row.tags, bytes(row.payload)) == (
        "job-0000",
        1,
        ["k", "1"],
        ["a", "b"],
        b"\x00\xff",
    )
    assert jobs_in(sqlite_url)["job-0000"].result is None


def test_each_job_is_failed_for_its_own_reason(spark, url):
    """One transform, every way a row can go wrong; the others are not touched by it."""
    put(
        url,
        {"text": "fine"},
        {"text": "temporary"},
        {"text": "permanent"},
        {"text": "lost"},
        {"text": "twice"},
        {"text": {"not": "text"}, "number": "nor a number"},
        b"no JSON",
        b"",
        b'{"text": "\xff"}',
        b'{"text": "fine"} and more',
        {"text": "large"},
        retry=ONCE,
    )

    def transform(frame):
        kind = F.col("text")
        rows = frame.where(kind != "lost").select(
            "id",
            "attempt",
            F.when(kind == "large", F.repeat(F.lit("x"), 1_100_000)).otherwise(kind).alias("said"),
            F.when(kind.isin("temporary", "permanent"), F.concat(kind, F.lit(" it is"))).alias("error"),
            F.when(kind == "permanent", F.lit("permanent")).alias("error_category"),
        )
        return rows.unionAll(rows.where("said = 'twice'"))

    report = ps.run_frames(spark, url, transform, type="score", schema="text string, number int")
    found = jobs_in(url)
    logged = [
        (job.status, job.error_category, job.error_message)
        for _, job in sorted(found.items())
        if job.error_message
    ]
    permanent, temporary = FailureCategory.PERMANENT, FailureCategory.TEMPORARY
    unfit = (JobStatus.FAILED, permanent, "the payload does not fit the schema")
    assert logged == [
        (JobStatus.DEAD_LETTER, temporary, "temporary it is"),
        (JobStatus.FAILED, permanent, "permanent it is"),
        (JobStatus.DEAD_LETTER, temporary, "no row came back"),
        (JobStatus.FAILED, permanent, "more than one row came back"),
        *[unfit] * 5,
        (JobStatus.FAILED, permanent, "the result has 1100011 bytes; the limit is 1048576"),
    ]
    assert (report.completed, report.failed) == (1, 10)
    assert found["job-0000"].result == b'{"said":"fine"}'


def test_a_wave_without_any_json_needs_no_frame(spark, sqlite_url):
    put(sqlite_url, b"no JSON", b"{} {}")
    report = ps.run_frames(spark, sqlite_url, lengths, type="score", schema="text string")
    assert (report.completed, report.failed, report.waves) == (0, 2, 1)
    assert {job.status for job in jobs_in(sqlite_url).values()} == {JobStatus.FAILED}


def test_a_poison_row_fails_alone(spark, sqlite_url):
    put(sqlite_url, *({"number": number} for number in range(16)), retry=ONCE)
    report = ps.run_frames(
        spark,
        sqlite_url,
        lambda frame: frame.select("id", "attempt", F.expr("assert_true(number <> 11, 'eleven')"), "number"),
        type="score",
        schema="number int",
    )
    assert (report.completed, report.failed, report.waves) == (15, 1, 1)
    (poison,) = [job for job in jobs_in(sqlite_url).values() if job.status is not JobStatus.COMPLETED]
    assert poison.id == "job-0011"
    assert "eleven" in poison.error_message


def test_halving_has_an_end(spark, sqlite_url, monkeypatch):
    monkeypatch.setattr(_waves, "_MAX_SUB_BATCHES", 2)
    put(sqlite_url, *({"number": number} for number in range(8)), retry=ONCE)
    report = ps.run_frames(
        spark,
        sqlite_url,
        lambda frame: frame.select("id", "attempt", F.expr("assert_true(number <> 0, 'zero')")),
        type="score",
        schema="number int",
    )
    assert (report.completed, report.failed) == (4, 4)
    messages = {job.error_message for job in jobs_in(sqlite_url).values() if job.error_message}
    assert messages == {"the batch failed and was halved 2 times; this job may not be the cause"}


@pytest.mark.parametrize(
    ("transform", "error"),
    [
        (lambda frame: frame.select("nonsense"), AnalysisException),
        (lambda frame: frame.select("id"), InvalidArgumentError),
        (lambda frame: 5, InvalidArgumentError),
        (lambda frame: {}["missing"], KeyError),
    ],
    ids=["analysis", "columns", "no frame", "bug"],
)
def test_a_wrong_transform_releases_the_wave_uncounted(spark, sqlite_url, transform, error):
    put(sqlite_url, {"text": "a"}, {"text": "b"}, retry=ONCE)
    with pytest.raises(error):
        ps.run_frames(spark, sqlite_url, transform, type="score", schema="text string")
    found = jobs_in(sqlite_url).values()
    assert {(job.status, job.failures) for job in found} == {(JobStatus.FAILED_RETRY, 0)}
    assert ps.run_frames(spark, sqlite_url, lengths, type="score", schema="text string").completed == 2


@pytest.mark.parametrize(
    ("schema", "error", "says"),
    [
        ("no ( ddl", ParseException, "Syntax error"),
        (5, InvalidArgumentError, "schema must be DDL or a StructType, got 5"),
        (
            "Id int, text string, tags string",
            InvalidArgumentError,
            "schema names Id, tags, and the frame has",
        ),
    ],
    ids=["syntax", "type", "names"],
)
def test_a_wrong_schema_is_refused_before_a_job_is_claimed(spark, sqlite_url, schema, error, says):
    put(sqlite_url, {"text": "a"})
    with pytest.raises(error, match=says):
        ps.run_frames(spark, sqlite_url, lengths, type="score", schema=schema)
    assert jobs_in(sqlite_url)["job-0000"].attempt == 0


def test_a_mistyped_url_is_refused_and_makes_no_store(spark, tmp_path):
    with pytest.raises(InvalidArgumentError, match="there is no store at"):
        ps.run_frames(spark, f"sqlite:///{tmp_path}/mistyped.db", lengths, type="score")
    assert not list(tmp_path.iterdir())


def test_a_report_that_comes_too_late_is_refused_and_not_counted(spark, url):
    put(url, {"text": "a"}, {"text": "b"})

    def slow(frame):
        with penstock.open_backend(url) as backend:  # the job is marked as lost, and another worker runs it
            if backend.get_job("job-0000").status is JobStatus.RUNNING:
                backend.release_jobs({"job-0000": "taken away"})
                (job,) = backend.dequeue_jobs("other", job_ids=["job-0000"])
                backend.complete_job(job.id, b'"other"', attempt=job.attempt)
        return lengths(frame)

    report = ps.run_frames(spark, url, slow, type="score", schema="text string")
    assert report.completed == 1
    assert jobs_in(url)["job-0000"].result == b'"other"'


def test_jobs_are_held_while_spark_works(spark, sqlite_url):
    """They have a visibility that is long over; a maintainer in another process does not take them."""
    put(sqlite_url, {"text": "a"}, timeouts=penstock.Timeouts(visibility=0.5))

    def slow(frame):
        with penstock.open_backend(sqlite_url) as backend:
            for _ in range(12):
                threading.Event().wait(0.1)
                assert backend.maintain().lost == 0
        return lengths(frame)

    assert ps.run_frames(spark, sqlite_url, slow, type="score", schema="text string").completed == 1


def test_a_wave_has_one_job_of_a_key(spark, sqlite_url):
    put(sqlite_url, *({"text": str(number)} for number in range(3)), key=("k",))
    assert ps.run_frames(spark, sqlite_url, lengths, type="score", schema="text string").waves == 3


def test_a_wave_has_a_limit_of_bytes(spark, sqlite_url, monkeypatch):
    """What was claimed beyond it goes back, uncounted."""
    monkeypatch.setattr(_waves, "_MAX_PAYLOAD", 2_000)
    put(sqlite_url, *({"text": "x" * 500} for _ in range(8)))
    report = ps.run_frames(spark, sqlite_url, lengths, type="score", schema="text string")
    assert (report.completed, report.waves) == (8, 3)
    assert max(job.failures for job in jobs_in(sqlite_url).values()) == 0


def test_time_ends_it(spark, sqlite_url):
    put(sqlite_url, {"text": "a"})
    report = ps.run_frames(
        spark, sqlite_url, lengths, type="score", schema="text string", until_idle=False, max_seconds=1
    )
    assert report.completed == 1
    assert report.seconds >= 1


def test_wrong_arguments_are_refused(spark, sqlite_url, tmp_path):
    wrong = (
        {"type": ""},
        {"jobs_per_wave": 0},
        {"jobs_per_wave": True},
        {"max_jobs": 0},
        {"max_seconds": -1},
    )
    for arguments in (*wrong, {"max_jobs": 5, "jobs_per_wave": 5}):
        with pytest.raises(InvalidArgumentError):
            ps.run_frames(spark, sqlite_url, lengths, **{"type": "score", **arguments})
    with pytest.raises(InvalidArgumentError, match="function"):
        ps.run_frames(spark, sqlite_url, "lengths", type="score")
    with pytest.raises(InvalidArgumentError, match="belongs to one process"):
        ps.run_frames(spark, "memory:", lengths, type="score")
    with pytest.raises(InvalidArgumentError, match="there is no store at"):
        ps.run_frames(spark, f"sqlite:///{tmp_path}/none/jobs.db", lengths, type="score")


def test_a_type_that_no_job_has_is_named_in_a_warning(spark, url, caplog):
    """A misspelled type would otherwise look like work that is done."""
    put(url, {"text": "x"}, type="score")
    report = ps.run_frames(spark, url, lengths, type="scroe", schema="text string")
    assert (report.completed, report.waves) == (0, 0)
    (record,) = [each for each in caplog.records if "no job has the type" in each.message]
    assert (record.levelname, record.message) == (
        "WARNING",
        "no job has the type 'scroe'; jobs of these types are ready: 'score'",
    )
    caplog.clear()
    assert ps.run_frames(spark, url, lengths, type="score", schema="text string").completed == 1
    assert ps.run_frames(spark, url, lengths, type="score", schema="text string").completed == 0
    assert caplog.records == []
    ps.run_frames(spark, url, lengths, type="scroe", schema="text string")
    assert [each.message for each in caplog.records] == ["no job has the type 'scroe'; no job is ready"]
