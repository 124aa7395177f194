"""HTML tables that notebooks show for objects, with all text escaped and nothing loaded from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.job import Job

__all__ = ["html_table", "job_html", "unreadable_html"]

#: Characters of one cell; what is longer is cut.
LONGEST_CELL: Final = 300


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """Return a table with a title and one row per name and value."""
    cells = "".join(
        f'<tr><th style="text-align: left">{html.escape(name)}</th>'
        f'<td style="text-align: left">{html.escape(_text(value))}</td></tr>'
        for name, value in rows.items()
    )
    caption = f'<caption style="text-align: left"><b>{html.escape(title)}</b></caption>'
    return f"<table>{caption}<tbody>{cells}</tbody></table>"


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def job_html(job: Job) -> str:
    """Return a job as a table of the fields that have a value."""
    return html_table(_cut(f"Job {job.id}"), {name: _cut(value) for name, value in _rows(job) if value})


def unreadable_html(job_id: str, reason: str) -> str:
    """Return the table of a job that cannot be read."""
    return html_table(_cut(f"Job {job_id}"), {"unreadable": _cut(reason)})


def _rows(job: Job) -> Iterator[tuple[str, str]]:
    yield "type", job.type
    yield "status", str(job.status)
    yield "state", str(job.state or "")
    yield "attempt", str(job.attempt)
    yield "priority", getattr(job.priority, "name", str(job.priority))
    yield "tags", ", ".join(job.tags)
    yield "key", ", ".join(job.key or ())
    yield "progress", f"{job.progress} % {job.description or ''}" if job.progress or job.description else ""
    yield "assignee", job.assignee_id or ""
    for name in ("created_at", "run_at", "started_at", "finalized_at"):
        yield name, _moment(getattr(job, name))
    yield "error", job.error_message.partition("\n")[0]
    yield "payload", _blob(job.payload)
    yield "result", _blob(job.result)


def _moment(moment: datetime | None) -> str:
    return "" if moment is None else moment.isoformat(sep=" ", timespec="seconds")


def _blob(data: bytes | None) -> str:
    """Return bytes as text if they are UTF-8, else their number."""
    if not data:
        return ""
    try:
        return bytes(data[: 4 * LONGEST_CELL]).decode()
    except UnicodeDecodeError:
        return f"{len(data)} bytes"


def _cut(text: str) -> str:
    """Return a short text that can be encoded."""
    cut = text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…"
    return cut.encode("utf-8", "backslashreplace").decode()
