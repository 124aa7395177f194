"""What all verbs of the engine share: the store, and the ways to find and save rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.backends import _arguments as arguments
from penstock.backends._options import StoreOptions
from penstock.backends._rows import Row, encode_strings
from penstock.backends._store import Store, Transaction, tell
from penstock.backends.base import Backend
from penstock.errors import InvalidArgumentError, JobNotFoundError, StaleAttemptError
from penstock.job import Key

__all__ = ["EngineCore", "checked_key", "stale", "written_while_iterated"]

T = TypeVar("T")


class EngineCore(Backend):
    """A store and its options."""

    def __init__(self, store: Store, options: StoreOptions) -> None:
        self._store = store
        self._options = options
        self._iterating: set[int] = set()
        self.poll_seconds = store.poll_seconds
        self.liveness = options.liveness
        self.max_depth = options.max_depth
        self.max_payload = options.max_payload

    @property
    def options(self) -> StoreOptions:
        """The options in force."""
        return self._options

    def _write(self, work: Callable[[Transaction], T]) -> T:
        if self._iterating and self._is_iterated():
            raise written_while_iterated()
        return self._store.write(work)

    def _write_alone(self, work: Callable[[Transaction], T]) -> T:
        return self._store.write(work, alone=True)

    def _is_iterated(self) -> bool:
        """Whether this thread is inside an iterator that `enqueue_jobs` reads."""
        return threading.get_ident() in self._iterating

    def _save(self, tx: Transaction, rows: Sequence[Row]) -> None:
        if rows:
            tx.save(rows)
            tell(tx, rows)

    def _row(self, tx: Transaction, job_id: str) -> Row:
        row = tx.rows([job_id]).get(job_id)
        if row is None:
            raise JobNotFoundError(job_id)
        return row

    def _selected(
        self, tx: Transaction, tags: tuple[str, ...], ids: tuple[str, ...]
    ) -> tuple[list[Row], list[str]]:
        """Return the jobs that have all tags or are listed, in insertion order, and the ids nobody has."""
        found: dict[int, Row] = {}
        missing: list[str] = []
        if tags:
            tx.expect(ids=ids)
            found |= {row.seq: row for row in tx.rows_tagged(tags)}
        if ids:
            listed = tx.rows(ids)
            found |= {row.seq: row for row in listed.values()}
            missing = [job_id for job_id in ids if job_id not in listed]
        return [found[seq] for seq in sorted(found)], missing


def checked_key(key: Key | str | None) -> str | None:
    """Return a key as rows have it."""
    wanted = arguments.key_filter(key)
    return None if wanted is None else encode_strings(wanted)


def stale(verb: str, row: Row, attempt: int) -> StaleAttemptError:
    """Return the refusal of an attempt that is over."""
    return StaleAttemptError(
        job_id=row.id, status=row.status, verb=str(verb), attempt=attempt, current_attempt=row.attempt
    )


def written_while_iterated() -> InvalidArgumentError:
    """Return the refusal of a write from inside an iterator that is being stored."""
    # One answer for all stores: where one writes at a time this would wait for itself for ever, elsewhere the inner
    # write would stay when the batch is undone.
    return InvalidArgumentError(
        "jobs must not write to the store that they are written to while they are iterated; make a list of them first",
        field="jobs",
    )
