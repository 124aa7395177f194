"""What a running attempt tells of itself."""

from __future__ import annotations

from penstock.backends import _arguments as arguments
from penstock.backends._rows import Row
from penstock.backends._store import Transaction
from penstock.backends.engine.core import EngineCore, stale
from penstock.errors import InvalidTransitionError, JobNotFoundError, shown
from penstock.scope import checkpoint

__all__ = ["RunningVerbs"]


class RunningVerbs(EngineCore):
    """The verbs about progress, checkpoints and output."""

    def save_progress(
        self, job_id: str, percent: int, description: str | None = None, *, attempt: int | None = None
    ) -> None:
        arguments.percent(percent)
        if description is not None:
            description = arguments.message("description", description)[: arguments.MAX_DESCRIPTION]

        def work(tx: Transaction) -> None:
            row = self._running_row(tx, job_id, attempt, "save_progress")
            row.progress = percent
            if description is not None:
                row.description = description
            tx.store_progress(row)

        arguments.job_id(job_id)
        arguments.attempt(attempt)
        self._write(work)

    def save_checkpoint(self, job_id: str, data: bytes, *, attempt: int | None = None) -> None:
        arguments.job_id(job_id)
        arguments.attempt(attempt)
        checked = arguments.blob("checkpoint", data, self._options.max_payload)

        def work(tx: Transaction) -> None:
            row = self._running_row(tx, job_id, attempt, "save_checkpoint")
            tx.store_checkpoint(row.seq, checked)

        self._write(work)

    def _running_row(self, tx: Transaction, job_id: str, attempt: int | None, verb: str) -> Row:
        row = self._row(tx, job_id)
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

    def save_output(self, job_id: str, output: str, *, attempt: int | None = None) -> None:
        arguments.job_id(job_id)
        arguments.attempt(attempt)
        data = arguments.output(output, self._options.max_payload)

        def work(tx: Transaction) -> None:
            row = self._running_row(tx, job_id, attempt, "save_output")
            tx.store_output(row.seq, data)

        self._write(work)

    def get_output(self, job_id: str) -> str:
        arguments.job_id(job_id)
        checkpoint()
        data = self._store.fetch_output(job_id)
        if data is None:
            raise JobNotFoundError(job_id)
        return data.decode(errors="replace")
