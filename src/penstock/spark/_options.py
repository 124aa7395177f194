"""The options of the `penstock` format: case-insensitive names, unknown ones are refused, and one error names all problems."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from penstock.backends.drivers import SCHEMES
from penstock.errors import InvalidArgumentError, invalid, shown
from penstock.spark._selection import (
    SELECTION,
    Selection,
    seq_bound,
    status_list,
    time_bound,
    type_list,
    whole_number,
)
from penstock.spark.schemas import JOURNAL, TABLES, Table
from penstock.spark.stores import SparkStore, store_at

__all__ = ["ReadOptions", "StreamOptions", "read_options", "stream_options", "table_of"]

#: A journal row has about 200 bytes; a batch much larger than a processor's cache is not faster.
_BATCH_ROWS: Final = 8_192
_MAX_INT: Final = 2**31 - 1


class ReadOptions(NamedTuple):
    """The options of a read.

    Attributes:
        stores: named by `url` or `load()`; several as a list, or with commas between them.
        table: `journal` or `jobs`.
        partitions: the maximum number of tasks per store; by default the driver's number of cores.
        batch_rows: the maximum number of rows per Arrow batch (SQLite).
        selection: which rows; a stream has no such options.
    """

    stores: tuple[SparkStore, ...]
    table: Table
    partitions: int
    batch_rows: int
    selection: Selection = Selection()


class StreamOptions(NamedTuple):
    """The options that only a stream has.

    Attributes:
        starting_offset: where a stream without a checkpoint begins: 0 is at the first row, None after the last.
        max_rows: the maximum number of rows per micro-batch; None is no limit.
    """

    starting_offset: int | None
    max_rows: int | None


_URLS: Final = ("url", "path", "paths")
#: The separator of urls; the hosts of one PostgreSQL url are separated by commas, too.
_NEXT_URL: Final = re.compile(rf"\s*,\s*(?=(?:{'|'.join(SCHEMES)}):)", re.IGNORECASE)
#: `pushdown` is an option of version 0.1 without an effect: filters are never pushed (see `_selection`).
_READ: Final = ("table", "partitions", "batchRows", "pushdown")
_STREAM: Final = ("startingOffset", "maxRowsPerTrigger")


def read_options(given: Mapping[str, str], *, is_stream: bool = False) -> ReadOptions:
    """Return the validated options of a read.

    Raises:
        InvalidArgumentError: names every problem.
    """
    options = Checked(given, (*_URLS, *_READ, *SELECTION, *(_STREAM if is_stream else ())))
    result = _read(options)
    if is_stream:
        _streamed(options)
        if result.table is not JOURNAL:
            options.wrong.append("only the journal can be streamed; read the table jobs with spark.read")
        options.refuse(
            SELECTION, "for batch reads; filter a stream with .where, begin it with startingOffset"
        )
    options.check()
    return result


def table_of(given: Mapping[str, str]) -> Table:
    """Return the table of a batch read or a stream.

    Spark calls this inside `load()`, so all options are validated here, where the caller sees the error.
    """
    options = Checked(given, (*_URLS, *_READ, *SELECTION, *_STREAM))
    table = _read(options).table
    _streamed(options)
    options.check()
    return table


def stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Return the validated options that only a stream has."""
    options = Checked(given, (*_URLS, *_READ, *SELECTION, *_STREAM))
    result = _streamed(options)
    options.check()
    return result


def _read(options: Checked) -> ReadOptions:
    options.read("pushdown", boolean, None)
    table = options.read("table", _table, JOURNAL)
    selection = _selected(options)
    options.wrong += selection.problems(table)
    return ReadOptions(
        options.stores(),
        table,
        options.read("partitions", _positive, os.cpu_count() or 1),
        options.read("batchRows", _positive, _BATCH_ROWS),
        selection,
    )


def _selected(options: Checked) -> Selection:
    return Selection(
        options.read("minSeq", seq_bound, None),
        options.read("maxSeq", seq_bound, None),
        options.read("since", time_bound, None),
        options.read("until", time_bound, None),
        options.read("statuses", lambda name, text: status_list(name, _listed(name, text)), None),
        options.read("types", lambda name, text: type_list(name, _listed(name, text)), None),
    )


def _streamed(options: Checked) -> StreamOptions:
    return StreamOptions(
        options.read("startingOffset", _offset, 0), options.read("maxRowsPerTrigger", _positive, None)
    )


class Checked:
    """Reads options one by one; problems are collected and raised together by `check`."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        shown_names = {name.lower(): name for name in known}
        self.wrong = [
            f"unknown option {shown(name)} (known: {', '.join(known)})"
            for name in self._given
            if name not in shown_names
        ]

    def read(self, name: str, convert: Callable[[str, str], Any], default: Any) -> Any:
        text = self._given.get(name.lower())
        if text is None:
            return default
        try:
            return convert(name, text)
        except InvalidArgumentError as error:
            self.wrong.append(str(error))
            return default

    def refuse(self, names: tuple[str, ...], why: str) -> None:
        """Refuse known options that are not allowed here."""
        found = [name for name in names if name.lower() in self._given]
        if found:
            self.wrong.append(f"{', '.join(found)}: {why}")

    def stores(self) -> tuple[SparkStore, ...]:
        """Return the stores named by `url` or by `load()`, not by both."""
        named = [name for name in _URLS if name in self._given]
        if len(named) != 1:
            how = "is given more than once" if named else "is missing"
            self.wrong.append(f'the store\'s url {how}: .option("url", "sqlite:///jobs.db") names it')
            return ()
        urls = _urls(self._given[named[0]])
        if len(set(urls)) < len(urls):
            self.wrong.append("a url is given twice")
        found = []
        for url in urls:
            try:
                found.append(store_at(url))
            except InvalidArgumentError as error:
                self.wrong.append(str(error))
        return tuple(found)

    def check(self) -> None:
        if self.wrong:
            raise InvalidArgumentError("; ".join(dict.fromkeys(self.wrong)), field="options")


def _urls(text: str) -> list[str]:
    urls = _literal_list(text)
    if urls and all(isinstance(url, str) for url in urls):
        return urls
    return _NEXT_URL.split(text)


def _listed(name: str, text: str) -> list[str]:
    """Return several values: a list as `.option` writes it, or a text with commas between them."""
    values = _literal_list(text)
    if values is None:
        return [value.strip() for value in text.split(",")]
    wrong = [value for value in values if not isinstance(value, str)]
    if wrong:
        raise invalid(name, "a list of texts", values)
    return values


def _literal_list(text: str) -> list[Any] | None:
    """Return the list that an option holds; None if it is not a list."""
    if not text.startswith(("[", "(", "{")):
        return None
    # `load([…])` writes JSON; `.option("url", […])` writes a list as Python does.
    for read in (json.loads, ast.literal_eval):
        try:
            values = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(values, list | tuple | set):
            return list(values)
    return None


def _table(name: str, text: str) -> Table:
    table = TABLES.get(text.lower())
    if table is None:
        raise invalid(name, " or ".join(TABLES), text)
    return table


def _positive(name: str, text: str) -> int:
    return whole_number(name, text, 1, _MAX_INT)


def boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise invalid(name, "true or false", text)
    return text.lower() == "true"


def _offset(name: str, text: str) -> int | None:
    if text.lower() in ("earliest", "latest"):
        return 0 if text.lower() == "earliest" else None
    try:
        return seq_bound(name, text)
    except InvalidArgumentError:
        raise invalid(name, "earliest, latest, or the seq after which to begin", text) from None
