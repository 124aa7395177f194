"""Schemas: made once, by whoever comes first; never by code that does not know them."""

import sys
import threading

import psycopg
import pytest

from penstock.backends.postgres import migrate as migrate_schema
from penstock.backends.postgres import migration_sql, open_postgres
from penstock.backends.postgres.migrate import LATEST, migrations
from penstock.errors import BackendError, InvalidArgumentError
from penstock.job import Job


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


def test_a_fresh_schema_equals_one_that_was_migrated_step_by_step(postgres_url, admin):
    """B18."""
    names = ["mig_fresh", "mig_steps", "mig_script"]
    open_postgres(postgres_url, clock=None, options={"schema": names[0]}).close()
    for step in migrations():
        assert migrate_schema(postgres_url, names[1], upto=step.number) == [step.number]
    admin.execute(migration_sql(names[2]))
    fresh, stepped, scripted = (described(admin, name) for name in names)
    assert fresh[0]
    assert fresh == stepped == scripted
    for name in names:
        admin.execute(f"DROP SCHEMA {name} CASCADE")


def test_processes_that_start_together_make_one_schema(postgres_url, schema, open_store):
    """B17: under a lock, each step in a transaction."""
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


def test_an_older_schema_is_refused_unless_migration_was_asked_for(
    postgres_url, schema, open_store, admin, monkeypatch
):
    """Q55: and the error says what to do."""
    open_store()
    monkeypatch.setattr(sys.modules[migrations.__module__], "LATEST", LATEST + 1)
    with pytest.raises(BackendError, match="penstock migrate") as caught:
        open_store()
    assert str(LATEST) in str(caught.value)
    assert str(LATEST + 1) in str(caught.value)
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
        store.watch(lambda: None)()
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


def test_counts_by_type_begin_with_what_an_older_schema_holds(postgres_url, admin):
    """The step that brings them counts the jobs that are there, whether their changes were folded, numbered or neither."""
    migrate_schema(postgres_url, "mig_types", upto=7)
    add = "INSERT INTO mig_types.job (seq, id, type, order_at, created_at, updated_at) VALUES (%s, %s, %s, 0, 0, 0)"
    note = (
        " (job_seq, recorded_at, n, attempt, retry_count, failures, priority, progress, job_id, type, verb, status, tags)"
        " VALUES (%s, 0, 1, 0, 0, 0, 2, 0, %s, %s, 'enqueue', 'initial_pending', '[]')"
    )
    numbered = note.replace("(job_seq", "(seq, job_seq").replace("(%s, 0", "(%s, %s, 0")
    for number in range(1, 7):
        job = (number, f"job-{number}", "ab"[number % 2])
        admin.execute(add, job)
        if number <= 4:
            admin.execute("INSERT INTO mig_types.journal" + numbered, (number, *job))
        else:
            admin.execute("INSERT INTO mig_types.journal_inbox" + note, job)
    admin.execute("UPDATE mig_types.fold SET seq = 2")
    admin.execute("INSERT INTO mig_types.counter VALUES ('', 'initial_pending', 2)")
    assert migrate_schema(postgres_url, "mig_types")[0] == 8
    with open_postgres(postgres_url, clock=None, options={"schema": "mig_types"}) as backend:
        for _ in range(2):
            found = {each.type: dict(each.jobs) for each in backend.overview().types}
            assert found == {"a": {"initial_pending": 3}, "b": {"initial_pending": 3}}
            assert backend.get_job_stats().pending_jobs == 6
            backend.maintain()
    admin.execute("DROP SCHEMA mig_types CASCADE")
