"""Measure Penstock beside the raw store, in one run, and print ratios. Nothing is asserted.

python -m benchmarks                                all workloads on SQLite (and PostgreSQL if it is installed)
python -m benchmarks --quick                        a first look in about a minute
python -m benchmarks w1 w1c --store sqlite          some of them
python -m benchmarks tags --plot two-tags.png       the cost of two common tags, drawn
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import claiming, looping, plotting, processes, report, submitting
from benchmarks.peers import compare
from benchmarks.results import Result
from benchmarks.settings import Settings
from benchmarks.stores import SqliteNormalTarget, SqliteTarget, Target

Workload = Callable[[Target, Settings], Iterator[Result]]

WORKLOADS: Final[dict[str, Workload]] = {
    "w1": submitting.one_client,
    "w1c": submitting.eight_threads,
    "w1c-slow": submitting.eight_threads_slow_flush,
    "w2": submitting.bulk,
    "loop": looping.loop,
    "flat": claiming.flat,
    "tags": claiming.two_common_tags,
    "stats": claiming.statistics_cost,
    "writers": processes.writers,
    "million": processes.million,
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
    peers: Annotated[bool, typer.Option("--peers", help="Also measure the other queues installed.")] = False,
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
    place = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=folder))
    targets = _targets(store or [Store.ALL], place, postgres_url, console)
    facts = report.machine(place)
    for target in targets:
        facts |= target.facts()
    for name, value in facts.items():
        console.print(f"[bold]{name:14}[/] {value}", highlight=False)
    results: list[Result] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True) as display:
            settings = Settings(min(rounds, 2) if quick else rounds, quick, display)
            for target in targets:
                for name in workloads or ([] if peers else WORKLOADS):
                    _measure(WORKLOADS[name], target, settings, results)
                if peers:
                    _measure(compare, target, settings, results)
    except KeyboardInterrupt:
        console.print("[yellow]interrupted; what was measured so far:[/]")
    finally:
        for target in targets:
            target.close()
        shutil.rmtree(place, ignore_errors=True)
    console.print(report.table(results))
    for note in report.notes(results):
        console.print(note, highlight=False)
    drawn = plotting.text_plot(results)
    if drawn:
        console.print(drawn, highlight=False)
    if plot is not None:
        console.print(plotting.write_plot(results, plot))
    if json_file is not None:
        json_file.write_text(
            json.dumps({"facts": facts, "results": [each.as_json() for each in results]}, indent=1)
        )


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
