"""A handler's arguments as a payload and back, and its result as JSON: checked by names, and by types where they are known.

A payload is a JSON object of keyword arguments. An annotation that msgspec understands (`int`, `list[str]`, `datetime`, an
enum, a dataclass, a Struct), a path, or one of pydantic (a model, or anything that holds one) is checked at submission and
again before the handler runs, and converts both ways. What has no such annotation is stored as it is, if JSON can hold
it; paths are text then, numpy scalars plain numbers.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

import msgspec
from msgspec import inspect as inspect_types

from penstock.errors import InvalidArgumentError, shown
from penstock.payloads.foreign import (
    ModelAdapter,
    dump,
    has_models,
    instead_of,
    is_known_class,
    load,
    without_scalars,
)
from penstock.payloads.json import encode_json, reason_of

__all__ = ["Signature"]

#: Annotations that restrict no value.
_UNKNOWN: Final = (inspect.Parameter.empty, typing.Any, object)

#: Kinds of annotation whose values are JSON as they are.
_JSON: Final = {
    inspect_types.NoneType,
    inspect_types.BoolType,
    inspect_types.IntType,
    inspect_types.FloatType,
    inspect_types.StrType,
    inspect_types.ListType,
    inspect_types.TupleType,
    inspect_types.VarTupleType,
    inspect_types.DictType,
    inspect_types.LiteralType,
    inspect_types.UnionType,
    inspect_types.AnyType,
}


class Signature:
    """The parameters and the result of a function, as JSON.

    Args:
        function: the handler.
        context_type: the class whose parameter is filled in at run time and is not part of the payload.
    """

    def __init__(self, function: Callable[..., Any], context_type: type) -> None:
        self._name = getattr(function, "__qualname__", repr(function))
        hints = _hints(function)
        self._signature = inspect.signature(function)
        #: The parameter that takes the context, if there is one.
        self.context_name: str | None = None
        self._kinds: dict[str, _Kind] = {}
        self._required: set[str] = set()
        self._names: set[str] = set()
        self._takes_any_name = False
        parameters = []
        for name, parameter in self._signature.parameters.items():
            if _is_context(hints.get(name, parameter.annotation), context_type):
                self.context_name = name
                continue
            parameters.append(parameter)
            self._read(name, parameter, hints.get(name, parameter.annotation))
        self._signature = self._signature.replace(parameters=parameters)
        self._result = _kind_of(hints.get("return", self._signature.return_annotation))

    def _read(self, name: str, parameter: inspect.Parameter, annotation: Any) -> None:
        if parameter.kind is parameter.VAR_KEYWORD:
            self._takes_any_name = True
            return
        if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL}:
            raise InvalidArgumentError(
                f"{self._name} cannot be a job: its parameter {parameter} has no name to be stored by; "
                "make it an ordinary or keyword parameter",
                field="function",
                value=name,
            )
        self._names.add(name)
        if parameter.default is parameter.empty:
            self._required.add(name)
        kind = _kind_of(annotation)
        if kind is not None:
            self._kinds[name] = kind

    # -- submission ---------------------------------------------------------------------------------------------

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by their names, without those left out.

        Raises:
            InvalidArgumentError: one is missing, unexpected or given twice.
        """
        if (
            not args and not self._takes_any_name and kwargs.keys() <= self._names
        ) and self._required <= kwargs.keys():
            return dict(kwargs)  # by name, as most calls are: twenty times as fast
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArgumentError(
                f"{self._name}{self._signature} cannot be called so: {error}", field="arguments"
            ) from None
        named = dict(bound.arguments)
        for parameter in self._signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                named |= named.pop(parameter.name, {})
        return named

    def with_defaults(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return bound arguments together with the defaults of those that were left out."""
        defaults = {
            name: parameter.default
            for name, parameter in self._signature.parameters.items()
            if parameter.default is not parameter.empty
        }
        return {**defaults, **arguments}

    def encode(self, arguments: Mapping[str, Any]) -> bytes:
        """Return bound arguments as a payload.

        Raises:
            InvalidArgumentError: a value is not of its parameter's type, or JSON cannot hold it; it names both.
        """
        if not arguments:
            return b"{}"
        plain = dict(arguments)
        for name, value in arguments.items():
            kind = self._kinds.get(name)
            if kind is not None and not (kind.is_json and type(value) is kind.type):
                try:
                    plain[name] = kind.plain(value)
                except Exception as error:  # of a constructor of the user's, too
                    raise InvalidArgumentError(
                        f"{name} of {self._name} must be {kind}, got {shown(value)}: "
                        f"{instead_of(value, is_annotated=True) or reason_of(error)}",
                        field=name,
                        value=value,
                    ) from None
        return encode_json(plain, "arguments", models=False)

    # -- running ------------------------------------------------------------------------------------------------

    def decode(self, payload: bytes) -> dict[str, Any]:
        """Return a payload as the arguments of a call.

        Raises:
            InvalidArgumentError: it is not a JSON object of this function's arguments.
        """
        if not payload:
            arguments: Any = {}
        else:
            try:
                arguments = msgspec.json.decode(payload)
            except msgspec.DecodeError as error:
                raise InvalidArgumentError(f"the payload is not JSON: {error}", field="payload") from None
            if type(arguments) is not dict:
                raise InvalidArgumentError(
                    f"the payload must be a JSON object of {self._name}'s arguments, got {shown(arguments)}",
                    field="payload",
                )
        if not self._takes_any_name and not self._names.issuperset(arguments):
            unexpected = sorted(arguments.keys() - self._names)
            raise InvalidArgumentError(
                f"{self._name} takes no {', '.join(unexpected)}", field="payload", value=unexpected
            )
        if not self._required.issubset(arguments):
            missing = sorted(self._required - arguments.keys())
            raise InvalidArgumentError(
                f"{self._name} needs {', '.join(missing)}", field="payload", value=missing
            )
        for name, kind in self._kinds.items():
            value = arguments.get(name)
            if type(value) is kind.type or name not in arguments:
                continue  # the common case, without a call
            try:
                arguments[name] = kind.read(value)
            except Exception as error:  # of a constructor of the user's, too
                raise InvalidArgumentError(
                    f"{name} of {self._name} must be {kind}, got {shown(value)}: {reason_of(error)}",
                    field="payload",
                ) from None
        return arguments  # type: ignore[no-any-return]  # made of JSON

    def encode_result(self, value: Any) -> bytes | None:
        """Return what a handler returned as JSON; None is stored as nothing.

        The work is done by now, so an annotation that promises something else is no reason to refuse it.

        Raises:
            InvalidArgumentError: JSON cannot hold it.
        """
        if value is None:
            return None
        if self._result is not None:
            with contextlib.suppress(Exception):
                return encode_json(self._result.plain(value), "result")
        return encode_json(value, "result")

    def decode_result(self, data: bytes | None) -> Any:
        """Return a stored result as the handler returned it, as far as its annotation says what that was."""
        if data is None:
            return None
        value = msgspec.json.decode(data)
        if self._result is not None:
            with contextlib.suppress(Exception):
                return self._result.read(value)
        return value


class _Kind:
    """An annotation that values are checked and converted by."""

    __slots__ = ("is_json", "type")

    def __init__(self, annotation: Any, *, is_json: bool) -> None:
        self.type = annotation
        #: Whether values are JSON as they are.
        self.is_json = is_json

    def __str__(self) -> str:
        return self.type.__name__ if isinstance(self.type, type) else str(self.type)

    def plain(self, value: Any) -> Any:
        """Return a value that fits as JSON can hold it; raise any error if it does not fit."""
        value = without_scalars(value)
        converted = msgspec.convert(value, self.type, dec_hook=load)
        return value if self.is_json else msgspec.to_builtins(converted, str_keys=True, enc_hook=dump)

    def read(self, value: Any) -> Any:
        """Return what JSON holds as a value that fits."""
        return msgspec.convert(value, self.type, str_keys=True, dec_hook=load)


class _ModelKind(_Kind):
    """An annotation that pydantic checks and converts values by."""

    __slots__ = ("_adapter",)

    def __init__(self, annotation: Any) -> None:
        super().__init__(annotation, is_json=False)
        self._adapter = ModelAdapter(annotation)

    def plain(self, value: Any) -> Any:
        value = without_scalars(value)
        plain = self._adapter.dump(value)
        self._adapter.check(
            value, encode_json(plain, "value")
        )  # what the handler could not read is refused now
        return plain

    def read(self, value: Any) -> Any:
        return self._adapter.load(msgspec.json.encode(value))


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function that can be resolved, those written as text in the scopes of its caller."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # such as the name of a class that was made in the function that decorates this one
        scopes = _scopes()
    found: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        alone = SimpleNamespace(__annotations__={name: annotation})
        with contextlib.suppress(Exception):  # it is no reason to refuse the function
            found |= typing.get_type_hints(
                alone, getattr(function, "__globals__", {}), scopes, include_extras=True
            )
    return found


def _scopes() -> dict[str, Any]:
    """Return the local names of the functions that are running, the innermost first."""
    found: dict[str, Any] = {}
    frame = sys._getframe(1)  # noqa: SLF001  # `inspect.stack` reads source files
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
        if (
            frame.f_code.co_name != "<module>"
            and frame.f_globals.get("__name__", "").partition(".")[0] != "penstock"
        ):
            found = {**frame.f_locals, **found}
    return found


def _is_context(annotation: Any, context_type: type) -> bool:
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2] == context_type.__name__
    kinds = typing.get_args(annotation) or (annotation,)
    return context_type in kinds


def _kind_of(annotation: Any) -> _Kind | None:
    """Return how to check a value by an annotation; None if it says nothing that can be checked."""
    if annotation in _UNKNOWN or isinstance(annotation, str | typing.TypeVar):
        return None
    if has_models(annotation):
        with contextlib.suppress(
            Exception
        ):  # such as a Struct that holds a model, which pydantic does not know
            return _ModelKind(annotation)
    try:
        parts = set(_parts(msgspec.inspect.type_info(annotation)))
    except Exception:  # no type at all, or one that msgspec refuses: nothing is checked then
        return None
    if inspect_types.CustomType in parts:
        return None
    # A type with a part of unknown kind could not be converted back, so its values are stored as they are, or refused.
    return _Kind(annotation, is_json=parts <= _JSON or inspect_types.AnyType in parts)


def _parts(info: Any) -> Iterator[type]:
    """Yield the kinds of all parts of a type, however they are nested."""
    seen: set[int] = set()
    waiting = [info]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, tuple | list):
            waiting += part
        elif isinstance(part, inspect_types.Type | inspect_types.Field):
            if isinstance(part, inspect_types.CustomType) and is_known_class(part.cls):
                yield type(None)  # what `load` reads; it is not JSON as it is
            elif isinstance(part, inspect_types.Type):
                yield type(part)
            waiting += [getattr(part, name) for name in part.__struct_fields__ if name != "cls"]
