"""The options of a job that is submitted, on the command line and in lines of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final

import msgspec
import typer

from penstock.cli._values import as_duration, as_moment, as_payload, as_priority, listed
from penstock.errors import InvalidArgumentError, check_known, shown
from penstock.policy import DEFAULT_RETRY, DEFAULT_TIMEOUTS

__all__ = ["JobOptions", "read_line", "submit_arguments"]


@dataclass(frozen=True)
class JobOptions:
    """The options of one job; in a line of JSON they are the keys of its object."""

    priority: Annotated[
        str, typer.Option(metavar="PRIORITY", help="0 to 4, or critical, high, normal, low, bulk.")
    ] = "normal"
    tags: Annotated[
        list[str] | None,
        typer.Option(
            "--tags",
            "-t",
            metavar="TAG",
            help="Tags of the job. Use a,b or repeat the option.",
            show_default=False,
        ),
    ] = None
    delay: Annotated[
        str | None, typer.Option(metavar="TIME", help="The earliest start, from now: 90s, 10m, 2h, 7d.")
    ] = None
    run_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="The earliest start, as a time: 2026-11-16T14:30:00Z.")
    ] = None
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Jobs with the same key run one at a time, in order.")
    ] = None
    after: Annotated[
        list[str] | None,
        typer.Option(
            "--after",
            metavar="ID",
            help="Run after this job has completed. Use a,b or repeat the option.",
            show_default=False,
        ),
    ] = None
    idempotency_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="If a job with this key exists, return it and store no new job."),
    ] = None
    unique: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="while_unfinished: the idempotency key can be used again once its job has ended.",
        ),
    ] = None
    correlation_id: Annotated[
        str | None, typer.Option(metavar="ID", help="An id for tracing, which jobs and logs carry.")
    ] = None
    callback_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Receives a POST request when the job has ended.")
    ] = None
    max_attempts: Annotated[
        int | None, typer.Option(metavar="N", help="The most attempts. Default: 3.", show_default=False)
    ] = None
    timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long an attempt may run. Default: 30m.", show_default=False),
    ] = None

    @property
    def request(self) -> dict[str, Any]:
        """The options by name, with lists split."""
        return {**vars(self), "tags": listed(self.tags), "after": listed(self.after)}


_KEYS: Final = ("type", "payload", *(each.name for each in fields(JobOptions)), "after_any")


def submit_arguments(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Queue.submit` for a request with typed values."""
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


def read_line(line: bytes, type: str | None, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request in a line of JSON: a payload if the type is given, else an object with a type.

    Raises:
        InvalidArgumentError: the line is not JSON, or not such an object.
    """
    if type is not None:
        return {**defaults, "type": type, "payload": as_payload(line)}
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgumentError(f"not JSON: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise InvalidArgumentError(f"must be an object with a type, got {shown(value)}")
    check_known("field", value, _KEYS)
    return {**defaults, **value}
