"""Primitives of submission: the block, ids, idempotency keys and insertion numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from penstock.backends.engine.rows import Row
from penstock.backends.engine.store import NEVER, KeyHolder
from penstock.backends.sqlite.connection import fetch
from penstock.backends.sqlite.statements import statement
from penstock.backends.sqlite.transaction_base import BaseTransaction, json_array
from penstock.backends.sqlite.writer_cache import SubmissionFacts

__all__ = ["SubmissionTransaction"]

_COUNT_WAITING: Final = statement("count_waiting")
_SUBMISSION_FACTS: Final = """SELECT
    (SELECT value FROM setting WHERE name = 'blocked'),
    max(ifnull((SELECT max(seq) FROM job), 0), ifnull((SELECT max(job_seq) FROM journal), 0))"""


class SubmissionTransaction(BaseTransaction):
    """The primitives of submission."""

    def is_blocked(self) -> bool:
        return self._submission_facts().blocked

    def set_blocked(self, blocked: bool) -> None:
        self.cursor.execute("UPDATE setting SET value = ? WHERE name = 'blocked'", (int(blocked),))
        self.cache.facts.clear()

    def count_waiting(self) -> int:
        return int(self.fetch_value(_COUNT_WAITING))

    def stored_ids(self, ids: Collection[str]) -> set[str]:
        query = "SELECT id FROM job WHERE id IN (SELECT value FROM json_each(?))"
        return {job_id for (job_id,) in fetch(self.cursor, query, (json_array(ids),))}

    def note_publication(self, writer: str, batch: int) -> bool:
        self.cursor.execute(
            "INSERT INTO publication (writer, batch, published_at) VALUES (?1, ?2, ?3)"
            " ON CONFLICT (writer) DO UPDATE SET batch = ?2, published_at = ?3 WHERE batch < ?2",
            (writer, batch, self.now),
        )
        return self.cursor.connection.changes() > 0

    def taken_keys(self, pairs: Collection[tuple[str, str]]) -> dict[tuple[str, str], KeyHolder]:
        query = (
            "SELECT job_id, idempotency.expires_at, ifnull(closed, 1) FROM idempotency"
            " LEFT JOIN job ON job.id = job_id"
            " WHERE idempotency.type = ? AND idempotency.key = ? AND idempotency.expires_at > ?"
        )
        taken: dict[tuple[str, str], KeyHolder] = {}
        for pair in pairs:
            for job_id, expires_at, closed in fetch(self.cursor, query, (*pair, self.now)):
                taken[pair] = KeyHolder(job_id, is_final=bool(closed), ends_with_job=expires_at == NEVER)
        return taken

    def take_keys(self, entries: Sequence[tuple[str, str, str, int]]) -> None:
        self.cursor.executemany("INSERT OR REPLACE INTO idempotency VALUES (?, ?, ?, ?)", entries)

    def lock_keys(self, keys: Collection[str]) -> None:
        """Nothing to do: there is one writer at a time."""

    def open_keys(self, keys: Collection[str]) -> set[str]:
        query = (
            "SELECT 1 FROM job INDEXED BY job_key WHERE key = ? AND key IS NOT NULL AND closed = 0 LIMIT 1"
        )
        return {key for key in keys if fetch(self.cursor, query, (key,))}

    def dependencies(self, ids: Collection[str]) -> dict[str, Row]:
        return self.rows(ids)

    def reserve(self, count: int) -> Sequence[int]:
        facts = self._submission_facts()
        first = facts.last_seq + 1
        facts.last_seq += count
        return range(first, first + count)

    def _submission_facts(self) -> SubmissionFacts:
        facts = self.cache.facts
        if facts.last_seq < 0:
            ((blocked, facts.last_seq),) = fetch(self.cursor, _SUBMISSION_FACTS)
            facts.blocked = bool(blocked)
        return facts
