"""Publishing: many jobs, of which some, or all, may have been stored before."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.backends import Backend
from penstock.errors import (
    DependencyError,
    InvalidArgumentError,
    JobExistsError,
    PayloadTooLargeError,
    QueueBlockedError,
    QueueFullError,
)
from penstock.job import Job, JobStatus, Key
from penstock.testing.conformance._support import (
    MakeBackend,
    Suite,
    a_job,
    all_jobs,
    claim,
    ids,
    put,
    refused,
    unchanged,
)


def jobs(*names: str, **fields: Any) -> list[Job]:
    return [a_job(id=name, **{"type": "task", **fields}) for name in names]


class Publishing(Suite):
    """publish_jobs: as enqueue_jobs, but jobs that are stored already are left out."""

    def test_what_is_missing_is_stored(self, backend: Backend) -> None:
        put(backend, "b", payload=b"first")
        assert backend.publish_jobs(jobs("a", "b", "c", payload=b"second")) == 2
        assert [job.id for job in all_jobs(backend)] == ["b", "a", "c"]
        assert backend.get_job("b").payload == b"first"

    def test_the_same_again_stores_nothing(self, backend: Backend) -> None:
        batch = [*jobs("a", "b", key=Key("k")), *jobs("c", after=["a"]), *jobs("d", idempotency_key="once")]
        assert backend.publish_jobs(batch) == 4
        claim(backend, "a")
        with unchanged(backend):
            assert backend.publish_jobs(batch) == 0
            assert backend.publish_jobs(iter(batch)) == 0

    def test_nothing_at_all_may_be_published(self, backend: Backend) -> None:
        with unchanged(backend):
            assert backend.publish_jobs([]) == 0
            assert backend.publish_jobs(iter(())) == 0

    def test_a_taken_idempotency_key_leaves_its_job_out(self, backend: Backend) -> None:
        put(backend, "first", type="task", idempotency_key="once")
        batch = [*jobs("second", idempotency_key="once"), *jobs("third", after=["second"])]
        assert backend.publish_jobs(batch) == 1
        assert backend.get_job("third").after == ("first",)

    def test_a_job_may_wait_for_one_that_is_left_out(self, backend: Backend) -> None:
        put(backend, "a")
        assert backend.publish_jobs([*jobs("b", after=["a", "c"]), *jobs("a", "c")]) == 2
        assert set(backend.get_job("b").after) == {"a", "c"}

    def test_very_many_are_published_in_one_go(self, backend: Backend) -> None:
        """Several chunks, of which one is stored already, whole."""
        names = [f"job-{number}" for number in range(7_000)]
        backend.enqueue_jobs(jobs(*names[1_900:4_100]))
        assert backend.publish_jobs(job for job in jobs(*names)) == 4_800
        assert backend.get_job_stats().total_jobs == 7_000
        with unchanged(backend):
            assert backend.publish_jobs(jobs(*names)) == 0

    def test_what_is_left_out_may_stand_behind_a_job_that_waits_for_a_later_one(
        self, backend: Backend
    ) -> None:
        """A dependency that comes later makes the store read the jobs between; stored ones are left out as well."""
        names = [f"job-{number}" for number in range(2_500)]
        put(backend, "job-2100", payload=b"first")
        batch = [*jobs("waits", after=["job-2499"]), *jobs(*names)]
        assert backend.publish_jobs(iter(batch)) == 2_500
        assert backend.get_job("job-2100").payload == b"first"
        assert backend.get_job("waits").after == ("job-2499",)

    @pytest.mark.parametrize("as_iterator", [False, True])
    @pytest.mark.parametrize(
        ("batch", "error"),
        [
            (jobs("a", "b", "a"), JobExistsError),
            ([*jobs("a", idempotency_key="k"), *jobs("b", idempotency_key="k")], JobExistsError),
            ([*jobs("a"), *jobs("b", after=["missing"])], DependencyError),
            ([*jobs("a"), *jobs("b", payload=b"x" * 1_048_577)], PayloadTooLargeError),
            ([*jobs("a"), *jobs("b", tags=[""])], InvalidArgumentError),
            ([*jobs("a"), *jobs("b", after=["c"]), *jobs("c", after=["b"])], DependencyError),
        ],
        ids=["id twice", "key twice", "unknown dependency", "payload", "tag", "cycle"],
    )
    def test_it_is_all_or_nothing(
        self, backend: Backend, batch: list[Job], error: type[Exception], as_iterator: bool
    ) -> None:
        with refused(backend, error):
            backend.publish_jobs(iter(batch) if as_iterator else batch, writer="w", batch=1)
        assert backend.publish_jobs(jobs("a"), writer="w", batch=1) == 1  # it was not noted as published

    def test_a_repeat_is_refused_even_if_it_is_stored(self, backend: Backend) -> None:
        put(backend, "a")
        with refused(backend, JobExistsError):
            backend.publish_jobs(jobs("a", "b", "a"))

    def test_a_blocked_or_full_queue_takes_nothing(self, make_backend: MakeBackend) -> None:
        with make_backend(max_pending=2) as backend:
            put(backend, "a")
            with refused(backend, QueueFullError):
                backend.publish_jobs(jobs("a", "b", "c"))
            assert backend.publish_jobs(jobs("a", "b")) == 1
            backend.set_blocked(True)
            with refused(backend, QueueBlockedError):
                backend.publish_jobs(jobs("a"))

    def test_a_batch_is_published_once(self, backend: Backend) -> None:
        """Also if its jobs have been deleted since."""
        assert backend.publish_jobs(jobs("a"), writer="query", batch=7) == 1
        claim(backend, "a")
        backend.complete_job("a")
        backend.delete_jobs(job_ids=["a"])
        for batch in (7, 6, 0):
            with unchanged(backend):
                assert backend.publish_jobs(jobs("a", "b"), writer="query", batch=batch) == 0
        assert backend.publish_jobs(jobs("a"), writer="query", batch=8) == 1
        assert backend.publish_jobs(jobs("c"), writer="other", batch=0) == 1
        assert ids(all_jobs(backend)) == ["a", "c"]

    def test_an_empty_batch_counts(self, backend: Backend) -> None:
        assert backend.publish_jobs([], writer="query", batch=3) == 0
        assert backend.publish_jobs(jobs("a"), writer="query", batch=3) == 0
        assert backend.publish_jobs(jobs("a"), writer="query", batch=4) == 1

    @pytest.mark.parametrize(
        "arguments",
        [
            {"writer": "w"},
            {"batch": 1},
            {"writer": "", "batch": 1},
            {"writer": "w" * 513, "batch": 1},
            {"writer": 5, "batch": 1},
            {"writer": "w", "batch": -1},
            {"writer": "w", "batch": True},
            {"writer": "w", "batch": "1"},
        ],
        ids=repr,
    )
    def test_what_is_no_writer_or_batch_is_refused(self, backend: Backend, arguments: dict[str, Any]) -> None:
        with refused(backend, InvalidArgumentError):
            backend.publish_jobs(jobs("a"), **arguments)

    @pytest.mark.parametrize("batch", ["jobs", b"jobs", None, 5, [5], [None], {"a": 1}], ids=repr)
    def test_what_is_no_batch_of_jobs_is_refused(self, backend: Backend, batch: Any) -> None:
        with refused(backend, InvalidArgumentError):
            backend.publish_jobs(batch)

    def test_two_that_publish_the_same_store_it_once(self, backend: Backend, second_backend: Backend) -> None:
        """The second writer may get JobExistsError, and finds the jobs stored when it tries again."""
        batch = jobs(*(f"job-{number}" for number in range(500)))
        stored: list[int] = []
        ready = threading.Barrier(2)

        def publish(store: Backend) -> None:
            ready.wait()
            try:
                stored.append(store.publish_jobs(batch))
            except JobExistsError:
                stored.append(store.publish_jobs(batch))

        threads = [threading.Thread(target=publish, args=(store,)) for store in (backend, second_backend)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(stored) == [0, 500]
        assert backend.get_job_stats().total_jobs == 500
        assert {job.status for job in all_jobs(backend)} == {JobStatus.INITIAL_PENDING}
