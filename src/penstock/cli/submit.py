"""`penstock submit`: store a job, or many."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from penstock._client import QueueClient
from penstock.cli._command import Command
from penstock.cli._output import clean, emit, emit_json, fail, is_terminal, job_fields, note, stderr_console
from penstock.cli._store import AsJson, Url, open_queue
from penstock.cli._values import as_duration, as_moment, as_payload, as_priority, listed, read_input
from penstock.connection import default_url
from penstock.errors import InvalidArgumentError, shown
from penstock.job import Job, JobStatus
from penstock.policy import DEFAULT_RETRY, DEFAULT_TIMEOUTS
from penstock.queue import Queue

__all__ = ["SubmitCommand", "submit"]

#: How long a server may take to store many jobs at once.
BULK_SECONDS: Final = 3600.0
_DURATION: Final = re.compile(r"\d+(\.\d+)?(ms|s|min|m|h|d|w)?")
_FIELDS: Final = (
    "type",
    "payload",
    "priority",
    "tags",
    "delay",
    "run_at",
    "key",
    "after",
    "after_any",
    "idempotency_key",
    "correlation_id",
    "callback_url",
    "max_attempts",
    "timeout",
)


class SubmitCommand(Command):
    """`--wait` may stand alone or with a time."""

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
                each = f"--wait={rest.pop(0) if is_time else 'forever'}"
            given.append(each)
        return super().parse_args(ctx, given)


def submit(
    type: Annotated[
        str | None,
        typer.Argument(
            metavar="TYPE",
            help="What to do; with --jsonl, what each line is a payload of.",
            show_default=False,
        ),
    ] = None,
    payload: Annotated[
        str | None,
        typer.Argument(metavar="PAYLOAD", help="JSON; - reads it from stdin.", show_default=False),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Read the payload from a file.")
    ] = None,
    jsonl: Annotated[
        bool,
        typer.Option(
            "--jsonl",
            help="Submit a job for each line of stdin (or of --file), all or none: payloads of TYPE; without TYPE, "
            'objects such as {"type": "resize", "payload": {}, "tags": ["a"]}.',
        ),
    ] = False,
    priority: Annotated[
        str, typer.Option(metavar="PRIORITY", help="0 to 4, or critical, high, normal, low, bulk.")
    ] = "normal",
    tags: Annotated[
        list[str] | None,
        typer.Option("--tags", "-t", metavar="TAG", help="Labels; a,b or repeated.", show_default=False),
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="TIME", help="Not before this has passed: 90s, 10m, 2h, 7d.")
    ] = None,
    run_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Not before this moment: 2026-11-16T14:30:00Z.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Jobs of one key run one at a time, in order.")
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            "--after",
            metavar="ID",
            help="Wait for this job to complete; a,b or repeated.",
            show_default=False,
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The same one again gives the job that has it.")
    ] = None,
    correlation_id: Annotated[str | None, typer.Option(metavar="ID", help="For tracing.")] = None,
    callback_url: Annotated[str | None, typer.Option(metavar="URL", help="Told how the job ended.")] = None,
    max_attempts: Annotated[
        int | None, typer.Option(metavar="N", help="Attempts before it is given up; else 3.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long an attempt may run; else 30m.")
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option(
            "--wait",
            metavar="[TIME]",
            help="Wait for the end, print the result, and exit 1 if it failed; at most for TIME, if given.",
        ),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job and print its id.

    The store is made if it is not there yet.

    Examples:
        penstock submit resize '{"image": "cat.png", "width": 200}'
        penstock submit report --delay 10m --tags nightly --key customer-42
        penstock submit resize --file payload.json --wait 30s
        penstock submit resize --jsonl < payloads.jsonl
    """
    patience = _patience(wait)
    request: dict[str, Any] = {
        "type": type,
        "priority": priority,
        "tags": listed(tags),
        "delay": delay,
        "run_at": run_at,
        "key": key,
        "after": listed(after),
        "idempotency_key": idempotency_key,
        "correlation_id": correlation_id,
        "callback_url": callback_url,
        "max_attempts": max_attempts,
        "timeout": timeout,
    }
    if jsonl:
        if payload is not None:
            raise InvalidArgumentError("with --jsonl, payloads come from stdin or --file", field="payload")
        lines = read_input(file or "-", "jsonl", most=None).split(b"\n")
        jobs = _submit_lines(lines, request, url)
    else:
        if type is None:
            raise InvalidArgumentError(
                "name the type of the job, such as penstock submit resize '{}'", field="type"
            )
        request["payload"] = as_payload(_payload(payload, file))
        with open_queue(url, create=True) as queue:
            jobs = [queue.submit(**_arguments(request))]
    if wait is not None:
        _await(jobs, patience, url, as_json=as_json)
        return
    for job in jobs:
        emit_json(job_fields(job)) if as_json else emit(clean(job.id))


def _payload(text: str | None, file: Path | None) -> bytes:
    if text is not None and file is not None:
        raise InvalidArgumentError("give a payload or --file, not both", field="payload")
    if file is not None:
        return read_input(file, "file")
    if text == "-":
        return read_input("-", "payload")
    return (text or "").encode(errors="surrogateescape")


def _patience(wait: str | None) -> float | None:
    if wait is None or wait == "forever":
        return None
    return as_duration(wait, "wait").total_seconds()


# -- requests --------------------------------------------------------------------------------------------------------


def _arguments(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request, as typed or as written in a line, as the arguments of `Queue.submit`."""
    given = {name: value for name, value in request.items() if value is not None}
    if "priority" in given:
        given["priority"] = as_priority(given["priority"])
    if "delay" in given:
        given["delay"] = as_duration(str(given["delay"]), "delay")
    if "run_at" in given:
        given["run_at"] = as_moment(str(given["run_at"]), "run_at")
    attempts, timeout = given.pop("max_attempts", None), given.pop("timeout", None)
    if attempts is not None:
        given["retry"] = msgspec.structs.replace(DEFAULT_RETRY, max_attempts=attempts)
    if timeout is not None:
        given["timeouts"] = msgspec.structs.replace(
            DEFAULT_TIMEOUTS, execution=as_duration(str(timeout), "timeout")
        )
    return given


def _submit_lines(lines: list[bytes], defaults: Mapping[str, Any], url: str | None) -> list[Job]:
    """Store a job for each line, all or none: every line is understood before the first one is stored."""
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    requests = []
    for number, line in numbered:
        try:
            requests.append(_arguments(_request(line, defaults)))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"line {number}: {error}", field="jsonl") from None
    is_server = (url or default_url()).lower().startswith("postgres")
    # On SQLite it says how long to wait for others, who never take long.
    options = {"timeout": BULK_SECONDS} if is_server else {}
    with open_queue(url, create=True, **options) as queue:
        jobs: list[Job] = []
        for (number, _), request in zip(numbered, requests, strict=True):
            try:
                jobs.append(queue.new_job(**request))
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"line {number}: {error}", field="jsonl") from None
        if not jobs:
            note("there are no lines to submit")
            return []
        with _progress(jobs) as counted:
            ids = queue.enqueue_jobs(counted)
        return [msgspec.structs.replace(job, id=job_id) for job, job_id in zip(jobs, ids, strict=True)]


def _request(line: bytes, defaults: Mapping[str, Any]) -> dict[str, Any]:
    if defaults["type"] is not None:
        return {**defaults, "payload": as_payload(line)}
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgumentError(f"not JSON: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise InvalidArgumentError(f"must be an object with a type, got {shown(value)}")
    unknown = sorted(set(value) - set(_FIELDS))
    if unknown:
        raise InvalidArgumentError(f"unknown field {', '.join(unknown)} (known: {', '.join(_FIELDS)})")
    return {**defaults, **value}


@contextmanager
def _progress(jobs: list[Job]) -> Iterator[Iterator[Job]]:
    """Give the jobs one after the other, and show people how far that has come."""
    if not is_terminal(sys.stderr):
        yield iter(jobs)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("submitting"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr_console(), transient=True) as display:
        task = display.add_task("submitting", total=len(jobs))

        def counted() -> Iterator[Job]:
            for number, job in enumerate(jobs, start=1):
                yield job
                if number % 100 == 0 or number == len(jobs):
                    display.update(task, completed=number)

        yield counted()


# -- waiting ---------------------------------------------------------------------------------------------------------


def _await(jobs: list[Job], patience: float | None, url: str | None, *, as_json: bool) -> None:
    """Wait for jobs and print how they ended; exit 1 if one did not succeed."""
    is_well = True
    with open_queue(url) as queue:
        client = QueueClient(queue)
        try:
            for job in jobs:
                try:
                    ended = client.wait(job.id, patience)
                except TimeoutError as error:
                    fail(f"{error}; it goes on (penstock show {job.id})")
                    raise typer.Exit(1) from None
                is_well &= ended.status is JobStatus.COMPLETED
                _tell_end(queue, ended, as_json=as_json, many=len(jobs) > 1)
        finally:
            client.close()
    if not is_well:
        raise typer.Exit(1)


def _tell_end(queue: Queue, job: Job, *, as_json: bool, many: bool) -> None:
    if as_json:
        emit_json(job_fields(job) | {"output": queue.get_output(job.id)})
        return
    before = f"{clean(job.id)}\t{job.status}\t" if many else ""
    if job.status is JobStatus.COMPLETED:
        emit(before + clean((job.result or b"").decode(errors="backslashreplace")))
    else:
        if many:
            emit(before.rstrip())
        reason = job.error_message.partition("\n\n")[0]
        fail(f"job {job.id} ({job.type}) ended {job.status}{f': {reason}' if reason else ''}")
