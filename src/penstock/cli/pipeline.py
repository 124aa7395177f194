"""`penstock pipeline run`: copy the journal of stores into a lake."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli._command import Group, add_command
from penstock.cli._output import emit, stderr_console
from penstock.cli._settings import DURATION
from penstock.cli._spark import Master, Urls, check_places, spark_session, urls_or_default
from penstock.cli._store import CONNECT_TIMEOUT, ConnectTimeout
from penstock.cli._text import counted
from penstock.cli._values import as_seconds

if TYPE_CHECKING:
    from penstock.spark import SyncProgress

__all__ = ["pipeline"]

pipeline = typer.Typer(cls=Group, no_args_is_help=True, help="Keep a lake of Parquet tables up to date.")


@pipeline.callback()
def _group() -> None:
    """Keep `pipeline` a group although it has one command."""


def run(
    lake: Annotated[
        Path,
        typer.Option(
            "--lake", "-l", envvar="PENSTOCK_LAKE", help="The folder of the lake; created if missing."
        ),
    ],
    url: Urls = None,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Poll the journals until SIGTERM or Ctrl-C.")
    ] = False,
    interval: Annotated[
        str, typer.Option(metavar=DURATION, help="The time between two polls, with --continuous.")
    ] = "30s",
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="First rebuild every table except events.")
    ] = False,
    master: Master = None,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT,
) -> None:
    """Bring a lake up to date with the journals of stores.

    New journal rows are copied into the lake, and its tables are updated.

    Examples:
        penstock pipeline run --lake lake
        penstock pipeline run --lake lake --continuous --interval 60
    """
    seconds = as_seconds(interval, "interval", low=0.001)
    stop = threading.Event()
    urls = urls_or_default(url)
    check_places(lake, urls, connect_timeout=connect_timeout, makes_lake=True)
    with spark_session(master) as spark, _stopping(stop), _bar() as progress:
        from penstock.spark import sync  # noqa: PLC0415  # needs Spark

        report = sync(
            spark,
            urls,
            lake,
            rebuild=rebuild,
            continuous=continuous,
            interval=seconds,
            stop=stop,
            progress=progress,
        )
    batches = "batch" if report.batches == 1 else "batches"
    emit(
        f"{counted(report.events, 'change')} in {report.batches} {batches}, {report.seconds:.1f} s; the lake is {lake}"
    )


@contextmanager
def _stopping(stop: threading.Event) -> Iterator[None]:
    """Stop after the current batch on SIGTERM or Ctrl-C, and at once on a second one."""

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    kept = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


@contextmanager
def _bar() -> Iterator[Callable[[SyncProgress], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    screen = stderr_console()
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as display:
        task = display.add_task("events", total=None)

        def show(progress: SyncProgress) -> None:
            display.update(
                task, description=progress.step, completed=progress.done, total=progress.total or 1
            )

        yield show


add_command(pipeline, "run", run)
