"""Steps of a schema: those that the code knows, beside those that a store says were applied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from penstock.backends._rows import moment_at
from penstock.overview import MigrationStep

__all__ = ["Applied", "listed"]


class Known(Protocol):
    """A step as the code has it."""

    @property
    def number(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def oldest_code(self) -> int: ...


class Applied(NamedTuple):
    """A step as a store has recorded it."""

    number: int
    name: str
    oldest_code: int
    applied_at: int


def listed(known: Iterable[Known], applied: Sequence[Applied]) -> list[MigrationStep]:
    """Return all steps by number, whoever knows them."""
    at = {step.number: moment_at(step.applied_at) for step in applied}
    found = {
        step.number: MigrationStep(
            number=step.number,
            name=step.name,
            oldest_code=step.oldest_code,
            applied_at=at.get(step.number),
        )
        for step in known
    }
    for step in applied:
        if step.number not in found:
            found[step.number] = MigrationStep(
                number=step.number,
                name=step.name,
                oldest_code=step.oldest_code,
                applied_at=at[step.number],
                is_known=False,
            )
    return [found[number] for number in sorted(found)]
