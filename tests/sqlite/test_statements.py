"""The triggers of SQLite write what the one source says."""

import re

import pytest
from tests.sqlite.support import open_store, query

from penstock.backends.engine import writes


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
