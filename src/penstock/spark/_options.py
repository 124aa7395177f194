"""The options of the `penstock` format: names without regard to case, unknown ones refused, all problems named at once."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from penstock.errors import InvalidArgumentError, shown
from penstock.spark._places import Place
from penstock.spark.schemas import JOURNAL, TABLES, Table

__all__ = ["ReadOptions", "StreamOptions", "read_options", "stream_options", "table_of"]

#: Journal rows have about 200 bytes; a batch that is much larger than a processor's cache is no quicker.
_BATCH_ROWS: Final = 8_192


class ReadOptions(NamedTuple):
    """The options of a read.

    Attributes:
        places: the stores (`url`, or what `load()` was given; several as a list, or with commas between them).
        table: `journal` or `jobs`.
        partitions: tasks at most, for each store; the driver's number of cores.
        batch_rows: rows of an Arrow batch at most (SQLite).
        pushdown: whether filters are pushed into the store.
    """

    places: tuple[Place, ...]
    table: Table
    partitions: int
    batch_rows: int
    pushdown: bool


class StreamOptions(NamedTuple):
    """The options of a stream, beside those of a read.

    Attributes:
        starting_offset: where a stream without a checkpoint begins: 0 is at the first row, None after the last.
        max_rows: rows of a micro-batch at most; None is all there are.
    """

    starting_offset: int | None
    max_rows: int | None


_URLS: Final = ("url", "path", "paths")
#: Between two urls; the hosts of one PostgreSQL url have commas between them, too.
_NEXT_URL: Final = re.compile(r"\s*,\s*(?=(?:sqlite|postgresql|postgres):)", re.IGNORECASE)
_READ: Final = ("table", "partitions", "batchRows", "pushdown")
_STREAM: Final = ("startingOffset", "maxRowsPerTrigger")


def read_options(given: Mapping[str, str], *, pushdown: bool, is_stream: bool = False) -> ReadOptions:
    """Return the options of a read, checked.

    Raises:
        InvalidArgumentError: names everything that is wrong.
    """
    options = Checked(given, (*_URLS, *_READ, *(_STREAM if is_stream else ())))
    result = _read(options, pushdown=pushdown)
    if is_stream:
        _streamed(options)
        if result.table is not JOURNAL:
            options.wrong.append("only the journal can be streamed; read the table jobs with spark.read")
    options.check()
    return result


def table_of(given: Mapping[str, str]) -> Table:
    """Return the table that a read is about, when it is not known yet whether it is a stream.

    All options are checked: this is when `load()` is called, and whoever calls it sees what is wrong.
    """
    options = Checked(given, (*_URLS, *_READ, *_STREAM))
    table = _read(options, pushdown=False).table
    _streamed(options)
    options.check()
    return table


def stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Return what a stream has beyond a read, checked."""
    options = Checked(given, (*_URLS, *_READ, *_STREAM))
    result = _streamed(options)
    options.check()
    return result


def _read(options: Checked, *, pushdown: bool) -> ReadOptions:
    return ReadOptions(
        options.places(),
        options.read("table", _table, JOURNAL),
        options.read("partitions", _positive, os.cpu_count() or 1),
        options.read("batchRows", _positive, _BATCH_ROWS),
        options.read("pushdown", boolean, pushdown),
    )


def _streamed(options: Checked) -> StreamOptions:
    return StreamOptions(
        options.read("startingOffset", _offset, 0), options.read("maxRowsPerTrigger", _positive, None)
    )


class Checked:
    """Options on their way in; problems are collected, then raised together by `check`."""

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

    def places(self) -> tuple[Place, ...]:
        """Return the stores named by `url` or `load()`; one of the two."""
        named = [name for name in _URLS if name in self._given]
        if len(named) != 1:
            how = "stand more than once" if named else "is missing"
            self.wrong.append(f'the store\'s url {how}: .option("url", "sqlite:///jobs.db") names it')
            return ()
        urls = _urls(self._given[named[0]])
        if len(set(urls)) < len(urls):
            self.wrong.append("a url stands twice")
        places = []
        for url in urls:
            try:
                places.append(Place.of(url))
            except InvalidArgumentError as error:
                self.wrong.append(str(error))
        return tuple(places)

    def check(self) -> None:
        if self.wrong:
            raise InvalidArgumentError("; ".join(dict.fromkeys(self.wrong)), field="options")


def _urls(text: str) -> list[str]:
    if text.startswith("["):
        # `load([…])` writes JSON; `.option("url", […])` writes a list as Python does.
        for read in (json.loads, ast.literal_eval):
            try:
                urls = read(text)
            except (ValueError, SyntaxError):
                continue
            if urls and all(isinstance(url, str) for url in urls):
                return list(urls)
    return _NEXT_URL.split(text)


def _table(name: str, text: str) -> Table:
    table = TABLES.get(text.lower())
    if table is None:
        raise InvalidArgumentError(f"{name} must be {' or '.join(TABLES)}, got {shown(text)}")
    return table


def _positive(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 2**31 - 1:
        raise InvalidArgumentError(f"{name} must be a whole number of at least 1, got {shown(text)}")
    return int(text)


def boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidArgumentError(f"{name} must be true or false, got {shown(text)}")
    return text.lower() == "true"


def _offset(name: str, text: str) -> int | None:
    if text.lower() in ("earliest", "latest"):
        return 0 if text.lower() == "earliest" else None
    if not text.isascii() or not text.isdigit() or int(text) >= 2**63:
        raise InvalidArgumentError(
            f"{name} must be earliest, latest, or the seq after which to begin, got {shown(text)}"
        )
    return int(text)
