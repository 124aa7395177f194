"""Every error Penstock raises, in one tree.

    PenstockError
    ├── InvalidArgumentError (ValueError)   an argument is wrong in itself
    │   ├── PayloadTooLargeError            payload, result or checkpoint over the limit
    │   └── DependencyError                 unknown reference, cycle, too deep, too many
    ├── JobNotFoundError (LookupError)      no job has that id
    ├── JobExistsError                      the id is taken
    ├── InvalidTransitionError              the job's status does not allow the verb
    │   └── StaleAttemptError               the report comes from an attempt that is over
    ├── QueueBlockedError                   new jobs are refused while the queue is blocked
    ├── QueueFullError                      more waiting jobs than `max_pending`
    ├── QueueClosedError                    used after close
    ├── JobFailedError                      the job whose result was asked for did not succeed
    ├── OperationCancelledError             the ambient cancel scope is cancelled or expired
    ├── ProcessControlError                 a job's process cannot be started or does not stop
    └── BackendError                        the store is unavailable; `.retryable` says whether to try again

Each error has a stable `code` and carries its facts as attributes; the text is for people.
All of them survive pickling, because reports cross process borders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

__all__ = [
    "BackendError",
    "DependencyError",
    "InvalidArgumentError",
    "InvalidTransitionError",
    "JobExistsError",
    "JobFailedError",
    "JobNotFoundError",
    "OperationCancelledError",
    "PayloadTooLargeError",
    "PenstockError",
    "ProcessControlError",
    "QueueBlockedError",
    "QueueClosedError",
    "QueueFullError",
    "ReportErrors",
    "StaleAttemptError",
]

_SHOWN_VALUE_LIMIT = 120


def shown(value: object) -> str:
    """Return a short, safe text of a rejected value for an error message."""
    try:
        text = repr(value)
    except Exception:  # a broken __repr__ must not hide the error that is being reported
        text = f"<{type(value).__name__}>"
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) > _SHOWN_VALUE_LIMIT:
        text = f"{text[:_SHOWN_VALUE_LIMIT]}… ({len(text)} characters)"
    return text


class PenstockError(Exception):
    """Never raised itself: the root of all errors of this library.

    Attributes:
        code: a stable name in snake_case, for logs, interfaces and `if`s.
        message: the text.
    """

    code: ClassVar[str] = "penstock_error"

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self._facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), self.message, self._facts)


def rebuild(cls: type[PenstockError], message: str, facts: dict[str, Any]) -> PenstockError:
    error = cls.__new__(cls)
    PenstockError.__init__(error, message, **facts)
    return error


class InvalidArgumentError(PenstockError, ValueError):
    """An argument is wrong in itself; nothing was done.

    Attributes:
        field: the name of the argument or job field.
        value: what was given (may be None when it cannot be shown).
        failed: for a job of a batch, `(index in the batch, id, reason)` of it, else empty.
        enqueued_ids: always empty, because a batch is all or nothing.
    """

    code = "invalid_argument"
    field: str
    value: Any
    failed: tuple[tuple[int, Any, str], ...] = ()

    @property
    def enqueued_ids(self) -> list[str]:
        return []

    def __init__(self, message: str, *, field: str = "", value: Any = None, **facts: Any) -> None:
        super().__init__(message, field=field, value=value, **facts)

    def in_batch(self, index: int, job_id: object) -> Self:
        """Return this error with the job of a batch that it is about."""
        self.failed = self._facts["failed"] = ((index, job_id, self.message),)
        self.message = f"jobs[{index}] (id {shown(job_id)}): {self.message}"
        return self


class PayloadTooLargeError(InvalidArgumentError):
    """A payload, result or checkpoint is larger than the store's limit; nothing was done.

    Attributes:
        field: which of the three.
        size: its bytes.
        limit: the bytes allowed; option `max_payload`.
    """

    code = "payload_too_large"
    limit: int
    size: int

    def __init__(self, field: str, size: int, limit: int) -> None:
        super().__init__(
            f"{field} has {size} bytes; the limit is {limit} (option max_payload, at most 16 MiB)",
            field=field,
            size=size,
            limit=limit,
        )


class DependencyError(InvalidArgumentError):
    """A dependency is unknown, makes a cycle, or passes the limits of depth or number; nothing was stored.

    Attributes:
        reason: "unknown", "cycle", "depth" or "breadth".
        job_id: the job that has the dependency.
    """

    code = "invalid_dependency"
    reason: str
    job_id: str

    def __init__(self, message: str, *, reason: str, job_id: str, value: Any = None) -> None:
        super().__init__(message, field="after", value=value, reason=reason, job_id=job_id)


class JobNotFoundError(PenstockError, LookupError):
    """No job has this id.

    Attributes:
        job_id: the id.
    """

    code = "job_not_found"
    job_id: str

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job has the id {shown(job_id)}", job_id=job_id)


class JobExistsError(PenstockError):
    """A job with this id is already stored, or stands twice in the batch; nothing was stored.

    Attributes:
        job_id: the first id in conflict.
        failed: every conflict as `(index in the batch, id, reason)`.
        enqueued_ids: always empty, because a batch is all or nothing.
    """

    code = "job_exists"
    job_id: str
    failed: tuple[tuple[int, str, str], ...]

    @property
    def enqueued_ids(self) -> list[str]:
        return []

    def __init__(self, job_id: str, failed: Sequence[tuple[int, str, str]] = ()) -> None:
        reason = failed[0][2] if failed else "it is already stored"
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        super().__init__(
            f"job {shown(job_id)} cannot be added: {reason}{more}",
            job_id=job_id,
            failed=tuple(failed),
        )


class InvalidTransitionError(PenstockError):
    """The job's status does not allow the verb; nothing was changed.

    Attributes:
        job_id: the job.
        status: its status, as text.
        verb: what was asked for.
    """

    code = "invalid_transition"
    job_id: str
    status: str
    verb: str

    def __init__(self, message: str, *, job_id: str, status: str, verb: str, **facts: Any) -> None:
        super().__init__(message, job_id=job_id, status=status, verb=verb, **facts)


class StaleAttemptError(InvalidTransitionError):
    """The report names an attempt that no longer holds the job; nothing was changed. Drop the work.

    Attributes:
        job_id: the job.
        status: its status, as text.
        verb: what was asked for.
        attempt: the one that reported.
        current_attempt: the job's latest.
    """

    code = "stale_attempt"
    attempt: int
    current_attempt: int

    def __init__(self, *, job_id: str, status: str, verb: str, attempt: int, current_attempt: int) -> None:
        super().__init__(
            f"{verb} of job {shown(job_id)} by attempt {attempt} is refused: "
            f"the job is {status} and its attempt is {current_attempt}",
            job_id=job_id,
            status=status,
            verb=verb,
            attempt=attempt,
            current_attempt=current_attempt,
        )


class QueueBlockedError(PenstockError):
    """A new job was offered while the queue is blocked; it is refused until somebody unblocks it."""

    code = "queue_blocked"

    def __init__(self, message: str = "Queue is blocked") -> None:
        super().__init__(message)


class QueueFullError(PenstockError):
    """Accepting the jobs would leave more of them waiting than `max_pending` allows; none was stored.

    Attributes:
        limit: `max_pending`.
        waiting: how many wait now.
    """

    code = "queue_full"
    limit: int
    waiting: int

    def __init__(self, *, limit: int, waiting: int) -> None:
        super().__init__(
            f"{waiting} jobs are waiting and max_pending is {limit}; try again when workers have caught up",
            limit=limit,
            waiting=waiting,
        )


class QueueClosedError(PenstockError):
    """The queue, stream or store was closed before the call."""

    code = "queue_closed"

    def __init__(self, message: str = "the store is closed; open a new one") -> None:
        super().__init__(message)


class JobFailedError(PenstockError):
    """The job whose result was waited for ended without success.

    Attributes:
        job: the job as it ended, with `status`, `error_message`, `error_category` and `error_code`.
    """

    code = "job_failed"
    job: Any

    def __init__(self, message: str, *, job: Any) -> None:
        super().__init__(message, job=job)


class OperationCancelledError(PenstockError):
    """The `cancel_scope` around the call was cancelled or its time is over; the call did nothing.

    Attributes:
        timed_out: whether its time was over.
    """

    code = "operation_cancelled"
    timed_out: bool

    def __init__(self, message: str = "the operation was cancelled", *, timed_out: bool = False) -> None:
        super().__init__(message, timed_out=timed_out)


class ProcessControlError(PenstockError):
    """The process of a job could not be started, reached or stopped as asked."""

    code = "process_control"


class BackendError(PenstockError):
    """The store is not available, or it refused the call.

    Nothing that was acknowledged is lost. The call itself took no effect, unless `outcome_unknown` is true.

    Attributes:
        retryable: whether the same call may succeed later.
        outcome_unknown: whether the connection broke while committing and the store could not be asked again.
    """

    code = "backend_error"
    retryable: bool
    outcome_unknown: bool

    def __init__(self, message: str, *, retryable: bool = False, outcome_unknown: bool = False) -> None:
        super().__init__(message, retryable=retryable, outcome_unknown=outcome_unknown)


class ReportErrors(PenstockError, ExceptionGroup[Exception]):  # noqa: N818 - there are several
    """A plural verb refused some of its reports; the rest is committed.

    It is raised after the commit, and `except*` takes it apart.

    Attributes:
        exceptions: why each report was refused.
        freed: the slots the accepted part freed, by assignee.
    """

    code = "reports_refused"
    freed: dict[str, int]

    def __new__(
        cls, message: str, errors: Sequence[Exception], freed: Mapping[str, int] | None = None
    ) -> Self:
        group = super().__new__(cls, message, errors)
        group.freed = dict(freed or {})
        return group

    def __init__(self, *_: object) -> None:
        """Nothing more to do: a group is made by `__new__`."""

    def __str__(self) -> str:
        return ExceptionGroup.__str__(self)

    def derive(self, excs: Sequence[Any], /) -> ExceptionGroup[Any]:
        return ReportErrors(self.message, excs, self.freed)

    def __reduce__(self) -> tuple[Any, ...]:
        return ReportErrors, (self.message, list(self.exceptions), self.freed)
