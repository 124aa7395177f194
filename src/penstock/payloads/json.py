"""JSON as both stores can keep it; a value that could not be read back is refused, with its place in the document."""

from __future__ import annotations

import math
from enum import IntEnum, StrEnum
from typing import Any, Final

import msgspec

from penstock.errors import InvalidArgumentError, shown
from penstock.payloads.foreign import dump, instead_of, is_foreign, is_scalar

__all__ = ["decode_json", "encode_json", "reason_of"]

MAX_NESTING: Final = 200
#: Characters of what another library says about a value.
LONGEST_REASON: Final = 500
_LARGEST_INT: Final = 2**63 - 1
_encoder = msgspec.json.Encoder(enc_hook=dump)


def encode_json(value: object, field: str = "payload", *, models: bool = True) -> bytes:
    """Return a value made of dict, list, tuple, str, int, float, bool and None as JSON.

    StrEnum, IntEnum and numpy scalars become text and numbers, paths text, pydantic models objects.

    Args:
        value: what to encode.
        field: the argument's name, for the error.
        models: whether pydantic models are accepted.

    Raises:
        InvalidArgumentError: anything else, numbers that are not finite or over 64 bits, text with NUL or lone
            surrogates, keys that are not strings, or nesting deeper than 200.
    """
    if type(value) is dict:
        # Most are objects of short numbers and simple text, which need no look at each value by itself.
        for key, item in value.items():
            kind = type(item)
            if kind is str:
                if not item.isascii() or "\0" in item:
                    break
            elif kind is int:
                if not -_LARGEST_INT <= item <= _LARGEST_INT:
                    break
            elif item is not None and kind is not bool:
                break
            if type(key) is not str or not key.isascii() or "\0" in key:
                break
        else:
            return _encoder.encode(value)
    _check(value, field, 0, field, models)
    return _encoder.encode(value)


def decode_json(data: bytes) -> Any:
    """Return the value of a JSON text."""
    return msgspec.json.decode(data)


def _check(value: object, path: str, depth: int, field: str, models: bool) -> None:
    if value is None or isinstance(value, bool):
        return
    kind = type(value)
    if kind is str:
        _check_text(value, path, field)  # type: ignore[arg-type]  # narrowed by `kind`
    elif kind is int:
        if not -_LARGEST_INT - 1 <= value <= _LARGEST_INT:  # type: ignore[operator]  # narrowed by `kind`
            raise _bad(field, path, "an integer of at most 64 bits with its sign", value)
    elif kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]  # narrowed by `kind`
            raise _bad(field, path, "a finite number", value)
    elif depth >= MAX_NESTING:
        raise InvalidArgumentError(f"{field} is nested deeper than {MAX_NESTING} levels", field=field)
    elif isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str and not (isinstance(key, str) and is_scalar(key)):
                raise _bad(field, path, "a mapping with string keys", key)
            _check_text(key, path, field)
            _check(item, f"{path}.{key}", depth + 1, field, models)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]", depth + 1, field, models)
    elif isinstance(value, StrEnum | IntEnum):  # equal to the text or number that is read back
        _check(value.value, path, depth, field, models)
    elif is_foreign(value, models=models):
        _check(_dumped(value, path, field), path, depth + 1, field, models)
    else:
        raise _bad(field, path, "JSON (dict, list, str, int, float, bool, None)", value)


def _dumped(value: object, path: str, field: str) -> object:
    try:
        return dump(value)
    except (ValueError, TypeError, RecursionError) as error:  # of a model
        raise InvalidArgumentError(
            f"{path} cannot be written as JSON, got {shown(value)}: {reason_of(error)}",
            field=field,
            value=value,
        ) from None


def reason_of(error: Exception) -> str:
    """Return the short reason of an error; for one of pydantic, "field: reason" for each field."""
    list_errors = getattr(error, "errors", None)
    if callable(list_errors):
        found = (f"{'.'.join(map(str, each['loc'])) or 'value'}: {each['msg']}" for each in list_errors())
        text = "; ".join(found)
    else:
        text = str(error)
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}…"


def _check_text(text: str, path: str, field: str) -> None:
    if "\0" in text:
        raise _bad(field, path, "text without NUL characters", text)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _bad(field, path, "valid Unicode text (it holds a lone surrogate)", text) from None


def _bad(field: str, path: str, expected: str, value: object) -> InvalidArgumentError:
    instead = instead_of(value)
    return InvalidArgumentError(
        f"{path} must be {expected}, got {shown(value)}{f'; {instead}' if instead else ''}",
        field=field,
        value=value,
    )
