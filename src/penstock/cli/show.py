"""`penstock show`: one job in detail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, NamedTuple

import typer

from penstock.backends import Backend
from penstock.backends.contract.overview import OwnerView
from penstock.cli._fields import job_fields, journal_fields, seconds_since
from penstock.cli._output import emit, emit_facts, emit_json, emit_table
from penstock.cli._selection import resolve_id
from penstock.cli._store import AsJson, Store
from penstock.cli._text import clean, first_line, shortened, span, utc_time
from penstock.job import TEXT_LIMITS, Job, JobStatus, JournalEntry

__all__ = ["show"]

MAX_ROWS: Final = 1_000
ALL_ROWS: Final = 100_000_000
#: Texts of a job that are shown beside others; its trace context is for programs, which read `--json`.
_APART: Final = frozenset({"assignee_id", "description", "error_code", "trace"})
#: The others are shown by their names, or by shorter ones.
_SHORT: Final = {
    "correlation_id": "correlation",
    "callback_url": "callback",
    "idempotency_key": "once",
    "parent_id": "parent",
}


def show(
    *,
    job_id: Annotated[
        str,
        typer.Argument(metavar="ID", help="The job. The beginning of its id is enough if it is unique."),
    ],
    full: Annotated[bool, typer.Option("--full", help="Print long texts and long histories whole.")] = False,
    store: Store,
    as_json: AsJson = False,
) -> None:
    """Show a job in detail.

    Its fields, the steps of its history with the time each took, payload, result, output and error. For a running job also the host and pid of its worker, and how long it has been running.

    Examples:
        penstock show 5f8c9a4e-0d3b-4c1e-9d59-0b8f4f6f1a2b
        penstock show 5f8c9a4e --json
    """
    with store.open() as backend:
        job_id = resolve_id(backend, job_id)
        job = backend.get_job(job_id)
        history = backend.journal.history(job_id, ALL_ROWS if full or as_json else MAX_ROWS)
        output = backend.reading.get_output(job_id)
        runner = _runner(backend, job)
    if as_json:
        rows = [journal_fields(entry) for entry in history]
        emit_json(job_fields(job) | _runner_fields(runner) | {"output": output, "history": rows})
        return
    emit_facts(_facts(job, runner))
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


class Runner(NamedTuple):
    """The process that runs a job.

    Attributes:
        seconds: how long the attempt has been running.
        owner: the process; None if the job was claimed by a program without a stream.
    """

    seconds: float | None
    owner: OwnerView | None


def _runner(backend: Backend, job: Job) -> Runner | None:
    """Return the process that runs a job; None if it does not run."""
    if not job.status.holds_slot:
        return None
    step = backend.runtime.next_steps([job.id]).get(job.id)
    seen = backend.reading.overview()
    owner = next((each for each in seen.owners if step is not None and each.id == step.owner), None)
    return Runner(seconds_since(job.attempt_started_at, seen.at), owner)


def _runner_fields(runner: Runner | None) -> dict[str, Any]:
    owner = None if runner is None else runner.owner
    return {
        "running_seconds": None if runner is None else runner.seconds,
        "worker_host": None if owner is None else owner.host,
        "worker_pid": None if owner is None else owner.pid,
        "worker_alive": None if owner is None else owner.is_alive,
    }


def _facts(job: Job, runner: Runner | None) -> Iterator[tuple[str, object]]:
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
    if runner is not None:
        yield "running for", span(runner.seconds)
        if runner.owner is not None:
            yield "host", runner.owner.host
            yield "pid", f"{runner.owner.pid}{'' if runner.owner.is_alive else ' (dead)'}"
    yield "created", utc_time(job.created_at)
    yield "not before", utc_time(job.run_at)
    yield "started", utc_time(job.started_at)
    yield "ended", utc_time(job.finalized_at)
    yield "waited", _between(job.created_at, job.started_at)
    yield "took", _between(job.started_at, job.finalized_at)
    yield "after", ", ".join(job.after)
    yield "after any", ", ".join(job.after_any)
    for name in TEXT_LIMITS:
        if name not in _APART:
            yield _SHORT.get(name, name.replace("_", " ")), getattr(job, name)
    yield "unique", job.unique
    yield "held", "yes" if job.held else None
    yield "time limit", span(job.timeouts.execution)
    yield "lifetime", span(job.timeouts.lifetime)
    yield "error", first_line(job.error_message)
    yield "category", job.error_category
    yield "code", job.error_code


def _between(start: Any, end: Any) -> str | None:
    return None if start is None or end is None else span(end - start)


def _steps(history: list[JournalEntry]) -> Iterator[tuple[object, ...]]:
    """Yield the journal rows, each with the time since the row before it."""
    before: JournalEntry | None = None
    for entry in history:
        took = None if before is None else span(entry.recorded_at - before.recorded_at)
        what = first_line(entry.error_message)
        if entry.due_at is not None and entry.status in (JobStatus.FAILED_RETRY, JobStatus.INITIAL_PENDING):
            what = f"{what}{' ' if what else ''}(due {utc_time(entry.due_at)})"
        yield (
            utc_time(entry.recorded_at),
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
        return f"({len(data)} bytes that are not text) {data[:64].hex(' ')}"


def _section(name: str, text: str, *, full: bool) -> None:
    emit()
    emit(f"{name}:")
    shown = clean(text if full else shortened(text), keep_lines=True)
    for line in shown.splitlines():
        emit(f"  {line}")
