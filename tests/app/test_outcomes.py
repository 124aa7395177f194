"""Whatever a handler does, its attempt has one outcome, and its text can be stored."""

import asyncio
import re
import sys

import pytest

from penstock import (
    FailureCategory,
    JobContext,
    JobStatus,
    PermanentError,
    Priority,
    RetryPolicy,
    TemporaryError,
)
from penstock.outcome import failure_of
from penstock.testing import ManualClock, drain, in_memory

ONCE = RetryPolicy(max_attempts=1)


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not me")

    __repr__ = __str__


class QuittingError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Sticky:
    def __repr__(self) -> str:
        raise RuntimeError("not me")


def ended(app, handler, *args):
    """Run a handler once and return its job."""
    task = app.job(retry=ONCE, type=f"task-{len(app.tasks)}")(handler)
    with in_memory(app):
        handle = task.submit(*args)
        drain(app)
        return handle.job()


def raising(error):
    def handler():
        raise error

    return handler


@pytest.mark.requirement("G28", "G29", "G5")
@pytest.mark.parametrize(
    ("error", "status", "category", "code", "text"),
    [
        (PermanentError("gone", code="http_404"), "failed", "permanent", "http_404", "gone"),
        (TemporaryError("busy", code="http_503"), "dead_letter", "temporary", "http_503", "busy"),
        (ValueError("odd"), "dead_letter", "temporary", "ValueError", "ValueError: odd"),
        (TimeoutError(), "dead_letter", "temporary", "TimeoutError", "TimeoutError"),
        (MemoryError(), "dead_letter", "system", "out_of_memory", "MemoryError"),
        (SystemExit(3), "dead_letter", "system", "system_exit", "SystemExit: 3"),
        (KeyboardInterrupt(), "dead_letter", "system", "keyboard_interrupt", "KeyboardInterrupt"),
        (GeneratorExit(), "dead_letter", "system", "GeneratorExit", "GeneratorExit"),
        (asyncio.CancelledError(), "dead_letter", "temporary", "CancelledError", "CancelledError"),
        (UnprintableError(), "dead_letter", "temporary", "UnprintableError", "cannot be shown: RuntimeError"),
        (QuittingError(), "dead_letter", "temporary", "QuittingError", "cannot be shown: SystemExit"),
        (ValueError("a\0b\ud800"), "dead_letter", "temporary", "ValueError", "a\ufffdb\\ud800"),
        (
            ExceptionGroup("many", [ValueError("one")] * 50),
            "dead_letter",
            "temporary",
            "ExceptionGroup",
            "many",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_every_exception_is_classified(app, error, status, category, code, text):
    job = ended(app, raising(error))
    assert (job.status, job.error_category, job.error_code) == (status, category, code)
    first = job.error_message.partition("\n\n")[0]
    assert text in first
    assert "Traceback (most recent call last)" in job.error_message
    assert len(job.error_message.encode()) < 65_536


def test_a_message_of_100_mb_is_cut(app):
    job = ended(app, raising(ValueError("x" * 100_000_000)))
    assert len(job.error_message) < 20_000
    assert "(100000000 characters)" in job.error_message


def test_a_traceback_of_thousands_of_frames_and_causes_is_cut():
    def deep(number):
        if number == 0:
            raise ValueError("bottom")
        deep(number - 1)

    error: BaseException = ValueError("first")
    for number in range(1000):
        try:
            try:
                raise error
            except BaseException as before:
                raise ValueError(f"{number} " + "y" * 10_000) from before
        except ValueError as after:
            error = after
    assert len(failure_of(error).message) < 25_000
    try:
        deep(sys.getrecursionlimit() // 2)
    except ValueError as found:
        text = failure_of(found).message
    assert "bottom" in text
    assert len(text) < 20_000


def test_the_text_names_the_cause(app):
    def handler():
        try:
            {}["picture"]
        except KeyError as error:
            raise PermanentError("there is no picture", cause=error) from error

    text = ended(app, handler).error_message
    assert text.startswith("there is no picture\n\nTraceback")
    assert "Caused by:" in text
    assert "KeyError: 'picture'" in text


@pytest.mark.requirement("G29")
def test_retry_after_replaces_the_backoff(app):
    clock = ManualClock()

    @app.job(retry=RetryPolicy(max_attempts=2))
    def busy() -> None:
        raise TemporaryError("busy", retry_after=100)

    with in_memory(app, clock=clock):
        start = clock.now()
        handle = busy.submit()
        drain(app)
        assert handle.job().attempt == 2
    assert (clock.now() - start).total_seconds() == 100


def test_a_retry_after_that_was_spoilt_is_left_out():
    error = TemporaryError("busy", retry_after=3)
    error.retry_after = "soon"  # type: ignore[assignment]
    assert failure_of(error).retry_after is None
    error.code = 7  # type: ignore[assignment]
    assert failure_of(error).code is None


def test_enums_that_are_text_or_numbers_are_json(app):
    assert ended(app, lambda: [JobStatus.COMPLETED, {"p": Priority.HIGH}]).result == b'["completed",{"p":1}]'
    assert ended(app, lambda status: status, JobStatus.RUNNING).payload == b'{"status":"running"}'


@pytest.mark.parametrize(
    "result",
    [object(), {1, 2}, b"bytes", float("inf"), 2**70, "\0", {1: 2}, (n for n in range(3)), Sticky()],
    ids=lambda value: type(value).__name__,
)
def test_a_result_that_json_cannot_hold_fails_for_good(app, result):
    job = ended(app, lambda: result)
    assert (job.status, job.error_category) == (JobStatus.FAILED, FailureCategory.PERMANENT)
    assert job.error_code == "invalid_result"


def test_a_result_over_the_limit_fails_for_good(app):
    task = app.job(type="big")(lambda: "x" * 2_000_000)
    with in_memory(app):
        handle = task.submit()
        drain(app)
        job = handle.job()
    assert (job.status, job.error_code) == (JobStatus.FAILED, "result_too_large")


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"\xff", "not JSON"),
        (b"[1]", "must be a JSON object"),
        (b"{}", "needs number"),
        (b'{"number": 1, "more": 2}', "takes no more"),
        (b'{"number": "1"}', "number of .* must be int"),
        (b"[" * 100_000, "payload"),
    ],
)
def test_a_payload_that_is_not_the_handlers_fails_for_good_without_a_call(app, payload, words):
    called = []

    @app.job
    def take(number: int) -> None:
        called.append(number)

    with in_memory(app) as queue:
        job = queue.submit("take", payload)
        drain(app)
        job = queue.get_job(job.id)
    assert (job.status, job.error_category) == (JobStatus.FAILED, FailureCategory.PERMANENT)
    assert job.error_code == "invalid_arguments"
    assert re.search(words, job.error_message)
    assert called == []


def test_a_promise_of_another_type_does_not_spoil_a_result(app):
    def handler() -> int:
        return "text"  # type: ignore[return-value]

    job = ended(app, handler)
    assert (job.status, job.result) == (JobStatus.COMPLETED, b'"text"')


@pytest.mark.requirement("G22")
def test_a_checkpoint_is_there_for_the_next_attempt(app):
    seen = []

    @app.job(retry=RetryPolicy(max_attempts=3))
    def export(context: JobContext) -> int:
        seen.append((context.attempt, context.checkpoint))
        done = int(context.checkpoint or b"0")
        context.save_checkpoint(str(done + 1).encode())
        if done < 2:
            raise TemporaryError("not yet")
        return done

    with in_memory(app):
        handle = export.submit()
        drain(app)
        assert handle.result(0) == 2
    assert seen == [(1, None), (2, b"1"), (3, b"2")]


def test_what_a_context_is_told_wrongly_is_refused(app):
    refused = []

    @app.job
    def wrong(context: JobContext) -> None:
        for call in (
            lambda: context.progress(101),
            lambda: context.progress(-1),
            lambda: context.progress(True),
            lambda: context.progress("half"),
            lambda: context.progress(1, 7),
            lambda: context.save_checkpoint("text"),
            lambda: context.save_checkpoint({"a": 1}),
            lambda: context.spawn(len),
            lambda: context.spawn(wrong, what=3),
        ):
            try:
                call()
            except ValueError as error:
                refused.append(error.field)
        context.progress(33.9, "ü" * 5000 + "\0\ud800")

    with in_memory(app):
        handle = wrong.submit()
        drain(app)
        job = handle.job()
    assert len(refused) == 9
    assert (job.status, job.progress, len(job.description)) == (JobStatus.COMPLETED, 33, 2000)


def test_a_log_line_carries_its_job(app, caplog):
    @app.job
    def talk(context: JobContext) -> None:
        context.log("said %d", 1)
        context.log.warning("loud")

    with in_memory(app), caplog.at_level("INFO", "penstock.job"):
        handle = talk.submit()
        drain(app)
    assert [record.job_id for record in caplog.records] == [handle.id] * 2
    assert [record.attempt for record in caplog.records] == [1, 1]
    assert [record.getMessage() for record in caplog.records] == ["said 1", "loud"]


def test_tasks_left_in_a_loop_do_not_outlive_their_job(app):
    seen = []

    async def lingering() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")

    @app.job
    async def leaves(number: int) -> int:
        seen.append(len(asyncio.all_tasks()))
        asyncio.get_running_loop().create_task(lingering())
        await asyncio.sleep(0)
        return number

    with in_memory(app):
        leaves.submit_many([{"number": 1}, {"number": 2}])
        assert drain(app).completed == 2
    assert seen == [1, "cancelled", 1, "cancelled"]


def test_draining_ends_though_a_job_never_does(app, monkeypatch):
    monkeypatch.setattr("penstock.testing.app.MAX_ATTEMPTS", 50)

    @app.job(retry=None)
    def hopeless() -> None:
        raise ValueError("again")

    with in_memory(app):
        hopeless.submit()
        with pytest.raises(ValueError, match="50 attempts"):
            drain(app)
