"""What whoever submitted a job can do with it."""

import asyncio
import threading

import pytest
from tests.app.working import working
from tests.waiting import until

import penstock
from penstock import (
    App,
    JobFailedError,
    JobNotFoundError,
    JobStatus,
    OperationCancelledError,
    QueueClosedError,
    RetryPolicy,
)
from penstock.testing import inline


def test_a_result_comes_from_another_thread_of_this_process(stored_app):
    @stored_app.job
    def double(number: int) -> int:
        return 2 * number

    with working(stored_app):
        assert double.submit(21).result(timeout=30) == 42


def test_a_result_comes_from_another_app_on_the_same_store(make_app, url):
    """As between a program and a worker elsewhere: the one only learns from the store what the other did."""
    here, there = make_app(url), make_app(url)
    mine = here.job(type="double")(lambda number: None)
    there.job(type="double")(lambda number: 2 * number)
    with working(there):
        assert mine.submit(21).result(timeout=30) == 42


def test_a_result_that_is_there_already_needs_no_waiting(app):
    @app.job
    def hello() -> str:
        return "hi"

    with inline(app):
        handle = hello.submit()
        assert handle.result(timeout=0) == "hi"
        assert handle.wait(0).status is handle.status is JobStatus.COMPLETED


def test_nothing_is_a_result_too(app):
    @app.job
    def nothing() -> None: ...

    with inline(app):
        assert nothing.submit().result() is None


def test_a_wait_ends_in_time_and_the_job_goes_on(app):
    hello = app.job(type="hello")(lambda: None)
    handle = hello.submit()
    with pytest.raises(TimeoutError, match="has not ended within"):
        handle.result(timeout=0.05)
    with pytest.raises(TimeoutError):
        handle.wait(0)
    assert handle.status is JobStatus.INITIAL_PENDING


def test_a_job_that_failed_says_so(app):
    @app.job(retry=RetryPolicy(max_attempts=1))
    def fails() -> None:
        raise ValueError("no such picture")

    with inline(app):
        with pytest.raises(
            JobFailedError, match=r"ended dead_letter: ValueError: no such picture$"
        ) as caught:
            fails.submit().result()
        assert caught.value.job.status is JobStatus.DEAD_LETTER
        assert "Traceback" in caught.value.job.error_message


def test_a_waiting_job_is_cancelled_at_once(app):
    hello = app.job(type="hello")(lambda: None)
    handle = hello.submit()
    assert handle.cancel()
    assert not handle.cancel()
    with pytest.raises(JobFailedError, match="unscheduled"):
        handle.result()


def test_the_handle_of_a_deleted_job_says_that_it_is_gone(app):
    hello = app.job(type="hello")(lambda: None)
    handle = hello.submit()
    handle.cancel()
    app.queue.delete_jobs(job_ids=[handle.id])
    for call in (handle.job, handle.result, handle.wait, lambda: app.handle("nobody").result(1)):
        with pytest.raises(JobNotFoundError):
            call()


def test_a_job_that_is_deleted_while_it_is_waited_for_ends_the_wait(app):
    handle = app.job(type="hello")(lambda: None).submit()
    app.queue.block()

    def remove() -> None:
        app.queue.cancel_jobs(job_ids=[handle.id])
        app.queue.delete_jobs(job_ids=[handle.id])

    timer = threading.Timer(0.1, remove)
    timer.start()
    with pytest.raises((JobNotFoundError, JobFailedError)):
        handle.result(30)
    timer.join()


def test_a_scope_ends_a_wait(app):
    handle = app.job(type="hello")(lambda: None).submit()
    with pytest.raises(OperationCancelledError), penstock.cancel_scope(0.05):
        handle.result()
    with penstock.cancel_scope() as scope:
        timer = threading.Timer(0.05, scope.cancel)
        timer.start()
        with pytest.raises(OperationCancelledError):
            handle.result(30)
        timer.join()


def test_closing_the_app_ends_a_wait(app):
    handle = app.job(type="hello")(lambda: None).submit()
    timer = threading.Timer(0.1, app.close)
    timer.start()
    with pytest.raises(QueueClosedError):
        handle.result(30)
    timer.join()


def test_handles_are_awaited_without_blocking_the_loop(stored_app):
    @stored_app.job
    async def double(number: int) -> int:
        await asyncio.sleep(0.01)
        return 2 * number

    @stored_app.job(retry=RetryPolicy(max_attempts=1))
    def fails() -> None:
        raise ValueError("no")

    async def main() -> list[object]:
        handles = [double.submit(number) for number in range(20)]
        return await asyncio.gather(*handles, fails.submit(), return_exceptions=True)

    with working(stored_app, concurrency=2):
        *numbers, failed = asyncio.run(main())
    assert numbers == [2 * number for number in range(20)]
    assert isinstance(failed, JobFailedError)


def test_an_awaited_handle_can_be_given_up(app):
    handle = app.job(type="hello")(lambda: None).submit()

    async def main() -> None:
        async with asyncio.timeout(0.05):
            await handle

    with pytest.raises(TimeoutError):
        asyncio.run(main())


def test_the_thread_that_polls_for_results_ends_with_the_last_wait(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.app._waiting.LINGER_SECONDS", 0.1)
    earlier = set(threading.enumerate())

    def polling():
        return [
            each for each in threading.enumerate() if each.name == "penstock-results" and each not in earlier
        ]

    with App(f"sqlite:///{tmp_path}/jobs.db") as app:
        task = app.job(type="hello")(lambda: None)
        for _ in range(2):  # a thread that has ended is replaced
            handle = task.submit()
            waiting = threading.Thread(target=handle.wait, daemon=True)
            waiting.start()
            (thread,) = until(polling)
            handle.cancel()
            waiting.join(30)
            thread.join(30)
            assert not thread.is_alive()
