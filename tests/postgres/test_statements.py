"""What PostgreSQL is given as text: the defaults of its tables, and the files of `postgres/sql`."""

import ast
import re
from pathlib import Path

import pytest
from tests.sql_files import long_statements, unused

from penstock.backends import postgres
from penstock.backends.engine import writes
from penstock.backends.engine.rows import COLUMNS, JOURNAL_COLUMNS
from penstock.backends.engine.store import DeliveryRow
from penstock.backends.postgres.journal import Journal
from penstock.backends.postgres.plain_jobs import PlainRow
from penstock.backends.postgres.prepared import Prepared
from penstock.backends.postgres.shared_state import SharedState
from penstock.backends.postgres.statements import PLAIN_COLUMNS, Statements, type_of
from penstock.backends.sql_files import list_sql, read_sql


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


def test_every_file_is_used_and_every_statement_prepares(backend, schema, admin):
    shared = SharedState(schema, has_own_clock=False)
    found = {
        *texts_in(shared),
        *(shared.sql[name] for name in list_sql(postgres.__name__) if is_complete(name)),
        shared.sql.filled("ends", portion_columns=qualified("portion", JOURNAL_COLUMNS)),
        shared.sql.filled("due_deliveries", delivery_columns=qualified("delivery", DeliveryRow._fields)),
    }
    assert unused(postgres.__name__, found) == []
    named = names_in_python()
    assert [name for name in list_sql(postgres.__name__) if name not in named] == []
    for number, each in enumerate(sorted(found)):
        prepared = Prepared(f"statement_{number}", each)
        result = admin.pgconn.prepare(prepared._name, prepared._text)
        assert not result.error_message, (each, result.error_message)


def qualified(table, names):
    return ", ".join(f"{table}.{name}" for name in names)


def is_complete(name):
    """Whether a file is a statement by itself: it needs nothing but what every statement may name."""
    text = read_sql(postgres.__name__, name)
    known = set(Statements("s")._parts)
    return bool(re.match("SELECT|WITH", text)) and set(re.findall(r"\{(\w+)\}", text)) <= known


def texts_in(value):
    """Return the statements in the attributes of an object, and of those objects of ours that it has."""
    if isinstance(value, str):
        return [value] if re.match("SELECT|WITH|DELETE", value) and "TAIL" not in value else []
    if isinstance(value, Prepared):
        return [value.source]
    if isinstance(value, dict):
        return [text for each in value.values() for text in texts_in(each)]
    if isinstance(value, SharedState | Statements | Journal):
        return [text for name, each in vars(value).items() if name != "_parts" for text in texts_in(each)]
    return []


def names_in_python():
    """Return the strings in the modules of the store, and the names of claims."""
    files = Path(postgres.__file__).parent.glob("*.py")
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    strings = {
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return strings | {f"claim_{name}" for name in Statements("s").claims}


def test_no_module_holds_a_long_statement():
    assert long_statements("postgres") == []
