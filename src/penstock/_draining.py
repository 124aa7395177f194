from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final

from penstock.errors import PenstockError
from penstock.events import run_to_end

__all__ = ["DrainWatch"]

logger = logging.getLogger("penstock")

DRAIN_LOOK_SECONDS: Final = 0.1


class DrainWatch:
    """Calls somebody once, as soon as a queue is drained."""

    def __init__(self) -> None:
        self._dropped: threading.Event | None = None

    def start(self, is_drained: Callable[[], bool], on_drained: Callable[[], object]) -> None:
        """Watch from now on, in place of whoever was watching; call at once if it is drained already."""
        self.drop()
        if is_drained():
            run_to_end(on_drained())
            return
        dropped = self._dropped = threading.Event()

        def watch() -> None:
            while not dropped.wait(DRAIN_LOOK_SECONDS):
                with contextlib.suppress(PenstockError):
                    if is_drained():
                        if not dropped.is_set():
                            dropped.set()
                            _call(on_drained)
                        return

        threading.Thread(target=watch, name="penstock-drain", daemon=True).start()

    def drop(self) -> None:
        """Call nobody."""
        dropped, self._dropped = self._dropped, None
        if dropped is not None:
            dropped.set()


def _call(on_drained: Callable[[], object]) -> None:
    try:
        run_to_end(on_drained())
    except Exception:  # nobody is there to catch it
        logger.exception("the callback of a drained queue failed")
