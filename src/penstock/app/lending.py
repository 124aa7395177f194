"""A job that waits for another one lends its slot: the worker sets a lender, which is called around each wait."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol

__all__ = ["Lender", "lending", "lent_by"]


class Lender(Protocol):
    """The job of a slot, which lends that slot while it waits."""

    def begin_wait(self, job_id: str, *, may_block: bool) -> None:
        """Called when it begins to wait for a job; `may_block` is False on the thread of an event loop."""
        ...

    def end_wait(self, job_id: str) -> None:
        """Called when it waits no longer, whether the job has ended or not."""
        ...


_lender: ContextVar[Lender | None] = ContextVar("penstock_lender", default=None)


@contextlib.contextmanager
def lent_by(lender: Lender | None) -> Iterator[None]:
    """Set the lender whose slot is lent by waits inside the block."""
    token = _lender.set(lender)
    try:
        yield
    finally:
        _lender.reset(token)


@contextlib.contextmanager
def lending(job_id: str, *, may_block: bool = True) -> Iterator[None]:
    """Lend the slot of the job that waits inside for another one; does nothing outside a job."""
    lender = _lender.get()
    if lender is None:
        yield
        return
    lender.begin_wait(job_id, may_block=may_block)
    try:
        yield
    finally:
        lender.end_wait(job_id)
