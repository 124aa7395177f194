"""`penstock top`: a live view of a store."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Annotated, Final

import typer

from penstock.cli._output import emit, emit_json, is_terminal, stdout_console
from penstock.cli._settings import DURATION
from penstock.cli._snapshot import Snapshot, Watcher, snapshot_fields
from penstock.cli._store import AsJson, Store
from penstock.cli._values import as_seconds
from penstock.errors import BackendError

__all__ = ["top"]

PLAIN_WIDTH: Final = 120
MIN_ROWS: Final = 5
MAX_PLAIN_ROWS: Final = 1_000


def top(
    *,
    interval: Annotated[
        str, typer.Option("--interval", "-i", metavar=DURATION, help="The time between two polls.")
    ] = "2s",
    once: Annotated[bool, typer.Option("--once", help="Poll once and exit; this shows no rates.")] = False,
    store: Store,
    as_json: AsJson = False,
) -> None:
    """Watch a store live.

    It shows jobs by type, jobs per second, workers and their slots, running jobs with their progress, and the latest failures, as many of each as the terminal has rows for. q or Ctrl-C ends it. In a pipe it prints the tables again for each poll, with --json one object for each poll.

    Examples:
        penstock top
        penstock top --interval 0.5
        penstock top --once --json
    """
    seconds = as_seconds(interval, "interval", low=0.1, high=3600)
    with store.open() as backend:
        place = backend.location
        watcher = Watcher(backend)
        if once:
            _print(watcher.poll(), place, as_json=as_json)
        elif not as_json and is_terminal():
            _watch(watcher, place, seconds)
        else:
            _stream(watcher, place, seconds, as_json=as_json)


def _stream(watcher: Watcher, place: str, interval: float, *, as_json: bool) -> None:
    """Print a snapshot for each poll until Ctrl-C or SIGTERM."""
    with _ending_quietly():
        while True:
            due = time.monotonic() + interval
            _print(watcher.poll(), place, as_json=as_json)
            sys.stdout.flush()
            time.sleep(max(0.0, due - time.monotonic()))


def _print(snapshot: Snapshot, place: str, *, as_json: bool) -> None:
    if as_json:
        emit_json(snapshot_fields(snapshot))
        return
    from penstock.cli._dashboard import frame  # noqa: PLC0415  # rich takes long to import

    plain = {} if is_terminal() else {"width": PLAIN_WIDTH, "color_system": None}
    screen = stdout_console(**plain)
    screen.print(frame(snapshot, place, width=screen.width, rows=MAX_PLAIN_ROWS))
    emit()


def _watch(watcher: Watcher, place: str, interval: float) -> None:
    """Show the latest snapshot on the whole screen until q is pressed."""
    from rich.live import Live  # noqa: PLC0415  # rich takes long to import

    from penstock.cli._dashboard import frame, lines_beside_rows  # noqa: PLC0415

    screen = stdout_console()
    with _ending_quietly(), _keys() as pressed, Live(console=screen, screen=True, auto_refresh=False) as live:
        snapshot: Snapshot | None = None
        while True:
            due = time.monotonic() + interval
            trouble = ""
            try:
                snapshot = watcher.poll()
            except BackendError as error:
                if not error.retryable:
                    raise
                trouble = f"the store does not answer, and is tried again: {error}"
            if snapshot is not None or trouble:
                beside = lines_beside_rows(snapshot, screen.width) + (1 if trouble else 0)
                rows = max(MIN_ROWS, screen.height - beside)
                live.update(
                    frame(snapshot, place, width=screen.width, rows=rows, trouble=trouble, is_live=True),
                    refresh=True,
                )
            while (left := due - time.monotonic()) > 0:
                if "q" in pressed(left).lower():
                    return


@contextlib.contextmanager
def _ending_quietly() -> Iterator[None]:
    """End without an error on Ctrl-C and SIGTERM."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    kept = signal.signal(signal.SIGTERM, end)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, kept)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits up to some seconds for keys and returns them."""

    def nothing(seconds: float) -> str:
        time.sleep(seconds)
        return ""

    try:
        import termios  # noqa: PLC0415  # not on every system
        import tty  # noqa: PLC0415

        descriptor = sys.stdin.fileno()
        kept = termios.tcgetattr(descriptor)
    except (ImportError, OSError, ValueError):  # stdin is not a terminal
        yield nothing
        return
    except Exception as error:  # termios.error, where there is termios
        if type(error).__name__ != "error":
            raise
        yield nothing
        return

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        # An empty read means that the terminal is closed.
        return (os.read(descriptor, 64).decode(errors="replace") or "q") if ready else ""

    tty.setcbreak(descriptor)
    try:
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, kept)
