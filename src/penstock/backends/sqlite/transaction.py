"""The engine's primitives on SQLite.

There is one writer at a time, so nothing needs locking. Triggers write journal and tags (see the migration).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

import apsw
import msgspec

from penstock.backends.contract.values import Change
from penstock.backends.engine.rows import (
    COLUMNS,
    NO_STRINGS,
    STATUSES,
    Row,
    decode_strings,
    encode_policy,
    encode_strings,
    encode_timeouts,
    moment_at,
)
from penstock.backends.engine.store import Blobs, DuplicateIdError, plain_change
from penstock.backends.sqlite.claiming import ClaimingTransaction
from penstock.backends.sqlite.connection import fetch
from penstock.backends.sqlite.consumers import ConsumersTransaction
from penstock.backends.sqlite.dependencies import DependenciesTransaction
from penstock.backends.sqlite.outbox import OutboxTransaction
from penstock.backends.sqlite.owners import OwnersTransaction
from penstock.backends.sqlite.statements import COLUMN_LIST, PLAIN_PARAMETERS, SAVE_PARAMETERS, statement
from penstock.backends.sqlite.submission import SubmissionTransaction
from penstock.backends.sqlite.transaction_base import SELECT, counted, json_array
from penstock.backends.sqlite.upkeep import UpkeepTransaction
from penstock.job import Job, JobStatus
from penstock.lifecycle import Verb

__all__ = ["SqliteTransaction", "fetch_blobs"]

_INSERT: Final = f"INSERT OR FAIL INTO job ({COLUMN_LIST}) VALUES ({', '.join('?' * len(COLUMNS))})"
_INSERT_PAYLOAD: Final = "INSERT INTO payload (seq, data) VALUES (?, ?)"
_ENQUEUE: Final = statement("enqueue")
_PLAIN_TAGS: Final = PLAIN_PARAMETERS.index("tags")
_PLAIN_TYPE: Final = PLAIN_PARAMETERS.index("type")
_SAVE: Final = statement("save")
_saved_values = attrgetter(*SAVE_PARAMETERS)
_tallied_values = attrgetter("type", "tags", "from_status", "status", "verb", "retry_count")
_COMPLETE_HELD: Final = statement("complete_held")
_COMPLETE_SIMPLE: Final = statement("complete_simple")
_LAST_CHANGED: Final = "SELECT job_seq FROM journal ORDER BY seq DESC LIMIT ?"
_LOST: Final = statement("lost")
_PLACE: Final = "UPDATE job SET gate = ?, ready_at = ?, unmet = ? WHERE seq = ?"
_placed_values = attrgetter("gate", "ready_at", "unmet", "seq")
_IN_FLIGHT: Final = "status IN ('running', 'cancelling')"


class SqliteTransaction(
    SubmissionTransaction,
    DependenciesTransaction,
    ClaimingTransaction,
    OwnersTransaction,
    ConsumersTransaction,
    OutboxTransaction,
    UpkeepTransaction,
):
    """The primitives that the engine calls in one transaction."""

    # -- finding rows -----------------------------------------------------------------------------------------------

    def rows(self, ids: Collection[str]) -> dict[str, Row]:
        found = self.fetch_many(
            f"{SELECT} WHERE id = ?", f"{SELECT} WHERE id IN (SELECT value FROM json_each(?))", ids
        )
        return {row.id: row for row in found}

    def rows_by_seq(self, seqs: Collection[int]) -> dict[int, Row]:
        found = self.fetch_many(
            f"{SELECT} WHERE seq = ?", f"{SELECT} WHERE seq IN (SELECT value FROM json_each(?))", seqs
        )
        return {row.seq: row for row in found}

    def rows_tagged(self, tags: Sequence[str]) -> list[Row]:
        first, rest = self.rarest_first(tags, "job_tag")
        also = (
            " AND EXISTS (SELECT 1 FROM job_tag AS other WHERE other.tag = ? AND other.seq = job_tag.seq)"
            * len(rest)
        )
        return self.fetch_rows(
            f"{SELECT} WHERE seq IN (SELECT seq FROM job_tag WHERE tag = ?{also}) ORDER BY seq",
            (first, *rest),
        )

    def rows_in_flight(self, assignee_id: str | None) -> list[Row]:
        if assignee_id is None:
            return self.fetch_rows(f"{SELECT} INDEXED BY job_assignee WHERE {_IN_FLIGHT} ORDER BY seq")
        return self.fetch_rows(
            f"{SELECT} INDEXED BY job_assignee WHERE {_IN_FLIGHT} AND assignee_id = ? ORDER BY seq",
            (assignee_id,),
        )

    def rows_expired(self, limit: int) -> list[Row]:
        return self.fetch_rows(
            f"{SELECT} INDEXED BY job_lifetime WHERE expires_at IS NOT NULL AND closed = 0 AND expires_at <= ?"
            " ORDER BY expires_at, seq LIMIT ?",
            (self.now, limit),
        )

    def rows_lost(
        self, liveness: int, gone: Collection[str], spared: Collection[str], limit: int
    ) -> list[Row]:
        unleased = self.fetch_rows(
            f"{SELECT} INDEXED BY job_lease WHERE lease_until IS NOT NULL AND lease_until <= ?"
            " ORDER BY lease_until, seq LIMIT ?",
            (self.now, limit),
        )
        orphaned = self.fetch_rows(
            _LOST,
            (json_array(gone), json_array(spared), liveness, self.now, limit - len(unleased)),
        )
        return unleased + orphaned

    def rows_overdue(self, grace: int, limit: int) -> list[Row]:
        return self.fetch_rows(
            f"{SELECT} INDEXED BY job_deadline WHERE deadline_at IS NOT NULL AND deadline_at <= ?"
            " AND status = 'running' AND owner IS NULL ORDER BY deadline_at, seq LIMIT ?",
            (self.now - grace, limit),
        )

    def rows_ended(self, statuses: Collection[JobStatus], before: int, limit: int) -> list[Row]:
        return self.fetch_rows(
            f"{SELECT} INDEXED BY job_ended WHERE closed = 1 AND status IN (SELECT value FROM json_each(?))"
            " AND finalized_at <= ? LIMIT ?",
            (json_array(statuses), before, limit),
        )

    def blobs(self, seqs: Collection[int]) -> dict[int, Blobs]:
        return fetch_blobs(self.cursor, seqs)

    # -- writing rows -----------------------------------------------------------------------------------------------

    def insert(self, rows: Sequence[Row], blobs: Sequence[Blobs]) -> None:
        execute_many = self.cursor.executemany
        try:
            execute_many(_INSERT, map(msgspec.structs.astuple, rows))
        except apsw.ConstraintError:
            raise self._duplicates([row.id for row in rows], rows[0].seq) from None
        self.add_journaled(
            [((row.type, row.tags, None, row.status, "enqueue", row.retry_count), 1) for row in rows]
        )
        payloads = [(row.seq, each.payload) for row, each in zip(rows, blobs, strict=True) if each.payload]
        if payloads:
            execute_many(_INSERT_PAYLOAD, payloads)
        for row, each in zip(rows, blobs, strict=True):
            if each.result is not None:
                self.store_results([(row.seq, each.result)])
            if each.checkpoint is not None:
                self.store_checkpoint(row.seq, each.checkpoint)

    def insert_plain(self, jobs: Sequence[Job]) -> None:
        now = self.now
        first = self.reserve(len(jobs))[0]
        values = [plain_values(job, seq, now) for seq, job in enumerate(jobs, first)]
        try:
            if len(jobs) == 1:
                self.cursor.execute(_ENQUEUE, values[0])
            else:
                self.cursor.executemany(_ENQUEUE, values)
        except apsw.ConstraintError:
            raise self._duplicates([job.id for job in jobs], first) from None
        self.add_journaled(
            [
                ((type_, tags, None, "initial_pending", "enqueue", 0), count)
                for (type_, tags), count in counted(
                    [(each[_PLAIN_TYPE], each[_PLAIN_TAGS]) for each in values]
                )
            ]
        )
        if len(jobs) > 1:
            payloads = [(seq, bytes(job.payload)) for seq, job in enumerate(jobs, first) if job.payload]
            self.cursor.executemany(_INSERT_PAYLOAD, payloads)
        elif jobs[0].payload:
            self.cursor.execute(_INSERT_PAYLOAD, (first, bytes(jobs[0].payload)))
        if self.has_listeners:
            self.changes += [plain_change(job, now) for job in jobs]

    def save(self, rows: Sequence[Row]) -> None:
        self.cursor.executemany(_SAVE, map(_saved_values, rows))
        self.add_journaled([(_tallied_values(row), 1) for row in rows])

    def complete_simple(self, fences: Mapping[str, int | None]) -> list[tuple[str, int, str | None]]:
        done = self._complete_held(fences)
        if len(done) == len(fences):
            return done
        finished = {job_id for job_id, _, _ in done}
        rest = {job_id: attempt for job_id, attempt in fences.items() if job_id not in finished}
        return done + self._complete_found(rest)

    def _complete_held(self, fences: Mapping[str, int | None]) -> list[tuple[str, int, str | None]]:
        """Complete jobs that this process claimed and that did not change since, by number and without reading them."""
        held = self.cache.held
        jobs: dict[int, str] = {}
        for job_id, attempt in fences.items():
            if job_id in held and (attempt is None or attempt == 1):
                jobs[held[job_id][0]] = job_id
        if not jobs:
            return []
        self.cursor.execute(_COMPLETE_HELD, (json_array(jobs), self.now))
        changed = self.cursor.connection.changes()
        if changed < len(jobs):  # the journal's last rows name those that had not changed
            jobs = {seq: jobs[seq] for (seq,) in fetch(self.cursor, _LAST_CHANGED, (changed,))}
        done = {job_id: held.pop(job_id) for job_id in jobs.values()}
        self.add_journaled(
            [
                ((type_, encode_strings(tags), "running", "completed", "complete", 0), count)
                for (type_, tags), count in counted([(type_, tags) for _, _, type_, tags in done.values()])
            ]
        )
        if self.has_listeners:
            at = moment_at(self.now)
            self.changes += [
                _completion(job_id, type_, tags, JobStatus.RUNNING, 1, assignee_id, at)
                for job_id, (_, assignee_id, type_, tags) in done.items()
            ]
        return [(job_id, seq, assignee_id) for job_id, (seq, assignee_id, _, _) in done.items()]

    def _complete_found(self, fences: Mapping[str, int | None]) -> list[tuple[str, int, str | None]]:
        found = fetch(self.cursor, _COMPLETE_SIMPLE, (msgspec.json.encode(fences).decode(), self.now))
        self.add_journaled(
            [
                ((type_, tags, source, "completed", "complete", 0), 1)
                for _, _, _, type_, tags, source, _ in found
            ]
        )
        if self.has_listeners:
            at = moment_at(self.now)
            self.changes += [
                _completion(job_id, type_, decode_strings(tags), STATUSES[source], attempt, assignee_id, at)
                for job_id, _, assignee_id, type_, tags, source, attempt in found
            ]
        return [(job_id, seq, assignee_id) for job_id, seq, assignee_id, *_ in found]

    def place(self, rows: Sequence[Row]) -> None:
        self.cursor.executemany(_PLACE, map(_placed_values, rows))

    def retag(self, row: Row) -> None:
        """Nothing to do: a trigger keeps the tags of a saved row."""

    def delete(self, rows: Sequence[Row]) -> None:
        self.cursor.executemany("DELETE FROM job WHERE seq = ?", [(row.seq,) for row in rows])

    def store_results(self, results: Sequence[tuple[int, bytes | None]]) -> None:
        given = [(seq, data) for seq, data in results if data is not None]
        if given:
            self.cursor.executemany(
                "INSERT INTO result (seq, data) VALUES (?, ?) ON CONFLICT (seq) DO UPDATE SET data = excluded.data",
                given,
            )
        if len(given) < len(results):
            cleared = [seq for seq, data in results if data is None]
            self.cursor.execute(
                "DELETE FROM result WHERE seq IN (SELECT value FROM json_each(?))", (json_array(cleared),)
            )

    def store_checkpoint(self, seq: int, data: bytes) -> None:
        self.cursor.execute(
            "INSERT INTO checkpoint (seq, data) VALUES (?, ?) ON CONFLICT (seq) DO UPDATE SET data = excluded.data",
            (seq, data),
        )

    def store_output(self, seq: int, data: bytes) -> None:
        self.cursor.execute(
            "INSERT INTO output (seq, data) VALUES (?, ?) ON CONFLICT (seq) DO UPDATE SET data = excluded.data",
            (seq, data),
        )

    def store_progress(self, row: Row) -> None:
        self.cursor.execute(
            "UPDATE job SET progress = ?, description = ? WHERE seq = ?",
            (row.progress, row.description, row.seq),
        )

    def _duplicates(self, ids: Sequence[str], first: int) -> DuplicateIdError:
        """Return the error for those of the ids that were stored before insertion number `first`."""
        query = "SELECT 1 FROM job WHERE id = ? AND seq < ?"
        return DuplicateIdError([job_id for job_id in ids if fetch(self.cursor, query, (job_id, first))])


def _completion(
    job_id: str,
    type_: str,
    tags: tuple[str, ...],
    source: JobStatus,
    attempt: int,
    assignee_id: str | None,
    at: datetime,
) -> Change:
    return Change(
        job_id=job_id,
        type=type_,
        key=None,
        tags=tags,
        verb=Verb.COMPLETE,
        from_status=source,
        status=JobStatus.COMPLETED,
        attempt=attempt,
        assignee_id=assignee_id,
        at=at,
    )


def plain_values(job: Job, seq: int, now: int) -> tuple[Any, ...]:
    """Return the parameters of `enqueue.sql`, in the order of `PLAIN_PARAMETERS`."""
    retry = job.retry
    return (
        seq,
        now,
        job.id,
        job.type,
        NO_STRINGS if not job.tags else encode_strings(job.tags),
        int(job.priority),
        None if retry is None else retry.max_attempts,
        None if retry is None else encode_policy(retry),
        *encode_timeouts(job.timeouts),
    )


def fetch_blobs(cursor: apsw.Cursor, seqs: Collection[int]) -> dict[int, Blobs]:
    """Return the blobs of jobs by insertion number."""
    if len(seqs) == 1:
        (seq,) = seqs
        found = fetch(
            cursor,
            "SELECT (SELECT data FROM payload WHERE seq = ?1), (SELECT data FROM result WHERE seq = ?1),"
            " (SELECT data FROM checkpoint WHERE seq = ?1)",
            (seq,),
        )
        payload, result, checkpoint = found[0]
        return {seq: Blobs(payload or b"", result, checkpoint)}
    found = fetch(
        cursor,
        "SELECT j.value, p.data, r.data, c.data FROM json_each(?) AS j"
        " LEFT JOIN payload AS p ON p.seq = j.value LEFT JOIN result AS r ON r.seq = j.value"
        " LEFT JOIN checkpoint AS c ON c.seq = j.value",
        (json_array(seqs),),
    )
    return {seq: Blobs(payload or b"", result, checkpoint) for seq, payload, result, checkpoint in found}
