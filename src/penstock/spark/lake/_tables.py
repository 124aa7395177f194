"""Updating each table with a batch of journal rows.

Only the affected files are read and rewritten: those with jobs of the batch, those with amended attempts, the hours from the
earliest new row on, and the dependency trees with a changed job. Ended jobs are in other files than open ones, so that files
of jobs that ended long ago are rarely rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.job import FINAL
from penstock.spark._settings import temporarily
from penstock.spark.lake._batch import Batch, Named, read_batch
from penstock.spark.lake._lookup import MAX_ROWS, distinct, files_with, jobs_of, rows_with
from penstock.spark.lake._work import FILE, STAGING, Work
from penstock.spark.lake.manifest import LakeFile
from penstock.spark.tables import ATTEMPTS, EVENTS, FLOWS, HOURLY, JOBS
from penstock.spark.transforms.attempts import attempts, plain_attempts
from penstock.spark.transforms.flows import FLOW_FACTS, flows
from penstock.spark.transforms.hourly import hourly
from penstock.spark.transforms.latest import latest
from penstock.spark.transforms.rows import AMENDMENT, DEPENDENCIES, HISTORY, quoted

__all__ = ["Sink", "derive", "stage_events"]

#: Called with the rows that a batch adds or changes: (table, rows, number of the batch).
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
# A small batch takes a dozen small queries, which these optimisations for large ones would slow down: adaptive planning
# makes several Spark jobs per query, and generated code is compiled for a single use.
_FOR_SMALL: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_TREE: Final = ("source", "flow_id", "history")


def derive(
    work: Work, paths: Sequence[Path], sink: Sink | None, step: Callable[[str], None]
) -> dict[str, int]:
    """Update every table except `events` with the journal rows in some files; return the number of rows per source."""
    batch = read_batch(paths)
    if not batch.rows:
        return batch.counts
    with temporarily(work.spark, STAGING | (_FOR_SMALL if batch.is_small else {})):
        try:
            _derive(work, work.frame(EVENTS, paths), batch, sink, step)
        finally:
            work.unpersist()
    return batch.counts


def _derive(work: Work, new: DataFrame, batch: Batch, sink: Sink | None, step: Callable[[str], None]) -> None:
    step("jobs")
    changed: dict[str, DataFrame | None] = {"jobs": _update_jobs(work, new, batch)}
    # The flows do not depend on the next two tables: Spark plans one query while it runs the other.
    with ThreadPoolExecutor(1, "penstock-flows") as beside:
        trees = beside.submit(_update_flows, work, new, batch)
        step("attempts")
        changed["attempts"], floors = _update_attempts(work, new, batch)
        step("hourly")
        changed["hourly"] = _update_hourly(work, floors, batch)
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
    """Stage the journal rows of a batch."""
    with temporarily(work.spark, STAGING):
        work.stage(EVENTS, rows, _DAY_OF["events"])


# -- jobs ---------------------------------------------------------------------------------------------------------


def _update_jobs(work: Work, new: DataFrame, batch: Batch) -> DataFrame:
    """Fold the batch into the table `jobs`; return the changed rows.

    Any row may change an open job; only rows that start from a final status change an ended one. A removed job is needed
    for the number of the next history of its id.
    """
    parts = ("open", "ended", "removed") if batch.from_final else ("open", "removed")
    files = work.files(JOBS, parts)
    if not files:
        folded = latest(new)
        work.stage(JOBS, folded, _JOB_PART, about=batch.about)
    elif batch.named is not None and sum(file.rows for file in files) <= MAX_ROWS:
        touched = work.files_at(JOBS, files_with(work.paths(files), batch.named.jobs))
        known = [work.take_out(JOBS, file, batch.named.jobs) for file in touched]
        folded = latest(new, work.local(JOBS, known) if known else None)
        work.stage(JOBS, folded, _JOB_PART, about=batch.about)
    else:
        ids = _hinted(new.select(*_ID).distinct(), batch)
        # First find the files with these jobs, which needs two columns only; then read these files whole.
        named = work.read(JOBS, files, with_file=True).join(ids, _ID, "left_semi").select(FILE).distinct()
        touched = work.files_of(JOBS, [row[FILE] for row in named.collect()])
        rows = work.read(JOBS, touched)
        folded = latest(new, rows.join(ids, _ID, "left_semi"))
        about = batch.about + sum(file.rows for file in touched)
        work.stage(JOBS, folded.union(rows.join(ids, _ID, "left_anti")), _JOB_PART, about=about)
        work.replace(JOBS, touched)
    return folded


# -- attempts -----------------------------------------------------------------------------------------------------


def _update_attempts(work: Work, new: DataFrame, batch: Batch) -> tuple[DataFrame, dict[str, int]]:
    """Stage the attempts; return the changed ones, and the first changed hour per store."""
    floors = dict(batch.first_hour)
    highest = work.staged_max(JOBS, "history")
    is_reused = highest is None or highest > 1
    known: DataFrame | None = None
    touched = []
    if batch.amendments and work.files(ATTEMPTS):
        known = work.keep(_amended(work, new))
        touched = work.files_of(ATTEMPTS, [row[FILE] for row in known.select(FILE).distinct().collect()])
        hour = "unix_micros(date_trunc('hour', min(ended_at))) AS hour"
        for row in known.groupBy("source").agg(F.expr(hour)).collect():
            floors[row["source"]] = min(floors[row["source"]], row["hour"])
    if is_reused or batch.amendments:
        histories = work.staged(JOBS).where("history > 1").select(*HISTORY, "first_seq")
        changed = attempts(new, histories, None if known is None else known.drop(FILE))
    else:
        changed = plain_attempts(new)
    rows = changed
    if known is not None:
        keys = [*HISTORY, "attempt"]
        amended = _hinted(known.select(*keys), batch)
        rows = rows.unionByName(work.read(ATTEMPTS, touched).join(amended, keys, "left_anti"))
    about = batch.about + sum(file.rows for file in touched)
    work.stage(ATTEMPTS, rows, _DAY_OF["attempts"], about=about)
    work.replace(ATTEMPTS, touched)
    return changed, floors


def _amended(work: Work, new: DataFrame) -> DataFrame:
    """Return the attempts in the lake that late reports in the batch amend."""
    keys = [*_ID, "attempt"]
    late = new.where(AMENDMENT).select(*keys).distinct()
    found = work.read(ATTEMPTS, work.files(ATTEMPTS), with_file=True).join(late, keys, "left_semi")
    # If an id was used again, only its last job can be reported.
    newest = found.groupBy(*_ID).agg(F.expr("max(history) AS history"))
    return found.join(newest, [*_ID, "history"], "left_semi")


# -- hourly -------------------------------------------------------------------------------------------------------


def _update_hourly(work: Work, floors: dict[str, int], batch: Batch) -> DataFrame:
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
        rows = rows.unionByName(work.read(HOURLY, old).where(f"NOT {_since('hour', floors)}"))
    work.stage(HOURLY, rows, _DAY_OF["hourly"], about=batch.about)
    work.replace(HOURLY, old)
    return changed


def _days(work: Work, first: str) -> list[str]:
    named = {file.part for table in (ATTEMPTS, EVENTS) for file in work.files(table)}
    return sorted(
        {day for day in named if day >= first} | work.staged_parts(ATTEMPTS) | work.staged_parts(EVENTS)
    )


def _since(column: str, floors: dict[str, int]) -> str:
    each = (
        f"source = {quoted(source)} AND {column} >= timestamp_micros({floor})"
        for source, floor in floors.items()
    )
    return f"({' OR '.join(each)})"


def _backlogs(work: Work, floors: dict[str, int]) -> DataFrame | None:
    """Return the backlog at the beginning of the first changed hour."""
    files = work.files(HOURLY)
    if not files:
        return None
    sources = ", ".join(map(quoted, floors))
    earlier = work.read(HOURLY, files).where(
        f"source IN ({sources}) AND worker IS NULL AND NOT {_since('hour', floors)}"
    )
    return earlier.groupBy("source", "type").agg(F.expr("max_by(backlog, hour) AS backlog"))


# -- flows --------------------------------------------------------------------------------------------------------


def _update_flows(work: Work, new: DataFrame, batch: Batch) -> DataFrame | None:
    """Rebuild the dependency trees that have a job of the batch.

    A tree has all direct and indirect dependencies of its last job. So a dependency of a new job is in no tree yet, or in
    one together with its own dependencies: the related jobs are found without a walk.
    """
    files = work.files(FLOWS)
    if not (files or batch.dependent):
        return None
    if batch.named is not None and work.rows_now(JOBS) <= MAX_ROWS:
        return _update_few_flows(work, batch.named, files, batch)
    waiting, awaited = _dependent(new)
    scope = waiting.union(awaited)
    old: list[LakeFile] = []
    trees: DataFrame | None = None
    if files:
        trees = (
            work.read(FLOWS, files, with_file=True)
            .selectExpr(*_TREE, "job_ids", FILE, "explode(job_ids) AS job_id")
            .join(new.select(*_ID).union(awaited).distinct(), _ID, "left_semi")
            .dropDuplicates([*_TREE])
            .localCheckpoint()
        )
        old = work.files_of(FLOWS, [row[FILE] for row in trees.select(FILE).distinct().collect()])
        scope = scope.union(trees.selectExpr("source", "explode(job_ids) AS job_id"))
    if not (old or batch.dependent):
        return None
    # The walk reads them several times; the checkpoint reads the table once.
    related = work.now(JOBS).select(*FLOW_FACTS).join(_hinted(scope.distinct(), batch), _ID, "left_semi")
    changed = flows(related.localCheckpoint())
    rows = changed
    if trees is not None:
        rows = rows.union(work.read(FLOWS, old).join(trees.select(*_TREE), [*_TREE], "left_anti"))
    work.stage(FLOWS, rows, about=sum(file.rows for file in old) + batch.about)
    work.replace(FLOWS, old)
    return changed


def _update_few_flows(work: Work, named: Named, files: list[LakeFile], batch: Batch) -> DataFrame | None:
    affected = distinct([named.jobs, named.awaited])
    found = rows_with(work.paths(files), [*_TREE, "job_ids"], affected, listed="job_ids")
    trees = [rows for _, rows in found]
    scope = distinct([named.waiting, named.awaited, *map(jobs_of, trees)])
    if not scope.num_rows:
        return None
    related = [rows for _, rows in rows_with(work.paths_now(JOBS), FLOW_FACTS, scope)]
    if not related:  # archived before the first sync
        return None
    changed = flows(work.local(JOBS, related))
    work.stage(FLOWS, changed, about=batch.about)
    for file, rows in zip(work.files_at(FLOWS, [path for path, _ in found]), trees, strict=True):
        work.take_out(FLOWS, file, rows.select([*_TREE]))
    return changed


def _dependent(new: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return `source, job_id` of the new jobs with dependencies, and of the dependencies."""
    edges = new.where("n = 1").selectExpr(*_ID, f"explode({DEPENDENCIES}) AS on_id")
    return edges.select(*_ID), edges.selectExpr("source", "on_id AS job_id")


def _hinted(rows: DataFrame, batch: Batch) -> DataFrame:
    """Return rows with a broadcast hint if the batch is small, so that the other side of a join is not shuffled."""
    return F.broadcast(rows) if batch.is_small else rows
