"""What a batch of journal rows does to each table.

Only what the batch speaks of is read and written again: open jobs and the files that hold them, the attempts that are
amended, the hours from the earliest new row on, the trees with a changed job. What has ended lies in other files than
what has not, so that jobs that end are moved, and those that ended long ago stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import Final, NamedTuple, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.job import FINAL
from penstock.spark._settings import temporarily
from penstock.spark.lake._manifest import LakeFile
from penstock.spark.lake._work import FILE, STAGING, Work
from penstock.spark.tables import ATTEMPTS, EVENTS, FLOWS, HOURLY, JOBS
from penstock.spark.transforms._rows import HISTORY, is_amendment, is_final
from penstock.spark.transforms.attempts import attempts, plain_attempts
from penstock.spark.transforms.flows import FLOW_FACTS, flows
from penstock.spark.transforms.hourly import hourly
from penstock.spark.transforms.latest import latest

__all__ = ["Sink", "derive", "stage_events"]

#: Told of the rows that a batch adds to a table or changes in it: (table, rows, number of the batch).
Sink: TypeAlias = Callable[[str, DataFrame, int], None]

_DAY_OF: Final = {
    "events": "cast(date(recorded_at) as string)",
    "attempts": "cast(date(ended_at) as string)",
    "hourly": "cast(date(hour) as string)",
}
_FINALS: Final = ", ".join(f"'{status.value}'" for status in sorted(FINAL))
_JOB_PART: Final = (
    f"CASE WHEN removed_at IS NOT NULL THEN 'removed' WHEN status IN ({_FINALS}) THEN 'ended' ELSE 'open' END"
)
_ID: Final = ["source", "job_id"]
#: Journal rows up to which a batch is small.
_SMALL_BATCH: Final = 200_000
# A small batch takes some thirty small queries. Adaptive planning, which pays off for large ones, makes several jobs of
# each.
_FOR_SMALL: Final = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "2"}
_TREE: Final = ("source", "flow_id", "history")


class _Facts(NamedTuple):
    """What a batch holds, asked once, so that what it does not hold costs nothing."""

    counts: dict[str, int]
    first_hour: dict[str, int]  # in microseconds
    amendments: int
    from_final: int
    dependent: int

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    @property
    def is_small(self) -> bool:
        return self.rows <= _SMALL_BATCH


def derive(work: Work, new: DataFrame, sink: Sink | None, step: Callable[[str], None]) -> dict[str, int]:
    """Bring every table but `events` up to date with new journal rows; return how many each source has."""
    facts = _facts(new)
    if not facts.rows:
        return facts.counts
    with temporarily(work.spark, STAGING | (_FOR_SMALL if facts.is_small else {})):
        try:
            _derive(work, new, facts, sink, step)
        finally:
            work.let_go()
    return facts.counts


def _derive(
    work: Work, new: DataFrame, facts: _Facts, sink: Sink | None, step: Callable[[str], None]
) -> None:
    step("jobs")
    changed: dict[str, DataFrame | None] = {"jobs": _update_jobs(work, new, facts)}
    # The trees need nothing of the two others: while Spark plans the one it works on the other.
    with ThreadPoolExecutor(1, "penstock-flows") as beside:
        trees = beside.submit(_update_flows, work, new, facts)
        step("attempts")
        changed["attempts"], floors = _update_attempts(work, new, facts)
        step("hourly")
        changed["hourly"] = _update_hourly(work, floors, facts)
        step("flows")
        changed["flows"] = trees.result()
    if sink is not None:
        for table, rows in changed.items():
            if rows is not None:
                sink(table, rows, work.number)
    work.compact(EVENTS, _DAY_OF["events"])
    work.compact(ATTEMPTS, _DAY_OF["attempts"])
    work.compact(JOBS, _JOB_PART)
    work.compact(FLOWS, None)


def stage_events(work: Work, rows: DataFrame) -> None:
    """Stage the batch itself."""
    with temporarily(work.spark, STAGING):
        work.stage(EVENTS, rows, _DAY_OF["events"])


def _facts(new: DataFrame) -> _Facts:
    hour = F.unix_micros(F.date_trunc("hour", F.min("recorded_at")))
    dependent = (F.size("after") > 0) | (F.size("after_any") > 0)
    found = (
        new.groupBy("source")
        .agg(
            F.count("*").alias("rows"),
            hour.alias("hour"),
            F.count(F.when(is_amendment(), 1)).alias("amendments"),
            F.count(F.when(is_final("from_status"), 1)).alias("from_final"),
            F.count(F.when(dependent, 1)).alias("dependent"),
        )
        .collect()
    )

    def total(name: str) -> int:
        return sum(int(row[name]) for row in found)

    return _Facts(
        {row["source"]: int(row["rows"]) for row in found},
        {row["source"]: row["hour"] for row in found},
        total("amendments"),
        total("from_final"),
        total("dependent"),
    )


# -- jobs ---------------------------------------------------------------------------------------------------------


def _update_jobs(work: Work, new: DataFrame, facts: _Facts) -> DataFrame:
    found = _known_jobs(work, new, facts)
    if found is None:
        folded = latest(new)
        work.stage(JOBS, folded, _JOB_PART, about=folded_rows(facts))
        return folded
    known, touched = work.keep(found[0]), found[1]
    folded = latest(new, known)
    spoken_of = _hinted(known.select(*HISTORY), facts)
    others = work.read(JOBS, touched).join(spoken_of, [*HISTORY], "left_anti")
    about = folded_rows(facts) + sum(file.rows for file in touched)
    work.stage(JOBS, folded.unionByName(others), _JOB_PART, about=about)
    work.replace(JOBS, touched)
    return folded


def folded_rows(facts: _Facts) -> int:
    """Return about how many jobs a batch speaks of."""
    return facts.rows // 3 + 1


def _known_jobs(work: Work, new: DataFrame, facts: _Facts) -> tuple[DataFrame, list[LakeFile]] | None:
    """Return what the lake has of the jobs that the batch speaks of, and the files they lie in; None for nothing.

    A job that is open may be spoken of by any row; one that has ended by rows that start from a final status; one that
    was removed only by the first row of the next job of its id.
    """
    sought: dict[str, DataFrame] = {}
    lookups = (
        ("open", None),
        ("ended", is_final("from_status") if facts.from_final else None),
        ("removed", F.col("n") == 1),
    )
    for part, condition in lookups:
        files = work.files(JOBS, [part])
        if not files or (part == "ended" and condition is None):
            continue
        sought[part] = (new if condition is None else new.where(condition)).select(*_ID).distinct()
    if not sought:
        return None
    # First only where they are, for which two columns are enough; then whole, from the few files that have them.
    places = [
        work.read(JOBS, work.files(JOBS, [part]), with_file=True).join(ids, _ID, "left_semi").select(FILE)
        for part, ids in sought.items()
    ]
    named = reduce(DataFrame.unionByName, places).distinct().collect()
    touched = work.files_of(JOBS, [row[FILE] for row in named])
    found = [
        work.read(JOBS, [file for file in touched if file.part == part]).join(ids, _ID, "left_semi")
        for part, ids in sought.items()
    ]
    return reduce(DataFrame.unionByName, found), touched


# -- attempts -----------------------------------------------------------------------------------------------------


def _update_attempts(work: Work, new: DataFrame, facts: _Facts) -> tuple[DataFrame, dict[str, int]]:
    """Stage the attempts; return those that changed, and for each store the first hour in which something did."""
    floors = dict(facts.first_hour)
    highest = work.staged_max(JOBS, "history")
    is_reused = highest is None or highest > 1
    histories = work.staged(JOBS).where(F.col("history") > 1).select(*HISTORY, "first_seq")
    known: DataFrame | None = None
    touched = []
    if facts.amendments and work.files(ATTEMPTS):
        known = work.keep(_amended(work, new))
        touched = work.files_of(ATTEMPTS, [row[FILE] for row in known.select(FILE).distinct().collect()])
        hour = F.unix_micros(F.date_trunc("hour", F.min("ended_at"))).alias("hour")
        for row in known.groupBy("source").agg(hour).collect():
            floors[row["source"]] = min(floors[row["source"]], row["hour"])
    if is_reused or facts.amendments:
        changed = attempts(new, histories, None if known is None else known.drop(FILE))
    else:
        changed = plain_attempts(new)
    rows = changed
    if known is not None:
        keys = [*HISTORY, "attempt"]
        amended = _hinted(known.select(*keys), facts)
        rows = rows.unionByName(work.read(ATTEMPTS, touched).join(amended, keys, "left_anti"))
    about = folded_rows(facts) + sum(file.rows for file in touched)
    work.stage(ATTEMPTS, rows, _DAY_OF["attempts"], about=about)
    work.replace(ATTEMPTS, touched)
    return changed, floors


def _amended(work: Work, new: DataFrame) -> DataFrame:
    """Return the attempts in the lake that late reports of the batch speak of."""
    keys = [*_ID, "attempt"]
    late = new.where(is_amendment()).select(*keys).distinct()
    found = work.read(ATTEMPTS, work.files(ATTEMPTS), with_file=True).join(late, keys, "left_semi")
    # Of an id that was used again only the last job can be spoken of.
    newest = found.groupBy(*_ID).agg(F.max("history").alias("history"))
    return found.join(newest, [*_ID, "history"], "left_semi")


# -- hourly -------------------------------------------------------------------------------------------------------


def _update_hourly(work: Work, floors: dict[str, int], facts: _Facts) -> DataFrame:
    first_day = datetime.fromtimestamp(min(floors.values()) // 1_000_000, UTC).date().isoformat()
    days = _days(work, first_day)
    changed = hourly(
        work.now(ATTEMPTS, days).where(_since("ended_at", floors)),
        work.now(EVENTS, days).where(_since("recorded_at", floors)),
        _backlogs(work, floors),
    )
    old = [file for file in work.files(HOURLY) if file.part >= first_day]
    rows = changed
    if old:
        rows = rows.unionByName(work.read(HOURLY, old).where(~_since("hour", floors)))
    work.stage(HOURLY, rows, _DAY_OF["hourly"], about=folded_rows(facts))
    work.replace(HOURLY, old)
    return changed


def _days(work: Work, first: str) -> list[str]:
    named = {file.part for table in (ATTEMPTS, EVENTS) for file in work.files(table)}
    return sorted(
        {day for day in named if day >= first} | work.staged_parts(ATTEMPTS) | work.staged_parts(EVENTS)
    )


def _since(column: str, floors: dict[str, int]) -> Column:
    each = (
        (F.col("source") == source) & (F.col(column) >= F.timestamp_micros(F.lit(floor)))
        for source, floor in floors.items()
    )
    return reduce(or_, each)


def _backlogs(work: Work, floors: dict[str, int]) -> DataFrame | None:
    """Return what waited when the first changed hour began."""
    files = work.files(HOURLY)
    if not files:
        return None
    earlier = work.read(HOURLY, files).where(
        F.col("source").isin(list(floors)) & F.col("worker").isNull() & ~_since("hour", floors)
    )
    return earlier.groupBy("source", "type").agg(F.max_by("backlog", "hour").alias("backlog"))


# -- flows --------------------------------------------------------------------------------------------------------


def _update_flows(work: Work, new: DataFrame, facts: _Facts) -> DataFrame | None:
    """Make the trees again that have a job of the batch.

    A tree holds everything that its last job waits for, directly or not. So what a new job waits for is in no tree, or
    in one with all that it waits for itself: to know which jobs belong together, no tree need be walked.
    """
    spoken_of = new.select(*_ID)
    scopes: list[DataFrame] = []
    if facts.dependent:
        both = F.concat(
            *(F.coalesce(name, F.array().cast("array<string>")) for name in ("after", "after_any"))
        )
        edges = new.where(F.col("n") == 1).select(*_ID, F.explode(both).alias("on_id"))
        awaited = edges.select("source", F.col("on_id").alias("job_id"))
        scopes = [edges.select(*_ID), awaited]
        spoken_of = spoken_of.unionByName(awaited)
    old: list[LakeFile] = []
    trees: DataFrame | None = None
    files = work.files(FLOWS)
    if files:
        members = work.read(FLOWS, files, with_file=True).select(
            *_TREE, "job_ids", FILE, F.explode("job_ids").alias("job_id")
        )
        trees = (
            members.join(spoken_of.distinct(), _ID, "left_semi").dropDuplicates([*_TREE]).localCheckpoint()
        )
        old = work.files_of(FLOWS, [row[FILE] for row in trees.select(FILE).distinct().collect()])
        scopes.append(trees.select("source", F.explode("job_ids").alias("job_id")))
    if not (old or facts.dependent):
        return None
    scope = _hinted(reduce(DataFrame.unionByName, scopes).distinct(), facts)
    # The walk reads them several times, the table is read once.
    related = work.now(JOBS).select(*FLOW_FACTS).join(scope, _ID, "left_semi").localCheckpoint()
    changed = flows(related)
    rows = changed
    if old and trees is not None:
        others = work.read(FLOWS, old).join(trees.select(*_TREE), [*_TREE], "left_anti")
        rows = rows.unionByName(others)
    work.stage(FLOWS, rows, about=sum(file.rows for file in old) + folded_rows(facts))
    work.replace(FLOWS, old)
    return changed


def _hinted(rows: DataFrame, facts: _Facts) -> DataFrame:
    """Return rows that a small batch speaks of, with the hint that they are few: what they are joined to stays put."""
    return F.broadcast(rows) if facts.is_small else rows
