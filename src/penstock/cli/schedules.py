"""`penstock schedules`: periodic schedules with their last and next ticks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated, Any, NamedTuple

import typer

from penstock.app.schedules import Cron, Every, Periodic
from penstock.backends import Schedule
from penstock.cli._loading import load_app
from penstock.cli._output import emit, emit_json, emit_table
from penstock.cli._store import AsJson, Store
from penstock.cli._text import span, utc_time

__all__ = ["schedules"]


class Row(NamedTuple):
    """A schedule of the store, of the app, or of both."""

    name: str
    rule: str | None
    missed: str | None
    #: Ticks up to this time are done: the last tick, or the time at which a worker started the schedule.
    up_to: datetime | None
    #: The last tick; None if there was none, or if the rule is unknown.
    last: datetime | None
    next: datetime | None

    @property
    def state(self) -> str:
        if self.rule is None:
            return "stored"
        return "new" if self.up_to is None else "active"

    @property
    def last_text(self) -> str | None:
        """The last tick, or without the rule the time up to which ticks are done."""
        return f"up to {utc_time(self.up_to)}" if self.rule is None else utc_time(self.last)


def schedules(
    *,
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:APP",
            envvar="PENSTOCK_APP",
            help="The app, such as shop.jobs:app. Only an app has the rules that give the next tick.",
            show_default=False,
        ),
    ] = None,
    store: Store,
    as_json: AsJson = False,
) -> None:
    """List periodic schedules with their last and next ticks.

    The store has the names, and the time up to which ticks are done. The rules are in the code, so LAST and NEXT need the app. A schedule that a worker has started and that has not ticked yet has no LAST. STATE is active, new (in the app, and no worker has started it yet) or stored (in the store, and the app does not have it or was not given).

    Examples:
        penstock schedules
        penstock schedules shop.jobs:app
        penstock schedules shop.jobs:app --json
    """
    known = () if app is None else load_app(app).schedules
    with store.open() as backend:
        now = backend.now()
        rows = list(_rows(backend.outbox.list_schedules(), {each.name: each for each in known}, now))
    if as_json:
        for row in rows:
            emit_json(_fields(row, now))
        return
    if not rows:
        emit("no schedules")
        return
    emit_table(
        ["name", "state", "rule", "last", "next", "in"],
        [
            (
                row.name,
                row.state,
                row.rule,
                row.last_text,
                utc_time(row.next),
                None if row.next is None else span(max(row.next - now, timedelta())),
            )
            for row in rows
        ],
    )


def _rows(stored: list[Schedule], known: dict[str, Periodic], now: datetime) -> Iterator[Row]:
    ticks = {each.name: each.tick for each in stored}
    for name in sorted(ticks.keys() | known.keys()):
        rule = known.get(name)
        up_to = ticks.get(name)
        if rule is None:
            yield Row(name, None, None, up_to, None, None)
        else:
            # A tick that was missed while no worker ran is made up when one starts.
            upcoming = rule.when.after(now if up_to is None else up_to)
            yield Row(name, _rule(rule), rule.missed, up_to, _as_tick(rule, up_to), upcoming)


def _as_tick(rule: Periodic, moment: datetime | None) -> datetime | None:
    """Return a time if the schedule ticks at it; the time at which a worker started the schedule is no tick."""
    if moment is None or rule.when.after(moment - timedelta(microseconds=1)) != moment:
        return None
    return moment


def _rule(schedule: Periodic) -> str:
    when = schedule.when
    if isinstance(when, Cron):
        return f"{when.expression} ({when.tz})"
    if isinstance(when, Every):
        return f"every {span(when.interval)}"
    return repr(when)


def _fields(row: Row, now: datetime) -> dict[str, Any]:
    return {
        "name": row.name,
        "state": row.state,
        "rule": row.rule,
        "missed": row.missed,
        "up_to": row.up_to,
        "last_tick": row.last,
        "next_tick": row.next,
        "seconds_until_next": None if row.next is None else (row.next - now).total_seconds(),
    }
