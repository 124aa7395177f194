"""The store in one schema of a PostgreSQL database: reads and plain jobs; `runner` runs its transactions."""

from __future__ import annotations

import logging
import os
import secrets
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import psycopg

from penstock.backends.contract.overview import Finding
from penstock.backends.contract.selection import JobPage
from penstock.backends.contract.values import JobEnd
from penstock.backends.engine.rows import Row
from penstock.backends.engine.selecting import Wanted, select_page
from penstock.backends.engine.store import Blobs, Consumer, Counted, DeliveryRow, State, plain_change
from penstock.backends.postgres import consumers, faults, outbox, owners, plain_jobs, reading, runtime
from penstock.backends.postgres.connection import BoundedConnection
from penstock.backends.postgres.group_commit import PlainGroups
from penstock.backends.postgres.health import examine_server
from penstock.backends.postgres.joined import Connections, JoinedStore, identity
from penstock.backends.postgres.journal import LAST_POSSIBLE, job_stats
from penstock.backends.postgres.migrate import check_version
from penstock.backends.postgres.overview import read_overview
from penstock.backends.postgres.retries import FailedAttemptError, Patience
from penstock.backends.postgres.runner import Runner
from penstock.backends.postgres.selecting import PostgresSelectionReader, ids_from
from penstock.backends.postgres.statements import NOW
from penstock.clock import Clock, to_micros
from penstock.errors import BackendError, OperationCancelledError, QueueClosedError
from penstock.job import Job, JobStats, JournalArchive, JournalEntry

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
        connect_timeout: float | None = None,
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
            connect_timeout=connect_timeout,
            pgbouncer=pgbouncer,
            listen=listen,
        )
        self.plain_groups = PlainGroups(self._store_plain, timeout)
        self._seen_snapshot = ""
        self._joinable = Connections(lambda: self.run(lambda own: identity(own, self.shared)))
        _stores.add(self)
        try:
            self.run(
                lambda connection: check_version(connection, schema, may_migrate=migrate, may_create=create)
            )
        except BaseException:
            self._pool.close()
            raise

    # -- plain jobs ---------------------------------------------------------------------------------------------

    def enqueue_plain(self, job: Job) -> int | None:
        """Store one plain job, together with those of other threads.

        If a stream of this process waits for it, in a transaction: the stream claims it there, without a second flush.
        """
        if self.is_wanted is not None and self.is_wanted(job.type, job.tags):
            return super().enqueue_plain(job)
        if self._pool.is_closed:
            raise QueueClosedError
        stored_at: int | None = self.plain_groups.run(job)
        return stored_at

    def _store_plain(self, jobs: Sequence[Job]) -> list[BaseException | int | None]:
        """Store plain jobs by one statement; return for each why it was refused, or when it was stored, if that is known.

        The statement is its own transaction, so a broken connection leaves open whether it took effect. Then the token
        of this call tells: a row that has it was stored by the attempt whose answer was lost.
        """
        token = secrets.randbits(63)
        # What a caller's scope says concerns its own job, not those it takes along.
        patience = Patience(self._timeout, obeys_scope=len(jobs) == 1)
        retries = self._retries(patience)

        def attempt() -> list[BaseException | int | None]:
            is_again = retries.unknown is not None
            send = partial(self._send_plain, jobs=jobs, token=token, is_again=is_again)
            try:
                return self._on_connection(send, patience)
            except psycopg.Error as error:
                if faults.is_disconnect(error):
                    retries.unknown = error
                raise FailedAttemptError(error) from error

        return retries.run(attempt)

    def _send_plain(
        self, connection: BoundedConnection, jobs: Sequence[Job], token: int, *, is_again: bool
    ) -> list[BaseException | int | None]:
        listener = self.on_commit
        with self.commit_order.ticket(listener) as ticket:
            is_open, stored, now = plain_jobs.store(connection, self.shared, jobs, self._own_now(), token)
            connection.scope = None
            if is_again and len(stored) < len(jobs):
                stored |= plain_jobs.stored_by(connection, self.shared, jobs, token)
            if listener is not None:
                ticket.changes = [plain_change(job, now) for job in jobs if job.id in stored]
        if stored:
            self.notifications.notifier.notify(connection)
        # After a lost answer, the attempt that stored a row is not known.
        return [
            (None if is_again else now) if refusal is None else refusal
            for refusal in plain_jobs.verdicts(jobs, stored, is_open=is_open)
        ]

    # -- others: their transactions and their changes -----------------------------------------------------------

    def joined(self, connection: object) -> JoinedStore:
        """Return a store that works in the transaction open on a connection of the caller."""
        if self._pool.is_closed:
            raise QueueClosedError
        return JoinedStore(
            connection,
            self.shared,
            known=self._joinable,
            notify=self.notifications.within_transaction,
            now=self.now,
            own_now=self._own_now,
        )

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        if self._pool.is_closed:
            raise QueueClosedError
        return self.notifications.watch(callback)

    def await_submissions(self) -> None:
        # A transaction that has read the flag holds an AccessShareLock on its table until it ends.
        query = self.shared.sql.text(
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
        self.notifications.close()
        self._pool.close()

    # -- reading ------------------------------------------------------------------------------------------------

    def now(self) -> int:
        own = self._own_now()
        return (
            own if own is not None else self.run(lambda connection: int(_value(connection, f"SELECT {NOW}")))
        )

    def fetch_jobs(self, ids: Sequence[str]) -> tuple[list[tuple[Row, Blobs]], int]:
        found, now = self.run(lambda connection: reading.fetch_jobs(connection, self.shared.sql, ids))
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
                self.shared.sql,
                status=status,
                type=type,
                tags=tags,
                after=after,
                limit=limit,
                newest=newest,
            )
        )
        return found, now if self._clock is None else to_micros(self._clock.now())

    def select_jobs(
        self, wanted: Wanted, after: int | None, upto: int | None, limit: int, *, newest: bool
    ) -> JobPage:
        return self.run(
            lambda connection: select_page(
                PostgresSelectionReader(connection, self.shared.sql),
                wanted,
                after,
                upto,
                limit,
                newest=newest,
            )
        )

    def ids_from(self, first: str, limit: int) -> list[str]:
        return self.run(lambda connection: ids_from(connection, self.shared.sql, first, limit))

    def count_keyed(self, key: str | None, type: str | None) -> int:
        return self.run(lambda connection: reading.count_keyed(connection, self.shared.sql, key, type))

    def list_keyed(self, key: str | None, type: str | None, upto: int, limit: int) -> list[str]:
        return self.run(
            lambda connection: reading.list_keyed(connection, self.shared.sql, key, type, upto, limit)
        )

    def stats(self, tags: Sequence[str]) -> JobStats:
        return job_stats(tuple(tags), self._status_counts(tags))

    def counts(self, tags: Sequence[str], most: int) -> tuple[dict[str, int], int]:
        released = self.run(
            lambda connection: reading.count_released(connection, self.shared.sql, tags, most)
        )
        return self._status_counts(tags), released

    def _status_counts(self, tags: Sequence[str]) -> dict[str, int]:
        wanted = tuple(tags)
        if len(wanted) > 1:
            return self.run(lambda connection: reading.count_tagged(connection, self.shared.sql, wanted))
        journal = self.shared.journal
        counts, is_long = self.run(lambda connection: journal.stats(connection, wanted[0] if wanted else ""))
        if is_long:
            self.run(lambda connection: journal.keep_up(connection, wait=False))
        return counts

    def overview(self, most: int) -> Counted:
        journal = self.shared.journal
        counted, is_long = self.run(
            lambda connection: read_overview(connection, self.shared.sql, journal, self._own_now(), most)
        )
        if is_long:
            self.run(lambda connection: journal.keep_up(connection, wait=False))
        return counted

    def examine(self) -> list[Finding]:
        return self.run(
            lambda connection: examine_server(
                connection,
                self.shared.sql,
                pgbouncer=not self._may_prepare,
                has_own_clock=self._clock is not None,
            )
        )

    def read_journal(self, after: int, limit: int) -> list[JournalEntry]:
        return self.run(lambda connection: self.shared.journal.read(connection, after, limit))

    def job_history(self, job_id: str, limit: int) -> list[JournalEntry] | None:
        return self.run(lambda connection: self.shared.journal.history(connection, job_id, limit))

    def store_id(self) -> str:
        query = self.shared.sql.text("SELECT store_id FROM {schema}.control")
        return str(self.run(lambda connection: _value(connection, query)))

    def journal_span(self) -> tuple[int, int]:
        self.read_journal(LAST_POSSIBLE, 1)  # a read beyond the end numbers everything first
        return self._span("journal")

    def jobs_span(self) -> tuple[int, int]:
        return self._span("job")

    def _span(self, table: str) -> tuple[int, int]:
        query = self.shared.sql.text("SELECT min(seq), max(seq) FROM {schema}." + table)
        first, last = self.run(lambda connection: connection.execute(query).fetchone()) or (None, None)
        return (1, 0) if first is None or last is None else (first, last)

    def consumers(self) -> list[Consumer]:
        return self.run(lambda connection: consumers.consumers(connection, self.shared.sql))

    def archived(self) -> JournalArchive:
        return self.run(lambda connection: consumers.archived(connection, self.shared.sql))

    def read_ends(self, after: int, limit: int, max_result: int) -> tuple[list[JobEnd], int]:
        def read(connection: BoundedConnection) -> tuple[list[JobEnd], int]:
            is_wanted, last = outbox.has_callbacks(connection, self.shared.sql)
            if not is_wanted:
                return [], max(after, last)
            self.shared.journal.read(connection, LAST_POSSIBLE, 1)  # has everything numbered first
            return outbox.read_ends(connection, self.shared.sql, after, limit, max_result)

        return self.run(read)

    def due_deliveries(self, limit: int, per_lane: int) -> list[DeliveryRow]:
        return self.run(
            lambda connection: outbox.due_deliveries(
                connection, self.shared.sql, self._own_now(), limit, per_lane
            )
        )

    def deliveries(self, after: int, limit: int) -> list[DeliveryRow]:
        return self.run(lambda connection: outbox.deliveries(connection, self.shared.sql, after, limit))

    def count_deliveries(self) -> tuple[int, int]:
        return self.run(lambda connection: outbox.count_deliveries(connection, self.shared.sql))

    def schedules(self) -> list[tuple[str, int, int]]:
        found = self.run(lambda connection: outbox.schedules(connection, self.shared.sql))
        return [(name, tick, updated_at) for name, tick, updated_at in found]

    def states(self, ids: Sequence[str]) -> dict[str, State]:
        return self.run(lambda connection: runtime.states(connection, self.shared.sql, ids))

    def fetch_output(self, job_id: str) -> bytes | None:
        query = self.shared.sql.text(
            "SELECT coalesce(output.data, ''::bytea) FROM {schema}.job"
            " LEFT JOIN {schema}.output ON output.seq = job.seq WHERE job.id = %(id)s"
        )
        found = self.run(lambda connection: connection.execute(query, {"id": job_id}).fetchall())
        return bytes(found[0][0]) if found else None

    def next_due_at(self) -> int | None:
        return self.run(lambda connection: runtime.next_due_at(connection, self.shared.sql))

    def ready_filters(self) -> tuple[frozenset[str], frozenset[str]] | None:
        return self.run(lambda connection: runtime.ready_filters(connection, self.shared.sql))

    def has_work(self, types: Sequence[str], tags: Sequence[str]) -> bool:
        now = None if self._clock is None else to_micros(self._clock.now())
        return self.run(
            lambda connection: runtime.has_work(connection, self.shared.sql, types=types, tags=tags, now=now)
        )

    def has_foreign_changes(self) -> bool:
        # The text changes whenever a transaction that wrote something ends, here or in another database.
        seen = self.run(lambda connection: str(_value(connection, "SELECT pg_current_snapshot()::text")))
        changed, self._seen_snapshot = seen != self._seen_snapshot, seen
        return changed

    def is_blocked(self) -> bool:
        query = self.shared.sql.text("SELECT blocked FROM {schema}.control")
        return self.run(lambda connection: bool(_value(connection, query)))

    def unresponsive(self, assignee_ids: Sequence[str]) -> set[str]:
        return self.run(lambda connection: owners.unresponsive(connection, self.shared.sql, assignee_ids))

    def has_owner(self, owner: str) -> bool:
        return self.run(lambda connection: owners.has_owner(connection, self.shared.sql, owner))


_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store._on_commit = None  # noqa: SLF001 - the parent's listeners stay with it
        store.before_commit = store.is_wanted = None
        store.commit_order.reset()
        store.plain_groups.reset()
        store.notifications.reset()
        store.outage.reset()
        store.shared.own_owners = set()


os.register_at_fork(after_in_child=_after_fork)


def _value(connection: BoundedConnection, query: str, *values: object) -> Any:
    found = connection.execute(query, values or None).fetchone()
    return None if found is None else found[0]
