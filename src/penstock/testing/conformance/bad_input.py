"""Bad input: a typed error, nothing written, the same answer on every store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from penstock.backends import Backend
from penstock.errors import DependencyError, InvalidArgumentError, PenstockError, shown
from penstock.job import TEXT_LIMITS, JobStatus, Key
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import (
    JOB_VERBS,
    PLURAL_VERBS,
    WORKER,
    MakeBackend,
    Suite,
    a_job,
    put,
    put_running,
    refused,
    unchanged,
)
from penstock.testing.conformance.fencing import CANCEL_REPORTS, REPORTS

_LIMITS = {
    "id": 512,
    "type": 256,
    "correlation_id": 512,
    "trace": 1024,
    "callback_url": 2048,
    "idempotency_key": 256,
    "parent_id": 512,
    "redrive_of": 512,
    "assignee_id": 512,
    "description": 2000,
    "error_code": 256,
}
#: A prefix of texts that are invalid in some fields.
_BEGINNING = {"callback_url": "https://example.com/"}
_CALLABLE = (
    "http://example.com",
    "https://example.com/",
    "HTTPS://Example.com:8443/a/b?c=d&e=%20#f",
    "http://[2001:db8::1]:8080/",
    "http://127.0.0.1:5000/",
    "https://bücher.example/漢?q=🦆@home",
)
_NOT_CALLABLE = (
    "",
    "somewhere",
    "example.com/done",
    "/done",
    "//example.com/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "javascript:alert(1)",
    "http:example.com",
    "http://",
    "https:///done",
    "http://:80/",
    "http://example.com:port/",
    "http://example.com:0/",
    "http://user@example.com/",
    "http://user:secret@example.com/",
    "http://example.com/a b",
    "http://example.com/\n",
    " http://example.com/",
    "http://example.com\\@inside/",
    "http://[::1/",
)
_NOT_TEXT = (5, b"bytes", 1.5, True, ["list"])
_BROKEN_TEXT = ("nul\x00", "\x00", "\ud800", "a\udfffb")


class BadJobs(Suite):
    """Fields of a job that cannot be accepted."""

    @cells("text", _BROKEN_TEXT, ids=ascii)
    @cells("field", list(_LIMITS))
    def test_text_that_not_every_store_can_keep_is_refused(
        self, backend: Backend, field: str, text: str
    ) -> None:
        """NUL and lone surrogates."""
        with refused(backend, InvalidArgumentError) as caught:
            backend.enqueue_job(a_job(**{field: text}))
        assert caught.value.field == field  # type: ignore[attr-defined]

    @cells("text", _BROKEN_TEXT, ids=ascii)
    @cells("field", ["tags", "key", "after", "after_any"])
    def test_broken_text_inside_a_sequence_is_refused(self, backend: Backend, field: str, text: str) -> None:
        with unchanged(backend), pytest.raises(InvalidArgumentError):
            backend.enqueue_job(a_job(**{field: [text]}))

    @cells("value", _NOT_TEXT, ids=repr)
    @cells("field", list(_LIMITS))
    def test_what_is_not_text_is_refused(self, backend: Backend, field: str, value: Any) -> None:
        with refused(backend, InvalidArgumentError):
            backend.enqueue_job(a_job(**{field: value}))

    @cells("character", ["x", "漢", "🦆"])
    @cells("field", list(_LIMITS))
    def test_text_is_accepted_up_to_its_limit_in_characters(
        self, backend: Backend, field: str, character: str
    ) -> None:
        text = (_BEGINNING.get(field, "") + character * _LIMITS[field])[: _LIMITS[field]]
        job_id = backend.enqueue_job(a_job(**{field: text}))
        assert getattr(backend.get_job(job_id), field) == text

    @cells("url", _CALLABLE, ids=ascii)
    def test_a_callback_may_go_to_any_http_url(self, backend: Backend, url: str) -> None:
        """G32. Where callbacks are delivered to is a question of the worker's policy."""
        put(backend, "job", callback_url=url)
        assert backend.get_job("job").callback_url == url

    @cells("url", _NOT_CALLABLE, ids=ascii)
    def test_a_callback_that_nobody_could_deliver_is_refused(self, backend: Backend, url: str) -> None:
        """G32."""
        with refused(backend, InvalidArgumentError) as caught:
            backend.enqueue_job(a_job(callback_url=url))
        error: Any = caught.value
        assert (error.field, error.value) == ("callback_url", url)
        with unchanged(backend), pytest.raises(InvalidArgumentError):
            backend.enqueue_jobs([a_job(), a_job(id="other", callback_url=url)])

    @cells("field", list(_LIMITS))
    def test_text_beyond_its_limit_is_refused(self, backend: Backend, field: str) -> None:
        with refused(backend, InvalidArgumentError):
            backend.enqueue_job(a_job(**{field: _BEGINNING.get(field, "").ljust(_LIMITS[field] + 1, "x")}))

    def test_every_text_is_among_those_tried(self) -> None:
        assert _LIMITS.keys() == {"id", "type", *TEXT_LIMITS}

    @cells("field", list(_LIMITS))
    def test_empty_text_is_refused(self, backend: Backend, field: str) -> None:
        """Q10."""
        with refused(backend, InvalidArgumentError):
            backend.enqueue_job(a_job(**{field: ""}))

    def test_a_hundred_tags_are_accepted_and_no_more(self, backend: Backend) -> None:
        tags = [f"tag-{number}" for number in range(101)]
        put(backend, "job", tags=tags[:100])
        assert backend.get_job("job").tags == tuple(tags[:100])
        with refused(backend, InvalidArgumentError):
            put(backend, "other", tags=tags)

    @cells("tags", [[""], ["x" * 257], ["fine", ""]], ids=len)
    def test_a_tag_has_one_to_256_characters(self, backend: Backend, tags: list[str]) -> None:
        put(backend, "longest", tags=["x" * 256])
        with refused(backend, InvalidArgumentError):
            put(backend, "job", tags=tags)

    @cells(
        "value",
        ["red", b"red", 5, None, [5], [None], [["red"]], {"red": 1, "blue": 2}.items(), {"env": "prod"}],
        ids=repr,
    )
    def test_tags_are_a_sequence_of_strings(self, backend: Backend, value: Any) -> None:
        with unchanged(backend), pytest.raises(InvalidArgumentError):
            put(backend, "job", tags=value)

    @cells("field", ["after", "after_any"])
    @cells("value", ["job", b"job", 5, None, [5], [["job"]], {"job": 1}], ids=repr)
    def test_dependencies_are_sequences_of_strings(self, backend: Backend, field: str, value: Any) -> None:
        put(backend, "job")
        with unchanged(backend), pytest.raises(InvalidArgumentError):
            put(backend, "other", **{field: value})

    @cells(
        ("field", "value"),
        [
            *(("error_message", value) for value in (None, b"", 0, False, 5)),
            *(("error_category", value) for value in ("temporary", 5, "nonsense")),
            *((field, False) for field in ("attempt", "retry_count", "failures", "progress")),
            ("held", 0),
            ("held", None),
        ],
        ids=repr,
    )
    def test_what_equals_a_default_but_is_of_another_type_is_refused(
        self, backend: Backend, field: str, value: Any
    ) -> None:
        with refused(backend, InvalidArgumentError) as caught:
            put(backend, "job", **{field: value})
        assert caught.value.field == field  # type: ignore[attr-defined]

    def test_a_payload_may_be_any_kind_of_bytes(self, backend: Backend) -> None:
        kinds = {"a": bytearray(b"ace"), "b": memoryview(b"ace"), "c": memoryview(b"abcdef")[::2]}
        for job_id, payload in kinds.items():
            put(backend, job_id, payload=payload)
        backend.enqueue_jobs([a_job(id=f"{job_id}2", payload=payload) for job_id, payload in kinds.items()])
        for job_id in kinds:
            assert backend.get_job(job_id).payload == backend.get_job(f"{job_id}2").payload == b"ace"

    @cells("key", [(), "", ("",), [5], ("a", None), 5, b"k"], ids=repr)
    def test_a_key_is_one_or_more_strings(self, backend: Backend, key: Any) -> None:
        with unchanged(backend), pytest.raises(InvalidArgumentError):
            put(backend, "job", key=key)

    def test_a_key_has_at_most_2000_bytes(self, backend: Backend) -> None:
        put(backend, "job", key=Key("x" * 1900))
        with refused(backend, InvalidArgumentError):
            put(backend, "other", key=Key("x" * 2001))
        with refused(backend, InvalidArgumentError):
            put(backend, "other", key=Key("漢" * 700))
        with refused(backend, InvalidArgumentError):
            put(backend, "other", key=Key(*["x"] * 700))

    @cells("payload", ["text", 5, ["x"], {"json": 1}, object()], ids=lambda p: type(p).__name__)
    def test_a_payload_is_bytes(self, backend: Backend, payload: Any) -> None:
        """G30."""
        with refused(backend, InvalidArgumentError):
            put(backend, "job", payload=payload)

    @cells("field", ["run_at", "created_at"])
    @cells(
        "moment",
        [
            datetime(2030, 1, 1),
            datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
            datetime(2200, 1, 1, tzinfo=UTC),
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
            datetime(9999, 12, 31, tzinfo=UTC),
            datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12))),
            "2030-01-01",
            1_900_000_000,
            timedelta(seconds=5),
        ],
        ids=repr,
    )
    def test_a_moment_is_an_aware_datetime_within_limits(
        self, backend: Backend, field: str, moment: Any
    ) -> None:
        with refused(backend, InvalidArgumentError):
            put(backend, "job", **{field: moment})

    @cells("priority", [-1, 5, True, 2.0, "high", None, 2**40], ids=repr)
    def test_a_priority_is_a_whole_number_from_0_to_4(self, backend: Backend, priority: Any) -> None:
        """G7."""
        with refused(backend, InvalidArgumentError):
            put(backend, "job", priority=priority)

    @cells(
        "fields",
        [
            {"retry": "default"},
            {"retry": 3},
            {"timeouts": None},
            {"timeouts": 60},
            {"held": 1},
            {"held": None},
            {"status": "nonsense"},
            {"status": None},
            {"attempt": -1},
            {"attempt": True},
            {"retry_count": "3"},
            {"failures": 1.0},
            {"progress": 101},
        ],
        ids=repr,
    )
    def test_other_fields_are_checked_too(self, backend: Backend, fields: dict[str, Any]) -> None:
        with refused(backend, InvalidArgumentError):
            put(backend, "job", **fields)

    @cells("job", ["job", {"id": "job", "type": "t"}, 5, object()], ids=lambda j: type(j).__name__)
    def test_what_is_no_job_is_refused(self, backend: Backend, job: Any) -> None:
        """Q10."""
        with refused(backend, InvalidArgumentError):
            backend.enqueue_job(job)

    @cells("value", ["first", b"first", 5, [5], [None]], ids=repr)
    @cells("field", ["after", "after_any"])
    def test_dependencies_are_a_sequence_of_ids(self, backend: Backend, field: str, value: Any) -> None:
        put(backend, "first")
        with unchanged(backend), pytest.raises(InvalidArgumentError):
            put(backend, "job", **{field: value})

    def test_an_empty_dependency_is_refused(self, backend: Backend) -> None:
        with unchanged(backend), pytest.raises((InvalidArgumentError, DependencyError)):
            put(backend, "job", after=[""])


class BadArguments(Suite):
    """Arguments of verbs that cannot be accepted."""

    @cells("job_id", ["", None, 5, b"job", True, "nul\x00", "\ud800", "x" * 513], ids=ascii)
    @cells("verb", list(JOB_VERBS))
    def test_what_is_no_id_is_refused(self, backend: Backend, verb: str, job_id: Any) -> None:
        """Q55."""
        put_running(backend, "job")
        with refused(backend, InvalidArgumentError):
            JOB_VERBS[verb](backend, job_id)

    @cells("job_id", ["", None, 5, "nul\x00"], ids=ascii)
    @cells("verb", list(PLURAL_VERBS))
    def test_what_is_no_id_refuses_a_whole_plural(self, backend: Backend, verb: str, job_id: Any) -> None:
        with refused(backend, InvalidArgumentError):
            PLURAL_VERBS[verb](backend, job_id)

    @cells("attempt", [True, "1", 1.0, b"1", -1, 2**31, 10**5000], ids=shown)
    @cells("verb", [*REPORTS, *CANCEL_REPORTS])
    def test_what_is_no_attempt_is_refused(self, backend: Backend, verb: str, attempt: Any) -> None:
        put_running(backend, "job")
        with refused(backend, InvalidArgumentError):
            (REPORTS | CANCEL_REPORTS)[verb](backend, "job", attempt)

    @cells(
        "arguments",
        [
            {"assignee_id": ""},
            {"assignee_id": None},
            {"assignee_id": 5},
            {"assignee_id": "x" * 513},
            {"assignee_id": "nul\x00"},
            {"limit": 0},
            {"limit": -1},
            {"limit": True},
            {"limit": 1.0},
            {"limit": "1"},
            {"limit": None},
            {"limit": 2**31},
            {"tags": 5},
            {"tags": "red"},
            {"tags": b"red"},
            {"tags": [5]},
            {"tags": [""]},
            {"tags": ["nul\x00"]},
            {"types": 5},
            {"types": "mail"},
            {"types": b"mail"},
            {"types": [5]},
            {"types": ["\ud800"]},
            {"key": ""},
            {"key": 5},
            {"key": [None]},
            {"job_ids": "job"},
            {"job_ids": [5]},
            {"job_ids": [""]},
        ],
        ids=ascii,
    )
    def test_a_wrong_claim_is_refused(self, backend: Backend, arguments: dict[str, Any]) -> None:
        """B5, Q55."""
        put(backend, "job", tags=["red"], type="mail")
        with refused(backend, InvalidArgumentError):
            backend.dequeue_jobs(**{"assignee_id": WORKER, **arguments})

    @cells(
        "arguments",
        [
            {"error_message": ""},
            {"error_message": None},
            {"error_message": b"boom"},
            {"category": "nonsense"},
            {"category": None},
            {"code": 5},
            {"code": "nul\x00"},
            {"retry_after": -1},
            {"retry_after": timedelta(seconds=-1)},
            {"retry_after": float("nan")},
            {"retry_after": float("inf")},
            {"retry_after": "5"},
            {"retry_after": True},
            {"retry_after": timedelta(days=3651)},
            {"retry_after": 1e300},
        ],
        ids=repr,
    )
    def test_a_wrong_failure_is_refused(self, backend: Backend, arguments: dict[str, Any]) -> None:
        """Q36, Q55."""
        put_running(backend, "job")
        with refused(backend, InvalidArgumentError):
            backend.fail_job(**{"job_id": "job", "error_message": "boom", **arguments})

    @cells("result", ["text", 5, ["x"], {"a": 1}], ids=repr)
    def test_a_result_is_bytes(self, backend: Backend, result: Any) -> None:
        put_running(backend, "job")
        with refused(backend, InvalidArgumentError):
            backend.complete_job("job", result)
        with refused(backend, InvalidArgumentError):
            backend.complete_jobs({"job": result})
        with refused(backend, InvalidArgumentError):
            backend.update_job_status("job", JobStatus.COMPLETED, result)

    @cells("status", ["nonsense", None, 5, True], ids=repr)
    def test_a_status_is_a_job_status(self, backend: Backend, status: Any) -> None:
        put_running(backend, "job")
        with refused(backend, InvalidArgumentError):
            backend.update_job_status("job", status)

    @cells("executing", [None, 1, "yes"], ids=repr)
    def test_was_executing_is_a_bool(self, backend: Backend, executing: Any) -> None:
        put_running(backend, "job")
        backend.cancel_jobs(job_ids=["job"])
        with refused(backend, InvalidArgumentError):
            backend.acknowledge_cancellation("job", executing)

    @cells("given", [None, ["job"], "job", 5], ids=repr)
    @cells(
        "verb",
        [
            "complete_jobs",
            "fail_jobs",
            "stop_jobs",
            "stop_jobs_with_retry",
            "mark_jobs_unknown_stopped",
            "release_jobs",
            "acknowledge_cancellations",
        ],
    )
    def test_a_plural_takes_a_mapping(self, backend: Backend, verb: str, given: Any) -> None:
        put_running(backend, "job")
        with refused(backend, InvalidArgumentError):
            getattr(backend, verb)(given)

    @cells("verb", ["cancel_jobs", "delete_jobs", "redrive_jobs"])
    @cells(
        "arguments",
        [
            {"tags": "red"},
            {"tags": b"red"},
            {"tags": [5]},
            {"tags": [["red"]]},
            {"tags": {"red": 1}},
            {"tags": [""]},
            {"tags": ["nul\x00"]},
            {"job_ids": [["job"]]},
            {"job_ids": "job"},
            {"job_ids": b"job"},
            {"job_ids": [5]},
            {"job_ids": [""]},
            {"job_ids": ["\ud800"]},
        ],
        ids=ascii,
    )
    def test_a_wrong_choice_of_jobs_is_refused(
        self, backend: Backend, verb: str, arguments: dict[str, Any]
    ) -> None:
        put(backend, "job", tags=["red"])
        with refused(backend, InvalidArgumentError):
            getattr(backend, verb)(**arguments)

    @cells("requests", [None, 5, ["worker"], [None], "worker"], ids=repr)
    def test_several_claims_are_a_sequence_of_requests(self, backend: Backend, requests: Any) -> None:
        with refused(backend, InvalidArgumentError):
            backend.dequeue_jobs_for(requests)

    @cells("assignee", ["", None, 5, "nul\x00"], ids=ascii)
    def test_an_assignee_is_text(self, backend: Backend, assignee: Any) -> None:
        put_running(backend, "job", held=True)
        backend.stop_job("job")
        with refused(backend, InvalidArgumentError):
            backend.restart_job("job", assignee)
        with refused(backend, InvalidArgumentError):
            backend.heartbeat(assignee)
        with refused(backend, InvalidArgumentError):
            backend.mark_worker_unresponsive(assignee)


class Messages(Suite):
    """An error message is never a reason to lose a failure report."""

    @cells(
        ("given", "stored"),
        [
            ("nul\x00byte", "nul\ufffdbyte"),
            ("\ud800 surrogate", "\ufffd surrogate"),
            ("plain", "plain"),
            ("ünï 🦆", "ünï 🦆"),
        ],
        ids=ascii,
    )
    def test_broken_characters_are_replaced(self, backend: Backend, given: str, stored: str) -> None:
        put_running(backend, "failed", "stopped")
        backend.fail_job("failed", given)
        backend.stop_job("stopped", given)
        assert backend.get_job("failed").error_message == stored
        assert backend.get_job("stopped").error_message == stored

    @cells(
        ("given", "length"),
        [("x" * 65_536, 65_536), ("x" * 65_537, 65_536), ("x" * 10_000_000, 65_536), ("漢" * 30_000, 21_845)],
        ids=["at the limit", "over", "far over", "no character is cut in half"],
    )
    def test_long_messages_are_cut_at_64_kib(self, backend: Backend, given: str, length: int) -> None:
        put_running(backend, "job")
        backend.fail_job("job", given)
        assert backend.get_job("job").error_message == given[:length]


class Options(Suite):
    """Options of a store that cannot be accepted."""

    @cells(
        "options",
        [
            {"unknown_option": 1},
            {"max_payload": 0},
            {"max_payload": -1},
            {"max_payload": 16 * 1024 * 1024 + 1},
            {"max_payload": True},
            {"max_payload": "1MB"},
            {"max_depth": 0},
            {"max_depth": 10_001},
            {"max_depth": True},
            {"max_pending": -1},
            {"max_pending": True},
            {"max_pending": "5"},
            {"idempotency_window": timedelta(0)},
            {"idempotency_window": -1},
            {"idempotency_window": "1 day"},
            {"liveness": 0},
            {"liveness": "15"},
            {"retention": "forever"},
            {"retention": {"finished": timedelta(days=1)}},
            {"retention": {"completed": -1}},
        ],
        ids=repr,
    )
    def test_a_wrong_option_is_refused(
        self, make_backend: MakeBackend, clock: ManualClock, options: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidArgumentError):
            make_backend(clock=clock, **options)

    def test_every_error_names_what_was_wrong(self, backend: Backend) -> None:
        with pytest.raises(PenstockError) as caught:
            backend.dequeue_jobs(WORKER, limit=0)
        assert caught.value.code == "invalid_argument"
        assert "limit" in str(caught.value)
        assert "0" in str(caught.value)
