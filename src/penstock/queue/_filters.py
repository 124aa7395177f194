"""An index of the streams' filters by tags and types, so that a job is not compared with every stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

__all__ = ["FilterIndex"]

T = TypeVar("T")


class FilterIndex(Generic[T]):
    """Items registered under a filter, looked up by a job's type and tags.

    A filter with tags is filed under its smallest tag, one without under its types, one without either under nothing; so
    a look-up touches the filters that share a tag or a type with the job, however many others there are.
    """

    def __init__(self) -> None:
        self._by_tag: dict[str, dict[T, None]] = {}
        self._by_type: dict[str, dict[T, None]] = {}
        self._open: dict[T, None] = {}
        self._filters: dict[T, tuple[frozenset[str], frozenset[str] | None]] = {}

    def __len__(self) -> int:
        return len(self._filters)

    def __iter__(self) -> Iterator[T]:
        return iter(self._filters)

    def add(self, item: T, tags: Iterable[str], types: Iterable[str] | None) -> None:
        wanted = tuple(tags)
        self._filters[item] = (frozenset(wanted), None if types is None else frozenset(types))
        for shelf in self._shelves(item):
            shelf[item] = None

    def remove(self, item: T) -> None:
        if item not in self._filters:
            return
        tags, types = self._filters.pop(item)
        self._open.pop(item, None)
        if tags:
            _take_off(self._by_tag, min(tags), item)
        else:
            for type_ in types or ():
                _take_off(self._by_type, type_, item)

    def matching(self, type: str, tags: Iterable[str]) -> Iterator[T]:
        """Yield the items whose filter the job passes."""
        has = frozenset(tags)
        shelves = [self._open, self._by_type.get(type, {}), *(self._by_tag.get(tag, {}) for tag in has)]
        for shelf in shelves:
            for item in shelf:
                wanted_tags, wanted_types = self._filters[item]
                if wanted_tags <= has and (wanted_types is None or type in wanted_types):
                    yield item

    def matching_any(self, types: frozenset[str], tags: frozenset[str]) -> Iterator[T]:
        """Yield the items whose filter some job of these types, with some of these tags, may pass."""
        shelves = [
            self._open if types else {},
            *(self._by_type.get(type_, {}) for type_ in types),
            *(self._by_tag.get(tag, {}) for tag in tags),
        ]
        for shelf in shelves:
            for item in shelf:
                wanted_tags, wanted_types = self._filters[item]
                if wanted_tags <= tags and (wanted_types is None or not wanted_types.isdisjoint(types)):
                    yield item

    def _shelves(self, item: T) -> list[dict[T, None]]:
        tags, types = self._filters[item]
        if tags:
            return [self._by_tag.setdefault(min(tags), {})]
        if types is None:
            return [self._open]
        return [self._by_type.setdefault(type_, {}) for type_ in types]


def _take_off(shelves: dict[str, dict[T, None]], name: str, item: T) -> None:
    """Remove an item from a shelf, and the shelf if it is empty then."""
    shelf = shelves[name]
    del shelf[item]
    if not shelf:
        del shelves[name]
