"""Servers that end sessions, restart, freeze or lose the answer to a commit; locks and disks that are in the way."""

import contextlib
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path

import psycopg
import pytest
from psycopg import errors
from tests.postgres.proxy import dial
from tests.tiers import some
from tests.waiting import PATIENCE, until

import penstock
from penstock.backends.postgres import connection, faults, open_postgres
from penstock.errors import BackendError, OperationCancelledError, QueueClosedError
from penstock.job import Job, JobStatus
from penstock.testing import check_invariants


class Relay:
    """A socket between store and server that can be told when to cut.

    `cut_after` bytes from the client, or `cut_at` a word of the client: then both sides are closed, before the word is
    handed on, or (`after_answer`) once the server has answered it.
    """

    def __init__(self, folder, dial):
        self.folder, self._dial = folder, dial
        self.cut_after = self.cut_at = None
        self.after_answer = True
        self.cuts = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        with contextlib.suppress(OSError):  # closed already
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not wake the thread that accepts
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        server = self._dial()
        cutting, answered = threading.Event(), threading.Event()
        back = (client, server, cutting, answered)
        threading.Thread(target=self._back, args=back, daemon=True).start()
        passed = 0
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                limit = self.cut_after
                if limit is not None and passed + len(data) > limit:
                    self.cut_after = None
                    server.sendall(data[: max(0, limit - passed)])
                    self.cuts += 1
                    break
                passed += len(data)
                if self.cut_at is not None and self.cut_at in data:
                    self.cut_at = None
                    self.cuts += 1
                    if not self.after_answer:
                        break
                    cutting.set()
                    server.sendall(data)
                    answered.wait(PATIENCE)
                    break
                server.sendall(data)
        for each in (client, server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    @staticmethod
    def _back(client, server, cutting, answered):
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if cutting.is_set():
                    answered.set()
                else:
                    client.sendall(data)


@pytest.fixture
def relay(postgres_url):
    folder = Path(tempfile.mkdtemp(prefix="relay-"))
    relay = Relay(folder, lambda: dial(psycopg.conninfo.conninfo_to_dict(postgres_url)))
    yield relay
    relay.close()
    shutil.rmtree(folder)


@pytest.fixture
def through(relay, open_store, postgres_url):
    """Opens the store through the relay."""
    url = psycopg.conninfo.make_conninfo(postgres_url, host=str(relay.folder), port=5432)
    return lambda **options: open_store(url, **options)


WRITES = {
    "plain": lambda backend: backend.enqueue_job(Job(id="new", type="t", payload=b"p")),
    "keyed": lambda backend: backend.enqueue_job(Job(id="new", type="t", key="k")),
    "bulk": lambda backend: backend.enqueue_jobs(
        [Job(id="new", type="t"), *(Job.new("t") for _ in range(30))]
    ),
    "claim": lambda backend: backend.dequeue_jobs("w", limit=2),
    "complete": lambda backend: backend.complete_job("running", b"r", attempt=1),
    "fail": lambda backend: backend.fail_job("running", "no", attempt=1),
}
COMMITS = dict.fromkeys(WRITES, b"COMMIT\0") | {"plain": b"penstock_enqueue"}


def prepared(backend):
    backend.enqueue_job(Job(id="running", type="t"))
    backend.dequeue_jobs("before")
    backend.enqueue_job(Job(id="waiting", type="t"))


def effects(backend):
    """How often each job made each step."""
    rows = backend.read_journal()
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert not list(check_invariants(rows))
    return sorted(
        (row.job_id, row.verb, row.n) for row in rows if row.job_id in {"new", "running", "waiting"}
    )


@pytest.mark.parametrize("after_answer", [True, False], ids=["committed", "not-committed"])
@pytest.mark.parametrize("verb", WRITES)
def test_a_commit_whose_answer_is_lost_is_done_exactly_once(open_store, through, relay, verb, after_answer):
    """B17, Q55 (F11): the store asks what became of it, and runs the work again only if it was undone."""
    plain = open_store()
    prepared(plain)
    backend = through()
    if verb == "plain":
        backend.enqueue_job(Job.new("warm"))  # so that the statement is prepared and its name alone is sent
    relay.after_answer = after_answer
    relay.cut_at = COMMITS[verb]
    WRITES[verb](backend)
    assert relay.cuts == 1
    found = effects(plain)
    assert len(found) == len(set(found))
    expected = {"plain": 4, "keyed": 4, "bulk": 4, "claim": 4, "complete": 4, "fail": 4}
    assert len(found) == expected[verb]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("verb", ["plain", "keyed", "complete"])
def test_a_connection_cut_after_any_number_of_bytes_loses_and_doubles_nothing(
    open_store, through, relay, verb
):
    """B17, Q55 (F11): the sweep."""
    plain = open_store()
    backend = through(timeout=20.0)
    for number, cut in enumerate([*range(0, 300, 29), *range(300, 2600, 190)]):
        plain.enqueue_job(Job(id=f"running-{number}", type="t"))
        plain.dequeue_jobs("w", limit=5)
        relay.cut_after = cut
        if verb == "plain":
            backend.enqueue_job(Job(id=f"new-{number}", type="t", payload=b"p" * 50))
        elif verb == "keyed":
            backend.enqueue_job(Job(id=f"new-{number}", type="t", key="k"))
        else:
            backend.complete_job(f"running-{number}", b"r", attempt=1)
        backend._store._pool.forget_idle()
    rows = plain.read_journal(limit=5000)
    assert not list(check_invariants(rows))
    steps = [(row.job_id, row.verb) for row in rows]
    assert len(steps) == len(set(steps))
    assert relay.cuts > 5


def test_an_outcome_that_nobody_can_tell_is_said_to_be_unknown(through, relay, monkeypatch, open_store):
    """Q55: never a guess."""
    open_store()
    backend = through(timeout=2.0)
    monkeypatch.setattr("penstock.backends.postgres.runner._RESOLVE_SECONDS", 0.5)
    backend.enqueue_job(Job(id="a", type="t", key="k"))
    relay.cut_at = b"COMMIT\0"
    original = backend._store._resolve

    def resolve(*args):
        relay.close()
        (relay.folder / ".s.PGSQL.5432").unlink()
        return original(*args)

    backend._store._resolve = resolve
    with pytest.raises(BackendError) as caught:
        backend.enqueue_job(Job(id="b", type="t", key="k"))
    assert caught.value.outcome_unknown


def test_an_outcome_is_asked_for_as_long_as_the_call_may_take(through, relay, monkeypatch, open_store):
    """Q55: a server that restarts slowly, under load, is no reason for an error."""
    plain = open_store()
    backend = through(timeout=60.0)
    monkeypatch.setattr("penstock.backends.postgres.runner._RESOLVE_SECONDS", 0.1)
    backend.enqueue_job(Job(id="a", type="t", key="k"))
    relay.cut_at = b"COMMIT\0"
    original = backend._store._resolve
    door, aside = relay.folder / ".s.PGSQL.5432", relay.folder / "aside"
    returns = threading.Timer(1.0, lambda: aside.rename(door))

    def resolve(*args):
        door.rename(aside)
        returns.start()
        return original(*args)

    backend._store._resolve = resolve
    assert backend.enqueue_job(Job(id="b", type="t", key="k")) == "b"
    assert relay.cuts == 1
    assert plain.get_job("b").key == ("k",)


def test_sessions_that_the_server_ends_are_replaced(backend, admin):
    """Q55 (F4): idle ones and, with it, everything the pool held."""
    for number in range(10):
        backend.enqueue_job(Job(id=str(number), type="t"))
        backend.enqueue_job(Job(id=f"k{number}", type="t", key="k"))
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'penstock'"
        )
    assert backend.get_job_stats().total_jobs == 20


def test_an_iterator_is_stored_although_the_idle_session_was_ended(backend, admin):
    """Q15, Q55: it is read once, but nothing of it was read yet."""
    backend.enqueue_job(Job(id="a", type="t"))
    admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'penstock'"
    )
    assert len(backend.enqueue_jobs(Job.new("t") for _ in range(2_500))) == 2_500
    assert backend.get_job_stats().total_jobs == 2_501


def test_a_lock_in_the_way_ends_in_an_error_that_says_to_try_again(open_store, admin):
    """Q55: within the timeout, and nothing is left behind."""
    backend = open_store(timeout=2.0)
    backend.enqueue_job(Job(id="a", type="t"))
    backend.dequeue_jobs("w")
    with admin.transaction():
        admin.execute("SELECT FROM job FOR UPDATE")
        started = time.monotonic()
        with pytest.raises(BackendError) as caught:
            backend.fail_job("a", "no")
        assert time.monotonic() - started < 30
        assert caught.value.retryable
        assert not caught.value.outcome_unknown
    backend.fail_job("a", "no")
    idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
    assert admin.execute(idle).fetchone()[0] == 0


def test_a_scope_that_ends_while_a_lock_is_waited_for_withdraws_the_call(open_store, admin):
    """Q54, C62b."""
    backend = open_store()
    backend.enqueue_job(Job(id="a", type="t"))
    backend.dequeue_jobs("w")
    with admin.transaction():
        admin.execute("SELECT FROM job FOR UPDATE")
        with penstock.cancel_scope(timeout=0.3), pytest.raises(OperationCancelledError) as caught:
            backend.fail_job("a", "no")
        assert caught.value.timed_out
    assert backend.get_job("a").status is JobStatus.RUNNING


WAITING = {
    "cancel": ("SELECT FROM job FOR UPDATE", lambda backend: backend.cancel_jobs(job_ids=["a"])),
    "fail": ("SELECT FROM job FOR UPDATE", lambda backend: backend.fail_job("a", "no")),
    "complete": ("SELECT FROM job FOR UPDATE", lambda backend: backend.complete_job("a")),
    "claim": ("LOCK TABLE job", lambda backend: backend.dequeue_jobs("w")),
    "plain": (
        "LOCK TABLE payload",
        lambda backend: backend.enqueue_job(Job(id="new", type="t", payload=b"p")),
    ),
    "batch": (
        "LOCK TABLE payload",
        lambda backend: backend.enqueue_jobs(
            [Job(id="new", type="t", payload=b"p"), *map(Job.new, "t" * 30)]
        ),
    ),
    "iterator": (
        "LOCK TABLE payload",
        lambda backend: backend.enqueue_jobs(Job(id=name, type="t", payload=b"p") for name in ["new"]),
    ),
    "read": ("LOCK TABLE job", lambda backend: backend.get_job("a")),
    "journal": ("LOCK TABLE journal_inbox", lambda backend: backend.read_journal()),
}


@pytest.mark.parametrize(("lock", "verb"), WAITING.values(), ids=WAITING)
@pytest.mark.parametrize("way", some(["by hand", "by time"], ["by hand"]))
def test_a_scope_interrupts_a_statement_that_waits(open_store, admin, call, lock, verb, way):
    """Q54: soon, without any effect; the connection is not used again."""
    backend = open_store(pool_size=1)
    backend.enqueue_job(Job(id="a", type="t"))
    backend.dequeue_jobs("w")
    scope = penstock.cancel_scope(0.4 if way == "by time" else None)

    def inside():
        with scope:
            return verb(backend)

    with admin.transaction():
        admin.execute(lock)
        waiting = call(inside)
        assert waiting.is_waiting(0.2)
        if way == "by hand":
            scope.cancel()
        with pytest.raises(OperationCancelledError) as caught:
            waiting.result(1.5)
        assert caught.value.timed_out is (way == "by time")
    job = backend.get_job("a")
    assert job.status is JobStatus.RUNNING
    assert [each.id for each in backend.list_jobs()] == ["a"]
    backend.complete_job("a")


def test_a_scope_that_ends_during_the_commit_changes_nothing(open_store, admin, call):
    """Q54: once COMMIT is sent, its outcome is awaited and told."""
    backend = open_store()
    admin.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN PERFORM pg_sleep(1); RETURN NULL; END'"
    )
    admin.execute(
        "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON job DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION slow()"
    )
    scope = penstock.cancel_scope()

    def inside():
        with scope:
            return backend.enqueue_job(Job(id="a", type="t", key="k"))

    storing = call(inside)
    assert storing.is_waiting(0.5)
    scope.cancel()
    assert storing.result(5) == "a"
    assert backend.get_job("a").id == "a"


def test_an_interrupt_hits_no_other_call(open_store, monkeypatch):
    """Q54: whenever it comes; what follows on the same pool is not disturbed, and each answer is the truth."""
    monkeypatch.setattr(connection, "_GLANCE", 0.0001)
    sent = []
    interrupt = connection.BoundedConnection._interrupt
    monkeypatch.setattr(
        connection.BoundedConnection,
        "_interrupt",
        lambda self, timeout: sent.append(interrupt(self, timeout)),
    )
    backend = open_store(pool_size=1)
    stored, cancelled = [], 0
    for number in range(150):
        scope = penstock.cancel_scope()
        timer = threading.Timer(0.0001 * (number % 60), scope.cancel)
        timer.start()
        job = Job(id=f"{number}", type="t", key="k" if number % 2 else None)
        try:
            with scope:
                backend.enqueue_jobs([job]) if number % 3 else backend.enqueue_job(job)
            stored.append(job.id)
        except OperationCancelledError:
            cancelled += 1
        backend.enqueue_job(Job(id=f"{number}-next", type="t", key="l"))
        timer.join()
    found = {job.id for job in backend.list_jobs(limit=1000)}
    assert {name for name in found if not name.endswith("next")} == set(stored)
    assert len(found) == len(stored) + 150
    assert cancelled
    assert sent


def test_a_scope_withdraws_a_call_that_waits_for_a_connection(open_store, gate_of, call):
    """Q54, C62b: by time and by hand."""
    backend = open_store(pool_size=1)
    gate = gate_of(backend)
    held = call(backend.enqueue_job, Job(id="a", type="t", key="k"))
    assert gate.arrived.wait(10)
    with penstock.cancel_scope(timeout=0.2), pytest.raises(OperationCancelledError):
        backend.get_job("a")
    scope = penstock.cancel_scope()

    def waiting():
        with scope:
            return backend.get_job("a")

    under_way = call(waiting)
    assert under_way.is_waiting()
    scope.cancel()
    with pytest.raises(OperationCancelledError):
        under_way.result(5)
    gate.open.set()
    held.result()


def test_a_frozen_server_does_not_hold_a_call_for_ever(open_store, proxy):
    """Q55 (F12): the deadline is the client's own."""
    backend = open_store(proxy.url, timeout=1.0, pool_size=1)
    backend.enqueue_job(Job(id="a", type="t"))
    with proxy.frozen():
        with pytest.raises(BackendError) as caught:
            backend.get_job("a")
        assert caught.value.retryable
    assert backend.get_job("a").id == "a"


@pytest.mark.parametrize(
    ("error", "retryable", "word"),
    [
        (errors.DiskFull("full"), True, "disk"),
        (errors.OutOfMemory("memory"), True, "resources"),
        (errors.TooManyConnections("many"), True, "resources"),
        (errors.LockNotAvailable("lock"), True, "lock"),
        (errors.QueryCanceled("late"), True, "time"),
        (errors.AdminShutdown("down"), True, "reached"),
        (errors.CannotConnectNow("starting"), True, "reached"),
        (errors.ReadOnlySqlTransaction("standby"), True, "read-only"),
        (errors.DeadlockDetected("dead"), True, "collide"),
        (psycopg.OperationalError("connection refused"), True, "reached"),
        (errors.InvalidPassword("no"), False, "password"),
        (errors.InsufficientPrivilege("no"), False, "privilege"),
        (errors.UndefinedTable("no"), False, "migrate"),
        (errors.DataCorrupted("bad"), False, "damaged"),
        (errors.SyntaxError("bug"), False, "refused"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
def test_faults_of_the_server_say_what_to_do(error, retryable, word):
    """Q55 (F14)."""
    ours = faults.translate(error)
    assert ours.retryable is retryable
    assert word in str(ours)


def test_a_server_that_is_not_there_is_reported(open_store):
    """Q55."""
    with pytest.raises(BackendError) as caught:
        open_postgres("postgresql://nobody@/nowhere?host=/nonexistent", clock=None, options={"timeout": 0.5})
    assert caught.value.retryable


def test_a_closed_store_ends_calls_that_wait_for_a_connection(open_store, gate_of, call):
    """B16, C18."""
    backend = open_store(pool_size=1)
    gate = gate_of(backend)
    held = call(backend.enqueue_job, Job(id="a", type="t", key="k"))
    assert gate.arrived.wait(10)
    waiting = call(backend.get_job, "a")
    assert waiting.is_waiting()
    backend.close()
    with pytest.raises(QueueClosedError):
        waiting.result(5)
    gate.open.set()
    held.result()


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("way", some(["fast", "immediate", "kill"], ["kill"]))
def test_the_store_goes_on_after_a_restart_under_use(server, way):
    """Q55, B20 (F5, F6): nothing acknowledged is lost, nothing happens twice, recovery takes seconds."""
    backend = open_postgres(server.url, clock=None, options={"schema": f"restart_{way}", "timeout": 60.0})
    acknowledged, problems = [], []
    stop = threading.Event()

    def work(number):
        turn = 0
        while not stop.is_set():
            turn += 1
            job = Job(id=f"{number}-{turn}", type="t", key=f"k{number}" if turn % 2 else None)
            try:
                backend.enqueue_job(job)
                acknowledged.append(job.id)
                for taken in backend.dequeue_jobs(f"w{number}", limit=2):
                    backend.complete_job(taken.id, b"r", attempt=taken.attempt)
            except BackendError as error:
                problems.append(error)
            except Exception as error:
                problems.append(error)
                raise

    def acknowledges_more():
        enough = len(acknowledged) + 8
        return lambda: len(acknowledged) >= enough

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for _ in range(2):
        until(acknowledges_more(), "work before the restart")
        if way == "kill":
            server.kill()
        else:
            server.control("stop", "-m", way)
        server.start()
        until(acknowledges_more(), "work after the restart")
    stop.set()
    for each in threads:
        each.join(60)
    rows = []
    while page := backend.read_journal(rows[-1].seq if rows else 0):
        rows += page
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert not list(check_invariants(rows))
    assert set(acknowledged) <= {row.job_id for row in rows}
    assert not problems
    backend.close()


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_store_survives_the_kill_of_one_backend(server):
    """Q55 (F4): the server then restarts all of its sessions."""
    backend = open_postgres(server.url, clock=None, options={"schema": "killed", "timeout": 60.0})
    with backend:
        for number in range(3):
            backend.enqueue_job(Job(id=f"{number}", type="t", key="k"))
            with psycopg.connect(server.url, autocommit=True) as connection:
                pid = connection.execute(
                    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'penstock' LIMIT 1"
                ).fetchone()[0]
                os.kill(pid, signal.SIGKILL)
            backend.enqueue_job(Job(id=f"{number}-after", type="t"))
        assert backend.get_job_stats().total_jobs == 6
        assert len(backend.read_journal()) == 6


REFUSED = {
    "enqueue": lambda backend: backend.enqueue_job(Job(id="new", type="t")),
    "enqueue keyed": lambda backend: backend.enqueue_job(Job(id="new", type="t", key="k")),
    "enqueue after": lambda backend: backend.enqueue_job(Job(id="new", type="t", after=("waits",))),
    "batch": lambda backend: backend.enqueue_jobs([Job.new("t") for _ in range(30)]),
    "iterator": lambda backend: backend.enqueue_jobs(Job.new("t") for _ in range(3)),
    "spawn": lambda backend: backend.spawn_jobs("runs", [Job(id="new", type="t")]),
    "claim": lambda backend: backend.dequeue_jobs("w"),
    "claim listed": lambda backend: backend.dequeue_jobs("w", job_ids=["waits"]),
    "complete": lambda backend: backend.complete_job("runs"),
    "fail": lambda backend: backend.fail_job("runs", "no"),
    "cancel": lambda backend: backend.cancel_jobs(job_ids=["waits"]),
    "heartbeat": lambda backend: backend.heartbeat("w"),
    "progress": lambda backend: backend.save_progress("runs", 5),
    "update": lambda backend: backend.update_job("waits", tags=("y",)),
    "block": lambda backend: backend.set_blocked(True),
    "owner": lambda backend: backend.owners.open(),
    "maintain": lambda backend: backend.maintain(),
}


def check_read_only(backend):
    """Every write is refused, for certain and soon; every read works."""
    for verb, write in REFUSED.items():
        started = time.monotonic()
        with pytest.raises(BackendError) as caught:
            write(backend)
        assert caught.value.retryable, verb
        assert not caught.value.outcome_unknown, verb
        assert "read-only" in str(caught.value), verb
        assert time.monotonic() - started < 5, verb
    assert backend.get_job("runs").status is JobStatus.RUNNING
    assert len(backend.list_jobs()) == 2
    assert backend.get_job_stats().total_jobs == 2
    assert backend.get_job_stats(("x",)).total_jobs == 1
    assert not backend.is_blocked()
    assert [entry.job_id for entry in backend.read_journal()] == ["runs"]


def fill(backend):
    """One job that runs, numbered in the journal, and one that waits, not yet numbered."""
    backend.enqueue_job(Job(id="runs", type="t"))
    backend.read_journal()
    backend.dequeue_jobs("w")
    backend.enqueue_job(Job(id="waits", type="t", tags=("x",)))


def test_a_role_that_may_only_read_is_refused_for_certain(open_store, postgres_url):
    """Q55: by every verb, whatever it begins with; and it reads."""
    backend = open_store()
    fill(backend)
    options = "-c default_transaction_read_only=on"
    check_read_only(open_store(psycopg.conninfo.make_conninfo(postgres_url, options=options)))
    assert len(backend.read_journal()) == 3
    backend.complete_job("runs")


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_standby_refuses_and_takes_writes_again_when_it_is_promoted(server):
    """Q55: failover; the store's object goes on."""
    with open_postgres(server.url, clock=None, options={"schema": "standby"}) as backend:
        fill(backend)
        server.control("stop", "-m", "fast")
        signal_file = server.data / "standby.signal"
        signal_file.touch()
        shutil.chown(signal_file, server.data.stat().st_uid)
        server.start()
        assert (
            backend.get_job("runs").id == "runs"
        )  # on a new connection: of a lost one nobody could say what it did
        check_read_only(backend)
        promoted = threading.Timer(1.0, server.control, ["promote"])
        promoted.start()

        def is_stored():
            with contextlib.suppress(BackendError):
                backend.enqueue_job(Job(id="after", type="t", key="k"))
                return True
            return False

        until(is_stored)
        promoted.join()
        backend.enqueue_job(Job(id="plain", type="t"))
        backend.complete_job("runs")
        assert len(backend.read_journal()) == 6
