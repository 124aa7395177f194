"""Submission inside a transaction of SQLAlchemy's or asyncio's."""

import asyncio
import subprocess
import sys
import threading

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

import penstock.aio
from penstock import (
    BackendError,
    DependencyError,
    Flow,
    InvalidArgumentError,
    Job,
    JobExistsError,
    Key,
    Queue,
    QueueClosedError,
)
from penstock.aio import AsyncQueue


class Base(orm.DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)


@pytest.fixture
def queue(backend):
    with Queue(backend) as queue:
        yield queue


def sqlalchemy_url(url, driver="psycopg"):
    return url.replace("postgresql://", f"postgresql+{driver}://")


@pytest.fixture
def engine(postgres_url, schema, queue):
    engine = sa.create_engine(
        sqlalchemy_url(postgres_url), execution_options={"schema_translate_map": {None: schema}}
    )
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def run_async(postgres_url, schema, engine, backend):
    """Runs a coroutine function of an asynchronous queue and an engine."""

    def run(function):
        async def main():
            queue = AsyncQueue(Queue(backend))
            own = create_async_engine(
                sqlalchemy_url(postgres_url), execution_options={"schema_translate_map": {None: schema}}
            )
            try:
                await asyncio.wait_for(function(queue, own), 60)
            finally:
                await own.dispose()

        asyncio.run(main())

    return run


def job(name, **fields):
    return Job(id=name, type="t", **fields)


def ids(queue):
    return sorted(each.id for each in queue.list_jobs())


# -- sessions ---------------------------------------------------------------------------------------------------


def test_a_sessions_commit_stores_row_and_job_together(queue, engine):
    with orm.Session(engine) as session:
        joined = queue.joined(session)
        session.add(Order(id=1))
        stored = joined.submit("invoice", {"order": 1}, tags=["red"])
        assert ids(queue) == []
        session.commit()
        # A session takes another connection for its next transaction; it is joined again.
        joined.enqueue_job(job("second"))
        session.commit()
        assert session.scalars(sa.select(Order.id)).all() == [1]
    assert ids(queue) == sorted([stored.id, "second"])


def test_a_sessions_rollback_leaves_neither(queue, engine):
    with orm.Session(engine) as session:
        session.add(Order(id=1))
        queue.joined(session).submit("invoice")
        queue.joined(session).enqueue_jobs([job(f"many{number}", tags=("red",)) for number in range(50)])
        session.rollback()
        assert session.scalars(sa.select(Order.id)).all() == []
    assert ids(queue) == []
    assert queue.read_journal() == []


@pytest.mark.parametrize("ending", ["close", "error", "begin"])
def test_a_session_that_closes_without_a_commit_leaves_nothing(queue, engine, ending):
    if ending == "close":
        session = orm.Session(engine)
        queue.joined(session).submit("t")
        session.close()
    elif ending == "error":
        with pytest.raises(ZeroDivisionError), orm.Session(engine) as session, session.begin():
            queue.joined(session).submit("t")
            raise ZeroDivisionError
    else:
        with orm.Session(engine) as session, session.begin() as transaction:
            queue.joined(session).submit("t")
            transaction.rollback()
    assert ids(queue) == []


def test_savepoints_of_the_session_take_their_jobs_with_them(queue, engine):
    with orm.Session(engine) as session, session.begin():
        joined = queue.joined(session)
        joined.enqueue_job(job("before"))
        with session.begin_nested() as savepoint:
            joined.enqueue_job(job("undone", key=Key("k")))
            savepoint.rollback()
        with session.begin_nested():
            session.add(Order(id=2))
            joined.enqueue_job(job("kept"))
            with pytest.raises(JobExistsError):
                joined.enqueue_job(job("before"))
            with session.begin_nested():
                joined.enqueue_job(job("deeper", key=Key("k")))
        joined.enqueue_job(job("after", after=("kept",)))
    assert ids(queue) == ["after", "before", "deeper", "kept"]
    assert [each.id for each in queue.claim_jobs("w", limit=9)] == ["before", "kept", "deeper"]


def test_keyed_dependent_and_flowing_jobs_join_a_session(queue, engine):
    queue.enqueue_job(job("first", key=Key("k")))
    with orm.Session(engine) as session, session.begin():
        joined = queue.joined(session)
        joined.enqueue_job(job("second", key=Key("k")))
        joined.enqueue_flow(Flow(job("parent"), [job("child")]))
        with pytest.raises(DependencyError):
            joined.enqueue_job(job("lost", after=("nobody",)))
        assert joined.submit("t", idempotency_key="once") == joined.submit("t", idempotency_key="once")
    assert [each.id for each in queue.claim_jobs("w", key=Key("k"))] == ["first"]
    assert "child" in {each.id for each in queue.claim_jobs("w", limit=9)}
    assert "parent" not in {each.id for each in queue.claim_jobs("w", limit=9)}


def test_a_connection_of_an_engine_is_joined_in_its_own_transaction(queue, engine):
    with engine.connect() as connection:
        queue.joined(connection).enqueue_job(job("undone"))  # begins, as a first statement would
        connection.rollback()
        queue.joined(connection).enqueue_job(job("first"))
        connection.commit()
        with connection.begin():
            queue.joined(connection).enqueue_job(job("second"))
    with engine.begin() as connection:
        queue.joined(connection).enqueue_job(job("third"))
    assert ids(queue) == ["first", "second", "third"]


def test_a_session_inside_an_outer_transaction_as_tests_use_it(queue, engine):
    with engine.connect() as connection:
        outer = connection.begin()
        with orm.Session(connection, join_transaction_mode="create_savepoint") as session:
            queue.joined(session).submit("t")
            session.commit()
            assert ids(queue) == []
        outer.rollback()
    assert ids(queue) == []


def test_a_scoped_session_is_joined(queue, engine):
    session = orm.scoped_session(orm.sessionmaker(engine))
    queue.joined(session).enqueue_job(job("a"))
    session.commit()
    session.remove()
    assert ids(queue) == ["a"]


def test_many_requests_leave_no_thread_and_ask_whose_database_it_is_once(queue, engine):
    asked = []
    connections = queue.backend._store._joinable
    ask = connections._ask
    connections._ask = lambda: asked.append(1) or ask()
    before = threading.active_count()
    for _ in range(20):
        with orm.Session(engine) as session, session.begin():
            queue.joined(session).submit("t")
    assert (len(asked), threading.active_count()) == (1, before)
    assert len(connections._seen) == 1


# -- those that wait --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same store object", "another"])
def test_the_commit_itself_tells_whoever_waits(open_store, queue, engine, elsewhere):
    hints = (open_store() if elsewhere else queue.backend)._store.notifications
    told = threading.Event()
    stop = hints.watch(told.set)
    assert told.wait(20), "a listener looks once when it begins"
    told.clear()
    try:
        with orm.Session(engine) as session:
            queue.joined(session).submit("t")
            session.rollback()
            queue.joined(session).submit("t")
            assert not told.wait(0.2)
            session.commit()
            assert told.wait(20)
    finally:
        stop()


def test_a_joined_transaction_keeps_no_listener_from_coming(open_store, queue, engine):
    with orm.Session(engine) as session:
        queue.joined(session).submit("t")  # nobody listens yet
        told = threading.Event()
        stop = open_store()._store.notifications.watch(told.set)
        try:
            assert told.wait(20)
        finally:
            stop()
        session.commit()


# -- asyncio ----------------------------------------------------------------------------------------------------


def test_an_async_session_is_joined(run_async, queue):
    async def use(aqueue, engine):
        async with AsyncSession(engine) as session:
            joined = aqueue.joined(session)
            session.add(Order(id=1))
            await joined.submit("undone", {"order": 1}, key="k")
            await session.rollback()
            session.add(Order(id=1))
            await joined.enqueue_job(job("a", key=Key("k")))
            async with session.begin_nested() as savepoint:
                await joined.enqueue_job(job("b"))
                await savepoint.rollback()
            with pytest.raises(JobExistsError):
                await joined.enqueue_jobs([job("x"), job("a")])
            await joined.enqueue_jobs([job(f"many{n:02}", tags=("red",), payload=b"data") for n in range(30)])
            await asyncio.gather(*(joined.enqueue_job(job(f"side{n}")) for n in range(5)))
            await joined.enqueue_job(job("last", after=("a",)))
            assert (await joined.get_job("a")).key == Key("k")
            assert await aqueue.list_jobs() == []
            await session.commit()
            assert (await session.scalars(sa.select(Order.id))).all() == [1]

    run_async(use)
    found = ids(queue)
    assert len(found) == 37
    assert not {"b", "x"} & set(found)


def test_async_connections_and_scoped_sessions_are_joined(run_async, queue, postgres_url):
    async def use(aqueue, engine):
        async with engine.connect() as connection:
            await aqueue.joined(connection).enqueue_job(job("undone"))
            await connection.rollback()
            await aqueue.joined(connection).enqueue_job(job("a"))
            await connection.commit()
        scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        await aqueue.joined(scoped).enqueue_job(job("b"))
        await scoped.commit()
        await scoped.remove()
        async with await psycopg.AsyncConnection.connect(postgres_url) as own:
            joined = aqueue.joined(own)
            async with own.transaction():
                await joined.enqueue_job(job("c"))
                async with own.transaction(force_rollback=True):
                    await joined.enqueue_job(job("d"))
            await joined.close()
            with pytest.raises(QueueClosedError):
                await joined.enqueue_job(job("e"))
        assert (await aqueue.get_job("c")).id == "c"  # the queue itself stays open

    run_async(use)
    assert ids(queue) == ["a", "b", "c"]


def test_the_loop_goes_on_while_a_joined_submission_waits_for_a_lock(run_async, queue, engine):
    async def use(aqueue, own):
        with orm.Session(engine) as holder:
            queue.joined(holder).enqueue_job(job("first", key=Key("k")))
            async with AsyncSession(own) as session:
                waiting = asyncio.create_task(aqueue.joined(session).enqueue_job(job("second", key=Key("k"))))
                for _ in range(20):
                    await asyncio.sleep(0.01)
                assert not waiting.done()
                holder.commit()
                await waiting
                await session.commit()

    run_async(use)
    assert ids(queue) == ["first", "second"]


def test_a_plain_session_may_be_used_from_asyncio_too(run_async, queue, engine):
    async def use(aqueue, _own):
        with orm.Session(engine) as session, session.begin():
            await aqueue.joined(session).enqueue_job(job("a"))

    run_async(use)
    assert ids(queue) == ["a"]


# -- what cannot be joined --------------------------------------------------------------------------------------


def test_what_belongs_to_asyncio_is_refused_by_the_plain_queue(queue, run_async, postgres_url):
    async def use(_aqueue, engine):
        own = await psycopg.AsyncConnection.connect(postgres_url)
        async with AsyncSession(engine) as session, engine.connect() as connection, own:
            for each in (session, connection, own):
                with pytest.raises(InvalidArgumentError, match=r"penstock\.aio") as caught:
                    queue.joined(each)
                assert caught.value.field == "connection"

            def inside(plain):
                with pytest.raises(InvalidArgumentError, match=r"penstock\.aio"):
                    queue.joined(plain).submit("t")

            await session.run_sync(inside)

    run_async(use)


def test_an_engine_has_no_transaction_to_join(queue, engine):
    for wrong in (engine, orm.sessionmaker(engine), sa.text("x")):
        with pytest.raises(InvalidArgumentError, match=r"psycopg\.Connection.*SQLAlchemy"):
            queue.joined(wrong)


def test_another_driver_is_refused_by_name(queue, postgres_url):
    import psycopg2

    connection = psycopg2.connect(postgres_url)
    try:
        with pytest.raises(InvalidArgumentError, match="psycopg2 is another driver"):
            queue.joined(connection)
    finally:
        connection.close()
    engine = sa.create_engine(sqlalchemy_url(postgres_url, "psycopg2"))
    with orm.Session(engine) as session, pytest.raises(InvalidArgumentError, match=r"postgresql\+psycopg2"):
        queue.joined(session).submit("t")
    engine.dispose()


def test_asyncpg_is_refused_by_name(queue, backend, postgres_url):
    async def main():
        aqueue = AsyncQueue(queue)
        engine = create_async_engine(sqlalchemy_url(postgres_url, "asyncpg"))
        async with AsyncSession(engine) as session:
            with pytest.raises(InvalidArgumentError, match=r"postgresql\+asyncpg"):
                await aqueue.joined(session).submit("t")
            raw = await (await session.connection()).get_raw_connection()
            with pytest.raises(InvalidArgumentError, match="asyncpg is another driver"):
                aqueue.joined(raw.driver_connection)
        await engine.dispose()

    asyncio.run(main())


def test_a_session_of_another_database_is_refused(queue, postgres_database, tmp_path):
    for url, words in (
        (sqlalchemy_url(postgres_database), "database of this queue"),
        (f"sqlite:///{tmp_path}/other.db", r"sqlite\+pysqlite"),
    ):
        engine = sa.create_engine(url)
        with orm.Session(engine) as session, pytest.raises(InvalidArgumentError, match=words):
            queue.joined(session).submit("t")
        engine.dispose()


def test_a_session_without_a_usable_transaction_is_refused(queue, engine, postgres_url):
    autocommit = sa.create_engine(sqlalchemy_url(postgres_url), isolation_level="AUTOCOMMIT")
    with orm.Session(autocommit) as session, pytest.raises(InvalidArgumentError, match="AUTOCOMMIT"):
        queue.joined(session).submit("t")
    autocommit.dispose()
    repeatable = engine.execution_options(isolation_level="REPEATABLE READ")
    with orm.Session(repeatable) as session, pytest.raises(InvalidArgumentError, match="read committed"):
        queue.joined(session).submit("t")
    with orm.Session() as session, pytest.raises(InvalidArgumentError, match="cannot be joined"):
        queue.joined(session).submit("t")
    with orm.Session(engine, autobegin=False) as session:
        with pytest.raises(InvalidArgumentError, match="cannot be joined"):
            queue.joined(session).submit("t")
        with session.begin():
            queue.joined(session).enqueue_job(job("begun"))
    with orm.Session(engine) as session:
        with pytest.raises(sa.exc.DBAPIError):
            session.execute(sa.text("SELECT 1 / 0"))
        with pytest.raises(InvalidArgumentError, match="rolled back"):
            queue.joined(session).submit("t")
    connection = engine.connect()
    connection.close()
    with pytest.raises(InvalidArgumentError, match="closed"):
        queue.joined(connection).submit("t")
    nowhere = sa.create_engine("postgresql+psycopg://localhost:1/nothing?connect_timeout=1")
    with orm.Session(nowhere) as session, pytest.raises(BackendError) as caught:
        queue.joined(session).submit("t")
    assert caught.value.retryable
    assert ids(queue) == ["begun"]


@pytest.mark.parametrize("url", ["memory:", "sqlite:///{}/jobs.db"])
def test_a_store_that_is_not_postgresql_says_so(engine, tmp_path, url):
    with penstock.connect(url.format(tmp_path)) as queue, orm.Session(engine) as session:
        with pytest.raises(InvalidArgumentError, match="only PostgreSQL"):
            queue.joined(session)

        async def use():
            with pytest.raises(InvalidArgumentError, match="only PostgreSQL"):
                AsyncQueue(queue).joined(session)

        asyncio.run(use())


def test_sqlalchemy_is_not_imported_for_a_psycopg_connection(postgres_url, schema, queue):
    program = f"""
import sys, psycopg, penstock, penstock.aio
with penstock.connect({postgres_url!r}, schema={schema!r}) as queue, psycopg.connect({postgres_url!r}) as connection:
    queue.joined(connection).submit("t")
    for wrong in (object(), None):
        try:
            queue.joined(wrong)
        except penstock.InvalidArgumentError:
            pass
assert "sqlalchemy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert len(ids(queue)) == 1
