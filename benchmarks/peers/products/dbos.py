"""DBOS: workflows on a queue of its own."""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call, untyped-decorator"
# ruff: noqa: PLC0415  # the product is imported in its own environment only
from __future__ import annotations

import logging
import signal
import sys
import threading
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.peers.handler import note
from benchmarks.peers.product import Product, arguments

QUEUE: Final = "bench"


class Dbos(Product):
    name = "DBOS"
    stores = ("sqlite", "postgres")
    package = "dbos"
    guarantees = "input and output of each workflow are kept; recovered when its process starts again"
    settings = "polls every 20 ms"
    has_bulk = False
    drain_jobs = 3_000

    def open(self) -> None:
        self._launch(listens=False)

    def close(self) -> None:
        from dbos import DBOS

        DBOS.destroy()

    def submit(self, number: int) -> object:
        from dbos import DBOS

        return DBOS.enqueue_workflow(QUEUE, self._workflow, **arguments(number))

    def count_left(self) -> int:
        from dbos import DBOS

        return len(DBOS.list_queued_workflows(queue_name=QUEUE, load_input=False))

    def work(self, workload: str) -> None:  # noqa: ARG002  # the same for all
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        self._launch(listens=True)
        threading.Event().wait()

    def _launch(self, *, listens: bool) -> None:
        from dbos import DBOS

        logging.getLogger("dbos").setLevel(logging.ERROR)
        config: Any = {
            "name": "bench",
            "system_database_url": self._url,
            "application_version": "1",
            "log_level": "ERROR",
            "run_admin_server": False,
        }
        DBOS(config=config)
        self._workflow = DBOS.workflow(name="bench")(note)
        DBOS.listen_queues([QUEUE] if listens else ["none"])
        DBOS.launch()
        DBOS.register_queue(QUEUE, polling_interval_sec=0.02)

    @property
    def _url(self) -> str:
        if self.store == "sqlite":
            return f"sqlite:///{self.folder / 'dbos.db'}"
        return urlsplit(self.place)._replace(scheme="postgresql+psycopg").geturl()


PRODUCT = Dbos
