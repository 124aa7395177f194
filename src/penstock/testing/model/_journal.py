from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from penstock.backends import Journal
from penstock.durations import Duration
from penstock.errors import invalid
from penstock.job import JournalArchive, JournalConsumer, JournalEntry
from penstock.lifecycle import Verb
from penstock.testing import _checks as check
from penstock.testing.model._rows import entries_into
from penstock.testing.model._state import ModelState


class ModelJournal(Journal):
    """The role in memory."""

    def __init__(self, state: ModelState) -> None:
        self._state = state

    def store_id(self) -> str:
        self._state.check_usable()
        return self._state.store_id

    def history(self, job_id: str, limit: int = 1000) -> list[JournalEntry]:
        check.text("job_id", job_id, check.MAX_ID)
        check.whole("limit", limit, 1, 2**31 - 1)
        self._state.check_usable()
        with self._state.lock:
            self._state.row(job_id)
            found: list[JournalEntry] = []
            for row in self._state.journal:
                if row.job_id == job_id:
                    found = [] if row.verb in (Verb.DELETE, Verb.CLEANUP) else [*found, row]
            return found[-limit:]

    def span(self) -> tuple[int, int]:
        self._state.check_usable()
        with self._state.lock:
            return (self._state.journal[0].seq, self._state.last_seq()) if self._state.journal else (1, 0)

    def register_consumer(self, name: str, *, seq: int = 0) -> JournalConsumer:
        check.text("name", name, check.MAX_NAME)
        check.whole("seq", seq, 0, 2**62)
        with self._state.transaction() as now:
            if name not in self._state.consumers:
                check_reached(self._state, seq)
                self._state.consumers[name] = JournalConsumer(name=name, seq=seq, updated_at=now)
            return self._state.consumers[name]

    def hold_consumer(self, name: str, holder: str, lease: Duration) -> JournalConsumer | None:
        check.text("name", name, check.MAX_NAME)
        check.text("holder", holder, check.MAX_ID)
        span = check.span("lease", lease)
        with self._state.transaction() as now:
            found = consumer(self._state, name)
            if found.holder != holder and _is_held(found, now):
                return None
            if span:
                changes: dict[str, Any] = {"holder": holder, "held_until": now + span, "updated_at": now}
            elif found.holder == holder:
                changes = {"holder": None, "held_until": None, "updated_at": now}
            else:
                changes = {}
            self._state.consumers[name] = msgspec.structs.replace(found, **changes)
            return self._state.consumers[name]

    def advance_consumer(self, name: str, seq: int, *, holder: str | None = None) -> bool:
        check.text("name", name, check.MAX_NAME)
        check.whole("seq", seq, 0, 2**62)
        if holder is not None:
            check.text("holder", holder, check.MAX_ID)
        with self._state.transaction() as now:
            found = consumer(self._state, name)
            if found.holder != holder and not (holder is None and not _is_held(found, now)):
                return False
            if seq > found.seq:
                check_reached(self._state, seq)
                self._state.consumers[name] = msgspec.structs.replace(found, seq=seq, updated_at=now)
            return True

    def list_consumers(self) -> list[JournalConsumer]:
        self._state.check_usable()
        with self._state.lock:
            return [self._state.consumers[name] for name in sorted(self._state.consumers)]

    def forget_consumer(self, name: str) -> bool:
        check.text("name", name, check.MAX_NAME)
        with self._state.transaction():
            return self._state.consumers.pop(name, None) is not None

    def archive(self, older_than: Duration) -> JournalArchive:
        age = check.span("older_than", older_than)
        with self._state.transaction() as now:
            floor = min([self._state.last_seq() - 1, *(each.seq for each in self._state.consumers.values())])
            pieces: dict[tuple[str, int], list[JournalEntry]] = {}
            begun: dict[str, int] = {}
            for row in self._state.journal:  # an id that is used again begins another history
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
            self._state.entered_before += entries_into(gone)
            removed = {row.seq for row in gone}
            self._state.journal = [row for row in self._state.journal if row.seq not in removed]
            done = JournalArchive(
                histories=sum(row.n == 1 for row in gone), rows=len(gone), upto=max(removed, default=0)
            )
            self._state.archive = JournalArchive(
                histories=self._state.archive.histories + done.histories,
                rows=self._state.archive.rows + done.rows,
                upto=max(self._state.archive.upto, done.upto),
            )
            return done

    def get_archive(self) -> JournalArchive:
        self._state.check_usable()
        return self._state.archive


def consumer(state: ModelState, name: str) -> JournalConsumer:
    if name not in state.consumers:
        raise invalid("name", "that of a registered consumer", name)
    return state.consumers[name]


def check_reached(state: ModelState, seq: int) -> None:
    if seq > state.last_seq():
        raise invalid("seq", f"at most {state.last_seq()}, the newest row of the journal", seq)


def _is_held(consumer: JournalConsumer, now: datetime) -> bool:
    # A lease that begins in the future was taken before the clock was set back.
    return consumer.held_until is not None and consumer.updated_at <= now < consumer.held_until
