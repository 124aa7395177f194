"""Parameters of commands: the variables they read, and errors that name the origin of a wrong value."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import typer
from typer.core import TyperArgument, TyperOption

from penstock.cli._settings import ALIASES, SettingsFile
from penstock.errors import shown

__all__ = ["Argument", "Option", "Parameter", "adopted"]

if TYPE_CHECKING:
    _Base = TyperOption
else:
    _Base = object


class _Setting(_Base):
    """Adds to a parameter of typer a variable of its own, and errors with the origin of the value.

    Attributes:
        shared_variables: those it was declared with, which other commands may read too.
        variables: the documented ones: its own, then the shared ones.
    """

    shared_variables: list[str]
    variables: list[str]

    @property
    def key(self) -> str:
        """The key in the settings file: the long option name without dashes in front, or the argument's name."""
        return str(max(self.opts, key=len)).lstrip("-").replace("_", "-")

    @property
    def is_setting(self) -> bool:
        """Whether variables and the file may set it: every option, and arguments declared with a variable."""
        return not self.hidden and (isinstance(self, TyperOption) or bool(self.shared_variables))

    @property
    def is_multiple(self) -> bool:
        """Whether it takes any number of values."""
        return bool(self.multiple or self.nargs != 1)

    @property
    def kind(self) -> Any:
        """The type of one value."""
        annotation = self.type_descriptor.annotation
        return get_args(annotation)[0] if self.type_descriptor.is_list else annotation

    @property
    def value_name(self) -> str:
        """The name of the value in help."""
        if self.metavar is not None:
            return self.metavar
        if self.type_descriptor.choices:
            return "|".join(str(getattr(each, "value", each)) for each in self.type_descriptor.choices)
        return "N" if self.kind in (int, float) else self.key.upper()

    def name_variables(self, prefix: str) -> None:
        """Let it read <prefix>_<OPTION>, then those it was declared with; the first one that is not empty counts."""
        own, *others = (
            f"{prefix}_{name}".upper().replace("-", "_")
            for name in (self.key, *(alias for alias, key in ALIASES.items() if key == self.key))
        )
        self.variables = list(dict.fromkeys([own, *self.shared_variables]))
        self.envvar = [*self.variables, *others]

    def process_value(self, ctx: Any, value: Any) -> Any:
        """Convert and check a value; an error names the value and its origin."""
        if self._needs_no_check(value):
            value = () if value is None and self.is_multiple else value
            return value if self.callback is None else self.callback(ctx, self, value)
        try:
            return super().process_value(ctx, value)
        except typer.BadParameter as error:
            if value is not None:
                error.message = f"{_reason(error)}, got {shown(value)}{self.origin(ctx)}"
            raise

    def origin(self, ctx: Any) -> str:
        """Return where the value came from, to be added to an error; empty if it was typed or is the default."""
        source = ctx.get_parameter_source(self.name)
        if source is not None and source.name == "DEFAULT_MAP":
            file = ctx.find_object(SettingsFile)
            return "" if file is None else f" ({self.key} is set by {file.path})"
        if source is not None and source.name == "ENVIRONMENT":
            used = next((name for name in self.envvar or () if os.environ.get(name)), "a variable")
            return f" ({self.key} is set by {used})"
        return ""

    def _needs_no_check(self, value: Any) -> bool:
        """Whether any value would do; typer's validator (pydantic) adds a quarter to the run time of a short command."""
        if value is None:
            return not self.required
        if value is self.default:
            return True
        values = value if self.is_multiple else [value]
        return self.kind is str and all(type(each) is str for each in values)


class Option(_Setting, TyperOption):
    """An option of a command."""

    def display_type_rich(self, ctx: Any) -> str:  # noqa: ARG002  # as typer declares it
        return self.value_name


class Argument(_Setting, TyperArgument):
    """An argument of a command."""

    def display_type_rich(self, ctx: Any) -> None:  # noqa: ARG002  # as typer declares it
        return None


Parameter: TypeAlias = Option | Argument


def adopted(parameter: Any) -> Parameter:
    """Return a parameter that typer built as one of ours; typer has no hook for a parameter class."""
    if isinstance(parameter, Option | Argument):
        return parameter
    kind: type[Parameter] = Option if isinstance(parameter, TyperOption) else Argument
    copy = kind.__new__(kind)
    vars(copy).update(vars(parameter))
    declared = copy.envvar or []
    copy.envvar = copy.shared_variables = [declared] if isinstance(declared, str) else list(declared)
    copy.show_envvar = False  # the last line of the help says how all variables are named
    return copy


def _reason(error: typer.BadParameter) -> str:
    """Return what is wrong with a value, without the validator's own phrases."""
    text = error.message.removeprefix("Value error, ").partition(", unable to parse ")[0].rstrip(".")
    text = text.replace("Input should be ", "it must be ")
    return re.sub(r"^.+ is not one of ", "it must be one of ", text, flags=re.DOTALL)
