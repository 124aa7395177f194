"""What tests of the Spark side put into stores."""

from datetime import UTC, datetime, timedelta

from penstock import FailureCategory, Job, Key, Priority, Queue, RetryPolicy, Timeouts

__all__ = ["FAST", "QUICK_JAVA", "fill"]

#: For a Java that lives for minutes. With one compiler it would have 48 MB for compiled code, which the tests of a session
#: fill: then it is busy with throwing code away.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=192m"
#: For frames of some hundred rows: what Spark and Java do to make large ones fast takes most of the time of small ones.
#: Three quarters of the work fall away. The demo, the cluster and the benchmarks run with what users have.
FAST = {
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.driver.memory": "1536m",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}


def fill(queue: Queue) -> None:
    """Leave jobs in most statuses, with every field set somewhere and text that needs care."""
    later = datetime.now(UTC) + timedelta(days=1)
    queue.enqueue_jobs(
        [
            Job(id="plain", type="a"),
            Job(id="policy", type="b", retry=RetryPolicy(max_attempts=5, initial_delay=900.5, jitter=0.5)),
            Job(id="limits", type="b", timeouts=Timeouts(execution=1.5, lifetime=86_400)),
            Job(id="späte 'r'", type="a", run_at=later, tags=("x=1", "ü\\", "'"), priority=Priority.BULK),
            Job(id="keyed", type="a", key=Key("k", "1"), payload=b"\x00\xff", correlation_id="c"),
            Job(id="second", type="a", key=Key("k", "1"), idempotency_key="once", callback_url="http://x/"),
            Job(id="waits", type="a", after=("plain", "keyed"), after_any=("policy",), parent_id="plain"),
            Job(
                id="held",
                type="a",
                held=True,
                trace="00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 s=1",
            ),
            Job(id="gone", type="c"),
        ]
    )
    backend = queue.backend
    (job,) = backend.dequeue_jobs("worker", job_ids=["plain"])
    backend.save_checkpoint(job.id, b"half", attempt=1)
    queue.complete_job(job.id, b"result", attempt=1)
    backend.dequeue_jobs("worker", job_ids=["policy"])
    queue.fail_job("policy", "boom \\ 'quoted'", code="E1")
    backend.dequeue_jobs("worker", job_ids=["limits"])
    queue.fail_job("limits", "for good", category=FailureCategory.PERMANENT)
    backend.dequeue_jobs("other", job_ids=["keyed"])
    backend.save_progress("keyed", 40, "on its way")
    queue.cancel_jobs(job_ids=["gone"])
    queue.delete_jobs(job_ids=["gone"])
