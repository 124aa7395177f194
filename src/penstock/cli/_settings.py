"""The file with settings: penstock.toml, or [tool.penstock] of pyproject.toml.

A table for each command, a key for each of its options; above them what several commands share:

    url = "postgresql://db/app"

    [worker]
    concurrency = 8

An argument wins over a variable, a variable over the file, the file over the default. The file is checked as a whole before
anything is done, and everything that is wrong in it is named at once.
"""

from __future__ import annotations

import inspect
import os
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, Final

from penstock.errors import InvalidArgumentError, shown

__all__ = ["SETTINGS_KEY", "SHARED", "Settings", "is_setting", "key_of", "read_settings", "short_variables"]

SETTINGS_KEY: Final = "penstock.settings"
NAMES: Final = ("penstock.toml", "pyproject.toml")
URL_VARIABLE: Final = "PENSTOCK_URL"
#: Keys that may stand above the tables: they hold for every command that has such an option.
SHARED: Final = ("url", "lake", "master")


class Settings:
    """What the file says, by command and option, in the shape that commands take their defaults from."""

    def __init__(
        self, path: Path | None = None, defaults: dict[str, Any] | None = None, url: str | None = None
    ) -> None:
        self.path = path
        self.defaults = defaults or {}
        #: The store for everything that names none: commands, and apps that a worker loads.
        self.url = url

    @contextmanager
    def exported(self) -> Iterator[None]:
        """Let the file's url stand in for `PENSTOCK_URL`, for this process and those it starts."""
        if self.url is None or os.environ.get(URL_VARIABLE):
            yield
            return
        os.environ[URL_VARIABLE] = self.url
        try:
            yield
        finally:
            os.environ.pop(URL_VARIABLE, None)


def read_settings(named: Path | None, root: Any, make_context: Any) -> Settings:
    """Read and check the file that was named, or else the one in the working folder, if there is one.

    Args:
        named: given with --config or PENSTOCK_CONFIG.
        root: the group of all commands.
        make_context: (command, path) -> a context in which its parameters may judge values.

    Raises:
        InvalidArgumentError: the file is missing or malformed, or something in it is unknown or wrong.
    """
    path = named or next((Path(name) for name in NAMES if Path(name).is_file()), None)
    if path is None:
        return Settings()
    content = _load(path)
    if path.name == "pyproject.toml":
        content = content.get("tool", {}).get("penstock")
        if content is None:
            if named is not None:
                raise InvalidArgumentError(f"{path} has no table [tool.penstock]", field="config")
            return Settings()
    checker = _Checker(path, make_context)
    defaults = checker.group(content, root, ())
    if checker.wrong:
        raise InvalidArgumentError("; ".join(checker.wrong), field="config", value=str(path))
    url = content.get("url")
    return Settings(path, defaults, url if isinstance(url, str) else None)


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise InvalidArgumentError(
            f"the settings {path} cannot be read: {error.strerror}", field="config", value=str(path)
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgumentError(
            f"{path} is not valid TOML: {error}", field="config", value=str(path)
        ) from error


class _Checker:
    """Walks through a file beside the commands, and gathers what is wrong."""

    def __init__(self, path: Path, make_context: Any) -> None:
        self.path = path
        self.wrong: list[str] = []
        self._make_context = make_context

    def group(self, content: Any, root: Any, path: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(content, Mapping):
            self.wrong.append(f"{self.path}: {'.'.join(path)} must be a table, got {shown(content)}")
            return {}
        defaults: dict[str, Any] = {}
        for name, command in root.commands.items():
            inner = (*path, name)
            if hasattr(command, "commands"):
                defaults[name] = self.group(content.get(name, {}), command, inner)
            else:
                defaults[name] = self._command(content.get(name, {}), command, inner)
        for key in content:
            if key in root.commands:
                continue
            if not path and key.replace("_", "-") in SHARED:
                self._share(key, content[key], root, defaults, ())
            else:
                known = ", ".join(sorted({*root.commands, *(() if path else SHARED)}))
                place = f"[{'.'.join(path)}] " if path else ""
                self.wrong.append(
                    f"{self.path}: unknown key {place}{key} = {shown(content[key])} (known: {known})"
                )
        return defaults

    def _command(self, content: Any, command: Any, path: tuple[str, ...]) -> dict[str, Any]:
        place = ".".join(path)
        if not isinstance(content, Mapping):
            self.wrong.append(f"{self.path}: {place} must be a table, got {shown(content)}")
            return {}
        parameters = {key_of(each): each for each in command.params if is_setting(each)}
        found: dict[str, Any] = {}
        for key, value in content.items():
            parameter = parameters.get(key.replace("_", "-"))
            if parameter is None:
                self.wrong.append(
                    f"{self.path}: unknown key [{place}] {key} = {shown(value)} (known: {', '.join(parameters)})"
                )
                continue
            found[parameter.name] = self._value(f"[{place}] {key}", value, command, parameter, path)
        return found

    def _share(
        self, key: str, value: Any, root: Any, defaults: dict[str, Any], path: tuple[str, ...]
    ) -> None:
        """Hand a key from above the tables to every command with such an option that says nothing itself."""
        for name, command in root.commands.items():
            if hasattr(command, "commands"):
                self._share(key, value, command, defaults[name], (*path, name))
                continue
            for parameter in command.params:
                # One without a short variable means something else: a worker's --url replaces its app's own.
                if (
                    key_of(parameter) == key.replace("_", "-")
                    and short_variables(parameter)
                    and parameter.name not in defaults[name]
                ):
                    before = len(self.wrong)
                    checked = self._value(key, value, command, parameter, (*path, name))
                    if len(self.wrong) > before:
                        return  # once is enough
                    defaults[name][parameter.name] = checked
        if key == "url" and not isinstance(value, str):
            self.wrong.append(f"{self.path}: url must be text, got {shown(value)}")

    def _value(self, place: str, value: Any, command: Any, parameter: Any, path: tuple[str, ...]) -> Any:
        kind, is_list = _kind(command, parameter)
        items = value if is_list and isinstance(value, list) else [value]
        if not all(_fits(item, kind) for item in items):
            wanted = f"a list of {_WORDS[kind]}s" if is_list else _WORDS[kind]
            self.wrong.append(f"{self.path}: {place} must be {wanted}, got {shown(value)}")
            return None
        try:
            parameter.process_value(self._make_context(command, path), items if is_list else value)
        except Exception as error:  # whatever a parameter says against it
            reason = str(getattr(error, "message", None) or error).removeprefix("Value error, ").rstrip(".")
            self.wrong.append(f"{self.path}: {place} = {shown(value)}: {reason}")
            return None
        return items if is_list else value


_WORDS: Final[dict[type, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
}


def _fits(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is kind


def key_of(parameter: Any) -> str:
    """Return an option's long name without dashes in front, or an argument's name: its key in the file."""
    return str(max(parameter.opts, key=len)).lstrip("-").replace("_", "-")


def is_setting(parameter: Any) -> bool:
    """Whether a parameter may be set elsewhere: every option, and arguments that were declared with a variable.

    What a command works on, such as the jobs to delete, is said where it is called.
    """
    return not parameter.hidden and (
        parameter.param_type_name == "option" or bool(short_variables(parameter))
    )


def short_variables(parameter: Any) -> list[str]:
    """Return the variables that a parameter was declared with, whatever it reads besides by now."""
    if not hasattr(parameter, "declared_variables"):
        given = parameter.envvar or []
        parameter.declared_variables = [given] if isinstance(given, str) else list(given)
    return list(parameter.declared_variables)


def _kind(command: Any, parameter: Any) -> tuple[type, bool]:
    """Return bool, int, float or str, whichever the TOML value must be, and whether it may be a list."""
    function = inspect.unwrap(command.callback)
    hint = typing.get_type_hints(function).get(parameter.name, str)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(each for each in typing.get_args(hint) if each is not types.NoneType)
    is_list = typing.get_origin(hint) is list
    if is_list:
        hint = typing.get_args(hint)[0]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return str, is_list
    return (hint if hint in (bool, int, float) else str), is_list
