"""The SQL texts of `sql/<name>.sql`, read once; what hot verbs write in them comes from `engine.writes`."""

from __future__ import annotations

from typing import Final

from penstock.backends.engine import writes
from penstock.backends.engine.rows import COLUMNS
from penstock.backends.sql_files import fill, read_sql

__all__ = ["COLUMN_LIST", "PLAIN_PARAMETERS", "SAVE_PARAMETERS", "statement"]

COLUMN_LIST: Final = ", ".join(COLUMNS)
#: What the statements of `enqueue.sql` and `save.sql` are given, in order: numbers cost less than names.
PLAIN_PARAMETERS: Final = ("seq", "now", *writes.PLAIN_FIELDS)
SAVE_PARAMETERS: Final = (*writes.SAVED, "seq")


def _numbered(names: tuple[str, ...]) -> dict[str, str]:
    return {name: f"?{number}" for number, name in enumerate(names, 1)}


_PARTS: Final = {
    "columns": COLUMN_LIST,
    "claim_set": writes.assignments(
        writes.CLAIM, {name: f":{name}" for name in ("now", "assignee_id", "owner")}
    ),
    "complete_set": writes.assignments(writes.COMPLETE, {"now": "?2"}),
    "save_set": writes.assignments(writes.SAVE, _numbered(SAVE_PARAMETERS)),
    "saved_seq": _numbered(SAVE_PARAMETERS)["seq"],
    "plain_columns": ", ".join(writes.ENQUEUE),
    "plain_values": writes.expressions(writes.ENQUEUE.values(), _numbered(PLAIN_PARAMETERS)),
}


def statement(name: str, **parts: str) -> str:
    """Return the statement of `sql/<name>.sql` with `parts` filled in."""
    return fill(read_sql(__package__, name), {**_PARTS, **parts})
