"""Waiting for many jobs at once: `gather` and `as_completed`, on threads, in asyncio and inside jobs."""

import asyncio
import threading
import time
from operator import attrgetter

import pytest
from tests.app import jobs
from tests.waiting import until

import penstock
from penstock import (
    InvalidArgumentError,
    JobFailedError,
    JobNotFoundError,
    OperationCancelledError,
    RetryPolicy,
    Worker,
)
from penstock.testing import drain, in_memory


@pytest.fixture
def double(app):
    """A task that doubles even numbers and refuses odd ones."""

    @app.job(retry=RetryPolicy(max_attempts=1))
    def double(number: int) -> int:
        if number % 2:
            raise ValueError(f"{number} is odd")
        return 2 * number

    return double


def on_a_thread(call, *args):
    """Run a call on a thread; return it and where its outcome comes."""
    outcome = []

    def run():
        try:
            outcome.append(call(*args))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def test_results_come_in_the_order_of_the_handles(app, double):
    with in_memory(app):
        handles = double.submit_many([{"number": 2 * n} for n in range(20)])
        drain(app)
        assert penstock.gather(handles) == [4 * n for n in range(20)]
        assert penstock.gather(iter(reversed(handles)), timeout="5s")[0] == 76
        assert penstock.gather([]) == []
        assert penstock.gather([handles[3], handles[3], app.handle(handles[3].id)]) == [12, 12, 12]
        assert penstock.gather(handles[:1]) == [0]


def test_a_gathering_that_waits_ends_when_the_last_job_has(app, double):
    with in_memory(app):
        handles = [double.submit(number=2 * n) for n in range(3)]
        thread, outcome = on_a_thread(penstock.gather, handles, 30)
        drain(app)
        thread.join(30)
        assert outcome == [[0, 4, 8]]


def test_the_first_failure_is_raised_and_the_others_go_on(app, double):
    with in_memory(app) as queue:
        failing = double.options(priority=0).submit(number=1)
        handles = [double.options(delay=3600).submit(number=2), failing]
        thread, outcome = on_a_thread(penstock.gather, handles, 30)
        drain(app, advance=False)
        thread.join(30)
        assert isinstance(outcome[0], JobFailedError)
        assert outcome[0].job.id == failing.id
        assert queue.get_job(handles[0].id).status == "initial_pending"


def test_errors_are_results_if_the_caller_wants_them(app, double):
    with in_memory(app) as queue:
        handles = [double.submit(number=n) for n in range(4)]
        drain(app)
        queue.delete_jobs(job_ids=[handles[2].id])
        found = penstock.gather(handles, return_exceptions=True)
        assert found[0] == 0
        assert isinstance(found[1], JobFailedError)
        assert isinstance(found[2], JobNotFoundError)
        assert isinstance(found[3], JobFailedError)
        with pytest.raises(JobNotFoundError):
            penstock.gather([handles[2]])


def test_a_timeout_says_how_many_have_not_ended_and_why(app, double):
    with in_memory(app):
        done = double.submit(number=2)
        drain(app)
        waiting = [double.submit(number=4), double.submit(number=6)]
        with pytest.raises(
            TimeoutError, match=r"2 of 3 jobs have not ended within 0\.05 s; they go on"
        ) as late:
            penstock.gather([done, *waiting], timeout=0.05)
        assert "no living worker claims the type 'double'" in str(late.value)
        with pytest.raises(TimeoutError, match="1 of 2 jobs"):
            list(penstock.as_completed([done, waiting[0]], timeout="10ms"))
        with pytest.raises(TimeoutError, match="1 of 1 jobs"):
            penstock.gather(waiting[:1], timeout=0)


def test_a_scope_ends_the_wait(app, double):
    with in_memory(app), pytest.raises(OperationCancelledError), penstock.cancel_scope(timeout=0.05):
        penstock.gather([double.submit(number=2)])


def test_handles_come_as_their_jobs_end(app, double):
    with in_memory(app):
        late = double.options(delay=60).submit(number=2)
        early = double.submit(number=4)
        failed = double.submit(number=1)
        drain(app, advance=False)
        found = penstock.as_completed([late, early, failed], timeout=30)
        first = [next(found), next(found)]
        assert first == [early, failed]
        assert first[0].result() == 8
        with pytest.raises(JobFailedError):
            first[1].result()
        drain(app)
        assert [handle.result() for handle in found] == [4]
        assert early.result() == 8  # also a second time


def test_handles_of_several_apps_are_waited_for_together(make_app, tmp_path):
    made = []
    for name in ("one", "two"):
        app = make_app(f"sqlite:///{tmp_path}/{name}.db")
        made.append((app, app.job(type=name)(lambda: None)))
    handles = [task.submit() for _, task in made] * 2
    thread, outcome = on_a_thread(penstock.gather, handles, 60)
    for app, _ in made:
        Worker(app, isolation="thread").run(until_idle=True)
    thread.join(60)
    assert outcome == [[None] * 4]


@pytest.mark.parametrize(
    "wrong", [None, 5, "text", {"a": 1}, [None], ["id"], object()], ids=lambda value: type(value).__name__
)
def test_what_is_no_handle_is_refused_at_once(wrong):
    for call in (
        penstock.gather,
        penstock.as_completed,
        penstock.aio.as_completed,
        lambda handles: asyncio.run(penstock.aio.gather(handles)),
    ):
        with pytest.raises(InvalidArgumentError, match="handles must"):
            call(wrong)


def test_one_handle_or_a_wrong_timeout_is_refused_at_once(app, double):
    with in_memory(app):
        handle = double.submit(number=2)
        with pytest.raises(InvalidArgumentError, match="iterable of JobHandle"):
            penstock.gather(handle)
        with pytest.raises(InvalidArgumentError, match="timeout"):
            penstock.gather([handle], timeout="soon")
        with pytest.raises(InvalidArgumentError, match="timeout"):
            penstock.as_completed([handle], timeout=-1)


def test_thousands_are_asked_for_with_a_few_questions(app, double):
    with in_memory(app) as queue:
        handles = double.submit_many([{"number": 2}] * 10_000)
        ids = [handle.id for handle in handles]
        for start in range(0, 10_000, 2_000):
            queue.claim_jobs("w", limit=2_000)
            queue.complete_jobs(dict.fromkeys(ids[start : start + 2_000], b"4"))
        asked = count_calls(queue.backend, "runtime.statuses", "get_jobs", "get_job")
        assert penstock.gather(handles) == [4] * 10_000
        assert asked == {"runtime.statuses": 1, "get_jobs": 20}
        asked.clear()
        assert sum(handle.result() for handle in penstock.as_completed(handles)) == 40_000
        assert asked == {"runtime.statuses": 1, "get_jobs": 20}


def test_thousands_that_wait_share_one_thread_and_few_questions(app, double):
    with in_memory(app) as queue:
        handles = double.submit_many([{"number": 2}] * 2_000)
        before = threading.active_count()
        asked = count_calls(queue.backend, "runtime.statuses")
        thread, outcome = on_a_thread(penstock.gather, handles, 120)
        until(lambda: asked.get("runtime.statuses", 0) >= 2)
        assert threading.active_count() <= before + 2
        queue.claim_jobs("w", limit=2_000)
        for handle in handles:
            queue.complete_job(handle.id, b"4")
        thread.join(120)
        assert outcome == [[4] * 2_000]


def count_calls(backend, *names):
    """Count the calls of some verbs of a backend, from now on."""
    counts = {}

    def counted(name):
        verb = attrgetter(name)(backend)

        def call(*args, **kwargs):
            counts[name] = counts.get(name, 0) + 1
            return verb(*args, **kwargs)

        return call

    for name in names:
        role, _, verb = name.rpartition(".")
        setattr(attrgetter(role)(backend) if role else backend, verb, counted(name))
    return counts


def test_asyncio_gathers_without_blocking_its_loop(app, double):
    async def main():
        handles = await double.submit_many_async([{"number": 2 * n} for n in range(5)])
        gathering = asyncio.create_task(penstock.aio.gather(handles, timeout="60s"))
        ticks = 0
        while ticks < 3:  # the loop goes on
            await asyncio.sleep(0.01)
            ticks += 1
        assert not gathering.done()
        await asyncio.to_thread(drain, app)
        assert await gathering == [4 * n for n in range(5)]
        assert [handle.result() async for handle in penstock.aio.as_completed(handles)] == [0, 4, 8, 12, 16]
        failing = await double.submit_async(number=1)
        waiting = await double.options(delay=3600).submit_async(number=2)
        await asyncio.to_thread(drain, app, advance=False)
        with pytest.raises(JobFailedError):
            await penstock.aio.gather([waiting, failing])
        errors = await penstock.aio.gather([failing], return_exceptions=True)
        assert isinstance(errors[0], JobFailedError)
        with pytest.raises(TimeoutError, match="1 of 1 jobs"):
            await penstock.aio.gather([waiting], timeout=0.02)
        cancelled = asyncio.create_task(penstock.aio.gather([waiting]))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    with in_memory(app):
        asyncio.run(main())


def test_a_job_gathers_what_it_submitted_over_the_pipe_to_its_worker(tmp_path):
    jobs.app.url = f"sqlite:///{tmp_path}/jobs.db"
    try:
        handle = jobs.gather_doubles.submit(count=30)
        awaited = jobs.gather_doubles_async.submit(count=5)
        Worker(jobs.app, concurrency=4, types=["gather_doubles", "gather_doubles_async", "double"]).run(
            until_idle=True
        )
        assert handle.result(timeout=10) == [[2 * n for n in range(30)], 30, "1 of 2 jobs have not ended"]
        assert awaited.result(timeout=10) == [2 * n for n in range(5)]
    finally:
        jobs.app.close()
        jobs.app.url = None


def test_waiting_for_the_end_of_the_app_says_that_it_was_closed(make_app, tmp_path):
    app = make_app(f"sqlite:///{tmp_path}/jobs.db")
    task = app.job(type="never")(lambda: None)
    handle = task.submit()
    thread, outcome = on_a_thread(penstock.gather, [handle])
    until(lambda: any(each.name == "penstock-results" for each in threading.enumerate()))
    time_of_close = time.monotonic()
    app.close()
    thread.join(30)
    assert isinstance(outcome[0], penstock.QueueClosedError)
    assert time.monotonic() - time_of_close < 30


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_a_job_that_gathers_lends_the_only_slot_to_those_it_waits_for(tmp_path, isolation):
    jobs.app.url = f"sqlite:///{tmp_path}/jobs.db"
    try:
        handles = [jobs.gather_doubles.submit(count=3), jobs.gather_doubles_async.submit(count=3)]
        types = ["gather_doubles", "gather_doubles_async", "double"]
        Worker(jobs.app, concurrency=1, isolation=isolation, types=types).run(until_idle=True)
        assert penstock.gather(handles, timeout=10)[1] == [0, 2, 4]
    finally:
        jobs.app.close()
        jobs.app.url = None
