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

import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Self

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
_SHOWN_OTHERS = 20
#: Characters, or bits of an integer, above which a value is not written out as a whole.
_LARGE_VALUE = 1000
_SECRETS: Final = (
    # Schemes are short; an unbounded pattern would be tried at every letter of a long word, to its end.
    # Everything from the scheme to the last "@": a malformed url may have several, and slashes between.
    (re.compile(r"([A-Za-z][\w+.-]{0,30}://).*@", re.DOTALL), r"\1***@"),
    # Without an "@" what looks like a port may be a password, unless it is a number.
    (
        re.compile(
            r"([A-Za-z][\w+.-]{0,30}://[^\s/?:@\[\]'\"]*:)(?!\d+(?:[/?,'\"\s]|$)|[/?,'\"\s]|$).*", re.DOTALL
        ),
        r"\1***",
    ),
    # To the end: an unquoted value may hold spaces and ampersands.
    (re.compile(r"(\b(?:\w*password|passwd|pwd)\s*[=:]\s*).+", re.DOTALL | re.IGNORECASE), r"\1***"),
)


def redacted(text: str) -> str:
    """Return a text without the passwords of the urls and connection strings in it; rather too little than too much."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def shown(value: object) -> str:
    """Return a short text of a rejected value for an error message, whatever the value is, without passwords of urls.

    Raises nothing: Python refuses to write out integers of thousands of digits, and a `__repr__` may fail.
    """
    if isinstance(value, str | bytes | bytearray) and len(value) > _LARGE_VALUE:
        text = redacted(repr(value[:_LARGE_VALUE]))
        return f"{text[:_SHOWN_VALUE_LIMIT]}… ({len(value)} characters)"
    if type(value) is int and value.bit_length() > _LARGE_VALUE:
        sign = "a negative" if value < 0 else "an"
        return f"{sign} integer of about {int(value.bit_length() * math.log10(2)) + 1} digits"
    try:
        text = repr(value)
    except Exception:  # a broken __repr__ must not hide the error that is being reported
        text = f"<{type(value).__name__}>"
    size = len(text)
    # Cut before the search for secrets, whose cost grows with the length.
    text = redacted(text[:_LARGE_VALUE].encode("utf-8", "backslashreplace").decode("utf-8"))
    if size > _LARGE_VALUE or len(text) > _SHOWN_VALUE_LIMIT:
        text = f"{text[:_SHOWN_VALUE_LIMIT]}… ({max(size, len(text))} characters)"
    return text


def _and_others(texts: Iterable[str], count: int) -> str:
    """Return the end of a message that is about several jobs: the first ones by name, the rest by number."""
    if count <= 0:
        return ""
    named = list(itertools.islice(texts, _SHOWN_OTHERS))
    rest = f" and {count - len(named)} more" if count > len(named) else ""
    return f" (likewise {', '.join(named)}{rest})"


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


def invalid(field: str, expected: str, value: object) -> InvalidArgumentError:
    """Return the usual error for an argument: "`field` must be `expected`, got `value`"."""
    return InvalidArgumentError(f"{field} must be {expected}, got {shown(value)}", field=field, value=value)


def check_known(what: str, names: Iterable[str], known: Collection[str], *, field: str = "") -> None:
    """Refuse names that do not exist with "unknown `what` `names` (known: `known`)"."""
    wrong = [name for name in names if name not in known]
    if wrong:
        message = f"unknown {what} {', '.join(map(shown, wrong))} (known: {', '.join(known)})"
        raise InvalidArgumentError(message, field=field, value=wrong)


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


def unknown_dependencies(job_id: str, missing: Sequence[str]) -> DependencyError:
    """Return the error for a job that is to run after jobs which are not there; it names all of them."""
    others = [shown(each) for each in missing[1:]]
    return DependencyError(
        f"job {shown(job_id)} is to run after {shown(missing[0])}, which was not found"
        f"{_and_others(others, len(others))}",
        reason="unknown",
        job_id=job_id,
        value=missing[0],
    )


class JobNotFoundError(PenstockError, LookupError):
    """No job has this id.

    Attributes:
        job_id: the id.
        missing: all ids of the call that were not found.
    """

    code = "job_not_found"
    job_id: str
    missing: tuple[str, ...]

    def __init__(self, job_id: str, missing: Sequence[str] = ()) -> None:
        others = [each for each in missing if each != job_id]
        super().__init__(
            f"job {shown(job_id)} was not found{_and_others(map(shown, others), len(others))}",
            job_id=job_id,
            missing=(job_id, *others),
        )


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
        others = (shown(other) if why == reason else f"{shown(other)}: {why}" for _, other, why in failed[1:])
        super().__init__(
            f"job {shown(job_id)} cannot be added: {reason}{_and_others(others, len(failed) - 1)}",
            job_id=job_id,
            failed=tuple(failed),
        )


class InvalidTransitionError(PenstockError):
    """The job's status does not allow the verb; nothing was changed.

    Attributes:
        job_id: the job.
        status: its status, as text.
        verb: what was asked for.
        failed: of a call for several jobs that is all or nothing, `(index, id, reason)` of each one that refuses it;
            else empty. The index is the place among the jobs that the call selected.
    """

    code = "invalid_transition"
    job_id: str
    status: str
    verb: str
    failed: tuple[tuple[int, str, str], ...] = ()

    @classmethod
    def of_several(
        cls, refused: Sequence[tuple[int, str, str]], *, rule: str, verb: str
    ) -> InvalidTransitionError:
        """Return the refusal of a call for several jobs, which names each one.

        Args:
            refused: index, id and status of each.
            rule: which jobs would have been accepted.
            verb: what was asked for.
        """
        _, job_id, status = refused[0]
        others = (f"{shown(other)} ({kind})" for _, other, kind in refused[1:])
        return InvalidTransitionError(
            f"job {shown(job_id)} is {status}: {rule}{_and_others(others, len(refused) - 1)}",
            job_id=job_id,
            status=status,
            verb=verb,
            failed=tuple((index, other, f"it is {kind}") for index, other, kind in refused),
        )

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
    """The queue is blocked, so a new job was refused; it accepts jobs again once it is unblocked."""

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
        is_logged: whether the store has logged itself that it cannot be reached, once for all calls.
    """

    code = "backend_error"
    retryable: bool
    outcome_unknown: bool
    is_logged: bool = False

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
