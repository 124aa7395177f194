"""The limits of every argument that the model checks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from penstock.backends import ClaimRequest, Delivery, Failure, Retention, StoreOptions, UnsetType
from penstock.backends.contract.overview import Intake
from penstock.backends.contract.selection import MAX_ERROR, JobSelection
from penstock.durations import duration
from penstock.errors import DependencyError, InvalidArgumentError, PayloadTooLargeError, invalid
from penstock.job import TEXT_LIMITS, Job, JobStatus, Key, Priority, distinct
from penstock.policy import FailureCategory, RetryPolicy, Timeouts

MAX_ID = 512
MAX_NAME = 256
MAX_TYPE = 256
MAX_TAG = 256
MAX_TAGS = 100
MAX_ASSIGNEE = 512
MAX_CALLBACK = 2048
MAX_KEY_BYTES = 2000
MAX_MESSAGE_BYTES = 64 * 1024
MAX_DEPENDENCIES = 1000
MAX_INTAKES = 1000
MAX_PAYLOAD_LIMIT = 16 * 1024 * 1024

_FORBIDDEN = re.compile("[\x00\ud800-\udfff]")
#: Scheme, host and perhaps a port, then anything; no user name, no spaces.
_CALLABLE = re.compile(
    r"(?i:https?)://(\[[0-9a-fA-F:.]+\]|[^\x00-\x20\x7f\\/?#@:\[\]]+)(:(0*[1-9][0-9]*)?)?([/?#][^\x00-\x20\x7f\\]*)?"
)


def options(given: Mapping[str, Any]) -> StoreOptions:
    unknown = set(given) - set(StoreOptions.__struct_fields__) - {"durability", "schema"}
    if unknown:
        raise invalid("options", "known", sorted(unknown))
    kept: dict[str, Any] = {name: given[name] for name in StoreOptions.__struct_fields__ if name in given}
    if "max_payload" in kept:
        whole("max_payload", kept["max_payload"], 1, MAX_PAYLOAD_LIMIT)
    if kept.get("max_pending") is not None:
        whole("max_pending", kept["max_pending"], 1, 2**62)
    if "max_depth" in kept:
        whole("max_depth", kept["max_depth"], 1, 10_000)
    for name in ("idempotency_window", "liveness"):
        if name in kept:
            kept[name] = duration(kept[name], name, positive=True)
    retention = kept.get("retention")
    if isinstance(retention, timedelta | int | float | str) and not isinstance(retention, bool):
        span = duration(retention, "retention", positive=True)
        kept["retention"] = Retention(completed=span, other=span)
    elif isinstance(retention, Mapping) and retention.keys() <= {"completed", "other"}:
        kept["retention"] = Retention(**retention)
    elif not isinstance(retention, Retention | None):
        raise invalid(
            "retention", "a duration, a mapping of completed and other, a Retention or None", retention
        )
    return StoreOptions(**kept)


def text(field: str, value: object, limit: int, *, empty: bool = False) -> str:
    if not isinstance(value, str) or (not value and not empty):
        raise invalid(field, "text that is not empty", value)
    if len(value) > limit:
        raise invalid(field, f"at most {limit} characters", value)
    if _FORBIDDEN.search(value):
        raise invalid(field, "text without NUL and lone surrogates", value)
    return value


def optional_text(field: str, value: object, limit: int) -> str | None:
    return None if value is None else text(field, value, limit)


def callback(field: str, value: object) -> str | None:
    """Return a valid callback url, or None."""
    url = optional_text(field, value, MAX_CALLBACK)
    if url is not None and not _CALLABLE.fullmatch(url):
        raise invalid(field, "an http or https url", value)
    return url


def message(field: str, value: object, *, empty: bool = True) -> str:
    """Return a message, mended and cut: a failure report must not be lost for its wording."""
    if not isinstance(value, str) or (not value and not empty):
        raise invalid(field, "text", value)
    return _FORBIDDEN.sub("\ufffd", value).encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")


def whole(field: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise invalid(field, f"a whole number from {low} to {high}", value)
    return value


def flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise invalid(field, "True or False", value)
    return value


def data(field: str, value: object, limit: int) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise invalid(field, "bytes", value)
    size = value.nbytes if isinstance(value, memoryview) else len(value)
    if size > limit:
        raise PayloadTooLargeError(field, size, limit)
    return bytes(value)


def optional_data(field: str, value: object, limit: int) -> bytes | None:
    return None if value is None else data(field, value, limit)


def moment(field: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, datetime) or value.tzinfo is None or value.utcoffset() is None:
        raise invalid(field, "an aware datetime", value)
    try:
        year = value.astimezone(UTC).year
    except (OverflowError, ValueError):
        year = 0
    if not 1970 <= year <= 2199:
        raise invalid(field, "in the years 1970 to 2199", value)


def status(field: str, value: object) -> JobStatus:
    if not isinstance(value, str) or value not in list(JobStatus):
        raise invalid(field, "a JobStatus", value)
    return JobStatus(value)


def tags(field: str, values: object) -> tuple[str, ...]:
    if values is None:
        return ()
    kept = distinct(field, values)
    if len(kept) > MAX_TAGS:
        raise invalid(field, f"at most {MAX_TAGS}", values)
    for tag in kept:
        text(field, tag, MAX_TAG)
    return kept


def ids(field: str, values: object) -> tuple[str, ...]:
    kept = distinct(field, values)
    for job_id in kept:
        text(field, job_id, MAX_ID)
    return kept


def key(value: object) -> Key | None:
    made = Key.of(value)  # type: ignore[arg-type]  # checked there
    if made is not None:
        for part in made:
            text("key", part, MAX_KEY_BYTES, empty=True)
        if len(json.dumps(made, ensure_ascii=False).encode()) > MAX_KEY_BYTES:
            raise invalid("key", f"at most {MAX_KEY_BYTES} bytes", value)
    return made


def selected(value: object) -> JobSelection:
    if not isinstance(value, JobSelection):
        raise invalid("selection", "a JobSelection", value)
    for each in value.types:
        text("types", each, MAX_TYPE)
    tags("tags", value.tags)
    key(value.key)
    optional_text("error", value.error, MAX_ERROR)
    return value


def selection(tag_list: object, id_list: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    chosen = tags("tags", tag_list), ids("job_ids", id_list)
    if not any(chosen):
        raise invalid("tags", "given, or job_ids", chosen)
    return chosen


def job(value: object, max_payload: int) -> Job:
    if not isinstance(value, Job):
        raise invalid("job", "a Job", value)
    text("id", value.id, MAX_ID)
    text("type", value.type, MAX_TYPE)
    if status("status", value.status) is not JobStatus.INITIAL_PENDING:
        raise invalid("status", "initial_pending", value.status)
    data("payload", value.payload, max_payload)
    optional_data("result", value.result, max_payload)
    optional_data("checkpoint", value.checkpoint, max_payload)
    tags("tags", value.tags)
    key(value.key)
    whole("priority", value.priority, 0, 4)
    flag("held", value.held)
    _job_texts(value)
    _job_numbers(value)
    if value.retry is not None and not isinstance(value.retry, RetryPolicy):
        raise invalid("retry", "a RetryPolicy or None", value.retry)
    if not isinstance(value.timeouts, Timeouts):
        raise invalid("timeouts", "Timeouts", value.timeouts)
    for field in _MOMENTS:
        moment(field, getattr(value, field))
    ids("after", value.after)
    ids("after_any", value.after_any)
    if len(value.after) + len(value.after_any) > MAX_DEPENDENCIES:
        raise DependencyError(f"{value.id} waits for too many jobs", reason="breadth", job_id=value.id)
    return value


_MOMENTS = (
    "run_at",
    "created_at",
    "assigned_at",
    "started_at",
    "attempt_started_at",
    "last_retry_at",
    "finalized_at",
)


def _job_texts(value: Job) -> None:
    for field, most in TEXT_LIMITS.items():
        optional_text(field, getattr(value, field), most)
    callback("callback_url", value.callback_url)
    if value.unique is not None and (value.unique != "while_unfinished" or value.idempotency_key is None):
        raise invalid("unique", "while_unfinished with an idempotency_key, or None", value.unique)
    message("error_message", value.error_message)
    if value.error_category is not None and not isinstance(value.error_category, FailureCategory):
        raise invalid("error_category", "a FailureCategory or None", value.error_category)


def _job_numbers(value: Job) -> None:
    for field in ("attempt", "retry_count", "failures"):
        whole(field, getattr(value, field), 0, 2**31 - 1)
    whole("progress", value.progress, 0, 100)


def jobs(values: object, max_payload: int) -> list[Job]:
    if isinstance(values, str | bytes | Mapping | Job) or not isinstance(values, Iterable):
        raise invalid("jobs", "an iterable of jobs", values)
    checked = []
    for index, value in enumerate(values):
        try:
            checked.append(job(value, max_payload))
        except InvalidArgumentError as error:
            raise error.in_batch(index, getattr(value, "id", None)) from None
    return checked


def publication(writer: object, batch: object) -> None:
    if (writer is None) != (batch is None):
        raise invalid("batch", "given with writer", batch)
    if writer is not None:
        text("writer", writer, 512)
        whole("batch", batch, 0, 2**62)


def claims(requests: object) -> list[ClaimRequest]:
    if isinstance(requests, str | bytes) or not isinstance(requests, Sequence):
        raise invalid("requests", "a sequence of ClaimRequest", requests)
    return [claim(request) for request in requests]


def claim(request: object) -> ClaimRequest:
    if not isinstance(request, ClaimRequest):
        raise invalid("requests", "ClaimRequest", request)
    text("assignee_id", request.assignee_id, MAX_ASSIGNEE)
    whole("limit", request.limit, 1, 2**31 - 1)
    optional_text("owner", request.owner, MAX_ID)
    flag("pushed", request.pushed)
    flag("revives", request.revives)
    types = None
    if request.types is not None:
        types = distinct("types", request.types)
        for name in types:
            text("types", name, MAX_TYPE)
    return msgspec.structs.replace(
        request,
        tags=tags("tags", request.tags),
        types=types,
        key=key(request.key),
        job_ids=None if request.job_ids is None else ids("job_ids", request.job_ids),
    )


def report(job_id: object, attempt: object) -> None:
    text("job_id", job_id, MAX_ID)
    if attempt is not None:
        whole("attempt", attempt, 0, 2**31 - 1)


def mapping(field: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise invalid(field, "a mapping by job id", value)
    for job_id in value:
        text(field, job_id, MAX_ID)
    return dict(value)


def attempts(value: object, *, field: str = "attempts") -> dict[str, int]:
    if value is None:
        return {}
    given = mapping(field, value)
    for number in given.values():
        whole(field, number, 0, 2**31 - 1)
    return given


def failure(value: Failure) -> Failure:
    if not isinstance(value.category, str) or value.category not in list(FailureCategory):
        raise invalid("category", "a FailureCategory", value.category)
    category = FailureCategory(value.category)
    return Failure(
        message=message("error_message", value.message, empty=False),
        category=category,
        code=optional_text("code", value.code, 256),
        retry_after=optional_duration("retry_after", value.retry_after),
    )


def optional_duration(field: str, value: object) -> timedelta | None:
    return None if value is None else duration(value, field)


def ttl(value: object) -> timedelta:
    return duration(value, "ttl", positive=True)


def sequence(field: str, values: object) -> Sequence[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise invalid(field, "a sequence", values)
    return values


def intakes(field: str, values: object) -> tuple[Intake, ...]:
    given = tuple(sequence(field, values))
    if len(given) > MAX_INTAKES:
        raise invalid(field, f"at most {MAX_INTAKES}", values)
    for each in given:
        if not isinstance(each, Intake):
            raise invalid(field, "Intake", each)
        tags("tags", each.tags)
        for name in () if each.types is None else distinct("types", each.types):
            text("types", name, MAX_TYPE)
        for name in distinct("names", getattr(each, "names", ())):
            text("names", name, MAX_ID)
        whole("slots", each.slots, 0, 2**62)
        whole("waiting", each.waiting, 0, 2**62)
    return given


def deliveries(values: object) -> None:
    for each in sequence("deliveries", values):
        if not isinstance(each, Delivery):
            raise invalid("deliveries", "Delivery only", each)
        whole("seq", each.seq, 0, 2**62)
        whole("attempts", each.attempts, 0, 2**31)
        text("event_id", each.event_id, MAX_ID)
        text("url", each.url, MAX_CALLBACK)
        text("lane", each.lane, MAX_CALLBACK)
        if each.due_at is not None:
            moment("due_at", each.due_at)
        if not isinstance(each.body, bytes) or not isinstance(each.error, str):
            raise invalid("deliveries", "with a body of bytes and a text as error", each)


def span(field: str, value: object) -> timedelta:
    return duration(value, field)


def changes(
    priority: Priority | int | UnsetType, tag_list: object, correlation_id: object, callback_url: object
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if not isinstance(priority, UnsetType):
        fields["priority"] = Priority(whole("priority", priority, 0, 4))
    if not isinstance(tag_list, UnsetType):
        fields["tags"] = tags("tags", tag_list)
    if not isinstance(correlation_id, UnsetType):
        fields["correlation_id"] = optional_text(
            "correlation_id", correlation_id, TEXT_LIMITS["correlation_id"]
        )
    if not isinstance(callback_url, UnsetType):
        fields["callback_url"] = callback("callback_url", callback_url)
    return fields
