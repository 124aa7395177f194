"""`penstock stats`: how many jobs are where."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli._loading import load_app
from penstock.cli._output import clean, emit, emit_json, emit_table
from penstock.cli._store import AsJson, StoreSchema, Url, open_store
from penstock.cli._values import listed
from penstock.job import JobStats

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
    tags: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TAGS", help="A row for each: a tag, or a,b for jobs with both.", show_default=False
        ),
    ] = None,
    app: Annotated[
        str | None,
        typer.Option(
            "--app", metavar="MODULE:APP", help="Also tell which ready types this app has no handler for."
        ),
    ] = None,
    url: Url = None,
    store_schema: StoreSchema = None,
    as_json: AsJson = False,
) -> None:
    """Count jobs: all of them, and those with certain tags.

    PENDING has not run yet, FAILED waits for a retry, STOPPED ended without success.

    Examples:
        penstock stats
        penstock stats gpu customer=42,urgent
        penstock stats --app shop.jobs:app --json
    """
    handled = None if app is None else set(load_app(app).tasks)
    with open_store(url, store_schema) as backend:
        rows = [backend.get_job_stats(listed([each])) for each in tags or ()]
        whole = backend.get_job_stats()
        is_blocked = backend.is_blocked()
        ready = backend.ready_filters()
    types = None if ready is None else sorted(ready[0])
    unhandled = None if handled is None or types is None else [each for each in types if each not in handled]
    if as_json:
        extra = {"blocked": is_blocked, "ready_types": types, "unhandled_types": unhandled}
        emit_json(_fields(whole) | extra)
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
    if is_blocked:
        emit("new jobs are refused (penstock unblock)")
    if types:
        emit(f"ready types: {', '.join(map(clean, types))}")
    if unhandled:
        emit(f"no handler in {clean(app)}: {', '.join(map(clean, unhandled))}")


def _fields(row: JobStats) -> dict[str, Any]:
    return {"tags": row.tags, **{each: getattr(row, each) for each in _COUNTS}}
