"""`penstock submit`: store a job, or many."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from penstock.app.client import QueueClient
from penstock.backends.drivers import driver_for
from penstock.cli._command import Command
from penstock.cli._fields import job_fields
from penstock.cli._job_options import JobOptions, read_line, submit_arguments
from penstock.cli._output import emit, emit_json, fail, note, progress_bar
from penstock.cli._selection import resolve_ids
from penstock.cli._store import AsJson, Store
from penstock.cli._text import clean
from penstock.cli._values import as_duration, as_payload, read_input
from penstock.errors import InvalidArgumentError
from penstock.job import Job, JobStatus
from penstock.queue import Queue

__all__ = ["SubmitCommand", "submit"]

#: How long a server may take to store many jobs in one statement.
BULK_SECONDS: Final = 3600.0
_DURATION: Final = re.compile(r"\d+(\.\d+)?(ms|s|min|m|h|d|w)?")
#: What --wait without a time stands for.
_FOREVER: Final = "forever"


class SubmitCommand(Command):
    """Accepts `--wait` with and without a time."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given: list[str] = []
        rest = list(args)
        while rest:
            each = rest.pop(0)
            if each == "--":
                given += [each, *rest]
                break
            if each == "--wait":
                is_time = bool(rest) and _DURATION.fullmatch(rest[0]) is not None
                each = f"--wait={rest.pop(0) if is_time else _FOREVER}"
            given.append(each)
        return super().parse_args(ctx, given)


def submit(
    *,
    type: Annotated[
        str | None,
        typer.Argument(
            metavar="TYPE",
            help="Job type. With --jsonl, every line is a payload of this type.",
            show_default=False,
        ),
    ] = None,
    payload: Annotated[
        str | None,
        typer.Argument(
            metavar="PAYLOAD", help="The payload as JSON; - reads it from stdin.", show_default=False
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Read the payload from a file.")
    ] = None,
    jsonl: Annotated[
        bool,
        typer.Option(
            "--jsonl",
            help="Submit a job for each line of stdin, or of --file: all of them or none. With TYPE, a line is a payload; "
            'without, an object such as {"type": "resize", "payload": {}, "tags": ["a"]}.',
        ),
    ] = False,
    options: JobOptions,
    wait: Annotated[
        str | None,
        typer.Option(
            "--wait",
            metavar="[TIME]",
            help="Wait until the job has ended, at most for TIME, and print its result. The exit code is 1 if it did not "
            "succeed.",
        ),
    ] = None,
    store: Store,
    as_json: AsJson = False,
) -> None:
    """Submit a job and print its id.

    If the store does not exist, it is created.

    Examples:
        penstock submit resize '{"image": "cat.png", "width": 200}'
        penstock submit report --delay 10m --tags nightly --key customer-42
        penstock submit resize --file payload.json --wait 30s
        penstock submit resize --jsonl < payloads.jsonl
    """
    wait_seconds = None if wait in (None, _FOREVER) else as_duration(str(wait), "wait").total_seconds()
    if jsonl:
        if payload is not None:
            raise InvalidArgumentError("with --jsonl, payloads come from stdin or --file", field="payload")
        jobs = _submit_lines(file, type, options, store)
    elif type is None:
        raise InvalidArgumentError(
            "name the type of the job, such as penstock submit resize '{}'", field="type"
        )
    else:
        request = {**options.request, "type": type, "payload": as_payload(_read_payload(payload, file))}
        with store.open_queue(create=True) as queue:
            request["after"] = resolve_ids(queue.backend, request["after"])
            jobs = [queue.submit(**submit_arguments(request))]
            _note_new_store(queue, store)
    if wait is not None:
        _wait(jobs, wait_seconds, store, as_json=as_json)
        return
    for job in jobs:
        emit_json(job_fields(job)) if as_json else emit(clean(job.id))


def _note_new_store(queue: Queue, store: Store) -> None:
    """Print the location of a store that was created without a url: a worker must use the same one."""
    if store.url is None and queue.backend.runtime.is_new:
        note(f"a new store was created: {queue.backend.location}")


def _read_payload(text: str | None, file: Path | None) -> bytes:
    if text is not None and file is not None:
        raise InvalidArgumentError("give a payload or --file, not both", field="payload")
    if file is not None:
        return read_input(file, "file")
    if text == "-":
        return read_input("-", "payload")
    return (text or "").encode(errors="surrogateescape")


# -- lines -----------------------------------------------------------------------------------------------------------


def _submit_lines(file: Path | None, type: str | None, options: JobOptions, store: Store) -> list[Job]:
    """Store a job for each line, all or none: every line is checked before the first job is stored."""
    lines = read_input(file or "-", "jsonl", max_bytes=None).split(b"\n")
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    defaults = options.request
    requests = _by_line(numbered, lambda line: submit_arguments(read_line(line, type, defaults)))
    # On SQLite this option is the time to wait for another writer, which is always short.
    is_server = driver_for(store.address).is_server
    with store.open_queue(create=True, **({"timeout": BULK_SECONDS} if is_server else {})) as queue:
        jobs = [job for _, job in _by_line(requests, lambda request: queue.new_job(**request))]
        if not jobs:
            note("there are no lines to submit")
            return []
        with progress_bar("submitting", len(jobs)) as advance:
            ids = queue.enqueue_jobs(_advancing(jobs, advance))
        _note_new_store(queue, store)
        return [msgspec.structs.replace(job, id=job_id) for job, job_id in zip(jobs, ids, strict=True)]


def _by_line(numbered: list[tuple[int, Any]], convert: Callable[[Any], Any]) -> list[tuple[int, Any]]:
    """Convert the value of each line; an error names the line."""
    found = []
    for number, value in numbered:
        try:
            found.append((number, convert(value)))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"line {number}: {error}", field="jsonl") from None
    return found


def _advancing(jobs: list[Job], advance: Callable[[int], None]) -> Iterator[Job]:
    for job in jobs:
        yield job
        advance(1)


# -- waiting ---------------------------------------------------------------------------------------------------------


def _wait(jobs: list[Job], seconds: float | None, store: Store, *, as_json: bool) -> None:
    """Wait for jobs and print how they ended; exit with 1 if one did not succeed."""
    is_success = True
    with store.open_queue() as queue:
        client = QueueClient(queue)
        try:
            for job in jobs:
                try:
                    ended = client.wait(job.id, seconds)
                except TimeoutError as error:
                    fail(f"{error} (penstock show {job.id})")
                    raise typer.Exit(1) from None
                is_success &= ended.status is JobStatus.COMPLETED
                _print_outcome(queue, ended, as_json=as_json, is_one_of_many=len(jobs) > 1)
        finally:
            client.close()
    if not is_success:
        raise typer.Exit(1)


def _print_outcome(queue: Queue, job: Job, *, as_json: bool, is_one_of_many: bool) -> None:
    if as_json:
        emit_json(job_fields(job) | {"output": queue.get_output(job.id)})
        return
    before = f"{clean(job.id)}\t{job.status}\t" if is_one_of_many else ""
    if job.status is JobStatus.COMPLETED:
        emit(before + clean((job.result or b"").decode(errors="backslashreplace")))
    else:
        if is_one_of_many:
            emit(before.rstrip())
        reason = job.error_message.partition("\n\n")[0]
        fail(f"job {job.id} ({job.type}) ended {job.status}{f': {reason}' if reason else ''}")
