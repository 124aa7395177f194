"""Keys: jobs that share one are worked on one at a time, in the order they came."""

from __future__ import annotations

from datetime import timedelta

from penstock.backends import Backend
from penstock.job import JobState, JobStatus, Key, Priority
from penstock.policy import FailureCategory
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import (
    OTHER_WORKER,
    STATUSES,
    WORKER,
    Suite,
    a_job,
    claim,
    drive,
    ids,
    is_takeable,
    put,
    put_running,
    retry_policy,
    time_limits,
)

_S = JobStatus


class Keys(Suite):
    """One in flight, head first."""

    def test_jobs_of_a_key_run_one_at_a_time_in_order(self, backend: Backend) -> None:
        """R2, R3, C49."""
        put(backend, "a", "b", "c", key="k")
        taken = []
        while jobs := backend.dequeue_jobs(WORKER, limit=10):
            assert len(jobs) == 1
            assert backend.dequeue_jobs(OTHER_WORKER, limit=10) == []
            taken += ids(jobs)
            backend.complete_job(jobs[0].id)
        assert taken == ["a", "b", "c"]

    def test_different_keys_do_not_wait_for_each_other(self, backend: Backend) -> None:
        """R2, R3."""
        put(backend, "a1", "a2", key=Key("doc", "a"))
        put(backend, "b1", "b2", key=Key("doc", "b"))
        put(backend, "free")
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["a1", "b1", "free"]

    def test_a_follower_waits_for_its_turn(self, backend: Backend, clock: ManualClock) -> None:
        """R3: PENDING until the head has ended."""
        put(backend, "head", "next", key="k")
        head, follower = backend.get_job("head"), backend.get_job("next")
        assert (head.state, head.scheduled_at) == (JobState.SCHEDULED, clock.now())
        assert (follower.state, follower.scheduled_at) == (JobState.PENDING, None)
        assert not is_takeable(backend, "next")
        claim(backend, "head")
        assert backend.get_job("next").state is JobState.PENDING
        now = clock.advance(5)
        backend.complete_job("head")
        follower = backend.get_job("next")
        assert (follower.state, follower.scheduled_at) == (JobState.SCHEDULED, now)

    @cells("status", STATUSES)
    def test_a_key_is_free_when_its_head_has_ended_however_it_ended(
        self, backend: Backend, status: JobStatus
    ) -> None:
        """R3: a head that failed and retries keeps its key."""
        drive(backend, status, "head", key="k")
        put(backend, "next", key="k")
        assert is_takeable(backend, "next") is status.is_final

    def test_priority_does_not_overtake_inside_a_key(self, backend: Backend) -> None:
        """R3, C58."""
        put(backend, "head", key="k", priority=Priority.BULK)
        put(backend, "urgent", key="k", priority=Priority.CRITICAL)
        put(backend, "other", priority=Priority.NORMAL)
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["other", "head"]

    def test_age_does_not_overtake_inside_a_key(self, backend: Backend, clock: ManualClock) -> None:
        """R3: first of a key is insertion order."""
        put(backend, "head", key="k")
        put(backend, "older", key="k", created_at=clock.now() - timedelta(days=1))
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["head"]

    def test_a_delayed_head_blocks_its_key(self, backend: Backend, clock: ManualClock) -> None:
        """R3."""
        put(backend, "head", key="k", run_at=clock.now() + timedelta(seconds=60))
        put(backend, "next", key="k")
        assert backend.dequeue_jobs(WORKER, limit=10) == []
        clock.advance(60)
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["head"]

    def test_a_head_that_backs_off_blocks_its_key(self, backend: Backend, clock: ManualClock) -> None:
        """R3, R6."""
        put_running(backend, "head", key="k", retry=retry_policy(initial_delay=60))
        put(backend, "next", key="k")
        backend.fail_job("head", "boom")
        assert backend.dequeue_jobs(WORKER, limit=10) == []
        clock.advance(60)
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["head"]

    def test_a_failed_head_is_retried_before_its_followers(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """R3, R6: also though its age counts from the retry."""
        put_running(backend, "head", key="k")
        put(backend, "next", key="k")
        clock.advance(5)
        backend.fail_job("head", "boom")
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["head"]

    def test_a_lost_head_is_retried_before_its_followers(self, backend: Backend) -> None:
        """R3."""
        put_running(backend, "head", key="k")
        put(backend, "next", key="k")
        backend.mark_worker_unresponsive(WORKER)
        assert ids(backend.dequeue_jobs(OTHER_WORKER, limit=10)) == ["head"]

    def test_a_head_that_waits_for_a_dependency_blocks_its_key(self, backend: Backend) -> None:
        """R3, C48."""
        put(backend, "needed")
        put(backend, "head", key="k", after=["needed"])
        put(backend, "next", key="k")
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["needed"]
        backend.complete_job("needed")
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["head"]

    def test_a_held_head_blocks_its_key(self, backend: Backend) -> None:
        """R3."""
        put(backend, "head", key="k", held=True)
        put(backend, "next", key="k")
        assert backend.dequeue_jobs(WORKER, limit=10) == []
        claim(backend, "head")
        backend.complete_job("head")
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["next"]

    def test_a_flow_inside_one_key_does_not_deadlock(self, backend: Backend) -> None:
        """R7, R8, C48: children are inserted before their parents."""
        backend.enqueue_jobs(
            [
                a_job(id="root", type="t", key=Key("k"), after=("left", "right")),
                a_job(id="left", type="t", key=Key("k"), after=("leaf",)),
                a_job(id="leaf", type="t", key=Key("k")),
                a_job(id="right", type="t", key=Key("k")),
            ]
        )
        taken = []
        while jobs := backend.dequeue_jobs(WORKER, limit=10):
            taken += ids(jobs)
            backend.complete_job(jobs[0].id)
        assert taken == ["leaf", "left", "right", "root"]

    def test_cancelling_the_head_lets_the_next_one_run(self, backend: Backend) -> None:
        """R3, Q42."""
        put(backend, "head", "next", key="k")
        backend.cancel_jobs(job_ids=["head"])
        assert is_takeable(backend, "next")

    def test_cancelling_one_in_the_middle_leaves_the_order(self, backend: Backend) -> None:
        """R3."""
        put(backend, "a", "b", "c", key="k")
        backend.cancel_jobs(job_ids=["b"])
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["a"]
        backend.complete_job("a")
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["c"]

    def test_a_job_being_cancelled_still_blocks_its_key(self, backend: Backend) -> None:
        """R3, C7."""
        put_running(backend, "head", key="k")
        put(backend, "next", key="k")
        backend.cancel_jobs(job_ids=["head"])
        assert not is_takeable(backend, "next")
        backend.acknowledge_cancellation("head", False)
        assert is_takeable(backend, "next")

    def test_propagation_moves_the_turn_on(self, backend: Backend) -> None:
        """R3, G26."""
        put(backend, "needed")
        put(backend, "head", key="k", after=["needed"])
        put(backend, "next", key="k")
        claim(backend, "needed")
        backend.fail_job("needed", "boom", category=FailureCategory.PERMANENT)
        assert backend.get_job("head").status is _S.FAILED
        assert is_takeable(backend, "next")

    @cells("how", ["expired", "lost"])
    def test_upkeep_moves_the_turn_on(self, backend: Backend, clock: ManualClock, how: str) -> None:
        """R3, G16."""
        timeouts = time_limits(lifetime=5) if how == "expired" else time_limits(visibility=5)
        put_running(backend, "head", key="k", timeouts=timeouts, retry=retry_policy(max_attempts=1))
        put(backend, "next", key="k")
        clock.advance(5)
        backend.maintain()
        assert backend.get_job("head").status is _S.DEAD_LETTER
        assert is_takeable(backend, "next")

    def test_a_redriven_copy_goes_to_the_tail_of_its_key(self, backend: Backend) -> None:
        """C23, R3."""
        put_running(backend, "dead", key="k")
        put(backend, "next", key="k")
        backend.fail_job("dead", "boom", category=FailureCategory.PERMANENT)
        (copy,) = backend.redrive_jobs(job_ids=["dead"])
        assert backend.get_job(copy).key == Key("k")
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["next"]
        backend.complete_job("next")
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == [copy]

    def test_a_corrected_end_takes_the_turn_back_after_the_running_one(self, backend: Backend) -> None:
        """Q7, R3: one in flight, then first by insertion."""
        put_running(backend, "first", key="k")
        put(backend, "second", "third", key="k")
        backend.mark_job_unknown_stopped("first", "lost")
        claim(backend, "second")
        backend.update_job_status("first", _S.UNKNOWN_RETRY)
        assert not is_takeable(backend, "first")
        backend.complete_job("second")
        assert not is_takeable(backend, "third")
        assert is_takeable(backend, "first")

    def test_the_filter_of_a_claim_does_not_change_who_is_first(self, backend: Backend) -> None:
        """R3."""
        put(backend, "head", key="k", tags=["a"])
        put(backend, "next", key="k", tags=["b"])
        assert backend.dequeue_jobs(WORKER, ["b"], limit=10) == []
        assert backend.dequeue_jobs(WORKER, job_ids=["next"]) == []

    def test_a_follower_that_is_not_due_when_its_turn_comes_waits_on(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """R3, G4."""
        put(backend, "head", key="k")
        put(backend, "next", key="k", run_at=clock.now() + timedelta(seconds=60))
        assert backend.get_job("next").state is JobState.PENDING
        claim(backend, "head")
        backend.complete_job("head")
        assert backend.get_job("next").state is JobState.DELAYED
        due = clock.advance(60)
        job = backend.get_job("next")
        assert (job.state, job.scheduled_at) == (JobState.SCHEDULED, due)

    def test_many_keys_are_served_in_one_claim(self, backend: Backend) -> None:
        """R2, Q25."""
        backend.enqueue_jobs(
            [
                a_job(id=f"{key}-{number}", type="t", key=Key(f"k{key}"))
                for number in range(3)
                for key in range(40)
            ]
        )
        taken = ids(backend.dequeue_jobs(WORKER, limit=200))
        assert taken == [f"{key}-0" for key in range(40)]

    def test_a_key_of_several_parts_comes_back_as_it_was(self, backend: Backend) -> None:
        """R2."""
        key = Key("document-1", "", "häupt/zweig")
        put(backend, "job", key=key)
        stored = backend.get_job("job").key
        assert (type(stored), stored) == (Key, key)
