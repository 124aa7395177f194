"""What a running attempt reports about itself: progress, checkpoint, output."""

from __future__ import annotations

from penstock.backends.engine.decisions import stale
from penstock.backends.engine.rows import Row
from penstock.backends.engine.store import Transaction, find_row
from penstock.errors import InvalidTransitionError, shown

__all__ = ["save_checkpoint", "save_output", "save_progress"]


def save_progress(
    tx: Transaction, job_id: str, attempt: int | None, percent: int, description: str | None
) -> None:
    """Store progress, and a description unless it is None."""
    row = _row_in_flight(tx, job_id, attempt, "save_progress")
    row.progress = percent
    if description is not None:
        row.description = description
    tx.store_progress(row)


def save_checkpoint(tx: Transaction, job_id: str, attempt: int | None, data: bytes) -> None:
    """Store a checkpoint."""
    tx.store_checkpoint(_row_in_flight(tx, job_id, attempt, "save_checkpoint").seq, data)


def save_output(tx: Transaction, job_id: str, attempt: int | None, data: bytes) -> None:
    """Store the output."""
    tx.store_output(_row_in_flight(tx, job_id, attempt, "save_output").seq, data)


def _row_in_flight(tx: Transaction, job_id: str, attempt: int | None, verb: str) -> Row:
    row = find_row(tx, job_id)
    if attempt is not None and (attempt != row.attempt or not row.is_in_flight):
        raise stale(verb, row, attempt)
    if not row.is_in_flight:
        raise InvalidTransitionError(
            f"{verb} of job {shown(job_id)} is not possible: it is {row.status}, allowed in running, cancelling",
            job_id=job_id,
            status=row.status,
            verb=verb,
        )
    return row
