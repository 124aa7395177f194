"""A worker that has started keeps going while its store does not answer (F3, section 3)."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.app.working import working
from tests.waiting import until

from penstock import App, BackendError, JobStatus, Worker
from penstock.queue.stream import JobStream


class Away:
    """Stands in for a call to the store: fails as one that does not answer, until it is over."""

    def __init__(self, owner: object, name: str, *, retryable: bool = True) -> None:
        self._call = getattr(owner, name)
        self._retryable = retryable
        self.is_over = False
        self.calls = 0
        setattr(owner, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_over:
            return self._call(*args, **kwargs)
        self.calls += 1
        raise BackendError("the store does not answer", retryable=self._retryable)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a SQLite store, as a backup or a frozen process does."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(20_000)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


def logged(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if text in each.getMessage()]


def test_a_worker_that_has_started_waits_for_the_store(stored_app: App) -> None:
    """F3: whichever store; it claims nothing meanwhile, and says that it claims when it does."""
    task = stored_app.job(type="t")(lambda: "done")
    handle = task.submit()
    away = Away(stored_app.queue.backend.owners, "open")
    worker = Worker(stored_app, 1, isolation="thread")
    started, failures = threading.Event(), []
    worker.on_started = started.set

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: away.calls >= 3 or failures, "three attempts to open a stream")
        assert not failures
        assert not started.is_set()
        away.is_over = True
        assert handle.result(timeout=60) == "done"
        assert started.is_set()
    finally:
        worker.stop()
        thread.join(60)
    assert not failures


def test_a_store_that_fails_for_good_ends_a_worker_that_starts(stored_app: App) -> None:
    stored_app.job(type="t")(lambda: None)
    Away(stored_app.queue.backend.owners, "open", retryable=False)
    with pytest.raises(BackendError, match="does not answer"):
        Worker(stored_app, 1, isolation="thread").run()


def test_a_sqlite_store_that_is_locked_is_logged_since_when_and_when_it_is_back(
    make_app: Callable[..., App], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Section 3: once each, and what fails meanwhile is not logged as another fault."""
    caplog.set_level(logging.INFO)
    app = make_app(f"sqlite:///{tmp_path}/jobs.db", timeout=0.1)
    task = app.job(type="t")(lambda: "done")
    handle = task.submit()
    with locked(tmp_path / "jobs.db"), working(app, concurrency=1):
        until(lambda: logged(caplog, "does not answer since 2"))
        until(lambda: app.queue.backend._store.outage.is_logged)
        assert handle.job().status is JobStatus.INITIAL_PENDING
    with working(app, concurrency=1):
        assert handle.result(timeout=60) == "done"
        until(lambda: logged(caplog, "is back after "))
    assert len(logged(caplog, "does not answer since")) == 1
    assert len(logged(caplog, "is back after")) == 1
    assert all(str(tmp_path) in text for text in logged(caplog, "does not answer since"))
    # The first call may fail before the log says that the store is locked; none after that.
    at = [index for index, each in enumerate(caplog.records) if "does not answer since" in each.getMessage()]
    later = caplog.records[at[0] + 1 :]
    assert not [each.getMessage() for each in later if "is retried" in each.getMessage()]


def test_a_worker_stops_while_the_store_does_not_answer(
    stored_app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F3: what it could not release is released later, or reclaimed."""
    caplog.set_level(logging.INFO)
    stored_app.job(type="t")(lambda: None)

    closed = JobStream.close

    def close(stream: JobStream) -> None:
        closed(stream)
        raise BackendError("the store does not answer", retryable=True)

    worker = Worker(stored_app, 1, isolation="thread")
    worker.on_started = worker.stop
    with monkeypatch.context() as patched:
        patched.setattr(JobStream, "close", close)
        worker.run()
    assert logged(caplog, "has stopped")
    assert logged(caplog, "are not released yet")


def test_a_worker_until_idle_is_not_idle_while_the_store_does_not_answer(stored_app: App) -> None:
    task = stored_app.job(type="t")(lambda: "done")
    handle = task.submit()
    away = Away(stored_app.queue.backend.runtime, "has_work")
    timer = threading.Thread(target=lambda: (until(lambda: away.calls >= 2), setattr(away, "is_over", True)))
    timer.start()
    Worker(stored_app, 1, isolation="thread").run(until_idle=True)
    timer.join(60)
    assert handle.job().status is JobStatus.COMPLETED
