"""Find failed attempts in the lake with a DataFrame filter, and submit their jobs again.

python examples/replay_failed/replay_failed.py          needs the extra: pip install '.[spark]'

Deliveries failed because a partner was down, and their jobs are dead letters. When the partner is back, the jobs that
failed for that reason, and no others, become new jobs. Running it twice adds nothing: a job's new id is made from its
old one.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import penstock
from penstock import spark as ps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def a_bad_day(url: str) -> None:
    """Submit six deliveries: two work, three meet a partner that is down, one has a wrong address."""
    once = penstock.RetryPolicy(max_attempts=1)
    with penstock.connect(url) as queue:
        for number in range(6):
            queue.submit("deliver", {"order": number}, tags={"partner": "north"}, retry=once)
        for number, job in enumerate(queue.backend.dequeue_jobs("worker-1", limit=6)):
            if number < 2:
                queue.complete_job(job.id, attempt=job.attempt)
            else:
                code = "partner_down" if number < 5 else "no_such_address"
                queue.fail_job(job.id, f"delivery failed: {code}", attempt=job.attempt, code=code)


def replay(spark: SparkSession, url: str, lake: Path) -> int:
    """Submit again what failed because the partner was down; return how many jobs that adds."""
    ps.sync(spark, url, lake)
    failed = ps.read_table(spark, lake, "attempts").where(
        "type = 'deliver' AND outcome = 'dead_letter' AND error_code = 'partner_down'"
    )
    # The journal has no payloads; the store still has those of its jobs.
    jobs = (
        spark.read.format("penstock")
        .option("url", url)
        .option("table", "jobs")
        .schema("id string, payload binary")
        .load()
    )
    again = failed.join(jobs, failed["job_id"] == jobs["id"], "inner").selectExpr(
        "concat(job_id, '-again') AS id", "type", "payload", "tags"
    )
    return ps.write(again, url).added


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url, lake = f"sqlite:///{folder}/jobs.db", Path(folder) / "lake"
        a_bad_day(url)
        spark = ps.session()
        print(f"submitted again: {replay(spark, url, lake)}")
        print(f"a second time:   {replay(spark, url, lake)}")
        spark.stop()


if __name__ == "__main__":
    main()
