"""Submission inside the caller's own transaction."""

import asyncio

import psycopg
import pytest
from psycopg.rows import dict_row
from tests.stores import DATABASES
from tests.waiting import until

import penstock
from penstock import (
    Backend,
    DependencyError,
    Flow,
    InvalidArgumentError,
    Job,
    JobExistsError,
    JobStatus,
    Key,
    OperationCancelledError,
    Queue,
    QueueBlockedError,
    QueueClosedError,
    QueueFullError,
    Submitter,
    cancel_scope,
)
from penstock.aio import AsyncQueue, AsyncSubmitter
from penstock.backends import ROLES
from penstock.testing import check_invariants

POSSIBLE = {"enqueue_job", "enqueue_jobs", "submit_jobs", "get_job", "get_jobs", "close"}


@pytest.fixture
def queue(backend):
    with Queue(backend) as queue:
        yield queue


@pytest.fixture
def connection(postgres_url):
    """A connection of the application, with a table of its own."""
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TEMPORARY TABLE orders (id integer PRIMARY KEY)")
        connection.commit()
        yield connection
        connection.rollback()


def job(name, **fields):
    return Job(id=name, type="t", **fields)


def test_jobs_are_there_after_the_commit_and_not_before(queue, connection):
    joined = queue.joined(connection)
    connection.execute("INSERT INTO orders VALUES (1)")
    stored = joined.submit("invoice", {"order": 1}, key="customer", idempotency_key="order-1")
    assert stored.status is JobStatus.INITIAL_PENDING
    assert joined.get_job(stored.id) == stored
    assert queue.get_jobs([stored.id]) == {}
    connection.commit()
    (taken,) = queue.claim_jobs("w")
    assert (taken.id, taken.payload) == (stored.id, b'{"order":1}')
    entries = queue.read_journal()
    assert [entry.seq for entry in entries] == [1, 2]
    assert not check_invariants(entries, jobs=queue.list_jobs())


def test_jobs_are_gone_after_a_rollback(queue, connection):
    joined = queue.joined(connection)
    joined.enqueue_job(job("plain"))
    joined.enqueue_jobs([job(f"many{number}") for number in range(50)])
    joined.submit("t", key="k", idempotency_key="once")
    joined.enqueue_flow(Flow(job("parent"), [job("child")]))
    assert len(joined.get_jobs(["plain", "many49", "parent"])) == 3
    connection.rollback()
    assert queue.list_jobs() == []
    assert queue.read_journal() == []
    assert queue.submit("t", key="k", idempotency_key="once").id


def test_a_transaction_block_on_a_connection_in_autocommit_mode_is_joined(queue, postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        joined = queue.joined(connection)
        with pytest.raises(InvalidArgumentError, match="autocommit"):
            joined.enqueue_job(job("a"))
        with connection.transaction():
            joined.enqueue_job(job("a"))
            with connection.transaction(force_rollback=True):
                joined.enqueue_job(job("undone"))
        assert [each.id for each in queue.list_jobs()] == ["a"]


def test_a_waiting_stream_gets_the_job_after_the_commit(queue, connection):
    """Q13, Q34."""
    with queue.stream_jobs("w") as stream:
        stored = queue.joined(connection).submit("t")
        with cancel_scope(timeout=0.3), pytest.raises(OperationCancelledError):
            next(stream)
        connection.commit()
        with cancel_scope(timeout=10):
            assert [each.id for each in next(stream)] == [stored.id]


def test_a_job_that_is_old_at_the_commit_is_not_overlooked(queue, connection, admin):
    """Claims have long gone past its place in the order, so it says that it is late."""
    joined = queue.joined(connection)
    joined.enqueue_job(job("old"))
    for number in range(30):
        queue.enqueue_job(job(f"new{number}"))
        assert [each.id for each in queue.claim_jobs("w")] == [f"new{number}"]
    assert queue.claim_jobs("w") == []
    connection.commit()
    assert admin.execute("SELECT late FROM job WHERE id = 'old'").fetchone() == (True,)
    assert [each.id for each in queue.claim_jobs("w")] == ["old"]


def test_a_refused_job_leaves_the_transaction_usable(queue, connection):
    """B17: each call is all or nothing."""
    queue.enqueue_job(job("taken"))
    joined = queue.joined(connection)
    connection.execute("INSERT INTO orders VALUES (1)")
    for refused in ([job("x"), job("taken")], [job(f"y{n}") for n in range(30)] + [job("taken")]):
        with pytest.raises(JobExistsError):
            joined.enqueue_jobs(refused)
    with pytest.raises(DependencyError):
        joined.enqueue_job(job("z", after=("nobody",)))
    with pytest.raises(InvalidArgumentError):
        joined.submit("")
    joined.enqueue_job(job("good"))
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    connection.commit()
    assert {each.id for each in queue.list_jobs()} == {"taken", "good"}


def test_a_block_and_a_limit_concern_joined_jobs_too(open_store, connection):
    """R17."""
    with Queue(open_store(max_pending=1)) as queue:
        joined = queue.joined(connection)
        joined.submit("t")
        with pytest.raises(QueueFullError):
            joined.submit("t", key="k")
        connection.rollback()
        queue.block()
        with pytest.raises(QueueBlockedError):
            joined.submit("t")
        with pytest.raises(QueueBlockedError):
            joined.submit("t", key="k")


def test_blocking_waits_for_jobs_that_were_accepted_and_are_on_their_way(queue, connection, call):
    """R16: a queue that is blocked and drained stays drained. Nobody else waits meanwhile."""
    queue.joined(connection).enqueue_job(job("on its way"))
    blocking = call(queue.block)
    until(queue.is_blocked)
    with pytest.raises(QueueBlockedError):
        queue.enqueue_job(job("too late"))
    assert queue.backend.dequeue_jobs("w") == []
    assert blocking.is_waiting()
    connection.commit()
    blocking.result()
    assert queue.backend.get_job_stats().total_jobs == 1


def test_blocking_waits_no_longer_than_it_may(queue, connection):
    """R16, Q54: what was asked for is done all the same."""
    queue.joined(connection).enqueue_job(job("a"))
    with cancel_scope(1):
        queue.block()
    assert queue.is_blocked()
    connection.rollback()


def test_a_block_that_is_stored_is_not_called_off_by_a_scope_that_ends_then(queue, monkeypatch):
    """R16, Q54: only the moment of the event was left to ask for."""
    with cancel_scope() as scope:
        set_blocked = queue.backend.set_blocked

        def stored_late(blocked):
            set_blocked(blocked)
            scope.cancel()

        monkeypatch.setattr(queue.backend, "set_blocked", stored_late)
        queue.block()
    assert queue.is_blocked()


def test_a_keyed_job_holds_its_key_until_the_transaction_ends(queue, connection, call):
    """R3: whoever comes next waits, and stands behind it."""
    key = Key("document")
    queue.joined(connection).enqueue_job(job("first", key=key))
    second = call(queue.enqueue_job, job("second", key=key))
    assert second.is_waiting()
    queue.enqueue_job(job("plain"))
    connection.commit()
    second.result()
    assert [each.id for each in queue.claim_jobs("w", key=key)] == ["first"]
    assert queue.claim_jobs("w", key=key) == []


def test_a_dependent_job_holds_what_it_waits_for(queue, connection, call):
    queue.enqueue_job(job("first"))
    queue.claim_jobs("w")
    queue.joined(connection).enqueue_job(job("last", after=("first",)))
    end = call(queue.complete_job, "first")
    assert end.is_waiting()
    connection.commit()
    end.result()
    assert [each.id for each in queue.claim_jobs("w")] == ["last"]


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


SUBMITS = {
    "backend",
    "close",
    "enqueue_flow",
    "enqueue_job",
    "enqueue_jobs",
    "get_job",
    "get_jobs",
    "new_job",
    "submit",
    "submit_many",
}


def test_it_offers_what_joins_and_nothing_else(queue, connection):
    """F13: what the engine has beside that would run in the caller's transaction."""
    joined = queue.joined(connection)
    assert isinstance(joined, Submitter)
    assert not isinstance(joined, Queue)
    assert public(joined) == SUBMITS
    assert public(joined.backend) == POSSIBLE | {"now", "options"}
    assert not isinstance(joined.backend, Backend)


def test_other_verbs_of_a_queue_and_its_store_are_missing_and_say_so(queue, connection):
    """F13: save_output, journal, runtime and the rest."""
    joined = queue.joined(connection)
    of_queue, of_store = (
        public(Queue) - SUBMITS,
        (public(Backend) | set(ROLES)) - POSSIBLE - {"now", "options"},
    )
    assert of_queue
    assert of_store
    for thing, verbs in ((joined, of_queue), (joined.backend, of_store)):
        for verb in sorted(verbs):
            assert not hasattr(thing, verb)
            with pytest.raises(
                InvalidArgumentError, match=f"{verb} is not possible inside a joined transaction"
            ):
                getattr(thing, verb)
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_name_that_no_queue_has_is_an_ordinary_attribute_error(queue, connection):
    """F13."""
    for thing in (queue, queue.joined(connection), queue.joined(connection).backend):
        with pytest.raises(AttributeError, match="no attribute 'sumbit'") as caught:
            thing.sumbit  # noqa: B018
        assert not isinstance(caught.value, InvalidArgumentError)


def test_the_queue_for_asyncio_offers_the_same(postgres_url, schema, queue):
    """F13."""

    async def scenario():
        async with (
            penstock.aio.connect(postgres_url, schema=schema) as other,
            await psycopg.AsyncConnection.connect(postgres_url) as connection,
        ):
            joined = other.joined(connection)
            assert isinstance(joined, AsyncSubmitter)
            assert public(joined) == SUBMITS - {"backend"} | {"queue"}
            for verb in public(AsyncQueue) - public(joined):
                assert not hasattr(joined, verb)
                with pytest.raises(InvalidArgumentError, match=verb):
                    getattr(joined, verb)
            await joined.submit("t")

    asyncio.run(scenario())
    assert queue.get_job_stats().total_jobs == 1


def test_closing_it_leaves_connection_and_queue_alone(queue, connection):
    joined = queue.joined(connection)
    joined.enqueue_job(job("a"))
    joined.close()
    with pytest.raises(QueueClosedError):
        joined.enqueue_job(job("b"))
    connection.commit()
    assert queue.get_job("a").id == "a"
    queue.close()
    with pytest.raises(QueueClosedError):
        queue.joined(connection)


def test_the_callers_settings_do_not_matter(queue, postgres_url):
    with psycopg.connect(
        postgres_url, row_factory=dict_row, cursor_factory=psycopg.ClientCursor, prepare_threshold=0
    ) as connection:
        joined = queue.joined(connection)
        ids = joined.enqueue_jobs([job(f"job{n}", tags=("red",), key=Key("k")) for n in range(30)])
        assert joined.submit("t", b"data", tags=["red"]).payload == b"data"
        connection.commit()
    assert len(ids) == 30
    assert queue.get_job_stats(["red"]).total_jobs == 31


def test_a_connection_to_somewhere_else_is_refused(queue, postgres_url, schema):
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {DATABASES}_{schema}")
        url = psycopg.conninfo.make_conninfo(postgres_url, dbname=f"{DATABASES}_{schema}")
        with psycopg.connect(url) as connection, pytest.raises(InvalidArgumentError, match="this queue"):
            queue.joined(connection).submit("t")
        with penstock.connect("postgresql://?" + _query(url), schema=schema) as copy:
            assert copy.list_jobs() == []
        with psycopg.connect(url) as connection, pytest.raises(InvalidArgumentError, match="this queue"):
            queue.joined(connection).submit("t")
        admin.execute(f"DROP DATABASE {DATABASES}_{schema} WITH (FORCE)")
    assert queue.list_jobs() == []


def _query(conninfo):
    from urllib.parse import urlencode

    return urlencode(psycopg.conninfo.conninfo_to_dict(conninfo))


def test_a_connection_that_cannot_be_joined_is_refused(queue, connection, postgres_url):
    for wrong in (None, "postgresql://", object()):
        with pytest.raises(InvalidArgumentError, match=r"psycopg\.Connection"):
            queue.joined(wrong)
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with pytest.raises(InvalidArgumentError, match="read committed"):
        queue.joined(connection).submit("t")
    connection.rollback()
    connection.isolation_level = None
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("SELECT 1 / 0")
    with pytest.raises(InvalidArgumentError, match="rolled back"):
        queue.joined(connection).submit("t")
    connection.rollback()
    closed = psycopg.connect(postgres_url)
    closed.close()
    with pytest.raises(InvalidArgumentError, match="closed"):
        queue.joined(closed).submit("t")


def test_an_expired_scope_is_obeyed(queue, connection):
    """Q54."""
    with cancel_scope(timeout=0), pytest.raises(OperationCancelledError):
        queue.joined(connection).submit("t")


def test_a_clock_of_ones_own_gives_the_times(open_store, connection):
    from penstock.testing import ManualClock

    clock = ManualClock()
    with Queue(open_store(clock=clock)) as queue:
        stored = queue.joined(connection).submit("t", delay=5)
        assert (stored.created_at, (stored.run_at - clock.now()).total_seconds()) == (clock.now(), 5)
