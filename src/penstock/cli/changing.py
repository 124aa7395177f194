"""`penstock cancel`, `redrive` and `delete`: something done to jobs by id or by tags."""

from __future__ import annotations

import sys
from typing import Annotated, TypeAlias

import typer

from penstock.backends.base import Backend
from penstock.cli._output import ask, clean, counted, emit, emit_json, fail, is_terminal
from penstock.cli._store import AsJson, Url, open_queue
from penstock.cli._values import Ids, Tags, listed, read_ids
from penstock.errors import InvalidArgumentError

__all__ = ["cancel", "delete", "redrive"]

Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before working by tags.")]


def cancel(
    ids: Ids = None,
    tags: Tags = None,
    yes: Yes = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Cancel jobs that wait or run.

    Those that wait end at once; those that run are ended by their worker. What waits for them is cancelled too. Exit code 1 if an id does not exist or its job has ended already.

    Examples:
        penstock cancel 5f8c9a4e-0d3b-4c1e-9d59-0b8f4f6f1a2b
        penstock cancel --tags customer=42,urgent --yes
        penstock list --status initial_pending --json | jq -r .id | penstock cancel -
    """
    wanted, labels = _selected(ids, tags)
    with open_queue(url) as queue:
        _confirm("cancel", queue.backend, labels, yes=yes)
        cancelled, unknown = queue.cancel_jobs(tags=labels, job_ids=wanted)
    lost = set(unknown)
    missed = [each for each in wanted if each in lost]
    if as_json:
        emit_json({"cancelled": cancelled, "unknown": missed})
    else:
        emit(f"{len(cancelled)} cancelled")
    _report_missed(missed, "not there, or ended already")


def redrive(
    ids: Ids = None,
    tags: Tags = None,
    yes: Yes = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Submit failed and dead jobs again.

    They are copied, and the new ids printed. By tags, all that are failed or dead and have them; by ids, exactly those, or nothing is done.

    Examples:
        penstock redrive 5f8c9a4e-0d3b-4c1e-9d59-0b8f4f6f1a2b
        penstock redrive --tags nightly --yes
    """
    wanted, labels = _selected(ids, tags)
    with open_queue(url) as queue:
        _confirm("redrive", queue.backend, labels, yes=yes)
        made = queue.redrive_jobs(tags=labels, job_ids=wanted)
    if as_json:
        emit_json({"ids": made})
    else:
        for each in made:
            emit(clean(each))


def delete(
    ids: Ids = None,
    tags: Tags = None,
    yes: Yes = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Delete jobs that have ended.

    If one has not, nothing is deleted. Their rows in the journal stay. Exit code 1 if an id does not exist.

    Examples:
        penstock delete 5f8c9a4e-0d3b-4c1e-9d59-0b8f4f6f1a2b
        penstock delete --tags trial --yes
    """
    wanted, labels = _selected(ids, tags)
    with open_queue(url) as queue:
        _confirm("delete", queue.backend, labels, yes=yes)
        known = queue.get_jobs(wanted) if wanted else {}
        number = queue.delete_jobs(tags=labels, job_ids=wanted)
    missed = [each for each in wanted if each not in known]
    if as_json:
        emit_json({"deleted": number, "unknown": missed})
    else:
        emit(f"{number} deleted")
    _report_missed(missed, "not there")


def _selected(ids: list[str] | None, tags: list[str] | None) -> tuple[list[str], list[str]]:
    wanted, labels = read_ids(ids), listed(tags)
    if not wanted and not labels:
        raise InvalidArgumentError("name jobs by their ids, or by --tags", field="ids")
    return wanted, labels


def _confirm(verb: str, backend: Backend, tags: list[str], *, yes: bool) -> None:
    """Ask before something is done to however many jobs have some tags, if there is somebody to ask."""
    if not tags or yes or not sys.stdin.isatty() or not is_terminal(sys.stderr):
        return
    number = backend.get_job_stats(tags).total_jobs
    if not ask(f"{counted(number, 'job')} tagged {', '.join(tags)}; {verb} what can be?"):
        fail("nothing was done")
        raise typer.Exit(1)


def _report_missed(missed: list[str], why: str) -> None:
    if missed:
        shown = ", ".join(missed[:5]) + (f" and {len(missed) - 5} more" if len(missed) > 5 else "")
        fail(f"{why}: {shown}")
        raise typer.Exit(1)
