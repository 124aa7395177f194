"""Plural reports: what nothing follows from is completed by one statement, also beside jobs of which something does."""

import threading

import pytest

from penstock import Job, JobStatus, ReportErrors, StaleAttemptError
from penstock.backends.postgres.transaction import PostgresTransaction
from penstock.testing import check_invariants

pytestmark = pytest.mark.postgres


@pytest.fixture
def saved(monkeypatch) -> list[str]:
    """The ids of the jobs that were written row by row."""
    found: list[str] = []
    save = PostgresTransaction.save

    def noted(tx, rows):
        found.extend(row.id for row in rows)
        save(tx, rows)

    monkeypatch.setattr(PostgresTransaction, "save", noted)
    return found


def test_plain_jobs_go_the_quick_way_beside_others(open_store, saved):
    backend = open_store()
    backend.enqueue_jobs(
        [
            Job(id="plain-1", type="t"),
            Job(id="keyed", type="t", key="k"),
            Job(id="next", type="t", key="k"),
            Job(id="awaited", type="t"),
            Job(id="waits", type="t", after=("awaited",)),
            Job(id="plain-2", type="t"),
        ]
    )
    backend.dequeue_jobs("w", limit=10)
    saved.clear()
    results = {"plain-1": b"1", "keyed": b"2", "awaited": None, "plain-2": None}
    assert backend.complete_jobs(results, attempts=dict.fromkeys(results, 1)) == {"w": 4}
    assert sorted(saved) == ["awaited", "keyed"]
    jobs = backend.get_jobs(results)
    assert {job_id: job.result for job_id, job in jobs.items()} == results
    assert {job.status for job in jobs.values()} == {JobStatus.COMPLETED}
    assert {job.id for job in backend.dequeue_jobs("w", limit=10)} == {"next", "waits"}
    assert not list(check_invariants(backend.read_journal()))


def test_jobs_that_all_have_keys_cost_no_statement_more(open_store, saved, monkeypatch):
    backend = open_store()
    backend.enqueue_jobs([Job(id=name, type="t", key=name) for name in "ab"])
    backend.dequeue_jobs("w", limit=2)
    asked: list[bool] = []
    complete = PostgresTransaction._complete_found

    def noted(tx, fences, *, are_held):
        asked.append(are_held)
        return complete(tx, fences, are_held=are_held)

    monkeypatch.setattr(PostgresTransaction, "_complete_found", noted)
    saved.clear()
    backend.complete_jobs({"a": None, "b": None})
    assert (sorted(saved), asked) == (["a", "b"], [False])


def test_what_is_refused_beside_others_is_named(open_store, saved):
    backend = open_store()
    backend.enqueue_jobs(
        [Job(id="plain", type="t"), Job(id="keyed", type="t", key="k"), Job(id="late", type="t")]
    )
    backend.dequeue_jobs("w", limit=3)
    saved.clear()
    with pytest.raises(ReportErrors) as caught:
        backend.complete_jobs(dict.fromkeys(("plain", "keyed", "late")), attempts={"late": 7})
    assert [type(each) for each in caught.value.exceptions] == [StaleAttemptError]
    assert caught.value.freed == {"w": 2}
    assert saved == ["keyed"]
    assert backend.get_job("late").status is JobStatus.RUNNING


def test_mixed_reports_side_by_side_never_wait_for_each_other_in_a_circle(open_store, admin):
    """B18: keys, then rows in their order; a circle would be noticed by the server, and counted."""
    before = _deadlocks(admin)
    backends = [open_store() for _ in range(3)]
    ids = [f"{number:02}" for number in range(60)]
    backends[0].enqueue_jobs(
        [Job(id=each, type="t", key=None if number % 3 else f"k{number}") for number, each in enumerate(ids)]
    )
    assert len(backends[0].dequeue_jobs("w", limit=100)) == len(ids)
    start = threading.Barrier(len(backends))
    met: list[BaseException] = []

    def report(backend, order):
        start.wait(30)
        for first in range(0, len(order), 20):
            try:
                backend.complete_jobs(dict.fromkeys(order[first : first + 20]))
            except ReportErrors:
                pass  # another one was first
            except BaseException as error:
                met.append(error)

    orders = [ids, ids[::-1], ids[1::2] + ids[::2]]
    threads = [threading.Thread(target=report, args=pair) for pair in zip(backends, orders, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not met
    assert backends[0].get_job_stats().completed_jobs == len(ids)
    assert not list(check_invariants(backends[0].read_journal()))
    assert _deadlocks(admin) == before


def _deadlocks(admin) -> int:
    if admin.info.server_version >= 150000:  # before, the server counted within half a second
        admin.execute("SELECT pg_stat_force_next_flush()")
    ((count,),) = admin.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    return count
