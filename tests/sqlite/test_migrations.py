"""Migrations of a file: at once or step by step, by one process or several, killed or not."""

import contextlib

import apsw
import pytest
from tests.sqlite.support import Child, all_jobs, assert_sound, open_store, query

from penstock.backends.migrations import read_migrations
from penstock.backends.sqlite import migrate as steps
from penstock.backends.sqlite.connection import open_connection, prepare_file
from penstock.errors import BackendError
from penstock.job import Job

SECOND = """-- oldest code: 1
CREATE TABLE extra (seq INTEGER PRIMARY KEY) STRICT;
ALTER TABLE owner ADD COLUMN note TEXT;
CREATE INDEX journal_time ON journal (recorded_at);
"""
THIRD = """-- oldest code: 3
CREATE TABLE more (seq INTEGER PRIMARY KEY) STRICT;
"""


@pytest.fixture
def folder(tmp_path):
    """Our migrations and two later ones; older code may not run on the result of the last."""
    folder = tmp_path / "migrations"
    folder.mkdir()
    for step in steps.STEPS:
        (folder / f"{step.number:04}_{step.name}.sql").write_text(step.sql)
    later = len(steps.STEPS)
    (folder / f"{later + 1:04}_second.sql").write_text(SECOND.replace("code: 1", f"code: {later}"))
    (folder / f"{later + 2:04}_third.sql").write_text(THIRD.replace("code: 3", f"code: {later + 2}"))
    (folder / "notes.txt").write_text("not a migration")
    return folder


@pytest.fixture
def connect(path):
    with contextlib.ExitStack() as stack:

        def open_one(place=path):
            prepare_file(str(place))
            connection = open_connection(str(place), durability="full", timeout=10)
            stack.callback(connection.close)
            return connection

        yield open_one


def dump(connection):
    """All that makes a schema: definitions, indexes, triggers, settings, recorded steps."""
    return {
        "schema": connection.execute(
            "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"
        ).fetchall(),
        "application_id": connection.pragma("application_id"),
        "migrations": connection.execute("SELECT number, name, oldest_code FROM migration").fetchall(),
        "settings": connection.execute(
            "SELECT name, value FROM setting WHERE name <> 'store_id' ORDER BY name"
        ).fetchall(),
    }


def test_a_fresh_schema_equals_a_migrated_one(connect, folder, tmp_path):
    """Step by step, all at once, and from each version in between: the same store."""
    known = read_migrations(folder)
    at_once = connect(tmp_path / "at_once.db")
    assert steps.migrate(at_once, "at_once", known) == [step.number for step in known]
    one_by_one = connect(tmp_path / "one_by_one.db")
    for number in range(1, len(known) + 1):
        assert steps.migrate(one_by_one, "one_by_one", known[:number]) == [number]
        assert steps.migrate(one_by_one, "one_by_one", known[:number]) == []
    assert dump(one_by_one) == dump(at_once)
    for number in range(1, len(known)):
        halfway = connect(tmp_path / f"from_{number}.db")
        steps.migrate(halfway, "halfway", known[:number])
        steps.migrate(halfway, "halfway", known)
        assert dump(halfway) == dump(at_once)


def test_a_store_keeps_its_jobs_through_a_migration(path, folder, connect):
    with open_store(path) as backend:
        backend.enqueue_jobs([Job(id=f"job-{n}", type="t", tags=("a",)) for n in range(100)])
    connection = connect()
    steps.migrate(connection, str(path), read_migrations(folder)[:-1])
    with open_store(path) as backend:  # the second step says that code of version 1 may run on it
        assert len(all_jobs(backend)) == 100
        backend.complete_jobs({job.id: None for job in backend.dequeue_jobs("w", limit=10)})
        assert_sound(backend, path)


def test_a_store_newer_than_the_code_is_refused_naming_both_versions(path, folder, connect):
    open_store(path).close()
    steps.migrate(connect(), str(path), read_migrations(folder))
    mine, theirs = len(steps.STEPS), len(steps.STEPS) + 2
    with pytest.raises(BackendError) as caught:
        open_store(path)
    text = str(caught.value)
    assert str(path) in text
    assert f"schema version {theirs}" in text
    assert f"code is of version {mine}" in text
    assert "upgrade penstock" in text
    assert not caught.value.retryable


def test_each_migration_states_the_oldest_code(tmp_path):
    (tmp_path / "0001_careless.sql").write_text("CREATE TABLE t (x);")
    with pytest.raises(RuntimeError, match=r"0001_careless\.sql does not begin with '-- oldest code"):
        read_migrations(tmp_path)


def test_the_numbers_run_from_one_without_a_gap():
    assert [step.number for step in steps.STEPS] == list(range(1, len(steps.STEPS) + 1))
    assert all(step.oldest_code <= step.number for step in steps.STEPS)


def test_a_migration_that_fails_leaves_the_store_as_it_was(path, folder, connect):
    connection = connect()
    known = read_migrations(folder)
    steps.migrate(connection, str(path), steps.STEPS)
    before = dump(connection)
    next_one = known[len(steps.STEPS)]
    broken = next_one._replace(sql=next_one.sql + "CREATE TABLE job (x);")
    with pytest.raises(apsw.SQLError):
        steps.migrate(connection, str(path), [*steps.STEPS, broken])
    assert dump(connection) == before
    assert not connection.in_transaction
    assert steps.migrate(connection, str(path), known) == [step.number for step in known[len(steps.STEPS) :]]


@pytest.mark.deep
@pytest.mark.process
@pytest.mark.slow
def test_eight_processes_that_open_a_new_file_at_once_make_one_store(tmp_path):
    """B18: one of them migrates, the others wait, all of them work."""
    opener = """
say("here")
for _ in range(3):
    target = hear()
    backend = penstock.open_backend("sqlite:///" + target)
    backend.enqueue_job(Job(id=str(os.getpid()), type="t"))
    backend.close()
    say("done")
"""
    children = [Child(opener, tmp_path) for _ in range(8)]
    try:
        assert [each.hear() for each in children] == ["here"] * 8
        for number in range(3):
            target = tmp_path / f"jobs-{number}.db"
            for each in children:
                each.say(str(target))
            assert [each.hear() for each in children] == ["done"] * 8
            with open_store(target) as backend:
                assert len(all_jobs(backend)) == 8
                assert_sound(backend, target)
            assert query(target, "SELECT count(*) FROM migration") == [(len(steps.STEPS),)]
    finally:
        for each in children:
            each.end()


@pytest.mark.deep
@pytest.mark.process
@pytest.mark.slow
def test_a_migration_killed_at_any_point_is_done_again(tmp_path):
    """RELIABILITY F29: SIGKILL after the n-th action of the migration; the next opener finds an old or a new store."""
    harness = """
import apsw
from penstock.backends.sqlite import migrate
original = migrate._apply
def apply(connection, step):
    count = [0]
    def authorizer(*_):
        count[0] += 1
        if count[0] == limit:
            os.kill(os.getpid(), signal.SIGKILL)
        return apsw.SQLITE_OK
    connection.authorizer = authorizer
    original(connection, step)
    connection.authorizer = None
migrate._apply = apply
limit, killed = 1, True
while killed:
    target = f"{path}/jobs-{limit}.db"
    pid = os.fork()
    if pid == 0:
        penstock.open_backend("sqlite:///" + target).close()
        os._exit(0)
    killed = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    say(target)
    limit += 7
"""
    process = Child(harness, tmp_path)
    targets = process.hear_all()
    process.end()
    assert len(targets) > 20
    for target in targets:
        with open_store(target) as backend:
            backend.enqueue_job(Job(id="a", type="t", tags=("x",)))
            assert backend.get_job_stats(["x"]).total_jobs == 1
        assert query(target, "SELECT count(*) FROM migration") == [(len(steps.STEPS),)]
        assert query(target, "PRAGMA integrity_check") == [("ok",)]
