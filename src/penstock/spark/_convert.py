"""Converting stored columns to Spark's types, batch by batch, without Python objects per row.

Lists and policies are stored as JSON texts. A batch has few different ones, and each of them is decoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.schemas import Column

__all__ = ["converted"]

_SECOND: Final = 1_000_000


def converted(
    column: Column, parts: Sequence[pa.Array], target: pa.DataType, rows: int, source: str
) -> pa.Array:
    """Return a column of a batch.

    Args:
        column: which one.
        parts: its stored columns, as read by the Arrow driver.
        target: the type that Spark expects.
        rows: of the batch.
        source: the id of the store.
    """
    if column.form == "source":
        return pa.repeat(pa.scalar(source, target), rows)
    return _FORMS[column.form](parts, target)


def _plain(parts: Sequence[pa.Array], target: pa.DataType) -> pa.Array:
    (part,) = parts
    return part if part.type == target else part.cast(target)


def _time(parts: Sequence[pa.Array], target: pa.DataType) -> pa.Array:
    (part,) = parts
    return part.cast(pa.int64()).view(target)


def _payload(parts: Sequence[pa.Array], target: pa.DataType) -> pa.Array:
    return _plain(parts, target).fill_null(b"")  # empty payloads are not stored


def _texts(parts: Sequence[pa.Array], target: pa.DataType) -> pa.Array:
    return _decoded(parts[0], lambda texts: msgspec.json.decode(f"[{','.join(texts)}]"), target)


def _retry(parts: Sequence[pa.Array], target: pa.DataType) -> pa.Array:
    def decode(texts: Sequence[str]) -> list[Any]:
        policies = msgspec.json.decode(f"[{','.join(texts)}]")
        for policy in policies:
            policy["initial_delay"] /= _SECOND
            policy["max_delay"] /= _SECOND
        return policies  # type: ignore[no-any-return]  # a JSON array is a list

    return _decoded(parts[0], decode, target)


def _timeouts(parts: Sequence[pa.Array], target: pa.DataType) -> pa.Array:
    seconds = [pc.divide(part.cast(pa.float64()), float(_SECOND)) for part in parts]
    return pa.StructArray.from_arrays(seconds, fields=list(target))


def _decoded(
    texts: pa.Array, decode: Callable[[Sequence[str]], Sequence[Any]], target: pa.DataType
) -> pa.Array:
    encoded = texts.dictionary_encode()
    values = pa.array(decode(encoded.dictionary.to_pylist()), target)
    return values.take(encoded.indices)


_FORMS: Final = {
    "plain": _plain,
    "bool": _plain,
    "time": _time,
    "bytes": _plain,
    "payload": _payload,
    "texts": _texts,
    "retry": _retry,
    "timeouts": _timeouts,
}
