"""Callbacks over real sockets, from real stores: delivered at least once, with one id, and never delayed by a dead host."""

import os
import queue as queues
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from tests.callbacks.conftest import DEADLINE, QUICK, SECRET, Endpoint, end, status
from tests.waiting import until

import penstock
from penstock import RetryPolicy
from penstock.backends import CALLBACKS
from penstock.callbacks import CallbackDelivery, posting, verify
from penstock.callbacks.resolving import TimedResolver
from penstock.errors import InvalidArgumentError, QueueClosedError

ROOT = Path(__file__).resolve().parents[2]


def is_empty(queue):
    return queue.backend.outbox.count_deliveries() == (0, 0)


def first_error(queue):
    """The error of the one delivery there is, once it was given up."""

    def given_up():
        found = queue.backend.outbox.list_deliveries()
        return found[0].error if found and found[0].due_at is None else None

    return until(given_up, "giving up")


@pytest.mark.requirement("G32")
def test_the_end_of_a_job_is_delivered_once_and_signed(queue, endpoint, deliver):
    deliver()
    job = end(queue, endpoint.url("/done?x=1"), correlation_id="trace")
    request = endpoint.next()
    assert request.path == "/done?x=1"
    assert request.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert verify(SECRET, request.headers, request.body)
    event = request.event
    assert event["id"] == request.id
    assert event["subject"] == event["data"]["job_id"] == job.id
    assert event["type"] == "io.penstock.job.completed.v1"
    assert event["data"]["result"] == {"size": 7}
    assert event["data"]["correlation_id"] == "trace"
    assert datetime.fromisoformat(event["time"]) == job.finalized_at
    until(lambda: is_empty(queue))
    assert endpoint.requests.empty()
    assert queue.get_job(job.id) == job


def test_jobs_that_ended_before_it_began_and_jobs_without_a_url(queue, endpoint, deliver):
    job = end(queue, endpoint.url())
    end(queue, None)
    queue.submit("waits", callback_url=endpoint.url())
    deliver()
    assert endpoint.next().event["subject"] == job.id
    until(lambda: is_empty(queue))
    assert endpoint.requests.empty()


def test_errors_are_retried_with_the_same_id_and_body(queue, endpoint, deliver):
    endpoint.answer(status(500), status(503), status(404))
    deliver()
    end(queue, endpoint.url())
    requests = [endpoint.next() for _ in range(4)]
    assert len({(request.id, request.body) for request in requests}) == 1
    assert all(verify(SECRET, request.headers, request.body) for request in requests)
    until(lambda: is_empty(queue))


def test_it_backs_off_and_gives_up_after_the_last_attempt(queue, endpoint, deliver):
    endpoint.answer(*[status(500)] * 4)
    deliver()
    end(queue, endpoint.url())
    assert first_error(queue) == "HTTP 500"
    (given_up,) = queue.backend.outbox.list_deliveries()
    assert (given_up.attempts, queue.backend.outbox.count_deliveries()) == (4, (0, 1))
    tried = [endpoint.next().id for _ in range(4)]
    assert endpoint.requests.empty()
    assert queue.backend.outbox.retry_deliveries() == 1
    assert endpoint.next().id == tried[0]
    until(lambda: is_empty(queue))


def test_the_next_attempt_waits_for_its_time(queue, endpoint, deliver):
    """By the policy, or longer if the endpoint asks for it."""
    endpoint.answer(status(503, Retry_After="120"), status(503))
    deliver(retry=RetryPolicy(max_attempts=3, initial_delay=60, max_delay=3600))
    end(queue, endpoint.url())
    end(queue, endpoint.url())
    found = until(
        lambda: (
            [each for each in queue.backend.outbox.list_deliveries() if each.attempts == 1][1:]
            and queue.backend.outbox.list_deliveries()
        )
    )
    waits = sorted((each.due_at - queue.backend.now()).total_seconds() for each in found)
    assert 30 < waits[0] <= 60
    assert 90 < waits[1] <= 120


def test_gone_is_not_tried_again(queue, endpoint, deliver):
    endpoint.answer(status(410))
    deliver()
    end(queue, endpoint.url())
    assert first_error(queue) == "HTTP 410"
    assert queue.backend.outbox.list_deliveries()[0].attempts == 1


def test_without_a_secret_nothing_is_signed(queue, endpoint, deliver, monkeypatch):
    monkeypatch.delenv("PENSTOCK_WEBHOOK_SECRET", raising=False)
    deliver(secret=None)
    end(queue, endpoint.url())
    headers = endpoint.next().headers
    assert "webhook-signature" not in headers
    assert "webhook-id" in headers


def test_unsigned_callbacks_are_logged_once_and_only_if_there_are_callbacks(
    queue, endpoint, deliver, monkeypatch, caplog
):
    monkeypatch.delenv("PENSTOCK_WEBHOOK_SECRET", raising=False)
    with caplog.at_level("INFO", "penstock"):
        delivery = deliver(secret=None)
        queue.submit("t")
        assert delivery.flush(DEADLINE)
        assert "not signed" not in caplog.text
        for _ in range(2):
            end(queue, endpoint.url())
            endpoint.next()
    assert caplog.text.count("callbacks are not signed: set PENSTOCK_WEBHOOK_SECRET") == 1


def test_the_secret_may_come_from_the_environment(queue, endpoint, deliver, monkeypatch):
    monkeypatch.setenv("PENSTOCK_WEBHOOK_SECRET", SECRET)
    deliver(secret=None)
    end(queue, endpoint.url())
    request = endpoint.next()
    assert verify(SECRET, request.headers, request.body)


def test_off_delivers_nothing_and_registers_no_consumer(queue, endpoint, deliver):
    deliver(policy="off")
    end(queue, endpoint.url())
    assert queue.backend.journal.list_consumers() == []
    assert endpoint.requests.empty()


def test_a_job_may_be_deleted_once_its_callback_is_taken_up(queue, endpoint, deliver):
    """What has to be delivered does not depend on the job any more."""
    endpoint.answer(status(503))
    deliver(retry=RetryPolicy(max_attempts=1))
    job = end(queue, endpoint.url())
    first = endpoint.next()
    first_error(queue)
    queue.delete_jobs(job_ids=[job.id])
    queue.backend.outbox.retry_deliveries()
    assert endpoint.next().body == first.body


def test_the_offset_is_kept_when_it_ends(queue, endpoint, deliver):
    delivery = deliver()
    end(queue, endpoint.url())
    endpoint.next()
    until(lambda: is_empty(queue))
    end(queue, None)
    last = queue.read_journal()[-1].seq
    until(lambda: delivery._seq == last)
    delivery.close()
    (consumer,) = queue.backend.journal.list_consumers()
    assert (consumer.name, consumer.seq, consumer.holder) == (CALLBACKS, last, None)


# -- hosts that misbehave ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_host", [1, 3])
def test_an_endpoint_that_hangs_blocks_no_other(queue, endpoint, other_endpoint, deliver, per_host):
    """F33: of a host only a few are on their way at a time."""
    endpoint.answer(*[endpoint.hang] * 30)
    delivery = deliver(concurrency=4, per_host=per_host, timeout=60)  # longer than the test would wait
    for _ in range(10):
        end(queue, endpoint.url())
    for _ in range(per_host):
        endpoint.next()
    for _ in range(10):
        end(queue, other_endpoint.url())
    assert len({other_endpoint.next().id for _ in range(10)}) == 10
    assert delivery.is_delivering
    assert endpoint.requests.empty()
    until(lambda: queue.backend.outbox.count_deliveries() == (10, 0))
    endpoint.released.set()
    until(lambda: is_empty(queue) or queue.backend.outbox.count_deliveries()[0] == 0)


def test_many_dead_hosts_leave_room_for_a_living_one(queue, endpoint, deliver):
    """Half of all places are for hosts that answered last time."""
    delivery = deliver(concurrency=2, per_host=2, timeout=60)  # longer than the test would wait
    dead = [Endpoint() for _ in range(3)]
    try:
        for each in dead:
            each.answer(status(500), *[each.hang] * 10)
        for each in dead:
            end(queue, each.url())
        until(lambda: len(delivery._failing) == 3)
        for _ in range(5):
            end(queue, endpoint.url())
        assert len({endpoint.next().id for _ in range(5)}) == 5
    finally:
        for each in dead:
            each.close()


def test_an_answer_that_does_not_come_ends_the_attempt(queue, endpoint, deliver):
    endpoint.answer(endpoint.hang)
    deliver(timeout=0.2, retry=RetryPolicy(max_attempts=1))
    end(queue, endpoint.url())
    assert "Timeout" in first_error(queue)


def test_a_name_that_is_never_resolved_ends_the_attempt_and_blocks_no_other(queue, endpoint, deliver):
    """A name server that does not answer: the system's resolver cannot be interrupted."""
    released = threading.Event()

    def resolver(host, port, **_):
        if host == "silent.example":
            released.wait(DEADLINE)
        return [(0, 0, 0, "", ("127.0.0.1", port))]

    try:
        delivery = deliver(timeout=0.3, concurrency=1, resolver=resolver, retry=RetryPolicy(max_attempts=1))
        end(queue, endpoint.url(host="silent.example"))
        assert first_error(queue) == "TimeoutError: the name silent.example was not resolved within 0.3 s"
        end(queue, endpoint.url(host="fine.example"))
        assert endpoint.next().headers["host"].startswith("fine.example")
        delivery.close()
        assert not released.is_set(), "closing does not wait for it either"
    finally:
        released.set()


def test_look_ups_that_hang_are_counted():
    """However many names hang, threads do not pile up."""
    released = threading.Event()
    asked = queues.SimpleQueue()

    def resolver(host, port, **_):
        asked.put(host)
        released.wait(DEADLINE)
        return [(0, 0, 0, "", (host, port))]

    resolvers = TimedResolver(resolver, deliveries=1)
    for number in range(4):
        with pytest.raises(TimeoutError):
            resolvers.within(0.001)(f"host-{number}", 80)
    with pytest.raises(OSError, match="4 resolutions of names have not been answered yet"):
        resolvers.within(0.001)("host-5", 80)
    released.set()
    assert {asked.get(timeout=DEADLINE) for _ in range(4)} == {f"host-{number}" for number in range(4)}

    def answered():
        try:
            return resolvers.within(DEADLINE)("late", 80)
        except OSError:  # the others are still on their way out
            return None

    assert until(answered) == [(0, 0, 0, "", ("late", 80))]


def test_an_answer_that_trickles_in_ends_the_attempt_too(queue, endpoint, deliver):
    """Every single byte comes in time, the answer does not."""

    def trickle(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        while not endpoint.released.wait(0.02):
            handler.wfile.write(b"x")
            handler.wfile.flush()

    endpoint.answer(trickle)
    deliver(timeout=0.3, retry=RetryPolicy(max_attempts=1))
    end(queue, endpoint.url())
    assert "Timeout" in first_error(queue)


def test_an_endless_body_is_not_read(queue, endpoint, deliver):
    """F33: the status is all that counts; a gigabyte stays with who wants to send it."""
    sent = []

    def flood(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(2**30))
        handler.end_headers()
        while not endpoint.released.is_set():
            handler.wfile.write(b"x" * 65_536)
            sent.append(1)

    endpoint.answer(flood)
    deliver()
    end(queue, endpoint.url())
    endpoint.next()
    until(lambda: is_empty(queue))
    assert len(sent) < 1000


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000,
        b"x" * 200_000,
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"",
    ],
    ids=["many headers", "long header", "long line", "ssh", "no status", "nothing"],
)
def test_what_is_no_answer_is_a_failed_attempt(head):
    server = socket.create_server(("127.0.0.1", 0))

    def answer():
        connection, _ = server.accept()
        with connection:
            connection.recv(65_536)
            try:
                connection.sendall(head)
            except OSError:
                return

    thread = threading.Thread(target=answer)
    thread.start()
    target = posting.Target("http", "x", server.getsockname()[1], "127.0.0.1", "/")
    with pytest.raises(OSError):
        posting.post(target, {}, b"", seconds=10, tls=ssl.create_default_context())
    thread.join()
    server.close()


def test_a_refused_connection_is_retried(queue, deliver):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    deliver()
    end(queue, f"http://127.0.0.1:{port}/")
    assert "ConnectionRefusedError" in first_error(queue)
    assert queue.backend.outbox.list_deliveries()[0].attempts == 4


# -- where it must not go ---------------------------------------------------------------------------------------


def test_a_redirect_is_not_followed(queue, endpoint, other_endpoint, deliver):
    endpoint.answer(*[status(302, Location=other_endpoint.url("/internal"))] * 4)
    deliver()
    end(queue, endpoint.url())
    assert first_error(queue) == "HTTP 302: redirects are not followed"
    assert other_endpoint.requests.empty()


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "10.1.2.3", "::1", "::ffff:127.0.0.1"])
def test_a_name_with_a_private_address_is_refused(queue, endpoint, deliver, address):
    def resolver(_host, port, **_):
        return [(0, 0, 0, "", (address, port))]

    deliver(policy="public", resolver=resolver)
    end(queue, endpoint.url(host="innocent.example"))
    assert "not a public address" in first_error(queue)
    assert queue.backend.outbox.list_deliveries()[0].attempts == 1
    assert endpoint.requests.empty()


def test_the_default_policy_is_public(queue, endpoint):
    with CallbackDelivery(queue):
        end(queue, endpoint.url())
        assert "not a public address" in first_error(queue)
    assert endpoint.requests.empty()


def test_a_name_is_resolved_once_and_that_address_is_called(queue, endpoint, deliver, monkeypatch):
    """DNS rebinding: the second answer of the name server would be the private one."""
    asked, called = [], []
    original = socket.create_connection

    def resolver(host, port, **_):
        asked.append(host)
        return [(0, 0, 0, "", ("93.184.216.34" if len(asked) == 1 else "127.0.0.1", port))]

    def connect(address, **options):
        called.append(address)
        return original(("127.0.0.1", endpoint.port), **options)

    monkeypatch.setattr(posting.socket, "create_connection", connect)
    deliver(policy="public", resolver=resolver)
    end(queue, "http://rebind.example:8080/")
    assert endpoint.next().headers["host"] == "rebind.example:8080"
    until(lambda: is_empty(queue))
    assert (asked, called) == (["rebind.example"], [("93.184.216.34", 8080)])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate, for "localhost"."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing: no certificate to test with")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


@pytest.fixture
def tls_endpoint(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    server = Endpoint(context)
    yield server
    server.close()


def test_a_receiver_without_a_trusted_certificate_gets_no_callback(queue, tls_endpoint, deliver):
    deliver()
    end(queue, tls_endpoint.url(host="localhost"))
    assert "SSLCertVerificationError" in first_error(queue)
    assert tls_endpoint.requests.empty()


def test_a_receiver_with_a_certificate_of_another_name_gets_no_callback(
    queue, tls_endpoint, certificate, deliver
):
    trusting = ssl.create_default_context(cafile=certificate / "cert.pem")
    deliver(tls=trusting)
    end(queue, tls_endpoint.url(host="127.0.0.1"))
    assert "SSLCertVerificationError" in first_error(queue)
    assert tls_endpoint.requests.empty()


def test_a_receiver_with_a_trusted_certificate_gets_the_callback(queue, tls_endpoint, certificate, deliver):
    deliver(tls=ssl.create_default_context(cafile=certificate / "cert.pem"))
    job = end(queue, tls_endpoint.url(host="localhost"))
    assert tls_endpoint.next().event["subject"] == job.id


# -- one sender at a time, and always one ----------------------------------------------------------------------------

CHILD = """
import json, os, signal, sys
import penstock
from penstock.callbacks import CallbackDelivery
from penstock.policy import RetryPolicy

(url, options), mode = json.loads(sys.argv[1]), sys.argv[2]
if mode == "killed":
    # After the answer, before it is recorded.
    CallbackDelivery._judge = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
import penstock.callbacks.delivery
penstock.callbacks.delivery._POLL_SECONDS = 0.02
if mode == "freezes":
    # Once it has delivered something, and never inside a transaction: a frozen writer would stop everybody.
    judge, send, seen = CallbackDelivery._judge, CallbackDelivery._send_due, []
    def note(self, *found):
        judge(self, *found)
        seen.append(found)
    def freeze(self):
        send(self)
        if seen and not self._in_progress:
            seen.clear()
            print("freezes", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
    CallbackDelivery._judge, CallbackDelivery._send_due = note, freeze
queue = penstock.connect(url, **options)
# One that lives keeps its lease on a busy machine too.
lease = 5 if mode == "lives" else 1
delivery = CallbackDelivery(queue, "any", lease=lease, retry=RetryPolicy(max_attempts=4, initial_delay=0)).start()
print("started", flush=True)
sys.stdin.read()
delivery.close()
queue.close()
"""


@pytest.fixture
def child(shared_store):
    started = []

    def start(mode):
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", CHILD, shared_store.argument(), mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        )
        started.append(process)
        assert process.stdout.readline() == b"started\n"
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.mark.process
def test_a_callback_whose_sender_is_killed_before_it_records_the_answer_is_sent_again_with_the_same_id(
    queue, endpoint, child, deliver
):
    job = end(queue, endpoint.url())
    process = child("killed")
    first = endpoint.next()
    assert process.wait(30) == -signal.SIGKILL
    deliver(lease=5, secret=None)  # the killed one's is short
    second = endpoint.next()
    assert (first.id, first.body) == (second.id, second.body)
    assert second.event["subject"] == job.id
    until(lambda: is_empty(queue))
    assert endpoint.requests.empty()


def hear(endpoint, wanted, earlier=()):
    """Wait until all of these jobs were delivered, and nothing else; again only under the same delivery id.

    A callback is delivered again where a busy machine lets a lease run out in the middle. Returns how many requests there were.
    """
    delivered, requests = {}, 0
    while not set(wanted) <= delivered.keys():
        request = endpoint.next()
        requests += 1
        subject = request.event["subject"]
        assert subject in {*wanted, *earlier}
        assert delivered.setdefault(subject, request.id) == request.id
    return requests + endpoint.requests.qsize()


@pytest.mark.process
def test_of_several_processes_one_delivers_and_another_takes_over(queue, endpoint, child):
    processes = [child("lives") for _ in range(2)]
    ids = [end(queue, endpoint.url()).id for _ in range(20)]
    assert hear(endpoint, ids) < 30, "both deliver: each is delivered twice"
    holder = until(lambda: queue.backend.journal.list_consumers()[0].holder)
    pid = int(holder.split("/")[-2])
    (holding,) = [each for each in processes if each.pid == pid]
    until(lambda: is_empty(queue))
    holding.kill()
    hear(endpoint, [end(queue, endpoint.url()).id for _ in range(5)], earlier=ids)
    assert queue.backend.journal.list_consumers()[0].holder != holder


@pytest.mark.process
def test_a_sender_that_was_frozen_sends_nothing_any_more(queue, endpoint, child, deliver):
    """Its lease is over: another one delivers, and what it finds when it wakes up is not its own."""
    process = child("freezes")
    end(queue, endpoint.url())
    endpoint.next()
    assert process.stdout.readline() == b"freezes\n"
    # A lease that a busy machine cannot let run out while it is being taken; the frozen one's is short.
    delivery = deliver(lease=5, secret=None)
    until(lambda: delivery.is_delivering)
    process.send_signal(signal.SIGCONT)
    ids = [end(queue, endpoint.url()).id for _ in range(5)]
    assert sorted(endpoint.next().event["subject"] for _ in range(5)) == sorted(ids)
    until(lambda: is_empty(queue))
    assert queue.backend.journal.list_consumers()[0].holder == delivery._holder
    assert endpoint.requests.empty()


def test_a_forgotten_consumer_is_registered_again(queue, endpoint, deliver):
    deliver(lease=0.5)
    first = end(queue, endpoint.url())
    assert endpoint.next().event["subject"] == first.id
    until(lambda: is_empty(queue))
    queue.backend.journal.forget_consumer(CALLBACKS)
    queue.delete_jobs(job_ids=[first.id])
    second = end(queue, endpoint.url())
    hear(endpoint, [second.id], earlier=[first.id])


# -- its own life -------------------------------------------------------------------------------------------------


def test_starting_and_closing_are_idempotent(queue):
    delivery = CallbackDelivery(queue, "any")
    delivery.close()
    with pytest.raises(QueueClosedError):
        delivery.start()
    another = CallbackDelivery(queue, "any").start().start()
    another.close()
    another.close()
    assert not another.is_delivering
    assert not [each for each in threading.enumerate() if each.name.startswith("penstock-callback")]


def test_it_ends_with_its_queue(shared_store):
    queue = shared_store.connect()
    delivery = CallbackDelivery(queue, "any").start()
    until(lambda: delivery.is_delivering)
    queue.close()
    delivery.close()


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "private"},
        {"secret": "short"},
        {"retry": 3},
        {"concurrency": 0},
        {"concurrency": True},
        {"per_host": 1000},
        {"timeout": 0},
        {"timeout": "5"},
        {"lease": -1},
    ],
    ids=repr,
)
def test_bad_options_are_refused(tmp_path, options):
    with penstock.connect("memory:") as queue, pytest.raises(InvalidArgumentError):
        CallbackDelivery(queue, **options)


def test_the_default_policy_of_retries_ends_after_about_a_day():
    from penstock.callbacks.delivery import DEFAULT_RETRY

    plain = msgspec.structs.replace(DEFAULT_RETRY, jitter=0.0)
    total = sum(plain.delay(number).total_seconds() for number in range(1, plain.max_attempts))
    assert 18 * 3600 < total < 30 * 3600
    assert QUICK.max_attempts < plain.max_attempts == 12
    assert datetime.now(UTC).tzinfo is UTC


@pytest.mark.parametrize("wrong", [{"queue": 5}, {"resolver": "dns"}, {"tls": True}])
def test_what_a_delivery_cannot_use_is_refused_at_once(wrong):
    (field,) = wrong
    with penstock.connect("memory:") as queue, pytest.raises(InvalidArgumentError) as caught:
        CallbackDelivery(**{"queue": queue, **wrong})
    assert caught.value.field == field
