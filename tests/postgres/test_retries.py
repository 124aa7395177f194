"""Calls that are tried again after the connection was lost: which rows were stored by this very call?"""

import psycopg
import pytest
from tests.postgres.proxy import CLIENT, SERVER, sweep
from tests.tiers import some
from tests.waiting import until

from penstock.errors import BackendError, JobExistsError, QueueBlockedError
from penstock.job import Job


@pytest.fixture
def through(proxy, open_store):
    """Opens the store through the proxy."""
    return lambda **options: open_store(proxy.url, **options)


@pytest.mark.parametrize("kind", some(["plain", "tagged", "keyed", "batch"], ["plain", "batch"]))
def test_an_id_that_is_taken_stays_refused_wherever_the_connection_is_cut(open_store, through, proxy, kind):
    """F5: the job under that id is another one's; nothing of the call is stored."""
    direct = open_store()
    direct.enqueue_job(Job(id="taken", type="theirs", payload=b"theirs"))
    mine = {
        "plain": Job(id="taken", type="mine"),
        "tagged": Job(id="taken", type="mine", tags=("a",)),
        "keyed": Job(id="taken", type="mine", key="k"),
        "batch": Job(id="taken", type="mine"),
    }[kind]
    backend = through()
    for side, number in sweep(proxy):
        with pytest.raises(JobExistsError):
            if kind == "batch":
                backend.enqueue_jobs([Job(id=f"new-{side}-{number}", type="mine"), mine])
            else:
                backend.enqueue_job(mine)
    assert proxy.cuts > 4
    assert direct.get_job("taken").payload == b"theirs"
    assert direct.get_job_stats().total_jobs == 1


def test_a_job_is_stored_once_wherever_the_connection_is_cut(open_store, through, proxy):
    """F5: its own row is recognised."""
    direct, backend = open_store(), through()
    ids = []
    for side, number in sweep(proxy):
        ids.append(f"{side}-{number}")
        assert backend.enqueue_job(Job(id=ids[-1], type="t", payload=b"p")) == ids[-1]
    assert proxy.cuts > 4
    assert [job.id for job in direct.list_jobs(limit=1000)] == ids
    assert [entry.job_id for entry in direct.read_journal()] == ids


def test_a_job_that_was_stored_is_acknowledged_although_the_queue_is_blocked_then(open_store, through, proxy):
    """F5: the block came after it."""
    direct, backend = open_store(), through()
    backend.enqueue_job(Job(id="warm", type="t"))
    original = backend._store._pool._open

    def open_later(patience):
        proxy.disarm()
        direct.set_blocked(True)
        return original(patience)

    backend._store._pool._open = open_later
    proxy.cut_at(SERVER, 1)
    assert backend.enqueue_job(Job(id="a", type="t")) == "a"
    proxy.cut_at(CLIENT, 1)
    with pytest.raises(QueueBlockedError):
        backend.enqueue_job(Job(id="b", type="t"))
    assert {job.id for job in direct.list_jobs()} == {"warm", "a"}


HELD = {
    "keyed": lambda backend: backend.enqueue_job(Job(id="new", type="t", key="k")),
    "claim": lambda backend: backend.dequeue_jobs("w", job_ids=["waits"]),
    "complete": lambda backend: backend.complete_job("runs", b"r", attempt=1),
    "fail": lambda backend: backend.fail_job("runs", "no", attempt=1),
}


@pytest.mark.parametrize("verb", HELD)
def test_a_commit_that_is_still_under_way_is_waited_for(open_store, through, proxy, admin, call, verb):
    """F5: nothing is run again while the server may still commit it."""
    direct = open_store()
    direct.enqueue_job(Job(id="runs", type="t"))
    direct.dequeue_jobs("w")
    direct.enqueue_job(Job(id="waits", type="t"))
    before = len(direct.read_journal())
    backend = through()
    backend.enqueue_job(Job(id="warm", type="other"))
    # At COMMIT, and there only, the server waits for the lock.
    admin.execute(
        "CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$"
    )
    admin.execute(
        "CREATE CONSTRAINT TRIGGER held AFTER INSERT ON journal_inbox DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION held()"
    )
    admin.execute("SELECT pg_advisory_lock(4711)")
    under_way = call(HELD[verb], backend)
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted"
    until(lambda: admin.execute(waiting).fetchone()[0])
    proxy.cut_all()
    assert under_way.is_waiting()
    admin.execute("SELECT pg_advisory_unlock(4711)")
    under_way.result()
    assert len(direct.read_journal()) == before + 2


def test_an_error_that_is_certain_says_so(open_store, through, proxy):
    """F5: of a statement that never reached the server nobody need wonder."""
    open_store()
    backend = through(timeout=0.5)
    proxy.close()
    backend._store._pool.forget_idle()
    with pytest.raises(BackendError) as caught:
        backend.enqueue_job(Job(id="a", type="t"))
    assert caught.value.retryable
    assert not caught.value.outcome_unknown


def test_an_error_of_a_listener_does_not_repeat_what_was_committed(open_store):
    """Also if it looks like a lost connection: it is not the store's."""
    backend = open_store()

    def listener(_changes):
        raise psycopg.OperationalError("the listener's own connection is lost")

    backend._store.on_commit = listener
    with pytest.raises(psycopg.OperationalError):
        backend.enqueue_job(Job(id="a", type="t", key="k"))
    backend._store.on_commit = None
    assert [entry.job_id for entry in backend.read_journal()] == ["a"]
