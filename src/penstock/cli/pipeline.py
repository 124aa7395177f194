"""`penstock pipeline run`: move the journal into a lake."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli._output import counted, emit, stderr_console
from penstock.cli._spark import Master, Urls, check_places, spark_session, urls_or_default

if TYPE_CHECKING:
    from penstock.spark import SyncProgress

__all__ = ["pipeline"]

pipeline = typer.Typer(no_args_is_help=True, help="Keep a lake of Parquet tables up to date.")


@pipeline.callback()
def _group() -> None:
    """Keep `pipeline` a group, however few commands it has."""


@pipeline.command("run")
def run(
    lake: Annotated[
        Path, typer.Option("--lake", "-l", envvar="PENSTOCK_LAKE", help="The lake's folder; made if missing.")
    ],
    url: Urls = None,
    continuous: Annotated[bool, typer.Option("--continuous", help="Go on until SIGTERM or Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two looks, with --continuous.")] = 30.0,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="First make every table but events again.")
    ] = False,
    master: Master = None,
) -> None:
    """Bring a lake up to date with journals.

    What the journals have gained is moved there, and its tables are made to show it.

    Examples:
        penstock pipeline run --lake lake
        penstock pipeline run --lake lake --continuous --interval 60
    """
    stop = threading.Event()
    urls = urls_or_default(url)
    check_places(urls=urls)
    with spark_session(master) as spark, _stopping(stop), _bar() as progress:
        from penstock.spark import sync  # noqa: PLC0415  # needs Spark

        report = sync(
            spark,
            urls,
            lake,
            rebuild=rebuild,
            continuous=continuous,
            interval=interval,
            stop=stop,
            progress=progress,
        )
    batches = "batch" if report.batches == 1 else "batches"
    emit(
        f"{counted(report.events, 'change')} in {report.batches} {batches}, {report.seconds:.1f} s; the lake is {lake}"
    )


@contextmanager
def _stopping(stop: threading.Event) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C end the work after the batch that is under way; a second one ends it at once."""

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
