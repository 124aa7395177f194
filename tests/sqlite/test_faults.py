"""When the disk, the lock or the kernel says no: a BackendError that tells whether to try again, and nothing lost."""

import subprocess
import time

import apsw
import pytest
from tests.sqlite.support import Child, Thread, all_jobs, assert_sound, jobs, open_store, writer_of
from tests.waiting import until

from penstock.errors import BackendError
from penstock.job import Job, JobStatus

# -- locked --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_locked_store_is_a_retryable_error_after_the_timeout(opened, path, how):
    """RELIABILITY F16: every kind of write waits, gives up and changes nothing."""
    backend = opened(timeout=0.2)
    backend.enqueue_jobs(jobs(3))
    (running,) = backend.dequeue_jobs("w")
    foreign = apsw.Connection(str(path))
    foreign.execute(how)
    for call in (
        lambda: backend.enqueue_job(Job(id="late", type="t")),
        lambda: backend.enqueue_jobs(iter(jobs(3, "late"))),
        lambda: backend.dequeue_jobs("w"),
        lambda: backend.complete_job(running.id),
        backend.maintain,
    ):
        began = time.monotonic()
        with pytest.raises(BackendError, match=rf"{path} is locked by another process") as caught:
            call()
        assert caught.value.retryable
        assert 0.15 < time.monotonic() - began < 5
    assert len(all_jobs(backend)) == 3  # readers are not kept out
    foreign.execute("ROLLBACK")
    foreign.close()
    backend.complete_job(running.id)
    assert len(backend.dequeue_jobs("w", limit=9)) == 2
    assert_sound(backend, path)


def test_a_lock_that_is_let_go_in_time_is_waited_for(opened, path):
    backend = opened(timeout=30)
    foreign = apsw.Connection(str(path))
    foreign.execute("BEGIN IMMEDIATE")
    caller = Thread(lambda: backend.enqueue_job(Job(id="a", type="t")))
    until(lambda: writer_of(backend)._leader is not None)
    foreign.execute("COMMIT")
    assert caller.outcome() == "a"
    foreign.close()


def test_opening_a_locked_store_is_a_retryable_error(path):
    """A file that is not a store yet must be migrated; a locked one cannot be."""
    foreign = apsw.Connection(str(path))
    foreign.execute("BEGIN EXCLUSIVE")
    with pytest.raises(BackendError, match=f"{path}") as caught:
        open_store(path, timeout=0.2)
    assert caught.value.retryable
    foreign.close()
    open_store(path).close()


def test_stats_are_read_even_when_the_counters_cannot_be_folded(opened, path, monkeypatch):
    from penstock.backends.sqlite import store

    monkeypatch.setattr(store, "_LONG_TAIL", 0)
    backend = opened(timeout=0.2)
    backend.enqueue_jobs(jobs(5))
    foreign = apsw.Connection(str(path))
    foreign.execute("BEGIN IMMEDIATE")
    assert backend.get_job_stats().total_jobs == 5
    foreign.close()


# -- full ----------------------------------------------------------------------------------------------------------


def test_a_store_that_may_not_grow_refuses_and_recovers(opened, path):
    """RELIABILITY F13, by SQLite's own page limit, with calls from four threads in groups."""
    backend = opened()
    backend.enqueue_jobs(jobs(20, "early"))
    connection = writer_of(backend)._connection
    connection.execute(f"PRAGMA max_page_count = {connection.pragma('page_count') + 40}")
    acknowledged, refused = [], []

    def fill(name):
        for number in range(200):
            try:
                acknowledged.append(
                    backend.enqueue_job(Job(id=f"{name}-{number}", type="t", payload=b"x" * 4_000))
                )
            except BackendError as error:
                refused.append(error)

    assert [thread.outcome() for thread in [Thread(lambda n=n: fill(n)) for n in range(4)]] == [None] * 4
    assert refused
    assert all(error.retryable for error in refused)
    assert any("no room left" in str(error) for error in refused)
    assert {job.id for job in all_jobs(backend)} == {*acknowledged, *(job.id for job in jobs(20, "early"))}
    connection.execute("PRAGMA max_page_count = 1000000")
    backend.enqueue_job(Job(id="after", type="t"))
    assert_sound(backend, path)


def test_a_full_disk_refuses_loses_nothing_and_recovers(tiny_disk):
    """RELIABILITY F13: enqueue, claim and complete until the disk is full, then make room."""
    path = tiny_disk / "jobs.db"
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(b"\0" * 600_000)
    acknowledged, completed = set(), set()
    with open_store(path) as backend:
        with pytest.raises(BackendError) as caught:
            for number in range(10_000):
                acknowledged.add(backend.enqueue_job(Job(id=f"job-{number}", type="t", payload=b"x" * 2_000)))
        assert caught.value.retryable
        with pytest.raises(BackendError) as caught:
            for _ in range(10_000):
                for job in backend.dequeue_jobs("w", limit=1):
                    backend.complete_job(job.id, b"r" * 2_000, attempt=job.attempt)
                    completed.add(job.id)
        assert caught.value.retryable
        ballast.unlink()
        assert {job.id for job in all_jobs(backend)} == acknowledged
        assert {job.id for job in all_jobs(backend) if job.status is JobStatus.COMPLETED} == completed
        backend.enqueue_job(Job(id="after", type="t"))
        assert_sound(backend)
    with open_store(path) as backend:
        assert {job.id for job in all_jobs(backend)} == {*acknowledged, "after"}
        assert_sound(backend, path)


def test_a_store_cannot_be_made_on_a_full_disk_but_later(tiny_disk):
    path = tiny_disk / "jobs.db"
    ballast = tiny_disk / "ballast"
    with ballast.open("wb") as file, pytest.raises(OSError, match="space"):
        file.write(b"\0" * 4_000_000)
    with pytest.raises(BackendError, match=f"{path}"):
        open_store(path)
    ballast.unlink()
    with open_store(path) as backend:
        backend.enqueue_job(Job(id="a", type="t"))


# -- broken --------------------------------------------------------------------------------------------------------

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>
static long calls, fail_at, fail_for;
long fault_count(void) { return calls; }
void fault_arm(long at, long count) { calls = 0; fail_at = at; fail_for = count; }
static int fails(void) { calls++; return fail_at > 0 && calls >= fail_at && calls < fail_at + fail_for; }
#define GUARDED(result, name, parameters, arguments) \
    result name parameters { \
        static result (*real) parameters; \
        if (!real) real = dlsym(RTLD_NEXT, #name); \
        if (fails()) { errno = EIO; return -1; } \
        return real arguments; }
#ifdef WRITES
GUARDED(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
GUARDED(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
GUARDED(int, ftruncate64, (int fd, off64_t size), (fd, size))
GUARDED(int, ftruncate, (int fd, off_t size), (fd, size))
#else
GUARDED(int, fsync, (int fd), (fd))
GUARDED(int, fdatasync, (int fd), (fd))
#endif
"""

SWEEP = """
import ctypes, json
shim = ctypes.CDLL(arguments[0])
once = int(arguments[1])
acknowledged, completed, errors = [], [], 0
backend = store()
def life(number):
    for each in range(3):
        acknowledged.append(backend.enqueue_job(Job(id=f"{number}-{each}", type="t", payload=b"x" * 3000)))
    for job in backend.dequeue_jobs("w", limit=2):
        backend.complete_job(job.id, b"done", attempt=job.attempt)
        completed.append(job.id)
for number in range(int(arguments[2])):
    shim.fault_arm(ctypes.c_long(1 + number % 40), ctypes.c_long(once))
    try:
        if number % 10 == 9:
            backend.close()
            backend = store()
        life(number)
    except BackendError as error:
        assert error.retryable, error
        errors += 1
    shim.fault_arm(ctypes.c_long(0), ctypes.c_long(0))
    try:
        backend.get_job_stats()
    except QueueClosedError:
        backend = store()
say(json.dumps([acknowledged, completed, errors]))
"""


@pytest.fixture(scope="module", params=["writes", "syncs"])
def shim(request, tmp_path_factory):
    """A library that makes the n-th write, or the n-th flush, of a process fail with EIO."""
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    target = folder / f"{request.param}.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-w", "-o", str(target), str(folder / "shim.c"), "-ldl"]
    try:
        subprocess.run([*command, f"-D{request.param.upper()}"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no C compiler to break the disk with: {error}")
    return target


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("lasting", [1, 1000], ids=["once", "for a while"])
def test_an_input_output_error_is_told_and_never_acknowledged(path, shim, monkeypatch, lasting):
    """RELIABILITY F15: the fault comes at each place in turn; what was acknowledged is there, the rest is whole."""
    import json

    monkeypatch.setenv("LD_PRELOAD", str(shim))
    process = Child(SWEEP, path, shim, lasting, 120)
    answer = process.hear()
    assert process.wait() == 0
    process.end()
    acknowledged, completed, errors = json.loads(answer)
    assert errors > 20
    assert len(acknowledged) > 20
    with open_store(path) as backend:
        stored = {job.id: job for job in all_jobs(backend)}
        assert set(acknowledged) <= stored.keys()
        assert all(stored[name].status is JobStatus.COMPLETED for name in completed)
        assert all(stored[name].result == b"done" for name in completed)
        assert_sound(backend, path)
