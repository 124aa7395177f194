"""Notifications between processes by NOTIFY: a commit made jobs claimable or touched claimed ones, so streams poll now.

Correctness never depends on them: a lost notification costs the time until the next poll (`poll_seconds`).

NOTIFY locks the whole database until its transaction has ended, so it is never part of a writing transaction of this
store: commits would wait for each other's flush. (In a caller's own transaction there is no other way.) It follows the
commit on the same connection, and it is rate-limited: the first one after a pause is sent at once, those that follow
share one that a thread sends later, after a gap that grows under load. Listeners hold a shared advisory lock, so no
NOTIFY is sent while there are none, and the check for listeners is rate-limited too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import selectors
import socket
import threading
import time
import zlib
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

import psycopg
from psycopg import generators, pq, waiting

from penstock.backends.engine.outage import Outage
from penstock.backends.postgres import faults, prepared
from penstock.backends.postgres.connection import BoundedConnection
from penstock.service import Service

__all__ = ["Listener", "Notifications", "Notifier"]

logger = logging.getLogger("penstock")
RV = TypeVar("RV")

#: Second part of the advisory lock that listeners share.
_LISTENING: Final = 3
_MIN_GAP_SECONDS: Final = 0.005
_MAX_GAP_SECONDS: Final = 0.05
_ANSWER_SECONDS: Final = 10.0
_MIN_RETRY_SECONDS: Final = 0.05
_MAX_RETRY_SECONDS: Final = 2.0
# Not epoll: it lives in the kernel, and a fork would share it.
_Selector: Final[Any] = getattr(selectors, "PollSelector", selectors.SelectSelector)


class Notifications:
    """The notifications of one store object: those it sends, and those it listens for while it has watchers.

    Args:
        conninfo: how the listener connects; None where it cannot (a pooler in transaction mode).
        run: runs something on a connection of the pool.
        outage: records whether the listener could connect.
    """

    def __init__(
        self,
        schema: str,
        lock_class: int,
        conninfo: str | None,
        run: Callable[[Callable[[BoundedConnection], None]], object],
        outage: Outage,
    ) -> None:
        self._outage = outage
        self._conninfo = conninfo
        self._channel = channel_of(schema)
        self._lock_class = lock_class
        self._run = run
        self.reset()

    def reset(self) -> None:
        """Set the initial state: at first, and in a forked child, whose threads stayed with the parent."""
        self._lock = threading.Lock()
        self._watchers: dict[object, Callable[[], None]] = {}
        self._listener: Listener | None = None
        # The listener recognises notifications of its own store object by this name.
        self._name = os.urandom(8).hex()
        self.notifier = Notifier(
            f"SELECT pg_notify('{self._channel}', '{self._name}')"
            f" WHERE NOT pg_try_advisory_xact_lock({self._lock_class}, {_LISTENING})",
            self._run,
        )

    @property
    def within_transaction(self) -> str:
        """An SQL expression that notifies listeners, also of this process, when its transaction commits.

        The check for listeners releases its lock at once: held until the caller's commit, it would keep new listeners
        waiting.
        """
        lock = f"({self._lock_class}, {_LISTENING})"
        return (
            f"CASE WHEN pg_try_advisory_lock{lock} THEN pg_advisory_unlock{lock}"
            f" ELSE pg_notify('{self._channel}', 'joined') IS NULL END"
        )

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` for every notification of other store objects; return a function that ends it."""
        if self._conninfo is None:
            return lambda: None
        handle = object()
        watchers = self._watchers
        with self._lock:
            watchers[handle] = callback
            if self._listener is None:
                self._listener = Listener(
                    self._conninfo,
                    f'LISTEN "{self._channel}"; SELECT pg_advisory_lock_shared({self._lock_class}, {_LISTENING})',
                    self._name,
                    self._call_watchers,
                    self._outage,
                )

        def stop() -> None:
            if watchers is not self._watchers:
                return  # a fork's child: it has no listener
            with self._lock:
                watchers.pop(handle, None)
                listener, self._listener = (None, self._listener) if watchers else (self._listener, None)
            if listener is not None:
                listener.close()

        return stop

    def close(self) -> None:
        """End both threads; a pending notification is sent first."""
        self.notifier.close()
        with self._lock:
            self._watchers.clear()
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _call_watchers(self) -> None:
        for callback in list(self._watchers.values()):
            try:
                callback()
            except Exception:  # the other watchers must still be called
                logger.exception("a watcher failed")


class Notifier:
    """Sends notifications, at a limited rate."""

    def __init__(self, command: str, run: Callable[[Callable[[BoundedConnection], None]], object]) -> None:
        self._command = command.encode()
        self._run = run
        self._changed = threading.Condition(threading.Lock())
        self._gap = _MIN_GAP_SECONDS
        self._next = float("-inf")
        self._is_due = False
        self._is_closed = False
        self._service = Service("notify", self._send_later, label="notifying other processes")

    def notify(self, connection: BoundedConnection) -> None:
        """Notify others of a commit on this idle connection: at once, or after the gap since the last notification."""
        with self._changed:
            if self._is_due or self._is_closed:
                return
            now = time.monotonic()
            if now < self._next or connection.closed:
                self._is_due = True
                self._start()
                return
            self._gap = _MIN_GAP_SECONDS
            self._next = now + self._gap
        with contextlib.suppress(psycopg.Error):
            self._send(connection)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._service.join()

    def _start(self) -> None:
        self._service.start()
        self._changed.notify_all()

    def _send_later(self) -> None:
        """Send a delayed notification; after `close`, end when none is due."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_due or self._is_closed)
            self._changed.wait_for(lambda: self._is_closed, timeout=max(0.0, self._next - time.monotonic()))
            if not self._is_due:
                self._service.retire()
                return
            self._is_due = False
            self._gap = min(2 * self._gap, _MAX_GAP_SECONDS)
            self._next = time.monotonic() + self._gap
        try:
            self._run(self._send)
        except Exception as error:
            logger.debug("a notification was not sent: %s", error)

    def _send(self, connection: BoundedConnection) -> None:
        has_listeners = prepared.command(connection, self._command).ntuples > 0
        if not has_listeners:
            with self._changed:
                self._gap = _MAX_GAP_SECONDS
                self._next = time.monotonic() + self._gap


class _StoppedError(Exception):
    """The listener was asked to end."""


class Listener:
    """A connection that only listens, and the thread that waits on it.

    A broken connection is opened again, and the watchers are called, because notifications may have been lost.
    """

    def __init__(
        self, conninfo: str, commands: str, own_name: str, callback: Callable[[], None], outage: Outage
    ) -> None:
        self._outage = outage
        self._conninfo = conninfo
        self._commands = commands.encode()
        self._own_name = own_name.encode()
        self._callback = callback
        self._stop, self._stopped = socket.socketpair()
        self._failures = 0
        self._service = Service(
            "listen", self._listen, interrupt=self._interrupt, label="listening for notifications"
        )
        self._service.start()

    def close(self) -> None:
        """End the thread and its connection."""
        if self._service.stop():
            self._close_sockets()

    def _interrupt(self) -> None:
        with contextlib.suppress(OSError):
            self._stop.shutdown(socket.SHUT_RDWR)  # closing is not enough while a forked child has it too

    def _close_sockets(self) -> None:
        self._stop.close()
        self._stopped.close()

    def _listen(self) -> None:
        """Listen on one connection until it breaks; the service calls again after a growing pause."""
        connection: pq.abc.PGconn | None = None
        try:
            connection = self._connect()
            self._outage.worked()
            self._failures = 0
            self._callback()
            self._receive(connection)
        except _StoppedError:
            self._close_sockets()
            return
        except (psycopg.Error, OSError) as error:
            if connection is None:
                self._note_failure(error, self._failures)
            self._failures += 1
        finally:
            if connection is not None:
                connection.finish()
        pause = min(_MAX_RETRY_SECONDS, _MIN_RETRY_SECONDS * 2**self._failures)
        self._service.pause(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret

    def _note_failure(self, error: Exception, failures: int) -> None:
        if not isinstance(error, psycopg.Error) or faults.is_disconnect(error):
            self._outage.failed(error)
        elif failures == 1:  # the server answers, but not to a listener
            logger.warning(
                "no notifications from other processes, the store is polled instead: %s",
                " ".join(str(error).split()),
            )

    def _connect(self) -> pq.abc.PGconn:
        until = time.monotonic() + _ANSWER_SECONDS
        connecting = generators.connect(self._conninfo)
        try:
            socket_number, wanted = next(connecting)
            while True:
                ready = self._wait(socket_number, wanted, until - time.monotonic())
                if not ready:
                    connecting.close()
                    raise psycopg.OperationalError("the server did not answer in time")
                socket_number, wanted = connecting.send(ready)
        except StopIteration as end:
            connection: pq.abc.PGconn = end.value
        try:
            connection.send_query(self._commands)
            for result in self._through(generators.execute(connection), connection, until):
                if result.status not in prepared.DONE:
                    raise psycopg.errors.error_from_result(result)
        except BaseException:
            connection.finish()
            raise
        return connection

    def _receive(self, connection: pq.abc.PGconn) -> None:
        while True:
            received = self._through(generators.notifies(connection), connection)
            if any(each.extra != self._own_name for each in received):
                self._callback()

    def _through(
        self, generator: Generator[Any, Any, RV], connection: pq.abc.PGconn, until: float | None = None
    ) -> RV:
        """Run one of the driver's generators, waiting for the server or for the end."""
        try:
            wanted = next(generator)
            while True:
                left = None if until is None else until - time.monotonic()
                ready = self._wait(connection.socket, wanted, left)
                if not ready and left is not None:
                    raise psycopg.OperationalError("the server did not answer in time")
                wanted = generator.send(ready)
        except StopIteration as end:
            result: RV = end.value
            return result

    def _wait(self, socket_number: int | None, wanted: int, seconds: float | None) -> waiting.Ready | int:
        """Wait until the socket is ready (0 if the time is over); raises _StoppedError when it is time to end."""
        with _Selector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ)
            if socket_number is not None:
                selector.register(socket_number, wanted)
            ready = 0
            for key, events in selector.select(None if seconds is None else max(0.0, seconds)):
                if key.fileobj is self._stopped:
                    raise _StoppedError
                ready |= events
        return ready


def channel_of(schema: str) -> str:
    """Return the channel of a schema; names that the server would truncate differ by a hash."""
    return f"penstock_{schema[:40]}_{zlib.crc32(schema.encode()):08x}"
