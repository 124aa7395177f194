"""Everything a command prints goes through here.

What jobs hold (types, tags, messages, payloads) is other people's text. It is shown with control characters, escape
sequences and direction marks escaped, and never read as markup. A terminal gets aligned columns and colours, unless
NO_COLOR is set or TERM is dumb; a pipe gets plain lines, with tabs between columns, nothing wrapped and nothing cut.

What draws on terminals (rich) is imported when something is drawn: into a pipe, a short command needs a third less time.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TextIO

from penstock.job import Job, JobStatus, JournalEntry

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = [
    "TableWriter",
    "about",
    "ask",
    "bytes_fields",
    "clean",
    "counted",
    "emit",
    "emit_facts",
    "emit_json",
    "emit_table",
    "fail",
    "is_terminal",
    "job_fields",
    "journal_fields",
    "local",
    "note",
    "shortened",
    "span",
    "stamp",
    "stderr_console",
    "stdout_console",
]

SHORT_TEXT: Final = 2_000
#: Of a cell that does not fit.
FEWEST_LETTERS: Final = 10
_COLOURS: Final = {
    JobStatus.RUNNING: "cyan",
    JobStatus.CANCELLING: "yellow",
    JobStatus.FAILED_RETRY: "yellow",
    JobStatus.UNKNOWN_RETRY: "yellow",
    JobStatus.COMPLETED: "green",
    JobStatus.FAILED: "red",
    JobStatus.DEAD_LETTER: "red",
    JobStatus.STOPPED: "magenta",
    JobStatus.UNSCHEDULED: "magenta",
    JobStatus.UNKNOWN_STOPPED: "magenta",
}


# -- text that is safe to show ---------------------------------------------------------------------------------------


def clean(text: object, *, keep_lines: bool = False) -> str:
    """Return text with everything escaped that a terminal could act on, or that hides or reorders other text.

    Args:
        text: anything with a text.
        keep_lines: leave line breaks and tabs as they are.
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    kept = "\n\t" if keep_lines else ""
    return "".join(each if each.isprintable() or each in kept else _escaped(each) for each in shown)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def counted(number: int, noun: str) -> str:
    """Return how many there are of something: "1 job", "2 jobs"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def shortened(text: str, limit: int = SHORT_TEXT) -> str:
    """Return text, cut after `limit` characters; what is missing is said."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit} more characters)"


# -- to stdout -------------------------------------------------------------------------------------------------------


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether people look at it, and it understands more than plain lines."""
    stream = sys.stdout if stream is None else stream
    try:
        return stream.isatty() and os.environ.get("TERM", "") != "dumb"
    except ValueError:  # closed
        return False


def emit(text: str = "") -> None:
    """Print a line for whoever asked; the text is the command's own, or cleaned."""
    sys.stdout.write(f"{text}\n")


def emit_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on one line. What a terminal could act on is escaped, as JSON allows."""
    line = json.dumps(value, ensure_ascii=False, default=_as_json)
    if not line.isprintable():
        line = "".join(each if each.isprintable() else _json_escaped(each) for each in line)
    emit(line)


def _json_escaped(character: str) -> str:
    return json.dumps(character)[1:-1]


def _as_json(value: object) -> Any:
    if isinstance(value, datetime):
        return stamp(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | frozenset | set):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not for JSON")


class TableWriter:
    """Prints rows in columns, one by one: aligned for people, with tabs for programs. Cells are cleaned here.

    Args:
        columns: the names of the columns, each with its width at least.
        right: the columns of numbers.
    """

    def __init__(self, columns: Mapping[str, int], *, right: Sequence[str] = ()) -> None:
        self._columns = columns
        self._right = right
        self._console = stdout_console() if is_terminal() else None
        if self._console is None:
            emit("\t".join(column.upper() for column in columns))
        else:
            self._print(self._console, [_cell(column.upper(), "bold") for column in columns])

    def write(self, *cells: object) -> None:
        """Print a row; None is an empty cell."""
        if self._console is None:
            emit("\t".join("" if cell is None else clean(cell) for cell in cells))
        else:
            self._print(self._console, [_cell(cell) for cell in cells])

    def _print(self, console: Console, line: list[Text]) -> None:
        from rich.text import Text  # noqa: PLC0415  # see above

        last = len(line) - 1
        used = 0
        for number, (column, cell) in enumerate(zip(self._columns, line, strict=True)):
            width = max(self._columns[column], cell.cell_len)
            if number == last:  # the only one that is ever cut: ids are there to be copied
                width = min(width, max(FEWEST_LETTERS, console.width - used))
            cell.truncate(width, overflow="ellipsis")
            if number != last or column in self._right:
                cell.align("right" if column in self._right else "left", width)
            used += width + 2
        whole = Text("  ").join(line)
        whole.rstrip()  # spaces that nobody sees would take a line of their own
        console.print(whole, soft_wrap=True)


def emit_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()
) -> None:
    """Print a table of which all rows are there; see `TableWriter`. A terminal gets no column without a value."""
    known = [[*row] for row in rows]
    widths = dict.fromkeys(columns, 0)
    if is_terminal():
        used = [
            number
            for number in range(len(columns))
            if not known or any(row[number] not in (None, "") for row in known)
        ]
        columns, known = (
            [columns[number] for number in used],
            [[row[number] for number in used] for row in known],
        )
        widths = {
            column: max([len(column), *(_cell(row[number]).cell_len for row in known)])
            for number, column in enumerate(columns)
        }
    writer = TableWriter(widths, right=right)
    for row in known:
        writer.write(*row)


def emit_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one a line; what is None or empty is left out. Values are cleaned here."""
    known = [(name, value) for name, value in facts if value is not None and value not in ("", (), [])]
    width = max((len(name) for name, _ in known), default=0)
    console = stdout_console() if is_terminal() else None
    for name, value in known:
        if console is None:
            emit(f"{name:{width}}  {clean(value)}")
        else:
            console.print(_cell(f"{name:{width}}  ", "bold"), _cell(value), sep="", soft_wrap=True)


def _cell(value: object, style: str = "") -> Text:
    from rich.text import Text  # noqa: PLC0415  # see above

    if isinstance(value, JobStatus):
        style = _COLOURS.get(value, "")
    return Text("" if value is None else clean(value), style=style)


def stdout_console(**options: Any) -> Console:
    """Return a console on stdout; see `_console`."""
    return _console(sys.stdout, **options)


def stderr_console() -> Console:
    """Return a console for progress and the like; what a command is asked for goes to stdout."""
    return _console(sys.stderr, soft_wrap=True)


def _console(stream: TextIO, **options: Any) -> Console:
    from rich.console import Console  # noqa: PLC0415  # see above

    # Markup, emoji codes and highlighting are for authors; what is printed here was written by others.
    return Console(file=stream, markup=False, emoji=False, highlight=False, **options)


# -- to stderr -------------------------------------------------------------------------------------------------------


def note(text: str) -> None:
    """Tell people something beside what they asked for."""
    sys.stderr.write(f"{clean(text)}\n")


def fail(message: str) -> None:
    """Say in one line what went wrong."""
    note(f"penstock: {' '.join(message.split())}")


def ask(question: str) -> bool:
    """Ask a person at a terminal; only y or yes is yes."""
    sys.stderr.write(f"{clean(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


# -- data ------------------------------------------------------------------------------------------------------------


def stamp(moment: datetime | None) -> str | None:
    """Return a moment as ISO 8601 in UTC: 2026-11-16T14:42:00.000000Z."""
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def local(moment: datetime | None) -> str | None:
    """Return a moment for people: in UTC for programs, to the second."""
    return None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def span(seconds: float | timedelta | None) -> str | None:
    """Return a duration in the unit that suits it: 12 ms, 3.4 s, 5 min 2 s, 2 h 3 min, 4 d 1 h."""
    if seconds is None:
        return None
    value = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    sign, value = ("-", -value) if value < 0 else ("", value)
    if value < 1:
        return f"{sign}{value * 1000:.{0 if value >= 0.01 else 1}f} ms"
    if value < 60:
        return f"{sign}{value:.1f} s"
    whole = round(value)
    for size, unit, smaller_size, smaller in _UNITS:
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{sign}{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{sign}{whole} s"


def about(time: timedelta) -> str:
    """Return a duration in its largest unit alone, for where there is little room: 5 min."""
    return " ".join((span(max(time, timedelta())) or "").split()[:2])


_UNITS: Final = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))


def bytes_fields(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return bytes for JSON: text if they are UTF-8, else base64; `<name>_encoding` says which."""
    if data is None:
        return {name: None, f"{name}_encoding": None}
    try:
        return {name: data.decode(), f"{name}_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {name: base64.b64encode(data).decode(), f"{name}_encoding": "base64"}


def job_fields(job: Job, *, whole: bool = True) -> dict[str, Any]:
    """Return a job for JSON: the names of its fields, times in UTC, durations in seconds.

    Args:
        whole: with payload, result and checkpoint.
    """
    fields: dict[str, Any] = {
        "id": job.id,
        "type": job.type,
        "status": job.status,
        "state": job.state,
        "tags": job.tags,
        "priority": int(job.priority),
        "key": job.key,
        "attempt": job.attempt,
        "retry_count": job.retry_count,
        "failures": job.failures,
        "max_attempts": None if job.retry is None else job.retry.max_attempts,
        "progress": job.progress,
        "description": job.description,
        "assignee_id": job.assignee_id,
        "error_message": job.error_message,
        "error_category": job.error_category,
        "error_code": job.error_code,
        "created_at": job.created_at,
        "run_at": job.run_at,
        "scheduled_at": job.scheduled_at,
        "started_at": job.started_at,
        "attempt_started_at": job.attempt_started_at,
        "last_retry_at": job.last_retry_at,
        "finalized_at": job.finalized_at,
        "updated_at": job.updated_at,
        "after": job.after,
        "after_any": job.after_any,
        "parent_id": job.parent_id,
        "redrive_of": job.redrive_of,
        "held": job.held,
        "correlation_id": job.correlation_id,
        "callback_url": job.callback_url,
        "idempotency_key": job.idempotency_key,
        "execution_timeout": job.timeouts.execution,
        "visibility_timeout": job.timeouts.visibility,
        "lifetime": job.timeouts.lifetime,
    }
    if whole:
        for name in ("payload", "result", "checkpoint"):
            fields |= bytes_fields(name, getattr(job, name))
    return fields


def journal_fields(entry: JournalEntry) -> dict[str, Any]:
    """Return a row of the journal for JSON, by the names of its columns."""
    fields = {name: getattr(entry, name) for name in entry.__struct_fields__}
    fields["priority"] = int(entry.priority)
    return fields
