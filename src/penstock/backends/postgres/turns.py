"""Primitives for submission, for what waits for what, for owners, and for upkeep."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from penstock.backends._rows import Row
from penstock.backends._store import GIVEN_UP_KEPT, Edge, Owner, Reach
from penstock.backends.postgres.core import CoreTransaction
from penstock.backends.postgres.fast import numbers
from penstock.backends.postgres.faults import OutOfOrderError
from penstock.backends.postgres.overview import OWNERS
from penstock.backends.postgres.statements import NOW

__all__ = ["TurnsTransaction"]

_LOCK = (
    "SELECT pg_advisory_xact_lock(%(lock_class)s, stripe), " + NOW + ""
    " FROM (SELECT DISTINCT hashtext(each) & %(stripes)s AS stripe FROM unnest(%(texts)s::text[]) AS each"
    " ORDER BY stripe) AS wanted"
)


class TurnsTransaction(CoreTransaction):
    """The primitives around keys, dependencies and owners.

    Attributes:
        foreseen: keys that an earlier run of the same work came to want too late; locked with the first ones.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.foreseen: frozenset[str] = frozenset()
        self._reach = Reach.OWN
        self._expected: set[str] = set()
        self._held_keys: set[str] = set()
        self._reached_ids: set[str] = set()
        self._reached_seqs: set[int] = set()

    # -- locks --------------------------------------------------------------------------------------------------

    def expect(self, reach: Reach = Reach.OWN, ids: Collection[str] = ()) -> None:
        self._reach = max(self._reach, reach)
        self._expected.update(ids)

    def lock_turns(
        self, keys: Collection[str] = (), ids: Collection[str] = (), seqs: Collection[int] = ()
    ) -> None:
        """Lock the keys, those of the jobs, and what was said to be expected, unless all of it is held already."""
        self._lock_reached({*keys}, {*ids, *self._expected}, {*seqs}, self._reach)
        self._expected.clear()

    def _lock_reached(self, keys: set[str], ids: set[str], seqs: set[int], reach: Reach) -> None:
        keys, ids, seqs = keys - self._held_keys, ids - self._reached_ids, seqs - self._reached_seqs
        if not (keys or ids or seqs):
            return
        # Once keys or jobs are locked, waiting for another key could be for ever. Work that can be run again gives up
        # instead, and has that key from the beginning when it is.
        may_wait = self.is_long or not (self._held_keys or self._reached_ids or self._reached_seqs)
        found = self.execute(
            self.sql["lock_turns"],
            {
                "keys": list(keys | self.foreseen),
                "ids": list(ids),
                "seqs": numbers(seqs),
                "reach": int(reach),
                "may_wait": may_wait,
                **self.context.key_locks,
            },
        ).fetchone()
        _, missing, reached_keys, reached_seqs, moment = found or (0, (), (), (), 0)
        if missing:
            raise OutOfOrderError(missing)
        self.saw(moment)
        self._held_keys.update(reached_keys)
        self._reached_ids |= ids
        self._reached_seqs.update(reached_seqs)

    # -- submission ---------------------------------------------------------------------------------------------

    def is_blocked(self) -> bool:
        return self.blocked

    def set_blocked(self, blocked: bool) -> None:
        self.execute(self.text("UPDATE {schema}.control SET blocked = %(blocked)s"), {"blocked": blocked})

    def count_waiting(self) -> int:
        # Others must not pass the same limit at the same time.
        found = self.execute(f"SELECT pg_advisory_xact_lock({self.context.lock_class}, 2), {NOW}").fetchone()
        self.saw(found[1] if found else 0)
        counts, _ = self.context.journal.stats(self.connection, "")
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

    def taken_keys(self, pairs: Collection[tuple[str, str]]) -> dict[tuple[str, str], str]:
        types, keys = [each[0] for each in pairs], [each[1] for each in pairs]
        self._lock(self.context.idempotency_locks, [f"{kind}\x1f{key}" for kind, key in pairs])
        found = self.execute(
            self.text(
                "SELECT idempotency.type, idempotency.key, idempotency.job_id"
                " FROM unnest(%(types)s::text[], %(keys)s::text[]) AS wanted (type, key)"
                " JOIN {schema}.idempotency ON idempotency.type = wanted.type AND idempotency.key = wanted.key"
                " WHERE idempotency.expires_at > %(now)s"
            ),
            {"types": types, "keys": keys, "now": self.now},
        )
        return {(kind, key): job_id for kind, key, job_id in found}

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

    def lock_keys(self, keys: Collection[str]) -> None:
        if keys:  # else what is expected can wait for the first lock of a job
            self.lock_turns(keys)

    def _lock(self, locks: dict[str, Any], texts: Collection[str]) -> None:
        if texts:
            self.saw(self.execute(_LOCK, {**locks, "texts": list(texts)}).fetchall()[-1][1])

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
            self.lock_turns(ids=ids)
        rows = self.locked_rows(self.sql["dependencies"], {"ids": list(ids), **self.context.key_locks})
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
        self.saw(found[1])  # what is stored next is as old as its number
        return [int(number) for number in found[0].split(",")]

    # -- what waits for what ------------------------------------------------------------------------------------

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

    # -- owners and upkeep --------------------------------------------------------------------------------------

    def owners(self) -> list[Owner]:
        return [Owner(*values) for values in self.execute(self.text(OWNERS))]

    def put_owner(self, owner: Owner) -> None:
        self.context.own_owners.add(owner.id)
        self.execute(
            self.text(
                "INSERT INTO {schema}.owner (id, host, pid, started, beat_at, opened_at, intakes)"
                " VALUES (%(id)s, %(host)s, %(pid)s, %(started)s, %(beat_at)s, %(opened_at)s, %(intakes)s)"
            ),
            owner._asdict(),
        )

    def beat(self, owner: str, intakes: str | None = None) -> bool:
        told = "" if intakes is None else ", intakes = %(intakes)s"
        done = self.execute(
            self.text("UPDATE {schema}.owner SET beat_at = %(now)s" + told + " WHERE id = %(id)s"),
            {"now": self.now, "id": owner, "intakes": intakes},
        )
        return done.rowcount > 0

    def drop_owners(self, owners: Collection[str]) -> None:
        self.execute(
            self.text("DELETE FROM {schema}.owner WHERE id = ANY(%(ids)s::text[])"), {"ids": sorted(owners)}
        )

    def take_upkeep(self, interval: int) -> bool:
        done = self.execute(
            self.text(
                "UPDATE {schema}.upkeep SET taken_at = %(now)s"
                " WHERE taken_at <= %(now)s - %(interval)s OR taken_at > %(now)s"
            ),
            {"now": self.now, "interval": interval},
        )
        return done.rowcount > 0

    def tidy(self) -> None:
        self.execute(
            self.text("DELETE FROM {schema}.idempotency WHERE expires_at <= %(now)s"), {"now": self.now}
        )
        self.execute(
            self.text("DELETE FROM {schema}.delivery WHERE due_at IS NULL AND updated_at <= %(before)s"),
            {"before": self.now - GIVEN_UP_KEPT},
        )
        # Numbering and folding take transactions of their own, so that no reader waits for a long one.
        self.wants_upkeep = True
