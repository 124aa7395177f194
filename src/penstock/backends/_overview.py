"""From what a store counts to an `Overview`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.backends import _arguments as arguments
from penstock.backends._liveness import gone_owners, host_name
from penstock.backends._rows import STATUSES, moment_at
from penstock.backends._store import Counted, Owner
from penstock.errors import InvalidArgumentError, shown
from penstock.job import JobStatus
from penstock.overview import Intake, Overview, OwnerView, TypeView

__all__ = ["MOST_COUNTED", "encode_intakes", "overview_of"]

#: Jobs that are ready, of one type, or delayed, and deliveries are counted one by one, up to here: that they wait is
#: not journaled.
MOST_COUNTED: Final = 10_000
MOST_INTAKES: Final = 1_000

_INTAKES: Final = msgspec.json.Decoder(tuple[Intake, ...])


def overview_of(counted: Counted, liveness: int, most: int) -> Overview:
    """Return what was counted, up to `most` where that is said, in the words of the contract."""
    types = _types(counted, most)
    gone = set(gone_owners(counted.owners, counted.now, liveness))
    pending = sum(each.pending for each in types)
    ready = sum(each.ready for each in types)
    is_whole = counted.delayed < most and all(each.ready < most for each in types)
    return Overview(
        at=moment_at(counted.now),
        schema_version=counted.version,
        is_blocked=counted.is_blocked,
        types=types,
        delayed=counted.delayed,
        waiting=pending - ready - counted.delayed if is_whole else None,
        owners=tuple(
            _owner(owner, counted.held.get(owner.id, 0), is_alive=owner.id not in gone)
            for owner in sorted(counted.owners, key=lambda each: (each.host, each.pid, each.id))
        ),
        undelivered=counted.deliveries[0],
        given_up=counted.deliveries[1],
        most_counted=most,
    )


def _types(counted: Counted, most: int) -> tuple[TypeView, ...]:
    jobs: defaultdict[str, dict[JobStatus, int]] = defaultdict(dict)
    entered: defaultdict[str, dict[JobStatus, int]] = defaultdict(dict)
    for type_, status, stored, ever in counted.by_type:
        if stored:
            jobs[type_][STATUSES[status]] = stored
        if ever:
            entered[type_][STATUSES[status]] = ever
    ready: defaultdict[str, int] = defaultdict(int)
    oldest: dict[str, int] = {}
    for (
        type_,
        count,
        since,
    ) in counted.ready:  # a type may come twice: in the ready set, and due since a moment ago
        ready[type_] = min(ready[type_] + count, most)
        if since is not None:
            oldest[type_] = min(since, oldest.get(type_, since))
    return tuple(
        TypeView(
            type=name,
            jobs=jobs.get(name, {}),
            entered=entered.get(name, {}),
            ready=ready.get(name, 0),
            oldest_ready_at=moment_at(oldest[name]) if name in oldest else None,
        )
        for name in sorted(jobs.keys() | entered.keys() | ready.keys())
    )


def _owner(owner: Owner, running: int, *, is_alive: bool) -> OwnerView:
    return OwnerView(
        id=owner.id,
        host=host_name(owner.host),
        pid=owner.pid,
        opened_at=None if owner.opened_at is None else moment_at(owner.opened_at),
        beat_at=moment_at(owner.beat_at),
        is_alive=is_alive,
        running=running,
        intakes=_decoded(owner.intakes),
    )


def _decoded(text: str) -> tuple[Intake, ...]:
    try:
        return _INTAKES.decode(text)
    except msgspec.DecodeError:  # written by somebody else; whoever looks must still see the rest
        return ()


def encode_intakes(intakes: object) -> str:
    """Return intakes as they are stored.

    Raises:
        InvalidArgumentError: they are none, or too many.
    """
    if isinstance(intakes, str | bytes) or not isinstance(intakes, Sequence) or len(intakes) > MOST_INTAKES:
        raise InvalidArgumentError(
            f"intakes must be a sequence of at most {MOST_INTAKES} Intake, got {shown(intakes)}",
            field="intakes",
            value=intakes,
        )
    for each in intakes:
        if not isinstance(each, Intake):
            raise InvalidArgumentError(
                f"intakes must hold Intake only, got {shown(each)}", field="intakes", value=each
            )
        arguments.types(each.types)
        arguments.tags(each.tags)
        if type(each.slots) is not int or each.slots < 0:
            raise InvalidArgumentError(
                f"slots must be a whole number of at least 0, got {shown(each.slots)}",
                field="slots",
                value=each.slots,
            )
    return msgspec.json.encode(list(intakes)).decode()
