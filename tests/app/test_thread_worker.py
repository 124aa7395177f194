"""A worker that runs jobs on threads."""

# ruff: noqa: T201  # what handlers print is tested here

import asyncio
import contextlib
import logging
import re
import sys
import threading
import time

import pytest
from tests.app.working import working
from tests.waiting import PATIENCE, until

from penstock import (
    BackendError,
    FailureCategory,
    InvalidArgumentError,
    JobContext,
    JobFailedError,
    JobStatus,
    PermanentError,
    RetryPolicy,
    StaleAttemptError,
    TemporaryError,
    Worker,
)
from penstock.testing import check_store

ONCE = RetryPolicy(max_attempts=1)


def test_jobs_run_and_are_completed(stored_app):
    @stored_app.job
    def double(number: int) -> int:
        return 2 * number

    @stored_app.job(retry=RetryPolicy(max_attempts=2, initial_delay=0))
    def never() -> None:
        raise TemporaryError("no")

    handles = double.submit_many([{"number": number} for number in range(50)])
    never.submit()
    worker = Worker(stored_app, isolation="thread")
    assert (worker.completed, worker.failed) == (0, 0)
    worker.run(until_idle=True)
    assert (worker.completed, worker.failed) == (50, 2)
    assert [handle.result(0) for handle in handles] == [2 * number for number in range(50)]
    assert check_store(stored_app.queue.backend) == []


def test_jobs_run_at_the_same_time_up_to_the_concurrency(app):
    together = threading.Barrier(3)

    @app.job
    def meet() -> int:
        return together.wait(PATIENCE)

    handles = [meet.submit() for _ in range(3)]
    with working(app, concurrency=3):
        assert sorted(handle.result(PATIENCE) for handle in handles) == [0, 1, 2]


def test_no_more_are_taken_than_there_are_slots(app):
    gate = threading.Event()
    begun = threading.Semaphore(0)

    @app.job
    def wait() -> None:
        begun.release()
        gate.wait(PATIENCE)

    for _ in range(5):
        wait.submit()
    with working(app, concurrency=2):
        begun.acquire()
        begun.acquire()
        assert app.queue.get_job_stats().running_jobs == 2
        gate.set()
        until(lambda: app.queue.get_job_stats().completed_jobs == 5)


def test_a_worker_takes_only_its_types_and_tags(app):
    seen = []
    app.job(type="mine")(lambda: seen.append("mine"))
    app.job(type="other")(lambda: seen.append("other"))
    app.tasks["other"].submit()
    app.tasks["mine"].submit()
    app.tasks["mine"].options(tags=["gpu"]).submit()
    app.queue.submit("nobody")
    Worker(app, isolation="thread", types=["mine"], tags=["gpu"]).run(until_idle=True)
    assert seen == ["mine"]
    Worker(app, isolation="thread", types=["mine"]).run(until_idle=True)
    assert seen == ["mine", "mine"]
    Worker(app, isolation="thread").run(until_idle=True)
    assert seen == ["mine", "mine", "other"]
    assert app.queue.get_job_stats().pending_jobs == 1, "a type that nobody handles waits"


@pytest.mark.requirement("G14", "G18", "G20")
def test_until_idle_waits_for_retries(stored_app):
    @stored_app.job(retry=RetryPolicy(max_attempts=3, initial_delay=0.05))
    def shaky(context: JobContext) -> int:
        if context.attempt < 3:
            raise TemporaryError("not yet")
        return context.attempt

    handle = shaky.submit()
    Worker(stored_app, isolation="thread").run(until_idle=True)
    assert handle.result(0) == 3


def test_until_idle_misses_no_job_that_goes_to_and_fro(stored_app, monkeypatch):
    """The store's answer may be old when it comes: a job that was taken and given back meanwhile is still to be done."""

    @stored_app.job(retry=RetryPolicy(max_attempts=2, backoff="constant", initial_delay=0.5))
    def restless(context: JobContext) -> int:
        if context.attempt == 1:
            raise TemporaryError("not yet")
        return context.attempt

    backend = stored_app.queue.backend
    look = backend.runtime.has_work
    handles = []

    def slow_answer(types, tags):
        answer = look(types, tags)
        if not handles:
            assert not answer
            handles.append(restless.submit())
            until(lambda: handles[0].job().retry_count == 1)
        return answer

    monkeypatch.setattr(backend.runtime, "has_work", slow_answer)
    Worker(stored_app, isolation="thread").run(until_idle=True)
    assert handles[0].result(0) == 2


def test_until_idle_does_not_wait_for_what_is_not_ready(app):
    seen = []
    app.job(type="note")(lambda: seen.append("ran"))
    app.queue.submit("note", delay=3600)
    app.queue.submit("note", held=True)
    Worker(app, isolation="thread").run(until_idle=True)
    assert seen == []


@pytest.mark.requirement("G28")
def test_every_kind_of_end_reaches_the_store(stored_app):
    @stored_app.job(retry=ONCE)
    def end(how: str) -> str:
        if how == "permanent":
            raise PermanentError("never", code="never")
        if how == "temporary":
            raise TemporaryError("later")
        if how == "exit":
            raise SystemExit(1)
        if how == "interrupt":
            raise KeyboardInterrupt
        return how

    kinds = ["fine", "permanent", "temporary", "exit", "interrupt"]
    handles = {how: end.submit(how) for how in kinds}
    Worker(stored_app, isolation="thread").run(until_idle=True)
    found = {how: (handle.status, handle.job().error_category) for how, handle in handles.items()}
    assert found == {
        "fine": (JobStatus.COMPLETED, None),
        "permanent": (JobStatus.FAILED, FailureCategory.PERMANENT),
        "temporary": (JobStatus.DEAD_LETTER, FailureCategory.TEMPORARY),
        "exit": (JobStatus.DEAD_LETTER, FailureCategory.SYSTEM),
        "interrupt": (JobStatus.DEAD_LETTER, FailureCategory.SYSTEM),
    }
    assert check_store(stored_app.queue.backend) == []


# -- output ---------------------------------------------------------------------------------------------------------


def test_what_handlers_print_is_kept_with_their_own_job_and_passed_on(stored_app, capsys):
    """Jobs that print at the same time, in coroutines and helper threads too, are told apart."""
    turns = threading.Barrier(2)

    @stored_app.job(retry=ONCE)
    def sync(name: str) -> None:
        turns.wait(PATIENCE)
        for number in range(50):
            print(name, number)
        turns.wait(PATIENCE)
        sys.stderr.writelines([f"{name} ", "done\n"])

    @stored_app.job(retry=ONCE)
    async def coroutine() -> None:
        print("one")
        await asyncio.sleep(0)
        await asyncio.to_thread(print, "two")

    @stored_app.job(retry=ONCE)
    def fails() -> None:
        print("before it failed")
        raise PermanentError("never")

    quiet = stored_app.job(type="quiet")(lambda: None).submit()
    handles = [sync.submit("a"), sync.submit("b")]
    others = [coroutine.submit(), fails.submit()]
    before = sys.stdout, sys.stderr
    Worker(stored_app, isolation="thread").run(until_idle=True)
    assert (sys.stdout, sys.stderr) == before, "the streams are as they were"
    for name, handle in zip("ab", handles, strict=True):
        assert handle.output() == "".join(f"{name} {number}\n" for number in range(50)) + f"{name} done\n"
    assert [each.output() for each in others] == ["one\ntwo\n", "before it failed\n"]
    assert quiet.output() == ""
    printed = capsys.readouterr()
    assert "a 49\n" in printed.out
    assert "b done\n" in printed.err


def test_output_on_threads_is_bounded_and_that_of_a_stuck_job_is_kept(app, capsys):
    gate = threading.Event()

    @app.job(retry=ONCE, output=1_000)
    def loud() -> None:
        print("the beginning")
        for _ in range(100):
            print("x" * 999)
        print("the end")

    @app.job(retry=ONCE, timeout=1)  # long enough to begin on a busy machine
    def stubborn() -> None:
        print("still here")
        gate.wait(PATIENCE)

    first, second = loud.submit(), stubborn.submit()
    with working(app):
        first.result(PATIENCE)
        second.wait(PATIENCE)
        assert second.output() == "still here\n"
        gate.set()
    text = first.output()
    assert text.startswith("the beginning\n")
    assert text.endswith("the end\n")
    assert "bytes left out" in text
    assert len(text) < 1_100
    assert len(capsys.readouterr().out) > 100_000


# -- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G14", "G21")
def test_at_the_limit_the_attempt_is_failed_and_its_slot_stays_closed_until_the_thread_returns(
    stored_app, caplog
):
    gate = threading.Event()
    told = threading.Event()

    @stored_app.job(timeout=0.2, retry=ONCE)
    def stubborn(context: JobContext) -> None:
        until(lambda: context.is_cancelled)
        told.set()
        gate.wait(PATIENCE)

    quick = stored_app.job(type="quick")(lambda: "done")
    handle = stubborn.submit()
    with working(stored_app, concurrency=2) as worker:
        job = handle.wait(PATIENCE)
        assert (job.status, job.error_category) == (JobStatus.DEAD_LETTER, FailureCategory.TIMEOUT)
        assert (job.error_code, job.error_message) == ("timeout", "the execution time of 0.2 s is over")
        assert told.wait(PATIENCE)
        assert worker.stuck == 1
        assert worker._intake.stream.max_assigned_jobs == 1
        assert quick.submit().result(PATIENCE) == "done", "the other slot goes on"
        gate.set()
        until(lambda: worker.stuck == 0)
        until(lambda: worker._intake.stream.max_assigned_jobs == 2)
    assert "is stuck" in caplog.text
    assert handle.status is JobStatus.DEAD_LETTER, "what came late changed nothing"


def test_with_every_slot_stuck_nothing_is_taken(app):
    gate = threading.Event()

    @app.job(timeout=0.1, retry=ONCE)
    def stubborn() -> None:
        gate.wait(PATIENCE)

    quick = app.job(type="quick")(lambda: "done")
    stuck = stubborn.submit()
    with working(app, concurrency=1) as worker:
        stuck.wait(PATIENCE)
        until(lambda: worker.stuck == 1)
        handle = quick.submit()
        with pytest.raises(TimeoutError):
            handle.result(0.3)
        gate.set()
        assert handle.result(PATIENCE) == "done"


def test_a_coroutine_is_cancelled_at_its_limit(app):
    seen = []

    @app.job(timeout=1, retry=ONCE)  # long enough to begin on a busy machine
    async def sleeps() -> None:
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    handle = sleeps.submit()
    with working(app) as worker:
        assert handle.wait(PATIENCE).error_category is FailureCategory.TIMEOUT
        until(lambda: seen == ["cancelled"])
        until(lambda: worker.stuck == 0)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
def test_a_cancelled_job_is_told_and_stopped(make_app, url, elsewhere):
    app = make_app(url)
    begun = threading.Event()

    @app.job
    def patient(context: JobContext) -> None:
        begun.set()
        until(lambda: context.is_cancelled)
        raise RuntimeError("I was told to stop")

    handle = patient.submit()
    with working(app):
        assert begun.wait(PATIENCE)
        canceller = make_app(url).handle(handle.id) if elsewhere else handle
        assert canceller.cancel()
        job = handle.wait(PATIENCE)
    assert (job.status, job.error_category) == (JobStatus.STOPPED, FailureCategory.CANCELLED)
    with pytest.raises(JobFailedError):
        handle.result(0)
    assert check_store(app.queue.backend) == []


def test_work_that_was_done_in_spite_of_a_cancellation_counts(app):
    begun, gate = threading.Event(), threading.Event()

    @app.job
    def deaf() -> str:
        begun.set()
        gate.wait(PATIENCE)
        return "done"

    handle = deaf.submit()
    with working(app):
        assert begun.wait(PATIENCE)
        handle.cancel()
        gate.set()
        assert handle.result(PATIENCE) == "done"


def test_a_handler_that_ignores_its_cancellation_is_given_up(app):
    begun, gate = threading.Event(), threading.Event()

    @app.job
    def deaf() -> None:
        begun.set()
        gate.wait(PATIENCE)

    handle = deaf.submit()
    with working(app, concurrency=1, stop_grace=0.1) as worker:
        assert begun.wait(PATIENCE)
        handle.cancel()
        assert handle.wait(PATIENCE).status is JobStatus.STOPPED
        assert worker.stuck == 1
        gate.set()


def test_a_job_that_was_taken_away_is_told_to_end_and_its_report_is_dropped(make_app, url):
    app = make_app(url)
    begun, told = threading.Event(), threading.Event()

    @app.job(retry=RetryPolicy(max_attempts=5))
    def slow(context: JobContext) -> str:
        if context.attempt > 1:
            return f"attempt {context.attempt}"
        begun.set()
        until(lambda: context.is_cancelled)
        with contextlib.suppress(StaleAttemptError):
            context.save_checkpoint(b"stale")
            told.set()
        return "late"

    handle = slow.submit()
    with working(app) as worker:
        assert begun.wait(PATIENCE)
        app.queue.mark_worker_unresponsive(worker.name)
        assert handle.result(PATIENCE) == "attempt 2"
        until(lambda: not worker.runs())
    assert not told.is_set()
    assert handle.job().result == b'"attempt 2"'
    assert check_store(app.queue.backend) == []


def test_a_job_that_was_taken_for_lost_for_the_last_time_runs_on_and_its_result_counts(
    make_app, url, monkeypatch, caplog
):
    """F3: it cannot be claimed again, so nobody is served by ending it."""
    monkeypatch.setattr("penstock.worker._watch.STORE_POLL_SECONDS", 0.05)
    app = make_app(url)
    begun, gate = threading.Event(), threading.Event()
    seen = []

    @app.job(retry=ONCE)
    def slow(context: JobContext) -> str:
        begun.set()
        context.progress(10)
        gate.wait(PATIENCE)
        context.progress(90)
        seen.append(context.is_cancelled)
        return "true"

    handle = slow.submit()
    with working(app) as worker:
        assert begun.wait(PATIENCE)
        app.queue.backend.owners.close(app.queue._dispatcher.owner.id)
        app.queue.maintain()
        assert handle.status is JobStatus.DEAD_LETTER
        until(lambda: "was reclaimed while it runs here" in caplog.text)
        gate.set()
        until(lambda: handle.status is JobStatus.COMPLETED)
        until(lambda: not worker.runs())
    assert seen == [False]
    assert handle.result(0) == "true"
    assert check_store(app.queue.backend) == []


def test_a_result_that_waits_for_the_store_is_not_failed_as_late(make_app, url, monkeypatch):
    """F3, F9: the job ended in time, however long the store is away."""
    app = make_app(url)

    @app.job(retry=ONCE, timeout=600)
    def quick() -> str:
        return "in time"

    tried, back = threading.Event(), threading.Event()
    complete = app.queue.backend.complete_jobs

    def complete_jobs(*args, **kwargs):
        tried.set()
        if not back.is_set():
            raise BackendError("the store is away", retryable=True)
        return complete(*args, **kwargs)

    monkeypatch.setattr(app.queue.backend, "complete_jobs", complete_jobs)
    handle = quick.submit()
    with working(app):
        assert tried.wait(PATIENCE)
        limits = app.queue._dispatcher.owner.limits
        monkeypatch.setattr(limits, "_monotonic", lambda: time.monotonic() + 3600)
        limits.enforce()
        back.set()
        assert handle.result(PATIENCE) == "in time"


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_a_late_report_is_refused_by_its_attempt_and_dropped(make_app, url, monkeypatch, caplog, how):
    """Though the worker has not noticed that it lost the job."""
    monkeypatch.setattr("penstock.worker._watch.Watch._poll_store", lambda *_: None)
    app = make_app(url)
    begun = [threading.Event(), threading.Event()]
    gates = [threading.Event(), threading.Event()]

    @app.job(retry=RetryPolicy(max_attempts=5))
    def slow(context: JobContext) -> int:
        begun[context.attempt - 1].set()
        gates[context.attempt - 1].wait(PATIENCE)
        if how == "raises" and context.attempt == 1:
            raise PermanentError("late")
        return context.attempt

    handle = slow.submit()
    with working(app, concurrency=2) as worker:
        assert begun[0].wait(PATIENCE)
        app.queue.mark_worker_unresponsive(worker.name)
        assert begun[1].wait(PATIENCE)
        gates[0].set()
        until(lambda: "a late report was dropped" in caplog.text)
        assert handle.status is JobStatus.RUNNING
        gates[1].set()
        assert handle.result(PATIENCE) == 2
    assert check_store(app.queue.backend) == []


# -- telling --------------------------------------------------------------------------------------------------------


def test_progress_is_seen_in_the_store_while_the_job_runs(make_app, url):
    app = make_app(url)
    gate = threading.Event()

    @app.job
    def works(context: JobContext) -> None:
        for percent in range(60):
            context.progress(percent, f"step {percent}")
        gate.wait(PATIENCE)
        context.progress(100)

    handle = works.submit()
    with working(app):
        until(lambda: handle.progress == 59)
        assert handle.job().description == "step 59"
        gate.set()
        assert handle.wait(PATIENCE).progress == 100
        assert handle.job().description == "step 59"


def test_what_a_job_spawns_holds_back_what_waits_for_it(stored_app):
    order = []

    @stored_app.job
    def part(number: int) -> None:
        order.append(number)

    @stored_app.job
    def split(context: JobContext) -> list[str]:
        return [context.spawn(part, number=number).id for number in range(3)]

    @stored_app.job
    def join() -> None:
        order.append("joined")

    first = split.submit()
    last = join.options(after=[first]).submit()
    Worker(stored_app, isolation="thread").run(until_idle=True)
    assert last.status is JobStatus.COMPLETED
    assert sorted(order[:3]) == [0, 1, 2]
    assert order[3:] == ["joined"]
    assert stored_app.queue.get_job(first.result(0)[0]).parent_id == first.id


def test_jobs_submit_and_wait_for_others(app):
    @app.job
    def inner(number: int) -> int:
        return number + 1

    @app.job
    def outer() -> int:
        return inner.submit(1).result(PATIENCE)

    handle = outer.submit()
    with working(app, concurrency=2):
        assert handle.result(PATIENCE) == 2


# -- stopping -------------------------------------------------------------------------------------------------------


def test_a_worker_that_is_stopped_finishes_what_runs_and_begins_nothing(stored_app):
    begun, gate = threading.Event(), threading.Event()

    @stored_app.job
    def wait() -> str:
        begun.set()
        gate.wait(PATIENCE)
        return "done"

    handles = [wait.submit() for _ in range(5)]
    with working(stored_app, concurrency=1, prefetch=3) as worker:
        assert begun.wait(PATIENCE)
        worker.stop()
        until(lambda: stored_app.queue.get_job_stats().running_jobs == 1)
        gate.set()
        until(lambda: not worker.runs())
    ended = [handle for handle in handles if handle.status is JobStatus.COMPLETED]
    assert [handle.result(0) for handle in ended] == ["done"]
    assert stored_app.queue.get_job_stats().running_jobs == 0
    assert all(handle.job().failures == 0 for handle in handles), "what goes back does not count"
    assert check_store(stored_app.queue.backend) == []


@pytest.mark.parametrize("how", ["twice", "grace"])
def test_what_does_not_end_is_handed_back_uncounted(app, how):
    begun, gate = threading.Event(), threading.Event()

    @app.job(retry=ONCE)
    def wait() -> str:
        begun.set()
        gate.wait(PATIENCE)
        return "done"

    handle = wait.submit()
    with working(app, grace=0.1 if how == "grace" else PATIENCE) as worker:
        assert begun.wait(PATIENCE)
        worker.stop()
        if how == "twice":
            worker.stop()
    job = handle.job()
    assert (job.status, job.failures, job.retry_count) == (JobStatus.FAILED_RETRY, 0, 1)
    gate.set()
    with working(app):
        assert handle.result(PATIENCE) == "done"


def test_a_worker_can_run_again(app):
    note = app.job(type="note")(lambda: "noted")
    worker = Worker(app, isolation="thread")
    for _ in range(2):
        handle = note.submit()
        worker.run(until_idle=True)
        assert handle.result(0) == "noted"
    worker.stop()
    handle = note.submit()
    worker.run()  # was asked to stop before it began
    worker.run(until_idle=True)
    assert handle.result(0) == "noted"


def test_a_worker_runs_once_at_a_time(app):
    app.job(type="note")(lambda: None)
    with working(app) as worker:
        until(lambda: worker._intake.stream is not None)
        with pytest.raises(InvalidArgumentError, match="runs already"):
            worker.run()


def test_a_worker_leaves_no_thread_behind(stored_app):
    @stored_app.job
    async def hello() -> None: ...

    hello.submit()
    Worker(stored_app, isolation="thread").run(until_idle=True)  # the queue's own threads stay
    before = {thread.name for thread in threading.enumerate()}
    for _ in range(3):
        hello.submit()
        Worker(stored_app, isolation="thread").run(until_idle=True)
    after = {thread.name for thread in threading.enumerate()}
    assert {name for name in after - before if name.startswith("penstock")} == set()


def test_closing_the_queue_under_a_worker_ends_it_with_an_error(app):
    app.job(type="note")(lambda: None)
    worker = Worker(app, isolation="thread")
    timer = threading.Timer(0.2, app.close)
    timer.start()
    with pytest.raises(Exception, match="closed"):
        worker.run()
    timer.join()


# -- prefetching ----------------------------------------------------------------------------------------------------


def test_prefetched_jobs_that_wait_too_long_are_given_to_others(make_app, url, monkeypatch):
    monkeypatch.setattr("penstock.worker.worker.PREFETCH_SECONDS", 0.2)
    app, other = make_app(url), make_app(url)
    gate = threading.Event()

    @app.job
    def wait() -> str:
        gate.wait(PATIENCE)
        return "slow"

    other.job(type="wait")(lambda: "quick")
    handles = [wait.submit() for _ in range(3)]
    with working(app, concurrency=1, prefetch=2):
        until(lambda: app.queue.get_job_stats().running_jobs == 3)
        with working(other, concurrency=1):
            until(lambda: sum(handle.status is JobStatus.COMPLETED for handle in handles) == 2)
        assert all(handle.job().failures == 0 for handle in handles)
        gate.set()
        until(lambda: app.queue.get_job_stats().completed_jobs == 3)


# -- a store that fails ---------------------------------------------------------------------------------------------


def test_outcomes_wait_for_a_store_that_is_away(app, monkeypatch):
    note = app.job(type="note")(lambda: "noted")
    queue = app.queue
    real, outages = queue.complete_jobs, iter([BackendError("away", retryable=True)] * 2)

    def complete_jobs(*args, **kwargs):
        for outage in outages:
            raise outage
        return real(*args, **kwargs)

    monkeypatch.setattr(queue, "complete_jobs", complete_jobs)
    handle = note.submit()
    with working(app):
        assert handle.result(PATIENCE) == "noted"
    assert next(outages, None) is None


def test_a_report_that_spoils_a_batch_fails_alone(app, monkeypatch, caplog):
    """Whatever the store refuses to keep: the others must not suffer, and the job must not run for ever."""
    note = app.job(type="note")(lambda number: number)
    queue, real = app.queue, app.queue.complete_jobs

    def complete_jobs(results, *, attempts):
        if b"7" in results.values():
            raise InvalidArgumentError("seven cannot be stored", field="result")
        real(results, attempts=attempts)

    monkeypatch.setattr(queue, "complete_jobs", complete_jobs)
    handles = note.submit_many([{"number": number} for number in range(10)])
    Worker(app, isolation="thread").run(until_idle=True)
    assert [handle.status for handle in handles].count(JobStatus.COMPLETED) == 9
    assert (handles[7].status, handles[7].job().error_code) == (JobStatus.FAILED, "invalid_report")


def test_a_store_that_fails_for_good_ends_the_worker_with_its_error(app, monkeypatch):
    note = app.job(type="note")(lambda: None)

    def broken(*args, **kwargs):
        raise BackendError("the file is damaged", retryable=False)

    monkeypatch.setattr(app.queue, "complete_jobs", broken)
    note.submit()
    with pytest.raises(BackendError, match="damaged"):
        Worker(app, isolation="thread").run()


# -- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"concurrency": 0},
        {"concurrency": True},
        {"concurrency": 10_000},
        {"prefetch": -1},
        {"prefetch": 1.5},
        {"isolation": "rope"},
        {"grace": -1},
        {"grace": float("nan")},
        {"stop_grace": "soon"},
        {"tags": "text"},
        {"types": "note"},
        {"types": ["nobody"]},
        {"types": []},
        {"name": ""},
        {"name": 5},
        {"name": "x" * 513},
        {"name": "a\0b"},
        {"name": "\ud800"},
        {"tags": ["x" * 257]},
        {"tags": [""]},
        {"tags": [str(n) for n in range(101)]},
    ],
)
def test_wrong_settings_are_refused_before_anything_starts(app, settings):
    app.job(type="note")(lambda: None)
    with pytest.raises(InvalidArgumentError):
        Worker(app, **{"isolation": "thread", **settings})


def test_an_app_without_handlers_is_no_work(app):
    with pytest.raises(InvalidArgumentError, match="has no handlers"):
        Worker(app, isolation="thread")
    with pytest.raises(InvalidArgumentError, match="must be an App"):
        Worker("app", isolation="thread")


def test_memory_limits_and_threads_do_not_go_together(app):
    app.job(type="hungry", memory=100_000_000)(lambda: None)
    with pytest.raises(InvalidArgumentError, match=r'has limits .memory.*isolation="process"'):
        Worker(app, isolation="thread")


@pytest.mark.parametrize("field", ["memory", "processes", "files", "output"])
def test_a_limit_beyond_what_a_system_accepts_is_refused(app, field):
    with pytest.raises(
        InvalidArgumentError, match=rf"{field} must be an integer from \d+ to {2**63 - 1}, got"
    ):
        app.job(type="t", **{field: 10**5000})(lambda: None)


def test_a_result_is_not_logged(app, caplog):
    app.job(type="token")(lambda: "hunter2")
    app.tasks["token"].submit()
    with caplog.at_level(logging.DEBUG):
        Worker(app, isolation="thread").run(until_idle=True)
    assert "completed after" in caplog.text
    assert "hunter2" not in caplog.text


def test_ends_are_logged(app, caplog):
    app.job(type="note")(lambda: None)
    app.job(type="refuse", retry=RetryPolicy(max_attempts=1))(lambda: 1 / 0)
    app.tasks["note"].submit()
    app.tasks["refuse"].submit()
    with caplog.at_level(logging.INFO, "penstock.worker"):
        Worker(app, isolation="thread").run(until_idle=True)
    told = "\n".join(record.getMessage() for record in caplog.records)
    assert "attempt 1, completed after" in told
    assert re.search(
        r"attempt 1 of 1, failed after \d+\.\d+ s \(temporary\): ZeroDivisionError: division by zero; it ended dead_letter",
        told,
        re.MULTILINE,
    )
