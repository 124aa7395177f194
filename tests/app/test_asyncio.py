"""Tasks submitted from coroutines, and inside transactions of the caller's own."""

import asyncio
import threading

import pytest
from tests.app import jobs
from tests.app.working import working

import penstock
from penstock import InvalidArgumentError, QueueClosedError, Worker
from penstock.app.client import QueueClient
from penstock.testing import in_memory, inline


class GatedClient(QueueClient):
    """Stores jobs once the gate is open."""

    def __init__(self, queue):
        super().__init__(queue)
        self.gate = threading.Event()

    def submit(self, jobs, delay=None):
        assert self.gate.wait(20), "the loop was blocked"
        return super().submit(jobs, delay)


@pytest.fixture
def gated(app):
    queue = penstock.connect("memory:")
    client = GatedClient(queue)
    app.stand_in(client)
    yield client
    client.gate.set()
    app.stand_in(None)
    client.close()
    queue.close()


def test_jobs_are_submitted_and_awaited_in_a_loop(stored_app):
    @stored_app.job
    def double(number: int) -> int:
        return 2 * number

    async def main():
        async with stored_app:
            with working(stored_app):
                handle = await double.submit_async(21)
                many = await double.submit_many_async([{"number": 1}, {"number": 2}])
                many.append(await double.options(priority=0).submit_async(number=3))
                assert await handle == 42
                assert await asyncio.gather(*many) == [2, 4, 6]
                assert (await stored_app.aio.get_job(handle.id)).result == b"42"
                assert await double.submit_many_async([]) == []

    asyncio.run(main())


def test_the_loop_goes_on_while_a_job_is_stored(app, gated):
    hello = app.job(type="hello")(lambda: None)

    async def main():
        submitting = asyncio.create_task(hello.submit_async())
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert not submitting.done()
        gated.gate.set()  # by the loop, which nobody blocks
        assert (await submitting).job().type == "hello"

    asyncio.run(main())


def test_a_cancelled_submission_that_has_begun_is_ended_first(app, gated):
    """So nothing goes on behind the back of a cancelled task."""
    hello = app.job(type="hello")(lambda: None)

    async def main():
        submitting = asyncio.create_task(hello.submit_async())
        await asyncio.sleep(0.05)
        submitting.cancel()
        await asyncio.sleep(0.05)
        assert not submitting.done()
        gated.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await submitting

    asyncio.run(main())


def test_wrong_arguments_are_refused_before_anything_is_stored(app):
    @app.job
    def double(number: int) -> int:
        return 2 * number

    async def main():
        with pytest.raises(InvalidArgumentError):
            await double.submit_async("three")
        with pytest.raises(InvalidArgumentError, match=r"arguments\[1\]|item 1|1"):
            await double.submit_many_async([{"number": 1}, {"number": "x"}])

    with in_memory(app) as queue:
        asyncio.run(main())
        assert queue.list_jobs() == []


def test_inline_and_in_memory_work_in_a_loop(app):
    @app.job
    async def double(number: int) -> int:
        return 2 * number

    async def main():
        return await (await double.submit_async(4))

    with inline(app):
        assert asyncio.run(main()) == 8


def test_an_app_that_was_left_opens_again(make_app, tmp_path):
    app = make_app(f"sqlite:///{tmp_path}/jobs.db")
    hello = app.job(type="hello")(lambda: None)

    async def main():
        async with app:
            queue = app.queue
            await hello.submit_async()
        with pytest.raises(QueueClosedError):
            queue.list_jobs()
        async with app:
            await hello.submit_async()
            return len(app.queue.list_jobs())

    before = threading.active_count()
    assert asyncio.run(main()) == 2
    assert asyncio.run(main()) == 4
    app.close()
    for thread in threading.enumerate():
        if thread.name.startswith("penstock-aio"):
            thread.join(10)
    assert threading.active_count() <= before


def test_a_store_that_cannot_be_opened_is_known_at_the_start(make_app):
    async def main():
        async with make_app("sqlite:////nowhere/at/all/jobs.db"):
            pass

    with pytest.raises(penstock.BackendError):
        asyncio.run(main())


@pytest.mark.process
def test_a_coroutine_in_a_process_of_its_own_submits_too(tmp_path):
    jobs.app.url = f"sqlite:///{tmp_path}/jobs.db"
    try:
        handle = jobs.submits_async.submit(number=4)
        Worker(jobs.app, types=["double", "submits_async"], concurrency=2).run(until_idle=True)
        assert handle.result(0) == [8, 10]
    finally:
        jobs.app.close()


# -- joined -----------------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_a_task_joins_a_session(make_app, postgres_database):
    sa = pytest.importorskip("sqlalchemy")
    from sqlalchemy.orm import Session

    app = make_app(postgres_database)
    invoice = app.job(type="invoice")(lambda order: order)
    engine = sa.create_engine(postgres_database.replace("postgresql:", "postgresql+psycopg:"))
    with Session(engine) as session:
        invoice.joined(session).submit(order=1)
        session.rollback()
        task = invoice.joined(session).options(tags=["red"])
        handle = task.submit(order=2)
        many = task.submit_many([{"order": 3}, {"order": 4}])
        assert app.queue.list_jobs() == []
        session.commit()
    engine.dispose()
    assert [each.id for each in app.queue.list_jobs(tags=["red"])] == [handle.id, *(each.id for each in many)]
    with working(app):
        assert handle.result(timeout=30) == 2


@pytest.mark.postgres
def test_a_task_joins_an_async_session(make_app, postgres_database):
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    app = make_app(postgres_database)
    invoice = app.job(type="invoice")(lambda order: order)

    async def main():
        engine = create_async_engine(postgres_database.replace("postgresql:", "postgresql+psycopg:"))
        async with app, AsyncSession(engine) as session:
            await invoice.joined(session).submit_async(order=1)
            await session.rollback()
            async with session.begin():
                handle = await invoice.joined(session).submit_async(order=2)
                await invoice.joined(session).submit_many_async([{"order": 3}, {"order": 4}])
            assert len(await app.aio.list_jobs()) == 3
            with working(app):
                assert await handle == 2
            with pytest.raises(InvalidArgumentError, match=r"penstock\.aio"):
                invoice.joined(session).submit(order=5)
        await engine.dispose()

    asyncio.run(main())


def test_a_task_cannot_join_where_there_is_no_postgresql(app):
    invoice = app.job(type="invoice")(lambda order: order)
    with in_memory(app), pytest.raises(InvalidArgumentError, match="only PostgreSQL"):
        invoice.joined(object()).submit(order=1)
