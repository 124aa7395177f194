"""From what a store counts to an `Overview`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.backends.contract.overview import Intake, NamedIntake, Overview, OwnerView, TypeView
from penstock.backends.engine import arguments
from penstock.backends.engine.liveness import gone_owners, host_name
from penstock.backends.engine.rows import STATUSES, moment_at
from penstock.backends.engine.store import Counted, Owner
from penstock.errors import invalid
from penstock.job import JobStatus

__all__ = ["MAX_COUNTED", "encode_intakes", "overview_of", "split_names"]

#: Jobs that are ready, of one type, or delayed, and deliveries are counted one by one, up to here: that they wait is
#: not journaled.
MAX_COUNTED: Final = 10_000
MAX_INTAKES: Final = 1_000

_INTAKES: Final = msgspec.json.Decoder(tuple[NamedIntake, ...])


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
            handed_back=counted.released.get(name, 0),
        )
        for name in sorted(jobs.keys() | entered.keys() | ready.keys())
    )


def _owner(owner: Owner, running: int, *, is_alive: bool) -> OwnerView:
    intakes, names = split_names(_decoded(owner.intakes))
    return OwnerView(
        id=owner.id,
        host=host_name(owner.host),
        pid=owner.pid,
        opened_at=None if owner.opened_at is None else moment_at(owner.opened_at),
        beat_at=moment_at(owner.beat_at),
        is_alive=is_alive,
        running=running,
        intakes=intakes,
        names=names,
    )


def split_names(intakes: Sequence[Intake]) -> tuple[tuple[Intake, ...], tuple[str, ...]]:
    """Return the intakes of a process, and the names under which it claims."""
    plain = tuple(
        Intake(types=each.types, tags=each.tags, slots=each.slots, waiting=each.waiting) for each in intakes
    )
    names = dict.fromkeys(name for each in intakes for name in getattr(each, "names", ()))
    return plain, tuple(names)


def _decoded(text: str) -> tuple[NamedIntake, ...]:
    try:
        return _INTAKES.decode(text)
    except msgspec.DecodeError:  # not written by this code; the rest can still be shown
        return ()


def encode_intakes(intakes: object) -> str:
    """Return intakes as they are stored.

    Raises:
        InvalidArgumentError: they are none, or too many.
    """
    if isinstance(intakes, str | bytes) or not isinstance(intakes, Sequence) or len(intakes) > MAX_INTAKES:
        raise invalid("intakes", f"a sequence of at most {MAX_INTAKES} Intake", intakes)
    for each in intakes:
        if not isinstance(each, Intake):
            raise invalid("intakes", "a sequence of Intake only", each)
        arguments.types(each.types)
        arguments.tags(each.tags)
        arguments.strings("names", getattr(each, "names", ()), arguments.MAX_ID)
        for field in ("slots", "waiting"):
            value = getattr(each, field)
            if type(value) is not int or value < 0:
                raise invalid(field, "a whole number of at least 0", value)
    return msgspec.json.encode(list(intakes)).decode()
