"""Many threads at once: each job exactly once, limits never exceeded, nothing lost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from penstock.backends import Backend
from penstock.errors import InvalidTransitionError, JobExistsError, StaleAttemptError
from penstock.job import JobStatus, Key
from penstock.testing.conformance._support import (
    WORKER,
    Suite,
    a_job,
    all_jobs,
    assert_sound,
    claim,
    ids,
    journal,
    put,
    put_running,
    retry_policy,
)

THREADS = 8
JOBS = 160

_S = JobStatus


def together(*actions: Callable[[], object]) -> list[object]:
    """Run each action on a thread of its own, started at the same instant; return results or exceptions."""
    barrier = threading.Barrier(len(actions))
    results: list[object] = [None] * len(actions)

    def run(position: int) -> None:
        barrier.wait()
        try:
            results[position] = actions[position]()
        except Exception as error:  # the test looks at it
            results[position] = error

    threads = [threading.Thread(target=run, args=(position,)) for position in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads), "a call did not return"
    return results


def expect_no_errors(results: list[object]) -> None:
    """Raise the first exception among the results."""
    for result in results:
        if isinstance(result, BaseException):
            raise result


class Concurrency(Suite):
    """Q52, B17: every verb may be called from any thread."""

    @pytest.mark.parametrize("limit", [1, 7, 50])
    def test_each_job_is_given_to_exactly_one_worker(self, backend: Backend, limit: int) -> None:
        """Q33, B5, Q52: and no claim exceeds its limit."""
        backend.enqueue_jobs([a_job(id=f"job-{number}", type="t") for number in range(JOBS)])
        taken: list[tuple[str, str]] = []

        def work(worker: str) -> None:
            while jobs := backend.dequeue_jobs(worker, limit=limit):
                assert len(jobs) <= limit
                assert all(job.assignee_id == worker and job.attempt == 1 for job in jobs)
                taken.extend((job.id, worker) for job in jobs)

        expect_no_errors(together(*(partial(work, f"w{n}") for n in range(THREADS))))
        assert sorted(job_id for job_id, _ in taken) == sorted(f"job-{number}" for number in range(JOBS))
        assert {job.id: job.assignee_id for job in all_jobs(backend)} == dict(taken)

    def test_the_freed_slots_of_all_threads_add_up(self, backend: Backend) -> None:
        """B2, Q52."""
        backend.enqueue_jobs([a_job(id=f"job-{number}", type="t") for number in range(JOBS)])
        freed: Counter[str] = Counter()
        lock = threading.Lock()

        def work(worker: str) -> None:
            while jobs := backend.dequeue_jobs(worker, limit=5):
                for job in jobs[:2]:
                    answer = backend.complete_job(job.id, attempt=job.attempt)
                    with lock:
                        freed.update(answer)
                answer = backend.complete_jobs(dict.fromkeys(ids(jobs[2:])))
                with lock:
                    freed.update(answer)

        expect_no_errors(together(*(partial(work, f"w{n}") for n in range(THREADS))))
        assert freed.total() == JOBS
        assert freed == Counter(str(job.assignee_id) for job in all_jobs(backend))
        assert backend.get_job_stats().completed_jobs == JOBS

    def test_jobs_added_by_many_threads_are_all_there(self, backend: Backend) -> None:
        """Q11, Q52."""

        def add(number: int) -> None:
            for each in range(10):
                put(backend, f"{number}-{each}", tags=[f"t{number}"])
            backend.enqueue_jobs([a_job(id=f"{number}-batch-{each}", type="t") for each in range(10)])

        expect_no_errors(together(*(partial(add, n) for n in range(THREADS))))
        assert len(all_jobs(backend)) == THREADS * 20
        assert backend.get_job_stats().pending_jobs == THREADS * 20
        assert all(backend.get_job_stats([f"t{number}"]).total_jobs == 10 for number in range(THREADS))

    def test_one_id_from_many_threads_is_stored_once(self, backend: Backend) -> None:
        """Q12, Q52."""
        results = together(*(lambda: put(backend, "job") for _ in range(THREADS)))
        assert Counter(type(result) for result in results) == {list: 1, JobExistsError: THREADS - 1}

    def test_one_idempotency_key_from_many_threads_makes_one_job(self, backend: Backend) -> None:
        """G2, Q52."""
        results = together(
            *(partial(put, backend, f"job-{n}", idempotency_key="once") for n in range(THREADS))
        )
        expect_no_errors(results)
        (job,) = all_jobs(backend)
        assert results == [[job.id]] * THREADS

    def test_one_report_of_many_wins(self, backend: Backend) -> None:
        """Q52, B17."""
        put_running(backend, "job")
        results = together(
            *(lambda: backend.complete_job("job", b"r", attempt=1) for _ in range(THREADS // 2)),
            *(lambda: backend.fail_job("job", "boom", attempt=1) for _ in range(THREADS // 2)),
        )
        assert Counter(type(result) for result in results) == {dict: 1, StaleAttemptError: THREADS - 1}

    def test_completion_and_cancellation_race_to_one_end(self, backend: Backend) -> None:
        """Q35, Q42, Q52."""
        for number in range(10):
            name = f"job-{number}"
            put_running(backend, name)
            completed, cancelled = together(
                partial(backend.complete_job, name),
                partial(backend.cancel_jobs, job_ids=[name]),
            )
            assert completed == {WORKER: 1}
            assert cancelled in (([name], []), ([], [name]))
            assert backend.get_job(name).status is _S.COMPLETED

    def test_jobs_of_one_key_never_overlap(self, backend: Backend) -> None:
        """R3, Q52: and they run in the order they came."""
        keys = 5
        backend.enqueue_jobs(
            [a_job(id=f"{n % keys}-{n}", type="t", key=Key(f"k{n % keys}")) for n in range(JOBS // 2)]
        )
        order: list[str] = []
        running: Counter[str] = Counter()
        lock = threading.Lock()
        overlaps: list[str] = []

        def work(worker: str) -> None:
            idle = 0
            while idle < 200:
                jobs = backend.dequeue_jobs(worker, limit=3)
                idle = 0 if jobs else idle + 1
                with lock:
                    for job in jobs:
                        running[str(job.key)] += 1
                        order.append(job.id)
                        if running[str(job.key)] > 1:
                            overlaps.append(job.id)
                for job in jobs:
                    with lock:
                        running[str(job.key)] -= 1
                    backend.complete_job(job.id)
                if not jobs and backend.get_job_stats().completed_jobs == JOBS // 2:
                    return

        expect_no_errors(together(*(partial(work, f"w{n}") for n in range(4))))
        assert overlaps == []
        assert backend.get_job_stats().completed_jobs == JOBS // 2
        for key in range(keys):
            numbers = [int(name.split("-")[1]) for name in order if name.startswith(f"{key}-")]
            assert numbers == sorted(numbers)

    def test_the_last_of_several_dependencies_releases_the_job_once(self, backend: Backend) -> None:
        """G24, Q52: two last dependencies end together."""
        for number in range(8):
            names = [f"{number}-{each}" for each in range(4)]
            put_running(backend, *names)
            put(backend, f"{number}-last", after=names)
            expect_no_errors(together(*(partial(backend.complete_job, name) for name in names)))
            claim(backend, f"{number}-last")

    def test_a_dependent_added_while_its_dependency_ends_is_not_forgotten(self, backend: Backend) -> None:
        """G24, G26, Q52."""
        for number in range(10):
            first, last = f"{number}-first", f"{number}-last"
            put_running(backend, first)
            expect_no_errors(
                together(
                    partial(backend.complete_job, first),
                    partial(put, backend, last, after=[first]),
                )
            )
            claim(backend, last)

    def test_a_follower_added_while_its_head_ends_is_not_forgotten(self, backend: Backend) -> None:
        """R3, Q52."""
        for number in range(10):
            head, follower = f"{number}-head", f"{number}-next"
            put_running(backend, head, key=f"k{number}")
            expect_no_errors(
                together(
                    partial(backend.complete_job, head),
                    partial(put, backend, follower, key=f"k{number}"),
                )
            )
            claim(backend, follower)

    def test_claims_and_losses_keep_the_fence(self, backend: Backend) -> None:
        """Q45, Q49, Q52: an old attempt never finishes a new one."""
        put(backend, *(f"job-{number}" for number in range(10)), retry=retry_policy(max_attempts=1_000))
        accepted: list[tuple[str, int]] = []

        def work(worker: str) -> None:
            for _ in range(25):
                for job in backend.dequeue_jobs(worker, limit=3):
                    try:
                        backend.complete_job(job.id, attempt=job.attempt)
                    except (StaleAttemptError, InvalidTransitionError):
                        continue
                    accepted.append((job.id, job.attempt))

        def disturb() -> None:
            for _ in range(25):
                backend.reset_running_jobs()

        expect_no_errors(together(*(partial(work, f"w{n}") for n in range(4)), disturb))
        assert len({job_id for job_id, _ in accepted}) == len(accepted)
        for job_id, attempt in accepted:
            job = backend.get_job(job_id)
            assert (job.status, job.attempt) == (_S.COMPLETED, attempt)

    def test_readers_see_whole_changes_and_a_growing_journal(self, backend: Backend) -> None:
        """Q46, Q52, B17."""
        done = threading.Event()

        def write() -> None:
            try:
                for number in range(40):
                    put_running(backend, f"job-{number}")
                    backend.complete_job(f"job-{number}", b"r")
            finally:
                done.set()

        def read() -> None:
            seen = 0
            while not done.is_set():
                rows = backend.read_journal(after=seen)
                assert [row.seq for row in rows] == list(range(seen + 1, seen + 1 + len(rows)))
                seen += len(rows)
                for job in all_jobs(backend):
                    assert (
                        (job.status is _S.COMPLETED) == (job.result == b"r") == (job.finalized_at is not None)
                    )
                    assert (job.attempt == 0) == (job.assignee_id is None)

        expect_no_errors(together(write, read, read))
        assert len(journal(backend)) == 120

    def test_two_objects_on_one_store_share_the_work(self, backend: Backend, second_backend: Backend) -> None:
        """Q33, Q52."""
        backend.enqueue_jobs([a_job(id=f"job-{number}", type="t") for number in range(JOBS)])
        taken: list[str] = []

        def work(store: Backend, worker: str) -> None:
            while jobs := store.dequeue_jobs(worker, limit=4):
                taken.extend(ids(jobs))
                store.complete_jobs(dict.fromkeys(ids(jobs)))

        expect_no_errors(
            together(*(partial(work, [backend, second_backend][n % 2], f"w{n}") for n in range(4)))
        )
        assert sorted(taken) == sorted(f"job-{number}" for number in range(JOBS))
        assert_sound(second_backend)
