"""`penstock top`: a store, live."""

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

from penstock.cli._glance import Glance, Looker, glance_fields
from penstock.cli._output import emit, emit_json, is_terminal, stdout_console
from penstock.cli._store import AsJson, Url, open_store
from penstock.errors import BackendError

__all__ = ["top"]

PLAIN_WIDTH: Final = 120
#: Lines beside the rows of the three tables.
FRAME_LINES: Final = 14
FEWEST_ROWS: Final = 5
MOST_PLAIN_ROWS: Final = 1_000


def top(
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.1, max=3600, help="Seconds between two looks.")
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Look once and exit; there are no rates then.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Watch a store live.

    What waits by type, jobs a second, workers and their slots, the latest failures. q or Ctrl-C ends it. Into a pipe it prints one table after another; with --json one object for each look.

    Examples:
        penstock top
        penstock top --interval 0.5
        penstock top --once --json
    """
    with open_store(url) as backend:
        place = repr(backend).strip("<>")
        looker = Looker(backend)
        if once:
            _print(looker.look(), place, as_json=as_json)
        elif not as_json and is_terminal():
            _watch(looker, place, interval)
        else:
            _stream(looker, place, interval, as_json=as_json)


def _stream(looker: Looker, place: str, interval: float, *, as_json: bool) -> None:
    """Print look after look until Ctrl-C or SIGTERM."""
    with _ending_quietly():
        while True:
            due = time.monotonic() + interval
            _print(looker.look(), place, as_json=as_json)
            sys.stdout.flush()
            time.sleep(max(0.0, due - time.monotonic()))


def _print(glance: Glance, place: str, *, as_json: bool) -> None:
    if as_json:
        emit_json(glance_fields(glance))
        return
    from penstock.cli._dashboard import frame  # noqa: PLC0415  # what draws takes long to import

    plain = {} if is_terminal() else {"width": PLAIN_WIDTH, "color_system": None}
    screen = stdout_console(**plain)
    screen.print(frame(glance, place, width=screen.width, rows=MOST_PLAIN_ROWS))
    emit()


def _watch(looker: Looker, place: str, interval: float) -> None:
    """Show the latest look on the whole screen until q."""
    from rich.live import Live  # noqa: PLC0415  # what draws takes long to import

    from penstock.cli._dashboard import frame  # noqa: PLC0415

    screen = stdout_console()
    with _ending_quietly(), _keys() as pressed, Live(console=screen, screen=True, auto_refresh=False) as live:
        glance: Glance | None = None
        while True:
            due = time.monotonic() + interval
            trouble = ""
            try:
                glance = looker.look()
            except BackendError as error:
                if not error.retryable:
                    raise
                trouble = f"the store is away, and tried again: {error}"
            if glance is not None or trouble:
                rows = max(FEWEST_ROWS, screen.height - FRAME_LINES)
                live.update(
                    frame(glance, place, width=screen.width, rows=rows, trouble=trouble, is_live=True),
                    refresh=True,
                )
            while (left := due - time.monotonic()) > 0:
                if "q" in pressed(left).lower():
                    return


@contextlib.contextmanager
def _ending_quietly() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM be the end of the show, not a failure."""

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
    """Give a function that waits up to some seconds for keys; "" if none was pressed."""

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
        # Nothing to read although there should be: the terminal is gone.
        return (os.read(descriptor, 64).decode(errors="replace") or "q") if ready else ""

    tty.setcbreak(descriptor)
    try:
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, kept)
