"""What SQLite is given as text: the triggers of the schema, and the files of `sqlite/sql`."""

import contextlib
import re
from importlib import import_module
from pkgutil import iter_modules

import apsw
import pytest
from apsw.ext import query_info
from tests.sql_files import long_statements, pattern, unused
from tests.sqlite.support import open_store, query

from penstock.backends import sqlite
from penstock.backends.engine import writes
from penstock.backends.sql_files import list_sql
from penstock.backends.sqlite import claiming


@pytest.fixture
def path(tmp_path):
    open_store(tmp_path / "jobs.db").close()
    return tmp_path / "jobs.db"


def journaled_by(path, trigger):
    """Return the columns of the journal that a trigger writes, each with its expression."""
    ((sql,),) = query(path, "SELECT sql FROM sqlite_schema WHERE type = 'trigger' AND name = ?", trigger)
    (columns, values) = re.search(
        r"INSERT INTO journal \((.*?)\)\s+VALUES \((.*)\);", sql, re.DOTALL
    ).groups()
    # A comma inside of brackets separates no values.
    values = re.split(r",\s*(?![^()]*\))", values)
    return {
        name.strip(): re.sub(r"\s+", " ", value.strip())
        for name, value in zip(columns.split(","), values, strict=True)
    }


def test_the_trigger_of_new_jobs_writes_the_columns_of_a_first_row(path):
    expected = {column: f"NEW.{name}" for column, name in writes.FIRST_ENTRY.items()}
    assert journaled_by(path, "job_inserted") == {**expected, "from_status": "NULL"}


def test_the_trigger_of_steps_writes_the_columns_of_a_later_row(path):
    expected = {column: f"NEW.{name}" for column, name in writes.STEP_ENTRY.items()}
    in_flight = "IN ('running', 'cancelling')"
    has_ended = f"OLD.status {in_flight} AND NEW.status NOT {in_flight}"
    ends = {
        column: f"CASE WHEN {has_ended} THEN OLD.{name} END" for column, name in writes.ATTEMPT_END.items()
    }
    assert journaled_by(path, "job_changed") == {**expected, **ends, "from_status": "OLD.status"}


def statements():
    """Return every statement that the modules of the store hold, and one for each kind of claim."""
    modules = [import_module(f"{sqlite.__name__}.{each.name}") for each in iter_modules(sqlite.__path__)]
    found = {value for module in modules for value in vars(module).values() if isinstance(value, str)}
    return found | {claiming._statement(*kind) for kind in [(0, None, False), (2, 3, False), (1, 1, True)]}


def test_every_file_is_the_text_of_a_statement():
    assert unused(sqlite.__name__, statements()) == []


def test_every_statement_of_a_file_prepares(path):
    patterns = [pattern(sqlite.__name__, name) for name in list_sql(sqlite.__name__)]
    from_files = [each for each in statements() if any(known.fullmatch(each) for known in patterns)]
    assert len(from_files) >= len(patterns)
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        for each in from_files:
            query_info(connection, each)  # prepares it, and does not run it


def test_no_module_holds_a_long_statement():
    assert long_statements("sqlite") == []
