"""What every command has: variables for its options, help with examples, errors that say where a value came from."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from penstock.cli._settings import SETTINGS_KEY, Settings, is_setting, key_of, short_variables
from penstock.errors import InvalidArgumentError, shown

__all__ = ["Command", "Group", "Setting", "adopt", "settings_of", "split_help"]

PREFIX: Final = "PENSTOCK"
_EXAMPLES: Final = "\n\nExamples:\n"


class Setting(NamedTuple):
    """An option or argument of a command, and its other two names."""

    path: tuple[str, ...]
    parameter: Any
    key: str
    variables: tuple[str, ...]

    @property
    def table(self) -> str:
        return ".".join(self.path)


class Command(TyperCommand):
    """A command whose options also come from PENSTOCK_<COMMAND>_<OPTION> and from the file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        name_variables(self, path_of(ctx))
        _judge_values(self, ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        settings = settings_of(ctx)
        ctx.find_root().with_resource(settings.exported())
        try:
            return super().invoke(ctx)
        except InvalidArgumentError as error:
            names = {error.field, f"as_{error.field}"}
            parameter = next((each for each in self.params if each.name in names), None)
            origin = "" if parameter is None else _origin(parameter, ctx, settings)
            if origin and origin not in error.message:
                error.message = f"{error.message} ({origin})"
            raise

    def get_short_help_str(self, limit: int = 45) -> str:  # noqa: ARG002  # the first line is written to be short
        return (self.help or "").strip().partition("\n")[0].rstrip(".")

    def format_help_text(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        text, examples = split_help(self)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text)
        if examples:
            with formatter.section("Examples"):
                for line in examples:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        found = next(settings(self, path_of(ctx)), None)
        if found is None:
            return
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(
                f"Every option may also come from a variable (PENSTOCK_…, such as {found.variables[0]}) or from "
                f"penstock.toml ([{found.table}] {found.key} = …)."
            )


class Group(TyperGroup):
    """A group of commands; the outermost one reads the settings."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.parent is None:
            ctx.meta["penstock.wants_help"] = not {"-h", "--help"}.isdisjoint(args)
        _judge_values(self, ctx)
        return super().parse_args(ctx, args)

    def get_short_help_str(self, limit: int = 45) -> str:  # noqa: ARG002  # the first line is written to be short
        return (self.help or "").strip().partition("\n")[0].rstrip(".")


def adopt(app: typer.Typer) -> typer.Typer:
    """Give every command of an app, and of its groups, what commands here have."""
    for command in app.registered_commands:
        if command.cls is TyperCommand or command.cls is None:
            command.cls = Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            group.cls = Group
            adopt(group.typer_instance)
    return app


def split_help(command: Any) -> tuple[str, list[str]]:
    """Return what a command's docstring says, and the lines of its examples."""
    text, _, examples = inspect.cleandoc(command.help or "").partition(_EXAMPLES)
    return text, [line.strip() for line in examples.splitlines() if line.strip()]


def path_of(ctx: Any) -> tuple[str, ...]:
    """Return the names that lead to a command: ("pipeline", "run")."""
    names: list[str] = []
    while ctx.parent is not None:
        names.insert(0, ctx.info_name)
        ctx = ctx.parent
    return tuple(names)


def name_variables(command: Any, path: tuple[str, ...]) -> None:
    """Have every option of a command read its variable: PENSTOCK_<COMMAND>_<OPTION>, and a short one if it has that."""
    for parameter in command.params:
        if not is_setting(parameter):
            continue
        own = "_".join((PREFIX, *path, key_of(parameter))).upper().replace("-", "_")
        parameter.envvar = list(dict.fromkeys([own, *short_variables(parameter)]))
        parameter.show_envvar = False  # the last line of the help says how they are all named


def settings(command: Any, path: tuple[str, ...]) -> Iterator[Setting]:
    """Yield what can be set of a command, in the order of its help."""
    name_variables(command, path)
    for parameter in command.params:
        if is_setting(parameter):
            yield Setting(path, parameter, key_of(parameter), tuple(parameter.envvar))


def all_commands(root: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command of a group and of the groups in it, with the names that lead there."""
    for name, command in root.commands.items():
        if isinstance(command, TyperGroup):
            for path, inner in all_commands(command):
                yield (name, *path), inner
        elif not command.hidden:
            yield (name,), command


def settings_of(ctx: Any) -> Settings:
    """Return what the file says."""
    found = ctx.meta.get(SETTINGS_KEY)
    return found if isinstance(found, Settings) else Settings()


def _judge_values(command: Any, ctx: Any) -> None:
    """Have parameters that refuse a value say which one it was, and where it came from.

    What is certain to be right is not shown to typer: its validator takes longer to import than a short command to run.
    """
    found = settings_of(ctx)
    for parameter in command.get_params(ctx):  # with --help
        if hasattr(parameter, "check_value"):
            continue
        parameter.check_value = parameter.process_value

        def process(ctx: Any, value: Any, parameter: Any = parameter) -> Any:
            if _is_certain(parameter, value):
                value = () if value is None and _takes_many(parameter) else value
                return value if parameter.callback is None else parameter.callback(ctx, parameter, value)
            try:
                return parameter.check_value(ctx, value)
            except typer.BadParameter as error:
                if value is not None and "got " not in error.message:
                    error.message = f"{_reason(error)}, got {shown(value)}"
                    origin = _origin(parameter, ctx, found)
                    error.message += f" ({origin})" if origin else ""
                raise

        parameter.process_value = process


def _is_certain(parameter: Any, value: Any) -> bool:
    """Whether a value needs no judgement: nothing was given, or text where any text will do."""
    if value is None:
        return not parameter.required
    if value is parameter.default:
        return True
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    if _takes_many(parameter):
        return kind == list[str] and all(type(each) is str for each in value)
    return kind is str and type(value) is str


def _takes_many(parameter: Any) -> bool:
    return bool(parameter.multiple or parameter.nargs != 1)


def _reason(error: typer.BadParameter) -> str:
    """Return what is wrong with a value, in words for whoever typed it."""
    text = error.message.removeprefix("Value error, ").partition(", unable to parse ")[0].rstrip(".")
    text = text.replace("Input should be ", "it must be ")
    return re.sub(r"^.+ is not one of ", "it must be one of ", text, flags=re.DOTALL)


def _origin(parameter: Any, ctx: Any, found: Settings) -> str:
    """Say where a value that is wrong came from, unless it was typed."""
    source = ctx.get_parameter_source(parameter.name)
    if source is None:
        return ""
    if source.name == "DEFAULT_MAP":
        return f"{key_of(parameter)} is set by {found.path}"
    if source.name == "ENVIRONMENT":
        names = [name for name in parameter.envvar if os.environ.get(name)]
        return f"{key_of(parameter)} is set by {names[0]}" if names else ""
    return ""
