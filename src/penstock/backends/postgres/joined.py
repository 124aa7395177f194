"""Submission inside a transaction of the caller's own: the jobs are there if, and only if, that is committed.

Every call is a savepoint in the caller's transaction, so that a refused one leaves it usable. Locks that a submission
takes (keys, dependencies, idempotency keys) stay until the transaction ends. Nobody is told of the jobs: streams find
them by looking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, NoReturn, TypeVar, cast

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from penstock.backends._engine import EngineBackend
from penstock.backends._options import StoreOptions
from penstock.backends._rows import Row
from penstock.backends._store import Blobs, Store, Transaction
from penstock.backends.base import Backend
from penstock.backends.postgres import faults, reading
from penstock.backends.postgres.connection import BoundedConnection
from penstock.backends.postgres.context import Context
from penstock.backends.postgres.start import Facts, Opening
from penstock.backends.postgres.transaction import PostgresTransaction
from penstock.errors import InvalidArgumentError, QueueClosedError, shown
from penstock.scope import checkpoint

__all__ = ["JoinedBackend", "JoinedStore", "identity"]

T = TypeVar("T")

#: What a transaction of somebody else's can do with the store: put jobs in, and look at them.
_POSSIBLE: Final = {"enqueue_job", "enqueue_jobs", "get_job", "get_jobs", "close"}

#: Of two stores, even of a copy in another database, these differ.
_IDENTITY: Final = (
    "SELECT current_database(), pg_class.oid::bigint, (SELECT min(applied_at) FROM {schema}.migration)"
    " FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace"
    " WHERE nspname = %(schema)s AND relname = 'job'"
)
_START: Final = (
    "SELECT COALESCE(%(own_now)s::bigint, {now}), pg_current_xact_id()::text, control.blocked,"
    " current_setting('transaction_isolation') FROM {schema}.control"
)


def identity(connection: Any, context: Context) -> tuple[Any, ...] | None:
    """Return what tells this store from every other one."""
    found: tuple[Any, ...] | None = connection.execute(
        context.sql.text(_IDENTITY), {"schema": context.schema}
    ).fetchone()
    return found


class _Guest:
    """The caller's connection as our statements need it: plain cursors and tuples, whatever it makes by itself."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def cursor(self) -> psycopg.Cursor[tuple[Any, ...]]:
        return psycopg.Cursor(self._connection, row_factory=tuple_row)

    def execute(
        self, query: str, parameters: Any = None, *, prepare: bool | None = None, binary: bool | None = None
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        return self.cursor().execute(query, parameters, prepare=prepare, binary=binary)

    def transaction(self) -> AbstractContextManager[psycopg.Transaction]:
        return self._connection.transaction()


class _Opened(Opening):
    """The beginning of a transaction that somebody else has begun."""

    def __init__(self, facts: Facts, own_clock: Callable[[], int | None]) -> None:
        self._facts = facts
        self.begin = []
        self.own_clock = own_clock
        self.own_now = facts.now
        self.since = -1
        self.may_prepare = False

    def run(self, connection: BoundedConnection) -> Facts:  # noqa: ARG002  # nothing is left to do
        return self._facts

    def judge(self, now: int, *, is_due: bool) -> bool:  # noqa: ARG002  # nothing to remember from what may be undone
        return is_due


def _refuse(verb: str) -> Callable[..., NoReturn]:
    def refuse(*_args: object, **_options: object) -> NoReturn:
        raise _impossible(verb)

    return refuse


class JoinedStore(Store):
    """Runs work in the transaction that is open on somebody else's connection."""

    def __init__(
        self,
        connection: object,
        context: Context,
        *,
        home: Callable[[], tuple[Any, ...] | None],
        now: Callable[[], int],
        own_now: Callable[[], int | None],
    ) -> None:
        if not isinstance(connection, psycopg.Connection):
            hint = " (an AsyncConnection cannot be joined)" if _is_async(connection) else ""
            raise InvalidArgumentError(
                f"connection must be a psycopg.Connection, got {shown(connection)}{hint}",
                field="connection",
                value=None,
            )
        self._caller: psycopg.Connection[Any] = connection
        self._guest = cast("BoundedConnection", _Guest(connection))
        self._context = context
        self._home = home
        self._now = now
        self._own_now = own_now
        self._is_checked = False
        self._closed = False

    def write(self, work: Callable[[Transaction], T], *, alone: bool = False) -> T:  # noqa: ARG002  # never shared
        with self._in_transaction():
            own_now = self._own_now()
            found = self._guest.execute(self._context.sql.text(_START), {"own_now": own_now}).fetchone()
            now, xid, blocked, isolation = found or (0, "", False, "")
            if isolation != "read committed":
                # With an older snapshot a job could miss that its key's turn or its dependency's end has come.
                raise _unusable(f"its transaction is {isolation}; jobs need read committed")
            opened = _Opened(Facts(now, xid, blocked, is_due=True), self._own_now)
            tx = PostgresTransaction(self._guest, self._context, opened, wants_changes=False)
            tx.is_long = True
            tx.open()
            return work(tx)

    def fetch_jobs(self, ids: Sequence[str]) -> tuple[list[tuple[Row, Blobs]], int]:
        with self._in_transaction():
            found, now = reading.fetch_jobs(self._guest, self._context.sql, ids)
        own = self._own_now()
        return found, now if own is None else own

    def now(self) -> int:
        return self._now()

    def close(self) -> None:
        self._closed = True

    @contextmanager
    def _in_transaction(self) -> Iterator[None]:
        if self._closed:
            raise QueueClosedError
        checkpoint()
        try:
            self._begin()
            with self._guest.transaction():
                if not self._is_checked:
                    self._check_home()
                yield
        except psycopg.Error as error:
            raise faults.translate(error) from error

    def _begin(self) -> None:
        """Make sure that a transaction is open which the caller ends."""
        if self._caller.closed:
            raise _unusable("it is closed")
        status = self._caller.info.transaction_status
        if status == pq.TransactionStatus.INERROR:
            raise _unusable("its transaction has failed and can only be rolled back")
        if status == pq.TransactionStatus.IDLE:
            if self._caller.autocommit:
                raise _unusable("it is in autocommit mode: open a transaction with connection.transaction()")
            self._guest.execute("SELECT 1")  # the driver begins one before its first statement

    def _check_home(self) -> None:
        try:
            with self._guest.transaction():
                here = identity(self._guest, self._context)
        except psycopg.errors.UndefinedTable:
            here = None
        if here is None or here != self._home():
            raise _unusable(f"it does not lead to the database of this queue (schema {self._context.schema})")
        self._is_checked = True

    # The backend refuses the verbs that would come to these.
    list_jobs = _refuse("list_jobs")
    stats = _refuse("get_job_stats")
    overview = _refuse("overview")
    read_journal = _refuse("read_journal")
    store_id = _refuse("store_id")
    journal_span = _refuse("journal_span")
    jobs_span = _refuse("jobs_span")
    consumers = _refuse("list_consumers")
    archived = _refuse("get_archive")
    read_ends = _refuse("read_ends")
    due_deliveries = _refuse("due_deliveries")
    deliveries = _refuse("list_deliveries")
    count_deliveries = _refuse("count_deliveries")
    schedules = _refuse("list_schedules")
    is_blocked = _refuse("is_blocked")


class JoinedBackend(EngineBackend):
    """The submitting verbs in a transaction of the caller's; `Backend.joined` makes it."""

    def __init__(self, store: JoinedStore, options: StoreOptions) -> None:
        super().__init__(store, options, has_own_clock=False)

    def __repr__(self) -> str:
        return "<JoinedBackend>"


for _verb in Backend.__abstractmethods__ - _POSSIBLE:
    setattr(JoinedBackend, _verb, _refuse(_verb))


def _impossible(verb: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{verb} is not possible inside a joined transaction: it only submits jobs; use the queue itself",
        field="connection",
    )


def _unusable(why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"the connection cannot be joined: {why}", field="connection")


def _is_async(connection: object) -> bool:
    return isinstance(connection, psycopg.AsyncConnection)
