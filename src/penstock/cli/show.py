"""`penstock show`: all about one job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from penstock.cli._output import (
    clean,
    emit,
    emit_facts,
    emit_json,
    emit_table,
    job_fields,
    journal_fields,
    local,
    shortened,
    span,
)
from penstock.cli._store import AsJson, Url, open_store
from penstock.job import Job, JobStatus, JournalEntry

__all__ = ["show"]

MOST_ROWS: Final = 1000


def show(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The job.")],
    full: Annotated[bool, typer.Option("--full", help="Cut nothing.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show all about a job.

    Its facts, every step of its life with the time it took, payload, result, output and error.

    Examples:
        penstock show 5f8c9a4e-0d3b-4c1e-9d59-0b8f4f6f1a2b
        penstock show 5f8c9a4e-0d3b-4c1e-9d59-0b8f4f6f1a2b --json
    """
    with open_store(url) as backend:
        job = backend.get_job(job_id)
        history = backend.job_history(job_id, MOST_ROWS)
        output = backend.get_output(job_id)
    if as_json:
        rows = [journal_fields(entry) for entry in history]
        emit_json(job_fields(job) | {"output": output, "history": rows})
        return
    emit_facts(_facts(job))
    emit()
    if history and history[0].n > 1:
        emit(f"({history[0].n - 1} earlier steps are archived or not shown)")
    emit_table(["time", "took", "step", "status", "attempt", "by", "what"], list(_steps(history)))
    for name, data in (("payload", job.payload), ("checkpoint", job.checkpoint), ("result", job.result)):
        if data:
            _section(name, _text(data), full=full)
    if output:
        _section("output", output, full=full)
    if job.error_message:
        _section("error", job.error_message, full=full)


def _facts(job: Job) -> Iterator[tuple[str, object]]:
    allowed = "" if job.retry is None else f" of {job.retry.max_attempts}"
    yield "id", job.id
    yield "type", job.type
    yield "status", job.status
    yield "state", job.state if str(job.state) != str(job.status) else None
    yield "attempt", f"{job.attempt}{allowed}" if job.attempt else None
    yield "failures", job.failures or None
    yield (
        "progress",
        f"{job.progress} %{f', {job.description}' if job.description else ''}" if job.progress else None,
    )
    yield "priority", f"{int(job.priority)} ({job.priority.name.lower()})"
    yield "tags", ", ".join(job.tags)
    yield "key", None if job.key is None else ", ".join(job.key)
    yield "worker", job.assignee_id
    yield "created", local(job.created_at)
    yield "not before", local(job.run_at)
    yield "started", local(job.started_at)
    yield "ended", local(job.finalized_at)
    yield "waited", _between(job.created_at, job.started_at)
    yield "took", _between(job.started_at, job.finalized_at)
    yield "after", ", ".join(job.after)
    yield "after any", ", ".join(job.after_any)
    yield "parent", job.parent_id
    yield "redrive of", job.redrive_of
    yield "held", "yes" if job.held else None
    yield "correlation", job.correlation_id
    yield "callback", job.callback_url
    yield "once", job.idempotency_key
    yield "time limit", span(job.timeouts.execution)
    yield "lifetime", span(job.timeouts.lifetime)
    yield "error", job.error_message.partition("\n")[0]
    yield "category", job.error_category
    yield "code", job.error_code


def _between(start: Any, end: Any) -> str | None:
    return None if start is None or end is None else span(end - start)


def _steps(history: list[JournalEntry]) -> Iterator[tuple[object, ...]]:
    """Yield the rows of the journal, each with how long the job had been as the row before left it."""
    before: JournalEntry | None = None
    for entry in history:
        took = None if before is None else span(entry.recorded_at - before.recorded_at)
        what = entry.error_message.partition("\n")[0]
        if entry.due_at is not None and entry.status in (JobStatus.FAILED_RETRY, JobStatus.INITIAL_PENDING):
            what = f"{what}{' ' if what else ''}(due {local(entry.due_at)})"
        yield (
            local(entry.recorded_at),
            took,
            entry.verb,
            entry.status,
            entry.attempt,
            entry.assignee_id,
            what,
        )
        before = entry


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"({len(data)} bytes that are no text) {data[:64].hex(' ')}"


def _section(name: str, text: str, *, full: bool) -> None:
    emit()
    emit(f"{name}:")
    shown = clean(text if full else shortened(text), keep_lines=True)
    for line in shown.splitlines():
        emit(f"  {line}")
