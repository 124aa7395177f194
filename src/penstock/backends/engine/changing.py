"""Changing, repeating and removing jobs."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.backends import _arguments as arguments
from penstock.backends import _decisions as decisions
from penstock.backends._rows import Row, encode_strings
from penstock.backends._store import SPAWNED, Blobs, Reach, Transaction
from penstock.backends._submission import Submission
from penstock.backends.base import UNSET, UnsetType
from penstock.backends.engine.core import EngineCore
from penstock.errors import InvalidTransitionError, JobNotFoundError, QueueBlockedError, shown
from penstock.job import Priority, distinct
from penstock.lifecycle import Verb
from penstock.scope import checkpoint

__all__ = ["ChangeVerbs"]


class ChangeVerbs(EngineCore):
    """The verbs that change what is asked for."""

    def update_job(
        self,
        job_id: str,
        *,
        priority: Priority | int | UnsetType = UNSET,
        tags: Sequence[str] | UnsetType = UNSET,
        correlation_id: str | UnsetType | None = UNSET,
        callback_url: str | UnsetType | None = UNSET,
    ) -> None:
        arguments.job_id(job_id)
        new_priority = None if priority is UNSET else int(arguments.priority(priority))
        new_tags = None if tags is UNSET else encode_strings(arguments.tags(distinct("tags", tags)))
        if correlation_id is not UNSET:
            arguments.optional_text("correlation_id", correlation_id, arguments.MAX_ID)
        if callback_url is not UNSET:
            arguments.callback_url(callback_url)

        def work(tx: Transaction) -> None:
            if new_priority is not None:
                tx.expect(Reach.ALL)  # whoever waits for it becomes as urgent
            row = self._row(tx, job_id)
            if row.closed:
                raise InvalidTransitionError(
                    f"job {shown(job_id)} is {row.status} and can no longer be updated",
                    job_id=job_id,
                    status=row.status,
                    verb=Verb.UPDATE,
                )
            row.note(Verb.UPDATE, tx.now)
            if new_priority is not None:
                row.priority = new_priority
            if correlation_id is not UNSET:
                row.correlation_id = correlation_id
            if callback_url is not UNSET:
                row.callback_url = callback_url
            retagged = new_tags is not None and new_tags != row.tags
            if new_tags is not None:
                row.tags = new_tags
            self._save(tx, [row])
            if retagged:
                tx.retag(row)
            if new_priority is not None and row.fan:
                self._raise_dependents(tx, row)

        self._write(work)

    def _raise_dependents(self, tx: Transaction, row: Row) -> None:
        """Make the jobs waiting for `row`, directly or not, at least as urgent as it."""
        reached: set[int] = set()
        wave = [row.seq]
        while wave:
            wave = sorted({edge.job_seq for edge in tx.edges_onto(wave) if edge.kind != SPAWNED} - reached)
            reached.update(wave)
        raised = [each for each in tx.rows_by_seq(sorted(reached)).values() if each.priority > row.priority]
        for each in raised:
            each.note(Verb.UPDATE, tx.now)
            each.priority = row.priority
        self._save(tx, raised)

    def redrive_jobs(self, tags: Sequence[str] = (), job_ids: Sequence[str] = ()) -> list[str]:
        wanted_tags, wanted_ids = arguments.selection(tags, job_ids)

        def work(tx: Transaction) -> list[str]:
            if tx.is_blocked():
                raise QueueBlockedError
            tx.expect(ids=wanted_ids)
            tagged = tx.rows_tagged(wanted_tags) if wanted_tags else []
            listed = tx.rows(wanted_ids) if wanted_ids else {}
            for job_id in wanted_ids:
                if job_id not in listed:
                    raise JobNotFoundError(job_id)
                if listed[job_id].status not in decisions.DEAD:
                    raise _not_dead(listed[job_id])
            dead = {job_id: listed[job_id] for job_id in wanted_ids}
            dead |= {
                row.id: row for row in tagged if row.status in decisions.DEAD and row.verb != Verb.PROPAGATE
            }
            rows = list(dead.values())
            blobs = tx.blobs([row.seq for row in rows])
            copies = [decisions.copy_of(row, blobs.get(row.seq, Blobs()).payload) for row in rows]
            return Submission(tx, self._options, check=False).run(copies, external=False)

        return self._write(work)

    def delete_jobs(self, tags: Sequence[str] = (), job_ids: Sequence[str] = ()) -> int:
        wanted_tags, wanted_ids = arguments.selection(tags, job_ids)

        def work(tx: Transaction) -> int:
            rows, _ = self._selected(tx, wanted_tags, wanted_ids)
            for row in rows:
                if not row.closed:
                    raise InvalidTransitionError(
                        f"job {shown(row.id)} is {row.status}: only jobs in a final status can be deleted",
                        job_id=row.id,
                        status=row.status,
                        verb=Verb.DELETE,
                    )
            return self._remove(tx, rows, Verb.DELETE)

        return self._write(work)

    def _remove(self, tx: Transaction, rows: list[Row], verb: Verb) -> int:
        for row in rows:
            row.note(verb, tx.now)
        self._save(tx, rows)
        tx.delete(rows)
        return len(rows)

    def set_blocked(self, blocked: bool) -> None:
        arguments.boolean("blocked", blocked)
        self._write(lambda tx: tx.set_blocked(blocked))
        if blocked:
            self._store.await_submissions()

    def is_blocked(self) -> bool:
        checkpoint()
        return self._store.is_blocked()


def _not_dead(row: Row) -> InvalidTransitionError:
    return InvalidTransitionError(
        f"job {shown(row.id)} is {row.status}: only failed and dead_letter jobs can be redriven",
        job_id=row.id,
        status=row.status,
        verb="redrive",
    )
