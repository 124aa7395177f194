"""`penstock top`: a store, live."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import FrameType
from typing import Annotated, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli._glance import Glance, Looker, Rates, glance_fields
from penstock.cli._output import clean, emit, emit_json, is_terminal, span
from penstock.cli._screen import console
from penstock.cli._store import AsJson, Url, open_store
from penstock.errors import BackendError
from penstock.overview import Overview, OwnerView, TypeView

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
    screen = console()
    if not is_terminal():
        screen = Console(
            file=sys.stdout, markup=False, emoji=False, highlight=False, width=PLAIN_WIDTH, color_system=None
        )
    screen.print(_frame(glance, place, rows=MOST_PLAIN_ROWS))
    emit()


def _watch(looker: Looker, place: str, interval: float) -> None:
    """Show the latest look on the whole screen until q."""
    screen = console()
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
                live.update(_frame(glance, place, rows=rows, trouble=trouble, is_live=True), refresh=True)
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


# -- what it looks like ----------------------------------------------------------------------------------------------


def _frame(
    glance: Glance | None, place: str, *, rows: int, trouble: str = "", is_live: bool = False
) -> RenderableType:
    parts: list[RenderableType] = [Text(clean(place), style="bold", overflow="ellipsis", no_wrap=True)]
    if trouble:
        parts.append(Text(clean(trouble), style="bold red"))
    if glance is not None:
        seen = glance.overview
        parts += [_totals(glance), *_alerts(seen), Text(), _types(glance, max(3, rows // 2))]
        parts += [Text(), _workers(seen, max(2, rows // 4))]
        if glance.failures:
            parts += [Text(), _failures(glance, max(2, rows // 4))]
    if is_live:
        parts += [Text(), Text("q quits", style="dim")]
    return Group(*parts)


def _totals(glance: Glance) -> Text:
    seen = glance.overview
    words = [
        f"{_counted(seen.ready, seen)} ready",
        f"{seen.running:,} running",
        f"{_counted(seen.delayed, seen)} delayed",
        f"{'?' if seen.waiting is None else f'{seen.waiting:,}'} waiting",
        f"oldest ready {span(seen.oldest_ready) or '-'}",
    ]
    total = glance.total
    if total is not None:
        words.append(
            f"in {_rate(total.submitted)}/s, done {_rate(total.completed)}/s, failed {_rate(total.failed)}/s"
        )
    return Text(" · ".join(words))


def _alerts(seen: Overview) -> Iterator[Text]:
    if seen.is_blocked:
        yield Text("new jobs are refused (penstock unblock)", style="yellow")
    if seen.unhandled:
        yield Text(
            f"nobody takes: {', '.join(map(clean, seen.unhandled))}", style="yellow", overflow="ellipsis"
        )
    if seen.given_up:
        yield Text(f"{_counted(seen.given_up, seen)} callbacks were given up", style="yellow")


def _types(glance: Glance, rows: int) -> Table:
    seen = glance.overview
    table = _table(
        "type", "ready", "oldest", "pending", "running", "completed", "failed", "in/s", "done/s", "fail/s"
    )
    busiest = sorted(seen.types, key=lambda each: (-each.pending - each.running, each.type))
    for view in busiest[:rows]:
        rates = None if glance.rates is None else glance.rates.get(view.type)
        table.add_row(
            Text(clean(view.type)),
            _counted(view.ready, seen),
            _age(view, seen),
            f"{view.pending:,}",
            f"{view.running:,}",
            f"{sum(count for status, count in view.jobs.items() if status == 'completed'):,}",
            f"{sum(count for status, count in view.jobs.items() if status in ('failed', 'dead_letter')):,}",
            *_rate_cells(rates),
        )
    _note_rest(table, len(busiest) - rows, "types")
    return table


def _workers(seen: Overview, rows: int) -> Table:
    table = _table("worker", "state", "beat", "slots", "running", "takes")
    for owner in seen.owners[:rows]:
        table.add_row(
            Text(clean(f"{owner.host}:{owner.pid}")),
            Text("alive", style="green") if owner.is_alive else Text("dead", style="bold red"),
            span(seen.at - owner.beat_at) or "",
            f"{owner.slots:,}",
            f"{owner.running:,}",
            Text(_takes(owner), overflow="ellipsis", no_wrap=True),
        )
    _note_rest(table, len(seen.owners) - rows, "workers")
    if not seen.owners:
        table.add_row(Text("no worker", style="dim"))
    return table


def _failures(glance: Glance, rows: int) -> Table:
    table = _table("failed", "type", "job", "attempt", "status", "error")
    for row in glance.failures[:rows]:
        table.add_row(
            f"{span(max(glance.overview.at - row.recorded_at, timedelta()))} ago",
            Text(clean(row.type)),
            Text(clean(row.job_id), overflow="ellipsis", no_wrap=True),
            f"{row.attempt}",
            f"{row.status}",
            Text(clean(row.error_message.partition("\n")[0][:200]), overflow="ellipsis", no_wrap=True),
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    numbers = {
        "ready",
        "oldest",
        "pending",
        "running",
        "completed",
        "failed",
        "in/s",
        "done/s",
        "fail/s",
        "beat",
        "slots",
        "attempt",
    }
    for number, column in enumerate(columns):
        is_number = column in numbers and number > 0
        table.add_column(
            column.upper(), justify="right" if is_number else "left", no_wrap=is_number or number == 0
        )
    return table


def _note_rest(table: Table, more: int, what: str) -> None:
    if more > 0:
        table.add_row(Text(f"… {more:,} more {what}", style="dim"))


def _takes(owner: OwnerView) -> str:
    if not owner.intakes:
        return "-"
    return "; ".join(
        clean(
            ("any type" if each.types is None else ", ".join(each.types))
            + (f" tagged {', '.join(each.tags)}" if each.tags else "")
        )
        for each in owner.intakes
    )


def _age(view: TypeView, seen: Overview) -> str:
    if view.oldest_ready_at is None:
        return "-"
    return span(max(0.0, (seen.at - view.oldest_ready_at).total_seconds())) or "-"


def _rate_cells(rates: Rates | None) -> tuple[str, str, str]:
    if rates is None:
        return "-", "-", "-"
    return _rate(rates.submitted), _rate(rates.completed), _rate(rates.failed)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _counted(count: int, seen: Overview) -> str:
    return f"{count:,}" if count < seen.most_counted else f"{count:,}+"
