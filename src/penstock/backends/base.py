"""The store contract: one atomic verb a method.

Every verb is one transaction. It either takes effect as a whole and is durable when it returns, or raises and changes
nothing. Every verb honours the ambient `cancel_scope`, raises QueueClosedError after `close()`, InvalidArgumentError
for arguments that are wrong in themselves, and BackendError when the store itself fails. All are thread-safe.

Words used below:
  slot      held while a job is RUNNING or CANCELLING.
  freed     `{assignee_id: count}` of the slots a call freed; empty if none.
  fence     `attempt=` of a reporting verb: the attempt that reports. If it is not the job's attempt, or that attempt
            is over, StaleAttemptError is raised and nothing changes. While the job is merely UNKNOWN_RETRY, its last
            attempt may still report. Without `attempt=` any caller may report.
  plural    one transaction, best effort: what is refused changes nothing and is raised after the commit as one
            ReportErrors group whose `freed` tells what the accepted part freed.
"""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import Self

from penstock.backends.contract.changing import Changing
from penstock.backends.contract.claiming import Claiming
from penstock.backends.contract.journal import Journal
from penstock.backends.contract.outbox import Outbox
from penstock.backends.contract.reading import Reading
from penstock.backends.contract.reports import Reports
from penstock.backends.contract.serving import Serving
from penstock.backends.contract.submission import Submission
from penstock.backends.contract.upkeep import Upkeep
from penstock.backends.contract.values import (
    CALLBACKS,
    UNSET,
    Awaited,
    Change,
    ClaimRequest,
    Delivery,
    Failure,
    JobEnd,
    Retention,
    Schedule,
    Taker,
    UnsetType,
)
from penstock.errors import InvalidArgumentError

__all__ = [
    "CALLBACKS",
    "UNSET",
    "Awaited",
    "Backend",
    "Change",
    "ClaimRequest",
    "Delivery",
    "Failure",
    "JobEnd",
    "Retention",
    "Schedule",
    "Taker",
    "UnsetType",
]


# The reference lists the verbs of the last base first.
class Backend(Serving, Upkeep, Outbox, Journal, Reading, Changing, Reports, Claiming, Submission):
    """A durable store of jobs and their journal."""

    def joined(self, connection: object) -> Backend:  # noqa: ARG002  # a store's
        """Return a backend whose submissions are part of the transaction open on the caller's own connection.

        The jobs are there if, and only if, that transaction is committed. Only `enqueue_job`, `enqueue_jobs`,
        `get_job`, `get_jobs` and `close` are possible; `close` leaves the connection alone.

        Args:
            connection: a connection or session that the store knows; one of asyncio's is wrapped in `Awaited`.

        Raises:
            InvalidArgumentError: the store has no such transactions, or the connection is not one of its database.
        """
        raise InvalidArgumentError(
            f"{self!r} cannot join a transaction: only PostgreSQL stores can", field="connection"
        )

    @abstractmethod
    def close(self) -> None:
        """Release all resources. Idempotent; other calls raise QueueClosedError from then on."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
