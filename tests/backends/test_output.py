"""What jobs printed, kept beside them; and the cheap look at their statuses."""

import pytest

from penstock import (
    InvalidArgumentError,
    InvalidTransitionError,
    Job,
    JobNotFoundError,
    JobStatus,
    StaleAttemptError,
)


@pytest.fixture
def backend(make_backend):
    backend = make_backend()
    backend.enqueue_job(Job(id="job", type="work"))
    return backend


def test_output_is_kept_without_a_journal_row_until_the_next_replaces_it(backend):
    assert backend.reading.get_output("job") == ""
    backend.dequeue_jobs("worker")
    rows = len(backend.read_journal())
    backend.save_output("job", "one\n", attempt=1)
    backend.save_output("job", "zwei ü\n", attempt=1)
    assert backend.reading.get_output("job") == "zwei ü\n"
    assert len(backend.read_journal()) == rows
    backend.fail_job("job", "boom")
    backend.dequeue_jobs("worker")
    assert backend.reading.get_output("job") == "zwei ü\n", "an attempt that prints nothing hides nothing"
    backend.complete_job("job")
    assert backend.reading.get_output("job") == "zwei ü\n"


def test_output_is_deleted_with_its_job(backend):
    backend.dequeue_jobs("worker")
    backend.save_output("job", "text")
    backend.complete_job("job")
    backend.delete_jobs(job_ids=["job"])
    with pytest.raises(JobNotFoundError):
        backend.reading.get_output("job")
    backend.enqueue_job(Job(id="job", type="work"))
    assert backend.reading.get_output("job") == ""


def test_output_is_fenced(backend):
    with pytest.raises(InvalidTransitionError):
        backend.save_output("job", "too early")
    backend.dequeue_jobs("worker")
    with pytest.raises(StaleAttemptError):
        backend.save_output("job", "not mine", attempt=7)
    with pytest.raises(JobNotFoundError):
        backend.save_output("nobody", "text")
    assert backend.reading.get_output("job") == ""


def test_output_that_is_too_long_loses_its_beginning(make_backend):
    backend = make_backend(max_payload=10)
    if type(backend).__name__ == "ModelBackend":
        pytest.skip("a model has no limit of size")
    backend.enqueue_job(Job(id="job", type="work"))
    backend.dequeue_jobs("worker")
    backend.save_output("job", "0123456789abcdef")
    assert backend.reading.get_output("job") == "6789abcdef"
    backend.save_output("job", "a\ud800b")
    assert backend.reading.get_output("job") == "a\\ud800b"
    with pytest.raises(InvalidArgumentError):
        backend.save_output("job", b"bytes")


def test_statuses_are_those_of_the_jobs_that_exist(backend):
    assert backend.runtime.statuses([]) == {}
    assert backend.runtime.statuses(["job", "nobody"]) == {"job": (JobStatus.INITIAL_PENDING, 0)}
    backend.dequeue_jobs("worker")
    backend.cancel_jobs(job_ids=["job"])
    assert backend.runtime.statuses(["job"]) == {"job": (JobStatus.CANCELLING, 1)}
