"""`run_frames`: the ready jobs of a type as DataFrames, wave after wave.

A wave is one DataFrame. Its steps are:

    claim      up to `jobs_per_wave` jobs and 256 MB of payload; this process sends heartbeats for them
    run        payloads are parsed, `transform` is applied, its rows are collected: one Spark job
    report     a row completes or fails its job, a job without a row is failed; every report is fenced

While Spark runs a wave, a thread claims the next one and reports the one before.

If tasks fail, Spark does not say which row caused it. So the wave is halved and each half is run by itself, until the
failing rows are alone. If the transform itself is wrong, if its Spark job was cancelled, or if Spark or the store has a
fault, no row is the cause: the wave is released, and its attempts do not count.
"""

from __future__ import annotations

import time
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from penstock.durations import Duration, duration
from penstock.errors import InvalidArgumentError, invalid
from penstock.queue import connect
from penstock.spark._report import Report
from penstock.spark.frames._transform import FrameRunner, Transform
from penstock.spark.frames._waves import Waves
from penstock.spark.stores import store_at
from penstock.worker.arguments import checked_whole

__all__ = ["FramesReport", "run_frames"]

_JOBS_PER_WAVE: Final = 100_000
_MAX_JOBS_PER_WAVE: Final = 10_000_000


class FramesReport(Report, frozen=True):
    """What `run_frames` did.

    Attributes:
        completed: jobs whose completion was accepted.
        failed: jobs whose failure was accepted.
        waves: how many frames there were.
        seconds: how long it took.
    """

    completed: int
    failed: int
    waves: int
    seconds: float


def run_frames(
    spark: SparkSession,
    url: str,
    transform: Transform,
    *,
    type: str,
    schema: str | StructType | None = None,
    jobs_per_wave: int | None = None,
    until_idle: bool = True,
    max_seconds: Duration | None = None,
    max_jobs: int | None = None,
) -> FramesReport:
    """Run all ready jobs of a type as one DataFrame, wave after wave.

        def score(frame):
            return frame.select("id", "attempt", F.length("text").alias("score"))

        run_frames(spark, url, score, type="score", schema="text string")

    The frame has `id`, `attempt`, `key`, `tags`, and the fields of the JSON payload as `schema` names them, or
    `payload` as bytes without one. The transform returns `id`, `attempt` and result columns: a row's other columns become
    its job's result, as a JSON object. If it has a column `error`, a row where that is not null fails
    its job, as TEMPORARY unless the column `error_category` says otherwise. A job without a returned row fails as
    TEMPORARY; one with several rows, and one whose payload does not fit the schema, as PERMANENT.

    Args:
        spark: the session.
        url: the store.
        transform: from DataFrame to DataFrame. It may be called several times for one job.
        type: of the jobs.
        schema: of the payload, as DDL or StructType; none of its fields may be called `id`, `attempt`, `key` or `tags`.
        jobs_per_wave: the maximum number of jobs per frame; 100,000 by default. A wave also has at most 256 MB of
            payload, and one job per key. After a full wave the next one is claimed while Spark works, unless both
            would have more than 256 MB. All waves together are limited by `max_seconds` only.
        until_idle: return when no job of the type is ready, running or waiting for a retry; else run until stopped.
        max_seconds: after which no wave begins.
        max_jobs: the name of `jobs_per_wave` in version 0.1.

    If no job has the type, a warning is logged that names the types with ready jobs.

    Raises:
        AnalysisException: the transform does not fit the frame. As after every error that is raised, the jobs of
            the wave have been released, uncounted.
        ParseException: the schema is not valid DDL; no job was claimed.
        InvalidArgumentError: wrong arguments, a url without a store, or a transform that returns no `id` and `attempt`.
        BackendError: the store failed.
    """
    limit = _checked_seconds(transform, type, max_seconds)
    wave_size = _checked_wave_size(jobs_per_wave, max_jobs)
    store = store_at(url)
    runner = FrameRunner(spark, transform, schema)
    began = time.monotonic()
    with connect(store.url, create=False) as queue, Waves(queue, runner, type, wave_size) as waves:
        while limit is None or time.monotonic() - began < limit:
            if waves.run_one():
                continue
            waves.warn_of_unknown_type()
            if until_idle and not queue.backend.runtime.has_work([type]):
                break
            waves.wait()
    seconds = time.monotonic() - began
    return FramesReport(waves.counts["completed"], waves.counts["failed"], waves.counts["waves"], seconds)


def _checked_seconds(transform: object, type_: object, max_seconds: Duration | None) -> float | None:
    if not callable(transform):
        raise invalid("transform", "a function of a DataFrame", transform)
    if not isinstance(type_, str) or not type_:
        raise invalid("type", "a job type", type_)
    return None if max_seconds is None else duration(max_seconds, "max_seconds").total_seconds()


def _checked_wave_size(jobs_per_wave: object, max_jobs: object) -> int:
    if jobs_per_wave is not None and max_jobs is not None:
        raise InvalidArgumentError(
            "jobs_per_wave and max_jobs are two names of one argument; give jobs_per_wave", field="max_jobs"
        )
    name, value = ("max_jobs", max_jobs) if jobs_per_wave is None else ("jobs_per_wave", jobs_per_wave)
    if value is None:
        return _JOBS_PER_WAVE
    return checked_whole(name, value, 1, _MAX_JOBS_PER_WAVE)
