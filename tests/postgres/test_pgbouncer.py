"""Behind a real PgBouncer in transaction mode: sessions change hands between any two transactions."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from tests.waiting import until

import penstock
from penstock import BackendError, Job, JobStatus, cancel_scope
from penstock.backends.postgres import PostgresBackend
from penstock.testing import check_invariants

SESSIONS = 2
SOON = 60.0


def pooler() -> str:
    found = shutil.which("pgbouncer", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))
    if found is None:
        pytest.skip("PgBouncer is not installed (on Debian: apt install pgbouncer): nothing here is tested")
    return found


@pytest.fixture(scope="module")
def bouncer_url(postgres_url: str) -> Iterator[str]:
    """The address of a PgBouncer that has fewer sessions than its clients have connections."""
    program = pooler()
    server = psycopg.conninfo.conninfo_to_dict(postgres_url)
    host, database = str(server["host"]), str(server["dbname"])
    # It refuses to be root, and must reach the server's socket: so it runs as whom that belongs to.
    user = pwd.getpwuid(Path(host).stat().st_uid) if host.startswith("/") else pwd.getpwnam("nobody")
    target = " ".join(
        f"{name}={server[name]}"
        for name in ("host", "port", "dbname", "user", "password")
        if server.get(name)
    )
    folder = Path(tempfile.mkdtemp(prefix="bouncer-"))
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\n{database} = {target}\n"
        f"[pgbouncer]\nlisten_addr =\nlisten_port = 6432\nunix_socket_dir = {folder}\nauth_type = any\n"
        f"pool_mode = transaction\ndefault_pool_size = {SESSIONS}\nmax_client_conn = 100\n"
        f"logfile = {folder}/log\nserver_reset_query =\n"
    )
    if os.getuid() == 0:
        os.chown(folder, user.pw_uid, user.pw_gid)
    identity = ["-u", user.pw_name] if os.getuid() == 0 else []
    process = subprocess.Popen([program, "-q", *identity, str(settings)], stderr=subprocess.DEVNULL)
    url = f"postgresql://{server['user']}@/{database}?host={folder}&port=6432"

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(url):
            return True
        return False

    until(answers)
    yield url
    process.terminate()
    process.wait(SOON)
    shutil.rmtree(folder)


@pytest.fixture
def bounced(open_store: Callable[..., PostgresBackend], bouncer_url: str) -> PostgresBackend:
    open_store()  # makes the schema
    return open_store(bouncer_url, pgbouncer=True)


def test_every_kind_of_verb_works(bounced: PostgresBackend) -> None:
    """B17."""
    bounced.enqueue_job(Job(id="a", type="t", payload=b"p", tags=("x",)))
    bounced.enqueue_jobs([Job(id=f"b{number}", type="t", tags=("x",)) for number in range(30)])
    bounced.enqueue_jobs([Job(id="k1", type="t", key="k"), Job(id="k2", type="t", key="k", after=("a",))])
    assert bounced.enqueue_job(Job(id="once", type="t", idempotency_key="i")) == "once"
    assert bounced.enqueue_job(Job(id="twice", type="t", idempotency_key="i")) == "once"
    jobs = bounced.dequeue_jobs("w", limit=40)
    assert len(jobs) == 33
    bounced.save_progress("a", 50)
    bounced.complete_jobs({job.id: b"r" for job in jobs})
    assert [job.id for job in bounced.dequeue_jobs("w", limit=5)] == ["k2"]
    bounced.fail_job("k2", "no")
    assert bounced.get_job("k2").status is JobStatus.FAILED_RETRY
    assert bounced.cancel_jobs(job_ids=["k2"]) == (["k2"], [])
    bounced.set_blocked(True)
    assert bounced.is_blocked()
    bounced.set_blocked(False)
    assert bounced.get_job_stats(("x",)).completed_jobs == 31
    bounced.maintain()
    bounced.delete_jobs(job_ids=["k2"])
    rows = bounced.read_journal()
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert not list(check_invariants(rows))


def test_threads_that_share_too_few_sessions_do_every_job_once(bounced: PostgresBackend) -> None:
    """Q33, Q52, B5: no lock, setting or prepared statement of one transaction meets another."""
    bounced.enqueue_jobs([Job(id=f"job{number}", type="t", key=f"k{number % 9}") for number in range(60)])
    done: list[str] = []

    def work(number: int) -> None:
        while len(done) < 60:
            for job in bounced.dequeue_jobs(f"w{number}", limit=3):
                bounced.complete_job(job.id, b"r", attempt=job.attempt)
                done.append(job.id)

    with ThreadPoolExecutor(4) as pool:
        for turn in [pool.submit(work, number) for number in range(4)]:
            turn.result(SOON)
    assert sorted(done) == sorted(f"job{number}" for number in range(60))
    assert not list(check_invariants(bounced.read_journal()))


def test_a_stream_is_served_without_hints(
    bounced: PostgresBackend, open_store: Callable[..., PostgresBackend]
) -> None:
    """Q34: by looking, since a session in transaction mode cannot listen."""
    other = open_store()
    with penstock.Queue(bounced) as queue, queue.stream_jobs("w") as stream:
        timer = threading.Timer(0.1, lambda: other.enqueue_job(Job(id="a", type="t")))
        timer.start()
        with cancel_scope(SOON):
            (job,) = next(stream)
        queue.complete_job(job.id, attempt=job.attempt)
        timer.join()
    assert other.get_job("a").status is JobStatus.COMPLETED


def test_whoever_does_not_say_so_is_told(
    open_store: Callable[..., PostgresBackend], bouncer_url: str
) -> None:
    """Config: settings of a session do not survive in a pooler, so it refuses them."""
    with pytest.raises(BackendError, match="pgbouncer=True") as caught:
        open_store(bouncer_url)
    assert not caught.value.retryable
