"""A status is listed by an index where few jobs have it, and looks the same as if all jobs were looked at."""

from datetime import timedelta

import pytest

from penstock import FailureCategory, Job, JobStatus, RetryPolicy
from penstock.backends.sqlite import reading

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def of_every_status(backend):
    """A store with jobs of every status, each kind also behind the others, and their statuses by id."""
    later = backend.now() + timedelta(days=1)
    for turn in ("first", "second"):
        ids = {status: f"{turn}-{status}" for status in JobStatus}
        taken = [
            status for status in JobStatus if status not in {JobStatus.INITIAL_PENDING, JobStatus.UNSCHEDULED}
        ]
        backend.enqueue_jobs(
            Job(id=ids[status], type=turn, retry=ONCE if status is JobStatus.DEAD_LETTER else None)
            for status in taken
        )
        backend.dequeue_jobs("gone", job_ids=[ids[JobStatus.UNKNOWN_RETRY]])
        backend.mark_worker_unresponsive("gone")
        held = [ids[status] for status in taken if status is not JobStatus.UNKNOWN_RETRY]
        backend.dequeue_jobs("w", job_ids=held, limit=len(held))
        backend.cancel_jobs(job_ids=[ids[JobStatus.CANCELLING]])
        backend.complete_job(ids[JobStatus.COMPLETED])
        backend.stop_job(ids[JobStatus.STOPPED])
        backend.mark_job_unknown_stopped(ids[JobStatus.UNKNOWN_STOPPED], "?")
        backend.fail_jobs({ids[JobStatus.FAILED_RETRY]: "x", ids[JobStatus.DEAD_LETTER]: "x"})
        backend.fail_job(ids[JobStatus.FAILED], "x", category=FailureCategory.PERMANENT)
        backend.enqueue_jobs(
            [
                Job(id=ids[JobStatus.UNSCHEDULED], type=turn),
                Job(id=ids[JobStatus.INITIAL_PENDING], type=turn),
                Job(id=f"{turn}-delayed", type=turn, run_at=later),
                Job(id=f"{turn}-held", type=turn, held=True),
                Job(id=f"{turn}-head", type=turn, key=turn),
                Job(id=f"{turn}-behind", type=turn, key=turn),
                Job(id=f"{turn}-after", type=turn, after=(ids[JobStatus.RUNNING],)),
            ]
        )
        backend.cancel_jobs(job_ids=[ids[JobStatus.UNSCHEDULED]])
    return {job.id: job.status for job in backend.list_jobs(limit=1000)}


@pytest.mark.parametrize("status", JobStatus)
@pytest.mark.parametrize("looked_at", [0, 1, 100])
def test_every_job_of_a_status_is_listed_once_and_in_order(
    backend, of_every_status, monkeypatch, status, looked_at
):
    """B18."""
    monkeypatch.setattr(reading, "_LOOKED_AT", looked_at)
    wanted = [job_id for job_id, each in of_every_status.items() if each is status]
    assert len(wanted) >= 2
    for newest in (False, True):
        found: list[str] = []
        while page := backend.list_jobs(
            status=status, after=found[-1] if found else None, limit=2, newest=newest
        ):
            found += [job.id for job in page]
        assert found == (wanted[::-1] if newest else wanted)
    of_type = backend.list_jobs(status=status, type="second", limit=100)
    assert [job.id for job in of_type] == [each for each in wanted if each.startswith("second")]


def test_a_store_whose_first_jobs_were_removed_is_listed_from_its_first_one(backend, monkeypatch):
    backend.enqueue_jobs(Job(id=f"old-{n}", type="t") for n in range(300))
    backend.cancel_jobs(job_ids=[f"old-{n}" for n in range(300)])
    backend.enqueue_jobs(Job(id=f"new-{n}", type="t") for n in range(3))
    backend.delete_jobs(job_ids=[f"old-{n}" for n in range(300)])
    monkeypatch.setattr(reading, "_rows_of_status", lambda *_: pytest.fail("the first ones are at hand"))
    page = backend.list_jobs(status=JobStatus.INITIAL_PENDING, limit=2)
    assert [job.id for job in page] == ["new-0", "new-1"]
