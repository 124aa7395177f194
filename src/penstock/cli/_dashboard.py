"""The tables of `penstock top`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.backends.contract.overview import Overview, OwnerView, TypeView
from penstock.backends.contract.selection import STATUS_GROUPS
from penstock.cli._counts import bounded, ready_bound
from penstock.cli._snapshot import Rates, Snapshot
from penstock.cli._text import clean, first_line, rough_span, span
from penstock.job import Job, JobStatus

__all__ = ["frame", "lines_beside_rows", "shares"]

TYPE_COLUMNS: Final = (
    "ready",
    "oldest",
    *(name.replace("_", " ") for name in STATUS_GROUPS),
    "in/s",
    "done/s",
    "fail/s",
)
_NUMBERS: Final = {*TYPE_COLUMNS, "beat", "slots", "attempt", "runs for", "progress"}
#: The columns that a narrow terminal leaves out, in this order: a number must not be cut.
DISPENSABLE: Final = (
    "cancelled",
    "pending",
    "fail/s",
    "retrying",
    "completed",
    "in/s",
    "handed back",
    "oldest",
    "dead",
)
MIN_TYPE_WIDTH: Final = 12
#: The width from which ids are shown whole; a narrower terminal shows the first two groups of a UUID.
WIDE: Final = 110
SHORT_ID: Final = 13
MIN_ROWS: Final = 2
GAP: Final = 2


def frame(
    snapshot: Snapshot | None, place: str, *, width: int, rows: int, trouble: str = "", is_live: bool = False
) -> RenderableType:
    """Return the tables for a snapshot.

    Args:
        snapshot: the latest one; None before the first.
        place: the location of the store.
        width: the columns of the terminal.
        rows: the rows of all tables together, without their headings.
        trouble: why the snapshot is not up to date.
        is_live: show the key that ends the view.
    """
    parts: list[RenderableType] = [Text(clean(place), style="bold", overflow="ellipsis", no_wrap=True)]
    if trouble:
        parts.append(Text(clean(trouble), style="bold red"))
    if snapshot is not None:
        seen = snapshot.overview
        parts += [_totals(snapshot), *_alerts(seen)]
        needs = [len(seen.types), max(1, len(seen.owners)), len(snapshot.running), len(snapshot.failures)]
        types, workers, running, failures = shares(needs, rows)
        parts += [Text(), _types(snapshot, width, types), Text(), _workers(seen, workers)]
        if snapshot.running:
            parts += [Text(), _running(snapshot, width, running)]
        if snapshot.failures:
            parts += [Text(), _failures(snapshot, width, failures)]
    if is_live:
        parts += [Text(), Text("q quits", style="dim")]
    return Group(*parts)


def lines_beside_rows(snapshot: Snapshot | None, width: int) -> int:
    """Return the number of lines in a live frame that are not rows of a table."""
    if snapshot is None:
        return 4
    tables = 2 + bool(snapshot.running) + bool(snapshot.failures)
    totals = -(-len(_totals(snapshot).plain) // max(1, width))
    return 1 + totals + sum(1 for _ in _alerts(snapshot.overview)) + 2 * tables + 2


def shares(needs: Sequence[int], rows: int) -> list[int]:
    """Divide rows among tables: each gets what it needs, or an equal share of what the smaller ones leave."""
    found = [0] * len(needs)
    left = rows
    for waiting, number in enumerate(sorted(range(len(needs)), key=lambda number: needs[number])):
        fair = max(MIN_ROWS, left // (len(needs) - waiting))
        found[number] = min(needs[number], fair)
        left = max(0, left - found[number])
    return found


def _totals(snapshot: Snapshot) -> Text:
    seen = snapshot.overview
    counts = seen.counts
    words = [
        f"{bounded(seen.ready, ready_bound(seen))} ready",
        f"{seen.running:,} running",
        f"{_counted(seen.delayed, seen)} delayed",
        f"{'?' if seen.waiting is None else f'{seen.waiting:,}'} waiting",
        f"oldest ready {span(seen.oldest_ready) or '-'}",
        f"{counts.retrying:,} retrying",
        *([f"{bounded(counts.handed_back, counts.most_counted)} handed back"] if counts.handed_back else []),
        f"{counts.failed:,} failed",
        f"{counts.dead:,} dead",
        f"{counts.cancelled:,} cancelled",
    ]
    total = snapshot.total
    if total is not None:
        words.append(
            f"in {_rate(total.submitted)}/s, done {_rate(total.completed)}/s, failed {_rate(total.failed)}/s"
        )
    return Text(" · ".join(words))


def _alerts(seen: Overview) -> Iterator[Text]:
    if seen.is_blocked:
        yield Text("new jobs are refused (penstock unblock)", style="yellow")
    if seen.unhandled:
        yield Text(
            f"no living worker claims: {', '.join(map(clean, seen.unhandled))}",
            style="yellow",
            overflow="ellipsis",
        )
    if seen.given_up:
        yield Text(f"{_counted(seen.given_up, seen)} callbacks were given up", style="yellow")


def _types(snapshot: Snapshot, width: int, rows: int) -> Table:
    seen = snapshot.overview
    busiest = sorted(seen.types, key=lambda each: (-each.pending - each.running, each.type))
    shown = _fitting(len(busiest), rows)
    lines = [_type_cells(view, snapshot) for view in busiest[:shown]]
    widths = {
        name: max([len(name), *(len(line[name]) for line in lines)])
        for name in TYPE_COLUMNS
        if name != "handed back" or any(view.handed_back for view in busiest)
    }
    for name in DISPENSABLE:
        if MIN_TYPE_WIDTH + sum(widths.values()) + GAP * len(widths) <= width:
            break
        widths.pop(name, None)
    table = _table("type", *widths)
    table.columns[0].max_width = max(MIN_TYPE_WIDTH, width - sum(widths.values()) - GAP * len(widths))
    table.columns[0].overflow = "ellipsis"
    for view, line in zip(busiest, lines, strict=False):
        table.add_row(Text(clean(view.type)), *(line[name] for name in widths))
    _note_rest(table, len(busiest) - shown, "types")
    return table


def _type_cells(view: TypeView, snapshot: Snapshot) -> dict[str, str]:
    rates = None if snapshot.rates is None else snapshot.rates.get(view.type)
    counts = view.counts
    cells = (
        _counted(view.ready, snapshot.overview),
        _age(view, snapshot.overview),
        *(f"{getattr(counts, name.replace(' ', '_')):,}" for name in TYPE_COLUMNS[2:-3]),
        *_rate_cells(rates),
    )
    return dict(zip(TYPE_COLUMNS, cells, strict=True))


def _workers(seen: Overview, rows: int) -> Table:
    table = _table("worker", "state", "beat", "slots", "running", "takes")
    shown = _fitting(len(seen.owners), rows)
    for owner in seen.owners[:shown]:
        table.add_row(
            Text(clean(owner.name)),
            Text("alive", style="green") if owner.is_alive else Text("dead", style="bold red"),
            rough_span(seen.at - owner.beat_at),
            f"{owner.slots:,}",
            f"{owner.running:,}",
            Text(_takes(owner), overflow="ellipsis", no_wrap=True),
        )
    _note_rest(table, len(seen.owners) - shown, "workers")
    if not seen.owners:
        table.add_row(Text("no worker", style="dim"))
    return table


def _running(snapshot: Snapshot, width: int, rows: int) -> Table:
    table = _table("job", "type", "attempt", "runs for", "progress", "worker", "what")
    shown = _fitting(len(snapshot.running), rows)
    for job in snapshot.running[:shown]:
        began = job.attempt_started_at or snapshot.overview.at
        table.add_row(
            Text(_short_id(job.id, width)),
            Text(clean(job.type), overflow="ellipsis", no_wrap=True),
            f"{job.attempt}",
            rough_span(snapshot.overview.at - began),
            f"{job.progress} %",
            Text(clean(job.assignee_id or "-"), overflow="ellipsis", no_wrap=True),
            Text(_doing(job), overflow="ellipsis", no_wrap=True),
        )
    # The total may be higher than the number of jobs that were read.
    _note_rest(table, max(len(snapshot.running), snapshot.overview.running) - shown, "running jobs")
    return table


def _short_id(job_id: str, width: int) -> str:
    """Return an id, or on a narrow terminal its beginning, which commands accept too."""
    return clean(job_id if width >= WIDE else job_id[:SHORT_ID])


def _doing(job: Job) -> str:
    words = "being cancelled" if job.status is JobStatus.CANCELLING else ""
    return clean(" ".join(filter(None, [words, first_line(job.description)])))


def _failures(snapshot: Snapshot, width: int, rows: int) -> Table:
    table = _table("failed", "type", "job", "attempt", "status", "error")
    for row in snapshot.failures[:rows]:
        table.add_row(
            f"{rough_span(max(snapshot.overview.at - row.recorded_at, timedelta()))} ago",
            Text(clean(row.type), overflow="ellipsis", no_wrap=True),
            Text(_short_id(row.job_id, width), overflow="ellipsis", no_wrap=True),
            f"{row.attempt}",
            f"{row.status}",
            Text(clean(first_line(row.error_message)[:200]), overflow="ellipsis", no_wrap=True),
        )
    return table


def _fitting(count: int, rows: int) -> int:
    """Return how many rows to show; if not all fit, one row is kept for the number of the others."""
    return count if count <= rows else max(1, rows - 1)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    for number, column in enumerate(columns):
        is_number = column in _NUMBERS and number > 0
        table.add_column(
            column.upper(), justify="right" if is_number else "left", no_wrap=is_number or number == 0
        )
    return table


def _note_rest(table: Table, more: int, what: str) -> None:
    if more > 0:
        table.add_row(Text(f"… {more:,} more {what}", style="dim"))


def _takes(owner: OwnerView) -> str:
    if not owner.intakes:
        return "-"
    return "; ".join(
        clean(
            ("any type" if each.types is None else ", ".join(each.types))
            + (f" tagged {', '.join(each.tags)}" if each.tags else "")
        )
        for each in owner.intakes
    )


def _age(view: TypeView, seen: Overview) -> str:
    if view.oldest_ready_at is None:
        return "-"
    return rough_span(max(seen.at - view.oldest_ready_at, timedelta()))


def _rate_cells(rates: Rates | None) -> tuple[str, str, str]:
    if rates is None:
        return "-", "-", "-"
    return _rate(rates.submitted), _rate(rates.completed), _rate(rates.failed)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _counted(count: int, seen: Overview) -> str:
    return bounded(count, seen.most_counted)
