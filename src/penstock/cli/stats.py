"""`penstock stats`: how many jobs are where."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli._output import clean, emit, emit_json, emit_table, span
from penstock.cli._store import AsJson, Url, open_store
from penstock.cli._values import Tags, listed
from penstock.job import JobStats
from penstock.overview import is_handled

__all__ = ["stats"]

_COUNTS = (
    "total_jobs",
    "pending_jobs",
    "running_jobs",
    "failed_jobs",
    "completed_jobs",
    "stopped_jobs",
    "total_retries",
)


def stats(
    groups: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TAGS", help="A row for each: a tag, or a,b for jobs with both.", show_default=False
        ),
    ] = None,
    tags: Tags = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Count jobs: all of them, and those with certain tags.

    PENDING has not run yet, FAILED waits for a retry, STOPPED ended without success. A second table has a row for each
    type with unfinished jobs; types that no living worker takes are named below it.

    Examples:
        penstock stats
        penstock stats gpu customer=42,urgent
        penstock stats --json
    """
    with open_store(url) as backend:
        wanted = [listed([each]) for each in groups or ()] + ([listed(tags)] if tags else [])
        rows = [backend.get_job_stats(each) for each in wanted]
        whole = backend.get_job_stats()
        seen = backend.overview()
    busy = [each for each in seen.types if each.pending or each.running]
    if as_json:
        emit_json(
            _fields(whole)
            | {
                "blocked": seen.is_blocked,
                "delayed": seen.delayed,
                "oldest_ready_seconds": seen.oldest_ready,
                "workers": len(seen.living),
                "types": [
                    {
                        "type": each.type,
                        "pending": each.pending,
                        "ready": each.ready,
                        "running": each.running,
                        "oldest_ready_at": each.oldest_ready_at,
                        "handled": is_handled(each.type, seen.living),
                    }
                    for each in busy
                ],
                "unhandled_types": seen.unhandled,
            }
        )
        for row in rows:
            emit_json(_fields(row))
        return
    names = [each.rpartition("_jobs")[0] or "retries" for each in _COUNTS]
    emit_table(
        ["tags", *names],
        [
            (name, *(getattr(row, each) for each in _COUNTS))
            for name, row in [("(all)", whole), *((", ".join(row.tags), row) for row in rows)]
        ],
        right=names,
    )
    if busy:
        emit()
        emit_table(
            ["type", "pending", "ready", "running", "oldest ready"],
            [
                (
                    each.type,
                    each.pending,
                    each.ready,
                    each.running,
                    None if each.oldest_ready_at is None else span(seen.at - each.oldest_ready_at),
                )
                for each in busy
            ],
            right=["pending", "ready", "running", "oldest ready"],
        )
    if seen.is_blocked:
        emit("new jobs are refused (penstock unblock)")
    if seen.unhandled:
        emit(f"no living worker takes: {', '.join(map(clean, seen.unhandled))}")


def _fields(row: JobStats) -> dict[str, Any]:
    return {"tags": row.tags, **{each: getattr(row, each) for each in _COUNTS}}
