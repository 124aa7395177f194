from datetime import timedelta

import pytest
from pyspark.sql import functions as F
from tests.journals import START, entries_of, frame_of_all, memory_store

from penstock import FailureCategory, Job, RetryPolicy
from penstock.spark.transforms import attempts, hourly


def busy_hours():
    """Nine o'clock: three come, two of them run; ten o'clock: one more comes, one fails, one fails for good."""
    backend, clock = memory_store()
    policy = RetryPolicy(max_attempts=3, initial_delay=0)
    backend.enqueue_jobs([Job(id=f"a{n}", type="a", tags=("red", "blue"), retry=policy) for n in range(3)])
    clock.advance(10)
    backend.dequeue_jobs("w1", limit=1)
    clock.advance(20)
    backend.complete_job("a0")
    backend.dequeue_jobs("w2", limit=1)
    clock.advance(40)
    backend.complete_job("a1")
    clock.advance(timedelta(minutes=40))
    backend.enqueue_job(Job(id="b0", type="b", retry=policy))
    (job,) = backend.dequeue_jobs("w1", types=["a"])
    clock.advance(5)
    backend.fail_job("a2", "no", attempt=job.attempt)
    backend.dequeue_jobs("w1", types=["b"])
    backend.fail_job("b0", "never", category=FailureCategory.PERMANENT)
    return entries_of(backend)


@pytest.fixture(scope="module")
def found(spark):
    events = frame_of_all(spark, {"store": busy_hours()})
    table = hourly(attempts(events), events).cache()
    merged = (
        table.where("type = 'a' and tag is null and worker is not null")
        .groupBy("type")
        .agg(F.kll_merge_agg_double("run_sketch").alias("sketch"))
        .select(F.kll_sketch_get_quantile_double("sketch", F.lit(1.0)).alias("longest"))
    )
    rows = {(row.hour.hour, row.type, row.tag, row.worker): row for row in table.collect()}
    return rows, merged.collect()[0].longest


def test_a_worker_has_its_figures(found):
    rows, _ = found
    row = rows[9, "a", None, "w1"]
    assert (row.attempts, row.completed, row.failed, row.retried, row.stopped) == (1, 1, 0, 0, 0)
    assert (row.wait_n, row.wait_p50, row.wait_p99, row.run_p50, row.busy_seconds) == (
        1,
        10.0,
        10.0,
        20.0,
        20.0,
    )
    assert row.throughput == pytest.approx(1 / 3600)
    assert (row.enqueued, row.backlog) == (None, None)
    assert rows[9, "a", None, "w2"].run_p95 == 40.0


def test_every_tag_has_the_figures_of_its_jobs(found):
    rows, _ = found
    assert rows[9, "a", "red", "w1"].attempts == rows[9, "a", "blue", "w1"].attempts == 1
    assert (10, "b", "red", "w1") not in rows


def test_retries_and_failures_have_rates(found):
    rows, _ = found
    retried, failed = rows[10, "a", None, "w1"], rows[10, "b", None, "w1"]
    assert (retried.retried, retried.retry_rate, retried.failure_rate) == (1, 1.0, 0.0)
    assert (failed.failed, failed.retry_rate, failed.failure_rate) == (1, 0.0, 1.0)


def test_the_queue_has_what_came_and_what_waited(found):
    rows, _ = found
    waiting = {
        (hour, kind): (row.enqueued, row.backlog)
        for (hour, kind, _, worker), row in rows.items()
        if not worker
    }
    assert waiting == {(9, "a"): (3, 1), (10, "a"): (0, 1), (10, "b"): (1, 0)}
    assert START.hour == 9


def test_sketches_of_workers_and_hours_can_be_merged(found):
    assert found[1] == 40.0


def test_jobs_of_one_frame_are_busy_together(spark):
    """Three jobs that were claimed at once and end one after the other; then a wave of its own, and an ordinary worker."""
    backend, clock = memory_store()
    backend.enqueue_jobs([Job(id=f"a{n}", type="a") for n in range(5)])
    backend.dequeue_jobs("frames:host:1:ab", limit=3)
    for number in range(3):
        clock.advance(10)
        backend.complete_job(f"a{number}")
    clock.advance(100)
    backend.dequeue_jobs("frames:host:1:ab", limit=1)
    backend.dequeue_jobs("plain", limit=1)
    clock.advance(5)
    backend.complete_job("a3")
    backend.complete_job("a4")
    events = frame_of_all(spark, {"store": entries_of(backend)})
    rows = hourly(attempts(events)).where("tag IS NULL").collect()
    assert {row.worker: row.busy_seconds for row in rows} == {"frames:host:1:ab": 35.0, "plain": 5.0}
    assert {row.worker: row.run_p99 for row in rows} == {"frames:host:1:ab": 30.0, "plain": 5.0}


def test_what_was_handed_back_was_not_tried_again(spark):
    backend, _ = memory_store()
    backend.enqueue_jobs([Job(id="a", type="a"), Job(id="b", type="a")])
    backend.dequeue_jobs("w", limit=2)
    backend.release_jobs({"a": "the worker ends"})
    backend.fail_job("b", "no")
    backend.dequeue_jobs("w", limit=2)
    backend.complete_job("a")
    events = frame_of_all(spark, {"store": entries_of(backend)})
    ended = attempts(events)
    assert ended.where("released").select("job_id", "attempt", "outcome").collect() == [
        ("a", 1, "failed_retry")
    ]
    (row,) = hourly(ended).collect()
    assert (row.attempts, row.completed, row.retried, row.released, row.stopped) == (3, 1, 1, 1, 0)
    (older,) = hourly(ended.drop("released")).collect()
    assert (older.retried, older.released) == (2, 0)
    assert row.retry_rate == pytest.approx(1 / 3)


def test_backlog_goes_on_from_what_was_left(spark):
    events = frame_of_all(spark, {"store": [row for row in busy_hours() if row.recorded_at.hour == 10]})
    before = spark.createDataFrame([("store", "a", 1)], "source string, type string, backlog bigint")
    table = hourly(attempts(events), events, before).where("worker is null")
    assert {(row.type, row.backlog) for row in table.collect()} == {("a", 1), ("b", 0)}
