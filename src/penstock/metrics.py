"""Metrics for Prometheus, read from the store: every process that serves them returns the same values.

    from prometheus_client import REGISTRY
    from penstock.metrics import PenstockCollector

    REGISTRY.register(PenstockCollector(queue))

Needs the extra [metrics]. `penstock metrics` serves the same by itself.

Nothing is counted by the processes that run jobs, so nothing has to be gathered from them: the store keeps the counts,
and the journal says of every attempt how long it waited and ran.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

import penstock
from penstock.backends.contract.overview import Overview, is_handled
from penstock.errors import BackendError, invalid
from penstock.job import JournalEntry
from penstock.queue import Queue

__all__ = ["BUCKETS", "PenstockCollector"]

logger = logging.getLogger("penstock.metrics")

#: Upper bounds of the histograms, in seconds.
BUCKETS: Final = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    900.0,
    3600.0,
)
PAGE: Final = 1_000
MAX_ROWS: Final = 50_000


class PenstockCollector(Collector):
    """Collects the metrics of one store for Prometheus, at each scrape.

    Args:
        queue: of the store.
        buckets: upper bounds of the histograms in seconds, ascending.
        max_rows: journal rows that one scrape goes through for the histograms. If more have come since the last one,
            the older of them are left out of the histograms, and counted as such; all other figures are exact.
    """

    def __init__(self, queue: Queue, *, buckets: Sequence[float] = BUCKETS, max_rows: int = MAX_ROWS) -> None:
        bounds = tuple(float(each) for each in buckets)
        if not bounds or list(bounds) != sorted(set(bounds)):
            raise invalid("buckets", "ascending numbers of seconds", buckets)
        if type(max_rows) is not int or max_rows < 1:
            raise invalid("max_rows", "a whole number of at least 1", max_rows)
        self._queue = queue
        self._max_rows = max_rows
        self._lock = threading.Lock()
        #: The last journal row that was read; None before the first scrape.
        self._seen: int | None = None
        self._skipped = 0
        self._wait = _Histogram(bounds)
        self._run = _Histogram(bounds)

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without reading the store, so that registering cannot fail."""
        return list(_families().values())

    def collect(self) -> Iterator[Metric]:
        """Read the store; if it cannot be reached, return only `penstock_up`, which is 0 then."""
        families = _families()
        with self._lock:
            try:
                seen = self._queue.overview()
                self._follow()
            except BackendError as error:
                logger.warning("the store could not be asked for metrics: %s", error)
                families["up"].add_metric([], 0)
                yield families["up"]
                return
            _fill(families, seen)
            families["skipped"].add_metric([], self._skipped)
            self._wait.fill(families["wait"])
            self._run.fill(families["run"])
        yield from families.values()

    def _follow(self) -> None:
        """Read the journal rows that were written since the last scrape."""
        backend = self._queue.backend
        last = backend.journal.span()[1]
        if self._seen is None:
            self._seen = last
        begin = max(self._seen, last - self._max_rows)
        self._skipped += begin - self._seen
        self._seen = begin
        while self._seen < last:
            rows = backend.read_journal(self._seen, min(PAGE, last - self._seen))
            if not rows:  # archived meanwhile
                self._seen = last
            for row in rows:
                self._note(row)
                self._seen = row.seq

    def _note(self, row: JournalEntry) -> None:
        if row.started_at is None:  # the row ends no attempt
            return
        if row.ready_at is not None:
            self._wait.observe((row.type,), (row.started_at - row.ready_at).total_seconds())
        self._run.observe((row.type, str(row.status)), (row.recorded_at - row.started_at).total_seconds())


class _Histogram:
    """Counts of values per bucket, by labels."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def observe(self, labels: tuple[str, ...], value: float) -> None:
        value = max(0.0, value)  # clocks of two machines
        counts = self._counts.setdefault(labels, [0] * (len(self._bounds) + 1))
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[labels] = self._sums.get(labels, 0.0) + value

    def fill(self, family: HistogramMetricFamily) -> None:
        names = [*(str(bound) for bound in self._bounds), "+Inf"]
        for labels, counts in self._counts.items():
            total, buckets = 0, []
            for name, count in zip(names, counts, strict=True):
                total += count
                buckets.append((name, float(total)))
            family.add_metric(list(labels), buckets, self._sums[labels])


def _families() -> dict[str, Any]:
    """Return every metric, empty, each of the kind it is."""
    by_type, by_state = ["type"], ["type", "state"]
    return {
        "up": GaugeMetricFamily("penstock_up", "Whether the store answers.", labels=[]),
        "info": InfoMetricFamily("penstock", "Versions of the code and of the store's schema.", labels=[]),
        "jobs": CounterMetricFamily(
            "penstock_jobs", "How often a job came into a state, ever; the store counts.", labels=by_state
        ),
        "stored": GaugeMetricFamily(
            "penstock_jobs_stored", "Jobs that are stored, by state.", labels=by_state
        ),
        "depth": GaugeMetricFamily(
            "penstock_queue_depth",
            "Jobs that are not taken: ready, delayed or waiting; exact.",
            labels=by_type,
        ),
        "ready": GaugeMetricFamily(
            "penstock_ready_jobs", "Jobs that could be taken now; counted up to 10,000.", labels=by_type
        ),
        "handed_back": GaugeMetricFamily(
            "penstock_jobs_handed_back",
            "Jobs in state failed_retry that a stopped worker released; counted up to 200,000.",
            labels=by_type,
        ),
        "oldest": GaugeMetricFamily(
            "penstock_oldest_ready_seconds",
            "How long the longest waiting job is ready; 0 if none is.",
            labels=by_type,
        ),
        "handled": GaugeMetricFamily(
            "penstock_type_handled", "Whether a living worker takes the type.", labels=by_type
        ),
        "delayed": GaugeMetricFamily(
            "penstock_delayed_jobs", "Jobs whose time has not come; counted up to 10,000.", labels=[]
        ),
        "workers": GaugeMetricFamily("penstock_workers_up", "Processes that take jobs and live.", labels=[]),
        "dead": GaugeMetricFamily(
            "penstock_workers_dead", "Processes that beat no more and are not cleared away yet.", labels=[]
        ),
        "slots": GaugeMetricFamily(
            "penstock_slots", "Jobs that living workers can hold at a time.", labels=[]
        ),
        "free": GaugeMetricFamily(
            "penstock_slots_free", "Slots of living workers that hold no job.", labels=[]
        ),
        "blocked": GaugeMetricFamily("penstock_blocked", "Whether new jobs are refused.", labels=[]),
        "undelivered": GaugeMetricFamily(
            "penstock_callbacks_undelivered",
            "Callbacks still to be delivered; counted up to 10,000.",
            labels=[],
        ),
        "given_up": GaugeMetricFamily(
            "penstock_callbacks_given_up", "Callbacks that were given up; counted up to 10,000.", labels=[]
        ),
        "wait": HistogramMetricFamily(
            "penstock_job_wait_seconds",
            "From ready to begun, of every attempt that has ended.",
            labels=by_type,
        ),
        "run": HistogramMetricFamily(
            "penstock_job_run_seconds",
            "From begun to ended, of every attempt, by what it ended in.",
            labels=by_state,
        ),
        "skipped": CounterMetricFamily(
            "penstock_journal_rows_skipped",
            "Journal rows that the histograms left out to keep up.",
            labels=[],
        ),
    }


def _fill(families: dict[str, Any], seen: Overview) -> None:
    living = seen.living
    single = {
        "up": 1,
        "delayed": seen.delayed,
        "workers": sum(bool(each.intakes) for each in living),
        "dead": len(seen.owners) - len(living),
        "slots": sum(each.slots for each in living),
        "free": sum(each.free for each in living),
        "blocked": int(seen.is_blocked),
        "undelivered": seen.undelivered,
        "given_up": seen.given_up,
    }
    for name, value in single.items():
        families[name].add_metric([], value)
    families["info"].add_metric(
        [], {"version": penstock.__version__, "schema_version": str(seen.schema_version)}
    )
    for view in seen.types:
        since = view.oldest_ready_at
        families["depth"].add_metric([view.type], view.pending)
        families["ready"].add_metric([view.type], view.ready)
        families["handed_back"].add_metric([view.type], view.handed_back)
        families["oldest"].add_metric(
            [view.type], 0 if since is None else max(0.0, (seen.at - since).total_seconds())
        )
        families["handled"].add_metric([view.type], int(is_handled(view.type, living)))
        for status, count in view.entered.items():
            families["jobs"].add_metric([view.type, str(status)], count)
        for status, count in view.jobs.items():
            families["stored"].add_metric([view.type, str(status)], count)
