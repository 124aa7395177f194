from __future__ import annotations

from bisect import bisect_right
from datetime import datetime, timedelta
from typing import Any

import msgspec

from penstock.job import JournalArchive, JournalConsumer, JournalEntry
from penstock.lifecycle import Verb
from penstock.testing import _checks as check
from penstock.testing.model._core import ModelCore
from penstock.testing.model._rows import entries_into


class ModelJournal(ModelCore):
    """See `penstock.backends.contract.journal`."""

    def store_id(self) -> str:
        self._check_usable()
        return self._store_id

    def read_journal(self, after: int = 0, limit: int = 1000) -> list[JournalEntry]:
        check.whole("after", after, 0, 2**62)
        check.whole("limit", limit, 1, 2**31)
        self._check_usable()
        with self._lock:
            start = bisect_right(self._journal, after, key=lambda row: row.seq)
            return self._journal[start : start + limit]

    def job_history(self, job_id: str, limit: int = 1000) -> list[JournalEntry]:
        check.text("job_id", job_id, check.MAX_ID)
        check.whole("limit", limit, 1, 2**31)
        self._check_usable()
        with self._lock:
            self._row(job_id)
            found: list[JournalEntry] = []
            for row in self._journal:
                if row.job_id == job_id:
                    found = [] if row.verb in (Verb.DELETE, Verb.CLEANUP) else [*found, row]
            return found[-limit:]

    def journal_span(self) -> tuple[int, int]:
        self._check_usable()
        with self._lock:
            return (self._journal[0].seq, self._last_seq()) if self._journal else (1, 0)

    def register_consumer(self, name: str, *, seq: int = 0) -> JournalConsumer:
        check.text("name", name, check.MAX_NAME)
        check.whole("seq", seq, 0, 2**62)
        with self._transaction() as now:
            if name not in self._consumers:
                self._check_reached(seq)
                self._consumers[name] = JournalConsumer(name=name, seq=seq, updated_at=now)
            return self._consumers[name]

    def hold_consumer(self, name: str, holder: str, lease: timedelta | float) -> JournalConsumer | None:
        check.text("name", name, check.MAX_NAME)
        check.text("holder", holder, check.MAX_ID)
        span = check.span("lease", lease)
        with self._transaction() as now:
            found = self._consumer(name)
            if found.holder != holder and _is_held(found, now):
                return None
            if span:
                changes: dict[str, Any] = {"holder": holder, "held_until": now + span, "updated_at": now}
            elif found.holder == holder:
                changes = {"holder": None, "held_until": None, "updated_at": now}
            else:
                changes = {}
            self._consumers[name] = msgspec.structs.replace(found, **changes)
            return self._consumers[name]

    def advance_consumer(self, name: str, seq: int, *, holder: str | None = None) -> bool:
        check.text("name", name, check.MAX_NAME)
        check.whole("seq", seq, 0, 2**62)
        if holder is not None:
            check.text("holder", holder, check.MAX_ID)
        with self._transaction() as now:
            found = self._consumer(name)
            if found.holder != holder and not (holder is None and not _is_held(found, now)):
                return False
            if seq > found.seq:
                self._check_reached(seq)
                self._consumers[name] = msgspec.structs.replace(found, seq=seq, updated_at=now)
            return True

    def list_consumers(self) -> list[JournalConsumer]:
        self._check_usable()
        with self._lock:
            return [self._consumers[name] for name in sorted(self._consumers)]

    def forget_consumer(self, name: str) -> bool:
        check.text("name", name, check.MAX_NAME)
        with self._transaction():
            return self._consumers.pop(name, None) is not None

    def _consumer(self, name: str) -> JournalConsumer:
        if name not in self._consumers:
            raise check.bad("name", "that of a registered consumer", name)
        return self._consumers[name]

    def _check_reached(self, seq: int) -> None:
        if seq > self._last_seq():
            raise check.bad("seq", f"at most {self._last_seq()}, the newest row of the journal", seq)

    def archive_journal(self, older_than: timedelta | float) -> JournalArchive:
        age = check.span("older_than", older_than)
        with self._transaction() as now:
            floor = min([self._last_seq() - 1, *(each.seq for each in self._consumers.values())])
            pieces: dict[tuple[str, int], list[JournalEntry]] = {}
            begun: dict[str, int] = {}
            for row in self._journal:  # an id that is used again begins another history
                begun.setdefault(row.job_id, row.seq)
                pieces.setdefault((row.job_id, begun[row.job_id]), []).append(row)
                if row.verb in (Verb.DELETE, Verb.CLEANUP):
                    del begun[row.job_id]
            gone = [
                row
                for rows in pieces.values()
                if rows[-1].status.is_final and rows[-1].recorded_at + age <= now and rows[-1].seq <= floor
                for row in rows
            ]
            self._entered_before += entries_into(gone)
            removed = {row.seq for row in gone}
            self._journal = [row for row in self._journal if row.seq not in removed]
            done = JournalArchive(
                histories=sum(row.n == 1 for row in gone), rows=len(gone), upto=max(removed, default=0)
            )
            self._archive = JournalArchive(
                histories=self._archive.histories + done.histories,
                rows=self._archive.rows + done.rows,
                upto=max(self._archive.upto, done.upto),
            )
            return done

    def get_archive(self) -> JournalArchive:
        self._check_usable()
        return self._archive


def _is_held(consumer: JournalConsumer, now: datetime) -> bool:
    # A lease that begins in the future was taken before the clock was set back.
    return consumer.held_until is not None and consumer.updated_at <= now < consumer.held_until
