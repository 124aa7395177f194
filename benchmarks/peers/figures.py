"""Ratios and spreads of what was measured; nothing here runs anything."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

OUR_NAME: Final = "Penstock"
WORKLOADS: Final = {
    "w1": "one client, one job per call",
    "w1c": "8 clients, one job per call",
    "w2": "bulk submission, 5,000 per call",
    "w3": "drain a full queue, one worker",
    "w3p": "the same, one process per job",
    "w4": "from submission to start, median",
    "w5": "W3 beside finished and delayed jobs",
}
STORES: Final = {"sqlite": "SQLite", "postgres": "PostgreSQL", "redis": "Redis"}
#: Workloads whose figure is a time: less is better.
TIMES: Final = frozenset({"w4"})


@dataclass(frozen=True)
class Run:
    """One product in one round.

    Attributes:
        value: jobs per second, or milliseconds in W4; None if the run failed.
        raw: the raw store's figure, the mean of the probes before and after; None if there is none.
        share: the part of the machine that other processes had.
        repeats: disturbed runs before this one, which were dropped.
        error: why it failed.
    """

    round: int
    workload: str
    store: str
    product: str
    value: float | None = None
    raw: float | None = None
    share: float | None = None
    repeats: int = 0
    is_disturbed: bool = False
    error: str = ""
    extra: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Spread(NamedTuple):
    """The median of some figures, the smallest and the largest."""

    median: float
    least: float
    most: float


@dataclass(frozen=True)
class Line:
    """A product on a store in a workload, over all rounds.

    Attributes:
        value: its figure; None if no round succeeded.
        to_raw: its figure by the raw store's.
        advantage: by store of ours, how many times as fast we are; of Penstock itself, none.
        ours: our figure by store.
        disturbed: in how many rounds the figure is from a disturbed run.
        error: of the last round that failed, also if others succeeded.
    """

    workload: str
    store: str
    product: str
    value: Spread | None
    to_raw: Spread | None
    advantage: dict[str, Spread]
    ours: dict[str, Spread]
    rounds: int
    disturbed: int
    repeats: int
    error: str
    extra: dict[str, float]

    @property
    def is_ours(self) -> bool:
        return self.product == OUR_NAME

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def spread(figures: Iterable[float]) -> Spread | None:
    """Return median, least and most; None of nothing."""
    known = list(figures)
    return Spread(statistics.median(known), min(known), max(known)) if known else None


def advantage(workload: str, ours: float, theirs: float) -> float | None:
    """Return how many times as fast we are; above 1 is better, whether the figures are rates or times."""
    above, below = (theirs, ours) if workload in TIMES else (ours, theirs)
    return above / below if below > 0 and above > 0 else None


def summarise(runs: Sequence[Run]) -> list[Line]:
    """Return a line per workload, store and product, in the order of the first runs."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.workload, run.store, run.product), []).append(run)
    return [_line(group, groups) for group in groups.values()]


def _line(group: Sequence[Run], groups: dict[tuple[str, str, str], list[Run]]) -> Line:
    first = group[0]
    done = [run for run in group if run.value is not None]
    advantages: dict[str, Spread] = {}
    figures: dict[str, Spread] = {}
    if first.product != OUR_NAME:
        for store in _our_stores(first.store):
            ours = {
                run.round: run.value
                for run in groups.get((first.workload, store, OUR_NAME), ())
                if run.value is not None
            }
            pairs = [
                (ours[run.round], run.value) for run in done if run.round in ours and run.value is not None
            ]
            found = [advantage(first.workload, mine, theirs) for mine, theirs in pairs]
            ratio = spread(each for each in found if each is not None)
            figure = spread(mine for mine, _ in pairs)
            if ratio is not None and figure is not None:
                advantages[store], figures[store] = ratio, figure
    return Line(
        workload=first.workload,
        store=first.store,
        product=first.product,
        value=spread(run.value for run in done if run.value is not None),
        to_raw=spread(run.value / run.raw for run in done if run.value is not None and run.raw),
        advantage=advantages,
        ours=figures,
        rounds=len(done),
        disturbed=sum(run.is_disturbed for run in done),
        repeats=sum(run.repeats for run in group),
        error=next((run.error for run in reversed(group) if run.error), ""),
        extra=_medians(done),
    )


def _our_stores(store: str) -> Sequence[str]:
    """Return the stores of ours that a product is compared with: we have none on Redis."""
    return (store,) if store != "redis" else ("sqlite", "postgres")


def _medians(runs: Sequence[Run]) -> dict[str, float]:
    names = dict.fromkeys(name for run in runs for name in run.extra)
    return {name: statistics.median(run.extra[name] for run in runs if name in run.extra) for name in names}
