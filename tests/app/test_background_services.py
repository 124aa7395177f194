"""Every background service survives many starts and stops from several threads, and a fork."""

import os
import signal
import threading
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.waiting import until

import penstock
from penstock.app._waiting import Waiting
from penstock.app.schedules import Every, Periodic, Ticker
from penstock.callbacks import CallbackDelivery
from penstock.events import EventKind
from penstock.job import Job
from penstock.processes import JobRecord
from penstock.processes import JobStatus as ProcessStatus
from penstock.processes.backend_registry import BackendRegistry
from penstock.worker import Worker

ROUNDS = 100
THREADS = 4
DEADLINE = 120


def ours() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("penstock-")]


def stress(one_round) -> None:
    """Call from several threads, ROUNDS times in all."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for _ in range(ROUNDS // THREADS):
                one_round(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert not any(thread.is_alive() for thread in threads)
    assert not errors, errors


@pytest.fixture
def queue(tmp_path):
    before = ours()
    with penstock.connect(f"sqlite:///{tmp_path}/jobs.db?durability=normal") as queue:
        yield queue
    until(lambda: len(ours()) <= len(before), "the end of all threads")


def test_subscribing_and_unsubscribing(queue):
    seen = []

    def one_round(_number):
        unsubscribe = queue.events.subscribe(EventKind.JOB_AVAILABLE, seen.append)
        queue.submit("t")
        unsubscribe()

    stress(one_round)
    assert len(seen) >= ROUNDS  # at least its own
    until(lambda: "penstock-events" not in ours())


def test_opening_and_closing_streams_and_queues(tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db?durability=normal"

    def one_round(number):
        with penstock.connect(url) as queue:
            queue.submit(f"t{number}")
            with queue.stream_jobs(f"w{number}", types=[f"t{number}"]) as stream:
                (job,) = next(stream)
            queue.complete_job(job.id)

    stress(one_round)
    until(lambda: not ours(), "the end of all threads")


def test_waiting_for_results(queue, monkeypatch):
    """The thread retires after each wait and is started by the next, and no waiter is forgotten."""
    monkeypatch.setattr("penstock.app._waiting.LINGER_SECONDS", 0.0)
    waiting = Waiting(queue.backend)

    def one_round(number):
        job_id = queue.submit("t").id
        done = threading.Event()

        def complete():
            (job,) = queue.claim_jobs(f"w{number}", job_ids=[job_id])
            queue.complete_job(job.id)
            done.set()

        helper = threading.Thread(target=complete)
        helper.start()
        waiting.wait(job_id, DEADLINE)
        helper.join(DEADLINE)
        assert done.is_set()

    stress(one_round)
    until(lambda: "penstock-results" not in ours())
    waiting.close()


def running(job_id: str) -> JobRecord:
    now = datetime.now(UTC)
    return JobRecord(job_id, ProcessStatus.RUNNING, 0, None, None, now, now)


def test_the_heartbeat_of_a_registry(queue):
    registry = BackendRegistry(queue.backend)

    def one_round(_number):
        record = running(str(uuid.uuid4()))
        registry.append(record)
        registry.append(replace(record, status=ProcessStatus.COMPLETED, progress=100))

    stress(one_round)
    until(lambda: "penstock-processes-beat" not in ours())


@pytest.mark.parametrize("service", ["ticker", "callbacks"])
def test_starting_and_closing(queue, service):
    def one_round(number):
        if service == "ticker":
            made = Ticker(queue, [Periodic(f"s{number}", Every(1), lambda _tick: Job(type="t"))])
        else:
            made = CallbackDelivery(queue, "any", secret="x" * 24)
        with made:
            made.start()

    stress(one_round)
    until(lambda: f"penstock-{service}" not in ours())


def test_watching_for_a_drained_queue(queue):
    drained = []

    def one_round(_number):
        queue.block(lambda: drained.append(1))
        queue.unblock()

    stress(one_round)
    until(lambda: "penstock-drain" not in ours())


def test_running_and_stopping_workers(tmp_path):
    app = penstock.App(f"sqlite:///{tmp_path}/jobs.db?durability=normal")
    app.job(type="t")(lambda: None)

    def one_round(_number):
        worker = Worker(app, 1, isolation="thread")
        worker.on_started = worker.stop
        worker.run()

    with app:
        stress(one_round)
    until(lambda: not ours(), "the end of all threads")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_uses_them_all(tmp_path):
    """The parent's threads are not in the child, which starts its own when it uses what it inherited."""
    app = penstock.App(f"sqlite:///{tmp_path}/jobs.db?durability=normal")
    app.job(type="t")(lambda: None)
    queue = app.queue
    registry = BackendRegistry(queue.backend)
    ticker = Ticker(queue, [Periodic("s", Every(1), lambda _tick: Job(type="ticked"))])
    delivery = CallbackDelivery(queue, "any", secret="x" * 24)
    seen: list[object] = []

    def use_all() -> None:
        unsubscribe = queue.events.subscribe(EventKind.JOB_COMPLETED, seen.append)
        with queue.stream_jobs("w", types=["t"]) as stream:
            handle = app.tasks["t"].submit()
            (job,) = next(stream)
            waiter = threading.Thread(target=handle.result, args=(DEADLINE,))
            waiter.start()
            queue.complete_job(job.id)
            waiter.join(DEADLINE)
            assert not waiter.is_alive()
        assert seen
        record = running(str(uuid.uuid4()))
        registry.append(record)
        assert "penstock-processes-beat" in ours()
        registry.append(replace(record, status=ProcessStatus.COMPLETED, progress=100))
        ticker.start()
        assert "penstock-ticker" in ours()
        delivery.start()
        until(lambda: delivery.flush(timedelta(seconds=5)), "a flush")
        unsubscribe()

    use_all()
    pid = os.fork()
    if pid == 0:
        code = signal.alarm(DEADLINE) or 1  # a child that hangs is killed
        try:
            seen.clear()
            assert not ours(), "no thread crosses a fork"
            use_all()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    delivery.close()
    ticker.close()
    app.close()
    assert status == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("kind", ["waiting", "registry"])
def test_a_lock_that_the_parent_held_does_not_hang_the_child(queue, kind):
    waiting, registry = Waiting(queue.backend), BackendRegistry(queue.backend)
    done = queue.submit("t").id

    def complete() -> None:
        (job,) = queue.claim_jobs("w", job_ids=[done])
        queue.complete_job(job.id)

    def child() -> None:
        if kind == "waiting":
            helper = threading.Timer(0.1, complete)
            helper.start()
            waiting.wait(done, DEADLINE)
        else:
            registry.append(running(str(uuid.uuid4())))
            assert "penstock-processes-beat" in ours()

    with waiting._lock if kind == "waiting" else registry._lock:
        pid = os.fork()
        if pid == 0:
            code = signal.alarm(DEADLINE) or 1  # a child that hangs is killed
            try:
                child()
                code = 0
            finally:
                os._exit(code)
        status = os.waitpid(pid, 0)[1]
    waiting.close()
    assert status == 0
