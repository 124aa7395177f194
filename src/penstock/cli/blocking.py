"""`penstock block` and `unblock`: whether new jobs are accepted."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli._output import emit, emit_json
from penstock.cli._store import AsJson, Store
from penstock.cli._text import counted

__all__ = ["block", "unblock"]


def block(
    *,
    status: Annotated[
        bool, typer.Option("--status", help="Change nothing, and print whether new jobs are refused.")
    ] = False,
    store: Store,
    as_json: AsJson = False,
) -> None:
    """Refuse new jobs, in every process.

    Jobs that are stored still run, and so do their retries.

    Examples:
        penstock block
        penstock block --status --json
    """
    _set(None if status else True, store, as_json=as_json)


def unblock(*, store: Store, as_json: AsJson = False) -> None:
    """Accept new jobs again.

    Examples:
        penstock unblock
    """
    _set(False, store, as_json=as_json)


def _set(blocked: bool | None, store: Store, *, as_json: bool) -> None:
    with store.open() as backend:
        if blocked is not None:
            backend.set_blocked(blocked)
        is_blocked = backend.is_blocked()
        counts = backend.get_job_stats()
    active = counts.total_jobs - counts.completed_jobs - counts.stopped_jobs
    if as_json:
        emit_json({"blocked": is_blocked, "unfinished_jobs": active})
    else:
        emit(
            f"{'blocked: new jobs are refused' if is_blocked else 'open: new jobs are accepted'}; {counted(active, 'job')} unfinished"
        )
