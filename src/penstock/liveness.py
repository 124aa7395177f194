"""Liveness of a process: its owner row, the heartbeats that keep it, a new row after the store gave the old one up.

    process                                    store
    Owner()        ── open ──────────────────► owner row
    Heartbeat      ── beat, 3 per liveness ──► last beat           maintain: a beat older than the liveness →
                   ◄─ False: no such row ────                      row removed, jobs reclaimed
    beat() again   ── open ──────────────────► another owner row
    close()        ── close ─────────────────► row removed; the next maintain reclaims its jobs

The store decides which owners are alive; a process only knows when its last heartbeat was accepted. A process that was
frozen for too long has lost its row. What it claims under that row would be reclaimed at once, so it asks for `live_id`,
which sends a heartbeat first if the last one is old.

The dispatcher of a queue, the process registry and the driver of a fleet use these two classes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from penstock.backends import Backend
from penstock.backends.contract.overview import Intake
from penstock.backends.contract.runtime import PASSES_PER_LIVENESS
from penstock.service import Service

__all__ = ["BEATS_PER_LIVENESS", "Heartbeat", "Owner", "beat_seconds", "upkeep_seconds"]

logger = logging.getLogger("penstock")

#: Two heartbeats may fail before the store gives an owner up.
BEATS_PER_LIVENESS: Final = 3
#: A failed heartbeat is repeated at the latest after this time: after an outage of the store, owners have one liveness
#: period to beat.
RETRY_SECONDS: Final = 1.0
UPKEEP_SECONDS: Final = 2.0


class Owner:
    """The owner row of this process in a store.

    Registered when it is made.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._beaten = _clocks()
        #: The owner that claims name; another one after `beat` has returned False.
        self.id = backend.owners.open()

    def beat(self, intakes: Sequence[Intake] | None = None) -> bool:
        """Send a heartbeat; return whether the row was still there. If not, another one is registered.

        Args:
            intakes: as for `Owners.beat`.
        """
        if self.keep(intakes):
            return True
        now = _clocks()
        self.id = self._backend.owners.open()
        self._beaten = now
        logger.warning(
            "this process was silent for too long, and jobs that it held were reclaimed; it is registered anew as %s",
            self.id,
        )
        return False

    def keep(self, intakes: Sequence[Intake] | None = None) -> bool:
        """Send a heartbeat, and register no other row if this one is gone; return whether it was still there."""
        now = _clocks()
        published = {} if intakes is None else {"intakes": intakes}
        is_known = self._backend.owners.beat(self.id, **published)
        if is_known:
            self._beaten = now
        return is_known

    def live_id(self) -> str:
        """Return the id to claim under, after a heartbeat if the last one is old."""
        if self.needs_beat():
            self.beat()
        return self.id

    def needs_beat(self) -> bool:
        """Whether the last heartbeat is so old that the store may have given the owner up, or is about to."""
        longest = self._backend.options.liveness.total_seconds() * 2 / 3
        return any(now - then > longest for now, then in zip(_clocks(), self._beaten, strict=True))

    def close(self) -> None:
        """Remove the row; the next `maintain` reclaims the jobs that it still holds."""
        self._backend.owners.close(self.id)


class Heartbeat(Service):
    """Sends heartbeats from a thread of its own while it is started; a failed one is repeated within a second.

    Args:
        name: of the thread.
        backend: the store whose liveness sets the interval.
        beat: sends one.
        interval: returns the seconds between two heartbeats; a third of the store's liveness unless given. It is asked
            again after `wake`.
        label: what failed, for the log.
        log: where failures are logged.
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        beat: Callable[[], object],
        *,
        interval: Callable[[], float] | None = None,
        label: str = "the heartbeat",
        log: logging.Logger = logger,
    ) -> None:
        self._beat = beat
        self._interval = interval or partial(beat_seconds, backend)
        self._due_from = float("inf")
        super().__init__(
            name,
            self._beat_if_due,
            max_retry_seconds=lambda: min(RETRY_SECONDS, self._interval()),
            label=label,
            log=log,
        )

    def beat_now(self) -> None:
        """Send the next heartbeat at once."""
        self._due_from = float("-inf")
        self.wake()

    def _beat_if_due(self) -> float:
        now = time.monotonic()
        self._due_from = min(self._due_from, now)  # the first one comes after one interval
        left = self._due_from + self._interval() - now
        if left > 0:
            return left
        self._due_from = now
        try:
            self._beat()
        except BaseException:
            self._due_from = float("-inf")
            raise
        return self._interval()


def beat_seconds(backend: Backend) -> float:
    """Return the pause between two heartbeats of an owner."""
    return backend.options.liveness.total_seconds() / BEATS_PER_LIVENESS


def upkeep_seconds(backend: Backend) -> float:
    """Return the pause between two passes of upkeep of a store."""
    return min(UPKEEP_SECONDS, backend.options.liveness.total_seconds() / PASSES_PER_LIVENESS)


def _clocks() -> tuple[float, float]:
    """Return two clocks, one of which advances while the process or its machine sleeps."""
    return time.monotonic(), time.time()
