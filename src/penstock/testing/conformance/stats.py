"""Statistics: counts by status, for all jobs or those that have all of some tags."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from penstock.backends import Backend
from penstock.backends.contract.overview import JobCounts
from penstock.backends.contract.selection import STATUS_GROUPS, JobSelection
from penstock.errors import InvalidArgumentError
from penstock.job import JobStats, JobStatus
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import (
    STATUSES,
    WORKER,
    Suite,
    a_job,
    claim,
    drive,
    put,
    put_running,
    refused,
    time_limits,
    unchanged,
)

_S = JobStatus

_COUNTED_AS = {
    _S.INITIAL_PENDING: "pending_jobs",
    _S.RUNNING: "running_jobs",
    _S.CANCELLING: None,
    _S.FAILED_RETRY: "failed_jobs",
    _S.UNKNOWN_RETRY: "failed_jobs",
    _S.COMPLETED: "completed_jobs",
    _S.STOPPED: "stopped_jobs",
    _S.UNSCHEDULED: "stopped_jobs",
    _S.UNKNOWN_STOPPED: "stopped_jobs",
    _S.FAILED: "stopped_jobs",
    _S.DEAD_LETTER: "stopped_jobs",
}


class Statistics(Suite):
    """get_job_stats."""

    def test_an_empty_store_counts_nothing(self, backend: Backend) -> None:
        """Q8, Q47."""
        assert backend.get_job_stats() == JobStats()
        assert backend.get_job_stats(["red"]) == JobStats(tags=("red",))

    @cells("tags", [(), ("red",), ("red", "blue")], ids=repr)
    @cells("status", STATUSES)
    def test_each_status_is_counted_in_its_place(
        self, backend: Backend, status: JobStatus, tags: tuple[str, ...]
    ) -> None:
        """Q8, B14, C16."""
        job = drive(backend, status, tags=["red", "blue"])
        counted: dict[str, Any] = {name: 1 for name in [_COUNTED_AS[status]] if name}
        expected = JobStats(tags=tags, total_jobs=1, total_retries=job.retry_count, **counted)
        assert backend.get_job_stats(tags) == expected

    def test_jobs_of_all_statuses_add_up(self, backend: Backend) -> None:
        """Q8, C16."""
        for status in sorted(STATUSES, key=lambda status: status.holds_slot):
            drive(backend, status, str(status))
        assert backend.get_job_stats() == JobStats(
            total_jobs=11,
            pending_jobs=1,
            running_jobs=1,
            completed_jobs=1,
            stopped_jobs=5,
            failed_jobs=2,
            total_retries=3,
        )

    def test_all_tags_must_match(self, backend: Backend) -> None:
        """Q9, Q47."""
        put(backend, "a", tags=["red"])
        put(backend, "b", tags=["red", "blue"])
        put(backend, "c", tags=["Red"])
        put(backend, "d")
        totals = {
            tags: backend.get_job_stats(tags).total_jobs
            for tags in [
                (),
                ("red",),
                ("blue", "red"),
                ("red", "red"),
                ("Red",),
                ("green",),
                ("red", "green"),
            ]
        }
        assert totals == {
            (): 4,
            ("red",): 2,
            ("blue", "red"): 1,
            ("red", "red"): 2,
            ("Red",): 1,
            ("green",): 0,
            ("red", "green"): 0,
        }

    def test_the_tags_asked_for_are_echoed(self, backend: Backend) -> None:
        """Q8."""
        assert backend.get_job_stats(["b", "a"]).tags == ("b", "a")

    def test_retries_are_summed_over_jobs(self, backend: Backend) -> None:
        """Q8."""
        put(backend, "a", "b", tags=["red"])
        for _ in range(3):
            claim(backend, "a")
            backend.fail_job("a", "boom")
        claim(backend, "b")
        backend.release_jobs({"b": "back"})
        assert backend.get_job_stats().total_retries == 4
        assert backend.get_job_stats(["red"]).total_retries == 4

    def test_retries_of_removed_jobs_are_forgotten(self, backend: Backend) -> None:
        """Q8, Q50."""
        put_running(backend, "job", tags=["red"])
        backend.fail_job("job", "boom")
        backend.cancel_jobs(job_ids=["job"])
        backend.delete_jobs(job_ids=["job"])
        assert backend.get_job_stats().total_retries == 0
        assert backend.get_job_stats(["red"]) == JobStats(tags=("red",))

    def test_retries_that_a_caller_brings_along_count(self, backend: Backend) -> None:
        """C14."""
        put(backend, "job", retry_count=5, tags=["red"])
        assert backend.get_job_stats().total_retries == backend.get_job_stats(["red"]).total_retries == 5

    def test_counting_changes_nothing(self, backend: Backend) -> None:
        """Q47."""
        put_running(backend, "job", tags=["red"])
        with unchanged(backend):
            backend.get_job_stats()
            backend.get_job_stats(["red"])

    def test_counts_are_right_before_and_after_upkeep(self, backend: Backend, clock: ManualClock) -> None:
        """Q47: a store may fold its counts in the background."""
        for number in range(20):
            put_running(
                backend, f"job-{number}", tags=["red", f"n{number % 3}"], timeouts=time_limits(visibility=5)
            )
        backend.complete_jobs({f"job-{number}": None for number in range(0, 20, 2)})
        before = [backend.get_job_stats(tags) for tags in ((), ("red",), ("n1",), ("red", "n2"))]
        backend.maintain()
        assert [backend.get_job_stats(tags) for tags in ((), ("red",), ("n1",), ("red", "n2"))] == before
        clock.advance(5)
        assert backend.maintain().lost == 10
        assert backend.get_job_stats(["red"]) == JobStats(
            tags=("red",), total_jobs=20, completed_jobs=10, failed_jobs=10
        )
        assert backend.cleanup_expired_jobs(timedelta(seconds=1)) == 10
        backend.maintain()
        assert backend.get_job_stats() == JobStats(total_jobs=10, failed_jobs=10)

    def test_upkeep_of_an_empty_store_does_not_upset_the_counts(self, backend: Backend) -> None:
        """Q47: a fold without rows changes no count."""
        backend.maintain()
        put(backend, "job", tags=["red", "blue"])
        assert backend.get_job_stats().pending_jobs == 1
        assert backend.get_job_stats(["red"]).pending_jobs == 1
        backend.maintain()
        backend.maintain()
        claim(backend, "job")
        backend.complete_job("job")
        assert backend.get_job_stats().completed_jobs == 1
        assert backend.get_job_stats(["blue"]) == JobStats(tags=("blue",), total_jobs=1, completed_jobs=1)

    def test_batches_are_counted(self, backend: Backend) -> None:
        """Q47."""
        backend.enqueue_jobs([a_job(id=f"job-{n}", type="t", tags=[f"t{n % 4}"]) for n in range(1_000)])
        assert backend.get_job_stats(["t3"]).pending_jobs == 250
        backend.dequeue_jobs(WORKER, ["t3"], limit=100)
        assert backend.get_job_stats(["t3"]) == JobStats(
            tags=("t3",), total_jobs=250, pending_jobs=150, running_jobs=100
        )

    @cells("tags", ["red", b"red", 5, [5], [None], [""], ["nul\x00"]], ids=repr)
    def test_tags_are_a_sequence_of_strings(self, backend: Backend, tags: Any) -> None:
        """Q55."""
        with refused(backend, InvalidArgumentError):
            backend.get_job_stats(tags)


class Counts(Suite):
    """count_jobs: counts by the groups that operators see."""

    def test_an_empty_store_counts_nothing(self, backend: Backend) -> None:
        assert backend.reading.count_jobs() == JobCounts()
        assert backend.reading.count_jobs(["red"]) == JobCounts(tags=("red",))
        assert backend.reading.count_jobs().total == 0

    @cells("tags", [(), ("red",), ("red", "blue")], ids=repr)
    def test_every_job_is_counted_once_and_all_faces_agree(
        self, backend: Backend, tags: tuple[str, ...]
    ) -> None:
        for status in sorted(STATUSES, key=lambda status: status.holds_slot):
            drive(backend, status, str(status), type=f"of-{status}", tags=["red", "blue"])
        put_running(backend, "handed-back", tags=["red", "blue"])
        backend.release_jobs({"handed-back": "the worker was stopped"})
        found = backend.reading.count_jobs(tags)
        assert found == JobCounts(
            tags=tags,
            pending=1,
            running=2,
            retrying=2,
            handed_back=1,
            completed=1,
            failed=1,
            dead=1,
            cancelled=3,
        )
        assert found.total == backend.get_job_stats(tags).total_jobs == len(STATUSES) + 1
        seen = backend.reading.overview().counts
        for name in STATUS_GROUPS:
            page = backend.reading.select_jobs(JobSelection(statuses=[name], tags=tags))
            assert getattr(found, name) == getattr(seen, name) == len(page.jobs), name

    def test_a_job_is_handed_back_until_it_is_claimed_again(self, backend: Backend) -> None:
        put_running(backend, "job", tags=["red"])
        backend.release_jobs({"job": "stopped"})
        assert (
            backend.reading.count_jobs().handed_back,
            backend.reading.count_jobs(["red"]).handed_back,
        ) == (1, 1)
        assert backend.reading.count_jobs().retrying == 0
        claim(backend, "job")
        assert backend.reading.count_jobs().handed_back == 0
        backend.fail_job("job", "broken")
        assert (backend.reading.count_jobs().handed_back, backend.reading.count_jobs().retrying) == (0, 1)

    @cells("tags", ["red", [5], [None], [""], ["\0"], 5], ids=repr)
    def test_wrong_tags_are_refused(self, backend: Backend, tags: Any) -> None:
        with refused(backend, InvalidArgumentError):
            backend.reading.count_jobs(tags)
