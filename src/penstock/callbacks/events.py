"""The body of a callback (CloudEvents 1.0, structured JSON) and its signature (Standard Webhooks)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from penstock.backends import JobEnd
from penstock.errors import InvalidArgumentError
from penstock.job import JobStatus, state_of

__all__ = ["CONTENT_TYPE", "MAX_RESULT", "event_id", "event_of", "read_secrets", "sign", "verify"]

CONTENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"
#: Bytes of a result that go along; of a larger one only its size.
MAX_RESULT: Final = 65_536
MAX_ERROR: Final = 8_192
MIN_SECRET_BYTES: Final = 24
TOLERANCE_SECONDS: Final = 300

_WORDS: Final = {
    JobStatus.COMPLETED: "completed",
    JobStatus.FAILED: "failed",
    JobStatus.DEAD_LETTER: "dead_letter",
    JobStatus.STOPPED: "cancelled",
    JobStatus.UNSCHEDULED: "cancelled",
    JobStatus.UNKNOWN_STOPPED: "cancelled",
}


def event_id(store_id: str, seq: int) -> str:
    """Return the id of the event of a journal row: always the same, in every process."""
    return str(uuid.uuid5(uuid.UUID(hex=store_id), str(seq)))


def event_of(end: JobEnd, store_id: str) -> bytes:
    """Return the event of a job's end."""
    row = end.entry
    data: dict[str, Any] = {
        "job_id": row.job_id,
        "type": row.type,
        "status": row.status,
        "state": state_of(row.status, is_due=True, is_waiting=False),
        "attempt": row.attempt,
        "retry_count": row.retry_count,
        "tags": row.tags,
        "key": row.key,
        "correlation_id": end.correlation_id,
        "created_at": _text(end.created_at),
        "finished_at": _text(row.recorded_at),
        "error": None,
        **_result(end),
    }
    if row.status is not JobStatus.COMPLETED:
        data["error"] = {
            "message": row.error_message[:MAX_ERROR],
            "category": row.error_category,
            "code": row.error_code,
        }
    return msgspec.json.encode(
        {
            "specversion": "1.0",
            "id": event_id(store_id, row.seq),
            "source": f"urn:penstock:{store_id}",
            "type": f"io.penstock.job.{_WORDS[row.status]}.v1",
            "subject": row.job_id,
            "time": _text(row.recorded_at),
            "datacontenttype": "application/json",
            "data": data,
        }
    )


def _result(end: JobEnd) -> dict[str, Any]:
    if end.result_size is None:
        return {"result": None}
    if end.result is None:
        return {"result_size": end.result_size}
    try:
        return {"result": msgspec.json.decode(end.result)}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {"result_base64": base64.b64encode(end.result).decode()}


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def read_secrets(given: str | Sequence[str] | None) -> tuple[bytes, ...]:
    """Return the keys that sign: a receiver may have any one of several.

    A secret is "whsec_" and base64, as Standard Webhooks writes it, or any text of at least 24 bytes.
    """
    texts = [given] if isinstance(given, str) else list(given or ())
    keys = []
    for text in texts:
        if not isinstance(text, str):
            raise _bad_secret("must be text")
        if text.startswith("whsec_"):
            try:
                key = base64.b64decode(text.removeprefix("whsec_"), validate=True)
            except (binascii.Error, ValueError):
                raise _bad_secret('begins with "whsec_" but is not base64 after it') from None
        else:
            key = text.encode()
        if len(key) < MIN_SECRET_BYTES:
            raise _bad_secret(f"has {len(key)} bytes; at least {MIN_SECRET_BYTES} are needed")
        keys.append(key)
    return tuple(keys)


def _bad_secret(why: str) -> InvalidArgumentError:
    # Without the value: errors end up in logs.
    return InvalidArgumentError(f"the webhook secret {why}", field="secret", value=None)


def sign(secret: str | Sequence[str], id: str, timestamp: int, body: bytes) -> str:
    """Return the webhook-signature header of a body: one "v1,…" for each secret."""
    return signature(read_secrets(secret), id, timestamp, body)


def signature(keys: Iterable[bytes], id: str, timestamp: int, body: bytes) -> str:
    signed = f"{id}.{timestamp}.".encode() + body
    digests = (hmac.new(key, signed, hashlib.sha256).digest() for key in keys)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def verify(
    secret: str | Sequence[str], headers: Mapping[str, str], body: bytes, *, now: datetime | None = None
) -> bool:
    """Whether a request that a receiver got was signed with one of its secrets, less than five minutes ago.

    Args:
        secret: what the sender signs with; several while it changes.
        headers: those of the request; names in any case.
        body: the bytes as they came.
        now: the receiver's time; that of its clock unless given.
    """
    known = {name.lower(): value for name, value in headers.items()}
    event, stamp = known.get("webhook-id"), known.get("webhook-timestamp", "")
    if event is None or not stamp.isascii() or not stamp.isdigit():
        return False
    age = (datetime.now(UTC) if now is None else now).timestamp() - int(stamp)
    if abs(age) > TOLERANCE_SECONDS:
        return False
    ours = sign(secret, event, int(stamp), body).split()
    theirs = known.get("webhook-signature", "").split()
    return any(hmac.compare_digest(mine.encode(), other.encode()) for mine in ours for other in theirs)
