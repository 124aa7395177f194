"""What a callback says and how it is signed, without a network."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from penstock.callbacks import sign, verify
from penstock.callbacks.events import event_id, event_of, read_secrets
from penstock.errors import InvalidArgumentError
from penstock.job import JobStatus
from penstock.testing import ManualClock, ModelBackend
from penstock.testing.conformance._support import drive

STORE = "0" * 31 + "1"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def event_after(status, **fields):
    backend = ModelBackend(ManualClock(datetime(2030, 1, 1, tzinfo=UTC)))
    drive(backend, status, callback_url="https://example.com/", **fields)
    (end,), _ = backend.outbox.read_ends(0)
    return msgspec.json.decode(event_of(end, STORE))


@pytest.mark.requirement("G32")
@pytest.mark.parametrize(
    ("status", "kind", "state"),
    [
        (JobStatus.COMPLETED, "completed", "COMPLETED"),
        (JobStatus.FAILED, "failed", "FAILED"),
        (JobStatus.DEAD_LETTER, "dead_letter", "DEAD_LETTER"),
        (JobStatus.STOPPED, "cancelled", "CANCELLED"),
        (JobStatus.UNSCHEDULED, "cancelled", "CANCELLED"),
        (JobStatus.UNKNOWN_STOPPED, "cancelled", "CANCELLED"),
    ],
)
def test_every_end_is_a_cloud_event(status, kind, state):
    event = event_after(status, correlation_id="trace", tags=["red"])
    assert event["specversion"] == "1.0"
    assert event["type"] == f"io.penstock.job.{kind}.v1"
    assert event["source"] == f"urn:penstock:{STORE}"
    assert event["subject"] == "job"
    assert event["time"] == "2030-01-01T00:00:00Z"
    assert event["datacontenttype"] == "application/json"
    data = event["data"]
    assert (data["job_id"], data["type"], data["status"]) == ("job", "task", str(status))
    assert data["state"].upper() == state
    assert (data["correlation_id"], data["tags"]) == ("trace", ["red"])
    assert (data["error"] is None) is (status is JobStatus.COMPLETED)


def test_the_event_of_a_failure_has_its_error():
    error = event_after(JobStatus.FAILED)["data"]["error"]
    assert error == {"message": "broken", "category": "permanent", "code": None}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, {"result": None}),
        (b'{"a": [1, 2.5, null]}', {"result": {"a": [1, 2.5, None]}}),
        (b"\xff\x00", {"result_base64": "/wA="}),
        (b"[" * 60_000, {"result_base64": base64.b64encode(b"[" * 60_000).decode()}),
        (b"x" * 70_000, {"result_size": 70_000}),
    ],
    ids=["none", "json", "binary", "deep", "large"],
)
def test_the_result_goes_along_as_far_as_it_can(result, expected):
    backend = ModelBackend(ManualClock())
    drive(backend, JobStatus.RUNNING, callback_url="https://example.com/")
    backend.complete_job("job", result)
    (end,), _ = backend.outbox.read_ends(0)
    data = msgspec.json.decode(event_of(end, STORE))["data"]
    assert {name: data[name] for name in data if name.startswith("result")} == expected


def test_the_id_of_an_event_is_that_of_its_row():
    assert event_id(STORE, 1) == event_id(STORE, 1)
    assert len({event_id(STORE, 1), event_id(STORE, 2), event_id("0" * 31 + "2", 1)}) == 3
    assert "." not in event_id(STORE, 1)  # the signed text is id.timestamp.body


class TestSignature:
    def test_it_is_the_one_of_standard_webhooks(self):
        """Computed here from the words of the specification; the secret and message are those of its own example."""
        key = base64.b64decode(SECRET.removeprefix("whsec_"))
        body = b'{"test": 2432232314}'
        signed = b"msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330." + body
        expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        assert expected == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        assert sign(SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body) == expected

    def headers(self, secret, at, body=b"{}"):
        stamp = int(at.timestamp())
        return {
            "Webhook-Id": "id",
            "Webhook-Timestamp": str(stamp),
            "Webhook-Signature": sign(secret, "id", stamp, body),
        }

    def test_a_receiver_can_check_it(self):
        now = datetime(2030, 1, 1, tzinfo=UTC)
        headers = self.headers(SECRET, now)
        assert verify(SECRET, headers, b"{}", now=now)
        assert not verify(SECRET, headers, b"{ }", now=now)
        assert not verify("another secret that is long enough", headers, b"{}", now=now)
        assert not verify(SECRET, {**headers, "Webhook-Id": "other"}, b"{}", now=now)

    def test_what_is_replayed_later_is_refused(self):
        now = datetime(2030, 1, 1, tzinfo=UTC)
        headers = self.headers(SECRET, now)
        for age, is_accepted in ((300, True), (301, False), (-301, False)):
            assert verify(SECRET, headers, b"{}", now=now + timedelta(seconds=age)) is is_accepted
        later = str(int((now + timedelta(seconds=400)).timestamp()))
        forged = {**headers, "Webhook-Timestamp": later}
        assert not verify(SECRET, forged, b"{}", now=now + timedelta(seconds=400))

    def test_two_secrets_while_receivers_change(self):
        new = "a new secret of thirty-two bytes"
        now = datetime.now(UTC)
        headers = self.headers([SECRET, new], now)
        assert verify(SECRET, headers, b"{}")
        assert verify(new, headers, b"{}")

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"webhook-id": "x"},
            {"webhook-id": "x", "webhook-timestamp": "soon", "webhook-signature": "v1,x"},
        ],
    )
    def test_what_is_not_signed_is_refused(self, headers):
        assert not verify(SECRET, headers, b"{}")

    @pytest.mark.parametrize("secret", ["", "short", "whsec_!!!", "whsec_c2hvcnQ=", [5], ["x" * 24, ""]])
    def test_a_bad_secret_is_refused_without_being_shown(self, secret):
        with pytest.raises(InvalidArgumentError) as caught:
            read_secrets(secret)
        assert caught.value.field == "secret"
        assert "short" not in str(caught.value)
