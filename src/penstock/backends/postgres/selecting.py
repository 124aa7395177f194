"""Selections of jobs, by the indexes of this store; see `penstock.backends.engine.selecting`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.backends.postgres.connection import BoundedConnection
from penstock.backends.postgres.statements import Statements
from penstock.backends.postgres.tags import rarest_tag
from penstock.job import FINAL, JobStatus

__all__ = ["PostgresSelectionReader", "ids_from"]

_TABLES: Final = {
    "job": "{schema}.job",
    "job_tag": "{schema}.job_tag",
    "tagged_job": "{schema}.job_tag JOIN {schema}.job ON job.seq = job_tag.seq",
}
# In the words of the partial indexes' own conditions.
_IN_FLIGHT: Final = ("{schema}.job WHERE job.status IN ('running', 'cancelling')",)
_RETRYING: Final = ("{schema}.job WHERE job.status IN ('failed_retry', 'unknown_retry')",)
_ENDED: Final = ("{schema}.job WHERE job.closed = 1",)


class PostgresSelectionReader:
    """Reads what a selection needs from one connection."""

    find_text = "strpos"

    def __init__(self, connection: BoundedConnection, sql: Statements) -> None:
        self._connection = connection
        self._sql = sql

    def fetch(self, query: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        filled = self._sql.text(self._sql.text(query, **_TABLES))
        return self._connection.execute(re.sub(r":(\w+)", r"%(\1)s", filled), dict(parameters)).fetchall()

    def rarest_tag(self, tags: Sequence[str]) -> str:
        return rarest_tag(self._connection.execute, self._sql.text, tags, "job_tag")

    def status_counts(self) -> dict[str, int]:
        query = self._sql.text("SELECT status, amount FROM {schema}.counter WHERE tag = '' AND status <> ''")
        return dict(self._connection.execute(query).fetchall())

    def places(self, status: JobStatus) -> Sequence[str] | None:
        if status in FINAL:
            return _ENDED
        return {
            JobStatus.RUNNING: _IN_FLIGHT,
            JobStatus.CANCELLING: _IN_FLIGHT,
            JobStatus.FAILED_RETRY: _RETRYING,
            JobStatus.UNKNOWN_RETRY: _RETRYING,
        }.get(status)


def ids_from(connection: BoundedConnection, sql: Statements, first: str, limit: int) -> list[str]:
    """Return ids from `first` on, in their own order."""
    query = sql.text("SELECT id FROM {schema}.job WHERE id >= %(first)s ORDER BY id LIMIT %(limit)s")
    return [job_id for (job_id,) in connection.execute(query, {"first": first, "limit": limit})]
