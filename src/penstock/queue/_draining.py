"""Calls back once, as soon as a queue is drained."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from penstock.events import run_to_end
from penstock.service import Service

__all__ = ["DrainWatch"]

logger = logging.getLogger("penstock")

POLL_SECONDS: Final = 0.1


class DrainWatch:
    """Polls whether a queue is drained, and calls back once."""

    def __init__(self) -> None:
        self._service: Service | None = None

    def start(self, is_drained: Callable[[], bool], on_drained: Callable[[], object]) -> None:
        """Watch from now on, in place of any watch before; call at once if the queue is drained already."""
        self.drop()
        if is_drained():
            run_to_end(on_drained())
            return

        def poll() -> None:
            if is_drained() and not service.is_stopping:
                service.retire()
                _call(on_drained)

        service = self._service = Service(
            "drain",
            poll,
            seconds=POLL_SECONDS,
            begins_with_pause=True,
            label="asking whether the queue is drained",
        )
        service.start()

    def drop(self) -> None:
        """End the watch without a call."""
        service, self._service = self._service, None
        if service is not None:
            service.stop(wait=False)


def _call(on_drained: Callable[[], object]) -> None:
    try:
        run_to_end(on_drained())
    except Exception:  # there is no caller to raise it to
        logger.exception("the callback of a drained queue failed")
