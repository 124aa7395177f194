"""Every verb of the contract, once, over the primitives of a store.

A verb checks its arguments, then hands the store a piece of work: find the rows, decide, save, settle what follows. What
is decided per row stands in `_decisions`; what follows from it in `_settlement`; new jobs in `_submission`. The modules of
this package have one subject each, the same as those of the contract.
"""

from __future__ import annotations

import os
import threading

from penstock.backends._options import StoreOptions
from penstock.backends._store import Store
from penstock.backends.engine.claiming import PROMOTED_PER_CLAIM
from penstock.backends.engine.outbox import OutboxVerbs
from penstock.backends.engine.reading import ReadVerbs
from penstock.backends.engine.reports import ReportVerbs
from penstock.backends.engine.running import RunningVerbs
from penstock.backends.engine.serving import ServingVerbs
from penstock.backends.engine.submission import SubmissionVerbs
from penstock.backends.engine.upkeep import ClockWatch, UpkeepVerbs

__all__ = ["PROMOTED_PER_CLAIM", "EngineBackend"]


class EngineBackend(
    SubmissionVerbs, ServingVerbs, ReportVerbs, RunningVerbs, ReadVerbs, UpkeepVerbs, OutboxVerbs
):
    """The contract over a `Store`."""

    def __init__(self, store: Store, options: StoreOptions, *, has_own_clock: bool) -> None:
        super().__init__(store, options)
        self._reclaiming = ClockWatch(enabled=not has_own_clock)
        self._listeners = {}
        self._listener_lock = threading.Lock()
        self._taker = None
        self._pid = os.getpid()

    def close(self) -> None:
        self._store.close()
