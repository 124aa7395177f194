"""The journal: numbers assigned after the commit, and the counts that are folded from it.

    writer A:  insert into inbox (id 1) .................... commit
    writer B:        insert into inbox (id 2)  commit
    reader:                                      ^ numbers id 2 as seq 1         ^ numbers id 1 as seq 2

An id is drawn before the commit, so a reader that walked along ids would skip what commits late. Hence `seq`: under one
lock, readers and upkeep move the committed rows from the inbox to the journal and number them. A row that is not
committed yet is not visible; it gets a later number. No reader waits for a writer. A job's rows keep their order,
because its writers take turns on its row lock, and each draws its id after the one before has committed.

Moved rows leave dead ones behind, which every scan would step over while some session holds an old snapshot.
So this process remembers a floor: no row at or below it is in the inbox, or ever will be, except by transactions that
were open at its last scan (see `snapshots`). Ids are drawn only after a transaction has its xid, which makes the two
comparable. The floor only saves time: another process has its own, and a new one begins at 0.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from psycopg import errors

from penstock.backends.engine.rows import JOURNAL_COLUMNS, journal_entry
from penstock.backends.postgres.connection import BoundedConnection
from penstock.backends.postgres.snapshots import START, Floor
from penstock.backends.postgres.statements import Statements
from penstock.job import JobStats, JournalEntry

__all__ = ["LAST_POSSIBLE", "Journal"]

NUMBERED_AT_ONCE: Final = 10_000
FOLDED_AT_ONCE: Final = 50_000
#: A reader that meets a longer tail than this folds it, unless another process does.
LONG_TAIL: Final = 5_000
_NUMBERING: Final = 1
#: Behind every `seq` there will ever be.
LAST_POSSIBLE: Final = 2**62

INBOX_COLUMNS: Final = ("job_seq", *JOURNAL_COLUMNS[1:], "tags_before")


class Journal:
    """Numbering, folding and reading, for one store of one process."""

    def __init__(self, statements: Statements, lock_class: int) -> None:
        lists = {
            "inbox_start": START,
            "inbox_columns": ", ".join(f"journal_inbox.{name}" for name in INBOX_COLUMNS),
            "plain_inbox_columns": ", ".join(INBOX_COLUMNS),
            "effects": statements["effects"],
            "type_effects": statements["type_effects"],
        }
        self._number = statements.filled("number", **lists)
        self._stats = statements.filled("stats", **lists)
        self._type_counts = statements.filled("type_counts", **lists)
        self._fold = statements.filled("fold", **lists)
        self._lock = statements.text(
            f"SELECT pg_advisory_xact_lock({lock_class}, {_NUMBERING}), CASE WHEN is_called THEN last_value ELSE 0 END"
            " FROM {schema}.journal_inbox_id_seq"
        )
        self._try_lock = statements.text(
            f"SELECT pg_try_advisory_xact_lock({lock_class}, {_NUMBERING}), CASE WHEN is_called THEN last_value ELSE 0 END"
            " FROM {schema}.journal_inbox_id_seq"
        )
        self._read = statements.text(
            "SELECT {journal_columns} FROM {schema}.journal WHERE seq > %(after)s ORDER BY seq LIMIT %(limit)s"
        )
        self._place = statements.text("SELECT seq FROM {schema}.job WHERE id = %(job_id)s")
        self._history = statements.text(
            "SELECT {journal_columns} FROM {schema}.journal"
            " WHERE job_seq = %(job_seq)s ORDER BY n DESC LIMIT %(limit)s"
        )
        self._is_waiting = statements.text(
            f"SELECT EXISTS (SELECT FROM {{schema}}.journal_inbox WHERE id > {START})"
        )
        self._fold_span = statements.text(
            f"SELECT seq, LEAST(seq + {FOLDED_AT_ONCE}, (SELECT COALESCE(max(seq), 0) FROM {{schema}}.journal))"
            " FROM {schema}.fold"
        )
        self._sweep = statements.text("DELETE FROM {schema}.counter WHERE amount = 0 AND tag <> ''")
        self._floor = Floor()

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, connection: BoundedConnection, after: int, limit: int) -> list[JournalEntry]:
        """Return numbered rows, numbering what was committed before the call first if it could be among them."""
        wanted = {"after": after, "limit": limit}
        found = connection.execute(self._read, wanted).fetchall()
        while len(found) < limit:
            waiting = connection.execute(self._is_waiting, self._floor.parameters()).fetchone()
            if not (waiting and waiting[0]):
                # Another process may have numbered rows between the two statements.
                return _entries(connection.execute(self._read, wanted).fetchall())
            try:
                self.number(connection)
            except errors.ReadOnlySqlTransaction:
                return _entries(found)  # the rest gets its numbers where it can be written
            found = connection.execute(self._read, wanted).fetchall()
        return _entries(found)

    def history(self, connection: BoundedConnection, job_id: str, limit: int) -> list[JournalEntry] | None:
        """Return the latest rows of a job, oldest first; None if there is no such job."""
        job = connection.execute(self._place, {"job_id": job_id}).fetchone()
        if job is None:
            return None
        self.read(connection, LAST_POSSIBLE, 1)  # a read beyond the end numbers everything first
        found = connection.execute(self._history, {"job_seq": job[0], "limit": limit}).fetchall()
        return _entries(found[::-1])

    def stats(self, connection: BoundedConnection, tag: str) -> tuple[dict[str, int], bool]:
        """Return the counts of one tag ("" for all jobs), and whether folding would pay."""
        quoted = msgspec.json.encode(tag).decode()
        found = connection.execute(
            self._stats, {"tag": tag, "quoted": quoted, **self._floor.parameters()}
        ).fetchall()
        return {status: amount for status, amount, _ in found}, any(row[2] > LONG_TAIL for row in found)

    def type_counts(self, connection: BoundedConnection) -> tuple[list[tuple[str, str, int, int]], bool]:
        """Return type, status, jobs stored and how often it was entered; and whether folding would pay."""
        found = connection.execute(self._type_counts, self._floor.parameters()).fetchall()
        counts = [(type_, status, jobs, entered) for type_, status, jobs, entered, _ in found]
        return counts, bool(found) and found[0][4] > LONG_TAIL

    # -- keeping up ---------------------------------------------------------------------------------------------

    def number(self, connection: BoundedConnection) -> int:
        """Number one batch in a transaction of its own; return how many rows."""
        with connection.transaction():
            moved, floor = self._number_locked(connection, self._lock)
        self._floor = floor
        return moved

    def keep_up(self, connection: BoundedConnection, *, wait: bool = True) -> bool:
        """Number and fold one batch in a transaction of its own; False when nothing is left, or others do it.

        Args:
            wait: it must be done; otherwise it is left to others if they are at it, or where nothing can be written.
        """
        try:
            return self._keep_up(connection, wait=wait)
        except errors.ReadOnlySqlTransaction:
            if wait:
                raise
            return False

    def _keep_up(self, connection: BoundedConnection, *, wait: bool) -> bool:
        with connection.transaction():
            moved, floor = self._number_locked(connection, self._lock if wait else self._try_lock)
            if moved < 0:
                return False
            folded, upto = connection.execute(self._fold_span).fetchone() or (0, 0)
            if upto > folded:
                connection.execute(self._fold, {"upto": upto})
                connection.execute(self._sweep)
        self._floor = floor
        return moved >= NUMBERED_AT_ONCE or upto - folded >= FOLDED_AT_ONCE

    def _number_locked(self, connection: BoundedConnection, lock: str) -> tuple[int, Floor]:
        """Take the lock and number one batch; return how many rows (-1 without the lock) and the new floor.

        The sequence is read before the numbering statement takes its snapshot and its xid: so a transaction that drew an id
        up to `last_drawn` has ended, or is open in that snapshot with a lower xid.
        """
        floor = self._floor
        got, last_drawn = connection.execute(lock).fetchone() or (False, 0)
        if got is False:
            return -1, floor
        found = connection.execute(self._number, {"limit": NUMBERED_AT_ONCE, **floor.parameters()}).fetchone()
        if found is None:
            return 0, floor
        moved, last_id, snapshot, xid = found
        reached = last_id if moved >= NUMBERED_AT_ONCE else last_drawn
        return moved, floor.risen(reached, snapshot, int(xid))


def _entries(rows: list[tuple[Any, ...]]) -> list[JournalEntry]:
    return [journal_entry(row) for row in rows]


def job_stats(tags: tuple[str, ...], counts: dict[str, int]) -> JobStats:
    """Return the counts by status as a JobStats."""
    total = sum(amount for status, amount in counts.items() if status)
    pending, running = counts.get("initial_pending", 0), counts.get("running", 0)
    completed = counts.get("completed", 0)
    failed = counts.get("failed_retry", 0) + counts.get("unknown_retry", 0)
    return JobStats(
        tags=tags,
        total_jobs=total,
        pending_jobs=pending,
        running_jobs=running,
        completed_jobs=completed,
        failed_jobs=failed,
        stopped_jobs=total - pending - running - completed - failed - counts.get("cancelling", 0),
        total_retries=counts.get("", 0),
    )
