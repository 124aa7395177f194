"""A nudge from process to process by NOTIFY: something was committed that streams want to know of, look now.

Nothing depends on it: a nudge that is lost costs the time until the next look (`poll_seconds`).

NOTIFY takes a lock of the whole database until its transaction has ended, so it is never part of a transaction of ours
that writes: it would make commits wait for each other's flush. (In a transaction of the caller's there is no other way.) It follows the commit, on the same connection, and it is rare:
the first after a pause goes out at once; what comes right behind it shares one nudge, sent by a thread a little later, and
the longer that goes on, the later. Whoever listens holds a shared advisory lock, so that where nobody does no NOTIFY is
sent, and only now and then is it asked whether somebody has come.
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

from penstock.backends.postgres import fast
from penstock.backends.postgres.connection import BoundedConnection

__all__ = ["Hints", "Listener", "Sender"]

logger = logging.getLogger("penstock")
RV = TypeVar("RV")

#: Second part of the advisory lock that listeners share.
_LISTENING: Final = 3
_FIRST_GAP: Final = 0.005
_LONGEST_GAP: Final = 0.05
_ANSWER_SECONDS: Final = 10.0
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
# Not epoll: it lives in the kernel, and a fork would share it.
_Selector: Final[Any] = getattr(selectors, "PollSelector", selectors.SelectSelector)


class Hints:
    """The nudges of one store object: those it sends, and those it waits for while somebody watches.

    Args:
        conninfo: how the listener connects; None where it cannot (a pooler in transaction mode).
        run: runs something on a connection of the pool.
    """

    def __init__(
        self,
        schema: str,
        lock_class: int,
        conninfo: str | None,
        run: Callable[[Callable[[BoundedConnection], None]], object],
    ) -> None:
        self._conninfo = conninfo
        self._channel = channel_of(schema)
        self._lock_class = lock_class
        self._run = run
        self.reset()

    def reset(self) -> None:
        """Begin anew: at first, and in a forked child, whose threads stayed with the parent."""
        self._lock = threading.Lock()
        self._watchers: dict[object, Callable[[], None]] = {}
        self._listener: Listener | None = None
        # By this name the listener knows the nudges of its own store object.
        self._name = os.urandom(8).hex()
        self.sender = Sender(
            f"SELECT pg_notify('{self._channel}', '{self._name}')"
            f" WHERE NOT pg_try_advisory_xact_lock({self._lock_class}, {_LISTENING})",
            self._run,
        )

    @property
    def within_transaction(self) -> str:
        """An expression that tells listeners, this process's own too, when the transaction it stands in is committed.

        Whether somebody listens is asked with a lock that is given back at once: held until the caller's commit it
        would keep listeners from coming.
        """
        lock = f"({self._lock_class}, {_LISTENING})"
        return (
            f"CASE WHEN pg_try_advisory_lock{lock} THEN pg_advisory_unlock{lock}"
            f" ELSE pg_notify('{self._channel}', 'joined') IS NULL END"
        )

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called for every nudge of others; returns a function that ends it."""
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
                    self._tell,
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
        """End both threads; a nudge that is due goes out first."""
        self.sender.close()
        with self._lock:
            self._watchers.clear()
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _tell(self) -> None:
        for callback in list(self._watchers.values()):
            try:
                callback()
            except Exception:  # one watcher's fault must not silence the others
                logger.exception("a watcher failed")


class Sender:
    """Sends nudges, as few as will do."""

    def __init__(self, command: str, run: Callable[[Callable[[BoundedConnection], None]], object]) -> None:
        self._command = command.encode()
        self._run = run
        self._changed = threading.Condition(threading.Lock())
        self._gap = _FIRST_GAP
        self._next = float("-inf")
        self._is_due = False
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def nudge(self, connection: BoundedConnection) -> None:
        """Tell others of what was just committed on this idle connection: now, or soon if they were told just now."""
        with self._changed:
            if self._is_due or self._is_closed:
                return
            now = time.monotonic()
            if now < self._next or connection.closed:
                self._is_due = True
                self._start()
                return
            self._gap = _FIRST_GAP
            self._next = now + self._gap
        with contextlib.suppress(psycopg.Error):
            self._send(connection)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._follow, name="penstock-nudge", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _follow(self) -> None:
        """Send what could not be sent at once."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_due or self._is_closed)
                self._changed.wait_for(
                    lambda: self._is_closed, timeout=max(0.0, self._next - time.monotonic())
                )
                if not self._is_due:
                    return
                self._is_due = False
                self._gap = min(2 * self._gap, _LONGEST_GAP)
                self._next = time.monotonic() + self._gap
            try:
                self._run(self._send)
            except Exception as error:
                logger.debug("a hint was not sent: %s", error)

    def _send(self, connection: BoundedConnection) -> None:
        is_heard = fast.command(connection, self._command).ntuples > 0
        if not is_heard:
            with self._changed:
                self._gap = _LONGEST_GAP
                self._next = time.monotonic() + self._gap


class _StoppedError(Exception):
    """The listener is to end."""


class Listener:
    """A connection that does nothing but listen, and the thread that waits on it.

    When the connection breaks it is opened again, and whoever watches is told to look: nudges were lost meanwhile.
    """

    def __init__(self, conninfo: str, commands: str, own_name: str, callback: Callable[[], None]) -> None:
        self._conninfo = conninfo
        self._commands = commands.encode()
        self._own_name = own_name.encode()
        self._callback = callback
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="penstock-listen", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and its connection, wherever it is waiting."""
        with contextlib.suppress(OSError):
            self._stop.shutdown(socket.SHUT_RDWR)  # closing is not enough while a forked child has it too
        self._stop.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        failures = 0
        with self._stopped, contextlib.suppress(_StoppedError):
            while True:
                connection: pq.abc.PGconn | None = None
                try:
                    connection = self._connect()
                    failures = 0
                    self._callback()
                    self._hear(connection)
                except (psycopg.Error, OSError) as error:
                    if failures == 1:  # a restart is not worth a word
                        logger.warning(
                            "no hints from other processes, they are looked for instead: %s", error
                        )
                    failures += 1
                finally:
                    if connection is not None:
                        connection.finish()
                pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**failures)
                self._wait(None, 0, pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret

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
                if result.status not in fast.DONE:
                    raise psycopg.errors.error_from_result(result)
        except BaseException:
            connection.finish()
            raise
        return connection

    def _hear(self, connection: pq.abc.PGconn) -> None:
        while True:
            heard = self._through(generators.notifies(connection), connection)
            if any(each.extra != self._own_name for each in heard):
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
    """Return the channel of a schema, one of its own also where names are too long for the server."""
    return f"penstock_{schema[:40]}_{zlib.crc32(schema.encode()):08x}"
