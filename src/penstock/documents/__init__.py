"""FIFO queues per document: a view of the queue in which a key is (document, scope, branch)."""

from penstock.documents.driver import QueueDriver
from penstock.documents.queue import DocumentQueue

__all__ = ["DocumentQueue", "QueueDriver"]
