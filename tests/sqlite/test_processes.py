"""Several processes on one file: each job once, turns for all, and nobody hostage to a frozen one."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from tests.sqlite.support import Thread, all_jobs, assert_sound, jobs, journal, open_store
from tests.waiting import freeze, until

from penstock.backends.sqlite import files, write_lock
from penstock.backends.sqlite import writer as writers
from penstock.errors import BackendError, OperationCancelledError
from penstock.job import Job, JobStatus
from penstock.scope import cancel_scope

pytestmark = [pytest.mark.process, pytest.mark.slow]

WORKER = """
import json
backend = store()
taken = []
def work(name):
    while claimed := backend.dequeue_jobs(name, limit=7):
        backend.complete_jobs({job.id: None for job in claimed}, attempts={job.id: job.attempt for job in claimed})
        taken.extend(job.id for job in claimed)
say("ready")
hear()
threads = [threading.Thread(target=work, args=(f"{os.getpid()}-{n}",)) for n in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
say(json.dumps(taken))
backend.close()
"""


def test_each_job_is_done_once_by_four_processes_with_threads(backend, child, path):
    """B17, B18, Q52: 600 jobs, eight workers in four processes."""
    backend.enqueue_jobs(jobs(600))
    workers = [child(WORKER) for _ in range(4)]
    assert [worker.hear() for worker in workers] == ["ready"] * 4
    for worker in workers:
        worker.say()
    taken = [name for worker in workers for name in json.loads(worker.hear())]
    assert sorted(taken) == sorted(job.id for job in jobs(600))
    assert {job.status for job in all_jobs(backend)} == {JobStatus.COMPLETED}
    assert {job.attempt for job in all_jobs(backend)} == {1}
    assert_sound(backend, path)
    assert backend.get_job_stats().completed_jobs == 600


WRITER = """
import json
backend = store()
say("ready")
hear()
waits = []
end = time.monotonic() + 3
while time.monotonic() < end:
    began = time.monotonic()
    backend.enqueue_job(Job(id=f"{os.getpid()}-{len(waits)}", type="t"))
    waits.append(time.monotonic() - began)
say(json.dumps([len(waits), max(waits)]))
backend.close()
"""


def test_four_writer_processes_take_turns(child, path):
    """Q52: none starves, and the worst wait of a single enqueue is short against the three seconds of the race."""
    writers = [child(WRITER) for _ in range(4)]
    assert [writer.hear() for writer in writers] == ["ready"] * 4
    for writer in writers:
        writer.say()
    results = [json.loads(writer.hear()) for writer in writers]
    counts = [count for count, _ in results]
    assert min(counts) * 4 > max(counts), counts
    assert max(worst for _, worst in results) < 1.0, results
    with open_store(path) as backend:
        assert len(journal(backend)) == sum(counts)


HOLDER = """
backend = store()
def slow():
    yield Job(id="held", type="t")
    say("inside")
    hear()
backend.enqueue_jobs(slow())
say("stored")
backend.close()
"""


@pytest.mark.parametrize("ending", ["continued", "killed"])
def test_a_process_frozen_inside_its_transaction_holds_up_others_for_their_timeout(
    opened, child, path, ending
):
    """Q52, RELIABILITY F8: a retryable error then, and work goes on as soon as it continues or is killed."""
    backend = opened(timeout=0.6)
    holder = child(HOLDER)
    assert holder.hear() == "inside"
    freeze(holder.process.pid)
    began = time.monotonic()
    callers = [Thread(lambda n=n: backend.enqueue_job(Job(id=f"early-{n}", type="t"))) for n in range(5)]
    errors = [caller.outcome() for caller in callers]
    assert 0.5 < time.monotonic() - began < 10
    assert all(isinstance(error, BackendError) and error.retryable for error in errors)
    assert all_jobs(backend) == []
    if ending == "continued":
        holder.signal(signal.SIGCONT)
        holder.say()
        assert holder.hear() == "stored"
    else:
        holder.signal(signal.SIGKILL)
        holder.wait()
    backend.enqueue_job(Job(id="after", type="t"))
    stored = {job.id for job in all_jobs(backend)}
    assert stored == ({"held", "after"} if ending == "continued" else {"after"})
    assert_sound(backend, path)


def test_a_turn_that_a_killed_process_held_is_free_at_once(opened, child):
    """B18: the kernel frees the locks of the dead."""
    backend = opened(timeout=30)
    holder = child(HOLDER)
    assert holder.hear() == "inside"
    caller = Thread(lambda: backend.enqueue_job(Job(id="after", type="t")))
    began = time.monotonic()
    holder.signal(signal.SIGKILL)
    assert caller.outcome() == "after"
    assert time.monotonic() - began < 10


def test_waiting_for_another_process_ends_with_the_scope(opened, child):
    """Q54, C36b: withdrawn in time, by hand or by the clock, and nothing of it is stored."""
    backend = opened(timeout=30)
    holder = child(HOLDER)
    assert holder.hear() == "inside"
    began = time.monotonic()
    with pytest.raises(OperationCancelledError) as caught, cancel_scope(0.2):
        backend.enqueue_job(Job(id="late", type="t"))
    assert caught.value.timed_out
    scope = cancel_scope()

    def wait():
        with scope:
            backend.enqueue_job(Job(id="late", type="t"))

    caller = Thread(wait)
    scope.cancel()
    assert isinstance(caller.outcome(), OperationCancelledError)
    assert time.monotonic() - began < 10
    holder.say()
    assert holder.hear() == "stored"
    assert [job.id for job in all_jobs(backend)] == ["held"]


@pytest.mark.parametrize("byte", [0, 1], ids=["next in line", "its turn"])
def test_a_process_frozen_in_the_queue_of_turns_does_not_stop_the_others(opened, child, path, byte):
    """SQLite's lock is the truth, the turn only an order: after a first long wait nobody waits for the frozen one."""
    backend = opened(timeout=4)
    frozen = child(
        """
import fcntl
lock = open(path + "-lock", "r+b")
fcntl.lockf(lock, fcntl.LOCK_EX, 1, int(arguments[0]))
say("frozen")
hear()
""",
        byte,
    )
    assert frozen.hear() == "frozen"
    freeze(frozen.process.pid)
    backend.enqueue_job(Job(id="first", type="t"))
    began = time.monotonic()
    for number in range(20):
        backend.enqueue_job(Job(id=f"job-{number}", type="t"))
    assert time.monotonic() - began < 2
    frozen.signal(signal.SIGKILL)
    frozen.wait()
    backend.enqueue_job(Job(id="last", type="t"))
    assert not backend._store._write_lock._is_stuck
    assert len(all_jobs(backend)) == 22


COMMITTER = """
from penstock.backends.sqlite import write_lock
write_lock.TURN_SECONDS = write_lock.BUSY_GAP_SECONDS = 60.0
backend = store()
for number in range(int(arguments[0])):
    backend.enqueue_job(Job(id=f"theirs-{number}", type="t"))
say("committed")
hear()
"""


@pytest.mark.parametrize("commits", [1, 2])
def test_who_comes_after_a_lone_commit_does_not_sleep(opened, child, monkeypatch, commits):
    """Q34: somebody probably waits for it. A process that makes one commit after the other is not interrupted so soon."""
    backend = opened()
    monkeypatch.setattr(write_lock, "TURN_SECONDS", 60.0)  # so that theirs is still under way
    committer = child(COMMITTER, commits)
    assert committer.hear() == "committed"
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    backend.enqueue_job(Job(id="ours", type="t"))
    assert bool(slept) == (commits > 1 or sys.platform != "linux")
    committer.say()


def test_two_store_objects_of_one_process_share_a_file(opened, path):
    """Q52: threads on both, each job once, and what one stores the other sees."""
    one, two = opened(), opened()
    one.enqueue_jobs(jobs(200))
    taken = []

    def work(backend, name):
        while claimed := backend.dequeue_jobs(name, limit=5):
            backend.complete_jobs({job.id: None for job in claimed})
            taken.extend(job.id for job in claimed)

    threads = [Thread(lambda b=b, n=n: work(b, f"w{n}")) for n, b in enumerate([one, two, one, two])]
    assert [thread.outcome() for thread in threads] == [None] * 4
    assert sorted(taken) == sorted(job.id for job in jobs(200))
    one.close()
    two.enqueue_job(Job(id="after", type="t"))
    assert two.get_job("after").id == "after"
    assert_sound(two, path)


def test_readers_are_never_kept_waiting_by_a_writer(opened, child):
    """Q46: they see what was committed."""
    backend = opened()
    backend.enqueue_job(Job(id="committed", type="t"))
    holder = child(HOLDER)
    assert holder.hear() == "inside"
    assert [job.id for job in all_jobs(backend)] == ["committed"]
    assert backend.get_job_stats().total_jobs == 1
    holder.say()
    assert holder.hear() == "stored"
    assert backend.get_job("held").id == "held"


def test_a_commit_of_another_process_is_noticed_by_a_glance_at_the_log(path, monkeypatch):
    with open_store(path) as one, open_store(path) as other:
        store = one._store
        while store.has_foreign_changes():
            pass
        asked = []
        ask = writers.Writer.has_foreign_changes
        monkeypatch.setattr(
            writers.Writer, "has_foreign_changes", lambda self: (asked.append(1), ask(self))[1]
        )
        monkeypatch.setattr(files, "LOG_TRUST_SECONDS", 60.0)
        store.has_foreign_changes()
        asked.clear()
        assert not store.has_foreign_changes()
        assert asked == []
        other.enqueue_job(Job(id="news", type="t"))
        assert until(store.has_foreign_changes)


def test_a_commit_that_leaves_the_log_s_time_and_size_as_they_were_is_noticed_too(path):
    """File systems keep time by ticks of milliseconds, and a log that was written back is written over."""
    with open_store(path) as one, open_store(path) as other:
        other.enqueue_job(Job(id="first", type="t"))
        while one._store.has_foreign_changes():
            pass
        before = Path(f"{path}-wal").stat()
        other.enqueue_job(Job(id="second", type="t"))
        one._store._glance._seen = (before.st_mtime_ns, Path(f"{path}-wal").stat().st_size)
        os.utime(f"{path}-wal", ns=(before.st_atime_ns, before.st_mtime_ns))
        until(one._store.has_foreign_changes)


def test_news_stays_news_while_this_process_is_writing(path):
    with open_store(path) as one, open_store(path) as other:
        while one._store.has_foreign_changes():
            pass
        other.enqueue_job(Job(id="news", type="t"))
        writer = one._store._writer
        writer._leader = -1  # a call is under way
        assert not one._store.has_foreign_changes()
        writer._leader = None
        assert one._store.has_foreign_changes()
