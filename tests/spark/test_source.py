"""The source on a session: that Spark and our readers understand each other."""

import json
import os
import signal

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.testing import assertDataFrameEqual, assertSchemaEqual

import penstock
from penstock.spark.schemas import JOBS, JOURNAL, struct_of


def test_both_tables_are_dataframes(spark, varied):
    read = spark.read.format("penstock").option("url", varied)
    journal, jobs = read.load(), read.option("table", "jobs").load()
    assertSchemaEqual(journal.schema, struct_of(JOURNAL))
    assertSchemaEqual(jobs.schema, struct_of(JOBS))
    with penstock.open_backend(varied) as backend:
        entries, stored = backend.read_journal(), {job.id: job for job in backend.list_jobs()}
    assert [(row.seq, row.job_id, row.status, row.recorded_at.timestamp()) for row in journal.collect()] == [
        (entry.seq, entry.job_id, entry.status, entry.recorded_at.timestamp()) for entry in entries
    ]
    for row in jobs.collect():
        job = stored[row.id]
        assert (bytes(row.payload), tuple(row.tags), row.timeouts.execution) == (
            job.payload,
            job.tags,
            None if job.timeouts.execution is None else job.timeouts.execution.total_seconds(),
        )


def test_columns_are_pruned_by_the_schema(spark, varied):
    frame = spark.read.format("penstock").schema("status string, seq bigint").load(varied)
    assert frame.columns == ["status", "seq"]
    assert frame.where("status = 'running'").count() == 4


def test_several_stores_in_one_frame(spark, varied, tmp_path):
    other = f"sqlite:///{tmp_path}/other.db"
    with penstock.connect(other) as queue:
        queue.submit("t")
    frame = spark.read.format("penstock").load([varied, other])
    assert min(row["count"] for row in frame.groupBy("source").count().collect()) == 1
    assert frame.select("source").distinct().count() == 2
    same = spark.read.format("penstock").option("url", json.dumps([varied, other])).load()
    assertDataFrameEqual(frame, same)


def test_sql_reaches_it_too(spark, sqlite_url):
    with penstock.connect(sqlite_url) as queue:
        queue.submit("t")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW changes USING penstock OPTIONS (url '{sqlite_url}')")
    assert spark.sql("SELECT verb FROM changes").collect() == [("enqueue",)]


def test_errors_reach_the_user_through_spark_in_our_words(spark, tmp_path):
    read = spark.read.format("penstock").option("url", f"sqlite:///{tmp_path}/none.db")
    with pytest.raises(PySparkException, match="unknown option 'colour'"):
        read.option("colour", "red").load()
    with pytest.raises(Exception, match=r"none\.db here; check the url"):
        spark.read.format("penstock").option("url", f"sqlite:///{tmp_path}/none.db").load().count()


@pytest.mark.deep
def test_the_format_is_found_without_a_call(spark, sqlite_url):
    """By the module pyspark_penstock."""
    with penstock.connect(sqlite_url) as queue:
        queue.submit("t")
    fresh = spark.newSession()
    frame = fresh.read.format("penstock").option("url", sqlite_url).load()
    assert frame.where("seq = 1").select("verb").collect() == [("enqueue",)]


@pytest.mark.process
def test_a_task_that_is_killed_reads_the_same_rows_again(spark, url):
    """F31: its process dies when it has passed on half of its rows."""
    with penstock.connect(url) as queue:
        queue.submit_many([{"type": "t"}] * 600)

    def die_once(batches):
        for number, batch in enumerate(batches):
            if TaskContext.get().attemptNumber() == 0 and number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    rows = spark.read.format("penstock").schema("seq bigint").option("batchRows", 100).load(url)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        read = rows.mapInArrow(die_once, "seq long").collect()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert sorted(row.seq for row in read) == list(range(1, 601))
