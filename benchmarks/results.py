"""A measured figure, its reference, and whether the goal was met."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Goal:
    """What is wanted: of the ratio ours / reference, or of our figure itself."""

    limit: float
    at_most: bool = False
    of_ratio: bool = True

    def is_met(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.limit:g}{' x' if self.of_ratio else ''}"


@dataclass(frozen=True)
class Result:
    """One line of the table.

    Attributes:
        rounds: (ours, reference) of each round, both in `unit`; (ours,) where there is no reference.
        against: what the reference is.
    """

    workload: str
    store: str
    rounds: Sequence[tuple[float, ...]]
    unit: str = "/s"
    against: str = "raw"
    goal: Goal | None = None
    note: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def ours(self) -> float:
        return statistics.median(each[0] for each in self.rounds)

    @property
    def reference(self) -> float | None:
        known = [each[1] for each in self.rounds if len(each) > 1]
        return statistics.median(known) if known else None

    @property
    def ratios(self) -> list[float]:
        return [each[0] / each[1] for each in self.rounds if len(each) > 1 and each[1]]

    @property
    def judged(self) -> list[float]:
        """The figures that the goal speaks of, one a round: ratios if there is a reference."""
        if self.goal is None or self.goal.of_ratio:
            return self.ratios
        return [each[0] for each in self.rounds]

    @property
    def is_met(self) -> bool | None:
        if self.goal is None or not self.judged:
            return None
        return self.goal.is_met(statistics.median(self.judged))

    def as_json(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "store": self.store,
            "unit": self.unit,
            "against": self.against,
            "ours": self.ours,
            "reference": self.reference,
            "ratio": statistics.median(self.ratios) if self.ratios else None,
            "ratio_min": min(self.ratios, default=None),
            "ratio_max": max(self.ratios, default=None),
            "goal": None if self.goal is None else str(self.goal),
            "met": self.is_met,
            "note": self.note,
            "rounds": [list(each) for each in self.rounds],
            **self.extra,
        }
