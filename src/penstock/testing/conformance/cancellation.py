"""Cancelling: asking jobs to end, and the worker's answer."""

from __future__ import annotations

from typing import Any

from penstock.backends import Backend
from penstock.errors import InvalidArgumentError, InvalidTransitionError, JobNotFoundError
from penstock.job import JobState, JobStatus
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import (
    MISSING,
    OTHER_WORKER,
    STATUSES,
    WORKER,
    Suite,
    claim,
    drive,
    is_takeable,
    put,
    put_running,
    refused,
    unchanged,
    verbs_of,
)

_S = JobStatus


class Cancellation(Suite):
    """cancel_jobs."""

    def test_only_what_waits_can_be_cancelled_on_demand(self, backend: Backend) -> None:
        """R16: clearing a queue does not cancel running jobs."""
        for status in (_S.UNKNOWN_RETRY, _S.INITIAL_PENDING, _S.FAILED_RETRY, _S.CANCELLING, _S.COMPLETED):
            drive(backend, status, str(status))
        put_running(backend, "running")
        claim(backend, "failed_retry")  # it was waiting when the caller read it
        waiting = ["unknown_retry", "initial_pending"]
        others = ["failed_retry", "running", "cancelling", "completed", MISSING]
        cancelled, unknown = backend.cancel_jobs(job_ids=[*waiting, *others], waiting_only=True)
        assert (set(cancelled), set(unknown)) == (set(waiting), set(others))
        assert backend.get_job("failed_retry").status is _S.RUNNING
        with refused(backend, InvalidArgumentError):
            backend.cancel_jobs(job_ids=["running"], waiting_only=None)  # type: ignore[arg-type]

    @cells(
        ("source", "target"),
        [
            (_S.INITIAL_PENDING, _S.UNSCHEDULED),
            (_S.RUNNING, _S.CANCELLING),
            (_S.FAILED_RETRY, _S.STOPPED),
            (_S.UNKNOWN_RETRY, _S.STOPPED),
        ],
    )
    def test_each_status_has_its_way_of_being_cancelled(
        self, backend: Backend, clock: ManualClock, source: JobStatus, target: JobStatus
    ) -> None:
        """Q3, Q42, C59."""
        before = drive(backend, source)
        now = clock.advance(2)
        assert backend.cancel_jobs(job_ids=["job"]) == (["job"], [])
        job = backend.get_job("job")
        assert job.status is target
        assert job.finalized_at == (now if target.is_final else None)
        assert (job.assignee_id, job.retry_count, job.attempt) == (
            before.assignee_id,
            before.retry_count,
            before.attempt,
        )
        if source.is_eligible:
            assert not is_takeable(backend, "job")

    def test_cancelling_again_is_reported_and_changes_nothing(self, backend: Backend) -> None:
        """Q42."""
        drive(backend, _S.CANCELLING)
        with unchanged(backend):
            assert backend.cancel_jobs(job_ids=["job"]) == (["job"], [])

    @cells("status", [s for s in STATUSES if s.is_final])
    def test_a_job_that_has_ended_is_unknown_and_no_error(self, backend: Backend, status: JobStatus) -> None:
        """Q43."""
        drive(backend, status)
        with unchanged(backend):
            assert backend.cancel_jobs(job_ids=["job"]) == ([], ["job"])

    def test_an_id_that_does_not_exist_is_unknown(self, backend: Backend) -> None:
        """Q43, C5."""
        with unchanged(backend):
            assert backend.cancel_jobs(job_ids=[MISSING]) == ([], [MISSING])

    def test_jobs_are_chosen_by_all_tags_and_by_id_together(self, backend: Backend) -> None:
        """Q41."""
        put(backend, "both", tags=["red", "big"])
        put(backend, "one", tags=["red"])
        put(backend, "listed")
        put(backend, "left")
        cancelled, unknown = backend.cancel_jobs(["red", "big"], ["listed", MISSING])
        assert (sorted(cancelled), unknown) == (["both", "listed"], [MISSING])
        assert [backend.get_job(each).status for each in ("one", "left")] == [_S.INITIAL_PENDING] * 2

    def test_a_job_that_matches_twice_is_reported_once(self, backend: Backend) -> None:
        """Q41, Q43."""
        put(backend, "job", tags=["red"])
        assert backend.cancel_jobs(["red"], ["job", "job"]) == (["job"], [])
        assert backend.cancel_jobs(["red"], ["job", MISSING, MISSING])[0] == []

    def test_ended_jobs_that_match_the_tags_are_unknown(self, backend: Backend) -> None:
        """Q43."""
        drive(backend, _S.COMPLETED, "done", tags=["red"])
        put(backend, "open", tags=["red"])
        cancelled, unknown = backend.cancel_jobs(["red"])
        assert (cancelled, unknown) == (["open"], ["done"])

    def test_tags_without_a_match_cancel_nothing(self, backend: Backend) -> None:
        """Q41."""
        put(backend, "job", tags=["red"])
        with unchanged(backend):
            assert backend.cancel_jobs(["blue"]) == ([], [])

    @cells("arguments", [{}, {"tags": [], "job_ids": []}, {"tags": ()}, {"job_ids": ()}])
    def test_a_choice_must_be_made(self, backend: Backend, arguments: dict[str, Any]) -> None:
        """B10, C4."""
        put(backend, "job")
        with refused(backend, InvalidArgumentError):
            backend.cancel_jobs(**arguments)

    def test_an_empty_tag_list_beside_ids_selects_nothing(self, backend: Backend) -> None:
        """C4: it is not "match all"."""
        put(backend, "a", "b")
        assert backend.cancel_jobs([], ["a"]) == (["a"], [])
        assert backend.get_job("b").status is _S.INITIAL_PENDING

    def test_jobs_in_all_statuses_are_cancelled_in_one_call(self, backend: Backend) -> None:
        """Q42, Q43."""
        in_flight_last = sorted(STATUSES, key=lambda status: status.holds_slot)
        for status in in_flight_last:
            drive(backend, status, str(status), tags=["all"])
        cancelled, unknown = backend.cancel_jobs(["all"])
        assert sorted(unknown) == sorted(str(status) for status in STATUSES if status.is_final)
        assert sorted(cancelled) == sorted(str(status) for status in STATUSES if not status.is_final)
        assert {
            status: backend.get_job(str(status)).status for status in STATUSES if not status.is_final
        } == {
            _S.INITIAL_PENDING: _S.UNSCHEDULED,
            _S.RUNNING: _S.CANCELLING,
            _S.CANCELLING: _S.CANCELLING,
            _S.FAILED_RETRY: _S.STOPPED,
            _S.UNKNOWN_RETRY: _S.STOPPED,
        }

    def test_many_jobs_are_cancelled_by_one_tag(self, backend: Backend) -> None:
        """Q43."""
        names = [f"job-{number}" for number in range(600)]
        put(backend, *names, tags=["batch"])
        cancelled, unknown = backend.cancel_jobs(["batch"])
        assert (set(cancelled), len(cancelled), unknown) == (set(names), 600, [])
        assert backend.get_job_stats(["batch"]).stopped_jobs == 600

    def test_a_delayed_or_backing_off_job_can_be_cancelled(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """Q42."""
        put(backend, "delayed", run_at=clock.now().replace(year=2031))
        put_running(backend, "backing-off")
        backend.fail_job("backing-off", "boom", retry_after=60)
        backend.cancel_jobs(job_ids=["delayed", "backing-off"])
        assert backend.get_job("delayed").status is _S.UNSCHEDULED
        assert backend.get_job("backing-off").status is _S.STOPPED

    def test_a_cancelling_job_still_holds_its_slot(self, backend: Backend) -> None:
        """Q42, C7."""
        drive(backend, _S.CANCELLING)
        assert backend.get_job("job").state is JobState.RUNNING
        assert backend.heartbeat(WORKER) == 1
        assert not is_takeable(backend, "job")

    def test_a_job_that_fails_while_being_cancelled_is_refused(self, backend: Backend) -> None:
        """Q36: stop_job_with_retry is the verb for that."""
        drive(backend, _S.CANCELLING)
        with refused(backend, InvalidTransitionError):
            backend.fail_job("job", "boom")

    def test_the_journal_says_who_was_cancelled(self, backend: Backend) -> None:
        put(backend, "job")
        backend.cancel_jobs(job_ids=["job"])
        assert verbs_of(backend, "job") == ["enqueue", "cancel"]


class Acknowledging(Suite):
    """acknowledge_cancellation."""

    @cells(("executing", "target"), [(True, _S.STOPPED), (False, _S.UNKNOWN_STOPPED)])
    def test_the_worker_says_whether_it_was_executing(
        self, backend: Backend, clock: ManualClock, executing: bool, target: JobStatus
    ) -> None:
        """Q3, Q44, B11."""
        drive(backend, _S.CANCELLING)
        now = clock.advance(2)
        assert backend.acknowledge_cancellation("job", executing) is None
        job = backend.get_job("job")
        assert (job.status, job.state, job.finalized_at) == (target, JobState.CANCELLED, now)
        assert (job.assignee_id, job.retry_count) == (WORKER, 0)

    @cells("executing", [True, False])
    @cells("status", [s for s in STATUSES if s is not _S.CANCELLING])
    def test_only_a_job_that_is_being_cancelled_can_be_acknowledged(
        self, backend: Backend, status: JobStatus, executing: bool
    ) -> None:
        """Q44."""
        drive(backend, status)
        with refused(backend, InvalidTransitionError):
            backend.acknowledge_cancellation("job", executing)

    def test_an_unknown_job_cannot_be_acknowledged(self, backend: Backend) -> None:
        """Q44, Q55."""
        with refused(backend, JobNotFoundError):
            backend.acknowledge_cancellation(MISSING, True)

    def test_several_answers_come_in_one_call(self, backend: Backend) -> None:
        """Q44."""
        put_running(backend, "a", "b")
        backend.cancel_jobs(job_ids=["a", "b"])
        backend.acknowledge_cancellations({"a": True, "b": False}, attempts={"a": 1, "b": 1})
        assert [backend.get_job(each).status for each in "ab"] == [_S.STOPPED, _S.UNKNOWN_STOPPED]

    def test_completion_may_win_against_cancellation(self, backend: Backend) -> None:
        """Q35, C2."""
        drive(backend, _S.CANCELLING)
        assert backend.complete_job("job", b"done anyway", attempt=1) == {WORKER: 1}
        with refused(backend, InvalidTransitionError):
            backend.acknowledge_cancellation("job", True)

    def test_a_cancelled_attempt_of_another_worker_is_not_touched(self, backend: Backend) -> None:
        """Q42."""
        put_running(backend, "a")
        put(backend, "b")
        claim(backend, "b", OTHER_WORKER)
        backend.cancel_jobs(job_ids=["a"])
        assert backend.get_job("b").status is _S.RUNNING
