"""A reference store in plain dicts: the rules of the contract, read once more and written as simply as possible.

`ModelBackend` is slow, forgets everything at the end of the process, and shares no code with the real stores. It
passes the conformance suite, and the state machine of our tests compares the real stores with it after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from penstock.backends.base import Change
from penstock.testing.model._changing import ModelChanging
from penstock.testing.model._reading import ModelReading
from penstock.testing.model._upkeep import ModelUpkeep

__all__ = ["ModelBackend"]


class ModelBackend(ModelUpkeep, ModelReading, ModelChanging):
    """The contract in memory.

    Args:
        clock: where the time comes from.
        new_id: makes the ids of redriven copies.
        options: those of `penstock.open_backend`.
    """

    def listen(self, listener: Callable[[Sequence[Change]], None]) -> Callable[[], None]:
        self._check_usable()
        with self._lock:
            self._listeners.append(listener)

        def end() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return end

    def now(self) -> datetime:
        return self._clock.now()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
