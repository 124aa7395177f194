"""`penstock audit`: check a journal against the life cycle of jobs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli._output import emit, emit_json, note, stderr_console
from penstock.cli._spark import Master, check_places, spark_session
from penstock.cli._store import CONNECT_TIMEOUT, AsJson, ConnectTimeout
from penstock.cli._text import clean
from penstock.errors import InvalidArgumentError

__all__ = ["audit"]


def audit(
    lake: Annotated[Path | None, typer.Option("--lake", "-l", help="Audit the lake in this folder.")] = None,
    url: Annotated[str | None, typer.Option("--url", "-u", help="Audit the journal of this store.")] = None,
    drained: Annotated[
        bool, typer.Option("--drained", help="Also report jobs that could have run by now and did not.")
    ] = False,
    idempotency_hours: Annotated[
        float, typer.Option(help="The store's idempotency window, in hours.")
    ] = 24.0,
    limit: Annotated[int, typer.Option(min=1, help="The most violations to print.")] = 100,
    as_json: AsJson = False,
    master: Master = None,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT,
) -> None:
    """Check that every recorded change of every job was allowed.

    The rows of the journal are compared with the legal transitions and the invariants. The exit code is 1 if one is violated.

    Examples:
        penstock audit --url sqlite:///jobs.db
        penstock audit --lake lake --json
    """
    if (lake is None) == (url is None):
        raise InvalidArgumentError("name what to audit: --lake DIR or --url URL, one of them", field="lake")
    check_places(lake, () if url is None else [url], connect_timeout=connect_timeout)
    with spark_session(master) as spark:
        from penstock.spark.auditing import INVARIANTS, run_audit  # noqa: PLC0415  # needs Spark

        with stderr_console().status("Reading the journal"):
            found = run_audit(
                spark,
                str(lake if url is None else url),
                drained_at=datetime.now(UTC) if drained else None,
                idempotency_window=idempotency_hours * 3600,
            )
            number = found.violations.count()
            shown = found.violations.limit(limit).collect()
    for row in shown:
        if as_json:
            emit_json(row.asDict())
            continue
        what, _, rows = row["detail"].partition(" [")
        name = INVARIANTS[row["invariant"]]
        store = f" of store {row['source']}" if url is None else ""  # a lake may have several
        job = f"job {row['job_id']!r}{store}, attempt {row['attempt']}"
        emit(clean(f"{row['invariant']} ({name}): {job}: {what}"))
        for line in rows.removesuffix("]").split("; "):
            emit(f"    {clean(line)}")
    for source, archive in found.archived.items():
        if archive.rows:
            note(f"Not seen: {archive.rows} archived rows of store {source} (up to seq {archive.upto}).")
    if number > len(shown):
        note(f"{number - len(shown)} more violations are not shown (--limit).")
    note(f"{found.events} changes checked, {number} violations.")
    if number:
        raise typer.Exit(1)
