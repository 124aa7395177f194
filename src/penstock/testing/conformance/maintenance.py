"""Upkeep: lifetimes, execution times, due jobs, retention, clean-up and deletion."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.backends import Backend, Retention
from penstock.errors import InvalidArgumentError, InvalidTransitionError, JobNotFoundError, StaleAttemptError
from penstock.job import JobState, JobStatus, Maintenance
from penstock.policy import FailureCategory, RetryPolicy
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import (
    AT_ONCE,
    MISSING,
    STATUSES,
    WORKER,
    MakeBackend,
    Suite,
    all_jobs,
    claim,
    drive,
    ids,
    is_takeable,
    put,
    put_running,
    refused,
    retry_policy,
    rows_of,
    time_limits,
    unchanged,
    verbs_of,
)

_S = JobStatus
_OPEN = [status for status in STATUSES if not status.is_final]
_FINAL = [status for status in STATUSES if status.is_final]


class Lifetimes(Suite):
    """The time from submission to an end."""

    @cells("status", _OPEN)
    def test_an_unfinished_job_dies_when_its_lifetime_is_over(
        self, backend: Backend, clock: ManualClock, status: JobStatus
    ) -> None:
        """G13, G16, C30: whatever its status, at the very instant."""
        before = drive(backend, status, timeouts=time_limits(lifetime=60))
        clock.advance(timedelta(seconds=60, microseconds=-1))
        assert backend.maintain().expired == 0
        now = clock.advance(timedelta(microseconds=1))
        assert backend.maintain().expired == 1
        job = backend.get_job("job")
        assert (job.status, job.state, job.finalized_at) == (_S.DEAD_LETTER, JobState.DEAD_LETTER, now)
        assert (job.error_category, job.error_code) == (FailureCategory.TIMEOUT, "lifetime")
        assert job.error_message
        assert (job.assignee_id, job.attempt, job.retry_count, job.failures) == (
            before.assignee_id,
            before.attempt,
            before.retry_count,
            before.failures,
        )
        assert verbs_of(backend, "job")[-1] == "expire"

    @cells("status", _FINAL)
    def test_a_job_that_has_ended_does_not_expire(
        self, backend: Backend, clock: ManualClock, status: JobStatus
    ) -> None:
        """C22, C30: FAILED stays FAILED."""
        drive(backend, status, timeouts=time_limits(lifetime=60))
        clock.advance(61)
        with unchanged(backend):
            assert backend.maintain() == Maintenance()

    def test_a_lifetime_counts_from_created_at(self, backend: Backend, clock: ManualClock) -> None:
        """G13."""
        put(backend, "job", timeouts=time_limits(lifetime=60), created_at=clock.now() - timedelta(seconds=50))
        clock.advance(9)
        assert backend.maintain().expired == 0
        clock.advance(1)
        assert backend.maintain().expired == 1

    def test_a_delayed_job_may_expire_before_it_is_due(self, backend: Backend, clock: ManualClock) -> None:
        """G16."""
        put(backend, "job", timeouts=time_limits(lifetime=60), run_at=clock.now() + timedelta(days=1))
        clock.advance(60)
        assert backend.maintain().expired == 1

    def test_the_worker_of_an_expired_job_can_no_longer_report(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """G16."""
        put_running(backend, "job", timeouts=time_limits(lifetime=60))
        clock.advance(60)
        backend.maintain()
        with refused(backend, StaleAttemptError):
            backend.complete_job("job", attempt=1)
        assert backend.heartbeat(WORKER) == 0

    def test_a_lifetime_goes_before_everything_else(self, backend: Backend, clock: ManualClock) -> None:
        """The order of upkeep: a job that is expired, lost and late is expired."""
        put_running(backend, "job", timeouts=time_limits(execution=1, visibility=1, lifetime=1))
        clock.advance(100)
        assert backend.maintain() == Maintenance(expired=1)

    def test_without_upkeep_an_expired_job_is_still_there(self, backend: Backend, clock: ManualClock) -> None:
        put(backend, "job", timeouts=time_limits(lifetime=60))
        clock.advance(61)
        assert backend.get_job("job").status is _S.INITIAL_PENDING


class ExecutionTimes(Suite):
    """The time that one attempt may run."""

    def test_an_attempt_that_runs_too_long_has_failed_by_timeout(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """G14, G21, C29: ten seconds after its time, to let the worker act first."""
        put_running(backend, "job", timeouts=time_limits(execution=60), retry=retry_policy(initial_delay=5))
        clock.advance(timedelta(seconds=70, microseconds=-1))
        assert backend.maintain().timed_out == 0
        now = clock.advance(timedelta(microseconds=1))
        assert backend.maintain() == Maintenance(timed_out=1)
        job = backend.get_job("job")
        assert (job.status, job.state) == (_S.FAILED_RETRY, JobState.RETRYING)
        assert (job.retry_count, job.failures, job.last_retry_at) == (1, 1, now)
        assert job.error_category is FailureCategory.TIMEOUT
        assert job.error_message
        assert verbs_of(backend, "job")[-1] == "time_out"
        clock.advance(5)
        assert is_takeable(backend, "job")

    def test_each_attempt_has_its_own_time(self, backend: Backend, clock: ManualClock) -> None:
        """G14."""
        put_running(backend, "job", timeouts=time_limits(execution=60))
        clock.advance(50)
        backend.fail_job("job", "boom")
        claim(backend, "job")
        clock.advance(50)
        assert backend.maintain().timed_out == 0
        clock.advance(20)
        assert backend.maintain().timed_out == 1

    def test_without_a_policy_it_is_retried_at_once(self, backend: Backend, clock: ManualClock) -> None:
        """G14, C55."""
        put_running(backend, "job", timeouts=time_limits(execution=60))
        clock.advance(70)
        backend.maintain()
        assert is_takeable(backend, "job")

    @cells(
        "policy",
        [retry_policy(max_attempts=1), retry_policy(retry_on=(FailureCategory.TEMPORARY,))],
        ids=["last attempt", "timeouts not retried"],
    )
    def test_where_no_retry_is_allowed_it_is_dead(
        self, backend: Backend, clock: ManualClock, policy: RetryPolicy
    ) -> None:
        """G14, C29."""
        put_running(backend, "job", timeouts=time_limits(execution=60), retry=policy)
        now = clock.advance(70)
        assert backend.maintain().timed_out == 1
        job = backend.get_job("job")
        assert (job.status, job.finalized_at) == (_S.DEAD_LETTER, now)
        assert job.error_category is FailureCategory.TIMEOUT

    @cells("status", [status for status in STATUSES if status is not _S.RUNNING])
    def test_only_running_jobs_time_out(
        self, backend: Backend, clock: ManualClock, status: JobStatus
    ) -> None:
        """G14."""
        drive(backend, status, timeouts=time_limits(execution=60))
        clock.advance(1000)
        with unchanged(backend):
            assert backend.maintain().timed_out == 0

    def test_a_beating_holder_does_not_prolong_the_execution_time(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """G14, C28."""
        put_running(backend, "job", timeouts=time_limits(execution=60, visibility=60))
        for _ in range(7):
            clock.advance(10)
            backend.heartbeat(WORKER)
        assert backend.maintain() == Maintenance(timed_out=1)

    def test_a_jump_of_the_clock_does_not_end_the_job_of_an_owner_that_beats(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """G14, C28: the owner bounds it by its own monotonic clock; the store knows only a clock that may be set."""
        put(backend, "job", timeouts=time_limits(execution=1800))
        owner = backend.owners.open()
        claim(backend, "job", owner=owner)
        clock.advance(timedelta(hours=1))
        assert backend.maintain() == Maintenance()
        assert backend.owners.beat(owner)
        assert backend.maintain() == Maintenance()
        assert backend.get_job("job").status is _S.RUNNING
        backend.complete_job("job", b"done", attempt=1)

    def test_without_its_owner_a_late_job_is_lost(self, backend: Backend, clock: ManualClock) -> None:
        """G14, C28: an owner that is gone bounds nothing."""
        put(backend, "job", timeouts=time_limits(execution=60))
        owner = backend.owners.open()
        claim(backend, "job", owner=owner)
        clock.advance(71)
        backend.owners.close(owner)
        assert backend.maintain() == Maintenance(lost=1)

    def test_a_silent_holder_is_lost_before_it_is_late(self, backend: Backend, clock: ManualClock) -> None:
        """The order of upkeep."""
        put_running(backend, "job", timeouts=time_limits(execution=1, visibility=1))
        clock.advance(100)
        assert backend.maintain() == Maintenance(lost=1)

    def test_the_late_report_of_a_timed_out_attempt_is_refused(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """G14."""
        put_running(backend, "job", timeouts=time_limits(execution=60))
        clock.advance(70)
        backend.maintain()
        with refused(backend, StaleAttemptError):
            backend.complete_job("job", attempt=1)


class DueJobs(Suite):
    """maintain also promotes due jobs."""

    def test_a_delayed_job_is_counted_when_it_becomes_due(self, backend: Backend, clock: ManualClock) -> None:
        """G4, G6."""
        put(backend, "delayed", run_at=clock.now() + timedelta(seconds=60))
        put_running(backend, "retrying")
        backend.fail_job("retrying", "boom", retry_after=60)
        assert backend.maintain().due == 0
        clock.advance(60)
        assert backend.maintain().due == 2
        assert backend.maintain().due == 0
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["delayed", "retrying"]

    def test_becoming_due_is_no_change_of_status(self, backend: Backend, clock: ManualClock) -> None:
        put(backend, "job", run_at=clock.now() + timedelta(seconds=60))
        clock.advance(60)
        backend.maintain()
        assert verbs_of(backend, "job") == ["enqueue"]
        job = backend.get_job("job")
        assert (job.state, job.scheduled_at) == (JobState.SCHEDULED, clock.now())

    def test_upkeep_with_nothing_to_do_does_nothing(self, backend: Backend) -> None:
        put(backend, "a")
        put_running(backend, "b")
        drive(backend, _S.COMPLETED, "c")
        with unchanged(backend):
            assert backend.maintain() == Maintenance()

    def test_upkeep_twice_is_the_same_as_once(self, backend: Backend, clock: ManualClock) -> None:
        for status in STATUSES:
            drive(backend, status, str(status), timeouts=time_limits(execution=1, visibility=5))
        clock.advance(60)
        backend.maintain()
        with unchanged(backend):
            assert backend.maintain() == Maintenance()


class RetentionRules(Suite):
    """How long ended jobs stay."""

    @cells("status", _FINAL)
    def test_ended_jobs_are_removed_after_their_time(
        self, backend: Backend, clock: ManualClock, status: JobStatus
    ) -> None:
        """G1: COMPLETED after 30 days, others after 90."""
        drive(backend, status)
        days = 30 if status is _S.COMPLETED else 90
        clock.advance(timedelta(days=days, microseconds=-1))
        assert backend.maintain().removed == 0
        clock.advance(timedelta(microseconds=1))
        assert backend.maintain() == Maintenance(removed=1)
        with pytest.raises(JobNotFoundError):
            backend.get_job("job")
        last = rows_of(backend, "job")[-1]
        assert (last.verb, last.from_status, last.status) == ("cleanup", status, status)

    @cells("status", _OPEN)
    def test_unfinished_jobs_stay(self, backend: Backend, clock: ManualClock, status: JobStatus) -> None:
        drive(backend, status)
        clock.advance(timedelta(days=3000))
        assert backend.maintain().removed == 0
        assert backend.get_job("job").status is status

    @pytest.mark.parametrize(
        "rule",
        [
            Retention(completed=timedelta(seconds=10), other=None),
            {"completed": timedelta(seconds=10), "other": None},
        ],
        ids=["by name", "as a mapping"],
    )
    def test_retention_is_an_option(
        self, make_backend: MakeBackend, clock: ManualClock, rule: object
    ) -> None:
        backend = make_backend(clock=clock, retention=rule)
        drive(backend, _S.COMPLETED, "done")
        drive(backend, _S.FAILED, "failed")
        clock.advance(timedelta(days=1000))
        assert backend.maintain().removed == 1
        assert ids(all_jobs(backend)) == ["failed"]

    def test_no_retention_keeps_everything(self, make_backend: MakeBackend, clock: ManualClock) -> None:
        backend = make_backend(clock=clock, retention=None)
        for status in _FINAL:
            drive(backend, status, str(status))
        clock.advance(timedelta(days=3000))
        assert backend.maintain().removed == 0
        assert len(all_jobs(backend)) == len(_FINAL)


class CleanUp(Suite):
    """cleanup_expired_jobs."""

    def test_completed_jobs_are_removed_when_they_ended_long_enough_ago(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """Q48, C15."""
        put(backend, "old", "new")
        claim(backend, "old")
        backend.complete_job("old")
        clock.advance(timedelta(microseconds=1))
        claim(backend, "new")
        backend.complete_job("new")
        clock.advance(timedelta(seconds=60, microseconds=-1))
        assert backend.cleanup_expired_jobs(timedelta(seconds=60)) == 1
        assert ids(all_jobs(backend)) == ["new"]
        last = rows_of(backend, "old")[-1]
        assert (last.verb, last.from_status, last.status) == ("cleanup", _S.COMPLETED, _S.COMPLETED)

    @cells("status", [status for status in STATUSES if status is not _S.COMPLETED])
    def test_only_completed_jobs_are_removed(
        self, backend: Backend, clock: ManualClock, status: JobStatus
    ) -> None:
        """Q48."""
        drive(backend, status)
        clock.advance(timedelta(days=10))
        with unchanged(backend):
            assert backend.cleanup_expired_jobs(timedelta(seconds=1)) == 0

    @cells("ttl", [timedelta(0), timedelta(seconds=-1), None, "1 day"], ids=repr)
    def test_the_time_must_be_positive(self, backend: Backend, ttl: Any) -> None:
        """Q48, B15."""
        drive(backend, _S.COMPLETED)
        with refused(backend, InvalidArgumentError):
            backend.cleanup_expired_jobs(ttl)

    def test_statistics_forget_what_was_removed(self, backend: Backend, clock: ManualClock) -> None:
        """Q48."""
        drive(backend, _S.COMPLETED, tags=["red"])
        clock.advance(60)
        backend.cleanup_expired_jobs(timedelta(seconds=1))
        assert backend.get_job_stats().total_jobs == 0
        assert backend.get_job_stats(["red"]).completed_jobs == 0


class Deletion(Suite):
    """delete_jobs."""

    @cells("status", _FINAL)
    def test_an_ended_job_can_be_deleted(self, backend: Backend, status: JobStatus) -> None:
        """Q50."""
        drive(backend, status, tags=["red"])
        assert backend.delete_jobs(job_ids=["job"]) == 1
        with pytest.raises(JobNotFoundError):
            backend.get_job("job")
        assert backend.get_job_stats().total_jobs == backend.get_job_stats(["red"]).total_jobs == 0
        last = rows_of(backend, "job")[-1]
        assert (last.verb, last.from_status, last.status) == ("delete", status, status)

    @cells("status", _OPEN)
    def test_an_unfinished_job_refuses_the_whole_deletion(self, backend: Backend, status: JobStatus) -> None:
        """Q50."""
        drive(backend, _S.COMPLETED, "done", tags=["red"])
        drive(backend, status, "open", tags=["red"])
        with refused(backend, InvalidTransitionError):
            backend.delete_jobs(["red"])
        with refused(backend, InvalidTransitionError):
            backend.delete_jobs(job_ids=["done", "open"])

    def test_a_refused_deletion_names_every_job_that_refuses_it(self, backend: Backend) -> None:
        drive(backend, _S.COMPLETED, "done")
        drive(backend, _S.RUNNING, "runs")
        put(backend, "waits")
        with refused(backend, InvalidTransitionError) as caught:
            backend.delete_jobs(job_ids=["done", "runs", "waits"])
        failed: Any = caught.value.failed  # type: ignore[attr-defined]
        assert {(job_id, reason) for _, job_id, reason in failed} == {
            ("runs", "it is running"),
            ("waits", "it is initial_pending"),
        }
        assert "'runs'" in str(caught.value)
        assert "'waits'" in str(caught.value)

    def test_jobs_are_chosen_by_all_tags_and_by_id_together(self, backend: Backend) -> None:
        """Q50."""
        drive(backend, _S.COMPLETED, "both", tags=["red", "big"])
        drive(backend, _S.COMPLETED, "one", tags=["red"])
        drive(backend, _S.FAILED, "listed")
        assert backend.delete_jobs(["big", "red"], ["listed", "listed", "both", MISSING]) == 2
        assert ids(all_jobs(backend)) == ["one"]

    def test_ids_that_do_not_exist_are_skipped(self, backend: Backend) -> None:
        """C5."""
        with unchanged(backend):
            assert backend.delete_jobs(job_ids=[MISSING]) == 0

    @cells("arguments", [{}, {"tags": [], "job_ids": []}])
    def test_a_choice_must_be_made(self, backend: Backend, arguments: dict[str, Any]) -> None:
        """B10, C4."""
        drive(backend, _S.COMPLETED)
        with refused(backend, InvalidArgumentError):
            backend.delete_jobs(**arguments)

    def test_an_empty_tag_list_beside_ids_selects_nothing(self, backend: Backend) -> None:
        """C4."""
        drive(backend, _S.COMPLETED, "a")
        put(backend, "b")
        assert backend.delete_jobs([], ["a"]) == 1

    def test_an_id_used_again_begins_a_new_history(self, backend: Backend) -> None:
        """C53."""
        drive(backend, _S.COMPLETED)
        backend.delete_jobs(job_ids=["job"])
        drive(backend, _S.RUNNING)
        rows = rows_of(backend, "job")
        assert [(row.n, str(row.verb), row.attempt) for row in rows] == [
            (1, "enqueue", 0),
            (2, "claim", 1),
            (3, "complete", 1),
            (4, "delete", 1),
            (1, "enqueue", 0),
            (2, "claim", 1),
        ]

    def test_many_jobs_are_deleted_by_one_tag(self, backend: Backend) -> None:
        """Q50."""
        names = [f"job-{number}" for number in range(300)]
        put(backend, *names, tags=["batch"], retry=AT_ONCE)
        backend.cancel_jobs(["batch"])
        assert backend.delete_jobs(["batch"]) == 300
        assert all_jobs(backend) == []
