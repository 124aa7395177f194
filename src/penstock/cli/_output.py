"""Printing: every line that a command writes to stdout or stderr.

Types, tags, messages and payloads of jobs are untrusted text. They are printed with control characters, escape sequences
and direction marks escaped, and are never read as markup. A terminal gets aligned columns and colours, unless NO_COLOR is
set or TERM is dumb; a pipe gets plain lines, with tabs between columns, nothing wrapped and nothing cut.

rich is imported when something is drawn on a terminal: without it a short command takes a third less time.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TextIO

from penstock.cli._text import clean, iso_time
from penstock.job import JobStatus

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = [
    "TableWriter",
    "ask",
    "emit",
    "emit_facts",
    "emit_json",
    "emit_table",
    "emit_text",
    "fail",
    "is_terminal",
    "note",
    "progress_bar",
    "stderr_console",
    "stdout_console",
]

#: Rows whose cells decide how wide a terminal's columns are.
LAYOUT_ROWS: Final = 1_000
#: The least width of a column that is cut.
MIN_WIDTH: Final = 10
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


# -- stdout ----------------------------------------------------------------------------------------------------------


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether a stream, by default stdout, is a terminal with cursor control."""
    stream = sys.stdout if stream is None else stream
    try:
        return stream.isatty() and os.environ.get("TERM", "") != "dumb"
    except ValueError:  # closed
        return False


def emit(text: str = "") -> None:
    """Print a line; the caller has cleaned it."""
    sys.stdout.write(f"{text}\n")


def emit_text(text: str) -> None:
    """Print a sentence, wrapped between words on a terminal; the caller has cleaned it."""
    if not is_terminal():
        emit(text)
        return
    for line in textwrap.wrap(text, max(MIN_WIDTH, stdout_console().width), subsequent_indent="  "):
        emit(line)


def emit_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on one line, with every unprintable character escaped."""
    line = json.dumps(value, ensure_ascii=False, default=_as_json)
    if not line.isprintable():
        line = "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in line)
    emit(line)


def _as_json(value: object) -> Any:
    if isinstance(value, datetime):
        return iso_time(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | frozenset | set):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not for JSON")


class TableWriter:
    """Prints rows one by one: aligned columns on a terminal, tabs elsewhere. Cells are cleaned here.

    Args:
        columns: the names of the columns, each with its least width.
        right: the columns that are aligned right.
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
            if number == last:  # the only column that is ever cut: ids must stay whole to be copied
                width = min(width, max(MIN_WIDTH, console.width - used))
            cell.truncate(width, overflow="ellipsis")
            if number != last or column in self._right:
                cell.align("right" if column in self._right else "left", width)
            used += width + 2
        whole = Text("  ").join(line)
        whole.rstrip()  # trailing spaces could wrap to a line of their own
        console.print(whole, soft_wrap=True)


def emit_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()
) -> None:
    """Print a table with `TableWriter`. On a terminal the first rows decide the widths, and empty columns are left out."""
    if not is_terminal():
        writer = TableWriter(dict.fromkeys(columns, 0), right=right)
        for row in rows:
            writer.write(*row)
        return
    coming = iter(rows)
    first = [[*row] for row in itertools.islice(coming, LAYOUT_ROWS)]
    used = [
        number
        for number in range(len(columns))
        if not first or any(row[number] not in (None, "") for row in first)
    ]
    widths = {
        columns[number]: max([len(columns[number]), *(_cell(row[number]).cell_len for row in first)])
        for number in used
    }
    writer = TableWriter(widths, right=right)
    for row in itertools.chain(first, coming):
        writer.write(*(row[number] for number in used))


def emit_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print one name and value per line, without those that are None or empty. Values are cleaned here."""
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
    """Return a rich console on stdout."""
    return _console(sys.stdout, **options)


def stderr_console() -> Console:
    """Return a rich console on stderr, for progress."""
    return _console(sys.stderr, soft_wrap=True)


def _console(stream: TextIO, **options: Any) -> Console:
    from rich.console import Console  # noqa: PLC0415  # see above

    # Without markup, emoji codes and highlighting: the text comes from jobs.
    return Console(file=stream, markup=False, emoji=False, highlight=False, **options)


# -- stderr ----------------------------------------------------------------------------------------------------------


def note(text: str) -> None:
    """Print a remark to stderr."""
    sys.stderr.write(f"{clean(text)}\n")


def fail(message: str) -> None:
    """Print an error to stderr, as one line."""
    note(f"penstock: {' '.join(message.split())}")


def ask(question: str) -> bool:
    """Ask a question at the terminal; only y or yes is yes."""
    sys.stderr.write(f"{clean(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if stderr is a terminal; yield a function that adds to it."""
    if not is_terminal(sys.stderr):
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr_console(), transient=True) as display:
        task = display.add_task(title, total=total)
        yield lambda number: display.advance(task, number)
