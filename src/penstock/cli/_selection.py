"""Which jobs a command works on: the options that list, journal, cancel, redrive and delete share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated, Final

import typer

from penstock.backends import Backend
from penstock.backends.contract.selection import STATUS_GROUPS, JobSelection
from penstock.cli._values import Tags, as_time, listed
from penstock.errors import InvalidArgumentError, shown
from penstock.job import JobStatus, Key

__all__ = ["Selection", "complete_status", "resolve_id", "resolve_ids"]

#: Ids that an error names when the beginning of an id is ambiguous.
MAX_CANDIDATES: Final = 5


def complete_status(incomplete: str) -> list[str]:
    """Return the statuses and groups of statuses that begin with the given text."""
    known = dict.fromkeys([*STATUS_GROUPS, *map(str, JobStatus)])
    return [each for each in known if each.startswith(incomplete)]


@dataclass(frozen=True)
class Selection:
    """The options that select jobs. All that are given must match."""

    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            "-s",
            metavar="STATUS",
            help=f"Jobs with one of these statuses: {', '.join(STATUS_GROUPS)} (as `penstock stats` counts them), or an "
            "exact status such as unknown_retry. Use a,b or repeat the option.",
            show_default=False,
            autocompletion=complete_status,
        ),
    ] = None
    type: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="Jobs of one of these types. Use a,b or repeat the option.",
            show_default=False,
        ),
    ] = None
    tags: Tags = None
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="KEY", help="Jobs with exactly this key (of one part).", show_default=False
        ),
    ] = None
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Jobs created (in the journal: rows recorded) at this time or later: ISO 8601, UTC unless it has a zone,"
            " or an age such as 2h or 7d.",
            show_default=False,
        ),
    ] = None
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="TIME",
            help="Jobs created (in the journal: rows recorded) before this time.",
            show_default=False,
        ),
    ] = None
    error: Annotated[
        str | None,
        typer.Option(
            "--error",
            metavar="TEXT",
            help="Jobs with this text in the error message; case does not matter.",
            show_default=False,
        ),
    ] = None
    every: Annotated[bool, typer.Option("--all", help="All jobs that the other options do not exclude.")] = (
        False
    )

    @property
    def given(self) -> list[str]:
        """The names of the selection options that were given."""
        values = {each.name: getattr(self, each.name) for each in fields(Selection)}
        return [name for name, value in values.items() if value not in (None, False, [], ())]

    def check_limit(self, limit: int | None) -> None:
        """Refuse --all together with --limit."""
        if self.every and limit is not None:
            raise InvalidArgumentError("--all and --limit exclude each other", field="limit", value=limit)

    def at(self, now: datetime) -> JobSelection:
        """Return the selection that the options describe.

        Args:
            now: the store's time, from which ages such as 2h are counted.

        Raises:
            InvalidArgumentError: a value is wrong; the field is the option's name.
        """
        return JobSelection(
            statuses=[each.lower().replace("-", "_") for each in listed(self.status)],
            types=listed(self.type),
            tags=listed(self.tags),
            key=None if self.key is None else Key(self.key),
            since=None if self.since is None else as_time(self.since, "since", now),
            until=None if self.until is None else as_time(self.until, "until", now),
            error=self.error,
        )


def resolve_id(backend: Backend, text: str) -> str:
    """Return the id that is `text`, or the only one that begins with it; `text` itself if there is none.

    Raises:
        InvalidArgumentError: several ids begin with it.
    """
    found = backend.reading.find_ids(text, MAX_CANDIDATES + 1)
    if not found or found[0] == text:
        return text
    if len(found) > 1:
        more = " …" if len(found) > MAX_CANDIDATES else ""
        named = ", ".join(map(shown, found[:MAX_CANDIDATES]))
        raise InvalidArgumentError(
            f"{shown(text)} is the beginning of several ids: {named}{more}", field="id", value=text
        )
    return found[0]


def resolve_ids(backend: Backend, texts: list[str]) -> list[str]:
    """Resolve several ids, without repeats."""
    return list(dict.fromkeys(resolve_id(backend, each) for each in texts))
