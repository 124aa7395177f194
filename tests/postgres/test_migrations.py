"""Schemas: created once, by the first process, and refused by code that is too old or too new."""

import sys
import threading

import psycopg
import pytest
from tests.first_starts import starters

from penstock.backends.migrations import Migration
from penstock.backends.postgres import migrate as migrate_schema
from penstock.backends.postgres import migration_sql, open_postgres
from penstock.backends.postgres.migrate import _LOCK_CLASS, STEPS
from penstock.errors import BackendError, InvalidArgumentError
from penstock.job import Job

LATEST = STEPS[-1].number
LATER = (
    Migration(
        LATEST + 1, "late", "CREATE TABLE {schema}.extra (seq bigint PRIMARY KEY, note text);\n", LATEST + 1
    ),
    Migration(LATEST + 2, "later", "ALTER TABLE {schema}.extra ADD COLUMN more text;\n", LATEST + 1),
    Migration(LATEST + 3, "latest", "CREATE INDEX extra_more ON {schema}.extra (more);\n", LATEST + 1),
)


@pytest.fixture
def later_steps(monkeypatch):
    """Code that knows three steps more than this one."""
    monkeypatch.setattr(sys.modules["penstock.backends.postgres.migrate"], "STEPS", (*STEPS, *LATER))
    return [step.number for step in LATER]


def described(admin, schema):
    """What a schema is made of, in words without its name."""
    queries = [
        """SELECT table_name, column_name, data_type, collation_name, is_nullable, column_default
            FROM information_schema.columns WHERE table_schema = %(schema)s""",
        "SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = %(schema)s",
        """SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
            WHERE connamespace = to_regnamespace(%(schema)s)""",
        "SELECT relname, reloptions::text FROM pg_class WHERE relnamespace = to_regnamespace(%(schema)s)",
    ]
    found = [sorted(map(str, admin.execute(query, {"schema": schema}).fetchall())) for query in queries]
    return [[line.replace(schema, "S") for line in lines] for lines in found]


def test_a_fresh_schema_equals_one_that_was_migrated_step_by_step(postgres_url, admin, later_steps):
    """B18."""
    names = ["mig_fresh", "mig_steps", "mig_script"]
    open_postgres(postgres_url, clock=None, options={"schema": names[0]}).close()
    for step in (*STEPS, *LATER):
        assert migrate_schema(postgres_url, names[1], upto=step.number) == [step.number]
    admin.execute(migration_sql(names[2]))
    fresh, stepped, scripted = (described(admin, name) for name in names)
    assert fresh[0]
    assert fresh == stepped == scripted
    for name in names:
        admin.execute(f"DROP SCHEMA {name} CASCADE")


def test_processes_that_start_together_make_one_schema(postgres_url, schema, open_store):
    """B17: under a lock, in one transaction."""
    ready = threading.Barrier(6)
    errors = []

    def start():
        ready.wait()
        try:
            open_store().enqueue_job(Job.new("t"))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=start) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert not errors
    assert open_store().get_job_stats().total_jobs == 6


@pytest.mark.parametrize("done", [0, LATEST + 1], ids=["empty", "between"])
@pytest.mark.parametrize("create", [True, False])
def test_a_store_that_another_process_is_migrating_is_waited_for(
    postgres_url, schema, open_store, admin, call, done, create, later_steps
):
    """F7: at any version in between, and whether or not this process may create a store."""
    if done:
        migrate_schema(postgres_url, schema, upto=done)
    with admin.transaction():
        admin.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (_LOCK_CLASS, schema))
        opening = call(open_store, create=create)
        assert opening.is_waiting()
        admin.execute(migration_sql(schema, after=done).removeprefix("BEGIN;").removesuffix("COMMIT;\n"))
    opening.result().enqueue_job(Job(id="a", type="t"))
    assert open_store().get_job("a").type == "t"


def test_a_migration_that_fails_leaves_the_version_it_found(postgres_url, schema, admin, later_steps):
    """F7: all steps are one transaction, so no process ever finds a version in between."""
    migrate_schema(postgres_url, schema, upto=LATEST)
    admin.execute("CREATE TABLE extra_more (in_the_way integer)")
    with pytest.raises(BackendError, match="extra_more"):
        migrate_schema(postgres_url, schema)
    assert admin.execute("SELECT max(number) FROM migration").fetchone() == (LATEST,)
    admin.execute("DROP TABLE extra_more")
    assert migrate_schema(postgres_url, schema) == later_steps
    admin.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.mark.deep
@pytest.mark.process
@pytest.mark.timeout(120)
def test_four_processes_that_start_at_once_on_an_empty_database_all_succeed(postgres_url, schema):
    """F7: each used to refuse the versions that it saw while another one was migrating."""
    names = [f"{schema}_{number}" for number in range(6)]
    with starters(4) as processes:
        failed = [error for name in names for error in processes.start(postgres_url, schema=name)]
    assert not failed
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for name in names:
            assert connection.execute(f"SELECT count(*) FROM {name}.job").fetchone() == (4,)
            connection.execute(f"DROP SCHEMA {name} CASCADE")


def test_an_older_schema_is_refused_unless_migration_was_asked_for(
    postgres_url, schema, open_store, admin, monkeypatch
):
    """Q55: and the error says what to do."""
    open_store()
    monkeypatch.setattr(sys.modules["penstock.backends.postgres.migrate"], "STEPS", (*STEPS, *LATER))
    with pytest.raises(BackendError, match="penstock migrate up") as caught:
        open_store()
    assert f"has version {LATEST}," in str(caught.value)
    assert f"needs version {LATEST + 3}:" in str(caught.value)
    assert not caught.value.retryable


def test_a_newer_schema_is_refused_when_it_says_so(open_store, admin):
    """Q55: both versions are named; a newer one that old code may run on is not refused."""
    open_store()
    admin.execute("INSERT INTO migration VALUES (98, 'harmless', 1, 0)")
    open_store().enqueue_job(Job.new("t"))
    admin.execute("INSERT INTO migration VALUES (99, 'breaking', 99, 0)")
    with pytest.raises(BackendError, match=f"99.*version {LATEST}"):
        open_store()


@pytest.mark.parametrize("name", ["", "Upper", "a b", 'a"b', "a;b", "1a", "x" * 64, "pg.x", None, 5])
def test_a_schema_name_that_needs_quoting_is_refused(postgres_url, name):
    """Q55."""
    with pytest.raises(InvalidArgumentError):
        open_postgres(postgres_url, clock=None, options={"schema": name})


@pytest.mark.parametrize(
    "options",
    [
        {"pool_size": 0},
        {"pool_size": True},
        {"timeout": 0},
        {"timeout": "1"},
        {"migrate": 1},
        {"pgbouncer": None},
        {"x": 1},
    ],
)
def test_wrong_options_are_refused(postgres_url, options):
    """Q55."""
    with pytest.raises(InvalidArgumentError):
        open_postgres(postgres_url, clock=None, options=options)


def test_each_statement_file_is_used(open_store):
    """B18: and prepares on the server."""
    from importlib import resources

    import penstock.backends.postgres as package

    sources = "".join(
        each.read_text() for each in resources.files(package).iterdir() if each.name.endswith(".py")
    )
    for each in resources.files(package).joinpath("sql").iterdir():
        name = each.name.removesuffix(".sql")
        assert f'"{name}"' in sources or name.startswith("claim_"), name


def test_a_schema_may_have_the_longest_name_there_is(postgres_url):
    """B17: nothing that is named after it is cut to the same text."""
    name = "s" * 63
    with open_postgres(postgres_url, clock=None, options={"schema": name}) as store:
        store.enqueue_job(Job(id="plain", type="t"))
        store.enqueue_job(Job(id="tagged", type="t", tags=("a",)))
        store.enqueue_job(Job(id="other", type="u"))
        taken = [
            *store.dequeue_jobs("w", ["a"]),
            *store.dequeue_jobs("w", types=["u"]),
            *store.dequeue_jobs("w"),
        ]
        assert [job.id for job in taken] == ["tagged", "other", "plain"]
        store.complete_jobs({job.id: None for job in taken})
        assert store.get_job_stats().completed_jobs == 3
        store.runtime.watch(lambda: None)()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {name} CASCADE")


def test_two_schemas_in_one_database_do_not_meet(postgres_url):
    """B17."""
    stores = [open_postgres(postgres_url, clock=None, options={"schema": f"twin_{each}"}) for each in "ab"]
    for store in stores:
        store.enqueue_job(Job(id="same", type="t", key="k"))
    assert [job.id for store in stores for job in store.dequeue_jobs("w", limit=5)] == ["same", "same"]
    assert [len(store.read_journal()) for store in stores] == [2, 2]
    for store in stores:
        store.close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for each in "ab":
            connection.execute(f"DROP SCHEMA twin_{each} CASCADE")
