"""Name resolution with a timeout: the system's own resolver cannot be interrupted and may take half a minute."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final

from penstock.callbacks.addresses import Resolver

__all__ = ["TimedResolver"]

#: Resolutions at a time per delivery at a time: one that timed out still occupies a thread.
_PER_DELIVERY: Final = 4

Found = Sequence[tuple[Any, Any, Any, Any, tuple[Any, ...]]]


class TimedResolver:
    """Calls a resolver on threads of its own, a limited number at a time.

    Args:
        resolver: what is called.
        deliveries: how many deliveries may resolve names at a time.
    """

    def __init__(self, resolver: Resolver, deliveries: int) -> None:
        self._resolver = resolver
        self._max = _PER_DELIVERY * deliveries
        self._free = threading.BoundedSemaphore(self._max)

    def within(self, seconds: float) -> Resolver:
        """Return a resolver that raises TimeoutError after so many seconds."""

        def resolve(host: str, port: int, **options: Any) -> Found:
            if not self._free.acquire(blocking=False):
                raise OSError(f"{self._max} resolutions of names have not been answered yet")
            answers: SimpleQueue[Found | Exception] = SimpleQueue()

            def ask() -> None:
                try:
                    answers.put(self._resolver(host, port, **options))
                except Exception as error:
                    answers.put(error)
                finally:
                    self._free.release()

            # Not a service: one call, which cannot be interrupted, and which the process does not wait for.
            threading.Thread(target=ask, name="penstock-resolve", daemon=True).start()
            try:
                answer = answers.get(timeout=seconds)
            except Empty:
                raise TimeoutError(f"the name {host} was not resolved within {seconds:g} s") from None
            if isinstance(answer, Exception):
                raise answer
            return answer

        return resolve
