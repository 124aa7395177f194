"""Checks of what callers pass in: one typed error that names field, limit and value, before anything is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.backends.contract.callback_urls import check_callback_url
from penstock.backends.engine.rows import encode_strings
from penstock.errors import InvalidArgumentError, PayloadTooLargeError, invalid
from penstock.job import TEXT_LIMITS, UNIQUE, Job, JobStatus, Key, Priority, distinct
from penstock.policy import FailureCategory, RetryPolicy, Timeouts

__all__ = [
    "MAX_DEPENDENCIES",
    "assignee",
    "blob",
    "callback_url",
    "check_job",
    "job_id",
    "job_ids",
    "key_filter",
    "limit",
    "message",
    "tags",
    "text",
]

MAX_ID = 512
MAX_TYPE = 256
MAX_TAG = 256
MAX_TAGS = 100
MAX_KEY_BYTES = 2000  # PostgreSQL indexes no more than about 2,700 bytes
MAX_CALLBACK_URL = TEXT_LIMITS["callback_url"]
MAX_DESCRIPTION = TEXT_LIMITS["description"]
MAX_ERROR_BYTES = 65_536
MAX_DEPENDENCIES = 1000
FIRST_YEAR, LAST_YEAR = 1970, 2199
MAX_COUNT = 2**31 - 1
MAX_NUMBER = 2**62


def text(field: str, value: object, limit: int) -> str:
    """Return a non-empty text that every store can keep and give back."""
    if type(value) is not str:
        raise invalid(field, "a plain str" if isinstance(value, str) else "a string", value)
    if not 0 < len(value) <= limit:
        found = "an empty one" if not value else f"{len(value)} characters"
        raise InvalidArgumentError(
            f"{field} must be a text of 1 to {limit} characters, got {found}", field=field, value=value
        )
    if "\0" in value:
        raise invalid(field, "text without NUL characters", value)
    if not value.isascii():
        _encodable(field, value)
    return value


def optional_text(field: str, value: object, limit: int) -> str | None:
    return None if value is None else text(field, value, limit)


def callback_url(value: object) -> str | None:
    """Return a url that a worker could call, or None."""
    return None if value is None else check_callback_url(text("callback_url", value, MAX_CALLBACK_URL))


def message(field: str, value: object, *, required: bool = False) -> str:
    """Return an error message that every store can keep: cut at 64 KiB, with unstorable characters replaced.

    A report of failure must not be lost for the sake of its text, so nothing but its absence is refused.
    """
    if not isinstance(value, str):
        raise invalid(field, "a string", value)
    if required and not value:
        raise InvalidArgumentError(f"{field} must not be empty", field=field, value=value)
    if "\0" in value:
        value = value.replace("\0", "\ufffd")
    if not value.isascii():
        value = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        encoded = value.encode()
        if len(encoded) > MAX_ERROR_BYTES:
            value = encoded[:MAX_ERROR_BYTES].decode(errors="ignore")
    return value[:MAX_ERROR_BYTES]


def job_id(value: object) -> str:
    """Check a job's id."""
    return text("job_id", value, MAX_ID)


def assignee(value: object) -> str:
    """Check an assignee's id."""
    return text("assignee_id", value, MAX_ID)


def strings(field: str, values: object, limit: int) -> tuple[str, ...]:
    """Return distinct, checked strings; a lone string or bytes is refused."""
    items = distinct(field, values)
    for item in items:
        text(field, item, limit)
    return items


def job_ids(values: object, field: str = "job_ids") -> tuple[str, ...]:
    """Check ids of jobs; each counts once."""
    return strings(field, values, MAX_ID)


def tags(values: object) -> tuple[str, ...]:
    """Check tags; each counts once."""
    if values is None:
        return ()
    items = strings("tags", values, MAX_TAG)
    if len(items) > MAX_TAGS:
        raise InvalidArgumentError(
            f"tags must be at most {MAX_TAGS}, got {len(items)}", field="tags", value=len(items)
        )
    return items


def types(values: object) -> tuple[str, ...] | None:
    return None if values is None else strings("types", values, MAX_TYPE)


def key_filter(value: Key | str | Iterable[str] | None) -> Key | None:
    """Check a key to select by; None selects all."""
    key = Key.of(value)
    if key is not None:
        _check_key(key)
    return key


def stored_key(value: Key | str | Iterable[str] | None) -> str | None:
    """Check a key to select by, and return it as rows have it."""
    key = key_filter(value)
    return None if key is None else encode_strings(key)


def jobs(values: Iterable[Job]) -> Iterable[Job]:
    """Check that jobs come in an iterable; each is checked by itself."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise invalid("jobs", "an iterable of Job", values)
    return values


def result(value: object, limit: int) -> bytes | None:
    """Check a result."""
    return None if value is None else blob("result", value, limit)


def limit(value: object, *, field: str = "limit", most: int = MAX_COUNT) -> int:
    """Check a number of things asked for."""
    if type(value) is not int or not 1 <= value <= most:
        raise invalid(field, f"a whole number from 1 to {most}", value)
    return value


def attempt(value: object) -> int | None:
    if value is None or (type(value) is int and 0 <= value <= MAX_COUNT):
        return value
    raise invalid("attempt", f"a whole number from 0 to {MAX_COUNT}, or None", value)


def attempts(values: Mapping[str, int] | None) -> Mapping[str, int]:
    if values is None:
        return {}
    for number in mapping("attempts", values).values():
        if type(number) is not int or not 0 <= number <= MAX_COUNT:
            raise invalid("attempts", f"a mapping of job ids to whole numbers from 0 to {MAX_COUNT}", number)
    return values


def mapping(field: str, values: object) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        raise invalid(field, "a mapping by job id", values)
    for name in values:
        # The common case in one line: plural reports check thousands of ids.
        if type(name) is not str or not 0 < len(name) <= MAX_ID or not name.isascii() or "\0" in name:
            job_id(name)
    return values


def publication(writer: object, batch: object) -> tuple[str, int] | None:
    """Return who publishes which batch; None if neither is given."""
    if writer is None and batch is None:
        return None
    if batch is None or writer is None:
        raise InvalidArgumentError(
            "give writer and batch, or neither", field="batch" if batch is None else "writer", value=None
        )
    if type(batch) is not int or not 0 <= batch < 2**62:
        raise invalid("batch", "a whole number of at least 0", batch)
    return text("writer", writer, MAX_ID), batch


def number(field: str, value: object) -> int:
    """Return a place in the journal or among the jobs; one beyond every store's range is cut to it."""
    if type(value) is not int or value < 0:
        raise invalid(field, "a whole number of at least 0", value)
    return min(value, MAX_NUMBER)


def percent(value: object) -> int:
    if type(value) is not int or not 0 <= value <= 100:
        raise invalid("percent", "a whole number from 0 to 100", value)
    return value


def boolean(field: str, value: object) -> bool:
    if type(value) is not bool:
        raise invalid(field, "True or False", value)
    return value


def priority(value: object) -> Priority:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 4:
        raise invalid("priority", "a Priority (0 CRITICAL to 4 BULK)", value)
    return Priority(value)


def category(value: object) -> FailureCategory:
    # Asked first: what is no text may not even be comparable.
    if isinstance(value, str) and value in FailureCategory.__members__.values():
        return FailureCategory(value)
    raise invalid("category", f"one of {', '.join(FailureCategory)}", value)


def status(value: object) -> JobStatus:
    if isinstance(value, str) and value in JobStatus.__members__.values():
        return JobStatus(value)
    raise invalid("status", f"one of {', '.join(JobStatus)}", value)


def blob(field: str, value: object, limit: int) -> bytes:
    """Return bytes within the store's limit."""
    if type(value) is not bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise invalid(
                field, "bytes (text: .encode() it; Queue.submit takes anything that JSON can hold)", value
            )
        size = value.nbytes if isinstance(value, memoryview) else len(value)
        if size > limit:
            raise PayloadTooLargeError(field, size, limit)
        return bytes(value)
    if len(value) > limit:
        raise PayloadTooLargeError(field, len(value), limit)
    return value


def output(value: object, limit: int) -> bytes:
    """Return a text as bytes, of which the end is kept if it is too long."""
    if not isinstance(value, str):
        raise invalid("output", "a string", value)
    data = value.encode("utf-8", "backslashreplace")
    return data if len(data) <= limit else data[-limit:]


def check_job(job: object, max_payload: int) -> Job:
    """Return a job that can be stored, or raise for the first field that cannot."""
    checked_plain(job, max_payload)
    return job  # type: ignore[return-value]  # it is checked


def checked_plain(job: object, max_payload: int) -> bool:
    """Check a job as `check_job` does, and return whether it is plain (`Job.is_plain`)."""
    if not isinstance(job, Job):
        raise invalid("job", "a Job", job)
    # The common case without a call: every submission checks these two.
    name, kind = job.id, job.type
    if type(name) is not str or not 0 < len(name) <= MAX_ID or not name.isascii() or "\0" in name:
        text("id", name, MAX_ID)
    if type(kind) is not str or not 0 < len(kind) <= MAX_TYPE or not kind.isascii() or "\0" in kind:
        text("type", kind, MAX_TYPE)
    if type(job.payload) is not bytes or len(job.payload) > max_payload:
        blob("payload", job.payload, max_payload)
    if job.tags:
        tags(job.tags)
    if type(job.priority) is not Priority:
        priority(job.priority)
    if job.retry is not None and not isinstance(job.retry, RetryPolicy):
        raise invalid("retry", "a RetryPolicy or None", job.retry)
    if not isinstance(job.timeouts, Timeouts):
        raise invalid("timeouts", "a Timeouts", job.timeouts)
    plain = job.is_plain
    if (
        not plain
        or type(job.held) is not bool  # a default may be given as another type that equals it
        or type(job.attempt) is not int
        or type(job.retry_count) is not int
        or type(job.failures) is not int
        or type(job.progress) is not int
    ):
        _check_details(job, max_payload)
    return plain


def check_batch(jobs: Iterable[object], max_payload: int, first: int = 0) -> bool:
    """Check jobs of a batch whose first has this index, and return whether all are plain; the error names the job."""
    all_plain = True
    for index, job in enumerate(jobs, first):
        try:
            all_plain &= checked_plain(job, max_payload)
        except InvalidArgumentError as error:
            raise error.in_batch(index, getattr(job, "id", None)) from None
    return all_plain


def _check_unique(job: Job) -> None:
    if not isinstance(job.unique, str) or job.unique not in UNIQUE:
        raise invalid("unique", f"None or one of {', '.join(UNIQUE)}", job.unique)
    if job.idempotency_key is None:
        raise InvalidArgumentError(
            f"unique={job.unique!r} needs an idempotency_key: it says how long that key is taken",
            field="unique",
            value=job.unique,
        )


def _check_details(job: Job, max_payload: int) -> None:
    """Check the fields that most jobs leave at their defaults."""
    if not isinstance(job.status, str) or job.status != JobStatus.INITIAL_PENDING:
        raise invalid("status", "initial_pending at submission", job.status)
    if job.key is not None:
        _check_key(job.key)
    if job.after or job.after_any:
        _check_dependencies(job)
    if type(job.held) is not bool:
        raise invalid("held", "True or False", job.held)
    for field, most in TEXT_LIMITS.items():
        value = getattr(job, field)
        if value is not None:
            text(field, value, most)
    if job.unique is not None:
        _check_unique(job)
    callback_url(job.callback_url)
    for field in ("created_at", "run_at", "last_retry_at", "started_at", "attempt_started_at", "assigned_at"):
        value = getattr(job, field)
        if value is not None:
            moment(field, value)
    for field in ("attempt", "retry_count", "failures", "progress"):
        value = getattr(job, field)
        if type(value) is not int or value != 0:
            _check_count(field, value, 100 if field == "progress" else MAX_COUNT)
    if job.finalized_at is not None:
        raise invalid("finalized_at", "None at submission", job.finalized_at)
    for field in ("result", "checkpoint"):
        value = getattr(job, field)
        if value is not None:
            blob(field, value, max_payload)
    if type(job.error_message) is not str or job.error_message:
        text("error_message", job.error_message, MAX_ERROR_BYTES)
        if len(job.error_message.encode()) > MAX_ERROR_BYTES:
            raise invalid("error_message", f"at most {MAX_ERROR_BYTES} bytes", job.error_message)
    if job.error_category is not None and not isinstance(job.error_category, FailureCategory):
        raise invalid("error_category", "a FailureCategory or None", job.error_category)


def moment(field: str, value: object) -> datetime:
    """Return an aware datetime within the years the stores agree on."""
    if not isinstance(value, datetime):
        raise invalid(field, "an aware datetime", value)
    if value.tzinfo is None or value.utcoffset() is None:
        raise invalid(field, "an aware datetime (with a time zone, such as UTC)", value)
    try:
        year = value.astimezone(UTC).year
    except OverflowError:
        year = 0 if value.year == 1 else 10_000
    if not FIRST_YEAR <= year <= LAST_YEAR:
        raise invalid(field, f"in the years {FIRST_YEAR} to {LAST_YEAR} (UTC)", value)
    return value


def _check_count(field: str, value: object, most: int) -> None:
    if type(value) is not int or not 0 <= value <= most:
        raise invalid(field, f"a whole number from 0 to {most}", value)


def _check_key(key: Key) -> None:
    for part in key:
        if "\0" in part:
            raise invalid("key", "text without NUL characters", key)
        _encodable("key", part)
    size = len(encode_strings(key).encode())
    if size > MAX_KEY_BYTES:
        raise InvalidArgumentError(
            f"key must be at most {MAX_KEY_BYTES} bytes, got {size}", field="key", value=key
        )


def _check_dependencies(job: Job) -> None:
    # Ids are checked by looking them up; here only what no look-up would tell.
    for field, ids in (("after", job.after), ("after_any", job.after_any)):
        for one in ids:
            text(field, one, MAX_ID)


def _encodable(field: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid(field, "valid Unicode text (it holds a lone surrogate)", value) from None


def selection(tag_values: Sequence[str], id_values: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return checked tags and ids of which at least one list must not be empty."""
    wanted_tags, wanted_ids = tags(tag_values), job_ids(() if id_values is None else id_values)
    if not wanted_tags and not wanted_ids:
        raise InvalidArgumentError("give tags or job_ids: both are empty", field="tags", value=())
    return wanted_tags, wanted_ids
