from __future__ import annotations

from collections.abc import Sequence

from penstock.backends.contract.overview import MAX_RELEASED, Finding, JobCounts, Overview
from penstock.backends.contract.reading import Reading
from penstock.backends.contract.selection import MAX_ERROR, JobPage, JobSelection, status_filter
from penstock.backends.engine import arguments
from penstock.backends.engine.access import StoreAccess
from penstock.backends.engine.overview import MAX_COUNTED, overview_of
from penstock.backends.engine.rows import micros_of
from penstock.backends.engine.selecting import MAX_SELECTED, Wanted
from penstock.clock import to_micros
from penstock.errors import JobNotFoundError, invalid
from penstock.job import JobStatus, Key
from penstock.scope import checkpoint

__all__ = ["EngineReading"]


class EngineReading(Reading):
    """What people and their tools look at, over a `Store`."""

    def __init__(self, access: StoreAccess) -> None:
        self._store = access.store
        self._options = access.options

    def overview(self) -> Overview:
        checkpoint()
        liveness = micros_of(self._options.liveness)
        return overview_of(self._store.overview(MAX_COUNTED), liveness, MAX_COUNTED)

    def count_jobs(self, tags: Sequence[str] = ()) -> JobCounts:
        wanted = arguments.tags(tags)
        checkpoint()
        counts, released = self._store.counts(wanted, MAX_RELEASED)
        jobs = {JobStatus(status): number for status, number in counts.items() if status}
        return JobCounts.of(jobs, handed_back=released, tags=wanted)

    def select_jobs(
        self,
        selection: JobSelection,
        *,
        after: int | None = None,
        upto: int | None = None,
        limit: int = 1000,
        newest: bool = False,
    ) -> JobPage:
        wanted = _wanted(selection)
        for field, value in (("after", after), ("upto", upto)):
            if value is not None and (type(value) is not int or not 0 <= value < 2**62):
                raise invalid(field, "a whole number of at least 0", value)
        arguments.limit(limit, most=MAX_SELECTED)
        checkpoint()
        return self._store.select_jobs(wanted, after, upto, limit, newest=bool(newest))

    def find_ids(self, prefix: str, limit: int = 10) -> list[str]:
        first = arguments.text("prefix", prefix, arguments.MAX_ID)
        arguments.limit(limit, most=1000)
        checkpoint()
        return [each for each in self._store.ids_from(first, limit) if each.startswith(first)]

    def get_output(self, job_id: str) -> str:
        arguments.job_id(job_id)
        checkpoint()
        data = self._store.fetch_output(job_id)
        if data is None:
            raise JobNotFoundError(job_id)
        return data.decode(errors="replace")

    def jobs_span(self) -> tuple[int, int]:
        checkpoint()
        return self._store.jobs_span()

    def count_keyed(self, key: Key | str | None = None, *, type: str | None = None) -> int:
        wanted = arguments.stored_key(key)
        arguments.optional_text("type", type, arguments.MAX_TYPE)
        checkpoint()
        return self._store.count_keyed(wanted, type)

    def list_keyed(
        self, key: Key | str | None = None, *, type: str | None = None, upto: int, limit: int = 1000
    ) -> list[str]:
        wanted = arguments.stored_key(key)
        arguments.optional_text("type", type, arguments.MAX_TYPE)
        last = arguments.number("upto", upto)
        arguments.limit(limit)
        checkpoint()
        return self._store.list_keyed(wanted, type, last, limit)

    def examine(self) -> list[Finding]:
        checkpoint()
        return self._store.examine()


def _wanted(selection: JobSelection) -> Wanted:
    """Return a selection, once everything in it is known to be storable, as stores compare it."""
    if not isinstance(selection, JobSelection):
        raise invalid("selection", "a JobSelection", selection)
    return Wanted(
        statuses=status_filter(selection.statuses),
        types=arguments.types(selection.types) or (),
        tags=arguments.tags(selection.tags),
        key=arguments.stored_key(selection.key),
        since=None if selection.since is None else to_micros(selection.since),
        until=None if selection.until is None else to_micros(selection.until),
        error=arguments.optional_text("error", selection.error, MAX_ERROR),
        spares_propagated=selection.spares_propagated,
    )
