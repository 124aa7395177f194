"""`penstock doctor`: find problems of a store, its workers and this installation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import typer

from penstock.backends.contract.overview import Finding, Level
from penstock.cli._checks import check_machine, check_work
from penstock.cli._output import emit, emit_json, is_terminal, stdout_console
from penstock.cli._store import AsJson, Store
from penstock.cli._text import clean, counted
from penstock.errors import BackendError, InvalidArgumentError

__all__ = ["doctor"]

_COLOURS: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


def doctor(*, store: Store, as_json: AsJson = False) -> None:
    """Check a store, its workers and this installation for problems.

    Each line is a check: ok, a warning or a problem, with advice on what to do. The exit code is 1 if there is a problem; warnings do not change it.

    Examples:
        penstock doctor
        penstock doctor --url postgresql://app@db/shop --json
    """
    found = [*check_machine(), *_check_store(store)]
    worst = max((each.level for each in found), key=list(Level).index)
    if as_json:
        emit_json({"status": worst, "findings": [msgspec.structs.asdict(each) for each in found]})
    else:
        _show(found)
    raise typer.Exit(1 if worst is Level.PROBLEM else 0)


def _check_store(store: Store) -> Iterator[Finding]:
    try:
        with store.open() as backend:
            yield Finding.ok("store", backend.location)
            yield from check_work(backend.reading.overview())
            yield from backend.reading.examine()
    except InvalidArgumentError as error:
        if " no store" not in error.message:
            raise
        yield Finding.warning("store", str(error), "submit a job, start a worker, or penstock migrate up")
    except BackendError as error:
        yield Finding.problem(
            "store",
            str(error),
            "try again once it is reachable"
            if error.retryable
            else "correct that, then run penstock doctor again",
        )


def _show(found: list[Finding]) -> None:
    width = max(len(each.check) for each in found)
    screen = stdout_console() if is_terminal() else None
    for each in found:
        rest = f"  {each.check:{width}}  {clean(each.message)}"
        advice = f"{'':{width + 10}}  → {clean(each.advice)}" if each.advice else ""
        if screen is None:
            emit(f"{each.level:8}{rest}")
            if advice:
                emit(advice)
        else:
            screen.print(f"{each.level:8}", style=_COLOURS[each.level], end="")
            screen.print(rest, soft_wrap=True)
            if advice:
                screen.print(advice, style="italic", soft_wrap=True)
    counts = {level: sum(each.level is level for each in found) for level in Level}
    problems, warnings = (counted(counts[each], str(each)) for each in (Level.PROBLEM, Level.WARNING))
    emit(f"{problems}, {warnings}, {counts[Level.OK]} ok")
