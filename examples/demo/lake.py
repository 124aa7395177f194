"""The journal as tables: the pipeline, a query, the audit and the report, on a Spark that brings its own Java."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark import SyncProgress


#: For a JVM that lives for half a minute: compiling optimised code would take half of that.
BRIEF = {
    "spark.driver.memory": "1g",
    "spark.sql.codegen.wholeStage": False,
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
#: Of a sync: five tables, and the commit.
STEPS = 6


def show(console: Console, url: str, folder: Path) -> int:
    """Sync the journal into a lake, query it, audit it, write the report; return the number of violations."""
    lake, page = folder / "lake", folder / "report.html"
    with session(console, folder / "spark.log") as spark:
        from penstock import spark as ps  # noqa: PLC0415  # seconds, and an extra

        with sync_display(console) as progress:
            report = ps.sync(spark, url, lake, progress=progress)
        console.print(f"  sync     {report.events:,} changes became five tables in {report.seconds:.1f} s")
        show_attempts(console, spark, lake)
        with waiting(console, "Checking every change against the rules"):
            violations = ps.audit(spark, str(lake))
            number, examples = violations.count(), violations.limit(5).collect()
        console.print(f"  audit    {report.events:,} changes checked, {number} violations")
        for row in examples:
            console.print(f"           {row['invariant']}: job {row['job_id']}: {row['detail']}", style="red")
        with waiting(console, "Drawing the report"):
            from penstock.spark.reporting import report_figures, report_page  # noqa: PLC0415  # see above

            page.write_text(report_page(report_figures(spark, lake)), encoding="utf-8")
        console.print(f"  report   {page.stat().st_size / 1e6:.1f} MB, one file, no network needed")
    return number


@contextmanager
def session(console: Console, log: Path) -> Iterator[SparkSession]:
    """Start Spark on this machine, and stop it."""
    with waiting(console, "Starting Spark"), errors_to(log):
        from penstock import spark as ps  # noqa: PLC0415  # see above

        spark = ps.session("local[2]", **BRIEF)
    console.print(
        f"  Spark    {spark.version} on Java {spark.sparkContext._jvm.System.getProperty('java.version')}"  # noqa: SLF001
    )
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def errors_to(log: Path) -> Iterator[None]:
    """Send what the JVM prints at its start to a file instead of stderr."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def show_attempts(console: Console, spark: SparkSession, lake: Path) -> None:
    from pyspark.sql import functions as F  # noqa: PLC0415  # see above

    from penstock import spark as ps  # noqa: PLC0415  # see above

    with waiting(console, "Asking the lake"):
        rows = (
            ps.read_table(spark, lake, "attempts")
            .where("type NOT IN ('fast', 'fetch', 'resize', 'publish', 'delayed')")
            .groupBy("type", "outcome")
            .agg(F.count("*").alias("n"), F.median("wait_seconds"), F.median("run_seconds"))
            .orderBy("type", "outcome")
            .collect()
        )
    table = Table("type", "attempt ended as", "attempts", "waited", "ran", box=None, padding=(0, 2, 0, 0))
    for column in table.columns[2:]:
        column.justify = "right"
    for type_, outcome, number, waited, ran in rows:
        table.add_row(type_, outcome, str(number), _seconds(waited), _seconds(ran))
    console.print("\n  [italic]One query on the table of attempts (medians, in seconds)[/]")
    console.print(table)
    console.print()


def _seconds(value: float | None) -> str:
    return "·" if value is None else f"{value:.2f}"


@contextmanager
def waiting(console: Console, what: str) -> Iterator[None]:
    """Print what is being done; in a terminal, with a spinner until it is done."""
    if console.is_terminal and not console.is_dumb_terminal:
        with console.status(what):
            yield
    else:
        console.print(f"  {what} …")
        yield


@contextmanager
def sync_display(console: Console) -> Iterator[Callable[[SyncProgress], None]]:
    """Show which table a sync is working on."""
    columns = (
        TextColumn("  sync     {task.description:<9}"),
        BarColumn(),
        TimeElapsedColumn(),
    )
    is_live = console.is_terminal and not console.is_dumb_terminal
    seen: dict[str, int] = {}
    with Progress(*columns, console=console, transient=True, disable=not is_live) as display:
        task = display.add_task("events", total=STEPS)

        def show_step(progress: SyncProgress) -> None:
            if not is_live and progress.step not in seen and progress.done < progress.total:
                console.print(f"  Moving the journal into a lake: {progress.step} …")
            number = seen.setdefault(progress.step, len(seen))
            display.update(task, description=progress.step, completed=number)

        yield show_step
