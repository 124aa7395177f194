"""Checks of a worker's arguments, which a fleet has too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from penstock.app import App
from penstock.app.task import ISOLATIONS, Isolation, Task
from penstock.errors import InvalidArgumentError, invalid, shown
from penstock.job import distinct

__all__ = ["MAX_SLOTS", "checked_tasks", "checked_whole"]

MAX_SLOTS: Final = 1_000


def checked_whole(field: str, value: object, least: int, most: int) -> int:
    """Return a whole number within limits.

    Raises:
        InvalidArgumentError: it is none, or outside.
    """
    if type(value) is not int or not least <= value <= most:
        raise invalid(field, f"a whole number from {least} to {most}", value)
    return value


def checked_tasks(app: App, types: Sequence[str] | None, isolation: Isolation) -> dict[str, Task[..., Any]]:
    """Return the tasks of these types, or of all.

    Raises:
        InvalidArgumentError: there are none, or one cannot run with this isolation.
    """
    if not isinstance(isolation, str) or isolation not in ISOLATIONS:
        raise invalid("isolation", f"one of {', '.join(ISOLATIONS)}", isolation)
    selected = _selected(app, types)
    for task in selected.values():
        refused = [name for name in task.limits if name != "output"]
        if (task.isolation or isolation) == "thread" and refused:
            raise InvalidArgumentError(
                f"{task.type} has limits ({', '.join(refused)}), which only hold for a process of its own: "
                'run it with isolation="process", or drop them',
                field="isolation",
                value="thread",
            )
    return selected


def _selected(app: App, types: Sequence[str] | None) -> dict[str, Task[..., Any]]:
    if types is None:
        selected = dict(app.tasks)
    else:
        names = distinct("types", types)
        unknown = [name for name in names if name not in app.tasks]
        if unknown:
            raise InvalidArgumentError(
                f"the app has no handler for {', '.join(map(shown, unknown))} (it has {', '.join(app.tasks) or 'none'})",
                field="types",
                value=unknown,
            )
        selected = {name: app.tasks[name] for name in names}
    if types is not None and not selected:
        raise InvalidArgumentError(
            "types is empty: name at least one, or leave it out for all", field="types", value=types
        )
    if not selected:
        raise InvalidArgumentError(
            "the app has no handlers: decorate a function with @app.job, in a module that is imported",
            field="app",
        )
    return selected
