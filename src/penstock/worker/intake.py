"""The intake of a worker: moves what its stream delivers into the backlog, and opens the stream again after an outage."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.errors import BackendError, QueueClosedError
from penstock.logs import retry_level
from penstock.queue.stream import JobStream
from penstock.service import Service
from penstock.worker.slots import Backlog

__all__ = ["Intake"]

logger = logging.getLogger("penstock.worker")


class Intake:
    """Receives jobs from a stream.

    Args:
        open_stream: opens a stream for the worker.
        backlog: where jobs are put.
        on_fatal: called with an error after which no more jobs will come.
        on_open: called when the first stream is open.
    """

    def __init__(
        self,
        open_stream: Callable[[], JobStream],
        backlog: Backlog,
        on_fatal: Callable[[BaseException], None],
        on_open: Callable[[], None] = lambda: None,
    ) -> None:
        self._open_stream = open_stream
        self._backlog = backlog
        self._on_fatal = on_fatal
        self._on_open = on_open
        self._is_broken = False
        #: The stream that is open, or was last; None before the first.
        self.stream: JobStream | None = None
        #: How many jobs were received.
        self.received = 0
        self._service = Service(
            "intake",
            self._receive,
            label="receiving jobs from the store",
            log=logger,
        )

    def start(self) -> None:
        """Start the thread, which opens the first stream as soon as the store answers."""
        self._service.start()

    def stop(self) -> None:
        """Close the stream and end the thread; jobs that were not received are released.

        If the store does not answer, they are released later, or reclaimed when this process is gone.
        """
        self._service.stop(wait=False)
        self._close_stream()
        self._service.join()

    def _close_stream(self) -> None:
        if self.stream is None:
            return
        try:
            self.stream.close()
        except BackendError as error:
            logger.log(retry_level(error), "jobs that were not received are not released yet: %s", error)

    def _receive(self) -> None:
        """Receive from one stream until it ends; if the store was away for too long, the service calls again."""
        try:
            for batch in self._current_stream():
                self.received += len(batch)
                self._backlog.put(batch)
        except BackendError as error:
            if error.retryable or self._is_broken:
                self._is_broken = True
                raise
            self._fail(error)
        except BaseException as error:  # whatever ended it, the worker must stop
            self._fail(error)
        else:
            if not self._service.is_stopping:  # the queue was closed while the worker runs
                self._fail(QueueClosedError("the queue of the worker was closed"))

    def _current_stream(self) -> JobStream:
        """Return the open stream, or a new one at first and if the last one broke."""
        stream = self.stream
        if stream is None or self._is_broken:
            is_first = stream is None
            stream = self._open_stream()
            self.stream, self._is_broken = stream, False
            if is_first:
                self._on_open()
            if self._service.is_stopping:
                stream.close()
        return stream

    def _fail(self, error: BaseException) -> None:
        self._service.retire()
        self._on_fatal(error)
