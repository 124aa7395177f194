"""The holders of jobs: unresponsive workers, leases, heartbeats and owners."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.backends import Backend, ClaimRequest, Withheld
from penstock.errors import InvalidArgumentError, StaleAttemptError
from penstock.job import Job, JobState, JobStatus, Key, Maintenance
from penstock.policy import FailureCategory
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import (
    AT_ONCE,
    MISSING,
    ONE_ATTEMPT,
    OTHER_WORKER,
    STATUSES,
    WORKER,
    Suite,
    claim,
    drive,
    ids,
    is_takeable,
    put,
    put_running,
    refused,
    retry_policy,
    time_limits,
    unchanged,
)

_S = JobStatus
_LEASE = time_limits(visibility=60)


def lose(backend: Backend, how: str) -> None:
    """Reclaim every job of WORKER, in one of two ways."""
    if how == "mark_worker_unresponsive":
        backend.mark_worker_unresponsive(WORKER)
    else:
        backend.reset_running_jobs()


_both_ways = cells("how", ["mark_worker_unresponsive", "reset_running_jobs"])


class LostWorkers(Suite):
    """mark_worker_unresponsive and reset_running_jobs."""

    @_both_ways
    def test_running_jobs_come_back_and_cancelled_ones_end(
        self, backend: Backend, clock: ManualClock, how: str
    ) -> None:
        """Q3, Q45, Q49, B11, B12, C6, C10, C63."""
        put_running(backend, "running", "cancelling")
        backend.cancel_jobs(job_ids=["cancelling"])
        before = backend.get_jobs(["running", "cancelling"])
        now = clock.advance(2)
        lose(backend, how)
        running, cancelling = backend.get_job("running"), backend.get_job("cancelling")
        assert (running.status, running.state) == (_S.UNKNOWN_RETRY, JobState.SCHEDULED)
        assert (cancelling.status, cancelling.state) == (_S.UNKNOWN_STOPPED, JobState.CANCELLED)
        assert (running.finalized_at, cancelling.finalized_at) == (None, now)
        for job in (running, cancelling):
            old = before[job.id]
            assert (job.assignee_id, job.assigned_at, job.started_at) == (
                old.assignee_id,
                old.assigned_at,
                old.started_at,
            )
            assert (job.retry_count, job.last_retry_at, job.error_message) == (0, None, "")
            assert job.attempt == 1

    @_both_ways
    def test_a_lost_job_is_taken_at_once_by_another(self, backend: Backend, how: str) -> None:
        """Q45, Q49."""
        put_running(backend, "job")
        lose(backend, how)
        assert claim(backend, "job", OTHER_WORKER).attempt == 2

    @_both_ways
    @cells("status", [s for s in STATUSES if not s.holds_slot])
    def test_jobs_that_are_not_in_flight_are_left_alone(
        self, backend: Backend, status: JobStatus, how: str
    ) -> None:
        """Q45, Q49."""
        drive(backend, status)
        with unchanged(backend):
            lose(backend, how)

    @_both_ways
    def test_no_jobs_is_no_error(self, backend: Backend, how: str) -> None:
        """Q45, Q49."""
        with unchanged(backend):
            lose(backend, how)

    def test_other_workers_keep_their_jobs(self, backend: Backend) -> None:
        """Q45."""
        put_running(backend, "mine")
        put_running(backend, "theirs", worker=OTHER_WORKER)
        backend.mark_worker_unresponsive(WORKER)
        assert backend.get_job("mine").status is _S.UNKNOWN_RETRY
        assert backend.get_job("theirs").status is _S.RUNNING

    def test_a_job_that_went_to_another_worker_is_not_taken_from_it(self, backend: Backend) -> None:
        """Q45: only the latest assignment counts."""
        put_running(backend, "job")
        backend.fail_job("job", "boom")
        claim(backend, "job", OTHER_WORKER)
        with unchanged(backend):
            backend.mark_worker_unresponsive(WORKER)

    def test_a_reset_takes_from_everybody(self, backend: Backend) -> None:
        """Q49."""
        put_running(backend, "a", worker=WORKER)
        put_running(backend, "b", worker=OTHER_WORKER)
        backend.reset_running_jobs()
        assert [backend.get_job(each).status for each in "ab"] == [_S.UNKNOWN_RETRY] * 2

    @_both_ways
    def test_a_lost_attempt_counts_when_there_is_a_policy(self, backend: Backend, how: str) -> None:
        put(backend, "job", retry=AT_ONCE)
        for failures in (1, 2):
            claim(backend, "job")
            lose(backend, how)
            job = backend.get_job("job")
            assert (job.status, job.failures, job.retry_count) == (_S.UNKNOWN_RETRY, failures, 0)
        claim(backend, "job")
        lose(backend, how)
        assert backend.get_job("job").status is _S.DEAD_LETTER

    @_both_ways
    def test_the_loss_of_the_last_allowed_attempt_is_the_end(
        self, backend: Backend, clock: ManualClock, how: str
    ) -> None:
        """C21."""
        put_running(backend, "job", retry=ONE_ATTEMPT)
        now = clock.advance(2)
        lose(backend, how)
        job = backend.get_job("job")
        assert (job.status, job.failures, job.finalized_at) == (_S.DEAD_LETTER, 1, now)
        assert job.error_category is FailureCategory.SYSTEM
        assert job.error_message
        assert job.retry_count == 0
        with refused(backend, StaleAttemptError):
            backend.complete_job("job", attempt=1)

    @_both_ways
    def test_a_lost_attempt_without_a_policy_is_not_counted(self, backend: Backend, how: str) -> None:
        put(backend, "job")
        for _ in range(5):
            claim(backend, "job")
            lose(backend, how)
        job = backend.get_job("job")
        assert (job.status, job.failures, job.attempt) == (_S.UNKNOWN_RETRY, 0, 5)

    @_both_ways
    def test_a_policy_without_system_retries_still_retries_what_was_lost(
        self, backend: Backend, how: str
    ) -> None:
        """A loss is counted; the categories of the policy are about reported failures."""
        put_running(backend, "job", retry=retry_policy(retry_on=()))
        lose(backend, how)
        assert backend.get_job("job").status is _S.UNKNOWN_RETRY

    @_both_ways
    def test_lost_jobs_wait_for_no_backoff(self, backend: Backend, how: str) -> None:
        put_running(backend, "job", retry=retry_policy(initial_delay=3600))
        lose(backend, how)
        assert is_takeable(backend, "job")

    def test_many_jobs_are_taken_from_a_worker_at_once(self, backend: Backend) -> None:
        """Q45."""
        names = [f"job-{number}" for number in range(300)]
        put(backend, *names)
        backend.dequeue_jobs(WORKER, limit=300)
        backend.mark_worker_unresponsive(WORKER)
        assert backend.get_job_stats().failed_jobs == 300

    @cells("name", ["", None, 5])
    def test_a_worker_has_a_name(self, backend: Backend, name: Any) -> None:
        """Q45."""
        with refused(backend, InvalidArgumentError):
            backend.mark_worker_unresponsive(name)


class UnresponsiveClaims(Suite):
    """Claims for streams of an assignee that was declared unresponsive; see `ClaimRequest.pushed`."""

    def _pushed(self, backend: Backend, **fields: Any) -> list[Job]:
        request = ClaimRequest(**{"assignee_id": WORKER, "pushed": True, **fields})
        (found,) = backend.dequeue_jobs_for([request])
        return found

    def test_a_pushed_claim_gets_nothing_and_others_do(self, backend: Backend) -> None:
        """Q45."""
        put_running(backend, "job")
        backend.mark_worker_unresponsive(WORKER)
        with unchanged(backend):
            found = self._pushed(backend)
            assert isinstance(found, Withheld)
            assert found == []
        assert backend.runtime.unresponsive([WORKER, OTHER_WORKER]) == {WORKER}
        pushed = ClaimRequest(assignee_id=WORKER, pushed=True)
        other = ClaimRequest(assignee_id=OTHER_WORKER, pushed=True)
        first, second = backend.dequeue_jobs_for([pushed, other])
        assert (first, ids(second)) == ([], ["job"])

    @cells(
        "filters", [{"types": ["t"]}, {"types": ["t", "u"]}, {"tags": ["red"]}, {"key": "k"}, {}], ids=repr
    )
    def test_whatever_it_is_claimed_by(self, backend: Backend, filters: dict[str, Any]) -> None:
        put(backend, "job", type="t", tags=("red",), key=Key("k"))
        backend.mark_worker_unresponsive(WORKER)
        assert isinstance(self._pushed(backend, **filters), Withheld)
        assert ids(self._pushed(backend, assignee_id=OTHER_WORKER, **filters)) == ["job"]

    def test_a_claim_by_hand_is_made_as_before(self, backend: Backend) -> None:
        put_running(backend, "job")
        backend.mark_worker_unresponsive(WORKER)
        assert ids(backend.dequeue_jobs(WORKER)) == ["job"]

    @cells("sign", ["heartbeat", "revives", "complete_job", "fail_job", "stop_job"])
    def test_a_sign_of_life_ends_it(self, backend: Backend, sign: str) -> None:
        """Q45, Q40."""
        put_running(backend, "job")
        put(backend, "next")
        backend.mark_worker_unresponsive(WORKER)
        if sign == "heartbeat":
            backend.heartbeat(WORKER)
        elif sign != "revives":
            getattr(backend, sign)("job", *(["boom"] if sign == "fail_job" else []), attempt=1)
        claimed = self._pushed(backend, limit=5, revives=sign == "revives")
        assert "next" in ids(claimed)
        assert backend.runtime.unresponsive([WORKER]) == set()

    def test_what_others_do_is_no_sign_of_life(self, backend: Backend) -> None:
        put_running(backend, "job")
        backend.mark_worker_unresponsive(WORKER)
        claim(backend, "job", OTHER_WORKER)
        backend.heartbeat(OTHER_WORKER)
        backend.complete_job("job", attempt=2)
        with pytest.raises(StaleAttemptError):
            backend.complete_job("job", attempt=1)
        backend.maintain()
        assert backend.runtime.unresponsive([WORKER]) == {WORKER}

    def test_a_reset_declares_nobody_unresponsive(self, backend: Backend) -> None:
        put_running(backend, "job")
        backend.reset_running_jobs()
        assert ids(self._pushed(backend)) == ["job"]

    @cells("field", ["pushed", "revives"])
    def test_what_is_no_flag_is_refused(self, backend: Backend, field: str) -> None:
        put(backend, "job")
        with refused(backend, InvalidArgumentError):
            self._pushed(backend, **{field: 1})


class Leases(Suite):
    """The visibility timeout of jobs that were claimed by hand."""

    def test_a_silent_holder_loses_its_job_when_the_visibility_is_over(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """G15, C28, C63."""
        put_running(backend, "job", timeouts=_LEASE)
        clock.advance(timedelta(seconds=60, microseconds=-1))
        assert backend.maintain().lost == 0
        assert backend.get_job("job").status is _S.RUNNING
        clock.advance(timedelta(microseconds=1))
        assert backend.maintain() == Maintenance(lost=1)
        assert backend.get_job("job").status is _S.UNKNOWN_RETRY
        assert claim(backend, "job", OTHER_WORKER).attempt == 2

    def test_a_heartbeat_renews_the_lease(self, backend: Backend, clock: ManualClock) -> None:
        """G15, C28."""
        put_running(backend, "job", timeouts=_LEASE)
        for _ in range(5):
            clock.advance(59)
            assert backend.heartbeat(WORKER) == 1
            assert backend.maintain().lost == 0
        clock.advance(60)
        assert backend.maintain().lost == 1

    def test_a_heartbeat_renews_only_the_jobs_it_names(self, backend: Backend, clock: ManualClock) -> None:
        put_running(backend, "a", "b", timeouts=_LEASE)
        clock.advance(30)
        assert backend.heartbeat(WORKER, jobs={"a": 1}) == 1
        clock.advance(30)
        assert backend.maintain().lost == 1
        assert [backend.get_job(each).status for each in "ab"] == [_S.RUNNING, _S.UNKNOWN_RETRY]

    def test_a_heartbeat_of_another_attempt_renews_nothing(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """A fence for heartbeats: an old attempt must not keep a new one alive."""
        put_running(backend, "job", timeouts=_LEASE)
        backend.fail_job("job", "boom")
        claim(backend, "job")
        clock.advance(30)
        assert backend.heartbeat(WORKER, jobs={"job": 1}) == 0
        clock.advance(30)
        assert backend.maintain().lost == 1

    def test_a_heartbeat_of_another_worker_renews_nothing(self, backend: Backend, clock: ManualClock) -> None:
        put_running(backend, "job", timeouts=_LEASE)
        clock.advance(30)
        assert backend.heartbeat(OTHER_WORKER) == 0
        assert backend.heartbeat(OTHER_WORKER, jobs={"job": 1}) == 0
        clock.advance(30)
        assert backend.maintain().lost == 1

    def test_a_heartbeat_counts_what_is_in_flight(self, backend: Backend) -> None:
        put_running(backend, "a", "b", "c", "d")
        backend.cancel_jobs(job_ids=["b"])
        backend.complete_job("c")
        backend.mark_job_unknown_stopped("d", "lost")
        assert backend.heartbeat(WORKER) == 2
        assert backend.heartbeat(WORKER, jobs={"a": 1, "b": 1, "c": 1, MISSING: 1}) == 2
        assert backend.heartbeat(WORKER, jobs={}) == 0

    def test_a_heartbeat_writes_no_journal(self, backend: Backend, clock: ManualClock) -> None:
        put_running(backend, "job", timeouts=_LEASE)
        clock.advance(5)
        with unchanged(backend):
            backend.heartbeat(WORKER)

    def test_without_a_visibility_a_job_is_held_for_ever(self, backend: Backend, clock: ManualClock) -> None:
        put_running(backend, "job")
        clock.advance(timedelta(days=1000))
        assert backend.maintain().lost == 0
        assert backend.get_job("job").status is _S.RUNNING

    def test_each_attempt_has_a_lease_of_its_own(self, backend: Backend, clock: ManualClock) -> None:
        """G15."""
        put_running(backend, "job", timeouts=_LEASE)
        clock.advance(50)
        backend.fail_job("job", "boom")
        claim(backend, "job")
        clock.advance(50)
        assert backend.maintain().lost == 0
        clock.advance(10)
        assert backend.maintain().lost == 1

    def test_the_lease_of_a_job_that_is_being_cancelled_ends_it(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """C63."""
        put_running(backend, "job", timeouts=_LEASE)
        backend.cancel_jobs(job_ids=["job"])
        now = clock.advance(60)
        assert backend.maintain().lost == 1
        job = backend.get_job("job")
        assert (job.status, job.finalized_at) == (_S.UNKNOWN_STOPPED, now)

    def test_a_lost_lease_counts_against_the_policy(self, backend: Backend, clock: ManualClock) -> None:
        put_running(backend, "job", timeouts=_LEASE, retry=retry_policy(max_attempts=2))
        clock.advance(60)
        backend.maintain()
        assert backend.get_job("job").failures == 1
        claim(backend, "job")
        clock.advance(60)
        assert backend.maintain().lost == 1
        job = backend.get_job("job")
        assert (job.status, job.error_category) == (_S.DEAD_LETTER, FailureCategory.SYSTEM)

    def test_a_late_report_is_accepted_until_another_attempt_begins(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """Q40."""
        put_running(backend, "job", timeouts=_LEASE)
        clock.advance(61)
        backend.maintain()
        assert backend.complete_job("job", b"late", attempt=1) == {}
        assert backend.get_job("job").status is _S.COMPLETED

    def test_a_restarted_job_has_a_lease_too(self, backend: Backend, clock: ManualClock) -> None:
        put_running(backend, "job", timeouts=_LEASE, held=True)
        backend.stop_job("job")
        clock.advance(100)
        backend.restart_job("job", WORKER)
        clock.advance(59)
        assert backend.maintain().lost == 0
        clock.advance(1)
        assert backend.maintain().lost == 1

    def test_a_job_corrected_back_into_flight_is_not_held_for_ever(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """Q7, G15: the owner that should stop it may be lost."""
        put_running(backend, "job", timeouts=_LEASE)
        backend.mark_job_unknown_stopped("job", "no answer")
        backend.update_job_status("job", _S.CANCELLING)
        clock.advance(60)
        assert backend.maintain().lost == 1
        assert backend.get_job("job").status is _S.UNKNOWN_STOPPED

    @cells("jobs", [["job"], "job", {"job": "1"}, {"job": True}, {"": 1}, {5: 1}], ids=repr)
    def test_what_is_no_map_of_attempts_is_refused(self, backend: Backend, jobs: Any) -> None:
        put_running(backend, "job")
        with refused(backend, InvalidArgumentError):
            backend.heartbeat(WORKER, jobs=jobs)


class Owners(Suite):
    """Liveness rows of processes."""

    def test_an_open_owner_is_alive_and_a_closed_one_is_gone(self, backend: Backend) -> None:
        owner = backend.owners.open()
        assert owner
        assert backend.owners.beat(owner) is True
        assert backend.owners.has(owner) is True
        backend.owners.close(owner)
        assert backend.owners.beat(owner) is False
        assert backend.owners.has(owner) is False

    def test_every_owner_has_an_id_of_its_own(self, backend: Backend) -> None:
        owners = [backend.owners.open() for _ in range(3)]
        assert len(set(owners)) == 3

    def test_closing_twice_is_fine(self, backend: Backend) -> None:
        owner = backend.owners.open()
        backend.owners.close(owner)
        backend.owners.close(owner)

    def test_an_owner_writes_no_journal(self, backend: Backend) -> None:
        with unchanged(backend):
            owner = backend.owners.open()
            backend.owners.beat(owner)
            backend.owners.has(owner)
            backend.owners.close(owner)

    def test_a_beating_owner_holds_its_jobs_however_long_they_take(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """C28: the visibility is no limit for an owner that lives."""
        put(backend, "job", timeouts=_LEASE)
        owner = backend.owners.open()
        claim(backend, "job", owner=owner)
        for _ in range(40):
            clock.advance(5)
            assert backend.owners.beat(owner)
            assert backend.maintain().lost == 0
        assert backend.get_job("job").status is _S.RUNNING

    def test_a_process_never_judges_itself(self, backend: Backend, clock: ManualClock) -> None:
        """C28: the process that runs the upkeep is alive, however late its own heartbeat."""
        put(backend, "job", timeouts=_LEASE)
        claim(backend, "job", owner=backend.owners.open())
        clock.advance(timedelta(hours=1))
        assert backend.maintain().lost == 0
        assert backend.get_job("job").status is _S.RUNNING

    def test_the_jobs_of_a_closed_owner_are_lost(self, backend: Backend) -> None:
        """C63."""
        put(backend, "running", "cancelling", "other")
        owner, living = backend.owners.open(), backend.owners.open()
        claim(backend, "running", owner=owner)
        claim(backend, "cancelling", owner=owner)
        claim(backend, "other", owner=living)
        backend.cancel_jobs(job_ids=["cancelling"])
        backend.owners.close(owner)
        assert backend.get_job("running").status is _S.RUNNING
        assert backend.maintain().lost == 2
        assert backend.get_job("running").status is _S.UNKNOWN_RETRY
        assert backend.get_job("cancelling").status is _S.UNKNOWN_STOPPED
        assert backend.get_job("other").status is _S.RUNNING

    def test_a_job_reported_before_its_owner_closed_is_not_lost(self, backend: Backend) -> None:
        put(backend, "done", "again")
        owner = backend.owners.open()
        claim(backend, "done", owner=owner)
        claim(backend, "again", owner=owner)
        backend.complete_job("done")
        backend.fail_job("again", "boom")
        claim(backend, "again", OTHER_WORKER)
        backend.owners.close(owner)
        assert backend.maintain().lost == 0
        assert backend.get_job("again").status is _S.RUNNING
