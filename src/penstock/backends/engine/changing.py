"""Changes from outside: cancel, update, redrive, delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.backends.contract.values import UNSET, UnsetType
from penstock.backends.engine import arguments, decisions
from penstock.backends.engine.rows import Row, encode_strings
from penstock.backends.engine.settlement import settle
from penstock.backends.engine.store import (
    SPAWNED,
    Blobs,
    Reach,
    Transaction,
    find_row,
    save_rows,
    select_rows,
)
from penstock.backends.engine.submission import Submission
from penstock.backends.options import StoreOptions
from penstock.errors import InvalidTransitionError, JobNotFoundError, QueueBlockedError, shown
from penstock.job import TEXT_LIMITS, JobStatus, Priority, distinct
from penstock.lifecycle import Verb

__all__ = ["JobUpdate", "cancel", "checked_update", "delete", "redrive", "remove", "update"]


class JobUpdate(NamedTuple):
    """A checked `update_job`; None, or UNSET where None is a value, changes nothing."""

    priority: int | None
    tags: str | None
    correlation_id: str | UnsetType | None
    callback_url: str | UnsetType | None


def checked_update(
    priority: Priority | int | UnsetType,
    tags: Sequence[str] | UnsetType,
    correlation_id: str | UnsetType | None,
    callback_url: str | UnsetType | None,
) -> JobUpdate:
    """Return the arguments of `update_job`, checked."""
    if correlation_id is not UNSET:
        arguments.optional_text("correlation_id", correlation_id, TEXT_LIMITS["correlation_id"])
    if callback_url is not UNSET:
        arguments.callback_url(callback_url)
    return JobUpdate(
        None if priority is UNSET else int(arguments.priority(priority)),
        None if tags is UNSET else encode_strings(arguments.tags(distinct("tags", tags))),
        correlation_id,
        callback_url,
    )


def update(tx: Transaction, job_id: str, wanted: JobUpdate) -> None:
    """Change a job that is not final; a priority also raises the jobs that wait for it."""
    if wanted.priority is not None:
        tx.expect(Reach.ALL)  # its dependents become as urgent
    row = find_row(tx, job_id)
    if row.closed:
        raise InvalidTransitionError(
            f"job {shown(job_id)} is {row.status} and can no longer be updated",
            job_id=job_id,
            status=row.status,
            verb=Verb.UPDATE,
        )
    row.note(Verb.UPDATE, tx.now)
    if wanted.priority is not None:
        row.priority = wanted.priority
    if wanted.correlation_id is not UNSET:
        row.correlation_id = wanted.correlation_id
    if wanted.callback_url is not UNSET:
        row.callback_url = wanted.callback_url
    retagged = wanted.tags is not None and wanted.tags != row.tags
    if wanted.tags is not None:
        row.tags = wanted.tags
    save_rows(tx, [row])
    if retagged:
        tx.retag(row)
    if wanted.priority is not None and row.fan:
        _raise_dependents(tx, row)


def _raise_dependents(tx: Transaction, row: Row) -> None:
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
    save_rows(tx, raised)


def cancel(
    tx: Transaction, tags: tuple[str, ...], ids: tuple[str, ...], waiting_only: bool
) -> tuple[list[str], list[str]]:
    """Cancel the jobs that have all tags and those listed; return (cancelled, unknown)."""
    tx.expect(Reach.ALL)
    rows, missing = select_rows(tx, tags, ids)
    cancelled: list[str] = []
    unknown: list[str] = list(missing)
    changed: list[Row] = []
    for row in rows:
        if row.closed or (waiting_only and row.is_in_flight):
            unknown.append(row.id)
            continue
        cancelled.append(row.id)
        if row.status != JobStatus.CANCELLING:
            decisions.cancel(row, tx.now)
            changed.append(row)
    save_rows(tx, changed)
    tx.drop_edges_of([row.seq for row in changed if row.closed and row.unmet])
    settle(tx, changed)
    return cancelled, unknown


def redrive(tx: Transaction, options: StoreOptions, tags: tuple[str, ...], ids: tuple[str, ...]) -> list[str]:
    """Submit FAILED and DEAD_LETTER jobs again as copies; return the new ids."""
    if tx.is_blocked():
        raise QueueBlockedError
    tx.expect(ids=ids)
    tagged = tx.rows_tagged(tags) if tags else []
    listed = tx.rows(ids) if ids else {}
    missing = [job_id for job_id in ids if job_id not in listed]
    if missing:
        raise JobNotFoundError(missing[0], missing)
    _check_all(
        [listed[job_id] for job_id in ids],
        lambda row: row.status in decisions.DEAD,
        rule="only failed and dead_letter jobs can be redriven",
        verb="redrive",
    )
    dead = {job_id: listed[job_id] for job_id in ids}
    dead |= {row.id: row for row in tagged if row.status in decisions.DEAD and row.verb != Verb.PROPAGATE}
    rows = list(dead.values())
    blobs = tx.blobs([row.seq for row in rows])
    copies = [decisions.copy_of(row, blobs.get(row.seq, Blobs()).payload, tx.now) for row in rows]
    return Submission(tx, options, check=False).run(copies, external=False)


def delete(tx: Transaction, tags: tuple[str, ...], ids: tuple[str, ...]) -> int:
    """Remove the jobs that have all tags and those listed, if all are final; return how many."""
    rows, _ = select_rows(tx, tags, ids)
    _check_all(
        rows,
        lambda row: bool(row.closed),
        rule="only jobs in a final status can be deleted",
        verb=Verb.DELETE,
    )
    return remove(tx, rows, Verb.DELETE)


def remove(tx: Transaction, rows: list[Row], verb: Verb) -> int:
    """Remove final jobs; return how many."""
    for row in rows:
        row.note(verb, tx.now)
    save_rows(tx, rows)
    tx.delete(rows)
    return len(rows)


def _check_all(rows: Sequence[Row], is_allowed: Callable[[Row], bool], *, rule: str, verb: str) -> None:
    """Refuse a call for several jobs, naming each of them that does not allow it."""
    refused = [(index, row.id, row.status) for index, row in enumerate(rows) if not is_allowed(row)]
    if refused:
        raise InvalidTransitionError.of_several(refused, rule=rule, verb=verb)
