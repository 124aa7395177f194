"""A status that few jobs have is listed by an index that holds little else."""

import pytest

from penstock import FailureCategory, Job, JobStatus
from penstock.backends.postgres import reading

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize(
    ("status", "index"),
    [
        (JobStatus.FAILED, "job_ended"),
        (JobStatus.DEAD_LETTER, "job_ended"),
        (JobStatus.RUNNING, "job_in_flight"),
        (JobStatus.FAILED_RETRY, "job_retrying"),
    ],
)
def test_a_rare_status_is_listed_without_a_look_at_the_others(open_store, admin, monkeypatch, status, index):
    """B18."""
    backend = open_store()
    backend.enqueue_jobs(Job(id=f"done-{n}", type="t") for n in range(3000))
    for _ in range(3):
        backend.complete_jobs({job.id: None for job in backend.dequeue_jobs("w", limit=1000)})
    backend.enqueue_jobs(Job(id=name, type="t") for name in ("running", "failed", "failed_retry"))
    backend.dequeue_jobs("w", limit=3)
    backend.fail_job("failed", "x", category=FailureCategory.PERMANENT)
    backend.fail_job("failed_retry", "x")
    admin.execute("ANALYZE job")
    plans: list[str] = []
    read = reading._jobs

    def explained(connection, query, parameters):
        plans.extend(step for (step,) in connection.execute("EXPLAIN " + query, parameters))
        return read(connection, query, parameters)

    monkeypatch.setattr(reading, "_jobs", explained)
    found = [job.id for job in backend.list_jobs(status=status)]
    assert found == ([] if status is JobStatus.DEAD_LETTER else [str(status)])
    assert any(f"using {index} on job" in step or f"on {index} " in step for step in plans), plans
