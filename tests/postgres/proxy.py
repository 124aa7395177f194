"""A TCP proxy in front of the server that cuts the connection at a chosen message of the protocol."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo

CLIENT, SERVER = "client", "server"


def dial(place: dict[str, Any]) -> socket.socket:
    """Return a socket to a server, which listens at an address or in a folder."""
    host, port = str(place.get("host") or "localhost"), int(place.get("port") or 5432)
    if not host.startswith("/"):
        return socket.create_connection((host, port))
    server = socket.socket(socket.AF_UNIX)
    server.connect(f"{host}/.s.PGSQL.{port}")
    return server


class Proxy:
    """Passes messages on, one by one, until the one at which it was told to cut.

    The server gets everything that was passed on before, then the end of the stream: it finishes what it has begun, and
    its answers are thrown away. The client finds the connection closed.

    Attributes:
        cuts: how often a connection was cut.
        passed: how many messages were passed on, by the side that they came from.
    """

    def __init__(self, url: str) -> None:
        self._server = conninfo_to_dict(url)
        self.cuts = 0
        self.passed = {CLIENT: 0, SERVER: 0}
        self._lock = threading.Lock()
        self._armed: tuple[str, int] | None = None
        self._ending: list[threading.Event] = []
        self._links: list[_Link] = []
        self._flows = threading.Event()
        self._flows.set()
        self._port = 0
        self.open()

    @property
    def url(self) -> str:
        """How to connect through the proxy."""
        return make_conninfo(
            **{**self._server, "host": "127.0.0.1", "port": self._port, "sslmode": "disable"},
            gssencmode="disable",
        )

    def cut_at(self, side: str, number: int) -> None:
        """Cut before the message with this number, from now on and over all connections, that comes from `side`."""
        with self._lock:
            self._armed = (side, number)

    def disarm(self) -> None:
        """Cut no more, and wait until the server has ended the sessions that were cut."""
        with self._lock:
            self._armed = None
            ending, self._ending = self._ending, []
        for each in ending:
            assert each.wait(20), "the server goes on in a session whose client is gone"

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Pass nothing on meanwhile, as a server or a network that has stopped does."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    def cut_all(self) -> None:
        """Cut every connection, now."""
        for each in self._links:
            each.cut()

    def open(self) -> None:
        """Accept connections, after `close` on the same port as before."""
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Refuse new connections."""
        # A thread that waits in accept() would still accept one connection.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._links.append(_Link(self, client, dial(self._server)))

    def _is_cut_now(self, side: str, ended: threading.Event) -> bool:
        with self._lock:
            self.passed[side] += 1
            if self._armed is None or self._armed[0] != side:
                return False
            number = self._armed[1] - 1
            self._armed = (side, number) if number else None
            if not number:
                self.cuts += 1
                self._ending.append(ended)
            return not number


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._sockets = {CLIENT: client, SERVER: server}
        self._is_cut = False
        self._ended = threading.Event()
        for each in self._sockets.values():
            if each.family != socket.AF_UNIX:
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for side in (CLIENT, SERVER):
            threading.Thread(target=self._pump, args=(side,), daemon=True).start()

    def _pump(self, side: str) -> None:
        target = self._sockets[SERVER if side == CLIENT else CLIENT]
        with contextlib.suppress(OSError):
            for message in _messages(self._sockets[side], is_client=side == CLIENT):
                if self._is_cut:
                    continue  # what the server answers to nobody
                self._proxy._flows.wait()
                if self._proxy._is_cut_now(side, self._ended):
                    self.cut()
                    continue
                target.sendall(message)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
        if side == SERVER:
            self._ended.set()
            for each in self._sockets.values():
                each.close()

    def cut(self) -> None:
        self._is_cut = True
        with contextlib.suppress(OSError):
            self._sockets[CLIENT].shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._sockets[SERVER].shutdown(socket.SHUT_WR)


def _messages(source: socket.socket, *, is_client: bool) -> Iterator[bytes]:
    """Yield what comes, message by message: a type and a length, but for the client's first one."""
    stream = source.makefile("rb")
    if is_client:
        length = stream.read(4)
        if len(length) == 4:
            yield length + stream.read(struct.unpack("!i", length)[0] - 4)
    while len(head := stream.read(5)) == 5:
        yield head + stream.read(struct.unpack("!i", head[1:])[0] - 4)


def sweep(proxy: Proxy, most: int = 300) -> Iterator[tuple[str, int]]:
    """Arm the proxy for the first message of each side, then the second, and so on, until there is none to cut at."""
    for side in (CLIENT, SERVER):
        for number in range(1, most):
            cuts = proxy.cuts
            proxy.cut_at(side, number)
            yield side, number
            proxy.disarm()
            if proxy.cuts == cuts:
                break
        else:
            raise AssertionError(f"more than {most} messages")
