"""`penstock list`: jobs, a page at a time."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from penstock.cli._output import about, clean, emit_json, emit_table, is_terminal, job_fields, local, note
from penstock.cli._store import AsJson, Url, open_store
from penstock.cli._values import Tags, listed
from penstock.job import Job, JobStatus

__all__ = ["list_jobs"]

PAGE: Final = 1000
MOST: Final = 1_000_000


def list_jobs(
    status: Annotated[
        JobStatus | None, typer.Option("--status", "-s", help="Only this status.", show_default=False)
    ] = None,
    type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only this type.")] = None,
    tags: Tags = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=MOST, help="At most so many.")] = 50,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="ID", help="Go on behind this job, the last one of the page before."),
    ] = None,
    oldest: Annotated[bool, typer.Option("--oldest", help="The oldest first.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first.

    A terminal shows how old they are, a pipe when they were created. Payloads and results are left to `penstock show`.

    Examples:
        penstock list --status failed
        penstock list --type resize --tags gpu --limit 200
        penstock list --oldest --json | jq -r .id
    """
    found: list[Job] = []
    with open_store(url) as backend:
        while len(found) < limit:
            page = backend.list_jobs(
                status=status,
                type=type,
                tags=listed(tags),
                after=found[-1].id if found else after,
                limit=min(PAGE, limit - len(found)),
                newest=not oldest,
            )
            found += page
            if len(page) < PAGE:
                break
    if as_json:
        for job in found:
            emit_json(job_fields(job, whole=False))
        return
    when, written = ("age", _age) if is_terminal() else ("created", local)
    emit_table(
        ["id", "type", "status", "attempt", when, "tags", "error"],
        [
            (
                job.id,
                job.type,
                job.status,
                job.attempt,
                written(job.created_at),
                ",".join(job.tags),
                job.error_message.partition("\n")[0],
            )
            for job in found
        ],
        right=["attempt", "age"],
    )
    if len(found) == limit and is_terminal(sys.stderr):
        note(f"there may be more: --after {clean(found[-1].id)}")


def _age(created_at: datetime | None) -> str | None:
    """Return how old a job is: so a row with nothing unusual fits into 80 columns."""
    return None if created_at is None else about(datetime.now(UTC) - created_at)
