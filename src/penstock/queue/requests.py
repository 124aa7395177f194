"""The fields of a submission, listed once, and the job made from them.

`Queue.submit`, `submit_many`, `spawn`, `@app.job` and `Task.options` take these fields; the command line and the Spark
sink offer a part of them, and `tests/unit/test_submission_fields.py` says why not the rest. A new field of jobs that users
may set is added here and in `Job`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypedDict, TypeVar, Unpack

import msgspec

from penstock.backends import UNSET, UnsetType
from penstock.backends.contract.joined import JoinedBackend
from penstock.durations import Duration, duration
from penstock.errors import InvalidArgumentError, PenstockError, shown
from penstock.job import Job, Key, Priority, Unique, distinct, new_id
from penstock.payloads.json import encode_json
from penstock.policy import DEFAULT_RETRY, DEFAULT_TIMEOUTS, RetryPolicy, Timeouts
from penstock.scope import shielded

__all__ = [
    "SUBMIT_FIELDS",
    "CommonOptions",
    "SubmitOptions",
    "job_of",
    "labels",
    "shows_options",
    "warn_of_duplicates",
    "warn_of_other_payloads",
]

F = TypeVar("F", bound=Callable[..., Any])

logger = logging.getLogger("penstock")

#: What is stored as it is. Not a union, which would be made anew by every call.
_BYTES: Final = (bytes, bytearray, memoryview)
#: How many jobs of one call are compared with the existing jobs that were returned for them.
MAX_COMPARED: Final = 100


class CommonOptions(TypedDict, total=False):
    """The fields that mean the same in `Queue.submit` and in `Task.options`."""

    tags: Sequence[str] | Mapping[str, str]
    priority: Priority | int
    run_at: datetime | None
    delay: Duration | None
    retry: RetryPolicy | UnsetType | None
    timeouts: Timeouts | UnsetType
    unique: Unique | None
    correlation_id: str | None
    callback_url: str | None
    parent_id: str | None
    held: bool


class SubmitOptions(CommonOptions, total=False):
    """The arguments of `Queue.submit` beside type and payload."""

    key: Key | str | Sequence[str] | None
    after: Sequence[str]
    after_any: Sequence[str]
    idempotency_key: str | None


#: The names of all fields of a submission beside type and payload.
SUBMIT_FIELDS: Final = frozenset(SubmitOptions.__annotations__)


def job_of(
    now: Callable[[], datetime], type: str, payload: object = None, **options: Unpack[SubmitOptions]
) -> Job:
    """Return the job that a submission with these arguments stores: checked names, defaults, a fresh id.

    Args:
        now: the store's time, asked for a `delay` only.
        type: the job's type.
        payload: bytes as they are; None is empty; anything else becomes JSON.
        **options: see `Queue.submit`.

    Raises:
        TypeError: an unknown option.
        InvalidArgumentError: `run_at` beside `delay`, or a payload that JSON cannot hold.
    """
    fields: dict[str, Any] = dict(options)
    if not SUBMIT_FIELDS.issuperset(fields):
        unknown = sorted(fields.keys() - SUBMIT_FIELDS)
        raise TypeError(f"got an unexpected keyword argument {unknown[0]!r}")
    delay = fields.pop("delay", None)
    if delay is not None:
        if fields.get("run_at") is not None:
            raise InvalidArgumentError("give run_at or delay, not both", field="delay", value=delay)
        fields["run_at"] = now() + duration(delay, "delay")
    if fields.get("retry", UNSET) is UNSET:
        fields["retry"] = DEFAULT_RETRY
    if fields.get("timeouts", UNSET) is UNSET:
        fields["timeouts"] = DEFAULT_TIMEOUTS
    if isinstance(fields.get("tags"), Mapping):
        fields["tags"] = labels(fields["tags"])
    if payload is None:
        data = b""
    elif isinstance(payload, _BYTES):
        data = bytes(payload)
    else:
        data = encode_json(payload)
    return Job(id=new_id(), type=type, payload=data, **fields)


def shows_options(function: F) -> F:
    """Let `help` and editors show the fields of a submission instead of `**options`."""
    own = inspect.signature(function)
    shown_parameters = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
    shown_parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS.get(name), annotation=note)
        for name, note in SubmitOptions.__annotations__.items()
    ]
    function.__signature__ = own.replace(parameters=shown_parameters)  # type: ignore[attr-defined]  # read by inspect
    return function


#: The defaults of fields; None for the others.
_DEFAULTS: Final[Mapping[str, object]] = {
    "tags": (),
    "priority": Priority.NORMAL,
    "retry": UNSET,
    "timeouts": UNSET,
    "held": False,
    "after": (),
    "after_any": (),
}


def warn_of_duplicates(backend: JoinedBackend, requests: Sequence[Job], ids: Sequence[str]) -> None:
    """Log a warning for each job that was not stored because of its idempotency key, if the payloads differ."""
    repeated = [
        (request, job_id)
        for request, job_id in zip(requests, ids, strict=True)
        if job_id != request.id and request.idempotency_key is not None
    ][:MAX_COMPARED]
    if not repeated:
        return
    try:
        with shielded():
            found = backend.get_jobs([job_id for _, job_id in repeated])
    except PenstockError as error:
        logger.debug("duplicates could not be compared: %s", error)
        return
    known = [(request, found[job_id]) for request, job_id in repeated if job_id in found]
    warn_of_other_payloads([request for request, _ in known], [job for _, job in known])


def warn_of_other_payloads(requests: Sequence[Job], answers: Sequence[Job]) -> None:
    """Log a warning for each request that returned an existing job with another payload."""
    for request, job in zip(requests, answers, strict=True):
        if job.id != request.id and not _is_same_payload(job.payload, request.payload):
            logger.warning(
                "job %s was not stored: its idempotency key %s belongs to job %s (type %s), which has other"
                " arguments; the submission was answered with that job",
                request.id,
                shown(request.idempotency_key),
                job.id,
                shown(job.type),
            )


def _is_same_payload(stored: bytes, given: bytes) -> bool:
    """Whether two payloads are the same bytes, or the same JSON."""
    if stored == given:
        return True
    try:
        return bool(msgspec.json.decode(stored) == msgspec.json.decode(given))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def labels(tags: Sequence[str] | Mapping[str, str]) -> tuple[str, ...]:
    """Return tags as they are stored; a mapping becomes "key=value" labels."""
    if not isinstance(tags, Mapping):
        return distinct("tags", tags)
    found = []
    for name, value in tags.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgumentError(
                f"tags must map strings to strings, got {shown((name, value))}", field="tags", value=name
            )
        found.append(f"{name.replace(chr(92), chr(92) * 2).replace('=', chr(92) + '=')}={value}")
    return tuple(found)
