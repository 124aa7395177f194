"""Submission inside a transaction of the caller's own: the jobs are there if, and only if, that is committed.

Every call is a savepoint in the caller's transaction, so that a refused one leaves it usable. Locks that a submission
takes (keys, dependencies, idempotency keys) stay until the transaction ends. A NOTIFY goes with it, so that waiting
streams of all processes, this one too, hear of the jobs at the commit.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeVar, cast

import psycopg
from psycopg import pq

from penstock.backends.contract.backend import Backend
from penstock.backends.contract.joined import absent
from penstock.backends.engine.backend import EngineBackend
from penstock.backends.engine.rows import Row
from penstock.backends.engine.store import Blobs, Store, Transaction
from penstock.backends.options import StoreOptions
from penstock.backends.postgres import faults, reading
from penstock.backends.postgres.caller_connections import CallerConnection, caller_connection, unusable
from penstock.backends.postgres.connection import BoundedConnection
from penstock.backends.postgres.shared_state import SharedState
from penstock.backends.postgres.transaction import PostgresTransaction
from penstock.backends.postgres.transaction_start import Facts, Opening
from penstock.errors import InvalidArgumentError, QueueClosedError
from penstock.job import Job
from penstock.scope import checkpoint

__all__ = ["Connections", "JoinedStore", "PostgresJoinedBackend", "identity"]

T = TypeVar("T")

#: Of two stores, even of a copy in another database, these differ.
_IDENTITY: Final = (
    "SELECT current_database(), pg_class.oid::bigint, (SELECT min(applied_at) FROM {schema}.migration)"
    " FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace"
    " WHERE nspname = %(schema)s AND relname = 'job'"
)
_START: Final = (
    "SELECT COALESCE(%(own_now)s::bigint, {now}), pg_current_xact_id()::text, control.blocked,"
    " current_setting('transaction_isolation'), NOTIFY FROM {schema}.control"
)


def identity(connection: Any, shared: SharedState) -> tuple[Any, ...] | None:
    """Return what tells this store from every other one."""
    found: tuple[Any, ...] | None = connection.execute(
        shared.sql.text(_IDENTITY), {"schema": shared.schema}
    ).fetchone()
    return found


class Connections:
    """The connections of callers that are known to lead to the store. A pool's are asked once, not at each request."""

    def __init__(self, home: Callable[[], tuple[Any, ...] | None]) -> None:
        self._ask = home
        self._home: tuple[Any, ...] | None = None
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()

    def home(self) -> tuple[Any, ...] | None:
        """Return what tells the store from every other one."""
        if self._home is None:
            self._home = self._ask()
        return self._home

    def add(self, connection: object) -> None:
        with self._lock:
            self._seen.add(connection)

    def __contains__(self, connection: object) -> bool:
        with self._lock:
            return connection in self._seen


class _Opened(Opening):
    """The beginning of a transaction that the caller has begun."""

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
        raise InvalidArgumentError(f"{verb} is not possible inside a joined transaction", field="connection")

    return refuse


class JoinedStore(Store):
    """Runs work in the transaction that is open on a connection of the caller."""

    def __init__(
        self,
        connection: object,
        shared: SharedState,
        *,
        known: Connections,
        notify: str,
        now: Callable[[], int],
        own_now: Callable[[], int | None],
    ) -> None:
        self._find_caller = caller_connection(connection)
        self._shared = shared
        self._known = known
        self._start = shared.sql.text(_START).replace("NOTIFY", notify)
        self._now = now
        self._own_now = own_now
        self._closed = False
        #: Savepoints must end in the order in which they began, also if several tasks share the session.
        self._turn = threading.Lock()

    def write(self, work: Callable[[Transaction], T], *, alone: bool = False) -> T:  # noqa: ARG002  # never shared
        with self._in_transaction() as caller:
            own_now = self._own_now()
            found = caller.execute(self._start, {"own_now": own_now}).fetchone()
            now, xid, blocked, isolation, _ = found or (0, "", False, "", None)
            if isolation != "read committed":
                # With an older snapshot a job could miss that its key's turn or its dependency's end has come.
                raise unusable(f"its transaction is {isolation}; jobs need read committed")
            opened = _Opened(Facts(now, xid, blocked, is_due=True), self._own_now)
            tx = PostgresTransaction(
                cast("BoundedConnection", caller), self._shared, opened, has_listeners=False
            )
            tx.is_long = True
            tx.open()
            return work(tx)

    def fetch_jobs(self, ids: Sequence[str]) -> tuple[list[tuple[Row, Blobs]], int]:
        with self._in_transaction() as caller:
            found, now = reading.fetch_jobs(cast("BoundedConnection", caller), self._shared.sql, ids)
        own = self._own_now()
        return found, now if own is None else own

    def now(self) -> int:
        return self._now()

    def close(self) -> None:
        self._closed = True

    @contextmanager
    def _in_transaction(self) -> Iterator[CallerConnection]:
        if self._closed:
            raise QueueClosedError
        checkpoint()
        with self._turn:
            try:
                caller = self._find_caller()
                _begin(caller)
                with caller.transaction():
                    if caller.driver not in self._known:
                        self._check_home(caller)
                    yield caller
            except psycopg.Error as error:
                raise faults.translate(error) from error

    def _check_home(self, caller: CallerConnection) -> None:
        try:
            with caller.transaction():
                here = identity(caller, self._shared)
        except psycopg.errors.UndefinedTable:
            here = None
        if here is None or here != self._known.home():
            raise unusable(f"it does not lead to the database of this queue (schema {self._shared.schema})")
        self._known.add(caller.driver)

    # No verb that joins comes to these.
    list_jobs = _refuse("list_jobs")
    select_jobs = _refuse("select_jobs")
    ids_from = _refuse("find_ids")
    count_keyed = _refuse("count_keyed")
    list_keyed = _refuse("list_keyed")
    stats = _refuse("get_job_stats")
    counts = _refuse("count_jobs")
    overview = _refuse("overview")
    has_work = _refuse("has_work")
    read_journal = _refuse("read_journal")
    job_history = _refuse("job_history")
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
    has_owner = _refuse("has_owner")
    unresponsive = _refuse("unresponsive")


class PostgresJoinedBackend:
    """The submitting verbs in a transaction of the caller's; `PostgresBackend.joined` makes it.

    The engine beneath has every verb of a backend. Only those that join are passed on.
    """

    def __init__(self, store: JoinedStore, options: StoreOptions) -> None:
        self._engine = EngineBackend(store, options, has_own_clock=False)
        self.options = options

    def now(self) -> datetime:
        return self._engine.now()

    def enqueue_job(self, job: Job) -> str:
        return self._engine.enqueue_job(job)

    def enqueue_jobs(self, jobs: Iterable[Job]) -> list[str]:
        return self._engine.enqueue_jobs(jobs)

    def submit_jobs(self, jobs: Sequence[Job]) -> list[Job]:
        return self._engine.submit_jobs(jobs)

    def get_job(self, job_id: str) -> Job:
        return self._engine.get_job(job_id)

    def get_jobs(self, job_ids: Iterable[str]) -> dict[str, Job]:
        return self._engine.get_jobs(job_ids)

    def close(self) -> None:
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return "<PostgresJoinedBackend>"

    if not TYPE_CHECKING:  # a checker shall see that the other verbs are missing

        def __getattr__(self, name: str) -> NoReturn:
            raise absent(self, name, Backend)


def _begin(caller: CallerConnection) -> None:
    """Make sure that a transaction is open which the caller ends."""
    driver = caller.driver
    if driver.closed:
        raise unusable("it is closed")
    status = driver.info.transaction_status
    if status == pq.TransactionStatus.INERROR:
        raise unusable("its transaction has failed and can only be rolled back")
    if status == pq.TransactionStatus.IDLE:
        if driver.autocommit:
            raise unusable(f"it is in autocommit mode: {caller.advice}")
        caller.execute("SELECT 1")  # the driver begins one before its first statement
