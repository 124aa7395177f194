"""What a user of `penstock.Queue` writes; mypy must see through its verbs (`test_user_code.py`)."""

from typing import assert_type

import penstock
from penstock import Job, JobStats, Queue
from penstock.job import JournalEntry


def main() -> None:
    with penstock.connect("memory:") as queue:
        assert_type(queue, Queue)
        job = queue.submit("resize", {"width": 200}, delay=1.0, tags=["images"])
        assert_type(job, Job)
        assert_type(queue.complete_job(job.id, b"", attempt=job.attempt), None)
        assert_type(queue.fail_jobs({job.id: "why"}, attempts={job.id: 1}), None)
        assert_type(queue.update_job(job.id, priority=1), None)
        assert_type(queue.cancel_jobs(job_ids=[job.id]), tuple[list[str], list[str]])
        assert_type(queue.heartbeat("worker"), int)
        assert_type(queue.get_job_stats(["images"]), JobStats)
        assert_type(queue.list_jobs(type="resize", limit=5), list[Job])
        assert_type(queue.job_history(job.id), list[JournalEntry])
        assert_type(queue.get_output(job.id), str)
        assert_type(queue.get_jobs([job.id]), dict[str, Job])


def mistakes(queue: Queue) -> None:
    queue.complete_job(7)  # type: ignore[arg-type]
    queue.complete_job("a", b"", 1)  # type: ignore[call-arg]
    queue.fail_job("a")  # type: ignore[call-arg]
    queue.list_jobs(None)  # type: ignore[call-arg]
    queue.restart_job("a", "worker", owner="other")  # type: ignore[call-arg]
    queue.find_ids(prefix=b"a")  # type: ignore[arg-type]
    queue.no_such_verb()  # type: ignore[attr-defined]
