"""The engine's primitives on SQLite.

There is one writer at a time, so nothing needs locking. Journal and tags follow the job's row by trigger (see the
first migration).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, TypeVar

import apsw
import msgspec

from penstock.backends._rows import (
    COLUMNS,
    NO_STRINGS,
    STATUSES,
    Gate,
    Row,
    damage_named,
    decode_strings,
    encode_policy,
    encode_strings,
    encode_timeouts,
    first_claims,
    moment_at,
)
from penstock.backends._store import (
    GIVEN_UP_KEPT,
    Archived,
    Blobs,
    Claim,
    Consumer,
    DeliveryRow,
    DuplicateIdError,
    Edge,
    Owner,
    Transaction,
    claim_change,
    jobs_of,
    plain_change,
    tell,
)
from penstock.backends.base import Change
from penstock.backends.sqlite.claiming import (
    FOUND_STATUS,
    FOUND_TAGS,
    FOUND_TYPE,
    TAKE,
    rarest_tag,
    select_candidates,
)
from penstock.backends.sqlite.connection import fetch
from penstock.backends.sqlite.consumers import archive
from penstock.backends.sqlite.counters import Tally, fold_counters
from penstock.backends.sqlite.memory import SubmissionFacts, WriterMemory
from penstock.job import Job, JobStatus
from penstock.lifecycle import Verb

__all__ = ["COLUMN_LIST", "OWNERS", "SqliteTransaction"]

COLUMN_LIST: Final = ", ".join(COLUMNS)
# OR FAIL: a failed statement is not undone by itself, because whoever meets its error rolls back the whole call. That
# spares SQLite a journal for each statement, which costs more than the statement.
_SELECT: Final = f"SELECT {COLUMN_LIST} FROM job"
_INSERT: Final = f"INSERT OR FAIL INTO job ({COLUMN_LIST}) VALUES ({', '.join('?' * len(COLUMNS))})"
_SUBMISSION_FACTS: Final = """SELECT
    (SELECT value FROM setting WHERE name = 'blocked'),
    max(ifnull((SELECT max(seq) FROM job), 0), ifnull((SELECT max(job_seq) FROM journal), 0))"""
_INSERT_PAYLOAD: Final = "INSERT INTO payload (seq, data) VALUES (?, ?)"
# A plain job differs from others in these values alone; constants cost less than parameters.
_PLAIN_VALUES: Final = {
    "seq": "?1", "id": "?2", "type": "?3", "tags": "?4", "priority": "?5", "order_at": "?6", "created_at": "?6",
    "ready_at": "?6", "updated_at": "?6", "max_attempts": "?7", "retry": "?8", "execution": "?9",
    "visibility": "?10", "lifetime": "?11", "expires_at": "?6 + ?11", "status": "'initial_pending'",
    "closed": "0", "gate": "0", "unmet": "0", "fan": "0", "depth": "1", "n": "1", "attempt": "0", "held": "0",
    "retry_count": "0", "failures": "0", "progress": "0", "error_message": "''", "after": "'[]'",
    "after_any": "'[]'", "verb": "'enqueue'",
}  # fmt: skip
_PLAIN_TAGS: Final = list(_PLAIN_VALUES).index("tags")
_PLAIN_TYPE: Final = list(_PLAIN_VALUES).index("type")
_INSERT_PLAIN: Final = (
    f"INSERT OR FAIL INTO job ({', '.join(_PLAIN_VALUES)}) VALUES ({', '.join(_PLAIN_VALUES.values())})"
)
_SAVED: Final = (
    "tags",
    "priority",
    "order_at",
    "status",
    "closed",
    "gate",
    "unmet",
    "n",
    "attempt",
    "lost_attempt",
    "retry_count",
    "failures",
    "assignee_id",
    "assigned_at",
    "owner",
    "lease_until",
    "deadline_at",
    "due_at",
    "ready_at",
    "started_at",
    "attempt_started_at",
    "last_retry_at",
    "finalized_at",
    "updated_at",
    "progress",
    "error_message",
    "error_category",
    "error_code",
    "correlation_id",
    "callback_url",
    "verb",
    "from_status",
)
#: Whether an attempt begins: the parameter of the verb, by its number.
_BEGINS: Final = f"?{_SAVED.index('verb') + 1} IN ('claim', 'restart')"
_SAVE: Final = (
    f"UPDATE OR FAIL job SET {', '.join(f'{name} = ?' for name in _SAVED)},"
    f" attempt_ready_at = CASE WHEN {_BEGINS} THEN ?{_SAVED.index('ready_at') + 1} ELSE attempt_ready_at END,"
    f" description = CASE WHEN {_BEGINS} AND attempt > 0 THEN NULL ELSE description END WHERE seq = ?"
)
#: In the order of `Owner`.
OWNERS: Final = "SELECT id, host, pid, started, beat_at, opened_at, intakes FROM owner"
_tallied_values = attrgetter("type", "tags", "from_status", "status", "verb", "retry_count")
_saved_values = attrgetter(*_SAVED, "seq")
# A job's `n` rises with every change: while it is 2, its first claim was the last thing that happened to it.
_COMPLETE_HELD: Final = """UPDATE OR FAIL job SET
    from_status = 'running', status = 'completed', closed = 1, verb = 'complete', n = n + 1, finalized_at = ?2,
    updated_at = ?2, owner = NULL, lease_until = NULL, deadline_at = NULL
WHERE seq IN (SELECT value FROM json_each(?1)) AND n = 2 AND status = 'running' AND fan = 0"""
_LAST_CHANGED: Final = "SELECT job_seq FROM journal ORDER BY seq DESC LIMIT ?"
_COMPLETE_SIMPLE: Final = """UPDATE OR FAIL job SET
    from_status = status, status = 'completed', closed = 1, verb = 'complete', n = n + 1, finalized_at = ?2,
    updated_at = ?2, started_at = coalesce(started_at, ?2), owner = NULL, lease_until = NULL, deadline_at = NULL
FROM json_each(?1) AS fence
WHERE job.id = fence.key AND job.key IS NULL AND job.fan = 0 AND job.status IN ('running', 'cancelling')
    AND (fence.value IS NULL OR job.attempt = fence.value)
RETURNING id, seq, assignee_id, type, tags, from_status, attempt"""
_PLACE: Final = "UPDATE job SET gate = ?, ready_at = ?, unmet = ? WHERE seq = ?"
_placed_values = attrgetter("gate", "ready_at", "unmet", "seq")
_PROMOTE: Final = (
    "UPDATE job SET gate = 0 WHERE seq IN (SELECT seq FROM ("
    + " UNION ALL ".join(
        "SELECT * FROM (SELECT seq, priority, due_at FROM job INDEXED BY job_delayed"
        f" WHERE gate = 1 AND priority = {level} AND due_at <= ?1 ORDER BY due_at, seq LIMIT ?2)"
        for level in range(5)
    )
    + f") ORDER BY priority, due_at, seq LIMIT ?2) RETURNING {COLUMN_LIST}"
)
_ANY_DUE: Final = "SELECT " + " OR ".join(
    "EXISTS (SELECT 1 FROM job INDEXED BY job_delayed"
    f" WHERE gate = 1 AND priority = {level} AND due_at <= ?1)"
    for level in range(5)
)
_IN_FLIGHT: Final = "status IN ('running', 'cancelling')"
_encode = msgspec.json.Encoder().encode
_V = TypeVar("_V")


class SqliteTransaction(Transaction):
    """What one piece of work may do, on the writer's connection."""

    def __init__(self, cursor: apsw.Cursor, now: int, memory: WriterMemory, wants_changes: bool) -> None:
        self.cursor = cursor
        self.now = now
        self._memory = memory
        self.wants_changes = wants_changes
        self.changes: list[Change] = []
        self.journaled = 0
        self.tally: Tally = []
        self.folded = False  # whether the counters were folded in it

    # -- finding rows -------------------------------------------------------------------------------------------

    def rows(self, ids: Collection[str]) -> dict[str, Row]:
        found = self._many(
            f"{_SELECT} WHERE id = ?", f"{_SELECT} WHERE id IN (SELECT value FROM json_each(?))", ids
        )
        return {row.id: row for row in found}

    def rows_by_seq(self, seqs: Collection[int]) -> dict[int, Row]:
        found = self._many(
            f"{_SELECT} WHERE seq = ?", f"{_SELECT} WHERE seq IN (SELECT value FROM json_each(?))", seqs
        )
        return {row.seq: row for row in found}

    def rows_tagged(self, tags: Sequence[str]) -> list[Row]:
        first, rest = self._rarest(tags, "job_tag")
        also = (
            " AND EXISTS (SELECT 1 FROM job_tag AS other WHERE other.tag = ? AND other.seq = job_tag.seq)"
            * len(rest)
        )
        return self._fetch(
            f"{_SELECT} WHERE seq IN (SELECT seq FROM job_tag WHERE tag = ?{also}) ORDER BY seq",
            (first, *rest),
        )

    def rows_in_flight(self, assignee_id: str | None) -> list[Row]:
        if assignee_id is None:
            return self._fetch(f"{_SELECT} INDEXED BY job_assignee WHERE {_IN_FLIGHT} ORDER BY seq")
        return self._fetch(
            f"{_SELECT} INDEXED BY job_assignee WHERE {_IN_FLIGHT} AND assignee_id = ? ORDER BY seq",
            (assignee_id,),
        )

    def rows_expired(self, limit: int) -> list[Row]:
        return self._fetch(
            f"{_SELECT} INDEXED BY job_lifetime WHERE expires_at IS NOT NULL AND closed = 0 AND expires_at <= ?"
            " ORDER BY expires_at, seq LIMIT ?",
            (self.now, limit),
        )

    def rows_lost(
        self, liveness: int, gone: Collection[str], spared: Collection[str], limit: int
    ) -> list[Row]:
        unleased = self._fetch(
            f"{_SELECT} INDEXED BY job_lease WHERE lease_until IS NOT NULL AND lease_until <= ?"
            " ORDER BY lease_until, seq LIMIT ?",
            (self.now, limit),
        )
        orphaned = self._fetch(
            f"""{_SELECT} INDEXED BY job_owner WHERE owner IS NOT NULL AND (
                owner IN (SELECT value FROM json_each(?1))
                OR NOT EXISTS (SELECT 1 FROM owner AS o WHERE o.id = job.owner)
                OR (owner NOT IN (SELECT value FROM json_each(?2)) AND EXISTS (
                    SELECT 1 FROM owner AS o
                    WHERE o.id = job.owner
                    AND max(o.beat_at, job.assigned_at) + min(?3, coalesce(job.visibility, ?3)) <= ?4)))
                ORDER BY seq LIMIT ?5""",
            (_json(gone), _json(spared), liveness, self.now, limit - len(unleased)),
        )
        return unleased + orphaned

    def rows_overdue(self, grace: int, limit: int) -> list[Row]:
        return self._fetch(
            f"{_SELECT} INDEXED BY job_deadline WHERE deadline_at IS NOT NULL AND deadline_at <= ?"
            " AND status = 'running' ORDER BY deadline_at, seq LIMIT ?",
            (self.now - grace, limit),
        )

    def rows_ended(self, statuses: Collection[JobStatus], before: int, limit: int) -> list[Row]:
        return self._fetch(
            f"{_SELECT} INDEXED BY job_ended WHERE closed = 1 AND status IN (SELECT value FROM json_each(?))"
            " AND finalized_at <= ? LIMIT ?",
            (_json(statuses), before, limit),
        )

    def blobs(self, seqs: Collection[int]) -> dict[int, Blobs]:
        return fetch_blobs(self.cursor, seqs)

    # -- writing rows -------------------------------------------------------------------------------------------

    def insert(self, rows: Sequence[Row], blobs: Sequence[Blobs]) -> None:
        execute_many = self.cursor.executemany
        try:
            execute_many(_INSERT, map(msgspec.structs.astuple, rows))
        except apsw.ConstraintError:
            raise self._duplicates([row.id for row in rows], rows[0].seq) from None
        self._journaled(
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
                self.cursor.execute(_INSERT_PLAIN, values[0])
            else:
                self.cursor.executemany(_INSERT_PLAIN, values)
        except apsw.ConstraintError:
            raise self._duplicates([job.id for job in jobs], first) from None
        self._journaled(
            [
                ((type_, tags, None, "initial_pending", "enqueue", 0), count)
                for (type_, tags), count in _counted(
                    [(each[_PLAIN_TYPE], each[_PLAIN_TAGS]) for each in values]
                )
            ]
        )
        if len(jobs) > 1:
            payloads = [(seq, bytes(job.payload)) for seq, job in enumerate(jobs, first) if job.payload]
            self.cursor.executemany(_INSERT_PAYLOAD, payloads)
        elif jobs[0].payload:
            self.cursor.execute(_INSERT_PAYLOAD, (first, bytes(jobs[0].payload)))
        if self.wants_changes:
            self.changes += [plain_change(job, now) for job in jobs]

    def save(self, rows: Sequence[Row]) -> None:
        self.cursor.executemany(_SAVE, map(_saved_values, rows))
        self._journaled([(_tallied_values(row), 1) for row in rows])

    def complete_simple(self, fences: Mapping[str, int | None]) -> list[tuple[str, int, str | None]]:
        done = self._complete_held(fences)
        if len(done) == len(fences):
            return done
        finished = {job_id for job_id, _, _ in done}
        rest = {job_id: attempt for job_id, attempt in fences.items() if job_id not in finished}
        return done + self._complete_found(rest)

    def _complete_held(self, fences: Mapping[str, int | None]) -> list[tuple[str, int, str | None]]:
        """Complete what this process claimed and nobody has touched since: found by number, and nothing to read."""
        held = self._memory.held
        jobs: dict[int, str] = {}
        for job_id, attempt in fences.items():
            if job_id in held and (attempt is None or attempt == 1):
                jobs[held[job_id][0]] = job_id
        if not jobs:
            return []
        self.cursor.execute(_COMPLETE_HELD, (_json(jobs), self.now))
        changed = self.cursor.connection.changes()
        if changed < len(jobs):  # the journal's last rows tell which ones were as they had been claimed
            jobs = {seq: jobs[seq] for (seq,) in fetch(self.cursor, _LAST_CHANGED, (changed,))}
        done = {job_id: held.pop(job_id) for job_id in jobs.values()}
        self._journaled(
            [
                ((type_, encode_strings(tags), "running", "completed", "complete", 0), count)
                for (type_, tags), count in _counted([(type_, tags) for _, _, type_, tags in done.values()])
            ]
        )
        if self.wants_changes:
            at = moment_at(self.now)
            self.changes += [
                _completion(job_id, type_, tags, JobStatus.RUNNING, 1, assignee_id, at)
                for job_id, (_, assignee_id, type_, tags) in done.items()
            ]
        return [(job_id, seq, assignee_id) for job_id, (seq, assignee_id, _, _) in done.items()]

    def _complete_found(self, fences: Mapping[str, int | None]) -> list[tuple[str, int, str | None]]:
        found = fetch(self.cursor, _COMPLETE_SIMPLE, (_encode(fences).decode(), self.now))
        self._journaled(
            [
                ((type_, tags, source, "completed", "complete", 0), 1)
                for _, _, _, type_, tags, source, _ in found
            ]
        )
        if self.wants_changes:
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
                "DELETE FROM result WHERE seq IN (SELECT value FROM json_each(?))", (_json(cleared),)
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

    # -- submission ---------------------------------------------------------------------------------------------

    def is_blocked(self) -> bool:
        return self._submission_facts().blocked

    def set_blocked(self, blocked: bool) -> None:
        self.cursor.execute("UPDATE setting SET value = ? WHERE name = 'blocked'", (int(blocked),))
        self._memory.facts.clear()

    def count_waiting(self) -> int:
        return int(
            self._value(
                """SELECT total(jobs) FROM (
                    SELECT status, jobs FROM stat WHERE tag = ''
                    UNION ALL
                    SELECT status, jobs FROM stat_delta
                    WHERE seq > (SELECT value FROM setting WHERE name = 'folded'))
                WHERE status IN ('initial_pending', 'failed_retry', 'unknown_retry')"""
            )
        )

    def stored_ids(self, ids: Collection[str]) -> set[str]:
        query = "SELECT id FROM job WHERE id IN (SELECT value FROM json_each(?))"
        return {job_id for (job_id,) in fetch(self.cursor, query, (_json(ids),))}

    def note_publication(self, writer: str, batch: int) -> bool:
        self.cursor.execute(
            "INSERT INTO publication (writer, batch, published_at) VALUES (?1, ?2, ?3)"
            " ON CONFLICT (writer) DO UPDATE SET batch = ?2, published_at = ?3 WHERE batch < ?2",
            (writer, batch, self.now),
        )
        return self.cursor.connection.changes() > 0

    def taken_keys(self, pairs: Collection[tuple[str, str]]) -> dict[tuple[str, str], str]:
        query = "SELECT job_id FROM idempotency WHERE type = ? AND key = ? AND expires_at > ?"
        taken: dict[tuple[str, str], str] = {}
        for pair in pairs:
            for (job_id,) in fetch(self.cursor, query, (*pair, self.now)):
                taken[pair] = job_id
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
        facts = self._memory.facts
        if facts.last_seq < 0:
            ((blocked, facts.last_seq),) = fetch(self.cursor, _SUBMISSION_FACTS)
            facts.blocked = bool(blocked)
        return facts

    # -- what waits for what ------------------------------------------------------------------------------------

    def insert_edges(self, edges: Sequence[Edge]) -> None:
        self.cursor.executemany("INSERT INTO edge (on_seq, job_seq, kind) VALUES (?, ?, ?)", edges)
        self.cursor.executemany(
            "UPDATE job SET fan = 1 WHERE seq = ? AND fan = 0", {(edge.on_seq,) for edge in edges}
        )

    def edges_onto(self, seqs: Collection[int]) -> list[Edge]:
        found = fetch(
            self.cursor,
            "SELECT on_seq, job_seq, kind FROM edge WHERE on_seq IN (SELECT value FROM json_each(?))",
            (_json(seqs),),
        )
        return [Edge(*values) for values in found]

    def edges_of(self, seqs: Collection[int], kind: str) -> list[Edge]:
        found = fetch(
            self.cursor,
            "SELECT on_seq, job_seq, kind FROM edge WHERE job_seq IN (SELECT value FROM json_each(?)) AND kind = ?",
            (_json(seqs), kind),
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
        head = f"{_SELECT} INDEXED BY job_key {of_key} ORDER BY seq LIMIT 1"
        others = f"{_SELECT} INDEXED BY job_key_turn {of_key} AND gate IS NOT {Gate.WAITING.value}"
        for key in keys:
            for row in itertools.chain(self._fetch(head, (key,)), self._fetch(others, (key,))):
                found[row.seq] = row
        return list(found.values())

    def first_awaited(self, row: Row) -> Row | None:
        found = self._fetch(
            f"""WITH RECURSIVE awaited (seq) AS (
                SELECT on_seq FROM edge WHERE job_seq = ?1 AND kind <> 'spawned'
                UNION
                SELECT edge.on_seq FROM edge JOIN awaited ON edge.job_seq = awaited.seq AND kind <> 'spawned')
            {_SELECT} WHERE seq IN (SELECT seq FROM awaited) AND key = ?2 AND closed = 0 ORDER BY seq LIMIT 1""",
            (row.seq, row.key),
        )
        return found[0] if found else None

    # -- claiming -----------------------------------------------------------------------------------------------

    def promote(self, limit: int) -> int:
        if not self._value(_ANY_DUE, (self.now,)):
            return 0
        rows = self._fetch(_PROMOTE, (self.now, limit))
        tell(self, rows, verb="available")
        return len(rows)

    def claim(self, claim: Claim) -> list[Job]:
        if len(claim.tags) > 1 and claim.key is None:
            first, rest = self._rarest(claim.tags, "ready_tag")
            claim = claim._replace(tags=(first, *rest))
        with damage_named():
            found = select_candidates(self.cursor, claim)
        if not found:
            return []
        self.cursor.execute(
            TAKE,
            {
                "assignee": claim.assignee_id,
                "now": self.now,
                "owner": claim.owner,
                "seqs": _json([seq for seq, *_ in found]),
            },
        )
        self._journaled(
            [
                ((type_, tags, source, "running", "claim", 0), count)
                for (type_, tags, source), count in _counted(
                    [(each[FOUND_TYPE], each[FOUND_TAGS], each[FOUND_STATUS]) for each in found]
                )
            ]
        )
        jobs = self._claimed(found, claim.assignee_id)
        if self.wants_changes:
            self.changes += [
                claim_change(job, status) for job, (_, _, _, status, *_) in zip(jobs, found, strict=True)
            ]
        return jobs

    def _claimed(self, found: list[list[Any]], assignee_id: str) -> list[Job]:
        """Return the jobs that a claim took; only those with a past are read whole."""
        with damage_named():
            first_claim = first_claims(assignee_id, self.now)
            jobs = {
                seq: first_claim(payload, *columns)
                for seq, is_usual, payload, _, *columns in found
                if is_usual
            }
        self._memory.hold(jobs)
        if len(jobs) == len(found):
            return list(jobs.values())
        others = list(self.rows_by_seq([seq for seq, *_ in found if seq not in jobs]).values())
        for row, job in zip(others, jobs_of(self, others), strict=True):
            jobs[row.seq] = job
        return [jobs[seq] for seq, *_ in found]

    def renew(self, assignee_id: str, attempts: dict[str, int] | None) -> int:
        held = self.rows_in_flight(assignee_id) if attempts is None else self.rows(attempts).values()
        mine = [
            row
            for row in held
            if row.is_in_flight
            and row.assignee_id == assignee_id
            and (attempts is None or attempts[row.id] == row.attempt)
        ]
        renewed = [
            (self.now + row.visibility, row.seq)
            for row in mine
            if row.owner is None and row.visibility is not None
        ]
        self.cursor.executemany("UPDATE job SET lease_until = ? WHERE seq = ?", renewed)
        return len(mine)

    # -- owners -------------------------------------------------------------------------------------------------

    def owners(self) -> list[Owner]:
        found = fetch(self.cursor, OWNERS)
        return [Owner(*values) for values in found]

    def put_owner(self, owner: Owner) -> None:
        self.cursor.execute(
            "INSERT INTO owner (id, host, pid, started, beat_at, opened_at, intakes) VALUES (?, ?, ?, ?, ?, ?, ?)",
            owner,
        )

    def beat(self, owner: str, intakes: str | None = None) -> bool:
        self.cursor.execute(
            "UPDATE owner SET beat_at = ?1, intakes = coalesce(?2, intakes) WHERE id = ?3",
            (self.now, intakes, owner),
        )
        return self.cursor.connection.changes() > 0

    def drop_owners(self, owners: Collection[str]) -> None:
        self.cursor.executemany("DELETE FROM owner WHERE id = ?", [(owner,) for owner in owners])

    # -- consumers of the journal -------------------------------------------------------------------------------

    def consumer(self, name: str) -> Consumer | None:
        query = "SELECT name, seq, holder, held_until, updated_at FROM consumer WHERE name = ?"
        found = fetch(self.cursor, query, (name,))
        return Consumer(*found[0]) if found else None

    def add_consumer(self, consumer: Consumer) -> None:
        self.cursor.execute("INSERT OR IGNORE INTO consumer VALUES (?, ?, ?, ?, ?)", consumer)

    def save_consumer(self, consumer: Consumer) -> None:
        self.cursor.execute("INSERT OR REPLACE INTO consumer VALUES (?, ?, ?, ?, ?)", consumer)

    def drop_consumer(self, name: str) -> bool:
        self.cursor.execute("DELETE FROM consumer WHERE name = ?", (name,))
        return self.cursor.connection.changes() > 0

    def last_seq(self) -> int:
        return int(self._value("SELECT coalesce(max(seq), 0) FROM journal"))

    def archive(self, after: int, before: int, limit: int) -> Archived | None:
        return archive(self.cursor, after, before, limit)

    # -- deliveries and schedules -------------------------------------------------------------------------------

    def save_deliveries(self, rows: Sequence[DeliveryRow]) -> None:
        self.cursor.executemany(
            f"INSERT OR REPLACE INTO delivery ({', '.join(DeliveryRow._fields)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )

    def drop_deliveries(self, seqs: Sequence[int]) -> None:
        self.cursor.executemany("DELETE FROM delivery WHERE seq = ?", [(seq,) for seq in seqs])

    def retry_deliveries(self) -> int:
        self.cursor.execute(
            "UPDATE delivery SET due_at = ?1, attempts = 0, updated_at = ?1 WHERE due_at IS NULL", (self.now,)
        )
        return self.cursor.connection.changes()

    def move_schedule(self, name: str, tick: int, after: int | None) -> bool:
        if after is None:
            self.cursor.execute("INSERT OR IGNORE INTO schedule VALUES (?, ?, ?)", (name, tick, self.now))
        else:
            self.cursor.execute(
                "UPDATE schedule SET tick = ?, updated_at = ? WHERE name = ? AND tick = ?",
                (tick, self.now, name, after),
            )
        return self.cursor.connection.changes() > 0

    def drop_schedule(self, name: str) -> bool:
        self.cursor.execute("DELETE FROM schedule WHERE name = ?", (name,))
        return self.cursor.connection.changes() > 0

    # -- upkeep -------------------------------------------------------------------------------------------------

    def take_upkeep(self, interval: int) -> bool:
        self.cursor.execute(
            "INSERT INTO setting (name, value) VALUES ('upkeep_at', ?1)"
            " ON CONFLICT (name) DO UPDATE SET value = ?1 WHERE value <= ?1 - ?2 OR value > ?1",
            (self.now, interval),
        )
        return self.cursor.connection.changes() > 0

    def tidy(self) -> None:
        self.cursor.execute("DELETE FROM idempotency WHERE expires_at <= ?", (self.now,))
        self.cursor.execute(
            "DELETE FROM delivery WHERE due_at IS NULL AND updated_at <= ?", (self.now - GIVEN_UP_KEPT,)
        )
        fold_counters(self.cursor)
        self.folded = True

    # -- shared -------------------------------------------------------------------------------------------------

    def _journaled(self, tally: Tally) -> None:
        self.journaled += sum([count for _, count in tally])
        self.tally += tally

    def _duplicates(self, ids: Sequence[str], first: int) -> DuplicateIdError:
        """Return the error for those of the ids that were stored before insertion number `first`."""
        query = "SELECT 1 FROM job WHERE id = ? AND seq < ?"
        return DuplicateIdError([job_id for job_id in ids if fetch(self.cursor, query, (job_id, first))])

    def _fetch(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[Row]:
        return [Row(*values) for values in fetch(self.cursor, sql, parameters)]

    def _many(self, one: str, many: str, keys: Collection[Any]) -> list[Row]:
        if len(keys) == 1:
            return self._fetch(one, tuple(keys))
        return self._fetch(many, (_json(keys),)) if keys else []

    def _value(self, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
        for (value,) in fetch(self.cursor, sql, parameters):
            return value
        return None

    def _rarest(self, tags: Sequence[str], table: str) -> tuple[str, list[str]]:
        first = tags[0] if len(tags) == 1 else rarest_tag(self.cursor, tags, table)
        return first, [tag for tag in tags if tag != first]


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
    """Return the parameters of `_INSERT_PLAIN`."""
    retry = job.retry
    return (
        seq,
        job.id,
        job.type,
        NO_STRINGS if not job.tags else encode_strings(job.tags),
        int(job.priority),
        now,
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
        (_json(seqs),),
    )
    return {seq: Blobs(payload or b"", result, checkpoint) for seq, payload, result, checkpoint in found}


def _counted(values: list[_V]) -> Iterable[tuple[_V, int]]:
    return ((values[0], 1),) if len(values) == 1 else Counter(values).items()


def _json(values: Iterable[Any]) -> str:
    return _encode(list(values)).decode()
