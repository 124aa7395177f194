"""JSON as both stores can keep it: what cannot be read back as it was is refused, with the place where it stands."""

from __future__ import annotations

import math
from enum import IntEnum, StrEnum
from typing import Any, Final

import msgspec

from penstock.errors import InvalidArgumentError, shown

__all__ = ["decode_json", "encode_json"]

MAX_NESTING: Final = 200
_LARGEST_INT: Final = 2**63 - 1
_encoder = msgspec.json.Encoder()


def encode_json(value: object, field: str = "payload") -> bytes:
    """Return a value made of dict, list, tuple, str, int, float, bool and None as JSON; StrEnum and IntEnum are text and numbers.

    Raises:
        InvalidArgumentError: anything else, numbers that are not finite or over 64 bits, text with NUL or lone
            surrogates, keys that are not strings, or nesting deeper than 200.
    """
    _check(value, field, 0, field)
    return _encoder.encode(value)


def decode_json(data: bytes) -> Any:
    """Return what a JSON text says."""
    return msgspec.json.decode(data)


def _check(value: object, path: str, depth: int, field: str) -> None:
    if value is None or isinstance(value, bool):
        return
    kind = type(value)
    if kind is str:
        _check_text(value, path, field)  # type: ignore[arg-type]  # narrowed by `kind`
    elif kind is int:
        if not -_LARGEST_INT - 1 <= value <= _LARGEST_INT:  # type: ignore[operator]  # narrowed by `kind`
            raise _bad(field, path, "an integer of at most 64 bits", value)
    elif kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]  # narrowed by `kind`
            raise _bad(field, path, "a finite number", value)
    elif depth >= MAX_NESTING:
        raise InvalidArgumentError(f"{field} is nested deeper than {MAX_NESTING} levels", field=field)
    elif isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                raise _bad(field, path, "a mapping with string keys", key)
            _check_text(key, path, field)
            _check(item, f"{path}.{key}", depth + 1, field)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]", depth + 1, field)
    elif isinstance(value, StrEnum | IntEnum):  # equal to the text or number that is read back
        _check(value.value, path, depth, field)
    else:
        raise _bad(field, path, "JSON (dict, list, str, int, float, bool, None)", value)


def _check_text(text: str, path: str, field: str) -> None:
    if "\0" in text:
        raise _bad(field, path, "text without NUL characters", text)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _bad(field, path, "valid Unicode text (it holds a lone surrogate)", text) from None


def _bad(field: str, path: str, expected: str, value: object) -> InvalidArgumentError:
    return InvalidArgumentError(f"{path} must be {expected}, got {shown(value)}", field=field, value=value)
