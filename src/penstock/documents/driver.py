"""Recovery at the start of a process: jobs of lost processes are reclaimed into their queues."""

from __future__ import annotations

from penstock.documents.queue import DocumentQueue
from penstock.errors import invalid
from penstock.queue import Queue

__all__ = ["QueueDriver"]


class QueueDriver:
    """Reclaims the jobs of a document queue after a crash. The store itself keeps the journal."""

    def __init__(self, queue: DocumentQueue | Queue) -> None:
        if not isinstance(queue, DocumentQueue | Queue):
            raise invalid("queue", "a DocumentQueue, or the Queue of one", queue)
        self._queue = queue.queue if isinstance(queue, DocumentQueue) else queue

    def start(self) -> int:
        """Reclaim the jobs of lost processes in order, and emit their events again; return how many there were.

        Jobs of living processes are left alone. A process of another machine is taken for lost once it has been silent
        for `liveness` while the store could be written: after a gap in the store's upkeep its jobs come back one such
        period later, by themselves. Calling it again does nothing more.
        """
        return self._queue.maintain().lost
