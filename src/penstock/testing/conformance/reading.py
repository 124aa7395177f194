"""Reading: one job, several, pages of them, and the views of their status."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.backends import Backend
from penstock.errors import InvalidArgumentError, JobNotFoundError
from penstock.job import JobState, JobStatus, Key, ProcessStatus
from penstock.policy import FailureCategory
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import (
    MISSING,
    STATUSES,
    WORKER,
    Suite,
    a_job,
    claim,
    drive,
    ids,
    put,
    put_running,
    refused,
    retry_policy,
    unchanged,
)

_S = JobStatus


class Reading(Suite):
    """get_job and get_jobs."""

    def test_a_job_that_does_not_exist_is_not_found(self, backend: Backend) -> None:
        """Q46, Q55."""
        with refused(backend, JobNotFoundError) as caught:
            backend.get_job(MISSING)
        assert caught.value.job_id == MISSING  # type: ignore[attr-defined]

    @cells("job_id", ["", None, 5, b"job", "nul\x00", "\ud800"], ids=repr)
    def test_what_is_no_id_is_refused(self, backend: Backend, job_id: Any) -> None:
        """Q46, Q55."""
        with refused(backend, InvalidArgumentError):
            backend.get_job(job_id)

    def test_reading_changes_nothing(self, backend: Backend, clock: ManualClock) -> None:
        """Q46."""
        put(backend, "job", run_at=clock.now() + timedelta(seconds=1))
        clock.advance(2)
        with unchanged(backend):
            backend.get_job("job")
            backend.get_jobs(["job"])
            backend.list_jobs()
            backend.read_journal()

    def test_the_next_step_of_a_failed_job_is_its_retry_or_its_end(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        for job_id in ("retried", "ended"):
            put_running(backend, job_id, retry=retry_policy(max_attempts=2, initial_delay=5))
        backend.fail_job("retried", "broken")
        backend.fail_job("ended", "broken", category=FailureCategory.PERMANENT)
        steps = backend.runtime.next_steps(["retried", "ended", MISSING])
        assert set(steps) == {"retried", "ended"}
        assert (steps["retried"].status, steps["retried"].attempt) == (_S.FAILED_RETRY, 1)
        assert steps["retried"].due_at == clock.now() + timedelta(seconds=5)
        assert steps["ended"].status is _S.FAILED
        assert (steps["retried"].number, steps["ended"].number) == backend.reading.jobs_span()

    def test_ids_are_compared_exactly(self, backend: Backend) -> None:
        """Q46."""
        put(backend, "Job")
        for other in ("job", "JOB", "Job ", " Job", "Jo", "Jób"):
            with pytest.raises(JobNotFoundError):
                backend.get_job(other)

    def test_several_jobs_are_read_at_once(self, backend: Backend) -> None:
        put(backend, "a", "b", "c", tags=["red"])
        found = backend.get_jobs(["c", MISSING, "a", "a"])
        assert set(found) == {"a", "c"}
        assert found["a"] == backend.get_job("a")
        assert backend.get_jobs([]) == {}
        assert set(backend.get_jobs(iter(["b"]))) == {"b"}

    def test_very_many_jobs_are_read_at_once(self, backend: Backend) -> None:
        names = [f"job-{number}" for number in range(2_500)]
        backend.enqueue_jobs([a_job(id=name, type="t") for name in names])
        assert set(backend.get_jobs(names)) == set(names)

    @cells("job_ids", ["job", b"job", None, 5, [5], [""], [None]], ids=repr)
    def test_what_is_no_list_of_ids_is_refused(self, backend: Backend, job_ids: Any) -> None:
        with refused(backend, InvalidArgumentError):
            backend.get_jobs(job_ids)

    @cells(
        ("status", "process_status"),
        [
            (_S.INITIAL_PENDING, ProcessStatus.PENDING),
            (_S.FAILED_RETRY, ProcessStatus.PENDING),
            (_S.UNKNOWN_RETRY, ProcessStatus.PENDING),
            (_S.RUNNING, ProcessStatus.RUNNING),
            (_S.CANCELLING, ProcessStatus.RUNNING),
            (_S.COMPLETED, ProcessStatus.COMPLETED),
            (_S.FAILED, ProcessStatus.ERROR),
            (_S.DEAD_LETTER, ProcessStatus.ERROR),
            (_S.STOPPED, ProcessStatus.INTERRUPTED),
            (_S.UNSCHEDULED, ProcessStatus.INTERRUPTED),
            (_S.UNKNOWN_STOPPED, ProcessStatus.INTERRUPTED),
        ],
    )
    def test_every_status_has_its_process_view(
        self, backend: Backend, status: JobStatus, process_status: ProcessStatus
    ) -> None:
        """G3, P3."""
        assert drive(backend, status).process_status is process_status

    def test_the_formal_state_follows_the_clock(self, backend: Backend, clock: ManualClock) -> None:
        """G3, G4, G6, G31, C22: filled in when the job is read; a retry passes through SCHEDULED."""
        put(backend, "job", run_at=clock.now() + timedelta(seconds=10), retry=retry_policy(initial_delay=5))
        due = clock.now() + timedelta(seconds=10)

        def seen() -> tuple[JobState | None, Any]:
            job = backend.get_job("job")
            return job.state, job.scheduled_at

        assert seen() == (JobState.DELAYED, None)
        clock.advance(10)
        assert seen() == (JobState.SCHEDULED, due)
        clock.advance(1)
        claim(backend, "job")
        assert seen() == (JobState.RUNNING, due)
        backend.fail_job("job", "boom")
        retry_due = clock.now() + timedelta(seconds=5)
        assert seen() == (JobState.RETRYING, None)
        clock.advance(6)
        assert seen() == (JobState.SCHEDULED, retry_due)
        claim(backend, "job")
        backend.complete_job("job")
        assert seen() == (JobState.COMPLETED, retry_due)

    def test_a_lost_job_is_ready_from_the_moment_it_was_lost(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """G31, C35."""
        put_running(backend, "job")
        now = clock.advance(5)
        backend.reset_running_jobs()
        job = backend.get_job("job")
        assert (job.state, job.scheduled_at) == (JobState.SCHEDULED, now)

    def test_a_job_that_ended_before_it_was_due_was_never_scheduled(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """G31, C35."""
        put(backend, "job", run_at=clock.now() + timedelta(seconds=10))
        put_running(backend, "retried")
        backend.fail_job("retried", "boom", retry_after=10)
        backend.cancel_jobs(job_ids=["job", "retried"])
        clock.advance(60)
        assert [backend.get_job(each).scheduled_at for each in ("job", "retried")] == [None, None]

    def test_updated_at_is_the_moment_of_the_last_change(self, backend: Backend, clock: ManualClock) -> None:
        """G31."""
        put(backend, "job")
        moments = [clock.now()]
        assert backend.get_job("job").updated_at == moments[-1]
        moments.append(clock.advance(1))
        claim(backend, "job")
        assert backend.get_job("job").updated_at == moments[-1]
        moments.append(clock.advance(1))
        backend.complete_job("job")
        clock.advance(1)
        assert backend.get_job("job").updated_at == moments[-1]


class Keyed(Suite):
    """count_keyed and list_keyed: what waits in a key, or in all of them (R2)."""

    def test_what_waits_in_a_key_is_counted_and_listed(self, backend: Backend, clock: ManualClock) -> None:
        """R2, R3: for any reason of waiting; running and ended jobs are left out."""
        put(backend, "running", key=Key("k"))
        claim(backend, "running")
        put(backend, "ended", key=Key("k"))
        backend.cancel_jobs(job_ids=["ended"])
        put(backend, "turn", type="mail", key=Key("k"))
        put(backend, "later", key=Key("k"), run_at=clock.now() + timedelta(days=1))
        put(backend, "after", type="mail", key=Key("other", "k"), after=["turn"])
        put(backend, "held", key=Key("other", "k"), held=True)
        put(backend, "keyless", type="mail")
        upto = backend.reading.jobs_span()[1]
        for key, type_, found in (
            ("k", None, ["turn", "later"]),
            (Key("k"), "mail", ["turn"]),
            (Key("other", "k"), None, ["after", "held"]),
            (None, "mail", ["turn", "after"]),
            (None, None, ["turn", "later", "after", "held"]),
            ("missing", None, []),
        ):
            assert backend.reading.count_keyed(key, type=type_) == len(found)
            assert sorted(backend.reading.list_keyed(key, type=type_, upto=upto)) == sorted(found)
        assert len(backend.reading.list_keyed(upto=upto, limit=3)) == 3

    @cells("key", [5, b"k", "", []], ids=repr)
    def test_what_is_no_key_is_refused(self, backend: Backend, key: Any) -> None:
        for call in (
            lambda: backend.reading.count_keyed(key),
            lambda: backend.reading.list_keyed(key, upto=1),
        ):
            with refused(backend, InvalidArgumentError):
                call()


class Listing(Suite):
    """list_jobs."""

    def test_jobs_come_in_insertion_order(self, backend: Backend, clock: ManualClock) -> None:
        put(backend, "c", "a", priority=4)
        put(backend, "b", priority=0, created_at=clock.now() - timedelta(days=1))
        claim(backend, "a")
        assert ids(backend.list_jobs()) == ["c", "a", "b"]
        assert ids(backend.list_jobs(newest=True)) == ["b", "a", "c"]

    def test_pages_join_without_seam(self, backend: Backend) -> None:
        names = [f"job-{number * 7 % 25}" for number in range(25)]
        put(backend, *names)
        seen: list[str] = []
        while page := backend.list_jobs(after=seen[-1] if seen else None, limit=10):
            seen += ids(page)
        assert seen == names
        seen = []
        while page := backend.list_jobs(after=seen[-1] if seen else None, limit=10, newest=True):
            seen += ids(page)
        assert seen == names[::-1]

    def test_a_hundred_jobs_are_the_default_page_and_a_thousand_the_most(self, backend: Backend) -> None:
        backend.enqueue_jobs([a_job(id=f"job-{number}", type="t") for number in range(1_001)])
        assert len(backend.list_jobs()) == 100
        assert len(backend.list_jobs(limit=1_000)) == 1_000

    @cells("status", STATUSES)
    def test_a_status_narrows_the_list(self, backend: Backend, status: JobStatus) -> None:
        for each in sorted(STATUSES, key=lambda status: status.holds_slot):
            drive(backend, each, str(each))
        assert ids(backend.list_jobs(status=status)) == [str(status)]

    def test_type_and_tags_narrow_the_list(self, backend: Backend) -> None:
        put(backend, "a", type="mail", tags=["red", "big"])
        put(backend, "b", type="mail", tags=["red"])
        put(backend, "c", type="report", tags=["red", "big"])
        assert ids(backend.list_jobs(type="mail")) == ["a", "b"]
        assert ids(backend.list_jobs(tags=["big", "red"])) == ["a", "c"]
        assert ids(backend.list_jobs(type="mail", tags=["big"], status=_S.INITIAL_PENDING)) == ["a"]
        assert ids(backend.list_jobs(type="mail", newest=True)) == ["b", "a"]
        assert ids(backend.list_jobs(tags=["big", "red"], newest=True)) == ["c", "a"]
        assert ids(backend.list_jobs(tags=["red"], newest=True, after="c")) == ["b", "a"]
        assert backend.list_jobs(type="Mail") == []

    def test_filters_and_pages_work_together(self, backend: Backend) -> None:
        for number in range(30):
            put(backend, f"job-{number}", type=f"t{number % 3}")
        first = backend.list_jobs(type="t1", limit=4)
        second = backend.list_jobs(type="t1", limit=100, after=first[-1].id)
        assert ids(first + second) == [f"job-{number}" for number in range(30) if number % 3 == 1]

    def test_the_job_to_continue_after_need_not_match_the_filter(self, backend: Backend) -> None:
        put(backend, "a", "b", "c")
        claim(backend, "b")
        assert ids(backend.list_jobs(status=_S.INITIAL_PENDING, after="b")) == ["c"]

    def test_listed_jobs_are_whole(self, backend: Backend) -> None:
        put_running(backend, "job", payload=b"work", tags=["red"])
        backend.complete_job("job", b"result")
        assert backend.list_jobs() == [backend.get_job("job")]

    def test_continuing_after_an_unknown_job_is_an_error(self, backend: Backend) -> None:
        with refused(backend, JobNotFoundError):
            backend.list_jobs(after=MISSING)

    @cells(
        "arguments",
        [
            {"limit": 0},
            {"limit": -1},
            {"limit": 1001},
            {"limit": True},
            {"limit": 1.0},
            {"limit": None},
            {"status": "nonsense"},
            {"status": 5},
            {"type": 5},
            {"tags": "red"},
            {"tags": [None]},
            {"after": 5},
            {"after": ""},
        ],
        ids=repr,
    )
    def test_wrong_arguments_are_refused(self, backend: Backend, arguments: dict[str, Any]) -> None:
        with refused(backend, InvalidArgumentError):
            backend.list_jobs(**arguments)

    def test_a_job_listed_while_running_names_its_worker(self, backend: Backend) -> None:
        put_running(backend, "job")
        assert backend.list_jobs(status=_S.RUNNING)[0].assignee_id == WORKER


class Idleness(Suite):
    """has_work: what `until_idle` waits for."""

    @cells("status", STATUSES)
    def test_work_is_what_is_ready_running_or_waiting_for_a_retry(
        self, backend: Backend, status: JobStatus
    ) -> None:
        drive(backend, status, type="mine", tags=["red"])
        is_work = not status.is_final
        assert backend.runtime.has_work(["mine"]) is is_work
        assert backend.runtime.has_work(["other", "mine"], ["red"]) is is_work
        assert not backend.runtime.has_work(["other"])
        assert not backend.runtime.has_work(["mine"], ["red", "blue"])
        assert not backend.runtime.has_work([])

    def test_a_retry_that_is_not_due_is_work_and_a_delayed_job_is_none(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        put(backend, "delayed", type="later", run_at=clock.now() + timedelta(hours=1))
        put(
            backend,
            "failing",
            type="failing",
            retry=retry_policy(max_attempts=2, initial_delay=timedelta(hours=1)),
        )
        claim(backend, "failing")
        backend.fail_job("failing", "not yet")
        assert not backend.runtime.has_work(["later"])
        assert backend.runtime.has_work(["failing"])
        clock.advance(3_600)
        assert backend.runtime.has_work(["later"]), "it is due, promoted or not"

    def test_what_waits_for_another_job_or_is_held_is_no_work(self, backend: Backend) -> None:
        put(backend, "first", type="first")
        put(backend, "second", type="second", after=["first"])
        put(backend, "held", type="held", held=True)
        assert not backend.runtime.has_work(["second", "held"])
        backend.dequeue_jobs(WORKER, job_ids=["first"])
        backend.complete_job("first")
        assert backend.runtime.has_work(["second"])
        backend.dequeue_jobs(WORKER, job_ids=["held"])
        assert backend.runtime.has_work(["held"])
        backend.fail_job("held", "again")
        assert not backend.runtime.has_work(["held"]), "a held job is claimed only by its id"
