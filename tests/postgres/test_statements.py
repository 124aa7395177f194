"""The defaults and types of PostgreSQL's tables are those of the one source."""

import ast
import re

import pytest

from penstock.backends.engine import writes
from penstock.backends.engine.rows import COLUMNS
from penstock.backends.postgres.plain_jobs import PlainRow
from penstock.backends.postgres.statements import PLAIN_COLUMNS, type_of


@pytest.fixture
def columns(backend, schema, admin):
    """Type and default of each column of a job."""
    return {
        name: (kind, default)
        for name, kind, default in admin.execute(
            "SELECT column_name, data_type, column_default FROM information_schema.columns"
            " WHERE table_schema = %s AND table_name = 'job'",
            [schema],
        )
        if name in COLUMNS
    }


def test_the_defaults_of_the_table_write_what_the_statement_of_a_plain_job_leaves_out(columns):
    defaults = {
        name: None if default is None else ast.literal_eval(re.sub(r"::\w+$", "", default))
        for name, (_, default) in columns.items()
        if name not in PLAIN_COLUMNS
    }
    expected = {
        name: writes.value_of(writes.ENQUEUE[name], {}) if name in writes.ENQUEUE else None
        for name in COLUMNS
        if name not in PLAIN_COLUMNS
    }
    assert defaults == expected


def test_every_column_has_the_type_that_statements_give_it(columns):
    types = {name: kind for name, (kind, _) in columns.items()}
    assert types == {name: type_of(name) for name in COLUMNS}


def test_a_plain_row_has_the_fields_of_a_plain_job():
    assert PlainRow.__struct_fields__ == (*writes.PLAIN_FIELDS, "payload")
