"""`penstock stats`: counts of jobs."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from penstock.backends.contract.overview import JobCounts, Overview, TypeView, is_handled
from penstock.backends.contract.selection import STATUS_GROUPS
from penstock.cli._counts import bounded_fields, count_cell, count_cells, count_fields
from penstock.cli._output import emit, emit_json, emit_table, emit_text, is_terminal, stdout_console
from penstock.cli._store import AsJson, Store
from penstock.cli._text import clean, span
from penstock.cli._values import listed
from penstock.job import JobStats

__all__ = ["stats"]


def stats(
    *,
    groups: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TAGS",
            help="Add a row for this tag, or for a,b: jobs with both tags.",
            show_default=False,
        ),
    ] = None,
    tags: Annotated[
        list[str] | None,
        typer.Option(
            "--tags",
            "-t",
            metavar="TAG",
            help="Add a row for jobs that have all of these tags. Use a,b or repeat the option.",
            show_default=False,
        ),
    ] = None,
    store: Store,
    as_json: AsJson = False,
) -> None:
    """Count jobs: all of them, and those with certain tags.

    PENDING jobs were never claimed. RETRYING jobs failed or were lost, and will run again. HANDED BACK jobs were released by a worker that stopped, and will run again. COMPLETED, FAILED (permanently), DEAD (no attempt left) and CANCELLED jobs have ended. `penstock list --status` takes the same words.

    A second table has a row for each type with unfinished jobs. READY jobs could be claimed now; 10,000+ means that counting stopped there. Types that no living worker claims are named below the table.

    With --json, `ready_at_least` is true if counting of `ready` stopped early. Keys that end in _jobs, and total_retries, are those of `get_job_stats`, which has fewer groups: its failed_jobs wait for a retry, its stopped_jobs ended without success, and its total_retries are attempts that failed or were handed back.

    Examples:
        penstock stats
        penstock stats gpu customer=42,urgent
        penstock stats --json
    """
    with store.open() as backend:
        wanted = [listed([each]) for each in groups or ()] + ([listed(tags)] if tags else [])
        rows = [backend.reading.count_jobs(each) for each in wanted]
        whole = backend.reading.count_jobs()
        seen = backend.reading.overview()
        if as_json:
            _emit_json(whole, backend.get_job_stats(), seen)
            for row in rows:
                emit_json(_fields(row, backend.get_job_stats(row.tags)))
            return
    _emit_tables(whole, rows, seen)


def _width(columns: list[str], cells: list[tuple[str, ...]]) -> int:
    """Return the width of a table on a terminal."""
    return sum(max(map(len, each)) + 2 for each in zip(columns, *cells, strict=True)) - 2


def _busy(seen: Overview) -> list[TypeView]:
    return [each for each in seen.types if each.pending or each.running]


def _emit_tables(whole: JobCounts, rows: list[JobCounts], seen: Overview) -> None:
    columns = ["tags", "total", *(name.replace("_", " ") for name in STATUS_GROUPS)]
    cells = [
        (name, str(row.total), *count_cells(row).values())
        for name, row in [("(all)", whole), *((", ".join(row.tags), row) for row in rows)]
    ]
    if is_terminal() and _width(columns, cells) > stdout_console().width:
        # Transposed: a row for each status, a column for each set of tags.
        names = [row[0] for row in cells]
        transposed = zip(columns[1:], *(row[1:] for row in cells), strict=True)
        emit_table(["jobs", *names], list(transposed), right=names)
    else:
        emit_table(columns, cells, right=columns[1:])
    busy = _busy(seen)
    if busy:
        emit()
        names = ["ready", "pending", "running", "retrying", "handed back"]
        emit_table(
            ["type", *names, "oldest ready"],
            [
                (
                    each.type,
                    count_cell(each.ready, seen.most_counted),
                    *(count_cells(each.counts)[name.replace(" ", "_")] for name in names[1:]),
                    None if each.oldest_ready_at is None else span(seen.at - each.oldest_ready_at),
                )
                for each in busy
            ],
            right=[*names, "oldest ready"],
        )
    if seen.is_blocked:
        emit("new jobs are refused (penstock unblock)")
    if seen.unhandled:
        emit_text(f"no living worker claims: {', '.join(map(clean, seen.unhandled))}")


def _emit_json(whole: JobCounts, stats: JobStats, seen: Overview) -> None:
    emit_json(
        _fields(whole, stats)
        | {
            "blocked": seen.is_blocked,
            **bounded_fields("delayed", seen.delayed, seen.most_counted),
            "oldest_ready_seconds": seen.oldest_ready,
            "workers": len(seen.living),
            "types": [
                {
                    "type": each.type,
                    **bounded_fields("ready", each.ready, seen.most_counted),
                    **count_fields(each.counts),
                    "oldest_ready_at": each.oldest_ready_at,
                    "handled": is_handled(each.type, seen.living),
                }
                for each in _busy(seen)
            ],
            "unhandled_types": seen.unhandled,
        }
    )


def _fields(row: JobCounts, stats: JobStats) -> dict[str, Any]:
    return {"tags": row.tags, **count_fields(row), **msgspec.structs.asdict(stats)}
