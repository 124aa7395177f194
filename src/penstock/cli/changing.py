"""`penstock cancel`, `redrive` and `delete`: change jobs by id, or all jobs that match."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from penstock.backends.contract.selection import JobSelection
from penstock.cli._output import ask, emit, emit_json, fail, is_terminal, note, progress_bar
from penstock.cli._selection import Selection, resolve_ids
from penstock.cli._store import AsJson, Store
from penstock.cli._text import clean, counted
from penstock.cli._values import Ids, read_ids
from penstock.errors import InvalidArgumentError
from penstock.queue import Queue
from penstock.queue.bulk import BulkAction, BulkPlan, BulkReport, plan_bulk

__all__ = ["cancel", "delete", "redrive"]

_PAST: Final = {"cancel": "cancelled", "redrive": "redriven", "delete": "deleted"}
MAX_NAMED: Final = 5


@dataclass(frozen=True)
class Targets(Selection):
    """The jobs to change: ids, or a selection with its confirmation."""

    ids: Ids = None
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Do not ask for confirmation before changing all jobs that match."),
    ] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the jobs that match, and change nothing.")
    ] = False

    @property
    def is_bulk(self) -> bool:
        """Whether all jobs that match are meant.

        Raises:
            InvalidArgumentError: neither ids nor options were given, or both.
        """
        if self.ids and self.given:
            raise InvalidArgumentError(
                "name jobs by their ids, or by options such as --type and --status, not both", field="ids"
            )
        if not self.ids and not self.given:
            raise InvalidArgumentError(
                "name jobs by their ids, or by --tags, --type, --status, --since, --until, --error or --key; "
                "--all selects all of them",
                field="ids",
            )
        return not self.ids

    def read_ids(self, queue: Queue) -> list[str]:
        """Return the ids that were typed, completed, and those on stdin."""
        typed, piped = read_ids(self.ids)
        found = list(dict.fromkeys([*resolve_ids(queue.backend, typed), *piped]))
        if not found:
            raise InvalidArgumentError("there are no ids on stdin", field="ids")
        return found


def cancel(*, targets: Targets, store: Store, as_json: AsJson = False) -> None:
    """Cancel jobs that wait or run.

    Name them by id, or select all that match the options; a selection is counted, and you are asked before it is cancelled. Waiting jobs end at once. Running jobs are stopped by their worker. Jobs that depend on a cancelled job are cancelled too. The exit code is 1 if an id was not found or its job had already ended.

    Examples:
        penstock cancel 5f8c9a4e
        penstock cancel --type resize --status pending --since 2h
        penstock cancel --tags customer=42,urgent --yes
    """
    with store.open_queue() as queue:
        if targets.is_bulk:
            _run_bulk(queue, "cancel", targets, as_json=as_json)
            return
        wanted = targets.read_ids(queue)
        cancelled, refused = queue.cancel_jobs(job_ids=wanted)
        known = queue.get_jobs(refused) if refused else {}
    refused = [each for each in wanted if each in set(refused)]
    if as_json:
        emit_json({"cancelled": cancelled, "unknown": refused})
    else:
        emit(f"{len(cancelled)} cancelled")
    _report_refused(
        {
            "not found": [each for each in refused if each not in known],
            "has ended already": [each for each in refused if each in known],
        }
    )


def redrive(*, targets: Targets, store: Store, as_json: AsJson = False) -> None:
    """Submit failed and dead jobs again.

    Each one is copied to a new job, and the new ids are printed. Name jobs by id, and either all of them are redriven or none. Or select all failed and dead jobs that match the options; a selection is counted, and you are asked before it is redriven. A selection leaves out jobs that ended only because a job they depend on ended.

    Examples:
        penstock redrive 5f8c9a4e
        penstock redrive --type resize --error "disk full" --since 1d
        penstock redrive --all --dry-run
        penstock list --status dead --json | jq -r .id | penstock redrive -
    """
    with store.open_queue() as queue:
        if targets.is_bulk:
            _run_bulk(queue, "redrive", targets, as_json=as_json)
            return
        made = queue.redrive_jobs(job_ids=targets.read_ids(queue))
    if as_json:
        emit_json({"ids": made})
    else:
        for each in made:
            emit(clean(each))


def delete(*, targets: Targets, store: Store, as_json: AsJson = False) -> None:
    """Delete jobs that have ended.

    Name them by id: if one has not ended, nothing is deleted; if one was not found, the exit code is 1. Or select all ended jobs that match the options; a selection is counted, and you are asked before it is deleted. Journal rows stay.

    Examples:
        penstock delete 5f8c9a4e
        penstock delete --status completed --until 30d
        penstock delete --tags trial --yes
    """
    with store.open_queue() as queue:
        if targets.is_bulk:
            _run_bulk(queue, "delete", targets, as_json=as_json)
            return
        wanted = targets.read_ids(queue)
        known = queue.get_jobs(wanted)
        number = queue.delete_jobs(job_ids=wanted)
    missing = [each for each in wanted if each not in known]
    if as_json:
        emit_json({"deleted": number, "unknown": missing})
    else:
        emit(f"{number} deleted")
    _report_refused({"not found": missing})


def _report_refused(refused: dict[str, list[str]]) -> None:
    """Print the ids that were refused, by reason, and exit with 1 if there are any."""
    for reason, ids in refused.items():
        if ids:
            more = f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else ""
            fail(f"{reason}: {', '.join(ids[:MAX_NAMED])}{more}")
    if any(refused.values()):
        raise typer.Exit(1)


# -- all that match --------------------------------------------------------------------------------------------------


def _run_bulk(queue: Queue, action: BulkAction, targets: Targets, *, as_json: bool) -> None:
    """Count the jobs that match, ask for confirmation, change them, and print the outcome."""
    selection = targets.at(queue.backend.now())
    plan = plan_bulk(queue, action, selection)
    if targets.dry_run:
        if as_json:
            emit_json({"matched": plan.matched, "dry_run": True})
        else:
            emit(f"{counted(plan.matched, 'job')} would be {_PAST[action]}")
        return
    if plan.matched:
        _confirm(plan, selection, targets)
    prints_ids = action == "redrive" and not as_json
    done: list[str] = []
    report = _run_plan(plan, (lambda ids: emit("\n".join(map(clean, ids)))) if prints_ids else done.extend)
    _print_report(action, report, done, as_json=as_json)


def _confirm(plan: BulkPlan, selection: JobSelection, targets: Targets) -> None:
    """Ask at a terminal; without one, refuse unless --yes was given or --tags is the only option."""
    if targets.yes:
        return
    number = counted(plan.matched, "job")
    if not sys.stdin.isatty() or not is_terminal(sys.stderr):
        if targets.given == ["tags"]:  # a program gave these jobs their tags, and scripts rely on them
            return
        raise InvalidArgumentError(
            f"{number} would be {_PAST[plan.action]}, and there is no terminal to ask at: "
            "add --yes to do it, or --dry-run to count only; nothing was done",
            field="yes",
        )
    if not ask(f"{number} {_description(selection)}; {plan.action} what can be?"):
        fail("nothing was done")
        raise typer.Exit(1)


def _description(selection: JobSelection) -> str:
    """Return a selection in words."""
    parts = [
        ("of status", ", ".join(selection.statuses)),
        ("of type", ", ".join(selection.types)),
        ("tagged", ", ".join(selection.tags)),
        ("of key", "" if selection.key is None else ", ".join(selection.key)),
        ("since", "" if selection.since is None else f"{selection.since:%Y-%m-%d %H:%M:%S%z}"),
        ("until", "" if selection.until is None else f"{selection.until:%Y-%m-%d %H:%M:%S%z}"),
        ("with the error", selection.error or ""),
    ]
    return " ".join(f"{word} {text}" for word, text in parts if text) or "match"


def _run_plan(plan: BulkPlan, on_ids: Callable[[list[str]], object]) -> BulkReport:
    """Run a plan with a progress bar; each batch of ids goes to `on_ids`."""
    number = 0
    with progress_bar(plan.action, plan.matched) as advance:

        def on_done(ids: list[str]) -> None:
            nonlocal number
            number += len(ids)
            advance(len(ids))
            if ids:
                on_ids(ids)

        try:
            return plan.run(on_done)
        except BaseException:
            fail(f"stopped after {number} of {counted(plan.matched, 'job')} {_PAST[plan.action]}")
            raise


def _print_report(action: BulkAction, report: BulkReport, done: list[str], *, as_json: bool) -> None:
    skipped = f"; {report.skipped} of {report.matched} had changed meanwhile" if report.skipped else ""
    if as_json:
        figures = {"matched": report.matched, "skipped": report.skipped}
        if action == "redrive":
            emit_json({"ids": done, **figures})
        else:
            emit_json({_PAST[action]: done if action == "cancel" else report.done, "unknown": [], **figures})
    elif action == "redrive":  # stdout has the ids
        note(f"{report.done} redriven{skipped}")
    else:
        emit(f"{report.done} {_PAST[action]}{skipped}")
