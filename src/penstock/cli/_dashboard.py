"""What `penstock top` looks like."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.cli._glance import Glance, Rates
from penstock.cli._output import about, clean, span
from penstock.overview import Overview, OwnerView, TypeView

__all__ = ["frame"]

TYPE_COLUMNS: Final = (
    "ready",
    "oldest",
    "pending",
    "running",
    "completed",
    "failed",
    "in/s",
    "done/s",
    "fail/s",
)
#: What a narrow terminal does without, one after the other: a number that is cut says nothing.
LEAST_NEEDED: Final = ("pending", "fail/s", "completed", "in/s", "oldest")
FEWEST_LETTERS: Final = 12
GAP: Final = 2


def frame(
    glance: Glance | None, place: str, *, width: int, rows: int, trouble: str = "", is_live: bool = False
) -> RenderableType:
    """Draw a look at a store.

    Args:
        glance: the latest one; None if there was none yet.
        place: which store it is.
        width: columns of the terminal.
        rows: for the three tables together.
        trouble: why there is no newer look.
        is_live: say how to end it.
    """
    parts: list[RenderableType] = [Text(clean(place), style="bold", overflow="ellipsis", no_wrap=True)]
    if trouble:
        parts.append(Text(clean(trouble), style="bold red"))
    if glance is not None:
        seen = glance.overview
        parts += [_totals(glance), *_alerts(seen), Text(), _types(glance, width, max(3, rows // 2))]
        parts += [Text(), _workers(seen, max(2, rows // 4))]
        if glance.failures:
            parts += [Text(), _failures(glance, max(2, rows // 4))]
    if is_live:
        parts += [Text(), Text("q quits", style="dim")]
    return Group(*parts)


def _totals(glance: Glance) -> Text:
    seen = glance.overview
    words = [
        f"{_counted(seen.ready, seen)} ready",
        f"{seen.running:,} running",
        f"{_counted(seen.delayed, seen)} delayed",
        f"{'?' if seen.waiting is None else f'{seen.waiting:,}'} waiting",
        f"oldest ready {span(seen.oldest_ready) or '-'}",
    ]
    total = glance.total
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
            f"nobody takes: {', '.join(map(clean, seen.unhandled))}", style="yellow", overflow="ellipsis"
        )
    if seen.given_up:
        yield Text(f"{_counted(seen.given_up, seen)} callbacks were given up", style="yellow")


def _types(glance: Glance, width: int, rows: int) -> Table:
    seen = glance.overview
    busiest = sorted(seen.types, key=lambda each: (-each.pending - each.running, each.type))
    lines = [_type_cells(view, glance) for view in busiest[:rows]]
    widths = {name: max([len(name), *(len(line[name]) for line in lines)]) for name in TYPE_COLUMNS}
    for name in LEAST_NEEDED:
        if FEWEST_LETTERS + sum(widths.values()) + GAP * len(widths) <= width:
            break
        del widths[name]
    table = _table("type", *widths)
    table.columns[0].max_width = max(FEWEST_LETTERS, width - sum(widths.values()) - GAP * len(widths))
    table.columns[0].overflow = "ellipsis"
    for view, line in zip(busiest, lines, strict=False):
        table.add_row(Text(clean(view.type)), *(line[name] for name in widths))
    _note_rest(table, len(busiest) - rows, "types")
    return table


def _type_cells(view: TypeView, glance: Glance) -> dict[str, str]:
    rates = None if glance.rates is None else glance.rates.get(view.type)
    cells = (
        _counted(view.ready, glance.overview),
        _age(view, glance.overview),
        f"{view.pending:,}",
        f"{view.running:,}",
        f"{sum(count for status, count in view.jobs.items() if status == 'completed'):,}",
        f"{sum(count for status, count in view.jobs.items() if status in ('failed', 'dead_letter')):,}",
        *_rate_cells(rates),
    )
    return dict(zip(TYPE_COLUMNS, cells, strict=True))


def _workers(seen: Overview, rows: int) -> Table:
    table = _table("worker", "state", "beat", "slots", "running", "takes")
    for owner in seen.owners[:rows]:
        table.add_row(
            Text(clean(f"{owner.host}:{owner.pid}")),
            Text("alive", style="green") if owner.is_alive else Text("dead", style="bold red"),
            about(seen.at - owner.beat_at),
            f"{owner.slots:,}",
            f"{owner.running:,}",
            Text(_takes(owner), overflow="ellipsis", no_wrap=True),
        )
    _note_rest(table, len(seen.owners) - rows, "workers")
    if not seen.owners:
        table.add_row(Text("no worker", style="dim"))
    return table


def _failures(glance: Glance, rows: int) -> Table:
    table = _table("failed", "type", "job", "attempt", "status", "error")
    for row in glance.failures[:rows]:
        table.add_row(
            f"{about(max(glance.overview.at - row.recorded_at, timedelta()))} ago",
            Text(clean(row.type)),
            Text(clean(row.job_id), overflow="ellipsis", no_wrap=True),
            f"{row.attempt}",
            f"{row.status}",
            Text(clean(row.error_message.partition("\n")[0][:200]), overflow="ellipsis", no_wrap=True),
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    numbers = {
        "ready",
        "oldest",
        "pending",
        "running",
        "completed",
        "failed",
        "in/s",
        "done/s",
        "fail/s",
        "beat",
        "slots",
        "attempt",
    }
    for number, column in enumerate(columns):
        is_number = column in numbers and number > 0
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
    return about(max(seen.at - view.oldest_ready_at, timedelta()))


def _rate_cells(rates: Rates | None) -> tuple[str, str, str]:
    if rates is None:
        return "-", "-", "-"
    return _rate(rates.submitted), _rate(rates.completed), _rate(rates.failed)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _counted(count: int, seen: Overview) -> str:
    return f"{count:,}" if count < seen.most_counted else f"{count:,}+"
