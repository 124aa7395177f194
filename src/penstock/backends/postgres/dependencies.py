"""Primitives of dependencies: edges between jobs, and the order of the jobs of a key."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.backends.engine.rows import Row
from penstock.backends.engine.store import Edge
from penstock.backends.postgres.key_locks import KeyLocksTransaction
from penstock.backends.postgres.prepared import numbers

__all__ = ["DependenciesTransaction"]


class DependenciesTransaction(KeyLocksTransaction):
    """The primitives about edges and keys."""

    def insert_edges(self, edges: Sequence[Edge]) -> None:
        self.execute(
            self.text(
                "INSERT INTO {schema}.edge (on_seq, job_seq, kind)"
                " SELECT * FROM unnest(%(on)s::bigint[], %(jobs)s::bigint[], %(kinds)s::text[])"
            ),
            {
                "on": [edge.on_seq for edge in edges],
                "jobs": [edge.job_seq for edge in edges],
                "kinds": [edge.kind for edge in edges],
            },
        )
        self.execute(
            self.text("UPDATE {schema}.job SET fan = 1 WHERE seq = ANY(%(seqs)s::bigint[]) AND fan = 0"),
            {"seqs": numbers(sorted({edge.on_seq for edge in edges}))},
        )

    def edges_onto(self, seqs: Collection[int]) -> list[Edge]:
        found = self.execute(
            self.text(
                "SELECT on_seq, job_seq, kind FROM {schema}.edge WHERE on_seq = ANY(%(seqs)s::bigint[])"
            ),
            {"seqs": numbers(seqs)},
        )
        return [Edge(*values) for values in found]

    def edges_of(self, seqs: Collection[int], kind: str) -> list[Edge]:
        found = self.execute(
            self.text(
                "SELECT on_seq, job_seq, kind FROM {schema}.edge"
                " WHERE job_seq = ANY(%(seqs)s::bigint[]) AND kind = %(kind)s"
            ),
            {"seqs": numbers(seqs), "kind": kind},
        )
        return [Edge(*values) for values in found]

    def drop_edges_onto(self, seqs: Collection[int]) -> None:
        if seqs:
            self.execute(
                self.text("DELETE FROM {schema}.edge WHERE on_seq = ANY(%(seqs)s::bigint[])"),
                {"seqs": numbers(seqs)},
            )

    def drop_edges_of(self, seqs: Collection[int], kind: str | None = None) -> None:
        if seqs:
            self.execute(
                self.text(
                    "DELETE FROM {schema}.edge WHERE job_seq = ANY(%(seqs)s::bigint[])"
                    " AND (%(kind)s::text IS NULL OR kind = %(kind)s)"
                ),
                {"seqs": numbers(seqs), "kind": kind},
            )

    def key_members(self, keys: Collection[str]) -> list[Row]:
        self.lock_keys(keys)
        return self.locked_rows(self.sql["key_members"], {"keys": list(keys)})

    def first_awaited(self, row: Row) -> Row | None:
        found = self.execute(self.sql["first_awaited"], {"seq": row.seq, "key": row.key}).fetchone()
        if found is None:
            return None
        rows = self.lock_rows("WHERE job.seq = %(seq)s", {"seq": found[0]})
        return rows[0] if rows else None
