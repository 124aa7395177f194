"""An error out of COMMIT means not committed: nothing is delivered, acknowledged or remembered."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.app.working import working
from tests.sqlite.faulty_disk import FaultyDisk, contents, contents_after_a_crash
from tests.sqlite.support import (
    DEADLINE,
    Child,
    GateClock,
    Thread,
    all_jobs,
    assert_sound,
    group,
    jobs,
    writer_of,
)
from tests.waiting import until

import penstock
from penstock import App, BackendError, EventKind, Job, JobStatus, Queue
from penstock.backends.engine.store import Claim
from penstock.errors import JobNotFoundError

FAULTS = ["full", "write", "sync"]


@pytest.fixture
def queue(disk: FaultyDisk, path: Path) -> Iterator[Queue]:
    with penstock.connect(f"sqlite:///{path}") as queue:
        yield queue
        disk.heal()


class Consumer:
    """A stream that is waited at, on a thread of its own."""

    def __init__(self, queue: Queue) -> None:
        self.got: list[Job] = []
        self._stream = queue.stream_jobs("consumer", max_assigned_jobs=1000)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for batch in self._stream:
            self.got += batch

    def ids(self) -> list[str]:
        return [job.id for job in self.got]

    def free(self) -> int:
        return self._stream.free

    def close(self) -> None:
        self._stream.close()
        self._thread.join(DEADLINE)


@pytest.fixture
def consumer(queue: Queue) -> Iterator[Consumer]:
    """A stream that waits: it has got its first job and may have more."""
    consumer = waiting_at(queue)
    yield consumer
    consumer.close()


def waiting_at(queue: Queue) -> Consumer:
    consumer = Consumer(queue)
    queue.enqueue_job(Job(id="first", type="t"))
    until(lambda: consumer.ids() == ["first"])
    return consumer


def refuse(call: Callable[[], object]) -> BackendError:
    with pytest.raises(BackendError) as caught:
        call()
    assert caught.value.retryable
    return caught.value


def held_here(queue: Queue) -> set[str]:
    """The jobs that the queue's streams and the writer's memory count as claimed."""
    return set(queue._dispatcher._groups.held()) | set(writer_of(queue.backend)._cache.held)


# -- what is delivered ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_a_refused_submission_reaches_no_stream(
    queue: Queue, consumer: Consumer, disk: FaultyDisk, fault: str
) -> None:
    """With a stream waiting in the same process, 30 of 30 refused submissions reached it."""
    disk.arm(fault)
    for job in jobs(30, "refused"):
        refuse(lambda job=job: queue.enqueue_job(job))
    assert disk.failed >= 30
    disk.heal()
    assert held_here(queue) == {"first"}
    queue.enqueue_job(Job(id="last", type="t"))
    until(lambda: "last" in consumer.ids())
    assert consumer.ids() == ["first", "last"]
    assert {job.id for job in all_jobs(queue.backend)} == {"first", "last"}
    assert_sound(queue.backend)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_dependent_waits_while_the_completion_of_its_parent_is_refused(
    queue: Queue, consumer: Consumer, disk: FaultyDisk, fault: str
) -> None:
    queue.enqueue_job(Job(id="child", type="t", after=("first",)))
    disk.arm(fault)
    refuse(lambda: queue.complete_job("first", b"done", attempt=1))
    disk.heal()
    queue.enqueue_job(Job(id="other", type="t"))
    until(lambda: "other" in consumer.ids())
    assert consumer.ids() == ["first", "other"]
    assert queue.get_job("first").status is JobStatus.RUNNING
    queue.complete_job("first", b"done", attempt=1)
    until(lambda: "child" in consumer.ids())
    assert_sound(queue.backend)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_job_whose_spawning_was_refused_reaches_no_stream(
    queue: Queue, consumer: Consumer, disk: FaultyDisk, fault: str
) -> None:
    disk.arm(fault)
    refuse(lambda: queue.spawn_jobs("first", jobs(3, "spawned"), attempt=1))
    disk.heal()
    queue.enqueue_job(Job(id="other", type="t"))
    until(lambda: "other" in consumer.ids())
    assert consumer.ids() == ["first", "other"]
    assert queue.get_jobs([job.id for job in jobs(3, "spawned")]) == {}
    assert_sound(queue.backend)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_job_whose_failure_was_refused_is_not_tried_again(
    queue: Queue, consumer: Consumer, disk: FaultyDisk, fault: str
) -> None:
    disk.arm(fault)
    refuse(lambda: queue.fail_job("first", "boom", attempt=1))
    disk.heal()
    queue.enqueue_job(Job(id="other", type="t"))
    until(lambda: "other" in consumer.ids())
    assert consumer.ids() == ["first", "other"]
    assert (queue.get_job("first").attempt, queue.get_job("first").failures) == (1, 0)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_worker_executes_no_job_that_the_store_never_had(disk: FaultyDisk, path: Path, fault: str) -> None:
    app = App(f"sqlite:///{path}")
    executed: list[int] = []

    @app.job
    def note(number: int) -> None:
        executed.append(number)

    with app, working(app, concurrency=4):
        note.submit(number=0).result(timeout=DEADLINE)
        disk.arm(fault)
        for number in range(1, 11):
            refuse(lambda number=number: note.submit(number=number))
        disk.heal()
        note.submit(number=11).result(timeout=DEADLINE)
        assert executed == [0, 11]
        assert len(all_jobs(app.queue.backend)) == 2


@pytest.mark.parametrize("fault", FAULTS)
def test_a_refused_commit_emits_no_event(queue: Queue, disk: FaultyDisk, fault: str) -> None:
    emitted: list[str | None] = []
    for kind in EventKind:
        queue.events.subscribe(kind, lambda event: emitted.append(event.job_id))
    disk.arm(fault)
    refuse(lambda: queue.enqueue_jobs(jobs(3, "refused")))
    disk.heal()
    queue.enqueue_job(Job(id="last", type="t"))
    assert emitted == ["last"]


def test_streams_get_what_is_stored_wherever_the_fault_comes(
    queue: Queue, consumer: Consumer, disk: FaultyDisk
) -> None:
    """The n-th write of a submission fails, for every n, while a stream claims in the same commit."""
    refused = []
    for at in range(1, 100):
        names = [f"job-{at}-{number}" for number in range(3)]
        disk.arm("write", at, once=True)
        try:
            queue.enqueue_jobs([Job(id=name, type="t", payload=b"x" * 300) for name in names])
        except BackendError:
            refused += names
        else:
            if not disk.failed:
                break
        finally:
            disk.heal()
    assert len(refused) > 30
    stored = {job.id for job in all_jobs(queue.backend)}
    assert not stored & set(refused)
    until(lambda: set(consumer.ids()) == stored)
    assert held_here(queue) == stored
    assert_sound(queue.backend)


def test_a_fault_after_the_claim_for_a_stream_keeps_no_slot(queue: Queue, consumer: Consumer) -> None:
    """The offer to the stream is over, whatever comes between it and the commit."""
    connection = writer_of(queue.backend)._connection
    denied = []

    def deny_release(action: int, first: str, second: str, *_: object) -> int:
        if (action, first, second) == (apsw.SQLITE_SAVEPOINT, "RELEASE", "handing_out"):
            denied.append(second)
            raise apsw.IOError("planted")  # retryable: the fault may meet the dispatcher's own claim as well
        return apsw.SQLITE_OK

    connection.authorizer = deny_release
    for number in range(100):  # until the dispatcher is at rest, so that the stream is offered the job
        with contextlib.suppress(BackendError):
            queue.enqueue_job(Job(id=f"job-{number}", type="t"))
        if denied:
            break
    connection.authorizer = None
    assert denied
    queue.enqueue_job(Job(id="last", type="t"))
    until(lambda: "last" in consumer.ids())
    assert set(consumer.ids()) == {job.id for job in all_jobs(queue.backend)}
    assert consumer.free() == 1000 - len(consumer.ids())


# -- what is remembered --------------------------------------------------------------------------------------------


def test_a_refused_claim_is_not_remembered(disk: FaultyDisk, opened: Callable[..., Any]) -> None:
    backend = opened()
    backend.enqueue_jobs(jobs(2))
    disk.arm("sync")
    refuse(lambda: backend.dequeue_jobs("w", limit=2))
    disk.heal()
    assert writer_of(backend)._cache.held == {}
    assert [job.id for job in backend.dequeue_jobs("other", limit=2)] == ["job-0", "job-1"]
    assert backend.complete_job("job-0") == {"other": 1}


def test_the_number_of_a_refused_job_can_be_given_again(
    queue: Queue, consumer: Consumer, disk: FaultyDisk
) -> None:
    """A report of the refused job would end the job that has its insertion number now."""
    disk.arm("full")
    refuse(lambda: queue.enqueue_job(Job(id="refused", type="t")))
    disk.heal()
    queue.enqueue_job(Job(id="next", type="t"))
    until(lambda: "next" in consumer.ids())
    with pytest.raises(JobNotFoundError):
        queue.complete_job("refused")
    assert queue.get_job("next").status is JobStatus.RUNNING


def test_a_claim_inside_a_refused_call_of_a_group_is_not_remembered(
    opened: Callable[..., Any], clock: GateClock
) -> None:
    """The leader commits; the call that was rolled back to its savepoint leaves no claim behind."""
    backend = opened(clock=clock)
    backend.enqueue_jobs(jobs(1))

    def claim_and_fail(tx: Any) -> None:
        tx.claim(Claim(assignee_id="w", tags=(), limit=1, types=None, key=None, job_ids=None, owner=None))
        raise RuntimeError("after the claim")

    with group(
        backend,
        clock,
        lambda: backend.enqueue_job(Job(id="a", type="t")),
        lambda: backend._store.write(claim_and_fail),
    ) as calls:
        pass
    assert calls[0].outcome() == "a"
    assert isinstance(calls[1].outcome(), RuntimeError)
    assert writer_of(backend)._cache.held == {}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_refused_block_blocks_nothing(
    disk: FaultyDisk, opened: Callable[..., Any], clock: GateClock, fault: str
) -> None:
    backend = opened(clock=clock)
    disk.arm(fault)
    with group(
        backend, clock, lambda: backend.set_blocked(True), lambda: backend.enqueue_job(Job(id="a", type="t"))
    ) as calls:
        pass
    disk.heal()
    assert [type(call.outcome()) for call in calls] == [BackendError, BackendError]
    assert not backend.is_blocked()
    assert backend.enqueue_job(Job(id="a", type="t")) == "a"


def test_a_call_is_not_refused_for_what_another_one_failed_to_store(
    disk: FaultyDisk, opened: Callable[..., Any], clock: GateClock
) -> None:
    """Told JobExistsError, the second caller would take the job for stored, and nobody has it."""
    backend = opened(clock=clock)
    disk.arm("sync")
    with group(
        backend,
        clock,
        lambda: backend.enqueue_job(Job(id="a", type="t")),
        lambda: backend.enqueue_job(Job(id="a", type="t")),
        lambda: backend.enqueue_jobs([Job(id="b", type="t", after=("a",)), Job(id="a", type="t")]),
    ) as calls:
        pass
    disk.heal()
    assert [type(call.outcome()) for call in calls] == [BackendError] * 3
    assert all_jobs(backend) == []
    assert backend.enqueue_job(Job(id="a", type="t")) == "a"


def test_counters_do_not_count_what_was_refused(disk: FaultyDisk, opened: Callable[..., Any]) -> None:
    backend = opened()
    backend.enqueue_jobs(jobs(5, tags=("x",)))
    for fault in FAULTS:
        disk.arm(fault)
        refuse(lambda: backend.enqueue_jobs(jobs(7, "refused", tags=("x",))))
        refuse(lambda: backend.dequeue_jobs("w", limit=5))
        disk.heal()
    backend.enqueue_jobs(jobs(2_100, "more"))  # enough for the counters to be folded
    assert backend.get_job_stats(["x"]).total_jobs == 5
    assert backend.get_job_stats().pending_jobs == 2_105
    assert_sound(backend)


@pytest.mark.parametrize(("fault", "at"), [("full", 61), ("write", 83), ("sync", 5)])
def test_what_many_threads_were_told_is_what_the_store_has(
    disk: FaultyDisk, opened: Callable[..., Any], path: Path, fault: str, at: int
) -> None:
    """Groups of calls, of which every few meet a fault: acknowledged is stored, refused is not."""
    backend = opened()
    acknowledged: list[str] = []
    completed: list[str] = []
    refused: list[str] = []

    def work(name: str) -> None:
        for number in range(60):
            job = Job(id=f"{name}-{number}", type=name, payload=b"x" * 500)
            try:
                acknowledged.append(backend.enqueue_job(job))
                for claimed in backend.dequeue_jobs(name, types=[name]):
                    backend.complete_job(claimed.id, b"done", attempt=claimed.attempt)
                    completed.append(claimed.id)
            except BackendError:
                refused.append(job.id)

    disk.arm(fault, at, each=True)
    threads = [Thread(lambda name=f"w{number}": work(name)) for number in range(4)]
    assert [thread.outcome() for thread in threads] == [None] * 4
    disk.heal()
    assert refused
    assert len(acknowledged) > 100
    stored = {job.id: job.status for job in all_jobs(backend)}
    assert set(stored) == set(acknowledged)
    assert {name for name, status in stored.items() if status is JobStatus.COMPLETED} == set(completed)
    assert_sound(backend, path)


# -- the transaction -----------------------------------------------------------------------------------------------


def test_a_refused_commit_does_not_come_back_after_a_crash(
    disk: FaultyDisk, opened: Callable[..., Any], path: Path
) -> None:
    """When only the flush failed, the log holds all of it: the next process took it for committed."""
    backend = opened()
    backend.enqueue_jobs(jobs(3))
    before = contents(path)
    for once in (True, False):
        disk.arm("sync", once=once)
        refuse(lambda: backend.enqueue_jobs(jobs(40, "refused", payload=b"x" * 500)))
        disk.heal()
        assert contents_after_a_crash(path) == before == contents(path)
    backend.enqueue_job(Job(id="last", type="t"))
    assert contents_after_a_crash(path) == contents(path)


def test_a_commit_that_leaves_its_transaction_open_is_rolled_back(
    opened: Callable[..., Any], path: Path
) -> None:
    """SQLITE_BUSY out of COMMIT: a statement that writes is not finished."""
    backend = opened()
    backend.enqueue_job(Job(id="a", type="t"))
    before = contents(path)
    unfinished: list[Any] = []

    def work(tx: Any) -> None:
        cursor = tx.cursor.connection.cursor()
        insert = "INSERT INTO setting (name, value) VALUES ('x', 1), ('y', 2) RETURNING name"
        unfinished.append(next(cursor.execute(insert)))
        unfinished.append(cursor)

    error = refuse(lambda: backend._store.write(work))
    assert "locked" in str(error)
    assert not writer_of(backend)._connection.in_transaction
    assert contents(path) == before
    unfinished[1].close(True)
    assert backend.enqueue_job(Job(id="b", type="t")) == "b"


# -- a file that may not grow --------------------------------------------------------------------------------------

NO_LARGER = """
import json, resource
queue = penstock.connect('sqlite:///' + path)
got = []
def take(stream):
    for batch in stream:
        got.extend(job.id for job in batch)
stream = queue.stream_jobs('w', max_assigned_jobs=100)
threading.Thread(target=take, args=(stream,), daemon=True).start()
def until_got(name):
    give_up_at = time.monotonic() + 60
    while name not in got:
        assert time.monotonic() < give_up_at
        time.sleep(0.005)
queue.enqueue_jobs([Job(id='first', type='t'), Job(id='child', type='t', after=('first',))])
until_got('first')
usual = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path + '-wal') + 20_000, usual[1]))
refused = 0
def refuse(call):
    global refused
    try:
        call()
    except BackendError as error:
        refused += error.retryable
large = b'x' * 200_000
for number in range(30):
    refuse(lambda: queue.enqueue_job(Job(id=f'refused-{number}', type='t', payload=large)))
refuse(lambda: queue.complete_job('first', large, attempt=1))
refuse(lambda: queue.spawn_jobs('first', [Job(id='spawned', type='t', payload=large)], attempt=1))
resource.setrlimit(resource.RLIMIT_FSIZE, usual)
queue.enqueue_job(Job(id='last', type='t'))
until_got('last')
say(json.dumps([refused, got, [job.id for job in queue.list_jobs()]]))
"""


@pytest.mark.process
def test_a_file_that_may_not_grow_hands_out_nothing_that_it_has_not_stored(
    child: Callable[..., Child],
) -> None:
    """The kernel refuses to write (RLIMIT_FSIZE), which needs no rights of anybody."""
    process = child(NO_LARGER)
    refused, got, stored = json.loads(process.hear())
    assert refused == 32
    assert got == ["first", "last"]
    assert stored == ["first", "child", "last"]


# -- a disk that is really full ------------------------------------------------------------------------------------


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="space"):
        while True:
            file.write(b"\0" * 4096)
    return ballast


def large(name: str, **fields: Any) -> Job:
    return Job(id=name, type="t", payload=b"x" * 200_000, **fields)


def test_a_full_disk_hands_out_nothing_that_it_has_not_stored(tiny_disk: Path) -> None:
    path = tiny_disk / "jobs.db"
    with penstock.connect(f"sqlite:///{path}") as queue:
        consumer = waiting_at(queue)
        queue.enqueue_jobs([Job(id="child", type="t", after=("first",)), Job(id="parent", type="t")])
        until(lambda: "parent" in consumer.ids())
        ballast = fill(tiny_disk)
        for number in range(30):
            refuse(lambda number=number: queue.enqueue_job(large(f"refused-{number}")))
        refuse(lambda: queue.complete_job("first", b"x" * 200_000, attempt=1))
        refuse(lambda: queue.spawn_jobs("parent", [large("spawned")], attempt=1))
        ballast.unlink()
        queue.enqueue_job(Job(id="last", type="t"))
        until(lambda: "last" in consumer.ids())
        assert consumer.ids() == ["first", "parent", "last"]
        assert {job.id for job in all_jobs(queue.backend)} == {"first", "child", "parent", "last"}
        queue.complete_job("first", b"done", attempt=1)
        until(lambda: "child" in consumer.ids())
        consumer.close()
        assert_sound(queue.backend, path)


def test_a_worker_on_a_full_disk_executes_only_what_is_stored(tiny_disk: Path) -> None:
    app = App(f"sqlite:///{tiny_disk}/jobs.db")
    executed: list[int] = []

    @app.job
    def note(number: int, text: str = "") -> None:
        executed.append(number)

    with app, working(app, concurrency=4):
        note.submit(number=0).result(timeout=DEADLINE)
        ballast = fill(tiny_disk)
        for number in range(1, 7):
            refuse(lambda number=number: note.submit(number=number, text="x" * 200_000))
        ballast.unlink()
        note.submit(number=7).result(timeout=DEADLINE)
        assert executed == [0, 7]
