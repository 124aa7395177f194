"""`penstock metrics`: the figures of a store for Prometheus."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli._output import clean, emit, is_terminal, note
from penstock.cli._store import Url, open_queue
from penstock.errors import InvalidArgumentError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["metrics"]

PORT: Final = 9464
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def metrics(
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on; only this machine unless you say so.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", "-p", min=0, max=65_535, help="The port to listen on; 0 takes a free one."),
    ] = PORT,
    once: Annotated[
        bool, typer.Option("--once", help="Print the metrics and exit, instead of serving them.")
    ] = False,
    url: Url = None,
) -> None:
    """Serve the metrics of a store for Prometheus.

    They are at /metrics, until SIGTERM or Ctrl-C. One is enough for a store, however many workers and processes there are: the figures are the store's own. Needs the
    extra: pip install 'penstock[metrics]'.

    Examples:
        penstock metrics
        penstock metrics --host 0.0.0.0 --port 9464
        penstock metrics --once
    """
    try:
        import prometheus_client  # noqa: PLC0415  # an extra

        from penstock.metrics import PenstockCollector  # noqa: PLC0415
    except ImportError as error:
        raise InvalidArgumentError(
            "metrics need an extra: pip install 'penstock[metrics]'", field="metrics"
        ) from error
    with open_queue(url) as queue:
        registry = prometheus_client.CollectorRegistry()
        registry.register(PenstockCollector(queue))
        if once:
            text = prometheus_client.generate_latest(registry).decode().rstrip("\n")
            # A program needs every label as it is; a terminal must not act on one.
            emit(clean(text, keep_lines=True) if is_terminal() else text)
        else:
            _serve(registry, host, port)


def _serve(registry: CollectorRegistry, host: str, port: int) -> None:
    from prometheus_client import start_http_server  # noqa: PLC0415  # an extra

    stop = threading.Event()
    kept = {
        number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
        try:
            shown = f"[{host}]" if ":" in host else host
            emit(f"serving http://{shown}:{server.server_port}/metrics")
            if host not in _LOOPBACK:
                note("whoever reaches this port can read the figures and the names of job types")
            stop.wait()
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
