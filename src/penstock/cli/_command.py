"""Commands and groups: settings from variables and the file, option groups, help with examples."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import typing
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from penstock.cli._parameters import Parameter, adopted
from penstock.cli._settings import SettingsFile
from penstock.errors import InvalidArgumentError

__all__ = [
    "Command",
    "Group",
    "add_command",
    "all_commands",
    "name_variables",
    "path_of",
    "settings",
    "split_help",
]

#: The start of every variable; the names of command and option follow.
PREFIX: Final = "PENSTOCK"
URL_VARIABLE: Final = "PENSTOCK_URL"
_EXAMPLES: Final = "\n\nExamples:\n"


if TYPE_CHECKING:
    _Base = TyperCommand
else:
    _Base = object


class _Adopting(_Base):
    """Replaces the parameters that typer built, and takes the first line of the help as the short one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [adopted(each) for each in self.params]
        self.short_help = (self.help or "").strip().partition("\n")[0].rstrip(".")

    def get_help_option(self, ctx: Any) -> Any:
        self._help_option = adopted(super().get_help_option(ctx))  # what the next call returns
        return self._help_option


class Command(_Adopting, TyperCommand):
    """A command whose options also come from PENSTOCK_<COMMAND>_<OPTION> and from the settings file."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command with the file's url as PENSTOCK_URL, also for the processes that it starts."""
        file = ctx.find_object(SettingsFile)
        if file is not None and file.url is not None and not os.environ.get(URL_VARIABLE):
            os.environ[URL_VARIABLE] = file.url
            ctx.find_root().call_on_close(lambda: os.environ.pop(URL_VARIABLE, None))
        try:
            return super().invoke(ctx)
        except InvalidArgumentError as error:
            names = {error.field, f"as_{error.field}"}
            parameter = next((each for each in self.params if each.name in names), None)
            origin = "" if parameter is None else typing.cast("Parameter", parameter).origin(ctx)
            if origin not in error.message:
                error.message += origin
            raise

    def format_help_text(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]  # noqa: ARG002
        """Write the docstring with its examples unwrapped."""
        text, examples = split_help(self)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text)
        if examples:
            with formatter.section("Examples"):
                for line in examples:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")

    def format_epilog(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write how variables and keys of the settings file are named, with an example of this command."""
        found = next(iter(settings(self)), None)
        if found is not None:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(
                    f"Every option can also be set by a variable, such as {found.variables[0]}, or in penstock.toml: "
                    f"[{'.'.join(path_of(ctx))}] {found.key} = …"
                )


class Group(_Adopting, TyperGroup):
    """A group of commands."""


def add_command(
    app: typer.Typer, name: str, function: Callable[..., Any], cls: type[Command] = Command
) -> None:
    """Add a function to an app as a command.

    A parameter whose type is a dataclass stands for one option per field; the function gets the dataclass.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for each in inspect.signature(function).parameters.values():
        if each.name in groups:
            parameters += _group_parameters(groups[each.name])
        else:
            parameters.append(each.replace(kind=each.KEYWORD_ONLY, annotation=hints[each.name]))

    @functools.wraps(function)
    def command(**values: Any) -> Any:
        for group_name, group in groups.items():
            values[group_name] = group(
                **{each.name: values.pop(each.name) for each in dataclasses.fields(group)}
            )
        return function(**values)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    app.command(name, cls=cls)(command)


def _group_parameters(group: Any) -> Iterator[inspect.Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
    for each in dataclasses.fields(group):
        yield inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name]
        )


def settings(command: Any) -> list[Parameter]:
    """Return what variables and the settings file may set of a command, in the order of its help."""
    return [each for each in command.params if each.is_setting]


def name_variables(root: Any) -> None:
    """Let every command read PENSTOCK_<COMMAND>_<OPTION>."""
    for path, command in all_commands(root):
        for parameter in settings(command):
            parameter.name_variables("_".join((PREFIX, *path)))


def all_commands(root: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every visible command of a group and of the groups in it, with the names that lead there."""
    for name, command in root.commands.items():
        if isinstance(command, TyperGroup):
            for path, inner in all_commands(command):
                yield (name, *path), inner
        elif not command.hidden:
            yield (name,), command


def split_help(command: Any) -> tuple[str, list[str]]:
    """Return the text of a command's docstring, and the lines of its examples."""
    text, _, examples = inspect.cleandoc(command.help or "").partition(_EXAMPLES)
    return text, [line.strip() for line in examples.splitlines() if line.strip()]


def path_of(ctx: Any) -> tuple[str, ...]:
    """Return the names that lead to a command, such as ("pipeline", "run")."""
    return () if ctx.parent is None else (*path_of(ctx.parent), str(ctx.info_name))
