"""Questions to the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from penstock.backends import _arguments as arguments
from penstock.backends._overview import MOST_COUNTED, overview_of
from penstock.backends._rows import damage_named, job_of, micros_of, moment_at
from penstock.backends.engine.core import EngineCore, checked_key
from penstock.errors import InvalidArgumentError, JobNotFoundError, shown
from penstock.job import Job, JobStats, JobStatus, JournalEntry, Key
from penstock.overview import Finding, Overview
from penstock.scope import checkpoint

__all__ = ["ReadVerbs"]


class ReadVerbs(EngineCore):
    """The verbs that change nothing."""

    def get_job(self, job_id: str) -> Job:
        arguments.job_id(job_id)
        found = self.get_jobs([job_id])
        if job_id not in found:
            raise JobNotFoundError(job_id)
        return found[job_id]

    def get_jobs(self, job_ids: Iterable[str]) -> dict[str, Job]:
        wanted = arguments.job_ids(job_ids)
        checkpoint()
        rows, now = self._store.fetch_jobs(wanted)
        with damage_named():
            found = {row.id: job_of(row, *blobs, now) for row, blobs in rows}
        return {job_id: found[job_id] for job_id in wanted if job_id in found}

    def get_job_stats(self, tags: Sequence[str] = ()) -> JobStats:
        wanted = arguments.tags(tags)
        checkpoint()
        return self._store.stats(wanted)

    def overview(self) -> Overview:
        checkpoint()
        liveness = micros_of(self._options.liveness)
        return overview_of(self._store.overview(MOST_COUNTED), liveness, MOST_COUNTED)

    def list_jobs(
        self,
        *,
        status: JobStatus | None = None,
        type: str | None = None,
        tags: Sequence[str] = (),
        after: str | None = None,
        limit: int = 100,
        newest: bool = False,
    ) -> list[Job]:
        wanted_status = None if status is None else str(arguments.status(status))
        arguments.optional_text("type", type, arguments.MAX_TYPE)
        wanted_tags = arguments.tags(tags)
        arguments.optional_text("after", after, arguments.MAX_ID)
        arguments.limit(limit, most=1000)
        checkpoint()
        rows, now = self._store.list_jobs(
            status=wanted_status, type=type, tags=wanted_tags, after=after, limit=limit, newest=bool(newest)
        )
        with damage_named():
            return [job_of(row, *blobs, now) for row, blobs in rows]

    def count_keyed(self, key: Key | str | None = None, *, type: str | None = None) -> int:
        wanted = checked_key(key)
        arguments.optional_text("type", type, arguments.MAX_TYPE)
        checkpoint()
        return self._store.count_keyed(wanted, type)

    def list_keyed(
        self, key: Key | str | None = None, *, type: str | None = None, upto: int, limit: int = 1000
    ) -> list[str]:
        wanted = checked_key(key)
        arguments.optional_text("type", type, arguments.MAX_TYPE)
        arguments.limit(limit)
        checkpoint()
        return self._store.list_keyed(wanted, type, upto, limit)

    def read_journal(self, after: int = 0, limit: int = 1000) -> list[JournalEntry]:
        if type(after) is not int or after < 0:
            raise InvalidArgumentError(
                f"after must be a whole number of at least 0, got {shown(after)}", field="after", value=after
            )
        arguments.limit(limit)
        checkpoint()
        return self._store.read_journal(after, limit)

    def job_history(self, job_id: str, limit: int = 1000) -> list[JournalEntry]:
        arguments.job_id(job_id)
        arguments.limit(limit)
        checkpoint()
        found = self._store.job_history(job_id, limit)
        if found is None:
            raise JobNotFoundError(job_id)
        return found

    def store_id(self) -> str:
        checkpoint()
        return self._store.store_id()

    def journal_span(self) -> tuple[int, int]:
        checkpoint()
        return self._store.journal_span()

    def jobs_span(self) -> tuple[int, int]:
        checkpoint()
        return self._store.jobs_span()

    def examine(self) -> list[Finding]:
        checkpoint()
        return self._store.examine()

    def now(self) -> datetime:
        return moment_at(self._store.now())
