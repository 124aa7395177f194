"""The base of the primitives: statements on the writer's cursor, and the rows that they return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, TypeVar

import apsw
import msgspec

from penstock.backends.contract.values import Change
from penstock.backends.engine.rows import Row
from penstock.backends.engine.store import Transaction
from penstock.backends.sqlite.connection import fetch
from penstock.backends.sqlite.counters import Tally
from penstock.backends.sqlite.statements import COLUMN_LIST
from penstock.backends.sqlite.tags import rarest_tag
from penstock.backends.sqlite.writer_cache import WriterCache
from penstock.job import Job

__all__ = ["COLUMN_LIST", "SELECT", "BaseTransaction", "counted", "json_array"]

SELECT: Final = f"SELECT {COLUMN_LIST} FROM job"
_encode = msgspec.json.Encoder().encode
_V = TypeVar("_V")


class BaseTransaction(Transaction):
    """A transaction on the writer's connection."""

    def __init__(self, cursor: apsw.Cursor, now: int, cache: WriterCache, has_listeners: bool) -> None:
        self.cursor = cursor
        self.now = now
        self.cache = cache
        self.has_listeners = has_listeners
        self.changes: list[Change] = []
        self.journaled = 0
        self.tally: Tally = []
        self.folded = False  # whether the counters were folded in it
        #: First claims made in it, by insertion number; for the writer's cache, once they are committed.
        self.first_claims: dict[int, Job] = {}

    def add_journaled(self, tally: Tally) -> None:
        """Count journal rows that the triggers have written."""
        self.journaled += sum([count for _, count in tally])
        self.tally += tally

    def fetch_rows(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[Row]:
        """Return the jobs that a statement selects."""
        return [Row(*values) for values in fetch(self.cursor, sql, parameters)]

    def fetch_many(self, one: str, many: str, keys: Collection[Any]) -> list[Row]:
        """Return the jobs of these keys, by the statement for one key or for several."""
        if len(keys) == 1:
            return self.fetch_rows(one, tuple(keys))
        return self.fetch_rows(many, (json_array(keys),)) if keys else []

    def fetch_value(self, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
        """Return the first value that a statement selects; None without a row."""
        for (value,) in fetch(self.cursor, sql, parameters):
            return value
        return None

    def rarest_first(self, tags: Sequence[str], table: str) -> tuple[str, list[str]]:
        """Return the tag with the fewest rows in a table, and the other tags."""
        first = tags[0] if len(tags) == 1 else rarest_tag(self.cursor, tags, table)
        return first, [tag for tag in tags if tag != first]


def counted(values: list[_V]) -> Iterable[tuple[_V, int]]:
    """Return the distinct values with their counts."""
    return ((values[0], 1),) if len(values) == 1 else Counter(values).items()


def json_array(values: Iterable[Any]) -> str:
    """Return values as the text of a JSON array, for json_each."""
    return _encode(list(values)).decode()
