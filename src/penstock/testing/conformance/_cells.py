"""Tables in one test: it walks every cell on one store and names all that failed.

A store opened for each cell would take most of the time of the suite.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import pytest

from penstock.backends import Backend
from penstock.testing.conformance._support import CELL_BEGAN, all_jobs, journal
from penstock.testing.journal import Violation, check_fold, check_store

__all__ = ["Walk", "cells", "clear"]

Test = TypeVar("Test", bound=Callable[..., None])
#: How many failures are shown in full; of the others, only the names.
_SHOWN = 5


class _Axis(NamedTuple):
    """The values of one or more arguments, each with its name."""

    arguments: tuple[str, ...]
    values: list[tuple[Any, ...]]
    names: list[str]


#: The cell and the axes of every test made here: another decorator adds its axis to them.
_made: dict[Callable[..., None], tuple[Callable[..., None], list[_Axis]]] = {}


class Walk:
    """Collects the failures of cells until all were tried.

    walk = Walk()
    for verb in VERBS:
        with walk.cell(verb):
            ...
    walk.end()
    """

    def __init__(self) -> None:
        self.tried = 0
        self._failed: list[tuple[str, Exception]] = []

    @contextmanager
    def cell(self, name: str) -> Iterator[None]:
        """Keep a failure of the block under this name."""
        self.tried += 1
        try:
            yield
        except Exception as error:
            self._keep(name, error)
        except pytest.fail.Exception as error:  # of pytest.raises; it is no Exception
            self._keep(name, AssertionError(str(error)).with_traceback(error.__traceback__))

    def _keep(self, name: str, error: Exception) -> None:
        error.add_note(f"in the cell [{name}]")
        self._failed.append((name, error))

    def end(self) -> None:
        """Raise what was kept.

        Raises:
            AssertionError: names every cell that failed; its cause is what went wrong in the first of them.
        """
        assert self.tried, "a table without cells proves nothing"
        if self._failed:
            names = dict.fromkeys(f"[{name}]" for name, _ in self._failed)
            errors = [error for _, error in self._failed[:_SHOWN]]
            cause = errors[0] if len(errors) == 1 else ExceptionGroup("the first of them", errors)
            raise AssertionError(f"{len(names)} of {self.tried} cells failed: {', '.join(names)}") from cause


class StoreWalk(Walk):
    """A walk on one store: every cell finds it without jobs, and must leave jobs that its journal rows explain."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend
        self._began: list[tuple[int, str]] = []

    @contextmanager
    def cell(self, name: str) -> Iterator[None]:
        began = CELL_BEGAN.get()
        self._began.append((began, name))
        with super().cell(name):
            yield
            assert not (wrong := check_fold(journal(self._backend), all_jobs(self._backend))), _lines(wrong)
        with super().cell(f"after {name}"):
            self.tried -= 1  # it is not one of the table
            clear(self._backend)
            CELL_BEGAN.set(max((row.seq for row in journal(self._backend)), default=began))
            return
        super().end()  # nothing can be said of the other cells

    def end(self) -> None:
        """Look at the whole journal too, and raise what was kept."""
        CELL_BEGAN.set(0)
        for violation in check_store(self._backend):
            before = [
                name for began, name in self._began if any(began < row.seq for row in violation.rows[:1])
            ]
            self._keep(before[-1] if before else "after the last", AssertionError(str(violation)))
        super().end()


def cells(
    arguments: str | Sequence[str],
    values: Iterable[Any],
    ids: Callable[[Any], object] | Sequence[str] | None = None,
) -> Callable[[Test], Test]:
    """Like `pytest.mark.parametrize`, but all cells are one test, on one store.

    Each cell finds the store without jobs. What else it left (the journal, consumers, the time) stays, so it is not for
    tests which that would disturb. Several of them make a table of all combinations.
    """
    names = (
        tuple(part.strip() for part in arguments.split(","))
        if isinstance(arguments, str)
        else tuple(arguments)
    )
    rows = [value if len(names) > 1 else (value,) for value in values]
    if ids is None or callable(ids):
        label = ids or _label
        labels = ["-".join(str(label(value)) for value in row) for row in rows]
    else:
        labels = list(ids)
    axis = _Axis(names, rows, labels)

    def decorate(test: Test) -> Test:
        cell, axes = _made.get(test, (test, []))
        return _walking(cell, [axis, *axes])  # type: ignore[return-value] # the same but for arguments

    return decorate


def clear(backend: Backend) -> None:
    """End and remove every job, and let new ones in."""
    if backend.is_blocked():
        backend.set_blocked(False)
    jobs = all_jobs(backend)
    unfinished = [job for job in jobs if not job.status.is_final]
    if unfinished:
        backend.cancel_jobs(job_ids=[job.id for job in unfinished])
        in_flight = {job.id: True for job in unfinished if job.status.holds_slot}
        backend.acknowledge_cancellations(in_flight)
    if jobs:
        backend.delete_jobs(job_ids=[job.id for job in jobs])


def _walking(cell: Callable[..., None], axes: list[_Axis]) -> Callable[..., None]:
    @functools.wraps(cell)
    def walk_all(self: object, **fixtures: Any) -> None:
        walk = StoreWalk(fixtures["backend"]) if "backend" in fixtures else Walk()
        try:
            for chosen in itertools.product(*(zip(axis.values, axis.names, strict=True) for axis in axes)):
                given = {
                    argument: value
                    for axis, (values, _) in zip(axes, chosen, strict=True)
                    for argument, value in zip(axis.arguments, values, strict=True)
                }
                with walk.cell("-".join(name for _, name in chosen)):
                    cell(self, **fixtures, **given)
            walk.end()
        finally:
            CELL_BEGAN.set(0)

    known = inspect.signature(cell)
    walked = {argument for axis in axes for argument in axis.arguments}
    kept = [each for name, each in known.parameters.items() if name not in walked]
    walk_all.__signature__ = known.replace(parameters=kept)  # type: ignore[attr-defined] # by which pytest finds fixtures
    _made[walk_all] = (cell, axes)
    return walk_all


def _lines(violations: Iterable[Violation]) -> str:
    return "\n".join(map(str, violations))


def _label(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
