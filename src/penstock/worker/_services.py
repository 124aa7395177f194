"""The other services of a worker: delivery of callbacks and the ticker of the app's schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from penstock.app import App
from penstock.app.schedules import Ticker
from penstock.queue import Queue

__all__ = ["services"]


@contextmanager
def services(app: App, queue: Queue) -> Iterator[Callable[[], None]]:
    """Deliver callbacks and tick schedules while the block runs.

    Yield a function that waits a little for the callbacks of jobs that have just ended.
    """
    from penstock.callbacks import CallbackDelivery  # noqa: PLC0415  # brings HTTP along; only workers need it

    with ExitStack() as stack:
        delivery = stack.enter_context(CallbackDelivery(queue, app.callbacks))
        stack.enter_context(Ticker(queue, app.schedules))

        def finish() -> None:
            delivery.flush()

        yield finish
