"""Primitives of dependencies: edges between jobs, and the order of the jobs of a key."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Final

from penstock.backends.engine.rows import Gate, Row
from penstock.backends.engine.store import Edge
from penstock.backends.sqlite.connection import fetch
from penstock.backends.sqlite.statements import statement
from penstock.backends.sqlite.transaction_base import SELECT, BaseTransaction, json_array

__all__ = ["DependenciesTransaction"]

_FIRST_AWAITED: Final = statement("first_awaited")


class DependenciesTransaction(BaseTransaction):
    """The primitives about edges and keys."""

    def insert_edges(self, edges: Sequence[Edge]) -> None:
        self.cursor.executemany("INSERT INTO edge (on_seq, job_seq, kind) VALUES (?, ?, ?)", edges)
        self.cursor.executemany(
            "UPDATE job SET fan = 1 WHERE seq = ? AND fan = 0", {(edge.on_seq,) for edge in edges}
        )

    def edges_onto(self, seqs: Collection[int]) -> list[Edge]:
        found = fetch(
            self.cursor,
            "SELECT on_seq, job_seq, kind FROM edge WHERE on_seq IN (SELECT value FROM json_each(?))",
            (json_array(seqs),),
        )
        return [Edge(*values) for values in found]

    def edges_of(self, seqs: Collection[int], kind: str) -> list[Edge]:
        found = fetch(
            self.cursor,
            "SELECT on_seq, job_seq, kind FROM edge WHERE job_seq IN (SELECT value FROM json_each(?)) AND kind = ?",
            (json_array(seqs), kind),
        )
        return [Edge(*values) for values in found]

    def drop_edges_onto(self, seqs: Collection[int]) -> None:
        self.cursor.executemany("DELETE FROM edge WHERE on_seq = ?", [(seq,) for seq in seqs])

    def drop_edges_of(self, seqs: Collection[int], kind: str | None = None) -> None:
        self.cursor.executemany(
            "DELETE FROM edge WHERE job_seq = ?1 AND (?2 IS NULL OR kind = ?2)", [(seq, kind) for seq in seqs]
        )

    def key_members(self, keys: Collection[str]) -> list[Row]:
        found: dict[int, Row] = {}
        of_key = "WHERE key = ? AND key IS NOT NULL AND closed = 0"
        head = f"{SELECT} INDEXED BY job_key {of_key} ORDER BY seq LIMIT 1"
        others = f"{SELECT} INDEXED BY job_key_turn {of_key} AND gate IS NOT {Gate.WAITING.value}"
        for key in keys:
            for row in itertools.chain(self.fetch_rows(head, (key,)), self.fetch_rows(others, (key,))):
                found[row.seq] = row
        return list(found.values())

    def first_awaited(self, row: Row) -> Row | None:
        found = self.fetch_rows(_FIRST_AWAITED, (row.seq, row.key))
        return found[0] if found else None
