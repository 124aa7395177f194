"""Look-ups of names within a time: the system's own resolver cannot be interrupted and may take half a minute."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final

from penstock.callbacks.addresses import Resolver

__all__ = ["LookUps"]

#: Look-ups at a time for each delivery at a time: those that nobody waits for any more still occupy a thread.
_A_DELIVERY: Final = 4

Found = Sequence[tuple[Any, Any, Any, Any, tuple[Any, ...]]]


class LookUps:
    """Asks a resolver on threads of its own, so many at a time at the most.

    Args:
        resolver: what is asked.
        deliveries: how many may ask at a time.
    """

    def __init__(self, resolver: Resolver, deliveries: int) -> None:
        self._resolver = resolver
        self._most = _A_DELIVERY * deliveries
        self._places = threading.BoundedSemaphore(self._most)

    def within(self, seconds: float) -> Resolver:
        """Return a resolver that raises TimeoutError after so many seconds."""

        def resolve(host: str, port: int, **options: Any) -> Found:
            if not self._places.acquire(blocking=False):
                raise OSError(f"{self._most} look-ups of names have not been answered yet")
            answers: SimpleQueue[Found | Exception] = SimpleQueue()

            def ask() -> None:
                try:
                    answers.put(self._resolver(host, port, **options))
                except Exception as error:
                    answers.put(error)
                finally:
                    self._places.release()

            threading.Thread(target=ask, name="penstock-look-up", daemon=True).start()
            try:
                answer = answers.get(timeout=seconds)
            except Empty:
                raise TimeoutError(f"the name {host} was not resolved within {seconds:g} s") from None
            if isinstance(answer, Exception):
                raise answer
            return answer

        return resolve
