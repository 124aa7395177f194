"""Assertions about the jobs that were submitted.

assert_enqueued(resize, {"image": "cat.png"}, tags=["welcome"])
assert_not_enqueued(invoice)

A job counts whatever has become of it since: waiting, running or ended. The store is the app's own of the moment: inside
`in_memory` and `inline` that is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from penstock.app import App
from penstock.app.task import Task
from penstock.errors import InvalidArgumentError, invalid, shown
from penstock.job import Job, Key
from penstock.payloads.json import decode_json
from penstock.queue import Queue
from penstock.queue.requests import labels

__all__ = ["all_enqueued", "assert_enqueued", "assert_not_enqueued"]

PAGE: Final = 1_000
MAX_SHOWN: Final = 10
FIELDS: Final = frozenset(Job.__struct_fields__) - {"id", "type", "payload"}


def assert_enqueued(
    task: Task[Any, Any] | str,
    arguments: Mapping[str, Any] | None = None,
    /,
    *,
    count: int | None = None,
    queue: Queue | App | None = None,
    **fields: Any,
) -> Job:
    """Fail unless a job was submitted that looks like this; return the latest one that does.

    Args:
        task: what `@app.job` made, or the name of a type.
        arguments: those that the job must have, by name; others it may have too.
        count: how many there must be; None is at least one.
        queue: where to look, if the task is given by name; a queue or an app.
        **fields: fields of the job, such as `priority`, `key` or `run_at`; `tags` are those it must have among others.

    Raises:
        AssertionError: there is none, or there are not so many; the message shows what there is.
        InvalidArgumentError: an unknown field, or a name without a queue.
    """
    __tracebackhide__ = True
    if count is not None and (type(count) is not int or count < 1):
        raise invalid("count", "a whole number of at least 1 (for none, use assert_not_enqueued)", count)
    where = _queue(task, queue)
    found = all_enqueued(task, arguments, queue=where, **fields)
    if not found or (count is not None and len(found) != count):
        wanted = "a job" if count is None else f"{count} jobs"
        raise AssertionError(
            f"expected {wanted} of {_wish(task, arguments, fields)}, found {len(found) or 'none'}{_there_is(where)}"
        )
    return found[-1]


def assert_not_enqueued(
    task: Task[Any, Any] | str,
    arguments: Mapping[str, Any] | None = None,
    /,
    *,
    queue: Queue | App | None = None,
    **fields: Any,
) -> None:
    """Fail if a job was submitted that looks like this; see `assert_enqueued`."""
    __tracebackhide__ = True
    where = _queue(task, queue)
    found = all_enqueued(task, arguments, queue=where, **fields)
    if found:
        raise AssertionError(
            f"expected no job of {_wish(task, arguments, fields)}, found {len(found)}{_there_is(where)}"
        )


def all_enqueued(
    task: Task[Any, Any] | str,
    arguments: Mapping[str, Any] | None = None,
    /,
    *,
    queue: Queue | App | None = None,
    **fields: Any,
) -> list[Job]:
    """Return the jobs that look like this, in the order of their submission; see `assert_enqueued`."""
    unknown = sorted(fields.keys() - FIELDS)
    if unknown:
        raise InvalidArgumentError(
            f"a job has no field {', '.join(unknown)} (arguments of its handler are given as a mapping)",
            field=unknown[0],
            value=unknown,
        )
    if "key" in fields:
        fields["key"] = Key.of(fields["key"])
    tags = set(labels(fields.pop("tags", ())))
    where = _queue(task, queue)
    return [
        job
        for job in _jobs(where, _type(task))
        if tags <= set(job.tags)
        and all(getattr(job, name) == value for name, value in fields.items())
        and (arguments is None or _has(job, arguments))
    ]


def _queue(task: Task[Any, Any] | str, queue: Queue | App | None) -> Queue:
    if isinstance(queue, Queue):
        return queue
    if isinstance(queue, App):
        return queue.queue
    if queue is None and isinstance(task, Task):
        return task.app.queue
    raise invalid("queue", "a Queue or an App if the task is given by name", queue)


def _type(task: Task[Any, Any] | str) -> str:
    if isinstance(task, Task):
        return task.type
    if isinstance(task, str):
        return task
    raise invalid("task", "what @app.job made, or the name of a type", task)


def _jobs(queue: Queue, type: str | None) -> list[Job]:
    found: list[Job] = []
    while True:
        page = queue.list_jobs(type=type, after=found[-1].id if found else None, limit=PAGE)
        found += page
        if len(page) < PAGE:
            return found


def _has(job: Job, arguments: Mapping[str, Any]) -> bool:
    """Whether a job has these among its arguments, as JSON holds them."""
    given = _arguments(job)
    if not isinstance(given, dict):
        return False
    wanted = msgspec.to_builtins(dict(arguments), str_keys=True)
    missing = object()
    return all(given.get(name, missing) == value for name, value in wanted.items())


def _arguments(job: Job) -> Any:
    try:
        return decode_json(job.payload) if job.payload else {}
    except (ValueError, msgspec.DecodeError):
        return None


def _wish(task: Task[Any, Any] | str, arguments: Mapping[str, Any] | None, fields: Mapping[str, Any]) -> str:
    facts = [] if arguments is None else [shown(dict(arguments))]
    facts += [f"{name}={shown(value)}" for name, value in fields.items()]
    return f"{_type(task)}{' with ' if facts else ''}{', '.join(facts)}"


def _there_is(queue: Queue) -> str:
    jobs = _jobs(queue, None)
    if not jobs:
        return "; nothing was submitted"
    lines = [f"\n  {job.type} {shown(_arguments(job))} {job.status.value}" for job in jobs[-MAX_SHOWN:]]
    more = f"\n  … and {len(jobs) - MAX_SHOWN} before these" if len(jobs) > MAX_SHOWN else ""
    return f"; submitted were{''.join(lines)}{more}"
