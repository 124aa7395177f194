"""Connections to the server: bounded in number and in time, opened when needed, never shared across a fork.

psycopg_pool is not used: it keeps worker threads, which a fork leaves behind, cannot be interrupted by a cancel scope,
and takes about a tenth of the time of a single enqueue.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import weakref
from collections.abc import Generator
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import Transformer
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.backends.engine.outage import Outage
from penstock.backends.postgres import faults
from penstock.backends.postgres.faults import Fault
from penstock.backends.postgres.retries import FailedAttemptError, Patience, Retries
from penstock.errors import BackendError, InvalidArgumentError, QueueClosedError, redacted
from penstock.scope import CancelScope

__all__ = ["BoundedConnection", "Dialing", "Pool", "parameters"]

RV = TypeVar("RV")

#: Every statement here is written for one plan: nested loops over the index made for it. The planner, left alone,
#: turns to scans of whole tables and to hash joins when its statistics date from a moment when the ready set was small.
PLANNER: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
#: How often a statement in a scope polls whether the scope has ended.
_GLANCE: Final = 0.02
_INTERRUPT_SECONDS: Final = 5.0
#: How long a store that was never reached is tried, unless `connect_timeout` says otherwise: its url is probably wrong.
_FIRST_CONNECT_SECONDS: Final = 5.0


class BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose every wait ends at `deadline` (monotonic), even if the server is frozen.

    Attributes:
        scope: whose end interrupts the statement that is waited for; None while the outcome must be awaited.
        is_stale: the pool replaces it before the next use.
    """

    deadline: float = float("inf")
    scope: CancelScope | None = None
    is_stale = False
    prepared_by_hand: set[bytes]
    loaders: dict[bytes, Transformer]

    def wait(self, gen: Generator[Any, Any, RV], *args: Any, **options: Any) -> RV:
        if self.scope is not None and not args:
            options.setdefault("interval", _GLANCE)
        return super().wait(_until(gen, self), *args, **options)

    def obey_scope(self) -> None:
        """Ask the server to end the statement that is waited for, once, if the scope has ended.

        The request is sent, and its arrival awaited, by the thread that waits for the statement. So it can only hit this
        statement, or come when nothing runs any more; and the connection serves no other call.
        """
        if self.scope is not None and self.scope.cancelled:
            self.scope = None
            self.is_stale = True
            with contextlib.suppress(psycopg.Error):
                self._interrupt(max(0.1, min(_INTERRUPT_SECONDS, self.deadline - time.monotonic())))

    def _interrupt(self, timeout: float) -> None:
        if psycopg.capabilities.has_cancel_safe():
            self.cancel_safe(timeout=timeout)
            return
        # An older libpq waits for the server, be it frozen. Not a service: one call, which cannot be interrupted.
        request = threading.Thread(target=self.pgconn.get_cancel().cancel, daemon=True)
        request.start()
        request.join(timeout)


def _until(gen: Generator[Any, Any, RV], connection: BoundedConnection) -> Generator[Any, Any, RV]:
    """Pass a driver's generator through, but give up on it (and on the connection) at the deadline."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready:
                if time.monotonic() >= connection.deadline:
                    connection.pgconn.finish()
                    raise psycopg.OperationalError("the server did not answer in time")
                connection.obey_scope()
            wanted = gen.send(ready)
    except StopIteration as end:
        result: RV = end.value
        return result


class Pool:
    """At most `size` connections, lent to one call at a time."""

    def __init__(
        self,
        url: str,
        *,
        size: int,
        timeout: float,
        pgbouncer: bool,
        outage: Outage,
        connect_timeout: float | None = None,
    ) -> None:
        self._connect_timeout = connect_timeout
        self._outage = outage
        self._parameters = _session_parameters(url, timeout, pgbouncer=pgbouncer)
        self._prepare = None if pgbouncer else 0
        self._size = size
        self._timeout = timeout
        self._inherited: list[BoundedConnection] = []
        self._start()
        _pools.add(self)

    def _start(self) -> None:
        self._free: list[BoundedConnection] = []
        self._lent = 0
        self._generation = 0
        self._closed = getattr(self, "_closed", False)
        # Reentrant: a scope may be cancelled by the very thread that holds it.
        self._changed = threading.Condition(threading.RLock())

    def after_fork(self) -> None:
        """Forget the parent's connections without touching them: closing one would end the parent's session."""
        self._inherited += self._free
        self._start()

    def conninfo(self) -> str:
        """Return how to open a connection beside the pool."""
        return make_conninfo(**self._parameters)

    def acquire(self, patience: Patience) -> BoundedConnection:
        """Return a connection, waiting for one or opening one; honours the scope while it waits."""
        with self._changed:
            if not self._free and self._lent >= self._size:
                self._wait_for_turn(patience)
            if self._closed:
                raise QueueClosedError
            self._lent += 1
            connection = self._free.pop() if self._free else None
        if connection is None:
            try:
                connection = self._open(patience)
            except BaseException:
                self._return(None)
                raise
        connection.deadline = patience.until()
        connection.scope = patience.scope
        return connection

    def release(self, connection: BoundedConnection) -> None:
        """Take a connection back; a broken or stale one, or one inside a transaction, is thrown away."""
        connection.scope = None
        usable = (
            not connection.closed
            and not connection.is_stale
            and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        )
        if not usable:
            _close(connection)
        self._return(connection if usable else None)

    def forget_idle(self) -> None:
        """Close what lies idle: after one connection was lost, the others are probably dead too."""
        with self._changed:
            idle, self._free = self._free, []
        for connection in idle:
            _close(connection)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            idle, self._free = self._free, []
            self._changed.notify_all()
        for connection in idle:
            _close(connection)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def _return(self, connection: BoundedConnection | None) -> None:
        with self._changed:
            self._lent -= 1
            if connection is not None and not self._closed:
                self._free.append(connection)
                connection = None
            self._changed.notify()
        if connection is not None:
            _close(connection)

    def _wait_for_turn(self, patience: Patience) -> None:
        unsubscribe = None if patience.scope is None else patience.scope.subscribe(self._wake)
        try:
            while not self._free and self._lent >= self._size and not self._closed:
                patience.check()
                if not self._changed.wait(patience.left() or 0.001) and not patience.left():
                    patience.check()
                    raise BackendError(
                        f"no connection became free within {self._timeout:g} s (option pool_size)",
                        retryable=True,
                    )
        finally:
            if unsubscribe is not None:
                unsubscribe()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _open(self, patience: Patience) -> BoundedConnection:
        """Connect, trying again with growing pauses until the time is over: the server may be restarting."""
        patience = patience.within(self._limit())
        connection = Retries(patience, self._outage).run(lambda: self._dial(patience))
        self._outage.worked()
        connection.prepared_by_hand = set()
        connection.loaders = {}
        return connection

    def _dial(self, patience: Patience) -> BoundedConnection:
        patience.check()
        if self._closed:
            raise QueueClosedError
        try:
            return Dialing(self._dial_options(patience)).wait(patience)
        except psycopg.Error as error:
            if not (faults.is_disconnect(error) and _may_pass(error)):
                raise FailedAttemptError(error, Fault.REFUSED) from error
            self._outage.failed(error)
            raise FailedAttemptError(error) from error

    def _limit(self) -> float | None:
        """Return how many seconds connecting may take; None is as long as the call may."""
        if self._connect_timeout is not None or self._outage.was_reached:
            return self._connect_timeout
        return _FIRST_CONNECT_SECONDS

    def _dial_options(self, patience: Patience) -> dict[str, Any]:
        return {
            **self._parameters,
            "autocommit": True,
            "prepare_threshold": self._prepare,
            "connect_timeout": max(2, math.ceil(patience.left())),
        }


class Dialing(threading.Thread):
    """One attempt to connect, on a thread: finding the address of a name, and trying several, cannot be bounded.

    Not a service: it ends with the attempt, and one that takes too long is left behind.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(name="penstock-connect", daemon=True)
        self._options = options
        self._changed = threading.Condition(threading.RLock())  # reentrant, as that of the pool
        self._is_abandoned = False
        self._connection: BoundedConnection | None = None
        self._error: BaseException | None = None

    def wait(self, patience: Patience) -> BoundedConnection:
        """Connect; raise what the driver does, or OperationalError when the time is over."""
        seconds = patience.left()
        self.start()
        unsubscribe = None if patience.scope is None else patience.scope.subscribe(self._wake)
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._is_done() or patience.is_over(), patience.left())
                if not self._is_done():
                    self._is_abandoned = True
        except BaseException:
            self._is_abandoned = True
            raise
        finally:
            if unsubscribe is not None:
                unsubscribe()
        if self._error is not None:
            raise self._error
        if self._connection is None:
            patience.check()
            raise psycopg.OperationalError(f"there was no answer within {seconds:.3g} s")
        return self._connection

    def run(self) -> None:
        connection, error = None, None
        try:
            connection = BoundedConnection.connect(**self._options)
        except BaseException as caught:
            error = caught
        with self._changed:
            self._connection, self._error = connection, error
            self._changed.notify_all()
            is_unwanted = self._is_abandoned
        if is_unwanted and connection is not None:
            _close(connection)

    def _is_done(self) -> bool:
        return self._connection is not None or self._error is not None

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_pools):
        pool.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _may_pass(error: psycopg.Error) -> bool:
    """Whether a refused connection may be accepted later. libpq reports these without an SQLSTATE."""
    text = str(error).lower()
    lasting = ("authentication failed", "does not exist", "no pg_hba.conf entry", "could not translate host name",
               "invalid", 'role "', faults.POOLED)  # fmt: skip
    return not any(each in text for each in lasting) or "recovery" in text


def _close(connection: BoundedConnection) -> None:
    try:
        connection.close()
    except psycopg.Error:
        connection.pgconn.finish()


def parameters(url: str) -> dict[str, Any]:
    """Return what a url or connection string says, in the driver's words.

    Raises:
        InvalidArgumentError: the driver does not understand it.
    """
    try:
        return {**conninfo_to_dict(url), "client_encoding": "UTF8"}
    except psycopg.ProgrammingError as error:
        raise InvalidArgumentError(_refusal(url, error), field="url") from None


def _session_parameters(url: str, timeout: float, *, pgbouncer: bool) -> dict[str, Any]:
    found = parameters(url)
    defaults: dict[str, Any] = {
        "application_name": "penstock",
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": int(timeout * 1000),
    }
    if not pgbouncer:
        # A pooler in transaction mode refuses or mixes up session settings, so there they are set in each transaction.
        settings = {**PLANNER, **server_limits(timeout)}
        given = found.get("options")
        ours = " ".join(f"-c {name}={value}" for name, value in settings.items())
        found["options"] = f"{ours} {given}" if given else ours
    return {**defaults, **found}


def _refusal(url: str, error: psycopg.Error) -> str:
    """Return what is wrong with a url; the driver may quote what follows a password, which may be a part of it."""
    if "password" in url:
        return "the PostgreSQL url is malformed, or a parameter in it is unknown: check its query"
    return f"the PostgreSQL url is malformed: {redacted(' '.join(str(error).split()))}"


def server_limits(timeout: float) -> dict[str, str]:
    """Return the settings by which the server itself ends what takes too long."""
    millis = str(max(1, int(timeout * 1000)))
    return {
        "statement_timeout": millis,
        "lock_timeout": millis,
        "idle_in_transaction_session_timeout": str(max(60_000, 2 * int(millis))),
    }
