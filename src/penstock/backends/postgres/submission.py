"""Primitives of submission: the block, ids, idempotency keys and insertion numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.backends.engine.rows import Row
from penstock.backends.engine.store import NEVER, KeyHolder
from penstock.backends.postgres.key_locks import KeyLocksTransaction
from penstock.backends.postgres.statements import NOW

__all__ = ["SubmissionTransaction"]


class SubmissionTransaction(KeyLocksTransaction):
    """The primitives of submission."""

    def is_blocked(self) -> bool:
        return self.blocked

    def set_blocked(self, blocked: bool) -> None:
        self.execute(self.text("UPDATE {schema}.control SET blocked = %(blocked)s"), {"blocked": blocked})

    def count_waiting(self) -> int:
        # Locked, so that concurrent submissions cannot pass the same limit.
        found = self.execute(f"SELECT pg_advisory_xact_lock({self.shared.lock_class}, 2), {NOW}").fetchone()
        self.advance_now(found[1] if found else 0)
        counts, _ = self.shared.journal.stats(self.connection, "")
        return sum(counts.get(status, 0) for status in ("initial_pending", "failed_retry", "unknown_retry"))

    def stored_ids(self, ids: Collection[str]) -> set[str]:
        query = self.text("SELECT id FROM {schema}.job WHERE id = ANY(%(ids)s::text[])")
        return {job_id for (job_id,) in self.execute(query, {"ids": list(ids)})}

    def note_publication(self, writer: str, batch: int) -> bool:
        noted = self.execute(
            self.text(
                "INSERT INTO {schema}.publication (writer, batch, published_at)"
                " VALUES (%(writer)s, %(batch)s, %(now)s) ON CONFLICT (writer) DO UPDATE"
                " SET batch = excluded.batch, published_at = excluded.published_at"
                " WHERE publication.batch < excluded.batch"
            ),
            {"writer": writer, "batch": batch, "now": self.now},
        )
        return noted.rowcount > 0

    def taken_keys(self, pairs: Collection[tuple[str, str]]) -> dict[tuple[str, str], KeyHolder]:
        types, keys = [each[0] for each in pairs], [each[1] for each in pairs]
        self.lock_texts(self.shared.idempotency_locks, [f"{kind}\x1f{key}" for kind, key in pairs])
        found = self.execute(
            self.sql["idempotency_holders"],
            {"types": types, "keys": keys, "now": self.now},
        )
        return {
            (kind, key): KeyHolder(job_id, is_final=bool(closed), ends_with_job=expires_at == NEVER)
            for kind, key, job_id, expires_at, closed in found
        }

    def take_keys(self, entries: Sequence[tuple[str, str, str, int]]) -> None:
        types, keys, ids, expiries = (list(column) for column in zip(*entries, strict=True))
        self.execute(
            self.text(
                "INSERT INTO {schema}.idempotency (type, key, job_id, expires_at)"
                " SELECT * FROM unnest(%(types)s::text[], %(keys)s::text[], %(ids)s::text[], %(expiries)s::bigint[])"
                " ON CONFLICT (type, key) DO UPDATE"
                " SET job_id = excluded.job_id, expires_at = excluded.expires_at"
            ),
            {"types": types, "keys": keys, "ids": ids, "expiries": expiries},
        )

    def open_keys(self, keys: Collection[str]) -> set[str]:
        if not keys:
            return set()
        found = self.execute(
            self.text(
                "SELECT wanted.key FROM unnest(%(keys)s::text[]) AS wanted (key) WHERE EXISTS ("
                " SELECT FROM {schema}.job WHERE job.key = wanted.key AND job.key IS NOT NULL AND job.closed = 0)"
            ),
            {"keys": list(keys)},
        )
        return {key for (key,) in found}

    def dependencies(self, ids: Collection[str]) -> dict[str, Row]:
        if self.foreseen:
            self.lock_reached(ids=ids)
        rows = self.locked_rows(self.sql["dependencies"], {"ids": list(ids), **self.shared.key_locks})
        self._held_keys.update(row.key for row in rows if row.key is not None)
        self._reached_ids.update(ids)
        self._expected.difference_update(ids)
        return {row.id: row for row in rows}

    def reserve(self, count: int) -> Sequence[int]:
        found = self.execute(
            self.text(
                "SELECT string_agg(nextval('{schema}.job_number')::text, ','), {now}"
                " FROM generate_series(1, %(count)s)"
            ),
            {"count": count},
        ).fetchone()
        if found is None or found[0] is None:
            return []
        self.advance_now(found[1])  # what is stored next is as old as its number
        return [int(number) for number in found[0].split(",")]
