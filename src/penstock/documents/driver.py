"""What must happen when a process starts: jobs that a dead one left open go back to their queues."""

from __future__ import annotations

from penstock.documents.queue import DocumentQueue
from penstock.errors import InvalidArgumentError, shown
from penstock.queue import Queue

__all__ = ["QueueDriver"]


class QueueDriver:
    """Brings a document queue back to work after a crash. The journal itself is the store's."""

    def __init__(self, queue: DocumentQueue | Queue) -> None:
        if not isinstance(queue, DocumentQueue | Queue):
            raise InvalidArgumentError(
                f"queue must be a DocumentQueue, or the Queue of one, got {shown(queue)}",
                field="queue",
                value=queue,
            )
        self._queue = queue.queue if isinstance(queue, DocumentQueue) else queue

    def start(self) -> int:
        """Put back, in order, what a dead process left open, and announce it again; return how many jobs that were.

        Jobs of living processes are left alone. A process of another machine is taken for dead once it has been silent
        for `liveness`. Calling it again does nothing more.
        """
        return self._queue.maintain().lost
