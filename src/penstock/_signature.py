"""A handler's arguments as a payload and back, and its result as JSON: checked by names, and by types where they are known.

A payload is a JSON object of keyword arguments. An annotation that msgspec understands (`int`, `list[str]`, `datetime`, an
enum, a dataclass, a Struct) is checked at submission and again before the handler runs, and converts both ways. What has
no such annotation is stored as it is, if JSON can hold it.
"""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import inspect as inspect_types

from penstock._json import encode_json
from penstock.errors import InvalidArgumentError, shown

__all__ = ["Signature"]

#: Annotations that say nothing.
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

#: What msgspec raises for a value that does not fit, and constructors of dataclasses for one they refuse.
_WRONG: Final = (msgspec.ValidationError, ValueError, TypeError, RecursionError)


class Signature:
    """What a function takes and gives back, as JSON.

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
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
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
        """Return the arguments of a call by their names, those left out left out.

        Raises:
            InvalidArgumentError: one is missing, unexpected or given twice.
        """
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
                except _WRONG as error:
                    raise InvalidArgumentError(
                        f"{name} of {self._name} must be {kind}, got {shown(value)}: {error}",
                        field=name,
                        value=value,
                    ) from None
        return encode_json(plain, "arguments")

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
            except _WRONG as error:
                raise InvalidArgumentError(
                    f"{name} of {self._name} must be {kind}, got {shown(value)}: {error}", field="payload"
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
            with contextlib.suppress(*_WRONG):
                return encode_json(self._result.plain(value), "result")
        return encode_json(value, "result")

    def decode_result(self, data: bytes | None) -> Any:
        """Return a stored result as the handler returned it, as far as its annotation says what that was."""
        if data is None:
            return None
        value = msgspec.json.decode(data)
        if self._result is not None:
            with contextlib.suppress(*_WRONG):
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
        """Return a value that fits as JSON can hold it; raise one of `_WRONG` if it does not fit."""
        converted = msgspec.convert(value, self.type)
        return value if self.is_json else msgspec.to_builtins(converted, str_keys=True)

    def read(self, value: Any) -> Any:
        """Return what JSON holds as a value that fits."""
        return msgspec.convert(value, self.type, str_keys=True)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # an annotation that cannot be resolved here is no reason to refuse the function
        return {}


def _is_context(annotation: Any, context_type: type) -> bool:
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2] == context_type.__name__
    kinds = typing.get_args(annotation) or (annotation,)
    return context_type in kinds


def _kind_of(annotation: Any) -> _Kind | None:
    """Return how to check a value by an annotation; None if it says nothing that can be checked."""
    if annotation in _UNKNOWN or isinstance(annotation, str | typing.TypeVar):
        return None
    try:
        parts = set(_parts(msgspec.inspect.type_info(annotation)))
    except Exception:  # no type at all, or one that msgspec refuses: nothing is checked then
        return None
    if inspect_types.CustomType in parts:
        return None
    # What is not told of every part could not be converted back, so it is stored as it is, or refused.
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
            if isinstance(part, inspect_types.Type):
                yield type(part)
            waiting += [getattr(part, name) for name in part.__struct_fields__ if name != "cls"]
