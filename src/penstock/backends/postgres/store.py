"""A schema of a PostgreSQL database, as the engine wants it; `runner` runs what is said here."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import psycopg

from penstock.backends._rows import Row
from penstock.backends._store import Blobs, Consumer, Counted, DeliveryRow, plain_change
from penstock.backends.base import JobEnd
from penstock.backends.postgres import consumers, faults, outbox, plain, reading
from penstock.backends.postgres.connection import BoundedConnection, Patience
from penstock.backends.postgres.gather import Gatherer
from penstock.backends.postgres.health import examine_server
from penstock.backends.postgres.joined import Connections, JoinedStore, identity
from penstock.backends.postgres.journal import LAST_POSSIBLE, job_stats
from penstock.backends.postgres.migrate import check_version
from penstock.backends.postgres.overview import read_overview
from penstock.backends.postgres.runner import MOST_COLLISIONS, Runner, final_error
from penstock.backends.postgres.statements import NOW
from penstock.clock import Clock, to_micros
from penstock.errors import BackendError, OperationCancelledError, QueueClosedError
from penstock.job import Job, JobStats, JournalArchive, JournalEntry
from penstock.overview import Finding
from penstock.scope import checkpoint

__all__ = ["PostgresStore"]

logger = logging.getLogger("penstock")


class PostgresStore(Runner):
    """A schema of a PostgreSQL database."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        schema: str = "penstock",
        pool_size: int = 4,
        timeout: float = 30.0,
        migrate: bool = False,
        pgbouncer: bool = False,
        create: bool = True,
        listen: bool = True,
    ) -> None:
        super().__init__(
            url,
            clock=clock,
            schema=schema,
            pool_size=pool_size,
            timeout=timeout,
            pgbouncer=pgbouncer,
            listen=listen,
        )
        self.gatherer = Gatherer(self._store_plain)
        self._seen_snapshot = ""
        self._joinable = Connections(lambda: self.run(lambda own: identity(own, self.context)))
        _stores.add(self)
        try:
            self.run(
                lambda connection: check_version(connection, schema, may_migrate=migrate, may_create=create)
            )
        except BaseException:
            self._pool.close()
            raise

    # -- plain jobs ---------------------------------------------------------------------------------------------

    def enqueue(self, job: Job) -> None:
        """Store one plain job, together with those of other threads."""
        if self._pool.is_closed:
            raise QueueClosedError
        checkpoint()
        self.gatherer.add(job)

    def _store_plain(self, jobs: Sequence[Job]) -> list[BaseException | None]:
        """Store plain jobs by one statement; return for each None or why it was refused.

        The statement is its own transaction, so a broken connection leaves open whether it took effect. Then the ids
        tell: an id that is there was stored by the attempt whose answer was lost.
        """
        # What a caller's scope says concerns its own job, not those it takes along.
        patience = Patience(self._timeout, obeys_scope=len(jobs) == 1)
        lost: psycopg.Error | None = None
        collisions = refusals = 0
        while True:
            send = partial(self._send_plain, jobs=jobs, is_again=lost is not None)
            try:
                return self._read_once(send, patience)
            except psycopg.Error as error:
                collided, refused = faults.is_transient(error), faults.is_read_only(error)
                collisions += collided
                refusals += refused
                broken = faults.is_disconnect(error)
                if broken:
                    lost = error
                if broken or refused:
                    self._pool.forget_idle()
                is_over = collisions > MOST_COLLISIONS or refusals > 1 or not (collided or refused or broken)
                if lost is not None and patience.is_over():
                    raise faults.lost_at_commit(lost) from error
                if is_over or not patience.pause(short=collided):
                    raise (
                        final_error(error, patience) if lost is None else faults.lost_at_commit(lost)
                    ) from error
            except (BackendError, OperationCancelledError) as error:
                if lost is None:
                    raise
                raise faults.lost_at_commit(lost) from error

    def _send_plain(
        self, connection: BoundedConnection, jobs: Sequence[Job], *, is_again: bool
    ) -> list[BaseException | None]:
        listener = self.on_commit
        with self.herald.ticket(listener) as ticket:
            is_open, stored, now = plain.store(connection, self.context, jobs, self._own_now())
            connection.scope = None
            if is_again and len(stored) < len(jobs):
                stored |= reading.existing(connection, self.context.sql, [job.id for job in jobs])
            if listener is not None:
                ticket.news = [plain_change(job, now) for job in jobs if job.id in stored]
        if stored:
            self.hints.sender.nudge(connection)
        return plain.verdicts(jobs, stored, is_open=is_open)

    # -- others: their transactions and their changes -----------------------------------------------------------

    def joined(self, connection: object) -> JoinedStore:
        """Return a store that works in the transaction open on somebody else's connection."""
        if self._pool.is_closed:
            raise QueueClosedError
        return JoinedStore(
            connection,
            self.context,
            known=self._joinable,
            nudge=self.hints.within_transaction,
            now=self.now,
            own_now=self._own_now,
        )

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        if self._pool.is_closed:
            raise QueueClosedError
        return self.hints.watch(callback)

    def await_submissions(self) -> None:
        # Whoever reads the flag holds the weakest of locks on its table until its transaction ends.
        query = self.context.sql.text(
            "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND mode = 'AccessShareLock'"
            " AND relation = '{schema}.control'::regclass AND pid <> pg_backend_pid()"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        patience = self._patience()
        try:
            under_way = awaited = self.run(lambda connection: {each for (each,) in connection.execute(query)})
            while awaited := awaited & under_way:
                if not patience.pause(short=True):
                    logger.warning(
                        "the queue is blocked, but %d transactions may still add jobs", len(awaited)
                    )
                    return
                under_way = self.run(lambda connection: {each for (each,) in connection.execute(query)})
        except OperationCancelledError:
            return  # what was asked for is done
        except BackendError as error:
            logger.warning("the queue is blocked; whether jobs are still being added is unknown: %s", error)

    def close(self) -> None:
        self.hints.close()
        self._pool.close()

    # -- reading ------------------------------------------------------------------------------------------------

    def now(self) -> int:
        own = self._own_now()
        return (
            own if own is not None else self.run(lambda connection: int(_value(connection, f"SELECT {NOW}")))
        )

    def fetch_jobs(self, ids: Sequence[str]) -> tuple[list[tuple[Row, Blobs]], int]:
        found, now = self.run(lambda connection: reading.fetch_jobs(connection, self.context.sql, ids))
        return found, now if self._clock is None else to_micros(self._clock.now())

    def list_jobs(
        self,
        *,
        status: str | None,
        type: str | None,
        tags: Sequence[str],
        after: str | None,
        limit: int,
        newest: bool,
    ) -> tuple[list[tuple[Row, Blobs]], int]:
        found, now = self.run(
            lambda connection: reading.list_jobs(
                connection,
                self.context.sql,
                status=status,
                type=type,
                tags=tags,
                after=after,
                limit=limit,
                newest=newest,
            )
        )
        return found, now if self._clock is None else to_micros(self._clock.now())

    def count_keyed(self, key: str | None, type: str | None) -> int:
        return self.run(lambda connection: reading.count_keyed(connection, self.context.sql, key, type))

    def list_keyed(self, key: str | None, type: str | None, upto: int, limit: int) -> list[str]:
        return self.run(
            lambda connection: reading.list_keyed(connection, self.context.sql, key, type, upto, limit)
        )

    def stats(self, tags: Sequence[str]) -> JobStats:
        wanted = tuple(tags)
        if len(wanted) > 1:
            return job_stats(
                wanted,
                self.run(lambda connection: reading.count_tagged(connection, self.context.sql, wanted)),
            )
        journal = self.context.journal
        counts, is_long = self.run(lambda connection: journal.stats(connection, wanted[0] if wanted else ""))
        if is_long:
            self.run(lambda connection: journal.keep_up(connection, wait=False))
        return job_stats(wanted, counts)

    def overview(self, most: int) -> Counted:
        journal = self.context.journal
        counted, is_long = self.run(
            lambda connection: read_overview(connection, self.context.sql, journal, self._own_now(), most)
        )
        if is_long:
            self.run(lambda connection: journal.keep_up(connection, wait=False))
        return counted

    def examine(self) -> list[Finding]:
        return self.run(
            lambda connection: examine_server(
                connection,
                self.context.sql,
                pgbouncer=not self._may_prepare,
                has_own_clock=self._clock is not None,
            )
        )

    def read_journal(self, after: int, limit: int) -> list[JournalEntry]:
        return self.run(lambda connection: self.context.journal.read(connection, after, limit))

    def job_history(self, job_id: str, limit: int) -> list[JournalEntry] | None:
        return self.run(lambda connection: self.context.journal.history(connection, job_id, limit))

    def store_id(self) -> str:
        query = self.context.sql.text("SELECT store_id FROM {schema}.control")
        return str(self.run(lambda connection: _value(connection, query)))

    def journal_span(self) -> tuple[int, int]:
        self.read_journal(LAST_POSSIBLE, 1)  # whoever looks beyond the end has everything numbered first
        return self._span("journal")

    def jobs_span(self) -> tuple[int, int]:
        return self._span("job")

    def _span(self, table: str) -> tuple[int, int]:
        query = self.context.sql.text("SELECT min(seq), max(seq) FROM {schema}." + table)
        first, last = self.run(lambda connection: connection.execute(query).fetchone()) or (None, None)
        return (1, 0) if first is None or last is None else (first, last)

    def consumers(self) -> list[Consumer]:
        return self.run(lambda connection: consumers.consumers(connection, self.context.sql))

    def archived(self) -> JournalArchive:
        return self.run(lambda connection: consumers.archived(connection, self.context.sql))

    def read_ends(self, after: int, limit: int, max_result: int) -> tuple[list[JobEnd], int]:
        def read(connection: BoundedConnection) -> tuple[list[JobEnd], int]:
            is_wanted, last = outbox.has_callbacks(connection, self.context.sql)
            if not is_wanted:
                return [], max(after, last)
            self.context.journal.read(connection, LAST_POSSIBLE, 1)  # has everything numbered first
            return outbox.read_ends(connection, self.context.sql, after, limit, max_result)

        return self.run(read)

    def due_deliveries(self, limit: int, per_lane: int) -> list[DeliveryRow]:
        return self.run(
            lambda connection: outbox.due_deliveries(
                connection, self.context.sql, self._own_now(), limit, per_lane
            )
        )

    def deliveries(self, after: int, limit: int) -> list[DeliveryRow]:
        return self.run(lambda connection: outbox.deliveries(connection, self.context.sql, after, limit))

    def count_deliveries(self) -> tuple[int, int]:
        return self.run(lambda connection: outbox.count_deliveries(connection, self.context.sql))

    def schedules(self) -> list[tuple[str, int, int]]:
        found = self.run(lambda connection: outbox.schedules(connection, self.context.sql))
        return [(name, tick, updated_at) for name, tick, updated_at in found]

    def states(self, ids: Sequence[str]) -> dict[str, tuple[str, int, str]]:
        query = self.context.sql.text(
            "SELECT id, status, attempt, verb FROM {schema}.job WHERE id = ANY(%(ids)s::text[])"
        )
        found = self.run(lambda connection: connection.execute(query, {"ids": list(ids)}).fetchall())
        return {job_id: (status, attempt, verb) for job_id, status, attempt, verb in found}

    def fetch_output(self, job_id: str) -> bytes | None:
        query = self.context.sql.text(
            "SELECT coalesce(output.data, ''::bytea) FROM {schema}.job"
            " LEFT JOIN {schema}.output ON output.seq = job.seq WHERE job.id = %(id)s"
        )
        found = self.run(lambda connection: connection.execute(query, {"id": job_id}).fetchall())
        return bytes(found[0][0]) if found else None

    def next_due_at(self) -> int | None:
        query = self.context.sql.text(
            "SELECT min(first.due_at) FROM generate_series(0, 4) AS level CROSS JOIN LATERAL ("
            "SELECT due_at FROM {schema}.job WHERE gate = 1 AND priority = level ORDER BY due_at, seq LIMIT 1) AS first"
        )
        found: int | None = self.run(lambda connection: _value(connection, query))
        return found

    def ready_filters(self) -> tuple[frozenset[str], frozenset[str]] | None:
        return self.run(lambda connection: reading.ready_filters(connection, self.context.sql))

    def has_work(self, types: Sequence[str], tags: Sequence[str]) -> bool:
        now = None if self._clock is None else to_micros(self._clock.now())
        return self.run(
            lambda connection: reading.has_work(connection, self.context.sql, types=types, tags=tags, now=now)
        )

    def has_foreign_changes(self) -> bool:
        # The text changes whenever a transaction that wrote something ends, here or in another database.
        seen = self.run(lambda connection: str(_value(connection, "SELECT pg_current_snapshot()::text")))
        changed, self._seen_snapshot = seen != self._seen_snapshot, seen
        return changed

    def is_blocked(self) -> bool:
        query = self.context.sql.text("SELECT blocked FROM {schema}.control")
        return self.run(lambda connection: bool(_value(connection, query)))

    def has_owner(self, owner: str) -> bool:
        query = self.context.sql.text("SELECT EXISTS (SELECT FROM {schema}.owner WHERE id = %s)")
        return self.run(lambda connection: bool(_value(connection, query, owner)))


_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store._on_commit = None  # noqa: SLF001 - the parent's listeners stay with it
        store.before_commit = None
        store.herald.reset()
        store.gatherer.reset()
        store.hints.reset()
        store.context.own_owners = set()


os.register_at_fork(after_in_child=_after_fork)


def _value(connection: BoundedConnection, query: str, *values: object) -> Any:
    found = connection.execute(query, values or None).fetchone()
    return None if found is None else found[0]
