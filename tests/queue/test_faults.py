"""Consumers that do not read, raise or die; processes that freeze; closing at the wrong moment (Q20-Q33, Q51, Q52)."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import freeze, throughout, until

import penstock
from penstock import (
    BackendError,
    Job,
    JobStatus,
    JobStream,
    OperationCancelledError,
    Queue,
    QueueClosedError,
    StaleAttemptError,
    cancel_scope,
)
from penstock.queue import emitter
from penstock.testing.conformance.queue_support import nothing_comes

SOON = 30.0


def put(queue: Queue, *ids: str, **fields: Any) -> None:
    queue.enqueue_jobs([Job(id=job_id, type="work", **fields) for job_id in ids])


def take(stream: JobStream) -> list[Job]:
    with cancel_scope(timeout=SOON):
        return next(stream)


def counted(queue: Queue, verb: str) -> list[float]:
    """Note the time of each call of a verb of the store."""
    calls: list[float] = []
    real = getattr(queue.backend, verb)

    def count(*args: Any, **kwargs: Any) -> Any:
        calls.append(time.monotonic())
        return real(*args, **kwargs)

    setattr(queue.backend, verb, count)
    return calls


class Held:
    """Holds claims of the dispatcher up: after their commit, before the stream knows of it."""

    def __init__(self, queue: Queue) -> None:
        self._claim = queue.backend.dequeue_jobs_for
        self.claimed = threading.Event()
        self.go = threading.Event()
        queue.backend.dequeue_jobs_for = self  # type: ignore[method-assign]

    def __call__(self, requests: Any) -> Any:
        found = self._claim(requests)
        if any(found):
            self.claimed.set()
            assert self.go.wait(SOON)
        return found


# -- consumers ----------------------------------------------------------------------------------------------------


def test_a_consumer_that_never_reads_stops_nobody_else(queue: Queue) -> None:
    """Q24, Q30, Q33: it keeps what it was given and gets no more; a full stream does not keep the store busy."""
    put(queue, *(f"job{number}" for number in range(10)))
    deaf = queue.stream_jobs("deaf", max_assigned_jobs=3)
    until(lambda: deaf.free == 0)
    reader = queue.stream_jobs("reader", max_assigned_jobs=2)
    seen: set[str] = set()
    while len(seen) < 7:
        for job in take(reader):
            seen.add(job.id)
            queue.complete_job(job.id, attempt=job.attempt)
    calls = counted(queue, "dequeue_jobs_for")
    put(queue, *(f"more{number}" for number in range(3)))
    seen |= {job.id for job in take(reader)}
    nothing_comes(reader)
    assert len(calls) < 40  # a look a second, and one for each change; not one for each turn of a loop
    assert queue.get_job_stats().running_jobs == 5
    deaf.close()
    assert {job.id for job in queue.list_jobs(status=JobStatus.FAILED_RETRY)}.isdisjoint(seen)


def test_a_consumer_that_raises_gives_back_what_it_had_not_taken(queue: Queue) -> None:
    """Q32, C12."""
    put(queue, "taken")
    with pytest.raises(ZeroDivisionError), queue.stream_jobs("worker", max_assigned_jobs=3) as stream:
        for _ in stream:
            put(queue, "untaken")
            until(lambda: stream.free == 1)
            raise ZeroDivisionError
    assert not stream.is_open
    assert queue.get_job("taken").status is JobStatus.RUNNING
    assert queue.get_job("untaken").status is JobStatus.FAILED_RETRY
    queue.complete_job("taken", attempt=1)
    again = queue.stream_jobs("other")
    assert [job.id for job in take(again)] == ["untaken"]


def test_a_subscriber_that_raises_stops_neither_verbs_nor_streams(queue: Queue) -> None:
    """Q53."""
    queue.events.subscribe(penstock.EventKind.JOB_AVAILABLE, lambda event: 1 / 0)
    queue.events.subscribe(penstock.EventKind.JOB_STARTED, lambda event: 1 / 0)
    stream = queue.stream_jobs("worker")
    for name in "abc":
        put(queue, name)
        assert [job.id for job in take(stream)] == [name]
        queue.complete_job(name)


def test_a_store_that_fails_in_the_middle_ends_streams_and_not_the_queue(queue: Queue) -> None:
    """Q20, Q55, C20: a stream opened afterwards works again."""
    broken = queue.stream_jobs("worker")
    claim = queue.backend.dequeue_jobs_for
    queue.backend.dequeue_jobs_for = _gone  # type: ignore[method-assign]
    put(queue, "a")
    with cancel_scope(timeout=SOON), pytest.raises(BackendError, match="gone"):
        next(broken)
    assert list(broken) == []
    queue.backend.dequeue_jobs_for = claim  # type: ignore[method-assign]
    assert [job.id for job in take(queue.stream_jobs("worker"))] == ["a"]


def _gone(requests: object) -> Any:
    raise BackendError("the disk is gone")


# -- closing ------------------------------------------------------------------------------------------------------


def test_closing_during_a_push_gives_the_job_back_before_it_returns(queue: Queue) -> None:
    """Q31, Q32: claimed for the stream, but not yet in it."""
    held = Held(queue)
    stream = queue.stream_jobs("worker")
    put(queue, "a")
    assert held.claimed.wait(SOON)
    with ThreadPoolExecutor(4) as pool:
        closings = [pool.submit(stream.close) for _ in range(4)]
        assert wait(closings, 0.05).done == set()
        held.go.set()
        for closing in closings:
            closing.result(SOON)
    assert queue.get_job("a").status is JobStatus.FAILED_RETRY
    stream.close()
    assert list(stream) == []


def test_closing_the_queue_during_a_push_gives_the_job_back(tmp_path: Path) -> None:
    """Q51: before the store is closed under it."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    queue = penstock.connect(url)
    held = Held(queue)
    stream = queue.stream_jobs("worker", max_assigned_jobs=5)
    put(queue, "a", "b")
    assert held.claimed.wait(SOON)
    with ThreadPoolExecutor(4) as pool:
        closings = [pool.submit(queue.close) for _ in range(4)]
        assert len(wait(closings, 0.05).done) == 3  # who comes second need not wait for the first
        held.go.set()
        for closing in closings:
            closing.result(SOON)
    assert not stream.is_open
    with penstock.connect(url) as again:
        assert {job.status for job in again.list_jobs()} == {JobStatus.FAILED_RETRY}


def test_closing_while_everything_goes_on(connect: Callable[..., Queue]) -> None:
    """Q31, Q51, Q52: producers, consumers and closers meet; nobody hangs, and everybody hears of the end."""
    for _ in range(20):
        queue = connect()
        streams = [queue.stream_jobs(f"worker{number}", max_assigned_jobs=3) for number in range(4)]

        def produce(queue: Queue = queue) -> None:
            with contextlib.suppress(QueueClosedError):
                while True:
                    put(queue, *(f"{time.perf_counter_ns()}-{number}" for number in range(3)))

        def consume(stream: JobStream, queue: Queue = queue) -> None:
            with contextlib.suppress(QueueClosedError):
                for batch in stream:
                    for job in batch:
                        queue.complete_job(job.id, attempt=job.attempt)

        with ThreadPoolExecutor(16) as pool:
            work = [pool.submit(produce), pool.submit(produce)]
            work += [pool.submit(consume, stream) for stream in streams]
            until(lambda queue=queue: queue.get_job_stats().completed_jobs > 10)
            work += [pool.submit(streams[0].close) for _ in range(2)]
            work += [pool.submit(queue.close) for _ in range(3)]
            work += [pool.submit(streams[1].close) for _ in range(2)]
            for done in work:
                done.result(SOON)
        assert not any(stream.is_open for stream in streams)


def test_a_stream_closed_by_its_own_consumer_ends(queue: Queue) -> None:
    put(queue, "a", "b")
    stream = queue.stream_jobs("worker")
    seen = []
    for batch in stream:
        seen += [job.id for job in batch]
        stream.close()
    assert seen == ["a"]


def test_a_subscriber_may_close_a_stream(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dispatcher itself tells of a claim that it has made; it cannot wait for itself."""
    monkeypatch.setattr(emitter, "GRACE_SECONDS", 2 * SOON)  # so that nothing else emits
    put(queue, "a")  # before there is a stream: what comes later is claimed, and told, by whoever puts it in
    opened, closed = threading.Event(), threading.Event()
    streams: list[JobStream] = []
    tellers: list[str] = []

    def close(_event: penstock.Event) -> None:
        assert opened.wait(SOON)
        tellers.append(threading.current_thread().name)
        streams[0].close()
        closed.set()

    queue.events.subscribe(penstock.EventKind.JOB_STARTED, close)
    streams.append(queue.stream_jobs("worker"))
    opened.set()
    assert closed.wait(SOON)
    assert tellers == ["penstock-dispatch"]
    assert queue.get_job("a").status is JobStatus.FAILED_RETRY


# -- many ---------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_a_thousand_rounds_of_streams_leak_neither_threads_nor_jobs(queue: Queue) -> None:
    """Q31, Q32: opened and closed at every moment of a push."""
    before = set(threading.enumerate())
    put(queue, *(f"job{number}" for number in range(20)))
    never = threading.Event()
    for number in range(1000):
        stream = queue.stream_jobs(f"worker{number}", max_assigned_jobs=1 + number % 5)
        if number % 3 == 0:
            with cancel_scope(timeout=SOON):
                for job in next(stream):
                    queue.fail_job(job.id, "again", attempt=job.attempt)
        elif number % 3 == 1:
            never.wait(0.0002 * (number % 7))
        stream.close()
    names = [each.name for each in threading.enumerate() if each not in before]
    assert (
        len(names) == len(set(names)) <= 5
    )  # dispatch, beat, upkeep, and two of the store for notifications
    stats = queue.get_job_stats()
    assert (stats.running_jobs, stats.failed_jobs + stats.pending_jobs) == (0, 20)
    assert len(queue._dispatcher._groups) == 0
    assert queue._dispatcher._groups.stream_of == {}


@pytest.mark.deep
def test_a_thousand_rounds_of_queues_leak_neither_threads_nor_jobs(tmp_path: Path) -> None:
    """Q51."""
    url = f"sqlite:///{tmp_path}/jobs.db?durability=normal"
    with penstock.connect(url) as keeper:
        put(keeper, *(f"job{number}" for number in range(5)))
        before = threading.active_count()
        for number in range(1000):
            with penstock.connect(url) as queue:
                stream = queue.stream_jobs("worker", max_assigned_jobs=2)
                if number % 4 == 0:
                    for job in take(stream):
                        queue.release_jobs({job.id: "again"}, attempts={job.id: job.attempt})
        assert threading.active_count() <= before
        assert keeper.get_job_stats().running_jobs == 0


#: What a queue with streams keeps running: three of its own, and one (SQLite) or two (PostgreSQL) for notifications.
THREADS = {
    "penstock-beat",
    "penstock-dispatch",
    "penstock-listen",
    "penstock-notify",
    "penstock-upkeep",
}


def test_thousands_of_streams_share_few_threads(connect: Callable[..., Queue]) -> None:
    """Q24, Q53: and the right one is woken."""
    before = set(threading.enumerate())
    queue = connect()
    streams = [queue.stream_jobs(f"worker{number}", [f"tag{number}"]) for number in range(3000)]
    names = Counter(each.name for each in threading.enumerate() if each not in before)
    del names["penstock-connect"]  # one for each connection to a server while it is being made
    assert names.keys() <= THREADS
    assert set(names.values()) == {1}
    for number in (0, 1234, 2999):
        put(queue, f"job{number}", tags=(f"tag{number}", "other"))
        assert [job.id for job in take(streams[number])] == [f"job{number}"]
    assert sum(stream.free for stream in streams) == 2997
    queue.close()
    until(lambda: set(threading.enumerate()) <= before)


# -- frozen processes ---------------------------------------------------------------------------------------------

LIVENESS = 2.0  # a busy machine may keep a process waiting for half of that
WORKER = """
import json, sys, threading
import penstock
from penstock import cancel_scope

queue = penstock.connect(sys.argv[1], liveness=2)
quiet = threading.RLock()  # so that it is not frozen with the file's lock in its hands

def guarded(verb):
    def call(*args, **kwargs):
        with quiet:
            return verb(*args, **kwargs)
    return call

backend = queue.backend
for role, name in ((backend.owners, "beat"), (backend.owners, "open"), (backend.runtime, "take_upkeep"),
                   (backend, "maintain"), (backend, "dequeue_jobs_for")):
    setattr(role, name, guarded(getattr(role, name)))
stream = queue.stream_jobs("frozen", types=["work"])

def answer(value):
    print(json.dumps(value), flush=True)

for line in sys.stdin:
    command = line.split()
    if command[0] == "take":
        with cancel_scope(timeout=30):
            (job,) = next(stream)
        answer([job.id, job.attempt])
    elif command[0] == "freeze":
        with quiet:
            answer("ready")
            sys.stdin.readline()  # stopped here from outside, until "resume" comes
    elif command[0] == "complete":
        try:
            queue.complete_job(command[1], b"late", attempt=int(command[2]))
            answer("accepted")
        except penstock.PenstockError as error:
            answer(error.code)
"""


class Frozen:
    """A worker process that can be frozen."""

    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, command: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def freeze(self) -> None:
        assert self.tell("freeze") == "ready"
        freeze(self.process.pid)

    def resume(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("resume\n")
        self.process.stdin.flush()
        os.kill(self.process.pid, signal.SIGCONT)


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[tuple[str, Frozen]]:
    """A store with one job, and a worker that has it and is frozen."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    with penstock.open_backend(url) as backend:
        backend.enqueue_job(Job(id="a", type="work"))
    worker = Frozen(url)
    try:
        assert worker.tell("take") == ["a", 1]
        worker.freeze()
        yield url, worker
    finally:
        worker.process.kill()
        worker.process.communicate()


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_frozen_worker_loses_its_job_and_cannot_report_it_any_more(frozen: tuple[str, Frozen]) -> None:
    """Q33, C28, C63: its late report is refused and changes nothing; it goes on with other work."""
    url, worker = frozen
    with penstock.connect(url, liveness=LIVENESS) as queue:
        stream = queue.stream_jobs("other", types=["work"])
        (again,) = take(stream)
        assert (again.id, again.attempt, again.assignee_id) == ("a", 2, "other")
        worker.resume()
        assert worker.tell("complete a 1") == StaleAttemptError.code
        job = queue.get_job("a")
        assert (job.status, job.attempt, job.result) == (JobStatus.RUNNING, 2, None)
        queue.complete_job("a", b"ours", attempt=2)
        assert worker.tell("complete a 1") == StaleAttemptError.code
        assert queue.get_job("a").result == b"ours"
        stream.close()
        put(queue, "next")
        assert worker.tell("take") == ["next", 1]
        # Longer than the liveness: under its new name it is held again.
        throughout(1.5 * LIVENESS, queue.maintain)
        assert queue.get_job("next").status is JobStatus.RUNNING
        assert worker.tell("complete next 1") == "accepted"


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_the_late_report_of_a_frozen_worker_counts_while_nobody_else_has_the_job(
    frozen: tuple[str, Frozen],
) -> None:
    """Q40: merely UNKNOWN_RETRY."""
    url, worker = frozen
    with penstock.open_backend(url, liveness=LIVENESS) as backend:
        until(lambda: backend.maintain().lost == 1)
        assert backend.get_job("a").status is JobStatus.UNKNOWN_RETRY
        worker.resume()
        assert worker.tell("complete a 1") == "accepted"
        assert backend.get_job("a").result == b"late"


def test_jobs_are_given_to_one_stream_each_whatever_happens(queue: Queue) -> None:
    """Q33: streams come and go while jobs fail and come again; no attempt is delivered twice."""
    put(queue, *(f"job{number}" for number in range(30)))
    delivered: Counter[tuple[str, int]] = Counter()
    lock = threading.Lock()

    def consume(number: int) -> None:
        for turn in range(15):
            with queue.stream_jobs(f"worker{number}", max_assigned_jobs=3) as stream:
                jobs: list[Job] = []
                # Only the wait is limited: what was delivered is reported, however slow the machine is.
                with contextlib.suppress(OperationCancelledError), cancel_scope(timeout=0.5):
                    jobs = next(stream)
                for job in jobs:
                    with lock:
                        delivered[job.id, job.attempt] += 1
                    if turn % 2:
                        queue.fail_job(job.id, "again", attempt=job.attempt)
                    else:
                        queue.release_jobs({job.id: "again"}, attempts={job.id: job.attempt})

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(consume, number) for number in range(6)]:
            done.result(SOON)
    assert set(delivered.values()) == {1}
    assert queue.get_job_stats().running_jobs == 0
