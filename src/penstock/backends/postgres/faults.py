"""What psycopg raises, turned into our errors in one place."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import psycopg
from psycopg import errors

from penstock.errors import BackendError, redacted

__all__ = ["Fault", "OutOfOrderError", "classify", "is_disconnect", "lost_at_commit", "translate"]

#: Another transaction won; the same work may succeed at once.
_TRANSIENT = frozenset({"40001", "40P01"})
#: The server ended the session, is starting or stopping.
_ENDED = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
#: The server refuses to write: a standby, or told to by `default_transaction_read_only`.
_READ_ONLY = "25006"
#: The statement was cancelled: by `statement_timeout`, or because we asked for it.
CANCELLED = "57014"
#: What PgBouncer says to the settings that our sessions begin with.
POOLED = "unsupported startup parameter"


class OutOfOrderError(errors.SerializationFailure):
    """A transaction that holds locks needs keys that another one holds: waiting for them could deadlock."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.keys = frozenset(keys)
        super().__init__("a key is locked that must be locked before others")


class Fault(Enum):
    """What an error means for the work that met it; `retries` says what follows from that."""

    #: The work lost a race (deadlock, serialisation) and may be run again at once.
    TRANSIENT = 1
    #: The connection is gone or useless, so that a new one may do better.
    DISCONNECT = 2
    #: The server refuses to write at all, so that nothing was written; after a failover another one may not.
    READ_ONLY = 3
    #: Whether the work was committed is not known yet.
    UNKNOWN = 4
    #: Nothing was changed, and another attempt would end the same way.
    REFUSED = 5


def classify(error: psycopg.Error) -> Fault:
    """Return what an error of the driver means. No error alone is UNKNOWN: that depends on when it came."""
    if error.sqlstate in _TRANSIENT:
        return Fault.TRANSIENT
    if error.sqlstate == _READ_ONLY:
        return Fault.READ_ONLY
    return Fault.DISCONNECT if is_disconnect(error) else Fault.REFUSED


def is_disconnect(error: psycopg.Error) -> bool:
    """Whether the connection is gone or useless, so that a new one may do better."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state in _ENDED or state.startswith("08")


def translate(error: psycopg.Error) -> BackendError:
    """Return our error for one of the driver's. What it says is what an operator can act on."""
    state = error.sqlstate or ""
    detail = _text(error)
    if state == "53100":
        return BackendError(
            f"PostgreSQL has no disk space left: free some, then try again ({detail})", retryable=True
        )
    if state.startswith("53"):
        return BackendError(
            f"PostgreSQL is out of resources (connections, memory or locks): try again later ({detail})",
            retryable=True,
        )
    if state in ("55P03", CANCELLED):
        return BackendError(
            f"PostgreSQL did not finish in time, something holds a lock or is slow: try again ({detail})",
            retryable=True,
        )
    if state == _READ_ONLY:
        return BackendError(
            "PostgreSQL is read-only (a standby, or default_transaction_read_only is on), nothing was written: "
            f"try again after a failover, or connect to the primary ({detail})",
            retryable=True,
        )
    if state in _TRANSIENT:
        return BackendError(f"too many transactions collide: try again ({detail})", retryable=True)
    if POOLED in detail:
        return BackendError(
            f"the url leads to a pooler such as PgBouncer: open the store with pgbouncer=True ({detail})"
        )
    if state.startswith("28"):
        return BackendError(f"PostgreSQL refuses the login: check user and password ({detail})")
    if state in ("3D000", "3F000", "42P01"):
        return BackendError(
            f"the database or its tables are missing: check the url, run penstock migrate up ({detail})"
        )
    if state == "42501":
        return BackendError(f"the database user lacks a privilege: grant it ({detail})")
    if state in ("XX001", "XX002", "58030"):
        return BackendError(f"PostgreSQL reports damaged or unreadable data: look at the server ({detail})")
    if is_disconnect(error):
        return BackendError(f"PostgreSQL cannot be reached: check that it runs ({detail})", retryable=True)
    return BackendError(f"PostgreSQL refused the statement ({state or type(error).__name__}: {detail})")


def lost_at_commit(error: BaseException) -> BackendError:
    """Return the error for a commit whose fate could not be learned."""
    return BackendError(
        f"the connection broke while committing and PostgreSQL could not be asked what became of it ({error}): "
        "read the job before trying again",
        retryable=True,
        outcome_unknown=True,
    )


def _text(error: psycopg.Error) -> str:
    if isinstance(error, errors.DatabaseError) and error.diag.message_primary:
        return redacted(error.diag.message_primary)
    return redacted(" ".join(str(error).split())) or type(error).__name__
