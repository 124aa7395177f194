"""Read a journal, from a store or a lake, and let every check look at it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import reduce
from typing import Final, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from penstock.errors import InvalidArgumentError, shown
from penstock.job import JournalArchive
from penstock.policy import duration
from penstock.spark._places import Place
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
from penstock.spark.lake._reading import snapshot
from penstock.spark.schemas import JOBS

__all__ = ["Audit", "Subject", "audit", "check_events", "run_audit"]

_SCHEMES: Final = ("sqlite:", "postgresql:", "postgres:", "memory:")


class Audit(NamedTuple):
    """What an audit found.

    Attributes:
        violations: `invariant, source, job_id, attempt, seq, detail`, one row each.
        events: how many journal rows it saw.
        archived: what was removed from each journal, and could not be seen.
    """

    violations: DataFrame
    events: int
    archived: Mapping[str, JournalArchive]


class Subject(NamedTuple):
    """A journal, the jobs it should fold to, what is missing from it, and how far it reached when those were read."""

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
    idempotency_window: timedelta | float = timedelta(hours=24),
    clock_slack: timedelta | float = timedelta(seconds=1),
) -> DataFrame:
    """Return every invariant that a journal breaks: `invariant, source, job_id, attempt, seq, detail`; no row is good.

    `detail` says what is wrong and, in brackets, the shortest run of rows that shows it. The invariants are those of
    `INVARIANTS`; the legal moves are the published table. A store may be written to meanwhile.

    Args:
        spark: a session.
        url_or_lake: a store's url, or a lake's folder.
        drained_at: when given, no job may be left that could have run by then (invariant 9).
        idempotency_window: the store's option of this name.
        clock_slack: how far recorded times may go back.

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
    idempotency_window: timedelta | float = timedelta(hours=24),
    clock_slack: timedelta | float = timedelta(seconds=1),
) -> Audit:
    """Do what `audit` does, and also return how much was looked at and what could not be."""
    window = duration(idempotency_window, "idempotency_window")
    slack = duration(clock_slack, "clock_slack")
    if not isinstance(url_or_lake, str | os.PathLike):
        raise InvalidArgumentError(
            f"an audit needs the url of a store or the folder of a lake, got {shown(url_or_lake)}",
            field="url_or_lake",
            value=url_or_lake,
        )
    if drained_at is not None and drained_at.utcoffset() is None:
        raise InvalidArgumentError(
            f"drained_at must have a time zone, got {shown(drained_at)}",
            field="drained_at",
            value=drained_at,
        )
    target = os.fspath(url_or_lake)
    if target.startswith(_SCHEMES) or (isinstance(url_or_lake, str) and "://" in target):
        subject = _of_store(spark, Place.of(target))
    else:
        subject = _of_lake(spark, target)
    try:
        return check_events(subject, window, slack, drained_at)
    finally:
        subject.events.unpersist()


def check_events(subject: Subject, window: timedelta, slack: timedelta, drained_at: datetime | None) -> Audit:
    """Let every check look at a journal."""
    events, archived = subject.events, subject.archived
    found = [
        _job_checks(subject, drained_at),
        sequence_checks(events, archived, slack),
        idempotency_checks(events, window),
        key_checks(events, _cut(archived)),
    ]
    violations = (
        reduce(DataFrame.unionByName, found).select(*COLUMNS).orderBy("source", "seq").localCheckpoint()
    )
    number = events.count() if subject.number is None else subject.number
    return Audit(violations, number, archived)


def _job_checks(subject: Subject, drained_at: datetime | None) -> DataFrame:
    """Return what the rows of single jobs break.

    In two passes: the first asks of every job only whether something is wrong with it, the second looks at those jobs
    alone, with all that is needed to say what. Nearly always there are none.
    """
    checks = [*HISTORY_CHECKS, *([] if drained_at is None else [left_over(drained_at)])]
    suspects = _suspects(subject, checks)
    if suspects.isEmpty():
        return no_violations(subject.events)
    rows = checked_rows(
        flagged(_of_jobs(subject.events, suspects), _cut(subject.archived)), ["source", "job_id"]
    )
    found = violations(rows, checks)
    if subject.stored is None:
        return found
    kept = _of_jobs(subject.stored, suspects)
    return found.unionByName(fold_checks(rows, kept, subject.archived, subject.read_after))


def _suspects(subject: Subject, checks: Sequence[Check]) -> DataFrame:
    """Return the jobs, by their number `job`, with which something is wrong, or seems to be."""
    events = subject.events if subject.stored is None else fingerprinted(subject.events)
    rows = checked_rows(coded(events, _cut(subject.archived)), ["job"])
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
    """Return the sources from which something was removed."""
    return [source for source, each in archived.items() if each.rows]


def _of_lake(spark: SparkSession, path: str) -> Subject:
    manifest, tables = snapshot(spark, path, ["events", "jobs"])
    hidden = {
        source: JournalArchive(histories=rows, rows=rows, upto=manifest.offsets[source])
        for source, rows in manifest.hidden.items()
    }
    stored = tables["jobs"].select("source", "job_id", "history", *STATE, *ORIGIN)
    return Subject(tables["events"], stored, hidden, None, manifest.rows("events"))


def _of_store(spark: SparkSession, place: Place) -> Subject:
    register(spark)
    with place.open_existing() as backend:
        before = Survey.of(place, backend, is_journal=True)
    stored = _stored_jobs(spark, place).localCheckpoint()
    with place.open_existing() as backend:
        after = Survey.of(place, backend, is_journal=True)
        archive = backend.get_archive()
    # Every check reads it; from the store that would be slow, and a burden to it.
    events = _read(spark, place).load().where(f"seq <= {after.last}").persist(StorageLevel.DISK_ONLY)
    return Subject(events, stored, {after.source: archive}, {before.source: before.last})


def _stored_jobs(spark: SparkSession, place: Place) -> DataFrame:
    names = {"source", "id", "retry", *STATE, *ORIGIN}
    wanted = ", ".join(f"`{each.name}` {each.type}" for each in JOBS.columns if each.name in names)
    jobs = _read(spark, place).option("table", "jobs").schema(wanted).load()
    others = sorted(names - {"id", "retry", "max_attempts"})
    return jobs.selectExpr("id AS job_id", "retry.max_attempts AS max_attempts", *others)


def _read(spark: SparkSession, place: Place) -> DataFrameReader:
    return spark.read.format("penstock").option("url", place.address)
