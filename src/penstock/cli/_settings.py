"""The settings file: penstock.toml, or [tool.penstock] of pyproject.toml.

One table per command, one key per option; keys that several commands share stand above the tables:

    url = "postgresql://db/app"

    [worker]
    concurrency = 8

The whole file is checked before a command runs, and one error names everything that is wrong in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from penstock.backends.config import find_file, load_file
from penstock.durations import parse_duration
from penstock.errors import InvalidArgumentError, shown

if TYPE_CHECKING:
    from penstock.cli._parameters import Parameter

__all__ = ["ALIASES", "DURATION", "SHARED_KEYS", "SettingsFile", "read_settings"]

#: Keys above the tables: they apply to every command that has such an option.
SHARED_KEYS: Final = ("url", "lake", "master", "connect-timeout")

#: Undocumented spellings of option names, each with the documented one.
ALIASES: Final = {"types": "type", "tag": "tags"}
#: The metavar of options that are durations: a number of seconds, or text such as 1h30m.
DURATION: Final = "DURATION"

_TYPE_NAMES: Final[dict[type, str]] = {bool: "true or false", int: "a whole number", float: "a number"}


class SettingsFile(NamedTuple):
    """The values of a settings file.

    Attributes:
        path: the file; None if there is none.
        defaults: a context's `default_map`: values by command and parameter name.
        url: the store of commands and apps that name none.
    """

    path: Path | None = None
    defaults: dict[str, Any] | None = None
    url: str | None = None


def read_settings(named: Path | None, ctx: typer.Context) -> SettingsFile:
    """Read and check the named file, or the one in the working folder, if there is one.

    Args:
        named: the file that --config or PENSTOCK_CONFIG names.
        ctx: the context of the root command.

    Raises:
        InvalidArgumentError: the file is missing or malformed, or a key or value in it is wrong.
    """
    path = named or find_file()[0]
    content = None if path is None else load_file(path, is_named=named is not None)
    if path is None or content is None:
        return SettingsFile()
    reader = _Reader(ctx, content)
    defaults = reader.read_group(ctx.command, content, ())
    if reader.problems:
        message = "; ".join(f"{path}: {each}" for each in reader.problems)
        raise InvalidArgumentError(message, field="config", value=str(path))
    return SettingsFile(path, defaults, content.get("url"))


class _Reader:
    """Collects the values of a file, and what is wrong with them."""

    def __init__(self, ctx: typer.Context, content: Any) -> None:
        self._ctx = ctx
        self._shared = {
            key: value
            for key, value in (content.items() if isinstance(content, Mapping) else ())
            if _documented(key) in SHARED_KEYS
        }
        self.problems: list[str] = []

    def _add(self, problem: str) -> None:
        if problem not in self.problems:  # a wrong value that commands share is one problem
            self.problems.append(problem)

    def read_group(self, group: Any, table: Any, path: tuple[str, ...]) -> dict[str, Any]:
        if not self._is_table(table, path):
            return {}
        place = f"[{'.'.join(path)}] " if path else ""
        for key, value in table.items():
            if key not in group.commands and (path or key not in self._shared):
                known = ", ".join(sorted({*group.commands, *(() if path else SHARED_KEYS)}))
                self._add(f"unknown key {place}{key} = {shown(value)} (known: {known})")
        return {
            name: (self.read_group if hasattr(command, "commands") else self._read_command)(
                command, table.get(name, {}), (*path, name)
            )
            for name, command in group.commands.items()
        }

    def _read_command(self, command: Any, table: Any, path: tuple[str, ...]) -> dict[str, Any]:
        if not self._is_table(table, path):
            return {}
        settings: dict[str, Parameter] = {each.key: each for each in command.params if each.is_setting}
        # An option without a shared variable has another meaning: a worker's --url replaces that of its app.
        shared = {key: each for key, each in settings.items() if each.shared_variables}
        found: dict[str, Any] = {}
        for key, value in self._shared.items():
            if (parameter := shared.get(_documented(key))) is not None:
                found[parameter.name] = self._checked(key, value, parameter)
        for key, value in table.items():
            place = f"[{'.'.join(path)}] {key}"
            if (parameter := settings.get(_documented(key))) is not None:
                found[parameter.name] = self._checked(place, value, parameter)
            else:
                self._add(f"unknown key {place} = {shown(value)} (known: {', '.join(settings)})")
        return found

    def _is_table(self, value: Any, path: tuple[str, ...]) -> bool:
        if not isinstance(value, Mapping):
            self._add(f"{'.'.join(path) or 'tool.penstock'} must be a table, got {shown(value)}")
            return False
        return True

    def _checked(self, place: str, value: Any, parameter: Parameter) -> Any:
        """Return a value as its parameter takes it; None, with a problem noted, if it is wrong."""
        is_duration = parameter.metavar == DURATION
        if is_duration and _is_a(value, float):
            value = str(value)  # seconds
        values = value if parameter.is_multiple and isinstance(value, list) else [value]
        if not all(_is_a(each, parameter.kind) for each in values):
            wanted = _TYPE_NAMES.get(parameter.kind, "text")
            wanted = f"a list of {wanted}s" if parameter.is_multiple else wanted
            wanted = 'a number of seconds or text such as "1h30m"' if is_duration else wanted
            self._add(f"{place} must be {wanted}, got {shown(value)}")
            return None
        value = values if parameter.is_multiple else value
        try:
            if is_duration:
                parse_duration(value, parameter.key, unit="s")
            parameter.process_value(self._ctx, value)
        except (typer.BadParameter, InvalidArgumentError) as error:
            self._add(f"{place}: {error.message}")
            return None
        return value


def _documented(key: str) -> str:
    name = key.replace("_", "-")
    return ALIASES.get(name, name)


def _is_a(value: Any, kind: Any) -> bool:
    """Whether a TOML value has the type of a parameter; anything but a number or a truth value is text."""
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is (kind if kind in (bool, int) else str)
