"""Whether a store answers, logged once when it stops and once when it is back."""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime, timedelta

from penstock.errors import BackendError

__all__ = ["Outage"]

logger = logging.getLogger("penstock")


class Outage:
    """Whether one store answers, as seen by all connections of one store object.

    A store that was never reached is not lost: the call that opens it gets the error.

    Args:
        store: what to call it in the log.
        state: what it is while it does not answer, in the log.

    Attributes:
        was_reached: whether the store was ever opened.
    """

    def __init__(self, store: str, state: str = "is unreachable") -> None:
        self._store = store
        self._state = state
        self.was_reached = False
        self.reset()

    def reset(self) -> None:
        """Begin anew: at first, and in a forked child."""
        self._lock = threading.Lock()
        self._since: tuple[str, float] | None = None

    @property
    def is_logged(self) -> bool:
        """Whether the log says that the store does not answer."""
        return self._since is not None

    def annotate(self, failure: BackendError) -> BackendError:
        """Return an error about a store that does not answer, with the fact whether the log already says so."""
        failure.is_logged = self.is_logged
        return failure

    def failed(self, error: Exception | str, waited: float = 0.0) -> None:
        """Note that the store could not be reached.

        Args:
            error: why.
            waited: for how many seconds it has not answered already.
        """
        with self._lock:
            if not self.was_reached or self._since is not None:
                return
            began = datetime.now().astimezone() - timedelta(seconds=waited)
            since = began.isoformat(timespec="seconds")
            self._since = (since, time.monotonic() - waited)
        logger.warning(
            "the store %s %s since %s: %s",
            self._store,
            self._state,
            since,
            " ".join(str(error).split()),
            extra={"event": "store.unreachable"},
        )

    def worked(self) -> None:
        """Note that the store has answered."""
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
