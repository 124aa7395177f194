"""SQLite's errors become ours, here and nowhere else."""

from __future__ import annotations

import apsw

from penstock.errors import BackendError

__all__ = ["translate"]


def translate(error: apsw.Error, path: str) -> BackendError:
    """Return the BackendError that says what happened and whether to try again."""
    match error:
        case apsw.BusyError() | apsw.LockedError() | apsw.ProtocolError():
            return BackendError(
                f"the store {path} is locked by another process and stayed so; try again", retryable=True
            )
        case apsw.FullError():
            return BackendError(
                f"there is no room left on the disk of {path}; free some and try again", retryable=True
            )
        case apsw.IOError():
            return BackendError(
                f"reading or writing {path} failed ({error}); check the disk, then try again", retryable=True
            )
        case apsw.NoMemError():
            return BackendError("SQLite ran out of memory; try again with less at once", retryable=True)
        case apsw.ReadOnlyError():
            return BackendError(f"{path} cannot be written to; check its permissions and its folder's")
        case apsw.CantOpenError():
            return BackendError(
                f"{path} cannot be opened; check that its folder exists and may be written to"
            )
        case apsw.CorruptError() | apsw.NotADBError():
            return BackendError(
                f"{path} is damaged or not a Penstock store ({error}); restore it from a backup"
            )
        case _:
            return BackendError(f"SQLite refused the operation on {path}: {error}")
