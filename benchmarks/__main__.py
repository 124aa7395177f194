"""Measure Penstock beside the raw store, in one run, and print ratios. Nothing is asserted.

python -m benchmarks                                all workloads on SQLite (and PostgreSQL if it is installed)
python -m benchmarks --quick                        a first look in about a minute
python -m benchmarks w1 w1c --store sqlite          some of them
python -m benchmarks tags --plot two-tags.png       the cost of two common tags, drawn
python -m benchmarks.peers                          beside other queues: `make bench-peers`
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import (
    claiming,
    forking,
    lake,
    looping,
    pinned,
    plotting,
    processes,
    report,
    spark,
    streaming,
    submitting,
    working,
)
from benchmarks.results import Result
from benchmarks.settings import Settings
from benchmarks.slow_flush import slow_flushes
from benchmarks.stores import SqliteNormalTarget, SqliteTarget, Target

MEMORY: Final = Path("/dev/shm")
Workload = Callable[[Target, Settings], Iterator[Result]]

WORKLOADS: Final[dict[str, Workload]] = {
    "w1": submitting.one_client,
    "w1c": submitting.eight_threads,
    "w1c-slow": submitting.eight_threads_slow_flush,
    "w2": submitting.bulk,
    "loop": looping.loop,
    "flat": claiming.flat,
    "tags": claiming.two_common_tags,
    "pinned": pinned.pinned,
    "stats": claiming.statistics_cost,
    "writers": processes.writers,
    "million": processes.million,
    "w3": streaming.end_to_end,
    "w3t": working.on_threads,
    "w3p": forking.isolated,
    "w4": streaming.latency,
    "w4p": working.latency,
    "streams": streaming.many_streams,
    "spark-read": spark.read,
    "spark-sink": spark.sink,
    "spark-frames": spark.frames,
    "lake": lake.lake,
    "audit": lake.audit,
}


class Store(StrEnum):
    SQLITE = "sqlite"
    SQLITE_NORMAL = "sqlite-normal"
    POSTGRES = "postgres"
    ALL = "all"


def main(
    workloads: Annotated[list[str] | None, typer.Argument(help=f"Any of: {', '.join(WORKLOADS)}.")] = None,
    store: Annotated[list[Store] | None, typer.Option(help="May be given several times.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Alternating rounds of ours and raw.")] = 6,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds, smaller stores.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Where files lie; the disk that is measured.")] = None,
    flush: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            help="SQLite: keep files in memory and let each flush take so long; for a busy disk.",
        ),
    ] = None,
    postgres_url: Annotated[str | None, typer.Option(help="A server; else the pgserver wheel's own.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write all figures here.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the cost of two common tags (workload: tags).")
    ] = None,
) -> None:
    """Measure Penstock beside the raw store and print ratios."""
    unknown = sorted(set(workloads or ()) - WORKLOADS.keys())
    if unknown:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    console = Console()
    if not console.is_terminal:
        console.width = 150  # of a file or a pipe, where nothing says how wide it may be
    if flush is not None and folder is None and MEMORY.is_dir():
        folder = MEMORY
    chosen = [WORKLOADS[name] for name in workloads or WORKLOADS]
    with tempfile.TemporaryDirectory(
        prefix="penstock-bench-", dir=folder, ignore_cleanup_errors=True
    ) as place:
        targets = _targets(store or [Store.ALL], Path(place), postgres_url, console)
        facts = report.machine(Path(place), flush)
        for target in targets:
            facts |= target.facts()
        for name, value in facts.items():
            console.print(f"[bold]{name:14}[/] {value}", highlight=False)
        results = _run(targets, chosen, min(rounds, 2) if quick else rounds, quick, flush, console)
        facts["flush, end"] = report.flush(Path(place), flush)
    console.print(report.table(results))
    for line in (
        f"flush at the end: {facts['flush, end']}",
        *report.notes(results),
        plotting.text_plot(results),
    ):
        console.print(line, highlight=False)
    if plot is not None:
        console.print(plotting.write_plot(results, plot))
    if json_file is not None:
        everything = {"facts": facts, "results": [each.as_json() for each in results]}
        json_file.write_text(json.dumps(everything, indent=1))


def _run(
    targets: Sequence[Target],
    workloads: Sequence[Workload],
    rounds: int,
    quick: bool,
    flush: float | None,
    console: Console,
) -> list[Result]:
    results: list[Result] = []
    disk = nullcontext() if flush is None else slow_flushes(flush / 1000)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    try:
        with disk, Progress(*columns, console=console, transient=True) as display:
            settings = Settings(rounds, quick, display)
            for target in targets:
                for workload in workloads:
                    _measure(workload, target, settings, results)
    except KeyboardInterrupt:
        console.print("[yellow]interrupted; what was measured so far:[/]")
    finally:
        for target in targets:
            target.close()
    return results


def _measure(workload: Workload, target: Target, settings: Settings, results: list[Result]) -> None:
    """Add a workload's results; what goes wrong in one does not lose the others."""
    try:
        results.extend(workload(target, settings))
    except Exception as error:
        settings.say(f"{workload.__name__} on {target.name} failed: {type(error).__name__}: {error}")


def _targets(stores: list[Store], folder: Path, postgres_url: str | None, console: Console) -> list[Target]:
    wanted = {Store.SQLITE, Store.POSTGRES} if Store.ALL in stores else set()
    wanted |= set(stores)
    targets: list[Target] = []
    if Store.SQLITE in wanted:
        targets.append(SqliteTarget(folder))
    if Store.SQLITE_NORMAL in wanted:
        targets.append(SqliteNormalTarget(folder))
    if Store.POSTGRES in wanted:
        try:
            from benchmarks.postgres import PostgresTarget  # noqa: PLC0415  # its driver is an extra

            targets.append(PostgresTarget(folder, postgres_url))
        except ImportError as error:
            console.print(f"[yellow]PostgreSQL is left out: {error}[/]")
    return targets


if __name__ == "__main__":
    typer.run(main)
