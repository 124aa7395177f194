"""Whether the files of an open store are still the ones that were opened: what is written to others would be lost."""

from __future__ import annotations

import os
import time
from typing import Final

from penstock.errors import BackendError

__all__ = ["StoreFiles"]

LOG_CHECK_SECONDS: Final = 0.01


class StoreFiles:
    """The file of a store and its log. The log is looked at seldom: who deletes it alone has to know its name."""

    def __init__(self, path: str) -> None:
        self._file = _File(path)
        self._log = _File(f"{path}-wal")
        self._log_check_at = 0.0

    def check(self) -> None:
        """Raise BackendError if one was deleted or replaced. Called in every transaction that writes."""
        self._file.check()
        now = time.monotonic()
        if now >= self._log_check_at:
            self._log.check()
            self._log_check_at = now + LOG_CHECK_SECONDS


class _File:
    __slots__ = ("_identity", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None  # not known before the first look

    def check(self) -> None:
        try:
            about = os.stat(self._path)  # noqa: PTH116  # on every commit: half the time of Path.stat
        except OSError as error:
            raise self._lost() from error
        identity = (about.st_dev, about.st_ino)
        if identity != self._identity:
            if self._identity is not None:
                raise self._lost()
            self._identity = identity

    def _lost(self) -> BackendError:
        return BackendError(
            f"{self._path} was deleted or replaced while the store was open; nothing is written any more: "
            "put it back, or open the store anew"
        )
