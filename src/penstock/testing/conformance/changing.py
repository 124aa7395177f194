"""Changing a stored job, noting its progress, and submitting dead ones again."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from penstock.backends import Backend
from penstock.errors import InvalidArgumentError, InvalidTransitionError, JobNotFoundError
from penstock.job import JobStatus, Key, Priority
from penstock.policy import FailureCategory
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import (
    MISSING,
    STATUSES,
    WORKER,
    Suite,
    a_job,
    all_jobs,
    claim,
    drive,
    ids,
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


class Updating(Suite):
    """update_job."""

    @cells("status", [s for s in STATUSES if not s.is_final])
    def test_an_unfinished_job_can_be_changed(
        self, backend: Backend, clock: ManualClock, status: JobStatus
    ) -> None:
        """C34, G32."""
        before = drive(backend, status, tags=["old"])
        now = clock.advance(1)
        backend.update_job(
            "job",
            priority=0,
            tags=["new", "new", "tags"],
            correlation_id="c",
            callback_url="https://x.example",
        )
        job = backend.get_job("job")
        assert (job.priority, job.tags) == (Priority.CRITICAL, ("new", "tags"))
        assert (job.correlation_id, job.callback_url) == ("c", "https://x.example")
        assert (job.status, job.attempt, job.updated_at) == (status, before.attempt, now)
        last = rows_of(backend, "job")[-1]
        assert (last.verb, last.from_status, last.status) == ("update", status, status)
        assert (last.priority, last.tags) == (Priority.CRITICAL, ("new", "tags"))

    @cells("status", [s for s in STATUSES if s.is_final])
    def test_an_ended_job_cannot_be_changed(self, backend: Backend, status: JobStatus) -> None:
        """C34."""
        drive(backend, status)
        with refused(backend, InvalidTransitionError):
            backend.update_job("job", priority=0)

    def test_an_unknown_job_cannot_be_changed(self, backend: Backend) -> None:
        with refused(backend, JobNotFoundError):
            backend.update_job(MISSING, priority=0)

    def test_what_is_not_named_stays(self, backend: Backend) -> None:
        fields: dict[str, Any] = {
            "priority": Priority.LOW,
            "tags": ("red",),
            "correlation_id": "c",
            "callback_url": "https://x.example",
        }
        put(backend, "job", **fields)
        backend.update_job("job", priority=Priority.HIGH)
        backend.update_job("job", tags=["blue"])
        job = backend.get_job("job")
        assert (job.priority, job.tags) == (Priority.HIGH, ("blue",))
        assert (job.correlation_id, job.callback_url) == ("c", "https://x.example")

    def test_none_and_an_empty_list_clear_a_field(self, backend: Backend) -> None:
        put(backend, "job", tags=["red"], correlation_id="c", callback_url="https://x.example")
        backend.update_job("job", tags=[], correlation_id=None, callback_url=None)
        job = backend.get_job("job")
        assert (job.tags, job.correlation_id, job.callback_url) == ((), None, None)

    def test_new_tags_count_in_filters_and_statistics(self, backend: Backend) -> None:
        """Q9, Q47."""
        put(backend, "job", tags=["old", "both"])
        backend.update_job("job", tags=["new", "both"])
        assert backend.get_job_stats(["old"]).total_jobs == 0
        assert backend.get_job_stats(["new"]).pending_jobs == 1
        assert backend.get_job_stats(["both"]).pending_jobs == 1
        assert backend.dequeue_jobs(WORKER, ["old"]) == []
        assert ids(backend.dequeue_jobs(WORKER, ["new", "both"])) == ["job"]

    def test_a_new_priority_changes_the_order(self, backend: Backend) -> None:
        """G8."""
        put(backend, "a", "b")
        backend.update_job("b", priority=Priority.HIGH)
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["b", "a"]

    def test_a_priority_can_be_lowered(self, backend: Backend) -> None:
        """G8."""
        put(backend, "a", "b")
        backend.update_job("a", priority=Priority.BULK)
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["b", "a"]

    def test_a_priority_raises_those_that_wait_for_the_job(self, backend: Backend) -> None:
        """G12, C27: transitively, and never lowers."""
        backend.enqueue_jobs(
            [
                a_job(id="first", type="t", priority=Priority.LOW),
                a_job(id="second", type="t", after=("first",), priority=Priority.LOW),
                a_job(id="third", type="t", after=("second",), priority=Priority.BULK),
                a_job(id="urgent", type="t", after=("first",), priority=Priority.CRITICAL),
                a_job(id="any", type="t", after_any=("first",), priority=Priority.BULK),
            ]
        )
        backend.update_job("first", priority=Priority.HIGH)
        assert {job.id: job.priority for job in all_jobs(backend)} == {
            "first": Priority.HIGH,
            "second": Priority.HIGH,
            "third": Priority.HIGH,
            "urgent": Priority.CRITICAL,
            "any": Priority.HIGH,
        }
        assert verbs_of(backend, "third") == ["enqueue", "update"]
        assert verbs_of(backend, "urgent") == ["enqueue"]
        backend.update_job("first", priority=Priority.BULK)
        assert backend.get_job("first").priority is Priority.BULK
        assert backend.get_job("second").priority is Priority.HIGH

    def test_a_raise_passes_through_jobs_that_are_more_urgent_already(self, backend: Backend) -> None:
        """G12, C27."""
        backend.enqueue_jobs(
            [a_job(id="first"), a_job(id="second", after=["first"]), a_job(id="third", after=["second"])]
        )
        backend.update_job("second", priority=Priority.CRITICAL)
        backend.update_job("third", priority=Priority.BULK)
        backend.update_job("first", priority=Priority.HIGH)
        assert [int(job.priority) for job in all_jobs(backend)] == [1, 0, 1]

    @cells("field", ["after", "after_any"])
    @cells("end", ["cancelled", "unscheduled", "expired"])
    def test_a_raise_leaves_ended_jobs_alone(
        self, backend: Backend, clock: ManualClock, end: str, field: str
    ) -> None:
        """C34, G12."""
        put(backend, "first")
        put(backend, "second", timeouts=time_limits(lifetime=5), **{field: ["first"]})
        if end == "cancelled":
            backend.cancel_jobs(job_ids=["second"])
        elif end == "unscheduled":
            backend.update_job_status("second", _S.UNSCHEDULED)
        else:
            clock.advance(5)
            backend.maintain()
        before = backend.get_job("second")
        backend.update_job("first", priority=Priority.CRITICAL)
        assert backend.get_job("second") == before

    def test_a_raise_does_not_reach_jobs_that_wait_no_longer(self, backend: Backend) -> None:
        """G12: the other dependency of an after_any was enough."""
        put(backend, "over", "open")
        put(backend, "ready", after_any=["over", "open"])
        backend.cancel_jobs(job_ids=["over"])
        backend.update_job("open", priority=Priority.CRITICAL)
        assert backend.get_job("ready").priority is Priority.NORMAL

    @cells(
        "change",
        [
            {"priority": 5},
            {"priority": -1},
            {"priority": True},
            {"priority": None},
            {"priority": "high"},
            {"tags": "red"},
            {"tags": [""]},
            {"tags": [5]},
            {"correlation_id": ""},
            {"correlation_id": "x" * 513},
            {"callback_url": 5},
            {"callback_url": "nul\x00"},
            {"callback_url": "somewhere"},
            {"callback_url": "ftp://example.com/"},
        ],
        ids=repr,
    )
    def test_a_change_is_checked_like_a_new_job(self, backend: Backend, change: dict[str, Any]) -> None:
        put(backend, "job", tags=["red"])
        with refused(backend, InvalidArgumentError):
            backend.update_job("job", **change)


class Notes(Suite):
    """save_progress and save_checkpoint."""

    @cells("status", [_S.RUNNING, _S.CANCELLING])
    def test_progress_is_stored_without_a_journal_row(self, backend: Backend, status: JobStatus) -> None:
        drive(backend, status)
        rows = len(rows_of(backend, "job"))
        backend.save_progress("job", 40, "copying")
        job = backend.get_job("job")
        assert (job.progress, job.description, job.status) == (40, "copying", status)
        assert len(rows_of(backend, "job")) == rows

    @cells("percent", [0, 1, 99, 100])
    def test_progress_is_stored_as_given(self, backend: Backend, percent: int) -> None:
        put_running(backend, "job")
        backend.save_progress("job", 50)
        backend.save_progress("job", percent)
        assert backend.get_job("job").progress == percent

    def test_progress_without_a_description_keeps_the_last_one(self, backend: Backend) -> None:
        put_running(backend, "job")
        backend.save_progress("job", 10, "copying")
        backend.save_progress("job", 20)
        assert backend.get_job("job").description == "copying"

    @cells("percent", [-1, 101, True, 5.0, "5", None])
    def test_progress_is_a_whole_number_up_to_a_hundred(self, backend: Backend, percent: Any) -> None:
        put_running(backend, "job")
        with refused(backend, InvalidArgumentError):
            backend.save_progress("job", percent)

    @cells("data", [b"", b"\x00\xff", bytes(100_000)], ids=len)
    def test_a_checkpoint_survives_the_attempt(self, backend: Backend, data: bytes) -> None:
        """G22."""
        put_running(backend, "job")
        backend.save_checkpoint("job", data, attempt=1)
        backend.fail_job("job", "boom")
        assert claim(backend, "job").checkpoint == data

    def test_a_new_checkpoint_replaces_the_old_one(self, backend: Backend) -> None:
        """G22."""
        put_running(backend, "job")
        backend.save_checkpoint("job", b"one")
        backend.save_checkpoint("job", b"two")
        assert backend.get_job("job").checkpoint == b"two"
        assert verbs_of(backend, "job") == ["enqueue", "claim"]

    @cells("data", [None, "text", 5, ["x"]], ids=repr)
    def test_a_checkpoint_is_bytes(self, backend: Backend, data: Any) -> None:
        put_running(backend, "job")
        with refused(backend, InvalidArgumentError):
            backend.save_checkpoint("job", data)

    @cells("status", [s for s in STATUSES if not s.holds_slot])
    def test_only_a_job_in_flight_has_progress(self, backend: Backend, status: JobStatus) -> None:
        drive(backend, status)
        with refused(backend, InvalidTransitionError):
            backend.save_progress("job", 50)
        with refused(backend, InvalidTransitionError):
            backend.save_checkpoint("job", b"state")

    def test_the_row_that_ends_the_attempt_tells_its_progress(self, backend: Backend) -> None:
        put_running(backend, "job")
        backend.save_progress("job", 80)
        backend.fail_job("job", "boom")
        assert rows_of(backend, "job")[-1].progress == 80


class Redriving(Suite):
    """redrive_jobs."""

    def test_a_refused_redrive_names_every_job_that_refuses_it(self, backend: Backend) -> None:
        drive(backend, _S.FAILED, "dead")
        drive(backend, _S.COMPLETED, "done")
        put(backend, "waits")
        with refused(backend, InvalidTransitionError) as caught:
            backend.redrive_jobs(job_ids=["dead", "done", "waits"])
        failed: Any = caught.value.failed  # type: ignore[attr-defined]
        assert failed == ((1, "done", "it is completed"), (2, "waits", "it is initial_pending"))
        with refused(backend, JobNotFoundError) as absent:
            backend.redrive_jobs(job_ids=["no-1", "dead", "no-2"])
        assert absent.value.missing == ("no-1", "no-2")  # type: ignore[attr-defined]
        assert "not found" in str(absent.value)
        assert "no-2" in str(absent.value)

    def test_by_tags_those_that_died_with_their_dependency_are_left_out(self, backend: Backend) -> None:
        """DESIGN 2: dependents are not revived: their copies would run before what they waited for."""
        put(backend, "first", tags=["red"])
        put(backend, "then", tags=["red"], after=["first"])
        claim(backend, "first")
        backend.fail_job("first", "boom", category=FailureCategory.PERMANENT)
        assert backend.get_job("then").status in (_S.FAILED, _S.DEAD_LETTER)
        (copy,) = backend.redrive_jobs(["red"])
        assert backend.get_job(copy).redrive_of == "first"
        (other,) = backend.redrive_jobs(job_ids=["then"])
        assert backend.get_job(other).redrive_of == "then"

    @cells("status", [_S.FAILED, _S.DEAD_LETTER])
    def test_a_dead_job_is_submitted_again_as_a_copy(
        self, backend: Backend, clock: ManualClock, status: JobStatus
    ) -> None:
        """C23, G27."""
        put(backend, "dependency")
        claim(backend, "dependency")
        backend.complete_job("dependency")
        fields: dict[str, Any] = {
            "payload": b"work",
            "tags": ("red", "blue"),
            "key": Key("k"),
            "priority": Priority.LOW,
            "retry": retry_policy(max_attempts=1, initial_delay=7),
            "timeouts": time_limits(execution=9),
            "correlation_id": "c",
            "trace": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "callback_url": "https://x.example",
            "parent_id": "another",
            "held": True,
        }
        dead = drive(
            backend,
            status,
            idempotency_key="once",
            run_at=clock.now() - timedelta(days=1),
            after=["dependency"],
            **fields,
        )
        now = clock.advance(60)
        (copy,) = backend.redrive_jobs(job_ids=["job"])
        assert uuid.UUID(copy).version == 4
        job = backend.get_job(copy)
        expected = {**fields, "priority": Priority.NORMAL}
        expected["priority"] = dead.priority
        assert {name: getattr(job, name) for name in fields} == expected
        assert (job.type, job.redrive_of, job.status) == ("task", "job", _S.INITIAL_PENDING)
        assert (job.idempotency_key, job.run_at, job.after, job.after_any) == (None, None, (), ())
        assert (job.attempt, job.retry_count, job.failures) == (0, 0, 0)
        assert (job.created_at, job.started_at, job.finalized_at, job.assignee_id) == (now, None, None, None)
        assert (job.result, job.error_message, job.error_category, job.checkpoint) == (None, "", None, None)
        assert backend.get_job("job") == dead

    def test_copies_come_in_the_order_of_the_ids(self, backend: Backend) -> None:
        for name in "abc":
            drive(backend, _S.FAILED, name)
        copies = backend.redrive_jobs(job_ids=["c", "a", "b", "a"])
        assert [backend.get_job(copy).redrive_of for copy in copies] == ["c", "a", "b"]

    def test_tags_choose_the_dead_among_the_matches(self, backend: Backend) -> None:
        for status in sorted(STATUSES, key=lambda status: status.holds_slot):
            drive(backend, status, str(status), tags=["red"])
        drive(backend, _S.FAILED, "other", tags=["blue"])
        copies = backend.redrive_jobs(["red"])
        assert {backend.get_job(copy).redrive_of for copy in copies} == {"failed", "dead_letter"}

    def test_tags_and_ids_together_choose_each_once(self, backend: Backend) -> None:
        drive(backend, _S.FAILED, "a", tags=["red"])
        drive(backend, _S.FAILED, "b")
        copies = backend.redrive_jobs(["red"], ["a", "b"])
        assert sorted(str(backend.get_job(copy).redrive_of) for copy in copies) == ["a", "b"]

    @cells("status", [s for s in STATUSES if s not in (_S.FAILED, _S.DEAD_LETTER)])
    def test_a_listed_job_that_is_not_dead_refuses_all(self, backend: Backend, status: JobStatus) -> None:
        """C23."""
        drive(backend, _S.FAILED, "dead")
        drive(backend, status, "other")
        with refused(backend, InvalidTransitionError):
            backend.redrive_jobs(job_ids=["dead", "other"])

    def test_a_listed_job_that_does_not_exist_refuses_all(self, backend: Backend) -> None:
        drive(backend, _S.FAILED, "dead")
        with refused(backend, JobNotFoundError):
            backend.redrive_jobs(job_ids=["dead", MISSING])

    def test_no_match_makes_no_copies(self, backend: Backend) -> None:
        with unchanged(backend):
            assert backend.redrive_jobs(["red"]) == []

    @cells("arguments", [{}, {"tags": [], "job_ids": []}])
    def test_a_choice_must_be_made(self, backend: Backend, arguments: dict[str, Any]) -> None:
        """C4."""
        with refused(backend, InvalidArgumentError):
            backend.redrive_jobs(**arguments)

    def test_a_job_can_be_redriven_more_than_once(self, backend: Backend) -> None:
        drive(backend, _S.FAILED)
        first, second = backend.redrive_jobs(job_ids=["job"]), backend.redrive_jobs(job_ids=["job"])
        assert first != second
        assert len(all_jobs(backend)) == 3

    def test_a_copy_has_a_history_of_its_own(self, backend: Backend) -> None:
        drive(backend, _S.FAILED)
        (copy,) = backend.redrive_jobs(job_ids=["job"])
        assert verbs_of(backend, copy) == ["enqueue"]
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == [copy]
