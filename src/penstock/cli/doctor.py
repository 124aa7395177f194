"""`penstock doctor`: is everything as it should be, and what to do if not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import typer

from penstock.cli._checks import check_machine, check_work
from penstock.cli._output import clean, counted, emit, emit_json, is_terminal, stdout_console
from penstock.cli._store import AsJson, Url, open_store
from penstock.errors import BackendError, InvalidArgumentError
from penstock.overview import Finding, Level

__all__ = ["doctor"]

_COLOURS: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


def doctor(url: Url = None, as_json: AsJson = False) -> None:
    """Look for what is wrong, or soon will be.

    The store, its settings, this machine, workers, callbacks. Each line is ok, a warning or a problem, with what to do next. Exits with 1 if there is a problem, else with 0.

    Examples:
        penstock doctor
        penstock doctor --url postgresql://app@db/shop --json
    """
    found = [*check_machine(), *_check_store(url)]
    worst = max((each.level for each in found), key=list(Level).index)
    if as_json:
        emit_json({"status": worst, "findings": [_fields(each) for each in found]})
    else:
        _show(found)
    raise typer.Exit(1 if worst is Level.PROBLEM else 0)


def _check_store(url: str | None) -> Iterator[Finding]:
    try:
        with open_store(url) as backend:
            yield Finding.ok("store", repr(backend).strip("<>"))
            yield from check_work(backend.overview())
            yield from backend.examine()
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
            else "correct that, then call the doctor again",
        )


def _fields(finding: Finding) -> dict[str, str]:
    return {name: getattr(finding, name) for name in finding.__struct_fields__}


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
