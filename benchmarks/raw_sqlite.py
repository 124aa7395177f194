"""The raw probe on SQLite: apsw on the product's schema, with the product's pragmas."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import apsw

from benchmarks.items import TYPE, Item
from benchmarks.raw import RawStore

# Every column the schema wants; those that a plain new job leaves at NULL are not named.
# OR FAIL spares SQLite a journal for each statement; whoever meets an error rolls back.
_INSERT: Final = f"""INSERT OR FAIL INTO job (
    id, order_at, ready_at, created_at, updated_at,
    type, tags, priority, status, closed, gate, unmet, fan, held, depth, n, attempt, retry_count, failures,
    progress, error_message, after, after_any, verb)
VALUES (?1, ?2, ?2, ?2, ?2, '{TYPE}', '[]', 2, 'initial_pending', 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, '', '[]', '[]', 'enqueue')"""
_INSERT_NUMBERED: Final = _INSERT.replace("    id, order_at", "    seq, id, order_at", 1).replace(
    "VALUES (?1, ?2, ?2, ?2, ?2,", "VALUES (?1, ?2, ?3, ?3, ?3, ?3,", 1
)
_PAYLOAD: Final = "INSERT INTO payload (seq, data) VALUES (?, ?)"
_LAST_PAYLOAD: Final = "INSERT INTO payload (seq, data) VALUES (last_insert_rowid(), ?)"
_CLAIM: Final = """UPDATE OR FAIL job SET
    from_status = status, status = 'running', gate = NULL, verb = 'claim', n = n + 1, attempt = attempt + 1,
    assignee_id = 'raw', assigned_at = ?1, attempt_started_at = ?1, updated_at = ?1, started_at = ?1,
    attempt_ready_at = ready_at
WHERE seq IN (SELECT seq FROM job INDEXED BY job_ready WHERE gate = 0 ORDER BY priority, order_at, seq LIMIT ?2)
RETURNING seq, id, type, attempt, (SELECT data FROM payload WHERE payload.seq = job.seq)"""
_COMPLETE: Final = """UPDATE OR FAIL job SET
    from_status = 'running', status = 'completed', closed = 1, verb = 'complete', n = n + 1,
    finalized_at = ?1, updated_at = ?1
WHERE seq IN (SELECT value FROM json_each(?2)) AND status = 'running'"""


class RawSqlite(RawStore):
    """One connection, opened on a file that the product has created."""

    def __init__(self, path: str, *, synchronous: str = "FULL") -> None:
        self._connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
        self._connection.set_busy_timeout(10_000)
        for pragma in (
            "journal_mode = WAL",
            f"synchronous = {synchronous}",
            "mmap_size = 0",
            "cache_size = -65536",
            "temp_store = MEMORY",
            "journal_size_limit = 67108864",
            "recursive_triggers = OFF",
        ):
            self._connection.execute(f"PRAGMA {pragma}")
        self._cursor = self._connection.cursor()
        self._lock = threading.Lock()

    def submit(self, item: Item) -> None:
        execute = self._cursor.execute
        execute("BEGIN IMMEDIATE")
        execute(_INSERT, (item[0], _now()))
        execute(_LAST_PAYLOAD, (item[1],))
        execute("COMMIT")

    def clients(self, number: int) -> list[Callable[[Item], object]]:
        def submit_locked(item: Item) -> None:
            with self._lock:
                self.submit(item)

        return [submit_locked] * number

    def bulk(self, items: Sequence[Item]) -> None:
        now = _now()
        cursor = self._cursor
        cursor.execute("BEGIN IMMEDIATE")
        first: Any = cursor.execute("SELECT coalesce(max(seq), 0) + 1 FROM job").fetchall()[0][0]
        cursor.executemany(
            _INSERT_NUMBERED, [(seq, job_id, now) for seq, (job_id, _) in enumerate(items, first)]
        )
        cursor.executemany(_PAYLOAD, [(seq, data) for seq, (_, data) in enumerate(items, first)])
        cursor.execute("COMMIT")

    def drain(self, batch: int) -> int:
        cursor = self._cursor
        claimed: list[tuple[Any, ...]] = []
        done = 0
        while True:
            now = _now()
            cursor.execute("BEGIN IMMEDIATE")
            if claimed:
                # One statement for all is a tenth faster than one each.
                cursor.execute(_COMPLETE, (now, json.dumps([row[0] for row in claimed])))
                done += len(claimed)
            claimed = cursor.execute(_CLAIM, (now, batch)).fetchall()
            cursor.execute("COMMIT")
            if not claimed:
                return done

    def checkpoint(self) -> None:
        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def close(self) -> None:
        self._connection.close()


def _now() -> int:
    return time.time_ns() // 1000
