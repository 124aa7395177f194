"""Running work in transactions: connections, time, and what became of a commit.

- No connection, or it breaks before COMMIT is sent: the work is run again from its start; `retries` says when and how often.
- It breaks during COMMIT: the server is asked what became of the transaction's xid. Committed: done. Aborted: run again.
  No answer: BackendError with `outcome_unknown`.

A transaction never stays open: whatever happens, the connection is idle or closed when it goes back to the pool.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import psycopg

from penstock.backends.contract.values import Change
from penstock.backends.engine.outage import Outage
from penstock.backends.engine.store import AfterCommit, Store, Transaction
from penstock.backends.postgres import faults, prepared, reading
from penstock.backends.postgres.commit_order import CommitOrder
from penstock.backends.postgres.connection import PLANNER, BoundedConnection, Pool, server_limits
from penstock.backends.postgres.faults import Fault
from penstock.backends.postgres.notifications import Notifications
from penstock.backends.postgres.retries import FailedAttemptError, Patience, Retries
from penstock.backends.postgres.shared_state import SharedState
from penstock.backends.postgres.transaction import PostgresTransaction
from penstock.backends.postgres.transaction_start import Opening
from penstock.backends.urls import displayed_location
from penstock.clock import Clock, to_micros
from penstock.errors import BackendError, QueueClosedError

__all__ = ["Runner"]

logger = logging.getLogger("penstock")
T = TypeVar("T")

#: What became of a commit is asked for as long as the call may take, and at least for so long.
_RESOLVE_SECONDS: Final = 10.0
#: Milliseconds by which the server waits longer than the caller, who must find its own time over when the server gives up.
_AFTER_THE_CALLER: Final = 20
_HINT_SECONDS: Final = 1.0


class _HandOutError(Exception):
    """The claim for waiting streams failed; the transaction took no effect, and its work is run again without it."""


class Runner(Store):
    """The part of a store that runs work on the connections of its pool."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None,
        schema: str,
        pool_size: int,
        timeout: float,
        connect_timeout: float | None,
        pgbouncer: bool,
        listen: bool,
    ) -> None:
        self.shared = SharedState(schema, has_own_clock=clock is not None)
        self._on_commit: Callable[[Sequence[Change]], None] | None = None
        self.commit_order = CommitOrder()
        self._clock = clock
        self._timeout = timeout
        self.outage = Outage(displayed_location(url, schema))
        self._pool = Pool(
            url,
            size=pool_size,
            timeout=timeout,
            connect_timeout=connect_timeout,
            pgbouncer=pgbouncer,
            outage=self.outage,
        )
        settings = {**PLANNER, **server_limits(timeout)} if pgbouncer else {}
        self._begin = [
            # Not READ WRITE: who made the server, the database or the role read-only meant it.
            "BEGIN ISOLATION LEVEL READ COMMITTED",
            *(f"SET LOCAL {name} = '{value}'" for name, value in settings.items()),
        ]
        self._may_prepare = not pgbouncer
        self.notifications = Notifications(
            schema,
            self.shared.lock_class,
            self._pool.conninfo() if listen and not pgbouncer else None,
            lambda send: self._on_connection(send, Patience(_HINT_SECONDS, obeys_scope=False)),
            self.outage,
        )

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
        foreseen: frozenset[str] = frozenset()
        may_hand_out = not alone

        def attempt() -> T:
            nonlocal foreseen, may_hand_out
            connection = self._pool.acquire(patience)
            try:
                tx = self._transaction(connection, patience)
                tx.is_long, tx.foreseen, tx.may_hand_out = alone, foreseen, may_hand_out
                return self._run_once(connection, tx, work, patience)
            except FailedAttemptError as failed:
                if isinstance(failed.cause, faults.OutOfOrderError):
                    foreseen |= failed.cause.keys
                raise
            except _HandOutError:
                may_hand_out = False
            finally:
                self._pool.release(connection)
            return attempt()

        return self._retries(patience).run(attempt)

    def _retries(self, patience: Patience) -> Retries:
        return Retries(patience, self.outage, self._pool.forget_idle)

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
            # Work that has begun to read an iterator cannot be run again.
            failed = FailedAttemptError(error, is_last=tx.is_long and began)
            connection.is_stale |= failed.fault is Fault.READ_ONLY
            raise failed from error
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
            self.shared.start, self.shared.floors, begin, self._own_now, may_prepare=self._may_prepare
        )
        return PostgresTransaction(connection, self.shared, opening, has_listeners=self.on_commit is not None)

    def _hand_out(self, connection: BoundedConnection, tx: PostgresTransaction) -> AfterCommit | None:
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
        handed_out: AfterCommit | None = None,
    ) -> None:
        """Commit, resolve the outcome, and notify waiting streams and listeners."""
        if handed_out is None:
            self._commit_surely(connection, tx)
        else:
            self._commit_and_hand_out(connection, tx, handed_out)
        if tx.is_news:
            self.notifications.notifier.notify(connection)

    def _commit_and_hand_out(
        self, connection: BoundedConnection, tx: PostgresTransaction, handed_out: AfterCommit
    ) -> None:
        is_handed_out = False

        def hand_out() -> None:
            nonlocal is_handed_out
            is_handed_out = True
            handed_out(True)

        outcome: bool | None = False
        try:
            # A listener may end the job as soon as the claim is emitted, so its stream must have it before.
            self._commit_surely(connection, tx, before_emit=hand_out)
        except BackendError as error:
            outcome = None if error.outcome_unknown else False
            raise
        finally:
            if not is_handed_out:
                handed_out(outcome)

    def _commit_surely(
        self,
        connection: BoundedConnection,
        tx: PostgresTransaction,
        before_emit: Callable[[], None] = lambda: None,
    ) -> None:
        listener = self.on_commit
        with self.commit_order.ticket(listener if tx.changes else None) as ticket:
            try:
                if tx.is_open:
                    prepared.command(connection, b"COMMIT")
            except psycopg.Error as error:
                if not faults.is_disconnect(error):
                    _roll_back(connection)
                    raise FailedAttemptError(error, is_last=tx.is_long) from error
                if tx.xid is not None:
                    left = connection.deadline - time.monotonic()
                    self._resolve(tx.xid, tx, error, max(left, _RESOLVE_SECONDS))
            ticket.changes = tx.changes
            for remember in tx.after_commit:
                remember()
            before_emit()

    def _resolve(self, xid: str, tx: PostgresTransaction, cause: psycopg.Error, seconds: float) -> None:
        """Resolve whether a transaction was committed whose connection broke during COMMIT.

        Args:
            xid: the transaction's number.
            tx: the transaction.
            cause: what broke the connection.
            seconds: for how long to ask: the server may be restarting.

        Raises:
            FailedAttemptError: it was not.
            BackendError: the outcome could not be resolved (`outcome_unknown`).
        """
        self._pool.forget_idle()
        patience = Patience(seconds, obeys_scope=False)

        def ask() -> str:
            try:
                status = self._on_connection(
                    lambda connection: reading.commit_status(connection, tx, xid), patience
                )
            except (psycopg.Error, BackendError):
                status = None
            if status not in ("committed", "aborted"):
                raise FailedAttemptError(cause, Fault.UNKNOWN)
            return status

        if Retries(patience, self.outage, unknown=cause).run(ask) == "aborted":
            raise FailedAttemptError(cause, is_last=tx.is_long) from cause

    def _keep_up(self, connection: BoundedConnection) -> None:
        try:
            while self.shared.journal.keep_up(connection):
                connection.deadline = self._patience().until()
        except psycopg.Error as error:
            raise faults.translate(error) from error

    # -- outside a transaction ----------------------------------------------------------------------------------

    def run(self, action: Callable[[BoundedConnection], T]) -> T:
        """Run an action outside a transaction, again after a lost connection: a read, or a write that may be repeated."""
        patience = self._patience()

        def attempt() -> T:
            try:
                return self._on_connection(action, patience)
            except psycopg.Error as error:
                raise FailedAttemptError(error) from error

        return self._retries(patience).run(attempt)

    def _on_connection(self, action: Callable[[BoundedConnection], T], patience: Patience) -> T:
        """Run an action once on a connection of the pool, which is idle or closed afterwards."""
        connection = self._pool.acquire(patience)
        try:
            return action(connection)
        except psycopg.Error as error:
            connection.is_stale |= faults.classify(error) is Fault.READ_ONLY
            raise
        finally:
            _roll_back(connection)
            self._pool.release(connection)

    def _own_now(self) -> int | None:
        return None if self._clock is None else to_micros(self._clock.now())

    def _patience(self) -> Patience:
        if self._pool.is_closed:
            raise QueueClosedError
        patience = Patience(self._timeout)
        patience.check()
        return patience


def _roll_back(connection: BoundedConnection) -> None:
    """End a failed transaction; a connection on which even that fails is useless and is closed."""
    connection.scope = None
    if connection.closed or connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        return
    try:
        prepared.roll_back(connection)
    except psycopg.Error:
        connection.pgconn.finish()
