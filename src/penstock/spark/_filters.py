"""What of Spark's filters a store can decide by itself, as SQL.

A filter that is pushed only spares rows their way: Spark applies every filter again to what comes back. So what is said
here need not mean exactly the same as Spark, as long as it lets every row pass that Spark would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple

from pyspark.sql import datasource as ds

from penstock.clock import to_micros
from penstock.spark._places import Place
from penstock.spark.schemas import Column, Table

__all__ = ["Pushed", "pushed"]

_COMPARISONS: Final = {
    ds.EqualTo: "=",
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
}
_LARGEST: Final = 2**63 - 1


class Pushed(NamedTuple):
    """What filters say of a table.

    Attributes:
        conditions: each makes a condition for one place, because places quote differently.
        first: no row below this number is wanted.
        last: nor above this one.
        sources: the only stores wanted; None is any.
    """

    conditions: tuple[Callable[[Place], str], ...] = ()
    first: int = 1
    last: int = _LARGEST
    sources: frozenset[str] | None = None

    def where(self, place: Place) -> str:
        return " AND ".join(condition(place) for condition in self.conditions)


def pushed(filters: Iterable[ds.Filter], table: Table) -> Pushed:
    """Return what a table's store can decide of the filters; what it cannot is left out."""
    known = Pushed()
    for each in filters:
        known = _narrowed(known, each, table)
    return known


def _narrowed(known: Pushed, each: ds.Filter, table: Table) -> Pushed:
    name = _name(each)
    if name == "source":
        values = _listed(each)
        if values is not None:
            wanted = frozenset(values) if known.sources is None else known.sources.intersection(values)
            return known._replace(sources=wanted)
        return known
    if name == "seq" and table.name == "journal":
        span = _span(each)
        if span is not None:
            return known._replace(first=max(known.first, span[0]), last=min(known.last, span[1]))
    condition = _condition(each, table)
    return known if condition is None else known._replace(conditions=(*known.conditions, condition))


def _name(each: ds.Filter) -> str | None:
    attribute: tuple[str, ...] = getattr(each.child if isinstance(each, ds.Not) else each, "attribute", ())
    return attribute[0] if len(attribute) == 1 else None


def _listed(each: ds.Filter) -> list[Any] | None:
    if isinstance(each, ds.EqualTo):
        return [each.value]
    return list(each.value) if isinstance(each, ds.In) else None


def _span(each: ds.Filter) -> tuple[int, int] | None:
    value = getattr(each, "value", None)
    if type(value) is not int:
        return None
    if isinstance(each, ds.EqualTo):
        return value, value
    if isinstance(each, ds.GreaterThan):
        return value + 1, _LARGEST
    if isinstance(each, ds.GreaterThanOrEqual):
        return value, _LARGEST
    if isinstance(each, ds.LessThan):
        return 1, value - 1
    return (1, value) if isinstance(each, ds.LessThanOrEqual) else None


def _condition(each: ds.Filter, table: Table) -> Callable[[Place], str] | None:
    if isinstance(each, ds.Not):
        inner = _condition(each.child, table)
        return None if inner is None else lambda place: f"NOT ({inner(place)})"
    column = table.column(_name(each) or "")
    if column is None or column.form not in ("plain", "time") or column.parts != (column.name,):
        return None
    stored = f'{table.stored}."{column.name}"'
    if isinstance(each, ds.IsNull):
        return lambda _: f"{stored} IS NULL"
    if isinstance(each, ds.IsNotNull):
        return lambda _: f"{stored} IS NOT NULL"
    if isinstance(each, ds.In):
        values = [_literal(column, value) for value in each.value]
        if not values or None in values:
            return None
        return lambda place: f"{stored} IN ({', '.join(value(place) for value in values if value)})"
    operator = _COMPARISONS.get(type(each))
    literal = _literal(column, each.value) if operator is not None else None  # type: ignore[attr-defined]
    return None if literal is None else lambda place: f"{stored} {operator} {literal(place)}"


def _literal(column: Column, value: Any) -> Callable[[Place], str] | None:
    """Return how a place writes a value of a column; None if the stored form of it is not known."""
    if column.form == "time":
        if not isinstance(value, datetime) or value.utcoffset() is None:
            return None
        micros = to_micros(value)
        return lambda _: str(micros)
    if column.type == "string":
        if not isinstance(value, str) or "\0" in value:
            return None
        return lambda place: place.quoted(value)
    if type(value) is not int or abs(value) > _LARGEST:
        return None
    return lambda _: str(value)
