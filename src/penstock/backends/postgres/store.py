"""Running work in transactions: connections, time, retries, and what became of a commit.

- No connection, or it breaks before COMMIT is sent: the work is run again from its start, until the time is over.
- A deadlock or a serialisation failure: the same, after a short pause, a limited number of times.
- The server is read-only: once more on a new connection, which after a failover may lead elsewhere; then an error.
- It breaks during COMMIT: the server is asked what became of the transaction's xid. Committed: done. Aborted: run again.
  No answer: BackendError with `outcome_unknown`.

A transaction never stays open: whatever happens, the connection is idle or closed when it goes back to the pool.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import psycopg

from penstock.backends._rows import Row
from penstock.backends._store import (
    Blobs,
    Consumer,
    Counted,
    DeliveryRow,
    HandedOut,
    Store,
    Transaction,
    plain_change,
)
from penstock.backends.base import Change, JobEnd
from penstock.backends.postgres import consumers, fast, faults, outbox, plain, reading
from penstock.backends.postgres.connection import PLANNER, BoundedConnection, Patience, Pool, server_limits
from penstock.backends.postgres.context import Context
from penstock.backends.postgres.gather import Gatherer
from penstock.backends.postgres.health import examine_server
from penstock.backends.postgres.herald import Herald
from penstock.backends.postgres.hints import Hints
from penstock.backends.postgres.joined import Connections, JoinedStore, identity
from penstock.backends.postgres.journal import LAST_POSSIBLE, job_stats
from penstock.backends.postgres.migrate import check_version
from penstock.backends.postgres.overview import read_overview
from penstock.backends.postgres.start import Opening
from penstock.backends.postgres.statements import NOW
from penstock.backends.postgres.transaction import PostgresTransaction
from penstock.clock import Clock, to_micros
from penstock.errors import BackendError, OperationCancelledError, QueueClosedError
from penstock.job import Job, JobStats, JournalArchive, JournalEntry
from penstock.overview import Finding
from penstock.scope import checkpoint

__all__ = ["PostgresStore"]

logger = logging.getLogger("penstock")
T = TypeVar("T")

_MOST_COLLISIONS: Final = 20
#: What became of a commit is asked for as long as the call may take, and at least for so long.
_RESOLVE_SECONDS: Final = 10.0
#: Milliseconds by which the server waits longer than the caller, who must find its own time over when the server gives up.
_AFTER_THE_CALLER: Final = 20
_HINT_SECONDS: Final = 1.0


class _RunAgainError(Exception):
    """The transaction took no effect and its work may be run again."""

    def __init__(self, cause: psycopg.Error, *, began: bool = True) -> None:
        self.cause = cause
        self.began = began
        super().__init__(str(cause))


class _HandOutError(Exception):
    """Those who wait could not be served; the transaction took no effect and its work is run again without them."""


class PostgresStore(Store):
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
        self.context = Context(schema, has_own_clock=clock is not None)
        self._on_commit: Callable[[Sequence[Change]], None] | None = None
        self.herald = Herald()
        self.gatherer = Gatherer(self._store_plain)
        self._clock = clock
        self._timeout = timeout
        self._seen_snapshot = ""
        self._pool = Pool(url, size=pool_size, timeout=timeout, pgbouncer=pgbouncer)
        settings = {**PLANNER, **server_limits(timeout)} if pgbouncer else {}
        self._begin = [
            # Not READ WRITE: who made the server, the database or the role read-only meant it.
            "BEGIN ISOLATION LEVEL READ COMMITTED",
            *(f"SET LOCAL {name} = '{value}'" for name, value in settings.items()),
        ]
        self._may_prepare = not pgbouncer
        self.hints = Hints(
            schema,
            self.context.lock_class,
            self._pool.conninfo() if listen and not pgbouncer else None,
            lambda send: self._read_once(send, Patience(_HINT_SECONDS, obeys_scope=False)),
        )
        self._joinable = Connections(lambda: self.run(lambda own: identity(own, self.context)))
        _stores.add(self)
        try:
            self.run(
                lambda connection: check_version(connection, schema, may_migrate=migrate, may_create=create)
            )
        except BaseException:
            self._pool.close()
            raise

    @property
    def on_commit(self) -> Callable[[Sequence[Change]], None] | None:
        return self._on_commit

    @on_commit.setter
    def on_commit(self, listener: Callable[[Sequence[Change]], None] | None) -> None:
        if listener is not None and self._pool.is_closed:  # to stop listening is always possible
            raise QueueClosedError
        self._on_commit = listener

    # -- transactions -------------------------------------------------------------------------------------------

    def write(self, work: Callable[[Transaction], T], *, alone: bool = False) -> T:
        patience = self._patience()
        collisions = refusals = 0
        foreseen: frozenset[str] = frozenset()
        may_hand_out = not alone
        while True:
            connection = self._pool.acquire(patience)
            try:
                tx = self._transaction(connection, patience)
                tx.is_long, tx.foreseen, tx.may_hand_out = alone, foreseen, may_hand_out
                return self._run_once(connection, tx, work, patience)
            except _HandOutError:
                may_hand_out = False
                continue
            except _RunAgainError as again:
                error, began = again.cause, again.began
            finally:
                self._pool.release(connection)
            if isinstance(error, faults.OutOfOrderError):
                foreseen |= error.keys
            collided = faults.is_transient(error)
            collisions += collided
            refusals += faults.is_read_only(error)
            if not collided:
                self._pool.forget_idle()
            # Work that has begun to read an iterator cannot be run again.
            is_over = (alone and began) or collisions > _MOST_COLLISIONS or refusals > 1
            if is_over or not patience.pause(short=collided):
                raise faults.translate(error) from error

    def _run_once(
        self,
        connection: BoundedConnection,
        tx: PostgresTransaction,
        work: Callable[[Transaction], T],
        patience: Patience,
    ) -> T:
        """Run the work and commit it, on a connection that is idle; leaves no transaction open."""
        began = False
        try:
            if tx.is_long:
                tx.open()  # while it can still be run again
            began = True
            result = work(tx)
            connection.scope = None  # once COMMIT is sent, what became of it is awaited
            patience.check()
        except psycopg.Error as error:
            _roll_back(connection)
            if faults.is_read_only(error):
                connection.is_stale = True
            raise self._verdict(error, patience, began=began) from error
        except BaseException:
            _roll_back(connection)
            raise
        self._commit(connection, tx, self._hand_out(connection, tx))
        if tx.wants_upkeep:
            self._keep_up(connection)
        return result

    def _transaction(self, connection: BoundedConnection, patience: Patience) -> PostgresTransaction:
        """Return a transaction, which begins with its first statement."""
        begin = self._begin
        left = patience.scope.remaining() if patience.scope is not None else None
        if left is not None and left < self._timeout:
            # The server itself gives up waiting for locks when the caller's time is over.
            begin = [*begin, f"SET LOCAL statement_timeout = {int(left * 1000) + _AFTER_THE_CALLER}"]
        opening = Opening(
            self.context.start, self.context.floors, begin, self._own_now, may_prepare=self._may_prepare
        )
        return PostgresTransaction(
            connection, self.context, opening, wants_changes=self.on_commit is not None
        )

    @staticmethod
    def _verdict(error: psycopg.Error, patience: Patience, *, began: bool) -> Exception:
        """Return what to raise when a statement failed before the commit."""
        if faults.is_transient(error) or faults.is_disconnect(error) or faults.is_read_only(error):
            return _RunAgainError(error, began=began)
        return _final(error, patience)

    def _hand_out(self, connection: BoundedConnection, tx: PostgresTransaction) -> HandedOut | None:
        """Let those who wait here take what is about to be committed, so that it costs no commit of its own.

        Raises:
            _HandOutError: it went wrong, which is not the fault of those who commit.
        """
        if (
            self.before_commit is None
            or not tx.may_hand_out
            or not any(each.available for each in tx.changes)
        ):
            return None
        try:
            return self.before_commit(tx, list(tx.changes))
        except Exception as error:
            _roll_back(connection)
            logger.warning("waiting streams could not be served at once: %s", error)
            raise _HandOutError from error
        except BaseException:
            _roll_back(connection)
            raise

    def _commit(
        self,
        connection: BoundedConnection,
        tx: PostgresTransaction,
        handed_out: HandedOut | None = None,
    ) -> None:
        """Commit, make sure of the outcome, and tell those who wait and the listeners."""
        if handed_out is None:
            self._commit_surely(connection, tx)
        else:
            self._commit_and_hand_out(connection, tx, handed_out)
        if tx.is_news:
            self.hints.sender.nudge(connection)

    def _commit_and_hand_out(
        self, connection: BoundedConnection, tx: PostgresTransaction, handed_out: HandedOut
    ) -> None:
        is_told = False

        def hand_out() -> None:
            nonlocal is_told
            is_told = True
            handed_out(True)

        outcome: bool | None = False
        try:
            # Whoever hears of the claim may end the job at once, so its stream must have it before.
            self._commit_surely(connection, tx, before_told=hand_out)
        except BackendError as error:
            outcome = None if error.outcome_unknown else False
            raise
        finally:
            if not is_told:
                handed_out(outcome)

    def _commit_surely(
        self,
        connection: BoundedConnection,
        tx: PostgresTransaction,
        before_told: Callable[[], None] = lambda: None,
    ) -> None:
        listener = self.on_commit
        with self.herald.ticket(listener if tx.changes else None) as ticket:
            try:
                if tx.is_open:
                    fast.command(connection, b"COMMIT")
            except psycopg.Error as error:
                if not faults.is_disconnect(error):
                    _roll_back(connection)
                    raise (
                        _RunAgainError(error) if faults.is_transient(error) else faults.translate(error)
                    ) from error
                if tx.xid is not None:
                    left = connection.deadline - time.monotonic()
                    self._resolve(tx.xid, tx, error, max(left, _RESOLVE_SECONDS))
            ticket.news = tx.changes
            for remember in tx.after_commit:
                remember()
            before_told()

    def _resolve(self, xid: str, tx: PostgresTransaction, cause: psycopg.Error, seconds: float) -> None:
        """Find out whether a transaction was committed whose connection broke during COMMIT.

        Args:
            xid: the transaction's number.
            tx: the transaction.
            cause: what broke the connection.
            seconds: for how long to ask: the server may be restarting.

        Raises:
            _RunAgainError: it was not.
            BackendError: nobody can say (`outcome_unknown`).
        """
        self._pool.forget_idle()
        patience = Patience(seconds, obeys_scope=False)
        while True:
            try:
                status = self._read_once(
                    lambda connection: reading.commit_status(connection, tx, xid), patience
                )
            except (psycopg.Error, BackendError, QueueClosedError):
                status = None
            if status == "committed":
                return
            if status == "aborted":
                raise _RunAgainError(cause) from cause
            if self._pool.is_closed or not patience.pause(short=False):
                raise faults.lost_at_commit(cause) from cause

    def _keep_up(self, connection: BoundedConnection) -> None:
        try:
            while self.context.journal.keep_up(connection):
                connection.deadline = self._patience().until()
        except psycopg.Error as error:
            raise faults.translate(error) from error

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
                is_over = collisions > _MOST_COLLISIONS or refusals > 1 or not (collided or refused or broken)
                if lost is not None and patience.is_over():
                    raise faults.lost_at_commit(lost) from error
                if is_over or not patience.pause(short=collided):
                    raise (
                        _final(error, patience) if lost is None else faults.lost_at_commit(lost)
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

    def _own_now(self) -> int | None:
        return None if self._clock is None else to_micros(self._clock.now())

    # -- reading ------------------------------------------------------------------------------------------------

    def run(self, read: Callable[[BoundedConnection], T]) -> T:
        """Run something that may be repeated on a connection outside a transaction."""
        patience = self._patience()
        refusals = 0
        while True:
            try:
                return self._read_once(read, patience)
            except psycopg.Error as error:
                refused = faults.is_read_only(error)
                refusals += refused
                lost = refused or faults.is_disconnect(error)
                if lost:
                    self._pool.forget_idle()
                is_over = refusals > 1 or not (lost or faults.is_transient(error))
                if is_over or not patience.pause(short=not lost):
                    raise _final(error, patience) from error

    def _read_once(self, read: Callable[[BoundedConnection], T], patience: Patience) -> T:
        connection = self._pool.acquire(patience)
        try:
            return read(connection)
        except psycopg.Error as error:
            if faults.is_read_only(error):
                connection.is_stale = True
            raise
        finally:
            _roll_back(connection)
            self._pool.release(connection)

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

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        if self._pool.is_closed:
            raise QueueClosedError
        return self.hints.watch(callback)

    def has_foreign_changes(self) -> bool:
        # The text changes whenever a transaction that wrote something ends, here or in another database.
        seen = self.run(lambda connection: str(_value(connection, "SELECT pg_current_snapshot()::text")))
        changed, self._seen_snapshot = seen != self._seen_snapshot, seen
        return changed

    def is_blocked(self) -> bool:
        query = self.context.sql.text("SELECT blocked FROM {schema}.control")
        return self.run(lambda connection: bool(_value(connection, query)))

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

    def has_owner(self, owner: str) -> bool:
        query = self.context.sql.text("SELECT EXISTS (SELECT FROM {schema}.owner WHERE id = %s)")
        return self.run(lambda connection: bool(_value(connection, query, owner)))

    def close(self) -> None:
        self.hints.close()
        self._pool.close()

    def _patience(self) -> Patience:
        if self._pool.is_closed:
            raise QueueClosedError
        patience = Patience(self._timeout)
        patience.check()
        return patience


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


def _final(error: psycopg.Error, patience: Patience) -> Exception:
    """Return what to raise for an error after which nothing is tried again."""
    if error.sqlstate == "57014":
        try:
            patience.check()
        except OperationCancelledError as cancelled:
            return cancelled
    return faults.translate(error)


def _roll_back(connection: BoundedConnection) -> None:
    """End a failed transaction; a connection on which even that fails is useless and is closed."""
    connection.scope = None
    if connection.closed or connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        return
    try:
        fast.roll_back(connection)
    except psycopg.Error:
        connection.pgconn.finish()


def _value(connection: BoundedConnection, query: str, *values: object) -> Any:
    found = connection.execute(query, values or None).fetchone()
    return None if found is None else found[0]
