"""`penstock journal`: every change of every job, as it was written."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Annotated, Final

import typer

from penstock.backends.base import Backend
from penstock.cli._output import TableWriter, emit_json, journal_fields, local
from penstock.cli._store import AsJson, Url, open_store
from penstock.errors import BackendError, InvalidArgumentError
from penstock.job import JournalEntry

__all__ = ["journal"]

PAGE: Final = 1000
MOST: Final = 100_000_000
LOOK_SECONDS: Final = 0.5
_COLUMNS: Final = {
    "seq": 8,
    "time": 20,
    "job": 36,
    "type": 12,
    "step": 8,
    "status": 15,
    "attempt": 7,
    "what": 0,
}


def journal(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    after: Annotated[
        int | None,
        typer.Option("--after", metavar="SEQ", min=0, help="From behind this row; 0 is from the start."),
    ] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="Only this job.")] = None,
    limit: Annotated[
        int,
        typer.Option("--limit", "-n", min=1, max=MOST, help="At most so many rows, before what is followed."),
    ] = 50,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the journal: the latest changes, or those after a row.

    Examples:
        penstock journal
        penstock journal --after 0 --limit 1000 --json
        penstock journal --follow
        penstock journal --job 5f8c9a4e-0d3b-4c1e-9d59-0b8f4f6f1a2b
    """
    with open_store(url) as backend:
        first, last = backend.journal_span()
        if after is not None and after > last:
            raise InvalidArgumentError(
                f"the journal ends at row {last}, --after is {after}", field="after", value=after
            )
        reached = last
        if job is not None:
            entries = backend.job_history(job, limit)
            rows: Iterator[JournalEntry] = iter([each for each in entries if each.seq > (after or 0)])
        else:
            start = max(first - 1, last - limit) if after is None else after
            rows = _pages(backend, start, limit)
        writer = None if as_json else TableWriter(_COLUMNS)
        for entry in rows:
            _print(entry, writer)
            reached = max(reached, entry.seq) if job is not None else entry.seq
        if follow:
            sys.stdout.flush()
            for entry in _coming(backend, reached):
                if job is None or entry.job_id == job:
                    _print(entry, writer)


def _pages(backend: Backend, after: int, limit: int) -> Iterator[JournalEntry]:
    left = limit
    while left > 0:
        page = backend.read_journal(after, min(PAGE, left))
        yield from page
        if len(page) < min(PAGE, left):
            return
        left -= len(page)
        after = page[-1].seq


def _coming(backend: Backend, after: int) -> Iterator[JournalEntry]:
    """Yield rows as they come, for ever: soon after a hint of the store, and at the latest by looking."""
    changed = threading.Event()
    stop = backend.watch(changed.set)
    try:
        while True:
            changed.clear()
            try:
                page = backend.read_journal(after, PAGE)
            except BackendError as error:
                if not error.retryable:
                    raise
                page = []
            if page:
                yield from page
                after = page[-1].seq
                sys.stdout.flush()
            else:
                changed.wait(LOOK_SECONDS)
    finally:
        stop()


def _print(entry: JournalEntry, writer: TableWriter | None) -> None:
    if writer is None:
        emit_json(journal_fields(entry))
        return
    writer.write(
        entry.seq,
        local(entry.recorded_at),
        entry.job_id,
        entry.type,
        entry.verb,
        entry.status,
        entry.attempt,
        entry.error_message.partition("\n")[0] or entry.assignee_id,
    )
