"""`penstock journal`: the recorded changes of jobs."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Annotated, Final, NamedTuple

import typer

from penstock.backends import Backend
from penstock.backends.contract.selection import JobSelection, status_filter
from penstock.cli._fields import journal_fields
from penstock.cli._output import TableWriter, emit_json, note
from penstock.cli._selection import Selection, resolve_id
from penstock.cli._store import AsJson, Store
from penstock.cli._text import first_line, utc_time
from penstock.errors import BackendError, InvalidArgumentError
from penstock.job import JobStatus, JournalEntry
from penstock.lifecycle import Verb

__all__ = ["journal"]

PAGE: Final = 1000
MAX_LIMIT: Final = 100_000_000
#: Rows that are shown by default.
LATEST: Final = 50
POLL_SECONDS: Final = 0.5
#: Rows are numbered in commit order: the time of a row may differ this much from that of its neighbours.
DISORDER: Final = timedelta(hours=1)
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
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new rows as they are recorded, until Ctrl-C.")
    ] = False,
    after: Annotated[
        int | None,
        typer.Option(
            "--after", metavar="SEQ", min=0, help="Begin after the row with this number; 0 is the start."
        ),
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(
            "--job", metavar="ID", help="Rows of this job. The beginning of an id is enough if it is unique."
        ),
    ] = None,
    selection: Selection,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=1,
            max=MAX_LIMIT,
            help=f"The most rows to print, not counting those of --follow. Default: {LATEST}; with --since, all.",
            show_default=False,
        ),
    ] = None,
    store: Store,
    as_json: AsJson = False,
) -> None:
    """Show the journal: the recorded changes of jobs.

    Without --after, --since or --all it prints the latest 50 rows that match. If that leaves rows out, a line on stderr says so. --status, --type, --tags, --key and --error are compared with the rows, not with the jobs as they are now.

    Examples:
        penstock journal
        penstock journal --after 0 --limit 1000 --json
        penstock journal --since 1h --type resize --status failed,dead
        penstock journal --follow
        penstock journal --job 5f8c9a4e
    """
    selection.check_limit(limit)
    with store.open() as backend:
        job_id = None if job is None else resolve_id(backend, job)
        reader = _Reader(backend, selection.at(backend.now()), job_id, after)
        is_unlimited = selection.every or selection.since is not None
        most = limit if limit is not None else None if is_unlimited else LATEST
        from_start = after is not None or is_unlimited
        rows = reader.forwards(most) if from_start else reader.latest(most)
        writer = None if as_json else TableWriter(_COLUMNS)
        for entry in rows:
            _print(entry, writer)
        if reader.has_more:
            which = "first" if from_start else "latest"
            note(f"only the {which} {most} rows are shown; --limit shows more, --all shows all")
        if follow:
            sys.stdout.flush()
            for entry in _follow(backend, reader.last):
                if (job_id is None or entry.job_id == job_id) and reader.matches(entry):
                    _print(entry, writer)


class Span(NamedTuple):
    """Journal rows after `after`, up to and including `upto`."""

    after: int
    upto: int


class _Reader:
    """Reads the journal rows that match, from the start or from the end.

    Args:
        backend: the store.
        selection: matched with the rows; its times are those of the rows.
        job_id: only this job.
        after: only rows with a higher number.

    Raises:
        InvalidArgumentError: the journal ends before `after`.
    """

    def __init__(
        self, backend: Backend, selection: JobSelection, job_id: str | None, after: int | None
    ) -> None:
        self._backend = backend
        self._selection = selection
        self._job_id = job_id
        first, self.last = backend.journal.span()
        if after is not None and after > self.last:
            raise InvalidArgumentError(
                f"the journal ends at row {self.last}, --after is {after}", field="after", value=after
            )
        self._span = Span(first - 1 if after is None else max(after, first - 1), self.last)
        self.matches = _matcher(selection)
        #: Whether the limit left out rows that match.
        self.has_more = False

    def forwards(self, most: int | None) -> Iterator[JournalEntry]:
        """Yield rows from the start, up to a limit."""
        for number, entry in enumerate(self._from_start()):
            if number == most:
                self.has_more = True
                return
            yield entry

    def _from_start(self) -> Iterator[JournalEntry]:
        if self._job_id is not None:
            history = self._backend.journal.history(self._job_id, MAX_LIMIT)
            yield from (each for each in history if each.seq > self._span.after and self.matches(each))
            return
        span = self._narrowed()
        after = span.after
        while after < span.upto:
            page = self._backend.read_journal(after, min(PAGE, span.upto - after))
            if not page:
                return
            yield from filter(self.matches, page)
            after = page[-1].seq

    def latest(self, most: int | None) -> list[JournalEntry]:
        """Return the last rows that match, oldest first."""
        found: deque[JournalEntry] = deque()
        for entry in self._from_end():
            if len(found) == most:
                self.has_more = True
                break
            found.appendleft(entry)
        return list(found)

    def _from_end(self) -> Iterator[JournalEntry]:
        if self._job_id is not None:
            yield from reversed(list(self._from_start()))
            return
        span = self._narrowed()
        upto = span.upto
        while upto > span.after:
            start = max(span.after, upto - PAGE)
            yield from filter(self.matches, reversed(self._backend.read_journal(start, upto - start)))
            upto = start

    def _narrowed(self) -> Span:
        """Return the span of rows near the selected times, found by binary search."""
        after, upto = self._span
        if self._selection.since is not None:
            after = max(after, self._first_at(self._selection.since - DISORDER) - 1)
        if self._selection.until is not None:
            upto = min(upto, self._first_at(self._selection.until + DISORDER))
        return Span(after, upto)

    def _first_at(self, moment: datetime) -> int:
        """Return the number of the first row recorded at or after a time; one past the end if there is none."""
        low, high = self._span.after + 1, self._span.upto + 1
        while low < high:
            middle = (low + high) // 2
            page = self._backend.read_journal(middle - 1, 1)
            if not page or page[0].recorded_at >= moment:
                high = middle
            else:
                low = page[0].seq + 1
        return low


def _matcher(wanted: JobSelection) -> Callable[[JournalEntry], bool]:
    """Return a function that tests whether a row matches."""
    statuses = status_filter(wanted.statuses)
    error = None if wanted.error is None else wanted.error.lower()

    def matches(entry: JournalEntry) -> bool:
        if statuses is not None:
            if entry.status not in statuses.statuses:
                return False
            is_released = entry.verb == Verb.RELEASE
            if entry.status is JobStatus.FAILED_RETRY and statuses.released not in (None, is_released):
                return False
        return (
            (not wanted.types or entry.type in wanted.types)
            and set(wanted.tags) <= set(entry.tags)
            and wanted.key in (None, entry.key)
            and (wanted.since is None or entry.recorded_at >= wanted.since)
            and (wanted.until is None or entry.recorded_at < wanted.until)
            and (error is None or error in entry.error_message.lower())
        )

    return matches


def _follow(backend: Backend, after: int) -> Iterator[JournalEntry]:
    """Yield new rows without end: when the store notifies, and at the latest when it is polled."""
    changed = threading.Event()
    stop = backend.runtime.watch(changed.set)
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
                changed.wait(POLL_SECONDS)
    finally:
        stop()


def _print(entry: JournalEntry, writer: TableWriter | None) -> None:
    if writer is None:
        emit_json(journal_fields(entry))
        return
    writer.write(
        entry.seq,
        utc_time(entry.recorded_at),
        entry.job_id,
        entry.type,
        entry.verb,
        entry.status,
        entry.attempt,
        first_line(entry.error_message) or entry.assignee_id,
    )
