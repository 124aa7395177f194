"""`penstock block` and `unblock`: whether new jobs are accepted."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli._output import emit, emit_json
from penstock.cli._store import AsJson, Url, open_store

__all__ = ["block", "unblock"]


def block(
    status: Annotated[bool, typer.Option("--status", help="Change nothing; only say how it is.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Refuse new jobs, or say whether they are.

    This holds for every process. What is stored goes on, and so do retries.

    Examples:
        penstock block
        penstock block --status --json
    """
    _set(None if status else True, url, as_json=as_json)


def unblock(url: Url = None, as_json: AsJson = False) -> None:
    """Accept new jobs again.

    Examples:
        penstock unblock
    """
    _set(False, url, as_json=as_json)


def _set(blocked: bool | None, url: str | None, *, as_json: bool) -> None:
    with open_store(url) as backend:
        if blocked is not None:
            backend.set_blocked(blocked)
        is_blocked = backend.is_blocked()
        counts = backend.get_job_stats()
    active = counts.total_jobs - counts.completed_jobs - counts.stopped_jobs
    if as_json:
        emit_json({"blocked": is_blocked, "unfinished_jobs": active})
    else:
        emit(f"{'blocked: new jobs are refused' if is_blocked else 'open'}; {active} jobs are unfinished")
