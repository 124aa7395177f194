"""A worker on a thread of the test's, and ways to wait for what it does."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.waiting import PATIENCE

from penstock import App, Worker


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
