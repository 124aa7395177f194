"""Nudges between processes: who is told of what, how often, and what happens when the server or the process goes away."""

import os
import signal
import subprocess
import sys
import threading
import time

import psycopg
import pytest
from tests.waiting import freeze, pass_time, until

import penstock
from penstock.backends.postgres import notifications, open_postgres
from penstock.job import Job

SOON = 20.0
LISTENERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN \"penstock_%%' AND query LIKE %s"
SUBMIT = """
import sys
import penstock
from penstock import Job
with penstock.open_backend(sys.argv[1], schema=sys.argv[2]) as backend:
    backend.enqueue_job(Job(id=sys.argv[3], type="t"))
"""


class Watcher:
    """Counts what it is told. The first call says that the listener listens."""

    def __init__(self, backend):
        self.calls = 0
        self._changed = threading.Condition()
        self.stop = backend.runtime.watch(self._called)
        self.await_calls(1)

    def _called(self):
        with self._changed:
            self.calls += 1
            self._changed.notify_all()

    def await_calls(self, number):
        with self._changed:
            assert self._changed.wait_for(lambda: self.calls >= number, SOON), "nobody called"

    def is_told_of(self, action):
        """Whether the action makes it be called, after what is still on its way has come."""
        with self._changed:
            while self._changed.wait(2 * notifications._MAX_GAP_SECONDS):
                pass
        before = self.calls
        action()
        with self._changed:
            return self._changed.wait_for(lambda: self.calls > before, 0.5)


@pytest.fixture(autouse=True)
def of_others():
    """Threads that a test before this one has left, such as those of a queue that is not collected yet."""
    found = set(threading.enumerate())
    _of_others.update(found)
    yield
    _of_others.clear()


_of_others: set[threading.Thread] = set()


def threads():
    """The names of the threads that this test has started, and that live."""
    return {
        each.name
        for each in threading.enumerate()
        if each.name.startswith("penstock-") and each not in _of_others
    }


@pytest.mark.process
def test_a_submission_of_another_process_is_told(open_store, postgres_url, schema):
    """Q13, Q34: only a notification calls the watcher."""
    watcher = Watcher(open_store())
    subprocess.run([sys.executable, "-c", SUBMIT, postgres_url, schema, "theirs"], check=True)
    watcher.await_calls(2)


def test_what_streams_elsewhere_want_to_know_is_told_and_nothing_else(open_store):
    """Q13, Q28: new, freed, handed back, cancelled and lost jobs; neither claims nor reports that concern nobody."""
    here, there = open_store(), open_store()
    watcher = Watcher(here)
    owner = here.owners.open()

    def held(job_id):
        here.enqueue_job(Job(id=job_id, type=job_id))
        (job,) = here.dequeue_jobs("w", types=[job_id], owner=owner)
        return job.id

    assert watcher.is_told_of(lambda: there.enqueue_job(Job(id="plain", type="t")))
    assert watcher.is_told_of(lambda: there.enqueue_jobs([Job(id=f"{n}", type="t") for n in range(30)]))
    assert watcher.is_told_of(lambda: there.enqueue_job(Job(id="keyed", type="t", key="k")))
    assert not watcher.is_told_of(lambda: there.enqueue_job(Job(id="second", type="t", key="k")))
    assert not watcher.is_told_of(lambda: there.dequeue_jobs("w", limit=5))
    assert not watcher.is_told_of(lambda: there.complete_job("plain"))
    assert not watcher.is_told_of(lambda: here.enqueue_job(Job(id="own", type="t")))
    assert not watcher.is_told_of(there.get_job_stats)
    for end in (
        there.complete_job,
        lambda job_id: there.complete_jobs({job_id: b"result"}),
        lambda job_id: there.fail_job(job_id, "no"),
        lambda job_id: there.cancel_jobs(job_ids=[job_id]),
        lambda job_id: there.release_jobs({job_id: "back"}),
    ):
        job_id = held(f"held-{time.monotonic_ns()}")
        assert watcher.is_told_of(lambda end=end, job_id=job_id: end(job_id))
    held("lost")
    assert watcher.is_told_of(lambda: there.mark_worker_unresponsive("w"))
    job_id = held("ours")
    assert not watcher.is_told_of(lambda: here.complete_job(job_id))


def test_a_dependent_that_becomes_ready_is_told(open_store):
    """Q13."""
    here, there = open_store(), open_store()
    there.enqueue_jobs([Job(id="first", type="t"), Job(id="then", type="t", after=("first",))])
    there.dequeue_jobs("w")
    watcher = Watcher(here)
    assert watcher.is_told_of(lambda: there.complete_job("first"))


def test_many_submissions_share_few_nudges_and_the_last_is_told(open_store):
    """W1c: NOTIFY is rare, and what comes last is not forgotten."""
    here, there = open_store(), open_store()
    watcher = Watcher(here)
    began = time.monotonic()
    for number in range(500):
        there.enqueue_job(Job(id=f"{number}", type="t"))
        told = watcher.calls
    # Twice as many as gaps fit: on a busy machine a gap ends late, and the next one is shorter.
    most = 10 + 2 * (time.monotonic() - began) / notifications._MAX_GAP_SECONDS
    assert watcher.calls <= most
    watcher.await_calls(told + 1)


def test_nobody_is_nudged_when_nobody_listens(backend, postgres_url, schema):
    """W1: a stranger who only LISTENs shows that no NOTIFY is sent."""
    with psycopg.connect(postgres_url, autocommit=True) as stranger:
        stranger.execute(f'LISTEN "{notifications.channel_of(schema)}"')
        backend.enqueue_job(Job(id="unheard", type="t"))
        assert not list(stranger.notifies(timeout=0.3))
        watcher = Watcher(backend)
        backend.enqueue_job(Job(id="heard", type="t"))
        assert list(stranger.notifies(timeout=SOON, stop_after=1))
        watcher.stop()


def test_two_schemas_do_not_disturb_each_other(open_store, postgres_url, schema, admin):
    """B17."""
    watcher = Watcher(open_store())
    other = f"{schema}_other"
    with open_postgres(postgres_url, clock=None, options={"schema": other}) as there:
        assert not watcher.is_told_of(lambda: there.enqueue_job(Job(id="a", type="t")))
        own = Watcher(there)
        assert own.stop is not watcher.stop
    admin.execute(f"DROP SCHEMA {other} CASCADE")
    assert len(notifications.channel_of("s" * 63).encode()) < 64
    assert notifications.channel_of("s" * 62 + "a") != notifications.channel_of("s" * 62 + "b")


def test_several_watchers_share_one_connection_which_ends_with_the_last(open_store, admin, schema):
    """B17."""
    backend, there = open_store(), open_store()
    first = Watcher(backend)
    calls = []
    second = backend.runtime.watch(lambda: calls.append(1))
    assert admin.execute(LISTENERS, (f"%{schema}%",)).fetchone()[0] == 1
    assert first.is_told_of(lambda: there.enqueue_job(Job(id="a", type="t")))
    until(lambda: calls)
    first.stop()
    assert "penstock-listen" in threads()
    second()
    second()
    assert "penstock-listen" not in threads()
    until(lambda: admin.execute(LISTENERS, (f"%{schema}%",)).fetchone()[0] == 0)
    again = Watcher(backend)
    assert again.is_told_of(lambda: there.enqueue_job(Job(id="b", type="t")))


def test_closing_the_store_ends_threads_and_connections(open_store, admin, schema):
    """B17."""
    backend = open_store()
    before = threads()
    watcher = Watcher(backend)
    for number in range(20):
        backend.enqueue_job(Job(id=f"{number}", type="t"))
    assert {"penstock-listen", "penstock-notify"} <= threads()
    backend.close()
    assert threads() == before
    until(lambda: admin.execute(LISTENERS, (f"%{schema}%",)).fetchone()[0] == 0)
    watcher.stop()
    with pytest.raises(penstock.QueueClosedError):
        backend.runtime.watch(lambda: None)


def test_a_nudge_that_is_due_goes_out_before_the_store_closes(open_store):
    """Q13."""
    here, there = open_store(), open_store()
    watcher = Watcher(here)
    for number in range(200):
        there.enqueue_job(Job(id=f"{number}", type="t"))
    told = watcher.calls
    there.close()
    watcher.await_calls(told + 1)


def test_a_watcher_that_fails_does_not_silence_the_others(open_store):
    """B17."""
    here, there = open_store(), open_store()
    stop = here.runtime.watch(lambda: 1 / 0)
    watcher = Watcher(here)
    assert watcher.is_told_of(lambda: there.enqueue_job(Job(id="a", type="t")))
    stop()


@pytest.mark.parametrize("options", [{"pgbouncer": True}, {"listen": False}], ids=str)
def test_behind_a_pooler_and_when_told_so_nobody_listens(open_store, admin, schema, options):
    """B17: LISTEN does not work behind a pooler; looking does."""
    backend = open_store(**options)
    stop = backend.runtime.watch(lambda: None)
    assert "penstock-listen" not in threads()
    backend.enqueue_job(Job(id="a", type="t"))
    assert backend.runtime.has_foreign_changes()
    stop()
    assert admin.execute(LISTENERS, (f"%{schema}%",)).fetchone()[0] == 0


@pytest.mark.process
def test_a_forked_child_has_no_listener_and_leaves_the_parents_alone(open_store):
    """B17."""
    backend, there = open_store(), open_store()
    watcher = Watcher(backend)
    for number in range(20):
        backend.enqueue_job(Job(id=f"{number}", type="t"))
    pid = os.fork()
    if not pid:
        status = 1
        try:
            watcher.stop()
            calls = watcher.calls
            backend.enqueue_job(Job(id="child", type="t"))
            own = Watcher(backend)
            own.stop()
            status = 0 if watcher.calls == calls else 2
            backend.close()
        finally:
            os._exit(status)
    watcher.await_calls(2)  # the child's submission
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert watcher.is_told_of(lambda: there.enqueue_job(Job(id="after", type="t")))


@pytest.mark.process
def test_a_listener_whose_session_is_ended_comes_back_and_says_so(open_store, admin, schema):
    """Q55: nudges were lost meanwhile, so whoever watches has to look."""
    here, there = open_store(), open_store()
    watcher = Watcher(here)
    calls = watcher.calls
    admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE %s",
        (f"LISTEN%{schema}%",),
    )
    watcher.await_calls(calls + 1)
    assert watcher.is_told_of(lambda: there.enqueue_job(Job(id="a", type="t")))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_watcher_survives_a_restart_of_the_server(server):
    """Q55."""
    with (
        open_postgres(server.url, clock=None, options={"schema": "watched"}) as here,
        open_postgres(server.url, clock=None, options={"schema": "watched"}) as there,
    ):
        watcher = Watcher(here)
        for way in ("fast", "immediate"):
            server.control("stop", "-m", way)
            calls = watcher.calls
            server.start()
            watcher.await_calls(calls + 1)
            there.enqueue_job(Job(id=way, type="t"))
            assert watcher.is_told_of(lambda way=way: there.enqueue_job(Job(id=f"{way}2", type="t")))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_closing_does_not_wait_for_a_server_that_is_gone_or_frozen(server):
    """Q55."""
    backend = open_postgres(server.url, clock=None, options={"schema": "gone"})
    watcher = Watcher(backend)
    postmaster = int((server.data / "postmaster.pid").read_text().split()[0])
    with psycopg.connect(server.url, autocommit=True) as connection:
        listening = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        ).fetchone()
    freeze(postmaster)
    try:
        # The listener has to connect again, to a server that does not answer.
        os.kill(listening[0], signal.SIGTERM)
        pass_time(0.3)
        began = time.monotonic()
        watcher.stop()
        assert time.monotonic() - began < 5
    finally:
        os.kill(postmaster, signal.SIGCONT)
    backend.close()
