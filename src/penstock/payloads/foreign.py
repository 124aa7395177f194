"""Values of other libraries as JSON and back: paths, numpy scalars, pydantic models.

Neither numpy nor pydantic is a dependency, and neither is imported here: a value or an annotation of theirs exists only
in a process that has imported them already.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import typing
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

import msgspec

__all__ = [
    "ModelAdapter",
    "dump",
    "has_models",
    "instead_of",
    "is_foreign",
    "is_known_class",
    "is_scalar",
    "load",
    "model_adapter",
    "without_scalars",
]

#: How many values are looked at to find the one that an error is about.
_SEARCHED_VALUES: Final = 1_000

#: What pydantic writes in the place of a SecretStr.
_MASK: Final = b"**********"

#: Kinds of numpy scalars that JSON has: bool, signed and unsigned integers, floats, text.
_SCALAR_KINDS: Final = "biufU"


# -- values ----------------------------------------------------------------------------------------------------------


def is_scalar(value: object) -> bool:
    """Whether a value is a numpy scalar that JSON can hold."""
    numpy = sys.modules.get("numpy")
    generic = None if numpy is None else getattr(numpy, "generic", None)
    return generic is not None and isinstance(value, generic) and value.dtype.kind in _SCALAR_KINDS


def is_model(value: object) -> bool:
    """Whether a value is an instance of a pydantic model (version 2)."""
    return hasattr(type(value), "__pydantic_validator__") and hasattr(type(value), "model_dump")


def is_foreign(value: object, *, models: bool) -> bool:
    """Whether a value is not JSON, but `dump` converts it."""
    return isinstance(value, PurePath) or is_scalar(value) or (models and is_model(value))


def dump(value: Any) -> Any:
    """Return a path, numpy scalar or pydantic model as JSON holds it.

    Raises:
        TypeError: it is none of these.
        ValueError: the model cannot be written as JSON.
    """
    if isinstance(value, PurePath):
        return str(value)
    if is_scalar(value):
        plain = value.item()
        # numpy.longdouble returns itself.
        return float(plain) if is_scalar(plain) else plain
    if is_model(value):
        return model_adapter(type(value)).dump(value)  # type: ignore[arg-type]  # a class is hashable
    raise TypeError(f"{type(value).__name__} is not JSON")


def without_scalars(value: Any) -> Any:
    """Return a value with the numpy scalars in its lists, tuples, sets and mappings as plain numbers and text."""
    if "numpy" not in sys.modules:
        return value
    if is_scalar(value):
        return dump(value)
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(without_scalars(item) for item in value)
    if type(value) is dict:
        return {without_scalars(key): without_scalars(item) for key, item in value.items()}
    return value


# -- annotations -----------------------------------------------------------------------------------------------------


def is_known_class(cls: Any) -> bool:
    """Whether `load` makes instances of a class that msgspec does not know."""
    return isinstance(cls, type) and (
        issubclass(cls, PurePath) or _is_model_class(cls) or _is_scalar_class(cls)
    )


def load(cls: Any, value: Any) -> Any:
    """Return what JSON holds as an instance of a class; raise ValueError or TypeError if it does not fit.

    The hook of msgspec for classes that it does not know itself.
    """
    if isinstance(value, cls):
        return value
    if _is_model_class(cls):
        return model_adapter(cls).load(msgspec.json.encode(value))
    if isinstance(value, bool) and not _is_scalar_class(cls):
        raise TypeError(f"expected {cls.__name__}, got bool")
    return cls(value)


def has_models(annotation: Any) -> bool:
    """Whether an annotation names anything of pydantic, however deep."""
    if "pydantic" not in sys.modules:
        return False
    seen: set[int] = set()
    waiting = [annotation]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if _is_of_pydantic(part):
            return True
        waiting += [*typing.get_args(part), *getattr(part, "__metadata__", ()), *_field_types(part)]
    return False


class ModelAdapter:
    """Checks and converts values of one annotation with pydantic.

    Raises:
        Exception: what pydantic raises for an annotation that it does not support.
    """

    def __init__(self, annotation: Any) -> None:
        self._adapter = sys.modules["pydantic"].TypeAdapter(annotation)
        # Fields are written by their names, because an alias for reading may differ from the one for writing.
        # Versions before 2.11 read aliases only.
        takes_names = "by_name" in inspect.signature(self._adapter.validate_json).parameters
        self._reading = {"by_alias": True, "by_name": True} if takes_names else {}
        self._by_alias = not takes_names

    def dump(self, value: Any) -> Any:
        """Return a value as JSON holds it; raise ValueError if it does not fit."""
        fitting = self._adapter.validate_python(value, **self._reading)
        return self._adapter.dump_python(
            fitting, mode="json", by_alias=self._by_alias, round_trip=True, warnings="error"
        )

    def check(self, value: Any, data: bytes) -> None:
        """Raise ValueError if what JSON holds of a value cannot be read, or stands for a secret that it hides."""
        loaded = self.load(data)
        if _MASK in data and loaded != self._adapter.validate_python(value, **self._reading):
            raise ValueError(
                "its JSON hides a secret, which would not arrive: pass a reference to the secret"
            )

    def load(self, data: bytes) -> Any:
        """Return what a JSON text holds as a value of the annotation; raise ValueError if it does not fit."""
        return self._adapter.validate_json(data, **self._reading)


@functools.lru_cache(maxsize=1024)
def model_adapter(cls: Any) -> ModelAdapter:
    """Return the adapter of a class, made once."""
    return ModelAdapter(cls)


def _is_of_pydantic(part: Any) -> bool:
    if isinstance(part, type):
        return _is_model_class(part) or part.__module__.partition(".")[0] == "pydantic"
    return type(part).__module__.partition(".")[0] in ("pydantic", "annotated_types")


def _field_types(part: Any) -> list[Any]:
    """Return the types of the fields of a dataclass, TypedDict, NamedTuple or Struct."""
    if not isinstance(part, type) or not (
        dataclasses.is_dataclass(part)
        or typing.is_typeddict(part)
        or hasattr(part, "__struct_fields__")
        or (issubclass(part, tuple) and hasattr(part, "_fields"))
    ):
        return []
    try:
        return list(typing.get_type_hints(part, include_extras=True).values())
    except Exception:  # what cannot be resolved cannot be searched
        return []


def _is_model_class(cls: type) -> bool:
    return hasattr(cls, "__pydantic_validator__")


def _is_scalar_class(cls: type) -> bool:
    numpy = sys.modules.get("numpy")
    generic = None if numpy is None else getattr(numpy, "generic", None)
    return isinstance(generic, type) and issubclass(cls, generic)


# -- errors ----------------------------------------------------------------------------------------------------------


def instead_of(value: object, *, is_annotated: bool = False) -> str:
    """Return what to pass instead of a value that JSON cannot hold, or of one inside it; "" if nothing is known.

    Args:
        value: what was refused.
        is_annotated: whether its parameter has an annotation that can be checked.
    """
    waiting: list[Any] = [value]
    for _ in range(_SEARCHED_VALUES):
        if not waiting:
            break
        part = waiting.pop(0)
        hint = _hint(part) or ("" if is_annotated else _model_hint(part))
        if hint:
            return hint
        if isinstance(part, list | tuple | set | frozenset):
            waiting += list(part)[:_SEARCHED_VALUES]
        elif isinstance(part, Mapping):
            waiting += list(part.values())[:_SEARCHED_VALUES]
    return ""


def _hint(value: Any) -> str:
    own = getattr(type(value), "argument_hint", None)  # of ours, such as a JobHandle
    if isinstance(own, str):
        return own
    library, name = type(value).__module__.partition(".")[0], type(value).__name__
    if library == "numpy":
        if name == "ndarray":
            return "pass array.tolist(), or save a large array to a file and pass its path"
        if name == "datetime64":
            return 'use value.astype("datetime64[us]").item() with the annotation datetime, or str(value)'
        if name == "timedelta64":
            return 'use value.astype("timedelta64[us]").item() with the annotation timedelta'
    if library in ("pandas", "polars", "pyarrow"):
        return "save it to a file, such as Parquet, and pass its path"
    return ""


def _model_hint(value: Any) -> str:
    if not is_model(value):
        return ""
    return f'annotate the parameter with {type(value).__name__}, or pass value.model_dump(mode="json")'
