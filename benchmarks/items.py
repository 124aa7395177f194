"""The jobs that are measured: one type, equal priority, a payload of about 100 bytes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from itertools import count
from typing import Final, TypeAlias

from penstock import Job

TYPE: Final = "bench"
_FILLER: Final = "x" * 80

Item: TypeAlias = tuple[str, bytes]


def make_items(number: int) -> list[Item]:
    """Return ids and payloads, made before the clock starts so that both sides are given the same."""
    return [(str(uuid.uuid4()), payload(index)) for index in range(number)]


def endless_items() -> Iterator[Item]:
    return ((str(uuid.uuid4()), payload(index)) for index in count())


def payload(index: int) -> bytes:
    return b'{"i": %d, "s": "%s"}' % (index, _FILLER.encode())


def job_of(item: Item) -> Job:
    """Return an item as the public API takes it; its making is part of what is timed."""
    return Job(id=item[0], type=TYPE, payload=item[1])
