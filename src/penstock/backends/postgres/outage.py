"""Whether the server can be reached, logged once when it is lost and once when it is back."""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime

from penstock.errors import BackendError

__all__ = ["Outage"]

logger = logging.getLogger("penstock")


class Outage:
    """The reachability of one store, as seen by all connections of one store object.

    A store that was never reached is not lost: the call that opens it gets the error.

    Args:
        store: what to call it in the log.

    Attributes:
        was_reached: whether a connection was ever opened.
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self.was_reached = False
        self.reset()

    def reset(self) -> None:
        """Begin anew: at first, and in a forked child."""
        self._lock = threading.Lock()
        self._since: tuple[str, float] | None = None

    @property
    def is_logged(self) -> bool:
        """Whether the log says that the store is unreachable."""
        return self._since is not None

    def annotate(self, failure: BackendError) -> BackendError:
        """Return an error about a lost connection, with the fact whether the log already says so."""
        failure.is_logged = self.is_logged
        return failure

    def failed(self, error: Exception) -> None:
        """Note that a connection could not be opened."""
        with self._lock:
            if not self.was_reached or self._since is not None:
                return
            self._since = (datetime.now().astimezone().isoformat(timespec="seconds"), time.monotonic())
            since = self._since[0]
        logger.warning(
            "the store %s is unreachable since %s: %s",
            self._store,
            since,
            " ".join(str(error).split()),
            extra={"event": "store.unreachable"},
        )

    def worked(self) -> None:
        """Note that a connection was opened."""
        self.was_reached = True
        if self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            seconds = time.monotonic() - since[1]
            logger.warning(
                "the store %s is back after %.1f s",
                self._store,
                seconds,
                extra={"event": "store.back", "seconds": round(seconds, 3)},
            )
