"""Enqueueing: stored fields, refused jobs, and batches that are all or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from penstock.backends import Backend
from penstock.errors import (
    InvalidArgumentError,
    JobExistsError,
    PayloadTooLargeError,
    QueueBlockedError,
    QueueFullError,
)
from penstock.job import GIVEN, Job, JobState, JobStatus, Key, Priority
from penstock.policy import FailureCategory, RetryPolicy, register_backoff
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import (
    STATUSES,
    WORKER,
    MakeBackend,
    Suite,
    a_job,
    all_jobs,
    claim,
    drive,
    ids,
    journal,
    put,
    refused,
    retry_policy,
    time_limits,
    unchanged,
)

_WEIRD_TEXTS = (
    "plain",
    "ünïcödé 漢字 🦆",
    "e\u0301 is not \u00e9",
    "'; DROP TABLE jobs; --",
    '"quoted" \\back\\slash',
    "% _ * ? [a-z]",
    "line\nbreak\ttab",
    " spaces around ",
    "None",
    "1",
    "\u202eright to left",
    '{"json": [1]}',
    "x" * 200,
)


class Submission(Suite):
    """enqueue_job and enqueue_jobs."""

    def test_an_enqueued_job_comes_back_with_every_field_it_was_given(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """Q1, Q11, B3, G32, C14."""
        put(backend, "earlier", "other")
        given: dict[str, Any] = {
            "payload": bytes(range(256)),
            "tags": ("red", "blue"),
            "correlation_id": "trace-1",
            "trace": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 vendor=1",
            "callback_url": "https://example.com/done",
            "idempotency_key": "once",
            "unique": "while_unfinished",
            "priority": Priority.LOW,
            "run_at": clock.now() + timedelta(microseconds=1),
            "key": Key("customer", "42"),
            "after_any": ("earlier", "other"),
            "parent_id": "other",
            "held": True,
            "retry": retry_policy(max_attempts=7, backoff="linear", initial_delay=2.5, jitter=0.1),
            "timeouts": time_limits(execution=1, visibility=2, lifetime=3),
        }
        others = {"id", "type", "redrive_of", "after"}  # below, or in tests of their own
        assert given.keys() == set(GIVEN) - others, "a field of a job that no store is asked for"
        assert backend.enqueue_job(a_job(id="job", type="task", **given)) == "job"
        stored = backend.get_job("job")
        expected = {**given, "priority": Priority.NORMAL}
        assert {name: getattr(stored, name) for name in given} == expected
        assert (stored.id, stored.type, stored.status) == ("job", "task", JobStatus.INITIAL_PENDING)

    def test_fields_left_out_have_their_defaults(self, backend: Backend, clock: ManualClock) -> None:
        """Q1, C36, G7."""
        backend.enqueue_job(a_job(id="job", type="task"))
        stored = backend.get_job("job")
        expected = Job(
            id="job",
            type="task",
            state=JobState.SCHEDULED,
            created_at=clock.now(),
            scheduled_at=clock.now(),
            updated_at=clock.now(),
        )
        assert stored == expected

    def test_history_that_a_caller_brings_along_is_kept(self, backend: Backend, clock: ManualClock) -> None:
        """C14, B3: all fields are preserved; only the status is fixed."""
        earlier = clock.now() - timedelta(days=1)
        given: dict[str, Any] = {
            "retry_count": 4,
            "last_retry_at": earlier,
            "started_at": earlier,
            "assignee_id": "another",
            "assigned_at": earlier,
            "error_message": "it failed elsewhere",
            "result": b"half",
            "checkpoint": b"page 3",
            "created_at": earlier - timedelta(days=1),
        }
        backend.enqueue_job(a_job(id="job", type="task", **given))
        stored = backend.get_job("job")
        assert {name: getattr(stored, name) for name in given} == given

    def test_created_at_is_now_unless_given(self, backend: Backend, clock: ManualClock) -> None:
        """C14."""
        given = clock.now() - timedelta(hours=3)
        backend.enqueue_jobs([a_job(id="a", type="t"), a_job(id="b", type="t", created_at=given)])
        assert backend.get_job("a").created_at == clock.now()
        assert backend.get_job("b").created_at == given

    def test_an_enqueued_job_is_visible_at_once(self, backend: Backend) -> None:
        """B3."""
        put(backend, "job", tags=["red"])
        assert backend.get_job("job").id == "job"
        assert backend.get_job_stats(["red"]).pending_jobs == 1
        assert ids(backend.list_jobs()) == ["job"]
        assert ids(backend.dequeue_jobs(WORKER, ["red"])) == ["job"]

    @cells("payload", [b"", b"\x00", bytes(range(256)) * 40, "ü".encode(), b"\xff\xfe"])
    def test_payloads_are_opaque_bytes(self, backend: Backend, payload: bytes) -> None:
        """G30."""
        put(backend, "job", payload=payload)
        assert backend.get_job("job").payload == payload
        assert backend.dequeue_jobs(WORKER)[0].payload == payload

    @cells("make", [bytearray, memoryview], ids=["bytearray", "memoryview"])
    def test_a_payload_may_be_any_bytes_like_object(self, backend: Backend, make: Any) -> None:
        put(backend, "job", payload=make(b"abc"))
        stored = backend.get_job("job").payload
        assert (type(stored), stored) == (bytes, b"abc")

    def test_a_payload_of_none_is_stored_empty(self, backend: Backend) -> None:
        put(backend, "job", payload=None)
        assert backend.get_job("job").payload == b""

    @cells("text", _WEIRD_TEXTS)
    def test_text_comes_back_exactly_as_given(self, backend: Backend, text: str) -> None:
        """Q1, B13."""
        fields: dict[str, Any] = {
            "type": text,
            "tags": (text, f"{text}-2"),
            "correlation_id": text,
            "idempotency_key": text,
            "key": Key(text, "part"),
            "parent_id": text,
        }
        backend.enqueue_job(a_job(id=text, **fields))
        stored = backend.get_job(text)
        assert {name: getattr(stored, name) for name in fields} == fields
        assert ids(backend.dequeue_jobs(WORKER, [text], types=[text], key=Key(text, "part"))) == [text]

    def test_moments_keep_their_microseconds_and_their_instant(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        moment = datetime(2031, 7, 1, 12, 0, 0, 123457, tzinfo=timezone(timedelta(hours=5, minutes=30)))
        put(backend, "job", run_at=moment)
        stored = backend.get_job("job").run_at
        assert stored == moment
        assert stored is not None
        assert stored.utcoffset() == timedelta(0)

    @cells(
        "moment",
        [datetime(1970, 1, 1, tzinfo=UTC), datetime(2199, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)],
        ids=["first", "last"],
    )
    def test_the_whole_range_of_moments_is_stored(self, backend: Backend, moment: datetime) -> None:
        put(backend, "job", run_at=moment, created_at=moment)
        stored = backend.get_job("job")
        assert (stored.run_at, stored.created_at) == (moment, moment)

    def test_repeated_tags_count_once(self, backend: Backend) -> None:
        """A defect of the original: duplicate tags violated its primary key."""
        put(backend, "job", tags=["red", "blue", "red"])
        assert backend.get_job("job").tags == ("red", "blue")
        assert backend.get_job_stats(["red"]).total_jobs == 1

    @cells(
        "policy",
        [
            retry_policy(),
            retry_policy(max_attempts=1, backoff="constant", initial_delay=0),
            retry_policy(backoff="linear", initial_delay=0.000001, max_delay=86400.5, multiplier=1.5),
            retry_policy(max_attempts=1_000_000, jitter=1.0, retry_on=()),
            retry_policy(retry_on=(FailureCategory.TIMEOUT,)),
        ],
        ids=["default", "once", "linear", "extremes", "timeouts only"],
    )
    def test_a_retry_policy_comes_back_as_given(self, backend: Backend, policy: RetryPolicy) -> None:
        """G18."""
        put(backend, "job", retry=policy)
        assert backend.get_job("job").retry == policy

    def test_a_custom_backoff_is_stored_by_its_name(self, backend: Backend) -> None:
        """G19."""
        register_backoff("conformance-square", lambda n, initial, longest: initial * n * n)
        put(backend, "job", retry=retry_policy(backoff="conformance-square"))
        policy = backend.get_job("job").retry
        assert policy is not None
        assert policy.backoff == "conformance-square"
        assert policy.delay(3) == timedelta(seconds=9)

    @cells("name", ["execution", "visibility", "lifetime"])
    def test_each_timeout_may_be_given_alone(self, backend: Backend, name: str) -> None:
        """G13."""
        timeouts = time_limits(**{name: timedelta(seconds=1, microseconds=1)})
        put(backend, "job", timeouts=timeouts)
        assert backend.get_job("job").timeouts == timeouts

    def test_a_priority_may_be_a_plain_number(self, backend: Backend) -> None:
        """G7."""
        put(backend, "job", priority=0)
        assert backend.get_job("job").priority is Priority.CRITICAL

    def test_an_id_that_exists_is_refused(self, backend: Backend) -> None:
        """Q12."""
        put(backend, "job")
        with refused(backend, JobExistsError) as caught:
            put(backend, "job", payload=b"other")
        assert caught.value.job_id == "job"  # type: ignore[attr-defined]

    @cells("status", STATUSES)
    def test_an_id_is_taken_whatever_became_of_its_job(self, backend: Backend, status: JobStatus) -> None:
        """Q12."""
        drive(backend, status)
        with refused(backend, JobExistsError):
            put(backend, "job")

    def test_an_id_is_free_again_after_its_job_was_deleted(self, backend: Backend) -> None:
        """C53."""
        drive(backend, JobStatus.COMPLETED)
        backend.delete_jobs(job_ids=["job"])
        put(backend, "job", payload=b"new")
        stored = backend.get_job("job")
        assert (stored.payload, stored.attempt, stored.result) == (b"new", 0, None)

    @cells("status", [s for s in STATUSES if s is not JobStatus.INITIAL_PENDING])
    def test_a_new_job_must_be_pending(self, backend: Backend, status: JobStatus) -> None:
        """Q10."""
        with refused(backend, InvalidArgumentError):
            put(backend, "job", status=status)

    def test_none_is_not_a_job(self, backend: Backend) -> None:
        """Q10, C62b."""
        with refused(backend, InvalidArgumentError):
            backend.enqueue_job(None)  # type: ignore[arg-type]

    def test_an_empty_id_is_refused(self, backend: Backend) -> None:
        """Q10."""
        with refused(backend, InvalidArgumentError):
            put(backend, "")


class Batches(Suite):
    """enqueue_jobs: one transaction for many jobs."""

    def test_an_empty_batch_is_fine(self, backend: Backend) -> None:
        """Q14."""
        with unchanged(backend):
            assert backend.enqueue_jobs([]) == []

    def test_ids_come_back_in_input_order(self, backend: Backend) -> None:
        """Q14."""
        names = [f"job-{number * 7 % 20}" for number in range(20)]
        assert backend.enqueue_jobs([a_job(id=name, type="t") for name in names]) == names
        assert ids(all_jobs(backend)) == names

    def test_a_batch_may_be_any_iterable(self, backend: Backend) -> None:
        made: Iterator[Job] = (a_job(id=f"job-{number}", type="t") for number in range(5))
        assert len(backend.enqueue_jobs(made)) == 5
        assert len(all_jobs(backend)) == 5

    def test_a_batch_larger_than_any_chunk_is_stored_in_order(self, backend: Backend) -> None:
        """Q14, Q18."""
        names = [f"job-{number}" for number in range(2_503)]
        jobs = (a_job(id=name, type="t", payload=name.encode(), tags=["bulk"]) for name in names)
        assert backend.enqueue_jobs(jobs) == names
        stored = all_jobs(backend)
        assert ids(stored) == names
        assert stored[-1].payload == names[-1].encode()
        assert backend.get_job_stats(["bulk"]).pending_jobs == len(names)
        assert len(journal(backend)) == len(names)

    @cells(
        "bad",
        [
            None,
            "job",
            a_job(id="", type="t"),
            a_job(id="x", type=""),
            a_job(id="x", type="t", status=JobStatus.RUNNING),
            a_job(id="x", type="t", run_at=datetime(2030, 1, 1)),
        ],
        ids=["None", "text", "empty id", "empty type", "running", "naive run_at"],
    )
    @cells("position", [0, 1, 2])
    def test_one_invalid_job_refuses_the_whole_batch(self, backend: Backend, bad: Any, position: int) -> None:
        """Q15, B4."""
        jobs: list[Any] = [a_job(id="a", type="t"), a_job(id="b", type="t")]
        jobs.insert(position, bad)
        with refused(backend, InvalidArgumentError):
            backend.enqueue_jobs(jobs)

    def test_an_invalid_job_at_the_end_of_a_long_batch_leaves_nothing(self, backend: Backend) -> None:
        """Q15, B4."""

        def jobs() -> Iterator[Job]:
            for number in range(2_100):
                yield a_job(id=f"job-{number}", type="t")
            yield a_job(id="", type="t")

        with refused(backend, InvalidArgumentError):
            backend.enqueue_jobs(jobs())

    def test_an_iterator_that_raises_leaves_nothing_and_its_error_passes(self, backend: Backend) -> None:
        """Q15."""

        def jobs() -> Iterator[Job]:
            for number in range(2_100):
                yield a_job(id=f"job-{number}", type="t")
            raise RuntimeError("the producer broke")

        with unchanged(backend), pytest.raises(RuntimeError, match="the producer broke"):
            backend.enqueue_jobs(jobs())
        put(backend, "job-0")

    def test_an_id_twice_in_a_batch_refuses_it(self, backend: Backend) -> None:
        """Q15, B4, C3."""
        with refused(backend, JobExistsError) as caught:
            backend.enqueue_jobs([a_job(id="a", type="t"), a_job(id="b", type="t"), a_job(id="a", type="t")])
        error: Any = caught.value
        assert error.job_id == "a"
        assert [(index, job_id) for index, job_id, _ in error.failed] == [(2, "a")]
        assert error.enqueued_ids == []

    def test_every_conflict_of_a_batch_is_reported(self, backend: Backend) -> None:
        """Q16, B4, C3."""
        put(backend, "b", "d")
        with refused(backend, JobExistsError) as caught:
            backend.enqueue_jobs([a_job(id=name, type="t") for name in "abcd"])
        error: Any = caught.value
        assert [(index, job_id) for index, job_id, _ in error.failed] == [(1, "b"), (3, "d")]
        assert all(reason for _, _, reason in error.failed)
        assert error.enqueued_ids == []

    def test_ids_that_stand_twice_do_not_hide_those_that_are_stored(self, backend: Backend) -> None:
        """B4."""
        put(backend, "b", "d")
        with refused(backend, JobExistsError) as caught:
            backend.enqueue_jobs([a_job(id=name) for name in ("a", "b", "c", "a", "b", "d")])
        error: Any = caught.value
        assert error.job_id == "b"
        assert [(index, name) for index, name, _ in error.failed] == [(1, "b"), (3, "a"), (4, "b"), (5, "d")]

    @cells("jobs", [None, 5, "jobs", b"jobs", a_job(id="a", type="t")], ids=repr)
    def test_what_is_not_an_iterable_of_jobs_is_refused(self, backend: Backend, jobs: Any) -> None:
        with refused(backend, InvalidArgumentError):
            backend.enqueue_jobs(jobs)


class BadBatches(Suite):
    """A batch that cannot be accepted: nothing is stored, and the error says which job it is about (B4, C3)."""

    @cells("lazily", [False, True], ids=["list", "iterator"])
    @cells(
        "bad",
        [
            {"status": JobStatus.RUNNING},
            {"payload": b"x" * 1_048_577},
            {"priority": 9},
            {"after": ["missing"]},
            {"tags": [""]},
        ],
        ids=lambda bad: next(iter(bad)),
    )
    def test_the_error_names_the_job(self, backend: Backend, bad: dict[str, Any], lazily: bool) -> None:
        batch = [a_job(id="fine"), a_job(id="bad", **bad), a_job(id="also-fine")]
        with unchanged(backend), pytest.raises(InvalidArgumentError) as caught:
            backend.enqueue_jobs(iter(batch) if lazily else batch)
        error: Any = caught.value
        assert [(index, job_id) for index, job_id, _ in error.failed] == [(1, "bad")]
        assert error.failed[0][2]
        assert error.enqueued_ids == []
        assert "jobs[1]" in str(error)
        assert "'bad'" in str(error)

    def test_something_that_is_no_job_is_named_by_its_place(self, backend: Backend) -> None:
        with refused(backend, InvalidArgumentError) as caught:
            backend.enqueue_jobs([a_job(id="fine"), None])  # type: ignore[list-item]
        assert caught.value.failed[0][:2] == (1, None)  # type: ignore[attr-defined]

    def test_an_iterator_must_not_write_to_the_store_it_feeds(self, backend: Backend) -> None:
        """One answer everywhere: nothing of either is stored."""

        def jobs() -> Iterator[Job]:
            yield a_job(id="first")
            assert backend.list_jobs() == []
            backend.enqueue_job(a_job(id="inner"))
            yield a_job(id="second")

        with refused(backend, InvalidArgumentError) as caught:
            backend.enqueue_jobs(jobs())
        assert caught.value.field == "jobs"  # type: ignore[attr-defined]


class Blocking(Suite):
    """set_blocked, is_blocked: the store refuses new jobs."""

    def test_a_store_is_open_at_first(self, backend: Backend) -> None:
        """R16."""
        assert backend.is_blocked() is False

    def test_a_blocked_store_refuses_new_jobs_until_it_is_unblocked(self, backend: Backend) -> None:
        """R16, R17."""
        backend.set_blocked(True)
        assert backend.is_blocked() is True
        with refused(backend, QueueBlockedError):
            put(backend, "job")
        with refused(backend, QueueBlockedError):
            backend.enqueue_jobs([a_job(id="job", type="t")])
        backend.set_blocked(False)
        assert backend.is_blocked() is False
        put(backend, "job")

    def test_blocking_twice_is_the_same_as_once(self, backend: Backend) -> None:
        """R16."""
        backend.set_blocked(True)
        backend.set_blocked(True)
        backend.set_blocked(False)
        assert backend.is_blocked() is False

    def test_stored_jobs_run_and_retry_while_the_store_is_blocked(self, backend: Backend) -> None:
        """C51."""
        put(backend, "job")
        backend.set_blocked(True)
        claim(backend, "job")
        backend.fail_job("job", "boom")
        claim(backend, "job")
        backend.complete_job("job")
        assert backend.get_job("job").status is JobStatus.COMPLETED

    def test_a_blocked_store_refuses_redriving(self, backend: Backend) -> None:
        """R17."""
        drive(backend, JobStatus.FAILED)
        backend.set_blocked(True)
        with refused(backend, QueueBlockedError):
            backend.redrive_jobs(job_ids=["job"])

    def test_every_object_on_a_store_sees_the_block(self, backend: Backend, second_backend: Backend) -> None:
        """R16."""
        backend.set_blocked(True)
        assert second_backend.is_blocked() is True
        with pytest.raises(QueueBlockedError):
            put(second_backend, "job")
        second_backend.set_blocked(False)
        put(backend, "job")

    @cells("value", [None, 1, 0, "yes"])
    def test_the_flag_is_a_bool(self, backend: Backend, value: Any) -> None:
        with refused(backend, InvalidArgumentError):
            backend.set_blocked(value)


class Limits(Suite):
    """max_pending and max_payload."""

    def test_more_waiting_jobs_than_max_pending_are_refused(
        self, make_backend: MakeBackend, clock: ManualClock
    ) -> None:
        backend = make_backend(clock=clock, max_pending=2)
        put(backend, "a", "b")
        with refused(backend, QueueFullError) as caught:
            put(backend, "c")
        error: Any = caught.value
        assert (error.limit, error.waiting) == (2, 2)
        claim(backend, "a")
        put(backend, "c")

    def test_a_batch_that_would_exceed_max_pending_is_refused_whole(
        self, make_backend: MakeBackend, clock: ManualClock
    ) -> None:
        """Q15."""
        backend = make_backend(clock=clock, max_pending=2)
        put(backend, "a")
        with refused(backend, QueueFullError):
            backend.enqueue_jobs([a_job(id="b", type="t"), a_job(id="c", type="t")])
        backend.enqueue_jobs([a_job(id="b", type="t")])

    def test_running_and_ended_jobs_do_not_count_as_waiting(
        self, make_backend: MakeBackend, clock: ManualClock
    ) -> None:
        backend = make_backend(clock=clock, max_pending=1)
        drive(backend, JobStatus.COMPLETED, "done")
        drive(backend, JobStatus.RUNNING, "running")
        put(backend, "a")
        with refused(backend, QueueFullError):
            put(backend, "b")

    @pytest.mark.parametrize(("size", "is_accepted"), [(1023, True), (1024, True), (1025, False)])
    @pytest.mark.parametrize("field", ["payload", "result", "checkpoint"])
    def test_bytes_up_to_max_payload_are_accepted(
        self, make_backend: MakeBackend, clock: ManualClock, field: str, size: int, is_accepted: bool
    ) -> None:
        """G30, C61: one byte under, at and over the limit."""
        backend = make_backend(clock=clock, max_payload=1024)
        data = b"x" * size

        def store() -> None:
            if field == "payload":
                put(backend, "job", payload=data)
            elif field == "result":
                backend.complete_job("job", data)
            else:
                backend.save_checkpoint("job", data)

        if field != "payload":
            drive(backend, JobStatus.RUNNING)
        if is_accepted:
            store()
            assert getattr(backend.get_job("job"), field) == data
        else:
            with refused(backend, PayloadTooLargeError) as caught:
                store()
            error: Any = caught.value
            assert (error.size, error.limit) == (size, 1024)

    @cells(("size", "is_accepted"), [(1_048_576, True), (1_048_577, False)])
    def test_the_default_limit_is_one_mebibyte(self, backend: Backend, size: int, is_accepted: bool) -> None:
        """G30, C61."""
        if is_accepted:
            put(backend, "job", payload=b"x" * size)
            assert len(backend.get_job("job").payload) == size
        else:
            with refused(backend, PayloadTooLargeError):
                put(backend, "job", payload=b"x" * size)

    def test_the_limit_can_be_raised_to_sixteen_mebibytes(
        self, make_backend: MakeBackend, clock: ManualClock
    ) -> None:
        """G30."""
        size = 16 * 1024 * 1024
        backend = make_backend(clock=clock, max_payload=size)
        put(backend, "job", payload=bytes(size))
        assert len(backend.get_job("job").payload) == size
