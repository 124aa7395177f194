"""No query returns wrong rows, whatever was asked of its DataFrame before.

Spark 4.3 keeps the plan of the last query that pushed a filter into a Python source, and uses it for later queries on the
same DataFrame that push none. So our source takes no filters, also if the session lets them be pushed.
"""

from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.testing import assertDataFrameEqual

import penstock
from penstock.spark._settings import temporarily

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushing(spark):
    """A session with the setting that lets Python sources take filters."""
    with temporarily(spark, {PUSHDOWN: "true"}):
        yield spark


@pytest.fixture
def hundred(url):
    """A store with 100 jobs of two types, of which 30 run."""
    with penstock.connect(url) as queue:
        queue.submit_many([{"type": "even" if number % 2 == 0 else "odd"} for number in range(100)])
        queue.claim_jobs("worker", limit=30)
    return url


def read(spark, url, table="journal", **options):
    return spark.read.format("penstock").option("url", url).option("table", table).options(**options).load()


@pytest.mark.parametrize(("table", "rows"), [("journal", 130), ("jobs", 100)])
def test_a_query_does_not_depend_on_the_queries_before_it(pushing, hundred, table, rows):
    _ask_in_turn(read(pushing, hundred, table), rows)


def test_nor_on_a_session_that_pushes_no_filters(spark, hundred):
    assert spark.conf.get(PUSHDOWN) == "false"
    _ask_in_turn(read(spark, hundred), 130)


def _ask_in_turn(frame, rows):
    assert frame.where("status = 'running'").count() == 30
    assert frame.count() == rows
    assert frame.where("status = 'running' or attempt = 5").count() == 30
    assert frame.where("attempt = 5").count() == 0
    assert (
        frame.where("status = 'running' or type = 'odd'").count()
        == frame.where("not (status <> 'running' and type = 'even')").count()
    )
    assert frame.where("true").count() == rows
    assert frame.where("status = 'initial_pending'").count() == rows - 30
    assert frame.groupBy("status").count().where("status = 'running'").collect() == [("running", 30)]


def test_two_filtered_views_of_one_frame_are_joined(pushing, hundred):
    frame = read(pushing, hundred)
    enqueued, claimed = frame.where("verb = 'enqueue'"), frame.where("verb = 'claim'")
    both = (
        enqueued.alias("e")
        .join(claimed.alias("c"), "job_id")
        .selectExpr("job_id", "e.seq AS e", "c.seq AS c")
    )
    assert both.count() == 30
    assert both.where("e < c").count() == 30
    assert enqueued.join(claimed, "job_id", "left_anti").count() == 70
    assert frame.count() == 130


def test_parts_of_one_frame_are_united_and_cached(pushing, hundred):
    frame = read(pushing, hundred, "jobs")
    running, waiting = frame.where("status = 'running'"), frame.where("status = 'initial_pending'")
    united = running.unionByName(waiting)
    assert (united.count(), united.distinct().count()) == (100, 100)
    kept = running.cache()
    try:
        assert kept.count() == 30
        assert (frame.count(), waiting.count(), running.union(waiting).count()) == (100, 70, 100)
    finally:
        kept.unpersist()
    assert frame.count() == 100


def test_a_view_in_sql_gives_what_each_query_asks_for(pushing, hundred):
    pushing.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW stored USING penstock OPTIONS (url '{hundred}', table 'jobs')"
    )

    def count(condition):
        return pushing.sql(f"SELECT count(*) FROM stored WHERE {condition}").collect()[0][0]

    assert [count("status = 'running'"), count("true"), count("status = 'running' OR attempt = 5")] == [
        30,
        100,
        30,
    ]
    (row,) = pushing.sql(
        "SELECT count(*) FROM stored a JOIN stored b USING (id) WHERE a.status = 'running' AND b.type = 'odd'"
    ).collect()
    assert row[0] == 15


def test_each_schema_has_its_own_columns(pushing, hundred):
    reader = pushing.read.format("penstock").option("url", hundred)
    narrow, wide = reader.schema("seq bigint").load(), reader.schema("status string, seq bigint").load()
    assert wide.where("status = 'running'").count() == 30
    assert (narrow.columns, narrow.count()) == (["seq"], 130)
    assert narrow.join(wide, "seq").where("status = 'running'").count() == 30
    assert (wide.columns, wide.count()) == (["status", "seq"], 130)
    assert wide.select("seq").where("seq <= 5").collect() == [(seq,) for seq in range(1, 6)]
    assert wide.first().status == "initial_pending"


def test_frames_with_other_options_are_other_frames(pushing, hundred):
    """Also where Spark looks for parts of a plan that it has worked out already: caches, and exchanges of one query."""
    whole = read(pushing, hundred, "jobs").groupBy("type").count()
    part = read(pushing, hundred, "jobs", statuses="running").groupBy("type").count()
    assert sorted(whole.union(part).collect()) == [("even", 15), ("even", 50), ("odd", 15), ("odd", 50)]
    kept = read(pushing, hundred, "jobs", statuses="running").cache()
    try:
        assert kept.count() == 30
        assert read(pushing, hundred, "jobs", statuses="initial_pending").count() == 70
        assert read(pushing, hundred, "jobs").count() == 100
    finally:
        kept.unpersist()


@pytest.mark.parametrize("table", ["journal", "jobs"])
def test_options_give_what_a_filter_of_the_whole_gives(spark, varied, table):
    moment = {"journal": "recorded_at", "jobs": "created_at"}[table]
    whole = read(spark, varied, table)
    since = datetime(2026, 1, 1, tzinfo=UTC)
    cases = [
        ({"statuses": ["running", "failed"]}, "status IN ('running', 'failed')"),
        ({"types": "b"}, "type = 'b'"),
        ({"since": since}, f"{moment} >= timestamp'2026-01-01 00:00:00Z'"),
        ({"until": since, "types": ["a", "b"]}, f"{moment} < timestamp'2026-01-01 00:00:00Z'"),
    ]
    if table == "journal":
        cases.append(({"minSeq": 3, "maxSeq": 12, "types": ["a"]}, "seq BETWEEN 3 AND 12 AND type = 'a'"))
    for options, condition in cases:
        part = read(spark, varied, table, **options)
        assertDataFrameEqual(part, whole.where(condition))
        assert part.where("status = 'running'").count() <= part.count() == whole.where(condition).count()


@contextmanager
def _refused(says):
    with pytest.raises((PySparkException, StreamingQueryException), match=says):
        yield


def test_wrong_options_are_refused_by_load(spark, hundred):
    with _refused("minSeq must be a whole number from 0 to 9223372036854775807, got 'x'"):
        read(spark, hundred, minSeq="x")
    with _refused("statuses must be one or more of"):
        read(spark, hundred, statuses="done")
    with _refused("the table jobs has no seq"):
        read(spark, hundred, "jobs", maxSeq=5)
    stream = spark.readStream.format("penstock").option("url", hundred).option("types", "odd").load()
    with _refused("types: for batch reads"):
        stream.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()


def test_a_stream_gives_every_row_whatever_is_filtered(pushing, hundred, tmp_path):
    stream = pushing.readStream.format("penstock").option("url", hundred).load()
    counts = {}
    for name, condition in (
        ("running", "status = 'running'"),
        ("everything", "true"),
    ):
        query = (
            stream.where(condition)
            .writeStream.format("memory")
            .queryName(name)
            .option("checkpointLocation", str(tmp_path / name))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        counts[name] = pushing.table(name).count()
    assert counts == {"running": 30, "everything": 130}


def test_a_frame_of_the_journal_keeps_its_rows_and_one_of_jobs_follows(spark, hundred):
    journal, jobs = read(spark, hundred), read(spark, hundred, "jobs")
    assert (journal.count(), jobs.count()) == (130, 100)
    with penstock.connect(hundred) as queue:
        queue.submit("late")
        queue.claim_jobs("worker", limit=100)
    assert (journal.count(), jobs.count()) == (130, 101)
    assert jobs.where("status = 'running'").count() == 101
    assert read(spark, hundred).count() == 130 + 1 + 71
