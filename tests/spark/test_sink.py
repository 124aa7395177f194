"""The sink on a session: retried tasks, reruns, streams that are restarted, a driver that is killed."""

import json
import os
import signal

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import penstock
from penstock import Job
from penstock import spark as ps


def save(frame, url, **options):
    frame.write.format("penstock").option("url", url).options(**options).mode("append").save()


def ids_in(url):
    """The id of each enqueue row: an id that was added twice stands there twice."""
    with penstock.open_backend(url) as backend:
        return sorted(
            entry.job_id for entry in backend.read_journal(limit=100_000) if entry.verb == "enqueue"
        )


def numbered(spark, count, partitions=4):
    return spark.range(0, count, 1, partitions).select(
        F.format_string("job-%05d", "id").alias("id"),
        F.lit("score").alias("type"),
        F.struct(F.col("id").alias("number"), F.lit("x").alias("text")).alias("payload"),
        F.array(F.lit("batch")).alias("tags"),
        (F.col("id") % 5).cast("int").alias("priority"),
        F.when(F.col("id") % 3 == 0, F.lit("k")).alias("key"),
    )


def test_a_frame_becomes_jobs_once(spark, url):
    frame = numbered(spark, 1000)
    save(frame, url)
    save(frame.repartition(3), url)
    assert ids_in(url) == [f"job-{number:05}" for number in range(1000)]
    with penstock.open_backend(url) as backend:
        job = backend.get_job("job-00003")
        assert (job.payload, job.tags, int(job.priority), job.key) == (
            b'{"number":3,"text":"x"}',
            ("batch",),
            3,
            ("k",),
        )
    save(frame.limit(0), url)


def test_a_write_says_how_many_rows_it_added_and_skipped(spark, url, tmp_path):
    report = ps.write(numbered(spark, 30), url)
    assert (report.added, report.skipped) == (30, 0)
    assert report.seconds > 0
    again = ps.write(numbered(spark, 50), url)
    assert (again.added, again.skipped) == (20, 30)
    keyed = numbered(spark, 5).drop("id").withColumn("idempotency_key", F.col("payload.text"))
    portions = ps.write(keyed.limit(1), url, atomic=False)
    assert (portions.added, portions.skipped) == (1, 0)
    assert ps.write(keyed.limit(1), url).skipped == 1
    assert ps.write(keyed.limit(1).drop("idempotency_key"), url, ids="generate").added == 1
    file = tmp_path / "report.json"
    save(numbered(spark, 51), url, reportFile=file)
    assert json.loads(file.read_text()) == {"added": 1, "skipped": 50}
    with pytest.raises(PySparkException, match="reportFile must name a file in a folder that is there"):
        save(numbered(spark, 1), url, reportFile="/no/such/folder/report.json")
    assert len(ids_in(url)) == 53


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_write_says_on_stderr_what_it_did(run_python, sqlite_url, tmp_path):
    """Spark commits in a process of its own, whose stderr is that of Java."""
    program = f"""
import json, os, sys
log = os.open({str(tmp_path / "stderr")!r}, os.O_CREAT | os.O_WRONLY)
os.dup2(log, 2)
from penstock import spark as ps
spark = ps.session("local[1]")
frame = spark.sql("SELECT 'a' AS id, 't' AS type")
for _ in range(2):
    frame.write.format("penstock").option("url", {sqlite_url!r}).mode("append").save()
print(json.dumps(None))
"""
    run_python(program)
    text = (tmp_path / "stderr").read_text()
    assert f"penstock: {sqlite_url}: 1 rows added, 0 skipped (already stored)" in text
    assert f"penstock: {sqlite_url}: 0 rows added, 1 skipped (already stored)" in text


def test_an_invalid_frame_is_refused_and_nothing_is_stored(spark, url):
    frame = numbered(spark, 10)
    bad = frame.withColumn("priority", F.when(F.col("id") == "job-00007", 9).otherwise(1))
    with pytest.raises(Exception, match=r"1 rows cannot become jobs.*'job-00007'.*priority must be"):
        save(bad, url)
    with pytest.raises(Exception, match="its id stands twice"):
        save(frame.unionAll(frame), url)
    with pytest.raises(PySparkException, match="column 'colour' is unknown"):
        save(frame.withColumn("colour", F.lit("red")), url)
    with pytest.raises(PySparkException, match="unknown option 'color'"):
        save(frame, url, color="red")
    with pytest.raises(PySparkException, match="never overwritten"):
        frame.write.format("penstock").option("url", url).mode("overwrite").save()
    assert ids_in(url) == []


@pytest.mark.process
def test_a_task_that_is_killed_is_tried_again_and_adds_nothing_twice(spark, url):
    """F31: its process dies after it has handed over half of its rows."""

    def die_once(batches):
        for number, batch in enumerate(batches):
            if (
                TaskContext.get().attemptNumber() == 0
                and TaskContext.get().partitionId() == 1
                and number == 1
            ):
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    frame = numbered(spark, 4000, partitions=2)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        save(frame.mapInArrow(die_once, frame.schema), url)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert ids_in(url) == [f"job-{number:05}" for number in range(4000)]


def copy_stream(spark, source, target, checkpoint):
    """Let every job that was enqueued in one store become one in another; return when all are there."""
    rows = (
        spark.readStream.format("penstock")
        .option("url", source)
        .option("maxRowsPerTrigger", 100)
        .load()
        .where("verb = 'enqueue'")
        .select("type", F.col("tags"))
    )
    query = (
        rows.writeStream.format("penstock")
        .option("url", target)
        .option("ids", "generate")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)


def test_a_stream_that_is_restarted_adds_nothing_twice(spark, url, tmp_path):
    """Stopped between the publication of its last batch and the note that it is done, as by a power cut.

    The jobs have no ids of their own and were deleted since: that the batch was published is known to the store alone.
    `make soak` kills a driver there (F31, F32).
    """
    source = f"sqlite:///{tmp_path}/source.db"
    with penstock.open_backend(source) as backend:
        backend.enqueue_jobs([Job.new("t", tags=("x",)) for _ in range(150)])
    copy_stream(spark, source, url, tmp_path / "checkpoint")
    assert len(ids_in(url)) == 150
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    with penstock.open_backend(url) as backend:
        backend.cancel_jobs(tags=["x"])
        assert backend.delete_jobs(tags=["x"]) == 150
    copy_stream(spark, source, url, tmp_path / "checkpoint")
    assert len(ids_in(url)) == 150
    with penstock.open_backend(source) as backend:
        backend.enqueue_job(Job.new("t", tags=("x",)))
    copy_stream(spark, source, url, tmp_path / "checkpoint")
    assert len(ids_in(url)) == 151
