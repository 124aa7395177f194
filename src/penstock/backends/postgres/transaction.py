"""The engine's primitives on PostgreSQL: finding, locking and writing rows.

Locks are taken in this order: keys (advisory, by stripe number), then job rows (by insertion number). A job's key never
changes, so every primitive that locks rows can read their keys first. Work that ends jobs says so (`expect`), and the
keys of those that wait for them are locked in the same step (`lock_reached`). A transaction that waits for the row of a
job with a key holds that key. What cannot be known in that step (a dependent that is being enqueued concurrently) is locked
later; if two transactions do so, the server detects the deadlock and the work is run again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from psycopg import errors

from penstock.backends.contract.values import Change
from penstock.backends.engine.rows import Gate, Row, decode_strings, moment_at
from penstock.backends.engine.store import Blobs, DuplicateIdError, Reach, plain_change
from penstock.backends.postgres import bulk, prepared
from penstock.backends.postgres.claiming import ClaimingTransaction
from penstock.backends.postgres.consumers import ConsumersTransaction
from penstock.backends.postgres.dependencies import DependenciesTransaction
from penstock.backends.postgres.floors import BEHIND_ALL, InFlight
from penstock.backends.postgres.outbox import OutboxTransaction
from penstock.backends.postgres.owners import OwnersTransaction
from penstock.backends.postgres.plain_jobs import plain_row
from penstock.backends.postgres.prepared import numbers, texts
from penstock.backends.postgres.snapshots import Floor
from penstock.backends.postgres.submission import SubmissionTransaction
from penstock.backends.postgres.upkeep import UpkeepTransaction
from penstock.job import Job, JobStatus
from penstock.lifecycle import Verb

__all__ = ["PostgresTransaction"]

_encode: Final = msgspec.json.Encoder().encode
_COPIED: Final = 20  # from so many rows on COPY is quicker than one statement with all values


class PostgresTransaction(
    SubmissionTransaction,
    DependenciesTransaction,
    ClaimingTransaction,
    OwnersTransaction,
    ConsumersTransaction,
    OutboxTransaction,
    UpkeepTransaction,
):
    """What one piece of work may do, inside a transaction that is already open."""

    _meets_stored = False

    # -- finding rows -------------------------------------------------------------------------------------------

    def rows(self, ids: Collection[str]) -> dict[str, Row]:
        wanted = list(ids)
        if not wanted:
            return {}
        self.lock_reached(ids=wanted)
        found = self.lock_rows("WHERE job.id = ANY(%(ids)s::text[]) ORDER BY job.seq", {"ids": wanted})
        return {row.id: row for row in found}

    def rows_by_seq(self, seqs: Collection[int]) -> dict[int, Row]:
        # Mostly reached before, when the jobs that these wait for were locked.
        self._lock_new(set(), set(), set(seqs), Reach.ALL if self._reach is Reach.ALL else Reach.OWN)
        return {row.seq: row for row in self._locked(list(seqs))}

    def rows_tagged(self, tags: Sequence[str]) -> list[Row]:
        rarest = self.rarest_tag(tags, "job_tag")
        found = self.execute(
            self.text(
                # OFFSET makes it a look-up for each row of the tag, whatever the planner thinks of the tag.
                "SELECT first.seq FROM {schema}.job_tag AS first CROSS JOIN LATERAL ("
                "SELECT tags FROM {schema}.job WHERE job.seq = first.seq OFFSET 0) AS job"
                " WHERE first.tag = %(tag)s AND job.tags::jsonb ?& %(tags)s::text[]"
            ),
            {"tag": rarest, "tags": [tag for tag in tags if tag != rarest]},
        ).fetchall()
        wanted = set(tags)
        # Checked again under the lock: the tags may have been changed meanwhile.
        return [row for row in self._locked_found(found) if wanted <= set(decode_strings(row.tags))]

    def rows_in_flight(self, assignee_id: str | None) -> list[Row]:
        condition = "job.status IN ('running', 'cancelling')"
        if assignee_id is not None:
            condition += " AND job.assignee_id = %(assignee_id)s"
        return self._found_where(condition, {"assignee_id": assignee_id})

    def rows_expired(self, limit: int) -> list[Row]:
        return self._swept(
            "expired", "expires_at", "job.expires_at IS NOT NULL AND job.closed = 0", self.now, limit
        )

    def rows_lost(
        self, liveness: int, gone: Collection[str], spared: Collection[str], limit: int
    ) -> list[Row]:
        wanted = {
            "liveness": liveness, "gone": list(gone), "spared": list(spared), "limit": limit, "now": self.now
        }  # fmt: skip
        rows = self._locked_seqs(self.scan_in_flight("lost", wanted))
        if not rows:
            return []
        # Checked again under the lock: a heartbeat or a report may have come between.
        again = InFlight(tuple(row.seq for row in rows), Floor(BEHIND_ALL)).parameters()
        found = self.execute(self.shared.in_flight("lost", is_full=False), {**wanted, **again}).fetchone()
        still = set(found[0]) if found else set()
        return [row for row in rows if row.seq in still]

    def rows_overdue(self, grace: int, limit: int) -> list[Row]:
        values = {"before": self.now - grace, "limit": limit}
        return self._locked_seqs(
            self.scan_in_flight("overdue", values),
            "job.deadline_at <= %(before)s AND job.status = 'running' AND job.owner IS NULL",
            values,
        )

    def rows_ended(self, statuses: Collection[JobStatus], before: int, limit: int) -> list[Row]:
        rows: list[Row] = []
        for status in sorted(map(str, statuses)):  # one by one, each along its part of the index
            condition = f"job.closed = 1 AND job.status = '{status}'"
            rows += self._swept(status, "finalized_at", condition, before, limit - len(rows))
            if len(rows) >= limit:
                break
        return rows

    def _swept(self, kind: str, column: str, condition: str, upto: int, limit: int) -> list[Row]:
        """Find and lock the first jobs whose time in `column` has come, from where the last sweep of this kind ended."""
        sweep, began = self.shared.floors.sweep(kind), time.monotonic()
        since = sweep.since(upto)
        condition += f" AND job.{column} <= %(upto)s AND job.{column} >= %(since)s"
        parameters = {"upto": upto, "since": since, "limit": limit}
        found = self.execute(
            self.text(
                f"SELECT job.seq, job.{column} FROM {{schema}}.job WHERE {condition}"
                f" ORDER BY job.{column} LIMIT %(limit)s"
            ),
            parameters,
        ).fetchall()
        # What is left of the same moment as the last one is found by the next scan, which begins there.
        reached = upto if len(found) < limit else found[-1][1]
        self.after_commit.append(lambda: sweep.note(since, reached, began))
        return self._locked_seqs([seq for seq, _ in found], condition, parameters)

    def blobs(self, seqs: Collection[int]) -> dict[int, Blobs]:
        found = self.execute(self.sql["blobs"], {"seqs": numbers(seqs)})
        return {seq: Blobs(payload or b"", result, checkpoint) for seq, payload, result, checkpoint in found}

    def _found_where(self, condition: str, parameters: dict[str, Any], tail: str = "") -> list[Row]:
        """Find jobs by an index, lock their keys, then the rows; the condition must still hold under the lock."""
        found = self.execute(
            self.text("SELECT job.seq FROM {schema}.job WHERE " + condition + " " + tail), parameters
        ).fetchall()
        return self._locked_found(found, condition, parameters)

    def _locked_found(
        self, found: list[tuple[Any, ...]], condition: str = "true", parameters: dict[str, Any] | None = None
    ) -> list[Row]:
        return self._locked_seqs([seq for (seq,) in found], condition, parameters)

    def _locked_seqs(
        self, seqs: list[int], condition: str = "true", parameters: dict[str, Any] | None = None
    ) -> list[Row]:
        if not seqs:
            return []
        self.lock_reached(seqs=seqs)
        return self._locked(seqs, condition, parameters)

    def _locked(
        self, seqs: list[int], condition: str = "true", parameters: dict[str, Any] | None = None
    ) -> list[Row]:
        if not seqs:
            return []
        return self.lock_rows(
            "WHERE job.seq = ANY(%(seqs)s::bigint[]) AND " + condition + " ORDER BY job.seq",
            {**(parameters or {}), "seqs": numbers(seqs)},
        )

    # -- writing rows -------------------------------------------------------------------------------------------

    def insert(self, rows: Sequence[Row], blobs: Sequence[Blobs]) -> None:
        if len(rows) < _COPIED:
            self._insert_few(rows)
        else:
            self._insert_many(rows)
        self._note(rows)
        bulk.write_blobs(self, [row.seq for row in rows], blobs)

    def insert_plain(self, jobs: Sequence[Job]) -> None:
        if not jobs:
            return
        self.is_news = True
        if len(jobs) >= _COPIED:
            seqs = self.reserve(len(jobs))
            with self._stored_ids_named([job.id for job in jobs]):
                bulk.copy_plain(self, jobs, seqs)
            self.witness = (seqs[-1], 1, self.now)
        else:
            rows = [plain_row(job) for job in jobs]
            parameters = {
                "rows": _encode(rows).decode(), "now": self._opening.own_clock(), "is_long": self.is_long,
                "token": None,  # its commit is found out by the transaction's number
            }  # fmt: skip
            statement = self.shared.enqueue_many(is_tagged=any(job.tags for job in jobs))
            _, ids, moment = self.execute(statement, parameters).fetchone() or (True, (), None)
            if moment is not None:
                self.advance_now(moment)
            stored = set(ids)
            if len(stored) < len(jobs):
                raise DuplicateIdError([job.id for job in jobs if job.id not in stored])
        if self.has_listeners:
            self.changes += [plain_change(job, self.now) for job in jobs]

    def insert_missing(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Look the ids up only after one of them was found to be stored: a first write has none, a rerun many."""
        if not self._meets_stored and len(jobs) >= _COPIED:
            try:
                self.insert_plain(jobs)
            except DuplicateIdError:  # what was copied is undone
                self._meets_stored = True
            else:
                return jobs
        return super().insert_missing(jobs)

    def _insert_few(self, rows: Sequence[Row]) -> None:
        stored = self.execute(
            self.shared.insert, {"rows": _encode(rows).decode(), "is_long": self.is_long}
        ).fetchall()
        if len(stored) < len(rows):
            done = {job_id for (job_id,) in stored}
            raise DuplicateIdError([row.id for row in rows if row.id not in done])

    def _insert_many(self, rows: Sequence[Row]) -> None:
        with self._stored_ids_named([row.id for row in rows]):
            bulk.copy_rows(self, rows)

    @contextlib.contextmanager
    def _stored_ids_named(self, ids: Sequence[str]) -> Iterator[None]:
        """Turn a stored id into DuplicateIdError.

        The error aborts the transaction, in which the stored ids could not be read any more: hence the savepoint.
        """
        try:
            with self.connection.transaction():
                yield
        except errors.UniqueViolation:
            if self._opening.may_prepare:
                prepared.forget(self.connection)
            stored = self.execute(
                self.text("SELECT id FROM {schema}.job WHERE id = ANY(%(ids)s::text[])"), {"ids": list(ids)}
            )
            known = {job_id for (job_id,) in stored}
            if not known:
                raise  # the other job vanished meanwhile
            raise DuplicateIdError([each for each in ids if each in known]) from None

    def save(self, rows: Sequence[Row]) -> None:
        if rows:
            self.execute(self.sql["save"], {"rows": _encode(rows).decode()})
            self._note(rows)

    def _note(self, rows: Sequence[Row]) -> None:
        if rows:
            self.witness = (rows[-1].seq, rows[-1].n, rows[-1].updated_at)
            self.is_news = self.is_news or any(
                row.gate == Gate.READY or row.seq in self.held_elsewhere for row in rows
            )

    def complete_simple(self, fences: Mapping[str, int | None]) -> list[tuple[str, int, str | None]]:
        if not fences:
            return []
        found = self._complete_found(fences, are_held=False)
        if found[0][3] is None and found[0][-1]:
            # Some have keys, or others wait for them. What the rest of the work wants of those is locked now, with the
            # rows of all, so that the simple ones need not go its way.
            self.expect(Reach.NEXT)
            self.lock_reached(ids=fences)
            found = self._complete_found(fences, are_held=True)
        if found[0][3] is None:
            return []
        done = []
        for _, _, _, seq, _, job_id, assignee_id, has_result, is_held_elsewhere, *_ in found:
            done.append((job_id, seq, assignee_id))
            if not has_result:
                self.resultless.add(seq)
            if is_held_elsewhere:
                self.is_news = True
        self.advance_now(found[0][0])
        self.witness = (found[-1][3], found[-1][4], found[0][0])
        if self.has_listeners:
            self.changes += [self._completion(*each) for each in found]
        return done

    def _complete_found(self, fences: Mapping[str, int | None], *, are_held: bool) -> list[tuple[Any, ...]]:
        # Sorted, so that two reports of the same jobs lock them in the same order.
        wanted = _encode(dict(sorted(fences.items()))).decode()
        return self.answer(
            self.shared.complete_simple(len(fences)),
            {
                "fences": wanted,
                "now": self.own_now(),
                "owners": texts(self.shared.own_owners),
                "are_held": are_held,
            },
        )

    def _completion(self, *found: Any) -> Change:
        now, (job_id, assignee_id, _, _, kind, tags, source, attempt, _) = found[0], found[5:]
        return Change(
            job_id=job_id,
            type=kind,
            key=None,
            tags=decode_strings(tags),
            verb=Verb.COMPLETE,
            from_status=JobStatus(source),
            status=JobStatus.COMPLETED,
            attempt=attempt,
            assignee_id=assignee_id,
            at=moment_at(now),
        )

    def place(self, rows: Sequence[Row]) -> None:
        if rows:
            values = [
                {
                    "seq": row.seq,
                    "gate": row.gate,
                    "ready_at": row.ready_at,
                    "unmet": row.unmet,
                    "fan": row.fan,
                }
                for row in rows
            ]
            self.is_news = self.is_news or any(row.gate == Gate.READY for row in rows)
            self.execute(self.sql["place"], {"rows": _encode(values).decode(), "now": self.now})

    def retag(self, row: Row) -> None:
        old, new = self.loaded_tags.get(row.seq, "[]"), row.tags
        self.execute(
            self.text("DELETE FROM {schema}.job_tag WHERE seq = %(seq)s AND tag = ANY(%(tags)s::text[])"),
            {"seq": row.seq, "tags": list(decode_strings(old))},
        )
        self.execute(
            self.text("INSERT INTO {schema}.job_tag (tag, seq) SELECT unnest(%(tags)s::text[]), %(seq)s"),
            {"seq": row.seq, "tags": list(decode_strings(new))},
        )
        self.loaded_tags[row.seq] = new

    def delete(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        gone = [row.seq for row in rows]
        seqs = {"seqs": numbers(gone)}
        for table in ("job", "payload", "result", "checkpoint", "output"):
            self.execute(
                self.text("DELETE FROM {schema}." + table + " WHERE seq = ANY(%(seqs)s::bigint[])"), seqs
            )
        tagged = [(tag, row.seq) for row in rows for tag in decode_strings(row.tags)]
        if tagged:
            self.execute(
                self.text(
                    "DELETE FROM {schema}.job_tag USING unnest(%(tags)s::text[], %(seqs)s::bigint[]) AS gone (tag, seq)"
                    " WHERE job_tag.tag = gone.tag AND job_tag.seq = gone.seq"
                ),
                {"tags": [tag for tag, _ in tagged], "seqs": [seq for _, seq in tagged]},
            )
        if any(row.fan for row in rows):
            self.drop_edges_onto(gone)
        if any(row.after != "[]" or row.after_any != "[]" for row in rows):
            self.drop_edges_of(gone)
        self._free_idempotency_keys([row for row in rows if row.idempotency_key is not None])

    def _free_idempotency_keys(self, rows: Sequence[Row]) -> None:
        if rows:
            self.execute(
                self.text(
                    "DELETE FROM {schema}.idempotency"
                    " USING unnest(%(types)s::text[], %(keys)s::text[], %(ids)s::text[]) AS gone (type, key, job_id)"
                    " WHERE idempotency.type = gone.type AND idempotency.key = gone.key"
                    " AND idempotency.job_id = gone.job_id"
                ),
                {
                    "types": [row.type for row in rows],
                    "keys": [row.idempotency_key for row in rows],
                    "ids": [row.id for row in rows],
                },
            )

    def store_results(self, results: Sequence[tuple[int, bytes | None]]) -> None:
        given = [(seq, data) for seq, data in results if data is not None]
        if given:
            bulk.upsert(self, "result", given)
        cleared = [seq for seq, data in results if data is None and seq not in self.resultless]
        if cleared:
            self.execute(
                self.text("DELETE FROM {schema}.result WHERE seq = ANY(%(seqs)s::bigint[])"),
                {"seqs": numbers(cleared)},
            )

    def store_checkpoint(self, seq: int, data: bytes) -> None:
        bulk.upsert(self, "checkpoint", [(seq, data)])

    def store_output(self, seq: int, data: bytes) -> None:
        bulk.upsert(self, "output", [(seq, data)])

    def store_progress(self, row: Row) -> None:
        self.execute(
            self.text(
                "UPDATE {schema}.job SET progress = %(progress)s, description = %(description)s WHERE seq = %(seq)s"
            ),
            {"progress": row.progress, "description": row.description, "seq": row.seq},
        )
