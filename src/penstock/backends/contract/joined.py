"""The verbs that join a transaction of the caller: submission, and reading what was submitted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self

from penstock.backends.options import StoreOptions
from penstock.errors import InvalidArgumentError
from penstock.job import Job

__all__ = ["JoinedBackend", "absent"]


class JoinedBackend(Protocol):
    """The verbs of a `Backend` that work in a transaction of the caller; `Backend.joined` returns one."""

    options: StoreOptions

    def now(self) -> datetime:
        """See `Backend.now`."""
        ...

    def enqueue_job(self, job: Job) -> str:
        """See `Backend.enqueue_job`."""
        ...

    def enqueue_jobs(self, jobs: Iterable[Job]) -> list[str]:
        """See `Backend.enqueue_jobs`."""
        ...

    def submit_jobs(self, jobs: Sequence[Job]) -> list[Job]:
        """See `Backend.submit_jobs`."""
        ...

    def get_job(self, job_id: str) -> Job:
        """See `Backend.get_job`; sees what the transaction has stored."""
        ...

    def get_jobs(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """See `Backend.get_jobs`; sees what the transaction has stored."""
        ...

    def close(self) -> None:
        """Refuse further calls; the caller's connection and transaction stay as they are."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _AbsentError(InvalidArgumentError, AttributeError):
    """An attribute that is missing here, and that says where it is; `hasattr` is false."""


def absent(joined: object, name: str, whole: type) -> AttributeError:
    """Return the error for an attribute that `joined` does not have, although `whole` may have it."""
    known = {*dir(whole), *getattr(whole, "__annotations__", ())}
    if name.startswith("_") or name not in known:
        return AttributeError(
            f"{type(joined).__name__!r} object has no attribute {name!r}", name=name, obj=joined
        )
    return _AbsentError(
        f"{name} is not possible inside a joined transaction: it only submits jobs; use the queue itself",
        field="connection",
    )
