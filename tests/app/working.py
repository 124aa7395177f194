"""A worker on a thread of the test's, and ways to wait for what it does."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock import App, Worker

PATIENCE = 30.0


@contextmanager
def working(app: App, **settings: Any) -> Iterator[Worker]:
    """Run a worker beside the block; it is stopped at its end."""
    settings.setdefault("isolation", "thread")
    worker = Worker(app, **settings)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the worker does not stop"
    assert failures == []


def until(is_so: Callable[[], Any], what: str = "it") -> Any:
    """Wait until something is so; it is looked at often."""
    deadline = time.monotonic() + PATIENCE
    pause = threading.Event()
    while not (found := is_so()):
        assert time.monotonic() < deadline, f"{what} does not happen"
        pause.wait(0.01)
    return found
