"""`penstock list`: jobs, all of them or a page."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from penstock.backends import Backend
from penstock.backends.contract.selection import JobSelection
from penstock.cli._fields import job_fields
from penstock.cli._output import emit_json, emit_table, is_terminal, note
from penstock.cli._selection import Selection, resolve_id
from penstock.cli._store import AsJson, Store
from penstock.cli._text import clean, first_line, rough_span, utc_time
from penstock.errors import JobNotFoundError
from penstock.job import Job

__all__ = ["list_jobs"]

#: Jobs that are read at a time: their payloads may be large.
PAGE: Final = 200
MAX_LIMIT: Final = 1_000_000_000
#: Jobs that a terminal shows by default.
SCREENFUL: Final = 50


def list_jobs(
    *,
    selection: Selection,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=1,
            max=MAX_LIMIT,
            help=f"The most jobs to list. Default: {SCREENFUL} on a terminal, else all.",
            show_default=False,
        ),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            "--after", metavar="ID", help="Continue after this job, the last one of the page before."
        ),
    ] = None,
    oldest: Annotated[bool, typer.Option("--oldest", help="List the oldest jobs first.")] = False,
    store: Store,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first.

    A terminal shows the first 50 jobs with their age. A pipe and --json get all jobs with their creation time. If --limit leaves jobs out, a line on stderr says so. `penstock show` prints payloads and results.

    Examples:
        penstock list --status failed,dead
        penstock list --type resize --since 2h --error "disk full"
        penstock list --oldest --json | jq -r .id
    """
    selection.check_limit(limit)
    if limit is None and not selection.every and is_terminal() and not as_json:
        limit = SCREENFUL
    with store.open() as backend:
        start = None if after is None else _number(backend, resolve_id(backend, after))
        jobs = _Limited(_jobs(backend, selection.at(backend.now()), start, newest=not oldest), limit)
        if as_json:
            for job in jobs:
                emit_json(job_fields(job, with_contents=False))
        else:
            _emit_table(jobs)
    if jobs.has_more and jobs.last is not None:
        note(
            f"only {limit} jobs are shown: --after {clean(jobs.last)} continues the list, --all lists all of them"
        )


def _jobs(backend: Backend, selection: JobSelection, after: int | None, *, newest: bool) -> Iterator[Job]:
    """Yield all jobs that match, read page by page."""
    while True:
        page = backend.reading.select_jobs(selection, after=after, limit=PAGE, newest=newest)
        yield from (backend.get_jobs([each.id for each in page.jobs]) if page.jobs else {}).values()
        if page.next is None:
            return
        after = page.next


def _number(backend: Backend, job_id: str) -> int:
    step = backend.runtime.next_steps([job_id]).get(job_id)
    if step is None or step.number is None:
        raise JobNotFoundError(job_id)
    return step.number


class _Limited:
    """Yields jobs up to a limit; keeps the last id, and whether there are more jobs."""

    def __init__(self, jobs: Iterator[Job], limit: int | None) -> None:
        self._jobs = jobs
        self._limit = limit
        self.last: str | None = None
        self.has_more = False

    def __iter__(self) -> Iterator[Job]:
        for job in itertools.islice(self._jobs, self._limit):
            self.last = job.id
            yield job
        self.has_more = self._limit is not None and next(self._jobs, None) is not None


def _emit_table(jobs: _Limited) -> None:
    when, written = ("age", _age) if is_terminal() else ("created", utc_time)
    emit_table(
        ["id", "type", "status", "attempt", when, "tags", "error"],
        (
            (
                job.id,
                job.type,
                job.status,
                job.attempt,
                written(job.created_at),
                ",".join(job.tags),
                first_line(job.error_message),
            )
            for job in jobs
        ),
        right=["attempt", "age"],
    )


def _age(created_at: datetime | None) -> str | None:
    """Return the age of a job, which is short enough for a row to fit into 80 columns."""
    return None if created_at is None else rough_span(datetime.now(UTC) - created_at)
