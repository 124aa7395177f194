"""One POST: to a given address, within a time, reading no more of the answer than its head."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from penstock.callbacks.addresses import Target

__all__ = ["Answer", "post"]

#: Bytes of an answer's status line and headers. Its body is not read at all.
MAX_HEAD: Final = 65_536


class Answer(NamedTuple):
    """The status and headers of the answer."""

    status: int
    retry_after: str | None


def post(
    target: Target, headers: Mapping[str, str], body: bytes, *, seconds: float, tls: ssl.SSLContext
) -> Answer:
    """Send a body to the target's address and return the status of the answer.

    Redirects are not followed, proxies not used, bodies not read.

    Raises:
        OSError: no connection, no trust (TLS), no answer in time, or one that is no HTTP.
    """
    deadline = time.monotonic() + seconds
    connection = socket.create_connection((target.address, target.port), timeout=seconds)
    try:
        if target.scheme == "https":
            connection.settimeout(_left(deadline))
            connection = tls.wrap_socket(connection, server_hostname=target.host)
        connection.settimeout(_left(deadline))
        connection.sendall(_request(target, headers, body))
        return _answer(connection, deadline)
    finally:
        connection.close()


def _request(target: Target, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [
        f"POST {target.path} HTTP/1.1",
        f"Host: {target.authority}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body


def _answer(connection: socket.socket, deadline: float) -> Answer:
    response = http.client.HTTPResponse(_Head(connection, deadline), method="POST")  # type: ignore[arg-type]  # all it asks for is a file
    try:
        response.begin()
        return Answer(response.status, response.headers.get("Retry-After"))
    except http.client.HTTPException as error:
        raise OSError(f"the answer is no HTTP: {type(error).__name__}: {error}") from error
    finally:
        response.close()


class _Head(io.RawIOBase):
    """Reads from a socket until a deadline, however slowly it sends, and no more than the head of a response."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._left = MAX_HEAD

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self, 4096)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left <= 0:
            raise OSError(f"the head of the answer is longer than {MAX_HEAD} bytes")
        self._connection.settimeout(_left(self._deadline))
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("no answer in time")
    return left
