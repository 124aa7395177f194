"""Stores, queues on them, and endpoints with prepared answers."""

import contextlib
import queue as queues
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.stores import SharedStore, postgres_schemas, postgres_url, shared_store

import penstock
from penstock import Queue, RetryPolicy
from penstock.callbacks import CallbackDelivery
from penstock.callbacks import delivery as delivery_module

__all__ = ["postgres_schemas", "postgres_url", "shared_store"]

DEADLINE = 30.0
QUICK = RetryPolicy(max_attempts=4, backoff="constant", initial_delay=0)
SECRET = "whsec_" + "c2VjcmV0" * 5


class Request(NamedTuple):
    """What an endpoint was sent."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> dict[str, Any]:
        return msgspec.json.decode(self.body)


class Endpoint:
    """An HTTP server on loopback. `answers` says how to answer the next requests; after that it is 204."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: queues.Queue[Request] = queues.Queue()
        self.answers: queues.Queue[Callable[[BaseHTTPRequestHandler], None]] = queues.Queue()
        self.released = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                names = {name.lower(): value for name, value in self.headers.items()}
                endpoint.requests.put(Request(self.path, names, body))
                try:
                    answer = endpoint.answers.get_nowait()
                except queues.Empty:
                    answer = status(204)
                with contextlib.suppress(OSError):  # the sender has hung up
                    answer(self)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                pass  # a failed handshake is what a test is about

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._scheme = "http" if tls is None else "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    def url(self, path: str = "/done", host: str = "127.0.0.1") -> str:
        return f"{self._scheme}://{host}:{self.port}{path}"

    def answer(self, *how: Callable[[BaseHTTPRequestHandler], None]) -> None:
        for each in how:
            self.answers.put(each)

    def next(self) -> Request:
        return self.requests.get(timeout=DEADLINE)

    def hang(self, _handler: BaseHTTPRequestHandler) -> None:
        self.released.wait(DEADLINE)

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def status(code: int, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()

    return answer


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    yield server
    server.close()


@pytest.fixture
def other_endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    yield server
    server.close()


@pytest.fixture
def queue(shared_store: SharedStore) -> Iterator[Queue]:
    with shared_store.connect() as opened:
        yield opened


@pytest.fixture
def deliver(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., CallbackDelivery]]:
    """Start deliverers that look often, and are closed at the end of the test."""
    monkeypatch.setattr(delivery_module, "_POLL_SECONDS", 0.02)
    started: list[CallbackDelivery] = []

    def start(on: Queue = queue, **options: Any) -> CallbackDelivery:
        given = {"policy": "any", "retry": QUICK, "secret": SECRET, "timeout": 10, **options}
        started.append(CallbackDelivery(on, **given).start())
        return started[-1]

    yield start
    for each in started:
        each.close()


def end(queue: Queue, url: str, *, result: bytes | None = b'{"size": 7}', **fields: Any) -> penstock.Job:
    """Submit a job, claim it and complete it."""
    job = queue.submit("resize", {"image": "cat.png"}, callback_url=url, **fields)
    (claimed,) = queue.backend.dequeue_jobs("worker", job_ids=[job.id])
    queue.complete_job(job.id, result, attempt=claimed.attempt)
    return queue.get_job(job.id)
