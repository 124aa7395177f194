"""Checks of an open store's files: whether they were replaced, and whether the log has grown."""

from __future__ import annotations

import os
import time
from typing import Final

from penstock.errors import BackendError

__all__ = ["LogGlance", "StoreFiles"]

LOG_CHECK_SECONDS: Final = 0.01
#: Two commits within one tick of the file system's clock look like one, so SQLite is asked at least this often.
LOG_TRUST_SECONDS: Final = 0.1


class StoreFiles:
    """The file of a store and its log. The log is checked less often, because it is rarely deleted alone."""

    def __init__(self, path: str) -> None:
        self._paths = (path, f"{path}-wal")
        self._identities: dict[str, tuple[int, int]] = {}  # as of the first check
        self._log_check_at = 0.0

    def check(self) -> None:
        """Raise BackendError if one was deleted or replaced. Called in every transaction that writes."""
        now = time.monotonic()
        is_log_due = now >= self._log_check_at
        for path in self._paths if is_log_due else self._paths[:1]:
            try:
                about = os.stat(path)  # noqa: PTH116  # on every commit: half the time of Path.stat
            except OSError as error:
                raise _lost(path) from error
            identity = (about.st_dev, about.st_ino)
            if self._identities.setdefault(path, identity) != identity:
                raise _lost(path)
        if is_log_due:
            self._log_check_at = now + LOG_CHECK_SECONDS


class LogGlance:
    """Whether a commit may have been made since the last check, by the log's time and size: 100 times cheaper than SQLite."""

    def __init__(self, path: str) -> None:
        self._path = f"{path}-wal"
        self._seen: tuple[int, int] | None = None
        self._ask_at = 0.0
        self._now: tuple[tuple[int, int] | None, float] = (None, 0.0)

    def is_news(self) -> bool:
        now = time.monotonic()
        try:
            about = os.stat(self._path)  # noqa: PTH116  # a hundred times a second
        except OSError:
            return True  # SQLite will report why
        seen = (about.st_mtime_ns, about.st_size)
        if seen == self._seen and now < self._ask_at:
            return False
        self._now = (seen, now + LOG_TRUST_SECONDS)
        return True

    def settle(self) -> None:
        """Record that SQLite was asked; until then `is_news` stays true."""
        self._seen, self._ask_at = self._now


def _lost(path: str) -> BackendError:
    return BackendError(
        f"{path} was deleted or replaced while the store was open; nothing is written any more: "
        "put it back, or open the store anew"
    )
