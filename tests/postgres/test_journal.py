"""The journal's numbers: dense, in each job's order, given to what is committed and to nothing else."""

import os
import random
import signal
import threading

import psycopg
import pytest
from tests.waiting import until

from penstock import cancel_scope
from penstock.backends.postgres.retries import Patience
from penstock.errors import BackendError, QueueFullError
from penstock.job import Job
from penstock.testing import check_fold, check_invariants


def read_all(backend, after=0):
    rows = []
    while page := backend.read_journal(rows[-1].seq if rows else after, limit=97):
        rows += page
    return rows


def is_dense(rows, first=1):
    return [row.seq for row in rows] == list(range(first, first + len(rows)))


def test_a_row_that_commits_late_gets_a_later_number(open_store, gate_of, call):
    """R10, R12: its id was drawn first, but a reader has already gone past it."""
    slow, quick = open_store(), open_store()
    gate = gate_of(slow)
    late = call(slow.enqueue_job, Job(id="late", type="t", key="k"))
    assert gate.arrived.wait(10)
    quick.enqueue_job(Job(id="early", type="t"))
    assert [(row.seq, row.job_id) for row in quick.read_journal()] == [(1, "early")]
    quick.enqueue_job(Job(id="next", type="t"))
    assert [row.job_id for row in quick.read_journal()] == ["early", "next"]
    gate.open.set()
    late.result()
    for reader in (quick, slow, open_store()):
        assert [(row.seq, row.job_id) for row in reader.read_journal()] == [
            (1, "early"),
            (2, "next"),
            (3, "late"),
        ]


def test_the_first_row_is_found_although_somebody_looked_before(backend):
    """R10, R12: a sequence that was never used looks as if it had given its first number."""
    assert backend.read_journal() == []
    backend.maintain()
    backend.enqueue_job(Job(id="a", type="t"))
    assert [row.seq for row in backend.read_journal()] == [1]
    assert backend.get_job_stats().total_jobs == 1


def test_a_reader_does_not_wait_for_a_writer_nor_for_a_stranger(open_store, admin, gate_of, call):
    """R10, R12: a foreign transaction that has been open for long delays nobody."""
    slow, quick = open_store(), open_store()
    gate = gate_of(slow)
    late = call(slow.enqueue_job, Job(id="late", type="t", key="k"))
    assert gate.arrived.wait(10)
    with admin.transaction():
        admin.execute("SELECT pg_current_xact_id()")
        admin.execute("UPDATE owner SET beat_at = beat_at")
        with cancel_scope(timeout=20):
            for number in range(20):
                quick.enqueue_job(Job(id=str(number), type="t"))
                assert quick.read_journal(after=number)[-1].job_id == str(number)
        assert quick.get_job_stats().total_jobs == 20
    gate.open.set()
    late.result()
    rows = read_all(quick)
    assert is_dense(rows)
    assert rows[-1].job_id == "late"


def test_transactions_that_end_out_of_order_are_all_found(open_store, gate_of, call):
    """R10, R12: several are open while others are numbered; each appears once it has ended."""
    reader = open_store()
    slow = []
    for number in range(3):
        store = open_store(pool_size=1)
        gate = gate_of(store)
        slow.append((gate, call(store.enqueue_job, Job(id=f"slow-{number}", type="t", key=f"k{number}"))))
        assert gate.arrived.wait(10)
        reader.enqueue_job(Job(id=f"quick-{number}", type="t"))
        assert len(reader.read_journal()) == number + 1
    for finished, (gate, under_way) in enumerate(reversed(slow), start=1):
        gate.open.set()
        under_way.result()
        assert len(reader.read_journal()) == 3 + finished
        assert reader.get_job_stats().total_jobs == 3 + finished
    rows = read_all(reader)
    assert is_dense(rows)
    assert [row.job_id for row in rows[3:]] == ["slow-2", "slow-1", "slow-0"]


def test_a_transaction_that_is_undone_leaves_no_hole(open_store, admin, gate_of, call):
    """R10 (F4): its backend is ended before the commit, and the work is run again."""
    backend, other = open_store(), open_store()
    gate = gate_of(backend)
    under_way = call(backend.enqueue_job, Job(id="a", type="t", key="k"))
    assert gate.arrived.wait(10)
    other.enqueue_job(Job(id="b", type="t"))
    admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
    )
    gate.open.set()
    under_way.result()
    rows = read_all(other)
    assert is_dense(rows)
    assert sorted(row.job_id for row in rows) == ["a", "b"]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_journal_stays_dense_under_writers_rollbacks_kills_and_a_long_transaction(
    open_store, admin, postgres_url
):
    """R10, B17: no row is lost, a job's rows keep their order, and nobody who has read n finds a new row below."""
    writers = [open_store(timeout=60.0) for _ in range(2)]
    reader = open_store()
    stop = threading.Event()
    seen, faults = [], []

    def write(number):
        chance = random.Random(number)
        backend = writers[number % 2]
        for turn in range(60):
            name = f"{number}-{turn}"
            try:
                backend.enqueue_jobs([Job(id=f"{name}-{each}", type="t", tags=("a",)) for each in range(3)])
                jobs = backend.dequeue_jobs(f"w{number}", limit=2)
                for job in jobs:
                    if chance.random() < 0.5:
                        backend.complete_job(job.id, attempt=job.attempt)
                    else:
                        backend.fail_job(job.id, "no", attempt=job.attempt)
                backend.enqueue_jobs([Job(id="taken", type="t"), Job(id=f"{name}-refused", type="t")])
            except Exception as error:
                if getattr(error, "code", "") not in {"job_exists", "stale_attempt"}:
                    faults.append(error)

    def read():
        while not stop.is_set():
            page = reader.read_journal(seen[-1].seq if seen else 0, limit=50)
            seen.extend(page)

    def disturb():
        chance = random.Random(7)
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            while not stop.wait(0.15):
                pids = [
                    row[0]
                    for row in connection.execute(
                        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'penstock' AND state <> 'idle'"
                    )
                ]
                if pids:
                    connection.execute("SELECT pg_terminate_backend(%s)", (chance.choice(pids),))

    writers[0].enqueue_job(Job(id="taken", type="t"))
    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    others = [threading.Thread(target=read), threading.Thread(target=disturb)]
    with admin.transaction():
        admin.execute("SELECT pg_current_xact_id()")
        for each in threads + others:
            each.start()
        for each in threads:
            each.join(150)
    stop.set()
    for each in others:
        each.join(30)
    assert not faults
    rows = read_all(reader)
    assert is_dense(rows)
    # The reader that went along has seen exactly the beginning of this.
    assert rows[: len(seen)] == seen
    assert not list(check_invariants(rows))
    assert not list(check_fold(rows, list(reader.get_jobs({row.job_id for row in rows}).values())))
    assert sum(row.verb == "enqueue" for row in rows) == 4 * 60 * 3 + 1
    stats = reader.get_job_stats()
    reader.maintain()
    assert reader.get_job_stats() == stats
    assert stats.total_jobs == 4 * 60 * 3 + 1


@pytest.mark.process
def test_a_process_killed_between_its_writes_leaves_a_whole_journal(open_store, postgres_url, schema):
    """R10, R12 (F2): only whole transactions are there."""
    backend = open_store()
    for turn in range(3):
        pid = os.fork()
        if not pid:
            for number in range(10_000):
                backend.enqueue_jobs([Job(id=f"{turn}-{number}-{each}", type="t") for each in range(3)])
        until(lambda turn=turn: backend.get_jobs([f"{turn}-30-0"]), "writing in the child")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    rows = read_all(backend)
    assert is_dense(rows)
    assert len(rows) == backend.get_job_stats().total_jobs
    assert len(rows) % 3 == 0


def test_counts_follow_tags_that_change_before_and_after_a_fold(backend):
    """Q8, Q47."""
    backend.enqueue_job(Job(id="a", type="t", tags=("x", "y")))
    backend.update_job("a", tags=("y", "z"))
    counts = lambda: [backend.get_job_stats((tag,)).total_jobs for tag in ("x", "y", "z")]  # noqa: E731
    assert counts() == [0, 1, 1]
    backend.maintain()
    assert counts() == [0, 1, 1]
    backend.update_job("a", tags=("x",))
    assert counts() == [1, 0, 0]
    backend.maintain()
    backend.cancel_jobs(job_ids=["a"])
    backend.delete_jobs(job_ids=["a"])
    assert counts() == [0, 0, 0]
    backend.maintain()
    assert counts() == [0, 0, 0]


@pytest.mark.parametrize("tag", ['a"b', "a\\b", 'x","a', "ü漢", "'", "%", "[", "a\nb"])
def test_tags_with_odd_characters_are_counted_exactly(backend, tag):
    """Q9, Q47: a tag that looks like a part of another one's JSON is not it."""
    backend.enqueue_job(Job(id="a", type="t", tags=(tag, "other")))
    assert backend.get_job_stats((tag,)).total_jobs == 1
    for close in ("a", "b", "x", tag[:1] + "?", '"'):
        if close not in (tag, "other"):
            assert backend.get_job_stats((close,)).total_jobs == 0
    backend.maintain()
    assert backend.get_job_stats((tag,)).total_jobs == 1
    assert [job.id for job in backend.dequeue_jobs("w", tags=(tag,))] == ["a"]


def test_a_reader_folds_a_long_tail(open_store, admin):
    """B19: so that counting stays quick even if nobody maintains."""
    backend = open_store()
    backend.enqueue_jobs([Job(id=str(number), type="t", tags=("a",)) for number in range(6_000)])
    first = backend.get_job_stats(("a",))
    assert admin.execute("SELECT count(*) FROM counter").fetchone()[0] > 0
    assert backend.get_job_stats(("a",)) == first
    assert first.total_jobs == 6_000


def test_max_pending_holds_for_enqueues_that_come_together(open_store, call):
    """Q52: they take turns, so the limit is never passed."""
    backend = open_store(max_pending=5)
    calls = [call(backend.enqueue_job, Job(id=str(number), type="t")) for number in range(12)]
    refused = 0
    for each in calls:
        try:
            each.result()
        except QueueFullError:
            refused += 1
    assert refused == 7
    assert backend.get_job_stats().total_jobs == 5


def test_a_store_fault_while_numbering_is_ours(open_store, admin):
    """Q55: nothing of the driver leaks."""
    backend = open_store(timeout=2.0)
    backend.enqueue_job(Job(id="a", type="t"))
    with admin.transaction():
        admin.execute("LOCK TABLE journal")
        with pytest.raises(BackendError) as caught:
            backend.read_journal()
        assert caught.value.retryable
    assert len(backend.read_journal()) == 1


def test_the_history_of_a_job_is_found_by_an_index(open_store):
    backend = open_store()
    backend.enqueue_jobs([Job(id=str(number), type="t") for number in range(2_000)])
    backend.read_journal()
    history = backend._store.shared.journal._history.replace("%(job_seq)s", "$1").replace("%(limit)s", "$2")
    connection = backend._store._pool._open(Patience(30))
    try:
        connection.execute(f"PREPARE history (bigint, bigint) AS {history}", prepare=False)
        (((plan,),),) = connection.execute(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE history (1000, 1000)", prepare=False
        ).fetchall()
    finally:
        connection.close()
    assert "journal_step" in str(plan)
    assert plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] < 20
