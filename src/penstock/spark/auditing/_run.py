"""Reading a journal from a store or a lake, and running every check on it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import reduce
from typing import Final, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from penstock.backends.drivers import SCHEMES
from penstock.durations import Duration, duration
from penstock.errors import invalid
from penstock.job import JournalArchive
from penstock.spark._planning import Survey
from penstock.spark._session import register
from penstock.spark.auditing._fold import fingerprinted, fold_checks, fold_suspects
from penstock.spark.auditing._histories import (
    HISTORY_CHECKS,
    JOB,
    ORIGIN,
    STATE,
    checked_rows,
    coded,
    flagged,
    left_over,
)
from penstock.spark.auditing._keys import idempotency_checks, key_checks
from penstock.spark.auditing._sequence import sequence_checks
from penstock.spark.auditing._words import COLUMNS, Check, any_broken, no_violations, violations
from penstock.spark.lake.reading import snapshot
from penstock.spark.schemas import JOBS
from penstock.spark.stores import SparkStore, store_at

__all__ = ["Audit", "Subject", "audit", "check_events", "run_audit"]

_PREFIXES: Final = tuple(f"{scheme}:" for scheme in SCHEMES)


class Audit(NamedTuple):
    """The result of an audit.

    Attributes:
        violations: `invariant, source, job_id, attempt, seq, detail`, one row each.
        events: the number of journal rows that were checked.
        archived: the archived part of each journal, which could not be checked.
    """

    violations: DataFrame
    events: int
    archived: Mapping[str, JournalArchive]


class Subject(NamedTuple):
    """A journal, the stored jobs, the archived part of the journal, and its last `seq` before the jobs were read."""

    events: DataFrame
    stored: DataFrame | None
    archived: dict[str, JournalArchive]
    read_after: dict[str, int] | None
    number: int | None = None


def audit(
    spark: SparkSession,
    url_or_lake: str | os.PathLike[str],
    *,
    drained_at: datetime | None = None,
    idempotency_window: Duration = timedelta(hours=24),
    clock_slack: Duration = timedelta(seconds=1),
) -> DataFrame:
    """Return every violation of an invariant in a journal: `invariant, source, job_id, attempt, seq, detail`.

    No rows means no violations. `detail` says what is wrong and, in brackets, the rows that show it. The invariants are
    those of `INVARIANTS`; the legal moves are the published table. The store may be written to meanwhile.

    Args:
        spark: a session.
        url_or_lake: a store's url, or a lake's folder.
        drained_at: if given, every job that was due by then must have ended (invariant 9).
        idempotency_window: the store's option of this name.
        clock_slack: how far recorded times may go back, and how far the times of one attempt may contradict each other.

    Raises:
        InvalidArgumentError: neither a url nor a lake.
        BackendError: the store or the lake cannot be read.
    """
    return run_audit(
        spark,
        url_or_lake,
        drained_at=drained_at,
        idempotency_window=idempotency_window,
        clock_slack=clock_slack,
    ).violations


def run_audit(
    spark: SparkSession,
    url_or_lake: str | os.PathLike[str],
    *,
    drained_at: datetime | None = None,
    idempotency_window: Duration = timedelta(hours=24),
    clock_slack: Duration = timedelta(seconds=1),
) -> Audit:
    """Run an audit as `audit` does; also return how many rows were checked and what was archived."""
    window = duration(idempotency_window, "idempotency_window")
    slack = duration(clock_slack, "clock_slack")
    if not isinstance(url_or_lake, str | os.PathLike):
        raise invalid("url_or_lake", "the url of a store or the folder of a lake", url_or_lake)
    if drained_at is not None and drained_at.utcoffset() is None:
        raise invalid("drained_at", "a time with its zone", drained_at)
    target = os.fspath(url_or_lake)
    if target.startswith(_PREFIXES) or (isinstance(url_or_lake, str) and "://" in target):
        subject = _of_store(spark, store_at(target))
    else:
        subject = _of_lake(spark, target)
    try:
        return check_events(subject, window, slack, drained_at)
    finally:
        subject.events.unpersist()


def check_events(subject: Subject, window: timedelta, slack: timedelta, drained_at: datetime | None) -> Audit:
    """Run every check on a journal."""
    events, archived = subject.events, subject.archived
    found = [
        _job_checks(subject, slack, drained_at),
        sequence_checks(events, archived, slack),
        idempotency_checks(events, window),
        key_checks(events, _cut(archived)),
    ]
    violations = (
        reduce(DataFrame.unionByName, found).select(*COLUMNS).orderBy("source", "seq").localCheckpoint()
    )
    number = events.count() if subject.number is None else subject.number
    return Audit(violations, number, archived)


def _job_checks(subject: Subject, slack: timedelta, drained_at: datetime | None) -> DataFrame:
    """Return the violations in the rows of single jobs.

    There are two passes: the first finds the jobs that may have a violation, which are nearly always none; the second
    reads the full rows of these jobs.
    """
    checks = [*HISTORY_CHECKS, *([] if drained_at is None else [left_over(drained_at)])]
    suspects = _suspects(subject, slack, checks)
    if suspects.isEmpty():
        return no_violations(subject.events)
    rows = checked_rows(
        flagged(_of_jobs(subject.events, suspects), _cut(subject.archived), slack), ["source", "job_id"]
    )
    found = violations(rows, checks)
    if subject.stored is None:
        return found
    kept = _of_jobs(subject.stored, suspects)
    return found.unionByName(fold_checks(rows, kept, subject.archived, subject.read_after))


def _suspects(subject: Subject, slack: timedelta, checks: Sequence[Check]) -> DataFrame:
    """Return the jobs, by their hash `job`, that have or may have a violation."""
    events = subject.events if subject.stored is None else fingerprinted(subject.events)
    rows = checked_rows(coded(events, _cut(subject.archived), slack), ["job"])
    rows = rows.selectExpr("*", f"({any_broken(checks)}) AS is_wrong")
    if subject.stored is None:
        found = rows.where("is_wrong")
    else:
        ends = rows.where("is_last OR is_wrong").selectExpr(
            *("job", "history", "is_last", "is_wrong", "flags", "state", "origin.began AS began")
        )
        found = fold_suspects(ends, subject.stored)
    return found.select("job").distinct().localCheckpoint()


def _of_jobs(rows: DataFrame, jobs: DataFrame) -> DataFrame:
    return rows.selectExpr("*", JOB).join(jobs, "job", "left_semi").drop("job")


def _cut(archived: Mapping[str, JournalArchive]) -> list[str]:
    """Return the sources with archived rows."""
    return [source for source, each in archived.items() if each.rows]


def _of_lake(spark: SparkSession, path: str) -> Subject:
    manifest, tables = snapshot(spark, path, ["events", "jobs"])
    hidden = {
        source: JournalArchive(histories=rows, rows=rows, upto=manifest.offsets[source])
        for source, rows in manifest.hidden.items()
    }
    stored = tables["jobs"].select("source", "job_id", "history", *STATE, *ORIGIN)
    return Subject(tables["events"], stored, hidden, None, manifest.rows("events"))


def _of_store(spark: SparkSession, store: SparkStore) -> Subject:
    register(spark)
    with store.open_existing() as backend:
        before = Survey.of(store, backend, is_journal=True)
    stored = _stored_jobs(spark, store).localCheckpoint()
    with store.open_existing() as backend:
        after = Survey.of(store, backend, is_journal=True)
        archive = backend.journal.get_archive()
    # Every check reads it; reading it from the store each time would be slow and load the store.
    events = _read(spark, store).option("maxSeq", after.last).load().persist(StorageLevel.DISK_ONLY)
    return Subject(events, stored, {after.source: archive}, {before.source: before.last})


def _stored_jobs(spark: SparkSession, store: SparkStore) -> DataFrame:
    names = {"source", "id", "retry", *STATE, *ORIGIN}
    wanted = ", ".join(f"`{each.name}` {each.type}" for each in JOBS.columns if each.name in names)
    jobs = _read(spark, store).option("table", "jobs").schema(wanted).load()
    others = sorted(names - {"id", "retry", "max_attempts"})
    return jobs.selectExpr("id AS job_id", "retry.max_attempts AS max_attempts", *others)


def _read(spark: SparkSession, store: SparkStore) -> DataFrameReader:
    return spark.read.format("penstock").option("url", store.url)
