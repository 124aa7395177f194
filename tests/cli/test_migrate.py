"""`penstock migrate`: what a store's schema has, lacks and would be given."""

import json
import sys

import psycopg
import pytest

import penstock as library
from penstock.backends import drivers
from penstock.backends.migrations import Migration
from penstock.backends.urls import sqlite_location
from penstock.errors import InvalidArgumentError


def place(store):
    """How a command names the store."""
    return ["--url", store.address]


def steps(penstock, store):
    done = penstock("migrate", "list", *place(store), "--json")
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


@pytest.fixture
def later_steps(monkeypatch):
    """Code that knows two PostgreSQL migrations more than this one."""
    import penstock.backends.postgres.migrate  # noqa: F401  # the package has a function of this name

    module = sys.modules["penstock.backends.postgres.migrate"]
    latest = module.STEPS[-1].number
    later = [
        Migration(latest + 1, "late", "CREATE TABLE {schema}.extra (seq bigint);\n", latest + 1),
        Migration(latest + 2, "later", "ALTER TABLE {schema}.extra ADD COLUMN note text;\n", latest + 1),
    ]
    monkeypatch.setattr(module, "STEPS", (*module.STEPS, *later))
    return [step.number for step in later]


def set_back(store, to):
    """Create the store anew at an earlier version."""
    assert store.options, "only PostgreSQL schemas stay behind"
    schema = store.options["schema"]
    with psycopg.connect(store.url, autocommit=True) as admin:
        admin.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    from penstock.backends.postgres import migrate

    migrate(store.url, schema, upto=to)


def note_step(store, number, oldest):
    """Record a step as newer code would have."""
    values = f"({number}, 'from_the_future', {oldest}, 0)"
    if store.options:
        with psycopg.connect(store.url, autocommit=True) as admin:
            admin.execute(f"INSERT INTO {store.options['schema']}.migration VALUES {values}")
    else:
        import apsw

        file = apsw.Connection(sqlite_location(store.url)[0])
        file.execute(f"INSERT INTO migration VALUES {values}")
        file.close()


def test_up_makes_a_store_that_is_not_there_and_then_has_nothing_to_do(penstock, shared_store):
    done = penstock("migrate", "up", *place(shared_store))
    assert done.code == 0, done.err
    assert done.out.startswith("applied 1 initial\n")
    found = steps(penstock, shared_store)
    latest = found[-1]["number"]
    assert done.out.endswith(f"the store has version {latest}\n")
    assert all(step["applied_at"] and step["is_known"] for step in found)
    done = penstock("migrate", "up", *place(shared_store), "--json")
    assert json.loads(done.out) == {"applied": [], "version": latest}
    with shared_store.connect(create=False) as queue:
        assert queue.overview().schema_version == latest


@pytest.mark.postgres
def test_a_schema_that_is_behind_is_refused_listed_shown_and_brought_up(penstock, postgres_url, later_steps):
    from tests.stores import SharedStore

    store = SharedStore(postgres_url, {"schema": "cli_behind"})
    behind = later_steps[0] - 1
    set_back(store, to=behind)
    done = penstock("doctor", *place(store))
    assert done.code == 1
    assert "run penstock migrate up" in done.out
    found = steps(penstock, store)
    lacking = [step["number"] for step in found if step["applied_at"] is None]
    assert lacking == later_steps
    assert "not yet" in penstock("migrate", "list", *place(store)).out
    script = penstock("migrate", "sql", *place(store)).out
    assert [step["applied_at"] for step in steps(penstock, store)] == [step["applied_at"] for step in found]
    assert f"VALUES ({behind}," not in script
    assert all(f"VALUES ({number}," in script for number in lacking)
    with psycopg.connect(store.url, autocommit=True) as admin:
        admin.execute(script)  # by hand
    assert json.loads(penstock("migrate", "up", *place(store), "--json").out)["applied"] == []
    set_back(store, to=behind)
    assert json.loads(penstock("migrate", "up", *place(store), "--json").out)["applied"] == lacking
    with store.connect(create=False) as queue:
        assert queue.overview().types == ()
    with psycopg.connect(store.url, autocommit=True) as admin:
        admin.execute("DROP SCHEMA cli_behind CASCADE")


def test_the_script_for_sqlite_makes_the_same_store(penstock, tmp_path):
    import apsw

    script = penstock("migrate", "sql", "--url", "sqlite:///none.db", "--all").out
    assert not (penstock.folder / "none.db").exists()
    file = apsw.Connection(str(tmp_path / "by_hand.db"))
    file.execute(script)
    file.close()
    with library.connect(f"sqlite:///{tmp_path}/by_hand.db", create=False) as queue:
        queue.submit("greet")
    assert penstock("migrate", "sql", "--url", f"sqlite:///{tmp_path}/by_hand.db").out.strip() == ""


def test_a_store_newer_than_the_code_is_refused_naming_both_versions(penstock, shared_store):
    penstock("migrate", "up", *place(shared_store))
    mine = steps(penstock, shared_store)[-1]["number"]
    note_step(shared_store, 98, 1)  # newer, but this code may run on it
    assert penstock("migrate", "up", *place(shared_store)).code == 0
    note_step(shared_store, 99, 99)
    done = penstock("migrate", "up", *place(shared_store))
    assert done.code == 1
    assert "version 99" in done.err
    assert f"version {mine}" in done.err
    assert "upgrade penstock" in done.err
    last = steps(penstock, shared_store)[-1]  # it can still be listed
    assert (last["number"], last["name"], last["is_known"]) == (99, "from_the_future", False)
    assert "by a newer penstock" in penstock("migrate", "list", *place(shared_store)).out


def test_listing_makes_no_store(penstock):
    done = penstock("migrate", "list", "--url", "sqlite:///none.db")
    assert done.code == 2
    assert "there is no store" in done.err
    assert list(penstock.folder.iterdir()) == []


@pytest.mark.parametrize("verb", ["up", "list", "sql"])
@pytest.mark.parametrize(
    ("url", "words"), [("memory:", "memory: has no schema"), ("mysql://x/y", "url must begin with")]
)
def test_what_has_no_schema_is_a_mistake(penstock, verb, url, words):
    done = penstock("migrate", verb, "--url", url)
    assert done.code == 2
    assert words in done.err


def test_a_schema_given_twice_is_a_mistake(postgres_url):
    mark = "&" if "?" in postgres_url else "?"
    with pytest.raises(InvalidArgumentError, match="schema is given in the url and as an option"):
        drivers.list_migrations(f"{postgres_url}{mark}schema=a", schema="b")
