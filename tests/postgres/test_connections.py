"""Connections: few, private to their process, and nothing of a session is relied on."""

import os
import threading

import psycopg
import pytest
from tests.waiting import until

import penstock
from penstock.backends.postgres.group_commit import PlainGroups
from penstock.errors import InvalidArgumentError, JobExistsError, OperationCancelledError, QueueBlockedError
from penstock.job import Job, JobStatus

COUNT = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'penstock'"


def test_wrong_options_are_named_all_at_once(postgres_url):
    """RELIABILITY 3: of the store, of all stores, unknown ones, and the clock; nothing is opened."""
    wrong = {
        "schema": "", "pool_size": 0, "timeout": -1, "migrate": 1, "pgbouncer": None, "listen": "no",
        "max_payload": 0, "foo": 1,
    }  # fmt: skip
    with pytest.raises(InvalidArgumentError) as caught:
        penstock.open_backend(postgres_url, clock=5, **wrong)
    assert caught.value.field == "options"
    for name in (*wrong, "clock"):
        assert name in str(caught.value)
    for each in wrong.items():
        with pytest.raises(InvalidArgumentError, match=each[0]):
            penstock.open_backend(postgres_url, **dict([each]))


def test_the_url_may_name_the_schema_and_a_pooler(open_store, schema, postgres_url):
    open_store().enqueue_job(penstock.Job(id="there", type="t"))
    mark = "&" if "?" in postgres_url else "?"
    with penstock.open_backend(f"{postgres_url}{mark}schema={schema}&pgbouncer=true") as backend:
        assert backend.get_job("there").type == "t"


@pytest.mark.parametrize(
    ("query", "options", "said"),
    [
        ("schema=a&schema=b", {}, "twice"),
        ("schema=a", {"schema": "a"}, "in the url and as an option"),
        ("schema=pg_a", {}, "pg_a"),
        ("schema=", {}, "schema"),
        ("pgbouncer=yes", {}, "true or false"),
        ("colour=red", {}, "colour"),
    ],
)
def test_a_wrong_query_of_the_url_is_refused(query, options, said, postgres_url):
    mark = "&" if "?" in postgres_url else "?"
    with pytest.raises(InvalidArgumentError, match=said):
        penstock.open_backend(f"{postgres_url}{mark}{query}", **options)


@pytest.mark.parametrize("url", ["memory:", "postgresql://nobody@/nowhere?host=/nonexistent"])
def test_a_wrong_clock_is_named_with_the_rest(url):
    """RELIABILITY 3."""
    with pytest.raises(InvalidArgumentError, match=r"clock.*foo"):
        penstock.open_backend(url, clock=5, foo=1)
    with pytest.raises(InvalidArgumentError, match="clock") as caught:
        penstock.open_backend(url, clock=5)
    assert caught.value.field == "clock"


@pytest.mark.parametrize("schema", ["pg_x", "pg_catalog"])
def test_a_schema_of_the_servers_own_is_refused(postgres_url, schema):
    """RELIABILITY 3: before the server is asked."""
    with pytest.raises(InvalidArgumentError, match="pg_"):
        penstock.open_backend(postgres_url, schema=schema)


def test_a_store_uses_no_more_connections_than_it_may(open_store, admin):
    """B16: and gives them back."""
    before = admin.execute(COUNT).fetchone()[0]
    backend = open_store(pool_size=2)
    most = []

    def work(number):
        for turn in range(15):
            backend.enqueue_job(Job(id=f"{number}-{turn}", type="t", key="k"))
            most.append(backend.get_job_stats().total_jobs)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()

    def are_done():
        assert admin.execute(COUNT).fetchone()[0] - before <= 2
        return not any(each.is_alive() for each in threads)

    until(are_done)
    assert backend.get_job_stats().total_jobs == 120
    backend.close()
    until(lambda: admin.execute(COUNT).fetchone()[0] <= before)


@pytest.mark.process
def test_a_forked_child_opens_connections_of_its_own(open_store):
    """B17: parent and child go on, also while other threads of the parent were in the middle of calls."""
    backend = open_store()
    backend.enqueue_job(Job(id="before", type="t"))
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            backend.enqueue_job(Job.new("busy"))

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for each in threads:
        each.start()
    until(lambda: backend.get_job_stats().total_jobs > 10)
    children = []
    for number in range(3):
        pid = os.fork()
        if not pid:
            status = 1
            try:
                backend.enqueue_job(Job(id=f"child-{number}", type="t"))
                backend.enqueue_job(Job(id=f"child-{number}-keyed", type="t", key="k"))
                status = 0 if backend.get_job("before").id == "before" else 2
            finally:
                os._exit(status)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    stop.set()
    for each in threads:
        each.join(20)
    assert codes == [0, 0, 0]
    assert len(backend.get_jobs([f"child-{number}" for number in range(3)])) == 3
    backend.enqueue_job(Job(id="after", type="t"))


class Shuffling:
    """What a pooler in transaction mode does: each transaction may run in another session, which others used before."""

    def __init__(self, pool):
        self._acquire = pool.acquire
        pool.acquire = self.acquire
        self.sessions = set()

    def acquire(self, patience):
        connection = self._acquire(patience)
        self.sessions.add(connection.info.backend_pid)
        # Whoever had the session before left it as it likes.
        connection.execute("DEALLOCATE ALL", prepare=False)
        connection.execute("DISCARD ALL", prepare=False)
        connection.execute("SET search_path = pg_catalog", prepare=False)
        connection.execute("SET default_transaction_isolation = 'serializable'", prepare=False)
        return connection


def test_everything_works_behind_a_pooler_in_transaction_mode(open_store):
    """B17: nothing prepared, no setting, no lock and no search path outlives a transaction."""
    backend = open_store(pgbouncer=True)
    Shuffling(backend._store._pool)
    backend.enqueue_job(Job(id="a", type="t", payload=b"p", tags=("x",)))
    backend.enqueue_jobs([Job(id=f"b{number}", type="t", tags=("x",)) for number in range(30)])
    backend.enqueue_jobs([Job(id="k1", type="t", key="k"), Job(id="k2", type="t", key="k", after=("a",))])
    jobs = backend.dequeue_jobs("w", limit=40)
    assert len(jobs) == 32
    backend.complete_jobs({job.id: b"r" for job in jobs})
    assert [job.id for job in backend.dequeue_jobs("w", limit=5)] == ["k2"]
    backend.fail_job("k2", "no")
    assert backend.get_job("k2").status is JobStatus.FAILED_RETRY
    assert backend.dequeue_jobs("w", tags=("x",)) == []
    assert backend.get_job_stats(("x",)).completed_jobs == 31
    rows = backend.read_journal()
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    backend.maintain()
    assert backend.get_job_stats().total_jobs == 33


def test_without_a_clock_every_moment_is_the_servers(open_store, admin):
    """B3, G31."""
    backend = open_store()
    before, after = ("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint" for _ in range(2))
    first = admin.execute(before).fetchone()[0]
    backend.enqueue_job(Job(id="a", type="t"))
    backend.dequeue_jobs("w")
    backend.complete_job("a")
    last = admin.execute(after).fetchone()[0]
    job = backend.get_job("a")
    moments = [job.created_at, job.scheduled_at, job.started_at, job.finalized_at]
    assert moments == sorted(moments)
    for moment in moments:
        assert first <= round(moment.timestamp() * 1_000_000) <= last


def test_jobs_of_threads_that_come_together_are_stored_together(open_store, admin):
    """Q11, Q18, Q52: fewer transactions than jobs, and each refusal is its own."""
    backend = open_store()
    backend.enqueue_job(Job(id="taken", type="t"))
    errors, ids = [], []

    def work(number):
        for turn in range(40):
            ids.append(f"{number}-{turn}")
            backend.enqueue_job(Job(id=ids[-1], type="t", tags=("x",) if turn % 3 else ()))
            if turn % 10 == 0:
                try:
                    backend.enqueue_job(Job(id="taken", type="t"))
                except JobExistsError as error:
                    errors.append(error.job_id)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    assert errors == ["taken"] * 32
    assert backend.get_job_stats().total_jobs == 8 * 40 + 1
    transactions = admin.execute("SELECT count(DISTINCT xmin::text) FROM job").fetchone()[0]
    assert transactions < 8 * 40
    backend.set_blocked(True)
    with pytest.raises(QueueBlockedError):
        backend.enqueue_job(Job.new("t"))


class TestGathering:
    """The line of callers alone, with a store that does what the test says."""

    def held(self, gatherer_store):
        started, go = threading.Event(), threading.Event()
        batches = []

        def store(jobs):
            batches.append([job.id for job in jobs])
            started.set()
            assert go.wait(10)
            return gatherer_store(jobs)

        return PlainGroups(store, 30.0), started, go, batches

    def test_who_comes_while_one_stores_goes_together_next(self, call):
        group_commit, started, go, batches = self.held(lambda jobs: [None] * len(jobs))
        calls = [call(group_commit.run, Job(id="0", type="t"))]
        assert started.wait(5)
        calls += [call(group_commit.run, Job(id=str(number), type="t")) for number in range(1, 6)]
        until(lambda: len(group_commit._waiting) == 5)
        go.set()
        for each in calls:
            each.result(5)
        assert batches[0] == ["0"]
        assert sorted(job_id for batch in batches[1:] for job_id in batch) == ["1", "2", "3", "4", "5"]
        assert len(batches) <= 3

    def test_a_scope_withdraws_who_still_waits(self, call):
        """Q54, C62b: by time and by hand; the others are not disturbed."""
        group_commit, started, go, batches = self.held(lambda jobs: [None] * len(jobs))
        first = call(group_commit.run, Job(id="first", type="t"))
        assert started.wait(5)
        scope = penstock.cancel_scope()

        def add(name, within):
            with within:
                group_commit.run(Job(id=name, type="t"))

        by_time = call(add, "by time", penstock.cancel_scope(timeout=0.1))
        by_hand = call(add, "by hand", scope)
        stays = call(add, "stays", penstock.cancel_scope(timeout=30))
        until(lambda: len(group_commit._waiting) >= 2)
        scope.cancel()
        for each in (by_time, by_hand):
            with pytest.raises(OperationCancelledError):
                each.result(5)
        go.set()
        first.result(5)
        stays.result(5)
        assert batches == [["first"], ["stays"]]

    def test_a_fault_of_the_store_reaches_everyone_in_the_batch(self, call):
        def fail(jobs):
            raise penstock.BackendError("gone", retryable=True)

        group_commit, started, go, _ = self.held(fail)
        calls = [call(group_commit.run, Job(id=str(number), type="t")) for number in range(4)]
        assert started.wait(5)
        go.set()
        for each in calls:
            with pytest.raises(penstock.BackendError) as caught:
                each.result(5)
            assert caught.value.retryable
        assert group_commit._leader is None


def test_no_session_stays_in_a_transaction(backend, admin, postgres_url):
    """B16: after errors of every kind."""
    backend.enqueue_job(Job(id="a", type="t"))
    for wrong in (
        lambda: backend.enqueue_job(Job(id="a", type="t")),
        lambda: backend.enqueue_job(Job(id="a", type="t", key="k")),
        lambda: backend.enqueue_jobs(
            [Job(id=str(each), type="t") for each in range(30)] + [Job(id="a", type="t")]
        ),
        lambda: backend.complete_job("nobody"),
        lambda: backend.enqueue_job(Job(id="b", type="t", after=("nobody",))),
        lambda: backend.list_jobs(after="nobody"),
    ):
        with pytest.raises(penstock.PenstockError):
            wrong()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        states = connection.execute(
            "SELECT DISTINCT state FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'penstock'"
        ).fetchall()
    assert states == [("idle",)]
    assert backend.get_job_stats().total_jobs == 1
