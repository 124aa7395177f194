"""`penstock metrics`: metrics of a store for Prometheus."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock._extras import how_to_install
from penstock.cli._output import emit, is_terminal, note
from penstock.cli._store import Store
from penstock.cli._text import clean
from penstock.errors import InvalidArgumentError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["metrics"]

PORT: Final = 9464
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def metrics(
    *,
    host: Annotated[
        str,
        typer.Option(
            "--host", help="The address to listen on. The default accepts connections from this machine only."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", "-p", min=0, max=65_535, help="The port to listen on; 0 is any free port."),
    ] = PORT,
    once: Annotated[
        bool, typer.Option("--once", help="Print the metrics and exit, instead of serving them.")
    ] = False,
    store: Store,
) -> None:
    """Serve the metrics of a store for Prometheus.

    They are served at /metrics until SIGTERM or Ctrl-C. One such process per store is enough, because the metrics are computed from the store. Requires the extra [metrics].

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
            f"metrics need an extra: {how_to_install('metrics')}", field="metrics"
        ) from error
    with store.open_queue() as queue:
        registry = prometheus_client.CollectorRegistry()
        registry.register(PenstockCollector(queue))
        if once:
            text = prometheus_client.generate_latest(registry).decode().rstrip("\n")
            # Programs need the labels unchanged; a terminal must not interpret them.
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
                note("every client that can reach this port can read the metrics and the names of job types")
            stop.wait()
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
