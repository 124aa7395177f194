"""Counts of jobs, as `stats` and `top` show them; `STATUS_GROUPS` has their names."""

from __future__ import annotations

import math
from typing import Any

from penstock.backends.contract.overview import JobCounts, Overview
from penstock.backends.contract.selection import STATUS_GROUPS

__all__ = ["bounded", "bounded_fields", "count_cell", "count_cells", "count_fields", "ready_bound"]


def ready_bound(seen: Overview) -> float:
    """Return the number from which the sum of ready jobs is only a lower bound; infinite if it is exact."""
    is_exact = all(each.ready < seen.most_counted for each in seen.types)
    return math.inf if is_exact else seen.most_counted


def bounded(count: int, limit: float) -> str:
    """Return a count as text; one at which counting stopped gets a plus sign: 10,000+."""
    return f"{count:,}" if count < limit else f"{count:,}+"


def bounded_fields(name: str, count: int, limit: float) -> dict[str, Any]:
    """Return a count for JSON: the number, whether counting stopped there, and the text."""
    return {name: count, f"{name}_at_least": count >= limit, f"{name}_text": bounded(count, limit)}


def count_cells(counts: JobCounts) -> dict[str, str]:
    """Return counts as text, by name."""
    cells = {name: f"{getattr(counts, name)}" for name in STATUS_GROUPS}
    return cells | {"handed_back": count_cell(counts.handed_back, counts.most_counted)}


def count_cell(count: int, limit: int) -> str:
    """Return a count as text without separators, as programs read it, or as 10,000+ if counting stopped there."""
    return f"{count}" if count < limit else bounded(count, limit)


def count_fields(counts: JobCounts) -> dict[str, Any]:
    """Return counts for JSON."""
    return {
        "total": counts.total,
        **{name: getattr(counts, name) for name in STATUS_GROUPS},
        "handed_back_at_least": counts.handed_back >= counts.most_counted,
    }
