"""A process remembers what it claimed, so that completing it asks the file for nothing. Whatever happened since wins."""

import pytest
from tests.sqlite.support import jobs, open_store

from penstock import Job, JobStatus, ReportErrors, StaleAttemptError
from penstock.backends.sqlite import writer as writers
from penstock.backends.sqlite import writer_cache
from penstock.testing import ManualClock, check_store


@pytest.fixture
def pair(path):
    """Two store objects on one file: what one remembers the other may change."""
    with open_store(path) as one, open_store(path) as other:
        yield one, other


def held(backend):
    return backend._store._writer._cache.held


def claimed(backend, number=3, name="job", **fields):
    backend.enqueue_jobs(jobs(number, name, **fields))
    return backend.dequeue_jobs("w", fields.get("tags", ()), limit=number)


def statuses(backend, found):
    return [backend.get_job(job.id).status for job in found]


def test_what_was_claimed_here_is_completed_by_number(pair):
    one, other = pair
    found = claimed(one, tags=("a", "b"))
    assert set(held(one)) == {job.id for job in found}
    assert one.complete_jobs({job.id: b"r" for job in found}, attempts={job.id: 1 for job in found}) == {
        "w": 3
    }
    assert held(one) == {}
    for job in found:
        stored = other.get_job(job.id)
        assert (stored.status, stored.result, stored.attempt) == (JobStatus.COMPLETED, b"r", 1)
    check_store(other)


@pytest.mark.parametrize("fenced", [True, False], ids=["fenced", "unfenced"])
def test_what_another_process_completed_meanwhile_is_refused(pair, fenced):
    one, other = pair
    found = claimed(one)
    other.complete_job(found[1].id, b"theirs")
    attempts = {job.id: 1 for job in found} if fenced else None
    with pytest.raises(ReportErrors) as refused:
        one.complete_jobs({job.id: b"ours" for job in found}, attempts=attempts)
    assert [error.job_id for error in refused.value.exceptions] == [found[1].id]
    assert refused.value.freed == {"w": 2}
    assert [one.get_job(job.id).result for job in found] == [b"ours", b"theirs", b"ours"]
    check_store(one)


def test_a_job_that_was_lost_and_claimed_again_is_not_completed_by_its_old_attempt(pair):
    one, other = pair
    (job,) = claimed(one, 1)
    other.mark_worker_unresponsive("w")
    (again,) = other.dequeue_jobs("v", limit=1)
    with pytest.raises(StaleAttemptError):
        one.complete_job(job.id, attempt=job.attempt)
    assert other.get_job(job.id).status is JobStatus.RUNNING
    other.complete_job(again.id, attempt=again.attempt)
    check_store(one)


def test_a_fence_of_no_attempt_that_was_is_refused(path):
    with open_store(path) as backend:
        (job,) = claimed(backend, 1)
        with pytest.raises(StaleAttemptError):
            backend.complete_job(job.id, attempt=2)
        assert backend.get_job(job.id).status is JobStatus.RUNNING


def test_an_unfenced_report_counts_for_whoever_has_the_job_now(pair):
    one, other = pair
    (job,) = claimed(one, 1)
    other.mark_worker_unresponsive("w")
    other.dequeue_jobs("v", limit=1)
    assert one.complete_job(job.id) == {"v": 1}


def test_a_cancelled_job_completes_and_frees_its_worker(pair):
    one, other = pair
    found = claimed(one)
    other.cancel_jobs(job_ids=[found[0].id])
    assert one.complete_jobs({job.id: None for job in found}) == {"w": 3}
    assert statuses(one, found) == [JobStatus.COMPLETED] * 3
    check_store(one)


def test_events_and_counts_carry_the_tags_of_now(pair):
    one, other = pair
    found = claimed(one, tags=("old",))
    other.update_job(found[0].id, tags=("new",))
    told = []
    one.runtime.listen(told.extend)
    one.complete_jobs({job.id: None for job in found})
    assert {change.job_id: change.tags for change in told} == {
        found[0].id: ("new",),
        found[1].id: ("old",),
        found[2].id: ("old",),
    }
    assert one.get_job_stats(["new"]).completed_jobs == 1
    assert one.get_job_stats(["old"]).completed_jobs == 2
    check_store(one)


def test_a_dependent_that_came_meanwhile_is_released(pair):
    one, other = pair
    (job,) = claimed(one, 1)
    other.enqueue_job(Job(id="next", type="t", after=(job.id,)))
    one.complete_job(job.id, attempt=1)
    assert [each.id for each in one.dequeue_jobs("w", limit=5)] == ["next"]


def test_an_id_that_was_deleted_and_used_again_is_another_job(pair):
    one, other = pair
    (job,) = claimed(one, 1)
    other.stop_job(job.id, "away")
    other.delete_jobs(job_ids=[job.id])
    other.enqueue_job(Job(id=job.id, type="t"))
    other.dequeue_jobs("v", limit=1)
    assert one.complete_job(job.id, attempt=1) == {"v": 1}  # fences do not reach across
    check_store(one)


def test_a_claim_that_was_undone_is_not_remembered(path, monkeypatch):
    with open_store(path) as backend:
        backend.enqueue_jobs(jobs(2))
        monkeypatch.setattr(writers.Writer, "_news", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            backend.dequeue_jobs("w", limit=2)
        monkeypatch.undo()
        assert held(backend) == {}
        with pytest.raises(ReportErrors):
            backend.complete_jobs(dict.fromkeys(["job-0", "job-1"]))
        assert backend.get_job_stats().pending_jobs == 2


def test_the_memory_is_bounded(path, monkeypatch):
    monkeypatch.setattr(writer_cache, "_MAX_HELD", 4)
    with open_store(path) as backend:
        first, second = claimed(backend), claimed(backend, name="other")
        assert len(held(backend)) == 3
        found = [*first, *second]
        assert backend.complete_jobs({job.id: None for job in found}) == {"w": 6}


@pytest.mark.parametrize("fold_at", [1, 2, 7])
def test_counters_are_right_when_two_processes_write_by_turns(path, monkeypatch, fold_at):
    """What one has tallied in memory is void as soon as the other has written."""
    monkeypatch.setattr(writers, "FOLD_AT", fold_at)
    clock = ManualClock()
    with open_store(path, clock=clock) as one, open_store(path, clock=clock) as other:
        for turn in range(12):
            writer = (one, other)[turn % 3 == 0]
            found = claimed(writer, name=f"job-{turn}", tags=("t", f"turn={turn}"))
            writer.complete_job(found[0].id)
            writer.fail_job(found[1].id, "no")
            if turn % 4 == 0:
                other.maintain()  # folds by reading the journal
            writer.release_jobs({found[2].id: "later"})
            writer.cancel_jobs(job_ids=[found[2].id])
            writer.delete_jobs(job_ids=[found[0].id])
        for reader in (one, other):
            stats = reader.get_job_stats(["t"])
            assert (stats.total_jobs, stats.failed_jobs, stats.stopped_jobs) == (24, 12, 12)
            assert stats.total_retries == 24
            assert reader.get_job_stats(["turn=5"]).total_jobs == 2
            check_store(reader)


def test_counters_that_upkeep_has_folded_are_not_folded_again(path, monkeypatch):
    monkeypatch.setattr(writers, "FOLD_AT", 5)
    with open_store(path) as backend:
        backend.enqueue_jobs(jobs(5))  # folded: from here on the writer knows what is not
        backend.enqueue_jobs(jobs(2, "more"))
        backend.maintain()
        backend.enqueue_jobs(jobs(4, "yet more"))
        assert backend.get_job_stats().total_jobs == 11
        check_store(backend)
